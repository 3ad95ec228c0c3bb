"""The exercises of chapter 06: mixtures, equations (8) and (9), and Table 1 of arXiv 2005.00743."""

from functools import cache
from math import isqrt, prod

import torch

from synth_lib.checks.compare import kind_of, plain_copy
from synth_lib.checks.exercise import Exercise, RowsSumTo1, mistakes
from synth_lib.scores import make_score

EQUATIONS = "The equations"
LOGITS = "Logits: alphas that stay on the simplex"
SUM = "One sum of tables"
INSIDE = "Inside the softmax, not after it"
LIMIT = "One logit far away"
LITERAL = "What (9) without alphas changes"
ANY = "Any number of parts"
READS = "Conditioned on, sample, interacts"
MOVES = "What moves when one token changes"
PARAMETERS = "Parameters by formula and by count"
TABLE = "Table 1 as a program"
CELLS = "Cell by cell with the paper"
LISTING = "The parameters: which formula fits, and is it the paper's?"
EXERCISE_MIX = "Exercise 06.1: mix maps inside one softmax"
EXERCISE_ROW = "Exercise 06.2: the row of any score function"
EXERCISE_LENGTH = "Exercise 06.3: the longest sentence that a budget allows"
EXERCISE_WIDTH = "Exercise 06.4: how wide is the hidden layer?"
EXERCISE_NOBODY = "Stretch 06.5: the position that nobody wants"


# 06.1. As many keys as queries, so that a sum along the queries fits. One part is shared by the batch. Parts forbid
# positions, and one row is forbidden whole by two of them together. In the row before it the two parts with the
# largest alphas all but insist on different positions, so that the products sum to far less than 0.000001: a floor
# under that sum is found out. In turn the batch, the heads and no axis are 1, and there are three parts, two and five,
# of which one has an alpha of nearly 0. Then comes one part alone with one number, one with three, and last two parts
# with large logits and with more keys than queries: one part forbids a whole row by itself, and in another row the two
# disagree so much that no floor above 1e-15 is low enough.


def _mixed_inputs(draw):
    kinds = [_mixed_of_many] * 3 + [_mixed_of_one] * 2 + [_mixed_far_apart]
    return draw.in_turn(kinds)(draw)


def _mixed_of_one(draw):
    return {"maps": [draw.normal(1, 1, 1, draw.in_turn([1, 3])).softmax(dim=-1)], "logits": draw.normal(1)}


def _mixed_far_apart(draw):
    scores = [draw.normal(1, 2, 3, 6), draw.normal(4, 2, 3, 6)]
    scores[0][:, :, 0], scores[1][:, :, 0] = draw.normal(6), draw.normal(6)
    scores[0][:, :, 0, 1] = scores[1][:, :, 0, 4] = 72.0  # the largest product is below exp(-32)
    maps = [score.softmax(dim=-1) for score in scores]
    maps[0][:, :, -1] = 0.0
    return {"maps": maps, "logits": 100 + 0.05 * draw.normal(2)}


