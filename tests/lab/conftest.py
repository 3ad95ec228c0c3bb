import functools
import multiprocessing

import pytest
import torch

from synth_lib.lab import runner
from synth_lib.text import corpora


@pytest.fixture(scope="session", autouse=True)
def each_text_is_read_once():
    """Half a second for each command that trains on Shakespeare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "shakespeare", functools.cache(corpora.shakespeare))
        yield


@pytest.fixture
def forked(monkeypatch):
    """Processes start as copies of this one: quicker than new ones, which have to load torch and the text."""
    torch.use_deterministic_algorithms(False)  # loads a second of code, which every process would load again
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(runner.multiprocessing, "get_context", lambda kind: context)
    return context
