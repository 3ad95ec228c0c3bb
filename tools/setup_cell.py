# @title Set-up: does nothing in a checkout, fetches the repository elsewhere { display-mode: "form" }
import importlib.util
import os
import subprocess
import sys
from pathlib import Path


def fetch(repository, ref, folder):
    if not repository:
        here = f"synth_lib is neither in the working directory, {Path.cwd()}, nor above it"
        raise RuntimeError(f"{here}: open this notebook in its repository or set SYNTH_REPO.")
    if folder.exists():
        raise RuntimeError(f"{folder} is in the way, it does not hold the library: rename or remove it.")
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")  # a clone that is cut off is not taken for whole
    clone = ["git", "clone", "--quiet", "--depth=1", f"--branch={ref}", repository, str(part)]
    try:
        subprocess.run(clone, check=True, capture_output=True, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    except FileNotFoundError:
        raise RuntimeError("git is missing: install git, then run this cell again.") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise RuntimeError(f"The repository {repository} at {ref} cannot be fetched ({reason}).") from None
    return part.rename(folder)


if getattr(importlib.util.find_spec("synth_lib"), "origin", None) is None:
    folders = [Path.cwd(), *Path.cwd().parents, Path.cwd() / "synthesizers"]
    folder = next((folder for folder in folders if (folder / "synth_lib" / "shapes.py").is_file()), None)
    address = os.environ.get("SYNTH_REPO", "@REPOSITORY@"), os.environ.get("SYNTH_REF", "@REF@")
    sys.path.insert(0, str(folder or fetch(*address, folders[-1])))
missing = [name for name in ("einops", "tokenizers") if importlib.util.find_spec(name) is None]
if missing and subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *missing]).returncode:
    raise RuntimeError(f"{' and '.join(missing)} cannot be installed: check the network, then run this cell again.")
