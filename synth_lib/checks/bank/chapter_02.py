"""The exercises of chapter 02, Dense: equations (1) to (3) of arXiv 2005.00743."""

from math import prod, sqrt

import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from synth_lib.attention import Attention
from synth_lib.checks.exercise import Exercise, Reads, RowsSumTo1, mistakes

MODULE = "A module holds its parameters"
EQUATIONS = "The equations"
RELU = "What the relu is for"
SOFTMAX = "From scores to weights: the softmax"
VALUES = "From weights to the result: the values"
MOVES = "What moves when one token changes"
JACOBIAN = "Every dependence at once: the Jacobian"
HEADS = "Heads: several maps side by side"
SPLITTING = "Splitting: rearrange, not reshape"
MAX_LENGTH = "max_length and shorter inputs"
CUT = "Cut before the softmax"
PARAMETERS = "Parameters"
MULTIPLY_ADDS = "Multiply-adds"
QUESTION = "A question that learners ask"
LIBRARY = "The same as the library's layer"


# 02.1. W1 is square, so that a transposed one fits; x, W2 and the scores differ in shape, so that they are told apart.


def _linear_inputs(draw):
    sizes = draw.sizes("length key d_model", low=3)
    length, key, d_model = sizes["length"], sizes["key"], sizes["d_model"]
    return {
        "x": draw.normal(length, d_model),
        "W1": draw.normal(d_model, d_model),
        "b1": draw.normal(d_model),
        "W2": draw.normal(key, d_model),
        "b2": draw.normal(key),
    }


def _linear_matmul(x, W1, b1, W2, b2):
    return (x @ W1.T + b1).relu() @ W2.T + b2


def _linear_in_loops(x, W1, b1, W2, b2):
    scores = torch.empty(len(x), len(W2))
    for i in range(len(x)):
        hidden = []
        for h in range(len(W1)):
            total = b1[h] + sum(W1[h, d] * x[i, d] for d in range(len(x[i])))
            hidden.append(max(total.item(), 0.0))
        for j in range(len(W2)):
            scores[i, j] = b2[j] + sum(W2[j, h] * hidden[h] for h in range(len(W1)))
    return scores


def _linear_einsum(x, W1, b1, W2, b2):
    hidden = einsum(x, W1, "query d_model, d_head d_model -> query d_head") + b1
    return einsum(hidden.clamp(min=0), W2, "query d_head, key d_head -> query key") + b2


LINEAR_SCORES = Exercise(
    key="02.1",
    title="scores from the parameters of two nn.Linear",
    name="linear_scores",
    minutes=10,
    level="easy",
    inputs=_linear_inputs,
    returns="query key",
    properties=(Reads("x", 0, 0, "token"),),
    right=(
        _linear_matmul,
        _linear_in_loops,
        _linear_einsum,
        lambda x, W1, b1, W2, b2: F.linear(F.relu(F.linear(x, W1, b1)), W2, b2),
    ),
    wrong=mistakes({
        MODULE: {
            "W1 is used the wrong way round. It is square, so torch does not complain.":
                lambda x, W1, b1, W2, b2: (x @ W1 + b1).relu() @ W2.T + b2,
        },
        RELU: {
            "there is no relu, so the two layers are no more than one.":
                lambda x, W1, b1, W2, b2: (x @ W1.T + b1) @ W2.T + b2,
        },
        EQUATIONS: {
            "the relu acts on the scores, not between the two layers.":
                lambda x, W1, b1, W2, b2: ((x @ W1.T + b1) @ W2.T + b2).relu(),
            "there is a second relu, on the scores; scores may be negative.":
                lambda x, W1, b1, W2, b2: ((x @ W1.T + b1).relu() @ W2.T + b2).relu(),
            "the first bias is added after the relu instead of before it.":
                lambda x, W1, b1, W2, b2: ((x @ W1.T).relu() + b1) @ W2.T + b2,
            "the bias of the first layer is missing.": lambda x, W1, b1, W2, b2: (x @ W1.T).relu() @ W2.T + b2,
            "the bias of the second layer is missing.": lambda x, W1, b1, W2, b2: (x @ W1.T + b1).relu() @ W2.T,
            "both biases are missing.": lambda x, W1, b1, W2, b2: (x @ W1.T).relu() @ W2.T,
            "there is a second relu, on x; the numbers of a token may be negative.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x.relu(), W1, b1, W2, b2),
            "the relu acts on x, not between the two layers.":
                lambda x, W1, b1, W2, b2: (x.relu() @ W1.T + b1) @ W2.T + b2,
            "a gelu stands where equation (2) has a relu.": lambda x, W1, b1, W2, b2: F.gelu(x @ W1.T + b1) @ W2.T + b2,
            "rows and columns are swapped: a row should belong to a token that attends.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x, W1, b1, W2, b2).T,
        },
        SOFTMAX: {
            "there is a softmax, and along the queries; the exercise asks for the scores before it.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x, W1, b1, W2, b2).softmax(dim=0),
            "it goes one step too far: these are weights, and the exercise asks for the scores before them.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x, W1, b1, W2, b2).softmax(dim=-1),
        },
    }),
)  # fmt: skip


