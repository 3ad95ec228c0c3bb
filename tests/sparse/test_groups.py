"""The form with less work gives what the layer gives, and its gradients; its work grows like n sqrt(n)."""

from functools import partial
from math import log

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from synth_lib.attention import Attention, CrossAttention
from synth_lib.masks import padding
from synth_lib.sparse import flex
from synth_lib.sparse.compared import queries_and_keys
from synth_lib.sparse.groups import attend, by_cluster, groups_of, in_groups
from synth_lib.sparse.hashed import Hashed
from synth_lib.sparse.patterns import Fixed, Places, Strided, Window
from synth_lib.sparse.routed import Routed
from tests.sparse import layers

make = partial(layers.make, dtype=torch.float64)


@pytest.mark.parametrize("score", ["dot_product", "dense", "random", "factorized_dense", "random + dot_product"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["window", "strided", "fixed", "routed", "routed, nearest"])
def test_values_and_gradients_equal_the_layer(name, causal, score):
    if causal and name == "routed, nearest":
        pytest.skip("there is no such form, test_bad_input")
    layer = make(name, score, causal)
    for length, lengths in ((1, None), (7, [7, 3, 1]), (23, None), (24, [24, 9, 17])):
        x = torch.randn(3, length, 12, dtype=torch.float64, requires_grad=True)
        mask = None if lengths is None else padding(lengths, length)
        real = torch.ones(3, length, 1) if mask is None else mask[:, 0, 0, :, None]
        results = []
        for y in (layer(x, mask)[0], attend(layer, x, mask)):
            gradients = torch.autograd.grad((y * real).square().sum(), (x, *layer.parameters()), allow_unused=True)
            results.append([y * real, *(torch.zeros(()) if gradient is None else gradient for gradient in gradients)])
        for expected, got in zip(*results, strict=True):
            assert torch.allclose(got, expected.expand_as(got) if expected.dim() == 0 else expected, atol=1e-10)


def test_a_query_without_a_key_in_its_cluster_gets_the_nearest():
    """In a causal layer with queries unlike keys some have none; the layer and the groups agree on what they get."""
    layer = make("routed", "dot_product", causal=True)
    x = torch.randn(3, 20, 12, dtype=torch.float64)
    queries, keys = queries_and_keys(layer.score, x)
    queries, keys = (torch.nn.functional.normalize(part, dim=-1) for part in (queries, keys))
    cluster, of_key = (layer.pattern.closeness(part).argmax(dim=-1) for part in (queries, keys))
    same = (cluster[..., None] == of_key[:, :, None]).tril()
    assert not same.any(dim=-1).all()
    assert torch.allclose(attend(layer, x), layer(x)[0])


@pytest.mark.parametrize("name", ["routed", "routed, nearest"])
def test_a_sample_of_padding_alone_mixes_nothing(name):
    for causal in (False, True) if name == "routed" else (False,):
        layer, x = make(name, "dot_product", causal), torch.randn(2, 6, 12, dtype=torch.float64)
        real = torch.tensor([[True] * 6, [False] * 6])
        assert torch.allclose(attend(layer, x, real), layer(x, real)[0])


@pytest.mark.parametrize("d_head", [1, 4])
def test_of_equal_keys_the_first_is_taken(d_head):
    """Of length 1, parallel keys are equally near: with one feature nearly all are."""
    for seed in range(10):
        torch.manual_seed(seed)
        layer = Attention(3 * d_head, 3, 12, "dot_product", causal=True, bias=False).eval()
        layer.pattern = Routed(d_head, 3, 6).eval()
        x = torch.randn(2, 1, 3 * d_head) * 2.0 ** torch.arange(12)[:, None]
        x[:, 8:] = torch.randn(2, 4, 3 * d_head)
        expected = layer(x)[0]
        assert torch.allclose(attend(layer, x), expected, rtol=1e-4, atol=1e-4)
        axes = torch.meshgrid(*(torch.arange(size) for size in (2, 3, 12, 12)), indexing="ij")
        past = torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
        assert torch.equal(flex.mask_mod(layer, x)(*axes), layer.pattern(layer.score, x, None, past, 0, 12, None))


@pytest.mark.parametrize("name", ["window", "strided", "fixed", "routed"])
def test_every_query_stands_in_one_group(name):
    layer = make(name, "dot_product", causal=True)
    x = torch.randn(2, 23, 12, dtype=torch.float64)
    for groups in groups_of(layer, x):
        places = groups.queries.flatten(2)
        for sample in places.flatten(0, 1):
            assert sorted(sample[sample >= 0].tolist()) == list(range(23))
        for keys in groups.keys.flatten(0, 2):
            assert len(set(keys[keys >= 0].tolist())) == (keys >= 0).sum()


def work(name, length):
    """Multiply-adds times 2 of attention alone, counted by torch, with groups of sqrt(length)."""
    side = int(length**0.5)
    torch.manual_seed(0)
    layer = Attention(16, 2, length, "dot_product", causal=True).eval()
    layer.pattern = {"window": Window(side), "strided": Strided(side), "fixed": Fixed(side)}[name]
    x = torch.randn(1, length, 16)
    folded, value = layer.score.fold(x, None, length, 0, None), torch.randn(1, 2, length, 8)
    with FlopCounterMode(display=False) as counter:
        for groups in groups_of(layer, x):
            in_groups(folded, value, groups)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["window", "strided", "fixed"])
