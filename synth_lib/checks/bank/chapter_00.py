"""The exercises of chapter 00: two moves that every other chapter uses, and an input on which a wrong one is right."""

import torch
from einops import einsum, rearrange, repeat

from synth_lib.checks.compare import kind_of
from synth_lib.checks.exercise import Exercise, Mistake, Reads, mistakes

SPLIT = "rearrange: name the axes, move them"
RESHAPE = "The trap: right shape, wrong numbers"
EINSUM = "einsum: name the axes, multiply, sum"
IDEA = "The one idea"
SQUEEZED = "squeeze takes every axis of size 1 away, so one sentence, one head or one token loses its axis."


def _sizes(draw):
    """Sizes that are all different, but in four trials of five some of them are 1."""
    sizes = draw.sizes("batch length head d_head", high=5)
    ones = draw.in_turn(((), ("batch",), ("head", "d_head"), ("length",), ("batch", "head")))
    sizes |= dict.fromkeys(ones, 1)
    sizes["d_model"] = sizes["head"] * sizes["d_head"]
    return sizes


def _features(draw):
    sizes = _sizes(draw)
    return {"features": 5 * draw.normal(sizes["batch"], sizes["length"], sizes["d_model"]), "head": sizes["head"]}


def _split_with_transpose(features, head):
    batch, length, d_model = features.shape
    return features.reshape(batch, length, head, d_model // head).transpose(1, 2)


def _split_in_loops(features, head):
    batch, length, d_model = features.shape
    d_head = d_model // head
    result = torch.empty(batch, head, length, d_head)
    for b in range(batch):
        for h in range(head):
            for i in range(length):
                for d in range(d_head):
                    result[b, h, i, d] = features[b, i, h * d_head + d]
    return result


SPLIT_HEADS = Exercise(
    key="00.1",
    title="split the heads",
    name="split_heads",
    minutes=6,
    trials=5,
    level="easy",
    inputs=_features,
    returns="batch head length d_head",
    properties=(Reads("features", 1, 2, "token"), Reads("features", 0, 0, "sentence")),
    example=lambda: {"features": torch.arange(8.0).reshape(1, 2, 4), "head": 2},
    right=(
        lambda features, head: rearrange(features, "batch length (head d_head) -> batch head length d_head", head=head),
        _split_with_transpose,
        lambda features, head: torch.stack(features.chunk(head, dim=-1), dim=1),
        _split_in_loops,
    ),
    wrong=mistakes({
        RESHAPE: {
            "the numbers are cut to size, but no axis moves, so a head gets features of the wrong tokens.":
                lambda features, head: features.reshape(len(features), head, features.shape[1], -1),
        },
        SPLIT: {
            "the features are dealt out like cards; each head should get d_head neighbours.":
                lambda features, head: rearrange(
                    features, "batch length (d_head head) -> batch head length d_head", head=head
                ),
            "the features are split well, but head still stands behind length.":
                lambda features, head: rearrange(
                    features, "batch length (head d_head) -> batch length head d_head", head=head
                ),
            "the last two axes are swapped: a row of a head is a token, a column a feature.":
                lambda features, head: rearrange(
                    features, "batch length (head d_head) -> batch head d_head length", head=head
                ),
            "head stands in front of batch.":
                lambda features, head: rearrange(
                    features, "batch length (head d_head) -> head batch length d_head", head=head
                ),
            "the number of heads is given to the other name in the brackets.":
                lambda features, head: rearrange(
                    features, "batch length (head d_head) -> batch head length d_head", d_head=head
                ),
            "batch and head are merged into one axis.":
                lambda features, head: rearrange(
                    features, "batch length (head d_head) -> (batch head) length d_head", head=head
                ),
            "every head gets a copy of all the features, instead of its own part of them.":
                lambda features, head: repeat(features, "batch length d_model -> batch head length d_model", head=head),
            SQUEEZED: lambda features, head: _split_with_transpose(features, head).squeeze(),
            "one sentence loses its batch: an axis of size 1 stays an axis.":
                lambda features, head: _split_with_transpose(features, head).squeeze(0),
            "the heads are counted backwards: head 0 has the first features.":
                lambda features, head: _split_with_transpose(features, head).flip(1),
        },
    }),
)  # fmt: skip


def _weights_and_value(draw):
    sizes = _sizes(draw)
    batch, head, length = sizes["batch"], sizes["head"], sizes["length"]
    return {
        "weights": (2 * draw.normal(batch, head, length, length)).softmax(dim=-1),  # small weights count, too
        "value": 5 * draw.normal(batch, length, sizes["d_model"]),
    }


def _heads(weights, value):
    return rearrange(value, "batch key (head d_head) -> batch head key d_head", head=weights.shape[1])


def _dealt(weights, value):
    return rearrange(value, "batch key (d_head head) -> batch head key d_head", head=weights.shape[1])


def _merge(mixed):
    return rearrange(mixed, "batch head query d_head -> batch query (head d_head)")


def _sum_of_heads(weights, value):
    return _merge(weights @ _heads(weights, value))


def _unsplit(weights, value):
    mixed = torch.matmul(weights, value)
    return mixed


def _sum_head_by_head(weights, value):
    parts = value.chunk(weights.shape[1], dim=2)
    return torch.cat([weights[:, h] @ part for h, part in enumerate(parts)], dim=2)


def _sum_in_loops(weights, value):
    batch, head, length, _ = weights.shape
    d_head = value.shape[2] // head
    result = torch.zeros_like(value)
    for b in range(batch):
        for h in range(head):
            for i in range(length):
                for j in range(length):
                    for d in range(h * d_head, (h + 1) * d_head):
                        result[b, i, d] += weights[b, h, i, j] * value[b, j, d]
    return result


WEIGHTED_SUM = Exercise(
    key="00.2",
    title="sum the values with the weights",
    name="weighted_sum",
    minutes=12,
    level="medium",
    trials=5,
    inputs=_weights_and_value,
    returns="batch query d_model",
    properties=(Reads("weights", 2, 1, "query"), Reads("value", 0, 0, "sentence")),
    example=lambda: {
        "weights": torch.tensor([[[[1, 0], [0.5, 0.5]], [[0, 1.0], [1, 0]]]]),
        "value": torch.tensor([[[1.0, 2], [3, 4]]]),
    },
    right=(
        lambda weights, value: _merge(
            einsum(
                weights,
                _heads(weights, value),
                "batch head query key, batch head key d_head -> batch head query d_head",
            )
        ),
        _sum_head_by_head,
        lambda weights, value: torch.einsum(
            "bhqk,bkhd->bqhd", weights, value.unflatten(2, (weights.shape[1], -1))
        ).flatten(2),
        _sum_in_loops,
    ),
    wrong=mistakes({
        EINSUM: {
            "the sum runs over the queries, so the weights are read as if they were transposed.":
                lambda weights, value: _merge(weights.mT @ _heads(weights, value)),
            "every token gets its own value back: the rows of value are the tokens that are attended to.":
                lambda weights, value: value.clone(),
            "a name is used twice in one tensor, which reads only its diagonal.":
                lambda weights, value: _merge(weights.diagonal(dim1=-2, dim2=-1)[..., None] * _heads(weights, value)),
            "the sentences are summed too: batch has to stay, every sentence has a result of its own.":
                lambda weights, value: _sum_of_heads(weights, value).sum(dim=0),
            "the heads are summed: each should keep its own part of the features, beside the others.":
                lambda weights, value: (weights @ _heads(weights, value)).sum(dim=1),
        },
        SPLIT: {
            "the numbers are right, but the heads are not merged yet.":
                lambda weights, value: weights @ _heads(weights, value),
            "the numbers are right, but the heads are not merged yet, and head stands behind query.":
                lambda weights, value: (weights @ _heads(weights, value)).transpose(1, 2),
            "the merge deals the features out like cards: the features of one head should stay neighbours.":
                lambda weights, value: rearrange(
                    weights @ _heads(weights, value), "batch head query d_head -> batch query (d_head head)"
                ),
            "the split deals the features out like cards, the merge does not.":
                lambda weights, value: _merge(weights @ _dealt(weights, value)),
            "split and merge deal the features out like cards: each head should have d_head neighbours.":
                lambda weights, value: rearrange(
                    weights @ _dealt(weights, value), "batch head query d_head -> batch query (d_head head)"
                ),
            "each head mixes all the features, and they are added up: a head has its own part of them.":
                lambda weights, value: weights.sum(dim=1) @ value,
            "the maps of the heads are averaged: each head has its own map for its own part of the features.":
                lambda weights, value: weights.mean(dim=1) @ value,
            "the map of head 0 mixes all the features: each head has its own map for its own part.":
                lambda weights, value: weights[:, 0] @ value,
            SQUEEZED: lambda weights, value: _sum_of_heads(weights, value).squeeze(),
        },
        RESHAPE: {
            "the values are cut to size, but no axis moves, so a head gets features of the wrong tokens.":
                lambda weights, value: _merge(weights @ value.reshape(*weights.shape[:3], -1)),
            "the result is cut to size, but no axis moves: it mixes up tokens and heads.":
                lambda weights, value: (weights @ _heads(weights, value)).reshape(value.shape),
            "values and result are cut to size, and no axis moves in either.":
                lambda weights, value: (weights @ value.reshape(*weights.shape[:3], -1)).reshape(value.shape),
        },
        IDEA: {
            "the weights go through a softmax, but they have been through one already.":
                lambda weights, value: _sum_of_heads(weights.softmax(dim=-1), value),
            "the weights go through a softmax along the queries, but they need none: their rows sum to 1 already.":
                lambda weights, value: _sum_of_heads(weights.softmax(dim=-2), value),
            "each product takes the place of the one before, so the last key alone is left: nothing is added up.":
                lambda weights, value: _merge(weights[..., -1:] * _heads(weights, value)[:, :, -1:]),
            "the products are averaged, not summed: the weights of a row already sum to 1.":
                lambda weights, value: _sum_of_heads(weights, value) / weights.shape[-1],
            "every token gets the plain mean of the values; the weights make no difference.":
                lambda weights, value: value.mean(dim=1, keepdim=True).expand_as(value),
        },
    })
    + (
        Mistake(
            _unsplit,
            "the values are not split into heads yet, and the weights have a map for each head.",
            SPLIT,
            error="must match the size of tensor b",
        ),
    ),
)  # fmt: skip


def _trap_sizes(draw):
    """Sizes that are all different, but in four trials of five some are 1; one has two numbers in a sentence."""
    sizes = draw.sizes("batch length head d_head")
    del sizes["d_model"]
    two = {"length": 2, "head": 1, "d_head": 1}
    return sizes | draw.in_turn(({}, {"d_head": 1}, {"batch": 1}, two, {"length": 1}))


def _what_it_hides(answer, batch, length, head, d_head):
    """How many numbers the trap puts elsewhere than the split, and which sentences hold one number alone."""
    features, wanted = answer(batch=batch, length=length, head=head, d_head=d_head), (batch, length, head * d_head)
    shape = tuple(features.shape) if isinstance(features, torch.Tensor) else kind_of(features)
    if shape != wanted:
        return {"shape": f"{shape}, not {wanted}", "trap and split": "not compared", "numbers": "not counted"}
    trap = features.reshape(batch, head, length, d_head)
    wrong = int((trap != _split_with_transpose(features, head)).sum())
    dull = sum(len(sentence.unique()) < 2 for sentence in features)
    facts = {
        "shape": "batch length d_model",
        "trap and split": f"they differ in {wrong} of {trap.numel()} numbers" if wrong else "they agree",
        "numbers": f"{dull} of {batch} sentences hold one number alone" if dull else "each sentence has two or more",
    }
    odd = int((~features.isfinite()).sum())  # NaN differs from itself, and infinity is no number to take for another
    return facts | ({"trap and split": f"not compared: {odd} numbers are NaN or infinite"} if odd else {})


def _first_number(batch, length, head, d_head):
    features = torch.zeros(batch, length, head * d_head)
    features[:, 0, 0] = 1.0
    return features


def _last_block(batch, length, head, d_head):
    features = torch.full((batch, length, head * d_head), 2.5)
    features[:, -1, -d_head:] = torch.arange(d_head) + 3.0
    return features


def _circles(batch, length, head, d_head):
    """The richest of all: blocks that take each other's places are equal, all else is different."""
    order = torch.arange(length * head).view(length, head).T.flatten().tolist()
    numbers = torch.zeros(length * head, d_head)
    for block in range(length * head):
        members, at = [block], order[block]
        while at != block:
            members.append(at)
            at = order[at]
        if block == min(members):
            numbers[members] = torch.arange(d_head) + d_head * block + 1.0
    return numbers.view(1, length, -1).repeat(batch, 1, 1)


def _every_number(batch, length, head, d_head):
    return torch.arange(float(batch * length * head * d_head)).view(batch, length, -1)


HIDE_THE_TRAP = Exercise(
    key="00.3",
    title="an input that hides the trap",
    name="hide_the_trap",
    minutes=15,
    level="medium",
    trials=5,
    inputs=_trap_sizes,
    run=_what_it_hides,
    returns="what is true of your features",
    right=(_first_number, _last_block, _circles),
    wrong=mistakes({
        RESHAPE: {
            "a sentence of one number alone hides every mistake: each should hold two different numbers.":
                lambda batch, length, head, d_head: torch.ones(batch, length, head * d_head),
            "no number that moves is equal to the one whose place it takes, so all of them are seen.": _every_number,
            "the tokens are all alike, and the features of a token are not: the trap takes one feature for another.":
                lambda batch, length, head, d_head: torch.arange(float(head * d_head)).expand(batch, length, -1),
            "each token repeats one number of its own: the trap takes one token for another.":
                lambda batch, length, head, d_head: torch.arange(float(length))[:, None].expand(
                    batch, length, head * d_head
                ),
            "one token is set apart whole, the first or the last; the trap takes a part of its features elsewhere.":
                lambda batch, length, head, d_head: (torch.arange(length) == 0).float()[:, None].expand(
                    batch, length, head * d_head
                ),
            "head 0 is set apart in every token; the trap takes most of it elsewhere.":
                lambda batch, length, head, d_head: (torch.arange(head * d_head) < d_head).float().expand(
                    batch, length, -1
                ),
            "it needs a d_head of 2 or more: with 1, each sentence holds one number alone.":
                lambda batch, length, head, d_head: torch.arange(float(d_head)).repeat(head).expand(batch, length, -1),
            "the first and the last number get the same; a sentence of two numbers has no others.":
                lambda batch, length, head, d_head: _first_number(batch, length, head, d_head).maximum(
                    _first_number(batch, length, head, d_head).flip(1, 2)
                ),
            "only one of the sentences holds two different numbers.":
                lambda batch, length, head, d_head: _first_number(batch, length, head, d_head)
                * (torch.arange(batch) == 0)[:, None, None],
            "the second number of a sentence is set apart: it stays where it is only while d_head is at least 2.":
                lambda batch, length, head, d_head: _first_number(batch, length, head, d_head).roll(1, dims=2),
        },
        SPLIT: {
            "this is a table for each head already; the features come before the split.":
                lambda batch, length, head, d_head: torch.zeros(batch, head, length, d_head),
            "the batch is missing: there are several sentences.":
                lambda batch, length, head, d_head: _first_number(1, length, head, d_head)[0],
            "the two factors of d_model are still two axes.":
                lambda batch, length, head, d_head: torch.zeros(batch, length, head, d_head),
        },
    }),
)  # fmt: skip

EXERCISES = [SPLIT_HEADS, WEIGHTED_SUM, HIDE_THE_TRAP]
