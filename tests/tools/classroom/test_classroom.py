"""Hand out and grade: what students get, what they hand in, what it is worth."""

import csv
import dataclasses
import functools
import io
import json
import linecache
import os
import random
import shutil
import subprocess
import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn

from synth_lib import checks
from synth_lib.checks import engine
from synth_lib.checks.compare import Other, difference, plain_copy
from synth_lib.checks.exercise import TRIALS, Draw
from synth_lib.checks.runner import in_this_process
from tests.helpers.homework import BAD, COURSE, PATIENT, can_grade, code, light, limited, notebook, solutions, statuses
from tools import fuzz_grading
from tools.build_notebooks import build, cut_solution
from tools.classroom import assignment, protocol, sandbox, submissions
from tools.classroom import course as courses
from tools.classroom import grade as grading_tool
from tools.classroom.grading import Result, explain, grade
from tools.classroom.student import ForkServer, Student

ROOT = Path(__file__).resolve().parents[3]
every_chapter = pytest.mark.parametrize("chapter", COURSE.chapters, ids=lambda number: f"chapter_{number}")
KEYS = [key for chapter in COURSE.chapters.values() for key in chapter.points]


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
        ('not_run = ["# @title', 'not_run = ["no such cell', "0 cells of the lesson begin with"),
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
    assert course.points("02.2", "wrong", f'{engine.KNOWN}it adds. Read again: "A". A warning: "no relu') == 0
    assert course.points("02.2", "wrong", f"Not yet: the text returned is '{engine.KNOWN}there is no relu") == 0


def test_no_share_is_had_by_saying_that_it_is_a_known_mistake():
    """An error that says so, also in two halves, and a warning."""
    course = dataclasses.replace(COURSE, partial={"02.1": {"no relu": 0.25}})

    def stops(x, W1, b1, W2, b2):
        warnings.warn(f"{engine.KNOWN}no relu", stacklevel=1)
        raise ValueError(f"{engine.KNOWN}no relu, {engine.KNOWN.replace(' a ', f' a {engine.KNOWN}')}no relu")

    verdict = checks.check("02.1", stops)
    assert verdict.status == "wrong" and "no relu" in verdict.message
    assert course.points("02.1", verdict.status, verdict.message) == 0


# --- what travels ---


def test_values_come_back_as_they_were():
    values = [
        None, True, 3, -(2**70), 0.1, float("inf"), 1 + 2j, "ü", [1, (2, {"a": [3]})], torch.Size([2, 3]),
        torch.float16, torch.tensor([[1.5, 2]]), torch.tensor(3), torch.ones(0, 4), torch.tensor([True, False]),
        torch.ones(2, 2, dtype=torch.bfloat16), torch.arange(6).reshape(2, 3).T, nn.Parameter(torch.ones(2)),
        [torch.ones(2), torch.zeros(3, dtype=torch.bool)], {1: torch.ones(1)}, Other("a generator"),
    ]  # fmt: skip
    for value in values:
        payload = bytearray()
        back = protocol.decode(json.loads(json.dumps(protocol.encode(plain_copy(value), payload))), payload)
        assert difference(back, value.detach() if isinstance(value, nn.Parameter) else value) is None, value


@pytest.mark.parametrize(
    "description",
    [
        3, {"tensor": {"shape": [9], "dtype": "torch.float32", "layout": "torch.strided"}}, {"int": "x"},
        {"tensor": {"shape": [-1], "dtype": "torch.float32", "layout": "torch.strided"}}, {"int": 3}, {"other": 3},
        {"dict": [[{"list": []}, 1]]}, {"tensor": {}}, {"a": 1, "b": 2}, {"dtype": "os.system"}, {"set": []}, {"no": 1},
    ],
)  # fmt: skip
def test_what_describes_no_value_is_refused(description):
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(description, b"")


def test_no_answer_and_no_mistake_travels_with_the_inputs():
    """What a student's process gets for an exercise: how an answer is run, and on what."""
    for key in KEYS:
        exercise, sent = checks.find(key), []

        class Noting(protocol.Pickler):
            def function(self, value, sent=sent):
                sent.append(value.__code__)
                return super().function(value)

        Noting(io.BytesIO(), 5).dump((exercise.run, exercise.inputs(Draw(0)), exercise.forbidden))
        answers = {one.__code__ for one in [*exercise.right, *(mistake.answer for mistake in exercise.wrong)]
                   if isinstance(one, types.FunctionType)}  # fmt: skip
        assert not answers & set(sent), key


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


IMPORTS = """
import ast, os, re, sys
import einops, IPython, matplotlib.pyplot, numpy, sacrebleu, sklearn, tokenizers, torch, tqdm
for folder in sys.argv[1:]:
    if os.fork() == 0:  # each with its own hand-out on the path, and nothing else of the library
        try:
            wanted = set()  # what its cells read of the data
            os.chdir(folder)
            sys.path[0] = ""
            for text in open("cells", encoding="utf8").read().split("\\0"):
                tree = ast.parse(text)
                for node in ast.walk(tree):
                    if isinstance(node, (ast.Import, ast.ImportFrom)):
                        exec(compile(ast.Module([node], []), "cell", "exec"), {})
                    called = ast.unparse(node) if isinstance(node, ast.Call) else ""
                    if re.match("shakespeare[(]|[a-z.]*load_text[(]|glosses[(]|make_task[(]", called):
                        corpus = "tinyshakespeare" if "tinyshakespeare" in called else "shakespeare"
                        kind = {"g": "wordnet", "m": ""}.get(called[0], corpus + ".")
                        wanted |= {f"data/{name}" for name in os.listdir(data) if name.startswith(kind)}
                    if isinstance(node, ast.Constant) and node.value == "results":
                        wanted |= {f"data/results/{name}" for name in os.listdir(data + "/results")}
            import synth_lib
            assert os.path.samefile(os.path.dirname(synth_lib.__file__), "synth_lib")
            from synth_lib import checks
            lacking = sorted(path for path in wanted if not os.path.exists(path))
            assert not lacking, lacking
            for chapter in os.listdir("synth_lib/checks/bank"):
                if chapter.startswith("chapter_"):
                    checks.find(chapter[8:10] + ".1")
            print("imported", flush=True)
        except BaseException as error:
            print(folder, repr(error), flush=True)
        os._exit(0)
    os.wait()
"""


