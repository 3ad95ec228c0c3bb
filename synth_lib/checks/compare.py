"""Whether two results are the same: kind, shape, dtype, then values. Nothing is broadcast.

One rule for kinds: a number or truth value of numpy counts as Python's, and a tuple, a named tuple and a list as one
another. All else must be of the kind that is asked: a tensor of one value is no number, 1 is not True, 6.0 is not 6.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

DEEPEST = 20  # lists in lists: what is deeper is no result
MOST_NAMES = 1000  # of a dict
TEXT = "the text returned is '"


@dataclass(frozen=True)
class Other:
    """Stands for a value that is nobody's result: what it is, in words, is all that is known of it."""

    description: str


def difference(got, expected, returns="", exact=False):
    """None if both are the same in kind, shape, dtype and values; else a sentence that does not tell the values.

    exact: whether values that differ by rounding alone differ.
    """
    if isinstance(expected, (tuple, list, dict)):
        if not _same_type(got, expected) or len(got) != len(expected):
            return f"the result is {kind_of(got)}, but should be {kind_of(expected)}{bracketed(returns)}."
        if named := isinstance(expected, dict):
            if got.keys() != expected.keys():
                return f"the result has the names {list(got)}, but should have {list(expected)}."
            names, got, expected = list(expected), [got[name] for name in expected], list(expected.values())
        elif isinstance(expected, tuple) and len(returns.split(", ")) == len(expected):
            names = returns.split(", ")  # "parameters, multiply_adds" names the parts of a tuple
        else:
            names = [f"part {i}" for i in range(len(expected))]
        deeper = returns if named else ""  # each of the results may be a tuple, with parts of these names
        problems = {name: difference(*pair, deeper, exact) for name, *pair in zip(names, got, expected, strict=True)}
        if named:  # words under a name may be what the check says of a result, and not the result
            problems = {name: problem and problem.replace(TEXT, "'") for name, problem in problems.items()}
        right = ", ".join(str(name) for name, problem in problems.items() if not problem)
        also = f" (Right: {right}.)" if right and isinstance(expected, tuple) else ""
        return next((f"{name}: {problem}{also}" for name, problem in problems.items() if problem), None)
    if not isinstance(expected, torch.Tensor):
        if not _same_type(got, expected):
            wanted = "None" if expected is None else kind_of(expected)  # whose words for None ask for a return
            return f"the result is {kind_of(got)}, but should be {wanted}{bracketed(returns)}."
        if isinstance(expected, float):  # of an expected 0, sums in another order leave a little
            same = math.isclose(got, expected, rel_tol=1e-6, abs_tol=1e-9) and (got == expected or not exact)
        else:
            same = got == expected
        if same:
            return None
        unexpected = f"the text returned is {short(got)}, and that is not what is expected."
        return unexpected if isinstance(got, str) else f"the result {short(got)} is not right."
    if not isinstance(got, torch.Tensor):
        tensor = "a tensor of torch" if "ndarray" in kind_of(got) else "a tensor"
        return f"the result is {kind_of(got)}, but should be {tensor}{bracketed(returns)}."
    if (got.layout, got.device) != (expected.layout, expected.device):
        return f"the tensor is {got.layout} on {got.device}, but should be {expected.layout} on {expected.device}."
    if got.shape != expected.shape:
        return f"the shape is {tuple(got.shape)}, but should be {tuple(expected.shape)}{bracketed(returns)}."
    if got.dtype != expected.dtype:
        return f"the dtype is {got.dtype}, but should be {expected.dtype}."
    if (odd := not_finite(got, expected)).any():
        what = "NaN" if got[first_index(odd)].isnan() else "infinite"
        count = f"{int(odd.sum())} of {odd.numel()} values are NaN or infinite"
        return f"{count}, the first, {what}, at {list(first_index(odd))}{bracketed(returns)}."
    if not got.is_floating_point():
        wrong = got != expected
    else:
        near = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
        wrong = ~torch.isclose(got.detach(), expected.detach(), **near, equal_nan=False)
        wrong &= ~(got.isnan() & expected.isnan())
    if not wrong.any():
        return None
    if got.dim() == 0:
        return f"the shape is right, but the number is not{bracketed(returns)}."
    message = f"the shape is right, but {int(wrong.sum())} of {wrong.numel()} values are not"
    if got.is_floating_point() and wrong.any() and _same_numbers(got, expected):
        message = f"{message}: the numbers are right, but in other positions"
    return f"{message}, the first at {list(first_index(wrong))}{bracketed(returns)}."


