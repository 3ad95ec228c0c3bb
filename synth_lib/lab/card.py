"""What a card should be asked, in the order of worth: `python -m synth_lib.lab card --minutes 30 --out runs/card`.

    check    every fast form equals the plain one
    speed    the speed record: attention alone, whole layers, training, writing, and the forms that are compiled
    suites   many trainings each, the most important suite first

The parts share the minutes. The folder keeps all that was done, and the same command does the rest: the runs that a
suite's record lacks, and the steps of check and speed that did not end. Each try of a step has a file of its own in
`steps`, and none is written twice; speed.json gathers them, laid out as `bench all` writes it. A step that failed is
done: remove its file to try it again.
"""

# Read top-down: the whole, the order, a part that measures, a part that is a suite.

import json
import os
import time
import traceback
from functools import partial
from pathlib import Path

import torch

from synth_lib.lab import bench, measure
from synth_lib.lab.bench.report import print_tables
from synth_lib.lab.runner import read_record, run_suite
from synth_lib.lab.suites import SUITES, suite, title
from synth_lib.lab.train import code_revision, device_name, write_whole

# Minutes: as shares, and as what a part gets at least while there is something left.
CHECK_MINUTES, SPEED_MINUTES = 3, 9
WORTH = {"nanogpt": 6, "gpu": 6, "longer": 3, "grammar": 3, "tatoeba": 3, "dialogue": 3, "why": 3}
LEAST = 0.05  # minutes: with less nothing is begun
UNFINISHED = "what comes after the program was stopped"  # stands in the record of a step until it has ended


def run_card(folder, minutes, device, *, workers=1, tiny=False, log=print):
    """Do what the folder lacks, the most important first, and say what is still missing -> the exit status.

    tiny: the smallest sizes, one S to check, and the suite tiny instead: does it run?

    Raises ValueError, before anything is done, if the folder holds what another device, torch or setting gave.
    """
    folder, started = Path(folder), time.perf_counter()
    parts = _parts(folder, device, workers, tiny)
    for part in parts:
        part.refuse_others()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # many compilers in the background would be timed too
    torch.manual_seed(0)

    def left():
        return minutes - (time.perf_counter() - started) / 60

    log(f"{device_name(torch.device(device))}, {minutes:g} minutes, {workers} runs side by side, in {folder}")
    for part, share in zip(parts, _plan(parts, minutes), strict=True):
        log(f"  {part.name:8}  {part.state():44}  {f'up to {share:.1f} minutes' if share >= LEAST else '-'}")
    interrupted = False
    try:
        moved = True
        while moved:  # what the last parts leave over goes to the first again
            moved = False
            for number, part in enumerate(parts):
                if part.missing() and left() >= LEAST:
                    share, done = _plan(parts[number:], left())[0], part.done()
                    log(f"{part.name}: up to {share:.1f} of {max(0, left()):.1f} minutes")
                    try:
                        part.work(share, log)
                    except Exception as error:  # the other parts go on
                        traceback.print_exc()
                        part.errors = {part.name: f"{type(error).__name__}: {error}"}
                    moved |= part.done() > done
    except KeyboardInterrupt:
        interrupted = True
    return _summary(folder, parts, interrupted, log)


def _plan(parts, minutes):
    """The minutes of each part: its share of what is left, or what it needs if that is more; 0 if it lacks nothing."""
    needs = [part.minutes if part.missing() else 0 for part in parts]
    shares = []
    for number, need in enumerate(needs):
        shares.append(min(minutes, max(need, minutes * need / max(sum(needs[number:]), 1e-9))))
        minutes -= shares[-1]
    return shares


def _summary(folder, parts, interrupted, log):
    record = _gathered(parts)
    if record:
        text = json.dumps(record, indent=1) + "\n"
        write_whole(folder / "speed.json", lambda file: file.write(text.encode()))
        if any(kind in record for kind in ("core", "layer", "train", "decode")):
            print_tables(record)
    log("stopped: all that had ended is kept" if interrupted else "the end")
    wrong = bench.exit_status(record) or any(part.failed() for part in parts)
    for part in parts:
        missing = part.missing()
        log(f"  {part.name:8}  {part.state()}")
        for name in missing[:3]:
            log(f"            missing: {name}")
        if len(missing) > 3:
            log(f"            and {len(missing) - 3} more")
        for problem in part.problems():
            log(f"            failed: {problem}")
    if any(part.missing() for part in parts):
        log(f"the same command goes on in {folder}")
    return 130 if interrupted else int(wrong)


