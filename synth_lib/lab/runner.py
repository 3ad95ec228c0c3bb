"""How many runs are done side by side, recorded, and resumed: the same for the suites and the probes.

A record is a file of JSON Lines: a header, then one finished run a line, appended when it has ended. Whatever stops
the program, no finished run is lost; the same call does the runs that the file does not hold. A line without its end,
which a kill can leave behind, is left out, and said.

Read top-down: a record, the runs that it lacks, the processes that do them, a suite.
"""

import json
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from datetime import date
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import torch
from tqdm import tqdm

from synth_lib.lab.suites import suite, title
from synth_lib.lab.tasks import EDGES, run_experiment
from synth_lib.lab.train import choose_device, provenance


def read_record(path, log=print):
    """(header, runs) of a record, dictionaries. log: gets a line where the file ends in the midst of a run.

    Raises ValueError if the file is no record.
    """
    *lines, rest = Path(path).read_bytes().split(b"\n")
    try:
        header, *runs = map(json.loads, lines)
        if not all(isinstance(entry, dict) for entry in (header, *runs)):
            raise ValueError
    except ValueError:
        raise ValueError(f"{path} is no record in JSON Lines, a header and then a run a line") from None
    if rest:
        log(f"{path}: the last line has no end, it was being written when a program was killed; its run is left out")
    return header, runs


