"""What one student's notebook, file or folder can do to the grading of all others: nothing that nobody sees."""

import csv
import dataclasses
import json
import os
import platform
import re
import signal
import subprocess
import sys
from multiprocessing import current_process
from pathlib import Path

import pytest
import torch

from synth_lib import checks
from synth_lib.checks import engine
from synth_lib.checks.exercise import Reads
from synth_lib.checks.runner import Outcome
from tests.helpers.homework import BAD, COURSE, can_grade, code, light, limited, notebook, statuses
from tools.classroom import course as courses
from tools.classroom import grade as grading_tool
from tools.classroom import protocol, sandbox, submissions
from tools.classroom import student as students

FORGE = """
import json, os, stat, struct, time
def socket_of():
    for number in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            pass
CHANNEL = socket_of()
def send(kind, header=None, payload=b""):
    text = json.dumps([kind, header]).encode()
    rest = memoryview(struct.pack("<II", len(text), len(payload)) + text + payload)
    while rest:
        rest = rest[os.write(CHANNEL, rest):]
"""


def beside(told, cell):
    """The notebook with one more cell in front of its exercises."""
    told["cells"].insert(1, code(cell))
    return told


# --- the process that forks ---


@can_grade
def test_the_process_that_forks_stops_its_own_children_alone(server):
    other = subprocess.Popen(["sleep", "100"])
    for number in (other.pid, 10**9):
        assert server.stop(number) == signal.SIGKILL
    assert other.poll() is None and server.alive
    child, channel = server.fork()
    assert server.stop(child) == signal.SIGKILL
    channel.close()
    other.kill()
    other.wait()


# --- what reaches torch's own code ---

QUANTIZED = BAD + "return torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 1, torch.qint8)"


@can_grade
@pytest.mark.parametrize("answer", [QUANTIZED, BAD + "return x.to(torch.float8_e5m2)"])
def test_a_tensor_of_no_plain_dtype_is_named(graded, answer):
    result = graded(light("02", {"02.1": answer}))
    assert re.search(r"the result is a tensor of torch\.(qint8|float8_e5m2); give it", result.verdicts["02.1"][1])
    assert statuses(result) == ["wrong"] + ["right"] * 5


