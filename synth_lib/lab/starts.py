"""Hand-made starts for Random: scores whose softmax over all max_length keys is the wanted map."""

from math import log

import torch

from synth_lib.shapes import check_number, check_whole_number


def uniform_scores(length):
    """Every key gets 1 / length, exactly. -> "length length", float32."""
    check_whole_number("length", length)
    return torch.zeros(length, length)


def shifted_scores(length, offset=0, error=1e-3):
    """Query i looks at key i + offset; `offset=0` is the identity. -> "length length", float32.

    After the softmax that key has the weight 1 - error, the others share the rest. A query whose key would lie
    outside the sequence has no such key; its row is uniform.

    Raises:
        ValueError: no row would have its key inside the sequence, or `error` is not between 0 and 1.
    """
    check_whole_number("length", length)
    last = length - 1
    if not -last <= offset <= last:
        raise ValueError(f"offset is {offset}, but must lie between {-last} and {last} for length = {length}")
    if not 0 < error < 1:
        raise ValueError(f"error is {error}, but must lie between 0 and 1; a softmax never reaches them")
    # weight = e^gap / (e^gap + length - 1) = 1 - error, solved for the gap
    gap = log((1 - error) * (length - 1) / error) if length > 1 else 0.0
    return torch.diag(torch.full((length - abs(offset),), gap), diagonal=offset)


def decaying_scores(length, rate):
    """Weights proportional to exp(-rate * |i - j|), exactly. -> "length length", float32.

    Raises:
        ValueError: `rate` (per position) is negative, so that the weights would grow with the distance.
    """
    check_whole_number("length", length)
    check_number("rate", rate)
    position = torch.arange(length, dtype=torch.float32)
    return -rate * (position[:, None] - position).abs()


STARTS = {"uniform": uniform_scores, "shifted": shifted_scores, "decaying": decaying_scores}


def hand_made(length, kind, **options):
    """One of these starts by its name, as the settings of a run hold it. -> "length length", float32.

    Raises ValueError for an unknown kind.
    """
    if kind not in STARTS:
        raise ValueError(f"the kind of a start must be one of {', '.join(STARTS)}, not {kind!r}")
    return STARTS[kind](length, **options)
