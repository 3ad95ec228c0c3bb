"""What an exercise calls: a verdict, a diagnosis, a place to re-read. Never the answer.

    check("02.1", dense_scores)
    checks.progress()

runs the reader's function on fresh inputs of several sizes and says one of three things: not answered yet; right; or
wrong, and which known mistake it looks like. An answer is compared by kind, shape, dtype and then values; nothing is
broadcast, so a tensor of another shape never passes. A check never raises because of an answer, so that a chapter runs
to its end with blanks; only while nbgrader marks, where points are lost by raising, does it raise. The answer runs
under guard.py: it is stopped after SECONDS, and what it does to the settings of torch is undone.
"""

import functools
import importlib
import inspect
import math
import os
import pkgutil
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from synth_lib import exercises, guard

TRIALS = 3  # inputs of different sizes: an answer that is right for one size alone is found out
SECONDS = 8  # for all that an answer computes in one check
ALL_SECONDS = 10  # with the search for the known mistake
PRINTED = 2000  # characters of the answer's own print that a check lets through


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give.

    Args:
        answer: the mistake as code, called like the reader's answer.
        says: what it does, completing "This looks like a known mistake: ...". It must not give the answer away.
        reread: the heading of the section that explains it.
        raises: for a mistake that stops with an error, its type, or a part of "TypeName: what it says".
    """

    answer: Callable
    says: str
    reread: str
    raises: type | str | None = None


@dataclass(frozen=True)
class RowsSumTo1:
    """The rows of the result sum to 1, or to 0 where the reference says so: it holds attention weights."""

    def broken(self, call, arguments, result, expected):
        """Where the property fails, as a sentence that does not tell what is right there; None if it holds."""
        wanted, sums = expected.sum(dim=-1).round(), result.detach().sum(dim=-1)
        wrong = ~torch.isclose(sums, wanted, rtol=0, atol=1e-4)
        if wrong.any():
            place = _first(wrong)
            found, right = f"{sums[place].item():.2g}", f"{wanted[place].item():.0f}"
            return f"the row at {list(place)} sums to {found}, but should sum to {right}."
        wrong = (result < -1e-6).any(dim=-1)
        return f"the row at {list(_first(wrong))} has a negative number; a weight has none." if wrong.any() else None


@dataclass(frozen=True)
class ZeroOutside:
    """The result is 0 where the argument `mask` is False."""

    mask: str

    def broken(self, call, arguments, result, expected):
        wrong = (result != 0) & ~arguments[self.mask].expand_as(result)
        if wrong.any():
            return f"at {list(_first(wrong))} the result is not 0, though {self.mask} is False there."
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
            changed = _copy(arguments)
            part = changed[self.argument].select(self.axis, n)
            part += torch.linspace(0.5, 1.5, part.numel()).view(part.shape)
            again = call(changed)
            if not _same_kind(again, result) or _form(again) != _form(result):
                return f"the result is of another kind or shape when {self.name} {n} of {self.argument} changes."
            moved = (again - result).detach().abs().transpose(0, self.result_axis).flatten(1) > 1e-5
            allowed = torch.arange(len(moved)) >= n if self.earlier else torch.arange(len(moved)) == n
            wrong = moved.any(dim=1) & ~allowed
            if wrong.any():
                may = "no later one" if self.earlier else f"its own {self.name} alone"
                return (
                    f"the result of {self.name} {_first(wrong)[0]} changes with {self.name} {n} of {self.argument}, "
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
        holds: what is true of every right result, as RowsSumTo1(), ZeroOutside(...), Reads(...): a result that is wrong
            in an unknown way is told which of them it breaks. Only where the result is one tensor.
        shows: makes small arguments, for which a wrong answer is shown beside the expected result; for an exercise
            where the numbers do not tell how they are made. They are never among the inputs that are judged.
        forbidden: functions and classes of the library that do the exercise; an answer that calls one is refused.
        trials: on how many inputs an answer is judged; fewer where it trains.
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
    holds: tuple = ()
    shows: Callable | None = None
    forbidden: tuple = ()
    trials: int = TRIALS


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
    """What a check found. Its repr is what the reader sees.

    Attributes:
        key: the exercise.
        status: "not answered", "right" or "wrong".
        message: a few sentences.
        shown: lines with the result and the expected one for a small input, or "".
    """

    key: str
    status: str
    message: str
    shown: str = field(default="", compare=False)

    def __repr__(self):
        return f"Exercise {self.key}: {self.message}" + (f"\n\n{self.shown}" if self.shown else "")


def check(key, answer):
    """Check the reader's `answer` to the exercise `key`. -> Verdict

    Raises:
        ValueError: there is no such exercise.
        AssertionError: the answer is not right, and nbgrader is marking (it sets NBGRADER_EXECUTION).
    """
    verdict = _judge(find(key), answer, PRINTED)
    if "NBGRADER_EXECUTION" in os.environ and verdict.status != "right":
        raise AssertionError(repr(verdict))
    return verdict


@dataclass(frozen=True)
class Progress:
    """How many exercises are right. Its repr is what the reader sees.

    Attributes:
        verdicts: a Verdict for each exercise of the chapters that the notebook holds; "missing" is the status of one
            whose cell has not run.
    """

    verdicts: tuple

    @property
    def right(self):
        return sum(verdict.status == "right" for verdict in self.verdicts)

    def __repr__(self):
        if not self.verdicts:
            return "No exercise is found here: run the cells of a chapter, from the top, and ask again."
        lines = []
        for chapter in sorted({verdict.key.split(".")[0] for verdict in self.verdicts}):
            own = [verdict for verdict in self.verdicts if verdict.key.split(".")[0] == chapter]
            left = [verdict for verdict in own if verdict.status != "right"]
            told = ", ".join(f"{verdict.key} ({LEFT[verdict.status]})" for verdict in left)
            right = f"{len(own) - len(left)} of {len(own)} exercises are right"
            lines.append(f"Chapter {chapter}: {right}." + (f" Left: {told}." if left else ""))
        return "\n".join(lines)


LEFT = {"wrong": "not right yet", "not answered": "not answered yet", "missing": "its cell has not run"}


def progress(notebook=None):
    """How many exercises of a chapter are right, and which are left. -> Progress

    The functions are found by their names, and each is checked now. Of `notebook` it reads nothing else.

    Args:
        notebook: a dict of names or a module; default: the notebook that asks.
    """
    if notebook is None:
        notebook = _this_notebook()
    names = notebook if isinstance(notebook, dict) else vars(notebook)
    verdicts = [
        _judge(exercise, names[exercise.name], printed=0)
        if exercise.name in names
        else Verdict(exercise.key, "missing", "Its cell has not run.")
        for chapter in _chapters_in(names)
        for exercise in chapter
    ]
    return Progress(tuple(verdicts))


def _chapters_in(names):
    """The exercises of each chapter that `names` holds. Two chapters may share a name: it counts for the fuller one."""
    listed = [importlib.import_module(module.name).EXERCISES for module in _exercise_modules()]
    found = [{one.name for one in chapter if callable(names.get(one.name))} for chapter in listed]
    held, claimed = [], set()
    for number in sorted(range(len(listed)), key=lambda number: -len(found[number])):
        if found[number] - claimed:
            held.append(number)
            claimed |= found[number]
    return [listed[number] for number in sorted(held)]


def _exercise_modules():
    return sorted(pkgutil.iter_modules(exercises.__path__, f"{exercises.__name__}."), key=lambda module: module.name)


def _this_notebook():
    """The names that the cells of a notebook have defined; outside of IPython those of the script."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell.user_ns if shell else vars(sys.modules["__main__"])


