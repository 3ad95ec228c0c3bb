"""The experiments of chapter 13: which runs there are, how one is done, how all are done side by side.

    python -m synth_lib.lab.train --suite laptop --out runs/laptop.json --workers 2

A run is a dictionary of plain values: which task, which variant, which seed, and what differs from the settings of
the task, which all variants share. A suite is a list of runs, the most important first. Its record is one JSON file.

Read top-down: variants, settings of the tasks, suites, the tasks, one run, all runs.
"""

import json
import math
import multiprocessing
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from statistics import mean

import torch
from torch.nn import functional as F
from tqdm import tqdm

from synth_lib.attention import Attention
from synth_lib.lab.train import Settings, autocast_on, choose_device, device_name, next_token_loss, train, write_whole
from synth_lib.models import Classifier, EncoderDecoder, LanguageModel
from synth_lib.scores import Mixture
from synth_lib.text import corpora as data
from synth_lib.text import grammar

VARIANTS = {
    "Vanilla": "dot_product",
    "Dense": "dense",
    "Random": "random",
    "Fixed Random": "fixed_random",
    "Factorized Dense": "factorized_dense",
    "Factorized Random": "factorized_random",
    "Random + Vanilla": "random + dot_product",
    "Dense + Vanilla": "dense + dot_product",
    "Random + Dense": "random + dense",
}
WIDER = "Vanilla, wider"  # the control: as many parameters as the largest mixture
LOOKED_AT = ("Vanilla", "Dense", "Random")  # their attention weights are recorded, of the first seed

# --- The settings of each task: one set for all variants. "wider" is d_model of the control. ---

LAPTOP = {
    "language model": {
        "data": {"tokens": "characters", "windows": 128},
        "model": {"d_model": 64, "head": 4, "layer": 2, "max_length": 32},
        "settings": {"steps": 300, "batch": 16, "warmup": 30, "learning_rate": 4e-3, "evaluate_every": 50},
    },
}

GPU = {
    "language model": {
        "data": {"tokens": "characters", "windows": 512},
        "model": {"d_model": 256, "head": 4, "layer": 4, "max_length": 128},
        "settings": {"steps": 800, "batch": 32, "warmup": 80, "learning_rate": 1e-3, "evaluate_every": 200},
        "wider": 272,
    },
    "translation, grammar": {
        "data": {},
        "model": {"d_model": 128, "head": 4, "layer": 2, "max_length": 15, "dropout": 0.1},
        "settings": {"steps": 700, "batch": 128, "warmup": 70, "learning_rate": 2e-3, "evaluate_every": 100},
        "wider": 132,
    },
    "translation, German": {
        "data": {"language": "german", "vocab": 4000, "max_length": 48},
        "model": {"d_model": 256, "head": 4, "layer": 2, "max_length": 48, "dropout": 0.3},
        "settings": {"steps": 3000, "batch": 128, "warmup": 300, "learning_rate": 1e-3, "evaluate_every": 500},
        "wider": 264,
    },
    "classification": {
        "data": {"vocab": 4000, "max_length": 64},
        "model": {"d_model": 128, "head": 4, "layer": 2, "max_length": 64, "dropout": 0.3},
        "settings": {"steps": 400, "batch": 128, "warmup": 40, "learning_rate": 1e-3, "evaluate_every": 100},
        "wider": 132,
    },
    "sentence pairs": {
        "data": {"vocab": 4000, "max_length": 96, "rounds": 4},
        "model": {"d_model": 128, "head": 4, "layer": 2, "max_length": 96, "dropout": 0.2},
        "settings": {"steps": 500, "batch": 128, "warmup": 50, "learning_rate": 1e-3, "evaluate_every": 100},
        "wider": 136,
    },
}

for _task in GPU.values():
    # At these sizes a step is many small kernels, and bfloat16 would add one more for each conversion.
    _task["settings"]["precision"] = "float32"

COST = {
    "language model": {
        "data": {"tokens": "characters", "windows": 16},
        "model": {"d_model": 512, "head": 8, "layer": 6, "max_length": 256},
        "settings": {"steps": 30, "batch": 64, "warmup": 10, "learning_rate": 1e-3, "evaluate_every": 30},
    },
}


