"""The fast form of each S: the outputs and gradients of the plain layer, without its map of length x length weights.

`Attention(..., need_weights=False)` calls `mixed`. What makes a form fast is what S may look at:

    one map     Random, Factorized Random: S reads no token, so there is one map per head for the whole batch. It is
                made once and multiplied with the values of all samples in one matrix product.
    keys        Dense: relu(W1 x) times W2 is a dot product of queries, relu(W1 x), with keys, W2, that are parameters.
                So torch's scaled_dot_product_attention computes Dense, and never makes the map. Of Factorized Random,
                whose map may be large on a GPU, the queries are parameters too. A mixture with the dot product puts the
                features of both side by side.
    score_mod   Factorized Dense, and mixtures that hold Random and a score of tokens: torch's FlexAttention, a kernel
                into which the rest of the score is compiled. On CUDA only.

Where no form is faster than the plain one, there is none: `form` returns None, and the layer works as always. Forward
derivatives and torch.func.vmap need the plain form.
"""

import warnings
from contextlib import contextmanager
from functools import cache
from math import sqrt

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._triton import has_triton

from synth_lib.masks import causal as causal_mask
from synth_lib.masks import masked_softmax
from synth_lib.scores import Dense, DotProduct, FactorizedDense, FactorizedRandom, Mixture, Random

READS_NO_TOKEN = {Random, FactorizedRandom}
IS_A_DOT_PRODUCT = {DotProduct, Dense, FactorizedRandom}


def form(score, x, mask=None, causal=False):
    """The fastest form of this S for x "batch query d_model" on its device: "one map", "keys", "score_mod" or None.

    mask: None, or bool that broadcasts to "batch head query key". If it differs between samples, so do their maps.
    """
    if _off:
        return None
    kinds = {type(part) for part in _mixed_parts(score)}
    # On a CPU a fast form wins where it leaves out the upper half of a map, or where a map for each sample does not fit
    # into the processor's cache. The dot product alone always gains, since nothing has to be folded.
    cpu = x.device.type == "cpu"
    half = x.shape[1] if causal and mask is None else 0
    # On a GPU a map made of factors must not become the largest tensor; R is as large as its map in any case.
    small = cpu or kinds != {FactorizedRandom} or x.shape[1] * score.head <= x.shape[0] * score.d_model
    if kinds <= READS_NO_TOKEN and small and (mask is None or mask.dim() < 4 or len(mask) == 1):
        return "one map" if not cpu or half >= 256 else None
    if kinds <= IS_A_DOT_PRODUCT:
        many = x.shape[0] > 1 and x.shape[1] >= 256 and not kinds <= READS_NO_TOKEN
        return "keys" if not cpu or half >= 128 or many or kinds == {DotProduct} else None
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
        return attend(*folded.query_and_key(value.dtype, value.shape[-1]), value, mask, causal, scale)
    return _score_mod(folded, value, mask, causal)


def values(linear, x, head, form):
    """G(X) as "batch head key d_head", laid out in memory as the form reads it.

    For one map that is head, d_head, batch, key: then a head's values of all samples are one matrix, and the product
    with the map needs no copy. It comes out of the projection like that, as W x^T instead of x W^T.
    """
    if form != "one map" or not _is_plain(linear):
        return rearrange(linear(x), "batch key (head d_head) -> batch head key d_head", head=head)
    batch, key, _ = x.shape
    tokens = rearrange(x, "batch key d_model -> d_model (batch key)")
    if linear.bias is None:
        features = linear.weight @ tokens
    else:
        features = torch.addmm(linear.bias[:, None], linear.weight, tokens)
    return rearrange(features, "(head d_head) (batch key) -> batch head key d_head", head=head, batch=batch, key=key)


def _is_plain(linear):
    """Whether linear(x) is weight, bias and nothing else: no subclass, no hook, such as pruning sets."""
    hooks = linear._forward_hooks, linear._forward_pre_hooks, linear._backward_hooks, linear._backward_pre_hooks
    return type(linear) is nn.Linear and not any(hooks)


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
    scores = left if right is None else left @ right.mT
    query, key = scores.shape[1:]
    if causal:  # every query may attend to itself: no row is empty, and the smallest number leaves a weight of 0
        future = ~causal_mask(key, device=value.device)[0, 0]
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1) if mask is None else masked_softmax(scores[None], mask)[0]
    weights = weights.to(features.dtype)
    size = block_size(key, value.device.type)
    product = _CausalProduct.apply(features, weights, size) if causal and size < query else features @ weights.mT
    batch, _, _, d_head = value.shape
    return rearrange(product, "head (d_head batch) query -> batch head query d_head", batch=batch, d_head=d_head)


