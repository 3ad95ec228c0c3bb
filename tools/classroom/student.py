"""The grader's side of a student's process: start it, and have it run what its notebook defines.

    with ForkServer() as server, Student(server, cells, ...) as student:
        student.run()
        outcome = student.run_answer("dense_scores", 0, run, arguments, seed, forbidden, seconds)

The inputs go in, the student's process computes, and plain values come back. Nothing else is asked of it.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from tools.build_notebooks import ROOT
from tools.classroom import protocol

STUB = '''"""In a graded notebook the checks say nothing: the grader asks afterwards, elsewhere."""


class Verdict:
    key, status, message = "", "not answered", ""

    def __repr__(self):
        return "Not checked here."


def __getattr__(name):
    return lambda *arguments, **options: Verdict()
'''
DELETE = 'rm -rf -- "$0" || { chmod -R u+rwX -- "$0"; rm -rf -- "$0"; }'  # also what is very deep, or may not be listed
GRACE = 5  # seconds that a process has to say that an answer was stopped
MOST_FILES = 2000  # in a student's folder
MOST_MB = 512  # in its folder, and in files that it has deleted and keeps open
MOST_THREADS = 200
MOST_NOTES = 100  # of each kind
LONGEST_NOTE = 300


class ProcessEnded(Exception):
    """The student's process is gone: killed by the system or by itself, or stopped because it was too slow."""


class GraderUnavailable(Exception):
    """This machine or the grader itself lacks something; no notebook is at fault."""


class LimitExceeded(Exception):
    """The student's process takes more of the machine than it may; the message completes "it ..."."""


# What may come of waiting for a student's process.
ENDINGS = (LimitExceeded, EOFError, OSError, *protocol.PROTOCOL_ERRORS)


def library(folder):
    """A copy of synth_lib in `folder` from which a notebook runs and no answer can be read."""
    skipped = shutil.ignore_patterns("__pycache__", "bank", "engine.py", "exercise.py")
    shutil.copytree(ROOT / "synth_lib", folder / "synth_lib", ignore=skipped)
    (folder / "tools" / "classroom").mkdir(parents=True)
    for name in ("protocol.py", "sandbox.py", "submissions.py"):
        shutil.copy(Path(__file__).with_name(name), folder / "tools" / "classroom")
    (folder / "synth_lib" / "checks" / "__init__.py").write_text(STUB, encoding="utf8")
    (folder / "data").symlink_to(ROOT / "data")