def tensor(**changes):
    return {"tensor": {"shape": [2], "dtype": "torch.float32", "layout": "torch.strided", **changes}}


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "torch.qint8"}, {"dtype": "torch.quint4x2"}, {"dtype": "torch.bits8"}, {"dtype": "torch.complex32"},
        {"shape": [0, 2**62, 2**62]}, {"shape": [0, 2**40]}, {"shape": [2.0]}, {"shape": [True]}, {"shape": [1] * 65},
        {"shape": [2**40], "device": "cuda"}, {"shape": [2**40], "layout": "torch.sparse_csr"}, {"shape": [-1, -2]},
        {"dtype": ["torch.float32"]}, {"shape": [3]},
    ],
)  # fmt: skip
def test_a_tensor_that_nobody_has_made_is_refused(changes):
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(tensor(**changes), bytes(8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_part_of_a_tensor_travels_whatever_its_strides(dtype):
    table = torch.arange(49).reshape(7, 7).to(dtype)
    for part in (table.T[:1, :1], table[:, 0], table.T, table[2:, 3:], table[3, 3], table[:0]):
        payload = bytearray()
        told = protocol.encode(part, payload)
        assert torch.equal(protocol.decode(told, bytes(payload)), part)


def test_a_sparse_tensor_keeps_its_kind_alone():
    payload = bytearray()
    back = protocol.decode(protocol.encode(torch.ones(3, 2).to_sparse(), payload), payload)
    assert (back.layout, back.shape, payload) == (torch.sparse_coo, (3, 2), b"")


# --- a message makes no more of itself than its bytes ---


def test_two_tensors_never_are_made_of_the_same_bytes():
    """Each byte is used once, so that all tensors of a message are no larger than the message."""
    two = protocol.decode({"list": [tensor(), tensor(dtype="torch.bool", shape=[8])]}, bytes(range(16)))
    assert two[0].view(torch.uint8).tolist() == [*range(8)] and two[1].tolist() == [True] * 8
    for more in ({}, {"at": 0}):
        with pytest.raises(protocol.ProtocolError):
            protocol.decode({"list": [tensor(**more)] * 3}, bytes(16))


@pytest.mark.parametrize(
    "value",
    [
        {"dict": [[{"int": hex(n * (2**61 - 1))}, None] for n in range(20_000)]},  # all of one hash
        {"set": [{"int": hex(n * (2**61 - 1))} for n in range(20_000)]},
        {"list": [{"list": [None] * 1000}] * 1000},
    ],
    ids=["names of one hash", "a set of one hash", "many parts"],
)
def test_the_parts_of_a_message_are_counted(value):
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(value, b"")


SAME_BYTES = """
from tools.classroom import protocol
def many(connection, outcome):
    header = {name: value for name, value in vars(outcome).items() if name != "result"}
    part = {"tensor": {"shape": [2**22], "dtype": "torch.uint8", "layout": "torch.strided", "at": 0}}
    protocol.send(connection, "outcome", {**header, "result": {"list": [part] * 30_000}}, bytes(2**22))
"""


@can_grade
def test_a_notebook_that_forges_messages_gets_no_memory_of_the_grader(graded):
    """4 MB named 30,000 times would be 120 GB."""
    answer = SAME_BYTES + BAD + "protocol.send_outcome = many\n    return x"
    result = graded(light("02", {"02.1": answer}))
    assert "sends nonsense" in result.verdicts["02.1"][1]
    assert statuses(result) == ["wrong"] + ["right"] * 5


HEADER = {name: value for name, value in vars(Outcome("result", text="")).items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"end": 3}, {"end": "right"}, {"end": []}, {"text": None},
        {"warning": ["w"]}, {"bases": 7}, {"names": None}, {"printed": "many"},
        {"result": {"other": 3}}, {"more": 1},
    ],
)  # fmt: skip
def test_an_outcome_that_is_none_is_refused(changes):
    assert protocol.read_outcome({**HEADER, "text": "t" * 9999, "printed": 10**40}, b"").text == "t" * 2000
    with pytest.raises(protocol.PROTOCOL_ERRORS):
        protocol.read_outcome({**HEADER, **changes}, b"")


def test_a_result_of_another_shape_for_other_inputs_is_not_broadcast():
    """Ten thousand rows for one: subtracted, they would take 10,000 times the memory."""
    arguments = {"x": torch.ones(1, 4, 3)}
    reads = Reads("x", axis=1, result_axis=1)
    for again in (torch.zeros(10_000, 1, 1, 1), torch.zeros(1, 4, 3, dtype=torch.int64), None):
        assert "of another kind or shape" in reads.broken(lambda _, again=again: again, arguments, arguments["x"], None)


# --- time, and what is said ---

DRIP = FORGE + 'os.write(CHANNEL, bytes([0, 0, 9, 0] * 2))\nwhile 1:\n    os.write(CHANNEL, b" ")\n    time.sleep(0.5)'
FLOOD = FORGE + 'for _ in range(3000):\n    send("note", "n" * 400)\n    send("unreadable", [2, "u" * 400])'
LONG = FORGE + 'send("ready", {"failed": {"3": "word " * 10**5, "77": "x"}, "versions": {"other": 1}})\ntime.sleep(99)'


@can_grade
def test_a_message_that_drips_is_stopped_in_time(graded):
    result = graded(beside(light("02"), DRIP), limited(seconds_per_cell=2))
    assert set(statuses(result)) == {"right"} and "does not end within 2 seconds" in result.troubles[0]


@can_grade
def test_many_short_cells_do_not_take_longer_than_one_notebook_may(graded):
    told = light("02")
    told["cells"][1:1] = [code("import time; time.sleep(0.09)")] * 60
    result = graded(told, limited(seconds_per_notebook=2))
    assert "its cells take more than 2 seconds together" in result.refused
    assert set(statuses(result)) == {"not graded"}


