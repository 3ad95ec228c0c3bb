"""The student's side: a process that has imported what notebooks need, and forks one child for each notebook.

    python -I nursery.py LIBRARY CONTROL     # started by tools/classroom/student.py

LIBRARY holds a copy of synth_lib without exercises, whose checks check nothing. CONTROL is the number of a socket. For
each "fork" on it, with a socket of its own attached, the nursery forks; the child shuts itself in, runs the cells of a
notebook, and then serves calls of the functions that these define, until the nursery is told to stop it. It holds no
exercise, no solution and no other submission.
"""

import ast
import builtins
import contextlib
import ctypes
import gc
import importlib
import io
import linecache
import os
import signal
import socket
import sys
import types
from collections import ChainMap
from inspect import signature
from pathlib import Path

if __name__ == "__main__":
    LIBRARY, CONTROL = sys.argv[1], int(sys.argv[2])
    here = str(Path(__file__).resolve().parent)
    sys.path[:0] = [LIBRARY, here]
    import protocol as wire
    import sandbox
    import submissions

    # A function that was pickled by value is rebuilt by name: in the grader the module has this name.
    sys.modules["tools"] = sys.modules["tools.classroom"] = types.ModuleType("tools")
    sys.modules["tools.classroom.protocol"] = wire

    import IPython.display
    import matplotlib.pyplot
    import torch
    import torch._dynamo  # the first optimizer imports it
    from IPython.core.inputtransformer2 import TransformerManager

    for module in sorted(Path(LIBRARY, "synth_lib").rglob("*.py")):
        if module.stem not in ("__init__", "__main__"):
            with contextlib.suppress(Exception):  # a part that cannot be imported fails in the cell that needs it
                __import__(".".join(module.relative_to(LIBRARY).with_suffix("").parts))
    from synth_lib.checks import guard

    torch.set_num_threads(1)

TABLE = vars(builtins)
BUILTINS = dict(TABLE)
ORDER = 64  # bytes of an order to the nursery, and of its answer
SAFE_MAGICS = {"time", "timeit", "capture", "prun"}


class Shell:
    """What get_ipython() gives in a student's notebook: magics of time run their cell, all others do nothing."""

    def __init__(self, run):
        self.run = run

    def run_cell_magic(self, name, line, cell):
        if name in SAFE_MAGICS:
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
        self.bound = {
            name: [] for name in self.wanted
        }  # each object of the name, and the namespace just after its cell

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
                TABLE.update(BUILTINS)
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
            self.complete(self.space.get(name))

    def run_text(self, text, file="<cell>"):
        source = self.transform(text)
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec", dont_inherit=True), self.space)

    def restore(self):
        """Undo what a notebook may have set for all: the runner and the answers should not depend on it."""
        TABLE.update(BUILTINS)
        sys.modules["__main__"] = self.module
        torch.set_default_dtype(torch.float32)
        torch.set_default_device("cpu")
        torch.set_grad_enabled(True)
        sys.setrecursionlimit(1000)
        sys.settrace(None)
        sys.setprofile(None)

    # --- what a notebook lacks ---

    def run_again(self, number, text):
        """Run a cell that failed and should have defined an exercise, with what it misses from the lesson."""
        try:
            tree = ast.parse(self.transform(text))
        except SyntaxError:
            return
        if not self.bound_by(tree) & {name for name in self.wanted if name not in self.space}:
            return
        self.fill(self.loaded_by(tree))
        try:
            self.run_text(text, f"<cell {number}>")
            self.report("note", f"Cell {number} failed at its place, and ran after all others.")
        except BaseException:  # it failed before: the first error is the one that is told
            return

    def complete(self, value, seen=None):
        """Fill in every global name that a function or class of the student looks up and the notebook lacks."""
        seen = set() if seen is None else seen
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, type):
            for part in list(vars(value).values()):
                self.complete(part, seen)
        function = getattr(value, "__wrapped__", value)
        if not isinstance(function, types.FunctionType) or function.__globals__ is not self.space:
            return
        names = wire.names_in(function.__code__)
        self.fill(names - BUILTINS.keys())
        for name in names & self.space.keys():
            self.complete(self.space[name], seen)

    def fill(self, names):
        missing = {name for name in names if name not in self.space}
        if not missing or not self.lesson:
            return
        trees = [ast.parse(text) for text in self.lesson]
        needed, cells = set(missing), set()
        for place in reversed(range(len(trees))):
            long = self.lesson[place].strip() in self.not_run and not self.bound_by(trees[place]) & missing
            if self.bound_by(trees[place]) & needed and not long:
                cells.add(place)
                needed |= self.loaded_by(trees[place])
        given = {"__name__": "__main__", **{name: self.space[name] for name in ("get_ipython", "display")}}
        for place in sorted(cells):
            try:
                exec(compile(trees[place], "<lesson>", "exec", dont_inherit=True), given)
            except Exception:  # a lesson cell that only shows something may need more than is there
                continue
        found = missing & given.keys()
        self.space.update({name: given[name] for name in found})
        for _, space in [pair for pairs in self.bound.values() for pair in pairs]:
            for name in found:
                space.setdefault(name, given[name])
        if found:
            self.report(
                "note", f"The notebook lacks {', '.join(sorted(found))}: the lesson's own cells were run for it."
            )

    @staticmethod
    def bound_by(tree):
        """The names that a cell binds at its top level."""
        names = set()
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            else:
                stored = (part for part in ast.walk(node) if isinstance(part, ast.Name))
                names |= {part.id for part in stored if isinstance(part.ctx, ast.Store)}
        return names

    @staticmethod
    def loaded_by(tree):
        return wire.names_in(compile(tree, "<lesson>", "exec", dont_inherit=True)) - BUILTINS.keys()


