"""What a card is asked: the order, the shares, and that nothing is done twice. What would be slow is replaced."""

import json
from types import SimpleNamespace

import pytest
import torch

from synth_lib.lab import bench, card, runner, suites
from synth_lib.lab.__main__ import main
from synth_lib.lab.card import Measuring, Suite, run_card

HEAD = ["card", "device", "date", "versions", "dtype", "sizes", "rounds", "failed", "skipped", "machine", "code"]
STEPS = [
    "check", "machine", "core, first, length 12", "core, first, length 12, causal", "layer, first, length 12",
    "layer, first, length 12, causal", "train", "decode", "core, others, length 12", "core, others, length 12, causal",
    "layer, others, length 12", "layer, others, length 12, causal",
]  # fmt: skip
RUNS = 18  # of the suite tiny


@pytest.fixture
def asked(monkeypatch):
    """What was asked for, in its order. `asked.before(name)` is called before each, and may raise."""
    noted = SimpleNamespace(names=[], lines=[], before=lambda name: None)

    def note(name):
        noted.before(name)
        noted.names.append(name)

    def check(run, suites, only):
        assert suites == ["check"] and only == ["random"]
        note("check")
        run.checked()["cases"] = 72

    def measure_attention(run, suite, make, group, sizes, causal):
        assert make is {"core": bench.core_steps, "layer": bench.layer_steps}[suite]
        note(f"{suite}, {group}, length {sizes['length']}" + ", causal" * causal)
        run.record.setdefault(suite, []).append({"group": group, "causal": causal})

    def model(name):
        def measure(run):
            note(name)
            run.record[name] = [{"score": "dense"}]

        return measure

    def machine(device, dtype):
        note("machine")
        return {"copy_bytes_per_second": 1.0}

    def one_after_the_other(runs, function, workers, fits):
        for run in list(runs):
            if fits(run):
                yield run, function(run)

    def run_of_suite(run, tasks, device):
        note(suites.title(run))
        return run | {"status": "finished", "metrics": {"loss": 1.0}, "seconds": 1.0}

    monkeypatch.setattr(bench, "run_suites", check)
    monkeypatch.setattr(bench, "measure_attention", measure_attention)
    monkeypatch.setattr(bench, "train", model("train"))
    monkeypatch.setattr(bench, "decode", model("decode"))
    monkeypatch.setattr(card.measure, "machine", machine)
    monkeypatch.setattr(card, "print_tables", lambda record: None)
    monkeypatch.setattr(runner, "run_parallel", one_after_the_other)
    monkeypatch.setattr(runner, "_run_of_suite", run_of_suite)
    threads = torch.get_num_threads()
    yield noted
    torch.set_num_threads(threads)


def ask(asked, folder, minutes=30, **options):
    """(exit status, what was asked for in this call, what was said)."""
    asked.names, asked.lines = [], []
    status = run_card(folder, minutes, "cpu", log=asked.lines.append, **{"tiny": True} | options)
    return status, asked.names, "\n".join(asked.lines)


def raising(error, at):
    def before(name):
        if name == at:
            raise error

    return before


def test_a_whole_call_does_everything_once_in_order_and_the_next_nothing(tmp_path, asked):
    status, names, said = ask(asked, tmp_path)
    assert status == 0 and names[:12] == STEPS and len(names) == 12 + RUNS
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf8"))
    assert set(record) == {*HEAD, "check", "core", "layer", "train", "decode"}
    assert record["skipped"] == record["failed"] == [] and record["sizes"] == bench.TINY
    assert record["check"]["cases"] == 72 and len(record["core"]) == len(record["layer"]) == 4
    assert "speed     11 of 11 steps done" in said and "check     1 of 1 steps done; 72 cases, 0 wrong" in said
    assert "18 runs recorded, 0 to do" in said and "the same command" not in said
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    status, names, said = ask(asked, tmp_path)
    assert status == 0 and names == [] and "18 runs recorded, 0 to do                     -" in said
    assert "up to" not in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


class Killed(BaseException):
    """As when the program is killed: nothing that catches an Exception, or Ctrl-C, sees it."""


