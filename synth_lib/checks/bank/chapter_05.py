"""The exercises of chapter 05, Factorized Random: equation (7) of arXiv 2005.00743."""

from math import cos, pi, sqrt

import torch
from einops import einsum, rearrange

from synth_lib.checks.exercise import Exercise, Reads, RowsSumTo1, mistakes
from synth_lib.scores import FactorizedRandom, Random

EQUATION = "The equation"
MATMUL = "A matrix product"
KEY_AXIS = "Both factors on the key axis"
TWICE = "A name twice in one tensor"
HEADS = "Heads and shorter inputs"
RESULT = "From scores to the result"
BEST = "The best table of rank k"
FULL_RANK = "The same as Random at full rank"
PARAMETERS = "Parameters"
CIRCLE = "Points on a circle"
REVERSAL = "A reversal"
SCALE = "How large the factor c must be"


# 05.1


def _maps_inputs(draw):
    sizes = draw.sizes("head rank length max_length", high=9)
    head, rank = sizes["head"], sizes["rank"]
    length, max_length = sorted((sizes["length"], sizes["max_length"]))
    return {
        "R1": draw.normal(head, max_length, rank),
        "R2": draw.normal(head, max_length, rank),
        "length": length,
    }


TABLE = "head query rank, head key rank -> head query key"


def _table(R1, R2, length):
    return einsum(R1[:, :length], R2[:, :length], TABLE)


def _maps_einsum(R1, R2, length):
    return _table(R1, R2, length).softmax(dim=-1)


def _maps_matmul(R1, R2, length):
    scores = R1 @ R2.transpose(1, 2)
    return torch.softmax(scores[:, :length, :length], dim=2)


def _maps_in_loops(R1, R2, length):
    head, _, rank = R1.shape
    weights = torch.zeros(head, length, length)
    for h in range(head):
        for i in range(length):
            for j in range(length):
                weights[h, i, j] = sum(R1[h, i, r] * R2[h, j, r] for r in range(rank)).exp()
            weights[h, i] /= weights[h, i].sum()
    return weights


def _maps_cut_and_divided(R1, R2, length):
    weights = einsum(R1, R2, TABLE).softmax(dim=-1)[:, :length, :length]
    return weights / weights.sum(dim=-1, keepdim=True)


def _maps_zero_scores(R1, R2, length):
    outside = torch.arange(R1.shape[1]) >= length
    scores = einsum(R1, R2, TABLE).masked_fill(outside, 0.0)
    return scores.softmax(dim=-1)[:, :length, :length]


def _one_row(R1, R2, length):
    return (R1 * R2)[:, :length].sum(dim=-1)


