"""What travels between the grader and a student's process, and how.

From the grader, which is trusted, values travel as pickles; functions of an exercise travel by value, because the
student's process has no exercises to import them from. Back travel only plain values: JSON with the raw bytes of
tensors. Nothing that a student's process sends is ever unpickled, and every part of it is checked before it is used.
"""

import builtins
import dis
import functools
import importlib
import io
import json
import marshal
import math
import pickle
import struct
import time
import types

import torch

from synth_lib.checks.compare import DEEPEST, MOST_NAMES, Other
from synth_lib.checks.runner import ENDS, Outcome

ORDER = 64  # bytes of an order to the process that forks, and of its answer
BUDGET = 64 * 2**20  # bytes of one message, those of all its tensors together
LONGEST = 4 * 2**20  # of them, those of the JSON that a student's process sends: unfolded, it takes 20 times as much
MOST_PARTS = 100_000  # values in the values of one message
MOST_AXES = 16
MOST_VERSIONS = 20  # of an answer: the last ones
STEP = 0.25  # seconds between two looks at a process that is waited for
DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
# Tensors of no other kind travel: a quantized one, made of bytes alone, ends the process that touches it.
PLAIN = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
PLAIN_DTYPES = {f"torch.{name}": getattr(torch, name) for name in PLAIN.split()}


class ProtocolError(Exception):
    """The other side sent something that is no message, or too much of it."""


# What goes wrong where a message is read that no notebook of good will leads to.
PROTOCOL_ERRORS = (ProtocolError, TypeError, LookupError, AttributeError, ValueError, OverflowError)


def send(connection, kind, header=None, payload=b"", longest=BUDGET):
    """One message: its kind, a JSON header of at most `longest` bytes, and bytes."""
    text = json.dumps([kind, header]).encode()
    for size, most in ((len(text), longest), (len(text) + len(payload), BUDGET)):
        if size > most:
            raise ProtocolError(f"a message has {size >> 20} MB, more than {most >> 20}")
    connection.sendall(struct.pack("<II", len(text), len(payload)) + text + payload)


def receive(connection, longest=BUDGET, deadline=None, check_limits=None):
    """The next message. -> kind, header, payload

    Args:
        longest: the most bytes of its JSON.
        deadline: when the whole of it must have come, as time.monotonic() counts; then check_limits() is called
            meanwhile, every STEP seconds at least, and may raise.

    Raises:
        EOFError: the other side is gone.
        TimeoutError: it has not come in time.
        ProtocolError: what came is no message.
    """
    text_length, payload_length = struct.unpack("<II", _exactly(connection, 8, deadline, check_limits))
    if text_length > longest or text_length + payload_length > BUDGET:
        raise ProtocolError("a message is too long")
    text, payload = (_exactly(connection, one, deadline, check_limits) for one in (text_length, payload_length))
    try:
        kind, header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a message cannot be read") from error
    return kind, header, payload


def _exactly(connection, count, deadline, check_limits):
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            check_limits()
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(min(left, STEP))
        try:
            part = connection.recv(min(count - len(parts), 2**20))
        except TimeoutError:
            continue
        if not part:
            raise EOFError("the process has ended")
        parts += part
    return parts


# --- plain values: student -> grader ---


