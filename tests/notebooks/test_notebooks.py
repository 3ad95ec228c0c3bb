"""Every stored notebook agrees with its source and keeps the rules of notebook_rules.py."""

from functools import cache

import nbformat
import pytest

from tests.helpers.notebook_rules import RULES, rule_blank
from tools.build_notebooks import NOTEBOOKS, build, contents, targets

SOURCES = sorted((NOTEBOOKS / "src").glob("*.py"))
STORED = [
    pytest.param(path, solved, id=f"chapter_{path.stem}-{'solved' if solved else 'blank'}")
    for path in SOURCES
    for solved in (False, True)
]


@cache
def read(path, solved):
    notebook = nbformat.read(targets(path)[solved], as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    return notebook


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


def test_every_notebook_has_a_source():
    stored = {*NOTEBOOKS.glob("*.ipynb"), *NOTEBOOKS.glob("solutions/*.ipynb")}
    assert stored == {place for path in SOURCES for place in targets(path).values()}
