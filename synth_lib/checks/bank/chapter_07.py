"""The exercises of chapter 07: the block, top-p, one step with a cache, a pooled mean, the length penalty."""

from math import exp, log, prod

import torch
from einops import einsum, rearrange
from torch.nn.functional import gelu

from synth_lib.checks.exercise import Exercise, mistakes, told_apart

EQUATIONS = "The equations"
ADD = "Why add?"
NORM = "Why a norm?"
BEFORE = "Before the part, not after the sum"
WHOLE_BLOCK = "The whole block, S as an argument"
TEMPERATURE = "Greedy and temperature"
TOP_K = "Top-k"
TOP_P = "Top-p"
CACHE = "One token at a time: the cache"
RIGHT = "Padding on the right changes nothing"
LEFT = "Padding on the left moves every word"
CLASSIFIER = "A classifier"
BEAM = "Beam search"
PENALTY = "The length penalty"


# 07.1. Attention mixes tokens, the mlp bends, and the two norms differ: every order gives something else.


def _block_inputs(draw):
    sizes = draw.sizes("batch length d_model", low=3)
    length, d_model = sizes["length"], sizes["d_model"]
    mixing, first, second = draw.normal(length, length), draw.normal(d_model, d_model), draw.normal(d_model, d_model)
    shifts = draw.normal(2, d_model)

    def norm(number):
        def standard(x):
            centred = x - x.mean(dim=-1, keepdim=True)
            return centred / (centred.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt() * (number + 1) + shifts[number]

        return standard

    return {
        "x": draw.normal(sizes["batch"], length, d_model),
        "attention": lambda x: mixing.softmax(dim=-1) @ (x @ first) + 0.5,
        "mlp": lambda x: (x @ second).tanh() - 0.3,
        "norm_attention": norm(0),
        "norm_mlp": norm(1),
    }


def _block(x, attention, mlp, norm_attention, norm_mlp):
    middle = x + attention(norm_attention(x))
    return middle + mlp(norm_mlp(middle))


def _block_overwriting(x, attention, mlp, norm_attention, norm_mlp):
    for part, norm in ((attention, norm_attention), (mlp, norm_mlp)):
        x = torch.add(x, part(norm(x)))
    return x


def _block_parallel(x, attention, mlp, norm_attention, norm_mlp):
    return x + attention(norm_attention(x)) + mlp(norm_mlp(x))


def _block_normed_line(x, attention, mlp, norm_attention, norm_mlp):
    x = norm_attention(x)
    x = norm_mlp(x + attention(x))
    return x + mlp(x)


def _block_normed_second(x, attention, mlp, norm_attention, norm_mlp):
    x = norm_mlp(x + attention(norm_attention(x)))
    return x + mlp(x)


def _block_one_chain(x, attention, mlp, norm_attention, norm_mlp):
    return x + mlp(norm_mlp(attention(norm_attention(x))))


def _block_x_twice(x, attention, mlp, norm_attention, norm_mlp):
    return x + _block(x, attention, mlp, norm_attention, norm_mlp)


def _same(x):
    return x


def _block_first_text(x, attention, mlp, norm_attention, norm_mlp):
    return _block(x, lambda x: attention(x)[0], mlp, norm_attention, norm_mlp)


BLOCK = Exercise(
    key="07.1",
    title="the block in the right order",
    name="residual_block",
    minutes=8,
    level="easy",
    inputs=_block_inputs,
    returns="batch length d_model",
    right=(_block, _block_overwriting),
    wrong=mistakes({
        BEFORE: {
            "the norms stand after the sums (post-norm), so the line of plain sums is broken.":
                lambda x, attention, mlp, norm_attention, norm_mlp: norm_mlp(
                    (after := norm_attention(x + attention(x))) + mlp(after)
                ),
            "each norm acts on what its part returns; it should act on what the part reads.":
                lambda x, attention, mlp, norm_attention, norm_mlp: (
                    (after := x + norm_attention(attention(x))) + norm_mlp(mlp(after))
                ),
            "each part adds to the normalised copy; the copy is for reading only.": _block_normed_line,
            "the mlp adds to the normalised copy; the copy is for reading only.": _block_normed_second,
            "the attention adds to the normalised copy; the copy is for reading only.":
                lambda x, attention, mlp, norm_attention, norm_mlp: (
                    (after := (copy := norm_attention(x)) + attention(copy)) + mlp(norm_mlp(after))
                ),
            "the result is normalised once more; that norm stands behind the last block of a model, not in a block.":
                lambda x, attention, mlp, norm_attention, norm_mlp: norm_mlp(
                    _block(x, attention, mlp, norm_attention, norm_mlp)
                ),
        },
        ADD: {
            "nothing is added: both residual connections are missing.":
                lambda x, attention, mlp, norm_attention, norm_mlp: mlp(norm_mlp(attention(norm_attention(x)))),
            "the first residual connection is missing: x itself is lost at the attention.":
                lambda x, attention, mlp, norm_attention, norm_mlp: (
                    (after := attention(norm_attention(x))) + mlp(norm_mlp(after))
                ),
            "the second residual connection is missing: only what the mlp returns is left.":
                lambda x, attention, mlp, norm_attention, norm_mlp: mlp(norm_mlp(x + attention(norm_attention(x)))),
        },
        EQUATIONS: {
            "both parts read the same x; the mlp should read the tokens after the attention.": _block_parallel,
            "the second sum adds to the tokens from before the attention, so what the attention found is not kept.":
                lambda x, attention, mlp, norm_attention, norm_mlp: x + mlp(norm_mlp(x + attention(norm_attention(x)))),
            "there is one sum, around both parts; each part has a sum of its own.": _block_one_chain,
            "x is added twice: it is in the tokens after the attention already.": _block_x_twice,
            "the mlp comes first; the attention does.":
                lambda x, attention, mlp, norm_attention, norm_mlp: _block(x, mlp, attention, norm_mlp, norm_attention),
            "the second half is missing: nothing comes from the mlp.":
                lambda x, attention, mlp, norm_attention, norm_mlp: x + attention(norm_attention(x)),
        },
        WHOLE_BLOCK: {
            "the two norms are exchanged; each has numbers of its own.":
                lambda x, attention, mlp, norm_attention, norm_mlp: _block(x, attention, mlp, norm_mlp, norm_attention),
            "one norm is used twice; the mlp has its own.":
                lambda x, attention, mlp, norm_attention, norm_mlp: _block(
                    x, attention, mlp, norm_attention, norm_attention
                ),
            "one norm is used twice; the attention has its own.":
                lambda x, attention, mlp, norm_attention, norm_mlp: _block(x, attention, mlp, norm_mlp, norm_mlp),
            "[0] takes the result of the first text alone: this attention returns no weights beside its result.":
                _block_first_text,
        },
        NORM: {
            "there is no norm at all.":
                lambda x, attention, mlp, norm_attention, norm_mlp: _block(x, attention, mlp, _same, _same),
            "the attention reads x as it is, without its norm.":
                lambda x, attention, mlp, norm_attention, norm_mlp: _block(x, attention, mlp, _same, norm_mlp),
            "the mlp reads its input as it is, without its norm.":
                lambda x, attention, mlp, norm_attention, norm_mlp: _block(x, attention, mlp, norm_attention, _same),
        },
    }),
)  # fmt: skip


# 07.2. Rows keep different numbers of words, no running sum lies close to p, and no row is sorted.


def _top_p_inputs(draw):
    sizes = draw.sizes("batch vocab", low=4, high=8)
    while True:
        logits, p = 1.5 * draw.normal(sizes["batch"], sizes["vocab"]), draw.integer(45, 85) / 100
        ordered = logits.softmax(dim=-1).sort(dim=-1, descending=True).values
        running = ordered.cumsum(dim=-1)
        number = (running < p).sum(dim=-1) + 1  # of the words that stay
        clear, most = (running - p).abs().min() > 0.005, number.max()
        if clear and 1 in number and most >= 3 and number[0] not in (1, most) and most < sizes["vocab"]:
            return {"logits": logits, "p": p}


def _renormalized(probabilities, allowed):
    rest = probabilities.masked_fill(~allowed, 0.0)
    return rest / rest.sum(dim=-1, keepdim=True)


def _in_order(logits):
    return logits.softmax(dim=-1).sort(dim=-1, descending=True)


def _top_p(logits, p):
    ordered, order = _in_order(logits)
    rest = _renormalized(ordered, ordered.cumsum(dim=-1) - ordered < p)
    return torch.zeros_like(rest).scatter(-1, order, rest)


def _top_p_smallest(logits, p):
    """Find the smallest probability that stays, and compare."""
    probabilities = logits.softmax(dim=-1)
    ordered = probabilities.sort(dim=-1, descending=True).values
    last = (ordered.cumsum(dim=-1) < p).sum(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < ordered.gather(-1, last), float("-inf")).softmax(dim=-1)


def _top_p_in_loops(logits, p):
    rows = []
    for row in logits.softmax(dim=-1).tolist():
        total, rest = 0.0, [0.0] * len(row)
        for position in sorted(range(len(row)), key=lambda position: -row[position]):
            if total < p:
                rest[position] = row[position]
                total += row[position]
        rows.append([number / total for number in rest])
    return torch.tensor(rows)


def _top_p_with(allow, finish=_renormalized):
    """Another rule: allow(ordered, p) says which of the sorted probabilities stay."""

    def answer(logits, p):
        ordered, order = _in_order(logits)
        allowed = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, allow(ordered, p))
        return finish(logits.softmax(dim=-1), allowed)

    return answer