# 02.2. As many keys as queries, so that a map with the two swapped has the right shape.


def _head_inputs(draw):
    sizes = draw.sizes("batch head d_head length")
    head, length, d_model = sizes["head"], sizes["length"], sizes["d_model"]
    return {
        "x": draw.normal(sizes["batch"], length, d_model),
        "W1": draw.normal(d_model, d_model) / sqrt(d_model),
        "b1": draw.normal(d_model),
        "W2": draw.normal(head, sizes["d_head"], length),
        "b2": draw.normal(head, length),
    }


SPLIT = "batch query (head d_head) -> batch head query d_head"


def _head_einsum(x, W1, b1, W2, b2):
    hidden = rearrange((x @ W1 + b1).relu(), SPLIT, head=len(W2))
    scores = einsum(hidden, W2, "batch head query d_head, head d_head key -> batch head query key")
    return scores + b2[:, None]


def _head_matmul(x, W1, b1, W2, b2):
    batch, length, _ = x.shape
    hidden = (x @ W1 + b1).relu().reshape(batch, length, len(W2), -1).transpose(1, 2)
    return hidden @ W2 + b2.unsqueeze(1)


def _head_in_loops(x, W1, b1, W2, b2):
    d_head = W2.shape[1]
    sentences = []
    for sentence in x:
        maps = []
        for m in range(len(W2)):
            own = slice(m * d_head, (m + 1) * d_head)
            maps.append((sentence @ W1[:, own] + b1[own]).relu() @ W2[m] + b2[m])
        sentences.append(torch.stack(maps))
    return torch.stack(sentences)


def _head_from(hidden, W2, b2):
    return hidden @ W2 + b2[:, None]


def _hidden(x, W1, b1, W2, pattern=SPLIT):
    return rearrange((x @ W1 + b1).relu(), pattern, head=len(W2))


