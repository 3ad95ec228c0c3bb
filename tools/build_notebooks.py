"""Build the notebooks from their sources.

    python tools/build_notebooks.py              # the chapters whose cells changed
    python tools/build_notebooks.py --all        # every chapter, as after a change in synth_lib
    python tools/build_notebooks.py 02_dense     # this chapter, changed or not

notebooks/src/NN_name.py (py:percent) becomes notebooks/NN_name.ipynb, with blank exercises, and
notebooks/solutions/NN_name.ipynb. Both are executed; a chapter with a cell that fails is not written at all.

A marker line may say `exercise="02.1" points=2` (the solution stands between `### BEGIN SOLUTION` and
`### END SOLUTION`), `check="02.1"`, or `solution="02.1"`: a cell, text or code, that only the solved notebook has. With
`fold=true` JupyterLab, Colab and the book show a code cell folded; its first line is `# @title <what it does>`. nbval
does not compare the output of a code cell that starts with `# Output varies: <reason>` (below the title, if folded).
"""

import argparse
import base64
import copy
import hashlib
import os
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import v4
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
STUB = "raise NotImplementedError"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
VARIES = "# Output varies: "
MARKER_KEYS = {"exercise", "points", "check", "solution", "fold"}
TITLE = "# @title "
# JupyterLab folds by the second entry, Colab by the first and the title, a book by the tag.
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}, "tags": ["hide-input"]}


class SourceError(ValueError):
    """A chapter source does not follow the format; the message says where and what would be right."""