def _reached_before(ordered, p):
    return ordered.cumsum(dim=-1) - ordered < p


def _one_more(ordered, p):
    shifted = _reached_before(ordered, p)
    return torch.cat([torch.ones_like(shifted[:, :1]), shifted[:, :-1]], dim=-1) | shifted


def _first_row_for_all(ordered, p):
    return _reached_before(ordered, p)[:1].expand_as(ordered)


def _only_the_first(ordered, p):
    return ordered == ordered[:, :1]


def _share_of_the_first(ordered, p):
    return ordered >= p * ordered[:, :1]


def _below_the_rest(ordered, p):
    return _reached_before(ordered, 1 - p)


def _below_but_one(ordered, p):
    allowed = ordered.cumsum(dim=-1) <= p
    allowed[:, 0] = True
    return allowed


def _mask_not_sorted_back(logits, p):
    ordered, _ = _in_order(logits)
    return _renormalized(logits.softmax(dim=-1), _reached_before(ordered, p))


def _ascending(logits, p):
    probabilities = logits.softmax(dim=-1)
    ordered, order = probabilities.sort(dim=-1)
    rest = _renormalized(ordered, _reached_before(ordered, p))
    return torch.zeros_like(rest).scatter(-1, order, rest)


def _gathered(logits, p):
    ordered, order = _in_order(logits)
    return _renormalized(ordered, _reached_before(ordered, p)).gather(-1, order)


