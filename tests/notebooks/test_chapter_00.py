"""The environment check of chapter 00 finds what it should find, and the chapter says what is so."""

import re
import sys
import tomllib
import types
from pathlib import Path

import jupytext
import matplotlib.pyplot as plt
import pytest
import torch

from synth_lib import plots
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


def test_a_link_leads_to_what_exists():
    headings = [heading.replace(" ", "-") for heading in re.findall(r"^# #+ (.+)$", SOURCE, flags=re.M)]
    for target in re.findall(r"\]\(([^)]+)\)", PROSE):
        path = target.removeprefix("../") if target.startswith("../") else f"notebooks/src/{target}"
        exists = target[1:] in headings if target[0] == "#" else (ROOT / path.replace(".ipynb", ".py")).exists()
        assert exists, f"{target} does not exist"


def test_a_section_to_read_again_exists():
    headings = re.findall(r"^# #+ (.+)$", SOURCE, flags=re.M)
    for exercise in EXERCISES:
        assert {mistake.section for mistake in exercise.wrong} <= set(headings)


def test_the_minutes_of_an_exercise_are_those_it_says():
    for exercise in EXERCISES:
        kind = "Stretch" if exercise.key == "00.3" else "Exercise"
        assert f"### {kind} {exercise.key}: {exercise.title}\n" in SOURCE
        assert f"# *{exercise.minutes} minutes, {exercise.level}.*" in SOURCE


def lesson_cells():
    """The cells of the blank notebook, without those of the exercises."""
    cells = jupytext.reads(SOURCE, fmt="py:percent").cells
    return [cell for cell in cells if not {"solution", "exercise", "check"} & set(cell.metadata)]


# --- the taste ---


@pytest.fixture(scope="module")
def taste():
    """What the cells of the first sections and of the taste define: none between them is needed."""
    section, names = "", {}
    plain, plots.show = plots.show, lambda fig, alt: plt.close(fig)
    try:
        for cell in lesson_cells():
            if cell.cell_type == "markdown":
                section = (re.findall(r"^## (.+)$", cell.source, flags=re.M) or [section])[-1]
            elif section.startswith(("The one idea", "What the series is about", "A taste")):
                exec(cell.source, names)
    finally:
        plots.show = plain
    return names


def test_the_taste_comes_out_as_the_chapter_tells(taste):
    assert taste["changed_rows"] == {"dot product": 6, "Dense": 1, "Random": 0}
    assert taste["shares"] == {"Dense": 1.0, "Random": 0.2}
    dense, random = taste["maps"]
    assert dense.diagonal().min() > 0.9 and dense[:, -1].max() == 0
    assert (random - random[0]).abs().max() == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_longer_training_and_other_seeds_do_not_turn_it_round(taste, seed):
    """Three times the steps. Random gives one answer to five questions; the dot product cannot tell places apart."""
    train, share = taste["train"], taste["share_right"]
    shares = {score: share(train(score, seed, 600)) for score in ("dense", "random", "dot_product")}
    assert shares["dense"] > 0.99
    assert 0.15 < shares["random"] <= 0.2 + 1e-6
    assert 0.15 < shares["dot_product"] < 0.25


@pytest.mark.parametrize("score", ["random", "dot_product"])
def test_who_cannot_tell_the_places_apart_cannot_by_any_parameters(taste, score):
    """Random answers all questions alike; to the dot product a sentence in another order is the same sentence."""
    model = taste["make_model"](score)
    tokens, _ = taste["ask"](taste["sentence"].repeat(5, 1), torch.arange(5)[:, None])
    numbers, _ = taste["run"](model, tokens)
    if score == "random":
        assert torch.allclose(numbers, numbers[:1].expand_as(numbers), atol=1e-6)
    else:
        turned, _ = taste["run"](model, torch.cat([tokens[:, :5].flip(1), tokens[:, 5:]], dim=1))
        assert torch.allclose(numbers, turned, atol=1e-5)
    able, _ = taste["run"](taste["make_model"]("dense"), tokens)
    assert not torch.allclose(able, able[:1].expand_as(able), atol=1e-3)
