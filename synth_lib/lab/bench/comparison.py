"""Does every fast form equal the plain one? The suite `check` of `bench`, on the CPU or, with its kernels, on CUDA."""

from functools import partial

import torch

from synth_lib import masks
from synth_lib.lab.bench.forms import all_scores, is_compiled, make_layer

LIMITS = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 1e-2}
MASKS = ["none", "right", "left", "shared"]


def check(bench, scores=None):
    """Every fast form against the plain one in float64: in the record the "cases" that were compared, how many of them
    are "wrong", and how many "failed" before; what is wrong or failed is among the record's failed.

    An error is the distance of all numbers of y, or of a gradient, relative to their size. It may be at most the
    limit of the dtype, or twice that of the plain form in the same dtype.
    """
    counted = bench.checked()
    for score, dtype, length, mask, causal, bias in cases(scores or all_scores(), bench.device):
        what = f"check {score}, {dtype}, length {length}, mask {mask}" + ", causal" * causal
        what += "" if bias else ", without biases"
        if bench.seconds_left() < 5:
            bench.record["skipped"].append(f"{what}, and what comes after it")
            break
        case = partial(check_case, score, dtype, length, mask, causal, bias, device=bench.device)
        result = bench.attempt(what, case, seconds=0)
        if result is None:
            counted["failed"] += 1
        else:
            counted["cases"] += 1
            counted["wrong"] += not result["right"]
            if not result["right"]:
                error = f"wrong: error {result['error']:.1e}, limit {result['limit']:.1e}, plain {result['plain']:.1e}"
                bench.record["failed"].append({"what": what, "error": error})
        bench.save()


def cases(scores, device):
    """(score, dtype, length, mask, causal, bias) of each case. Long ones take the forms that short ones do not."""
    lengths = (1, 77, 200, 512, 1100) if device.type == "cuda" else (1, 7, 260)
    for score in scores:
        compiled = is_compiled(score, 512, device)
        for dtype in LIMITS:
            for length in lengths:
                for mask in MASKS:
                    for causal in (False, True):
                        # A compiled form takes seconds for each new shape: few cases, each kind once.
                        few = {(200, "none", True), (200, "left", True), (512, "none", False)}
                        slow = compiled and length >= 128 and dtype != torch.float64
                        if not slow or (length, mask, causal) in few:
                            bias = (length, mask, causal) != (lengths[1], "none", True)
                            yield score, dtype, length, mask, causal, bias


def check_case(score, dtype, length, mask, causal, bias, *, device, head=3, batch=3):
    """The largest "error" of y and of the gradients, and "plain", that of the plain form; "right" or not?"""
    d_head = 64 if device.type == "cuda" else 8
    max_length = length if length >= 128 else length + 3
    exact = make_layer(score, head, d_head, max_length, causal=causal, bias=bias).double().to(device)
    with torch.no_grad():
        for parameter in exact.score.parameters():
            parameter.mul_(2)  # no map is nearly uniform
    exact.load_state_dict({name: tensor.to(dtype).double() for name, tensor in exact.state_dict().items()})
    layer = make_layer(score, head, d_head, max_length, causal=causal, bias=bias).to(device, dtype)
    layer.load_state_dict(exact.state_dict())
    x, upstream = (torch.randn(batch, length, head * d_head, device=device, dtype=dtype) for _ in range(2))
    allowed = None
    if mask == "shared":
        allowed = torch.rand(1, 1, length, length, device=device) > 0.4
    elif mask != "none":
        allowed = masks.padding(torch.tensor([length, length // 2, 0]), length, mask).to(device)

    def results(layer, dtype, need_weights):
        poison(device)
        inputs = x.to(dtype).requires_grad_()
        y, _ = layer(inputs, allowed, need_weights=need_weights)
        trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(y, [inputs, *trained], upstream.to(dtype))
        return [tensor.double() for tensor in (y, *gradients)]

    wanted = results(exact, torch.float64, True)
    size = max(tensor.norm().item() for tensor in wanted)

    def error(tensors):
        """A gradient that is 0 but for rounding, as that of a bias of keys, counts beside the largest one."""
        errors = [
            (one - other).norm().item() / (other.norm().item() + 0.1 * size)
            for one, other in zip(tensors, wanted, strict=True)
        ]
        return max(errors) if all(tensor.isfinite().all() for tensor in tensors) else float("inf")

    fast, plain = error(results(layer, dtype, False)), error(results(layer, dtype, True))
    limit = max(LIMITS[dtype], 2 * plain)
    return {"error": fast, "plain": plain, "limit": limit, "right": fast <= limit}


def poison(device):
    """Fill memory that is free again with NaN: a number that a form forgets to write does not stay unseen."""
    for size in (2**8, 2**14, 2**18, 2**20, 2**22):
        torch.full((size,), float("nan"), device=device)
