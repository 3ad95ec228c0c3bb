"""make browser where the extra or the browser is missing: what it says and returns. Its own tests: tools/browser."""

import importlib.util

import pytest

from tools import install
from tools.browser import run


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_without_a_browser_one_sentence(monkeypatch, capsys, ci, code):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(run, "find_browser", lambda: None)
    monkeypatch.setenv("CI", ci)
    assert run.main() == code
    said = capsys.readouterr().out
    assert said.startswith("Skipped: no Chromium or Chrome is here") and said.count("\n") == 1


def test_a_browser_that_is_named_must_be_there(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv("CHROMIUM", "no/such/chromium")
    assert run.main() == 1
    assert capsys.readouterr().err == "CHROMIUM is no/such/chromium, and there is no such file.\n"


def test_the_extra_is_installed_where_it_is_missing(monkeypatch):
    asked = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "axe" in name else True)
    monkeypatch.setattr(install, "main", lambda *given: asked.append(given) or 3)
    assert run.main("constraints.txt") == 3 and asked == [("constraints.txt", "browser")]
