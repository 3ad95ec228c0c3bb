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
import os
import pkgutil
import sys
import time
import traceback
from dataclasses import dataclass, field

import torch

from synth_lib.checks import bank, guard
from synth_lib.checks.compare import bracketed, copy_of, differ, difference, first_index, kind_of, same_kind
from synth_lib.checks.exercise import Draw

SECONDS = 8  # for all that an answer computes in one check
ALL_SECONDS = 10  # with the search for the known mistake
PRINTED = 2000  # characters of the answer's own print that a check lets through


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
    return sorted(pkgutil.iter_modules(bank.__path__, f"{bank.__name__}."), key=lambda module: module.name)


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
        given, began = copy_of(arguments), time.monotonic()
        run, answer = self.exercise.run, self.answer
        try:
            with (
                guard.unchanged_torch(seed) as changed,
                guard.printing_to(self.printed),
                guard.warnings_to(self.warned),
                guard.calls_of(self.exercise.forbidden) as called,
            ):
                result = guard.within(max(SECONDS - self.seconds, 0.1), lambda: copy_of(run(answer, **given)))
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
        if difference(given, arguments):
            raise _Stop("wrong", "Your code changes one of its inputs. Make a new tensor instead.")
        return result


def _verdict(exercise, answer, printed):
    if not callable(answer):
        return Verdict(exercise.key, "wrong", f"Pass the function itself, without brackets; this is {kind_of(answer)}.")
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
    comparable = all(map(same_kind, results, expected))  # no generator is equal to the next one: its kind is told
    if (
        comparable
        and call.seconds < SECONDS / 4
        and differ(call(exercise.inputs(Draw(0)), seed=exercise.trials), results[0])
    ):
        told = "Your code gives another result when it is called again with the same inputs."
        return "wrong", f"{told} It keeps something from call to call, or draws random numbers."
    problems = [difference(*pair, exercise.returns) for pair in zip(results, expected, strict=True)]
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
    fixed = comparable and not any(differ(result, results[0]) for result in results[1:])
    if fixed and any(differ(right, expected[0]) for right in expected[1:]):
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
            what = "NaN" if result[first_index(odd)].isnan() else "infinite"
            told = f"{int(odd.sum())} of {odd.numel()} values are NaN or infinite"
            return f"{told}, the first, {what}, at {list(first_index(odd))}{bracketed(exercise.returns)}."
    for property_ in exercise.properties:
        try:
            told = property_.broken(call, arguments, result, expected)
        except _Stop:  # on changed inputs the code may do what it did not do before
            continue
        if told:
            problem = difference(result, expected, exercise.returns)
            return f"{told} {problem[0].upper()}{problem[1:]}"
    return None


def _side_by_side(exercise, call):
    """For the small input of the exercise: the result and the expected one, row by row; "" if there is none."""
    if exercise.example is None:
        return ""
    arguments = exercise.example()
    try:
        result = call(arguments)
    except _Stop:
        return ""
    expected = exercise.run(exercise.right[0], **exercise.example())
    if not isinstance(result, torch.Tensor) or result.numel() > 100 or difference(result, expected) is None:
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
    """The exercise `key`, from synth_lib/checks/bank/chapter_NN.py.

    Raises:
        ValueError: there is no such chapter or exercise; the message lists those of the chapter.
    """
    chapter = str(key).split(".")[0]
    try:
        module = importlib.import_module(f"synth_lib.checks.bank.chapter_{chapter}")
    except ModuleNotFoundError as error:
        if error.name != f"synth_lib.checks.bank.chapter_{chapter}":  # the chapter is there, what it needs is not
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
    return difference(result, mistaken) is None


def _known_mistake(mistake):
    return f'This looks like a known mistake: {mistake.diagnosis} Read again: "{mistake.section}".'


def _raises(mistake, error):
    """Whether this mistake is known to stop with such an error."""
    if isinstance(mistake.error, str):
        return mistake.error in f"{type(error).__name__}: {error}"
    return mistake.error is not None and isinstance(error, mistake.error)


@functools.cache  # a reader asks many times, and what is right or a known mistake gives the same every time
def _known(answer, exercise, trial, draw):
    return exercise.run(answer, **exercise.inputs(draw(trial)))


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


def _sizes(arguments):
    """' (with x (2, 5, 12), max_length 7)': on which inputs it happened."""
    told = [
        f"{name} {tuple(value.shape) if isinstance(value, torch.Tensor) else value}"
        for name, value in arguments.items()
        if isinstance(value, (torch.Tensor, int, float, str))
    ]
    return f" (Inputs: {', '.join(told)}.)" if told else ""
