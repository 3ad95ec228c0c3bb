"""What an exercise calls: a verdict, a diagnosis, a place to re-read. Never the answer.

    check("02.1", dense_scores)

runs the reader's function on fresh inputs of several sizes and says one of three things: not answered yet; right; or
wrong, and which known mistake it looks like. An answer is compared by kind, shape, dtype and then values; nothing is
broadcast, so a tensor of another shape never passes. A check never raises because of an answer, so that a chapter runs
to its end with blanks; only while nbgrader marks, where points are lost by raising, does it raise.
"""

import functools
import importlib
import inspect
import math
import os
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch

TRIALS = 3  # inputs of different sizes: an answer that is right for one size alone is found out


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give.

    Args:
        answer: the mistake as code, called like the reader's answer.
        says: what it does, completing "This looks like a known mistake: ...". It must not give the answer away.
        reread: the heading of the section that explains it.
    """

    answer: Callable
    says: str
    reread: str


@dataclass(frozen=True)
class Exercise:
    """One exercise: what goes in, what is right, what people get wrong.

    Args:
        key: chapter and number, "02.1".
        title: a few words.
        minutes, level: what to expect; level is "easy", "medium" or "hard".
        inputs: makes the arguments of one trial from a `Draw`, a dict by name.
        returns: the named shape of the result, "batch query key", or what else it is, "a whole number".
        right: at least two right answers of different style; the first is the reference.
        wrong: at least five known mistakes.
        run: how an answer is called; `answer(**arguments)` unless it is about a class or gradients.
    """

    key: str
    title: str
    minutes: int
    level: str
    inputs: Callable
    returns: str
    right: tuple
    wrong: tuple
    run: Callable = lambda answer, **arguments: answer(**arguments)


class Draw:
    """Fresh inputs from a seed: sizes that are pairwise different, numbers without zeros or symmetry.

    A zero hides a missing term, and equal sizes hide swapped axes.
    """

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)

    def sizes(self, names, low=2, high=7):
        """One size per axis name, all different. -> dict name -> int

        `head` and `d_head` also give `d_model`, `tile` and `repeat` also give `length`, different from the others too.
        """
        names = names.split()
        while True:
            sizes = dict(zip(names, self._random.sample(range(low, high + 1), len(names)), strict=True))
            if "head" in sizes and "d_head" in sizes:
                sizes["d_model"] = sizes["head"] * sizes["d_head"]
            if "tile" in sizes and "repeat" in sizes:
                sizes["length"] = sizes["tile"] * sizes["repeat"]
            if len(set(sizes.values())) == len(sizes):
                return sizes

    def normal(self, *shape):
        """Normally distributed numbers, pushed away from 0. float32"""
        values = torch.randn(shape, generator=self._generator)
        return values + 0.1 * values.sign()

    def integer(self, low, high):
        """A whole number, low and high included."""
        return self._random.randint(low, high)


@dataclass(frozen=True)
class Verdict:
    """What a check found. Its repr is the sentence that the reader sees.

    Attributes:
        key: the exercise.
        status: "not answered", "right" or "wrong".
        message: one or two sentences.
    """

    key: str
    status: str
    message: str

    def __repr__(self):
        return f"Exercise {self.key}: {self.message}"


def check(key, answer):
    """Check the reader's `answer` to the exercise `key`. -> Verdict

    Raises:
        ValueError: there is no such exercise.
        AssertionError: the answer is not right, and nbgrader is marking (it sets NBGRADER_EXECUTION).
    """
    with torch.device("cpu"):  # the inputs are on the CPU, whatever default the notebook has set
        verdict = _judge(key, answer)
    if "NBGRADER_EXECUTION" in os.environ and verdict.status != "right":
        raise AssertionError(repr(verdict))
    return verdict


def _judge(key, answer):
    exercise = find(key)
    if not callable(answer):
        return Verdict(key, "wrong", f"Pass the function itself, without brackets; this is {_kind(answer)}.")
    if not _takes(answer, names := exercise.inputs(Draw(0))):
        return Verdict(key, "wrong", f"Keep the arguments as they were, with their names: {', '.join(names)}.")
    results = []
    for trial in range(TRIALS):
        arguments = exercise.inputs(Draw(trial))
        given = _copy(arguments)
        try:
            results.append(exercise.run(answer, **given))
        except (Exception, SystemExit) as error:  # the reader's code may raise anything
            if isinstance(error, NotImplementedError) and not error.args:  # the blank; torch's own have a message
                return Verdict(key, "not answered", "Not answered yet: the line raise NotImplementedError is reached.")
            return Verdict(key, "wrong", f"Your code stops{_line_of(answer, error)} {_says(error)}{_sizes(arguments)}")
        if _difference(given, arguments):
            return Verdict(key, "wrong", "Your code changes one of its inputs. Make a new tensor instead.")
    expected = (_known(exercise.right[0], exercise, trial, Draw) for trial in range(TRIALS))
    problems = [_difference(*pair, exercise.returns) for pair in zip(results, expected, strict=True)]
    if not any(problems):
        return Verdict(key, "right", "Right.")
    for mistake in exercise.wrong:
        if all(_matches(mistake, exercise, trial, result) for trial, result in enumerate(results)):
            return Verdict(
                key, "wrong", f'This looks like a known mistake: {mistake.says} Read again: "{mistake.reread}".'
            )
    trial, problem = next((trial, problem) for trial, problem in enumerate(problems) if problem)
    return Verdict(key, "wrong", f"Not yet: {problem}{_sizes(exercise.inputs(Draw(trial)))}")


def find(key):
    """The exercise `key`, from synth_lib/exercises/chapter_NN.py.

    Raises:
        ValueError: there is no such chapter or exercise; the message lists those of the chapter.
    """
    chapter = str(key).split(".")[0]
    try:
        module = importlib.import_module(f"synth_lib.exercises.chapter_{chapter}")
    except ModuleNotFoundError as error:
        if error.name != f"synth_lib.exercises.chapter_{chapter}":  # the chapter is there, what it needs is not
            raise
        raise ValueError(f'there is no exercise "{key}": chapter "{chapter}" has none') from None
    for exercise in module.EXERCISES:
        if exercise.key == key:
            return exercise
    known = ", ".join(exercise.key for exercise in module.EXERCISES)
    raise ValueError(f'there is no exercise "{key}"; chapter {chapter} has {known}')


def _matches(mistake, exercise, trial, result):
    """Whether this mistake, run on the same inputs, gives exactly the reader's result."""
    try:
        mistaken = _known(mistake.answer, exercise, trial, Draw)
    except Exception:  # a mistake may break where the reader's code does not: then it is another one
        return False
    return _difference(result, mistaken) is None


