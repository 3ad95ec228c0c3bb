"""The exercises of chapter 13: counts that fall back, orders, a test, the rate of R, a table that lies."""

import copy
import functools
import math
from itertools import combinations, product
from statistics import mean, median

import torch

from synth_lib.checks.compare import kind_of, plain_copy
from synth_lib.checks.exercise import Draw, Exercise, mistakes

COUNTS = "Exercise 13.1: counts that fall back"
ORDER = "Exercise 13.2: score a prediction"
LUCK = "Is a difference more than luck?"
RATE = "Exercise 13.4: the rate that R needs"
LIE = "Stretch 13.5: a table that lies with true numbers"


def _as_float(answer, **arguments):
    """A number of numpy is a float, too."""
    result = answer(**arguments)
    return float(result) if isinstance(result, float) else result


def _two_texts(draw):
    """Two texts that tell apart who counts tokens in a text from who uses vocab.

    The last token occurs in neither text, and one in the middle only as the end of `valid`. The last token of
    `train` stands at the start of `valid`, so that it matters how often that one was followed by another. Of three
    trials one has long texts, a k far below 1, and a token in `valid` whose row has no pair; one has a large k, four
    tokens to count, and a single pair to predict.
    """
    vocab = draw.integer(5, 7)
    missing = draw.integer(1, vocab - 3)
    seen = [token for token in range(vocab - 1) if token != missing]

    def text(length):
        return [seen[draw.integer(0, len(seen) - 1)] for _ in range(length)]

    kind = draw.in_turn(["plain", "small k", "short"])
    longer = 200 * (kind == "small k")
    train = seen + text(draw.integer(30, 35) + longer)
    valid = [train[-1], *text(draw.integer(11, 16) + longer), missing]
    k = draw.integer(3, 9)
    if kind == "small k":
        valid, k = [*valid, seen[0], vocab - 1, seen[-1]], k / 10000
    elif kind == "short":
        train, valid, k = [*seen[:3], seen[0]], [seen[0], seen[1]], 1000 * k
    return {"train": torch.tensor(train), "valid": torch.tensor(valid), "vocab": vocab, "k": k}


def _pairs(tokens, vocab):
    """How often token b follows token a, in row a and column b."""
    return torch.bincount(tokens[:-1] * vocab + tokens[1:], minlength=vocab**2).reshape(vocab, vocab).double()


def _logs(counts):
    """Log-probabilities of the next token, a row for each token before it."""
    return (counts / counts.sum(dim=1, keepdim=True)).log()


def _mean(logs, valid):
    return -logs[valid[:-1], valid[1:]].mean().item()


def _single(train, vocab):
    return (torch.bincount(train, minlength=vocab).double() + 1) / (len(train) + vocab)


def _backed(train, valid, vocab, k, pairs=None, single=None, sums=None):
    """The table of logarithms; what is given stands in place of what is right."""
    pairs = _pairs(train, vocab) if pairs is None else pairs
    single = _single(train, vocab) if single is None else single
    return ((pairs + k * single) / (pairs.sum(dim=1, keepdim=True) + k if sums is None else sums)).log()


def _fallback(**changes):
    """The right way, where changes, {name: function of the arguments}, replace a part of it."""
    return lambda **inputs: _mean(
        _backed(**inputs, **{name: change(**inputs) for name, change in changes.items()}), inputs["valid"]
    )


def _fallback_in_loops(train, valid, vocab, k):
    train, valid, total = train.tolist(), valid.tolist(), 0.0
    for before, after in zip(valid[:-1], valid[1:], strict=True):
        both = sum(1 for pair in zip(train[:-1], train[1:], strict=True) if pair == (before, after))
        often = (train.count(after) + 1) / (len(train) + vocab)
        total -= math.log((both + k * often) / (train[:-1].count(before) + k))
    return total / (len(valid) - 1)


def _fallback_by_entropy(train, valid, vocab, k):
    return torch.nn.functional.cross_entropy(_backed(train, valid, vocab, k)[valid[:-1]], valid[1:]).item()


def _by_loss(change):
    """change(the right loss, the arguments)."""
    return lambda **inputs: change(_fallback()(**inputs), inputs)


def _of_all_rows(train, valid, vocab, k):
    return -_backed(train, valid, vocab, k)[valid[:-1]][:, valid[1:]].mean().item()


