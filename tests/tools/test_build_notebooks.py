"""The build: what it makes of a small source, and what it refuses."""

import base64
from io import BytesIO

import nbformat
import pytest
from matplotlib.colors import to_rgb
from nbconvert import PythonExporter
from nbformat import v4
from PIL import Image

from synth_lib import plots
from tests.helpers.notebook_rules import rule_sharp_figures
from tools import build_notebooks
from tools.build_notebooks import (
    FOLDED,
    SourceError,
    build,
    build_chapter,
    cut_solution,
    execute,
    notebook_metadata,
    read_source,
    targets,
)

SOURCE = '''\
# %% [markdown]
# # 02 A chapter

# %%
import sys
print("hello", 1 + 1)
def check(key, answer):
    print("checked", key)

# %% exercise="02.1" points=3
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    y = x + x
    return y
    ### END SOLUTION

# %% check="02.1"
check("02.1", double)

# %%
# Output varies: the process has another number each time.
import os
os.getpid()
'''


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "src" / "02_small.py"
    path.parent.mkdir()
    path.write_text(SOURCE, encoding="utf8")
    return path


def test_both_notebooks_are_executed_and_written(source, tmp_path):
    assert build_chapter(source, tmp_path) == "02_small: built"
    for place in targets(source, tmp_path).values():
        notebook = nbformat.read(place, as_version=nbformat.NO_CONVERT)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == [1, 2, 3, 4, 5]
        assert code[1].outputs[0].text == "hello 2\n"
        assert set(notebook.metadata) == {"kernelspec", "language_info"}
        assert PythonExporter().from_notebook_node(notebook)[1]["output_extension"] == ".py"
        assert not any("execution" in cell.metadata for cell in notebook.cells)
    assert not list(tmp_path.rglob("*.partial"))


def test_figures_are_stored_sharp_and_small_in_the_same_colours(tmp_path):
    draw = """
import matplotlib.pyplot as plt
from synth_lib import plots
fig, axes = plt.subplots(figsize=(7, 3))
axes.bar(range(7), [1] * 7, color=plots.COLOURS, width=1)
plots.show(fig, "Seven bars, a colour each.")
"""
    notebook = execute(v4.new_notebook(cells=[v4.new_code_cell(draw)], metadata=notebook_metadata()), tmp_path)
    [output, caption] = notebook.cells[0].outputs
    picture = Image.open(BytesIO(base64.b64decode(output.data["image/png"])))
    assert rule_sharp_figures(notebook, "") == [] and picture.width > 1000
    assert picture.mode == "P" and len(output.data["image/png"]) < 12_000
    found = [colour for number, colour in picture.convert("RGB").getcolors() if number > 10_000]
    for colour in plots.COLOURS:
        wanted = [int(255 * part + 0.5) for part in to_rgb(colour)]
        assert any(max(abs(a - b) for a, b in zip(one, wanted, strict=True)) < 6 for one in found), colour


def test_an_unchanged_chapter_is_left_alone(source, tmp_path):
    build_chapter(source, tmp_path)
    before = {place: place.stat().st_mtime_ns for place in targets(source, tmp_path).values()}
    assert build_chapter(source, tmp_path, always=False) == "02_small: unchanged"
    assert before == {place: place.stat().st_mtime_ns for place in before}
    source.write_text(SOURCE.replace("hello", "good morning"), encoding="utf8")
    assert build_chapter(source, tmp_path, always=False) == "02_small: built"


def test_two_builds_are_byte_identical(source):
    first, second = (execute(build(source, True), source.parent) for _ in range(2))
    varying = [cell for cell in first.cells + second.cells if "nbval-ignore-output" in cell.metadata.get("tags", [])]
    for cell in varying:
        cell.outputs = []
    assert len(varying) == 2 and nbformat.writes(first) == nbformat.writes(second)


def test_a_failing_cell_leaves_both_notebooks_as_they_were(source, tmp_path):
    build_chapter(source, tmp_path)
    before = {place: place.read_bytes() for place in targets(source, tmp_path).values()}
    # This source only fails when solved, after the blank one has run.
    source.write_text(SOURCE.replace("    return y\n", "    return y\ndouble.missing\n"), encoding="utf8")
    with pytest.raises(SourceError, match="02_small.py, solved: a cell fails"):
        build_chapter(source, tmp_path)
    assert before == {place: place.read_bytes() for place in before}


def test_ids_are_unique_stable_and_the_same_in_both(source):
    blank, solved = build(source, False), build(source, True)
    ids = [cell.id for cell in solved.cells]
    assert ids == [cell.id for cell in blank.cells] and len(set(ids)) == len(ids)
    source.write_text(SOURCE.replace("hello", "good morning"), encoding="utf8")
    changed = [old != new.id for old, new in zip(ids, build(source, True).cells, strict=True)]
    assert changed == [False, False, True, False, False, False]


def test_solutions_are_cut_with_their_indentation():
    body = "        ### BEGIN SOLUTION\n        return 1\n        ### END SOLUTION\n"
    nested = f"class A:\n    def f(self):\n{body}    x = 2"
    assert cut_solution(nested) == "class A:\n    def f(self):\n        raise NotImplementedError\n    x = 2"


