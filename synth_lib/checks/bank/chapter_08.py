"""The exercises of chapter 08: what each S can do. A task is a position to look at, arXiv 2005.00743, Table 1."""

from collections import Counter
from functools import cache

import torch
from torch.nn.functional import one_hot

from synth_lib.checks.exercise import Exercise, mistakes, told_apart
from synth_lib.lab.probes import distance_to

QUESTION = "The question"
EQUATIONS = "The equations"
PREDICT = "Predict the table"
GUESS = "What would a guess score?"
FAILS = "Fixed Random"
FACTORIZED = "What the factorized ones lose"
EXERCISE_PLACES = "Exercise 08.3: a task for Dense that Factorized Dense cannot learn"
EXERCISE_MAP = "Exercise 08.4: a map for Random that a small rank cannot learn"


# 08.1. Rows of the chapter, as entries of Table 1; not all, because a message shows their names only if they are few.
# The answer never sees a name.

NOTHING, OWN, ALL = "nothing", "X_i", "X_j for all j"
ROWS = {
    "Fixed Random": ((NOTHING,), False),
    "Random": ((NOTHING,), True),
    "Dense": ((OWN,), True),
    "dot product": ((ALL,), True),
    "Random + Dense": ((NOTHING, OWN), True),
    "Dense + dot product": ((OWN, ALL), True),
    "dot product + Random": ((ALL, NOTHING), True),
    "Dense + Factorized Dense": ((OWN, OWN), True),
}
TASKS = ("position", "token", "pair")


def _table_inputs(draw):
    return {
        "conditioned_on": {name: entries for name, (entries, _) in ROWS.items()},
        "trained": {name: trained for name, (_, trained) in ROWS.items()},
        "task": TASKS,
    }


def _solved_by(answer, conditioned_on, trained, task):
    """For each task the names for which the answer says yes: a text for the plain S and one for the mixtures."""
    solved = {}
    for one in task:
        verdicts = {name: answer(conditioned_on[name], trained[name], one) for name in conditioned_on}
        kinds = {type(verdict).__name__ for verdict in verdicts.values()} - {"bool"}
        if kinds:
            raise TypeError(f"the result should be True or False, but is of the type {kinds.pop()}")
        for group, is_mixture in (("plain S", False), ("mixtures", True)):
            members = [name for name in verdicts if (len(conditioned_on[name]) > 1) == is_mixture]
            solved[f"{one}, {group}"] = ", ".join(name for name in members if verdicts[name])
    return solved


def _rule(choose=max, needs=None, compare=int.__ge__, look_at_trained=True):
    """An answer that compares what is read, 0 to 2, with what is needed."""
    needs = needs or {"position": 0, "token": 1, "pair": 2}

    def answer(conditioned_on, trained, task):
        if look_at_trained and not trained:
            return False
        return compare(choose((NOTHING, OWN, ALL).index(entry) for entry in conditioned_on), needs[task])

    return answer


def _solves_by_sets(conditioned_on, trained, task):
    enough = {"position": {NOTHING, OWN, ALL}, "token": {OWN, ALL}, "pair": {ALL}}
    return trained and bool(enough[task] & set(conditioned_on))


def _solves_in_sentences(conditioned_on, trained, task):
    if not trained:
        return False
    if task == "position":
        return True
    return ALL in conditioned_on or (task == "token" and OWN in conditioned_on)


def _solves_by_text(conditioned_on, trained, task):
    reads_all = conditioned_on == ALL
    return trained and (task == "position" or reads_all or (task == "token" and conditioned_on == OWN))