@can_grade
def test_when_the_time_is_over_no_answer_is_called_wrong(graded):
    told = light("02", {"02.1": BAD + "import time; time.sleep(90)"})
    result = graded(told, limited(seconds_per_notebook=8))
    assert set(statuses(result)) == {"not graded"}
    assert "the time for this notebook is used up" in result.verdicts["02.1"][1]


@can_grade
def test_a_flood_of_messages_is_cut(graded):
    result = graded(beside(light("02"), FLOOD))
    assert set(statuses(result)) == {"right"} and len(result.notes) <= 100
    assert max(map(len, result.notes + result.troubles)) < 500
    told = notebook(["import torch", LONG, "def linear_scores(x):\n  pass"])
    result = graded(told)
    assert len(json.dumps(vars(result))) < 5000 and "word" in result.verdicts["02.1"][1]


@can_grade
def test_a_result_of_endless_json_is_named(graded):
    result = graded(light("02", {"02.1": BAD + "return [None] * 10**6"}))
    assert "the result is too large: a message has 5 MB, more than 4" in result.verdicts["02.1"][1]
    assert statuses(result) == ["wrong"] + ["right"] * 5
    forged = FORGE + BAD + 'send("outcome", [[]] * 1500000)\n    time.sleep(99)'
    result = graded(light("02", {"02.1": forged}))
    assert "nonsense" in result.verdicts["02.1"][1] and statuses(result) == ["wrong"] + ["right"] * 5


@can_grade
def test_a_long_verdict_is_cut(graded, monkeypatch):
    long = checks.Verdict("02.1", "wrong", "n" * 10**5, "n" * 10**5)
    monkeypatch.setattr(engine, "judge", lambda *arguments, **options: long)
    result = graded(light("02"))
    assert {tuple(map(len, verdict)) for verdict in result.verdicts.values()} == {(5, 2000, 2000)}


def test_a_row_and_a_page_show_the_first_of_many_reasons():
    result = {"file": "a.ipynb", "chapter": "02", "refused": "", "notes": ["n"] * 5000}
    result["verdicts"] = {key: ["right", "Right.", ""] for key in COURSE.chapters["02"].points}
    result["troubles"] = [f"Cell {n} cannot be read." for n in range(5000)]
    row = grading_tool.row_of("ann", [result], courses.read(["02"]))
    assert row["reason"].endswith("Cell 4 cannot be read; and 4995 more") and len(row["notes"]) == 101


# --- disk, memory, threads, cores ---

EXCESSES = {
    "makes more than 2000 files": "import time\nfor n in range(10**4): open(f'f{n}', 'w').close()\ntime.sleep(99)",
    "writes more than 1 MB": "import time\nopen('f', 'wb').write(bytes(2 * 2**20))\ntime.sleep(99)",
    "writes more than 1 MB ": (
        "import os, time\nf = open('f', 'wb')\nos.unlink('f')\nf.write(bytes(2 * 2**20)); f.flush()\ntime.sleep(99)"
    ),
    "starts more than 200 threads": (
        "import threading, time\nthreading.stack_size(32768)\n"
        "for _ in range(400): threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\ntime.sleep(99)"
    ),
}


@can_grade
@pytest.mark.parametrize("reason", EXCESSES)
def test_a_process_that_takes_too_much_is_stopped_at_once(graded, monkeypatch, reason):
    monkeypatch.setattr(students, "MOST_MB", 1)
    result = graded(beside(light("02"), EXCESSES[reason]))
    assert set(statuses(result)) == {"right"}
    assert f"{reason.strip()}, and was left out" in result.troubles[0]
    answer = light("02", {"02.1": BAD + EXCESSES[reason].replace("\n", "\n    ")})
    if reason == "writes more than 1 MB":
        assert f"it {reason}" in graded(answer).verdicts["02.1"][1]


