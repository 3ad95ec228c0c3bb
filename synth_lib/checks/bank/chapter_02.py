"""The exercises of chapter 02, Dense: equations (1) to (3) of arXiv 2005.00743."""

from functools import partial
from math import prod, sqrt

import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from synth_lib.attention import Attention
from synth_lib.checks.compare import kind_of
from synth_lib.checks.exercise import Exercise, Reads, RowsSumTo1, mistakes
from synth_lib.scores import Dense

MODULE = "Named axes, and a module"
EQUATIONS = "The equations"
RELU = "What the relu is for"
RESULT = "From scores to the result"
MOVES = "What moves when one token changes"
JACOBIAN = "Every dependence at once: the Jacobian"
HEADS = "Heads: several maps side by side"
MAX_LENGTH = "max_length and shorter inputs"
CUT = "Cut before the softmax"
PARAMETERS = "Parameters"
MULTIPLY_ADDS = "Multiply-adds"
QUESTION = "A question that learners ask"
LIBRARY = "The same as the library's layer"


# 02.1. W1 is square, so that a transposed one fits; x, W2 and the scores differ in shape, so that they are told apart.
# There are more keys than tokens or fewer. Some tokens are larger, but where large terms cancel, rounding is left.


def _linear_inputs(draw):
    sizes = draw.sizes("batch length key d_model", low=3)
    batch, length, key, d_model = sizes["batch"], sizes["length"], sizes["key"], sizes["d_model"]
    few, many = sorted((length, key))
    batch, length, key = draw.in_turn(((batch, few, many), (batch, many, few), (1, 1, 1)))
    large = torch.where(torch.arange(length) % 3 == 1, 3.0, 1.0)[:, None]
    return {
        "x": draw.normal(batch, length, d_model) * large,
        "W1": draw.normal(d_model, d_model),
        "b1": draw.normal(d_model),
        "W2": draw.normal(key, d_model),
        "b2": draw.normal(key),
    }


def _linear_matmul(x, W1, b1, W2, b2):
    return (x @ W1.T + b1).relu() @ W2.T + b2


def _linear_in_loops(x, W1, b1, W2, b2):
    x, W1, b1, W2, b2 = (part.tolist() for part in (x, W1, b1, W2, b2))
    scores = [[[*b2] for _ in sentence] for sentence in x]
    for b, sentence in enumerate(x):
        for i, token in enumerate(sentence):
            hidden = [b1[h] + sum(W1[h][d] * token[d] for d in range(len(token))) for h in range(len(b1))]
            for j in range(len(b2)):
                scores[b][i][j] += sum(W2[j][h] * max(hidden[h], 0.0) for h in range(len(b1)))
    return torch.tensor(scores)


def _linear_einsum(x, W1, b1, W2, b2):
    hidden = einsum(x, W1, "batch query d_model, d_head d_model -> batch query d_head") + b1
    return einsum(hidden.clamp(min=0), W2, "batch query d_head, key d_head -> batch query key") + b2


LINEAR_SCORES = Exercise(
    key="02.1",
    title="scores from the parameters of two nn.Linear",
    name="linear_scores",
    minutes=8,
    level="easy",
    inputs=_linear_inputs,
    returns="batch query key",
    properties=(Reads("x", 1, 1, "token"), Reads("x", 0, 0, "sentence")),
    right=(
        _linear_matmul,
        _linear_in_loops,
        _linear_einsum,
        lambda x, W1, b1, W2, b2: F.linear(F.relu(F.linear(x, W1, b1)), W2, b2),
    ),
    wrong=mistakes({
        EQUATIONS: {
            "W1 is used the wrong way round. It is square, so torch does not complain.":
                lambda x, W1, b1, W2, b2: (x @ W1 + b1).relu() @ W2.T + b2,
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
            "the scores are divided by the root of d_head, as for the dot product; Dense does not divide.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x, W1, b1, W2, b2) / sqrt(len(b1)),
            "rows and columns are swapped: a row should belong to a token that attends.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x, W1, b1, W2, b2).mT,
            "squeeze also takes away the axis of one sentence, one token or one position.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x, W1, b1, W2, b2).squeeze(),
        },
        RELU: {
            "there is no relu, so the two layers are no more than one.":
                lambda x, W1, b1, W2, b2: (x @ W1.T + b1) @ W2.T + b2,
        },
        RESULT: {
            "there is a softmax, and along the queries; the exercise asks for the scores before it.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x, W1, b1, W2, b2).softmax(dim=1),
            "it goes one step too far: these are weights, and the exercise asks for the scores before them.":
                lambda x, W1, b1, W2, b2: _linear_matmul(x, W1, b1, W2, b2).softmax(dim=-1),
        },
    }),
)  # fmt: skip


