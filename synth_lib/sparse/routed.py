"""Which keys a query may attend to, from content: those of its cluster. Roy et al. 2020, arXiv 2003.05997."""

import torch
from torch.nn import functional as F

from synth_lib import fast
from synth_lib.attention import CrossAttention
from synth_lib.shapes import check_number, check_whole_number
from synth_lib.sparse.compared import Content


class Routed(Content):
    """Keeps the keys of the query's cluster: k-means, with a moving average as its centroids.

    Queries and keys are scaled to length 1, and a query goes to its nearest centroid. Its keys are, of those that it
    may attend to, the `keep` nearest to that centroid; without `keep`, those whose own nearest centroid it is, and if
    there is none, the nearest to it. Of equals, the earlier one.

    "The nearest of all" would leak: a later token could push an earlier one out. Here each query asks among its own.

    Centroids are no parameters, and stay in float32 in a layer of half precision. In training mode each call moves
    them towards the mean of their queries and of their keys, after it has chosen; in evaluation nothing moves. A key
    counts if some query may attend to it, a query if it may attend to something; in self-attention, where a query may
    stand at padding, its own key has to count too.

    Args:
        features, head: as in `Content`.
        clusters: how many centroids a head has; the work is least at about sqrt(length).
        keep: how many keys a query gets, length / clusters for balanced work. None: all of the cluster. In a causal
            layer each query then has keys of its own, so `groups.attend` refuses it; `flex.attend` always does.
        decay: what is kept of a centroid in a step.

    Raises:
        TypeError, ValueError: a number that does not fit.
        RuntimeError: the layer is called again in the backward pass (activation checkpointing) in training mode.
    """

    def __init__(self, features, head, clusters, *, keep=None, decay=0.999):
        super().__init__()
        for name, value in (("features", features), ("head", head), ("clusters", clusters)):
            check_whole_number(name, value)
        if keep is not None:
            check_whole_number("keep", keep)
        check_number("decay", decay, below=1)
        self.features, self.head, self.keep, self.decay = features, head, keep, decay
        self.register_buffer("centroids", F.normalize(torch.randn(head, clusters, features), dim=-1))

    def _apply(self, fn, recurse=True):
        exact = self.centroids
        super()._apply(fn, recurse)
        if self.centroids.dtype in (torch.bfloat16, torch.float16):  # a step would be less than their rounding
            self.centroids = exact.to(self.centroids.device)
        return self

    def closeness(self, vectors):
        """How near a centroid is: "batch head position feature", of length 1 -> "batch head position cluster"."""
        centroids = self.centroids.float()
        return vectors @ centroids.mT - centroids.square().sum(-1)[:, None] / 2

    def choose(self, queries, keys, allowed, start=None):
        queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
        to_query, to_key = self.closeness(queries), self.closeness(keys)
        cluster = to_query.argmax(dim=-1)
        closeness = to_key.mT.gather(2, cluster[..., None].expand(*cluster.shape, keys.shape[2]))  # query key
        closeness = closeness.masked_fill(~allowed, -float("inf"))
        place = torch.arange(keys.shape[2], device=keys.device)
        if self.keep is None:
            chosen = allowed & (cluster[..., None] == to_key.argmax(dim=-1)[:, :, None])
            first = place == closeness.argmax(dim=-1, keepdim=True)
            chosen = torch.where(chosen.any(dim=-1, keepdim=True), chosen, first & allowed)
        else:
            order = closeness.sort(dim=-1, descending=True, stable=True).indices
            chosen = torch.zeros_like(allowed).scatter(-1, order, (place < self.keep).expand_as(order)) & allowed
        if self.training:
            if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:  # within backward()
                raise RuntimeError(
                    "Routed moves its centroids in each call in training, and activation checkpointing calls again: "
                    "leave this layer out of it, or call pattern.eval()"
                )
            real_queries, real_keys = allowed.any(dim=-1), allowed.any(dim=-2)
            if start is not None:  # padding may attend to tokens, but nobody attends to padding
                real_queries = real_queries & real_keys[..., start : start + queries.shape[2]]
            self._follow(queries, to_query, real_queries)
            self._follow(keys, to_key, real_keys)
        return chosen

    def _follow(self, vectors, closeness, real):
        """Each centroid goes half a step towards the mean of its members, those that are `real`."""
        member = F.one_hot(closeness.argmax(dim=-1), closeness.shape[-1]) * real[..., None]
        count = member.sum(dim=(0, 2))[..., None]  # head cluster 1
        mean = torch.einsum("bhpc,bhpf->hcf", member.to(vectors.dtype), vectors) / count.clamp(min=1)
        moved = torch.lerp(mean, self.centroids.float(), (1 + self.decay) / 2)
        self.centroids.copy_(torch.where(count > 0, moved, self.centroids.float()))


def check_layer(layer):
    """Raises TypeError or ValueError where `groups` and `flex` would leave something out that the layer does."""
    pattern = layer.pattern
    if isinstance(layer, CrossAttention):
        raise TypeError("layer is a CrossAttention, but this form has the keys of x alone: call the layer")
    if layer.training and layer.dropout:
        raise ValueError(f"dropout is {layer.dropout}, and acts on the whole map while training: call the layer")
    if isinstance(pattern, Routed) and pattern.training:
        raise ValueError("Routed is in training mode, where the layer moves centroids: call it, or pattern.eval()")
    if pattern is not None and fast.has_hooks(pattern):
        raise ValueError(f"a hook hangs on {type(pattern).__name__}, and acts on the mask: call the layer")


def nearest_keys(to_key, causal):
    """The nearest key to each centroid, of all or of those up to each place; of equals, the earlier one.

    to_key: closeness, "batch head place cluster", -inf for what is no key -> places of that shape, -1 where none is.
    """
    if causal:
        best = to_key.cummax(dim=2).values
        before = F.pad(best, (0, 0, 1, 0), value=-float("inf"))[:, :, :-1]
        # cummax's own indices are those of the last of equals.
        place = torch.arange(to_key.shape[2], device=to_key.device)[:, None]
        return torch.where(best > before, place, -1).cummax(dim=2).values
    none = to_key.amax(dim=2, keepdim=True).isinf()
    return to_key.argmax(dim=2, keepdim=True).masked_fill(none, -1).expand_as(to_key)
