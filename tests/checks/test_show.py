"""How a verdict looks: in words and signs, with links that lead somewhere, and an answer's own text is only text."""

import importlib
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from synth_lib.checks import show
from synth_lib.checks.engine import Verdict, _exercise_modules, check, find

EXERCISES = [
    pytest.param(exercise, id=f"chapter_{exercise.key}")
    for module in _exercise_modules()
    for exercise in importlib.import_module(module.name).EXERCISES
]


class Page(HTMLParser):
    """What is in a piece of HTML: its elements, the text of each paragraph, and its links, {text: where to}."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.paragraphs, self.links, self.open = [], [], {}, []
        self.feed(text)
        assert not self.open, "what is opened is closed"

    def handle_starttag(self, tag, attributes):
        self.open.append((tag, dict(attributes)))
        self.elements.append((tag, dict(attributes)))
        if tag in ("p", "pre"):
            self.paragraphs.append("")

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, text):
        if any(tag in ("p", "pre") for tag, _ in self.open):
            self.paragraphs[-1] += text
        if self.open and self.open[-1][0] == "a":
            self.links[text] = self.open[-1][1]["href"]


def page(*parts):
    return Page(Verdict("00.1", *parts)._repr_html_())


def test_the_statuses_are_told_apart_by_a_sign_and_a_word():
    heads = [page(status, "Because.").paragraphs[0] for status in show.LOOKS]
    assert heads == [
        "✓ Exercise 00.1: right",
        "✗ Exercise 00.1: not right yet",
        "○ Exercise 00.1: not answered yet",
        "○ Exercise 00.1: its cell has not run",
    ]


def blank_answer(features, head):
    raise NotImplementedError


def test_what_the_word_says_is_not_said_twice():
    assert page("right", "Right.").paragraphs[1:] == []
    assert page("right", "Right. It also prints; take that out.").paragraphs[1:] == ["It also prints; take that out."]
    blank = check("00.1", blank_answer)
    assert Page(blank._repr_html_()).paragraphs[1:] == ["The line raise NotImplementedError is reached."]
    wrong = page("wrong", "Not yet: the shape is (2, 3). (Inputs: head 2.) It also prints.", "yours\n 1 < 2")
    assert wrong.paragraphs[1:] == ["The shape is (2, 3).", "(Inputs: head 2.)", "It also prints.", "yours\n 1 < 2"]


@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_section_to_read_again_is_a_link_to_its_heading(exercise):
    """JupyterLab and nbconvert name a heading by its text, with hyphens for blanks; marks of markdown are not in it."""
    sections = list(dict.fromkeys(mistake.section for mistake in exercise.wrong))
    for section in sections:
        assert not re.search(r"[*`$\\<>\[\]]|\b_|_\b", section), section
        verdict = Verdict(exercise.key, "wrong", f'So it is. Read again: "{section}" and "{sections[0]}".')
        links = Page(verdict._repr_html_()).links
        assert {text: unquote(to) for text, to in links.items()} == {
            text: f"#{text.replace(' ', '-')}" for text in (section, sections[0])
        }


def test_an_answer_writes_no_html():
    evil = '<script>alert(1)</script><a href="x" onclick=\'y\'>&amp;'

    def answer(features, head):
        raise ValueError(evil)

    verdict = check("00.1", answer)
    found = page(verdict.status, verdict.message, evil)
    assert {tag for tag, _ in found.elements} == {"div", "p", "strong", "span", "pre"}
    assert evil in found.paragraphs[1] and found.paragraphs[-1] == evil and found.links == {}
    assert {name for _, attributes in found.elements for name in attributes} == {"class", "style"}


def test_the_looks_fetch_nothing_and_leave_the_letters_in_the_colour_of_the_page():
    section = find("00.1").wrong[0].section
    found = page("wrong", f'Read again: "{section}".', "1 2")
    assert {tag for tag, _ in found.elements} == {"div", "p", "strong", "span", "a", "pre"}
    for tag, attributes in found.elements:
        style = attributes.get("style", "")
        assert "url" not in style and "background" not in style
        assert tag == "span" or not re.search(r"(^|;)\s*color:", style), "the sign alone has a colour of its own"


@pytest.mark.parametrize("colour", sorted({colour for _, _, colour in show.LOOKS.values()}))
def test_a_colour_can_be_seen_on_light_and_on_dark(colour):
    """By the contrast ratio of the Web Content Accessibility Guidelines 2.1: at least 3 for a sign."""

    def luminance(text):
        parts = [int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for ground in ("#FFFFFF", "#1E1E1E"):
        dark, light = sorted((luminance(colour), luminance(ground)))
        assert (light + 0.05) / (dark + 0.05) >= 3, (colour, ground)


def test_the_text_of_a_verdict_stays_as_it_was():
    shown = Verdict("00.1", "wrong", "Not yet: no.", "yours")
    assert repr(shown) == "Exercise 00.1: Not yet: no.\n\nyours"
