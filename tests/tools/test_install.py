"""The first `make` says how far it is: large downloads by size, a line that counts, and pip's own words if it stops."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from jupyterlab.commands import get_app_dir

from tools import install

ROOT = Path(__file__).resolve().parents[2]
# What pip 26 prints; sizes and names as it forms them.
LINES = """\
Obtaining file:///home/reader/synthesizers
  Installing build dependencies: started
  Installing build dependencies: finished with status 'done'
Collecting torch>=2.6 (from synth-lib==0.1.0)
  Downloading torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl.metadata (30 kB)
Collecting einops>=0.8 (from synth-lib==0.1.0)
Downloading torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl (526.6 MB)
Progress 0 of 526605292
Progress 262144000 of 526605292
Downloading einops-0.8.2-py3-none-any.whl (65 kB)
Progress 65000 of 65000
Using cached scipy-1.18.1-cp312-cp312-manylinux_2_27_x86_64.whl (35.3 MB)
Installing collected packages: torch, einops, scipy
Successfully installed einops-0.8.2 torch-2.13.0
"""
WHOLE = [
    "  torch-2.13.0, 526.6 MB",
    "  scipy-1.18.1, 35.3 MB, from the cache",
    "  unpacking 3 packages; this takes a minute or two",
]


def shown(terminal):
    said = []
    progress = install.Progress(said.append, terminal)
    for line in LINES.splitlines(keepends=True):
        progress.line(line)
    return "".join(said)


def test_a_log_has_the_large_files_and_the_unpacking_alone():
    assert shown(terminal=False).splitlines() == WHOLE


def test_a_terminal_counts_on_one_line_that_is_wiped():
    shows = shown(terminal=True)
    assert [line.rpartition("\r")[2] for line in shows.splitlines() if line] and shows.count("\n") == len(WHOLE)
    assert [line.rpartition("\r")[2] for line in shows.rstrip("\n").split("\n")] == WHOLE
    counted = [part.strip() for part in shows.replace("\n", "\r").split("\r")]
    assert "torch-2.13.0: 262 of 527 MB, 0:00 min" in counted and "2 packages looked up, 0:00 min" in counted


@pytest.mark.parametrize(("code", "last"), [(0, "  done"), (1, "ERROR: No matching distribution found")])
def test_where_pip_stops_it_says_why(monkeypatch, capsys, code, last):
    script = f"import sys; sys.stderr.write('ERROR: No matching distribution found\\n'); sys.exit({code})"
    monkeypatch.setattr(install, "bar", lambda progress: "raw")
    monkeypatch.setattr(install, "PIP", [install.sys.executable, "-c", script])
    assert install.main("constraints.txt") == code
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_without_a_network_the_last_line_says_so(monkeypatch, capsys):
    """pip retries, and then names a package that it could not find."""
    retry = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/einops/"
    script = f"import sys; print({retry!r}); print('ERROR: No matching distribution found for einops'); sys.exit(1)"
    monkeypatch.setattr(install, "bar", lambda progress: "raw")
    monkeypatch.setattr(install, "PIP", [install.sys.executable, "-c", script])
    assert install.main("constraints.txt") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "The packages cannot be fetched: check the network, then call this again."


@pytest.mark.parametrize("waits", ["--upgrade", "-e"])
def test_an_index_that_does_not_answer_is_told_once_and_while_pip_still_tries(tmp_path, monkeypatch, waits):
    """A stand-in for pip tries again until the reader has been told; it is asked for a newer pip, then for the rest."""
    told = tmp_path / "told"
    script = f"""
import pathlib, sys, time
if "--version" in sys.argv:
    print("pip 26.0 from here")
elif {waits!r} in sys.argv:
    for left in (4, 3, 2):
        print(f"WARNING: Retrying (Retry(total={{left}})) after connection broken by 'NewConnectionError("
              "\\"HTTPSConnection(host='index.example', port=443): refused\\")': /a/", file=sys.stderr, flush=True)
    end = time.monotonic() + 60
    while not pathlib.Path({str(told)!r}).exists():
        assert time.monotonic() < end
        time.sleep(0.01)
"""
    said = []

    def say(text):
        said.append(text)
        if "does not answer" in text:
            told.touch()

    monkeypatch.setattr(install, "say", say)
    monkeypatch.setattr(install, "PIP", [install.sys.executable, "-c", script])
    assert install.main("constraints.txt") == 0
    lines = "".join(said).splitlines()
    assert lines == ["  index.example does not answer; pip tries again, which may take some minutes", "  done"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no make")
def test_make_in_a_folder_that_is_not_ones_own_says_what_to_do():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folder is closed to other users
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        os.chmod(folder, 0o555)
        user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(["make", "lab"], cwd=folder, env=own, capture_output=True, text=True, **user)
        os.chmod(folder, 0o755)
    assert done.stdout == "You may not write in this folder, and make and JupyterLab must: copy it to one of yours.\n"
    assert done.returncode and "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 1


def test_jupyterlab_asks_nothing_before_the_first_chapter():
    """Else a box about news lies on its text. The names are those that the installed JupyterLab knows."""
    [folder] = re.findall(r"--LabApp.app_settings_dir=(\S+)", (ROOT / "Makefile").read_text(encoding="utf8"))
    settings = json.loads((ROOT / folder / "overrides.json").read_text(encoding="utf8"))
    schemas = Path(get_app_dir()) / "schemas"
    for plugin, values in settings.items():
        name, part = plugin.split(":")
        known = json.loads((schemas / name / f"{part}.json").read_text(encoding="utf8"))["properties"]
        assert values.keys() <= known.keys()
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