def _last_row_for_all(logits, p):
    """What result[:, order] = ... comes to: each row is written into all rows, and the last one stays."""
    return _top_p(logits, p)[-1:].expand_as(logits).clone()


def _sorted_back(rest, order):
    return torch.zeros_like(rest).scatter(-1, order, rest)


def _softmax_along_batch(logits, p):
    ordered, order = logits.softmax(dim=0).sort(dim=-1, descending=True)
    return _sorted_back(_renormalized(ordered, _reached_before(ordered, p)), order)


def _sum_along_batch(logits, p):
    ordered, order = _in_order(logits)
    return _sorted_back(_renormalized(ordered, ordered.cumsum(dim=0) - ordered < p), order)


def _no_softmax(logits, p):
    ordered, order = logits.sort(dim=-1, descending=True)
    return _sorted_back(_renormalized(ordered, _reached_before(ordered, p)), order)


def _one_threshold(logits, p):
    ordered, _ = _in_order(logits)
    probabilities = logits.softmax(dim=-1)
    return _renormalized(probabilities, probabilities >= ordered[_reached_before(ordered, p)].min())


def _order_of_row_0(logits, p):
    ordered, order = _in_order(logits)
    return _sorted_back(_renormalized(ordered, _reached_before(ordered, p)), order[:1].expand_as(order))


def _divided_by(number):
    """The right words, their probabilities divided by number(probabilities, those that stay, p)."""

    def answer(logits, p):
        probabilities = logits.softmax(dim=-1)
        stay = probabilities.masked_fill(_top_p(logits, p) == 0, 0.0)
        return stay / number(probabilities, stay, p)

    return answer


