"""Grade what students handed in.

    make grade SUBMISSIONS=folder OUT=grades.csv [CHAPTERS="02 03"]

SUBMISSIONS holds a folder for each student, or their notebooks themselves. OUT gets one row a student; beside it lie
OUT's journal, from which a grading that was cut off goes on, a table of the known mistakes that were made, and a folder
with a feedback page for each student, in HTML and in text. What counts is set in classroom.toml. docs/teaching.md is
the guide.
"""

import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import current_process, get_context
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from synth_lib import checks  # noqa: E402
from synth_lib.checks.engine import KNOWN  # noqa: E402
from tools.build_notebooks import write_whole  # noqa: E402
from tools.classroom import course as courses  # noqa: E402
from tools.classroom import feedback, sandbox, submissions  # noqa: E402
from tools.classroom.grading import Result, grade  # noqa: E402
from tools.classroom.student import ForkServer, GraderUnavailable  # noqa: E402

MOST_NOTES = 100  # on a page
UNPROTECTED = """Unprotected: a notebook may do everything that you may, to files, other processes and the machine.
Grade only what you wrote yourself, or inside a container."""


def main():
    parser = courses.Parser("Grade notebooks; see docs/teaching.md.")
    parser.add_argument("submissions", type=Path, help="a folder with a folder or a notebook for each student")
    parser.add_argument("--out", type=Path, default=Path("grades.csv"), help="the table to write (grades.csv)")
    parser.add_argument("--chapters", default="", help='such as "02 03"; without it those that somebody handed in')
    parser.add_argument("--jobs", type=courses.whole_number(1), help="notebooks at once; without it one for each core")
    parser.add_argument("--unprotected", action="store_true", help="run without a sandbox, inside a container of yours")
    options = parser.parse_args()
    try:
        handed_in, course, pages = what_to_grade(options)
        if options.unprotected:
            print(UNPROTECTED, file=sys.stderr)
        return grade_all(options, handed_in, course, pages)
    except courses.CourseError as error:
        return courses.fail(error)
    except OSError as error:
        path = error.filename or options.out.parent
        return courses.fail(f"{path} cannot be written: {error.strerror}. Make room, then call this again: it goes on.")


# --- before anything is run ---


def what_to_grade(options):
    """-> {student: Submission}, the course, the folder for the pages

    Raises:
        CourseError: an option is wrong.
    """
    folder, lack = options.submissions, sandbox.missing()
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise courses.CourseError(f"SUBMISSIONS={folder} {what}. Name the folder that holds a folder for each student.")
    if lack and not (options.unprotected and sys.platform == "linux"):
        raise courses.CourseError(f"No sandbox for students' code: {lack}. Grade in the container of docs/teaching.md.")
    try:
        handed_in = submissions.find(folder, [path.stem for path in courses.sources().values()])
    except OSError as error:
        raise courses.CourseError(f"SUBMISSIONS={folder} cannot be read: {error.strerror}: {error.filename}.") from None
    if not handed_in:
        raise courses.CourseError(f"SUBMISSIONS={folder} is empty. Put a folder for each student into it.")
    numbers = courses.chosen_numbers(options.chapters) or chapters_of(handed_in)
    course = courses.read(numbers)
    if not numbers:
        raise courses.CourseError('No notebook of a chapter was found. Say which are graded: CHAPTERS="02 03".')
    pages, cores = place_for_pages(options.out, folder), len(os.sched_getaffinity(0))  # that this process may use
    options.jobs = options.jobs or cores
    if options.jobs > cores:
        much = f"JOBS={options.jobs} is too much for {cores} core{'s' * (cores > 1)}"
        raise courses.CourseError(f"{much}: notebooks on one core take each other's time.")
    return handed_in, course, pages