def _judge(exercise, answer, printed):
    device = torch.get_default_device()
    # The inputs are on the CPU, whatever default the notebook has set, and its random state stays as it is.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        verdict = _verdict(exercise, answer, guard.Printed(sys.stdout, printed))
    if torch.get_default_device() != device:
        torch.set_default_device(device)
    return verdict


class _Stop(Exception):
    """The answer is not to be run any further: status and message."""


class _Answer:
    """The reader's answer, called under guard; SECONDS for all calls together."""

    def __init__(self, exercise, answer, printed):
        self.exercise, self.answer, self.printed = exercise, answer, printed
        self.started, self.seconds, self.warned = time.monotonic(), 0.0, []

    def __call__(self, arguments, seed=0):
        """A copy of the result. Raises _Stop if the code stops, hangs, or changes what it should not."""
        given, began = _copy(arguments), time.monotonic()
        run, answer = self.exercise.run, self.answer
        try:
            with (
                guard.unchanged_torch(seed) as changed,
                guard.printing_to(self.printed),
                guard.warnings_to(self.warned),
                guard.calls_of(self.exercise.forbidden) as called,
            ):
                result = guard.within(max(SECONDS - self.seconds, 0.1), lambda: _copy(run(answer, **given)))
        except KeyboardInterrupt:  # the reader's own
            raise
        except guard.TimeUp as error:
            raise _Stop("wrong", f"{_endless(answer, error)}{_sizes(arguments)}") from None
        except BaseException as error:  # the reader's code may raise anything
            if isinstance(error, NotImplementedError) and not error.args:  # the blank; torch's own have a message
                told = "Not answered yet: the line raise NotImplementedError is reached."
                raise _Stop("not answered", told) from None
            told = f"Your code stops{_line_of(answer, error)} {_says(error)}"
            known = next((mistake for mistake in self.exercise.wrong if _raises(mistake, error)), None)
            known = f" {_known_mistake(known)}" if known else ""
            raise _Stop("wrong", f"{told}{_sizes(arguments)}{known}") from None
        finally:
            self.seconds += time.monotonic() - began
            self.printed.over = True
        if called:
            names = " and ".join(thing.__name__ for thing in called)
            told = f"Your code calls the library's {names}, which does the exercise for you. Work it out yourself."
            raise _Stop("wrong", told)
        if changed:
            told = f"Your code changes {' and '.join(changed)}, for the whole notebook. Leave it as it was."
            raise _Stop("wrong", told)
        if _difference(given, arguments):
            raise _Stop("wrong", "Your code changes one of its inputs. Make a new tensor instead.")
        return result