TOP_P_EXERCISE = Exercise(
    key="07.2",
    title="top-p",
    name="top_p_probabilities",
    minutes=15,
    level="medium",
    inputs=told_apart(
        _top_p_inputs,
        [
            _top_p,
            _one_threshold,
            _ascending,
            _top_p_with(_below_but_one),
            _top_p_with(_only_the_first),
            _top_p_with(_share_of_the_first),
            _top_p_with(_below_the_rest),
            lambda logits, p: logits.softmax(dim=-1),
        ],
    ),
    returns="batch vocab",
    right=(_top_p, _top_p_smallest, _top_p_in_loops),
    wrong=mistakes({
        TOP_P: {
            "the word that crosses the line is left out; where the first word crosses it, nothing is left.":
                _top_p_with(lambda ordered, p: ordered.cumsum(dim=-1) <= p),
            "the word that crosses the line is left out, unless it is the only one.": _top_p_with(_below_but_one),
            "one word too many stays in each row.": _top_p_with(_one_more),
            "each probability alone is compared with p; it is their sum that has to reach p.":
                _top_p_with(lambda ordered, p: ordered >= p),
            "each probability alone is compared with 1 - p; it is a sum that has to reach p.":
                _top_p_with(lambda ordered, p: ordered >= 1 - p),
            "each word is compared with a share of the most likely one; top-p looks at the sum.":
                _top_p_with(_share_of_the_first),
            "the running sum goes through the words in the order of the vocabulary, not of their probability.":
                lambda logits, p: _renormalized(logits.softmax(dim=-1), _reached_before(logits.softmax(dim=-1), p)),
            "the sum begins with the least likely words.": _ascending,
            "the result is sorted; every word must keep its own column.":
                lambda logits, p: _renormalized(ordered := _in_order(logits).values, _reached_before(ordered, p)),
            "the mask is in sorted order and the probabilities are not, so it hits the wrong words.":
                _mask_not_sorted_back,
            "the way back is the way there: the sorted numbers are sorted a second time by the same order.": _gathered,
            "every row is that of the last text: result[:, order] writes into all rows.": _last_row_for_all,
            "every row keeps as many words as row 0; each row has its own number.": _top_p_with(_first_row_for_all),
            "the right words stay, but their probabilities no longer sum to 1.":
                _top_p_with(_reached_before, lambda probabilities, allowed: probabilities.masked_fill(~allowed, 0.0)),
            "the probabilities that stay go through a softmax a second time; they need dividing by their sum.":
                _top_p_with(
                    _reached_before,
                    lambda probabilities, allowed: probabilities.masked_fill(~allowed, float("-inf")).softmax(dim=-1),
                ),
            "the right words stay, but they are divided by the sum over all rows; each row has its own.":
                _divided_by(lambda probabilities, stay, p: stay.sum()),
            "the right words stay, but they are divided by the sum of the whole table.":
                _divided_by(lambda probabilities, stay, p: probabilities.sum()),
            "the right words stay, but they are divided by p; together they are more than p.":
                _divided_by(lambda probabilities, stay, p: p),
            "the softmax runs along the batch, not along the words.": _softmax_along_batch,
            "the running sum goes along the batch, not along the words.": _sum_along_batch,
            "the logits themselves are summed and divided; p is about probabilities.": _no_softmax,
            "one smallest probability is used for the whole batch; each row has its own.": _one_threshold,
            "every row is sorted back by the order of row 0.": _order_of_row_0,
            "the sum is compared with 1 - p.": _top_p_with(_below_the_rest),
            "no word is forbidden: this is the plain softmax.": lambda logits, p: logits.softmax(dim=-1),
            "the last softmax runs along the batch; each row should sum to 1.":
                lambda logits, p: torch.softmax(logits.masked_fill(_top_p(logits, p) == 0, float("-inf")), dim=0),
            "these are logits; the exercise asks for probabilities.":
                lambda logits, p: logits.masked_fill(_top_p(logits, p) == 0, float("-inf")),
        },
        TOP_K: {
            "the forbidden logits become 0, which is a logit like any other; think of what a softmax makes of it.":
                lambda logits, p: torch.softmax(logits.masked_fill(_top_p(logits, p) == 0, 0.0), dim=-1),
        },
        TEMPERATURE: {
            "only the most likely word stays: this is greedy.": _top_p_with(_only_the_first),
            "p divides the logits too, as if it were a temperature.": lambda logits, p: _top_p((logits / p), p),
        },
    }),
)  # fmt: skip


# 07.3. R, W1 and G are square, so that a wrong way round fits; max_length is larger than the number of keys.


def _step_inputs(draw):
    while True:
        sizes = draw.sizes("batch head d_head key", low=2, high=6)
        max_length = sizes["key"] + draw.integer(3, 5)
        if max_length not in sizes.values():
            break
    head, d_head, d_model = sizes["head"], sizes["d_head"], sizes["d_model"]
    return {
        "token": draw.normal(sizes["batch"], d_model),
        "past": draw.normal(sizes["batch"], head, sizes["key"], d_head),
        "R": draw.normal(head, max_length, max_length),
        "W1": draw.normal(d_model, d_model) / d_model**0.5,
        "W2": draw.normal(head, d_head, max_length) / d_head**0.5,
        "G": draw.normal(d_model, d_model) / d_model**0.5,
    }


def _heads(features, head):
    return rearrange(features, "batch (head d_head) -> batch head d_head", head=head)


def _step(token, past, R, W1, W2, G):
    t = past.shape[2]
    value = torch.cat([past, _heads(token @ G, len(R))[:, :, None]], dim=2)
    hidden = _heads((token @ W1).relu(), len(R))
    scores = R[:, t, : t + 1] + einsum(hidden, W2, "batch head d_head, head d_head key -> batch head key")[..., : t + 1]
    mixed = einsum(scores.softmax(dim=-1), value, "batch head key, batch head key d_head -> batch head d_head")
    return mixed, value


