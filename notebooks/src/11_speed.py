# %% [markdown]
# # 11 · Speed: predict the time, then measure it
#
# **Afterwards you can say, from counted operations and bytes, how long each S must take on a machine of
# which you know two numbers. You measure it properly, you explain the gap, and you compute Dense and
# Factorized Random with a kernel that was made for the dot product.**
#
# - **Before you start:** chapters [01](01_dot_product.ipynb) to [06](06_mixtures.ipynb); of
#   [07](07_whole_models.ipynb) the cache. No word of GPU programming is assumed, and no GPU is needed.
# - **Time:** about 120 minutes, 53 of them for the four exercises.
# - **Level:** medium.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %%
import json
import time
from fractions import Fraction

import matplotlib.pyplot as plt
import torch
from einops import einsum, rearrange
from torch.nn import functional as F

from synth_lib import fast, masks, plots
from synth_lib.lab import measure
from synth_lib.attention import Attention
from synth_lib.checks import check
from synth_lib.text.corpora import DATA
from synth_lib.models import LanguageModel
from synth_lib.scores import make_score
from synth_lib.shapes import Axes

torch.set_num_threads(1)  # one core: so a machine is two numbers, and your other programs have a core left
_ = torch.manual_seed(0)

# %% [markdown]
# ## The question
#
# $$Y = \mathrm{softmax}(S(X) + \mathrm{mask})\, G(X)$$
#
# You want $Y$. The attention map, the softmax, stands in between: one weight for each pair of tokens, in
# each head. Until now every S wrote its map down. **Who really has to?**

# %%
words = "the cat sat on a mat".split()
length, head, d_head = len(words), 3, 4
print("a map has", head * length**2, "weights")
print("what it averages has", head * length * d_head, "numbers")

# %% [markdown]
# For six words the two are alike. The map grows with the square of the length, the values do not. A head of
# usual size has 64 features:

# %%
for length in (6, 512, 2048, 8192):
    weights, values = length**2, length * 64
    print(f"l {length:4}: {weights:10,} weights, {values:7,} values a head: {weights / values:6.3g} to 1")

# %% [markdown]
# At length 2048 a map is 32 times as large as what it averages. And the three kinds of S differ in what
# their maps are made of:
#
# | S | row $i$ of the map is made of | maps for 64 sentences |
# |---|---|---|
# | dot product | all tokens of the sentence | 64 |
# | Dense, Factorized Dense | token $i$, and parameters | 64 |
# | Random, Factorized Random | parameters | **1** |
#
# **Predict** before you go on: on your machine, how many times faster than the plain dot product can Random
# be? How many times faster can Dense be? Write both down. You measure them below.
#
# ## Two numbers of a machine
#
# A processor multiplies fast. But numbers live in memory, and have to come to the processor first, and the
# results have to go back. So a machine has two speeds:
#
# - **bytes a second:** how much it can read and write. Measured by copying one large table into another.
# - **operations a second:** how much it can compute. Measured by one large matrix product. A *multiply-add*
#   is one multiplication and one addition, so it counts as **two** operations.
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
# Say a step needs so many operations, and has to move so many bytes: everything it reads, once, and
# everything it writes. A machine can fetch the next numbers while it multiplies these. So the step takes at
# least the *longer* of the two times. That is its **floor**:
#
# $$\text{floor} = \max\left(\frac{\text{operations}}{\text{operations a second}},\
# \frac{\text{bytes}}{\text{bytes a second}}\right)$$
#
# If the bytes take longer, the step is *memory-bound*: a faster multiplier would not help. Else it is
# *compute-bound*. We try it on round numbers, 20 GB and 100 G operations a second:

# %%
def floor(operations, moved, rate, bandwidth):
    """Milliseconds, and what binds: operations and bytes of a step, operations and bytes a second."""
    compute, memory = 1000 * operations / rate, 1000 * moved / bandwidth
    return max(compute, memory), "compute" if compute > memory else "memory"


for side in (4, 16, 64, 256, 1024):  # a product of two square tables
    milliseconds, bound = floor(2 * side**3, 4 * 3 * side**2, rate=100e9, bandwidth=20e9)
    print(f"{side:4} x {side:4}: floor {milliseconds:9.3g} ms, bound by {bound}")

# %% [markdown]
# Operations grow with the cube of the side, bytes with the square. So a large product is compute-bound and
# a small one memory-bound. What is no product at all, such as a relu or a mask, does a handful of operations
# on each number it moves. It is memory-bound on nearly every machine. (A softmax looks like that too. But an
# exponential is more than one operation: how much more, you measure below.)
#
# ### Exercise 11.1: the floor of a matrix product
#
# *8 minutes, easy.* Do it for products that are not square.

# %% exercise="11.1" points=1
def product_floors(products, item, operations_per_second, bytes_per_second):
    """The floor of each matrix product, and what binds it.

    products: a list of three sizes, (rows, inner, columns): a table of rows × inner numbers times one of
    inner × columns numbers. item: the bytes of one number.
    Returns a list with one tuple for each product: (microseconds, "compute" or "memory").
    Both factors are read once, the result is written once.
    """
    ### BEGIN SOLUTION
    floors = []
    for rows, inner, columns in products:
        compute = 2 * rows * inner * columns / operations_per_second
        moved = rows * inner + inner * columns + rows * columns
        memory = item * moved / bytes_per_second
        floors.append((1e6 * max(compute, memory), "compute" if compute > memory else "memory"))
    return floors
    ### END SOLUTION

# %% check="11.1"
check("11.1", product_floors)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Three tables take part. How many numbers has each? And how many multiply-adds make *one* number of the
# result?
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

# %% [markdown]
# ## The dot product, counted
#
# ### Multiply-adds, counted aloud
#
# One head, six tokens, four features. We write the attention of chapter 01 as loops, and count every
# multiply-add as it happens:

# %%
def attention_counted(query, key, value):
    counted = 0
    mixed = torch.zeros_like(value)
    for i in range(len(query)):
        row = torch.zeros(len(key))
        for j in range(len(key)):
            for m in range(query.shape[1]):  # score i, j
                row[j] += query[i, m] * key[j, m]
                counted += 1
        weights = row.softmax(dim=0)
        for j in range(len(key)):
            for m in range(value.shape[1]):  # the average
                mixed[i, m] += weights[j] * value[j, m]
                counted += 1
    return mixed, counted

# %% [markdown]
# **Predict** the number first: how many pairs, how many features, how many products?

# %%
query, key, value = torch.randn(3, 6, 4).unbind()
mixed, counted = attention_counted(query, key, value)
by_torch = measure.operations(lambda: (query @ key.T).softmax(dim=-1) @ value)
print("multiply-adds, counted:", counted, " formula:", 2 * 6 * 6 * 4)
print("operations, counted by torch:", by_torch, " twice the multiply-adds:", by_torch == 2 * counted)

# %% [markdown]
# So one product of length × length × $d_\text{head}$ takes $2\,l^2 d_\text{head}$ operations, and attention
# has two of them in each head. `measure.operations` asks torch's own counter. The softmax is not in its
# count.
#
# ### The backward pass: each product twice more
#
# Training also needs gradients. Take a product $C = A B$, and let $\bar C$ be the gradient that arrives
# from above. Then
#
# $$\bar A = \bar C B^T \qquad\qquad \bar B = A^T \bar C$$
#
# Two products of the same three sizes. So forward and backward together do **three times** the operations
# of the forward pass. (We leave out the scale $1/\sqrt{d_\text{head}}$: one multiplication for each feature
# of a query, $l\,d_\text{head}$ of them, is little beside $l^2 d_\text{head}$.)

# %%
query, key, value = (torch.randn(2, 3, 6, 4, requires_grad=True) for _ in range(3))
upstream = torch.randn(2, 3, 6, 4)


def plain(query, key, value):
    return (query @ key.mT).softmax(dim=-1) @ value


def training_step(function, *tensors, upstream=upstream):
    """A function that does one forward and one backward pass."""
    return lambda: torch.autograd.grad(function(*tensors), tensors, upstream)


