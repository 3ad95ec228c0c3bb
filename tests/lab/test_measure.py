"""What `synth_lib.lab.measure` counts is what a hand counts; what it times, it calls in turn. No time is compared."""

import itertools
import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from synth_lib.lab import measure


class Double(torch.autograd.Function):
    """Two launches forward (add, add), one backward (multiply)."""

    @staticmethod
    def forward(ctx, x):
        return (x + x).add_(0)

    @staticmethod
    def backward(ctx, upstream):
        return upstream * 2


def test_launches_of_a_step_counted_by_hand():
    x = torch.randn(3, 4, requires_grad=True)
    other, upstream = torch.randn(4, 5), torch.randn(15)

    def forward():
        return (x @ other).relu().mT.reshape(15)  # mm, relu, and a copy, because the transposed rows lie apart

    assert measure.launches(forward) == 3
    # Backward: the view costs nothing; relu's threshold, the copy that mm needs or not, mm for x alone.
    assert measure.launches(lambda: torch.autograd.grad(forward(), x, upstream)) == 3 + 2


def test_views_and_reserved_memory_are_no_launches_but_what_writes_or_reads_is():
    x, row = torch.randn(2, 3, 4), torch.randn(1, 12)
    assert measure.launches(lambda: x.flatten(0, 1)[1:].T.expand(7, 4, 5).unflatten(1, (2, 2)).detach()) == 0
    assert measure.launches(lambda: row.squeeze_(0).unsqueeze_(0)) == 0
    assert measure.launches(lambda: (torch.empty(3), torch.empty_like(x), x.new_empty(2))) == 0
    assert measure.launches(lambda: torch.zeros(3)) == 1
    assert measure.launches(lambda: x.view(-1).add_(1)) == 1
    assert measure.launches(lambda: x[0].copy_(x[1])) == 1
    assert measure.launches(lambda: x.contiguous()) == 0
    assert measure.launches(lambda: x.mT.contiguous()) == 1
    assert measure.launches(lambda: x.sum().item()) == 2
    assert measure.launches(lambda: torch.mul(x, x, out=torch.empty_like(x))) == 1


def test_launches_inside_a_custom_function_are_counted_in_both_passes():
    x = torch.randn(3, requires_grad=True)
    assert measure.launches(lambda: Double.apply(x)) == 2
    assert measure.launches(lambda: torch.autograd.grad(Double.apply(x), x, torch.ones(3))) == 2 + 1 + 1  # ones


def test_launches_do_not_change_the_results():
    x = torch.randn(3, 4)
    found = []
    measure.launches(lambda: found.append(x.mT @ x + 1))
    assert torch.equal(found[0], x.mT @ x + 1)


