"""The checks of the checks: every banked answer of every chapter gets the verdict that it deserves.

Each verdict is asked for once, on inputs that are others in every commit; SYNTH_ALL_SEEDS=1 asks on three. The seed is
in the name of a test that fails, and SYNTH_SEED=number repeats it.
"""

import ast
import importlib
import inspect
import os
import random
import re
import shutil
import subprocess
from functools import cache, partial

import jupytext
import pytest
import torch

from synth_lib.checks import audit, engine, find
from synth_lib.checks.compare import difference
from synth_lib.checks.exercise import Draw, RowsSumTo1, ZeroOutside
from synth_lib.lab.starts import shifted_scores
from synth_lib.masks import masked_softmax
from tools.bank_table import answers_with
from tools.build_notebooks import NOTEBOOKS, ROOT


def commit_seed():
    """One of ten, the same for all tests of a commit; 0 where there is none, as in a hand-out."""
    if not shutil.which("git"):
        return 0
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return 3 * (int(head.stdout[:7], 16) % 10) if head.returncode == 0 else 0  # a check takes three seeds in a row


SEED = int(os.environ.get("SYNTH_SEED") or commit_seed())
SEEDS = tuple(dict.fromkeys((SEED, 0, 100))) if os.environ.get("SYNTH_ALL_SEEDS") else (SEED,)
CHAPTERS = sorted(path.stem[-2:] for path in (ROOT / "synth_lib" / "checks" / "bank").glob("chapter_*.py"))
EXERCISES = [
    exercise
    for chapter in CHAPTERS
    for exercise in importlib.import_module(f"synth_lib.checks.bank.chapter_{chapter}").EXERCISES
]
SOURCES = {path.stem[:2]: path for path in sorted((NOTEBOOKS / "src").glob("[0-9][0-9]_*.py"))}
HEADING = re.compile(r"^#{2,6} (.+?)\s*$", re.M)

check = partial(engine.check, seed=SEED, seconds=600)  # however busy the machine is, the search for a mistake ends


def case(exercise, *values, id=""):
    """A parameter set that `pytest -k chapter_02` selects by its chapter."""
    return pytest.param(exercise, *values, id=f"chapter_{exercise.key[:2]}-{exercise.key}{id}")


every_exercise = pytest.mark.parametrize("exercise", [case(exercise) for exercise in EXERCISES])
every_chapter = pytest.mark.parametrize("chapter", [pytest.param(name, id=f"chapter_{name}") for name in CHAPTERS])


@cache
def cells(chapter):
    return jupytext.read(SOURCES[chapter], fmt="py:percent").cells


def markdown(chapter):
    return [cell.source for cell in cells(chapter) if cell.cell_type == "markdown"]


def keys_in_source(chapter, kind):
    return [cell.metadata[kind] for cell in cells(chapter) if kind in cell.metadata]


# --- the verdicts ---


@every_exercise
def test_bank_is_large_enough(exercise):
    assert len(exercise.wrong) >= 5
    assert len(exercise.right) >= 2
    assert len({mistake.diagnosis for mistake in exercise.wrong}) == len(exercise.wrong)
    code = [fingerprint(answer) for answer in exercise.right]
    assert all(code[i] not in code[:i] for i in range(len(code))), "two right answers are the same code"


def fingerprint(answer):
    """What a function does: its code, and that of the functions and the values that it closes over."""
    held = [cell.cell_contents for cell in answer.__closure__ or ()]
    parts = [fingerprint(value) if inspect.isfunction(value) else repr(value) for value in held]
    return [answer.__code__.co_code, answer.__code__.co_names, repr(answer.__code__.co_consts), *parts]


@every_exercise
def test_exercise_is_complete(exercise):
    assert type(exercise.minutes) is int and 1 <= exercise.minutes <= 60
    assert exercise.level in ("easy", "medium", "hard")
    assert exercise.title and exercise.returns
    hints = [int(number) for number in re.findall(r"<details><summary>Hint (\d+)\b", own_text(exercise))]
    assert len(hints) >= 2 and hints == [*range(1, len(hints) + 1)], f"{exercise.key} needs two hints in steps"
    (source,) = sources_of(exercise)
    name = re.findall(r"^(?:def|class) (\w+)", source, flags=re.M)
    assert [exercise.name] == name, f'{exercise.key} needs name="{name[0]}", the name that the notebook leaves blank'


