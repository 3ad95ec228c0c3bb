"""The README says what the chapters say: every chapter, its minutes and level; its links and its example work."""

import re
from pathlib import Path

import pytest

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


def test_every_link_to_a_file_leads_to_one():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_the_example_runs_and_has_the_shapes_that_it_says():
    names = {}
    exec(re.search(r"```python\n(.*?)```", README, re.S)[1], names)
    assert names["y"].shape == (2, 6, 12) and names["weights"].shape == (2, 3, 6, 6)