# --- The suites ---


@dataclass(frozen=True)
class Suite:
    """says: one sentence for --help. tasks: their settings. runs: the most important first."""

    says: str
    tasks: dict
    runs: list


def suite(name):
    """The Suite of that name. Raises ValueError if there is none."""
    if name not in SUITES:
        raise ValueError(f"suite must be one of {', '.join(SUITES)}, not {name!r}")
    return SUITES[name]()


def tiny():
    settings = {"steps": 8, "batch": 4, "warmup": 2, "learning_rate": 4e-3, "evaluate_every": 4}
    few = LAPTOP["language model"] | {"data": {"tokens": "characters", "windows": 8}, "settings": settings}
    tasks = {"language model": few}
    return Suite("a few seconds: tries the machinery, its numbers say nothing", tasks, _main_question(tasks, seeds=2))


def laptop():
    says = "about a minute on two cores: the nine variants, two seeds, a small language model"
    return Suite(says, LAPTOP, _main_question(LAPTOP, seeds=2))


def smoke():
    few = {"steps": 60, "warmup": 10, "evaluate_every": 30}
    whole = [_run(task, "Vanilla") for task in GPU]
    others = [variant for variant in [*VARIANTS, WIDER] if variant != "Vanilla"]
    short = [_run("language model", variant, settings=few) for variant in others]
    short += [_run("translation, grammar", variant, settings=few) for variant in ("Random", "Dense + Vanilla", WIDER)]
    short += [_run("translation, German", "Random", settings=few, model={"cross_score": "random"})]
    short += [_run("sentence pairs", "Factorized Dense", settings=few)]
    short += [_run("language model", "Random", question="again", settings=few)]
    says = "under a minute on a GPU: whether all works there, one whole run of each task and short ones of the rest"
    return Suite(says, GPU, whole + short)


def cost():
    says = "speed and memory of each variant, for --workers 1 and a GPU; three times, of which the median counts"
    return Suite(says, COST, [_run("language model", variant, seed) for seed in range(3) for variant in VARIANTS])


def gpu():
    says = "question 1 on one H100-class GPU: nine variants and a wider vanilla, all tasks, three seeds"
    slow = "translation, German"  # it takes as long as all the others together, and comes last
    quick = {name: task for name, task in GPU.items() if name != slow}
    return Suite(says, GPU, _main_question(quick, seeds=3) + _main_question({slow: GPU[slow]}, seeds=3))


def gpu_why():
    says = "the other questions: R's learning rate and start, cross-attention, heads, ranks"
    return Suite(says, GPU, _why_questions("language model", "translation, grammar", seeds=2))


def long():
    tasks = {
        name: task | {"settings": task["settings"] | {"steps": 4 * task["settings"]["steps"]}}
        for name, task in GPU.items()
    }
    tasks["translation, French"] = tasks["translation, German"] | {
        "data": GPU["translation, German"]["data"] | {"language": "french"}
    }
    runs = _main_question(tasks, seeds=5) + _why_questions("language model", "translation, German", seeds=3)
    return Suite("for an afternoon on a GPU: all questions, four times the steps, five seeds, French too", tasks, runs)


SUITES = {
    "tiny": tiny, "laptop": laptop, "smoke": smoke, "cost": cost, "gpu": gpu, "gpu-why": gpu_why, "long": long,
}  # fmt: skip


def _run(task, variant, seed=0, question="order", model=None, settings=None):
    return {
        "question": question, "task": task, "variant": variant, "seed": seed,
        "model": model or {}, "settings": settings or {},
    }  # fmt: skip


def _main_question(tasks, seeds):
    """Every variant on every task: the first seed of all of them, then the second, so that a stop leaves a whole."""
    return [
        _run(task, variant, seed)
        for seed in range(seeds)
        for task, settings in tasks.items()
        for variant in [*VARIANTS, *([WIDER] if "wider" in settings else [])]
    ]


