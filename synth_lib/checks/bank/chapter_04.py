"""The exercises of chapter 04, Factorized Dense: equations (5) and (6) of arXiv 2005.00743."""

from itertools import combinations, product
from math import gcd, isqrt, sqrt

import torch
from einops import einsum, rearrange

from synth_lib.checks.compare import plain_copy
from synth_lib.checks.exercise import Exercise, mistakes

PAPER = "Tile and repeat, on paper"
PICTURE = "The row as a picture"
LOST = "Two tiles, or two repeats: what gets lost"
LADDER = "The ladder"
EQUATIONS = "The equations"
LOOKS = "What a row looks like"
HEADS = "Heads, shorter inputs, masks"
PARAMETERS = "Parameters"
NUMBERS = "Fewer numbers than positions"
CONSTANT = "What helps: a constant, and a sign"
ROW_OF_EXERCISE = "Exercise 04.5: can this row be made?"
DIAGONAL = "What fails: three positions on a diagonal"


def _index(first, second):
    """Indices into A and B for each of the positions, both stretched as said: "tile" or "repeat"."""

    def stretched(A, B):
        a, b = A.shape[-1], B.shape[-1]
        j = torch.arange(a * b)
        long_A = A[..., j % a if first == "tile" else j // b]
        return long_A, B[..., j % b if second == "tile" else j // a]

    return stretched


def _stretch(A, B, first="tile", second="repeat"):
    long_A, long_B = _index(first, second)(A, B)
    return long_A * long_B


# 04.1. One trial has one query and a long A, one many queries and a short A, in whose products are zeros, one an A of
# one number, where the two orders agree, one an A as long as B, and one has one key.


def _order_inputs(draw):
    sizes = draw.sizes("query tile repeat")
    short, long = sorted((sizes["tile"], sizes["repeat"]))
    sizes |= draw.in_turn([
        {"query": 1, "tile": long + 5, "repeat": short},
        {"tile": 1, "repeat": 6},
        {"query": 8, "tile": short, "repeat": long},
        {"tile": 1, "repeat": 1},
        {"tile": long, "repeat": long},
    ])
    A, B = draw.normal(sizes["query"], sizes["tile"]), draw.normal(sizes["query"], sizes["repeat"])
    if sizes["query"] == 8:
        A[0, 0], A[-1, -1] = 0, 0
    return {"scores": _stretch(A, B, "repeat", "tile"), "a": sizes["tile"]}


def _order_reshaped(scores, a):
    return scores.reshape(len(scores), a, -1).transpose(1, 2).reshape(scores.shape)


def _order_in_loops(scores, a):
    query, key = scores.shape
    b = key // a
    ours = torch.zeros(query, key)
    for j in range(key):
        ours[:, j] = scores[:, (j % a) * b + j // a]
    return ours


def _order_of_slices(scores, a):
    b = scores.shape[1] // a
    return torch.cat([scores[:, r::b] for r in range(b)], dim=1)


OUR_ORDER = Exercise(
    key="04.1",
    title="a layer with another order",
    name="our_order",
    minutes=13,
    level="easy",
    inputs=_order_inputs,
    trials=5,
    returns="query key",
    example=lambda: {"scores": torch.tensor([[10.0, 20, 30, 70, 140, 210]]), "a": 2},
    right=(
        lambda scores, a: rearrange(scores, "query (tile repeat) -> query (repeat tile)", tile=a),
        _order_reshaped,
        _order_in_loops,
        _order_of_slices,
    ),
    wrong=mistakes({
        PAPER: {
            "the positions stay where they were.": lambda scores, a: scores.clone(),
            "this is the way back, from our order to theirs.":
                lambda scores, a: rearrange(scores, "query (repeat tile) -> query (tile repeat)", tile=a),
            "the row is read from its end.": lambda scores, a: scores.flip(1),
            "the numbers are sorted; each has a position of its own, whatever its size.":
                lambda scores, a: scores.sort(dim=1).values,
            "the numbers start at another position, but stay in their order.": lambda scores, a: scores.roll(1, dims=1),
            "these are positions, one for each key. The scores that stand there are asked for.":
                lambda scores, a: torch.arange(scores.shape[1]).reshape(a, -1).T.flatten(),
            "every position gets the score of the position with the same index into B alone.":
                lambda scores, a: scores[:, torch.arange(scores.shape[1]) // a],
            "every position gets the score of the position with the same index into A alone.":
                lambda scores, a: scores[:, torch.arange(scores.shape[1]) % a],
        },
        PICTURE: {
            "these are the pictures, turned. Each still has to be laid out as one row.":
                lambda scores, a: rearrange(scores, "query (tile repeat) -> query repeat tile", tile=a),
            "these are their pictures: turn each, then lay it out as one row.":
                lambda scores, a: rearrange(scores, "query (tile repeat) -> query tile repeat", tile=a),
            "rows and columns are swapped: a row should still belong to a query.":
                lambda scores, a: _order_reshaped(scores, a).T,
            "every query gets the row of query 0.":
                lambda scores, a: _order_reshaped(scores, a)[:1].repeat(len(scores), 1),
            "axes of size 1 are gone: squeeze also removes the axis of one query, or of one key.":
                lambda scores, a: _order_reshaped(scores, a).squeeze(),
            "query and key are mixed: the queries should stay apart.":
                lambda scores, a: scores.reshape(a, -1).T.reshape(scores.shape),
        },
        EQUATIONS: {
            "it goes one step too far: these are weights, and scores are asked for.":
                lambda scores, a: _order_reshaped(scores, a).softmax(dim=-1),
        },
    }),
)  # fmt: skip


# 04.2. The lengths share a divisor, and neither divides the other: then no two stretchings reach equally many. Lists of
# one number, short ones of odd length, and long ones, in which 32-bit numbers meet, are asked for as well: the longest
# again and again, since random numbers meet in some draws only. It is not needed, and takes too long, where an answer
# asks for one pair at a time.


def _tile_repeat(A, B):
    return (B[:, None] * A).flatten()  # fast: an answer may ask for one pair at a time


def _tile_tile(A, B):
    return _stretch(A, B, "tile", "tile")


def _repeat_repeat(A, B):
    return _stretch(A, B, "repeat", "repeat")


def _repeat_tile(A, B):
    return (A[:, None] * B).flatten()


def _half_again(A, B):
    row = _stretch(A, B)
    half = len(row) // 2
    return torch.cat([row[:half], row[:half], row[2 * half :]])


def _without_last(A, B):
    j = torch.arange(len(A) * len(B))
    return A[j % len(A)] * B[(j // len(A)).clamp(max=len(B) - 2)]


def _first_alone(A, B):
    return A[0] * B.repeat_interleave(len(A))


STRETCHINGS = {
    "stretching 1": _tile_repeat,
    "stretching 2": _tile_tile,
    "stretching 3": _repeat_repeat,
    "stretching 4": _repeat_tile,
    "stretching 5": _half_again,
    "stretching 6": _without_last,
    "stretching 7": _first_alone,
}


def _count_inputs(draw):
    while True:
        shared, first, second = draw.integer(2, 3), draw.integer(2, 4), draw.integer(2, 4)
        if gcd(first, second) == 1:
            return {"stretch": dict(STRETCHINGS), "a": shared * first, "b": shared * second}


def _count_run(answer, stretch, a, b):
    asked = [(name, a, b) for name in stretch]
    asked += [("stretching 1", a, 1), ("stretching 6", 1, b)]
    asked += [("stretching 1", 9, 9), ("stretching 1", 49, 60), ("stretching 4", 60, 49)]
    calls = []

    def counted(A, B):
        calls.append(1)
        return stretch["stretching 1"](A, B)

    first = answer(stretch=counted, a=60, b=60)
    for _ in range(60 if len(calls) < 5 else 0):
        other = answer(stretch=counted, a=60, b=60)
        if type(other) is type(first) is int and other != first:
            raise ArithmeticError(f"asked again, the same lists of 60 and 60 have {other} pairs, and not {first}")
    return {"lists of 60 and 60": first} | {
        name if (a, b) == (own_a, own_b) else f"{name}, of lists of {own_a} and {own_b}": answer(
            stretch=stretch[name], a=own_a, b=own_b
        )
        for name, own_a, own_b in asked
    }


PRIMES = [n for n in range(2, 660) if all(n % divisor for divisor in range(2, isqrt(n) + 1))]  # 120 of them


def _count_values(A, B):
    """Put in what A(a) and B(b) give, and count the different values of the row."""
    return lambda stretch, a, b: len(stretch(torch.as_tensor(A(a)), torch.as_tensor(B(b))).unique())


def _count_of_primes(count):
    """Put in primes, and count in the row as `count` does."""
    return lambda stretch, a, b: count(stretch(torch.tensor(PRIMES[:a]), torch.tensor(PRIMES[a : a + b])))


_count_primes = _count_of_primes(lambda row: len(set(row.tolist())))


def _count_numbers_of_one_A(stretch, a, b):
    """One number of A at a time, with all of B: those that are not 0 are the products with it."""
    B = torch.arange(1.0, b + 1)
    return sum(len(set(stretch(A, B).tolist()) - {0}) for A in torch.eye(a))


def _count_one_by_one(stretch, a, b):
    return sum(bool(stretch(A, B).any()) for A in torch.eye(a) for B in torch.eye(b))


def _random_64(n):
    return torch.rand(n, dtype=torch.float64) + 1


COUNT_PRODUCTS = Exercise(
    key="04.2",
    title="how many products does this code reach?",
    name="count_products",
    minutes=12,
    level="medium",
    inputs=_count_inputs,
    returns="a whole number",
    run=_count_run,
    trials=2,
    right=(_count_primes, _count_values(_random_64, _random_64), _count_numbers_of_one_A, _count_one_by_one),
    wrong=mistakes({
        PAPER: {
            "different pairs of your numbers have one product, as 2 times 6 and 3 times 4.":
                _count_values(lambda n: range(1, n + 1), lambda n: range(1, n + 1)),
            "one of your numbers is 0, and every product with it looks the same.":
                _count_values(range, range),
            "A and B hold the same numbers, and then 2 times 3 and 3 times 2 look the same.":
                _count_values(lambda n: PRIMES[:n], lambda n: PRIMES[:n]),
            "your numbers come with both signs, and two minus signs make a plus: two pairs look the same.":
                _count_values(lambda n: torch.arange(n) * 2.0 - n + 1, lambda n: torch.arange(n) * 2.0 - n + 1),
            "both lists hold powers of one number, and their products meet wherever the exponents sum to the same.":
                _count_values(lambda n: 2.0 ** torch.arange(n), lambda n: 2.0 ** torch.arange(n)),
            "all your numbers are equal, so all products are.": _count_values(torch.ones, torch.ones),
            "the numbers grow past what a tensor holds, as powers of 2 do where the lists are long.":
                lambda stretch, a, b: stretch(
                    2.0 ** torch.arange(a).double(), 2.0 ** (a * torch.arange(b)).double()
                ).unique().numel(),
            "the numbers of B are larger than those of A, but 2 times 30 and 3 times 20 are still the same.":
                _count_values(lambda n: range(1, n + 1), lambda n: range(101, 101 + n)),
            "A holds one number everywhere, so you count the numbers of B.":
                _count_values(torch.ones, lambda n: PRIMES[:n]),
            "B holds one number everywhere, so you count the numbers of A.":
                _count_values(lambda n: PRIMES[:n], torch.ones),
        },
        LOST: {
            "it says that nothing is ever lost.": lambda stretch, a, b: a * b,
            "it does not call the function, and takes it for two tiles.":
                lambda stretch, a, b: a * b // gcd(a, b),
            "it does not call the function, and takes it for two repeats.":
                lambda stretch, a, b: a + b - gcd(a, b),
            "this is how many are lost, not how many are reached.":
                lambda stretch, a, b: a * b - _count_primes(stretch, a, b),
            "only neighbours are compared; a value can come again later.":
                _count_of_primes(lambda row: len(row.unique_consecutive())),
            "it counts the values that stand in the row once; those that stand there twice are reached, too.":
                _count_of_primes(lambda row: int((row.unique(return_counts=True)[1] == 1).sum())),
            "the lists are given in the wrong order: b numbers as A and a numbers as B.":
                lambda stretch, a, b: _count_primes(stretch, b, a),
            "only the first half of the row is looked at.":
                _count_of_primes(lambda row: len(row[: len(row) // 2].unique())),
        },
    }) + mistakes({
        PAPER: {
            "your numbers have so few digits, as those of 32 bits, that of thousands of products some meet by chance.":
                _count_values(lambda n: torch.rand(n) + 1, lambda n: torch.rand(n) + 1),
        },
    }, error="asked again, the same lists"),
)  # fmt: skip


# 04.3. The positions come in no order, and are neither the first nor the last ones. One trial has one sentence with one
# token, and positions that come again, one has one head and one position, one as many positions as tokens. These two
# with a single token or head have scores above 10,000 and below -10,000, of one sign, so that no rounding is in them.
# The others have short lists of one length, of one number, with a hundred positions, and many tokens.


def _score_inputs(draw):
    while True:
        sizes = draw.sizes("batch head d_head tile repeat")
        every = sizes.pop("length")
        tile, repeats = sizes["tile"], sizes["repeat"]
        key, length = draw.integer(3, every - 2), draw.integer(2, 9)
        if key != length and not {key, length} & {every, *sizes.values()}:
            break
    one = draw.in_turn([
        {}, {"batch": 1, "length": 1}, {"head": 1}, {"length": 12}, {"tile": 3, "repeat": 3},
        {"tile": 1, "d_head": 1}, {"repeat": 1, "tile": 5, "length": 40},
    ])  # fmt: skip
    sizes |= one
    head, d_head, length = sizes["head"], sizes["d_head"], one.get("length", length)
    tile, repeats, d_model = sizes["tile"], sizes["repeat"], head * d_head
    every = tile * repeats
    positions = torch.arange(every)
    while positions.equal(positions.sort().values):
        positions = draw.normal(every).argsort()[:key]
    if "head" in one:
        positions = torch.tensor([tile])
    elif "batch" in one:
        positions = torch.cat([positions, positions[:2]])
    elif one:
        positions = positions.repeat(100)[: 100 if "d_head" in one else 12]
    arguments = {
        "x": 4 * draw.normal(sizes["batch"], length, d_model),
        "W1": draw.normal(d_model, d_model) / sqrt(d_model),
        "b1": draw.normal(d_model),
        "WA": draw.normal(head, d_head, tile) / 4,
        "bA": draw.normal(head, tile),
        "WB": draw.normal(head, d_head, repeats) / 4,
        "bB": draw.normal(head, repeats),
        "positions": positions,
    }
    if sign := 1 if "batch" in one else -1 if "head" in one else 0:
        arguments |= {"x": 100 * arguments["x"].abs(), "W1": arguments["W1"].abs(), "WA": arguments["WA"].abs()}
        arguments["WB"] = sign * arguments["WB"].abs()
    return arguments


SPLIT = "batch query (head d_head) -> batch head query d_head"


def _hidden(x, W1, b1, WA, pattern=SPLIT):
    return rearrange((x @ W1 + b1).relu(), pattern, head=len(WA))


def _from_hidden(hidden, WA, bA, WB, bB, first="tile", second="repeat"):
    """The scores over all positions, from the hidden numbers "batch head query d_head"."""
    return _stretch(hidden @ WA + bA[:, None], hidden @ WB + bB[:, None], first, second)


def _all_positions(x, W1, b1, WA, bA, WB, bB, first="tile", second="repeat"):
    return _from_hidden(_hidden(x, W1, b1, WA), WA, bA, WB, bB, first, second)


def _scores_picked(x, W1, b1, WA, bA, WB, bB, positions):
    hidden = _hidden(x, W1, b1, WA)
    A = einsum(hidden, WA, "batch head query d_head, head d_head tile -> batch head query tile") + bA[:, None]
    B = einsum(hidden, WB, "batch head query d_head, head d_head repeat -> batch head query repeat") + bB[:, None]
    return A[..., positions % A.shape[-1]] * B[..., positions // A.shape[-1]]


def _scores_torch(x, W1, b1, WA, bA, WB, bB, positions):
    batch, length, _ = x.shape
    hidden = (x @ W1 + b1).relu().reshape(batch, length, len(WA), -1).transpose(1, 2)
    A, B = hidden @ WA + bA.unsqueeze(1), hidden @ WB + bB.unsqueeze(1)
    products = A.repeat(1, 1, 1, B.shape[-1]) * B.repeat_interleave(A.shape[-1], dim=-1)
    return products.index_select(3, positions)


def _scores_in_loops(x, W1, b1, WA, bA, WB, bB, positions):
    batch, length, _ = x.shape
    head, d_head, a = WA.shape
    scores = torch.zeros(batch, head, length, len(positions))
    for s in range(batch):
        for h in range(head):
            own = slice(h * d_head, (h + 1) * d_head)
            hidden = (x[s] @ W1[:, own] + b1[own]).relu()
            A, B = hidden @ WA[h] + bA[h], hidden @ WB[h] + bB[h]
            for n, j in enumerate(positions.tolist()):
                scores[s, h, :, n] = A[:, j % a] * B[:, j // a]
    return scores


def _picked(answer):
    """The same answer over all positions, of which those that are asked for are picked."""
    return lambda x, W1, b1, WA, bA, WB, bB, positions: answer(x, W1, b1, WA, bA, WB, bB)[..., positions]


SCORES_AT = Exercise(
    key="04.3",
    title="only the keys that are needed",
    name="scores_at",
    minutes=22,
    level="medium",
    inputs=_score_inputs,
    trials=7,
    returns="batch head query key",
    right=(_scores_picked, _scores_torch, _scores_in_loops, _picked(_all_positions)),
    wrong=mistakes({
        HEADS: {
            "it keeps the scores of all positions; those of some are asked for.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _all_positions(x, W1, b1, WA, bA, WB, bB),
            "it keeps the first positions, as many as are asked for. Which are asked for?":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _all_positions(x, W1, b1, WA, bA, WB, bB)[
                    ..., : len(positions)
                ],
            "the positions are put in order; the answer should follow the order in which they come.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, positions.sort().values
                ),
            "a position that is asked for twice is answered once.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, torch.tensor(list(dict.fromkeys(positions.tolist())))
                ),
            "the heads are cut out by a reshape alone, so a row of a head is fed by other tokens.":
                _picked(
                    lambda x, W1, b1, WA, bA, WB, bB: _from_hidden(
                        (x @ W1 + b1).relu().reshape(len(x), len(WA), x.shape[1], -1), WA, bA, WB, bB
                    )
                ),
            "the hidden numbers are dealt out to the heads like cards; each head owns neighbours.":
                _picked(
                    lambda x, W1, b1, WA, bA, WB, bB: _from_hidden(
                        _hidden(x, W1, b1, WA, "batch query (d_head head) -> batch head query d_head"), WA, bA, WB, bB
                    )
                ),
            "all heads use the short layers of head 0.":
                _picked(
                    lambda x, W1, b1, WA, bA, WB, bB: _from_hidden(
                        _hidden(x, W1, b1, WA),
                        WA[:1].expand_as(WA),
                        bA[:1].expand_as(bA),
                        WB[:1].expand_as(WB),
                        bB[:1].expand_as(bB),
                    )
                ),
            "the numbers are there, but head stands behind query.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, positions
                ).transpose(1, 2),
            "the heads are added up; each should keep scores of its own.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, positions
                ).sum(dim=1),
            "it goes one step too far: these are weights, and the exercise asks for the scores before them.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, positions
                ).softmax(dim=-1),
            "scores above 100 or below -100 are cut off there; a score may be as large as it comes.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, positions
                ).clamp(-100, 100),
            "no more positions are answered than the layer has; some may come again.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, positions[: WA.shape[-1] * WB.shape[-1]]
                ),
            "axes of size 1 are gone: squeeze also removes the axis of one sentence, head, token or position.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, positions
                ).squeeze(),
            "these are weights over all positions, of which some are picked. Scores are asked for.":
                _picked(lambda *inputs: _all_positions(*inputs).softmax(dim=-1)),
        },
        LOST: {
            "both lists are tiled. One of them should say each number several times in a row.":
                _picked(lambda *inputs: _all_positions(*inputs, first="tile", second="tile")),
            "both lists are repeated number by number. One of them should be laid again and again as a whole.":
                _picked(lambda *inputs: _all_positions(*inputs, first="repeat", second="repeat")),
        },
        PAPER: {
            "the two change places: A is repeated number by number, and B is tiled. Which length divides?":
                _picked(lambda *inputs: _all_positions(*inputs, first="repeat", second="tile")),
        },
        EQUATIONS: {
            "the two stretched lists are added; equation (6) has a product.":
                _picked(
                    lambda x, W1, b1, WA, bA, WB, bB: sum(
                        _index("tile", "repeat")(
                            _hidden(x, W1, b1, WA) @ WA + bA[:, None], _hidden(x, W1, b1, WA) @ WB + bB[:, None]
                        )
                    )
                ),
            "W1 is used the wrong way round; here its first axis is the one that goes in.":
                _picked(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1.T, b1, WA, bA, WB, bB)),
            "the scores are divided by the root of d_head, as for the dot product; equation (6) is not.":
                _picked(lambda x, W1, b1, WA, *others: _all_positions(x, W1, b1, WA, *others) / sqrt(WA.shape[1])),
            "query and key are swapped: a row should belong to a token that attends.":
                lambda x, W1, b1, WA, bA, WB, bB, positions: _scores_torch(
                    x, W1, b1, WA, bA, WB, bB, positions
                ).transpose(2, 3),
        },
        LADDER: {
            "there is no relu after the hidden layer.":
                _picked(
                    lambda x, W1, b1, WA, bA, WB, bB: _from_hidden(
                        rearrange(x @ W1 + b1, SPLIT, head=len(WA)), WA, bA, WB, bB
                    )
                ),
            "there is a second relu, on A and B; they may be negative.":
                _picked(
                    lambda x, W1, b1, WA, bA, WB, bB: _stretch(
                        (_hidden(x, W1, b1, WA) @ WA + bA[:, None]).relu(),
                        (_hidden(x, W1, b1, WA) @ WB + bB[:, None]).relu(),
                    )
                ),
            "the relu acts on A and B, not on the hidden numbers.":
                _picked(
                    lambda x, W1, b1, WA, bA, WB, bB: _stretch(
                        (rearrange(x @ W1 + b1, SPLIT, head=len(WA)) @ WA + bA[:, None]).relu(),
                        (rearrange(x @ W1 + b1, SPLIT, head=len(WA)) @ WB + bB[:, None]).relu(),
                    )
                ),
            "there is a second relu, on the scores; they may be negative.":
                _picked(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, bA, WB, bB).relu()),
            "the bias of the hidden layer is missing.":
                _picked(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, 0 * b1, WA, bA, WB, bB)),
            "the bias of A is missing.":
                _picked(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, 0 * bA, WB, bB)),
            "the bias of B is missing.":
                _picked(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, bA, WB, 0 * bB)),
            "the biases of A and B are missing.":
                _picked(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, 0 * bA, WB, 0 * bB)),
            "all biases are missing.":
                _picked(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, 0 * b1, WA, 0 * bA, WB, 0 * bB)),
        },
    }),
)  # fmt: skip


