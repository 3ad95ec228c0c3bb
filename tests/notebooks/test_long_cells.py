"""The cells that work for long: each, stopped and run again, does what is missing, and nothing twice."""

import tempfile
from collections import deque
from pathlib import Path

import pytest

from synth_lib.lab import patience
from synth_lib.lab.patience import Stopped
from tools.build_notebooks import read_source

SOURCES = Path(__file__).resolve().parents[2] / "notebooks" / "src"
WORK = """
from types import SimpleNamespace
import torch
from torch import nn
from synth_lib.lab.patience import each

def work(*what):
    calls.append(what)
    if len(calls) == stop_at[0]:
        raise KeyboardInterrupt
"""
# What stands in place of the work, by chapter, and how often it is to be done.
STUBS = {
    "03_random": (800, """
splits, of_batches, numbers = {"train": None}, None, nn.Parameter(torch.zeros(1, 2, 3))
writer, adam = lambda characters: numbers, torch.optim.SGD([numbers])

def random_windows(*options):
    work()
    return None, torch.zeros(1, 2, dtype=torch.long)
"""),
    "06_mixtures": (12, """
def train(task, score, seed):
    work(task, score, seed)

def sentences_and_answers(task, generator, batch):
    return None, torch.zeros(4, 2), torch.ones(4, 2)
"""),
    "08_what_each_score_can_do": (12, """
class OneLayer:
    def __init__(self, score):
        self.attention = SimpleNamespace(score=nn.Linear(1, 1))

draws = {"position": None, "token": None, "pair": None}
probes = SimpleNamespace(train_side_by_side=lambda models, *more, **options: work(), accuracy=lambda *model: 0.5)
"""),
    "11_speed": (5, """
def forms(length):
    work(length)
    return {"plain": (None, (1, 1))}

def floor(*counts):
    return 1.0, "memory"

rate, bandwidth, times = 1, 1, {"plain": {"ms": 1.0}}
measure = SimpleNamespace(times=lambda steps, **options: times, peak_bytes=lambda step: 1)
"""),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_begun(monkeypatch):
    monkeypatch.setattr(patience, "_begun", [])


def long_cell(chapter, sign):
    [cell] = [cell.source for cell in read_source(SOURCES / f"{chapter}.py") if sign in cell.source]
    return cell


@pytest.mark.parametrize("chapter", STUBS, ids=lambda chapter: f"chapter_{chapter}")
def test_a_long_cell_goes_on_with_what_is_missing(chapter):
    times, stub = STUBS[chapter]
    names = {"calls": deque(), "stop_at": deque([4])}
    exec(WORK + stub, names)
    cell = long_cell(chapter, "each(")
    with pytest.raises(Stopped, match=f"Stopped. 3 of {times} .* run this cell again"):
        exec(cell, names)
    names["stop_at"][0] = 0
    exec(cell, names)
    assert len(names["calls"]) == times + 1, "the one that was stopped comes twice"


def test_the_training_of_chapter_13_goes_on_from_its_checkpoints():
    names = {"drawn": deque(), "stop_at": deque([7]), "checkpoints": tempfile.TemporaryDirectory()}
    cell = long_cell("13_train_on_gpu", "with bar(")
    exec("""
import threading, torch
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from synth_lib.lab.patience import bar
from synth_lib.lab.train import Settings, mean_loss, next_token_loss, train
from synth_lib.models import LanguageModel

steps, COUNTED, counted, PUBLISHED = 10, ["1-gram", "2-gram"], {"2-gram": [9.0]}, 1.88
fixed = torch.arange(16).view(2, 8) % 5

def draw_batch(generator, step):
    drawn.append(step)
    if step == stop_at[0]:
        raise KeyboardInterrupt
    inputs = torch.randint(5, (2, 8), generator=generator)
    return inputs, inputs.flip(1)

task = SimpleNamespace(
    batches=lambda size: draw_batch, curve=[(fixed, fixed)], loss=next_token_loss, test=[(fixed, fixed)]
)
settings = Settings(steps=steps, batch=2, warmup=1, evaluate_every=5)
sizes = dict(d_model=4, head=1, layer=1, max_length=8)
models = {name: (LanguageModel(5, score="random", **sizes), settings) for name in ("Random", "Vanilla")}
""", names)  # fmt: skip
    with pytest.raises(Stopped, match="Stopped. All but the last 100 steps.* run this cell again"):
        exec(cell, names)
    assert 4 in names["drawn"]
    names["drawn"].clear()
    names["stop_at"][0] = -1
    exec(cell, names)
    begun_anew = names["drawn"].count(3)  # a model that the other one stopped before its first checkpoint
    assert begun_anew < 2 and names["drawn"].count(8) == 2
    for record in names["records"].values():
        assert (record["status"], [point["step"] for point in record["curve"]]) == ("finished", [0, 5, 10])
    names["drawn"].clear()
    exec(cell, names)
    assert 8 not in names["drawn"], "what has ended is read"