def _log_of_mean(train, valid, vocab, k):
    return -_backed(train, valid, vocab, k).exp()[valid[:-1], valid[1:]].mean().log().item()


BIGRAM = Exercise(
    key="13.1",
    title="counts that fall back",
    name="bigram_loss",
    minutes=18,
    level="medium",
    inputs=_two_texts,
    returns="a float, in nats per token",
    run=_as_float,
    right=(_fallback(), _fallback_in_loops, _fallback_by_entropy),
    wrong=mistakes({
        COUNTS: {
            "the token before plays no part: this is the loss of single tokens.":
                lambda train, valid, vocab, k: -_single(train, vocab).log()[valid[1:]].mean().item(),
            "the extra counts are shared out evenly, not as the tokens are frequent.":
                _fallback(single=lambda train, vocab, **_: torch.full((vocab,), 1 / vocab).double()),
            "1 is added to each count, and k plays no part.":
                lambda train, valid, vocab, k: _mean(_logs(_pairs(train, vocab) + 1), valid),
            "each count gets k whole extra counts; a row has k of them in all.":
                _fallback(
                    pairs=lambda train, vocab, k, **_: _pairs(train, vocab) + k,
                    single=lambda vocab, **_: torch.zeros(vocab),
                    sums=lambda train, vocab, k, **_: _pairs(train, vocab).sum(dim=1, keepdim=True) + k * vocab,
                ),
            "k is added to the counts of a row but not to their sum, so a row sums to more than 1.":
                _fallback(sums=lambda train, vocab, **_: _pairs(train, vocab).sum(dim=1, keepdim=True).clamp(min=1)),
            "the extra counts follow the token before, not the one after.":
                _fallback(single=lambda train, vocab, **_: _single(train, vocab)[:, None]),
            "the logarithm has base 2, so the unit is bits; nats need the natural logarithm.":
                _by_loss(lambda loss, inputs: loss / math.log(2)),
            "the logarithm has base 10; nats need the natural logarithm.":
                _by_loss(lambda loss, inputs: loss / math.log(10)),
            "this is the perplexity, e to the power of the loss.": _by_loss(lambda loss, inputs: math.exp(loss)),
            "the losses are added up; per token means their mean.":
                _by_loss(lambda loss, inputs: loss * (len(inputs["valid"]) - 1)),
            "the sum is divided by the number of tokens; the first one is not predicted.":
                _by_loss(lambda loss, inputs: loss * (len(inputs["valid"]) - 1) / len(inputs["valid"])),
            "the minus sign is missing: a loss is positive.": _by_loss(lambda loss, inputs: -loss),
            "the pairs are counted in the text that is judged; only the training text may be counted.":
                _fallback(pairs=lambda valid, vocab, **_: _pairs(valid, vocab)),
            "the tokens of a pair are swapped: it predicts the token before from the one after.":
                _fallback(pairs=lambda train, vocab, **_: _pairs(train, vocab).T),
            "a count is divided by all pairs, not by those that start with the same token.":
                _fallback(sums=lambda train, k, **_: len(train) - 1 + k),
            "a pair that comes more than once is counted once.":
                _fallback(pairs=lambda train, vocab, **_: (_pairs(train, vocab) > 0).double()),
            "single tokens get no extra count, so one that training lacks has the probability 0.":
                _fallback(single=lambda train, vocab, **_: torch.bincount(train, minlength=vocab) / len(train)),
            "1 is added to the counts of single tokens but not to their sum.":
                _fallback(
                    single=lambda train, vocab, **_: (torch.bincount(train, minlength=vocab).double() + 1) / len(train)
                ),
            "the last token of the training text counts as the start of a pair, but nothing follows it.":
                _fallback(sums=lambda train, vocab, k, **_: torch.bincount(train, minlength=vocab)[:, None] + k),
            "each column of the table is divided by the sum of a row; keep the axis of the sums.":
                _fallback(sums=lambda train, vocab, k, **_: _pairs(train, vocab).sum(dim=1) + k),
            "the loss is measured on the training text, not on the other one.":
                lambda **inputs: _mean(_backed(**inputs), inputs["train"]),
            "every token before is combined with every token after; only neighbours are pairs.": _of_all_rows,
            "this is the logarithm of the mean probability; the loss is the mean of the logarithms.": _log_of_mean,
        },
    }),
)  # fmt: skip


