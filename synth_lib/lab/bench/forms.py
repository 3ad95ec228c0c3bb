"""What `bench` times: the training step of each S in each form, attention alone or the whole layer, and its cost.

`core_steps` and `layer_steps` return the same three groups, {form: function that makes its step}:

    first     what the library does without compiling anything, the baseline "sdpa" foremost
    compiled  what it compiles: FlexAttention, which takes seconds for each form and size
    others    other ways to compute the same: plain code, and the fast forms by other kernels

"sdpa" is the dot product by torch's scaled_dot_product_attention. A name with a comma is that S in another way: for
the layers "plain" as the library does it when the weights are asked for, "plainest" as in `plainest`, and "expanded"
with one map for each sample.
"""

from contextlib import nullcontext
from functools import partial

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from synth_lib import fast, masks
from synth_lib.attention import Attention
from synth_lib.lab.bench.plainest import expanded, knows, plainest
from synth_lib.scores import SCORES, make_score


def all_scores():
    """Every S that has a name, and three mixtures."""
    return [*SCORES, "random + dot_product", "dense + dot_product", "random + dense"]


RANK = 8  # of Factorized Random


def make_layer(score, head, d_head, length, **options):
    return Attention(head * d_head, head, length, score, **options)


def is_compiled(score, length, device):
    """Whether the fast form of this S is compiled, for inputs of this length."""
    x = torch.empty(1, length, 1, device=device)
    return fast.choose(make_layer(score, 1, 8, length).score, x, length, causal=True) == "flex"


