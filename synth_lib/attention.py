"""The one layer: Y = softmax(S(X) + mask) G(X). Nothing in it knows which S it holds.

`Attention` lets the tokens of x attend to each other, `CrossAttention` lets them attend to the tokens of another
sequence, and a `Cache` remembers what was attended to, for a model that writes one token at a time. All three go one
way, `Attention._attend`, and differ in where the attended tokens come from.
"""

from contextlib import contextmanager
from functools import partial
from numbers import Integral

import torch
from einops import einsum, rearrange
from torch import nn
from torch.nn import functional as F

from synth_lib import fast
from synth_lib.masks import causal, check_mask, masked_softmax
from synth_lib.scores import Score, check_scores, make_score
from synth_lib.shapes import check_number


class Cache:
    """What one attention layer keeps of the tokens it has read: their values, and their keys if S compares tokens.

    A synthesizer has no keys to keep: row t of Random stands in R, and Dense makes it from token t alone.

    Attributes:
        entries: tensors "batch head key d_head": what a pattern reads, the values, the keys of each dot product in S.
        length: the number of tokens read.
    """

    def __init__(self):
        self.entries, self.length, self._next, self._reader = [], 0, [], None

    def __getstate__(self):  # a copy, or what is saved, may go on with a copy of the layer
        return vars(self) | {"_reader": None}

    def begin(self, *reader):
        """Forget what a call has added that ended with an error. reader: what decides which entries there are."""
        if self.length and self._reader not in (None, reader):
            raise ValueError("the cache was begun with another layer, score, value or pattern: begin with an empty one")
        self._next, self._reader = [], reader

    def extend(self, length, read):
        """The next entry, of all `length` tokens: read() gives those that are not here yet. `commit` keeps it."""
        entry = self.entries[len(self._next)] if self.length else None
        if self.length < length:
            entry = read() if entry is None else torch.cat([entry, read()], dim=2)
        self._next.append(entry)
        return entry

    def commit(self, length):
        """Keep what was added: now `length` tokens have been read."""
        self.entries, self._next, self.length = self._next, [], length

    def reorder(self, rows):
        """Keep the samples `rows` of the batch, in this order, some perhaps twice: a beam search needs that."""
        self.entries = [entry[rows] for entry in self.entries]

    @property
    def bytes(self):
        """The memory of what is kept."""
        return sum(entry.numel() * entry.element_size() for entry in self.entries)


@contextmanager
def unchanged_after_error(caches):
    """A `with` block after whose errors, Ctrl-C too, the caches are as before: a step counts whole or not at all."""
    before = [(cache.entries, cache.length) for cache in caches]
    try:
        yield
    except BaseException:
        for cache, (entries, length) in zip(caches, before, strict=True):
            cache.entries, cache.length = entries, length
        raise


