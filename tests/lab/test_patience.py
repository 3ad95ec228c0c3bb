"""Long cells: the work that is done survives an interrupt, and only where it is still the same work."""

import io
from collections import deque
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient
from nbformat import v4
from tqdm import tqdm

from synth_lib.lab import patience
from synth_lib.lab.patience import Stopped, each

CELL = """
def work(item):
    calls.append(item)
    if item in stops:
        stops.remove(item)
        raise KeyboardInterrupt
    return factor * scale(item)

results = each([1, 2, 3, 4], work)
"""
WATCHED = 'import os\nos.environ["TQDM_DISABLE"] = ""\nfrom synth_lib.lab.patience import each'
ABOVE = """
factor, offset, table, unread = 10, 0, object(), 5

def scale(item):
    return item + offset + bool(table) - 1
"""


class Notebook(dict):
    """Names that cells share: run(cell), and stop(cell, item), which interrupts it in the midst of an item."""

    def __init__(self):
        super().__init__(each=each, calls=deque(), stops=deque())
        self.run(ABOVE)

    def run(self, cell):
        self["calls"].clear()
        exec(cell, self)
        return list(self["calls"])

    def stop(self, cell, item):
        self["stops"].append(item)
        with pytest.raises(Stopped) as caught:
            self.run(cell)
        return str(caught.value)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(patience, "_begun", [])


def test_the_same_cell_goes_on_from_what_is_done():
    notebook = Notebook()
    sentence = notebook.stop(CELL, 3)
    assert sentence == "Stopped. 2 of 4 runs are done and kept: run this cell again, and it goes on with the next."
    assert notebook.stop(CELL, 4).startswith("Stopped. 3 of 4 runs")
    assert notebook.run(CELL) == [4] and notebook["results"] == {1: 10, 2: 20, 3: 30, 4: 40}
    assert notebook.run(CELL) == [1, 2, 3, 4], "what has ended begins anew"


@pytest.mark.parametrize(
    "change",
    [
        "factor = 20",
        "offset = 1",  # read by way of another function
        "table = object()",
        "def scale(item):\n    return 3 * item",
        "def scale(item, more=[7]):\n    return item + offset + bool(table) - 1",
    ],
)
def test_what_was_done_is_not_taken_for_other_work(change):
    notebook = Notebook()
    notebook.stop(CELL, 3)
    notebook.run(change)
    assert notebook.run(CELL) == [1, 2, 3, 4]


def test_another_cell_or_a_number_that_says_the_same_changes_nothing():
    notebook = Notebook()
    notebook.stop(CELL, 3)
    notebook.run("unread, factor, offset = 6, int('10'), 0")
    assert notebook.run(CELL) == [3, 4]
    notebook.stop(CELL, 3)
    assert notebook.run(CELL.replace("factor *", "2 * factor *")) == [1, 2, 3, 4]
    assert notebook["results"][4] == 80


def test_more_items_go_on_too_and_an_item_comes_once():
    notebook = Notebook()
    notebook.stop(CELL, 3)
    assert notebook.run(CELL.replace("3, 4]", "5]")) == [5] and list(notebook["results"]) == [1, 2, 5]
    with pytest.raises(ValueError, match="3 items, but only 2 different"):
        each([1, 2, 1], int)


def test_a_loop_inside_a_function_knows_what_it_closes_over():
    def cell(number, stop):
        def work(item):
            if item == stop:
                raise KeyboardInterrupt
            return item * number

        return each([1, 2], work)

    with pytest.raises(Stopped):
        cell(3, 2)
    assert cell(4, None) == {1: 4, 2: 8}


def test_an_error_is_no_interrupt():
    with pytest.raises(ZeroDivisionError):
        each([1, 0], lambda item: 1 / item)
    assert patience._begun == []


def test_a_notebook_shows_the_sentence_alone_and_skips_what_follows(capsys):
    shell = InteractiveShell()
    shell.run_cell("from synth_lib.lab.patience import each\ndef work(item):\n    raise KeyboardInterrupt")
    capsys.readouterr()
    result = shell.run_cell("each([1, 2], work)\nprint('reached')")
    assert isinstance(result.error_in_exec, Stopped)
    assert capsys.readouterr().out.strip() == str(result.error_in_exec)


def test_the_bar_has_the_time_left_and_goes_away(monkeypatch):
    monkeypatch.setattr(patience, "tqdm", partial(tqdm, mininterval=0, disable=False))
    with redirect_stdout(io.StringIO()) as shown, redirect_stderr(io.StringIO()) as errors:
        with patience.bar(5, "step", done=2) as bar:
            bar.last_print_t -= 1000  # so long took the third step
            bar.update()
    frames = shown.getvalue().split("\r")
    assert "2 of 5 steps, time left ?" in frames[1]
    assert any("60 % " in frame and "3 of 5 steps, time left 33:" in frame for frame in frames)
    assert frames[-2].strip() == "" and frames[-1] == "", "the last line is empty"
    assert errors.getvalue() == "", "it stands on red in a notebook"


def test_an_interrupt_before_the_first_step_loses_nothing(monkeypatch):
    def interrupted(**options):
        raise KeyboardInterrupt

    notebook = Notebook()
    notebook.stop(CELL, 3)
    with monkeypatch.context() as patch:
        patch.setattr(patience, "tqdm", interrupted)
        with pytest.raises(Stopped, match="2 of 4 runs are done and kept"):
            notebook.run(CELL)
    assert notebook.run(CELL) == [3, 4]


def test_a_notebook_stores_nothing_of_a_bar():
    notebook = v4.new_notebook(cells=[v4.new_code_cell(f"{WATCHED}\nprint(each([1, 2], str))")])
    NotebookClient(notebook, kernel_name="python3").execute()
    [output] = notebook.cells[0].outputs
    assert (output.name, output.text) == ("stdout", "{1: '1', 2: '2'}\n")


def test_no_bar_where_the_environment_says_so():
    with redirect_stdout(io.StringIO()) as shown, redirect_stderr(io.StringIO()) as errors:
        assert each([1], str) == {1: "1"}
    assert shown.getvalue() == errors.getvalue() == "", "conftest.py sets TQDM_DISABLE for nbval"