forward = measure.operations(lambda: plain(query, key, value))
both = measure.operations(training_step(plain, query, key, value))
print(f"forward {forward:,}, with the backward pass {both:,}: {both // forward} times")

# %% [markdown]
# ### Bytes: who writes the map, who reads it
#
# Now the memory. Write a line for each step of the plain form, and mark what it reads and writes. In code
# $\bar V$, the gradient of $V$, is `dV`. There are two sizes: *tokens* ($l\,d_\text{head}$ numbers a head:
# queries, keys, values, result, and their gradients) and *maps* ($l^2$ numbers a head).

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
tokens_moved = sum(len(tokens.split()) for _, tokens, _ in plain_steps)
maps_moved = sum(len(maps.split()) for _, _, maps in plain_steps)
print(f"{tokens_moved} times tokens, {maps_moved} times a map")

# %% [markdown]
# At $l = 2048$ and $d_\text{head} = 64$ a map is 32 times as large as the tokens. So of all the bytes,
# nearly all are the map, going out to memory and coming back:

# %%
length, d_head = 2048, 64
of_maps, of_tokens = maps_moved * length**2, tokens_moved * length * d_head
print(f"{of_maps / (of_maps + of_tokens):.0%} of the bytes belong to the map")

# %% [markdown]
# The memory that a step needs at its peak tells the same. `measure.peak_bytes` counts what torch hands out.
# Double the length, and see what the peak does:

# %%
def heads(length, batch=2, head=3, d_head=16):
    return torch.randn(batch, head, length, d_head, requires_grad=True)


def peak(function, length):
    query, key, value, upstream = (heads(length) for _ in range(4))
    step = training_step(function, query, key, value, upstream=upstream.detach())
    step()
    return measure.peak_bytes(step)


print(f"plain, from l 512 to 1024: {peak(plain, 1024) / peak(plain, 512):.0f} times the memory")

# %% [markdown]
# ### A kernel that never writes the map
#
# A *kernel* is one program that the machine runs from start to end. A matrix product is one, a softmax is
# another, and between the two the scores have to wait somewhere: in memory. A *fused* kernel does several
# steps in one go and keeps what is between them in the small, fast memory beside the multiplier.
#
# But does the softmax not need the whole row, for its sum? No. You can average while the keys come one by
# one. Keep the largest score so far, the sum so far, the average so far. When a larger score comes, shrink
# what you have:

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
# The largest score is subtracted only because $e^{100}$ is too large for a float32. It cancels in the
# division.

