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
import os
import pkgutil
import sys
import threading
import time
from dataclasses import dataclass, field

import torch

from synth_lib.checks import bank, guard, show
from synth_lib.checks.compare import differ, difference, not_finite, plain_copy, same_kind
from synth_lib.checks.exercise import Draw
from synth_lib.checks.runner import in_this_process

SECONDS = 8  # for all that an answer computes in one check; what the check trains with its result does not count
SEARCH = 1.25  # times as long it may take with the search for the known mistake
OTHER = 10_000  # numbers from this seed on, in sizes that an answer has seen: what it keeps by size is found out
KNOWN = "This looks like a known mistake: "  # only a check says that: it may be worth a share of the points
PRINTED = 2000  # characters of the answer's own print that a check lets through
LOCK = threading.RLock()  # an answer prints, warns and sets torch for the whole process: one at a time


@dataclass(frozen=True)
class Verdict:
    """What a check found. Its repr is what the reader sees; a notebook shows the same as show.py lays it out.

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

    def _repr_html_(self):
        return show.html(self, [mistake.section for mistake in find(self.key).wrong])


def check(key, answer, *, seed=0, seconds=SECONDS):
    """Check the reader's `answer` to the exercise `key`. -> Verdict

    Args:
        seed: the inputs are drawn from it. seconds: for all that the answer computes.

    Raises:
        ValueError: there is no such exercise.
        AssertionError: the answer is not right, and nbgrader is marking (it sets NBGRADER_EXECUTION).
    """
    verdict = _check(find(key), answer, PRINTED, seed, seconds)
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
            names = ", ".join(f"{verdict.key} ({show.LOOKS[verdict.status][1]})" for verdict in left)
            right = f"{len(own) - len(left)} of {len(own)} exercises are right"
            lines.append(f"Chapter {chapter}: {right}." + (f" Left: {names}." if left else ""))
        return "\n".join(lines)


def progress(notebook=None, *, seconds=SECONDS):
    """How many exercises of a chapter are right, and which are left. -> Progress

    The functions are found by their names, and each is checked now. Of `notebook` it reads nothing else.

    Args:
        notebook: a dict of names or a module; default: the notebook that asks.
        seconds: for all that one answer computes.
    """
    if notebook is None:
        notebook = _this_notebook()
    names = notebook if isinstance(notebook, dict) else vars(notebook)
    verdicts = [
        _check(exercise, names[exercise.name], printed=0, seconds=seconds)
        if exercise.name in names
        else Verdict(exercise.key, "missing", "Its cell has not run.")
        for chapter in _chapters_in(names)
        for exercise in chapter
    ]
    return Progress(tuple(verdicts))


def _chapters_in(names):
    """The exercises of each chapter that `names` holds. Two chapters may share a name: it counts for the fuller one."""
    listed = [importlib.import_module(module.name).EXERCISES for module in _exercise_modules()]
    defined = [{one.name for one in chapter if callable(names.get(one.name))} for chapter in listed]
    held, claimed = [], set()
    for number in sorted(range(len(listed)), key=lambda number: -len(defined[number])):
        if defined[number] - claimed:
            held.append(number)
            claimed |= defined[number]
    return [listed[number] for number in sorted(held)]


def _exercise_modules():
    return sorted(pkgutil.iter_modules(bank.__path__, f"{bank.__name__}."), key=lambda module: module.name)


def _this_notebook():
    """The names that the cells of a notebook have defined; outside of IPython those of the script."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell.user_ns if shell else vars(sys.modules["__main__"])


def _check(exercise, answer, printed, seed=0, seconds=SECONDS):
    with LOCK:
        return judge(exercise, in_this_process(answer, sys.stdout, printed), seed=seed, seconds=seconds, most=printed)


