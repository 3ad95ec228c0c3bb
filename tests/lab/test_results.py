"""The numbers that docs/train.md prints are those of the records in data/results."""

import json
import re
from pathlib import Path
from statistics import mean

import pytest

from synth_lib.lab.runner import read_record
from synth_lib.lab.suites import MAIN, VARIANTS, WIDER
from synth_lib.lab.tuning import settled
from synth_lib.text import baselines
from synth_lib.text.corpora import DATA

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "train.md").read_text(encoding="utf8")
PUBLISHED = {"1.88", "1.4697"}  # by nanoGPT's README: no record of ours


def losses_of(name, question, metric="test_loss"):
    """{variant: the test loss of each seed}."""
    found = {}
    for run in read_record(DATA / "results" / f"{name}.jsonl")[1]:
        if run["question"] == question and run["status"] == "finished":
            found.setdefault(run["variant"], []).append(run["metrics"][metric])
    return found


def speed(name, score):
    record = json.loads((DATA / "results" / f"{name}.json").read_text(encoding="utf8"))
    return next(row["faster_than_sdpa"] for row in record["train"] if row["score"] == score)


def sentences():
    """What the page says with numbers. Where a record has grown, the assertion shows what to write now."""
    final, counted = losses_of("nanogpt", "final"), losses_of("nanogpt", "baseline")
    whole, longer = (
        {name: f"{name} {mean(losses):.2f} ({len(losses)} seeds)" for name, losses in found.items()}
        for found in (final, losses_of("longer", "final"))
    )
    live = losses_of("live", "live")
    bleu = losses_of("tatoeba", "final", "bleu")
    some = [f"{name} {mean(bleu[name]):.1f} ({len(bleu[name])} seeds)" for name in ("Vanilla", "Random", "Dense")]
    copied = losses_of("tatoeba", "baseline", "bleu")["copy nearest"][0]
    return [
        f"Vanilla {live['Vanilla'][0]:.2f}, Factorized Random {live['Factorized Random'][0]:.2f}",
        f"{whole['Random']}, {whole['Vanilla']}, {whole['Dense']}",
        f"counting five characters {counted['6-gram'][0]:.3f}",
        f"{longer['Random']}, {longer['Dense']}, {longer['Vanilla']}. Most of the lead went",
        f"{', '.join(some)}, copying the nearest sentence {copied:.1f}",
        f"{speed('speed-h200', 'random'):.2f} times as fast on an H200",
        f"{speed('speed-cpu', 'random'):.2f} times on one CPU core",
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(7))
def test_the_page_says_what_the_records_say(number):
    assert sentences()[number] in " ".join(PAGE.split())


def test_the_page_has_no_other_number_with_a_point():
    told = set(re.findall(r"\d+\.\d+", " ".join(sentences()))) | PUBLISHED
    assert set(re.findall(r"\d+\.\d+", PAGE)) <= told


def test_random_is_lower_than_vanilla_with_every_seed_and_behind_counting_as_the_page_says():
    final, counted = losses_of("nanogpt", "final"), losses_of("nanogpt", "baseline")
    assert max(final["Random"]) < min(final["Vanilla"]) and min(final["Random"]) > counted["6-gram"][0]
    assert max(final["Dense"]) > min(final["Vanilla"]) and min(final["Dense"]) < max(final["Vanilla"])


def test_tuned_counting_is_chosen_inside_its_grid_and_below_every_recorded_model():
    _, runs = read_record(DATA / "results" / "nanogpt.jsonl")
    (chosen,) = (run["metrics"] for run in runs if run["variant"] == "tuned counting")
    assert baselines.ORDERS[0] < chosen["order"] < baselines.ORDERS[-1]
    assert chosen["extra"] < baselines.EXTRA[-1] and 0 < chosen["per_follower"] < baselines.PER_FOLLOWER[-1]
    for name in ("nanogpt", "longer"):
        assert min(map(min, losses_of(name, "final").values())) > chosen["test_loss"]


def test_most_of_the_lead_goes_with_more_steps_as_the_page_says():
    short, long = losses_of("nanogpt", "final"), losses_of("longer", "final")
    before, after = (mean(losses["Vanilla"]) - mean(losses["Random"]) for losses in (short, long))
    assert 0 < after < before / 2 and max(long["Random"]) < min(long["Vanilla"])


def test_none_of_the_three_had_settled_as_the_page_says():
    for name, number in {"nanogpt": 15, "longer": 9}.items():
        _, runs = read_record(DATA / "results" / f"{name}.jsonl")
        curves = [run["curve"] for run in runs if run["question"] == "final" and run["variant"] in MAIN]
        assert len(curves) == number and not any(map(settled, curves))


def test_the_grammar_tells_the_three_not_apart_as_chapter_13_says():
    """Each makes an error in fewer than one sentence of a hundred, and no one is above another with every seed."""
    exact = {}
    for run in read_record(DATA / "results" / "grammar.jsonl")[1]:
        if run["question"] == "final" and run["variant"] in MAIN:
            exact.setdefault(run["variant"], []).append(run["metrics"]["exact_match"])
    assert set(exact) == set(MAIN) and min(map(len, exact.values())) >= 3 and min(map(min, exact.values())) > 0.99
    for name in ("Random", "Dense"):
        assert min(exact[name]) <= max(exact["Vanilla"]) and min(exact["Vanilla"]) <= max(exact[name])


def test_every_variant_translates_the_grammar_nearly_without_error_as_chapter_13_says():
    """All ten: an error in fewer than two sentences of a hundred, and no one below Vanilla with every seed."""
    exact = {}
    for run in read_record(DATA / "results" / "grammar.jsonl")[1]:
        if run["question"] == "final":
            exact.setdefault(run["variant"], []).append(run["metrics"]["exact_match"])
    assert set(exact) == {*VARIANTS, WIDER} and min(map(len, exact.values())) >= 3
    assert min(map(min, exact.values())) > 0.98
    for numbers in exact.values():
        assert max(numbers) >= min(exact["Vanilla"]) and min(numbers) <= max(exact["Vanilla"])


def test_real_sentences_tell_dense_from_vanilla_and_random_not_as_chapter_13_says():
    bleu, copied = losses_of("tatoeba", "final", "bleu"), losses_of("tatoeba", "baseline", "bleu")["copy nearest"][0]
    assert min(len(bleu[name]) for name in MAIN) >= 3
    assert max(bleu["Dense"]) < min(bleu["Vanilla"]) and min(bleu["Dense"]) < copied < max(bleu["Dense"])
    assert min(bleu["Random"]) < max(bleu["Vanilla"]) and min(bleu["Vanilla"]) < max(bleu["Random"])
    _, runs = read_record(DATA / "results" / "tatoeba.jsonl")
    chosen = {run["variant"]: run["settings"] for run in runs if run["question"] == "final"}
    at_edge = {name for name in MAIN if chosen[name]["learning_rate"] != 2e-3}
    assert at_edge == {"Vanilla", "Random"} and chosen["Random"]["r_learning_rate_factor"] == 100
    curves = [run["curve"] for run in runs if run["question"] == "final"]
    assert not any(map(settled, curves))
