"""The fast form of each S: the outputs and gradients of the plain layer, without its map of length x length weights.

`Attention(..., need_weights=False)` calls `mixed`. What makes a form fast is what S may look at:

    one map     Random, Factorized Random: S reads no token, so there is one map per head for the whole batch. It is
                made once and multiplied with the values of all samples in one matrix product.
    keys        Dense: relu(W1 x) times W2 is a dot product of queries, relu(W1 x), with keys, W2, that are parameters.
                So torch's scaled_dot_product_attention computes Dense, and never makes the map. A mixture with the
                dot product puts the features of both side by side.
    score_mod   Factorized Dense, and mixtures that hold Random and a score of tokens: torch's FlexAttention, a kernel
                into which the rest of the score is compiled. On CUDA only.

Where no form is faster than the plain one, there is none: `form` returns None, and the layer works as always.
"""

import warnings
from contextlib import contextmanager
from functools import cache
from math import sqrt

import torch
from einops import rearrange
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._triton import has_triton

from synth_lib.masks import causal as causal_mask
from synth_lib.masks import masked_softmax
from synth_lib.scores import Dense, DotProduct, FactorizedDense, FactorizedRandom, Mixture, Random

READS_NO_TOKEN = {Random, FactorizedRandom}
LARGEST_MAP = 2**24
IS_A_DOT_PRODUCT = {DotProduct, Dense, FactorizedRandom}


def form(score, x, mask=None, causal=False):
    """The fastest form of this S for x "batch query d_model" on its device: "one map", "keys", "score_mod" or None.

    mask: None, or bool that broadcasts to "batch head query key". If it differs between samples, so do their maps.
    """
    if _off:
        return None
    kinds = {type(part) for part in _mixed_parts(score)}
    # On a CPU the fast forms win where they leave out the upper half of a map, if it is large enough; else they cost as
    # much as the plain one or a little more. The dot product alone always gains, since nothing has to be folded.
    cpu = x.device.type == "cpu"
    half = x.shape[1] if causal and mask is None else 0
    if kinds <= READS_NO_TOKEN and (mask is None or mask.dim() < 4 or len(mask) == 1):
        return "one map" if not cpu or half >= 256 else None
    if kinds <= IS_A_DOT_PRODUCT:
        return "keys" if not cpu or half >= 128 or kinds == {DotProduct} else None
    knows = kinds <= IS_A_DOT_PRODUCT | {Random, FactorizedDense} and x.dtype != torch.float64
    # Compiled for fixed shapes, which takes seconds: not for each of many lengths, nor inside a larger compilation.
    whole = x.shape[1] == score.max_length >= 128 and not torch.compiler.is_compiling()
    return "score_mod" if knows and whole and x.device.type == "cuda" and compiled_flex() else None


_off = []  # one entry for each `switched_off` that is running


@contextmanager
def switched_off():
    """A `with` block in which every layer takes its plain form: to compare forms, or to measure plain code alone."""
    _off.append(True)
    try:
        yield
    finally:
        _off.pop()


def mixed(score, x, keys, value, form, *, start=0, mask=None, causal=False):
    """softmax(S(x) + mask) value, the map times the values: "batch head query d_head".

    Args:
        score: S; x: "batch query d_model"; keys: what score.keys gave; start: the place of the first token of x.
        value: "batch head key d_head", from `values`.
        form: from `form`.
        mask: None, or bool that broadcasts to "batch head query key", True = may be attended.
        causal: no token may attend to a later one; then x are the last tokens of those attended to.
    """
    query, key = x.shape[1], value.shape[2]
    if causal and (mask is not None or query < key):
        past = causal_mask(key, device=x.device)[:, :, key - query :]
        mask, causal = past if mask is None else mask & past, False
    if form == "one map":
        if type(score) is FactorizedRandom:
            return one_map(score.R1[:, start : start + query], score.R2[:, :key], value, mask, causal)
        return one_map(score.rows(x, keys, key, start)[0], None, value, mask, causal)
    folded = Folded(score, x, keys, key, start)
    if form == "keys":
        scale = 1 / sqrt(score.d_head) if type(score) is DotProduct else 1.0
        return attend(*folded.query_and_key(value.dtype), value, mask, causal, scale)
    return _score_mod(folded, value, mask, causal)


def values(linear, x, head, form):
    """G(X) as "batch head key d_head", laid out in memory as the form reads it.

    For one map that is head, d_head, batch, key: then a head's values of all samples are one matrix, and the product
    with the map needs no copy. It comes out of the projection like that, as W x^T instead of x W^T.
    """
    if form != "one map":
        return rearrange(linear(x), "batch key (head d_head) -> batch head key d_head", head=head)
    tokens = rearrange(x, "batch key d_model -> d_model (batch key)")
    if linear.bias is None:
        features = linear.weight @ tokens
    else:
        features = torch.addmm(linear.bias[:, None], linear.weight, tokens)
    return rearrange(features, "(head d_head) (batch key) -> batch head key d_head", head=head, batch=len(x))


