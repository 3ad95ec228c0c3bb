"""The exercises of chapter 06: mixtures, equations (8) and (9), and Table 1 of arXiv 2005.00743."""

from functools import cache
from math import prod

import torch

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
EXERCISE_ROW = "Exercise 06.2: the row of any score function"
EXERCISE_WIDTH = "Exercise 06.4: how wide is the hidden layer?"


# 06.1. As many keys as queries, so that a softmax along the queries fits. One part is shared by the batch.


def _mixed_inputs(draw):
    sizes = draw.sizes("batch head length")
    number = draw.integer(3, 4)
    shared = draw.integer(0, number - 2)  # not the last one: its shape would betray a loop that keeps only that
    square = (sizes["length"], sizes["length"])
    return {
        "scores": [draw.normal(1 if n == shared else sizes["batch"], sizes["head"], *square) for n in range(number)],
        "logits": draw.normal(number),
    }


def _mix(scores, alphas):
    return sum(alpha * score for alpha, score in zip(alphas, scores, strict=True))


def _mixed_sum(scores, logits):
    return _mix(scores, logits.softmax(dim=0)).softmax(dim=-1)


def _mixed_stack(scores, logits):
    stacked = torch.stack(torch.broadcast_tensors(*scores), dim=-1)
    alphas = logits.exp() / logits.exp().sum()
    return torch.softmax(stacked @ alphas, dim=3)


def _mixed_product(scores, logits):
    total = 1
    for alpha, score in zip(logits.softmax(dim=0), scores, strict=True):
        total = total * score.softmax(dim=-1) ** alpha
    return total / total.sum(dim=-1, keepdim=True)


def _mixed_powers(scores, logits):
    return _mix([score.log_softmax(dim=-1) for score in scores], logits.softmax(dim=0)).exp()


def _maps(scores):
    return [score.softmax(dim=-1) for score in scores]


MIXED_MAP = Exercise(
    key="06.1",
    title="mix maps inside one softmax",
    name="mixed_map",
    minutes=10,
    level="easy",
    inputs=_mixed_inputs,
    returns="batch head query key",
    properties=(RowsSumTo1(),),
    right=(_mixed_sum, _mixed_stack, _mixed_product),
    wrong=mistakes({
        INSIDE: {
            "each part goes through a softmax of its own, and the maps are averaged after it.":
                lambda scores, logits: _mix(_maps(scores), logits.softmax(dim=0)),
            "the maps are averaged, and then go through a second softmax.":
                lambda scores, logits: _mix(_maps(scores), logits.softmax(dim=0)).softmax(dim=-1),
            "this is the product of the maps to the power of their alphas, but not yet divided by its sum.":
                _mixed_powers,
            "there are two softmaxes along the keys; the second one gets weights, not scores.":
                lambda scores, logits: _mixed_sum(scores, logits).softmax(dim=-1),
        },
        LOGITS: {
            "the logits themselves are used as alphas, so they do not sum to 1.":
                lambda scores, logits: _mix(scores, logits).softmax(dim=-1),
            "each logit goes through a sigmoid of its own, so the alphas do not sum to 1.":
                lambda scores, logits: _mix(scores, logits.sigmoid()).softmax(dim=-1),
            "the alphas sum to 1, but they come from sigmoids and not from a softmax over the logits.":
                lambda scores, logits: _mix(scores, logits.sigmoid() / logits.sigmoid().sum()).softmax(dim=-1),
            "the logits are only divided by their sum; an alpha must not be negative.":
                lambda scores, logits: _mix(scores, logits / logits.sum()).softmax(dim=-1),
            "the alphas are absolute values divided by their sum, not a softmax over the logits.":
                lambda scores, logits: _mix(scores, logits.abs() / logits.abs().sum()).softmax(dim=-1),
            "the alphas are exponentials that are not divided by their sum.":
                lambda scores, logits: _mix(scores, logits.exp()).softmax(dim=-1),
            "the alphas are logarithms: a log-softmax where a softmax should be.":
                lambda scores, logits: _mix(scores, logits.log_softmax(dim=0)).softmax(dim=-1),
            "the logits go through two softmaxes before they become alphas.":
                lambda scores, logits: _mix(scores, logits.softmax(dim=0).softmax(dim=0)).softmax(dim=-1),
            "every part gets the same alpha, and the logits are not used.":
                lambda scores, logits: _mix(scores, torch.ones(len(scores)) / len(scores)).softmax(dim=-1),
        },
        LITERAL: {
            "the parts are added without alphas, and the logits are not used.":
                lambda scores, logits: _mix(scores, torch.ones(len(scores))).softmax(dim=-1),
        },
        SUM: {
            "the mixed scores are divided by the number of parts once more: a mean where a sum should be.":
                lambda scores, logits: (_mix(scores, logits.softmax(dim=0)) / len(scores)).softmax(dim=-1),
            "the alphas meet the parts in the opposite order.":
                lambda scores, logits: _mix(scores, logits.softmax(dim=0).flip(0)).softmax(dim=-1),
            "only the last part is left: does your loop add, or does it overwrite?":
                lambda scores, logits: (logits.softmax(dim=0)[-1] * scores[-1]).softmax(dim=-1),
        },
        LIMIT: {
            "only the part with the largest logit is used.":
                lambda scores, logits: torch.broadcast_to(
                    scores[int(logits.argmax())], torch.broadcast_shapes(*(score.shape for score in scores))
                ).softmax(dim=-1),
        },
        EQUATIONS: {
            "these are the mixed scores; the softmax along the keys is missing.":
                lambda scores, logits: _mix(scores, logits.softmax(dim=0)),
            "the last softmax runs along the queries, so the columns sum to 1 and not the rows.":
                lambda scores, logits: _mix(scores, logits.softmax(dim=0)).softmax(dim=2),
            "the last softmax runs along the heads.":
                lambda scores, logits: _mix(scores, logits.softmax(dim=0)).softmax(dim=1),
            "the last softmax runs along the batch, so it mixes sentences.":
                lambda scores, logits: _mix(scores, logits.softmax(dim=0)).softmax(dim=0),
        },
    }),
)  # fmt: skip


