"""The engine of the checks: it compares kind, shape, dtype, values, in this order, and never raises."""

import math
import random
import signal
import sys
import threading
import time
import warnings
from collections import namedtuple
from types import ModuleType, SimpleNamespace

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from torch import nn

from synth_lib import checks
from synth_lib.checks import Verdict, check, engine, find, guard, progress, runner
from synth_lib.checks.compare import difference, short
from synth_lib.checks.exercise import Draw, Exercise, Mistake, Reads, RowsSumTo1, ZeroOutside


def _inputs(draw):
    sizes = draw.sizes("query key")
    return {"scores": draw.normal(sizes["query"], sizes["key"]), "scale": draw.integer(2, 5)}


def exercise(key, right, wrong=(), inputs=_inputs, returns="", **options):
    return Exercise(key, "a title", 5, "easy", inputs, returns, (right,), tuple(wrong), **options)


CLOCK = [0.0]  # what a test may put in the place of the engine's clock


def _slow_sum(result):
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "the answer's alarm is on"
    CLOCK[0] += 100
    if result.dim() != 2:
        raise ValueError("the result should have two axes")
    return result.sum().item()


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
        "99.11",
        lambda scores, scale: (scores * scale).tril().softmax(dim=-1),
        [
            Mistake(lambda scores, scale: (scores * scale) @ scores, "it multiplies.", "Products", RuntimeError),
            Mistake(lambda scores, scale: {}["key"], "it looks up a key.", "Names", "KeyError: 'key'"),
        ],
        returns="query key",
        inputs=lambda draw: {"scores": draw.normal(4, 5), "scale": draw.integer(2, 5)},
        properties=(RowsSumTo1(), Reads("scores", 0, 0)),
        example=lambda: {"scores": torch.zeros(1, 2), "scale": 1},
        name="weights",
    ),
    exercise(
        "99.12",
        lambda x, mask: x.cumsum(dim=0) * mask,
        inputs=lambda draw: {"x": draw.normal(5, 3), "mask": draw.normal(5, 3) > 0},
        returns="query d_model",
        properties=(ZeroOutside("mask"), Reads("x", 0, 0, earlier=True)),
    ),
    exercise("99.13", lambda scores, scale: scores.sigmoid(), forbidden=(checks.find, nn.Sigmoid.__call__, nn.Module)),
    exercise(
        "99.14",
        lambda scores, scale: scores * scale,
        [Mistake(lambda scores, scale: scores + scale, "it adds.", "Products")],
        measure=lambda result, scores, scale: _slow_sum(result),
        trials=1,
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
    module = ModuleType("synth_lib.checks.bank.chapter_99")
    module.EXERCISES = EXERCISES
    monkeypatch.setitem(sys.modules, module.__name__, module)


def verdict(key, answer, status, **options):
    result = check(key, answer, **options)
    assert isinstance(result, Verdict) and result.key == key
    assert result.status == status, result
    assert repr(result).removesuffix(f"\n\n{result.shown}") == f"Exercise {key}: {result.message}"
    return result.message


# --- right ---


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("99.1", lambda scores, scale: scale * scores),
        ("99.2", lambda scores, scale: np.int64(scores.numel() * scale)),
        ("99.3", lambda scores, scale: [scores.sum(), scale]),
        ("99.3", lambda scores, scale: namedtuple("Both", "sum scale")(scores.sum(), np.int32(scale))),
        ("99.5", lambda scores, scale: np.float64(scale / 3)),
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


class Liar(torch.Tensor):
    """It calls itself equal to everything."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        if function in (torch.isclose, torch.Tensor.isclose, torch.eq, torch.Tensor.eq):
            return torch.ones(arguments[0].shape, dtype=torch.bool)
        return super().__torch_function__(function, types, arguments, options or {})


def test_a_tensor_that_answers_for_itself_is_judged_by_what_it_holds():
    message = verdict("99.1", lambda scores, scale: (scores * scale + 1).as_subclass(Liar), "wrong")
    assert "values are not" in message
    assert verdict("99.1", lambda scores, scale: (scores * scale).as_subclass(Liar), "right") == "Right."


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
        ("99.1", lambda scores, scale: scores.numpy(), "a numpy array (ndarray), but should be a tensor of torch"),
        ("99.1", lambda scores, scale: "scores * scale", "a str"),
        ("99.2", lambda scores, scale: float(scores.numel() * scale), "a float"),
        ("99.2", lambda scores, scale: torch.tensor(scores.numel() * scale), "a Tensor"),
        ("99.2", lambda scores, scale: True, "a bool"),
        ("99.2", lambda scores, scale: np.bool_(True), "a bool, but should be an int"),
        ("99.2", lambda scores, scale: np.float64(scores.numel() * scale), "a float"),
        ("99.3", lambda scores, scale: (scores.sum(), scale, 1), "a tuple of 3"),
        ("99.3", lambda scores, scale: scores.sum(), "a Tensor"),
        ("99.3", lambda scores, scale: (scores.sum(), torch.tensor(scale)), "a Tensor"),
        ("99.4", lambda scores, scale: (scores.sum(), scale, 1), "a tuple of 3"),
        ("99.5", lambda scores, scale: 1, "an int"),
        ("99.6", lambda scores, scale: (scores > 0).tolist(), "a list of "),
    ],
)
def test_other_kind_is_refused(key, answer, kind):
    assert f"the result is {kind}" in verdict(key, answer, "wrong").replace("part 1: ", "")


class Always:
    def __eq__(self, other):
        return True


def generates(scores, scale):
    yield scores * scale


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda scores, scale: (scores * scale).numpy(), "a numpy array (ndarray)"),
        (lambda scores, scale: object(), "an object"),
        (lambda scores, scale: Always(), "an Always"),
        (lambda scores, scale: lambda: scores * scale, "a function (is it to be called?)"),
        (lambda scores, scale: map(torch.relu, scores), "a map (what it gives is not computed yet)"),
        (lambda scores, scale: nn.Linear(2, 3), "a Linear (a module: is it to be called?)"),
        (lambda scores, scale: nn.Linear, "a class (is an object of it wanted?)"),
        (lambda scores, scale: [object()], "a list of 1"),
        (generates, "a generator (is there a yield?)"),
    ],
)
def test_a_result_of_another_kind_is_told_before_anything_else(answer, kind):
    """That two generators differ, or two arrays cannot be compared, is no reason to suspect chance or constants."""
    message = verdict("99.1", answer, "wrong")
    assert message.startswith(f"Not yet: the result is {kind}, but should be a tensor"), message
    assert "another result" not in message and "It gives the same" not in message


def test_a_part_of_another_kind_is_told_before_anything_else():
    message = verdict("99.3", lambda scores, scale: (scores.sum(), object()), "wrong")
    assert "a scale: the result is an object, but should be an int" in message


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


def test_inputs_are_told_only_where_the_message_cannot_be_about_others():
    """The check of 12.5 asks for every number of columns, whatever is drawn."""

    def too_short_for_8(columns):
        return [0] * 6 + [1, 1] if columns == 8 else [1, 0, 0, 1] + [1] * (columns - 5) + [0]

    def stops_at_8(columns):
        return [1, 0, 0, 1] + [1] * (columns - 5) + [0][columns == 8]

    said = "Not yet: with 8 columns the mask has 2 tokens, but must have at least three."
    assert check("12.5", too_short_for_8).message == said
    assert "Inputs" not in check("12.5", stops_at_8).message
    assert "(Inputs: x (" in check("02.1", lambda x, W1, b1, W2, b2: x).message


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

    def inside_a_view(scores, scale):
        scores[0].mul_(scale)
        return scores

    def by_hardly_anything(scores, scale):
        scores *= 1.00001
        return scores * scale

    one, several = (by_hardly_anything, inside_a_view, in_place), (inside_a_list, inside_a_dict)
    for key, answer in [("99.1", answer) for answer in one] + [("99.8", answer) for answer in several]:
        assert "changes one of its inputs" in verdict(key, answer, "wrong")


@pytest.mark.parametrize("answer", [None, 3, "dense", torch.ones(2), [len]])
def test_what_is_no_function_is_told(answer):
    assert verdict("99.1", answer, "wrong").startswith("Pass the function itself")


def test_check_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    check("99.1", lambda scores, scale: scores)
    assert torch.equal(torch.get_rng_state(), state)


# --- code that does not end ---


def while_true(scores, scale):
    count = 0
    while True:
        count += 1


def catches_everything(scores, scale):
    while True:
        try:
            time.sleep(0.001)
        except:  # noqa: E722
            pass


def catches_exceptions(scores, scale):
    while True:
        try:
            scores = scores + 1
        except Exception:
            pass


def sleeps(scores, scale):
    time.sleep(60)


def prints_for_ever(scores, scale):
    while True:
        print("again")


@pytest.mark.parametrize(
    "answer", [while_true, catches_everything, catches_exceptions, sleeps, prints_for_ever], ids=lambda f: f.__name__
)
def test_code_that_does_not_end_is_stopped(answer, capsys):
    handler, threads, began = signal.getsignal(signal.SIGALRM), threading.active_count(), time.monotonic()
    message = verdict("99.1", answer, "wrong", seconds=1)
    assert time.monotonic() - began < 50
    assert message.startswith('Your code has not come to an end after 1 seconds, and was stopped at "')
    assert "(Inputs: scores (" in message and "Does every loop end?" in message
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert threading.active_count() == threads and sys.gettrace() is None
    assert len(capsys.readouterr().out) <= engine.PRINTED
    assert verdict("99.1", lambda scores, scale: scores * scale, "right") == "Right."


def test_the_longest_check_takes_ten_seconds():
    assert engine.SECONDS <= engine.SEARCH * engine.SECONDS <= 10


def test_only_what_is_over_time_is_stopped():
    """All calls of one check share the time; the next check has the whole time again."""

    def slow(scores, scale):
        time.sleep(0.8)
        return scores * scale

    for _ in range(2):
        assert verdict("99.1", slow, "right", seconds=4) == "Right."


def test_what_the_check_measures_is_not_in_the_time_of_the_answer(monkeypatch):
    """The right answer is right, and a mistake is named, however long it takes; an endless loop is stopped as ever."""
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: CLOCK[0]))
    assert verdict("99.14", lambda scores, scale: scale * scores, "right") == "Right."
    message = verdict("99.14", lambda scores, scale: scale + scores, "wrong")
    assert message == 'This looks like a known mistake: it adds. Read again: "Products".'
    assert "has not come to an end after 1 seconds" in verdict("99.14", while_true, "wrong", seconds=1)


def test_what_cannot_be_measured_is_said():
    message = verdict("99.14", lambda scores, scale: scores.sum(), "wrong")
    assert message.startswith("Not yet: the result should have two axes. (Inputs: scores (")
    assert verdict("99.14", lambda scores, scale: None, "wrong").startswith("Not yet: ")


def test_many_calls_share_the_time():
    def slow(scores, scale):
        time.sleep(0.45)
        return scores * scale

    assert "has not come to an end" in verdict("99.1", slow, "wrong", seconds=1)


def test_check_within_a_check_and_alarm_of_somebody_else():
    rung = []

    def nested(scores, scale):
        check("99.1", while_true, seconds=1)
        while True:
            pass

    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.5)
        assert "has not come to an end" in verdict("99.1", nested, "wrong", seconds=1)
        last = time.monotonic() + 60
        while not rung and time.monotonic() < last:
            time.sleep(0.01)
        assert rung, "the alarm that was set before the check is lost"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@pytest.mark.parametrize("answer", [while_true, catches_exceptions, prints_for_ever], ids=lambda f: f.__name__)
@pytest.mark.parametrize("where", ["another thread", "no timer signals"])
def test_code_that_does_not_end_is_stopped_without_signals(answer, where, monkeypatch):
    messages, threads = [], threading.active_count()
    work = lambda: messages.append(verdict("99.1", answer, "wrong", seconds=1))  # noqa: E731
    if where == "another thread":
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(100)
        assert not thread.is_alive()
    else:
        monkeypatch.delattr(signal, "setitimer")
        work()
    assert messages[0].startswith("Your code has not come to an end after 1 seconds")
    time.sleep(0.1)
    assert threading.active_count() == threads, "a thread is left"


def test_right_answer_in_another_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(check("99.1", lambda scores, scale: scores * scale)))
    thread.start()
    thread.join()
    assert verdicts[0].status == "right"


def test_several_threads_check_at_once(capsys):
    """Each answer prints, draws and sets torch for the whole process: they take turns, and all is as before."""
    verdicts, start = [], threading.Barrier(4)

    def right(scores, scale):
        print("scale")
        time.sleep(0.01)
        return scores * scale

    def work():
        start.wait()
        verdicts.append(check("99.1", right))

    state, stream, threads = torch.get_rng_state(), sys.stdout, [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.status for one in verdicts] == ["right"] * 4, verdicts
    assert len({one.message for one in verdicts}) == 1 and sys.stdout is stream
    assert torch.equal(torch.get_rng_state(), state) and capsys.readouterr().out == "scale\n" * 4


def test_late_stop_does_not_reach_the_code_behind():
    """Whatever the moment at which the time is over: TimeUp comes out of `within`, or nothing does."""
    for seconds in (0.0005, 0.001, 0.002):
        for way in (guard._by_alarm, guard._by_watcher):
            for _ in range(40):
                try:
                    assert way(seconds, lambda seconds=seconds: time.sleep(seconds) or "done") == "done"
                except guard.TimeUp:
                    pass
                sum(range(1000))
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def notebook(*cells):
    """The texts that the cells of a notebook give in a real kernel."""
    built = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(built, timeout=60, kernel_name="python3").execute()
    return ["".join(o.get("text", "") or o["data"]["text/plain"] for o in cell.outputs) for cell in built.cells]


def test_notebook_survives_code_that_does_not_end_and_knows_its_progress():
    *_, stopped, state, count = notebook(
        "from synth_lib import checks\nkept = 41",
        "def split_heads(features, head):\n    while True:\n        print('round')",
        "from synth_lib.checks import find\nweighted_sum = find('00.2').right[1]",
        "checks.check('00.1', split_heads, seconds=1)",
        "kept + 1",
        "checks.progress(seconds=1)",
    )
    assert "Exercise 00.1: Your code has not come to an end after 1 seconds" in stopped
    assert stopped.startswith("round\n") and len(stopped) < engine.PRINTED + 500
    assert state == "42"
    left = "00.1 (not right yet), 00.3 (its cell has not run)"
    assert count == f"Chapter 00: 1 of 3 exercises are right. Left: {left}."


# --- code that does more than its task ---


def test_print_is_let_through_and_told(capsys):
    def answer(scores, scale):
        print("scale", scale)
        return scores * scale

    message = verdict("99.1", answer, "right")
    assert message == (
        "Right. It also prints. A check calls it several times; you see what the first call printed. "
        "Take that out when you no longer need it."
    )
    assert capsys.readouterr().out == f"scale {_inputs(Draw(0))['scale']}\n"


def test_print_of_one_call_is_told_without_more(capsys):
    def answer(scores, scale):
        print("once")
        raise ValueError

    assert verdict("99.1", answer, "wrong").endswith(" It also prints; take that out when you no longer need it.")
    assert capsys.readouterr().out == "once\n"


def test_warning_is_told_once_and_is_no_print(capsys):
    def warns(scores, scale):
        warnings.warn("The first line.\nThe second line.", stacklevel=2)
        return scores * scale

    def prints_too(scores, scale):
        print("scale", scale)
        return warns(scores, scale)

    for answer in (warns, warns):  # the second check says it too
        assert verdict("99.1", answer, "right") == 'Right. A warning came with it: "The first line."'
    message = verdict("99.1", lambda scores, scale: nn.functional.softmax(scores), "wrong")
    assert message.count("Implicit dimension choice for softmax") == 1 and "prints" not in message
    assert capsys.readouterr().err == ""
    message = verdict("99.1", prints_too, "right")
    assert "It also prints." in message and message.endswith('A warning came with it: "The first line."')


def test_flood_is_cut_and_counted(capsys):
    def answer(scores, scale):
        print("x" * 10_000)
        print("warning " * 1000, file=sys.stderr)
        return scores + scale

    message = verdict("99.1", answer, "wrong")
    assert "it adds." in message and "It also prints 72008 characters; the first 2000 are shown." in message
    captured = capsys.readouterr()
    assert len(captured.out + captured.err) == engine.PRINTED


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda: torch.manual_seed(0), "the seed of torch"),
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype"),
        (lambda: torch.set_grad_enabled(False), "whether gradients are recorded"),
        pytest.param(
            lambda: torch.set_default_device("meta"),
            "the default device",
            marks=pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="torch 2.6 stops the answer itself"),
        ),
    ],
)
def test_changed_setting_of_torch_is_told_and_undone(change, told):
    def answer(scores, scale):
        result = scores * scale
        change()
        return result

    def stops(scores, scale):
        change()
        raise ValueError

    state = torch.get_rng_state()
    message = verdict("99.1", answer, "wrong")
    assert message == f"Your code changes {told}, for the whole notebook. Leave it as it was."
    assert "with ValueError" in verdict("99.1", stops, "wrong")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
    assert torch.get_default_device() == torch.device("cpu") and torch.ones(1).device.type == "cpu"


def test_what_is_set_for_a_block_only_is_allowed():
    def answer(scores, scale):
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("meta"):
            torch.manual_seed(scale)
        return scores * scale

    assert verdict("99.1", answer, "right") == "Right."
    torch.set_grad_enabled(False)
    try:
        assert verdict("99.1", lambda scores, scale: scores * scale, "right") == "Right."
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_own_generator_is_allowed():
    def answer(scores, scale):
        return scores * scale + 0 * torch.rand(1, generator=torch.Generator().manual_seed(3))

    verdict("99.1", answer, "right")


def counting(scores, scale, calls=[]):  # noqa: B006
    calls.append(scale)
    return scores * scale + (len(calls) > 3)


@pytest.mark.parametrize(
    "answer",
    [
        counting,
        lambda scores, scale: scores * scale + torch.rand(()),
        lambda scores, scale: scores * scale * random.random(),
        lambda scores, scale: nn.Dropout(0.5)(scores),
    ],
    ids=["counts", "torch", "random", "dropout"],
)
def test_result_that_depends_on_earlier_calls_or_chance_is_told(answer):
    message = verdict("99.1", answer, "wrong")
    assert message.startswith("Your code gives another result when it is called again with the same inputs.")


def test_result_that_is_kept_by_the_sizes_of_the_inputs_is_refused():
    """An answer is called once more with other numbers of sizes that it has seen."""
    kept = {}

    def answer(scores, scale):
        return kept.setdefault((scores.shape, scale), scores * scale)

    message = verdict("99.1", answer, "wrong")
    assert message.startswith("Your code is right at first, and no longer when it is called again with other numbers")

    by_number = {}
    verdict("99.1", lambda scores, scale: by_number.setdefault(scores[0, 0].item(), scores * scale), "right")


def test_words_under_a_name_and_parts_of_a_named_result_are_told_by_their_names():
    words = difference({"a row": "too small"}, {"a row": "right"})
    assert words == "a row: 'too small', and that is not what is expected."
    assert difference(3, None) == "the result is an int, but should be None."
    parts = difference({"a row": (4, 1)}, {"a row": (4, 2)}, "a, b")
    assert parts == "a row: b: the result 1 is not right. (Right: a.)"
    assert difference("dense", "random") == "the text returned is 'dense', and that is not what is expected."



def test_result_that_is_overwritten_by_a_later_call_is_judged_as_it_was():
    buffer = torch.empty(1000)

    def answer(scores, scale):
        result = buffer[: scores.numel()].view(scores.shape)
        return torch.mul(scores, scale, out=result)

    verdict("99.1", answer, "right")


def test_result_that_ignores_the_inputs_is_told():
    fixed = find("99.1").right[0](**_inputs(Draw(0)))
    assert "It gives the same for other inputs" in verdict("99.1", lambda scores, scale: fixed, "wrong")
    assert "It gives the same" not in verdict("99.1", lambda scores, scale: scores - scale, "wrong")
    assert "None (does it end with return?)" in (none := verdict("99.1", lambda scores, scale: None, "wrong"))
    assert "It gives the same" not in none


@pytest.mark.parametrize("error", [GeneratorExit, SystemExit, MemoryError, BaseException])
def test_what_is_no_exception_is_a_verdict_too(error):
    def answer(scores, scale):
        raise error

    assert f"with {error.__name__}" in verdict("99.1", answer, "wrong")


def test_odd_results_are_refused_without_an_error():
    inner = []
    inner.append(inner)
    for value in (inner, 10**10_000, iter([]), torch.return_types.max((torch.ones(2), torch.ones(2))), nn.Linear):
        for key in ("99.1", "99.2", "99.3", "99.4"):
            assert verdict(key, lambda scores, scale, value=value: value, "wrong")


# --- mistakes that stop ---


def test_mistake_that_stops_is_named_after_the_error():
    message = verdict("99.11", lambda scores, scale: torch.matmul(scores, scores), "wrong")
    assert "Your code stops at " in message and message.endswith(
        'This looks like a known mistake: it multiplies. Read again: "Products".'
    )
    assert "it looks up a key." in verdict("99.11", lambda scores, scale: dict(a=1)["key"], "wrong")
    other = verdict("99.11", lambda scores, scale: dict(a=1)["other"], "wrong")
    assert "with KeyError: 'other'." in other and "This looks like" not in other


def test_an_error_is_known_by_its_class_its_parents_or_its_text():
    class Special(KeyError):
        def __str__(self):
            raise ValueError

    result = runner.failure(Special("key"))
    assert result.text == "Special: (the error cannot be shown)" and result.bases[:2] == ("Special", "KeyError")
    known = {KeyError: True, Special: True, ValueError: False, "Special: (the": True, "Other": False, None: False}
    for raises, is_known in known.items():
        assert engine._raises(Mistake(None, "", "", raises), result) is is_known


# --- other inputs, other limits ---


def test_a_seed_gives_other_inputs_and_the_same_judgement():
    seen = []

    def answer(scores, scale):
        seen.append(scores)
        return scores + scale

    messages = {verdict("99.1", answer, "wrong", seed=seed) for seed in (0, 1000)}
    assert messages == {'This looks like a known mistake: it adds. Read again: "Products".'}
    wanted = [_inputs(Draw(seed))["scores"] for seed in (0, 1, 2, 0, 1000, 1001, 1002, 1000)]
    assert len(seen) == len(wanted) and all(map(torch.equal, seen, wanted))


# --- what an unknown result is told ---


def test_nan_is_counted_and_placed():
    def answer(scores, scale):
        result = (scores * scale).tril().softmax(dim=-1)
        result[2, 1] = float("nan")
        return result

    message = verdict("99.11", answer, "wrong")
    assert message.startswith("Not yet: 1 of 20 values are NaN or infinite, the first, NaN, at [2, 1] (query key).")


def test_broken_properties_are_told():
    right = find("99.11").right[0]
    half = verdict("99.11", lambda scores, scale: right(scores, scale) / 2, "wrong")
    assert half.startswith("Not yet: the row at [0] sums to 0.5, but should sum to 1. The shape is right, but ")
    negative = verdict("99.11", lambda scores, scale: right(scores, scale) + torch.tensor([1, -1, 0, 0, 0]), "wrong")
    assert "has a negative number" in negative
    mixed = verdict("99.11", lambda scores, scale: right(scores + scores[:1], scale), "wrong")
    assert "the result of token 1 changes with token 0 of scores, but should depend on its own token alone." in mixed


def test_causal_and_masked_results_are_told():
    right = find("99.12").right[0]
    later = verdict("99.12", lambda x, mask: right(x + x.sum(dim=0), mask), "wrong")
    assert "of x, but should depend on no later one." in later
    earlier = verdict("99.12", lambda x, mask: right(x.cumsum(dim=0), mask), "wrong")
    assert "should depend" not in earlier and "the shape is right" in earlier
    assert "the result is not 0, though mask is False there" in verdict("99.12", lambda x, mask: x.cumsum(0), "wrong")


def test_right_numbers_in_other_places_are_told():
    message = verdict("99.1", lambda scores, scale: (scores * scale).flip(0), "wrong")
    assert "the numbers are right, but in other positions, the first at [0, 0]" in message


def test_nan_is_told_in_a_part_of_a_result_too():
    message = difference({"Q": torch.tensor([1.0, torch.nan])}, {"Q": torch.ones(2)}, "key")
    assert message == "Q: 1 of 2 values are NaN or infinite, the first, NaN, at [1] (key)."


def test_a_tensor_without_an_axis_has_no_first_place():
    message = difference(torch.tensor(1.5), torch.tensor(2.5), "loss")
    assert message == "the shape is right, but the number is not (loss)."


def test_a_number_that_should_be_0_may_be_off_by_what_rounding_leaves():
    assert difference(0.1 + 0.2 - 0.3, 0.0) is None  # 5.6e-17
    for wrong in (1e-6, -1e-6, math.nan, math.inf):
        assert difference(wrong, 0.0) == f"the result {short(wrong)} is not right."


# --- side by side ---


def test_small_example_is_shown_beside_the_expected_result():
    right = find("99.11").right[0]
    shown = check("99.11", lambda scores, scale: right(scores, scale) / 2).shown
    assert shown.splitlines() == [
        "A small example: scores [[0, 0]], scale 1",
        "yours              expected",
        "[0] [0.25, 0.25]   [0] [0.5, 0.5]",
    ]
    assert repr(check("99.11", lambda scores, scale: right(scores, scale) / 2)).endswith(shown)


def test_nothing_is_shown_for_other_verdicts_or_exercises():
    assert check("99.11", find("99.11").right[0]).shown == ""
    assert check("99.11", lambda scores, scale: 1 / 0).shown == ""
    assert check("99.1", lambda scores, scale: scores).shown == ""


# --- the library's own answer ---


class Module:
    def __init__(self):
        self.name = "a class of the reader, called like a forbidden one"


def test_call_of_what_is_forbidden_is_told_under_any_name():
    alias = nn.Module

    def hollow(scores, scale):
        alias()
        return scores.sigmoid()

    class Child(alias):
        def forward(self, scores):
            return scores.sigmoid()

    message = verdict("99.13", hollow, "wrong")
    assert message == "Your code calls the library's Module, which does the exercise for you. Work it out yourself."
    assert "calls the library's Module" in verdict("99.13", lambda scores, scale: Child()(scores), "wrong")
    assert verdict("99.13", lambda scores, scale: (Module(), scores.sigmoid())[1], "right") == "Right."
    assert sys.getprofile() is None


# --- progress ---


def test_progress_counts_and_says_what_is_left():
    names = {"split_heads": find("00.1").right[1], "something": 3}
    left = "00.2 (its cell has not run), 00.3 (its cell has not run)"
    assert repr(progress(names)) == f"Chapter 00: 1 of 3 exercises are right. Left: {left}."
    names["weighted_sum"] = blank
    assert [one.status for one in progress(names).verdicts] == ["right", "wrong", "missing"]

    def weighted_sum(weights, value):
        raise NotImplementedError

    module = ModuleType("a_notebook")
    module.split_heads, module.weighted_sum = find("00.1").right[0], weighted_sum
    module.hide_the_trap = find("00.3").right[0]
    assert repr(progress(module)) == "Chapter 00: 2 of 3 exercises are right. Left: 00.2 (not answered yet)."
    module.weighted_sum = find("00.2").right[0]
    assert repr(progress(module)) == "Chapter 00: 3 of 3 exercises are right."
    assert progress(module).right == 3


def test_progress_of_two_chapters_and_of_none(capsys):
    def loud(features, head):
        print("loud")
        return features

    names = {"split_heads": loud, "bigram_loss": find("13.1").right[0]}
    told = repr(progress(names)).splitlines()
    assert [line.split(":")[0] for line in told] == ["Chapter 00", "Chapter 13"]
    assert ": 0 of " in told[0] and ": 1 of " in told[1]
    assert capsys.readouterr().out == ""
    assert repr(progress({})).startswith("No exercise is found here")
    assert progress().verdicts == ()  # this is no notebook


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
    import synth_lib.checks.bank

    (tmp_path / "chapter_97.py").write_text("import a_library_that_is_missing\n", encoding="utf8")
    monkeypatch.setattr(synth_lib.checks.bank, "__path__", [*synth_lib.checks.bank.__path__, str(tmp_path)])
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


# --- a bank that was found to name the wrong mistake ---


def table(value):
    return lambda score, x: torch.full((len(x), len(x)), value)


def largest(jacobian):
    return jacobian.abs().amax(dim=(1, 3))


def all_of_a_row(score, x):
    place = torch.arange(len(x))[:, None]
    changes = [(score(x + (place == n)) - score(x)).abs() > 1e-5 for n in range(len(x))]
    return torch.stack([change.all(dim=1) for change in changes], dim=1)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (table(False), "every entry is False"),
        (table(True), "every entry is True"),
        (lambda score, x: torch.eye(len(x)) > 0, "this is the diagonal"),
        (all_of_a_row, "a row counts only if all of its numbers change"),
        (
            lambda score, x: largest(torch.autograd.functional.jacobian(lambda z: score(z).softmax(-1), x)) > 1e-5,
            "the weights are measured, not the scores",
        ),
        (
            lambda score, x: largest(torch.autograd.functional.jacobian(score, x)) > 0,
            "differences or derivatives as small as rounding",
        ),
    ],
)
def test_the_table_of_dependence_is_refused_for_what_it_is(answer, says):
    assert says in verdict("02.5", answer, "wrong")


def test_the_cost_of_a_layer_with_one_bias_less_is_named():
    right = find("02.4").right[0]

    def without_one(batch, length, max_length, d_model, head):
        parameters, multiply_adds = right(batch, length, max_length, d_model, head)
        return parameters - d_model, multiply_adds

    assert "one bias of size d_model is missing" in verdict("02.4", without_one, "wrong")