def own_text(exercise):
    """The markdown of an exercise, from its heading to the next one."""
    text = "\n".join(markdown(exercise.key[:2])).split(f" {exercise.key}: {exercise.title}\n", 1)[1]
    return re.split(r"^#{2,6} ", text, maxsplit=1, flags=re.M)[0]


def sources_of(exercise):
    return [cell.source for cell in cells(exercise.key[:2]) if cell.metadata.get("exercise") == exercise.key]


def test_no_two_exercises_ask_for_the_same_name_in_a_chapter():
    """In a notebook, checks.progress() finds an answer by its name alone."""
    names = [(exercise.key[:2], exercise.name) for exercise in EXERCISES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("exercise", "answer", "seed"),
    [
        case(exercise, answer, seed, id=f"-right-{number}-seed_{seed}")
        for exercise in EXERCISES
        for number, answer in enumerate(exercise.right)
        for seed in SEEDS
    ],
)
def test_right_answer_is_accepted(exercise, answer, seed):
    verdict = check(exercise.key, answer, seed=seed)
    assert verdict.status == "right", verdict


@pytest.mark.parametrize(
    ("exercise", "mistake", "seed"),
    [
        case(exercise, mistake, seed, id=f"-wrong-{number}-seed_{seed}")
        for exercise in EXERCISES
        for number, mistake in enumerate(exercise.wrong)
        for seed in SEEDS
    ],
)
def test_wrong_answer_is_refused_by_its_own_sentence(exercise, mistake, seed):
    """A bank that separates its mistakes by luck is found out by other inputs."""
    answers = answers_with(exercise, mistake, seed)
    assert answers
    for parts, answer in answers:
        verdict = check(exercise.key, answer, seed=seed)
        assert verdict.status == "wrong", verdict
        assert (
            f'mistake: {parts_in_words(parts)}{mistake.diagnosis} Read again: "{mistake.section}".' in verdict.message
        )
        assert verdict.message.startswith("Your code stops") == (mistake.error is not None)
        assert_gives_nothing_away(exercise, verdict.message, seed)


def parts_in_words(parts):
    """in the multiply-adds,"""
    return " and ".join(f"in the {part.replace('_', '-')}" for part in parts) + ", " * bool(parts)


@every_chapter
def test_progress_takes_a_notebook_for_its_own_chapter(chapter):
    """Though a lesson may define or import a name that another chapter gives to an exercise."""
    names = {}
    for cell in cells(chapter):
        for statement in ast.parse(cell.source).body if cell.cell_type == "code" else []:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                names[statement.name] = len
            elif isinstance(statement, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name: len for alias in statement.names}
    assert [held[0].key[:2] for held in engine._chapters_in(names)] == [chapter]


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
def test_inputs_come_from_their_seed_and_leave_the_random_state_alone(exercise):
    state = torch.get_rng_state(), random.getstate()
    first, again = exercise.inputs(Draw(3)), exercise.inputs(Draw(3))
    assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[1]
    for name, value in first.items():
        assert callable(value) or difference(again[name], value) is None, name


@every_exercise
def test_inputs_hold_no_zeros(exercise):
    """A zero hides a missing term."""
    arguments = exercise.inputs(Draw(0))
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert (value != 0).all(), name


# --- what a message may say ---


@cache
def solution_lines(chapter):
    source = "\n".join(cell.source for cell in cells(chapter))
    bodies = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", source, flags=re.S)
    return [line.strip() for body in bodies for line in body.splitlines() if len(line.strip()) > 12]


def assert_gives_nothing_away(exercise, message, seed):
    assert not [line for line in solution_lines(exercise.key[:2]) if line in message]
    assert not re.search(r"@|==|->|lambda|return \w", message), message
    for number in reference_numbers(exercise, seed):
        assert not re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", message), message


@every_exercise
def test_message_to_an_unknown_mistake_never_gives_the_answer_away(exercise):
    wrong = [verdict for verdict in unknown_verdicts(exercise) if verdict.status == "wrong"]
    assert len(wrong) >= 2  # not all: scores that rise alike are still right
    for verdict in wrong:
        assert_gives_nothing_away(exercise, verdict.message, SEED)


@cache
def unknown_verdicts(exercise):
    def zeros(*arguments, **named):
        return torch.zeros(1, 2, 3, 4, 5, 6)

    return [check(exercise.key, answer) for answer in (zeros, *near_misses(exercise))]


