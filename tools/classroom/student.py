"""The grader's side of a student's process: start it, and call what it defines as if it were defined here.

    with Nursery() as nursery, Student(nursery, cells, ...) as student:
        answers = student.answers("dense_scores")       # functions that can be passed to synth_lib.checks.check

A call sends the arguments, the student's process computes, and the result comes back as plain values. What an answer
does to its arguments is repeated here, and its errors are raised here, under their own name and at the student's line.
"""

import builtins
import contextlib
import functools
import inspect
import linecache
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
import types
from pathlib import Path

import torch
from torch import nn

from tools.classroom import protocol as wire

ROOT = Path(__file__).resolve().parents[2]
STUB = '''"""In a graded notebook the checks say nothing: the grader asks afterwards, elsewhere."""


class Verdict:
    key, status, message = "", "not answered", ""

    def __repr__(self):
        return "Not checked here."


def check(*arguments, **options):
    return Verdict()


def __getattr__(name):
    return check
'''


ORDER = 64  # bytes of an order to the nursery, and of its answer
MOST_FILES = 2000  # in a student's folder
MOST_MB = 512  # in its folder, and in files that it has deleted and keeps open
MOST_THREADS = 200
MOST_NOTES = 100  # of each kind
LONGEST_NOTE = 300


# What goes wrong where a message is read that no notebook of good will leads to.
NONSENSE = (wire.Garbled, TypeError, LookupError, AttributeError, ValueError, OverflowError)


class ProcessEnded(Exception):
    """The student's process is gone: killed by the system or by itself, or stopped because it was too slow."""


class OutOfOrder(Exception):
    """This machine or the grader itself lacks something; no notebook is at fault."""


class Excess(Exception):
    """The student's process takes more of the machine than it may; the message completes "it ..."."""


@contextlib.contextmanager
def undisturbed():
    """Inside, the alarm of a check waits: what is half done here would be taken for something else later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def library(folder):
    """A copy of synth_lib in `folder` from which a notebook runs and no answer can be read."""
    skipped = shutil.ignore_patterns("__pycache__", "bank", "engine.py", "exercise.py", "compare.py")
    shutil.copytree(ROOT / "synth_lib", folder / "synth_lib", ignore=skipped)
    (folder / "synth_lib" / "checks" / "__init__.py").write_text(STUB, encoding="utf8")
    (folder / "data").symlink_to(ROOT / "data")


def readable(folder):
    """The places that a student's process may read. None may hold exercises or solutions.

    Raises:
        RuntimeError: one does; the message says what to do.
    """
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {os.path.join(sys.base_prefix, "lib"), "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/fonts"}
    places |= {"/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/zero", "/sys/devices/system/cpu"}
    places |= {str(folder), str(ROOT / "data")}
    for place in map(Path, places):
        if place.resolve() in (ROOT, *ROOT.parents) or (place / "synth_lib" / "checks" / "bank").exists():
            raise RuntimeError(f"{place} holds the exercises: install the library with `pip install -e .` elsewhere")
    return sorted(os.path.realpath(place) for place in places)


def remove(folder):
    """Delete a folder that a student has filled: very deep, perhaps, or with parts that nobody may list."""
    delete = ["rm", "-rf", "--", str(folder)]
    if subprocess.run(delete, stderr=subprocess.DEVNULL).returncode:
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(folder)], stderr=subprocess.DEVNULL)
        subprocess.run(delete, stderr=subprocess.DEVNULL)


def contents(folder):
    """What lies in a folder and below. -> the number of files and folders, their bytes on the disk

    Raises:
        Excess: it cannot be looked through.
    """
    count, size, waiting = 0, 0, [folder]
    while waiting and count <= MOST_FILES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if count > MOST_FILES:
                        break
        except (FileNotFoundError, NotADirectoryError):  # the process is at work there
            continue
        except OSError as error:
            raise Excess(f"makes folders that nobody can look into ({error.strerror})") from None
    return count, size


def deleted(child):
    """The bytes on the disk of files that a process has deleted and keeps open."""
    size = 0
    with contextlib.suppress(OSError):  # it has ended, or this is no Linux
        for entry in os.scandir(f"/proc/{child}/fd"):
            with contextlib.suppress(OSError):
                told = entry.stat()
                size += told.st_blocks * 512 * (stat.S_ISREG(told.st_mode) and not told.st_nlink)
    return size


def threads(child):
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{child}/task"))
    return 0


def core_of(number):
    """The core on which a worker's students run, its number; None: any."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return None if number is None or len(cores) < 2 else cores[number % len(cores)]