def readable(folder):
    """The paths that a student's process may read. None may hold exercises or solutions.

    Raises:
        RuntimeError: one does; the message says what to do.
    """
    installed = sysconfig.get_paths()
    paths = {installed[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {os.path.join(sys.base_prefix, "lib"), "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/fonts"}
    paths |= {"/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/zero", "/sys/devices/system/cpu"}
    paths |= {str(folder), str(ROOT / "data")}
    for path in map(Path, paths):
        if path.resolve() in (ROOT, *ROOT.parents) or (path / "synth_lib" / "checks" / "bank").exists():
            raise RuntimeError(f"{path} holds the exercises: install the library with `pip install -e .` elsewhere")
    return sorted(os.path.realpath(path) for path in paths)


def contents(folder):
    """What lies in a folder and below. -> the number of files and folders, their bytes on the disk

    Raises:
        LimitExceeded: it cannot be looked through.
    """
    count, size, waiting = 0, 0, [folder]
    while waiting and count <= MOST_FILES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in itertools.islice(entries, MOST_FILES + 1 - count):
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
        except (FileNotFoundError, NotADirectoryError):  # the process is at work there
            continue
        except OSError as error:
            raise LimitExceeded(f"makes folders that nobody can look into ({error.strerror})") from None
    return count, size


def deleted(child):
    """The bytes on the disk of files that a process has deleted and keeps open."""
    size = 0
    with contextlib.suppress(OSError):  # it has ended, or this is no Linux
        for entry in os.scandir(f"/proc/{child}/fd"):
            with contextlib.suppress(OSError):
                status = entry.stat()
                size += status.st_blocks * 512 * (stat.S_ISREG(status.st_mode) and not status.st_nlink)
    return size


def core_of(number):
    """The core on which a worker's students run, its number; None: any."""
    cores = sorted(os.sched_getaffinity(0))
    return None if number is None or len(cores) < 2 else cores[number % len(cores)]


class ForkServer(contextlib.AbstractContextManager):
    """The process that forks students' processes. One for each worker of the grader.

    Args:
        protected: whether students' processes are sandboxed.
        number: that of the worker, by which its students' processes get their core; None: they use any.
    """

    def __init__(self, protected=True, number=None):
        self.protected = protected
        self.core = core_of(number)
        self.temporary = tempfile.TemporaryDirectory(prefix="grading-", ignore_cleanup_errors=True)
        self.folder = Path(self.temporary.name)
        library(self.folder)
        self.readable = readable(self.folder) if protected else []
        self.control, theirs = socket.socketpair()
        environment = {
            "PATH": os.defpath, "HOME": str(self.folder), "MPLCONFIGDIR": str(self.folder / "matplotlib"),
            "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "",
            "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
        }  # fmt: skip
        script = Path(__file__).with_name("fork_server.py")
        command = [sys.executable, "-I", "-B", str(script), str(self.folder), str(theirs.fileno())]
        self.process = subprocess.Popen(command, env=environment, cwd=self.folder, pass_fds=[theirs.fileno()])
        theirs.close()
        if self.control.recv(1) != b"+":
            self.close()
            raise RuntimeError("the process that runs notebooks does not start; what it says stands above")

    @property
    def alive(self):
        return self.process.poll() is None

    def fork(self):
        """A new child. -> its number, the socket to it"""
        own, theirs = socket.socketpair()
        child = self.order("fork", [theirs.fileno()])
        theirs.close()
        return child, own

    def stop(self, child):
        """Stop a child if it still runs. -> its wait status"""
        return self.order(child)

    def order(self, order, descriptors=()):
        """-> the answer, a number"""
        socket.send_fds(self.control, [str(order).encode().ljust(protocol.ORDER)], descriptors)
        answer = self.control.recv(protocol.ORDER, socket.MSG_WAITALL)
        if not answer:
            raise EOFError("the process that runs notebooks has ended")
        return int(answer)

    def close(self):
        self.control.close()
        self.process.kill()
        self.process.wait()
        self.temporary.cleanup()

    def __exit__(self, *problem):
        self.close()


class Student(contextlib.AbstractContextManager):
    """One notebook in a process of its own.

    Args:
        cells: (number, type, text) of each cell.
        wanted: the names that exercises have.
        lesson: the chapter's own code cells, for what the notebook lacks. not_run: those of them that are left out.
        limits: a dict with seconds_per_cell, seconds_per_notebook, seconds_per_exercise, memory_gib.

    What a student's process says is bounded where it arrives, in number and in length.

    Attributes:
        failed: the cell's number -> its error, as text.
        ended: the number of each cell that never ended or took the process with it -> what happened.
        unreadable: the cell's number -> why it does not run as code.
        notes: what was mended, as sentences.
        versions: for each wanted name, how many objects it was bound to; 0 is the last one.
    """

    RESTARTS = 3

    def __init__(self, server, cells, wanted, lesson, limits, not_run=()):
        self.server, self.cells, self.wanted, self.limits = server, cells, wanted, limits
        self.job = {"cells": cells, "wanted": wanted, "lesson": lesson, "not_run": not_run}
        self.failed, self.ended, self.unreadable, self.notes, self.versions = {}, {}, {}, [], {}
        self.child, self.channel, self.folder = None, None, None
        self.last = time.monotonic() + limits["seconds_per_notebook"]
        self.next_look = 0.0

    def __exit__(self, *problem):
        self.stop()

    @property
    def late(self):
        """Whether the time for the notebook is used up."""
        return time.monotonic() > self.last

    def stop(self):
        """-> what happened to the process, in words"""
        if self.child is None:
            return "it had ended"
        child, self.child = self.child, None
        self.channel.close()
        try:
            status = self.server.stop(child)
        finally:
            subprocess.run(["sh", "-c", DELETE, self.folder], stderr=subprocess.DEVNULL)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        return "it ended itself" if os.WIFEXITED(status) else "it was stopped"

    def ending(self, error, seconds):
        """Stop the process after what its channel raised. -> what it did, as words behind "it" """
        how = self.stop()
        if isinstance(error, TimeoutError):
            return f"does not end within {seconds:.0f} seconds"
        if isinstance(error, (EOFError, OSError)):
            return f"ends the process ({how})"
        if isinstance(error, LimitExceeded):
            return str(error)
        return f"sends nonsense ({error})" if isinstance(error, protocol.ProtocolError) else "sends nonsense"

    # --- run the cells ---

    def run(self):
        """Run the cells. Those that take the process with them are left out of a new try.

        Raises:
            ProcessEnded: too many do, or there is no time left.
            GraderUnavailable: no process can be started.
        """
        numbers, seconds = {cell[0] for cell in self.cells}, self.limits["seconds_per_cell"]
        while True:
            cell = None
            try:
                self.start()
                while True:
                    kind, header, _ = self.receive(seconds)
                    if kind == "cell":
                        cell = int(header)
                    elif kind == "note":
                        self.notes = [*self.notes, str(header)[:LONGEST_NOTE]][:MOST_NOTES]
                    elif kind == "unreadable":
                        if int(header[0]) in numbers and len(self.unreadable) < MOST_NOTES:
                            self.unreadable[int(header[0])] = str(header[1])[:LONGEST_NOTE]
                    elif kind == "ready":
                        failed = {int(number): str(error)[:LONGEST_NOTE] for number, error in header["failed"].items()}
                        self.failed = {number: failed[number] for number in numbers & failed.keys()}
                        counts, most = header["versions"], protocol.MOST_VERSIONS
                        self.versions = {name: min(max(int(counts.get(name, 0)), 0), most) for name in self.wanted}
                        return
                    else:
                        raise protocol.ProtocolError(f"{str(kind)[:20]}: {str(header)[:LONGEST_NOTE]}")
            except ENDINGS as error:
                reason = self.ending(error, seconds)
                if not self.server.alive:
                    raise GraderUnavailable(str(error)) from None
            if self.late:
                raise ProcessEnded(f"its cells take more than {self.limits['seconds_per_notebook']} seconds together")
            if cell is None:
                raise GraderUnavailable(f"before the first cell its process {reason}")
            if cell in self.ended or cell not in numbers:
                raise ProcessEnded("it sends nonsense")
            self.ended[cell] = reason
            if len(self.ended) > self.RESTARTS:
                raise ProcessEnded("too many cells never end, or end the process")

    def start(self):
        self.unreadable, self.notes = {}, []
        try:
            self.folder = tempfile.mkdtemp(prefix="student-")
        except OSError as error:
            raise GraderUnavailable(f"there is no room for its folder ({error.strerror})") from None
        self.child, self.channel = self.server.fork()
        job = {
            **self.job, "skipped": sorted(self.ended), "core": self.server.core,
            "folder": self.folder, "sandboxed": self.server.protected, "readable": self.server.readable,
            "memory": int(self.limits["memory_gib"] * 2**30), "seconds": 2 * self.limits["seconds_per_notebook"],
        }  # fmt: skip
        protocol.send(self.channel, "job", job)

    def receive(self, seconds):
        """The next message, if it comes in time, and if meanwhile the process takes no more than it may."""
        deadline = min(time.monotonic() + seconds, self.last)
        return protocol.receive(self.channel, protocol.LONGEST, deadline, self.check_limits)

    def check_limits(self):
        began = time.monotonic()
        if began < self.next_look:
            return
        count, size = contents(self.folder)
        took = time.monotonic() - began
        self.next_look = began + max(protocol.STEP, 4 * took)  # folders in folders, a thousand deep, take long
        if count > MOST_FILES:
            raise LimitExceeded(f"makes more than {MOST_FILES} files")
        if size + deleted(self.child) > MOST_MB * 2**20:
            raise LimitExceeded(f"writes more than {MOST_MB} MB")
        with contextlib.suppress(OSError):  # it has ended
            if len(os.listdir(f"/proc/{self.child}/task")) > MOST_THREADS:
                raise LimitExceeded(f"starts more than {MOST_THREADS} threads")

    # --- run what they define ---

    def run_answer(self, name, version, run, arguments, seed, forbidden, seconds):
        """One call of what the notebook bound to `name`. -> the Outcome that the process claims

        Raises:
            ProcessEnded: the process did not answer in time, or at all.
        """
        try:
            order = {"name": name, "version": version, "seed": seed, "seconds": seconds}
            self.channel.settimeout(max(min(seconds, self.last - time.monotonic()), 0.1))
            protocol.send(self.channel, "run", order, protocol.dumps((run, arguments, forbidden)))
            kind, header, payload = self.receive(max(seconds, 0) + GRACE)
            if kind != "outcome":
                raise protocol.ProtocolError(f"an unexpected message: {str(header)[:LONGEST_NOTE]}")
            return protocol.read_outcome(header, payload)
        except ENDINGS as error:
            why = f"it {self.ending(error, seconds)}"
            late = self.late and isinstance(error, TimeoutError)
            raise ProcessEnded("the time for this notebook is used up" if late else why) from error
