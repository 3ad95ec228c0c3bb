"""The exercises of chapter 09, reading other people's code: five questions, and the audit made of them.

An answer is asked about many cases, and what it says of each is the result.
"""

import itertools
from functools import cache

import torch
from torch import nn

from synth_lib.attention import Attention
from synth_lib.checks.audit import EVERY_TOKEN, NOTHING, OWN_TOKEN, READS, Claim, audit, moved
from synth_lib.checks.boxes import FAULTS, UNSEEN, Box, make, seal
from synth_lib.checks.compare import kind_of
from synth_lib.checks.exercise import Exercise, mistakes

PREDICT = "Predict, then ask"
ROWS = "Do the rows sum to 1?"
COUNT = "How many numbers, and are they kept?"
MOVES = "Do the rows move with the tokens?"
ALONE = "Alone, or in company?"
DERIVATIVES = "What do derivatives see?"
MORE = "Four more boxes, and two more questions"
CHEAPEST = "The cheapest audit"
LIBRARY = "Turn it on the library"
EXERCISE_MAP = "Exercise 09.1: is it a map?"
EXERCISE_COUNT = "Exercise 09.2: the count tells"
EXERCISE_MOVES = "Exercise 09.3: who moves with whom"
EXERCISE_ALONE = "Exercise 09.4: alone or together"
EXERCISE_AUDIT = "Exercise 09.5: the audit"
STRETCH = "Stretch 09.6: pass, and be wrong"


class _Named:
    """The functions of one trial, by name; called, it is the first."""

    def __init__(self, functions):
        self.functions = functions

    def __call__(self, *arguments):
        return next(iter(self.functions.values()))(*arguments)


# 09.1. One trial has one head, one has one token. Each case breaks one promise alone, or none.


