"""The exercises of chapter 08: what each S can do. A task is a position to look at, arXiv 2005.00743, Table 1."""

from collections import Counter
from functools import cache
from itertools import combinations, permutations

import torch
from torch.nn.functional import one_hot

from synth_lib.checks.compare import kind_of
from synth_lib.checks.exercise import Exercise, mistakes, told_apart
from synth_lib.lab.probes import distance_to, right_position

QUESTION = "The question"
EQUATIONS = "The equations"
PREDICT = "Predict the table"
GUESS = "What would a guess score?"
FAILS = "Fixed Random"
FACTORIZED = "What the factorized ones lose"
EXERCISE_PLACES = "Exercise 08.3: a task for Dense that Factorized Dense cannot learn"
STRETCH = "Stretch 08.5: sentences that need no comparison"
EXERCISE_MAP = "Exercise 08.4: a map for Random that a small rank cannot learn"


# 08.1. Rows of the chapter, as entries of Table 1; not all, because a message shows their names only if they are few.
# The answer never sees a name.

NOTHING, OWN, ALL = "nothing", "X_i", "X_j for all j"
ROWS = {
    "Fixed Random": ((NOTHING,), False),
    "Random": ((NOTHING,), True),
    "Dense": ((OWN,), True),
    "frozen Dense": ((OWN,), False),
    "dot product": ((ALL,), True),
    "frozen dot product": ((ALL,), False),
    "Random + Dense": ((NOTHING, OWN), True),
    "Dense + dot product": ((OWN, ALL), True),
    "dot product + Random": ((ALL, NOTHING), True),
    "Dense + Dense": ((OWN, OWN), True),
    "frozen Random + Random": ((NOTHING, NOTHING), False),
    "frozen Random + Dense": ((NOTHING, OWN), False),
    "frozen Random + Random + Random": ((NOTHING, NOTHING, NOTHING), False),
    "dot product + Random + Random + Random": ((ALL, NOTHING, NOTHING, NOTHING), True),
    "Random + Random + Random + Dense": ((NOTHING, NOTHING, NOTHING, OWN), True),
    "Random + Dense + dot product + Random": ((NOTHING, OWN, ALL, NOTHING), True),
    "frozen Random + Dense + Random + Random": ((NOTHING, OWN, NOTHING, NOTHING), False),
}
TASKS = ("position", "token", "pair")


def _table_inputs(draw):
    return {
        "conditioned_on": {name: entries for name, (entries, _) in ROWS.items()},
        "trained": {name: trained for name, (_, trained) in ROWS.items()},
        "task": TASKS,
    }


def _solved_by(answer, conditioned_on, trained, task):
    """For each task the names for which the answer says yes: a text for the plain S, one for the mixtures of two."""
    solved = {}
    for one in task:
        verdicts = {name: answer(conditioned_on[name], trained[name], one) for name in conditioned_on}
        kinds = {type(verdict).__name__ for verdict in verdicts.values()} - {"bool"}
        if kinds:
            raise TypeError(f"the result should be True or False, but is of the type {kinds.pop()}")
        for group, parts in (("plain S", (1,)), ("mixtures", (2,)), ("larger mixtures", (3, 4))):
            members = [name for name in verdicts if len(conditioned_on[name]) in parts]
            names = ", ".join(name for name in members if verdicts[name])
            solved[f"{one}, {group}"] = f"a yes for {names or 'none'}"
    return solved


def _rule(choose=max, needs=None, compare=int.__ge__, useless=lambda levels: max(levels) == 0):
    """An answer that compares what is read, 0 to 2, with what is needed. useless: which frozen S can do nothing."""
    needs = needs or {"position": 0, "token": 1, "pair": 2}

    def answer(conditioned_on, trained, task):
        levels = [(NOTHING, OWN, ALL).index(entry) for entry in conditioned_on]
        if not trained and useless(levels):
            return False
        return compare(choose(levels), needs[task])

    return answer


def _first(levels):
    return levels[0]


def _solves_by_sets(conditioned_on, trained, task):
    enough = {"position": {NOTHING, OWN, ALL} if trained else {OWN, ALL}, "token": {OWN, ALL}, "pair": {ALL}}
    return bool(enough[task] & set(conditioned_on))


def _solves_in_sentences(conditioned_on, trained, task):
    reads_own_token = OWN in conditioned_on or ALL in conditioned_on  # every token is among all of them
    if task == "position":
        return trained or reads_own_token
    return reads_own_token if task == "token" else ALL in conditioned_on


