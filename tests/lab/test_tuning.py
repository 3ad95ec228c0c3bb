"""The choice of settings from made-up records, the stages of a tuned suite, and the rule of length."""

import json
import random

import pytest
import torch

from synth_lib.lab import runner, suites
from synth_lib.lab.runner import read_record, run_suite
from synth_lib.lab.suites import NANOGPT, VARIANTS, WIDER, Suite, experiment, settings_of, suite, title
from synth_lib.lab.tasks import make_task, run_experiment
from synth_lib.lab.tuning import best_settings, has_tables, settled, steps_to, tuned_stages
from synth_lib.models import LanguageModel
from synth_lib.text.baselines import ngram_loss, tuned_ngram_loss

CPU = torch.device("cpu")
TASK = "language model"
SEEDS = {"Vanilla": 2, "Dense": 1, "Random": 2}
SCORES = {variant: VARIANTS[variant] for variant in SEEDS}
WITH_TABLES = {"Random", "Factorized Random", "Random + Vanilla", "Random + Dense"}


def tuned():
    return Suite("", NANOGPT, [experiment(TASK, "2-gram", question="baseline")],
                 tuned_stages(TASK, NANOGPT[TASK], SCORES, SEEDS))  # fmt: skip


def made_up(run, loss=None):
    """A finished run. Without a loss: the best pair is the rate 0.002, and for Random the factor 30."""
    rate, factor = (run["settings"].get(name, 0) for name in ("learning_rate", "r_learning_rate_factor"))
    bowl = 2 + 100 * abs(rate - 0.002) + (abs(factor - 30) / 1000 if run["variant"] == "Random" else 0)
    return run | {"status": "finished", "metrics": {"loss": bowl if loss is None else loss}, "seconds": 1.0}


def failed(run):
    return run | {"status": "failed", "problem": "the loss is nan"}


def pairs(runs, variant):
    settings = [run["settings"] for run in runs if run["variant"] == variant]
    return [(entry["learning_rate"], entry["r_learning_rate_factor"]) for entry in settings]


def sweep(variant="Random"):
    return [run for run in tuned().stages[0]([]) if run["variant"] == variant]


# The choice


@pytest.mark.parametrize(
    ("losses", "rate"),
    [([2.0, 1.9, 1.8], 0.003), ([2.0, 1.7, 1.8], 0.002), ([1.9, 1.9, 1.9], 0.001), ([2.0, 1.9, 1.9], 0.002)],
)
def test_the_lowest_loss_is_chosen_and_of_equal_ones_the_first_asked_for(losses, rate):
    asked = sweep()
    recorded = [made_up(run, loss) for run, loss in zip(asked, losses, strict=True)]
    expected = {"learning_rate": rate, "r_learning_rate_factor": 10.0}
    for order in (recorded, recorded[::-1]):  # a record has its runs in the order of their ends
        assert best_settings(asked, order) == expected


def test_a_failed_run_has_lost_and_a_missing_one_is_waited_for():
    asked = sweep()
    recorded = [failed(asked[0]), made_up(asked[1], 3.0), made_up(asked[2], 4.0)]
    assert best_settings(asked, recorded)["learning_rate"] == 0.002
    assert best_settings(asked, recorded[1:]) is None and best_settings(asked, []) is None
    assert best_settings(asked, list(map(failed, asked))) is None


def test_runs_of_other_variants_seeds_and_questions_do_not_count():
    asked = sweep()
    recorded = [made_up(run, 2.0) for run in asked]
    others = [
        {"variant": "Dense"},
        {"seed": 1},
        {"question": "final"},
        {"settings": asked[2]["settings"] | {"steps": 9}},
    ]
    recorded = [made_up(asked[2] | other, 1.0) for other in others] + recorded
    assert best_settings(asked, recorded)["learning_rate"] == 0.001


# The stages


