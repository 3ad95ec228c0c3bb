# %% [markdown]
# # 11 · Speed: predict the time, then measure it
#
# **Afterwards you can say, from counted operations and bytes, how long each S must take on a machine of which you
# know two numbers. You measure it properly, you explain the gap, and you compute Dense and Factorized Random with a
# kernel that was made for the dot product.**
#
# - **Before you start:** chapters [01](01_dot_product.ipynb) to [06](06_mixtures.ipynb); of
#   [07](07_whole_models.ipynb) the cache. No GPU is needed.
# - **Time:** about 135 minutes, 72 of them for the four exercises; the stretch exercise takes 45 more.
# - **Level:** medium.
#
# What transfers: floors, fused kernels, launches and caches decide the speed of all Transformers in use today.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*, [arXiv
# 2005.00743](https://arxiv.org/abs/2005.00743), version 1. Outputs are stored; to predict them first, hide them:
# *Edit, Clear Outputs of All Cells*.

# %% fold=true
# @title Set-up: imports, one thread, and what compares two tensors
import json
import time
from fractions import Fraction

import matplotlib.pyplot as plt
import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from synth_lib import fast, masks, plots
from synth_lib.lab import measure
from synth_lib.lab.patience import each
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.text.corpora import DATA
from synth_lib.scores import make_score
from synth_lib.shapes import Axes

# one core: so a machine is two numbers, and your other programs have a core left
torch.set_num_threads(1)
_ = torch.manual_seed(0)