def _step_in_loops(token, past, R, W1, W2, G):
    batch, head, t, d_head = past.shape
    value = torch.zeros(batch, head, t + 1, d_head)
    mixed = torch.zeros(batch, head, d_head)
    for b in range(batch):
        for h in range(head):
            own = slice(h * d_head, (h + 1) * d_head)
            value[b, h, :t], value[b, h, t] = past[b, h], (token[b] @ G)[own]
            hidden = torch.relu(token[b] @ W1)[own]
            scores = torch.stack([R[h, t, j] + hidden @ W2[h, :, j] for j in range(t + 1)])
            mixed[b, h] = scores.softmax(dim=0) @ value[b, h]
    return mixed, value


def _step_matmul(token, past, R, W1, W2, G):
    batch, head, t, d_head = past.shape
    value = torch.cat((past, (token @ G).view(batch, head, 1, d_head)), 2)
    scores = (token @ W1).clamp(min=0).view(batch, head, 1, d_head) @ W2[..., : t + 1] + R[:, t : t + 1, : t + 1]
    return (scores.softmax(-1) @ value)[:, :, 0], value


def _all_scores(token, R, W1, W2, row, bend=torch.relu):
    """R's row and the row of Dense, for all max_length positions."""
    dense = einsum(_heads(bend(token @ W1), len(R)), W2, "batch head d_head, head d_head key -> batch head key")
    return R[:, row] + dense


def _mixed(weights, value):
    return einsum(weights, value, "batch head key, batch head key d_head -> batch head d_head")


def _step_with(scores=None, weights=None, newest=None):
    """Another step: other scores from (token, R, W1, W2, t), weights from (scores, t), or newest value."""
    scores = scores or (lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, t))
    weights = weights or (lambda scores, t: scores[..., : t + 1].softmax(dim=-1))
    newest = newest or (lambda token, G, head: _heads(token @ G, head))

    def answer(token, past, R, W1, W2, G):
        t = past.shape[2]
        value = torch.cat([past, newest(token, G, len(R))[:, :, None]], dim=2)
        return _mixed(weights(scores(token, R, W1, W2, t), t), value), value

    return answer


def _not_itself(token, past, R, W1, W2, G):
    t = past.shape[2]
    weights = _all_scores(token, R, W1, W2, t)[..., :t].softmax(dim=-1)
    return _mixed(weights, past), _step(token, past, R, W1, W2, G)[1]


def _not_appended(token, past, R, W1, W2, G):
    return _not_itself(token, past, R, W1, W2, G)[0], past


def _in_front(token, past, R, W1, W2, G):
    t = past.shape[2]
    value = torch.cat([_heads(token @ G, len(R))[:, :, None], past], dim=2)
    return _mixed(_all_scores(token, R, W1, W2, t)[..., : t + 1].softmax(dim=-1), value), value


def _split_the_other_way(token, past, R, W1, W2, G):
    swap = "d_model (d_head head) -> d_model (head d_head)"
    W1, G = (rearrange(matrix, swap, head=len(R)) for matrix in (W1, G))
    return _step(token, past, R, W1, W2, G)


def _last_overwritten(token, past, R, W1, W2, G):
    value = torch.cat([past[:, :, 1:], _heads(token @ G, len(R))[:, :, None]], dim=2)
    t = past.shape[2]
    return _mixed(_all_scores(token, R, W1, W2, t)[..., :t].softmax(dim=-1), value), value


def _two_softmaxes(token, past, R, W1, W2, G):
    t = past.shape[2]
    parts = (_all_scores(token, R, W1, 0 * W2, t), _all_scores(token, 0 * R, W1, W2, t))
    value = _step(token, past, R, W1, W2, G)[1]
    return _mixed(sum(part[..., : t + 1].softmax(dim=-1) for part in parts) / 2, value), value


