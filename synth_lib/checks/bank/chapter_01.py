"""The exercises of chapter 01: dot-product attention, its heads, masks, cost, and what it does not know."""

import random
from itertools import permutations
from math import pi, prod, sqrt

import torch
from einops import einsum, rearrange
from torch import nn

from synth_lib.checks.compare import difference, kind_of
from synth_lib.checks.exercise import Exercise, Reads, RowsSumTo1, ZeroOutside, mistakes
from synth_lib.masks import masked_softmax

EQUATIONS = "The equations"
MODULE = "A module holds its parameters"
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


# 01.1. The first token of a text, with no keys yet; the second, with one, in a head of one number; and a later one.


def _newest_inputs(draw):
    d_head = 4  # that of the chapter, which some take for every d_head
    while d_head not in draw.in_turn(((5, 6, 7), (3, 5, 6, 7), (3, 5, 6, 7))):
        key, d_model, d_head = draw.sizes("key d_model d_head", low=3).values()
    key, d_head = draw.in_turn(((key + 10, d_head), (0, d_head), (1, 1)))
    return {
        "token": draw.normal(d_model),
        "keys": draw.normal(key, d_head),
        "W_query": draw.normal(d_model, d_head) / sqrt(d_model),
        "W_key": draw.normal(d_model, d_head) / sqrt(d_model),
    }


def _newest(token, keys, W_query, W_key):
    keys = torch.cat([keys, (token @ W_key)[None]])
    return keys @ (token @ W_query) / sqrt(W_query.shape[1]), keys


def _newest_rows(token, keys, W_query, W_key):
    query, own = einsum(token, torch.stack([W_query, W_key]), "d_model, two d_model d_head -> two d_head")
    keys = torch.vstack([keys, own])
    return (query[None] @ keys.T)[0] * W_key.shape[1] ** -0.5, keys


def _newest_in_loops(token, keys, W_query, W_key):
    d_model, d_head = W_query.shape
    longer, row = torch.zeros(len(keys) + 1, d_head), torch.zeros(len(keys) + 1)
    longer[:-1] = keys
    query = [sum(token[m] * W_query[m, f] for m in range(d_model)) for f in range(d_head)]
    for f in range(d_head):
        longer[-1, f] = sum(token[m] * W_key[m, f] for m in range(d_model))
    for j in range(len(longer)):
        row[j] = sum(query[f] * longer[j, f] for f in range(d_head)) / d_head**0.5
    return row, longer


def _row(change):
    """Wrong answers whose row is wrong alone: change(row, keys, query, d_model), with the keys to keep."""

    def answer(token, keys, W_query, W_key):
        row, longer = _newest(token, keys, W_query, W_key)
        return change(row, longer, token @ W_query, len(token)), longer

    return answer


def _kept(change):
    """Wrong answers that keep wrong keys alone: change(old, own), with the right row."""

    def answer(token, keys, W_query, W_key):
        return _newest(token, keys, W_query, W_key)[0], change(keys, (token @ W_key)[None])

    return answer


def _newest_in_front(token, keys, W_query, W_key):
    keys = torch.cat([(token @ W_key)[None], keys])
    return keys @ (token @ W_query) / sqrt(W_query.shape[1]), keys


def _newest_scaled_keys(token, keys, W_query, W_key):
    keys = torch.cat([keys, (token @ W_key)[None] / sqrt(W_key.shape[1])])
    return keys @ (token @ W_query), keys


def _newest_scaled_again(token, keys, W_query, W_key):
    keys = torch.cat([keys, (token @ W_key)[None]]) / sqrt(W_key.shape[1])
    return keys @ (token @ W_query), keys


