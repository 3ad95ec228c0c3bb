"""Clusters against loops; the choice that would leak the future; the moving average."""

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from synth_lib.attention import Attention, CrossAttention
from synth_lib.sparse.compared import queries_and_keys
from synth_lib.sparse.routed import Routed


def unit(*shape, seed):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def nearest(vector, centroids):
    return min(range(len(centroids)), key=lambda c: (vector - centroids[c]).norm().item())


@pytest.mark.parametrize("keep", [None, 1, 3])
def test_the_choice_equals_loops(keep):
    torch.manual_seed(0)
    pattern = Routed(5, 2, 4, keep=keep).eval()
    pattern.centroids *= torch.rand(2, 4, 1) + 0.5  # averages are shorter than 1, and differ in length
    queries, keys = unit(2, 2, 9, 5, seed=1), unit(2, 2, 9, 5, seed=2)
    allowed = torch.ones(2, 2, 9, 9, dtype=torch.bool).tril()
    allowed[1, :, :, :3] = False
    chosen = pattern.choose(3 * queries, 0.5 * keys, allowed)
    for sample in range(2):
        for head in range(2):
            centroids = pattern.centroids[head]
            for i in range(9):
                cluster = nearest(queries[sample, head, i], centroids)
                own = [j for j in range(9) if allowed[sample, head, i, j]]
                by_distance = sorted(own, key=lambda j: (keys[sample, head, j] - centroids[cluster]).norm().item())
                expected = by_distance[:keep]
                if keep is None:
                    members = [j for j in own if nearest(keys[sample, head, j], centroids) == cluster]
                    expected = members or by_distance[:1]
                assert chosen[sample, head, i].nonzero().flatten().tolist() == sorted(expected)


def leaks(choose):
    """How many of 60 exchanges of the last of 16 tokens change an earlier row."""
    torch.manual_seed(0)
    pattern = Routed(4, 1, 4, keep=4).eval()
    count = 0
    for seed in range(60):
        vectors = unit(1, 1, 16, 4, seed=seed)
        before = choose(pattern, vectors)
        vectors[:, :, -1] = unit(1, 1, 4, seed=1000 + seed)
        count += not torch.equal(choose(pattern, vectors)[:, :, :-1], before[:, :, :-1])
    return count


def test_the_nearest_of_all_would_leak_and_ours_does_not():
    past = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
    everything = torch.ones_like(past)
    assert leaks(lambda pattern, vectors: pattern.choose(vectors, vectors, past)) == 0
    assert leaks(lambda pattern, vectors: pattern.choose(vectors, vectors, everything) & past) > 10


def test_centroids_follow_their_members_in_training_only():
    torch.manual_seed(0)
    pattern = Routed(3, 1, 2, decay=0.9)
    start = pattern.centroids.clone()
    queries, keys = unit(2, 1, 4, 3, seed=1), unit(2, 1, 4, 3, seed=2)
    allowed = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    allowed[1, :, :, 2:] = False  # padding: two keys that nobody may attend to
    allowed[1, :, 3] = False  # and a query that may attend to nothing
    expected = start.clone()
    for vectors, real in ((queries, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]),
                          (keys, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)])):  # fmt: skip
        for cluster in range(2):
            members = [vectors[s, 0, p] for s, p in real if nearest(vectors[s, 0, p], start[0]) == cluster]
            if members:
                expected[0, cluster] = 0.95 * expected[0, cluster] + 0.05 * torch.stack(members).mean(dim=0)
    pattern.eval().choose(queries, keys, allowed)
    assert torch.equal(pattern.centroids, start)
    first = pattern.train().choose(queries, keys, allowed)
    assert torch.allclose(pattern.centroids, expected, atol=1e-6)
    pattern.centroids.copy_(start)
    assert torch.equal(pattern.eval().choose(queries, keys, allowed), first)  # chosen before they moved


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_centroids_move_as_far_in_half_precision(dtype):
    torch.manual_seed(0)
    pattern = Routed(3, 1, 2)
    other = copy.deepcopy(pattern).to(dtype)
    vectors, allowed = unit(1, 1, 8, 3, seed=1), torch.ones(1, 1, 8, 8, dtype=torch.bool)
    for _ in range(20):
        pattern.choose(vectors, vectors, allowed)
        other.choose(vectors, vectors, allowed)
    assert torch.equal(other.centroids, pattern.centroids)


