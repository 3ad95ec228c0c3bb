"""docs/live.html: it holds whole numbers, and what its JavaScript makes of them is what the library makes.

The JavaScript runs in quickjs-ng, of the extra `test`, or in node. Without both, five tests are skipped: then it is
proved that the numbers are whole and fit the library, but not what the scripts compute.
"""

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from synth_lib.attention import Attention

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import live_page  # noqa: E402

PAGE = (ROOT / "docs" / "live.html").read_text(encoding="utf8")
NUMBERS = json.loads(live_page.split(PAGE)[1])
STEPS = NUMBERS["steps"]


def library_layer(name, step):
    """A layer of the library whose score has the page's numbers, and the rows of the words."""
    numbers = NUMBERS[name][step] if isinstance(NUMBERS[name], list) else NUMBERS[name]
    numbers = {key: torch.tensor(value) for key, value in numbers.items()}
    words = numbers.pop("words")
    layer = Attention(**NUMBERS["sizes"], score=live_page.SCORES[name]).eval()
    layer.score.load_state_dict(numbers)  # strict: every parameter, in its shape
    return layer, words


def library_map(name, tokens, head, causal, step):
    layer, words = library_layer(name, step)
    layer.causal = causal
    with torch.no_grad():
        return layer(words[tokens][None])[1][0, head]


def run_javascript(code):
    """The value of the JavaScript `code`, which is a string, by quickjs-ng or node; skips where there is neither."""
    try:
        import quickjs
    except ImportError:
        node = shutil.which("node")
        if not node:
            pytest.skip("no quickjs-ng and no node here: pip install -e '.[test]' brings the first")
        done = subprocess.run([node, "-"], input=f"process.stdout.write(eval({json.dumps(code)}))",
                              capture_output=True, text=True, encoding="utf8", check=True)  # fmt: skip
        return done.stdout
    return quickjs.Context().eval(code)


def in_page(expression, **given):
    """The value of an expression that uses the page's own equations, its numbers, and what is given."""
    equations = re.search(r'<script id="equations">(.*?)</script>', PAGE, re.S)[1]
    values = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in {"numbers": NUMBERS, **given}.items())
    return json.loads(run_javascript(f"{equations}\n{values}JSON.stringify({expression})"))


def some_cases():
    """All scores, heads, switches and steps, each with a sentence of any six words."""
    draw = random.Random(0)
    return [
        [name, [draw.randrange(len(live_page.WORDS)) for _ in range(6)], head, causal, step]
        for name in live_page.SCORES
        for head in range(NUMBERS["sizes"]["head"])
        for causal in (False, True)
        for step in range(len(STEPS))
    ]


def test_the_page_is_one_small_file():
    assert len(PAGE.encode()) < 300_000
    links = re.findall(r'(?:src|href)="([^"]*)"', PAGE)
    chapters = [link for link in links if link.startswith("../notebooks/")]
    assert all((ROOT / "docs" / link).is_file() for link in chapters) and len(chapters) >= 4
    assert set(links) - set(chapters) == {"data:,", "https://arxiv.org/abs/2005.00743"}, "it works from a file, alone"


def test_the_numbers_are_those_of_the_models_that_the_tool_describes():
    assert (NUMBERS["kinds"], NUMBERS["sizes"], STEPS) == (live_page.KINDS, live_page.SIZES, live_page.STEPS)
    for name in live_page.SCORES:
        for step in range(len(STEPS)):
            _, words = library_layer(name, step)
            assert words.shape == (len(live_page.WORDS), NUMBERS["sizes"]["d_model"])
    for name, R in {"random": "R", "mixture": "parts.0.R"}.items():
        assert len(NUMBERS[name]) == len(STEPS)
        tables = torch.stack([torch.tensor(kept[R]) for kept in NUMBERS[name]])
        moved = (tables[1:] - tables[:-1]).abs().amax(dim=(1, 2, 3))
        assert (moved > 0.01).all(), "R learns from each kept step to the next"


def test_the_maps_equal_those_of_the_library():
    cases = some_cases()
    maps = in_page("cases.map(one => weightsOf(numbers, ...one))", cases=cases)
    for case, found in zip(cases, maps, strict=True):
        torch.testing.assert_close(torch.tensor(found), library_map(*case), rtol=0, atol=1e-3, msg=str(case))


def test_what_moves_is_what_each_score_reads():
    """Table 1, by the page's own numbers and words: one word is exchanged, then R learns a step."""
    before = [live_page.WORDS.index(word) for word in NUMBERS["sentence"]]
    after = before.copy()
    after[2] = live_page.WORDS.index("slept")
    expression = """Object.keys(SCORES).map(name => [false, true].map(causal => {
        const start = weightsOf(numbers, name, before, 0, causal, 1);
        const moved = (tokens, step) => inWords(movedCells(start, weightsOf(numbers, name, tokens, 0, causal, step)));
        return [moved(after, 1), moved(before, 2)];
    }))"""
    none = "no row moved"
    assert dict(zip(live_page.SCORES, in_page(expression, before=before, after=after), strict=True)) == {
        "dot_product": [["all 6 rows moved", none], ["rows 3 to 6", none]],
        "dense": [["row 3 only", none], ["row 3 only", none]],
        "random": [[none, "all 6 rows moved"], [none, "rows 2 to 6"]],
        "mixture": [["row 3 only", "all 6 rows moved"], ["row 3 only", "rows 2 to 6"]],
    }


def test_every_exchange_moves_something_where_words_are_read():
    """No reader meets two words with one row: a relu that shuts a whole head would make Dense look like Random."""
    expression = """Object.keys(SCORES).map(name => [0, 1].map(head => {
        const map = tokens => weightsOf(numbers, name, tokens, head, false, numbers.steps.length - 1);
        const start = map(sentence);
        return sentence.map((word, place) => words.filter(other => other !== word).map(other =>
            inWords(movedCells(start, map(sentence.with(place, other))))));
    }))"""
    sentence = [live_page.WORDS.index(word) for word in NUMBERS["sentence"]]
    found = in_page(expression, sentence=sentence, words=list(range(len(live_page.WORDS))))
    for name, heads in zip(live_page.SCORES, found, strict=True):
        for places in heads:
            for place, moved in enumerate(places, start=1):
                row = f"row {place} only"
                expected = {"dot_product": "all 6 rows moved", "random": "no row moved"}.get(name, row)
                assert set(moved) == {expected}, name


def test_rows_in_words():
    rows = [[], [2], [0, 1, 2, 3], [1, 2, 3], [0, 2]]
    cells = [[[int(row in moved)] for row in range(4)] for moved in rows]
    assert in_page("cells.map(inWords)", cells=cells) == [
        "no row moved", "row 3 only", "all 4 rows moved", "rows 2 to 4", "rows 1, 3",
    ]  # fmt: skip


def test_large_scores_become_finite_weights():
    assert in_page("[softmax([1000, 0]), softmax([-1000, -1000])]") == [[1, 0], [0.5, 0.5]]
