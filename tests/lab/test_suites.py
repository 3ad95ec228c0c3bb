"""The experiments of chapter 13: which runs there are, and how a suite is done, recorded and gathered."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from synth_lib.lab import runner, suites, tasks
from synth_lib.lab.__main__ import main
from synth_lib.lab.runner import read_record, run_suite
from synth_lib.lab.suites import settings_of, suite, title
from synth_lib.models import EncoderDecoder, LanguageModel
from synth_lib.text.corpora import DATA

RESULTS = DATA / "results"


# The lists of runs


@pytest.mark.parametrize("name", suites.SUITES)
def test_every_run_of_a_suite_is_sound(name):
    """Titles are unique; sizes and settings fit; the settings of a task are those of all its variants."""
    chosen = suite(name)
    assert len({title(run) for run in chosen.runs}) == len(chosen.runs)
    assert json.loads(json.dumps(chosen.runs)) == chosen.runs
    for run in chosen.runs:
        sizes, settings = settings_of(run, chosen.tasks[run["task"]])
        assert sizes["d_model"] % sizes["head"] == 0 and settings.seed == run["seed"]


def test_each_variant_has_the_score_that_its_name_says():
    for variant, score in suites.VARIANTS.items():
        parts = variant.lower().replace("vanilla", "dot product").split(" + ")
        assert score == " + ".join(part.replace(" ", "_") for part in parts)


def test_an_unknown_suite_is_refused():
    with pytest.raises(ValueError, match="suite must be one of tiny, live, .* not 'huge'"):
        suite("huge")


def test_the_first_seed_of_all_variants_comes_before_the_second():
    runs = [(run["seed"], run["variant"]) for run in suite("tiny").runs]
    assert runs == [(seed, variant) for seed in (0, 1) for variant in suites.VARIANTS]


def test_the_live_runs_have_the_rates_that_the_tuning_of_the_record_chose():
    """And they are a third of it, in the same proportion of warm-up."""
    _, recorded = read_record(RESULTS / "nanogpt.jsonl")
    for run in suite("live").runs:
        final = next(entry for entry in final_runs(recorded) if entry["variant"] == run["variant"])
        changed = {"steps": suites.LIVE_STEPS, "warmup": suites.LIVE_STEPS // 20}
        assert run["settings"] == final["settings"] | changed and run["model"] == {}


def test_the_longer_runs_have_the_best_rates_of_the_whole_runs_of_one_seed_and_fresh_seeds():
    recorded = read_record(RESULTS / "nanogpt.jsonl")[1] + read_record(RESULTS / "longer.jsonl")[1]
    whole = [run for run in recorded if run["settings"].get("steps") == 2000 and run["seed"] == 1]
    for run in [run for run in suite("longer").runs if run["question"] == "final"]:
        tried = [entry for entry in whole if entry["variant"] == run["variant"]]
        best = min(tried, key=lambda entry: entry["metrics"]["loss"])
        changed = {"steps": suites.LONGER_STEPS, "warmup": suites.LONGER_STEPS // 20}
        assert len(tried) >= 3 and run["settings"] == best["settings"] | changed and run["seed"] > 1


def final_runs(recorded):
    *_, final, _ = suite("nanogpt").stages
    return final(recorded)


def test_the_suite_for_a_gpu_has_the_settings_that_it_names():
    """Those of nanoGPT's, whose model of 65 characters has 10,745,088 numbers, its positions among them."""
    chosen = suite("gpu")
    [(task, settings)] = chosen.tasks.items()
    assert [run["variant"] for run in chosen.runs] == [f"{order}-gram" for order in range(1, 7)] + ["tuned counting"]
    sweep = chosen.stages[0]([])
    assert len(sweep) == 3 * len(suites.VARIANTS) and {run["settings"]["steps"] for run in sweep} == {1667}
    sizes, training = settings_of(suites.experiment(task, "Vanilla"), settings)
    assert (training.steps, training.batch, training.learning_rate, training.beta2) == (5000, 64, 1e-3, 0.99)
    with torch.device("meta"):
        model = LanguageModel(65, **sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == 10_745_088


def test_each_model_of_why_has_what_its_name_says():
    """And nothing else is changed: not the sizes of nanogpt, not the settings."""
    task = SimpleNamespace(build=lambda **sizes: LanguageModel(65, **sizes))
    [settings] = suites.WHY.values()
    for variant in settings["variants"]:
        sizes, training = settings_of(suites.experiment("language model", variant), settings)
        same, like = settings_of(suites.experiment("language model", "Vanilla"), suites.NANOGPT["language model"])
        assert training == like
        assert {name for name in sizes if sizes[name] != same.get(name)} <= {"score", "rank", "head", "start"}
        name, _, change = variant.partition(", ")
        score = tasks.build(task, **sizes).blocks[-1].attention.score
        assert type(score).__name__ == {"Vanilla": "DotProduct"}.get(name, name.replace(" ", ""))
        if "rank" in change:
            assert score.R1.shape == (4, 64, int(change.split()[-1]))
        elif "head" in change:
            assert score.head == int(change.split()[0])
        else:
            weights = score.R.softmax(dim=-1)
            place = torch.arange(64)
            ratio = weights[:, 9, 3] / weights[:, 9, 4]
            wanted = {"uniform": 1.0, "at the token before": 1.0, "falling with distance": math.exp(-0.5)}
            assert ratio.tolist() == pytest.approx([wanted[change.removeprefix("starts ")]] * 4)
            if "before" in change:
                assert (weights.argmax(dim=-1)[:, 1:] == place[:-1]).all()


@pytest.mark.parametrize("name", ["grammar", "tatoeba", "dialogue"])
def test_a_stop_leaves_whole_comparisons(name):
    """Three seeds of MAIN, then of the next group, then the last two of MAIN; no run comes twice."""
    recorded = [run | {"status": "finished"} for run in suite(name).runs]
    for stage in suite(name).stages:
        recorded += [run | {"status": "finished", "metrics": {"loss": 0.0}} for run in stage(recorded)]
    assert len({title(run) + run["question"] for run in recorded}) == len(recorded)
    seeds, others = {}, 0
    for run in recorded:
        if run["question"] == "final":
            seeds.setdefault(run["variant"], []).append(run["seed"])
            others += run["variant"] not in suites.MAIN
            assert run["variant"] not in suites.MAIN or run["seed"] <= 3 or others >= 6
    assert all(seeds[variant] == ([1, 2, 3, 4, 5] if variant in suites.MAIN else [1, 2, 3]) for variant in seeds)


def test_the_control_has_the_size_of_the_largest_mixture():
    """Counted without the data: a vocabulary of the size that the data has."""
    [(task, settings)] = suites.GRAMMAR.items()

    def count(variant):
        sizes, _ = settings_of(suites.experiment(task, variant), settings)
        with torch.device("meta"):
            model = EncoderDecoder(632, **sizes)
        return sum(parameter.numel() for parameter in model.parameters())

    mixtures = max(count(variant) for variant in suites.VARIANTS if "+" in variant)
    assert count("Vanilla") < mixtures
    assert count(suites.WIDER) == pytest.approx(mixtures, rel=0.02)


# The record


def run_some(runs, out, monkeypatch, **options):
    """The suite tiny with these runs alone."""
    monkeypatch.setitem(suites.SUITES, "tiny", lambda: suites.Suite("", suites.tiny().tasks, runs))
    return run_suite("tiny", out, device="cpu", **({"log": lambda line: None} | options))


def test_a_suite_by_the_command_line_in_new_processes(tmp_path, capfd):
    """Two workers; then the same command finds nothing to do."""
    out, chosen = tmp_path / "tiny.jsonl", suite("tiny")
    assert main(["suite", "tiny", "--device", "cpu", "--workers", "2", "--out", str(out)]) == 0
    said, errors = capfd.readouterr()
    number = 2 * len(suites.VARIANTS)
    assert f"{number} of {number}" in said and "to go]" in said and errors == ""
    assert f"{number} runs in {out}, 0 of them failed; 0 errors, 0 missing" in said
    lines = []
    record = run_suite("tiny", out, device="cpu", log=lines.append)
    assert len(lines) == 1 and "0 of them to do" in lines[0]
    assert record["suite"] == "tiny" and record["tasks"] == chosen.tasks and record["device"] == "cpu"
    assert record["missing"] == [] and record["errors"] == {} and record["histogram_edges"] == tasks.EDGES
    assert [title(run) for run in record["runs"]] == [title(run) for run in chosen.runs]
    for run in record["runs"]:
        assert run["status"] == "finished" and run["curve"][-1] == [8, run["metrics"]["loss"]]
        assert run["parameters"] > run["parameters_of_S"] and run["tokens_per_second"] > 0
        assert len(run["mixture_weights"]) == (2 if "+" in run["variant"] else 0)
        assert ("maps" in run) == (run["seed"] == 0 and run["variant"] in suites.WITH_MAPS)
        assert run["versions"]["torch"] == torch.__version__ and run["device"] == "cpu" and run["date"]
        assert "code" in run


def test_a_failed_run_and_an_error_do_not_end_the_suite(tmp_path, forked, monkeypatch, capfd):
    wild = suites.experiment("language model", "Dense", settings={"learning_rate": 1e30})
    impossible = suites.experiment("language model", "Dense", model={"head": 7})
    runs = [wild, impossible, suites.experiment("language model", "Dense")]
    out = tmp_path / "tiny.jsonl"
    record = run_some(runs, out, monkeypatch)
    failed, finished = record["runs"]
    assert failed["status"] == "failed" and failed["settings"] == {"learning_rate": 1e30}
    assert "is nan" in failed["problem"] and finished["status"] == "finished"
    assert record["missing"] == [title(impossible)]
    assert "head = 7 does not divide" in record["errors"][title(impossible)]
    assert read_record(out)[1] == record["runs"]
    assert main(["suite", "tiny", "--out", str(out), "--device", "cpu"]) == 1  # one run of the record has failed
    runs[1] = suites.experiment("language model", "Dense", model={"head": 8})  # mended: only this one is done
    again = run_some(runs, out, monkeypatch)
    assert again["missing"] == [] and again["errors"] == {} and again["runs"][0] == failed


def test_torchrun_shares_the_runs_and_the_plain_call_gathers_them(tmp_path, forked, monkeypatch):
    out, runs = tmp_path / "tiny.jsonl", [suites.experiment("language model", "Random", seed) for seed in range(3)]
    for rank in (0, 1):
        with monkeypatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", "2")
            assert len(run_some(runs, out, monkeypatch)["runs"]) == (2, 1)[rank]
    assert not out.exists()
    shares = [read_record(tmp_path / f"tiny.rank{rank}.jsonl")[1] for rank in (0, 1)]
    monkeypatch.setattr(runner, "run_experiment", None)  # nothing is left to do
    record = run_some(runs, out, monkeypatch)
    assert record["runs"] == [shares[0][0], shares[1][0], shares[0][1]] and record["missing"] == []
    for _ in range(2):  # gathered again, none is there twice
        assert len(read_record(out)[1]) == 3
        run_some(runs, out, monkeypatch)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_recorded_suites_are_runs_of_today(path):
    """Chapter 13 reads them: each run is one of its suite, and says where it comes from. Only what the first version
    recorded is of no suite of today."""
    header, runs = read_record(path)
    if header.get("suite") not in suites.SUITES:
        assert header.get("suite") in (None, "first version") and runs  # the probes have no suite
        return
    chosen = suite(header["suite"])
    assert header["tasks"] == chosen.tasks and runs
    asked = [*chosen.runs, *(run for stage in chosen.stages for run in stage(runs))]
    for run in runs:
        assert any(one.items() <= run.items() for one in asked), title(run)
        assert {"date", "device", "versions", "code"} <= run.keys() and run["device"] == header["device"]


# The command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["huge"], "suite must be one of tiny"),
        (["tiny", "--workers", "0"], "workers is 0"),
        (["tiny", "--minutes", "-1"], "minutes is -1"),
        (["tiny", "--device", "abacus"], "device must be auto or"),
        (["tiny", "--steps", "1", "--seed", "7"], "unrecognized arguments: --steps 1 --seed 7"),
        (["tiny", "--worker", "2"], "unrecognized arguments: --worker 2"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["suite", *arguments, "--out", str(tmp_path / "some.jsonl")])
    assert stop.value.code == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_parallel", stop)
    assert main(["suite", "tiny", "--device", "cpu", "--out", str(tmp_path / "tiny.jsonl")]) == 130
    assert "the same command goes on from" in capsys.readouterr().out
