"""Build the site from the stored notebooks and docs/, without running a cell.

    python tools/book/build.py                   # into build/site
    python tools/book/build.py --no-solutions    # without the folded solutions

The pages are laid out as the repository is, so that a link between two of them works here and there. A page is a file
that its readers meet on GitHub too; what a site needs beside it (folds with names, solutions under their exercises) is
done in a copy. The public address in pyproject.toml brings buttons for Colab and for downloading, and links to source
files; while it is not set, these links are plain words.
"""

import argparse
import os
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import nbformat
from nbformat import v4
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from tools.build_notebooks import BEGIN, END, TITLE, colab_address, pages_address, settings  # noqa: E402

PAGES = ("docs/map.md", "docs/glossary.md", "docs/equations.md", "docs/teaching.md")
OWN_PAGES = {"index.md": HERE / "index.md", "results.md": HERE / "results.md"}
MISSING = "404.md"  # for a host, which shows it at any address
PICTURE = "docs/live.png"
LIVE = "docs/live.html"  # a page of its own
# What a chapter says about hiding its stored outputs: nobody can do that on a page.
HIDE_OUTPUTS = re.compile(
    r"(\*\*To predict before you look:\*\* the outputs are stored|To predict before\s+you look, hide the stored outputs"
    r"|(The o|O)utputs\s+are\s+stored).*?Clear\s+Outputs\s+of\s+All\s+Cells[^.]*\.",
    re.S,
)
NOTHING_RUNS = "On this site nothing runs, and every output is shown: to predict, stop before you scroll on."
# Code is matched first, so that nothing in it is taken for a link.
CODE_OR_LINK = re.compile(r"```.*?```|`[^`\n]*`|(?<!!)\[((?:`[^`\n]*`|[^\[\]`])*)\]\(([^)\s]+)\)", re.S)


class BookError(ValueError):
    """A page cannot be made; the message says what is missing where."""


# --- links ---


def slug(heading):
    """The anchor of a heading on the site and on GitHub; JupyterLab's has hyphens for the blanks and keeps the rest."""
    return re.sub(r"[^\w-]", "", heading.lower())


def rewrite_links(text, page, pages, repository, ref):
    """`text`, markdown of the repository's file `page`, with links that work on the site.

    Raises BookError if a link leads to no file.
    """

    def rewrite(match):
        words, target = match[1], match[2]
        if target is None or re.match(r"\w+:", target):
            return match[0]
        name, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(page), name)).replace(os.sep, "/") if name else page
        if not (ROOT / file).exists() and file not in pages:
            raise BookError(f"{page}: the link to {target} leads to no file.")
        # What these say stands on two pages of the site.
        file = {"README.md": "index.md", "docs/train.md": "results.md"}.get(file, file)
        if file in pages:
            place = os.path.relpath(file, os.path.dirname(page) or ".").replace(os.sep, "/") if name else ""
            return f"[{words}]({place}{'#' + slug(anchor) if anchor else ''})"
        if repository:
            kind = "tree" if (ROOT / file).is_dir() else "blob"
            return f"[{words}]({repository}/{kind}/{ref}/{file}{'#' + anchor if anchor else ''})"
        return words

    return CODE_OR_LINK.sub(rewrite, text)


# --- pages ---


def readme_section(heading):
    """What stands under one heading of README.md. Raises BookError if there is no such heading."""
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    section = re.search(rf"^## {re.escape(heading)}\n+(.*?)(?=^## |\Z)", readme, re.M | re.S)
    if section is None:
        raise BookError(f'README.md has no section "{heading}", which the site shows.')
    return section[1]


def below_title(page):
    return (ROOT / page).read_text(encoding="utf8").partition("\n")[2].strip()


def recorded(name):
    """How many runs or measurements a file of data/results holds; its first line says how they were made."""
    return str(len((ROOT / "data" / "results" / name).read_text(encoding="utf8").splitlines()) - 1)


