"""Cross-attention: queries from one sequence, keys and values from another; on every S, against loops."""

import pytest
import torch

from synth_lib import masks
from synth_lib.attention import Attention, Cache, CrossAttention
from tests.helpers import properties, reference
from tests.helpers.properties import (
    ALL,
    BATCH,
    CONDITIONED_ON,
    D_MODEL,
    HEAD,
    MAX_LENGTH,
    RANDOM,
    SINGLE,
    example,
    refuses,
)

QUERY = 6  # the memory is shorter or longer, never as long: a swapped axis cannot pass
SHORT, LONG = 4, MAX_LENGTH
REAL = [4, 1, 3]  # real tokens of each short memory
SOME = [*SINGLE, "random + dot_product"]


def build(score="dot_product", *, seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    layer = CrossAttention(D_MODEL, HEAD, MAX_LENGTH, score, **options).to(dtype)
    return properties.with_large_scores(layer)


def some_memory(key=SHORT, dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(BATCH, key, D_MODEL, generator=generator, dtype=torch.float64).to(dtype)


def only_real(batch, head, query, key):
    return key < REAL[batch]


@pytest.mark.parametrize("query, key, start, padded", [(6, 4, 0, True), (3, 8, 0, False), (3, 4, 5, True)])
@pytest.mark.parametrize("score", SOME)
def test_values_and_gradients_equal_the_loops(score, query, key, start, padded):
    layer, x, memory = build(score), example(query).requires_grad_(), some_memory(key).requires_grad_()
    mask, may_attend = (masks.padding(REAL, key), only_real) if padded else (None, reference.allow_all)
    inputs = [x, memory, *layer.parameters()]
    for_y, for_weights = torch.randn_like(x), torch.randn(BATCH, HEAD, query, key).double()

    def gradients(y, weights):
        total = (y * for_y).sum() + (weights * for_weights).sum()
        return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)

    fast, slow = layer(x, memory, mask, start=start), reference.attention(layer, x, may_attend, memory, start)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients(*fast), gradients(*slow), rtol=0, atol=1e-10)


@pytest.mark.parametrize("score", ALL)
def test_what_the_map_and_the_output_depend_on(score):
    """Table 1 again: the dot product reads the memory, Dense the attending token, Random nothing. y reads it always."""
    layer, x, memory = build(score), example(QUERY)[0], some_memory(LONG)[0]

    def map_of(x, memory):
        return layer(x[None], memory[None])[1][0].transpose(0, 1)

    kinds = {CONDITIONED_ON[part] for part in score.split(" + ")}
    of_memory = properties.depends_on(lambda memory: map_of(x, memory), memory)
    assert of_memory.all() if properties.EVERY_TOKEN in kinds else not of_memory.any()
    of_x = properties.depends_on(lambda x: map_of(x, memory), x)
    assert torch.equal(of_x, torch.eye(QUERY).bool() & (kinds != {properties.NOTHING}))
    of_memory = properties.depends_on(lambda memory: layer(x[None], memory[None])[0][0], memory)
    assert of_memory.shape == (QUERY, LONG) and of_memory.all(), "no place of the memory is hidden: nothing is causal"


@pytest.mark.parametrize("score", ALL)
def test_padding_of_the_memory_is_ignored(score):
    layer, x, memory, real = build(score), example(QUERY), some_memory(LONG).requires_grad_(), 5
    mask = masks.padding([real] * BATCH, LONG)
    y, weights = layer(x, memory, mask)
    assert (weights[..., real:] == 0).all()
    (gradient,) = torch.autograd.grad(y.square().sum(), memory)
    assert (gradient[:, real:] == 0).all() and (gradient[:, :real] != 0).any(-1).all()
    changed = memory.detach().clone()
    changed[:, real:] += 10
    torch.testing.assert_close(layer(x, changed, mask)[0], y, rtol=0, atol=0)
    torch.testing.assert_close(layer(x, memory[:, :real]), (y, weights[..., :real]), rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(x, memory, mask[:, 0, 0]), (y, weights), rtol=0, atol=0)


@pytest.mark.parametrize("score", ["random", "dot_product"])
def test_a_row_that_may_attend_to_nothing_gives_the_bias_of_the_output(score):
    layer, x = build(score), example(QUERY)
    y, weights = layer(x, some_memory(), masks.padding([SHORT, 0, 2], SHORT))
    assert (weights[1] == 0).all() and y.isfinite().all()
    torch.testing.assert_close(y[1], layer.output.bias.expand(QUERY, -1))


@pytest.mark.parametrize("score", ALL)
def test_a_sample_never_depends_on_the_rest_of_the_batch(score):
    layer, x, memory, mask = build(score), example(QUERY), some_memory(), masks.padding(REAL, SHORT)
    y, weights = layer(x, memory, mask)
    for n in range(BATCH):
        alone = layer(x[n : n + 1], memory[n : n + 1], mask[n : n + 1])
        torch.testing.assert_close((y[n], weights[n]), (alone[0][0], alone[1][0]))


@pytest.mark.parametrize("score", ALL)
def test_tokens_at_a_later_place_give_the_later_rows(score):
    layer, x, memory = build(score), example(MAX_LENGTH), some_memory()
    y, weights = layer(x, memory)
    for start, stop in ((0, 3), (3, 4), (5, MAX_LENGTH)):
        part = layer(x[:, start:stop], memory, start=start)
        torch.testing.assert_close(part, (y[:, start:stop], weights[:, :, start:stop]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", ALL)
def test_on_its_own_sequence_it_is_self_attention(score):
    layer, x = build(score), example(QUERY)
    own = Attention(D_MODEL, HEAD, MAX_LENGTH, score).double()
    own.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x, x), own(x))