class Nursery:
    """The process that forks students' processes. One for each worker of the grader.

    Args:
        protected: whether students' processes are shut in.
        number: that of the worker, by which its students' processes get their core; None: they use any.
    """

    def __init__(self, protected=True, number=None):
        self.protected, self.orders = protected, 0
        self.core = core_of(number)
        self.folder = Path(tempfile.mkdtemp(prefix="grading-"))
        try:
            library(self.folder)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.readable = readable(self.folder) if protected else []
        own, theirs = socket.socketpair()
        self.control = own
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
        child = self.order("fork 0", [theirs.fileno()])
        theirs.close()
        return child, own

    def stop(self, child):
        """Stop a child if it still runs. -> its wait status"""
        return self.order(f"stop {child}")

    def order(self, order, descriptors=()):
        """-> the answer, a number"""
        with undisturbed():
            self.orders += 1
            socket.send_fds(self.control, [f"{self.orders} {order}".encode().ljust(ORDER)], descriptors)
            while True:
                told = self.control.recv(ORDER, socket.MSG_WAITALL)
                if not told:
                    raise EOFError("the process that runs notebooks has ended")
                place, answer = map(int, told.split())
                if place == self.orders:  # any other answers an order that nobody waits for
                    return answer

    def close(self):
        self.control.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.close()


