"""Train a model: one loop for every chapter and every experiment.

    tokenizer, splits = shakespeare()
    model, record = train_language_model({"score": "random"}, Settings(steps=500), tokenizer, splits)

Read `train` first; its parts stand below it, in the order of their use.
"""

import hashlib
import json
import math
import os
import platform
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from numbers import Integral
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from synth_lib.models import LanguageModel
from synth_lib.shapes import check_number, check_whole_number
from synth_lib.text.corpora import evaluation_windows, random_windows


def _setting(default, description):
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class Settings:
    """How to train: each setting is described beside it, and `python -m synth_lib.lab train --help` prints the same.

    A checkpoint belongs to one set of settings. Raises ValueError for a number out of its range.
    """

    steps: int = _setting(1000, "updates of the parameters")
    batch: int = _setting(32, "windows (pieces of text), or other examples, in each step")
    warmup: int = _setting(None, "steps in which the learning rate rises; by default a tenth of all, at most 100")
    learning_rate: float = _setting(1e-3, "the highest learning rate, for all but the tables of r_learning_rate_factor")
    final_learning_rate: float = _setting(0.1, "where the cosine after the warm-up ends, a share of the highest rate")
    r_learning_rate_factor: float = _setting(
        10.0, "tables of scores, as random and factorized_random have, learn this many times faster"
    )
    beta1: float = _setting(0.9, "AdamW's decay of its mean of gradients")
    beta2: float = _setting(0.95, "AdamW's decay of its mean of squared gradients")
    weight_decay: float = _setting(0.1, "AdamW's decay of matrices; biases, norms and embeddings have none")
    r_weight_decay: float = _setting(0.0, "AdamW's decay of those tables")
    clip: float = _setting(1.0, "a gradient whose norm, over all parameters, is larger is scaled down to it")
    evaluate_every: int = _setting(100, "steps between evaluations, each with a checkpoint: the state to go on from")
    precision: str = _setting("auto", "auto, float32 or bfloat16; auto: bfloat16 where CUDA has it")
    seed: int = _setting(0, "of the start of the model, the order of the data, and dropout")

    def __post_init__(self):
        def keep(name, number):  # of numpy's numbers the plain ones: others no checkpoint gives back
            object.__setattr__(self, name, number)

        for name in ("steps", "batch", "evaluate_every"):
            check_whole_number(name, getattr(self, name))
            keep(name, int(getattr(self, name)))
        if self.warmup is None:
            keep("warmup", min(100, self.steps // 10))
        for name in ("warmup", "weight_decay", "r_weight_decay", "learning_rate", "r_learning_rate_factor", "clip",
                     "beta1", "beta2", "final_learning_rate"):  # fmt: skip
            check_number(name, getattr(self, name))
            if type(getattr(self, name)) not in (int, float):
                keep(name, float(getattr(self, name)))
            if getattr(self, name) == 0 and name in ("learning_rate", "r_learning_rate_factor", "clip"):
                raise ValueError(f"{name} is 0, but must be above 0")
        for name in ("beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be below 1")
        if not isinstance(self.seed, Integral) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed!r}, but must be a whole number from 0 to 2**63 - 1")
        keep("seed", int(self.seed))
        if self.warmup != int(self.warmup):
            raise ValueError(f"warmup is {self.warmup}, but must be a whole number of steps")
        keep("warmup", int(self.warmup))
        if self.final_learning_rate > 1:
            raise ValueError(f"final_learning_rate is {self.final_learning_rate}, but must be a share of at most 1")
        if self.warmup > self.steps:
            raise ValueError(f"warmup must be at most steps = {self.steps}, not {self.warmup}: set warmup (--warmup)")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"precision must be auto, float32 or bfloat16, not {self.precision!r}")


def next_token_loss(model, inputs, targets):
    """Mean cross-entropy in nats per token; inputs and targets "batch length"."""
    return F.cross_entropy(model(inputs).float().flatten(0, 1), targets.flatten())


