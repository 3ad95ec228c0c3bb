"""The commands of README, CONTRIBUTING and docs/ exist, with the options that they are given; the cheap ones are run.

Those that install or take minutes are run by the continuous integration (.ci/readme), as they stand in the README.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from synth_lib.lab.__main__ import _parsers

ROOT = Path(__file__).resolve().parents[2]
NAMES = [path.relative_to(ROOT).as_posix() for path in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")))]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["optional-dependencies"]
FIRST = r"(?:[A-Z_]+=\S+ )*(?:make|(?:\.venv/bin/)?(?:python|pip)|jupyter|conda|suite|card|bench|probes|train)\b"


def commands(text):
    """The commands of a page: in code spans, and the lines of blocks for a shell."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.M | re.S)
    lines = [line for kind, block in blocks if kind in ("", "sh") for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"`([^`]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S))
    wanted = [" ".join(one.partition(" #")[0].split()) for one in lines + spans]
    return [one for one in wanted if re.match(FIRST + " ", one)]


PAGES = {name: (ROOT / name).read_text(encoding="utf8") for name in NAMES}
ALL = sorted({(name, one) for name, text in PAGES.items() for one in commands(text)})
RUN = [one for _, one in ALL if one.startswith(".venv/bin/python ") and (one.endswith("--help") or " -c " in one)]


def test_the_commands_are_found():
    found = {one for _, one in ALL}
    assert {"make lab", "make test", "make update", "python tools/test.py"} <= found
    assert len(found) > 30 and len(RUN) >= 2


@pytest.mark.parametrize(("name", "command"), ALL)
def test_a_command_exists_and_knows_its_options(name, command):
    settings = re.match(r"(?:[A-Z_]+=\S+ )*", command)[0]
    program, *words = shlex.split(command[len(settings) :])
    if program == "make":
        verbs = [word for word in words if "=" not in word]
        assert all(re.search(rf"^{verb}:", MAKEFILE, re.M) for verb in verbs), verbs
        given = [word.split("=")[0] for word in words if "=" in word]
        assert all(re.search(rf"\$\((?:\w+ )?{name}\b|,{name}\b", MAKEFILE) for name in given), given
        return
    for path in re.findall(r"(?<![\w/.])(?:tools|tests|notebooks)/[\w/.]*|[\w-]+\.yml|constraints\S*\.txt", command):
        assert (ROOT / path).exists(), path
    for extras in re.findall(r"\.\[([\w,]+)\]", command):
        assert set(extras.split(",")) <= set(EXTRAS), extras
    if program.endswith("python") and words[0] == "-m":
        assert importlib.util.find_spec(words[1]), words[1]
        if "-k" in words:  # a chapter that there is, or what a recipe of this page makes
            word = words[words.index("-k") + 1].removeprefix("chapter_")
            made = any(f"{word}{behind}" in PAGES[name] for behind in ("_", '"'))
            assert made or list((ROOT / "notebooks" / "src").glob(f"{word}_*.py")), word
    arguments = words[2:] if "synth_lib.lab" in words else [program, *words]
    if program in ("suite", "card", "bench", "probes", "train") or "synth_lib.lab" in words and "..." not in words:
        if "--help" not in arguments and (len(arguments) > 2 or arguments[0] != "suite"):
            parser, _ = _parsers()
            assert vars(parser.parse_args(arguments))["command"] == arguments[0]


@pytest.mark.parametrize("command", RUN)
def test_a_cheap_command_runs_as_it_stands(command):
    _, *words = shlex.split(command)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True)
    assert done.returncode == 0 and done.stdout.strip() and not done.stderr, done.stderr.decode()