def test_a_folder_that_nobody_can_look_into_is_too_much(tmp_path, monkeypatch):
    assert students.contents(tmp_path)[0] == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to("/")
    (tmp_path / "gone").symlink_to("nowhere")
    assert students.contents(tmp_path)[0] == 3

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(students.LimitExceeded, match="nobody can look into"):
        students.contents(tmp_path)


REACH = """
import ctypes, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
refused = []
def attempt(name, work):
    try:
        done = work()
        refused.append(name) if done == -1 and ctypes.get_errno() == 1 else None
    except OSError as error:
        refused.append(name) if error.errno == 1 else None
attempt("memory", lambda: os.memfd_create("x"))
attempt("lock", lambda: fcntl.lockf(open("/dev/null", "w"), fcntl.LOCK_EX))
attempt("lease", lambda: fcntl.fcntl(os.open(ctypes.__file__, 0), 1024, 2))
attempt("notice", lambda: fcntl.fcntl(os.open(".", 0), 1026, 0))
attempt("pipe", lambda: fcntl.fcntl(os.pipe()[0], 1031, 2**20))
attempt("parent", lambda: libc.prctl(1, 0, 0, 0, 0))
attempt("dump", lambda: libc.prctl(4, 0, 0, 0, 0))
attempt("scheduler", lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)))
attempt("affinity", lambda: os.sched_setaffinity(0, range(64)))
attempt("disk", lambda: libc.syscall(IOPRIO_SET, 1, 0, 0))
assert libc.prctl(15, b"name", 0, 0, 0) == 0
files = []
try:
    while True:
        files.append(os.open("/dev/null", 0))
except OSError:
    for number in files:
        os.close(number)
CORES = len(os.sched_getaffinity(0))
def linear_scores(x, W1, b1, W2, b2):
    raise ValueError(f"{' '.join(refused)}, {len(files) < 64} {CORES}")
"""


def calls_of(machine):
    return dict(entry.split() for entry in sandbox.ARCHITECTURES[machine][1].split(", "))


@can_grade
def test_what_would_pass_by_a_limit_is_refused(server, graded, monkeypatch):
    """Memory that is a file, locks, long pipes, another rank among processes, a life beyond the grader's, cores."""
    monkeypatch.setattr(server, "core", min(os.sched_getaffinity(0)))
    answer = REACH.replace("IOPRIO_SET", calls_of(platform.machine())["ioprio_set"])
    message = graded(light("02", {"02.1": answer})).verdicts["02.1"][1]
    assert "ValueError: memory lock lease notice pipe parent dump scheduler affinity disk, True 1." in message, message


WATCH = """
import ctypes, os
import synth_lib
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, work):
    ctypes.set_errno(0)
    try:
        return "" if work() != -1 or ctypes.get_errno() not in (1, 13) else name
    except PermissionError:
        return name
def call(name):
    return lambda: libc.syscall(CALLS[name], 0, 0, 0, 0, 0)
def linear_scores(x, W1, b1, W2, b2):
    names = [refused(name, call(name)) for name in sorted(CALLS)]
    names.append(refused("emptied", lambda: os.open(synth_lib.__file__, os.O_RDONLY | os.O_TRUNC)))
    raise ValueError(f"{' '.join(names)}, {os.path.getsize(synth_lib.__file__) > 0}")
"""
OTHERS = [
    "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv",
    "msgctl", "inotify_init", "inotify_init1", "inotify_add_watch", "fanotify_init", "fanotify_mark", "flock",
]  # fmt: skip


@can_grade
def test_memory_queues_and_locks_of_others_and_watches_are_refused(graded):
    """What System V shares with every program, who makes files where, locks, by which two notebooks that are graded at
    once could talk, and O_TRUNC of what may be read."""
    known = calls_of(platform.machine())
    calls = {name: int(known[name]) for name in OTHERS if name in known}
    assert set(OTHERS) - calls.keys() <= {"inotify_init"}  # aarch64 has none
    message = graded(light("02", {"02.1": f"CALLS = {calls}\n" + WATCH})).verdicts["02.1"][1]
    assert f"ValueError: {' '.join(sorted(calls))} emptied, True." in message, message