def judge(exercise, runner, *, seed, seconds, most=PRINTED):
    """The verdict on an answer that `runner` runs, here or elsewhere. -> Verdict

    Args:
        runner: takes (run, arguments, seed, forbidden, seconds) and gives an Outcome of runner.py.
        most: how many characters of what the answer prints it lets through.
    """
    with guard.on_the_cpu():
        call = _Answer(exercise, runner, seconds)
        try:
            status, message = _judged(exercise, call, seed)
        except _Stop as stop:
            status, message = stop.args
        message += _beside(call.outcomes, most)
        return Verdict(exercise.key, status, message, _side_by_side(exercise, call) if status == "wrong" else "")


class _Stop(Exception):
    """The answer is not to be run any further: status and message."""


class _Answer:
    """The reader's answer: its results for some arguments. `seconds` are for all calls together."""

    def __init__(self, exercise, runner, seconds):
        self.exercise, self.runner, self.seconds = exercise, runner, seconds
        self.started, self.used, self.outcomes = time.monotonic(), 0.0, []

    def __call__(self, arguments, seed=0):
        """Raises _Stop if the code stops, hangs, or changes what it should not."""
        began, left = time.monotonic(), self.seconds - self.used
        outcome = self.runner(self.exercise.run, arguments, seed, self.exercise.forbidden, left)
        self.used += time.monotonic() - began
        self.outcomes.append(outcome)
        if outcome.end != "result":
            raise _Stop("not answered" if outcome.end == "blank" else "wrong", self.message_of(outcome, arguments))
        try:
            return _measured(self.exercise, outcome.result, arguments)
        except Exception as error:
            text = " ".join(str(error).split()).removesuffix(".")
            raise _Stop("wrong", f"Not yet: {text[:300]}.{_sizes(self.exercise, arguments)}") from None

    def message_of(self, outcome, arguments):
        """What to say of a call without a result."""
        names, line = " and ".join(outcome.names), f' at "{outcome.line}"' if outcome.line else ""
        match outcome.end:
            case "no function":
                return f"Pass the function itself, without brackets; this is {outcome.text}."
            case "arguments":
                return f"Keep the arguments as they were, with their names: {', '.join(arguments)}."
            case "blank":
                return "Not answered yet: the line raise NotImplementedError is reached."
            case "library":
                return f"Your code calls the library's {names}, which does the exercise for you. Work it out yourself."
            case "settings":
                return f"Your code changes {names}, for the whole notebook. Leave it as it was."
            case "inputs":
                return "Your code changes one of its inputs. Make a new one instead."
            case "busy":
                message = f"The check has not come to an end after {self.seconds} seconds."
                return f"{message} Is the machine busy? Run it again.{_sizes(self.exercise, arguments)}"
            case "time":
                message = f"Your code has not come to an end after {self.seconds} seconds, and was stopped{line}."
                message += " Does every loop end? A while needs something that changes in each round."
                message += " If there is no loop, the machine may be busy: run it again."
                return f"{message}{_sizes(self.exercise, arguments)}"
        known = next((mistake for mistake in self.exercise.wrong if _raises(mistake, outcome)), None)
        known = f" {_sentence([known.diagnosis], [known.section])}" if known else ""
        stops = f"Your code stops{line} {_with(outcome.text)}".replace(KNOWN, "...")
        return f"{stops}{_sizes(self.exercise, arguments)}{known}"


def _beside(outcomes, most):
    """What an answer does beside its task: it prints, or something warns."""
    message, first, count = "", outcomes[0].printed, sum(outcome.printed for outcome in outcomes)
    if first > most:
        message += f" It also prints {count} characters; the first {most} are shown."
    elif count > first:
        message += " It also prints. A check calls it several times; you see what the first call printed."
        message += " Take that out when you no longer need it."
    elif count:
        message += " It also prints; take that out when you no longer need it."
    warning = next((outcome.warning for outcome in outcomes if outcome.warning), "")
    return message + (f' A warning came with it: "{_first_line(warning)}"'.replace(KNOWN, "...") if warning else "")


def _first_line(text):
    line = next((line.strip() for line in str(text).splitlines() if line.strip()), "")
    return line if len(line) <= 200 else line[:200] + " ..."


