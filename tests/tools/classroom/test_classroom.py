"""Hand out and grade: what students get, what they hand in, what it is worth."""

import csv
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn

from synth_lib import checks
from synth_lib.checks import engine
from synth_lib.checks.compare import difference
from synth_lib.checks.exercise import TRIALS, Draw
from tools.build_notebooks import build, cut_solution
from tools.classroom import assignment, fuzz_grading, sandbox, submissions
from tools.classroom import course as courses
from tools.classroom import grade as grading_tool
from tools.classroom import protocol as wire
from tools.classroom.grading import grade, grading_checks

ROOT = Path(__file__).resolve().parents[3]
COURSE = courses.read()
QUICK = {"seconds_per_cell": 3, "seconds_per_notebook": 60, "seconds_per_exercise": 30, "memory_gib": 1.0}
LIMITED = dataclasses.replace(COURSE, limits=QUICK)
KEYS = [key for chapter in COURSE.chapters.values() for key in chapter.points]

can_grade = pytest.mark.skipif(sandbox.missing() is not None, reason=str(sandbox.missing()))


@pytest.fixture(scope="module")
def nursery():
    from tools.classroom.student import Nursery

    with Nursery() as one:
        yield one


def code(source):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}


def notebook(cells):
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [code(cell) for cell in cells]}


def light(chapter, answers=None):
    """A notebook of a chapter without its lesson: imports, and the solution of each exercise or another answer."""
    solved = [cell for cell in build(COURSE.chapters[chapter].path, True).cells if "exercise" in cell.metadata]
    answers = answers or {}
    imports = [text for text in COURSE.chapters[chapter].lesson if text.startswith(("import", "from"))][:1]
    return notebook([*imports, *(answers.get(cell.metadata.exercise, cell.source) for cell in solved)])


def graded(nursery, folder, told, course=LIMITED, name="02_dense.ipynb"):
    path = folder / name
    path.write_text(told if isinstance(told, str) else json.dumps(told), encoding="utf8")
    return grade(nursery, path, course)


def statuses(result):
    return [verdict[0] for verdict in result.verdicts.values()]


# --- what counts: classroom.toml ---


def test_every_exercise_of_every_source_is_in_classroom_toml():
    """If this fails, the message holds the lines to add."""
    courses.read([number for number, path in courses.sources().items() if courses.read_chapter(path)[1]])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"02.5" = 3', "", r'\[02\]: add "02.5" = 3'),
        ('"02.5" = 3', '"02.5" = 3\n"02.9" = 1', r'\[02\]: there is no exercise "02.9"'),
        ('"02.5" = 3', '"02.5" = -1', "points are whole numbers"),
        ("[02]", "[99]", "there is no chapter 99"),
        ("seed = ", "sed = ", "needs a number for seed"),
        ('[partial."02.1"]', '[partial."02.1"]\n"no such words" = 0.5', "no known mistake says"),
        ('[partial."02.1"]', '[partial."02.1"]\n"no relu" = 2', "between 0 and 1"),
        ('not_run = ["runs = {}"', 'not_run = ["no such cell"', "0 cells of the lesson begin with"),
        ("[grading]", "[grading", "cannot be read"),
    ],
)
def test_what_classroom_toml_may_not_say(tmp_path, old, new, message):
    text = courses.FILE.read_text(encoding="utf8")
    assert text.count(old) == 1
    (tmp_path / "classroom.toml").write_text(text.replace(old, new), encoding="utf8")
    with pytest.raises(courses.CourseError, match=message):
        courses.read(file=tmp_path / "classroom.toml")


def test_a_known_mistake_can_be_worth_a_share():
    course = dataclasses.replace(COURSE, partial={"02.2": {"no relu": 0.25}})
    assert course.points("02.2", "wrong", "This looks like a known mistake: there is no relu, so ...") == 0.5
    assert course.points("02.2", "wrong", "Not yet.") == 0 and course.points("02.2", "right", "Right.") == 2


# --- points, in this process: every banked answer ---


@pytest.mark.parametrize("key", KEYS)
def test_each_banked_answer_gets_exactly_its_points_with_the_seed_of_grading(key):
    """Right ones all, wrong ones none, in this process; below, some of each exercise through a student's process."""
    exercise, whole = checks.find(key), COURSE.chapters[key[:2]].points[key]
    alone = dataclasses.replace(exercise, wrong=())  # whether it is right does not depend on the search for its name
    with grading_checks(COURSE):
        for answer in exercise.right:
            verdict = engine._judge(alone, answer, 0)
            assert COURSE.points(key, verdict.status, verdict.message) == whole, verdict
        for mistake in (
            exercise.wrong if exercise.trials == TRIALS else exercise.wrong[:2]
        ):  # few where it trains
            verdict = engine._judge(alone, mistake.answer, 0)
            assert COURSE.points(key, verdict.status, verdict.message) == 0, "choose another seed in classroom.toml"


