"""The set-up cell of every notebook: nothing in a checkout, a clone elsewhere, else one clear sentence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.build_notebooks import opening_cells

ROOT = Path(__file__).resolve().parents[2]
PROBE = "\nimport synth_lib\nprint('FOUND', synth_lib.__file__)\n"
# What Colab has and a plain kernel lacks: the module google.colab, and a shell whose version is 7.34.
COLAB = """
import sys, types
import IPython
class Shell:
    def run_line_magic(self, *arguments):
        raise RuntimeError("the set-up cell needs no magic")
    run_cell_magic = system = run_line_magic
sys.modules["google"] = types.ModuleType("google")
sys.modules["google.colab"] = types.ModuleType("google.colab")
IPython.__version__, IPython.version_info = "7.34.0", (7, 34, 0, "")
IPython.get_ipython = get_ipython = Shell
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with one commit that holds synth_lib, as the address file://..."""
    folder = tmp_path_factory.mktemp("public")
    shutil.copytree(ROOT / "synth_lib", folder / "synth_lib", ignore=shutil.ignore_patterns("__pycache__"))
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        [*who, "commit", "--quiet", "-m", "first"],
        ["branch", "-f", "v1"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder.as_uri()


def run(folder, before="", address=("", "main"), without_cell=False, **environment):
    """Run the set-up cell and then an import, in `folder`, in a Python that has no synth_lib installed."""
    cell = "" if without_cell else opening_cells("notebooks/02_dense.ipynb", *address)[-1].source
    # -S leaves the installed packages out; named as plain folders, all but an editable synth_lib are back.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    script = folder / "cell.py"
    script.write_text(f"import sys\nsys.path += {packages!r}\n{before}\n{cell}\n{cell and PROBE}", encoding="utf8")
    ours = ("SYNTH_", "PYTHONPATH", "PYTHONSAFEPATH")  # a path may lead to a synth_lib
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-S", str(script)],
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
    )


def found(result):
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.rpartition("FOUND ")[2].strip()).resolve().parent.parent


def last_line(result):
    assert result.returncode != 0 and "During handling" not in result.stderr
    return result.stderr.strip().split("\n")[-1]


@pytest.mark.parametrize("folder", [".", "notebooks", "notebooks/solutions"])
def test_in_a_checkout_it_looks_upwards_and_fetches_nothing(tmp_path, folder):
    folder = tmp_path / folder
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "synth_lib", tmp_path / "synth_lib")
    # Python may be told to leave the folder of the script out, in which the library lies here.
    result = run(folder, SYNTH_REPO="file:///nowhere", PYTHONSAFEPATH="1")
    assert found(result) == tmp_path.resolve() and result.stdout.count("\n") == 1 and result.stderr == ""
    assert not (folder / "synthesizers").exists()


@pytest.mark.parametrize("before", ["", COLAB], ids=["jupyter", "colab"])
def test_in_a_bare_folder_it_fetches_the_repository(tmp_path, repository, before):
    result = run(tmp_path, before, SYNTH_REPO=repository, SYNTH_REF="v1")
    assert found(result) == tmp_path.resolve() / "synthesizers" and result.stderr == ""
    # The kernel restarts: what was fetched is used again, even without a network.
    assert found(run(tmp_path, before, SYNTH_REPO="file:///nowhere")) == tmp_path.resolve() / "synthesizers"


def test_only_a_missing_einops_is_installed(tmp_path, repository):
    without = """
import importlib.util, subprocess
real_find, real_run, installs = importlib.util.find_spec, subprocess.run, []
importlib.util.find_spec = lambda name: None if name == "einops" else real_find(name)
class Done:
    returncode = 0
def run(command, **options):
    if "pip" not in command:
        return real_run(command, **options)
    print("PIP", *command[command.index("pip") + 1 :])
    return Done
subprocess.run = run
"""
    result = run(tmp_path, without, SYNTH_REPO=repository, SYNTH_REF="v1")
    assert result.stdout.startswith("PIP install --quiet einops\nFOUND"), result.stderr


def test_an_address_that_cannot_be_reached_is_one_sentence(tmp_path):
    for address in ("http://127.0.0.1:9/name.git", (tmp_path / "nowhere").as_uri()):
        message = last_line(run(tmp_path, SYNTH_REPO=address))
        assert message.startswith(f"SetUpError: The repository {address} at main cannot be fetched (")
    assert not (tmp_path / "synthesizers").exists()