class Record:
    """The record in a file, which is made if there is none. `runs` are those that it holds.

    header: what all runs share. Raises ValueError if the file holds runs of another header.
    """

    def __init__(self, path, header, log=print):
        self.path, self.header, self.runs = Path(path), json.loads(json.dumps(header)), []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.read_bytes() if self.path.exists() else b""
        if not json.dumps(self.header).encode().startswith(written):  # else there is no file, or not its whole header
            stored, self.runs = read_record(self.path, log)
            for name, entry in self.header.items():
                if stored.get(name) != entry:
                    raise ValueError(f"{path} holds another {name} than this call: choose another file (--out)")
        with open(self.path, "ab") as file:
            file.truncate(written.rfind(b"\n") + 1)  # a line without its end goes
        if b"\n" not in written:
            self._write(self.header)

    def append(self, run):
        self.runs.append(run)
        self._write(run)

    def _write(self, entry):
        with open(self.path, "ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def find(self, run):
        """What the record holds of a run, or None: all that the run asks for is in it."""
        return next((entry for entry in self.runs if run.items() <= entry.items()), None)


def do_missing(runs, record, function, *, name_of, summary, device, workers=1, minutes=None, log=print):
    """Do the runs that `record` lacks with function(run), in up to `workers` processes -> {name: error} of the others.

    Each finished run is appended, with the day, the device, the versions and the revision of the code. log: gets the
    progress, a line at a time, made by name_of(run) and summary(result). minutes: a run that would not end within them
    is not started.
    """
    origin = {"date": date.today().isoformat(), **provenance(device)}
    missing = [run for run in runs if record.find(run) is None]
    log(f"{len(runs)} runs, {len(missing)} of them to do, on {origin['device']}, in {record.path}")
    limit, errors, started = math.inf if minutes is None else minutes, {}, time.perf_counter()

    def minutes_passed():
        return (time.perf_counter() - started) / 60

    def guess(run):
        """The minutes of a run: those of the longest of its question and task, of its task, or of any task."""
        done = [other for other in record.runs if "seconds" in other]
        alike = [other for other in done if other["task"] == run["task"]] or done
        alike = [other for other in alike if other.get("question") == run.get("question")] or alike
        return max((other["seconds"] for other in alike), default=0.0) / 60

    def fits(run):
        return minutes_passed() + guess(run) < limit

    to_do = list(missing)
    for run, result in run_parallel(missing, function, workers, fits):
        to_do.remove(run)
        if isinstance(result, dict):
            record.append(result | origin)
            outcome = summary(result)
        else:
            errors[name_of(run)] = result
            outcome = f"error, {result}"
        to_go = sum(map(guess, to_do)) / workers
        log(
            f"{len(runs) - len(to_do) - len(errors):4} of {len(runs)}  {name_of(run)}: {outcome}"
            f"  [{minutes_passed():.1f} minutes, about {to_go:.1f} to go]"
        )
    return errors


def run_parallel(runs, function, workers, fits=lambda run: True):
    """Do runs in up to `workers` processes: yields (run, what the function returned, or the error as a text).

    fits(run) is asked before a run starts; one that does not fit may be asked for again later.
    """
    context = multiprocessing.get_context("spawn")  # a CUDA program cannot be forked
    runs, idle, busy = list(runs), [], []

    def new_worker():
        connection, its_end = context.Pipe()
        process = context.Process(target=_worker, args=(its_end, function), daemon=True)
        process.start()
        its_end.close()
        return connection, process

    try:
        while True:
            while len(busy) < workers and (run := next(filter(fits, runs), None)):
                runs.remove(run)
                connection, process = idle.pop() if idle else new_worker()
                busy.append((connection, process, run))
                connection.send(run)
            if not busy:
                return
            ready = wait([connection for connection, *_ in busy])
            for connection, process, run in [entry for entry in busy if entry[0] in ready]:
                busy.remove((connection, process, run))
                try:
                    result = connection.recv()
                    idle.append((connection, process))
                except (EOFError, ConnectionResetError):
                    process.join()
                    result = f"its process ended with exit status {process.exitcode}"
                yield run, result
    finally:
        for _, process, *_ in idle + busy:
            process.kill()
            process.join()


def _worker(connection, function):
    """A process that does runs. The work is in a thread, so that the process ends as soon as its parent does."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it a matrix product need not repeat itself
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it costs time and helps only to find mistakes
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    tqdm.set_lock(threading.RLock())  # its own lock is one between processes: a killed one would leave it behind
    threading.Thread(target=_work, args=(connection, function), daemon=True).start()
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(connection, function):
    torch.set_num_threads(1)  # torch has it for each thread
    while True:
        run = connection.recv()
        try:
            connection.send(function(run))
        except Exception as error:  # one run that fails must not end the others
            traceback.print_exc()
            connection.send(f"{type(error).__name__}: {error}")


# --- A suite ---


def run_suite(name, out, *, device="auto", minutes=None, workers=1, log=print):
    """Do the runs of a suite that the record `out` lacks -> its header and more, a dictionary with the "runs".

    A run that was in work when the program was stopped starts again from its seed, and gives the same.

    Under torchrun each process takes its share of the runs and writes a file of its own, beside `out`, with its rank
    in the name. The same call without torchrun then gathers them in `out`, and does what is missing.

    Args:
        minutes: a run that would not end within them is not started; "missing" says which. Default: no limit.
        workers: how many runs are done side by side, each in a process of its own with one CPU thread.
        log: gets the progress, a line at a time.

    Raises:
        ValueError: `out` holds another suite, other settings, or what another device gave; or torchrun is asked for
            a suite whose runs follow from those of all processes.
    """
    chosen, out = suite(name), Path(out)
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = choose_device(device)
    if chosen.stages and processes > 1:
        raise ValueError(f"suite {name} chooses runs by the results of others: use workers (--workers), not torchrun")
    if device.type == "cuda" and processes > 1:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    header = {"suite": name, "device": provenance(device)["device"], "histogram_edges": EDGES, "tasks": chosen.tasks}
    shares = sorted(out.parent.glob(f"{out.stem}.rank*{out.suffix}"))
    runs = chosen.runs[rank::processes]
    record = Record(out.with_name(f"{out.stem}.rank{rank}{out.suffix}") if processes > 1 else out, header, log)
    for share in shares if processes == 1 else []:
        for run in Record(share, header, log).runs:
            if record.find(run) is None:
                record.append(run)
    all_runs, errors, started = [], {}, time.perf_counter()
    for stage in (lambda recorded: runs, *chosen.stages):
        stage_runs = stage(record.runs)
        all_runs += stage_runs
        passed = (time.perf_counter() - started) / 60
        errors |= do_missing(
            stage_runs, record, partial(_run_of_suite, tasks=chosen.tasks, device=device),
            name_of=title, summary=_summary, device=device, workers=workers,
            minutes=None if minutes is None else max(0.0, minutes - passed), log=log,
        )  # fmt: skip
    runs = all_runs
    entries = [record.find(run) for run in runs]
    return header | {
        "date": max((run["date"] for run in entries if run), default=None),
        "missing": [title(run) for run, entry in zip(runs, entries, strict=True) if entry is None],
        "errors": errors,
        "runs": [entry for entry in entries if entry],
    }  # fmt: skip


def _run_of_suite(run, tasks, device):
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # products in TF32 where the card has it
    return run_experiment(run, tasks[run["task"]], device)


def _summary(result):
    if result["status"] == "failed":
        return f"failed, {result['problem']}"
    metrics = result["metrics"]
    shown = [f"{name} {metrics[name]}" for name in ("loss", "bleu", "accuracy") if name in metrics]
    return f"{', '.join(shown)} ({result['seconds']} s)"
