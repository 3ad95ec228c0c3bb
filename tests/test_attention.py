"""The one layer: its contract on every S, against loops over the equations and by its properties."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from synth_lib import masks
from synth_lib.attention import Attention, Cache, CrossAttention
from synth_lib.scores import Dense, Random, Score
from tests.helpers import properties, reference
from tests.helpers.properties import (
    ALL,
    BATCH,
    D_HEAD,
    D_MODEL,
    HEAD,
    LENGTH,
    MAX_LENGTH,
    RANDOM,
    SINGLE,
    build,
    example,
    refuses,
    with_large_scores,
)

LENGTHS = [LENGTH, 2, 0]  # real tokens of each sentence where there is padding


def left_padding_and_causal(batch, head, query, key):
    return LENGTH - LENGTHS[batch] <= key <= query


MASKS = {  # name: (options of the layer, mask, may attend)
    "none": ({}, None, reference.allow_all),
    "left padding and causal": (
        {"causal": True},
        masks.padding(LENGTHS, LENGTH, "left"),
        left_padding_and_causal,
    ),
    "one per head": (
        {},
        torch.eye(HEAD, LENGTH).bool()[:, None].logical_not(),
        lambda batch, head, query, key: head != key,
    ),
}


@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize("score", [*SINGLE, "random + dot_product"])
def test_values_and_gradients_equal_the_loops(score, mask_name):
    options, mask, may_attend = MASKS[mask_name]
    layer, x = with_large_scores(build(score, **options)), example().requires_grad_()
    inputs = [x, *layer.parameters()]
    for_y, for_weights = torch.randn_like(x), torch.randn(BATCH, HEAD, LENGTH, LENGTH).double()

    def gradients(y, weights):
        return torch.autograd.grad((y * for_y).sum() + (weights * for_weights).sum(), inputs)

    fast, slow = layer(x, mask), reference.attention(layer, x, may_attend)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(gradients(*fast), gradients(*slow))


@pytest.mark.parametrize("score", SINGLE)
def test_values_equal_the_loops_without_biases_and_with_one_head(score):
    torch.manual_seed(0)
    layer = Attention(D_MODEL, 1, MAX_LENGTH, score, bias=False).double()
    assert not [name for name, _ in layer.named_parameters() if "bias" in name]
    torch.testing.assert_close(layer(example()), reference.attention(layer, example()))


@pytest.mark.parametrize("score", ALL)
@pytest.mark.parametrize(
    "property_holds",
    [
        properties.rows_are_a_softmax_over_the_keys,
        properties.map_depends_on_what_table_1_says,
        properties.a_sample_never_depends_on_the_rest_of_the_batch,
        properties.the_future_never_leaks,
        properties.padding_is_ignored,
        properties.empty_rows_are_zero_and_finite,
        properties.every_parameter_learns,
        properties.state_survives_a_reload,
    ],
)
def test_property_of_every_score(property_holds, score):
    property_holds(score)


@pytest.mark.parametrize("score", SINGLE)
@pytest.mark.parametrize(
    "property_holds", [properties.parameters_meet_table_1, properties.multiply_adds_meet_the_formula]
)
def test_cost(property_holds, score):
    property_holds(score)


@pytest.mark.parametrize(
    ("score", "options", "parameters", "cost"),
    [
        ("dot_product", {}, 3_148_800, 205_520_896),
        ("dense", {}, 2_132_000, 138_412_032),
        ("random", {}, 1_050_624, 69_206_016),
        ("fixed_random", {}, 1_049_600, 69_206_016),
        ("factorized_random", {"rank": 8}, 1_050_112, 69_214_208),
        (
            "factorized_dense",
            {"a": 4, "b": 8},
            2_111_500,
            137_103_360 - 2 * 32 * 32,
        ),  # but for A times B itself
        ("random + dot_product", {}, 3_149_824 + 2, 205_520_896),
    ],
)
def test_cost_at_the_size_of_a_published_listing(score, options, parameters, cost):
    """d_model 1024, length 32, batch 2, one head, with biases; the listing has no output projection."""
    with torch.device("meta"):  # sizes only, no numbers
        layer = Attention(1024, 1, 32, score, **options)
        x = torch.empty(2, 32, 1024)
    assert properties.trained(layer) - properties.trained(layer.output) == parameters
    assert properties.multiply_adds(layer, x) - 2 * 32 * 1024**2 == cost


@pytest.mark.parametrize("score", ["dense", "factorized_dense"])
def test_the_hidden_layer_bends(score):
    properties.hidden_layer_bends(score)


def test_only_the_dot_product_is_scaled():
    properties.only_the_dot_product_is_scaled()


def test_rows_are_queries():
    properties.rows_are_queries()


def test_hand_made_starts_give_their_map():
    properties.hand_made_starts_give_their_map()


def test_scores_are_mixed_inside_one_softmax():
    layer, x = with_large_scores(build("random + dot_product")), example()
    mixture = layer.score
    after = sum(
        alpha * part(x).softmax(-1) for alpha, part in zip(mixture.weights, mixture.parts, strict=True)
    )
    assert (layer(x)[1] - after).abs().max() > 0.01
    inside = sum(alpha * part(x) for alpha, part in zip(mixture.weights, mixture.parts, strict=True)).softmax(
        -1
    )
    torch.testing.assert_close(layer(x)[1], inside)


# Masks


def test_every_form_of_a_mask_means_the_same():
    layer, x = build("dense"), example()
    mask = masks.padding([LENGTH, 4, 1], LENGTH)
    expected = layer(x, mask)
    for same in (
        mask[:, 0, 0],
        mask.expand(BATCH, HEAD, LENGTH, LENGTH),
        mask.expand(BATCH, 1, LENGTH, LENGTH),
    ):
        torch.testing.assert_close(layer(x, same), expected)
    one_for_all = torch.tensor([True, True, False, True, True, False])
    for same in (one_for_all[None], one_for_all[None, None, None], one_for_all.expand(BATCH, -1)):
        torch.testing.assert_close(layer(x, same), layer(x, one_for_all))


def test_causal_is_off_unless_told_and_combines_with_a_mask():
    plain, x = build("dense"), example()
    causal = Attention(D_MODEL, HEAD, MAX_LENGTH, plain.score, causal=True).double()
    causal.load_state_dict(plain.state_dict())
    mask = masks.padding([LENGTH, 4, 2], LENGTH, "left")
    torch.testing.assert_close(causal(x), plain(x, masks.causal(LENGTH)))
    torch.testing.assert_close(causal(x, mask), plain(x, mask & masks.causal(LENGTH)))
    assert (plain(x)[1] > 0).all()


@pytest.mark.parametrize("score", ["random", "dot_product"])
def test_a_row_that_may_attend_to_nothing_gives_the_bias_of_the_output(score):
    layer, x = build(score), example()
    y, weights = layer(x, torch.zeros(BATCH, LENGTH, dtype=torch.bool))
    assert (weights == 0).all()
    torch.testing.assert_close(y, layer.output.bias.expand_as(y))


def test_wrong_masks_are_refused_by_the_layer():
    layer, x = build("random"), example()
    with refuses(TypeError, "mask must be a bool tensor", "torch.float64"):
        layer(x, torch.ones(BATCH, LENGTH).double())
    with refuses(ValueError, "axis batch of mask is 4", "must be 3 or 1"):
        layer(x, torch.ones(4, LENGTH).bool())
    with refuses(ValueError, "axis key of mask is 8", "must be 6 or 1"):
        layer(x, torch.ones(BATCH, 1, 1, MAX_LENGTH).bool())


# Lengths


@pytest.mark.parametrize("score", ALL)
def test_shorter_inputs_use_the_top_left_block_cut_before_the_softmax(score):
    layer, x = with_large_scores(build(score)), example(MAX_LENGTH)
    full = layer.score(x)
    for length in range(1, MAX_LENGTH + 1):
        y, weights = layer(x[:, :length])
        assert y.shape == (BATCH, length, D_MODEL)
        expected = full[..., :length, :length].softmax(-1).expand(BATCH, -1, -1, -1)
        torch.testing.assert_close(weights, expected)


# One map for the whole batch


@pytest.mark.parametrize("score", [*RANDOM, "random + factorized_random"])
def test_the_weights_of_a_shared_map_are_a_view(score):
    layer, x = build(score, causal=True), example()
    for mask in (None, torch.tensor([[True] * 5 + [False]])):
        weights = layer(x, mask)[1]
        assert weights.shape[0] == BATCH and weights.stride(0) == 0
        assert weights.untyped_storage().nbytes() == weights[0].numel() * weights.element_size()
    assert layer(x, masks.padding([6, 4, 3], LENGTH))[1].stride(0) > 0  # now the maps differ


class Largest(TorchDispatchMode):
    """Watches every tensor that an operation makes, forward and backward; keeps the largest size."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("score", [*RANDOM, "random + factorized_random", "dense"])
