"""`python -m synth_lib.bench` at tiny sizes: every form is equal to the plain one, every suite writes what it says.

No time is tested.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from synth_lib import bench, fast
from synth_lib.bench import __main__ as command
from synth_lib.bench import comparison

RESULTS = Path(__file__).parents[1] / "data" / "results"
CPU = torch.device("cpu")
HEAD = ["card", "device", "date", "versions", "dtype", "sizes", "rounds", "failed", "skipped", "machine"]
LAYER = "form head d_head length batch causal ms low high peak_bytes faster_than_sdpa peak_to_sdpa"
ROWS = {
    "core": f"{LAYER} operations bytes",
    "layer": LAYER,
    "train": "score ms low high peak_bytes tokens_per_second faster_than_sdpa",
    "decode": "score ms low high written cache_bytes tokens_per_second cache_to_dot_product faster_than_dot_product",
}


@pytest.mark.parametrize("score", bench.SCORES)
def test_check_finds_every_form_right(score):
    run = bench.Bench("cpu", minutes=5)
    comparison.check(run, [score])
    assert not run.record["failed"] and not run.record["skipped"]
    assert run.record["check"] == {"cases": 3 * 3 * 4 * 2, "wrong": 0}  # dtypes, lengths, masks, causal


def test_check_finds_a_wrong_form(monkeypatch):
    """Half of the weight at the wrong place, and memory that nothing wrote."""
    right = fast.one_map
    for broken in (
        lambda *arguments: right(*arguments) + 0.01,
        lambda *arguments: right(*arguments) * float("nan"),
    ):
        monkeypatch.setattr(fast, "one_map", broken)
        found = comparison.check_case("random", torch.float32, 260, "none", True, True, device=CPU)
        assert not found["right"]


def test_a_wrong_form_is_recorded_and_is_an_error_for_the_shell(tmp_path, monkeypatch, capsys):
    right = fast.one_map
    monkeypatch.setattr(fast, "one_map", lambda *arguments: right(*arguments) + 0.01)
    out = tmp_path / "speed.json"
    monkeypatch.setattr(sys, "argv", f"bench --suite check --device cpu --only random --out {out}".split())
    with pytest.raises(SystemExit, match="1"):
        command.main()
    record = json.loads(out.read_text(encoding="utf8"))
    # The fast form is taken with a causal mask, at length 260, and no other mask: once for each dtype.
    assert record["check"] == {"cases": 72, "wrong": 3}
    assert [entry["what"] for entry in record["failed"]] == [
        f"check random, torch.{dtype}, length 260, mask none, causal" for dtype in ("float64", "float32", "bfloat16")
    ]
    assert "72 cases, 3 wrong" in capsys.readouterr().out


def holds(record, suite, launches=True):
    """Every row has the numbers of its suite, and they are in order."""
    for row in record[suite]:
        assert set(ROWS[suite].split()) <= set(row), row
        assert row["low"] <= row["ms"] <= row["high"]
        assert row["launches"] > 0 if launches else True


def test_every_suite_writes_its_part_and_a_table(tmp_path):
    out = tmp_path / "deep" / "speed.json"
    command = [sys.executable, "-m", "synth_lib.bench", "--device", "cpu", "--tiny", "--rounds", "2", "--minutes", "5"]
    done = subprocess.run(
        [*command, "--suite", "all", "--only", "random", "--out", out], capture_output=True, text=True, check=True
    )
    record = json.loads(out.read_text(encoding="utf8"))
    assert set(record) == {*HEAD, "check", *ROWS}
    assert not record["failed"] and not record["skipped"], done.stdout
    assert record["machine"]["copy_bytes_per_second"] > 0 and record["versions"]["torch"] == torch.__version__
    assert record["check"] == {"cases": 72, "wrong": 0}
    for suite in ROWS:
        holds(record, suite)
    for rows in (record["core"], record["layer"]):
        forms = [(row["form"], row["length"], row["causal"]) for row in rows]
        assert len(set(forms)) == len(forms)  # the baseline of a later group is no row of its own
    forms = {(row["form"], row["causal"]) for row in record["core"]}
    assert {("sdpa", False), ("random", True), ("dense", True), ("factorized_random as keys", False)} <= forms
    layers = {row["form"] for row in record["layer"] if row["causal"]}
    assert set(bench.SCORES) - {"dot_product"} < layers
    assert {"random, plain", "dense, plainest", "random, expanded", "value and output"} <= layers
    for suite in ("train", "decode"):
        assert [row["score"] for row in record[suite]] == bench.SCORES
    kept = {row["score"]: row["cache_bytes"] for row in record["decode"]}
    assert kept["random"] * 2 == kept["dot_product"] == kept["random + dot_product"]
    lines = done.stdout.splitlines()
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
        holds(record, suite, launches=False)


def test_a_form_that_fails_is_recorded_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    def broken(*arguments):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(fast, "one_map", broken)
    run = bench.Bench("cpu", 5, tmp_path / "speed.json", bench.TINY, rounds=2)
    bench.attention(run)
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf8"))
    assert {"what": "core random, length 12", "error": "RuntimeError: no such kernel"} in record["failed"]
    assert all(entry["error"] == "RuntimeError: no such kernel" for entry in record["failed"])
    assert {"sdpa", "dense"} <= {row["form"] for row in record["core"]}
    assert "in broken" in capsys.readouterr().err  # where it failed is said, not kept


def test_without_its_baseline_a_form_is_timed_all_the_same(monkeypatch):
    monkeypatch.setattr(fast, "attend", None)
    run = bench.Bench("cpu", 5, sizes=bench.TINY, rounds=2)
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


def test_side_by_side_gathers_what_the_others_found(tmp_path):
    run = bench.Bench("cpu", 1, tmp_path / "speed.json")
    jobs = [["--suite", "check", "--only", score] for score in ("random", "dense")]
    bench.side_by_side(run, [*jobs, ["--suite", "compile", "--tiny", "--only", "no such form,0"]], seconds=60)
    assert run.record["check"] == {"cases": 144, "wrong": 0}
    assert len(run.record["failed"]) == 1 and "no such form" in run.record["failed"][0]["what"]
