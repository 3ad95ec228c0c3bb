"""The exercises of chapter 13: a loss to compare with, orders, a test, the rate of R, histograms."""

import math
from bisect import bisect_left, bisect_right
from itertools import combinations, product
from statistics import mean, median

import torch

from synth_lib.checks.exercise import Exercise, mistakes

UNIGRAM = "A loss to compare with"
ORDER = "Exercise 13.2: score your prediction"
LUCK = "Is a difference more than luck?"
RATE = "Exercise 13.4: the rate that R needs"
BINS = "Inside: how large are the weights?"


def _two_texts(draw):
    """Two texts that tell apart who counts tokens in a text from who uses vocab.

    The last token occurs in neither text, and one in the middle only as the end of `valid`. The last token of
    `train` stands at the start of `valid`, so that it matters how often that one was followed by another.
    """
    vocab = draw.integer(5, 7)
    missing = draw.integer(1, vocab - 3)
    seen = [token for token in range(vocab - 1) if token != missing]

    def text(length):
        return [seen[draw.integer(0, len(seen) - 1)] for _ in range(length)]

    train = seen + text(draw.integer(30, 35))
    valid = [train[-1], *text(draw.integer(11, 16)), missing]
    return {"train": torch.tensor(train), "valid": torch.tensor(valid), "vocab": vocab}


def _pairs(tokens, vocab):
    """How often token b follows token a, in row a and column b."""
    return torch.bincount(tokens[:-1] * vocab + tokens[1:], minlength=vocab**2).reshape(vocab, vocab).double()


def _logs(counts):
    """Log-probabilities of the next token, a row for each token before it."""
    return (counts / counts.sum(dim=1, keepdim=True)).log()


def _mean(logs, valid):
    return -logs[valid[:-1], valid[1:]].mean().item()


def _bigram_in_loops(train, valid, vocab):
    train, valid = train.tolist(), valid.tolist()
    total = 0.0
    for before, after in zip(valid[:-1], valid[1:], strict=True):
        both = sum(1 for pair in zip(train[:-1], train[1:], strict=True) if pair == (before, after))
        total -= math.log((both + 1) / (train[:-1].count(before) + vocab))
    return total / (len(valid) - 1)


def _unigram(train, valid, vocab):
    counts = torch.bincount(train, minlength=vocab).double() + 1
    return -(counts / counts.sum()).log()[valid[1:]].mean().item()


def _bigram_with_sums_too_small(train, valid, vocab):
    counts = _pairs(train, vocab)
    return _mean(((counts + 1) / counts.sum(dim=1, keepdim=True).clamp(min=1)).log(), valid)


def _bigram_with_sums_from_tokens(train, valid, vocab):
    sums = torch.bincount(train, minlength=vocab)[:, None] + vocab
    return _mean(((_pairs(train, vocab) + 1) / sums).log(), valid)


def _bigram_without_keepdim(train, valid, vocab):
    counts = _pairs(train, vocab) + 1
    return _mean((counts / counts.sum(dim=1)).log(), valid)


def _bigram_of_columns(train, valid, vocab):
    counts = _pairs(train, vocab) + 1
    return _mean((counts / counts.sum(dim=0)).log(), valid)


def _bigram_of_all_rows(train, valid, vocab):
    logs = _logs(_pairs(train, vocab) + 1)
    return -logs[valid[:-1]][:, valid[1:]].mean().item()


def _bigram_log_of_mean(train, valid, vocab):
    probabilities = _logs(_pairs(train, vocab) + 1).exp()
    return -probabilities[valid[:-1], valid[1:]].mean().log().item()