# %%
def equal(a, b):
    """Same shape, same dtype, same values."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


query, key, value = heads(6), heads(6), heads(6)
rows = torch.stack([one_row(row, key[0, 0], value[0, 0]) for row in query[0, 0]])
print("row by row, without a map:", equal(rows, plain(query, key, value)[0, 0]))

# %% [markdown]
# A real kernel takes a block of queries and a block of keys at a time, so that it still multiplies
# matrices. torch has such kernels behind one function:

# %%
def fused(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)


print("the same:", equal(fused(query, key, value), plain(query, key, value)))
print(f"fused, from l 512 to 1024: {peak(fused, 1024) / peak(fused, 512):.0f} times the memory")

# %% [markdown]
# Its memory grows with $l$, not with $l^2$. There is a price. The backward pass needs the weights, and
# nobody kept them. So the kernel computes the scores **again**. (It kept one number for each row, from
# which it finds the softmax.) So the backward pass has one product more: the scores again, then the gradients
# of $V$, of the weights, of $Q$ and of $K$. **Predict** the ratio of all products, fused to plain, then run:

# %%
both_fused = measure.operations(training_step(fused, query, key, value, upstream=torch.randn(query.shape)))
both_plain = measure.operations(training_step(plain, query, key, value, upstream=torch.randn(query.shape)))
print("products, fused and plain:", Fraction(both_fused, both_plain) * 6, "and", 6)

# %% [markdown]
# Fused tokens: forward it reads $Q$, $K$, $V$ and writes $Y$; backward it reads $Q$, $K$, $V$, $Y$ and $\bar
# Y$ and writes three gradients. ($Y$, because the gradient of a softmax takes off a sum over the row, and
# that sum is $\bar Y_i \cdot Y_i$.) That is 12 again. So for one forward and backward pass, a head of one
# sentence:
#
# | form | products, $2\,l^2 d_\text{head}$ operations | tokens, $l\,d_\text{head}$ numbers | maps, $l^2$ |
# |---|---|---|---|
# | plain | 6 | 12 | 11 |
# | fused | 7 | 12 | 0 |
#
# The fused form does *more* work and moves less. This function turns such a line into operations and bytes:

# %%
def work(products, tokens, maps, *, length, d_head, batch, head, item=4, shared_maps=0):
    """(operations, bytes) of a step; shared_maps: passes over a map that the whole batch shares."""
    operations = products * 2 * batch * head * length**2 * d_head
    numbers = tokens * batch * head * length * d_head + (maps * batch + shared_maps) * head * length**2
    return operations, item * numbers


PLAIN, FUSED = (6, 12, 11), (7, 12, 0)
sizes = dict(length=2048, d_head=64, batch=16, head=12)
for name, counts in {"plain": PLAIN, "fused": FUSED}.items():
    operations, moved = work(*counts, **sizes, item=2)
    print(f"{name}: {operations / 1e9:6.0f} G operations, {moved / 1e9:6.3g} GB")

# %% [markdown]
# ### Exercise 11.2: from which length on?
#
# *15 minutes, medium.* Computing again costs operations, writing down costs bytes. Which is cheaper depends
# on the machine. On one where bytes are slow, the fused form always has the lower floor. On one where
# operations are slow, there is a length from which on the *plain* form has. Find it.

# %% exercise="11.2" points=2
def crossover(d_head, item, operations_per_second, bytes_per_second, max_length):
    """From which length on the floor of the plain form is below that of the fused form.

    One head of one sentence, forward and backward, as in the table above. item: the bytes of one number.
    Returns (first, plain, fused):
    first: the smallest whole length from 1 to max_length at which the floor of plain is below that of fused,
    None if there is none. plain, fused: the floors of the two forms at max_length, in microseconds.
    """
    ### BEGIN SOLUTION
    def floors(length):
        product, tokens, table = 2 * length**2 * d_head, length * d_head, length**2
        plain = max(6 * product / operations_per_second, item * (12 * tokens + 11 * table) / bytes_per_second)
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
# The message names the parts: first, plain, fused. The check also takes a machine whose bytes are slower, and
# other values of `max_length`. If both floors are right, look at the search. "Below" is `<`, the search
# begins at 1, and `max_length` belongs to it.
#
# </details>
#
# When it is right, ask for your own machine, with the heads of 32 features that you time below:
# `crossover(32, 4, rate, bandwidth, 8192)`. Keep the number. The measurement has something to say about it.

# %% [markdown]
# ## Dense is attention with parameter keys
#
# Now the synthesizers. Look at Dense again, equation (2), without biases for a moment:
#
# $$B_{ij} = \sum_m \mathrm{relu}(W_1 X_i)_m \, (W_2)_{jm}$$
#
# A sum over features of something that belongs to $i$ and something that belongs to $j$. That is a dot
# product: *queries* $\mathrm{relu}(W_1 X_i)$, and *keys* that are no tokens at all: row $j$ of $W_2$ is a
# parameter, the same for every sentence. Two sentences, three heads:

# %%
axes = Axes(batch=2, head=3, d_head=4, length=6, d_model=12)
layer = Attention(d_model=12, head=3, max_length=8, score="dense", bias=False)
x = torch.randn(2, 6, 12)

hidden = layer.score.hidden(x).relu()
query = rearrange(hidden, "batch query (head d_head) -> batch head query d_head", head=3)
query = axes(query, "batch head query d_head", "query")
value = rearrange(layer.value(x), "batch key (head d_head) -> batch head key d_head", head=3)
value = axes(value, "batch head key d_head", "value")

# %% [markdown]
# In the library $W_2$ has the axes head, d_head, and one column for each of `max_length` positions. Cut it,
# turn it, and there are the keys. They have **no batch axis**:

# %%
key = layer.score.weight[:, :, :6].mT
key = axes(key, "head key d_head", "key")

# %% [markdown]
# ### Loops: what is compared with what?

# %%
def dense_with_loops(query, key, value):
    mixed = torch.zeros_like(value)
    for b in range(2):
        for h in range(3):
            for i in range(6):
                scores = torch.stack([query[b, h, i] @ key[h, j] for j in range(6)])  # no b on the key
                mixed[b, h, i] = scores.softmax(dim=0) @ value[b, h]
    return mixed


wanted = dense_with_loops(query, key, value)
wanted = axes(wanted, "batch head query d_head", "wanted")

# %% [markdown]
# ### A matrix product

# %%
scores = einsum(query, key, "batch head query d_head, head key d_head -> batch head query key")
by_product = scores.softmax(dim=-1) @ value
print("same as the loops:", equal(axes(by_product, "batch head query d_head"), wanted))

# %% [markdown]
# ### The same from torch's own kernel
#
# `expand` gives the keys a batch axis without copying them: every sentence reads the same memory. The scale
# must be 1. Only the dot product is divided by $\sqrt{d_\text{head}}$, and the kernel does that unless you
# forbid it.

# %%
by_kernel = F.scaled_dot_product_attention(query, key.expand(2, -1, -1, -1), value, scale=1.0)
print("same as the loops:", equal(axes(by_kernel, "batch head query d_head"), wanted))

with_default_scale = F.scaled_dot_product_attention(query, key.expand(2, -1, -1, -1), value)
print("with the scale forgotten:", equal(with_default_scale, wanted))

# %% [markdown]
# So every fused kernel, made by other people for the dot product, computes Dense exactly.
#
# ### The bias is one more feature
#
# And the bias $b_2$? It adds a number to every score of column $j$. Give each query one more feature, a 1,
# and put $b_2$ beside it in the keys: $1 \cdot (b_2)_j$. A head then has 5 features where it had 4.

# %%
layer = Attention(d_model=12, head=3, max_length=8, score="dense")  # with biases


def dense_by_kernel(layer, x):
    query = rearrange(layer.score.hidden(x), "batch query (head d_head) -> batch head query d_head", head=3)
    query = torch.cat([query.relu(), torch.ones(2, 3, 6, 1)], dim=-1)
    key = torch.cat([layer.score.weight[:, :, :6].mT, layer.score.bias[:, :6, None]], dim=-1)
    value = rearrange(layer.value(x), "batch key (head d_head) -> batch head key d_head", head=3)
    axes_more = Axes(batch=2, head=3, length=6, d_head=5)  # one feature more
    query, key = axes_more(query, "batch head query d_head"), axes_more(key, "head key d_head")
    value = axes_more(F.pad(value, (0, 1)), "batch head key d_head")  # a 0, so that all three have 5
    mixed = F.scaled_dot_product_attention(query, key.expand(2, -1, -1, -1), value, scale=1.0)[..., :4]
    return layer.output(rearrange(mixed, "batch head query d_head -> batch query (head d_head)"))

# %% [markdown]
# Values are not enough, the gradients of all parameters must agree with the library's plain layer too:

# %%
y, _ = layer(x)
ours = dense_by_kernel(layer, x)
print("the output:", equal(ours, y))
upstream = torch.randn(2, 6, 12)
parameters = dict(layer.named_parameters())
of_ours, of_layer = (torch.autograd.grad(result, list(parameters.values()), upstream) for result in (ours, y))
for name, one, other in zip(parameters, of_ours, of_layer, strict=True):
    print(f"{name:>20}: {equal(one, other)}")

# %% [markdown]
# ### Right, and silently slow
#
# Why did we add a 0 to the values? torch has several kernels behind that one function, and each has
# conditions. On a CPU: queries, keys and values must have the same number of features, and the same batch
# axis, if only by `expand`. If no kernel fits, torch takes the plain form, **without a word**. The result
# is right. To start one operation is a *launch*. `measure.launches` counts them, so it tells:

# %%
query, key, value = heads(256).detach(), heads(256, batch=1).detach(), heads(256).detach()
kinds = {
    "expanded keys": (query, key.expand(2, -1, -1, -1), value),
    "keys with batch axis 1": (query, key, value),
    "fewer features in the values": (query, key.expand(2, -1, -1, -1), value[..., :12]),
}
for name, tensors in kinds.items():
    right = equal(fused(*tensors), plain(*tensors))
    launches = measure.launches(lambda tensors=tensors: fused(*tensors))
    print(f"{name:>28}: right {right}, {launches} launches")

# %% [markdown]
# One launch is the kernel. Many are the plain form: scores, softmax, average, written one after the other.
# Does it make a map? The peak says so:

# %%
for name, tensors in kinds.items():
    needed = measure.peak_bytes(lambda tensors=tensors: fused(*tensors))
    print(f"{name:>28}: at least a map of memory: {needed >= 4 * 2 * 3 * 256**2}")

# %% [markdown]
# Which conditions a kernel has differs between CPU and GPU, and between versions of torch. So do not
# believe that you got the fast form. Look.
#
# ## Random: one map for all sentences
#
# Random needs no trick. Its map does not read the tokens, so there is one for each head, for the whole
# batch. But you have to *use* that. Much public code first gives $R$ a batch axis. `expand` copies nothing,
# but the softmax then writes a map for each sentence:

# %%
def random_expanded(R, value):
    """The scores "head query key", spread over the batch, then a softmax for each sentence."""
    return R.expand(len(value), -1, -1, -1).softmax(dim=-1) @ value


def random_one_map(R, value):
    """One softmax, one matrix product for each head, whatever the batch."""
    features = rearrange(value, "batch head key d_head -> head (d_head batch) key")
    mixed = features @ R.softmax(dim=-1).mT
    return rearrange(mixed, "head (d_head batch) query -> batch head query d_head", batch=len(value))

# %% [markdown]
# The second form puts the values of all sentences side by side, as **one** matrix. To see how, give each
# number a name: hundreds say the sentence, tens the position, ones the feature.

# %%
axes_small = Axes(batch=2, head=1, key=3, d_head=4)
sentence, position, feature = torch.arange(2), torch.arange(3), torch.arange(4)
named = 100 * (sentence[:, None, None, None] + 1) + 10 * position[:, None] + feature
named = axes_small(named, "batch head key d_head", "named")
matrix = rearrange(named, "batch head key d_head -> head (d_head batch) key")
print(axes_small(matrix, "head (d_head batch) key")[0])

# %% [markdown]
# A row is one feature of one sentence at all positions. The map mixes positions, and treats all rows alike. So
# one product with the map serves 2 · 4 rows, or 64 · 64 of them.

# %%
R, value = torch.randn(3, 6, 6, requires_grad=True), torch.randn(2, 3, 6, 4, requires_grad=True)
R, value = axes(R, "head query key", "R"), axes(value, "batch head key d_head", "value")
upstream = torch.randn(2, 3, 6, 4)
results = [training_step(form, R, value, upstream=upstream)() for form in (random_expanded, random_one_map)]
print("values:   ", equal(random_expanded(R, value), random_one_map(R, value)))
print("gradients:", [equal(one, other) for one, other in zip(*results, strict=True)])

# %% [markdown]
# And why not simply `weights @ value`, where the map has no batch axis? The values are right. But for `@`
# torch first copies the map, one for each sentence. einsum, like the second form, puts the sentences side by
# side:

# %%
one_map, of_many = torch.randn(3, 256, 256), torch.randn(16, 3, 256, 8)
to_mixed = "head query key, batch head key d_head -> batch head query d_head"
products = {"@": lambda: one_map @ of_many, "einsum": lambda: einsum(one_map, of_many, to_mixed)}
for name, product in products.items():
    needed = measure.peak_bytes(product) / (4 * one_map.numel())
    print(f"{name:>6}, 16 sentences: {needed:.1f} times the memory of the map")

# %% [markdown]
# The operations are the same in both forms: one product forward, two backward, 3 where a fused kernel has 7.
# What differs is the maps. **Predict** how often each form moves one, with the list above as a model: no $Q$
# and $K$, so their gradients fall away. Then unfold the answer.
#
# <details><summary>The bytes of Random</summary>
#
# | form of Random | products | tokens | maps of each sentence | maps for all together |
# |---|---|---|---|---|
# | expanded | 3 | 6 | 9 | 0 |
# | one map | 3 | 6 | 0 | 8 |
#
# Expanded: softmax 2, average 1, gradient of $V$ 1, of the weights 1, of the scores 3, and 1 to add up the
# batch. One map: the same without the last.
#
# </details>
#
# In the size of a real model, 64 sentences of 512 tokens, 12
# heads of 64 features, numbers of 2 bytes:

# %%
EXPANDED, ONE_MAP = (3, 6, 9), (3, 6, 0)
sizes = dict(length=512, d_head=64, batch=64, head=12, item=2)
table = {
    "dot product, plain": work(*PLAIN, **sizes), "dot product or Dense, fused": work(*FUSED, **sizes),
    "Random, expanded": work(*EXPANDED, **sizes), "Random, one map": work(*ONE_MAP, **sizes, shared_maps=8),
}
for name, (operations, moved) in table.items():
    print(f"{name:>28}: {operations / 1e9:4.0f} G operations, {moved / 1e9:5.3g} GB")

# %% [markdown]
# Fewest operations *and* fewest bytes: by its floor, Random is the fastest of all. Whether it is, you will
# measure.
#
# ## Factorized Random: queries and keys are parameters
#
# $$B = R_1 R_2^T \tag{7}$$
#
# Row $i$ of $R_1$ times row $j$ of $R_2$. Here **both** sides of the dot product are parameters. There are
# two ways, then. Make the map $R_1 R_2^T$ once, $l^2 k$ multiply-adds a head, and use it for the whole
# batch, as Random does. Or give $R_1$ and $R_2$ to a fused kernel, and never make a map. The second way
# repeats the scores for every sentence, but needs no $l^2$ numbers. For a long text that decides.
#
# The rank $k$ is small, 8 in the paper. A kernel wants as many features in queries and keys as in the
# values. What could you fill them up with, so that no weight changes?
#
# ### Exercise 11.3: Factorized Random for a fused kernel
#
# *15 minutes, medium.* For a *causal* layer: no query attends to a later key. Write the arguments of
# torch's `F.scaled_dot_product_attention`. The check calls it with them and with the values. It looks at
# the numbers, and at every tensor that your function and the kernel make: none may hold length × length
# numbers for each head. A mask that all heads share may.

# %% exercise="11.3" points=2
def kernel_arguments(R1, R2, value):
    """A dict of arguments for F.scaled_dot_product_attention(value=value, **arguments), as a causal layer.

    R1, R2: head max_length rank, with rank < d_head. value: batch head key d_head. The sentences stand at the
    first positions; they may be shorter than max_length.
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

