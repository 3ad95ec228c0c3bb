"""S(X): every score against loops over its equation, and what each looks at, starts from and refuses."""

from math import exp

import pytest
import torch

from synth_lib.lab.starts import decaying_scores, shifted_scores, uniform_scores
from synth_lib.scores import (
    SCORES,
    Dense,
    DotProduct,
    FactorizedDense,
    FactorizedRandom,
    Mixture,
    Random,
    Score,
    make_score,
)
from tests.helpers import properties, reference
from tests.helpers.properties import (
    ALL,
    BATCH,
    D_HEAD,
    D_MODEL,
    HEAD,
    LENGTH,
    MAX_LENGTH,
    MIXTURES,
    RANDOM,
    SINGLE,
    build,
    example,
    refuses,
)

SIZES = (D_MODEL, HEAD, MAX_LENGTH)


def made(name, seed=0, **options):
    """A score in float64 with reproducible weights, far from a uniform map; mixture weights differ."""
    torch.manual_seed(seed)
    score = make_score(name, *SIZES, **options).double()
    with torch.no_grad():
        for parameter_name, parameter in score.named_parameters():
            parameter.copy_(torch.randn_like(parameter) if parameter_name == "logits" else 3 * parameter)
    return score


@pytest.mark.parametrize(("length", "bias"), [(LENGTH, True), (MAX_LENGTH, False)])
@pytest.mark.parametrize("name", ALL)
def test_values_and_gradients_equal_the_loops(name, length, bias):
    score, x = made(name, bias=bias), example(length).requires_grad_()
    inputs = [x, *score.parameters()]
    upstream = torch.randn(BATCH, HEAD, length, length, dtype=torch.float64)

    def gradients(scores):
        if not scores.requires_grad:  # fixed random
            return []
        return torch.autograd.grad((scores * upstream).sum(), inputs, allow_unused=True)

    fast, slow = score(x), reference.scores(score, x)
    torch.testing.assert_close(fast.expand(BATCH, -1, -1, -1), slow)
    torch.testing.assert_close(gradients(fast), gradients(slow))


@pytest.mark.parametrize("name", ALL)
def test_a_score_that_reads_no_token_has_one_map_for_the_batch(name):
    reads_nothing = set(name.split(" + ")) <= set(RANDOM)
    assert made(name)(example()).shape == (1 if reads_nothing else BATCH, HEAD, LENGTH, LENGTH)


def test_a_mixture_of_random_scores_has_one_map_for_the_batch():
    assert made("random + factorized_random")(example()).shape == (1, HEAD, LENGTH, LENGTH)


@pytest.mark.parametrize("name", ["random", "fixed_random", "factorized_random"])
def test_rank(name):
    properties.rank_is_what_the_factors_allow(name)


def test_all_products_of_the_two_factors_appear():
    properties.all_products_of_the_two_factors_appear()


@pytest.mark.parametrize("name", ["random", "fixed_random", "factorized_random"])
def test_spread_at_the_start(name):
    properties.scores_start_with_the_stated_spread(name)


