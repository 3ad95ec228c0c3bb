# @title Set-up: run this cell and read on { display-mode: "form" }
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SetUpError = type("SetUpError", (Exception,), {"_render_traceback_": lambda error: [f"Set-up: {error}"]})  # no code


def fetch(folder, repo="@REPOSITORY@", ref="@REF@"):
    if not repo:
        line = "put a cell above this one with the line %env SYNTH_REPO=https://..., its address, and run both"
        raise SetUpError(f"synth_lib is not in {Path.cwd()} nor above it: open this notebook in its folder, or {line}.")
    if folder.exists():
        raise SetUpError(f"{folder} is in the way, it does not hold the library: rename or remove it.")
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent) as part:  # a clone that is cut off is not taken for whole
            clone = ["git", "clone", "--quiet", "--depth=1", f"--branch={ref}", repo, f"{part}/whole"]
            subprocess.run(clone, check=True, capture_output=True, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
            return Path(part, "whole", "synth_lib", "shapes.py").resolve(strict=True).parents[1].rename(folder)
    except (OSError, subprocess.CalledProcessError) as bad:
        why = getattr(bad, "stderr", str(bad).encode()).decode(errors="replace").split("fatal: ", 1)[-1].split("\n")[0]
        raise SetUpError(f"The repository {repo} at {ref} cannot be fetched ({why}); git is needed.") from None


if getattr(importlib.util.find_spec("synth_lib"), "origin", None) is None:
    folders = [Path.cwd(), *Path.cwd().parents, Path.cwd() / "synthesizers"]
    folder = next((folder for folder in folders if (folder / "synth_lib" / "shapes.py").is_file()), None)
    texts = {name: os.environ.get(f"SYNTH_{name.upper()}", "").strip(" \"'") for name in ("repo", "ref")}
    sys.path.insert(0, str(folder or fetch(folders[-1], **{name: text for name, text in texts.items() if text})))
missing = [name for name in ("einops", "tokenizers") if importlib.util.find_spec(name) is None]
if missing and subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *missing]).returncode:
    raise SetUpError(f"{' and '.join(missing)} cannot be installed: check the network, then run this cell again.")
