"""Where people are: a folder with blanks and an é in its name, a pipe that takes ASCII, a default that is not UTF-8.

The next best thing to Windows that runs everywhere; the continuous integration has the real one.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools import build_notebooks
from tools.book import build
from tools.classroom import assignment

ROOT = Path(__file__).resolve().parents[2]
PYTHON_FILES = [
    path
    for folder in ("synth_lib", "tools", "tests", "notebooks/src")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
CHAPTER = """\
# %% [markdown]
# # 00 · A small chapter

# %%
print(6 * 7)
"""


def opened_without_encoding(source):
    """The calls that open a text file in whatever encoding the machine happens to have."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or any(word.arg in ("encoding", None) for word in call.keywords):
            continue
        called = ast.unparse(call.func)
        name = called.rpartition(".")[2]
        said = [value.value for value in call.args + [word.value for word in call.keywords] if hasattr(value, "value")]
        binary = any(isinstance(mode, str) and re.fullmatch("[rwax+]*b[rwax+]*", mode) for mode in said)
        if name in ("open", "fdopen", "TextIOWrapper") and called not in ("os.open", "Image.open") and not binary:
            yield ast.unparse(call)
        if name in ("read_text", "write_text") and "." in called and not called.startswith("own."):
            yield ast.unparse(call)


def test_a_file_is_read_and_written_in_a_named_encoding():
    """Windows has another default, and it differs between its countries."""
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf8") for path in PYTHON_FILES}
    assert [(path, *calls) for path, text in texts.items() if (calls := list(opened_without_encoding(text)))] == []


def test_the_rule_of_encodings_can_fail():
    for line in ("open(path)", "path.read_text()", "path.write_text(x)", "os.fdopen(3)", "open(path, 'w')"):
        assert list(opened_without_encoding(line)), line
    for line in ("open(path, 'rb')", "os.open(path, 0)", "path.open(encoding='utf8')", "open(path, mode='ab')"):
        assert not list(opened_without_encoding(line)), line


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """What a command needs of the repository, in a folder as on Windows, with a small chapter 00 and one small test."""
    folder = tmp_path_factory.mktemp("places") / "Mein Ordner é ł"
    for name in ("synth_lib", "tools", "tests/offline"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("classroom.toml", "pyproject.toml", "constraints.txt", "conftest.py"):
        shutil.copy(ROOT / name, folder)
    (folder / "notebooks" / "src").mkdir(parents=True)
    shutil.copy(ROOT / "notebooks" / "src" / "02_dense.py", folder / "notebooks" / "src")
    (folder / "notebooks" / "src" / "00_small.py").write_text(CHAPTER, encoding="utf8")
    (folder / "tests" / "test_one.py").write_text("def test_one(tmp_path):\n    assert tmp_path\n", encoding="utf8")
    return folder


def run(folder, *command):
    """A command in `folder`: (exit status, what it wrote). It writes ASCII, and opens no text in a default encoding."""
    settings = {"PYTHONPATH": str(folder), "PYTHONIOENCODING": "ascii", "PYTHONWARNDEFAULTENCODING": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env={**os.environ, **settings}, capture_output=True)
    said = done.stdout.decode("ascii") + done.stderr.decode("ascii")
    assert not re.search(r"Mein Ordner.*EncodingWarning", said), said
    return done.returncode, said


def test_chapters_are_built_and_everything_is_tested_there(elsewhere):
    """python tools/test.py, the whole way: lint, tests, merged notebooks, nbval."""
    status, said = run(elsewhere, "tools/build_notebooks.py", "00_small")
    assert status == 0 and said.startswith("00_small: built\n"), said
    status, said = run(elsewhere, "tools/test.py")
    assert status == 0 and "All passed." in said, said
    assert "1 passed" in said and (elsewhere / "build" / "notebooks" / "00_small.ipynb").exists()


def test_students_get_their_folder_there(elsewhere):
    status, said = run(elsewhere, "tools/classroom/assignment.py", "--chapters", "02", "--out", "Übung für Zoë")
    assert status == 0 and "hand out all of it" in said, said
    nbformat.validate(nbformat.read(elsewhere / "Übung für Zoë" / "02_dense.ipynb", as_version=nbformat.NO_CONVERT))


def test_a_text_of_ones_own_is_trained_on_there(elsewhere):
    """In Greek, which neither a German Windows nor ASCII can write: the run ends well, and so does what it prints."""
    text = "το πνεῦμα ὅπου θέλει πνεῖ, καὶ τὴν φωνὴν αὐτοῦ ἀκούεις.\n" * 200
    (elsewhere / "ἑλληνικά.txt").write_text(text, encoding="utf8")
    sizes = "--d_model 12 --head 3 --layer 1 --max_length 8 --windows 4 --score random --device cpu --quiet".split()
    own = "--text ἑλληνικά.txt --folder runs/ἕν --steps 3 --batch 2 --warmup 1 --evaluate_every 3 --sample 9".split()
    status, said = run(elsewhere, "-m", "synth_lib.lab", "train", *own, *sizes)
    assert status == 0 and r"\u" in said, said
    record = json.loads((elsewhere / "runs" / "ἕν" / "record.json").read_text(encoding="utf8"))
    assert record["results"]


# --- a folder in which nobody may write ---


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc, in which nobody may write")
@pytest.mark.parametrize(
    ("main", "options"),
    [(assignment.main, ["--chapters", "02", "--out", "/proc/mine"]), (build.main, ["--out", "/proc/mine/site"])],
    ids=["assignment", "book"],
)
def test_what_cannot_be_written_is_one_sentence(monkeypatch, capsys, main, options):
    monkeypatch.setattr(sys, "argv", ["the command", *options])
    assert main() != 0
    (said,) = capsys.readouterr().err.splitlines()
    assert "/proc/mine" in said and "cannot be written (No such file or directory): " in said


def test_notebooks_that_cannot_be_written_are_not_run(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["the command", "00_start_here"])
    monkeypatch.setattr(build_notebooks.os, "access", lambda path, mode: False)
    with pytest.raises(SystemExit):
        build_notebooks.main()
    assert capsys.readouterr().err.splitlines()[-1].endswith(": copy the repository into a folder of yours")


def test_an_option_that_the_tests_do_not_know_starts_nothing(elsewhere):
    status, said = run(elsewhere, "tools/test.py", "--al1")
    assert status == 2 and "== lint" not in said and "--al1" in said
