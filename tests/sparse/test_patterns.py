"""Every pattern keeps the promises of `Pattern`; those of places equal loops written from the paper's sets."""

import copy

import pytest
import torch

from synth_lib.attention import Attention, Cache, CrossAttention
from synth_lib.masks import padding
from synth_lib.sparse.compared import Content, queries_and_keys
from synth_lib.sparse.hashed import EXTRA, Hashed
from synth_lib.sparse.patterns import Fixed, Pattern, Places, Strided, Window
from synth_lib.sparse.routed import Routed

HEAD, D_MODEL, MAX_LENGTH = 2, 12, 16
D_HEAD = D_MODEL // HEAD

PATTERNS = {
    "window": lambda features: Window(3),
    "strided": lambda features: Strided(3),
    "fixed": lambda features: Fixed(4, ends=2),
    "routed": lambda features: Routed(features, HEAD, 3),
    "routed, nearest": lambda features: Routed(features, HEAD, 3, keep=2),
} | {
    f"{kind}{', normalized' if normalize else ''}": lambda features, kind=kind, normalize=normalize: Hashed(
        features, HEAD, kind, hashes=5, keep=3, normalize_queries=normalize
    )
    for kind in EXTRA
    for normalize in (False, True)
}
SCORES = ("dot_product", "dense", "random", "factorized_dense", "factorized_random", "random + dot_product")


def layer_with(name, score="dot_product", causal=True, dtype=torch.float32):
    torch.manual_seed(3)
    layer = Attention(D_MODEL, HEAD, MAX_LENGTH, score, causal=causal).eval()
    queries, _ = queries_and_keys(layer.score, torch.randn(1, 4, D_MODEL))
    layer.pattern = PATTERNS[name](queries.shape[-1])
    return layer.eval().to(dtype)


def chosen(layer, x, mask=None):
    """What the pattern leaves: bool "batch head query key"."""
    return layer(x, mask)[1] > 0


def tokens(batch=3, length=11, seed=0):
    return torch.randn(batch, length, D_MODEL, generator=torch.Generator().manual_seed(seed))


# The sets of Child et al., section 4, as loops.


def keys_of(name, i, head, heads):
    near = head < (heads + 1) // 2
    if name == "strided":
        sets = set(range(max(0, i - 3), i + 1)), {j for j in range(i + 1) if (i - j) % 3 == 0}
    else:
        block = {j for j in range(i + 1) if j // 4 == i // 4}
        sets = block, {j for j in range(i + 1) if j % 4 in (2, 3)} | {i}
    return sets[0] | sets[1] if heads == 1 else sets[0] if near else sets[1]


@pytest.mark.parametrize("name", ["strided", "fixed"])
@pytest.mark.parametrize("head", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 4, 9, 13])
def test_the_sets_of_the_paper(name, head, length):
    mask = PATTERNS[name](D_HEAD).mask(length, head).expand(1, head, length, length)[0]
    for h in range(head):
        for i in range(length):
            assert set(mask[h, i].nonzero().flatten().tolist()) == keys_of(name, i, h, head)


def test_a_window_reaches_less_than_its_size():
    assert Window(3).mask(6)[0, 0, 2].tolist() == [True, True, True, True, True, False]
    layer = layer_with("window")
    assert chosen(layer, tokens(length=6))[0, 0, 4].tolist() == [False, False, True, True, True, False]


def test_near_is_behind_and_not_around():
    """Row 4 of 9, stride 3: keys 1 to 4; with abs(i - j) it would be 1 to 7."""
    assert Strided(3).mask(9, head=2)[0, 0, 4].nonzero().flatten().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("pattern", [Strided(3), Fixed(4)])
def test_two_layers_connect_every_query_with_every_key_before_it(pattern):
    step = pattern.mask(13, head=2)[0].any(dim=0).float()
    assert torch.equal(step @ step > 0, torch.ones(13, 13).tril() > 0)


# What every pattern promises.


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", PATTERNS)
def test_only_what_may_be_attended_to_and_never_nothing_of_it(name, causal):
    layer = layer_with(name, causal=causal)
    x = tokens(batch=4)
    for mask in (
        None,
        padding([11, 4, 1, 0], 11),
        padding([11, 4, 1, 0], 11, side="left"),
        torch.rand(4, 1, 11, 11, generator=torch.Generator().manual_seed(1)) < 0.3,
        torch.zeros(1, 1, 1, 11, dtype=torch.bool),
        torch.ones(HEAD, 11, 1, dtype=torch.bool),
    ):
        allowed = torch.ones(4, HEAD, 11, 11, dtype=torch.bool) if mask is None else mask.expand(4, HEAD, 11, 11)
        allowed = allowed.tril() if causal else allowed
        got = chosen(layer, x, mask)
        assert not (got & ~allowed).any()
        assert torch.equal(got.any(dim=-1), allowed.any(dim=-1))
        y, weights = layer(x, mask)
        assert y.isfinite().all()
        assert torch.allclose(weights.sum(dim=-1), allowed.any(dim=-1).float())
        assert torch.allclose(layer(x, mask, need_weights=False)[0], y, atol=1e-5)