STEP = Exercise(
    key="07.3",
    title="one step of Random + Dense",
    name="next_step",
    minutes=15,
    level="medium",
    inputs=_step_inputs,
    returns="mixed, value",
    right=(_step, _step_in_loops, _step_matmul),
    wrong=mistakes({
        CACHE: {
            "the newest token looks only at the tokens before it, and not at itself.": _not_itself,
            "the value of the newest token is never appended; it is needed now, and in every later step.":
                _not_appended,
            "the newest value is put in front of the others, so every value has moved.": _in_front,
            "the oldest value is thrown away when the newest comes.": _last_overwritten,
            "the row of R is that of the token before: positions are counted from 0.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, t - 1)),
            "the row of R is that of the token after: positions are counted from 0.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, t + 1)),
            "the last row of R is used, which belongs to the last position of the longest text.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, -1)),
            "row 0 of R is used in every step, as if each token stood at position 0.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, 0)),
            "a column of R is used instead of a row: rows belong to the token that attends.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R.transpose(1, 2), W1, W2, t)),
            "the softmax runs over all positions, and what went to positions that do not exist yet is lost.":
                _step_with(weights=lambda scores, t: scores.softmax(dim=-1)[..., : t + 1]),
            "the last columns are used; the tokens stand at the first positions.":
                _step_with(weights=lambda scores, t: scores[..., -t - 1 :].softmax(dim=-1)),
            "the columns begin at position 1: positions are counted from 0.":
                _step_with(weights=lambda scores, t: scores[..., 1 : t + 2].softmax(dim=-1)),
            "the softmax is missing: the values are multiplied by scores.":
                _step_with(weights=lambda scores, t: scores[..., : t + 1]),
            "the softmax runs along the heads, not along the keys.":
                _step_with(weights=lambda scores, t: scores[..., : t + 1].softmax(dim=1)),
            "the softmax runs along the batch, not along the keys.":
                _step_with(weights=lambda scores, t: scores[..., : t + 1].softmax(dim=0)),
            "there is no relu in the part of Dense.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, t, bend=lambda x: x)),
            "the relu comes after W2; it stands between W1 and W2, as in chapter 02.":
                _step_with(
                    scores=lambda token, R, W1, W2, t: (
                        R[:, t] + _all_scores(token, 0 * R, W1, W2, t, bend=lambda x: x).relu()
                    )
                ),
            "a gelu is used, which is the bend of the mlp; that of Dense is a relu.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, t, bend=gelu)),
            "each part has a softmax of its own, and the two maps are averaged; in chapter 06 parts are mixed inside "
            "one softmax.":
                _two_softmaxes,
            "W1 and G are exchanged: one makes scores, the other values. Both are square, so torch does not complain.":
                lambda token, past, R, W1, W2, G: _step(token, past, R, G, W2, W1),
            "a relu acts on the scores; scores may be negative.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, t).relu()),
            "the scores are those of Dense alone; R is missing.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, 0 * R, W1, W2, t)),
            "the scores are those of Random alone; F(X) is missing.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, 0 * W2, t)),
            "each part counts half, as in a mixture with alphas; here the sum is plain.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, t) / 2),
            "the scores are divided by the square root of d_head; only the dot product is scaled.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1, W2, t) / W2.shape[1] ** 0.5),
            "W1 is used the wrong way round. It is square, so torch does not complain.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R, W1.T, W2, t)),
            "G is used the wrong way round. It is square, so torch does not complain.":
                _step_with(newest=lambda token, G, head: _heads(token @ G.T, head)),
            "the token itself is appended; the cache holds values, made by G.":
                _step_with(newest=lambda token, G, head: _heads(token, head)),
            "the value is split the other way: the numbers of one head lie side by side.":
                _step_with(
                    newest=lambda token, G, head: rearrange(
                        token @ G, "batch (d_head head) -> batch head d_head", head=head
                    )
                ),
            "the heads are split the other way, in the values and in F(X): the numbers of one head lie side by side.":
                _split_the_other_way,
            "every head gets the R of head 0.":
                _step_with(scores=lambda token, R, W1, W2, t: _all_scores(token, R[:1].expand_as(R), W1, W2, t)),
        },
    }),
)  # fmt: skip


# 07.4. Padding on the right, on the left, and holes: no shortcut through lengths fits. No text is full, so that the
# longest text and the padded length differ, and text 0 is not the longest.


def _pooled_inputs(draw):
    sizes = draw.sizes("batch length d_model", low=3)
    batch, length = sizes["batch"], sizes["length"] + 2
    while length in (batch, sizes["d_model"]):
        length += 1
    real = torch.ones(batch, length, dtype=torch.bool)
    real[0, : draw.integer(2, length - 2)] = False
    real[1, -1] = False
    for b in range(2, batch):
        real[b, b % (length - 2) + 1] = False  # a hole
        real[b, length - 1] = b % 2 == 1
    return {"x": draw.normal(batch, length, sizes["d_model"]), "real": real}


def _pooled(x, real):
    return (x * real[:, :, None]).sum(dim=1) / real.sum(dim=1, keepdim=True)


def _pooled_in_loops(x, real):
    return torch.stack([x[b][real[b]].mean(dim=0) for b in range(len(x))])