@pytest.mark.parametrize(("version", "lacks"), [(-1, "is off"), (1, "is 1"), (2, "is 2"), (3, None), (7, None)])
def test_a_kernel_that_lets_files_be_emptied_is_refused(monkeypatch, version, lacks):
    monkeypatch.setattr(sandbox, "_landlock_version", lambda: version)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    reason = sandbox.missing()
    assert reason is lacks or (lacks in reason and "version 3 or newer (Linux 6.2)" in reason)


def test_the_workers_take_the_cores_in_turn(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5, 2, 7})
    assert [students.core_of(number) for number in (None, 1, 2, 3, 4)] == [None, 5, 7, 2, 5]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5})
    assert students.core_of(1) is None


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_the_numbers_of_the_calls_are_those_of_the_kernel(machine, header):
    if not Path(header).exists():
        pytest.skip(f"there is no {header}")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text(encoding="utf8")))
    for name, number in {**calls_of(machine), "capset": str(sandbox.ARCHITECTURES[machine][2])}.items():
        assert known.get(name, number) == number, name


STUB = BAD + """import resource
    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    raise ValueError(f"{[resource.getrlimit(kind)[1] for kind in kinds]} {0 < memory < 2**38}")"""


@can_grade
def test_without_a_sandbox_the_limits_hold(server, graded, monkeypatch):
    """The notebook only reads its own limits, and does nothing else."""
    monkeypatch.setattr(server, "protected", False)
    result = graded(notebook(["import torch", STUB]), limited(seconds_per_notebook=600))
    assert "ValueError: [64, 67108864, 1200, 0] True." in result.verdicts["02.1"][1], result.verdicts["02.1"]


@can_grade
def test_what_was_graded_without_the_sandbox_does_not_count_with_it():
    """The journal of a grading that was cut off is gone on with where its results would be the same."""
    course = courses.read(["02"])
    assert grading_tool.fingerprint(course, True) == grading_tool.fingerprint(courses.read(["02"]), True)
    assert grading_tool.fingerprint(course, True) != grading_tool.fingerprint(course, False)
    chapter = dataclasses.replace(course.chapters["02"], not_run=("x = 1",))
    changed = dataclasses.replace(course, chapters={"02": chapter})
    assert grading_tool.fingerprint(course, True) != grading_tool.fingerprint(changed, True)


def test_unprotected_says_what_it_gives_up_before_anything_is_run(tmp_path, monkeypatch, capsys):
    said = []
    monkeypatch.setattr(grading_tool, "results_of", lambda *_: said.append(capsys.readouterr().err))
    (tmp_path / "subs" / "ann").mkdir(parents=True)
    given = [str(tmp_path / "subs"), "--out", str(tmp_path / "grades.csv"), "--chapters", "02"]
    for options in ([], ["--unprotected"]):
        monkeypatch.setattr("sys.argv", ["grade.py", *given, *options])
        assert grading_tool.main() == 0
    assert said[0] == "" and "a notebook may do everything that you may, to files, other processes and" in said[1]
    assert "Grade only what you wrote yourself, or inside a container." in said[1]


@can_grade
def test_each_notebook_has_a_core_that_this_process_may_use(tmp_path, monkeypatch, capsys):
    """Not one of all that the machine has: two that share one would use up each other's time."""
    (tmp_path / "subs" / "ann").mkdir(parents=True)
    jobs = []
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 9, 11})
    monkeypatch.setattr(grading_tool, "results_of", lambda *given: jobs.append(given[3]))
    given = [str(tmp_path / "subs"), "--out", str(tmp_path / "grades.csv"), "--chapters", "02"]
    for options, status in (([], 0), (["--jobs", "2"], 0), (["--jobs", "3"], 0), (["--jobs", "4"], 2)):
        monkeypatch.setattr("sys.argv", ["grade.py", *given, *options])
        assert grading_tool.main() == status
    said = capsys.readouterr().err
    assert jobs == [3, 2, 3]
    assert said == "JOBS=4 is too much for 3 cores: notebooks on one core take each other's time.\n"