def chapters_of(handed_in):
    """The chapters that somebody handed in, of those that classroom.toml knows."""
    course, numbers = courses.read(), set()
    for path in (path for submission in handed_in.values() for path in submission.notebooks):
        with contextlib.suppress(submissions.Refused, OSError):
            cells = submissions.read(path)
            numbers.add(number := submissions.recognise(cells, course.chapters, path.name))
            numbers |= {key[:2] for key in submissions.foreign(cells, number, course.chapters)}
    return sorted(numbers)


def place_for_pages(out, folder):
    """The folder for the pages, beside the table. Whether both can be written is found out here."""
    pages = out.with_name(out.stem + "_feedback")
    if folder.resolve() in (out.resolve(), *out.resolve().parents):
        wrong = f"lies inside SUBMISSIONS={folder}, and would be graded next time. Choose a place outside."
    elif out.is_dir():
        wrong = f"is a folder. Name the table that is to be written, such as {out / 'grades.csv'}."
    else:
        try:
            pages.mkdir(parents=True, exist_ok=True)
            for target in (out.parent, pages):
                tempfile.TemporaryFile(dir=target).close()
            return pages
        except OSError as error:
            wrong = f"cannot be written: {error.strerror}: {error.filename or out.parent}."
    raise courses.CourseError(f"OUT={out} {wrong}")


# --- from what was handed in to the table ---


