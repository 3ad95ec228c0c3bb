"""The environment check of chapter 00 finds what it should find, and the chapter says what is so."""

import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

from synth_lib.checks import find
from synth_lib.checks.bank.chapter_00 import EXERCISES
from synth_lib.text import corpora as data

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (ROOT / "notebooks" / "src" / "00_start_here.py").read_text(encoding="utf8")
CELLS = re.split(r"^# %%", SOURCE, flags=re.M)
PROSE = "\n".join(cell for cell in CELLS if cell.startswith(" [markdown]"))


@pytest.fixture
def chapter():
    """The functions of the environment check, run as the notebook runs them."""
    names = {}
    for cell in CELLS:
        if "def package_line" in cell or "def library_line" in cell:
            exec(cell.partition("\n")[2], names)
    return types.SimpleNamespace(**names)


def package(monkeypatch, version):
    """Pretend that a package of this version is installed."""
    stand_in = types.ModuleType("stand_in")
    stand_in.__version__ = version
    monkeypatch.setitem(sys.modules, "stand_in", stand_in)
    return "stand_in"


def test_the_lower_bounds_are_those_of_the_package(chapter):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    bounds = dict(requirement.split(">=") for requirement in project["dependencies"])
    assert {name.lower(): version for name, version in chapter.NEEDED.items()} == bounds
    assert f">={chapter.PYTHON}" == project["requires-python"]


@pytest.mark.parametrize("version", ["2.6", "2.6.0", "2.13.0+cpu", "3.0", "2.10.0a0+git1"])
def test_a_package_that_is_new_enough_is_ok(chapter, monkeypatch, version):
    name = package(monkeypatch, version)
    assert chapter.package_line(name, "2.6") == "ok    stand_in"


@pytest.mark.parametrize("version", ["2.5.1", "1.13.0", "0.9"])
def test_a_package_that_is_too_old_is_named_with_what_to_do(chapter, monkeypatch, version):
    line = chapter.package_line(package(monkeypatch, version), "2.6")
    assert line.startswith(f"FIX   stand_in is {version}, too old: ")
    assert 'pip install "stand_in>=2.6"' in line


def test_a_package_that_is_missing_or_broken_is_named_with_what_to_do(chapter, monkeypatch):
    monkeypatch.setitem(sys.modules, "einops", None)  # an import of it fails
    line = chapter.package_line("einops", "0.8")
    assert line.startswith("FIX   einops cannot be imported")
    assert 'pip install "einops>=0.8"' in line


def test_python_is_compared_by_number(chapter):
    assert chapter.python_line("3.11.7 (main)") == chapter.python_line("3.14.0 (main)") == "ok    Python"
    assert chapter.python_line("3.9.2 (main)").startswith("FIX   Python is 3.9.2, but must be 3.11 or newer")


def test_a_library_that_is_missing_is_named(chapter, monkeypatch):
    assert chapter.library_line() == "ok    synth_lib"
    monkeypatch.setitem(sys.modules, "synth_lib.attention", None)
    assert chapter.library_line().startswith("FIX   synth_lib cannot be imported")


def test_a_text_that_is_missing_or_damaged_is_named(chapter, monkeypatch, tmp_path):
    assert chapter.data_line() == "ok    data"
    load_text = data.load_text
    monkeypatch.setattr(data, "load_text", lambda split: load_text(split, tmp_path))
    assert chapter.data_line().startswith("FIX   data: cannot read")
    for path in data.DATA.glob("*.xz"):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:1000])
    assert re.match("FIX   data: .* is damaged", chapter.data_line())


def test_a_device_that_does_not_compute_is_named(chapter, monkeypatch):
    assert chapter.device_line() == "ok    device"
    monkeypatch.setitem(chapter.device_line.__globals__, "find_device", lambda: "no_such_device")
    assert chapter.device_line().startswith("FIX   device: it does not compute")


def test_a_missing_torch_is_no_crash(chapter, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert chapter.device_line().startswith("FIX   device")
    assert chapter.package_line("torch", "2.6").startswith("FIX   torch")


def test_a_link_leads_to_a_chapter_that_exists():
    for target in re.findall(r"\]\((\w+)\.ipynb\)", PROSE):
        assert (ROOT / "notebooks" / "src" / f"{target}.py").exists(), f"{target} does not exist"


def test_a_section_to_read_again_exists():
    headings = re.findall(r"^# #+ (.+)$", SOURCE, flags=re.M)
    for exercise in EXERCISES:
        assert {mistake.section for mistake in exercise.wrong} <= set(headings)


def test_the_minutes_of_an_exercise_are_those_it_says():
    for key in ("00.1", "00.2"):
        exercise = find(key)
        assert f"### Exercise {key}: {exercise.title}\n" in SOURCE
        assert f"# *{exercise.minutes} minutes, {exercise.level}.*" in SOURCE


def test_the_minutes_of_the_chapter_are_its_words_and_exercises():
    """150 words a minute, and half a minute for each code cell."""
    reading = len(re.findall(r"\w[\w'-]*", PROSE)) / 150
    cells = len(CELLS) - 1 - PROSE.count(" [markdown]")
    total = reading + cells / 2 + sum(exercise.minutes for exercise in EXERCISES)
    said = int(re.search(r"about (\d+) minutes", SOURCE).group(1))
    assert abs(total - said) <= 5, f"the chapter says {said} minutes, it is {total:.0f}"
    assert f"{sum(exercise.minutes for exercise in EXERCISES)} of them for the two exercises" in SOURCE
