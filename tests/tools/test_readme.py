"""The README says what the chapters say: every chapter, its minutes and level; its links and its example work."""

import re
from pathlib import Path

import pytest

from tools import address
from tools.build_notebooks import settings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf8")
CHAPTERS = sorted((ROOT / "notebooks" / "src").glob("*.py"))


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: f"chapter_{path.stem}")
def test_a_chapter_stands_in_the_table_with_its_minutes_and_level(source):
    head = source.read_text(encoding="utf8")[:2000]
    minutes = re.search(r"\*\*Time:\*\* about (\d+) minutes", head)[1]
    level = re.search(r"\*\*Level:\*\* (\w+)", head)[1]
    row = re.search(rf"^\|[^|]*\(notebooks/{source.stem}\.ipynb\)[^|]*\|[^|]*\| (\d+) \| (\w+) \|$", README, re.M)
    assert row, f"no row for {source.stem}"
    assert row.groups() == (minutes, level)


def test_it_says_where_the_course_is_read_and_run():
    """python tools/address.py writes it, from the address in pyproject.toml."""
    assert address.parts(README)[1] == address.ways(**settings())


def test_with_an_address_site_and_colab_are_linked_and_without_one_it_says_so():
    online, colab = address.ways("https://github.com/someone/course", "v1").splitlines()
    assert "(https://someone.github.io/course/)" in online and "(https://someone.github.io/course/live.html)" in online
    name = "github/someone/course/blob/v1/notebooks/00_start_here.ipynb"
    assert f"(https://colab.research.google.com/{name})" in colab
    for unknown in ("", "https://git.example.org/someone/course"):
        online, colab = address.ways(unknown, "main").splitlines()
        assert "no public site yet" in online and "upload" in colab and "http" not in online + colab


@pytest.mark.parametrize("text", ["", address.BEGIN, address.END + address.BEGIN])
def test_a_readme_without_both_marks_is_refused(text):
    with pytest.raises(ValueError, match="README.md must hold the line <!-- address -->"):
        address.parts(text)


def test_the_address_is_written_between_the_marks_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(address, "README", tmp_path / "README.md")
    before, _, after = address.parts(README)
    (tmp_path / "README.md").write_text(f"{before}old\n{after}", encoding="utf8")
    address.main()
    assert (tmp_path / "README.md").read_text(encoding="utf8") == README


def test_the_example_runs_and_has_the_shapes_that_it_says():
    names = {}
    exec(re.search(r"```python\n(.*?)```", README, re.S)[1], names)
    assert names["y"].shape == (2, 6, 12) and names["weights"].shape == (2, 3, 6, 6)
