"""The exercises of chapter 01: dot-product attention, its heads, masks, cost, and what it does not know."""

from itertools import permutations
from math import prod, sqrt

import torch
from einops import einsum, rearrange

from synth_lib.checks.exercise import Exercise, Reads, RowsSumTo1, ZeroOutside, mistakes
from synth_lib.masks import masked_softmax

EQUATIONS = "The equations"
LOOPS = "Loops say the equation aloud"
WEIGHTS = "From scores to weights to the result"
ROOT = "Why divide by the square root of d_head?"
HEADS = "Heads: several maps side by side"
ALL_HEADS = "All heads, and all sentences, at once"
MASKS = "Masks: where a token may not look"
NOWHERE = "A row that may look nowhere"
PARAMETERS = "Parameters"
MULTIPLY_ADDS = "Multiply-adds"
CUBE = 'Is it "O(d³)"?'
ORDER = "Where it breaks: it does not know the order"


# 01.1. The scores are square, so that transposed scores have the right shape.


def _one_head_inputs(draw):
    d_head = 4  # that of the chapter, which some take for every d_head
    while d_head == 4:
        length, d_model, d_head = draw.sizes("length d_model d_head", low=3).values()
    return {
        "x": draw.normal(length, d_model),
        "W_query": draw.normal(d_model, d_head) / sqrt(d_model),
        "W_key": draw.normal(d_model, d_head) / sqrt(d_model),
    }


def _raw_scores(x, W_query, W_key):
    return (x @ W_query) @ (x @ W_key).T


def _one_head_matmul(x, W_query, W_key):
    return _raw_scores(x, W_query, W_key) / sqrt(W_query.shape[1])


def _one_head_einsum(x, W_query, W_key):
    query = einsum(x, W_query, "query d_model, d_model d_head -> query d_head") * W_query.shape[1] ** -0.5
    key = einsum(x, W_key, "key d_model, d_model d_head -> key d_head")
    return einsum(query, key, "query d_head, key d_head -> query key")


def _one_head_in_loops(x, W_query, W_key):
    length, d_model = x.shape
    d_head = W_query.shape[1]
    query, key, scores = torch.zeros(length, d_head), torch.zeros(length, d_head), torch.zeros(length, length)
    for i in range(length):
        for f in range(d_head):
            for m in range(d_model):
                query[i, f] += x[i, m] * W_query[m, f]
                key[i, f] += x[i, m] * W_key[m, f]
    for i in range(length):
        for j in range(length):
            for f in range(d_head):
                scores[i, j] += query[i, f] * key[j, f]
            scores[i, j] /= d_head**0.5
    return scores