def test_the_hand_out_of_each_chapter_has_what_its_cells_import_and_no_other_wing(tmp_path):
    plain, wings = [name for name in sys.path if name.endswith("site-packages")], {}
    held = {}
    for number, chapter in COURSE.chapters.items():
        folder = tmp_path / number
        assignment.copy_library(courses.read([number]), folder)
        cells = [cell.source for cell in assignment.read_source(chapter.path) if cell.cell_type == "code"]
        readable = [text for text in cells if submissions.problem(text, lambda text: text) is None]
        (folder / "cells").write_text("\0".join(readable), encoding="utf8")
        wings[number] = {path.name for path in (folder / "synth_lib").iterdir() if path.is_dir()} - {"checks"}
        banks = {path.name for path in (folder / "synth_lib" / "checks" / "bank").glob("*.py")}
        assert banks == {"__init__.py", f"chapter_{number}.py"}
        held[number] = {path.name for path in (folder / "data").glob("*")} - {"README.md", "LICENSES"}
        assert (folder / "data").exists() == (folder / "data" / "LICENSES").exists() == bool(held[number])
    assert wings["02"] == set() and wings["00"] == {"text"} and wings["08"] == {"lab", "sparse", "text"}
    assert held["02"] == held["04"] == set() and held["03"] == {"tinyshakespeare.txt.xz"} and held["08"] == {"results"}
    start = f"import sys; sys.path[:0] = ['']; sys.path += {plain!r}; data = {str(ROOT / 'data')!r}\n" + IMPORTS
    folders = [str(tmp_path / number) for number in COURSE.chapters]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", start, *folders]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.stdout.split("\n") == ["imported"] * len(folders) + [""], done.stdout + done.stderr


def test_a_hand_out_has_blanks_and_the_points_of_classroom_toml(handed_out):
    for path in handed_out.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=nbformat.NO_CONVERT).cells
        assert not any("### BEGIN SOLUTION" in cell.source or cell.get("outputs") for cell in cells)
        assert not any("](../" in cell.source for cell in cells)  # what lies there is not handed out
        points = {cell.metadata.check: cell.metadata.nbgrader.points for cell in cells if "check" in cell.metadata}
        assert points == COURSE.chapters[path.name[:2]].points


def test_what_nbgrader_releases_has_the_cells_of_the_hand_out(handed_out):
    for path in handed_out.glob("*.ipynb"):
        chapter = COURSE.chapters[path.name[:2]]
        handed = nbformat.read(path, as_version=nbformat.NO_CONVERT).cells
        assert [cell.id for cell in assignment.notebook(chapter, True).cells] == [cell.id for cell in handed]


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