def train(
    model, get_batch, eval_batches, settings, *, config, loss=next_token_loss, unit="nats per token", count=None,
    device="auto", folder=None, resume=False, progress=True, read_every_step=None,
):  # fmt: skip
    """Train `model` in place and return its record, a dictionary that JSON can hold.

    Args:
        model: sub-modules in evaluation stay so; a model that is so as a whole is put into training.
        get_batch: get_batch(generator, step) -> the tensors of one batch, drawn with that torch.Generator on the CPU.
            It remembers nothing: a run that is resumed calls it with the same generator and step.
        eval_batches: a list of such batches; the curve is the mean loss over them.
        settings: a `Settings`. Its seed also seeds torch, for dropout.
        config: what is trained, a dictionary of plain values, which JSON can hold, for the record and the checkpoint.
        loss, unit: loss(model, *tensors) -> the mean over a batch, a scalar, in this unit.
        count: count(*tensors) -> how many units the loss of a batch is the mean of. Default: every number of the last
            tensor, the targets.
        device: see `choose_device`.
        folder: where checkpoint.pt and record.json are written, whole or not at all. Default: nowhere.
        resume: go on from the checkpoint in `folder`. On the CPU the losses are those of a run without a
            break.
        progress: show a progress bar with the time left.
        read_every_step: look at the loss in each step, not only when it is evaluated. Default: on the CPU. Other
            devices work ahead, and to read a number is to wait for them.

    Raises:
        KeyboardInterrupt: Ctrl-C, after the step was finished and saved. A second Ctrl-C stops at once.
        FloatingPointError: the loss is not finite; the record says failed, the last good checkpoint stays.
        FileNotFoundError, ValueError: no checkpoint to resume, or it is damaged, or of other settings, other batches,
            another model, loss, device or version of torch. A model may be compiled, or no longer be. `config` holds
            something else than plain values; the evaluation batches hold no unit.
        FileExistsError: `folder` holds a checkpoint, and `resume` is not set: it would be lost.
    """
    folder = folder and Path(folder)
    if folder and not resume and (folder / "checkpoint.pt").exists():
        raise FileExistsError(f"{folder} holds a run: resume it (--resume), or choose another folder (--folder)")
    run = _Run(model, get_batch, eval_batches, settings, config, loss, unit, count, choose_device(device), folder)
    if resume:
        run.load()
    if read_every_step is None:
        read_every_step = run.device.type == "cpu"
    bar = tqdm(total=settings.steps, initial=run.step, disable=not progress, unit="step")
    with bar, _interrupt_after_the_step() as interrupted:
        if run.step == 0 and not resume:
            run.evaluate()
            run.save()  # claims the folder, and a folder that cannot be written is reported before the work
        while run.step < settings.steps:
            run.compute_gradients()
            due = (run.step + 1) % settings.evaluate_every == 0 or run.step + 1 == settings.steps
            stop = interrupted.is_set()
            if due or stop or read_every_step:
                run.check_finite()  # else the update would spoil every parameter, or a checkpoint keep what is spoilt
            run.update()
            if due:
                bar.set_postfix_str(f"loss {run.evaluate():.3f}")
            if due or stop:
                run.save()
            if stop:
                run.record("stopped")
                raise KeyboardInterrupt(f"stopped after step {run.step} of {settings.steps}")
            bar.update()
    return run.record("finished")


def parameter_groups(model, learning_rate, weight_decay, r_learning_rate_factor=10.0, r_weight_decay=0.0):
    """Three groups for AdamW, called "matrices", "vectors" and "R"; one without parameters is left out.

    - matrices: the weights of linear layers and of S; with weight decay.
    - vectors: biases (those with a head axis too), norms, the logits of a mixture, and the embeddings: a rare
      token gets few gradients, and decay would only shrink it. No weight decay.
    - R: the tables of scores, such as R, R1 and R2. `r_weight_decay`, and `r_learning_rate_factor` times the learning
      rate. Adam moves a number by about the learning rate a step, however small its gradient. R is a table of
      logits that starts near 0 and must move by several units before its map differs from uniform.
    """
    groups = {"matrices": [], "vectors": [], "R": []}
    seen = set()  # a tied parameter belongs to one group
    tables = {id(table) for table in table_parameters(model).values()}
    for module in model.modules():
        held = getattr(module, "parametrizations", {})  # by their own names, before the module that holds them comes
        own = [(name, parameter) for name in held for parameter in held[name].parameters()]
        for name, parameter in [*module.named_parameters(recurse=False), *own]:
            if id(parameter) in tables:
                group = "R"
            elif parameter.ndim < 2 or "bias" in name or isinstance(module, nn.Embedding):
                group = "vectors"
            else:
                group = "matrices"
            if id(parameter) not in seen:
                groups[group].append(parameter)
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
        for name, parameters in groups.items()
        if parameters
    ]


