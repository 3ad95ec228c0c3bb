"""The numbers of docs/live.html, the page on which attention weights move when the reader exchanges a word.

    python tools/live_page.py        # trains four small models, in seconds, and puts their numbers into the page

The page computes its maps itself, from numbers that it holds: `export` rounds the parameters of each score and keeps
the names that they have in the library. Another machine may train slightly other numbers; a test compares the maps
that the committed page makes of its numbers with those of the library.
"""

import json
from itertools import product
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from synth_lib.attention import Attention
from synth_lib.lab.train import parameter_groups
from synth_lib.masks import causal

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "live.html"
PLACE = '<script type="application/json" id="numbers">', "</script>"  # the numbers stand between these two

KINDS = {
    "animals": ["cat", "dog", "rat"],
    "verbs": ["sat", "ran", "slept"],
    "things": ["mat", "hat", "bed"],
    "little words": ["the", "a", "on", "by"],
}
WORDS = [word for words in KINDS.values() for word in words]
ASKS_FOR = {"animals": "things", "things": "animals", "verbs": "animals", "little words": "verbs"}
SIZES = {"d_model": 16, "head": 2, "max_length": 6}
SCORES = {"dot_product": "dot_product", "dense": "dense", "random": "random", "mixture": "random + dense"}
STEPS = [0, 5, 10, 20, 40, 80, 160, 320]  # of training, at which the models with an R are kept
SHOWN = 20  # the step at which the other two are: later two digits hide how most weights of the dot product move


def all_sentences():
    """Every sentence of the grammar, "the cat sat on a mat" and "on a mat the cat sat". -> "batch length", words."""
    sentences = []
    articles = "the", "a"
    choices = articles, KINDS["animals"], KINDS["verbs"], ("on", "by"), articles, KINDS["things"]
    for first, animal, verb, where, second, thing in product(*choices):
        who, place = [first, animal, verb], [where, second, thing]
        sentences += [who + place, place + who]
    return sentences


def as_numbers(sentences):
    """Words as the numbers of their rows. -> tokens and, at each place, the place of the word asked for."""
    kind = {word: name for name, words in KINDS.items() for word in words}
    tokens = torch.tensor([[WORDS.index(word) for word in sentence] for sentence in sentences])
    asked = [[[kind[other] for other in sentence].index(ASKS_FOR[kind[word]]) for word in sentence]
             for sentence in sentences]  # fmt: skip
    return tokens, torch.tensor(asked)


def make_model(score):
    """A row of numbers for each word, one layer of attention, a number for each possible answer."""
    words = nn.Embedding(len(WORDS), SIZES["d_model"])
    attention = Attention(**SIZES, score=score)
    return nn.ModuleDict({"words": words, "attention": attention, "answer": nn.Linear(SIZES["d_model"], len(WORDS))})


def train(score, keep):
    """Train one model, half of the time with the causal mask. -> {step: exported numbers} for the steps in `keep`."""
    torch.manual_seed(0)
    model = make_model(score)
    tokens, asked = as_numbers(all_sentences())
    answers = tokens.gather(1, asked)
    visible = asked <= torch.arange(SIZES["max_length"])  # with the causal mask a later word is no fair question
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01, weight_decay=0.0))
    kept = {}
    for step in range(max(keep) + 1):
        if step in keep:
            kept[step] = export(model)
        batch = torch.randint(len(tokens), (64,))
        mask = causal(SIZES["max_length"]) if step % 2 else None
        y, _ = model["attention"](model["words"](tokens[batch]), mask)
        losses = F.cross_entropy(model["answer"](y).flatten(0, 1), answers[batch].flatten(), reduction="none")
        loss = losses[visible[batch].flatten()].mean() if step % 2 else losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return kept


def export(model):
    """The rows of the words and the parameters of the score, under their names, to three decimals."""
    numbers = {"words": model["words"].weight, **dict(model["attention"].score.named_parameters())}
    return {name: rounded(tensor.detach().double()) for name, tensor in numbers.items()}


def rounded(tensor):
    """A tensor as nested lists of numbers with three decimals."""
    if tensor.dim():
        return [rounded(part) for part in tensor]
    return round(tensor.item(), 3) + 0.0  # no -0.0


def split(page):
    """The page: -> what stands before its numbers, the numbers, and what stands behind."""
    before, rest = page.split(PLACE[0])
    numbers, behind = rest.split(PLACE[1], 1)
    return before + PLACE[0], numbers, PLACE[1] + behind


def main():
    models = {}
    for name, score in SCORES.items():
        learns_R = "random" in score
        kept = train(score, STEPS if learns_R else [SHOWN])
        models[name] = [kept[step] for step in STEPS] if learns_R else kept[SHOWN]
    numbers = {"kinds": KINDS, "sentence": "the cat sat on a mat".split(), "sizes": SIZES, "steps": STEPS, **models}
    before, _, behind = split(PAGE.read_text(encoding="utf8"))
    PAGE.write_text(f"{before}\n{json.dumps(numbers, separators=(',', ':'))}\n{behind}", encoding="utf8")
    print(f"{PAGE.relative_to(ROOT)}: {PAGE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