def _verdict(exercise, answer, printed):
    if not callable(answer):
        return Verdict(exercise.key, "wrong", f"Pass the function itself, without brackets; this is {_kind(answer)}.")
    if not _takes(answer, names := exercise.inputs(Draw(0))):
        told = f"Keep the arguments as they were, with their names: {', '.join(names)}."
        return Verdict(exercise.key, "wrong", told)
    call = _Answer(exercise, answer, printed)
    try:
        status, message = _found(exercise, call)
    except _Stop as stop:
        status, message = stop.args
    message += _also(printed, call.warned)
    return Verdict(exercise.key, status, message, _side_by_side(exercise, call) if status == "wrong" else "")


def _also(printed, warned):
    """What an answer does beside its task: it prints, or something warns."""
    told = ""
    if printed.first > printed.most:
        told += f" It also prints {printed.count} characters; the first {printed.most} are shown."
    elif printed.count > printed.first:
        told += " It also prints. A check calls it several times; you see what the first call printed."
        told += " Take that out when you no longer need it."
    elif printed.count:
        told += " It also prints; take that out when you no longer need it."
    if warned:
        told += f' A warning came with it: "{_first_line(warned[0])}"'
    return told


def _first_line(text):
    line = next((line.strip() for line in str(text).splitlines() if line.strip()), "")
    return line if len(line) <= 200 else line[:200] + " ..."