# One map: the softmax once per head, one matrix product per head.


def one_map(left, right, value, mask, causal):
    """The softmax of `left`, "head query key", or of left right^T, times the values.

    Args:
        left: the scores, or R1, "head query rank"; right: None, or R2, "head key rank".
        value: "batch head key d_head", best as `values` lays it out.
        mask: None, or bool that broadcasts to "1 head query key".

    Returns:
        "batch head query d_head".
    """
    features = rearrange(value, "batch head key d_head -> head (d_head batch) key")
    if mask is None:
        if right is not None:
            left, right = left.to(features.dtype), right.to(features.dtype)
        product = _OneMap.apply(features, left, right, causal)
    else:
        scores = left if right is None else left @ right.mT
        product = features @ masked_softmax(scores[None], mask)[0].to(features.dtype).mT
    return rearrange(product, "head (d_head batch) query -> batch head query d_head", batch=len(value))


class _OneMap(torch.autograd.Function):
    """features times the transpose of the map; under the causal mask in blocks of queries that end at the diagonal.

    A full product would multiply the upper half too, and throw it away: with n blocks (n + 1) / 2n of the work is
    left. A large map from two factors is not kept but made again in the backward pass, for a few heads at a time.
    features: "head n key"; left, right: as for `one_map`; the product: "head n query".
    """

    @staticmethod
    def forward(ctx, features, left, right, causal):
        product = features.new_empty(*features.shape[:2], left.shape[1])
        groups = _groups(features, right)
        for heads in groups:
            weights = _weights(left[heads], None if right is None else right[heads], causal, features.dtype)
            for start, stop, end in _parts(weights, causal):
                of_block = weights[:, start:stop, :end].mT
                product[heads, :, start:stop].baddbmm_(features[heads, :, :end], of_block, beta=0)
        ctx.causal = causal
        ctx.save_for_backward(features, left, right, weights if len(groups) == 1 else None)
        return product

    @staticmethod
    def backward(ctx, upstream):
        features, left, right, kept = ctx.saved_tensors
        causal, needs_scores = ctx.causal, ctx.needs_input_grad[1]
        for_features, for_left, for_right = torch.empty_like(features), None, None
        if right is not None:
            for_left, for_right = torch.empty_like(left), torch.empty_like(right)
        for heads in _groups(features, right):
            weights = _weights(left[heads], right[heads], causal, features.dtype) if kept is None else kept
            for_weights = torch.zeros_like(weights) if causal else torch.empty_like(weights)
            for start, stop, end in _parts(weights, causal):
                # The keys of a block are read by its own queries and by all later ones.
                first, columns = (start, weights[:, start:, start:end]) if causal else (0, weights)
                ours = for_features[heads, :, start:end] if causal else for_features[heads]
                ours.baddbmm_(upstream[heads, :, first:], columns, beta=0)
                if needs_scores:
                    queries = upstream[heads, :, start:stop].mT
                    for_weights[:, start:stop, :end].baddbmm_(queries, features[heads, :, :end], beta=0)
            if needs_scores:
                for_scores = _softmax_backward(for_weights, weights, causal)
                if right is None:
                    for_left = for_scores.to(left.dtype)
                else:
                    torch.matmul(for_scores, right[heads], out=for_left[heads])
                    torch.matmul(for_scores.mT, left[heads], out=for_right[heads])
        return for_features, for_left, for_right, None


def _weights(left, right, causal, dtype):
    """The map "head query key": a softmax of the scores. What no part of the product reads may be unwritten."""
    key = left.shape[2] if right is None else right.shape[1]
    weights = torch.empty(*left.shape[:2], key, dtype=dtype, device=left.device)
    parts = _parts_of_softmax(weights, causal)
    for start, stop, end in parts:
        scores = left[:, start:stop, :end] if right is None else left[:, start:stop] @ right[:, :end].mT
        if causal:
            future = torch.ones(stop - start, end, dtype=torch.bool, device=left.device).triu(start + 1)
            scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
        if len(parts) == 1:
            return scores.softmax(dim=-1).to(dtype)
        weights[:, start:stop, :end] = scores.softmax(dim=-1)
    return weights


def _softmax_backward(for_weights, weights, causal):
    """The gradient of the scores from that of the weights; 0 above the parts."""
    parts = _parts_of_softmax(weights, causal)
    if len(parts) == 1:
        return torch.ops.aten._softmax_backward_data(for_weights, weights, -1, weights.dtype)
    for_scores = torch.zeros_like(weights)
    for start, stop, end in parts:
        given, rows = for_weights[:, start:stop, :end], weights[:, start:stop, :end]
        for_scores[:, start:stop, :end] = torch.ops.aten._softmax_backward_data(given, rows, -1, rows.dtype)
    return for_scores


