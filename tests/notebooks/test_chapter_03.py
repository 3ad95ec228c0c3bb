"""The reader's own Random is the library's, where a model asks it for rows; and the exercises take what is said."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from synth_lib.lab.train import parameter_groups
from synth_lib.models import LanguageModel
from synth_lib.scores import Score

SOURCE = Path(__file__).resolve().parents[2] / "notebooks" / "src" / "03_random.py"
TEXT = SOURCE.read_text(encoding="utf8")


@pytest.fixture
def models():
    """A model around the class of the lesson, and one around the library's, with the same numbers."""
    names = {"Score": Score, "nn": nn, "torch": torch, "math": math}
    (own,) = re.findall(r"^class OwnRandom\(Score\):\n(?:    .*\n|\n(?=    ))+", TEXT, flags=re.M)
    exec(own, names)
    torch.manual_seed(0)
    scores = [names["OwnRandom"](12, head=3, max_length=8) for _ in range(2)]
    models = [LanguageModel(7, d_model=12, head=3, layer=2, max_length=8, score=score) for score in (scores, "random")]
    models[1].load_state_dict(models[0].state_dict())
    return models


def test_own_random_is_the_librarys(models):
    tokens = torch.randint(7, (4, 6), generator=torch.Generator().manual_seed(1))
    logits = [model(tokens) for model in models]
    torch.testing.assert_close(*logits)
    for one in logits:
        one.square().sum().backward()
    torch.testing.assert_close(*(model.blocks[0].attention.score.R.grad for model in models))


def test_own_random_writes_the_same_with_a_cache(models):
    """With it a model asks for one row at a time, from `start` on."""
    first = torch.tensor([[3]])
    texts = [
        model.generate(first, 12, generator=torch.Generator().manual_seed(2), cache=cache)
        for model in models
        for cache in (True, False)
    ]
    assert all(torch.equal(text, texts[0]) for text in texts)


def test_own_random_has_the_learning_rate_of_a_table(models):
    groups = {group["name"]: group for group in parameter_groups(models[0], 0.003, weight_decay=0.1)}
    assert len(groups["R"]["params"]) == 2
    assert groups["R"]["lr"] == pytest.approx(0.03) and groups["R"]["weight_decay"] == 0