def test_the_second_sweep_and_the_final_runs_follow_from_the_record():
    first, second, final, choice = tuned().stages
    recorded = list(map(made_up, first([])))
    assert pairs(recorded, "Vanilla") == pairs(recorded, "Random") == [(0.001, 10), (0.002, 10), (0.003, 10)]
    assert second([]) == final([]) == choice([]) == []
    factors = second(recorded)
    assert pairs(factors, "Random") == [(0.002, 3), (0.002, 30), (0.002, 100)] and len(factors) == 3
    assert {run["variant"] for run in final(recorded)} == {"Vanilla", "Dense"}  # Random waits for its second sweep
    recorded += map(made_up, factors)
    runs = final(recorded)
    order = [("Vanilla", 1), ("Random", 1), ("Vanilla", 2), ("Random", 2), ("Dense", 1)]
    assert [(run["variant"], run["seed"]) for run in runs] == order
    assert set(pairs(runs, "Random")) == {(0.002, 30)} and set(pairs(runs, "Vanilla")) == {(0.002, 10)}
    assert all(run["settings"]["steps"] == 2000 and run["settings"]["warmup"] == 100 for run in runs)
    assert all(run["settings"]["steps"] == 667 and run["settings"]["warmup"] == 33 for run in recorded)
    assert pairs(choice(recorded), "Random") == [(0.001, 30), (0.003, 30)] and not pairs(choice(recorded), "Dense")


def test_tuning_without_a_finished_run_leaves_its_variant_out_and_no_other():
    first, second, final, _ = tuned().stages
    recorded = [failed(run) if run["variant"] == "Random" else made_up(run) for run in first([])]
    assert second(recorded) == [] and {run["variant"] for run in final(recorded)} == {"Vanilla", "Dense"}


def test_the_final_runs_do_not_change_what_they_follow_from():
    first, second, final, _ = tuned().stages
    recorded = list(map(made_up, first([])))
    recorded += map(made_up, second(recorded))
    before = final(recorded)
    assert final(recorded + [made_up(run, 0.1) for run in before]) == before


def test_the_suite_has_as_many_runs_as_it_says_and_every_one_is_sound():
    chosen, recorded, sizes = suite("nanogpt"), [], []
    for stage in chosen.stages:
        runs = stage(recorded)
        recorded += map(made_up, runs)
        sizes.append(len(runs))
    assert sizes == [27, 12, 3 * 5 + 6 * 3, 6] and len({title(run) for run in recorded}) == sum(sizes)
    for run in recorded:
        arguments, settings = settings_of(run, chosen.tasks[run["task"]])
        assert arguments["bias"] is False and settings.batch == 12 and settings.beta2 == 0.99
        assert (run["seed"] == 0) == (run["question"] == "tuning") and settings.precision == "float32"
    assert {variant for variant, score in VARIANTS.items() if has_tables(score)} == WITH_TABLES
    with torch.device("meta"):
        model = LanguageModel(65, **settings_of(recorded[0], chosen.tasks[TASK])[0])
    assert sum(parameter.numel() for parameter in model.parameters()) == 804_096  # that of nanoGPT


def stages_of(name):
    """The runs that each stage of a suite asks for, when those before are done."""
    chosen, recorded, found = suite(name), [], []
    for stage in chosen.stages:
        found.append(stage(recorded))
        recorded += map(made_up, found[-1])
    for run in recorded:
        arguments, settings = settings_of(run, chosen.tasks[run["task"]])
        assert arguments["d_model"] % arguments["head"] == 0 and settings.seed == run["seed"]
        assert (run["seed"] == 0) == (run["question"] == "tuning") and settings.precision == "float32"
    assert len({title(run) for run in recorded}) == len(recorded)
    return found


def test_the_grammar_has_three_seeds_of_its_main_variants_before_the_others_begin():
    main, others = ["Vanilla", "Dense", "Random"], [*list(VARIANTS)[3:], WIDER]
    stages = stages_of("grammar")
    sweep, factors, final, *rest, last, choice = stages
    assert [run["variant"] for run in sweep] == [variant for variant in main for _ in range(3)]
    assert {run["variant"] for run in factors} == {"Random"} and len(factors) == 3
    assert [(run["variant"], run["seed"]) for run in final] == [(variant, n) for n in range(1, 4) for variant in main]
    assert [(run["variant"], run["seed"]) for run in last] == [(variant, n) for n in (4, 5) for variant in main]
    sweep, factors, final = rest
    assert [run["variant"] for run in sweep] == [variant for variant in others for _ in range(3)]
    assert [run["variant"] for run in factors] == sorted(3 * [*WITH_TABLES - {"Random"}], key=others.index)
    assert [(run["variant"], run["seed"]) for run in final] == [(variant, n) for n in range(1, 4) for variant in others]
    assert {run["question"] for run in choice} == {"choice"} and {run["variant"] for run in choice} == set(main)
    assert list(map(len, stages)) == [9, 3, 9, 21, 9, 21, 6, 6]
    assert [run["question"] for run in suite("grammar").runs] == ["baseline"]
    wider = [settings_of(run, suites.GRAMMAR[run["task"]])[0] for run in final if run["variant"] == WIDER]
    assert {(sizes["d_model"], sizes["score"]) for sizes in wider} == {(100, "dot_product")}


