"""What each S costs: milliseconds of forward + backward and peak memory, on one thread (`make bench`).

Every layer is timed in turn, round after round, in one process, so that a slow moment of the machine meets
all of them; the table gives medians. A time is what the processor spent on the step, so that waiting for
other programs does not count. Three columns compare, within the same run:

    / sdpa      over the same four projections with torch's own scaled_dot_product_attention
    / plainest  over the plainest correct code for the same S: a few lines of matmul, with the same weights
    / expanded  where one map serves the batch: over the form that copies R to every sample, then softmax

Peak memory is what torch's allocator hands out above what was there before the step: everything that
forward and backward make, outputs and gradients included, parameters not. torch.profiler counts it, so
every run gives the same; what a matrix product needs inside is not in it.

The row "value and output" is the two projections that every layer has, whatever S: no form can be faster. With
--bare they are left out of all forms, and what differs between the forms shows undiluted.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from math import sqrt
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from synth_lib.attention import Attention

FULL = {"d_model": 512, "head": 8, "length": 256, "batch": 32}
SMALL = {"d_model": 24, "head": 2, "length": 12, "batch": 3}
SHARED = ["random", "fixed_random", "factorized_random"]  # one map serves the batch
FLOOR = "value and output"  # the two projections that every layer has


# The plainest correct code: "batch length d_model" in, scores out, the weights of the library's module.


def split(features, head):
    batch, length, _ = features.shape
    return features.view(batch, length, head, -1).transpose(1, 2)


def plain_dot_product(score, x):
    query, key = split(score.query(x), score.head), split(score.key(x), score.head)
    return query @ key.transpose(-2, -1) / sqrt(score.d_head)


def plain_dense(score, x):
    length = x.shape[1]
    hidden = split(torch.relu(score.hidden(x)), score.head)
    return hidden @ score.weight[:, :, :length] + score.bias[:, None, :length]


def plain_factorized_dense(score, x):
    hidden = split(torch.relu(score.hidden(x)), score.head)
    A = hidden @ score.weight_a + score.bias_a[:, None]
    B = hidden @ score.weight_b + score.bias_b[:, None]
    return (A.repeat(1, 1, 1, score.b) * B.repeat_interleave(score.a, dim=-1))[..., : x.shape[1]]


def plain_random(score, x):
    length = x.shape[1]
    return score.R[None, :, :length, :length]


def plain_factorized_random(score, x):
    length = x.shape[1]
    return (score.R1[:, :length] @ score.R2[:, :length].transpose(-2, -1))[None]


def plain_mixture(score, x):
    random, dot_product = score.parts
    alpha = torch.softmax(score.logits, dim=0)
    return alpha[0] * plain_random(random, x) + alpha[1] * plain_dot_product(dot_product, x)


PLAIN = {
    "dot_product": plain_dot_product,
    "dense": plain_dense,
    "random": plain_random,
    "fixed_random": plain_random,
    "factorized_dense": plain_factorized_dense,
    "factorized_random": plain_factorized_random,
    "random + dot_product": plain_mixture,
}


def finish(layer, scores, x):
    """Softmax, weights times values, heads joined, output projection."""
    if layer.causal:
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    mixed = torch.softmax(scores, dim=-1) @ split(layer.value(x), layer.head)
    return layer.output(mixed.transpose(1, 2).reshape(x.shape))


def library(layer, scores):
    return lambda x: layer(x)[0]


def plainest(layer, scores):
    return lambda x: finish(layer, scores(layer.score, x), x)


def expanded(layer, scores):
    """One map per sample: R is expanded to the batch, then goes through the softmax."""
    return lambda x: finish(layer, scores(layer.score, x).expand(len(x), -1, -1, -1), x)


def sdpa(layer, scores):
    """The same four projections around torch's own attention, which makes no map at all."""

    def forward(x):
        projections = (layer.score.query, layer.score.key, layer.value)
        query, key, value = (split(project(x), layer.head) for project in projections)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=layer.causal)
        return layer.output(mixed.transpose(1, 2).reshape(x.shape))

    return forward


# Measuring


