"""What must hold for the attention layer, one property a function, each named after the sentence it proves.

Two test files call them: test_attention.py on the library, and test_faults.py on copies that are broken on
purpose, where they have to fail. A property takes the name of a score and looks everything else up in the
library when it is called, so that a broken part put there is found.
"""

from contextlib import contextmanager

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from synth_lib import attention, masks
from synth_lib.lab import starts

# Pairwise different: a swapped axis cannot pass. d_model = head * d_head, max_length = tile * repeat.
BATCH, HEAD, D_HEAD, D_MODEL, LENGTH, MAX_LENGTH, TILE, REPEAT, RANK = 3, 5, 7, 35, 6, 8, 2, 4, 1

# Table 1, "conditioned on": the tokens that row i of the map depends on.
EVERY_TOKEN, OWN_TOKEN, NOTHING = "every token", "own token", "nothing"
CONDITIONED_ON = {
    "dot_product": EVERY_TOKEN,
    "dense": OWN_TOKEN,
    "factorized_dense": OWN_TOKEN,
    "random": NOTHING,
    "fixed_random": NOTHING,
    "factorized_random": NOTHING,
}
SINGLE = list(CONDITIONED_ON)
RANDOM = [score for score in SINGLE if CONDITIONED_ON[score] == NOTHING]
MIXTURES = ["random + dot_product", "fixed_random + dense + factorized_random", " + ".join(SINGLE)]
ALL = SINGLE + MIXTURES


@contextmanager
def refuses(error, *pieces):
    """The block raises `error`, and its message holds every one of the pieces."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    missing = [piece for piece in pieces if piece not in message]
    assert not missing, f"{missing} not in the message: {message}"
    assert "\n" not in message, f"one sentence, not several lines: {message}"


def build(
    score, *, d_model=D_MODEL, head=HEAD, max_length=MAX_LENGTH, seed=0, dtype=torch.float64, **options
):
    """A layer with reproducible weights."""
    torch.manual_seed(seed)
    return attention.Attention(d_model, head, max_length, score, **options).to(dtype)


def example(length=LENGTH, batch=BATCH, dtype=torch.float64):
    """An input without zeros or symmetries."""
    return torch.randn(
        batch, length, D_MODEL, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).to(dtype)


def with_large_scores(layer):
    """The same layer with parameters three times as large, so that no map is nearly uniform."""
    with torch.no_grad():
        for parameter in layer.score.parameters():
            parameter.mul_(3)
    return layer


def depends_on(function, x):
    """Which rows of function(x) depend on which tokens, by Jacobian: bool "row token".

    x is one sentence "length d_model"; the first axis of function(x) are its rows.
    """
    jacobian = torch.autograd.functional.jacobian(function, x)
    return (jacobian.flatten(1, -3) != 0).any(dim=1).any(dim=-1)


def rows_are_a_softmax_over_the_keys(score):
    layer = build(score)
    for mask in (None, masks.causal(LENGTH)):
        _, weights = layer(example(), mask)
        assert weights.shape == (BATCH, HEAD, LENGTH, LENGTH)
        assert (weights >= 0).all(), "a weight is negative"
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, HEAD, LENGTH).double())


def map_depends_on_what_table_1_says(score):
    layer = build(score)
    wanted = {
        EVERY_TOKEN: torch.ones(LENGTH, LENGTH).bool(),
        OWN_TOKEN: torch.eye(LENGTH).bool(),
        NOTHING: torch.zeros(LENGTH, LENGTH).bool(),
    }
    rows = depends_on(lambda x: layer(x[None])[1][0].transpose(0, 1), example(batch=1)[0])
    expected = torch.stack([wanted[CONDITIONED_ON[part]] for part in score.split(" + ")]).any(dim=0)
    assert torch.equal(rows, expected), f"row i depends on token j where this is 1:\n{rows.int()}"


def kept_laws(score):
    """What S and its map do when the tokens change places, x -> Px: the claims of Table 1 whose law they keep.

    Every token: P S P^T. Own token: P S. Nothing: S. Neither derivatives nor rounding play a part.
    """
    layer, x = build(score), example(MAX_LENGTH)
    order = torch.tensor([3, 0, 7, 1, 6, 2, 5, 4])  # moves every token, and does not undo itself
    kept = set()
    for law, columns in ((EVERY_TOKEN, order), (OWN_TOKEN, slice(None)), (NOTHING, slice(None))):
        rows = slice(None) if law == NOTHING else order
        pairs = [(run(x)[:, :, rows][..., columns], run(x[:, order])) for run in (layer.score, lambda x: layer(x)[1])]
        if all(torch.allclose(moved, found) for moved, found in pairs):
            kept.add(law)
    return kept


def tokens_change_places_as_table_1_says(score):
    """Each S keeps its own law and no other; a mixture keeps what all its parts keep."""
    wanted = set.intersection(*({CONDITIONED_ON[part]} for part in score.split(" + ")))
    assert kept_laws(score) == wanted, f"it keeps {sorted(kept_laws(score))}, not {sorted(wanted)}"


def score_parameters(score, d_model, head, max_length, a=TILE, b=REPEAT, rank=RANK):
    """The parameters of S by the formulas of Table 1, which count one matrix a head for R and no biases."""
    return {
        "dot_product": 2 * d_model**2,
        "dense": d_model**2 + d_model * max_length,
        "factorized_dense": d_model**2 + d_model * (a + b),
        "random": head * max_length**2,
        "fixed_random": 0,
        "factorized_random": head * 2 * max_length * rank,
    }[score]


def trained(module):
    """How many numbers of a module are trained."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def parameters_meet_table_1(score):
    for d_model, head, a, b in ((35, 5, 2, 4), (12, 1, 3, 5), (12, 4, 5, 7)):
        max_length = a * b
        options = {"factorized_dense": {"a": a, "b": b}, "factorized_random": {"rank": RANK}}.get(score, {})
        layer = build(score, d_model=d_model, head=head, max_length=max_length, bias=False, **options)
        wanted = score_parameters(score, d_model, head, max_length, a, b)
        value_and_output = 2 * d_model**2
        assert trained(layer) - value_and_output == wanted, (
            f"d_model {d_model}, head {head}, max_length {max_length}"
        )


