"""The forms that are timed compute what they say, and are asked in the right order. No time is tested."""

import copy

import pytest
import torch

from synth_lib import fast
from synth_lib.attention import Attention
from synth_lib.lab import bench
from synth_lib.lab.bench import forms
from synth_lib.lab.bench.plainest import PLAINEST, expanded, knows, plainest
from synth_lib.models import LanguageModel

SIZES = {"head": 2, "d_head": 8, "length": 12, "batch": 3}
CPU = {"device": torch.device("cpu"), "dtype": torch.float64}
COMPILED = {"factorized_dense", "random + dot_product", "random + dense"}


def results(forward, layer, x, upstream):
    y = forward(layer, x)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return [y, *torch.autograd.grad(y, [x, *trained], upstream)]


def test_the_plainest_code_knows_each_s_of_the_paper():
    wanted = "DotProduct Dense Random FactorizedDense FactorizedRandom Mixture"
    assert {kind.__name__ for kind in PLAINEST} == set(wanted.split())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", forms.all_scores())
def test_the_plainest_code_gives_outputs_and_gradients_of_the_library(score, causal):
    length, d_model = 7, 10
    layer = Attention(d_model, 2, 9, score, causal=causal).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()  # biases, too
    x = torch.randn(3, length, d_model, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    expected = results(forms.plain, layer, x, upstream)
    others = [forms.fastest]
    if knows(layer.score):  # of an S of your own there is no plainest code
        others += [plainest] + [expanded] * (not layer.score.reads_tokens)
    for forward in others:
        for ours, theirs in zip(results(forward, layer, x, upstream), expected, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("causal", [False, True])
def test_the_forms_of_dense_attention_alone_agree(causal):
    groups = forms.core_steps(**SIZES, causal=causal, **CPU)
    steps = groups["first"] | groups["others"]

    def gradients(form):
        torch.manual_seed(1)  # the forms of Dense draw the same tensors in the same order
        return steps[form]()()

    for form in ("dense, padded values", "dense, copied keys"):
        torch.testing.assert_close(gradients(form), gradients("dense"))


@pytest.mark.parametrize("make", [forms.core_steps, forms.layer_steps])
def test_on_a_cpu_nothing_is_compiled_and_every_step_gives_gradients(make, monkeypatch):
    groups = make(**SIZES, causal=True, **CPU)
    assert list(groups) == ["first", "compiled", "others"] and not groups["compiled"]
    assert list(groups["first"])[0] == "sdpa"
    differentiated, grad = [], torch.autograd.grad

    def noted(outputs, inputs, upstream):
        assert all(tensor.is_leaf and tensor.requires_grad for tensor in inputs)
        differentiated[:] = inputs
        return grad(outputs, inputs, upstream)

    monkeypatch.setattr(forms.torch.autograd, "grad", noted)
    for form, build in (groups["first"] | groups["others"]).items():
        differentiated.clear()
        gradients = build()()
        shapes = [tensor.shape for tensor in gradients]
        assert shapes and shapes == [tensor.shape for tensor in differentiated], form
        assert all(tensor.isfinite().all() for tensor in gradients) and any(tensor.any() for tensor in gradients)


def test_a_step_of_a_layer_does_the_products_of_its_backward_pass():
    """Value and output: a product each forward and two each backward, of 12 x 3 tokens of 16 features."""
    steps = forms.layer_steps(**SIZES, causal=True, **CPU)["first"]
    assert bench.measure.operations(steps["value and output"]()) == 2 * 3 * 2 * (12 * 3) * 16 * 16 == 110_592
    assert bench.measure.operations(steps["dense"]()) > 110_592


def test_a_training_step_moves_every_parameter_by_the_gradients_of_that_step(monkeypatch):
    """Two steps equal two of AdamW by hand: nothing is left of the first gradient in the second."""
    built = []
    monkeypatch.setattr(bench, "LanguageModel", lambda *sizes: built.append(LanguageModel(*sizes)) or built[-1])
    torch.manual_seed(0)
    run, sizes = bench.Bench("cpu", minutes=60), bench.TINY["train"]
    tokens = torch.randint(sizes["vocab"], (sizes["batch"], sizes["length"] + 1))
    step = bench.training_step(run, "dense", tokens, **sizes)
    (model,) = built
    by_hand = copy.deepcopy(model)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-4)
    for _ in range(2):
        step()
        optimizer.zero_grad()
        logits = by_hand(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    for (name, parameter), expected in zip(model.named_parameters(), by_hand.parameters(), strict=True):
        assert not torch.equal(parameter, before[name]), name
        torch.testing.assert_close(parameter, expected, rtol=0, atol=2e-6)


def test_on_cuda_what_compiles_and_what_is_plain_wait(monkeypatch):
    monkeypatch.setattr(forms, "is_compiled", lambda score, length, device: score in COMPILED)
    cuda = {"device": torch.device("cuda"), "dtype": torch.bfloat16}
    core = forms.core_steps(**SIZES, causal=False, **cuda)
    assert set(core["compiled"]) == COMPILED and "sdpa, cudnn" in core["others"]
    assert {"sdpa", "random", "factorized_random", "dense", "dense + dot_product"} <= set(core["first"])
    layer = forms.layer_steps(**SIZES, causal=False, **cuda)
    assert set(layer["compiled"]) == COMPILED
    assert set(forms.all_scores()[1:]) - COMPILED <= set(layer["first"])
    assert not [form for form in layer["first"] if "," in form]
    assert {"dense, plain", "dense, plainest", "random, expanded"} <= set(layer["others"])
    assert not forms.layer_steps(**SIZES | {"length": 2048}, causal=False, **cuda)["others"]


def test_attention_asks_for_the_important_first_and_compiles_ahead_late(monkeypatch):
    asked = []

    def note(run, suite, make, group, sizes, causal):
        asked.append((suite, group, sizes["length"], causal))

    monkeypatch.setattr(bench, "measure_attention", note)
    monkeypatch.setattr(bench, "run_beside", lambda run, jobs, seconds: asked.append("compiles ahead"))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: 7.0)
    run = bench.Bench("cpu", minutes=5, sizes=bench.FULL)
    bench.attention(run)
    assert asked[:4] == [("core", "first", length, causal) for length in (512, 2048) for causal in (False, True)]
    assert [suite for suite, *_ in asked[::4]] == ["core", "layer"] * 3
    assert [group for _, group, *_ in asked[::8]] == ["first", "compiled", "others"]
    run.cuda, asked = True, []
    bench.attention(run)
    assert asked.index("compiles ahead") == 8 and len(asked) == 25
    asked = []
    bench.attention(run, compiled_ahead=True)
    run.until -= 250  # too little is left to start other programs
    bench.attention(run)
    assert len(asked) == 48 and "compiles ahead" not in asked


def test_each_compiled_form_and_size_is_a_job():
    run = bench.Bench("cpu", minutes=5, sizes=bench.FULL)
    assert bench.compile_jobs(run) == []
    run.device = torch.device("cuda")
    assert {job[-1] for job in bench.compile_jobs(run)} == {f"{form},{index}" for form in COMPILED for index in (0, 1)}


def test_the_suites_share_the_minutes(monkeypatch):
    monkeypatch.setattr(bench.time, "perf_counter", lambda: 7.0)
    run = bench.Bench("cpu", minutes=6)
    run.start(["check", "train", "decode", "attention"])
    assert run.seconds_left() == 120
    run.start(["train", "decode", "attention"])  # the check took no time, so all others have more
    assert run.seconds_left() == 90
    run.start(["attention"])
    assert run.seconds_left() == 360


def test_decode_writes_as_many_tokens_as_the_time_allows(monkeypatch):
    asked = []
    counted = {"cache_bytes": 8, "launches": 3}

    def write(written):
        asked.append(written)
        sum(range(10000))

    monkeypatch.setattr(bench, "writer", lambda run, score, **sizes: (write, counted, 10.0))
    run = bench.Bench("cpu", minutes=50, sizes=bench.TINY)
    bench.decode(run)
    assert {row["written"] for row in run.record["decode"]} == set(asked) == {5}  # 9 S, 6 calls of 50 s each
    monkeypatch.setattr(bench, "writer", lambda run, score, **sizes: (write, counted, 0.001))
    bench.decode(run)
    assert run.record["decode"][-1]["written"] == bench.TINY["decode"]["length"] - 1


def test_the_counted_cost_of_one_map_is_three_products_and_of_sdpa_seven():
    sizes = {"head": 12, "d_head": 64, "length": 512, "batch": 64, "item": 2}
    pairs = 64 * 12 * 512**2
    assert bench.cost("sdpa", **sizes, causal=False)[0] == 7 * 2 * pairs * 64
    assert bench.cost("sdpa", **sizes, causal=True)[0] == 7 * pairs * 64  # half of the pairs
    assert bench.cost("random", **sizes, causal=False)[0] == 3 * 2 * pairs * 64
    assert bench.cost("random", **sizes, causal=True)[0] == 3 * 2 * pairs * 64 * 5 / 8  # four blocks
    assert bench.cost("random", **sizes, causal=True, device="cuda")[0] == 3 * 2 * pairs * 64  # short: no blocks


def test_the_counted_cost_of_values_with_more_features_depends_on_the_device():
    """On a card sdpa takes values of 64 features beside keys of 72; on a CPU they are filled up to 72."""
    sizes = {"head": 12, "d_head": 64, "length": 512, "batch": 64, "causal": False, "item": 2}
    pairs, tokens = 64 * 12 * 512**2, 64 * 12 * 512
    assert bench.cost("dense", **sizes, device="cuda") == (
        2 * pairs * (4 * 72 + 3 * 64),
        2 * tokens * (6 * 72 + 6 * 64),
    )
    padded = 2 * pairs * 7 * 72, 2 * tokens * 12 * 72
    assert bench.cost("dense", **sizes, device="cpu") == padded
    for form in ("dense, padded values", "dense, flash, padded values"):
        assert bench.cost(form, **sizes, device="cuda") == padded
    bias = "random + dot_product as bias"
    assert bench.cost(bias, **sizes, device="cuda")[0] == 7 * 2 * pairs * 64
    assert bench.cost(bias, **sizes, device="cpu")[0] == 6 * 2 * pairs * 64  # nothing is computed again


@pytest.mark.parametrize("length", [12, 300])
def test_the_counted_cost_is_what_each_form_does_on_a_cpu(length):
    sizes = {"head": 2, "d_head": 16, "length": length, "batch": 3, "causal": False}
    groups = forms.core_steps(**sizes, **CPU)
    for form, build in (groups["first"] | groups["others"]).items():
        assert bench.measure.operations(build()) == bench.cost(form, **sizes, item=8)[0], form


@pytest.mark.parametrize("form", ["random", "factorized_random"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_counted_cost_of_one_map_is_what_it_does(causal, form):
    sizes = {"head": 2, "d_head": 8, "length": 300, "batch": 3}  # blocks of 128, 128 and 44
    step = forms.core_steps(**sizes, causal=causal, **CPU)["first"][form]()
    expected = bench.cost(form, **sizes, causal=causal, item=8)[0]
    assert len(fast.blocks(300, fast.block_size(300, "cpu"))) == 3
    assert bench.measure.operations(step) == pytest.approx(expected, rel=1e-12)