def test_random_starts_normal_in_every_head():
    torch.manual_seed(0)
    R = Random(12, 3, 200, initial_scale=0.5).R.detach()
    assert R.mean(dim=(1, 2)).abs().max() < 0.02
    within_one, within_two = ((R.abs() < 0.5 * n).double().mean(dim=(1, 2)) for n in (1, 2))
    torch.testing.assert_close(within_one, torch.full((3,), 0.683).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(within_two, torch.full((3,), 0.954).double(), atol=0.01, rtol=0)
    assert (Random(12, 3, 200, initial_scale=0).R == 0).all()


@pytest.mark.parametrize("name", ["dense", "factorized_dense"])
def test_weights_per_head_start_as_a_linear_layer_of_d_head_inputs(name):
    torch.manual_seed(0)
    score = make_score(name, 64 * 4, 4, 36)  # 1 / sqrt(d_head) = 1 / 8
    for parameter_name, parameter in score.named_parameters():
        if not parameter_name.startswith("hidden"):
            lowest, highest = parameter.min(), parameter.max()
            assert -1 / 8 <= lowest < -0.6 / 8 and 0.6 / 8 < highest <= 1 / 8, parameter_name


def test_trained_and_fixed_random():
    trained, fixed = Random(*SIZES), Random(*SIZES, fixed=True)
    assert [name for name, _ in trained.named_parameters()] == ["R"] and not list(trained.buffers())
    assert [name for name, _ in fixed.named_buffers()] == ["R"] and not list(fixed.parameters())
    assert list(trained.state_dict()) == list(fixed.state_dict()) == ["R"]
    trained.load_state_dict(fixed.state_dict())  # one may start from the other
    assert torch.equal(trained.R, fixed.R)
    assert (
        isinstance(make_score("fixed_random", *SIZES).R, torch.Tensor)
        and not make_score("fixed_random", *SIZES).R.requires_grad
    )


@pytest.mark.parametrize("name", MIXTURES)
def test_mixture_weights_lie_on_the_simplex(name):
    torch.manual_seed(0)
    mixture = make_score(name, *SIZES)
    number = len(name.split(" + "))
    torch.testing.assert_close(mixture.weights, torch.full((number,), 1 / number))
    torch.nn.init.normal_(mixture.logits, std=3)
    assert (mixture.weights > 0).all() and mixture.weights.sum().item() == pytest.approx(1)
    assert mixture.weights.std() > 0.1
    mixture(example(dtype=torch.float32)).square().sum().backward()
    assert (mixture.logits.grad.abs() > 1e-6).all()


def test_mixtures_of_one_and_of_mixtures():
    inner = Mixture([Random(*SIZES), Dense(*SIZES)])
    x = example(dtype=torch.float32)
    torch.testing.assert_close(Mixture([inner])(x), inner(x))
    torch.testing.assert_close(
        Mixture([inner, inner.parts[0]])(x), 0.75 * inner.parts[0](x) + 0.25 * inner.parts[1](x)
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dot_product", DotProduct),
        ("dense", Dense),
        ("random", Random),
        ("fixed_random", Random),
        ("factorized_dense", FactorizedDense),
        ("factorized_random", FactorizedRandom),
    ],
)
def test_a_score_by_its_name(name, kind):
    score = make_score(name, *SIZES)
    assert type(score) is kind and isinstance(score, Score)
    assert (score.d_model, score.head, score.max_length, score.d_head) == (D_MODEL, HEAD, MAX_LENGTH, D_HEAD)


def test_the_names_are_the_tested_ones():
    assert set(SCORES) == set(SINGLE)


@pytest.mark.parametrize("name", ["random+dot_product", " random + dot_product "])
def test_a_mixture_by_its_name(name):
    mixture = make_score(name, *SIZES)
    assert [type(part) for part in mixture.parts] == [Random, DotProduct]


def test_an_option_goes_to_every_part_that_knows_it():
    mixture = make_score(
        "factorized_random + fixed_random + dense", *SIZES, rank=3, initial_scale=1e-4, bias=False
    )
    factorized, fixed, dense = mixture.parts
    assert factorized.R1.shape == factorized.R2.shape == (HEAD, MAX_LENGTH, 3)
    assert fixed.R.abs().max() < 1e-3 and (factorized.R1 @ factorized.R2.mT).abs().max() < 1e-3
    assert dense.bias is None and dense.hidden.bias is None
    assert make_score("factorized_random", *SIZES).R1.shape[-1] == 8  # k of the paper