ONE_HEAD = Exercise(
    key="01.1",
    title="the scores of one head",
    name="one_head",
    minutes=8,
    level="easy",
    inputs=_one_head_inputs,
    returns="query key",
    right=(
        _one_head_matmul,
        _one_head_einsum,
        _one_head_in_loops,
        lambda x, W_query, W_key: x @ (W_query @ W_key.T) @ x.T / sqrt(W_key.shape[-1]),
    ),
    wrong=mistakes({
        ROOT: {
            "the scores are not divided.": _raw_scores,
            "under the root stands d_model, but a score is a sum of fewer terms.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key) / sqrt(x.shape[1]),
            "under the root stands the length of the sentence.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key) / sqrt(len(x)),
            "under the root stands 4, the d_head of this chapter; take it from the shapes.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key) / sqrt(4),
            "the root is lost: it is divided by d_head itself (a mean does that, and so do two divisions).":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key) / W_query.shape[1],
            "it is divided by d_head and by its root; a mean already divides.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key) / W_query.shape[1] ** 1.5,
            "the root is taken twice.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key) / W_query.shape[1] ** 0.25,
            "the scores are multiplied by the root instead of divided.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key) * sqrt(W_query.shape[1]),
        },
        LOOPS: {
            "rows and columns are swapped: row i should belong to query i.":
                lambda x, W_query, W_key: _one_head_matmul(x, W_query, W_key).T,
            "rows and columns are swapped, and nothing is divided.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key).T,
            "each product takes the place of the one before: only the last number of a head is left in a score.":
                lambda x, W_query, W_key: (x @ W_query)[:, -1:] @ (x @ W_key)[:, -1:].T / sqrt(W_query.shape[1]),
            "queries and keys keep only the product with the last number of a token; they are sums.":
                lambda x, W_query, W_key: _one_head_matmul(x[:, -1:], W_query[-1:], W_key[-1:]),
            "nothing is added up, in none of the three lines: each product takes the place of the one before.":
                lambda x, W_query, W_key: (
                    x[:, -1:] @ W_query[-1:, -1:] @ (x[:, -1:] @ W_key[-1:, -1:]).T / sqrt(W_query.shape[1])
                ),
        },
        EQUATIONS: {
            "the keys are made with the matrix of the queries.":
                lambda x, W_query, W_key: _one_head_matmul(x, W_query, W_query),
            "the queries are made with the matrix of the keys.":
                lambda x, W_query, W_key: _one_head_matmul(x, W_key, W_key),
            "the tokens themselves are compared; the projections are missing.":
                lambda x, W_query, W_key: x @ x.T / sqrt(W_query.shape[1]),
        },
        WEIGHTS: {
            "it goes one step too far: these are weights, and the exercise asks for the scores before them.":
                lambda x, W_query, W_key: _one_head_matmul(x, W_query, W_key).softmax(dim=-1),
            "these are weights, of scores that were not divided; the exercise asks for the scores.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key).softmax(dim=-1),
            "there is a softmax, and the division comes after it; the exercise asks for divided scores, no weights.":
                lambda x, W_query, W_key: _raw_scores(x, W_query, W_key).softmax(dim=-1) / sqrt(W_query.shape[1]),
        },
    }),
)  # fmt: skip


# 01.2. As many keys as queries, so that a map with the two swapped has the right shape.


def _map_inputs(draw):
    while True:
        sizes = draw.sizes("batch head d_head length")
        if sizes["head"] != 4 and sizes["d_head"] not in (2, 4):  # 2 is the root of 4, the d_head of the chapter
            break
    batch, length, d_model = sizes["batch"], sizes["length"], sizes["d_model"]
    return {
        "query": draw.normal(batch, length, d_model),
        "key": draw.normal(batch, length, d_model),
        "head": sizes["head"],
    }


SPLIT = "batch length (head d_head) -> batch head length d_head"
CARDS = "batch length (d_head head) -> batch head length d_head"


def _map_scores(query, key, head, pattern=SPLIT):
    """Scaled scores of all heads, split by `pattern`."""
    query, key = (rearrange(features, pattern, head=head) for features in (query, key))
    return query @ key.mT / sqrt(query.shape[-1])