@pytest.mark.parametrize("at", ["check", "layer, first, length 12", "train", "language model, Random, seed 1"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
def test_what_was_done_before_a_stop_is_not_done_again(tmp_path, asked, at, error):
    asked.before = raising(error, at)
    if error is Killed:
        with pytest.raises(Killed):
            ask(asked, tmp_path)
        first = asked.names
    else:
        status, first, said = ask(asked, tmp_path)
        assert status == 130 and "stopped: all that had ended is kept" in said
        assert f"the same command goes on in {tmp_path}" in said
        missing = [line.strip() for line in said.splitlines() if "missing: " in line]
        assert missing[0] == f"missing: {at}"
    asked.before = lambda name: None
    kept = {path: path.read_bytes() for path in (tmp_path / "steps").iterdir()}
    status, second, _ = ask(asked, tmp_path)
    assert status == 0 and second[0] == at and len(first + second) == len(set(first + second)) == 12 + RUNS
    assert all(path.read_bytes() == content for path, content in kept.items())  # nothing is lost
    if at in STEPS:
        name = at.replace(", ", "-").replace(" ", "_")
        assert len(list((tmp_path / "steps").glob(f"{name}-?.json"))) == 2
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf8"))
    assert record["skipped"] == [] and len(record["layer"]) == 4


def test_a_step_that_the_minutes_cut_is_measured_anew_and_the_better_try_counts(tmp_path, asked, monkeypatch):
    def cut(run):
        asked.names.append("train")
        run.record["train"] = [{"score": "dense"}] * (2 if asked.names.count("train") == 1 else 0)
        run.record["skipped"].append("train random")

    whole = bench.train
    monkeypatch.setattr(bench, "train", cut)
    status, names, said = ask(asked, tmp_path)
    assert status == 0 and names.count("train") == 2  # once more, with what the others left over
    assert "missing: train" in said and "the same command goes on" in said
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf8"))
    assert record["skipped"] == ["train random"] and len(record["train"]) == 2
    monkeypatch.setattr(bench, "train", whole)
    assert ask(asked, tmp_path)[1] == ["train"]
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf8"))
    assert record["skipped"] == [] and len(record["train"]) == 1
    assert len(list((tmp_path / "steps").glob("train-*.json"))) == 3


def test_the_minutes_end_it_and_the_next_call_goes_on(tmp_path, asked, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(card.time, "perf_counter", lambda: clock[0])

    def a_minute(name):
        clock[0] += 60

    asked.before = a_minute
    status, names, said = ask(asked, tmp_path, minutes=4)
    assert status == 0 and names == STEPS[:4]
    assert "0 runs recorded, 18 to do" in said and "missing: layer, first, length 12" in said
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf8"))
    assert record["skipped"] == [f"{step}: not begun" for step in STEPS[4:]]
    assert ask(asked, tmp_path, minutes=2)[1] == STEPS[4:6]


def parts_of(needs, missing=True):
    return [SimpleNamespace(minutes=need, missing=lambda: missing) for need in needs]


@pytest.mark.parametrize(
    "minutes, shares",
    [
        (20, [6, 4, 10]),  # twice what they need: each has twice
        (10, [3, 2, 5]),
        (4, [3, 1, 0]),  # too little: the first has what it needs
        (0, [0, 0, 0]),
    ],
)
def test_the_shares(minutes, shares):
    assert card._plan(parts_of([3, 2, 5]), minutes) == pytest.approx(shares)
    done = SimpleNamespace(minutes=7, missing=lambda: [])
    assert card._plan([done, *parts_of([3, 2, 5])], minutes) == pytest.approx([0, *shares])


def test_a_part_that_breaks_does_not_end_the_others(tmp_path, asked, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(bench, "decode", broken)
    status, names, said = ask(asked, tmp_path)
    assert status == 0 and "failed: decode: RuntimeError: no such kernel" in said and len(names) == 11 + RUNS
    assert ask(asked, tmp_path)[1] == []  # it is recorded as failed, and not tried again
    monkeypatch.setattr(Measuring, "work", broken)
    status, names, said = ask(asked, tmp_path / "other")
    assert status == 1 and len(names) == RUNS and "failed: check: RuntimeError: no such kernel" in said


def test_a_wrong_form_and_a_failed_run_are_exit_status_1(tmp_path, asked, monkeypatch):
    def wrong(run, suites, only):
        run.record["check"] = {"cases": 72, "wrong": 1, "failed": 0}

    monkeypatch.setattr(bench, "run_suites", wrong)
    status, _, said = ask(asked, tmp_path / "wrong")
    assert status == 1 and "72 cases, 1 wrong" in said
    assert ask(asked, tmp_path / "wrong")[0] == 1  # still so when nothing is to do
    monkeypatch.undo()
    monkeypatch.setattr(card, "_parts", lambda *arguments: [Suite("tiny", 1, tmp_path / "failed", "cpu", 1)])

    def run_suite(name, out, **options):
        first = suites.suite("tiny").runs[0] | {"status": "failed", "problem": "the loss is nan"}
        record = runner.Record(out, {"suite": name, "device": "cpu", "tasks": suites.suite("tiny").tasks})
        if not record.runs:
            record.append(first)
        return {"errors": {}}

    monkeypatch.setattr(card, "run_suite", run_suite)
    lines = []
    assert run_card(tmp_path / "failed", 5, "cpu", log=lines.append) == 1
    assert any("failed: language model, Vanilla, seed 0: the loss is nan" in line for line in lines)


def test_a_folder_of_other_things_is_refused_before_anything_is_done(tmp_path, asked, monkeypatch):
    ask(asked, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(bench, "TINY", bench.TINY | {"train": bench.TINY["train"] | {"batch": 3}})
        with pytest.raises(ValueError, match="check-1.json differs from this call in its sizes: choose another folder"):
            ask(asked, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(card, "device_name", lambda device: "another card")
        with pytest.raises(ValueError, match=r"tiny.jsonl differs .* device \(cpu, not another card\): choose another"):
            ask(asked, tmp_path)
    (tmp_path / "steps" / "train-1.json").write_text("{}", encoding="utf8")
    with pytest.raises(ValueError, match="train-1.json is no record of a step: move it away"):
        ask(asked, tmp_path)
    assert asked.names == []


def test_the_suites_are_those_that_there_are_in_the_order_of_worth(tmp_path, monkeypatch):
    monkeypatch.setattr(card, "SUITES", {"dialogue": None, "laptop": None, "gpu": None, "nanogpt": None})
    names = [part.name for part in card._parts(tmp_path, "cpu", 1, tiny=False)]
    assert names == ["check", "speed", "nanogpt", "gpu", "dialogue"]
    monkeypatch.undo()
    names = [part.name for part in card._parts(tmp_path, "cpu", 1, tiny=False)]
    assert {"nanogpt", "gpu"} <= set(names) <= {"check", "speed", *card.WORTH}


def test_a_suite_in_stages_asks_for_what_follows(tmp_path):
    part = Suite("nanogpt", 1, tmp_path, "cpu", 1)
    first = part.missing()
    assert "0 runs recorded" in part.state() and "then those that follow" in part.state()
    chosen = suites.suite("nanogpt")
    recorded = [*chosen.runs, *chosen.stages[0]([])]
    assert len(first) == len(recorded)
    record = runner.Record(part.path, {"suite": "nanogpt", "device": "cpu", "tasks": chosen.tasks})
    for run in recorded:
        record.append(run | {"status": "finished", "metrics": {"loss": 1.0}})
    part.refuse_others()
    assert part.done() == len(recorded) and part.missing() and not set(part.missing()) & set(first)


@pytest.fixture
def with_cuda(monkeypatch):
    monkeypatch.setattr(bench, "check_device", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def test_on_a_card_both_lengths_come_first_and_what_is_compiled_later(with_cuda):
    steps = list(card._speed_steps("cuda", None))
    assert len(steps) == len(set(steps)) == 1 + 6 * 4 + 2
    assert steps[1:5] == [f"core, first, length {length}{way}" for length in (512, 2048) for way in ("", ", causal")]
    groups = [step.split(", ")[1] if ", " in step else step for step in steps]
    assert groups == ["machine"] + ["first"] * 8 + ["train", "decode"] + ["compiled"] * 8 + ["others"] * 8
    assert not [step for step in card._speed_steps("cpu", None) if "compiled" in step]


def test_on_a_card_the_forms_are_compiled_ahead_once(tmp_path, asked, with_cuda, monkeypatch):
    monkeypatch.setattr(bench, "compile_jobs", lambda run: ["jobs"])
    monkeypatch.setattr(bench, "run_beside", lambda run, jobs, seconds: asked.names.append((jobs, seconds <= 90)))
    steps = card._speed_steps("cuda", None)
    part = Measuring("speed", 9, steps, tmp_path, "cuda", None, None)
    part.work(20, lambda line: None)
    assert asked.names == [*list(steps)[:11], (["jobs"], True), *list(steps)[11:]] and not part.missing()


# The command


@pytest.fixture
def called(monkeypatch):
    calls = []
    monkeypatch.setattr(card, "run_card", lambda *arguments, **options: calls.append((arguments, options)) or 0)
    return calls


@pytest.mark.parametrize(
    "options, message",
    [
        ("", "torch finds no GPU here: ask the CPU with --device cpu, or rehearse with --tiny"),
        ("--device cpu --minutes 0", "minutes is 0, but must be above 0"),
        ("--device cpu --minutes -3", "minutes is -3"),
        ("--device cpu --workers 0", "workers is 0"),
        ("--device mps", "The device is mps, but has to be cpu, cuda"),
        ("--tiny --out FILE", "which is no folder"),
        ("--device cuda", "torch finds 0 CUDA devices here"),
    ],
)
def test_the_command_refuses_in_one_sentence(tmp_path, capsys, monkeypatch, called, options, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (tmp_path / "file").write_text("", encoding="utf8")
    with pytest.raises(SystemExit) as caught:
        main(["card", *options.replace("FILE", str(tmp_path / "file")).split()])
    assert caught.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1] and not called


def test_the_command_takes_the_card_that_there_is(tmp_path, capsys, monkeypatch, called):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(f"card --tiny --out {tmp_path}".split()) == 0
    assert "no GPU here: a rehearsal on the CPU" in capsys.readouterr().out
    assert main(f"card --device cpu --minutes 7 --workers 3 --out {tmp_path}".split()) == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "check_device", torch.device)
    assert main(f"card --out {tmp_path}".split()) == 0
    (first, tiny), (second, chosen), (third, _) = called
    assert first[1:] == (30, "cpu") and tiny["tiny"] and second == (tmp_path, 7, "cpu") and third[1:] == (30, "cuda")
    assert chosen == {"workers": 3, "tiny": False} and 1 <= tiny["workers"] <= 14
