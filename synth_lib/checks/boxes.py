"""Sealed layers for chapter 09: some compute what they claim, others do not, and all have the right shapes.

Do not read on before you have done the chapter. The faults of the lesson are made anew here from one sentence each;
notebooks/ledger.yml names the public code where they stood, as far as it is verified. Those of the exercise alone are
invented. A box shows its claim, what comes out for an input, and the numbers that it saves, and nothing else.
"""

from typing import NamedTuple

import torch
from torch import nn

from synth_lib.attention import Attention
from synth_lib.checks.audit import Claim
from synth_lib.scores import Dense, FactorizedDense, FactorizedRandom, Random, Score


class Box(NamedTuple):
    """A sealed layer.

    Attributes:
        claim: a `Claim`.
        run: run(x), x "batch length d_model", gives y "batch length d_model" and its map "batch head query key".
        numbers: the tensors that the layer saves, by names that say nothing; it trains those with requires_grad.
    """

    claim: Claim
    run: object
    numbers: dict


class Opened(Attention):
    """The whole layer in three steps, so that a fault can stand in one of them."""

    def map(self, x):
        return self.score(x).softmax(dim=-1)

    def values(self, x):
        return self.value(x)

    def forward(self, x):
        weights = self.map(x).expand(len(x), -1, -1, -1)
        value = self.values(x).unflatten(-1, (self.head, -1)).transpose(1, 2)
        return self.output((weights @ value).transpose(1, 2).flatten(2)), weights


class RawR(Opened):
    """The softmax is missing: R itself multiplies the values."""

    def map(self, x):
        return self.score(x)


class OutsideR(Random):
    """R is a plain tensor: no Parameter and no buffer."""

    def __init__(self, d_model, head, max_length, **options):
        super().__init__(d_model, head, max_length, **options)
        R = self.R.detach()
        del self.R
        self.R = R


class ReshapedHeads(Dense):
    """Query and head are exchanged by a reshape, where a transposition belongs."""

    def rows(self, x, keys, length, start=0):
        right = super().rows(x, keys, length, start)
        return right.transpose(1, 2).reshape(right.shape)


class DiagonalHidden(Dense):
    """An index stands twice on one operand of einsum, so it takes the diagonal of W1."""

    def rows(self, x, keys, length, start=0):
        hidden = self._split_heads(torch.einsum("bld,dd->bld", x, self.hidden.weight)).relu()
        return hidden @ self.weight[:, :, :length]


class ReadsTokens(FactorizedRandom):
    """R1 and R2 are two projections of x: a narrow dot product, under another name."""

    reads_tokens = True

    def __init__(self, d_model, head, max_length, **options):
        super().__init__(d_model, head, max_length, **options)
        self.R1, self.R2 = (nn.Parameter(torch.randn(head, d_model, self.R1.shape[-1])) for _ in range(2))

    def rows(self, x, keys, length, start=0):
        return (x[:, None] @ self.R1) @ (x[:, None] @ self.R2).transpose(2, 3)


class TiledTwice(FactorizedDense):
    """Both short lists are tiled, where one is to be repeated."""

    def rows(self, x, keys, length, start=0):
        hidden = self._split_heads(self.hidden(x)).relu()
        A, B = hidden @ self.weight_a, hidden @ self.weight_b
        return (A.repeat(1, 1, 1, self.b) * B.repeat(1, 1, 1, self.a))[..., :length]


class OneRow(FactorizedRandom):
    """Both factors carry the key axis: one row, the same for every query."""

    def rows(self, x, keys, length, start=0):
        row = (self.R1 * self.R2).sum(dim=-1)[:, None, :length]
        return row.expand(-1, length, -1)[None]


class FirstSample(Attention):
    """A step that once gave a tuple gives a tensor now, and the [0] behind it takes the first sample."""

    def forward(self, x):
        y, weights = super().forward(x[0].expand_as(x))
        return y, weights


