"""What an exercise is made of: its inputs, its right answers, and the mistakes that people make.

A chapter's exercises are in bank/, one file each; engine.py judges an answer by them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import torch

from synth_lib.checks.compare import copy_of, differ, first_index, same_kind, tensor_type

TRIALS = 3  # inputs of different sizes: an answer that is right for one size alone is found out


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people hand in.

    Args:
        answer: the mistake as code, called like the reader's answer.
        diagnosis: what it does, completing "This looks like a known mistake: ...". It must not give the answer away.
        section: the heading of the section that explains it.
        error: for a mistake that stops with an error, its type, or a part of "TypeName: message".
        by_part: for a result of several parts, a tuple that Exercise.returns names: whether the mistake is looked for
            in each of them alone. The diagnosis then goes on after "in the NAME, ".
    """

    answer: Callable
    diagnosis: str
    section: str
    error: type | str | None = None
    by_part: bool = False


def mistakes(by_section, **options):
    """{section: {diagnosis: answer}} -> a Mistake for each answer, with the same options."""
    return tuple(
        Mistake(answer, diagnosis, section, **options)
        for section, answers in by_section.items()
        for diagnosis, answer in answers.items()
    )


@dataclass(frozen=True)
class RowsSumTo1:
    """The rows of the result sum to 1, or to 0 where the reference says so: it holds attention weights."""

    def broken(self, call, arguments, result, expected):
        """Where the property fails, as a sentence that does not tell what is right there; None if it holds."""
        wanted, sums = expected.sum(dim=-1).round(), result.detach().sum(dim=-1)
        wrong = ~torch.isclose(sums, wanted, rtol=0, atol=1e-4)  # what is wrong differs from 1 in 5 digits, too
        if wrong.any():
            index = first_index(wrong)
            total, right = f"{sums[index].item():.5g}", f"{wanted[index].item():.0f}"
            return f"the row at {list(index)} sums to {total}, but should sum to {right}."
        wrong = (result < -1e-6).any(dim=-1)
        if wrong.any():
            return f"the row at {list(first_index(wrong))} has a negative number; a weight has none."
        return None


@dataclass(frozen=True)
class ZeroOutside:
    """The result is 0 where the argument `mask` is False."""

    mask: str

    def broken(self, call, arguments, result, expected):
        wrong = (result != 0) & ~arguments[self.mask].expand_as(result)
        if wrong.any():
            return f"at {list(first_index(wrong))} the result is not 0, though {self.mask} is False there."
        return None


@dataclass(frozen=True)
class Reads:
    """Index i of one axis of the result reads, of one argument, index i alone, or 0 .. i alone.

    Args:
        argument, axis: what is read, a tensor by name, and the axis of its indices.
        result_axis: the axis of the result.
        name: what an index stands for, "token" or "sentence".
        earlier: whether 0 .. i may be read (a causal result), or i alone.
    """

    argument: str
    axis: int
    result_axis: int
    name: str = "token"
    earlier: bool = False

    def broken(self, call, arguments, result, expected):
        for n in range(arguments[self.argument].shape[self.axis]):
            changed = copy_of(arguments)
            part = changed[self.argument].select(self.axis, n)
            part += torch.linspace(0.5, 1.5, part.numel()).view(part.shape)
            again = call(changed)
            if not same_kind(again, result) or tensor_type(again) != tensor_type(result):
                return f"the result is of another kind or shape when {self.name} {n} of {self.argument} changes."
            moved = (again - result).detach().abs().transpose(0, self.result_axis).flatten(1) > 1e-5
            allowed = torch.arange(len(moved)) >= n if self.earlier else torch.arange(len(moved)) == n
            wrong = moved.any(dim=1) & ~allowed
            if wrong.any():
                may = "no later one" if self.earlier else f"its own {self.name} alone"
                changed = first_index(wrong)[0]
                return (
                    f"the result of {self.name} {changed} changes with {self.name} {n} of {self.argument}, "
                    f"but should depend on {may}."
                )
        return None


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
        name: the name of the function or class that the notebook leaves blank.
        properties: what is true of every right result, as RowsSumTo1(), ZeroOutside(...), Reads(...): a result that is
            wrong in an unknown way is told which of them it breaks. Only where the result is one tensor.
        example: makes small arguments, for which a wrong answer is shown beside the expected result; for an exercise
            where the numbers do not tell how they are made. They are never among the inputs that are judged.
        forbidden: functions and classes of the library that do the exercise; an answer that calls one is refused.
        trials: on how many inputs an answer is judged; fewer where the check trains.
        measure: measure(result, **arguments) is compared in place of what `run` gives. The check computes it, a
            training for instance, and not in the answer's time: so a busy machine makes it slow, and never wrong. Its
            error says what is wrong with the result.
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
    name: str = ""
    properties: tuple = ()
    example: Callable | None = None
    forbidden: tuple = ()
    trials: int = TRIALS
    measure: Callable | None = None


def told_apart(inputs, answers):
    """These inputs, drawn again until each two of the answers give another result: no trial takes one for another."""

    def drawn(draw):
        while True:
            arguments = inputs(draw)
            results = [answer(**arguments) for answer in answers]
            if all(differ(one, other) for one, other in combinations(results, 2)):
                return arguments

    return drawn


class Draw:
    """Fresh inputs from a seed: sizes that are pairwise different, numbers without zeros or symmetry.

    A zero hides a missing term, and equal sizes hide swapped axes.

    Args:
        numbers: a seed of their own for what `normal` gives; sizes and whole numbers stay those of `seed`.
    """

    def __init__(self, seed, numbers=None):
        self._seed = seed
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed if numbers is None else numbers)

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

    def in_turn(self, options):
        """Another of the options in the next trial: no mistake hides behind an option that luck never draws."""
        return options[self._seed % len(options)]
