"""Damage a solved notebook as people and tools do, and grade it: the points stay, or the page names the cell.

    make fuzz                                           # 1,000 damaged copies of chapters 02 and 03
    python tools/fuzz_grading.py --edits 50 --chapters 02

Each copy gets one to three edits, drawn from its seed. A copy with fewer points is a silent loss unless it is marked
for a look and every lost exercise's message names a cell. The table at the end counts both; the exit status is 1 after
a silent loss or a crash.
"""

import copy
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import nbformat
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.build_notebooks import build  # noqa: E402
from tools.classroom import course as courses  # noqa: E402
from tools.classroom import sandbox  # noqa: E402
from tools.classroom.grading import grade  # noqa: E402
from tools.classroom.student import ForkServer  # noqa: E402

NAMES = ("homework.ipynb", "Copy of {} (1).ipynb", "final_FINAL.ipynb", "{}.ipynb.txt", "Ünïcode ñame.ipynb", "{}.json")


def delete(cells, draw):
    del cells[draw.randrange(len(cells))]


def duplicate(cells, draw):
    index = draw.randrange(len(cells))
    cells.insert(draw.randrange(len(cells) + 1), copy.deepcopy(cells[index]))


def move(cells, draw):
    cells.insert(draw.randrange(len(cells)), cells.pop(draw.randrange(len(cells))))


def split(cells, draw):
    index = draw.choice([n for n, cell in enumerate(cells) if "\n" in cell["source"]])
    lines = cells[index]["source"].split("\n")
    cut = draw.randrange(1, len(lines))
    second = copy.deepcopy(cells[index])
    cells[index]["source"], second["source"] = "\n".join(lines[:cut]), "\n".join(lines[cut:])
    cells.insert(index + 1, second)


def merge(cells, draw):
    index = draw.randrange(len(cells) - 1)
    cells[index]["source"] += "\n" + cells.pop(index + 1)["source"]


def retype(cells, draw):
    cell = draw.choice(cells)
    cell["cell_type"] = draw.choice([kind for kind in ("code", "markdown", "raw") if kind != cell["cell_type"]])
    if cell["cell_type"] == "code":
        cell.update(outputs=[], execution_count=None)
    else:
        cell.pop("outputs", None), cell.pop("execution_count", None)


def strip_metadata(cells, draw):
    for cell in cells:
        cell["metadata"] = {}


def strip_ids(cells, draw):
    for cell in cells:
        cell.pop("id", None)


def colab(cells, draw):
    for cell in cells:
        cell["metadata"].update({"id": f"{draw.getrandbits(48):x}", "colab": {"base_uri": "https://localhost:8080/"}})
        cell["metadata"]["outputId"] = f"{draw.getrandbits(128):x}"


def vs_code(cells, draw):
    for cell in cells:
        cell["metadata"].update({"vscode": {"languageId": "python"}, "tags": ["parameters"]})
        cell["metadata"]["ExecuteTime"] = {"end_time": "2025-01-01T00:00:00", "start_time": "2025-01-01T00:00:00"}