def fill(text, chapters, solutions):
    """One of the site's own pages: `@README Heading@` is a section of README.md, `@PAGE docs/file@` what stands below
    the title of a page whose links all lead out of docs/, `@recorded file@` a number.
    """
    text = re.sub(r"@README (.+?)@", lambda match: readme_section(match[1]), text)
    text = re.sub(r"@PAGE (.+?)@", lambda match: below_title(match[1]).replace("](../", "]("), text)
    text = re.sub(r"@recorded (.+?)@", lambda match: recorded(match[1]), text)
    text = text.replace("@CHAPTERS@", "\n".join(f"notebooks/{path.stem}" for path in chapters))
    text = re.sub(r"@SOLUTIONS (.+?) SOLUTIONS@", lambda match: match[1] if solutions else "", text, flags=re.S)
    live = (ROOT / LIVE).exists()
    return re.sub(r"@LIVE (.+?) LIVE@\n*", lambda match: match[1] + "\n\n" if live else "", text, flags=re.S)


def adapted(cell):
    """A copy of a code cell as the site shows it: its fold is named, and a verdict links to the site's anchors."""
    cell = nbformat.from_dict(cell)
    cell.source = "\n".join(line for line in cell.source.split("\n") if line.strip() not in (BEGIN, END))
    tags = cell.metadata.get("tags", [])
    if "hide-input" in tags:
        title = cell.source.partition("\n")[0].removeprefix(TITLE).partition(" {")[0]
        cell.metadata["mystnb"] = {"code_prompt_show": title, "code_prompt_hide": title}
    for output in cell.get("outputs", []):
        if "text/html" in output.get("data", {}):
            text = output.data["text/html"]
            output.data["text/html"] = re.sub(r'(?<=href="#)[^"]+', lambda match: slug(unescape(match[0])), text)
    return cell


def of_a_page(text, page):
    """`text` of a chapter without what only a notebook can do. Raises BookError if such words are left."""
    text = HIDE_OUTPUTS.sub(NOTHING_RUNS, text)
    if "Clear Outputs" in text:
        raise BookError(f"{page}: \"Clear Outputs\" is not for a page, and HIDE_OUTPUTS does not find the sentence.")
    return text


def solution(exercise, solved):
    """The solution of an exercise as cells between the two ends of a fold: the solved cell, its check, what follows."""
    opening = f'<details class="solution"><summary>Solution of exercise {exercise}</summary>'
    return [v4.new_markdown_cell(opening), *solved, v4.new_markdown_cell("</details>")]


def chapter(path, solutions):
    """The notebook of a page: the blank chapter and, folded under each exercise, what only the solved one has."""
    blank = nbformat.read(path, as_version=4)
    cells = []
    if not solutions:
        cells = blank.cells
    else:
        solved = nbformat.read(path.parent / "solutions" / path.name, as_version=4)
        rest, answers, waiting = iter(blank.cells), {}, {}
        for cell in solved.cells:
            exercise = cell.metadata.get("solution")
            for name, cells_of in waiting.items() if exercise is None else ():
                cells += solution(name, cells_of)
            if exercise is None:
                waiting = {}
                cells.append(next(rest))
                if number := cell.metadata.get("exercise") or cell.metadata.get("check"):
                    answers.setdefault(number, []).append(cell)
            else:
                waiting.setdefault(exercise, answers.pop(exercise, [])).append(cell)
        for name, cells_of in waiting.items():
            cells += solution(name, cells_of)
    cells = [adapted(cell) if cell.cell_type == "code" else nbformat.from_dict(cell) for cell in cells]
    for number, cell in enumerate(cells):  # a check stands in both
        cell.id = f"cell-{number}"
    return v4.new_notebook(cells=cells, metadata=blank.metadata)


def write_sources(folder, solutions, repository, ref):
    """Everything that Sphinx reads, in `folder`. Returns the chapters in reading order."""
    chapters = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    own = OWN_PAGES | ({MISSING: HERE / MISSING} if pages_address(repository) else {})
    pages = {*PAGES, *own, *(f"notebooks/{path.name}" for path in chapters)}
    for page in (*PAGES, *own):
        text = own.get(page, ROOT / page).read_text(encoding="utf8")
        if page in own:
            text = fill(text, chapters, solutions)
        place = folder / page
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(rewrite_links(text, page, pages, repository, ref), encoding="utf8")
    shutil.copy(ROOT / PICTURE, folder / PICTURE)
    for path in chapters:
        notebook = chapter(path, solutions)
        page = f"notebooks/{path.name}"
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                text = cell.source.replace("](../../", "](../") if "solution" in cell.metadata else cell.source
                cell.source = rewrite_links(of_a_page(text, page), page, pages, repository, ref)
        place = folder / page
        place.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, place)
    return chapters


