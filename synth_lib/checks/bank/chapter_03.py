"""The exercises of chapter 03, Random: equation (4) of arXiv 2005.00743, the start of R, and its learning rate."""

from math import ceil, exp, floor, log, sqrt

import torch
from einops import einsum
from torch import nn

from synth_lib.checks.exercise import Exercise, Reads, mistakes
from synth_lib.lab.starts import shifted_scores
from synth_lib.scores import Random

EQUATION = "The equation"
LOOPS = "Loops say the equation aloud"
HEADS = "Heads, a batch, and named axes"
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


# 03.1. Fewer sentences than heads, so that an R cut to the size of the batch runs.


def _attention_inputs(draw):
    sizes = draw.sizes("batch head length max_length d_head", high=8)
    batch, head = sorted((sizes["batch"], sizes["head"]))
    length, max_length = sorted((sizes["length"], sizes["max_length"]))
    return {
        "R": draw.normal(head, max_length, max_length),
        "value": draw.normal(batch, head, length, sizes["d_head"]),
    }


def _cut(R, value):
    length = value.shape[2]
    return R[:, :length, :length]


def _attention_matmul(R, value):
    return _cut(R, value).softmax(dim=-1) @ value


def _attention_einsum(R, value):
    weights = torch.softmax(_cut(R, value), dim=2)
    return einsum(weights, value, "head query key, batch head key d_head -> batch head query d_head")


def _attention_in_loops(R, value):
    batch, head, length, _ = value.shape
    y = torch.zeros_like(value)
    for b in range(batch):
        for h in range(head):
            for i in range(length):
                total = sum(exp(R[h, i, j]) for j in range(length))
                for j in range(length):
                    y[b, h, i] += exp(R[h, i, j]) / total * value[b, h, j]
    return y


def _attention_masked(R, value):
    length = value.shape[2]
    outside = torch.arange(R.shape[-1]) >= length
    return R.masked_fill(outside, float("-inf")).softmax(dim=-1)[:, :length, :length] @ value


def _attention_zero_scores(R, value):
    length = value.shape[2]
    outside = torch.arange(R.shape[-1]) >= length
    return R.masked_fill(outside, 0.0).softmax(dim=-1)[:, :length, :length] @ value


def _attention_cut_after(R, value):
    length = value.shape[2]
    return R.softmax(dim=-1)[:, :length, :length] @ value


def _attention_last_block(R, value):
    length = value.shape[2]
    return R[:, -length:, -length:].softmax(dim=-1) @ value


def _attention_without_exp(R, value):
    scores = _cut(R, value)
    return scores / scores.sum(dim=-1, keepdim=True) @ value


