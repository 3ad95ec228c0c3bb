"""How time, memory and work are measured. What is measured is a step: a function of no arguments, such as one forward
and backward pass.

A time alone says little. Steps that are to be compared are timed in turn, round after round, in one process, so that
a slow moment of the machine meets all of them. Memory, launches and operations are counted: they are the same in
every run.
"""

import json
import os
import statistics
import tempfile
import time
from contextlib import contextmanager, nullcontext
from math import prod
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count, shape_wrapper

from synth_lib.lab.patience import bar


def times(steps, *, rounds=9, seconds=None, device="cpu", progress=False):
    """How long each step takes: {name: {"ms", "low", "high", "rounds"}}, the median and the quartiles of the rounds.

    "rounds" says how many were made. Where the seconds were up before all of them, "low" and "high" are None: the
    quartiles of one round are one and the same number, and would call any two steps different.

    Each step is called twice until it is warm, one step after the other. Then each round calls all of them in turn.
    One measurement is the mean of as many calls as fit into 5 ms, at least one.

    Args:
        steps: {name: function of no arguments}.
        rounds: how many measurements of each step, at least one.
        seconds: start no new round after so many seconds. The first round is always run.
        device: on CUDA a time is that of the device, between two events. On a CPU it is what the processor spent on
            all threads of the process: waiting for other programs does not count, and to compare with a clock on the
            wall you need `torch.set_num_threads(1)`.
        progress: show a progress bar with the time left, as long as no step is being timed.

    Raises:
        ValueError: rounds is less than 1.
    """
    measured = measurements(steps, rounds=rounds, seconds=seconds, device=device, progress=progress)
    found = {name: spread(milliseconds) | {"rounds": len(milliseconds)} for name, milliseconds in measured.items()}
    for numbers in found.values():
        if numbers["rounds"] < rounds:
            numbers |= {"low": None, "high": None}
    return found


def measurements(steps, *, rounds=9, seconds=None, device="cpu", progress=False):
    """What `times` takes the median of: {name: a list of milliseconds, one for each round that was run}."""
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}, but at least 1 round has to be measured.")
    started = time.perf_counter()
    calls, measured = {}, {name: [] for name in steps}
    with bar((1 + rounds) * len(steps), "measurement") if progress else nullcontext() as shown:
        for name, step in steps.items():
            step()
            # By the clock on the wall: a step that waits spends no time of the processor, but takes it all the same.
            calls[name] = max(1, int(5 / max(_milliseconds(step, 1, device, waits=True), 0.001)))
            if progress:
                shown.update()
        for number in range(rounds):
            if number and seconds is not None and time.perf_counter() - started > seconds:
                break
            for name, step in steps.items():
                measured[name].append(_milliseconds(step, calls[name], device))
                if progress:
                    shown.update()
    return measured


def _milliseconds(step, calls, device, waits=False):
    """The mean time of so many calls of a step; waits: on a CPU by the clock on the wall, not that of the processor."""
    if torch.device(device).type == "cuda":
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream = torch.cuda.current_stream(device)
        start.record(stream)
        for _ in range(calls):
            step()
        stop.record(stream)
        torch.cuda.synchronize(device)
        return start.elapsed_time(stop) / calls
    clock = time.perf_counter if waits else time.process_time
    before = clock()
    for _ in range(calls):
        step()
    return 1000 * (clock() - before) / calls