def test_the_seed_of_grading_gives_other_inputs():
    with grading_checks(COURSE):
        other = Draw(0).normal(3)
    assert not torch.equal(other, Draw(0).normal(3)) and Draw is Draw


# --- what travels ---


def test_values_come_back_as_they_were():
    values = [
        None, True, 3, -(2**70), 0.1, float("inf"), 1 + 2j, "ü", [1, (2, {"a": {3}})], torch.Size([2, 3]),
        torch.float16,        torch.tensor([[1.5, 2]]), torch.tensor(3), torch.ones(0, 4), torch.tensor([True, False]),
        torch.ones(2, 2, dtype=torch.bfloat16), torch.arange(6).reshape(2, 3).T, nn.Parameter(torch.ones(2)),
    ]  # fmt: skip
    for value in values:
        plain = wire.Plain(keep=None)
        back = wire.decode(json.loads(json.dumps(plain.encode(value))), bytes(plain.payload), revive=None)
        assert difference(back, value.detach() if isinstance(value, nn.Parameter) else value) is None, value


@pytest.mark.parametrize(
    "told",
    [
        3, {"tensor": {"shape": [9], "dtype": "torch.float32", "layout": "torch.strided", "at": 0}},
        {"tensor": {"shape": [-1], "dtype": "torch.float32", "layout": "torch.strided", "at": 0}}, {"int": "x"},
        {"dict": [[{"list": []}, 1]]}, {"tensor": {}}, {"a": 1, "b": 2}, {"dtype": "os.system"},
        {"set": [{"list": []}]},
    ],
)  # fmt: skip
def test_garbled_values_are_refused(told):
    def revive(told):
        raise wire.Garbled

    with pytest.raises(wire.Garbled):
        wire.decode(told, b"", revive)


# --- what is handed out ---


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory):
    out = tmp_path_factory.mktemp("class") / "hand-out"
    assignment.write(courses.read(["02", "03"]), out)
    return out


def test_a_hand_out_holds_notebooks_library_and_a_readme_with_two_steps(handed_out):
    names = {path.name for path in handed_out.iterdir()}
    assert names == {
        "02_dense.ipynb", "03_random.ipynb", "synth_lib", "data", "library.zip", "requirements.txt", "README.md",
    }  # fmt: skip
    banks = {path.name for path in (handed_out / "synth_lib" / "checks" / "bank").glob("*.py")}
    assert banks == {"__init__.py", "chapter_02.py", "chapter_03.py"}
    text = (handed_out / "README.md").read_text(encoding="utf8")
    for start in ("## Start on your own machine", "## Start in Colab"):
        steps = [line for line in text.split(start)[1].split("##")[0].splitlines() if line[:2] in ("1.", "2.", "3.")]
        assert [step[:2] for step in steps] == ["1.", "2."]


def test_a_hand_out_has_blanks_and_the_points_of_classroom_toml(handed_out):
    for path in handed_out.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=nbformat.NO_CONVERT).cells
        assert not any("### BEGIN SOLUTION" in cell.source or cell.get("outputs") for cell in cells)
        points = {cell.metadata.check: cell.metadata.nbgrader.points for cell in cells if "check" in cell.metadata}
        assert points == COURSE.chapters[path.name[:2]].points


def test_a_published_hand_out_opens_in_colab(tmp_path):
    course = courses.read(["02"])
    assignment.write(course, tmp_path / "out", "https://github.com/owner/name", "spring")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf8")
    assert "https://colab.research.google.com/github/owner/name/blob/spring/02_dense.ipynb" in text
    setup = json.loads((tmp_path / "out" / "02_dense.ipynb").read_text(encoding="utf8"))
    assert '"https://github.com/owner/name"' in json.dumps(setup).replace('\\"', '"')


def test_a_hand_out_overwrites_nothing(handed_out):
    with pytest.raises(courses.CourseError, match="not empty"):
        assignment.write(COURSE, handed_out)