RANDOM_ATTENTION = Exercise(
    key="03.1",
    title="the average, from R to the result",
    name="random_attention",
    minutes=10,
    level="easy",
    inputs=_attention_inputs,
    returns="batch head query d_head",
    properties=(Reads("value", 0, 0, "sentence"), Reads("value", 1, 1, "head"), Reads("R", 0, 1, "head")),
    right=(_attention_matmul, _attention_einsum, _attention_in_loops, _attention_masked),
    wrong=mistakes({
        EQUATION: {
            "the softmax is missing: scores are used as if they were weights, and rows do not sum to 1.":
                lambda R, value: _cut(R, value) @ value,
            "the scores are divided by the root of d_head, as for the dot product; equation (4) is not.":
                lambda R, value: (_cut(R, value) / sqrt(value.shape[-1])).softmax(dim=-1) @ value,
            "this is the attention map; the exercise asks for the average that it makes of the values.":
                lambda R, value: _cut(R, value).softmax(dim=-1),
            "every token gets the plain average, whatever R says.":
                lambda R, value: value.mean(dim=2, keepdim=True).expand_as(value),
        },
        SHORTER: {
            "the map is cut after the softmax, so its rows sum to less than 1.": _attention_cut_after,
            "the scores of the positions outside are set to 0, and a score of 0 still gets a share.":
                _attention_zero_scores,
            "the queries are not cut: there are as many rows as in R, and the sentences have fewer positions.":
                lambda R, value: R[:, :, : value.shape[2]].softmax(dim=-1) @ value,
            "it uses the last rows and columns of R. Where do sentences start?": _attention_last_block,
        },
        LOOPS: {
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                lambda R, value: _cut(R, value).softmax(dim=1) @ value,
            "the softmax runs over a whole map, so all rows together sum to 1.":
                lambda R, value: _cut(R, value).flatten(1).softmax(dim=1).view_as(_cut(R, value)) @ value,
            "the scores are divided by their sum as they are; the softmax first makes each one positive.":
                _attention_without_exp,
            "queries and keys are swapped in the map: a row should belong to a token that attends.":
                lambda R, value: _cut(R, value).softmax(dim=-1).transpose(1, 2) @ value,
            "queries and keys are swapped in R, before the softmax.":
                lambda R, value: _cut(R, value).transpose(1, 2).softmax(dim=-1) @ value,
            "only the last key is left; each term of the sum replaces the one before instead of being added.":
                lambda R, value: _cut(R, value).softmax(dim=-1)[..., -1:] * value[:, :, -1:],
        },
        HEADS: {
            "the softmax runs along the heads, so one head takes weight from another.":
                lambda R, value: _cut(R, value).softmax(dim=0) @ value,
            "all heads use the map of head 0.": lambda R, value: _cut(R, value)[0].softmax(dim=-1) @ value,
            "the scores of the heads are averaged; each head should keep a map of its own.":
                lambda R, value: _cut(R, value).mean(dim=0).softmax(dim=-1) @ value,
            "the maps of the heads are averaged; each head should keep its own.":
                lambda R, value: _cut(R, value).softmax(dim=-1).mean(dim=0) @ value,
            "the results of the heads are added up; each should stay apart.":
                lambda R, value: (_cut(R, value).softmax(dim=-1) @ value).sum(dim=1),
            "every token gets its own value back. In an einsum, one wrong name does that.":
                lambda R, value: value.clone(),
        },
        TWICE: {
            "there are two softmaxes, and the second takes weights for scores.":
                lambda R, value: _cut(R, value).softmax(dim=-1).softmax(dim=-1) @ value,
        },
        BATCH_AXIS: {
            "the first axis of R is taken for the batch: every sentence has a map of its own, and the heads share it.":
                lambda R, value: _cut(R, value)[: len(value), None].softmax(dim=-1) @ value,
        },
    }),
)  # fmt: skip


# 03.2. What counts is the map, so the answers are compared after the softmax: scores may differ by a constant a row.


def _shift_inputs(draw):
    length = draw.integer(5, 9)
    offset = draw.integer(1, length - 3) * draw.in_turn((1, -1))
    return {"length": length, "offset": offset, "error": draw.integer(3, 12) / 100}


def _shift_run(answer, length, offset, error):
    """The three maps, so that both directions and the identity are asked for in every trial."""
    maps = []
    for positions in (offset, -offset, 0):
        scores = answer(length=length, offset=positions, error=error)
        is_table = isinstance(scores, torch.Tensor) and scores.is_floating_point() and scores.dim() > 0
        maps.append(scores.softmax(dim=-1) if is_table else scores)
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
        "the map after the softmax for the offset 0"
    ),
    forbidden=(shifted_scores,),
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
                lambda length, offset, error: _diagonal(length, offset, log((1 - (length - 1) * error) / error)),
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
        },
        SHIFTS: {
            "it shifts in the wrong direction; or rows and columns are swapped, which is the same here.":
                lambda length, offset, error: _shift_diagonal(length, -offset, error),
            "the sign of the offset is lost.":
                lambda length, offset, error: _shift_diagonal(length, abs(offset), error),
            "the other scores are minus infinity: no error is left, and rows without a wanted key are NaN.":
                _shift_with_infinity,
            "it wraps around: rows whose key would lie outside look at the other end of the sentence.": _shift_rolled,
            "position 0 is never looked at; it lies inside the sentence.": _shift_never_position_0,
            "looking back wraps around: a negative index is the other end of the sentence, not outside of it.":
                _shift_negative_index,
            "rows whose key would lie outside look at the last position inside; they should be uniform.":
                _shift_clamped,
            "the offset is not used: every position looks at itself.":
                lambda length, offset, error: _diagonal(length, 0, _gap(length, error)),
        },
    }),
)  # fmt: skip