def _mixed_of_many(draw):
    sizes = draw.sizes("batch head", low=2, high=5)
    one, number = draw.in_turn([("batch", 3), ("head", 2), ("nothing", 5), None, None, None])
    sizes[one] = 1
    length = draw.integer(6, 8) if number < 5 else 8  # in all rows but one, some positions are left
    shared = draw.integer(0, number - 2)  # not the last one: its shape would betray a loop that keeps only that
    scores = [
        draw.normal(1 if n == shared else sizes["batch"], sizes["head"], length, length) for n in range(number)
    ]
    rows = torch.arange((length + 1) // 2)  # in the others nothing is forbidden
    for n, score in enumerate(scores):
        score[:, :, rows, (rows + n) % length] = float("-inf")
    scores[0][:, :, -1, 1:] = float("-inf")  # the last row: part 0 sees position 0 alone, and part 1 forbids it
    scores[0][:, :, -1, 0] = 1.0
    scores[1][:, :, -1, 0] = float("-inf")
    logits = draw.normal(number)
    while (second := logits.softmax(dim=0).sort().values[-2].item()) < 0.32:  # no weight and no product becomes 0
        logits = draw.normal(number)
    if number == 5:
        logits[logits.argmin()] -= 12
    for score in scores:
        score[:, :, -2] *= 0.1
    for n in logits.topk(2).indices.tolist():
        scores[n][:, :, -2, n] = 17 / second  # the largest product is below exp(-17)
    return {"maps": [score.softmax(dim=-1) for score in scores], "logits": logits}


def _mix(scores, alphas):
    return sum(alpha * score for alpha, score in zip(alphas, scores, strict=True))


def _logarithms(maps):
    return [weights.log() for weights in maps]


def _map_of(mixed, dim=-1):
    return mixed.softmax(dim=dim).nan_to_num(0.0)


def _mixed_product(maps, logits, floor=1e-30, added=0.0):
    total = 1
    for alpha, weights in zip(logits.softmax(dim=0), maps, strict=True):
        total = total * weights**alpha
    return total / (total.sum(dim=-1, keepdim=True).clamp(min=floor) + added)


def _mixed_logarithms(maps, logits):
    return _map_of(_mix(_logarithms(maps), logits.softmax(dim=0)))


def _mixed_stack(maps, logits):
    stacked = torch.stack(torch.broadcast_tensors(*maps), dim=-1)
    forbidden = (stacked == 0).any(dim=-1)
    powers = (logits - logits.max()).exp()
    mixed = stacked.clamp(min=1e-37).log() @ (powers / powers.sum())
    return mixed.masked_fill(forbidden, -1e9).softmax(dim=-1) * ~forbidden


def _mixed_two_then_more(maps, logits):
    alphas = logits.softmax(dim=0)
    mixed = alphas[0] * maps[0].log() + alphas[1] * maps[1].log()
    return _map_of(mixed + _mix(_logarithms(maps[2:]), alphas[2:]))


def _mixed_without_forbidden_rows(maps, logits):
    maps = [torch.where((weights == 0).all(dim=-1, keepdim=True), 1.0, weights) for weights in maps]
    return _mixed_product(maps, logits)


def _mixed_from(smallest):
    """Weights below `smallest` count as that; what is forbidden stays so."""

    def mixed(maps, logits):
        stacked = torch.stack(torch.broadcast_tensors(*maps), dim=-1)
        scores = stacked.clamp(min=smallest).log() @ logits.softmax(dim=0)
        return _map_of(scores.masked_fill((stacked == 0).any(dim=-1), float("-inf")))

    return mixed


def _mixed_with(alphas):
    return lambda maps, logits: _map_of(_mix(_logarithms(maps), alphas(logits)))


MIXED_MAP = Exercise(
    key="06.1",
    title="mix maps inside one softmax",
    name="mixed_map",
    minutes=20,
    level="medium",
    inputs=_mixed_inputs,
    trials=6,
    returns="batch head query key",
    properties=(RowsSumTo1(),),
    right=(_mixed_product, _mixed_logarithms, _mixed_stack),
    wrong=mistakes({
        INSIDE: {
            "the maps are averaged: each part has gone through a softmax of its own, and they are mixed after it.":
                lambda maps, logits: _mix(maps, logits.softmax(dim=0)),
            "the maps are mixed as if they were scores, and go through a second softmax.":
                lambda maps, logits: _mix(maps, logits.softmax(dim=0)).softmax(dim=-1),
            "each row is not yet divided by its sum.":
                lambda maps, logits: _mix(_logarithms(maps), logits.softmax(dim=0)).exp(),
            "a small number stands in for a weight of 0, which lets forbidden positions back in.":
                lambda maps, logits: _map_of(_mix([(weights + 1e-9).log() for weights in maps], logits.softmax(dim=0))),
            "minus infinity is replaced by 0, which is the logarithm of a weight of 1, not of 0.":
                lambda maps, logits: _map_of(
                    _mix([weights.log().nan_to_num(neginf=0.0) for weights in maps], logits.softmax(dim=0))
                ),
        },
        LOGITS: {
            "the logits themselves are used as alphas, so they do not sum to 1.": _mixed_with(lambda logits: logits),
            "each logit goes through a sigmoid of its own, so the alphas do not sum to 1.": _mixed_with(torch.sigmoid),
            "the alphas sum to 1, but they come from sigmoids and not from a softmax over the logits.":
                _mixed_with(lambda logits: logits.sigmoid() / logits.sigmoid().sum()),
            "the logits are only divided by their sum; an alpha must not be negative.":
                _mixed_with(lambda logits: logits / logits.sum()),
            "the alphas are absolute values divided by their sum, not a softmax over the logits.":
                _mixed_with(lambda logits: logits.abs() / logits.abs().sum()),
            "the alphas are exponentials that are not divided by their sum.": _mixed_with(torch.exp),
            "the logits go through two softmaxes before they become alphas.":
                _mixed_with(lambda logits: logits.softmax(dim=0).softmax(dim=0)),
            "the powers of e of large logits are infinite, and infinite by infinite is NaN.":
                _mixed_with(lambda logits: logits.exp() / logits.exp().sum()),
            "every part gets the same alpha, and the logits are not used.":
                _mixed_with(lambda logits: torch.ones(len(logits)) / len(logits)),
        },
        LITERAL: {
            "the parts are added without alphas: no logit is used, or all cancel when a row is divided by its sum.":
                _mixed_with(lambda logits: torch.ones(len(logits))),
        },
        SUM: {
            "the mixed scores are divided by the number of parts once more: a mean where a sum should be.":
                _mixed_with(lambda logits: logits.softmax(dim=0) / len(logits)),
            "the alphas meet the parts in the opposite order.":
                _mixed_with(lambda logits: logits.softmax(dim=0).flip(0)),
            "only the last part is left: does your loop add, or does it overwrite?":
                lambda maps, logits: _map_of(logits.softmax(dim=0)[-1] * maps[-1].log()),
        },
        LIMIT: {
            "only the part with the largest logit is used.":
                lambda maps, logits: maps[int(logits.argmax())].expand_as(sum(maps)).clone(),
        },
        EQUATIONS: {
            "these are mixed scores; the softmax along the keys is missing.":
                lambda maps, logits: _mix(_logarithms(maps), logits.softmax(dim=0)),
            "the columns sum to 1, not the rows: the softmax, or the sum that you divide by, runs along the queries.":
                lambda maps, logits: _map_of(_mix(_logarithms(maps), logits.softmax(dim=0)), dim=2),
            "the heads sum to 1, not the rows: the softmax, or the sum that you divide by, runs along the heads.":
                lambda maps, logits: _map_of(_mix(_logarithms(maps), logits.softmax(dim=0)), dim=1),
            "the sentences sum to 1, not the rows: the softmax, or the sum that you divide by, runs along the batch.":
                lambda maps, logits: _map_of(_mix(_logarithms(maps), logits.softmax(dim=0)), dim=0),
        },
        EXERCISE_MIX: {
            "a row in which everything is forbidden is NaN.":
                lambda maps, logits: _mix(_logarithms(maps), logits.softmax(dim=0)).softmax(dim=-1),
            "a row in which everything is forbidden gets equal weights.":
                lambda maps, logits: _mix(_logarithms(maps), logits.softmax(dim=0)).clamp(min=-1e9).softmax(dim=-1),
            "the sum of a row is kept from falling below 0.001, but products can be smaller where parts disagree.":
                lambda maps, logits: _mixed_product(maps, logits, floor=1e-3),
            "the sum of a row is kept from falling below 0.000001, but products can be smaller where parts disagree.":
                lambda maps, logits: _mixed_product(maps, logits, floor=1e-6),
            "0.000001 is added to the sum of a row; where parts disagree, the sum itself can be smaller than that.":
                lambda maps, logits: _mixed_product(maps, logits, added=1e-6),
            "the sum of a row is kept from falling below 1e-12 (or that is added to it); where parts disagree, it can "
            "be smaller.":
                lambda maps, logits: _mixed_product(maps, logits, floor=1e-12),
            "a weight below 1e-12 is taken for 1e-12; a small weight is still a weight of its own.":
                _mixed_from(1e-12),
            "a row that one part forbids whole counts as if that part said nothing; it stays forbidden.":
                _mixed_without_forbidden_rows,
            "axes of size 1 are gone: squeeze also removes the batch of one, the only head, or the only position.":
                lambda maps, logits: _mixed_product(maps, logits).squeeze(),
            "the map is given as many keys as queries; it may have more.":
                lambda maps, logits: _mixed_product(maps, logits)[..., : maps[0].shape[2]],
        },
    }) + mistakes({
        ANY: {
            "it takes two parts for granted; there may be one alone.": _mixed_two_then_more,
        },
    }, error=IndexError),
)  # fmt: skip


# 06.2. Each score function closes one way out: a reader who looks at one head, one row, one number or one direction,
# who differentiates, or who changes a token in a way that the function cannot see, finds nothing where there is
# something.
# Their parameters depend on the sizes alone. The two sentences begin with the same token.


@cache
def _fixed(*shape):
    """Numbers between -1 and 1 without a pattern."""
    return torch.sin(1.7 * torch.arange(prod(shape), dtype=torch.float32) ** 1.3 + 0.5).reshape(shape)


def _one_head(scores):
    return scores[:, None]


def _every_key(numbers):
    """One number for each query, "batch query", becomes two heads of scores with all keys alike."""
    return numbers[:, None, :, None].expand(-1, 2, -1, numbers.shape[1])


def _dot_product(x):
    d_model = x.shape[-1]
    return _one_head((x @ _fixed(d_model, d_model)) @ x.transpose(1, 2))


def _dense(x):
    length, d_model = x.shape[1:]
    return _one_head((x @ _fixed(d_model, d_model)).tanh() @ _fixed(d_model, length))


def _random(x):
    return _fixed(1, 2, x.shape[1], x.shape[1]).clone()  # an answer may write into its scores


def _random_copied(x):
    return _random(x).repeat(len(x), 1, 1, 1)


def _random_and_dense(x):
    return 0.5 * _random(x) + 0.5 * _dense(x)


def _last_head_dense(x):
    return torch.cat([_random_copied(x), _dense(x)], dim=1)


def _left_neighbour(x):
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    return _dense(before)


def _pair(x, row, token):
    """Scores in which one row reads one token, and nothing else reads anything."""
    scores = _random_copied(x).clone()
    scores[:, :, row] = scores[:, :, row] + _dense(x)[:, :, token]
    return scores


def _last_row_reads_first_token(x):
    return _pair(x, -1, 0)


def _first_row_reads_last_token(x):
    return _pair(x, 0, -1)


def _first_row_reads_token_1(x):
    return _pair(x, 0, 1)


def _first_row_reads_token_2(x):
    return _pair(x, 0, 2)


def _last_row_reads_itself(x):
    return _pair(x, -1, -1)


def _first_number(x):
    return _every_key(x[..., 0])


def _last_number(x):
    return _every_key(x[..., -1])


def _middle_number(x):
    return _every_key(x[..., x.shape[-1] // 2])


def _changes_cancel(x):
    numbers = _every_key(x.sum(dim=-1))
    signs = torch.zeros(x.shape[1])
    signs[0], signs[1] = 1, -1
    return numbers * signs


def _only_key_1(x):
    return _every_key(x.sum(dim=-1)) * (torch.arange(x.shape[1]) == 1)


def _only_last_key(x):
    return _every_key(x.sum(dim=-1)) * (torch.arange(x.shape[1]) == x.shape[1] - 1)


def _only_diagonal(x):
    return _every_key(x.sum(dim=-1)) * torch.eye(x.shape[1])


def _only_up(x):
    return _every_key(x.sum(dim=-1))


def _only_down(x):
    return _every_key(-x.sum(dim=-1))


def _sentence_up(x):
    return _every_key(x.sum(dim=(1, 2))[:, None].expand(-1, x.shape[1]))


def _sentence_down(x):
    return -_sentence_up(x)


def _quiet(x):
    return _random(x) + 0.001 * _dense(x)


def _trembling(x):
    return _random(x) + _every_key(0.02 * torch.sin(50 * x.sum(dim=-1)))


def _rounding(x):
    return _random(x) + 1e-7 * _dense(x)


def _token_0_alone(x):
    return _every_key(x[:, :1].sum(dim=-1).expand(-1, x.shape[1]))


def _bounded(x):
    """Eight heads of numbers between -1 and 1, of which a change by about 1 always moves some, all keys alike."""
    numbers = torch.tanh(x @ _fixed(x.shape[-1], 8)).transpose(1, 2)
    return numbers[..., None].expand(-1, -1, -1, x.shape[1])


def _odd(x):
    """Many heads of zeros and ones, all keys alike: a change by about 1 moves some of them, and each by 1."""
    numbers = torch.floor(3 * x @ _fixed(x.shape[-1], 32)).remainder(2).transpose(1, 2)
    return numbers[..., None].expand(-1, -1, -1, x.shape[1])


def _above_the_limit(x):
    return _random(x).repeat(1, 16, 1, 1) + 1.4e-5 * _odd(x)


def _well_above_the_limit(x):
    return _random(x).repeat(1, 16, 1, 1) + 3e-4 * _odd(x)


def _above_the_limit_on_large_scores(x):
    return 20 + _random(x).repeat(1, 4, 1, 1) + 6e-5 * _bounded(x)


def _below_the_limit(x):
    return _random(x).repeat(1, 16, 1, 1) + 8e-6 * _odd(x)


def _adds_up_from_below_the_limit(x):
    """No token alone moves a score by enough; several together do, as in another sentence."""
    together = _odd(x).sum(dim=2, keepdim=True).expand(-1, -1, x.shape[1], -1)
    return _random(x).repeat(1, 16, 1, 1) + 8e-6 * together


def _two_entries(x):
    """Many heads, and two numbers of them move, a little; one alone would stay with a new token of the same sum."""
    scores = _random(x).repeat(len(x), 32, 1, 1)
    scores[:, 5, 1, 2] += 3e-4 * x[:, 1].sum(dim=-1)
    scores[:, 5, 1, 3] += 3e-4 * x[:, 1, 0]
    return scores


def _rounded_dot_product(x):
    return _dot_product(x).mul(2).round()


def _rounded_dense(x):
    return (4 * _dense(x)).floor()


def _detached(x):
    return _dot_product(x.detach())


def _highest_key(x):
    """1 for the key with the highest score, 0 for the others, in eight heads."""
    d_model = x.shape[-1]
    turned = torch.einsum("bid,hde->bhie", x, _fixed(8, d_model, d_model))
    scores = turned @ x[:, None].transpose(2, 3)
    return torch.nn.functional.one_hot(scores.argmax(dim=-1), x.shape[1]).to(x.dtype)


def _behind_a_layer_norm(x):
    return _dot_product(torch.nn.functional.layer_norm(x, x.shape[-1:]))


def _behind_a_rounded_layer_norm(x):
    return _dot_product(torch.nn.functional.layer_norm(x, x.shape[-1:]).round(decimals=1))


def _squares_behind_a_layer_norm(x):
    return _dense(torch.nn.functional.layer_norm(x, x.shape[-1:]).square())


def _differences_of_the_numbers(x):
    return _every_key((x.diff(dim=-1) * torch.arange(1, x.shape[-1])).sum(dim=-1))


def _differences_of_the_tokens(x):
    return _every_key((x - x.roll(1, dims=1)).sum(dim=-1))


def _direction_alone(x):
    return _dense(torch.nn.functional.normalize(x, dim=-1))


def _size_alone(x):
    return _every_key(x.norm(dim=-1))


FAMILY = (
    _dot_product, _dense, _random, _random_copied, _random_and_dense, _last_head_dense, _left_neighbour,
    _last_row_reads_first_token, _first_row_reads_last_token, _first_row_reads_token_1, _first_row_reads_token_2,
    _last_row_reads_itself, _last_number, _first_number, _middle_number,
    _changes_cancel, _only_key_1, _only_last_key, _only_diagonal, _only_up, _only_down, _sentence_up, _sentence_down,
    _quiet, _trembling, _rounding, _token_0_alone, _above_the_limit, _well_above_the_limit,
    _above_the_limit_on_large_scores, _below_the_limit, _two_entries, _rounded_dot_product, _rounded_dense, _detached,
    _highest_key, _behind_a_layer_norm, _behind_a_rounded_layer_norm, _squares_behind_a_layer_norm,
    _differences_of_the_numbers, _differences_of_the_tokens, _direction_alone, _size_alone,
    _adds_up_from_below_the_limit,
)  # fmt: skip


OF_ONE_TOKEN = (_dot_product, _dense, _random, _random_copied, _last_head_dense, _quiet, _first_number)
OF_TWO_PLAIN_TOKENS = (
    _dot_product, _random_copied, _first_row_reads_token_1, _first_row_reads_token_2, _last_row_reads_first_token,
    _first_row_reads_last_token,
)  # fmt: skip


def _row_inputs(draw):
    """In turn all functions; some with sentences of one token; some with longer ones that have plain tokens.

    d_model is even: a change by 1, -1, 1, ... adds up to nothing.
    """
    d_model, length = 2 * draw.integer(2, 3), 5
    length, family = draw.in_turn([(length, FAMILY), (1, OF_ONE_TOKEN), (9, OF_TWO_PLAIN_TOKENS)])
    x, other = (draw.normal(1, length, d_model) for _ in range(2))
    if length > 1:
        other[:, 0] = x[:, 0]
    else:
        other[..., 0] = x[..., 0]
    if family is OF_TWO_PLAIN_TOKENS:
        x[:, 1], x[:, 2] = 0.0, 1.0
    return {"score": {one.__name__[1:]: one for one in family}, "x": x, "other": other}


def _for_each(answer, score, x, other):
    """The three texts by their names, for every function of the family by its name."""
    return {name: _named(answer(score=one, x=x, other=other)) for name, one in score.items()}


def _named(row):
    row = plain_copy(row)
    if not isinstance(row, (tuple, list)) or len(row) != 3:
        raise TypeError(f"the result should be a tuple of three texts, but is {kind_of(row)}")
    return dict(zip(("reads", "sample", "interacts"), row, strict=True))


def _add(x, n):
    moved = x.clone()
    moved[:, n] += torch.linspace(0.5, 1.5, x.shape[-1])
    return moved


def _add_to(numbers, size=1.0):
    def change(x, n):
        moved = x.clone()
        moved[:, n, numbers] += size
        return moved

    return change


def _changes(score, x, change=_add):
    """How much the scores move, "head query key length", with the sign."""
    length = x.shape[1]
    moved = score(torch.cat([change(x, n) for n in range(length)]))  # one sentence for each changed token
    return (moved - score(x)).expand(length, -1, -1, -1).movedim(0, -1)


def _reads(score, x, change=_add, threshold=1e-5):
    return _changes(score, x, change).abs().amax(dim=(0, 2)) > threshold


def _differs(score, x, other, threshold=1e-5):
    return bool((score(x) - score(other)).abs().max() > threshold)


def _row(reads, differs):
    """The three texts, from "query length" (which row reads which token) and whether two sentences differ."""
    others = bool((reads & ~torch.eye(len(reads), dtype=torch.bool)).any())
    conditioned = "other tokens" if others else "own token" if reads.any() else "nothing"
    return conditioned, "local" if differs else "global", "yes" if others else "no"


def _row_by_change(score, x, other):
    return _row(_reads(score, x), _differs(score, x, other))


def _derivative_reads(threshold):
    """By derivatives of one number for each row, to which its scores, whatever their signs, add up unequally."""

    def reads(score, x):
        tokens = x.clone().requires_grad_()
        scores = score(tokens)[0]
        if not scores.requires_grad:
            return torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
        rows = (scores * (1.5 + _fixed(*scores.shape))).sum(dim=(0, 2))
        changes = [torch.autograd.grad(row, tokens, retain_graph=True)[0][0] for row in rows]
        return torch.stack(changes).abs().amax(dim=2) > threshold

    return reads


def _row_with_new_tokens(score, x, other):
    new = 2 * torch.randn(x.shape[1], x.shape[2], generator=torch.Generator().manual_seed(5))
    return _row(_reads(score, x, change=_put(new)), _differs(score, x, other))


def _put(tokens):
    """Token n becomes tokens[n]."""

    def change(x, n):
        moved = x.clone()
        moved[:, n] = tokens[n]
        return moved

    return change


def _made_by(function):
    """Token n becomes function(token n)."""

    def change(x, n):
        moved = x.clone()
        moved[:, n] = function(moved[:, n])
        return moved

    return change


def _up_and_down(token):
    return token + (-1.0) ** torch.arange(token.shape[-1])


def _row_with_tokens_of_other(score, x, other):
    return _row(_reads(score, x, change=_put(other[0])), _differs(score, x, other))


def _close(one, other, **tolerance):
    return not torch.allclose(*torch.broadcast_tensors(one, other), **tolerance)


def _row_by_allclose(**tolerance):
    def row(score, x, other):
        before = score(x)
        moved = torch.stack([score(_add(x, n)) for n in range(x.shape[1])])
        reads = ~torch.isclose(moved, before, **tolerance).all(dim=4).all(dim=2).all(dim=1).T
        return _row(reads, _close(before, score(other), **tolerance))

    return row


def _local_if_it_reads(score, x, other):
    reads = _reads(score, x)
    return _row(reads, bool(reads.any()))


def _row_in_loops(score, x, other):
    own = others = False
    for n in range(x.shape[1]):
        moved = x.clone()
        moved[0, n] = 0.4 * torch.arange(len(moved[0, n])) - 2 * moved[0, n]  # a token of zeros or ones changes, too
        before, after = score(x), score(moved)
        for i in range(x.shape[1]):
            if not torch.allclose(after[:, :, i], before[:, :, i], rtol=0, atol=1e-5):
                own, others = own or i == n, others or i != n
    reads = "other tokens" if others else "own token" if own else "nothing"
    same = torch.allclose(score(x), score(other), rtol=0, atol=1e-5)
    return reads, "global" if same else "local", "yes" if others else "no"


def _row_with(reads=_reads, differs=_differs):
    return lambda score, x, other: _row(reads(score, x), differs(score, x, other))


def _piling_up(x, n):
    moved = x.clone()
    moved[:, : n + 1] += torch.linspace(0.5, 1.5, x.shape[-1])
    return moved


def _everything(x, n):
    return x + torch.linspace(0.5, 1.5, x.shape[-1])


def _reads_tokens(tokens):
    """Only these tokens are changed."""

    def reads(score, x):
        seen = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
        seen[:, tokens] = _reads(score, x)[:, tokens]
        return seen

    return reads


def _only_row_0(score, x):
    reads = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    reads[0] = _reads(score, x)[0]
    return reads


def _interacts_if_local(score, x, other):
    reads, sample, _ = _row_by_change(score, x, other)
    return reads, sample, "yes" if sample == "local" else "no"


def _all_or_own(score, x, other):
    table = _reads(score, x)
    reads = "other tokens" if table.all() else "own token" if table.any() else "nothing"
    return reads, "local" if _differs(score, x, other) else "global", "yes" if table.all() else "no"


def _in_words_of_the_paper(score, x, other):
    reads, sample, interacts = _row_by_change(score, x, other)
    return {"own token": "X_i", "other tokens": "X_j for all j"}.get(reads, reads), sample, interacts


def _swapped_sample(score, x, other):
    reads, sample, interacts = _row_by_change(score, x, other)
    return reads, "global" if sample == "local" else "local", interacts


TABLE_ROW = Exercise(
    key="06.2",
    title="the row of any score function",
    name="table_row",
    minutes=40,
    level="hard",
    inputs=_row_inputs,
    returns="three texts for each score function",
    right=(_row_by_change, _row_with_new_tokens, _row_in_loops),
    run=_for_each,
    wrong=mistakes({
        READS: {
            "a derivative is asked, and it sees no steps.": _row_with(_derivative_reads(1e-5)),
            "a derivative is asked, which sees no steps, and the smallest one counts.": _row_with(_derivative_reads(0)),
            "only token 0 is changed; rows that read another token seem to read nothing.":
                _row_with(_reads_tokens(slice(1))),
            "not every token is changed; a row may read one of those that you leave out.":
                _row_with(_reads_tokens(slice(2))),
            "the last token is never changed; a row may read that one alone.": _row_with(_reads_tokens(slice(-1))),
            "token 0 is never changed; a row may read that one alone.": _row_with(_reads_tokens(slice(1, None))),
            "only the last token is changed; rows that read another token seem to read nothing.":
                _row_with(_reads_tokens(slice(-1, None))),
            "only row 0 is watched; another row may move.": _row_with(_only_row_0),
            "some numbers of the token are not changed, the last one among them; a score may read that one alone.":
                _row_with(lambda score, x: _reads(score, x, change=_add_to(slice(0, 1)))),
            "some numbers of the token are not changed, the first one among them; a score may read that one alone.":
                _row_with(lambda score, x: _reads(score, x, change=_add_to(slice(-1, None)))),
            "only the first and the last number of the token change; a score may read one between them alone.":
                _row_with(lambda score, x: _reads(score, x, change=_add_to([0, -1]))),
            "the last key of each row is not watched; it may be the only one that moves.":
                _row_with(
                    lambda score, x: _changes(score, x)[:, :, : max(1, x.shape[1] - 1)].abs().amax(dim=(0, 2)) > 1e-5
                ),
            "only head 0 is watched.": _row_with(lambda score, x: _changes(score, x)[:1].abs().amax(dim=(0, 2)) > 1e-5),
            "only key 0 of each row is watched.":
                _row_with(lambda score, x: _changes(score, x)[:, :, 0].abs().amax(dim=0) > 1e-5),
            "it watches which column moves, not which row.":
                _row_with(lambda score, x: _changes(score, x).abs().amax(dim=(0, 1)) > 1e-5),
            "local or global is read from the size of the batch axis; the copies of one map may all be equal.":
                _row_with(differs=lambda score, x, other: len(score(torch.cat([x, other]))) > 1),
            "local or global is read from the size of the batch axis; it is 1 for every score of one sentence.":
                _row_with(differs=lambda score, x, other: len(score(x)) > 1),
            "local or global is decided by one row of one head.":
                _row_with(differs=lambda score, x, other: bool((score(x) - score(other))[0, 0, 0].abs().max() > 1e-5)),
        },
        EXERCISE_ROW: {
            "only changes upwards are seen; a score may also go down.":
                _row_with(lambda score, x: _changes(score, x).amax(dim=(0, 2)) > 1e-5),
            "only changes downwards are seen; a score may also go up.":
                _row_with(lambda score, x: (-_changes(score, x)).amax(dim=(0, 2)) > 1e-5),
            "the largest difference is taken with its sign, in both places; a score may also go down.":
                _row_with(
                    lambda score, x: _changes(score, x).amax(dim=(0, 2)) > 1e-5,
                    lambda score, x, other: bool((score(x) - score(other)).max() > 1e-5),
                ),
            "the changes of a row are added up first, so that up and down can cancel.":
                _row_with(lambda score, x: _changes(score, x).sum(dim=(0, 2)).abs() > 1e-5),
            "the changes pile up: when it is the turn of a token, the earlier ones are still changed; copy x for each.":
                _row_with(lambda score, x: _reads(score, x, change=_piling_up)),
            "all tokens are changed at once, so that nobody can tell which one a row reads.":
                _row_with(lambda score, x: _reads(score, x, change=_everything)),
            "the change is so small that a quiet score drowns in rounding; change the token by about 1.":
                _row_with(lambda score, x: _reads(score, x, change=_add_to(slice(None), 1e-4))),
            "a change must be larger than 0.1 to be seen; a quiet score moves by less.":
                _row_with(lambda score, x: _reads(score, x, threshold=0.1)),
            "a change must be larger than 0.001 to be seen; the limit is lower.":
                _row_with(
                    lambda score, x: _reads(score, x, threshold=1e-3),
                    lambda score, x, other: _differs(score, x, other, threshold=1e-3),
                ),
            "when a token changes, it must change a score by more than 0.001 to be seen; the limit is lower.":
                _row_with(lambda score, x: _reads(score, x, threshold=1e-3)),
            "changes below the limit count; it is 0.00001.":
                _row_with(
                    lambda score, x: _reads(score, x, threshold=1e-6),
                    lambda score, x, other: _differs(score, x, other, threshold=1e-6),
                ),
            "the mean of the changes of a row is taken, in which one entry drowns.":
                _row_with(lambda score, x: _changes(score, x).abs().mean(dim=(0, 2)) > 1e-5),
            "the limit grows with the scores: the comparison also allows a share of their size, as `equal` does.":
                _row_by_allclose(rtol=1e-4, atol=1e-5),
            "the comparison allows a share of the size of the scores (rtol), so small and large ones are judged "
            "differently.": _row_by_allclose(),
            "every number of the token changes by the same amount; a score behind a layer norm does not see that.":
                _row_with(lambda score, x: _reads(score, x, change=_add_to(slice(None)))),
            "every number of the token changes by the same large amount; a layer norm leaves only rounding of it.":
                _row_with(lambda score, x: _reads(score, x, change=_add_to(slice(None), 1000.0))),
            "the numbers of the token go up and down by 1 in turn; a score that adds them up does not see that.":
                _row_with(lambda score, x: _reads(score, x, change=_made_by(_up_and_down))),
            "the token becomes all zeros; one that is so already does not change.":
                _row_with(lambda score, x: _reads(score, x, change=_made_by(torch.zeros_like))),
            "the token becomes all ones; one that is so already does not change.":
                _row_with(lambda score, x: _reads(score, x, change=_made_by(torch.ones_like))),
            "the token is multiplied by a number; a score that looks at its direction alone does not see that.":
                _row_with(lambda score, x: _reads(score, x, change=_made_by(lambda token: 2 * token))),
            "the token gets the opposite sign; a score that looks at its size alone does not see that.":
                _row_with(lambda score, x: _reads(score, x, change=_made_by(torch.neg))),
            "the numbers of the token only change places; a score that adds them up does not see that.":
                _row_with(lambda score, x: _reads(score, x, change=_made_by(lambda token: token.roll(1, dims=-1)))),
            "a token is replaced by that of the other sentence, and the two may be equal.": _row_with_tokens_of_other,
            "local or global is taken from what the rows read; compare the two sentences instead.": _local_if_it_reads,
            "the smallest difference counts, also one that is only rounding.":
                _row_with(
                    lambda score, x: _reads(score, x, threshold=0),
                    lambda score, x, other: _differs(score, x, other, threshold=0),
                ),
            "when a token changes, the smallest difference counts, also one that is only rounding.":
                _row_with(lambda score, x: _reads(score, x, threshold=0)),
            "two sentences count as different only if the first has a higher score somewhere.":
                _row_with(differs=lambda score, x, other: bool((score(x) - score(other)).max() > 1e-5)),
            "the differences between the two sentences are added up, so that up and down can cancel.":
                _row_with(differs=lambda score, x, other: bool((score(x) - score(other)).sum().abs() > 1e-5)),
            "two sentences count as different only if the second has a higher score somewhere.":
                _row_with(differs=lambda score, x, other: bool((score(other) - score(x)).max() > 1e-5)),
            "the first text is in the words of Table 1; use those of the docstring.": _in_words_of_the_paper,
            "a row must read all tokens before it counts as reading another one.": _all_or_own,
        },
        MOVES: {
            "only the row of the changed token is watched, so other rows never seem to move.":
                _row_with(lambda score, x: _reads(score, x) & torch.eye(x.shape[1], dtype=torch.bool)),
        },
        TABLE: {
            "local and global are swapped.": _swapped_sample,
        },
        CELLS: {
            "tokens are said to interact as soon as the map depends on the sentence.": _interacts_if_local,
        },
    }),
)  # fmt: skip


# 06.3. The parts with a hidden layer or projections occur once and three times, so that a d^2 too few or too many tells
# from which of them it comes. The fixed table occurs twice: leaving out its logit is not one logit too few. In turn the
# budget is used up, is one short of the next length, there is no Random, so that the bill grows in proportion, and
# nothing is left of a budget for one position.

NAMES = (
    "dense", "dot_product", "random", "fixed_random", "factorized_random", "dense", "fixed_random", "random",
    "dense", "factorized_random", "factorized_random",
)  # fmt: skip


def _budget_inputs(draw):
    sizes = draw.sizes("head d_head rank", low=2, high=9)
    if one := draw.in_turn((None, "head", "rank", None)):
        sizes[one] = 1
    d_model, head, rank = sizes["head"] * sizes["d_head"], sizes["head"], sizes["rank"]
    first = draw.integer(0, len(NAMES) - 1)
    names = [*NAMES[first:], *NAMES[:first]]
    if draw.in_turn((False, False, True, False)):
        names = [name for name in names if name != "random"]
    longest = draw.in_turn((draw.integer(35, 70), 999, draw.integer(35, 70), 1))
    room = [_bill(names, d_model, head, longest + more, rank) for more in (0, 1)]
    budget = draw.in_turn((room[0], room[1] - 1, sum(room) // 2, room[0]))
    return {"names": names, "d_model": d_model, "head": head, "rank": rank, "budget": budget}


def _counts(d_model, head, max_length, rank):
    return {
        "dot_product": 2 * d_model**2,
        "dense": d_model**2 + d_model * max_length,
        "random": head * max_length**2,
        "fixed_random": 0,
        "factorized_random": 2 * head * max_length * rank,
    }


def _bill(names, d_model, head, max_length, rank):
    counts = _counts(d_model, head, max_length, rank)
    return sum(counts[name] for name in names) + len(names)


def _longest(bill, budget, fits=int.__le__):
    """The last length that fits, by the bill of each, which grows; 1 if none does. By doubling, then by halving."""
    low, high = 1, 2
    while fits(bill(high), budget) and high < 10_000:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(bill(middle), budget) else (low, middle)
    return low, budget - bill(low)


def _longest_halved(names, d_model, head, rank, budget):
    return _longest(lambda max_length: _bill(names, d_model, head, max_length, rank), budget)


def _longest_in_a_loop(names, d_model, head, rank, budget):
    max_length = 1
    while _bill(names, d_model, head, max_length + 1, rank) <= budget:
        max_length += 1
    return max_length, budget - _bill(names, d_model, head, max_length, rank)


def _longest_counted(names, d_model, head, rank, budget):
    """The library counts at three lengths. A parabola goes through them, and halving finds the longest."""

    def count(max_length):
        score = make_score(" + ".join(names), d_model, head, max_length, bias=False, rank=rank)
        return sum(parameter.numel() for parameter in score.parameters())

    def bill(max_length):
        return first + (max_length - 1) * (step + (max_length - 2) * bend // 2)

    first, second, third = map(count, (1, 2, 3))
    step, bend = second - first, third - 2 * second + first
    low, high = 1, 1000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bill(middle) <= budget else (low, middle)
    return low, budget - bill(low)


def _longest_solved(names, d_model, head, rank, budget):
    square = head * names.count("random")
    line = d_model * names.count("dense") + 2 * head * rank * names.count("factorized_random")
    fixed = d_model**2 * (names.count("dense") + 2 * names.count("dot_product")) + len(names)
    room = budget - fixed
    longest = (isqrt(line**2 + 4 * square * room) - line) // (2 * square) if square else room // line
    return longest, room - square * longest**2 - line * longest


def _longest_with(change=None, extra=None, keep=list):
    """A bill in which `change(sizes)` gives other counts, or `extra(sizes, names)` other logits."""

    def longest(names, d_model, head, rank, budget):
        names = keep(names)

        def bill(max_length):
            sizes = {"d_model": d_model, "head": head, "max_length": max_length, "rank": rank}
            counts = _counts(**sizes) | (change(**sizes) if change else {})
            return sum(counts[name] for name in names) + (extra(names, **sizes) if extra else len(names))

        return _longest(bill, budget)

    return longest


def _below_the_budget(names, d_model, head, rank, budget):
    return _longest(lambda length: _bill(names, d_model, head, length, rank), budget, fits=int.__lt__)


def _up_to_998(names, d_model, head, rank, budget):
    longest = min(998, _longest_halved(names, d_model, head, rank, budget)[0])
    return longest, budget - _bill(names, d_model, head, longest, rank)


def _one_too_long(names, d_model, head, rank, budget):
    longest = _longest_halved(names, d_model, head, rank, budget)[0] + 1
    return longest, budget - _bill(names, d_model, head, longest, rank)


def _left_of_the_next(names, d_model, head, rank, budget):
    longest = _longest_halved(names, d_model, head, rank, budget)[0]
    return longest, budget - _bill(names, d_model, head, longest + 1, rank)


def _the_bill_itself(names, d_model, head, rank, budget):
    longest, left = _longest_halved(names, d_model, head, rank, budget)
    return longest, budget - left


LONGEST = Exercise(
    key="06.3",
    title="the longest sentence that a budget allows",
    name="longest_length",
    minutes=20,
    level="medium",
    inputs=_budget_inputs,
    trials=4,
    returns="max_length, left",
    right=(_longest_halved, _longest_in_a_loop, _longest_solved, _longest_counted),
    wrong=mistakes({
        ANY: {
            "the logits of the alphas are missing.": _longest_with(extra=lambda names, **sizes: 0),
            "a name that occurs more than once is counted once; every time is a part of its own.":
                _longest_with(keep=set),
        },
        EXERCISE_LENGTH: {
            "the budget is never used up; it may be.": _below_the_budget,
            "the search ends one too early: below 1000 every length may be the one.": _up_to_998,
            "this length is the first that does not fit.": _one_too_long,
            "what is left is computed for the first length that does not fit.": _left_of_the_next,
            "the second number is what is spent, not what is left.": _the_bill_itself,
            "what is left is negative: is it the bill minus the budget?":
                lambda **sizes: (_longest_halved(**sizes)[0], -_longest_halved(**sizes)[1]),
            "the two numbers are in the other order.": lambda **sizes: _longest_halved(**sizes)[::-1],
        },
        LOGITS: {
            "there is one logit too few: every part has one, although one of them could be spared.":
                _longest_with(extra=lambda names, **sizes: len(names) - 1),
            "the logits of the fixed parts are missing; a fixed part has a logit as well.":
                _longest_with(extra=lambda names, **sizes: sum(name != "fixed_random" for name in names)),
            "there is one logit for the whole mixture; every part has one.":
                _longest_with(extra=lambda names, **sizes: 1),
        },
        EQUATIONS: {
            "every head has logits of its own; in this series an alpha serves all heads.":
                _longest_with(extra=lambda names, head, **sizes: head * len(names)),
        },
        LISTING: {
            "the fixed table is counted, but training never changes it.":
                _longest_with(lambda head, max_length, **sizes: {"fixed_random": head * max_length**2}),
            "Factorized Random has d in its formula; a score that reads nothing has no use for d.":
                _longest_with(lambda d_model, rank, **sizes: {"factorized_random": 2 * d_model * rank}),
            "the hidden layer of Dense is max_length wide.":
                _longest_with(
                    lambda d_model, max_length, **sizes: {"dense": d_model * max_length + max_length**2}
                ),
        },
        PARAMETERS: {
            "Random has one table in all; every head has its own.":
                _longest_with(lambda max_length, **sizes: {"random": max_length**2}),
            "Factorized Random has one pair of factors in all; every head has its own.":
                _longest_with(lambda max_length, rank, **sizes: {"factorized_random": 2 * max_length * rank}),
            "Table 1 is taken as it is printed, for one head; the random tables exist once for each head.":
                _longest_with(
                    lambda max_length, rank, **sizes: {
                        "random": max_length**2,
                        "factorized_random": 2 * max_length * rank,
                    }
                ),
            "in Dense, the second matrix of every head reads all d_model hidden numbers.":
                _longest_with(
                    lambda d_model, head, max_length, **sizes: {"dense": d_model**2 + head * d_model * max_length}
                ),
            "in Dense, the second matrix is counted for one head alone.":
                _longest_with(
                    lambda d_model, head, max_length, **sizes: {"dense": d_model**2 + d_model // head * max_length}
                ),
            "every head has a whole Dense; the heads share one set of features.":
                _longest_with(
                    lambda d_model, head, max_length, **sizes: {"dense": head * (d_model**2 + d_model * max_length)}
                ),
            "every head has two whole projections; the heads share them.":
                _longest_with(lambda d_model, head, **sizes: {"dot_product": 2 * head * d_model**2}),
            "Factorized Random has only one of its two factors.":
                _longest_with(lambda head, max_length, rank, **sizes: {"factorized_random": head * max_length * rank}),
            "Dense has no hidden layer.":
                _longest_with(lambda d_model, max_length, **sizes: {"dense": d_model * max_length}),
            "the dot product has only one projection.":
                _longest_with(lambda d_model, **sizes: {"dot_product": d_model**2}),
            "the dot product is counted for every position; its parameters do not grow with the sentence.":
                _longest_with(lambda d_model, max_length, **sizes: {"dot_product": 2 * d_model * max_length}),
            "the biases are counted; here there are none.":
                _longest_with(
                    lambda d_model, head, max_length, **sizes: {
                        "dot_product": 2 * (d_model**2 + d_model),
                        "dense": d_model**2 + d_model + (d_model + head) * max_length,
                    }
                ),
        },
        CELLS: {
            "d^2 too many are counted, as in a value projection, which belongs to the layer and not to the scores.":
                _longest_with(extra=lambda names, d_model, **sizes: len(names) + d_model**2),
        },
    }),
)  # fmt: skip


# 06.4. One width is that of the paper, one that of the listing, one is larger than both, and one occurs twice. One
# printed number has no whole width, one is too small for any, and one has a width far below 1. Then a listing of one
# layer with more positions than features, a long one with as many, a wide layer whose numbers 32 bits round, and none.


def _width_inputs(draw):
    listing = draw.in_turn([
        None,
        {"printed": [_listed(5, 4, 9)], "d_model": 4, "max_length": 9},
        {"printed": [_listed(width, 6, 6) for width in range(-39, 60, 6)], "d_model": 6, "max_length": 6},
        {"printed": [_listed(0, 5000, 512) + 4001], "d_model": 5000, "max_length": 512},
        {"printed": [], "d_model": 7, "max_length": 3},
    ])
    if listing:
        return listing
    sizes = draw.sizes("head d_head max_length", low=3, high=9)
    d_model, max_length = sizes["d_model"], sizes["max_length"]
    other = draw.integer(max_length + 1, d_model - 1)
    widths = (other, d_model, max_length, 40 * d_model + 1, d_model, -2)
    whole = [_listed(width, d_model, max_length) for width in widths] + [_listed(0, d_model, max_length) + 1]
    whole_step = _listed(1, d_model, max_length) - _listed(0, d_model, max_length)
    part = draw.in_turn((0.3, 0.7))  # of a step: rounding goes down and up
    between = _listed(other, d_model, max_length) + round(part * whole_step)
    position = draw.integer(0, 7)
    return {"printed": [*whole[:position], between, *whole[position:]], "d_model": d_model, "max_length": max_length}


def _listed(width, d_model, max_length):
    return (d_model * width + width) + (width * max_length + max_length) + (d_model**2 + d_model)


def _widths(printed, d_model, max_length):
    return [(number - d_model**2 - d_model - max_length) / (d_model + 1 + max_length) for number in printed]


def _widths_line(printed, d_model, max_length):
    """The count is a straight line in the width: two of its points tell where a number lies."""
    start = _listed(0, d_model, max_length)
    return [(number - start) / (_listed(1, d_model, max_length) - start) for number in printed]


def _widths_halving(printed, d_model, max_length):
    answer = []
    for number in printed:
        low, high = -100.0, abs(number) + 1.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if _listed(middle, d_model, max_length) < number else (low, middle)
        answer.append(high)
    return answer


def _offset(d_model, max_length):
    return d_model**2 + d_model + max_length


def _step(d_model, max_length):
    return d_model + 1 + max_length


def _widths_with(offset=_offset, step=_step):
    """Widths from another formula: number = offset + width * step."""
    return lambda printed, d_model, max_length: [
        (number - offset(d_model, max_length)) / step(d_model, max_length) for number in printed
    ]


def _layer_by_layer(answer, printed, d_model, max_length):
    number = len(printed)
    widths = plain_copy(answer(printed=printed, d_model=d_model, max_length=max_length))
    if not isinstance(widths, (tuple, list)) or len(widths) != number:
        raise TypeError(f"the result should be a list of {number} floats, but is {kind_of(widths)}")
    return {f"layer {layer}": width for layer, width in enumerate(widths)}


WIDTHS = Exercise(
    key="06.4",
    title="how wide is the hidden layer?",
    name="hidden_widths",
    minutes=10,
    level="medium",
    inputs=_width_inputs,
    returns="a float for each layer",
    trials=5,
    run=_layer_by_layer,
    right=(_widths, _widths_line, _widths_halving),
    wrong=mistakes({
        EXERCISE_WIDTH: {
            "the rest of the division is thrown away, so that a layer which is built otherwise looks fine.":
                lambda printed, d_model, max_length: [
                    (number - _offset(d_model, max_length)) // _step(d_model, max_length) for number in printed
                ],
            "the rest of the division is thrown away before the floats are made; the fraction is what tells.":
                lambda printed, d_model, max_length: [
                    float((number - _offset(d_model, max_length)) // _step(d_model, max_length)) for number in printed
                ],
            "a width that is no whole number becomes None; keep the fraction, which is what tells.":
                lambda printed, d_model, max_length: [
                    width if width.is_integer() else None for width in _widths(printed, d_model, max_length)
                ],
            "the widths are rounded, so that a layer which is built otherwise looks fine.":
                lambda printed, d_model, max_length: [
                    round((number - _offset(d_model, max_length)) / _step(d_model, max_length)) for number in printed
                ],
            "the widths are rounded and made floats again; the fraction is what tells.":
                lambda printed, d_model, max_length: [
                    float(round((number - _offset(d_model, max_length)) / _step(d_model, max_length)))
                    for number in printed
                ],
            "the widths are rounded to two decimals; keep the fraction as it is.":
                lambda printed, d_model, max_length: [round(one, 2) for one in _widths(printed, d_model, max_length)],
            "a width below 0 becomes 0; it tells that the layer is built in another way.":
                lambda printed, d_model, max_length: [max(0.0, one) for one in _widths(printed, d_model, max_length)],
            "a width is kept from falling below -2; it tells how far this layer is from any width.":
                lambda printed, d_model, max_length: [max(-2.0, one) for one in _widths(printed, d_model, max_length)],
            "numbers of 32 bits are too coarse: the parameters of a wide layer are rounded before you subtract.":
                lambda printed, d_model, max_length: (
                    (torch.tensor(printed, dtype=torch.float32) - _offset(d_model, max_length))
                    / _step(d_model, max_length)
                ).tolist(),
            "one projection too many is taken off, an output projection; the listing has only the values.":
                _widths_with(lambda d_model, max_length: 2 * (d_model**2 + d_model) + max_length),
            "the second layer is forgotten, but its matrix has h columns too.":
                _widths_with(step=lambda d_model, max_length: d_model + 1),
            "the second layer is taken as d_model to max_length, whatever the width of the hidden layer.":
                _widths_with(
                    lambda d_model, max_length: _offset(d_model, max_length) + d_model * max_length,
                    lambda d_model, max_length: d_model + 1,
                ),
            "the division comes before the subtraction: brackets are missing.":
                lambda printed, d_model, max_length: [
                    number - _offset(d_model, max_length) / _step(d_model, max_length) for number in printed
                ],
        },
        LISTING: {
            "the value projection is forgotten.": _widths_with(lambda d_model, max_length: max_length),
            "the bias of the value projection is forgotten.":
                _widths_with(lambda d_model, max_length: d_model**2 + max_length),
            "the bias of the second layer is forgotten.":
                _widths_with(lambda d_model, max_length: d_model**2 + d_model),
            "the bias of the hidden layer is forgotten.":
                _widths_with(step=lambda d_model, max_length: d_model + max_length),
            "the biases of the value projection and of the hidden layer are forgotten.":
                _widths_with(
                    lambda d_model, max_length: d_model**2 + max_length,
                    lambda d_model, max_length: d_model + max_length,
                ),
            "the biases of the value projection and of the second layer are forgotten.":
                _widths_with(lambda d_model, max_length: d_model**2),
            "no layer has its bias.":
                _widths_with(lambda d_model, max_length: d_model**2, lambda d_model, max_length: d_model + max_length),
            "only the value projection has its bias.":
                _widths_with(
                    lambda d_model, max_length: d_model**2 + d_model, lambda d_model, max_length: d_model + max_length
                ),
            "the bias of the second layer has h numbers; it has one for each position.":
                _widths_with(
                    lambda d_model, max_length: d_model**2 + d_model,
                    lambda d_model, max_length: d_model + 1 + max_length + 1,
                ),
        },
    }),
)  # fmt: skip


# 06.5. Any scores will do that keep the promises. In turn a drawn election, the smallest one, two with the smallest
# alpha at either end, one with more parts than positions, and three that nobody can win.


def _election_inputs(draw):
    sizes = draw.sizes("parts length", low=3, high=7)
    length, alphas = sizes["length"], draw.normal(sizes["parts"]).softmax(dim=0).clamp(min=0.02)
    alphas = alphas / alphas.sum()
    length, position, alphas = draw.in_turn([
        (length, draw.in_turn((1, length - 1, length - 2)), alphas),
        (3, 0, torch.tensor([0.5, 0.5])),
        (4, 2, torch.tensor([0.38, 0.61, 0.01])),
        (5, 4, torch.tensor([0.01, 0.99])),
        (3, 1, torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15])),
        (2, 1, alphas),
        (1, 0, alphas),
        (length, 1, torch.tensor([1.0])),
    ])
    return {"length": length, "position": position, "alphas": alphas}


def _election(answer, length, position, alphas):
    """What is true of the scores that the answer gives."""
    return _promises(answer(length=length, position=position, alphas=alphas), length, position, alphas)


def _promises(scores, length, position, alphas):
    if scores is None:
        return "None"
    if not isinstance(scores, torch.Tensor) or not scores.is_floating_point():
        kind = f"a tensor of {scores.dtype}" if isinstance(scores, torch.Tensor) else kind_of(scores)
        raise TypeError(f"the result should be a tensor of floats, or None, but is {kind}")
    if scores.shape != (len(alphas), length):
        return f"shape {tuple(scores.shape)} for {len(alphas)} parts and {length} positions"
    if not scores.isfinite().all():
        return "not all scores are finite"
    scores = scores.detach().double()
    kept = int((scores.softmax(dim=1)[:, position] < 0.01).sum())
    mixed = (alphas.double() @ scores).softmax(dim=0)[position]
    first = scores.argmax(dim=1)
    above = "yes" if mixed > 0.99 else f"no; first choices: {len(first.unique())}"
    own = int((first == position).sum())
    return f"below 0.01 in {kept} of {len(alphas)} parts, first choice of {own}, mixture above 0.99: {above}"


def _nobody(length, position, alphas):
    others = [key for key in range(length) if key != position]
    if len(alphas) < 2 or len(others) < 2:
        return None
    scores = torch.full((len(alphas), length), -10_000.0)
    scores[:, position] = 0
    for n in range(len(alphas)):
        scores[n, others[n % len(others)]] = 10
    return scores


def _two_camps(length, position, alphas):
    if len(alphas) == 1 or length <= 2:
        return None
    return _camps(length, position, alphas, veto=100 / float(alphas.min()))


def _camps(length, position, alphas, veto, choice=50.0, lead=10.0, camps=(0,), others=0.0):
    """The parts in `camps` prefer the position after the wanted one, all others the one after that."""
    scores = torch.full((len(alphas), length), others)
    scores[:, position] = choice
    first = torch.zeros(len(alphas), dtype=torch.bool)
    first[list(camps)] = True
    left, right = (position + 1) % length, (position + 2) % length
    scores[first, left], scores[~first, left] = choice + lead, -veto
    scores[first, right], scores[~first, right] = -veto, choice + lead
    return scores


def _by_size_of_alpha(length, position, alphas):
    """Each part shares out what its alpha leaves: the sum at every other position is set to -100."""
    if min(len(alphas) - 1, length - 2) < 1:
        return None
    scores = torch.zeros(len(alphas), length)
    for key in range(length):
        if key != position:
            lovers = torch.arange(len(alphas)) % 2 == (key == (position + 1) % length)
            scores[lovers, key] = 20
            scores[~lovers, key] = -(100 + 20 * alphas[lovers].sum()) / alphas[~lovers].sum()
    return scores


def _unless_impossible(make):
    """`make`, and None where there is no way."""
    return lambda length, position, alphas: (
        None if len(alphas) < 2 or length < 3 else make(length, position, alphas)
    )


def _everybody_wants(length, position, alphas):
    scores = torch.zeros(len(alphas), length)
    scores[:, position] = 20
    return scores


def _one_favourite(length, position, alphas):
    scores = torch.full((len(alphas), length), -10_000.0)
    scores[:, position] = 0
    scores[:, (position + 1) % length] = 10
    return scores


def _second_of_all_without_veto(length, position, alphas):
    return _camps(length, position, alphas, veto=0.0, choice=40.0)


NOBODY = Exercise(
    key="06.5",
    title="the position that nobody wants",
    name="nobody_wants",
    minutes=40,
    level="hard",
    inputs=_election_inputs,
    returns="scores, or None",
    trials=8,
    right=(_nobody, _two_camps, _by_size_of_alpha),
    run=_election,
    wrong=mistakes({
        EXERCISE_NOBODY: {
            "every part looks at the position; nobody should.": _unless_impossible(_everybody_wants),
            "all parts prefer the same other position, and then so does their sum.": _unless_impossible(_one_favourite),
            "a part with a large alpha carries its first choice through; what stops it for equal alphas is not enough.":
                _unless_impossible(_second_of_all_without_veto),
            "there are scores where nobody can do it: two positions, one position, or one part.":
                lambda length, position, alphas: _camps(length, position, alphas, veto=1e4),
            "with two positions or one there is no way; with one part there is none either.":
                lambda length, position, alphas: (
                    None if length < 3 else _camps(length, position, alphas, veto=1e4)
                ),
            "one part alone is refused; with fewer than three positions there is no way either.":
                lambda length, position, alphas: (
                    None if len(alphas) < 2 else _camps(length, position, alphas, veto=1e4)
                ),
            "three positions are enough; your answer gives up too early.":
                lambda length, position, alphas: None if length < 4 else _nobody(length, position, alphas),
            "there is a way even for a very small alpha, and for more parts than positions.":
                lambda length, position, alphas: (
                    None if len(alphas) >= length or alphas.min() < 0.05 else _nobody(length, position, alphas)
                ),
            "the answer is always None; for three positions and two parts there is a way.":
                lambda length, position, alphas: None,
            "the lead of the first choice is too small: a part still gives the position too much.":
                _unless_impossible(
                    lambda length, position, alphas: _camps(length, position, alphas, veto=1e4, lead=1.0)
                ),
            "only the first two parts have scores; the others like every position alike.":
                _unless_impossible(lambda length, position, alphas: torch.cat([
                    _camps(length, position, alphas, veto=1e4)[:2], torch.zeros(len(alphas) - 2, length)
                ])),
            "the position is not used: it is always the first that wins.":
                _unless_impossible(lambda length, position, alphas: _nobody(length, 0, alphas)),
            "the position is counted from 1.":
                _unless_impossible(lambda length, position, alphas: _nobody(length, (position - 1) % length, alphas)),
        },
        INSIDE: {
            "minus infinity is no score here: the docstring asks for finite ones.":
                _unless_impossible(
                    lambda length, position, alphas: _nobody(length, position, alphas).masked_fill(
                        _nobody(length, position, alphas) < -1, float("-inf")
                    )
                ),
            "these are maps: a softmax too many; the parts give scores.":
                _unless_impossible(
                    lambda length, position, alphas: _nobody(length, position, alphas).softmax(dim=1)
                ),
            "the rows are multiplied by the alphas already; the sum does that.":
                _unless_impossible(
                    lambda length, position, alphas: alphas[:, None] * _two_camps(length, position, alphas)
                ),
        },
        EQUATIONS: {
            "rows and columns are swapped: a row for each part, a column for each position.":
                _unless_impossible(lambda length, position, alphas: _nobody(length, position, alphas).T),
            "this is the mixture already: there is a row for each part.":
                _unless_impossible(lambda length, position, alphas: alphas @ _nobody(length, position, alphas)),
        },
    }),
)  # fmt: skip

EXERCISES = [MIXED_MAP, TABLE_ROW, LONGEST, WIDTHS, NOBODY]
