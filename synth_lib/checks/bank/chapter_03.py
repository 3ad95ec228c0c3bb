"""The exercises of chapter 03, Random: equation (4) of arXiv 2005.00743, the start of R, and its learning rate."""

from math import ceil, exp, floor, log, sqrt

import torch
from einops import einsum
from torch import nn

from synth_lib.checks.compare import differ, kind_of
from synth_lib.checks.exercise import Exercise, Reads, mistakes
from synth_lib.lab.starts import shifted_scores

EQUATION = "The equation"
LOOPS = "Loops say the equation aloud"
HEADS = "Heads, a batch, and named axes"
MODULE = "A module holds R"
STILL = "One map for every sentence"
BATCH_AXIS = "R has no batch axis"
SHORTER = "Shorter inputs"
GAP = "How far apart the scores must be"
SHIFTS = "Shifts and decays"
TWICE = "Not through a softmax twice"
STEP = "How far one step of Adam goes"
DISTANCE = "How far a score must travel"
GROUPS = "The same inside a model"
STATE = "State: Parameter, buffer, plain tensor"


# 03.1. Fewer sentences than heads, so that an R cut to the size of the batch runs. Each size of 1 comes in a trial, and
# an R that is as long as the text. Where some tokens are new, the scores of one head lie at both ends of what the
# docstring allows: those of later tokens at the upper, and in every second row all others at the lower.


def _newest_inputs(draw):
    sizes = draw.sizes("batch head length max_length d_head", low=3, high=8)
    batch, head = sorted((sizes["batch"], sizes["head"]))
    key, max_length = sorted((sizes["length"], sizes["max_length"]))
    query = draw.integer(2, key - 1)
    batch, head, query, d_head, max_length = draw.in_turn((
        (batch, head, query, sizes["d_head"], max_length),
        (batch, head, 1, sizes["d_head"], key),
        (1, 1, key, 1, key),
    ))
    R = draw.normal(head, max_length, max_length)
    if 1 < query < key:
        sign = (-1.0) ** (torch.arange(max_length)[:, None] - key + 1)  # the last token but one: below 0
        later = torch.ones(max_length, max_length).triu(1) > 0
        R[-1] = R[-1].clamp(-0.9, 0.9) + 19_999 * sign.where(~later, 1.0)
    return {"R": R, "value": draw.normal(batch, head, key, d_head), "query": query}


def _newest_in_loops(R, value, query):
    key = value.shape[2]
    results = []
    for i in range(key - query, key):
        weights = R[:, i, : i + 1].softmax(dim=-1)
        results.append(einsum(weights, value[:, :, : i + 1], "head key, batch head key d_head -> batch head d_head"))
    return torch.stack(results, dim=2)


def _masked(R, key, fill=float("-inf"), diagonal=1):
    later = torch.ones(key, key, dtype=torch.bool).triu(diagonal)
    return R[:, :key, :key].masked_fill(later, fill)


def _newest_masked(R, value, query):
    key = value.shape[2]
    return _masked(R, key).softmax(dim=-1)[:, key - query :] @ value


def _newest_number_by_number(R, value, query):
    batch, head, key, d_head = value.shape
    y = torch.zeros(batch, head, query, d_head)
    for h, rows in enumerate(R.tolist()):
        for n in range(query):
            scores = rows[key - query + n][: key - query + n + 1]
            exponentials = [exp(score - max(scores)) for score in scores]
            for j, exponential in enumerate(exponentials):
                y[:, h, n] += exponential / sum(exponentials) * value[:, h, j]
    return y


def _newest(weigh):
    """An answer from weigh(R, i, key, query) -> the weights of the token at position i, head|1 key; it may be cut."""

    def answer(R, value, query):
        key = value.shape[2]
        rows = [weigh(R, i, key, query) for i in range(key - query, key)]
        means = [row[:, None] @ value[:, :, : row.shape[-1]] for row in rows]
        return torch.cat(means, dim=2)

    return answer


def _newest_of_masked(weigh):
    """An answer from weigh(scores) -> weights, where later scores are minus infinity and all rows are there."""
    return lambda R, value, query: (
        weigh(_masked(R, value.shape[2]))[..., value.shape[2] - query :, :] @ value
    )


def _newest_alone(R, i, key, query):
    first = key - query
    return torch.cat([torch.zeros(len(R), first), R[:, i, first : i + 1].softmax(dim=-1)], dim=-1)


def _newest_old_alone(R, i, key, query):
    scores = R[:, i, : i + 1].clone()
    scores[:, key - query : i] = float("-inf")
    return scores.softmax(dim=-1)


def _newest_divided(R, i, key, query):
    weights = R[:, i, :key].softmax(dim=-1)[:, : i + 1]
    return weights / weights.sum(dim=-1, keepdim=True)


def _newest_plain_exponentials(R, i, key, query):
    exponentials = R[:, i, : i + 1].exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def _after_another(answer, R, value, query):
    """The second call of two: an answer that keeps something of an earlier text of the same size is found out."""
    answer(R=R.flip(1), value=value.clone(), query=query)
    return answer(R=R, value=value, query=query)


def _row(R, i, key, query):
    return R[:, i, : i + 1].softmax(dim=-1)