SHORT_MAPS = Exercise(
    key="05.1",
    title="the maps of a short input",
    name="short_maps",
    minutes=10,
    level="easy",
    inputs=_maps_inputs,
    returns="head query key",
    properties=(RowsSumTo1(), Reads("R1", 1, 1, "query"), Reads("R1", 0, 0, "head")),
    right=(_maps_einsum, _maps_matmul, _maps_in_loops, _maps_cut_and_divided),
    wrong=mistakes({
        KEY_AXIS: {
            "both factors carry the key axis, so every query gets the same row.":
                lambda R1, R2, length: _one_row(R1, R2, length)[:, None].expand(-1, length, -1).softmax(dim=-1),
            "both factors carry the query axis, so all keys of a row get the same weight.":
                lambda R1, R2, length: _one_row(R1, R2, length)[:, :, None].expand(-1, -1, length).softmax(dim=-1),
        },
        TWICE: {
            "only the diagonal of the table is filled: position i meets position i alone.":
                lambda R1, R2, length: torch.diag_embed(_one_row(R1, R2, length)).softmax(dim=-1),
        },
        EQUATION: {
            "the first factor is multiplied by itself; the second one is not used.":
                lambda R1, R2, length: _maps_einsum(R1, R1, length),
            "the second factor is multiplied by itself; the first one is not used.":
                lambda R1, R2, length: _maps_einsum(R2, R2, length),
            "query and key are swapped: the rows should belong to the first factor.":
                lambda R1, R2, length: _maps_einsum(R2, R1, length),
            "the scores are divided by the root of the rank, as for the dot product; equation (7) is not.":
                lambda R1, R2, length: (_table(R1, R2, length) / sqrt(R1.shape[2])).softmax(dim=-1),
            "it takes the mean over the rank, not the sum.":
                lambda R1, R2, length: (_table(R1, R2, length) / R1.shape[2]).softmax(dim=-1),
            "only column 0 of the factors is used; the sum runs over all of them.":
                lambda R1, R2, length: _maps_einsum(R1[..., :1], R2[..., :1], length),
            "only the last column of the factors is left: a loop overwrites where it should add.":
                lambda R1, R2, length: _maps_einsum(R1[..., -1:], R2[..., -1:], length),
        },
        RESULT: {
            "the softmax is right, but the map is transposed afterwards: its columns sum to 1.":
                lambda R1, R2, length: _maps_einsum(R1, R2, length).transpose(1, 2),
            "these are the scores; the softmax is missing.": _table,
            "the exponentials are not divided by the sum of their row.":
                lambda R1, R2, length: _table(R1, R2, length).exp(),
            "the scores are divided by their sum, but the softmax takes the exponential first.":
                lambda R1, R2, length: _table(R1, R2, length) / _table(R1, R2, length).sum(dim=-1, keepdim=True),
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.":
                lambda R1, R2, length: _table(R1, R2, length).softmax(dim=1),
            "the softmax runs along the heads. A softmax without dim can do that too.":
                lambda R1, R2, length: _table(R1, R2, length).softmax(dim=0),
            "the softmax runs over the whole table of a head; every row should sum to 1.":
                lambda R1, R2, length: _table(R1, R2, length).flatten(1).softmax(dim=-1).unflatten(1, (length, length)),
        },
        MATMUL: {
            "the second factor is reshaped where it should be turned; its numbers land on other positions.":
                lambda R1, R2, length: (R1[:, :length] @ R2[:, :length].reshape(len(R2), R2.shape[2], length)).softmax(
                    dim=-1
                ),
        },
        HEADS: {
            "the map is cut after the softmax, so its rows sum to less than 1.":
                lambda R1, R2, length: einsum(R1, R2, TABLE).softmax(dim=-1)[:, :length, :length],
            "the scores of the positions outside are set to 0, and a score of 0 still gets a share.": _maps_zero_scores,
            "nothing is cut: the map has rows and columns for positions that this input does not have.":
                lambda R1, R2, length: einsum(R1, R2, TABLE).softmax(dim=-1),
            "only the keys are cut; there are too many queries.":
                lambda R1, R2, length: einsum(R1, R2[:, :length], TABLE).softmax(dim=-1),
            "only the queries are cut; there are too many keys.":
                lambda R1, R2, length: einsum(R1[:, :length], R2, TABLE).softmax(dim=-1),
            "it keeps the last positions. Where does an input start?":
                lambda R1, R2, length: einsum(R1[:, -length:], R2[:, -length:], TABLE).softmax(dim=-1),
            "all heads use the factors of head 0.":
                lambda R1, R2, length: _maps_einsum(R1[:1].expand_as(R1), R2[:1].expand_as(R2), length),
            "the heads are added up; each should keep a map of its own.":
                lambda R1, R2, length: _table(R1, R2, length).sum(dim=0).softmax(dim=-1),
            "the numbers are there, but head stands last instead of first.":
                lambda R1, R2, length: rearrange(_maps_einsum(R1, R2, length), "head query key -> query key head"),
        },
    }),
)  # fmt: skip


# 05.2 and 05.4 ask for two factors. Many pairs have the same product, so what is compared is made of the product.


def _product(factors):
    """The shapes of R1 and R2, as tensors of zeros, and R1 R2^T."""
    if not isinstance(factors, (tuple, list)) or len(factors) != 2:
        raise TypeError("the answer must be a tuple of two tensors, R1 and R2")
    R1, R2 = factors
    if not all(isinstance(factor, torch.Tensor) and factor.dim() >= 2 for factor in factors):
        raise TypeError("R1 and R2 must be tensors with at least two axes")
    fits = R1.shape[:-2] == R2.shape[:-2] and R1.shape[-1] == R2.shape[-1]
    return torch.zeros(R1.shape), torch.zeros(R2.shape), R1 @ R2.transpose(-2, -1) if fits else None