def _solves_by_text(conditioned_on, trained, task):
    reads_all = conditioned_on == ALL
    return trained and (task == "position" or reads_all or (task == "token" and conditioned_on == OWN))


SOLVES = Exercise(
    key="08.1",
    title="the table as a rule",
    name="solves",
    minutes=12,
    level="medium",
    inputs=_table_inputs,
    returns="True or False",
    run=_solved_by,
    right=(_rule(), _solves_by_sets, _solves_in_sentences),
    wrong=mistakes({
        EQUATIONS: {
            "a mixture is taken to be as weak as its weakest part.": _rule(choose=min),
            "only the first part of a mixture is looked at.": _rule(choose=_first),
            "only the last part of a mixture is looked at.": _rule(choose=lambda levels: levels[-1]),
            "only the first part of a mixture is looked at, also to say whether its rows can be moved.":
                _rule(choose=_first, useless=lambda levels: levels[0] == 0),
            "only the first part of a mixture is looked at, and it plays no part whether S is trained.":
                _rule(choose=_first, useless=lambda levels: False),
            "only the first part of a mixture is looked at, and what is frozen is held to solve nothing.":
                _rule(choose=_first, useless=lambda levels: True),
            "a mixture is taken for its weakest part, also to say whether its rows can be moved.":
                _rule(choose=min, useless=lambda levels: min(levels) == 0),
            "a mixture is taken for its weakest part, and it plays no part whether S is trained.":
                _rule(choose=min, useless=lambda levels: False),
            "a mixture is taken for its weakest part, and what is frozen is held to solve nothing.":
                _rule(choose=min, useless=lambda levels: True),
            "each S is allowed its own task alone; whoever reads more can leave unread what is not needed.":
                _rule(compare=int.__eq__),
            "the position is held to be known to Random alone; but the token contains its position.":
                lambda conditioned_on, trained, task: (
                    (task != "position" or NOTHING in conditioned_on) and _rule()(conditioned_on, trained, task)
                ),
            "what the parts read is added up; two parts that read the own token still read nothing but that.":
                _rule(choose=sum),
        },
        PREDICT: {
            "every frozen S is held to solve nothing; but a row that reads something can be moved from in front of S.":
                _rule(useless=lambda levels: True),
            "a frozen S is taken to be as good as a trained one, even where nothing in front of it can move its rows.":
                _rule(useless=lambda levels: False),
            "a frozen mixture is held to solve nothing as soon as one part of it reads nothing.":
                _rule(useless=lambda levels: min(levels) == 0),
            "frozen parts that read nothing are held to do more together; but nothing in front of them can move any.":
                _rule(useless=lambda levels: levels == [0]),
            "a frozen S is held to solve nothing unless it reads all tokens; one that reads its own can be moved too.":
                _rule(useless=lambda levels: max(levels) < 2),
            "the tuple `conditioned_on` is compared with a text, which it never equals; the text is an entry of it.":
                _solves_by_text,
            "every trained S is held to solve everything.": lambda conditioned_on, trained, task: trained,
        },
        QUESTION: {
            "more is asked than a task needs: where is the answer to my own question written?":
                _rule(compare=int.__gt__),
            "the own token is taken to be enough to find the match, but it tells what to look for, not where.":
                _rule(needs={"position": 0, "token": 1, "pair": 1}),
            "the task token is taken for a comparison; but the pointer alone names the position.":
                _rule(needs={"position": 0, "token": 2, "pair": 2}),
            "Random is held to be unable to reverse; but each of its rows belongs to one position.":
                _rule(needs={"position": 1, "token": 1, "pair": 2}),
            "a row that reads nothing is held to know the pointer.":
                _rule(needs={"position": 0, "token": 0, "pair": 2}),
        },
    }),
)  # fmt: skip


# 08.2. Every sentence has a value that is not the most common one of the batch, and no sentence has all values. One
# trial has one sentence, one has many long ones with large values, and one a single value: the guesser is sure. The
# chances are multiples of 1/65,536, so that sums are exact in any order, and not in 16 bits.


def _guess_inputs(draw):
    sure = {"values": torch.zeros(2, 2, dtype=torch.int64), "chance": torch.tensor([0.25, 0.75])}
    return draw.in_turn([_several_values] * 3 + [lambda draw: sure])(draw)