def test_a_shared_map_makes_no_tensor_of_batch_head_query_key(score, training):
    batch, head, length, d_model = 7, 5, 16, 10  # batch * head * length^2 is larger than any other tensor
    torch.manual_seed(0)
    layer = Attention(d_model, head, length, score, causal=True, dropout=0.1).train(training)
    x = torch.randn(batch, length, d_model, requires_grad=True)
    with Largest() as largest:
        layer(x)[0].sum().backward()
    one_map_per_sample = batch * head * length**2 * x.element_size()
    if score == "dense":
        assert largest.bytes >= one_map_per_sample, "the watch sees nothing: this test proves nothing"
    else:
        assert largest.bytes < one_map_per_sample / 2


# State


@pytest.mark.parametrize("score", ALL)
def test_all_state_moves(score):
    layer = build(score, dtype=torch.float32).to("meta")
    tensors = [*layer.parameters(), *layer.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert len(tensors) == len(layer.state_dict())
    assert layer(example(dtype=torch.float32).to("meta"))[1].device.type == "meta"


@pytest.mark.parametrize("score", ["random", "random + dot_product"])
def test_a_step_of_training_moves_every_parameter(score):
    layer = build(score)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(example(MAX_LENGTH))[0].square().sum().backward()
    optimizer.step()
    stayed = [name for name, tensor in layer.state_dict().items() if torch.equal(tensor, before[name])]
    assert not stayed


def test_fixed_random_is_saved_and_never_trained():
    layer = build("fixed_random")
    assert "score.R" in layer.state_dict()
    assert "score.R" not in dict(layer.named_parameters()) and not layer.score.R.requires_grad
    layer(example())[0].sum().backward()
    assert layer.score.R.grad is None


# Types


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("score", ALL)
def test_lower_precision_gives_the_same_within_its_rounding(score, dtype, causal):
    layer = build(score, causal=causal).to(dtype)
    exact = build(score, causal=causal)
    exact.load_state_dict(layer.state_dict())
    x = example(dtype=dtype)
    mask = masks.padding([LENGTH, 4, 0], LENGTH)
    y, weights = layer(x, mask)
    assert y.dtype == weights.dtype == dtype
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 0.03}
    torch.testing.assert_close((y.double(), weights.double()), exact(x.double(), mask), **tolerance)
    y.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_autocast_does_not_bridge_float64():
    """It casts no float64: that ended in an error of torch."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x, layer in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
            with pytest.raises(TypeError, match=f"x is {x}, but the layer is {layer}"):
                Attention(4, 2, 6).to(layer)(torch.zeros(1, 3, 4, dtype=x))


@pytest.mark.parametrize("score", ALL)
def test_autocast(score):
    layer, x = build(score, causal=True, dtype=torch.float32), example(dtype=torch.float32)
    mask = masks.padding([LENGTH, 4, 1], LENGTH, "left")
    expected = layer(x, mask)
    for given in (x, x.bfloat16()):  # a layer before this one hands over bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, weights = layer(given, mask)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close((y.float(), weights.float()), expected, rtol=0, atol=0.03)
        y.float().square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("score", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_another_dtype_than_the_layer_is_refused(score, dtype):
    layer = build(score, dtype=torch.float32)
    with refuses(TypeError, f"x is {dtype}", "the layer is torch.float32"):
        layer(example(dtype=dtype))


# Each part of a mixture is called as it is when it stands alone; one map for the batch takes another way.
COMPILED = ["random", "dot_product + dense + factorized_dense + factorized_random"]


@pytest.mark.parametrize("score", COMPILED)
def test_compiles_into_one_graph(score):
    torch._dynamo.reset()
    layer = with_large_scores(build(score, causal=True, dtype=torch.float32))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, mask = example(dtype=torch.float32).requires_grad_(), masks.padding([LENGTH, 4, 1], LENGTH, "left")
    fast, plain = compiled(x, mask), layer(x, mask)
    torch.testing.assert_close(fast, plain)
    gradients = [torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]) for y, _ in (fast, plain)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("score", COMPILED)
def test_compiles_for_changing_batch_and_length(score):
    """Up to max_length, where a learned table is used whole: dynamic sizes once took the wrong branch there."""
    torch._dynamo.reset()
    layer = build(score, causal=True, dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for batch, length in ((5, 4), (3, 5), (2, layer.score.max_length)):
        x = torch.randn(batch, length, layer.score.d_model)
        torch.testing.assert_close(compiled(x)[0], layer(x)[0])


@pytest.mark.parametrize("score", COMPILED)
def test_exports_for_changing_batch_and_length(score):
    """One program for all lengths below max_length: there a learned table is used whole."""
    layer = build(score, causal=True, dtype=torch.float32).eval()
    sizes = {"x": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    exported = torch.export.export(layer, (example(dtype=torch.float32),), dynamic_shapes=sizes).module()
    for batch, length in ((5, 4), (1, 1), (2, layer.score.max_length - 1)):
        x = torch.randn(batch, length, layer.score.d_model)
        torch.testing.assert_close(exported(x)[0], layer(x)[0])


# Training and evaluation


@pytest.mark.parametrize("score", ALL)
def test_evaluation_is_deterministic(score):
    layer, x = build(score, dropout=0.5), example()
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)
    torch.testing.assert_close(layer(x), build(score)(x), rtol=0, atol=0)


@pytest.mark.parametrize("score", ["dense", "random"])
def test_dropout_acts_on_the_weights_and_the_returned_ones_are_before_it(score):
    layer, x = build(score, dropout=0.4, bias=False), example()
    torch.manual_seed(5)
    y, weights = layer(x)
    torch.testing.assert_close(weights, layer.eval()(x)[1])
    torch.manual_seed(5)
    made = weights[:1] if score == "random" else weights  # a shared map is dropped once for the whole batch
    dropped = F.dropout(made.contiguous(), 0.4).expand_as(weights)
    assert 0.25 < (dropped == 0).double().mean() < 0.55
    mixed = []
    for head in range(HEAD):
        features = slice(head * D_HEAD, (head + 1) * D_HEAD)
        mixed.append(dropped[:, head] @ layer.value(x)[..., features])
    torch.testing.assert_close(y, layer.output(torch.cat(mixed, dim=-1)))


# Making a layer


def test_defaults():
    layer = Attention(D_MODEL, HEAD, MAX_LENGTH)
    assert isinstance(layer.score, Dense) and not layer.causal and layer.dropout == 0
    assert isinstance(layer.value, nn.Linear) and layer.value.weight.shape == (D_MODEL, D_MODEL)
    assert isinstance(layer.output, nn.Linear) and layer.output.bias is not None


def test_a_ready_score_is_used_as_it_is():
    score = Random(D_MODEL, HEAD, MAX_LENGTH, initial_scale=2.0)
    assert Attention(D_MODEL, HEAD, MAX_LENGTH, score).score is score


def test_options_reach_the_score():
    layer = Attention(
        D_MODEL, HEAD, MAX_LENGTH, "factorized_random + factorized_dense", rank=3, a=8, b=1, bias=False
    )
    assert layer.score.parts[0].R1.shape[-1] == 3 and layer.score.parts[1].a == 8
    assert layer.score.parts[1].hidden.bias is None


@pytest.mark.parametrize(
    ("arguments", "options", "error", "pieces"),
    [
        ((35, 4, 8), {}, ValueError, ["head = 4 does not divide d_model = 35"]),
        ((35, 5, 0), {}, ValueError, ["max_length is 0", "at least 1"]),
        ((35, 5, 8, "sparse"), {}, ValueError, ['unknown score "sparse"', "dot_product"]),
        ((35, 5, 8, "factorized_random"), {"rank": 0}, ValueError, ["rank is 0", "at least 1"]),
        (
            (35, 5, 8, "factorized_dense"),
            {"a": 3, "b": 3},
            ValueError,
            ["a = 3 and b = 3", "max_length = 8", "a = 2 and b = 4"],
        ),
        ((35, 5, 8, "dense"), {"rank": 2}, ValueError, ["option rank"]),
        ((35, 5, 8), {"dropout": 1.0}, ValueError, ["dropout is 1.0", "at least 0 and below 1"]),
        ((35, 5, 8), {"dropout": -0.1}, ValueError, ["dropout is -0.1", "at least 0 and below 1"]),
        ((35, 5, 8, Dense(35, 7, 8)), {}, ValueError, ["head is 5", "made with head = 7"]),
        ((35, 5, 8, Dense(40, 5, 8)), {}, ValueError, ["d_model is 35", "made with d_model = 40"]),
        ((35, 5, 8, Dense(35, 5, 9)), {}, ValueError, ["max_length is 8", "made with max_length = 9"]),
        ((35, 5, 8, Dense(35, 5, 8)), {"rank": 2}, ValueError, ["score is a ready module", "rank"]),
    ],
)
def test_wrong_arguments(arguments, options, error, pieces):
    with refuses(error, *pieces):
        Attention(*arguments, **options)


class Wrong(Score):
    """A score of somebody else that forgets the heads."""

    def rows(self, x, keys, length, start=0):
        return torch.zeros(x.shape[0], x.shape[1], length)


def test_a_score_of_a_wrong_shape_is_named():
    """In every path: broadcasting would hide it."""
    x, shape = example(dtype=torch.float32), "(batch or 1, head, query, key) = (3 or 1, 5, 6, 6)"
    layer = Attention(D_MODEL, HEAD, MAX_LENGTH, Wrong(D_MODEL, HEAD, MAX_LENGTH), causal=True)
    for options in ({}, {"cache": Cache()}, {"need_weights": False}):
        with refuses(ValueError, "Wrong gave scores (3, 6, 6)", shape):
            layer(x, **options)
    with refuses(ValueError, "Wrong gave scores (3, 6, 6)", shape):
        CrossAttention(D_MODEL, HEAD, MAX_LENGTH, Wrong(D_MODEL, HEAD, MAX_LENGTH))(x, x)
    layer.score.reads_tokens = False
    layer.score.rows = lambda x, keys, length, start: torch.zeros(len(x), HEAD, x.shape[1], length)
    with refuses(ValueError, "Wrong gave scores (3, 5, 6, 6)", "(1, head, query, key) = (1, 5, 6, 6)"):
        layer(x)