# --- whose fault it is ---


class Worker:
    """Stands for a pool of processes: `fate` says of a notebook's name and its neighbours whether a worker is lost."""

    def __init__(self, fate):
        self.fate, self.graded = fate, []

    def __call__(self, size, **options):
        self.running = {}
        return self

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        return False

    def submit(self, work, path):
        job = grading_tool.Future()
        self.running[job] = path.name
        return job

    def wait(self, running, return_when):
        names = {self.running[job] for job in running}
        job = next(iter(running))
        if self.fate(names):
            job.set_exception(grading_tool.BrokenProcessPool())
        else:
            self.graded.append(self.running[job])
            job.set_result({"file": self.running[job], "refused": ""})
        return [job], None


def run_pool(monkeypatch, tmp_path, fate, jobs=2):
    from concurrent.futures import Future

    worker = Worker(fate)
    monkeypatch.setattr(grading_tool, "Future", Future, raising=False)
    monkeypatch.setattr(grading_tool, "ProcessPoolExecutor", worker)
    monkeypatch.setattr(grading_tool, "wait", worker.wait)
    tasks = {name: tmp_path / name for name in ("ann", "eve", "zoe", "dan")}
    journal = grading_tool.Journal(tmp_path / "journal")
    grading_tool.results_of(tasks, ["02"], True, jobs, journal)
    text = (tmp_path / "journal").read_text(encoding="utf8")
    return {key: result["refused"] for key, result in journal.entries.items()}, text


def test_a_lost_worker_costs_only_the_notebook_that_loses_it_alone(monkeypatch, tmp_path):
    refused, journal = run_pool(monkeypatch, tmp_path, lambda names: "eve" in names)
    assert {key for key, says in refused.items() if says} == {"eve"}
    assert "the grader itself ended twice while it graded this one. Grade again" in refused["eve"]
    assert "eve" not in journal and journal.count("\n") == 3  # the next call tries it again


def test_a_worker_lost_to_somebody_else_costs_nobody(monkeypatch, tmp_path):
    lost = iter([True, True, False])
    refused, journal = run_pool(monkeypatch, tmp_path, lambda names: len(names) > 1 and next(lost, False))
    assert set(refused.values()) == {""} and journal.count("\n") == 4


@can_grade
def test_a_full_disk_is_no_students_fault(server, graded, monkeypatch):
    def full(prefix):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(students.tempfile, "mkdtemp", full)
    with pytest.raises(students.GraderUnavailable, match="no room for its folder"):
        graded(light("02"))


class Idle:
    """Stands for a fork server that is not needed."""

    alive = True

    def __init__(self, *arguments):
        self.close = lambda: None


def test_what_is_out_of_order_is_tried_again_and_not_written_down(tmp_path, monkeypatch):
    full = students.GraderUnavailable("full")
    fates = iter([full, None, full, full])

    def grade(*arguments):
        if fate := next(fates):
            raise fate
        return grading_tool.Result("a.ipynb")

    for name, value in {"ForkServer": Idle, "grade": grade}.items():
        monkeypatch.setattr(grading_tool, name, value)
    worker = {"course": COURSE, "protected": True, "number": 1, "server": None}
    monkeypatch.setattr(grading_tool, "WORKER", worker)
    monkeypatch.setattr(grading_tool.time, "sleep", lambda seconds: None)
    assert grading_tool.grade_in_worker(Path("a.ipynb"))["refused"] == ""
    result = grading_tool.grade_in_worker(Path("a.ipynb"))
    assert "it could not be run: full. Grade again; if it stays" in result["refused"]
    journal = grading_tool.Journal(tmp_path / "journal")
    journal.add("key", result)
    assert (tmp_path / "journal").read_text(encoding="utf8") == "" and journal.entries["key"] is result


ENDS_WITH = "import sys; from tools.classroom import sandbox; sandbox.end_with(int(sys.argv[1])); print('goes on')"


