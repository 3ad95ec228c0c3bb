"""A mistake of an answer with several parts is looked for in each part, and the sentence says in which."""

import pytest

from synth_lib.checks import engine
from synth_lib.checks.exercise import Exercise, mistakes

EXERCISE = Exercise(
    key="99.3",
    title="two numbers",
    minutes=5,
    level="easy",
    inputs=lambda draw: {"n": draw.integer(5, 9)},
    returns="sums, all_products",
    right=(lambda n: (n + 1, 5 * n),),
    wrong=mistakes({"Order": {"the two numbers are swapped.": lambda n: (5 * n, n + 1)}})
    + mistakes(
        {
            "Counting": {"one too many is counted.": lambda n: (n + 2, 5 * n + 1)},
            "Signs": {"the sign is lost.": lambda n: (-n - 1, 5 * n)},
        },
        by_part=True,
    ),
)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda n: (5 * n, n + 1), 'the two numbers are swapped. Read again: "Order".'),
        (lambda n: (n + 2, 5 * n), 'in the sums, one too many is counted. Read again: "Counting".'),
        (lambda n: [n + 2, 5 * n], 'in the sums, one too many is counted. Read again: "Counting".'),
        (lambda n: (n + 1, 5 * n + 1), 'in the all-products, one too many is counted. Read again: "Counting".'),
        (
            lambda n: (n + 2, 5 * n + 1),
            'in the sums and in the all-products, one too many is counted. Read again: "Counting".',
        ),
        (
            lambda n: (-n - 1, 5 * n + 1),
            "in the sums, the sign is lost. In the all-products, one too many is counted. "
            'Read again: "Signs" and "Counting".',
        ),
        (
            lambda n: (n + 2, 5 * n + 3),
            "in the sums, one too many is counted. In the all-products, something else is not right. "
            'Read again: "Counting".',
        ),
    ],
)
def test_the_sentence_names_the_parts_that_a_mistake_spoils(monkeypatch, answer, sentence):
    monkeypatch.setattr(engine, "find", lambda key: EXERCISE)
    assert engine.check("99.3", answer).message == f"This looks like a known mistake: {sentence}"


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: (n + 1, 5 * n + 3),  # unknown, the other part is right
        lambda n: (n + 4, 5 * n + 3),
        lambda n: (n + 2 if n % 2 else n + 4, 5 * n),  # known at some inputs alone
        lambda n: (n + 2,),
        lambda n: (n + 2, 5 * n, 0),
    ],
)
def test_what_is_no_known_mistake_in_any_part_gets_no_such_sentence(monkeypatch, answer):
    monkeypatch.setattr(engine, "find", lambda key: EXERCISE)
    verdict = engine.check("99.3", answer)
    assert verdict.status == "wrong" and "known mistake" not in verdict.message, verdict
