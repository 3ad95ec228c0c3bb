"""docs/glossary.md and docs/map.md are true: order, links, axes, what chapters need, and hours."""

import re
from pathlib import Path

import pytest

from synth_lib.scores import SCORES
from synth_lib.shapes import GLOSSARY
from tests.helpers.notebook_rules import github_problems

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCES = {path.stem[:2]: path for path in sorted((ROOT / "notebooks" / "src").glob("[0-9][0-9]_*.py"))}
MAP = (DOCS / "map.md").read_text(encoding="utf8")
WORDS = (DOCS / "glossary.md").read_text(encoding="utf8")
ENTRIES = re.findall(r"^- \*\*(.+?)\*\*(, an axis)?: (.+?)(?=^- |\Z)", WORDS, re.M | re.S)
TERMS = [term.strip("`") for term, _, _ in ENTRIES]
chapters = pytest.mark.parametrize("chapter", [pytest.param(number, id=f"chapter_{number}") for number in SOURCES])


def plain(text):
    """Words alone: no marks, hyphens or ends of lines."""
    return " ".join(re.sub(r"[*`_#-]+", " ", text.lower()).split())


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def linked(text):
    """The chapters that a text links to, in its order."""
    return re.findall(r"\]\([^)]*?(\d\d)_\w+\.ipynb\)", text)


# --- links ---


PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_github_shows_all_of_a_page(page):
    assert github_problems(page.read_text(encoding="utf8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_to_a_heading(page):
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf8"), re.M)
            assert anchor in map(slug, headings), target


@pytest.mark.parametrize("page", ["README.md", "notebooks/src/00_start_here.py"])
def test_readme_and_first_chapter_lead_to_both_pages(page):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf8"))
    folder = (ROOT / page).parent.parent if page.endswith(".py") else ROOT  # a source's links are its notebook's
    assert {DOCS / "map.md", DOCS / "glossary.md"} <= {(folder / target).resolve() for target in links}


# --- the glossary ---


def test_terms_stand_in_alphabetical_order_and_once():
    assert len(TERMS) > 60
    assert TERMS == sorted(TERMS, key=str.lower) and len({term.lower() for term in TERMS}) == len(TERMS)


def test_every_axis_is_there_with_its_meaning():
    axes = {term.strip("`"): plain(text) for term, axis, text in ENTRIES if axis}
    assert set(axes) == set(GLOSSARY)
    for name, meaning in GLOSSARY.items():
        assert axes[name].startswith(plain(meaning)), name


@pytest.mark.parametrize(("term", "axis", "text"), ENTRIES, ids=TERMS)
def test_a_term_is_explained_shortly_and_its_chapter_speaks_of_it(term, axis, text):
    (chapter,) = linked(text)
    told = plain(text.rpartition("[")[0])
    assert 3 <= len(told.split()) <= 45 and len(re.findall(r"[.:](?= [A-Z]|\s*\[)", text)) <= 3
    if "without this name" not in told:
        source = plain(SOURCES[chapter].read_text(encoding="utf8"))
        assert all(plain(one) in source for one in term.split(", ")), f"chapter {chapter} does not say {term}"


@chapters
def test_a_chapter_explains_a_term(chapter):
    assert chapter in {one for _, _, text in ENTRIES for one in linked(text)}


# --- the map ---


def rows(heading):
    """The rows of the table below a heading, without the head of the table."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", MAP, re.M | re.S)[1]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def needs():
    """{chapter: ({chapters it needs}, {chapters that help})}, from the table."""
    (_, *columns), _, *table = rows("Which chapter needs which")
    found = {}
    for first, *marks in table:
        (chapter,) = linked(first)
        assert set(marks) <= {"", "●", "○"} and len(marks) == len(columns)
        found[chapter] = tuple({one for one, mark in zip(columns, marks, strict=True) if mark == kind} for kind in "●○")
    return found


def named_before(chapter):
    """The chapters that a chapter names under "Before you start"; "01 to 06" names those between, too."""
    source = SOURCES[chapter].read_text(encoding="utf8")
    start = re.search(r"\*\*Before you start:\*\*(.*?)\n# - \*\*", source, re.S)[1]
    start = re.sub(r"\[[^\]]*?(\d\d)\]\([^)]*\)", r"\1", start.replace("\n#", " "))
    for first, last in re.findall(r"(\d\d) +to +(\d\d)", start):
        start += " ".join(one for one in SOURCES if first < one < last)
    return set(re.findall(r"\b\d\d\b", start)) & set(SOURCES)


def test_every_chapter_has_a_row_in_the_order_of_its_number():
    assert list(needs()) == list(SOURCES)


@chapters
def test_a_chapter_needs_what_it_says_itself(chapter):
    first, helps = needs()[chapter]
    assert first | helps == named_before(chapter)
    assert all(one < chapter for one in first | helps)


def minutes(chapter):
    return int(re.search(r"\*\*Time:\*\* about (\d+) minutes", SOURCES[chapter].read_text(encoding="utf8"))[1])


ROUTES = rows("Three routes")[2:]


@pytest.mark.parametrize(("name", "listed", "hours", "whom"), ROUTES, ids=[row[0] for row in ROUTES])
def test_the_hours_of_a_route_are_those_of_its_chapters(name, listed, hours, whom):
    listed = listed.split(", ")
    total = sum(map(minutes, listed))
    assert f"{float(hours):g}" == f"{round(total / 30) / 2:g}", f"{name}: {total} minutes"
    before = {"00"}
    for chapter in listed:
        assert needs()[chapter][0] <= before, f"{name}: {chapter} needs {sorted(needs()[chapter][0] - before)}"
        before.add(chapter)
    assert len(whom.split()) >= 8


def test_there_are_three_routes_and_the_last_is_all():
    assert len(ROUTES) == 3 and ROUTES[-1][1].split(", ") == list(SOURCES)


def test_every_s_of_the_library_is_in_the_table():
    names = [name.strip("`") for _, _, name, _ in rows("The S of the series")[2:]]
    assert set(names) == {*SCORES, "random + dense` and so on"}
