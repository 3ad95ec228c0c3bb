"""The cache: one token at a time, or some, gives what the full pass gives, for every S; and what it costs."""

import pickle
from copy import deepcopy

import pytest
import torch

from synth_lib import masks
from synth_lib.attention import Attention, Cache
from synth_lib.models import EncoderDecoder, LanguageModel
from synth_lib.scores import Dense, DotProduct, Mixture, Random
from tests.helpers import properties
from tests.helpers.properties import (
    ALL,
    BATCH,
    D_HEAD,
    D_MODEL,
    HEAD,
    MAX_LENGTH,
    SINGLE,
    build,
    example,
    refuses,
    with_large_scores,
)

CHUNKS = [(1,) * MAX_LENGTH, (3, 1, 2, 2), (MAX_LENGTH,), (5, 3)]
VOCAB, LAYER = 11, 2


def steps(chunks):
    """(3, 1, 2) -> 0:3, 3:4, 4:6"""
    start = 0
    for size in chunks:
        yield start, start + size
        start += size


def layer_of(score, **options):
    return with_large_scores(build(score, causal=True, **options))


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("score", ALL)
def test_steps_equal_the_full_pass(score, chunks):
    layer, x, cache = layer_of(score), example(MAX_LENGTH), Cache()
    y, weights = layer(x)
    for start, stop in steps(chunks):
        step_y, step_weights = layer(x[:, start:stop], cache=cache)
        assert step_weights.shape == (BATCH, HEAD, stop - start, stop) and cache.length == stop
        exactly(step_y, y[:, start:stop])
        exactly(step_weights, weights[:, :, start:stop, :stop])
        assert (weights[:, :, start:stop, stop:] == 0).all()


@pytest.mark.parametrize("score", ALL)
def test_steps_equal_the_full_pass_under_a_mask(score):
    """Padding on the left, an empty row among it; the mask of a step is that of all the tokens so far."""
    layer, x, cache = layer_of(score), example(MAX_LENGTH), Cache()
    mask = masks.padding([MAX_LENGTH, 5, 2], MAX_LENGTH, "left")
    y, weights = layer(x, mask)
    for start, stop in steps((1, 2, 4, 1)):
        step_y, step_weights = layer(x[:, start:stop], mask[:, 0, 0, :stop], cache=cache)
        exactly(step_y, y[:, start:stop])
        exactly(step_weights, weights[:, :, start:stop, :stop])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("score", SINGLE)
def test_steps_in_lower_precision(score, dtype):
    layer, x, cache = build(score, causal=True, dtype=dtype), example(MAX_LENGTH, dtype=dtype), Cache()
    y = torch.cat([layer(x[:, start:stop], cache=cache)[0] for start, stop in steps((3, 1, 1, 3))], dim=1)
    assert y.dtype == cache.entries[0].dtype == dtype
    torch.testing.assert_close(y, layer(x)[0], rtol=0, atol=1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("score", ALL)
def test_the_bytes_are_the_formula(score):
    """Values for every S, keys for each dot product among its parts, and nothing else."""
    comparing = score.split(" + ").count("dot_product")
    for dtype, size in ((torch.float64, 8), (torch.bfloat16, 2)):
        layer, cache = build(score, causal=True, dtype=dtype), Cache()
        assert cache.bytes == 0
        for length in (3, 4):
            layer(example(MAX_LENGTH, dtype=dtype)[:, cache.length : length], cache=cache)
            assert cache.entries[0].shape == (BATCH, HEAD, length, D_HEAD)
            assert cache.bytes == (1 + comparing) * BATCH * length * D_MODEL * size


def test_only_a_score_that_compares_tokens_keeps_keys():
    x = example()
    for score in SINGLE:
        layer, cache = build(score, causal=True), Cache()
        layer(x, cache=cache)
        shapes = [entry.shape for entry in cache.entries]
        assert shapes == [(BATCH, HEAD, x.shape[1], D_HEAD)] * (2 if score == "dot_product" else 1)
    two = build("dot_product + random + dot_product", causal=True)
    cache = Cache()
    two(x, cache=cache)
    assert len(cache.entries) == 3


def test_a_mixture_of_mixtures_is_kept_and_reordered_too():
    sizes = (D_MODEL, HEAD, MAX_LENGTH)
    torch.manual_seed(0)
    inner = Mixture([DotProduct(*sizes), Dense(*sizes)])
    layer = Attention(*sizes, Mixture([inner, Random(*sizes), DotProduct(*sizes)]), causal=True).double()
    x, cache, rows = example(MAX_LENGTH), Cache(), torch.tensor([2, 0, 0])
    layer(x[:, :5], cache=cache)
    assert cache.bytes == 3 * BATCH * 5 * D_MODEL * 8
    cache.reorder(rows)
    exactly(layer(x[rows, 5:], cache=cache)[0], layer(x[rows])[0][:, 5:])


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1], [0, 2]])
@pytest.mark.parametrize("score", ALL)
def test_reorder_continues_other_samples(score, rows):
    layer, x, cache, rows = layer_of(score), example(MAX_LENGTH), Cache(), torch.tensor(rows)
    layer(x[:, :3], cache=cache)
    cache.reorder(rows)
    other = x[rows]
    other[:, 3:] = example(MAX_LENGTH, batch=len(rows))[:, 3:].flip(1)  # the same beginnings go on in another way
    y, weights = layer(other)
    for start, stop in steps((3, 2, 3)):
        if start:
            exactly(layer(other[:, start:stop], cache=cache)[0], y[:, start:stop])


