"""What conftest.py does to every run: the same random numbers, and a keyword for the chapter of a notebook."""

import subprocess
import sys

import pytest
import torch

from tools.build_notebooks import ROOT


@pytest.fixture(scope="module")
def numbers_of_a_fixture():
    return torch.rand(3)


def numbers_of_seed_0(count=3):
    return torch.rand(count, generator=torch.Generator().manual_seed(0))


def test_a_fixture_draws_from_seed_0(numbers_of_a_fixture):
    assert torch.equal(numbers_of_a_fixture, numbers_of_seed_0())


@pytest.mark.parametrize("run", ["first", "second"])
def test_every_test_draws_from_seed_0(run):
    assert torch.equal(torch.rand(3), numbers_of_seed_0())


def test_k_selects_the_notebooks_of_a_chapter_and_no_other():
    command = "-m pytest --collect-only -q --nbval --nbval-current-env notebooks -k chapter_02".split()
    lines = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    notebooks = {line.split("::")[0] for line in lines if "::" in line}
    assert notebooks == {f"notebooks/{folder}02_dense.ipynb" for folder in ("", "solutions/")}
