"""`python -m synth_lib.bench` at tiny sizes: every form is equal to the plain one, every suite writes what it says.

No time is tested.
"""

import json
import subprocess
import sys

import pytest
import torch

from synth_lib import bench, fast


@pytest.mark.parametrize("score", bench.SCORES)
def test_check_finds_every_form_right(score):
    run = bench.Bench("cpu", minutes=5)
    bench.check(run, [score])
    assert not run.record["failed"] and not run.record["skipped"]
    assert len(run.record["check"]) == 3 * 3 * 4 * 2  # dtypes, lengths, masks, causal
    assert not [case for case in run.record["check"] if not case["right"]]


def test_check_finds_a_wrong_form(monkeypatch):
    """Half of the weight at the wrong place, and memory that nothing wrote."""
    right = fast.one_map
    for broken in (
        lambda *arguments: right(*arguments) + 0.01,
        lambda *arguments: right(*arguments) * float("nan"),
    ):
        monkeypatch.setattr(fast, "one_map", broken)
        run = bench.Bench("cpu", minutes=5)
        found = bench.check_case(run, "random", torch.float32, 260, "none", True, True, head=3, d_head=8)
        assert not found["right"]


def test_every_suite_writes_its_part_and_a_table(tmp_path):
    out = tmp_path / "deep" / "speed.json"
    command = [sys.executable, "-m", "synth_lib.bench", "--device", "cpu", "--tiny", "--rounds", "2", "--minutes", "5"]
    for suite in ("attention", "train", "decode"):
        done = subprocess.run([*command, "--suite", suite, "--out", out], capture_output=True, text=True, check=True)
        record = json.loads(out.read_text(encoding="utf8"))
        assert not record["failed"] and not record["skipped"], done.stdout
        assert record["machine"]["copy_bytes_per_second"] > 0 and record["versions"]["torch"] == torch.__version__
        if suite == "attention":
            forms = {(row["form"], row["causal"]) for row in record["core"]}
            assert {("sdpa", False), ("random", True), ("dense", True), ("factorized_random as keys", False)} <= forms
            assert all(row["operations"] > 0 and row["bytes"] > 0 for row in record["core"])
            layers = {row["form"] for row in record["layer"] if row["causal"]}
            assert set(bench.SCORES) - {"dot_product"} < layers and "random, plain" in layers
        else:
            rows = {row["score"]: row for row in record[suite]}
            assert list(rows) == bench.SCORES
            assert all(row["tokens_per_second"] > 0 for row in rows.values())
            assert all(row["low"] <= row["ms"] <= row["high"] for row in rows.values())
        assert done.stdout.splitlines()[-1].split()[0] in ("random", "factorized_dense,")
    assert (
        rows["random"]["cache_bytes"] * 2
        == rows["dot_product"]["cache_bytes"]
        == rows["random + dot_product"]["cache_bytes"]
    )


def test_a_form_that_fails_is_recorded_and_the_rest_goes_on(tmp_path, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(fast, "one_map", broken)
    run = bench.Bench("cpu", 5, tmp_path / "speed.json", bench.TINY, rounds=2)
    bench.attention(run)
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf8"))
    assert "core random, length 12" in [entry["what"] for entry in record["failed"]]
    assert all("no such kernel" in entry["error"] and "broken" in entry["trace"] for entry in record["failed"])
    assert {"sdpa", "dense"} <= {row["form"] for row in record["core"]}


def test_what_the_minutes_do_not_reach_is_recorded(tmp_path):
    run = bench.Bench("cpu", 0, tmp_path / "speed.json", bench.TINY)
    bench.check(run, ["random"])
    bench.attention(run)
    bench.train(run)
    bench.decode(run)
    assert len(run.record["skipped"]) > 10 and not run.record["failed"]
    assert not run.record["check"] and not run.record["train"]


def test_side_by_side_gathers_what_the_others_found(tmp_path):
    run = bench.Bench("cpu", 1, tmp_path / "speed.json")
    bench.side_by_side(run, [["--suite", "compile", "--tiny", "--only", "no such form,0"]], seconds=60)
    assert len(run.record["failed"]) == 1 and "no such form" in run.record["failed"][0]["what"]


def test_the_counted_cost_of_one_map_is_three_products_and_of_sdpa_seven():
    sizes = {"head": 12, "d_head": 64, "length": 512, "batch": 64, "item": 2}
    pairs = 64 * 12 * 512**2
    assert bench.cost("sdpa", **sizes, causal=False)[0] == 7 * 2 * pairs * 64
    assert bench.cost("random", **sizes, causal=False)[0] == 3 * 2 * pairs * 64
    assert bench.cost("random", **sizes, causal=True)[0] == 3 * 2 * pairs * 64 * 5 / 8  # four blocks