HEAD_SCORES = Exercise(
    key="02.2",
    title="all heads at once",
    name="head_scores",
    minutes=15,
    level="medium",
    inputs=_head_inputs,
    returns="batch head query key",
    properties=(Reads("x", 1, 2, "token"), Reads("x", 0, 0, "sentence"), Reads("W2", 0, 1, "head")),
    right=(_head_einsum, _head_matmul, _head_in_loops),
    wrong=mistakes({
        SPLITTING: {
            "the heads are cut out by a reshape alone, so a row of a head is fed by other tokens.":
                lambda x, W1, b1, W2, b2: _head_from(
                    (x @ W1 + b1).relu().reshape(len(x), len(W2), x.shape[1], -1), W2, b2
                ),
            "the hidden numbers are dealt out to the heads like cards; each head owns neighbours.":
                lambda x, W1, b1, W2, b2: _head_from(
                    _hidden(x, W1, b1, W2, "batch query (d_head head) -> batch head query d_head"), W2, b2
                ),
            "the numbers are there, but head stands behind query.":
                lambda x, W1, b1, W2, b2: _head_einsum(x, W1, b1, W2, b2).transpose(1, 2),
            "the numbers are there, but head stands in front of batch.":
                lambda x, W1, b1, W2, b2: _head_einsum(x, W1, b1, W2, b2).transpose(0, 1),
        },
        EQUATIONS: {
            "query and key are swapped: a row should belong to a token that attends.":
                lambda x, W1, b1, W2, b2: _head_einsum(x, W1, b1, W2, b2).transpose(2, 3),
            "the relu acts on the scores, not between the two layers.":
                lambda x, W1, b1, W2, b2: _head_from(rearrange(x @ W1 + b1, SPLIT, head=len(W2)), W2, b2).relu(),
            "there is a second relu, on the scores; scores may be negative.":
                lambda x, W1, b1, W2, b2: _head_einsum(x, W1, b1, W2, b2).relu(),
            "W1 is used the wrong way round; here its first axis is the one that goes in.":
                lambda x, W1, b1, W2, b2: _head_from(_hidden(x, W1.T, b1, W2), W2, b2),
            "the scores are divided by the root of d_head, as for the dot product; equation (2) is not.":
                lambda x, W1, b1, W2, b2: _head_einsum(x, W1, b1, W2, b2) / sqrt(W2.shape[1]),
            "the bias of the first layer is missing.": lambda x, W1, b1, W2, b2: _head_einsum(x, W1, 0 * b1, W2, b2),
        },
        HEADS: {
            "all heads use the second matrix of head 0.":
                lambda x, W1, b1, W2, b2: _head_from(_hidden(x, W1, b1, W2), W2[0], b2),
            "the heads are added up; each should keep a map of its own.":
                lambda x, W1, b1, W2, b2: _head_einsum(x, W1, b1, W2, b2).sum(dim=1),
            "the products of all heads are added up, so the heads differ in nothing but their bias.":
                lambda x, W1, b1, W2, b2: (_hidden(x, W1, b1, W2) @ W2).sum(dim=1, keepdim=True) + b2[:, None],
            "the second bias runs along the queries, but there is one for each position that is attended to.":
                lambda x, W1, b1, W2, b2: _hidden(x, W1, b1, W2) @ W2 + b2[:, :, None],
            "the bias of the second layer is missing.": lambda x, W1, b1, W2, b2: _hidden(x, W1, b1, W2) @ W2,
        },
        RELU: {
            "there is no relu, so the two layers are no more than one.":
                lambda x, W1, b1, W2, b2: _head_from(rearrange(x @ W1 + b1, SPLIT, head=len(W2)), W2, b2),
        },
        SOFTMAX: {
            "it goes one step too far: these are weights, and the exercise asks for the scores before them.":
                lambda x, W1, b1, W2, b2: _head_einsum(x, W1, b1, W2, b2).softmax(dim=-1),
        },
    }),
)  # fmt: skip


# 02.3


def _short_inputs(draw):
    sizes = draw.sizes("batch length max_length d_model", high=8)
    batch, d_model = sizes["batch"], sizes["d_model"]
    length, max_length = sorted((sizes["length"], sizes["max_length"]))
    return {
        "x": draw.normal(batch, length, d_model),
        "W1": draw.normal(d_model, d_model) / sqrt(d_model),
        "W2": draw.normal(d_model, max_length),
    }


def _small_short():
    """Every row has equal scores, so that the weights are easy numbers."""
    W2 = torch.tensor([[1.0, 1, 1], [2, 2, 2]])
    return {"x": torch.eye(2)[None], "W1": torch.eye(2), "W2": W2}


def _all_scores(x, W1, W2):
    return (x @ W1).relu() @ W2


def _short_cut_scores(x, W1, W2):
    return _all_scores(x, W1, W2)[:, :, : x.shape[1]].softmax(dim=-1)


def _short_cut_weights(x, W1, W2):
    hidden = einsum(x, W1, "batch query d_model, d_model d_head -> batch query d_head").relu()
    scores = einsum(hidden, W2[:, : x.shape[1]], "batch query d_head, d_head key -> batch query key")
    return scores.softmax(dim=2)


def _short_mask(x, W1, W2):
    length = x.shape[1]
    outside = torch.arange(W2.shape[1]) >= length
    return _all_scores(x, W1, W2).masked_fill(outside, float("-inf")).softmax(dim=-1)[..., :length]


def _short_renormalised(x, W1, W2):
    weights = _all_scores(x, W1, W2).softmax(dim=-1)[..., : x.shape[1]]
    return weights / weights.sum(dim=-1, keepdim=True)


def _short_in_loops(x, W1, W2):
    batch, length, _ = x.shape
    weights = torch.empty(batch, length, length)
    for b in range(batch):
        for i in range(length):
            exponentials = [torch.exp((x[b, i] @ W1).relu() @ W2[:, j]) for j in range(length)]
            for j in range(length):
                weights[b, i, j] = exponentials[j] / sum(exponentials)
    return weights


