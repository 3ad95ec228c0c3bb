"""Grade one notebook: run it, ask the checks, say what they found."""

import builtins
import contextlib
import functools
import keyword
import re
from dataclasses import dataclass, field

from synth_lib import checks
from synth_lib.checks import engine
from tools.classroom import submissions
from tools.classroom.protocol import PROTOCOL_ERRORS
from tools.classroom.student import ProcessEnded, Student


@dataclass
class Result:
    """What became of one notebook.

    Attributes:
        file: its name. chapter: "02", or "" if it is not graded. refused: why it is not, or "".
        verdicts: exercise -> [status, message, small example]; a status is "right", "wrong", "not answered" or
            "not graded", which asks for a person: it could not be run.
        troubles: the cells that did not run, as sentences. A cell is named by its number and its first line.
        notes: what was mended, as sentences.
        elsewhere: work in it that was not graded, because it is of another chapter.
    """

    file: str
    chapter: str = ""
    refused: str = ""
    verdicts: dict = field(default_factory=dict)
    troubles: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    elsewhere: list = field(default_factory=list)


def grade(server, path, course):
    """-> Result. Never raises because of a submission."""
    result = Result(path.name)
    try:
        cells = submissions.read(path)
        result.chapter = submissions.recognise(cells, course.chapters, path.name)
    except (submissions.Refused, OSError) as error:
        reason = f"it cannot be opened ({error.strerror})" if isinstance(error, OSError) else error
        result.refused = f"{result.file}: {reason}"
        return result
    chapter = course.chapters[result.chapter]
    if others := submissions.foreign(cells, result.chapter, course.chapters):
        words = f"{result.file}: it is graded as chapter {result.chapter}, but also holds {', '.join(others[:9])}"
        result.elsewhere = [f"{words}, not graded: hand in one notebook for each chapter."]
    wanted = list(chapter.names.values())
    with Student(server, cells, wanted, chapter.lesson, course.limits, chapter.not_run) as student:
        try:
            student.run()
        except ProcessEnded as error:
            result.refused = f"{result.file}: {error}"
        for key, name in chapter.names.items():
            if result.refused:
                result.verdicts[key] = ["not graded", f"The notebook could not be run: {result.refused}.", ""]
            elif student.child is None or student.late:
                message = "The time for this notebook was used up before this exercise was asked for."
                result.verdicts[key] = ["not graded", message, ""]
            else:
                result.verdicts[key] = judge(student, key, name, course)
                if student.child is None:  # the answer has ended its process: the next one needs another
                    with contextlib.suppress(ProcessEnded):
                        student.run()
        explain(result, student, cells, chapter)
    return result


