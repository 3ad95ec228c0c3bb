"""Train a model: one loop for every chapter, and a command line for the language model.

    tokenizer, splits = shakespeare()
    model, record = train_language_model({"score": "random"}, Settings(steps=500), tokenizer, splits)

Read `train` first; its parts stand below it, in the order of their use.
"""

import argparse
import json
import math
import os
import platform
import re
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from synth_lib.models import LanguageModel
from synth_lib.scores import SCORES
from synth_lib.shapes import check_number, check_whole_number
from synth_lib.text.corpora import CorpusError, evaluation_windows, random_windows, shakespeare


def _setting(default, says):
    return field(default=default, metadata={"says": says})


@dataclass(frozen=True)
class Settings:
    """How to train: each setting is said beside it, and `python -m synth_lib.lab.train --help` prints the same
    words.

    A checkpoint belongs to one set of settings. Raises ValueError for a number out of its range.
    """

    steps: int = _setting(1000, "updates of the parameters")
    batch: int = _setting(32, "windows (pieces of text), or other examples, in each step")
    warmup: int = _setting(100, "steps in which the learning rate rises; then it falls, a cosine, to a tenth")
    learning_rate: float = _setting(1e-3, "the highest learning rate, for all but the tables of the next option")
    r_learning_rate_factor: float = _setting(
        10.0, "the learned tables of random and factorized_random learn this many times faster"
    )
    weight_decay: float = _setting(0.1, "AdamW's decay of matrices; biases, norms and embeddings have none")
    r_weight_decay: float = _setting(0.0, "AdamW's decay of those tables")
    clip: float = _setting(1.0, "a gradient whose norm, over all parameters, is larger is scaled down to it")
    evaluate_every: int = _setting(100, "steps between evaluations, each with a checkpoint: the state to go on from")
    precision: str = _setting("auto", "auto, float32 or bfloat16; auto: bfloat16 where CUDA has it")
    seed: int = _setting(0, "of the start of the model, the order of the data, and dropout")

    def __post_init__(self):
        for name in ("steps", "batch", "evaluate_every"):
            check_whole_number(name, getattr(self, name))
        for name in ("warmup", "weight_decay", "r_weight_decay", "learning_rate", "r_learning_rate_factor", "clip"):
            check_number(name, getattr(self, name))
            if getattr(self, name) == 0 and name in ("learning_rate", "r_learning_rate_factor", "clip"):
                raise ValueError(f"{name} is 0, but must be above 0")
        if self.warmup > self.steps:
            raise ValueError(f"warmup must be at most steps = {self.steps}, not {self.warmup}: set warmup (--warmup)")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"precision must be auto, float32 or bfloat16, not {self.precision!r}")


def next_token_loss(model, inputs, targets):
    """Mean cross-entropy in nats per token; inputs and targets "batch length"."""
    return F.cross_entropy(model(inputs).float().flatten(0, 1), targets.flatten())