@pytest.mark.parametrize("score", ALL)
def test_the_first_call_fills_the_cache_and_later_ones_read_it(score):
    layer, x, memory, cache = build(score), example(MAX_LENGTH), some_memory(), Cache()
    mask = masks.padding(REAL, SHORT)
    y, weights = layer(x, memory, mask)
    torch.testing.assert_close(layer(x[:, :2], memory, mask, cache=cache)[0], y[:, :2], rtol=0, atol=1e-12)
    layer.value.register_forward_hook(lambda *_: pytest.fail("the values of the memory are computed again"))
    for start in range(2, MAX_LENGTH):
        step = layer(x[:, start : start + 1], memory, mask, start=start, cache=cache)
        expected = y[:, start : start + 1], weights[:, :, start : start + 1]
        torch.testing.assert_close(step, expected, rtol=0, atol=1e-12)
    assert cache.length == SHORT, "the memory was added more than once"


@pytest.mark.parametrize("score", [*RANDOM, "random + factorized_random"])
def test_the_weights_of_a_shared_map_are_a_view(score):
    weights = build(score)(example(QUERY), some_memory())[1]
    assert weights.shape == (BATCH, HEAD, QUERY, SHORT) and weights.stride(0) == 0


def test_the_default_is_the_dot_product_and_options_reach_the_score():
    assert type(CrossAttention(D_MODEL, HEAD, MAX_LENGTH).score).__name__ == "DotProduct"
    layer = CrossAttention(D_MODEL, HEAD, MAX_LENGTH, "factorized_random", rank=3, bias=False, dropout=0.25)
    assert layer.score.R1.shape == (HEAD, MAX_LENGTH, 3) and layer.output.bias is None and layer.dropout == 0.25


def test_dropout_acts_while_training_only():
    layer, x, memory = build(dropout=0.5), example(QUERY), some_memory()
    y, weights = layer(x, memory)
    assert not torch.equal(y, layer(x, memory)[0])
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEAD, QUERY).double())  # taken before dropout
    layer.eval()
    assert torch.equal(layer(x, memory)[0], layer(x, memory)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("score", SOME)
def test_lower_precision_gives_the_same_within_its_rounding(score, dtype):
    torch.manual_seed(0)
    layer = CrossAttention(D_MODEL, HEAD, MAX_LENGTH, score).to(dtype)
    exact = CrossAttention(D_MODEL, HEAD, MAX_LENGTH, score).double()
    exact.load_state_dict(layer.state_dict())
    x, memory, mask = example(QUERY, dtype=dtype), some_memory(dtype=dtype), masks.padding([4, 0, 3], SHORT)
    y, weights = layer(x, memory, mask)
    assert y.dtype == weights.dtype == dtype
    wanted = exact(x.double(), memory.double(), mask)
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close((y.double(), weights.double()), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("score", ["random + dense + dot_product"])
def test_autocast_and_compile(score):
    torch._dynamo.reset()
    layer, mask = build(score, dtype=torch.float32), masks.padding(REAL, SHORT)
    x, memory = example(QUERY, dtype=torch.float32), some_memory(dtype=torch.float32)
    expected = layer(x, memory, mask, start=1)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, memory, mask, start=1), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x.bfloat16(), memory, mask, start=1)
    assert y.dtype == torch.bfloat16 and (y - expected[0]).abs().max() < 0.1


def test_what_does_not_fit_is_refused():
    layer, x, memory = build("random + dot_product"), example(QUERY), some_memory()
    with refuses(ValueError, "axis batch of memory is 2, but of x 3"):
        layer(x, memory[:2])
    with refuses(ValueError, "axis batch of memory is 1, but of x 3"):  # it would broadcast
        layer(x, memory[:1])
    with refuses(ValueError, "axis length of memory is 9", "max_length = 8"):
        layer(x, example(9))
    with refuses(ValueError, "axis length of memory is 0"):
        layer(x, memory[:, :0])
    with refuses(ValueError, "axis d_model of memory is 7", "d_model = 35"):
        layer(x, memory[..., :7])
    with refuses(ValueError, "memory must have the 3 axes"):
        layer(x, memory[0])
    with refuses(TypeError, "memory is torch.float32", "the layer is torch.float64"):
        layer(x, memory.float())
    with refuses(TypeError, "x is torch.float32", "the layer is torch.float64"):
        layer(x.float(), memory)
    with refuses(TypeError, "memory must be a floating-point tensor", "not NoneType"):
        layer(x, None)
    for start in (3, -1, 1.0, None, "0", True):
        with refuses(ValueError, f"start, the position of the first token of x, is {start!r}, but must be a whole"):
            layer(x, memory, start=start)
    with refuses(ValueError, "from 0 to max_length - query = 8 - 6"):
        layer(x, memory, start=3)
    layer(x, memory, start=2)  # the last position that there is
    with refuses(ValueError, "axis key of mask is 6, but must be 4 or 1"):
        layer(x, memory, torch.ones(BATCH, QUERY).bool())
    with refuses(TypeError, "mask must be a bool tensor"):
        layer(x, memory, torch.ones(BATCH, SHORT).double())
    cache = Cache()
    layer(x, memory, cache=cache)
    with refuses(ValueError, "memory has 2 samples of length 4", "the cache has read 3 samples of length 4"):
        layer(x[:2], memory[:2], cache=cache)
    with refuses(ValueError, "memory has 3 samples of length 3", "the cache has read 3 samples of length 4"):
        layer(x, memory[:, :3], cache=cache)