def _map_inputs(draw):
    sizes = draw.sizes("head length", low=3, high=6)
    head, length = draw.in_turn([(sizes["head"], sizes["length"]), (1, sizes["length"]), (sizes["head"], 1)])
    raw = draw.normal(head, length, length)
    full, causal = torch.ones(length, length).bool(), torch.ones(length, length).tril().bool()
    later = causal.clone()
    later[0] = False  # the first query may attend to nothing
    cases = {}

    def case(what, weights, allowed):
        cases[f"for {what}"] = (weights, allowed)

    def masked(allowed):
        return (raw.exp() * allowed) / (raw.exp() * allowed).sum(dim=-1, keepdim=True).clamp_min(1e-30)

    case("a map without a mask", masked(full), full)
    case("a causal map", masked(causal), causal)
    case("a map with an empty row", masked(later), later)
    case("rows that sum to 1.00006", masked(full) * (1 + 6e-5), full)
    case("rows that sum to 0.99994", masked(full) * (1 - 6e-5), full)
    case("rows that sum to 1.0003", masked(full) * (1 + 3e-4), full)
    for total in (1.0002, 0.9998):  # the last row of the last head alone
        near = masked(full)
        near[-1, -1] *= total
        case(f"a row that sums to {total}", near, full)
    case("scores without a softmax", raw, full)
    case("a softmax over the queries", raw.softmax(dim=-2), full)
    case("a mask behind the softmax", masked(full) * causal, causal)
    case("a map that overlooks its mask", masked(full), causal)
    evenly = masked(later) + 1 / length * (~later.any(dim=-1))[:, None]
    case("equal weights where nothing is allowed", evenly, later)
    case("a row of zeros where a key is allowed", masked(later), causal)
    case("rows that sum to 1 over all heads", masked(full) / head, full)
    tilted = masked(full)
    tilted[:, :, 0], tilted[:, :, -1] = tilted[:, :, 0] + 1.3, tilted[:, :, -1] - 1.3
    case("a weight above 1 and one below 0", tilted, full)
    traded = masked(full)
    traded[-1, 0] = traded[-1, 0] * 1.5  # one row too much, the others less: the mean of the sums is right
    traded[-1, 1:] = traded[-1, 1:] * (1 - 0.5 / max(length - 1, 1))
    case("one row too large and the others too small", traded, full)
    hidden = masked(full)
    hidden[-1] = float("nan")
    case("a head of NaN", hidden, full)
    one_nan = masked(full)
    one_nan[-1, -1] = torch.tensor([float("nan")] + [1 / max(length - 1, 1)] * (length - 1))
    case("one NaN", one_nan, full)
    for size in (-5e-5, 5e-5):  # in the last head alone, where nothing is allowed, or below 0
        trace = masked(causal if size > 0 else full)
        trace[-1, 0, -1], trace[-1, 0, 0] = size, trace[-1, 0, 0] + trace[-1, 0, -1] - size
        what = "a weight of 0.00005 where nothing is allowed" if size > 0 else "a weight of -0.00005"
        case(f"{what}, in the last head", trace, causal if size > 0 else full)
    barely = masked(full)
    barely[..., 0], barely[..., -1] = barely[..., 0] + barely[..., -1] + 1e-7, -1e-7
    case("weights of -0.0000001 where it is allowed", barely, full)
    for place in {0, head // 2}:  # in one head alone
        spoiled = masked(full)
        spoiled[place, -1] *= 1.2
        case(f"a row of head {place} that is 1.2 times too large", spoiled, full)
    for size, place in itertools.product((-1e-7, 1e-7), {0, head - 1}):  # where nothing is allowed, it is no rounding
        leaking = masked(causal)
        leaking[place, 0, -1], leaking[place, 0, 0] = size, leaking[place, 0, 0] + leaking[place, 0, -1] - size
        case(f"a weight of {size:.7f} where nothing is allowed, in head {place}", leaking, causal)
    for size in (-1e-7, 1e-7, 1e-30, float("nan")):
        leaking = masked(later)
        leaking[-1, 0, -1] = size
        case(f"{size:.2g} in a row that should be empty", leaking, later)
    hidden_nan = masked(causal)
    hidden_nan[-1, 0, -1] = float("nan") if length > 1 else 0.5
    case("one NaN where nothing is allowed", hidden_nan, causal)
    paired = masked(later)
    paired[0, 0, 0], paired[-1, 0, -1] = 1e-7, -1e-7
    case("0.0000001 and -0.0000001 where nothing is allowed", paired, later)
    for sign in (-1, 1):  # a row is whole with what stands outside, or without it
        beside = masked(causal)
        beside[-1, 0] *= 1 - sign * 0.25
        beside[-1, 0, -1] += sign * 0.25
        case(f"{sign * 0.25} moved to where nothing is allowed", beside, causal)
    for size in (-2e-6, -5e-7):
        below = masked(full)
        below[-1, -1, -1], below[-1, -1, 0] = size, below[-1, -1, 0] + below[-1, -1, -1] - size
        case(f"an allowed weight of {size:.7f}", below, full)
    wide = torch.ones(length, length + 2).bool()  # more keys than queries, then fewer
    wide[0], wide[-1, 0] = False, length == 1
    narrow = wide.T.roll(1, 0)
    for what, allowed in {"more keys than queries": wide, "fewer keys than queries": narrow}.items():
        own = draw.normal(head, *allowed.shape).exp() * allowed
        own = own / own.sum(dim=-1, keepdim=True).clamp_min(1e-30)
        case(what, own, allowed)
        case(f"{what}, and one row 1.2 times too large", torch.cat([own[:, :-1], own[:, -1:] * 1.2], dim=1), allowed)
    case("zeros with a minus sign where nothing is allowed", torch.where(causal, masked(causal), -0.0), causal)
    vanished = masked(full)
    vanished[..., 0], vanished[..., -1] = vanished[..., 0] + vanished[..., -1], 0.0  # allowed, and rounded to 0
    case("allowed weights of exactly 0", vanished, full)
    minus = masked(later)
    minus[:, 0, :] = torch.linspace(-0.5, 0.5, length) if length > 1 else 0.3  # where nothing is allowed, sums 0
    case("numbers that sum to 0 in a row that should be empty", minus, later)
    return {"weights": {name: one for name, (one, _) in cases.items()},
            "allowed": {name: one for name, (_, one) in cases.items()}}  # fmt: skip


def _maps_called(answer, weights, allowed):
    return {name: answer(weights[name], allowed[name]) for name in weights}


def _map_by_sums(weights, allowed):
    wanted = allowed.any(dim=-1).to(weights.dtype).expand(weights.shape[:-1])
    sums = torch.isclose(weights.sum(dim=-1), wanted, rtol=0, atol=1e-4).all()
    return bool(sums and not (weights * ~allowed).ne(0).any() and (weights >= -1e-6).all())


def _map_in_loops(weights, allowed):
    for head in weights:
        for row, may in zip(head, allowed, strict=True):
            outside, total = row[~may], row.sum().item()
            if outside.ne(0).any() or not abs(total - float(may.any())) <= 1e-4 or not row.min() >= -1e-6:
                return False
    return True


def _map_without(sums=True, signs=True, outside=True, axis=-1, wanted=None, limit=1e-4):
    """The right questions, but for those that are left out, or asked otherwise."""

    def answer(weights, allowed):
        goal = allowed.any(dim=-1).to(weights.dtype) if wanted is None else wanted(allowed)
        right = not sums or bool(((weights.sum(dim=axis) - goal).abs() <= limit).all())
        right = right and (not outside or bool((weights[:, ~allowed] == 0).all()))
        return bool(right and (not signs or (weights >= -1e-6).all()))

    return answer


def _ones(allowed):
    return torch.ones(len(allowed))


IS_A_MAP = Exercise(
    key="09.1",
    title="is it a map?",
    name="is_a_map",
    minutes=10,
    level="easy",
    inputs=_map_inputs,
    returns="True or False",
    run=_maps_called,
    right=(_map_by_sums, _map_in_loops, _map_without()),
    wrong=mistakes({
        ROWS: {
            "negative weights are not looked for.": _map_without(signs=False),
            "the sums are not looked at.": _map_without(sums=False),
            "the mean of the sums is looked at; each row has to sum to 1 by itself.":
                lambda weights, allowed: bool(
                    (weights.sum(dim=-1).mean() - allowed.any(dim=-1).float().mean()).abs() <= 1e-4
                    and (weights[:, ~allowed] == 0).all() and (weights >= -1e-6).all()
                ),
            "the smallest weight must be above 0; a weight of exactly 0 is fine where nothing is allowed.":
                lambda weights, allowed: bool(_map_without()(weights, allowed) and (weights > 0).all()),
        },
        EXERCISE_MAP: {
            "a row that may attend to nothing has to sum to 1 here; it holds zeros.": _map_without(wanted=_ones),
            "rows that may attend to nothing are passed over; they have to hold zeros.":
                lambda weights, allowed: _map_without(outside=False)(
                    weights[:, allowed.any(dim=-1)], allowed[allowed.any(dim=-1)]
                ) and bool((weights[:, allowed.any(dim=-1)] * ~allowed[allowed.any(dim=-1)] == 0).all()),
            "a row of zeros is taken for right, whatever its query may attend to.":
                lambda weights, allowed: bool(
                    (((weights.sum(dim=-1) - 1).abs() <= 1e-4) | (weights == 0).all(dim=-1)).all()
                    and (weights[:, ~allowed] == 0).all() and (weights >= -1e-6).all()
                ),
            "a weight where nothing is allowed is not looked for.": _map_without(outside=False),
            "sums are compared exactly; what is rounded is refused.": _map_without(limit=0.0),
            "the limit for sums is too wide.": _map_without(limit=1e-2),
            "the limit for sums is too narrow: a rounding of 0.00006 is refused.": _map_without(limit=1e-5),
            "the limit for sums is asked of their mean; each row has to keep it.": lambda weights, allowed: bool(
                (weights.sum(dim=-1) - allowed.any(dim=-1).float()).abs().mean() <= 1e-4
                and (weights[:, ~allowed] == 0).all() and (weights >= -1e-6).all()
            ),
            "what stands where nothing is allowed is added up, and plus and minus cancel.":
                lambda weights, allowed: bool(
                    _map_without(outside=False)(weights, allowed) and weights[:, ~allowed].sum() == 0
                ),
            "what stands where nothing is allowed is set to 0 first, and so never seen.":
                lambda weights, allowed: _map_without()(torch.where(allowed, weights, 0.0), allowed),
            "only head 0 is looked at.": lambda weights, allowed: _map_without()(weights[:1], allowed),
            "only the last head is looked at.": lambda weights, allowed: _map_without()(weights[-1:], allowed),
            "a tiny weight where nothing is allowed is overlooked; there it is exactly 0.":
                lambda weights, allowed: bool(
                    _map_without(outside=False)(weights, allowed) and (weights[:, ~allowed].abs() <= 1e-6).all()
                ),
            "a tiny weight below 0 where nothing is allowed is overlooked; there it is exactly 0.":
                lambda weights, allowed: bool(
                    _map_without(outside=False)(weights, allowed) and (weights[:, ~allowed] <= 0).all()
                ),
            "an allowed weight of exactly 0 is refused; the softmax rounds a small one to 0.":
                lambda weights, allowed: bool(_map_without()(weights, allowed) and (weights[:, allowed] > 0).all()),
            "NaN passes: it asks whether something is wrong, and NaN is never larger than a limit.":
                lambda weights, allowed: not bool(
                    ((weights.sum(dim=-1) - allowed.any(dim=-1).float()).abs() > 1e-4).any()
                    or (weights[:, ~allowed] != 0).any() or (weights < -1e-6).any()
                ),
            "a rounding below 0 is taken for a negative weight.":
                lambda weights, allowed: bool(_map_without()(weights, allowed) and (weights >= 0).all()),
        },
    }) + mistakes({
        ROWS: {"it sums over the queries: the columns, not the rows.": _map_without(axis=-2)},
    }, error="must match the size of tensor b"),
)  # fmt: skip


# 09.2. Each trial has layers of several sizes, and asks of each about its ten counts, about others near them, and about
# the counts of the sizes before: an answer that keeps a table is found out.


def _counts(d, l, k):  # noqa: E741  the paper's letters
    """{(name, biases): count}"""
    found = {}
    for bias in (0, 1):
        values = d * d + bias * d
        found["random", bool(bias)] = values + l * l
        found["factorized random", bool(bias)] = values + 2 * l * k
        found["narrow dot product", bool(bias)] = values + 2 * (d + bias) * k
        found["dense", bool(bias)] = values + (d + bias) * d + (d + bias) * l
        found["narrow dense", bool(bias)] = values + (d + bias) * l + (l + bias) * l
    return found


SIZES = (7, 12, 19), (12, 31, 1), (300, 5, 2)  # d_model, max_length, rank: also a rank above the others, and of 1
LARGE = 4099, 37, 4  # its counts are above 2 ** 24, where a float32 skips whole numbers; few, as some build the layer


def _explain_inputs(draw):
    while True:
        d, l, k = draw.integer(7, 40), draw.integer(5, 28), draw.integer(2, 6)  # noqa: E741
        sizes = [(d, l, k), (d, l + 2, k), *draw.in_turn([SIZES[:2], SIZES[1:], SIZES[::2]])]
        if all(len(set(_counts(*one).values())) == 10 for one in sizes):
            break
    asked, before = [], []
    for d, l, k in sizes:  # noqa: E741
        own = list(_counts(d, l, k).values())
        near = [count + step for count in own for step in (-2, -1, 1, 2)]
        others = [2 * l * k, own[0] + d * d, own[5] + d * d, own[8] - d, own[1] - l * k, own[2] - d * k, 0]
        asked += [(count, d, l, k) for count in sorted({*own, *near, *others, *before})]
        before = own
    asked += [(_counts(*LARGE)["factorized random", True] + step, *LARGE) for step in (-1, 0, 1)]
    names = "count", "d_model", "max_length", "rank"
    return dict(zip(names, map(list, zip(*asked, strict=True)), strict=True))


def _explained(answer, **asked):
    said = {}
    for values in zip(*asked.values(), strict=True):
        one = dict(zip(asked, values, strict=True))
        said["for " + ", ".join(f"{name} {value}" for name, value in one.items())] = answer(**one)
    return said


def _explained_in_words(said, **asked):
    """'random, with biases', or 'None'."""
    words = {}
    for where, one in said.items():
        if one is not None:
            if not (isinstance(one, (tuple, list)) and list(map(type, one)) == [str, bool]):
                right = "a tuple of a name and True or False, or None"
                raise ValueError(f"{where}, the result is {_kinds_in(one)}, but should be {right}")
            one = f"{one[0]}, {'with' if one[1] else 'without'} biases"
        words[where] = str(one)
    return words


def _kinds_in(value):
    """'a tuple of a str and an int'"""
    if isinstance(value, (tuple, list)) and 0 < len(value) < 4:
        parts = [kind_of(part).split(" (")[0] for part in value]
        return f"a {type(value).__name__} of {' and '.join(parts)}"
    return kind_of(value)


def _explain_listed(count, d_model, max_length, rank):
    return next((key for key, found in _counts(d_model, max_length, rank).items() if found == count), None)


def _explain_solved(count, d_model, max_length, rank):
    d, l, k = d_model, max_length, rank  # noqa: E741
    for bias in (0, 1):
        rest = count - d * d - bias * d
        tries = {
            "random": rest == l * l,
            "factorized random": rest == 2 * l * k,
            "narrow dot product": rest == 2 * k * (d + bias),
            "dense": rest == (d + l) * (d + bias),
            "narrow dense": rest == l * (d + bias) + l * (l + bias),
        }
        for name, fits in tries.items():
            if fits:
                return name, bool(bias)
    return None


def _explain_with(change):
    """An answer that looks the count up in a table that `change` has spoiled."""

    def answer(count, d_model, max_length, rank):
        table = change(_counts(d_model, max_length, rank), d_model, max_length, rank)
        return next((key for key, found in table.items() if found == count), None)

    return answer


LAYERS = "random", "factorized random", "narrow dot product", "dense", "narrow dense"


def _explain_but(name):
    return _explain_with(lambda table, d, l, k: {key: count for key, count in table.items() if key[0] != name})


def _nearest(count, d_model, max_length, rank):
    table = _counts(d_model, max_length, rank)
    return min(table, key=lambda key: abs(table[key] - count))


def _renamed(one, other):
    names = {one: other, other: one}

    def answer(count, d_model, max_length, rank):
        result = _explain_listed(count, d_model, max_length, rank)
        return result and (names.get(result[0], result[0]), result[1])

    return answer


EXPLAIN = Exercise(
    key="09.2",
    title="the count tells",
    name="explain",
    minutes=15,
    level="medium",
    inputs=_explain_inputs,
    returns="a tuple of a name and True or False, or None",
    run=_explained,
    measure=_explained_in_words,
    right=(_explain_listed, _explain_solved),
    wrong=mistakes({
        COUNT: {
            "the value projection is left out.":
                _explain_with(lambda table, d, l, k: {
                    key: count - d * d - key[1] * d for key, count in table.items()
                }),
            "the value projection is counted twice, as if there were an output projection.":
                _explain_with(lambda table, d, l, k: {
                    key: count + d * d + key[1] * d for key, count in table.items()
                }),
            "Factorized Random has two tables; one is counted.":
                _explain_with(lambda table, d, l, k: {
                    key: count - l * k * (key[0] == "factorized random") for key, count in table.items()
                }),
            "the narrow dot product has two projections; one is counted.":
                _explain_with(lambda table, d, l, k: {
                    key: count - (d + key[1]) * k * (key[0] == "narrow dot product") for key, count in table.items()
                }),
            "the two widths of Dense are exchanged: narrow is called plain, and plain narrow.":
                _renamed("dense", "narrow dense"),
            "the factors of Random and the projections of x are exchanged.":
                _renamed("factorized random", "narrow dot product"),
        },
        EXERCISE_COUNT: {
            "the answer is the layer whose count is nearest; it has to fit exactly.": _nearest,
            "no layer is ever recognised: each count gets None.": lambda count, d_model, max_length, rank: None,
            "layers with biases are not recognised.":
                _explain_with(lambda table, d, l, k: {key: count for key, count in table.items() if not key[1]}),
            "layers without biases are not recognised.":
                _explain_with(lambda table, d, l, k: {key: count for key, count in table.items() if key[1]}),
            **{f'"{name}" is never recognised.': _explain_but(name) for name in LAYERS},
            "the value projection has a bias, too, if there are any.":
                _explain_with(lambda table, d, l, k: {key: count - key[1] * d for key, count in table.items()}),
            "the bias of the value projection is left out, so that a table has one count with biases and without.":
                _explain_with(lambda table, d, l, k: dict(reversed(
                    {key: count - key[1] * d for key, count in table.items()}.items()
                ))),
            "a layer with two linear layers in a row has a bias in each; the hidden one is forgotten.":
                _explain_with(lambda table, d, l, k: {
                    key: count - key[1] * {"dense": d, "narrow dense": l}.get(key[0], 0)
                    for key, count in table.items()
                }),
            "a table is no linear layer; here it has biases, too.":
                _explain_with(lambda table, d, l, k: {
                    key: count + key[1] * {"random": l, "factorized random": 2 * k}.get(key[0], 0)
                    for key, count in table.items()
                }),
            "of two linear layers in a row only the hidden one has a bias here.":
                _explain_with(lambda table, d, l, k: {
                    key: count - key[1] * l * ("dense" in key[0]) for key, count in table.items()
                }),
            "the two projections of the narrow dot product have a bias each; one is counted.":
                _explain_with(lambda table, d, l, k: {
                    key: count - key[1] * k * (key[0] == "narrow dot product") for key, count in table.items()
                }),
            "d_model and max_length have changed places.":
                lambda count, d_model, max_length, rank: _explain_listed(count, max_length, d_model, rank),
            "biases are counted by the inputs of a layer; each output has one.":
                _explain_with(lambda table, d, l, k: {
                    key: count + key[1] * {"narrow dot product": 2 * (d - k), "dense": d - l,
                                           "narrow dense": d - l}.get(key[0], 0)
                    for key, count in table.items()
                }),
            "the name is right; whether there are biases is turned round.":
                lambda count, d_model, max_length, rank: (
                    (found := _explain_listed(count, d_model, max_length, rank)) and (found[0], not found[1])
                ),
            "a table with biases beside it is not recognised: the value projection has a bias, a table has none.":
                _explain_with(lambda table, d, l, k: {
                    key: count for key, count in table.items() if not (key[1] and "random" in key[0])
                }),
        },
    }),
)  # fmt: skip


# 09.3. The order is no turn and does not undo itself; of more than two tokens it leaves token 0 at its place, and the
# last feature is the same in all tokens: scores that look at these keep their law for this x and this order alone. Two
# trials have one head, one of them two tokens alone; there are always fewer heads than tokens.


def _law(reads, draw, head, length, d_model, scale=1.0):
    """A score that keeps this law."""
    if reads == NOTHING:
        table = draw.normal(head, length, length)
        return lambda x: table[:, : len(x), : len(x)]
    one, other = draw.normal(head, d_model, d_model) * scale / d_model, draw.normal(head, d_model, length)
    if reads == OWN_TOKEN:
        return lambda x: (x @ one).relu() @ other
    return lambda x: (x @ one) @ x.T


def _moves_inputs(draw):
    sizes = draw.sizes("head length d_model", low=4, high=7)
    fewer, more = sorted((sizes["head"], sizes["length"]))
    head, length = draw.in_turn([(fewer, more), (1, more), (1, 2)])
    d_model = sizes["d_model"]
    x = draw.normal(length, d_model)
    x[:, -1] = 0.7
    order = torch.arange(length).roll(1)
    if length > 2:
        order[[0, 1]] = order[[1, 0]]
    change = x[order[-1]] - x[-1]
    feature = change.abs().argmax()

    def off(table, size, where):
        """A table whose numbers at `where` (head query key, 0 or 1) are off by `size` when the tokens have changed."""
        return lambda z: table + size * where * (z[-1, feature] - x[-1, feature]) / change[feature]

    def at(i, j):
        where = torch.zeros(head, length, length)
        where[:, i, j] = 1
        return where

    every, own, nothing = (_law(reads, draw, head, length, d_model) for reads in (EVERY_TOKEN, OWN_TOKEN, NOTHING))
    row, column = draw.normal(head, 1, length), draw.normal(head, length, 1)
    wrong_place, table = draw.normal(head, length, length), draw.normal(head, length, length)
    top = table.abs().amax(dim=(1, 2), keepdim=True)
    largest = (table.abs() == top).float()
    def spread(table):
        return lambda z: table.expand(head, len(z), len(z)) + 0 * z.sum()

    scores = {
        "products of tokens": every,
        "rows made of one token": own,
        "a table": nothing,
        "products and rows of one token": lambda z: every(z) + own(z),
        "a table and rows of one token": lambda z: own(z) + nothing(z),
        "equal rows": spread(row),
        "equal columns": spread(column),
        "equal numbers": spread(torch.full((head, 1, 1), 1 / length)),
        "rows of one number": lambda z: (z.sum(dim=-1)[:, None] * column).expand(head, len(z), len(z)),
        "rows of one token, transposed": lambda z: own(z).transpose(1, 2),
        "products that are off by less than 0.00001": lambda z: every(z) + 1e-6 * (z[0] * z[-1]).sum().sin(),
        "a table that reads two tokens a little": lambda z: nothing(z) + 0.01 * wrong_place * (z[0] - z[-1]).sum(),
        "tables, and in the last head rows of one token": lambda z: torch.cat([nothing(z)[:-1], own(z)[-1:]]),
        "rows of one token without their mean": lambda z: own(z) - own(z).mean(dim=-1, keepdim=True),
        "a table that changes beside the diagonal": lambda z: nothing(z) + own(z) * (1 - torch.eye(len(z))),
        "products behind a softmax": lambda z: every(z).softmax(dim=-1),
        "a table, off by 0.001 at one place": off(table, 1e-3, largest),
        "a table, off by 0.0002 at one place": off(table, 2e-4, largest),
        "a table of large numbers, off by 0.001 at one place": off(table / top * 300, 1e-3, largest),
        "a table of small numbers, off by 0.00005": off(table * 1e-3, 5e-5, largest),
        "a table, off in its last row": off(table, 0.5, at(-1, 0)),
        "a table, off in its last column": off(table, 0.5, at(0, -1)),
        "a table that reads token 0": lambda z: nothing(z) + z[0, 0] * wrong_place,
        "rows that read token 0, too": lambda z: own(z) + z[0, 0] * wrong_place[:, :1],
        "a table that reads the last feature": lambda z: nothing(z) + z[:, -1:] * wrong_place,
        "products that read the last feature": lambda z: every(z) + z[:, -1] * wrong_place[:, :1, :1],
    }
    return {"score": _Named({f"for {what}": score for what, score in scores.items()}), "x": x, "order": order}


def _moves_said(answer, score, x, order):
    said = {}
    for name, one in score.functions.items():
        heads = answer(one, x.clone(), order.clone())
        kinds = (list, tuple, set)
        if not isinstance(heads, kinds[:2]) or not all(isinstance(found, kinds) for found in heads):
            raise TypeError("the result should be a list with a list of names for each head")
        for head, found in enumerate(heads):
            strangers = [str(law) for law in found if law not in (EVERY_TOKEN, OWN_TOKEN, NOTHING)]
            if strangers:
                raise ValueError(f"the result names {strangers}; the names are those of the docstring")
            kept = [law for law in (EVERY_TOKEN, OWN_TOKEN, NOTHING) if law in found]
            said[f"{name}, head {head}"] = " and ".join(kept) or "none"
    return said


LAWS = (EVERY_TOKEN, OWN_TOKEN, NOTHING)


def _near(one, other):
    """In each head: bool "head"."""
    return (one - other).abs().amax(dim=(1, 2)) < 1e-4


def _moves_with(expected=lambda before, order: {}, near=_near, reorder=lambda x, order: x[order]):
    """The right way, or one with other expectations, another comparison, or another change of x."""

    def answer(score, x, order):
        before, after = score(x), score(reorder(x, order))
        wanted = {law: moved(before, order, law) for law in LAWS} | expected(before, order)
        holds = {law: near(after, wanted[law]) for law in LAWS}
        return [[law for law in LAWS if holds[law][head]] for head in range(len(before))]

    return answer


_moves_right = _moves_with()


def _moves_back(score, x, order):
    found = []
    for before, after in zip(score(x), score(x[order]), strict=True):
        back = order.argsort()
        undone = {EVERY_TOKEN: after[back][:, back], OWN_TOKEN: after[back], NOTHING: after}
        found.append(tuple(law for law, one in undone.items() if torch.allclose(one, before, rtol=0, atol=1e-4)))
    return tuple(found)


def _moves_in_loops(score, x, order):
    before, after, places = score(x).tolist(), score(x[order]).tolist(), order.tolist()
    kept = [set(LAWS) for _ in before]
    for head, laws in enumerate(kept):
        for i, p in enumerate(places):
            for j, q in enumerate(places):
                old = {EVERY_TOKEN: before[head][p][q], OWN_TOKEN: before[head][p][j], NOTHING: before[head][i][j]}
                laws -= {law for law in LAWS if abs(after[head][i][j] - old[law]) >= 1e-4}
    return kept


def _chosen(choose):
    """Of the laws that hold, those that `choose` leaves, in each head."""
    return lambda score, x, order: [choose(laws) for laws in _moves_right(score, x, order)]


def _head_by_head(near):
    """A comparison of two heads, query key -> bool, as one of all heads."""
    return lambda one, other: torch.tensor([near(mine, right) for mine, right in zip(one, other, strict=True)])


def _all_heads(laws_of_all):
    return lambda score, x, order: [laws_of_all(_moves_right(score, x, order))] * len(score(x))


def _heads_ordered(before, order):
    moved_heads = before[order]
    return {EVERY_TOKEN: moved_heads[:, order], OWN_TOKEN: moved_heads}


def _all_heads_close(score, x, order):
    before, after = score(x), score(x[order])
    kept = [law for law in LAWS if torch.allclose(after, moved(before, order, law), atol=1e-4)]
    return [kept] * len(before)


MOVES_LIKE = Exercise(
    key="09.3",
    title="who moves with whom",
    name="moves_like",
    minutes=15,
    level="medium",
    inputs=_moves_inputs,
    returns="a list with a list of names for each head",
    run=_moves_said,
    right=(_moves_right, _moves_back, _moves_in_loops),
    wrong=mistakes({
        MOVES: {
            "for every token only the rows are moved; the columns go with the tokens, too.":
                _moves_with(lambda before, order: {EVERY_TOKEN: before[:, order]}),
            "for the own token the columns are moved, where it should be the rows.":
                _moves_with(lambda before, order: {OWN_TOKEN: before[:, :, order]}),
            "for the own token rows and columns are moved; the columns stay.":
                _moves_with(lambda before, order: {OWN_TOKEN: before[:, order][:, :, order]}),
            "the columns are moved in both laws; the rows go with the tokens in either.":
                _moves_with(lambda before, order: {law: before[:, :, order] for law in (EVERY_TOKEN, OWN_TOKEN)}),
            "it moves the first scores by the order that undoes this one.":
                _moves_with(lambda before, order: {law: moved(before, order.argsort(), law) for law in LAWS}),
            "the features of a token change places, not the tokens.":
                _moves_with(reorder=lambda x, order: x[:, torch.arange(x.shape[1]).roll(1)]),
            "the second sentence is the first: its tokens do not change places.":
                _moves_with(reorder=lambda x, order: x),
            "the order is one of its own, not the one that is given.":
                lambda score, x, order: _moves_right(score, x, order.roll(1)),
            "the tokens are others than those that are given.":
                lambda score, x, order: _moves_right(score, x.flip(1) + 0.1 * x.cumsum(dim=0), order),
        },
        EXERCISE_MOVES: {
            "it stops at the first law that holds; a head can keep more than one.": _chosen(lambda laws: laws[:1]),
            "it stops at the last law that holds; a head can keep more than one.": _chosen(lambda laws: laws[-1:]),
            "a head that keeps no law is said to read every token.": _chosen(lambda laws: laws or [EVERY_TOKEN]),
            "it compares exactly; rounding is no difference.": _moves_with(near=_head_by_head(torch.equal)),
            "all heads get the laws of head 0.": _all_heads(lambda heads: heads[0]),
            "all heads are compared together; each should be asked by itself.":
                _all_heads(lambda heads: [law for law in LAWS if all(law in laws for laws in heads)]),
            "all heads are compared together, and the limit grows with the scores; ask each head by itself.":
                _all_heads_close,
            "a law that one head keeps is given to all.":
                _all_heads(lambda heads: [law for law in LAWS if any(law in laws for laws in heads)]),
            "the limit is too large: a small difference is missed.":
                _moves_with(near=lambda one, other: (one - other).abs().amax(dim=(1, 2)) < 1e-2),
            "the limit grows with the scores, as that of allclose does unless rtol is 0.":
                _moves_with(near=_head_by_head(lambda one, other: torch.allclose(one, other, atol=1e-4))),
            "the limit is a share of the scores; here it is 0.0001, whatever their size.":
                _moves_with(near=_head_by_head(lambda one, other: torch.allclose(one, other, rtol=1e-4, atol=0))),
            "only the last column of the scores is compared.":
                _moves_with(near=_head_by_head(lambda one, other: (one - other)[:, -1].abs().max() < 1e-4)),
            "only row 0 of the scores is compared.":
                _moves_with(near=_head_by_head(lambda one, other: (one[0] - other[0]).abs().max() < 1e-4)),
            "differences are averaged, so that plus and minus cancel.":
                _moves_with(near=_head_by_head(lambda one, other: (one - other).mean().abs() < 1e-4)),
            "the numbers are sorted before they are compared: all places are lost.":
                _moves_with(near=_head_by_head(lambda one, other: torch.allclose(
                    one.flatten().sort().values, other.flatten().sort().values, atol=1e-4
                ))),
            "every head keeps every law: do the tokens change places, and are numbers compared, not sizes?":
                _moves_with(near=_head_by_head(lambda one, other: one.shape == other.shape)),
        },
    }) + mistakes({
        MOVES: {
            "the order is meant for the tokens, but goes along the first axis of the scores, the heads.":
                _moves_with(_heads_ordered),
        },
    }, error="is out of bounds for dimension 0"),
)  # fmt: skip


# 09.4. Each layer hides its leak from some shortcut: from a change, or from a look at y. One trial has a batch of one,
# one has one token or one number a token.


def _leaks_inputs(draw):
    sizes = draw.sizes("length d_model", low=3, high=4)
    length, d_model = sizes["length"], sizes["d_model"]
    six, one = (6, length, d_model), (1, length, d_model)
    batch, length, d_model = draw.in_turn([six, one, (4, 1, d_model), six, one, (4, length, 1)])
    W, x = draw.normal(d_model, d_model) / d_model, draw.normal(batch, length, d_model)
    last, first = (length - 1, d_model - 1), (0, 0)
    places = {"first": first, "last": last, "middle": (length // 2, d_model // 2),
              "last of token 0": (0, d_model - 1), "first of the last token": (length - 1, 0)}  # fmt: skip

    def spot(place):
        return torch.zeros(length, d_model).index_put([*map(torch.tensor, place)], torch.tensor(1.0))

    def centred(z, dim=-1):
        return z - z.mean(dim=dim, keepdim=True)

    def before(z):
        return torch.cat([0 * z[:1], z[:-1]])

    def mean(z):
        return z.mean(dim=(1, 2), keepdim=True)

    def hidden(z):
        """0 at x, where a sample is all zeros, and where it is a copy of the one beside it."""
        own = x[: len(z)]
        return 0.1 * (z - own) * z * (z - own.roll(1, 0)) * (z - own.roll(-1, 0))

    given = mean(x)
    layers = {
        "a layer without a leak": lambda x: x @ W,
        "a softmax within each sample": lambda x: (x @ W).softmax(dim=-1) * x.norm(dim=(1, 2), keepdim=True),
        "sample 0 for all": lambda x: (x[0] @ W).expand_as(x),
        "a mean of the batch": lambda x: x @ W + 0.5 * (x @ W).mean(dim=0),
        "a scale from the batch": lambda x: x @ W * (1 + x.square().mean(dim=0)),
        "differences of the next sample": lambda x: x @ W + centred(torch.cat([x[1:], 0 * x[:1]])),
        "differences between the tokens of the sample before": lambda x: x @ W + before(centred(x, dim=1)),
        "the mean of the sample before": lambda x: x @ W + 0.5 * mean(before(x)),
        "the direction of the sample before": lambda x: x @ W + before(x / x.norm(dim=(1, 2), keepdim=True)),
        "a leak that zeros and copies do not show": lambda x: x @ W + before(hidden(x)),
        "a weak leak": lambda x: x @ W + 0.0018 * (5 * before(mean(x) - given[: len(x)])).tanh(),
        "a leak below the limit": lambda x: x @ W + 6e-6 * x.mean(dim=0),
        "the last sample in sample 0": lambda x: (
            x @ W + centred(x[-1:], (1, 2)).square() * torch.tensor([1.0] + [0.0] * (len(x) - 1))[:, None, None]
        ),
        "all samples before": lambda x: (x.cumsum(dim=0) - x) @ W + x,
        "a batch that is centred": lambda x: x @ W - 0.5 * x.mean(dim=0),
        "a softmax over the batch": lambda x: (x @ W).softmax(dim=0),
        **{
            f"a leak from one number, the {name}":
                lambda x, place=place: x @ W + (before(x) * spot(place)).sum(dim=(1, 2), keepdim=True)
            for name, place in places.items()
        },
        **{
            f"a weak leak into one number, the {name}":
                lambda x, place=place: x @ W + 0.005 * mean(before(x)) * spot(place)
            for name, place in places.items()
        },
    }  # fmt: skip
    return {"layer": _Named({f"for {what}": layer for what, layer in layers.items()}), "x": x}


def _leaks_of_all(answer, layer, x):
    return {name: answer(one, x) for name, one in layer.functions.items()}


def _leaks_by_pairs(said, layer, x):
    """For each layer and changed sample, who moves."""
    moved_ones = {}
    for name, found in said.items():
        if not (isinstance(found, (list, tuple)) and all(map(_is_pair, found))):
            listed = found if isinstance(found, (list, tuple)) else []
            inside = next((f" with {_kinds_in(one)}" for one in listed if not _is_pair(one)), "")
            right = "a list of pairs of whole numbers"
            raise ValueError(f"{name}, the result is {kind_of(found)}{inside}, but should be {right}")
        found = [tuple(pair) for pair in found]
        for pair in found:
            if not all(0 <= n < len(x) for n in pair):
                there = f"they are 0 to {len(x) - 1}" if len(x) > 1 else "there is 0 alone"
                raise ValueError(f"{name}, the pair {pair} names a sample that is not there; {there}")
            if found.count(pair) > 1:
                raise ValueError(f"{name}, the pair {pair} stands in the list twice")
        for n in range(len(x)):
            who = ", ".join(str(moved_one) for moved_one, changed in sorted(found) if changed == n)
            moved_ones[f"{name}, the samples whose y moves when sample {n} changes"] = who or "none"
    return moved_ones


def _is_pair(value):
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(type(n) is int for n in value)


def _shifted(x, n):
    other = x.clone()
    other[n] += torch.linspace(0.5, 1.5, other[n].numel()).view(other[n].shape)
    return other


def _leaks_with(change=_shifted, limit=1e-3, size=lambda z: z.abs().amax(dim=(1, 2)), pair=lambda moved, n: (moved, n),
                keep=lambda moved, n: moved != n):  # fmt: skip
    """Change one sample, see whose y moves: the right way, or with another change, limit, size or pair."""

    def answer(layer, x):
        before, pairs = layer(x), []
        for n in range(len(x)):
            distance = size(layer(change(x, n)) - before)
            pairs += [pair(i, n) for i in range(len(x)) if keep(i, n) and distance[i] > limit]
        return sorted(pairs)

    return answer


def _leaks_by_derivatives(layer, x):
    found = torch.autograd.functional.jacobian(layer, x).abs().amax(dim=(1, 2, 4, 5)) > 1e-5
    return [(i, n) for i in range(len(x)) for n in range(len(x)) if i != n and found[i, n]]


def _leaks_one_by_one(layer, x):
    pairs = set()
    for moved_one in range(len(x)):
        for n in range(len(x)):
            other = x.clone()
            for k, token in enumerate(other[n]):
                token -= 0.7 + 0.1 * k + 0.05 * torch.arange(len(token))
            if n != moved_one and not torch.allclose(layer(other)[moved_one], layer(x)[moved_one], rtol=0, atol=1e-3):
                pairs.add((moved_one, n))
    return sorted(pairs, reverse=True)


def _alike(x, n):
    other = x.clone()
    other[n] += 1
    return other


def _all_but(x, n):
    other = x + torch.linspace(0.5, 1.5, x[0].numel()).view(x[0].shape)
    other[n] = x[n]
    return other


def _up_to(x, n):
    other = x.clone()
    other[: n + 1] += torch.linspace(0.5, 1.5, other[n].numel()).view(other[n].shape)
    return other


def _at(*place, by=None):
    """A change of these numbers alone, which grow by `by`, or by about 1."""

    def change(x, n):
        other = x.clone()
        part = other[(n, *place)]
        other[(n, *place)] += by(part) if by else torch.linspace(0.5, 1.5, part.numel()).view(part.shape)
        return other

    return change


def _set_to(value):
    def change(x, n):
        other = x.clone()
        other[n] = value(x, n)
        return other

    return change


def _first_for_each(layer, x):
    first = {}
    for moved_one, n in _leaks_with()(layer, x):
        first.setdefault(n, moved_one)
    return [(moved_one, n) for n, moved_one in first.items()]


def _alone(layer, x):
    together = layer(x)
    apart = torch.cat([layer(x[n : n + 1]) for n in range(len(x))])
    guilty = (together - apart).abs().amax(dim=(1, 2)) > 1e-3
    return [(i, n) for i in range(len(x)) for n in range(len(x)) if i != n and guilty[i]]


LEAKS = Exercise(
    key="09.4",
    title="alone or together",
    name="leaks",
    minutes=10,
    level="easy",
    inputs=_leaks_inputs,
    returns="a list of pairs of whole numbers",
    run=_leaks_of_all,
    measure=_leaks_by_pairs,
    right=(_leaks_with(), _leaks_by_derivatives, _leaks_one_by_one),
    wrong=mistakes({
        ALONE: {
            "each sample is run alone, which tells that something leaks, but not from whom.": _alone,
            "all other samples change at once, so who disturbs whom is lost.": _leaks_with(change=_all_but),
            "the samples before are changed as well and not put back.": _leaks_with(change=_up_to),
            "nothing is ever found: is the change too small, or are sizes compared alone?": lambda layer, x: [],
            "every pair is called a leak.":
                lambda layer, x: [(i, n) for i in range(len(x)) for n in range(len(x)) if i != n],
        },
        EXERCISE_ALONE: {
            "all numbers grow alike; a layer that reads differences does not notice.": _leaks_with(change=_alike),
            "differences between tokens are lost: all tokens grow alike, or y is summed over them.":
                _leaks_with(change=_at(by=lambda part: torch.linspace(0.5, 1.5, part.shape[-1]))),
            "differences within a token are lost: all its numbers grow alike, or y is summed over them.":
                _leaks_with(change=_at(by=lambda part: torch.linspace(0.5, 1.5, len(part))[:, None])),
            "the changes of a sample sum to 0; a layer that reads its mean does not notice.":
                _leaks_with(change=_at(by=lambda part: torch.linspace(-1, 1, part.numel()).view(part.shape))),
            "only one number of the sample changes.": _leaks_with(change=_at(-1, -1)),
            "only token 0 of the sample changes.": _leaks_with(change=_at(0)),
            "only the last token of the sample changes.": _leaks_with(change=_at(-1)),
            "only the first number of each token changes.": _leaks_with(change=_at(slice(None), 0)),
            "a sample is set to zeros; what grows from 0 and falls again does not show.":
                _leaks_with(change=_set_to(lambda x, n: 0 * x[n])),
            "a sample becomes a copy of another one of the batch.":
                _leaks_with(change=_set_to(lambda x, n: x[(n + 1) % len(x)])),
            "a sample is scaled; a layer that reads its direction does not notice.":
                _leaks_with(change=_set_to(lambda x, n: 2 * x[n])),
            "a pair names the changed sample first; it should name the moved one first.":
                _leaks_with(pair=lambda moved, n: (n, moved)),
            "a sample that depends on itself is no leak.": _leaks_with(keep=lambda moved, n: True),
            "rounding is taken for a leak: the limit is too small.": _leaks_with(limit=1e-6),
            "the limit is too large, or the changes are too small: weak leaks are missed.": _leaks_with(limit=0.5),
            "the differences of a sample are averaged; a weak leak into one number is lost.":
                _leaks_with(size=lambda z: z.abs().mean(dim=(1, 2))),
            "the differences of a sample are averaged, so that plus and minus cancel.":
                _leaks_with(size=lambda z: z.mean(dim=(1, 2)).abs()),
            "only y of token 0 is looked at, and its first number.": _leaks_with(size=lambda z: z[:, 0, 0].abs()),
            "only y of token 0 is looked at.": _leaks_with(size=lambda z: z[:, 0].abs().amax(dim=1)),
            "only y of the last token is looked at.": _leaks_with(size=lambda z: z[:, -1].abs().amax(dim=1)),
            "only the first number of each token of y is looked at.":
                _leaks_with(size=lambda z: z[:, :, 0].abs().amax(dim=1)),
            "only where y grows is looked at, not where it falls.": _leaks_with(size=lambda z: z.amax(dim=(1, 2))),
            "a pair is named in both orders, though only one of them is a leak.":
                lambda layer, x: sorted({pair for one in _leaks_with()(layer, x) for pair in (one, one[::-1])}),
            "only the first pair for each changed sample is named.": _first_for_each,
            "only pairs of neighbours are looked at.": _leaks_with(keep=lambda moved, n: abs(moved - n) == 1),
            "only earlier samples are looked at as those that disturb.": _leaks_with(keep=lambda moved, n: n < moved),
        },
    }),
)  # fmt: skip


# 09.5. In each of two trials twenty boxes, ten sound: between them every fault, those of the lesson and the unseen.

SOUND = ("random", "dense", "factorized_dense", "factorized_random", "dot_product", "fixed_random", "dense",
         "factorized_dense", "random", "factorized_random")  # fmt: skip


@cache  # a box is run and never changed
def _boxes(seed, half):
    generator = torch.Generator().manual_seed(seed)

    def pick(*options):
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    def claim(fault, score, short):
        head, d_head = pick((3, 4), (3, 5), (4, 3))  # "reads x" trains too many numbers with (3, 5), often too few else
        a, b = pick((2, 4), (4, 2), (3, 3), (2, 6))
        if score == "factorized_dense":
            if fault:  # 12 different products of 24 are more than either list holds
                a, b = pick((4, 6), (6, 4))
            else:  # with narrow heads a row is often shut by its relu, and holds one number
                head, d_head = pick((5, 2), (6, 2))
        head, d_head = (3, 5) if fault == "reads x" else (head, d_head)
        options = {"factorized_random": {"rank": pick(2, 3)}, "factorized_dense": {"a": a, "b": b}}.get(score, {})
        length = 3 if short else a * b  # with three tokens a relu is often shut for a whole sample
        return Claim(score, head * d_head, head, length, bias=False, **options)

    faults = [*list(FAULTS)[half::2], *list(UNSEEN)[half::2]]
    cases = [(None, score) for score in SOUND] + [(name, (FAULTS | UNSEEN)[name][0]) for name in faults]
    order = torch.randperm(len(cases), generator=generator).tolist()
    return tuple(_sealed(*cases[n], claim(*cases[n], short=n == 1), seed + 17 * n) for n in order)


def _sealed(fault, score, claim, seed):
    layer = make(fault, claim, seed)
    return seal(layer, claim)._replace(run=lambda x: layer(x)[:2])  # a function of this file travels to a grader


def _audit_inputs(draw):
    return {"box": list(_boxes(draw.integer(0, 10**6), draw.in_turn([0, 1])))}


def _verdicts(answer, box):
    said = {}
    for i, one in enumerate(box):
        result = answer(Box(one.claim, one.run, dict(one.numbers)))
        said[f"box {i}, which claims {one.claim.score}"] = result
    return said


@cache  # a box is run once for all the known mistakes
def _look(claim, run, numbers, tokens):
    """What the questions need: the box, its claim, x, y, the map, and an order of the positions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, claim.max_length, claim.d_model, generator=generator)
    y, weights = run(x)
    order = torch.randperm(claim.max_length, generator=generator)
    return Box(claim, run, dict(enumerate(numbers))), claim, x, y, weights, order


@cache  # nearly all of them ask nearly the same
def _holds(question, *seen):
    return question(*_look(*seen))


def _trained(box):
    return [tensor for tensor in box.numbers.values() if tensor.requires_grad]


def _rows_hold(box, claim, x, y, weights, order):
    return bool((weights >= 0).all() and ((weights.sum(dim=-1) - 1).abs() < 1e-3).all())


def _count_holds(box, claim, x, y, weights, order):
    return sum(tensor.numel() for tensor in _trained(box)) == claim.counts()[0]


def _batch_holds(box, claim, x, y, weights, order):
    alone = [box.run(x[n : n + 1]) for n in range(len(x))]
    return all(
        (one[0] - y[n]).abs().max() < 1e-3 and (two[0] - weights[n]).abs().max() < 1e-4
        for n, (one, two) in enumerate(alone)
    )


def _moves_hold(box, claim, x, y, weights, order):
    after = box.run(x[:, order])[1]
    return bool((after - moved(weights, order, READS[claim.score])).abs().max() < 1e-4)


def _learns_holds(box, claim, x, y, weights, order):
    probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    given = torch.autograd.grad((y * probe).sum(), _trained(box), retain_graph=True, allow_unused=True)
    return all(one is not None and bool((one != 0).all()) for one in given)


def _products_hold(box, claim, x, y, weights, order):
    rows = weights.detach().flatten(0, 2).mul(1e5).round()
    return claim.score != "factorized_dense" or max(len(row.unique()) for row in rows) == claim.max_length


def _rank_holds(box, claim, x, y, weights, order):
    differ = (weights - weights[:, :, :1]).abs().amax(dim=(0, 2, 3)) > 1e-4  # in each head
    return claim.score != "factorized_random" or bool(differ.all())


ASKED = {
    "rows": _rows_hold,
    "count": _count_holds,
    "batch": _batch_holds,
    "moves": _moves_hold,
    "learns": _learns_holds,
    "products": _products_hold,
    "rank": _rank_holds,
}


def _verdict_with(tokens=16, order=tuple(ASKED), **changed):
    """An answer that asks in this order, with this many samples, and some questions in another way."""

    def answer(box):
        seen = box.claim, box.run, tuple(box.numbers.values()), tokens
        return next((name for name in order if not _holds((ASKED | changed)[name], *seen)), "sound")

    return answer


def _without(question):
    return _verdict_with(order=tuple(name for name in ASKED if name != question))


def _verdict_by_size(box):
    """The same questions, each in another way."""
    claim = box.claim
    x = torch.randn(24, claim.max_length, claim.d_model, generator=torch.Generator().manual_seed(5))
    y, weights = box.run(x)
    if not torch.allclose(weights.sum(dim=-1), torch.ones(()), atol=1e-4) or weights.min() < -1e-6:
        return "rows"
    if sum(tensor.numel() for tensor in _trained(box)) != claim.counts()[0]:
        return "count"
    again = [torch.cat(parts) for parts in zip(*(box.run(part) for part in x.split(1)), strict=True)]
    if not (torch.allclose(again[0], y, atol=1e-3) and torch.allclose(again[1], weights, atol=1e-4)):
        return "batch"
    P = torch.eye(claim.max_length).roll(1, dims=0)
    P[[0, 1]] = P[[1, 0]]
    wanted = {EVERY_TOKEN: P @ weights @ P.T, OWN_TOKEN: P @ weights, NOTHING: weights}[READS[claim.score]]
    if not torch.allclose(box.run(P @ x)[1], wanted, atol=1e-4):
        return "moves"
    loss = (y * x.roll(1, dims=0)).sum()
    for tensor in _trained(box):
        (grad,) = torch.autograd.grad(loss, tensor, retain_graph=True, allow_unused=True)
        if grad is None or grad.eq(0).any():
            return "learns"
    values = weights.detach().mul(1e5).round()
    if claim.score == "factorized_dense" and all(len(row.unique()) < len(row) for row in values.flatten(0, 2)):
        return "products"
    alike = any(len(head.unique(dim=0)) == 1 for head in values[0])
    return "rank" if claim.score == "factorized_random" and alike else "sound"


def _count_anything(box, claim, x, y, weights, order):
    return sum(tensor.numel() for tensor in box.numbers.values()) == claim.counts()[0]


def _count_saved(box, claim, x, y, weights, order):
    return sum(tensor.numel() for tensor in box.numbers.values()) == claim.counts()[1]


def _count_too_few(box, claim, x, y, weights, order):
    return sum(tensor.numel() for tensor in _trained(box)) >= claim.counts()[0]


def _sums_alone(box, claim, x, y, weights, order):
    return bool(((weights.sum(dim=-1) - 1).abs() < 1e-3).all())


def _not_above(box, claim, x, y, weights, order):
    return bool((weights >= 0).all() and (weights.sum(dim=-1) < 1 + 1e-3).all())


def _mean_of_rows(box, claim, x, y, weights, order):
    return bool((weights >= 0).all() and (weights.sum(dim=-1).mean() - 1).abs() < 1e-3)


def _batch_of(*samples):
    """Only these samples are run alone."""

    def holds(box, claim, x, y, weights, order):
        for n in samples:
            alone = box.run(x[[n]])
            if (alone[0][0] - y[n]).abs().max() > 1e-3 or (alone[1][0] - weights[n]).abs().max() > 1e-4:
                return False
        return True

    return holds


def _moves_but_random(box, claim, x, y, weights, order):
    return READS[claim.score] == NOTHING or _moves_hold(box, claim, x, y, weights, order)


def _map_learns(box, claim, x, y, weights, order):
    if not weights.requires_grad:
        return True
    probe = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1))
    given = torch.autograd.grad((weights * probe).sum(), _trained(box), retain_graph=True, allow_unused=True)
    return all(one is None or bool((one != 0).all()) for one in given)


def _batch_of_y(box, claim, x, y, weights, order):
    return all((box.run(one[None])[0][0] - y[n]).abs().max() < 1e-3 for n, one in enumerate(x))


def _batch_exactly(box, claim, x, y, weights, order):
    return all(torch.equal(box.run(x[n : n + 1])[0][0], y[n]) for n in range(4))


def _rows_by_columns(box, claim, x, y, weights, order):
    return bool(((weights.sum(dim=-2) - 1).abs() < 1e-3).all())


def _moves_looking_at(*where):
    """Only a part of the map is compared: "batch head query key"."""

    def moves(box, claim, x, y, weights, order):
        off = box.run(x[:, order])[1] - moved(weights, order, READS[claim.score])
        return bool(off[where].abs().max() < 1e-4)

    return moves


def _moves_ordered(change):
    """The tokens change places in an order that has a pattern."""

    def moves(box, claim, x, y, weights, order):
        return _moves_hold(box, claim, x, y, weights, change(torch.arange(claim.max_length)))

    return moves


def _rank_any(box, claim, x, y, weights, order):
    return claim.score != "factorized_random" or bool((weights - weights[:, :, :1]).abs().max() > 1e-4)


def _moves_as(reads):
    def moves(box, claim, x, y, weights, order):
        after = box.run(x[:, order])[1]
        return bool((after - moved(weights, order, reads.get(claim.score, READS[claim.score]))).abs().max() < 1e-4)

    return moves


def _on_all(question):
    """A question that belongs to one claim, asked of every box."""

    def asked(box, claim, x, y, weights, order):
        rows = weights.detach().mul(1e5).round()
        return all(len(row.unique()) == claim.max_length for row in rows[0, 0]) and question(
            box, claim, x, y, weights, order
        )

    return asked


VERDICT = Exercise(
    key="09.5",
    title="the audit",
    name="verdict",
    minutes=45,
    level="hard",
    inputs=_audit_inputs,
    returns="the name of a question, or sound",
    run=_verdicts,
    forbidden=(audit,),
    trials=2,
    right=(_verdict_with(), _verdict_by_size),
    wrong=mistakes({
        ROWS: {
            "the sums of the rows are not asked.": _without("rows"),
            "every box is accused of its rows: are columns summed, or is rounding taken for a fault?":
                _verdict_with(rows=_rows_by_columns),
            "negative weights are not looked for, or another question comes first; rows can sum to 1 with them.":
                _verdict_with(rows=_sums_alone),
            "a row of one head that sums to less than 1 is missed, or another question comes first: are all rows of "
            "all heads asked, on both sides?": _verdict_with(rows=_not_above),
            "the mean of the sums is looked at; each row sums to 1 by itself.": _verdict_with(rows=_mean_of_rows),
        },
        COUNT: {
            "the numbers are not counted.": _without("count"),
            "numbers that are saved and not trained are counted with the trained ones.":
                _verdict_with(count=_count_anything),
            "what is saved is compared with what the claim saves; asked is what it trains.":
                _verdict_with(count=_count_saved),
            "a box that trains too many numbers passes.": _verdict_with(count=_count_too_few),
            "value and output projection are left out of the count.":
                _verdict_with(count=lambda box, claim, *seen: (
                    sum(tensor.numel() for tensor in _trained(box)) == claim.counts()[0] - 2 * claim.d_model**2
                )),
        },
        MOVES: {
            "no box is found by order: do tokens change places, in an order that is not the old one, and is the "
            "limit small?": _without("moves"),
            "boxes that claim to read nothing are not asked to stay as they are.":
                _verdict_with(moves=_moves_but_random),
            "every box has to move as if its rows read their own token.":
                _verdict_with(moves=_moves_as(dict.fromkeys(READS, OWN_TOKEN))),
            "the dot product is accused: its columns move as well as its rows, and the last digits are rounding.":
                _verdict_with(moves=_moves_as({"dot_product": OWN_TOKEN})),
        },
        ALONE: {
            "no box is found by company: is a sample run alone and among others that differ, and is the limit small?":
                _without("batch"),
            "only sample 0 is run alone; the others may be disturbed.": _verdict_with(batch=_batch_of(0)),
            "y alone is compared, alone and in company; a map can be another sample's, and y right.":
                _verdict_with(batch=_batch_of_y),
            "sample 0 is not run alone, or another question comes first; it may be the one that is disturbed.":
                _verdict_with(batch=_batch_of(-1)),
        },
        EXERCISE_MOVES: {
            "a single row that does not move as it should is missed: is every row of every head asked, and does every "
            "token change its place?": _verdict_with(moves=_moves_looking_at(slice(None), 0)),
            "the order has a pattern: what reads its neighbours moves with them when all tokens turn.":
                _verdict_with(moves=_moves_ordered(lambda order: order.roll(1))),
        },
        EXERCISE_ALONE: {
            "a later sample is disturbed, or its y alone, and it is missed: is each of four samples or more run alone, "
            "and are y and map compared?": _verdict_with(batch=_batch_of(0, 1)),
        },
        DERIVATIVES: {
            "nobody asks whether every single number has a gradient; a tensor with some is not enough.":
                _without("learns"),
            "only the numbers behind the map are asked for a gradient; those of the values are trained, too.":
                _verdict_with(learns=_map_learns),
        },
        MORE: {
            "the different weights of a row are not counted, or too few are enough.": _without("products"),
            "nobody asks whether the rows differ.": _without("rank"),
            "the rows of one head are alike, and it is missed: is each head asked by itself?":
                _verdict_with(rank=_rank_any),
        },
        EXERCISE_AUDIT: {
            "rounding is taken for a fault: y alone is compared exactly with y in company.":
                _verdict_with(batch=_batch_exactly),
            "the dear questions come first, so the name is not that of the first one that fails.":
                _verdict_with(order=tuple(reversed(ASKED))),
            "every box is called sound, as by somebody who looks at the shapes alone.": lambda box: "sound",
        },
        PREDICT: {
            "each row has to hold different weights in every box; the claims do not promise that to all.":
                _verdict_with(products=_on_all(_products_hold)),
        },
    }),
)  # fmt: skip


# 09.6. Judged on what the library's audit finds, and on whether y is still linear in x. One trial has one head.


def _impostor_inputs(draw):
    sizes = draw.sizes("head d_head max_length", low=2, high=4)
    head = draw.in_turn([sizes["head"], 1, sizes["head"]])
    return {"d_model": head * sizes["d_head"], "head": head, "max_length": sizes["max_length"]}


def _impostor_run(answer, d_model, head, max_length):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = answer(d_model, head, max_length)
        if not isinstance(layer, nn.Module):
            return f"the result is {kind_of(layer)}, but should be a module, an object of a class"
        claim, fails = Claim("random", d_model, head, max_length, bias=False), {}
        for seed in range(2):
            try:
                asked = audit(layer, claim, seed=seed)
            except (TypeError, ValueError) as error:
                return f"the audit stops: {error}"
            if asked["shapes"] == "fails":  # nothing else is asked then: what it saw says more than the name
                (sentence,) = (one.sentence for one in asked.answers if one.status == "fails")
                return {"what the audit says": sentence, "the y of a sum": "not asked"}
            fails |= dict.fromkeys(asked.fails)
        layer.eval()
        with torch.no_grad():
            one, other = torch.randn(2, 50, max_length, d_model)
            parts = [layer(x)[0] for x in (one + other, one, other, 0 * one)]
        rounding = 1e-5 * max(part.abs().max().item() for part in parts)  # of large numbers, a bend by no means
        missed = (parts[0] - parts[1] - parts[2] + parts[3]).abs().max().item() - rounding
    return {
        "what the audit says": f"it fails {' and '.join(fails)}" if fails else "nothing",
        "the y of a sum": "not the sum of the two y" if missed > 0.01 else "the sum, but for a constant",
    }


def _impostor_runs(result, d_model, head, max_length):
    if isinstance(result, str):
        raise ValueError(result)
    return result


class _Wrapped(nn.Module):
    """The library's Random, with something done before and behind."""

    def __init__(self, sizes, before=lambda x: x, behind=lambda y, weights, x: (y, weights), score="random", longer=0,
                 **options):  # fmt: skip
        super().__init__()
        d_model, head, max_length = sizes
        self.inner = Attention(d_model, head, max_length + longer, score, **{"bias": False, **options})
        self.before, self.behind = before, behind

    def forward(self, x):
        return self.behind(*self.inner(self.before(x)), x)


def _wrapped(**options):
    return lambda d_model, head, max_length: _Wrapped((d_model, head, max_length), **options)


class _SineOfMeans(nn.Module):
    """Random, written anew, with a sine behind the means."""

    def __init__(self, d_model, head, max_length):
        super().__init__()
        self.R = nn.Parameter(torch.randn(head, max_length, max_length))
        self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))

    def forward(self, x):
        weights = self.R[:, : x.shape[1], : x.shape[1]].softmax(dim=-1).expand(len(x), -1, -1, -1)
        value = self.value(x).unflatten(-1, (len(self.R), -1)).transpose(1, 2)
        mixed = weights @ value
        return self.output((mixed + 0.5 * mixed.sin()).transpose(1, 2).flatten(2)), weights