def _map_reshaped(query, key, head):
    batch, length, d_model = query.shape
    query, key = (features.reshape(batch, head, length, d_model // head) for features in (query, key))
    return (query @ key.mT / sqrt(d_model // head)).softmax(dim=-1)


def _map_einsum(query, key, head):
    query = rearrange(query, "batch query (head d_head) -> batch head query d_head", head=head)
    key = rearrange(key, "batch key (head d_head) -> batch head key d_head", head=head)
    scores = einsum(query, key, "batch head query d_head, batch head key d_head -> batch head query key")
    return torch.softmax(scores / query.shape[-1] ** 0.5, dim=3)


def _map_transposed(query, key, head):
    batch, length, d_model = query.shape
    query = query.view(batch, length, head, d_model // head).transpose(1, 2) * (d_model // head) ** -0.5
    key = key.view(batch, length, head, d_model // head).permute(0, 2, 3, 1)
    return (query @ key).softmax(-1)


def _map_in_loops(query, key, head):
    batch, length, d_model = query.shape
    d_head = d_model // head
    weights = torch.zeros(batch, head, length, length)
    for b in range(batch):
        for h in range(head):
            own = slice(h * d_head, (h + 1) * d_head)
            scores = query[b, :, own] @ key[b, :, own].T / sqrt(d_head)
            weights[b, h] = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
    return weights


def _map_sliced(query, key, head, step, size):
    """Head h gets `size` numbers from h * step on; right if both are d_head."""
    d_head = query.shape[-1] // head
    owns = [slice(h * step, h * step + size) for h in range(head)]
    scores = [query[..., own] @ key[..., own].mT / sqrt(d_head) for own in owns]
    return torch.stack(scores, dim=1).softmax(dim=-1)


HEAD_MAPS = Exercise(
    key="01.2",
    title="the maps of all heads",
    name="head_maps",
    minutes=12,
    level="medium",
    inputs=_map_inputs,
    returns="batch head query key",
    properties=(
        RowsSumTo1(),
        Reads("query", 1, 2, "token"),
        Reads("query", 0, 0, "sentence"),
        Reads("key", 0, 0, "sentence"),
    ),
    right=(_map_einsum, _map_transposed, _map_in_loops),
    wrong=mistakes({
        ALL_HEADS: {
            "the heads are cut out by a reshape alone, so a row of a head is made of other tokens.": _map_reshaped,
            "the numbers are there, but head stands behind query.":
                lambda query, key, head: _map_scores(query, key, head).softmax(dim=-1).transpose(1, 2),
            "the numbers are there, but head stands in front of batch.":
                lambda query, key, head: _map_scores(query, key, head).softmax(dim=-1).transpose(0, 1),
        },
        HEADS: {
            "the numbers are dealt out to the heads like cards; each head owns neighbours.":
                lambda query, key, head: _map_scores(query, key, head, CARDS).softmax(dim=-1),
            "the queries are split well, the keys are dealt out like cards.":
                lambda query, key, head: (
                    rearrange(query, SPLIT, head=head)
                    @ rearrange(key, CARDS, head=head).mT
                    / sqrt(query.shape[-1] // head)
                ).softmax(dim=-1),
            "the slice of a head starts at h times the number of heads; each head owns d_head numbers.":
                lambda query, key, head: _map_sliced(query, key, head, step=head, size=query.shape[-1] // head),
            "the slice of a head is as wide as the number of heads; each head owns d_head numbers.":
                lambda query, key, head: _map_sliced(query, key, head, step=head, size=head),
            "all heads get the map of head 0.":
                lambda query, key, head: _map_scores(query, key, head).softmax(dim=-1)[:, :1].repeat(1, head, 1, 1),
            "the keys of all heads are added up; each head has keys of its own.":
                lambda query, key, head: (
                    rearrange(query, SPLIT, head=head)
                    @ rearrange(key, SPLIT, head=head).sum(dim=1, keepdim=True).mT
                    / sqrt(query.shape[-1] // head)
                ).softmax(dim=-1),
            "the scores of the heads are added up; each head has a map of its own.":
                lambda query, key, head: _map_scores(query, key, head).sum(dim=1).softmax(dim=-1),
            "the maps are averaged over the heads; each head keeps its own.":
                lambda query, key, head: _map_scores(query, key, head).softmax(dim=-1).mean(dim=1),
            "every head compares all the features and gets the same map.":
                lambda query, key, head: (
                    (query @ key.mT / sqrt(query.shape[-1])).softmax(dim=-1)[:, None].repeat(1, head, 1, 1)
                ),
        },
        ROOT: {
            "under the root stands d_model, but each head adds up fewer terms.":
                lambda query, key, head: (_map_scores(query, key, head) / sqrt(head)).softmax(dim=-1),
            "under the root stands the number of heads.":
                lambda query, key, head: (
                    _map_scores(query, key, head) * sqrt(query.shape[-1] // head) / sqrt(head)
                ).softmax(dim=-1),
            "under the root stands 4, the d_head of this chapter; take it from the shapes.":
                lambda query, key, head: (
                    _map_scores(query, key, head) * sqrt(query.shape[-1] // head) / sqrt(4)
                ).softmax(dim=-1),
            "under the root stands the length of the sentence.":
                lambda query, key, head: (
                    _map_scores(query, key, head) * sqrt(query.shape[-1] // head) / sqrt(query.shape[1])
                ).softmax(dim=-1),
            "the scores are not divided before the softmax.":
                lambda query, key, head: (_map_scores(query, key, head) * sqrt(query.shape[-1] // head)).softmax(
                    dim=-1
                ),
            "the root is lost: it is divided by d_head itself.":
                lambda query, key, head: (_map_scores(query, key, head) / sqrt(query.shape[-1] // head)).softmax(
                    dim=-1
                ),
            "the division comes after the softmax, so that the rows no longer sum to 1.":
                lambda query, key, head: (
                    (_map_scores(query, key, head) * sqrt(query.shape[-1] // head)).softmax(dim=-1)
                    / sqrt(query.shape[-1] // head)
                ),
        },
        WEIGHTS: {
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                lambda query, key, head: _map_scores(query, key, head).softmax(dim=-2),
            "the softmax runs along the heads. A softmax without dim can do strange things, too: name the keys.":
                lambda query, key, head: _map_scores(query, key, head).softmax(dim=1),
            "the softmax runs along the batch, so it mixes sentences.":
                lambda query, key, head: _map_scores(query, key, head).softmax(dim=0),
            "the softmax runs over the whole map, so that all rows together sum to 1.":
                lambda query, key, head: (
                    _map_scores(query, key, head).flatten(2).softmax(-1).view(len(query), head, query.shape[1], -1)
                ),
            "these are the scores; the softmax is missing.": _map_scores,
        },
        LOOPS: {
            "query and key are swapped: a row should belong to the token that attends.":
                lambda query, key, head: _map_scores(key, query, head).softmax(dim=-1),
            "the map is transposed: a row should belong to the token that attends.":
                lambda query, key, head: _map_scores(query, key, head).softmax(dim=-1).mT,
        },
    }),
)  # fmt: skip


# 01.3. In each sentence one row may look nowhere, one everywhere, one at a single key. The scores of a fourth row lie
# near -70: lower than a number that is filled in by guess, and still high enough for exp.


def _mask_inputs(draw):
    sizes = draw.sizes("batch head length", low=4)
    batch, length = sizes["batch"], sizes["length"]
    allowed = draw.normal(batch, 1, length, length) > 0
    scores = draw.normal(batch, sizes["head"], length, length)
    for b in range(batch):
        scores[b, :, (b + 3) % length] -= 70
        allowed[b, 0, (b + 3) % length, :2] = torch.tensor([True, False])
        allowed[b, 0, b % length] = False
        allowed[b, 0, (b + 1) % length] = True
        allowed[b, 0, (b + 2) % length] = torch.arange(length) == (b + 3) % length
    return {"scores": scores, "allowed": allowed}


def _small_mask():
    allowed = torch.tensor([[True, False, False], [False, False, False], [True, True, False]])
    return {"scores": torch.zeros(1, 1, 3, 3), "allowed": allowed.reshape(1, 1, 3, 3)}


def _masked_lowest(scores, allowed):
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1) * allowed


def _masked_infinity(scores, allowed):
    return torch.where(allowed, scores, -torch.inf).softmax(dim=-1)


def _masked_exponentials(scores, allowed):
    exponentials = scores.exp() * allowed
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / total.where(total > 0, 1.0)


def _masked_in_loops(scores, allowed):
    weights = torch.zeros_like(scores)
    batch, head, length, _ = scores.shape
    for b in range(batch):
        for h in range(head):
            for i in range(length):
                keys = [j for j in range(length) if allowed[b, 0, i, j]]
                if keys:
                    weights[b, h, i, keys] = scores[b, h, i, keys].softmax(dim=0)
    return weights


def _masked_constant(scores, allowed):
    return (scores - 100 * (~allowed).float()).softmax(dim=-1)


MASKED_WEIGHTS = Exercise(
    key="01.3",
    title="masked softmax",
    name="masked_weights",
    minutes=15,
    level="medium",
    inputs=_mask_inputs,
    returns="batch head query key",
    properties=(
        RowsSumTo1(),
        ZeroOutside("allowed"),
        Reads("scores", 2, 2, "query"),
        Reads("scores", 1, 1, "head"),
        Reads("scores", 0, 0, "sentence"),
    ),
    example=_small_mask,
    forbidden=(masked_softmax,),
    right=(
        _masked_lowest,
        lambda scores, allowed: _masked_infinity(scores, allowed).nan_to_num(0.0),
        _masked_exponentials,
        _masked_in_loops,
    ),
    wrong=mistakes({
        NOWHERE: {
            "the rows that may look nowhere are NaN: all else is as it should be.": _masked_infinity,
            "a row that may look nowhere is uniform, so it looks everywhere; it should be zeros.":
                lambda scores, allowed: scores.masked_fill(~allowed, -1e30).softmax(dim=-1),
            "a row that may look nowhere looks as if there were no mask: all its scores were lowered alike, and the "
            "softmax sees only differences.":
                _masked_constant,
            "a row that may look nowhere is hardly changed: all its scores were lowered by the same large number.":
                lambda scores, allowed: (scores - 1e4 * (~allowed).float()).softmax(dim=-1),
            "in a row of very low scores all weights vanish: the number filled in is not far below every score, or a "
            "number is added to the sum.":
                lambda scores, allowed: scores.masked_fill(~allowed, -50).softmax(dim=-1) * allowed,
            "the lowest score is filled in; in the row that it comes from, a forbidden key still gets a share.":
                lambda scores, allowed: scores.masked_fill(~allowed, scores.min()).softmax(dim=-1) * allowed,
            "a row that may look nowhere is filled with ones; it should be zeros.":
                lambda scores, allowed: torch.where(
                    allowed.any(dim=-1, keepdim=True), _masked_infinity(scores, allowed), scores.softmax(dim=-1)
                ).where(allowed.any(dim=-1, keepdim=True), 1.0),
            "a row becomes zeros in all sentences as soon as no key is allowed to it in all of them.":
                lambda scores, allowed: (
                    _masked_infinity(scores, allowed).nan_to_num(0.0)
                    * allowed.all(dim=0, keepdim=True).any(dim=-1, keepdim=True)
                ),
        },
        MASKS: {
            "a forbidden key keeps a small weight: the number that is filled in is not low enough.":
                lambda scores, allowed: scores.masked_fill(~allowed, -10).softmax(dim=-1),
            "the mask is read the wrong way round: True means that a key may be attended.":
                lambda scores, allowed: _masked_lowest(scores, ~allowed),
            "the mask is read the wrong way round, and rows that may look nowhere are NaN.":
                lambda scores, allowed: _masked_infinity(scores, ~allowed),
            "the mask is read the wrong way round, and rows that may look nowhere are uniform.":
                lambda scores, allowed: scores.masked_fill(allowed, -1e30).softmax(dim=-1),
            "the mask is added to the scores as it is; True counts as 1, and a forbidden key keeps a share.":
                lambda scores, allowed: (scores + allowed).softmax(dim=-1),
            "the forbidden scores become 0, and a score of 0 still gets a share.":
                lambda scores, allowed: (scores * allowed).softmax(dim=-1),
            "the forbidden scores become 0, and what the softmax gives them is thrown away; rows sum to less than 1.":
                lambda scores, allowed: (scores * allowed).softmax(dim=-1) * allowed,
            "the weights are set to 0 after the softmax, so rows sum to less than 1.":
                lambda scores, allowed: scores.softmax(dim=-1) * allowed,
            "minus infinity stands among the weights; it belongs among the scores.":
                lambda scores, allowed: scores.softmax(dim=-1).masked_fill(~allowed, -torch.inf),
            "the mask has no effect. Functions like masked_fill leave their input as it is: is the new tensor used?":
                lambda scores, allowed: scores.softmax(dim=-1),
            "the mask is transposed: its rows are the queries.":
                lambda scores, allowed: _masked_lowest(scores, allowed.mT),
            "all sentences get the mask of sentence 0.": lambda scores, allowed: _masked_lowest(scores, allowed[:1]),
        },
        WEIGHTS: {
            "the softmax runs along the heads; the keys are the last axis.":
                lambda scores, allowed: (
                    scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=1) * allowed
                ),
            "these are the masked scores; the softmax is missing.":
                lambda scores, allowed: scores.masked_fill(~allowed, -torch.inf),
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                lambda scores, allowed: (
                    scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-2) * allowed
                ),
            "the exponentials are there, but no row is divided by its sum.":
                lambda scores, allowed: scores.exp() * allowed,
            "all rows are divided by one number; each has a sum of its own.":
                lambda scores, allowed: scores.exp() * allowed / scores.exp().sum(dim=-1, keepdim=True).mean(),
        },
    }),
)  # fmt: skip


# 01.4


def _work_inputs(draw):
    sizes = draw.sizes("batch length head d_head", high=9)
    return {name: sizes[name] for name in ("batch", "length", "d_model", "head")}


def _work_formula(batch, length, d_model, head):
    return 4 * batch * length * d_model**2, 2 * batch * length**2 * d_model


def _work_lists(batch, length, d_model, head):
    d_head = d_model // head
    projections = [(length, d_model, d_model)] * 4
    pairs = [(length, d_head, length), (length, length, d_head)] * head
    return batch * sum(map(prod, projections)), batch * sum(map(prod, pairs))


def _work_counted(batch, length, d_model, head):
    projections = pairs = 0
    for _ in range(batch):
        projections += 4 * d_model * d_model * length
        for _ in range(head):
            pairs += length * length * (d_model // head) + length * length * (d_model // head)
    return projections, pairs


def _work(projections=4.0, pairs=2.0):
    """Wrong answers that only miss a factor: each factor a number, or a function of the sizes by name."""

    def answer(batch, length, d_model, head):
        sizes = {"batch": batch, "length": length, "d_model": d_model, "head": head}
        first, second = (factor(**sizes) if callable(factor) else factor for factor in (projections, pairs))
        return round(first * batch * length * d_model**2), round(second * batch * length**2 * d_model)

    return answer


LAYER_WORK = Exercise(
    key="01.4",
    title="the work of the whole layer",
    name="layer_work",
    minutes=10,
    level="medium",
    inputs=_work_inputs,
    returns="projections, pairs",
    right=(_work_formula, _work_lists, _work_counted),
    wrong=mistakes({
        MULTIPLY_ADDS: {
            "this is the work for the scores alone; values, mixture and output projection are missing.": _work(2, 1),
            "the two numbers are in the wrong order.": lambda **sizes: _work_formula(**sizes)[::-1],
        },
        WEIGHTS: {
            "the mixture is counted among the projections; both of its factors depend on the tokens.": _work(5, 1),
        },
    }) + mistakes({
        MULTIPLY_ADDS: {
            "only one sentence is counted, not the batch.":
                _work(lambda batch, **_: 4 / batch, lambda batch, **_: 2 / batch),
            "a multiplication and its addition are counted as two, as torch's own counter does.": _work(8, 4),
            "the square belongs to d_model, not to the length.":
                _work(lambda length, d_model, **_: 4 * length / d_model),
            "each pair counts as one; a score is a sum of products.": _work(pairs=lambda d_model, **_: 2 / d_model),
        },
        ALL_HEADS: {
            "one of the four is missing. Is it the output?": _work(3),
            "those of values and output are missing.": _work(2),
        },
        WEIGHTS: {
            "there is the comparison or the mixture, but both work on pairs.": _work(pairs=1),
            "there is one too many: the mixture works on pairs.": _work(5),
        },
        HEADS: {
            "only one head is counted.": _work(lambda head, **_: 4 / head, lambda head, **_: 2 / head),
            "every head works with all d_model numbers.": _work(pairs=lambda head, **_: 2 * head),
            "every head has whole matrices, d_model by d_model; they share one.": _work(lambda head, **_: 4 * head),
            "queries, keys and values get whole matrices in every head, d_model by d_model; the heads share one.":
                _work(lambda head, **_: 3 * head + 1),
        },
        CUBE: {
            "a size is wrong: the square belongs to the length, not to d_model.":
                _work(pairs=lambda d_model, length, **_: 2 * d_model / length),
            "the work grows with the third power of d_model; one of the three sizes of a product is another.":
                _work(lambda d_model, length, **_: 4 * d_model / length),
        },
        PARAMETERS: {
            "the parameters are counted; each matrix works once for every token.":
                _work(lambda batch, length, **_: 4 / (batch * length)),
        },
    }, by_part=True),
)  # fmt: skip


# 01.5. The layers of one trial: each shortcut of a test is fooled by at least one. The tokens come sorted by
# their first number, so that some layers can tell in which order they see them.


def _attend(x, allowed=None):
    """Attention without parameters, different for query and key, so that no symmetry helps."""
    scores = x @ x.roll(1, dims=1).T
    weights = (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(dim=-1)
    return weights @ x


def _positions(x):
    """A row of numbers for each position."""
    return torch.linspace(0.3, 2.0, x.numel()).reshape(x.shape).sin()


def _pairs_out_of_order(x):
    first = x[:, 0]
    return int((first[:, None] > first[None, :]).triu().sum())


def _last_two_exchanged(x):
    return _pairs_out_of_order(x) == 1 and bool(x[-2, 0] > x[-1, 0])


def _position_added(x, per_number):
    """Each number of the token at position i grows by i times its entry in per_number, a list for the first numbers."""
    growth = torch.zeros(x.shape[1])
    growth[: len(per_number)] = torch.tensor(per_number)
    return x + torch.arange(len(x))[:, None] * growth


def _changed_at(x, positions):
    """In any other order than the sorted one, the results at these positions, a slice, are others."""
    y = x.clone()
    y[positions] += 0.01 * (_pairs_out_of_order(x) > 0)
    return y


def _last_position_raised(x):
    y = x.clone()
    y[-1] += 1
    return y


LAYERS = {
    "layer of attention": _attend,
    "layer that takes each token alone": lambda x: (3 * x).tanh(),
    "layer that gives all tokens their mean": lambda x: x.mean(dim=0, keepdim=True).expand_as(x),
    "layer of attention with positions": lambda x: _attend(x + _positions(x)),
    "layer of causal attention": lambda x: _attend(x, torch.ones(len(x), len(x)).tril().bool()),
    "layer that subtracts the first token": lambda x: x - x[0],
    "layer that adds both neighbours in a circle": lambda x: x + x.roll(1, dims=0) + x.roll(-1, dims=0),
    "layer that adds the mirror image": lambda x: x + x.flip(0),
    "layer that returns a fixed table": _positions,
    "layer that sorts the numbers": lambda x: x.sort(dim=0).values,
    "layer that breaks only at a full turn": lambda x: (
        x - 0.01 * (_pairs_out_of_order(x) == len(x) * (len(x) - 1) // 2)
    ),
    "layer that breaks only when the last two are exchanged": lambda x: x + 0.01 * _last_two_exchanged(x),
    "layer that breaks at any other order": lambda x: x - 0.01 * (_pairs_out_of_order(x) > 0),
    "layer that breaks only at larger changes": lambda x: x - 0.01 * (_pairs_out_of_order(x) >= 2),
    "layer that leaves the first number of each token exact": lambda x: _position_added(x, [0.0, 1.0]),
    "layer that adds to one number what it takes from another": lambda x: _position_added(x, [1.0, -1.0]),
    "layer that breaks at the last position": _last_position_raised,
    "layer that leaves the first position exact": lambda x: _changed_at(x, slice(1, None)),
    "layer that leaves the last position exact": lambda x: _changed_at(x, slice(None, -1)),
    "layer that turns each row by its position": lambda x: torch.stack([row.roll(i) for i, row in enumerate(x)]),
    "layer that adds 0.0001 for each position": lambda x: x.tanh() + 1e-4 * torch.arange(len(x))[:, None],
}


def _follows_inputs(draw):
    d_model, length = draw.sizes("d_model length", low=4, high=5).values()  # 5! orders are quick, 6! are not
    x = draw.normal(length, d_model)
    return {"layer": dict(LAYERS), "x": x[x[:, 0].argsort()]}


def _same(one, other):
    return torch.allclose(one, other, rtol=0, atol=1e-5)


def _orders(x):
    return [list(order) for order in permutations(range(len(x)))]


def _neighbours(x):
    for i in range(len(x) - 1):
        order = list(range(len(x)))
        order[i], order[i + 1] = i + 1, i
        yield order


def _circle(x):
    return [[(i + step) % len(x) for i in range(len(x))] for step in range(len(x))]


def _follows(orders, same=_same):
    """An answer that tries these orders of x and compares with `same`."""

    def answer(layer, x):
        result = layer(x)
        return all(bool(same(layer(x[order]), result[order])) for order in orders(x))

    return answer


def _follows_in_loops(layer, x):
    result, length = layer(x), len(x)
    for order in permutations(range(length)):
        shuffled = torch.stack([x[i] for i in order])
        again = layer(shuffled)
        for position in range(length):
            if (again[position] - result[order[position]]).abs().max() > 1e-5:
                return False
    return True


def _follows_by_matrices(layer, x):
    swaps = [torch.eye(len(x))[order] for order in _orders(x)]
    return max((layer(swap @ x) - swap @ layer(x)).abs().max().item() for swap in swaps) < 1e-5


FOLLOWS_TOKENS = Exercise(
    key="01.5",
    title="does the output follow the tokens?",
    name="follows_tokens",
    minutes=15,
    level="hard",
    inputs=_follows_inputs,
    returns="True or False",
    right=(_follows(_orders), _follows_in_loops, _follows_by_matrices),
    run=lambda answer, layer, x: {name: answer(layer=one, x=x) for name, one in layer.items()},
    wrong=mistakes({
        ORDER: {
            "one shuffle, or a few, are tried; some layers follow in these and not in others.":
                _follows(lambda x: [[*range(1, len(x), 2), *range(0, len(x), 2)]]),
            "only neighbours are exchanged, one pair at a time; some layers mind only a larger change.":
                _follows(_neighbours),
            "only the tokens turned round count (the last order of a loop may be that one).":
                _follows(lambda x: [list(range(len(x)))[::-1]]),
            "the tokens are only moved in a circle; there are more orders.": _follows(_circle),
            "only the first two tokens are exchanged.": _follows(lambda x: [[1, 0, *range(2, len(x))]]),
            "every layer passes. Is one order that fits enough for your test? The order in which nothing moves always "
            "fits.":
                lambda layer, x: True,
            "no layer passes. An order that fits should not end your test.": lambda layer, x: False,
            "the results should stay where they are; but they should follow their tokens.":
                lambda layer, x: all(_same(layer(x[order]), layer(x)) for order in _orders(x)),
            "the results are shuffled by another order than the tokens: back, or without them.":
                lambda layer, x: all(
                    _same(layer(x[order]), layer(x)[torch.tensor(order).argsort()]) for order in _orders(x)
                ),
            "the numbers of each token are shuffled, not the tokens.":
                lambda layer, x: all(_same(layer(x[:, order]), layer(x)[:, order]) for order in _orders(x.T)),
            "the largest difference is taken without its sign removed: one far below 0 passes.":
                _follows(_orders, lambda one, other: (one - other).max() < 1e-5),
            "differences keep their sign, so that a layer which grows under a shuffle passes.":
                _follows(_orders, lambda one, other: (other - one).max() < 1e-5),
            "all differences are added up, and they cancel.":
                _follows(_orders, lambda one, other: (one - other).sum().abs() < 1e-4),
            "the numbers must be exactly the same, but a sum in another order is rounded differently.":
                _follows(_orders, torch.equal),
            "a difference of 0.01 passes as rounding.":
                _follows(_orders, lambda one, other: torch.allclose(one, other, rtol=0, atol=0.1)),
            "a difference of 0.0001 passes as rounding; the docstring allows less.":
                _follows(_orders, lambda one, other: torch.allclose(one, other, rtol=0, atol=1e-3)),
            "one number that fits is enough for your test; all must fit.":
                _follows(_orders, lambda one, other: ((one - other).abs() < 1e-5).any()),
            "one row that fits is enough for your test; all must fit.":
                _follows(_orders, lambda one, other: ((one - other).abs() < 1e-5).all(dim=1).any()),
            "only the first number of each token is compared.":
                _follows(_orders, lambda one, other: _same(one[:, 0], other[:, 0])),
            "only the first row is compared.": _follows(_orders, lambda one, other: _same(one[0], other[0])),
            "only the last row is compared.": _follows(_orders, lambda one, other: _same(one[-1], other[-1])),
            "only the mean (or the sum) of each row is compared; other numbers can have the same.":
                _follows(_orders, lambda one, other: _same(one.mean(dim=1), other.mean(dim=1))),
            "only the size of each row is compared, the root of its squares; other numbers can have the same.":
                _follows(_orders, lambda one, other: _same(one.norm(dim=1), other.norm(dim=1))),
            "True and False are swapped.": lambda layer, x: not _follows(_orders)(layer, x),
        },
    }),
)  # fmt: skip

EXERCISES = [ONE_HEAD, HEAD_MAPS, MASKED_WEIGHTS, LAYER_WORK, FOLLOWS_TOKENS]