def _pooled_einsum(x, real):
    share = real / real.sum(dim=1, keepdim=True)
    return einsum(share, x, "batch length, batch length d_model -> batch d_model")


def _pooled_nan(x, real):
    return x.masked_fill(~real[:, :, None], float("nan")).nanmean(dim=1)


def _zeroed(x, real):
    return x * real[:, :, None]


def _first_ones(x, real):
    return torch.stack([x[b, : int(real[b].sum())].mean(dim=0) for b in range(len(x))])


def _last_ones(x, real):
    return torch.stack([x[b, x.shape[1] - int(real[b].sum()) :].mean(dim=0) for b in range(len(x))])


def _span(x, real):
    """From the first real token to the last, holes included."""
    rows = []
    for b in range(len(x)):
        positions = real[b].nonzero().flatten()
        rows.append(x[b, positions[0] : positions[-1] + 1].mean(dim=0))
    return torch.stack(rows)


def _position_of(which):
    return lambda x, real: torch.stack([x[b, real[b].nonzero().flatten()[which]] for b in range(len(x))])


POOLED = Exercise(
    key="07.4",
    title="the mean of the real tokens",
    name="pooled_mean",
    minutes=10,
    level="easy",
    inputs=_pooled_inputs,
    returns="batch d_model",
    right=(_pooled, _pooled_in_loops, _pooled_einsum, _pooled_nan),
    wrong=mistakes({
        CLASSIFIER: {
            "the fillers are averaged in: the mask is not used.": lambda x, real: x.mean(dim=1),
            "the fillers are zero now, but the sum is still divided by the padded length.":
                lambda x, real: _zeroed(x, real).mean(dim=1),
            "this is the sum; it is not divided by the number of real tokens.":
                lambda x, real: _zeroed(x, real).sum(dim=1),
            "each text is divided by the number of real tokens of the whole batch.":
                lambda x, real: _zeroed(x, real).sum(dim=1) / real.sum(),
            "every text is divided by the length of the longest one.":
                lambda x, real: _zeroed(x, real).sum(dim=1) / real.sum(dim=1).max(),
            "every text is divided by the length of text 0.":
                lambda x, real: _zeroed(x, real).sum(dim=1) / real[0].sum(),
            "the sum is divided by the right number, but the fillers are still in it.":
                lambda x, real: x.sum(dim=1) / real.sum(dim=1, keepdim=True),
            "every text gets the mean over the whole batch: x[real] has lost the batch axis.":
                lambda x, real: x[real].mean(dim=0).expand(len(x), -1),
            "only positions that are real in every text are used; each text has its own.":
                lambda x, real: _pooled(x, real.all(dim=0).expand_as(real)),
            "the mask of text 0 is used for all texts.": lambda x, real: _pooled(x, real[:1].expand_as(real)),
            "only the first real token is returned.": _position_of(0),
            "only the last real token is returned.": _position_of(-1),
            "this is the largest real number of each feature, not the mean.":
                lambda x, real: x.masked_fill(~real[:, :, None], float("-inf")).amax(dim=1),
            "each text is divided by one more than its number of real tokens.":
                lambda x, real: _zeroed(x, real).sum(dim=1) / (real.sum(dim=1, keepdim=True) + 1),
        },
        LEFT: {
            "the first tokens are taken, as many as are real; here padding may stand anywhere.": _first_ones,
            "the last tokens are taken, as many as are real; here padding may stand anywhere.": _last_ones,
            "everything from the first real token to the last is taken, fillers between them included.": _span,
        },
        RIGHT: {
            "the mask is turned round: this is the mean of the fillers.": lambda x, real: _pooled(x, ~real),
        },
    }),
)  # fmt: skip


# 07.5. Outputs of different lengths. A penalty near 0 or 1 would hide where the power belongs.


def _judged_inputs(draw):
    lengths = draw.sizes("one two three four", low=2, high=8).values()
    outputs = [[-draw.integer(5, 300) / 100 for _ in range(length)] for length in lengths]
    return {"outputs": outputs, "length_penalty": draw.integer(30, 80) / 100}


def _judged(outputs, length_penalty):
    return [sum(tokens) / ((5 + len(tokens)) / 6) ** length_penalty for tokens in outputs]


def _judged_in_loops(outputs, length_penalty):
    scores = []
    for tokens in outputs:
        total = 0.0
        for token in tokens:
            total += token
        scores.append(total * 6**length_penalty * (len(tokens) + 5) ** (-length_penalty))
    return scores


def _judged_logarithm(outputs, length_penalty):
    factors = (exp(length_penalty * (log(5 + len(tokens)) - log(6))) for tokens in outputs)
    return [sum(tokens) / factor for tokens, factor in zip(outputs, factors, strict=True)]


