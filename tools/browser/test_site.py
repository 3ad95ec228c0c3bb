"""The site as its readers see it, on a wide screen and on a phone: layout, formulas, folds, search, accessibility."""

import re

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import expect

from tools.browser.conftest import pictured
from tools.browser.run import OUT, ROOT

SITE = ROOT / "build" / "site"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
assert PAGES, "there is no site yet: make book"
WIDE, PHONE = 1280, 360
widths = pytest.mark.parametrize("width", [WIDE, PHONE])
# What reaches over the right edge of the window, and of the parts around it none scrolls.
TOO_WIDE = """() => {
    const scrolls = element => element && element !== document.body &&
        (["auto", "scroll"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
    const wide = [...document.querySelectorAll("article *, body > main *")].filter(element => {
        const box = element.getBoundingClientRect();
        return box.width > 1 && box.right > innerWidth + 1 && element.checkVisibility() &&
            !element.closest("mjx-assistive-mml") && !scrolls(element.parentElement);
    });
    const page = document.documentElement;
    return [...(page.scrollWidth > page.clientWidth ? ["the page"] : []),
            ...wide.map(element => element.outerHTML.slice(0, 120))];
}"""
# Text that is cut: a box that hides what does not fit.
CUT = """() => [...document.querySelectorAll("article td, article p, article li, article summary")].filter(element =>
    getComputedStyle(element).overflowX === "hidden" && element.scrollWidth > element.clientWidth + 1
).map(element => element.outerHTML.slice(0, 120))"""

MISSING = "[...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"
# Code of a chapter that is wider than its place. Of the set-up cell, which nobody reads, it may be.
LONG_CODE = """() => [...document.querySelectorAll("article .cell_input pre")].filter(code =>
    code.scrollWidth > code.clientWidth && !code.textContent.includes("SetUpError")
).map(code => code.textContent.slice(0, 120))"""
SCROLLING = """[...document.querySelectorAll("article pre")].filter(one => one.scrollWidth > one.clientWidth).length"""


def settled(page):
    """The formulas are drawn, the pictures are there, and nothing moves any more."""
    page.wait_for_load_state("load")
    page.evaluate("window.MathJax ? MathJax.startup.promise : null")
    page.evaluate("Promise.all(document.getAnimations().map(one => one.finished.catch(() => null)))")


def open_folds(page):
    page.evaluate("document.querySelectorAll('article details').forEach(fold => { fold.open = true; })")
    settled(page)


@widths
@pytest.mark.parametrize("name", PAGES)
def test_nothing_overflows_and_formulas_are_drawn(open_page, site, name, width):
    page = open_page(f"{site}/{name}", width)
    settled(page)
    with pictured(page, f"site-{width}-{name.removesuffix('.html').replace('/', '-')}"):
        open_folds(page)
        assert page.evaluate(TOO_WIDE) == []
        assert page.evaluate(CUT) == []
        written = page.locator("article .math")
        drawn = page.locator("article .math > mjx-container")
        assert drawn.count() == written.count()
        expect(page.locator("mjx-merror")).to_have_count(0)
        assert page.evaluate(MISSING) == []
        assert width == PHONE or page.evaluate(LONG_CODE) == []
        expect(page.locator("article pre.scrolls")).to_have_count(page.evaluate(SCROLLING))


@widths
def test_folds_open_by_mouse_and_by_keyboard(open_page, site, width):
    page = open_page(f"{site}/notebooks/02_dense.html", width)
    settled(page)
    for kind in ("article details.hide", "article details:has(> summary:text-matches('^Hint'))", "details.solution"):
        fold = page.locator(kind).first
        summary, inside = fold.locator("> summary"), fold.locator("> :not(summary)").first
        expect(inside).to_be_hidden()
        summary.click()
        expect(inside).to_be_visible()
        summary.press("Enter")
        expect(inside).to_be_hidden()


@widths
def test_search_finds_causal(open_page, site, width):
    page = open_page(f"{site}/index.html", width)
    page.locator("button.search-button__button:visible").click()
    field = page.locator("dialog input[type=search]")
    field.fill("causal")
    field.press("Enter")
    page.wait_for_url("**/search.html?q=causal*")
    found = page.locator("#search-results li a")
    expect(page.locator("#search-results")).to_contain_text(re.compile(r"found \d+ page"))
    assert found.count() >= 3
    page.screenshot(path=OUT / f"site-{width}-search-causal.jpg", quality=50)
    found.first.click()
    expect(page.locator("article")).to_contain_text(re.compile("causal", re.I))