def _why_questions(language_model, translation, seeds):
    """What differs from the main question, whose runs hold the rest: rate x10 without decay, four heads, rank 8."""
    runs = []
    for seed in range(seeds):
        for variant in ("Random", "Factorized Random"):
            for factor in (1.0, 3.0, 30.0):
                change = {"r_learning_rate_factor": factor}
                runs.append(_run(language_model, variant, seed, "rate of R", settings=change))
        for factor in (1.0, 3.0, 10.0, 30.0):
            change = {"r_learning_rate_factor": factor, "r_weight_decay": 0.1}
            runs.append(_run(language_model, "Random", seed, "rate of R", settings=change))
        for variant in ("Vanilla", "Dense", "Random"):
            score = VARIANTS[variant]
            if variant != "Vanilla":
                runs.append(_run(translation, variant, seed, "cross-attention", model={"cross_score": score}))
        for head in (1, 2, 8):
            runs.append(_run(language_model, "Random", seed, "heads", model={"head": head}))
        for rank in (1, 2, 4, 16):
            runs.append(_run(language_model, "Factorized Random", seed, "rank", model={"rank": rank}))
        for variant in ("Random", "Fixed Random"):
            for scale in (0.01, 0.5, 2.0):
                runs.append(_run(language_model, variant, seed, "start of R", model={"initial_scale": scale}))
    return runs


# --- The tasks ---


@dataclass(frozen=True)
class Task:
    """What `train` needs of a task, and what is measured when a model is trained.

    build(**sizes) -> a model. new_draw(batch) -> a fresh draw(generator) for `train`. evaluation: batches of the
    validation split. measure(model) -> what the model reaches, a dictionary. look(model) -> its attention weights:
    histograms and small maps; None where nobody looks.
    """

    build: Callable
    new_draw: Callable
    evaluation: list
    loss: Callable
    unit: str
    measure: Callable
    look: Callable | None = None


@cache
def make_task(name, options, device):
    """The Task of that name on this device, made once a process. options: "data" of its settings, written as JSON."""
    options = json.loads(options)
    if name == "language model":
        return _language_model(device, **options)
    if name.startswith("translation"):
        return _translation(device, **options)
    return _classification(device, pairs=name == "sentence pairs", **options)


