"""The exercises of chapter 05, Factorized Random: equation (7) of arXiv 2005.00743."""

from functools import cache
from math import ceil, cos, log, pi, sqrt

import torch
from einops import einsum, rearrange

from synth_lib.checks.exercise import Exercise, RowsSumTo1, mistakes
from synth_lib.scores import FactorizedRandom, Random

EQUATION = "The equation"
KEY_AXIS = "Both factors on the key axis"
HEADS = "Heads and shorter inputs"
RESULT = "From scores to the result"
BEST = "The best table of rank k"
EXERCISE_ROWS = "Exercise 05.1: rows for new tokens"
EXERCISE_PAIRS = "Stretch 05.5: two keys for each query"
EXERCISE_POINTER = "Exercise 05.4: any keys, as sharp as you like"
BREAKS = "Where it breaks"
PARAMETERS = "Parameters"
CIRCLE = "Points on a circle"
REVERSAL = "A reversal"
SCALE = "How large the factor c must be"


# 05.1. In turn a plain trial, one head that begins at 0, one new token that fills the table, the very first token, and
# large scores. Three of them have factors of the same shapes: what is kept from call to call is found out.


def _rows_inputs(draw):
    sizes = draw.sizes("head rank count start", low=2, high=9)
    head, rank, count, start = (sizes[name] for name in ("head", "rank", "count", "start"))
    head, rank, count, start, large = draw.in_turn([
        (3, 4, 5, 2, False), (1, rank, count, 0, False), (head, rank, 1, start, False),
        (3, 4, 1, 0, False), (3, 4, 5, 2, True),
    ])  # fmt: skip
    longest = 9 if (head, rank) == (3, 4) else count + start + draw.integer(2, 4) * (head == 1)
    R1, R2 = draw.normal(head, longest, rank), draw.normal(head, longest, rank)
    if large:
        R1, R2 = _large(R1), _large(R2)
        R2[:, : start + 1] = R2[:, : start + 1].abs()  # all that the first new token sees has a score far below 0,
        R1[:, start] = -R1[:, start].abs()
        R1[:, start + 1] = -1.0  # the next one finds one score of exactly 0, that of itself, the others far below
        R2[:, start + 1] = torch.tensor([3.0, -3.0, 5.0, -5.0])
        R1[:, start + 2] = torch.tensor([-100.0, 0.0, 0.0, 0.0])  # and the third -300 at most
        R2[:, start + 2, 0] = 5.0
    return {"R1": R1, "R2": R2, "start": start, "count": count}


def _large(factor):
    """Scores of tens of thousands, from whole numbers: their sums are exact, whatever the order."""
    return (128 * factor).round()


TABLE = "head query rank, head key rank -> head query key"
INFINITE = float("-inf")


def _later(start, count, shift=1):
    """Which keys are out of sight, "query key": those `shift` positions behind the query, or more."""
    return torch.ones(count, start + count).triu(diagonal=start + shift).bool()


def _rows_table(R1, R2, start, count):
    return einsum(R1[:, start : start + count], R2[:, : start + count], TABLE)


def _rows_masked(R1, R2, start, count):
    return _rows_table(R1, R2, start, count).masked_fill(_later(start, count), INFINITE).softmax(dim=-1)


def _rows_of_all(R1, R2, start, count):
    length = start + count
    table = (R1 @ R2.transpose(1, 2))[:, :length, :length]
    return (table + _later(0, length).float().mul(-1e9)).softmax(dim=2)[:, start:]


def _rows_in_loops(R1, R2, start, count):
    weights = torch.zeros(len(R1), count, start + count)
    for h in range(len(R1)):
        for i in range(count):
            seen = start + i + 1
            weights[h, i, :seen] = (R2[h, :seen] @ R1[h, start + i]).softmax(dim=0)
    return weights