def test_the_checks_work_in_a_hand_out(handed_out):
    """In a Python that has no synth_lib installed: blanks of 02 are not answered yet, a solved one is right."""
    cells = json.loads((handed_out / "02_dense.ipynb").read_text(encoding="utf8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    imports = next(text for text in texts if "\nimport torch\n" in text)
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
    done = subprocess.run(command, cwd=handed_out, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Not answered yet") == 6 and done.stdout.endswith("Exercise 02.1: Right.\n")


def test_the_archive_for_colab_holds_the_folders_of_the_hand_out(handed_out, tmp_path):
    """Beside a notebook and unpacked it is what lies beside the notebooks in the folder, where the checks work."""
    shutil.unpack_archive(handed_out / "library.zip", tmp_path)
    unpacked, given = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path, handed_out)
    )
    made = {path: text for path, text in given.items() if "__pycache__" not in path.parts}  # by another test
    assert unpacked == {path: text for path, text in made.items() if path.parts[0] in ("synth_lib", "data")}


# --- what is handed in ---


def test_students_are_folders_or_files(tmp_path):
    names = [
        "ann/a.ipynb", "ann/sub/b.ipynb", "ann/.ipynb_checkpoints/a.ipynb", "bob_02_dense.ipynb", "cem.zip",
        "eve/work.zip", "eve/02_dense.py", ".fay/a.ipynb", ".git/a.ipynb", ".DS_Store",
        "team_01_final.ipynb", "team_02_final.ipynb", "mueller24_abc.ipynb", "mueller25_abc.ipynb", "02_dense.ipynb",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="utf8")
    (tmp_path / "dan").mkdir()
    handed_in = submissions.find(tmp_path, ["01_dot_product", "02_dense"])
    assert {student: ([path.name for path in own.notebooks], own.others) for student, own in handed_in.items()} == {
        "ann": (["a.ipynb", "b.ipynb"], []), "bob": (["bob_02_dense.ipynb"], []), "cem": (["cem.zip"], []),
        "dan": ([], []), "eve": ([], ["02_dense.py", "work.zip"]), ".fay": (["a.ipynb"], []),
        "team_01_final": (["team_01_final.ipynb"], []), "team_02_final": (["team_02_final.ipynb"], []),
        "mueller24_abc": (["mueller24_abc.ipynb"], []), "mueller25_abc": (["mueller25_abc.ipynb"], []),
        "02_dense": (["02_dense.ipynb"], []),
    }  # fmt: skip


def test_a_missing_chapter_and_a_file_that_is_no_notebook_ask_for_a_look():
    course = courses.read(["02"])
    row = grading_tool.row_of("ann", [], course, ["work.zip"])
    assert row["needs_review"] and "nothing handed in; not read: work.zip" in row["reason"]
    assert "work.zip" in grading_tool.feedback.pages(row, course, dict.fromkeys(course.chapters["02"].points, "t"))[0]
    row, *_ = page_of(dict.fromkeys(course.chapters["02"].points, RIGHT))
    assert not row["needs_review"]
    assert not grading_tool.row_of("ann", [], course)["needs_review"]


NOTHING = {"file": "a.ipynb", "chapter": "02", "refused": "", "troubles": [], "notes": []}  # wrong with it


def put(folder, *names, text="{}"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf8")


def handed_in_by(student, tmp_path):
    own = submissions.find(tmp_path, ["01_dot_product", "02_dense"])[student]
    return [str(path.relative_to(tmp_path / student)) for path in own.notebooks], own.others


@pytest.mark.parametrize("name", ["answers.py", "notes.txt", "a/essay.md", "scan.pdf", "all.zip", ".hidden.docx", "x"])
def test_any_other_file_asks_for_a_look_though_no_chapter_is_missing(tmp_path, name):
    put(tmp_path / "ann", "02_dense.ipynb", name)
    notebooks, others = handed_in_by("ann", tmp_path)
    assert (notebooks, others) == (["02_dense.ipynb"], [name])
    course = courses.read(["02"])
    result = NOTHING | {"verdicts": dict.fromkeys(course.chapters["02"].points, BLANK)}
    row = grading_tool.row_of("ann", [result], course, others)
    assert row["needs_review"] and f"not read: {name} (" in row["reason"]
    assert name in " ".join(row["notes"])


def test_nothing_that_is_hidden_linked_or_closed_is_passed_over(tmp_path, monkeypatch):
    put(tmp_path / "ann", ".02_dense.ipynb", ".work/01.ipynb", "shut/02.ipynb", ".DS_Store", "._02_dense.ipynb")
    (tmp_path / "ann" / "linked").symlink_to(tmp_path)
    (tmp_path / "ann" / "gone.txt").symlink_to("nowhere")
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert handed_in_by("ann", tmp_path) == (
        [".02_dense.ipynb", ".work/01.ipynb"],
        ["gone.txt (a link)", "linked (a link)", "shut (it cannot be opened)"],
    )


def test_copies_that_jupyter_makes_are_named_where_nothing_else_is(tmp_path):
    saved = ".ipynb_checkpoints/02_dense-checkpoint.ipynb"
    put(tmp_path / "ann", saved)
    put(tmp_path / "bob", saved, "02_dense.ipynb")
    put(tmp_path / "cem", saved, "01_dot_product.ipynb")
    put(tmp_path / "dan", ".git/config", "__MACOSX/._a.ipynb")
    found = {student: handed_in_by(student, tmp_path) for student in ("ann", "bob", "cem", "dan")}
    assert found == {
        "ann": ([], [saved]), "bob": (["02_dense.ipynb"], []), "cem": (["01_dot_product.ipynb"], [saved]),
        "dan": ([], [".git", "__MACOSX"]),
    }  # fmt: skip


def test_a_hand_out_and_an_environment_that_come_back_hold_no_work_of_their_own(handed_out, tmp_path):
    shutil.copytree(handed_out, tmp_path / "ann" / "course")
    environment = ("pyvenv.cfg", "lib/python3/a.json", "share/jupyter/b.ipynb", "mine.ipynb", ".gitignore")
    put(tmp_path / "ann" / "course", *(f".venv/{name}" for name in environment))
    put(tmp_path / "ann" / "course", "synth_lib/answers.py", "settings.json", "kept.json", "bin/mine.py")
    put(tmp_path / "ann" / "course", "kept.json", text=json.dumps(notebook(["x = 1"])))
    notebooks, others = handed_in_by("ann", tmp_path)
    inside = [".venv/mine.ipynb", "02_dense.ipynb", "03_random.ipynb", "kept.json"]
    assert notebooks == [f"course/{name}" for name in inside]
    assert others == [f"course/{name}" for name in ("bin/mine.py", "settings.json", "synth_lib/answers.py")]


def test_folders_in_folders_end_the_grading_of_nobody(tmp_path):
    """A thousand of them would end Python's own walk through them, and so everybody's grading."""
    put(tmp_path / "ann", "02_dense.ipynb")
    here = os.getcwd()
    try:
        os.chdir(tmp_path / "ann")
        for _ in range(1100):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    notebooks, (deep,) = handed_in_by("ann", tmp_path)
    assert notebooks == ["02_dense.ipynb"] and deep.endswith("d/... (too deep to be looked through)")
    subprocess.run(["rm", "-rf", str(tmp_path / "ann" / "d")], check=True)


def test_what_a_student_hides_where_programs_write_is_found(handed_out, tmp_path):
    put(tmp_path / "ann", "02_dense.ipynb", "__pycache__/work.ipynb", ".git/more.ipynb")
    put(tmp_path / "bob", "pyvenv.cfg", "lib/answers.ipynb")
    shutil.copytree(handed_out, tmp_path / "cem")
    with open(tmp_path / "cem" / "README.md", "a", encoding="utf8") as file:
        file.write("My answer to 02.1 is ...\n")
    for name, more in (("scores.py", "def my_answer(): 1\n"), ("masks.py", "")):  # git on Windows changes line ends
        library = tmp_path / "cem" / "synth_lib" / name
        library.write_bytes(library.read_bytes().replace(b"\n", b"\r\n") + more.encode())
    assert handed_in_by("ann", tmp_path) == (["02_dense.ipynb"], [".git/more.ipynb", "__pycache__/work.ipynb"])
    assert handed_in_by("bob", tmp_path) == ([], ["lib", "pyvenv.cfg"])
    assert handed_in_by("cem", tmp_path)[1] == ["README.md", "synth_lib/scores.py"]


def test_folders_of_two_students_in_one_ask_for_a_look(tmp_path):
    put(tmp_path, "class/ann/02_dense.ipynb", "class/bob/02_dense.ipynb")
    put(tmp_path, "eve/02_dense.ipynb", "eve/old/02_dense.ipynb")
    handed_in = submissions.find(tmp_path)
    course = courses.read(["02"])
    result = NOTHING | {"verdicts": dict.fromkeys(course.chapters["02"].points, RIGHT)}
    rows = [grading_tool.row_of(name, [result] * 2, course) for name in handed_in]
    grading_tool.mark_names(rows, handed_in, tmp_path)
    assert [row["needs_review"] for row in rows] == [True, False]
    assert "ann and bob" in rows[0]["reason"]


def test_the_copy_of_a_notebook_is_that_students(tmp_path):
    put(tmp_path, "ann_02_dense.ipynb", "ann_01_dot_product (1).ipynb", "Copy of bob.ipynb", "bob/a.ipynb")
    put(tmp_path, "cem-Copy1.ipynb", "cem.ipynb", "02_dense.ipynb", "02_dense (1).ipynb", "j.smith", "j.doe")
    put(tmp_path, "Copy of eve/a.ipynb", "eve/a.ipynb")
    handed_in = submissions.find(tmp_path, ["01_dot_product", "02_dense"])
    assert {student: len(own.notebooks) for student, own in handed_in.items()} == {
        "ann": 2, "bob": 2, "cem": 2, "02_dense": 1, "02_dense (1)": 1, "j.smith": 1, "j.doe": 1,
        "Copy of eve": 1, "eve": 1,
    }  # fmt: skip
    course = courses.read(["02"])
    rows = [grading_tool.row_of(name, [], course) for name in handed_in]
    grading_tool.mark_names(rows, handed_in, tmp_path)
    looked_at = {row["student"] for row in rows if row["needs_review"]}
    assert looked_at == {"ann", "bob", "cem", "02_dense", "02_dense (1)", "Copy of eve", "eve"}


def test_exercises_of_two_chapters_in_one_notebook_ask_for_a_look():
    told = light("02")
    told["cells"].append(code('check("01.2", None)'))
    cells = [submissions.Cell(n, "code", cell["source"]) for n, cell in enumerate(told["cells"])]
    assert submissions.foreign(cells, "02", COURSE.chapters) == ["01.2"]
    name = COURSE.chapters["01"].names["01.4"]
    cells[-1] = submissions.Cell(99, "code", f"def {name}(x):\n    return x")
    assert submissions.foreign(cells, "02", COURSE.chapters) == ["01.4"]
    course = courses.read(["02"])
    verdicts = dict.fromkeys(course.chapters["02"].points, RIGHT)
    row = grading_tool.row_of("ann", [NOTHING | {"verdicts": verdicts, "elsewhere": ["also 01.2"]}], course)
    assert row["needs_review"] and row["reason"] == "also 01.2" and "also 01.2" in row["notes"]


@every_chapter
def test_no_chapter_holds_work_of_another(chapter):
    cells = [submissions.Cell(1, "code", cell.source) for cell in build(COURSE.chapters[chapter].path, True).cells]
    assert submissions.foreign(cells, chapter, COURSE.chapters) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04 and more", "an archive or an Office document"), (b"%PDF-1.7", "a PDF"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html><html>", "a web page"), (b"version https://git-lfs", "a pointer of git LFS"),
        (bytes(50), "nothing but zeros"), (b" \n", "it is empty"), (b"import torch\n", 'begins with "import torch"'),
        (b'{"cells": [{"source": "\xfc"}]}', "no UTF-8 from byte 23 on"),
        (b'{"cells": [\n{"a": 1,}]}', "damaged at line 2"),
        (b'{"cells": []}{"cells": []}', "damaged at line 1: Extra data"), (b'{"cells": [{}', "was the upload cut off"),
    ],
)  # fmt: skip
def test_what_is_no_notebook_is_told_the_true_cause(tmp_path, content, says):
    (tmp_path / "a.ipynb").write_bytes(content)
    with pytest.raises(submissions.Refused, match=says):
        submissions.read(tmp_path / "a.ipynb")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_a_notebook_is_read_in_every_encoding_of_unicode(tmp_path, encoding):
    (tmp_path / "a.ipynb").write_bytes(json.dumps(notebook(["'ü'"]), ensure_ascii=False).encode(encoding))
    assert submissions.read(tmp_path / "a.ipynb")[0].text == "'ü'"