def _chances_of_values(draw):
    sizes = draw.sizes("batch length", low=4, high=9)
    few, one, many = (sizes["batch"], sizes["length"] + 4), (1, sizes["length"] + 4), (110, 16)
    batch, length = draw.in_turn([few, one, many, None])
    favourite = _whole(draw, batch, 1) % 4 + 3 * (torch.arange(batch)[:, None] % 2)  # they prefer different values
    rows = torch.where(_whole(draw, batch, length) % 3 == 0, favourite, _whole(draw, batch, length) % 7)
    parts = [1024] * length
    for _ in range(64 - length):
        parts[draw.integer(0, draw.integer(0, length - 1))] += 1024  # early positions are likelier
    for position in range(1, length):
        moved = draw.integer(-300, 300)
        parts[position], parts[position - 1] = parts[position] + moved, parts[position - 1] - moved
    values = torch.tensor([0, 1, 2, 3, 4, 129, 130] if batch == 110 else range(7))[rows]
    return {"values": values[:, draw.normal(length).argsort()], "chance": torch.tensor(parts) / 2**16}


def _whole(draw, *shape):
    return (1000 * draw.normal(*shape)).long()


def _counts(values):
    return one_hot(values).sum(dim=1).float()


def _chances(values, chance):
    """The chance of each value in each sentence."""
    return (one_hot(values) * chance[:, None]).sum(dim=1)


def _guess_in_loops(values, chance):
    shares = []
    for sentence in values.tolist():
        chance_of = Counter()
        for value, more in zip(sentence, chance.tolist(), strict=True):
            chance_of[value] += more
        shares.append(max(chance_of.values()))
    return sum(shares) / len(shares)


def _guess_by_pairs(values, chance):
    same = (values[:, :, None] == values[:, None, :]).float()  # which positions hold the value of this position
    return (same @ chance).amax(dim=1).mean().item()


def _most_common_value(values, chance):
    guess = _counts(values).argmax(dim=1, keepdim=True)
    return _chances(values, chance).gather(1, guess).mean().item()


def _equal_chance(values, chance):
    return (_counts(values).amax(dim=1) / values.shape[1]).mean().item()


def _guess_of_pair(values, chance):
    others = _counts(values)[:, None] - one_hot(values)
    return (others.amax(dim=2) / (values.shape[1] - 1)).mean().item()


def _without_largest(values, chance):
    """The largest value is taken for the one below it."""
    return _guess_by_pairs(values.clamp(max=int(values.max()) - 1), chance)


_several_values = told_apart(_chances_of_values, [_guess_in_loops, _guess_of_pair, _equal_chance, _without_largest])


COUNTING_GUESS = Exercise(
    key="08.2",
    title="a guess when positions are not alike",
    name="counting_guess",
    minutes=12,
    level="easy",
    inputs=_guess_inputs,
    trials=4,
    returns="a float",
    right=(
        lambda values, chance: _chances(values, chance).amax(dim=1).mean().item(),
        _guess_in_loops,
        _guess_by_pairs,
    ),
    wrong=mistakes({
        GUESS: {
            "every position gets the same chance, as for the task token; here the positions differ.":
                _equal_chance,
            "this is the guess for the task pair, without the own value; here no position is left out.": _guess_of_pair,
            "the counts are divided by 12, the length of the chapter's sentences; and the chances play no part.":
                lambda values, chance: (_counts(values).amax(dim=1) / 12).mean().item(),
            "the most common value is said, but a rarer one may stand at likelier positions.": _most_common_value,
            "the value of the likeliest position is said, but another value may gather more chances.":
                lambda values, chance: (
                    _chances(values, chance).gather(1, values[:, chance.argmax(), None]).mean().item()
                ),
            "only the likeliest position counts; other positions may hold the same value, and their chances add up.":
                lambda values, chance: chance.max().item(),
            "one value is said for the whole batch; each sentence has its own best value.":
                lambda values, chance: _chances(values, chance).mean(dim=0).max().item(),
            "this guesser says the value of a random position; the likeliest value is right more often.":
                lambda values, chance: _chances(values, chance).square().sum(dim=1).mean().item(),
            "this is the blind guess among all values of the batch; the chances play no part.":
                lambda values, chance: 1 / len(values.unique()),
            "this is a blind guess among the values that the sentence has; the chances play no part.":
                lambda values, chance: sum(1 / len(row.unique()) for row in values) / len(values),
            "the sums are divided by the number of positions; sums of chances are shares already.":
                lambda values, chance: (_chances(values, chance).amax(dim=1) / values.shape[1]).mean().item(),
            "these are counts; each position counts with its chance.":
                lambda values, chance: _counts(values).amax(dim=1).mean().item(),
            "the largest sum is taken for each value over the sentences; it has to be taken in each sentence.":
                lambda values, chance: _chances(values, chance).amax(dim=0).mean().item(),
            "the largest count is taken for each value over the sentences, and the chances play no part.":
                lambda values, chance: (_counts(values).amax(dim=0) / values.shape[1]).mean().item(),
            "this is the luckiest sentence; asked is the mean over all of them.":
                lambda values, chance: _chances(values, chance).max().item(),
        },
    }),
)  # fmt: skip