SOLVES = Exercise(
    key="08.1",
    title="the table as a rule",
    name="solves",
    minutes=10,
    level="easy",
    inputs=_table_inputs,
    returns="True or False",
    run=_solved_by,
    right=(_rule(), _solves_by_sets, _solves_in_sentences),
    wrong=mistakes({
        EQUATIONS: {
            "a mixture is taken to be as weak as its weakest part.": _rule(choose=min),
            "only the first part of a mixture is looked at.": _rule(choose=lambda levels: next(iter(levels))),
            "only the last part of a mixture is looked at.": _rule(choose=lambda levels: list(levels)[-1]),
            "each S is allowed its own task alone; whoever reads more can leave unread what is not needed.":
                _rule(compare=int.__eq__),
            "the position is held to be known to Random alone; but the token contains its position.":
                lambda conditioned_on, trained, task: (
                    trained
                    and (task != "position" or NOTHING in conditioned_on)
                    and _rule()(conditioned_on, trained, task)
                ),
            "what the parts read is added up; two parts that read the own token still read nothing but that.":
                _rule(choose=sum),
        },
        PREDICT: {
            "scores that stay as they were drawn are taken to be as good as trained ones.":
                _rule(look_at_trained=False),
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


# 08.2. Every sentence has a value that is not the most common one of the batch, and no sentence has all values. The
# chances are multiples of 1/64, so that sums are exact in any order.


def _guess_inputs(draw):
    sizes = draw.sizes("batch length", low=4, high=9)
    batch, length = sizes["batch"], sizes["length"] + 4
    rows = []
    for number in range(batch):
        favourite = draw.integer(0, 2) + 3 * (number % 2)  # sentences prefer different values
        rows.append([favourite if draw.integer(0, 2) == 0 else draw.integer(0, 6) for _ in range(length)])
    parts = [1] * length
    for _ in range(64 - length):
        parts[draw.integer(0, draw.integer(0, length - 1))] += 1  # early positions are likelier
    return {"values": torch.tensor(rows), "chance": torch.tensor(parts) / 64}


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


COUNTING_GUESS = Exercise(
    key="08.2",
    title="a guess when positions are not alike",
    name="counting_guess",
    minutes=10,
    level="easy",
    inputs=told_apart(_guess_inputs, [_guess_in_loops, _guess_of_pair, _equal_chance]),
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


# 08.3 and 08.4. Both scores are trained; three words tell the result. A map that does not separate them is described,
# so that its kind can be recognised.

PERFECT, FAR = 0.03, 0.1  # right answers stay below the first with one score, and far above the second with the other


def _checked(positions, length):
    kind = type(positions).__name__
    if not isinstance(positions, torch.Tensor):
        raise TypeError(f"the result should be a bool tensor (length, length), but is of the type {kind}")
    if positions.dtype != torch.bool or tuple(positions.shape) != (length, length):
        other = f"{positions.dtype} {tuple(positions.shape)}"
        raise ValueError(f"the result should be bool ({length}, {length}), but is {other}")
    if not positions.any(dim=1).all():
        empty = int((~positions.any(dim=1)).nonzero()[0])
        raise ValueError(f"row {empty} has no True: every row needs a position to look at")
    return positions


@cache
def _learned(rows, score, options):
    """'learns it', 'nearly learns it' or 'does not learn it'."""
    distance = distance_to(torch.tensor(rows), score, **dict(options))
    return "learns it" if distance < PERFECT else "does not learn it" if distance > FAR else "nearly learns it"


def _contest(positions, able, unable, kinds, possible=False):
    """What both scores make of the map; and if it does not separate them, what kind of map it is.

    possible: whether the second score can make the map for certain, even where training does not find it.
    """
    rows = tuple(map(tuple, positions.tolist()))
    results = {name: _learned(rows, score, options) for name, (score, options) in {**able, **unable}.items()}
    if possible:
        results |= {name: "can make it" for name in unable if results[name] != "learns it"}
    separated = list(results.values()) == ["learns it", "does not learn it"]
    kind = "separates them" if separated else next((kind for kind, fits in kinds if fits), "another kind of map")
    return results | {"your map": kind}


def _contest_of_table(answer, tile, repeat, length):
    positions = _checked(answer(tile=tile, repeat=repeat, length=length), length)
    table = positions.reshape(length, repeat, tile)
    block = table.any(dim=1)[:, None, :] & table.any(dim=2)[:, :, None]
    full_columns, full_rows = table.all(dim=1), table.all(dim=2)
    cross = full_columns[:, None, :] | full_rows[:, :, None]
    alone = (full_columns.sum(dim=1) == 1) & (full_rows.sum(dim=1) == 1)
    at_most_two = (positions.sum(dim=1) <= 2).all()
    kinds = (
        ("all positions in every row", bool(positions.all())),
        ("the position of the own number", torch.equal(positions, torch.eye(length, dtype=torch.bool))),
        ("one position, the same in every row", _one_each(positions) and _rows_alike(positions)),
        ("the mirrored position", torch.equal(positions, torch.eye(length, dtype=torch.bool).flip(0))),
        ("one position in each row", _one_each(positions)),
        ("one column of the table", torch.equal(table, block) and bool((table.any(dim=1).sum(dim=1) == 1).all())),
        ("one row of the table", torch.equal(table, block) and bool((table.any(dim=2).sum(dim=1) == 1).all())),
        ("a cross in the table", torch.equal(table, cross) and bool(alone.all())),
        ("at most two positions in each row", bool(at_most_two)),
        ("all positions but one", bool((positions.sum(dim=1) == length - 1).all())),
        ("the positions up to the own number", torch.equal(positions, torch.ones_like(positions).tril())),
        ("a block of the table", torch.equal(table, block)),
        ("every second position", bool((positions[:, 2:] == positions[:, :-2]).all())),
    )
    able = {"Dense": ("dense", ())}
    unable = {"Factorized Dense": ("factorized_dense", (("a", tile), ("b", repeat)))}
    # Two positions are a block, or one is plus times plus and the other minus times minus.
    return _contest(positions, able, unable, kinds, possible=bool(at_most_two))


def _run_dense(answer, tile, repeat, length):
    """On the table and on the turned one: a map that fits one number of columns alone is found out."""
    results = {}
    for columns, lines in ((tile, repeat), (repeat, tile)):
        contest = _contest_of_table(answer, columns, lines, length)
        results |= {f"{name}, with tile {columns}": result for name, result in contest.items()}
    return results


def _run_random(answer, length, rank):
    positions = _checked(answer(length=length, rank=rank), length)
    kinds = (
        ("all positions in every row", bool(positions.all())),
        ("the own position", torch.equal(positions, torch.eye(length, dtype=torch.bool))),
        ("the mirrored position", torch.equal(positions, torch.eye(length, dtype=torch.bool).flip(0))),
        ("the same positions in every row", _rows_alike(positions)),
        ("one position in each row", _one_each(positions)),
        ("all positions but one", bool((positions.sum(dim=1) == length - 1).all())),
        ("every second position", bool((positions[:, 2:] == positions[:, :-2]).all())),
        ("the positions up to the own one", torch.equal(positions, torch.ones_like(positions).tril())),
        ("at most `rank` different rows", len(positions.unique(dim=0)) <= rank),
    )
    able = {"Random": ("random", ())}
    unable = {f"Factorized Random, rank {rank}": ("factorized_random", (("rank", rank),))}
    return _contest(positions, able, unable, kinds)


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


def _sizes_of_table(draw):
    """One of both is 4: there the example of the chapter, every fourth position, is a column."""
    while True:
        sizes = draw.sizes("tile repeat", low=3, high=5)
        if 4 in sizes.values():
            return sizes


FOR_DENSE = Exercise(
    key="08.3",
    title="a task for Dense that Factorized Dense cannot learn",
    name="positions_of_number",
    minutes=15,
    level="medium",
    inputs=_sizes_of_table,
    returns="bool, length length",
    run=_run_dense,
    trials=1,  # it trains four scores
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
            "this is the example for a table with 3 columns; where tile is 4, they are one column: use tile.":
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
        },
    }),
)  # fmt: skip

FOR_RANDOM = Exercise(
    key="08.4",
    title="a map for Random that a small rank cannot learn",
    name="wanted_positions",
    minutes=15,
    level="hard",
    inputs=lambda draw: {"length": draw.integer(12, 16), "rank": draw.integer(2, 3)},
    returns="bool, length length",
    run=_run_random,
    trials=2,
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
            "the rows are of two kinds, one the opposite of the other; plus and minus are rank 1.":
                _of_positions(lambda i, j, length, rank: (i + j) % 2 == 0),
            "each row still wants one position, whatever the order: every position can have its direction on a circle.":
                _of_positions(lambda i, j, length, rank: j == (i * 5 + 2) % length),
        },
        EXERCISE_MAP: {
            "every position is wanted but one, so the map is nearly uniform and the distance stays small.":
                _of_positions(lambda i, j, length, rank: j != i),
        },
    }),
)  # fmt: skip

EXERCISES = [SOLVES, COUNTING_GUESS, FOR_DENSE, FOR_RANDOM]
