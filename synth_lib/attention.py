"""The one layer: Y = softmax(S(X) + mask) G(X). Nothing in it knows which S it holds.

`Attention` lets the tokens of x attend to each other, `CrossAttention` lets them attend to the tokens of another
sequence, and a `Cache` remembers what was attended to, for a model that writes one token at a time.
"""

import torch
from einops import einsum, rearrange
from torch import nn
from torch.nn import functional as F

from synth_lib import fast
from synth_lib.masks import causal, check_mask, masked_softmax
from synth_lib.scores import Score, check_dtype, make_score
from synth_lib.shapes import check_number


class Cache:
    """What one attention layer keeps of the tokens it has read: their values, and their keys if S compares tokens.

    A synthesizer has no keys to keep: row t of Random stands in R, and Dense makes it from token t alone.

    Attributes:
        value: "batch head key d_head"; None before the first token.
        keys: what `score.keys` gave: "batch head key d_head" for the dot product, None for a synthesizer, a tuple
            of such entries for a mixture.
        length: the number of tokens read.
    """

    def __init__(self):
        self.value, self.keys, self.length = None, None, 0

    def add(self, value, keys):
        """Append the value "batch head key d_head" and the keys of the tokens that come next."""
        first = self.length == 0
        self.value = value if first else torch.cat([self.value, value], dim=2)
        self.keys = keys if first else _map(lambda old, new: torch.cat([old, new], dim=2), self.keys, keys)
        self.length += value.shape[2]

    def reorder(self, rows):
        """Keep the samples `rows` of the batch, in this order, some perhaps twice: a beam search needs that."""
        self.value, self.keys = _map(lambda old: old[rows], (self.value, self.keys))

    @property
    def bytes(self):
        """The memory of what is kept."""
        kept = []
        _map(kept.append, (self.value, self.keys))
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def _map(change, *keys):
    """Apply `change` to the tensors in keys, which are a tensor, None, or a tuple of keys."""
    if keys[0] is None:
        return None
    if isinstance(keys[0], tuple):
        return tuple(_map(change, *parts) for parts in zip(*keys, strict=True))
    return change(*keys)