def training_step(forward, layer, x, upstream):
    """A function: one forward and backward pass -> y and the gradients, made anew every time."""
    inputs = [x, *layer.parameters()]

    def step():
        y = forward(x)
        return y, *torch.autograd.grad(y, inputs, upstream)

    return step


def all_steps(d_model, head, length, batch, causal=False, bare=False):
    """{(score, form): training step}, all forms of a score with the same weights."""
    torch.manual_seed(0)
    x = torch.randn(batch, length, d_model, requires_grad=True)
    upstream = torch.randn_like(x)
    steps = {}
    for name, scores in PLAIN.items():
        layer = Attention(d_model, head, length, name, causal=causal)
        if bare:
            layer.value = layer.output = nn.Identity()
        forms = [library, plainest] + [expanded] * (name in SHARED) + [sdpa] * (name == "dot_product")
        for form in forms:
            steps[name, form.__name__] = training_step(form(layer, scores), layer, x, upstream)
    projections = nn.Sequential(nn.Linear(d_model, d_model), nn.Linear(d_model, d_model))
    steps[FLOOR, "library"] = training_step(projections, projections, x, upstream)
    return steps


def check_equal(steps):
    """A fast wrong answer is no answer: all forms of a score give the same outputs and gradients."""
    for (name, form), step in steps.items():
        for ours, theirs in zip(steps[name, "library"](), step(), strict=True):
            error = (ours - theirs).norm().item()
            # The 1e-3 is for a bias on keys: its gradient is 0 but for rounding.
            assert error < 1e-3 * (ours.norm().item() + 1), (
                f"{form} {name} differs from the library by {error:.1e}"
            )


def milliseconds(steps, rounds):
    """{(score, form): median time of a step}, one step of each form a round."""
    times = {key: [] for key in steps}
    for _ in range(rounds):
        for key, step in steps.items():
            start = time.process_time()
            step()
            times[key].append(1000 * (time.process_time() - start))
    return {key: statistics.median(some) for key, some in times.items()}


def peak_bytes(step):
    """Largest total of the allocator during one step, above the total before it."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
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


def main():
    parser = argparse.ArgumentParser(
        description="Time and peak memory of every S, forward + backward on one thread."
    )
    parser.add_argument(
        "--small", action="store_true", help="tiny sizes: does it run? The numbers mean nothing"
    )
    parser.add_argument("--bare", action="store_true", help="without the value and output projections")
    parser.add_argument("--causal", action="store_true", help="with a causal mask, as in a language model")
    parser.add_argument(
        "--rounds", type=int, help="measured steps of each form, of which the median is shown"
    )
    arguments = parser.parse_args()
    rounds = arguments.rounds or (2 if arguments.small else 9)
    sizes = SMALL if arguments.small else FULL

    torch.set_num_threads(1)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler writes a line at every start and stop
    steps = all_steps(**sizes, causal=arguments.causal, bare=arguments.bare)
    check_equal(steps)  # warms up, too
    peaks = {key: peak_bytes(step) for key, step in steps.items()}
    times = milliseconds(steps, rounds)

    said = ", ".join(f"{name} {size}" for name, size in sizes.items())
    said += ", causal" * arguments.causal + ", bare" * arguments.bare
    print(f"{said}, torch {torch.__version__}, one thread, median of {rounds}")
    print_table(times, peaks)


def print_table(times, peaks):
    """One row per form; a ratio is left out where the run has nothing to compare with."""
    line = "{:22} {:9} {:>8} {:>8} {:>11} {:>11} {:>9} {:>11}".format
    print(line("S", "form", "ms", "/ sdpa", "/ plainest", "/ expanded", "peak MiB", "/ expanded"))
    for name, form in times:

        def ratio(measured, other, key=(name, form)):
            return f"{measured[key] / measured[other]:.2f}" if other in measured else ""

        print(
            line(
                name,
                form,
                f"{times[name, form]:.1f}",
                ratio(times, ("dot_product", "sdpa")),
                ratio(times, (name, "plainest")),
                ratio(times, (name, "expanded")),
                f"{peaks[name, form] / 2**20:.1f}",
                ratio(peaks, (name, "expanded")),
            )
        )


if __name__ == "__main__":
    main()
