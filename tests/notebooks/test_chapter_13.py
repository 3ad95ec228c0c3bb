"""Chapter 13 reads records that grow: its cells run on what is missing, begun and whole, and say which it is."""

import json
import random
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from synth_lib import plots
from synth_lib.lab.runner import read_record
from synth_lib.lab.suites import suite
from synth_lib.text.corpora import DATA
from tools.build_notebooks import VARIES, read_source

SOURCE = Path(__file__).resolve().parents[2] / "notebooks" / "src" / "13_train_on_gpu.py"
TUNED = ("nanogpt", "longer", "grammar", "tatoeba", "dialogue", "why")
LESSON = [
    cell.source
    for cell in read_source(SOURCE)
    if cell.cell_type == "code" and not {"exercise", "check", "solution"} & set(cell.metadata)
    and VARIES not in cell.source and "glosses()" not in cell.source  # what trains
]  # fmt: skip


def write(path, header, runs):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (header, *runs)), encoding="utf8")


def made_up(run, number):
    metrics = {
        "loss": number, "test_loss": number, "bleu": 100 * number, "perplexity": number, "bleu_1": number,
        "bleu_4": number, "rouge_l": number, "exact_match": number, "unseen": [9, 10],
        "phenomena": {name: [9, 10] for name in ("all", "question", "verb final", "noun subject")},
    }  # fmt: skip
    curve = [[step, 4 * 0.999**step] for step in range(0, 2001, 100)]
    measured = {"metrics": metrics, "curve": curve, "parameters": 8, "seconds": 1.0, "device": "cpu"}
    return run | {"status": "finished"} | measured


def whole_record(name, recorded=()):
    """The header of a suite and all its runs: those that are recorded, and the others made up."""
    chosen, runs, draw = suite(name), list(recorded), random.Random(3)
    for stage in (lambda known: chosen.runs, *chosen.stages):
        asked = [run for run in stage(runs) if not any(run.items() <= known.items() for known in runs)]
        runs += [made_up(run, draw.random()) for run in asked]
    return {"suite": name, "tasks": chosen.tasks}, runs


@pytest.fixture
def lesson(tmp_path, monkeypatch, capsys):
    """read(): runs the lesson on the records in `folder` -> what it prints. folder: a copy of those in data/results."""
    for path in (DATA / "results").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(plots, "show", lambda fig, alt: plt.close(fig))

    def read():
        capsys.readouterr()
        names = {}
        for source in LESSON:
            exec(source.replace('RESULTS = DATA / "results"', f"RESULTS = type(DATA)({str(tmp_path)!r})"), names)
        return capsys.readouterr().out

    read.folder = tmp_path
    return read


def numbers_of(name):
    _, runs = whole_record(name)
    return sum(run["question"] == "final" for run in runs)


def test_what_is_missing_is_said_and_nothing_else_of_it(lesson):
    for name in ("grammar", "tatoeba", "dialogue", "why"):
        (lesson.folder / f"{name}.jsonl").unlink(missing_ok=True)
    out = lesson()
    for name in ("grammar", "tatoeba", "dialogue", "why"):
        number = numbers_of(name)
        assert f"not recorded yet: {number} of {number} final runs" in out
        assert f"suite {name} --out data/results/{name}.jsonl" in out


def test_whole_records_are_read_to_the_end(lesson):
    for name in TUNED:
        path = lesson.folder / f"{name}.jsonl"
        recorded = read_record(path)[1] if path.exists() else ()
        write(path, *whole_record(name, recorded))
    out = lesson()
    assert "not recorded yet" not in out and "measured on the first version" not in out
    assert "Random against Vanilla, 5 + 5 runs" in out and "Random in cross-attention too: bleu" in out
    assert len(re.findall(r", rank \d+  .* beside \d", out)) == 4 and len(re.findall(r"\d heads?  .* beside", out)) == 6
    assert out.count("steps until") == 4 and "all steps, seed 1" in out


def test_a_record_that_is_begun_claims_nothing_from_two_seeds(lesson):
    path = lesson.folder / "grammar.jsonl"
    header, runs = whole_record("grammar")
    begun = [run for run in runs if run["question"] != "final" or run["seed"] <= 2]
    write(path, header, begun)
    out = lesson()
    table = out[out.index("copy nearest") : out.index("copy nearest") + 1500]
    assert "too few seeds" in table and "not told apart" not in table.split("not recorded yet")[0]
    assert f"not recorded yet: {sum(run['question'] == 'final' for run in runs if run not in begun)} of" in out


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ([1.0, 1.1, 1.2], [1.3, 1.4, 1.5], "lower"),
        ([1.3, 1.4, 1.5], [1.0, 1.1, 1.2], "higher"),
        ([1.0, 1.1, 1.4], [1.3, 1.4, 1.5], "not told apart"),  # overlap, and too few for the test
        ([1.0, 1.1, 1.2, 1.1, 1.31], [1.3, 1.4, 1.5, 1.4, 1.5], "lower"),  # overlap, but the test says so
        ([1.3, 1.4, 1.5, 1.4, 1.5], [1.0, 1.1, 1.2, 1.1, 1.31], "higher"),
        ([1.0, 1.5, 1.2, 1.4, 1.3], [1.1, 1.4, 1.3, 1.2, 1.6], "not told apart"),
        ([1.0, 1.1], [1.3, 1.4, 1.5], "too few seeds"),
        ([1.0, 1.1, 1.2], [], "too few seeds"),
    ],
)
def test_the_rule_for_lower(one, other, verdict):
    names = {}
    [rule] = [source for source in LESSON if "def told(" in source]
    exec(LESSON[0] + "\n" + rule, names)
    assert names["told"](one, other) == verdict