def _orders(draw):
    """Eight names and one more, or one or none. Some pairs are clear, one touches; each wrong way has other counts.

    Or twelve names, of which two pairs touch, one in either order, and some are clear by the seventh digit alone.
    """
    low = draw.integer(100, 120)
    losses = {
        "oak": [0, 4, 9],
        "elm": [15, 9],  # touches oak: not clear
        "fir": [12, 71, 13],  # its first loss is below elm's, its highest above those of ash and yew
        "ash": [36, 34],
        "yew": [60, 70],
        "gum": [90, 83, 86, 81, 88, 84, 58],  # its lowest loss, of the last seed, is below those of yew
        "fig": [62, 75],  # above yew seed by seed, but not clear
        "bay": [9.01],  # a single seed, above oak by very little
        "box": [1],
    }
    losses = {name: [(low + number) / 100 for number in numbers] for name, numbers in losses.items()}
    few = draw.in_turn([None, 0, 1, "many"])
    if few == "many":
        numbers = [[1, 2], [2, 3], [6, 5], [4, 5], *([number, number + 1e-7] for number in (9, 8, 7, 12))]
        numbers += [[number] for number in (13, 13 + 3e-7, 15 + 3e-7, 15)]
        losses = {f"{number} of the runs": [low + loss for loss in own] for number, own in enumerate(numbers)}
        return {"predicted": list(losses), "losses": losses}
    if few is not None:
        return {"predicted": ["oak"][:few], "losses": losses}
    while True:
        names = [name for name in losses if name != "box"]
        predicted = [names.pop(draw.integer(0, len(names) - 1)) for _ in range(8)]
        counts = [_pairs_of(predicted, losses, before) for before in (_below, *OTHER_WAYS.values())]
        counts += [_neighbours(predicted, losses), _pairs_of(predicted[::-1], losses, _below)]
        counts += [(counts[0][0], 28)]  # of all pairs
        if len(set(counts)) == len(counts) and all(0 < wrong < clear for wrong, clear in counts):
            return {"predicted": predicted, "losses": losses}


OTHER_WAYS = {  # wrong ways to say that one variant is below another
    "mean": lambda a, b: sum(a) / len(a) < sum(b) / len(b),
    "lowest": lambda a, b: min(a) < min(b),
    "highest": lambda a, b: max(a) < max(b),
    "first": lambda a, b: a[0] < b[0],
    "touch": lambda a, b: max(a) <= min(b),
    "seed by seed": lambda a, b: all(one < other for one, other in zip(a, b, strict=False)),
}


def _pairs_of(predicted, losses, before, every=False):
    """Wrong and clear pairs, if before(one, other) says that one is clearly below the other."""
    names = list(losses) if every else predicted
    positions = {name: position for position, name in enumerate(predicted)}
    clear = [(one, other) for one in names for other in names if one != other and before(losses[one], losses[other])]
    wrong = [pair for pair in clear if positions.get(pair[0], 0) > positions.get(pair[1], 0)]
    return len(wrong), len(clear)


def _below(one, other):
    return max(one) < min(other)


def _wrong_pairs_in_loops(predicted, losses):
    wrong = clear = 0
    for i in range(len(predicted)):
        for j in range(i):
            first, second = losses[predicted[j]], losses[predicted[i]]
            if all(a < b for a in first for b in second):
                clear += 1
            elif all(a > b for a in first for b in second):
                clear += 1
                wrong += 1
    return wrong, clear


def _neighbours(predicted, losses):
    wrong = clear = 0
    for one, other in zip(predicted[:-1], predicted[1:], strict=True):
        clear += _below(losses[one], losses[other]) or _below(losses[other], losses[one])
        wrong += _below(losses[other], losses[one])
    return wrong, clear


