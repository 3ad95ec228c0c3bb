"""Settings of every test run, the notebooks' included: no network, one thread a process."""

import os
import runpy
from pathlib import Path

OFFLINE = Path(__file__).parent / "tests" / "offline"

# Two workers that both use every core take twice as long as two that use one each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What the tests start, kernels above all, runs sitecustomize.py by itself; this process must be told.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(OFFLINE), os.environ.get("PYTHONPATH")]))
runpy.run_path(str(OFFLINE / "sitecustomize.py"))
