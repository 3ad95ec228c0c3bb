"""The exercises of chapter 13: a loss to compare with, the size of a model, the learning rates."""

import math

import torch

from synth_lib.checks import Exercise, Mistake
from synth_lib.models import LanguageModel

UNIGRAM = "A loss to compare with"
SCHEDULE = "Warm-up, then a cosine"
PARAMETERS = "How many parameters?"


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
    wrong=(
        Mistake(_unigram, "the token before plays no part: this is the unigram loss, smoothed.", UNIGRAM),
        Mistake(
            lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), valid) / math.log(2),
            "the logarithm has base 2, so the unit is bits; nats need the natural logarithm.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: math.exp(_mean(_logs(_pairs(train, vocab) + 1), valid)),
            "this is the perplexity, e to the power of the loss.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), valid) * (len(valid) - 1),
            "the losses are added up; per token means their mean.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: -_mean(_logs(_pairs(train, vocab) + 1), valid),
            "the minus sign is missing: a loss is positive.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _mean(_logs(_pairs(valid, vocab) + 1), valid),
            "the pairs are counted in the text that is judged; only the training text may be counted.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab).T + 1), valid),
            "the tokens of a pair are swapped: it predicts the token before from the one after.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _mean(
                ((_pairs(train, vocab) + 1) / (_pairs(train, vocab) + 1).sum()).log(), valid
            ),
            "a count is divided by all pairs, not by those that start with the same token.",
            UNIGRAM,
        ),
        Mistake(
            _bigram_with_sums_too_small,
            "1 is added to each count but not to their sum, so a row sums to more than 1.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab)), valid),
            "a pair that the training text lacks gets the probability 0; add 1 to every count.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _mean(_logs((_pairs(train, vocab) > 0) + 1.0), valid),
            "a pair that comes more than once is counted once.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _bigram_in_loops(train, valid, int(train.max()) + 1),
            "the number of tokens is read off the largest token of a text, but it is the argument vocab.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _bigram_in_loops(train, valid, len(train.unique())),
            "1 is added only for the tokens that occur in the training text; it should be for all of vocab.",
            UNIGRAM,
        ),
        Mistake(
            _bigram_with_sums_from_tokens,
            "the last token of the training text counts as the start of a pair, but nothing follows it.",
            UNIGRAM,
        ),
        Mistake(
            _bigram_without_keepdim,
            "each column of the table is divided by the sum of a row; keep the axis of the sums.",
            UNIGRAM,
        ),
        Mistake(
            _bigram_of_columns,
            "each column of the table sums to 1, but each row should.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), train),
            "the loss is measured on the training text, not on the other one.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: (
                _mean(_logs(_pairs(train, vocab) + 1), valid) * (len(valid) - 1) / len(valid)
            ),
            "the sum is divided by the number of tokens; the first one is not predicted.",
            UNIGRAM,
        ),
        Mistake(
            _bigram_of_all_rows,
            "every token before is combined with every token after; only neighbours are pairs.",
            UNIGRAM,
        ),
        Mistake(
            _bigram_log_of_mean,
            "this is the logarithm of the mean probability; the loss is the mean of the logarithms.",
            UNIGRAM,
        ),
        Mistake(
            lambda train, valid, vocab: _mean(_logs(_pairs(train, vocab) + 1), valid) / math.log(10),
            "the logarithm has base 10; nats need the natural logarithm.",
            UNIGRAM,
        ),
    ),
)


def _model_sizes(draw):
    sizes = draw.sizes("vocab head d_head layer max_length", 2, 9)
    return {name: sizes[name] for name in ("vocab", "d_model", "head", "layer", "max_length")}


def _count(vocab, d_model, head, layer, max_length, matrices=10, maps=None, norms=2, last=1, tables=None):
    maps = head * layer if maps is None else maps
    tables = vocab + max_length if tables is None else tables
    blocks = layer * (matrices * d_model**2 + norms * d_model) + maps * max_length**2
    return tables * d_model + blocks + last * d_model


def _counted(vocab, d_model, head, layer, max_length):
    model = LanguageModel(vocab, d_model, head, layer, max_length, "random", bias=False)
    return sum(parameter.numel() for parameter in model.parameters())


