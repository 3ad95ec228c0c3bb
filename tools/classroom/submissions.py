"""Find what students handed in, and read it whatever a tool has done to it.

A notebook is its cells' type and text, in order. Ids, metadata, outputs, the version of the format and the name of the
file play no part. Which chapter it is, is told by the names that its code defines.
"""

import ast
import contextlib
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 25 * 2**20  # unfolded, JSON can take 20 times as much
DEEPEST = 12  # folders in folders
SUFFIXES = (".ipynb", ".ipynb.txt", ".ipynb.json", ".json")
ENDING = re.compile(r"(\.ipynb)?(\.tar)?\.(ipynb|json|txt|md|py|html?|pdf|docx?|odt|zip|7z|rar|tgz|gz|tar)$", re.I)
COPY = re.compile(r"^((copy|kopie) (of|von) )+|( - copy| copy( \d+)?|-copy\d*| ?\(\d+\))+$", re.I)
# What programs leave, and no student writes: folders, and files.
SKIPPED = {".ipynb_checkpoints", "__MACOSX", "__pycache__", ".git"}
LEFT = re.compile(r"\.DS_Store|\._.*|Thumbs\.db|desktop\.ini|\.~.*|~\$.*|\.git(ignore|keep|attributes)", re.I)
OF_AN_ENVIRONMENT = {"bin", "include", "lib", "lib64", "share", "etc", "scripts", "pyvenv.cfg"}
OF_A_HAND_OUT = {"README.md", "requirements.txt", "library.zip"}
INDENTED = re.compile(r"\s*\n[ \t]+\S|[ \t]+\S")  # how a cell begins that is cut off from one above
KINDS = (  # how a file begins that is no notebook, whatever its name says
    (rb"PK\x03\x04|Rar!|7z\xbc\xaf|\x1f\x8b", "an archive or an Office document: hand in the notebook itself"),
    (rb"%PDF", "a PDF: hand in the notebook itself"),
    (rb"(?i)\s*<(!doctype|html|head|body|!--|\?xml)", "a web page: download the notebook, not the page it is on"),
    (rb"version https://git-lfs", "a pointer of git LFS: hand in the notebook itself"),
)


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
    """What a student handed in: the paths of notebooks, and what else may hold work, by its path in their folder."""

    notebooks: list
    others: list


