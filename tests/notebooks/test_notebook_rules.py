"""Each rule of notebook_rules.py bites: it accepts a small right notebook and refuses a small wrong one."""

import base64
import io

import pytest
from nbformat import v4
from PIL import Image

from tests.helpers import notebook_rules as rules
from tools.build_notebooks import FOLDED, notebook_metadata


def notebook(*cells):
    """A notebook like those that the build writes."""
    result = v4.new_notebook(cells=list(cells), metadata=notebook_metadata())
    result.nbformat_minor = 5
    for count, cell in enumerate(rules.code_cells(result), start=1):
        cell.execution_count = count
    return result


def code(source, *outputs, **metadata):
    return v4.new_code_cell(source, outputs=list(outputs), metadata=metadata)


def told(text, **metadata):
    return v4.new_markdown_cell(text, metadata=metadata)


def prints(text, name="stdout"):
    return v4.new_output("stream", text=text, name=name)


def shows(**data):
    return v4.new_output("display_data", data={kind.replace("_", "/"): value for kind, value in data.items()})


def with_changes(change):
    """A right notebook of two cells after `change`, which gets the notebook."""
    result = notebook(code("1 + 1"), code("2 + 2"))
    change(result)
    return result


IMAGE = shows(image_png="aGVsbG8=", text_plain="<Figure size 500x300 with 1 Axes>")


def figure(pixels, **metadata):
    """A picture of so many pixels in a row, and what its output says of it."""
    Image.new("P", (pixels, 1)).save(file := io.BytesIO(), "PNG")
    data = {"image/png": base64.b64encode(file.getvalue()).decode()}
    return v4.new_output("display_data", data=data, metadata={"image/png": metadata} if metadata else {})


CAPTION = shows(text_markdown="*Figure: a map of 6 rows, darkest on the diagonal.*")
EXERCISE = "def answer(x):\n    ### BEGIN SOLUTION\n    return x.softmax(dim=-1)\n    ### END SOLUTION"
BLANK = "def answer(x):\n    raise NotImplementedError"
IGNORED = "nbval-ignore-output"
SIZES = "batch, length = 2, 6\nwords = 'a b c'.split()"