def train(
    model, draw, evaluation, settings, *, what, loss=next_token_loss, unit="nats per token",
    device="auto", folder=None, resume=False, progress=True,
):  # fmt: skip
    """Train `model` in place and return its record, a dictionary that JSON can hold.

    Args:
        draw: draw(generator) -> the tensors of one batch, drawn with that torch.Generator on the CPU.
        evaluation: a list of such batches; the curve is the mean loss over them.
        settings: a `Settings`. Its seed also seeds torch, for dropout.
        what: what is trained, a dictionary of plain values, for the record and the checkpoint.
        loss, unit: loss(model, *tensors) -> the mean over a batch, a scalar, in this unit.
        device: see `choose_device`.
        folder: where checkpoint.pt and record.json are written, whole or not at all. Default: nowhere.
        resume: go on from the checkpoint in `folder`. On the CPU the losses are those of a run without a
            break.
        progress: show a progress bar with the time left.

    Raises:
        KeyboardInterrupt: Ctrl-C, after the step was finished and saved. A second Ctrl-C stops at once.
        FloatingPointError: the loss is not finite; the record says failed, the last good checkpoint stays.
        FileNotFoundError, ValueError: no checkpoint to resume, or it is damaged or of other settings.
        FileExistsError: `folder` holds a checkpoint, and `resume` is not set: it would be lost.
    """
    device = choose_device(device)
    folder = folder and Path(folder)
    if folder and not resume and (folder / "checkpoint.pt").exists():
        raise FileExistsError(f"{folder} holds a run: resume it (--resume), or choose another folder (--folder)")
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    model.to(device).train()
    groups = parameter_groups(
        model,
        settings.learning_rate,
        settings.weight_decay,
        settings.r_learning_rate_factor,
        settings.r_weight_decay,
    )
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=device.type == "cuda")
    peaks = [group["lr"] for group in optimizer.param_groups]
    autocast = autocast_on(device, settings.precision)
    run = {"what": what, "settings": asdict(settings), "step": 0, "curve": [], "seconds": 0.0, "evaluating": 0.0}
    if resume:
        run = _load_checkpoint(folder, run, model, optimizer, generator)
    started = time.perf_counter() - run["seconds"]

    def evaluate():
        began = time.perf_counter()
        found = _mean_loss(model, loss, evaluation, device, autocast)
        run["curve"].append({"step": run["step"], "loss": found if math.isfinite(found) else None})
        run["evaluating"] += time.perf_counter() - began
        return found

    def record(status, problem=None):
        return _record(folder, run, status, problem, model, device, unit)

    latest = latest_norm = 0.0
    largest = None
    bar = tqdm(total=settings.steps, initial=run["step"], disable=not progress, unit="step")
    with bar, _interrupt_after_the_step() as interrupted:
        if run["step"] == 0:
            evaluate()
            if folder:  # claims the folder, and a folder that cannot be written is told before the work
                _save_checkpoint(folder, run, model, optimizer, generator)
        while run["step"] < settings.steps:
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * schedule(run["step"], settings.warmup, settings.steps)
            tensors = [tensor.to(device) for tensor in draw(generator)]
            with autocast():
                value = loss(model, *tensors)
            optimizer.zero_grad()
            value.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            largest = norm if largest is None else torch.maximum(largest, norm)  # NaN, if one of them is
            due = (run["step"] + 1) % settings.evaluate_every == 0 or run["step"] + 1 == settings.steps
            if due or device.type == "cpu":  # other devices work ahead, and to read a number is to wait for them
                latest, latest_norm, largest = value.item(), largest.item(), None
            if math.isfinite(latest) and math.isfinite(latest_norm):  # else the update would spoil every parameter
                optimizer.step()
                run["step"] += 1
                latest = evaluate() if due else latest
            run["seconds"] = time.perf_counter() - started
            if not (math.isfinite(latest) and math.isfinite(latest_norm)):
                problem = (
                    f"the loss is {latest} and the norm of its gradient {latest_norm} after step {run['step']}: "
                    "try a lower learning rate"
                )
                record("failed", problem)
                raise FloatingPointError(problem)
            if due:
                bar.set_postfix_str(f"loss {latest:.3f}")
            if folder and (due or interrupted.is_set()):
                _save_checkpoint(folder, run, model, optimizer, generator)
            if interrupted.is_set():
                record("stopped")
                raise KeyboardInterrupt(f"stopped after step {run['step']} of {settings.steps}")
            bar.update()
    return record("finished")