# 06.2. Each score function closes one way out: a reader who looks at one head, one row, one number or one direction
# finds nothing where there is something. Their parameters depend on the sizes alone.


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


def _changes_cancel(x):
    numbers = _every_key(x.sum(dim=-1))
    signs = torch.zeros(x.shape[1])
    signs[0], signs[1] = 1, -1
    return numbers * signs


def _only_key_1(x):
    return _every_key(x.sum(dim=-1)) * (torch.arange(x.shape[1]) == 1)


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


FAMILY = (
    _dot_product, _dense, _random, _random_copied, _random_and_dense, _last_head_dense, _left_neighbour,
    _last_row_reads_first_token, _first_row_reads_last_token, _first_row_reads_token_1, _first_row_reads_token_2,
    _last_row_reads_itself, _last_number, _first_number,
    _changes_cancel, _only_key_1, _only_diagonal, _only_up, _only_down, _sentence_up, _sentence_down,
    _quiet, _trembling, _rounding,
)  # fmt: skip


def _row_inputs(draw):
    sizes = draw.sizes("length d_model", low=4)
    shape = (1, sizes["length"], sizes["d_model"])
    return {"score": {one.__name__[1:]: one for one in FAMILY}, "x": draw.normal(*shape), "other": draw.normal(*shape)}


def _for_each(answer, score, x, other):
    """The three texts by their names, for every function of the family by its name."""
    return {name: _named(answer(score=one, x=x, other=other)) for name, one in score.items()}


def _named(row):
    if not isinstance(row, tuple) or len(row) != 3:
        parts = f"{type(row).__name__} of {len(row)}" if isinstance(row, (tuple, list)) else type(row).__name__
        raise TypeError(f"the result should be a tuple of three texts, but is: {parts}")
    return dict(zip(("conditioned on", "sample", "interacts"), row, strict=True))


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


def _row_by_jacobian(score, x, other):
    jacobian = torch.autograd.functional.jacobian(lambda tokens: score(tokens[None])[0], x[0])
    return _row(jacobian.abs().amax(dim=(0, 2, 4)) > 1e-5, _differs(score, x, other))