BIGRAM = Exercise(
    key="13.1",
    title="the bigram loss",
    name="bigram_loss",
    minutes=12,
    level="medium",
    inputs=_two_texts,
    returns="a float, in nats per token",
    right=(
        lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), valid),
        _bigram_in_loops,
        lambda train, valid, vocab: torch.nn.functional.cross_entropy(
            (_pairs(train, vocab) + 1).log()[valid[:-1]], valid[1:]
        ).item(),
    ),
    wrong=mistakes({
        UNIGRAM: {
            "the token before plays no part: this is the unigram loss, smoothed.": _unigram,
            "the logarithm has base 2, so the unit is bits; nats need the natural logarithm.":
                lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), valid) / math.log(2),
            "this is the perplexity, e to the power of the loss.":
                lambda train, valid, vocab: math.exp(_mean(_logs(_pairs(train, vocab) + 1), valid)),
            "the losses are added up; per token means their mean.":
                lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), valid) * (len(valid) - 1),
            "the minus sign is missing: a loss is positive.":
                lambda train, valid, vocab: -_mean(_logs(_pairs(train, vocab) + 1), valid),
            "the pairs are counted in the text that is judged; only the training text may be counted.":
                lambda train, valid, vocab: _mean(_logs(_pairs(valid, vocab) + 1), valid),
            "the tokens of a pair are swapped: it predicts the token before from the one after.":
                lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab).T + 1), valid),
            "a count is divided by all pairs, not by those that start with the same token.":
                lambda train, valid, vocab: _mean(
                    ((_pairs(train, vocab) + 1) / (_pairs(train, vocab) + 1).sum()).log(), valid
                ),
            "1 is added to each count but not to their sum, so a row sums to more than 1.": _bigram_with_sums_too_small,
            "a pair that the training text lacks gets the probability 0; add 1 to every count.":
                lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab)), valid),
            "a pair that comes more than once is counted once.":
                lambda train, valid, vocab: _mean(_logs((_pairs(train, vocab) > 0) + 1.0), valid),
            "the number of tokens is read off the largest token of a text, but it is the argument vocab.":
                lambda train, valid, vocab: _bigram_in_loops(train, valid, int(train.max()) + 1),
            "1 is added only for the tokens that occur in the training text; it should be for all of vocab.":
                lambda train, valid, vocab: _bigram_in_loops(train, valid, len(train.unique())),
            "the last token of the training text counts as the start of a pair, but nothing follows it.":
                _bigram_with_sums_from_tokens,
            "each column of the table is divided by the sum of a row; keep the axis of the sums.":
                _bigram_without_keepdim,
            "each column of the table sums to 1, but each row should.": _bigram_of_columns,
            "the loss is measured on the training text, not on the other one.":
                lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), train),
            "the sum is divided by the number of tokens; the first one is not predicted.":
                lambda train, valid, vocab: (
                    _mean(_logs(_pairs(train, vocab) + 1), valid) * (len(valid) - 1) / len(valid)
                ),
            "every token before is combined with every token after; only neighbours are pairs.": _bigram_of_all_rows,
            "this is the logarithm of the mean probability; the loss is the mean of the logarithms.":
                _bigram_log_of_mean,
            "the logarithm has base 10; nats need the natural logarithm.":
                lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), valid) / math.log(10),
        },
    }),
)  # fmt: skip


def _orders(draw):
    """Six names and one more. Some pairs are clear, one touches; mean, lowest, highest and first loss order others."""
    low = draw.integer(100, 120)
    losses = {
        "oak": [0, 4, 9],
        "elm": [15, 9],  # touches oak: not clear
        "fir": [12, 71, 13],  # its first loss is below elm's, its highest above those of ash and yew
        "ash": [36, 34],
        "yew": [60, 70],
        "gum": [90, 58],  # its lowest loss is below those of yew
        "box": [1],
    }
    losses = {name: [(low + number) / 100 for number in numbers] for name, numbers in losses.items()}
    while True:
        names = ["oak", "elm", "fir", "ash", "yew", "gum"]
        predicted = [names.pop(draw.integer(0, len(names) - 1)) for _ in range(6)]
        counts = [_pairs_of(predicted, losses, before) for before in (_below, *ONE_NUMBER.values())]
        if len(set(counts)) == len(counts):
            return {"predicted": predicted, "losses": losses}