def test_a_chapter_without_answers_is_said_once():
    row, *_ = page_of(dict.fromkeys(COURSE.chapters["02"].points, BLANK))
    assert row["reason"] == "chapter 02: nothing answered" and not row["needs_review"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"), ('{\n<<<<<<< HEAD\n}', "holds a merge conflict"),
        ('{"cells": [', "was the upload cut off"), ("[" * 200_000, "could not be read"),
        ("[]", "no notebook"), ('{"cells": []}', "has no cells"), ('{"cells": [3]}', "no list of cells"),
        ('{"cells": {"a": 1}}', "no list of cells"),
        (json.dumps(notebook(["x = 1"])), "defines no exercise"),
        (json.dumps(notebook([None, "# 02 by its name alone"])), "defines no exercise"),
        (json.dumps(notebook(["def linear_scores(): 1\ndef newest_tokens(): 1"])), "could be chapter 02 or 03"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_reason(graded, text, message):
    result = graded(text, name="02_homework.ipynb" if "by its name" in text else "homework.ipynb")
    assert message in result.refused and result.verdicts == {}


@can_grade
def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "a.ipynb").symlink_to(ROOT / "notebooks" / "solutions" / "02_dense.ipynb")
    assert "is a link" in grade(None, tmp_path / "a.ipynb", COURSE).refused


# --- the grader, through a student's process ---


@can_grade
@every_chapter
def test_solutions_get_full_marks_and_blanks_none(graded, chapter):
    """Without the lesson, whose cells the notebook tests run."""
    told = light(chapter)
    assert set(statuses(graded(told))) == {"right"}
    blank = {**told, "cells": [code(cut_solution(cell["source"])) for cell in told["cells"]]}
    assert set(statuses(graded(blank))) == {"not answered"}


@can_grade
def test_a_whole_solved_notebook_gets_full_marks_and_its_blank_none(server):
    """With its lesson, which is short in this chapter and saves and loads models and tokenizers."""
    path = COURSE.chapters["12"].path
    for folder, status in (("solutions", "right"), (".", "not answered")):
        result = grade(server, ROOT / "notebooks" / folder / f"{path.stem}.ipynb", COURSE)
        assert (set(statuses(result)), result.refused, result.troubles) == ({status}, "", [])


LOADER = """
import pickle
{name} = pickle.loads(bytes.fromhex("{payload}"))
"""


def without_line(runner):
    """The code of a banked answer lies in a file here, and nowhere there."""

    def without_line(*order):
        return dataclasses.replace(runner(*order), line="")

    return without_line


def sampled(exercise):
    """A right answer and two mistakes, others at each commit; all of them where SYNTH_ALL_SEEDS is set."""
    mistakes = [mistake.answer for mistake in exercise.wrong]
    if os.environ.get("SYNTH_ALL_SEEDS"):
        return [*exercise.right, *mistakes]
    draw = random.Random(f"{os.environ.get('SYNTH_SEED') or commit()} {exercise.key}")
    if exercise.trials != TRIALS:  # one of all where it trains
        return draw.sample([*exercise.right, *mistakes], 1)
    return [draw.choice(exercise.right), *draw.sample(mistakes, 2)]


@functools.cache
def commit():
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout


@can_grade
@every_chapter
def test_an_answer_gets_the_same_verdict_in_class_as_in_the_notebook(server, chapter):
    """Status, words and small example of answers from the bank, with the seed of grading; right ones are right."""
    limits = {**PATIENT, "seconds_per_notebook": 3000, "memory_gib": 2.0}
    for key in COURSE.chapters[chapter].points:
        exercise = checks.find(key)
        answers = {f"answer_{n}": answer for n, answer in enumerate(sampled(exercise))}
        cells = [
            (n, "code", LOADER.format(name=name, payload=protocol.dumps(answer).hex()))
            for n, (name, answer) in enumerate(answers.items(), 1)
        ]
        with Student(server, cells, list(answers), (), limits) as student:
            student.run()
            for name, answer in answers.items():
                here = in_this_process(answer, io.StringIO(), engine.PRINTED)
                there = functools.partial(student.run_answer, name, 0)
                verdicts = [
                    engine.judge(exercise, without_line(one), seed=COURSE.seed, seconds=300) for one in (here, there)
                ]
                assert verdicts[0] == verdicts[1] and verdicts[0].shown == verdicts[1].shown, (key, verdicts)
                assert (verdicts[0].status == "right") == (answer in exercise.right), verdicts[0]


RIGHT_SCORES = "return (x @ W1.T + b1).relu() @ W2.T + b2"
BESIDE = {
    "right": RIGHT_SCORES,
    "prints": f"print('once'); {RIGHT_SCORES}",
    "prints much": f"print('x' * 5000); {RIGHT_SCORES}",
    "warns": f"import warnings; warnings.warn('look here'); {RIGHT_SCORES}",
    "counts": f"global n\n    n = globals().get('n', 0) + 1\n    {RIGHT_SCORES} + (n > 3)",
    "is random": f"{RIGHT_SCORES} + torch.rand(())",
    "changes an input": f"x.mul_(1.5); {RIGHT_SCORES}",
    "sets the seed": f"torch.manual_seed(3); {RIGHT_SCORES}",
    "sets a dtype": f"result = x; torch.set_default_dtype(torch.float64); {RIGHT_SCORES}",
    "sets a device": f"torch.set_default_device('meta'); {RIGHT_SCORES}",
    "stops": "hidden = x @ W1.T\n    return hidden @ b2.nothing",
    "stops elsewhere": "return stop(x)\n\ndef stop(x):\n    raise LookupError('no')",
    "breaks a property": "return (x @ W1.T + b1).cumsum(0).relu() @ W2.T + b2.sum() * 0.7",
    "gives the same": "return torch.ones(2)",
    "is of 16 bits": "return (x.half() @ W1.T.half()).float()",
    "is blank": "raise NotImplementedError",
    "needs another name": "pass\n\ndef linear_scores(x, W1, b1, W2, bias): return x",
    "is no function": "pass\n\nlinear_scores = 3",
}


@can_grade
@pytest.mark.parametrize("kind", BESIDE)
def test_a_check_says_the_same_in_class(graded, kind):
    """Of what an answer does beside its task, too, and of the line where it stops."""
    source, space, file = BAD + BESIDE[kind], {"torch": torch}, f"<cell of {kind}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    there = graded(notebook(["import torch", source])).verdicts["02.1"]  # the five others are no matter here
    exec(compile(source, file, "exec"), space)
    here = in_this_process(space["linear_scores"], io.StringIO(), engine.PRINTED)
    verdict = engine.judge(checks.find("02.1"), here, seed=COURSE.seed, seconds=300)
    assert there == [verdict.status, verdict.message, verdict.shown]


@can_grade
def test_a_library_function_that_does_the_exercise_is_noticed_in_class(graded):
    name = COURSE.chapters["01"].names["01.3"]
    answer = f"def {name}(scores, allowed):\n    return mine(scores, allowed)"
    answer = f"from synth_lib.masks import masked_softmax as mine\n{answer}"
    result = graded(light("01", {"01.3": answer}), name="01_dot_product.ipynb")
    assert "calls the library's masked_softmax, which does" in result.verdicts["01.3"][1], result.verdicts["01.3"]


@can_grade
def test_a_mistake_costs_exactly_its_exercise(graded):
    """A class that holds a plain tensor, and a function that adds where it should multiply."""
    plain = (
        "class RandomScores(nn.Module):\n    def __init__(self, R, fixed):\n        super().__init__()\n"
        "        self.R = R\n\n    def forward(self, x):\n        return self.R[None, :, :x.shape[1], :x.shape[1]]"
    )
    result = graded(light("03", {"03.4": plain}), name="03_random.ipynb")
    assert statuses(result) == ["right"] * 3 + ["wrong", "right"]
    assert checks.find("03.4").wrong[0].diagnosis in result.verdicts["03.4"][1]


HOSTILE = {
    "ends": ("import os\nos._exit(0)", "ends the process"),
    "never ends": (
        "import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass",
        "not end within",
    ),
    "eats memory": ("x = []\nwhile True:\n    x.append(bytearray(10**8))", ""),
    "prints gigabytes": ("for _ in range(120):\n    print('x' * 10**7)", ""),
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
attempt("data", lambda: importlib.import_module("synth_lib.text.corpora").shakespeare("characters"))
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
def test_a_hostile_cell_costs_nobody_else_a_point(graded, kind):
    """The other cells of the same notebook count, and the reason names the cell."""
    text, reason = HOSTILE[kind]
    told = light("02")
    told["cells"].insert(1, code(text))
    result = graded(told, limited(seconds_per_cell=3) if kind == "never ends" else None)
    assert set(statuses(result)) == {"right"}
    if reason:
        assert reason in result.troubles[0] and "Cell 2 (" in result.troubles[0], result.troubles


STARTS_AT_ONCE = "import socket, sys, time; socket.socket(fileno=int(sys.argv[1])).sendall(b'+'); time.sleep(999)"


@can_grade
def test_a_submission_that_ends_the_server_costs_nobody_else_a_point(server, tmp_path, monkeypatch):
    """However it is done: here the process, one that loads nothing, is killed while the first is graded, both times."""
    start = subprocess.Popen

    def quickly(command, **options):
        return start([sys.executable, "-c", STARTS_AT_ONCE, command[-1]], **options)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", quickly)
        dead = ForkServer()
    servers = iter([dead, dead, server])
    worker = {"course": COURSE, "protected": True, "number": 1, "server": None}
    monkeypatch.setattr(grading_tool, "WORKER", worker)
    monkeypatch.setattr(grading_tool, "ForkServer", lambda *arguments: next(servers))
    told = light("02")
    (tmp_path / "02_dense.ipynb").write_text(json.dumps(told), encoding="utf8")

    def kills(server, path, course):
        server.process.kill()
        server.process.wait()
        return grade(server, path, course)

    monkeypatch.setattr(grading_tool, "grade", kills)
    refused = grading_tool.grade_in_worker(tmp_path / "02_dense.ipynb")["refused"]
    assert "the process that runs notebooks ended twice" in refused
    monkeypatch.setattr(grading_tool, "grade", grade)
    after = grading_tool.grade_in_worker(tmp_path / "02_dense.ipynb")
    assert after["refused"] == "" and {verdict[0] for verdict in after["verdicts"].values()} == {"right"}


@can_grade
def test_a_notebook_reaches_nothing_but_its_own_folder(graded, tmp_path):
    place = f"REPOSITORY, SUBMISSION = {str(ROOT)!r}, {str(tmp_path / '02_dense.ipynb')!r}\n"
    result = graded(light("02", {"02.1": place + SNOOP}))
    assert "ValueError: data thread write here. (Inputs" in result.verdicts["02.1"][1], result.verdicts["02.1"]
    assert not Path("/tmp/left_by_a_student").exists()


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
def test_a_bad_answer_gets_its_sentence_and_the_next_is_graded(graded, body, says):
    result = graded(light("02", {"02.1": BAD + body}))
    assert says in result.verdicts["02.1"][1], result.verdicts["02.1"]
    assert statuses(result) == ["wrong"] + ["right"] * 5


@can_grade
def test_an_answer_that_never_ends_is_stopped(graded):
    answer = BAD + "import time\n    while True: time.sleep(0.1)"
    result = graded(light("02", {"02.1": answer}), limited(seconds_per_exercise=3))
    assert "come to an end" in result.verdicts["02.1"][1]
    assert statuses(result) == ["wrong"] + ["right"] * 5


@can_grade
def test_magics_edited_checks_and_older_definitions(graded):
    told = light("02")
    texts = [cell["source"] for cell in told["cells"]]
    texts[1] = "%%time\n" + texts[1]
    blank_again = cut_solution(texts[2])
    later = "linear_scores_helper = 3\ntorch = None"  # as a lesson cell may bind a name anew that an answer uses
    told = notebook(
        ["%matplotlib inline\n!pip install nothing", *texts, blank_again, 'check = print\ncheck("02.1")', later]
    )
    assert set(statuses(graded(told))) == {"right"}


@can_grade
def test_twenty_damaged_notebooks_keep_their_points_or_name_the_cell(server, monkeypatch):
    """Of chapter 02 without its lesson; `make fuzz` damages whole notebooks, 1,000 times."""
    monkeypatch.setattr(fuzz_grading, "build", lambda path, solved: light(path.stem[:2]))
    table, losses = fuzz_grading.run(range(21, 41), ["02"], server, show=False)  # with every edit among them
    assert losses == []
    assert all(sum(counts.values()) for counts in table.values())


def diagnoses_of(out):
    return list(csv.DictReader(out.with_name("grades.diagnoses.csv").open(encoding="utf8")))


def test_known_mistakes_and_unknown_wrong_answers_are_counted(tmp_path):
    first, second = [mistake.diagnosis for mistake in checks.find("02.1").wrong[:2]]
    known = [f'This looks like a known mistake: {one} Read again: "Products".' for one in (first, second)]
    sizes = [f"Not yet: the shape is (2, 5). (Inputs: x (2, {size}, 12).)" for size in (5, 6)]
    messages = [known[0], known[0], known[1], *sizes, "Your code stops with =1+1\nand more", f"{known[1]} But: Cell 3."]
    results = [{"verdicts": {"02.1": ["wrong", message, ""], "02.2": RIGHT}} for message in messages]
    results[-1]["verdicts"]["02.1"][0] = "not graded"
    grading_tool.write_diagnoses(results, courses.read(["02"]), tmp_path / "grades.csv")
    lines = [tuple(row.values()) for row in diagnoses_of(tmp_path / "grades.csv")]
    assert lines[:4] == [
        ("02.1", "2", first),
        ("02.1", "2", "The shape is (2, 5)."),  # what the check found, where no known mistake has a name for it
        ("02.1", "1", second),
        ("02.1", "1", "Your code stops with =1+1."),
    ]
    assert lines[4:] == [(f"02.{n}", "0", "(no wrong answer)") for n in (2, 3, 4, 5, 6)]


def test_a_mistake_of_one_part_of_a_result_is_counted_once(tmp_path):
    """As the check says it, so that the two keep together: one slip in one part, another one in the other part."""
    exercise = checks.find("02.4")
    arguments = exercise.inputs(Draw(0))
    right = exercise.right[0](**arguments)
    by_part = [mistake for mistake in exercise.wrong if mistake.by_part]
    first, second = (
        next(one for one in ordered if one.answer(**arguments)[part] != right[part])
        for part, ordered in enumerate((by_part, by_part[::-1]))
    )
    verdict = checks.check("02.4", lambda **given: (first.answer(**given)[0], second.answer(**given)[1]))
    results = [{"verdicts": {"02.4": [verdict.status, verdict.message, ""]}}]
    grading_tool.write_diagnoses(results, courses.read(["02"]), tmp_path / "grades.csv")
    counts = {row["diagnosis"]: row["wrong answers"] for row in diagnoses_of(tmp_path / "grades.csv")}
    assert counts[first.diagnosis] == counts[second.diagnosis] == "1", (counts, verdict)
    assert sum(int(count) for count in counts.values()) == 2  # and no unnamed one


class InThisProcess(ThreadPoolExecutor):
    """Grades with a server that runs already, where a pool of processes is no matter."""

    def __init__(self, server, size, **options):
        super().__init__(size)
        self.server = server

    def submit(self, work, path):
        return super().submit(lambda: vars(grade(self.server, path, limited())))


@can_grade
def test_the_table_has_a_row_for_everybody_and_grading_goes_on_where_it_was_cut_off(
    server, tmp_path, monkeypatch, capsys
):
    handed_in, out = tmp_path / "handed in", tmp_path / "grades.csv"
    broken = notebook(["import os\nos._exit(1)", "def linear_scores(x): ("])
    told = {"right": light("02"), "=half": light("02", {"02.1": BAD + "return x"}), "broken": broken}
    for student, cells in told.items():
        (handed_in / student).mkdir(parents=True)
        (handed_in / student / "my homework.ipynb").write_text(json.dumps(cells), encoding="utf8")
    (handed_in / "cut.ipynb").write_text('{"cells": [', encoding="utf8")
    (handed_in / "nothing").mkdir()
    monkeypatch.setattr("sys.argv", ["grade.py", str(handed_in), *f"--out {out} --chapters 02 --jobs 1".split()])
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # that of the worker; here another one is known already
    monkeypatch.setattr(grading_tool, "tqdm", functools.partial(grading_tool.tqdm, disable=False))
    journal = out.with_name("grades.csv.journal")
    written = []  # on the disk, when the grading is cut off

    def cut_off_at_the_second(running, return_when):
        if journal.read_text(encoding="utf8"):
            written.append(journal.read_text(encoding="utf8"))
            raise BrokenPipeError
        return waiting(running, return_when=return_when)

    waiting = grading_tool.wait
    with monkeypatch.context() as patch:
        patch.setattr(grading_tool, "wait", cut_off_at_the_second)
        patch.setattr(grading_tool, "ProcessPoolExecutor", functools.partial(InThisProcess, server))
        assert grading_tool.main() == 2
    (before,) = written
    assert before.count("\n") == 1 and not out.exists()
    capsys.readouterr()
    journal.write_text(before + '{"key": "cut', encoding="utf8")
    assert grading_tool.main() == 0
    assert not [*tmp_path.glob("grading-*"), *tmp_path.glob("student-*")]
    said = capsys.readouterr()
    assert "5 students in" in said.out and "Look at 2 yourself" in said.out and "notebook" in said.err
    lines = [json.loads(line) for line in journal.read_text(encoding="utf8").splitlines() if line != '{"key": "cut']
    assert len({line["key"] for line in lines}) == len(lines) == 4
    rows = {row["student"]: row for row in csv.DictReader(out.open(encoding="utf8"))}
    totals = {student: row["total"] for student, row in rows.items()}
    assert totals == {"right": "10", "'=half": "9", "broken": "0", "cut": "0", "nothing": "0"}
    assert rows["right"]["reason"] == "all right" and "02.1: Not yet" in rows["'=half"]["reason"]
    assert rows["broken"]["look"] and "cell 2" in rows["broken"]["reason"].lower()
    assert "cut off" in rows["cut"]["reason"] and "nothing handed in" in rows["nothing"]["reason"]
    counts = {(row["exercise"], row["diagnosis"]): row["wrong answers"] for row in diagnoses_of(out)}
    (of_first,) = [text for (key, text), count in counts.items() if key == "02.1" and count == "1"]
    assert "he shape is" in of_first and counts["02.2", "(no wrong answer)"] == "0"
    pages = tmp_path / "grades_feedback"
    assert len(list(pages.glob("*.html"))) == len(list(pages.glob("*.txt"))) == 5
    assert "the shape is" in (pages / "_half.txt").read_text(encoding="utf8")
    assert "&lt;" not in (pages / "right.html").read_text(encoding="utf8")


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
        ("assignment", ("CHAPTERS=02", "OUT=x", "NBGRADER=true"), "NBGRADER=true is neither yes nor no."),
        ("book", ("SOLUTIONS=yes no",), "SOLUTIONS=yes no is neither yes nor no."),
        ("notebooks", ("ALL=all",), "ALL=all is neither yes nor no."),
    ],
)
def test_make_says_which_variable_is_missing_or_no_switch_and_runs_nothing(goal, given, says):
    clean = {name: value for name, value in os.environ.items() if name not in ("CHAPTERS", "OUT", "SUBMISSIONS")}
    command = ["make", "-s", goal, *given, "PYTHON=false"]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True)
    assert done.returncode and done.stderr.splitlines()[0] == says and done.stdout == ""