class Student:
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
    """

    RESTARTS = 3

    def __init__(self, nursery, cells, wanted, lesson, limits, not_run=()):
        self.nursery, self.cells, self.wanted, self.lesson, self.limits = nursery, cells, wanted, lesson, limits
        self.not_run = not_run
        self.failed, self.ended, self.unreadable, self.notes, self.found = {}, {}, {}, [], {}
        self.child, self.channel, self.folder, self.busy = None, None, None, False
        self.last = time.monotonic() + limits["seconds_per_notebook"]
        self.next_look = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.stop()

    @property
    def ready(self):
        """Whether the process can be asked."""
        return self.child is not None and not self.busy

    @property
    def late(self):
        """Whether the time for the notebook is used up."""
        return time.monotonic() > self.last

    def stop(self):
        """-> what happened to the process, in words"""
        with undisturbed():
            if self.child is None:
                return "it had ended"
            child, self.child = self.child, None
            self.channel.close()
            try:
                status = self.nursery.stop(child)
            finally:
                remove(self.folder)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        return "it ended itself" if os.WIFEXITED(status) else "it was stopped"

    # --- run the cells ---

    def run(self):
        """Run the cells. Those that take the process with them are left out of a new try.

        Raises:
            ProcessEnded: too many do, or there is no time left.
            OutOfOrder: no process can be started.
        """
        numbers = {cell[0] for cell in self.cells}
        while True:
            cell = None
            try:
                self.start()
                while True:
                    kind, header, _ = self.receive(self.limits["seconds_per_cell"])
                    if kind == "cell":
                        cell = int(header)
                    elif kind == "note":
                        if len(self.notes) < MOST_NOTES:
                            self.notes.append(str(header)[:LONGEST_NOTE])
                    elif kind == "unreadable":
                        if int(header[0]) in numbers and len(self.unreadable) < MOST_NOTES:
                            self.unreadable[int(header[0])] = str(header[1])[:LONGEST_NOTE]
                    elif kind == "ready":
                        failed = {int(number): str(says)[:LONGEST_NOTE] for number, says in header["failed"].items()}
                        self.failed = {number: failed[number] for number in numbers & failed.keys()}
                        self.found = {name: list(header["found"].get(name, []))[:4] for name in self.wanted}
                        return
                    else:
                        raise wire.Garbled(str(header)[:LONGEST_NOTE] if kind == "broken" else "an unexpected message")
            except Excess as error:
                self.stop()
                reason = str(error)
            except TimeoutError:
                self.stop()
                reason = f"does not end within {self.limits['seconds_per_cell']} seconds"
            except (EOFError, OSError) as error:
                how = self.stop()
                reason = f"ends the process ({how})"
                if not self.nursery.alive:
                    raise OutOfOrder(str(error)) from None
            except NONSENSE as error:
                self.stop()
                reason = f"sends nonsense ({error})" if isinstance(error, wire.Garbled) else "sends nonsense"
            if self.late:
                raise ProcessEnded(f"its cells take more than {self.limits['seconds_per_notebook']} seconds together")
            if cell is None:
                raise OutOfOrder(f"before the first cell its process {reason}")
            if cell in self.ended or cell not in numbers:
                raise ProcessEnded("it sends nonsense")
            self.ended[cell] = reason
            if len(self.ended) > self.RESTARTS:
                raise ProcessEnded("too many cells never end, or end the process")

    def start(self):
        self.unreadable, self.notes, self.busy = {}, [], False
        try:
            self.folder = tempfile.mkdtemp(prefix="student-")
        except OSError as error:
            raise OutOfOrder(f"there is no room for its folder ({error.strerror})") from None
        self.child, self.channel = self.nursery.fork()
        job = {
            "cells": self.cells, "wanted": self.wanted, "lesson": self.lesson, "not_run": self.not_run,
            "skipped": sorted(self.ended), "core": self.nursery.core,
            "folder": self.folder, "shut_in": self.nursery.protected, "readable": self.nursery.readable,
            "memory": int(self.limits["memory_gib"] * 2**30), "seconds": 2 * self.limits["seconds_per_notebook"],
        }  # fmt: skip
        wire.send(self.channel, "job", job)

    def receive(self, seconds):
        """The next message, if it comes in time, and if meanwhile the process takes no more than it may."""
        deadline = min(time.monotonic() + seconds, self.last)
        return wire.receive(self.channel, wire.LONGEST, deadline, self.look)

    def look(self):
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + wire.STEP
        count, size = contents(self.folder)
        if count > MOST_FILES:
            raise Excess(f"makes more than {MOST_FILES} files")
        if size + deleted(self.child) > MOST_MB * 2**20:
            raise Excess(f"writes more than {MOST_MB} MB")
        if threads(self.child) > MOST_THREADS:
            raise Excess(f"starts more than {MOST_THREADS} threads")

    # --- call what they define ---

    def answers(self, name):
        """Each object that the notebook bound to `name`, last first, as a function that can be checked."""
        return [self.function(told, told["space"]) for told in self.found.get(name, [])]

    def ask(self, kind, header=None, arguments=None):
        """One request. -> the header and payload of its answer

        Raises:
            ProcessEnded: the process did not answer in time, or at all.
        """
        if not self.ready:
            raise ProcessEnded("it had ended")
        self.busy = True  # a time limit of the check may end this at any place: what comes then answers this request
        try:
            payload = b"" if arguments is None else wire.dumps(arguments, lambda value: getattr(value, "_handle", None))
            self.channel.settimeout(max(min(self.limits["seconds_per_exercise"], self.last - time.monotonic()), 0.1))
            wire.send(self.channel, kind, header, payload)
            answer, header, payload = self.receive(self.limits["seconds_per_exercise"])
            self.busy = False
            if kind == "call":
                _repeat_settings(header["after"], payload)
            if answer == "result":
                return header, payload
            error = _error(header)
        except TimeoutError:
            self.stop()
            seconds = self.limits["seconds_per_exercise"]
            why = "the time for this notebook is used up" if self.late else f"it does not end within {seconds} seconds"
            raise ProcessEnded(why) from None
        except Excess as excess:
            self.stop()
            raise ProcessEnded(f"it {excess}") from None
        except (EOFError, OSError, *NONSENSE) as problem:
            how = self.stop()
            raise ProcessEnded("it sends nonsense" if isinstance(problem, wire.Garbled) else how) from None
        raise error

    def begin(self, exercise, space):
        """Make ready for the check of an exercise: the namespace to look names up in, what may not be called."""
        self.forbidden = exercise.forbidden
        self.ask("begin", [[thing.__module__, thing.__name__] for thing in self.forbidden])
        self.ask("space", space)

    def function(self, told, space=None):
        """A function here that calls the one there. It has the same parameters, and its errors the student's line."""
        student, handle = self, told["handle"]

        def answer(*arguments, **options):
            return student.call(handle, arguments, options)

        if "parameters" not in told:
            named = type(str(told["type"])[:100], (_Callable,), {"__module__": "__main__"})  # a message names its type
            call = _in_file("<cell>", answer)
            answer = named(call)
            answer.__code__ = call.__code__  # where a check looks for the student's line
        else:
            kinds = list(inspect._ParameterKind)
            parameters = [
                inspect.Parameter(str(name)[:200], kinds[kind], default=None if optional else inspect.Parameter.empty)
                for name, kind, optional in told["parameters"]
            ]
            answer = _in_file(str(told["file"]), answer)
            answer.__signature__ = inspect.Signature(parameters)
        answer._handle, answer._space, answer._callable = handle, space, told["callable"]
        return answer

    def call(self, handle, arguments, options, module=None, method=None):
        tensors = [] if module is None else [tensor.detach() for tensor in module._held()]
        owner = None if module is None else module._handle
        header = {"handle": handle, "module": owner, "method": method}
        told, payload = self.ask("call", header, (arguments, options, tensors, torch.get_rng_state()))
        try:
            value = wire.decode(told["value"], payload, lambda one: self.revive(one, payload))
            positional, named = wire.decode(told["given"], payload, lambda one: None)
        except NONSENSE:
            self.stop()
            raise ProcessEnded("it sends nonsense") from None
        for number in told.get("called", []):
            _notice(self.forbidden[number])
        for own, theirs in [*zip(arguments, positional, strict=False), *((options[n], named.get(n)) for n in options)]:
            _repeat_change(own, theirs)
        if "graph" in told:
            given = [one for one in (*arguments, *options.values()) if isinstance(one, torch.Tensor)]
            return self.differentiable(value, told["graph"], given + ([] if module is None else module._held()))
        return value

    def revive(self, told, payload):
        ((kind, content),) = told.items()
        if kind == "module":
            return build_module(self, content, payload)
        if kind == "object":
            if content["callable"]:
                return self.function(content)
            return _thing_class(str(content["type"])[:100])(self, content["handle"])
        raise wire.Garbled("an unknown kind of value")

    def differentiable(self, value, graph, sources):
        """The same result, but its gradients are asked for in the student's process."""
        student = self

        class Bridge(torch.autograd.Function):
            @staticmethod
            def forward(context, result, *sources):
                return result.clone()

            @staticmethod
            def backward(context, gradient):
                header, payload = student.ask("gradient", {"graph": graph}, [gradient])
                return None, *wire.decode(header["value"], payload, lambda one: None)

        if not isinstance(value, torch.Tensor):
            return value  # the gradients of several results at once are not offered
        if not any(source.requires_grad for source in sources):
            return value.requires_grad_()
        return Bridge.apply(value, *sources)