def parameter_groups(model, learning_rate, weight_decay, r_learning_rate_factor=10.0, r_weight_decay=0.0):
    """Three groups for AdamW, called "matrices", "vectors" and "R"; one without parameters is left out.

    - matrices: the weights of linear layers and of S; with weight decay.
    - vectors: biases (those with a head axis too), norms, the logits of a mixture, and the embeddings: a rare
      token gets few gradients, and decay would only shrink it. No weight decay.
    - R: the tables of scores, such as R, R1 and R2. `r_weight_decay`, and `r_learning_rate_factor` times the learning
      rate. Adam moves a number by about the learning rate a step, however small its gradient. R is a table of
      logits that starts near 0 and must move by several units before its map differs from uniform.
    """
    found = {"matrices": [], "vectors": [], "R": []}
    seen = set()  # a tied parameter belongs to one group
    tables = {id(table) for table in table_parameters(model).values()}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in tables:
                group = "R"
            elif parameter.ndim < 2 or "bias" in name or isinstance(module, nn.Embedding):
                group = "vectors"
            else:
                group = "matrices"
            if id(parameter) not in seen:
                found[group].append(parameter)
            seen.add(id(parameter))
    rate = {"R": learning_rate * r_learning_rate_factor}
    decay = {"matrices": weight_decay, "R": r_weight_decay}
    return [
        {
            "name": name,
            "params": parameters,
            "lr": rate.get(name, learning_rate),
            "weight_decay": decay.get(name, 0.0),
        }
        for name, parameters in found.items()
        if parameters
    ]


def table_parameters(model):
    """The tables of scores in `model`, {name: parameter}, also those that pruning or a parametrization holds."""
    tables = {}
    for prefix, module in model.named_modules():
        for table in getattr(module, "tables", ()):
            its_name = re.compile(rf"(parametrizations\.)?{table}(_orig|_g|_v|\..*)?")
            for name, parameter in module.named_parameters():
                if its_name.fullmatch(name):
                    tables[f"{prefix}.{name}" if prefix else name] = parameter
    return tables


def schedule(step, warmup, steps):
    """The factor on the learning rate at step 0 .. steps - 1: a line up to 1, then a cosine down to 0.1."""
    if step < warmup:
        return (step + 1) / warmup
    passed = (step - warmup) / max(1, steps - 1 - warmup)
    return 0.1 + 0.9 * (1 + math.cos(math.pi * passed)) / 2


