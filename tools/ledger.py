"""Write docs/equations.md, which says where each equation is taught and what proves it.

    python tools/ledger.py        # from notebooks/ledger.yml, between the two marks in the page
"""

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "notebooks" / "ledger.yml"
PAGE = ROOT / "docs" / "equations.md"
BEGIN, END = "<!-- ledger -->", "<!-- /ledger -->"


def load():
    """-> {"entries": [...], "deviations": [...]}, as the head of the file says."""
    return yaml.safe_load(LEDGER.read_text(encoding="utf8"))


def link(chapter):
    return f"[{chapter[:2]}](../notebooks/{chapter}.ipynb)"


def table(ledger):
    """What stands between the two marks, in Markdown."""
    lines = ["| in the paper | what it says | taught in | proved by |", "|---|---|---|---|"]
    for entry in ledger["entries"]:
        exercises = [f"exercise {key}" for key in entry["exercises"]]
        tests = [f"`{test.split('::')[1]}`" for test in entry["tests"]]
        section = f'{link(entry["chapter"])}, "{entry["section"]}"'
        lines.append(f"| {entry['name']} | {entry['says']} | {section} | {', '.join(exercises + tests)} |")
    notes = ", ".join(f"{deviation['name']} ({link(deviation['chapter'])})" for deviation in ledger["deviations"])
    return "\n".join([*lines, "", f"Where we differ from the paper, or it is silent, a note says so: {notes}."])


def between_marks(text):
    """The text before, between and after the marks. Raises ValueError unless each mark stands there once, in order."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"The page must hold {BEGIN} once, and after it {END} once")
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside.strip(), after


def main():
    try:
        before, _, after = between_marks(PAGE.read_text(encoding="utf8"))
    except ValueError as problem:
        sys.exit(str(problem))
    PAGE.write_text(f"{before}{BEGIN}\n{table(load())}\n{END}{after}", encoding="utf8", newline="\n")


if __name__ == "__main__":
    main()
