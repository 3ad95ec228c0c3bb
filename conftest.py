"""Settings of every test run, the notebooks' included: no network, one thread a process, `-k chapter_NN`."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

OFFLINE = Path(__file__).parent / "tests" / "offline"

# Two workers that both use every core take twice as long as two that use one each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# nbval compares what a progress bar leaves behind; patience.py shows none then.
os.environ.setdefault("TQDM_DISABLE", "1")
# What the tests start, kernels above all, runs sitecustomize.py by itself; this process must be told.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(OFFLINE), os.environ.get("PYTHONPATH")]))
runpy.run_path(str(OFFLINE / "sitecustomize.py"))


@pytest.hookimpl(tryfirst=True)  # before -k is applied
def pytest_collection_modifyitems(items):
    """The cells of a notebook are tests of its chapter."""
    for item in items:
        if item.path.suffix == ".ipynb" and (chapter := re.match(r"\d\d(?=_)", item.path.name)):
            item.extra_keyword_matches.add(f"chapter_{chapter[0]}")


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item):
    """Every test draws the same numbers in every run, alone or among others."""
    torch = sys.modules.get("torch")  # a run of notebooks does not load it here
    if torch is not None:
        torch.manual_seed(0)