def choose_device(name="auto"):
    """The torch.device of that name, or for "auto" the first that there is of cuda, mps and cpu.

    Raises ValueError if this machine has no such device.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    usable = [kind for kind, is_there in there.items() if is_there]
    if name != "auto" and str(name).split(":")[0] not in usable:
        raise ValueError(f"device must be auto or {' or '.join(usable)} on this machine, not {str(name)!r}")
    return torch.device(usable[0] if name == "auto" else name)


def write_whole(path, write):
    """Call write(file) on a new file beside `path`, then put it in its place: whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def autocast_on(device, precision):
    """What makes the context of a forward pass in this precision, see Settings: autocast_on(...)() -> a context."""
    # A T4 only imitates bfloat16, more slowly than it computes in float32.
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    enabled = precision == "bfloat16" or (precision == "auto" and has_bfloat16)
    return lambda: torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def device_name(device):
    """The name of a card, or the kind of device: "NVIDIA H200", "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@torch.no_grad()
def _mean_loss(model, loss, batches, device, autocast):
    model.eval()
    total = 0.0
    for batch in batches:
        with autocast():
            total += loss(model, *(tensor.to(device) for tensor in batch)).item() * len(batch[0])
    model.train()
    return total / sum(len(batch[0]) for batch in batches)


@contextmanager
def _interrupt_after_the_step():
    """Within it the first Ctrl-C only sets the event it hands out; the second raises KeyboardInterrupt."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread hears of Ctrl-C
        yield event
        return

    def first(number, frame):
        event.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, first)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _save_checkpoint(folder, run, model, optimizer, generator):
    random = {"torch": torch.get_rng_state(), "data": generator.get_state()}
    whole = {"run": run, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": random}
    write_whole(folder / "checkpoint.pt", lambda file: torch.save(whole, file))


def _load_checkpoint(folder, run, model, optimizer, generator):
    path = folder / "checkpoint.pt" if folder else None
    if path is None or not path.exists():
        raise FileNotFoundError(f"there is no checkpoint in folder {folder} to resume: start without resume")
    try:
        whole = torch.load(path, map_location="cpu", weights_only=True)
        told = {kind: whole["run"][kind] for kind in ("what", "settings")}
    except Exception as error:  # torch raises many kinds for a damaged file
        raise ValueError(f"{path} is no checkpoint that can be read ({type(error).__name__})") from None
    for kind, saved in told.items():
        for name in sorted(saved.keys() | run[kind].keys()):
            if saved.get(name) != run[kind].get(name):
                now = run[kind].get(name)
                raise ValueError(
                    f"{path} was made with {name} = {saved.get(name)!r}, this run has {now!r}: "
                    "give the same options as before"
                )
    model.load_state_dict(whole["model"])
    optimizer.load_state_dict(whole["optimizer"])
    torch.set_rng_state(whole["random"]["torch"])
    generator.set_state(whole["random"]["data"])
    return whole["run"]


def _record(folder, run, status, problem, model, device, unit):
    record = {
        "what": run["what"],
        "status": status,
        "problem": problem,
        "seed": run["settings"]["seed"],
        "settings": run["settings"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "seconds": round(run["seconds"], 1),
        "training_seconds": round(run["seconds"] - run["evaluating"], 3),
        "unit": unit,
        "curve": run["curve"],
        "final_loss": run["curve"][-1]["loss"] if status == "finished" else None,
    }
    if folder:
        write_whole(folder / "record.json", lambda file: file.write(json.dumps(record, indent=1).encode()))
    return record


SIZES = {"score": "dot_product", "d_model": 128, "head": 4, "layer": 4, "max_length": 128, "dropout": 0.0}


def train_language_model(sizes, settings, tokenizer, splits, *, windows=64, **options):
    """Build a LanguageModel from the seed of `settings`, train it on splits["train"] -> (model, record).

    sizes: arguments of LanguageModel, added to `SIZES`. windows: how many fixed windows of splits["valid"]
    the curve is measured on. options: as for `train`.
    """
    sizes = SIZES | sizes
    kind = type(tokenizer).__name__
    what = {"text": "Shakespeare", "tokenizer": kind, "vocab": tokenizer.vocab, **sizes, "windows": windows}
    torch.manual_seed(settings.seed)
    model = LanguageModel(tokenizer.vocab, **sizes)
    length = sizes["max_length"]
    inputs, targets = evaluation_windows(splits["valid"], length, windows)
    evaluation = list(zip(inputs.split(settings.batch), targets.split(settings.batch), strict=True))

    def draw(generator):
        return random_windows(splits["train"], length, settings.batch, generator)

    return model, train(model, draw, evaluation, settings, what=what, **options)


HELP = """Train a language model on Shakespeare. You choose how its attention scores are made (--score).

The loss is the mean cross-entropy of the next token, in nats per token, on fixed windows of two plays that
the model never trains on. Ctrl-C finishes the running step and keeps a checkpoint, the state to go on
from; --resume goes on from there."""

EXAMPLES = """examples:
  a small model, about a minute on a laptop, that then writes 300 characters:
    python -m synth_lib.lab.train --score random --d_model 64 --layer 2 --max_length 32 --sample 300
  the standard sizes with another seed; stop it with Ctrl-C, then continue:
    python -m synth_lib.lab.train --score dense --seed 1 --folder runs/dense-1
    python -m synth_lib.lab.train --score dense --seed 1 --folder runs/dense-1 --resume
  all runs of a suite that are not in its file yet, two at a time, in at most 5 minutes:
    python -m synth_lib.lab.train --suite laptop --out runs/laptop.json --workers 2 --minutes 5"""


def _parser():
    from synth_lib.lab.suites import SUITES, suite  # here, because suites.py stands on this file

    parser = argparse.ArgumentParser(
        "python -m synth_lib.lab.train", description=HELP, epilog=EXAMPLES, usage="%(prog)s [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    options = {
        "the model": {
            "score": f"how the attention scores are made: {', '.join(SCORES)}; 'random + dense' mixes, "
            "'random, dense' has one per layer",
            "d_model": "features of a token",
            "head": "attention heads; they divide d_model",
            "layer": "blocks, one on the other",
            "max_length": "how many tokens the model reads at once, in training too",
            "dropout": "probability of dropping a feature or a weight while training",
        },
        "the training": {setting.name: setting.metadata["says"] for setting in fields(Settings)},
        "the text and the run": {
            "tokens": "characters or byte_pairs",
            "vocab": "number of tokens, at least 256; for byte_pairs alone",
            "windows": "windows (pieces of text) of each evaluation",
            "folder": "where checkpoint.pt (the state to go on from) and record.json are written",
            "device": "cuda, mps or cpu; auto takes the first of them that there is",
            "sample": "tokens of text to write at the end",
        },
    }
    text = {"tokens": "characters", "vocab": 1024, "windows": 64, "sample": 0}
    defaults = SIZES | asdict(Settings()) | text | {"folder": "runs/latest", "device": "auto"}
    for title, texts in options.items():
        group = parser.add_argument_group(title)
        for name, says in texts.items():
            default, kind = defaults[name], type(defaults[name])
            says = f"{says} (default: {default})"
            group.add_argument(f"--{name}", type=kind, default=default, metavar=kind.__name__, help=says)
    group.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    group.add_argument("--quiet", action="store_true", help="show no progress bar")
    group = parser.add_argument_group("a suite: many runs side by side; of the options above only --device counts")
    group.add_argument("--suite", metavar="name", help="; ".join(f"{name}: {suite(name).says}" for name in SUITES))
    group.add_argument(
        "--out", metavar="file", help="JSON file that gets every finished run; the same call goes on (runs/NAME.json)"
    )
    group.add_argument("--minutes", type=float, metavar="float", help="start no run that would end later (no limit)")
    group.add_argument(
        "--workers", type=int, default=1, metavar="int", help="runs side by side, each on one CPU thread (default: 1)"
    )
    return parser


def main(arguments=None):
    """The command line. -> exit status: 0, 1 a failed run, 2 arguments that do not fit, 130 Ctrl-C."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.suite:
        return _run_suite(parser, given)
    folder = Path(given.folder)
    try:
        settings = Settings(**{setting.name: getattr(given, setting.name) for setting in fields(Settings)})
        sizes = {name: getattr(given, name) for name in SIZES}
        if "," in given.score:
            sizes["score"] = [name.strip() for name in given.score.split(",")]
        tokenizer, splits = shakespeare(given.tokens, given.vocab)
        model, record = train_language_model(
            sizes, settings, tokenizer, splits, windows=given.windows, device=given.device,
            folder=folder, resume=given.resume, progress=not given.quiet,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        resume = f"; --resume goes on from {folder}" if (folder / "checkpoint.pt").exists() else ""
        print(f"{str(stop) or 'stopped at once'}{resume}")
        return 130
    except FloatingPointError as problem:
        print(f"failed: {problem}")
        return 1
    except (CorpusError, OSError, TypeError, ValueError) as problem:
        parser.error(str(problem))
    print(f"{record['final_loss']:.3f} {record['unit']} at step {settings.steps}, {folder / 'record.json'}")
    if given.sample:
        start = tokenizer.encode("\n")[None].to(next(model.parameters()).device)
        generator = torch.Generator().manual_seed(settings.seed)
        print(tokenizer.decode(model.generate(start, given.sample, generator=generator)[0]))
    return 0


def _run_suite(parser, given):
    from synth_lib.lab.suites import run_suite

    out = Path(given.out or f"runs/{given.suite}.json")
    try:
        check_whole_number("workers", given.workers)
        if given.minutes is not None:
            check_number("minutes", given.minutes)
        record = run_suite(given.suite, out, device=given.device, minutes=given.minutes, workers=given.workers)
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {out}")
        return 130
    except (OSError, ValueError) as problem:
        parser.error(str(problem))
    failed = [run for run in record["runs"] if run["status"] == "failed"]
    print(
        f"{len(record['runs'])} runs in {out}, {len(failed)} of them failed; {len(record['errors'])} errors, "
        f"{len(record['missing'])} runs missing; {record['seconds'] / 60:.1f} minutes in all"
    )
    return 1 if record["errors"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
