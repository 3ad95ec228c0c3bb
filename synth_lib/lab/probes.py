"""Small tasks that show what each S can do, and the studies that chapter 08 reads.

    python -m synth_lib.lab probes depth --workers 4

A task is a function draw(count, generator) -> (parts, targets). `parts` is a tuple of whole numbers "batch length":
a token is the sum of the embeddings of its parts. `targets` are "batch length", with -1 where nothing is asked, or
"batch", one for each sentence.

Read top-down: the tasks, the model, the training, the studies.
"""

import copy
import time
from functools import partial

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from synth_lib.lab.runner import Record, do_missing
from synth_lib.lab.train import schedule, table_parameters
from synth_lib.models import Block
from synth_lib.scores import make_score

# --- look-up: output the value at the right position ---


def sentences(count, length, vocab, generator, numbers=None):
    """Tokens of three parts: -> (value, pointer, key), whole numbers, each "batch length".

    value: 0 .. vocab - 1. key: no two of a sentence are equal. pointer: the key of another position, each with the
    same chance. Keys and pointers are 0 .. numbers - 1; by default there are as many numbers as positions.
    """
    value = torch.randint(vocab, (count, length), generator=generator)
    key = torch.rand(count, numbers or length, generator=generator).argsort(dim=1)[:, :length]
    step = torch.randint(1, length, (count, length), generator=generator)
    other = (torch.arange(length) + step) % length
    return value, key.gather(1, other), key


def right_position(task, pointer, key):
    """Where the answer of each token stands, "batch length". pointer, key: "batch length".

    "position": at length - 1 - i. "token": at the position that is my pointer. "pair": where the key is my pointer.
    """
    if task == "position":
        return torch.arange(key.shape[1]).flip(0).expand(key.shape)
    if task == "token":
        return pointer
    return (pointer[:, :, None] == key[:, None, :]).int().argmax(dim=2)


def look_up(count, generator, *, task, length, vocab, numbers=None):
    """The value at the right position, for every token."""
    value, pointer, key = sentences(count, length, vocab, generator, numbers)
    if task == "token":  # with more numbers than positions, a key is not always a position
        pointer = torch.randint(length, pointer.shape, generator=generator)
    return (value, pointer, key), value.gather(1, right_position(task, pointer, key))


# --- other probes, on tokens of one part ---


def copying(count, generator, *, length, vocab):
    """Every token itself."""
    tokens = torch.randint(vocab, (count, length), generator=generator)
    return (tokens,), tokens


def reversing(count, generator, *, length, vocab):
    """The token at the mirrored position."""
    tokens = torch.randint(vocab, (count, length), generator=generator)
    return (tokens,), tokens.flip(1)


def sorting(count, generator, *, length, vocab):
    """At position i the i-th smallest token."""
    tokens = torch.randint(vocab, (count, length), generator=generator)
    return (tokens,), tokens.sort(dim=1).values


def counting(count, generator, *, length, vocab):
    """How many tokens of the sentence equal this one, itself included, minus 1."""
    tokens = torch.randint(vocab, (count, length), generator=generator)
    return (tokens,), (tokens[:, :, None] == tokens[:, None, :]).sum(dim=2) - 1


def induction(count, generator, *, length, vocab):
    """The last token has occurred before; what followed it then? All others differ. Asked at the last position."""
    tokens = torch.rand(count, vocab, generator=generator).argsort(dim=1)[:, :length]
    before = torch.randint(length - 2, (count, 1), generator=generator)
    tokens[:, -1:] = tokens.gather(1, before)
    targets = torch.full((count, length), -1)
    targets[:, -1:] = tokens.gather(1, before + 1)
    return (tokens,), targets


# --- two halves that must be compared ---


def halves(count, generator, *, length, vocab, order):
    """Facts in the first half, claims in the second: is what they say the same? One target a sentence, 0 or 1.

    A token is a key with a value. Both halves have the same keys and the same values. In a true sentence (1) each
    key has its value in both; in a false one (0) the values of the second half have moved on by some keys, so no claim
    is true. order: "same" keys at the same positions of both halves, or "any".
    """
    half = length // 2
    key = torch.rand(count, half, generator=generator).argsort(dim=1)
    value = torch.rand(count, vocab, generator=generator).argsort(dim=1)[:, :half]
    true = torch.randint(2, (count,), generator=generator)
    shift = torch.randint(1, half, (count,), generator=generator) * (1 - true)
    claimed = value.gather(1, (torch.arange(half) + shift[:, None]) % half)
    shuffle = torch.arange(half).expand(count, half)
    if order == "any":
        shuffle = torch.rand(count, half, generator=generator).argsort(dim=1)
    parts = (
        torch.cat([value, claimed.gather(1, shuffle)], dim=1),
        torch.cat([key, key.gather(1, shuffle)], dim=1),
    )
    return parts, true


