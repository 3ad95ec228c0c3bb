"""The same y with less work: queries and keys in groups, and no scores between groups.

Every pattern that pays is a list of groups: a block of a window, every stride-th place, a cluster. In a group each
query is scored against each key, so the cost is the sum of the areas. With groups of about sqrt(n) places that is
n sqrt(n), where the whole map costs n^2. The mask form in `patterns` is for reading, this one for length.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import rearrange
from torch.nn import functional as F

from synth_lib import fast
from synth_lib.masks import check_mask, masked_softmax
from synth_lib.sparse.compared import in_float32
from synth_lib.sparse.patterns import Fixed, Strided, Window, near_heads
from synth_lib.sparse.routed import Routed, check_layer, nearest_keys


@dataclass
class Groups:
    """What some heads attend to. Places, whole numbers; -1 is nobody.

    Attributes:
        heads: a slice.
        queries: "batch|1 head|1 group query", each place in one group.
        keys: "batch|1 head|1 group key", each place once in a group.
        reach: (query, key) -> bool, for places that broadcast to "batch|1 head|1 group query key".
        instead: None, or for a query whose group holds no key for it the one it gets: "batch head length",
            -1 where there is none.
    """

    heads: slice
    queries: torch.Tensor
    keys: torch.Tensor
    reach: Callable
    instead: torch.Tensor = None


def attend(layer, x, mask=None):
    """y of `layer(x, mask)`, computed for the keys alone that `layer.pattern` chooses.

    Args:
        layer: an `attention.Attention` whose pattern is Window, Strided or Fixed (with two heads or more), or Routed
            (with `keep` only if the layer is not causal), and whose S says how it folds, as all of the library do.
        x: "batch length d_model".
        mask: None, or "batch key", the padding. A query of padding may get another y than from the layer.

    Returns:
        y: "batch length d_model".

    Raises:
        TypeError, ValueError: the layer has no such pattern, is a CrossAttention, or drops weights while training;
            Routed is in training mode, or has `keep` in a causal layer, where the nearest keys differ for every query;
            S cannot be folded; a hook hangs on S or on the pattern.
    """
    score, length = layer.score, layer.score.check(x, module=layer)
    check_layer(layer)
    if score.folds_into is None or fast.has_hooks(score):
        raise ValueError(f"{type(score).__name__} has no fold, or a hook hangs on it: call the layer, it makes the map")
    if mask is not None:
        mask = check_mask(mask, len(x), layer.head, length)
        if mask.shape[1:3] != (1, 1):
            raise ValueError(f"mask is {tuple(mask.shape)}, but must be (batch, key): a map is what is not made here")
    folded = score.fold(x, None, length, 0, None)
    value = fast.values(layer.value, x, layer.head, "groups")
    parts = [in_groups(folded, value, groups, mask) for groups in groups_of(layer, x, mask)]
    return layer.output(rearrange(torch.cat(parts, dim=1), "batch head query d_head -> batch query (head d_head)"))


def groups_of(layer, x, mask=None):
    """The groups of all heads, in order: a list of `Groups`."""
    pattern, length, head, device = layer.pattern, x.shape[1], layer.head, x.device
    kind = type(pattern)  # one that inherits may choose otherwise
    if kind is Window:
        return [window(slice(None), length, pattern.size, layer.causal, device)]
    if kind in (Strided, Fixed) and head > 1:
        near, far = slice(near_heads(head)), slice(near_heads(head), None)
        if kind is Strided:
            return [window(near, length, pattern.stride + 1, True, device), every(far, length, pattern.stride, device)]
        return [block(near, length, pattern.stride, device), ends(far, length, pattern, device)]
    if kind is Routed:
        return [clusters(layer, x, mask)]
    more = " with a single head, which is near and far at once" if kind in (Strided, Fixed) else ""
    raise TypeError(f"there are no groups for {kind.__name__}{more}: call the layer")


def window(heads, length, size, causal, device):
    """Blocks of `size` queries, and the keys around them."""
    queries = in_blocks(length, size, device)
    offset = torch.arange(1 - size, size if causal else 2 * size - 1, device=device)
    keys = outside(queries[:, :1].clamp(min=0) + offset, length)
    last = 0 if causal else size - 1

    def reach(query, key):
        return (query - key < size) & (key - query <= last)

    return Groups(heads, queries[None, None], keys[None, None], reach)


def every(heads, length, stride, device):
    """Group r: the places r, r + stride, ..."""
    places = in_blocks(length, stride, device).T[None, None]
    return Groups(heads, places, places, lambda query, key: key <= query)


def block(heads, length, stride, device):
    """Blocks of `stride` places."""
    places = in_blocks(length, stride, device)[None, None]
    return Groups(heads, places, places, lambda query, key: key <= query)


def ends(heads, length, pattern, device):
    """Blocks of queries; their keys are the ends of the blocks before, and their own block."""
    stride, own = pattern.stride, in_blocks(length, pattern.stride, device)
    number = torch.arange(len(own), device=device)
    all_ends = own[:, stride - pattern.ends :].flatten()
    before = torch.where(number[:, None] > number.repeat_interleave(pattern.ends), all_ends, -1)

    def reach(query, key):
        return (key <= query) & ((key == query) | (key % stride >= stride - pattern.ends))

    return Groups(heads, own[None, None], torch.cat([before, own], dim=1)[None, None], reach)


def clusters(layer, x, mask):
    """Group c: the queries of cluster c, and its keys."""
    pattern = layer.pattern
    if layer.causal and pattern.keep is not None:
        raise ValueError(f"keep is {pattern.keep}: the nearest keys before it differ for every query; call the layer")
    compared = pattern.compared(layer.score, x)
    with torch.no_grad(), in_float32(x):
        queries, keys = (F.normalize(part, dim=-1) for part in compared)
        cluster, to_key = pattern.closeness(queries).argmax(dim=-1), pattern.closeness(keys)
        real = torch.ones_like(cluster, dtype=torch.bool) if mask is None else mask[:, 0].expand(cluster.shape)
        to_key = to_key.masked_fill(~real[..., None], -float("inf"))
        if pattern.keep is None:
            members = by_cluster(to_key.argmax(dim=-1).masked_fill(~real, -1), to_key.shape[-1])
        else:
            best = to_key.sort(dim=2, descending=True, stable=True)
            members = best.indices.masked_fill(best.values.isinf(), -1)[:, :, : pattern.keep].mT
        # Where no key of the cluster stands before a query, it gets the nearest one of those that do.
        nearest = nearest_keys(to_key, layer.causal)
        instead = nearest.gather(3, cluster[..., None])[..., 0]
    causal = layer.causal
    return Groups(slice(None), by_cluster(cluster, to_key.shape[-1]), members,
                  lambda query, key: (key <= query) if causal else torch.ones_like(key <= query), instead)  # fmt: skip


def by_cluster(cluster, clusters):
    """The cluster of each place, "batch head place", -1 for none -> the places of each: "batch head cluster member"."""
    sizes = F.one_hot(cluster + 1, clusters + 1)[..., 1:].sum(dim=2)
    largest = int(F.pad(sizes.flatten(), (0, 1), value=1).max())  # of an empty batch too
    order = cluster.argsort(dim=-1, stable=True)
    ordered = cluster.gather(-1, order)
    names = torch.arange(clusters, device=cluster.device).repeat(*cluster.shape[:2], 1)
    first = torch.searchsorted(ordered, names)
    within = torch.arange(cluster.shape[-1], device=cluster.device) - first.gather(-1, ordered.clamp(min=0))
    members = cluster.new_full((*cluster.shape[:2], clusters * largest + 1), -1)
    where = torch.where(ordered < 0, clusters * largest, ordered * largest + within)
    return members.scatter(-1, where, order)[..., :-1].unflatten(-1, (clusters, largest))


def in_blocks(length, size, device):
    """The places 0, 1, ... in rows of `size`, -1 behind the last: "block place"."""
    places = torch.arange(-(-length // size) * size, device=device).view(-1, size)
    return outside(places, length)


def outside(places, length):
    return torch.where((places >= 0) & (places < length), places, -1)


def in_groups(folded, value, groups, mask=None):
    """softmax(S(X) + mask) G(X) of the heads of `groups`, from scores inside groups alone.

    folded: a `scores.Folded`. value: "batch head key d_head". mask: None or "batch 1 1 key".
    -> "batch head query d_head", of these heads.
    """
    heads, queries, keys = groups.heads, groups.queries, groups.keys
    value = value[:, heads]
    batch, head, length, d_head = value.shape
    query, key = queries[..., :, None], keys[..., None, :]
    allowed = groups.reach(query, key) & (key >= 0)
    if mask is not None:
        real = mask[:, 0, 0].expand(batch, length)
        allowed = allowed & take(real[:, None, :, None].expand(-1, head, -1, -1), keys).mT
    weights = masked_softmax(scores_in_groups(folded, heads, queries, keys), allowed)
    mixed = weights.to(value.dtype) @ take(value, keys)
    if groups.instead is not None:
        own = groups.instead[:, heads].gather(2, queries.clamp(min=0).flatten(2)).view(queries.shape)
        lost = ~allowed.any(dim=-1, keepdim=True) & (own >= 0)[..., None]
        mixed = torch.where(lost, take(value, own), mixed)
    place = torch.where(queries < 0, length, queries).flatten(2).expand(batch, head, -1)
    back = value.new_zeros(batch, head, length + 1, d_head)  # nobody's rows go behind the last
    return back.scatter(2, place[..., None].expand(-1, -1, -1, d_head), mixed.flatten(2, 3))[:, :, :-1]


def scores_in_groups(folded, heads, queries, keys):
    """S for the pairs of each group, from its parts: "batch|1 head group query key"."""
    total = 0
    for query, key in zip(folded.queries, folded.keys, strict=True):
        total = total + folded.scale * take(query[:, heads], queries) @ take(key[:, heads], keys).mT
    query, key = queries.clamp(min=0)[..., :, None], keys.clamp(min=0)[..., None, :]
    for table in folded.tables:
        table = table[heads]
        total = total + table[torch.arange(len(table), device=table.device)[:, None, None, None], query, key]
    for A, B in folded.products:
        A, B = take(A[:, heads], queries), take(B[:, heads], queries)
        total = total + pick(A, key % A.shape[-1]) * pick(B, key // A.shape[-1])
    return total


def pick(row, column):
    """row: "batch head group query number"; column: "batch|1 head|1 group 1 key" -> "batch head group query key"."""
    return row.gather(-1, column.expand(*row.shape[:-1], column.shape[-1]))


def take(features, places):
    """features: "batch|1 head place feature"; places: "batch|1 head|1 group member" -> with their features behind."""
    places = places.clamp(min=0)
    if places.shape[:2] == (1, 1):
        return features[:, :, places[0, 0]]
    batch, head = max(len(features), len(places)), features.shape[1]
    flat = places.flatten(2).expand(batch, head, -1)[..., None].expand(-1, -1, -1, features.shape[-1])
    return features.expand(batch, -1, -1, -1).gather(2, flat).unflatten(2, places.shape[2:])