def near_misses(exercise):
    """Wrong answers that no bank knows: the right one, changed a little at the end."""
    changes = {
        torch.Tensor: (lambda value: value * 1.37, lambda value: value[None], lambda value: value + 7.5),
        bool: (lambda value: not value,),
        int: (lambda value: value + 3, float),
        float: (lambda value: value + 0.013, lambda value: value * 1.37),
        str: (lambda value: value + "!",),
    }

    def changed(value, number):
        if type(value) in (tuple, list):
            return type(value)(changed(part, number) for part in value)
        if type(value) is torch.Tensor and value.dtype == torch.bool:
            return ~value
        kind = changes.get(type(value), (lambda value: None,))
        return kind[number % len(kind)](value)

    def near(number):
        def answer(**arguments):
            return changed(exercise.right[0](**arguments), number)

        return answer

    return [near(number) for number in range(3)]


@cache
def reference_numbers(exercise, seed):
    """The values of the reference that a message could print, in all trials: floats and big whole numbers."""
    trials = range(seed, seed + exercise.trials)
    results = [exercise.run(exercise.right[0], **exercise.inputs(Draw(trial))) for trial in trials]
    return sorted({number for result in results for number in _numbers_in(result)})


def _numbers_in(value):
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _numbers_in(part)
    elif isinstance(value, torch.Tensor) and value.is_floating_point():
        yield from _numbers_in(value.flatten().tolist()[:20])
    elif isinstance(value, float) and not value.is_integer():
        yield from {text for text in (f"{value:.4f}", f"{value:.4g}", repr(value)) if len(text) > 4}
    elif isinstance(value, int) and not isinstance(value, bool) and value > 99:
        yield str(value)


@every_exercise
def test_expected_numbers_are_shown_only_where_the_exercise_says_so(exercise):
    shown = [verdict.shown for verdict in unknown_verdicts(exercise)[1:]]
    if exercise.example is None:
        assert not any(shown)
        return
    assert any(shown)
    small = exercise.example()
    assert sum(value.numel() for value in small.values() if isinstance(value, torch.Tensor)) <= 24
    for trial in range(10):
        judged = exercise.inputs(Draw(trial))
        assert list(small) == list(judged)
        assert any(difference(small[name], judged[name]) for name in small), "the shown input is judged"
    assert check(exercise.key, exercise.right[0]).shown == ""


# --- what is said of a result that nobody foresaw ---


properties = [
    case(exercise, property_, seed, id=f"-property-{number}-seed_{seed}")
    for exercise in EXERCISES
    for number, property_ in enumerate(exercise.properties)
    for seed in SEEDS
]


def breaking(exercise, property_):
    """An answer with the right shape that breaks this property, and no other of the exercise."""
    right = exercise.right[0]
    if isinstance(property_, RowsSumTo1):
        return lambda **arguments: right(**arguments) * 0.9
    if isinstance(property_, ZeroOutside):
        return lambda **arguments: (
            (result := right(**arguments)) / 2 + result.sum(-1, keepdim=True) / result.shape[-1] / 2
        )

    def mixed(**arguments):
        read = arguments[property_.argument]
        arguments[property_.argument] = read + 1.5 * read.mean(dim=property_.axis, keepdim=True)
        return right(**arguments)

    return mixed


@pytest.mark.parametrize(("exercise", "property_", "seed"), properties)
def test_stated_property_holds_and_is_named_when_broken(exercise, property_, seed):
    for trial in range(seed, seed + exercise.trials):
        arguments = exercise.inputs(Draw(trial))
        expected = exercise.run(exercise.right[0], **arguments)
        for answer in exercise.right:
            result = exercise.run(answer, **arguments)
            assert (
                property_.broken(lambda changed, answer=answer: answer(**changed), arguments, result, expected) is None
            )
    # One of three seeds: a first trial with an axis of 1, or of equal results, does not show what an answer reads.
    verdicts = [check(exercise.key, breaking(exercise, property_), seed=one) for one in range(seed, seed + 3)]
    assert {verdict.status for verdict in verdicts} == {"wrong"}
    words = {"RowsSumTo1": "sums to", "ZeroOutside": "is False there"}.get(type(property_).__name__)
    named = words or f"the result of {property_.name} "
    reads = words or f" of {property_.argument}, but should depend on "
    assert any(named in verdict.message and reads in verdict.message for verdict in verdicts), verdicts