def spread(milliseconds):
    """The median and the quartiles of a list of milliseconds: {"ms", "low", "high"}; one number has no quartiles."""
    if len(milliseconds) == 1:
        return {"ms": round(milliseconds[0], 4), "low": None, "high": None}
    low, middle, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return {"ms": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


def peak_bytes(step, device="cpu"):
    """The most memory that torch handed out during a step, above what was there before it.

    What a step makes counts, its results and gradients included; what a matrix product needs inside does not, unless
    torch hands it out. Call the step once before: the first call may set up what stays.

    Raises:
        RuntimeError: on a CPU, inside a step whose peak is being counted, or in another torch profiler.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # On a CPU torch's profiler counts, event by event. A second one would end the program.
    if torch.autograd._profiler_enabled():
        raise RuntimeError("peak_bytes was called while torch's profiler runs, and it cannot run twice at a time.")
    with (
        _quiet_profiler(),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
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


@contextmanager
def _quiet_profiler():
    """A `with` block in which torch's profiler does not write a line at every start and stop."""
    is_set = "KINETO_LOG_LEVEL" in os.environ
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        yield
    finally:
        if not is_set:
            os.environ.pop("KINETO_LOG_LEVEL", None)


def machine(device="cpu", dtype=torch.float32):
    """The two numbers of a machine that say how fast a step can be at best.

    Returns:
        "copy_bytes_per_second": of a large copy, bytes read and bytes written.
        "product_operations_per_second": of a large matrix product in this dtype, multiplications and additions.
    """
    size, side = (2**30, 8192) if torch.device(device).type == "cuda" else (2**26, 1024)
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    taken = times({"copy": lambda: target.copy_(source), "product": lambda: left @ right}, device=device)
    return {
        "copy_bytes_per_second": 2 * size / taken["copy"]["ms"] * 1000,
        "product_operations_per_second": 2 * side**3 / taken["product"]["ms"] * 1000,
    }


def launches(step):
    """How many torch operations of a step read or write numbers, in all passes that it does.

    A view or a change of shape is none, and memory that is only reserved is none. On CUDA each launch is about one
    kernel that the processor has to start. A step with code from `torch.compile` cannot be counted: torch refuses to
    run it here, or runs it as if it were not compiled.
    """
    with _Launches() as counted:
        step()
    return counted.number


class _Launches(TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if not function.__name__.startswith(("empty", "new_empty")) and not _is_view(function, arguments, result):
            self.number += 1
        return result


def _is_view(function, arguments, result):
    """Whether all that comes out lies in the memory of what went in, and nothing was written there."""
    if torch.Tag.inplace_view in function.tags:
        return True
    memory = {_address(tensor) for tensor in tree_leaves(arguments) if isinstance(tensor, torch.Tensor)}
    made = [_address(tensor) for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
    return not function._schema.is_mutable and bool(made) and memory.issuperset(made)


def _address(tensor):
    return tensor.untyped_storage()._cdata


def operations(step):
    """How many multiplications and additions the matrix products of a step do, fused attention included.

    Each multiply-add counts as 2. A causal mask changes nothing: what a kernel leaves out is counted too. Fused
    attention does 2 products in its forward pass and 5 in its backward pass, where it makes the scores again.

    Not counted: what multiplies number by number, such as `*` or an outer product, and the products inside an
    operation that torch does not take apart, such as a recurrent layer, `Bilinear`, `cdist` or a sparse product.
    """
    with _Operations() as counted:
        step()
    return counted.number


class _Operations(TorchDispatchMode):
    """torch's own formulas, without its FlopCounterMode, which refuses a gradient of what goes into a module."""

    number = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        formula = _FORMULAS.get(function._overloadpacket)
        if formula is None:
            with self:
                result = function.decompose(*arguments, **options)
            return function(*arguments, **options) if result is NotImplemented else result
        result = function(*arguments, **options)
        self.number += formula(*arguments, **options, out_val=result)
        return result


# Of `left` and `right` they get the shapes, "... row inner" and "... inner column"; what is added comes first.
def _product(_, left, right, *arguments, **options):
    return 2 * prod(left) * right[-1]


def _with_vector(left, right, *arguments, **options):
    return 2 * prod(left)


_aten = torch.ops.aten
_NOT_COUNTED_BY_TORCH = {
    **dict.fromkeys((_aten.addmm_, _aten.baddbmm_, _aten.addbmm, _aten.addbmm_), _product),
    **dict.fromkeys((_aten.mv, _aten.dot, _aten.vdot), _with_vector),
    **dict.fromkeys((_aten.addmv, _aten.addmv_), lambda _, *shapes, **options: _with_vector(*shapes)),
    _aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **options: sdpa_flop_count(*shapes[:3]),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *shapes, **options: sdpa_backward_flop_count(*shapes[:4])
    ),
}
_FORMULAS = {**flop_registry, **{name: shape_wrapper(formula) for name, formula in _NOT_COUNTED_BY_TORCH.items()}}