def _row_in_loops(score, x, other):
    own = others = False
    for n in range(x.shape[1]):
        moved = x.clone()
        moved[0, n] = 3 - 2 * moved[0, n]
        for i in range(x.shape[1]):
            if not torch.allclose(score(moved)[:, :, i], score(x)[:, :, i], rtol=0, atol=1e-5):
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
    minutes=20,
    level="hard",
    inputs=_row_inputs,
    returns="three texts for each score function",
    right=(_row_by_change, _row_by_jacobian, _row_in_loops),
    run=_for_each,
    wrong=mistakes({
        READS: {
            "only token 0 is changed; rows that read another token seem to read nothing.":
                _row_with(_reads_tokens(slice(1))),
            "not every token is changed; a row may read one of those that you leave out.":
                _row_with(_reads_tokens(slice(2))),
            "the last token is never changed; a row may read that one alone.": _row_with(_reads_tokens(slice(-1))),
            "token 0 is never changed; a row may read that one alone.": _row_with(_reads_tokens(slice(1, None))),
            "only the last token is changed; rows that read another token seem to read nothing.":
                _row_with(_reads_tokens(slice(-1, None))),
            "only row 0 is watched; another row may move.": _row_with(_only_row_0),
            "only the first number of a token is changed; a score may read another one.":
                _row_with(lambda score, x: _reads(score, x, change=_add_to(slice(0, 1)))),
            "only the last number of a token is changed; a score may read another one.":
                _row_with(lambda score, x: _reads(score, x, change=_add_to(slice(-1, None)))),
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


# 06.3. The parts with a hidden layer or projections occur once, twice and three times, so that a d^2 too few or too
# many tells from which of them it comes. The fixed table occurs twice: leaving out its logit is not one logit too few.

NAMES = (
    "dense", "dot_product", "random", "factorized_dense", "fixed_random", "factorized_dense",
    "factorized_random", "dense", "factorized_dense", "fixed_random",
)  # fmt: skip


def _bill_inputs(draw):
    sizes = draw.sizes("head d_head tile repeat rank")
    first = draw.integer(0, len(NAMES) - 1)
    return {
        "names": [*NAMES[first:], *NAMES[:first]],
        "d_model": sizes["d_model"],
        "head": sizes["head"],
        "max_length": sizes["length"],
        "rank": sizes["rank"],
        "tile": sizes["tile"],
        "repeat": sizes["repeat"],
    }


def _counts(d_model, head, max_length, rank, tile, repeat):
    return {
        "dot_product": 2 * d_model**2,
        "dense": d_model**2 + d_model * max_length,
        "random": head * max_length**2,
        "fixed_random": 0,
        "factorized_dense": d_model**2 + d_model * (tile + repeat),
        "factorized_random": 2 * head * max_length * rank,
    }


def _bill(names, d_model, head, max_length, rank, tile, repeat):
    counts = _counts(d_model, head, max_length, rank, tile, repeat)
    return sum(counts[name] for name in names) + len(names)


def _bill_in_a_loop(names, d_model, head, max_length, rank, tile, repeat):
    total = 0
    d_head = d_model // head
    for name in names:
        total += 1
        if name == "dot_product":
            total += d_model * d_model + d_model * d_model
        if name in ("dense", "factorized_dense"):
            columns = max_length if name == "dense" else tile + repeat
            total += d_model * d_model + head * d_head * columns
        if name in ("random", "factorized_random"):
            total += head * (max_length * max_length if name == "random" else 2 * max_length * rank)
    return total


def _bill_counted(names, d_model, head, max_length, rank, tile, repeat):
    score = make_score(" + ".join(names), d_model, head, max_length, bias=False, rank=rank, a=tile, b=repeat)
    return sum(parameter.numel() for parameter in score.parameters())


def _bill_with(change=None, extra=None, keep=list):
    """A bill in which `change(sizes)` gives other counts, or `extra(sizes, names)` other logits."""

    def bill(names, **sizes):
        names = keep(names)
        counts = _counts(**sizes) | (change(**sizes) if change else {})
        logits = extra(names, **sizes) if extra else len(names)
        return sum(counts[name] for name in names) + logits

    return bill


MIXTURE_BILL = Exercise(
    key="06.3",
    title="the bill of a mixture",
    name="mixture_parameters",
    minutes=10,
    level="medium",
    inputs=_bill_inputs,
    returns="a whole number",
    right=(_bill, _bill_in_a_loop, _bill_counted),
    wrong=mistakes({
        ANY: {
            "the logits of the alphas are missing.": _bill_with(extra=lambda names, **sizes: 0),
            "a name that occurs more than once is counted once; every time is a part of its own.": _bill_with(keep=set),
        },
        LOGITS: {
            "there is one logit too few: every part has one, although one of them could be spared.":
                _bill_with(extra=lambda names, **sizes: len(names) - 1),
            "the logits of the fixed parts are missing; a fixed part has a logit as well.":
                _bill_with(extra=lambda names, **sizes: sum(name != "fixed_random" for name in names)),
            "there is one logit for the whole mixture; every part has one.": _bill_with(extra=lambda names, **sizes: 1),
        },
        EQUATIONS: {
            "every head has logits of its own; an alpha serves all heads.":
                _bill_with(extra=lambda names, head, **sizes: head * len(names)),
        },
        LISTING: {
            "the fixed table is counted, but training never changes it.":
                _bill_with(lambda head, max_length, **sizes: {"fixed_random": head * max_length**2}),
            "Factorized Random has d in its formula; a score that reads nothing has no use for d.":
                _bill_with(lambda d_model, rank, **sizes: {"factorized_random": 2 * d_model * rank}),
            "the hidden layer of Dense is max_length wide.":
                _bill_with(lambda d_model, max_length, **sizes: {"dense": d_model * max_length + max_length**2}),
            "Factorized Dense has no hidden layer.":
                _bill_with(lambda d_model, tile, repeat, **sizes: {"factorized_dense": d_model * (tile + repeat)}),
        },
        TABLE: {
            "Random has one table in all; every head has its own.":
                _bill_with(lambda max_length, **sizes: {"random": max_length**2}),
            "Factorized Random has one pair of factors in all; every head has its own.":
                _bill_with(lambda max_length, rank, **sizes: {"factorized_random": 2 * max_length * rank}),
            "Table 1 is taken as it is printed, for one head; the random tables exist once for each head.":
                _bill_with(
                    lambda max_length, rank, **sizes: {
                        "random": max_length**2,
                        "factorized_random": 2 * max_length * rank,
                    }
                ),
            "in Dense, the second matrix of every head reads all d_model hidden numbers.":
                _bill_with(
                    lambda d_model, head, max_length, **sizes: {"dense": d_model**2 + head * d_model * max_length}
                ),
            "every head has a whole Dense; the heads share one set of features.":
                _bill_with(
                    lambda d_model, head, max_length, **sizes: {"dense": head * (d_model**2 + d_model * max_length)}
                ),
            "in Factorized Dense, the short outputs of every head read all d_model hidden numbers.":
                _bill_with(
                    lambda d_model, head, tile, repeat, **sizes: {
                        "factorized_dense": d_model**2 + head * d_model * (tile + repeat)
                    }
                ),
            "Factorized Dense has two hidden layers; its short outputs share one.":
                _bill_with(
                    lambda d_model, tile, repeat, **sizes: {
                        "factorized_dense": 2 * d_model**2 + d_model * (tile + repeat)
                    }
                ),
            "every head has two whole projections; the heads share them.":
                _bill_with(lambda d_model, head, **sizes: {"dot_product": 2 * head * d_model**2}),
        },
        PARAMETERS: {
            "Factorized Random has only one of its two factors.":
                _bill_with(lambda head, max_length, rank, **sizes: {"factorized_random": head * max_length * rank}),
            "Dense has no hidden layer.":
                _bill_with(lambda d_model, max_length, **sizes: {"dense": d_model * max_length}),
            "Factorized Dense has a long output, tile times repeat; it has two short ones.":
                _bill_with(
                    lambda d_model, tile, repeat, **sizes: {"factorized_dense": d_model**2 + d_model * tile * repeat}
                ),
            "the dot product has only one projection.":
                _bill_with(lambda d_model, **sizes: {"dot_product": d_model**2}),
            "the biases are counted; here there are none.":
                _bill_with(
                    lambda d_model, head, max_length, tile, repeat, **sizes: {
                        "dot_product": 2 * (d_model**2 + d_model),
                        "dense": d_model**2 + d_model + (d_model + head) * max_length,
                        "factorized_dense": d_model**2 + d_model + (d_model + head) * (tile + repeat),
                    }
                ),
        },
        CELLS: {
            "the value projection is counted; it belongs to the layer, not to the scores.":
                _bill_with(extra=lambda names, d_model, **sizes: len(names) + d_model**2),
        },
    }),
)  # fmt: skip


# 06.4. One width is that of the paper, one that of the listing. One printed number has no whole width.


def _width_inputs(draw):
    sizes = draw.sizes("head d_head max_length", low=3, high=9)
    d_model, max_length = sizes["d_model"], sizes["max_length"]
    other = draw.integer(max_length + 1, d_model - 1)
    whole = [_listed(width, d_model, max_length) for width in (other, d_model, max_length)]
    whole_step = _listed(1, d_model, max_length) - _listed(0, d_model, max_length)
    part = draw.in_turn((0.3, 0.7))  # of a step: rounding goes down and up
    between = _listed(other, d_model, max_length) + round(part * whole_step)
    position = draw.integer(0, 3)
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
        low, high = 0.0, float(number)
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


WIDTHS = Exercise(
    key="06.4",
    title="how wide is the hidden layer?",
    name="hidden_widths",
    minutes=15,
    level="medium",
    inputs=_width_inputs,
    returns="a list of floats",
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

EXERCISES = [MIXED_MAP, TABLE_ROW, MIXTURE_BILL, WIDTHS]