def _language_model(device, tokens, windows, length):
    tokenizer, splits = data.shakespeare(tokens)
    text = splits["train"].to(device)
    inputs, targets = (part.to(device) for part in data.evaluation_windows(splits["valid"], length, windows))

    def new_draw(batch):
        return lambda generator: data.random_windows(text, length, batch, generator)

    def cut(pieces):
        parts = (part.reshape(-1, length // pieces).split(128 * pieces) for part in (inputs, targets))
        return list(zip(*parts, strict=True))

    def measure(model):
        """The loss when the windows are read whole, and when they are cut into 2, 4 and 8: the same targets."""
        losses = {length // pieces: mean_loss(model, next_token_loss, cut(pieces)) for pieces in (1, 2, 4, 8)}
        return {"loss_at_length": {str(length): round(loss, 5) for length, loss in losses.items()}}

    def look(model):
        maps = model.attention_maps(inputs[:8])
        first, *_, final = model.attention_maps(inputs[:1, :24])
        names = [tokenizer.decode([token]) for token in inputs[0, :24].tolist()]
        return {"self": [histogram(_last_rows(layer)) for layer in maps]}, {
            "tokens": names, "first layer": thousandths(first), "last layer": thousandths(final),
        }  # fmt: skip

    return Task(
        lambda **sizes: LanguageModel(tokenizer.vocab, **sizes),
        new_draw, cut(1), next_token_loss, "nats per token", measure, look,
    )  # fmt: skip


def _translation(device, language="grammar", **options):
    sentences = grammar.sentences(**options) if language == "grammar" else None
    corpus = grammar.grammar_corpus(sentences) if sentences else data.translation(language, **options)
    tokenizer = corpus.tokenizer

    def tensors(pairs):
        source, source_lengths, inputs, targets = data.translation_batch(pairs, tokenizer)
        target_lengths = torch.tensor([len(target) + 1 for _, target in pairs])
        lengths = torch.stack([source_lengths, target_lengths], dim=1)
        columns = (source, source_lengths), (source_lengths, None), (inputs, target_lengths), (targets, target_lengths)
        return Examples(columns, lengths, device)

    splits = {split: tensors(pairs) for split, pairs in corpus.splits.items()}
    evaluation = [batch for _, batch in splits["valid"].in_order(256)]

    def loss(model, source, source_lengths, inputs, targets):
        """Nats per token; in training with label smoothing, as in the paper."""
        logits = model(source, inputs, source_lengths).float().flatten(0, 1)
        smoothing = 0.1 if model.training else 0.0
        return F.cross_entropy(logits, targets.flatten(), ignore_index=tokenizer.padding, label_smoothing=smoothing)

    def translations(model, split):
        """What the model writes for each example of a split, as text. Greedy: the most likely token each time."""
        ends = {"start": tokenizer.start, "end": tokenizer.end, "count": model.max_length}
        written = {}
        for rows, (source, source_lengths, _, _) in splits[split].in_order(512):
            found = model.translate(source, source_lengths, **ends)
            written.update(zip(rows, map(tokenizer.decode, found), strict=True))
        return [written[row] for row in range(len(written))]

    def measure(model):
        from synth_lib.text.baselines import bleu  # it loads scikit-learn, which takes seconds

        found, references = translations(model, "test"), [target for _, target in corpus.texts["test"]]
        score, signature = bleu(found, references)
        right = mean(one == other for one, other in zip(found, references, strict=True))
        metrics = {"bleu": round(score, 2), "bleu_signature": signature, "exact_match": round(right, 4)}
        if sentences:
            metrics["phenomena"] = grammar.score(sentences["test"], found)
            metrics["unseen"] = grammar.score(sentences["unseen"], translations(model, "unseen"))["all"]
        return metrics

    def look(model):
        kinds, kind, counts = splits["test"].lengths.unique(dim=0, return_inverse=True, return_counts=True)
        alike = (kind == counts.argmax()).nonzero()[:64, 0]  # the most frequent lengths: so nothing is padded
        source, _, inputs, _ = splits["test"].batch(alike)
        maps = model.attention_maps(source, inputs)
        histograms = {
            "encoder": [histogram(layer) for layer in maps["encoder"]],
            "decoder": [histogram(_last_rows(layer)) for layer in maps["decoder"]],
            "cross": [histogram(layer) for layer in maps["cross"]],
        }
        names = {"source": tokenizer.names(source[0]), "target": tokenizer.names(inputs[0])}
        return histograms, names | {where: thousandths(layers[-1][:1]) for where, layers in maps.items()}

    return Task(
        lambda **sizes: EncoderDecoder(tokenizer.vocab, **sizes),
        splits["train"].new_draw, evaluation, loss, "nats per token", measure, look if sentences else None,
    )  # fmt: skip


def _classification(device, pairs, **options):
    corpus = data.sentence_pairs(**options) if pairs else data.classification(**options)

    def tensors(examples):
        tokens, lengths, labels = data.classification_batch(examples, corpus.tokenizer)
        return Examples([(tokens, lengths), (lengths, None), (labels, None)], lengths[:, None], device)

    splits = {split: tensors(examples) for split, examples in corpus.splits.items()}
    label = 2 if pairs else len(data.GLOSS_CLASSES)

    def loss(model, tokens, lengths, labels):
        return F.cross_entropy(model(tokens, lengths).float(), labels)

    def accuracy(model, split):
        hits = [
            (model(tokens, lengths).argmax(dim=1) == labels).float().mean().item() * len(labels)
            for _, (tokens, lengths, labels) in splits[split].in_order(512)
        ]
        return round(sum(hits) / len(splits[split].size), 4)

    return Task(
        lambda **sizes: Classifier(corpus.tokenizer.vocab, label, **sizes),
        splits["train"].new_draw,
        [batch for _, batch in splits["valid"].in_order(256)],
        loss,
        "nats per text",
        lambda model: {"accuracy": accuracy(model, "test"), "valid_accuracy": accuracy(model, "valid")},
    )


class Examples:
    """Padded tensors of all examples of a split, on the device, and batches of them, cut to their longest example.

    columns: (tensor "example ...", its lengths "example", or None if it is not to be cut). lengths: all lengths of an
    example, "example text"; the examples of a batch have about the same sum. Which they are is decided on the CPU.
    """

    def __init__(self, columns, lengths, device):
        self.columns = [(tensor.to(device), its_lengths) for tensor, its_lengths in columns]
        self.lengths, self.size, self.device = lengths, lengths.sum(dim=1), device

    def batch(self, rows):
        there = rows.to(self.device)
        return [
            tensor[there] if lengths is None else tensor[there, : int(lengths[rows].max())]
            for tensor, lengths in self.columns
        ]

    def in_order(self, batch):
        """(rows, tensors) of every batch, from short to long."""
        for rows in self.size.argsort(stable=True).split(batch):
            yield rows.tolist(), self.batch(rows)

    def new_draw(self, batch):
        """A fresh draw(generator) for `train`: each epoch has every example once, in batches of similar size."""
        waiting = []

        def draw(generator):
            if not waiting:
                nearly = self.size + 3 * torch.rand(len(self.size), generator=generator)
                of_epoch = nearly.argsort().split(batch)
                waiting.extend(of_epoch[place] for place in torch.randperm(len(of_epoch), generator=generator))
            return self.batch(waiting.pop())

        return draw


@torch.no_grad()
def mean_loss(model, loss, batches):
    """Mean over batches of one size."""
    return sum(loss(model, *batch).item() for batch in batches) / len(batches)


EDGES = [round(10 ** (-4 + place / 5), 7) for place in range(21)]  # 0.0001 to 1, five to a power of ten


def histogram(weights):
    """The share of attention weights up to EDGES[0], then in each bin from an edge to the next: 21 numbers.

    A weight of 0 is left out: its key may not be attended to.
    """
    weights = weights[weights > 0].float().cpu().clamp(max=1)
    counts = torch.bucketize(weights, torch.tensor(EDGES)).bincount(minlength=len(EDGES))
    return [round(share, 4) for share in (counts / len(weights)).tolist()]


def _last_rows(weights):
    """The last quarter of the queries of a causal map: they have most keys, and about as many."""
    return weights[:, :, weights.shape[2] * 3 // 4 :]


def thousandths(weights):
    """Maps "1 head query key" as whole numbers of thousandths, nested lists "head query key"."""
    return (weights[0].float() * 1000).round().int().tolist()


# --- One run ---


def settings_of(run, task_settings):
    """What a run is trained with: (arguments of the model, Settings). task_settings: its entry in Suite.tasks."""
    sizes = task_settings["model"] | {"score": VARIANTS.get(run["variant"], "dot_product")}
    if run["variant"] == WIDER:
        sizes["d_model"] = task_settings["wider"]
    settings = task_settings["settings"] | run["settings"] | {"seed": run["seed"]}
    return sizes | run["model"], Settings(**settings)


def do(run, task_settings, device):
    """Do one run -> what is recorded of it, a dictionary that JSON can hold: the run itself, and what was found.

    A loss that is not finite makes it a failed run; what is recorded then is the problem.
    """
    sizes, settings = settings_of(run, task_settings)
    options = task_settings["data"]
    if run["task"] == "language model":
        options = options | {"length": sizes["max_length"]}
    task = make_task(run["task"], json.dumps(options), device)
    started = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    torch.manual_seed(settings.seed)
    model = task.build(**sizes).to(device)
    for layer in model.modules():
        if isinstance(layer, Attention):
            layer.kernel = "plain"  # what is compared is each S in plain code; chapter 11 has its fast kernels
    scores = [module.score for module in model.modules() if type(module) is Attention]
    found = {"parameters": _count(model), "parameters_of_S": sum(map(_count, scores))}
    look = task.look if run["question"] == "order" and run["seed"] == 0 and run["variant"] in LOOKED_AT else None
    autocast = autocast_on(device, settings.precision)

    @torch.no_grad()
    def evaluate(function):
        model.eval()
        with autocast():
            return function(model)

    if look:
        found["histograms_at_start"], _ = evaluate(look)
    new_draw, tokens = task.new_draw(settings.batch), 0

    def draw(generator):
        nonlocal tokens
        *read, targets = new_draw(generator)
        tokens += sum(tensor.numel() for tensor in read if tensor.ndim == 2)
        return *read, targets

    try:
        record = train(
            model, draw, task.evaluation, settings, what={}, loss=task.loss, unit=task.unit, device=device,
            progress=False,
        )  # fmt: skip
    except FloatingPointError as problem:
        return run | found | {"status": "failed", "problem": str(problem)}
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None
    found |= {
        "status": "finished",
        "unit": task.unit,
        "curve": [[point["step"], round(point["loss"], 5)] for point in record["curve"]],
        "metrics": {"loss": round(record["final_loss"], 5)} | evaluate(task.measure),
        "mixture_weights": [_rounded(score.weights) for score in scores if isinstance(score, Mixture)],
        "peak_megabytes": peak and round(peak, 1),
    }
    if look:
        found["histograms"], found["maps"] = evaluate(look)
    return run | found | {
        "seconds": round(time.perf_counter() - started, 2),
        "training_seconds": round(record["training_seconds"], 2),
        "tokens_per_second": round(tokens / record["training_seconds"]),
    }  # fmt: skip


def _count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def _rounded(numbers):
    return [round(number, 4) for number in numbers.tolist()]


# --- All runs ---

# What may differ between two records of one suite on one device: the times, and how they came about.
TIMES = ("date", "seconds", "workers", "training_seconds", "tokens_per_second")


def run_suite(name, out, *, device="auto", minutes=None, workers=1, say=print):
    """Do the runs of a suite that `out` does not hold yet -> the record, a dictionary, which `out` holds too.

    `out`, a JSON file, is written whole after each run: a finished run is never lost, whatever stops this, and the
    same call goes on from there. A run that was in work starts again from its seed, and finds the same.

    Under torchrun each process takes its share of the runs and writes a file of its own, beside `out`, with its rank
    in the name. The same call without torchrun then gathers them in `out`, and does what is missing.

    Args:
        minutes: a run that would not end within them is not started; the record says which are missing. Default: no
            limit.
        workers: how many runs are done side by side, each in a process of its own with one CPU thread.
        say: is told the progress, a line at a time.

    Raises:
        ValueError: `out` holds another suite, other settings, or what another device found.
    """
    chosen, out = suite(name), Path(out)
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = choose_device(device)
    if device.type == "cuda" and processes > 1:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    head = {
        "suite": name,
        "device": device_name(device),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "histogram_edges": EDGES,
        "tasks": chosen.tasks,
    }
    recorded, spent = _recorded(out, head)
    if processes > 1:
        out = out.with_name(f"{out.stem}.rank{rank}.json")
    mine = chosen.runs[rank::processes]
    missing = [run for run in mine if title(run) not in recorded]
    errors, started = {}, time.perf_counter()
    limit = math.inf if minutes is None else minutes

    def minutes_passed():
        return (time.perf_counter() - started) / 60

    def guess(run):
        """The minutes of a run: those of the longest of its task, or of any task."""
        done = [other for other in recorded.values() if "seconds" in other]
        alike = [other for other in done if other["task"] == run["task"]] or done
        return max((other["seconds"] for other in alike), default=0.0) / 60

    def write():
        record = head | {
            "date": date.today().isoformat(),
            "seconds": round(spent + 60 * minutes_passed(), 1),
            "workers": workers,
            "missing": [title(run) for run in mine if title(run) not in recorded],
            "errors": errors,
            "runs": [recorded[title(run)] for run in mine if title(run) in recorded],
        }
        write_whole(out, lambda file: file.write(_one_run_a_line(record).encode()))
        return record

    say(f"suite {name}, {len(mine)} runs, {len(missing)} of them to do, on {head['device']}, in {out}")
    record = write()  # a file that cannot be written is told before the work
    for run, found in side_by_side(
        missing, chosen.tasks, device, workers, lambda run: minutes_passed() + guess(run) < limit
    ):
        if isinstance(found, dict):
            recorded[title(run)] = found
        else:
            errors[title(run)] = found
        record = write()
        to_go = sum(guess(run) for run in missing if title(run) not in recorded | errors) / workers
        say(
            f"{len(record['runs']):4} of {len(mine)}  {title(run)}: {_outcome(found)}"
            f"  [{minutes_passed():.1f} minutes, about {to_go:.1f} to go]"
        )
    return record


def title(run):
    """The name of a run, unique in its suite: "language model, Random, head 8, seed 0"."""
    changes = [f"{name} {value}" for name, value in (run["model"] | run["settings"]).items()]
    again = ["again"] if run["question"] == "again" else []
    return ", ".join([run["task"], run["variant"], *changes, *again, f"seed {run['seed']}"])


def side_by_side(runs, tasks, device, workers, fits):
    """Do runs in up to `workers` processes: yields (run, what `do` found, or a text if it raised an error).

    fits(run) is asked before a run starts; one that does not fit may be asked for again later.
    """
    context = multiprocessing.get_context("spawn")  # a CUDA program cannot be forked
    runs, idle, busy = list(runs), [], []

    def new_worker():
        connection, its_end = context.Pipe()
        process = context.Process(target=_worker, args=(its_end, tasks, device), daemon=True)
        process.start()
        its_end.close()
        return connection, process

    try:
        while True:
            while len(busy) < workers and (run := next(filter(fits, runs), None)):
                runs.remove(run)
                connection, process = idle.pop() if idle else new_worker()
                busy.append((connection, process, run))
                connection.send(run)
            if not busy:
                return
            ready = wait([connection for connection, *_ in busy])
            for connection, process, run in [entry for entry in busy if entry[0] in ready]:
                busy.remove((connection, process, run))
                try:
                    found = connection.recv()
                    idle.append((connection, process))
                except EOFError:
                    process.join()
                    found = f"its process ended with exit status {process.exitcode}"
                yield run, found
    finally:
        for _, process, *_ in idle + busy:
            process.kill()
            process.join()


def _worker(connection, tasks, device):
    """A process that does runs. The work is in a thread, so that the process ends as soon as its parent does."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it a matrix product need not repeat itself
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it costs time and helps only to find mistakes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    tqdm.set_lock(threading.RLock())  # its own lock is one between processes: a killed one would leave it behind
    threading.Thread(target=_work, args=(connection, tasks, device), daemon=True).start()
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(connection, tasks, device):
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # products in TF32 where the card has it
    while True:
        run = connection.recv()
        try:
            connection.send(do(run, tasks[run["task"]], device))
        except Exception as error:  # one run that fails must not end the others
            traceback.print_exc()
            connection.send(f"{type(error).__name__}: {error}")


def _recorded(out, head):
    """What `out` and the files of torchrun's processes hold: {title: run}, and the seconds that it took."""
    recorded, spent = {}, 0.0
    for path in [out, *sorted(out.parent.glob(f"{out.stem}.rank*.json"))]:
        if path.exists():
            before = json.loads(path.read_text())
            for entry in ("suite", "device", "tasks"):
                if before.get(entry) != json.loads(json.dumps(head[entry])):
                    raise ValueError(f"{path} holds another {entry} than this call: choose another file (--out)")
            recorded |= {title(run): run for run in before["runs"]}
            spent = max(spent, before["seconds"])
    return recorded, spent


def _one_run_a_line(record):
    head = json.dumps({name: entry for name, entry in record.items() if name != "runs"})
    return f'{head[:-1]}, "runs": [\n' + ",\n".join(map(json.dumps, record["runs"])) + "\n]}\n"


def _outcome(found):
    if not isinstance(found, dict):
        return f"error, {found}"
    if found["status"] == "failed":
        return f"failed, {found['problem']}"
    metrics = [f"{name} {found['metrics'][name]}" for name in ("loss", "bleu", "accuracy") if name in found["metrics"]]
    return f"{', '.join(metrics)} ({found['seconds']} s)"
