"""The same files under nbgrader, with its own commands: generate, autograde, feedback. An optional extra."""

import csv
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools.build_notebooks import build
from tools.classroom import assignment
from tools.classroom import course as courses

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nbgrader") is None,
    reason="nbgrader is an optional extra: pip install -c constraints.txt -e '.[nbgrader]'",
)
COURSE = courses.read(["02"])
CHAPTER = COURSE.chapters["02"]
NAME = CHAPTER.path.stem


def nbgrader(folder, *command):
    """One command of nbgrader, in a course folder, with nothing from the user's own settings."""
    import nbconvert

    shared = [Path(sys.prefix, "share", "jupyter"), Path(nbconvert.__file__).parents[4] / "share" / "jupyter"]
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home), "JUPYTER_PATH": os.pathsep.join(map(str, shared))}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def cells(path):
    """What a cell is, and what nbgrader knows of it, but for what it notes for itself."""
    own = ("checksum", "cell_type")
    return [
        (cell.cell_type, cell.id, cell.source, [(k, v) for k, v in sorted(known.items()) if k not in own])
        for cell in nbformat.read(path, as_version=nbformat.NO_CONVERT).cells
        for known in [cell.metadata.get("nbgrader", {})]
    ]


def test_generate_autograde_and_feedback(tmp_path):
    course, plain = tmp_path / "course", tmp_path / "plain"
    assignment.write_nbgrader(COURSE, course)
    assignment.write(COURSE, plain)
    nbgrader(course, "generate_assignment", NAME)
    released = course / "release" / NAME / f"{NAME}.ipynb"
    assert cells(released) == cells(plain / f"{NAME}.ipynb")

    solved = build(CHAPTER.path, True)
    half = nbformat.from_dict(build(CHAPTER.path, False))
    own = {cell.metadata.get("exercise"): cell.source for cell in solved.cells}
    for cell in half.cells:
        if cell.metadata.get("exercise") in ("02.1", "02.4"):
            cell.source = own[cell.metadata.exercise]
    for student in ("right", "half", "blank"):
        (course / "submitted" / student / NAME).mkdir(parents=True)
    nbformat.write(solved, course / "submitted" / "right" / NAME / f"{NAME}.ipynb")
    nbformat.write(half, course / "submitted" / "half" / NAME / f"{NAME}.ipynb")
    shutil.copy(plain / f"{NAME}.ipynb", course / "submitted" / "blank" / NAME)  # as we hand it out

    nbgrader(course, "autograde", NAME)
    nbgrader(course, "generate_feedback", NAME)
    nbgrader(course, "export")
    with open(course / "grades.csv", encoding="utf8") as file:
        scores = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(file)}
    most = sum(CHAPTER.points.values())
    some = CHAPTER.points["02.1"] + CHAPTER.points["02.4"]
    assert scores == {"right": (most, most), "half": (some, most), "blank": (0, most)}
    for student in scores:
        page = (course / "feedback" / student / NAME / f"{NAME}.html").read_text(encoding="utf8")
        assert student == "right" or "Not answered yet" in page
