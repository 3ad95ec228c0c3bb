"""The site (make book): no warning, no broken link, nothing from elsewhere; folds, order, alternatives, two options."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup

from tools.build_notebooks import colab_address, settings

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
ADDRESS = "https://github.com/someone/course"
chapters = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: f"chapter_{path.stem}")


def build(folder, *options):
    """(what the build printed, {path in the site: its HTML})."""
    command = [sys.executable, "tools/book/build.py", "--out", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf8") for path in folder.rglob("*.html")}
    return done.stdout, {name: BeautifulSoup(text, "html.parser") for name, text in pages.items()}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site without an address, with solutions: folder, what was printed, pages."""
    folder = tmp_path_factory.mktemp("book") / "site"
    return folder, *build(folder, "--repository", "")


@pytest.fixture(scope="module")
def addressed(tmp_path_factory):
    """The site with an address, without solutions."""
    folder = tmp_path_factory.mktemp("book") / "site"
    return folder, *build(folder, "--repository", ADDRESS, "--no-solutions")


def page(site, chapter):
    return site[2][f"notebooks/{chapter.stem}.html"]


def words(text):
    return " ".join(re.sub(r"[\W_]+", " ", text).split())


def stored(chapter, solved=False):
    return nbformat.read(chapter.parent / ("solutions" if solved else "") / chapter.name, as_version=4).cells


def test_it_is_built_without_a_warning_and_small(site):
    folder, printed, pages = site
    assert re.match(rf"{len(pages)} pages, [\d.]+ MB, 0 warnings\.", printed), printed
    assert len(pages) >= len(CHAPTERS) + 5
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 25e6


def test_every_link_inside_leads_to_a_page_and_to_a_place_on_it(site):
    folder, _, pages = site
    places = {name: {tag["id"] for tag in soup.find_all(id=True)} for name, soup in pages.items()}
    broken, followed = [], 0
    for name, soup in pages.items():
        for tag in soup.find_all(href=True):
            parts = urlsplit(tag["href"])
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (folder / name).parent / unquote(parts.path) if parts.path else folder / name
            place = target.resolve().relative_to(folder.resolve()).as_posix()
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and place in places and anchor not in places[place]):
                broken.append(f"{name}: {tag['href']}")
    assert not broken and followed > 1000


def test_nothing_is_fetched_from_elsewhere(site):
    folder, _, pages = site
    found = []
    for name, soup in pages.items():
        for tag in soup.find_all(["script", "img", "iframe", "source", "video", "audio", "embed", "object", "link"]):
            if tag.name == "link" and "canonical" in tag.get("rel", []):
                continue
            address = tag.get("src") or tag.get("href") or tag.get("data") or ""
            if urlsplit(address).netloc:
                found.append(f"{name}: {address}")
            elif tag.name != "link" and address and not address.startswith("data:"):
                assert ((folder / name).parent / unquote(urlsplit(address).path)).is_file(), f"{name}: {address}"
            if tag.name == "script" and re.search(r"https?://|require\.js", tag.string or ""):
                found.append(f"{name}: {tag.string[:80]}")
    for path in folder.rglob("*.css"):
        style = path.read_text(encoding="utf8")
        asked = re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\s]*", style)
        found += [f"{path.name}: {one}" for one in asked]
    assert not found


def test_formulas_are_drawn_by_files_of_the_site(site):
    folder, _, pages = site
    written = {name for name, soup in pages.items() if soup.select(".math")}
    assert len(written) >= 10
    for name in written:
        assert [tag for tag in pages[name].find_all("script", src=True) if "mathjax/tex-chtml.js" in tag["src"]], name
    assert list((folder / "_static/mathjax/output/chtml/fonts/woff-v2").glob("*.woff"))


def test_chapters_stand_in_reading_order(site):
    links = [Path(tag["href"]).stem for tag in site[2]["index.html"].select(".bd-sidebar-primary nav.bd-links a[href]")]
    listed = [stem for stem in links if re.match(r"\d\d_", stem)]
    assert listed == [path.stem for path in CHAPTERS]
    assert {"map", "glossary", "teaching", "results"} <= set(links)


@chapters
def test_a_figure_is_told_in_the_words_below_it_and_once(site, chapter):
    cells = [cell for cell in stored(chapter, solved=True) if cell.cell_type == "code"]
    pictures = sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    images = page(site, chapter).select("article img")
    assert len(images) == pictures
    for image in images:
        caption = image.find_next(lambda tag: tag.name in ("p", "img"))
        assert caption.text.startswith("Figure: ") and len(caption.text.split()) >= 6
        assert image["alt"] == "A figure. The words below it tell what it shows."


@chapters
def test_a_page_does_not_ask_to_clear_outputs(site, chapter):
    told = words(page(site, chapter).article.text).lower()
    assert "clear outputs" not in told and "clear all outputs" not in told
    assert told.count("on this site nothing runs") == ("Clear Outputs" in stored(chapter)[0].source) == 1