def every_parameter_learns(score):
    """No dead weight: every single number of every parameter has a gradient."""
    layer = build(score)
    layer(example(MAX_LENGTH))[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        if name.endswith("key.bias"):
            continue  # adds the same number to a whole row of scores, which the softmax does not see
        still = (parameter.grad.abs() < 1e-12).sum().item()
        assert still == 0, f"{still} of the {parameter.numel()} numbers of {name} have no gradient"


def hidden_layer_bends(score):
    """Dense scores are not affine in x: F(u + v) - F(u) - F(v) + F(0) is not 0."""
    layer = build(score)
    if score == "factorized_dense":  # a product of two maps bends anyway: hold one factor at 1
        torch.nn.init.zeros_(layer.score.weight_b)
        torch.nn.init.ones_(layer.score.bias_b)
    u, v = example(), example().roll(1, dims=0)
    bend = layer.score(u + v) - layer.score(u) - layer.score(v) + layer.score(torch.zeros_like(u))
    assert (bend.abs() > 1e-6).any(dim=-1).all(), "S is affine in x: there is no relu"


def all_products_of_the_two_factors_appear(score="factorized_dense"):
    for a, b, A, B in ((2, 4, [2, 3], [5, 7, 11, 13]), (3, 3, [2, 3, 5], [7, 11, 13])):
        layer = build(score, max_length=a * b, a=a, b=b)
        for weight, bias, primes in (("weight_a", "bias_a", A), ("weight_b", "bias_b", B)):
            torch.nn.init.zeros_(getattr(layer.score, weight))
            getattr(layer.score, bias).data[:] = torch.tensor(primes)
        row = layer.score(example(a * b))[0, 0, 0]
        assert sorted(row.tolist()) == sorted(one * other for one in A for other in B), (
            f"the row is {row.tolist()}"
        )


def only_the_dot_product_is_scaled(score="random + dot_product"):
    """With R = 1 and Q = K = x = 1 the mixture is (1 + d_head / sqrt(d_head)) / 2."""
    layer = build(score)
    random, dot_product = layer.score.parts
    torch.nn.init.ones_(random.R)
    for projection in (dot_product.query, dot_product.key):
        torch.nn.init.eye_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    mixed = layer.score(torch.ones_like(example()))
    torch.testing.assert_close(mixed, torch.full_like(mixed, (1 + D_HEAD**0.5) / 2))


def rows_are_queries(score="dot_product"):
    """Queries that are all alike give rows that are all alike; the keys still differ."""
    layer = build(score)
    torch.nn.init.zeros_(layer.score.query.weight)
    weights = layer(example())[1]
    torch.testing.assert_close(weights, weights[:, :, :1].expand_as(weights))
    assert weights.std(dim=-1).min() > 1e-4


def scores_start_with_the_stated_spread(score):
    """Standard deviation 1 / sqrt(max_length), or what `initial_scale` says, whatever the number of heads."""
    for head in (1, 4):
        for options, wanted in (({}, 48**-0.5), ({"initial_scale": 0.7}, 0.7)):
            layer = build(score, d_model=D_MODEL * 4, head=head, max_length=48, **options)
            # R1 R2^T has few independent numbers: take the mean square over many layers
            squares = [layer.score(torch.zeros(1, 48, D_MODEL * 4).double()).square().mean()]
            for seed in range(1, 40):
                layer = build(score, d_model=D_MODEL * 4, head=head, max_length=48, seed=seed, **options)
                squares.append(layer.score(torch.zeros(1, 48, D_MODEL * 4).double()).square().mean())
            measured = torch.stack(squares).mean().sqrt().item()
            assert abs(measured / wanted - 1) < 0.05, f"{measured} instead of {wanted}"


def state_survives_a_reload(score):
    """Another layer that loads the state_dict gives the same outputs, in another dtype too."""
    layer, other = build(score, dtype=torch.float32), build(score, seed=1, dtype=torch.float32)
    x = example(dtype=torch.float32)
    y, weights = layer(x)
    assert (weights - other(x)[1]).abs().max() > 1e-3, (
        "the two layers were alike before: this check proves nothing"
    )
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), (y, weights), rtol=0, atol=0)
    moved = other.double()
    assert {tensor.dtype for tensor in moved.state_dict().values()} == {torch.float64}
    torch.testing.assert_close(moved(x.double())[1].float(), weights)


