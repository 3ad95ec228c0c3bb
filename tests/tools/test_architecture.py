"""docs/architecture.md: what it says to add an S, a chapter and a corpus is done in a copy, and passes the tests there.

The exercise is that of docs/teaching.md: tests/tools/classroom/test_guide.py adds it.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")


def blocks(title):
    """The code blocks of one section, in order."""
    section = re.search(rf"^## {title}.*?(?=^## |\Z)", GUIDE, flags=re.M | re.S)[0]
    return [textwrap.dedent(block) for block in re.findall(r"```\w+\n(.*?)```", section, flags=re.S)]


def append(path, text):
    path.write_text(f"{path.read_text(encoding='utf8')}\n\n{text}", encoding="utf8")


def below(path, pattern, lines):
    """Each of the lines stands below one that matches: the first below the first, and so on."""
    head, *parts = re.split(rf"(?m)^(?={pattern})", path.read_text(encoding="utf8"))
    parts = [part.replace("\n", f"\n{line}\n", 1) for part, line in zip(parts, lines, strict=True)]
    path.write_text(head + "".join(parts), encoding="utf8")


def run(folder, *command):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A copy of the repository after all recipes."""
    folder = tmp_path_factory.mktemp("architecture")
    for name in ("synth_lib", "tools", "tests", "data", "notebooks/src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "conftest.py", "README.md"):
        shutil.copy(ROOT / name, folder)

    score, facts, loops = blocks("To add an S")
    append(folder / "synth_lib/scores.py", score)
    below(folder / "tests/helpers/properties.py", r' +"factorized_random": ', facts.splitlines())
    append(folder / "tests/helpers/reference.py", loops)

    source, row = blocks("To add a chapter")
    (folder / "notebooks/src/14_offsets.py").write_text(source, encoding="utf8")
    below(folder / "README.md", r"\| \[13 ", [row.strip()])

    make, read, row = blocks("To add a corpus")
    checksum = run(folder, "-c", make).strip()
    append(folder / "synth_lib/text/corpora.py", read.replace("CHECKSUM", checksum))
    below(folder / "data/README.md", r"\| `wordnet_gloss8", [row.strip().replace("CHECKSUM", checksum)])
    return folder


def test_what_was_added_passes(repository):
    """One run of all, since each loads torch; each S compiles in seconds, and those of the library do it elsewhere."""
    assert run(repository, "tools/build_notebooks.py", "14_offsets") == "14_offsets: built\n"
    tests = [f"tests/{name}" for name in ("test_scores.py", "test_attention.py", "text/test_corpora.py", "notebooks")]
    tests += [f"tests/{name}" for name in ("test_fast.py", "test_cache.py", "lab/test_bench.py", "lab/test_train.py")]
    tests += ["tests/tools/test_readme.py", "tests/tools/test_merge_notebooks.py", "tests/test_imports.py"]
    chosen = "toeplitz and not compiles or names_are_the_tested or readme_gives or chapter_14 or is_small"
    passed = run(repository, "-m", "pytest", "-v", "-p", "no:cacheprovider", *tests, "-k", chosen)
    assert run(repository, "-m", "ruff", "check", ".") == "All checks passed!\n"
    least = {"is_small": 1, "toeplitz": 20, "chapter_14": 10}
    least |= {"names_are_the_tested": 1, "readme_gives_the_checksums": 1}
    assert all(len(re.findall(rf"{name}.* PASSED", passed)) >= count for name, count in least.items()), passed


def test_the_new_s_is_whole(repository):
    """It gets the rate of the tables, its kernel, a cache and a model by its name."""
    assert run(repository, "-c", WHOLE) == "('diagonals',) one map True\n"


WHOLE = """
import torch
from synth_lib import fast
from synth_lib.models import LanguageModel
model = LanguageModel(11, 12, 3, 2, 300, "toeplitz").eval()
score = model.blocks[0].attention.score
kernel = fast.choose(score, torch.zeros(2, 300, 12), 300, None, True)
tokens = torch.randint(11, (2, 5))
texts = [model.generate(tokens, 9, temperature=0, cache=cache) for cache in (True, False)]
print(score.tables, kernel, torch.equal(*texts))
"""


def test_the_commands_and_links_exist():
    prose = re.sub(r"```.*?```", "", GUIDE, flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert (ROOT / "docs" / target).exists(), target
    for path in re.findall(r"`((?:synth_lib|tests|tools|data|notebooks|docs)/[\w/.]*)`", prose):
        assert (ROOT / path).exists() or "14" in path, path