WRONG_PAIRS = Exercise(
    key="13.2",
    title="score a prediction",
    name="wrong_pairs",
    minutes=12,
    level="easy",
    inputs=_orders,
    trials=4,
    returns="a tuple of two whole numbers",
    right=(lambda predicted, losses: _pairs_of(predicted, losses, _below), _wrong_pairs_in_loops),
    wrong=mistakes({
        ORDER: {
            "the means are compared, so pairs that overlap are counted too.":
                lambda predicted, losses: _pairs_of(predicted, losses, OTHER_WAYS["mean"]),
            "two variants that have one loss in common count as clear; below means below.":
                lambda predicted, losses: _pairs_of(predicted, losses, OTHER_WAYS["touch"]),
            "seed is compared with seed; a pair is clear if every loss of one is below every loss of the other.":
                lambda predicted, losses: _pairs_of(predicted, losses, OTHER_WAYS["seed by seed"]),
            "every pair is looked at both ways round, so each clear one also counts as wrong.":
                lambda predicted, losses: (_pairs_of(predicted, losses, _below)[1],) * 2,
            "only the lowest loss of each variant is compared, not all seeds.":
                lambda predicted, losses: _pairs_of(predicted, losses, OTHER_WAYS["lowest"]),
            "only the highest loss of each variant is compared, not all seeds.":
                lambda predicted, losses: _pairs_of(predicted, losses, OTHER_WAYS["highest"]),
            "only the first seed is compared.":
                lambda predicted, losses: _pairs_of(predicted, losses, OTHER_WAYS["first"]),
            "names that are not predicted are counted too.":
                lambda predicted, losses: _pairs_of(predicted, losses, _below, every=True),
            "every pair is looked at both ways round: a clear one counts twice, and once of these as wrong.":
                lambda predicted, losses: (
                    _pairs_of(predicted, losses, _below)[1], 2 * _pairs_of(predicted, losses, _below)[1],
                ),
            "names that are not predicted are counted too, behind all others.":
                lambda predicted, losses: _pairs_of(
                    predicted + [name for name in losses if name not in predicted], losses, _below
                ),
            "each pair is counted twice.":
                lambda predicted, losses: tuple(2 * count for count in _pairs_of(predicted, losses, _below)),
            "the two numbers are swapped: the wrong pairs come first.":
                lambda predicted, losses: _pairs_of(predicted, losses, _below)[::-1],
            "right and wrong are swapped: the name with the lowest loss comes first in the list.":
                lambda predicted, losses: _pairs_of(predicted[::-1], losses, _below),
            "the second number leaves out the wrong pairs; it is of all clear ones.":
                lambda predicted, losses: (
                    _pairs_of(predicted, losses, _below)[0],
                    _pairs_of(predicted, losses, _below)[1] - _pairs_of(predicted, losses, _below)[0],
                ),
            "the second number is of all pairs, not of the clear ones.":
                lambda predicted, losses: (
                    _pairs_of(predicted, losses, _below)[0],
                    len(predicted) * (len(predicted) - 1) // 2,
                ),
            "only names that stand side by side in the list are compared.": _neighbours,
        },
    }),
)  # fmt: skip


def _two_groups(draw):
    """Two groups of losses, of which two are equal and two nearly; one loss against many; and many against one.

    In the last, another way to deal has the same losses in another order, and in floats a larger sum and mean, in those
    of 32 bits too.
    """
    many = draw.integer(8, 9)
    while True:
        low = [round(1.7 + draw.integer(0, 90) / 1000 + position / 7919, 6) for position in range(3)]
        high = [round(1.72 + draw.integer(0, 90) / 1000 + position / 6007, 6) for position in range(many - 2)]
        high += [low[1], round(low[0] + 2e-6, 6)]
        if _by_bits(low, high) not in (_by_ranks(low, high), _by_medians(low, high)):
            break
    while True:
        ordered = [draw.integer(11, 29) / 10 for _ in range(4)]
        turned = ordered[1:] + ordered[:1]
        larger = sum(turned) > sum(ordered) and sum(turned) / 4 > sum(ordered) / 4
        if larger and torch.tensor(turned).sum() > torch.tensor(ordered).sum() and len(set(ordered)) == 4:
            break
    return draw.in_turn((
        {"a": low, "b": high}, {"a": high[:1], "b": [*low, high[0], 1.9, 1.99]}, {"a": ordered, "b": ordered[:1]},
    ))  # fmt: skip


def _share(a, b, counts, size=None):
    """The share of ways to deal for which counts(group, rest) holds."""
    positions = range(len(a) + len(b))
    pooled = a + b
    counted = [
        counts([pooled[i] for i in chosen], [pooled[i] for i in positions if i not in chosen])
        for chosen in combinations(positions, size or len(a))
    ]
    return sum(counted) / len(counted)


def _equal_ones_once(a, b):
    ways = list(combinations(sorted(set(a + b)), len(a)))
    return sum(mean(group) <= mean(a) for group in ways) / max(1, len(ways))


def _equal_groups_once(a, b):
    ways = set(combinations(sorted(a + b), len(a)))
    return sum(mean(group) <= mean(a) + 1e-9 for group in ways) / len(ways)