def test_an_empty_cache_can_be_reordered():
    cache = Cache()
    cache.reorder(torch.tensor([1, 0]))
    assert (cache.entries, cache.length) == ([], 0)


@pytest.mark.parametrize("part", ["score", "value", "score.parts.1", "score.parts.1.key"])
def test_another_part_between_two_steps_is_refused(part):
    layer, other = layer_of("random + dot_product"), layer_of("random + dot_product")
    x, cache = example(MAX_LENGTH), Cache()
    layer(x[:, :5], cache=cache)
    layer.set_submodule(part, other.get_submodule(part))
    for wrong in (layer, other):
        with refuses(ValueError, "begun with another layer, score, value or pattern: begin with an empty one"):
            wrong(x[:, 5:], cache=cache)


@torch.no_grad()
def test_a_copy_of_a_cache_goes_on_with_a_copy_of_its_layer():
    layer, x, cache = layer_of("dot_product"), example(MAX_LENGTH), Cache()
    layer(x[:, :5], cache=cache)
    for own, copied in ((layer, deepcopy(cache)), (deepcopy(layer), pickle.loads(pickle.dumps(cache)))):
        exactly(own(x[:, 5:], cache=copied)[0], layer(x)[0][:, 5:])
    assert cache.length == 5


@pytest.mark.parametrize("score", ["dot_product", "random", "random + dot_product"])
def test_what_does_not_fit_is_refused_and_leaves_the_cache_as_it_was(score):
    layer, x, cache = layer_of(score), example(MAX_LENGTH), Cache()
    layer(x[:, :5], cache=cache)
    held = cache.bytes
    with refuses(ValueError, "the cache holds 5 tokens and 4 new ones, but max_length is 8"):
        layer(x[:, :4], cache=cache)
    with refuses(ValueError, "axis batch of x is 2, but of the cache 3"):
        layer(x[:2, :1], cache=cache)
    with refuses(TypeError, "x is torch.float32", "the layer is torch.float64"):
        layer(x[:, :1].float(), cache=cache)
    with refuses(ValueError, "axis key of mask is 5, but must be 6 or 1"):
        layer(x[:, :1], torch.ones(BATCH, 5).bool(), cache=cache)
    with refuses(ValueError, "axis length of x is 0"):
        layer(x[:, :0], cache=cache)
    assert cache.length == 5 and cache.bytes == held
    exactly(layer(x[:, 5:], cache=cache)[0], layer(x)[0][:, 5:])
    with refuses(ValueError, "the cache holds 8 tokens and 1 new ones"):
        layer(x[:, :1], cache=cache)
    with refuses(ValueError, "a cache needs causal=True"):
        build(score)(x, cache=Cache())