def test_every_other_picture_has_words_too(site):
    for name, soup in site[2].items():
        assert all(image.get("alt", "").count(" ") >= 3 for image in soup.select("article img")), name
        assert all(table.select("thead th") for table in soup.select("article table")), name


@chapters
def test_folds_are_closed_and_named(site, chapter):
    soup = page(site, chapter)
    assert not soup.select("article details[open]")
    titles = [cell.source.split("\n")[0] for cell in stored(chapter) if "hide-input" in cell.metadata.get("tags", [])]
    folds = soup.select("article details.hide > summary")
    told = [title.removeprefix("# @title ").partition(" {")[0] for title in titles]
    assert [fold.p.text for fold in folds if fold.p.text in told] == told
    assert not [fold for fold in folds if fold.get("aria-label")]
    hints = sum(cell.source.count("<summary>Hint") for cell in stored(chapter) if cell.cell_type == "markdown")
    assert len([tag for tag in soup.select("article details > summary") if tag.text.startswith("Hint")]) == hints > 0


@chapters
def test_a_solution_is_folded_below_its_exercise_or_left_out(site, addressed, chapter):
    own = {cell.metadata["solution"] for cell in stored(chapter, solved=True) if "solution" in cell.metadata}
    folds = page(site, chapter).select("details.solution")
    assert {fold.summary.text.removeprefix("Solution of exercise ") for fold in folds} == own and own
    folded, left = words(" ".join(fold.text for fold in folds)), words(page(addressed, chapter).article.text)
    for cell in stored(chapter, solved=True):
        if cell.cell_type == "code" and "solution" in cell.metadata:
            code = words(cell.source)
            assert code in folded and code not in left
        if "exercise" in cell.metadata:
            code = words(cell.source.partition("### BEGIN SOLUTION")[2].partition("### END SOLUTION")[0])
            assert code in folded and code not in left
    for fold in folds:  # it ends before the next heading
        assert not fold.find(["h1", "h2", "h3"])
    assert "Solution of exercise" not in page(addressed, chapter).text


@chapters
def test_the_address_brings_two_buttons(site, addressed, chapter):
    links = [tag["href"] for tag in page(addressed, chapter).find_all("a", href=True)]
    assert colab_address(ADDRESS, settings()["ref"], f"notebooks/{chapter.name}") in links
    assert f"../_sources/notebooks/{chapter.name}" in links
    assert (addressed[0] / "_sources" / "notebooks" / chapter.name).read_bytes() == chapter.read_bytes()
    other = [tag["href"] for tag in page(site, chapter).find_all("a", href=True)]
    assert not [link for link in other if "colab" in link or "_sources" in link]


def test_a_link_to_a_source_file_goes_to_the_address_or_is_plain(site, addressed):
    file = f"{ADDRESS}/blob/{settings()['ref']}/classroom.toml"
    assert addressed[2]["docs/teaching.html"].select(f'article a[href="{file}"]')
    plain = site[2]["docs/teaching.html"].article
    assert "classroom.toml" in plain.text and not plain.select('a[href*="classroom.toml"]')
    canonical = addressed[2]["results.html"].find("link", rel="canonical")["href"]
    assert canonical == "https://someone.github.io/course/results.html"


def test_a_verdict_is_laid_out_and_leads_to_its_section(site):
    page = site[2]["notebooks/00_start_here.html"]
    heads = [tag.text for tag in page.select(".cell_output strong")]
    for head in ("○ Exercise 00.1: not answered yet", "✗ Exercise 00.1: not right yet", "✓ Exercise 00.1: right"):
        assert head in heads
    [link] = page.select('.cell_output a[href^="#"]')
    assert page.find(id=link["href"][1:]).find(["h2", "h3"]).text.startswith(link.text)


def test_every_recorded_file_is_told(site):
    told = {tag.text for tag in site[2]["results.html"].select("article td code")}
    assert {path.name for path in (ROOT / "data" / "results").glob("*.json*")} <= told


def test_the_live_page_is_linked_where_there_is_one(site):
    live = (ROOT / "docs" / "live.html").exists()
    assert bool(site[2]["index.html"].select('article a[href="live.html"]')) == live


def test_the_live_page_leads_to_the_chapters(site):
    live = site[2]["live.html"]
    assert {f"notebooks/{chapter}.html" for chapter in ("01_dot_product", "02_dense", "03_random", "06_mixtures")} <= {
        tag["href"] for tag in live.select("main a[href]")
    }
    assert live.select('main a[href="index.html"]') and ".ipynb" not in str(live) and "clone" not in live.main.text


def test_a_host_can_say_that_there_is_no_such_page(site, addressed):
    missing = addressed[2]["404.html"]
    assert missing.base["href"] == "https://someone.github.io/course/"  # it is shown at any address
    assert missing.find(href=True) is missing.base  # what stands before the base does not obey it
    assert "404.html" not in site[2]


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "essay.txt").write_text("mine", encoding="utf8")
    command = [sys.executable, "tools/book/build.py", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "holds something that is no site" in done.stderr
    assert (tmp_path / "essay.txt").read_text(encoding="utf8") == "mine"