def grade_all(options, handed_in, course, pages):
    """Grade, and write the table and the pages. -> the exit status"""
    journal = Journal(options.out.with_name(options.out.name + ".journal"))
    base = fingerprint(course, not options.unprotected)
    tasks = {
        student: {file_key(path.relative_to(options.submissions), path, base): path for path in own.notebooks}
        for student, own in handed_in.items()
    }
    paths = {key: path for own in tasks.values() for key, path in own.items()}
    results_of(paths, list(course.chapters), not options.unprotected, options.jobs, journal)
    results = {student: [journal.entries[key] for key in own] for student, own in tasks.items()}
    rows = [row_of(student, results[student], course, own.others) for student, own in handed_in.items()]
    mark_names(rows, handed_in, options.submissions)
    write_table(rows, course, options.out)
    write_diagnoses(itertools.chain(*results.values()), course, options.out)
    write_pages(rows, course, pages)
    looks, students = sum(row["needs_review"] for row in rows), f"{len(rows)} student{'s' * (len(rows) != 1)}"
    print(f"{students} in {options.out}, their pages in {pages}." + f" Look at {looks} yourself." * bool(looks))
    return 0


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
            raise courses.CourseError(f"Another grading writes to {path}.") from None
        self.file.seek(0)
        line = ""
        for line in self.file:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # the line at which a grading was cut off
                entry = json.loads(line)
                self.entries[entry["key"]] = entry["result"]
        if line and not line.endswith("\n"):
            self.file.write("\n")

    def add(self, key, result):
        self.entries[key] = result
        if result.get("retry"):
            return
        self.file.write(json.dumps({"key": key, "result": result}) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def fingerprint(course, protected):
    """Changes when the same notebook could get another verdict."""
    not_run = [(number, course.chapters[number].not_run) for number in sorted(course.chapters)]
    digest = hashlib.sha256(repr((course.seed, course.limits, not_run, protected)).encode())
    files = sorted((ROOT / "synth_lib").rglob("*.py")) + sorted((ROOT / "tools" / "classroom").glob("*.py"))
    for path in [*files, *(chapter.path for chapter in course.chapters.values())]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def file_key(name, path, base):
    """name: its path in what was handed in: equal notebooks in two folders may be those of two students."""
    try:
        status = path.lstat()
        content = f"{status.st_mode:o} {status.st_size} {status.st_mtime_ns}"
        if stat.S_ISREG(status.st_mode) and status.st_size <= submissions.LARGEST:  # else reading it might never end
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError:
        content = "unreadable"
    return f"{base}/{name}/{content}"


# --- the processes that grade ---


def results_of(tasks, numbers, protected, jobs, journal):
    """Grade what the journal does not have yet: tasks is {key: path}.

    When a worker is lost, whatever was running is run again, one notebook at a time: so it shows whose fault it is.
    """
    waiting = {key: path for key, path in tasks.items() if key not in journal.entries}
    bar = tqdm(total=len(tasks), initial=len(tasks) - len(waiting), unit="notebook", smoothing=0.05)
    losses, suspects = Counter(), []
    while waiting:
        chosen = suspects[:1] or list(waiting)
        options = {"initializer": start_worker, "initargs": (numbers, protected, os.getpid())}
        with ProcessPoolExecutor(min(jobs, len(chosen)), mp_context=get_context("spawn"), **options) as pool:
            running = {}
            try:
                while chosen or running:
                    while chosen and len(running) < jobs:  # few at a time: what is cut off is little
                        key = chosen.pop(0)
                        running[pool.submit(grade_in_worker, waiting[key])] = key
                    for job in wait(running, return_when=FIRST_COMPLETED)[0]:
                        journal.add(running[job], job.result())
                        del waiting[running.pop(job)]
                        bar.update()
            except BrokenProcessPool:  # a worker of the grader itself is gone, perhaps for lack of memory
                lost = list(running.values())
                suspects = [*dict.fromkeys(lost + suspects)]
                losses.update(lost if len(lost) == 1 else ())
                for key in [key for key in lost if losses[key] == 2]:
                    reason = "the grader itself ended twice while it graded this one"
                    journal.add(key, no_result(waiting.pop(key), reason))
                    bar.update()
        suspects = [key for key in suspects if key in waiting]
    bar.close()


WORKER = {"server": None}  # in each process of the pool: what it needs for as long as it lives


def start_worker(numbers, protected, parent):
    """parent: the process of the grading."""
    sandbox.end_with(parent)
    number = int(re.search(r"\d+$", current_process().name)[0])  # a worker's name ends with its number
    WORKER.update(course=courses.read(numbers), protected=protected, number=number)


def grade_in_worker(path):
    """One notebook's result. What it does to the grader is its own fault, and costs no other notebook anything."""
    for pause in (0, 1):  # the server may have died of something else, or the disk was full: once it is tried again
        time.sleep(pause)
        try:
            WORKER["server"] = WORKER["server"] or ForkServer(WORKER["protected"], WORKER["number"])
            result = grade(WORKER["server"], path, WORKER["course"])
            if WORKER["server"].alive:
                return vars(result)
        except GraderUnavailable as error:
            reason = f"it could not be run: {error}"
        except Exception as error:  # no notebook may end the grading of the others
            reason = f"the grader itself stopped at it: {type(error).__name__}: {str(error)[:200]}"
        server, WORKER["server"] = WORKER["server"], None
        if server is not None:
            if not server.alive:
                reason = "the process that runs notebooks ended twice while this one was graded"
            server.close()
    return no_result(path, reason)


def no_result(path, reason):
    """What stands for a result, where the grader or the machine failed. The journal does not keep it: the next call
    tries again."""
    result = Result(path.name, refused=f"{path.name}: {reason}. Grade again; if it stays, read this notebook yourself")
    return {**vars(result), "retry": True}


# --- from results to rows ---


def row_of(student, results, course, others=()):
    """One student's row, from the results of all their notebooks. others: what else they handed in, as names."""
    refused = [result["refused"] for result in results if result["refused"]]
    elsewhere = [text for result in results for text in result.get("elsewhere", ())]
    troubles = [f"{result['file']}: {trouble}" for result in results for trouble in result["troubles"]]
    names = ", ".join(first(others, 5))
    unread = [f"not read: {names} (a notebook ends with .ipynb; unpack archives)"] if others else []
    counted = Counter(result["chapter"] for result in results)
    exercises, several, of_chapters, of_exercises = {}, [], [], []
    for number, chapter in course.chapters.items():
        own = [result for result in results if result["chapter"] == number]
        kind = "notebook that can be read" if refused else "notebook"
        absence = "; ".join([f"No {kind} of chapter {number} was handed in", *unread])
        for key in chapter.points:
            verdicts = [result["verdicts"][key] for result in own] or [("not answered", f"{absence}.", "")]
            scored = [
                (status, printable(text), course.points(key, status, text), printable(shown))
                for status, text, shown in verdicts
            ]
            exercises[key] = max(scored, key=rank)
        if len(own) > 1:
            several.append(f"There are {len(own)} notebooks of chapter {number}; the best answer counts")
        if not own:
            of_chapters += [f"chapter {number}: nothing handed in"] * (not refused)  # else what was refused may be it
        elif {exercises[key][0] for key in chapter.points} == {"not answered"}:
            of_chapters.append(f"chapter {number}: nothing answered")
        else:
            for key, points in chapter.points.items():
                status, message, *_ = exercises[key]
                if not points and status != "not graded":  # the page has what they say
                    continue
                if status == "not answered":
                    of_exercises.append(f"{key}: not answered")
                elif status == "wrong" or (status == "not graded" and not refused):
                    of_exercises.append(f"{key}: {'could not be run: ' * (status == 'not graded')}{message}")
    reasons = of_chapters + first(refused, 5) + elsewhere + unread + of_exercises
    reasons += [trouble.rstrip(".") for trouble in first(troubles, 5)] + several
    notes = [f"{text}." for text in several] + elsewhere + [f"N{text[1:]}." for text in unread]
    notes += [reason if reason.endswith((".", "?")) else f"{reason}." for reason in refused]
    notes += troubles + [f"{result['file']}: {note}" for result in results for note in result["notes"]]
    lost = any(status == "not graded" for status, *_ in exercises.values())
    return {
        "student": printable(student) if student.strip() else f'"{student}"',
        "exercises": exercises,
        "total": sum(points for _, _, points, _ in exercises.values()),
        "of": sum(course.worth.values()),
        "needs_review": bool(refused or others or elsewhere or lost),
        "twice": any(count > 1 for chapter, count in counted.items() if chapter),
        "reason": printable("; ".join(reasons)) or "all right",
        "notes": [printable(note) for note in first(notes, MOST_NOTES)],
    }


def rank(scored):
    """By what the best of several verdicts is chosen; a notebook may hold a part of the exercises only."""
    status, message, points, _ = scored
    lacking = status == "not graded" and message.endswith(" is missing.")
    return points, -1 if lacking else ["not answered", "wrong", "not graded", "right"].index(status)


def first(texts, most):
    """The first of them, and how many more there are."""
    return list(texts[:most]) + ([f"and {len(texts) - most} more"] if len(texts) > most else [])


def printable(text):
    """The text without what a terminal, a browser or a table obeys and nobody sees, such as an escape sequence."""
    return "".join("?" if unicodedata.category(one)[0] == "C" and one not in "\n\t" else one for one in text)


def mark_names(rows, handed_in, folder):
    """Ask for a look at what may be the work of two students, or of one under two names."""
    alike = {}
    for row, (student, submission) in zip(rows, handed_in.items(), strict=True):
        name = " ".join(submissions.COPY.sub("", printable(student)).split())
        name = unicodedata.normalize("NFKC", name).casefold()
        alike.setdefault(name, []).append(row)
        places = [path.relative_to(folder).parts for path in submission.notebooks]
        loose = [parts[0] for parts in places if len(parts) == 1]
        inside = sorted({parts[1] for parts in places if len(parts) > 2})
        if len(inside) > 1 and row["twice"]:
            ask_for_a_look(row, f"{' and '.join(inside[:5])} hold notebooks of one chapter: are they one student's?")
        if 0 < len(loose) < len(places):
            ask_for_a_look(row, f'"{student}" is a folder and a file beside it; both are taken for one student\'s')
        elif len(loose) > 1 and (row["twice"] or any(map(submissions.is_copy, loose))):
            kind = "of one chapter" if row["twice"] else "named as copies"
            names = " and ".join(loose[:5])
            ask_for_a_look(row, f'{names} are {kind}, and taken for the work of one student, "{student}"')
    for same in alike.values():
        names = " and ".join(f'"{row["student"]}"' for row in same)
        for row in same if len(same) > 1 else []:
            ask_for_a_look(row, f"the names {names} look the same")


def ask_for_a_look(row, reason):
    more = "" if row["reason"] == "all right" else f"; {row['reason']}"
    row.update(needs_review=True, reason=printable(reason) + more)


# --- what is written ---


def write_table(rows, course, out):
    """One row a student, whole or not at all. A table that was there, and says something else, is kept beside it."""
    graded = [key for key, points in course.worth.items() if points]
    lines = [["student", *graded, "total", "of", "look", "reason"]]
    for row in rows:
        numbers = [row["exercises"][key][2] for key in graded] + [row["total"], row["of"]]
        lines.append([row["student"], *map(feedback.number, numbers), "look" * row["needs_review"], row["reason"]])
    text = csv_of(lines)
    if out.exists() and out.read_bytes() != text.encode("utf8", "replace"):
        names = (out.with_name(f"{out.name}.before{n if n > 1 else ''}") for n in itertools.count(1))
        shutil.copy2(out, next(one for one in names if not one.exists()))  # an older one may hold a teacher's work
    write_whole(out, text)


def csv_of(lines):
    file = io.StringIO()
    csv.writer(file).writerows([_cell(str(text)) for text in line] for line in lines)
    return file.getvalue()


def _cell(text):
    """A text that no spreadsheet takes for a formula, nor a part of it where ; parts the columns."""
    return re.sub(r"(^|;\s*)(?=[=+\-@＝＋－＠])", r"\1'", " ".join(printable(text).split()))


def write_diagnoses(results, course, out):
    """What was wrong in each exercise, and how often: the known mistakes; of other answers, what the check found."""
    counts = {key: Counter() for key in course.worth}
    for key, (status, message, _) in (item for result in results for item in result["verdicts"].items()):
        if status == "wrong":
            _, _, text = message.partition(KNOWN)
            known = [
                one.diagnosis
                for one in checks.find(key).wrong  # that of one part of a result stands behind the part's name
                if (f", {one.diagnosis} " in text if one.by_part else text.startswith(f"{one.diagnosis} Read again"))
            ]
            counts[key].update(known or [finding(message)])
    lines = [["exercise", "wrong answers", "diagnosis"]]
    for key, found in counts.items():
        lines += [[key, count, text] for text, count in found.most_common() or [("(no wrong answer)", 0)]]
    write_whole(out.with_name(out.stem + ".diagnoses.csv"), csv_of(lines))


def finding(message):
    """What a check says of an answer that is no known mistake, without the sizes of its inputs: alike is then equal."""
    line = message.removeprefix("Not yet: ").split("\n")[0].partition(" (Inputs: ")[0].strip()
    line = line if len(line) <= 200 else line[:200] + " ..."
    return line[:1].upper() + line[1:] + "." * (not line.endswith((".", "?", "!")))


def write_pages(rows, course, folder):
    titles, taken = {key: checks.find(key).title for key in course.worth}, set()
    for row in rows:
        name = file_name(row["student"], taken)
        for ending, text in zip(("txt", "html"), feedback.pages(row, course, titles), strict=True):
            write_whole(folder / f"{name}.{ending}", text)


def file_name(student, taken):
    """A name of a file for a student, which is added to the set of those that are taken."""
    name = re.sub(r"[^\w.@+-]+", "_", student).encode()[:200].decode(errors="ignore").strip(".") or "student"
    names = (f"{name}_{n}" if n > 1 else name for n in itertools.count(1))
    free = next(one for one in names if unicodedata.normalize("NFC", one).lower() not in taken)
    taken.add(unicodedata.normalize("NFC", free).lower())
    return free


if __name__ == "__main__":
    sys.exit(main())
