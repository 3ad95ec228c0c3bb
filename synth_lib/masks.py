"""Masks: which keys a query may attend to. Boolean, True = may be attended, as in torch's scaled_dot_product_attention.

Masks act on the scores, before the softmax, whatever S made them. Combine them with `&`.
"""

import torch

from synth_lib.shapes import check_whole_number


def causal(length, device=None):
    """Every query may attend to itself and to what stands before it. -> bool "1 1 query key"."""
    check_whole_number("length", length)
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()


def padding(lengths, length, side="right"):
    """No query may attend to padding. -> bool "batch 1 1 key".

    Args:
        lengths: the real length of each sequence, whole numbers, a list or a tensor of shape "batch". The range of
            a tensor on another device than the CPU is not checked: reading it back would make that device wait. Nor
            is it under torch.compile, which cannot read a tensor.
        length: the padded length they all have.
        side: where the padding stands, "right" or "left".

    Raises:
        TypeError: `lengths` are not whole numbers.
        ValueError: one of the lengths is below 0 or above `length`; another `side`; `lengths` has not one axis.
    """
    check_whole_number("length", length)
    lengths = torch.as_tensor(lengths)
    if lengths.numel() and (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool):
        raise TypeError(f"lengths must be whole numbers, not {lengths.dtype}")
    if lengths.dim() != 1:
        raise ValueError(f"lengths must have the one axis (batch,), but has the shape {tuple(lengths.shape)}")
    if can_read(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= length:
        raise ValueError(f"lengths are {lengths.tolist()}, but must lie between 0 and length = {length}")
    if side not in ("right", "left"):
        raise ValueError(f'side is {side!r}, but must be "right" or "left"')
    lengths = lengths.long()  # an int8 cannot hold every length
    position = torch.arange(length, device=lengths.device)
    real = position < lengths[:, None] if side == "right" else position >= length - lengths[:, None]
    return real[:, None, None, :]


def can_read(lengths):
    """Whether there are numbers that can be read back for a check, without a device that waits or a broken graph."""
    return not torch.compiler.is_compiling() and lengths.device.type == "cpu" and lengths.numel() > 0


def check_mask(mask, batch, head, query, key=None):
    """Return `mask` so that it broadcasts to "batch head query key", or say what is wrong with it.

    The sizes are those of the layer; `key` is that of `query` if it is not given.

    Two axes always mean (batch, key). Every other number of axes must broadcast, axis by axis from the right.

    Raises:
        TypeError: not a bool tensor. (Zeros and ones, or -inf and 0, would mean something else in silence.)
        ValueError: an axis has the wrong size.
    """
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a bool tensor, True = may be attended, not {kind}")
    key = query if key is None else key
    shape, full = tuple(mask.shape), {"batch": batch, "head": head, "query": query, "key": key}
    names = ("batch", "key") if len(shape) == 2 else tuple(full)[4 - len(shape):]
    if len(shape) > 4:
        raise ValueError(f"mask has {len(shape)} axes, {shape}, but can have at most 4: (batch, head, query, key)")
    for name, size in zip(names, shape, strict=True):
        if size not in (1, full[name]):
            hint = "; a (query, key) mask is mask[None, None]" if shape == (query, key) else ""
            raise ValueError(
                f"axis {name} of mask is {size}, but must be {full[name]} or 1; "
                f"mask is ({', '.join(names)}) = {shape}{hint}"
            )
    return mask[:, None, None, :] if len(shape) == 2 else mask


def masked_softmax(scores, allowed):
    """Softmax along the keys that are allowed; a query that may attend to nothing gets a row of zeros.

    Filling with -inf would turn such a row, and its gradient, into NaN; so the fill is the smallest finite number,
    and what the softmax leaves on forbidden keys is set to 0.

    Args:
        scores: "batch head query key", floating point; above the smallest number of their dtype, so not -inf.
        allowed: bool, broadcasts to the same shape.
    """
    weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~allowed, 0.0)
