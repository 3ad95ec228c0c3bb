"""The exercises of chapter 00: two moves that every other chapter uses."""

import torch
from einops import einsum, rearrange, repeat

from synth_lib.checks.exercise import Exercise, Reads, mistakes

SPLIT = "rearrange: name the axes, move them"
RESHAPE = "The trap: right shape, wrong numbers"
EINSUM = "einsum: name the axes, multiply, sum"
IDEA = "The one idea"


def _features(draw):
    sizes = draw.sizes("batch length head d_head")
    return {"features": draw.normal(sizes["batch"], sizes["length"], sizes["d_model"]), "head": sizes["head"]}


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
    minutes=8,
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
        },
    }),
)  # fmt: skip


def _weights_and_value(draw):
    sizes = draw.sizes("batch head length d_head")
    batch, head, length = sizes["batch"], sizes["head"], sizes["length"]
    return {
        "weights": draw.normal(batch, head, length, length).softmax(dim=-1),
        "value": draw.normal(batch, head, length, sizes["d_head"]),
    }


def _sum_in_loops(weights, value):
    batch, head, length, d_head = value.shape
    result = torch.zeros(batch, head, length, d_head)
    for b in range(batch):
        for h in range(head):
            for i in range(length):
                for j in range(length):
                    result[b, h, i] += weights[b, h, i, j] * value[b, h, j]
    return result


WEIGHTED_SUM = Exercise(
    key="00.2",
    title="sum the values with the weights",
    name="weighted_sum",
    minutes=8,
    level="easy",
    inputs=_weights_and_value,
    returns="batch head query d_head",
    properties=(Reads("weights", 2, 2, "query"), Reads("value", 0, 0, "sentence"), Reads("value", 1, 1, "head")),
    example=lambda: {"weights": torch.tensor([[[[1, 0], [0.5, 0.5]]]]), "value": torch.tensor([[[[1.0, 2], [3, 4]]]])},
    right=(
        lambda weights, value: einsum(
            weights, value, "batch head query key, batch head key d_head -> batch head query d_head"
        ),
        lambda weights, value: weights @ value,
        lambda weights, value: (weights[..., None] * value[:, :, None]).sum(dim=3),
        _sum_in_loops,
    ),
    wrong=mistakes({
        EINSUM: {
            "the sum runs over the queries, so the weights are read as if they were transposed.":
                lambda weights, value: einsum(
                    weights, value, "batch head query key, batch head query d_head -> batch head key d_head"
                ),
            "every token gets its own value back: the rows of value are the tokens that are attended to.":
                lambda weights, value: einsum(
                    weights, value, "batch head query key, batch head query d_head -> batch head query d_head"
                ),
            "a name is used twice in one tensor, which reads only its diagonal.":
                lambda weights, value: weights.diagonal(dim1=-2, dim2=-1)[..., None] * value,
            "the heads are summed too: a name that is missing on the right is summed away.":
                lambda weights, value: einsum(
                    weights, value, "batch head query key, batch head key d_head -> batch query d_head"
                ),
            "the sentences are summed too: batch has to stay, every sentence has a result of its own.":
                lambda weights, value: (weights @ value).sum(dim=0),
            "the products are there, but nothing is summed yet.":
                lambda weights, value: einsum(
                    weights, value, "batch head query key, batch head key d_head -> batch head query key d_head"
                ),
            "the numbers are right, but query stands in front of head.":
                lambda weights, value: einsum(
                    weights, value, "batch head query key, batch head key d_head -> batch query head d_head"
                ),
        },
        IDEA: {
            "the weights go through a softmax, but they have been through one already.":
                lambda weights, value: weights.softmax(dim=-1) @ value,
            "the weights go through a softmax along the queries, but they need none: their rows sum to 1 already.":
                lambda weights, value: weights.softmax(dim=-2) @ value,
            "each product takes the place of the one before, so the last key alone is left: nothing is added up.":
                lambda weights, value: weights[..., -1:] * value[:, :, -1:],
            "the products are averaged, not summed: the weights of a row already sum to 1.":
                lambda weights, value: (weights @ value) / weights.shape[-1],
            "every token gets the plain mean of the values; the weights make no difference.":
                lambda weights, value: value.mean(dim=2, keepdim=True).expand_as(value),
        },
    }),
)  # fmt: skip

EXERCISES = [SPLIT_HEADS, WEIGHTED_SUM]