def _found(exercise, call):
    """Status and message of an answer that runs."""
    trials = range(exercise.trials)
    results = [call(exercise.inputs(Draw(trial)), seed=trial) for trial in trials]
    expected = [_known(exercise.right[0], exercise, trial, Draw) for trial in trials]
    comparable = all(map(_same_kind, results, expected))  # no generator is equal to the next one: its kind is told
    if (
        comparable
        and call.seconds < SECONDS / 4
        and _unlike(call(exercise.inputs(Draw(0)), seed=exercise.trials), results[0])
    ):
        told = "Your code gives another result when it is called again with the same inputs."
        return "wrong", f"{told} It keeps something from call to call, or draws random numbers."
    problems = [_difference(*pair, exercise.returns) for pair in zip(results, expected, strict=True)]
    if not any(problems):
        return "right", "Right."
    for mistake in exercise.wrong:
        if time.monotonic() - call.started > ALL_SECONDS:
            break
        if all(_matches(mistake, exercise, trial, result) for trial, result in enumerate(results)):
            return "wrong", _known_mistake(mistake)
    trial, problem = next((trial, problem) for trial, problem in enumerate(problems) if problem)
    arguments, result = exercise.inputs(Draw(trial)), results[trial]
    told = _fact(exercise, call, arguments, result, expected[trial]) or problem
    fixed = comparable and not any(_unlike(result, results[0]) for result in results[1:])
    if fixed and any(_unlike(right, expected[0]) for right in expected[1:]):
        told = f"{told} It gives the same for other inputs: do you use the arguments, and nothing from outside?"
    return "wrong", f"Not yet: {told}{_sizes(arguments)}"


def _fact(exercise, call, arguments, result, expected):
    """What is wrong with a tensor of the right shape and dtype, in words; None if there is nothing to add."""
    alike = isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor) and result.layout == expected.layout
    if not alike or (result.shape, result.dtype, result.device) != (expected.shape, expected.dtype, expected.device):
        return None
    if result.is_floating_point():
        odd = ~result.isfinite() & expected.isfinite()
        if odd.any():
            what = "NaN" if result[_first(odd)].isnan() else "infinite"
            told = f"{int(odd.sum())} of {odd.numel()} values are NaN or infinite"
            return f"{told}, the first, {what}, at {list(_first(odd))}{_named(exercise.returns)}."
    for property_ in exercise.holds:
        try:
            told = property_.broken(call, arguments, result, expected)
        except _Stop:  # on changed inputs the code may do what it did not do before
            continue
        if told:
            difference = _difference(result, expected, exercise.returns)
            return f"{told} {difference[0].upper()}{difference[1:]}"
    return None


def _side_by_side(exercise, call):
    """For the small input of the exercise: the result and the expected one, row by row; "" if there is none."""
    if exercise.shows is None:
        return ""
    arguments = exercise.shows()
    try:
        result = call(arguments)
    except _Stop:
        return ""
    expected = exercise.run(exercise.right[0], **exercise.shows())
    if not isinstance(result, torch.Tensor) or result.numel() > 100 or _difference(result, expected) is None:
        return ""
    yours, wanted = _rows(result), _rows(expected)
    yours += [""] * (len(wanted) - len(yours))
    wanted += [""] * (len(yours) - len(wanted))
    width = max(map(len, ["yours", *yours]))
    told = ", ".join(f"{name} {_numbers(value)}" for name, value in arguments.items())
    lines = [f"{left:<{width}}   {right}".rstrip() for left, right in zip(yours, wanted, strict=True)]
    return "\n".join([f"A small example: {told}", f"{'yours':<{width}}   expected", *lines])


def _rows(tensor):
    """One line for each row: its place, and its numbers."""
    if tensor.dim() < 2:
        return [_numbers(tensor)]
    places = [list(place) for place in _places(tensor.shape[:-1])]
    return [f"{place} {_numbers(tensor[tuple(place)])}" for place in places]


def _places(shape):
    return torch.ones(shape).nonzero().tolist()


def _numbers(value):
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


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


def _known_mistake(mistake):
    return f'This looks like a known mistake: {mistake.says} Read again: "{mistake.reread}".'


def _raises(mistake, error):
    """Whether this mistake is known to stop with such an error."""
    if isinstance(mistake.raises, str):
        return mistake.raises in f"{type(error).__name__}: {error}"
    return mistake.raises is not None and isinstance(error, mistake.raises)


def _unlike(result, other):
    """Whether two results of an answer differ; what cannot be compared does not."""
    try:
        return _difference(result, other) is not None
    except Exception:
        return False