# 02.2. A sentence of five words or more, one of them twice, and one the beginning of another. For each kind the new one
# is shorter, as long, and a single word; but for the last, one word stands twice in it.

WORDS = "the dog saw hen small bird cat fox as a".split()
KINDS = ("dense", "dot product")


def _again_inputs(draw):
    d_model, size = draw.sizes("d_model length", low=5, high=7).values()
    sizes = ("dense", 4), ("dot product", size), ("dense", size), ("dot product", 1), ("dense", 1), ("dot product", 4)
    kind, new_size = draw.in_turn(sizes)
    first = draw.integer(0, 7)
    words = [WORDS[(first + 3 * i) % 8] for i in range(size - 1)]  # 3 steps in 8: no word twice
    words[0], words[3] = "as", "a"
    words.append(words[1])
    embedding = dict(zip(WORDS, draw.normal(len(WORDS), d_model), strict=True))
    x = torch.stack([embedding[word] for word in words])
    if kind == "dense":
        scores = (x @ draw.normal(d_model, d_model)).relu() @ draw.normal(d_model, size)
        scores = scores + draw.normal(size)
    else:
        scores = (x @ draw.normal(d_model, d_model)) @ (x @ draw.normal(d_model, d_model)).T
    new_words = [words[i] for i in (3, 0, 2, 0, 4, 1, 3)[:new_size]]
    return {"kind": kind, "scores": scores, "words": words, "new_words": new_words}


def _found(words, new_words):
    return [words.index(word) for word in new_words]


def _again(kind, scores, words, new_words):
    found = _found(words, new_words)
    rows = scores[found]
    return rows[:, found] if kind == "dot product" else rows[:, : len(new_words)]


def _again_in_loops(kind, scores, words, new_words):
    size = len(new_words)
    result = torch.zeros(size, size)
    for i in range(size):
        for j in range(size):
            column = j if kind == "dense" else words.index(new_words[j])
            result[i, j] = scores[words.index(new_words[i])][column]
    return result


def _again_by_matrices(kind, scores, words, new_words):
    takes = torch.tensor([[float(words.index(new) == i) for i in range(len(words))] for new in new_words])
    columns = takes if kind == "dot product" else torch.eye(len(words))[: len(new_words)]
    return takes @ scores @ columns.T


SCORES_AGAIN = Exercise(
    key="02.2",
    title="the scores of another sentence",
    name="scores_again",
    minutes=10,
    level="medium",
    inputs=_again_inputs,
    returns="query key",
    trials=6,
    right=(_again, _again_in_loops, _again_by_matrices),
    wrong=mistakes({
        MOVES: {
            "the columns move with the words for both kinds; with Dense they are positions.":
                lambda kind, scores, words, new_words: _again("dot product", scores, words, new_words),
            "the columns stay for both kinds; with the dot product they belong to words.":
                lambda kind, scores, words, new_words: _again("dense", scores, words, new_words),
            "the two kinds are exchanged.":
                lambda kind, scores, words, new_words: _again(
                    KINDS[kind == "dense"], scores, words, new_words
                ),
            "nothing moves: these are the first rows and columns of the old scores.":
                lambda kind, scores, words, new_words: scores[: len(new_words), : len(new_words)],
            "the rows stay where they were; a row belongs to a word.":
                lambda kind, scores, words, new_words: (
                    scores[: len(new_words), _found(words, new_words)] if kind == "dot product"
                    else scores[: len(new_words), : len(new_words)]
                ),
            "rows and columns are swapped.":
                lambda kind, scores, words, new_words: _again(kind, scores, words, new_words).T,
            "with Dense the columns follow the words, and the rows stay; it is the other way round.":
                lambda kind, scores, words, new_words: (
                    _again(kind, scores, words, new_words) if kind == "dot product"
                    else scores[: len(new_words), _found(words, new_words)]
                ),
            "with Dense a row is taken from where the new word stands, not from where it stood.":
                lambda kind, scores, words, new_words: (
                    _again(kind, scores, words, new_words) if kind == "dot product"
                    else scores[: len(new_words), : len(new_words)]
                ),
        },
        MAX_LENGTH: {
            "with Dense all columns are kept; the new sentence may have fewer positions.":
                lambda kind, scores, words, new_words: (
                    _again(kind, scores, words, new_words) if kind == "dot product"
                    else scores[_found(words, new_words)]
                ),
            "all columns are kept for both kinds.":
                lambda kind, scores, words, new_words: scores[_found(words, new_words)],
            "with Dense the last columns are kept. Where do sentences start?":
                lambda kind, scores, words, new_words: (
                    _again(kind, scores, words, new_words) if kind == "dot product"
                    else scores[_found(words, new_words)][:, -len(new_words) :]
                ),
            "squeeze also takes away the axes of a sentence of one word.":
                lambda kind, scores, words, new_words: _again(kind, scores, words, new_words).squeeze(),
        },
        RESULT: {
            "these are weights; the exercise asks for scores.":
                lambda kind, scores, words, new_words: _again(kind, scores, words, new_words).softmax(dim=-1),
        },
    }),
)  # fmt: skip


