# %% [markdown]
# # 10 · The neighbours, or what if the mask chooses?
#
# **You leave S as it is and let the mask choose the keys: from places, by hashes, by clusters. You see what each
# choice finds, what it misses, where it leaks, and from which length on it pays.**
#
# - **Before you start:** chapters [01](01_dot_product.ipynb), [03](03_random.ipynb) and
#   [08](08_what_each_score_can_do.ipynb): the dot product, Random, and the task *pair*.
# - **Time:** about 130 minutes, 80 of them for the five exercises; the stretch exercise takes 30 more.
# - **Level:** medium.
# - **Of use elsewhere:** a sliding window is part of language models, such as Mistral 7B in version 0.1. And the trap
#   of section 4, a choice that looks at the future, waits in everything that picks a "top".
# - **To predict before you look:** the outputs are stored. Hide them: *Edit*, *Clear Outputs of All Cells*
#   (Colab: *Clear all outputs*).
#
# The paper of this series changes S: Tay et al., [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Its neighbours
# of the same years are named where they appear.

# %% fold=true
# @title Imports
import json
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

from synth_lib import masks, plots
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.lab import measure, probes
from synth_lib.lab.bench import neighbours as bench
from synth_lib.lab.neighbours import far_look_up, reached
from synth_lib.lab.runner import read_record
from synth_lib.lab.tuning import settled
from synth_lib.models import LanguageModel
from synth_lib.shapes import Axes
from synth_lib.sparse import groups
from synth_lib.sparse.compared import queries_and_keys
from synth_lib.sparse.hashed import Hashed, query_transform, transformed_keys
from synth_lib.sparse.patterns import Fixed, Strided, Window
from synth_lib.sparse.routed import Routed
from synth_lib.text.corpora import DATA, evaluation_windows, random_windows, shakespeare


# %% [markdown]
# ## The question
#
# Six tokens, "the dog saw a small bird", and a map with 36 weights. A text of 6,000 tokens has 36 million in each
# head. Most of them are nearly 0, you have seen it. A synthesizer saves at S, and then still fills the whole map. The
# other idea: leave weights out. **Which keys may a query do without, and who decides that before the scores are
# known?**
#
# ## The equation
#
# It is the sentence of the series, and this time you look at its other half:
#
# $$Y = \mathrm{softmax}(S(X) + \mathrm{mask})\, G(X)$$
#
# | here | shape, in axis names | size below | what it is |
# |---|---|---|---|
# | $S(X)$ | head query key | 4 × 16 × 16 | any S of this series |
# | mask | head query key | 4 × 16 × 16 | 0 where a key may be attended to, minus infinity where not |
#
# In the library a mask is bool, True = may be attended to. A *pattern* is a function that makes one: from *places*
# alone, so that it is the same for every sentence, or from *content*, the queries and keys of this sentence.

# %% fold=true
# @title Draw it
plots.show(
    plots.flow("any of them", "what it likes", filled="+ mask"),
    "X goes to two boxes, S(X) and the values G(X). S(X) gives scores, these plus the mask go "
    "through softmax. This chapter leaves the box of S alone and changes the mask behind it.",
)

# %% [markdown]
# The pattern hangs on the layer, and works with *every* S: a Random with a strided mask is a legal thing.

# %%
layer = Attention(d_model=12, head=4, max_length=16, score="random", causal=True)
layer.pattern = Strided(4)
x = torch.randn(2, 16, 12, generator=torch.Generator().manual_seed(0))
y, weights = layer(x)
axes = Axes(batch=2, head=4, length=16, d_model=12)
weights = axes(weights, "batch head query key", "weights")
print("weights of query 9 that are not 0:", (weights[0, :, 9] > 0).sum(dim=-1).tolist(),
      "of 10, by head")

# %% [markdown]
# ## 1. How many keys does a row use?
#
# First the case for it. Take two trained models and ask of each row of their maps: how few keys hold 90 % of the
# weight? The first model has learned the task *pair* of chapter 08 with 32 positions: each token has a key and a
# pointer, and is to find the value of the token whose key the pointer names. The second is a small language model that
# reads 64 characters of Shakespeare. What do you expect of the middle row, the *median*?

# %%
# "one", "a few" (up to 12), or "most"
my_guess = {"pair, 32 keys": None, "characters, 49 to 64 keys": None}

# %%
def keys_that_hold(weights, share=0.9):
    """How few keys hold this share of each row."""
    largest_first = weights.sort(dim=-1, descending=True).values.cumsum(dim=-1)
    return (largest_first < share).sum(dim=-1) + 1


rows = torch.tensor([[0.7, 0.1, 0.2], [0.95, 0.03, 0.02]])
print(keys_that_hold(rows).tolist())

# %% fold=true
# @title Train both, a few seconds each
class Pairs(nn.Module):
    """The model of chapter 08: embeddings added up, one attention layer, a readout."""

    def __init__(self, length):
        super().__init__()
        self.parts = nn.ModuleList(nn.Embedding(numbers, 32) for numbers in (10, length, length))
        self.position = nn.Embedding(length, 32)
        self.attention = Attention(d_model=32, head=1, max_length=length, score="dot_product")
        self.readout = nn.Linear(32, 10)

    def embed(self, *parts):
        return sum(embed(part)
                   for embed, part in zip(self.parts, parts, strict=True)) + self.position.weight

    def forward(self, *parts):
        return self.readout(self.attention(self.embed(*parts))[0])


draw_pairs = partial(probes.look_up, task="pair", length=32, vocab=10)
_ = torch.manual_seed(0)
pairs = Pairs(32)
probes.train_side_by_side([pairs], [draw_pairs], [0], steps=300, batch=24, learning_rate=0.02)

tokenizer, text = shakespeare()
characters = LanguageModel(tokenizer.vocab, d_model=64, head=2, layer=1, max_length=64,
                           score="dot_product")
adam, generator = torch.optim.Adam(characters.parameters(),
                                   lr=3e-3), torch.Generator().manual_seed(0)
for _ in range(300):
    inputs, targets = random_windows(text["train"], 64, 16, generator)
    loss = F.cross_entropy(characters(inputs).flatten(0, 1), targets.flatten())
    adam.zero_grad()
    loss.backward()
    adam.step()

# %%
parts, _ = draw_pairs(100, torch.Generator().manual_seed(1))
windows, _ = evaluation_windows(text["valid"], 64, 32)
with torch.no_grad():
    of_pairs = pairs.attention(pairs.embed(*parts))[1]
    (of_characters,) = characters.attention_maps(windows)
counts = {"pair, 32 keys": keys_that_hold(of_pairs)}
counts["characters, 49 to 64 keys"] = keys_that_hold(of_characters)[:, :, 48:]  # of the later rows
medians = {name: count.flatten().median().item() for name, count in counts.items()}

# %% fold=true
# @title Say it in words that hold on every machine, and compare
assert medians["pair, 32 keys"] == 1 and 2 <= medians["characters, 49 to 64 keys"] <= 12, medians
compare_guess(my_guess, {name: "one" if median == 1 else "a few" if median <= 12 else "most"
                         for name, median in medians.items()})  # fmt: skip

# %% [markdown]
# One key of 32, and a few of about 56: most of the map is computed to be thrown away. But in *pair* it is another key
# in every row and every sentence. What the mask may leave out depends on the task (section 6).

# %% [markdown]
# ## 2. From places
#
# The Sparse Transformer (Child et al. 2019, [arXiv 1904.10509](https://arxiv.org/abs/1904.10509)) cuts the rows of a
# causal map by places. Its $l$, the *stride*, is about $\sqrt{n}$ for $n$ tokens. Half of the heads look near, half
# far:
#
# - **strided:** near, $j$ from $i - l$ to $i$; far, $(i - j) \bmod l = 0$.
# - **fixed:** near, the same block, $\lfloor j / l \rfloor = \lfloor i / l \rfloor$; far, the last $c$ places of each
#   block, $j \bmod l \in \{l - c, \dots, l - 1\}$.
#
# All with $j \le i$. A *window* is the near half alone, of $w$ keys, the query included. Why $\sqrt n$? A near row
# has about $l$ keys, a far one about $n / l$: a larger stride makes the first longer, a smaller one the second. With
# 16 tokens both are 4. Query 9, as a loop:

# %%
i, stride = 9, 4
sets = {
    "window of 4": [j for j in range(i + 1) if i - j < 4],
    "strided, near": [j for j in range(i + 1) if i - j <= stride],
    "strided, far": [j for j in range(i + 1) if (i - j) % stride == 0],
    "fixed, near": [j for j in range(i + 1) if j // stride == i // stride],
    "fixed, far": [j for j in range(i + 1) if j % stride == stride - 1],
}
for name, keys in sets.items():
    print(f"{name:13}  {keys}")

# %% fold=true
# @title Draw the five, and a guard: they are those of the library
causal = masks.causal(16)[0, 0]
strided, fixed = Strided(4).mask(16, head=2)[0], Fixed(4).mask(16, head=2)[0]
patterns = {"window of 4": Window(4).mask(16)[0, 0] & causal, "strided, near": strided[0],
            "strided, far": strided[1],
            "fixed, near": fixed[0], "fixed, far": fixed[1]}  # fmt: skip
for name, keys in sets.items():
    keys = {*keys, 9} if name == "fixed, far" else set(keys)
    assert set(patterns[name][9].nonzero().flatten().tolist()) == keys
fig, panels = plt.subplots(1, 5, figsize=(6.6, 1.7), sharey=True, layout="constrained")
for panel, (name, pattern) in zip(panels, patterns.items(), strict=True):
    panel.imshow(pattern, cmap="Greys")
    panel.set_xticks([3, 7, 11, 15])
    panel.set_yticks([3, 7, 11, 15])
    panel.set_title(name, fontsize=9)
panels[0].set_ylabel("query")
panels[2].set_xlabel("key")
plots.show(
    fig,
    "five patterns on 16 positions, black where a query may attend. Window: a band of 4 below the "
    "diagonal. Strided, near: a band of 5. Strided, far: the diagonal and each fourth line below "
    "it. Fixed, near: triangles of 4 by 4 along the diagonal. Fixed, far: the columns 3, 7, 11 and "
    "15 below the diagonal, and the diagonal itself.",
)

# %% [markdown]
# The picture has one thing that the loop has not: the diagonal in "fixed, far". Without it the queries 0, 1 and 2
# would have no key at all. The library lets a far head reach the query itself.
#
# ### Two faults that keep every shape
#
# A mistake from public code: the strided mask says `abs(i - j) <= stride`. Nine tokens, stride 3, row 4:

# %%
i, j = torch.arange(9)[:, None], torch.arange(9)[None, :]
for name, mask in {"abs(i - j) <= 3": (i - j).abs() <= 3,
                   "0 <= i - j <= 3": (i - j >= 0) & (i - j <= 3)}.items():
    print(f"{name}: row 4 has the keys {mask[4].nonzero().flatten().tolist()}")

# %% [markdown]
# The first one looks at 5, 6 and 7: at the future. The second fault counts from the wrong end. Let far keys be every
# fourth place counted from the *end of the padded text*. The same six tokens, padded to 8 and to 11:

# %%
for length in (8, 11):
    place = torch.arange(length)
    far = ((length - 1 - place) % 4 == 0) & (place <= 5)
    print(f"padded to {length:2}: token 5 has the keys {place[far].tolist()}")

# %% [markdown]
# The keys of a token change with the *longest sentence in its batch*. Count from the query, or from the first token.
#
# ### How many layers connect every pair?
#
# No head sees all. But layers are stacked: if $i$ reads $m$ in layer 2, and $m$ read $j$ in layer 1, then $j$ gets to
# $i$. As bool matrices that is a product. 64 tokens, so stride 8: up to 9 keys in a near head. The window gets 9, too.
# In how many layers is every earlier token reached?

# %%
# how many layers
my_guess = {"window of 9": None, "strided, stride 8": None, "fixed, stride 8": None}

# %%
def layers_to_connect(pattern):
    """How many layers until each query has reached each key before it. A token also stays where it
    is."""
    step = (pattern.mask(64, head=2)[0].any(dim=0) & masks.causal(64)[0, 0]).float()
    step, wanted = ((step + torch.eye(64)) > 0).float(), torch.ones(64, 64).tril()
    reached, layers = step, 1
    while not torch.equal((reached > 0).float(), wanted):
        reached, layers = (step @ reached > 0).float(), layers + 1
    return layers


compare_guess(my_guess, {
    "window of 9": layers_to_connect(Window(9)), "strided, stride 8": layers_to_connect(Strided(8)),
    "fixed, stride 8": layers_to_connect(Fixed(8)),
})

# %% [markdown]
# A window goes 8 places further with each layer, and $63 / 8$ is nearly 8. The two others need two layers at any length
# above the stride + 1: one goes along the strides, the other the rest. With about $\sqrt n$ keys a row the work is
# $n \sqrt n$ in place of $n^2$.
#
# ### Exercise 10.1: strided rows while a model writes
#
# *15 minutes, medium.* A model that writes has a cache: the queries are the last few tokens, the keys are all so far.
# Build the strided mask for those rows.

# %% exercise="10.1" points=2
def strided_rows(start, query, head, stride):
    """The strided mask of `query` tokens that stand at the places start, start + 1, ...

    The keys are all the tokens up to the last query: start + query of them. The first half of the
    heads is near, the others are far; if the number of heads is odd, the near half is the larger
    one. A single head is both at once.
    stride: any whole number from 1 on, also one above the length.

    Returns bool, head query key: True where the query may attend to the key.
    """
    ### BEGIN SOLUTION
    i = torch.arange(start, start + query)[:, None]
    j = torch.arange(start + query)[None, :]
    past = j <= i
    near, far = past & (i - j <= stride), past & ((i - j) % stride == 0)
    if head == 1:
        return (near | far)[None]
    return torch.stack([near if h < (head + 1) // 2 else far for h in range(head)])
    ### END SOLUTION

# %% check="10.1"
check("10.1", strided_rows)

# %% [markdown] solution="10.1"
# What counts is $i - j$, and with a cache $i$ begins at `start`. The near heads need $j \le i$ said as well, because
# a negative $i - j$ is below any stride; so do the far ones, because $-4 \bmod 4$ is 0 too. A second way cuts the
# rows out of the whole square.

# %% solution="10.1"
def strided_rows_cut(start, query, head, stride):
    return Strided(stride).mask(start + query, head=head)[0, :, start:]


check("10.1", strided_rows_cut)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Two columns of numbers: the place of each query, which does not begin at 0, and the place of each key, which does.
# How many keys are there?
#
# </details>
# <details><summary>Hint 2: it says that a query sees later keys</summary>
#
# In one call several queries stand side by side, and the first of them must not see the last. Both halves need that.
#
# </details>
# <details><summary>Hint 3: heads</summary>
#
# With 3 heads 2 are near, with 5 heads 3. What is `(head + 1) // 2`?
#
# </details>

# %% [markdown]
# ### Exercise 10.2: connect all pairs
#
# *20 minutes, hard.* Strided needs two layers for about $\sqrt n$ keys a row. What if a row may have 4 keys only, and
# there are 60 tokens? Build masks for as few layers as possible. There is no residual connection here: what a token
# is to keep of itself, its row must name. There are several ways; the check looks at what is reached.

# %% exercise="10.2" points=3
def masks_that_connect(length, keys):
    """Causal masks, one for each layer, through which every token reaches itself and all before it.

    length: how many tokens, from 1 on. keys: how many keys a row may have at most, itself included;
    at least 2.

    Returns a list of bool tensors, query key, for the first layer, the second, ... It is as short
    as it can be, and holds at least one. No row looks at a later token. Through all the layers
    query i reaches key j, for each j <= i: it reads some token in the last layer, that token reads
    another in the layer before, and so on, down to j.
    """
    ### BEGIN SOLUTION
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    layers, step = [], 1
    while step < length or not layers:
        back = i - j
        layers.append((back >= 0) & (back % step == 0) & (back < keys * step))
        step = keys * step
    return layers
    ### END SOLUTION

# %% check="10.2"
check("10.2", masks_that_connect)

# %% [markdown] solution="10.2"
# Each distance is written with digits to the base `keys`. The first layer goes the ones back, 0 to `keys - 1` places,
# the second the multiples of `keys`, and so on: with $m$ layers all distances below $\text{keys}^m$. Fewer layers
# cannot do it: after $m$ layers a query has reached at most $\text{keys}^m$ tokens. The order of the digits plays no
# part, so the largest steps may come first.

# %% solution="10.2"
def masks_largest_step_first(length, keys):
    back = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    steps = [1]
    while steps[-1] * keys < length:
        steps.append(steps[-1] * keys)
    return [torch.isin(back, step * torch.arange(keys)) for step in reversed(steps)]


check("10.2", masks_largest_step_first)

# %% [markdown]
# <details><summary>Hint 1: how many layers at least?</summary>
#
# With 4 keys a row, how many tokens can one layer bring to a query? Each of those can have brought 4 of its own.
#
# </details>
# <details><summary>Hint 2: all the paths are there, but it needs too many layers</summary>
#
# Then two paths of yours end at the same token, and one of them is wasted. Think of how you write a number with
# digits: each number has exactly one way.
#
# </details>
# <details><summary>Hint 3: the end of the text</summary>
#
# A row near the beginning has fewer keys; nothing stands before token 0. Do the shorter paths still reach all?
#
# </details>

# %% [markdown]
# ## 3. From content: hashes
#
# A row needs the keys with the largest products $q \cdot k$. To find them without computing all products is called
# *maximum inner product search*. A *hash* is a cheap number of a vector that is likely to be the same for two vectors
# that are *near*. But the largest product is not the nearest vector. One query and three keys:

# %%
query = torch.tensor([1.0, 0.0])
arrows = {"a": torch.tensor([1.0, 0.5]), "b": torch.tensor([2.0, 0.4]),
          "c": torch.tensor([3.0, 2.0])}
print("key  distance  cosine  product")
for name, key in arrows.items():
    cosine = query @ key / key.norm()
    print(f"{name:3}  {(query - key).norm():8.2f}  {cosine:6.2f}  {query @ key:7.1f}")

# %% fold=true
# @title Draw the arrows
fig, panel = plt.subplots(figsize=(3.2, 2.2), layout="constrained")
for number, (name, end) in enumerate({"query": query, **arrows}.items()):
    panel.annotate("", end.tolist(), (0, 0),
                   arrowprops={"arrowstyle": "-|>", "color": plots.COLOURS[number], "lw": 2})
    panel.text(end[0] + 0.05, end[1] + 0.05, name, color=plots.COLOURS[number])
panel.set_xlim(-0.1, 3.5)
panel.set_ylim(-0.3, 2.4)
panel.set_aspect("equal")
panel.set_xlabel("first number")
panel.set_ylabel("second number")
plots.show(
    fig,
    "a query to the right and three keys. a is short and its end is nearest to that of the query. "
    "b has the smallest angle to it. c is the longest, and has the largest angle to the query and "
    "the largest product with it.",
)

# %% [markdown]
# Three questions, three answers: a is nearest, b has the smallest angle, c wins the product because it is long.
# Attention wants c.
#
# ### Make nearness and product agree
#
# So queries and keys are transformed first, each in its own way: they get a few more coordinates. All keys are divided
# by $M$, the length of the longest one, so $\lvert k\rvert \le 1$ (in I-ALSH, [arXiv
# 1410.5410](https://arxiv.org/abs/1410.5410), $\le 0.75$).
#
# | kind | added to $k$ | added to $q$ | the larger the product, the smaller | from |
# |---|---|---|---|---|
# | Simple-LSH | $\sqrt{1 - \lvert k\rvert^2}$ | 0, after $\lvert q\rvert = 1$ | the angle | Neyshabur and Srebro 2015 |
# | Simple-ALSH | $\sqrt{1 - \lvert k\rvert^2}$, 0 | 0, $\sqrt{1 - \lvert q\rvert^2}$ | the angle | |
# | XBOX | $\sqrt{1 - \lvert k\rvert^2}$ | 0 | the distance | Bachrach et al. 2014 |
# | I-ALSH | $1/2 - \lvert k\rvert^2$, $1/2 - \lvert k\rvert^4$ | 0, 0 | the angle, nearly | Shrivastava and Li 2015 |
#
# Call the results $P$ and $Q$. Derive XBOX on paper: how long is $P$? And what is
# $\lvert Q - P\rvert^2 = \lvert Q\rvert^2 + \lvert P\rvert^2 - 2\,Q \cdot P$, written with $q$ and $k$? The cell
# has both sides for the three arrows.

# %%
keys = torch.stack([*arrows.values()])
scaled = keys / keys.norm(dim=1).max()
rest = (1 - scaled.square().sum(dim=1, keepdim=True)).clamp(min=0).sqrt()
P, Q = torch.cat([scaled, rest], dim=1), torch.cat([query, torch.zeros(1)])
print("key  squared distance  1 + |q|^2 - 2 q.k")
for name, of_key, one in zip(arrows, P, scaled, strict=True):
    by_product = 1 + query @ query - 2 * query @ one
    print(f"{name:3}  {(Q - of_key).square().sum():16.3f}  {by_product:17.3f}")

# %% [markdown]
# $P$ has the length 1, so only the product differs in a row: now c is the nearest. Two facts did it, and they are
# all that the other kinds need. The new coordinates of one side meet a 0 of the other, so $Q \cdot P = q \cdot k$.
# And all $P$ have one length; multiplied out, $\lvert P\rvert^2$ of I-ALSH is $\tfrac12 + \lvert k\rvert^8$,
# nearly the same for all. One loop checks both:

# %%
generator = torch.Generator().manual_seed(4)
q, k = (torch.randn(n, 5, generator=generator).double() for n in (7, 9))
q, M = q / (2 * q.norm(dim=1).max()), k.norm(dim=1).max()
for kind in ("simple-lsh", "simple-alsh", "xbox", "i-alsh"):
    given = F.normalize(q, dim=1) if kind == "simple-lsh" else q
    P = transformed_keys(kind, k, M)
    Q = query_transform(kind, given * (M if kind == "xbox" else 1), M)  # its xbox divides q
    shrunk = k / M * (0.75 if kind == "i-alsh" else 1)
    square = 0.5 + shrunk.norm(dim=1) ** 8 if kind == "i-alsh" else torch.ones(9).double()
    assert (Q @ P.T - given @ shrunk.T).abs().max() < 1e-12
    assert (P.square().sum(dim=1) - square).abs().max() < 1e-12
    print(f"{kind:11}  |P| from {P.norm(dim=1).min():.2f} to {P.norm(dim=1).max():.2f}")

# %% [markdown]
# *Query normalization first* (QNF, Huang et al. 2018) gives each query one length before all else. It multiplies a
# whole row of products by one number, and their order stays.
#
# ### Why the lengths must be those after scaling
#
# The root wants $1 - |k|^2$ of the *scaled* key. Take the length from before: a key longer than 1 gives NaN, and you
# notice. But with three keys that happen to be short there is no NaN and no error:

# %%
short = torch.tensor([[0.30, 0.10], [0.54, 0.00], [0.55, 0.70]])  # the products with the query rise
M, Q = short.norm(dim=1).max(), torch.cat([query, torch.zeros(1)])
for name, norm in {"after scaling": short.norm(dim=1) / M, "before": short.norm(dim=1)}.items():
    P = torch.cat([short / M, (1 - norm**2).sqrt()[:, None]], dim=1)
    cosines = P @ Q / P.norm(dim=1)
    print(f"{name:14}lengths {[f'{n:.2f}' for n in P.norm(dim=1).tolist()]}, best by cosine: "
          f"key {cosines.argmax()}")

# %% [markdown]
# The lengths are no longer 1, and the wrong key wins.
#
# ### Hashes, and how often they agree
#
# For angles: draw a vector $a$ with normal numbers, once, and keep it. The hash of $v$ is the sign of $a \cdot v$,
# that is, on which side of a line it lies. Two vectors with the angle $\theta$ between them are separated if the line
# falls between them: with the chance $\theta / \pi$. So the hashes agree with the chance
#
# $$1 - \frac{\arccos(\cos\theta)}{\pi}$$
#
# For distances (XBOX): $\lfloor (a \cdot v + b) / r \rfloor$, with $b$ uniform in $[0, r)$: numbered stripes of width
# $r$. The signs, measured with 20,000 drawn vectors:

# %%
directions = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
angles = torch.linspace(0, torch.pi, 13)
vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
hashes = directions @ vectors.T >= 0
agree = (hashes == hashes[:, :1]).float().mean(dim=0)
formula = 1 - angles / torch.pi
assert (agree - formula).abs().max() < 0.02
for n in (0, 3, 6, 9, 12):
    print(f"angle {15 * n:3} degrees: formula {formula[n]:.2f}, measured {agree[n]:.2f}")

# %% [markdown]
# ### Recall: how many of the true keys are found?
#
# Count, for each pair, how many hashes agree, and keep the keys that agree most often. Of 128 keys keep 32, as the
# library does unless you say otherwise. *Recall* is the share of the true top 32 among them. Who keeps 32 of 128 by
# lot has a recall of 0.25. Another mark: who reads no query at all and keeps the 32 *longest* keys for every row.
# From how many hashes on does Simple-LSH find half of the true ones?

# %%
# from 1, 4, 16, 64 or 256 hashes on
my_guess = {"half of the true keys": None, "more than the longest keys": None}

# %%
def top_keys(scores, keep=32):
    return torch.zeros_like(scores,
                            dtype=torch.bool).scatter(-1, scores.topk(keep, dim=-1).indices, True)


generator = torch.Generator().manual_seed(1)
queries, keys = torch.randn(4, 1, 128, 16, generator=generator), torch.randn(4, 1, 128, 16,
                                                                             generator=generator)
keys = keys * torch.rand(4, 1, 128, 1, generator=generator) * 2  # long ones and short ones
true = top_keys(queries @ keys.mT)
all_keys = torch.ones(4, 1, 128, 128, dtype=torch.bool)
numbers, recall = [1, 4, 16, 64, 256], {}
_ = torch.manual_seed(0)
for kind in ("simple-lsh", "simple-alsh", "xbox", "i-alsh"):
    recall[kind] = []
    for n in numbers:
        # drawn five times
        ways = [Hashed(16, 1, kind, hashes=n, normalize_queries=kind == "xbox") for _ in range(5)]
        found = [(way.choose(queries, keys, all_keys) & true).sum().item() for way in ways]
        recall[kind].append(sum(found) / len(found) / true.sum().item())
longest = top_keys(keys.norm(dim=-1)[..., None, :].expand(true.shape)) & true
longest = (longest.sum() / true.sum()).item()

# %% [markdown]
# A mistake from public code scores the pair $(i, j)$ with the query of $j$ in place of that of $i$. The shape is
# right, the keys are all the same for every row. In the figure it is "q of j".

# %%
# the score of i and j is q_j . k_j
of_j = (queries * keys).sum(dim=-1)[..., None, :].expand(-1, -1, 128, -1)
fault = (top_keys(of_j) & true).sum().item() / true.sum().item()

# %% fold=true
# @title Draw the recall, and compare
fig, panel = plt.subplots(figsize=(3.9, 2.3), layout="constrained")
for n, (kind, values) in enumerate(recall.items()):
    panel.plot(numbers, values, color=plots.COLOURS[n], linestyle=plots.LINES[n],
               marker=plots.MARKERS[n],
               label=kind)  # fmt: skip
for height, name in ((0.25, "by lot"), (fault, "q of j"), (longest, "longest keys")):
    panel.axhline(height, color="grey", linewidth=1, linestyle=":")
    panel.text(300, height, name, fontsize=8, ha="right", va="bottom")
panel.set_xscale("log", base=2)
panel.set_xlabel("number of hashes")
panel.set_ylabel("recall of the true top 32")
panel.legend(fontsize=8)
plots.show(
    fig,
    "recall against the number of hashes, 1 to 256, for four kinds. All begin at 0.25, the lowest "
    "of three dotted lines, which is chance, or a little above, and rise. The fault that takes the "
    "query of j lies between chance and the highest dotted line, the longest keys, which all four "
    "pass.",
)
enough = next(n for n, value in zip(numbers, recall["simple-lsh"], strict=True) if value > 0.5)
more = next(n for n, value in zip(numbers, recall["simple-lsh"], strict=True) if value > longest)
assert all(one < other for values in recall.values()
           for one, other in zip(values, values[1:], strict=False))
assert all(values[0] > 0.24 and values[1] > 0.25 and values[-1] > longest
           for values in recall.values())
assert 0.25 < fault < longest
compare_guess(my_guess, {"half of the true keys": enough, "more than the longest keys": more})

# %% [markdown]
# Recall is above chance from a few hashes on and grows with their number. That makes it hashing, and not noise. But a
# few hashes find no more than one who never reads the query. And 256 hashes of 16 numbers cost more than the products
# of 16 numbers that they replace: hashes pay where a table finds equal ones without comparing all pairs, as in
# exercise 10.4.
#
# Why is xbox below the others? Here its queries were normalized first, so its vectors are those of Simple-LSH; the
# cell asserts it. Only the hash is another: stripes, 2 wide, in place of signs. Is it the width? With 64 hashes:

# %% fold=true
# @title Compare the vectors, then try five widths, ten draws of each
M = keys.norm(dim=-1, keepdim=True).amax(dim=-2, keepdim=True)
assert torch.allclose(transformed_keys("xbox", keys, M), transformed_keys("simple-lsh", keys, M))
assert torch.allclose(query_transform("xbox", queries, M, normalize=True),
                      query_transform("simple-lsh", queries, M))
found = {"signs": recall["simple-lsh"][3]}
_ = torch.manual_seed(0)
for width in (1, 2, 3, 4, 8):
    ways = [Hashed(16, 1, "xbox", hashes=64, normalize_queries=True, width=width)
            for _ in range(10)]
    hits = [(way.choose(queries, keys, all_keys) & true).sum().item() for way in ways]
    found[f"stripes, {width} wide"] = sum(hits) / len(hits) / true.sum().item()
for name, share in found.items():
    print(f"{name:18}  recall about {share:.1f}")
assert all(share < found["signs"] - 0.05 for name, share in found.items() if name != "signs")

# %% [markdown]
# None of the five widths reaches the signs: on these vectors it is the kind of hash, not the transform, and not the
# width alone.
#
# ### Exercise 10.3: Simple-LSH with heads and padding
#
# *18 minutes, medium.* Above one query met three keys. A layer has heads, and some keys are padding.

# %% exercise="10.3" points=2
def simple_lsh(queries, keys, real):
    """Q(q) and P(k) of Simple-LSH.

    queries: head query d_head, each longer than 0.
    keys: head key d_head, of any length, also 0; in each head some real key is longer than 0.
    real: bool, key; False is padding, the same in all heads.

    Each head has its own M: the length of its longest real key. Returns (Q, P), both float32 with
    the further coordinate last: Q is head query (d_head + 1), P is head key (d_head + 1). Every row
    of Q, and every row of P that belongs to a real key, has the length 1, and Q . P is
    (q . k) / (|q| M). What stands at padding becomes a row of zeros.
    """
    ### BEGIN SOLUTION
    keys = keys * real[:, None]
    keys = keys / keys.norm(dim=-1, keepdim=True).amax(dim=1, keepdim=True)
    rest = (1 - keys.square().sum(dim=-1, keepdim=True)).clamp(min=0).sqrt()
    P = torch.cat([keys, rest], dim=-1) * real[:, None]
    Q = F.pad(F.normalize(queries, dim=-1), (0, 1))
    return Q, P
    ### END SOLUTION

# %% check="10.3"
check("10.3", simple_lsh)

# %% [markdown] solution="10.3"
# Padding is set to 0 first, so it can never be the longest key; its further coordinate would be 1, so it is set to 0
# once more. The root is of the scaled length, and `clamp` catches a rounding below 0 at the longest key. In loops one
# sees it key by key.

# %% solution="10.3"
def simple_lsh_in_loops(queries, keys, real):
    P = torch.zeros(*keys.shape[:2], keys.shape[2] + 1)
    for h in range(len(keys)):
        M = max(key.norm() for key, is_real in zip(keys[h], real, strict=True) if is_real)
        for j in real.nonzero().flatten():
            P[h, j, :-1] = keys[h, j] / M
            P[h, j, -1] = (1 - (keys[h, j].norm() / M) ** 2).clamp(min=0).sqrt()
    Q = queries / queries.norm(dim=-1, keepdim=True)
    return torch.cat([Q, torch.zeros_like(Q[..., :1])], dim=-1), P


check("10.3", simple_lsh_in_loops)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With $M$: one number for each head. Over which axis is the largest taken, and which keys may take part?
#
# </details>
# <details><summary>Hint 2: the rows of P do not have the length 1</summary>
#
# Which key stands under the root: the one that came in, or the one that goes out?
#
# </details>
# <details><summary>Hint 3: it says NaN</summary>
#
# Under the root stands a number below 0. Of the longest key it should be 0, and rounding may leave it a little below.
# A key at padding may be longer than $M$, and 0 times NaN is NaN: hide it before the root, or with `torch.where`.
#
# </details>

# %% [markdown]
# ### Exercise 10.4: how likely is a key found?
#
# *12 minutes, medium.* With one hash there are two buckets, and about half of all keys share the query's. So take
# several hashes and look only at the keys for which *all* agree: a small bucket, but a good key is easily missed.
# Against that, several such tables are drawn, each with hashes of its own, and a key is found if it is in the bucket
# of *any* table.

# %% exercise="10.4" points=2
def chance_to_find(queries, keys, hashes, tables):
    """The chance, over all drawn hashes, that a key is found by a query.

    queries: query d_head, keys: key d_head, float64, of any length above 0; not transformed. Hashes
    are signs of projections. In a table all of its `hashes` hashes must agree; the key is found if
    they do in at least one of the `tables` tables. All hashes are drawn independently. hashes and
    tables: whole numbers from 1 on.

    Returns query key, float64, numbers from 0 to 1: 1 for two vectors with the same direction, but
    for rounding.
    """
    ### BEGIN SOLUTION
    cosines = F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).T
    one = 1 - cosines.clamp(-1, 1).arccos() / torch.pi
    return 1 - (1 - one**hashes) ** tables
    ### END SOLUTION

# %% check="10.4"
check("10.4", chance_to_find)

# %% [markdown] solution="10.4"
# All of a table: multiply. At least one of several: multiply the chances that each fails, and take the rest to 1. The
# clamp is no cosmetics: rounding makes some cosines a little larger than 1, and those have no arccos. The angle can
# also be had from the lengths of sum and difference, which needs no clamp:

# %% solution="10.4"
def chance_by_half_angles(queries, keys, hashes, tables):
    q, k = F.normalize(queries, dim=-1)[:, None], F.normalize(keys, dim=-1)[None]
    angle = 2 * torch.atan2((q - k).norm(dim=-1), (q + k).norm(dim=-1))
    missed = torch.ones_like(angle)
    for _ in range(tables):
        missed = missed * (1 - (1 - angle / torch.pi) ** hashes)
    return 1 - missed


check("10.4", chance_by_half_angles)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# One pair, one hash: the formula wants the cosine. The product of two vectors is the cosine only if both have which
# length?
#
# </details>
# <details><summary>Hint 2: all, and any</summary>
#
# Two coins: the chance that both show heads is a product. That at least one does is easier to say of what must *not*
# happen.
#
# </details>
# <details><summary>Hint 3: it says NaN</summary>
#
# Print how much the largest cosine differs from 1.
#
# </details>

# %% [markdown]
# ## 4. From content: clusters
#
# Routing (Roy et al. 2020, [arXiv 2003.05997](https://arxiv.org/abs/2003.05997)) sorts queries and keys, all scaled
# to one length, into heaps. Each heap has a *centroid*, and a query attends to the keys of its own heap. Finding
# heaps is *k-means*: every point goes to its nearest centroid, then every centroid goes to the mean of its points.
# Two rounds by hand, with 12 points and a poor start:

# %%
heaps = torch.tensor([[1.0, 1.0], [4.0, 1.5], [2.0, 4.0]])
points = heaps.repeat(4, 1) + torch.randn(12, 2, generator=torch.Generator().manual_seed(2)) * 0.45
centroids = [torch.tensor([[1.8, 2.2], [2.8, 0.8], [3.0, 3.0]])]
for _ in range(2):
    nearest = (points[:, None] - centroids[-1][None]).norm(dim=-1).argmin(dim=1)
    centroids.append(torch.stack([points[nearest == c].mean(dim=0) for c in range(3)]))
print("cluster of each point:", nearest.tolist())

# %% fold=true
# @title Draw the way of the centroids
fig, panel = plt.subplots(figsize=(3.2, 2.3), layout="constrained")
for c in range(3):
    panel.plot(*points[nearest == c].T, linestyle="none", marker=plots.MARKERS[c],
               color=plots.COLOURS[c])
    way = torch.stack([one[c] for one in centroids])
    panel.plot(*way.T, color=plots.COLOURS[c], linestyle=plots.LINES[c], marker="x", markersize=9)
panel.set_xlabel("first number")
panel.set_ylabel("second number")
plots.show(
    fig,
    "twelve points in three heaps and the way of three centroids in two rounds, crosses on a line. "
    "Each ends in the middle of one heap; the points have the mark of their cluster.",
)

# %% [markdown]
# In a layer the points move while it trains. So in each step a centroid goes a little towards the mean of its members,
# a *moving average*. It is no parameter; no gradient reaches it.
#
# With $k$ clusters, $n$ tokens and equal heaps, finding the centroid costs $n k d$ and attending inside heaps $n^2 d
# / k$. Both together are least at $k = \sqrt n$: again $n \sqrt n$.
#
# ### Balanced clusters
#
# Heaps are not equal. So the paper lets each cluster *take* the $w = n / k$ tokens that are nearest to its centroid.
# Then every cluster has the same work. Sixteen tokens, four clusters of four:

# %%
def unit(*shape, seed):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


tokens, centres = unit(16, 4, seed=3), unit(4, 4, seed=4)
closeness = tokens @ centres.T
taken = closeness.topk(4, dim=0).indices.T
own = closeness.argmax(dim=1)
print("taken by the clusters:  ", [sorted(members) for members in taken.tolist()])
print("nearest centroid, sizes:", own.bincount(minlength=4).tolist())
print("taken by nobody:        ", sorted(set(range(16)) - set(taken.flatten().tolist())))

# %% [markdown]
# Balanced, but some tokens belong to two clusters and some to none.
#
# ### The trap
#
# Three ways to make a causal mask of clusters. *The w nearest*: each cluster takes its 4 tokens, as above, and a
# query sees those of its clusters with $j \le i$. *Nearest centroid*: a query sees the earlier tokens of its own
# heap. *The library*: each query asks which 4 of the tokens *before it* are nearest to its centroid. No weight looks
# ahead.
#
# Now exchange the *last* token for another one. No earlier row may change. Do 200 such exchanges, on fresh tokens
# each time. In how many of them does some earlier row get another mask?

# %%
# "none", "some" or "all"
my_guess = {"the w nearest": None, "nearest centroid": None, "the library, keep 4": None}

# %%
def taken_mask(closeness, keep=4):
    """The w nearest of ALL tokens are a cluster: the paper's way."""
    member = torch.zeros_like(closeness).scatter(0, closeness.topk(keep, dim=0).indices, 1)
    return (member @ member.T > 0) & masks.causal(len(closeness))[0, 0]


def nearest_mask(closeness):
    """A token belongs to its nearest centroid, whoever else does."""
    own = closeness.argmax(dim=1)
    return (own[:, None] == own[None, :]) & masks.causal(len(closeness))[0, 0]


def library_mask(closeness, keep=4):
    """Each query asks for the nearest among the keys before it."""
    order = closeness.T[closeness.argmax(dim=1)].masked_fill(~masks.causal(16)[0, 0], -torch.inf)
    best = order.sort(dim=1, descending=True, stable=True)
    return torch.zeros(16, 16, dtype=torch.bool).scatter(1, best.indices[:, :keep],
                                                         best.values[:, :keep] > -torch.inf)

# %%
leaks = {"the w nearest": 0, "nearest centroid": 0, "the library, keep 4": 0}
ways = dict(zip(leaks, (taken_mask, nearest_mask, library_mask), strict=True))
for seed in range(200):
    one, centres = unit(16, 4, seed=1000 + seed), unit(4, 4, seed=2000 + seed)
    other = torch.cat([one[:15], unit(1, 4, seed=3000 + seed)])
    for name, way in ways.items():
        before, after = way(one @ centres.T)[:15], way(other @ centres.T)[:15]
        leaks[name] += int((before != after).any())
compare_guess(my_guess, {name: "none" if n == 0 else "all" if n == 200 else f"some: {n} of 200"
                         for name, n in leaks.items()})  # fmt: skip

# %% fold=true
# @title Guards: the library's Routed chooses as our loops, the whole layer does not leak
routed = Routed(4, 1, 4, keep=4).eval()
routed.centroids.copy_(centres[None])
allowed = masks.causal(16)
assert torch.equal(routed.choose(one[None, None], one[None, None], allowed)[0, 0],
                   library_mask(one @ centres.T))
routed.keep = None
own_cluster = routed.choose(one[None, None], one[None, None], allowed)[0, 0]
assert torch.equal(own_cluster, nearest_mask(one @ centres.T))
assert leaks["the w nearest"] > 20 and leaks["nearest centroid"] == leaks["the library, "
                                                                          "keep 4"] == 0

# %% [markdown]
# The last token is near a centroid and *pushes an earlier one out of its cluster*. The map is triangular, each row
# sums to 1, and the future leaks all the same: through the choice. No look at a map finds it. Exchange a later token
# and compare earlier rows.
#
# Two ways out, and each has its price:
#
# - **Nearest centroid.** A token's cluster depends on the token alone. The price: heaps of any size, and the largest
#   sets the work. The library does this by default.
# - **Each query asks among the keys before it**, `Routed(..., keep=w)`. Balanced again, but now every query has a
#   list of its own: nobody shares a block of keys. What made it cheap, one gather for a whole cluster, is gone.
#
# That is why the form that computes less, `groups.attend`, refuses it for a causal layer:

# %%
layer = Attention(d_model=8, head=2, max_length=16, score="dot_product", causal=True).eval()
layer.pattern = Routed(4, 2, 4, keep=4).eval()
try:
    groups.attend(layer, torch.randn(1, 16, 8))
except ValueError as error:
    print(error)

# %% [markdown]
# ### Exercise 10.5: the nearest, without a look ahead
#
# *15 minutes, medium.* Write the second way, with padding and with ties.

# %% exercise="10.5" points=3
def routed_rows(to_query, to_key, real, keep):
    """Which keys each query gets: of its cluster's nearest, those that stand before it.

    to_query: query cluster, how close each query is to each centroid: the larger, the closer.
    to_key: key cluster, the same of the keys. There are as many queries as keys.
    A query belongs to the cluster whose centroid it is closest to; of equals, to the first one.
    real: bool, key; False is padding. It is never chosen; a query at padding is treated as any
    other. keep: from 1 on, also more than there are keys.

    Query i gets the `keep` keys that are closest to the centroid of ITS cluster, of the real keys
    from 0 to i; of equals the earlier ones. Where there are fewer, it gets all of them, and where
    there is none, none.

    Returns bool, query key.
    """
    ### BEGIN SOLUTION
    closeness = to_key.T[to_query.argmax(dim=1)]
    allowed = real & torch.ones_like(closeness, dtype=torch.bool).tril()
    order = closeness.masked_fill(~allowed, -torch.inf).sort(dim=1, descending=True,
                                                             stable=True).indices
    return torch.zeros_like(allowed).scatter(1, order[:, :keep], True) & allowed
    ### END SOLUTION

# %% check="10.5"
check("10.5", routed_rows)

# %% [markdown] solution="10.5"
# First what may be attended to, then the choice: that order is the whole lesson. The row of closeness belongs to the
# query's cluster, the numbers in it to the keys. `& allowed` at the end is for the early rows, where the sort has to
# fill `keep` places with something.

# %% solution="10.5"
def routed_rows_in_loops(to_query, to_key, real, keep):
    chosen = torch.zeros(len(to_query), len(to_key), dtype=torch.bool)
    for i, row in enumerate(to_query.tolist()):
        cluster = row.index(max(row))
        before = [j for j in range(i + 1) if real[j]]
        # sorted keeps the order of equals
        for j in sorted(before, key=lambda j: -to_key[j, cluster].item())[:keep]:
            chosen[i, j] = True
    return chosen


check("10.5", routed_rows_in_loops)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With one query. Which cluster is its own, and which numbers of `to_key` say how close the keys are to *that*
# centroid?
#
# </details>
# <details><summary>Hint 2: it says that a later key is chosen, or padding</summary>
#
# A sort always finds `keep` keys, also where only one may be had. What do you do with the rest?
#
# </details>
# <details><summary>Hint 3: ties</summary>
#
# `topk` promises nothing about equal numbers. `sort(..., stable=True)` does.
#
# </details>

# %% [markdown]
# ## 5. The bill
#
# A mask alone saves nothing. The layer with a pattern still makes the whole map and then sets most of it to 0. Sparse
# has to mean *less work*: `groups.attend` computes the same y from groups of queries and keys, and nothing between
# groups. Count its multiply-adds with torch's counter, for one causal layer with two heads; stride and window are
# $\sqrt n$.

# %%
def multiply_adds(function, *arguments):
    return measure.operations(partial(function, *arguments)) // 2


def bill(n):
    layer = Attention(d_model=32, head=2, max_length=n, score="dot_product", causal=True).eval()
    x, root = torch.randn(1, n, 32), round(n**0.5)
    counted = {"whole map": multiply_adds(layer, x)}
    for name, pattern in {"window": Window(root), "strided": Strided(root),
                          "fixed": Fixed(root)}.items():
        layer.pattern = pattern
        counted[name] = multiply_adds(groups.attend, layer, x)
        assert torch.allclose(layer(x)[0], groups.attend(layer, x), atol=1e-5)
    return counted


bills = {n: bill(n) for n in (64, 256, 1024)}
print("   n" + "".join(f"{name:>14}" for name in bills[64]))
for n, counted in bills.items():
    print(f"{n:4}" + "".join(f"{count:14,}" for count in counted.values()))

# %% [markdown]
# Four times as many tokens: the whole map costs 10, then 14 times as much, the groups about 5 times. (Not 16 and 8:
# the four projections, which no pattern saves, grow 4 times.) So much for the count. *Time* is another matter
# (chapter 11): torch's own fused attention is one kernel, made for this, and it never stores the map. Recorded on one
# core, $n$ from 256 to 8,192, the whole map up to 4,096. From which length on is each faster than that?

# %%
# 256, 512, ..., 8192, or "never"
my_guess = {"window": None, "strided": None, "fixed": None, "routed": None}

# %% fold=true
# @title Read the record
record = json.loads((DATA / "results" / "speed-neighbours.json").read_text(encoding="utf8"))
rows = record["neighbours"]
forms = ("sdpa", "full", "window", "strided", "fixed", "routed")
names = {"sdpa": "torch's fused", "full": "whole map"}
times = {form: bench.series(rows, form, "ms") for form in forms}
memory = {form: bench.series(rows, form, "peak_bytes") for form in forms}
operations = {form: bench.series(rows, form, "operations") for form in forms}

# %%
pays = {form: bench.pays_from(times[form], times["sdpa"]) or "never" for form in my_guess}
compare_guess(my_guess, pays)
print("\nexponent p of time ~ n^p, and of operations, from n = 1,024 on")
for form in forms:
    print(f"{names.get(form, form):14} {bench.slope(times[form]):5.1f} "
          f"{bench.slope(operations[form]):7.1f}")

# %% fold=true
# @title Draw the time, print the memory
fig, panel = plt.subplots(figsize=(3.9, 2.4), layout="constrained")
for number, form in enumerate(forms):
    panel.plot(list(times[form]), list(times[form].values()), color=plots.COLOURS[number],
               linestyle=plots.LINES[number], marker=plots.MARKERS[number], markersize=4,
               label=names.get(form, form))  # fmt: skip
panel.set_xscale("log", base=2)
panel.set_yscale("log")
panel.set_xlabel("length n")
panel.set_ylabel("milliseconds")
panel.legend(fontsize=8)
plots.show(
    fig,
    "time of a forward pass against the length, both on logarithmic scales, one causal layer on "
    "one core. The whole map rises most steeply, torch's fused kernel less, the patterns least, "
    "with routing above the three others.",
)
print("highest memory, in megabytes, at the lengths " + ", ".join(f"{n:,}" for n in memory["sdpa"]))
for form in forms:
    print(f"{names.get(form, form):14}"
          + "".join(f"{value / 1e6:7.1f}" for value in memory[form].values()))

# %% fold=true
# @title Guard: each sentence above and below is true of the counts and of the record
grown = {name: [bills[4 * n][name] / bills[n][name] for n in (64, 256)] for name in bills[64]}
assert [round(times_as_much) for times_as_much in grown.pop("whole map")] == [10, 14]
assert all(4.5 < times_as_much < 5.5 for pair in grown.values() for times_as_much in pair)
for form in ("window", "strided", "fixed"):
    assert times[form][256] > times["sdpa"][256] and bench.slope(times[form]) < 1.3
    assert pays[form] == 512 and times["sdpa"][8192] > 3 * times[form][8192]
assert pays["routed"] == 8192 and times["routed"][8192] > 2 * times["strided"][8192]
assert all(memory[form][n] > memory["sdpa"][n] for form in my_guess for n in memory[form])
assert all(memory[form][n] < memory["full"][n] for form in my_guess for n in memory["full"])
(largest,) = [row["largest"] for row in rows
              if (row["form"], row["length"], row["causal"], row["training"])
              == ("routed", 8192, True, False)]  # fmt: skip
assert largest[0] > 2 * round(8192**0.5)

# %% [markdown]
# Honestly:
#
# - **Patterns of places** pay from 512 tokens on, against the fused kernel; at 256 it is faster. At 8,192 they need
#   less than a third of its time.
# - **Routing** pays at 8,192 only, the longest that was measured. Its clusters are found first, and they are not
#   balanced: the largest one has more than twice $\sqrt n$ queries, and all groups are as large as the largest.
# - **Memory** is no reason, if a fused kernel is at hand: that one needs less than every pattern, because it never
#   stores a map. Against the whole map all of them save.
#
# This is plain torch on one core of a busy machine (processor times, medians of five). Another machine moves the
# lengths, and the exponents of the times a little. Those of the operations are of the idea.

# %% [markdown]
# ## 6. A race that needs far look-ups
#
# Chapter 08's *pair*, made causal and far: 256 tokens, two layers, two heads. A token's pointer names a key that
# stands *at least 64 places before*; the value beside that key is the answer. A small one, 12 tokens and at least 3
# places:

# %%
(value, pointer, key), answers, place = far_look_up(1, torch.Generator().manual_seed(5), length=12,
                                                    vocab=10, far=3)
print("value  ", value[0].tolist())
print("key    ", key[0].tolist())
print("pointer", pointer[0].tolist())
print("answer ", answers[0].tolist())

# %% [markdown]
# (Minus 1: nothing is asked.) Seven models, all with two layers: the dot product with all keys, with a window of 32,
# strided with stride 16, hashed (8 hashes, 32 keys), routed (8 clusters, 32 keys each); Random with all keys, and
# Random with a window of 32. (16 is $\sqrt{256}$. Strided's two heads reach up to 31 keys together, the window's 32;
# each head of hashed and routed chooses 32 of its own, so these two may reach more.) Each has the better of two
# learning rates, found on another seed, and three seeds. For most the higher of the two was better, so one above may be
# better still; the rate of $R$ is always ten times. Before they run, ask their masks. How many of the far pairs can a
# query reach in one layer, and how many through two? For the masks from places that can be computed without any
# training:

# %%
far_pairs = masks.causal(256)[0, 0].tril(-64)
for name, pattern in {"window of 32": Window(32), "strided, stride 16": Strided(16)}.items():
    mask = pattern.mask(256, head=2) & masks.causal(256)
    shares = [reached([mask] * layers)[0][far_pairs].float().mean().item() for layers in (1, 2)]
    print(f"{name:18}  one layer {shares[0]:.2f}, two layers {shares[1]:.2f}")

# %% [markdown]
# Now write down what you expect of each after a short training: "near full" (above 0.8), "counting" (no better than
# one who says the value that has been most common so far, as in chapter 08), or "between".

# %%
my_race = {
    "full": None, "window": None, "strided": None, "hashed": None, "routed": None, "Random": None,
    "Random in a window": None,
}

# %% fold=true
# @title Read the record
header, runs = read_record(DATA / "results" / "neighbours.jsonl")


def of(task, variant, question="final"):
    """The runs of a variant: one for each seed."""
    wanted = task, variant, question
    return [run for run in runs if (run["task"], run["variant"], run["question"]) == wanted]


def span(numbers, digits=2):
    """0.93-0.95: the lowest and the highest of the seeds."""
    return f"{min(numbers):.{digits}f}-{max(numbers):.{digits}f}"


(counting,) = [run["metrics"]["accuracy"] for run in of("far look-up", "counting", "baseline")]
accuracy = {name: [run["metrics"]["accuracy"] for run in of("far look-up", name)]
            for name in my_race}
before = {name: [run["reach_at_start"]["direct"] for run in of("far look-up", name)]
          for name in my_race}
after = {name: [run["reach"]["direct"] for run in of("far look-up", name)] for name in my_race}

# %% fold=true
# @title Print right answers and reach, and compare
print(f"counting is right in {counting:.2f}; of three seeds the lowest and the highest, "
      "test sentences")
print(f"{'':18}  right        one layer reaches the answer: before, after training")
for name in my_race:
    print(f"{name:18}  {span(accuracy[name])}    {span(before[name])}, {span(after[name])}")
print()
compare_guess(my_race, {name: "near full" if min(shares) > 0.8 else "counting"
                        if max(shares) < counting else "between"
                        for name, shares in accuracy.items()})  # fmt: skip

# %% fold=true
# @title Draw the curves
fig, panel = plt.subplots(figsize=(4.6, 2.3), layout="constrained")
for number, name in enumerate(my_race):
    for seed, run in enumerate(of("far look-up", name)):
        panel.plot(*zip(*run["curve"], strict=True), color=plots.COLOURS[number],
                   linestyle=plots.LINES[number],
                   label=name if seed == 0 else None, linewidth=1.2)  # fmt: skip
(floor,) = [run["metrics"]["loss"] for run in of("far look-up", "counting", "baseline")]
panel.axhline(floor, color="grey", linewidth=1)
panel.set_xlabel("training step")
panel.set_ylabel("loss on new sentences (nats)")
fig.legend(fontsize=8, loc="outside right upper")
plots.show(
    fig,
    "loss on new sentences against the training step, three lines for each of seven models, and a "
    "grey line at the loss of counting. Full falls to near 0 first; hashed and routed follow and "
    "are still falling at the end. Window, strided, Random and Random in a window stay above the "
    "grey line.",
)

# %% fold=true
# @title Guard: each sentence below is true of the record
assert all(len(shares) == 3 for shares in accuracy.values())
for name in ("window", "Random in a window"):
    assert max(run["reach_at_start"]["through"] for run in of("far look-up", name)) == 0
    assert max(accuracy[name]) < counting
for run in of("far look-up", "strided"):
    assert run["reach_at_start"]["through"] == 1 and run["reach_at_start"]["direct"] < 0.08
assert max(accuracy["strided"] + accuracy["Random"]) < counting
for name in ("hashed", "routed"):
    assert max(before[name]) < 0.65 and min(after[name]) > 0.9 and min(accuracy[name]) > 0.85
    assert not any(settled(run["curve"]) for run in of("far look-up", name))
assert min(accuracy["full"]) > 0.99 and header["tasks"]["far look-up"]["settings"]["steps"] == 400
assert max(accuracy["hashed"]) > min(accuracy["routed"])

# %% [markdown]
# - **Window, Random in a window:** two layers go 31 + 31 = 62 places back, and the answer stands 64 or more before.
#   The mask alone says that no training helps at this depth. It is the one failure here that is *proven*.
# - **Strided:** through two layers everything is connected, but one layer reaches only few of the answers. Connected
#   is not found: the token in the middle must carry what it does not yet know to be asked for. In this training none
#   of the three got above counting. That is all that was measured; a longer training or another rate may find more.
# - **Hashed and routed:** at the start one layer reaches about half of the answers. After training it is above 0.9:
#   the queries and keys have moved until the *choice* finds the right one, although no gradient passes through it.
#   Both end below full and were still falling; between the two nothing is told apart, their seeds overlap. (Half at
#   the start is more than 32 of 256 keys: there are two heads, and an early row has few keys.)
# - **Random** may look everywhere and reads nothing. It ends at counting, or below. (Chapter 08 has shown that depth
#   can help such an S, with room and time; here it had 400 steps.)
#
# And on text, where near characters tell most? The same seven (routed with 4 clusters), 128 characters of Shakespeare,
# 2,000 steps at the rate that was better after a third of them. Losses are in *nats*: natural logarithms, of one
# character. The *n-grams* count which character follows the last $n - 1$:

# %% fold=true
# @title Print the test losses on characters, and guard what is said of them
characters = {name: of("language model", name) for name in my_race}
of_text = {name: [run["metrics"]["test_loss"] for run in found]
           for name, found in characters.items()}
for name, losses in of_text.items():
    print(f"{name:18}  {span(losses)}")
grams = {n: of("language model", f"{n}-gram", "baseline")[0]["metrics"]["test_loss"]
         for n in range(1, 7)}
print("counting:           " + ", ".join(f"{n}-gram {loss:.2f}" for n, loss in grams.items()))
compared = [loss for name, losses in of_text.items() if "Random" not in name for loss in losses]
assert max(of_text["Random"] + of_text["Random in a window"]) < min(compared)
assert max(of_text["strided"]) < min(of_text["full"]) < max(of_text["window"])
assert min(min(losses) for losses in of_text.values()) > grams[6]
assert not any(settled(run["curve"]) for found in characters.values() for run in found)
assert header["tasks"]["language model"]["settings"]["steps"] == 2000

# %% [markdown]
# The order is nearly the other way round. Both Randoms, which read no token to make their map, are below every run with
# a dot product, and strided, which leaves most keys out, is below full in every seed. Before you conclude that
# comparing is of no use on text: *none of the 21 runs had settled* (a loss that falls by less than 1 % in the last
# fifth of the steps), and counting five characters is better than all of them. It is the order of 2,000 steps at this
# size, so a table of who *learns* fast. In chapter 13 most of such a lead of Random went when the models trained
# longer; what patterns do then was not measured.
#
# ### Stretch 10.6: two sentences that a hash gets wrong
#
# *30 minutes, hard.* You get a layer with hashes, and the same layer without. Find two sentences on which they differ
# by more than a half, for two different reasons. Why the series asks it: who uses an approximation should know on
# what it fails, and be able to make such an input.

# %% exercise="10.6" points=1
def sentences_that_differ(hashed, full, length):
    """Two sentences on which a hashed layer loses more than half of a row.

    full: a layer with one head and the dot product, in evaluation; full(x) gives (y, weights).
    hashed: the same layer, with the same numbers and a pattern, `hashed.pattern`, that keeps 4
    keys. Not causal. d_model is full.score.d_model.

    Returns one float32 tensor, batch length d_model, with two sentences of `length` tokens:
    - in sentence 0 some row loses more than half of its weight in `full`, though no key of it has
      as much as 0.25;
    - in sentence 1 some row has one key with more than 0.5 of the weight in `full`, and `hashed`
      gives it nothing.
    """
    ### BEGIN SOLUTION
    d_model = full.score.d_model
    # the same token everywhere: all weights are 1 / length, and 4 are kept
    even = torch.ones(1, length, d_model)
    generator = torch.Generator().manual_seed(0)
    while True:
        sharp = 5 * torch.randn(1, length, d_model, generator=generator)
        lost = full(sharp)[1].masked_fill(hashed(sharp)[1] > 0, 0)
        if lost.max() > 0.6:
            return torch.cat([even, sharp])
    ### END SOLUTION

# %% check="10.6"
check("10.6", sentences_that_differ)

# %% [markdown] solution="10.6"
# There are two ways to be wrong by more than a half. If many keys count alike, *no* choice of four can hold the row,
# however good its hashes are. If one key counts, the choice must find that one, and eight signs are few: some row of
# a random sentence with large numbers misses it soon. The first sentence can be anything flat, such as zeros or tiny
# numbers.

# %% solution="10.6"
def sentences_from_multiples(hashed, full, length):
    d_model, generator = full.score.d_model, torch.Generator().manual_seed(1)
    while True:
        token = torch.randn(d_model, generator=generator)
        x = 8 * torch.randn(length, 1, generator=generator) * token  # one direction, many lengths
        both = torch.stack([torch.zeros(length, d_model), x])
        if (full(both)[1] * (hashed(both)[1] == 0))[1].max() > 0.6:
            return both


check("10.6", sentences_from_multiples)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With sentence 0. What does a row of weights look like in which no key counts more than another? Which tokens make
# such a row?
#
# </details>
# <details><summary>Hint 2: sentence 1</summary>
#
# Compute both maps of a random sentence and compare them. What makes a row of `full` sharp? You may draw until you
# find one.
#
# </details>

# %% [markdown]
# ## 7. Where they went
#
# | name | year | what it chooses | from | in use today |
# |---|---|---|---|---|
# | Sparse Transformer, [1904.10509](https://arxiv.org/abs/1904.10509) | 2019 | strided, fixed | places | block-sparse |
# | Reformer, [2001.04451](https://arxiv.org/abs/2001.04451) | 2020 | mask: keys whose hashes agree | content |  |
# | Routing Transformer, [2003.05997](https://arxiv.org/abs/2003.05997) | 2020 | mask: clusters | content |  |
# | Longformer, [2004.05150](https://arxiv.org/abs/2004.05150) | 2020 | window, a few see all | places | windows |
# | BigBird, [2007.14062](https://arxiv.org/abs/2007.14062) | 2020 | mask: as before, and random keys | places |  |
# | Synthesizer, [2005.00743](https://arxiv.org/abs/2005.00743) | 2020 | S without comparing | places, or one token | |
# | Wu et al., [2006.05174](https://arxiv.org/abs/2006.05174) | 2020 | ten kinds, in audio models | both |  |
# | Linformer, [2006.04768](https://arxiv.org/abs/2006.04768) | 2020 | fewer keys: a short mixture of them | places |  |
# | Performer, [2009.14794](https://arxiv.org/abs/2009.14794) | 2020 | S without a map: random features | content |  |
# | MLP-Mixer, [2105.01601](https://arxiv.org/abs/2105.01601) | 2021 | S: Random without a softmax | places |  |
# | FNet, [2105.03824](https://arxiv.org/abs/2105.03824) | 2021 | S: a Fourier transform | places |  |
# | gMLP, [2105.08050](https://arxiv.org/abs/2105.08050) | 2021 | S: a learned mix of positions | places |  |
#
# The last column says only what we are sure of. Windows slide in language models, for instance in Mistral 7B, version
# 0.1; kernels skip blocks of a map, as FlexAttention in torch does. An empty place means that we have not looked, not
# that nobody uses it.

# %% fold=true
# @title Guard: a layer with each pattern works with every S, and looks at no later token
for score in ("dot_product", "dense", "random", "factorized_random + dense"):
    layer = Attention(d_model=8, head=2, max_length=16, score=score, causal=True).eval()
    one = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(1))
    other = torch.cat([one[:, :15], 3 - one[:, 15:]], dim=1)
    features = queries_and_keys(layer.score, one)[0].shape[-1]
    for pattern in (Window(4), Strided(4), Fixed(4), Hashed(features, 2, keep=4),
                    Routed(features, 2, 4)):
        layer.pattern = pattern.eval()
        with torch.no_grad():
            assert torch.equal(layer(one)[1][:, :, :15],
                               layer(other)[1][:, :, :15]), (score, pattern)

# %% [markdown]
# ## Three sentences to keep
#
# 1. Whatever S is, the mask may choose the keys: from places, the same for every sentence, or from content; a trained
#    row often needs few keys, but which ones is the task's business.
# 2. A choice can be wrong where no shape and no zero shows it: by the future (the nearest of *all* tokens), by the
#    wrong query, by the length of the padding. Exchange a later token, and look at earlier rows.
# 3. A mask saves nothing until it is computed in groups; then it pays from some length on, and what it can reach can
#    be computed before anything is trained.
#
# **Where it is going next.** You have counted operations here and met times that they do not explain. Chapter 11 asks
# how fast each S is, and why.