def test_k_means_finds_three_heaps():
    torch.manual_seed(0)
    heaps = F.normalize(torch.eye(3).repeat_interleave(20, dim=0) + 0.1 * torch.randn(60, 3), dim=-1)[None, None]
    pattern = Routed(3, 1, 3, decay=0.8)
    pattern.centroids += 0.3 * torch.eye(3)  # one near each: k-means alone may end with two in one heap
    for _ in range(60):
        pattern.choose(heaps, heaps, torch.ones(1, 1, 60, 60, dtype=torch.bool))
    chosen = pattern.eval().choose(heaps, heaps, torch.ones(1, 1, 60, 60, dtype=torch.bool))
    assert torch.equal(chosen[0, 0], torch.block_diag(*[torch.ones(20, 20)] * 3).bool())


PADDED = {
    "right": torch.arange(7) < torch.tensor([7, 3, 5])[:, None],
    "left": torch.arange(7) >= torch.tensor([0, 4, 2])[:, None],
    "one sample": torch.arange(7) < torch.tensor([7, 7, 2])[:, None],
    "all of a sample": torch.arange(7) < torch.tensor([7, 0, 5])[:, None],
    "none": torch.ones(3, 7, dtype=torch.bool),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", PADDED)
def test_padding_moves_no_centroid(side, causal):
    """Queries at padding may attend to tokens, and would pull all centroids to where they lie."""
    torch.manual_seed(0)
    layer = Attention(6, 2, 7, "dot_product", causal=causal).double()
    layer.pattern = Routed(3, 2, 3, decay=0.5).double()
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    start = layer.pattern.centroids.clone()
    queries, keys = (F.normalize(part.double(), dim=-1) for part in queries_and_keys(layer.score, x))
    layer(x, PADDED[side])
    expected = followed(start, [(queries, PADDED[side]), (keys, PADDED[side])])
    assert torch.allclose(layer.pattern.centroids, expected, atol=1e-6)


def test_in_cross_attention_each_query_moves_centroids():
    """It stands at no key, however many more or fewer of those there are."""
    torch.manual_seed(0)
    layer = CrossAttention(6, 2, 7).double()
    layer.pattern = Routed(3, 2, 3, decay=0.5).double()
    for length in (2, 7):
        x, memory = torch.randn(3, length, 6, dtype=torch.float64), torch.randn(3, 7, 6, dtype=torch.float64)
        start = layer.pattern.centroids.clone()
        queries, keys = (F.normalize(part.double(), dim=-1) for part in queries_and_keys(layer.score, x, memory))
        layer(x, memory, PADDED["left"])
        everywhere = torch.ones(3, length, dtype=torch.bool)
        expected = followed(start, [(queries, everywhere), (keys, PADDED["left"])])
        assert torch.allclose(layer.pattern.centroids, expected, atol=1e-6)


def followed(start, vectors_and_real):
    """Centroids "head cluster feature" after one step with decay 0.5, in loops over the tokens that are real."""
    moved = start.clone()
    for vectors, real in vectors_and_real:
        for head in range(len(start)):
            for cluster in range(start.shape[1]):
                members = [vectors[sample, head, place] for sample, place in real.nonzero().tolist()
                           if nearest(vectors[sample, head, place], start[head]) == cluster]  # fmt: skip
                if members:
                    moved[head, cluster] = 0.75 * moved[head, cluster] + 0.25 * sum(members) / len(members)
    return moved


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_would_choose_other_keys_and_is_refused(reentrant):
    """The forward pass that is repeated for the gradients would come after the centroids have moved."""
    layer = Attention(8, 2, 16, score="dot_product")
    layer.pattern = Routed(4, 2, 3, keep=2)
    x = torch.randn(2, 16, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="activation checkpointing calls again: leave this layer out of it"):
        checkpoint(layer, x, use_reentrant=reentrant)[0].sum().backward()
    layer.pattern.eval()
    (plain,) = torch.autograd.grad(layer(x)[0].sum(), x)
    (again,) = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False)[0].sum(), x)
    assert torch.equal(again, plain)
