"""Run everything that proves the project, in the order in which a failure is quickest to understand.

`make test` calls it; where there is no make, as on Windows: python tools/test.py. With --all (make test-all) the banks
of the exercises are tried at three seeds, and both notebooks of each chapter run whole.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ["-m", "pytest", "-q", "-n", "2", "--color=no"]
# Strict: every stored output is compared. loadfile keeps the cells of a notebook in one kernel. The longest cell takes
# 15 s of the processor; the limit is for one that never ends, not for a busy machine.
NBVAL = [*PYTEST, "--dist", "loadfile", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=1200"]
MERGED = "build/notebooks"
STEPS = {
    "lint": ["-m", "ruff", "check", "."],
    "library, notebook rules": [*PYTEST, "--dist", "worksteal", "tests"],
    "notebooks, merged": ["tools/merge_notebooks.py", MERGED],
    "notebooks": [*NBVAL, MERGED],
}


def processor_seconds():
    """Of all processes that were started here and have ended (on Windows: 0)."""
    now = os.times()
    return now.children_user + now.children_system


def main(everything):
    # Two workers on two cores: with more threads each they wait for one another.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    steps = STEPS
    if everything:
        environment["SYNTH_ALL_SEEDS"] = "1"
        steps = {**STEPS, "notebooks": [*NBVAL, "notebooks"]}
    failed, start = [], time.monotonic()
    for name, command in steps.items():
        print(f"== {name}", flush=True)
        wall, processor = time.monotonic(), processor_seconds()
        if subprocess.run([sys.executable, *command], cwd=ROOT, env=environment).returncode:
            failed.append(name)
        wall, processor = time.monotonic() - wall, processor_seconds() - processor
        print(f"== {name}: {wall:.0f} s, {processor:.0f} s of processor time\n", flush=True)
    print(f"In all: {time.monotonic() - start:.0f} s, {processor_seconds():.0f} s of processor time.")
    print(f"FAILED: {', '.join(failed)}" if failed else "All passed.")
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run everything that proves the library and the notebooks.")
    parser.add_argument("--all", action="store_true", help="three seeds, and both notebooks of each chapter whole")
    sys.exit(main(parser.parse_args().all))