@pytest.mark.parametrize(
    ("goal", "switch", "option", "values"),
    [
        ("assignment CHAPTERS=02 OUT=x", "NBGRADER", "--nbgrader", ("yes", "1")),
        ("book", "SOLUTIONS", "--no-solutions", ("no", "0")),
        ("notebooks", "ALL", "--all", ("yes", "1")),
    ],
)
def test_a_switch_of_make_is_yes_or_no(goal, switch, option, values):
    for value in ("yes", "no", "1", "0", ""):
        command = ["make", "-n", *goal.split(), f"{switch}={value}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert (f" {option}\n" in done.stdout) == (value in values), (value, done.stdout)


def test_points_that_are_no_whole_number_are_named(tmp_path):
    text = courses.FILE.read_text(encoding="utf8").replace('"02.2" = 2', '"02.2" = 2.5')
    (tmp_path / "classroom.toml").write_text(text, encoding="utf8")
    with pytest.raises(courses.CourseError, match=r'\[02\]: "02.2" = 2.5, but points are whole numbers'):
        courses.read(file=tmp_path / "classroom.toml")


def test_a_hand_out_says_how_to_install_what_counts_and_what_is_not_in_it(handed_out, tmp_path):
    text = (handed_out / "README.md").read_text(encoding="utf8")
    assert "python3 -m venv .venv" in text and "py -m venv .venv" in text and "0.4 GB" in text
    assert "| 02.5 | who depends on whom | 3 |" in text
    needed = (handed_out / "requirements.txt").read_text(encoding="utf8")
    assert "torch" in needed and "jupyterlab" in needed and "sacrebleu" not in needed and "scikit-learn" not in needed
    assert "sacrebleu" in assignment.requirements(courses.read(["13"]))
    assert "transformers==" in assignment.requirements(courses.read(["12"])) and "transformers" not in needed
    pins = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    assert set(needed.split()) <= set(pins) and all("==" in line for line in needed.split())
    assert assignment.named_before(courses.read(["02", "03"])) == ["00", "01"]
    assert assignment.named_before(courses.read(["00", "01", "02"])) == []
    chapter = COURSE.chapters["02"]
    free = dataclasses.replace(chapter, points={**chapter.points, "02.5": 0})
    course = dataclasses.replace(COURSE, chapters={"02": free})
    assert "| 02.5 | who depends on whom | does not count |" in assignment.readme(course, None, None)


@pytest.mark.parametrize(
    ("tool", "given", "says"),
    [
        (grading_tool, "nosuch", "SUBMISSIONS=nosuch does not exist. Name the folder"),
        (grading_tool, "file", "SUBMISSIONS=file is a file. Name the folder"),
        (grading_tool, "empty", "SUBMISSIONS=empty is empty. Put a folder"),
        (grading_tool, "full --chapters 99", "there is no chapter 99; there are 00, 01,"),
        (grading_tool, "full --jobs 0", "Argument --jobs: it must be a whole number from 1 on, not '0'."),
        (grading_tool, "full --jobs two", "Argument --jobs: it must be a whole number from 1 on, not 'two'."),
        (grading_tool, "full --ou x", "Unrecognized arguments: --ou x. --help lists the options."),
        (grading_tool, "", "The following arguments are required: submissions."),
        (assignment, "--chapters 99 --out new", "there is no chapter 99; there are 00, 01,"),
        (assignment, "--chapters , --out new", "CHAPTERS is empty: say which chapters"),
        (assignment, "--chapters 02", "The following arguments are required: --out."),
        (assignment, "--chapters 02 --out file", "OUT=file is a file: name a new folder."),
        (assignment, "--chapters 02 --out file/x", "file/x cannot be written (Not a directory)"),
        (assignment, "--chapters 02 --out full", "full is not empty: name a new folder"),
        (assignment, "--chapters 02 --out new --repo me", "REPO=me is no address on GitHub, such as"),
        (assignment, "--chapters 02 --out new --ref v1", "REF=v1 is a branch or tag of REPO, and REPO is missing."),
        (assignment, "--chapters 02 --out new --nbgrader --repo https://github.com/a/b", "NBGRADER hands out without"),
        (fuzz_grading, "--chapters 99", "there is no chapter 99; there are 00, 01,"),
        (fuzz_grading, "--chapters ,", "--chapters is empty: say which chapters"),
        (fuzz_grading, "--edits 0", "Argument --edits: it must be a whole number from 1 on, not '0'."),
        (fuzz_grading, "--first -1", "Argument --first: it must be a whole number from 0 on, not '-1'."),
    ],
)
def test_an_option_that_is_wrong_gets_one_sentence_and_nothing_is_written(
    tmp_path, monkeypatch, capsys, tool, given, says
):
    put(tmp_path, "file", "full/ann/02_dense.ipynb")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["tool", *given.split()])
    monkeypatch.setattr(sandbox, "missing", lambda: None)
    try:
        status = tool.main()
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status == 2 and said.out == "" and said.err.startswith(says) and said.err.count("\n") == 1, said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch, capsys):
    def closed(*_):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("sys.argv", ["grade.py", str(tmp_path)])
    monkeypatch.setattr(sandbox, "missing", lambda: None)
    monkeypatch.setattr(grading_tool.submissions, "find", closed)
    assert grading_tool.main() == 2
    assert capsys.readouterr().err == f"SUBMISSIONS={tmp_path} cannot be read: Permission denied: {tmp_path}.\n"


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
def test_grader_and_notebook_name_the_same_kind(graded, kind):
    result = graded(notebook(["import torch\nfrom torch import nn", BAD + KINDS[kind]]))
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
def test_an_unreadable_cell_excuses_only_what_it_may_hold(graded, answer, broken, status):
    told = light("02", {"02.1": answer})
    told["cells"] += [code("y = 1"), code(broken)]
    result = graded(told)
    number = len(told["cells"])
    assert statuses(result) == [status] + ["right"] * 5
    assert (f"Cell {number} (" in result.verdicts["02.1"][1]) == (status == "not graded")
    assert sum(f"Cell {number} (" in trouble for trouble in result.troubles) == 1


