"""`python -m synth_lib.lab bench` at tiny sizes: every form is equal to the plain one, every suite writes what it says.

No time is tested.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from synth_lib import fast
from synth_lib.lab import bench
from synth_lib.lab.__main__ import main
from synth_lib.lab.bench import comparison
from synth_lib.lab.bench.forms import all_scores

RESULTS = Path(__file__).resolve().parents[2] / "data" / "results"
CPU = torch.device("cpu")
HEAD = ["card", "device", "date", "versions", "dtype", "sizes", "rounds", "failed", "skipped", "machine"]
LAYER = "form head d_head length batch causal ms low high peak_bytes faster_than_sdpa peak_to_sdpa"
ROWS = {
    "core": f"{LAYER} operations bytes",
    "layer": LAYER,
    "train": "score ms low high peak_bytes tokens_per_second faster_than_sdpa",
    "decode": "score ms low high written cache_bytes tokens_per_second cache_to_dot_product faster_than_dot_product",
}


@pytest.mark.parametrize("score", all_scores())
def test_check_finds_every_form_right(score, monkeypatch):
    dtypes = list(comparison.LIMITS) if score == "random + dense" else [torch.float32]
    monkeypatch.setattr(comparison, "LIMITS", {dtype: comparison.LIMITS[dtype] for dtype in dtypes})
    run = bench.Bench("cpu", minutes=60)
    comparison.check(run, [score])
    assert not run.record["failed"] and not run.record["skipped"]
    cases = len(dtypes) * 3 * 4 * 2  # dtypes, lengths, masks, causal
    assert run.record["check"] == {"cases": cases, "wrong": 0, "failed": 0}


def test_check_finds_a_wrong_form(monkeypatch):
    """Half of the weight at the wrong place, and memory that nothing wrote."""
    right = fast.one_map
    for broken in (
        lambda *arguments, **options: right(*arguments, **options) + 0.01,
        lambda *arguments, **options: right(*arguments, **options) * float("nan"),
    ):
        monkeypatch.setattr(fast, "one_map", broken)
        found = comparison.check_case("random", torch.float32, 260, "none", True, True, device=CPU)
        assert not found["right"]


def test_a_wrong_form_is_recorded_and_is_an_error_for_the_shell(tmp_path, monkeypatch, capsys):
    right = fast.one_map
    monkeypatch.setattr(fast, "one_map", lambda *arguments, **options: right(*arguments, **options) + 0.01)
    out = tmp_path / "speed.json"
    assert main(f"bench check --device cpu --only random --out {out}".split()) == 1
    record = json.loads(out.read_text(encoding="utf8"))
    # The fast form is taken with a causal mask, at length 260, and no other mask: once for each dtype.
    assert record["check"] == {"cases": 72, "wrong": 3, "failed": 0}
    assert [entry["what"] for entry in record["failed"]] == [
        f"check random, torch.{dtype}, length 260, mask none, causal" for dtype in ("float64", "float32", "bfloat16")
    ]
    assert "72 cases, 3 wrong" in capsys.readouterr().out


def holds(record, suite, now=True):
    """Every row has the numbers of its suite, and they are in order; now: also what older records lack."""
    for row in record[suite]:
        assert set(ROWS[suite].split()) <= set(row), row
        assert row["low"] <= row["ms"] <= row["high"]
        if now:
            assert row["launches"] > 0 and row["rounds"] > 0
        if now and suite in ("core", "layer"):
            assert row["faster_than_sdpa"] == round(row["sdpa_ms"] / row["ms"], 3)


def test_every_suite_writes_its_part_and_a_table(tmp_path, capsys):
    out = tmp_path / "deep" / "speed.json"
    threads = torch.get_num_threads()
    assert main(f"bench all --device cpu --tiny --rounds 2 --minutes 60 --only random --out {out}".split()) == 0
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    record = json.loads(out.read_text(encoding="utf8"))
    assert set(record) == {*HEAD, "check", *ROWS}
    assert not record["failed"] and not record["skipped"], printed
    assert record["machine"]["copy_bytes_per_second"] > 0 and record["versions"]["torch"] == torch.__version__
    assert record["check"] == {"cases": 72, "wrong": 0, "failed": 0}
    for suite in ROWS:
        holds(record, suite)
        assert {row["rounds"] for row in record[suite]} == {3 if suite == "decode" else 2}
    for rows in (record["core"], record["layer"]):
        forms = [(row["form"], row["length"], row["causal"]) for row in rows]
        assert len(set(forms)) == len(forms)  # the baseline of a later group is no row of its own
    forms = {(row["form"], row["causal"]) for row in record["core"]}
    assert {("sdpa", False), ("random", True), ("dense", True), ("factorized_random as keys", False)} <= forms
    layers = {row["form"] for row in record["layer"] if row["causal"]}
    assert set(all_scores()) - {"dot_product"} < layers
    assert {"random, plain", "dense, plainest", "random, expanded", "value and output"} <= layers
    for suite in ("train", "decode"):
        assert [row["score"] for row in record[suite]] == all_scores()
    kept = {row["score"]: row["cache_bytes"] for row in record["decode"]}
    assert kept["random"] * 2 == kept["dot_product"] == kept["random + dot_product"]
    lines = printed.splitlines()
    assert len(lines) == 2 + sum(1 + len(record[suite]) for suite in ROWS) + 1  # head, tables, check
    header = next(line.split() for line in lines if line.startswith("layer"))
    assert header[-9:] == "/ plain / plainest launches peak MiB / sdpa".split()


@pytest.mark.parametrize("name", ["speed-h200.json", "speed-cpu.json"])
def test_the_recorded_results_are_laid_out_as_the_command_writes_them(name):
    record = json.loads((RESULTS / name).read_text(encoding="utf8"))
    suites = [suite for suite in ROWS if suite in record]
    assert set(record) - {"code"} == {*HEAD, "check", *suites}
    assert {"core", "layer", "train"} <= set(suites)
    assert record["check"]["cases"] > 600 and record["check"]["wrong"] == 0
    for suite in suites:
        holds(record, suite, now=name == "speed-cpu.json")


def test_a_form_that_fails_is_recorded_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    def broken(*arguments, **options):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(fast, "one_map", broken)
    monkeypatch.setattr(bench, "GROUPS", bench.GROUPS[:2])
    run = bench.Bench("cpu", 60, tmp_path / "speed.json", bench.TINY, rounds=2)
    bench.attention(run)
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf8"))
    assert {"what": "core random, length 12", "error": "RuntimeError: no such kernel"} in record["failed"]
    assert all(entry["error"] == "RuntimeError: no such kernel" for entry in record["failed"])
    assert {"sdpa", "dense"} <= {row["form"] for row in record["core"]}
    assert "in broken" in capsys.readouterr().err  # where it failed is said, not kept


def test_the_rounds_of_a_row_are_those_that_were_run():
    run = bench.Bench("cpu", 5, sizes=bench.TINY, rounds=9)
    run.until -= 600
    one = run.times({"step": lambda: None})["step"]
    assert one == {"ms": one["ms"], "low": None, "high": None, "rounds": 1}  # quartiles of one number say nothing
    run.until += 600
    assert run.times({"step": lambda: None})["step"]["rounds"] == 9


def test_each_group_has_its_own_baseline(monkeypatch):
    """A form of a later group is timed beside an sdpa whose row is not kept: its time is."""
    given = iter(range(1, 100))
    monkeypatch.setattr(bench.Bench, "times", lambda run, steps: {name: _row(next(given)) for name in steps})
    run = bench.Bench("cpu", 60, sizes=bench.TINY)
    bench.attention(run)
    baselines = {row["form"]: row["sdpa_ms"] for row in run.record["core"] if not row["causal"]}
    assert baselines["sdpa"] == baselines["random"] == 1 and baselines["dense without bias"] > 1
    holds(run.record, "core")


def _row(milliseconds):
    return {"ms": milliseconds, "low": milliseconds, "high": milliseconds, "rounds": 1}


def test_without_its_baseline_a_form_is_timed_all_the_same(monkeypatch):
    monkeypatch.setattr(fast, "sdpa", None)
    monkeypatch.setattr(bench, "GROUPS", bench.GROUPS[:1])
    run = bench.Bench("cpu", 60, sizes=bench.TINY, rounds=2)
    bench.attention(run)
    rows = {row["form"]: row for row in run.record["core"]}
    assert "sdpa" not in rows and rows["random"]["ms"] > 0 and "faster_than_sdpa" not in rows["random"]


def test_what_the_minutes_do_not_reach_is_recorded(tmp_path):
    run = bench.Bench("cpu", 0, tmp_path / "speed.json", bench.TINY)
    comparison.check(run, ["random"])
    bench.attention(run)
    bench.train(run)
    bench.decode(run)
    assert len(run.record["skipped"]) > 10 and not run.record["failed"]
    assert not run.record["check"]["cases"] and not run.record["train"]


def test_run_beside_gathers_what_the_others_found(tmp_path):
    run = bench.Bench("cpu", 60, tmp_path / "speed.json")
    run.checked()["cases"] = 5
    bench.run_beside(run, [["check", "--only", "random"]], seconds=600)
    assert run.record["check"] == {"cases": 5 + 72, "wrong": 0, "failed": 0}
    assert not run.record["failed"]
    broken = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(2)"])
    bench.gather(run, ["compile", "--only", "no such form,0"], tmp_path / "none.json", broken, time.perf_counter() + 60)
    assert run.record["failed"] == [{"what": "compile --only no such form,0", "error": "ended with 2"}]
    bench.gather(run, ["check", "--only", "dense"], tmp_path / "none.json", broken, time.perf_counter() + 60)
    assert run.record["check"] == {"cases": 5 + 72, "wrong": 0, "failed": 1}


def status_and_error(capsys, options):
    """(the exit status of the command, what it wrote to the error stream)."""
    try:
        status = main(["bench", *options])
    except SystemExit as ended:
        status = ended.code
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["attention", "--rounds", "0"], "rounds is 0"),
        (["attention", "--minutes", "0"], "minutes is 0, but must be above 0"),
        (["attention", "--minutes", "-1"], "minutes is -1"),
        (["attention", "--minutes", "nan"], "minutes is nan"),
        (["attention", "--minutes", "inf"], "minutes is inf"),
        (["attention", "--device", "mps"], "The device is mps, but has to be cpu, cuda, or one card"),
        (["attention", "--device", "card"], "The device is card, but has to be cpu, cuda, or one card"),
        (["attention", "--device", "cuda:99"], "The device is cuda:99, but torch finds"),
        (["attend"], "the suite must be one of check, train, decode, attention, neighbours, compile, all, not"),
        (["check", "--only", "rndom"], "--only is rndom, but check knows: dot_product; dense"),
        (["check", "--rounds", "2"], "--rounds is not for check: it would change nothing"),
        (["check", "--tiny"], "--tiny is not for check: it would change nothing"),
        (["compile"], "compile has nothing to compile on the device cpu"),
        (["attention", "--only", "dense"], "--only is for the suites check and compile, not for attention"),
        (["attention", "--out", str(Path(__file__).parent)], "lab, which cannot be written: Is a directory"),
        (["attention", "--out", __file__], "which holds a record already: name a new file"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(options, sentence, monkeypatch, capsys):
    def never(*arguments):
        raise AssertionError("something was measured")

    monkeypatch.setattr(bench, "run_suites", never)
    status, error = status_and_error(capsys, options if "--device" in options else [*options, "--device", "cpu"])
    assert status == 2 and sentence in error.splitlines()[-1]


def test_without_a_card_cuda_is_refused_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    status, error = status_and_error(capsys, ["attention", "--device", "cuda"])
    assert status == 2 and "The device is cuda, but torch finds 0 CUDA devices here." in error.splitlines()[-1]


def test_what_is_compiled_has_to_be_named(monkeypatch):
    run = bench.Bench("cpu", 5)
    monkeypatch.setattr(bench, "compile_jobs", lambda run: [["compile", "--only", "random + dense,0"]])
    bench.refuse_wrong_names(run, "compile", ["random + dense,0"])
    for only, sentence in ((None, "needs --only with one of"), (["dense"], "--only is dense, but compile")):
        with pytest.raises(ValueError, match=sentence):
            bench.refuse_wrong_names(run, "compile", only)


def test_one_card_of_several_is_the_one_that_is_used(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    run = bench.Bench("cuda:1", 5)
    assert chosen == [torch.device("cuda:1")]
    started = []
    monkeypatch.setattr(bench.subprocess, "Popen", lambda command, **options: started.append(command) or Ended())
    bench.run_beside(run, [["check"]], seconds=60)
    assert started[0][started[0].index("--device") + 1] == "cuda:1"


class Ended:
    """A program that crashed at once."""

    returncode = -11

    def wait(self, seconds=None):
        return self.returncode

    kill = wait


def test_a_check_of_which_every_case_fails_is_an_error_for_the_shell(monkeypatch, capsys):
    def broken(*arguments, **options):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(comparison, "check_case", broken)
    status, _ = status_and_error(capsys, "check --device cpu --only random".split())
    assert status == 1


def test_a_check_without_a_case_is_an_error_for_the_shell(capsys):
    assert status_and_error(capsys, "check --device cpu --minutes 0.01".split())[0] == 1


def test_a_program_beside_that_crashes_counts_as_a_failed_check(monkeypatch):
    run = bench.Bench("cpu", 5)
    monkeypatch.setattr(bench.subprocess, "Popen", lambda *arguments, **options: Ended())
    bench.run_beside(run, [["check", "--only", "random"]], seconds=60)
    assert run.record["check"] == {"cases": 0, "wrong": 0, "failed": 1} and bench.exit_status(run.record) == 1
    assert run.record["failed"] == [{"what": "check --only random", "error": "ended with -11"}]


def test_no_program_beside_goes_on_when_this_one_is_stopped(monkeypatch):
    started, start = [], subprocess.Popen

    def sleeper(*arguments, **options):
        if started:
            raise KeyboardInterrupt
        started.append(start([sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[0]

    monkeypatch.setattr(bench.subprocess, "Popen", sleeper)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.run_beside(bench.Bench("cpu", 5), [["check"]] * 2, seconds=60)
        assert started[0].poll() is not None
    finally:
        started[0].kill()


def test_ctrl_c_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    measured = bench.measure_attention

    def stopped(run, suite, make, group, sizes, causal):
        if suite == "layer":
            raise KeyboardInterrupt
        measured(run, suite, make, group, sizes, causal)

    monkeypatch.setattr(bench, "measure_attention", stopped)
    out = tmp_path / "speed.json"
    assert main(f"bench attention --device cpu --tiny --rounds 1 --minutes 60 --out {out}".split()) == 130
    record = json.loads(out.read_text(encoding="utf8"))
    assert {"sdpa", "random"} <= {row["form"] for row in record["core"]}
    assert record["skipped"] == ["what comes after Ctrl-C"]
    assert "factorized_random as keys" in capsys.readouterr().out