ONE_NUMBER = {  # wrong ways to say that one variant is below another
    "mean": lambda a, b: sum(a) / len(a) < sum(b) / len(b),
    "lowest": lambda a, b: min(a) < min(b),
    "highest": lambda a, b: max(a) < max(b),
    "first": lambda a, b: a[0] < b[0],
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
    title="score your prediction",
    name="wrong_pairs",
    minutes=10,
    level="easy",
    inputs=_orders,
    returns="a tuple of two whole numbers",
    right=(lambda predicted, losses: _pairs_of(predicted, losses, _below), _wrong_pairs_in_loops),
    wrong=mistakes({
        ORDER: {
            "the means are compared, so pairs that overlap are counted too.":
                lambda predicted, losses: _pairs_of(predicted, losses, ONE_NUMBER["mean"]),
            "two variants that have one loss in common count as clear; below means below.":
                lambda predicted, losses: _pairs_of(predicted, losses, lambda a, b: max(a) <= min(b)),
            "only the lowest loss of each variant is compared, not all seeds.":
                lambda predicted, losses: _pairs_of(predicted, losses, ONE_NUMBER["lowest"]),
            "only the highest loss of each variant is compared, not all seeds.":
                lambda predicted, losses: _pairs_of(predicted, losses, ONE_NUMBER["highest"]),
            "only the first seed is compared.":
                lambda predicted, losses: _pairs_of(predicted, losses, ONE_NUMBER["first"]),
            "names that are not predicted are counted too.":
                lambda predicted, losses: _pairs_of(predicted, losses, _below, every=True),
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
    few, many = 3, draw.integer(4, 5)
    low = [round(1.7 + draw.integer(0, 90) / 1000 + position / 7919, 6) for position in range(few)]
    high = [round(1.72 + draw.integer(0, 90) / 1000 + position / 6007, 6) for position in range(many)]
    return draw.in_turn(({"a": low, "b": high}, {"a": high, "b": low}))


def _share(a, b, counts, size=None):
    """The share of ways to deal for which counts(group, rest) holds."""
    positions = range(len(a) + len(b))
    pooled = a + b
    counted = [
        counts([pooled[i] for i in chosen], [pooled[i] for i in positions if i not in chosen])
        for chosen in combinations(positions, size or len(a))
    ]
    return sum(counted) / len(counted)


def _by_bits(a, b):
    """All subsets as the bits of a number."""
    pooled, hits, ways = a + b, 0, 0
    for bits in range(2 ** len(pooled)):
        group = [number for position, number in enumerate(pooled) if bits >> position & 1]
        if len(group) == len(a):
            ways += 1
            hits += sum(group) / len(group) <= sum(a) / len(a) + 1e-12
    return hits / ways


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
            "the medians are compared, not the means.":
                lambda a, b: _share(a, b, lambda group, rest: median(group) <= median(a)),
            "a loss can be dealt more than once; each goes to one group only.":
                lambda a, b: (
                    sum(mean(group) <= mean(a) for group in product(a + b, repeat=len(a))) / len(a + b) ** len(a)
                ),
        },
    }),
)  # fmt: skip


def _training(draw):
    steps = draw.integer(20, 40)
    return {
        "weight": draw.integer(50, 90) / 100,
        "keys": draw.integer(20, 60),
        "learning_rate": draw.integer(3, 9) / 1000,
        "factors": [draw.integer(10, 100) / 100 for _ in range(steps)],
    }


def _needed(weight, keys, learning_rate, factors, gap=None, both=2, total=None):
    gap = math.log(weight * (keys - 1) / (1 - weight)) if gap is None else gap
    return gap / (both * learning_rate * (sum(factors) if total is None else total))


def _needed_by_halving(weight, keys, learning_rate, factors):
    """Try factors, follow the training for each."""

    def reached(factor):
        high = low = 0.0
        for of_step in factors:
            high += factor * learning_rate * of_step
            low -= factor * learning_rate * of_step
        return 1 / (1 + (keys - 1) * math.exp(low - high))

    low, high = 0.0, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) >= weight else (middle, high)
    return high


