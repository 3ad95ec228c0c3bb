"""The engine of the checks: it compares kind, shape, dtype, values, in this order, and never raises."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from synth_lib.checks import Draw, Exercise, Mistake, Verdict, check, find


def _inputs(draw):
    sizes = draw.sizes("query key")
    return {"scores": draw.normal(sizes["query"], sizes["key"]), "scale": draw.integer(2, 5)}


def exercise(key, right, wrong=(), inputs=_inputs, returns="", **options):
    return Exercise(key, "a title", 5, "easy", inputs, returns, (right,), tuple(wrong), **options)


NOT_ANSWERED = "Not answered yet: the line raise NotImplementedError is reached."
EXERCISES = [
    exercise(
        "99.1",
        lambda scores, scale: scores * scale,
        [
            Mistake(lambda scores, scale: scores + scale, "it adds.", "Products"),
            Mistake(lambda scores, scale: (scores * scale).T, "it is transposed.", "Axes"),
            Mistake(lambda scores, scale: scores / 0 * float("nan"), "it divides by zero.", "Products"),
        ],
        returns="query key",
    ),
    exercise("99.2", lambda scores, scale: scores.numel() * scale),
    exercise("99.3", lambda scores, scale: (scores.sum(), scale), returns="a sum, a scale"),
    exercise("99.4", lambda scores, scale: {"sum": scores.sum(), "scale": scale}),
    exercise("99.5", lambda scores, scale: scale / 3),
    exercise("99.6", lambda scores, scale: scores > 0),
    exercise(  # a row of -inf gives NaN: an exercise may ask for that
        "99.7", lambda scores, scale: torch.where(scores > 0, scores, float("nan"))
    ),
    exercise(
        "99.8",
        lambda rows, options: sum(rows) * options["scale"],
        inputs=lambda draw: {"rows": [draw.normal(3), draw.normal(3)], "options": {"scale": draw.normal(1)}},
    ),
    exercise(
        "99.9",
        lambda: nn.Linear(2, 3),
        inputs=lambda draw: {},
        run=lambda answer: tuple(answer().weight.shape),
    ),
]


@pytest.fixture(autouse=True)
def chapter(monkeypatch):
    """A chapter 99 that only these tests know."""
    module = ModuleType("synth_lib.exercises.chapter_99")
    module.EXERCISES = EXERCISES
    monkeypatch.setitem(sys.modules, module.__name__, module)


def verdict(key, answer, status):
    result = check(key, answer)
    assert isinstance(result, Verdict) and result.key == key
    assert result.status == status, result
    assert repr(result) == f"Exercise {key}: {result.message}"
    return result.message


# --- right ---


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("99.1", lambda scores, scale: scale * scores),
        ("99.1", lambda scores, scale: nn.Parameter(scores * scale)),
        ("99.1", lambda scores, scale: (scores * scale).requires_grad_()),
        ("99.1", lambda scores, scale: (scores.T.contiguous() * scale).T),
        ("99.1", lambda scores, scale: scores * scale + 1e-7),
        ("99.2", lambda scores, scale: scale * scores.shape[0] * scores.shape[1]),
        ("99.3", lambda scores, scale: (sum(scores.flatten()), scale)),
        ("99.4", lambda scores, scale: {"scale": scale, "sum": scores.sum()}),
        ("99.5", lambda scores, scale: scale * (1 / 3)),
        ("99.6", lambda scores, scale: ~(scores <= 0)),
        ("99.7", lambda scores, scale: scores.masked_fill(scores <= 0, float("nan"))),
        ("99.8", lambda rows, options: options["scale"] * (rows[0] + rows[1])),
        ("99.9", lambda: nn.Linear(2, 3, bias=False)),
    ],
)
def test_right(key, answer):
    assert verdict(key, answer, "right") == "Right."


def test_not_answered():
    def blank(scores, scale):
        raise NotImplementedError

    assert verdict("99.1", blank, "not answered") == NOT_ANSWERED


def test_module_without_forward_is_an_answer_that_stops():
    """torch raises NotImplementedError too, with a message; it must not be taken for a blank."""
    message = verdict("99.1", lambda scores, scale: nn.Module()(scores), "wrong")
    assert "NotImplementedError" in message


# --- kind, shape, dtype, values ---


@pytest.mark.parametrize(
    "answer",
    [
        lambda scores, scale: (scores * scale)[None],
        lambda scores, scale: (scores * scale)[:1],
        lambda scores, scale: (scores * scale)[:, :1],
        lambda scores, scale: (scores * scale).mean(),
        lambda scores, scale: (scores * scale).flatten(),
        lambda scores, scale: torch.empty(0),
    ],
)
def test_shape_that_would_broadcast_is_refused(answer):
    message = verdict("99.1", answer, "wrong")
    assert message.startswith("Not yet: the shape is (") and "but should be (" in message
    assert "(query key)" in message and "Inputs: scores (" in message


def test_constant_inputs_do_not_let_a_broadcast_pass():
    """Even where all values agree, another shape is another answer."""
    flat = exercise("99.10", lambda: torch.ones(3, 2), inputs=lambda draw: {})
    EXERCISES.append(flat)
    try:
        assert "the shape is (3, 1)" in verdict("99.10", lambda: torch.ones(3, 1), "wrong")
    finally:
        EXERCISES.remove(flat)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_other_dtype_is_refused(dtype):
    message = verdict("99.1", lambda scores, scale: (scores * scale).to(dtype), "wrong")
    assert str(dtype) in message and "torch.float32" in message


def test_other_values_are_counted_and_placed_but_not_told():
    def answer(scores, scale):
        result = scores * scale
        result[1, 0] += 1
        return result

    message = verdict("99.1", answer, "wrong")
    assert "the shape is right, but 1 of " in message and "the first at [1, 0] (query key)" in message


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0])
def test_nan_inf_and_zeros_are_refused(number):
    verdict("99.1", lambda scores, scale: torch.full_like(scores, number), "wrong")
    verdict("99.5", lambda scores, scale: number, "wrong")


def test_nan_in_one_place_is_refused():
    def answer(scores, scale):
        result = scores * scale
        result[0, 1] = float("nan")
        return result

    assert "1 of " in verdict("99.1", answer, "wrong")


def test_nan_where_nan_is_right_but_no_further():
    verdict("99.7", lambda scores, scale: torch.full_like(scores, float("nan")), "wrong")
    verdict("99.7", lambda scores, scale: scores, "wrong")


@pytest.mark.parametrize(
    ("key", "answer", "kind"),
    [
        ("99.1", lambda scores, scale: None, "None (does it end with return?)"),
        ("99.1", lambda scores, scale: (scores * scale).tolist(), "a list of "),
        ("99.1", lambda scores, scale: (scores * scale, scores), "a tuple of 2"),
        ("99.1", lambda scores, scale: (scores * scale).numpy(), "a ndarray"),
        ("99.1", lambda scores, scale: "scores * scale", "a str"),
        ("99.2", lambda scores, scale: float(scores.numel() * scale), "a float"),
        ("99.2", lambda scores, scale: torch.tensor(scores.numel() * scale), "a Tensor"),
        ("99.2", lambda scores, scale: True, "a bool"),
        ("99.3", lambda scores, scale: [scores.sum(), scale], "a list of 2"),
        ("99.3", lambda scores, scale: (scores.sum(), scale, 1), "a tuple of 3"),
        ("99.3", lambda scores, scale: scores.sum(), "a Tensor"),
        ("99.3", lambda scores, scale: (scores.sum(), torch.tensor(scale)), "a Tensor"),
        ("99.4", lambda scores, scale: (scores.sum(), scale), "a tuple of 2"),
        ("99.5", lambda scores, scale: 1, "an int"),
        ("99.6", lambda scores, scale: (scores > 0).tolist(), "a list of "),
    ],
)
def test_other_kind_is_refused(key, answer, kind):
    assert f"the result is {kind}" in verdict(key, answer, "wrong").replace("part 1: ", "")


@pytest.mark.parametrize("names", [{"sum": 0, "scales": 0}, {"sum": 0, 1: 0}], ids=["other", "mixed"])
def test_other_names_in_a_dict_are_refused(names):
    assert "names" in verdict("99.4", lambda scores, scale: names, "wrong")


def test_wrong_part_of_a_tuple_is_named():
    message = verdict("99.3", lambda scores, scale: (scores.sum(), scale + 1), "wrong")
    assert "a scale: " in message and "(Right: a sum.)" in message
    assert "a sum: the shape" in verdict("99.3", lambda scores, scale: (scores.sum(dim=0), scale), "wrong")


@pytest.mark.parametrize(
    "answer",
    [
        lambda scores, scale: (scores * scale).to("meta"),
        lambda scores, scale: (scores * scale).to_sparse(),
    ],
    ids=["no data", "sparse"],
)
def test_tensor_that_cannot_be_compared_is_refused(answer):
    verdict("99.1", answer, "wrong")


# --- known mistakes ---


def test_known_mistake_is_named_with_its_section():
    message = verdict("99.1", lambda scores, scale: scale + scores, "wrong")
    assert message == 'This looks like a known mistake: it adds. Read again: "Products".'


def test_known_mistake_of_another_shape_is_named():
    assert "it is transposed." in verdict("99.1", lambda scores, scale: scale * scores.T, "wrong")


def test_known_mistake_with_nan_is_named():
    answer = lambda scores, scale: scores + float("nan")  # noqa: E731
    assert "it divides by zero." in verdict("99.1", answer, "wrong")


def test_mistake_on_some_inputs_only_is_not_named():
    def answer(scores, scale):
        return scores + scale if scores.shape == first else scores * scale

    first, *others = [_inputs(Draw(trial))["scores"].shape for trial in range(3)]
    assert first not in others, "the trials do not tell the two apart"
    assert verdict("99.1", answer, "wrong").startswith("Not yet: ")


# --- code that misbehaves ---


def test_error_is_told_with_the_sizes_of_the_inputs():
    def answer(scores, scale):
        doubled = scores + scores
        return doubled @ scores

    message = verdict("99.1", answer, "wrong")
    assert message.startswith('Your code stops at "return doubled @ scores" with RuntimeError: ')
    assert "scores (" in message


@pytest.mark.parametrize(
    "answer",
    [
        lambda scores, scale: undefined,  # noqa: F821
        lambda scores, scale: [][0],
    ],
)
def test_any_error_is_a_verdict(answer):
    assert "Your code stops at " in verdict("99.1", answer, "wrong")


@pytest.mark.parametrize("answer", [lambda: None, lambda scores: scores, lambda scores, factor: scores * factor])
def test_changed_arguments_are_told_by_name(answer):
    message = verdict("99.1", answer, "wrong")
    assert message == "Keep the arguments as they were, with their names: scores, scale."


def test_a_long_error_is_cut():
    def answer(scores, scale):
        raise ValueError("x" * 5000)

    assert len(verdict("99.1", answer, "wrong")) < 600


def test_endless_recursion_is_a_verdict():
    def answer(scores, scale):
        return answer(scores, scale)

    assert "RecursionError" in verdict("99.1", answer, "wrong")


def test_interrupt_goes_through():
    def answer(scores, scale):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("99.1", answer)


def test_changed_input_is_told():
    def in_place(scores, scale):
        scores *= scale
        return scores

    def inside_a_list(rows, options):
        rows.append(rows[0])
        return (rows[0] + rows[1]) * options["scale"]

    def inside_a_dict(rows, options):
        options["scale"] += 1
        return sum(rows) * (options["scale"] - 1)

    for key, answer in (("99.1", in_place), ("99.8", inside_a_list), ("99.8", inside_a_dict)):
        assert "changes one of its inputs" in verdict(key, answer, "wrong")


@pytest.mark.parametrize("answer", [None, 3, "dense", torch.ones(2), [len]])
def test_what_is_no_function_is_told(answer):
    assert verdict("99.1", answer, "wrong").startswith("Pass the function itself")


def test_check_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    check("99.1", lambda scores, scale: scores)
    assert torch.equal(torch.get_rng_state(), state)


# --- keys and draws ---


@pytest.mark.parametrize("key", ["99.77", "99", "98.1", "", "no exercise", 99.1, None])
def test_unknown_key_is_an_error_of_the_author(key):
    if key == 99.1:  # a number instead of a text: chapter 99 has it, but as text
        key = 99.77
    with pytest.raises(ValueError, match="there is no exercise"):
        find(key)


def test_unknown_key_lists_the_exercises_of_its_chapter():
    with pytest.raises(ValueError, match=r'there is no exercise "99\.77"; chapter 99 has 99\.1, 99\.2, '):
        check("99.77", len)


def test_chapter_that_cannot_be_imported_is_not_hidden(monkeypatch, tmp_path):
    """A missing library is another problem than a missing chapter."""
    import synth_lib.exercises

    (tmp_path / "chapter_97.py").write_text("import a_library_that_is_missing\n", encoding="utf8")
    monkeypatch.setattr(synth_lib.exercises, "__path__", [*synth_lib.exercises.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_missing"):
        find("97.1")


@pytest.mark.parametrize("seed", range(30))
def test_draw_gives_different_sizes_and_products(seed):
    sizes = Draw(seed).sizes("batch head d_head length")
    assert sizes["d_model"] == sizes["head"] * sizes["d_head"]
    assert len(set(sizes.values())) == 5 and min(sizes.values()) >= 2
    sizes = Draw(seed).sizes("batch tile repeat", low=3, high=9)
    assert sizes["length"] == sizes["tile"] * sizes["repeat"] and len(set(sizes.values())) == 4


def test_draw_repeats_itself_and_avoids_zero():
    one, two, other = Draw(1), Draw(1), Draw(2)
    assert one.sizes("query key rank") == two.sizes("query key rank")
    assert torch.equal(one.normal(40, 50), numbers := two.normal(40, 50))
    assert not torch.equal(numbers, other.normal(40, 50))
    assert (numbers.abs() >= 0.1).all() and numbers.dtype == torch.float32
    assert {Draw(seed).integer(1, 3) for seed in range(30)} == {1, 2, 3}


@pytest.mark.parametrize("status", ["right", "wrong", "not answered"])
def test_points_are_lost_in_nbgrader_unless_the_answer_is_right(monkeypatch, status):
    """nbgrader takes a cell's points away only if the cell raises; a verdict that is printed would keep them."""
    answers = {"right": find("00.1").right[0], "wrong": lambda features, head: features, "not answered": blank}
    assert check("00.1", answers[status]).status == status
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    if status == "right":
        assert check("00.1", answers[status]).status == "right"
    else:
        with pytest.raises(AssertionError, match="Exercise 00.1"):
            check("00.1", answers[status])


def blank(features, head):
    raise NotImplementedError
