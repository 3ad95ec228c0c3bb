"""Every stored notebook agrees with its source and keeps the rules of notebook_rules.py."""

import re
from functools import cache

import pytest
from nbformat import v4

from tests.helpers.notebook_rules import RULES, code_cells, rule_blank
from tools.build_notebooks import NOTEBOOKS, build, contents, targets

SOURCES = sorted((NOTEBOOKS / "src").glob("*.py"))
STORED = [
    pytest.param(path, solved, id=f"chapter_{path.stem}-{'solved' if solved else 'blank'}")
    for path in SOURCES
    for solved in (False, True)
]


@cache
def read(path, solved):
    return v4.reads(targets(path)[solved].read_text(encoding="utf8"))  # nbformat.read would mend it first


@pytest.mark.parametrize(("path", "solved"), STORED)
def test_notebook_has_the_cells_of_its_source(path, solved):
    built = build(path, solved)
    for stored, wanted in zip(contents(read(path, solved)), contents(built), strict=True):
        assert stored == wanted, f"run `make notebooks`: {path.name} says another cell than the notebook"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize(("path", "solved"), STORED)
def test_notebook_keeps_the_rule(path, solved, rule):
    assert rule(read(path, solved), path.stem) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"chapter_{path.stem}")
def test_blank_notebook_hides_the_solutions(path):
    assert rule_blank(read(path, False), read(path, True)) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"chapter_{path.stem}")
def test_a_chapter_says_the_minutes_that_reading_and_exercises_take(path):
    """115 words or 11 lines of unfolded code a minute, 30 seconds a figure, as new readers needed; the exercises, but
    not the stretch."""
    lesson = [cell for cell in build(path, False).cells if not {"exercise", "check"} & set(cell.metadata)]
    text = " ".join(cell.source for cell in lesson if cell.cell_type == "markdown")
    words = re.findall(r"\w[\w'-]*", re.sub(r"<details>.*?</details>", "", text, flags=re.S))
    code = [cell.source for cell in code_cells(v4.new_notebook(cells=lesson)) if "jupyter" not in cell.metadata]
    lines = sum(bool(line.strip()) for source in code for line in source.splitlines())
    figures = sum(source.count("plots.show(") for source in code)
    said, exercises = re.search(r"about (\d+) minutes(?:, (\d+) of them)?", text).groups("0")
    needed = len(words) / 115 + lines / 11 + figures / 2 + int(exercises)
    assert abs(needed - int(said)) <= max(5, 0.1 * int(said)), f"{path.name} says {said} minutes, it takes {needed:.0f}"


def test_every_notebook_has_a_source():
    stored = {*NOTEBOOKS.glob("*.ipynb"), *NOTEBOOKS.glob("solutions/*.ipynb")}
    assert stored == {place for path in SOURCES for place in targets(path).values()}