RIGHT = {
    "rule_format": [notebook(code("1 + 1"), v4.new_markdown_cell("text"), code("2 + 2"))],
    "rule_clean_outputs": [notebook(code("x", prints("tensor([1., 2.])\n0x is no address")))],
    "rule_digits": [
        notebook(code("x", prints("0.1234 12.34 1,081,344 3.11.7 0.00001234 [0.111,0.222]"))),
        notebook(code("x", shows(text_html='<td style="width: 12.34567px">1.5</td>'))),
    ],
    "rule_captions": [notebook(code("show(fig, alt)", IMAGE, CAPTION, IMAGE, CAPTION))],
    "rule_sharp_figures": [notebook(code("show(fig, alt)", figure(1600, width=800), CAPTION, figure(801, width=400)))],
    "rule_no_remote_image": [
        notebook(v4.new_markdown_cell("[a link](https://arxiv.org/abs/2005.00743) ![local](picture.png)"))
    ],
    "rule_github": [
        notebook(told("<details><summary>Hint: $a b$</summary>\n\n`<style>`, 1 < 2, $5^2$, \\$5.\n\n</details>")),
        notebook(told('<details open><summary>x</summary>\n\n<a href="https://example.org">y</a>\n\n</details>')),
        notebook(told("| a | b |\n|---|---|\n| `x` | $|a|$ |\n".replace("|a|", "\\|a\\|"))),
        notebook(told("```\n| $ | style=\n| <script>\n```"), code("x", prints("<b class='x'> $"))),
        notebook(told("$$\n\\begin{aligned} y &= x \\end{aligned}\n$$")),
    ],
    "rule_no_semicolon": [notebook(code("x = 'a; b'  # one; two"))],
    "rule_short_cells": [notebook(code("x = 1\n\n" * 30))],
    "rule_short_lines": [notebook(code("x" * 100 + "\nx")), notebook(code("x" * 101, jupyter={"source_hidden": True}))],
    "rule_varies": [
        notebook(code("# Output varies: times differ between machines.\nt", tags=["nbval-ignore-output"])),
    ],
    "rule_folded": [
        notebook(code("# @title The values are the same\nassert True", **FOLDED)),
        notebook(code("# @title Times\n# Output varies: it does.\nt", **FOLDED | {"tags": ["hide-input", IGNORED]})),
    ],
    "rule_few_true": [notebook(code("x", prints("True\n" * 10 + "Truely untrue")))],
    "rule_solutions": [
        notebook(
            code(EXERCISE, exercise="02.1"),
            told("Because it does. " * 5, solution="02.1"),
            code('check("02.1", another)', solution="02.1"),
        ),
        notebook(code(BLANK, exercise="02.1")),
    ],
    "rule_stretch": [
        notebook(told("### Stretch 02.1: break it\n\ntext"), code(BLANK, exercise="02.1")),
        notebook(told("no exercise, no stretch")),
    ],
    "rule_shapes_are_checked": [
        notebook(code('# x: (batch, length, d_model)\nx = axes(x, "batch length d_model")')),
        notebook(code('# batch x length\nx = axes_short(x, "batch length")')),
        notebook(code('# predict the shape first\nAxes(batch=2)(x, "batch length")')),
        notebook(code("# the batch, in order (length and all), max(1, 2)")),
    ],
    "rule_sizes_differ": [
        notebook(code(SIZES), code("axes = Axes(batch=batch, length=length, key=len(words), d_model=4 * batch)")),
        notebook(code("axes = Axes(batch=2, d_model=12, head=3)")),
        notebook(code("n = 2"), code("axes = Axes(batch=n, length=3)"), code("n = 3")),
    ],
    "rule_glossary": [
        notebook(code('axes(rearrange(x, "batch (head d_head) -> batch head d_head"), "batch head ...")')),
        notebook(code('reduce(x, "batch length -> batch", "mean")\nx.repeat(2, 1)\naxes["d_head"]')),
    ],
    "rule_exercises": [
        notebook(code(EXERCISE, exercise="02.1"), code('print("before")\ncheck("02.1", answer)', check="02.1")),
    ],
}