def test_metadata_of_the_exercises(source):
    _, setup, lesson, exercise, check, varies = build(source, False).cells
    assert setup.metadata == FOLDED
    assert lesson.metadata == {}
    assert exercise.metadata.nbgrader.solution and not exercise.metadata.nbgrader.grade
    assert check.metadata.nbgrader.locked and check.metadata.nbgrader.points == 3
    assert varies.metadata == {"tags": ["nbval-ignore-output"]}


def test_the_badge_comes_with_the_address(source):
    without = build(source, False, repository="")
    assert len(without.cells) == 6 and "colab" not in without.cells[1].source
    badge, setup = build(source, True, repository="https://github.com/owner/name", ref="v1").cells[1:3]
    address = "https://colab.research.google.com/github/owner/name/blob/v1/notebooks/solutions/02_small.ipynb"
    assert badge.source == f"[Open this chapter in Colab]({address})"
    assert '"https://github.com/owner/name"' in setup.source and '"v1"' in setup.source


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# %% [markdown]\n# # 02 A chapter\n", "# %%\n1\n", "the first cell is not a markdown title"),
        ("points=3", 'level="easy"', "a marker line says level"),
        ("# %%\nimport sys", "# %% set-up\nimport sys", "a marker line says title"),
        ("    ### END SOLUTION\n", "", "one line `### BEGIN SOLUTION`"),
        ("    ### BEGIN SOLUTION\n", "", "one line `### BEGIN SOLUTION`"),
        ("### BEGIN SOLUTION", "### BEGIN SOLUTION here", "one line `### BEGIN SOLUTION`"),
        ("### BEGIN SOLUTION", "### begin solution", "one line `### BEGIN SOLUTION`"),
        ('# %% exercise="02.1" points=3', "# %%", "Solution marks stand outside"),
        ('exercise="02.1"', "exercise=2.1", "is a text such as"),
        ("points=3", "points=0", "a whole number of at least 1"),
        ("points=3", 'points="many"', "a whole number of at least 1"),
        ('# %% exercise="02.1" points=3', '# %% [markdown] exercise="02.1"', "is a code cell"),
        ('check("02.1", double)', "double = abs\ncheck('02.1', double)", "A check cell is one line"),
    ],
)
def test_what_a_source_may_not_say(source, old, new, message):
    assert old in SOURCE
    source.write_text(SOURCE.replace(old, new), encoding="utf8")
    with pytest.raises(SourceError, match=message):
        read_source(source)


def test_an_unknown_chapter_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["build_notebooks.py", "99_nowhere"])
    with pytest.raises(SystemExit):
        build_notebooks.main()
    assert "notebooks/src has no 99_nowhere.py" in capsys.readouterr().err


def test_blank_cells_equal_the_release_of_nbgrader(source):
    preprocessors = pytest.importorskip("nbgrader.preprocessors", reason="nbgrader is an optional extra")
    clear = preprocessors.ClearSolutions(code_stub={"python": build_notebooks.STUB})
    check = preprocessors.CheckCellMetadata()
    released, resources = build(source, True), {}
    for step in (clear, check):
        released, resources = step.preprocess(released, resources)
    assert released.cells == build(source, False).cells


SOLVED_ALONE = """
# %% [markdown] solution="02.1"
# Why it works.

# %% solution="02.1"
check("02.1", lambda x: 2 * x)

# %% fold=true
# @title The same, checked
assert double is not None

# %% fold=true
# @title How long it takes
# Output varies: it is a time.
print(1)
"""


def test_a_solution_cell_is_in_the_solved_notebook_alone_and_a_folded_one_is_folded_everywhere(source):
    source.write_text(SOURCE + SOLVED_ALONE, encoding="utf8")
    blank, solved = build(source, False), build(source, True)
    assert [cell.metadata for cell in solved.cells[6:8]] == [{"solution": "02.1"}] * 2
    assert [cell.id for cell in blank.cells] == [cell.id for cell in solved.cells if "solution" not in cell.metadata]
    checked, varies = blank.cells[-2:]
    assert checked.metadata == FOLDED
    assert varies.metadata == FOLDED | {"tags": ["hide-input", "nbval-ignore-output"]}


@pytest.mark.parametrize(
    "marker, message",
    [
        ("fold=1", "A folded cell has fold=true"),
        ("[markdown] fold=true", "A folded cell has fold=true"),
        ("fold=true", "its first line is `# @title"),
        ("solution=2.1", "The number of an exercise is a text"),
        ('check="02.9" solution="02.1"', "is no exercise and no check"),
    ],
)
def test_wrong_markers_of_folds_and_solutions_are_refused(source, marker, message):
    source.write_text(f"{SOURCE}\n# %% {marker}\n# text\n", encoding="utf8")
    with pytest.raises(SourceError, match=message):
        read_source(source)


def test_a_link_out_of_the_folder_leads_to_the_same_file_from_both_notebooks(source):
    source.write_text(SOURCE + "\n# %% [markdown]\n# The [map](../docs/map.md).\n", encoding="utf8")
    blank, solved = build(source, False), build(source, True)
    assert blank.cells[-1].source == "The [map](../docs/map.md)."
    assert solved.cells[-1].source == "The [map](../../docs/map.md)." and solved.cells[-1].id == blank.cells[-1].id