class Attention(nn.Module):
    """Self-attention with synthesized weights, equation (3) of arXiv 2005.00743, with heads and masks.

    Args:
        d_model, head, max_length: features of a token, attention heads, longest input.
        score: S, by name ("dense", "random + dot_product", see `scores.SCORES`) or as a ready `Score` module.
        causal: no token may attend to a later one.
        bias: biases in every linear layer; those of S too, if S is given by name. Table 1 counts without them.
        dropout: probability of dropping a weight of the map while training. A map that the whole batch shares
            (Random) is dropped once for the whole batch.
        **score_options: options of S, such as `rank=4` or `initial_scale=0.5`.

    Raises:
        ValueError: a size, name or option that does not fit; the message says which and what would.
    """

    def __init__(
        self, d_model, head, max_length, score="dense", *, causal=False, bias=True, dropout=0.0, **score_options
    ):
        super().__init__()
        check_number("dropout", dropout, below=1)
        if not isinstance(score, Score):
            score = make_score(score, d_model, head, max_length, bias=bias, **score_options)
        elif score_options:
            raise ValueError(f"score is a ready module; its options {sorted(score_options)} belong where it is made")
        for name, size in (("d_model", d_model), ("head", head), ("max_length", max_length)):
            if getattr(score, name) != size:
                raise ValueError(f"{name} is {size}, but the score was made with {name} = {getattr(score, name)}")
        self.head, self.causal, self.dropout = head, causal, dropout
        self.score = score
        self.value = nn.Linear(d_model, d_model, bias=bias)  # G of equation (3)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, x, mask=None, *, cache=None, need_weights=True):
        """Attend.

        Args:
            x: "batch length d_model", floating point, 1 <= length <= max_length. Finite, at masked places too: a
                weight of 0 times NaN is NaN.
            mask: bool, True = may be attended: "batch key", or anything that broadcasts to "batch head query key".
                Two axes are always (batch, key), three always (head, query, key): write out the axes that you mean.
            cache: a `Cache` of this layer. Then x are the tokens that come next: they are added to it, and attend
                to all that it holds. For a causal layer alone: the tokens before could not look at the new ones.
            need_weights: False if only y is wanted. Then S takes its fast form, if it has one here (see `fast`): the
                same y without the map. There is none with dropout while training, which acts on the map.

        Returns:
            y: "batch length d_model".
            weights: "batch head query key", before dropout. Each row sums to 1, or is all zeros where the query may
                attend to nothing; what that query mixes is 0, so its y is the bias of `output`. For a score that does
                not read x, and no mask that differs between samples, a view of one map: do not write into it. None
                if they are not needed.

        Raises:
            TypeError, ValueError: x or mask has a wrong type, number of axes or size; the message names the axis.
                A cache is given to a layer that is not causal, holds another batch, or has no room for x. It stays
                as it is then.
        """
        if cache is None:
            form = None if need_weights else self._fast_form(x, mask)
            if form:
                self.score.check(x)
                check_dtype(x, self.value)
                value = fast.values(self.value, x, self.head, form)
                return self._fast(x, self.score.keys(x), value, mask, form), None
            scores = self.score(x)
            self._check(scores, x.shape[0], x.shape[1], x.shape[1])
            check_dtype(x, self.value)
            value = self._split_heads(self.value(x))
        else:
            scores, value = self._continue(x, mask, cache)
        allowed = None
        query, key = x.shape[1], value.shape[2]
        if mask is not None:
            allowed = check_mask(mask, x.shape[0], self.head, query, key)
        if self.causal and query > 1:  # the last token may attend to all
            past = causal(key, device=x.device)[:, :, key - query :]
            allowed = past if allowed is None else allowed & past
        y, weights = self._mix(scores, allowed, value)
        return y, weights if need_weights else None

    def _fast_form(self, x, mask, key=None):
        """The name of the form of S that is faster than the plain one; None if there is none, or x is no input."""
        if self.training and self.dropout or not isinstance(x, torch.Tensor) or x.dim() != 3:
            return None
        if mask is not None:
            mask = check_mask(mask, len(x), self.head, x.shape[1], key)
        return fast.form(self.score, x, mask, self.causal)

    def _fast(self, x, keys, value, mask, form, start=0):
        """y "batch query d_model", in the fast form of S."""
        if mask is not None:
            mask = check_mask(mask, len(x), self.head, x.shape[1], value.shape[2])
        mixed = fast.mixed(self.score, x, keys, value, form, start=start, mask=mask, causal=self.causal)
        y = self.output(rearrange(mixed, "batch head query d_head -> (batch query) (head d_head)"))
        return rearrange(y, "(batch query) d_model -> batch query d_model", batch=len(x), query=x.shape[1])

    def _continue(self, x, mask, cache):
        """The scores of the new tokens x and the values of all tokens, those in the cache and x."""
        if not self.causal:
            raise ValueError("a cache needs causal=True: else the tokens before would have to attend to the new ones")
        start, query = cache.length, self.score.check(x)
        if start + query > self.score.max_length:
            room = f"{start} tokens and {query} new ones, but max_length is {self.score.max_length}"
            raise ValueError(f"the cache holds {room}: start again with the last tokens and an empty cache")
        if start and len(cache.value) != len(x):
            raise ValueError(f"axis batch of x is {len(x)}, but of the cache {len(cache.value)}")
        check_dtype(x, self.value)
        if mask is not None:  # before x is in the cache
            check_mask(mask, len(x), self.head, query, start + query)
        cache.add(self._split_heads(self.value(x)), self.score.keys(x))
        return self.score.rows(x, cache.keys, cache.length, start), cache.value

    def _split_heads(self, features):
        return rearrange(features, "batch key (head d_head) -> batch head key d_head", head=self.head)

    def _mix(self, scores, allowed, value):
        """softmax(scores + mask) value: (y "batch query d_model", weights "batch head query key")."""
        weights = scores.softmax(dim=-1) if allowed is None else masked_softmax(scores, allowed)
        # A map with batch axis 1 serves every sample: einsum multiplies it as one matrix per head and never copies it,
        # but lays out the values anew. Where the map has few rows, it is cheaper to copy those.
        kept = F.dropout(weights, self.dropout, self.training)
        if kept.shape[2] < value.shape[3]:
            kept = kept.expand(len(value), -1, -1, -1)
        mixed = einsum(kept, value, "batch head query key, batch head key d_head -> batch head query d_head")
        y = self.output(rearrange(mixed, "batch head query d_head -> batch query (head d_head)"))
        return y, weights.expand(len(value), -1, -1, -1)

    def _check(self, scores, batch, query, key):
        """A score of somebody else may break its promise; broadcasting would hide it."""
        first, *rest = scores.shape
        # Size by size: torch.compile with dynamic sizes gets the comparison of whole tuples wrong.
        fits = len(rest) == 3 and rest[0] == self.head and rest[1] == query and rest[2] == key
        if not (fits and (first == 1 or first == batch)):
            raise ValueError(
                f"{type(self.score).__name__} gave scores {tuple(scores.shape)}, but they must be "
                f"(batch or 1, head, query, key) = ({batch} or 1, {self.head}, {query}, {key})"
            )