def core_steps(head, d_head, length, batch, causal, device, dtype):
    """The steps of attention alone: from the projected features to what the output layer reads, and back.

    The inputs are as the projections lay them out in memory, the outputs as the output layer wants them.
    """
    kind = {"device": device, "dtype": dtype}

    def parameter(*shape, scale=1.0):
        return (torch.randn(*shape, **kind) * scale).requires_grad_()

    def tokens(features=d_head):
        """A view "batch head length feature" of "batch length (head feature)", and the leaf itself."""
        leaf = parameter(batch, length, head * features)
        return leaf.unflatten(-1, (head, features)).transpose(1, 2), leaf

    def step(forward, *leaves):
        upstream = torch.randn(batch, length, head * d_head, **kind)
        return lambda: torch.autograd.grad(forward().transpose(1, 2).flatten(2), leaves, upstream)

    def sdpa(backend=None):
        (query, q), (key, k), (value, v) = tokens(), tokens(), tokens()
        return step(lambda: by(backend, query, key, value, d_head**-0.5), q, k, v)

    def by(backend, query, key, value, scale=1.0):
        """torch's attention by one of its kernels, or by that which it chooses."""
        with sdpa_kernel(getattr(SDPBackend, backend)) if backend else nullcontext():
            return fast.sdpa(query, key, value, None, causal, scale)

    def values_of_one_map():
        leaf = parameter(head * d_head, batch * length)
        return leaf.view(head, d_head, batch, length).permute(2, 0, 3, 1), leaf

    def random():
        R, (value, v) = parameter(head, length, length), values_of_one_map()
        return step(lambda: fast.one_map(R, value, causal=causal), R, v)

    def random_expanded():
        R, (value, v) = parameter(1, head, length, length), tokens()
        return step(lambda: plain_core(R.expand(batch, -1, -1, -1), value, causal), R, v)

    def factorized_random():
        R1, R2, (value, v) = parameter(head, length, RANK), parameter(head, length, RANK), values_of_one_map()
        return step(lambda: fast.one_map(R1 @ R2.mT, value, causal=causal), R1, R2, v)

    def factorized_random_as_keys():
        (R1, R2), (value, v) = (parameter(1, head, length, RANK) for _ in range(2)), tokens()

        def forward():
            query, key = (F.pad(R, (0, d_head - RANK)).expand(batch, -1, -1, -1) for R in (R1, R2))
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=1.0)

        return step(forward, R1, R2, v)

    def dense(more=0, backend=None, pad_value=False, copy_keys=False):
        """more: features beyond d_head, for b2; pad_value: values of as many features, of which some are cut off;
        copy_keys: a copy of the keys for every sample, not a view."""
        (query, q), W2, (value, v) = tokens(d_head + more), parameter(1, head, length, d_head + more), tokens()

        def forward():
            padded = F.pad(value, (0, more)) if pad_value else value
            keys = W2.expand(batch, -1, -1, -1)
            return by(backend, query, keys.contiguous() if copy_keys else keys, padded)[..., :d_head]

        return step(forward, q, W2, v)

    def dense_and_dot_product(more=0):
        (q1, leaf), (k1, k), (value, v), (q2, h) = tokens(), tokens(), tokens(), tokens(d_head + more)
        W2 = parameter(1, head, length, d_head + more)

        def forward():
            query = torch.cat([q1, q2], dim=-1)
            key = torch.cat([k1, W2.expand(batch, -1, -1, -1)], dim=-1)
            return fast.sdpa(query, key, value, None, causal)

        return step(forward, leaf, k, h, W2, v)

    def factors():
        tile = next(size for size in range(int(length**0.5), 0, -1) if length % size == 0)
        return tokens(tile), tokens(length // tile)

    def by_score_mod(query, key, tables, products, value):
        blocks = fast.causal_blocks(length, device) if causal else None
        wide = [(A.float().contiguous(), B.float().contiguous()) for A, B in products]
        return compiled_flex()(
            query.contiguous(), key.contiguous(), [table.float() for table in tables], wide, value, None, blocks
        )

    def factorized_dense():
        (A, a), (B, b), (value, v) = *factors(), tokens()

        def forward():
            query, key = (torch.zeros(batch, head, length, 16, **kind) for _ in range(2))
            return by_score_mod(query, key, [], [(A, B)], value)

        return step(forward, a, b, v)

    def factorized_dense_plain():
        (A, a), (B, b), (value, v) = *factors(), tokens()
        return step(lambda: plain_core((B[..., :, None] * A[..., None, :]).flatten(-2), value, causal), a, b, v)

    def random_and_dot_product():
        (query, q), (key, k), (value, v), R = tokens(), tokens(), tokens(), parameter(head, length, length)
        return step(lambda: by_score_mod(query, key, [R], [], value), q, k, v, R)

    def random_and_dot_product_as_bias():
        (query, q), (key, k), (value, v), R = tokens(), tokens(), tokens(), parameter(1, head, length, length)

        def forward():
            bias = R.masked_fill(~masks.causal(length, device), -1e4) if causal else R
            return F.scaled_dot_product_attention(query, key, value, attn_mask=bias.expand(batch, -1, -1, -1))

        return step(forward, q, k, v, R)

    def random_and_dense():
        (query, q), W2, (value, v) = tokens(d_head + 8), parameter(1, head, length, d_head + 8), tokens()
        R = parameter(head, length, length)
        return step(lambda: by_score_mod(query, W2.expand(batch, -1, -1, -1), [R], [], value), q, W2, v, R)

    first = {
        "sdpa": sdpa,
        "random": random,
        "factorized_random": factorized_random,
        "factorized_random as keys": factorized_random_as_keys,
        "dense": partial(dense, 8),
        "dense + dot_product": partial(dense_and_dot_product, 8),
    }
    compiled = {
        "factorized_dense": factorized_dense,
        "random + dot_product": random_and_dot_product,
        "random + dense": random_and_dense,
    }
    others = {
        "dense without bias": dense,
        "dense + dot_product without bias": dense_and_dot_product,
        "dense, padded values": partial(dense, 8, pad_value=True),
        "dense, copied keys": partial(dense, 8, copy_keys=True),
        "random + dot_product as bias": random_and_dot_product_as_bias,
        "random expanded, plain": random_expanded,
        "factorized_dense, plain": factorized_dense_plain,
    }
    if device.type != "cuda":
        return {"first": first, "compiled": {}, "others": others}
    others |= {
        "sdpa, flash": partial(sdpa, "FLASH_ATTENTION"),
        "sdpa, cudnn": partial(sdpa, "CUDNN_ATTENTION"),
        "dense, cudnn": partial(dense, 8, "CUDNN_ATTENTION"),
        "dense, efficient": partial(dense, 8, "EFFICIENT_ATTENTION"),
        "dense, flash, padded values": partial(dense, 8, "FLASH_ATTENTION", True),
    }
    return {"first": first, "compiled": compiled, "others": others}


def compiled_flex():
    """FlexAttention compiled, or an error that says why not."""
    function = fast.compiled_flex()
    if function is None:
        raise RuntimeError("torch cannot compile FlexAttention here")
    return function


def plain_core(scores, value, causal):
    if causal:
        return masks.masked_softmax(scores, masks.causal(scores.shape[-1], scores.device)) @ value
    return scores.softmax(dim=-1) @ value


def layer_steps(head, d_head, length, batch, causal, device, dtype):
    """The steps of the whole layer with its projections; "value and output" are those that every layer has."""

    def step(score, forward):
        layer = make_layer(score, head, d_head, length, causal=causal).to(device, dtype)
        x = torch.randn(batch, length, head * d_head, device=device, dtype=dtype, requires_grad=True)
        upstream = torch.randn_like(x)
        inputs = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
        return lambda: torch.autograd.grad(forward(layer, x), inputs, upstream)

    fast_forms = {score: partial(step, score, fastest) for score in all_scores() if score != "dot_product"}
    others = {}
    for score in all_scores():
        others[f"{score}, plain"] = partial(step, score, plain)
        module = make_score(score, head * d_head, head, length)
        if knows(module):
            others[f"{score}, plainest"] = partial(step, score, plainest)
        if knows(module) and not module.reads_tokens:
            others[f"{score}, expanded"] = partial(step, score, expanded)
    first = {"sdpa": partial(step, "dot_product", fastest)}
    first["value and output"] = partial(step, "fixed_random", value_and_output)
    # The other layers have all their biases: only S goes without.
    first["dense without bias"] = lambda: step(make_score("dense", head * d_head, head, length, bias=False), fastest)
    if device.type != "cuda":  # all in one run
        return {"first": first | fast_forms | others, "compiled": {}, "others": {}}
    compiled = {score: build for score, build in fast_forms.items() if is_compiled(score, length, device)}
    first |= {score: build for score, build in fast_forms.items() if score not in compiled}
    return {"first": first, "compiled": compiled, "others": others if length <= 512 else {}}


def fastest(layer, x):
    return layer(x, need_weights=False)[0]


def plain(layer, x):
    return layer(x)[0]


def value_and_output(layer, x):
    return layer.output(layer.value(x))


def cost(form, head, d_head, length, batch, causal, item, device="cpu"):
    """Operations and bytes of a step of attention alone, forward and backward: (operations, bytes).

    An operation is a multiplication or an addition of a matrix product; a causal fused kernel does half of them, and
    one map those of its blocks, which depend on the device, "cpu" or "cuda". Bytes: each tensor read and written once
    in each pass, in numbers of `item` bytes; parameters only where they are maps. A fused kernel computes the scores
    again in its backward pass: 7 products, of which a map needs 3.
    """
    pairs = batch * head * length**2 * (0.5 if causal else 1)
    one = batch * head * length
    maps = head * length**2
    if form in ("random", "factorized_random"):
        parts = fast.blocks(length, fast.block_size(length, device)) if causal else [(0, length)]
        pairs = batch * head * sum((stop - start) * stop for start, stop in parts)
        factors = 6 * maps * RANK if form == "factorized_random" else 0  # R1 R2^T, once for the batch
        return 6 * pairs * d_head + factors, item * (6 * one * d_head + 8 * maps)
    if "plain" in form:  # nothing is left out; the map is written and read about 10 times
        return 6 * batch * maps * d_head, item * (6 * one * d_head + 10 * batch * maps)
    if form == "random + dot_product as bias" and device == "cpu":  # torch has no fused kernel for it there
        return 12 * batch * maps * d_head, item * (12 * one * d_head + 10 * batch * maps)
    features = {"dense": d_head + 8, "dense + dot_product": 2 * d_head + 8, "random + dense": d_head + 8}
    features |= {"dense + dot_product without bias": 2 * d_head, "factorized_dense": 16}
    width = features.get(form.split(",")[0], d_head)
    # On a CPU the kernel wants as many features in the values; `fast.sdpa` fills them up.
    values = width if device == "cpu" or "padded values" in form else d_head
    fused = 2 * pairs * (4 * width + 3 * values), item * one * (6 * width + 6 * values)
    if form.startswith("random +"):
        return fused[0], fused[1] + item * 3 * maps
    return fused