# 02.3. Sentences are shorter than the layer allows, as long as it allows, and a single word.


def _saved_inputs(draw):
    sizes = draw.sizes("batch head d_head length")
    batch, head, length, d_model = sizes["batch"], sizes["head"], sizes["length"], sizes["d_model"]
    batch, head, length, more = draw.in_turn(((batch, head, length, 2), (batch, head, length, 0), (1, 1, 1, 3)))
    if head == 1:
        d_model = sizes["d_head"]
    return {
        "x": draw.normal(batch, length, d_model),
        "hidden_weight": draw.normal(d_model, d_model) / sqrt(d_model),
        "hidden_bias": draw.normal(d_model),
        "weight": draw.normal(head, sizes["d_head"], length + more) / 2,
        "bias": 3 * draw.normal(head, length + more),  # so that some weights are small
    }


SPLIT = "batch query (head d_head) -> batch head query d_head"
CARDS = "batch query (d_head head) -> batch head query d_head"


def _saved_scores(x, hidden_weight, hidden_bias, weight, bias, pattern=SPLIT):
    """All columns of the scores, up to max_length."""
    hidden = rearrange((x @ hidden_weight.T + hidden_bias).relu(), pattern, head=len(weight))
    return hidden @ weight + bias[:, None]


def _saved(x, hidden_weight, hidden_bias, weight, bias, pattern=SPLIT):
    return _saved_scores(x, hidden_weight, hidden_bias, weight, bias, pattern)[..., : x.shape[1]].softmax(dim=-1)


def _saved_einsum(x, hidden_weight, hidden_bias, weight, bias):
    W1 = rearrange(hidden_weight, "(head d_head) d_model -> head d_head d_model", head=len(weight))
    hidden = einsum(x, W1, "batch query d_model, head d_head d_model -> batch head query d_head")
    hidden = (hidden + rearrange(hidden_bias, "(head d_head) -> head 1 d_head", head=len(weight))).clamp(min=0)
    scores = einsum(hidden, weight, "batch head query d_head, head d_head key -> batch head query key")
    outside = torch.arange(weight.shape[-1]) >= x.shape[1]
    return (scores + bias[:, None]).masked_fill(outside, -torch.inf).softmax(dim=3)[..., : x.shape[1]]


def _saved_in_loops(x, hidden_weight, hidden_bias, weight, bias):
    (batch, length, _), (head, d_head, _) = x.shape, weight.shape
    maps = torch.zeros(batch, head, length, length)
    for b in range(batch):
        for h in range(head):
            own = slice(h * d_head, (h + 1) * d_head)
            hidden = (x[b] @ hidden_weight[own].T + hidden_bias[own]).relu()
            exponentials = (hidden @ weight[h, :, :length] + bias[h, :length]).exp()
            maps[b, h] = exponentials / exponentials.sum(dim=1, keepdim=True)
    return maps


def _saved_layer(x, hidden_weight, hidden_bias, weight, bias):
    head, d_head, max_length = weight.shape
    score = Dense(head * d_head, head, max_length)
    names = "hidden.weight", "hidden.bias", "weight", "bias"
    score.load_state_dict(dict(zip(names, (hidden_weight, hidden_bias, weight, bias), strict=True)))
    return score(x).softmax(dim=-1).detach()


def _of_scores(change):
    """A wrong answer that does `change` to the scores of all columns, with the length of the sentence."""
    return lambda x, **parameters: change(_saved_scores(x, **parameters), x.shape[1])


def _of_hidden(change, act=torch.relu):
    """A wrong answer that does `change` to the hidden numbers of all heads, before W2."""

    def answer(x, hidden_weight, hidden_bias, weight, bias):
        hidden = change(act(x @ hidden_weight.T + hidden_bias), len(weight))
        return (hidden @ weight + bias[:, None])[..., : x.shape[1]].softmax(dim=-1)

    return answer


def _with(**changes):
    """A wrong answer that changes some parameters first: each a function of the right one."""

    def answer(x, **parameters):
        return _saved(x, **{name: changes.get(name, lambda same: same)(value) for name, value in parameters.items()})

    return answer


def _split(hidden, head):
    return rearrange(hidden, SPLIT, head=head)