def _judged(exercise, call, seed):
    """Status and message of an answer that runs."""
    seeds = range(seed, seed + exercise.trials)
    results = [call(exercise.inputs(Draw(one)), seed=one) for one in seeds]
    expected = [_known(exercise.right[0], exercise, one) for one in seeds]
    comparable = all(map(same_kind, results, expected))  # of another kind: that is said first
    problems = [difference(*pair, exercise.returns) for pair in zip(results, expected, strict=True)]
    if comparable and call.used < call.seconds / 4:
        if problem := _kept(exercise, call, seed, results[0], right=not any(problems)):
            return "wrong", problem
    if not any(problems):
        return "right", "Right."
    if sentence := _known_mistake(exercise, call, seeds, results, expected if comparable else None):
        return "wrong", sentence
    trial, problem = next((trial, problem) for trial, problem in enumerate(problems) if problem)
    arguments, result = exercise.inputs(Draw(seeds[trial])), results[trial]
    message = _fact(exercise, call, arguments, result, expected[trial]) or problem
    fixed = comparable and not any(differ(result, results[0]) for result in results[1:])
    if fixed and any(differ(right, expected[0]) for right in expected[1:]):
        message = f"{message} It gives the same for other inputs: do you use the arguments, and nothing from outside?"
    return "wrong", f"Not yet: {message}{_sizes(exercise, arguments)}"


def _kept(exercise, call, seed, first, right):
    """What to say of an answer that keeps something from call to call, or draws random numbers; None of another."""
    torch_seed = seed + exercise.trials
    if right:
        numbers = _other_numbers(exercise, seed)
        again = call(exercise.inputs(Draw(seed, numbers)), seed=torch_seed)
        if not differ(again, _known(exercise.right[0], exercise, seed, numbers)):
            return None
    if differ(call(exercise.inputs(Draw(seed)), seed=torch_seed), first):
        message = "Your code gives another result when it is called again with the same inputs."
        return f"{message} It keeps something from call to call, or draws random numbers."
    if right:
        message = "Your code is right at first, and no longer when it is called again with other numbers of the same"
        return f"{message} sizes. Does it keep something from call to call?"
    return None


@functools.cache
def _other_numbers(exercise, seed):
    """Draw's `numbers` for other inputs of the same sizes: where inputs are drawn until they fit, sizes may change."""

    def shapes(arguments):
        return [value.shape for value in arguments.values() if isinstance(value, torch.Tensor)]

    own, tries = shapes(exercise.inputs(Draw(seed))), range(OTHER + seed, OTHER + seed + 10)
    return next((one for one in tries if shapes(exercise.inputs(Draw(seed, one))) == own), tries[0])


def _fact(exercise, call, arguments, result, expected):
    """What is wrong with a tensor of the right shape and dtype, in words; None if there is nothing to add."""
    alike = isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor) and result.layout == expected.layout
    if not alike or (result.shape, result.dtype, result.device) != (expected.shape, expected.dtype, expected.device):
        return None
    if not_finite(result, expected).any():
        return None  # that is what is told of it
    for property_ in exercise.properties:
        try:
            broken = property_.broken(call, arguments, result, expected)
        except _Stop:  # on changed inputs the code may do what it did not do before
            continue
        if broken:
            problem = difference(result, expected, exercise.returns)
            return f"{broken} {problem[0].upper()}{problem[1:]}"
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
    inputs = ", ".join(f"{name} {_numbers(value)}" for name, value in arguments.items())
    lines = [f"{left:<{width}}   {right}".rstrip() for left, right in zip(yours, wanted, strict=True)]
    return "\n".join([f"A small example: {inputs}", f"{'yours':<{width}}   expected", *lines])


def _rows(tensor):
    """One line for each row: its index, and its numbers."""
    if tensor.dim() < 2:
        return [_numbers(tensor)]
    indices = torch.ones(tensor.shape[:-1]).nonzero().tolist()
    return [f"{index} {_numbers(tensor[tuple(index)])}" for index in indices]


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