def settings():
    """The public address: `repository` (empty while unknown) and `ref`, from pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]["synthesizers"]


def read_source(path):
    """The cells of one source, as its author wrote them."""
    cells = jupytext.read(path, fmt="py:percent").cells
    if not cells or cells[0].cell_type != "markdown" or not cells[0].source.startswith("# "):
        raise SourceError(f"{path.name}: the first cell is not a markdown title; start it with `# # Title`.")
    for cell in cells:
        cell.metadata.pop("lines_to_next_cell", None)
        unknown = sorted(set(cell.metadata) - MARKER_KEYS)
        if unknown:
            known = "exercise, points, check, solution and fold"
            raise SourceError(f"{path.name}: a marker line says {unknown[0]}, but only {known} are known.")
        problem = cell_problem(cell)
        if problem:
            raise SourceError(f"{path.name}: {problem} In the cell that starts with: {cell.source[:60]!r}")
    return cells


def cell_problem(cell):
    """What is wrong with the solution marks or the marker line of one cell, or None.

    A mark that is not read as one would leave an answer in the blank notebook, or cut a lesson.
    """
    marks = [line.strip() for line in cell.source.split("\n") if re.search(r"#\s*(begin|end) solution", line, re.I)]
    keys = cell.metadata
    if ("exercise" in keys or "check" in keys) and cell.cell_type != "code":
        return "An exercise or a check is a code cell."
    if "exercise" in keys and marks != [BEGIN, END]:
        return f"An exercise has one line `{BEGIN}` and, below it, one line `{END}`, nothing else on them."
    if "exercise" not in keys and marks:
        return "Solution marks stand outside an exercise."
    if not all(isinstance(keys[name], str) for name in ("exercise", "check", "solution") if name in keys):
        return 'The number of an exercise is a text such as exercise="02.1".'
    if "solution" in keys and ("exercise" in keys or "check" in keys):
        return "A cell of the solved notebook alone, solution=..., is no exercise and no check."
    if "fold" in keys and (keys["fold"] is not True or cell.cell_type != "code" or not cell.source.startswith(TITLE)):
        return f"A folded cell has fold=true, is a code cell, and its first line is `{TITLE}<what it does>`."
    if "points" in keys and ("exercise" not in keys or type(keys["points"]) is not int or keys["points"] < 1):
        return "Points stand on the line of an exercise and are a whole number of at least 1."
    if "check" in keys and not re.fullmatch(rf'check\("{re.escape(keys["check"])}", \w+\)', cell.source):
        return f'A check cell is one line, check("{keys["check"]}", the_function).'
    return None


def cut_solution(source):
    """`source` with the stub, indented alike, in place of the lines from BEGIN SOLUTION to END SOLUTION."""
    lines, inside = [], False
    for line in source.split("\n"):
        if line.strip() == BEGIN:
            inside = True
            lines.append(line[: len(line) - len(line.lstrip())] + STUB)
        elif line.strip() == END:
            inside = False
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def nbgrader_metadata(kind, exercise, points=None):
    """What nbgrader needs to know of an exercise or check cell, so that a school can grade the same files."""
    grade_id = f"{kind}-{exercise.replace('.', '-')}"
    common = {"schema_version": 3, "grade_id": grade_id, "task": False}
    if kind == "check":
        return {**common, "grade": True, "solution": False, "locked": True, "points": points}
    return {**common, "grade": False, "solution": True, "locked": False}


def cell_metadata(cell, points):
    """The metadata that a cell of the source gets in its notebooks."""
    if "exercise" in cell.metadata:
        exercise = cell.metadata["exercise"]
        return {"exercise": exercise, "nbgrader": nbgrader_metadata("exercise", exercise)}
    if "check" in cell.metadata:
        exercise = cell.metadata["check"]
        return {"check": exercise, "nbgrader": nbgrader_metadata("check", exercise, points.get(exercise, 1))}
    solution = {"solution": cell.metadata["solution"]} if "solution" in cell.metadata else {}
    ignored = ["nbval-ignore-output"] if cell.cell_type == "code" and says_why_it_varies(cell.source) else []
    if "fold" in cell.metadata:
        return {**solution, **FOLDED, "tags": [*FOLDED["tags"], *ignored]}
    return {**solution, "tags": ignored} if ignored else solution


def says_why_it_varies(source):
    """Whether a cell starts with the line that says why its output is not compared; a title may stand above it."""
    first, _, rest = source.partition("\n")
    return (rest if first.startswith(TITLE) else source).startswith(VARIES)


def colab_address(repository, ref, file):
    """Where Colab opens a file of a repository on GitHub; "" for any other repository."""
    github = "https://github.com/"
    if not (repository or "").startswith(github):
        return ""
    name = repository.removeprefix(github).removesuffix("/").removesuffix(".git")
    return f"https://colab.research.google.com/github/{name}/blob/{ref}/{file}"


def pages_address(repository):
    """Where GitHub publishes the pages of a repository; "" for any other one."""
    name = repository.removeprefix("https://github.com/").removesuffix("/").removesuffix(".git")
    if not colab_address(repository, "", "") or name.count("/") != 1:
        return ""
    owner, project = name.split("/")
    host = f"{owner.lower()}.github.io"
    return f"https://{host}/" if project.lower() == host else f"https://{host}/{project}/"


def opening_cells(notebook_path, repository, ref):
    """The Colab badge, left out while the address is unknown, and the folded set-up cell."""
    cells = []
    if address := colab_address(repository, ref, notebook_path):
        cells.append(v4.new_markdown_cell(f"[Open this chapter in Colab]({address})"))
    source = (ROOT / "tools" / "setup_cell.py").read_text(encoding="utf8").strip()
    source = source.replace("@REPOSITORY@", repository).replace("@REF@", ref)
    return [*cells, v4.new_code_cell(source, metadata=copy.deepcopy(FOLDED))]


def build(path, solved, repository=None, ref=None):
    """The notebook of the source `path`, not yet executed: solved, or with blank exercises.

    A cell has the same id in both: a hash of what its source says.
    """
    address = settings()
    repository = address["repository"] if repository is None else repository
    folder = "notebooks/solutions" if solved else "notebooks"
    title, *lesson = read_source(path)
    lesson = [cell for cell in lesson if solved or "solution" not in cell.metadata]
    points = {cell.metadata.get("exercise"): cell.metadata.get("points", 1) for cell in lesson}
    for cell in lesson:
        cell.metadata = nbformat.from_dict(cell_metadata(cell, points))
    cells = [title, *opening_cells(f"{folder}/{path.stem}.ipynb", repository, ref or address["ref"]), *lesson]
    seen = {}
    for cell in cells:
        key = (cell.cell_type, cell.source)
        seen[key] = seen.get(key, 0) + 1
        cell.id = hashlib.sha256(repr((*key, seen[key])).encode()).hexdigest()[:12]
        if not solved and cell.cell_type == "code":
            cell.source = cut_solution(cell.source)
        if solved and cell.cell_type == "markdown":  # it lies one folder deeper than its source says
            cell.source = cell.source.replace("](../", "](../../")
    notebook = v4.new_notebook(cells=cells, metadata=notebook_metadata())
    notebook.nbformat_minor = 5
    return notebook


def notebook_metadata():
    """Nothing that differs between machines: the version of Python, above all, is left out.

    What reads a notebook without running it, as an export to a .py file, knows the language by language_info.
    """
    kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    language_info = {
        "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
        "name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3",
    }  # fmt: skip
    return nbformat.from_dict({"kernelspec": kernelspec, "language_info": language_info})


def execute(notebook, folder):
    """A copy of `notebook`, executed in `folder`, that carries no time, no version and no progress bar."""
    notebook = copy.deepcopy(notebook)
    options = {"timeout": 300, "kernel_name": "python3", "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **options).execute()
    notebook.metadata = notebook_metadata()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if png := output.get("data", {}).get("image/png"):
                output.data["image/png"] = fewer_bytes(png)
    nbformat.validate(notebook)
    return notebook


def fewer_bytes(png):
    """The same picture, as the text of a notebook, in 64 colours: less than half its bytes, to the eye the same."""
    picture = Image.open(BytesIO(base64.b64decode(png))).convert("RGB").quantize(64)
    picture.save(file := BytesIO(), "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def write_whole(path, text):
    """Write `path` whole or not at all. What UTF-8 cannot write becomes "?", and no end of a line is changed."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf8", errors="replace", newline="")
    os.replace(partial, path)