class Attention(nn.Module):
    """Self-attention with synthesized weights, equation (3) of arXiv 2005.00743, with heads and masks.

    Scores have the dtype of the layer. Those beyond its range, 65,504 in float16, make the map NaN; a fused kernel may
    still compute y. `torch.export` with changing sizes gives a program for the lengths below max_length.

    Args:
        d_model, head, max_length: features of a token, attention heads, longest input.
        score: S, by name ("dense", "random + dot_product", see `scores.SCORES`) or as a ready `Score` module.
        causal: no token may attend to a later one.
        bias: biases in every linear layer; those of S too, if S is given by name. Table 1 counts without them.
        dropout: probability of dropping a weight of the map while training. A map that the whole batch shares
            (Random) is dropped once for the whole batch.
        **score_options: options of S, such as `rank=4` or `initial_scale=0.5`.

    Attributes:
        always_plain: set it to True, and y is computed by the plain kernel where nobody asks for the weights, too.
        pattern: None, or a module that leaves a query only some of the keys that the mask allows: see `sparse`.

    Raises ValueError: a size, name or option that does not fit; the message says which and what would.
    """

    def __init__(self, d_model, head, max_length, score="dense",
                 *, causal=False, bias=True, dropout=0.0, **score_options):  # fmt: skip
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
        self.always_plain = False
        self.pattern = None
        self.score = score
        self.value = nn.Linear(d_model, d_model, bias=bias)  # G of equation (3)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, x, mask=None, *, cache=None, need_weights=True):
        """Attend.

        Args:
            x: "batch length d_model", floating point, 1 <= length <= max_length. Finite, at masked positions too: a
                weight of 0 times NaN is NaN.
            mask: bool, True = may be attended: "batch key", or anything that broadcasts to "batch head query key".
                Two axes are always (batch, key), three always (head, query, key): write out the axes that you mean.
            cache: a `Cache` of this layer. Then x are the tokens that come next: they are added to it, and attend
                to all that it holds. For a causal layer alone: the tokens before could not look at the new ones.
            need_weights: False if only y is wanted. Then it is computed without the map, where that is faster (see
                `fast`). Never with dropout while training, which acts on the map.

        Returns:
            y: "batch length d_model".
            weights: "batch head query key", before dropout. Each row sums to 1, or is all zeros where the query may
                attend to nothing; what that query mixes is 0, so its y is the bias of `output`. For a score that does
                not read x, and no mask per sample, one shared map: do not write into it. None if not needed.

        Raises:
            TypeError, ValueError: x or mask has a wrong type, number of axes or size; the message names the axis.
                A cache is given to a layer that is not causal, holds another batch, was begun with other modules, or
                has no room for x. It stays as it is after any error.
        """
        query = self.score.check(x, module=self)
        start = 0 if cache is None else self._start_in(cache, x)
        return self._attend(x, None, mask, start, start + query, cache, need_weights)

    def _start_in(self, cache, x):
        """The position of the first token of x, behind those that the cache holds."""
        if not self.causal:
            raise ValueError("a cache needs causal=True: else the tokens before would have to attend to the new ones")
        if cache.length + x.shape[1] > self.score.max_length:
            room = f"{cache.length} tokens and {x.shape[1]} new ones, but max_length is {self.score.max_length}"
            raise ValueError(f"the cache holds {room}: start again with the last tokens and an empty cache")
        if cache.length and len(cache.entries[0]) != len(x):
            raise ValueError(f"axis batch of x is {len(x)}, but of the cache {len(cache.entries[0])}")
        return cache.length

    def _attend(self, x, memory, mask, start, length, cache, need_weights):
        """The one path. x and memory are checked.

        Args:
            x: the attending tokens, from position `start` on.
            memory: the attended tokens; None: those of x, and before them those in the cache.
            length: how many tokens are attended to, those in the cache included.
        """
        batch, query, _ = x.shape
        if mask is not None:
            mask = check_mask(mask, batch, self.head, query, length)
        # The last token may attend to all. (A comparison alone would be no bool for torch.compile with dynamic sizes.)
        in_order = True if self.causal and query > 1 else False
        if in_order and (start > 0 or mask is not None or self.pattern is not None):
            mask, in_order = self._and_causal(mask, start, query, length, x.device), False
        if cache is not None:
            cache.begin(*self.score.modules(), self.value, memory is None and getattr(self.pattern, "keeps_tokens", 0))
        if self.pattern is not None:
            mask = self.pattern(self.score, x, memory, mask, start, length, cache)
        plain = need_weights or self.always_plain or (self.training and self.dropout)
        kernel = "plain" if plain else fast.choose(self.score, x, length, mask, in_order)

        read = partial(fast.values, self.value, x if memory is None else memory, self.head, kernel)
        value = read() if cache is None else cache.extend(length, read)
        weights = None
        if kernel in ("sdpa", "flex"):
            folded = self.score.fold(x, memory, length, start, cache)
            mixed = fast.fused(kernel, folded, value, mask, in_order)
        else:
            scores = self.score(x, memory=memory, length=length, start=start, cache=cache)
            check_scores(self.score, scores, x, length)
            if kernel == "one map":
                mixed = fast.one_map(scores[0], value, mask, in_order)
            else:
                allowed = self._and_causal(mask, start, query, length, x.device) if in_order else mask
                weights = scores.softmax(dim=-1) if allowed is None else masked_softmax(scores, allowed)
                mixed = self._mix(weights, value)
        y = self.output(rearrange(mixed, "batch head query d_head -> (batch query) (head d_head)"))
        y = rearrange(y, "(batch query) d_model -> batch query d_model", batch=batch, query=query)
        if cache is not None:  # last of all: after an error it is as it was
            cache.commit(length)
        return y, weights.expand(batch, -1, -1, -1) if need_weights else None

    def _and_causal(self, mask, start, query, length, device):
        past = causal(length, device)[:, :, start : start + query]
        return past if mask is None else mask & past

    def _mix(self, weights, value):
        """The weights, dropped while training, times the values: "batch head query d_head"."""
        # A map with batch axis 1 serves every sample: einsum multiplies it as one matrix per head and never copies it,
        # but lays out the values anew. Where the map has few rows, it is cheaper to copy those.
        weights = F.dropout(weights, self.dropout, self.training)
        if not torch.compiler.is_compiling() and weights.shape[2] < value.shape[3]:
            weights = weights.expand(len(value), -1, -1, -1)
        return einsum(weights, value, "batch head query key, batch head key d_head -> batch head query d_head")