@pytest.mark.parametrize("in_colab", [False, True], ids=["folder", "library.zip"])
def test_the_checks_work_in_a_hand_out(handed_out, tmp_path, in_colab):
    """In a Python that has no synth_lib installed: blanks of 02 are not answered yet, a solved one is right."""
    if in_colab:
        shutil.copy(handed_out / "02_dense.ipynb", tmp_path)
        shutil.unpack_archive(handed_out / "library.zip", tmp_path)
    folder = tmp_path if in_colab else handed_out
    cells = json.loads((folder / "02_dense.ipynb").read_text(encoding="utf8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    imports = next(text for text in texts if text.startswith("import torch"))
    wanted = [text for text in texts if "raise NotImplementedError" in text or text.startswith("check(")]
    shown = [f"print({text})" if text.startswith("check(") else text for text in wanted]
    solved = next(
        c.source for c in build(COURSE.chapters["02"].path, True).cells if c.metadata.get("exercise") == "02.1"
    )
    script = "\n".join([texts[0], imports, *shown, solved, 'print(check("02.1", linear_scores))'])
    packages = [path for path in sys.path if path.endswith("site-packages")]
    start = f"import sys; sys.path[:0] = ['']; sys.path += {packages!r}\n"
    command = [sys.executable, "-S", "-c", start + script]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Not answered yet") == 5 and done.stdout.endswith("Exercise 02.1: Right.\n")


# --- what is handed in ---


def test_students_are_folders_or_files(tmp_path):
    for name in ("ann/a.ipynb", "ann/sub/b.ipynb", "ann/.ipynb_checkpoints/a.ipynb", "bob_02_dense.ipynb", "cem.zip"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "dan").mkdir()
    found = {student: [path.name for path in paths] for student, paths in submissions.find(tmp_path).items()}
    assert found == {"ann": ["a.ipynb", "b.ipynb"], "bob": ["bob_02_dense.ipynb"], "cem": ["cem.zip"], "dan": []}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"), ('{"cells": [', "was the upload cut off"), ("[" * 200_000, "could not be read"),
        ("[]", "no notebook"), ('{"cells": []}', "has no cells"), ('{"cells": [3]}', "no list of cells"),
        ('{"cells": {"a": 1}}', "no list of cells"),
        (json.dumps(notebook(["x = 1"])), "defines no exercise"),
        (json.dumps(notebook(["def linear_scores(): 1\ndef random_attention(): 1"])), "could be chapter 02 or 03"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_reason(tmp_path, text, message):
    result = graded(None, tmp_path, text, name="homework.ipynb")
    assert message in result.refused and result.verdicts == {}


@can_grade
def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "a.ipynb").symlink_to(ROOT / "notebooks" / "solutions" / "02_dense.ipynb")
    assert "is a link" in grade(None, tmp_path / "a.ipynb", COURSE).refused


# --- the grader, through a student's process ---


@can_grade
@pytest.mark.parametrize("chapter", [number for number, chapter in COURSE.chapters.items()])
def test_solutions_get_full_marks_and_blanks_none(nursery, tmp_path, chapter):
    """Without the lesson, whose cells the notebook tests run."""
    told = light(chapter)
    assert set(statuses(graded(nursery, tmp_path, told))) == {"right"}
    blank = {**told, "cells": [code(cut_solution(cell["source"])) for cell in told["cells"]]}
    assert set(statuses(graded(nursery, tmp_path, blank))) == {"not answered"}


@can_grade
def test_a_whole_solved_notebook_gets_full_marks_and_its_blank_none(nursery):
    path = COURSE.chapters["02"].path
    for folder, status in (("solutions", "right"), (".", "not answered")):
        result = grade(nursery, ROOT / "notebooks" / folder / f"{path.stem}.ipynb", COURSE)
        assert (set(statuses(result)), result.refused, result.troubles) == ({status}, "", [])


LOADER = """
import pickle, sys
{name} = pickle.loads(bytes.fromhex("{payload}"))
"""


@can_grade
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("chapter", COURSE.chapters)
def test_a_banked_mistake_costs_exactly_its_exercise(nursery, tmp_path, chapter, first):
    """Through a student's process: every other exercise a mistake, the others solved. 03.4, a class, stands below."""
    names = COURSE.chapters[chapter].names
    mistaken = [key for key in [*names][first::2] if key != "03.4"]
    mistakes = {key: next(one for one in checks.find(key).wrong if one.error is None) for key in mistaken}
    told = {
        key: LOADER.format(name=names[key], payload=wire.dumps(mistake.answer).hex())
        for key, mistake in mistakes.items()
    }
    result = graded(nursery, tmp_path, light(chapter, told))
    assert [key for key, verdict in result.verdicts.items() if verdict[0] != "right"] == mistaken
    with grading_checks(COURSE):
        for key, mistake in mistakes.items():
            here = checks.check(key, mistake.answer)
            assert result.verdicts[key][:2] == [here.status, here.message]


PLAIN_TENSOR = """
class RandomScores(nn.Module):
    def __init__(self, R, fixed):
        super().__init__()
        self.R = R{what}

    def forward(self, x):
        return self.R[None, :, :x.shape[1], :x.shape[1]]
"""


@can_grade
@pytest.mark.parametrize("number", range(2))
def test_a_class_is_judged_by_what_its_modules_hold(nursery, tmp_path, number):
    mistake = checks.find("03.4").wrong[number]
    what = ["", ".requires_grad_(not fixed)"][number]
    result = graded(nursery, tmp_path, light("03", {"03.4": PLAIN_TENSOR.format(what=what)}))
    assert result.verdicts["03.4"][0] == "wrong" and mistake.diagnosis in result.verdicts["03.4"][1]
    assert statuses(result)[:3] == ["right"] * 3


HOSTILE = {
    "ends": ("import os\nos._exit(0)", "ends the process"),
    "never ends": ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "not end within"),
    "eats memory": ("x = []\nwhile True:\n    x.append(bytearray(10**8))", ""),
    "prints gigabytes": ("for _ in range(300):\n    print('x' * 10**7)", ""),
    "deletes files": ("import shutil\nshutil.rmtree('/', ignore_errors=True)", ""),
    "has a syntax error": ("def f(:\n    pass", "cannot be read"),
    "overwrites names": (
        "import builtins, torch, synth_lib.checks\n"
        "torch.equal = torch.allclose = torch.isclose = lambda *a, **k: True\n"
        "builtins.len = builtins.isinstance = builtins.dict = None\nsynth_lib.checks.check = print\n"
        "torch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)",
        "",
    ),
    "makes deep folders": (
        "import os\nhere = os.getcwd()\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nos.chdir(here)",
        "",
    ),
    "makes a folder that nobody may list": ("import os\nos.mkdir('x', 0o300)\nopen('x/a', 'w').close()", ""),
    "sends nonsense": ("import os\nfor n in range(3, 60):\n    try: os.write(n, b'x' * 99)\n    except: 1", "nonsense"),
}  # fmt: skip
SNOOP = """
report = {}
def attempt(name, work):
    try:
        work()
        report[name] = "done"
    except BaseException as error:
        report[name] = type(error).__name__
import importlib, os, signal, socket, subprocess, threading
attempt("write here", lambda: open("mine.txt", "w").write("x"))
attempt("thread", lambda: threading.Thread(target=print).start())
attempt("data", lambda: __import__("synth_lib.text.corpora").data.shakespeare("characters"))
for path in [REPOSITORY + "/notebooks/solutions/02_dense.ipynb", REPOSITORY + "/synth_lib/checks/bank/chapter_02.py",
             REPOSITORY + "/classroom.toml", SUBMISSION, "/etc/passwd", "/proc/self/maps",
             f"/proc/{os.getppid()}/environ"]:
    attempt("read " + path, lambda: open(path).read())
attempt("list", lambda: os.listdir(REPOSITORY))
attempt("write", lambda: open(SUBMISSION, "a"))
attempt("write elsewhere", lambda: open("/tmp/left_by_a_student", "w"))
attempt("remove", lambda: os.remove(SUBMISSION))
attempt("rights", lambda: os.chmod(SUBMISSION, 0))
attempt("fork", os.fork)
attempt("run", lambda: subprocess.run(["true"]))
attempt("network", lambda: socket.socket())
attempt("kill", lambda: os.kill(os.getppid(), signal.SIGKILL))
def signal_by_file():
    import fcntl
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, os.getppid())
attempt("signal by file", signal_by_file)
attempt("truncate", lambda: os.truncate(SUBMISSION, 0))
attempt("exercises", lambda: importlib.import_module("synth_lib.checks.bank.chapter_02"))
allowed = {name for name, what in report.items() if what == "done"}

def linear_scores(x, W1, b1, W2, b2):
    raise ValueError(" ".join(sorted(allowed)))
"""


@can_grade
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_cell_costs_nobody_else_a_point(nursery, tmp_path, kind):
    """The other cells of the same notebook count, and the reason names the cell."""
    text, reason = HOSTILE[kind]
    told = light("02")
    told["cells"].insert(1, code(text))
    result = graded(nursery, tmp_path, told)
    assert set(statuses(result)) == {"right"}
    if reason:
        assert reason in result.troubles[0] and "Cell 2 (" in result.troubles[0], result.troubles


@can_grade
def test_a_submission_that_ends_the_nursery_costs_nobody_else_a_point(tmp_path, monkeypatch):
    """However it is done: here the process is killed while the first notebook is graded, both times."""
    monkeypatch.setattr(grading_tool, "WORKER", {"course": COURSE, "protected": True})
    monkeypatch.setattr(grading_tool, "Finalize", lambda *arguments, **options: None)
    grading_tool.new_nursery()
    told = light("02")
    (tmp_path / "02_dense.ipynb").write_text(json.dumps(told))

    def kills(nursery, path, course):
        nursery.process.kill()
        nursery.process.wait()
        return grade(nursery, path, course)

    monkeypatch.setattr(grading_tool, "grade", kills)
    refused = grading_tool.grade_in_worker(tmp_path / "02_dense.ipynb")["refused"]
    assert "the process that runs notebooks ended twice" in refused
    monkeypatch.setattr(grading_tool, "grade", grade)
    after = grading_tool.grade_in_worker(tmp_path / "02_dense.ipynb")
    grading_tool.WORKER["nursery"].close()
    assert after["refused"] == "" and {verdict[0] for verdict in after["verdicts"].values()} == {"right"}


@can_grade
def test_a_notebook_reaches_nothing_but_its_own_folder(nursery, tmp_path):
    place = f"REPOSITORY, SUBMISSION = {str(ROOT)!r}, {str(tmp_path / '02_dense.ipynb')!r}\n"
    result = graded(nursery, tmp_path, light("02", {"02.1": place + SNOOP}))
    assert "ValueError: data thread write here. (Inputs" in result.verdicts["02.1"][1], result.verdicts["02.1"]
    assert not Path("/tmp/left_by_a_student").exists()


BAD = "def linear_scores(x, W1, b1, W2, b2):\n    "


SIGNALS_ITS_PARENT = """
import ctypes, os, signal, sys
from tools.classroom import sandbox
libc = ctypes.CDLL(None, use_errno=True)
sandbox._call(libc.prctl(38, 1, 0, 0, 0))
sandbox._restrict_files(libc, sys.argv[1], [])
try:
    os.kill(os.getppid(), signal.SIGCONT)
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(sandbox.missing() is not None or sandbox._landlock_version() < 6, reason="needs Linux 6.12")
def test_landlock_alone_refuses_a_signal(tmp_path):
    """Seccomp knows the calls that send one today; Landlock refuses the signal, however it is sent."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS_ITS_PARENT, tmp_path], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "refused\n", done.stderr


@can_grade
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import os\n    os._exit(3)", "Your linear_scores ends Python (os._exit or quit). Return a value instead."),
        ("return torch.zeros(10**12)", "Your code stops at"),
        ("return b1.numpy()", "ndarray"),
        ("x += 1\n    return x", "changes one of its inputs"),
        ("return 10**5000", "should be a tensor"),
        (
            "return (x @ W1.T + b1).relu() @ W2.T + undefined",
            'stops at "return (x @ W1.T + b1).relu() @ W2.T + undefined"',
        ),
        ("torch.manual_seed(1)\n    return x", "changes the seed of torch"),
        ("x = [x]\n    x.append(x)\n    return x", "nested too deeply"),
        ("class A: pass\n    return A()", "an A"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_bad_answer_gets_its_sentence_and_the_next_is_graded(nursery, tmp_path, body, says):
    result = graded(nursery, tmp_path, light("02", {"02.1": BAD + body}))
    assert says in result.verdicts["02.1"][1], result.verdicts["02.1"]
    assert statuses(result) == ["wrong", "right", "right", "right", "right"]


@can_grade
def test_an_answer_that_never_ends_is_stopped(nursery, tmp_path):
    course = dataclasses.replace(COURSE, limits={**QUICK, "seconds_per_exercise": 3})
    result = graded(nursery, tmp_path, light("02", {"02.1": BAD + "while True: pass"}), course)
    assert "come to an end" in result.verdicts["02.1"][1]
    assert statuses(result) == ["wrong", "right", "right", "right", "right"]


@can_grade
def test_magics_edited_checks_and_older_definitions(nursery, tmp_path):
    told = light("02")
    texts = [cell["source"] for cell in told["cells"]]
    texts[1] = "%%time\n" + texts[1]
    blank_again = cut_solution(texts[2])
    later = "linear_scores_helper = 3\ntorch = None"  # as a lesson cell may bind a name anew that an answer uses
    told = notebook(
        ["%matplotlib inline\n!pip install nothing", *texts, blank_again, 'check = print\ncheck("02.1")', later]
    )
    assert set(statuses(graded(nursery, tmp_path, told))) == {"right"}


@can_grade
def test_fifty_damaged_notebooks_keep_their_points_or_name_the_cell(nursery, monkeypatch):
    """Of chapter 02 without its lesson; `make fuzz` damages whole notebooks, 1,000 times."""
    monkeypatch.setattr(fuzz_grading, "build", lambda path, solved: light(path.stem[:2]))
    table, losses = fuzz_grading.run(range(50), ["02"], nursery, show=False)
    assert losses == []
    assert all(sum(counts.values()) for counts in table.values())


@can_grade
def test_the_table_has_a_row_for_everybody_and_grading_goes_on_where_it_was_cut_off(tmp_path, monkeypatch, capsys):
    handed_in, out = tmp_path / "handed in", tmp_path / "grades.csv"
    broken = notebook(["import os\nos._exit(1)", "def linear_scores(x): ("])
    told = {"right": light("02"), "=half": light("02", {"02.1": BAD + "return x"}), "broken": broken}
    for student, cells in told.items():
        (handed_in / student).mkdir(parents=True)
        (handed_in / student / "my homework.ipynb").write_text(json.dumps(cells), encoding="utf8")
    (handed_in / "cut.ipynb").write_text('{"cells": [')
    (handed_in / "nothing").mkdir()
    command = [sys.executable, str(ROOT / "tools" / "grade.py"), str(handed_in), "--out", str(out), "--chapters", "02"]
    command += ["--jobs", "1"]
    journal = out.with_name("grades.csv.journal")
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (journal.exists() and journal.read_text()):
        assert first.poll() is None
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = journal.read_text().splitlines()
    journal.write_text("\n".join(before) + '\n{"key": "cut')
    monkeypatch.setattr("sys.argv", command[1:])
    assert grading_tool.main() == 0
    said = capsys.readouterr()
    assert "5 students in" in said.out and "Look at 2 yourself" in said.out and "notebook" in said.err
    lines = [json.loads(line) for line in journal.read_text().splitlines() if line != '{"key": "cut']
    assert len({line["key"] for line in lines}) == len(lines) == 4
    rows = {row["student"]: row for row in csv.DictReader(out.open(encoding="utf8"))}
    totals = {student: row["total"] for student, row in rows.items()}
    assert totals == {"right": "10", "'=half": "9", "broken": "0", "cut": "0", "nothing": "0"}
    assert rows["right"]["reason"] == "all right" and "02.1: Not yet" in rows["'=half"]["reason"]
    assert rows["broken"]["look"] and "cell 2" in rows["broken"]["reason"].lower()
    assert "cut off" in rows["cut"]["reason"] and "nothing handed in" in rows["nothing"]["reason"]
    pages = tmp_path / "grades_feedback"
    assert len(list(pages.glob("*.html"))) == len(list(pages.glob("*.txt"))) == 5
    assert "the shape is" in (pages / "_half.txt").read_text() and "&lt;" not in (pages / "right.html").read_text()


def test_a_page_shows_no_markup_of_a_student():
    verdicts = {key: ["wrong", "<script>alert(1)</script>", ""] for key in COURSE.chapters["02"].points}
    result = {"file": "<b>", "chapter": "02", "refused": "", "verdicts": verdicts, "troubles": [], "notes": ["<i>"]}
    course = courses.read(["02"])
    row = grading_tool.row_of("<u>", [result], course)
    text, page = grading_tool.feedback.pages(row, course, dict.fromkeys(verdicts, "title"))
    assert "<script>" not in page and "<i>" not in page and "<u>" not in page and "<script>" in text


# --- what a new teacher and a new student stumbled over ---


@pytest.mark.parametrize(
    ("goal", "given", "says"),
    [
        ("grade", (), "SUBMISSIONS is missing: make grade SUBMISSIONS=folder OUT=grades.csv"),
        ("assignment", ("CHAPTERS=02",), 'OUT is missing: make assignment CHAPTERS="02 03" OUT=handout'),
        ("assignment", ("OUT=x",), 'CHAPTERS is missing: make assignment CHAPTERS="02 03" OUT=handout'),
    ],
)
def test_make_says_which_variable_is_missing_and_runs_nothing(goal, given, says):
    clean = {name: value for name, value in os.environ.items() if name not in ("CHAPTERS", "OUT", "SUBMISSIONS")}
    command = ["make", "-s", goal, *given, "PYTHON=false"]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True)
    assert done.returncode and done.stderr.splitlines()[0] == says and done.stdout == ""


def test_points_that_are_no_whole_number_are_named(tmp_path):
    text = courses.FILE.read_text(encoding="utf8").replace('"02.2" = 2', '"02.2" = 2.5')
    (tmp_path / "classroom.toml").write_text(text, encoding="utf8")
    with pytest.raises(courses.CourseError, match=r'\[02\]: "02.2" = 2.5, but points are whole numbers'):
        courses.read(file=tmp_path / "classroom.toml")


def test_a_hand_out_says_how_to_install_what_counts_and_what_is_not_in_it(handed_out, tmp_path):
    text = (handed_out / "README.md").read_text(encoding="utf8")
    assert "python3 -m venv .venv" in text and "py -m venv .venv" in text and "1.4 GB" in text
    assert "| 02.5 | who depends on whom | 3 |" in text
    needed = (handed_out / "requirements.txt").read_text(encoding="utf8")
    assert "torch" in needed and "jupyterlab" in needed and "sacrebleu" not in needed and "scikit-learn" not in needed
    assert "sacrebleu" in assignment.requirements(courses.read(["13"]))
    assert assignment.named_before(courses.read(["02", "03"])) == ["00", "01"]
    assert assignment.named_before(courses.read(["00", "01", "02"])) == []
    chapter = COURSE.chapters["02"]
    free = dataclasses.replace(chapter, points={**chapter.points, "02.5": 0})
    course = dataclasses.replace(COURSE, chapters={"02": free})
    assert "| 02.5 | who depends on whom | does not count |" in assignment.readme(course, None, None)


def test_a_notebook_says_nothing_of_outputs_that_a_hand_out_has_not(handed_out):
    assert "stored outputs" not in (handed_out / "02_dense.ipynb").read_text(encoding="utf8")


KINDS = {
    "numpy": "return ((x @ W1.T + b1).relu() @ W2.T + b2).numpy()",
    "object": "return object()",
    "function": "return lambda: x",
    "map": "return map(torch.relu, x)",
    "generator": "yield x",
    "module": "return nn.Linear(2, 3)",
    "always equal": "class Always:\n        def __eq__(self, other): return True\n    return Always()",
}


@can_grade
@pytest.mark.parametrize("kind", KINDS)
def test_grader_and_notebook_name_the_same_kind(nursery, tmp_path, kind):
    result = graded(nursery, tmp_path, light("02", {"02.1": "from torch import nn\n" + BAD + KINDS[kind]}))
    space = {"torch": torch, "nn": nn}
    exec(BAD + KINDS[kind], space)
    here = checks.check("02.1", space["linear_scores"])
    told = [message.split(" (Inputs")[0] for message in (result.verdicts["02.1"][1], here.message)]
    assert told[0] == told[1] and told[0].startswith("Not yet: the result is a"), told


UNREADABLE = "class RandomScores(nn.Module:\n    def forward(self, x):\n        return x"
HELPED = "def linear_scores(x, W1, b1, W2, b2):\n    return helper(x)"


@can_grade
@pytest.mark.parametrize(
    ("answer", "broken", "status"),
    [
        (BAD + "return x", UNREADABLE, "wrong"),
        (BAD + "return x", "a note to myself: x is not W1", "wrong"),
        (HELPED, "def helper(x:\n    return x", "not graded"),
        (HELPED, "import helper from somewhere", "not graded"),
        (BAD + "hidden = x @ W1.T", "    return hidden @ W2.T", "not graded"),
        (BAD + "hidden = x @ W1.T", "    return score / total", "wrong"),
        (BAD + "return x", "def linear_scores(x, W1, b1, W2, b2:\n    return x", "not graded"),
    ],
)
def test_an_unreadable_cell_excuses_only_what_it_may_hold(nursery, tmp_path, answer, broken, status):
    told = light("02", {"02.1": answer})
    told["cells"] += [code("y = 1"), code(broken)]
    result = graded(nursery, tmp_path, told)
    number = len(told["cells"])
    assert statuses(result) == [status, "right", "right", "right", "right"]
    assert (f"Cell {number} (" in result.verdicts["02.1"][1]) == (status == "not graded")
    assert sum(f"Cell {number} (" in trouble for trouble in result.troubles) == 1


@can_grade
def test_an_answer_that_is_cut_in_two_anywhere_is_not_lost_in_silence(nursery, tmp_path):
    """The second half stands elsewhere, so that the two cannot be joined."""
    whole = light("03")
    (place,) = [n for n, cell in enumerate(whole["cells"]) if "class RandomScores" in cell["source"]]
    lines = whole["cells"][place]["source"].split("\n")
    for cut in range(1, len(lines)):
        told = json.loads(json.dumps(whole))
        told["cells"][place]["source"] = "\n".join(lines[:cut])
        told["cells"] += [code("y = 1"), code("\n".join(lines[cut:]))]
        result = graded(nursery, tmp_path, told, name="03_random.ipynb")
        assert fuzz_grading.judge(result, COURSE.chapters["03"]) != "silent loss", (cut, result.verdicts)


def page_of(verdicts, course=None, **more):
    """The row, the text page and the HTML page for these verdicts of chapter 02."""
    course = course or courses.read(["02"])
    result = {"file": "a.ipynb", "chapter": "02", "refused": "", "troubles": [], "notes": [], **more}
    row = grading_tool.row_of("ann", [{**result, "verdicts": verdicts}], course)
    return row, *grading_tool.feedback.pages(row, course, {key: f"title {key}" for key in verdicts})


BLANK = ["not answered", "Not answered yet: the line raise NotImplementedError is reached.", ""]
RIGHT = ["right", "Right.", ""]


def test_a_page_tells_what_does_not_count_from_what_could_not_be_run(tmp_path):
    chapter = COURSE.chapters["02"]
    free = dataclasses.replace(chapter, points={**chapter.points, "02.1": 0})
    course = dataclasses.replace(COURSE, chapters={"02": free})
    verdicts = dict.fromkeys(chapter.points, RIGHT) | {"02.2": ["not graded", "Cell 3 cannot be read.", ""]}
    row, text, page = page_of(verdicts, course)
    assert "02.1  title 02.1: does not count\n    Right." in text and "<td>does not count</td><td>right</td>" in page
    assert "02.2  title 02.2: 0 of 2, could not be run" in text and "<td>0 of 2</td><td>could not be run</td>" in page
    assert "not graded" not in text + page
    grading_tool.write_table([row], course, tmp_path / "grades.csv")
    (line,) = csv.DictReader((tmp_path / "grades.csv").open(encoding="utf8"))
    assert "02.1" not in line and (line["02.2"], line["look"]) == ("0", "look")
    assert "02.2: could not be run: Cell 3" in line["reason"]


def test_a_page_says_each_thing_once_and_ends_with_a_next_step():
    points = COURSE.chapters["02"].points
    _, text, page = page_of(dict.fromkeys(points, BLANK))
    assert text.count("Nothing is answered in this chapter yet.") == page.count("Nothing is answered") == 1
    assert "NotImplementedError" not in text + page and text.count("not answered") == 5
    assert text.rstrip().endswith("02.1 (title 02.1) comes next. The hints under its cell say where to start.")

    known = ["wrong", 'This looks like a known mistake: it adds. Read again: "Products".', ""]
    wrong = {"02.2": ["wrong", "Not yet: the shape is.", ""], "02.3": known}
    _, text, page = page_of({**dict.fromkeys(points, RIGHT), **wrong})
    assert "02.1  title 02.1: 1 of 1\n    Right.\n" in text and "<td>right</td><td></td>" in page
    assert "02.2: 0 of 2\n    Not yet: the shape is. The hints under the exercise's cell may help.\n" in text
    assert "<td>not yet</td><td>The shape is. The hints under the exercise&#x27;s cell may help.</td>" in page
    assert '02.3: 0 of 2, not yet\n    This looks like a known mistake: it adds. Read again: "Products".\n' in text
    assert "Look at 02.2 (title 02.2) first." in text.split("What to do next")[1] and "Look at 02.2" in page

    _, text, page = page_of(dict.fromkeys(points, RIGHT))
    assert text.rstrip().endswith("Everything is right. There is nothing left to do here.")
    lost = ["not graded", "The notebook could not be run: a.ipynb: too many cells never end.", ""]
    _, text, page = page_of(dict.fromkeys(points, lost))
    assert text.count("too many cells never end") == page.count("too many cells never end") == 1


def test_a_page_without_a_notebook_asks_for_one():
    course = courses.read(["02"])
    row = grading_tool.row_of("ann", [], course)
    text, _ = grading_tool.feedback.pages(row, course, dict.fromkeys(course.chapters["02"].points, "title"))
    assert text.count("No notebook of chapter 02 was handed in.") == 1
    assert text.rstrip().endswith("Hand in your notebook of chapter 02.")