# 03.3. The exact number of steps is well above a whole one, so that rounding to the nearest is rounding down.


def _gap_of(weight):
    """The gap up to log(length - 1), which is the same at the start and at the end."""
    return log(weight / (1 - weight))


def _exact_steps(start, weight, learning_rate, factor):
    return (_gap_of(weight) - _gap_of(start)) / (2 * learning_rate * factor)


def _steps_inputs(draw):
    while True:
        inputs = {
            "start": draw.integer(3, 30) / 100,
            "weight": draw.integer(55, 97) / 100,
            "learning_rate": draw.integer(2, 9) / 1000,
            "factor": draw.integer(3, 12),
        }
        exact = _exact_steps(**inputs)
        if 0.15 < exact % 1 < 0.4 and exact > 40:  # of few steps, two mistakes can be the same whole number
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
    steps = 0
    while (scores + steps * learning_rate * factor * directions).softmax(dim=0)[0] < weight:
        steps += 1
    return steps


LEAST_STEPS = Exercise(
    key="03.3",
    title="how many steps at least",
    name="steps_needed",
    minutes=10,
    level="medium",
    inputs=_steps_inputs,
    returns="a whole number",
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
        },
        STEP: {
            "it lets the weight move by the learning rate. What Adam moves are the scores.":
                lambda start, weight, learning_rate, factor: ceil((weight - start) / (learning_rate * factor)),
            "it lets the weights move by the learning rate. What Adam moves are the scores before the softmax.":
                lambda start, weight, learning_rate, factor: ceil((weight - start) / (2 * learning_rate * factor)),
        },
    }),
)  # fmt: skip


# 03.4. The same questions are put to both kinds, and answered in words, so that a message can say which one failed.


def _state_inputs(draw):
    sizes = draw.sizes("head length")
    return {"R": draw.normal(sizes["head"], sizes["length"], sizes["length"]), "fixed": (False, True)}


def _state_run(answer, R, fixed):
    """For the trained and the fixed R: the scores, and a line about the state."""
    report = []
    for is_fixed in fixed:
        module, converted, moved = (answer(R=R.clone(), fixed=is_fixed) for _ in range(3))
        scores = module(torch.ones(2, R.shape[-1] - 1, 5))
        if scores.requires_grad:
            scores.square().sum().backward()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        state = {
            "saved": "R" in module.state_dict(),
            "converted": converted.double().R.dtype == torch.float64,
            "moved": moved.to("meta").R.device.type == "meta",
            "gets a gradient": module.R.is_leaf and module.R.grad is not None,
            "reached by an optimizer": any(parameter is module.R for parameter in trained),
            "no other parameter is trained": all(parameter is module.R for parameter in trained),
        }
        answers = ", ".join(f"{question}: {'yes' if is_so else 'no'}" for question, is_so in state.items())
        report += [scores.detach(), answers]
    return tuple(report)


class _Scores(nn.Module):
    """What every answer to 03.4 shares: the forward pass that the chapter gives."""

    def forward(self, x):
        length = x.shape[1]
        return self.R[None, :, :length, :length]


def _state(register):
    """An answer from a function (module, R, fixed) that stores R in the module."""

    def answer(R, fixed):
        module = _Scores()
        register(module, R, fixed)
        return module

    return answer


def _store_parameter(module, R, requires_grad=True):
    module.R = nn.Parameter(R, requires_grad=requires_grad)