class Service:
    """Serves the objects of a notebook that has run: calls, attributes and gradients, by number."""

    def __init__(self, notebook, channel):
        self.notebook, self.channel = notebook, channel
        self.kept, self.graphs, self.forbidden = {}, {}, []

    def candidates(self):
        """Every object that a wanted name has had: the last first, in the namespace of the end, then of its cell."""
        found = {}
        for name in self.notebook.wanted:
            versions = [(self.notebook.space[name], None)] if name in self.notebook.space else []
            versions += [pair for pair in reversed(self.notebook.bound[name]) if pair[0] is not None]
            found[name] = [{**self.describe(value), "space": self.keep(space)} for value, space in versions[:4]]
        return found

    def keep(self, value):
        self.kept[len(self.kept)] = value
        return len(self.kept) - 1

    def describe(self, value):
        told = {"handle": self.keep(value), "type": type(value).__name__, "callable": callable(value)}
        if isinstance(value, types.FunctionType):
            parameters = signature(value).parameters.values()
            told["parameters"] = [[one.name, int(one.kind), one.default is not one.empty] for one in parameters]
            told["file"] = value.__code__.co_filename
        return told

    def serve(self):
        while True:
            kind, header, payload = wire.receive(self.channel)
            plain = wire.Plain(self.keep_special)
            try:
                answer = getattr(self, f"on_{kind}")(plain, header, payload)
                told = ["result", answer]
            except BaseException as error:  # the student's code may raise anything
                plain.payload.clear()
                told = ["error", self.error(error)]
            try:
                self.reply(kind, plain, told)
            except wire.Garbled as error:  # too long: nothing has been sent yet
                plain.payload.clear()
                self.reply(kind, plain, ["error", self.error(ValueError(f"the result is too large: {error}"))])

    def reply(self, kind, plain, told):
        if kind == "call":
            told[1]["after"] = self.torch_after(plain)
        wire.send(self.channel, told[0], told[1], bytes(plain.payload), wire.LONGEST)

    def torch_after(self, plain):
        """What the call has left torch with; it is put back here, and judged at the grader."""
        device = str(torch.empty(0).device)
        now = {"dtype": str(torch.get_default_dtype()), "grad": torch.is_grad_enabled(), "device": device}
        self.notebook.restore()
        return {**now, "random": plain.encode(torch.get_rng_state())}

    def load(self, payload):
        return wire.Unpickler(io.BytesIO(payload), self.kept).load()

    def on_begin(self, plain, header, payload):
        """An exercise begins: what of the library its answer may not call, by name."""
        self.forbidden = [getattr(importlib.import_module(module), name) for module, name in header]

    def on_space(self, plain, header, payload):
        """Look names up as at the end of the notebook, or as just after the cell of an older definition."""
        space = self.kept[header]
        self.end = getattr(self, "end", None) or dict(self.notebook.space)
        self.notebook.space.clear()
        self.notebook.space.update(self.end if space is None else space)

    def on_call(self, plain, header, payload):
        arguments, options, tensors, state = self.load(payload)
        self.synchronise(header.get("module"), tensors)
        work = self.kept[header["handle"]]
        if header.get("method"):
            work = getattr(work, header["method"])
        torch.set_rng_state(state)
        with guard.calls_of(self.forbidden) as called:
            result = work(*arguments, **options)
        outputs = []
        told = {"value": plain.encode(result), "given": plain.encode([list(arguments), options])}
        told["called"] = [self.forbidden.index(thing) for thing in called]
        self.collect(result, outputs)
        if outputs:
            told["graph"] = len(self.graphs)
            self.graphs[told["graph"]] = outputs, self.sources(arguments, options, header.get("module"))
        return told

    def on_attribute(self, plain, header, payload):
        return {"value": plain.encode(getattr(self.kept[header["handle"]], header["name"]))}

    def on_text(self, plain, header, payload):
        return {"value": plain.encode(repr(self.kept[header["handle"]])[:2000])}

    def on_gradient(self, plain, header, payload):
        outputs, sources = self.graphs[header["graph"]]
        received = self.load(payload)
        pairs = [(output, one) for output, one in zip(outputs, received, strict=True) if one is not None]
        reached = [place for place, source in enumerate(sources) if source.requires_grad]
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            [sources[place] for place in reached],
            [one for _, one in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        gradients = [None] * len(sources)
        for place, gradient in zip(reached, found, strict=True):
            gradients[place] = gradient
        return {"value": plain.encode(gradients)}

    def collect(self, value, outputs):
        """The tensors of a result that have a gradient, in the order in which they are encoded."""
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                outputs.append(value)
        elif type(value) in (list, tuple):
            for part in value:
                self.collect(part, outputs)
        elif type(value) is dict:
            for part in value.values():
                self.collect(part, outputs)

    def sources(self, arguments, options, module):
        """What a gradient may be asked for: the tensors of the arguments, then those of the module."""
        given = [*arguments, *options.values()]
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        return tensors + ([] if module is None else [tensor for _, tensor in named_tensors(self.kept[module])])

    # --- modules ---

    def keep_special(self, plain, value):
        if isinstance(value, torch.nn.Module):
            return {"module": self.describe_module(plain, value)}
        return {"object": self.describe(value)}

    def describe_module(self, plain, module):
        """All that a module holds, so that the grader can build one alike: torch's own code then moves and saves it."""
        numbers, tensors, parts = {}, [], []
        for path, part in module.named_modules():
            temporary = sorted(part._non_persistent_buffers_set)
            methods = [
                name
                for name in dir(type(part))
                if not hasattr(torch.nn.Module, name) and callable(getattr(part, name, None))
            ]
            values = {
                k: v for k, v in vars(part).items() if not k.startswith("_") and type(v) in (bool, int, float, str)
            }
            parts.append(
                {"path": path, "type": type(part).__name__, "temporary": temporary, "methods": methods,
                 "values": plain.encode(values), "handle": self.keep(part)}
            )  # fmt: skip
        for path, tensor in named_tensors(module):
            owner, _, name = path.rpartition(".")
            part = module.get_submodule(owner)
            kind = "parameter" if name in part._parameters else "buffer" if name in part._buffers else "attribute"
            number = numbers.setdefault(id(tensor), len(numbers))
            tensors.append(
                {"path": path, "kind": kind, "number": number, "value": plain.tensor(tensor),
                 "requires_grad": tensor.requires_grad, "is_leaf": tensor.is_leaf}
            )  # fmt: skip
        return {"handle": self.keep(module), "training": module.training, "parts": parts, "tensors": tensors}

    def synchronise(self, module, tensors):
        """Give the module's tensors the values that they have at the grader."""
        if module is None:
            return
        for (_, own), theirs in zip(named_tensors(self.kept[module]), tensors, strict=True):
            if own.dtype != theirs.dtype or not torch.equal(own.detach(), theirs):
                own.data = theirs

    def error(self, error):
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
            trace = trace.tb_next
        cells = [frame for frame in frames if frame[0].startswith("<cell")]
        file, number = cells[-1] if cells else ("", 0)
        base = next(
            (one.__name__ for one in type(error).__mro__ if vars(builtins).get(one.__name__) is one), "Exception"
        )
        try:
            text = str(error)[:2000]
        except Exception:
            text = "(the error cannot be shown)"
        line = linecache.getline(file, number).strip()[:200] if cells else ""
        return {"type": type(error).__name__[:100], "base": base, "bare": not error.args, "text": text, "line": line}


def brief(error):
    """An error of a cell in a few words."""
    text = str(error)[:300]
    return type(error).__name__ + (f": {text}" if text else "")


def named_tensors(module):
    """Every tensor that a module or a part of it holds, registered or not, with its path, in a fixed order."""
    for path, part in module.named_modules():
        held = ChainMap(part._parameters, part._buffers, {k: v for k, v in vars(part).items() if k[:1] != "_"})
        for name in sorted(held):
            if isinstance(held[name], torch.Tensor):
                yield f"{path}.{name}" if path else name, held[name]


def grow(job, channel, parent):
    """The life of a child: shut in, run the notebook, serve. It does not come back."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.chdir(job["folder"])
    os.environ.update(HOME=job["folder"], TMPDIR=job["folder"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # it ends with the nursery
        if os.getppid() != parent:
            return
        if job["core"] is not None:
            os.sched_setaffinity(0, [job["core"]])
    if job["shut_in"]:
        sandbox.limit(job["memory"], job["seconds"])
        sandbox.shut_in(job["folder"], job["readable"])

    notebook = Notebook(job, lambda kind, header: wire.send(channel, kind, header))
    notebook.run(job["cells"], job["skipped"])
    service = Service(notebook, channel)
    failed = {number: brief(error) for number, error in notebook.failed.items()}
    wire.send(channel, "ready", {"failed": failed, "found": service.candidates()})
    service.serve()


def main():
    control = socket.socket(fileno=CONTROL)
    gc.collect()
    gc.freeze()  # a child shares this memory as long as nobody touches it
    control.sendall(b"+")
    nursery, children = os.getpid(), set()
    while True:
        order, numbers, _, _ = socket.recv_fds(control, ORDER, 1, socket.MSG_WAITALL)
        if not order:
            return
        place, what, child = order.split()  # the answer has the order's number, so that it answers no other
        if what == b"stop":
            answer = stop(int(child), children)
        else:
            (number,) = numbers
            answer = os.fork()
            if answer == 0:
                control.close()
                live(socket.socket(fileno=number), nursery)
            os.close(number)
            children.add(answer)
        control.sendall(f"{int(place)} {answer}".encode().ljust(ORDER))


def stop(child, children):
    """Stop a child, and nobody else. -> its wait status"""
    if child not in children:
        return signal.SIGKILL
    children.remove(child)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def live(channel, nursery):
    """All that a child does. It does not return."""
    try:
        _, job, _ = wire.receive(channel)
        grow(job, channel, nursery)
    except BaseException as error:  # this process has nobody to raise to
        wire.send(channel, "broken", brief(error))
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
