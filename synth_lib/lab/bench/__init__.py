"""Check and time the fast form of each S: `python -m synth_lib.lab bench attention --device cuda --minutes 4`.

The name is one of these, or `all` for one after the other, which share the minutes:

    check      every fast form equals the plain one: values and gradients, masks, lengths, float64 to bfloat16
    train      a training step of a language model with each S, in tokens a second
    decode     writing text with a cache: its bytes, and tokens a second
    attention  forward + backward of attention alone, and of the whole layer, against scaled_dot_product_attention

`neighbours` is not among `all`: the patterns of chapter 10 at growing lengths, see `bench.neighbours`.

How a number is measured says `measure`, what the forms are `forms`. The numbers are medians of so many `rounds`,
fewer than asked for where the time ended; `low` and `high` are the quartiles, None where one round was all. Forms that
are compared are timed in turn in one run, on one thread if it is a CPU. `sdpa_ms` is the baseline of a row, from its
own run. The important comes first, so that a short run has it. Results are written as they come. A form that fails is
recorded with its message, and the rest goes on; what the minutes do not reach is recorded as skipped.

The exit status is 1 if the check compared nothing, found something wrong or failed, 2 if an option is wrong, 130 after
Ctrl-C; what was measured until then is kept.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from datetime import date
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F

from synth_lib.lab import measure
from synth_lib.lab.bench import neighbours
from synth_lib.lab.bench.comparison import check
from synth_lib.lab.bench.forms import all_scores, core_steps, cost, is_compiled, layer_steps
from synth_lib.lab.train import write_whole
from synth_lib.models import LanguageModel

SHARES = {"check": 2, "train": 1, "decode": 1, "attention": 2}  # of the minutes; what is left over goes to the next
FULL = {
    "attention": [
        {"head": 12, "d_head": 64, "length": 512, "batch": 64},
        {"head": 12, "d_head": 64, "length": 2048, "batch": 16},
    ],
    "train": {"d_model": 768, "head": 12, "layer": 6, "length": 512, "batch": 64, "vocab": 8192},
    "decode": {"d_model": 768, "head": 12, "layer": 6, "length": 512, "batch": 128, "vocab": 8192},
}
ON_A_CPU = {
    "attention": [
        {"head": 4, "d_head": 16, "length": 32, "batch": 8},
        {"head": 4, "d_head": 32, "length": 128, "batch": 16},
        {"head": 8, "d_head": 64, "length": 256, "batch": 4},
        {"head": 8, "d_head": 64, "length": 512, "batch": 1},
    ],
    "train": {"d_model": 128, "head": 4, "layer": 2, "length": 128, "batch": 8, "vocab": 512},
    "decode": {"d_model": 128, "head": 4, "layer": 2, "length": 128, "batch": 8, "vocab": 512},
}
TINY = {
    "attention": [{"head": 2, "d_head": 8, "length": 12, "batch": 3}],
    "train": {"d_model": 16, "head": 2, "layer": 1, "length": 12, "batch": 2, "vocab": 11},
    "decode": {"d_model": 16, "head": 2, "layer": 1, "length": 12, "batch": 2, "vocab": 11},
}


class Bench:
    """One run: where it computes, how long it may, and the record that it writes.

    Raises:
        ValueError: the device is neither a CPU nor a card that torch can use.
    """

    def __init__(self, device, minutes, out=None, sizes=None, rounds=None):
        self.device = check_device(device)
        self.cuda = self.device.type == "cuda"
        if self.device.index is not None and self.cuda:
            torch.cuda.set_device(self.device)  # what is said to be on "cuda" is on this card
        self.sizes = sizes or (FULL if self.cuda else ON_A_CPU)
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.rounds = rounds or (9 if self.cuda else 7)
        self.out = out
        self.end = self.until = time.perf_counter() + 60 * minutes
        if not self.cuda:
            torch.set_num_threads(1)
        self.record = {
            "card": torch.cuda.get_device_name(self.device) if self.cuda else f"CPU {platform.machine()}, one thread",
            "device": self.device.type,
            "date": date.today().isoformat(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "dtype": str(self.dtype).removeprefix("torch."),
            "sizes": self.sizes,
            "rounds": self.rounds,
            "failed": [],
            "skipped": [],
        }

    def start(self, suites):
        """Give the first of these suites its share of what is left, and keep the rest for the others."""
        now = time.perf_counter()
        share = SHARES[suites[0]] / sum(SHARES[suite] for suite in suites)
        self.until = now + share * (self.end - now)

    def seconds_left(self):
        """Of the suite that runs."""
        return self.until - time.perf_counter()

    def checked(self):
        """What the record says of the check, from its start on."""
        return self.record.setdefault("check", {"cases": 0, "wrong": 0, "failed": 0})

    def save(self):
        """Write the record, whole or not at all."""
        if self.out:
            text = json.dumps(self.record, indent=1) + "\n"
            write_whole(Path(self.out), lambda file: file.write(text.encode()))

    def attempt(self, what, make, seconds=5):
        """make(), or None if it fails or fewer than `seconds` are left; then the record says why."""
        if self.seconds_left() < seconds:
            self.record["skipped"].append(what)
            return None
        try:
            with warnings.catch_warnings(record=True) as raised:
                warnings.simplefilter("always")
                made = make()
            messages = {str(warning.message) for warning in raised if "FlexAttention" in str(warning.message)}
            self.record["failed"] += [{"what": what, "error": message} for message in sorted(messages)]
            return made
        except Exception as error:  # whatever a kernel or a compiler raises, the other forms are timed
            message = f"{type(error).__name__}: {error}"
            self.record["failed"].append({"what": what, "error": message[:500]})
            print(f"failed: {what}", file=sys.stderr)
            traceback.print_exc()
            if self.cuda and "out of memory" in message:
                torch.cuda.empty_cache()
            return None

    def times(self, steps, rounds=None):
        """As `measure.times`, and how many "rounds" were run."""
        seconds = max(0, self.seconds_left())
        measured = measure.measurements(steps, rounds=rounds or self.rounds, seconds=seconds, device=self.device)
        return {name: measure.spread(times) | {"rounds": len(times)} for name, times in measured.items()}


def check_device(device):
    """The torch.device of this name, if it can be measured here, or a ValueError that says why not."""
    try:
        usable = torch.device(device)
    except RuntimeError:
        usable = None
    if usable is None or usable.type not in ("cpu", "cuda"):
        raise ValueError(f"The device is {device}, but has to be cpu, cuda, or one card, such as cuda:1.")
    if usable.type == "cuda" and (usable.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"The device is {device}, but torch finds {torch.cuda.device_count()} CUDA devices here.")
    return usable


def exit_status(record):
    """1 if a check was asked for and does not show that every form is right, else 0."""
    check = record.get("check")
    return int(check is not None and (not check["cases"] or check["wrong"] > 0 or check["failed"] > 0))


# attention

GROUPS = [
    ("core", core_steps, "first"),
    ("layer", layer_steps, "first"),
    ("core", core_steps, "compiled"),
    ("layer", layer_steps, "compiled"),
    ("core", core_steps, "others"),
    ("layer", layer_steps, "others"),
]


def attention(bench, compiled_ahead=False):
    """Times of attention alone ("core") and of the whole layer, for every size, full and causal.

    The groups of `forms` one after the other: all sizes of one, then all of the next.
    """
    for suite, make, group in GROUPS:
        ahead = compiled_ahead or bench.seconds_left() < 60
        if (suite, group) == ("core", "compiled") and bench.cuda and not ahead:
            run_beside(bench, compile_jobs(bench), seconds=min(90, bench.seconds_left() / 2))
        for sizes in bench.sizes["attention"]:
            for causal in (False, True):
                measure_attention(bench, suite, make, group, sizes, causal)


def measure_attention(bench, suite, make, group, sizes, causal):
    """One row for each form of a group, which is timed together with the baseline."""
    groups = make(**sizes, causal=causal, device=bench.device, dtype=bench.dtype)
    if not groups[group]:
        return
    sizes_name = f"length {sizes['length']}" + ", causal" * causal
    steps, counted = {}, {}
    for form, build in {"sdpa": groups["first"]["sdpa"], **groups[group]}.items():
        ready = partial(count, bench, build, group == "compiled" and form != "sdpa")
        result = bench.attempt(f"{suite} {form}, {sizes_name}", ready, seconds=20 if group == "compiled" else 3)
        if result:
            steps[form], counted[form] = result
    times = bench.attempt(f"times of {suite}, {group}, {sizes_name}", partial(bench.times, steps), seconds=1)
    rows = bench.record.setdefault(suite, [])
    for form in times or {}:
        if form == "sdpa" and group != "first":
            continue
        row = {"form": form, **sizes, "causal": causal, **times[form], **counted[form]}
        if "sdpa" in times:
            row["sdpa_ms"] = times["sdpa"]["ms"]
            row["faster_than_sdpa"] = round(times["sdpa"]["ms"] / times[form]["ms"], 3)
            row["peak_to_sdpa"] = round(row["peak_bytes"] / max(1, counted["sdpa"]["peak_bytes"]), 3)
        if suite == "core":
            row["operations"], row["bytes"] = cost(
                form, **sizes, causal=causal, item=bench.dtype.itemsize, device=bench.device.type
            )
        rows.append(row)
    bench.save()
    steps.clear()
    if bench.cuda:
        torch.cuda.empty_cache()


def count(bench, build, compiled=False):
    """(the step that `build` makes, what can be counted of it). Of what is compiled, the launches cannot."""
    step = build()
    step()
    counted = {"peak_bytes": measure.peak_bytes(step, bench.device)}
    return step, counted if compiled else counted | {"launches": measure.launches(step)}


# train


def train(bench):
    """Tokens a second of a training step: forward, loss, backward, AdamW, as in `train.py`; its speed beside sdpa."""
    sizes = bench.sizes["train"]
    tokens = torch.randint(sizes["vocab"], (sizes["batch"], sizes["length"] + 1), device=bench.device)
    steps, counted = {}, {}
    scores = sorted(all_scores(), key=lambda score: is_compiled(score, sizes["length"], bench.device))
    for score in scores:
        compiled = is_compiled(score, sizes["length"], bench.device)
        ready = partial(count, bench, partial(training_step, bench, score, tokens, **sizes), compiled)
        result = bench.attempt(f"train {score}", ready, seconds=20 if compiled else 5)
        if result:
            steps[score], counted[score] = result
    times = bench.times(steps)
    rows = bench.record.setdefault("train", [])
    for score in steps:
        row = {"score": score, **times[score], **counted[score]}
        row["tokens_per_second"] = round(1000 * sizes["batch"] * sizes["length"] / times[score]["ms"])
        if "dot_product" in times:
            row["faster_than_sdpa"] = round(times["dot_product"]["ms"] / times[score]["ms"], 3)
        rows.append(row)
    bench.save()


def training_step(bench, score, tokens, d_model, head, layer, length, batch, vocab):
    model = LanguageModel(vocab, d_model, head, layer, length, score).to(bench.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=bench.cuda)

    def step():
        with torch.autocast(bench.device.type, torch.bfloat16, enabled=bench.cuda):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# decode


def decode(bench, rounds=3):
    """Greedy writing with a cache: tokens a second, and the bytes that the caches hold at max_length.

    max_length - 1 tokens are written, or as many as the time allows: "written". "launches" are those of one token.
    """
    sizes = bench.sizes["decode"]
    writers, counted, seconds = {}, {}, 0
    for score in all_scores():
        result = bench.attempt(f"decode {score}", partial(writer, bench, score, **sizes), seconds=3)
        if result:
            writers[score], counted[score], one_token = result
            seconds += one_token
    calls = rounds + 3  # two to warm up, and one to spare
    written = int(bench.seconds_left() / (calls * max(seconds, 1e-6)))
    written = max(1, min(sizes["length"] - 1, written))
    times = bench.times({score: partial(write, written) for score, write in writers.items()}, rounds)
    rows = bench.record.setdefault("decode", [])
    for score in writers:
        row = {"score": score, **times[score], "written": written, **counted[score]}
        row["tokens_per_second"] = round(1000 * sizes["batch"] * written / times[score]["ms"])
        if "dot_product" in counted:
            row["cache_to_dot_product"] = round(row["cache_bytes"] / counted["dot_product"]["cache_bytes"], 3)
            row["faster_than_dot_product"] = round(times["dot_product"]["ms"] / times[score]["ms"], 3)
        rows.append(row)
    bench.save()


def writer(bench, score, d_model, head, layer, length, batch, vocab):
    """(a function that writes so many tokens, what can be counted of it, the seconds that a token takes)."""
    model = LanguageModel(vocab, d_model, head, layer, length, score).to(bench.device, bench.dtype).eval()
    start = torch.randint(vocab, (batch, 1), device=bench.device)
    caches = model.new_caches()
    with torch.no_grad():
        model(start.expand(-1, length), caches=caches)

    def write(written):
        return model.generate(start, written, temperature=0)

    write(2)
    few = min(32, length - 1)
    began = time.perf_counter()
    write(few)[0, -1].item()  # which waits until a GPU has written it
    seconds = (time.perf_counter() - began) / few
    launches = measure.launches(partial(write, 3)) - measure.launches(partial(write, 2))
    return write, {"cache_bytes": sum(cache.bytes for cache in caches), "launches": launches}, seconds


# The suites, and the programs beside this one


def refuse_wrong_names(bench, suite, only):
    """A ValueError if --only names what this suite does not know, or is missing."""
    if suite == "compile":
        known = [job[-1] for job in compile_jobs(bench)]
        if not known:
            raise ValueError(f"compile has nothing to compile on the device {bench.device}.")
        if not only:
            raise ValueError(f"compile needs --only with one of: {'; '.join(known)}.")
    elif suite in ("check", "all"):
        known = all_scores()
    elif only:
        raise ValueError(f"--only is for the suites check and compile, not for {suite}.")
    for name in only or []:
        if name not in known:
            raise ValueError(f"--only is {name}, but {suite} knows: {'; '.join(known)}.")


def run_suites(bench, suites, only=None):
    """The suites one after the other, each with its share of the minutes; only: what is checked, or compiled."""
    if suites == ["compile"]:
        for which in only:
            compile_ahead(bench, which)
        bench.save()
        return
    if suites != ["check"]:
        bench.record["machine"] = measure.machine(bench.device, bench.dtype)
    if suites == ["neighbours"]:
        neighbours.neighbours(bench, neighbours.TINY if bench.sizes is TINY else neighbours.SIZES)
        return
    ahead = bench.cuda and suites[0] == "check" and "attention" in suites  # while the check leaves the GPU half idle
    for number, suite in enumerate(suites):
        bench.start(suites[number:])
        if suite == "check" and bench.cuda and not only:
            jobs = [["check", "--only", score] for score in all_scores()]
            run_beside(bench, jobs + (compile_jobs(bench) if ahead else []), bench.seconds_left())
        elif suite == "check":
            check(bench, only)
        elif suite == "attention":
            attention(bench, compiled_ahead=ahead)
        else:
            bench.attempt(suite, partial({"train": train, "decode": decode}[suite], bench))
        bench.save()


def compile_jobs(bench):
    forms = core_steps(**bench.sizes["attention"][0], causal=False, device=bench.device, dtype=bench.dtype)["compiled"]
    each = [f"{form},{index}" for form in forms for index in range(len(bench.sizes["attention"]))]
    return [["compile", "--only", which] for which in each]


def compile_ahead(bench, which):
    """Compile FlexAttention for one form and size of the suite `attention`; what is compiled stays in a cache on disk.

    The other processes, and this one's successors, find it there.
    """
    form, index = which.rsplit(",", 1)
    sizes = bench.sizes["attention"][int(index)]
    for causal in (False, True):
        groups = core_steps(**sizes, causal=causal, device=bench.device, dtype=bench.dtype)
        what = f"compile {form}, length {sizes['length']}" + ", causal" * causal
        bench.attempt(what, partial(count, bench, groups["compiled"][form], compiled=True))


def run_beside(bench, jobs, seconds):
    """Run this program once for each job, all at the same time, and gather what they recorded. Nothing is timed.

    After `seconds` all have ended: the programs stop 20 seconds before by themselves.
    """
    running = []
    until = time.perf_counter() + seconds
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, options in enumerate(jobs):
                out = Path(folder) / f"{number}.json"
                command = [sys.executable, "-m", "synth_lib.lab", "bench", *options, "--device", str(bench.device)]
                command += ["--out", str(out), "--minutes", str(max(10, seconds - 20) / 60)]
                environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
                running.append((options, out, subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)))
            for options, out, process in running:
                gather(bench, options, out, process, until)
        finally:  # nothing goes on alone if this program is stopped
            for _, _, process in running:
                process.kill()
                process.wait()
    bench.save()


def gather(bench, options, out, process, until):
    """Wait for a program of `run_beside`, at the longest until then, and add what it recorded to the record."""
    try:
        process.wait(max(1, until - time.perf_counter()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        bench.record["skipped"].append(f"{' '.join(options)}: not finished in time")
        status = None
    else:
        status = process.returncode
    result = json.loads(out.read_text(encoding="utf8")) if out.exists() else {"failed": [], "skipped": []}
    for kind in ("failed", "skipped"):
        bench.record[kind] += result[kind]
    crashed = status not in (None, exit_status(result))
    if crashed:
        bench.record["failed"].append({"what": " ".join(options), "error": f"ended with {status}"})
    if "check" in options:
        counted = bench.checked()
        for kind, number in result.get("check", {}).items():
            counted[kind] += number
        counted["failed"] += crashed