@can_grade
def test_an_answer_that_is_cut_in_two_anywhere_is_not_lost_in_silence(graded):
    """The second half stands elsewhere, so that the two cannot be joined."""
    imports, *answers = [cell["source"] for cell in light("03")["cells"]]
    (lines,) = [text.split("\n") for text in answers if "class RandomScores" in text]
    chapter = COURSE.chapters["03"]  # its other exercises are no matter here
    alone = dataclasses.replace(chapter, points={"03.4": 2}, names={"03.4": chapter.names["03.4"]})
    course = dataclasses.replace(limited(), chapters={"03": alone})
    for cut in range(1, len(lines)):
        told = notebook([imports, "\n".join(lines[:cut]), "y = 1", "\n".join(lines[cut:])])
        result = graded(told, course, name="03_random.ipynb")
        assert fuzz_grading.judge(result, alone) != "silent loss", (cut, result.verdicts)


@can_grade
def test_a_function_that_was_renamed_gets_its_name_back(graded):
    """In the notebook the check of it says right, and nothing stops there."""
    told = light("02", {"02.1": f"def my_scores(x, W1, b1, W2, b2):\n    {RIGHT_SCORES}"})
    told["cells"].append(code('check("02.1", my_scores)'))
    verdict = graded(told).verdicts["02.1"]
    assert verdict[0] == "not graded" and verdict[1].startswith("Keep the name linear_scores: your notebook calls")
    _, text, _ = page_of(dict.fromkeys(COURSE.chapters["02"].points, RIGHT) | {"02.1": verdict})
    assert "Give 02.1 (title 02.1) the name back that it had" in text and "Restart Kernel" not in text