def _known_mistake(exercise, call, seeds, results, expected):
    """What to say of results that a known mistake gives, in whole or part by part; None if there is none in time."""

    def is_known(mistake, part=None):
        """Whether this mistake, run on the same inputs, gives exactly the reader's results, or this part of each."""
        if not exercise.measure and time.monotonic() - call.started > SEARCH * call.seconds:
            return False  # what the check itself measures takes its time, and the verdict does not hang on it
        try:
            wrong = [_known(mistake.answer, exercise, seed) for seed in seeds]
        except Exception:  # a mistake may break where the reader's code does not: then it is another one
            return False
        return not any(difference(*pair) for pair in _pairs(results, wrong, part))

    for mistake in exercise.wrong:
        if not mistake.by_part and is_known(mistake):
            return _sentence([mistake.diagnosis], [mistake.section])
    by_part = [mistake for mistake in exercise.wrong if mistake.by_part]
    if not by_part or expected is None:
        return None
    parts = {}  # of each mistake: the parts of the result that it spoils
    for part, name in enumerate(exercise.returns.split(", ")):
        if any(difference(*pair) for pair in _pairs(results, expected, part)):
            mistake = next((mistake for mistake in by_part if is_known(mistake, part)), None)
            parts.setdefault(mistake, []).append(f"in the {name.replace('_', '-')}")
    others = parts.pop(None, [])
    if not parts:
        return None
    diagnoses = [f"{' and '.join(names)}, {mistake.diagnosis}" for mistake, names in parts.items()]
    return _sentence(
        diagnoses + [f"{name}, something else is not right." for name in others],
        [mistake.section for mistake in parts],
    )


def _pairs(results, others, part):
    pairs = zip(results, others, strict=True)
    return pairs if part is None else ((result[part], other[part]) for result, other in pairs)


def _sentence(diagnoses, sections):
    diagnosis = " ".join([diagnoses[0], *(text[0].upper() + text[1:] for text in diagnoses[1:])])
    sections = " and ".join(f'"{section}"' for section in dict.fromkeys(sections))
    return f"{KNOWN}{diagnosis} Read again: {sections}."


def _raises(mistake, outcome):
    """Whether this mistake is known to stop with such an error."""
    if isinstance(mistake.error, str):
        return mistake.error in outcome.text
    return mistake.error is not None and mistake.error.__name__ in outcome.bases


@functools.cache  # a reader asks many times, and what is right or a known mistake gives the same every time
def _known(answer, exercise, seed, numbers=None):
    result = plain_copy(exercise.run(answer, **exercise.inputs(Draw(seed, numbers))))
    return _measured(exercise, result, exercise.inputs(Draw(seed, numbers)))


def _measured(exercise, result, arguments):
    return exercise.measure(result, **arguments) if exercise.measure else result


def _with(text):
    """'with ValueError: what it says', on one line and not endless, as messages of einops and torch can be."""
    text = " ".join(f"with {text}".split()).removesuffix(".").removesuffix(":")
    return f"{text}." if len(text) <= 300 else text[:300] + " ..."


def _sizes(exercise, arguments):
    """' (Inputs: x (2, 5, 12), max_length 7.)': on which inputs it happened; "" where it may have been on others."""
    listed = _listed(arguments)
    return listed if listed and not _asks_elsewhere(exercise) else ""


@functools.cache
def _asks_elsewhere(exercise):
    """Whether `run` also asks the answer about inputs of other sizes: what is said may be about those."""
    arguments, asked = exercise.inputs(Draw(0)), []

    def noted(*values, **named):
        named = dict(zip(arguments, values, strict=False)) | named
        asked.append(_listed({name: named.get(name, value) for name, value in arguments.items()}))
        return exercise.right[0](**named)

    own = _listed(arguments)
    exercise.run(noted, **arguments)
    return any(one != own for one in asked)


def _listed(arguments):
    sizes = [
        f"{name} {tuple(value.shape) if isinstance(value, torch.Tensor) else value}"
        for name, value in arguments.items()
        if isinstance(value, (torch.Tensor, int, float, str))
    ]
    return f" (Inputs: {', '.join(sizes)}.)" if sizes else ""