def _by_bits(a, b):
    """All subsets as the bits of a number."""
    pooled, hits, ways = a + b, 0, 0
    for bits in range(2 ** len(pooled)):
        group = [number for position, number in enumerate(pooled) if bits >> position & 1]
        if len(group) == len(a):
            ways += 1
            hits += sum(group) / len(group) <= sum(a) / len(a) + 1e-12
    return hits / ways


def _by_ranks(a, b):
    ranks = [sorted(a + b).index(loss) for loss in a + b]
    return _share(ranks[: len(a)], ranks[len(a) :], lambda group, rest: sum(group) <= sum(ranks[: len(a)]))


def _by_medians(a, b):
    return _share(a, b, lambda group, rest: median(group) <= median(a))


def _fixed_pairs(a, b):
    differences = [one - other for one, other in zip(a, b, strict=False)]
    signs = list(product((1, -1), repeat=len(differences)))
    total = sum(differences)
    return sum(sum(s * d for s, d in zip(sign, differences, strict=True)) <= total + 1e-12 for sign in signs) / len(
        signs
    )


TEST = Exercise(
    key="13.3",
    title="a permutation test",
    name="permutation_test",
    minutes=12,
    level="medium",
    inputs=_two_groups,
    returns="a float, the p-value",
    run=_as_float,
    right=(
        lambda a, b: _share(a, b, lambda group, rest: mean(group) <= mean(a)),
        _by_bits,
        lambda a, b: _share(a, b, lambda group, rest: sum(group) <= sum(a) + 1e-12),
    ),
    wrong=mistakes({
        LUCK: {
            "the given way is not counted, so the share can be 0.":
                lambda a, b: _share(a, b, lambda group, rest: sum(group) < sum(a) - 1e-12),
            "the other side is counted: the ways in which the first group comes out at least as high.":
                lambda a, b: _share(a, b, lambda group, rest: sum(group) >= sum(a) - 1e-12),
            "differences in both directions are counted; the test has one side.":
                lambda a, b: _share(
                    a, b, lambda group, rest: abs(mean(group) - mean(rest)) >= abs(mean(a) - mean(b)) - 1e-12
                ),
            "the share is doubled; the test has one side.":
                lambda a, b: min(1.0, 2 * _share(a, b, lambda group, rest: mean(group) <= mean(a))),
            "the first group gets as many losses as b, not as a.":
                lambda a, b: _share(a, b, lambda group, rest: mean(group) <= mean(a), size=len(b)),
            "this is the number of ways, not their share.":
                lambda a, b: (
                    _share(a, b, lambda group, rest: sum(group) <= sum(a) + 1e-12) * math.comb(len(a + b), len(a))
                ),
            "the groups are compared with the mean of b.":
                lambda a, b: _share(a, b, lambda group, rest: mean(group) <= mean(b)),
            "only the ways with a complete separation are counted, whatever the given losses are.":
                lambda a, b: _share(a, b, lambda group, rest: max(group) < min(rest)),
            "signs of paired differences are exchanged; here any loss can go to any group.": _fixed_pairs,
            "this is the share of pairs in which a is lower; no losses are dealt anew.":
                lambda a, b: sum(one < other for one in a for other in b) / (len(a) * len(b)),
            "1 is added above and below, as for ways drawn at random; here every way is counted, the given one too.":
                lambda a, b: (
                    (_share(a, b, lambda g, r: mean(g) <= mean(a)) * math.comb(len(a + b), len(a)) + 1)
                    / (math.comb(len(a + b), len(a)) + 1)
                ),
            "equal losses are dealt as one; each is a result of its own.": _equal_ones_once,
            "groups of equal losses are counted as one way; each way to deal counts.": _equal_groups_once,
            "the ranks of the losses are added up, not the losses.": _by_ranks,
            "sums or means are compared to the last digit; the same losses in another order may add up to more.":
                lambda a, b: _share(a, b, lambda group, rest: sum(group) <= sum(a)),
            "the medians are compared, not the means.":
                _by_medians,
            "a loss can be dealt more than once; each goes to one group only.":
                lambda a, b: (
                    sum(mean(group) <= mean(a) for group in product(a + b, repeat=len(a))) / len(a + b) ** len(a)
                ),
        },
    }),
)  # fmt: skip