class _Callable:
    """What is no plain function, such as a class: it can be called, and that is all."""

    def __init__(self, call):
        self._call = call

    def __call__(self, *arguments, **options):
        return self._call(*arguments, **options)


class _Thing:
    """An object of a class that is not known here: its attributes are asked for. What it equals is not."""

    __hash__ = None

    def __init__(self, student, handle):
        self._student, self._handle = student, handle

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        header, payload = self._student.ask("attribute", {"handle": self._handle, "name": name})
        return wire.decode(header["value"], payload, lambda one: self._student.revive(one, payload))

    def __repr__(self):
        return str(self._student.ask("text", {"handle": self._handle})[0]["value"])[:2000]

    def __eq__(self, other):
        return type(self) is type(other)


@functools.cache
def _thing_class(name):
    return type(name, (_Thing,), {})


def _error(told):
    """An exception like the student's, with its name, its text and the line where it was raised."""
    base = getattr(builtins, str(told["base"]), Exception)
    if not (isinstance(base, type) and issubclass(base, Exception)):
        base = Exception
    kind = type(str(told["type"])[:100], (base,), {"__str__": lambda self: str(self.args[0]) if self.args else ""})
    try:
        error = kind() if told["bare"] else kind(str(told["text"])[:2000])
    except TypeError:  # such as UnicodeDecodeError, which wants five arguments
        error = type(kind.__name__, (Exception,), dict(vars(kind)))(str(told["text"])[:2000])
    error.line_of_student = str(told["line"])[:200]
    return error


def _in_file(file, call):
    """`call` as a function of the file "<cell 7>", in which its errors seem raised at the student's line.

    So a check finds the line to show as it finds it in a notebook.
    """
    source = (
        "def answer(*arguments, **options):\n    try:\n        return call(*arguments, **options)\n"
        "    except Exception as error:\n        again = error\n    return raise_again(again)\n"
    )
    space = {"call": call, "raise_again": lambda error: _raise_in(file, error)}
    exec(compile(source, file, "exec"), space)
    return space["answer"]