NEWEST_TOKENS = Exercise(
    key="03.1",
    title="the newest tokens of a text",
    name="newest_tokens",
    minutes=15,
    level="medium",
    inputs=_newest_inputs,
    run=_after_another,
    returns="batch head query d_head",
    properties=(Reads("value", 0, 0, "sentence"), Reads("value", 1, 1, "head"), Reads("R", 0, 1, "head")),
    right=(_newest_in_loops, _newest_masked, _newest_number_by_number),
    wrong=mistakes({
        SHORTER: {
            "every token looks at the whole text, also at the tokens after it.":
                _newest(lambda R, i, key, query: R[:, i, :key].softmax(dim=-1)),
            "a row is cut after the softmax, so its weights sum to less than 1.":
                _newest(lambda R, i, key, query: R[:, i, :key].softmax(dim=-1)[:, : i + 1]),
            "the softmax runs over a whole row of R, and what is kept of it sums to less than 1.":
                _newest(lambda R, i, key, query: R[:, i].softmax(dim=-1)[:, : i + 1]),
            "the scores of later tokens are set to 0, and a score of 0 still gets a share.":
                lambda R, value, query: _masked(R, value.shape[2], fill=0.0).softmax(dim=-1)[:, -query:] @ value,
            "the first rows of R are used. At which position does the first of the new tokens stand?":
                _newest(lambda R, i, key, query: R[:, i - key + query, : i + 1].softmax(dim=-1)),
            "the last rows of R are used; the text may be shorter than R.":
                _newest(lambda R, i, key, query: R[:, R.shape[-1] - key + i, : i + 1].softmax(dim=-1)),
            "a new token looks at the new tokens alone; those before them count as well.": _newest(_newest_alone),
            "a new token does not look at the new ones before it.": _newest(_newest_old_alone),
            "the softmax runs over later scores as well, and what is left is divided by its sum: if a later score is "
            "far above the others, nothing is left. Cut first.": _newest(_newest_divided),
            "the softmax comes before the cut, and what is left is divided by its sum, or by a small number: if a "
            "later score is far above the others, nothing is left.":
                _newest(lambda R, i, key, query: _newest_divided(R, i, key, query).nan_to_num(0.0)),
            "the number that is written into the scores of later tokens, or taken from them, is not enough: one of "
            "them can still be the largest.":
                lambda R, value, query: (
                    _masked(R, value.shape[2], fill=-1e4).softmax(dim=-1)[:, value.shape[2] - query :] @ value
                ),
            "the scores of later tokens are set to the lowest that a score can have; where the others lie there, too, "
            "they get a share.":
                lambda R, value, query: (
                    _masked(R, value.shape[2], fill=-2e4).softmax(dim=-1)[:, value.shape[2] - query :] @ value
                ),
            "the first new token looks at position 0 alone, the second at two positions, and so on.":
                _newest(lambda R, i, key, query: R[:, i, : i - key + query + 1].softmax(dim=-1)),
            "a token does not look at itself.": _newest(lambda R, i, key, query: R[:, i, :i].softmax(dim=-1)),
            "a token does not look at itself, and the first of the text looks nowhere: 0 / 0 is NaN.":
                lambda R, value, query: (
                    _masked(R, value.shape[2], diagonal=0).softmax(dim=-1)[:, value.shape[2] - query :] @ value
                ),
            "a token also looks at the one after it.":
                _newest(lambda R, i, key, query: R[:, i, : min(i + 2, key)].softmax(dim=-1)),
            "these are the results of all tokens, also of those that are not new.":
                lambda R, value, query: _newest_in_loops(R, value, value.shape[2]),
            "these are the first tokens of the text; the new ones are the last.":
                lambda R, value, query: _newest_in_loops(R, value, value.shape[2])[:, :, :query],
            "the new tokens are there, but not in the order of the text.":
                lambda R, value, query: _newest_in_loops(R, value, query).flip(2),
            "only later tokens are looked at, and the token itself; the text is read from the wrong end.":
                lambda R, value, query: (
                    R[:, : value.shape[2], : value.shape[2]]
                    .masked_fill(torch.ones(value.shape[2], value.shape[2]).tril(-1) > 0, float("-inf"))
                    .softmax(dim=-1)[:, -query:] @ value
                ),
        },
        EQUATION: {
            "the softmax is missing: scores are used as if they were weights, and rows do not sum to 1.":
                _newest(lambda R, i, key, query: R[:, i, : i + 1]),
            "the scores are divided by the root of d_head, as for the dot product; equation (4) is not.":
                lambda R, value, query: _newest_in_loops(R / sqrt(value.shape[-1]), value, query),
            "every token gets the plain average, whatever R says.":
                _newest(lambda R, i, key, query: torch.full((len(R), i + 1), 1 / (i + 1))),
            "every token gets its own value back.": lambda R, value, query: value[:, :, value.shape[2] - query :],
        },
        LOOPS: {
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                _newest_of_masked(lambda scores: scores.softmax(dim=1)),
            "the softmax runs over a whole map, so all its rows together sum to 1.":
                _newest_of_masked(lambda scores: scores.flatten(1).softmax(dim=1).view_as(scores)),
            "queries and keys are swapped in R: a row should belong to a token that attends.":
                _newest(lambda R, i, key, query: R[:, : i + 1, i].softmax(dim=-1)),
            "the exponential of a large score is infinite in 32 bits, and that of a small one 0. The softmax of torch "
            "first takes the largest score of a row away from all.": _newest(_newest_plain_exponentials),
            "the exponential of a large score is infinite in 32 bits, and that of a small one 0; the NaN that come of "
            "it are made 0.":
                _newest(lambda R, i, key, query: _newest_plain_exponentials(R, i, key, query).nan_to_num(0.0)),
            "the scores are divided by their sum as they are; the softmax first makes each one positive.":
                _newest(lambda R, i, key, query: R[:, i, : i + 1] / R[:, i, : i + 1].sum(dim=-1, keepdim=True)),
        },
        HEADS: {
            "the softmax runs along the heads, so one head takes weight from another.":
                _newest(lambda R, i, key, query: R[:, i, : i + 1].softmax(dim=0)),
            "all heads use the map of head 0.": lambda R, value, query: _newest(_row)(R[:1], value, query),
            "the scores of the heads are averaged; each head should keep a map of its own.":
                lambda R, value, query: _newest(_row)(R.mean(dim=0, keepdim=True), value, query),
            "the maps of the heads are averaged; each head should keep its own.":
                _newest(lambda R, i, key, query: _row(R, i, key, query).mean(dim=0, keepdim=True)),
            "the results of the heads are added up; each should stay apart.":
                lambda R, value, query: _newest_in_loops(R, value, query).sum(dim=1),
            "axes of size 1 are gone: squeeze also removes a batch of one sentence, one head, or one new token.":
                lambda R, value, query: _newest_in_loops(R, value, query).squeeze(),
        },
        TWICE: {
            "there are two softmaxes, and the second takes weights for scores.":
                _newest(lambda R, i, key, query: _row(R, i, key, query).softmax(dim=-1)),
        },
        BATCH_AXIS: {
            "the first axis of R is taken for the batch: every sentence has a map of its own, and the heads share it.":
                lambda R, value, query: _masked(R, value.shape[2]).softmax(dim=-1)[: len(value), None, -query:] @ value,
        },
    }),
)  # fmt: skip