def _training(draw):
    """One large step between two keys, to nearly all of the weight; a tiny weight to a small one; one that is there.

    The second has a learning rate so low that the factor is above 1,000, and steps of the schedule at and near 0.
    """
    keys, percent = draw.integer(20, 60), draw.integer(4, 9)
    factors = [draw.integer(10, 100) / 100 for _ in range(draw.integer(20, 40))]
    keys, start, weight, rate, factors = draw.in_turn((
        (2, draw.integer(51, 60) / 100, 1 - percent / 10000, float(percent), factors[:1]),
        (keys, percent / 100000, percent / 1000, percent / 1e6, [percent / 100, 0.0, *factors]),
        (keys, draw.integer(70, 80) / 100, draw.integer(40, 60) / 100, percent / 1000, factors),
    ))
    return {"start": start, "weight": weight, "keys": keys, "learning_rate": rate, "factors": factors}


def _gap(weight, keys):
    return math.log(weight * (keys - 1) / (1 - weight))


def _needed(start, weight, keys, learning_rate, factors, gap=None, both=2, total=None):
    gap = _gap(weight, keys) - _gap(start, keys) if gap is None else gap
    return max(0.0, gap / (both * learning_rate * (sum(factors) if total is None else total)))


def _needed_by_gap(gap):
    """gap: a function of the arguments, in place of the right one."""
    return lambda **inputs: _needed(**inputs, gap=gap(inputs["start"], inputs["weight"], inputs["keys"]))


def _needed_by_halving(start, weight, keys, learning_rate, factors):
    """Try factors, follow the training for each."""

    def reached(factor):
        high, low = _gap(start, keys), 0.0
        for of_step in factors:
            high += factor * learning_rate * of_step
            low -= factor * learning_rate * of_step
        return 1 / (1 + (keys - 1) * math.exp(low - high))

    low, high = 0.0, 1e6
    if start >= weight:
        return low
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) >= weight else (middle, high)
    return high


def _not_stopped_at_0(start, weight, keys, learning_rate, factors):
    return (_gap(weight, keys) - _gap(start, keys)) / (2 * learning_rate * sum(factors))


NEEDED = Exercise(
    key="13.4",
    title="the rate that R needs",
    name="needed_factor",
    minutes=15,
    level="medium",
    inputs=_training,
    returns="a float",
    run=_as_float,
    right=(_needed, _needed_by_halving),
    wrong=mistakes({
        RATE: {
            "only the one score moves; the others of its row fall as well.": lambda **inputs: _needed(**inputs, both=1),
            "the learning rate is at its peak in every step; it follows the schedule.":
                lambda **inputs: _needed(**inputs, total=len(inputs["factors"])),
            "the map is taken to start uniform; it starts with another weight.":
                _needed_by_gap(lambda start, weight, keys: _gap(weight, keys)),
            "the gaps at the start and at the end are added up.":
                _needed_by_gap(lambda start, weight, keys: _gap(weight, keys) + _gap(start, keys)),
            "the start and the end are swapped.":
                _needed_by_gap(lambda start, weight, keys: _gap(start, keys) - _gap(weight, keys)),
            "the logarithm is of the ratio of the weights; what moves is the gap between the scores.":
                _needed_by_gap(lambda start, weight, keys: math.log(weight / start)),
            "the difference of the weights is taken for that of the scores.":
                _needed_by_gap(lambda start, weight, keys: weight - start),
            "the fraction is negative where nothing has to move up; then the smallest factor is another.":
                _not_stopped_at_0,
            "a key that has to lose weight is treated as one that has to win as much.":
                lambda **inputs: abs(_not_stopped_at_0(**inputs)),
            "this is the learning rate of R; asked is its factor on the learning rate.":
                lambda **inputs: _needed(**inputs) * inputs["learning_rate"],
            "the logarithm has base 2; a softmax has base e.": lambda **inputs: _needed(**inputs) / math.log(2),
            "the logarithm has base 10; a softmax has base e.": lambda **inputs: _needed(**inputs) / math.log(10),
            "this is the factor for getting there in a single step.":
                lambda **inputs: _needed(**inputs, total=max(inputs["factors"])),
            "the factor is rounded up to a whole number; it need not be whole.":
                lambda **inputs: float(math.ceil(_needed(**inputs))),
            "the mean of the schedule counts for one step; all steps add up.":
                lambda **inputs: _needed(**inputs, total=sum(inputs["factors"]) / len(inputs["factors"])),
            "rising and falling together make the gap grow twice as fast, not half as fast.":
                lambda **inputs: _needed(**inputs, both=0.5),
        },
    }),
)  # fmt: skip


