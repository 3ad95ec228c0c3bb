"""Run everything that proves the project, in the order in which a failure is quickest to understand.

`make test` calls it; where there is no make, as on Windows: python tools/test.py
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ["pytest", "-q", "-n", "2", "--color=no"]
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=300"]
STEPS = {
    "lint": ["ruff", "check", "."],
    "library, notebook rules": [*PYTEST, "--dist", "worksteal", "tests"],
    # Strict: every stored output is compared. loadfile keeps the cells of a notebook in one kernel.
    "notebooks": [*PYTEST, "--dist", "loadfile", *NBVAL, "notebooks"],
}


def main():
    # Two workers on two cores: with more threads each they wait for one another.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    failed = []
    for name, command in STEPS.items():
        print(f"== {name}", flush=True)
        start = time.monotonic()
        if subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment).returncode:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - start:.0f} s\n", flush=True)
    print(f"FAILED: {', '.join(failed)}" if failed else "All passed.")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