class ScaledByAll(Opened):
    """The map is made from x divided by the standard deviation of the whole batch."""

    def map(self, x):
        return super().map(x / x.std())


class FirstShowsLast(Opened):
    """Sample 0 shows the map of the last sample, as an index of -1 does it; its y is made with its own."""

    def forward(self, x):
        y, weights = super().forward(x)
        return y, torch.cat([weights[-1:], weights[1:]])


class QuerySoftmax(Opened):
    """The softmax runs along the queries: the columns sum to 1."""

    def map(self, x):
        return self.score(x).softmax(dim=-2)


class Sharpened(Opened):
    """The map of one head is sharpened behind the softmax: rows sum to 1, and small weights become negative."""

    def map(self, x):
        weights = super().map(x).clone()
        weights[:, self.head // 2] = 20 * weights[:, self.head // 2] - 19 / x.shape[1]
        return weights


class CutBehind(Opened):
    """One weight of one head is set to 0 behind the softmax, where a mask belongs before it."""

    def map(self, x):
        allowed = torch.ones(self.head, x.shape[1], x.shape[1])
        allowed[(self.head - 1) // 2, x.shape[1] // 3, 0] = 0
        return super().map(x) * allowed


class OneRowInOneHead(FactorizedRandom):
    """In one head both factors carry the key axis."""

    def rows(self, x, keys, length, start=0):
        right, head = super().rows(x, keys, length, start), self.head // 2
        row = (self.R1 * self.R2)[head].sum(dim=-1)[:length].expand(1, 1, length, -1)
        return torch.cat([right[:, :head], row, right[:, head + 1 :]], dim=1)


class OneRowReadsTokens(Opened):
    """One row of one head reads tokens of the middle: no swap of neighbours at an end shows it."""

    def map(self, x):
        length = x.shape[1]
        middle = x[:, 2:-2].mean(dim=-1)
        scores = self.score(x).expand(len(x), -1, -1, -1).clone()
        scores[:, self.head // 2, length // 2, 0] += (middle * torch.arange(1, middle.shape[1] + 1)).sum(dim=-1)
        return scores.softmax(dim=-1)


class Neighbours(Dense):
    """A row reads the two neighbours of its token, too, around the ends: a turn of all tokens does not show it."""

    reads_tokens = True

    def rows(self, x, keys, length, start=0):
        return super().rows(x + x.roll(1, dims=1) + x.roll(-1, dims=1), keys, length, start)


class ValuesOfTheLast(Opened):
    """The last sample but two gets the values of the last, under its own map."""

    def values(self, x):
        value = super().values(x)
        return torch.cat([value[:-3], value[-1:], value[-2:]]) if len(x) > 2 else value


class FrozenR(Random):
    """R is saved and moves with the layer, but is a buffer: it never learns."""

    def __init__(self, d_model, head, max_length, **options):
        super().__init__(d_model, head, max_length, **options)
        R = self.R.detach()
        del self.R
        self.register_buffer("R", R)


class AlsoTokens(Opened):
    """The products of all tokens are added to R, as a rest of the dot product."""

    def map(self, x):
        return (self.score(x) + (x @ x.mT / x.shape[-1])[:, None]).softmax(dim=-1)


class DiagonalValues(Opened):
    """Of the value projection only the diagonal is used."""

    def values(self, x):
        return x * self.value.weight.diagonal()


FAULTS = {  # in short: the S that the layer claims, and the classes that are broken, of S, of the layer or one of each
    "raw R": ("random", RawR),
    "R is outside": ("random", OutsideR),
    "reshaped heads": ("dense", ReshapedHeads),
    "diagonal": ("dense", DiagonalHidden),
    "reads x": ("factorized_random", ReadsTokens),
    "tiled twice": ("factorized_dense", TiledTwice),
    "one row": ("factorized_random", OneRow),
    "first sample": ("dense", FirstSample),
}
UNSEEN = {  # not in the lesson, for the exercises
    "scaled by all": ("dense", ScaledByAll),
    "first shows last": ("dense", FirstShowsLast, DiagonalHidden),
    "softmax over the queries": ("dot_product", QuerySoftmax),
    "sharpened": ("factorized_random", Sharpened, OneRow),
    "cut behind": ("random", CutBehind, OutsideR),
    "frozen R": ("random", FrozenR, DiagonalValues),
    "also tokens": ("random", AlsoTokens),
    "diagonal values": ("random", DiagonalValues),
    "one row reads tokens": ("random", OneRowReadsTokens),
    "values of the last": ("dot_product", ValuesOfTheLast),
    "neighbours": ("dense", Neighbours),
    "one row in one head": ("factorized_random", OneRowInOneHead),
}
LETTERS = {
    "A": "raw R", "B": "R is outside", "C": "reshaped heads", "D": None, "E": "diagonal", "G": "reads x",
    "H": "tiled twice", "I": "one row", "J": "first sample",
}  # fmt: skip


def make(fault, claim, seed=0):
    """A layer with this fault, a name of FAULTS or UNSEEN, or None for a sound one, that makes this `claim`.

    Its numbers come from the seed, 0.1 to 0.5 and -0.5 to -0.1, and are the same on every machine.

    Raises:
        ValueError: there is no such fault, or the claim has biases, which boxes have not.
    """
    if fault is not None and fault not in FAULTS | UNSEEN:
        raise ValueError(f"there is no fault {fault!r}; there are {', '.join(FAULTS | UNSEEN)}")
    if claim.bias:
        raise ValueError("a box has no biases: make its claim with bias=False")
    names = {"rank": claim.rank, "a": claim.a, "b": claim.b}
    options = {name: value for name, value in names.items() if value is not None}
    kinds = (FAULTS | UNSEEN)[fault][1:] if fault else ()
    layers, scores = ([kind for kind in kinds if issubclass(kind, base)] for base in (Attention, Score))
    sizes = claim.d_model, claim.head, claim.max_length
    with torch.random.fork_rng(devices=[]):  # what torch draws first is overwritten
        score = claim.score
        for kind in scores:
            options |= {"bias": False} if issubclass(kind, (Dense, FactorizedDense)) else {}
            score, options = kind(*sizes, **options), {}
        layer = next(iter(layers), Attention)(*sizes, score, causal=claim.causal, bias=False, **options)
    generator = torch.Generator().manual_seed(seed)
    outside = [layer.score.R] if isinstance(layer.score, OutsideR) else []
    with torch.no_grad():
        for tensor in [*layer.state_dict().values(), *outside]:
            size = torch.randint(1, 6, tensor.shape, generator=generator) / 10
            tensor.copy_(size * (1 - 2 * torch.randint(0, 2, tensor.shape, generator=generator)))
    return layer.eval()


def seal(layer, claim):
    """A module as a Box: it can be run and weighed, and not looked into."""
    numbers = layer.state_dict(keep_vars=True).values()
    return Box(claim, lambda x: layer(x)[:2], {f"tensor {i}": tensor for i, tensor in enumerate(numbers)})


def box(letter, causal=False):
    """The box of the chapter with this letter: width 12, three heads, at most 8 tokens.

    Raises:
        ValueError: there is no such letter.
    """
    if letter not in LETTERS:
        raise ValueError(f"there is no box {letter!r}; there are {', '.join(LETTERS)}")
    fault = LETTERS[letter]
    score = FAULTS[fault][0] if fault else "factorized_dense"
    options = {"factorized_random": {"rank": 2}, "factorized_dense": {"a": 2, "b": 4}}.get(score, {})
    claim = Claim(score, d_model=12, head=3, max_length=8, causal=causal, bias=False, **options)
    return seal(make(fault, claim, seed=ord(letter)), claim)
