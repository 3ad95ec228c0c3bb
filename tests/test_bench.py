"""`make bench` at tiny sizes: its forms agree with the library and its table is whole. No time is tested."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "tools" / "bench.py"


def test_the_small_bench_prints_a_row_for_every_form():
    done = subprocess.run(
        [sys.executable, BENCH, "--small", "--causal", "--bare"], capture_output=True, text=True, check=True
    )
    said, header, *rows = done.stdout.splitlines()
    assert (
        said.startswith("d_model 24, head 2, length 12, batch 3, causal, bare, torch ")
        and "one thread" in said
    )
    assert header.split()[:3] == ["S", "form", "ms"]
    forms = [" ".join(row[:32].split()) for row in rows]  # "dense library"
    expected = ["dot_product library", "dot_product plainest", "dot_product sdpa"]
    for score in (
        "dense",
        "random",
        "fixed_random",
        "factorized_dense",
        "factorized_random",
        "random + dot_product",
    ):
        expected += [f"{score} library", f"{score} plainest"]
        if score.endswith("random"):
            expected.append(f"{score} expanded")
    assert forms == [*expected, "value and output library"]
