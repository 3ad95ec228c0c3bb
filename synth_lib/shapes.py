"""Named axes: check a tensor against "batch head query key" and bind every name once.

A comment that states a shape goes stale; a line that checks it cannot:

    axes = Axes(batch=2, length=6, d_model=12)
    x = axes(torch.randn(2, 6, 12), "batch length d_model", "x")
    h = axes(hidden(x), "batch length (head d_head)", "h")     # needs head or d_head to be known

The patterns are those of einops, and einops parses them.
"""

from dataclasses import dataclass
from itertools import combinations
from math import prod
from numbers import Integral, Real

import torch
from einops import EinopsError
from einops.parsing import ParsedExpression

# One name, one meaning, in prose, patterns, checks and docstrings. In brackets: the paper's symbol.
GLOSSARY = {
    "batch": "the sequences that are computed side by side",
    "head": "the attention heads; torch calls their number num_heads, GPT-2 n_head",
    "query": "positions of the token that attends: the rows of an attention map [i]",
    "key": "positions of the token that is attended to: the columns of an attention map [j]",
    "length": "positions, where query and key are the same axis [l]",
    "d_model": "features of a token, d_model = head * d_head [d]",
    "d_head": "features of a token inside one head",
    "rank": "the inner axis of R1 R2^T in factorized random [k]",
    "tile": "the first short output of factorized dense [a]",
    "repeat": "the second short output of factorized dense, tile * repeat = length [b]",
    "vocab": "the different tokens that a text is made of",
    "layer": "the attention layers of a model",
    "label": "the classes that a classifier chooses from",
    "beam": "the unfinished outputs that a beam search keeps for each input",
}


def check_whole_number(name, value):
    """Raise a ValueError that names the axis or option `name` unless `value` is a whole number of at least 1."""
    if not isinstance(value, (Integral, torch.SymInt)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}, but must be a whole number of at least 1")


def check_number(name, value, below=float("inf")):
    """Raise a ValueError that names the option `name` unless `value` is a number, no bool, and 0 <= value < below."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < below:
        limit = "a finite number of at least 0" if below == float("inf") else f"at least 0 and below {below}"
        raise ValueError(f"{name} is {value!r}, but must be {limit}")


class ShapeError(ValueError):
    """A tensor does not have the named shape that was claimed for it."""


@dataclass(frozen=True)
class Bound:
    """The size of one axis, and where it became known: an error has to be able to say both."""

    size: int
    where: str


class Axes:
    """The axis sizes of one computation. Call it to check a tensor; the same tensor comes back.

    Args:
        **sizes: the sizes known from the start, such as `batch=2`. `length` also fixes `query` and `key`.

    Raises:
        ValueError: a size is not a whole number of at least 1, or `length` differs from `query` or `key`.

    A name that is not known yet takes the size at which it is first met and keeps it from then on.
    """

    def __init__(self, **sizes):
        self._bound = {}
        for name, size in sizes.items():
            check_whole_number(name, size)
            if problem := self._bind(name, size, f"given as {name}={size}", self._bound):
                raise ShapeError(problem)

    def __getitem__(self, name):
        """The size of the axis `name`. Raises KeyError while it is not known."""
        if name not in self._bound:
            raise KeyError(f"axis {name} has no size yet; known are: {self._known()}")
        return self._bound[name].size

    def __repr__(self):
        return f"Axes({self._known()})"

    def _known(self):
        return ", ".join(f"{name}={bound.size}" for name, bound in self._bound.items()) or "none"

    def __call__(self, tensor, pattern, name="tensor"):
        """Check that `tensor` has the shape `pattern`, bind the names that are new, return the tensor itself.

        Args:
            tensor: anything with a `.shape`.
            pattern: axis names as einops writes them: "batch length d_model", "1 head query key",
                "batch length (head d_head)". A group is one axis; one unknown name inside it is worked out.
            name: what to call the tensor in an error.

        Raises:
            ShapeError: the tensor has another number of axes, or an axis has another size than the one it was
                bound to; the message says which, where that was bound, and whether two axes look swapped.
            ValueError: the pattern itself cannot be read.
        """
        groups = _parse(pattern)
        shape = tuple(tensor.shape)
        if len(shape) != len(groups):
            raise ShapeError(f'{name} has {len(shape)} axes, {shape}, but "{pattern}" names {len(groups)}')
        bound = dict(self._bound)  # committed only if every axis fits: a failed check leaves no trace
        where = f'first seen in {name} "{pattern}"'
        for group, size in zip(groups, shape, strict=True):
            if problem := self._fit(group, size, where, bound):
                raise ShapeError(f"{name}: {problem}{_guess_swap(groups, shape, self._bound)}")
        self._bound = bound
        return tensor

    @staticmethod
    def _bind(name, size, where, bound):
        """Bind one name; return a sentence if it contradicts what is bound already."""
        bound[name] = Bound(size, where)
        for role in ("query", "key") if name == "length" else ():  # one axis in two roles
            if bound.setdefault(role, Bound(size, where)).size != size:
                other = bound[role]
                return f"axis length has the size {size}, but is also the axis {role} = {other.size}, {other.where}"
        return None

    @classmethod
    def _fit(cls, group, size, where, bound):
        """Bind what is new in one group of names; return a sentence if the group cannot have this size."""
        unknown = [name for name in group if isinstance(name, str) and name not in bound]
        known = prod(name if isinstance(name, int) else bound[name].size for name in group if name not in unknown)
        text = str(group[0]) if len(group) == 1 else f"({' '.join(map(str, group))})"
        if len(unknown) > 1:
            return f"axis {text} = {size} has {len(unknown)} unknown sizes, {' and '.join(unknown)}; give all but one"
        if unknown and size % known == 0 and size > 0:
            return cls._bind(unknown[0], size // known, where, bound)
        if unknown:
            return f"axis {text} has the size {size}, which is not a positive multiple of {known}"
        if size == known:
            return None
        origins = ", ".join(f"{n} = {bound[n].size} was {bound[n].where}" for n in group if isinstance(n, str))
        return f"axis {text} has the size {size}, but should have {known}" + (f" ({origins})" if origins else "")


def _parse(pattern):
    """'batch 1 (head d_head)' -> [['batch'], [1], ['head', 'd_head']], read by einops."""
    try:
        parsed = ParsedExpression(pattern)
    except EinopsError as error:
        raise ValueError(f'cannot read the pattern "{pattern}": {error}') from None
    if parsed.has_ellipsis or parsed.has_non_unitary_anonymous_axes:
        raise ValueError(f'cannot read the pattern "{pattern}": name every axis; only 1 may stand without a name')
    return [list(group) if group else [1] for group in parsed.composition]


def _guess_swap(groups, shape, bound):
    """' query and d_model look swapped' when exchanging two axes of the tensor would mend it, else ''."""
    names = [" ".join(map(str, group)) for group in groups]
    wanted = [
        None if any(isinstance(n, str) and n not in bound for n in group)
        else prod(n if isinstance(n, int) else bound[n].size for n in group)
        for group in groups
    ]
    if all(want in (None, size) for want, size in zip(wanted, shape, strict=True)):
        return ""  # no size is wrong, something else is
    for i, j in combinations(range(len(shape)), 2):
        swapped = list(shape)
        swapped[i], swapped[j] = swapped[j], swapped[i]
        if all(want in (None, size) for want, size in zip(wanted, swapped, strict=True)):
            return f"; {names[i]} and {names[j]} look swapped"
    return ""