@pytest.mark.parametrize("name", PATTERNS)
def test_it_leaves_something_out(name):
    for causal in (True, False):
        kept = chosen(layer_with(name, causal=causal), tokens()).float().mean()
        assert kept < (0.5 if causal else 0.95)


@pytest.mark.parametrize("score", ["dot_product", "random"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_sample_alone_and_padding(name, causal, score):
    layer, x = layer_with(name, score, causal=causal), tokens()
    together = chosen(layer, x, padding([11, 5, 8], 11))
    for sample, length in enumerate([11, 5, 8]):
        alone = chosen(layer, x[sample : sample + 1, :length])
        assert torch.equal(together[sample, :, :length, :length], alone[0])
    # What stands in the padding does not matter, however long a key it makes.
    x[1, 5:] *= 100
    assert torch.equal(chosen(layer, x, padding([11, 5, 8], 11))[:, :, :5], together[:, :, :5])


@pytest.mark.parametrize("name", PATTERNS)
def test_padding_on_the_left_changes_nothing_that_counts_from_the_query(name):
    if name == "fixed":
        pytest.skip("its blocks count from the first place of the row, as the docstring says")
    layer, x = layer_with(name), tokens()
    got = chosen(layer, x, padding([6, 6, 6], 11, side="left"))[:, :, 5:, 5:]
    assert torch.equal(got, chosen(layer, x[:, 5:]))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_later_token_changes_no_earlier_row(name):
    layer = layer_with(name)
    for seed in range(20):
        x = tokens(batch=2, seed=seed)
        before = chosen(layer, x)
        x[:, -1] = 9 * torch.randn(2, D_MODEL, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(chosen(layer, x)[:, :, :-1], before[:, :, :-1])


@pytest.mark.parametrize("name", PATTERNS)
def test_evaluation_changes_nothing(name):
    layer, x = layer_with(name), tokens()
    before = copy.deepcopy(layer.state_dict())
    first = chosen(layer, x)
    assert torch.equal(chosen(layer, x), first)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


@pytest.mark.parametrize("name", PATTERNS)
def test_saved_with_the_layer(name):
    layer, x = layer_with(name), tokens()
    other = layer_with(name)
    for buffer in other.pattern.buffers():
        buffer.normal_()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(chosen(other, x), chosen(layer, x))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["strided", "routed", "routed, nearest", "simple-lsh", "xbox"])
def test_a_cache_changes_nothing(name, score):
    layer, x = layer_with(name, score), tokens()
    y, weights = layer(x)
    cache = Cache()
    for start, stop in ((0, 4), (4, 5), (5, 9), (9, 10), (10, 11)):
        step_y, step_weights = layer(x[:, start:stop], cache=cache)
        assert torch.allclose(step_y, y[:, start:stop], atol=1e-5)
        assert torch.equal(step_weights > 0, (weights > 0)[:, :, start:stop, :stop])


@pytest.mark.parametrize("score", ["dot_product", "random", "random + dot_product"])
@pytest.mark.parametrize(("before", "after"), [(None, "xbox"), ("xbox", None), ("routed", "window"),
                                               ("window", "routed"), ("xbox", "routed"), (None, "window")])  # fmt: skip
def test_another_pattern_between_two_steps_is_right_or_refused(before, after, score):
    """What a cache keeps has no names: the tokens of a pattern of content would stand for the values."""
    layer, x, cache = layer_with("window", score), tokens(), Cache()
    patterns = [None if name is None else layer_with(name, score).pattern for name in (before, after)]
    layer.pattern = patterns[0]
    layer(x[:, :5], cache=cache)
    kept, layer.pattern = list(cache.entries), patterns[1]
    if isinstance(patterns[0], Content) == isinstance(patterns[1], Content):
        assert torch.allclose(layer(x[:, 5:7], cache=cache)[0], layer(x[:, :7])[0][:, 5:], atol=1e-5)
    else:
        with pytest.raises(ValueError, match="begun with another layer, score, value or pattern: begin with an empty"):
            layer(x[:, 5:7], cache=cache)
        assert cache.length == 5 and all(map(torch.equal, cache.entries, kept))


@pytest.mark.parametrize("score", ["dot_product", "dense", "factorized_random", "dense + dot_product"])
def test_what_is_compared_are_the_factors_of_s(score):
    layer = layer_with("window", score)
    queries, keys = queries_and_keys(layer.score, tokens())
    assert torch.allclose(queries @ keys.mT, layer.score(tokens()).expand(3, -1, -1, -1), atol=1e-5)


def test_without_such_factors_the_tokens_are_compared():
    queries, keys = queries_and_keys(layer_with("window", "random").score, tokens())
    assert queries[1, 1, 4].tolist() == keys[1, 1, 4].tolist() == tokens()[1, 4, D_HEAD:].tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", PATTERNS)
def test_dtypes(name, dtype):
    layer = layer_with(name, dtype=dtype)
    y, weights = layer(tokens().to(dtype))
    assert y.dtype == weights.dtype == dtype and y.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("name", PATTERNS)
def test_autocast_changes_no_choice_and_no_centroid(name):
    """Random compares the tokens themselves; in bfloat16 hashes flip, and a centroid's step is less than rounding."""
    layer, x = layer_with(name, "random").train(), tokens()
    other = copy.deepcopy(layer)
    expected = chosen(layer, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(chosen(other, x), expected)
    assert all(map(torch.equal, other.buffers(), layer.buffers()))


@pytest.mark.parametrize("length", [1, 2, 16])
@pytest.mark.parametrize("name", PATTERNS)
def test_every_length(name, length):
    assert torch.equal(chosen(layer_with(name), tokens(length=length)).any(dim=-1).all(), torch.tensor(True))


@pytest.mark.parametrize("name", ["strided", "routed", "simple-lsh", "xbox"])
def test_compiled(name):
    layer, x = layer_with(name), tokens()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x)[1] > 0, chosen(layer, x))


@pytest.mark.parametrize("name", ["fixed", "routed", "routed, nearest", "xbox"])
def test_exported_for_every_length_below_the_longest(name):
    layer, length = layer_with(name), torch.export.Dim("length", min=2, max=MAX_LENGTH - 1)
    program = torch.export.export(layer, (tokens(),), dynamic_shapes=({1: length},)).module()
    for size in (2, 15):
        assert torch.equal(program(tokens(length=size))[1] > 0, chosen(layer, tokens(length=size)))


def test_vectors_of_zeros():
    for name in PATTERNS:
        layer = layer_with(name)
        assert layer(torch.zeros(1, 5, D_MODEL))[0].isfinite().all()
        layer.score = type(layer.score)(D_MODEL, HEAD, MAX_LENGTH, bias=False)
        assert chosen(layer, torch.zeros(1, 5, D_MODEL)).any(dim=-1).all()


def test_cross_attention():
    torch.manual_seed(0)
    layer = CrossAttention(D_MODEL, HEAD, MAX_LENGTH)
    layer.pattern = Hashed(D_HEAD, HEAD, keep=2)
    _, weights = layer(tokens(length=4), tokens(length=9, seed=1), padding([9, 5, 1], 9))
    assert (weights > 0).sum(dim=-1)[:, :, 0].tolist() == [[2, 2], [2, 2], [1, 1]]
    layer.pattern = Strided(3)
    with pytest.raises(ValueError, match="Strided compares places, but x and memory have no common order"):
        layer(tokens(length=4), tokens(length=9))


def test_bad_input():
    with pytest.raises(ValueError, match="size"):
        Window(0)
    with pytest.raises(ValueError, match="stride is 2.5"):
        Strided(2.5)
    with pytest.raises(ValueError, match="ends is 5, but a block has stride = 4 places"):
        Fixed(4, ends=5)
    with pytest.raises(ValueError, match="kind must be one of simple-lsh, simple-alsh, xbox, i-alsh, not 'lsh'"):
        Hashed(6, 2, "lsh")
    with pytest.raises(ValueError, match="width is 0"):
        Hashed(6, 2, "xbox", width=0)
    with pytest.raises(ValueError, match="keep"):
        Routed(6, 2, 3, keep=0)
    with pytest.raises(ValueError, match="decay"):
        Routed(6, 2, 3, decay=1.0)
    layer = layer_with("simple-lsh")
    layer.pattern = Hashed(5, HEAD)
    with pytest.raises(ValueError, match="has head = 2 and features = 5, but S gives head = 2 and features = 6"):
        layer(tokens())
    for unfinished in (Pattern(), Places()):
        layer.pattern = unfinished
        with pytest.raises(NotImplementedError, match="needs it"):
            layer(tokens())