WRONG = {
    "rule_format": [
        with_changes(lambda nb: setattr(nb, "nbformat_minor", 4)),
        with_changes(lambda nb: nb.metadata.pop("language_info")),
        with_changes(lambda nb: nb.metadata.language_info.update(version="3.11.7")),
        with_changes(lambda nb: nb.metadata.kernelspec.update(name="my-kernel")),
        with_changes(lambda nb: nb.metadata.kernelspec.update(language="julia")),
        with_changes(lambda nb: nb.metadata.kernelspec.pop("display_name")),
        with_changes(lambda nb: nb.cells[0].update(id=nb.cells[1].id)),
        with_changes(lambda nb: nb.cells[0].update(id="no blanks")),
        with_changes(lambda nb: nb.cells[0].pop("id")),
        with_changes(lambda nb: nb.cells[1].update(execution_count=None)),
        with_changes(lambda nb: nb.cells[1].update(execution_count=3)),
        with_changes(lambda nb: nb.cells[1].metadata.update(execution={"shell.execute_reply": "12:00"})),
        notebook(code("x", prints("x" * 300_000))),
    ],
    "rule_clean_outputs": [
        notebook(code("x", v4.new_output("error", ename="ValueError", evalue="no", traceback=[]))),
        notebook(code("x", prints("UserWarning: old", name="stderr"))),
        notebook(code("x", shows(text_plain="<Generator object at 0x7f0f28a1b2c0>"))),
        notebook(code("x", prints("saved /home/ada/run.json"))),
        notebook(code("x", prints("saved C:\\Users\\ada"))),
    ],
    "rule_digits": [
        notebook(code("x", prints(text))) for text in ("0.12345", "12.345", "1.0000", "1234.5", "1,234.5", "1.2345e-05")
    ]
    + [
        notebook(code("x", shows(text_html="<td>0.98765</td>"))),
        notebook(code("x", shows(text_markdown="loss 2.30259"))),
    ],
    "rule_captions": [
        notebook(code("plt.show()", IMAGE)),
        notebook(code("plt.show()", CAPTION, IMAGE)),
        notebook(code("plt.show()", IMAGE, IMAGE, CAPTION)),
        notebook(code("plt.show()", IMAGE, shows(text_markdown="*Figure: map*"))),
    ],
    "rule_sharp_figures": [
        notebook(code("show(fig, alt)", figure(800, width=800))),
        notebook(code("show(fig, alt)", figure(1602, width=801))),
        notebook(code("plt.show()", figure(800))),
    ],
    "rule_no_remote_image": [
        notebook(v4.new_markdown_cell("![a map](https://example.org/map.png)")),
        notebook(v4.new_markdown_cell("<img width=3 src='//example.org/map.png'>")),
        notebook(code("x", shows(text_html='<img src="http://example.org/map.png">'))),
    ],
    "rule_github": [
        notebook(told('<b style="color: red">wrong</b>')),
        notebook(told("<script>alert(1)</script>")),
        notebook(told("$\\operatorname{softmax}(x)$")),
        notebook(told("$$\\newcommand{\\S}{x} \\S$$")),
        notebook(told("<details><summary>Hint</summary>\n**bold**\n</details>")),
        notebook(told("| a | b |\n|---|---|\n| <details><summary>h</summary>x</details> | b |")),
        notebook(told("| a | b |\n|---|---|\n| `x | y` | b |")),
        notebook(told("It costs $5.")),
        notebook(told("Between $ x $ and more")),
        notebook(told("$x$2 and more")),
        notebook(code("x", shows(text_html="<table class='dataframe'><tr><td>1</td></tr></table>"))),
        notebook(code("x", shows(text_markdown="*Figure: $x$2*"))),
    ],
    "rule_no_semicolon": [notebook(code("plt.plot(x);")), notebook(code("a = 1; b = 2\na"))],
    "rule_short_cells": [notebook(code("x = 1\n" * 31))],
    "rule_short_lines": [notebook(code("x\n" + "x" * 101))],
    "rule_varies": [
        notebook(code("seconds", tags=["nbval-ignore-output"])),
        notebook(code("# NBVAL_IGNORE_OUTPUT\nseconds")),
        notebook(code("# Output varies: it fails.\n1 / 0", tags=["raises-exception"])),
    ],
    "rule_folded": [
        notebook(code("# @title No tag\n1", cellView="form", jupyter={"source_hidden": True})),
        notebook(code("# @title The tag alone\n1", tags=["hide-input"])),
        notebook(code("1  # no title", **FOLDED)),
    ],
    "rule_few_true": [
        notebook(code("x", prints("True\n" * 11))),
        notebook(code("x", prints("True " * 6)), code("x", shows(text_plain="(True, True, True, True, True)"))),
    ],
    "rule_solutions": [
        notebook(code(EXERCISE, exercise="02.1"), code('check("02.1", another)', solution="02.1")),
        notebook(code(EXERCISE, exercise="02.1"), told("Because it does. " * 5, solution="02.1")),
        notebook(
            code(EXERCISE, exercise="02.1"),
            told("Because it does. " * 5, solution="02.2"),
            code('check("02.1", another)', solution="02.2"),
        ),
    ],
    "rule_stretch": [
        notebook(code(BLANK, exercise="02.1")),
        notebook(told("### Stretch 02.2: another"), code(BLANK, exercise="02.1")),
        notebook(told("### Stretch 02.1: a\n### Stretch 02.2: b"), code(BLANK, exercise="02.1")),
    ],
    "rule_shapes_are_checked": [
        notebook(code("x = x @ w  # (batch, length, d_model)")),
        notebook(code('# (batch, length)\naxes(x, "length batch")')),
        notebook(code("# batch x length\nx = y")),
        notebook(code("x = y  # the shape stays the same")),
        notebook(code("x = y  # (2, length)"), code('axes(x, "batch length")')),
    ],
    "rule_sizes_differ": [
        notebook(code("axes = Axes(batch=4, length=4)")),
        notebook(code(SIZES), code("axes = Axes(length=length, d_model=batch * 3)")),
        notebook(code("axes = Axes(batch=4, d_model=12, head=3)")),
        notebook(code("axes = Axes(batch=x.shape[0])")),
        notebook(code("n = 3"), code("axes = Axes(batch=n, length=3)"), code("n = 2")),
        notebook(code("n = 3"), code("n = x.shape[0]"), code("axes = Axes(batch=n, length=4)")),
    ],
    "rule_glossary": [
        notebook(code('rearrange(x, "batch seq -> seq batch")')),
        notebook(code('einops.einsum(x, w, "batch length, length width -> batch width")')),
        notebook(code('torch.einsum("bld,de->ble", x, w)')),
        notebook(code('pattern = "batch tokens"\naxes(x, pattern)')),
        notebook(code('axes(x, pattern="batch tokens")')),
        notebook(code("axes = Axes(batch=2, sentence=3)")),
        notebook(code('axes["width"]')),
        notebook(code('Rearrange("batch time -> time batch")')),
    ],
    "rule_exercises": [
        notebook(code(EXERCISE, exercise="02.1")),
        notebook(code(EXERCISE, exercise="02.1"), code('check("02.1", other)', check="02.1")),
        notebook(code(EXERCISE, exercise="03.1"), code('check("03.1", answer)', check="03.1")),
        notebook(code("x = 1", exercise="02.1"), code('check("02.1", x)', check="02.1")),
        notebook(code('check("02.1", answer)', check="02.1")),
        notebook(code(EXERCISE, exercise="02.1"), code('check("02.1", answer)', check="02.1"), code("answer(1)")),
    ],
}