def targets(path, notebooks=NOTEBOOKS):
    """Where the blank and the solved notebook of a source go, as {solved: path}."""
    name = f"{path.stem}.ipynb"
    return {False: notebooks / name, True: notebooks / "solutions" / name}


def differs(built, path):
    """Whether the stored notebook is missing, or has other cells or metadata than the one built now."""
    if not path.exists():
        return True
    stored = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    return stored.metadata != built.metadata or contents(stored) != contents(built)


def contents(notebook):
    """What a source decides of its notebook: everything but outputs and execution counts."""
    return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]


def build_chapter(path, notebooks=NOTEBOOKS, always=True):
    """Build, execute and write both notebooks of one source. Returns a line that says what happened."""
    places = targets(path, notebooks)
    built = {solved: build(path, solved) for solved in places}
    if not always and not any(differs(built[solved], place) for solved, place in places.items()):
        return f"{path.stem}: unchanged"
    executed = {}
    for solved, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            executed[solved] = execute(built[solved], place.parent)
        except CellExecutionError as error:
            version = "solved" if solved else "blank"
            plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
            raise SourceError(f"{path.name}, {version}: a cell fails.\n{plain}") from None
    for solved, place in places.items():
        write_whole(place, nbformat.writes(executed[solved]) + "\n")
    return f"{path.stem}: built"


def main():
    parser = argparse.ArgumentParser(description="Build and execute the notebooks from notebooks/src.")
    parser.add_argument("chapters", nargs="*", metavar="NN_name", help="these chapters, changed or not")
    parser.add_argument("--all", action="store_true", help="every chapter, changed or not")
    options = parser.parse_args()
    folder = NOTEBOOKS / "src"
    sources = [folder / f"{name}.py" for name in options.chapters] or sorted(folder.glob("*.py"))
    lost = [path.name for path in sources if not path.exists()]
    if lost:
        parser.error(f"notebooks/src has no {lost[0]}")
    if not os.access(NOTEBOOKS, os.W_OK):
        parser.error(f"you may not write in {NOTEBOOKS}: copy the repository into a folder of yours")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # a bar that ends takes along what its cell has printed before
    always = options.all or bool(options.chapters)
    failed = False
    with ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [pool.submit(build_chapter, path, always=always) for path in sources]
        for job in jobs:
            try:
                print(job.result(), flush=True)
            except SourceError as error:
                failed = True
                print(error, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # a path that a pipe of Windows cannot write stops nothing
    sys.exit(main())
