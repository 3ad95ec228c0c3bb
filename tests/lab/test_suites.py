"""The experiments of chapter 13: a record that no kill can spoil, and the same numbers on every way to it."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from synth_lib.lab import suites, tasks
from synth_lib.lab.__main__ import main
from synth_lib.lab.runner import run_suite
from synth_lib.lab.suites import settings_of, suite, title
from synth_lib.lab.tasks import make_task
from synth_lib.models import Classifier, EncoderDecoder, LanguageModel

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "synth_lib.lab", "suite", "tiny", "--device", "cpu", "--workers", "2"]


def timeless(record):
    """A record without what may differ when it is made again."""
    if isinstance(record, dict):
        return {name: timeless(entry) for name, entry in record.items() if name not in TIMES}
    return [timeless(entry) for entry in record] if isinstance(record, list) else record


def read(path):
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def environment(**more):
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")} | {
        "OMP_NUM_THREADS": "1", **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The record of the suite tiny, made in one go by the command line, and what the command printed."""
    out = tmp_path_factory.mktemp("whole") / "tiny.jsonl"
    done = subprocess.run(
        [*COMMAND, "--out", out], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return read(out), done


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


def test_an_unknown_suite_is_refused():
    with pytest.raises(ValueError, match="suite must be one of tiny, laptop, .* not 'huge'"):
        suite("huge")


@pytest.mark.parametrize(("name", "seeds"), [("laptop", 2), ("gpu", 3), ("long", 5)])
def test_the_main_question_has_all_variants_and_seeds_and_the_language_model_first(name, seeds):
    chosen = suite(name)
    order = [run for run in chosen.runs if run["question"] == "order"]
    for task in chosen.tasks:
        for variant in suites.VARIANTS:
            found = [run["seed"] for run in order if (run["task"], run["variant"]) == (task, variant)]
            assert found == list(range(seeds))
    assert {run["task"] for run in order[: len(suites.VARIANTS)]} == {"language model"}
    # In the suite for a GPU the slow task comes last, so that the others get all their seeds.
    last = [run for run in order if name == "gpu" and run["task"] == "translation, German"]
    first = order[: len(order) - len(last)]
    for part in (first, last):
        assert [run["seed"] for run in part] == sorted(run["seed"] for run in part)
    assert order == first + last


@pytest.mark.parametrize("task", suites.GPU)
def test_the_control_has_the_size_of_the_largest_mixture(task):
    """Counted without the data: a vocabulary of the size that the data has."""
    settings = suites.GPU[task]
    vocab = {"language model": 87, "translation, grammar": 632}.get(task, 4000)

    def count(variant):
        sizes, _ = settings_of(suites.experiment(task, variant), settings)
        sizes.pop("dropout", None)
        with torch.device("meta"):
            if task.startswith("translation"):
                model = EncoderDecoder(vocab, **sizes)
            elif task == "language model":
                model = LanguageModel(vocab, **sizes)
            else:
                model = Classifier(vocab, 8, **sizes)
        return sum(parameter.numel() for parameter in model.parameters())

    mixtures = max(count(variant) for variant in suites.VARIANTS if "+" in variant)
    assert count("Vanilla") < mixtures
    assert count(suites.WIDER) == pytest.approx(mixtures, rel=0.02)


# The record


def test_the_record_is_whole(whole):
    record, done = whole
    chosen = suite("tiny")
    assert record["suite"] == "tiny" and record["tasks"] == chosen.tasks and record["device"] == "cpu"
    assert record["missing"] == [] and record["errors"] == {} and record["seconds"] > 0
    assert [title(run) for run in record["runs"]] == [title(run) for run in chosen.runs]
    for run in record["runs"]:
        assert (
            run["status"] == "finished" and run["curve"][-1][0] == 8 and run["metrics"]["loss"] == run["curve"][-1][1]
        )
        assert run["parameters"] > run["parameters_of_S"] and run["tokens_per_second"] > 0
        assert len(run["mixture_weights"]) == (2 if "+" in run["variant"] else 0)
        assert ("maps" in run) == (run["seed"] == 0 and run["variant"] in suites.WITH_MAPS)
    assert "18 of 18" in done.stdout and "to go]" in done.stdout
    assert done.stderr == ""


def test_a_recorded_run_is_skipped_and_the_file_stays_the_same(whole, tmp_path):
    record, _ = whole
    out = tmp_path / "tiny.jsonl"
    out.write_text(json.dumps(record))
    lines = []
    again = run_suite("tiny", out, device="cpu", log=lines.append)
    assert timeless(again) == timeless(record) == timeless(read(out))
    assert len(lines) == 1 and "0 of them to do" in lines[0]


def test_the_order_of_the_data_is_that_of_the_seed_for_every_variant():
    options = json.dumps({"tokens": "characters", "windows": 4, "length": 16})
    task = make_task("language model", options, torch.device("cpu"))
    for first, second, same in ((0, 0, True), (0, 1, False)):
        drawn = [task.new_draw(4)(torch.Generator().manual_seed(seed))[0] for seed in (first, second)]
        assert torch.equal(*drawn) == same


def test_histograms_sum_to_one_and_leave_out_what_may_not_be_attended_to():
    weights = torch.tensor([0.0, 0.0, 1.0, 0.5, 0.00005])
    found = tasks.histogram(weights)
    assert len(found) == len(tasks.EDGES) == 21 and sum(found) == pytest.approx(1, abs=1e-3)
    assert found[0] == found[-1] == pytest.approx(1 / 3, abs=1e-4)  # up to 0.0001, and the bin that ends at 1
    assert tasks.histogram(torch.full((1, 2, 3, 4), 0.25))[tasks.EDGES.index(0.2511886)] == 1


# Kills, time limits, failures


@pytest.fixture
def forked(monkeypatch):
    """Processes start as copies of this one: quicker than new ones, which have to load torch and the text."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(suites.multiprocessing, "get_context", lambda kind: context)
    return context


def run_tiny(out, **options):
    return run_suite("tiny", out, device="cpu", **({"log": lambda line: None} | options))


def test_a_suite_killed_at_ten_moments_ends_with_the_record_of_one_that_was_not(whole, tmp_path, forked):
    record, _ = whole
    out = tmp_path / "tiny.jsonl"
    moments = random.Random(5)
    for _ in range(10):
        ours, its = forked.Pipe()
        process = forked.Process(target=run_tiny, args=(out,), kwargs={"workers": 2, "log": its.send})
        process.start()
        its.close()
        told = [ours.recv() for _ in range(moments.randint(1, 2))]  # the first line comes before the first run
        time.sleep(moments.random() / 2)
        process.kill()
        process.join()
        runs = read(out)["runs"]
        assert len(runs) >= len(told) - 1
        assert timeless(runs) == [run for run in timeless(record["runs"]) if run in timeless(runs)]
        if len(runs) == len(record["runs"]):
            out.unlink()  # nothing is left to kill: the next one begins anew
    final = run_tiny(out, workers=2)
    assert timeless(final) == timeless(record) == timeless(read(out))


def test_a_run_that_does_not_fit_the_minutes_is_not_started(whole, tmp_path, forked):
    record, _ = whole
    out = tmp_path / "tiny.jsonl"
    first = record | {"runs": [record["runs"][0] | {"seconds": 1000.0}]}
    out.write_text(json.dumps(first))
    lines = []
    after = run_tiny(out, minutes=10, log=lines.append)
    assert len(after["runs"]) == 1 and len(after["missing"]) == 17 and len(lines) == 1
    assert read(out)["missing"] == after["missing"]


def test_a_failed_run_and_an_error_do_not_end_the_suite(tmp_path, forked, monkeypatch, capfd):
    chosen = suite("tiny")
    wild = suites.experiment("language model", "Dense", settings={"learning_rate": 1e30})
    impossible = suites.experiment("language model", "Dense", model={"head": 7})
    runs = [wild, impossible, suites.experiment("language model", "Dense")]
    monkeypatch.setitem(suites.SUITES, "tiny", lambda: suites.Suite("", chosen.tasks, runs))
    out = tmp_path / "tiny.jsonl"
    record = run_tiny(out)
    failed, finished = record["runs"]
    assert failed["status"] == "failed" and failed["settings"] == {"learning_rate": 1e30}
    assert "is nan" in failed["problem"] and finished["status"] == "finished"
    assert (
        record["missing"] == [title(impossible)] and "head = 7 does not divide" in record["errors"][title(impossible)]
    )
    assert read(out) == record
    runs[1] = suites.experiment("language model", "Dense", model={"head": 8})  # mended: only this one is done
    again = run_tiny(out)
    assert again["missing"] == [] and again["errors"] == {} and again["runs"][0] == failed


def test_a_worker_that_is_killed_does_not_end_the_suite(tmp_path, forked, monkeypatch):
    def do_or_die(run, *arguments):
        return os.kill(os.getpid(), signal.SIGKILL) if run["variant"] == "Dense" else do(run, *arguments)

    monkeypatch.setattr(suites, "do", do_or_die)
    record = run_tiny(tmp_path / "tiny.jsonl")
    assert len(record["runs"]) == 16 and all("Dense" in name for name in record["missing"])
    assert set(record["errors"].values()) == {"its process ended with exit status -9"}


@pytest.mark.parametrize("entry", ["suite", "device", "tasks"])
def test_the_record_of_something_else_is_refused_and_stays(whole, tmp_path, entry):
    out = tmp_path / "tiny.jsonl"
    out.write_text(json.dumps(whole[0] | {entry: "another"}))
    before = out.read_bytes()
    with pytest.raises(ValueError, match=f"holds another {entry} than this call: choose another file"):
        run_tiny(out)
    assert out.read_bytes() == before


def test_torchrun_shares_the_runs_and_the_plain_command_gathers_them(whole, tmp_path):
    out = tmp_path / "tiny.jsonl"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *COMMAND[1:-2]]
    done = subprocess.run(
        [*torchrun, "--out", out], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    shares = [read(tmp_path / f"tiny.rank{rank}.json")["runs"] for rank in range(2)]
    assert [len(share) for share in shares] == [9, 9] and not out.exists()
    assert timeless(run_tiny(out)) == timeless(whole[0]) == timeless(read(out))


# The command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "huge"], "suite must be one of tiny"),
        (["--suite", "tiny", "--workers", "0"], "workers"),
        (["--suite", "tiny", "--minutes", "-1"], "minutes"),
        (["--suite", "tiny", "--device", "abacus"], "device must be auto or"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--out", str(tmp_path / "some.json")])
    assert stop.value.code == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(suites, "side_by_side", stop)
    assert main(["--suite", "tiny", "--device", "cpu", "--out", str(tmp_path / "tiny.jsonl")]) == 130
    assert "the same command goes on from" in capsys.readouterr().out