@pytest.mark.parametrize(
    ("length", "given", "pair"),
    [
        (8, {}, (2, 4)),
        (36, {}, (6, 6)),
        (7, {}, (1, 7)),
        (1, {}, (1, 1)),
        (30, {}, (5, 6)),
        (30, {"a": 10}, (10, 3)),
        (30, {"b": 10}, (3, 10)),
        (30, {"a": 15, "b": 2}, (15, 2)),
        (30, {"a": 1}, (1, 30)),
    ],
)
def test_the_two_factors(length, given, pair):
    score = FactorizedDense(D_MODEL, HEAD, length, **given)
    assert (score.a, score.b) == pair
    assert score.weight_a.shape == (HEAD, D_HEAD, pair[0]) and score.weight_b.shape == (HEAD, D_HEAD, pair[1])


@pytest.mark.parametrize(
    ("a", "b", "tiled", "repeated"), [(2, 4, 4, 4), (4, 8, 8, 8), (3, 5, 15, 7), (4, 6, 12, 8), (6, 6, 6, 6)]
)
def test_tiling_both_or_repeating_both_reaches_fewer_products(a, b, tiled, repeated):
    """Counted on prime factors: lcm(a, b) and a + b - gcd(a, b) of the a * b products."""
    primes = [n for n in range(2, 50) if all(n % m for m in range(2, n))]
    A, B = torch.tensor(primes[:a]), torch.tensor(primes[a : a + b])
    assert (A.repeat(b) * B.repeat(a)).unique().numel() == tiled
    assert (A.repeat_interleave(b) * B.repeat_interleave(a)).unique().numel() == repeated
    assert (A.repeat(b) * B.repeat_interleave(a)).unique().numel() == a * b


# Starts


def test_a_uniform_start():
    assert torch.equal(uniform_scores(5).softmax(-1), torch.full((5, 5), 0.2))


@pytest.mark.parametrize("error", [1e-5, 1e-3, 0.2])
@pytest.mark.parametrize("offset", [0, 1, -2, 6, -6])
def test_a_shifted_start(offset, error):
    length = 7
    weights = shifted_scores(length, offset, error).softmax(-1)
    for query in range(length):
        key = query + offset
        if 0 <= key < length:
            others = torch.cat([weights[query, :key], weights[query, key + 1 :]])
            assert weights[query, key].item() == pytest.approx(1 - error, abs=1e-6)
            torch.testing.assert_close(
                others, torch.full((length - 1,), error / (length - 1)), rtol=1e-3, atol=1e-8
            )
        else:
            torch.testing.assert_close(weights[query], torch.full((length,), 1 / length))


def test_the_identity_is_exact_enough_at_length_512():
    weights = shifted_scores(512).softmax(-1)
    assert weights.diagonal().min().item() == pytest.approx(0.999, abs=1e-5)
    assert torch.eye(512).softmax(-1).diagonal().max() < 0.0054  # what probabilities would give


def test_a_decaying_start():
    weights = decaying_scores(6, rate=0.5).softmax(-1)
    for query in range(6):
        raw = [exp(-0.5 * abs(query - key)) for key in range(6)]
        torch.testing.assert_close(weights[query], torch.tensor([number / sum(raw) for number in raw]))
    torch.testing.assert_close(decaying_scores(6, rate=0).softmax(-1), torch.full((6, 6), 1 / 6))


def test_starts_of_length_one():
    for start in (uniform_scores(1), shifted_scores(1), decaying_scores(1, 2.0)):
        assert Random(4, 2, 1, start=start).R.softmax(-1).tolist() == [[[1.0]], [[1.0]]]


def test_a_start_for_all_heads_or_for_each():
    one = decaying_scores(MAX_LENGTH, 0.3)
    score = Random(*SIZES, start=one)
    assert isinstance(score.R, torch.nn.Parameter) and torch.equal(score.R, one.expand(HEAD, -1, -1))
    each = torch.stack([decaying_scores(MAX_LENGTH, 0.1 * head) for head in range(HEAD)])
    fixed = Random(*SIZES, start=each, fixed=True)
    assert torch.equal(fixed.R, each) and not list(fixed.parameters())


