"""Which version of the course this is: what a teacher pins, and what stands in a hand-out."""

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version(root=ROOT):
    """The tag, as "v0.1.0"; later commits, and changes that are in no commit, show ("v0.1.0-3-g1a2b3c4-dirty").

    Without a tag, without git, or where the folder is no clone itself: the version in pyproject.toml, "0.1.0".
    """
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "describe", "--tags", "--dirty"]
        try:
            return subprocess.run(command, capture_output=True, encoding="utf8", check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            pass
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]["version"]


if __name__ == "__main__":
    print(version())