def table_parameters(model):
    """The tables of scores in `model`, {name: parameter}, also those that pruning or a parametrization holds."""
    tables = {}
    for prefix, module in model.named_modules():
        for table in getattr(module, "tables", ()):
            if not hasattr(module, table):
                names = f"tables = {module.tables!r}"
                raise ValueError(f"{type(module).__name__} has no parameter {table!r}, which its {names} names")
            its_name = re.compile(rf"(parametrizations\.)?{table}(_orig|_g|_v|\..*)?")
            for name, parameter in module.named_parameters():
                if its_name.fullmatch(name):
                    tables[f"{prefix}.{name}" if prefix else name] = parameter
    return tables


def schedule(step, warmup, steps, final=0.1):
    """The factor on the learning rate at step 0 .. steps - 1: a line up to 1, then a cosine down to `final`."""
    if step < warmup:
        return (step + 1) / warmup
    passed = (step - warmup) / max(1, steps - 1 - warmup)
    return final + (1 - final) * (1 + math.cos(math.pi * passed)) / 2


class _Run:
    """A run: what a checkpoint holds of it, and the parts of a step, in the order of their use."""

    def __init__(self, model, get_batch, eval_batches, settings, config, loss, unit, count, device, folder):
        self.get_batch, self.eval_batches, self.settings = get_batch, list(eval_batches), settings
        try:  # what no record can hold would be found after the training, and its checkpoint could not be read
            self.config = json.loads(json.dumps(config, allow_nan=False))
        except (TypeError, ValueError) as problem:
            raise ValueError(f"config must hold plain values alone, as JSON does: {problem}") from None
        if not self.eval_batches:
            raise ValueError("eval_batches is empty, but the loss is measured on one batch or more")
        self.loss, self.unit, self.count, self.device, self.folder = loss, unit, count, device, folder
        self.model = model.to(device)
        if not model.training:
            model.train()
        torch.manual_seed(settings.seed)
        self.generator = torch.Generator().manual_seed(settings.seed)
        groups = parameter_groups(
            model,
            settings.learning_rate,
            settings.weight_decay,
            settings.r_learning_rate_factor,
            settings.r_weight_decay,
        )
        betas = settings.beta1, settings.beta2
        self.optimizer = torch.optim.AdamW(groups, betas=betas, fused=device.type == "cuda")
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.autocast = autocast_on(device, settings.precision)
        self.step, self.curve, self.evaluating = 0, [], 0.0
        self.last_loss = self.largest_norm = None
        self.started = time.perf_counter()

    def compute_gradients(self):
        """The forward and the backward pass of the next step, at its learning rate."""
        factor = schedule(self.step, self.settings.warmup, self.settings.steps, self.settings.final_learning_rate)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        tensors = [tensor.to(self.device) for tensor in self.get_batch(self.generator, self.step)]
        with self.autocast():
            value = self.loss(self.model, *tensors)
        self.optimizer.zero_grad()
        value.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.last_loss = value.detach()
        # The largest since the last look: NaN, if one of them is.
        self.largest_norm = norm if self.largest_norm is None else torch.maximum(self.largest_norm, norm)

    def check_finite(self):
        loss, norm = self.last_loss.item(), self.largest_norm.item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.fail(f"the loss is {loss} and the norm of its gradient {norm}")
        self.largest_norm = None

    def fail(self, problem):
        problem += f" after step {self.step}: try a lower learning rate"
        self.record("failed", problem)
        raise FloatingPointError(problem)

    def update(self):
        self.optimizer.step()
        self.step += 1

    def evaluate(self):
        """The mean loss over the evaluation batches, which the curve gets."""
        began = time.perf_counter()
        with self.autocast():
            loss = mean_loss(self.model, self.loss, self.eval_batches, self.count, self.device)
        self.curve.append({"step": self.step, "loss": loss if math.isfinite(loss) else None})
        self.evaluating += time.perf_counter() - began
        if not math.isfinite(loss):
            self.fail(f"the loss of the evaluation is {loss}")
        return loss

    def seconds(self):
        return time.perf_counter() - self.started

    @cached_property
    def made_from(self):
        """What decides the result beside the options, for a comparison when the run is resumed."""
        first_batch = self.get_batch(torch.Generator().manual_seed(self.settings.seed), 0)
        return {
            "torch version": str(torch.__version__),
            "device": self.device.type,
            "unit": self.unit,
            "first training batch": fingerprint(first_batch),
            "evaluation batches": fingerprint(tensor for batch in self.eval_batches for tensor in batch),
        }

    def next_batch(self):
        """The fingerprint of the next training batch, which stays the next one; None after the last step."""
        if self.step == self.settings.steps:
            return None
        generator = torch.Generator()
        generator.set_state(self.generator.get_state())
        return fingerprint(self.get_batch(generator, self.step))

    def trial_loss(self):
        """By which a model or a loss that computes something else is found out."""
        with torch.random.fork_rng(devices=[]), self.autocast():
            return mean_loss(self.model, self.loss, self.eval_batches[:2], self.count, self.device)

    def parameters(self):
        """The module that holds them: under torch.compile their names are others."""
        return getattr(self.model, "_orig_mod", self.model)

    def save(self):
        if not self.folder:
            return
        began = time.perf_counter()
        checkpoint = {
            "config": self.config, "settings": asdict(self.settings), "made_from": self.made_from,
            "run": {"step": self.step, "curve": self.curve, "evaluating": self.evaluating, "seconds": self.seconds()},
            "next_batch": self.next_batch(), "trial_loss": self.trial_loss(),
            "model": self.parameters().state_dict(), "optimizer": self.optimizer.state_dict(),
            "random": {"torch": torch.get_rng_state(), "data": self.generator.get_state()},
        }  # fmt: skip
        write_whole(self.folder / "checkpoint.pt", lambda file: torch.save(checkpoint, file))
        self.evaluating += time.perf_counter() - began  # it is no training either

    def load(self):
        path = self.folder / "checkpoint.pt" if self.folder else None
        if path is None or not path.exists():
            raise FileNotFoundError(f"there is no checkpoint in folder {self.folder} to resume: start without resume")
        try:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            saved = {**checkpoint["config"], **checkpoint["settings"]}
            made_from, run, random = (checkpoint[part] for part in ("made_from", "run", "random"))
            next_batch, trial_loss = checkpoint["next_batch"], checkpoint["trial_loss"]
        except Exception as error:  # torch raises many kinds for a damaged file
            raise ValueError(f"{path} is no checkpoint that can be read ({type(error).__name__})") from None
        _refuse_difference(path, saved, {**self.config, **asdict(self.settings)}, "give the same options as before")
        again = "use the same as before, or start again in another folder"
        _refuse_difference(path, made_from, self.made_from, again)
        self.generator.set_state(random["data"])
        self.step, self.curve, self.evaluating = run["step"], run["curve"], run["evaluating"]
        following = f"training batch after step {self.step}"
        _refuse_difference(path, {following: next_batch}, {following: self.next_batch()}, again)
        try:
            self.parameters().load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
        except (RuntimeError, ValueError):  # torch names each parameter, in many lines
            raise ValueError(f"{path} holds the parameters of another model: {again}") from None
        loss = self.trial_loss()
        if not math.isclose(loss, trial_loss, rel_tol=1e-3, abs_tol=1e-3):
            losses = f"with a loss of {trial_loss:.4f} on the first evaluation batches, this run has {loss:.4f}"
            raise ValueError(f"{path} was made {losses}: the model or the loss computes something else, {again}")
        torch.set_rng_state(random["torch"])
        self.started = time.perf_counter() - run["seconds"]

    def record(self, status, problem=None):
        """The record, which the folder gets too."""
        seconds = self.seconds()
        record = {
            "config": self.config,
            "status": status,
            "problem": problem,
            "seed": self.settings.seed,
            "settings": asdict(self.settings),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            **provenance(self.device),
            "threads": torch.get_num_threads(),
            "seconds": round(seconds, 1),
            "training_seconds": round(seconds - self.evaluating, 3),
            "unit": self.unit,
            "curve": self.curve,
            "final_loss": self.curve[-1]["loss"] if status == "finished" else None,
        }
        if self.folder:
            write_whole(self.folder / "record.json", lambda file: file.write(json.dumps(record, indent=1).encode()))
        return record