# In the models


def language_model(score):
    torch.manual_seed(1)
    model = LanguageModel(VOCAB, 12, 3, LAYER, MAX_LENGTH, score).double()
    return away_from_the_start(model)


def away_from_the_start(model):
    """Biases are 0 and norms are 1 at the start: mistakes hide."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def some_tokens(batch, length):
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("score", [*ALL, ["dot_product", "random"]])
def test_the_steps_of_a_language_model_equal_the_full_pass(score):
    model, tokens = language_model(score), some_tokens(2, MAX_LENGTH)
    logits = model(tokens)
    for chunks in CHUNKS:
        caches = model.new_caches()
        for start, stop in steps(chunks):
            exactly(model(tokens[:, start:stop], caches=caches), logits[:, start:stop])
    with refuses(ValueError, "axis length of tokens is 9, not 1 to max_length = 8"):
        model(tokens[:, :1], caches=caches)


@pytest.mark.parametrize("score", ALL)
def test_generate_with_and_without_a_cache_is_the_same_also_beyond_max_length(score):
    model = language_model(score)
    for length, count in ((3, 2 * MAX_LENGTH), (MAX_LENGTH, 3), (MAX_LENGTH + 4, 3), (2, MAX_LENGTH - 2)):
        start = some_tokens(2, length)
        drawn = [
            model.generate(start, count, generator=torch.Generator().manual_seed(3), cache=cache)
            for cache in (True, False)
        ]
        assert drawn[0].shape == (2, length + count) and torch.equal(*drawn)
        assert torch.equal(drawn[0][:, :length], start)


def test_generate_reads_each_token_once_until_max_length():
    model, read = language_model("random"), []
    model.generate(some_tokens(2, 3), 0)  # what is checked first is not counted
    model.blocks[0].register_forward_hook(lambda module, inputs, output: read.append(inputs[0].shape[1]))
    model.generate(some_tokens(2, 3), 8)
    assert read == [3, 1, 1, 1, 1, 1, 8, 8]
    read.clear()
    model.generate(some_tokens(2, 3), 4, cache=False)
    assert read == [3, 4, 5, 6]


@pytest.mark.parametrize("cross_score", ["dot_product", "random + dense"])
@pytest.mark.parametrize("score", ALL)
def test_the_steps_of_a_translation_equal_the_full_pass(score, cross_score):
    """The features from which the decoder's logits are made, as `translate` finds them token by token."""
    torch.manual_seed(1)
    model = EncoderDecoder(VOCAB, 12, 3, LAYER, MAX_LENGTH, score, cross_score=cross_score).double()
    model = away_from_the_start(model)
    source, lengths, seen, lengths_read = some_tokens(3, 6), [6, 2, 4], [], []
    hooks = [
        model.decoder_norm.register_forward_hook(lambda module, inputs, output: seen.append(output)),
        model.decoder[0].register_forward_hook(lambda module, inputs, output: lengths_read.append(inputs[0].shape[1])),
    ]
    found = model.translate(source, lengths, start=1, end=VOCAB, count=MAX_LENGTH)  # an end that never comes
    for hook in hooks:
        hook.remove()
    assert lengths_read == [1] * MAX_LENGTH
    written = torch.tensor([[1, *output] for output in found])
    assert written.shape == (3, MAX_LENGTH + 1)
    with torch.no_grad():
        logits = model(source, written[:, :-1], lengths)
    exactly(torch.stack(seen, dim=1) @ model.token.weight.T, logits)
    assert torch.equal(logits.argmax(-1), written[:, 1:])


@pytest.mark.parametrize("score", properties.MIXTURES[:1] + ["dense"])
def test_gradients_flow_through_the_steps(score):
    layer, x = layer_of(score), example(MAX_LENGTH).requires_grad_()
    cache = Cache()
    y = torch.cat([layer(x[:, start:stop], cache=cache)[0] for start, stop in steps((3, 1, 4))], dim=1)
    inputs = [x, *layer.parameters()]
    found, wanted = (torch.autograd.grad(out.square().sum(), inputs) for out in (y, layer(x)[0]))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
