"""The identities of each transform, in float64; the hashes against loops; what makes it hashing and not noise."""

from math import acos, floor, pi, sqrt

import pytest
import torch

from synth_lib.sparse.hashed import EXTRA, Hashed, query_transform, transformed_keys


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def pair():
    """40 queries, half of them shorter than 1, 30 keys, all products, and M."""
    queries, keys = vectors(40, 5), 3 * vectors(30, 5, seed=1)
    queries[:20] *= 0.2
    return queries, keys, queries @ keys.T, keys.norm(dim=-1).max()


def test_simple_lsh(pair):
    queries, keys, product, longest = pair
    P, Q = transformed_keys("simple-lsh", keys, longest), query_transform("simple-lsh", queries, longest)
    assert torch.allclose(P.norm(dim=-1), torch.ones(30).double())
    assert torch.allclose(Q.norm(dim=-1), torch.ones(40).double())
    assert torch.allclose(Q @ P.T, product / queries.norm(dim=-1, keepdim=True) / longest)


def test_simple_alsh(pair):
    queries, keys, product, longest = pair
    P, Q = transformed_keys("simple-alsh", keys, longest), query_transform("simple-alsh", queries, longest)
    assert torch.allclose(P.norm(dim=-1), torch.ones(30).double())
    assert torch.allclose(Q.norm(dim=-1), torch.ones(40).double())
    assert torch.allclose(Q @ P.T, product / queries.norm(dim=-1, keepdim=True).clamp(min=1) / longest)


@pytest.mark.parametrize("normalize", [False, True])
def test_xbox(pair, normalize):
    queries, keys, product, longest = pair
    P, Q = transformed_keys("xbox", keys, longest), query_transform("xbox", queries, longest, normalize)
    assert torch.allclose(P.norm(dim=-1), torch.ones(30).double())
    norm = queries.norm(dim=-1, keepdim=True)
    if normalize:
        expected = 2 - 2 * product / norm / longest
    else:
        expected = 1 + (norm / longest) ** 2 - 2 * product / longest**2
    assert torch.allclose((Q[:, None] - P).square().sum(dim=-1), expected)


def test_i_alsh(pair):
    queries, keys, product, longest = pair
    P, Q = transformed_keys("i-alsh", keys, longest), query_transform("i-alsh", queries, longest)
    norm = 0.75 * keys.norm(dim=-1) / longest
    assert torch.allclose(P.square().sum(dim=-1), 0.5 + norm**8)
    assert torch.allclose(Q @ P.T, 0.75 * product / longest)


@pytest.mark.parametrize("kind", EXTRA)
def test_the_largest_product_comes_first_where_the_nearest_vector_does_not(kind):
    """One long key further away, one short key near: the product prefers the long one, the distance the short one."""
    query = torch.tensor([[1.0, 0.0]]).double()
    keys = torch.tensor([[0.9, 0.0], [2.0, 2.0]]).double()
    assert (query @ keys.T).argmax() == 1 and (query - keys).norm(dim=-1).argmin() == 0
    longest = keys.norm(dim=-1).max()
    P, Q = transformed_keys(kind, keys, longest), query_transform(kind, query, longest)
    measure = (Q - P).norm(dim=-1) if kind == "xbox" else -torch.cosine_similarity(Q, P)
    assert measure.argmin() == 1


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", EXTRA)
def test_the_agreements_equal_loops(kind, normalize):
    """Each query has its own M, from the keys that it may attend to."""
    torch.manual_seed(0)
    pattern = Hashed(4, 2, kind, hashes=7, normalize_queries=normalize).double()
    queries, keys = vectors(2, 2, 6, 4), vectors(2, 2, 6, 4, seed=1)
    allowed = torch.ones(2, 2, 6, 6, dtype=torch.bool).tril()
    allowed[1, :, :, 0] = False
    got = pattern.agreements(queries.float(), keys.float(), allowed)
    for sample in range(2):
        for head in range(2):
            for i in range(6):
                own = [j for j in range(6) if allowed[sample, head, i, j]]
                if not own:
                    continue
                longest = max(keys[sample, head, j].norm() for j in own)
                Q = query_transform(kind, queries[sample, head, i], longest, normalize)
                for j in own:
                    P = transformed_keys(kind, keys[sample, head, j], longest)
                    count = 0
                    for a, b in zip(pattern.directions[head], pattern.shifts[head], strict=True):
                        if kind == "xbox":
                            count += floor((a @ P + b) / 2) == floor((a @ Q + b) / 2)
                        else:
                            count += bool(a @ P >= 0) == bool(a @ Q >= 0)
                    assert got[sample, head, i, j] == count


