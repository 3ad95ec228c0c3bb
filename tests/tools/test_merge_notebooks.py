"""The notebook that nbval runs in place of two holds all of both, and each answer stands where its checks see it."""

import nbformat
import pytest
from nbformat import v4

from tools.build_notebooks import NOTEBOOKS, build, execute
from tools.merge_notebooks import compared, merge

SOURCE = """\
# %% [markdown]
# # 02 A chapter

# %%
runs = []
def check(key, answer):
    runs.append(key)
    try:
        print(key, "is", answer(2))
    except NotImplementedError:
        print(key, "is not answered")

# %% exercise="02.1"
def double(x):
    ### BEGIN SOLUTION
    return x + x
    ### END SOLUTION

# %% check="02.1"
check("02.1", double)

# %% solution="02.1"
check("another way", lambda x: 2 * x)

# %% exercise="02.2"
def triple(x):
    ### BEGIN SOLUTION
    return 3 * x
    ### END SOLUTION

# %% check="02.2"
check("02.2", triple)

# %%
check("both", lambda x: double(x) + triple(x))

# %%
print("a long lesson")
"""


def contains(many, few):
    """Whether `few` stand in `many`, in this order."""
    rest = iter(many)
    return all(cell in rest for cell in few)


def test_a_merged_notebook_gives_what_both_store(tmp_path):
    path = tmp_path / "02_small.py"
    path.write_text(SOURCE, encoding="utf8")
    blank, solved = (execute(build(path, solved), tmp_path) for solved in (False, True))
    merged = merge(blank, solved)
    ran = execute(merged, tmp_path)
    assert [compared(cell) for cell in ran.cells] == [compared(cell) for cell in merged.cells]
    for one in (blank, solved):
        assert contains(map(compared, merged.cells), map(compared, one.cells))
    sources = [cell.source for cell in merged.cells]
    assert sources.count('print("a long lesson")') == 1
    assert sources.count('check("both", lambda x: double(x) + triple(x))') == 2


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: f"chapter_{path.stem}")
def test_a_merged_chapter_holds_every_cell_of_both(path):
    both = [nbformat.read(one, nbformat.NO_CONVERT) for one in (path, path.parent / "solutions" / path.name)]
    merged = merge(*both)
    assert all(contains(map(compared, merged.cells), map(compared, one.cells)) for one in both)
    assert all(cell.execution_count for cell in merged.cells if cell.cell_type == "code")


def test_what_nbval_compares():
    cell = v4.new_code_cell("x", outputs=[v4.new_output("stream", text="1")])
    other = v4.new_code_cell("x", outputs=[v4.new_output("stream", text="2")])
    assert compared(cell) != compared(other)
    for some in (cell, other):
        some.metadata["tags"] = ["nbval-ignore-output"]
    assert compared(cell) == compared(other)
