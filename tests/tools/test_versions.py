"""A version has one place, pyproject.toml; a tag is a course that a teacher can pin, and stands in the hand-out."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from synth_lib.checks import find
from tools.build_notebooks import NOTEBOOKS
from tools.classroom import assignment
from tools.classroom import course as courses
from tools.version import version

ROOT = Path(__file__).resolve().parents[2]
NUMBER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["version"]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf8")
SOURCES = sorted((NOTEBOOKS / "src").glob("*.py"))


@pytest.fixture
def clone(tmp_path):
    """A repository with one commit, and a function that calls git in it."""
    if shutil.which("git") is None:
        pytest.skip("git is missing: install it, and this test runs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def git(*arguments):
        who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    return tmp_path, git


def test_a_tag_is_the_version_and_what_is_not_in_it_shows(clone):
    folder, git = clone
    assert version(folder) == NUMBER
    git("tag", "v7.0")
    assert version(folder) == "v7.0"
    git("commit", "--quiet", "--allow-empty", "-m", "second")
    assert re.fullmatch(r"v7\.0-1-g[0-9a-f]+", version(folder))
    with open(folder / "pyproject.toml", "a", encoding="utf8") as file:
        file.write("\n# mine\n")
    assert version(folder).endswith("-dirty")


def test_without_git_or_in_another_repository_the_number_is_the_version(clone, monkeypatch):
    folder, git = clone
    git("tag", "v7.0")
    (folder / "inner").mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder / "inner")
    assert version(folder / "inner") == NUMBER
    monkeypatch.setenv("PATH", str(folder))
    assert version(folder) == NUMBER


def test_a_hand_out_says_its_version(monkeypatch):
    monkeypatch.setattr(assignment, "version", lambda: "v7.0")
    text = assignment.readme(courses.read(["02"]), None, "main")
    assert text.endswith("\nMade from version v7.0 of the course.\n")


def test_the_changes_begin_with_this_version_and_name_every_chapter_and_exercise():
    first = re.search(r"^## (\S+?),? .*?(?=^## |\Z)", CHANGES, re.M | re.S)
    assert first[1] == NUMBER
    rows = re.findall(r"^\| (\d\d) [^|]*\| \1\.1 to \1\.(\d) \|", first[0], re.M)
    assert [number for number, _ in rows] == [path.stem[:2] for path in SOURCES]
    for number, last in rows:
        assert find(f"{number}.{last}").key == f"{number}.{last}"
        with pytest.raises(ValueError):
            find(f"{number}.{int(last) + 1}")


def test_the_citation_has_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation) and citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == NUMBER and citation["license"] == "MIT"
    (authors,) = citation["authors"]
    assert authors["name"] in (ROOT / "LICENSE").read_text(encoding="utf8")
    paper = citation["preferred-citation"]
    names = ", ".join(f"{author['given-names']} {author['family-names']}" for author in paper["authors"])
    said = " ".join((ROOT / "README.md").read_text(encoding="utf8").replace(">", " ").split())
    assert f"{names}. *{paper['title']}.*" in said and str(paper["year"]) in said
