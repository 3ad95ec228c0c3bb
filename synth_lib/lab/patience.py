"""Cells that work for long: a bar with the time left while they do, one sentence after Interrupt, nothing done lost.

    losses = each(seeds, train_one, unit="run")      # {seed: train_one(seed)}

Stop the cell, run it again, and it goes on with the seeds that are missing.
"""

import sys
from contextlib import contextmanager
from types import CodeType, FunctionType

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import clear_output
from tqdm import tqdm

FORM = "{percentage:3.0f} % |{bar:30}| {n_fmt} of {total_fmt} {unit}s, time left {remaining}"
_begun = []  # (what work reads, results so far) of each call of `each` that has not ended


class Stopped(KeyboardInterrupt):
    """An interrupt of which a notebook shows its sentence alone, without the lines of code that led there."""

    def _render_traceback_(self):  # IPython asks for it; the name is its own
        return [str(self)]


@contextmanager
def bar(total, unit, *, done=0, kept="Nothing is kept: run this cell again, and it begins anew."):
    """A progress bar with the time left. At its end it goes away, with all that the cell has printed before.

    Where the environment says TQDM_DISABLE=1 there is none.

    Args:
        total, unit: how many of what there are to do. done: how many of them are done already.
        kept: what the reader sees behind "Stopped." after an interrupt: a text, or a function that gives it.

    Raises:
        Stopped: the reader has interrupted.
    """
    shown = None
    try:
        # In a notebook what goes to the error stream stands on red.
        shown = tqdm(total=total, initial=done, unit=unit, leave=False, file=sys.stdout, bar_format=FORM)
        yield shown
    except KeyboardInterrupt:
        raise Stopped(f"Stopped. {kept() if callable(kept) else kept}") from None
    finally:
        if shown is not None and not shown.disable:
            shown.close()
            if InteractiveShell.initialized():
                clear_output()  # else an empty line stays where the bar was


def each(items, work, *, unit="run"):
    """{item: work(item)} for each of `items`, under a bar with the time left.

    What was done before an interrupt is kept: the next call of the same work goes on from there. The same work: its
    code is the same, and all that it reads, by way of other functions of its module too. A number, a text, or a list
    of them is the same if it says the same; any other object if it is this very one. Work that ended begins anew.

    Args:
        items: they can be names in a dictionary, and none comes twice.
        work: a function of one item. What it draws or changes does not hang on the items before it; or it is a step,
            which goes on from what the steps before have left in models and generators that a cell above has made.

    Raises:
        ValueError: an item comes twice.
        Stopped: the reader has interrupted. The item in work is lost, and no other.
    """
    items = list(items)
    if len(set(items)) < len(items):
        raise ValueError(f"{len(items)} items, but only {len(set(items))} different ones: each comes once")
    reads = _read_by(work)
    before = [results for other, results in _begun if _same(other, reads)]
    results = before[0] if before else {}
    if not before:
        _begun.append((reads, results))

    def kept():
        done = sum(item in results for item in items)
        return f"{done} of {len(items)} {unit}s are done and kept: run this cell again, and it goes on with the next."

    missing = [item for item in items if item not in results]
    try:
        with bar(len(items), unit, done=len(items) - len(missing), kept=kept) as shown:
            for item in missing:
                results[item] = work(item)
                shown.update()
    except Exception:  # the work itself is wrong
        _forget(results)
        raise
    _forget(results)
    return {item: results[item] for item in items}


def _forget(results):
    _begun[:] = [entry for entry in _begun if entry[1] is not results]


def _read_by(function):
    """All that the results of a function hang on: {(function, name): code, a text for what is plain, or the object}."""
    if not isinstance(function, FunctionType):  # a class, a method, something compiled: it is the same or not
        return {"work": function}
    found, waiting = {}, [(function.__qualname__, function)]
    while waiting:
        place, function = waiting.pop()
        codes = list(_codes(function.__code__))
        constants = [one for code in codes for one in code.co_consts if not isinstance(one, CodeType)]
        found[place, "code"] = repr([[(code.co_code, code.co_names) for code in codes], constants])
        names = {name for code in codes for name in code.co_names}
        values = {name: function.__globals__[name] for name in names if name in function.__globals__}
        around = [cell.cell_contents for cell in function.__closure__ or ()]
        values |= dict(zip(function.__code__.co_freevars, around, strict=True))
        values |= {"defaults": function.__defaults__, "more defaults": function.__kwdefaults__}
        for name, value in values.items():
            of_same_module = isinstance(value, FunctionType) and value.__globals__ is function.__globals__
            if of_same_module and (name, "code") not in found:
                waiting.append((name, value))
            elif not of_same_module:
                found[place, name] = repr(value) if _plain(value) else value
    return found


def _codes(code):
    """The code of a function, and of each function, loop or lambda inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _plain(value):
    if isinstance(value, dict):
        return _plain(list(value)) and _plain(list(value.values()))
    if isinstance(value, (list, tuple, set)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (int, float, str))


def _same(before, now):
    return before.keys() == now.keys() and all(
        old is now[name] or (isinstance(old, str) and old == now[name]) for name, old in before.items()
    )
