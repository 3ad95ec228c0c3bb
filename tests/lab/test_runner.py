"""Records that no kill can spoil, and runs side by side: with a function that computes next to nothing."""

import json
import os
import random
import signal

import pytest
import torch

from synth_lib.lab import runner
from synth_lib.lab.runner import Record, do_missing, read_record, run_parallel

CPU = torch.device("cpu")
HEADER = {"suite": "numbers", "device": "cpu"}
RUNS = [{"task": "square", "number": number} for number in range(8)]
ORIGIN = {"date", "device", "versions", "code"}


def square(run):
    return run | {"square": run["number"] ** 2, "seconds": 1.5}


def die_at_3(run):
    return os.kill(os.getpid(), signal.SIGKILL) if run["number"] == 3 else square(run)


def fail_at_3(run):
    return square(run) if run["number"] != 3 else 1 / 0


def do_all(path, function=square, log=lambda line: None, **options):
    record = Record(path, HEADER, log)
    options = {"workers": 2} | options
    errors = do_missing(
        RUNS, record, function, name_of=lambda run: f"number {run['number']}",
        summary=lambda result: f"square {result['square']}", device=CPU, log=log, **options,
    )  # fmt: skip
    return record, errors


def results(path):
    """{number: square} of a file, each run once; and every run says where it comes from."""
    header, runs = read_record(path, log=lambda line: None)
    assert header == HEADER and all(run.keys() > ORIGIN for run in runs)
    assert len({run["number"] for run in runs}) == len(runs)
    return {run["number"]: run["square"] for run in runs}


EVERY = {number: number**2 for number in range(8)}


def test_every_run_is_a_line_with_its_origin(tmp_path, forked):
    path, lines = tmp_path / "deep" / "record.jsonl", []
    record, errors = do_all(path, log=lines.append)
    assert errors == {} and results(path) == EVERY
    header, *runs = map(json.loads, path.read_text(encoding="utf8").splitlines())
    assert header == HEADER and runs == record.runs
    assert runs[0]["versions"]["torch"] == torch.__version__ and runs[0]["device"] == "cpu"
    assert "8 runs, 8 of them to do, on cpu" in lines[0] and lines[-1].startswith("   8 of 8  number ")
    assert "to go]" in lines[-1] and "square " in lines[-1]


def test_a_file_that_ends_anywhere_is_resumed_to_the_same(tmp_path, forked, monkeypatch):
    path = tmp_path / "record.jsonl"
    do_all(path)
    whole = path.read_bytes()
    monkeypatch.setattr(runner, "run_parallel", lambda runs, function, *_: [(run, function(run)) for run in runs])
    monkeypatch.setattr(os, "fsync", lambda file: None)  # what is tested here is no power cut
    ends = {number + by for number, byte in enumerate(whole) if byte == ord("\n") for by in (0, 1)}
    for cut in sorted({*range(0, len(whole), 47), *ends}):
        path.write_bytes(whole[:cut])
        lines = []
        do_all(path, log=lines.append)
        assert results(path) == EVERY
        in_a_run = cut > whole.index(b"\n") + 1 and whole[cut - 1] != ord("\n")
        assert ("the last line has no end" in lines[0]) == in_a_run
        complete = max(0, whole[:cut].count(b"\n") - 1)
        assert f"{8 - complete} of them to do" in lines[int(in_a_run)] and len(lines) == 9 - complete + in_a_run


def test_killed_at_ten_moments_no_finished_run_is_lost(tmp_path, forked):
    path, moments, done = tmp_path / "record.jsonl", random.Random(5), {}
    for _ in range(10):
        ours, its = forked.Pipe()
        process = forked.Process(target=do_all, args=(path,), kwargs={"log": its.send})
        process.start()
        its.close()
        heard = [ours.recv() for _ in range(moments.randint(1, 3))]  # the first line comes before the first run
        process.kill()
        process.join()
        kept = results(path)
        assert kept.items() >= done.items() and len(kept) >= len(done) + len(heard) - 1
        done = {} if len(kept) >= 6 else kept
        if not done:
            path.unlink()  # too little is left to be killed in: the next one begins anew
    assert do_all(path)[1] == {} and results(path) == EVERY