def _short_zero_scores(scores, length):
    outside = torch.arange(scores.shape[-1]) >= length
    return scores.masked_fill(outside, 0.0).softmax(dim=-1)[..., :length]


SAVED_MAPS = Exercise(
    key="02.3",
    title="the maps of a saved layer",
    name="saved_maps",
    minutes=18,
    level="medium",
    inputs=_saved_inputs,
    returns="batch head query key",
    properties=(
        RowsSumTo1(), Reads("x", 1, 2, "token"), Reads("x", 0, 0, "sentence"), Reads("weight", 0, 1, "head"),
    ),
    right=(_saved, _saved_einsum, _saved_in_loops, _saved_layer),
    wrong=mistakes({
        CUT: {
            "the map is cut after the softmax, so its rows sum to less than 1.":
                _of_scores(lambda scores, length: scores.softmax(dim=-1)[..., :length]),
            "the scores of the positions outside are set to 0, and a score of 0 still gets a share.":
                _of_scores(_short_zero_scores),
        },
        MAX_LENGTH: {
            "nothing is cut: the map has a column for positions that this sentence does not have.":
                _of_scores(lambda scores, length: scores.softmax(dim=-1)),
            "it keeps the last columns. Where do sentences start?":
                _of_scores(lambda scores, length: scores[..., -length:].softmax(dim=-1)),
            "the last bias is taken for the last position of a short sentence. Where do sentences start?":
                lambda x, hidden_weight, hidden_bias, weight, bias: _saved(
                    x, hidden_weight, hidden_bias, weight, bias.roll(x.shape[1] - bias.shape[1], dims=1)
                ),
        },
        MODULE: {
            "the first matrix is used the wrong way round. It is square, so torch does not complain.":
                _with(hidden_weight=lambda W: W.T),
        },
        HEADS: {
            "the heads are cut out by a reshape alone, so a row of a head is fed by other tokens.":
                _of_hidden(lambda hidden, head: hidden.reshape(len(hidden), head, hidden.shape[1], -1)),
            "the hidden numbers are dealt out to the heads like cards; each head owns neighbours.":
                lambda **given: _saved(**given, pattern=CARDS),
            "the numbers are there, but head stands behind query.":
                lambda **given: _saved(**given).transpose(1, 2),
            "the numbers are there, but head stands in front of batch.":
                lambda **given: _saved(**given).transpose(0, 1),
            "all heads use the second matrix of head 0.": _with(weight=lambda W: W[:1].expand_as(W)),
            "all heads use the second bias of head 0.": _with(bias=lambda b: b[:1].expand_as(b)),
            "the maps of the heads are averaged; each should keep a map of its own.":
                lambda **given: _saved(**given).mean(dim=1),
            "the products of all heads are added up, so the heads differ in nothing but their bias.":
                lambda x, hidden_weight, hidden_bias, weight, bias: (
                    (_saved_scores(x, hidden_weight, hidden_bias, weight, 0 * bias).sum(dim=1, keepdim=True)
                     + bias[:, None])[..., : x.shape[1]].softmax(dim=-1)
                ),
            "the hidden numbers of all heads are added up; each head has its own.":
                _of_hidden(lambda hidden, head: _split(hidden, head).sum(dim=1, keepdim=True)),
            "the bias of the second layer is missing, or lies along the queries, where the softmax does not notice it.":
                _with(bias=lambda b: 0 * b),
            "squeeze also takes away the axis of one sentence, one head or one token.":
                lambda **given: _saved(**given).squeeze(),
        },
        EQUATIONS: {
            "the bias of the first layer is missing.": _with(hidden_bias=lambda b: 0 * b),
            "both biases are missing.": _with(hidden_bias=lambda b: 0 * b, bias=lambda b: 0 * b),
            "the first bias is added after the relu instead of before it.":
                lambda x, hidden_weight, hidden_bias, weight, bias: _of_hidden(
                    lambda hidden, head: _split(hidden + hidden_bias, head)
                )(x, hidden_weight, 0 * hidden_bias, weight, bias),
            "the relu acts on the scores, not between the two layers.":
                lambda x, hidden_weight, hidden_bias, weight, bias: (
                    _split(x @ hidden_weight.T + hidden_bias, len(weight)) @ weight + bias[:, None]
                ).relu()[..., : x.shape[1]].softmax(dim=-1),
            "there is a second relu, on the scores; scores may be negative.":
                _of_scores(lambda scores, length: scores.relu()[..., :length].softmax(dim=-1)),
            "the scores are divided by the root of d_head, as for the dot product; Dense does not divide.":
                lambda x, hidden_weight, hidden_bias, weight, bias: _saved(
                    x, hidden_weight, hidden_bias, weight / sqrt(weight.shape[1]), bias / sqrt(weight.shape[1])
                ),
            "the products with W2 are divided by the root of d_head, as for the dot product; Dense does not divide.":
                _with(weight=lambda W: W / sqrt(W.shape[1])),
            "queries and keys are swapped in the map: a row should belong to a token that attends.":
                lambda **given: _saved(**given).mT,
            "queries and keys are swapped in the scores, before the softmax.":
                _of_scores(lambda scores, length: scores[..., :length].mT.softmax(dim=-1)),
        },
        RELU: {
            "there is no relu, so the two layers are no more than one.":
                _of_hidden(_split, act=lambda hidden: hidden),
        },
        RESULT: {
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                _of_scores(lambda scores, length: scores[..., :length].softmax(dim=2)),
            "the softmax runs along the heads. A softmax without dim can do strange things, too: name the keys.":
                _of_scores(lambda scores, length: scores[..., :length].softmax(dim=1)),
            "the softmax runs along the batch, so it mixes sentences.":
                _of_scores(lambda scores, length: scores[..., :length].softmax(dim=0)),
            "these are the scores; the softmax is missing.": _of_scores(lambda scores, length: scores[..., :length]),
            "these are the scores of all positions; cut and softmax are missing.":
                _of_scores(lambda scores, length: scores),
        },
    }),
)  # fmt: skip