@pytest.mark.parametrize(
    "product, expected",
    [
        (lambda: torch.ones(3, 4) @ torch.ones(4, 5), 2 * 3 * 4 * 5),
        (lambda: torch.ones(2, 3, 4) @ torch.ones(2, 4, 5), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.ones(3, 4) @ torch.ones(4), 2 * 3 * 4),
        (lambda: F.linear(torch.ones(2, 3, 4), torch.ones(5, 4), torch.ones(5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.zeros(3, 5).addmm_(torch.ones(3, 4), torch.ones(4, 5)), 2 * 3 * 4 * 5),
        (lambda: torch.zeros(2, 3, 5).baddbmm_(torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.addbmm(torch.zeros(3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.zeros(3, 5).addbmm_(torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.addmv(torch.zeros(3), torch.ones(3, 4), torch.ones(4)), 2 * 3 * 4),
        (lambda: torch.zeros(3).addmv_(torch.ones(3, 4), torch.ones(4)), 2 * 3 * 4),
        (lambda: torch.dot(torch.ones(4), torch.ones(4)), 2 * 4),
        (lambda: torch.vdot(torch.ones(4), torch.ones(4)), 2 * 4),
        (lambda: torch.ones(3, 4).exp().sum(), 0),
        (lambda: torch.outer(torch.ones(3), torch.ones(4)), 0),
    ],
)
def test_operations_of_products(product, expected):
    assert measure.operations(product) == expected


def test_operations_of_a_backward_pass_are_two_more_products():
    left, right = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    assert measure.operations(lambda: (left @ right).sum().backward()) == 3 * 2 * 3 * 4 * 5


def test_operations_of_a_module_by_either_way_to_its_gradients():
    """Of what goes into it, too: l rows of 4 features times a 4 x 5 matrix, forward and for both gradients."""
    linear, x = torch.nn.Linear(4, 5), torch.randn(3, 4, requires_grad=True)
    expected = 3 * 2 * 3 * 4 * 5
    assert measure.operations(lambda: torch.autograd.grad(linear(x).sum(), [x, *linear.parameters()])) == expected
    assert measure.operations(lambda: linear(x).sum().backward()) == expected
    with torch.inference_mode():
        assert measure.operations(lambda: linear(x)) == expected / 3


@pytest.mark.parametrize("causal", [False, True])
def test_operations_of_fused_attention(causal):
    """Two products forward; backward five, of which two have the features of the values."""
    batch, head, query, key, features, d_head = 2, 3, 7, 7 if causal else 5, 8, 8
    q, k = (torch.randn(batch, head, length, features, requires_grad=True) for length in (query, key))
    v = torch.randn(batch, head, key, d_head, requires_grad=True)

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    pairs = batch * head * query * key
    assert measure.operations(forward) == 2 * pairs * (features + d_head)
    assert measure.operations(lambda: forward().sum().backward()) == 2 * pairs * (4 * features + 3 * d_head)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad():  # the same product by product
        assert measure.operations(forward) == 2 * pairs * (features + d_head)


def test_peak_bytes_of_tensors_of_known_size():
    kept = torch.zeros(1000)  # there before, so it does not count

    def one_after_the_other():
        for _ in range(3):
            torch.zeros(2**18)

    def at_the_same_time():
        return [torch.zeros(2**18) + kept[0] for _ in range(3)]

    def grows_and_shrinks():
        large = torch.zeros(2**20)
        del large
        return torch.zeros(2**10)

    slack = 2**12  # torch aligns, and profiler and indexing make some bytes
    assert 0 <= measure.peak_bytes(one_after_the_other) - 4 * 2**18 < slack
    assert 0 <= measure.peak_bytes(at_the_same_time) - 4 * 4 * 2**18 < slack  # zeros and their sum, once more
    assert 0 <= measure.peak_bytes(grows_and_shrinks) - 4 * 2**20 < slack
    assert measure.peak_bytes(lambda: kept.add_(1)) < slack


def test_peak_bytes_inside_itself_is_refused_and_leaves_no_trace():
    before = os.environ.get("KINETO_LOG_LEVEL")
    with pytest.raises(RuntimeError, match="peak_bytes was called while torch's profiler runs"):
        measure.peak_bytes(lambda: measure.peak_bytes(lambda: torch.zeros(1000)))
    assert measure.peak_bytes(lambda: torch.zeros(1000)) >= 4000  # and it goes on
    assert os.environ.get("KINETO_LOG_LEVEL") == before


class Clock:
    """Two clocks that go on in steps alone: that of the processor, and that on the wall."""

    def __init__(self):
        self.log, self.processor, self.wall = [], 0.0, 100.0

    def process_time(self):
        return self.processor

    def perf_counter(self):
        return self.wall

    def step(self, name, milliseconds, waits=0.0):
        """A step that logs its name, needs the processor for so long, and waits for so long."""

        def step():
            self.log.append(name)
            self.processor += milliseconds / 1000
            self.wall += (milliseconds + waits) / 1000

        return step


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return clock


def test_times_warms_each_step_up_and_then_calls_all_in_turn(clock):
    sizes = {"long": 6, "longer": 12, "short": 0.21}
    found = measure.times({name: clock.step(name, size) for name, size in sizes.items()}, rounds=4)
    assert list(found) == list(sizes)
    assert clock.log[:6] == ["long", "long", "longer", "longer", "short", "short"]
    assert [name for name, _ in itertools.groupby(clock.log[6:])] == ["long", "longer", "short"] * 4
    assert clock.log.count("long") == clock.log.count("longer") == 2 + 4
    assert clock.log.count("short") == 2 + 4 * 23  # as many as fit into 5 ms
    for name, milliseconds in sizes.items():  # of one call
        assert found[name] == {"ms": milliseconds, "low": milliseconds, "high": milliseconds, "rounds": 4}


def test_times_gives_median_and_quartiles_in_order(monkeypatch):
    given = iter([99.0, 7.0, 3.0, 1.0, 2.0, 100.0])  # the first tells how often to call, then five rounds
    monkeypatch.setattr(measure, "_milliseconds", lambda *arguments, **options: next(given))
    assert measure.times({"step": lambda: None}, rounds=5)["step"] == {"ms": 3.0, "low": 2.0, "high": 7.0, "rounds": 5}


def test_times_starts_no_round_after_the_seconds_but_always_one(clock):
    found = measure.times({"step": clock.step("step", 6)}, rounds=50, seconds=0)
    assert len(clock.log) == 3 and found["step"]["rounds"] == 1
    found = measure.times({"step": clock.step("step", 6)}, rounds=50, seconds=0.031)  # warm after 12; at 18, 24, 30
    assert len(clock.log) == 3 + 2 + 4 and found["step"]["rounds"] == 4


def test_times_has_no_quartiles_where_fewer_rounds_were_made_than_asked_for(clock):
    """One round would give twice the same number, and any two steps would count as different."""
    steps = {"one": clock.step("one", 300), "other": clock.step("other", 6)}
    found = measure.times(steps, rounds=5, seconds=0.5)
    assert found == {
        "one": {"ms": 300, "low": None, "high": None, "rounds": 1},
        "other": {"ms": 6, "low": None, "high": None, "rounds": 1},
    }
    found = measure.times(steps, rounds=5, seconds=1.6)  # warm after 612 ms, then 306 ms a round
    assert found["one"] == {"ms": 300, "low": None, "high": None, "rounds": 4}
    found = measure.times(steps, rounds=5, seconds=9)
    assert found["one"] == {"ms": 300, "low": 300, "high": 300, "rounds": 5}


def test_a_step_that_waits_is_called_as_often_as_the_clock_on_the_wall_says_and_costs_no_time(clock):
    found = measure.times({"waits": clock.step("waits", 1, waits=3)}, rounds=3)
    assert len(clock.log) == 2 + 3 and found["waits"]["ms"] == 1


def test_a_progress_bar_reaches_its_end_and_is_in_no_time(clock, monkeypatch):
    shown = []

    @contextmanager
    def bar(total, unit):
        shown.append(total)
        yield SimpleNamespace(update=lambda: (shown.append(1), clock.step("bar", 1000)()))

    monkeypatch.setattr(measure, "bar", bar)
    steps = {"one": clock.step("one", 300), "other": clock.step("other", 6)}
    found = measure.times(steps, rounds=5, progress=True)
    assert shown[0] == sum(shown[1:]) == 12 and [time["ms"] for time in found.values()] == [300, 6]
    shown.clear()
    assert measure.times(steps, rounds=5) == found and shown == []


def test_measurements_are_one_for_each_round_that_was_run():
    assert len(measure.measurements({"step": lambda: None}, rounds=3)["step"]) == 3
    assert len(measure.measurements({"step": lambda: None}, rounds=3, seconds=0)["step"]) == 1


def test_no_round_is_refused():
    with pytest.raises(ValueError, match="rounds is 0, but at least 1"):
        measure.times({"step": lambda: None}, rounds=0)


def test_a_machine_copies_and_multiplies():
    found = measure.machine()
    assert list(found) == ["copy_bytes_per_second", "product_operations_per_second"]
    assert all(1e8 < number < 1e16 for number in found.values())  # between a very slow and an impossible machine