def judge(student, key, name, course):
    """[status, message, small example] of one exercise; of several definitions of its name the best counts."""
    verdicts, versions = [], student.versions.get(name, 0)
    try:
        for version in range(versions):
            runner = functools.partial(student.run_answer, name, version)
            seconds = course.limits["seconds_per_exercise"]
            verdict = engine.judge(checks.find(key), runner, seed=course.seed, seconds=seconds)
            verdicts.append([verdict.status, verdict.message[:LONGEST], verdict.shown[:LONGEST]])
            if verdict.status == "right":
                break
    except ProcessEnded as error:  # an older definition that is left may be right; the last one is there twice
        unknown = student.late or versions > max(len(verdicts) + 1, 2)
        verdicts.append(["not graded" if unknown else "wrong", _ending(name, str(error)), ""])
    except (*PROTOCOL_ERRORS, RuntimeError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        verdicts.append(["not graded", f"Your {name} could not be judged: {reason}", ""])
    if not verdicts:
        return ["not graded", f"The notebook defines no {name}.", ""]
    order = ["right", "not graded", "wrong", "not answered"]
    return min(verdicts, key=lambda verdict: order.index(verdict[0]))


LACKING = ("ModuleNotFoundError: ", "FileNotFoundError: ", "PermissionError: ")  # where it is graded, at least
LONGEST = 2000  # characters of what a check says of an answer


def _ending(name, why):
    """What to say of an answer whose call was the end of its process."""
    how = why.removeprefix("it ends the process ")
    if how == "(it ended itself)":
        return f"Your {name} ends Python (os._exit or quit). Return a value instead."
    if how == "(it was stopped)":
        return f"Your {name} was stopped by the system. Does it take much memory, or end Python?"
    if how.startswith("(signal"):
        return f"Your {name} makes Python crash {how}."
    return f"Calling your {name} ends the process: {why}."


def explain(result, student, cells, chapter):
    """Say which cells did not run, and behind which lost exercise each of them stands."""
    named = {cell.number: "C" + str(cell)[1:] for cell in cells}
    result.notes += student.notes
    result.troubles += [f"{named[number]} {reason}, and was left out." for number, reason in student.ended.items()]
    result.troubles += [f"{named[number]} cannot be read: {reason}." for number, reason in student.unreadable.items()]
    text = "\n".join(cell.text for cell in cells if cell.kind == "code")
    troubled = {**student.failed, **student.unreadable, **student.ended}
    for key, name in chapter.names.items():
        status, message, _ = result.verdicts[key]
        asked = re.findall(rf"^[^#\n]*\bcheck\(\s*['\"]{key}['\"]\s*,\s*(lambda\b|[\w.()]+)", text, re.M)
        renamed = next((one.removesuffix(")") for one in asked if not re.match(rf"({name}|None)\b", one)), None)
        own = [cell for cell in cells if submissions.definition(name).search(cell.text)]
        shown = [cell for cell in own if cell.kind != "code"]
        own += [cell for cell in cells if cell.kind == "code" and cell not in own and name in bindings(cell.text)]
        if status == "not answered" and (renamed or shown):  # the blank stands above, and the work elsewhere
            unrun = shown and f"{named[shown[-1].number]} is a {shown[-1].kind} cell, so its code does not run."
            result.verdicts[key] = ["not graded", unrun or keep(name, renamed), ""]
        if status in ("right", "not answered"):
            continue
        lost = [cell for cell in own if cell.number in troubled]
        if not student.versions.get(name) and not result.refused:
            if lost:
                number = lost[-1].number
                message = f"{named[number]} should define {name}, but it "  # why it cannot be read is a trouble
                message += "cannot be read." if number in student.unreadable else f"does not run: {troubled[number]}."
            elif not own:
                message = keep(name, renamed) if renamed else f"The cell that defines {name} is missing."
            result.verdicts[key] = ["not graded", message, ""]
        elif own and status == "wrong":
            number, helper = lost_part(name, cells, student.unreadable), lost_helper(message, cells, troubled)
            if number is not None:
                message += f" But: {named[number]} cannot be read, and may hold a part of it."
            elif helper is not None:
                message += f" But: {named[helper]} should define that, and does not run: {troubled[helper]}."
            elif message.startswith("Your code stops") and any(error in message for error in LACKING):
                message += " But: on another machine it may run. It must need no file and no package of its own."
            elif renamed:
                message = f"{keep(name, renamed)} {message}"
            else:
                continue
            result.verdicts[key] = ["not graded", message, ""]


BINDS = re.compile(r"^(?:async def|def|class) +(\w+)|^(?:import|from) (.+)|^([\w, ]+)=[^=]", re.M)
KNOWN = {*keyword.kwlist, *vars(builtins)}


def words(text):
    """The names in a text, without those behind a dot, in quotes or in a comment."""
    text = re.sub(r'"""[\s\S]*?"""|"[^"\n]*"|\'[^\'\n]*\'|#.*', " ", text)
    return set(re.findall(r"(?<![.\w])[^\W\d]\w*", text)) - KNOWN


def bindings(text):
    """The names that the lines of a text that are not indented bind. The text may be no Python."""
    return words(" ".join(name for names in BINDS.findall(text) for name in names))


def lost_part(name, cells, unreadable):
    """The number of a cell that cannot be read and may hold a part of the answer `name`, or None.

    Such a cell defines `name`, or something that is looked up and nothing else defines; or it is the rest of a
    definition, cut off from its beginning, and shares a name with the answer or has none.
    """
    readable = [cell.text for cell in cells if cell.kind == "code" and cell.number not in unreadable]
    own = words("\n".join(text for text in readable if submissions.definition(name).search(text)))
    missing = words("\n".join(readable)) - bindings("\n".join(readable)) | {name}
    for cell in cells:
        if cell.number in unreadable:
            mentioned = words(cell.text)
            cut_off = submissions.INDENTED.match(cell.text) or "unexpected indent" in unreadable[cell.number]
            if bindings(cell.text) & missing or (cut_off and (not mentioned or not own or own & mentioned)):
                return cell.number
    return None


def lost_helper(message, cells, troubled):
    """The number of the cell that did not run and should define the name that an answer stopped without, or None."""
    missing = re.search(r"NameError: name '(\w+)' is not defined", message)
    lost = [cell for cell in cells if cell.number in troubled] if missing else []
    return next((cell.number for cell in lost if missing[1] in bindings(cell.text)), None)


def keep(name, renamed):
    return f"Keep the name {name}: your notebook calls it {renamed[:60]}, and is graded by names."
