"""The checks of the checks: every banked answer of every chapter gets the verdict that it deserves."""

import importlib
import random
import re

import jupytext
import pytest
import torch

from synth_lib import checks
from synth_lib.checks import Draw, check, find
from tools.build_notebooks import NOTEBOOKS, ROOT

SEEDS = (0, 1, 2, 10, 11, 12, 500, 501, 502)
CHAPTERS = sorted(path.stem[-2:] for path in (ROOT / "synth_lib" / "exercises").glob("chapter_*.py"))
EXERCISES = [
    exercise
    for chapter in CHAPTERS
    for exercise in importlib.import_module(f"synth_lib.exercises.chapter_{chapter}").EXERCISES
]
SOURCES = {path.stem[:2]: path for path in sorted((NOTEBOOKS / "src").glob("[0-9][0-9]_*.py"))}
HEADING = re.compile(r"^#{2,6} (.+?)\s*$", re.M)

every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.key)


def cells(chapter):
    return jupytext.read(SOURCES[chapter], fmt="py:percent").cells


def markdown(chapter):
    return [cell.source for cell in cells(chapter) if cell.cell_type == "markdown"]


def keys_in_source(chapter, kind):
    return [cell.metadata[kind] for cell in cells(chapter) if kind in cell.metadata]


@pytest.fixture(params=[0, 100, 2000])
def other_inputs(request, monkeypatch):
    """The same check on other random inputs: a bank that separates its mistakes by luck is found out."""
    monkeypatch.setattr(checks, "Draw", lambda trial: Draw(request.param + trial))


def answers(kind):
    """Every banked answer by its exercise and place."""
    return [
        pytest.param(exercise, answer, id=f"{exercise.key}-{number}")
        for exercise in EXERCISES
        for number, answer in enumerate(getattr(exercise, kind))
    ]


# --- the verdicts ---


@every_exercise
def test_bank_is_large_enough(exercise):
    assert len(exercise.wrong) >= 5
    assert len(exercise.right) >= 2
    assert len({mistake.says for mistake in exercise.wrong}) == len(exercise.wrong)
    code = {answer.__code__.co_code + repr(answer.__code__.co_names).encode() for answer in exercise.right}
    assert len(code) == len(exercise.right), "two right answers are the same code"


@pytest.mark.parametrize(("exercise", "answer"), answers("right"))
def test_right_answer_is_accepted(exercise, answer, other_inputs):
    verdict = check(exercise.key, answer)
    assert verdict.status == "right", verdict


@pytest.mark.parametrize(("exercise", "mistake"), answers("wrong"))
def test_wrong_answer_is_refused_by_its_own_sentence(exercise, mistake, other_inputs):
    verdict = check(exercise.key, mistake.answer)
    assert verdict.status == "wrong", verdict
    assert mistake.says in verdict.message
    assert f'"{mistake.reread}"' in verdict.message


@every_exercise
def test_blank_answer_is_not_answered(exercise):
    def blank(*arguments, **named):
        raise NotImplementedError

    verdict = check(exercise.key, blank)
    assert (verdict.status, repr(verdict)) == (
        "not answered",
        f"Exercise {exercise.key}: Not answered yet: the line raise NotImplementedError is reached.",
    )


@every_exercise
@pytest.mark.parametrize(
    "answer",
    [
        lambda **arguments: None,
        lambda **arguments: 1 / 0,
        lambda **arguments: torch.tensor(float("nan")),
        lambda **arguments: torch.zeros(1, 1, 1, 1, 1),
        lambda: None,
        None,
    ],
    ids=["none", "error", "nan", "one number", "no arguments", "no function"],
)
def test_careless_answer_gets_a_sentence(exercise, answer):
    verdict = check(exercise.key, answer)
    assert verdict.status == "wrong"
    assert verdict.message.endswith((".", "!", "?", ")"))


@every_exercise
@pytest.mark.parametrize("seed", SEEDS)
def test_all_right_answers_agree_on_other_inputs(exercise, seed):
    expected = exercise.run(exercise.right[0], **exercise.inputs(Draw(seed)))
    for answer in exercise.right[1:]:
        problem = checks._difference(exercise.run(answer, **exercise.inputs(Draw(seed))), expected)
        assert problem is None, problem