@functools.cache  # a reader asks many times, and what is right or a known mistake gives the same every time
def _known(answer, exercise, trial, draw):
    return exercise.run(answer, **exercise.inputs(draw(trial)))


def _difference(got, expected, returns=""):
    """None if both are the same in kind, shape, dtype and values; else a sentence that does not tell the values."""
    if isinstance(expected, (tuple, list, dict)):
        if type(got) is not type(expected) or len(got) != len(expected):
            return f"the result is {_kind(got)}, but should be {_kind(expected)}{_named(returns)}."
        if isinstance(expected, dict):
            if got.keys() != expected.keys():
                return f"the result has the names {list(got)}, but should have {list(expected)}."
            names, got, expected = list(expected), [got[name] for name in expected], list(expected.values())
        elif isinstance(expected, tuple) and len(returns.split(", ")) == len(expected):
            names = returns.split(", ")  # "parameters, multiply_adds" names the parts of a tuple
        else:
            names = [f"part {i}" for i in range(len(expected))]
        found = {name: _difference(*pair) for name, *pair in zip(names, got, expected, strict=True)}
        right = ", ".join(str(name) for name, problem in found.items() if not problem)
        told = f" (Right: {right}.)" if right and isinstance(expected, tuple) else ""
        return next((f"{name}: {problem}{told}" for name, problem in found.items() if problem), None)
    if not isinstance(expected, torch.Tensor):
        if type(got) is not type(expected):
            return f"the result is {_kind(got)}, but should be {_kind(expected)}{_named(returns)}."
        same = math.isclose(got, expected, rel_tol=1e-6) if isinstance(expected, float) else got == expected
        return None if same else f"the result, {got!r}, is not right."
    if not isinstance(got, torch.Tensor):
        return f"the result is {_kind(got)}, but should be a tensor{_named(returns)}."
    if (got.layout, got.device) != (expected.layout, expected.device):
        return f"the tensor is {got.layout} on {got.device}, but should be {expected.layout} on {expected.device}."
    if got.shape != expected.shape:
        return f"the shape is {tuple(got.shape)}, but should be {tuple(expected.shape)}{_named(returns)}."
    if got.dtype != expected.dtype:
        return f"the dtype is {got.dtype}, but should be {expected.dtype}."
    if not got.is_floating_point():
        wrong = got != expected
    else:
        wrong = ~torch.isclose(got.detach(), expected.detach(), rtol=1e-4, atol=1e-5, equal_nan=False)
        wrong &= ~(got.isnan() & expected.isnan())
    if not wrong.any():
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"the shape is right, but {int(wrong.sum())} of {wrong.numel()} values are not, "
        f"the first at {list(place)}{_named(returns)}."
    )


def _takes(answer, arguments):
    """Whether a function can be called with these names; what is not a plain function is simply tried."""
    try:
        inspect.signature(answer).bind(**arguments) if inspect.isfunction(answer) else None
    except TypeError:
        return False
    return True


def _says(error):
    """'with ValueError: what it says', on one line and not endless, as messages of einops and torch can be."""
    says = " ".join(f"with {type(error).__name__}: {error}".split())
    return says if len(says) <= 300 else says[:300] + " ..."


def _line_of(answer, error):
    """' at "return x @ W1"': the last line of the reader's own code that was reached, where it can be found."""
    file = getattr(getattr(answer, "__code__", None), "co_filename", None)
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file and frame.line]
    return f' at "{lines[-1]}"' if lines else ""


def _named(returns):
    return f" ({returns})" if returns else ""


def _sizes(arguments):
    """' (with x (2, 5, 12), max_length 7)': on which inputs it happened."""
    told = [
        f"{name} {tuple(value.shape) if isinstance(value, torch.Tensor) else value}"
        for name, value in arguments.items()
        if isinstance(value, (torch.Tensor, int, float, str))
    ]
    return f" (Inputs: {', '.join(told)}.)" if told else ""


def _kind(value):
    if value is None:
        return "None (does it end with return?)"
    article = "an" if type(value).__name__[0] in "aeiouAEIOU" else "a"
    length = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"{article} {type(value).__name__}{length}"


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items()}
    return type(value)(map(_copy, value)) if isinstance(value, (tuple, list)) else value
