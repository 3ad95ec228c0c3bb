"""Notebooks as students hand them in, made from the chapters' sources."""

import dataclasses
import functools
import re

import pytest

from tools.build_notebooks import build
from tools.classroom import course as courses
from tools.classroom import sandbox

COURSE = courses.read()
PATIENT = {"seconds_per_cell": 120, "seconds_per_notebook": 1200, "seconds_per_exercise": 300, "memory_gib": 1.0}
BAD = "def linear_scores(x, W1, b1, W2, b2):\n    "  # begins an answer to 02.1

can_grade = pytest.mark.skipif(sandbox.missing() is not None, reason=str(sandbox.missing()))


def limited(**limits):
    """The course with these limits; without any, they are such that only what never ends meets them."""
    return dataclasses.replace(COURSE, limits={**PATIENT, **limits})


def code(source):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}


def notebook(cells):
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [code(cell) for cell in cells]}


@functools.cache
def solutions(chapter):
    cells = build(COURSE.chapters[chapter].path, True).cells
    return [(cell.metadata.exercise, cell.source) for cell in cells if "exercise" in cell.metadata]


def light(chapter, answers=None):
    """A notebook of a chapter without its lesson: imports, and the solution of each exercise or another answer."""
    answers = answers or {}
    lesson = COURSE.chapters[chapter].lesson
    imports = [text for text in lesson if re.match(r"(# @title .*\n)?(import|from) ", text)][:1]
    return notebook([*imports, *(answers.get(key, source) for key, source in solutions(chapter))])


def statuses(result):
    return [verdict[0] for verdict in result.verdicts.values()]