@can_grade
@pytest.mark.parametrize("call", ["my_scores", "lambda *given: my_scores(*given)"])
def test_work_under_another_name_below_a_blank_is_not_called_unanswered(graded, call):
    told = light("02", {"02.1": BAD + "raise NotImplementedError"})
    told["cells"].append(code(f'def my_scores(x, W1, b1, W2, b2):\n    {RIGHT_SCORES}\n\n\ncheck("02.1", {call})'))
    verdict = graded(told).verdicts["02.1"]
    assert verdict[0] == "not graded" and verdict[1].startswith("Keep the name linear_scores"), verdict


@can_grade
def test_an_answer_that_may_be_right_elsewhere_is_not_called_wrong_or_unanswered(graded):
    """Each exercise is lost in another way, and the last is not: the best of many definitions counts."""
    source, name = dict(solutions("02")), COURSE.chapters["02"].names
    wrong = {key: cut_solution(text).replace("raise NotImplementedError", "1 / 0") for key, text in source.items()}
    mine = f'mine = {name["02.2"]}\ncheck("02.2", mine)\n{wrong["02.2"]}\nfound = check("02.2", mine, seed=1)'
    told = light("02", {
        "02.1": cut_solution(source["02.1"]), "02.2": f'{wrong["02.2"]}\ncheck("02.2", {name["02.2"]})',
        "02.3": wrong["02.3"].replace("1 / 0", "helper(x)"), "02.4": f"from my_file import {name['02.4']}",
    })  # fmt: skip
    told["cells"] += [{"cell_type": "markdown", "source": f"```\n{source['02.1']}\n```"}]
    ends = wrong["02.5"].replace("1 / 0", "import os; os._exit(0)")
    for text in [mine, "import no_such_module as helper", ends, *[wrong["02.6"]] * 6]:
        told["cells"].append(code(text))
    result = graded(told)
    assert statuses(result) == ["not graded"] * 5 + ["right"], result.verdicts
    says = {
        "02.1": "is a markdown cell, so its code does not run", "02.2": "Keep the name scores_again: your notebook",
        "02.3": 'import no_such_module as helper") should define that, and does not run: ModuleNotFound',
        "02.4": "should define layer_cost, but it does not run: ModuleNotFound", "02.5": "ends Python",
    }  # fmt: skip
    for key, words in says.items():
        assert words in result.verdicts[key][1], result.verdicts[key]