# 03.2. What counts is the map, so the answers are compared after the softmax: scores may differ by a constant a row.


def _shift_inputs(draw):
    length = draw.integer(5, 9)
    offset = draw.integer(draw.in_turn((2, 1)), length - 3) * draw.in_turn((1, -1))
    return {"length": length, "offset": offset, "error": draw.integer(3, 9) / 100}


def _shift_run(answer, length, offset, error):
    """Both directions, the identity, the shortest sentence, an error so large that the gap is negative, and a tiny one.

    The logarithms of the maps are compared: there a small weight counts as much as a large one.
    """
    maps = []
    asked = [(length, offset, error), (length, -offset, error), (length, 0, error), (2, 1 if offset > 0 else -1, error)]
    for size, positions, share in (*asked, (length, offset, 0.999), (length, offset, 1e-6)):
        scores = answer(length=size, offset=positions, error=share)
        is_table = isinstance(scores, torch.Tensor) and scores.is_floating_point() and scores.dim() > 0
        maps.append(scores.log_softmax(dim=-1) if is_table else scores)
    return tuple(maps)


def _gap(length, error):
    return log((1 - error) * (length - 1) / error)


def _diagonal(length, offset, gap):
    return torch.diag(torch.full((length - abs(offset),), float(gap)), diagonal=offset)


def _shift_diagonal(length, offset, error):
    return _diagonal(length, offset, _gap(length, error))


def _shift_in_loops(length, offset, error):
    scores = torch.zeros(length, length)
    for i in range(length):
        if 0 <= i + offset < length:
            scores[i, i + offset] = log(1 - error) - log(error / (length - 1))
    return scores