def equal(a, b):
    """Same shape, same dtype, same values."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## The question
#
# $$Y = \mathrm{softmax}(S(X) + \mathrm{mask})\, G(X)$$
#
# You want $Y$. The attention map, the softmax, stands in between: one weight for each pair of tokens, in each head.
# Until now every S wrote its map down. **Who really has to?** Take a head of 64 features:

# %%
for length in (6, 512, 2048, 8192):
    weights, values = length**2, length * 64
    print(f"l {length:4}: {weights:10,} weights, {values:7,} values a head: "
          f"{weights / values:6.3g} to 1")

# %% [markdown]
# At length 2048 a map is 32 times as large as what it averages. And the kinds of S differ in what a map is made of.
# The dot product: all tokens of the sentence. Dense: row $i$ of token $i$ and of parameters. Random: parameters
# alone, so 64 sentences have **one** map, where the others have 64.
#
# **Predict** for your machine, 1024 tokens, forward and backward: how many times as fast as the plain dot product can
# Random be? And Dense?

# %%
my_speed = {"Random": None, "Dense": None}  # how many times as fast?

# %% [markdown]
# ## Two numbers of a machine
#
# A processor multiplies fast. But numbers come from memory, and results go back there. So a machine has two speeds:
#
# - **bytes a second:** how much it can read and write. Measured by copying one large table into another.
# - **operations a second:** how much it can compute. Measured by one large matrix product. A *multiply-add* is one
#   multiplication and one addition, so it counts as **two** operations.
#
# A float32 has 4 bytes, a bfloat16 has 2. Here are the two numbers of the core that runs this notebook:

# %%
# Output varies: every machine has its own two numbers.
machine = measure.machine()
rate, bandwidth = machine["product_operations_per_second"], machine["copy_bytes_per_second"]
print(f"{bandwidth / 1e9:5.1f} GB a second, {rate / 1e9:5.0f} G operations a second,", end=" ")
print(f"so {rate / bandwidth:.1f} operations in the time of one byte")

# %% [markdown]
# ### The floor
#
# Say a step needs so many operations, and has to move so many bytes: everything it reads, once, and everything it
# writes. A machine can fetch the next numbers while it multiplies these. So the step takes at least the *longer* of
# the two times. That is its **floor**:
#
# $$\text{floor} = \max\left(\frac{\text{operations}}{\text{operations a second}},\
# \frac{\text{bytes}}{\text{bytes a second}}\right)$$
#
# If the bytes take longer, the step is *memory-bound*: a faster multiplier would not help. Else it is
# *compute-bound*.
#
# ### Exercise 11.1: the floor of a product with a shared table
#
# *12 minutes, easy.* Write it for matrix products. One table serves many sentences, as the map of Random does.

# %% exercise="11.1" points=1
def product_floors(products, item, operations_per_second, bytes_per_second):
    """The floor of each product, and what binds it.

    products: a list of four sizes, (batch, rows, inner, columns): one table of rows × inner
    numbers, which all sentences share, times a table of inner × columns numbers for each of the
    `batch` sentences.
    item: the bytes of one number.
    Returns a list with one tuple for each product: (microseconds, "compute" or "memory").
    What is there once is read once. All results are written.
    """
    ### BEGIN SOLUTION
    floors = []
    for batch, rows, inner, columns in products:
        compute = 2 * batch * rows * inner * columns / operations_per_second
        moved = rows * inner + batch * (inner * columns + rows * columns)
        memory = item * moved / bytes_per_second
        floors.append((1e6 * max(compute, memory), "compute" if compute > memory else "memory"))
    return floors
    ### END SOLUTION

# %% check="11.1"
check("11.1", product_floors)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Three kinds of tables take part. How many numbers has each, and how many tables are there of each kind? And how many
# multiply-adds make *one* number of a result?
#
# </details>
# <details><summary>Hint 2: the check says a value is not right</summary>
#
# Check the units one after the other: multiply-adds are two operations, numbers have `item` bytes, and a
# microsecond is a millionth of a second.
#
# </details>
# <details><summary>Hint 3: what binds?</summary>
#
# Compare the two *times*. Comparing operations with bytes says nothing: a machine does many operations in
# the time of one byte.
#
# </details>

# %% [markdown] solution="11.1"
# **Why it works.** The shared table is the only one that does not grow with the batch. So a larger batch needs fewer
# bytes for each operation, and in the end the product is bound by compute. The second way puts the tables of all
# sentences side by side: it is *one* product, with batch · columns columns. Random is computed like that below.

# %% solution="11.1"
def floors_side_by_side(products, item, operations_per_second, bytes_per_second):
    floors = []
    for batch, rows, inner, columns in products:
        wide = batch * columns
        times = {
            "compute": 2e6 * rows * inner * wide / operations_per_second,
            "memory": 1e6 * item * (rows * inner + inner * wide + rows * wide) / bytes_per_second,
        }
        bound = max(times, key=times.get)
        floors.append((times[bound], bound))
    return floors


check("11.1", floors_side_by_side)

# %% [markdown]
# From here on a function does it. Square tables, on round numbers, 20 GB and 100 G operations a second:

# %%
def floor(operations, moved, rate, bandwidth):
    """Milliseconds, and what binds: operations and bytes of a step, operations and bytes a
    second."""
    compute, memory = 1000 * operations / rate, 1000 * moved / bandwidth
    return max(compute, memory), "compute" if compute > memory else "memory"


for side in (4, 16, 64, 256, 1024):  # a product of two square tables
    milliseconds, bound = floor(2 * side**3, 4 * 3 * side**2, rate=100e9, bandwidth=20e9)
    print(f"{side:4} x {side:4}: floor {milliseconds:9.3g} ms, bound by {bound}")

# %% [markdown]
# Operations grow with the cube of the side, bytes with the square: a large product is compute-bound, a small one
# memory-bound. What is no product, such as a relu, does little on each number, and is memory-bound on nearly every
# machine. (A softmax is more: it has exponentials.)
#
# ## The dot product, counted
#
# You know from [01](01_dot_product.ipynb#Multiply-adds): the scores of one head take $l^2 d_\text{head}$
# multiply-adds, and the average as many. So each of these two products has $2\,l^2 d_\text{head}$ operations.
# `measure.operations` asks torch's own counter. (The softmax is not in its count.)
#
# ### The backward pass: each product twice more
#
# Training also needs gradients. Take a product $C = A B$, and let $\bar C$ be the gradient that arrives from above.
# Then
#
# $$\bar A = \bar C B^T \qquad\qquad \bar B = A^T \bar C$$
#
# Two products of the same three sizes. So forward and backward together do **three times** the operations of the
# forward pass.

# %%
def plain(query, key, value):
    return (query @ key.mT).softmax(dim=-1) @ value


def training_step(function, *tensors, upstream):
    """A function that does one forward and one backward pass."""
    return lambda: torch.autograd.grad(function(*tensors), tensors, upstream)


def heads(length, batch=2, head=3, d_head=16):
    return torch.randn(batch, head, length, d_head, requires_grad=True)


query, key, value, upstream = (heads(6) for _ in range(4))
forward = measure.operations(lambda: plain(query, key, value))
both = measure.operations(training_step(plain, query, key, value, upstream=upstream))
print(f"forward {forward:,} operations, with the backward pass {both:,}: {both // forward} times")

# %% [markdown]
# ### Bytes: who writes the map, who reads it
#
# Now a line for each step of the plain form, with what it reads and writes. In code $\bar V$, the gradient of $V$, is
# `dV`. There are two sizes: *tokens* ($l\,d_\text{head}$ numbers a head: queries, keys, values, result, and their
# gradients) and *maps* ($l^2$ numbers a head).

# %%
plain_steps = [  # what happens, tokens read and written, maps read and written
    ("scores = Q K^T", "Q K", "scores"),
    ("weights = softmax(scores)", "", "scores weights"),
    ("Y = weights V", "V Y", "weights"),
    ("gradient of V", "dY dV", "weights"),
    ("gradient of the weights", "dY V", "dweights"),
    ("gradient of the scores", "", "weights dweights dscores"),
    ("gradient of Q", "K dQ", "dscores"),
    ("gradient of K", "Q dK", "dscores"),
]


def passes(steps):
    """How often a table of tokens is moved, and how often a map."""
    return [sum(len(step[column].split()) for step in steps) for column in (1, 2)]


tokens_moved, maps_moved = passes(plain_steps)
of_maps, of_tokens = maps_moved * 2048**2, tokens_moved * 2048 * 64
print(f"{tokens_moved} times tokens, {maps_moved} times a map")
print(f"at length 2048, {of_maps / (of_maps + of_tokens):.0%} of the bytes belong to the map")

# %% [markdown]
# ### A kernel that never writes the map
#
# A *kernel* is one program that the machine runs from start to end. Between two kernels, a product and a softmax, the
# scores wait in memory. A *fused* kernel does several steps in one go and keeps what is between them in the small,
# fast memory beside the multiplier.
#
# But does the softmax not need the whole row, for its sum? No. You can average while the keys come one by one. Keep
# the largest score, the sum and the average so far. When a larger score comes, shrink what you have:

# %%
def one_row(query, key, value):
    """The result for one query, "d_head". No row of weights is ever stored."""
    largest, total, mixed = torch.tensor(-torch.inf), 0.0, torch.zeros(value.shape[-1])
    for k, v in zip(key, value, strict=True):
        score = query @ k
        new = torch.maximum(largest, score)
        shrink, weight = (largest - new).exp(), (score - new).exp()
        total = total * shrink + weight
        mixed = mixed * shrink + weight * v
        largest = new
    return mixed / total

# %% [markdown]
# The largest score is subtracted only because $e^{100}$ is too large for a float32; it cancels in the division. A
# real kernel takes blocks of queries and of keys, so that it still multiplies matrices. torch has such kernels behind
# one function:

# %%
def fused(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)


def peak(function, length):
    """The most memory that torch hands out during a step."""
    query, key, value, upstream = (heads(length) for _ in range(4))
    step = training_step(function, query, key, value, upstream=upstream.detach())
    step()
    return measure.peak_bytes(step)


for name, form in {"plain": plain, "fused": fused}.items():
    print(f"{name}, from l 512 to 1024: {peak(form, 1024) / peak(form, 512):.0f} times the memory")

# %% fold=true
# @title Check: row by row and fused give what plain gives
rows = torch.stack([one_row(row, key[0, 0], value[0, 0]) for row in query[0, 0]])
assert equal(rows, plain(query, key, value)[0, 0])
assert equal(fused(query, key, value), plain(query, key, value))

# %% [markdown]
# The fused form's memory grows with $l$, not with $l^2$. There is a price. The backward pass needs the weights, and
# nobody kept them. So the kernel computes the scores **again**; one number that it kept for each row then gives the
# weights. How many products is that, forward and backward?

# %%
one_product = measure.operations(lambda: query @ key.mT)
for name, form in {"plain": plain, "fused": fused}.items():
    both = measure.operations(training_step(form, query, key, value, upstream=upstream))
    print(f"{name}: {both // one_product} products")

# %% [markdown]
# Fused tokens: forward it reads $Q$, $K$, $V$ and writes $Y$; backward it reads these four ($Y$ for the
# gradient of the softmax) and $\bar Y$, and writes three gradients. That is 12 again. So for one
# forward and backward pass, a head of one sentence:
#
# | form | products, $2\,l^2 d_\text{head}$ operations | tokens, $l\,d_\text{head}$ numbers | maps, $l^2$ |
# |---|---|---|---|
# | plain | 6 | 12 | 11 |
# | fused | 7 | 12 | 0 |
#
# The fused form does *more* work and moves less.
#
# ### Exercise 11.2: from which length on?
#
# *20 minutes, medium.* Computing again costs operations, writing down costs bytes. Which is cheaper depends on the
# machine. On one where bytes are slow, the fused form always has the lower floor. On one where operations are slow,
# there is a length from which on the *plain* form has. Find it.

# %% exercise="11.2" points=2
def crossover(d_head, item, operations_per_second, bytes_per_second, max_length):
    """From which length on the floor of the plain form is below that of the fused form.

    One head of one sentence, forward and backward, as in the table above. item: the bytes of one
    number. max_length: a whole number from 1 to 12,000.
    Returns (first, plain, fused):
    first: the smallest whole length from 1 to max_length at which the floor of plain is below that
    of fused, None if there is none. plain, fused: the floors of the two forms at max_length, in
    microseconds.
    """
    ### BEGIN SOLUTION
    def floors(length):
        product, tokens, table = 2 * length**2 * d_head, length * d_head, length**2
        plain = max(6 * product / operations_per_second,
                    item * (12 * tokens + 11 * table) / bytes_per_second)
        fused = max(7 * product / operations_per_second, item * 12 * tokens / bytes_per_second)
        return 1e6 * plain, 1e6 * fused

    lengths = range(1, max_length + 1)
    first = next((length for length in lengths if floors(length)[0] < floors(length)[1]), None)
    return (first, *floors(max_length))
    ### END SOLUTION

# %% check="11.2"
check("11.2", crossover)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write a small function that gives both floors at *one* length. Then try the lengths in order, and stop at
# the first that fits.
#
# </details>
# <details><summary>Hint 2: which numbers?</summary>
#
# The table above has one line for each form. Multiply each entry by the size at the head of its column.
# Then operations become a time by one rate, and bytes by the other.
#
# </details>
# <details><summary>Hint 3: one part is right, another is not</summary>
#
# The message names the parts: first, plain, fused. The check also takes other machines, one of them with a length at
# which both floors are the same number, and other values of `max_length`, which belongs to the lengths.
#
# </details>
#
# When it is right, ask for your own machine, with the heads of 32 features that you time below:
# `crossover(32, 4, rate, bandwidth, 8192)`. Keep the number. The measurement has something to say about it.

# %% [markdown] solution="11.2"
# **Why it works.** Plain has fewer operations at every length, so only its bytes can make it slower; fused has fewer
# bytes, so only its operations can. The two cross where the operations of fused take as long as the bytes of plain.
# Divide both by $l$: what is left is linear in $l$, and has one solution or none. The second way solves it.

# %% solution="11.2"
def crossover_solved(d_head, item, operations_per_second, bytes_per_second, max_length):
    def microseconds(products, tokens, maps):
        operations = products * 2 * max_length**2 * d_head
        moved = item * (tokens * max_length * d_head + maps * max_length**2)
        return 1000 * floor(operations, moved, operations_per_second, bytes_per_second)[0]

    slope = 14 * d_head / operations_per_second - 11 * item / bytes_per_second
    first = int(12 * d_head * item / bytes_per_second / slope) + 1 if slope > 0 else None
    return first if first and first <= max_length else None, microseconds(6, 12,
                                                                          11), microseconds(7, 12,
                                                                                            0)


check("11.2", crossover_solved)

# %% [markdown]
# From here on a function counts, for whole batches and all heads. What a real model saves in bytes:

# %%
def work(products, tokens, maps, *, length, d_head, batch, head, item=4, shared_maps=0):
    """(operations, bytes) of a step; shared_maps: passes over a map that the whole batch shares."""
    operations = products * 2 * batch * head * length**2 * d_head
    numbers = tokens * batch * head * length * d_head + (maps * batch
                                                         + shared_maps) * head * length**2
    return operations, item * numbers


PLAIN, FUSED = (6, 12, 11), (7, 12, 0)
sizes = dict(length=2048, d_head=64, batch=16, head=12)
for name, counts in {"plain": PLAIN, "fused": FUSED}.items():
    operations, moved = work(*counts, **sizes, item=2)
    print(f"{name}: {operations / 1e9:6.0f} G operations, {moved / 1e9:6.3g} GB")

# %% [markdown]
# ## Dense is attention with parameter keys
#
# Look at Dense again, equation (2), without biases for a moment:
#
# $$B_{ij} = \sum_m \mathrm{relu}(W_1 X_i)_m \, (W_2)_{jm}$$
#
# A sum over features of something that belongs to $i$ and something that belongs to $j$: a dot product of *queries*
# $\mathrm{relu}(W_1 X_i)$ and *keys* that are no tokens at all. Row $j$ of $W_2$ is a parameter, the same for every
# sentence:

# %%
axes = Axes(batch=2, head=3, d_head=4, length=6, d_model=12)
layer = Attention(d_model=12, head=3, max_length=8, score="dense", bias=False)
x = torch.randn(2, 6, 12)


def split(features):
    return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=3)


query = axes(split(layer.score.hidden(x).relu()), "batch head query d_head", "query")
value = axes(split(layer.value(x)), "batch head key d_head", "value")

# %% [markdown]
# In the library $W_2$ has the axes head, d_head, and one column for each of `max_length` positions. Cut it, turn it,
# and there are the keys, **without a batch axis**:

# %%
key = axes(layer.score.weight[:, :, :6].mT, "head key d_head", "key")  # no batch
scores = einsum(query, key, "batch head query d_head, head key d_head -> batch head query key")
by_product = axes(scores.softmax(dim=-1) @ value, "batch head query d_head")

# %% [markdown]
# ### The same from torch's own kernel
#
# `expand` gives the keys a batch axis without copying them: every sentence reads the same memory. The scale must be
# 1. Only the dot product is divided by $\sqrt{d_\text{head}}$, and the kernel does that unless you forbid it. Largest
# distance from the product above:

# %%
many_keys = key.expand(2, -1, -1, -1)
by_kernel = F.scaled_dot_product_attention(query, many_keys, value, scale=1.0)
forgotten = F.scaled_dot_product_attention(query, many_keys, value)
for name, result in {"scale 1": by_kernel, "scale forgotten": forgotten}.items():
    print(f"{name:>16}: {(result - by_product).abs().max():.2f}")

# %% [markdown]
# So every fused kernel, made by other people for the dot product, computes Dense exactly.
#
# ### The bias is one more feature
#
# The bias $b_2$ adds a number to every score of column $j$. Give each query one more feature, a 1, and put $b_2$
# beside it in the keys: $1 \cdot (b_2)_j$. A head then has 5 features where it had 4.

# %%
layer = Attention(d_model=12, head=3, max_length=8, score="dense")  # with biases


def dense_by_kernel(layer, x):
    query = torch.cat([split(layer.score.hidden(x)).relu(), torch.ones(2, 3, 6, 1)], dim=-1)
    key = torch.cat([layer.score.weight[:, :, :6].mT, layer.score.bias[:, :6, None]], dim=-1)
    axes_more = Axes(batch=2, head=3, length=6, d_head=5)  # one feature more
    query, key = axes_more(query, "batch head query d_head"), axes_more(key, "head key d_head")
    # a 0: all three have 5
    value = axes_more(F.pad(split(layer.value(x)), (0, 1)), "batch head key d_head")
    mixed = F.scaled_dot_product_attention(query, key.expand(2, -1, -1, -1), value,
                                           scale=1.0)[..., :4]
    return layer.output(rearrange(mixed, "batch head query d_head -> batch query (head d_head)"))

# %% fold=true
# @title Check: the values and all gradients are those of the library's plain layer
assert equal(by_kernel, by_product) and not equal(forgotten, by_product)
upstream, results = torch.randn(2, 6, 12), (dense_by_kernel(layer, x), layer(x)[0])
of_ours, of_layer = (torch.autograd.grad(result, list(layer.parameters()), upstream)
                     for result in results)
assert equal(*results) and len(of_ours) == 8 and all(map(equal, of_ours, of_layer))

# %% [markdown]
# ### Right, and silently slow
#
# Why did we add a 0 to the values? Each of torch's kernels has conditions. On a CPU: queries, keys and values must
# have the same number of features, and the same batch axis, if only by `expand`. If no kernel fits, torch takes the
# plain form, **without a word**. The result is right. To start one operation is a *launch*. `measure.launches` counts
# them:

# %%
query, key, value = heads(256).detach(), heads(256, batch=1).detach(), heads(256).detach()
kinds = {
    "expanded keys": (query, key.expand(2, -1, -1, -1), value),
    "keys with batch axis 1": (query, key, value),
    "fewer features in the values": (query, key.expand(2, -1, -1, -1), value[..., :12]),
}
for name, tensors in kinds.items():
    assert equal(fused(*tensors), plain(*tensors))  # all three are right
    launches = measure.launches(lambda tensors=tensors: fused(*tensors))
    whole_maps = measure.peak_bytes(lambda tensors=tensors: fused(*tensors)) // (4 * 2 * 3 * 256**2)
    print(f"{name:>28}: {launches} launches, {'a map in memory' if whole_maps else 'no map'}")

# %% [markdown]
# One launch is the kernel. Many are the plain form, one step after the other. The conditions differ between CPU and
# GPU, and between versions of torch. So do not believe that you got the fast form. Look.
#
# ## Random: one map for all sentences
#
# There is one map for each head, for the whole batch. But you have to *use* that. Much public code first gives $R$ a
# batch axis. `expand` copies nothing, but the softmax then writes a map for each sentence. Who writes maps to memory,
# for a batch of three sentences:

# %% fold=true
# @title The figure: who writes a map
fig, panels = plt.subplots(1, 4, figsize=(7, 1.9), layout="constrained")
stored = {
    "plain\n(dot product, Dense)": 3, "fused\n(dot product, Dense)": 0, "Random,\nexpanded": 3,
    "Random,\none map": 1,
}
for panel, (form, number) in zip(panels, stored.items(), strict=True):
    for sentence in range(3):
        panel.add_patch(plt.Rectangle((0, 1.2 * sentence), 2, 0.9, fill=False, edgecolor="0.6"))
        panel.text(1, 1.2 * sentence + 0.45, f"sentence {sentence}", ha="center",
                   va="center", fontsize=8)
        if number:  # an arrow from the map that this sentence reads
            source = 1.2 * sentence + 0.45 if number == 3 else 1.65
            arrow = dict(arrowstyle="->", color="0.4")
            panel.annotate("", (2.05, 1.2 * sentence + 0.45), (3.1, source), arrowprops=arrow)
    for sentence in range(3) if number == 3 else range(1, 1 + number):
        panel.add_patch(plt.Rectangle((3.1, 1.2 * sentence), 0.9, 0.9, color=plots.COLOURS[1]))
        panel.text(3.55, 1.2 * sentence + 0.45, "map", ha="center", va="center", fontsize=8,
                   color="white")
    panel.set(xlim=(-0.1, 4.1), ylim=(3.5, -0.2))
    panel.set_title(form, fontsize=8)
    panel.axis("off")
plots.show(
    fig,
    "four panels with three sentences each. Plain: three maps in memory, one for each sentence. "
    "Fused: no map. Random, expanded: three maps again. Random, one map: a single map, from which "
    "arrows lead to all three sentences.",
)

# %%
def random_expanded(R, value):
    """The scores "head query key", spread over the batch, then a softmax for each sentence."""
    return R.expand(len(value), -1, -1, -1).softmax(dim=-1) @ value


def random_one_map(R, value):
    """One softmax, one matrix product for each head, whatever the batch."""
    features = rearrange(value, "batch head key d_head -> head (d_head batch) key")
    mixed = features @ R.softmax(dim=-1).mT
    return rearrange(mixed, "head (d_head batch) query -> batch head query d_head",
                     batch=len(value))

# %% [markdown]
# Both have one product forward and two backward: 3, where a fused kernel has 7. What differs is the maps. **Predict**
# how often each form moves one, with the list of steps above as a model: there is no $Q$ and no $K$, and $R$ takes
# the place of the scores.

# %%
my_maps = {"one map": None, "expanded": None}

# %% [markdown]
# The second form puts the values of all sentences side by side, as **one** matrix. Give each number a name: hundreds
# say the sentence, tens the position, ones the feature.

# %%
axes_small = Axes(batch=2, head=1, key=3, d_head=4)
sentence, position, feature = torch.arange(2), torch.arange(3), torch.arange(4)
named = 100 * (sentence[:, None, None, None] + 1) + 10 * position[:, None] + feature
named = axes_small(named, "batch head key d_head", "named")
matrix = rearrange(named, "batch head key d_head -> head (d_head batch) key")
print(axes_small(matrix, "head (d_head batch) key")[0])

# %% [markdown]
# A row is one feature of one sentence at all positions. The map treats all rows alike. So one product serves 2 · 4
# rows, or 64 · 64 of them.
#
# And why not simply `weights @ value`? The values are right. But for `@` torch first copies the map, one for each
# sentence; einsum, like the second form, puts the sentences side by side:

# %%
one_map, of_many = torch.randn(3, 256, 256), torch.randn(16, 3, 256, 8)
to_mixed = "head query key, batch head key d_head -> batch head query d_head"
products = {"@": lambda: one_map @ of_many, "einsum": lambda: einsum(one_map, of_many, to_mixed)}
for name, product in products.items():
    needed = measure.peak_bytes(product) / (4 * one_map.numel())
    print(f"{name:>6}, 16 sentences: {needed:.1f} times the memory of the map")

# %% fold=true
# @title Check: both forms of Random agree, values and gradients
R, value = torch.randn(3, 6, 6, requires_grad=True), torch.randn(2, 3, 6, 4, requires_grad=True)
R, value = axes(R, "head query key", "R"), axes(value, "batch head key d_head", "value")
forms = random_expanded, random_one_map
assert equal(*(form(R, value) for form in forms))
upstream = torch.randn(2, 3, 6, 4)
results = [training_step(form, R, value, upstream=upstream)() for form in forms]
assert all(equal(one, other) for one, other in zip(*results, strict=True))

# %% [markdown]
# Now the steps of Random, and your guess:

# %%
one_map_steps = [
    ("weights = softmax(R)", "", "R weights"),
    ("Y = weights V", "V Y", "weights"),
    ("gradient of V", "dY dV", "weights"),
    ("gradient of the weights", "dY V", "dweights"),
    ("gradient of R", "", "weights dweights dR"),
]
expanded_steps = [*one_map_steps, ("the gradients of R of all sentences, added up", "", "dR")]
compare_guess(my_maps, {"one map": passes(one_map_steps)[1], "expanded": passes(expanded_steps)[1]})

# %% [markdown]
# Nearly the same. But the expanded form moves the maps of *each* sentence, the other one map for all. In the size of
# a real model, 64 sentences of 512 tokens, 12 heads of 64 features, numbers of 2 bytes:

# %%
EXPANDED, ONE_MAP = (3, *passes(expanded_steps)), (3, passes(one_map_steps)[0], 0)
sizes = dict(length=512, d_head=64, batch=64, head=12, item=2)
table = {
    "dot product, plain": work(*PLAIN, **sizes),
    "dot product or Dense, fused": work(*FUSED, **sizes),
    "Random, expanded": work(*EXPANDED, **sizes),
    "Random, one map": work(*ONE_MAP, **sizes, shared_maps=8),
}
for name, (operations, moved) in table.items():
    print(f"{name:>28}: {operations / 1e9:4.0f} G operations, {moved / 1e9:5.3g} GB")

# %% [markdown]
# By its floor, Random is the fastest of all. Whether it is, you will measure.
#
# ## Factorized Random: queries and keys are parameters
#
# $$B = R_1 R_2^T \tag{7}$$
#
# Row $i$ of $R_1$ times row $j$ of $R_2$: here **both** sides of the dot product are parameters. Make the map $R_1
# R_2^T$ once, and use it for the whole batch, as Random does. Or give $R_1$ and $R_2$ to a fused kernel, and never
# make a map. The second way repeats the scores for every sentence, but needs no $l^2$ numbers. For a long text that
# decides.
#
# The rank $k$ is small. A kernel wants as many features in queries and keys as in the values. What could you fill
# them up with, so that no weight changes?
#
# ### Exercise 11.3: Factorized Random for a fused kernel
#
# *25 minutes, medium.* For a *causal* layer: no query attends to a later key. Write the arguments of torch's
# `F.scaled_dot_product_attention`. The check calls it with them and with the values. It looks at the numbers, and at
# every tensor that your function and the kernel make: none may hold length × length numbers for each head. A mask
# that all heads share may.

# %% exercise="11.3" points=2
def kernel_arguments(R1, R2, value):
    """A dict of arguments for F.scaled_dot_product_attention(value=value, **arguments), as a causal
    layer.

    R1, R2: head max_length rank, with rank < d_head. value: batch head key d_head. The sentences
    stand at the first positions; they may be shorter than max_length.
    Returns {"query": ..., "key": ..., and what else is needed}, so that the result is, in loops:

        score[h][i][j] = sum over k of R1[h][i][k] * R2[h][j][k]
        mixed[b][h][i] = sum over j <= i of softmax over j <= i of score[h][i][j] * value[b][h][j]
    """
    ### BEGIN SOLUTION
    batch, head, length, d_head = value.shape
    query, key = (F.pad(factor[:, :length], (0, d_head - factor.shape[-1])) for factor in (R1, R2))
    query, key = query.expand(batch, -1, -1, -1), key.expand(batch, -1, -1, -1)
    return {"query": query, "key": key, "is_causal": True, "scale": 1.0}
    ### END SOLUTION

# %% check="11.3"
check("11.3", kernel_arguments)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Which of the two has a row for each query? Bring both to the form "batch head length feature", one axis
# after the other. Then call the kernel yourself, on small tensors, and compare with `plain`, at first
# without the mask.
#
# </details>
# <details><summary>Hint 2: the values are right, but a map is made</summary>
#
# Read "Right, and silently slow" again: which two conditions must queries, keys and values meet?
# `F.pad(table, (0, n))` adds n zeros at the end of the last axis. What do zeros do in a dot product?
#
# </details>
# <details><summary>Hint 3: the values are wrong</summary>
#
# The kernel scales of its own accord, and leaves the mask to you: `scale` and `is_causal` are arguments
# too.
#
# </details>

# %% [markdown] solution="11.3"
# **Why it works.** Zeros add nothing to a dot product, and `expand` adds a batch axis without a copy, so both
# conditions of the kernel are met and no score changes. The second way fills up with ones: every score grows by
# the same number, and a softmax does not see what all its scores have in common. In a bfloat16 that would cost digits.

# %% solution="11.3"
def kernel_arguments_with_ones(R1, R2, value):
    batch, head, length, d_head = value.shape
    fill = torch.ones(batch, head, length, d_head - R1.shape[-1])
    query, key = (torch.cat([factor[:, :length].expand(batch, -1, -1, -1), fill], dim=-1)
                  for factor in (R1, R2))
    return {"query": query, "key": key, "is_causal": True, "scale": 1.0}


check("11.3", kernel_arguments_with_ones)

# %% [markdown]
# ## What a dot product of few features cannot hold
#
# Scores that are a dot product of $n$ features have at most rank $n$ (chapter [05](05_factorized_random.ipynb)). So
# the rank tells how many features a kernel would need:

# %%
many = torch.randn(4, 12, 12, dtype=torch.float64)
for name, options in [
    ("dense", {"bias": False}), ("dense", {}), ("factorized_random", {"rank": 3}),
    ("factorized_dense", {"a": 3, "b": 4}),
]:
    score = make_score(name, 12, 2, 12, **options).double()
    rank = torch.linalg.matrix_rank(score(many)[:, 0].flatten(0, 1)).item()
    print(f"{name:>17}: {rank:2} features "
          "for 12 positions", *(f"{key}={value}" for key, value in options.items()))

# %% [markdown]
# Dense needs its $d_\text{head}$ features, and one for the bias. Factorized Random needs $k$. Factorized Dense, $A_{j
# \bmod a} \, B_{\lfloor j / a \rfloor}$, needs as many as there are positions, for each has a product of its own. And
# a dot product of $l$ features *is* a map, so nothing is won.
#
# What helps is a **score_mod**: a small function that is *compiled*, translated for the machine, together with the
# kernel, and asked for each score what it should become. There it multiplies $A$ by $B$ on the spot, or adds $R$.
# torch calls this FlexAttention, and trains with it on a GPU alone.
#
# And a mixture of two dot products is a dot product again, with the features side by side:
#
# $$\alpha_1\, q_i \cdot k_j + \alpha_2\, q'_i \cdot k'_j =
# [\alpha_1 q_i,\ \alpha_2 q'_i] \cdot [k_j,\ k'_j]$$
#
# ## The causal mask: half of the work is for nothing
#
# (A good place for a break: what follows needs little of the code above.)
#
# A language model must not look ahead. The plain way computes every score, then sets those above the diagonal to
# minus infinity. A weight of 0 costs as much as any other: half of the work is thrown away. To skip every single 0
# would mean rows of all lengths, and no matrix product. So cut the queries into **blocks**. A block multiplies all
# keys up to its own end, and no further:

# %% fold=true
# @title The figure: a causal map in blocks
fig, panels = plt.subplots(1, 4, figsize=(6, 2), layout="constrained")
for panel, blocks in zip(panels, (1, 2, 4, 8), strict=True):
    position = torch.arange(16)
    end = (position * blocks // 16 + 1) * 16 // blocks  # the block of query i ends here
    shade = (position < end[:, None]).float() + (position <= position[:, None])
    panel.imshow(shade, cmap="Greys", vmin=0, vmax=3)
    panel.set(title=f"blocks: {blocks}", xticks=[], yticks=[])
panels[0].set(ylabel="query", xlabel="key")
plots.show(
    fig,
    "a causal map of 16 tokens in 1, 2, 4 and 8 blocks of queries. Dark: needed. Light grey: "
    "multiplied though it is 0. White: left out. The more blocks, the closer the stairs are to the "
    "diagonal.",
)

# %% [markdown]
# With $n$ equal blocks, block 1 does $1/n$ of a full row, block 2 does $2/n$, and so on. Of the work of the full
# product,
#
# $$\frac{1}{n}\left(\frac1n + \frac2n + \dots + \frac nn\right) = \frac{n + 1}{2n}$$

# %%
def causal_weights(scores):
    return scores.masked_fill(~masks.causal(scores.shape[-1])[0, 0], -torch.inf).softmax(dim=-1)


def in_blocks(weights, value, size):
    """A causal map times the values, in blocks of `size` queries."""
    parts = []
    for start in range(0, value.shape[2], size):
        stop = start + size  # a slice may end behind the end
        parts.append(einsum(weights[:, start:stop, :stop], value[:, :, :stop], to_mixed))
    return torch.cat(parts, dim=2)


weights, value = causal_weights(torch.randn(3, 512, 512)), torch.randn(2, 3, 512, 4)
full = measure.operations(lambda: weights @ value)
for blocks in (1, 2, 4, 8, 64):
    counted = measure.operations(lambda blocks=blocks: in_blocks(weights, value, 512 // blocks))
    print(f"blocks: {blocks:2}, products: {blocks:2}, work left: {Fraction(counted, full)}")

# %% fold=true
# @title Check: blocks change no value, and the library leaves out as much, forward and backward
assert all(equal(in_blocks(weights, value, size), weights @ value) for size in (100, 512))
R, value, upstream = (torch.randn(*shape, requires_grad=True)
                      for shape in ([3, 1024, 1024], *[[2, 3, 1024, 8]] * 2))
in_library = training_step(lambda R, value: fast.one_map(R, value, causal=True), R, value,
                           upstream=upstream)
whole = measure.operations(training_step(random_one_map, R, value, upstream=upstream))
assert Fraction(measure.operations(in_library), whole) == Fraction(8 + 1, 2 * 8)

# %% [markdown]
# It never gets below one half, and each block has to be started. So a few blocks are best.
#
# ### Exercise 11.4: the gradient leaves out the upper half, too
#
# *15 minutes, medium.* Compute the gradient of the values in blocks of *keys*. Who attends to a key? Read the picture
# above by columns. The check compares the numbers. Then it puts a NaN, "not a number", in the place of one query's
# gradient after the other. 0 times NaN is NaN, so it sees which key multiplies which query. In how many products you
# do it is up to you.

# %% exercise="11.4" points=2
def gradient_of_values(scores, upstream, size):
    """The gradient of the values, where mixed = softmax(scores + causal mask) times value, in
    blocks of keys.

    scores: head query key, as many queries as keys; all sentences share them.
    upstream: batch head query d_head, the gradient of mixed.
    size: the keys in a block; the last block may be shorter.
    Returns the gradient of the values, batch head key d_head. A block multiplies every query that
    may attend to at least one of its keys, and no other query. The softmax may be made for the
    whole map at once.
    """
    ### BEGIN SOLUTION
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    parts = []
    for start in range(0, upstream.shape[2], size):
        block, later = weights[:, start:, start : start + size], upstream[:, :, start:]
        parts.append(einsum(block, later, "head query key, batch head query d_head -> batch "
                                          "head key d_head"))
    return torch.cat(parts, dim=2)
    ### END SOLUTION

# %% check="11.4"
check("11.4", gradient_of_values)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Forget the blocks. Take the formula of $\bar B$ in the section on the backward pass, and say it as an `einsum` of a
# map "head query key" and a gradient "batch head query d_head": which axis is summed? Then find out which rows of the
# map one block of columns needs.
#
# </details>
# <details><summary>Hint 2: the values are right, what is multiplied is not</summary>
#
# A block that takes all queries multiplies zeros. Take two blocks, and draw them into a map of four tokens. On which
# side of a column are the zeros?
#
# </details>
# <details><summary>Hint 3: the last block</summary>
#
# `range(0, length, size)` gives the starts of all blocks, that of the shorter one too. A slice may end behind the end.
#
# </details>

# %% [markdown] solution="11.4"
# **Why it works.** A key is attended to by its own query and by all later ones. So a block of keys needs the queries
# from its first key on: the stairs of the forward pass, read from the other side, and the work left is the same
# $(n + 1)/2n$. The second way takes square tiles: several products for a block, and the same pairs.

# %% solution="11.4"
def gradient_by_tiles(scores, upstream, size):
    weights = causal_weights(scores)
    gradient, length = torch.zeros_like(upstream), upstream.shape[2]
    for first in range(0, length, size):
        queries = slice(first, first + size)
        for start in range(0, first + 1, size):
            keys = slice(start, start + size)
            gradient[:, :, keys] += weights[:, queries, keys].mT @ upstream[:, :, queries]
    return gradient


check("11.4", gradient_by_tiles)

# %% [markdown]
# ### Stretch 11.5: eight blocks, but not eight products
#
# *45 minutes, hard.* Eight blocks leave 9/16 of the work, and are eight products. Do no more work than that, in **at
# most five** matrix products: what torch starts as one counts as one, also where it holds many small ones, as `@`
# does for all heads. There are several ways. The check counts the products, and finds with NaNs how much of the
# square you multiply.
#
# Why the series asks this: the stairs trade work for launches. Here you pay less of both. When it is right, ask how
# much work six products leave: the solution's way gets down to 33/64.

# %% exercise="11.5" points=1
def few_products(scores, value):
    """softmax(scores + causal mask) times the values, with at most 9/16 of the full work, in at
    most 5 products.

    scores: head query key; all sentences share them. value: batch head key d_head. The length is a
    multiple of 16.
    Returns the mixed values, batch head query d_head.
    """
    ### BEGIN SOLUTION
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    features = rearrange(value, "batch head key d_head -> head key (batch d_head)")
    mixed, length = torch.zeros_like(features), value.shape[2]
    side = length // 8
    # triangles, multiplied as squares
    levels = [(side, [(start, start) for start in range(0, length, side)])]
    while side < length:
        # first query, key
        levels.append((side, [(start + side, start) for start in range(0, length, 2 * side)]))
        side = 2 * side
    for side, squares in levels:
        maps = torch.stack([weights[:, q : q + side, k : k + side] for q, k in squares])
        # one product for all of a size
        parts = maps @ torch.stack([features[:, k : k + side] for _, k in squares])
        for (q, _), part in zip(squares, parts, strict=True):
            mixed[:, q : q + side] += part
    return rearrange(mixed, "head query (batch d_head) -> batch head query d_head",
                     batch=len(value))
    ### END SOLUTION

# %% check="11.5"
check("11.5", few_products)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# A causal map is a triangle. Cut it in the middle of the queries and of the keys. Which shapes do you get, and which of
# them are equal?
#
# </details>
# <details><summary>Hint 2: equal shapes</summary>
#
# `torch.stack` puts pieces of equal sizes on a new first axis, and `@` multiplies all of them as one product. The
# results belong to different queries: add each to its own.
#
# </details>
# <details><summary>Hint 3: too much work, or too many products</summary>
#
# What is left of the triangle after the first cut is smaller triangles. Cut them again, all at the same time. Or let
# both climb their stairs together.
#
# </details>

# %% [markdown] solution="11.5"
# **Why it works.** A triangle is a square and two triangles of half its side. Cut three times: squares of a half, a
# quarter and an eighth, and eight small triangles, which are multiplied as squares. All pieces of one size are one
# product: four products, $1/4 + 1/8 + 1/16 + 1/8 = 9/16$ of the work. Each further cut adds *one* product, where the
# stairs double theirs: two more cuts, six products, leave $33/64$. The second way cuts once, and lets the two triangles
# climb four steps side by side.

# %% solution="11.5"
def two_stairs(scores, value):
    weights = causal_weights(scores)
    half, step = value.shape[2] // 2, value.shape[2] // 8
    features = rearrange(value, "batch head key d_head -> head key (batch d_head)")
    triangles = torch.stack([weights[:, :half, :half], weights[:, half:, half:]])
    both = torch.stack([features[:, :half], features[:, half:]])
    parts = [triangles[:, :, end - step : end, :end] @ both[:, :, :end]
             for end in range(step, half + 1, step)]
    upper, lower = torch.cat(parts, dim=2)
    mixed = torch.cat([upper, lower + weights[:, half:, :half] @ features[:, :half]], dim=1)
    return rearrange(mixed, "head query (batch d_head) -> batch head query d_head",
                     batch=len(value))


check("11.5", two_stairs)

# %% [markdown]
# ## `need_weights=False`: the library's kernels
#
# Call a layer with `need_weights=False`: you get the same $Y$, no map, and `fast.choose` takes the kernel that should
# be the fastest for its S: *one map* for the batch, causal in blocks; *sdpa*, torch's fused kernel; on a GPU *flex*,
# FlexAttention; or *plain*, where none is faster or something needs the map. Four masks, nine S, two sentences of up to
# 256 tokens:

# %%
names = ["dot_product", "dense", "random", "fixed_random", "factorized_dense", "factorized_random",
         "random + dot_product", "dense + dot_product", "random + dense"]
x_long, padding = torch.randn(2, 256, 32), masks.padding([256, 200], 256)
print(f"{'':>20} {'no mask':>9} {'padding':>9} {'causal':>9} {'both':>9}")
for name in names:
    kernels = []
    for causal, mask in ((False, None), (False, padding), (True, None), (True, padding)):
        layer = Attention(32, 4, 256, name, causal=causal)
        # the same Y
        assert equal(layer(x_long, mask, need_weights=False)[0], layer(x_long, mask)[0])
        kernels.append(fast.choose(layer.score, x_long, 256, mask, causal))
    print(f"{name:>20}", *(f"{kernel:>9}" for kernel in kernels))

# %% [markdown]
# On a CPU short inputs stay plain, but for the dot product alone. So does Random without a causal mask, whose plain
# kernel already makes one map for the batch, and with padding, where each sentence needs a map of its own.
#
# ## Predict, then measure
#
# ### How to measure
#
# Do not time one call. Here are six calls of one step, by the clock:

# %%
# Output varies: times differ between machines, and from call to call.
step = training_step(plain, heads(300), heads(300), heads(300), upstream=heads(300).detach())
for call in range(6):
    started = time.perf_counter()
    step()
    print(f"call {call}: {1000 * (time.perf_counter() - started):.2f} ms")

# %% [markdown]
# They do not agree. Other programs run, the processor changes its speed, a first call may set up what then stays. On
# a GPU a call only *starts* the kernels and returns at once, so a clock that does not wait for it measures nothing.
#
# `measure.times` warms each step up, then calls all of them **in turn**, round after round, so that a slow moment of
# the machine meets all. On a CPU it counts *processor time*: what the processor spent on this program. The clock
# above also counts the waiting for others. It gives the *median* of the rounds, and the *quartiles*: half of the
# rounds lie between them. Two forms whose quartiles overlap we do not call different. (Five rounds, as here, are few.
# If the time is up before, you see how many there were, and no quartiles.)
#
# Six forms, forward and backward. Dense is here without $b_2$, and its keys are counted as the kernel reads them,
# once for each sentence: its floor is that of the dot product.

# %% fold=true
# @title Six forms, each with its operations and bytes; and how a time is printed
def forms(length, batch=4, head=4, d_head=32):
    """{form: (its step, its operations and bytes)}, forward and backward."""
    query, key, value = (heads(length, batch, head, d_head) for _ in range(3))
    W2, R = heads(length, 1, head, d_head), torch.randn(head, length, length, requires_grad=True)
    upstream = torch.randn(batch, head, length, d_head)
    sizes = dict(length=length, batch=batch, head=head, d_head=d_head)

    def dense(form):
        return lambda query, W2, value: form(query.relu(), W2.expand(batch, -1, -1, -1), value)

    def step(form, *tensors):
        return training_step(form, *tensors, upstream=upstream)

    return {
        "dot product, plain": (step(plain, query, key, value), work(*PLAIN, **sizes)),
        "dot product, fused": (step(fused, query, key, value), work(*FUSED, **sizes)),
        "Dense, plain": (step(dense(plain), query, W2, value), work(*PLAIN, **sizes)),
        "Dense, fused": (step(dense(fused), query, W2, value), work(*FUSED, **sizes)),
        "Random, expanded": (step(random_expanded, R, value), work(*EXPANDED, **sizes)),
        "Random, one map": (step(random_one_map, R, value), work(*ONE_MAP, **sizes, shared_maps=8)),
    }


def quartiles(time, rounds=5):
    """The quartiles as text; where the time was up before all rounds, how many were made."""
    if time["low"] is None:
        return f"{time['rounds']} of {rounds} rounds"
    return f"{time['low']:.1f} to {time['high']:.1f}"


for step, (operations, _) in forms(length=64).values():  # torch counts what the formulas say
    assert measure.operations(step) == operations

# %% [markdown]
# Now length 1024, in ten seconds or more. "floors" is the measured time in floors of *your* machine, "speed" is against
# the plain dot product.

# %%
# Output varies: times differ between machines.
six = forms(length=1024)
times = measure.times({name: step for name, (step, _) in six.items()}, rounds=5, progress=True)
print(f"{'':>18}  floor ms  bound by  measured ms         quartiles  floors  speed")
for name, (_, counts) in six.items():
    least, bound = floor(*counts, rate, bandwidth)
    ms, speed = times[name]["ms"], times["dot product, plain"]["ms"] / times[name]["ms"]
    print(f"{name:>18}  {least:8.1f}  {bound:>8}  {ms:11.1f}  "
          f"{quartiles(times[name]):>16}", end=" ")
    print(f"{ms / least:7.1f}  {speed:5.1f}")
fastest = {"Random": "Random, one map", "Dense": "Dense, fused"}
speeds = {name: times["dot product, plain"]["ms"] / times[form]["ms"]
          for name, form in fastest.items()}
compare_guess(my_speed, {name: f"{speed:.1f}" for name, speed in speeds.items()})

# %% [markdown]
# In the column *floors* nothing should be below 1. Now recall exercise 11.2: which of plain and fused has the lower
# floor here, and which is faster?

# %%
# Output varies: it comes from your machine's two numbers, and from the times above.
of_plain, of_fused = (six[f"dot product, {form}"][1] for form in ("plain", "fused"))
ratio = floor(*of_plain, rate, bandwidth)[0] / floor(*of_fused, rate, bandwidth)[0]
print(f"plain takes, by the floors, {ratio:.2f} times as long as fused,", end=" ")
print(f"measured {times['dot product, plain']['ms'] / times['dot product, fused']['ms']:.2f} times")

# %% [markdown]
# If your machine is like the one of the stored numbers, the floors name the wrong winner. Both forms are
# compute-bound. Then the bytes of the map count for *nothing*. On a machine they do count: it does not fetch all of
# the map while it multiplies, and a softmax multiplies nothing, so there is nothing to hide behind. A floor is right
# about what it forbids. It is not made to say which of two forms is faster.
#
# ### Where the time goes
#
# Take the plain forward pass apart. Beside its three steps stands a copy of the map: two passes, no operations at
# all.

# %%
# Output varies: times differ between machines.
query, key, value = (heads(1024, 4, 4, 32).detach() for _ in range(3))
scores, target = query @ key.mT, torch.empty(4, 4, 1024, 1024)
weights = scores.softmax(dim=-1)
product, one_pass = 2 * scores.numel() * 32, 4 * scores.numel()
parts = {
    "scores": (lambda: query @ key.mT, product, one_pass),
    "softmax": (lambda: scores.softmax(dim=-1), 0, 2 * one_pass),
    "average": (lambda: weights @ value, product, one_pass),
    "copy to fresh memory": (lambda: scores.clone(), 0, 2 * one_pass),
    "copy to old memory": (lambda: target.copy_(scores), 0, 2 * one_pass),
}
times = measure.times({name: step for name, (step, *_) in parts.items()}, rounds=5)
for name, (_, operations, moved) in parts.items():
    least, bound = floor(operations, moved, rate, bandwidth)
    print(f"{name:>20}: floor {least:6.2f} ms ({bound}), measured {times[name]['ms']:6.2f} ms")

# %% [markdown]
# Take the difference of the two copies off the times of scores and softmax, which write into fresh memory. Then look:
#
# - **Products of few features are slower than the rate says.** It was measured with an inner size of 1024. Here it is
#   32: there is less to reuse between two fetches.
# - **A softmax is no copy.** It computes an exponential for each score.
# - **Fresh memory costs.** A program gets it in small pieces, *pages*, and each is set to 0 first. (On a GPU torch
#   keeps it.)
# - **Small tables are faster than the floor of their bytes.** What fits into the *processor's cache*, some megabytes
#   of its own, need not come from outside.
# - **The two numbers are measurements.** The copy to old memory is the very step that gave the bandwidth. How far it
#   lies from its own floor tells how exact all floors are.
#
# The fused form avoids the map and its fresh memory, not the exponentials. And **launches**: to start one takes some
# microseconds, with the Python around it. For six words that is all:

# %%
# Output varies: times differ between machines.
tiny = forms(length=6, batch=1, head=1, d_head=4)
times = measure.times({name: step for name, (step, _) in tiny.items()}, rounds=5)
for name, (step, counts) in tiny.items():
    least, _ = floor(*counts, rate, bandwidth)
    print(f"{name:>18}: floor {1000 * least:.3f} µs, "
          f"measured {1000 * times[name]['ms']:3.0f} µs", end="")
    print(f", {measure.launches(step)} launches")

# %% [markdown]
# So for small inputs the floor says nothing. What counts is the calls: how many, and how long each takes to start. The
# number of launches alone does not order the forms.
#
# ### Time and memory against length
#
# We divide time and memory by the number of scores, $l^2$ for each head and sentence. Then what grows with the square
# of the length is a level line, and what grows with the length itself is halved from mark to mark. Five lengths take
# about ten seconds. You may interrupt: run the cell again, and it goes on with the next.

# %%
lengths = (64, 128, 256, 512, 1024)


def for_each_score(length):
    """{form: its nanoseconds, those of its floor, and its bytes, for each score}"""
    some, found = forms(length), {}
    times = measure.times({name: step for name, (step, _) in some.items()}, rounds=5, seconds=1)
    for name, (step, counts) in some.items():
        least, _ = floor(*counts, rate, bandwidth)
        three = 1e6 * times[name]["ms"], 1e6 * least, measure.peak_bytes(step)
        found[name] = [number / (4 * 4 * length**2) for number in three]
    return found


curves = each(lengths, for_each_score, unit="length")

# %% fold=true
# @title One panel of the figure below
def against_length(ax, pair, column):
    """Two forms, and in the row of times their floors."""
    for number, name in enumerate(pair):
        style = dict(color=plots.COLOURS[1 + number], marker=plots.MARKERS[number], markersize=4)
        ax.plot(lengths, [curves[length][name][column] for length in lengths], label=name, **style)
        if column == 0:
            floors = [curves[length][name][1] for length in lengths]
            ax.plot(lengths, floors, color=plots.COLOURS[1 + number], linestyle=":")
    slow, quick = (curves[lengths[-1]][name][column] for name in pair)
    ax.set_title(f"at {lengths[-1]}: {slow / quick:.1f} to 1", fontsize=8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, lengths)
    highest = max(three[column] for found in curves.values() for three in found.values())
    ax.set_ylim(0, 1.1 * highest)
    if column == 0:
        ax.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.15))


# %% fold=true
# @title The figure: nanoseconds and bytes for each score
pairs = [("dot product, plain", "dot product, fused"), ("Dense, plain", "Dense, fused"),
         ("Random, expanded", "Random, one map")]
fig, panels = plt.subplots(2, 3, figsize=(8, 4.8), sharex=True, sharey="row", layout="constrained")
for row, column, label in ((0, 0, "ns for each score"), (1, 2, "peak bytes for each score")):
    for panel, pair in zip(panels[row], pairs, strict=True):
        against_length(panel, pair, column)
    panels[row][0].set_ylabel(label)
panels[1][1].set_xlabel("length")
plots.show(
    fig,
    "six panels against the length, from 64 to 1024, for the dot product, Dense and Random. Above, "
    "the time for each score: in long sentences the form that writes the map down for each "
    "sentence is the slower one. Dotted, their floors. Below, the peak memory for each score: "
    "nearly level lines for the forms with a map, lower for Random's one map than for its expanded "
    "one; the fused forms fall to a half with every doubling.",
)

# %% [markdown]
# Look for a rise in the plain times, where the maps, 64 MiB at length 1024, no longer fit into the processor's cache
# (a likely reason). Random's one map grows with $l^2$ too, but there is one for the batch. Each title says how many
# times as much the first form takes at 1024. Where both forms of a pair are compute-bound and do the same products, as
# those of Random, their floors are one dotted line.
#
# ### Every mechanism, the whole layer
#
# With projections, causal, plain and with `need_weights=False`:

# %%
# Output varies: times differ between machines.
x_long, upstream = torch.randn(4, 256, 128, requires_grad=True), torch.randn(4, 256, 128)
steps = {}
for name in names:
    layer = Attention(128, 4, 256, name, causal=True)
    for kind in ("plain", "fast"):
        steps[name, kind] = lambda layer=layer, kind=kind: (
            layer(x_long, need_weights=kind == "plain")[0].backward(upstream)
        )
times = measure.times(steps, rounds=5, seconds=10, progress=True)
print(f"{'':>20} {'plain: ms':>10} {'quartiles':>15} {'fast: ms':>10} {'quartiles':>15}")
for name in names:
    cells = [f"{times[name, kind]['ms']:10.1f} {quartiles(times[name, kind]):>15}"
             for kind in ("plain", "fast")]
    print(f"{name:>20}", *cells)

# %% [markdown]
# Is a fast form slower than the plain one? That happens: the rule in `fast.choose` is a guess from other sizes, on
# other machines. (Where it chooses plain, the difference is noise.)
#
# ## On a card
#
# A GPU, *the card*, has the same two numbers, only larger. This was measured on one, and recorded in `data/results`:

# %%
record = json.loads((DATA / "results" / "speed-h200.json").read_text(encoding="utf8"))
card_rate = record["machine"]["product_operations_per_second"]
card_bandwidth = record["machine"]["copy_bytes_per_second"]
print(f"{record['card']}, {record['date']}, torch {record['versions']['torch'].split('+')[0]}, "
      f"{record['dtype']}")
print(f"{card_bandwidth / 1e12:.2f} TB a second, {card_rate / 1e12:.0f} T "
      "operations a second:", end=" ")
print(f"{card_rate / card_bandwidth:.0f} operations in the time of one byte")

# %% [markdown]
# This record **lacks** much: length 2048, where the map is largest beside the values; causal layers; writing text; and
# in training four of nine mechanisms. Its check of values was cut off.
#
# What follows is attention alone, length 512, 64 sentences, 12 heads of 64 features, in nine forms:
#
# | form | how it is computed |
# |---|---|
# | `sdpa` | torch's kernel for the dot product |
# | `dense without bias`, `dense`, `factorized_random as keys` | the same kernel, with parameter keys |
# | `random` | one map for all sentences |
# | `random + dot_product`, `factorized_dense` | a score_mod |
# | `random expanded, plain`, `factorized_dense, plain` | a map for each sentence |
#
# **Predict**: which of the nine comes closest to its floor, and which stays furthest away? How fast are Random and
# Dense, where sdpa has speed 1?

# %%
my_card = {"closest to its floor": None, "furthest from it": None, "speed of random": None,
           "speed of dense": None}

# %% [markdown]
# On this card the multiplier is far ahead of the memory. The four forms from the section on Random, as a picture, the
# *roofline*. To the right: operations for each byte. Up: the share of the multiplier that can be busy, if the bytes
# come as fast as they can. Left of the bend a form waits for bytes.

# %% fold=true
# @title The figure: two roofs, and four forms under each
fig, ax = plt.subplots(figsize=(7.5, 3), layout="constrained")
roofs = {"our round numbers, float32": (100e9 / 20e9, 2),
         "the card, bfloat16": (card_rate / card_bandwidth, 1)}
for number, (machine_name, (bend, times_bytes)) in enumerate(roofs.items()):
    colour = plots.COLOURS[1 + number]
    ax.plot([1, bend, 1000], [1 / bend, 1, 1], color=colour, linestyle=plots.LINES[number],
            label=machine_name)
    for marker, (operations, moved) in zip("osDv", table.values(), strict=True):
        per_byte = operations / moved / times_bytes
        ax.plot(per_byte, min(1, per_byte / bend), marker, color=colour)
for marker, name in zip("osDv", table, strict=True):
    ax.plot([], [], marker, color="0.4", label=name)
ax.set(xscale="log", yscale="log", xlabel="operations for each byte")
ax.set_ylabel("share of the multiplier\nthat can be busy")
fig.legend(fontsize=8, loc="outside right center", title="colour: the machine,\nmarker: the form",
           title_fontsize=8)
plots.show(
    fig,
    "two roofs that rise and bend to a level line at 1. With our round numbers the bend is at 5 "
    "operations for each byte, and all four forms lie on the level part. On the card it is further "
    "to the right, and the two forms that write a map for each sentence lie on the slope, far "
    "below 1.",
)

# %% [markdown]
# Writing the map down is what costs on a card. Now the nine, forward and backward, median of nine rounds. "spread" is
# the distance of the quartiles in percent of the median, "causal" the speed under a causal mask, against the causal
# sdpa.

# %%
core = {(row["form"], row["causal"]): row for row in record["core"] if row["length"] == 512}
shown = ["sdpa", "dense without bias", "dense", "factorized_random as keys", "random",
         "random expanded, plain", "random + dot_product", "factorized_dense",
         "factorized_dense, plain"]


def card_floor(name):
    """Milliseconds; of the expanded Random by the steps that we counted, of the others as
    recorded."""
    recorded = core[name, False]["operations"], core[name, False]["bytes"]
    counts = table["Random, expanded"] if name == "random expanded, plain" else recorded
    return floor(*counts, card_rate, card_bandwidth)[0]


print(f"{'':>26}     ms  spread  floor ms  floors  speed  causal  peak MiB")
for name in shown:
    row, causal = core[name, False], core.get((name, True))
    ms, spread, least = row["ms"], (row["high"] - row["low"]) / row["ms"], card_floor(name)
    print(f"{name:>26}  {ms:5.2f} {spread:7.1%} {least:9.2f} {ms / least:7.1f} "
          f"{row['faster_than_sdpa']:6.2f}", end=" ")
    print(f"{causal['faster_than_sdpa']:7.2f}" if causal else f"{'-':>7}",
          f"{row['peak_bytes'] / 2**20:9.0f}")

# %%
in_floors = {name: core[name, False]["ms"] / card_floor(name) for name in shown}
compare_guess(my_card, {
    "closest to its floor": min(in_floors, key=in_floors.get),
    "furthest from it": max(in_floors, key=in_floors.get),
    "speed of random": f"{core['random', False]['faster_than_sdpa']:.2f}",
    "speed of dense": f"{core['dense', False]['faster_than_sdpa']:.2f}",
})

# %% fold=true
# @title The figure: from the floor to the measured time
fig, ax = plt.subplots(figsize=(6.5, 3.3), layout="constrained")
floors, measured = [card_floor(name) for name in shown], [core[name, False]["ms"] for name in shown]
ax.hlines(range(len(shown)), floors, measured, color="0.6", zorder=1)
ax.plot(floors, range(len(shown)), "|", color=plots.COLOURS[2], markersize=12, label="floor")
ax.plot(measured, range(len(shown)), "o", color=plots.COLOURS[0], label="measured")
ax.axvline(core["sdpa", False]["ms"], color="0.6", linestyle=":")
ax.set_yticks(range(len(shown)), shown, fontsize=8)
ax.invert_yaxis()
ax.set(xscale="log", xlabel="ms, forward and backward")
ax.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
plots.show(
    fig,
    "for nine forms on the card a bar from the floor to the measured time, on a logarithmic scale. "
    "Dense without its bias ends where sdpa does, Dense with it a little later. Random has the "
    "lowest floor, but ends later than sdpa. Factorized Dense has the longest bar.",
)

# %% [markdown]
# The form closest to its floor is the wasteful one, the expanded Random: here the floor was a fair forecast. The
# plain Factorized Dense has about the same floor and is far from it, for it makes its table from $A$ and $B$ first.
# Even sdpa stays at almost three floors: its exponentials are in no count.
#
# **Dense** without its bias is within 3 % of sdpa: a little slower on a full map, not told apart under a causal mask.
# With the bias a head has 72 features where it had 64: $d_\text{head}$, one for $b_2$, and zeros up to a multiple of 8.
# That is 1.07 times the operations, and 1.31 times the time. It looks like a size that fits the blocks of the kernel
# badly; the record does not prove that.
#
# **Random** is the disappointment: by its floor more than twice as fast as sdpa, measured slower, and slower still
# under a causal mask. The spread is a hint: it looks as if the card waited for a chain of small launches. The record
# does not prove it. But in the whole layer, below, the *plain* Random was faster than this "fast" one, beyond the
# quartiles of both. So the library now makes full maps of a few plain torch operations. **This newer form has not
# been measured on a card yet.**
#
# **Factorized Dense** through a score_mod saves five sixths of the memory of its plain form, and time under a causal
# mask alone. For each score the kernel looks up two numbers, and in the backward pass many scores add to the same
# number. Neither is in our count. `random + dot_product` has the same look-ups: it and Random, whose quartiles
# overlap in floors, follow at nine to ten floors. A floor says what *cannot* be faster, not what is fast.

# %% fold=true
# @title Check: what the text says of the card holds in the record that it was written for
of_text = (record["card"], record["date"]) == ("NVIDIA H200", "2026-11-28")
layers = {row["form"]: row for row in record["layer"] if row["length"] == 512}


if of_text:
    speed = {key: row["faster_than_sdpa"] for key, row in core.items()}
    bare, biased = core["dense without bias", False], core["dense", False]
    assert {row["length"] for part in ("core", "layer")
            for row in record[part]} == {512} and "decode" not in record
    assert not any(row["causal"]
                   for row in record["layer"]) and record["skipped"][0].startswith("check ")
    assert all(abs(speed["dense without bias", causal] - 1) < 0.03 for causal in (False, True))
    assert core["sdpa", False]["high"] < bare["low"]
    assert core["dense without bias", True]["low"] < core["sdpa", True]["high"]
    more = biased["operations"] / bare["operations"], biased["ms"] / bare["ms"]
    assert "{:.2f} {:.2f}".format(*more) == "1.07 1.31"
    assert card_floor("sdpa") > 2 * card_floor("random")
    assert speed["random", True] < speed["random", False] < 0.7
    assert layers["random, plain"]["high"] < layers["random"]["low"]
    assert speed["factorized_dense", False] < speed["factorized_dense, plain", False]
    with_map, without = (core[name, False]["peak_bytes"]
                         for name in ("factorized_dense, plain", "factorized_dense"))
    assert 5.5 < with_map / without < 6.5
    low, high = ({name: core[name, False][end] / card_floor(name) for name in shown}
                 for end in ("low", "high"))
    assert low["random"] < low["random + dot_product"]
    assert high["random + dot_product"] < high["random"]
    assert sorted(shown, key=in_floors.get)[-3:] == ["random + dot_product", "random",
                                                     "factorized_dense"]
    assert 9 < in_floors["random + dot_product"] < in_floors["random"] < 10

# %% [markdown]
# ### The whole layer, training, and writing text
#
# A layer does more than attention. So gains shrink, and losses do too. Speed and peak memory against the layer with
# sdpa:

# %%
print(f"{'':>20} fast: ms    quartiles  speed memory plain: speed memory")
for name in names:
    row, slow = layers["sdpa" if name == "dot_product" else name], layers[f"{name}, plain"]
    print(f"{name:>20} {row['ms']:8.2f} {row['low']:5.2f} to {row['high']:4.2f}", end=" ")
    for one in (row, slow):
        print(f"{one['faster_than_sdpa']:6.2f} {one['peak_to_sdpa']:6.2f}", end=" " * 7)
    print()

# %% [markdown]
# One training step of a language model, against the model with sdpa:

# %%
trained = record["sizes"]["train"]
print(", ".join(f"{key} {trained[key]}" for key in ("layer", "d_model", "length", "batch")))
for row in record["train"]:
    thousands = row["tokens_per_second"] / 1000
    memory = row["peak_bytes"] / record["train"][0]["peak_bytes"]
    print(f"{row['score']:>17}: {thousands:5.0f} thousand tokens a second,", end=" ")
    print(f"speed {row['faster_than_sdpa']:.2f}, memory {memory:.2f}")
print("not measured:", *(what.removeprefix("train ") + ";" for what in record["skipped"]
                         if what.startswith("train ")))

# %% [markdown]
# Dense, bias included, trains as fast as the dot product. Random trains a fifth faster, in seven eighths of the
# memory. Of the mixtures we know the layer alone: half of the speed, or less.
#
# When a model writes, all need the values of the cache (chapter [07](07_whole_models.ipynb)), who compares tokens
# needs the keys too. Is half of the cache worth half of the time? A small model on one core, 8 texts of 128 tokens:

# %%
on_core = json.loads((DATA / "results" / "speed-cpu.json").read_text(encoding="utf8"))
for row in on_core["decode"]:
    speed, share = row["faster_than_dot_product"], Fraction(row["cache_to_dot_product"])
    print(f"{row['score']:>20}: speed {speed:.2f}, cache {str(share):>3}, "
          f"{row['launches']} launches a token")

# %% [markdown]
# No: with caches as small as these the speed goes with the launches. `random + dense` has half of the cache, and is
# slower than the dot product. Long texts and large models have not been measured here.

# %% fold=true
# @title Check: what the text says of training and writing
train, written = ({row["score"]: row for row in rows}
                  for rows in (record["train"], on_core["decode"]))
if of_text:
    assert abs(train["dense"]["faster_than_sdpa"] - 1) < 0.02
    assert 1.15 < train["random"]["faster_than_sdpa"] < 1.25
    assert 0.85 < train["random"]["peak_bytes"] / train["dot_product"]["peak_bytes"] < 0.9
    assert all(layers[name]["faster_than_sdpa"] < 0.5 for name in names if "+" in name)
if on_core["date"] == "2026-11-28":
    assert written["random + dense"]["low"] > written["dot_product"]["high"]
    by_launches = sorted(on_core["decode"], key=lambda row: row["launches"])
    assert all(one["low"] < other["high"]
               for one, other in zip(by_launches, by_launches[1:], strict=False))

# %% [markdown]
# ## Where it breaks
#
# - **The weights are gone.** Who wants to see the map, or drop some of its weights, has to write it down.
# - **Two numbers are not a machine.** The floor knows no processor's cache, no launch, no exponential and no look-up.
#   It is a bound, and a first guess for large products.
# - **One card, one day.** Measure again: `python -m synth_lib.lab bench attention --device cuda --minutes 4`.
# - **Faster is not better.** Which S learns more is asked in [08](08_what_each_score_can_do.ipynb) and
#   [13](13_train_on_gpu.ipynb).
#
# ## Three sentences to keep
#
# 1. Count operations and bytes, divide by the two numbers of the machine, and take the longer time: what must come from
#    memory is not faster, as far as these numbers are exact, and what binds tells you what to save.
# 2. Dense is attention with parameter keys, Factorized Random has parameter queries too, so kernels that never write
#    the map compute both; Random has one map for all sentences, so it is one product.
# 3. Measure warm, in turn, with the spread, and count launches and memory beside the time: the gap to the floor is
#    where the next idea is.
#
# **Where it is going next.** [Chapter 13](13_train_on_gpu.ipynb) trains all of them, and asks what they have learned.