class CrossAttention(Attention):
    """The tokens of x attend to those of another sequence, the memory: queries from x, keys and values from memory.

    The paper keeps the dot product here, the default: a synthesized row cannot know what stands where in the memory.
    Dense makes it from the attending token, Random from its place. Both sequences are at most max_length long.
    """

    def __init__(self, d_model, head, max_length, score="dot_product", *, bias=True, dropout=0.0, **score_options):
        super().__init__(d_model, head, max_length, score, bias=bias, dropout=dropout, **score_options)

    def forward(self, x, memory, mask=None, *, start=0, cache=None, need_weights=True):
        """Attend to `memory`.

        Args:
            x: "batch query d_model", floating point; they stand at the places start, start + 1, ...
            memory: "batch key d_model", 1 <= key <= max_length.
            mask: bool, True = may be attended, as in `Attention`; "batch key" hides the padding of the memory.
            start: the place of the first token of x, for a score that depends on it; start + query <= max_length.
            cache: a `Cache` of this layer: the first call fills it from `memory`, the later ones read it instead.
            need_weights: as in `Attention`.

        Returns:
            y "batch query d_model" and weights "batch head query key", as in `Attention`.

        Raises:
            TypeError, ValueError: x, memory or mask has a wrong type, number of axes or size; a place lies outside.
        """
        query = self.score.check(x)
        if start < 0 or start + query > self.score.max_length:
            limit = f"must lie between 0 and max_length - 1 = {self.score.max_length - 1}"
            raise ValueError(f"x stands at the places {start} to {start + query - 1}, but they {limit}")
        cache = Cache() if cache is None else cache
        if cache.length == 0:
            self.score.check(memory, "memory")
            check_dtype(memory, self.value, "memory")
            cache.add(self._split_heads(self.value(memory)), self.score.keys(memory))
        if len(cache.value) != len(x):
            raise ValueError(f"axis batch of memory is {len(cache.value)}, but of x {len(x)}")
        form = None if need_weights else self._fast_form(x, mask, cache.length)
        if form:
            return self._fast(x, cache.keys, cache.value, mask, form, start), None
        scores = self.score.rows(x, cache.keys, cache.length, start)
        self._check(scores, len(x), query, cache.length)
        allowed = None if mask is None else check_mask(mask, len(x), self.head, query, cache.length)
        y, weights = self._mix(scores, allowed, cache.value)
        return y, weights if need_weights else None