@every_exercise
def test_inputs_come_from_their_seed_and_leave_the_random_state_alone(exercise):
    state = torch.get_rng_state(), random.getstate()
    first, again = exercise.inputs(Draw(3)), exercise.inputs(Draw(3))
    assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[1]
    for name, value in first.items():
        assert callable(value) or checks._difference(again[name], value) is None, name


@every_exercise
def test_inputs_hold_no_zeros(exercise):
    """A zero hides a missing term."""
    arguments = exercise.inputs(Draw(0))
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert (value != 0).all(), name


# --- what a message may say ---


def solution_lines(chapter):
    for cell in cells(chapter):
        for body in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, flags=re.S):
            yield from (line.strip() for line in body.splitlines() if len(line.strip()) > 12)


@every_exercise
def test_messages_never_give_the_answer_away(exercise):
    lines = list(solution_lines(exercise.key[:2]))
    crash = check(exercise.key, lambda **arguments: torch.zeros(1, 2, 3, 4, 5, 6))
    messages = [check(exercise.key, mistake.answer).message for mistake in exercise.wrong] + [crash.message]
    for message in messages:
        assert not [line for line in lines if line in message]
        assert not re.search(r"@|==|->|lambda|return \w", message), message
        for number in reference_numbers(exercise):
            assert not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", message), message


def reference_numbers(exercise):
    """The values of the reference that a message could print: floats and big whole numbers."""
    result = exercise.run(exercise.right[0], **exercise.inputs(Draw(0)))
    for part in result if isinstance(result, (tuple, list)) else [result]:
        if isinstance(part, torch.Tensor) and part.is_floating_point():
            yield from (f"{number:.4f}" for number in part.flatten().tolist()[:20])
        elif isinstance(part, int) and not isinstance(part, bool) and part > 99:
            yield str(part)


@every_exercise
def test_reread_is_a_heading_of_the_chapter(exercise):
    headings = HEADING.findall("\n".join(markdown(exercise.key[:2])))
    assert [mistake.reread for mistake in exercise.wrong if mistake.reread not in headings] == []


# --- sources and banks belong together ---


@pytest.mark.parametrize("chapter", sorted({*SOURCES, *CHAPTERS}))
def test_source_and_bank_hold_the_same_exercises_in_the_same_order(chapter):
    in_source = keys_in_source(chapter, "exercise")
    assert in_source == keys_in_source(chapter, "check")
    assert in_source == [exercise.key for exercise in EXERCISES if exercise.key[:2] == chapter]


@every_exercise
def test_chapter_shows_title_minutes_and_level(exercise):
    heading = f"Exercise {exercise.key}: {exercise.title}"
    text = "\n".join(markdown(exercise.key[:2]))
    assert heading in HEADING.findall(text)
    below = text.split(heading, 1)[1].strip().split("\n")[0]
    assert f"{exercise.minutes} minutes" in below and exercise.level in below


@every_exercise
def test_solution_in_the_source_is_right(exercise):
    chapter = exercise.key[:2]
    space = {}
    for cell in cells(chapter):
        if cell.cell_type == "code":
            exec("\n".join(re.findall(r"^(?:import|from) .*$", cell.source, flags=re.M)), space)
    (source,) = [cell.source for cell in cells(chapter) if cell.metadata.get("exercise") == exercise.key]
    exec(source, space)
    (name,) = re.findall(r"^(?:def|class) (\w+)", source, flags=re.M)
    assert check(exercise.key, space[name]).status == "right"


@every_exercise
def test_arguments_are_those_of_the_stub(exercise):
    (source,) = [c.source for c in cells(exercise.key[:2]) if c.metadata.get("exercise") == exercise.key]
    (signature,) = re.findall(r"^def \w+\((.*?)\):", source, flags=re.M) or [None]
    if signature is not None:
        assert [name.strip() for name in signature.split(",")] == list(exercise.inputs(Draw(0)))


def test_find_knows_every_exercise_once():
    assert len({exercise.key for exercise in EXERCISES}) == len(EXERCISES)
    assert all(find(exercise.key) is exercise for exercise in EXERCISES)