@pytest.mark.skipif(platform.system() != "Linux", reason="the kernel of Linux ends it")
def test_a_worker_whose_grading_is_gone_ends(monkeypatch):
    for parent, says in ((10**9, (1, "")), (os.getpid(), (0, "goes on\n"))):
        command = [sys.executable, "-c", ENDS_WITH, str(parent)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=courses.ROOT)
        assert (done.returncode, done.stdout) == says, done.stderr
    parents = []
    monkeypatch.setattr(sandbox, "end_with", parents.append)
    monkeypatch.setattr(grading_tool, "WORKER", {"server": None})
    monkeypatch.setattr(current_process(), "name", "SpawnProcess-7")
    grading_tool.start_worker(["02"], True, 77)
    assert parents == [77] and grading_tool.WORKER["number"] == 7


# --- files and names ---


def test_nothing_but_a_file_of_some_size_is_opened(tmp_path, monkeypatch):
    for name in ("pipe", "zero", "large"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "a.ipynb")
    (tmp_path / "zero" / "a.ipynb").symlink_to("/dev/zero")
    with open(tmp_path / "large" / "a.ipynb", "wb") as file:
        file.truncate(submissions.LARGEST + 1)
    (tmp_path / "folder" / "a.ipynb").mkdir(parents=True)
    says = {"pipe": "a pipe or a device", "zero": "a link", "large": "more than 25: clear", "folder": "it is a folder"}
    monkeypatch.setattr(grading_tool, "open", None, raising=False)
    for student, submission in submissions.find(tmp_path).items():
        (path,) = submission.notebooks
        assert grading_tool.file_key(Path(student) / path.name, path, "base").startswith(f"base/{student}/a.ipynb/")
        with pytest.raises(submissions.Refused, match=says[student]):
            submissions.read(path)


def test_each_student_has_a_page_whatever_the_name():
    names, taken = ["x!", "x?", "x__2", "X_", "n" * 255, "表" * 85, "é", "e\u0301", "..", " ", "n" * 250], set()
    files = [grading_tool.file_name(name, taken) for name in names]
    assert len({name.lower() for name in files}) == len(names) and files[0] == "x_" and files[8] == "student"
    assert max(len(f"{name}.html.partial".encode()) for name in files) <= 255


def test_what_a_terminal_or_a_table_would_obey_is_shown_as_text(tmp_path):
    course = courses.read(["02"])
    verdicts = {key: ["wrong", "a;=1+1\x1b[31m \u202egnp", "x\ny\x07"] for key in course.chapters["02"].points}
    result = {"file": "a\x1b]0;t\x07", "chapter": "02", "refused": "", "verdicts": verdicts, "troubles": ["t\ud800"]}
    row = grading_tool.row_of("＝1+1\x1b", [{**result, "notes": ["n\u2066"]}], course)
    assert row["exercises"]["02.1"][3] == "x\ny?" and row["notes"][-1].endswith(": n?")
    for text in grading_tool.feedback.pages(row, course, dict.fromkeys(verdicts, "title")):
        assert not re.search("[\x07\x1b\u202e\u2066\ud800]", text)
    grading_tool.write_table([row], course, tmp_path / "grades.csv")
    (line,) = csv.DictReader((tmp_path / "grades.csv").open(encoding="utf8"))
    assert line["student"] == "'＝1+1?" and "a;'=1+1?[31m ?gnp" in line["reason"]
    assert grading_tool._cell("-1") == "'-1" and grading_tool._cell("a; b - c") == "a; b - c"


