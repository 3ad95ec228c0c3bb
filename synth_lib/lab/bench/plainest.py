"""The plainest correct code for each S: a few lines of matmul, written apart from the library, with the weights of its
layers. `bench` times it beside them, and a test compares the results. Every S is made from x "batch length d_model".
"""

from math import sqrt

import torch

from synth_lib.scores import Dense, DotProduct, FactorizedDense, FactorizedRandom, Mixture, Random


def plainest(layer, x):
    """y of `Attention`: softmax, weights times values, heads joined, output projection."""
    return finish(layer, scores(layer.score, x), x)


def expanded(layer, x):
    """The same with one map for each sample, copies of one another: R is expanded to the batch before the softmax."""
    return finish(layer, scores(layer.score, x).expand(len(x), -1, -1, -1), x)


def finish(layer, scores, x):
    if layer.causal:
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    mixed = torch.softmax(scores, dim=-1) @ split(layer.value(x), layer.head)
    return layer.output(mixed.transpose(1, 2).reshape(x.shape))


def split(features, head):
    batch, length, _ = features.shape
    return features.view(batch, length, head, -1).transpose(1, 2)


def scores(score, x):
    """S(x) of any score of the library, "batch|1 head query key"."""
    return PLAINEST[type(score)](score, x)


def dot_product(score, x):
    query, key = split(score.query(x), score.head), split(score.key(x), score.head)
    return query @ key.transpose(-2, -1) / sqrt(score.d_head)


def dense(score, x):
    length = x.shape[1]
    hidden = split(torch.relu(score.hidden(x)), score.head)
    return hidden @ score.weight[:, :, :length] + score.bias[:, None, :length]


def factorized_dense(score, x):
    hidden = split(torch.relu(score.hidden(x)), score.head)
    A = hidden @ score.weight_a + score.bias_a[:, None]
    B = hidden @ score.weight_b + score.bias_b[:, None]
    return (A.repeat(1, 1, 1, score.b) * B.repeat_interleave(score.a, dim=-1))[..., : x.shape[1]]


def random(score, x):
    length = x.shape[1]
    return score.R[None, :, :length, :length]


def factorized_random(score, x):
    length = x.shape[1]
    return (score.R1[:, :length] @ score.R2[:, :length].transpose(-2, -1))[None]


def mixture(score, x):
    alpha = torch.softmax(score.logits, dim=0)
    return sum(alpha[number] * scores(part, x) for number, part in enumerate(score.parts))


def knows(score):
    """Whether this S is written here."""
    return type(score) in PLAINEST and all(knows(part) for part in getattr(score, "parts", ()))


PLAINEST = {
    DotProduct: dot_product,
    Dense: dense,
    FactorizedDense: factorized_dense,
    Random: random,
    FactorizedRandom: factorized_random,
    Mixture: mixture,
}