def test_the_work_grows_like_n_sqrt_n(name):
    few, many = work(name, 256), work(name, 4096)
    assert abs(log(many / few, 16) - 1.5) < 0.12
    assert many < 2 * 2 * 4096**2 * 16 / 8  # an eighth of the whole map


def test_members_of_clusters():
    cluster = torch.tensor([[[2, 0, -1, 2, 2, 0]]])
    assert by_cluster(cluster, 4).tolist() == [[[[1, 5, -1], [-1, -1, -1], [0, 3, 4], [-1, -1, -1]]]]
    assert by_cluster(torch.full((1, 1, 3), -1), 2).tolist() == [[[[-1], [-1]]]]


def test_bad_input():
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    layer = make("routed, nearest", "dot_product", causal=True)
    with pytest.raises(ValueError, match="keep is 2: the nearest keys before it differ for every query"):
        attend(layer, x)
    layer.pattern = Hashed(4, 3)
    with pytest.raises(TypeError, match="no groups for Hashed: call the layer"):
        attend(layer, x)
    layer.pattern = None
    with pytest.raises(TypeError, match="no groups for NoneType"):
        attend(layer, x)
    single = make("strided", "dot_product", causal=True, head=1)
    with pytest.raises(TypeError, match="Strided with a single head"):
        attend(single, x)
    layer = make("window", "dot_product", causal=True)
    with pytest.raises(ValueError, match="mask is .* must be .batch, key."):
        attend(layer, x, torch.ones(2, 1, 9, 9, dtype=torch.bool))
    handle = layer.score.register_forward_hook(lambda *arguments: None)
    with pytest.raises(ValueError, match="a hook hangs on it"):
        attend(layer, x)
    handle.remove()
    layer.dropout = 0.1
    with pytest.raises(ValueError, match="dropout is 0.1"):
        attend(layer.train(), x)
    with pytest.raises(ValueError, match="axis length of x is 25"):
        attend(layer.eval(), torch.randn(1, 25, 12, dtype=torch.float64))


class Own(Window):
    def sets(self, query, key):
        return query == key, None


class Earlier(Places):
    def sets(self, query, key):
        return key < query, None


class OfAll(Routed):
    def choose(self, queries, keys, allowed, start=None):
        return allowed


@torch.no_grad()
@pytest.mark.parametrize("form", [attend, flex.attend])
def test_what_a_form_would_leave_out_is_refused(form):
    """Each was computed in silence as if it were another pattern or layer."""
    x = torch.randn(2, 9, 12)
    layer = layers.make("window")
    layer.pattern = Own(3)
    if form is flex.attend:  # it asks for the sets
        assert torch.allclose(form(layer, x), layer(x)[0], atol=1e-5)
    for error, pattern, said in (
        *([(TypeError, Own(3), "Own: call the layer")] if form is attend else []),
        (TypeError if form is attend else ValueError, Earlier(), "Earlier.*: call the layer"),
        (TypeError, OfAll(4, 3, 2), "OfAll: call the layer"),
        (ValueError, Routed(4, 1, 2), "has head = 1 and features = 4, but S gives head = 3 and features = 4"),
    ):
        layer.pattern = pattern.eval()
        with pytest.raises(error, match=said):
            form(layer, x)
    layer.pattern = Window(3)
    layer.pattern.register_forward_hook(lambda *arguments: None)
    with pytest.raises(ValueError, match="a hook hangs on Window, and acts on the mask: call the layer"):
        form(layer, x)
    cross = CrossAttention(12, 3, 24).eval()
    cross.pattern = Routed(4, 3, 2).eval()
    with pytest.raises(TypeError, match="layer is a CrossAttention, but this form has the keys of x alone"):
        form(cross, x)


@torch.no_grad()
def test_under_autocast_the_choice_stays_in_float32():
    x = torch.randn(40, 24, 12)  # many choices: some are close
    for form in (attend, flex.attend):
        layer = layers.make("routed", "dense")
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.allclose(form(layer, x), layer(x)[0], atol=0.03)


def test_an_empty_batch():
    layer = make("routed", "dot_product", causal=False)
    assert attend(layer, torch.randn(0, 9, 12, dtype=torch.float64)).shape == (0, 9, 12)


@pytest.mark.parametrize("form", [attend, flex.attend])
def test_centroids_are_not_left_behind_in_training(form):
    layer, x = make("routed", "dot_product", causal=False).train(), torch.randn(2, 9, 12, dtype=torch.float64)
    with pytest.raises(ValueError, match="Routed is in training mode, where the layer moves centroids"):
        form(layer, x)