TASKS = {
    **{task: partial(look_up, task=task) for task in ("position", "token", "pair")},
    "copying": copying,
    "reversing": reversing,
    "sorting": sorting,
    "counting": counting,
    "induction": induction,
    "halves in the same order": partial(halves, order="same"),
    "halves in any order": partial(halves, order="any"),
}


# --- the model ---


class Stack(nn.Module):
    """Embeddings, `layer` blocks with one head each, a norm, a readout.

    Args:
        sizes: how many different numbers each part of a token can be.
        label: how many answers there are.
        d_model, layer, max_length, score: as in `models.LanguageModel`; here no token is hidden from another.
        pooled: one answer a sentence, read from the mean over its positions.
    """

    def __init__(self, sizes, label, d_model, layer, max_length, score, *, pooled=False):
        super().__init__()
        self.pooled = pooled
        self.parts = nn.ModuleList(nn.Embedding(size, d_model) for size in sizes)
        self.position = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(Block(d_model, 1, max_length, score, causal=False) for _ in range(layer))
        self.norm = nn.LayerNorm(d_model)
        self.readout = nn.Linear(d_model, label)

    def forward(self, *parts):
        """parts: whole numbers, each "batch length" -> logits "batch length label", pooled "batch label"."""
        x = self.position(torch.arange(parts[0].shape[1], device=parts[0].device))
        for embedding, part in zip(self.parts, parts, strict=True):
            x = x + embedding(part)
        for block in self.blocks:
            x, _ = block(x)
        x = self.norm(x)
        return self.readout(x.mean(dim=1) if self.pooled else x)


# --- training ---