class CrossAttention(Attention):
    """The tokens of x attend to those of another sequence, the memory: queries from x, keys and values from memory.

    The paper keeps the dot product here, the default: a synthesized row cannot know what stands where in the memory.
    Dense makes it from the attending token, Random from its position. Both sequences are at most max_length long.
    """

    def __init__(self, d_model, head, max_length, score="dot_product", *, bias=True, dropout=0.0, **score_options):
        if "causal" in score_options:
            raise ValueError("causal is no option of CrossAttention: two sequences have no common order")
        super().__init__(d_model, head, max_length, score, bias=bias, dropout=dropout, **score_options)

    def forward(self, x, memory, mask=None, *, start=0, cache=None, need_weights=True):
        """Attend to `memory`.

        Args:
            x: "batch query d_model", floating point; they stand at the positions start, start + 1, ...
            memory: "batch key d_model", 1 <= key <= max_length.
            mask: bool, True = may be attended, as in `Attention`; "batch key" hides the padding of the memory.
            start: the position of the first token of x, for a score that depends on it; start + query <= max_length.
            cache: a `Cache` of this layer: the first call fills it from `memory`, the later ones, with the same memory,
                read it instead.
            need_weights: as in `Attention`.

        Returns:
            y "batch query d_model" and weights "batch head query key", as in `Attention`.

        Raises:
            TypeError, ValueError: x, memory or mask has a wrong type, number of axes or size; a position lies outside;
                `memory` is not as large as what the cache has read.
        """
        query = self.score.check(x, module=self)
        whole = isinstance(start, (Integral, torch.SymInt)) and not isinstance(start, bool)
        if not whole or start < 0 or start + query > self.score.max_length:
            limit = f"a whole number from 0 to max_length - query = {self.score.max_length} - {query}"
            raise ValueError(f"start, the position of the first token of x, is {start!r}, but must be {limit}")
        length = self.score.check(memory, "memory", module=self)
        if memory.shape[0] != x.shape[0]:
            raise ValueError(f"axis batch of memory is {len(memory)}, but of x {len(x)}")
        if cache is not None and cache.length and (len(cache.entries[0]), cache.length) != (len(memory), length):
            read = f"{len(cache.entries[0])} samples of length {cache.length}"
            raise ValueError(f"memory has {len(memory)} samples of length {length}, but the cache has read {read}")
        return self._attend(x, memory, mask, start, length, cache, need_weights)