class _CausalProduct(torch.autograd.Function):
    """features times the transpose of a causal map, in blocks of `size` queries that end at the diagonal.

    A full product would multiply the zeros above the diagonal too: with n blocks (n + 1) / 2n of the work is left.
    features: "head n key"; weights: "head query key", as many queries as keys; the product: "head n query".
    """

    @staticmethod
    def forward(ctx, features, weights, size):
        product = torch.empty_like(features)
        for start, stop in blocks(weights.shape[1], size):
            queries = product[:, :, start:stop]
            queries.baddbmm_(features[:, :, :stop], weights[:, start:stop, :stop].mT, beta=0)
        ctx.size = size
        ctx.save_for_backward(features, weights)
        return product

    @staticmethod
    def backward(ctx, upstream):
        features, weights = ctx.saved_tensors
        for_features = torch.empty_like(features)
        for_weights = torch.zeros_like(weights) if ctx.needs_input_grad[1] else None
        for start, stop in blocks(weights.shape[1], ctx.size):
            # The keys of a block are read by its own queries and by all later ones.
            keys = for_features[:, :, start:stop]
            keys.baddbmm_(upstream[:, :, start:], weights[:, start:, start:stop], beta=0)
            if for_weights is not None:
                rows = for_weights[:, start:stop, :stop]
                rows.baddbmm_(upstream[:, :, start:stop].mT, features[:, :, :stop], beta=0)
        return for_features, for_weights, None


def block_size(length, device):
    """How many queries stand in a block of the causal product, on "cpu" or "cuda"; `length` if blocks do not pay.

    Each block is three more operations that torch has to start, one by one. On a GPU that takes longer than to
    multiply the upper half of a short map.
    """
    shortest, whole = (128, 128) if device == "cpu" else (512, 1024)
    return length if length <= whole else max(shortest, -(-length // 8))


def blocks(length, size):
    """(start, stop) of each block of at most `size` positions."""
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

    def query_and_key(self, dtype, d_head=1):
        """All features side by side, as many as the kernels like: a multiple of 8, and at least those of the values."""
        batch, head, query, key = self.shape
        queries = [part.to(dtype).expand(batch, -1, -1, -1) for part in self.queries]
        keys = [part.to(dtype).expand(batch, -1, -1, -1) for part in self.keys]
        features = sum(part.shape[-1] for part in queries)
        more = max(d_head, features + -features % 8) - features
        if more:
            queries.append(queries[0].new_zeros(1).expand(batch, head, query, more))
            keys.append(keys[0].new_zeros(1).expand(batch, head, key, more))
        if len(queries) == 1:
            return queries[0], keys[0]
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
    keys = torch.cat([keys, F.pad(score.bias[:, :key, None], (0, more - 1))], dim=-1)[None]
    if not _is_plain(score.hidden) or score.hidden.bias is None:
        queries = F.pad(_split(score.hidden(x), score.head).relu(), (0, 1), value=1.0)
        return F.pad(queries, (0, more - 1)), keys
    one = torch.zeros(score.head, more, device=x.device, dtype=score.bias.dtype)
    one[:, 0] = 1
    weight = F.pad(score.hidden.weight.unflatten(0, (score.head, -1)), (0, 0, 0, more))
    bias = torch.cat([score.hidden.bias.unflatten(0, (score.head, -1)), one], dim=1)
    return _split(F.linear(x, weight.flatten(0, 1), bias.flatten()), score.head).relu(), keys


def factors(score, x):
    """A "batch head query tile" and B "batch head query repeat" of Factorized Dense."""
    hidden = _split(score.hidden(x), score.head).relu()
    A = hidden @ score.weight_a
    B = hidden @ score.weight_b
    return (A, B) if score.bias_a is None else (A + score.bias_a[:, None], B + score.bias_b[:, None])


def attend(query, key, value, mask, causal, scale=1.0):
    """torch's own attention, with the convention of this library for a query that may attend to nothing: zeros."""
    d_head, more = value.shape[-1], query.shape[-1] - value.shape[-1]
    if more > 0 and value.device.type == "cpu":  # here torch's kernel wants as many in the values, or it makes the map
        value = F.pad(value, (0, more))
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)[..., :d_head]
    some = mask.any(dim=-1, keepdim=True)
    allowed = (mask | ~some).expand(*query.shape[:3], key.shape[2])
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=scale)[..., :d_head]
    return attended.masked_fill(~some, 0.0)


# score_mod: what is left of S is compiled into the kernel.


def _score_mod(folded, value, mask, causal):
    """FlexAttention, or, where torch cannot compile it, a map made from the same parts, with one warning."""
    block_mask = causal_blocks(value.shape[2], value.device) if causal else None
    arguments = *folded.for_flex(value.dtype), value, mask, block_mask
    factors = [(A.shape, B.shape) for A, B in folded.products]
    kind = (*folded.shape, arguments[0].shape, len(folded.tables), *factors, mask is None, causal)
    kind += (value.dtype, value.device)
    if kind not in _failed:
        try:
            with torch.autocast(value.device.type, enabled=False):  # all have their dtype; this saves compiling twice
                return compiled_flex()(*arguments)
        except torch.cuda.OutOfMemoryError:
            raise  # the slow form needs more
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