def test_a_recorded_run_is_not_done_again(tmp_path, monkeypatch):
    path = tmp_path / "record.jsonl"
    monkeypatch.setattr(runner, "run_parallel", lambda runs, function, *_: [(run, function(run)) for run in runs])
    do_all(path)
    before = path.read_bytes()

    def never(run):
        raise AssertionError("a run was done again")

    do_all(path, never)
    assert path.read_bytes() == before


def test_a_run_that_does_not_fit_the_minutes_is_not_started(tmp_path, forked):
    path = tmp_path / "record.jsonl"
    record = Record(path, HEADER)
    record.append(square(RUNS[0]) | {"seconds": 1e6})
    record, errors = do_all(path, minutes=10)
    assert errors == {} and len(record.runs) == 1


def test_how_long_a_run_takes_is_guessed_from_those_of_its_question(tmp_path, monkeypatch):
    def one_by_one(runs, function, workers, fits):
        return [(run, function(run)) for run in runs if fits(run)]

    monkeypatch.setattr(runner, "run_parallel", one_by_one)
    record = Record(tmp_path / "record.jsonl", HEADER)
    runs = [{"task": "square", "question": question, "number": 2} for question in ("final", "tuning")]
    for run, seconds in zip(runs, (1e6, 1.0), strict=True):
        record.append(run | {"number": 1, "seconds": seconds})
    options = {"name_of": str, "summary": str, "device": CPU, "log": lambda line: None}
    assert do_missing(runs, record, square, minutes=10, **options) == {}
    assert record.find(runs[0]) is None and record.find(runs[1])["square"] == 4


@pytest.mark.parametrize(
    ("function", "message"),
    [(die_at_3, "its process ended with exit status -9"), (fail_at_3, "ZeroDivisionError: division by zero")],
)
def test_an_error_and_a_killed_process_do_not_end_the_others(tmp_path, forked, capfd, function, message):
    path, lines = tmp_path / "record.jsonl", []
    record, errors = do_all(path, function, log=lines.append)
    assert errors == {"number 3": message} and len(record.runs) == 7
    assert sum("number 3: error" in line for line in lines) == 1
    again, errors = do_all(path)  # mended: only this one is done
    assert errors == {} and again.runs[:7] == record.runs and again.runs[7]["number"] == 3


def test_as_many_runs_as_workers_are_in_work_at_a_time(forked):
    meeting = forked.Barrier(3, timeout=60)

    def meet(run):
        return {"met": meeting.wait() is not None}

    assert [result for _, result in run_parallel(RUNS[:3], meet, 3)] == [{"met": True}] * 3


@pytest.mark.parametrize("entry", ["suite", "device"])
def test_the_record_of_something_else_is_refused_and_stays(tmp_path, entry):
    path = tmp_path / "record.jsonl"
    Record(path, HEADER | {entry: "another"})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"holds another {entry} than this call: choose another file"):
        Record(path, HEADER)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["no record", '{"suite": "numbers"}', "[]\n", '{"suite": 1}\nno run\n{}\n'])
def test_a_file_that_is_no_record_is_refused_and_stays(tmp_path, text):
    path = tmp_path / "record.jsonl"
    path.write_text(text, encoding="utf8")
    with pytest.raises(ValueError, match="is no record in JSON Lines"):
        Record(path, HEADER)
    assert path.read_text(encoding="utf8") == text


def test_runs_of_several_versions_keep_each_its_own(tmp_path, monkeypatch):
    path = tmp_path / "record.jsonl"
    monkeypatch.setattr(runner, "run_parallel", lambda runs, function, *_: [(run, function(run)) for run in runs])
    record = Record(path, HEADER)
    record.append(square(RUNS[0]) | {"versions": {"torch": "1.0"}})
    record, _ = do_all(path)
    versions = [run["versions"]["torch"] for run in record.runs]
    assert versions == ["1.0"] + [torch.__version__] * 7