def not_finite(got, expected):
    """Where a number is NaN or infinite, and should not be."""
    return ~got.isfinite() & expected.isfinite()


def same_kind(got, expected):
    """Whether both are tensors, or of one type, with their parts."""
    if isinstance(expected, torch.Tensor):
        return isinstance(got, torch.Tensor)
    if not _same_type(got, expected):
        return False
    if isinstance(expected, dict):
        return got.keys() == expected.keys() and all(same_kind(got[name], expected[name]) for name in expected)
    if isinstance(expected, (tuple, list)):
        return len(got) == len(expected) and all(map(same_kind, got, expected))
    return True


def _same_type(got, expected):
    return type(got) is type(expected) or {type(got), type(expected)} <= {tuple, list, torch.Size}


def _same_numbers(got, expected):
    ordered = got.detach().flatten().sort().values, expected.detach().flatten().sort().values
    return torch.allclose(*ordered, rtol=1e-4, atol=1e-5)


def tensor_type(tensor):
    return tensor.shape, tensor.dtype, tensor.layout, tensor.device


def first_index(wrong):
    return tuple(wrong.nonzero()[0].tolist())


def short(value):
    """Its repr, if that is short: a whole number may have a million digits."""
    try:
        text = repr(value)
    except ValueError:
        return f"a huge {type(value).__name__}"
    return text if len(text) <= 100 else text[:100] + " ..."


def bracketed(returns):
    return f" ({returns})" if returns else ""


def kind_of(value):
    if isinstance(value, Other):
        return value.description
    name = type(value).__name__
    if name in KINDS:
        return KINDS[name]
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    length = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    module = " (a module: is it to be called?)" if isinstance(value, torch.nn.Module) else ""
    return f"{article} {name}{length}{module}"


KINDS = {
    "NoneType": "None (does it end with return?)",
    "ndarray": "a numpy array (ndarray)",
    "generator": "a generator (is there a yield?)",
    "map": "a map (what it gives is not computed yet)",
    "filter": "a filter (what it gives is not computed yet)",
    "zip": "a zip (what it gives is not computed yet)",
    "function": "a function (is it to be called?)",
    "type": "a class (is an object of it wanted?)",
}


def copy_of(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copy_of(part) for name, part in value.items()}
    return type(value)(map(copy_of, value)) if type(value) in (tuple, list) else value


def plain_copy(value, depth=0):
    """A copy of a result: tensors, numbers, texts, and lists, tuples and dicts of these; anything else as an Other.

    A named tuple becomes a tuple, a scalar of numpy a number or truth value of Python.

    Raises:
        ValueError: it is nested too deeply.
    """
    if depth > DEEPEST:
        raise ValueError("the result is nested too deeply")
    if issubclass(type(value), np.generic):
        value = np.generic.item(value)
    kind = type(value)
    if issubclass(kind, tuple) and kind is not torch.Size:
        kind = tuple
    if kind in (tuple, list):
        return kind(plain_copy(part, depth + 1) for part in value)
    if kind is dict and len(value) <= MOST_NAMES and all(type(name) in (str, int, bool) for name in value):
        return {name: plain_copy(part, depth + 1) for name, part in value.items()}
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():  # what it holds counts, not what a subclass says of itself
            return value.as_subclass(torch.Tensor).clone()
    if value is None or kind in (bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, Other):
        return value
    return Other(kind_of(value)[:200])


def differ(result, other):
    """Whether two results of an answer differ; what cannot be compared does not."""
    try:
        return difference(result, other) is not None
    except Exception:
        return False