def live_page(chapters):
    """The live page as the site has it: beside the chapters' pages instead of the notebooks of a clone."""
    text = (ROOT / LIVE).read_text(encoding="utf8")
    text = re.sub(r'<span class="clone">.*?</span>', '<a href="index.html">All chapters</a>.', text, flags=re.S)
    for path in chapters:
        text = text.replace(f'"../notebooks/{path.name}"', f'"notebooks/{path.stem}.html"')
    return text


# --- the site ---


def address_settings(repository, ref):
    """What the public address decides: two buttons, a link to the repository, and the site's own address."""
    theme = {"use_download_button": bool(repository)}
    if repository:
        theme |= {"repository_url": repository, "repository_branch": ref, "use_repository_button": True}
    if colab_address(repository, ref, ""):
        theme["launch_buttons"] = {"colab_url": "https://colab.research.google.com"}
    options = {f"html_theme_options.{name}": value for name, value in theme.items()}
    return {**options, "html_copy_source": bool(repository), "html_baseurl": pages_address(repository)}


def build(out, solutions=True, repository=None, ref=None):
    """Write the site into the folder `out`, in place of an older one. Returns how many warnings there were.

    Raises BookError if there is something else in `out`.
    """
    if out.exists() and any(out.iterdir()) and not (out / "objects.inv").exists():
        raise BookError(f"{out} holds something that is no site: empty it, or choose another folder.")
    address = settings()
    repository = (address["repository"] if repository is None else repository).removesuffix("/").removesuffix(".git")
    ref = ref or address["ref"]
    work = out.with_name(f"{out.name}.work")
    shutil.rmtree(work, ignore_errors=True)
    chapters = write_sources(work / "source", solutions, repository, ref)
    app = Sphinx(
        srcdir=work / "source",
        confdir=HERE,
        outdir=work / "site",
        doctreedir=work / "doctrees",
        buildername="html",
        confoverrides=address_settings(repository, ref),
        status=None,
        warningiserror=True,
    )
    app.build()
    if out.exists():
        shutil.rmtree(out)
    shutil.move(work / "site", out)
    for template in (out / "_static").glob("*macros.html"):  # the theme's own, no page
        template.unlink()
    if repository:  # what is downloaded is the chapter itself, not the copy that the site was made from
        for path in chapters:
            shutil.copy(path, out / "_sources" / "notebooks" / path.name)
    if (ROOT / LIVE).exists():
        (out / Path(LIVE).name).write_text(live_page(chapters), encoding="utf8")
    if base := pages_address(repository):
        missing = out / Path(MISSING).with_suffix(".html")
        text = missing.read_text(encoding="utf8").replace("<head>", f'<head>\n    <base href="{base}">', 1)
        missing.write_text(text, encoding="utf8")
    shutil.rmtree(work)
    return app._warncount


def main():
    parser = argparse.ArgumentParser(description="Build the site from the stored notebooks, without running them.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder, replaced (build/site)")
    parser.add_argument("--no-solutions", action="store_true", help="leave the folded solutions out")
    parser.add_argument("--repository", help="the public address, instead of that in pyproject.toml")
    options = parser.parse_args()
    try:
        warnings = build(options.out.resolve(), not options.no_solutions, options.repository)
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename} cannot be written ({error.strerror}): choose a folder of yours.", file=sys.stderr)
        return 1
    pages = len(list(options.out.rglob("*.html")))
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file()) / 1e6
    print(f"{pages} pages, {size:.1f} MB, {warnings} warnings. Open {options.out / 'index.html'}")
    return int(warnings > 0)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # a path that a pipe of Windows cannot write stops nothing
    sys.exit(main())
