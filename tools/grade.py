"""Grade what students handed in.

    make grade SUBMISSIONS=folder OUT=grades.csv [CHAPTERS="02 03"]

SUBMISSIONS holds a folder for each student, or their notebooks themselves. OUT gets one row a student; beside it lie
OUT's journal, from which a grading that was cut off goes on, and a folder with a feedback page for each student, in
HTML and in text. What counts is set in classroom.toml. docs/teaching.md is the guide.
"""

import argparse
import csv
import ctypes
import hashlib
import io
import json
import os
import re
import signal
import sys
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from synth_lib import checks  # noqa: E402
from tools.classroom import course as courses  # noqa: E402
from tools.classroom import feedback, sandbox, submissions  # noqa: E402
from tools.classroom.grading import Result, grade  # noqa: E402
from tools.classroom.student import Nursery  # noqa: E402

WORKER = {}


def start_worker(numbers, protected):
    """In each process of the pool: its own nursery, for as long as it lives."""
    WORKER["course"] = courses.read(numbers)
    WORKER["protected"] = protected
    new_nursery()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # it ends with the grading, however that ends


def new_nursery():
    WORKER["nursery"] = Nursery(WORKER["protected"])
    Finalize(None, WORKER["nursery"].close, exitpriority=1)


def grade_in_worker(path):
    """One notebook's result. What it does to the grader is its own fault, and costs no other notebook anything."""
    path = Path(path)
    for _ in range(2):  # the nursery may have died of something else: once it is tried again
        try:
            result = grade(WORKER["nursery"], path, WORKER["course"])
            if WORKER["nursery"].alive:
                return result.as_dict()
            says = "the process that runs notebooks ended twice while this one was graded"
        except Exception as error:  # no notebook may end the grading of the others
            says = f"the grader itself stopped at it: {type(error).__name__}: {str(error)[:200]}"
        WORKER["nursery"].close()
        new_nursery()
    return Result(path.name, refused=f"{path.name}: {says}").as_dict()