def cases(examples):
    return [
        pytest.param(getattr(rules, name), example, id=f"{name}-{number}")
        for name, notebooks in examples.items()
        for number, example in enumerate(notebooks)
    ]


@pytest.mark.parametrize(("rule", "example"), cases(RIGHT))
def test_rule_accepts_what_is_right(rule, example):
    assert rule(example, "02_dense") == []


@pytest.mark.parametrize(("rule", "example"), cases(WRONG))
def test_rule_refuses_what_is_wrong(rule, example):
    problems = rule(example, "02_dense")
    assert problems and all(isinstance(problem, str) for problem in problems)


def test_every_rule_has_examples():
    names = [rule.__name__ for rule in rules.RULES]
    assert sorted(names) == sorted(RIGHT) == sorted(WRONG)


def test_the_training_chapter_may_have_longer_cells():
    assert rules.rule_short_cells(notebook(code("x = 1\n" * 60)), "13_train_on_gpu") == []
    assert rules.rule_short_cells(notebook(code("x = 1\n" * 61)), "13_train_on_gpu")


def test_blank_notebook_holds_no_solution():
    solved = notebook(code(EXERCISE, exercise="02.1"))
    assert rules.rule_blank(notebook(code(BLANK, exercise="02.1")), solved) == []
    assert rules.rule_blank(solved, solved)
    assert rules.rule_blank(notebook(code("def answer(x):\n    pass", exercise="02.1")), solved)
    assert rules.rule_blank(notebook(code(BLANK, exercise="02.1"), told("because", solution="02.1")), solved)
    told_all = v4.new_markdown_cell("Write `return x.softmax(dim=-1)`.")
    assert rules.rule_blank(notebook(code(BLANK, exercise="02.1"), told_all), solved)
