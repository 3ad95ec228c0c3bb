"""Check and time the fast form of each S: `python -m synth_lib.bench --suite attention --device cuda --minutes 4`.

Suites, or `all` for one after the other:

    check      every fast form equals the plain one: values and gradients, masks, lengths, float64 to bfloat16
    attention  forward + backward of attention alone, and of the whole layer, against scaled_dot_product_attention
    train      a training step of a language model with each S, in tokens a second
    decode     writing text with a cache: its bytes, and tokens a second

All forms are timed in turn, round after round, in one process, so that a slow moment of the machine meets all of
them. The numbers are medians; `low` and `high` are the quartiles. On CUDA a time is that of the device between two
events, on a CPU what the processor spent, on one thread. Results are written as they come. A form that fails is
recorded with its message, and the rest goes on; what the minutes do not reach is recorded as skipped.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import nullcontext
from datetime import date
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from synth_lib import fast, masks
from synth_lib.attention import Attention
from synth_lib.models import LanguageModel
from synth_lib.train import write_whole

SCORES = [
    "dot_product",
    "dense",
    "random",
    "fixed_random",
    "factorized_dense",
    "factorized_random",
    "random + dot_product",
    "dense + dot_product",
    "random + dense",
]
SUITES = ["check", "attention", "train", "decode"]
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
    """One run: where it computes, how long it may, and the record that it writes."""

    def __init__(self, device, minutes, out=None, sizes=None, rounds=None, dtype=None):
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.sizes = sizes or (FULL if self.cuda else ON_A_CPU)
        self.dtype = dtype or (torch.bfloat16 if self.cuda else torch.float32)
        self.rounds = rounds or (9 if self.cuda else 5)
        self.started, self.minutes, self.out = time.perf_counter(), minutes, out
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

    def seconds_left(self):
        return 60 * self.minutes - (time.perf_counter() - self.started)

    def save(self):
        """Write the record, whole or not at all."""
        self.record["seconds"] = round(time.perf_counter() - self.started, 1)
        if self.out:
            text = json.dumps(self.record, indent=1) + "\n"
            write_whole(Path(self.out), lambda file: file.write(text.encode()))

    def attempt(self, what, make, seconds=5):
        """make(), or None if it fails or fewer than `seconds` are left; then the record says why."""
        if self.seconds_left() < seconds:
            self.record["skipped"].append(what)
            return None
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                made = make()
            told = {str(warning.message) for warning in heard if "FlexAttention" in str(warning.message)}
            self.record.setdefault("warnings", []).extend(f"{what}: {message}" for message in sorted(told))
            return made
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            self.record["failed"].append(
                {"what": what, "error": f"{type(error).__name__}: {error}"[:500], "trace": text}
            )
            print(f"failed: {what}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            if self.cuda and "out of memory" in text:
                torch.cuda.empty_cache()
            return None


# Measuring


def seconds_of(step, bench, times=1):
    """Seconds of one call of step, as the mean of `times` in a row."""
    if bench.cuda:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            step()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1000 / times
    before = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - before) / times


def interleaved(steps, bench):
    """{name: {"ms", "low", "high"}} of steps {name: function}, which are warm: median and quartiles."""
    measured = {name: [] for name in steps}
    times = {}
    for name, step in steps.items():
        seconds_of(step, bench)
        times[name] = max(1, min(20, int(0.005 / max(seconds_of(step, bench), 1e-6))))
    for _ in range(bench.rounds):
        for name, step in steps.items():
            measured[name].append(1000 * seconds_of(step, bench, times[name]))
    return {name: _spread(some) for name, some in measured.items()}


def _spread(some):
    low, middle, high = statistics.quantiles(some, n=4, method="inclusive") if len(some) > 1 else some * 3
    return {"ms": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


def peak_bytes(step, bench):
    """The most memory that torch handed out during a step, above what was there before it."""
    if bench.cuda:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    # On a CPU torch's profiler counts, event by event.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it writes a line at every start and stop
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        start = torch.empty(1)  # the first event: it tells the total before the step
        step()
        del start
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf8"))["traceEvents"]
    memory = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    totals = [event["args"]["Total Allocated"] for event in memory]
    return max(totals) - totals[0]


def machine(bench):
    """The two numbers of the card: bytes a second of a large copy, read and written, and operations a second of a
    large matrix product in the dtype of the run."""
    size, side = (2**30, 8192) if bench.cuda else (2**26, 1024)
    source = torch.randn(size // 4, device=bench.device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=bench.device).to(bench.dtype) for _ in range(2))
    steps = {"copy": lambda: target.copy_(source), "product": lambda: left @ right}
    found = interleaved(steps, bench)
    bench.record["machine"] = {
        "copy_bytes_per_second": 2 * size / found["copy"]["ms"] * 1000,
        "product_operations_per_second": 2 * side**3 / found["product"]["ms"] * 1000,
    }


# check


LIMITS = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 1e-2}
MASKS = ["none", "right", "left", "shared"]


def check(bench, scores=SCORES):
    """Every fast form against the plain one in float64: {"what", "error", "plain", "limit", "right"} of each case.

    An error is the distance of all numbers of y, or of a gradient, relative to their size. It may be at most the
    limit of the dtype, or twice that of the plain form in the same dtype.
    """
    cases = bench.record.setdefault("check", [])
    heads, d_head, lengths = (3, 64, (1, 77, 200, 512)) if bench.cuda else (3, 8, (1, 7, 260))
    for score in scores:
        whole = torch.empty(1, 512, 1, device=bench.device)
        compiles = fast.form(make_layer(score, heads, d_head, 512).score, whole) == "score_mod"
        for dtype in LIMITS:
            for length in lengths:
                for mask in MASKS:
                    for causal in (False, True):
                        # A compiled form takes seconds for each new shape: few cases, each kind once.
                        few = {(200, "none", True), (200, "left", True), (512, "none", False)}
                        slow = compiles and length >= 128 and dtype != torch.float64
                        if slow and (length, mask, causal) not in few:
                            continue
                        bias = (length, mask, causal) != (lengths[1], "none", True)
                        what = f"{score}, {dtype}, length {length}, mask {mask}" + ", causal" * causal
                        what += "" if bias else ", without biases"
                        case = partial(
                            check_case, bench, score, dtype, length, mask, causal, bias, head=heads, d_head=d_head
                        )
                        if bench.seconds_left() < 5:
                            bench.record["skipped"].append(f"check {what}, and what comes after it")
                            return
                        found = bench.attempt(f"check {what}", case)
                        if found:
                            cases.append({"what": what, **found})
                bench.save()


def make_layer(score, head, d_head, length, **options):
    return Attention(head * d_head, head, length, score, **options)


def check_case(bench, score, dtype, length, mask, causal, bias, *, head, d_head, batch=3):
    """The largest error of y and of the gradients, of the fast and of the plain form in this dtype."""
    max_length = length if length >= 128 else length + 3
    exact = make_layer(score, head, d_head, max_length, causal=causal, bias=bias).double().to(bench.device)
    with torch.no_grad():
        for parameter in exact.score.parameters():
            parameter.mul_(2)  # no map is nearly uniform
    exact.load_state_dict({name: tensor.to(dtype).double() for name, tensor in exact.state_dict().items()})
    layer = make_layer(score, head, d_head, max_length, causal=causal, bias=bias).to(bench.device, dtype)
    layer.load_state_dict(exact.state_dict())
    x, upstream = (torch.randn(batch, length, head * d_head, device=bench.device, dtype=dtype) for _ in range(2))
    allowed = None
    if mask == "shared":
        allowed = torch.rand(1, 1, length, length, device=bench.device) > 0.4
    elif mask != "none":
        allowed = masks.padding(torch.tensor([length, length // 2, 0]), length, mask).to(bench.device)

    def results(layer, dtype, need_weights):
        poison(bench)
        given = x.to(dtype).requires_grad_()
        y, _ = layer(given, allowed, need_weights=need_weights)
        trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(y, [given, *trained], upstream.to(dtype), allow_unused=False)
        return [tensor.double() for tensor in (y, *gradients)]

    wanted = results(exact, torch.float64, True)
    size = max(tensor.norm().item() for tensor in wanted)

    def error(found):
        """A gradient that is 0 but for rounding, as that of a bias of keys, counts beside the largest one."""
        some = [
            (one - other).norm().item() / (other.norm().item() + 0.1 * size)
            for one, other in zip(found, wanted, strict=True)
        ]
        return max(some) if all(tensor.isfinite().all() for tensor in found) else float("inf")

    found, plain = error(results(layer, dtype, False)), error(results(layer, dtype, True))
    limit = max(LIMITS[dtype], 2 * plain)
    return {"error": found, "plain": plain, "limit": limit, "right": found <= limit}


def poison(bench):
    """Fill memory that is free again with NaN: a number that a form forgets to write does not stay unseen."""
    for size in (2**8, 2**14, 2**18, 2**20, 2**22):
        torch.full((size,), float("nan"), device=bench.device)


# attention


def attention(bench):
    """Times of attention alone ("core") and of the whole layer, for every size, full and causal."""
    for sizes in bench.sizes["attention"]:
        for causal in (False, True):
            said = f"length {sizes['length']}" + ", causal" * causal
            for suite, make in (("core", core_steps), ("layer", layer_steps)):
                measure = partial(measure_attention, bench, suite, make, sizes, causal, said)
                bench.attempt(f"{suite}, {said}", measure, seconds=15)
                bench.save()


def measure_attention(bench, suite, make, sizes, causal, said):
    steps, peaks = {}, {}
    for name, build in make(bench, **sizes, causal=causal).items():
        step = bench.attempt(f"{suite} {name}, {said}", partial(warm, build), seconds=12)
        if step:
            steps[name] = step
            peaks[name] = peak_bytes(step, bench)
    times = interleaved(steps, bench)
    rows = bench.record.setdefault(suite, [])
    for name in steps:
        row = {"form": name, **sizes, "causal": causal, **times[name], "peak_bytes": peaks[name]}
        if "sdpa" in times:
            row["faster_than_sdpa"] = round(times["sdpa"]["ms"] / times[name]["ms"], 3)
            row["peak_to_sdpa"] = round(peaks[name] / max(1, peaks["sdpa"]), 3)
        if suite == "core":
            row["operations"], row["bytes"] = cost(name, **sizes, causal=causal, item=bench.dtype.itemsize)
        rows.append(row)
    del steps
    if bench.cuda:
        torch.cuda.empty_cache()


def warm(build):
    step = build()
    for _ in range(2):
        step()
    return step


def core_steps(bench, head, d_head, length, batch, causal):
    """{form: function that makes its training step}: from the projected features to what the output layer reads.

    The inputs are as the projections lay them out in memory.
    """
    kind = {"device": bench.device, "dtype": bench.dtype}

    def parameter(*shape, scale=1.0):
        return (torch.randn(*shape, **kind) * scale).requires_grad_()

    def tokens(features=d_head):
        """A view "batch head length feature" of "batch length (head feature)", and the leaf itself."""
        leaf = parameter(batch, length, head * features)
        return leaf.unflatten(-1, (head, features)).transpose(1, 2), leaf

    def step(forward, *leaves):
        upstream = torch.randn_like(forward())
        return lambda: torch.autograd.grad(forward(), leaves, upstream)

    def sdpa(backend=None):
        (query, q), (key, k), (value, v) = tokens(), tokens(), tokens()
        return step(lambda: by(backend, query, key, value, d_head**-0.5), q, k, v)

    def by(backend, query, key, value, scale=1.0):
        """torch's attention by one of its kernels, or by that which it chooses."""
        with sdpa_kernel(getattr(SDPBackend, backend)) if backend else nullcontext():
            return fast.attend(query, key, value, None, causal, scale)

    def values_of_one_map():
        leaf = parameter(head * d_head, batch * length)
        return leaf.view(head, d_head, batch, length).permute(2, 0, 3, 1), leaf

    def random():
        R, (value, v) = parameter(head, length, length), values_of_one_map()
        return step(lambda: fast.one_map(R, None, value, None, causal), R, v)

    def random_expanded():
        R, (value, v) = parameter(1, head, length, length), tokens()
        return step(lambda: plain_core(R.expand(batch, -1, -1, -1), value, causal), R, v)

    def factorized_random():
        R1, R2, (value, v) = parameter(head, length, 8), parameter(head, length, 8), values_of_one_map()
        return step(lambda: fast.one_map(R1, R2, value, None, causal), R1, R2, v)

    def factorized_random_as_keys():
        R1, R2, (value, v) = parameter(1, head, length, 8), parameter(1, head, length, 8), tokens()

        def forward():
            query, key = (F.pad(R, (0, d_head - 8)).expand(batch, -1, -1, -1) for R in (R1, R2))
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=1.0)

        return step(forward, R1, R2, v)

    def dense(more=0, backend=None, pad_value=False, copy_keys=False):
        """more: features beyond d_head, for b2; pad_value: values of as many features, of which some are cut off;
        copy_keys: a copy of the keys for every sample, not a view."""
        (query, q), W2, (value, v) = tokens(d_head + more), parameter(1, head, length, d_head + more), tokens()

        def forward():
            padded = F.pad(value, (0, more)) if pad_value else value
            keys = W2.expand(batch, -1, -1, -1)
            return by(backend, query, keys.contiguous() if copy_keys else keys, padded)[..., :d_head]

        return step(forward, q, W2, v)

    def dense_and_dot_product(more=0):
        (q1, leaf), (k1, k), (value, v), (q2, h) = tokens(), tokens(), tokens(), tokens(d_head + more)
        W2 = parameter(1, head, length, d_head + more)

        def forward():
            query = torch.cat([q1, q2], dim=-1)
            key = torch.cat([k1, W2.expand(batch, -1, -1, -1)], dim=-1)
            return fast.attend(query, key, value, None, causal)

        return step(forward, leaf, k, h, W2, v)

    def factors():
        tile = next(size for size in range(int(length**0.5), 0, -1) if length % size == 0)
        return tokens(tile), tokens(length // tile)

    def by_score_mod(query, key, tables, products, value):
        blocks = fast.causal_blocks(length, bench.device) if causal else None
        wide = [(A.float().contiguous(), B.float().contiguous()) for A, B in products]
        return compiled(bench)(
            query.contiguous(), key.contiguous(), [table.float() for table in tables], wide, value, None, blocks
        )

    def factorized_dense():
        (A, a), (B, b), (value, v) = *factors(), tokens()

        def forward():
            query, key = (torch.zeros(batch, head, length, 16, **kind) for _ in range(2))
            return by_score_mod(query, key, [], [(A, B)], value)

        return step(forward, a, b, v)

    def factorized_dense_plain():
        (A, a), (B, b), (value, v) = *factors(), tokens()
        return step(lambda: plain_core((B[..., :, None] * A[..., None, :]).flatten(-2), value, causal), a, b, v)

    def random_and_dot_product():
        (query, q), (key, k), (value, v), R = tokens(), tokens(), tokens(), parameter(head, length, length)
        return step(lambda: by_score_mod(query, key, [R], [], value), q, k, v, R)

    def random_and_dot_product_as_bias():
        (query, q), (key, k), (value, v), R = tokens(), tokens(), tokens(), parameter(1, head, length, length)

        def forward():
            bias = R.masked_fill(~masks.causal(length, bench.device), -1e4) if causal else R
            return F.scaled_dot_product_attention(query, key, value, attn_mask=bias.expand(batch, -1, -1, -1))

        return step(forward, q, k, v, R)

    def random_and_dense():
        (query, q), W2, (value, v) = tokens(d_head + 8), parameter(1, head, length, d_head + 8), tokens()
        R = parameter(head, length, length)
        return step(lambda: by_score_mod(query, W2.expand(batch, -1, -1, -1), [R], [], value), q, W2, v, R)

    found = {
        "sdpa": sdpa,
        "random": random,
        "factorized_random": factorized_random,
        "factorized_random as keys": factorized_random_as_keys,
        "dense": partial(dense, 8),
        "dense, padded values": partial(dense, 8, pad_value=True),
        "dense without bias": dense,
        "dense, copied keys": partial(dense, 8, copy_keys=True),
        "dense + dot_product": partial(dense_and_dot_product, 8),
        "dense + dot_product without bias": dense_and_dot_product,
        "random + dot_product as bias": random_and_dot_product_as_bias,
        "random expanded, plain": random_expanded,
        "factorized_dense, plain": factorized_dense_plain,
    }
    if bench.cuda:
        found |= {
            "factorized_dense": factorized_dense,
            "random + dot_product": random_and_dot_product,
            "random + dense": random_and_dense,
            "sdpa, flash": partial(sdpa, "FLASH_ATTENTION"),
            "sdpa, cudnn": partial(sdpa, "CUDNN_ATTENTION"),
            "dense, cudnn": partial(dense, 8, "CUDNN_ATTENTION"),
            "dense, efficient": partial(dense, 8, "EFFICIENT_ATTENTION"),
            "dense, flash, padded values": partial(dense, 8, "FLASH_ATTENTION", True),
        }
    return found


def compiled(bench):
    """FlexAttention compiled, or an error that says why not."""
    function = fast.compiled_flex()
    if function is None:
        raise RuntimeError("torch cannot compile FlexAttention here")
    return function


def plain_core(scores, value, causal):
    if causal:
        return masks.masked_softmax(scores, masks.causal(scores.shape[-1], scores.device)) @ value
    return scores.softmax(dim=-1) @ value


def layer_steps(bench, head, d_head, length, batch, causal):
    """{form: function that makes its training step}: the whole layer with its projections, fast and plain.

    The baseline "sdpa" is the dot product in its fast form: four projections around torch's own attention.
    """

    def step(score, need_weights, **options):
        layer = make_layer(score, head, d_head, length, causal=causal, **options).to(bench.device, bench.dtype)
        x = torch.randn(batch, length, head * d_head, device=bench.device, dtype=bench.dtype, requires_grad=True)
        upstream = torch.randn_like(x)
        inputs = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
        return lambda: torch.autograd.grad(layer(x, need_weights=need_weights)[0], inputs, upstream)

    found = {"sdpa": partial(step, "dot_product", False)}
    for score in SCORES:
        if score != "dot_product":
            found[score] = partial(step, score, False)
        if score == "dense":
            found["dense without bias"] = partial(step, score, False, bias=False)
        if not bench.cuda or length <= 512:
            found[f"{score}, plain"] = partial(step, score, True)
    return found


def cost(form, head, d_head, length, batch, causal, item):
    """Operations and bytes of a step, forward and backward: (operations, bytes).

    An operation is a multiplication or an addition of a matrix product; a causal form does half of them. Bytes:
    each tensor read and written once in each pass, in numbers of `item` bytes; parameters only where they are maps.
    A fused kernel computes the scores again in its backward pass: 7 products, of which a map needs 3.
    """
    pairs = batch * head * length**2 * (0.5 if causal else 1)
    one = batch * head * length
    maps = head * length**2
    features = {"dense": d_head + 8, "dense + dot_product": 2 * d_head + 8, "random + dense": d_head + 8}
    features |= {"dense + dot_product without bias": 2 * d_head, "factorized_dense": 16}
    width = features.get(form.split(",")[0], d_head)
    if form in ("random", "factorized_random"):
        blocks = len(fast.blocks(length))
        pairs = batch * head * length**2 * ((blocks + 1) / (2 * blocks) if causal else 1)
        return 6 * pairs * d_head, item * (6 * one * d_head + 8 * maps)
    if "plain" in form:  # nothing is left out; the map is written and read about 10 times
        return 6 * batch * maps * d_head, item * (6 * one * d_head + 10 * batch * maps)
    fused = 2 * pairs * (4 * width + 3 * d_head), item * one * (6 * width + 6 * d_head)
    if form.startswith("random +"):
        return fused[0], fused[1] + item * 3 * maps
    return fused


# train


def train(bench):
    """Tokens a second of a training step: forward, loss, backward, AdamW, as in `train.py`; its speed beside sdpa."""
    sizes = bench.sizes["train"]
    tokens = torch.randint(sizes["vocab"], (sizes["batch"], sizes["length"] + 1), device=bench.device)
    steps, peaks = {}, {}
    for score in SCORES:
        build = partial(training_step, bench, score, tokens, **sizes)
        step = bench.attempt(f"train {score}", partial(warm, build), seconds=12)
        if step:
            steps[score], peaks[score] = step, peak_bytes(step, bench)
    times = interleaved(steps, bench)
    rows = bench.record.setdefault("train", [])
    for score in steps:
        row = {"score": score, **times[score], "peak_bytes": peaks[score]}
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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# decode


def decode(bench):
    """Greedy writing with a cache, to max_length: tokens a second, and the bytes that the caches hold at the end."""
    sizes = bench.sizes["decode"]
    steps, kept = {}, {}
    for score in SCORES:
        build = partial(decoding_step, bench, score, **sizes)
        made = bench.attempt(f"decode {score}", build, seconds=12)
        if made:
            steps[score], kept[score] = made
    rounds, bench.rounds = bench.rounds, 3
    measured = {score: [] for score in steps}
    for _ in range(bench.rounds):
        for score, step in steps.items():
            if bench.seconds_left() > 5 or not measured[score]:
                measured[score].append(1000 * seconds_of(step, bench))
    bench.rounds = rounds
    rows = bench.record.setdefault("decode", [])
    times = {score: _spread(some) for score, some in measured.items()}
    for score in steps:
        row = {"score": score, **times[score], "cache_bytes": kept[score]}
        row["tokens_per_second"] = round(1000 * sizes["batch"] * (sizes["length"] - 1) / times[score]["ms"])
        if "dot_product" in kept:
            row["cache_to_dot_product"] = round(kept[score] / kept["dot_product"], 3)
            row["faster_than_dot_product"] = round(times["dot_product"]["ms"] / times[score]["ms"], 3)
        rows.append(row)
    bench.save()


def decoding_step(bench, score, d_model, head, layer, length, batch, vocab):
    """(a function that writes length - 1 tokens, the bytes of full caches)."""
    model = LanguageModel(vocab, d_model, head, layer, length, score).to(bench.device, bench.dtype).eval()
    start = torch.randint(vocab, (batch, 1), device=bench.device)
    caches = model.new_caches()
    with torch.no_grad():
        model(start.expand(-1, length), caches=caches)
    model.generate(start, min(8, length - 1), temperature=0)
    return lambda: model.generate(start, length - 1, temperature=0), sum(cache.bytes for cache in caches)


# The command


def compile_ahead(bench, which):
    """Compile FlexAttention for one form and size of the suite `attention`; what is compiled stays in a cache on disk.

    The other processes, and this one's successors, find it there.
    """
    form, index = which.rsplit(",", 1)
    sizes = bench.sizes["attention"][int(index)]
    for causal in (False, True):
        build = core_steps(bench, **sizes, causal=causal)[form]
        bench.attempt(f"compile {form}, length {sizes['length']}" + ", causal" * causal, partial(warm, build))


def side_by_side(bench, jobs, seconds):
    """Run this program once for each job, all at the same time, and gather what they recorded. Nothing is timed."""
    running = []
    with tempfile.TemporaryDirectory() as folder:
        for number, options in enumerate(jobs):
            out = Path(folder) / f"{number}.json"
            command = [sys.executable, "-m", "synth_lib.bench", "--device", bench.device.type, "--out", str(out)]
            command += ["--minutes", str(seconds / 60), *options]
            environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
            running.append((options, out, subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)))
        until = time.perf_counter() + seconds + 20  # until the children have started
        for options, out, process in running:
            try:
                process.wait(max(1, until - time.perf_counter()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                bench.record["skipped"].append(f"{' '.join(options)}: not finished after {seconds:.0f} s")
            found = json.loads(out.read_text(encoding="utf8")) if out.exists() else {"failed": [], "skipped": []}
            if not out.exists():
                bench.record["failed"].append({"what": " ".join(options), "error": f"ended with {process.returncode}"})
            for kind in ("check", "failed", "skipped", "warnings"):
                bench.record.setdefault(kind, []).extend(found.get(kind, []))
    bench.save()


def print_table(record):
    """What was measured, the important last."""
    versions = record["versions"]
    print(f"{record['card']}, torch {versions['torch']}, {record['dtype']}, {record['date']}, {record['seconds']} s")
    if "machine" in record:
        copy, product = record["machine"].values()
        print(f"copy {copy / 1e9:.0f} GB/s, matrix product {product / 1e12:.2f} TFLOP/s")
    for suite in ("layer", "core"):
        rows = record.get(suite, [])
        line = "{:34} {:>6} {:>6} {:>9} {:>17} {:>7} {:>9} {:>7}".format
        if rows:
            print(line(suite, "length", "causal", "ms", "quartiles", "/ sdpa", "peak MiB", "/ sdpa"))
        for row in rows:
            print(
                line(
                    row["form"],
                    row["length"],
                    "yes" if row["causal"] else "",
                    f"{row['ms']:.3f}",
                    f"{row['low']:.3f}-{row['high']:.3f}",
                    row.get("faster_than_sdpa", ""),
                    f"{row['peak_bytes'] / 2**20:.1f}",
                    row.get("peak_to_sdpa", ""),
                )
            )
    line = "{:34} {:>12} {:>9} {:>17} {:>14} {:>12}".format
    for suite, memory, against in (("train", "peak_bytes", "sdpa"), ("decode", "cache_bytes", "dot_product")):
        rows = record.get(suite, [])
        if rows:
            print(line(suite, "tokens/s", "ms", "quartiles", f"/ {against}", memory.replace("_", " ")))
        for row in rows:
            spread = f"{row['low']:.1f}-{row['high']:.1f}"
            ratio = row.get(f"faster_than_{against}", "")
            print(line(row["score"], row["tokens_per_second"], f"{row['ms']:.1f}", spread, ratio, row[memory]))
    if "check" in record:
        wrong = [case for case in record["check"] if not case["right"]]
        print(f"check: {len(record['check'])} cases, {len(wrong)} wrong")
        for case in wrong[:20]:
            print(f"  wrong: {case['what']}: error {case['error']:.1e}, limit {case['limit']:.1e}")
    for kind in ("warnings", "failed", "skipped"):
        some = record.get(kind, [])
        if some:
            print(f"{kind}: {len(some)}")
        for entry in some[:20]:
            print(f"  {entry if isinstance(entry, str) else entry['what'] + ': ' + entry['error'][:150]}")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m synth_lib.bench", description="Check and time the fast form of each S."
    )
    parser.add_argument("--suite", choices=[*SUITES, "compile", "all"], default="attention", help="what to do")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--minutes", type=float, default=5, help="start nothing new after so long")
    parser.add_argument("--out", help="the JSON file to write")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: does it run? The numbers mean nothing")
    parser.add_argument("--rounds", type=int, help="measured rounds, of which the median is shown")
    parser.add_argument("--only", action="append", help="check: one S, may be repeated; compile: form,size")
    arguments = parser.parse_args()
    bench = Bench(
        arguments.device, arguments.minutes, arguments.out, TINY if arguments.tiny else None, arguments.rounds
    )
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # many compilers in the background would be timed too
    torch.manual_seed(0)
    suites = SUITES if arguments.suite == "all" else [arguments.suite]
    if arguments.suite == "compile":
        for which in arguments.only:
            compile_ahead(bench, which)
        bench.save()
        return
    if "check" in suites and bench.cuda and not arguments.only:
        forms = ["factorized_dense", "random + dot_product", "random + dense"]
        jobs = [["--suite", "check", "--only", score] for score in SCORES]
        if "attention" in suites:
            jobs += [["--suite", "compile", "--only", f"{form},{index}"] for form in forms for index in (0, 1)]
        side_by_side(bench, jobs, seconds=0.4 * 60 * arguments.minutes)
    elif "check" in suites:
        check(bench, arguments.only or SCORES)
    if {"attention", "train", "decode"} & set(suites):
        bench.attempt("machine", partial(machine, bench))
    for suite, run in (("attention", attention), ("train", train), ("decode", decode)):
        if suite in suites:
            bench.attempt(suite, partial(run, bench))
            bench.save()
    bench.save()
    print_table(bench.record)


if __name__ == "__main__":
    main()