def _gathered(parts):
    """The record of all steps, laid out as that of `bench all`; {} if there is none."""
    whole, revisions = {}, set()
    measuring = [part for part in parts if isinstance(part, Measuring)]
    for part in measuring:
        for step in part.steps:
            found = part.best(step)
            if not found:
                continue
            whole = whole or {name: found[name] for name in part.header} | {"failed": [], "skipped": []}
            whole["date"] = max(whole.get("date", ""), found["date"])
            revisions.add(str(found["code"]))
            for name, value in found.items():
                if isinstance(value, list):
                    whole[name] = whole.get(name, []) + value
                elif name in ("machine", "check"):
                    whole[name] = value
    if whole:
        whole["code"] = ", ".join(sorted(revisions))
        whole["skipped"] += [f"{step}: not begun" for part in measuring for step in part.steps if not part.tries(step)]
    return whole


# --- The order ---


def _parts(folder, device, workers, tiny):
    sizes, rounds = (bench.TINY, 2) if tiny else (None, None)
    check = {"check": partial(bench.run_suites, suites=["check"], only=["random"] if tiny else None)}
    measuring = [
        Measuring("check", CHECK_MINUTES, check, folder, device, sizes, rounds),
        Measuring("speed", SPEED_MINUTES, _speed_steps(device, sizes), folder, device, sizes, rounds),
    ]
    suites = {"tiny": 1} if tiny else {name: need for name, need in WORTH.items() if name in SUITES}
    return measuring + [Suite(name, need, folder, device, workers) for name, need in suites.items()]


def _speed_steps(device, sizes):
    """{name: function of a Bench}, the most important first: what is compiled takes longest, and comes late."""
    run = bench.Bench(device, 0, sizes=sizes)
    groups = {"first": {}, "compiled": {}, "others": {}}
    for suite_name, make, group in bench.GROUPS:
        for size in run.sizes["attention"]:
            for causal in (False, True):
                name = f"{suite_name}, {group}, length {size['length']}" + ", causal" * causal
                groups[group][name] = partial(
                    bench.measure_attention, suite=suite_name, make=make, group=group, sizes=size, causal=causal
                )
    if not run.cuda:
        groups["compiled"] = {}
    models = {"train": bench.train, "decode": bench.decode}
    return {"machine": _machine} | groups["first"] | models | groups["compiled"] | groups["others"]


def _machine(run):
    run.record["machine"] = measure.machine(run.device, run.dtype)


# --- A part that measures ---


