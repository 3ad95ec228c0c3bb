"""Masks: which keys a query may attend to, pair by pair, and what a wrong mask is told."""

import pytest
import torch

from synth_lib.masks import causal, check_mask, masked_softmax, padding
from tests.helpers.properties import refuses

BATCH, HEAD, LENGTH = 3, 4, 5


def test_causal_pair_by_pair():
    mask = causal(LENGTH)
    assert mask.dtype == torch.bool and mask.shape == (1, 1, LENGTH, LENGTH)
    for query in range(LENGTH):
        for key in range(LENGTH):
            assert mask[0, 0, query, key].item() == (key <= query)


@pytest.mark.parametrize("kind", [list, torch.tensor])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_key_by_key(side, kind):
    lengths = [5, 0, 2]
    mask = padding(kind(lengths), LENGTH, side)
    assert mask.dtype == torch.bool and mask.shape == (len(lengths), 1, 1, LENGTH)
    for sentence, real in enumerate(lengths):
        for key in range(LENGTH):
            stands_in_the_text = key < real if side == "right" else key >= LENGTH - real
            assert mask[sentence, 0, 0, key].item() == stands_in_the_text


def test_an_empty_batch_has_an_empty_mask():
    assert padding([], LENGTH).shape == padding(torch.ones(0, dtype=torch.int64), LENGTH).shape == (0, 1, 1, LENGTH)


def test_padding_stands_on_the_right_unless_told():
    assert torch.equal(padding([2], LENGTH), padding([2], LENGTH, side="right"))


def test_masks_combine():
    both = causal(LENGTH) & padding([5, 3], LENGTH, "left")
    assert both.shape == (2, 1, LENGTH, LENGTH)
    assert both[1, 0].int().tolist() == [[0] * 5, [0] * 5, [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("arguments", "error", "pieces"),
    [
        (([2, 6], LENGTH), ValueError, ["lengths are [2, 6]", "between 0 and length = 5"]),
        (([-1, 3], LENGTH), ValueError, ["lengths are [-1, 3]", "between 0 and length = 5"]),
        (([2.0, 3.0], LENGTH), TypeError, ["lengths must be whole numbers", "torch.float32"]),
        (([True, False], LENGTH), TypeError, ["lengths must be whole numbers", "torch.bool"]),
        (([[2], [3]], LENGTH), ValueError, ["one axis (batch,)", "(2, 1)"]),
        ((3, LENGTH), ValueError, ["one axis (batch,)", "()"]),
        (([2], LENGTH, "top"), ValueError, ["side is 'top'", '"right" or "left"']),
        (([2], 0), ValueError, ["length is 0", "at least 1"]),
    ],
)
def test_padding_says_what_is_wrong(arguments, error, pieces):
    with refuses(error, *pieces):
        padding(*arguments)


def test_causal_says_what_is_wrong():
    with refuses(ValueError, "length is 0", "at least 1"):
        causal(0)


@pytest.mark.parametrize(
    ("shape", "becomes"),
    [
        ((BATCH, LENGTH), (BATCH, 1, 1, LENGTH)),  # two axes: batch key
        ((1, LENGTH), (1, 1, 1, LENGTH)),
        ((LENGTH,), (LENGTH,)),  # every other number of axes: as torch broadcasts
        ((HEAD, LENGTH, LENGTH), (HEAD, LENGTH, LENGTH)),
        ((BATCH, 1, 1, LENGTH), (BATCH, 1, 1, LENGTH)),
        ((1, HEAD, LENGTH, 1), (1, HEAD, LENGTH, 1)),
        ((BATCH, HEAD, LENGTH, LENGTH), (BATCH, HEAD, LENGTH, LENGTH)),
        ((), ()),
    ],
)
def test_a_right_mask_passes(shape, becomes):
    mask = torch.rand(shape) > 0.5
    checked = check_mask(mask, BATCH, HEAD, LENGTH)
    assert checked.shape == becomes and torch.equal(checked.reshape(shape), mask)


@pytest.mark.parametrize(
    ("mask", "error", "pieces"),
    [
        (
            torch.ones(BATCH, LENGTH),
            TypeError,
            ["mask must be a bool tensor", "True = may be attended", "torch.float32"],
        ),
        (
            torch.ones(BATCH, LENGTH, dtype=torch.int64),
            TypeError,
            ["mask must be a bool tensor", "torch.int64"],
        ),
        ([[True] * LENGTH] * BATCH, TypeError, ["mask must be a bool tensor", "list"]),
        (
            torch.ones(2, LENGTH).bool(),
            ValueError,
            ["axis batch of mask is 2", "must be 3 or 1", "(batch, key) = (2, 5)"],
        ),
        (
            torch.ones(BATCH, 7).bool(),
            ValueError,
            ["axis key of mask is 7", "must be 5 or 1", "(batch, key) = (3, 7)"],
        ),
        (
            torch.ones(LENGTH, LENGTH).bool(),
            ValueError,
            ["axis batch of mask is 5", "a (query, key) mask is mask[None, None]"],
        ),
        (torch.ones(BATCH, 7, 1, 1).bool(), ValueError, ["axis head of mask is 7", "must be 4 or 1"]),
        (torch.ones(BATCH, 1, 7, 1).bool(), ValueError, ["axis query of mask is 7", "must be 5 or 1"]),
        (torch.ones(BATCH, LENGTH, LENGTH).bool(), ValueError, ["axis head of mask is 3", "must be 4 or 1"]),
        (
            torch.ones(1, BATCH, 1, 1, 1).bool(),
            ValueError,
            ["mask has 5 axes", "at most 4", "(batch, head, query, key)"],
        ),
    ],
)
def test_a_wrong_mask_is_told_its_axis_and_both_sizes(mask, error, pieces):
    with refuses(error, *pieces):
        check_mask(mask, BATCH, HEAD, LENGTH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_masked_softmax_renormalises_over_what_is_allowed(dtype):
    scores = torch.tensor([[0.3, -1.2, 2.0, 0.7], [5.0, 1.0, -3.0, 0.0]], dtype=dtype)
    allowed = torch.tensor([[True, False, True, False], [False, False, False, False]])
    weights = masked_softmax(scores, allowed)
    kept = scores[0, [0, 2]].softmax(-1)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights[0, [0, 2]], kept)
    assert (weights[0, [1, 3]] == 0).all() and (weights[1] == 0).all()


def test_masked_softmax_stands_large_scores():
    """A forbidden high score must not push the others out, nor an allowed low score fall below the fill."""
    scores = torch.tensor([[1e30, -1e30, -1e30], [-1e38, -2e38, 3e38]])
    allowed = torch.tensor([[False, True, True], [True, True, False]])
    assert masked_softmax(scores, allowed).tolist() == [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
def test_short_integers_do_not_overflow(dtype):
    assert padding(torch.tensor([100], dtype=dtype), 300, "left").sum() == 100
