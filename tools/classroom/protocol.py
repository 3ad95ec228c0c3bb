"""What travels between the grader and a student's process, and how.

From the grader, which is trusted, values travel as pickles; functions of an exercise's inputs travel by value, because
the student's process has no exercises to import them from. Back travel only plain values: JSON with the raw bytes of
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

LARGEST = 128 * 2**20  # bytes of one message
LONGEST = 4 * 2**20  # of them, those of the JSON that a student's process sends: unfolded, it takes 20 times as much
DEEPEST = 20
MOST_AXES = 16
STEP = 0.25  # seconds between two looks at a process that is waited for
PLAIN_BASES = (bool, int, float, complex, str, type(None))
DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
# Tensors of no other kind travel: a quantized one, made of bytes alone, ends the process that touches it.
PLAIN_DTYPES = {
    f"torch.{name}": getattr(torch, name)
    for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
        "complex64", "complex128",
    )
}  # fmt: skip


class Garbled(Exception):
    """The other side sent something that is no message, or too much of it."""


def send(connection, kind, header=None, payload=b"", longest=LARGEST):
    """One message: its kind, a JSON header of at most `longest` bytes, and bytes."""
    text = json.dumps([kind, header]).encode()
    for size, most in ((len(text), longest), (len(text) + len(payload), LARGEST)):
        if size > most:
            raise Garbled(f"a message has {size >> 20} MB, more than {most >> 20}")
    connection.sendall(struct.pack("<II", len(text), len(payload)) + text + payload)


def receive(connection, longest=LARGEST, deadline=None, look=None):
    """The next message. -> kind, header, payload

    Args:
        longest: the most bytes of its JSON.
        deadline: when the whole of it must have come, as time.monotonic() counts; then look() is called meanwhile,
            every STEP seconds at least, and may raise.

    Raises:
        EOFError: the other side is gone.
        TimeoutError: it has not come in time.
        Garbled: what came is no message.
    """
    text_length, payload_length = struct.unpack("<II", _exactly(connection, 8, deadline, look))
    if text_length > longest or text_length + payload_length > LARGEST:
        raise Garbled("a message is too long")
    text = _exactly(connection, text_length, deadline, look)
    payload = _exactly(connection, payload_length, deadline, look)
    try:
        kind, header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Garbled("a message cannot be read") from error
    return kind, header, payload


def _exactly(connection, count, deadline, look):
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            look()
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
    return bytes(parts)


# --- plain values: student -> grader ---


class Plain:
    """Encodes values as JSON and bytes. `keep(value)` takes what is not plain and returns its description."""

    def __init__(self, keep):
        self.keep = keep
        self.payload = bytearray()

    def encode(self, value, depth=0):
        if depth > DEEPEST:
            raise ValueError("the result is nested too deeply")
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return {"int": hex(value)}
        if kind is float:
            return {"float": value.hex()}
        if kind is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, torch.Size):
            return {"size": [int(size) for size in value]}
        if kind in (list, tuple, set, frozenset):
            return {kind.__name__: [self.encode(part, depth + 1) for part in value]}
        if kind is dict:
            parts = value.items()
            return {"dict": [[self.encode(key, depth + 1), self.encode(part, depth + 1)] for key, part in parts]}
        if kind in (torch.dtype, torch.device):
            return {kind.__name__: str(value)}
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        return self.keep(self, value)

    def tensor(self, value):
        told = {"shape": list(value.shape), "dtype": str(value.dtype), "layout": str(value.layout)}
        if value.device.type != "cpu":
            return {"tensor": {**told, "device": str(value.device)}}
        if told["dtype"] not in PLAIN_DTYPES:
            raise ValueError(f"the result is a tensor of {told['dtype']}; give it a dtype such as torch.float32")
        if value.layout != torch.strided:  # it is never right, and its kind is all that is told
            return {"tensor": told}
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        if len(self.payload) + len(raw) > LARGEST:
            raise ValueError(f"the result has more than {LARGEST >> 20} MB")
        told["at"] = len(self.payload)
        self.payload += raw
        return {"tensor": told}


def decode(told, payload, revive, depth=0):
    """The value that `Plain.encode` described; `revive(description)` makes what is not plain.

    Raises:
        Garbled: the description is not one.
    """
    if depth > DEEPEST + 1:
        raise Garbled("a value is nested too deeply")
    if told is None or type(told) in (bool, str):
        return told
    if type(told) is not dict or len(told) != 1:
        raise Garbled("a value cannot be read")
    ((kind, content),) = told.items()
    try:
        if kind == "int":
            return int(content, 16)
        if kind == "float":
            return float.fromhex(content)
        if kind == "complex":
            return complex(*map(float.fromhex, content))
        if kind == "size":
            return torch.Size(content)
        if kind in ("list", "tuple", "set", "frozenset"):
            return getattr(builtins, kind)(decode(part, payload, revive, depth + 1) for part in content)
        if kind == "dict":
            pairs = ([decode(part, payload, revive, depth + 1) for part in pair] for pair in content)
            return {key: value for key, value in pairs}
        if kind == "dtype":
            return DTYPES[content]
        if kind == "device":
            return torch.device(content)
        if kind == "tensor":
            return _tensor(content, payload)
    except Garbled:
        raise
    except (TypeError, ValueError, KeyError, OverflowError, RuntimeError) as error:
        raise Garbled(f"a {kind} cannot be read") from error
    return revive(told)


def _tensor(told, payload):
    shape, dtype = told["shape"], PLAIN_DTYPES[told["dtype"]]
    known = len(shape) <= MOST_AXES and all(type(size) is int and size >= 0 for size in shape)
    if not known or math.prod(max(size, 1) for size in shape) > LARGEST:
        raise Garbled("a tensor has no such shape")
    if "device" in told:
        return torch.empty(shape, dtype=dtype, device="meta")
    if told["layout"] != "torch.strided":
        return torch.empty(shape, dtype=dtype, layout=torch.sparse_coo)
    bytes_wanted = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    raw = bytearray(payload[told["at"] : told["at"] + bytes_wanted])
    if len(raw) != bytes_wanted:
        raise Garbled("a tensor lacks numbers")
    if dtype is torch.bool:
        raw = bytearray(bool(number) for number in raw)  # any other byte would be no bool
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)


def random_state(told, payload):
    """The state of torch's generator that `Plain.encode` described. One that torch has not made could read behind it.

    Raises:
        Garbled: it is none.
    """
    state = decode(told, payload, revive=None)
    try:
        _, left, _, place = struct.unpack_from("<QiiQ", state.numpy())
        if left < 1 or left + place > 625:  # of a batch of 624 numbers: how many are left, and which comes next
            raise Garbled("a state of the generator cannot be read")
    except (AttributeError, TypeError, RuntimeError, struct.error) as error:
        raise Garbled("a state of the generator cannot be read") from error
    return state


# --- pickles: grader -> student ---

BY_VALUE = "synth_lib.checks.bank"
CACHED = type(functools.cache(len))


class Pickler(pickle.Pickler):
    """Pickles arguments; functions of the exercises go by value, under a name that tells nothing."""

    def __init__(self, file, handle_of):
        super().__init__(file, protocol=5)
        self.handle_of = handle_of

    def persistent_id(self, value):
        return self.handle_of(value)

    def reducer_override(self, value):
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith(BY_VALUE):
                raise pickle.PicklingError("an input of an exercise uses a whole module of exercises")
            return importlib.import_module, (value.__name__,)
        if isinstance(value, CACHED) and value.__module__.startswith(BY_VALUE):
            return functools.cache, (value.__wrapped__,)
        if not isinstance(value, types.FunctionType) or not value.__module__.startswith(BY_VALUE):
            return NotImplemented
        code = value.__code__
        anonymous = code.replace(co_name="given", co_filename="<given>")
        if hasattr(code, "co_qualname"):
            anonymous = anonymous.replace(co_qualname="given")
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


def dumps(value, handle_of=lambda value: None):
    file = io.BytesIO()
    Pickler(file, handle_of).dump(value)
    return file.getvalue()


class Unpickler(pickle.Unpickler):
    """Reads what the grader sent; `kept` holds the student's own objects by number."""

    def __init__(self, file, kept):
        super().__init__(file)
        self.kept = kept

    def persistent_load(self, number):
        return self.kept[number]
