"""The properties must bite: the layer is broken on purpose, as seen in public code, and one has to fail.

Every broken copy runs and gives tensors of the right shape. Each entry of FAULTS says in words what is
broken, which property sees it, and for which S. A fault that its property does not see fails the suite.
"""

import pytest
import torch
from torch import nn

from synth_lib import attention, masks, scores
from synth_lib.attention import Attention
from synth_lib.checks.boxes import OneRow, OutsideR, ReadsTokens, ReshapedHeads
from synth_lib.lab import starts
from synth_lib.scores import Dense, DotProduct, FactorizedDense, Random, Score
from tests.helpers import properties


def use(score, module):
    """A fault that puts another module behind the name of a score."""
    return lambda monkeypatch: monkeypatch.setitem(scores.SCORES, score, module)


def softmax_that(instead):
    """A fault in the softmax along the keys; that of the mixture, over another axis, stays as it is."""
    right = torch.Tensor.softmax

    def broken(tensor, dim):
        return instead(tensor, right) if dim == -1 else right(tensor, dim)

    return lambda monkeypatch: monkeypatch.setattr(torch.Tensor, "softmax", broken)


def masked_softmax_that(instead):
    return lambda monkeypatch: monkeypatch.setattr(attention, "masked_softmax", instead)


class StretchedAlike(FactorizedDense):
    """Both factors stretched by `stretch`, instead of one tiled and one repeated."""

    def rows(self, x, keys, length, start=0):
        hidden = self._split_heads(self.hidden(x)).relu()
        A = hidden @ self.weight_a + self.bias_a[:, None]
        B = hidden @ self.weight_b + self.bias_b[:, None]
        return (self.stretch(A, self.b) * self.stretch(B, self.a))[..., : x.shape[1]]


class TileTimesTile(StretchedAlike):
    def stretch(self, factor, times):
        return factor.repeat(1, 1, 1, times)


class RepeatTimesRepeat(StretchedAlike):
    def stretch(self, factor, times):
        return factor.repeat_interleave(times, dim=-1)


class NarrowDense(Score):
    """d -> l -> l instead of d -> d -> l."""

    def __init__(self, d_model, head, max_length, *, bias=True):
        super().__init__(d_model, head, max_length)
        self.hidden = nn.Linear(d_model, max_length, bias=bias)
        self.weight = nn.Parameter(torch.randn(head, max_length, max_length))

    def rows(self, x, keys, length, start=0):
        return self.hidden(x).relu()[:, None] @ self.weight[:, :, : x.shape[1]]


class FactorsWithoutHiddenLayer(Score):
    """Each factor is one linear map of x."""

    def __init__(self, d_model, head, max_length, *, a=None, b=None, bias=True):
        super().__init__(d_model, head, max_length)
        self.a, self.b = scores._factor_pair(max_length, a, b)
        self.to_a = nn.Linear(d_model, head * self.a, bias=bias)
        self.to_b = nn.Linear(d_model, head * self.b, bias=bias)

    def rows(self, x, keys, length, start=0):
        A, B = self.to_a(x).unflatten(-1, (self.head, -1)), self.to_b(x).unflatten(-1, (self.head, -1))
        return (B[..., :, None] * A[..., None, :]).flatten(-2).transpose(1, 2)[..., : x.shape[1]]


class UnscaledDotProduct(DotProduct):
    def rows(self, x, keys, length, start=0):
        return super().rows(x, keys, length, start) * self.d_head**0.5


class XavierOnThreeAxes(Random):
    """Fans of a "head length length" tensor, as if the last axis were a receptive field."""

    def __init__(self, d_model, head, max_length, *, initial_scale=None, fixed=False, start=None):
        super().__init__(d_model, head, max_length)
        nn.init.xavier_uniform_(self.R)


class RWithABatchAxis(Random):
    """One R for each sample of the batch."""

    reads_tokens = True

    def __init__(self, d_model, head, max_length, *, initial_scale=None, fixed=False, start=None):
        super().__init__(d_model, head, max_length)
        self.R = nn.Parameter(torch.randn(properties.BATCH, head, max_length, max_length))

    def rows(self, x, keys, length, start=0):
        return self.R[: len(x), :, :length, :length]