def _short_without_exp(x, W1, W2):
    scores = _all_scores(x, W1, W2)[..., : x.shape[1]]
    return scores / scores.sum(dim=-1, keepdim=True)


def _short_zero_scores(x, W1, W2):
    length = x.shape[1]
    outside = torch.arange(W2.shape[1]) >= length
    return _all_scores(x, W1, W2).masked_fill(outside, 0.0).softmax(dim=-1)[..., :length]


SHORT_MAP = Exercise(
    key="02.3",
    title="the map of a short sentence",
    name="short_map",
    minutes=10,
    level="medium",
    inputs=_short_inputs,
    returns="batch query key",
    properties=(RowsSumTo1(), Reads("x", 1, 1, "token"), Reads("x", 0, 0, "sentence")),
    example=_small_short,
    right=(_short_cut_scores, _short_cut_weights, _short_mask, _short_renormalised, _short_in_loops),
    wrong=mistakes({
        CUT: {
            "the map is cut after the softmax, so its rows sum to less than 1.":
                lambda x, W1, W2: _all_scores(x, W1, W2).softmax(dim=-1)[..., : x.shape[1]],
            "the scores of the positions outside are set to 0, and a score of 0 still gets a share.":
                _short_zero_scores,
        },
        MAX_LENGTH: {
            "nothing is cut: the map has a column for positions that this sentence does not have.":
                lambda x, W1, W2: _all_scores(x, W1, W2).softmax(dim=-1),
            "it keeps the last columns. Where do sentences start?":
                lambda x, W1, W2: _all_scores(x, W1, W2)[..., -x.shape[1] :].softmax(dim=-1),
        },
        SOFTMAX: {
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                lambda x, W1, W2: _all_scores(x, W1, W2)[..., : x.shape[1]].softmax(dim=1),
            "the softmax runs along the batch, so it mixes sentences. A softmax without dim can do that too.":
                lambda x, W1, W2: _all_scores(x, W1, W2)[..., : x.shape[1]].softmax(dim=0),
            "the scores are divided by their sum as they are; the softmax first makes each one positive.":
                _short_without_exp,
            "these are the scores; the softmax is missing.":
                lambda x, W1, W2: _all_scores(x, W1, W2)[..., : x.shape[1]],
        },
        EQUATIONS: {
            "queries and keys are swapped in the map: a row should belong to a token that attends.":
                lambda x, W1, W2: _short_cut_scores(x, W1, W2).transpose(1, 2),
            "queries and keys are swapped in the scores, before the softmax.":
                lambda x, W1, W2: _all_scores(x, W1, W2)[..., : x.shape[1]].transpose(1, 2).softmax(dim=-1),
            "there is a second relu, on the scores; scores may be negative.":
                lambda x, W1, W2: _all_scores(x, W1, W2)[..., : x.shape[1]].relu().softmax(dim=-1),
            "the relu acts on the scores, not between the two layers.":
                lambda x, W1, W2: (x @ W1 @ W2[:, : x.shape[1]]).relu().softmax(dim=-1),
            "W1 is used the wrong way round; here its first axis is the one that goes in.":
                lambda x, W1, W2: _short_cut_scores(x, W1.T, W2),
        },
        RELU: {
            "there is no relu, so the two layers are no more than one.":
                lambda x, W1, W2: (x @ W1 @ W2[:, : x.shape[1]]).softmax(dim=-1),
        },
    }),
)  # fmt: skip


# 02.4


def _cost_inputs(draw):
    sizes = draw.sizes("batch length max_length head d_head", high=9)
    length, max_length = sorted((sizes["length"], sizes["max_length"]))
    return {
        "batch": sizes["batch"],
        "length": length,
        "max_length": max_length,
        "d_model": sizes["d_model"],
        "head": sizes["head"],
    }


def _cost_formula(batch, length, max_length, d_model, head):
    parameters = 3 * (d_model**2 + d_model) + d_model * max_length + head * max_length
    return parameters, batch * (3 * length * d_model**2 + 2 * length**2 * d_model)


def _cost_lists(batch, length, max_length, d_model, head):
    d_head = d_model // head
    matrices = [(d_model, d_model)] * 3 + [(d_head, max_length)] * head
    biases = [d_model] * 3 + [max_length] * head
    products = [(length, d_model, d_model)] * 3 + [(length, d_head, length), (length, length, d_head)] * head
    return sum(map(prod, matrices)) + sum(biases), batch * sum(map(prod, products))