@pytest.mark.parametrize(("git", "why"), [
    ("fatal: could not read Username for 'https://h': terminal prompts disabled\n",
     "could not read Username for 'https://h': terminal prompts disabled"),
    ("remote: not found\nfatal: repository 'https://h/' not found\n", "repository 'https://h/' not found"),
    ("git@h: Permission denied.\nfatal: Could not read from remote repository.\n\n"
     "Please make sure you have the correct access rights\nand the repository exists.\n",
     "Could not read from remote repository."),
    ("fatal: the first\nfatal: the second\n", "the first"),
    ("error: no fatal line\nand more\n", "error: no fatal line"),
    ("", ""),
])  # fmt: skip
def test_a_repository_that_is_private_or_not_there_is_told_by_the_first_fatal_line(tmp_path, git, why):
    refuse = f"""
import subprocess
def run(command, **options):
    raise subprocess.CalledProcessError(128, command, b"", {git.encode()!r})
subprocess.run = run
"""
    message = last_line(run(tmp_path, refuse, SYNTH_REPO="https://h/"))
    assert message == f"SetUpError: The repository https://h/ at main cannot be fetched ({why}); git is needed."


def test_a_branch_that_does_not_exist_is_named(tmp_path, repository):
    message = last_line(run(tmp_path, SYNTH_REPO=repository, SYNTH_REF="v99"))
    assert "at v99 cannot be fetched" in message and "v99 not found" in message


def test_without_an_address_it_says_what_to_do(tmp_path):
    message = last_line(run(tmp_path))
    assert message.startswith(f"SetUpError: synth_lib is not in {tmp_path} nor above it: open this notebook in its")
    assert "put a cell above this one with the line %env SYNTH_REPO=https://..., its address, and run both" in message


def test_a_notebook_shows_the_sentence_alone(tmp_path):
    cell = opening_cells("notebooks/02_dense.ipynb", "", "main")[-1].source
    script = f"""
import os
from IPython.core.interactiveshell import InteractiveShell
os.environ["HOME"] = {str(tmp_path)!r}
shell = InteractiveShell.instance(colors="NoColor")
shell.run_cell({cell!r})
shell.run_cell("1 / 0")
"""
    result = run(tmp_path, script, without_cell=True)
    sentence, *other = result.stdout.strip().split("\n")
    assert sentence.startswith("Set-up: synth_lib is not in") and "%env SYNTH_REPO=" in sentence
    assert "Traceback" in "".join(other[:2]), "another error has its traceback"


def test_quotation_marks_around_an_address_do_not_count(tmp_path, repository):
    result = run(tmp_path, SYNTH_REPO=f' "{repository}"', SYNTH_REF="'v1'")
    assert found(result) == tmp_path.resolve() / "synthesizers"


def test_an_empty_address_is_none(tmp_path, repository):
    assert "put a cell above this one" in last_line(run(tmp_path, SYNTH_REPO=""))
    result = run(tmp_path, SYNTH_REPO="''", SYNTH_REF="", address=(repository, "v1"))
    assert found(result) == tmp_path.resolve() / "synthesizers", "the address that the build knows is used"


def test_another_repository_is_not_taken_for_the_library(tmp_path, repository):
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", repository, str(other)], check=True)
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "checkout", "--quiet", "--orphan", "main2"], cwd=other, check=True)
    subprocess.run(["git", "rm", "--quiet", "--cached", "-r", "."], cwd=other, check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "-m", "empty"], cwd=other, check=True)
    message = last_line(run(tmp_path, SYNTH_REPO=other.as_uri(), SYNTH_REF="main2"))
    assert "at main2 cannot be fetched (" in message and "whole/synth_lib'); git is needed." in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cell.py", "other"]


def test_without_git_it_says_so(tmp_path, repository):
    message = last_line(run(tmp_path, SYNTH_REPO=repository, PATH=str(tmp_path)))
    assert "cannot be fetched ([Errno 2] No such file or directory: 'git'); git is needed." in message


def test_where_nothing_can_be_written_it_says_so(tmp_path, repository):
    refuse = "import tempfile\n\ndef full(**options):\n    raise PermissionError(13, 'Permission denied', 'here')"
    message = last_line(run(tmp_path, f"{refuse}\ntempfile.TemporaryDirectory = full", SYNTH_REPO=repository))
    assert "cannot be fetched ([Errno 13] Permission denied: 'here')" in message


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch], ids=["folder", "file"])
def test_what_is_in_the_way_is_named(tmp_path, repository, make):
    make(tmp_path / "synthesizers")
    assert "synthesizers is in the way" in last_line(run(tmp_path, SYNTH_REPO=repository, SYNTH_REF="v1"))


def test_an_empty_folder_of_that_name_is_not_the_library(tmp_path, repository):
    (tmp_path / "synth_lib").mkdir()
    result = run(tmp_path, SYNTH_REPO=repository, SYNTH_REF="v1")
    assert found(result) == tmp_path.resolve() / "synthesizers"


def test_a_clone_that_was_cut_off_is_not_taken_for_the_library(tmp_path, repository):
    (tmp_path / "synthesizers.1.part" / "synth_lib").mkdir(parents=True)
    assert found(run(tmp_path, SYNTH_REPO=repository, SYNTH_REF="v1")) == tmp_path.resolve() / "synthesizers"