def a_sample_never_depends_on_the_rest_of_the_batch(score):
    layer, x = build(score), example()
    mask = masks.padding([LENGTH, 4, 5], LENGTH)
    for together in (None, mask):
        y, weights = layer(x, together)
        for n in range(BATCH):
            alone = layer(x[n : n + 1], None if together is None else mask[n : n + 1])
            torch.testing.assert_close((y[n], weights[n]), (alone[0][0], alone[1][0]))


def the_future_never_leaks(score):
    """By gradient: under the causal mask y_i depends on all the tokens up to i and on no other."""
    layer = build(score, causal=True)
    rows = depends_on(lambda x: layer(x[None])[0][0], example(batch=1)[0])
    assert torch.equal(rows, torch.ones_like(rows).tril()), (
        f"y_i depends on token j where this is 1:\n{rows.int()}"
    )
    for mode in (layer.train(), layer.eval()):
        assert (mode(example())[1].triu(1) == 0).all()


def padding_is_ignored(score):
    """What stands in a padded place reaches no real token, and a padded sentence equals the short one."""
    layer, x, real = build(score), example(), 4
    mask = masks.padding([real] * BATCH, LENGTH)
    y, weights = layer(x, mask)
    assert (weights[..., real:] == 0).all(), "padded keys keep a weight"
    changed = x.clone()
    changed[:, real:] += 10
    torch.testing.assert_close(layer(changed, mask)[0][:, :real], y[:, :real], rtol=0, atol=0)
    torch.testing.assert_close(layer(x[:, :real])[0], y[:, :real])


def empty_rows_are_zero_and_finite(score):
    """Left padding and a causal mask leave the first queries nothing to attend to."""
    layer, x = build(score, causal=True), example().requires_grad_()
    lengths = [LENGTH, 4, 1]
    y, weights = layer(x, masks.padding(lengths, LENGTH, side="left"))
    y.square().sum().backward()
    for n, real in enumerate(lengths):
        assert (weights[n, :, : LENGTH - real] == 0).all(), "a row that may attend to nothing has weights"
        torch.testing.assert_close(weights[n, :, LENGTH - real :].sum(-1), torch.ones(HEAD, real).double())
        torch.testing.assert_close(y[n, : LENGTH - real], layer.output.bias.expand(LENGTH - real, -1))
    assert y.isfinite().all() and x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def rank_is_what_the_factors_allow(score):
    """R has full rank; R1 R2^T has rank k, and its rows differ."""
    options = {"rank": 3} if score == "factorized_random" else {}
    maps = build(score, **options).score(example(MAX_LENGTH))[0]
    assert torch.linalg.matrix_rank(maps).tolist() == [options.get("rank", MAX_LENGTH)] * HEAD


def hand_made_starts_give_their_map(score="random"):
    """After the softmax, and to the stated accuracy: 1 - error where one key is meant."""
    x, error = example(MAX_LENGTH), 1e-3
    identity = build(score, start=starts.shifted_scores(MAX_LENGTH, error=error))(x)[1]
    torch.testing.assert_close(
        identity.diagonal(dim1=-2, dim2=-1), torch.full((BATCH, HEAD, MAX_LENGTH), 1 - error).double()
    )
    uniform = build(score, start=starts.uniform_scores(MAX_LENGTH))(x)[1]
    torch.testing.assert_close(uniform, torch.full_like(uniform, 1 / MAX_LENGTH))
    with refuses(ValueError, "start holds probabilities", "rows sum to 1", "give scores"):
        build(score, start=torch.eye(MAX_LENGTH))


def multiply_adds(layer, x):
    """Multiply-adds of one forward pass, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        layer(x)
    return counter.get_total_flops() // 2


def multiply_adds_meet_the_formula(score):
    """They grow with batch and length, and Random's map costs nothing, R1 R2^T once for the whole batch."""
    layer = build(score)
    for batch, length in ((BATCH, LENGTH), (1, LENGTH), (BATCH, MAX_LENGTH)):
        tokens = batch * length
        wanted = (
            2 * tokens * D_MODEL**2 + tokens * length * D_MODEL
        )  # value and output, then weights times values
        wanted += {
            "dot_product": 2 * tokens * D_MODEL**2 + tokens * length * D_MODEL,
            "dense": tokens * D_MODEL**2 + tokens * D_MODEL * length,
            "factorized_dense": tokens * D_MODEL**2 + tokens * D_MODEL * (TILE + REPEAT),
            "random": 0,
            "fixed_random": 0,
            "factorized_random": HEAD * length**2 * 8,
        }[score]
        assert multiply_adds(layer, example(length, batch)) == wanted, f"batch {batch}, length {length}"