def _parts(weights, causal):
    """(start, stop, end) of each part of the product: the queries start .. stop attend to the keys 0 .. end."""
    query, key = weights.shape[1:]
    return [(start, stop, stop) for start, stop in blocks(key)] if causal else [(0, query, key)]


def _parts_of_softmax(weights, causal):
    """The same. A small map is read and written at once: it costs less time than to start many small kernels."""
    query, key = weights.shape[1:]
    return _parts(weights, causal) if key > 1024 else [(0, query, key)]


def _groups(features, right):
    """Slices of the heads whose map is made at once: all, or if it is made from factors, at most 2^24 numbers."""
    head, _, key = features.shape
    size = head if right is None else max(1, LARGEST_MAP // key**2)
    return [slice(start, start + size) for start in range(0, head, size)]


def blocks(length):
    """At most 8 blocks of at least 128 positions: (start, stop) of each."""
    size = max(128, -(-length // 8))
    return [(start, min(start + size, length)) for start in range(0, length, size)]


# Keys: S as a dot product of queries and keys, one or both of them parameters.


class Folded:
    """S taken apart into what a fused kernel can add up: the sum of

    - queries times keys, features side by side, "batch|1 head query feature" and "batch|1 head key feature";
    - tables, "head query key", the same for every sample;
    - products A[key % a] * B[key // a], "batch head query tile" and "batch head query repeat".
    """

    def __init__(self, score, x, keys, key, start):
        self.shape = (len(x), score.head, x.shape[1], key)
        self.queries, self.keys, self.tables, self.products = [], [], [], []
        if type(score) is DotProduct:  # its scale is left to the kernel
            self.queries, self.keys = [_split(score.query(x), score.head)], [keys]
        else:
            self._add(score, x, keys, key, start, 1.0)

    def _add(self, score, x, keys, key, start, weight):
        if isinstance(score, Mixture):
            for alpha, part, kept in zip(score.weights, score.parts, keys, strict=True):
                self._add(part, x, kept, key, start, weight * alpha)
        elif isinstance(score, DotProduct):
            self.queries.append(_split(score.query(x), score.head) * (weight / sqrt(score.d_head)))
            self.keys.append(keys)
        elif isinstance(score, Dense):
            queries, keys = dense_queries_and_keys(score, x, key)
            self.queries.append(queries)
            self.keys.append(keys * weight)
        elif isinstance(score, FactorizedRandom):
            self.queries.append(score.R1[None, :, start : start + x.shape[1]] * weight)
            self.keys.append(score.R2[None, :, :key])
        elif isinstance(score, Random):
            self.tables.append(score.R[:, start : start + x.shape[1], :key] * weight)
        elif isinstance(score, FactorizedDense):
            A, B = factors(score, x)
            self.products.append((A * weight, B))

    def query_and_key(self, dtype):
        """All features side by side, as many as the kernels like: a multiple of 8."""
        batch, head, query, key = self.shape
        queries = [part.to(dtype).expand(batch, -1, -1, -1) for part in self.queries]
        keys = [part.to(dtype).expand(batch, -1, -1, -1) for part in self.keys]
        if len(queries) == 1 and queries[0].shape[-1] % 8 == 0:
            return queries[0], keys[0]
        features = sum(part.shape[-1] for part in queries)
        if features % 8:
            queries.append(queries[0].new_zeros(1).expand(batch, head, query, -features % 8))
            keys.append(keys[0].new_zeros(1).expand(batch, head, key, -features % 8))
        return torch.cat(queries, dim=-1), torch.cat(keys, dim=-1)

    def for_flex(self, dtype):
        """The arguments of `flex`: query, key, tables, products."""
        batch, head, query, key = self.shape
        if self.queries:
            queries, keys = (part.contiguous() for part in self.query_and_key(dtype))
        else:  # the kernel insists on a dot product of at least 16 features
            like = self.tables[0] if self.tables else self.products[0][0]
            queries, keys = (like.new_zeros(batch, head, length, 16, dtype=dtype) for length in (query, key))
        # The gradients of a table and of the products are sums of many small numbers: not in bfloat16.
        tables = [table.float().contiguous() for table in self.tables]
        return queries, keys, tables, [(A.float().contiguous(), B.float().contiguous()) for A, B in self.products]

    def scores(self):
        """The sum itself, "batch head query key": what the plain form makes."""
        total = sum(query @ key.mT for query, key in zip(self.queries, self.keys, strict=True)) + sum(self.tables)
        for A, B in self.products:
            pairs = B[..., :, None] * A[..., None, :]
            total = total + pairs.flatten(-2)[..., : self.shape[-1]]
        return total


def dense_queries_and_keys(score, x, key):
    """Dense as a dot product: queries "batch head query feature" and keys "1 head key feature".

    The queries are relu(W1 x + b1), the keys the columns of W2. The bias b2 is one more feature of the keys, beside
    which the queries have a 1. It comes out of the same projection, from a row of zeros with the bias 1, and so do
    zeros up to a multiple of 8 features, which the fused kernels ask for.
    """
    keys = score.weight[:, :, :key].mT
    if score.bias is None:
        return _split(score.hidden(x), score.head).relu(), keys[None].contiguous()
    more = 1 + (-score.d_head - 1) % 8
    one = torch.zeros(score.head, more, device=x.device, dtype=score.bias.dtype)
    one[:, 0] = 1
    weight = F.pad(score.hidden.weight.unflatten(0, (score.head, -1)), (0, 0, 0, more))
    bias = torch.cat([score.hidden.bias.unflatten(0, (score.head, -1)), one], dim=1)
    queries = _split(F.linear(x, weight.flatten(0, 1), bias.flatten()), score.head).relu()
    keys = torch.cat([keys, F.pad(score.bias[:, :key, None], (0, more - 1))], dim=-1)
    return queries, keys[None]


def factors(score, x):
    """A "batch head query tile" and B "batch head query repeat" of Factorized Dense."""
    hidden = _split(score.hidden(x), score.head).relu()
    A = hidden @ score.weight_a
    B = hidden @ score.weight_b
    return (A, B) if score.bias_a is None else (A + score.bias_a[:, None], B + score.bias_b[:, None])


def attend(query, key, value, mask, causal, scale=1.0):
    """torch's own attention, with the convention of this library for a query that may attend to nothing: zeros."""
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
    some = mask.any(dim=-1, keepdim=True)
    allowed = (mask | ~some).expand(len(query), -1, query.shape[2], key.shape[2])
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=scale)
    return attended.masked_fill(~some, 0.0)


# score_mod: what is left of S is compiled into the kernel.


def _score_mod(folded, value, mask, causal):
    """FlexAttention, or, where torch cannot compile it, a map made from the same parts, with one warning."""
    block_mask = causal_blocks(value.shape[2], value.device) if causal else None
    arguments = *folded.for_flex(value.dtype), value, mask, block_mask
    kind = (*folded.shape, arguments[0].shape, len(folded.tables), len(folded.products), mask is None, causal)
    if kind not in _failed:
        try:
            with torch.autocast(value.device.type, enabled=False):  # all have their dtype; this saves compiling twice
                return compiled_flex()(*arguments)
        except Exception as error:  # torch raises many kinds when it cannot compile
            _failed.add(kind)
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            warnings.warn(f"FlexAttention does not run here, a slow form takes its place ({reason})", stacklevel=5)
    allowed = causal_mask(value.shape[2], device=value.device) if causal else mask
    scores = folded.scores()
    weights = scores.softmax(dim=-1) if allowed is None else masked_softmax(scores, allowed)
    return weights.to(value.dtype) @ value


_failed = set()  # the shapes that could not be compiled: to try again would take seconds each time


def flex(query, key, tables, products, value, mask, block_mask):
    """FlexAttention over queries and keys, with tables, products and the mask added to each score."""

    def score_mod(score, batch, head, query, key):
        for table in tables:
            score = score + table[head, query, key]
        for A, B in products:
            score = score + A[batch, head, query, key % A.shape[-1]] * B[batch, head, query, key // A.shape[-1]]
        return score if mask is None else torch.where(mask[batch, head, query, key], score, -float("inf"))

    if mask is not None:
        mask = mask.expand(len(query), query.shape[1], query.shape[2], key.shape[2])
    return flex_attention(query, key, value, score_mod=score_mod, block_mask=block_mask, scale=1.0)


@cache
def compiled_flex():
    """`flex`, compiled anew for each shape that it meets; None, with one warning, where torch cannot compile."""
    if not has_triton():
        warnings.warn("no fast form of factorized_dense and of mixtures with it or random: no Triton", stacklevel=4)
        return None
    # Each shape is compiled once, on purpose, and there may be more of them than torch's limit of 8.
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, max(64, getattr(torch._dynamo.config, limit)))
    # Fixed shapes: compiled for changing ones, the gradients of tables and products fail. fullgraph: an error where
    # torch would else give up compiling, without a word, and run 30 times slower.
    return torch.compile(flex, dynamic=False, fullgraph=True)


@cache
def causal_blocks(length, device):
    return create_block_mask(lambda batch, head, query, key: query >= key, None, None, length, length, device)


def _split(features, head):
    return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=head)


def _mixed_parts(score):
    """The scores that are mixed, or the one."""
    if type(score) is not Mixture:
        return [score]
    return [part for inner in score.parts for part in _mixed_parts(inner)]