NEEDED = Exercise(
    key="13.4",
    title="the rate that R needs",
    name="needed_factor",
    minutes=10,
    level="medium",
    inputs=_training,
    returns="a float",
    right=(_needed, _needed_by_halving),
    wrong=mistakes({
        RATE: {
            "only the one score moves; the others of its row fall as well.": lambda **inputs: _needed(**inputs, both=1),
            "the learning rate is at its peak in every step; it follows the schedule.":
                lambda **inputs: _needed(**inputs, total=len(inputs["factors"])),
            "the gap forgets how many other keys share the rest of the weight.":
                lambda **inputs: _needed(**inputs, gap=math.log(inputs["weight"] / (1 - inputs["weight"]))),
            "all keys are counted as others; one of them is the key itself.":
                lambda **inputs: _needed(
                    **inputs, gap=math.log(inputs["weight"] * inputs["keys"] / (1 - inputs["weight"]))
                ),
            "the gap is not divided by what is left, 1 minus the weight.":
                lambda **inputs: _needed(**inputs, gap=math.log(inputs["weight"] * (inputs["keys"] - 1))),
            "this is the learning rate of R; asked is its factor on the learning rate.":
                lambda **inputs: _needed(**inputs) * inputs["learning_rate"],
            "the fraction is upside down.": lambda **inputs: 1 / _needed(**inputs),
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


def _bins(draw):
    count = draw.integer(6, 9)
    parts = [draw.integer(1, 99) for _ in range(count)]
    edges = [round(0.01 * 1.9**position, 4) for position in range(count - 1)] + [1.0]
    position = draw.integer(2, count - 3)
    inside = round((edges[position] + edges[position - 1]) / 2, 4)
    return {
        "shares": [part / sum(parts) for part in parts],
        "edges": edges,
        "threshold": draw.in_turn((edges[position], inside)),
    }


def _between(shares, edges, threshold, surely, possibly):
    bins = range(1, len(edges))
    return (
        sum(shares[i] for i in bins if surely(edges[i - 1], edges[i], threshold)),
        sum(shares[i] for i in bins if possibly(edges[i - 1], edges[i], threshold)),
    )


def _surely(low, high, threshold):
    return low >= threshold


def _possibly(low, high, threshold):
    return high > threshold


def _by_search(shares, edges, threshold):
    surely = bisect_left(edges, threshold)  # the bin that holds the threshold
    possibly = bisect_right(edges, threshold)
    return float(sum(shares[surely + 1 :])), float(sum(shares[possibly:]))


def _by_lines(shares, edges, threshold):
    position = bisect_left(edges, threshold)
    part = (edges[position] - threshold) / (edges[position] - edges[position - 1])
    guess = sum(shares[position + 1 :]) + part * shares[position]
    return guess, guess


def _by_weight(shares, edges, threshold):
    """The share of the sum of the weights, not of their number."""
    middles = [edges[0] / 2, *((low + high) / 2 for low, high in zip(edges[:-1], edges[1:], strict=True))]
    parts = [share * middle for share, middle in zip(shares, middles, strict=True)]
    return _between([part / sum(parts) for part in parts], edges, threshold, _surely, _possibly)


ABOVE = Exercise(
    key="13.5",
    title="read a histogram",
    name="share_above",
    minutes=10,
    level="medium",
    inputs=_bins,
    returns="a tuple of two floats",
    right=(lambda shares, edges, threshold: _between(shares, edges, threshold, _surely, _possibly), _by_search),
    wrong=mistakes({
        BINS: {
            "the bin that the threshold cuts is left out of both shares.":
                lambda **inputs: _between(**inputs, surely=_surely, possibly=_surely),
            "the bin that the threshold cuts is counted in both shares.":
                lambda **inputs: _between(**inputs, surely=_possibly, possibly=_possibly),
            "the two shares are swapped: the smallest comes first.":
                lambda **inputs: _between(**inputs, surely=_surely, possibly=_possibly)[::-1],
            "at a threshold that is an edge, the bin that ends there is counted; none of it is above.":
                lambda **inputs: _between(**inputs, surely=_surely, possibly=lambda low, high, at: high >= at),
            "at a threshold that is an edge, the bin that starts there is left out; all of it is above.":
                lambda **inputs: _between(**inputs, surely=lambda low, high, at: low > at, possibly=_possibly),
            "these are the shares at or below the threshold.":
                lambda shares, edges, threshold: tuple(
                    1 - share for share in _between(shares, edges, threshold, _surely, _possibly)
                ),
            "the last bin is counted twice.":
                lambda shares, edges, threshold: (
                    _between(shares, edges, threshold, _surely, _possibly)[0],
                    sum(share for share, edge in zip(shares, edges, strict=True) if edge >= threshold) + shares[-1],
                ),
            "the bins are off by one: shares[i] is of the weights up to edges[i], not from edges[i] on.":
                lambda shares, edges, threshold: (
                    sum(share for share, edge in zip(shares, edges, strict=True) if edge >= threshold),
                    sum(share for share, edge in zip(shares, edges[1:], strict=False) if edge > threshold),
                ),
            "the weights of the cut bin are taken as spread evenly; the histogram does not say so.": _by_lines,
            "each weight counts by its size; asked is the share of their number.": _by_weight,
            "the threshold is compared with the shares; it is a weight, so compare it with the edges.":
                lambda shares, edges, threshold: (
                    float(sum(share > threshold for share in shares)) / len(shares),
                    float(sum(share >= threshold for share in shares)) / len(shares),
                ),
        },
    }),
)  # fmt: skip


EXERCISES = [BIGRAM, WRONG_PAIRS, TEST, NEEDED, ABOVE]
