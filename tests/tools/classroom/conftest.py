"""One process that forks students' processes, for all tests, and a grader that works through it."""

import json

import pytest

from tests.helpers.homework import limited
from tools.classroom.grading import grade
from tools.classroom.student import ForkServer


@pytest.fixture(scope="session")
def server():
    with ForkServer() as one:
        yield one


@pytest.fixture
def graded(request, tmp_path):
    """graded(notebook): its Result. A text is written as it is, and graded up to where it is refused."""

    def graded(notebook, course=None, name="02_dense.ipynb"):
        course = course or limited()
        path, is_text = tmp_path / name, isinstance(notebook, str)
        path.write_text(notebook if is_text else json.dumps(notebook), encoding="utf8")
        return grade(None if is_text else request.getfixturevalue("server"), path, course)

    return graded
