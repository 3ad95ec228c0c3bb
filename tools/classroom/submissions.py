"""Find what students handed in, and read it whatever a tool has done to it.

A notebook is its cells' type and text, in order. Ids, metadata, outputs, the version of the format and the name of the
file play no part. Which chapter it is, is told by the names that its code defines.
"""

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple

LARGEST = 25 * 2**20  # unfolded, JSON can take 20 times as much
SUFFIXES = (".ipynb", ".ipynb.txt", ".ipynb.json", ".json")
SKIPPED = {".ipynb_checkpoints", "__MACOSX", "__pycache__", ".git"}


class Refused(ValueError):
    """A file that is not graded; the message says why, to student and teacher."""


class Cell(NamedTuple):
    """One cell: its number as people count, from 1; "code" or another type; its text."""

    number: int
    kind: str
    text: str

    def __str__(self):
        first = next((line.strip() for line in self.text.splitlines() if line.strip()), "(empty)")
        return f'cell {self.number} ("{first[:60]}")'


class Submission(NamedTuple):
    """What a student handed in: the paths of notebooks, and the names of all other files."""

    notebooks: list
    others: list


def find(folder, stems=()):
    """What was handed in: {student: Submission}. A student is a folder, or a file that lies in `folder` itself.

    Args:
        stems: the names of the chapters' files, such as "02_dense"; at the end of a file's name they name no student.
    """
    students = {}
    chapter = re.compile(rf"[ _-]*({'|'.join(map(re.escape, stems))})$" if stems else "(?!)")
    for entry in sorted(Path(folder).iterdir()):
        is_folder = entry.is_dir() and not entry.is_symlink()
        if entry.name in SKIPPED or (entry.name.startswith(".") and not is_folder):
            continue
        if is_folder:
            paths = [path for path in sorted(entry.rglob("*")) if not SKIPPED & set(path.relative_to(entry).parts)]
            paths = [path for path in paths if path.name[0] != "."]
            notebooks = [path for path in paths if path.name.lower().endswith(SUFFIXES)]
            others = [path.name for path in paths if path not in notebooks and not path.is_dir()]
            students[entry.name] = Submission(notebooks, others)
        else:
            stem = re.sub(r"(\.ipynb)?(\.\w+)$", "", entry.name)
            student = chapter.sub("", stem) or stem
            students.setdefault(student, Submission([], [])).notebooks.append(entry)
    return students


def read(path):
    """The cells of a notebook of any version.

    Raises:
        Refused: it cannot be read as one.
    """
    path = Path(path)
    if path.is_symlink() or not path.is_file():
        kind = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "a pipe or a device"
        raise Refused(f"it is {kind}, not a file")
    if not path.name.lower().endswith(SUFFIXES):
        raise Refused("it is no notebook (.ipynb); unpack archives first")
    size = path.stat().st_size
    if size > LARGEST:
        raise Refused(f"it has {size >> 20} MB, more than {LARGEST >> 20}: clear its outputs")
    if size == 0:
        raise Refused("it is empty")
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, MemoryError):
        if re.search(r"^<<<<<<< ", path.read_text(encoding="utf8", errors="replace"), flags=re.M):
            raise Refused("it holds a merge conflict of git (<<<<<<<): resolve it and hand it in again") from None
        raise Refused("it could not be read: was the upload cut off? Please hand it in again") from None
    try:
        sheets = [content] if "cells" in content else content["worksheets"]  # format 3 has sheets
        raw = [cell for sheet in sheets for cell in sheet["cells"]]
        cells = [Cell(n, str(cell.get("cell_type")), _text(cell)) for n, cell in enumerate(raw, 1)]
    except (TypeError, KeyError, AttributeError):
        raise Refused("it is JSON, but no notebook: it has no list of cells") from None
    if not cells:
        raise Refused("it has no cells")
    return cells


