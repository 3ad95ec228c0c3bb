"""Named axes: a wrong shape is refused and told what to mend, a right one passes untouched."""

import pytest
import torch

from synth_lib.shapes import GLOSSARY, Axes, ShapeError
from tests.helpers.properties import refuses

BATCH, HEAD, LENGTH, D_MODEL, D_HEAD = 2, 3, 5, 12, 4


@pytest.fixture
def axes():
    return Axes(batch=BATCH, length=LENGTH, d_model=D_MODEL)


def test_the_tensor_itself_comes_back(axes):
    x = torch.zeros(BATCH, LENGTH, D_MODEL)
    assert axes(x, "batch length d_model", "x") is x
    assert axes(x, "batch length d_model") is x


def test_a_new_name_is_bound_at_first_sight_and_held(axes):
    axes(torch.zeros(BATCH, HEAD), "batch head", "a")
    assert axes["head"] == HEAD
    with refuses(
        ShapeError,
        "b: axis head has the size 4, but should have 3",
        'head = 3 was first seen in a "batch head"',
    ):
        axes(torch.zeros(BATCH, 4), "batch head", "b")


def test_a_given_size_is_said_to_be_given(axes):
    with refuses(
        ShapeError,
        "x: axis d_model has the size 7, but should have 12",
        "d_model = 12 was given as d_model=12",
    ):
        axes(torch.zeros(BATCH, LENGTH, 7), "batch length d_model", "x")


def test_without_a_name_the_message_speaks_of_a_tensor(axes):
    with refuses(ShapeError, "tensor: axis batch has the size 9, but should have 2"):
        axes(torch.zeros(9), "batch")


def test_another_number_of_axes(axes):
    with refuses(ShapeError, 'x has 2 axes, (2, 12), but "batch length d_model" names 3'):
        axes(torch.zeros(BATCH, D_MODEL), "batch length d_model", "x")


@pytest.mark.parametrize("given_first", [True, False])
def test_length_also_binds_query_and_key(given_first):
    axes = Axes(length=LENGTH) if given_first else Axes()
    if not given_first:
        axes(torch.zeros(LENGTH), "length", "positions")
    assert axes["query"] == axes["key"] == LENGTH
    where = "given as length=5" if given_first else 'first seen in positions "length"'
    with refuses(ShapeError, "axis key has the size 6, but should have 5", f"key = 5 was {where}"):
        axes(torch.zeros(LENGTH, 6), "query key", "map")


def test_query_and_key_may_differ_where_there_is_no_length():
    axes = Axes(query=4)
    axes(torch.zeros(4, 7), "query key")
    assert (axes["query"], axes["key"]) == (4, 7)


def test_a_group_is_the_product_and_works_out_its_one_unknown(axes):
    axes(torch.zeros(HEAD), "head")
    axes(torch.zeros(BATCH, D_MODEL), "batch (head d_head)", "h")
    assert axes["d_head"] == D_HEAD
    axes(torch.zeros(D_MODEL), "(d_head head)")
    with refuses(
        ShapeError,
        "v: axis (head d_head) has the size 15, but should have 12",
        'head = 3 was first seen in tensor "head"',
        'd_head = 4 was first seen in h "batch (head d_head)"',
    ):
        axes(torch.zeros(15), "(head d_head)", "v")


def test_a_group_with_two_unknowns_says_what_to_give(axes):
    with refuses(
        ShapeError, "h: axis (head d_head) = 12 has 2 unknown sizes, head and d_head; give all but one"
    ):
        axes(torch.zeros(D_MODEL), "(head d_head)", "h")


def test_a_group_that_does_not_divide(axes):
    axes(torch.zeros(HEAD), "head")
    with refuses(ShapeError, "h: axis (head d_head) has the size 10, which is not a positive multiple of 3"):
        axes(torch.zeros(10), "(head d_head)", "h")


def test_an_empty_axis_binds_nothing():
    with refuses(ShapeError, "x: axis batch has the size 0, which is not a positive multiple of 1"):
        Axes()(torch.zeros(0), "batch", "x")


def test_a_literal_one(axes):
    axes(torch.zeros(1, HEAD, LENGTH, LENGTH), "1 head query key")
    with refuses(ShapeError, "R: axis 1 has the size 2, but should have 1"):
        axes(torch.zeros(2, HEAD, LENGTH, LENGTH), "1 head query key", "R")


@pytest.mark.parametrize(
    ("pattern", "shape", "guess"),
    [
        ("batch length d_model", (BATCH, D_MODEL, LENGTH), "length and d_model look swapped"),
        ("batch length d_model", (LENGTH, BATCH, D_MODEL), "batch and length look swapped"),
        ("batch (head d_head) query", (BATCH, LENGTH, 12), "head d_head and query look swapped"),
        ("vocab d_model", (D_MODEL, 9), "vocab and d_model look swapped"),  # vocab is not known before
        ("d_model vocab", (9, D_MODEL), "d_model and vocab look swapped"),
    ],
)
def test_a_transposition_is_guessed(pattern, shape, guess):
    axes = Axes(batch=BATCH, length=LENGTH, d_model=D_MODEL, head=HEAD, d_head=D_HEAD)
    with refuses(ShapeError, guess):
        axes(torch.zeros(shape), pattern, "x")


@pytest.mark.parametrize("shape", [(BATCH, LENGTH, 7), (LENGTH, D_MODEL, BATCH), (BATCH, 12, 7)])
def test_no_transposition_is_guessed_where_exchanging_two_axes_mends_nothing(axes, shape):
    with pytest.raises(ShapeError) as error:
        axes(torch.zeros(shape), "batch length d_model", "x")
    assert "swapped" not in str(error.value)


@pytest.mark.parametrize("shape", [(12, 12), (12, 5)])
def test_no_transposition_is_guessed_where_sizes_are_missing(shape):
    with pytest.raises(ShapeError, match="2 unknown sizes") as error:
        Axes()(torch.zeros(shape), "(head d_head) batch", "h")
    assert "swapped" not in str(error.value)


def test_a_failed_check_leaves_no_trace(axes):
    before = repr(axes)
    with pytest.raises(ShapeError):
        axes(torch.zeros(HEAD, 7), "head d_model")  # head fits and is new, d_model does not fit
    assert repr(axes) == before
    axes(torch.zeros(11), "head")  # so head is still free
    assert axes["head"] == 11


def test_an_unknown_name_says_what_is_known(axes):
    with pytest.raises(KeyError, match="axis rank has no size yet; known are: batch=2, length=5"):
        axes["rank"]
    with pytest.raises(KeyError, match="known are: none"):
        Axes()["rank"]


@pytest.mark.parametrize("size", [0, -3, 2.0, True, "2", None])
def test_a_size_is_a_whole_number_of_at_least_one(size):
    with refuses(ValueError, f"batch is {size!r}, but must be a whole number of at least 1"):
        Axes(batch=size)


@pytest.mark.parametrize(
    "pattern", ["batch ... d_model", "batch 2 d_model", "batch (head d_head", "batch batch", "_ batch", "a-b"]
)
def test_an_unreadable_pattern_is_shown(axes, pattern):
    with pytest.raises(ValueError) as error:
        axes(torch.zeros(BATCH, LENGTH, D_MODEL), pattern, "x")
    assert f'cannot read the pattern "{pattern}"' in str(error.value)
    assert not isinstance(error.value, ShapeError), "the pattern is wrong, not the tensor"


def test_every_name_of_the_layer_is_in_the_glossary():
    names = "batch head query key length d_model d_head rank tile repeat vocab layer label beam"
    assert list(GLOSSARY) == names.split() and all(GLOSSARY.values())