def _refuse_difference(path, saved, now, advice):
    for name in sorted(saved.keys() | now.keys()):
        if saved.get(name) != now.get(name):
            raise ValueError(
                f"{path} was made with {name} = {saved.get(name)!r}, this run has {now.get(name)!r}: {advice}"
            )


@torch.no_grad()
def mean_loss(model, loss, batches, count=None, device=None):
    """The mean of a loss over all units of all batches, each batch counted as often as it has units; see `train`.

    Raises ValueError if they have none.
    """
    total = units = 0
    with evaluating(model):
        for batch in batches:
            batch = [tensor.to(device) for tensor in batch]
            number = int(count(*batch)) if count else batch[-1].numel()
            total += loss(model, *batch).item() * number
            units += number
    if not units:
        raise ValueError("the batches hold nothing to measure: their loss is the mean of 0 units")
    return total / units


@contextmanager
def evaluating(model):
    """A `with` block in which all of the model is in evaluation; then each sub-module is as it was."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def fingerprint(tensors):
    """A short text that is another for other numbers, types or shapes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def choose_device(name="auto"):
    """The torch.device of that name, or for "auto" the first that there is of cuda, mps and cpu.

    Raises ValueError if this machine has no such device.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    usable = [kind for kind, is_there in there.items() if is_there]
    if name != "auto" and str(name).split(":")[0] not in usable:
        raise ValueError(f"device must be auto or {' or '.join(usable)} on this machine, not {str(name)!r}")
    try:
        return torch.device(usable[0] if name == "auto" else name)
    except RuntimeError:
        raise ValueError(f"device is {str(name)!r}, but must be a name such as {usable[0]!r}") from None


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


def provenance(device):
    """What a result may depend on beside its settings: {"device", "versions", "code"}, see `code_revision`."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"device": device_name(device), "versions": versions, "code": code_revision()}


