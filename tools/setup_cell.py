# @title Set-up: does nothing in a checkout, fetches the repository elsewhere { display-mode: "form" }
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path


class SetUpError(RuntimeError):
    def _render_traceback_(self):  # a notebook then shows the sentence alone
        return [f"Set-up: {self}"]


def fetch(repository, ref, folder):
    if not repository:
        known = "https://..., the address of the repository that it comes from"
        line = f"put a cell above this one with the line %env SYNTH_REPO={known}, and run both"
        here = f"synth_lib is neither in the working directory, {Path.cwd()}, nor above it"
        raise SetUpError(f"{here}: open this notebook in its repository, or, to fetch the library, {line}.")
    if folder.exists():
        raise SetUpError(f"{folder} is in the way, it does not hold the library: rename or remove it.")
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")  # a clone that is cut off is not taken for whole
    clone = ["git", "clone", "--quiet", "--depth=1", f"--branch={ref}", repository, str(part)]
    try:
        subprocess.run(clone, check=True, capture_output=True, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    except FileNotFoundError:
        raise SetUpError("git is missing: install git, then run this cell again.") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise SetUpError(f"The repository {repository} at {ref} cannot be fetched ({reason}).") from None
    if not (part / "synth_lib" / "shapes.py").is_file():
        shutil.rmtree(part, ignore_errors=True)
        raise SetUpError(f"The repository {repository} at {ref} holds no synth_lib: is it the one of this notebook?")
    return part.rename(folder)


if getattr(importlib.util.find_spec("synth_lib"), "origin", None) is None:
    folders = [Path.cwd(), *Path.cwd().parents, Path.cwd() / "synthesizers"]
    folder = next((folder for folder in folders if (folder / "synth_lib" / "shapes.py").is_file()), None)
    names = {"SYNTH_REPO": "@REPOSITORY@", "SYNTH_REF": "@REF@"}  # %env keeps quotation marks
    address = [os.environ.get(name, "").strip(" \"'") or known for name, known in names.items()]
    sys.path.insert(0, str(folder or fetch(*address, folders[-1])))
missing = [name for name in ("einops", "tokenizers") if importlib.util.find_spec(name) is None]
if missing and subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *missing]).returncode:
    raise SetUpError(f"{' and '.join(missing)} cannot be installed: check the network, then run this cell again.")