# 04.4. A trial asks for every length up to a limit: 1, primes, squares, products of many factors. They come as a list,
# so that a message names the one length that it is about.


# The best is at + 7, at + 8, and would be at + 9; then it is the square of 31, and of 32; then comes the last one.
ENDS = (401, 443, 487, 601, 652, 705, 901, 963, 1027, 961, 1024, 1100)


def _length_inputs(draw):
    return {"longest": [*range(1, draw.integer(40, 60)), *ENDS]}


def _for_each_length(answer, longest):
    """What the answer gives for each length, by a name that says which length it is."""
    results = {}
    for length in longest:
        try:
            found = answer(longest=length)
        except Exception as error:
            if error.args:  # the blank raises without any
                error.args = (f"{error}, for longest {length}.",)
            raise
        found = plain_copy(found)
        if isinstance(found, (tuple, list)) and any(isinstance(value, float) for value in found):
            raise TypeError(f"{found} holds a float; three whole numbers are asked for. It is for longest {length}.")
        results[f"longest {length}, the first of those that are wrong"] = found
    return results


def _pairs(length):
    return [(a, length // a) for a in range(1, isqrt(length) + 1) if length % a == 0]


def _window(longest, size=9):
    return [(length, a, b) for length in range(longest, longest + size) for a, b in _pairs(length)]


def _best_by_key(key, size=9):
    """The first in the window for which `key` is smallest."""
    return lambda longest: min(_window(longest, size), key=key)


def _outputs(found):
    return found[1] + found[2]


def _best_by_sum(longest):
    for total in range(2, longest + 2):
        products = [(a * (total - a), a, total - a) for a in range(1, total // 2 + 1)]
        fitting = [found for found in products if longest <= found[0] <= longest + 8]
        if fitting:
            return min(fitting)


def _best_in_loops(longest):
    best = (longest, 1, longest)
    for length in range(longest, longest + 9):
        a = isqrt(length)
        while length % a:
            a -= 1
        if a + length // a < best[1] + best[2]:
            best = (length, a, length // a)
    return best


BEST_LENGTH = Exercise(
    key="04.4",
    title="the best length",
    name="best_length",
    minutes=10,
    level="medium",
    inputs=_length_inputs,
    returns="max_length, a, b",
    trials=2,
    right=(_best_by_key(_outputs), _best_by_sum, _best_in_loops),
    run=_for_each_length,
    wrong=mistakes({
        PARAMETERS: {
            "it takes the longest sentence as it is. A larger number can cost less.": _best_by_key(_outputs, 1),
            "it always takes the largest number that is allowed.":
                lambda longest: min(_window(longest + 8, 1), key=_outputs),
            "it takes the length with the most square pair. Is that the one with the fewest parameters?":
                _best_by_key(lambda found: found[2] - found[1]),
            "it takes the first square it finds. Is that the length with the fewest parameters?":
                lambda longest: next(
                    (found for found in _window(longest) if found[1] == found[2]),
                    min(_window(longest), key=_outputs),
                ),
            "it takes the fewest outputs for each position. The whole number of outputs counts.":
                _best_by_key(lambda found: _outputs(found) / found[0]),
            "it takes the length with the largest a.": _best_by_key(lambda found: -found[1]),
            "it takes the length with the most pairs of factors.":
                _best_by_key(lambda found: (-len(_pairs(found[0])), _outputs(found))),
            "longest + 8 is left out; it is allowed, too.": _best_by_key(_outputs, 8),
            "longest + 9 is looked at; that is one too far.": _best_by_key(_outputs, 10),
            "longest itself is left out; it is allowed, too.":
                lambda longest: min(_window(longest + 1, 8), key=_outputs),
            "of lengths that cost the same it takes the longest one (or that with the smallest b).":
                lambda longest: min(reversed(_window(longest)), key=_outputs),
            "a is looked for among the numbers up to 31, but the root of the largest lengths is above that.":
                lambda longest: min((found for found in _window(longest) if found[1] <= 31), key=_outputs),
            "it takes the most parameters instead of the fewest.": _best_by_key(lambda found: -_outputs(found)),
            "the three numbers are right, but a should be the smaller one of the pair.":
                lambda longest: (found := _best_in_loops(longest))[:1] + found[:0:-1],
            "the pair is there, but the length in front of it is missing.":
                lambda longest: _best_in_loops(longest)[1:],
            "this is the length alone; its pair is missing.": lambda longest: _best_in_loops(longest)[0],
            "this is the number of outputs, not what makes it.": lambda longest: _outputs(_best_in_loops(longest)),
            "pairs with a 1 are left out, and for a short sentence one of them can be best.":
                lambda longest: min(
                    [found for found in _window(longest) if found[1] > 1], key=_outputs, default=None
                ),
        },
    })
    + mistakes(
        {
            PARAMETERS: {
                "a division with / gives a float; // gives a whole number.":
                    lambda longest: (found := _best_in_loops(longest))[:2] + (found[0] / found[1],),
            },
        },
        error="holds a float",
    ),
)  # fmt: skip


# 04.5. Rows that can be made, and rows that fail in one way only: each shortcut of the bank misses one of them. Asked
# three times: for drawn rows without zeros; for rows with zeros, which punish a division and a test of one corner; and
# for small and large rows on both sides of the limit, which punish another limit, or one that grows with the row.


def _made_inputs(draw):
    while True:
        sizes = draw.sizes("tile repeat", low=4)
        tile, repeats = sorted((sizes["tile"], sizes["repeat"]))[:: draw.in_turn((1, -1))]
        rows, made = _made_rows(draw, tile, repeats)
        first = draw.integer(0, len(rows) - 1)  # where the list begins: its order tells nothing
        scores, made = rows.roll(first, dims=0), made.roll(first)
        # Drawn again in the rare case that a row which should fail is a product by chance.
        if torch.equal(_made_by_rank(scores, tile), made):
            return {"scores": scores, "a": tile}


def _made_rows(draw, a, b):
    def short(size):
        return draw.normal(size) + 0.03

    def row():
        return _stretch(short(a), short(b))

    def one_off(r, t):
        """A product, but for the number in row r and column t of its picture."""
        spoiled = row()
        spoiled[r * a + t] += 1.5
        return spoiled

    made = [row(), row(), -row(), _stretch(short(a).abs(), short(b).abs()), torch.full((a * b,), 0.7)]
    made += [_stretch(short(a), torch.ones(b)), _stretch(torch.ones(a), short(b))]
    fail = [one_off(r, t) for r, t in ((1, 1), (2, 0), (0, 2), (b - 1, 0), (0, a - 1))]
    flipped = row()
    flipped[a + 1] *= -1
    fail += [flipped, row() + row(), row() + 2.1, sum(_index("tile", "repeat")(short(a), short(b)))]
    fail += [_stretch(short(a), short(b), *kinds) for kinds in (("repeat", "tile"), ("tile", "tile"))]
    return torch.stack(made + fail), torch.arange(len(made + fail)) < len(made)


def _rows_with_zeros(a, b):
    """Pictures of whole and half numbers, so that no rounding is in them: seven products, then four of rank 2."""
    A, B = torch.arange(1.0, a + 1) / 2, -torch.arange(1.0, b + 1)
    without = {"A": [A.clone(), A.clone()], "B": [B.clone(), B.clone()]}
    for i in (0, 1):
        without["A"][i][i] = 0
        without["B"][i][i] = 0

    def picture(B, A):
        return torch.outer(B, A)

    def single(*positions):
        result = torch.zeros(b, a)
        for r, t in positions:
            result[r, t] = 1
        return result

    made = [torch.zeros(b, a), picture(without["B"][0], without["A"][0]), single((1, 1))]
    made += [picture(B, A_with_0) for A_with_0 in without["A"]] + [picture(B_with_0, A) for B_with_0 in without["B"]]
    fail = [single((0, 1), (1, 0)), single((1, 2), (2, 1)), single((0, 2), (2, 2), (2, 1))]
    fail += [picture(without["B"][0], without["A"][0]) + single((1, 1))]
    return torch.stack(made + fail).flatten(1)


def _rows_near_the_limit(a, b):
    """Six rows off by at most 0.0001, then eight that miss every product by 0.01 or more, two of them by little."""
    product_of = torch.outer(torch.linspace(-1.2, -0.7, b), torch.linspace(0.8, 1.25, a))
    # Their rank is above 1 for every a and b, and they are no small addition to the product.
    signs = torch.where(torch.arange(a * b).reshape(b, a) ** 2 % 19 < 9, 1.0, -1.0)

    def one(size, r, t):
        result = torch.zeros(b, a)
        result[r, t] = size
        return result

    made = [1e-4 * signs, product_of + 1e-4 * signs, product_of + one(-1e-4, 1, 2), 0.04 * product_of + 1e-4 * signs]
    made += [20 * product_of, 20 * product_of + one(1e-4, 2, 1)]
    fail = [product_of + one(0.05, r, t) for r, t in ((0, 0), (b - 1, a - 1), (1, 2))]
    fail += [20 * product_of + one(0.05, 2, 1), 0.04 * product_of + one(0.07, 1, 1)]
    # In the first, (1.2 + e) 0.108 should be 0.36 0.36. In the others p q should be 0: each number changes by e = p q /
    # (p + q), and then (p - e) (q - e) = e e, whichever way the distance is measured.
    for block in ([[1.4, 0.36], [0.36, 0.108]], [[1.2, 0], [0, 0.0103]], [[0.04, 0], [0, 0.0137]]):
        fail.append(torch.zeros(b, a))
        fail[-1][:2, :2] = torch.tensor(block)
    return torch.stack(made + fail).flatten(1)


def _made_run(answer, scores, a):
    b = scores.shape[1] // a
    return {
        "rows without zeros": answer(scores=scores, a=a),
        "rows with zeros": answer(scores=_rows_with_zeros(a, b), a=a),
        "rows near the limit": answer(scores=_rows_near_the_limit(a, b), a=a),
        "one row, an A of one number": answer(scores=scores[:1].clone(), a=1),
        "rows with a B of one number": answer(scores=scores[:2].clone(), a=scores.shape[1]),
    }


def _folded(scores, a):
    return rearrange(scores, "query (repeat tile) -> query repeat tile", tile=a)


def _rank_at_most(most, pictures):
    return torch.linalg.matrix_rank(pictures, atol=1e-3) <= most


def _made_by_rank(scores, a):
    return _rank_at_most(1, _folded(scores, a))


def _made_by_default_rank(scores, a):
    return torch.linalg.matrix_rank(scores.reshape(len(scores), -1, a)).lt(2)


def _made_by_singular_values(scores, a):
    return (torch.linalg.svdvals(_folded(scores, a)) > 1e-3).sum(dim=1) <= 1


def _made_by_minors(scores, a):
    pictures = _folded(scores, a)
    answer = torch.ones(len(scores), dtype=torch.bool)
    for r, s in combinations(range(pictures.shape[1]), 2):
        minors = pictures[:, r, :, None] * pictures[:, s, None] - pictures[:, s, :, None] * pictures[:, r, None]
        answer &= minors.abs().amax(dim=(1, 2)) <= 1e-3 * pictures.abs().amax(dim=(1, 2))
    return answer


def _made_by_plain_minors(scores, a):
    pictures = _folded(scores, a)
    products = einsum(pictures, pictures, "q r t, q s u -> q r t s u")
    return _all_small(products - products.transpose(2, 4))


def _made_by_pivot(scores, a):
    """Rebuild every picture from the row and the column of its largest number. A picture of zeros is a product."""
    answer = []
    for picture in _folded(scores, a):
        r, t = divmod(picture.abs().argmax().item(), a)
        rebuilt = picture[:, t, None] * picture[r] / picture[r, t] if picture.any() else picture
        answer.append(torch.allclose(rebuilt, picture, rtol=0, atol=1e-3))
    return torch.tensor(answer)


def _first_minors(pictures):
    """What is left of each number when row 0 and column 0 alone predict it, times the corner number."""
    return pictures * pictures[:, :1, :1] - pictures[:, :1] * pictures[:, :, :1]


def _all_small(numbers):
    return (numbers.abs() < 1e-3).flatten(1).all(dim=1)


def _same_ratios(pictures, dim):
    """Every row (dim 1) or column (dim 2) over its first number, compared with the first row or column."""
    ratios = pictures / pictures.narrow(3 - dim, 0, 1)
    return _all_small(ratios - ratios.narrow(dim, 0, 1))


def _rebuilt_from_corner(pictures):
    rebuilt = pictures[:, :, :1] * pictures[:, :1] / pictures[:, :1, :1]
    return _all_small(rebuilt - pictures)


def _cosines(pictures):
    directions = pictures / pictures.norm(dim=2, keepdim=True)
    return directions @ directions.transpose(1, 2)


CAN_BE_MADE = Exercise(
    key="04.5",
    title="can this row be made?",
    name="can_be_made",
    minutes=10,
    level="medium",
    inputs=_made_inputs,
    returns="query",
    run=_made_run,
    trials=2,
    right=(_made_by_rank, _made_by_singular_values, _made_by_minors, _made_by_pivot),
    wrong=mistakes({
        PICTURE: {
            "the row is folded into a rows of b numbers; its picture has b rows of a.":
                lambda scores, a: _rank_at_most(
                    1, rearrange(scores, "query (tile repeat) -> query tile repeat", tile=a)
                ),
            "a picture of rank 2 passes, too; that takes two products, added up.":
                lambda scores, a: _rank_at_most(2, _folded(scores, a)),
            "a row of zeros is a product too: with A = 0 it can be made.":
                lambda scores, a: torch.linalg.matrix_rank(_folded(scores, a), atol=1e-3) == 1,
            "everything is compared with the first row and the first column alone; where they hold zeros, they tell "
            "too little.":
                lambda scores, a: _all_small(_first_minors(_folded(scores, a))),
            "it divides by the first column of the picture, and a number there can be 0.":
                lambda scores, a: _same_ratios(_folded(scores, a), dim=1),
            "it divides by the first row of the picture, and a number there can be 0.":
                lambda scores, a: _same_ratios(_folded(scores, a), dim=2),
            "it divides by the corner of the picture, a number that can be 0.":
                lambda scores, a: _rebuilt_from_corner(_folded(scores, a)),
            "True and False are swapped.": lambda scores, a: ~_made_by_rank(scores, a),
            "only the first four numbers around the corner of the picture are looked at.":
                lambda scores, a: _all_small(_first_minors(_folded(scores, a)[:, :2, :2])),
            "only the first two columns of the picture are looked at.":
                lambda scores, a: _all_small(_first_minors(_folded(scores, a)[:, :, :2])),
            "only the first two rows of the picture are looked at.":
                lambda scores, a: _all_small(_first_minors(_folded(scores, a)[:, :2])),
            "a picture of one row is refused; every row is a multiple of itself.":
                lambda scores, a: _made_by_rank(scores, a) & (scores.shape[1] > a),
            "the last row of the picture is left out.": lambda scores, a: _rank_at_most(1, _folded(scores, a)[:, :-1]),
            "the last column of the picture is left out.":
                lambda scores, a: _rank_at_most(1, _folded(scores, a)[:, :, :-1]),
            "only differences above 0 are looked at; a difference can be negative, too.":
                lambda scores, a: (_first_minors(_folded(scores, a)) < 1e-3).flatten(1).all(dim=1),
        },
        LOOKS: {
            "rounding is counted as rank: the scores are 32-bit numbers, and .double() makes their rounding visible. "
            "Give atol.":
                lambda scores, a: torch.linalg.matrix_rank(_folded(scores, a).double()) <= 1,
            "there is one verdict for the whole table; every row has a picture of its own, and a verdict.":
                lambda scores, a: _made_by_rank(scores, a).all(),
            "all rows get one verdict, that of the table or of all pictures together; every row has a picture of its "
            "own.":
                lambda scores, a: (torch.linalg.matrix_rank(scores, atol=1e-3) <= 1).repeat(len(scores)),
            "no row can be made, it says. (The rank of the whole table says so, too. But every row has a picture of "
            "its own.)":
                lambda scores, a: torch.zeros(len(scores), dtype=torch.bool),
        },
        EQUATIONS: {
            "it finds the rows that are sums of A and B, not products. (A softmax before the test does that, too.)":
                lambda scores, a: _all_small(_folded(scores, a).diff(dim=1).diff(dim=2)),
        },
        PAPER: {
            "it finds the rows that only tile A; B may be different from block to block.":
                lambda scores, a: _all_small(_folded(scores, a).diff(dim=1)),
            "it finds the rows that only repeat B; A may be different from position to position.":
                lambda scores, a: _all_small(_folded(scores, a).diff(dim=2)),
        },
        CONSTANT: {
            "the signs of the scores are lost before the rank is taken; a wrong sign spoils a product.":
                lambda scores, a: _rank_at_most(1, _folded(scores, a).abs()),
            "only differences are looked at, so a constant that is added to all scores is forgiven.":
                lambda scores, a: _rank_at_most(1, _folded(scores, a).diff(dim=1)),
            "the mean of the row is taken away first, and then a product is no product any more.":
                lambda scores, a: _rank_at_most(1, _folded(scores - scores.mean(dim=1, keepdim=True), a)),
            "the signs of the scores are lost; one number with the wrong sign spoils a product.":
                lambda scores, a: _all_small(_folded(scores, a).abs().log().diff(dim=1).diff(dim=2)),
            "two rows of the picture count as multiples only if the factor is positive; B can be negative.":
                lambda scores, a: (_cosines(_folded(scores, a)) > 0.9999).flatten(1).all(dim=1),
        },
        ROW_OF_EXERCISE: {
            "a difference of 0.0001 counts as a miss; torch's own limit is far smaller than what is asked for.":
                _made_by_default_rank,
            "the limit grows with the row; both numbers hold for rows of small and of large scores.":
                lambda scores, a: torch.linalg.matrix_rank(_folded(scores, a), rtol=1e-3) <= 1,
            "the limit is too large: rows that miss every product by 0.05 pass.":
                lambda scores, a: torch.linalg.matrix_rank(_folded(scores, a), atol=0.1) <= 1,
            "the limit is a little too large: a row that misses every product by little more than 0.01 passes.":
                lambda scores, a: torch.linalg.matrix_rank(_folded(scores, a), atol=0.0125) <= 1,
            "the limit is too small: each number may be off by 0.0001, and that adds up over a picture.":
                lambda scores, a: torch.linalg.matrix_rank(_folded(scores, a), atol=1e-4) <= 1,
            "the products of two numbers are compared with the limit, and small scores have very small products.":
                _made_by_plain_minors,
            "every row can be made, it says.": lambda scores, a: torch.ones(len(scores), dtype=torch.bool),
        },
        NUMBERS: {
            "the second singular value is compared with exactly 0, but rounding leaves a little.":
                lambda scores, a: (torch.linalg.svdvals(_folded(scores, a))[:, 1:] == 0).all(dim=1),
        },
    }),
)  # fmt: skip


# 04.6. The patterns of the three kinds that can be had, and near relatives that cannot; their rows and columns come in
# any order. What counts are the weights that a pair of lists gives.


def _patterns(b, a):
    """Pictures of bools by a name that does not tell whether it can be had."""

    def cells(*places):
        result = torch.zeros(b, a, dtype=torch.bool)
        for rows, columns in places:
            result[rows, columns] = True
        return result

    upper, lower = slice(0, 2), slice(2, None)
    return {
        "one position": cells((1, 2)),
        "all positions": cells((slice(None), slice(None))),
        "one row": cells((1, slice(None))),
        "one column": cells((slice(None), 2)),
        "a block": cells((upper, upper)),
        "two positions on a diagonal": cells((0, 0), (1, 1)),
        "a block, and one position outside of its rows and columns": cells((upper, upper), (2, 2)),
        "all but one position": ~cells((1, 2)),
        "all but a block": ~cells((upper, upper)),
        "three positions on a diagonal": cells((0, 0), (1, 1), (2, 2)),
        "three positions around a corner": cells((0, 0), (0, 1), (1, 0)),
        "a block, and one position in its rows": cells((upper, upper), (0, 2), (2, 2)),
        "two rows that share a column": cells((0, slice(0, 2)), (1, slice(1, 3))),
        "all but two positions on a diagonal": ~cells((0, 0), (1, 1)),
        "a block, and the block below on the other side": cells((upper, upper), (lower, lower)),
        "all but three positions on a diagonal": ~cells((0, 0), (1, 1), (2, 2)),
    }


def _pattern_inputs(draw):
    b, a = draw.in_turn([(3, 4), (4, 3)])
    rows, columns = draw.normal(b).argsort(), draw.normal(a).argsort()
    return {"wanted": {name: cells[rows][:, columns] for name, cells in _patterns(b, a).items()}}


def _shares(answer, wanted):
    """For each pattern, what came of it in words."""
    wanted = dict(wanted)
    wanted["a picture of one row"] = torch.tensor([[True, False, True, True]])
    wanted["a picture of one position"] = torch.tensor([[True]])
    wanted["a picture of one column"] = torch.tensor([[True], [False], [True], [True], [False]])
    for name, places in {"two blocks in 5 columns": [1, 1, 2, 0], "a diagonal in 5 columns": [1, 2, 4, 0]}.items():
        wanted[name] = torch.tensor(places)[:, None] & torch.tensor([1, 2, 0, 4, 1]) > 0
    return {name: _share(answer(wanted=cells), cells) for name, cells in wanted.items()}


def _share(lists, wanted):
    if lists is None:
        return "None"
    if not isinstance(lists, (tuple, list)) or len(lists) != 2:
        raise TypeError("the answer must be None or a tuple of two tensors, A and B")
    A, B = lists
    if not all(isinstance(one, torch.Tensor) and one.dtype != torch.bool for one in (A, B)):
        raise TypeError("A and B must be tensors of numbers")
    for name, numbers in {"A": A, "B": B}.items():
        odd = [number for number in numbers.flatten().tolist() if not abs(number) <= 100 or number % 1]
        if odd:
            return f"lists of other than whole numbers from -100 to 100: {name} holds {odd[0]:.4g}"
    b, a = wanted.shape
    if A.shape != (a,) or B.shape != (b,):
        return f"lists of the shapes {tuple(A.shape)} and {tuple(B.shape)} for a picture of {b} rows and {a} columns"
    weights = (B[:, None] * A).float().flatten().softmax(dim=0)[wanted.flatten()]
    if weights.sum() < 0.99:
        return "lists whose shares are too small: other positions have more than 0.01"
    return "lists" if (weights >= 0.99 / len(weights)).all() else "lists that give the wanted positions unequal shares"


def _lists_tried(wanted, numbers=(-4.0, 0.0, 4.0)):
    b, a = wanted.shape
    every_A = torch.tensor(list(product(numbers, repeat=a)))
    for B in product(numbers, repeat=b):
        rows = torch.einsum("r,nt->nrt", torch.tensor(B), every_A).flatten(1).softmax(dim=1)
        good = (rows[:, wanted.flatten()] >= 0.99 / wanted.sum()).all(dim=1)
        if good.any():
            return every_A[good][0], torch.tensor(B)
    return None


def _block(cells):
    columns, rows = cells.any(dim=0), cells.any(dim=1)
    return (columns, rows) if cells.equal(rows[:, None] & columns) else None


def _lists_by_pattern(wanted, kinds=("block", "rest", "two"), size=4.0):
    if "block" in kinds and (found := _block(wanted)):
        return size * found[0], size * found[1]
    if "rest" in kinds and (found := _block(~wanted)):
        return size * found[0], -size * found[1]
    kinds_of_rows = wanted[wanted.any(dim=1)].unique(dim=0)
    if "two" in kinds and len(kinds_of_rows) == 2 and not kinds_of_rows.all(dim=0).any():
        plus, minus = ((wanted == row).all(dim=1).float() for row in kinds_of_rows)
        A, B = kinds_of_rows[0].float() - kinds_of_rows[1].float(), plus - minus
        return size * A, size * B
    return None


def _lists_in_python(wanted):
    """Other numbers, and rows as sets of columns."""
    b, a = wanted.shape
    rows = [frozenset(j for j in range(a) if wanted[i, j]) for i in range(b)]
    full, kinds = frozenset(range(a)), list(dict.fromkeys(row for row in rows if row))
    if len(kinds) == 1:
        return torch.tensor([9.0 * (j in kinds[0]) for j in range(a)]), torch.tensor(
            [1.0 * bool(row) for row in rows]
        )
    if len(kinds) == 2 and full in kinds and all(rows):
        hole = full - next(kind for kind in kinds if kind != full)
        return torch.tensor([-3.0 * (j in hole) for j in range(a)]), torch.tensor([3.0 * (row != full) for row in rows])
    if len(kinds) == 2 and not kinds[0] & kinds[1]:
        sign = [1.0 * (j in kinds[0]) - 1.0 * (j in kinds[1]) for j in range(a)]
        side = [10.0 * (row == kinds[0]) - 10.0 * (row == kinds[1]) for row in rows]
        return torch.tensor(sign), torch.tensor(side)
    return None


def _bounding_block(wanted):
    return 4.0 * wanted.any(dim=0), 4.0 * wanted.any(dim=1)


def _largest_part(wanted):
    U, sizes, V_rows = torch.linalg.svd(wanted.float())
    return (9 * sizes[0] * V_rows[0]).round(), (9 * U[:, 0]).round()


def _never_none(wanted):
    return _lists_by_pattern(wanted) or _bounding_block(wanted)


def _first_wanted(wanted):
    r, t = wanted.nonzero()[0].tolist()
    return 4.0 * torch.eye(wanted.shape[1])[t], 4.0 * torch.eye(wanted.shape[0])[r]


LISTS_FOR = Exercise(
    key="04.6",
    title="pick positions with two lists",
    name="lists_for",
    minutes=35,
    level="hard",
    inputs=_pattern_inputs,
    returns="A, B, or None",
    run=_shares,
    trials=2,
    right=(_lists_by_pattern, _lists_tried, _lists_in_python),
    wrong=mistakes({
        CONSTANT: {
            "blocks alone are found, and more can be had. Which numbers do you never use?":
                lambda wanted: _lists_by_pattern(wanted, ("block",)),
            "two blocks with two signs are given up.": lambda wanted: _lists_by_pattern(wanted, ("block", "rest")),
            "what all positions but some can do with a constant is given up.":
                lambda wanted: _lists_by_pattern(wanted, ("block", "two")),
            "no number is 0; some patterns need one.": lambda wanted: _lists_tried(wanted, (-4.0, 4.0)),
            "each row and column with a wanted position gets a large number, so crossing positions win, too.":
                _bounding_block,
            "a picture of one row is given up; there A alone chooses.":
                lambda wanted: _lists_by_pattern(wanted) if len(wanted) > 1 else None,
            "it says None for all.": lambda wanted: None,
        },
        DIAGONAL: {
            "it always gives lists; some patterns cannot be had.": _never_none,
            "these are the largest part of the wanted picture; its scores are not equal on the wanted positions.":
                _largest_part,
            "one wanted position gets everything; they should have equal shares.": _first_wanted,
        },
        PICTURE: {
            "A and B have changed places: A belongs to the columns of the picture.":
                lambda wanted: (lists := _lists_by_pattern(wanted)) and lists[::-1],
            "the weight lies on the positions that are not wanted.":
                lambda wanted: _lists_by_pattern(~wanted) if not wanted.all() else _bounding_block(wanted),
            "the patterns are right, but the numbers are too small: the positions that are not wanted keep a share.":
                lambda wanted: _lists_by_pattern(wanted, size=1.0),
        },
    }),
)  # fmt: skip

EXERCISES = [OUR_ORDER, COUNT_PRODUCTS, SCORES_AT, BEST_LENGTH, CAN_BE_MADE, LISTS_FOR]