@cache
def code_revision():
    """The commit of this code, with "-dirty" if files have changed since, as git tells; None where there is no git."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, encoding="utf8", check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


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


SIZES = {"score": "dot_product", "d_model": 128, "head": 4, "layer": 4, "max_length": 128, "dropout": 0.0}


def train_language_model(sizes, settings, tokenizer, splits, *, text="shakespeare", windows=64, **options):
    """Build a LanguageModel from the seed of `settings`, train it on splits["train"] -> (model, record).

    sizes: arguments of LanguageModel, added to `SIZES`. text: the name of the corpus, for the record. windows: how
    many fixed windows of splits["valid"] the curve is measured on. options: as for `train`.
    """
    sizes = SIZES | sizes
    config = {
        "text": text, "tokens of the text": fingerprint([splits["train"]]), "tokenizer": type(tokenizer).__name__,
        "vocab": tokenizer.vocab, **sizes, "windows": windows,
    }  # fmt: skip
    torch.manual_seed(settings.seed)
    model = LanguageModel(tokenizer.vocab, **sizes)
    length = sizes["max_length"]
    inputs, targets = evaluation_windows(splits["valid"], length, windows)
    eval_batches = list(zip(inputs.split(settings.batch), targets.split(settings.batch), strict=True))

    def get_batch(generator, step):
        return random_windows(splits["train"], length, settings.batch, generator)

    return model, train(model, get_batch, eval_batches, settings, config=config, **options)
