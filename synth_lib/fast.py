"""The kernels of the layer: outputs and gradients of the plain one, without its map of length x length weights.

`Attention` asks `choose` which kernel is the fastest for its S, where nobody wants to see the map. What makes one fast
is what S may look at:

    one map     Random, Factorized Random: S reads no token, so there is one map per head for the whole batch. It is
                made once and multiplied with the values of all samples in one matrix product.
    sdpa        Dense: relu(W1 x) times W2 is a dot product of queries, relu(W1 x), with keys, W2, that are parameters.
                So torch's scaled_dot_product_attention computes Dense, and never makes the map. Of Factorized Random,
                whose map may be large on a GPU, the queries are parameters too. A mixture with the dot product puts the
                features of both side by side.
    flex        Factorized Dense, and mixtures that hold Random and a score of tokens: torch's FlexAttention, a kernel
                into which the rest of the score is compiled. On CUDA only.
    plain       the map, and the softmax over it: where no kernel is faster, and where a hook or somebody else's code
                hangs on S (to torch.compile: at first). Forward and second derivatives and torch.func need it too.

How a score is written for sdpa and flex, it says itself: `scores.Folded`.
"""

import warnings
from functools import cache

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._triton import has_triton

from synth_lib.masks import causal as causal_mask
from synth_lib.masks import masked_softmax


def choose(score, x, length, mask=None, causal=False):
    """The kernel that should be the fastest for this S, on the device of x: "plain", "one map", "sdpa" or "flex".

    x: "batch query d_model". length: how many tokens it attends to.
    mask: None, or bool that broadcasts to "batch head query key". If it differs between samples, so do their maps.
    """
    if has_hooks(score):
        return "plain"
    batch, query = x.shape[:2]
    # On a CPU a kernel wins where it leaves out the upper half of a map, or where a map for each sample does not fit
    # into the processor's cache. The dot product alone always gains, since nothing has to be folded.
    cpu = x.device.type == "cpu"
    half = query if causal and mask is None else 0
    parts = score.folds_into or {"nothing"}
    if not score.reads_tokens and (mask is None or mask.dim() < 4 or len(mask) == 1):
        # On a GPU a map made of factors must not become the largest tensor; R is as large as its map in any case.
        if cpu or parts != {"parameter keys"} or length * score.head <= batch * score.d_model:
            return "one map" if not cpu or half >= 256 else "plain"
    if parts <= {"token keys", "parameter keys"}:
        many = batch > 1 and query >= 256 and score.reads_tokens
        return "sdpa" if not cpu or half >= 128 or many or parts == {"token keys"} else "plain"
    # Compiled for fixed shapes, which takes seconds: not for each of many lengths, nor inside a larger compilation.
    whole = query == length == score.max_length >= 128 and not torch.compiler.is_compiling()
    known = score.folds_into is not None and x.dtype != torch.float64
    return "flex" if known and whole and x.device.type == "cuda" and compiled_flex() else "plain"


def has_hooks(module):
    """Whether something hangs on the module or a part of it that a kernel would leave out: a hook, or a new method."""
    if not torch.compiler.is_compiling() and _has_any_global_hook():
        return True
    for part in module.modules():
        hooks = part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks
        if any(hooks) or not {"rows", "forward", "keys"}.isdisjoint(part.__dict__):
            return True
    return False


def fused(kernel, folded, value, mask=None, causal=False):
    """softmax(S(x) + mask) value by "sdpa" or "flex": "batch head query d_head".

    Args:
        folded: a `scores.Folded`.
        value: "batch head key d_head".
        mask: None, or bool that broadcasts to "batch head query key", True = may be attended.
        causal: no token may attend to a later one; then queries and keys are the same tokens, and mask is None.
    """
    if kernel == "sdpa":
        if folded.tables or folded.products:
            raise ValueError("the fold of this score has tables or products, which its folds_into does not say")
        return sdpa(*query_and_key(folded, value), value, mask, causal, folded.scale)
    return _flex_or_plain(folded, value, mask, causal)


