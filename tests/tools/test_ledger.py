"""The ledger is true: what it says is taught stands in the chapter, and what it says proves it exists."""

import ast
import re
from collections import Counter
from functools import cache

import jupytext
import pytest

from synth_lib.checks import find
from tools.build_notebooks import NOTEBOOKS, ROOT
from tools.ledger import PAGE, between_marks, load, table

LEDGER = load()
COLUMNS = ("S(X)", "conditioned on", "sample", "interacts", "parameters")
EQUATIONS = tuple(f"({number})" for number in range(1, 10))
NEIGHBOURS = (
    "Sparse Transformer (arXiv 1904.10509)", "LSH, four kinds (arXiv 2006.05174)",
    "Routing Transformer (arXiv 2003.05997)",
)  # fmt: skip
WANTED = [*EQUATIONS, "dot product", *(f"Table 1, {column}" for column in COLUMNS), *NEIGHBOURS]
DEVIATIONS = [
    "biases", "W1 is split over the heads", "only the dot product is scaled", "R for each head", "initial scale of R",
    "initial scale of R1 and R2", "shared hidden layer", "tile and repeat", "alphas by a softmax", "(9) has no alphas",
    "output projection",
]  # fmt: skip
HEADING = re.compile(r"^(#{2,6}) (.+?)\s*$")



def name(entry):
    return f"chapter_{entry['chapter'][:2]}-{entry['name']}"


every_entry = pytest.mark.parametrize("entry", LEDGER["entries"], ids=name)
every_deviation = pytest.mark.parametrize("deviation", LEDGER["deviations"], ids=name)


@cache
def cells(chapter):
    return jupytext.read(NOTEBOOKS / "src" / f"{chapter}.py", fmt="py:percent").cells


def lines_of_section(chapter, section):
    """The lines below a heading, up to the next one that is not below it; code cells included."""
    found, depth = [], 0
    for cell in cells(chapter):
        for line in cell.source.split("\n"):
            heading = HEADING.match(line) if cell.cell_type == "markdown" else None
            if heading and depth and len(heading[1]) <= depth:
                return found
            if heading and heading[2] == section:
                depth = len(heading[1])
            elif depth:
                found.append(line)
    return found


def test_every_equation_and_column_is_there_once():
    assert Counter(entry["name"] for entry in LEDGER["entries"]) == Counter(WANTED)


def test_every_deviation_is_there_once():
    assert Counter(deviation["name"] for deviation in LEDGER["deviations"]) == Counter(DEVIATIONS)


@every_entry
def test_the_chapter_teaches_it(entry):
    assert entry["line"] in lines_of_section(entry["chapter"], entry["section"])


@every_entry
def test_an_equation_is_taught_under_its_number(entry):
    if entry["name"] in EQUATIONS:
        assert rf"\tag{{{entry['name'][1:-1]}}}" in entry["line"]


@every_entry
def test_something_proves_it(entry):
    assert entry["exercises"] or entry["tests"]
    for key in entry["exercises"]:
        assert find(key).key == key
    for test in entry["tests"]:
        file, function = test.split("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf8"))
        assert function in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], test


@every_deviation
def test_the_chapter_says_where_it_differs(deviation):
    text = "\n".join(cell.source for cell in cells(deviation["chapter"]) if cell.cell_type == "markdown")
    assert f"\n> {deviation['note']}" in text


@pytest.mark.parametrize("text", ["", "<!-- ledger -->", "<!-- /ledger --> <!-- ledger -->", "<!-- ledger -->" * 2])
def test_a_page_without_both_marks_is_refused(text):
    with pytest.raises(ValueError, match="The page must hold"):
        between_marks(text)


def test_the_page_shows_it():
    """python tools/ledger.py writes it."""
    _, inside, _ = between_marks(PAGE.read_text(encoding="utf8"))
    assert inside == table(LEDGER)