def _best_inputs(draw):
    sizes = draw.sizes("head rank length", high=8)
    rank, length = sorted((sizes["rank"], sizes["length"]))
    return {"R": draw.normal(sizes["head"], length, length), "rank": rank}


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
    returns="shape of R1, shape of R2, product",
    run=lambda answer, **arguments: _product(answer(**arguments)),
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
        },
        FULL_RANK: {
            "the singular values of head 0 are used in all heads.": _sizes_of_head_0,
            "the third tensor of the SVD is not turned: its parts are rows, and columns were taken.": _columns_of_rows,
            "the two factors are exchanged, so the product is transposed.": lambda R, rank: _parts(R, rank, 1, 0)[::-1],
            "all heads use the table of head 0.": _head_0,
        },
    }),
)  # fmt: skip


# 05.3. Asked for max_length and for the next number, so that one of the two is even and one is odd, and for 1 and 2,
# where no rank will do.


def _rank_inputs(draw):
    return {"max_length": draw.integer(11, 40), "head": draw.integer(3, 6)}


def _rank_run(answer, max_length, head):
    results = {}
    for length in (max_length, max_length + 1, 1, 2):
        try:
            rank = answer(max_length=length, head=head)
        except Exception as error:
            if error.args:  # the blank raises without any
                error.args = (f"{error}, for max_length {length}.",)
            raise
        results[f"max_length {length} (several are tried)"] = rank
    return results


def _rank_formula(max_length, head):
    return (max_length - 1) // 2


def _rank_loop(max_length, head):
    best = 0
    for k in range(1, max_length):
        if head * 2 * max_length * k < head * max_length**2:
            best = k
    return best


def _rank_counted(max_length, head):
    def count(score):
        return sum(parameter.numel() for parameter in score.parameters())

    limit = count(Random(head, head, max_length))
    k = 0
    while count(FactorizedRandom(head, head, max_length, rank=k + 1)) < limit:
        k += 1
    return k


