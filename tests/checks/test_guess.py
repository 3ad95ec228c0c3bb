"""A prediction beside what came out: nothing that a reader writes can stop the lesson."""

import pytest

from synth_lib.checks import compare_guess


def test_guess_and_outcome_stand_side_by_side(capsys):
    compare_guess({"Dense": True, "Random": None, "loss": 2.5}, {"Dense": False, "Random": True, "loss": "1.9"})
    assert capsys.readouterr().out.splitlines() == [
        "        you said  came out",
        "Dense   yes       no",
        "Random  -         yes",
        "loss    2.5       1.9",
    ]


@pytest.mark.parametrize("guess", [None, {}, 3, ["Dense"], {"Dense": None}])
def test_what_is_not_written_is_a_dash(guess, capsys):
    compare_guess(guess, {"Dense": 1})
    assert capsys.readouterr().out == "       you said  came out\nDense  -         1\n"


def test_a_name_too_many_is_said(capsys):
    compare_guess({"dense": 1}, {"Dense": 1})
    assert capsys.readouterr().out.splitlines()[-1] == "not asked for: dense"