def encode(value, payload):
    """The description of a value that compare.plain_copy made; the bytes of its tensors go behind `payload`."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return {"int": hex(value)}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is torch.Size:
        return {"size": [int(size) for size in value]}
    if kind in (list, tuple):
        return {kind.__name__: [encode(part, payload) for part in value]}
    if kind is dict:
        return {"dict": [[encode(name, payload), encode(part, payload)] for name, part in value.items()]}
    if kind in (torch.dtype, torch.device):
        return {kind.__name__: str(value)}
    return {"other": value.description} if kind is Other else {"tensor": _encode_tensor(value, payload)}


def _encode_tensor(value, payload):
    description = {"shape": list(value.shape), "dtype": str(value.dtype), "layout": str(value.layout)}
    if value.device.type != "cpu":
        return {**description, "device": str(value.device)}
    if description["dtype"] not in PLAIN_DTYPES:
        raise ValueError(f"the result is a tensor of {value.dtype}; give it a dtype such as torch.float32")
    if value.layout == torch.strided:  # of any other, which is never right, the kind alone travels
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        if len(payload) + plain.nbytes > BUDGET:
            raise ProtocolError(f"it has more than {BUDGET >> 20} MB")
        flat = plain.reshape(-1).clone(memory_format=torch.contiguous_format)  # a single number may have any stride
        payload += flat.view(torch.uint8).numpy().tobytes()
    return description


def decode(description, payload):
    """The value that `encode` described. Tensors take the bytes of the payload one after another, each byte once.

    Raises:
        ProtocolError: the description is not one.
    """
    try:
        return _Decoder(payload).value(description)
    except PROTOCOL_ERRORS + (RuntimeError,) as error:
        raise ProtocolError("a value cannot be read") from error


class _Decoder:
    def __init__(self, payload):
        self.payload, self.position, self.parts = payload, 0, 0

    def value(self, description, depth=0):
        self.parts += 1
        if depth > DEEPEST + 1 or self.parts > MOST_PARTS:
            raise ProtocolError
        if description is None or type(description) in (bool, str, float):
            return description
        ((kind, content),) = description.items()
        match kind:
            case "int":
                return int(content, 16)
            case "complex":
                return complex(*content)
            case "size":
                return torch.Size(content)
            case "list" | "tuple":
                return getattr(builtins, kind)(self.value(part, depth + 1) for part in content)
            case "dict":
                if len(content) > MOST_NAMES:  # as many of one hash take long to tell apart, more take for ever
                    raise ProtocolError
                return {self.value(name): self.value(part, depth + 1) for name, part in content}
            case "dtype":
                return DTYPES[content]
            case "device":
                return torch.device(content)
            case "other":
                return Other(content[:200] + "")  # a text, or this fails
            case "tensor":
                return self.tensor(content)
        raise ProtocolError

    def tensor(self, description):
        shape, dtype = description["shape"], PLAIN_DTYPES[description["dtype"]]
        known = len(shape) <= MOST_AXES and all(type(size) is int and size >= 0 for size in shape)
        if not known or math.prod(max(size, 1) for size in shape) > BUDGET:
            raise ProtocolError
        if "device" in description:
            return torch.empty(shape, dtype=dtype, device="meta")
        if description["layout"] != "torch.strided":
            return torch.empty(shape, dtype=dtype, layout=torch.sparse_coo)
        end = self.position + math.prod(shape) * dtype.itemsize
        raw, self.position = bytearray(self.payload[self.position : end]), end
        if end > len(self.payload):
            raise ProtocolError
        if not raw:
            return torch.empty(shape, dtype=dtype)
        if dtype is torch.bool:  # any byte but 0 and 1 would be no bool
            return (torch.frombuffer(raw, dtype=torch.uint8) != 0).reshape(shape)
        return torch.frombuffer(raw, dtype=dtype).reshape(shape)


def send_outcome(connection, outcome):
    """An Outcome, with its result as a plain value."""
    payload = bytearray()
    header = {name: value for name, value in vars(outcome).items() if name != "result"}
    send(connection, "outcome", {**header, "result": encode(outcome.result, payload)}, payload, LONGEST)


def read_outcome(header, payload):
    """The Outcome that `send_outcome` sent; its texts are cut, and of the kinds that they should be.

    Raises:
        ProtocolError: it is none.
    """
    if header.keys() != vars(Outcome("")).keys() or header["end"] not in ENDS:
        raise ProtocolError("an outcome is none")
    texts = {name: header[name] for name in ("text", "line", "warning")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise ProtocolError("an outcome is none")
    lists = {name: tuple(str(one)[:100] for one in header[name][:30]) for name in ("bases", "names")}
    printed = min(max(int(header["printed"]), 0), 10**12)
    texts = {name: text[:2000] for name, text in texts.items()}
    return Outcome(header["end"], decode(header["result"], payload), **texts, **lists, printed=printed)


# --- pickles: grader -> student ---

BY_VALUE = ("synth_lib.checks.bank", "synth_lib.checks.exercise")
CACHED = type(functools.cache(len))


class Pickler(pickle.Pickler):
    """Functions and classes of the exercises go by value, functions under a name that tells nothing."""

    def reducer_override(self, value):
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith(BY_VALUE):
                raise pickle.PicklingError("an input of an exercise uses a whole module of exercises")
            return importlib.import_module, (value.__name__,)
        if not isinstance(value, (type, types.FunctionType, CACHED)) or not value.__module__.startswith(BY_VALUE):
            return NotImplemented
        if isinstance(value, CACHED):
            return functools.cache, (value.__wrapped__,)
        if isinstance(value, type):
            made = {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__firstlineno__"}
            state = {name: part for name, part in vars(value).items() if name not in made}
            return type, (value.__name__, value.__bases__, {}), state, None, None, fill_class
        return self.function(value)

    def function(self, value):
        code = value.__code__
        anonymous = code.replace(co_name="given", co_filename="<given>", co_qualname="given")
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        reached = {name: value.__globals__[name] for name in sorted(names_in(code)) if name in value.__globals__}
        state = (reached, cells, value.__defaults__, value.__kwdefaults__)
        return make_function, (marshal.dumps(anonymous), len(cells)), state, None, None, fill_function


def names_in(code):
    """Every global name that a code object and those inside it look up."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return names


def make_function(code, cell_count):
    cells = tuple(types.CellType() for _ in range(cell_count))
    return types.FunctionType(marshal.loads(code), {"__builtins__": builtins}, closure=cells)


def fill_function(function, state):
    reached, contents, function.__defaults__, function.__kwdefaults__ = state
    function.__globals__.update(reached)
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        cell.cell_contents = content


def fill_class(kind, state):
    for name, part in state.items():
        setattr(kind, name, part)


def dumps(value):
    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
    return file.getvalue()