def _rows_divided(R1, R2, start, count, highest=lambda scores: scores.amax(dim=-1, keepdim=True)):
    scores = _rows_table(R1, R2, start, count).masked_fill(_later(start, count), INFINITE)
    weights = (scores - highest(scores)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def _rows_cut_and_divided(R1, R2, start, count):
    weights = _rows_table(R1, R2, start, count).softmax(dim=-1).masked_fill(_later(start, count), 0.0)
    return weights / weights.sum(dim=-1, keepdim=True)


def _rows_with(table=_rows_table, later=_later, scale=1.0, fill=INFINITE):
    """The right way with another table, another mask, another scale, or another score for what is out of sight."""

    def rows(R1, R2, start, count):
        scores = table(R1, R2, start, count) * scale
        return scores.masked_fill(later(start, count), fill).softmax(dim=-1)

    return rows


def _one_row(R1, R2, length):
    return (R1 * R2)[:, :length].sum(dim=-1)


NEW_ROWS = Exercise(
    key="05.1",
    title="rows for new tokens",
    name="new_rows",
    minutes=20,
    level="medium",
    inputs=_rows_inputs,
    trials=5,
    returns="head query key",
    properties=(RowsSumTo1(),),
    right=(_rows_masked, _rows_of_all, _rows_in_loops, _rows_divided),
    wrong=mistakes({
        EXERCISE_ROWS: {
            "the queries are the first positions, not the new ones.":
                _rows_with(lambda R1, R2, start, count: einsum(R1[:, :count], R2[:, : start + count], TABLE)),
            "the mask counts the new rows from 0, so the first of them sees position 0 alone.":
                _rows_with(later=lambda start, count: _later(0, start + count)[:count]),
            "nothing is masked: a new token looks at later ones.":
                lambda R1, R2, start, count: _rows_table(R1, R2, start, count).softmax(dim=-1),
            "a token does not look at itself, but should.":
                lambda R1, R2, start, count: _rows_with(later=lambda *sizes: _later(*sizes, shift=0))(
                    R1, R2, start, count
                ).nan_to_num(),
            "a token looks at one position too many, the next one.":
                _rows_with(later=lambda start, count: _later(start, count, shift=2)),
            "the mask is upside down: a token looks at later ones, and not at those before.":
                _rows_with(
                    later=lambda start, count: ~_later(start, count) & ~torch.eye(start + count).bool()[start:]
                ),
            "the new tokens look at each other alone; those before them are missing.":
                lambda R1, R2, start, count: _rows_masked(R1[:, start:], R2[:, start:], 0, count),
            "the tokens before are there, and the new ones are missing among the keys.":
                lambda R1, R2, start, count: einsum(
                    R1[:, start : start + count], R2[:, :start], TABLE
                ).softmax(dim=-1),
            "all rows are there; the new ones alone are asked for.":
                lambda R1, R2, start, count: _rows_of_all(R1, R2, 0, start + count),
            "the positions up to max_length are there as keys; those that have come are asked for.":
                lambda R1, R2, start, count: _rows_of_all(R1, R2, 0, R1.shape[1])[:, start : start + count],
            "the last positions of the table are taken; the new tokens begin at start.":
                lambda R1, R2, start, count: _rows_masked(
                    R1.roll(start + count, dims=1), R2.roll(start + count, dims=1), start, count
                ),
        },
        HEADS: {
            "masked scores are set to 0; a score of 0 still gets weight.": _rows_with(fill=0.0),
            "a number such as -10 stands in for minus infinity; a later token still gets some weight.":
                _rows_with(fill=-10.0),
            "a number such as -100 stands in for minus infinity; the scores that a token sees may be lower than that.":
                _rows_with(fill=-100.0),
            "-10,000 stands in for minus infinity; the scores that a token sees may be lower than that.":
                _rows_with(fill=-10_000.0),
            "later scores are in the softmax, or in its maximum, and are masked behind it; where they are far larger, "
            "zeros alone are left.":
                _rows_cut_and_divided,
            "scores of 0 are taken for masked ones; a score may be 0.":
                lambda R1, R2, start, count: _rows_with(
                    later=lambda *sizes: _rows_table(R1, R2, start, count).tril(start) == 0
                )(R1, R2, start, count),
            "the mask comes after the softmax, so the rows no longer sum to 1.":
                lambda R1, R2, start, count: _rows_table(R1, R2, start, count)
                .softmax(dim=-1)
                .masked_fill(_later(start, count), 0.0),
            "all heads use the factors of head 0.":
                lambda R1, R2, start, count: _rows_masked(R1[:1].expand_as(R1), R2[:1].expand_as(R2), start, count),
            "the heads are added up; each should keep a map of its own.":
                _rows_with(lambda *inputs: _rows_table(*inputs).sum(dim=0)),
            "the numbers are there, but head stands last instead of first.":
                lambda R1, R2, start, count: rearrange(
                    _rows_masked(R1, R2, start, count), "head query key -> query key head"
                ),
        },
        KEY_AXIS: {
            "both factors carry the key axis, so every query gets the same row.":
                _rows_with(
                    lambda R1, R2, start, count: _one_row(R1, R2, start + count)[:, None].expand(-1, count, -1)
                ),
        },
        EQUATION: {
            "the first factor is multiplied by itself; the second one is not used.":
                lambda R1, R2, start, count: _rows_masked(R1, R1, start, count),
            "the second factor is multiplied by itself; the first one is not used.":
                lambda R1, R2, start, count: _rows_masked(R2, R2, start, count),
            "query and key are swapped: the rows should belong to the first factor.":
                lambda R1, R2, start, count: _rows_masked(R2, R1, start, count),
            "the scores are divided by the root of the rank, as for the dot product; equation (7) is not.":
                lambda R1, R2, start, count: _rows_masked(R1 / sqrt(R1.shape[2]), R2, start, count),
        },
        RESULT: {
            "the exponential of a large score is infinite, or all of a row are 0; softmax avoids that.":
                lambda R1, R2, start, count: _rows_divided(R1, R2, start, count, highest=lambda scores: 0.0),
            "the highest score of all rows is taken off before the exponential; each row has one of its own.":
                lambda R1, R2, start, count: _rows_divided(R1, R2, start, count, highest=torch.max),
            "these are masked scores; the softmax is missing.":
                lambda R1, R2, start, count: _rows_table(R1, R2, start, count).masked_fill(
                    _later(start, count), INFINITE
                ),
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                lambda R1, R2, start, count: _rows_table(R1, R2, start, count)
                .masked_fill(_later(start, count), INFINITE)
                .softmax(dim=1),
        },
    }),
)  # fmt: skip


# 05.2, 05.4 and 05.5 ask for two factors. Many pairs have the same product, so what is compared is made of the product.


def _product(factors):
    """The shapes of R1 and R2, as tensors of zeros, and R1 R2^T."""
    if not isinstance(factors, (tuple, list)) or len(factors) != 2:
        raise TypeError("the answer must be a tuple of two tensors, R1 and R2")
    R1, R2 = factors
    if not all(isinstance(factor, torch.Tensor) and factor.dim() >= 2 for factor in factors):
        raise TypeError("R1 and R2 must be tensors with at least two axes")
    if not all(factor.is_floating_point() for factor in factors):
        raise TypeError(f"R1 and R2 must be tensors of floats, not {R1.dtype} and {R2.dtype}")
    fits = R1.shape[:-2] == R2.shape[:-2] and R1.shape[-1] == R2.shape[-1]
    return torch.zeros(R1.shape), torch.zeros(R2.shape), R1 @ R2.transpose(-2, -1) if fits else None


def _best_inputs(draw):
    """In turn a plain trial, one head, rank 1, tables that need fewer parts than are asked for, of large and of small
    numbers, one of them 0, the smallest table, and a table of zeros."""
    sizes = draw.sizes("head rank length", high=8)
    rank, length = sorted((sizes["rank"], sizes["length"]))
    kind = draw.in_turn(("plain", "one head", "rank 1", "few parts", "smallest", "zero"))
    head = {"one head": 1, "few parts": 4, "zero": 1}.get(kind, sizes["head"])
    rank, length = {"rank 1": (1, length), "smallest": (1, 2)}.get(kind, (rank, length))
    R = draw.normal(head, length, length)
    if kind == "few parts":
        R[0], R[1] = 0.0, torch.outer(R[1, 0], R[1, 1])
        R[2:] *= torch.tensor([1000.0, 0.001])[:, None, None]
    return {"R": R * (kind != "zero"), "rank": rank}


def _best_run(answer, R, rank):
    """What is compared: the shapes, and the product as for tables whose largest number is 1: small ones count, too."""
    largest = R.abs().amax(dim=(1, 2), keepdim=True)
    shape_1, shape_2, product = _product(answer(R=R, rank=rank))
    if product is not None and product.shape == R.shape:
        product = product.to(R) / largest.masked_fill(largest == 0, 1.0)
    return shape_1, shape_2, product


def _best_root(R, rank):
    U, S, V_rows = torch.linalg.svd(R)
    root = S[:, :rank].sqrt().diag_embed()
    return U[..., :rank] @ root, V_rows[:, :rank].mT @ root


def _best_one_side(R, rank):
    U, S, V_rows = torch.linalg.svd(R, full_matrices=False)
    return U[..., :rank], (S[:, :rank, None] * V_rows[:, :rank]).transpose(1, 2)


def _best_each_head(R, rank):
    lefts, rights = [], []
    for table in R:
        U, S, V_rows = torch.linalg.svd(table)
        lefts.append(torch.stack([S[r] * U[:, r] for r in range(rank)], dim=1))
        rights.append(torch.stack([V_rows[r] for r in range(rank)], dim=1))
    return torch.stack(lefts), torch.stack(rights)


def _best_projection(R, rank):
    table = R.double()
    _, vectors = torch.linalg.eigh(table.mT @ table)  # smallest first
    largest = vectors[..., -rank:]
    return (table @ largest).float(), largest.float()


def _parts(R, rank, left, right):
    """Factors of the first `rank` parts, with the sizes to the powers `left` and `right`."""
    U, S, V_rows = torch.linalg.svd(R)
    sizes = S[:, None, :rank]
    return U[..., :rank] * sizes**left, V_rows[:, :rank].mT * sizes**right


def _eigen(R, rank):
    values, vectors = torch.linalg.eigh(R)
    largest = values.abs().argsort(dim=-1, descending=True)[:, None, :rank].expand(-1, R.shape[1], -1)
    vectors = vectors.gather(2, largest)
    return vectors * values[:, None].expand_as(R).gather(2, largest), vectors


def _smallest(R, rank):
    U, S, V_rows = torch.linalg.svd(R)
    return U[..., -rank:] * S[:, None, -rank:], V_rows[:, -rank:].mT


def _columns_of_rows(R, rank):
    U, S, V_rows = torch.linalg.svd(R)
    return U[..., :rank] * S[:, None, :rank], V_rows[..., :rank]


def _rows_scaled(R, rank):
    U, S, V_rows = torch.linalg.svd(R)
    return U[..., :rank] * S[:, :, None], V_rows[:, :rank].mT


def _sizes_of_head_0(R, rank):
    U, S, V_rows = torch.linalg.svd(R)
    return U[..., :rank] * S[0, :rank], V_rows[:, :rank].mT


def _divided_by_sizes(R, rank):
    _, S, V_rows = torch.linalg.svd(R)
    R2 = V_rows[:, :rank].mT
    return R @ R2 / S[:, None, :rank] * S[:, None, :rank], R2


def _head_0(R, rank):
    R1, R2 = _parts(R[:1], rank, 1, 0)
    return R1.expand(len(R), -1, -1), R2.expand(len(R), -1, -1)


BEST_FACTORS = Exercise(
    key="05.2",
    title="the best two factors",
    name="best_factors",
    minutes=15,
    level="medium",
    inputs=_best_inputs,
    trials=6,
    returns="shape of R1, shape of R2, product",
    run=_best_run,
    right=(_best_root, _best_one_side, _best_each_head, _best_projection),
    wrong=mistakes({
        BEST: {
            "both factors carry the singular values in full, so the product has them squared.":
                lambda R, rank: _parts(R, rank, 1, 1),
            "the singular values are left out: every part has the same size.": lambda R, rank: _parts(R, rank, 0, 0),
            "the singular values multiply the rows of the left part; each belongs to a column.": _rows_scaled,
            "one factor carries the root of the singular values, and the other one nothing of them.":
                lambda R, rank: _parts(R, rank, 0.5, 0),
            "the singular values are squared where they should be shared between the factors.":
                lambda R, rank: _parts(R, rank, 2, 2),
            "both factors are made from the left part of the SVD, which fits symmetric tables alone.":
                lambda R, rank: (_parts(R, rank, 1, 0)[0], _parts(R, rank, 0, 0)[0]),
            "these are eigenvalues, which fit symmetric tables alone; a table of scores is not symmetric.": _eigen,
            "it keeps the smallest parts instead of the largest.": _smallest,
            "it keeps the first columns of the table and drops the others; the best parts are mixtures of all.":
                lambda R, rank: (R[..., :rank], torch.eye(R.shape[1])[:, :rank].expand(len(R), -1, -1)),
            "it keeps the first rows of the table and drops the others; the best parts are mixtures of all.":
                lambda R, rank: (torch.eye(R.shape[1])[:, :rank].expand(len(R), -1, -1), R[:, :rank].mT),
            "nothing is dropped: the factors have full rank.": lambda R, rank: _parts(R, R.shape[1], 1, 0),
            "one part too few is kept.": lambda R, rank: _parts(R, rank - 1, 1, 0),
            "it divides by singular values, and they may be 0: a table may need fewer parts than you may keep.":
                _divided_by_sizes,
            "the third tensor of the SVD is not turned: its parts are rows, and columns were taken.": _columns_of_rows,
            "the product is turned round; are the two factors exchanged?": lambda R, rank: _parts(R, rank, 1, 0)[::-1],
            "the third tensor of the SVD is reshaped, not turned; that mixes its parts.":
                lambda R, rank: (
                    _parts(R, rank, 1, 0)[0], torch.linalg.svd(R)[2][:, :rank].reshape(*R.shape[:2], rank)
                ),
        },
        HEADS: {
            "the singular values of head 0 are used in all heads.": _sizes_of_head_0,
            "all heads use the table of head 0.": _head_0,
        },
    }),
)  # fmt: skip


# 05.3. In turn the lengths for which no rank will do, the first for which one does, both kinds of even lengths, an odd
# one and the longest two; one head and many, with an even length.


def _rank_inputs(draw):
    short, head = draw.integer(3, 9), draw.integer(3, 6)
    lengths = [1, 2, 3, 4 * short, 4 * short + 2, 4 * short + draw.in_turn((1, 3)), 400, 399]
    return {"max_length": draw.in_turn(lengths), "head": draw.in_turn([head, head, head, head, 1, head, 16, 1])}


def _rank_formula(max_length, head):
    return (max_length - 1) // 2


def _rank_loop(max_length, head):
    best = 0
    for k in range(1, max_length):
        if head * 2 * max_length * k < head * max_length**2:
            best = k
    return best


def _rank_counted(max_length, head):
    """The library counts; every column costs the same."""

    def count(score):
        return sum(parameter.numel() for parameter in score.parameters())

    limit, column, k = count(Random(head, head, max_length)), count(FactorizedRandom(head, head, max_length, rank=1)), 0
    while (k + 1) * column < limit:
        k += 1
    return k


LARGEST_RANK = Exercise(
    key="05.3",
    title="up to which rank is it smaller?",
    name="largest_rank",
    minutes=5,
    level="easy",
    inputs=_rank_inputs,
    trials=8,
    returns="a whole number",
    right=(_rank_formula, _rank_loop, _rank_counted),
    wrong=mistakes({
        PARAMETERS: {
            "for lengths 1 and 2 no rank will do, and the answer is 0.":
                lambda max_length, head: max(1, (max_length - 1) // 2),
            "with even lengths this rank costs as much as Random; equal is not fewer.":
                lambda max_length, head: max_length // 2,
            "with odd lengths the next rank would be smaller than Random too.":
                lambda max_length, head: max_length // 2 - 1,
            "with odd lengths the next rank would be smaller than Random too, from 3 on.":
                lambda max_length, head: max(0, max_length // 2 - 1),
            "halves are rounded to the next even number, so that some even lengths get one too many.":
                lambda max_length, head: round((max_length - 1) / 2),
            "it rounds up; that rank is no longer smaller.": lambda max_length, head: (max_length + 1) // 2,
            "this is the smallest rank that costs more than Random.": lambda max_length, head: max_length // 2 + 1,
            "a rank is a whole number, of the type int.": lambda max_length, head: (max_length - 1) / 2,
            "only one of the two factors is counted.": lambda max_length, head: max_length - 1,
            "a factor is counted as one number a column, but it has a row for each position.":
                lambda max_length, head: (max_length**2 - 1) // 2,
            "the heads are counted for Factorized Random alone; Random has a table in every head.":
                lambda max_length, head: (max_length - 1) // (2 * head),
            "the heads are counted for Random alone; Factorized Random has two factors in every head.":
                lambda max_length, head: (head * max_length - 1) // 2,
        },
    }),
)  # fmt: skip


# 05.4. What counts is the map: where each row is highest, and whether that weight is large and small enough. In turn
# the shortest and the longest sentence, each with both ends of the weights, and two of drawn lengths.


def _pointer_inputs(draw):
    length, weight = draw.in_turn([
        (draw.integer(7, 30), 0.9), (6, 0.5), (300, 0.98), (draw.integer(60, 150), 0.75), (6, 0.98), (300, 0.5),
    ])  # fmt: skip
    wanted = draw.normal(length).argsort()
    first, other = draw.normal(length).argsort()[:2].tolist()
    wanted[first] = wanted[other]  # two want the same
    return {"wanted": wanted, "weight": weight}


def _which(wrong, words):
    """The word right, or how many queries are wrong and in which way."""
    if not wrong.any():
        return "right"
    return f"{words} for {int(wrong.sum())} queries, the first is query {int(wrong.int().argmax())}"


def _shapes(shape_1, shape_2):
    return f"factors of the shapes {tuple(shape_1.shape)} and {tuple(shape_2.shape)}"


def _pointer_run(answer, wanted, weight):
    """What is compared: the shapes, the best key of each query, whether its weight is large and small enough."""
    shape_1, shape_2, scores = _product(answer(wanted=wanted, weight=weight))
    shapes = _shapes(shape_1, shape_2)
    if scores is None or scores.shape != (len(wanted), len(wanted)):
        return {"shapes": shapes, "best keys": None, "weights, large enough": None, "weights, small enough": None}
    highest, best = scores.double().softmax(dim=-1).max(dim=-1)
    return {
        "shapes": shapes,
        "best keys": _in_words(best, wanted),
        "weights, large enough": _which(~(highest > weight - 0.01), "too small"),
        "weights, small enough": _which(~(highest < weight + 0.01), "too large"),
    }


def _in_words(best, wanted):
    steps = (best - torch.arange(len(best))) % len(best)
    if (best != wanted).any() and (steps == steps[0]).all():
        return f"the same shift for all queries, by {int(steps[0])} positions: wanted is not read"
    wrong = best != wanted
    first = f", which looks at key {int(best[wrong][0])}" if wrong.any() else ""
    return _which(wrong, "others than the wanted ones") + first


def _points(length):
    angle = 2 * pi * torch.arange(length).double() / length
    return torch.stack([angle.cos(), angle.sin()], dim=1)


@cache  # most mistakes ask for it
def _sharp(length, weight):
    """The factor with which a full circle gives the right key this weight, by halving an interval."""
    cosines = _points(length)[:, 0]
    low, high = 0.0, 1e6
    for _ in range(60):
        c = (low + high) / 2
        low, high = (c, high) if (c * cosines).softmax(dim=0)[0] < weight else (low, c)
    return c


def _pointer_circle(wanted, weight):
    points = _points(len(wanted))
    return (_sharp(len(wanted), weight) * points[wanted]).float(), points.float()


def _each_row(scores, wanted, weight):
    """For each row of scores the factor that gives the wanted key this weight."""
    low, high = torch.zeros(len(scores), 1).double(), torch.full((len(scores), 1), 1e6).double()
    for _ in range(70):
        c = (low + high) / 2
        small = (c * scores).softmax(dim=1).gather(1, wanted[:, None]) < weight
        low, high = torch.where(small, c, low), torch.where(small, high, c)
    return c


def _pointer_parabola(wanted, weight):
    j = torch.arange(len(wanted)).double()
    R1, R2 = torch.stack([2 * j[wanted], -torch.ones_like(j)], dim=1), torch.stack([j, j**2], dim=1)
    return R1 * _each_row(-((j[wanted, None] - j) ** 2), wanted, weight), R2


def _pointer_half_circle(wanted, weight):
    """Half a circle has room for all positions, too; its ends have one neighbour."""
    angle = pi * torch.arange(len(wanted)).double() / len(wanted)
    points = torch.stack([angle.cos(), angle.sin()], dim=1)
    return points[wanted] * _each_row(points[wanted] @ points.T, wanted, weight), points


def _pointer_newton(wanted, weight):
    """Both factors carry the root; the factor is found from the logarithm of the weight, step by step."""
    points = _points(len(wanted))
    c = log(2 * weight / (1 - weight)) / (1 - cos(2 * pi / len(wanted)))
    for _ in range(100):
        got = (c * points[:, 0]).softmax(dim=0)[0].item()
        c += 0.5 * (log(weight / (1 - weight)) - log(got / (1 - got))) / (1 - cos(2 * pi / len(wanted)))
    return sqrt(c) * points[wanted], sqrt(c) * points


def _pointer_with(scale=_sharp, points=_points, other=None, choose=lambda wanted: wanted):
    """The circle with another scale, other points, or another choice of the points of R1."""

    def answer(wanted, weight):
        own = points(len(wanted))
        chosen = (other or points)(len(wanted))[choose(wanted)]
        return (scale(len(wanted), weight) * chosen).float(), own.float()

    return answer


def _by_formula(length, weight):
    return log(2 * weight / (1 - weight)) / (1 - cos(2 * pi / length))


def _whole_numbers(length, weight):
    return ceil(_sharp(length, weight))


def _closed_circle(length):
    angle = torch.linspace(0, 2 * pi, length).double()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def _in_degrees(length):
    angle = 360.0 * torch.arange(length).double() / length
    return torch.stack([angle.cos(), angle.sin()], dim=1)


POINTER_FACTORS = Exercise(
    key="05.4",
    title="any keys, as sharp as you like",
    name="pointer_factors",
    minutes=30,
    level="medium",
    inputs=_pointer_inputs,
    trials=6,
    returns="R1, R2",
    run=_pointer_run,
    right=(_pointer_circle, _pointer_parabola, _pointer_half_circle, _pointer_newton),
    wrong=mistakes({
        CIRCLE: {
            "every query looks at itself: what it wants has no effect.":
                _pointer_with(choose=lambda wanted: torch.arange(len(wanted))),
            "it always looks at the position before, whatever is wanted.":
                _pointer_with(choose=lambda wanted: (torch.arange(len(wanted)) - 1) % len(wanted)),
            "this is the shift of the chapter with its factor 10: neither what is wanted nor the weight has an effect.":
                _pointer_with(lambda length, weight: 10.0, choose=lambda wanted: torch.arange(len(wanted)) - 1),
            "the order is taken the other way round: where a position stands among the wanted ones.":
                _pointer_with(choose=lambda wanted: wanted.argsort()),
            "the two factors are exchanged: what is wanted belongs to the queries.":
                lambda wanted, weight: _pointer_circle(wanted, weight)[::-1],
            "what is wanted is taken as a shift and added to the query's own position.":
                _pointer_with(choose=lambda wanted: (wanted + torch.arange(len(wanted))) % len(wanted)),
            "the first and the last position share one point: the circle is divided into one part too few.":
                _pointer_with(points=_closed_circle),
            "cos and sin take the angle in another unit than degrees.": _pointer_with(points=_in_degrees),
            "only the product of the cosines is there; the addition formula has a second one.":
                _pointer_with(points=lambda length: _points(length) * torch.tensor([1.0, 0.0]).double()),
            "the points stand on a line, and the one with the highest number always wins.":
                _pointer_with(points=lambda length: torch.arange(length).double()[:, None].expand(-1, 2)),
        },
        REVERSAL: {
            "one sine has the wrong sign: each query looks at the mirror image of what it wants.":
                _pointer_with(other=lambda length: _points(length) * torch.tensor([1.0, -1.0]).double()),
        },
        SCALE: {
            "the best keys are right, and all weights are too small. Does the scale follow the length and the weight?":
                _pointer_with(scale=lambda length, weight: 1.0),
            "the scale is 10, as in the example of six positions; it must grow with the length.":
                _pointer_with(scale=lambda length, weight: 10.0),
            "the best keys are right, and all weights are too large. Does the scale follow the length and the weight?":
                _pointer_with(scale=lambda length, weight: 1e6),
            "the scale grows with the length; it must grow with its square.":
                _pointer_with(scale=lambda length, weight: _sharp(6, weight) * length / 6),
            "the scale is that for a weight of 0.9, whatever is asked for.":
                _pointer_with(scale=lambda length, weight: _sharp(length, 0.9)),
            "the scale is searched up to 10,000 or so, and long sentences need more.":
                _pointer_with(scale=lambda length, weight: min(_sharp(length, weight), 10_000.0)),
            "the scale is negative, so the right key has the lowest score.":
                _pointer_with(scale=lambda length, weight: -_sharp(length, weight)),
        },
        EXERCISE_POINTER: {
            "a formula that counts two neighbours alone is too coarse; with a small weight the next ones count, too.":
                _pointer_with(scale=_by_formula),
            "the scale is tried in whole numbers, and these are too coarse for few positions.":
                _pointer_with(scale=_whole_numbers),
        },
    }),
)  # fmt: skip


# 05.5. Pairs near and far are asked for, in both orders, the two ends and the last two among them; in turn for an odd
# number of positions, the fewest, the most and an even number. What counts are the two weights; how many columns there
# are is up to the answer, up to four.


def _pair_inputs(draw):
    length = draw.in_turn((2 * draw.integer(3, 5) + 1, 6, 12, 2 * draw.integer(4, 5)))
    first = draw.normal(length).argsort()
    apart = torch.arange(length) % (length - 1) + 1
    wanted = torch.stack([first, (first + apart) % length], dim=1)
    last, row = length - 1, draw.integer(1, length - 1)
    wanted[[row - 1, row]] = torch.tensor(draw.in_turn([[[0, last], [last - 1, last]], [[last, 0], [last, last - 1]]]))
    return {"wanted": wanted}


def _pair_run(answer, wanted):
    shape_1, shape_2, scores = _product(answer(wanted=wanted))
    if scores is None or scores.shape != (len(wanted), len(wanted)):
        others = dict.fromkeys(("the two best keys", "weights of the first", "weights of the second"))
        return {"shapes": _shapes(shape_1, shape_2), **others}
    best = scores.double().topk(2, dim=-1).indices.sort(dim=-1).values
    weights = scores.double().softmax(dim=-1).gather(1, wanted)
    return {
        "shapes": "at most four columns" if shape_1.shape[1] <= 4 else "more than four columns",
        "the two best keys": best,
        "weights of the first": _which(~(weights[:, 0] >= 0.45), "too small"),
        "weights of the second": _which(~(weights[:, 1] >= 0.45), "too small"),
    }


def _pair_polynomial(wanted):
    p, q = wanted.double().T
    j = torch.arange(len(wanted)).double()
    R1 = torch.stack([2 * (p + q) * p * q, -((p + q) ** 2) - 2 * p * q, 2 * (p + q), -torch.ones_like(p)], dim=1)
    return 5 * R1, torch.stack([j, j**2, j**3, j**4], dim=1)


def _pair_waves(length, times=(1, 2)):
    angle = 2 * pi * torch.arange(length).double() / length
    return torch.cat([torch.stack([(m * angle).cos(), (m * angle).sin()], dim=1) for m in times], dim=1)


def _pair_circle(wanted, scale=200.0):
    """-(1 - cos(t - alpha)) (1 - cos(t - beta)), multiplied out."""
    alpha, beta = (2 * pi * wanted.double() / len(wanted)).T
    both = alpha + beta
    R1 = [alpha.cos() + beta.cos(), alpha.sin() + beta.sin(), -both.cos() / 2, -both.sin() / 2]
    return scale * torch.stack(R1, dim=1), _pair_waves(len(wanted))


def _pair_solved(wanted):
    """The same scores on other columns: least squares find the factor, and a column of ones takes the constant."""
    j = torch.arange(len(wanted)).double()
    goal = -(((j - wanted[:, :1]) * (j - wanted[:, 1:])) ** 2)
    middle = j - j.mean()
    columns = torch.stack([middle**power for power in range(5)], dim=1)
    return 5 * torch.linalg.lstsq(columns, goal.T).solution.T[:, 1:], columns[:, 1:]


def _pair_middle(wanted):
    points = _pair_waves(len(wanted), (1,))
    return 100 * (points[wanted[:, 0]] + points[wanted[:, 1]]), points


def _pair_svd(wanted):
    goal = torch.zeros(len(wanted), len(wanted)).double().scatter(1, wanted, 100.0)
    U, sizes, V_rows = torch.linalg.svd(goal)
    return U[:, :4] * sizes[:4], V_rows[:4].T


def _pair_one_hot(wanted):
    return torch.zeros(len(wanted), len(wanted)).scatter(1, wanted, 100.0), torch.eye(len(wanted))


def _pair_waves_added(wanted):
    """Two waves of four columns for each key, added: highest in the middle of near keys."""
    points = _pair_waves(len(wanted))
    return 100 * (points[wanted[:, 0]] + points[wanted[:, 1]]), points


def _pair_not_squared(wanted):
    p, q = wanted.double().T
    j = torch.arange(len(wanted)).double()
    return 20 * torch.stack([p + q, -torch.ones_like(p)], dim=1), torch.stack([j, j**2], dim=1)


PAIR_FACTORS = Exercise(
    key="05.5",
    title="two keys for each query",
    name="pair_factors",
    minutes=45,
    level="hard",
    inputs=_pair_inputs,
    trials=4,
    returns="R1, R2",
    run=_pair_run,
    right=(_pair_polynomial, _pair_circle, _pair_solved),
    wrong=mistakes({
        BREAKS: {
            "on one circle a query that points between two keys likes what lies there best.": _pair_middle,
            "two waves are added, one for each key; where the keys are near each other, they blur into one top.":
                _pair_waves_added,
            "only the first key gets the weight.":
                lambda wanted: (1000 * _pair_waves(len(wanted), (1,))[wanted[:, 0]], _pair_waves(len(wanted), (1,))),
            "only the second key gets the weight.":
                lambda wanted: (1000 * _pair_waves(len(wanted), (1,))[wanted[:, 1]], _pair_waves(len(wanted), (1,))),
            "the factors have more than four columns; at most four are allowed.": _pair_one_hot,
        },
        BEST: {
            "this is the best table of rank 4, by squared differences; attention asks for the highest scores.":
                _pair_svd,
        },
        EXERCISE_PAIRS: {
            "the two distances are multiplied, but not squared: between the keys the product has another sign.":
                _pair_not_squared,
            "the scores have the wrong sign: both keys are the lowest.":
                lambda wanted: (-_pair_polynomial(wanted)[0], _pair_polynomial(wanted)[1]),
            "the scores are right, but too small: other keys keep weight.": lambda wanted: _pair_circle(wanted, 1.0),
            "the highest power is left out.":
                lambda wanted: tuple(factor[:, :3] for factor in _pair_polynomial(wanted)),
            "the product is not multiplied out: the parts with both keys are missing.":
                lambda wanted: (
                    _pair_polynomial(wanted)[0] * torch.tensor([0.0, 1, 1, 1]), _pair_polynomial(wanted)[1]
                ),
            "the two factors are exchanged.": lambda wanted: _pair_polynomial(wanted)[::-1],
        },
    }),
)  # fmt: skip

EXERCISES = [NEW_ROWS, BEST_FACTORS, LARGEST_RANK, POINTER_FACTORS, PAIR_FACTORS]