def values(linear, x, head, kernel):
    """G(X) as "batch head key d_head", laid out in memory as the kernel reads it.

    For one map that is head, d_head, batch, key: then a head's values of all samples are one matrix, and the product
    with the map needs no copy. It comes out of the projection like that, as W x^T instead of x W^T.
    """
    if kernel != "one map" or type(linear) is not nn.Linear or has_hooks(linear):
        return rearrange(linear(x), "batch key (head d_head) -> batch head key d_head", head=head)
    batch, key, _ = x.shape
    tokens = rearrange(x, "batch key d_model -> d_model (batch key)")
    if linear.bias is None:
        features = linear.weight @ tokens
    else:
        features = torch.addmm(linear.bias[:, None], linear.weight, tokens)
    return rearrange(features, "(head d_head) (batch key) -> batch head key d_head", head=head, batch=batch, key=key)


# One map: the softmax once per head, one matrix product per head.


def one_map(scores, value, mask=None, causal=False):
    """The softmax of the scores, "head query key", times the values of all samples.

    Args:
        value: "batch head key d_head", best as `values` lays it out.
        mask, causal: as in `fused`, but the mask is the same for all samples: "1 head query key".

    Returns:
        "batch head query d_head".
    """
    features = rearrange(value, "batch head key d_head -> head (d_head batch) key")
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


# sdpa: torch's own attention, with queries and keys one or both of which are parameters.


def query_and_key(folded, value):
    """All features side by side, as many as the kernels like: a multiple of 8, and at least those of the values."""
    batch, _, _, d_head = value.shape
    queries = [part.to(value.dtype).expand(batch, -1, -1, -1) for part in folded.queries]
    keys = [part.to(value.dtype).expand(batch, -1, -1, -1) for part in folded.keys]
    features = sum(part.shape[-1] for part in queries)
    more = max(d_head, features + -features % 8) - features
    if more:
        queries.append(queries[0].new_zeros(1).expand(*queries[0].shape[:3], more))
        keys.append(keys[0].new_zeros(1).expand(*keys[0].shape[:3], more))
    if len(queries) == 1:
        return queries[0], keys[0]
    return torch.cat(queries, dim=-1), torch.cat(keys, dim=-1)


def sdpa(query, key, value, mask, causal, scale=1.0):
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


# flex: what is left of S is compiled into the kernel.


def _flex_or_plain(folded, value, mask, causal):
    """FlexAttention, or, where torch cannot compile it, a map made from the same parts, with one warning."""
    block_mask = causal_blocks(value.shape[2], value.device) if causal else None
    arguments = *for_flex(folded, value), value, mask, block_mask
    tables, products = arguments[2:4]
    factors = [(A.shape, B.shape) for A, B in products]
    shapes = (arguments[0].shape, value.shape, len(tables), *factors, mask is None, causal, value.dtype, value.device)
    if shapes not in _failed:
        try:
            with torch.autocast(value.device.type, enabled=False):  # all have their dtype; this saves compiling twice
                return compiled_flex()(*arguments)
        except torch.cuda.OutOfMemoryError:
            raise  # the plain kernel needs more
        except Exception as error:  # torch raises many kinds when it cannot compile
            _failed.add(shapes)
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            warnings.warn(f"FlexAttention does not run here, the plain kernel does ({reason})", stacklevel=5)
    allowed = causal_mask(value.shape[2], device=value.device) if causal else mask
    scores = sum_of(folded, value.shape[2])
    weights = scores.softmax(dim=-1) if allowed is None else masked_softmax(scores, allowed)
    return weights.to(value.dtype) @ value


_failed = set()  # the shapes that could not be compiled: to try again would take seconds each time


def sum_of(folded, length):
    """The scores that `folded` stands for, "batch|1 head query key": what the plain kernel makes."""
    dot_products = (query @ key.mT for query, key in zip(folded.queries, folded.keys, strict=True))
    total = folded.scale * sum(dot_products) + sum(folded.tables)
    for A, B in folded.products:
        total = total + (B[..., :, None] * A[..., None, :]).flatten(-2)[..., :length]
    return total


def for_flex(folded, value):
    """The arguments of `flex`: query, key, tables, products."""
    if folded.queries:
        query, key = query_and_key(folded, value)
        query = query * folded.scale
    else:  # the kernel insists on a dot product of at least 16 features
        rows = folded.tables[0].shape[1] if folded.tables else folded.products[0][0].shape[2]
        batch, head, length, _ = value.shape
        query, key = (value.new_zeros(batch, head, positions, 16) for positions in (rows, length))
    # The gradients of a table and of the products are sums of many small numbers: not in bfloat16.
    tables = [table.float().contiguous() for table in folded.tables]
    products = [(A.float().contiguous(), B.float().contiguous()) for A, B in folded.products]
    return query.contiguous(), key.contiguous(), tables, products


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