def long_output(cells, draw):
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    text = "x" * draw.choice([10_000, 1_000_000])
    draw.choice(code)["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]


def save_as_4_4(damaged, draw):
    strip_ids(damaged["cells"], draw)
    damaged.update(nbformat=4, nbformat_minor=4)


def save_as_3(damaged, draw):
    whole = nbformat.from_dict({**damaged, "nbformat_minor": 4})
    for cell in whole.cells:
        cell.pop("id", None)
        if cell.cell_type == "code":
            cell.setdefault("outputs", [])
            cell.setdefault("execution_count", None)
    old = json.loads(nbformat.writes(nbformat.convert(whole, 3)))
    damaged.clear()
    damaged.update(old)


def rename(damaged, draw):
    damaged["name"] = draw.choice(NAMES)


EDITS = [delete, duplicate, move, split, merge, retype, strip_metadata, strip_ids, colab, vs_code, long_output]
LAST = [rename, save_as_4_4, save_as_3]  # after them the cells are elsewhere


def damage(notebook, seed):
    """-> the damaged notebook, its name (or None), the names of the edits"""
    draw = random.Random(seed)
    damaged = copy.deepcopy(notebook)
    chosen = draw.choices([*EDITS, *LAST], k=draw.randint(1, 3))
    if chosen.count(save_as_3) > 1 or save_as_4_4 in chosen:
        chosen = [edit for edit in chosen if edit is not save_as_3] or [save_as_4_4]
    chosen.sort(key=lambda edit: LAST.index(edit) + 1 if edit in LAST else 0)
    for edit in chosen:
        edit(damaged if edit in LAST else damaged["cells"], draw)
    return damaged, damaged.pop("name", None), [edit.__name__ for edit in chosen]


def judge(result, chapter):
    """ "same points", "refused, cell named", or "silent loss"."""
    lost = {key: message for key, (status, message, _) in result.verdicts.items() if status != "right"}
    if result.refused:
        return "silent loss" if not re.search(r"cell|exercise", result.refused) else "refused, cell named"
    if not lost:
        return "same points"
    named = all(
        result.verdicts[key][0] == "not graded"
        and re.search(r"[Cc]ell \d+|The cell that defines \w+ is missing", message)
        for key, message in lost.items()
    )
    return "refused, cell named" if named else "silent loss"


def run(seeds, numbers, server, show=True):
    """Grade a damaged copy for each seed. -> {edit: Counter of outcomes}, [(seed, edits, Result)] of silent losses"""
    course = courses.read(numbers)
    chapters = [course.chapters[number] for number in numbers]
    solved = {c.number: json.loads(json.dumps(build(c.path, True))) for c in chapters}
    table, losses = {edit.__name__: Counter() for edit in [*EDITS, *LAST]}, []
    with tempfile.TemporaryDirectory() as folder:
        for seed in tqdm(seeds, unit="notebook", disable=not show):
            chapter = chapters[seed % len(chapters)]
            damaged, name, edits = damage(solved[chapter.number], seed)
            path = Path(folder) / (name or "{}.ipynb").format(chapter.path.stem)
            path.write_text(json.dumps(damaged), encoding="utf8")
            result = grade(server, path, course)
            outcome = judge(result, chapter)
            for edit in set(edits):
                table[edit][outcome] += 1
            if outcome == "silent loss":
                losses.append((seed, edits, result))
            path.unlink()
    return table, losses


def main():
    parser = courses.Parser("Grade damaged copies of solved notebooks.")
    parser.add_argument("--edits", type=courses.whole_number(1), default=1000, help="how many copies")
    parser.add_argument("--first", type=courses.whole_number(0), default=0, help="the first seed")
    parser.add_argument("--chapters", default="02 03", help='such as "02 03"')
    options = parser.parse_args()
    numbers = courses.chosen_numbers(options.chapters)
    try:
        courses.read(numbers)
    except courses.CourseError as error:
        return courses.fail(error)
    if not numbers:
        return courses.fail('--chapters is empty: say which chapters are damaged, such as "02 03".')
    if lack := sandbox.missing():
        return courses.fail(f"No sandbox for the notebooks: {lack}.")
    start = time.monotonic()
    with ForkServer() as server:
        seeds = range(options.first, options.first + options.edits)
        table, losses = run(seeds, numbers, server)
    outcomes = ("same points", "refused, cell named", "silent loss")
    print(f"| edit | {' | '.join(outcomes)} |\n|---|---|---|---|")
    for edit, counts in table.items():
        print(f"| {edit.replace('_', ' ')} | {' | '.join(str(counts[outcome]) for outcome in outcomes)} |")
    print(f"\n{options.edits} copies, {time.monotonic() - start:.0f} s, {len(losses)} silent losses, 0 crashes")
    for seed, edits, result in losses:
        print(
            seed,
            edits,
            result.refused,
            {key: verdict for key, verdict in result.verdicts.items() if verdict[0] != "right"},
        )
    return int(bool(losses))


if __name__ == "__main__":
    sys.exit(main())
