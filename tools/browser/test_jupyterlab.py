"""What a reader does in JupyterLab: runs a blank chapter to its end, answers an exercise, interrupts a long cell."""

import re

import pytest
from playwright.sync_api import expect

from tools.browser.run import LONG, OUT

DONE = re.compile(r"^\[\d+\]:$")
WRONG = "def split_heads(features, head):\n    return features.reshape(len(features), head, features.shape[1], -1)"
RIGHT = (
    "def split_heads(features, head):\n"
    '    return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=head)'
)


def open_chapter(open_page, lab, chapter):
    """A chapter whose kernel is ready."""
    page = open_page(lab(f"notebooks/{chapter}.ipynb"))
    expect(page.locator(".jp-CodeCell").first).to_be_visible()
    idle(page)
    return page


def menu(page, name, entry):
    page.get_by_role("menuitem", name=name, exact=True).click()
    page.get_by_role("menuitem", name=re.compile(f"^{entry}")).click()


def idle(page):
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=LONG)


def cell(page, words):
    """The code cell whose source has these words, or fits this pattern."""
    found = page.locator(".jp-CodeCell").filter(has=page.locator(".jp-InputArea-editor", has_text=words))
    expect(found).to_have_count(1)
    return found


def run(page, of):
    of.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def write(page, of, text):
    of.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)
    page.keyboard.press("Control+Enter")
    expect(of.locator(".jp-InputArea-prompt")).to_have_text(DONE)


def errors(within):
    """A traceback has the mime type of the error stream."""
    return within.locator('[data-mime-type="application/vnd.jupyter.stderr"]')


def run_all(page):
    menu(page, "Run", "Run All Cells")
    prompts = page.locator(".jp-CodeCell .jp-InputArea-prompt")
    expect(prompts).to_have_text([DONE] * prompts.count(), timeout=LONG)
    idle(page)
    expect(errors(page)).to_have_count(0)


@pytest.mark.parametrize(("chapter", "formulas"), [("00_start_here", 0), ("02_dense", 50)])
def test_a_blank_chapter_runs_to_its_end(open_page, lab, chapter, formulas):
    page = open_chapter(open_page, lab, chapter)
    run_all(page)
    checks = page.locator(".jp-CodeCell").filter(
        has=page.locator(".jp-InputArea-editor", has_text=re.compile(r'^\s*check\("'))
    )
    assert checks.count() >= 3
    for check in checks.all():
        expect(check.locator(".jp-OutputArea-output")).to_contain_text("not answered yet")
    assert page.locator(".jp-OutputArea-output img").count() >= 1
    assert page.locator("mjx-container").count() >= formulas
    expect(page.locator("mjx-merror")).to_have_count(0)
    page.screenshot(path=OUT / f"lab-{chapter}.jpg", quality=50)


def test_an_exercise_is_answered_wrong_and_then_right(open_page, lab):
    page = open_chapter(open_page, lab, "00_start_here")
    run_all(page)
    answer, check = cell(page, "def split_heads"), cell(page, re.compile(r'^\s*check\("00\.1"'))
    verdict = check.locator(".jp-OutputArea-output")
    expect(verdict).to_contain_text("not answered yet")
    write(page, answer, WRONG)
    run(page, check)
    expect(verdict).to_contain_text("The trap: right shape, wrong numbers")  # the section to read again
    expect(verdict).to_contain_text("Exercise 00.1: not right yet")
    check.scroll_into_view_if_needed()
    page.screenshot(path=OUT / "lab-wrong.jpg", quality=50)
    write(page, answer, RIGHT)
    run(page, check)
    expect(verdict).to_contain_text("Exercise 00.1: right")
    page.screenshot(path=OUT / "lab-right.jpg", quality=50)


def test_a_long_cell_is_interrupted_and_goes_on(open_page, lab):
    page = open_chapter(open_page, lab, "13_train_on_gpu")
    training = cell(page, "with ThreadPoolExecutor(2)")
    training.locator(".cm-content").click()
    menu(page, "Run", "Run All Above Selected Cell")
    idle(page)
    expect(errors(page)).to_have_count(0)
    prompt, output = training.locator(".jp-InputArea-prompt"), training.locator(".jp-OutputArea-output")
    run(page, training)
    expect(output.first).to_contain_text(re.compile(r"[1-9]\d*(/| of )\d+"), timeout=LONG)  # the bar counts steps
    menu(page, "Kernel", "Interrupt Kernel")
    expect(prompt).to_have_text(DONE, timeout=LONG)
    idle(page)
    expect(output.last).to_contain_text("Stopped.")
    page.screenshot(path=OUT / "lab-interrupted.jpg", quality=50)
    run(page, training)
    expect(prompt).not_to_have_text(DONE)
    expect(prompt).to_have_text(DONE, timeout=LONG)
    expect(errors(training)).to_have_count(0)
    expect(output.last).to_contain_text("nanoGPT's README, after 2,000 steps")
    page.screenshot(path=OUT / "lab-went-on.jpg", quality=50)
