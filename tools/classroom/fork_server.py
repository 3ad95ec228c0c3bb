"""The student's side: a process that has imported what notebooks need, and forks one child for each notebook.

    python -I fork_server.py LIBRARY CONTROL     # started by tools/classroom/student.py

LIBRARY holds a copy of synth_lib without exercises, whose checks check nothing. CONTROL is the number of a socket. For
each order with a socket attached, the server forks; the child is sandboxed, runs the cells of a notebook, and then runs
the functions that these define on the inputs that it gets, until the server is told to stop it. It holds no exercise,
no solution and no other submission.
"""

import builtins
import contextlib
import dis
import gc
import io
import linecache
import os
import pickle
import signal
import socket
import sys
import types
from pathlib import Path

if __name__ == "__main__":
    LIBRARY, CONTROL = sys.argv[1], int(sys.argv[2])
    sys.path.insert(0, LIBRARY)

    import IPython.display
    import matplotlib.pyplot
    import torch
    import torch._dynamo  # the first optimizer imports it
    from IPython.core.inputtransformer2 import TransformerManager

    from synth_lib.checks.guard import Printed, on_the_cpu
    from synth_lib.checks.runner import failure, run_answer
    from tools.classroom import protocol, sandbox, submissions

    for module in sorted(Path(LIBRARY, "synth_lib").rglob("*.py")):
        if module.stem not in ("__init__", "__main__"):
            with contextlib.suppress(Exception):  # a part that cannot be imported fails in the cell that needs it
                __import__(".".join(module.relative_to(LIBRARY).with_suffix("").parts))

    torch.set_num_threads(1)
    torch.matmul(*torch.ones(2, 1, 1).half())  # reads once, for all, what the processor can do: no child may read it

TABLE = vars(builtins)
BUILTINS = dict(TABLE)


class Shell:
    """What get_ipython() gives in a student's notebook: magics of time run their cell, all others do nothing."""

    def __init__(self, run):
        self.run = run

    def run_cell_magic(self, name, line, cell):
        if name in ("time", "timeit", "capture", "prun"):
            self.run(cell)

    def __getattr__(self, name):
        return lambda *arguments, **options: None


class Notebook:
    """The cells of one notebook, run in order in one namespace.

    A cell that fails does not stop the others. What a failed cell or a function of the student misses is taken from the
    lesson, the chapter's own cells.
    """

    def __init__(self, job, report):
        self.wanted = job["wanted"]
        self.lesson, self.not_run = job["lesson"], {text.strip() for text in job["not_run"]}
        self.report = report
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self.space = vars(self.module)
        self.transform = TransformerManager().transform_cell
        # As IPython does. A chapter may show; a figure that is not shown is not drawn either.
        self.space.update(get_ipython=lambda: Shell(self.run_text), display=lambda *shown, **options: None)
        IPython.display.display = self.space["display"]
        matplotlib.pyplot.show = lambda *shown, **options: matplotlib.pyplot.close("all")
        self.failed = {}  # the cell's number -> its error
        # Each object of the name, and the namespace just after its cell.
        self.bound = {name: [] for name in self.wanted}
        self.versions, self.current = {}, None  # the last first, in the namespace of the end, then of its cell

    def run(self, cells, skipped):
        cells = [submissions.Cell(*cell) for cell in cells if cell[0] not in skipped]
        cells = submissions.prepare(cells, self.wanted, self.transform, self.report)
        for number, text in cells:
            self.report("cell", number)
            if text.strip() in self.not_run:
                continue
            before = {name: self.space.get(name) for name in self.wanted}
            try:
                self.run_text(text, f"<cell {number}>")
            except BaseException as error:  # a cell may raise anything, SystemExit too
                self.failed[number] = error
            TABLE.update(BUILTINS)  # what runs the cells needs them
            for name, old in before.items():
                if self.space.get(name) is not old:
                    self.bound[name].append((self.space.get(name), dict(self.space)))
        self.restore()
        for number, text in cells:
            if number in self.failed:
                self.run_again(number, text)
        for name in self.wanted:
            self.complete(self.space.get(name), set())
        end = dict(self.space)
        for name, bound in self.bound.items():
            versions = [(end[name], end)] if name in end else []
            versions += [pair for pair in reversed(bound) if pair[0] is not None]
            self.versions[name] = versions[: protocol.MOST_VERSIONS]

    def run_text(self, text, file="<cell>"):
        source = self.transform(text)
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compiled(source, file), self.space)

    def restore(self):
        """Undo what a notebook may have set for all: the runner and the answers should not depend on it."""
        TABLE.update(BUILTINS)
        sys.modules["__main__"] = self.module
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        sys.setrecursionlimit(1000)
        sys.settrace(None)
        sys.setprofile(None)

    # --- what a notebook lacks ---

    def run_again(self, number, text):
        """Run a cell that failed and should have defined an exercise, with what it misses from the lesson."""
        with contextlib.suppress(BaseException):  # it failed before: the first error is the one that is shown
            code = compiled(self.transform(text))
            if bound_by(code) & {name for name in self.wanted if name not in self.space}:
                self.fill(protocol.names_in(code) - BUILTINS.keys())
                self.run_text(text, f"<cell {number}>")
                self.report("note", f"Cell {number} failed where it stands, and ran after all others.")

    def complete(self, value, seen):
        """Fill in every global name that a function or class of the student looks up and the notebook lacks."""
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, type):
            for part in list(vars(value).values()):
                self.complete(part, seen)
        function = getattr(value, "__wrapped__", value)
        if not isinstance(function, types.FunctionType) or function.__globals__ is not self.space:
            return
        names = protocol.names_in(function.__code__)
        self.fill(names - BUILTINS.keys())
        for name in names & self.space.keys():
            self.complete(self.space[name], seen)

    def fill(self, names):
        missing = {name for name in names if name not in self.space}
        if not missing or not self.lesson:
            return
        needed, cells = set(missing), []
        for text in reversed(self.lesson):
            code = compiled(text)
            long = text.strip() in self.not_run and not bound_by(code) & missing
            if bound_by(code) & needed and not long:
                cells.insert(0, code)
                needed |= protocol.names_in(code) - BUILTINS.keys()
        lesson = {"__name__": "__main__", **{name: self.space[name] for name in ("get_ipython", "display")}}
        for code in cells:
            with contextlib.suppress(Exception):  # a cell that only shows something may need more than is there
                exec(code, lesson)
        filled = {name: lesson[name] for name in sorted(missing & lesson.keys())}
        self.space.update(filled)
        for _, space in [pair for pairs in self.bound.values() for pair in pairs]:
            for name in filled:
                space.setdefault(name, filled[name])
        if filled:
            self.report("note", f"The notebook lacks {', '.join(filled)}: the lesson's own cells were run for it.")

    # --- the answers ---

    def serve(self, channel):
        """Send the outcome of each call that is asked for."""
        while True:
            _, order, payload = protocol.receive(channel)
            outcome = self.outcome(order, payload)
            self.restore()
            try:
                protocol.send_outcome(channel, outcome)
            except Exception as error:  # nothing has been sent yet
                too_large = isinstance(error, protocol.ProtocolError)
                error = ValueError(f"the result is too large: {error}") if too_large else error
                protocol.send_outcome(channel, failure(error))

    def outcome(self, order, payload):
        asked = order["name"], order["version"]
        answer, space = self.versions[asked[0]][asked[1]]
        if self.current != asked:  # it looks names up as at the end, or as just after the cell of an older definition
            self.current = asked
            self.space.clear()
            self.space.update(space)
        try:
            run, arguments, forbidden = pickle.loads(payload)
            printed = Printed(io.StringIO(), 0)
            with on_the_cpu():
                return run_answer(answer, run, arguments, order["seed"], forbidden, order["seconds"], printed)
        except BaseException as error:  # KeyboardInterrupt, or what the answer has broken here
            TABLE.update(BUILTINS)
            return failure(error, answer)