def test_a_start_is_copied():
    one = decaying_scores(MAX_LENGTH, 0.3)
    for start in (one, one.repeat(HEAD, 1, 1)):
        score = Random(*SIZES, start=start)
        with torch.no_grad():
            score.R[0, 0, 0] = 9  # one head alone, and not the tensor that was given
        assert start.max() == 0 and score.R[1, 0, 0] == 0


# What is refused


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ((35, 4, 8), ["head = 4 does not divide d_model = 35"]),
        ((0, 5, 8), ["d_model is 0", "whole number of at least 1"]),
        ((35, 0, 8), ["head is 0", "whole number of at least 1"]),
        ((35, 5, -1), ["max_length is -1", "whole number of at least 1"]),
        ((35, 5, 8.0), ["max_length is 8.0", "whole number of at least 1"]),
        ((35, True, 8), ["head is True", "whole number of at least 1"]),
    ],
)
def test_wrong_sizes(name, sizes, pieces):
    with refuses(ValueError, *pieces):
        make_score(name, *sizes)


@pytest.mark.parametrize(
    ("make", "error", "pieces"),
    [
        (
            lambda: FactorizedDense(*SIZES, a=3, b=4),
            ValueError,
            ["a = 3", "b = 4", "multiply to 12", "max_length = 8", "a = 2 and b = 4 would"],
        ),
        (
            lambda: FactorizedDense(*SIZES, a=3),
            ValueError,
            ["a = 3", "max_length = 8", "a = 2 and b = 4 would"],
        ),
        (
            lambda: FactorizedDense(*SIZES, b=16),
            ValueError,
            ["b = 16", "max_length = 8", "a = 2 and b = 4 would"],
        ),
        (lambda: FactorizedDense(*SIZES, a=0, b=8), ValueError, ["a is 0", "at least 1"]),
        (lambda: FactorizedDense(*SIZES, a=2, b=4.0), ValueError, ["b is 4.0", "whole number"]),
        (lambda: FactorizedRandom(*SIZES, rank=0), ValueError, ["rank is 0", "at least 1"]),
        (lambda: FactorizedRandom(*SIZES, rank=2.5), ValueError, ["rank is 2.5", "whole number"]),
        (lambda: FactorizedRandom(*SIZES, initial_scale=0), ValueError, ["initial_scale is 0", "above 0"]),
        (
            lambda: FactorizedRandom(*SIZES, initial_scale=-1),
            ValueError,
            ["initial_scale is -1", "at least 0"],
        ),
        (lambda: Random(*SIZES, initial_scale=-0.1), ValueError, ["initial_scale is -0.1", "at least 0"]),
        (
            lambda: Random(*SIZES, initial_scale=float("nan")),
            ValueError,
            ["initial_scale is nan", "at least 0"],
        ),
        (
            lambda: Random(*SIZES, start=torch.zeros(6, 8)),
            ValueError,
            ["start is (6, 8)", "(length, length) = (8, 8)", "(head, length, length)"],
        ),
        (lambda: Random(*SIZES, start=torch.zeros(4, 8, 8)), ValueError, ["start is (4, 8, 8)", "(8, 8)"]),
        (lambda: Random(*SIZES, start="identity"), ValueError, ["start is str", "(8, 8)"]),
        (
            lambda: Random(*SIZES, start=torch.eye(8)),
            ValueError,
            ["probabilities", "rows sum to 1", "give scores"],
        ),
        (lambda: Random(*SIZES, start=torch.full((5, 8, 8), 0.125)), ValueError, ["probabilities"]),
        (lambda: Random(*SIZES, start=decaying_scores(8, 1.0).softmax(-1)), ValueError, ["probabilities"]),
        (
            lambda: Random(*SIZES, start=torch.zeros(8, 8), initial_scale=0.5),
            ValueError,
            ["start or initial_scale = 0.5", "not both"],
        ),
        (lambda: Mixture([]), ValueError, ["parts is empty", "at least one score"]),
        (lambda: Mixture([torch.nn.Linear(2, 2)]), TypeError, ["parts must hold Score modules", "Linear"]),
        (
            lambda: Mixture([Random(35, 5, 8), Random(35, 5, 9)]),
            ValueError,
            ["max_length: [8, 9]", "the same"],
        ),
        (lambda: Mixture([Random(35, 5, 8), Random(35, 7, 8)]), ValueError, ["head: [5, 7]", "the same"]),
        (
            lambda: Mixture([Random(35, 5, 8), Random(40, 5, 8)]),
            ValueError,
            ["d_model: [35, 40]", "the same"],
        ),
        (
            lambda: make_score("sparse", *SIZES),
            ValueError,
            [
                'unknown score "sparse"',
                "dot_product, dense, random, fixed_random, factorized_dense, factorized_random",
            ],
        ),
        (lambda: make_score("random + ", *SIZES), ValueError, ['unknown score ""']),
        (lambda: make_score(None, *SIZES), ValueError, ['unknown score "None"']),
        (
            lambda: make_score("dense", *SIZES, rank=4),
            ValueError,
            ['no part of the score "dense"', "option rank"],
        ),
        (lambda: make_score("dense + random", *SIZES, a=2), ValueError, ["dense + random", "option a"]),
        (lambda: shifted_scores(5, 5), ValueError, ["offset is 5", "between -4 and 4", "length = 5"]),
        (lambda: shifted_scores(5, -7), ValueError, ["offset is -7", "between -4 and 4"]),
        (lambda: shifted_scores(5, 1, error=0), ValueError, ["error is 0", "between 0 and 1"]),
        (lambda: shifted_scores(5, 1, error=1.0), ValueError, ["error is 1.0", "between 0 and 1"]),
        (lambda: decaying_scores(5, -0.5), ValueError, ["rate is -0.5", "at least 0"]),
        (lambda: uniform_scores(0), ValueError, ["length is 0", "at least 1"]),
        (lambda: shifted_scores(0), ValueError, ["length is 0", "at least 1"]),
        (lambda: decaying_scores(2.5, 1), ValueError, ["length is 2.5", "whole number"]),
    ],
)
def test_wrong_options(make, error, pieces):
    with refuses(error, *pieces):
        make()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("x", "error", "pieces"),
    [
        (torch.zeros(BATCH, 9, D_MODEL), ValueError, ["length of x is 9", "between 1 and max_length = 8"]),
        (torch.zeros(BATCH, 0, D_MODEL), ValueError, ["length of x is 0", "between 1 and max_length = 8"]),
        (torch.zeros(BATCH, LENGTH, 34), ValueError, ["d_model of x is 34", "d_model = 35"]),
        (torch.zeros(LENGTH, D_MODEL), ValueError, ["3 axes (batch, length, d_model)", "has 2", "(6, 35)"]),
        (torch.zeros(1, BATCH, LENGTH, D_MODEL), ValueError, ["3 axes (batch, length, d_model)", "has 4"]),
        (
            torch.zeros(BATCH, LENGTH, D_MODEL).long(),
            TypeError,
            ["x must be a floating-point tensor", "torch.int64"],
        ),
        (
            torch.zeros(BATCH, LENGTH, D_MODEL).double(),
            TypeError,
            ["x is torch.float64", "the layer is torch.float32"],
        ),
        ([[[0.0]]], TypeError, ["x must be a floating-point tensor", "list"]),
    ],
)
def test_wrong_inputs(name, x, error, pieces):
    with refuses(error, *pieces):
        build(name, dtype=torch.float32).score(x)
    with refuses(error, *pieces):
        build(name, dtype=torch.float32)(x)


def test_a_score_of_ones_own_is_written_as_rows():
    with refuses(TypeError, "Ones has a forward(x)", "write rows(x, keys, length, start)"):

        class Ones(Score):
            def forward(self, x):
                return torch.ones(1, self.head, x.shape[1], x.shape[1])