class Journal:
    """What has been graded, a line for each notebook, written before the next one begins.

    An entry holds for the same file, the same checks and the same seed; points are not in it and can change.
    """

    def __init__(self, path):
        self.entries = {}
        self.file = open(path, "a+", encoding="utf8")
        import fcntl  # there is none on Windows, where this program stops before

        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit(f"Another grading writes to {path}.") from None
        self.file.seek(0)
        line = ""
        for line in self.file:
            try:
                entry = json.loads(line)
                self.entries[entry["key"]] = entry["result"]
            except (ValueError, TypeError, KeyError):  # the line at which a grading was cut off
                continue
        if line and not line.endswith("\n"):
            self.file.write("\n")

    def add(self, key, result):
        self.entries[key] = result
        self.file.write(json.dumps({"key": key, "result": result}) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def fingerprint(course):
    """Changes when the same notebook could get another verdict."""
    digest = hashlib.sha256(repr((course.seed, course.limits, sorted(course.chapters))).encode())
    files = sorted((ROOT / "synth_lib").rglob("*.py")) + sorted((ROOT / "tools" / "classroom").glob("*.py"))
    for path in [*files, *(chapter.path for chapter in course.chapters.values())]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def file_key(student, path, base):
    try:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError:
        content = "unreadable"
    return f"{base}/{student}/{path.name}/{content}"


def chapters_of(handed_in):
    """The chapters that somebody handed in, of those that classroom.toml knows."""
    course = courses.read()
    found = set()
    for path in (path for paths in handed_in.values() for path in paths):
        try:
            found.add(submissions.recognise(submissions.read(path), course.chapters, path.name))
        except (submissions.Refused, OSError):
            continue
    return sorted(found)


def row_of(student, results, course):
    """One student's row, from the results of all their notebooks."""
    exercises, notes, reasons, absent = {}, [], [], set()
    refused = [result["refused"] for result in results if result["refused"]]
    kind = "notebook that can be read" if refused else "notebook"
    counted = Counter(result["chapter"] for result in results if result["chapter"])
    for chapter in course.chapters.values():
        own = [result for result in results if result["chapter"] == chapter.number]
        for key in chapter.points:
            candidates = [(*result["verdicts"][key],) for result in own]
            candidates = candidates or [("not answered", f"No {kind} of chapter {chapter.number} was handed in.", "")]
            scored = [(status, says, course.points(key, status, says), shown) for status, says, shown in candidates]
            exercises[key] = max(scored, key=lambda one: (one[2], one[0] == "wrong"))
        if counted[chapter.number] > 1:
            notes.append(f"There are {counted[chapter.number]} notebooks of chapter {chapter.number}; the best counts.")
        if not own:
            absent.add(chapter.number)
            reasons.append(f"chapter {chapter.number}: nothing {'that can be read' if refused else 'handed in'}")
    reasons += refused
    notes += [f"Not graded: {reason}." for reason in refused if not any(reason in note for note in notes)]
    troubles = [f"{result['file']}: {trouble}" for result in results for trouble in result["troubles"]]
    notes += troubles + [f"{result['file']}: {note}" for result in results for note in result["notes"]]
    for key, (status, says, *_) in exercises.items():
        if status in ("wrong", "not graded") and not (refused and status == "not graded"):
            reasons.append(f"{key}: {says}")
        elif status == "not answered" and key[:2] not in absent:
            reasons.append(f"{key}: not answered")
    reasons += [trouble.rstrip(".") for trouble in troubles]
    look = bool(refused) or any(status == "not graded" for status, *_ in exercises.values())
    return {
        "student": student,
        "exercises": exercises,
        "total": sum(points for _, _, points, _ in exercises.values()),
        "of": sum(sum(chapter.points.values()) for chapter in course.chapters.values()),
        "look": "look" if look else "",
        "reason": "; ".join(reasons) or "all right",
        "notes": notes,
    }


def write_table(rows, course, out):
    """One row a student, whole or not at all."""
    graded = [key for chapter in course.chapters.values() for key, points in chapter.points.items() if points]
    file = io.StringIO()
    table = csv.writer(file)
    table.writerow(["student", *graded, "total", "of", "look", "reason"])
    for row in rows:
        points = [feedback.number(row["exercises"][key][2]) for key in graded]
        numbers = [feedback.number(row["total"]), feedback.number(row["of"])]
        table.writerow([_cell(row["student"]), *points, *numbers, row["look"], _cell(row["reason"])])
    write_whole(out, file.getvalue())


def _cell(text):
    """A text that no spreadsheet takes for a formula."""
    text = " ".join(text.split())
    return f"'{text}" if text[:1] in "=+-@" else text


def write_whole(path, text):
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf8", errors="replace", newline="")
    os.replace(partial, path)


def write_pages(rows, course, folder):
    titles = {key: checks.find(key).title for chapter in course.chapters.values() for key in chapter.points}
    folder.mkdir(parents=True, exist_ok=True)
    taken = Counter()
    for row in rows:
        name = re.sub(r"[^\w.@+-]+", "_", row["student"]).strip(".") or "student"
        taken[name.lower()] += 1
        name += f"_{taken[name.lower()]}" if taken[name.lower()] > 1 else ""
        text, page = feedback.pages(row, course, titles)
        write_whole(folder / f"{name}.txt", text)
        write_whole(folder / f"{name}.html", page)


def results_of(tasks, numbers, protected, jobs, journal):
    """Grade what the journal does not have yet: tasks is {key: path}."""
    waiting = {key: path for key, path in tasks.items() if key not in journal.entries}
    bar = tqdm(total=len(tasks), initial=len(tasks) - len(waiting), unit="notebook", smoothing=0.05)
    tries = Counter()
    while waiting:
        options = {"initializer": start_worker, "initargs": (numbers, protected), "mp_context": get_context("spawn")}
        with ProcessPoolExecutor(min(jobs, len(waiting)), **options) as pool:
            queue = iter(list(waiting.items()))
            running = {}
            try:
                while True:
                    for key, path in queue:
                        running[pool.submit(grade_in_worker, str(path))] = key
                        if len(running) >= jobs:  # few at a time: what is cut off is little
                            break
                    if not running:
                        break
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for job in done:
                        result = job.result()
                        key = running.pop(job)
                        journal.add(key, result)
                        del waiting[key]
                        bar.update()
            except BrokenProcessPool:  # a worker of the grader itself is gone, perhaps for lack of memory
                for key in running.values():
                    tries[key] += 1
                    if tries[key] == 2:
                        path = waiting.pop(key)
                        says = f"{path.name}: the grader itself ended twice while it graded this"
                        journal.add(key, Result(path.name, refused=says).as_dict())
                        bar.update()
    bar.close()


def main():
    parser = argparse.ArgumentParser(description="Grade notebooks; see docs/teaching.md.")
    parser.add_argument("submissions", type=Path, help="a folder with a folder or a notebook for each student")
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="the table to write (grades.csv)")
    parser.add_argument("--chapters", default="", help='such as "02 03"; without it those that somebody handed in')
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="notebooks at the same time")
    parser.add_argument("--unprotected", action="store_true", help="run without a sandbox, inside a container of yours")
    options = parser.parse_args()
    if not options.submissions.is_dir():
        parser.error(f"{options.submissions} is no folder")
    if not hasattr(os, "fork"):
        parser.error("grading needs Linux; see docs/teaching.md")
    lack = sandbox.missing()
    if lack and not options.unprotected:
        parser.error(f"students' code cannot be shut in here: {lack}. Grade on Linux, or see docs/teaching.md")
    handed_in = submissions.find(options.submissions)
    if not handed_in:
        parser.error(f"{options.submissions} is empty")
    try:
        numbers = courses.chosen_numbers(options.chapters) or chapters_of(handed_in)
        course = courses.read(numbers)
        if not numbers:
            raise courses.CourseError('No notebook of a chapter was found. Say which are graded: CHAPTERS="02 03".')
    except courses.CourseError as error:
        return courses.fail(error)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(options.out.with_name(options.out.name + ".journal"))
    base = fingerprint(course)
    keys = {student: [file_key(student, path, base) for path in paths] for student, paths in handed_in.items()}
    tasks = {key: path for student, paths in handed_in.items() for key, path in zip(keys[student], paths, strict=True)}
    results_of(tasks, numbers, not options.unprotected, options.jobs, journal)
    rows = [row_of(student, [journal.entries[key] for key in keys[student]], course) for student in handed_in]
    pages = options.out.with_name(options.out.stem + "_feedback")
    write_table(rows, course, options.out)
    write_pages(rows, course, pages)
    looks = sum(bool(row["look"]) for row in rows)
    print(
        f"{len(rows)} students in {options.out}, their pages in {pages}." + f" Look at {looks} yourself." * bool(looks)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