def _means(losses, rate, seeds):
    return {name: sum(by_rate[rate][seed] for seed in seeds) / len(seeds) for name, by_rate in losses.items()}


def _choices(losses, loser):
    """Every (rate, seeds) with at least two seeds, the largest sets of seeds first."""
    for rate, one in losses[loser].items():
        for size in range(len(one), 1, -1):
            for seeds in combinations(range(len(one)), size):
                yield rate, list(seeds)


def _not_above(losses, loser, rate, seeds):
    """How many of the others are as low as the loser or lower."""
    means = _means(losses, rate, seeds)
    return sum(means[name] <= means[loser] for name in losses if name != loser)


def _lead(losses, loser, rate, seeds):
    means = _means(losses, rate, seeds)
    return min(means[name] for name in losses if name != loser) - means[loser]


def _own_best(losses, name):
    """The rate with the lowest mean of all seeds."""
    return min(losses[name], key=lambda rate: sum(losses[name][rate]) / len(losses[name][rate]))


def _honest_winner(losses):
    return min(losses, key=lambda name: mean(losses[name][_own_best(losses, name)]))


def _all_seeds(losses, loser):
    return list(range(len(losses[loser][_own_best(losses, loser)])))


def _its_lowest_two(losses, loser):
    """The rate and the two seeds with the lowest losses of the loser, whatever the others have there."""
    rate = min(losses[loser], key=lambda rate: sum(sorted(losses[loser][rate])[:2]))
    return rate, sorted(range(len(losses[loser][rate])), key=losses[loser][rate].__getitem__)[:2]


def _winner(losses, loser):
    return next(choice for choice in _choices(losses, loser) if not _not_above(losses, loser, *choice))


def _best_lead(losses, loser):
    return max(_choices(losses, loser), key=lambda choice: _lead(losses, loser, *choice))


OBVIOUS = (  # what one tries first, and what must not be enough
    lambda losses, loser: (_own_best(losses, loser), _all_seeds(losses, loser)),
    _its_lowest_two,
    lambda losses, loser: (_own_best(losses, _honest_winner(losses)), _all_seeds(losses, loser)),
    lambda losses, loser: min(_choices(losses, loser), key=lambda choice: _lead(losses, loser, *choice)),
)


def _trials(draw):
    """Losses of which no obvious choice will do: see the three kinds. What wins is at another rate in each of them."""
    return draw.in_turn((_pairs_win, _three_of_five_win, _all_three_win))(draw)


def _pairs_win(draw):
    return copy.deepcopy(_pairs_that_win(draw.integer(0, 10**9)))


@functools.cache  # few draws fit, and a check asks for the same several times
def _pairs_that_win(seed):
    """Five variants, three rates, four seeds. What wins is two seeds at the middle rate; one seed would win, too.

    No obvious choice wins, and their numbers of lower variants differ.
    """
    draw = Draw(seed)
    names, rates = ["Vanilla", "Dense", "Random", "Mixer", "Fourier"], [0.001, 0.002, 0.003]
    loser = names[draw.integer(0, 4)]
    while True:
        losses = {
            name: {
                rate: [low + draw.integer(0, 400) / 1000 for _ in range(4)]
                for rate in rates for low in [1.68 if name == loser and rate != rates[1] else 1.6]
            }
            for name in names
        }
        least = [min(losses[name][rates[1]][seed] for name in names if name != loser) for seed in range(4)]
        if not any(map(float.__lt__, losses[loser][rates[1]], least)):
            continue
        others = [_not_above(losses, loser, *choose(losses, loser)) for choose in OBVIOUS]
        if len(set(others)) < 4 or 0 in others:
            continue
        winning = [choice for choice in _choices(losses, loser) if not _not_above(losses, loser, *choice)]
        if winning and all(rate == rates[1] and len(seeds) == 2 for rate, seeds in winning):
            return {"losses": losses, "loser": loser}