def _cost_counted(batch, length, max_length, d_model, head):
    layer = Attention(d_model, head, max_length, score="dense")
    hidden = [layer.score.hidden, layer.value, layer.output]
    linear = sum(batch * length * module.weight.numel() for module in hidden)
    maps = head * batch * length * length * (d_model // head)
    return sum(parameter.numel() for parameter in layer.parameters()), linear + 2 * maps


def _cost_with(parameters=lambda **_: 0, multiply_adds=lambda **_: 0):
    """Wrong answers: what they count too much in each of the two numbers, from the sizes by name."""

    def answer(**sizes):
        right = _cost_formula(**sizes)
        return right[0] + parameters(**sizes), right[1] + sizes["batch"] * multiply_adds(**sizes)

    return answer


def _cost_with_projections(more):
    return _cost_with(
        lambda d_model, **_: more * (d_model**2 + d_model), lambda length, d_model, **_: more * length * d_model**2
    )


LAYER_COST = Exercise(
    key="02.4",
    title="the bill for the whole layer",
    name="layer_cost",
    minutes=10,
    level="medium",
    inputs=_cost_inputs,
    returns="parameters, multiply_adds",
    right=(_cost_formula, _cost_lists, _cost_counted),
    wrong=mistakes({
        VALUES: {
            "this is the bill for the scores alone, without biases; values, average and output are missing.":
                lambda batch, length, max_length, d_model, head: (
                    d_model**2 + d_model * max_length,
                    batch * (length * d_model**2 + length**2 * d_model),
                ),
            "this is the bill for the scores alone; values, average and output projection are missing.":
                lambda batch, length, max_length, d_model, head: (
                    d_model**2 + d_model + d_model * max_length + head * max_length,
                    batch * (length * d_model**2 + length**2 * d_model),
                ),
        },
        MULTIPLY_ADDS: {
            "the second number adds up the sizes of the parameters again; work depends on batch and length.":
                lambda **sizes: (_cost_formula(**sizes)[0],) * 2,
            "this is the bill for dot-product attention, with its two projections for the scores.":
                lambda batch, length, max_length, d_model, head: (
                    4 * (d_model**2 + d_model),
                    batch * (4 * length * d_model**2 + 2 * length**2 * d_model),
                ),
        },
        PARAMETERS: {"the two numbers are in the wrong order.": lambda **sizes: _cost_formula(**sizes)[::-1]},
    }) + mistakes({
        QUESTION: {
            "the hidden layer is max_length wide.":
                _cost_with(lambda d_model, max_length, **_: max_length**2 + max_length - d_model**2 - d_model),
        },
        HEADS: {
            "one second bias is counted, but every head has one.":
                _cost_with(lambda head, max_length, **_: max_length - head * max_length),
            "the biases of the second layers are missing.":
                _cost_with(lambda head, max_length, **_: -head * max_length),
            "the second matrix of every head reads all d_model hidden numbers.":
                _cost_with(lambda head, d_model, max_length, **_: (head - 1) * d_model * max_length),
            "every head has a whole first layer; the heads share one.":
                _cost_with(lambda head, d_model, **_: (head - 1) * (d_model**2 + d_model)),
        },
        EQUATIONS: {
            "the biases are missing, as in Table 1; the docstring asks for them.":
                _cost_with(lambda head, d_model, max_length, **_: -3 * d_model - head * max_length),
        },
        LIBRARY: {
            "the biases of values and output projection are missing.": _cost_with(lambda d_model, **_: -2 * d_model),
            "one bias of size d_model is missing; hidden layer, values and output have one each.":
                _cost_with(lambda d_model, **_: -d_model),
            "one projection is missing; values and output have one each.": _cost_with_projections(-1),
        },
        MAX_LENGTH: {
            "they are counted with the length of this sentence; they must serve the longest one.":
                _cost_with(lambda length, max_length, d_model, head, **_: (length - max_length) * (d_model + head)),
        },
        MULTIPLY_ADDS: {
            "there is one projection too many; Dense makes no queries and no keys.": _cost_with_projections(1),
            "the maps are as wide as max_length; this sentence uses length columns.":
                _cost_with(
                    multiply_adds=lambda length, max_length, d_model, **_: 2 * length * (max_length - length) * d_model
                ),
            "the second layer computes all max_length columns and throws some away.":
                _cost_with(
                    multiply_adds=lambda length, max_length, d_model, **_: length * (max_length - length) * d_model
                ),
            "the longest possible sentence is counted, not this one.":
                lambda length, max_length, **sizes: _cost_formula(length=max_length, max_length=max_length, **sizes),
            "one sentence is counted, not the batch.": lambda batch, **sizes: _cost_formula(1, **sizes),
            "a multiplication and its addition are counted as two, as torch's own counter does.":
                lambda batch, **sizes: _cost_formula(2 * batch, **sizes),
            "every head works with all d_model features.":
                _cost_with(multiply_adds=lambda length, d_model, head, **_: 2 * (head - 1) * length**2 * d_model),
        },
        VALUES: {
            "the average counts all d_model columns of the values once for each head.":
                _cost_with(multiply_adds=lambda length, d_model, head, **_: (head - 1) * length**2 * d_model),
            "only one product of size length x length is counted.":
                _cost_with(multiply_adds=lambda length, d_model, **_: -(length**2) * d_model),
        },
    }, by_part=True),
)  # fmt: skip


# 02.5. The score function of a trial is made so that each shortcut misses something.
# - Row i reads token n strongly, weakly or not at all: a coarse limit or a small change misses what is weak.
# - No row reads one of the tokens.
# - Rows with an odd i skip the first number of a token.
# - Token n moves two keys by opposite amounts, one key down or one up, by its position: sums cancel, or signs mislead.
# - One row shifts as a whole, all keys by the same amount: a softmax would hide it. In the others no token moves all.
# - Below the limit, all other rows depend on all tokens: as by rounding, but the same on every machine.


def _depends_inputs(draw):
    sizes = draw.sizes("length d_model", low=4)
    length, d_model = sizes["length"], sizes["d_model"]
    kind = draw.normal(length, length)
    reads = 2.0 * (kind > 0.3) + 0.02 * (kind < -0.6)
    unread, shifted = draw.integer(0, length - 1), draw.integer(0, length - 1)
    reads[shifted, (unread + 1) % length], reads[shifted, (unread + 2) % length] = 2, 0
    reads[:, unread] = 0
    is_shifted = (torch.arange(length) == shifted)[:, None]
    reads, shifts = reads * ~is_shifted, reads * is_shifted
    directions = draw.normal(length, d_model).abs()
    directions[1::2, 0] = 0
    directions = directions / directions.sum(dim=1, keepdim=True)
    kind_of_token = (torch.arange(length) - length + 1) % 3  # the last token moves key 0
    both, down, up = (kind_of_token == number for number in range(3))

    def score(x):
        read = einsum(directions, x, "query d_model, length d_model -> query length")
        read = read + 0.3 * read.tanh()  # strictly increasing: no dependence is lost
        moved, shift = reads * read, (shifts * read).sum(dim=1, keepdim=True)
        next_key = (moved * both - moved * down).roll(1, dims=1)
        rounding = 6e-7 * x.sum().sin() * torch.linspace(0.5, 1, length) * ~is_shifted
        return next_key - (moved * both).roll(2, dims=1) + moved * up + shift + rounding

    return {"score": score, "x": draw.normal(length, d_model)}


def _differences(score, x, change):
    """How the scores move, "query key length", where `change(x, n)` is x with token n changed."""
    return torch.stack([score(change(x, n)) - score(x) for n in range(len(x))], dim=-1)


def _changes(score, x, change):
    return _differences(score, x, change).abs()


def _one_token(x, n, size=1.0):
    moved = x.clone()
    moved[n] += size * torch.linspace(0.5, 1.5, x.shape[1])
    return moved


def _first_number(x, n):
    moved = x.clone()
    moved[n, 0] += 1
    return moved


def _from_n_on(x, n):
    moved = x.clone()
    moved[n:] += torch.linspace(0.5, 1.5, x.shape[1])
    return moved


def _up_to_n(x, n):
    moved = x.clone()
    moved[: n + 1] += torch.linspace(0.5, 1.5, x.shape[1])
    return moved


def _depends_by_change(score, x):
    return _changes(score, x, _one_token).amax(dim=1) > 1e-5


def _depends_by_jacobian(score, x):
    return torch.autograd.functional.jacobian(score, x).abs().amax(dim=(1, 3)) > 1e-5


def _depends_in_loops(score, x):
    answer = torch.zeros(len(x), len(x), dtype=torch.bool)
    for i in range(len(x)):
        for n in range(len(x)):
            moved = x.clone()
            moved[n] = -2 * x[n] + 0.7
            answer[i, n] = not torch.allclose(score(moved)[i], score(x)[i], rtol=0, atol=1e-5)
    return answer


DEPENDS_ON = Exercise(
    key="02.5",
    title="who depends on whom",
    name="depends_on",
    minutes=15,
    level="medium",
    inputs=_depends_inputs,
    returns="query length",
    right=(_depends_by_change, _depends_by_jacobian, _depends_in_loops),
    wrong=mistakes({
        MOVES: {
            "the table is transposed: the row that moves comes first, the token that is changed second.":
                lambda score, x: _depends_by_change(score, x).T,
            "a row counts only if all of its numbers change; one that changes is enough.":
                lambda score, x: (_changes(score, x, _one_token) > 1e-5).all(dim=1),
            "only the first score of each row is looked at.":
                lambda score, x: _changes(score, x, _one_token)[:, 0] > 1e-5,
            "it looks at one number, [i, n], instead of the whole row i.":
                lambda score, x: torch.diagonal(_changes(score, x, _one_token), dim1=1, dim2=2) > 1e-5,
            "a token counts for every row as soon as anything in the map moves.":
                lambda score, x: (_changes(score, x, _one_token).amax(dim=(0, 1)) > 1e-5).repeat(len(x), 1),
            "it tells which column moves, not which row.":
                lambda score, x: _changes(score, x, _one_token).amax(dim=0) > 1e-5,
            "all tokens from n on are changed, not token n alone.":
                lambda score, x: _changes(score, x, _from_n_on).amax(dim=1) > 1e-5,
            "the changes pile up: when it is the turn of token n, the earlier ones are still changed.":
                lambda score, x: _changes(score, x, _up_to_n).amax(dim=1) > 1e-5,
        },
        JACOBIAN: {
            "the row is added up first, and changes up and down cancel.":
                lambda score, x: torch.stack(
                    [(score(_one_token(x, n)) - score(x)).sum(dim=1).abs() > 1e-5 for n in range(len(x))], dim=1
                ),
            "only scores that grow with the token are counted; one that falls has changed too.":
                lambda score, x: _differences(score, x, _one_token).amax(dim=1) > 1e-5,
            "only scores that fall when the token grows are counted; one that grows with it has changed too.":
                lambda score, x: -_differences(score, x, _one_token).amin(dim=1) > 1e-5,
            "nothing is found: every entry is False. Either the table is never filled, or the change of the token is "
            "so small that the difference drowns in rounding.":
                lambda score, x: _changes(score, x, lambda x, n: _one_token(x, n, size=1e-7)).amax(dim=1) > 1e-5,
            "every entry is True, also for a token that no row reads.":
                lambda score, x: torch.ones(len(x), len(x), dtype=torch.bool),
            "this is the diagonal, the table of Dense; another score function has another table.":
                lambda score, x: torch.eye(len(x), dtype=torch.bool),
            "weak dependence is missed: the change of the token is too small, or the limit for rounding too large.":
                lambda score, x: _changes(score, x, _one_token).amax(dim=1) > 0.1,
            "differences or derivatives as small as rounding are counted as dependence.":
                lambda score, x: _changes(score, x, _one_token).amax(dim=1) > 0,
            "only the first number of each token is changed; some rows do not read it.":
                lambda score, x: _changes(score, x, _first_number).amax(dim=1) > 1e-5,
            "True and False are swapped.": lambda score, x: _depends_by_change(score, x).logical_not(),
        },
        SOFTMAX: {
            "the weights are measured, not the scores: where a whole row of scores shifts, the softmax hides it.":
                lambda score, x: (
                    torch.autograd.functional.jacobian(lambda z: score(z).softmax(dim=-1), x).abs().amax(dim=(1, 3))
                    > 1e-5
                ),
        },
    }),
)  # fmt: skip

EXERCISES = [LINEAR_SCORES, HEAD_SCORES, SHORT_MAP, LAYER_COST, DEPENDS_ON]