# 08.3 and 08.4. Both scores are trained, at several sizes. What comes out is one reason: a kind of map that people draw
# and that cannot separate the two, whatever is trained, or else what the training says.

PERFECT, FAR = 0.03, 0.1  # right answers stay below the first with one score, and far above the second with the other
LEARNS, NEARLY, NOT = "learns it", "nearly learns it", "does not learn it"
SEPARATES, SOME_SIZES = "separates them", "is within reach at some size"


def _checked(positions, length):
    if not isinstance(positions, torch.Tensor):
        raise TypeError(f"the result should be a bool tensor (length, length), but is {kind_of(positions)}")
    if positions.dtype != torch.bool or tuple(positions.shape) != (length, length):
        other = f"{positions.dtype} {tuple(positions.shape)}"
        raise ValueError(f"the result should be bool ({length}, {length}), but is {other}")
    if not positions.any(dim=1).all():
        empty = int((~positions.any(dim=1)).nonzero()[0])
        raise ValueError(f"row {empty} has no True: every row needs a position to look at")
    return positions


@cache
def _learned(rows, score, options):
    for steps in (75, 150):  # what is learned soon is learned
        distance = distance_to(torch.tensor(rows), score, steps=steps, **dict(options))
        if distance < PERFECT:
            return LEARNS
    return NOT if distance > FAR else NEARLY


def _reason(maps, kind_of_map, able, unable, impossible=lambda *one: False):
    """What separates the two scores, or why nothing does; trained is only what no argument decides.

    maps: for each size the map, how the score that should learn it is called, and the other one; see _learned.
    kind_of_map, impossible: of one of these, a kind that the other score makes for certain, or None; whether it cannot.
    """
    kinds = {kind_of_map(*one) for one in maps}
    if kinds != {None}:  # nothing to train: at this size, the other score makes it
        return {"your map": kinds.pop() if len(kinds) == 1 else SOME_SIZES}
    rows = [tuple(map(tuple, positions.tolist())) for positions, _, _ in maps]
    hard = [NOT if impossible(*one) else _learned(row, *one[2]) for row, one in zip(rows, maps, strict=True)]
    if NOT not in hard:
        return {"your map": f"{unable} {LEARNS if LEARNS in hard else NEARLY}"}
    if set(hard) != {NOT}:
        return {"your map": SOME_SIZES}
    if any(_learned(row, *one[1]) != LEARNS for row, one in zip(rows, maps, strict=True)):
        return {"your map": f"{able} does not learn it well"}
    return {"your map": SEPARATES}


def _kind_of_table(positions, dense, factorized):
    """Kinds that Factorized Dense can make, or nearly, for certain."""
    tile, repeat = dict(factorized[1])["a"], dict(factorized[1])["b"]
    length = tile * repeat
    table, wanted = positions.reshape(length, repeat, tile), positions.sum(dim=1)
    block = table.any(dim=1)[:, None, :] & table.any(dim=2)[:, :, None]
    full_columns, full_rows = table.all(dim=1), table.all(dim=2)
    cross = full_columns[:, None, :] | full_rows[:, :, None]
    alone = (full_columns.sum(dim=1) == 1) & (full_rows.sum(dim=1) == 1)
    kinds = (
        ("all positions in every row", bool(positions.all())),
        ("the position of the own number", torch.equal(positions, torch.eye(length, dtype=torch.bool))),
        ("one position, the same in every row", _one_each(positions) and _rows_alike(positions)),
        ("the mirrored position", torch.equal(positions, torch.eye(length, dtype=torch.bool).flip(0))),
        ("one position in each row", _one_each(positions)),
        ("one column of the table", bool(((full_columns.sum(dim=1) == 1) & (wanted == repeat)).all())),
        ("one row of the table", bool(((full_rows.sum(dim=1) == 1) & (wanted == tile)).all())),
        ("a cross in the table", torch.equal(table, cross) and bool(alone.all())),
        ("at most two positions in each row", bool((positions.sum(dim=1) <= 2).all())),
        ("all positions but one", bool((positions.sum(dim=1) == length - 1).all())),
        ("a block of the table", torch.equal(table, block)),
    )
    return next((kind for kind, fits in kinds if fits), None)