def _no_pair_wins(draw, rates, wins):
    """Three variants, three seeds: at the rate `wins` the loser wins with all three, and with no two of them."""
    names = ["Vanilla", "Dense", "Random"]
    loser, one, other = (names.pop(draw.integer(0, len(names) - 1)) for _ in range(3))
    step, base = draw.integer(8, 12) / 1000, 1.6 + draw.integer(0, 200) / 1000
    leads = {loser: [0, 0, 0], one: [10, -4, -5], other: [-10, 9, 5]}  # the sum of all is above 0, of no two of both
    low = [base - 0.3 - draw.integer(0, 90) / 1000 for _ in range(3)]
    losses = {
        name: {rate: [base + step * lead for lead in leads[name]] if rate == wins else
               [loss + 0.01 * (name == loser) for loss in low] for rate in rates}
        for name in sorted(leads)
    }  # fmt: skip
    return losses, loser, one


def _three_of_five_win(draw):
    """At the lowest rate. With seed 0, and with one in the middle of the others, the loser never wins."""
    rates = [0.001, 0.002, 0.003]
    losses, loser, one = _no_pair_wins(draw, rates, rates[0])
    place = draw.integer(1, 2)
    for name, by_rate in losses.items():
        for numbers in by_rate.values():
            for position in (place, 0):
                numbers.insert(position, 1.9 - (name == one))
    return {"losses": losses, "loser": loser}


def _all_three_win(draw):
    """At the highest rate. At another the loser is as low as the lowest of the others, which is no win."""
    rates = [0.001, 0.002, 0.003]
    losses, loser, one = _no_pair_wins(draw, rates, rates[-1])
    losses[loser][rates[0]] = list(losses[one][rates[0]])
    return {"losses": losses, "loser": loser}


def _told(answer, losses, loser):
    """What a reader of the table could object to."""
    result = answer(losses=losses, loser=loser)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        return "no pair of a rate and seeds", -1
    rate, seeds = result
    rate, seeds = plain_copy(rate), plain_copy(seeds)
    if not isinstance(rate, float) or rate not in losses[loser]:
        return "the rate is none of the table", -1
    count = len(losses[loser][rate])
    if not isinstance(seeds, (tuple, list)):
        return f"the seeds are no list, but {kind_of(seeds)}", -1
    if not all(type(seed) is int and 0 <= seed < count for seed in seeds):
        return "a seed is none of the table", -1
    if len(set(seeds)) < len(seeds):
        return "a seed counts twice", -1
    if len(seeds) < 2:
        return "fewer than two seeds", -1
    return "true numbers", _not_above(losses, loser, rate, seeds)


LYING = Exercise(
    key="13.5",
    title="a table that lies with true numbers",
    name="lying_table",
    minutes=15,
    level="medium",
    inputs=_trials,
    returns="what the table is made of, how many others are as low as the loser or lower",
    run=_told,
    right=(
        _winner,
        _best_lead,
        lambda losses, loser: next(
            (rate, tuple(reversed(seeds)))
            for rate, seeds in reversed(list(_choices(losses, loser)))
            if not _not_above(losses, loser, rate, seeds)
        ),
    ),
    wrong=mistakes({
        LIE: {
            "the loser has its own best rate and all seeds count; there it is behind.": OBVIOUS[0],
            "the rate and the seeds are the loser's lowest; others may be lower still with them.": OBVIOUS[1],
            "everybody has the best rate of the honest winner, and all seeds count.": OBVIOUS[2],
            "with this choice the loser is the last of all: its mean is the highest.": OBVIOUS[3],
            "fewer than two seeds decide; at least two are asked for.":
                lambda losses, loser: (_winner(losses, loser)[0], _winner(losses, loser)[1][:1]),
            "a seed stands in the list more than once.":
                lambda losses, loser: (_winner(losses, loser)[0], _winner(losses, loser)[1][:1] * 2),
            "the seeds are a set; a list is asked for.":
                lambda losses, loser: (_winner(losses, loser)[0], set(_winner(losses, loser)[1])),
            "a seed is none of the table: seeds are whole numbers, and the first is 0.":
                lambda losses, loser: (_own_best(losses, loser), [seed + 1 for seed in _all_seeds(losses, loser)]),
            "the rate is none of the table; the position of a rate is not the rate.":
                lambda losses, loser: (
                    list(losses[loser]).index(_winner(losses, loser)[0]), _winner(losses, loser)[1],
                ),
            "this is no pair of one rate for all variants and a list of seeds.":
                lambda losses, loser: {name: _own_best(losses, name) for name in losses},
        },
    }),
)  # fmt: skip


EXERCISES = [BIGRAM, WRONG_PAIRS, TEST, NEEDED, LYING]