class Measuring:
    """Steps that measure with a `Bench`. Each try of a step is a file, steps/NAME-1.json, then -2, and so on."""

    def __init__(self, name, minutes, steps, folder, device, sizes, rounds):
        self.name, self.minutes, self.steps, self.errors = name, minutes, steps, {}
        self.folder = Path(folder) / "steps"
        self.bench = partial(bench.Bench, device, sizes=sizes, rounds=rounds)
        fresh = json.loads(json.dumps(self.bench(0).record))
        self.header = {name: fresh[name] for name in ("card", "device", "versions", "dtype", "sizes", "rounds")}

    def tries(self, step):
        """The files of a step, in the order of their numbers."""
        files = self.folder.glob(f"{_stem(step)}-[0-9]*.json")
        return sorted(files, key=lambda path: int(path.stem.rsplit("-", 1)[1]))

    def best(self, step):
        """The record of the last try if it ended, else of the one that came farthest; None if there is none."""
        records = [_read(path) for path in self.tries(step)]
        if records and not records[-1]["skipped"]:
            return records[-1]
        return max(records, key=lambda record: len(json.dumps(record)), default=None)

    def refuse_others(self):
        for step in self.steps:
            for path in self.tries(step):
                found = _read(path)
                for name, wanted in self.header.items():
                    if found.get(name) != wanted:
                        raise ValueError(_another(path, name, found.get(name), wanted))

    def missing(self):
        found = {step: self.best(step) for step in self.steps}
        return [step for step, record in found.items() if record is None or record["skipped"]]

    def done(self):
        return len(self.steps) - len(self.missing())

    def state(self):
        text = f"{self.done()} of {len(self.steps)} steps done"
        counted = (self.best("check") or {}).get("check") if "check" in self.steps else None
        return text + (f"; {counted['cases']} cases, {counted['wrong']} wrong" if counted else "")

    def failed(self):
        """Whether the part broke; a form that fails is what the record has to say of it."""
        return bool(self.errors)

    def problems(self):
        records = [self.best(step) for step in self.steps]
        failed = [f"{entry['what']}: {entry['error']}" for record in records if record for entry in record["failed"]]
        return failed + [f"{name}: {error}" for name, error in self.errors.items()]

    def work(self, minutes, log):
        """Do the missing steps one after the other; each may take what is left of the minutes."""
        until, compiled_ahead = time.perf_counter() + 60 * minutes, False
        for step in self.missing():
            left = (until - time.perf_counter()) / 60
            if left < LEAST:
                return
            run = self.bench(left, out=self.folder / f"{_stem(step)}-{len(self.tries(step)) + 1}.json")
            if ", compiled, " in step and not compiled_ahead and run.sizes is bench.FULL and left > 1:
                beside = self.bench(left)  # what fails there fails in the step, too, and is recorded there
                bench.run_beside(beside, bench.compile_jobs(beside), seconds=min(90, 30 * left))
                compiled_ahead = True
            run.record |= {"code": code_revision(), "skipped": [UNFINISHED]}
            run.save()
            log(f"  {step}")
            run.attempt(step, partial(self.steps[step], run), seconds=0)
            run.record["skipped"].remove(UNFINISHED)
            run.save()
            if run.cuda:
                torch.cuda.empty_cache()


def _stem(step):
    return step.replace(", ", "-").replace(" ", "_")


def _read(path):
    try:
        record = json.loads(path.read_text(encoding="utf8"))
        if isinstance(record["skipped"], list) and isinstance(record["failed"], list):
            return record
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{path} is no record of a step: move it away")


def _another(path, name, found, wanted):
    values = f" ({found}, not {wanted})" if isinstance(wanted, str) else ""
    return f"{path} differs from this call in its {name}{values}: choose another folder (--out)"


# --- A part that is a suite ---


class Suite:
    """A suite of runs, whose record is NAME.jsonl in the folder."""

    def __init__(self, name, minutes, folder, device, workers):
        self.name, self.minutes, self.path = name, minutes, Path(folder) / f"{name}.jsonl"
        self.device, self.workers, self.errors = device, workers, {}

    def recorded(self):
        if not self.path.exists() or b"\n" not in self.path.read_bytes():  # not even a whole header
            return {}, []
        return read_record(self.path, log=lambda line: None)

    def refuse_others(self):
        header, _ = self.recorded()
        device = device_name(torch.device(self.device))
        for name, wanted in {"suite": self.name, "device": device, "tasks": suite(self.name).tasks}.items():
            if header and header.get(name) != json.loads(json.dumps(wanted)):
                raise ValueError(_another(self.path, name, header.get(name), wanted))

    def missing(self):
        """The titles of the runs that are known and not recorded. A suite in stages comes to know more."""
        (_, runs), chosen = self.recorded(), suite(self.name)
        known = [*chosen.runs, *(run for stage in chosen.stages for run in stage(runs))]
        return [title(run) for run in known if not any(run.items() <= other.items() for other in runs)]

    def done(self):
        return len(self.recorded()[1])

    def state(self):
        missing, more = len(self.missing()), ", then those that follow" if suite(self.name).stages else ""
        return f"{self.done()} runs recorded, {missing} to do" + more * (missing > 0)

    def failed(self):
        return bool(self.problems())

    def problems(self):
        failed = [f"{title(run)}: {run['problem']}" for run in self.recorded()[1] if run["status"] == "failed"]
        return failed + [f"{name}: {error}" for name, error in self.errors.items()]

    def work(self, minutes, log):
        options = {"device": self.device, "workers": self.workers, "minutes": minutes}
        self.errors = run_suite(self.name, self.path, **options, log=lambda line: log(f"  {line}"))["errors"]