def _text(cell):
    text = cell.get("source", cell.get("input", ""))
    return text if isinstance(text, str) else "".join(map(str, text))


def definition(name):
    return re.compile(rf"^[ \t]*(?:async\s+def|def|class)\s+{re.escape(name)}\b|^{re.escape(name)}\s*=[^=]", re.M)


def recognise(cells, chapters, file=""):
    """The chapter of a notebook: the one most of whose exercises it defines.

    Raises:
        Refused: none, or two equally.
    """
    text = "\n".join(cell.text for cell in cells)
    title = next((cell.text for cell in cells if cell.text.startswith("# ")), "")
    votes = {}
    for number, chapter in chapters.items():
        defined = sum(bool(definition(name).search(text)) for name in chapter.names.values())
        checked = len(set(re.findall(rf'check\(\s*["\']({number}\.\d+)', text)))
        named = title.startswith(f"# {chapter.title[:4]}") + bool(re.search(rf"(?<!\d){number}_", file))
        votes[number] = (defined + checked, named)
    best = max(votes.values(), default=(0, 0))
    winners = [number for number, vote in votes.items() if vote == best]
    if best == (0, 0):
        raise Refused(f"it defines no exercise of chapter {', '.join(chapters)}")
    if len(winners) > 1:
        raise Refused(f"it could be chapter {' or '.join(winners)}; hand in one notebook for each")
    return winners[0]


def prepare(cells, names, transform, report):
    """What to run, as (number, text). Mends what tools break: cells cut in two, a definition in a cell of text.

    report: called with ("cell", number) before a cell is read, and with what becomes of it: ("note", sentence) if it
        was mended, ("unreadable", (number, why)) if it cannot run.
    """
    in_code = {name for name in names for cell in cells if cell.kind == "code" and definition(name).search(cell.text)}
    code, problems, runs = [], {}, {}
    for cell in cells:
        if cell.kind != "code" and not any(definition(name).search(cell.text) for name in set(names) - in_code):
            continue
        report("cell", cell.number)
        problems[cell] = problem(cell.text, transform)
        if not problems[cell] and re.match(r"\s*\n[ \t]+\S|[ \t]+\S", cell.text):  # IPython would move it to the left
            problems[cell] = "it begins indented, as if cut off from a cell above"
        if cell.kind != "code" and problems[cell]:
            report("unreadable", (cell.number, f"it is a {cell.kind} cell, so its code does not run"))
            continue
        if cell.kind != "code":
            report("note", f"C{str(cell)[1:]} is a {cell.kind} cell; it was run as code.")
        code.append(cell)
    index = 0
    while index < len(code):
        cell = code[index]
        joined = problems[cell] and _join(code, index, transform)
        if not problems[cell]:
            runs[cell.number] = cell.text
        elif joined:
            for part in joined:
                runs.pop(part.number, None)
            runs[joined[0].number] = "\n".join(part.text for part in joined)
            report("note", f"Cells {joined[0].number} to {joined[-1].number} were read as one: {joined[0]}.")
            index = code.index(joined[-1])
        else:
            report("unreadable", (cell.number, problems[cell]))
        index += 1
    return sorted(runs.items())


def _join(code, index, transform):
    """The cells around `index` that are Python together, if it was cut: two or three that follow one another."""
    for first, last in ((index - 1, index), (index, index + 1), (index - 1, index + 1), (index, index + 2)):
        cells = code[max(first, 0) : last + 1]
        if len(cells) < last + 1 - first or cells[-1].number - cells[0].number != last - first:
            continue
        if problem("\n".join(cell.text for cell in cells), transform) is None:
            return cells
    return None


def problem(text, transform):
    """Why a cell is no Python, or None. Magics and shell lines are allowed, as in a notebook."""
    try:
        compile(transform(text), "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, message = getattr(error, "lineno", None), str(getattr(error, "msg", error))
        return type(error).__name__ + (f": {message}" if message else "") + (f" (line {line})" if line else "")
    return None