def test_names_that_are_easily_taken_for_another_get_a_look(tmp_path):
    names = ["Zoe 1/a.ipynb", "zoe  1/a.ipynb", "bob/a.ipynb", "bob_02_dense.ipynb", "eve/a.ipynb", " /a.ipynb"]
    for name in [*names, "dan_02_dense.ipynb", "dan.ipynb"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="utf8")
    handed_in = submissions.find(tmp_path, ["02_dense"])
    course = courses.read(["02"])
    right = {key: ["right", "Right.", ""] for key in course.chapters["02"].points}
    result = {"file": "a.ipynb", "chapter": "02", "refused": "", "verdicts": right, "troubles": [], "notes": []}
    rows = [grading_tool.row_of(name, [result] * len(own.notebooks), course) for name, own in handed_in.items()]
    grading_tool.mark_names(rows, handed_in, tmp_path)
    reasons = {row["student"]: (row["needs_review"], row["reason"]) for row in rows}
    assert reasons["Zoe 1"] == reasons["zoe  1"] == (True, 'the names "Zoe 1" and "zoe  1" look the same')
    both = "both are taken for one student's; There are 2 notebooks of chapter 02; the best answer counts"
    assert reasons["bob"] == (True, f'"bob" is a folder and a file beside it; {both}')
    assert reasons["dan"][0] and "are of one chapter, and taken for the work of one student" in reasons["dan"][1]
    assert reasons["eve"] == reasons['" "'] == (False, "all right")


def test_names_that_are_printed_alike_get_a_look(tmp_path):
    """From an archive of another encoding: as bytes they differ, and both are shown with a question mark."""
    names = [os.fsdecode(name) for name in (b"M\xfcller", b"M\xf6ller")]
    course = courses.read(["02"])
    rows = [grading_tool.row_of(name, [], course) for name in names]
    grading_tool.mark_names(rows, dict.fromkeys(names, submissions.Submission([], [])), tmp_path)
    assert all(row["needs_review"] and row["reason"].startswith('the names "M?ller" and "M?ller" ') for row in rows)


@can_grade
@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("folder", "is a folder. Name the table"), ("a.csv", "cannot be written: File exists"),
        ("file/grades.csv", "cannot be written: Not a directory"), ("subs/grades.csv", "lies inside SUBMISSIONS"),
        ("n" * 255, "cannot be written: File name too long"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_named_before_anything_is_graded(tmp_path, monkeypatch, capsys, out, says):
    (tmp_path / "subs" / "ann").mkdir(parents=True)
    (tmp_path / "folder").mkdir()
    for name in ("file", "a_feedback"):
        (tmp_path / name).write_text("", encoding="utf8")
    monkeypatch.setattr(grading_tool, "grade_all", None)
    monkeypatch.setattr(
        "sys.argv", ["grade.py", str(tmp_path / "subs"), "--out", str(tmp_path / out), "--chapters", "02"]
    )
    assert grading_tool.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and says in said, said


@can_grade
def test_a_disk_that_is_full_at_the_end_is_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "subs" / "ann").mkdir(parents=True)

    def full(*arguments):
        raise OSError(28, "No space left on device", str(tmp_path / "grades.csv.partial"))

    monkeypatch.setattr(grading_tool, "write_table", full)
    monkeypatch.setattr(
        "sys.argv", ["grade.py", str(tmp_path / "subs"), "--out", str(tmp_path / "grades.csv"), "--chapters", "02"]
    )
    assert grading_tool.main() == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("cannot be written: No space left on device. Make room, then call this again: it goes on.")


def test_a_table_that_a_teacher_has_edited_is_kept(tmp_path):
    out, course = tmp_path / "grades.csv", courses.read(["02"])
    row = grading_tool.row_of("ann", [], course)
    for _ in range(2):
        grading_tool.write_table([row], course, out)
        assert not (tmp_path / "grades.csv.before").exists()
    edited = out.read_text(encoding="utf8") + "bob,by hand\n"
    out.write_text(edited, encoding="utf8")
    grading_tool.write_table([row], course, out)
    grading_tool.write_table([{**row, "student": "eve"}], course, out)  # later somebody hands in again
    assert (tmp_path / "grades.csv.before").read_text(encoding="utf8") == edited


@pytest.mark.parametrize(("error", "says"), [(MemoryError(), "MemoryError"), (SyntaxError("bad"), "SyntaxError: bad")])
def test_an_error_without_words_ends_with_its_name(error, says):
    def transform(text):
        raise error

    assert submissions.problem("x", transform) == says
    assert engine._with("StopIteration: ") == "with StopIteration."