def compiled(text, file="<lesson>"):
    return compile(text, file, "exec", dont_inherit=True)


def bound_by(code):
    """The names that a cell binds at its top level."""
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_NAME"}


def brief(error):
    """An error of a cell in a few words."""
    text = str(error)[:300]
    return type(error).__name__ + (f": {text}" if text else "")


def run_child(channel, server):
    """The life of a child: sandboxed, run the notebook, serve. It does not come back."""
    try:
        _, job, _ = protocol.receive(channel)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        os.chdir(job["folder"])
        os.environ.update(HOME=job["folder"], TMPDIR=job["folder"])
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sandbox.end_with(server)
        if job["core"] is not None:
            os.sched_setaffinity(0, [job["core"]])
        sandbox.limit(job["memory"], job["seconds"])
        if job["sandboxed"]:
            sandbox.enter(job["folder"], job["readable"])

        notebook = Notebook(job, lambda kind, header: protocol.send(channel, kind, header))
        notebook.run(job["cells"], job["skipped"])
        failed = {number: brief(error) for number, error in notebook.failed.items()}
        versions = {name: len(versions) for name, versions in notebook.versions.items()}
        protocol.send(channel, "ready", {"failed": failed, "versions": versions})
        notebook.serve(channel)
    except BaseException as error:  # this process has nobody to raise to
        protocol.send(channel, "broken", brief(error))
    finally:
        os._exit(1)


def main():
    control = socket.socket(fileno=CONTROL)
    gc.collect()
    gc.freeze()  # a child shares this memory as long as nobody touches it
    control.sendall(b"+")
    server, children = os.getpid(), set()
    while True:
        order, numbers, _, _ = socket.recv_fds(control, protocol.ORDER, 1, socket.MSG_WAITALL)
        if not order:
            return
        if numbers:
            answer = os.fork()
            if answer == 0:
                control.close()
                run_child(socket.socket(fileno=numbers[0]), server)
            os.close(numbers[0])
            children.add(answer)
        else:
            answer = int(signal.SIGKILL)
            if int(order) in children:  # it stops them, and nobody else
                children.remove(int(order))
                os.kill(int(order), signal.SIGKILL)
                answer = os.waitpid(int(order), 0)[1]
        control.sendall(str(answer).encode().ljust(protocol.ORDER))


if __name__ == "__main__":
    main()