def test_tatoeba_goes_on_from_three_variants_to_five_and_the_cross_attention_and_then_to_all():
    chosen, stages = suite("tatoeba"), stages_of("tatoeba")
    *tuned_runs, choice = stages
    cross, last_of_main = tuned_runs.pop(6), tuned_runs.pop(6)
    finals = tuned_runs[2::3]
    assert [run["seed"] for run in last_of_main] == [4] * 3 + [5] * 3
    assert [{run["question"] for run in runs} for runs in finals] == [{"final"}] * 3
    groups = [list(dict.fromkeys(run["variant"] for run in runs)) for runs in finals]
    assert groups[0] == ["Vanilla", "Dense", "Random"] and groups[1] == ["Factorized Random", "Random + Vanilla"]
    assert sorted(sum(groups, [])) == sorted(VARIANTS)
    assert list(map(len, stages)) == [9, 3, 9, 6, 6, 6, 3, 6, 12, 3, 12, 6]
    random_finals = [run for run in finals[0] if run["variant"] == "Random"][:3]
    expected = [run | {"question": "cross-attention", "model": {"cross_score": "random"}} for run in random_finals]
    assert cross == expected and {run["question"] for run in choice} == {"choice"}
    assert chosen.stages[6]([]) == []  # without a record it waits
    sizes, _ = settings_of(cross[0], suites.TATOEBA[cross[0]["task"]])
    assert sizes["cross_score"] == sizes["score"] == "random"


def test_the_dialogues_have_three_variants_and_then_their_mixtures():
    stages = stages_of("dialogue")
    assert list(map(len, stages)) == [9, 3, 9, 6, 3, 6, 6, 6]
    assert {run["variant"] for run in stages[2]} == {"Vanilla", "Dense", "Random"}
    assert {run["variant"] for run in stages[5]} == {"Random + Vanilla", "Dense + Vanilla"}
    task = suites.DIALOGUE["dialogue"]
    assert task["data"]["max_length"] == task["model"]["max_length"]


@pytest.fixture
def at_once(monkeypatch):
    """The suite "tuned", whose runs take no time: a list of their titles."""
    done = []

    def run_parallel(runs, function, workers, fits):
        for run in filter(fits, list(runs)):
            done.append(title(run))
            yield run, made_up(run)

    monkeypatch.setattr(runner, "run_parallel", run_parallel)
    monkeypatch.setitem(suites.SUITES, "tuned", tuned)
    return done


def run_tuned(path, **options):
    return run_suite("tuned", path, device="cpu", log=lambda line: None, **options)


def test_a_suite_in_stages_goes_on_from_any_end_of_its_file(tmp_path, at_once):
    path = tmp_path / "tuned.jsonl"
    record = run_tuned(path)
    assert len(record["runs"]) == len(at_once) == 1 + 9 + 3 + 5 + 4
    assert record["missing"] == [] and record["errors"] == {}
    whole, expected = path.read_bytes(), list(at_once)
    moments = random.Random(3)
    for cut in [*(moments.randrange(len(whole)) for _ in range(12)), len(whole)]:
        path.write_bytes(whole[:cut])
        finished = max(0, whole[:cut].count(b"\n") - 1)
        at_once.clear()
        again = run_tuned(path)
        assert at_once == expected[finished:]
        assert [title(run) for run in again["runs"]] == expected == [title(run) for run in read_record(path)[1]]