class _Learned(_Wrapped):
    def __init__(self, *sizes):
        super().__init__(sizes)
        self.bend = nn.Parameter(torch.ones(1))

    def forward(self, x):
        y, weights = self.inner(x)
        return y + self.bend * y.abs(), weights


IMPOSTOR = Exercise(
    key="09.6",
    title="pass, and be wrong",
    name="impostor",
    minutes=10,
    level="easy",
    inputs=_impostor_inputs,
    returns="what the audit says, and whether y is linear",
    run=_impostor_run,
    measure=_impostor_runs,
    right=(
        _wrapped(behind=lambda y, weights, x: (y + 0.5 * y.abs(), weights)),
        _wrapped(before=lambda x: x + 0.3 * x**3),
        lambda d_model, head, max_length: _SineOfMeans(d_model, head, max_length),
        _wrapped(behind=lambda y, weights, x: (y * (1 + x.square().mean(dim=(1, 2), keepdim=True)), weights)),
    ),
    wrong=mistakes({
        LIBRARY: {
            "y is still linear in x, but for a constant, or misses it by 0.01 at most (in evaluation mode, u and v "
            "from torch.randn).": _wrapped(behind=lambda y, weights, x: (y + 1, weights)),
            "it trains more numbers than Random, or fewer, and the count tells.":
                lambda d_model, head, max_length: _Learned(d_model, head, max_length),
            "it holds numbers that Random has not, and that move no y: the count tells, and the gradients.":
                _wrapped(behind=lambda y, weights, x: (y + 0.5 * y.abs(), weights), longer=3),
        },
        ROWS: {
            "the map is no map any more: its rows do not sum to 1.":
                _wrapped(behind=lambda y, weights, x: (y + 0.5 * y.abs(), 2 * weights)),
        },
        ALONE: {
            "y looks at the other samples: it shows when a sample is alone.":
                _wrapped(behind=lambda y, weights, x: (y + y.square().mean(dim=0), weights)),
        },
        DERIVATIVES: {
            "y does not depend on all that it should: numbers or tokens are cut off.":
                _wrapped(before=lambda x: torch.cat([x[:, :1] * 0, x[:, 1:].abs()], dim=1)),
        },
        MOVES: {
            "the map depends on the tokens, which the map of Random does not.":
                _wrapped(behind=lambda y, weights, x: (
                    y + 0.5 * y.abs(), (weights.log() + x[:, None, :, :1] * x[:, None, None, :, 0]).softmax(dim=-1)
                )),
        },
        STRETCH: {
            "it is another S: the count tells, and so does a map that reads tokens.":
                _wrapped(bias=True, score="dense"),
            "each call gives something else; the audit calls twice.":
                _wrapped(behind=lambda y, weights, x: (y + torch.rand_like(y), weights)),
            "the map is that of one head, whatever head is.":
                _wrapped(behind=lambda y, weights, x: (y + 0.5 * y.abs(), weights.mean(dim=1, keepdim=True))),
        },
    }),
)  # fmt: skip

EXERCISES = [IS_A_MAP, EXPLAIN, MOVES_LIKE, LEAKS, VERDICT, IMPOSTOR]
