import multiprocessing

import pytest
import torch

from synth_lib.lab import runner


@pytest.fixture
def forked(monkeypatch):
    """Processes start as copies of this one: quicker than new ones, which have to load torch and the text."""
    torch.use_deterministic_algorithms(False)  # loads a second of code, which every process would load again
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(runner.multiprocessing, "get_context", lambda kind: context)
    return context