def test_minutes_count_for_all_stages_together(tmp_path, at_once):
    path = tmp_path / "tuned.jsonl"
    assert run_tuned(path, minutes=0)["runs"] == [] and at_once == []


def test_ranks_may_not_share_a_suite_in_stages(tmp_path, monkeypatch, at_once):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="suite tuned chooses runs by the results of others: use workers"):
        run_tuned(tmp_path / "tuned.jsonl")
    assert not list(tmp_path.iterdir())


# What is measured


SMALL = {
    "data": {"tokens": "characters", "corpus": "tinyshakespeare", "windows": "all", "curve_windows": 8},
    "model": {"d_model": 8, "head": 2, "layer": 1, "max_length": 16, "bias": False},
    "settings": {"steps": 2, "batch": 2, "warmup": 1, "evaluate_every": 1},
}


def test_a_tuning_run_sees_no_test_text_and_the_curve_has_fewer_windows(monkeypatch):
    task = make_task(TASK, CPU, **SMALL["data"], length=16)
    parts = {split: sum(len(targets) for _, targets in getattr(task, split)) for split in ("curve", "valid", "test")}
    assert parts == {"curve": 8, "valid": 50191 // 16, "test": 111539 // 16}
    final = run_experiment(experiment(TASK, "Dense", question="final"), SMALL, CPU)
    monkeypatch.setattr(task, "test", None)
    tuning = run_experiment(experiment(TASK, "Dense", question="tuning"), SMALL, CPU)
    assert tuning["metrics"] == {"loss": final["metrics"]["loss"]} and tuning["curve"] == final["curve"]
    assert final["metrics"]["loss"] == final["metrics"]["loss_at_length"]["16"] != final["curve"][-1][1]


def test_counting_is_recorded_on_the_windows_of_the_models():
    task = make_task(TASK, CPU, **SMALL["data"], length=16)
    result = run_experiment(experiment(TASK, "3-gram", question="baseline"), SMALL, CPU)
    for name, split in (("loss", "valid"), ("test_loss", "test")):
        windows = [torch.cat(part) for part in zip(*getattr(task, split), strict=True)]
        expected = ngram_loss(task.text, *windows, 3, task.tokenizer.vocab)
        assert result["metrics"][name] == pytest.approx(expected, abs=1e-5)
    assert result["status"] == "finished" and json.dumps(result)


def test_tuned_counting_is_recorded_with_what_was_chosen(monkeypatch):
    task = make_task(TASK, CPU, **SMALL["data"], length=16)
    monkeypatch.setattr(task, "text", task.text[:20_000])
    result = run_experiment(experiment(TASK, "tuned counting", question="baseline"), SMALL, CPU)
    valid, test = ([torch.cat(part) for part in zip(*split, strict=True)] for split in (task.valid, task.test))
    expected = tuned_ngram_loss(task.text, valid, test, task.tokenizer.vocab)
    assert result["metrics"] == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr(task, "train_on", "train and valid")
    with pytest.raises(ValueError, match="chosen on valid, so train_on must be 'train', not 'train and valid'"):
        task.baseline("tuned counting")


# The curve


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([[0, 4.0], [800, 2.0], [900, 1.99], [1000, 1.981]], True),
        ([[0, 4.0], [800, 2.0], [900, 1.99], [1000, 1.979]], False),
        ([[0, 4.0], [790, 2.0], [810, 1.98], [1000, 1.979]], False),  # the fifth has no point at its beginning
        ([[0, 4.0], [800, 2.0], [1000, 2.1]], True),  # it rises: nothing is left to learn
        ([[0, 4.0], [1000, 2.0]], False),
    ],
)
def test_a_curve_is_settled_when_its_last_fifth_falls_by_less_than_one_percent(curve, expected):
    assert settled(curve) == expected


def test_a_curve_of_one_point_says_nothing():
    with pytest.raises(ValueError, match="needs two points or more to say whether it is settled, not 1"):
        settled([[0, 4.0]])


def test_steps_to_a_loss():
    curve = [[0, 4.0], [100, 2.5], [200, 2.0], [300, 2.1], [400, 1.9]]
    assert [steps_to(curve, loss) for loss in (5, 2.5, 2.4, 2.0, 1.95, 1.8)] == [0, 100, 200, 200, 400, None]
