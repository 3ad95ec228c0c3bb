"""The guide for teachers: its exercise is added as it says, and then checked, built and graded."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.classroom import course as courses
from tools.classroom import sandbox

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "teaching.md").read_text(encoding="utf8")
COURSE = courses.read()
HEADINGS = {"02": ("RESULT", "EQUATIONS"), "03": ("STILL", "EQUATION"), list(COURSE.chapters)[-1]: ("COUNTS", "ORDER")}
# The next number of each chapter; the guide's own may be taken.
NUMBERS = {number: f"{number}.{len(COURSE.chapters[number].points) + 1}" for number in HEADINGS}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A copy of the repository to which the exercise of the guide is added."""
    folder = tmp_path_factory.mktemp("guide")
    for name in ("synth_lib", "tools", "tests", "data"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "notebooks" / "src", folder / "notebooks" / "src")
    for name in ("classroom.toml", "pyproject.toml", "constraints.txt", "conftest.py"):
        shutil.copy(ROOT / name, folder)
    for chapter, (first, second) in HEADINGS.items():
        guide = GUIDE.replace("02.7", NUMBERS[chapter]).replace("RESULT: {", f"{first}: {{")
        guide = guide.replace("EQUATIONS: {", f"{second}: {{").replace("chapter_02", f"chapter_{chapter}")
        source, bank, points = re.findall(r"```(?:python|toml)\n(.*?)```", guide, flags=re.S)
        for path, text in (
            (COURSE.chapters[chapter].path.relative_to(ROOT), source),
            (f"synth_lib/checks/bank/chapter_{chapter}.py", bank),
        ):
            with open(folder / path, "a", encoding="utf8") as file:
                file.write("\n" + text)
        toml = folder / "classroom.toml"
        text = toml.read_text(encoding="utf8").replace(f"[{chapter}]\n", f"[{chapter}]\n{points}")
        toml.write_text(text, encoding="utf8")
    return folder


def run(folder, *command):
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_exercise_of_the_guide_passes_the_checks_of_the_checks(repository):
    """As step 4 of the guide says it, in chapter 02, and the new one in a middle and in the last chapter.

    One of these tests grades the chapter: with its solutions, and blank. What is asked of each of its other exercises
    alone, no copy needs to be asked again.
    """
    others = " or ".join(COURSE.chapters["02"].points)
    chosen = " or ".join([f"(chapter_02 and not ({others}))", *NUMBERS.values(), "classroom_toml"])
    files = ["tests/checks/test_bank.py", "tests/tools/classroom/test_classroom.py"]
    said = run(repository, "-m", "pytest", "-v", "-p", "no:cacheprovider", *files, "-k", chosen)
    assert "passed" in said and "-k chapter_02" in GUIDE
    assert sandbox.missing() or "test_solutions_get_full_marks_and_blanks_none[chapter_02] PASSED" in said


def test_the_guide_is_one_page_and_its_commands_exist():
    prose = re.sub(r"```.*?```", "", GUIDE, flags=re.S)
    assert len(prose.split()) < 1020  # a container and what stays open included
    verbs = set(re.findall(r"make (\w+)", prose))
    makefile = (ROOT / "Makefile").read_text(encoding="utf8")
    assert verbs and all(re.search(rf"^{verb}:", makefile, flags=re.M) for verb in verbs)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert (ROOT / "docs" / target).exists(), target