@pytest.mark.parametrize("kind", ["simple-lsh", "simple-alsh", "i-alsh"])
def test_hashes_agree_as_often_as_the_angle_says(kind):
    torch.manual_seed(0)
    hashes = 20_000
    pattern = Hashed(6, 1, kind, hashes=hashes)
    queries, keys = vectors(1, 1, 1, 6).float(), vectors(1, 1, 5, 6, seed=1).float()
    rate = pattern.agreements(queries, keys, torch.ones(1, 1, 1, 5, dtype=torch.bool))[0, 0, 0] / hashes
    longest = keys.norm(dim=-1).max()
    P, Q = transformed_keys(kind, keys[0, 0], longest), query_transform(kind, queries[0, 0], longest)
    for got, cosine in zip(rate.tolist(), torch.cosine_similarity(Q, P).tolist(), strict=True):
        expected = 1 - acos(cosine) / pi
        assert abs(got - expected) < 5 * sqrt(expected * (1 - expected) / hashes)


def recall(kind, hashes, normalize, keep=32, length=128, samples=4):
    """The share of the 32 keys of 128 with the largest products that are kept."""
    torch.manual_seed(1)
    pattern = Hashed(16, 1, kind, hashes=hashes, keep=keep, normalize_queries=normalize)
    queries, keys = vectors(samples, 1, length, 16).float(), vectors(samples, 1, length, 16, seed=2).float()
    keys *= 0.5 + torch.rand(samples, 1, length, 1, generator=torch.Generator().manual_seed(3))
    allowed = torch.ones(samples, 1, length, length, dtype=torch.bool)
    kept = pattern.choose(queries, keys, allowed)
    best = (queries @ keys.mT).topk(keep, dim=-1).indices
    assert (kept.sum(dim=-1) == keep).all()
    return kept.gather(-1, best).float().mean().item()


@pytest.mark.parametrize("kind", EXTRA)
def test_recall_is_above_chance_and_grows_with_the_hashes(kind):
    """With the hashes of the key on the query's axis it would stay at chance, 32 of 128."""
    few, more, many = (recall(kind, hashes, normalize=True) for hashes in (4, 32, 256))
    assert 0.25 + 0.05 < few < more - 0.03 and more < many - 0.03


def test_a_key_twice_as_long_is_kept_more_often():
    """What the further coordinate is for: without it the length of a key would not count."""
    torch.manual_seed(0)
    pattern = Hashed(8, 1, hashes=64, keep=20)
    queries, keys = vectors(8, 1, 40, 8).float(), vectors(8, 1, 40, 8, seed=1).float()
    keys[:, :, :20] *= 3
    products = queries @ keys.mT
    kept = pattern.choose(queries, keys, torch.ones_like(products, dtype=torch.bool))
    large = products > products.median()
    assert kept[..., :20][large[..., :20]].float().mean() > kept[..., 20:][large[..., 20:]].float().mean()
    assert kept[..., :20][~large[..., :20]].float().mean() < kept[..., 20:][~large[..., 20:]].float().mean()


def test_of_equals_the_later_key_is_kept():
    pattern = Hashed(3, 1, keep=2)
    allowed = torch.tensor([True, True, True, True, False]).view(1, 1, 1, 5)
    kept = pattern.choose(torch.ones(1, 1, 1, 3), torch.ones(1, 1, 5, 3), allowed)
    assert kept.flatten().tolist() == [False, False, True, True, False]
