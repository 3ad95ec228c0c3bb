"""Bring a newer version of this repository, and keep what its reader made.

    python tools/update.py        # `make update` calls it

Only files that the newer version changes are touched. Where the reader changed one of them too, their file is moved,
as it is, to mine/DATE/ first; a notebook that was only opened (JupyterLab then names the kernel anew) has nothing of
theirs and is not kept. When no newer version can be had, one sentence says why, and everything is as before.
"""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AS_BEFORE = "Nothing was changed."


class NotUpdatedError(Exception):
    """The repository is as it was; the message is one sentence that says why."""


def git(root, *arguments, problem=None):
    """What git prints, as text. Where it fails: NotUpdatedError with `problem`, git's reason in place of REASON."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(["git", *arguments], cwd=root, env=environment, capture_output=True)
    except FileNotFoundError:
        raise NotUpdatedError("git is missing: install git, then call this again.") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode("utf8", "replace").splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith(("fatal:", "error:"))), "no reason given")
        problem = problem or f"git {arguments[0]} failed: REASON."
        raise NotUpdatedError(problem.replace("REASON", (reason.partition(": ")[2] or reason).rstrip(".")))
    return done.stdout.decode("utf8", "surrogateescape")


def names(text):
    """The paths that git prints with -z."""
    return [name for name in text.split("\0") if name]


def newer(root):
    """The commit to go to, or None where this is the newest. Only git's own record of what is published changes."""
    clone = "clone it into another folder, and copy your notebooks there."
    top = git(root, "rev-parse", "--show-toplevel", problem=f"This folder is not a clone (REASON): {clone}").strip()
    if Path(top).resolve() != root.resolve():
        raise NotUpdatedError(f"This folder lies in another repository, {top}, and is not a clone itself: {clone}")
    if git(root, "ls-files", "--unmerged"):
        raise NotUpdatedError("An earlier merge is not finished: finish it, or take it back by git merge --abort.")
    fixed = "This is a fixed version, not a branch that goes on: go to one first, as by git switch main."
    branch = git(root, "symbolic-ref", "--short", "HEAD", problem=fixed).strip()
    alone = f"The branch {branch} follows no published one: go to one that does, as by git switch main."
    upstream = git(root, "rev-parse", "--abbrev-ref", "@{upstream}", problem=alone).strip()
    git(root, "fetch", "--quiet", problem="The newer version cannot be fetched (REASON).")
    own, new = map(int, git(root, "rev-list", "--left-right", "--count", "HEAD...@{upstream}").split())
    if own and new:
        raise NotUpdatedError(
            f"The branch {branch} has commits of its own ({own}) beside the newer ones ({new}): "
            f"bring both together yourself, by git merge {upstream}."
        )
    return git(root, "rev-parse", "@{upstream}").strip() if new else None


def in_the_way(root, commit):
    """(paths that the commit changes and the reader changed or made, those that only the commit changes), both sorted.

    NotUpdatedError where a file of the reader's is staged: the stage can hold a third version, which the file has not.
    """
    coming = names(git(root, "diff", "--name-only", "--no-renames", "-z", "HEAD", commit))
    touched = set(coming)
    for path in coming:
        touched |= {parent.as_posix() for parent in Path(path).parents if there(root / parent)}
        if not there(root / path) and (root / path).is_dir():  # a folder of the reader's where a file will be
            touched |= set(names(git(root, "ls-files", "--others", "-z", "--", path)))
    staged = touched.intersection(names(git(root, "diff", "--cached", "--name-only", "--no-renames", "-z", "HEAD")))
    if staged:
        name = min(staged)
        raise NotUpdatedError(f"{name} is staged for a commit: take it back, by git restore --staged '{name}'.")
    changed = set(names(git(root, "diff", "--name-only", "--no-renames", "-z", "HEAD")))
    known = set(names(git(root, "ls-tree", "-r", "--name-only", "-z", "HEAD")))
    mine = {path for path in touched if (path in changed or path not in known) and there(root / path)}
    return sorted(mine), sorted(known.intersection(coming) - changed)


def there(path):
    """Whether a file lies there; a link, wherever it leads, is one."""
    return path.is_symlink() or path.is_file()


def only_opened(before, now):
    """Whether two notebooks, as text, differ in nothing but the kernel that JupyterLab names when it opens one."""
    try:
        before, now = json.loads(before), json.loads(now)
        for notebook in (before, now):
            for name in ("kernelspec", "language_info"):
                notebook["metadata"].pop(name, None)
            for cell in notebook["cells"]:
                cell["source"] = "".join(cell["source"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return before == now


def update(root, today):
    """Go to the newer version; a list of sentences that say what happened. NotUpdatedError: everything is as before."""
    commit = newer(root)
    if commit is None:
        return ["This is the newest version. " + AS_BEFORE]
    paths, others = in_the_way(root, commit)
    known = set(names(git(root, "ls-tree", "-r", "--name-only", "-z", "HEAD")))
    opened = set()
    for path in known.intersection(paths):
        if path.endswith(".ipynb"):
            before = git(root, "show", f"HEAD:{path}")
            if only_opened(before, (root / path).read_text(encoding="utf8", errors="replace")):
                opened.add(path)
    tries = (root / "mine" / f"{today}{end}" for end in ("", *(f"-{number}" for number in range(2, 1000))))
    folder = next(one for one in tries if not os.path.lexists(one))
    all_moved = False
    try:
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(root / path, folder / path)
        all_moved = True
        if known.intersection(paths):
            git(root, "checkout", "--quiet", "HEAD", "--", *known.intersection(paths))
        git(root, "merge", "--quiet", "--ff-only", commit, problem="git cannot go to the newer version (REASON).")
    except BaseException as error:  # an interrupt, too
        if git(root, "rev-parse", "HEAD").strip() != commit:
            for path in paths:
                if there(folder / path):
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(folder / path, root / path)
            empty_away(folder)
            if all_moved and others:  # git may have been stopped half way; nothing of the reader's is in these
                git(root, "checkout", "--quiet", "HEAD", "--", *others)
        if isinstance(error, OSError):
            raise NotUpdatedError(f"A file cannot be moved to {folder} ({error.strerror}).") from None
        raise
    for path in opened:
        (folder / path).unlink()
    empty_away(folder)
    said = ["This is the newest version now."]
    kept = [path for path in paths if path not in opened]
    if kept:
        said.append(f"Files that you and the newer version had both changed lie, as you left them, in {folder}:")
        said += [f"  {path}" for path in kept]
    return said


def empty_away(folder):
    """Remove the folder's empty folders, itself and mine/ included; a file is never removed."""
    for inner, _, _ in [*os.walk(folder, topdown=False), (folder.parent, [], [])]:
        if os.path.isdir(inner) and not os.listdir(inner):
            os.rmdir(inner)


def main(root=ROOT):
    try:
        print(*update(root, datetime.date.today().isoformat()), sep="\n")
    except NotUpdatedError as error:
        print(f"{error} {AS_BEFORE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # a path that a pipe of Windows cannot write stops nothing
    sys.exit(main())
