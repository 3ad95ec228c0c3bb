"""Try the notebooks and the site in a real browser: `make browser`, or python tools/browser/run.py.

It installs the extra `browser` where it is missing, builds the site, and leaves pictures and JupyterLab's log in
build/browser. The browser is Chromium or Chrome: CHROMIUM=path, one on the PATH, or what `python -m playwright install
chromium` has brought. Where there is none, it says so in one sentence; under CI=true that is a failure.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "browser"  # pictures
MINUTE = 60_000  # milliseconds
LONG = 30 * MINUTE  # for cells that train
sys.path.insert(0, str(ROOT))

from tools import install  # noqa: E402

NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"


def find_browser():
    """The path of a browser, or None. Raises FileNotFoundError if CHROMIUM names no file."""
    if given := os.environ.get("CHROMIUM"):
        if not Path(given).is_file():
            raise FileNotFoundError(f"CHROMIUM is {given}, and there is no such file.")
        return given
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else None


def main(constraints="constraints.txt", *options):
    names = "playwright", "axe_playwright_python"
    if not all(map(importlib.util.find_spec, names)) and (code := install.main(constraints, "browser")):
        return code
    try:
        browser = find_browser()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    if browser is None:
        print("Skipped: no Chromium or Chrome is here; `python -m playwright install chromium` in .venv brings one.")
        return int(bool(os.environ.get("CI")))
    if code := subprocess.run([sys.executable, "tools/book/build.py"], cwd=ROOT).returncode:
        return code
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "tools/browser", *options]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "CHROMIUM": browser}).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
