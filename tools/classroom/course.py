"""What is taught and what it is worth: the chapters from their sources, the points from classroom.toml."""

import argparse
import functools
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from synth_lib import checks
from synth_lib.checks.engine import KNOWN
from tools.build_notebooks import NOTEBOOKS, ROOT, read_source

FILE = ROOT / "classroom.toml"
SETTINGS = ("seed", "seconds_per_cell", "seconds_per_notebook", "seconds_per_exercise", "memory_gib")


class CourseError(ValueError):
    """classroom.toml or the choice of chapters is wrong; the message says what would be right."""


@dataclass(frozen=True)
class Chapter:
    """One chapter as the grader sees it.

    Attributes:
        number, title: "02" and the heading of its notebook. path: its source.
        due: a note, may be empty.
        points: exercise -> points, in the order of the chapter.
        names: exercise -> the name of its function or class.
        lesson: the text of its code cells, without exercises and checks.
        not_run: those of them that take long and that no exercise needs.
    """

    number: str
    title: str
    path: Path
    due: str
    points: dict
    names: dict
    lesson: tuple
    not_run: tuple


@dataclass(frozen=True)
class Course:
    chapters: dict
    seed: int
    limits: dict  # seconds_per_cell and so on
    partial: dict  # exercise -> {words of a diagnosis: share}

    @property
    def worth(self):
        """exercise -> points, in the order of the chapters."""
        return {key: points for chapter in self.chapters.values() for key, points in chapter.points.items()}

    def points(self, key, status, message):
        """The points of an exercise for what its check says."""
        whole = self.worth[key]
        if status == "right":
            return whole
        if status != "wrong" or not message.startswith((KNOWN, "Your code stops")):
            return 0
        diagnosis = message.partition(KNOWN)[2].partition(" Read again: ")[0]  # what stands behind may be a student's
        shares = self.partial.get(key, {}).items()
        return whole * max((share for words, share in shares if words in diagnosis), default=0)


def sources():
    """The chapters that have a source: "02" -> path"""
    return {path.stem[:2]: path for path in sorted((NOTEBOOKS / "src").glob("[0-9][0-9]_*.py"))}


@functools.cache
def read_chapter(path):
    """title, {exercise: points in the source}, {exercise: name}, lesson cells of one source."""
    cells = read_source(path)
    exercises = [cell for cell in cells if "exercise" in cell.metadata]
    points = {cell.metadata["exercise"]: cell.metadata.get("points", 1) for cell in exercises}
    names = {cell.metadata["exercise"]: re.findall(r"(?m)^(?:class|def) (\w+)", cell.source)[-1] for cell in exercises}
    lesson = tuple(cell.source for cell in cells if cell.cell_type == "code" and set(cell.metadata) <= {"fold"})
    return cells[0].source.split("\n")[0].removeprefix("# "), points, names, lesson


def read(chosen=None, file=FILE):
    """The course. `chosen`: the numbers of some chapters; all that classroom.toml has without it.

    Raises:
        CourseError: a chapter is unknown, or classroom.toml does not name exactly its exercises.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CourseError(f"{file.name} cannot be read: {error}") from None
    grading, partial = table.pop("grading", {}), table.pop("partial", {})
    for name in SETTINGS:
        if not isinstance(grading.get(name), (int, float)):
            raise CourseError(f"{file.name}: [grading] needs a number for {name}.")
    known, chapters = sources(), {}
    for number in chosen or sorted(table):
        if number not in known:
            raise CourseError(f"there is no chapter {number}; there are {', '.join(known)}.")
        chapters[number] = _chapter(number, known[number], table.get(number), file.name)
    _check_partial(partial, chapters, file.name)
    return Course(chapters, grading["seed"], grading, partial)


def _chapter(number, path, table, file):
    title, in_source, names, lesson = read_chapter(path)
    if table is None:
        lines = "\n".join(f'"{key}" = {points}' for key, points in in_source.items())
        section = f'[{number}]\ndue = ""\n{lines}'
        raise CourseError(f"{file} says nothing of chapter {number}. Add, for instance:\n\n{section}")
    points = {key: value for key, value in table.items() if key not in ("due", "not_run")}
    if points.keys() != in_source.keys():
        missing, extra = sorted(in_source.keys() - points.keys()), sorted(points.keys() - in_source.keys())
        wrong = f'add "{missing[0]}" = {in_source[missing[0]]}' if missing else f'there is no exercise "{extra[0]}"'
        raise CourseError(f"{file}, [{number}]: {wrong}. To leave an exercise out, give it 0 points.")
    for key, value in points.items():
        if type(value) is not int or value < 0:
            raise CourseError(f'{file}, [{number}]: "{key}" = {value!r}, but points are whole numbers from 0 on.')
    not_run = []
    for words in table.get("not_run", []):
        begun = [text for text in lesson if text.startswith(words)]
        if len(begun) != 1:
            raise CourseError(f'{file}, [{number}]: {len(begun)} cells of the lesson begin with "{words}", not one.')
        not_run += begun
    points = {key: points[key] for key in in_source}
    return Chapter(number, title, path, table.get("due", ""), points, names, lesson, tuple(not_run))


def _check_partial(partial, chapters, file):
    for key in [key for key in partial if key[:2] in chapters]:
        for words, share in partial[key].items():
            if not any(words in mistake.diagnosis for mistake in checks.find(key).wrong):
                raise CourseError(f'{file}, [partial."{key}"]: no known mistake says "{words}".')
            if not 0 <= share <= 1:
                raise CourseError(f'{file}, [partial."{key}"]: a share is between 0 and 1, not {share}.')


def chosen_numbers(text):
    """ "02 03" or "2,3" -> ["02", "03"]"""
    return [number.zfill(2) for number in re.split(r"[\s,]+", text.strip()) if number]


class Parser(argparse.ArgumentParser):
    """Options, of which a wrong one ends the program with one sentence."""

    def __init__(self, description):
        super().__init__(description=description, allow_abbrev=False)

    def error(self, message):
        self.exit(fail(f"{message[:1].upper()}{message[1:]}. --help lists the options."))


def whole_number(least):
    """The type of an option: a whole number from `least` on."""

    def read(text):
        if not re.fullmatch(r"-?\d{1,9}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"it must be a whole number from {least} on, not {text!r}")
        return int(text)

    return read


def fail(error):
    """End the program with one sentence."""
    print(error, file=sys.stderr)
    return 2