NEWEST_ROW = Exercise(
    key="01.1",
    title="the newest token",
    name="newest_row",
    minutes=10,
    level="easy",
    inputs=_newest_inputs,
    returns="row, keys",
    right=(_newest, _newest_rows, _newest_in_loops),
    wrong=mistakes({
        LOOPS: {
            "the new key stands in front of the older ones, and so does its score; the oldest comes first.":
                _newest_in_front,
            "the two tensors are in the wrong order.": lambda **given: _newest(**given)[::-1],
        },
        ROOT: {
            "the key that is kept is divided already, those that came in are not.": _newest_scaled_keys,
            "the kept keys are divided, and those of before are divided once more with every new token.":
                _newest_scaled_again,
        },
        EQUATIONS: {
            "W_query and W_key are exchanged.":
                lambda token, keys, W_query, W_key: _newest(token, keys, W_key, W_query),
            "the key is made with the matrix of the queries.":
                lambda token, keys, W_query, W_key: _newest(token, keys, W_query, W_query),
            "the keys are kept as they came, and the new token is missing from the row as well.":
                lambda token, keys, W_query, W_key: (keys @ (token @ W_query) / sqrt(W_query.shape[1]), keys),
        },
    }) + mistakes({
        ROOT: {
            "nothing is divided.": _row(lambda row, keys, query, d_model: keys @ query),
            "under the root stands d_model, but a score is a sum of fewer terms.":
                _row(lambda row, keys, query, d_model: keys @ query / sqrt(d_model)),
            "under the root stands the number of keys.":
                _row(lambda row, keys, query, d_model: keys @ query / sqrt(len(keys))),
            "under the root stands 4, the d_head of this chapter; take it from the shapes.":
                _row(lambda row, keys, query, d_model: keys @ query / sqrt(4)),
            "the root is cut to a whole number.":
                _row(lambda row, keys, query, d_model: keys @ query / int(sqrt(len(query)))),
            "the root is lost: it is divided by d_head itself (a mean does that, and so do two divisions).":
                _row(lambda row, keys, query, d_model: keys @ query / len(query)),
            "the scores are multiplied by the root instead of divided.":
                _row(lambda row, keys, query, d_model: keys @ query * sqrt(len(query))),
        },
        LOOPS: {
            "the newest token has no score for itself.": _row(lambda row, keys, query, d_model: row[:-1]),
            "the score of the newest token for itself comes first; it is the last.":
                _row(lambda row, keys, query, d_model: row.roll(1)),
            "there is only the score of the newest token for itself.":
                _row(lambda row, keys, query, d_model: row[-1:]),
            "there is an axis too many: the row of one token is a list of numbers.":
                _row(lambda row, keys, query, d_model: row[None]),
            "there is an axis too many, behind the keys: the row of one token is a list of numbers.":
                _row(lambda row, keys, query, d_model: row[:, None]),
            "where there is only one key, its axis is gone (squeeze does that): the row is a number, not a list.":
                _row(lambda row, keys, query, d_model: row.squeeze()),
            "each key asks, too: these are the scores of all pairs of keys.":
                _row(lambda row, keys, query, d_model: keys @ keys.T / sqrt(len(query))),
        },
        WEIGHTS: {
            "these are weights; the exercise asks for the scores before them.":
                _row(lambda row, keys, query, d_model: row.softmax(dim=-1)),
        },
        EQUATIONS: {
            "the new key is kept, and those of before are lost.": _kept(lambda old, own: own),
            "the keys are returned as they came, without the new one.": _kept(lambda old, own: old),
            "the new key stands in front; the oldest comes first.": _kept(lambda old, own: torch.cat([own, old])),
            "they are transposed: a row belongs to a token.": _kept(lambda old, own: torch.cat([old, own]).T),
            "an axis of size 1 is gone: the tokens', at the first one, or the features', in a small head (squeeze does "
            "that).":
                _kept(lambda old, own: torch.cat([old, own]).squeeze()),
        },
    }, by_part=True),
)  # fmt: skip


# 01.2. Each of the three matrices is square, so that a transposed one fits. One trial has one word, one sentence and
# one head: what squeezes an axis is found there.


def _map_inputs(draw):
    while True:
        sizes = draw.sizes("batch head d_head length")
        # d_head: not 2 or 4, as 2 is the root of 4, that of the chapter, and not always one whose root is cut to 2
        of_heads = draw.in_turn(((5, 6, 7), (3,), (3, 5, 6, 7)))
        if 4 not in (sizes["head"], sizes["length"]) and sizes["d_head"] in of_heads:
            break
    batch, length, head, d_model = sizes["batch"], sizes["length"], sizes["head"], sizes["d_model"]
    batch, length, head = draw.in_turn(((batch, length, head), (batch, length, head), (1, 1, 1)))
    return {
        "x": draw.normal(batch, length, d_model),
        "in_proj_weight": draw.normal(3 * d_model, d_model) / sqrt(d_model),
        "in_proj_bias": draw.normal(3 * d_model),
        "head": head,
    }


def _parts(x, in_proj_weight, in_proj_bias):
    """Queries, keys and values."""
    return (x @ in_proj_weight.T + in_proj_bias).chunk(3, dim=-1)


def _of_torch(change, weight=None, bias=None, swap=(0, 1)):
    """An answer that makes queries and keys and hands them to `change`; weight and bias may be changed before."""

    def answer(x, in_proj_weight, in_proj_bias, head):
        in_proj_weight = weight(in_proj_weight) if weight else in_proj_weight
        in_proj_bias = bias(in_proj_bias) if bias else in_proj_bias
        parts = _parts(x, in_proj_weight, in_proj_bias)
        return change(parts[swap[0]], parts[swap[1]], head)

    return answer


