"""Run an answer once, under watch: what came of it, in plain values.

The same code runs an answer in the reader's notebook and, where a class is graded, in a student's sandboxed process.
engine.py judges the outcomes, and does not know where they come from.
"""

import inspect
import traceback
from dataclasses import dataclass

from synth_lib.checks import guard
from synth_lib.checks.compare import copy_of, difference, kind_of, plain_copy

ENDS = ("result", "no function", "arguments", "blank", "error", "time", "busy", "library", "settings", "inputs")


@dataclass
class Outcome:
    """What one call of an answer came to.

    Attributes:
        end: one of ENDS. "result"; or why there is none: it does not take the "arguments", it was stopped ("time"), the
            check around it was ("busy"), or it called the "library", or changed "settings" of torch or its "inputs".
        result: tensors, numbers, texts, and lists, tuples and dicts of these.
        text: "TypeName: message" of an error; of what is no function, what it is.
        bases: of an error, the names of its classes.
        line: the last line of the answer's own cell that was reached, where it is known.
        names: the parts of the library that were called, or the settings that were changed.
        printed: how many characters it printed. warning: the first one, or "".
    """

    end: str
    result: object = None
    text: str = ""
    bases: tuple = ()
    line: str = ""
    names: tuple = ()
    printed: int = 0
    warning: str = ""


def run_answer(answer, run, arguments, seed, forbidden, seconds, printed):
    """run(answer, **arguments) -> Outcome. Raises nothing but the reader's own KeyboardInterrupt.

    Args:
        seed: torch draws from it. forbidden: functions and classes of the library. seconds: the time limit.
        printed: a guard.Printed, through which the answer prints.
    """
    if not callable(answer):
        return Outcome("no function", text=kind_of(answer))
    if not _takes(answer, arguments):
        return Outcome("arguments")
    own, warned, before = copy_of(arguments), [], printed.count
    try:
        with (
            guard.unchanged_torch(seed) as changed,
            guard.printing_to(printed),
            guard.warnings_to(warned),
            guard.calls_of(forbidden) as called,
        ):
            result = guard.within(max(seconds, 0.1), lambda: plain_copy(run(answer, **own)))
    except KeyboardInterrupt:
        raise
    except guard.TimeUp as error:
        frames = _own_frames(answer, error)
        outcome = Outcome("time" if frames else "busy", line=_last_line(frames))
    except BaseException as error:  # the reader's code may raise anything
        outcome = failure(error, answer)
    else:
        if called:
            outcome = Outcome("library", names=tuple(thing.__name__ for thing in called))
        elif changed:
            outcome = Outcome("settings", names=tuple(changed))
        else:
            outcome = Outcome("inputs") if difference(own, arguments, exact=True) else Outcome("result", result)
    outcome.printed, outcome.warning = printed.count - before, warned[0] if warned else ""
    return outcome


def failure(error, answer=None):
    """The Outcome of an answer that raised `error`."""
    if isinstance(error, NotImplementedError) and not error.args:  # the blank; torch's own have a message
        return Outcome("blank")
    try:
        text = str(error)
    except Exception:
        text = "(the error cannot be shown)"
    bases = tuple(kind.__name__ for kind in type(error).__mro__)
    return Outcome("error", text=f"{bases[0]}: {text}", bases=bases, line=_last_line(_own_frames(answer, error)))


def _takes(answer, arguments):
    """Whether a function can be called with these names; what is not a plain function is simply tried."""
    try:
        inspect.signature(answer).bind(**arguments) if inspect.isfunction(answer) else None
    except TypeError:
        return False
    return True


def _own_frames(answer, error):
    """What was being run of the reader's own cell, outermost first."""
    code = getattr(answer, "__code__", None) or getattr(getattr(answer, "__init__", None), "__code__", None)
    file = getattr(code, "co_filename", None)
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]


def _last_line(frames):
    return next((frame.line for frame in reversed(frames) if frame.line), "")


def in_this_process(answer, target, most):
    """A runner as engine.judge wants it: it runs `answer` here, and lets through what its first call prints.

    Args:
        target: where that goes. most: of how many characters.
    """
    printed = guard.Printed(target, most)

    def runner(run, arguments, seed, forbidden, seconds):
        try:
            return run_answer(answer, run, arguments, seed, forbidden, seconds, printed)
        finally:
            printed.over = True

    return runner
