"""make update: the newer version comes, and nothing that the reader made is lost, whatever they did before."""

import json
import os
import subprocess

import pytest

from tools import update

DATE = "2026-01-31"
IDENTITY = {"user.name": "test", "user.email": "test@example.org", "init.defaultBranch": "main"}
SETTINGS = [part for name, value in IDENTITY.items() for part in ("-c", f"{name}={value}")]


def git(folder, *arguments):
    command = ["git", *SETTINGS, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, encoding="utf8").stdout


def notebook(source, output="1.0", **metadata):
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": [source], "outputs": [{"text": [output]}]}
    metadata = {"kernelspec": {"display_name": "Python 3", "name": "python3"}, **metadata}
    return json.dumps({"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def write(folder, **files):
    """Files by name: __ stands for a folder, _ for the point of the ending."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/").replace("_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")


def publish(folder, **files):
    write(folder, **files)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "a version")
    return folder


@pytest.fixture
def public(tmp_path):
    """What is published: two chapters and a module."""
    folder = tmp_path / "public"
    folder.mkdir()
    git(folder, "init", "--quiet")
    first = {name: notebook("raise NotImplementedError") for name in ("notebooks__02_ipynb", "notebooks__03_ipynb")}
    return publish(folder, **first, lib__scores_py="one\n", _gitignore="runs/\nmine/\n")


@pytest.fixture
def clone(tmp_path, public):
    git(tmp_path, "clone", "--quiet", str(public), "clone")
    return tmp_path / "clone"


def newer(public):
    """The next version: chapter 02 and the module change, 03 does not, 04 and a table of results are new."""
    return publish(
        public,
        notebooks__02_ipynb=notebook("raise NotImplementedError  # newer"),
        notebooks__04_ipynb=notebook("new"),
        lib__scores_py="two\n",
        results__table_txt="new\n",
    )


def contents(folder):
    """{path: bytes} of everything but git's own files."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".git" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def refused(clone, capsys):
    """The one sentence of an update that cannot be, after which everything is as before."""
    before = contents(clone), git(clone, "rev-parse", "HEAD") if (clone / ".git").exists() else None
    assert update.main(clone) == 1
    after = contents(clone), git(clone, "rev-parse", "HEAD") if (clone / ".git").exists() else None
    assert after == before
    out, said = capsys.readouterr()
    assert out == "" and said.count("\n") == 1 and said.endswith(". Nothing was changed.\n") and "REASON" not in said
    return said


def test_an_untouched_clone_gets_the_newer_version(public, clone):
    newer(public)
    assert update.update(clone, DATE) == ["This is the newest version now."]
    assert contents(clone) == contents(public)
    assert update.update(clone, DATE) == ["This is the newest version. Nothing was changed."]


def test_a_solved_chapter_is_kept_as_it_was_left(public, clone):
    solved, other = notebook("return 1", "Right."), notebook("return 2")
    write(clone, notebooks__02_ipynb=solved, notebooks__03_ipynb=other, notebooks__notes_txt="mine", lib__own_py="S")
    newer(public)
    said = update.update(clone, DATE)
    kept = {f"mine/{DATE}/notebooks/02.ipynb": solved, "notebooks/03.ipynb": other}
    kept |= {"notebooks/notes.txt": "mine", "lib/own.py": "S"}
    assert contents(clone) == contents(public) | {path: text.encode() for path, text in kept.items()}
    assert said[1].endswith(f"in {clone / 'mine' / DATE}:") and said[2:] == ["  notebooks/02.ipynb"]


def test_a_second_update_on_the_same_day_leaves_the_first_copy_alone(public, clone):
    for number, folder in ((1, DATE), (2, f"{DATE}-2")):
        write(clone, lib__scores_py=f"mine {number}\n")
        publish(public, lib__scores_py=f"newer {number}\n")
        update.update(clone, DATE)
        assert (clone / "mine" / folder / "lib/scores.py").read_text(encoding="utf8") == f"mine {number}\n"
    assert (clone / "mine" / DATE / "lib/scores.py").read_text(encoding="utf8") == "mine 1\n"


def test_a_chapter_that_was_only_opened_leaves_no_copy(public, clone):
    opened = {"kernelspec": {"display_name": "Python 3 (ipykernel)"}, "language_info": {"version": "3.14"}}
    write(clone, notebooks__02_ipynb=notebook("raise NotImplementedError", **opened))
    newer(public)
    assert update.update(clone, DATE) == ["This is the newest version now."]
    assert contents(clone) == contents(public)


@pytest.mark.parametrize(
    "change",
    [
        {"source": "raise NotImplementedError", "output": "2.0"},
        {"source": "raise NotImplementedError ", "output": "1.0"},
        {"source": "raise NotImplementedError", "output": "1.0", "reader": "a note"},
    ],
    ids=["output", "source", "metadata"],
)
def test_what_the_reader_made_is_more_than_opening(public, clone, change):
    write(clone, notebooks__02_ipynb=notebook(**change))
    newer(public)
    update.update(clone, DATE)
    assert (clone / "mine" / DATE / "notebooks/02.ipynb").read_text(encoding="utf8") == notebook(**change)


def test_a_notebook_that_cannot_be_read_is_kept(public, clone):
    for name in ("02", "03"):
        write(clone, **{f"notebooks__{name}_ipynb": '{"cells": [1'})
    newer(public)
    update.update(clone, DATE)
    assert (clone / "mine" / DATE / "notebooks/02.ipynb").read_text(encoding="utf8") == '{"cells": [1'


@pytest.mark.parametrize(
    "path", ["notebooks/04.ipynb", "results", "results/table.txt/deep/own.txt"], ids=["file", "for folder", "folder"]
)
@pytest.mark.parametrize("ignored", [False, True], ids=["", "ignored"])
def test_a_file_of_ones_own_in_the_place_of_a_new_one_is_kept(public, clone, path, ignored):
    if ignored:  # git itself overwrites an ignored file without a word
        (clone / ".git/info/exclude").write_text(f"/{path}\n", encoding="utf8")
    (clone / path).parent.mkdir(parents=True, exist_ok=True)
    (clone / path).write_text("mine", encoding="utf8")
    newer(public)
    update.update(clone, DATE)
    assert contents(clone) == contents(public) | {f"mine/{DATE}/{path}": b"mine"}


@pytest.mark.skipif(os.name == "nt", reason="Windows wants a privilege for links")
def test_a_link_that_leads_nowhere_is_a_file_of_ones_own(public, clone):
    (clone / "notebooks/04.ipynb").symlink_to("nowhere")
    newer(public)
    update.update(clone, DATE)
    assert os.readlink(clone / "mine" / DATE / "notebooks/04.ipynb") == "nowhere"


def test_a_changed_file_that_the_newer_version_drops_is_kept(public, clone):
    write(clone, notebooks__02_ipynb=notebook("return 1"))
    git(public, "rm", "--quiet", "notebooks/02.ipynb")
    git(public, "commit", "--quiet", "-m", "dropped")
    update.update(clone, DATE)
    assert contents(clone) == contents(public) | {f"mine/{DATE}/notebooks/02.ipynb": notebook("return 1").encode()}


def test_a_chapter_that_was_deleted_comes_back(public, clone):
    (clone / "notebooks/02.ipynb").unlink()
    newer(public)
    update.update(clone, DATE)
    assert contents(clone) == contents(public)


def own_commit(clone):
    publish(clone, lib__own_py="own\n")


def unfinished_merge(clone):
    git(clone, "switch", "--quiet", "-c", "other")
    publish(clone, lib__scores_py="other\n")
    git(clone, "switch", "--quiet", "main")
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "own")
    publish(clone, lib__scores_py="own\n")
    subprocess.run(["git", *SETTINGS, "merge", "--quiet", "other"], cwd=clone, capture_output=True)


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (own_commit, "has commits of its own (1) beside the newer ones (1): bring both together yourself, by git"),
        (unfinished_merge, "An earlier merge is not finished: finish it, or take it back by git merge --abort."),
        (lambda clone: git(clone, "switch", "--quiet", "--detach"), "a fixed version, not a branch that goes on"),
        (lambda clone: git(clone, "switch", "--quiet", "-c", "own"), "The branch own follows no published one"),
        (lambda clone: git(clone, "remote", "remove", "origin"), "The branch main follows no published one"),
        (lambda clone: git(clone, "remote", "set-url", "origin", "/nowhere"), "cannot be fetched ("),
        (lambda clone: os.rename(clone / ".git", clone.parent / "git"), "is not a clone (not a git repository"),
        (lambda clone: git(clone, "add", "."), "notebooks/02.ipynb is staged for a commit: take it back, by git"),
        (lambda clone: (clone / ".git/index.lock").touch(), "git checkout failed: Unable to create"),
    ],
    ids=["commits", "merge", "detached", "no upstream", "no remote", "offline", "no clone", "staged", "locked"],
)
def test_where_it_cannot_be_one_sentence_says_why_and_all_is_as_before(public, clone, capsys, do, says):
    newer(public)
    write(clone, notebooks__03_ipynb=notebook("return 1"))
    if do is not own_commit:
        write(clone, notebooks__02_ipynb=notebook("return 1"))
    do(clone)
    assert says in refused(clone, capsys)
    assert not (clone / "mine").exists()


def test_a_merge_that_stops_half_way_is_undone(public, clone, capsys):
    newer(public)
    write(clone, notebooks__02_ipynb=notebook("return 1"), notebooks__04_ipynb="mine")
    hook = clone / ".git/hooks/reference-transaction"  # asked when the files are written
    hook.write_text('#!/bin/sh\n[ "$1" != prepared ] || ! grep -q refs/heads/main\n', encoding="utf8")
    hook.chmod(0o755)
    before = contents(clone)
    assert update.main(clone) == 1
    assert contents(clone) | before == contents(clone)
    assert "git cannot go to the newer version (" in capsys.readouterr().err
    assert (clone / "lib/scores.py").read_text(encoding="utf8") == "one\n" and not (clone / "mine").exists()


def test_a_folder_inside_another_repository_is_not_updated(public, clone, capsys):
    inner = clone / "copy"
    inner.mkdir()
    assert "lies in another repository" in refused(inner, capsys)


def test_without_git_it_says_so(clone, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(clone))
    assert update.main(clone) == 1
    assert capsys.readouterr().err == "git is missing: install git, then call this again. Nothing was changed.\n"