SPLIT = "batch length (head d_head) -> batch head length d_head"
CARDS = "batch length (d_head head) -> batch head length d_head"


def _map_scores(query, key, head, pattern=SPLIT):
    """Scaled scores of all heads, split by `pattern`."""
    query, key = (rearrange(features, pattern, head=head) for features in (query, key))
    return query @ key.mT / sqrt(query.shape[-1])


def _map_weights(query, key, head):
    return _map_scores(query, key, head).softmax(dim=-1)


def _map_raw(query, key, head):
    return _map_scores(query, key, head) * sqrt(query.shape[-1] // head)


def _map_reshaped(query, key, head):
    batch, length, d_model = query.shape
    query, key = (features.reshape(batch, head, length, d_model // head) for features in (query, key))
    return (query @ key.mT / sqrt(d_model // head)).softmax(dim=-1)


def _map_einsum(x, in_proj_weight, in_proj_bias, head):
    W = rearrange(in_proj_weight, "(part head d_head) d_model -> part head d_head d_model", part=3, head=head)
    b = rearrange(in_proj_bias, "(part head d_head) -> part head 1 d_head", part=3, head=head)
    pattern = "batch length d_model, part head d_head d_model -> part batch head length d_head"
    query, key, _ = einsum(x, W, pattern) + b[:, None]
    scores = einsum(query, key, "batch head query d_head, batch head key d_head -> batch head query key")
    return torch.softmax(scores / query.shape[-1] ** 0.5, dim=3)


def _map_chunked(x, in_proj_weight, in_proj_bias, head):
    d_model = x.shape[-1]
    query, key = (
        nn.functional.linear(x, in_proj_weight[begin : begin + d_model], in_proj_bias[begin : begin + d_model])
        for begin in (0, d_model)
    )
    return _map_scores(query, key, head).softmax(dim=-1)


def _map_of_layer(x, in_proj_weight, in_proj_bias, head):
    layer = nn.MultiheadAttention(x.shape[-1], head, batch_first=True)
    layer.load_state_dict({**layer.state_dict(), "in_proj_weight": in_proj_weight, "in_proj_bias": in_proj_bias})
    return layer(x, x, x, average_attn_weights=False)[1].detach()


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


TORCH_MAPS = Exercise(
    key="01.2",
    title="the maps inside a layer of torch",
    name="torch_maps",
    minutes=15,
    level="medium",
    inputs=_map_inputs,
    returns="batch head query key",
    properties=(RowsSumTo1(), Reads("x", 0, 0, "sentence")),
    right=(_map_chunked, _map_einsum, _map_of_layer, _of_torch(_map_in_loops)),
    wrong=mistakes({
        MODULE: {
            "each of the three matrices is used the wrong way round. They are square, so torch does not complain.":
                _of_torch(
                    _map_weights, lambda W: torch.cat([part.T for part in W.chunk(3)])
                ),
            "the bias of the queries is missing.":
                _of_torch(_map_weights, bias=lambda b: 0 * b),
            "the bias of the queries is missing, and so is the division.":
                _of_torch(lambda *given: _map_raw(*given).softmax(dim=-1), bias=lambda b: 0 * b),
            "the matrix is reshaped where it should be transposed.":
                _of_torch(_map_weights, lambda W: W.reshape(W.shape[1], -1).T),
            "queries, keys and values are dealt out like cards; each of the three owns a block of neighbours.":
                _of_torch(
                    _map_weights,
                    lambda W: rearrange(W, "(d_head part) d_model -> (part d_head) d_model", part=3),
                    lambda b: rearrange(b, "(d_head part) -> (part d_head)", part=3),
                ),
            "each head is taken to have its queries, keys and values side by side; all queries come first.":
                lambda x, in_proj_weight, in_proj_bias, head: _map_scores(
                    *(
                        rearrange(
                            x @ in_proj_weight.T + in_proj_bias,
                            "batch length (head part d_head) -> part batch length (head d_head)", part=3, head=head,
                        )[:2]
                    ),
                    head,
                ).softmax(dim=-1),
        },
        EQUATIONS: {
            "the values are taken for the keys.":
                _of_torch(_map_weights, swap=(0, 2)),
            "keys and values are taken, and not the queries.":
                _of_torch(_map_weights, swap=(1, 2)),
            "the keys are the queries once more.":
                _of_torch(_map_weights, swap=(0, 0)),
        },
        ALL_HEADS: {
            "squeeze also takes away the axis of one sentence, one head or one word.":
                lambda **given: _map_chunked(**given).squeeze(),
            "the heads are cut out by a reshape alone, so a row of a head is made of other tokens.":
                _of_torch(_map_reshaped),
            "the numbers are there, but head stands behind query.":
                _of_torch(lambda query, key, head: _map_weights(query, key, head).transpose(1, 2)),
            "the numbers are there, but head stands in front of batch.":
                _of_torch(lambda query, key, head: _map_weights(query, key, head).transpose(0, 1)),
        },
        HEADS: {
            "the numbers are dealt out to the heads like cards; each head owns neighbours.":
                _of_torch(lambda query, key, head: _map_scores(query, key, head, CARDS).softmax(dim=-1)),
            "the queries are split well, the keys are dealt out like cards.":
                _of_torch(lambda query, key, head: (
                    rearrange(query, SPLIT, head=head)
                    @ rearrange(key, CARDS, head=head).mT
                    / sqrt(query.shape[-1] // head)
                ).softmax(dim=-1)),
            "the slice of a head starts at h times the number of heads; each head owns d_head numbers.":
                _of_torch(
                    lambda query, key, head: _map_sliced(query, key, head, step=head, size=query.shape[-1] // head)
                ),
            "the slice of a head is as wide as the number of heads; each head owns d_head numbers.":
                _of_torch(lambda query, key, head: _map_sliced(query, key, head, step=head, size=head)),
            "all heads get the map of head 0.":
                _of_torch(lambda query, key, head: _map_weights(query, key, head)[:, :1].repeat(1, head, 1, 1)),
            "the keys of all heads are added up; each head has keys of its own.":
                _of_torch(lambda query, key, head: (
                    rearrange(query, SPLIT, head=head)
                    @ rearrange(key, SPLIT, head=head).sum(dim=1, keepdim=True).mT
                    / sqrt(query.shape[-1] // head)
                ).softmax(dim=-1)),
            "the scores of the heads are added up; each head has a map of its own.":
                _of_torch(lambda query, key, head: _map_scores(query, key, head).sum(dim=1).softmax(dim=-1)),
            "the maps are averaged over the heads; each head keeps its own.":
                _of_torch(lambda query, key, head: _map_weights(query, key, head).mean(dim=1)),
            "every head compares all the features and gets the same map.":
                _of_torch(lambda query, key, head: (
                    (query @ key.mT / sqrt(query.shape[-1])).softmax(dim=-1)[:, None].repeat(1, head, 1, 1)
                )),
        },
        ROOT: {
            "under the root stands d_model, but each head adds up fewer terms.":
                _of_torch(lambda query, key, head: (_map_scores(query, key, head) / sqrt(head)).softmax(dim=-1)),
            "under the root stands the number of heads.":
                _of_torch(lambda query, key, head: (
                    _map_raw(query, key, head) / sqrt(head)
                ).softmax(dim=-1)),
            "under the root stands 4, the d_head of this chapter; take it from the shapes.":
                _of_torch(lambda query, key, head: (
                    _map_raw(query, key, head) / sqrt(4)
                ).softmax(dim=-1)),
            "the root is cut to a whole number.":
                _of_torch(lambda query, key, head: (
                    _map_raw(query, key, head) / int(sqrt(query.shape[-1] // head))
                ).softmax(dim=-1)),
            "under the root stands the length of the sentence.":
                _of_torch(lambda query, key, head: (
                    _map_raw(query, key, head) / sqrt(query.shape[1])
                ).softmax(dim=-1)),
            "the scores are not divided before the softmax.":
                _of_torch(lambda query, key, head: _map_raw(query, key, head).softmax(dim=-1)),
            "the root is lost: it is divided by d_head itself.":
                _of_torch(
                    lambda query, key, head: (_map_raw(query, key, head) * head / query.shape[-1]).softmax(dim=-1)
                ),
            "the division comes after the softmax, so that the rows no longer sum to 1.":
                _of_torch(lambda query, key, head: (
                    _map_raw(query, key, head).softmax(dim=-1)
                    / sqrt(query.shape[-1] // head)
                )),
        },
        WEIGHTS: {
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                _of_torch(lambda query, key, head: _map_scores(query, key, head).softmax(dim=-2)),
            "the softmax runs along the heads. A softmax without dim can do strange things, too: name the keys.":
                _of_torch(lambda query, key, head: _map_scores(query, key, head).softmax(dim=1)),
            "the softmax runs along the batch, so it mixes sentences.":
                _of_torch(lambda query, key, head: _map_scores(query, key, head).softmax(dim=0)),
            "the softmax runs over the whole map, so that all rows together sum to 1.":
                _of_torch(lambda query, key, head: (
                    _map_scores(query, key, head).flatten(2).softmax(-1).view(len(query), head, query.shape[1], -1)
                )),
            "these are the scores; the softmax is missing.": _of_torch(_map_scores),
        },
        LOOPS: {
            "query and key are swapped: a row should belong to the token that attends.":
                _of_torch(lambda query, key, head: _map_scores(key, query, head).softmax(dim=-1)),
            "the map is transposed: a row should belong to the token that attends.":
                _of_torch(lambda query, key, head: _map_weights(query, key, head).mT),
        },
    }),
)  # fmt: skip


# 01.3. In all sentences but the last, one row may look nowhere, one everywhere, one at a single key. The allowed scores
# of a fourth lie at the lower end, and its forbidden ones at the upper; a fifth has all scores at the upper end. The
# last sentence ends with fillers, which nobody may look at and which look at others. One trial has one sentence and one
# head, one has sentences of one word, which is a filler in the first, and as many heads as sentences.


def _mask_inputs(draw):
    sizes = draw.sizes("batch head length", high=5)
    batch, head, length = sizes["batch"], sizes["head"], sizes["length"] + 4
    batch, head, length = draw.in_turn(((batch, head, length), (batch, head, length), (1, 1, length), (6, 6, 1)))
    scores = 3 * draw.normal(batch, head, length, length)  # small weights, too
    allowed = draw.normal(batch, 1, length, length) > 0
    if length == 1:
        allowed[:2, 0, 0, 0] = torch.tensor([False, True])
        return {"scores": scores, "allowed": allowed}
    for b in range(batch):
        nowhere, everywhere, single, low, high = ((b + n) % length for n in range(5))
        allowed[b, 0, nowhere] = False
        allowed[b, 0, everywhere] = True
        allowed[b, 0, single] = torch.arange(length) == low
        allowed[b, 0, low, :3] = torch.tensor([True, False, True])
        allowed[b, 0, high, :3] = torch.tensor([True, False, True])
        within = scores[b].clamp(-0.9, 0.9)
        scores[b, :, low] = torch.where(allowed[b, :, low], within[:, low] - 9999, within[:, low] + 9999)
        scores[b, :, high] = within[:, high] + 9999
    if batch > 1:
        allowed[-1] = torch.arange(length) < length - 2
        scores[-1, :, :, -2:] += 900
    return {"scores": scores, "allowed": allowed}


def _small_mask():
    allowed = torch.tensor([[True, False, False], [False, False, False], [True, True, False]])
    return {"scores": torch.full((1, 1, 3, 3), 100.0), "allowed": allowed.reshape(1, 1, 3, 3)}  # exp(100) is infinite


def _masked_lowest(scores, allowed):
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1) * allowed


def _masked_infinity(scores, allowed):
    return torch.where(allowed, scores, -torch.inf).softmax(dim=-1)


def _masked_exponentials(scores, allowed):
    largest = scores.masked_fill(~allowed, -20000.0).amax(dim=-1, keepdim=True)
    exponentials = (scores - largest).masked_fill(~allowed, -torch.inf).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / total.where(total > 0, 1.0)


def _exactly_0(weights, scores, allowed):
    """The weights. What is no difference to the others is one here: a forbidden key has exactly 0.

    Raises:
        ValueError: all is right, but for a weight that is nearly 0.
    """
    if difference(weights, _masked_lowest(scores, allowed)) is None and (leaks := (weights != 0) & ~allowed).any():
        where = leaks.nonzero()[0].tolist()
        raise ValueError(f"at {where} the weight is nearly 0, though allowed is False there; it should be 0")
    return weights


def _exponentials_alone(scores, allowed):
    exponentials = scores.exp() * allowed
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def _late_and_shared_out(scores, allowed):
    weights = scores.softmax(dim=-1) * allowed
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-9)


def _logarithm_taken(scores):
    return (scores - scores.logsumexp(dim=-1, keepdim=True)).exp()


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


MASKED_WEIGHTS = Exercise(
    key="01.3",
    title="masked softmax",
    name="masked_weights",
    minutes=18,
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
    measure=_exactly_0,
    trials=4,
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
            "a row that may look nowhere is not empty: all its scores are lowered by one large number, and the softmax "
            "sees only differences.":
                lambda scores, allowed: (scores - 1e5 * (~allowed).float()).softmax(dim=-1),
            "a number like 100 is taken from the forbidden scores; some are still the largest, and a row that may look "
            "nowhere is not empty.":
                lambda scores, allowed: (scores - 100 * (~allowed).float()).softmax(dim=-1),
            "a number like 10,000 is taken from the forbidden scores; some are still the largest, and a row that may "
            "look nowhere is not empty.":
                lambda scores, allowed: (scores - 1e4 * (~allowed).float()).softmax(dim=-1),
            "in a row of very low scores all weights vanish: the number filled in is not far below every score.":
                lambda scores, allowed: scores.masked_fill(~allowed, -50).softmax(dim=-1) * allowed,
            "where the allowed scores lie at the lower end, they lose a share: the number filled in is just one that "
            "a score can have.":
                lambda scores, allowed: scores.masked_fill(~allowed, -1e4).softmax(dim=-1) * allowed,
            "the exponential of a large score is infinite, that of a very low one is 0, and the quotient is NaN.":
                _exponentials_alone,
            "the exponential of a large score is infinite, that of a very low one is 0; the NaN that come of it are "
            "made 0.":
                lambda scores, allowed: _exponentials_alone(scores, allowed).nan_to_num(0.0),
            "the largest score of all is subtracted; in a row far below it, every exponential is 0. Each row has a "
            "largest score of its own.":
                lambda scores, allowed: _exponentials_alone(scores - scores.max(), allowed).nan_to_num(0.0),
            "the forbidden scores still take part before they are removed; where one is by far the largest, nothing is "
            "left, and 0 / 0 is NaN.":
                lambda scores, allowed: (
                    _exponentials_alone(scores - scores.amax(dim=-1, keepdim=True), allowed)
                ),
            "the forbidden scores still take part before they are removed; where one is by far the largest, nothing is "
            "left to share out.":
                _late_and_shared_out,
            "the rows of tokens that nobody may look at are emptied too; such a token, a filler, may look itself.":
                lambda scores, allowed: (
                    _masked_lowest(scores, allowed) * allowed.any(dim=-2, keepdim=True).transpose(-1, -2)
                ),
            "squeeze also takes away the axis of one sentence, one head or one word.":
                lambda scores, allowed: _masked_lowest(scores, allowed).squeeze(),
            "the lowest score is filled in; in the row that it comes from, a forbidden key still gets a share.":
                lambda scores, allowed: scores.masked_fill(~allowed, scores.min()).softmax(dim=-1) * allowed,
            "the logarithm of a sum is subtracted; where scores are large, float32 rounds it. Subtract the largest "
            "score of the row first.":
                lambda scores, allowed: (
                    _logarithm_taken(scores.masked_fill(~allowed, -torch.inf)).nan_to_num(0.0)
                ),
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
    """Sizes that are all different, then a head of one feature, one head alone, and sizes at which float32 rounds."""
    sizes = draw.sizes("batch length head d_head", high=9)
    large = {"length": 10 * sizes["length"] + 109, "head": sizes["head"] | 1, "d_head": 20 * sizes["d_head"] + 41}
    sizes |= draw.in_turn(({}, {"batch": 1, "length": 1, "d_head": 1}, {"head": 1}, {"batch": 5} | large))
    sizes["d_model"] = sizes["head"] * sizes["d_head"]
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
    minutes=12,
    level="medium",
    inputs=_work_inputs,
    returns="projections, pairs",
    trials=4,
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


# 01.5. Four tokens meet all layers: each shortcut of a test is fooled by at least one. Four and five meet a layer that
# never breaks, and then one that breaks at a single order: one that the answer did not try before, if it left out any.
# The tokens come sorted by their first number, so that some layers can tell in which order they see them.


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


def _one_number_changed(x, y, size):
    """The results y, one number of which changes in any other order than the sorted one."""
    y[0, 0] += size * (_pairs_out_of_order(x) > 0)
    return y


def _last_position_raised(x):
    y = x.clone()
    y[-1] += 1
    return y


LAYERS = {
    "layer of attention": _attend,
    "layer that gives all tokens their mean": lambda x: x.mean(dim=0, keepdim=True).expand_as(x),
    "layer of attention with positions": lambda x: _attend(x + _positions(x)),
    "layer of causal attention": lambda x: _attend(x, torch.ones(len(x), len(x)).tril().bool()),
    "layer that subtracts the first token": lambda x: x - x[0],
    "layer that adds both neighbours in a circle": lambda x: x + x.roll(1, dims=0) + x.roll(-1, dims=0),
    "layer that adds the mirror image": lambda x: x + x.flip(0),
    "layer that returns a fixed table": _positions,
    "layer that sorts the numbers": lambda x: x.sort(dim=0).values,
    "layer that breaks only at the reversed order": lambda x: (
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
    "layer that adds 0.00002 for each position": lambda x: x.tanh() + 2e-5 * torch.arange(len(x))[:, None],
    "layer that changes one number by 0.000015": lambda x: _one_number_changed(x, x.tanh() / 10, 1.5e-5),
    "layer of large results that changes one number by 0.00003": lambda x: _one_number_changed(x, 20 + x.tanh(), 3e-5),
    "layer that differs by 0.000008 at most": lambda x: x.tanh() + torch.linspace(0, 8e-6, len(x))[:, None],
}


def _follows_inputs(draw):
    d_model, length, layers = draw.in_turn(((5, 4, LAYERS), (4, 5, {})))
    x = draw.normal(length, d_model)
    return {"layer": layers, "x": x[x[:, 0].argsort()]}


def _order_of(x):
    return tuple(x[:, 0].tolist())


def _breaks_at_one_order(x, tried):
    """A layer that breaks at one order of x alone, if there is any at one that is not among those tried."""
    orders = [_order_of(x[list(order)]) for order in permutations(range(len(x)))][1:]
    left_out = [order for order in orders if order not in tried]
    broken = random.Random(str(x.tolist())).choice(left_out or orders)
    return lambda x: x - 0.01 * (_order_of(x) == broken)


def _at_home_with(known):
    """It follows these tokens in every order, and adds positions to any others."""
    return lambda x: x.tanh() + _positions(x) * (not torch.equal(x[x[:, 0].argsort()], known))


def _judge_layers(answer, layer, x):
    """What an answer says of each layer. One that shuffles at random gets the same shuffles in every call: then the
    check can say why that is not enough."""
    before, state, tried = x.clone(), random.getstate(), set()

    def ask(layer):
        own = before.clone()
        random.seed(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            said = answer(layer=layer, x=own)
        if not torch.equal(own, before):
            x.copy_(own)  # the check sees it
        return said

    def alone(x):
        tried.add(_order_of(x))
        return (3 * x).tanh()

    try:
        said = {name: ask(one) for name, one in layer.items()}
        if layer:
            said["layer that knows the places of all tokens but yours"] = ask(_at_home_with(before))
        said["layer that takes each token alone"] = ask(alone)
        said["layer that breaks at one order alone"] = ask(_breaks_at_one_order(before, tried))
        return said
    finally:
        random.setstate(state)


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
    minutes=18,
    level="hard",
    inputs=_follows_inputs,
    returns="True or False",
    trials=2,
    right=(_follows(_orders), _follows_in_loops, _follows_by_matrices),
    run=_judge_layers,
    wrong=mistakes({
        ORDER: {
            "one shuffle, or a few, are tried; some layers follow in these and not in others.":
                _follows(lambda x: [[*range(1, len(x), 2), *range(0, len(x), 2)]]),
            "one shuffle at random is tried, or a few. They are examples, and no proof: another layer breaks at "
            "another order.":
                _follows(lambda x: [torch.randperm(len(x)).tolist()]),
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
            "a difference of 0.00002 passes as rounding; the docstring allows less.":
                _follows(_orders, lambda one, other: torch.allclose(one, other, rtol=0, atol=1e-4)),
            "a difference of less than 0.00001 counts, or several are added up; the docstring calls each one rounding. "
            "(The limit of torch.allclose is smaller unless you say atol.)":
                _follows(_orders, lambda one, other: torch.allclose(one, other, rtol=0, atol=1e-6)),
            "larger numbers may differ by more, as torch.allclose does it unless you say rtol=0; the docstring has one "
            "limit for all.":
                _follows(_orders, lambda one, other: torch.allclose(one, other, atol=1e-5)),
            "the mean of all differences is compared; a single one can hide among many.":
                _follows(_orders, lambda one, other: (one - other).abs().mean() < 1e-5),
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

# 01.6. An answer becomes what is true of its keys. In the plane a key wins for some query if all differences to the
# others lie in one half of the plane: then there is a gap of more than half a turn between their directions.


def _describe(keys, length):
    """What a table of keys is, in words: RIGHT_KEYS if it is what the exercise asks for."""
    if not isinstance(keys, torch.Tensor):
        return f"{kind_of(keys)}, not a tensor"
    if keys.dtype != torch.float32 or keys.shape != (length, 2):
        kind = str(keys.dtype).removeprefix("torch.")
        return f"{kind} of shape {tuple(keys.shape)}, not float32 of shape {(length, 2)}"
    return RIGHT_KEYS if keys.isfinite().all() else "numbers that are not finite"


RIGHT_KEYS = "a table of float32, key d_head"
FACTS = (
    "what is returned",
    "pairs of keys that differ by less than 0.01",
    "numbers above 100 or below -100",
    "keys that can win",
)


def _winners(keys):
    """How many of the keys have the largest score for some query."""
    count, distances = 0, torch.pdist(keys)
    # The keys are float32: an angle is known to the share of a distance that its rounding can be.
    rounding = 1e-6 * keys.abs().max() / distances[distances > 0].min() if (distances > 0).any() else 0
    for i in range(len(keys)):
        away = keys[i] - torch.cat([keys[:i], keys[i + 1 :]])
        angles = torch.atan2(away[:, 1], away[:, 0]).sort().values
        gaps = torch.diff(angles, append=angles[:1] + 2 * pi)
        count += bool(gaps.max() > pi + 1e-6 + rounding) and bool((away != 0).any(dim=1).all())
    return count


def _facts_of_keys(answer, length):
    keys = answer(length=length)
    kind = _describe(keys, length)
    same = large = winners = None
    if kind == RIGHT_KEYS:
        keys = keys.detach().double()
        same = (int(((keys[:, None] - keys).abs().amax(dim=-1) < 0.0099).sum()) - length) // 2
        large, winners = int((keys.abs() > 100).sum()), _winners(keys)
    facts = kind, same, large, winners
    return dict(zip(FACTS, facts, strict=True))


HIDDEN = "Stretch 01.6: tokens that nobody can look at"


def _on_a_line(length):
    return torch.stack([torch.arange(length), torch.zeros(length)], dim=1)


def _on_a_circle(length):
    angles = torch.arange(length) * 2 * pi / length
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def _inside(corners, length):
    """Keys at these corners, all others near their middle."""
    corners = torch.tensor(corners)
    more = torch.linspace(0, 1, length - len(corners))[:, None] * torch.tensor([1.2, 1.3])
    return torch.cat([corners, corners.mean(dim=0) + more])


HIDDEN_KEYS = Exercise(
    key="01.6",
    title="tokens that nobody can look at",
    name="hidden_keys",
    minutes=15,
    level="hard",
    inputs=lambda draw: {"length": draw.in_turn((4, 7, 100))},
    returns="key d_head",
    run=_facts_of_keys,
    right=(
        _on_a_line,
        lambda length: torch.tensor([[1.0, -2.0]]) * torch.linspace(-3, 5, length)[:, None] + torch.tensor([0.3, 7.0]),
        lambda length: torch.tensor([[0.0, i * (0.02 + 0.009 * i)] for i in range(length)]).flip(0),
    ),
    wrong=mistakes({
        HIDDEN: {
            "every key can win: each is the farthest in some direction.": _on_a_circle,
            "all but one can win.": lambda length: torch.cat([torch.zeros(1, 2), _on_a_circle(length - 1)]),
            "all but two can win.":
                lambda length: torch.cat([torch.tensor([[0, 0], [0.1, 0.2]]), _on_a_circle(length - 2)]),
            "three can win, as the corners of a triangle do, also of a thin one; one of them can still be hidden.":
                lambda length: _inside([[0.0, 5], [5, -4], [-5, -4]], length),
            "four can win, as the corners of a square do.":
                lambda length: _inside([[5.0, 5], [5, -5], [-5, -5], [-5, 5]], length),
        },
        EQUATIONS: {
            "all keys are the same: there are only ties.": lambda length: torch.ones(length, 2),
            "one key stands twice or more.":
                lambda length: torch.cat([torch.zeros(2, 2), _on_a_line(length)[2:]]),
            "the two that win are there, all others are one and the same key.":
                lambda length: torch.cat([torch.tensor([[5.0, 0], [-5, 0]]), torch.zeros(length - 2, 2)]),
            "the keys lie closer together than 0.01.":
                lambda length: _on_a_line(length) * 1e-3,
            "a key has one feature; here it has two.": lambda length: torch.arange(length).float()[:, None],
            "the table is transposed: a row belongs to a key.": lambda length: _on_a_line(length).T,
            "the numbers are whole numbers of int64; the scores of a layer are not.":
                lambda length: _on_a_line(length).long(),
        },
    }),
)  # fmt: skip

EXERCISES = [NEWEST_ROW, TORCH_MAPS, MASKED_WEIGHTS, LAYER_WORK, FOLLOWS_TOKENS, HIDDEN_KEYS]
