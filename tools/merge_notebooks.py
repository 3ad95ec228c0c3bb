"""Write what the blank and the solved notebook of each chapter store as one notebook, for nbval.

    python tools/merge_notebooks.py build/notebooks

The two differ in exercises, checks and what depends on them. All other cells, the long ones too, then run once: they
use no reader's function (a rule of the notebooks), so they do the same in both.
"""

import copy
import shutil
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent


def compared(cell):
    """What nbval looks at: the source, and every output but pictures and those that vary."""
    if cell.cell_type != "code" or "nbval-ignore-output" in cell.metadata.get("tags", []):
        return cell.source
    outputs = copy.deepcopy(cell.outputs)
    for output in outputs:
        output.pop("execution_count", None)
        output.get("data", {}).pop("image/png", None)
    return cell.source, outputs


def merge(blank, solved):
    """One notebook with all cells of two; those that are the same in both stand there once.

    An exercise stands there blank, then solved. Another cell whose output differs (a check, the progress) stands behind
    all blank answers above it, and once more behind all solved ones. What the solved notebook alone has stays in place.
    """
    cells, answers = [], ([], [])
    rest = iter(blank.cells)
    for cell in solved.cells:
        if "solution" in cell.metadata:
            cells.append(cell)
            continue
        pair = next(rest), cell
        if compared(pair[0]) == compared(pair[1]):
            cells.append(pair[1])
        elif pair[0].source == pair[1].source:
            cells += [*answers[0], pair[0], *answers[1], pair[1]]
        else:
            cells += pair
            for version, cell in zip(answers, pair, strict=True):
                version.append(cell)
    if next(rest, None) is not None:
        raise ValueError("the blank notebook has more cells than the solved one: build both from one source")
    cells = [copy.deepcopy(cell) for cell in cells]  # one by one: an answer stands there several times
    for number, cell in enumerate(cells, start=1):
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.execution_count = number  # nbval does not compare a cell without one
    return nbformat.from_dict({**solved, "cells": cells})


def main(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        both = (nbformat.read(one, nbformat.NO_CONVERT) for one in (path, path.parent / "solutions" / path.name))
        nbformat.write(merge(*both), folder / path.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