@functools.cache  # a reader asks many times, and what is right or a known mistake gives the same every time
def _known(answer, exercise, trial, draw):
    return exercise.run(answer, **exercise.inputs(draw(trial)))


def _same_kind(got, expected):
    """Whether both are tensors, or of one type, with their parts."""
    if isinstance(expected, torch.Tensor):
        return isinstance(got, torch.Tensor)
    if type(got) is not type(expected):
        return False
    if isinstance(expected, dict):
        return got.keys() == expected.keys() and all(_same_kind(got[name], expected[name]) for name in expected)
    if isinstance(expected, (tuple, list)):
        return len(got) == len(expected) and all(map(_same_kind, got, expected))
    return True


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
        return None if same else f"the result, {_short(got)}, is not right."
    if not isinstance(got, torch.Tensor):
        tensor = "a tensor of torch" if type(got).__name__ == "ndarray" else "a tensor"
        return f"the result is {_kind(got)}, but should be {tensor}{_named(returns)}."
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
    told = f"the shape is right, but {int(wrong.sum())} of {wrong.numel()} values are not"
    if got.is_floating_point() and wrong.any() and _same_numbers(got, expected):
        told = f"{told}: the numbers are right, but in other places"
    return f"{told}, the first at {list(_first(wrong))}{_named(returns)}."


def _same_numbers(got, expected):
    ordered = got.detach().flatten().sort().values, expected.detach().flatten().sort().values
    return torch.allclose(*ordered, rtol=1e-4, atol=1e-5)


def _form(tensor):
    return tensor.shape, tensor.dtype, tensor.layout, tensor.device


def _first(wrong):
    return tuple(wrong.nonzero()[0].tolist())


def _short(value):
    """Its repr, if that is short: a whole number may have a million digits."""
    try:
        told = repr(value)
    except ValueError:
        return f"a huge {type(value).__name__}"
    return told if len(told) <= 100 else told[:100] + " ..."


def _takes(answer, arguments):
    """Whether a function can be called with these names; what is not a plain function is simply tried."""
    try:
        inspect.signature(answer).bind(**arguments) if inspect.isfunction(answer) else None
    except TypeError:
        return False
    return True


def _says(error):
    """'with ValueError: what it says', on one line and not endless, as messages of einops and torch can be."""
    says = " ".join(f"with {type(error).__name__}: {error}".split()).removesuffix(".").removesuffix(":")
    return f"{says}." if len(says) <= 300 else says[:300] + " ..."


def _own_frames(answer, error):
    """What was being run of the reader's own cell, outermost first."""
    code = getattr(answer, "__code__", None) or getattr(getattr(answer, "__init__", None), "__code__", None)
    file = getattr(code, "co_filename", None)
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]


def _line_of(answer, error):
    """' at "return x @ W1"': the last line of the reader's own code that was reached, where it can be found."""
    lines = [frame.line for frame in _own_frames(answer, error) if frame.line]
    return f' at "{lines[-1]}"' if lines else ""


def _endless(answer, error):
    """What to say when the time is over."""
    if not _own_frames(answer, error):
        return f"The check has not come to an end after {SECONDS} seconds. Is the machine busy? Run it again."
    told = f"Your code has not come to an end after {SECONDS} seconds, and was stopped{_line_of(answer, error)}."
    return f"{told} Does every loop end? A while needs something that changes in each round."


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
    name = type(value).__name__
    if name in KINDS:
        return KINDS[name]
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    length = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    module = " (a module: is it to be called?)" if isinstance(value, torch.nn.Module) else ""
    return f"{article} {name}{length}{module}"


KINDS = {  # by name: where answers are graded, an object of the reader's process keeps no more of its type than that
    "NoneType": "None (does it end with return?)",
    "ndarray": "a numpy array (ndarray)",
    "generator": "a generator (is there a yield?)",
    "map": "a map (what it gives is not computed yet)",
    "filter": "a filter (what it gives is not computed yet)",
    "zip": "a zip (what it gives is not computed yet)",
    "function": "a function (is it to be called?)",
    "type": "a class (is an object of it wanted?)",
}


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items()}
    return type(value)(map(_copy, value)) if type(value) in (tuple, list) else value