def first_that_audit_finds(box):
    fails = audit(box.run, box.claim, numbers=box.numbers).fails
    asked = ("rows", "count", "batch", "moves", "learns", "products", "rank")
    return next((question for question in asked if question in fails), "sound")


HOLLOW = {  # answers that call the library instead of building what the exercise asks for
    "01.3": masked_softmax,
    "03.2": lambda length, offset, error: shifted_scores(length, offset, error),
    "09.5": first_that_audit_finds,
}


@pytest.mark.parametrize("exercise", [case(find(key)) for key in HOLLOW])
def test_answer_that_calls_the_library_is_refused_though_its_result_is_right(exercise):
    answers = HOLLOW[exercise.key], exercise.right[0]
    result, expected = (exercise.run(answer, **exercise.inputs(Draw(0))) for answer in answers)
    assert difference(result, expected) is None
    message = check(exercise.key, answers[0], seed=0).message
    assert re.search(r"calls the library's \w+, which does the exercise", message)


def test_every_exercise_that_forbids_has_a_hollow_answer_here():
    forbidding = {exercise.key for exercise in EXERCISES if exercise.forbidden}
    assert forbidding == set(HOLLOW)


@every_exercise
def test_section_is_a_heading_of_the_chapter(exercise):
    headings = HEADING.findall("\n".join(markdown(exercise.key[:2])))
    assert [mistake.section for mistake in exercise.wrong if mistake.section not in headings] == []


# --- sources and banks belong together ---


@pytest.mark.parametrize("chapter", [pytest.param(one, id=f"chapter_{one}") for one in sorted({*SOURCES, *CHAPTERS})])
def test_source_and_bank_hold_the_same_exercises_in_the_same_order(chapter):
    in_source = keys_in_source(chapter, "exercise")
    assert in_source == keys_in_source(chapter, "check")
    assert in_source == [exercise.key for exercise in EXERCISES if exercise.key[:2] == chapter]


@every_exercise
def test_chapter_shows_title_minutes_and_level(exercise):
    text = "\n".join(markdown(exercise.key[:2]))
    headings = [f"{kind} {exercise.key}: {exercise.title}" for kind in ("Exercise", "Stretch")]
    (heading,) = [heading for heading in HEADING.findall(text) if heading in headings]
    below = text.split(heading, 1)[1].strip().split("\n")[0]
    assert f"{exercise.minutes} minutes" in below and exercise.level in below


@pytest.mark.parametrize("chapter", [pytest.param(one, id=f"chapter_{one}") for one in sorted(CHAPTERS)])
def test_chapter_says_the_minutes_of_its_exercises_and_of_its_stretch(chapter):
    """To five minutes, so that an exercise can be added without an edit of the title."""
    minutes = {exercise.key: exercise.minutes for exercise in EXERCISES if exercise.key[:2] == chapter}
    (stretch,) = re.findall(r"^### Stretch (\S+):", "\n".join(markdown(chapter)), flags=re.M)
    title = " ".join(markdown(chapter)[0].split())
    said = re.search(r"minutes, (\d+) of them .*; the stretch exercise takes (\d+) more", title)
    assert int(said[2]) == minutes.pop(stretch) and abs(int(said[1]) - sum(minutes.values())) <= 5


@every_exercise
def test_solution_in_the_source_is_right(exercise):
    chapter = exercise.key[:2]
    space = {}
    for cell in cells(chapter):
        if cell.cell_type == "code":
            exec("\n".join(re.findall(r"^(?:import|from) .*$", cell.source, flags=re.M)), space)
    (source,) = sources_of(exercise)
    exec(source, space)
    (name,) = re.findall(r"^(?:def|class) (\w+)", source, flags=re.M)
    assert check(exercise.key, space[name]).status == "right"


@every_exercise
def test_arguments_are_those_of_the_stub(exercise):
    (source,) = sources_of(exercise)
    (signature,) = re.findall(r"^def \w+\((.*?)\):", source, flags=re.M) or [None]
    if signature is not None:
        assert [name.strip() for name in signature.split(",")] == list(exercise.inputs(Draw(0)))


def test_find_knows_every_exercise_once():
    assert len({exercise.key for exercise in EXERCISES}) == len(EXERCISES)
    assert all(find(exercise.key) is exercise for exercise in EXERCISES)