def _judged_with(score):
    """Another formula, score(sum of the logarithms, length, alpha)."""
    return lambda outputs, length_penalty: [score(sum(tokens), len(tokens), length_penalty) for tokens in outputs]


JUDGED = Exercise(
    key="07.5",
    title="judge finished outputs",
    name="judged",
    minutes=8,
    level="easy",
    inputs=_judged_inputs,
    returns="a list of floats",
    right=(_judged, _judged_in_loops, _judged_logarithm),
    wrong=mistakes({
        PENALTY: {
            "there is no length penalty in it.": _judged_with(lambda total, length, alpha: total),
            "this is the mean over the tokens, not the formula.":
                _judged_with(lambda total, length, alpha: total / length),
            "the power is that of the length itself; the 5 and the 6 are missing.":
                _judged_with(lambda total, length, alpha: total / length**alpha),
            "the end token is not counted in the length.":
                _judged_with(lambda total, length, alpha: total / ((5 + length - 1) / 6) ** alpha),
            "the length is one too large; the start token is no part of the output.":
                _judged_with(lambda total, length, alpha: total / ((5 + length + 1) / 6) ** alpha),
            "the logarithm of the end token is left out of the sum.":
                lambda outputs, length_penalty: [
                    sum(tokens[:-1]) / ((5 + len(tokens)) / 6) ** length_penalty for tokens in outputs
                ],
            "the end token is left out altogether, of the sum and of the length.":
                lambda outputs, length_penalty: _judged([tokens[:-1] for tokens in outputs], length_penalty),
            "the sum is multiplied by the factor, so longer outputs are punished even more.":
                _judged_with(lambda total, length, alpha: total * ((5 + length) / 6) ** alpha),
            "the power is missing; alpha is not used.":
                _judged_with(lambda total, length, alpha: total / ((5 + length) / 6)),
            "alpha multiplies the fraction; it is its power.":
                _judged_with(lambda total, length, alpha: total / (alpha * (5 + length) / 6)),
            "the power takes in the sum as well, and the power of a negative number is complex.":
                _judged_with(lambda total, length, alpha: (total / ((5 + length) / 6)) ** alpha),
            "the power belongs to the 6 alone: look at the brackets.":
                _judged_with(lambda total, length, alpha: total / ((5 + length) / 6**alpha)),
            "the power belongs to the numerator alone: look at the brackets.":
                _judged_with(lambda total, length, alpha: total / ((5 + length) ** alpha / 6)),
            "the 6 divides the sum as well: look at the brackets.":
                _judged_with(lambda total, length, alpha: total / (5 + length) / 6**alpha),
            "only the length is divided by 6: look at the brackets.":
                _judged_with(lambda total, length, alpha: total / (5 + length / 6) ** alpha),
            "the mean is divided by the factor; the formula has the sum.":
                _judged_with(lambda total, length, alpha: total / length / ((5 + length) / 6) ** alpha),
            "a probability is divided, not its logarithm.":
                _judged_with(lambda total, length, alpha: exp(total) / ((5 + length) / 6) ** alpha),
            "the sign is turned: the scores are negative, and the largest is the best.":
                _judged_with(lambda total, length, alpha: -total / ((5 + length) / 6) ** alpha),
            "a price for each token is taken off; the formula divides.":
                _judged_with(lambda total, length, alpha: total - alpha * length),
            "the number of outputs is taken for the length of each.":
                lambda outputs, length_penalty: [
                    sum(tokens) / ((5 + len(outputs)) / 6) ** length_penalty for tokens in outputs
                ],
            "the length of the longest output is used for all; each has its own.":
                lambda outputs, length_penalty: [
                    sum(tokens) / ((5 + max(map(len, outputs))) / 6) ** length_penalty for tokens in outputs
                ],
            "0.6 stands where alpha belongs; it is only what the paper takes.":
                lambda outputs, length_penalty: _judged(outputs, 0.6),
            "the scores are sorted; each must stay at the position of its output.":
                lambda outputs, length_penalty: sorted(_judged(outputs, length_penalty), reverse=True),
        },
        BEAM: {
            "these are the probabilities of the outputs.": _judged_with(lambda total, length, alpha: exp(total)),
            "the logarithms are multiplied; probabilities are multiplied, logarithms are added.":
                lambda outputs, length_penalty: [
                    prod(tokens) / ((5 + len(tokens)) / 6) ** length_penalty for tokens in outputs
                ],
        },
    }),
)  # fmt: skip

EXERCISES = [BLOCK, TOP_P_EXERCISE, STEP, POOLED, JUDGED]