# 02.4


def _cost_inputs(draw):
    """Sizes that are all different, one token and heads of one feature, and one head for the longest sentence."""
    sizes = draw.sizes("batch length max_length head d_head", high=9)
    sizes["length"], most = sorted((sizes["length"], sizes["max_length"]))
    sizes["max_length"] = most
    sizes |= draw.in_turn(({}, {"batch": 1, "length": 1, "d_head": 1}, {}, {"length": most, "head": 1}))
    sizes["d_model"] = sizes["head"] * sizes["d_head"]
    return {name: sizes[name] for name in ("batch", "length", "max_length", "d_model", "head")}


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
        return right[0] + round(parameters(**sizes)), right[1] + round(sizes["batch"] * multiply_adds(**sizes))

    return answer


def _cost_with_projections(more):
    return _cost_with(
        lambda d_model, **_: more * (d_model**2 + d_model), lambda length, d_model, **_: more * length * d_model**2
    )


LAYER_COST = Exercise(
    key="02.4",
    title="the bill for the whole layer",
    name="layer_cost",
    minutes=13,
    level="medium",
    inputs=_cost_inputs,
    returns="parameters, multiply_adds",
    trials=4,
    right=(_cost_formula, _cost_lists, _cost_counted),
    wrong=mistakes({
        RESULT: {
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
            "only one head is counted.":
                _cost_with(
                    lambda head, d_model, max_length, **_: (1 / head - 1) * (d_model + head) * max_length,
                    lambda length, d_model, head, **_: 2 * (1 / head - 1) * length**2 * d_model,
                ),
            "the hidden layer of one head is counted; together the heads have d_model hidden numbers.":
                _cost_with(lambda head, d_model, **_: (1 / head - 1) * (d_model**2 + d_model)),
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
        RESULT: {
            "the average counts all d_model columns of the values once for each head.":
                _cost_with(multiply_adds=lambda length, d_model, head, **_: (head - 1) * length**2 * d_model),
            "only one product of size length x length is counted.":
                _cost_with(multiply_adds=lambda length, d_model, **_: -(length**2) * d_model),
        },
    }, by_part=True),
)  # fmt: skip


# 02.5. Each score function of a trial is one that some shortcut misreads. In the one of many kinds:
# - Row i reads token n strongly, weakly or not at all: a coarse limit or a small change misses what is weak.
# - No row reads one of the tokens.
# - Rows with an odd i skip the first number of a token.
# - Token n moves two keys by opposite amounts, one key down or one up, by its position: sums cancel, or signs mislead.
# - One row shifts as a whole, all keys by the same amount: a softmax would hide it. In the others no token moves all.
# - Below the limit, all other rows depend on all tokens: as by rounding, but the same on every machine.
# The others do not notice a certain change of a token, or lie close to the limit, on either side. The last two tokens
# are twins, with positive numbers alone, and some numbers hardly change if they are set to 1, to 0 or to their squares.


def _reading(feature, length, d_model, draw):
    """A score whose row i reads `feature` of the token after it, and of its own if i is even."""
    A = draw.normal(length, length, d_model, length)
    reads = torch.eye(length).roll(1, dims=1) + torch.eye(length) * (torch.arange(length) % 2 == 0)[:, None]
    A = A * reads[:, :, None, None]
    return lambda x: einsum(feature(x), A, "length d_model, query length d_model key -> query key")


def _one_number_each(length, d_model, draw):
    """Row i reads number i (counted round again) of token 0."""
    A = draw.normal(length, length)
    return lambda x: x[0, torch.arange(length) % d_model][:, None] * A


def _near_the_limit(length):
    """Rows 0 and 1 read the first number of tokens 1 and 2 a little above the limit. All others read the last number of
    token 0 a little below it, with all keys, so that a sum of what is below lies above."""
    above, below = torch.zeros(length, length, length), torch.zeros(length, length, length)
    above[0, 1, 2] = above[1, 2, 3] = 2.5e-5
    below[2:, 0] = 5.5e-6

    def score(x):
        one, other = (einsum(x[:, m], A, "length, query length key -> query key") for m, A in ((0, above), (-1, below)))
        return one + other

    return score


def _differences_of(x):
    return x - x.mean(dim=1, keepdim=True)


def _layer_norm_squared(x):
    """Nothing moves if a token is shifted, stretched or turned to its negative."""
    return _differences_of(x).square() / _differences_of(x).square().sum(dim=1, keepdim=True).clamp(min=1e-6)


def _depends_inputs(draw):
    sizes = draw.sizes("length d_model", low=4, high=6)
    length, d_model = sizes["length"], sizes["d_model"]
    features = {
        "score that reads differences between the numbers of a token": _differences_of,
        "score that reads squares": lambda x: x * x,
        "score that reads squares behind a layer norm": _layer_norm_squared,
        "score that reads the sum of a token": lambda x: x.sum(dim=1, keepdim=True).expand_as(x),
    }
    scores = {name: _reading(feature, length, d_model, draw) for name, feature in features.items()}
    scores["score whose rows read one number of a token each"] = _one_number_each(length, d_model, draw)
    scores["score near the limit"] = _near_the_limit(length)
    scores["score of many kinds"] = _many(length, d_model, draw)
    x = draw.normal(length, d_model)
    x[1, 0], x[2, 0] = 1.1, 0.1
    x[-2:] = x[-2].abs()
    return {"score": _Scores(scores), "x": x}


class _Scores:
    """The score functions of one trial, by name; called, it is the first."""

    def __init__(self, named):
        self.named = named

    def __call__(self, x):
        return next(iter(self.named.values()))(x)


def _many(length, d_model, draw):
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
        rounding = 2e-7 * x.sum().sin() * torch.linspace(0.5, 1, length) * ~is_shifted
        return next_key - (moved * both).roll(2, dims=1) + moved * up + shift + rounding

    return score


def _differences(score, x, change):
    """How the scores move, "query key length", where `change(x, n)` is x with token n changed."""
    return torch.stack([score(change(x, n)) - score(x) for n in range(len(x))], dim=-1)


def _changes(score, x, change):
    return _differences(score, x, change).abs()


def _one_token(x, n, size=1.0):
    moved = x.clone()
    moved[n] += size * torch.linspace(0.5, 1.5, x.shape[1])
    return moved


def _grown(x, n):
    moved = x.clone()
    moved[n] += 1
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
    return _jacobian(score, x).abs().amax(dim=(1, 3)) > 1e-5


_jacobian = partial(torch.autograd.functional.jacobian, vectorize=True)  # all rows at once


def _depends_in_loops(score, x):
    answer = torch.zeros(len(x), len(x), dtype=torch.bool)
    for i in range(len(x)):
        for n in range(len(x)):
            moved = x.clone()
            for m in range(x.shape[1]):
                moved[n, m] -= 0.8 + 0.1 * m
            answer[i, n] = not torch.allclose(score(moved)[i], score(x)[i], rtol=0, atol=1e-5)
    return answer


def _probe(change, limit=1e-5):
    """An answer that changes one token by change(token), and compares with this limit."""

    def answer(score, x):
        def moved(x, n):
            return torch.cat([x[:n], change(x[n])[None], x[n + 1 :]])

        return _changes(score, x, moved).amax(dim=1) > limit

    return answer


def _by_jacobian(reduce, limit=1e-5):
    """An answer that reduces the Jacobian, query key length d_model, to a table, and compares with this limit."""
    return lambda score, x: reduce(_jacobian(score, x)) > limit


DEPENDS_ON = Exercise(
    key="02.5",
    title="who depends on whom",
    name="depends_on",
    minutes=15,
    level="medium",
    inputs=_depends_inputs,
    returns="query length",
    trials=2,
    run=lambda answer, score, x: {name: answer(score=one, x=x) for name, one in score.named.items()},
    right=(_depends_by_change, _depends_by_jacobian, _depends_in_loops),
    wrong=mistakes({
        MOVES: {
            "all numbers of the token change alike, or the derivatives by them are added up; a score may read "
            "differences alone, and does not notice.":
                _probe(lambda token: token + 1),
            "the token is turned to its negative; a score may read squares alone, and does not notice.":
                _probe(lambda token: -token),
            "the token becomes longer or shorter; a score may read its direction alone, as behind a layer norm, and "
            "does not notice.":
                _probe(lambda token: 2 * token),
            "the numbers of the token change places; a score may read their sum alone, and does not notice.":
                _probe(lambda token: token.flip(0)),
            "a row counts only if all of its numbers change, and all numbers of the token grow alike.":
                lambda score, x: (_changes(score, x, lambda x, n: _grown(x, n)) > 1e-5).all(dim=1),
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
            "derivatives are added up before their signs are removed, and those up and down cancel.":
                _by_jacobian(lambda jacobian: jacobian.sum(dim=(1, 3)).abs()),
            "the mean of derivatives is taken before their signs are removed, and those up and down cancel.":
                _by_jacobian(lambda jacobian: jacobian.mean(dim=(1, 3)).abs()),
            "only differences or derivatives above 0 are counted; a score that falls has changed too.":
                _by_jacobian(lambda jacobian: jacobian.amax(dim=(1, 3))),
            "what lies not far above the limit is missed: the token is changed too little, a mean makes it smaller, or "
            "the limit is larger than that of the docstring.":
                _probe(lambda token: token + torch.linspace(0.5, 1.5, len(token)), limit=1e-4),
            "what lies not far below the limit is counted: the token is changed by much more than 1, differences are "
            "added up, or the limit is smaller than that of the docstring.":
                _probe(lambda token: token + torch.linspace(0.5, 1.5, len(token)), limit=1e-6),
            "the row is added up first, and changes up and down cancel.":
                lambda score, x: torch.stack(
                    [(score(_one_token(x, n)) - score(x)).sum(dim=1).abs() > 1e-5 for n in range(len(x))], dim=1
                ),
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
            "only the last number of each token is changed; some rows do not read it.":
                _probe(lambda token: torch.cat([token[:-1], token[-1:] + 1])),
            "only the first number of each token is changed; some rows do not read it.":
                lambda score, x: _changes(score, x, _first_number).amax(dim=1) > 1e-5,
            "True and False are swapped.": lambda score, x: _depends_by_change(score, x).logical_not(),
        },
        RESULT: {
            "the weights are measured, not the scores: where a whole row of scores shifts, the softmax hides it.":
                lambda score, x: (
                    _jacobian(lambda z: score(z).softmax(dim=-1), x).abs().amax(dim=(1, 3)) > 1e-5
                ),
        },
    }),
)  # fmt: skip

# 02.6. An answer becomes what it is, and where tokens look in three parts of the line.

OTHERS = (-20.0, -3.0, -0.4, 0.7, 6.0, 20.0)  # second numbers of a token, which must not matter
PARTS = ("W1", "b1", "W2", "b2")
LOOKS = {-1: "position 0", 1: "position 1", 0: "both alike"}
FOUR = "W1, b1, W2, b2 of float32"


def _describe(parameters):
    """What was returned, in words: FOUR if it is what the exercise asks for."""
    if not isinstance(parameters, (tuple, list)) or len(parameters) != 4:
        return f"{kind_of(parameters)}, not four tensors"
    for name, part, shape in zip(PARTS, parameters, ((2, 2), (2,), (2, 2), (2,)), strict=True):
        if not isinstance(part, torch.Tensor):
            return f"{name} is {kind_of(part)}, not a tensor"
        if part.shape != shape or part.dtype != torch.float32:
            kind = str(part.dtype).removeprefix("torch.")
            return f"{name} is {kind} of shape {tuple(part.shape)}, not float32 of shape {shape}"
        if not part.isfinite().all():
            return f"{name} holds a number that is NaN or infinite"
    return FOUR


def _where_tokens_look(answer, limit):
    parameters = answer(limit=limit)
    kind, facts = _describe(parameters), dict.fromkeys((SECOND, WITHIN, BELOW, ABOVE))
    if kind == FOUR:
        W1, b1, W2, b2 = (part.detach().double() for part in parameters)  # rounding must not break a tie
        others, differs = torch.tensor(OTHERS, dtype=torch.float64), False
        ends = {WITHIN: (-limit + 0.01, limit - 0.01), BELOW: (-20.0, -limit - 0.01), ABOVE: (limit + 0.01, 20.0)}
        for part, (begin, end) in ends.items():
            x = torch.cartesian_prod(torch.linspace(begin, end, 41, dtype=torch.float64), others)
            scores = (x @ W1 + b1).relu() @ W2 + b2
            ahead = (scores[:, 1] - scores[:, 0]).view(41, -1)  # a row for each first number
            sides = (ahead > 1e-6).int() - (ahead < -1e-6).int()
            differs |= bool((sides != sides[:, :1]).any())
            facts[part] = " or ".join(name for side, name in LOOKS.items() if (sides == side).any())
        facts[SECOND] = "makes a difference" if differs else "makes none"
    return {"what is returned": kind} | facts


WITHIN = "where tokens look whose first number lies within the limits"
BELOW, ABOVE = "where those below look", "where those above look"
SECOND = "the second number of a token"


def _two_sided(first, b1, second, b2):
    """Parameters whose hidden numbers are first * t + b1; `second` is what they add to the score of position 1."""

    def answer(limit):
        W1 = torch.tensor([first, [0.0, 0.0]])
        W2 = torch.tensor([[0.0, second[0]], [0.0, second[1]]])
        return W1, torch.tensor(b1(limit)), W2, torch.tensor(b2(limit))

    return answer


_by_size = _two_sided([1.0, -1.0], lambda limit: [0.0, 0.0], [1.0, 1.0], lambda limit: [float(limit), 0.0])


def _by_a_hill(limit):
    """Position 0 gets what is left of a hill. Returned as a list, which counts as a tuple."""
    W2 = torch.tensor([[-2.0, 0.0], [-2.0, 0.0]])
    return [torch.tensor([[-3.0, 3.0], [0.0, 0.0]]), torch.zeros(2), W2, torch.tensor([6.0 * limit, 0.0])]


def _changed(**changes):
    """A wrong answer: the right parameters, some of them changed."""

    def answer(limit):
        parts = dict(zip(PARTS, _by_size(limit), strict=True))
        return tuple(changes.get(name, lambda part: part)(part) for name, part in parts.items())

    return answer


TWO_SIDED = Exercise(
    key="02.6",
    title="a rule with two sides",
    name="two_sided",
    minutes=18,
    level="hard",
    inputs=lambda draw: {"limit": draw.in_turn((0.5, 1.7, 5.0))},
    returns="W1, b1, W2, b2",
    run=_where_tokens_look,
    right=(
        _by_size,
        _two_sided([1.0, -1.0], lambda limit: [-limit, -limit], [1.0, 1.0], lambda limit: [0.001, 0.0]),
        _by_a_hill,
    ),
    wrong=mistakes({
        RELU: {
            "the side above 0 is right, and position 1 is not told of the side below.":
                _two_sided([1.0, 1.0], lambda limit: [0.0, 0.0], [0.5, 0.5], lambda limit: [float(limit), 0.0]),
            "the side below 0 is right, and position 1 is not told of the side above.":
                _two_sided([-1.0, -1.0], lambda limit: [0.0, 0.0], [0.5, 0.5], lambda limit: [float(limit), 0.0]),
            "position 0 always wins: nothing bends, or what bends does not speak for position 1 alone, or too softly.":
                _two_sided([1.0, -1.0], lambda limit: [100.0, 100.0], [1.0, 1.0], lambda limit: [200.0 + limit, 0.0]),
        },
        EQUATIONS: {
            "the two positions are exchanged.": _changed(W2=lambda W: W.flip(1), b2=lambda b: b.flip(0)),
            "position 1 always wins: what speaks for position 0 is missing, or weaker than what speaks for 1.":
                _changed(b2=lambda b: b.flip(0)),
            "within the limits both positions get the same score: nothing speaks for position 0.":
                _two_sided([1.0, -1.0], lambda limit: [-limit, -limit], [1.0, 1.0], lambda limit: [0.0, 0.0]),
            "position 0 never wins; at 0 both get the same score. Which bias speaks for it, and which knows the limit?":
                _changed(b2=lambda b: 0 * b),
            "all tokens look at both positions alike: the two scores are the same.":
                _changed(W2=lambda W: 0 * W, b2=lambda b: 0 * b),
            "the limit is not used; it is 1.": _changed(b2=lambda b: b / b.max()),
            "the limit comes too late, on both sides: some tokens beyond it still look at position 0.":
                _changed(b2=lambda b: 2 * b),
            "the limit comes too early: some tokens within look at position 1. Which of your biases knows the limit?":
                _changed(b2=lambda b: b / 2),
            "the second number of a token makes a difference. Which axis of W1 goes in, and what stands in its rows?":
                _changed(W1=lambda W: W.flip(0)),
        },
    }),
)  # fmt: skip

EXERCISES = [LINEAR_SCORES, SCORES_AGAIN, SAVED_MAPS, LAYER_COST, DEPENDS_ON, TWO_SIDED]