class DenseWithDeadWeights(Dense):
    """The projections of the dot product are made and not used."""

    def __init__(self, d_model, head, max_length, *, bias=True):
        super().__init__(d_model, head, max_length, bias=bias)
        self.query = nn.Linear(d_model, d_model, bias=bias)


class AffineDense(Dense):
    def rows(self, x, keys, length, start=0):
        hidden = self._split_heads(self.hidden(x))
        return hidden @ self.weight[:, :, : x.shape[1]] + self.bias[:, None, : x.shape[1]]


class AffineFactors(FactorizedDense):
    def rows(self, x, keys, length, start=0):
        hidden = self._split_heads(self.hidden(x))
        A = hidden @ self.weight_a + self.bias_a[:, None]
        B = hidden @ self.weight_b + self.bias_b[:, None]
        return (B[..., :, None] * A[..., None, :]).flatten(-2)[..., : x.shape[1]]


class DiagonalHidden(Dense):
    """A repeated index in einsum, "nf,ff->nf", takes the diagonal of W1."""

    def rows(self, x, keys, length, start=0):
        hidden = torch.einsum("blf,ff->blf", x, self.hidden.weight) + self.hidden.bias
        return (
            self._split_heads(hidden).relu() @ self.weight[:, :, : x.shape[1]]
            + self.bias[:, None, : x.shape[1]]
        )


class QueryOnTheKeyAxis(DotProduct):
    def rows(self, x, keys, length, start=0):
        return super().rows(x, keys, length, start).transpose(-2, -1)


def padding_only_with_the_dot_product(monkeypatch):
    class MaskForTheDotProductOnly(Attention):
        def forward(self, x, mask=None):
            return super().forward(x, mask if isinstance(self.score, DotProduct) else None)

    monkeypatch.setattr(attention, "Attention", MaskForTheDotProductOnly)


def symmetric_causal(monkeypatch):
    def within_three(length, device=None):
        position = torch.arange(length, device=device)
        return ((position[:, None] - position).abs() < 3)[None, None]

    monkeypatch.setattr(attention, "causal", within_three)


def probabilities_as_scores(monkeypatch):
    monkeypatch.setattr(starts, "shifted_scores", lambda length, offset=0, error=1e-3: torch.eye(length))
    monkeypatch.setattr(
        scores, "_checked_start", lambda start, head, length: start.expand(head, length, length).clone()
    )


def probabilities_not_refused(monkeypatch):
    monkeypatch.setattr(
        scores, "_checked_start", lambda start, head, length: start.expand(head, length, length).clone()
    )


def cost_that_adds_up_parameters(monkeypatch):
    """Not in the layer but in what is counted: sizes of weights, whatever the batch and length."""
    monkeypatch.setattr(
        properties, "multiply_adds", lambda layer, x: sum(p.numel() for p in layer.parameters())
    )


def minus_infinity(raw, allowed):
    return raw.masked_fill(~allowed, float("-inf")).softmax(dim=-1)


def smallest_number_only(raw, allowed):
    return raw.masked_fill(~allowed, torch.finfo(raw.dtype).min).softmax(dim=-1)


