"""The exercises of chapter 04, Factorized Dense: equations (5) and (6) of arXiv 2005.00743."""

from itertools import combinations, product
from math import gcd, isqrt, lcm, sqrt

import torch
from einops import einsum, rearrange, repeat

from synth_lib.checks.exercise import Exercise, Reads, mistakes

PAPER = "Tile and repeat, on paper"
EINOPS = "The same with einops"
PICTURE = "The row as a picture"
LOST = "Two tiles, or two repeats: what gets lost"
LADDER = "The ladder"
EQUATIONS = "The equations"
LOOKS = "What a row looks like"
HEADS = "Heads, shorter inputs, masks"
PARAMETERS = "Parameters"
NUMBERS = "Fewer numbers than positions"
CONSTANT = "What helps: a constant, and a sign"


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


# 04.1


def _row_inputs(draw):
    sizes = draw.sizes("query tile repeat")
    return {"A": draw.normal(sizes["query"], sizes["tile"]), "B": draw.normal(sizes["query"], sizes["repeat"])}


def _rows_einops(A, B):
    long_A = repeat(A, "query tile -> query (repeat tile)", repeat=B.shape[1])
    return long_A * repeat(B, "query repeat -> query (repeat tile)", tile=A.shape[1])


def _rows_in_loops(A, B):
    query, a = A.shape
    b = B.shape[1]
    scores = torch.zeros(query, a * b)
    for i in range(query):
        for j in range(a * b):
            scores[i, j] = A[i, j % a] * B[i, j // a]
    return scores


PRODUCT_ROWS = Exercise(
    key="04.1",
    title="rows of scores from A and B",
    name="product_rows",
    minutes=10,
    level="easy",
    inputs=_row_inputs,
    returns="query key",
    properties=(Reads("A", 0, 0, "query"), Reads("B", 0, 0, "query")),
    example=lambda: {"A": torch.tensor([[1.0, 2]]), "B": torch.tensor([[10.0, 20, 30]])},
    right=(
        _rows_einops,
        _rows_in_loops,
        lambda A, B: A.repeat(1, B.shape[1]) * B.repeat_interleave(A.shape[1], dim=1),
        lambda A, B: (B[:, :, None] * A[:, None, :]).flatten(1),
        lambda A, B: torch.stack([torch.kron(B[i], A[i]) for i in range(len(A))]),
    ),
    wrong=mistakes({
        LOST: {
            "both lists are tiled. One of them should say each number several times in a row.":
                lambda A, B: _stretch(A, B, "tile", "tile"),
            "both lists are repeated number by number. One of them should be laid again and again as a whole.":
                lambda A, B: _stretch(A, B, "repeat", "repeat"),
        },
        PAPER: {
            "the two change places: A is repeated number by number, and B is tiled.":
                lambda A, B: _stretch(A, B, "repeat", "tile"),
            "this is A, tiled. B is not in it.": lambda A, B: _index("tile", "repeat")(A, B)[0],
            "this is B, repeated. A is not in it.": lambda A, B: _index("tile", "repeat")(A, B)[1],
        },
        EQUATIONS: {
            "the two stretched lists are added; equation (6) has a product.":
                lambda A, B: sum(_index("tile", "repeat")(A, B)),
            "rows and columns are swapped: a row should belong to a query.": lambda A, B: _stretch(A, B).T,
            "it goes one step too far: these are weights, and the exercise asks for the scores before them.":
                lambda A, B: _stretch(A, B).softmax(dim=-1),
        },
        PICTURE: {
            "the two lists stand side by side. Every number of one should meet every number of the other.":
                lambda A, B: torch.cat([A, B], dim=1),
            "these are the pictures. Each still has to be laid out as one row.":
                lambda A, B: einsum(A, B, "query tile, query repeat -> query repeat tile"),
            "these are pictures, and turned ones: each should have repeat for its rows. Then it becomes one row.":
                lambda A, B: einsum(A, B, "query tile, query repeat -> query tile repeat"),
            "every query gets the row of query 0; each has its own two lists.":
                lambda A, B: _stretch(A[:1], B[:1]).repeat(len(A), 1),
            "every query uses the B of query 0; each has its own two lists.":
                lambda A, B: _stretch(A, B[:1].repeat(len(B), 1)),
        },
    }),
)  # fmt: skip


# 04.2. Both lengths share a divisor, and neither divides the other: then no two formulas agree by chance.


def _count_inputs(draw):
    while True:
        shared, first, second = draw.integer(2, 4), draw.integer(2, 5), draw.integer(2, 5)
        if gcd(first, second) == 1:
            return {"a": shared * first, "b": shared * second}


def _count_formula(a, b):
    return lcm(a, b), a + b - gcd(a, b), a * b


def _pairs(a, b, length):
    two_tiles = {(j % a, j % b) for j in range(length)}
    two_repeats = {(j // b, j // a) for j in range(length)}
    return len(two_tiles), len(two_repeats), len({(j % a, j // a) for j in range(length)})


def _count_in_lists(a, b):
    tiled_A, tiled_B = list(range(a)) * b, list(range(b)) * a
    repeated_A = [t for t in range(a) for _ in range(b)]
    repeated_B = [r for r in range(b) for _ in range(a)]
    cases = ((tiled_A, tiled_B), (repeated_A, repeated_B), (tiled_A, repeated_B))
    return tuple(len(set(zip(*case, strict=True))) for case in cases)


def _values(a, b, start):
    A, B = range(start, a + start), range(start, b + start)
    positions = range(a * b)
    return (
        len({A[j % a] * B[j % b] for j in positions}),
        len({A[j // b] * B[j // a] for j in positions}),
        len({A[j % a] * B[j // a] for j in positions}),
    )


COUNT_PRODUCTS = Exercise(
    key="04.2",
    title="how many different products?",
    name="count_products",
    minutes=8,
    level="easy",
    inputs=_count_inputs,
    returns="two_tiles, two_repeats, tile_and_repeat",
    right=(_count_formula, lambda a, b: _pairs(a, b, a * b), _count_in_lists),
    wrong=mistakes({
        LOST: {
            "it says that nothing is ever lost.": lambda a, b: (a * b, a * b, a * b),
            "two repeats are counted like two tiles.": lambda a, b: (lcm(a, b), lcm(a, b), a * b),
            "the first two numbers have changed places.": lambda a, b: (a + b - gcd(a, b), lcm(a, b), a * b),
            "for two tiles it is the largest common divisor. Where do both lists begin again together?":
                lambda a, b: (gcd(a, b), a + b - gcd(a, b), a * b),
            "two tiles reach more than the longer list has numbers, unless one length divides the other.":
                lambda a, b: (max(a, b), a + b - gcd(a, b), a * b),
            "two repeats reach more than the longer list has numbers, unless one length divides the other.":
                lambda a, b: (lcm(a, b), max(a, b), a * b),
            "for two repeats it counts the numbers of both lists, but some steps fall on the same position.":
                lambda a, b: (lcm(a, b), a + b, a * b),
            "for two repeats it forgets that both lists can move on at the same position.":
                lambda a, b: (lcm(a, b), a + b - 1, a * b),
            "the three numbers are right, but tile and repeat stands first.":
                lambda a, b: (a * b, lcm(a, b), a + b - gcd(a, b)),
            "only the first a + b positions are looked at; a row is longer.": lambda a, b: _pairs(a, b, a + b),
            "the last position of the row is left out.": lambda a, b: _pairs(a, b, a * b - 1),
        },
        PICTURE: {
            "tile and repeat is counted like two tiles.": lambda a, b: (lcm(a, b), a + b - gcd(a, b), lcm(a, b)),
            "for tile and repeat it adds the two lengths; a picture has rows times columns.":
                lambda a, b: (lcm(a, b), a + b - gcd(a, b), a + b),
        },
        PAPER: {
            "it counts the values of one example, and different pairs can give one value, as 2 times 6 and 3 times 4.":
                lambda a, b: _values(a, b, 1),
            "it multiplies the indices and counts values; every pair with a 0 then looks the same.":
                lambda a, b: _values(a, b, 0),
        },
    }),
)  # fmt: skip


# 04.3. The sentence is longer than a block and ends inside one.


def _score_inputs(draw):
    while True:
        sizes = draw.sizes("batch head d_head tile repeat")
        length = draw.integer(3, sizes["length"] - 1)
        tile, repeats, d_model = sizes["tile"], sizes["repeat"], sizes["d_model"]
        if length > max(tile, repeats) and length % tile and length % repeats and length not in sizes.values():
            break
    head, d_head = sizes["head"], sizes["d_head"]
    return {
        "x": draw.normal(sizes["batch"], length, d_model),
        "W1": draw.normal(d_model, d_model) / sqrt(d_model),
        "b1": draw.normal(d_model),
        "WA": draw.normal(head, d_head, tile),
        "bA": draw.normal(head, tile),
        "WB": draw.normal(head, d_head, repeats),
        "bB": draw.normal(head, repeats),
    }


SPLIT = "batch query (head d_head) -> batch head query d_head"


def _hidden(x, W1, b1, WA, pattern=SPLIT):
    return rearrange((x @ W1 + b1).relu(), pattern, head=len(WA))


def _from_hidden(hidden, WA, bA, WB, bB, first="tile", second="repeat"):
    """The scores over all positions, from the hidden numbers "batch head query d_head"."""
    return _stretch(hidden @ WA + bA[:, None], hidden @ WB + bB[:, None], first, second)


def _all_positions(x, W1, b1, WA, bA, WB, bB, first="tile", second="repeat"):
    return _from_hidden(_hidden(x, W1, b1, WA), WA, bA, WB, bB, first, second)


def _scores_einsum(x, W1, b1, WA, bA, WB, bB):
    hidden = _hidden(x, W1, b1, WA)
    A = einsum(hidden, WA, "batch head query d_head, head d_head tile -> batch head query tile") + bA[:, None]
    B = einsum(hidden, WB, "batch head query d_head, head d_head repeat -> batch head query repeat") + bB[:, None]
    products = einsum(A, B, "batch head query tile, batch head query repeat -> batch head query repeat tile")
    return rearrange(products, "batch head query repeat tile -> batch head query (repeat tile)")[..., : x.shape[1]]


def _scores_torch(x, W1, b1, WA, bA, WB, bB):
    batch, length, _ = x.shape
    hidden = (x @ W1 + b1).relu().reshape(batch, length, len(WA), -1).transpose(1, 2)
    A, B = hidden @ WA + bA.unsqueeze(1), hidden @ WB + bB.unsqueeze(1)
    long_A = A.repeat(1, 1, 1, B.shape[-1])
    return (long_A * B.repeat_interleave(A.shape[-1], dim=-1))[..., :length]


def _scores_in_loops(x, W1, b1, WA, bA, WB, bB):
    batch, length, _ = x.shape
    head, d_head, a = WA.shape
    scores = torch.zeros(batch, head, length, length)
    for s in range(batch):
        for h in range(head):
            own = slice(h * d_head, (h + 1) * d_head)
            hidden = (x[s] @ W1[:, own] + b1[own]).relu()
            A, B = hidden @ WA[h] + bA[h], hidden @ WB[h] + bB[h]
            for j in range(length):
                scores[s, h, :, j] = A[:, j % a] * B[:, j // a]
    return scores


def _cut(answer):
    """The same answer over all positions, cut to the length of the sentence."""
    return lambda x, W1, b1, WA, bA, WB, bB: answer(x, W1, b1, WA, bA, WB, bB)[..., : x.shape[1]]


FACTORIZED_SCORES = Exercise(
    key="04.3",
    title="all heads, and a shorter sentence",
    name="factorized_scores",
    minutes=15,
    level="medium",
    inputs=_score_inputs,
    returns="batch head query key",
    properties=(Reads("x", 1, 2, "token"), Reads("x", 0, 0, "sentence"), Reads("WA", 0, 1, "head")),
    right=(_scores_einsum, _scores_torch, _scores_in_loops, _cut(_all_positions)),
    wrong=mistakes({
        HEADS: {
            "nothing is cut: there is a score for positions that this sentence does not have.": _all_positions,
            "it keeps the last positions. Where do sentences start?":
                lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, bA, WB, bB)[..., -x.shape[1] :],
            "the heads are cut out by a reshape alone, so a row of a head is fed by other tokens.":
                _cut(
                    lambda x, W1, b1, WA, bA, WB, bB: _from_hidden(
                        (x @ W1 + b1).relu().reshape(len(x), len(WA), x.shape[1], -1), WA, bA, WB, bB
                    )
                ),
            "the hidden numbers are dealt out to the heads like cards; each head owns neighbours.":
                _cut(
                    lambda x, W1, b1, WA, bA, WB, bB: _from_hidden(
                        _hidden(x, W1, b1, WA, "batch query (d_head head) -> batch head query d_head"), WA, bA, WB, bB
                    )
                ),
            "all heads use the short layers of head 0.":
                _cut(
                    lambda x, W1, b1, WA, bA, WB, bB: _from_hidden(
                        _hidden(x, W1, b1, WA),
                        WA[:1].expand_as(WA),
                        bA[:1].expand_as(bA),
                        WB[:1].expand_as(WB),
                        bB[:1].expand_as(bB),
                    )
                ),
            "the numbers are there, but head stands behind query.":
                lambda x, W1, b1, WA, bA, WB, bB: _scores_torch(x, W1, b1, WA, bA, WB, bB).transpose(1, 2),
            "the heads are added up; each should keep scores of its own.":
                lambda x, W1, b1, WA, bA, WB, bB: _scores_torch(x, W1, b1, WA, bA, WB, bB).sum(dim=1),
            "it goes one step too far: these are weights, and the exercise asks for the scores before them.":
                lambda x, W1, b1, WA, bA, WB, bB: _scores_torch(x, W1, b1, WA, bA, WB, bB).softmax(dim=-1),
        },
        LOST: {
            "both lists are tiled. One of them should say each number several times in a row.":
                _cut(lambda *inputs: _all_positions(*inputs, first="tile", second="tile")),
            "both lists are repeated number by number. One of them should be laid again and again as a whole.":
                _cut(lambda *inputs: _all_positions(*inputs, first="repeat", second="repeat")),
        },
        PAPER: {
            "the two change places: A is repeated number by number, and B is tiled.":
                _cut(lambda *inputs: _all_positions(*inputs, first="repeat", second="tile")),
        },
        EQUATIONS: {
            "the two stretched lists are added; equation (6) has a product.":
                _cut(
                    lambda x, W1, b1, WA, bA, WB, bB: sum(
                        _index("tile", "repeat")(
                            _hidden(x, W1, b1, WA) @ WA + bA[:, None], _hidden(x, W1, b1, WA) @ WB + bB[:, None]
                        )
                    )
                ),
            "W1 is used the wrong way round; here its first axis is the one that goes in.":
                _cut(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1.T, b1, WA, bA, WB, bB)),
            "the scores are divided by the root of d_head, as for the dot product; equation (6) is not.":
                _cut(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, bA, WB, bB) / sqrt(WA.shape[1])),
            "query and key are swapped: a row should belong to a token that attends.":
                lambda x, W1, b1, WA, bA, WB, bB: _scores_torch(x, W1, b1, WA, bA, WB, bB).transpose(2, 3),
        },
        LADDER: {
            "there is no relu after the hidden layer.":
                _cut(
                    lambda x, W1, b1, WA, bA, WB, bB: _from_hidden(
                        rearrange(x @ W1 + b1, SPLIT, head=len(WA)), WA, bA, WB, bB
                    )
                ),
            "there is a second relu, on A and B; they may be negative.":
                _cut(
                    lambda x, W1, b1, WA, bA, WB, bB: _stretch(
                        (_hidden(x, W1, b1, WA) @ WA + bA[:, None]).relu(),
                        (_hidden(x, W1, b1, WA) @ WB + bB[:, None]).relu(),
                    )
                ),
            "the relu acts on A and B, not on the hidden numbers.":
                _cut(
                    lambda x, W1, b1, WA, bA, WB, bB: _stretch(
                        (rearrange(x @ W1 + b1, SPLIT, head=len(WA)) @ WA + bA[:, None]).relu(),
                        (rearrange(x @ W1 + b1, SPLIT, head=len(WA)) @ WB + bB[:, None]).relu(),
                    )
                ),
            "there is a second relu, on the scores; they may be negative.":
                _cut(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, bA, WB, bB).relu()),
            "the bias of the hidden layer is missing.":
                _cut(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, 0 * b1, WA, bA, WB, bB)),
            "the bias of A is missing.":
                _cut(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, 0 * bA, WB, bB)),
            "the bias of B is missing.":
                _cut(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, bA, WB, 0 * bB)),
            "the biases of A and B are missing.":
                _cut(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, b1, WA, 0 * bA, WB, 0 * bB)),
            "all biases are missing.":
                _cut(lambda x, W1, b1, WA, bA, WB, bB: _all_positions(x, W1, 0 * b1, WA, 0 * bA, WB, 0 * bB)),
        },
    }),
)  # fmt: skip


# 04.4. A trial asks for every length up to max_length: 1, primes, squares, and products of many factors.


def _length_inputs(draw):
    return {"max_length": draw.integer(100, 150)}


def _for_each_length(answer, max_length):
    """What the answer gives for each length, as text, by a name that says which length it is."""
    results = {}
    for length in range(1, max_length + 1):
        try:
            pair = answer(max_length=length)
        except Exception as error:
            if error.args:  # the blank raises without any
                error.args = (f"{error}, for max_length {length}.",)
            raise
        results[f"max_length {length} (all from 1 on are tried)"] = repr(pair)[:40]
    return results


def _factors_down(max_length):
    a = isqrt(max_length)
    while max_length % a:
        a -= 1
    return a, max_length // a


def _factors_by_sum(max_length):
    pairs = [(a, max_length // a) for a in range(1, max_length + 1) if max_length % a == 0]
    return min(pairs, key=lambda pair: (sum(pair), pair[0]))


def _factors_up(max_length):
    best = 1
    for a in range(1, max_length + 1):
        if a * a <= max_length and max_length % a == 0:
            best = a
    return best, max_length // best


def _smallest_factor(max_length):
    a = next((a for a in range(2, max_length + 1) if max_length % a == 0), 1)
    return min(a, max_length // a), max(a, max_length // a)


def _below_the_root(max_length):
    a = next((a for a in range(isqrt(max_length - 1), 0, -1) if max_length % a == 0), 1)
    return a, max_length // a


def _ends_at_two(max_length):
    """Searches from the root down to 2, and falls back to the rounded root when there is none."""
    root = isqrt(max_length)
    a = next((a for a in range(root, 1, -1) if max_length % a == 0), root)
    return a, max_length // a


def _none_for_primes(max_length):
    return next(((a, max_length // a) for a in range(isqrt(max_length), 1, -1) if max_length % a == 0), None)


def _ends_too_early(max_length):
    """Its loop is range(1, root), without the root rounded down."""
    a = max((a for a in range(1, isqrt(max_length)) if max_length % a == 0), default=1)
    return a, max_length // a


def _largest_sum(max_length):
    return 1, max_length


def _round_root(max_length):
    a = max(1, round(sqrt(max_length)))
    return min(a, max_length // a), max(a, max_length // a)


BEST_FACTORS = Exercise(
    key="04.4",
    title="the best pair of factors",
    name="best_factors",
    minutes=10,
    level="medium",
    inputs=_length_inputs,
    returns="a, b",
    right=(_factors_down, _factors_by_sum, _factors_up),
    run=_for_each_length,
    wrong=mistakes({
        PARAMETERS: {
            "the root is rounded down and taken, whether it divides max_length or not.":
                lambda max_length: (isqrt(max_length), max_length // isqrt(max_length)),
            "the root is rounded and taken, whether it divides max_length or not.": _round_root,
            "both are the root, as if every length were a square.":
                lambda max_length: (isqrt(max_length), isqrt(max_length)),
            "it takes the smallest divisor above 1. Is that the pair with the smallest sum?": _smallest_factor,
            "it forgets the primes: their pair holds a 1, and it searches from 2 on.": _ends_at_two,
            "for 1 and for primes it gives nothing: their pair holds a 1.": _none_for_primes,
            "the search ends one number before the root, rounded down; that number can be the factor.": _ends_too_early,
            "the search leaves out the root itself, so squares get a worse pair.": _below_the_root,
            "the pair is right, but a should be the smaller one.": lambda max_length: _factors_down(max_length)[::-1],
            "it takes 1 and max_length, the pair with the most parameters.": _largest_sum,
            "one factor is always 2, even where 2 is no divisor or not the best one.":
                lambda max_length: (2, max_length // 2) if max_length > 3 else (1, max_length),
            "the numbers are right, but they come as a list; a pair with a comma is a tuple.":
                lambda max_length: list(_factors_down(max_length)),
            "this is the sum of the two factors, not the two.": lambda max_length: sum(_factors_down(max_length)),
            "the root divides with a remainder, and the second number is no whole number.":
                lambda max_length: (float(isqrt(max_length)), max_length / isqrt(max_length)),
        },
    }),
)  # fmt: skip


# 04.5. Rows that can be made, and rows that fail in one way only: each shortcut of the bank misses one of them.
# Asked twice: for drawn rows without zeros, and for rows with zeros, which punish a division and a test of one corner.


def _made_inputs(draw):
    while True:
        sizes = draw.sizes("tile repeat", low=4)
        rows, made = _made_rows(draw, sizes["tile"], sizes["repeat"])
        first = draw.integer(0, len(rows) - 1)  # where the list begins: its order tells nothing
        scores, made = rows.roll(first, dims=0), made.roll(first)
        # Drawn again in the rare case that a row which should fail is a product by chance.
        if torch.equal(_made_by_rank(scores, sizes["tile"]), made):
            return {"scores": scores, "a": sizes["tile"]}


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


def _made_run(answer, scores, a):
    return {
        "rows without zeros": answer(scores=scores, a=a),
        "rows with zeros": answer(scores=_rows_with_zeros(a, scores.shape[1] // a), a=a),
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
    return torch.linalg.svdvals(_folded(scores, a))[:, 1] < 1e-3


def _made_by_minors(scores, a):
    answer = torch.ones(len(scores), dtype=torch.bool)
    for i, picture in enumerate(_folded(scores, a)):
        b = len(picture)
        for (r, s), (t, u) in product(combinations(range(b), 2), combinations(range(a), 2)):
            if (picture[r, t] * picture[s, u] - picture[r, u] * picture[s, t]).abs() > 1e-3:
                answer[i] = False
    return answer


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
    minutes=15,
    level="hard",
    inputs=_made_inputs,
    returns="query",
    run=_made_run,
    right=(_made_by_rank, _made_by_default_rank, _made_by_singular_values, _made_by_minors, _made_by_pivot),
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
            "this is the rank of the whole table; every row has a picture of its own.":
                lambda scores, a: torch.linalg.matrix_rank(scores, atol=1e-3) <= 1,
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
            "only differences are looked at, so a constant that is added to all scores is forgiven.":
                lambda scores, a: _rank_at_most(1, _folded(scores, a).diff(dim=1)),
            "the mean of the row is taken away first, and then a product is no product any more.":
                lambda scores, a: _rank_at_most(1, _folded(scores - scores.mean(dim=1, keepdim=True), a)),
            "the signs of the scores are lost; one number with the wrong sign spoils a product.":
                lambda scores, a: _all_small(_folded(scores, a).abs().log().diff(dim=1).diff(dim=2)),
            "two rows of the picture count as multiples only if the factor is positive; B can be negative.":
                lambda scores, a: (_cosines(_folded(scores, a)) > 0.9999).flatten(1).all(dim=1),
        },
        NUMBERS: {
            "the second singular value is compared with exactly 0, but rounding leaves a little.":
                lambda scores, a: torch.linalg.svdvals(_folded(scores, a))[:, 1] == 0,
        },
    }),
)  # fmt: skip

EXERCISES = [PRODUCT_ROWS, COUNT_PRODUCTS, FACTORIZED_SCORES, BEST_FACTORS, CAN_BE_MADE]