def _store_tensor(module, R):
    module.R = R


def _state_registered(R, fixed):
    module = _Scores()
    if fixed:
        module.register_buffer("R", R)
    else:
        module.register_parameter("R", nn.Parameter(R))
    return module


def _state_frozen(R, fixed):
    module = _Scores()
    module.R = nn.Parameter(R, requires_grad=not fixed)
    return module


def _state_by_kind(R, fixed):
    module = _Scores()
    module.R = nn.Buffer(R) if fixed else nn.Parameter(R)
    return module


def _only_trained(module, R, fixed):
    if fixed:
        module.R = R
    else:
        module.R = nn.Parameter(R)


def _only_fixed(module, R, fixed):
    if fixed:
        module.register_buffer("R", R)
    else:
        module.R = R


def _spare_when_fixed(module, R, fixed):
    module.P = nn.Parameter(R)
    if fixed:
        module.register_buffer("R", R)
    else:
        module.R = module.P


def _spare_in_both(module, R, fixed):
    module.P = nn.Parameter(R.clone())
    _state_into(module, R, fixed)


def _state_into(module, R, fixed):
    if fixed:
        module.register_buffer("R", R)
    else:
        module.R = nn.Parameter(R)


def _not_persistent(module, R, fixed):
    if fixed:
        module.register_buffer("R", R, persistent=False)
    else:
        module.R = nn.Parameter(R)


def _swapped(module, R, fixed):
    if fixed:
        module.R = nn.Parameter(R)
    else:
        module.register_buffer("R", R)


RANDOM_STATE = Exercise(
    key="03.4",
    title="a module that keeps its R",
    name="RandomScores",
    minutes=10,
    level="medium",
    inputs=_state_inputs,
    returns="scores of the trained R, state of the trained R, scores of the fixed R, state of the fixed R",
    forbidden=(Random,),
    right=(_state_registered, _state_frozen, _state_by_kind),
    run=_state_run,
    wrong=mistakes({
        STATE: {
            "R is a plain tensor in both kinds: nobody saves, moves or trains it.":
                _state(lambda module, R, fixed: _store_tensor(module, R)),
            "R gets a gradient where it should, but the module does not know it: it is still a plain tensor.":
                _state(lambda module, R, fixed: _store_tensor(module, R.requires_grad_(not fixed))),
            "R is trained in both kinds; fixed is not used.":
                _state(lambda module, R, fixed: _store_parameter(module, R)),
            "R is kept well, but it is never trained: no optimizer reaches it in either kind.":
                _state(lambda module, R, fixed: module.register_buffer("R", R)),
            "R is a buffer with a gradient: module.parameters does not list it, so no optimizer gets it.":
                _state(lambda module, R, fixed: module.register_buffer("R", R.requires_grad_(not fixed))),
            "R is kept well, but a second parameter is made even when R is fixed, and training moves that one.":
                _state(_spare_when_fixed),
            "R is kept well, but each kind has a second parameter that is trained and that nothing uses.":
                _state(_spare_in_both),
            "the two kinds are swapped: R is trained when it should be fixed.": _state(_swapped),
            "the trained R is well kept, but the fixed one is a plain tensor: it is lost on saving and moving.":
                _state(_only_trained),
            "the fixed R is well kept, but the trained one is a plain tensor.": _state(_only_fixed),
            "the fixed R is a buffer that is left out of saving.": _state(_not_persistent),
            "R is kept well, but its numbers are lost: zeros are stored.":
                _state(lambda module, R, fixed: _store_parameter(module, torch.zeros_like(R), requires_grad=not fixed)),
        },
        TWICE: {
            "weights are stored instead of scores; they still go through a softmax.":
                _state(lambda module, R, fixed: _store_parameter(module, R.softmax(dim=-1), requires_grad=not fixed)),
        },
    }),
)  # fmt: skip


EXERCISES = [RANDOM_ATTENTION, SHIFT_SCORES, LEAST_STEPS, RANDOM_STATE]