FAULTS = {
    # what is broken: (the fault, the property that sees it, S)
    "the softmax is missing": (
        softmax_that(lambda raw, right: raw),
        "rows_are_a_softmax_over_the_keys",
        "random",
    ),
    "random reads x": (
        use("factorized_random", ReadsTokens),
        "map_depends_on_what_table_1_says",
        "factorized_random",
    ),
    "both factors are tiled": (
        use("factorized_dense", TileTimesTile),
        "all_products_of_the_two_factors_appear",
        "factorized_dense",
    ),
    "both factors are repeated": (
        use("factorized_dense", RepeatTimesRepeat),
        "all_products_of_the_two_factors_appear",
        "factorized_dense",
    ),
    "the hidden layer of dense has the wrong width": (
        use("dense", NarrowDense),
        "parameters_meet_table_1",
        "dense",
    ),
    "factorized dense has no hidden layer": (
        use("factorized_dense", FactorsWithoutHiddenLayer),
        "parameters_meet_table_1",
        "factorized_dense",
    ),
    "the dot product in a mixture is not scaled": (
        use("dot_product", UnscaledDotProduct),
        "only_the_dot_product_is_scaled",
        "random + dot_product",
    ),
    "the cost adds up sizes of weights": (
        cost_that_adds_up_parameters,
        "multiply_adds_meet_the_formula",
        "dot_product",
    ),
    "Xavier on three axes": (
        use("random", XavierOnThreeAxes),
        "scores_start_with_the_stated_spread",
        "random",
    ),
    "R is a plain tensor": (use("random", OutsideR), "state_survives_a_reload", "random"),
    "R has a batch axis": (
        use("random", RWithABatchAxis),
        "a_sample_never_depends_on_the_rest_of_the_batch",
        "random",
    ),
    "projections that nothing uses, in the gradients": (
        use("dense", DenseWithDeadWeights),
        "every_parameter_learns",
        "dense",
    ),
    "projections that nothing uses, in the count": (
        use("dense", DenseWithDeadWeights),
        "parameters_meet_table_1",
        "dense",
    ),
    "dense is affine": (use("dense", AffineDense), "hidden_layer_bends", "dense"),
    "the factors of factorized dense are affine": (
        use("factorized_dense", AffineFactors),
        "hidden_layer_bends",
        "factorized_dense",
    ),
    "an empty row is NaN": (masked_softmax_that(minus_infinity), "empty_rows_are_zero_and_finite", "random"),
    "an empty row is uniform": (
        masked_softmax_that(smallest_number_only),
        "empty_rows_are_zero_and_finite",
        "random",
    ),
    "a repeated einsum index": (use("dense", DiagonalHidden), "every_parameter_learns", "dense"),
    "a broadcast instead of a product": (
        use("factorized_random", OneRow),
        "rank_is_what_the_factors_allow",
        "factorized_random",
    ),
    "a reshape instead of a transposition, in the map": (
        use("dense", ReshapedHeads),
        "map_depends_on_what_table_1_says",
        "dense",
    ),
    "a reshape instead of a transposition, as a leak": (
        use("dense", ReshapedHeads),
        "the_future_never_leaks",
        "dense",
    ),
    "padding is masked only with the dot product": (
        padding_only_with_the_dot_product,
        "padding_is_ignored",
        "random",
    ),
    "the bool mask is added": (
        masked_softmax_that(lambda raw, allowed: (raw + allowed).softmax(-1)),
        "padding_is_ignored",
        "dot_product",
    ),
    "probabilities go through the softmax": (
        probabilities_as_scores,
        "hand_made_starts_give_their_map",
        "random",
    ),
    "probabilities are not refused": (probabilities_not_refused, "hand_made_starts_give_their_map", "random"),
    "the query index on the key axis": (
        use("dot_product", QueryOnTheKeyAxis),
        "rows_are_queries",
        "dot_product",
    ),
    "a symmetric causal mask": (symmetric_causal, "the_future_never_leaks", "random"),
    "the softmax runs over the queries": (
        softmax_that(lambda raw, right: right(raw, -2)),
        "rows_are_a_softmax_over_the_keys",
        "dense",
    ),
    "the softmax runs over the batch": (
        softmax_that(lambda raw, right: right(raw, 0)),
        "a_sample_never_depends_on_the_rest_of_the_batch",
        "dense",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_layer_is_caught(fault, monkeypatch):
    break_it, name, score = FAULTS[fault]
    property_holds = getattr(properties, name)
    property_holds(score)  # of the layer as it is

    break_it(monkeypatch)
    layer, x = properties.build(score, dtype=torch.float32), properties.example(dtype=torch.float32)
    y, weights = layer(x, masks.causal(properties.LENGTH))
    assert y.shape == x.shape and weights.shape[1:] == (properties.HEAD, properties.LENGTH, properties.LENGTH)
    # Only a failed assertion counts, or an error that is missing where it belongs: all catch a crash.
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        property_holds(score)