@pytest.mark.parametrize("error", ["ModuleNotFoundError: No module named 'pandas'", "IndexError: 3"])
def test_what_may_run_where_a_package_is_there_asks_for_a_look(error):
    chapter, cells = COURSE.chapters["02"], [submissions.Cell(1, "code", BAD + "return x")]
    result = Result("a.ipynb", "02", verdicts=dict.fromkeys(chapter.names, RIGHT))
    result.verdicts["02.1"] = ["wrong", f'Your code stops at "x" with {error}.', ""]
    student = types.SimpleNamespace(notes=[], ended={}, unreadable={}, failed={}, versions={"linear_scores": 1})
    explain(result, student, cells, chapter)
    assert result.verdicts["02.1"][0] == ("not graded" if "Module" in error else "wrong")


@can_grade
def test_equal_notebooks_in_the_folders_of_two_students_are_two(tmp_path, monkeypatch):
    put(tmp_path / "in", "class/ann/02_dense.ipynb", "class/bob/02_dense.ipynb")
    result = NOTHING | {"verdicts": dict.fromkeys(COURSE.chapters["02"].points, RIGHT)}

    def all_right(tasks, numbers, protected, jobs, journal):
        journal.entries.update(dict.fromkeys(tasks, result))

    monkeypatch.setattr(grading_tool, "results_of", all_right)
    monkeypatch.setattr("sys.argv", ["grade.py", str(tmp_path / "in"), f"--out={tmp_path / 'a.csv'}", "--chapters=02"])
    assert grading_tool.main() == 0
    (row,) = csv.DictReader((tmp_path / "a.csv").open(encoding="utf8"))
    assert row["look"] == "look" and "ann and bob hold notebooks of one chapter" in row["reason"]


def page_of(verdicts, course=None, **more):
    """The row, the text page and the HTML page for these verdicts of chapter 02."""
    course = course or courses.read(["02"])
    result = {"file": "a.ipynb", "chapter": "02", "refused": "", "troubles": [], "notes": [], **more}
    row = grading_tool.row_of("ann", [{**result, "verdicts": verdicts}], course)
    return row, *grading_tool.feedback.pages(row, course, {key: f"title {key}" for key in verdicts})


BLANK = ["not answered", "Not answered yet: the line raise NotImplementedError is reached.", ""]
RIGHT = ["right", "Right.", ""]


@pytest.mark.parametrize(
    ("one", "other", "best"),
    [
        (["wrong", "No.", ""], RIGHT, "right"), (["wrong", "No.", ""], ["not graded", "It stops.", ""], "not graded"),
        (["wrong", "No.", ""], ["not graded", "The cell that defines x is missing.", ""], "wrong"),
        (["wrong", "No.", ""], BLANK, "wrong"), (BLANK, ["not graded", "It stops.", ""], "not graded"),
    ],
)  # fmt: skip
def test_of_two_notebooks_the_best_answer_counts_and_nothing_is_passed_over(one, other, best):
    """02.6 is worth no points, so that the points tell nothing."""
    course = courses.read(["02"])
    rest = dict.fromkeys(course.chapters["02"].points, RIGHT)
    results = [NOTHING | {"verdicts": rest | {"02.6": verdict}} for verdict in (one, other)]
    for ordered in (results, results[::-1]):
        row = grading_tool.row_of("ann", ordered, course)
        assert row["exercises"]["02.6"][0] == best
        assert row["needs_review"] == ("02.6: could not be run: It stops." in row["reason"]) == (best == "not graded")
        assert "There are 2 notebooks of chapter 02" in row["reason"]


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
    assert "NotImplementedError" not in text + page and text.count("not answered") == 6
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