# %% [markdown]
# ## What a dot product of few features cannot hold
#
# A table of scores that is a dot product of $n$ features has at most rank $n$ (chapter 05). So count: the
# rank of the scores tells how many features a kernel would need. Twelve positions, heads of six features, and
# four random sentences:

# %%
many = torch.randn(4, 12, 12, dtype=torch.float64)
for name, options in [
    ("dense", {"bias": False}), ("dense", {}), ("factorized_random", {"rank": 3}),
    ("factorized_dense", {"a": 3, "b": 4}),
]:
    score = make_score(name, 12, 2, 12, **options).double()
    rank = torch.linalg.matrix_rank(score(many)[:, 0].flatten(0, 1)).item()
    print(f"{name:>17}: {rank:2} features for 12 positions", options or "")

narrow = make_score("factorized_dense", 4, 2, 36).double()  # heads of 2 features
rank = torch.linalg.matrix_rank(narrow(torch.randn(4, 36, 4, dtype=torch.float64))[:, 0].flatten(0, 1)).item()
print("factorized_dense, heads of 2 features:", rank, "features for 36 positions")
print("products of two of 65 numbers:", 65 * 66 // 2)

# %% [markdown]
# Dense needs its $d_\text{head}$ features, and one more for the bias. Factorized Random needs $k$. Factorized
# Dense, $A_{j \bmod a} \, B_{\lfloor j / a \rfloor}$, needs as many features as there are positions: every position
# has a product of its own. (There is a limit. $A$ and $B$ are made of the same $h = d_\text{head}$ hidden
# numbers and the 1 of the bias, so a score is a sum of products of two of these $h + 1$ numbers, of which
# there are $(h + 1)(h + 2) / 2$: 6 for heads of 2 features, more than 2000 for heads of 64.) A dot product of
# $l$ features *is* a map, so nothing is won.
#
# What helps is a kernel that can be told more. There are two ways:
#
# - a **bias:** a table of numbers that the kernel adds to its scores. It is read from memory, $l^2$ numbers
#   a head. Fine for $R$, which is there anyway, once. Useless for Factorized Dense, whose table differs for
#   each sentence.
# - a **score_mod:** a small function that is *compiled*, translated for the machine, together with the
#   kernel. It is called for each score: "this is score $i, j$; what should it become?" There it multiplies
#   $A_{i,\,j \bmod a}$ by $B_{i,\,\lfloor j/a \rfloor}$ on the spot. torch calls this FlexAttention, and
#   trains with it on a GPU alone.
#
# ### Mixtures: features side by side
#
# A mixture of two dot products is a dot product again. Put the features side by side, and let the queries
# carry the weights $\alpha$:
#
# $$\alpha_1\, q_i \cdot k_j + \alpha_2\, q'_i \cdot k'_j =
# [\alpha_1 q_i,\ \alpha_2 q'_i] \cdot [k_j,\ k'_j]$$

# %%
mixture = make_score("dense + dot_product", 12, 3, 6, bias=False)
dense, dot = mixture.parts
alpha, other_alpha = mixture.weights


def split(features):
    return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=3)


of_dense, of_dot = split(dense.hidden(x)).relu(), split(dot.query(x)) / 4**0.5
both_queries = torch.cat([alpha * of_dense, other_alpha * of_dot], dim=-1)
both_keys = torch.cat([dense.weight.mT.expand(2, -1, -1, -1), split(dot.key(x))], dim=-1)
axes_both = Axes(batch=2, head=3, length=6, d_head=8)  # 4 features of each
scores = axes_both(both_queries, "batch head query d_head") @ axes_both(both_keys, "batch head key d_head").mT
print("the scores of the mixture:", equal(scores, mixture(x)))

# %% [markdown]
# ## The causal mask: half of the work is for nothing
#
# A language model must not look ahead. The plain way computes every score, then sets those above the
# diagonal to minus infinity. Count the operations with and without the mask:

# %%
def random_causal(R, value):
    future = ~masks.causal(R.shape[-1])[0, 0]
    return random_one_map(R.masked_fill(future, -torch.inf), value)


R, value = torch.randn(3, 512, 512), torch.randn(2, 3, 512, 4)
with_mask = measure.operations(lambda: random_causal(R, value))
print("the same number of operations:", with_mask == measure.operations(lambda: random_one_map(R, value)))

# %% [markdown]
# A weight of 0 costs as much as any other. Half of the work is thrown away. To skip every single 0 would
# mean rows of all lengths, and no matrix product. So cut the queries into **blocks**. A block multiplies
# all keys up to its own end, and no further:

# %%
fig, panels = plt.subplots(1, 4, figsize=(6, 2), layout="constrained")
for panel, blocks in zip(panels, (1, 2, 4, 8), strict=True):
    position = torch.arange(16)
    end = (position * blocks // 16 + 1) * 16 // blocks  # the block of query i ends here
    shade = (position < end[:, None]).float() + (position <= position[:, None])
    panel.imshow(shade, cmap="Greys", vmin=0, vmax=3)
    panel.set_title(f"blocks: {blocks}", fontsize=9)
    panel.set_xticks([])
    panel.set_yticks([])
panels[0].set_ylabel("query")
panels[0].set_xlabel("key")
plots.show(
    fig,
    "a causal map of 16 tokens in 1, 2, 4 and 8 blocks of queries. Dark: needed. Light grey: multiplied "
    "though it is 0. White: left out. The more blocks, the closer the stairs are to the diagonal.",
)

# %% [markdown]
# With $n$ equal blocks, block 1 does $1/n$ of a full row, block 2 does $2/n$, and so on. Together, of the
# work of the full product,
#
# $$\frac{1}{n}\left(\frac1n + \frac2n + \dots + \frac nn\right) = \frac{n + 1}{2n}$$
#
# **Predict** what 2 and 8 blocks leave.

# %%
for blocks in (1, 2, 4, 8, 64):
    stairs = sum(Fraction(block, blocks) for block in range(1, blocks + 1)) / blocks
    print(f"blocks: {blocks:2}, work left {str(stairs):>6}, formula {Fraction(blocks + 1, 2 * blocks)}")

# %% [markdown]
# It never gets below one half, and each block is a product of its own, which has to be started. So a few
# blocks are best.
#
# ### Exercise 11.4: leave out the upper half
# *15 minutes, medium.* One map for the batch, as in Random, but causal. The check compares the numbers.
# Then it puts a NaN, "not a number", in place of one key's values after the other. 0 times NaN is NaN, so
# it sees which query multiplies which key. Every product is accepted, but you know why `@` is not the one to
# take.

# %% exercise="11.4" points=2
def causal_product(scores, value, size):
    """softmax(scores + causal mask) times the values, in blocks of `size` queries.

    scores: head query key, as many queries as keys. value: batch head key d_head.
    size: queries in a block; the last block may be shorter.
    Returns the mixed values, batch head query d_head. One matrix product with the values for each block:

        block 0: queries 0 .. size, keys 0 .. size (the end never included)
        block 1: queries size .. 2 * size, keys 0 .. 2 * size
        and so on. In each, query i has no weight for the keys after i.

    Only this product must be in blocks. The softmax may be made for the whole map at once, or for each block.
    """
    ### BEGIN SOLUTION
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    parts = []
    for start in range(0, value.shape[2], size):
        stop = min(start + size, value.shape[2])
        rows, before = weights[:, start:stop, :stop], value[:, :, :stop]
        parts.append(einsum(rows, before, "head query key, batch head key d_head -> batch head query d_head"))
    return torch.cat(parts, dim=2)
    ### END SOLUTION

# %% check="11.4"
check("11.4", causal_product)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Forget the blocks, and write the full product first: mask, softmax, then `einsum` of a map "head query key"
# and values "batch head key d_head". Then find out which rows of the map, and which columns, one block needs.
#
# </details>
# <details><summary>Hint 2: the values are right, what is multiplied is not</summary>
#
# A block that reads all columns of its rows multiplies zeros. Cut the columns of the map, and with them the
# values.
#
# </details>
# <details><summary>Hint 3: the last block</summary>
#
# `range(0, length, size)` gives the starts of all blocks, that of the shorter one too. A slice may end
# beyond the end, but be sure what your `stop` is.
#
# </details>
#
# Does the library do it? Its causal product for Random, forward and backward, against the full one:

# %%
def in_blocks(R, value):
    return fast.one_map(R, value, causal=True)


R, value = torch.randn(3, 1024, 1024, requires_grad=True), torch.randn(2, 3, 1024, 8, requires_grad=True)
upstream = torch.randn(2, 3, 1024, 8)
full = measure.operations(training_step(random_causal, R, value, upstream=upstream))
stairs = measure.operations(training_step(in_blocks, R, value, upstream=upstream))
print("of the full work:", Fraction(stairs, full), " formula for 8 blocks:", Fraction(8 + 1, 2 * 8))

# %% [markdown]
# ## `need_weights=False`: the library's kernels
#
# All of this sits behind the class that you know. Call a layer with `need_weights=False`: you get the same
# $Y$, no map, and the layer may take the fastest kernel for its S:
#
# | kernel | S | what it is |
# |---|---|---|
# | one map | Random, Factorized Random | one product for the batch, causal in blocks |
# | sdpa | dot product, Dense, their mixture; on a GPU a large Factorized Random | torch's fused kernel |
# | flex | Factorized Dense, other mixtures; on a GPU | FlexAttention with a score_mod |
# | plain | where none is faster on this device, a hook hangs on S, or dropout acts on the map | as always |
#
# `fast.choose` says which one is taken on this device. Four masks, nine S, two sentences of up to 256 tokens,
# and each time the question whether its $Y$ equals that of plain (where plain is the choice, it must):

# %%
names = ["dot_product", "dense", "random", "fixed_random", "factorized_dense", "factorized_random",
         "random + dot_product", "dense + dot_product", "random + dense"]
x_long = torch.randn(2, 256, 32)
padding = masks.padding([256, 200], 256)
print(f"{'':>20} {'no mask':>15} {'padding':>15} {'causal':>15} {'both':>15}")
for name in names:
    cells = []
    for causal, mask in ((False, None), (False, padding), (True, None), (True, padding)):
        layer = Attention(32, 4, 256, name, causal=causal)
        same = equal(layer(x_long, mask, need_weights=False)[0], layer(x_long, mask)[0])
        kernel = fast.choose(layer.score, x_long, 256, mask, causal)
        cells.append(f"{kernel}: {same}")
    print(f"{name:>20}", *(f"{cell:>15}" for cell in cells))

# %% [markdown]
# On a CPU, Dense takes its kernel for two sentences or more of 256 tokens, and under a causal mask from 128
# tokens on, even for one sentence. Smaller maps leave little to save. Random has its blocks under a causal mask
# alone, from 256 tokens on. Else it stays plain for another reason: the library's plain kernel already makes one
# map for the batch, or, with padding, needs one for each sentence. And Factorized Dense, and the mixtures of
# Random with an S that reads tokens, would need flex. A GPU has that, for inputs of the full length, from 128
# tokens on, if torch can compile it there. The gradients are equal too, which the tests of the library show for
# each kernel, mask and dtype.
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
# They do not agree. Other programs run, and the processor changes its speed. A first call may also have to
# set up what then stays. On a GPU it is worse: a call only *starts* the kernels and returns at once, so a
# clock that does not wait for the GPU measures nothing.
#
# `measure.times` warms each step up, then calls all of them **in turn**, round after round, so that a slow
# moment of the machine meets all. It gives the *median* of the rounds, and the *quartiles*: half of the
# rounds lie between them. Two forms whose quartiles overlap we do not call different. (Five rounds, as here,
# are few. For a result that you publish, take more.)
#
# Six forms, forward and backward. Dense is here without $b_2$: its floor is that of the dot product. Its keys
# are counted as the kernel reads them, once for each sentence.

# %%
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

# %% [markdown]
# First the check that every formula is right: the operations that torch counts are those that we predict.

# %%
for name, (step, (operations, _)) in forms(length=64).items():
    assert measure.operations(step) == operations
    print(f"{name:>18}: {operations:11,} operations, as predicted; {measure.launches(step):2} launches")

# %% [markdown]
# Now the times at length 1024. The floor comes from the two numbers of *your* machine. **Predict** which
# form comes closest to its floor, and which stays furthest away.

# %%
# Output varies: times differ between machines.
six = forms(length=1024)
times = measure.times({name: step for name, (step, _) in six.items()}, rounds=5)
print(f"{'':>18}  floor ms  bound by  measured ms   quartiles        floors  speed")
for name, (_, (operations, moved)) in six.items():
    least, bound = floor(operations, moved, rate, bandwidth)
    ms, low, high = times[name].values()
    print(f"{name:>18}  {least:8.1f}  {bound:>8}  {ms:11.1f}   {low:6.1f} to {high:6.1f}", end=" ")
    print(f"{ms / least:7.1f}  {times['dot product, plain']['ms'] / ms:5.1f}")
    assert ms > least / 3  # a floor, with room for a processor that changes its speed

# %% [markdown]
# "speed" is against the plain dot product: look up your two guesses. "floors" is the measured time in
# floors. No form gets down to 1, and they are not equally far from it.
#
# Now recall exercise 11.2. From which length on should plain win here, and does it?

# %%
# Output varies: it comes from your machine's two numbers, and from the times above.
def plain_wins_from(rate, bandwidth, **sizes):
    """The smallest length up to 8192 at which the plain form has the lower floor, or None."""
    for length in range(1, 8193):
        (of_plain, _), (of_fused, _) = (
            floor(*work(*counts, length=length, **sizes), rate, bandwidth) for counts in (PLAIN, FUSED)
        )
        if of_plain < of_fused:
            return length


print("by the floors, plain wins from length", plain_wins_from(rate, bandwidth, d_head=32, batch=4, head=4))
of_plain, of_fused = six["dot product, plain"][1], six["dot product, fused"][1]
ratio = floor(*of_plain, rate, bandwidth)[0] / floor(*of_fused, rate, bandwidth)[0]
print(f"plain takes, by the floors, {ratio:.2f} times as long as fused,", end=" ")
print(f"measured {times['dot product, plain']['ms'] / times['dot product, fused']['ms']:.2f} times")

# %% [markdown]
# If your machine is like the one of the stored numbers, the floors name the wrong winner. Both forms are
# compute-bound. Then the longer of the two times is that of the operations, and the bytes of the map count
# for *nothing*. On a machine they do count. It does not fetch all of the map while it multiplies, and a
# softmax multiplies nothing, so there is nothing to hide behind. A floor is right about what it forbids. It
# is not made to say which of two forms is faster.
#
# Compare the two forms of Random, too: the same operations, and a floor that is the same where operations
# bind. What the floor misses must be in the map.
#
# ### Where the time goes
#
# Take the plain forward pass apart, at a length where the map is large. Beside its three steps stands a
# copy of the map: two passes, no operations at all.

# %%
# Output varies: times differ between machines.
length = 1024
query, key, value = (heads(length, 4, 4, 32).detach() for _ in range(3))
scores, target = query @ key.mT, torch.empty(4, 4, length, length)
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
# Scores and softmax write a map into fresh memory, so part of their time is that of the copy. Take the
# difference of the two copies off, and see what is left. What to look for in your numbers:
#
# - **Products of few features are slower than the rate says.** The rate was measured on a product of 1024 ×
#   1024 × 1024. Here the inner size is 32: there is less to reuse between two fetches.
# - **A softmax is no copy.** It computes an exponential for each score. That is in no count of products.
# - **Fresh memory costs.** If the copy to fresh memory is the slower one, compare the two: same bytes, same
#   direction. A program gets a large new table from the operating system in small pieces, *pages*, and each
#   page is set to 0 first. A map that is made anew in each step pays that each step. (On a GPU torch keeps
#   the memory and hands it out again.)
# - **Small tables are faster than the floor of their bytes.** A processor has some megabytes of memory of
#   its own, the *processor's cache*. What fits there need not come from outside. The figure below shows it.
#
# The fused form never writes the map and never reads it back, and it needs no fresh memory for it. It cannot
# avoid the exponentials.
#
# And **launches**: to start one takes some microseconds, with the Python around it, before anything is
# multiplied. For long tables that is nothing, for six words it is all:

# %%
# Output varies: times differ between machines.
tiny = forms(length=6, batch=1, head=1, d_head=4)
times = measure.times({name: step for name, (step, _) in tiny.items()}, rounds=5)
for name, (step, (operations, moved)) in tiny.items():
    least, _ = floor(operations, moved, rate, bandwidth)
    count = measure.launches(step)
    took = 1000 * times[name]["ms"]
    print(f"{name:>18}: floor {1000 * least:.3f} µs, measured {took:3.0f} µs, {count} launches")

# %% [markdown]
# So for small inputs the floor says nothing, and the form with the fewest and simplest calls wins. (Some have
# fewer launches than above: with one sentence and one head there is nothing to copy or to rearrange.)
#
# ### Time and memory against length
#
# The same six forms from 64 to 1024 tokens. The two scales are logarithmic: a line twice as steep is a
# square.

# %%
lengths = (64, 128, 256, 512, 1024)
curves = {}
for length in lengths:
    some = forms(length)
    times = measure.times({name: step for name, (step, _) in some.items()}, rounds=5, seconds=1)
    for name, (step, counts) in some.items():
        least, _ = floor(*counts, rate, bandwidth)
        curves[name, length] = times[name]["ms"], least, measure.peak_bytes(step) / 2**20
del some

# %%
def against_length(ax, pair, column):
    """Two forms, and in the row of times their floors, on two logarithmic scales."""
    for number, name in enumerate(pair):
        style = dict(color=plots.COLOURS[1 + number], marker=plots.MARKERS[number], markersize=4)
        ax.plot(lengths, [curves[name, length][column] for length in lengths], label=name, **style)
        if column == 0:
            floors = [curves[name, length][1] for length in lengths]
            ax.plot(lengths, floors, color=plots.COLOURS[1 + number], linestyle=":")
    slow, quick = (curves[name, lengths[-1]][column] for name in pair)
    text = f"at {lengths[-1]}: {slow / quick:.1f} to 1"
    ax.text(0.97, 0.05, text, transform=ax.transAxes, ha="right", fontsize=8)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.legend(fontsize=7, loc="upper left")

# %%
pairs = [("dot product, plain", "dot product, fused"), ("Dense, plain", "Dense, fused"),
         ("Random, expanded", "Random, one map")]
fig, panels = plt.subplots(2, 3, figsize=(7.5, 4.6), dpi=68, sharex=True, sharey="row", layout="constrained")
for row, column, label in ((0, 0, "ms, forward and backward"), (1, 2, "peak memory (MiB)")):
    for panel, pair in zip(panels[row], pairs, strict=True):
        against_length(panel, pair, column)
    panels[row][0].set_ylabel(label)
panels[1][1].set_xlabel("length")
plots.show(
    fig,
    "six panels against the length, from 64 to 1024, for the dot product, Dense and Random. Above, the "
    "times: in short sentences both forms of each take about as long; in long ones the form that writes the "
    "map down for each sentence is the slower one. Dotted, their floors. Below, the peak memory: that form "
    "rises with the square of the length, the fused ones in proportion to it. Random's one map rises with "
    "the square too, but stays lower.",
)

# %% [markdown]
# Look for a jump in the plain lines of the times, where they rise faster than the square. The cell below
# tells how large a map of all four sentences and heads is. A likely reason for a jump: up to there a map fits
# into the processor's cache, and one length further it has to go out to memory.
#
# Times differ between machines, memory does not. From 512 to 1024 tokens:

# %%
print("MiB of a map:", {length: 4 * 4 * 4 * length**2 / 2**20 for length in lengths})
for name in six:
    print(f"{name:>18}: {curves[name, 1024][2] / curves[name, 512][2]:.0f} times the memory")
ratio = curves["Random, expanded", 1024][2] / curves["Random, one map", 1024][2]
print(f"at 1024 tokens, four sentences, the expanded map needs {ratio:.0f} times the memory of one map")

# %% [markdown]
# Random's one map also grows with $l^2$, but there is one for the batch. (And $R$ has $l^2$ parameters
# anyway.)
#
# ### Every mechanism, the whole layer
#
# A layer has projections as well, $2\,l\,d^2$ operations each. Here are all nine, causal, plain and with
# `need_weights=False`. The operations are counted, since a mixture has no short formula:

# %%
# Output varies: times differ between machines.
x_long = torch.randn(4, 256, 128, requires_grad=True)
upstream = torch.randn(4, 256, 128)
steps = {}
for name in names:
    layer = Attention(128, 4, 256, name, causal=True)
    for kind in ("plain", "fast"):
        steps[name, kind] = lambda layer=layer, kind=kind: (
            layer(x_long, need_weights=kind == "plain")[0].backward(upstream)
        )
times = measure.times(steps, rounds=5, seconds=4)
print(f"{'':>21}{'plain: floor':>13}{'ms':>7}{'quartiles':>15}{'fast: floor':>13}{'ms':>7}{'quartiles':>15}")
for name in names:
    print(f"{name:>20}", end=" ")
    for kind in ("plain", "fast"):
        ms, low, high = times[name, kind].values()
        least = 1000 * measure.operations(steps[name, kind]) / rate
        print(f"{least:13.1f}{ms:7.1f}{low:8.1f} -{high:5.1f}", end="")
    print()

# %% [markdown]
# The floor here is that of the operations alone. torch counts a fused causal kernel as if it did the whole
# square, so such a floor can be too high by what the kernel leaves out.
#
# Is a fast form slower than the plain one on your machine? That happens: the rule in `fast.choose` is a guess
# from measurements of other sizes, on other machines. Nobody can tell without measuring. (Where it chooses plain,
# both columns time the same kernel, and their difference is the noise.)
#
# ## On a card
#
# A GPU has the same two numbers, only larger. It often sits on a board of its own, and people call it *the
# card*. These numbers were measured on one, and recorded in `data/results`,
# with everything that is needed to judge them:

# %%
record = json.loads((DATA / "results" / "speed-h200.json").read_text(encoding="utf8"))
card_rate = record["machine"]["product_operations_per_second"]
card_bandwidth = record["machine"]["copy_bytes_per_second"]
measured = record["sizes"]["attention"][0]
torch_version = record["versions"]["torch"].split("+")[0]
print(f"{record['card']}, {record['date']}, torch {torch_version}, {record['dtype']}")
print(f"{card_bandwidth / 1e12:.2f} TB a second, {card_rate / 1e12:.0f} T operations a second:", end=" ")
print(f"{card_rate / card_bandwidth:.0f} operations in the time of one byte")
heads_of = f"{measured['head']} heads of {measured['d_head']}"
print(f"batch {measured['batch']}, length {measured['length']}, {heads_of}")
print(f"{record['check']['cases']} checks of values and gradients, {record['check']['wrong']} wrong")
print("code:", record["code"])

# %% [markdown]
# On this card the multiplier is far ahead of the memory. So what is compute-bound on your CPU may be
# memory-bound here. The four lines from the section on Random, by their floors. **Predict** which of them
# change sides.

# %%
for name, (operations, moved) in table.items():  # numbers of 2 bytes
    on_card, bound = floor(operations, moved, card_rate, card_bandwidth)
    _, bound_here = floor(operations, 2 * moved, rate=100e9, bandwidth=20e9)  # float32 has twice the bytes
    print(f"{name:>28}: floor {on_card:.2f} ms, bound by {bound:>7}; with our round numbers by {bound_here}")
found_on_card = plain_wins_from(card_rate, card_bandwidth, d_head=64, batch=64, head=12, item=2)
found_here = plain_wins_from(100e9, 20e9, d_head=64, batch=64, head=12)
print("plain has the lower floor from length", found_here, "with our round numbers; on the card:", end=" ")
print(found_on_card)

# %% [markdown]
# Here is the same as a picture, known as the *roofline*. To the right: operations for each byte that is
# moved. Up: the share of the multiplier that can be busy, if the bytes come as fast as they can. Left of
# the bend a form waits for bytes.

# %%
fig, ax = plt.subplots(figsize=(6.5, 3.2), dpi=80, layout="constrained")
roofs = {"round numbers, float32": (100e9 / 20e9, 2), "the card, bfloat16": (card_rate / card_bandwidth, 1)}
for number, (machine_name, (bend, times_bytes)) in enumerate(roofs.items()):
    colour = plots.COLOURS[1 + number]
    style = dict(color=colour, linestyle=plots.LINES[number])
    ax.plot([1, bend, 1000], [1 / bend, 1, 1], label=machine_name, **style)
    for marker, (name, (operations, moved)) in zip("osDv", table.items(), strict=True):
        per_byte = operations / moved / times_bytes
        share = min(1, per_byte / bend)
        ax.plot(per_byte, share, marker, color=colour, label=name if number else None)
ax.set_xscale("log")
ax.set_yscale("log")
ax.set_xlabel("operations for each byte")
ax.set_ylabel("share of the operations")
ax.legend(fontsize=7, loc="lower right")
plots.show(
    fig,
    "two roofs that rise and bend to a level line at 1. With our round numbers the bend is at 5 operations "
    "for each byte, and all four forms lie on the level part. On the card it is further to the right, and "
    "the two forms that write a map for each sentence lie on the slope, far below 1.",
)

# %% [markdown]
# Where plain begins to win, the card says None: there it never does. Writing the map down is what costs on a
# card. Now what was measured: attention alone, without projections,
# forward and backward, median of nine rounds. "spread" is the distance of the quartiles in percent of the
# median. The floor comes from the operations and bytes in the record. "speed" is the time of torch's own
# attention for the dot product, `sdpa`, divided by that of the form: above 1 is faster.
#
# **Predict** first, from all that you have seen: which of these nine comes closest to its floor, and which
# stays furthest away? Is Random faster than sdpa, and is Dense? Write four words down.
#
# - `sdpa`: the dot product, by torch's kernel
# - `dense` and `dense without bias`, `factorized_random as keys`: the same kernel with parameter keys
# - `random`, one map; `random expanded, plain`, a map for each sentence
# - `random + dot_product` and `factorized_dense`, both by a score_mod; `factorized_dense, plain`

# %%
core = {(row["form"], row["causal"]): row for row in record["core"] if row["length"] == 512}
shown = ["sdpa", "dense without bias", "dense", "factorized_random as keys", "random",
         "random expanded, plain", "random + dot_product", "factorized_dense", "factorized_dense, plain"]


def card_floor(row):
    return floor(row["operations"], row["bytes"], card_rate, card_bandwidth)[0]


print(f"{'':>26}     ms  spread  floor ms  floors  speed  peak MiB")
for name in shown:
    row = core[name, False]
    spread, least = (row["high"] - row["low"]) / row["ms"], card_floor(row)
    print(f"{name:>26}  {row['ms']:5.2f} {spread:7.1%} {least:9.2f} {row['ms'] / least:7.1f}", end=" ")
    print(f"{row['faster_than_sdpa']:6.2f} {row['peak_bytes'] / 2**20:9.0f}")

# %%
fig, ax = plt.subplots(figsize=(6.5, 3.3), dpi=80, layout="constrained")
rows = [core[name, False] for name in shown]
floors, times = [card_floor(row) for row in rows], [row["ms"] for row in rows]
ax.hlines(range(len(rows)), floors, times, color="0.6", zorder=1)
ax.plot(floors, range(len(rows)), "|", color=plots.COLOURS[2], markersize=12, label="floor")
ax.plot(times, range(len(rows)), "o", color=plots.COLOURS[0], label="measured")
ax.axvline(core["sdpa", False]["ms"], color="0.6", linestyle=":")
ax.set_yticks(range(len(rows)), shown, fontsize=8)
ax.invert_yaxis()
ax.set_xscale("log")
ax.set_xlabel("ms, forward and backward")
ax.legend(fontsize=8)
plots.show(
    fig,
    "for nine forms on the card a bar from the floor to the measured time, on a logarithmic scale. Dense "
    "without its bias ends where sdpa does, Dense with it a little later. Random has the lowest floor, but "
    "ends later than sdpa. Factorized Dense has the longest bar.",
)

# %% [markdown]
# The form closest to its floor is the wasteful one, the expanded Random: here the floor was a fair forecast.
# (The record counts ten passes over a map for each plain form. We counted nine for this one, hence the lower
# floor in our own table.) That bytes bind is not enough: the plain Factorized Dense has the same floor, and
# is far from it. It first makes its table from $A$ and $B$, and in the backward pass it takes the gradient of
# that apart again; that work on the map is not in its ten passes. Your CPU may have it the other way round:
# look how far the expanded Random was from its floor there. Even sdpa stays at almost three floors. Its
# exponentials are in no count.
#
# Now one after the other: what this record supports, and what it does not. Each sentence is tested on the
# numbers:

# %%
def claims(sentences, written_for=("NVIDIA H200", "2026-11-28")):
    """Say which sentences hold in the record. In the one that this text was written for, all must."""
    for sentence, holds in sentences.items():
        print("holds:" if holds else "DOES NOT HOLD:", sentence)
    assert all(sentences.values()) or (record["card"], record["date"]) != written_for


def speed(form, causal=False):
    return core[form, causal]["faster_than_sdpa"]


def peak_of(form, causal=False):
    return core[form, causal]["peak_bytes"]


def spread(form):
    row = core[form, False]
    return (row["high"] - row["low"]) / row["ms"]

# %% [markdown]
# **Dense** is attention with parameter keys, in time as well. The bias costs. With it a head has 72
# features where it had 64: $d_\text{head}$, one for $b_2$, and zeros up to a multiple of 8. The operations
# grow by less than the time. It looks like a size that fits the blocks of the kernel badly; the record does
# not prove that.

# %%
dense, dense_with_bias = core["dense without bias", False], core["dense", False]
more_work = dense_with_bias["operations"] / dense["operations"]
more_time = dense_with_bias["ms"] / dense["ms"]
print(f"with the bias: {more_work:.2f} times the operations, {more_time:.2f} times the time")
claims({
    "Dense without its bias takes as long as sdpa, full and causal, within 3 %": all(
        abs(speed("dense without bias", causal) - 1) < 0.03 for causal in (False, True)
    ),
    "with its bias it has less than 0.8 of the speed, full, and less than 0.9, causal": (
        speed("dense") < 0.8 and speed("dense", True) < 0.9
    ),
    "a copy of the keys for every sentence is slower than a view": (
        core["dense, copied keys", False]["ms"] > dense_with_bias["ms"]
    ),
    "no kernel needs a map: the peak is at most 1.1 times that of sdpa": (
        max(peak_of("dense"), peak_of("dense without bias")) < 1.1 * peak_of("sdpa")
    ),
})

# %% [markdown]
# **Random** is the disappointment: by its floor it should be more than twice as fast as sdpa, and it was
# slower. The spread gives a hint. Measured alone, the large kernels here take almost the same time in every
# round; Random's rounds differ by many percent. (The whole layer, below, has noise of its own.) It looks as
# if the card waited: the form of that day was a chain of small launches from Python, and to start one can
# take longer than to run it. The record does not prove it. But it has a second hint: in the whole layer,
# below, the *plain* form, also one product per head, was faster than this "fast" one.

# %%
layers = {row["form"]: row for row in record["layer"] if row["length"] == 512 and not row["causal"]}
for name in ("sdpa", "dot_product, plain", "dense, plain", "dense", "random, plain", "random",
             "factorized_random, plain", "factorized_random"):
    row = layers[name]
    quartiles = f"({row['low']:.2f} to {row['high']:.2f})"
    print(f"{name:>24}: {row['ms']:5.2f} ms {quartiles}, speed {row['faster_than_sdpa']:.2f}")
claims({
    "by the floors, Random is more than twice as fast as sdpa": (
        card_floor(core["sdpa", False]) > 2 * card_floor(core["random", False])
    ),
    "measured alone, it has less than 0.7 of the speed of sdpa": speed("random") < 0.7,
    "its rounds differ more than ten times as much as those of sdpa": spread("random") > 10 * spread("sdpa"),
    "still it is faster than the expanded map, in less than a tenth of the memory": (
        speed("random") > speed("random expanded, plain")
        and peak_of("random") < peak_of("random expanded, plain") / 10
    ),
    "in the whole layer the plain Random is faster than the fast one, and their quartiles do not overlap": (
        layers["random, plain"]["high"] < layers["random"]["low"]
    ),
    "and it is more than 1.4 times as fast as sdpa": layers["random, plain"]["faster_than_sdpa"] > 1.4,
})

# %% [markdown]
# That is why the library now makes full maps of a few plain torch operations, and cuts only long causal
# maps into blocks. **This newer form has not been measured on a card yet.** The numbers above are those of
# the older one.
#
# **Factorized Dense** goes through a score_mod. It saves the memory, and little or no time:

# %%
claims({
    "through the score_mod, full, it is slower even than its plain form": (
        speed("factorized_dense") < speed("factorized_dense, plain")
    ),
    "causal it is faster than its plain form": (
        speed("factorized_dense", True) > speed("factorized_dense, plain", True)
    ),
    "either way it has less than 0.12 of the speed of sdpa": (
        max(speed("factorized_dense"), speed("factorized_dense", True)) < 0.12
    ),
    "but it needs about a sixth of the memory of the plain form": (
        5 < peak_of("factorized_dense, plain") / peak_of("factorized_dense") < 7
    ),
})

# %% [markdown]
# Its floor is low: by operations and bytes it should be among the fastest. But for each score the kernel
# looks up two numbers, $A$ and $B$, at positions that it has to compute. And in the backward pass many scores
# add to one and the same number. Neither is in our count. `random + dot_product` goes the same way: a look-up
# in $R$ for each score, and one gradient of $R$ to which all sentences add. Of the nine, only Factorized
# Dense and Random are further from their floors. A floor is no forecast: it says what *cannot* be faster, not
# what is fast.
#
# ## Training, and writing text
#
# A language model does more than attention. So gains shrink, and losses do too. One training step, forward,
# loss, backward and optimizer, from the same record:

# %%
trained = record["sizes"]["train"]
print(f"{trained['layer']} layers, d_model {trained['d_model']},", end=" ")
print(f"length {trained['length']}, batch {trained['batch']}")
for row in record["train"]:
    thousands, speed_up = row["tokens_per_second"] / 1000, row["faster_than_sdpa"]
    print(f"{row['score']:>17}: {thousands:6.0f} thousand tokens a second, speed {speed_up:.2f}")
missing = [what.removeprefix("train ") for what in record["skipped"] if what.startswith("train ")]
print("not measured, for want of time on the card:", ", ".join(missing) or "none")

# %%
train = {row["score"]: row["faster_than_sdpa"] for row in record["train"]}
claims({
    "Dense, with its bias, trains as fast as the dot product, within 2 %": abs(train["dense"] - 1) < 0.02,
    "Random trains more than 1.15 times as fast": train["random"] > 1.15,
    "Factorized Dense has less than 0.6 of the speed": train["factorized_dense"] < 0.6,
})

# %% [markdown]
# Dense makes up for its bias: it has no projection to keys. And it has nothing to remember. When a model
# writes text, one token at a time, each new token attends to all before it. Chapter 07 keeps in a cache what
# is needed of them. (This one is a table of the model. It has nothing to do with the processor's cache.) All
# of it is read for *every* new token, with hardly any operations per byte, so writing is memory-bound on any
# machine. What does each S need of the tokens before? **Predict** the bytes of the nine, relative to the dot
# product:

# %%
caches_of = {}
for name in names:
    model = LanguageModel(11, 12, 3, 2, 8, name).eval()
    caches = model.new_caches()
    with torch.no_grad():
        model(torch.arange(6)[None], caches=caches)
    caches_of[name] = sum(cache.bytes for cache in caches)
for name in names:
    print(f"{name:>20}: {caches_of[name]:5} bytes, {Fraction(caches_of[name], caches_of['dot_product'])}")

# %% [markdown]
# The values are needed by all. Who compares tokens needs the keys too. So exactly one half, for every S that
# does not. (The parameters of S, $W_2$ or $R$, are read too, but once for the whole batch.)
#
# ## Where it breaks
#
# - **The weights are gone.** Who wants to see the map, or drop some of its weights while training, has to
#   write it down. With dropout the layer takes the plain kernel.
# - **Two numbers are not a machine.** The floor knows no processor's cache, no launch, no exponential, no
#   look-up, and it lets bytes hide behind operations. You saw each of these cost or save time. It is a bound,
#   and a good first guess for long inputs made of large products.
# - **One card, one day.** Another card has another balance, and another version of torch other kernels.
#   Measure again: `python -m synth_lib.lab bench attention --device cuda --minutes 4`.
# - **Faster is not better.** Nothing here says which S learns more. That is chapters
#   [08](08_what_each_score_can_do.ipynb) and [13](13_train_on_gpu.ipynb).
#
# ## Three sentences to keep
#
# 1. Count operations and bytes, divide by the two numbers of the machine, and take the longer time: nothing
#    is faster, and what binds tells you what to save.
# 2. Dense is attention with parameter keys, Factorized Random has parameter queries too, so kernels that
#    never write the map compute both; Random has one map for all sentences, so it is one product.
# 3. Measure warm, in turn, with the spread, and count launches and memory beside the time: the gap to the
#    floor is where the next idea is.
#
# **Where it is going next.** [Chapter 13](13_train_on_gpu.ipynb) trains all of them, and asks what they
# have learned.