def test_dark_and_light_by_a_button(open_page, site):
    page = open_page(f"{site}/index.html")
    paper = "getComputedStyle(document.body).backgroundColor"
    seen = {}
    for name, mode in {"System Settings": "auto", "Dark": "dark", "Light": "light"}.items():
        page.get_by_role("button", name="Color mode").click()
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.locator("html")).to_have_attribute("data-mode", mode)
        settled(page)
        seen[mode] = page.evaluate(paper)
    assert seen["dark"] != seen["light"] == seen["auto"]


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light")])
@pytest.mark.parametrize(
    "name",
    ["index.html", "notebooks/00_start_here.html", "notebooks/02_dense.html", "docs/glossary.html", "live.html"],
)
def test_axe_finds_no_violation(open_page, site, name, width, scheme):
    page = open_page(f"{site}/{name}", width, scheme)
    settled(page)
    open_folds(page)
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate("axe.run()")
    told = [(rule["id"], rule["help"], [node["target"] for node in rule["nodes"]][:5]) for rule in found["violations"]]
    assert told == []
    checked = {rule["id"] for rule in found["passes"]}
    assert {"color-contrast", "document-title", "html-has-lang"} <= checked


@widths
@pytest.mark.parametrize("name", ["index.html", "notebooks/02_dense.html", "live.html"])
def test_the_keyboard_is_seen_where_it_is(open_page, site, name, width):
    """Each of the first places that Tab reaches looks different while it is reached."""
    page = open_page(f"{site}/{name}", width)
    settled(page)
    look = """element => { const style = getComputedStyle(element); return [style.outlineStyle, style.outlineWidth,
        style.outlineColor, style.boxShadow, style.textDecoration, style.borderColor, style.backgroundColor].join() }"""
    for _ in range(12):
        page.keyboard.press("Tab")
        here = page.evaluate_handle("document.activeElement").as_element()
        with_focus = here.evaluate(look)
        here.evaluate("element => element.blur()")
        settled(page)
        without = here.evaluate(look)
        assert with_focus != without, here.evaluate("element => element.outerHTML.slice(0, 200)")
        here.evaluate("element => element.focus({ focusVisible: true })")


@widths
def test_the_live_page_reacts(open_page, site, width):
    page = open_page(f"{site}/index.html", width)
    page.get_by_role("link", name="See the weights move").click()
    page.wait_for_url("**/live.html")
    arrows = """[...document.querySelectorAll("select")].map(word =>
        getComputedStyle(word.parentElement, "::after").content)"""
    assert page.evaluate(arrows) == ['"▾"'] * 6, "a word looks like a menu"
    moved = {name: page.locator(f"#{name} td.moved") for name in ("dot_product", "dense", "random", "mixture")}
    said = page.locator("#said")
    page.get_by_label("word 2", exact=True).select_option(label="dog")
    expect(said).to_contain_text("“dog” stands for “cat”")
    expect(page.locator("#dense tbody tr:has(td.moved)")).to_have_count(1)
    expect(page.locator("#dense tbody tr").nth(1).locator("td.moved")).not_to_have_count(0)
    expect(page.locator("#dot_product tbody tr:has(td.moved)")).to_have_count(6)
    expect(moved["random"]).to_have_count(0)
    page.screenshot(path=OUT / f"live-{width}-exchanged.jpg", quality=50, full_page=True)
    # The keyboard alone.
    page.get_by_label("word 6").focus()
    page.keyboard.press("ArrowDown")
    expect(said).to_contain_text("“hat” stands for “mat”")
    page.locator("#step").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#steps")).to_have_text("R after 160 steps")
    expect(page.locator("#random tbody tr:has(td.moved)")).to_have_count(6)
    expect(moved["dense"]).to_have_count(0)
    page.locator("#causal").focus()
    page.keyboard.press("Space")
    expect(page.locator("#dense td.shut")).to_have_count(15)
    page.get_by_label("head 1").focus()
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("The maps of head 2.")
    page.locator("#back").focus()
    page.keyboard.press("Enter")
    expect(said).to_contain_text("The first sentence is back.")
    page.screenshot(path=OUT / f"live-{width}-keyboard.jpg", quality=50, full_page=True)