LARGEST_RANK = Exercise(
    key="05.3",
    title="up to which rank is it smaller?",
    name="largest_rank",
    minutes=5,
    level="easy",
    inputs=_rank_inputs,
    returns="a whole number",
    run=_rank_run,
    right=(_rank_formula, _rank_loop, _rank_counted),
    wrong=mistakes({
        PARAMETERS: {
            "for lengths 1 and 2 no rank will do, and the answer is 0.":
                lambda max_length, head: max(1, (max_length - 1) // 2),
            "with even lengths this rank costs as much as Random; equal is not fewer.":
                lambda max_length, head: max_length // 2,
            "with odd lengths the next rank would be smaller than Random too.":
                lambda max_length, head: max_length // 2 - 1,
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


# 05.4. What counts is the map: where each row is highest, and whether that weight is large enough. Both directions
# are asked for, so that a sign cannot be right by chance. A row whose key is outside may look anywhere.


def _shift_inputs(draw):
    return {"length": draw.integer(9, 30), "shift": draw.integer(1, 3)}


def _shift_map(factors, length, shift):
    """What is compared: two shapes, the best key of each query that has one, whether its weight is 0.9 or more."""
    shape_1, shape_2, scores = _product(factors)
    if scores is None or scores.shape != (length, length):
        return shape_1, shape_2, None, None
    i = torch.arange(length)
    i = i[(i + shift >= 0) & (i + shift < length)]
    weights = scores.double().softmax(dim=-1)
    return shape_1, shape_2, weights[i].argmax(dim=-1), weights[i, i + shift] >= 0.9


def _shift_run(answer, length, shift):
    forwards = _shift_map(answer(length=length, shift=shift), length, shift)
    backwards = _shift_map(answer(length=length, shift=-shift), length, -shift)
    return *forwards, *backwards[2:]


def _circle(query_angle, key_angle, c):
    query_angle, key_angle = query_angle.double(), key_angle.double()
    R1 = c * torch.stack([query_angle.cos(), query_angle.sin()], dim=1)
    return R1.float(), torch.stack([key_angle.cos(), key_angle.sin()], dim=1).float()


def _sharp(length):
    return 4 / (1 - cos(2 * pi / length))


def _angles(length):
    return 2 * pi * torch.arange(length) / length


def _shift_circle(length, shift):
    return _circle(_angles(length) + 2 * pi * shift / length, _angles(length), _sharp(length))


def _shift_rolled(length, shift):
    _, points = _circle(_angles(length), _angles(length), 1)
    wanted = (torch.arange(length) + shift) % length
    root = sqrt(2 * _sharp(length))
    return root * points[wanted], root * points


def _shift_parabola(length, shift):
    position = torch.arange(length, dtype=torch.float32)
    R1 = torch.stack([2 * (position + shift), -torch.ones(length)], dim=1)
    return 4 * R1, torch.stack([position, position**2], dim=1)


def _shift_in_loops(length, shift):
    R1, R2 = torch.zeros(length, 2), torch.zeros(length, 2)
    for i in range(length):
        angle = pi * i / length  # half a circle has room for all positions too
        R2[i] = torch.tensor([cos(angle), cos(angle - pi / 2)])
        angle = pi * (i + shift) / length
        R1[i] = 4 / (1 - cos(pi / length)) * torch.tensor([cos(angle), cos(angle - pi / 2)])
    return R1, R2


def _closed_circle(length, shift):
    angle = torch.linspace(0, 2 * pi, length)
    return _circle(angle + 2 * pi * shift / length, angle, _sharp(length))


def _cosine_alone(length, shift):
    R1, R2 = _shift_circle(length, shift)
    return R1 * torch.tensor([1.0, 0.0]), R2


SHIFT_FACTORS = Exercise(
    key="05.4",
    title="factors for any shift",
    name="shift_factors",
    minutes=15,
    level="medium",
    inputs=_shift_inputs,
    returns="shape of R1, shape of R2, best keys, weights, best keys with -shift, weights with -shift",
    run=_shift_run,
    right=(_shift_circle, _shift_rolled, _shift_parabola, _shift_in_loops),
    wrong=mistakes({
        CIRCLE: {
            "it looks in the opposite direction. Two factors that are exchanged do that too.":
                lambda length, shift: _shift_circle(length, -shift),
            "it always looks forwards; the sign of the shift is lost.":
                lambda length, shift: _shift_circle(length, abs(shift)),
            "it always looks at the position before, whatever the shift.":
                lambda length, shift: _shift_circle(length, -1),
            "every position looks at itself: the shift has no effect.": lambda length, shift: _shift_circle(length, 0),
            "the shift is applied to both factors, with opposite signs, so it counts twice.":
                lambda length, shift: _shift_circle(length, 2 * shift),
            "the shift is added as it is; it must be turned into an angle first.":
                lambda length, shift: _circle(_angles(length) + shift, _angles(length), _sharp(length)),
            "the first and the last position share one point: the circle is divided into one part too few.":
                _closed_circle,
            "only the product of the cosines is there; the addition formula has a second one.": _cosine_alone,
        },
        REVERSAL: {
            "one sine has the wrong sign, so it is a reversal and not a shift.":
                lambda length, shift: _circle(
                    -_angles(length) - 2 * pi * shift / length, _angles(length), _sharp(length)
                ),
        },
        SCALE: {
            "the best keys are right, but their weights are too small. Look at the scale, and at the unit of angles.":
                lambda length, shift: _circle(_angles(length) + 2 * pi * shift / length, _angles(length), 1),
            "the scale is negative, so the right key has the lowest score.":
                lambda length, shift: _circle(
                    _angles(length) + 2 * pi * shift / length, _angles(length), -_sharp(length)
                ),
        },
    }),
)  # fmt: skip

EXERCISES = [SHORT_MAPS, BEST_FACTORS, LARGEST_RANK, SHIFT_FACTORS]