def _shift_weights(length, offset, error):
    """The wanted map itself; `shift_scores` is right if its softmax is this."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    wanted = torch.where(j - i == offset, 1 - error, error / (length - 1))
    inside = ((i + offset >= 0) & (i + offset < length)).expand(length, length)
    return torch.where(inside, wanted, 1 / length)


def _shift_logarithms(length, offset, error):
    return _shift_weights(length, offset, error).log()


def _shift_log_of_zero(length, offset, error):
    inside = _diagonal(length, offset, 1.0).sum(dim=1, keepdim=True) > 0
    return (_shift_weights(length, offset, error) * inside).log()


def _shift_with_infinity(length, offset, error):
    scores = torch.full((length, length), float("-inf"))
    return torch.where(_diagonal(length, offset, 1.0) > 0, torch.zeros(()), scores)


def _shift_rolled(length, offset, error):
    return (_gap(length, error) * torch.eye(length)).roll(offset, dims=1)


def _shift_negative_index(length, offset, error):
    scores = torch.zeros(length, length)
    for i in range(length):
        if i + offset < length:
            scores[i, i + offset] = _gap(length, error)
    return scores


def _shift_never_position_0(length, offset, error):
    scores = _shift_diagonal(length, offset, error)
    scores[:, 0] = 0
    return scores


def _shift_or_itself(length, offset, error):
    scores = _shift_diagonal(length, offset, error)
    return scores + (scores == 0).all(dim=1, keepdim=True) * _diagonal(length, 0, _gap(length, error))


def _shift_clamped(length, offset, error):
    scores = torch.zeros(length, length)
    for i in range(length):
        scores[i, min(max(i + offset, 0), length - 1)] = _gap(length, error)
    return scores


SHIFT_SCORES = Exercise(
    key="03.2",
    title="scores for a shift",
    name="shift_scores",
    minutes=12,
    level="medium",
    inputs=_shift_inputs,
    returns=(
        "the map after the softmax for the offset, the map after the softmax for the opposite offset, "
        "the map after the softmax for the offset 0, the map after the softmax for two positions, "
        "the map after the softmax for a large error, the map after the softmax for a tiny error"
    ),
    forbidden=(shifted_scores,),
    trials=2,
    right=(_shift_diagonal, _shift_in_loops, _shift_logarithms),
    run=_shift_run,
    wrong=mistakes({
        TWICE: {
            "these are the weights themselves. They still go through the softmax, which flattens them.": _shift_weights,
            "the wanted key has the score 1, as if a score were a weight.":
                lambda length, offset, error: _diagonal(length, offset, 1.0),
            "the wanted key has its weight as its score.":
                lambda length, offset, error: _diagonal(length, offset, 1 - error),
        },
        GAP: {
            "the logarithm of the weight is used, but the other scores are 0, which is the logarithm of 1.":
                lambda length, offset, error: _diagonal(length, offset, log(1 - error)),
            "the score of the wanted key is a fixed 10; it depends on the error and on the length.":
                lambda length, offset, error: _diagonal(length, offset, 10.0),
            "the wanted key is counted among the others. How many others are there?":
                lambda length, offset, error: _diagonal(length, offset, log((1 - error) * length / error)),
            "the scores would be right for one other key; all the others have a share.":
                lambda length, offset, error: _diagonal(length, offset, log((1 - error) / error)),
            "the wanted key is treated as if its weight were 1 instead of a little less.":
                lambda length, offset, error: _diagonal(length, offset, log((length - 1) / error)),
            "every other key gets the error; it is what all of them get together.":
                lambda length, offset, error: _diagonal(
                    length, offset, log(max((1 - (length - 1) * error) / error, 1e-9))
                ),
            "the sign of the gap is wrong: the wanted key gets the least.":
                lambda length, offset, error: _diagonal(length, offset, -_gap(length, error)),
            "the gap is given before its logarithm is taken.":
                lambda length, offset, error: _diagonal(length, offset, exp(_gap(length, error))),
            "the logarithm has the base 10; the softmax has the base e.":
                lambda length, offset, error: _diagonal(length, offset, _gap(length, error) / log(10)),
            "the logarithm has the base 2; the softmax has the base e.":
                lambda length, offset, error: _diagonal(length, offset, _gap(length, error) / log(2)),
            "the weight and the error are swapped.":
                lambda length, offset, error: _diagonal(length, offset, _gap(length, 1 - error)),
            "the gap is never below 0; with a large error the wanted key gets less than the others.":
                lambda length, offset, error: _diagonal(length, offset, max(_gap(length, error), 0.0)),
            "the gap never goes past 10; the smaller the error is, the larger it has to be.":
                lambda length, offset, error: _diagonal(length, offset, min(_gap(length, error), 10.0)),
        },
        SHIFTS: {
            "it shifts in the wrong direction; or rows and columns are swapped, which is the same here.":
                lambda length, offset, error: _shift_diagonal(length, -offset, error),
            "the sign of the offset is lost.":
                lambda length, offset, error: _shift_diagonal(length, abs(offset), error),
            "the other scores are minus infinity: no error is left, and rows without a wanted key are NaN.":
                _shift_with_infinity,
            "rows without a wanted key are left at the weight 0. Its logarithm is minus infinity, and the softmax of a "
            "row of these is NaN.": _shift_log_of_zero,
            "it wraps around: rows whose key would lie outside look at the other end of the sentence.": _shift_rolled,
            "position 0 is never looked at; it lies inside the sentence.": _shift_never_position_0,
            "looking back wraps around: a negative index is the other end of the sentence, not outside of it.":
                _shift_negative_index,
            "rows whose key would lie outside look at the last position inside; they should be uniform.":
                _shift_clamped,
            "rows whose key would lie outside look at themselves; they should be uniform.": _shift_or_itself,
            "the offset is not used: every position looks at itself.":
                lambda length, offset, error: _diagonal(length, 0, _gap(length, error)),
        },
    }),
)  # fmt: skip


# 03.3. The exact number of steps is well above a whole one, so that rounding to the nearest is rounding down. Weights
# on both sides of one half, a long way with a factor below 1, and one step alone come in turn.


def _gap_of(weight):
    """The gap up to log(length - 1), which is the same at the start and at the end."""
    return log(weight / (1 - weight))


def _exact_steps(start, weight, learning_rate, factor):
    return (_gap_of(weight) - _gap_of(start)) / (2 * learning_rate * factor)


def _steps_inputs(draw):
    start, weight, factor, least, most = draw.in_turn((
        ((1, 30), (55, 99), (3, 12), 40, 1000),  # of few steps, two mistakes can be the same whole number
        ((1, 30), (36, 49), (3, 12), 40, 1000),
        ((0.0002, 0.0009), (99.97, 99.99), (0.5, 0.5), 5000, 30_000),
        ((10, 60), (15, 65), (3, 12), 0, 1),
    ))
    while True:
        inputs = {
            "start": draw.integer(*(round(end * 10_000) for end in start)) / 1_000_000,
            "weight": draw.integer(*(round(end * 10_000) for end in weight)) / 1_000_000,
            "learning_rate": draw.integer(2, 9) / (10_000 if least > 1000 else 1000),
            "factor": draw.integer(*(round(end * 2) for end in factor)) / 2,
        }
        exact = _exact_steps(**inputs)
        if 0.15 < exact % 1 < 0.4 and least < exact < most:
            return inputs


def _steps_formula(start, weight, learning_rate, factor):
    return ceil(_exact_steps(start, weight, learning_rate, factor))


def _steps_counted(start, weight, learning_rate, factor):
    wanted, other, steps = log(start), log(1 - start), 0
    while exp(wanted) < weight * (exp(wanted) + exp(other)):
        wanted += learning_rate * factor
        other -= learning_rate * factor
        steps += 1
    return steps


def _steps_by_softmax(start, weight, learning_rate, factor):
    length = 12
    scores = torch.full((length,), log((1 - start) / (length - 1)), dtype=torch.float64)
    scores[0] = log(start)
    directions = torch.full_like(scores, -1)
    directions[0] = 1
    steps = torch.arange(30_000)[:, None]
    reached = (scores + steps * learning_rate * factor * directions).softmax(dim=1)[:, 0] >= weight
    return int(reached.int().argmax())


LEAST_STEPS = Exercise(
    key="03.3",
    title="how many steps at least",
    name="steps_needed",
    minutes=12,
    level="medium",
    inputs=_steps_inputs,
    returns="a whole number",
    trials=4,
    right=(_steps_formula, _steps_counted, _steps_by_softmax),
    wrong=mistakes({
        DISTANCE: {
            "only the wanted score moves; the others do not wait for it.":
                lambda start, weight, learning_rate, factor: ceil(
                    2 * _exact_steps(start, weight, learning_rate, factor)
                ),
            "the factor of R is not used, and only the wanted score moves.":
                lambda start, weight, learning_rate, factor: ceil(2 * _exact_steps(start, weight, learning_rate, 1)),
            "the distance is doubled instead of shared by the two sides.":
                lambda start, weight, learning_rate, factor: ceil(
                    4 * _exact_steps(start, weight, learning_rate, factor)
                ),
            "it is one step short: a part of a step cannot be made, so the number is never rounded down.":
                lambda start, weight, learning_rate, factor: floor(_exact_steps(start, weight, learning_rate, factor)),
            "it is one step too many: with the step before, the weight is already reached.":
                lambda start, weight, learning_rate, factor: (
                    ceil(_exact_steps(start, weight, learning_rate, factor)) + 1
                ),
            "the end is a gap, but the start is only the logarithm of its weight; what do the other keys have?":
                lambda start, weight, learning_rate, factor: ceil(
                    (_gap_of(weight) - log(start)) / (2 * learning_rate * factor)
                ),
            "the start is not used. How much of the way has the score behind it, or how far behind is it?":
                lambda start, weight, learning_rate, factor: ceil(_gap_of(weight) / (2 * learning_rate * factor)),
            "the start is a weight, and a weight is taken from a gap; turn the start into a gap as well.":
                lambda start, weight, learning_rate, factor: ceil(
                    (_gap_of(weight) - start) / (2 * learning_rate * factor)
                ),
            "it starts from a uniform row of 32 keys; here the row starts from another weight, and the length is not "
            "given.":
                lambda start, weight, learning_rate, factor: ceil(
                    (_gap_of(weight) + log(31)) / (2 * learning_rate * factor)
                ),
            "there is a gap for 32 keys, and the start, a weight, is taken from it; turn the start into a gap as well.":
                lambda start, weight, learning_rate, factor: ceil(
                    (_gap_of(weight) + log(31) - start) / (2 * learning_rate * factor)
                ),
            "the gaps at the start and at the end are added up.":
                lambda start, weight, learning_rate, factor: ceil(
                    (_gap_of(weight) + _gap_of(start)) / (2 * learning_rate * factor)
                ),
            "the start and the end are swapped, so the number is negative.":
                lambda start, weight, learning_rate, factor: (
                    -floor(-_exact_steps(weight, start, learning_rate, factor))
                ),
        },
        GROUPS: {
            "the factor of R is not used.":
                lambda start, weight, learning_rate, factor: ceil(_exact_steps(start, weight, learning_rate, 1)),
            "the factor makes the steps smaller instead of larger.":
                lambda start, weight, learning_rate, factor: ceil(
                    _exact_steps(start, weight, learning_rate, 1 / factor)
                ),
        },
        GAP: {
            "the logarithm is missing: how many times a weight is larger is not yet a difference of scores.":
                lambda start, weight, learning_rate, factor: ceil(
                    (weight / (1 - weight) - start / (1 - start)) / (2 * learning_rate * factor)
                ),
            "the weight is compared with its start; a gap compares it with the weight of another key.":
                lambda start, weight, learning_rate, factor: ceil(log(weight / start) / (2 * learning_rate * factor)),
            "the logarithm has the base 10; the softmax has the base e.":
                lambda start, weight, learning_rate, factor: ceil(
                    _exact_steps(start, weight, learning_rate, factor) / log(10)
                ),
            "the logarithm has the base 2; the softmax has the base e.":
                lambda start, weight, learning_rate, factor: ceil(
                    _exact_steps(start, weight, learning_rate, factor) / log(2)
                ),
        },
        STEP: {
            "it lets the weight move by the learning rate. What Adam moves are the scores.":
                lambda start, weight, learning_rate, factor: ceil((weight - start) / (learning_rate * factor)),
            "it lets the weights move by the learning rate. What Adam moves are the scores before the softmax.":
                lambda start, weight, learning_rate, factor: ceil((weight - start) / (2 * learning_rate * factor)),
        },
    }),
)  # fmt: skip


# 03.4. The same questions are put to every kind, and answered in words, so that a message can say which one failed. The
# steps are those of Adam's first one, with weight decay, written out: an optimizer of torch takes a second to begin.


def _state_inputs(draw):
    sizes = draw.sizes("head length", low=3)
    fixed = torch.arange(sizes["head"]) % 2 == draw.in_turn((0, 1))
    return {"R": draw.normal(sizes["head"], sizes["length"], sizes["length"]), "fixed": fixed}


def _state_run(answer, R, fixed):
    """Scores, and a line about the state: of heads of both kinds, and of one head that stays or learns."""
    report = []
    for own_R, own_fixed in ((R, fixed), (R[:1], fixed[:1] | True), (R[:1], fixed[:1] & False)):
        report += _state_of(answer, own_R, own_fixed)
    return tuple(report)


def _state_of(answer, R, fixed):
    given, mask, x = R.clone(), fixed.clone(), torch.ones(2, R.shape[-1] - 1, 5)
    converted = answer(R=R.clone(), fixed=fixed.clone()).double()(x.double())
    module, fresh = answer(R=given, fixed=mask), answer(R=R + 1, fixed=fixed.clone())
    scores = module(x).detach().clone()
    whole, first = module(torch.ones(1, R.shape[-1], 3)).detach(), module(x[:, :1]).detach()
    at_all_lengths = torch.equal(whole, R[None]) and torch.equal(first, R[None, :, :1, :1])
    fresh.load_state_dict(module.state_dict())
    kept = [*module.named_parameters(), *module.named_buffers()]
    shared = {tensor.untyped_storage().data_ptr() for tensor in (given, mask)}
    held = [value for part in module.modules() for value in vars(part).values()]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    moved = []  # by the gradient alone, then with weight decay
    for decay in (0.0, 0.5):
        result = module(x)
        if result.requires_grad:
            result.square().sum().backward()
        with torch.no_grad():
            for parameter in trained:
                if parameter.grad is not None:
                    parameter -= 0.1 * (parameter.grad.sign() + decay * parameter)
                    parameter.grad = None
        after = module(x).detach()
        comparable = after.shape == scores.shape == (1, *R[:, :-1, :-1].shape)
        moved.append((after != scores)[0] if comparable else torch.zeros_like(R[:, :-1, :-1], dtype=torch.bool))
    state = {
        "saved": differ(fresh(x).detach(), scores) is False and {name for name, _ in kept} <= {*module.state_dict()},
        "converted": converted.dtype == torch.float64,
        "moved along": not any(isinstance(value, torch.Tensor) for value in held),
        "heads that learn are trained": bool(moved[0][~fixed].all()),
        "heads that stay are not trained": not moved[0][fixed].any(),
        "weight decay leaves them alone": not moved[1][fixed].any(),
        "the R that was given stays as it was": torch.equal(given.detach(), R) and not given.requires_grad,
        "copies are kept": not any(tensor.untyped_storage().data_ptr() in shared for _, tensor in kept),
        "right for the longest x, and for one token": at_all_lengths or scores.shape != (1, *R[:, :-1, :-1].shape),
        "the same after eval()": differ(module.eval()(x).detach(), after) is False,
        "of x the length alone is read": differ(module((x / 0 - x / 0).double()).detach(), after) is False,
    }
    missing = [wish for wish, is_so in state.items() if not is_so]  # alone: a message is cut at some length
    return scores, f"not so: {'; '.join(missing)}" if missing else "all is so"


class _Scores(nn.Module):
    """What most answers to 03.4 share. keep(module, R, fixed) stores; whole(module) -> scores, head query key."""

    def __init__(self, keep, whole, R, fixed):
        super().__init__()
        keep(self, R, fixed)
        self.whole = whole

    def forward(self, x):
        length = x.shape[1]
        return self.whole(self)[None, :, :length, :length]


def _kept(keep, whole=lambda module: module.R):
    return lambda R, fixed: _Scores(keep, whole, R, fixed)


def _store(start=None, mask=None, R=None, **options):
    """Keeps a start, a mask and an R that is trained; each may be kept in another way than the right one."""

    def keep(module, R_given, fixed):
        (start or (lambda m, value: m.register_buffer("start", value.clone())))(module, R_given)
        (mask or (lambda m, value: m.register_buffer("fixed", value.clone())))(module, fixed)
        module.R = nn.Parameter(R_given.clone() if R is None else R(R_given, fixed), **options)

    return keep


def _choose(module):
    return torch.where(module.fixed[:, None, None], module.start, module.R)


def _keep_parts(module, R, fixed):
    module.learning = nn.Parameter(R[~fixed].clone())
    module.register_buffer("staying", R[fixed].clone())
    module.register_buffer("place", torch.cat([(~fixed).nonzero(), fixed.nonzero()]).flatten().argsort())


def _join_parts(module):
    return torch.cat([module.learning, module.staying])[module.place]


def _keep_head_by_head(module, R, fixed):
    for number, (scores, stays) in enumerate(zip(R, fixed.tolist(), strict=True)):
        if stays:
            module.register_buffer(f"head_{number}", scores.clone())
        else:
            module.register_parameter(f"head_{number}", nn.Parameter(scores.clone()))
    module.count = len(R)


def _join_heads(module):
    return torch.stack([getattr(module, f"head_{number}") for number in range(module.count)])


def _put_in(module):
    scores = module.start.clone()
    scores[~module.fixed] = module.R
    return scores


def _plain(name):
    def keep(module, value):
        setattr(module, name, value.clone())

    return keep


def _uncut(R, fixed):
    module = _Scores(_store(), _choose, R, fixed)
    module.forward = lambda x: _choose(module)[None]
    return module


def _without_the_1(R, fixed):
    module = _Scores(_store(), _choose, R, fixed)
    module.forward = lambda x: _choose(module)[:, : x.shape[1], : x.shape[1]]
    return module


RANDOM_STATE = Exercise(
    key="03.4",
    title="heads that learn, heads that stay",
    name="RandomScores",
    minutes=15,
    level="medium",
    inputs=_state_inputs,
    returns=(
        "scores of both kinds, state of both kinds, scores of one head that stays, state of one head that stays, "
        "scores of one head that learns, state of one head that learns"
    ),
    right=(
        _kept(_store(), _choose),
        _kept(_keep_parts, _join_parts),
        _kept(_keep_head_by_head, _join_heads),
        _kept(_store(R=lambda R, fixed: R[~fixed]), _put_in),
    ),
    run=_state_run,
    trials=2,
    wrong=mistakes({
        STATE: {
            "R is a plain tensor: nobody saves, moves or trains it.":
                _kept(lambda module, R, fixed: setattr(module, "R", R)),
            "every head is trained, also those that should stay.": _kept(_store()),
            "every head is trained, in one parameter that shares its memory with the R that was given.":
                _kept(_store(R=lambda R, fixed: R)),
            "a buffer is what was given, R or fixed, and not a copy: whoever changes one changes the other.":
                _kept(_store(start=lambda m, value: m.register_buffer("start", value)), _choose),
            "the parameter, the buffer and the R that was given share their memory, so training moves all three.":
                _kept(_store(start=lambda m, value: m.register_buffer("start", value), R=lambda R, fixed: R), _choose),
            "no head is trained: R is a buffer as a whole, or something cuts its gradient off.":
                _kept(lambda module, R, fixed: module.register_buffer("R", R.clone())),
            "the heads that should stay get no gradient, but they are in a parameter, or share its memory, and weight "
            "decay moves them.":
                _kept(_store(), lambda module: torch.where(module.fixed[:, None, None], module.R.detach(), module.R)),
            "one head that stays keeps all heads from learning: requires_grad belongs to the whole parameter.":
                lambda R, fixed: _Scores(
                    _store(requires_grad=not fixed.any()), lambda module: module.R, R, fixed
                ),
            "fixed is taken the wrong way round: the heads that should stay are trained.":
                _kept(_store(mask=lambda m, value: m.register_buffer("fixed", ~value)), _choose),
            "the parameter shares its memory with the R that was given, and training changes both.":
                _kept(_store(R=lambda R, fixed: R), _choose),
            "the numbers are well kept, but the mask is a plain tensor: on a GPU it would stay behind.":
                _kept(_store(mask=_plain("fixed")), _choose),
            "the heads that stay are kept in a plain tensor: saving and moving lose them.":
                _kept(_store(start=_plain("start")), _choose),
            "a buffer is left out when the module is saved, or the module does not know the tensor.":
                _kept(_store(start=lambda m, value: m.register_buffer("start", value.clone(), False)), _choose),
            "the heads that learn start from zeros instead of R.":
                _kept(_store(R=lambda R, fixed: torch.zeros_like(R)), _choose),
            "the start is added to the parameter, so heads that learn begin with twice their numbers.":
                _kept(_store(), lambda module: module.start + module.R * ~module.fixed[:, None, None]),
            "the heads are in another order than in R: first those that learn, then those that stay.":
                _kept(_keep_parts, lambda module: torch.cat([module.learning, module.staying])),
            "the heads are in another order than in R: first those that stay, then those that learn.":
                _kept(_keep_parts, lambda module: torch.cat([module.staying, module.learning])),
        },
        SHORTER: {
            "the scores are not cut to the length of x.": _uncut,
        },
        MODULE: {
            "the first axis is missing: scores have 1 in the place of the batch.": _without_the_1,
        },
        TWICE: {
            "weights are stored instead of scores; they still go through a softmax.":
                lambda R, fixed: _Scores(_store(), _choose, R.softmax(dim=-1), fixed),
        },
    }),
)  # fmt: skip


# 03.5. Judged by counts that are 0 for every right answer. One pair of positions always changes places, and three more
# go round; of the others none, one, two or all keep their places. With one that stays there is no such map, and none
# for a single position. One shuffle is as long as the docstring allows.


def _shuffle_inputs(draw):
    stays, moves = draw.in_turn((
        (0, draw.integer(9, 12)),
        (1, draw.integer(5, 8)),
        (2, 98),
        (draw.integer(3, 5), 0),
        (1, 0),
    ))
    positions = draw.normal(stays + moves).argsort()
    order = torch.arange(stays + moves)
    for one in (positions[:moves][:2], positions[:moves][2:5], positions[:moves][5:]):
        order[one] = one.roll(-1)
    return {"order": order}


def _shuffle_run(answer, order):
    answer(order=order.flip(0))  # an answer that keeps this one for later shuffles of as many positions is found out
    scores, length = answer(order=order), len(order)
    if not isinstance(scores, torch.Tensor) or scores.shape != (length, length) or not scores.is_floating_point():
        kind = f"{scores.dtype} {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else kind_of(scores)
        return "None" if scores is None else kind, 0, 0, 0.9
    weights = scores.detach().softmax(dim=-1)
    strays = ~torch.isclose(weights, weights[order][:, order], atol=1e-9, rtol=1e-3)  # NaN is close to nothing
    largest = weights.amax(dim=-1).min().nan_to_num(-1.0).item()
    kind = f"scores, {scores.dtype} {tuple(scores.shape)}"
    return kind, int(strays.sum()), int((weights.diagonal() > 0.5).sum()), min(round(largest, 3), 0.9)


def _looking_at(places, gap=9.0):
    """Scores of a row for each of `places`, a position each."""
    return gap * torch.eye(len(places))[places]


def _backwards(order):
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return back


def _along(order, steps):
    places = torch.arange(len(order))
    for _ in range(steps):
        places = order[places]
    return places


def _following(places_of, gap=9.0):
    """An answer from places_of(order): where those look that move; those that stay look at one another."""

    def answer(order):
        stay = (order == torch.arange(len(order))).nonzero().flatten()
        places = places_of(order).clone()
        places[stay] = stay.roll(1)
        return None if len(stay) == 1 else _looking_at(places, gap)

    return answer


def _following_in_loops(order):
    order = order.tolist()
    stay = [position for position, place in enumerate(order) if position == place]
    if len(stay) == 1:
        return None
    scores = torch.full((len(order), len(order)), float("-inf"))
    for position, place in enumerate(order):
        scores[position, place if place != position else stay[stay.index(position) - 1]] = 0.0
    return scores


def _two_steps_where_that_is_not_home(order):
    return torch.where(_along(order, 2) == torch.arange(len(order)), order, _along(order, 2))


def _or_none(order, scores):
    return None if (order == torch.arange(len(order))).sum() == 1 else scores


FOLLOWING = Exercise(
    key="03.5",
    title="a map that follows one shuffle",
    name="following_scores",
    minutes=20,
    level="hard",
    inputs=_shuffle_inputs,
    returns=(
        "scores or None, how many weights keep the map from following the shuffle, "
        "how many rows look at themselves, the least of the largest weights (up to 0.9)"
    ),
    right=(
        _following(lambda order: order),
        _following(_backwards),
        _following_in_loops,
        _following(_two_steps_where_that_is_not_home),
    ),
    run=_shuffle_run,
    trials=5,
    wrong=mistakes({
        STILL: {
            "every position looks at itself. That follows any shuffle, but it is not allowed here.":
                lambda order: _or_none(order, _looking_at(torch.arange(len(order)))),
            "every row is uniform. That follows any shuffle, but no weight is large.":
                lambda order: _or_none(order, torch.zeros(len(order), len(order))),
            "each position looks at its neighbour, whatever the shuffle is.":
                lambda order: _looking_at(torch.arange(len(order)).roll(1)),
            "the map reverses the text, whatever the shuffle is.":
                lambda order: _looking_at(torch.arange(len(order)).flip(0)),
            "all positions look at the same one; after the shuffle another token stands there.":
                lambda order: _looking_at(torch.zeros_like(order)),
            "each position looks where the shuffle sends it, and one that stays looks at itself.":
                lambda order: _looking_at(order),
            "one that stays looks at itself. Where it is alone there is no map, but where more of them stay there is.":
                lambda order: _or_none(order, _looking_at(order)),
            "it gives up wherever a position stays. Where several stay, there is a map.":
                lambda order: None if (order == torch.arange(len(order))).any() else _looking_at(order),
            "it gives scores also where one position alone stays. At whom could that one look?":
                lambda order: (
                    _looking_at(order.roll(1)) if _following_in_loops(order) is None else _following_in_loops(order)
                ),
            "None is returned for every shuffle.": lambda order: None,
            "a position that stays looks at one that moves; after the shuffle another token stands there.":
                lambda order: _or_none(
                    order, _looking_at(torch.where(order == torch.arange(len(order)), order.roll(1), order))
                ),
            "each position looks two places on along the shuffle, and where two change places, that is back home.":
                _following(lambda order: _along(order, 2)),
            "each position looks three places on along the shuffle, and where three go round, that is back home.":
                _following(lambda order: _along(order, 3)),
            "the map itself follows, but the weight is shared by two ways, so none is large enough.":
                lambda order: _or_none(order, _looking_at(order) + _looking_at(torch.arange(len(order)))),
        },
        TWICE: {
            "these are weights, ones and zeros. They still go through a softmax, which flattens them.":
                _following(lambda order: order, gap=1.0),
        },
        GAP: {
            "the right places get the least instead of the most: the sign of the gap.":
                _following(lambda order: order, gap=-9.0),
            "the gap is enough for a weight of 0.9 among a few positions. How many are there?":
                _following(lambda order: order, gap=5.0),
        },
        EQUATION: {
            "the position itself is returned for each row; a row of scores has a number for every key.":
                lambda order: order.float(),
        },
    }),
)  # fmt: skip


EXERCISES = [NEWEST_TOKENS, SHIFT_SCORES, LEAST_STEPS, RANDOM_STATE, FOLLOWING]