COUNT = Exercise(
    key="13.2",
    title="count the parameters of a Random model",
    minutes=10,
    level="medium",
    inputs=_model_sizes,
    returns="a whole number",
    right=(_count, _counted),
    wrong=(
        Mistake(
            lambda vocab, **sizes: _count(vocab, **sizes, tables=2 * vocab + sizes["max_length"]),
            "the output matrix is counted again, but it is the embedding.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, maps=sizes["layer"]),
            "a layer has one R; it should have one for every head.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, maps=sizes["head"]),
            "all layers share their R; each layer has its own.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, matrices=12),
            "the projections of query and key are counted too, but Random has none.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, matrices=9),
            "one of the two matrices of the attention, value or output, is missing.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, norms=0, last=0),
            "the norms have weights too.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, last=0),
            "the norm after the last block is missing.",
            PARAMETERS,
        ),
        Mistake(
            lambda vocab, **sizes: _count(vocab, **sizes, tables=vocab),
            "the table of the positions is missing.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, tables=sizes["max_length"]),
            "the table of the tokens is missing.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes | {"layer": 1}),
            "only one block is counted.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, matrices=6),
            "the mlp has one matrix; it should have two, there and back.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, last=2),
            "the norm after the last block is counted twice; it is one norm, not two.",
            PARAMETERS,
        ),
        Mistake(
            lambda **sizes: _count(**sizes, maps=0),
            "the parameters of S are left out; here R is trained.",
            PARAMETERS,
        ),
    ),
)


def _steps(draw):
    return {"warmup": draw.integer(3, 6), "steps": draw.integer(12, 20)}


def _factors(first, later):
    """An answer from first(step, warmup) in the warm-up and later(step, warmup, steps) after it."""

    def answer(warmup, steps):
        return [first(step, warmup) if step < warmup else later(step, warmup, steps) for step in range(steps)]

    return answer


def _rise(step, warmup):
    return (step + 1) / warmup


def _fall(step, warmup, steps, lowest=0.1):
    return lowest + (1 - lowest) * (1 + math.cos(math.pi * (step - warmup) / (steps - 1 - warmup))) / 2


def _by_tensor(warmup, steps):
    angle = torch.linspace(0, math.pi, steps - warmup, dtype=torch.float64)
    rise = torch.arange(1, warmup + 1, dtype=torch.float64) / warmup
    return torch.cat([rise, 0.55 + 0.45 * angle.cos()]).tolist()


LEARNING_RATES = Exercise(
    key="13.3",
    title="warm-up, then a cosine",
    minutes=10,
    level="easy",
    inputs=_steps,
    returns="a list of floats, one for each step",
    right=(_factors(_rise, _fall), _by_tensor),
    wrong=(
        Mistake(
            _factors(lambda step, warmup: step / warmup, _fall),
            "the first step has the factor 0, so it changes nothing.",
            SCHEDULE,
        ),
        Mistake(
            _factors(_rise, lambda step, warmup, steps: _fall(step, warmup, steps, lowest=0.0)),
            "the cosine falls to 0, not to a tenth.",
            SCHEDULE,
        ),
        Mistake(
            _factors(_rise, lambda step, warmup, steps: _fall(step, warmup, steps + 1)),
            "the lowest factor would come one step after the last.",
            SCHEDULE,
        ),
        Mistake(
            _factors(_rise, lambda step, warmup, steps: _fall(step, 0, steps)),
            "the cosine starts at step 0, so the factor jumps down where the warm-up ends.",
            SCHEDULE,
        ),
        Mistake(
            _factors(_rise, lambda step, warmup, steps: 1 - 0.9 * (step - warmup) / (steps - 1 - warmup)),
            "the factor falls along a straight line.",
            SCHEDULE,
        ),
        Mistake(
            _factors(lambda step, warmup: 1.0, _fall),
            "there is no warm-up: the first steps have the factor 1.",
            SCHEDULE,
        ),
        Mistake(
            _factors(_rise, lambda step, warmup, steps: max(0.1, _fall(step, warmup, steps, lowest=0.0))),
            "a cosine that falls to 0 is cut off at a tenth; it should be squeezed between 1 and a tenth.",
            SCHEDULE,
        ),
        Mistake(
            _factors(_rise, lambda step, warmup, steps: 0.1 + 0.9 * _fall(step, warmup, steps, 0.0) ** 2),
            "the cosine is squared.",
            SCHEDULE,
        ),
        Mistake(
            _factors(
                _rise,
                lambda step, warmup, steps: (
                    _rise(step, warmup) if step == warmup else _fall(step, warmup, steps)
                ),
            ),
            "the warm-up lasts one step too long, and its factor rises above 1.",
            SCHEDULE,
        ),
        Mistake(
            _factors(
                lambda step, warmup: 0.003 * _rise(step, warmup),
                lambda step, warmup, steps: 0.003 * _fall(step, warmup, steps),
            ),
            "these are learning rates with a peak of 0.003; the factors have a peak of 1.",
            SCHEDULE,
        ),
        Mistake(
            _factors(
                _rise,
                lambda step, warmup, steps: (
                    0.55 + 0.45 * math.cos(2 * math.pi * (step - warmup) / (steps - 1 - warmup))
                ),
            ),
            "the factor comes back to 1 at the end: a whole wave, not half a one.",
            SCHEDULE,
        ),
        Mistake(
            _factors(lambda step, warmup: (step + 1) / (warmup + 1), _fall),
            "the last step of the warm-up is still below 1.",
            SCHEDULE,
        ),
    ),
)


EXERCISES = [BIGRAM, COUNT, LEARNING_RATES]