def _raise_in(file, error):
    linecache.cache[file] = (1, None, [getattr(error, "line_of_student", "") + "\n"], file)
    exec(compile("raise error", file, "exec"), {"error": error.with_traceback(None)})


def _repeat_settings(told, payload):
    """Leave torch here as the call left it there, so that the check sees what the code changed for all."""
    torch.set_rng_state(wire.random_state(told["random"], payload))
    if told["dtype"] != str(torch.get_default_dtype()):
        torch.set_default_dtype(torch.float64)  # whatever it is: it is not what it was
    if told["device"] != "cpu":
        torch.set_default_device("meta")
    if told["grad"] is not torch.is_grad_enabled():
        torch.set_grad_enabled(bool(told["grad"]))


def _notice(thing):
    """Tell the check, which watches the calls of this process, that the answer called a part of the library there."""
    watch = sys.getprofile()
    code = (thing.__init__ if isinstance(thing, type) else thing).__code__
    if watch is not None:
        watch(types.SimpleNamespace(f_code=code), "call", None)


def _repeat_change(own, theirs):
    """Do to an argument what the student's code did to it there."""
    if isinstance(own, torch.Tensor) and isinstance(theirs, torch.Tensor):
        same = own.shape == theirs.shape and own.dtype == theirs.dtype and own.device == theirs.device
        if not same or not torch.equal(own.detach().nan_to_num(), theirs.nan_to_num()):
            own.data = theirs
    elif type(own) is list and type(theirs) is list:
        if len(own) != len(theirs):
            own[:] = theirs
        for one, other in zip(own, theirs, strict=True):
            _repeat_change(one, other)
    elif type(own) is dict and type(theirs) is dict:
        if own.keys() != theirs.keys():
            own.clear()
            own.update(theirs)
        for name in own:
            _repeat_change(own[name], theirs[name])


# --- modules ---


class _Part(nn.Module):
    """A copy of a student's module: its tensors live here, so torch's own code saves, moves and converts them. What it
    computes is computed there, with the values that the tensors have here."""

    def _held(self):
        return [_look_up(self, path) for path in self._paths]

    def forward(self, *arguments, **options):
        return self._student.call(self._handle, arguments, options, module=self, method="forward")


def _look_up(module, path):
    owner, _, name = path.rpartition(".")
    return getattr(module.get_submodule(owner), name)


def build_module(student, told, payload):
    """The module that a student's process described."""
    parts = {}
    for part in told["parts"]:
        module = parts[part["path"]] = type(str(part["type"])[:100], (_Part,), {})()
        values = wire.decode(part["values"], payload, lambda one: None)
        for name, value in values.items():
            setattr(module, name, value)
        module._non_persistent_buffers_set = set(part["temporary"])
        object.__setattr__(module, "_student", student)
        object.__setattr__(module, "_handle", part["handle"])
        for name in part["methods"]:
            if name != "forward" and not name.startswith("__"):
                object.__setattr__(module, str(name), _method(module, str(name)))
        owner, _, name = part["path"].rpartition(".")
        if part["path"]:
            parts[owner].add_module(name, module)
        module._paths = [
            one["path"].removeprefix(part["path"] + "." if part["path"] else "")
            for one in told["tensors"]
            if not part["path"] or one["path"].startswith(part["path"] + ".")
        ]
    made = {}
    for tensor in told["tensors"]:
        owner, _, name = tensor["path"].rpartition(".")
        if tensor["number"] not in made:
            made[tensor["number"]] = _tensor(tensor, wire.decode(tensor["value"], payload, lambda one: None))
        value = made[tensor["number"]]
        module = parts[owner]
        if tensor["kind"] == "buffer":
            temporary = name in module._non_persistent_buffers_set
            module.register_buffer(name, value, persistent=not temporary)
        else:
            setattr(module, name, value)
    root = parts[""]
    root._handle = told["handle"]
    return root.train(bool(told["training"]))


def _tensor(told, value):
    if told["kind"] == "parameter":
        return nn.Parameter(value, requires_grad=bool(told["requires_grad"]))
    if told["requires_grad"]:
        value.requires_grad_()
        return value if told["is_leaf"] else value.clone()
    return value


def _method(module, name):
    def method(*arguments, **options):
        return module._student.call(module._handle, arguments, options, module=module, method=name)

    return method
