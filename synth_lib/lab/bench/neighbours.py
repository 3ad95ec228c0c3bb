"""What patterns cost by `sparse.groups` against torch's own full attention, from length 256 to 8,192: chapter 10.

    python -m synth_lib.lab bench neighbours --device cpu --minutes 15 --out runs/speed-neighbours.json

What is timed is one attention layer with the dot product, its projections included. Stride, window and number of
clusters are the whole number nearest to sqrt(length). "sdpa" is the layer without a pattern by torch's
scaled_dot_product_attention, "full" the same with its whole map. Strided and fixed are causal by themselves. Read
top-down: the rows, their forms, what is read from the rows.
"""

import math
import os
from functools import partial

import torch

from synth_lib.attention import Attention
from synth_lib.lab import measure
from synth_lib.lab.train import code_revision
from synth_lib.sparse import groups
from synth_lib.sparse.patterns import Fixed, Strided, Window
from synth_lib.sparse.routed import Routed

SIZES = {"head": 2, "d_head": 32, "batch": 1, "length": [256, 512, 1024, 2048, 4096, 8192], "longest_map": 4096}
TINY = {"head": 2, "d_head": 4, "batch": 2, "length": [16, 32], "longest_map": 16}
CAUSAL = ("window", "strided", "fixed", "routed")
BOTH_WAYS = ("window", "routed")
FIT_FROM = 1024  # below, most of a time is what does not grow with the length


def neighbours(bench, sizes):
    """Rows {"form", "length", "causal", "training", times, "peak_bytes", "operations"} in the record's "neighbours".

    training: forward and backward; else forward alone, without gradients. All forms of one length are timed in turn.
    "load" is how many programs ran or waited, the mean of a minute, before and after: the times are those of the
    processor, but others take its caches.
    """
    rows = bench.record.setdefault("neighbours", [])
    bench.record |= {"sizes": sizes, "code": code_revision()}
    bench.record["load"] = {"cores": os.cpu_count(), "before": os.getloadavg()[0]}
    for length in sizes["length"]:
        for causal, training in ((True, False), (True, True), (False, False)):
            steps, counted = {}, {}
            for form in ("sdpa", "full", *(CAUSAL if causal else BOTH_WAYS)):
                if form == "full" and length > sizes["longest_map"]:
                    continue
                what = f"neighbours {form}, length {length}" + ", causal" * causal + ", training" * training
                ready = partial(count, bench, form, length, causal, training, sizes)
                if result := bench.attempt(what, ready):
                    steps[form], counted[form] = result
            times = bench.times(steps) if steps else {}
            for form in times:
                row = {"form": form, "length": length, "causal": causal, "training": training}
                rows.append(row | times[form] | counted[form])
            bench.record["load"]["after"] = os.getloadavg()[0]
            bench.save()


def count(bench, form, length, causal, training, sizes):
    """(a step, what can be counted of it)."""
    step, counted = make_step(form, length, causal, training, sizes, bench.device, bench.dtype)
    step()
    counted |= {"peak_bytes": measure.peak_bytes(step, bench.device), "operations": measure.operations(step)}
    return step, counted


def make_step(form, length, causal, training, sizes, device, dtype):
    """(a function of no arguments, {"largest": [queries, keys] of the largest cluster}, empty for other forms)."""
    head, d_model = sizes["head"], sizes["head"] * sizes["d_head"]
    layer = Attention(d_model, head, length, "dot_product", causal=causal).to(device, dtype)
    x = torch.randn(sizes["batch"], length, d_model, device=device, dtype=dtype)
    layer.pattern = make_pattern(form, round(math.sqrt(length)), head, sizes["d_head"])
    counted = {}
    if form == "routed":
        layer.pattern.to(device)
        follow(layer, x)
        [found] = groups.groups_of(layer, x)
        counted["largest"] = [found.queries.shape[-1], found.keys.shape[-1]]
    layer.eval()
    if layer.pattern is None:
        forward = partial(layer, x, need_weights=form == "full")
    else:
        forward = partial(groups.attend, layer, x)
    if not training:
        return torch.no_grad()(forward), counted
    x.requires_grad_()
    leaves, upstream = [x, *layer.parameters()], torch.randn_like(x)

    def step():
        y = forward()
        return torch.autograd.grad(y if isinstance(y, torch.Tensor) else y[0], leaves, upstream)

    return step, counted


def make_pattern(form, size, head, d_head):
    patterns = {
        "window": lambda: Window(size), "strided": lambda: Strided(size), "fixed": lambda: Fixed(size),
        "routed": lambda: Routed(d_head, head, size, decay=0.5),
    }  # fmt: skip
    return patterns[form]() if form in patterns else None


@torch.no_grad()
def follow(layer, x, steps=24, part=1024):
    """Let the centroids follow the tokens, a part of them in each step, as they would in training.

    Those that were drawn have clusters of very different sizes, and the largest is what all are filled up to.
    """
    layer.train()
    parts = x.split(part, dim=1)
    for step in range(steps):
        layer(parts[step % len(parts)])


# --- What is read from the rows ---


def series(rows, form, number="ms", *, causal=True, training=False):
    """{length: number} of a form, in the order of the lengths. number: "ms", "peak_bytes" or "operations"."""
    kind = form, causal, training
    found = {row["length"]: row[number] for row in rows if (row["form"], row["causal"], row["training"]) == kind}
    return dict(sorted(found.items()))


def slope(numbers, fit_from=FIT_FROM):
    """The exponent p of number ~ length^p: the line of least squares through the logarithms.

    numbers: {length: number}, as of `series`; lengths below `fit_from` are left out.

    Raises ValueError for less than two lengths.
    """
    points = [(math.log(length), math.log(number)) for length, number in numbers.items() if length >= fit_from]
    if len(points) < 2:
        raise ValueError(f"a slope needs two lengths or more from {fit_from} on, not {len(points)}")
    middle = [sum(coordinates) / len(points) for coordinates in zip(*points, strict=True)]
    away = [(x - middle[0], y - middle[1]) for x, y in points]
    return sum(x * y for x, y in away) / sum(x * x for x, _ in away)


def pays_from(numbers, others):
    """The first length from which on a form needs less than another at every length that both have, or None.

    numbers, others: {length: number}, as of `series`.
    """
    first = None
    for length in sorted(numbers.keys() & others.keys(), reverse=True):
        if numbers[length] >= others[length]:
            break
        first = length
    return first


def print_table(rows):
    """A line a form: milliseconds at each length, the slope, and from where on it needs less time than sdpa."""
    lengths = sorted({row["length"] for row in rows})
    line = ("{:10}" + " {:>9}" * len(lengths) + " {:>7} {:>10}").format
    for causal, training in ((True, False), (True, True), (False, False)):
        kind = {"causal": causal, "training": training}
        title = "forward + backward" if training else "forward"
        print(f"{title}{', causal' * causal}, milliseconds")
        print(line("", *lengths, "slope", "pays from"))
        for form in dict.fromkeys(row["form"] for row in rows):
            own, torchs = series(rows, form, **kind), series(rows, "sdpa", **kind)
            if own:
                fitted = sum(length >= FIT_FROM for length in own) > 1
                times = [f"{own[length]:.1f}" if length in own else "" for length in lengths]
                print(line(form, *times, f"{slope(own):.2f}" if fitted else "", pays_from(own, torchs) or ""))