def find(folder, stems=()):
    """What was handed in: {student: Submission}. A student is a folder, or a file that lies in `folder` itself.

    Args:
        stems: the names of the chapters' files, such as "02_dense"; at the end of a file's name they name no student.
    """
    students = {}
    for entry in sorted(Path(folder).iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            if entry.name not in SKIPPED:
                own = students.setdefault(entry.name, Submission([], []))
                for mine, found in zip(own, look_through(entry), strict=True):
                    mine.extend(found)
        elif not LEFT.fullmatch(entry.name):
            students.setdefault(owner(entry.name, stems), Submission([], [])).notebooks.append(entry)
    return students


def owner(file, stems):
    """The student after whom a file is named: without its ending, the marks of a copy and the name of a chapter."""
    whole = ENDING.sub("", file)
    name = COPY.sub("", whole)
    chapter = re.search(rf"[ _-]*({'|'.join(map(re.escape, stems)) or '(?!)'})$", name, re.I)
    return (name[: chapter.start()] if chapter else name) or whole or file  # a chapter alone is nobody


def is_copy(file):
    return bool(COPY.search(ENDING.sub("", file)))


def look_through(folder):
    """A student's folder. -> Submission, whatever lies in it"""
    notebooks, others, skipped = [], [], []

    def closed(error):
        others.append(f"{str(Path(error.filename).relative_to(folder))[:200]} (it cannot be opened)")

    try:
        for place, folders, files in os.walk(folder, onerror=closed):
            if place.count(os.sep) - str(folder).count(os.sep) >= DEEPEST:
                deep = f"{os.path.relpath(place, folder)[:200]}/... (too deep to be looked through)"
                others += [deep] * bool(folders)
                folders.clear()
            place, environment = Path(place), "pyvenv.cfg" in files
            roots = [one for one in (place, *place.parents) if one.is_relative_to(folder)]
            root = next((one for one in roots if (one / "synth_lib" / "checks").is_dir()), None)  # of a hand-out
            for path in [place / name for name in sorted(folders + files)]:
                name, is_folder = str(path.relative_to(folder)), path.name in folders
                if path.is_symlink() and (is_folder or not path.name.lower().endswith(SUFFIXES)):
                    others.append(f"{name} (a link)")
                elif environment and path.name.lower() in OF_AN_ENVIRONMENT:
                    skipped.append(name)
                    folders[:] = [one for one in folders if one != path.name]
                elif is_folder and path.name in SKIPPED:
                    skipped.append(name)
                    folders.remove(path.name)
                    for copy in path.glob("*.ipynb"):  # those of Jupyter
                        file = copy.name.replace("-checkpoint", "")
                        if file not in files and not LEFT.fullmatch(file):
                            others.append(str(copy.relative_to(folder)))
                elif is_folder and not path.name.lower().endswith(SUFFIXES):
                    continue
                elif LEFT.fullmatch(path.name) or (place == root and is_ours(path)):
                    skipped.append(name)
                elif path.name.lower().endswith(SUFFIXES) and is_notebook(path):
                    notebooks.append(path)
                elif not is_folder and not (root and is_handed_out(path, root)):
                    others.append(name)
    except OSError as error:
        closed(error)
    return Submission(sorted(notebooks), sorted(others or ([] if notebooks else skipped)))


def is_ours(path):
    """Whether a file beside the library is as it was handed out; a README may hold answers."""
    if path.name != "README.md":
        return path.name in OF_A_HAND_OUT
    return bool(re.search(rb"\nMade from version \S+ of the course\.\s*$", path.read_bytes()))


def is_handed_out(path, root):
    """Whether a file of a hand-out is one of the library or its data, and as it was; lines may end as on Windows."""
    inside = path.relative_to(root)
    if inside.parts[0] not in ("synth_lib", "data") or not (ROOT / inside).is_file():
        return False
    ours, theirs = (one.read_bytes().replace(b"\r\n", b"\n") for one in (ROOT / inside, path))
    return ours == theirs


def is_notebook(path):
    """Whether a file is meant as one. Programs keep much else in files that end with .json alone."""
    if ".ipynb" in path.name.lower() or path.is_symlink() or not path.is_file():
        return True
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return bool(re.search(rb'"(cells|worksheets)"', file.read(LARGEST)))
    return True


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
    with open(path, "rb") as file:
        begins = file.read(200)
    for pattern, kind in KINDS:
        if re.match(pattern, begins.removeprefix(b"\xef\xbb\xbf")):
            raise Refused(f"it is {kind}")
    size = path.stat().st_size
    if size > LARGEST:
        raise Refused(f"it has {size >> 20} MB, more than {LARGEST >> 20}: clear its outputs")
    content = _parsed(path.read_bytes())
    try:
        sheets = [content] if "cells" in content else content["worksheets"]  # format 3 has sheets
        raw = [cell for sheet in sheets for cell in sheet["cells"]]
        cells = [Cell(n, str(cell.get("cell_type")), _text(cell)) for n, cell in enumerate(raw, 1)]
    except (TypeError, KeyError, AttributeError):
        raise Refused("it is JSON, but no notebook: it has no list of cells") from None
    if not cells:
        raise Refused("it has no cells")
    return cells


def _parsed(content):
    """The JSON of a notebook, in UTF-8, 16 or 32; or Refused, with what is wrong with it."""
    if content and not content.strip(b"\0"):
        raise Refused("it is nothing but zeros: hand it in again")
    try:
        text = content.decode(json.detect_encoding(content)).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise Refused(f"its text is no UTF-8 from byte {error.start} on: save it as UTF-8") from None
    rest = text.strip()
    if not rest:
        raise Refused("it is empty")
    try:
        return json.loads(text)
    except (RecursionError, MemoryError):
        raise Refused("it could not be read: it is nested too deeply") from None
    except ValueError as error:
        if re.search(r"^<<<<<<< ", text, flags=re.M):
            raise Refused("it holds a merge conflict of git (<<<<<<<): resolve it and hand it in again") from None
        if rest[0] not in "{[":
            raise Refused(f'it is other text, not a notebook; it begins with "{rest.split(chr(10))[0][:40]}"') from None
        if rest[-1] not in "}]" or getattr(error, "pos", 0) >= len(text.rstrip()):
            raise Refused("it could not be read: was the upload cut off? Please hand it in again") from None
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise Refused(f"it is damaged at {where}. Was it changed in an editor? Save it anew with Jupyter") from None


def _text(cell):
    text = cell.get("source", cell.get("input")) or ""  # some programs write null for an empty cell
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
    if not best[0]:
        raise Refused(f"it defines no exercise of chapter {', '.join(chapters)}")
    if len(winners) > 1:
        raise Refused(f"it could be chapter {' or '.join(winners)}; hand in one notebook for each")
    return winners[0]


def foreign(cells, own, chapters):
    """The exercises of other chapters that a notebook of chapter `own` holds too: their checks, or their functions."""
    text = "\n".join(cell.text for cell in cells)
    source = chapters[own].path.read_text(encoding="utf8")
    names = {key: name for number, one in chapters.items() if number != own for key, name in one.names.items()}
    return [
        key
        for key, name in names.items()
        if re.search(rf'check\(\s*["\']{key}["\']', text)
        or (definition(name).search(text) and not definition(name).search(source))
    ]


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
        if not problems[cell] and INDENTED.match(cell.text):  # IPython would move it to the left
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
