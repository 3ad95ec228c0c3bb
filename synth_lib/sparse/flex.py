"""Patterns for torch's FlexAttention: on a card its kernel leaves out the blocks of a map in which nothing is chosen.

    attend(layer, x, torch.compile(flex_attention))

`groups` gives the same y in plain torch. Uncompiled, FlexAttention makes the map: that saves nothing and shows that
y is equal. Torch has a backward pass for it on a card alone, and on a CPU compiles it for patterns of places, for
clusters not. On a card it has not been measured.
"""

import torch
from einops import rearrange
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from synth_lib import fast
from synth_lib.sparse.compared import in_float32
from synth_lib.sparse.patterns import Places, near_heads
from synth_lib.sparse.routed import Routed, check_layer, nearest_keys


def attend(layer, x, kernel=flex_attention):
    """y of `layer(x)`, "batch length d_model", by FlexAttention.

    Args:
        layer: an `attention.Attention` whose pattern is one of places, or Routed without `keep`, and whose S is made of
            queries and keys alone: the dot product, Dense, Factorized Random, and mixtures of them.
        x: "batch length d_model".
        kernel: `flex_attention`, or what torch.compile has made of it.

    Raises:
        TypeError, ValueError: the layer has another pattern or S, a hook on one of them, is a CrossAttention, or
            drops weights while training; Routed is in training mode; gradients are wanted, and x lies on no card.
    """
    score, length = layer.score, layer.score.check(x, module=layer)
    check_layer(layer)
    if not set(score.folds_into or {"nothing"}) <= {"token keys", "parameter keys"} or fast.has_hooks(score):
        raise ValueError(f"{type(score).__name__} is no product of queries and keys alone, or a hook hangs on it")
    blocks, folded = block_mask(layer, x), score.fold(x, None, length, 0, None)
    value = fast.values(layer.value, x, layer.head, "flex")
    query, key = fast.query_and_key(folded, value)
    if not torch.is_grad_enabled():
        query, key = query.detach(), key.detach()  # views of parameters still ask for gradients
    elif x.device.type in ("cpu", "mps") and any(part.requires_grad for part in (query, key, value)):
        raise ValueError(f"FlexAttention has no gradients on {x.device.type}: use torch.no_grad(), or call the layer")
    y = kernel(query, key, value, block_mask=blocks, scale=folded.scale)
    return layer.output(rearrange(y, "batch head query d_head -> batch query (head d_head)"))


def block_mask(layer, x):
    """The BlockMask of a layer's pattern for x, "batch length d_model". One of places is the same for every batch."""
    batch = None if isinstance(layer.pattern, Places) else len(x)
    length = x.shape[1]
    return create_block_mask(mask_mod(layer, x), batch, layer.head, length, length, device=x.device)


def mask_mod(layer, x):
    """The pattern as FlexAttention asks for it: (batch, head, query, key), four whole numbers -> bool."""
    pattern, causal, head = layer.pattern, layer.causal, layer.head
    kind, place = type(pattern), torch.arange(x.shape[1], device=x.device)
    if isinstance(pattern, Places) and (kind.reach, kind.leave) == (Places.reach, Places.leave):
        if not pattern.reach(place, place, head).all():
            raise ValueError(f"{kind.__name__} may leave a query without a key, its own place too: call the layer")
        near_ones = near_heads(head)

        def chosen(batch, which, query, key):
            near, far = pattern.sets(query, key)
            if far is not None:
                near = near | far if head == 1 else torch.where(which < near_ones, near, far)
            return near & (key <= query) if causal else near

    elif kind is Routed and pattern.keep is None:
        of_query, of_key, instead = clusters(layer, x)

        def chosen(batch, which, query, key):
            same = of_query[batch, which, query] == of_key[batch, which, key]
            same = same & (key <= query) if causal else same
            return same | (instead[batch, which, query] == key)

    else:
        kept = f" with keep = {pattern.keep}" if kind is Routed else ""
        raise TypeError(f"there is no mask_mod for {kind.__name__}{kept}: call the layer")
    return chosen


@torch.no_grad()
def clusters(layer, x):
    """(cluster of each query, of each key, the key that a query without any gets, else -1): "batch head length"."""
    pattern, length = layer.pattern, x.shape[1]
    queries, keys = (F.normalize(part, dim=-1) for part in pattern.compared(layer.score, x))
    with in_float32(x):
        to_query, to_key = pattern.closeness(queries), pattern.closeness(keys)
    of_query, of_key = to_query.argmax(dim=-1), to_key.argmax(dim=-1)
    # The nearest key to each centroid, of all or of those before; the first key of each cluster.
    nearest = nearest_keys(to_key, layer.causal)
    place = torch.arange(length, device=x.device)
    member = F.one_hot(of_key, to_key.shape[-1]).bool()
    first = torch.where(member, place[:, None], length).amin(dim=2)
    lost = first.gather(2, of_query) > (place if layer.causal else length - 1)
    return of_query, of_key, torch.where(lost, nearest.gather(3, of_query[..., None])[..., 0], -1)