def _impossible_for_table(positions, dense, factorized):
    """Whether every row wants three positions, and at most one more, that no products of signs can give.

    They stand in different rows and columns of the table, and none of the six products between them is wanted. Two of
    the three numbers of A share a sign (or one is 0), so one of these products is at least as high as a wanted one:
    with k wanted positions, the distance is 1 / (2 k) or more, which is above FAR.
    """
    tile = dict(factorized[1])["a"]
    return all(_has_hard_three(row.nonzero().flatten().tolist(), tile) for row in positions)


def _has_hard_three(wanted, tile):
    return len(wanted) <= 4 and any(
        len({one % tile for one in three}) == len({one // tile for one in three}) == 3
        and not any(one // tile * tile + other % tile in wanted for one, other in permutations(three, 2))
        for three in combinations(wanted, 3)
    )


def _tables(tile, repeat):
    """With 3, 4 and 5 columns, and a square: a map that fits one table alone is found out."""
    third = 12 - tile - repeat
    return (tile, repeat), (repeat, third), (third, tile), (4, 4)


def _maps_of_numbers(answer, tile, repeat, length):
    return [answer(tile=a, repeat=b, length=a * b) for a, b in _tables(tile, repeat)]


def _judge_dense(results, tile, repeat, length):
    maps = [
        (_checked(positions, a * b), ("dense", ()), ("factorized_dense", (("a", a), ("b", b))))
        for positions, (a, b) in zip(results, _tables(tile, repeat), strict=True)
    ]
    return _reason(maps, _kind_of_table, "Dense", "Factorized Dense", _impossible_for_table)


def _kind_of_map(positions, random, factorized):
    """Kinds that Factorized Random can make, or nearly, for certain."""
    length, rank = len(positions), dict(factorized[1])["rank"]
    kinds = (
        ("all positions in every row", bool(positions.all())),
        ("the own position", torch.equal(positions, torch.eye(length, dtype=torch.bool))),
        ("the mirrored position", torch.equal(positions, torch.eye(length, dtype=torch.bool).flip(0))),
        ("the same positions in every row", _rows_alike(positions)),
        ("one position in each row", _one_each(positions)),
        ("all positions but one", bool((positions.sum(dim=1) == length - 1).all())),
        ("at most `rank` different rows", len(positions.unique(dim=0)) <= rank),
    )
    return next((kind for kind, fits in kinds if fits), None)


def _lengths(length, rank):
    """This size, the shortest with the other rank, and the longest."""
    return (length, rank), (12, 5 - rank), (16, rank)


def _maps_of_positions(answer, length, rank):
    return [answer(length=size, rank=k) for size, k in _lengths(length, rank)]


def _judge_random(results, length, rank):
    maps = [
        (_checked(positions, size), ("random", ()), ("factorized_random", (("rank", k),)))
        for positions, (size, k) in zip(results, _lengths(length, rank), strict=True)
    ]
    return _reason(maps, _kind_of_map, "Random", "Factorized Random")


def _one_each(positions):
    return bool((positions.sum(dim=1) == 1).all())


def _rows_alike(positions):
    return bool((positions == positions[:1]).all())


def _grid(length):
    """Row numbers and column numbers that broadcast to "length length"."""
    return torch.arange(length)[:, None], torch.arange(length)[None, :]


def _of_grid(function):
    """An answer to 08.3 from function(n, j, tile, repeat) -> bool."""

    def answer(tile, repeat, length):
        n, j = _grid(length)
        return function(n, j, tile, repeat).expand(length, length).clone()

    return answer


def _of_positions(function):
    """An answer to 08.4 from function(i, j, length, rank) -> bool."""

    def answer(length, rank):
        i, j = _grid(length)
        return function(i, j, length, rank).expand(length, length).clone()

    return answer


def _squares(numbers):
    """Whether a number is a square modulo 11: a pattern without a pattern."""
    return torch.isin(numbers % 11, torch.tensor([1, 3, 4, 5, 9]))


def _half_at_random(length, rank):
    order = torch.rand(length, length, generator=torch.Generator().manual_seed(0)).argsort(dim=1)
    return order < length // 2


def _diagonal_of_the_table(tile, repeat, length):
    """Three positions in different rows and columns, another three for each number."""
    positions = torch.zeros(length, length, dtype=torch.bool)
    for n in range(length):
        for k in range(3):
            positions[n, (n // tile + k) % repeat * tile + (n + k) % tile] = True
    return positions


def _parity_of_common_bits(i, j, length, rank):
    common = (i & j)[:, :, None] >> torch.arange(4)
    return (common % 2).sum(dim=-1) % 2 == 0


def _shared_diagonal(n, j, tile, repeat):
    return (j % tile == j // tile) & (j % tile < 3) & (n >= 0)


FOR_DENSE = Exercise(
    key="08.3",
    title="a task for Dense that Factorized Dense cannot learn",
    name="positions_of_number",
    minutes=30,
    level="hard",
    inputs=lambda draw: draw.sizes("tile repeat", low=3, high=5),
    returns="bool, length length",
    run=_maps_of_numbers,
    measure=_judge_dense,
    trials=1,  # the check trains up to eight scores
    right=(_diagonal_of_the_table, _of_grid(_shared_diagonal), _of_grid(lambda n, j, tile, repeat: _squares(n + j))),
    wrong=mistakes({
        FACTORIZED: {
            "each number wants one position; one peak in A times one peak in B can make any single position.":
                _of_grid(lambda n, j, tile, repeat: j == n),
            "this is the reversal: still one position in each row, and a single position is a product of two peaks.":
                _of_grid(lambda n, j, tile, repeat: j == tile * repeat - 1 - n),
            "all numbers want the same single position; that is easy for both.":
                _of_grid(lambda n, j, tile, repeat: (j == 1) & (n >= 0)),
            "every number wants every position: a uniform map, which all scores can make.":
                _of_grid(lambda n, j, tile, repeat: (j >= 0) & (n >= 0)),
            "the wanted positions are one column of the table; a peak in A alone makes it.":
                _of_grid(lambda n, j, tile, repeat: j % tile == n % tile),
            "each number wants two positions; one can be plus times plus and the other minus times minus.":
                _of_grid(
                    lambda n, j, tile, repeat: (
                        ((j - n) % (tile * repeat) == 0) | ((j - n) % (tile * repeat) == tile + 1)
                    )
                ),
            "the wanted positions are a cross: one column of the table and one row. A sharp A and a sharp B make it.":
                _of_grid(lambda n, j, tile, repeat: (j % tile == n % tile) | (j // tile == n // tile)),
            "it does not hold for every table: with one `tile` at least, Factorized Dense can make your positions, "
            "as a column, a row, a block or the like, or comes near them.":
                _of_grid(lambda n, j, tile, repeat: (j - n) % 4 == 0),
            "the wanted positions are one row of the table; a peak in B alone makes it.":
                _of_grid(lambda n, j, tile, repeat: j // tile == n // tile),
            "the wanted positions are a block: some columns of the table times some rows, which is a product.":
                _of_grid(
                    lambda n, j, tile, repeat: (
                        torch.isin(j % tile, torch.tensor([0, 1]))
                        & torch.isin(j // tile, torch.tensor([0, 1]))
                        & (n >= 0)
                    )
                ),
            "every position is wanted but one; one low product makes it.": _of_grid(lambda n, j, tile, repeat: j != n),
            "Factorized Dense learns it too: A and B can be low, 0 or negative, and minus times minus is high.":
                _of_grid(lambda n, j, tile, repeat: (j % tile + j // tile + n) % 2 == 0),
        },
        EXERCISE_PLACES: {
            "Factorized Dense comes near it: little weight is at wrong positions, as when a row wants nearly all.":
                _of_grid(lambda n, j, tile, repeat: (j != n) & (j != (n + tile + 1) % (tile * repeat))),
        },
    }),
)  # fmt: skip

FOR_RANDOM = Exercise(
    key="08.4",
    title="a map for Random that a small rank cannot learn",
    name="wanted_positions",
    minutes=10,
    level="medium",
    inputs=lambda draw: {"length": draw.integer(13, 15), "rank": draw.integer(2, 3)},
    returns="bool, length length",
    run=_maps_of_positions,
    measure=_judge_random,
    trials=1,  # the check trains up to six scores
    right=(
        _of_positions(_parity_of_common_bits),
        _half_at_random,
        _of_positions(lambda i, j, length, rank: _squares(i + j)),
    ),
    wrong=mistakes({
        FACTORIZED: {
            "each position wants itself: one direction on a circle for each position, and rank 2 can do it.":
                _of_positions(lambda i, j, length, rank: j == i),
            "this is the reversal: one position in each row, in an order that goes once around the circle.":
                _of_positions(lambda i, j, length, rank: j == length - 1 - i),
            "all rows are the same, and one row of scores needs rank 1.":
                _of_positions(lambda i, j, length, rank: (j < 5) & (i >= 0)),
            "every position wants every position: a uniform map, for which all scores may be 0.":
                _of_positions(lambda i, j, length, rank: (j >= 0) & (i >= 0)),
            "there are no more different rows than the rank, so each kind of row can have numbers of its own.":
                _of_positions(lambda i, j, length, rank: (i + j) % 2 == 0),
            "each row still wants one position, whatever the order: every position can have its direction on a circle.":
                _of_positions(lambda i, j, length, rank: j == (i * 5 + 2) % length),
        },
        EXERCISE_MAP: {
            "every position is wanted but one, so the map is nearly uniform and the distance stays small.":
                _of_positions(lambda i, j, length, rank: j != i),
            "the small rank learns it as well; your rows follow from one another by a rule for few numbers.":
                _of_positions(lambda i, j, length, rank: (j - i) % (length // 2) == 0),
            "the small rank comes near it: easy are rows like their neighbours, or with nearly all positions.":
                _of_positions(lambda i, j, length, rank: (j != i) & ((i > 0) | (j != 1))),
            "it does not hold for every length and rank: with one of them, your rows are within reach.":
                _of_positions(lambda i, j, length, rank: (j - i) % length < 3),
        },
    }),
)  # fmt: skip


# 08.5. Three readers of a token guess where its match stands, from the counts in all sentences: one knows the position,
# one also the pointer, one also the own key. Judged is what they reach; no model is trained.

HALF, NEARLY_ALWAYS = 0.5, 0.9
COMPARES, TELL_TALE = "the own token does not tell where the match stands", "the own token tells it, and no less does"


def _best_guess(known, right):
    """The share of right answers of one who gives, for each number in `known`, the answer that is most common there."""
    table = torch.zeros(int(known.max()) + 1, int(right.max()) + 1)
    table.index_put_((known.flatten(), right.flatten()), torch.ones(known.numel()), accumulate=True)
    return (table.amax(dim=1).sum() / known.numel()).item()


def _numbers_of(sentences, count, length):
    """The answer as (pointer, key), int64, or an error that says what is no sentence."""
    if not (isinstance(sentences, (tuple, list)) and len(sentences) == 2):
        raise TypeError("the result should be a tuple of two tensors, (pointer, key)")
    for name, numbers in zip(("pointer", "key"), sentences, strict=True):
        if not isinstance(numbers, torch.Tensor) or numbers.dtype != torch.int64:
            raise TypeError(f"{name} should be a tensor of whole numbers, int64")
        if tuple(numbers.shape) != (count, length):
            raise ValueError(f"the shape of {name} is {tuple(numbers.shape)}, but should be ({count}, {length})")
    pointer, key = sentences
    for name, numbers in (("pointer", pointer), ("key", key)):
        if numbers.min() < 0 or numbers.max() >= length:
            raise ValueError(f"{name} has numbers outside of 0 to {length - 1}")
    if not torch.equal(key.sort(dim=1).values, torch.arange(length).expand(count, length)):
        raise ValueError("in some sentence a key occurs twice; a pointer needs exactly one match")
    if (pointer == key).any():
        raise ValueError("some token points to its own key; it should point to another one's")
    return pointer, key


def _reason_of(pointer, key):
    length = key.shape[1]
    right = right_position("pair", pointer, key)
    position = torch.arange(length).expand(key.shape)
    with_pointer = position * length + pointer
    own_token = _best_guess(with_pointer * length + key, right)
    if _best_guess(position, right) >= HALF:
        return "the position alone tells it too often"
    if _best_guess(with_pointer, right) >= HALF:
        return "position and pointer tell it too often"
    if own_token < 1:
        return "the own token tells it nearly always" if own_token > NEARLY_ALWAYS else COMPARES
    return TELL_TALE


def _run_sentences(answer, count, length):
    """The first reason why not, at three lengths: the shortest and the longest are among them."""
    sizes = (12, length, 5)
    reasons = [_reason_of(*_numbers_of(answer(count=count, length=size), count, size)) for size in sizes]
    return {"your sentences": next((reason for reason in reasons if reason != TELL_TALE), TELL_TALE)}


def _pointing(key, step=None):
    """(pointer, key): each token points `step` positions on; by default to any other token."""
    count, length = key.shape
    if step is None:
        step = torch.randint(1, length, (count, length), generator=torch.Generator().manual_seed(count))
    other = (torch.arange(length).expand(count, length) + step) % length
    return key.gather(1, other), key


def _of_key(function):
    """An answer to 08.5 from function(n, i, length) -> key of token i of sentence n."""

    def answer(count, length):
        n, i = torch.arange(count)[:, None], torch.arange(length)[None, :]
        return _pointing(function(n, i, length).expand(count, length).clone())

    return answer


def _keys_at_random(count, length):
    return torch.rand(count, length, generator=torch.Generator().manual_seed(1)).argsort(dim=1)


def _a_turn_drawn(count, length):
    turn = torch.randint(length, (count,), generator=torch.Generator().manual_seed(2)).tolist()
    return _pointing(torch.stack([torch.arange(length).roll(one) for one in turn]))


def _my_key_tells_how_far(count, length):
    key = _keys_at_random(count, length)
    return _pointing(key, step=1 + key % (length - 1))


def _nearly_turned(count, length):
    """Turned sentences; in one of thirty the first two keys change places."""
    key = (torch.arange(length) + torch.arange(count)[:, None]) % length
    key[::30, :2] = key[::30, :2].flip(1)
    return _pointing(key)


def _three_kinds(count, length):
    """The same shuffled row of keys, begun at three places."""
    row = torch.randperm(length, generator=torch.Generator().manual_seed(3))
    return _pointing(torch.stack([row.roll(n % 3) for n in range(count)]))


def _swapped(count, length):
    pointer, key = _pointing(_keys_at_random(count, length))
    return key, pointer


SENTENCES = Exercise(
    key="08.5",
    title="sentences that need no comparison",
    name="tell_tale_sentences",
    minutes=30,
    level="hard",
    inputs=lambda draw: {"count": draw.integer(1200, 1600), "length": draw.integer(6, 11)},
    returns="pointer and key",
    run=_run_sentences,
    trials=1,  # at three lengths
    right=(
        _of_key(lambda n, i, length: (i + n) % length),
        _a_turn_drawn,
        _my_key_tells_how_far,
        _three_kinds,
    ),
    wrong=mistakes({
        STRETCH: {
            "these sentences still need a comparison: one and the same token has its match at many positions.":
                lambda count, length: _pointing(_keys_at_random(count, length)),
            "the own token nearly always tells where the match stands, but not in every sentence.": _nearly_turned,
        },
        QUESTION: {
            "from a position the match stands at the same place too often, so a reader of the position alone finds it.":
                lambda count, length: _pointing(_keys_at_random(count, length), step=1),
            "a key stands at the same position in too many sentences, so the pointer tells where: the task token.":
                _of_key(lambda n, i, length: i + 0 * n),
        },
    }) + mistakes({
        QUESTION: {
            "pointer and key are exchanged, or a key occurs twice.": _swapped,
        },
    }, error="occurs twice") + mistakes({
        QUESTION: {
            "a token that points to itself needs no match.":
                lambda count, length: (_keys_at_random(count, length),) * 2,
        },
    }, error="its own key") + mistakes({
        QUESTION: {
            "keys and pointers are the numbers from 0 to length - 1, whatever the length is.":
                lambda count, length: tuple(part + 1 for part in _pointing(_keys_at_random(count, length))),
        },
    }, error="outside of 0"),
)  # fmt: skip

EXERCISES = [SOLVES, COUNTING_GUESS, FOR_DENSE, FOR_RANDOM, SENTENCES]
