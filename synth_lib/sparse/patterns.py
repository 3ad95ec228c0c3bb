"""Which keys a query may attend to, from their places: window, strided, fixed. What all patterns promise.

A pattern is a module that hangs on a layer, `layer.pattern = Window(16)`, and turns what the query may attend to into
what it does attend to. Child et al. 2019, arXiv 1904.10509.
"""

import torch
from torch import nn

from synth_lib.shapes import check_whole_number


class Pattern(nn.Module):
    """Chooses, for each query, some of the keys that it may attend to.

    A query that may attend to something never stays without a key: where a pattern leaves it none, it gets one that
    it may attend to. What is chosen for a query depends on the keys that it may attend to and on nothing else: not on
    padding, not on later tokens of a causal layer, not on the rest of the batch.

    Attributes:
        keeps_tokens: whether the layer's cache has to keep the tokens for it.
    """

    keeps_tokens = False

    def forward(self, score, x, memory, mask, start, length, cache):
        """What a layer calls: see `Attention._attend` for the arguments.

        mask: None, or bool that broadcasts to "batch head query key", the causal order included; checked by the layer.

        Returns:
            the mask with fewer keys.
        """
        if mask is None:
            mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=x.device)
        mask = mask[(None,) * (4 - mask.dim())]
        allowed = mask.expand(*mask.shape[:2], x.shape[1], length)
        return self.leave(allowed, score, x, memory, start, length, cache)

    def leave(self, allowed, score, x, memory, start, length, cache):
        """allowed: bool "batch|1 head|1 query key" -> bool that broadcasts to "batch head query key"."""
        raise NotImplementedError(f"{type(self).__name__} has no leave(): a pattern needs it to choose")


class Places(Pattern):
    """A pattern that reads places alone: the same for every sentence. A subclass has `sets`.

    Places count from 0, the first token of the row, padding on the left included, as for R.
    sizes: attributes, whole numbers from 1 on, else a ValueError.
    """

    def __init__(self, **sizes):
        super().__init__()
        for name, size in sizes.items():
            check_whole_number(name, size)
            setattr(self, name, size)

    def sets(self, query, key):
        """Whether key j is one that query i reaches, in the near heads and in the far ones: (bool, bool or None).

        query, key: places that broadcast. None: the far heads do as the near ones.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sets(): a pattern of places needs it")

    def reach(self, query, key, head):
        """The sets of all heads: bool "head|1 query key". query: "query 1"; key: "1 key". head: how many there are."""
        return halves(*self.sets(query, key), head)

    def mask(self, length, head=1, device=None):
        """The whole pattern, to look at or to give to a layer as its mask: bool "1 head|1 query key"."""
        check_whole_number("length", length)
        place = torch.arange(length, device=device)
        return self.reach(place[:, None], place[None], head)[None]

    def leave(self, allowed, score, x, memory, start, length, cache):
        if memory is not None:
            raise ValueError(f"{type(self).__name__} compares places, but x and memory have no common order")
        key = torch.arange(length, device=x.device)[None]
        query = torch.arange(start, start + x.shape[1], device=x.device)[:, None]
        chosen = self.reach(query, key, score.head)[None] & allowed
        lost = ~chosen.any(dim=-1, keepdim=True) & allowed.any(dim=-1, keepdim=True)
        distance = torch.where(allowed, (query - key).abs(), length)
        return torch.where(lost, key == distance.argmin(dim=-1, keepdim=True), chosen)


class Window(Places):
    """A query reaches the keys less than `size` places away, itself included; a causal layer keeps those before it.

    Raises:
        ValueError: `size` is no whole number from 1 on.
    """

    def __init__(self, size):
        super().__init__(size=size)

    def sets(self, query, key):
        return (query - key).abs() < self.size, None


class Strided(Places):
    """Sparse Transformer, strided: key j <= i from i - stride on in the near heads, each stride-th in the far ones.

    The first half of the heads (the larger one) is near, the rest far; a single head reaches both. In two layers every
    query reaches every key before it.

    Raises:
        ValueError: `stride` is no whole number from 1 on.
    """

    def __init__(self, stride):
        super().__init__(stride=stride)

    def sets(self, query, key):
        back = query - key
        return (back >= 0) & (back <= self.stride), (back >= 0) & (back % self.stride == 0)


class Fixed(Places):
    """Sparse Transformer, fixed: key j <= i in the block of i in the near heads, at the end of any in the far ones.

    A block has `stride` places, and its end are the last `ends` of them: they sum up their block for all that follows.
    A far head reaches the query itself too: the first ones would else have no key. Halves of the heads as in Strided.

    Raises:
        ValueError: `stride` or `ends` is no whole number from 1 on, or `ends` is above `stride`.
    """

    def __init__(self, stride, ends=1):
        super().__init__(stride=stride, ends=ends)
        if ends > stride:
            raise ValueError(f"ends is {ends}, but a block has stride = {stride} places")

    def sets(self, query, key):
        near = query // self.stride == key // self.stride
        far = (key % self.stride >= self.stride - self.ends) | (query == key)
        return near & (key <= query), far & (key <= query)


def halves(near, far, head):
    """near for the first half of the heads, far for the others, both for a single one: "head|1 query key"."""
    if far is None:
        return near[None]
    if head == 1:
        return (near | far)[None]
    is_near = torch.arange(head, device=near.device) < near_heads(head)
    return torch.where(is_near[:, None, None], near, far)


def near_heads(head):
    return (head + 1) // 2