def train_side_by_side(models, draws, seeds, *, steps, batch=32, learning_rate=0.01, r_factor=10.0, after_step=None):
    """Train models of one kind in one loop, each on its own task and data, as if it were alone. They are changed.

    Their parameters are stacked along a new first axis, and `vmap` runs all models as one computation. The sum of
    their losses gives each model its own gradient, and Adam treats every number by itself.

    Args:
        models: modules that differ in their numbers alone.
        draws: for each model a task, draw(count, generator) -> (parts, targets).
        seeds: for each model the seed of its data. Models of one task and seed see the same sentences.
        learning_rate: rises over the first twentieth of the steps, then falls as a cosine. R, R1 and R2 have
            `r_factor` times as much.
        after_step: called as after_step(steps made), with the models up to date, eight times.
    """
    stacked, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")
    names = table_parameters(models[0])
    tables = [numbers for name, numbers in stacked.items() if name in names]
    others = [numbers for name, numbers in stacked.items() if name not in names]
    rates = [(others, learning_rate), (tables, learning_rate * r_factor)]
    groups = [{"params": numbers, "lr": rate, "peak": rate} for numbers, rate in rates if numbers]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.95))
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    looks = {steps * eighth // 8 for eighth in range(1, 9)}

    def loss_of_one(stacked, buffers, parts, targets):
        logits = functional_call(skeleton, (stacked, buffers), parts)
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-1)

    def hand_back():
        for number, model in enumerate(models):
            state = {name: stack[number] for name, stack in (stacked | buffers).items()}
            model.load_state_dict(state)

    for step in range(steps):
        drawn = [draw(batch, generator) for draw, generator in zip(draws, generators, strict=True)]
        parts = tuple(torch.stack(part) for part in zip(*(parts for parts, _ in drawn), strict=True))
        targets = torch.stack([targets for _, targets in drawn])
        for group in adam.param_groups:
            group["lr"] = group["peak"] * schedule(step, steps // 20, steps)
        adam.zero_grad()
        vmap(loss_of_one)(stacked, buffers, parts, targets).sum().backward()
        adam.step()
        if after_step and step + 1 in looks:
            hand_back()
            after_step(step + 1)
    hand_back()


@torch.no_grad()
def accuracy(model, draw, count=1000, positions=slice(None)):
    """The share of right answers in `count` sentences that no training sees, a float.

    positions: a slice, if only some positions of the sentence count.
    """
    parts, targets = draw(count, torch.Generator().manual_seed(2**31))
    right = model(*parts).argmax(dim=-1) == targets
    if targets.ndim == 2:
        right, targets = right[:, positions], targets[:, positions]
    return right[targets >= 0].float().mean().item()


def distance_to(wanted, score, *, starts=4, steps=150, seed=0, **options):
    """Train S alone to make a wanted map: how far from it does it stay? A float, 0 (perfect) to 1.

    Row n of the map belongs to the token n, or to the position n for a score that reads no token. The distance of two
    rows is the weight that stands at wrong positions; the result is its mean over the rows, for the best of `starts`
    starts. They are the heads of one score: heads share nothing.

    Args:
        wanted: bool "length length"; the positions that are True get the same weight each, and each row has one.
        score, options: as for `scores.make_score`.
    """
    length, d_head = len(wanted), 16
    wanted = wanted / wanted.sum(dim=1, keepdim=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokens = torch.randn(1, length, starts * d_head)
        score = make_score(score, starts * d_head, starts, length, **options)
    peak = 0.15 if score.tables else 0.04
    adam = torch.optim.Adam(score.parameters(), betas=(0.9, 0.95))
    for step in range(steps):
        adam.param_groups[0]["lr"] = peak * schedule(step, steps // 20, steps)
        adam.zero_grad()
        loss = -(wanted * score(tokens)[0].log_softmax(dim=-1)).sum(dim=-1)  # cross-entropy: "head query"
        loss.mean(dim=1).sum().backward()
        adam.step()
    with torch.no_grad():
        weights = score(tokens)[0].softmax(dim=-1)
    return ((weights - wanted).abs().sum(dim=-1) / 2).mean(dim=1).min().item()


# --- the studies: lists of jobs, each a dictionary of plain values ---

LEVELS = ("fixed_random", "random", "dense", "dot_product")  # what a row reads: nothing, nothing, itself, all
SMALL = {"length": 6, "vocab": 5}
TWELVE = {"length": 12, "vocab": 10}
EIGHT = {"length": 8, "vocab": 10}


def _job(task, score, layer, sizes, *, d_model=32, steps=1500, batch=32, learning_rate=0.003, **more):
    settings = {"d_model": d_model, "steps": steps, "batch": batch, "learning_rate": learning_rate}
    return {"task": task, "score": score, "layer": layer, **sizes, **settings, **more}


STUDIES = {
    "depth": [
        _job("pair", score, layer, sizes, d_model=64, steps=4000)
        for sizes, layers, scores in ((SMALL, (1, 2, 4), LEVELS), (TWELVE, (1, 2), ("dense", "dot_product")))
        for layer in layers
        for score in scores
    ],
    "others": [
        _job(task, score, layer, EIGHT)
        for task in ("copying", "reversing", "sorting", "counting", "induction")
        for layer in (1, 2)
        for score in LEVELS
    ],
    "length": [
        _job(task, score, 1, TWELVE, test_length=24)
        for task in ("position", "token", "pair")
        for score in ("random", "dense", "dot_product")
    ],
    "halves": [
        _job(task, score, layer, TWELVE)
        for task in ("halves in the same order", "halves in any order")
        for layer in (1, 2)
        for score in (*LEVELS, "random + dot_product")
    ],
}


def run(job):
    """Train the models of one job, one for each of its seeds -> its results: plain values, the job among them."""
    started = time.perf_counter()
    longest = job.get("test_length", job["length"])
    sizes = {"vocab": job["vocab"]} | ({"numbers": longest} if "test_length" in job else {})
    draw = partial(TASKS[job["task"]], length=job["length"], **sizes)
    parts, _ = draw(1, torch.Generator())
    many = max(longest, job["vocab"])  # values, keys, pointers and counts are all below this

    models = []
    for seed in job["seeds"]:
        torch.manual_seed(seed)
        pooled = job["task"].startswith("halves")
        label = 2 if pooled else many
        models.append(
            Stack([many] * len(parts), label, job["d_model"], job["layer"], longest, job["score"], pooled=pooled)
        )

    curve = []

    def measure(step):
        curve.append({"step": step, "accuracy": [round(accuracy(model, draw), 4) for model in models]})

    settings = {name: job[name] for name in ("steps", "batch", "learning_rate")}
    train_side_by_side(models, [draw] * len(models), job["seeds"], after_step=measure, **settings)
    result = job | {"accuracy": curve[-1]["accuracy"], "curve": curve}
    if "test_length" in job:
        longer = partial(TASKS[job["task"]], length=longest, **sizes)
        old, new = slice(job["length"]), slice(job["length"], None)
        result["longer"] = {
            "positions seen": [round(accuracy(model, longer, positions=old), 4) for model in models],
            "positions never seen": [round(accuracy(model, longer, positions=new), 4) for model in models],
        }
    return result | {"seconds": round(time.perf_counter() - started, 1), "threads": torch.get_num_threads()}


def run_study(name, seeds, out, *, workers=1, minutes=None, log=print):
    """Do the jobs of a study that the record `out` lacks, see `runner` -> (runs in the order of the jobs, errors)."""
    device = torch.device("cpu")
    jobs = [job | {"seeds": list(seeds)} for job in STUDIES[name]]
    record = Record(out, {"study": name, "device": device.type}, log)
    longest_first = sorted(jobs, key=lambda job: -job["layer"] * job["length"] * job["steps"])
    errors = do_missing(
        longest_first, record, run, name_of=_title, summary=_summary, device=device,
        workers=workers, minutes=minutes, log=log,
    )  # fmt: skip
    return [entry for entry in map(record.find, jobs) if entry], errors


def _title(job):
    return f"{job['task']}, {job['score']}, layer {job['layer']}, length {job['length']}"


def _summary(result):
    return f"{' '.join(f'{share:.3f}' for share in result['accuracy'])} ({result['seconds']:.0f} s)"
