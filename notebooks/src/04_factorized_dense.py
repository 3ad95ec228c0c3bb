# %% [markdown]
# # 04 · Factorized Dense: two short lists make a long row
#
# **You build a Dense whose parameters grow with two factors of the length instead of with the length. You
# count what this saves, and train it on a row that it cannot write.**
#
# - **Before you start:** chapters [00](00_start_here.ipynb), [01](01_dot_product.ipynb) and
#   [02](02_dense.ipynb): layer, relu, head, module. To predict before you look, hide the stored outputs:
#   *Edit*, *Clear Outputs of All Cells* (Colab: *Clear all outputs*).
# - **Time:** about 110 minutes, 67 of them for the five exercises; the stretch exercise takes 35 more.
# - **Level:** medium.
# - **Of use elsewhere:** one axis folded into two, `j // a` and `j % a`, as vision transformers lay the
#   patches of an image in one row; and what a product of few numbers cannot say.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %% fold=true
# @title Imports
from math import gcd, lcm, log

import matplotlib.pyplot as plt
import torch
from einops import einsum, rearrange, repeat
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from synth_lib import plots
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.lab.curves import bars
from synth_lib.scores import Dense, FactorizedDense
from synth_lib.shapes import Axes

torch.set_printoptions(precision=2, sci_mode=False)

# %% [markdown]
# ## The question
#
# In Dense each token writes its own row of scores: a hidden layer $W_1$, $d \to d$, then $W_2$, $d \to l$.
# So $W_2$ has one column for every position. With the paper's $d$ = 512, for longer and longer texts:

# %%
d = 512
for l in (256, 1024, 4096, 16384):
    print(f"l {l:6,}: W1 {d * d:8,} parameters, W2 {d * l:10,}")

# %% [markdown]
# **Can a token write a row of $l$ scores with fewer than $l$ outputs?**
#
# A multiplication table does it. Two numbers along the top, three down the side: five numbers fill six
# cells; 16 and 16 fill 256. Lay its rows one behind the other, and you have a row of scores.

# %%
words = "the dog saw a small bird".split()


def draw(seed, *shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same for the same seed, on every
    machine."""
    generator = torch.Generator().manual_seed(seed)
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


axes = Axes(length=6, d_model=12, tile=2, repeat=3)
x = axes(draw(0, 6, 12, high=2), "length d_model", "x")

# %% [markdown]
# ## The equations
#
# Two functions of token $i$ write two short lists, of $a$ and of $b$ numbers, where $a\,b = l$ (what `tile` and
# `repeat` in the table stand for is explained below):
#
# $$A_i,\ B_i = F_A(X_i),\ F_B(X_i) \tag{5}$$
#
# $H_A$ and $H_B$ stretch both lists to $l$ numbers. They are multiplied number by number ($\ast$):
#
# $$Y = \mathrm{softmax}(C)\, G(X), \qquad C_i = H_A(A_i) \ast H_B(B_i) \tag{6}$$
#
# | paper | here | shape, in axis names | size here | what it is |
# |---|---|---|---|---|
# | $X$ | `x` | length d_model | 6 × 12 | the tokens, one in each row |
# | $A$ | `A` | query tile | 6 × 2 | first short output, $a$ numbers for each token |
# | $B$ | `B` | query repeat | 6 × 3 | second short output, $b$ numbers |
# | $H_A(A)$, $H_B(B)$ | `long_A`, `long_B` | query key | 6 × 6 | both, stretched |
# | $C$ | `scores` | query key | 6 × 6 | how much token $i$ wants position $j$ |

# %%
plots.show(
    plots.flow("Factorized Dense", "its own token"),
    "Y = softmax(S(X) + mask) G(X) as boxes and arrows. The filled box of S, Factorized Dense, "
    "reads its own token.",
)

# %% [markdown]
# > **One letter, two meanings in the paper.** In equation (1) $B$ was the whole table of scores. From
# > equation (5) on $B$ is the second short output, and the scores are $C$.
#
# > **Two stretchings, one word.** Version 1 calls both $H$ "tiling". Read so, products get lost whenever $a$
# > and $b$ have a common divisor above 1: you will count them. Here **A is tiled and B is repeated**, and all $a\,b$
# > products appear. A later survey by the paper's first author says "tile and repeat", too. The axes are called
# > so, `tile` and `repeat`.
#
# ## Tile and repeat, on paper
#
# Let one token have $A$ = (2, 3) and $B$ = (5, 7, 11): primes, so a product tells where it came from.
#
# - **Tile:** lay the whole list again and again, like tiles. $A$: 2 3 · 2 3 · 2 3.
# - **Repeat:** say each number several times before the next. $B$: 5 5 · 7 7 · 11 11.
#
# | position $j$ | 0 | 1 | 2 | 3 | 4 | 5 |
# |---|---|---|---|---|---|---|
# | index into $A$: `j % 2` | 0 | 1 | 0 | 1 | 0 | 1 |
# | index into $B$: `j // 2` | 0 | 0 | 1 | 1 | 2 | 2 |
# | product | 2 · 5 | 3 · 5 | 2 · 7 | 3 · 7 | 2 · 11 | 3 · 11 |
#
# `j // 2` is the whole number of twos in $j$, `j % 2` is what is left; both divide by the length of $A$. So
# **key** $j$ **gets** `A[j % a] * B[j // a]`.

# %%
A_row = axes(torch.tensor([2, 3]), "tile", "A_row")
B_row = axes(torch.tensor([5, 7, 11]), "repeat", "B_row")
a, b = 2, 3
print([(A_row[j % a] * B_row[j // a]).item() for j in range(a * b)])

# %% [markdown]
# ### The same with einops
#
# Beware, one word means three things. `repeat(...)` is a function of einops: it copies along a new axis.
# `repeat` *in a pattern* is our axis, $b$ places. And torch's `.repeat` **tiles**: what repeats is
# `.repeat_interleave`.
#
# In a pattern, brackets on the right merge axes, and the last name in them runs fastest. `(repeat tile)`
# means: for each place of `repeat`, all of `tile`.

# %%
long_A = axes(repeat(A_row, "tile -> (repeat tile)", repeat=3), "key", "long_A")
long_B = axes(repeat(B_row, "repeat -> (repeat tile)", tile=2), "key", "long_B")
print("einops:", long_A.tolist(), long_B.tolist(), long_A * long_B)
print("torch: ", A_row.repeat(3).tolist(), B_row.repeat_interleave(2).tolist())

# %% [markdown]
# ### The row as a picture
#
# No stretching is needed. The *outer product* multiplies every number of one list with every number of the
# other: $b$ rows of $a$ numbers. Its rows, one behind the other, are the row of scores.

# %%
picture = axes(einsum(A_row, B_row, "tile, repeat -> repeat tile"), "repeat tile", "picture")
print(picture)
print(rearrange(picture, "repeat tile -> (repeat tile)"))

# %% [markdown]
# We call this table the *picture* of the row. Position $j$ stands in its row `j // a` and column `j % a`.
# Every row of the picture is a multiple of $A$, every column one of $B$. A table like that, not all zeros, has
# *rank* 1: the rank is the fewest outer products that add up to the table. One number of $A$ moves a
# column, here every second position; one of $B$ moves a row, a block of neighbours.
#
# ### Exercise 04.1: a layer with another order
#
# *13 minutes, easy.* Somebody's layer *repeats A and tiles B*: all products, at other positions. The axis names stay
# with $A$ and $B$: `tile` is still the axis of $A$. Make its scores comparable with yours. You have its finished
# rows, not $A$ and $B$.

# %% exercise="04.1" points=1
def our_order(scores, a):
    """Rows of a layer that repeats A and tiles B, with their positions in the order of this
    chapter.

    scores: query key, as that layer gives them. a: the length of A; that of B follows from the size
    of key.
    Returns the scores, query key, as a layer gives them that tiles A and repeats B.
    """
    ### BEGIN SOLUTION
    return rearrange(scores, "query (tile repeat) -> query (repeat tile)", tile=a)
    ### END SOLUTION

# %% check="04.1"
check("04.1", our_order)

# %% [markdown] solution="04.1"
# In their row the number of $B$ changes from key to key, so `repeat` runs fastest: the row is their picture,
# $a$ rows of $b$. Turned, it is ours. Position by position: key $j$ of ours needs `A[j % a]` and `B[j // a]`,
# and these met at key `(j % a) * b + j // a` of theirs.

# %% solution="04.1"
def our_order_by_index(scores, a):
    key = scores.shape[1]
    j = torch.arange(key)
    return scores[:, (j % a) * (key // a) + j // a]


check("04.1", our_order_by_index)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write down their six products for `A_row` and `B_row`. How many numbers stand in a row of *their* picture?
#
# </details>
# <details><summary>Hint 2: with einops</summary>
#
# Two patterns in one: on the left their order of the two axes, in brackets; on the right ours.
#
# </details>
# <details><summary>Hint 3: the numbers are right, but in other positions</summary>
#
# You have probably gone the way back, from our order to theirs. Which of the two axes has the size `a`?
#
# </details>

# %% [markdown]
# ## Two tiles, or two repeats: what gets lost
#
# What if both are tiled? Shapes fit, nothing complains. How many of $l$ = 96 = 8 × 12 products appear?

# %%
my_guess = {"two tiles": None, "two repeats": None, "tile and repeat": None}  # how many of 96?

# %% [markdown]
# Count which number of $A$ meets which number of $B$ at each position:

# %%
def tiled(n, length):
    """The indices 0 .. n-1, laid again and again."""
    return [j % n for j in range(length)]


def repeated(n, length):
    """The indices 0 .. n-1, each said length / n times."""
    return [j // (length // n) for j in range(length)]


def different_pairs(indices_A, indices_B):
    return len(set(zip(indices_A, indices_B, strict=True)))

# %%
compare_guess(my_guess, {
    "two tiles": different_pairs(tiled(8, 96), tiled(12, 96)),
    "two repeats": different_pairs(repeated(8, 96), repeated(12, 96)),
    "tile and repeat": different_pairs(tiled(8, 96), repeated(12, 96)),
})

# %% [markdown]
# With two tiles a row of 96 scores holds 24 different numbers, each four times. Public code has been seen
# that does this. Nothing can then tell position 0 from 24, 48 or 72, whatever is learned.
#
# Why? Two tiles begin again where $j$ is a multiple of both $a$ and $b$: after the least common multiple,
# $\mathrm{lcm}(a, b)$. With two repeats a new pair begins where $A$ moves on, $a - 1$ times, or $B$, $b - 1$
# times; both at once $\gcd(a, b) - 1$ times (greatest common divisor). With the first pair:
# $a + b - \gcd(a, b)$. All small cases:

# %%
by_tiles, by_repeats = torch.zeros(12, 12), torch.zeros(12, 12)
for a in range(1, 13):
    for b in range(1, 13):
        l = a * b
        two_tiles, two_repeats = (different_pairs(way(a, l), way(b, l))
                                  for way in (tiled, repeated))
        assert two_tiles == lcm(a, b) and two_repeats == a + b - gcd(a, b)
        assert different_pairs(tiled(a, l), repeated(b, l)) == l
        by_tiles[a - 1, b - 1], by_repeats[a - 1, b - 1] = two_tiles / l, two_repeats / l
print("of 144 pairs two tiles reach everything for", int((by_tiles == 1).sum()),
      "and two repeats for",
      int((by_repeats == 1).sum()))
print("16 x 16, two tiles:", different_pairs(tiled(16, 256), tiled(16, 256)), "of 256")

# %% fold=true
# @title Draw both shares
fig, panels = plt.subplots(1, 2, figsize=(5, 2.7), sharey=True, layout="constrained")
shares = {"tile x tile": by_tiles, "repeat x repeat": by_repeats}
for panel, (title, share) in zip(panels, shares.items(), strict=True):
    extent = (0.5, 12.5, 0.5, 12.5)  # the middle of a cell is its a and b
    image = panel.imshow(share.numpy(), cmap="Greys", vmin=0, vmax=1, origin="lower", extent=extent)
    panel.set_title(title, fontsize=9)
    panel.set_xlabel("b")
    panel.set_xticks([1, 4, 8, 12])
    panel.set_yticks([1, 4, 8, 12])
panels[0].set_ylabel("a")
fig.colorbar(image, ax=panels.tolist(), label="share of the a b products", shrink=0.8)
plots.show(
    fig,
    "the share of all a b products that appear, for a and b from 1 to 12. Left, two tiles: black "
    "where a and b have no common divisor but 1, light on the diagonal and wherever they share a "
    "large one. Right, two repeats: black only where a or b is 1, and lightest on the diagonal.",
)

# %% [markdown]
# The square cases, which save most, are the worst. Without a common divisor above 1, as in our 2 × 3, two
# tiles reach everything at other positions: **there a count finds no mistake, a comparison of values does.**
#
# ### Exercise 04.2: how many products does this code reach?
#
# *12 minutes, medium.* You cannot read this code, but you may call it with lists of your own.

# %% exercise="04.2" points=1
def count_products(stretch, a, b):
    """How many different pairs (number of A, number of B) stand in the row that `stretch` makes?

    stretch: a function. stretch(A, B) multiplies one number of A with one number of B at each
        position. It takes tensors of any dtype with a and b numbers, and returns the row, of a * b
        numbers.
    a, b: whole numbers from 1 to 60.
    Returns a whole number.
    """
    ### BEGIN SOLUTION
    A, B = (torch.rand(n, dtype=torch.float64) + 1 for n in (a, b))
    return len(stretch(A, B).unique())
    ### END SOLUTION

# %% check="04.2"
check("04.2", count_products)

# %% [markdown] solution="04.2"
# Count different *values*, with numbers for which two pairs never share a product. Random 64-bit numbers do that for
# all practical purposes (not 32-bit ones, which meet now and then, nor those made from them by `.double()`). Primes do
# it for certain, if $A$ and $B$ share none. So does asking for one pair at a time, with a single 1 in each list:

# %% solution="04.2"
def count_pair_by_pair(stretch, a, b):
    pairs = [(one_A, one_B) for one_A in torch.eye(a) for one_B in torch.eye(b)]
    return sum(bool(stretch(one_A, one_B).any()) for one_A, one_B in pairs)


check("04.2", count_pair_by_pair)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# How did the primes above tell which two numbers had met? What would have happened with 1, 2 and 2, 4, 6? There
# is a second way, without clever numbers: ask for one pair at a time. With which two lists is the row 0 wherever
# another pair stands?
#
# </details>
# <details><summary>Hint 2: my count is too small</summary>
#
# Two different pairs have the same product: 2 · 6 and 3 · 4, or 2 · 3 and 3 · 2, or (-2) · (-3) and 2 · 3. Another
# count each time? Where the lists are long, random numbers of 32 bits meet.
#
# </details>
# <details><summary>Hint 3: my count is too large</summary>
#
# The same value may come again later in the row, not only beside its twin.
#
# </details>

# %% [markdown]
# ## The ladder
#
# $F_A$ and $F_B$ are made as in Dense: a hidden layer with a relu, then a second layer, a short one.
#
# > **The hidden layer is shared.** Equation (5) does not show what $F_A$ and $F_B$ are made of. Table 1 of
# > the paper counts $d^2 + d(k_1 + k_2)$ parameters, with $k_1$, $k_2$ for our $a$, $b$: one matrix $d \to d$.
#
# > **Biases.** As in chapter 02 we compute with them and count without them, as Table 1 does.

# %%
W1, b1 = draw(3, 12, 12, high=0.5), draw(4, 12, high=0.5)
WA, bA = draw(5, 12, 2, high=0.5), draw(6, 2, high=0.5)
WB, bB = draw(7, 12, 3, high=0.5), draw(8, 3, high=0.5)

axes(W1, "d_model d_head", "W1")  # one head: as many hidden numbers as features
axes(WA, "d_head tile", "WA")
axes(WB, "d_head repeat", "WB")
parameters = (W1, b1, WA, bA, WB, bB)

# %% [markdown]
# ### Loops say the equations aloud
#
# One token, two short lists, one product for each position.

# %%
def scores_with_loops(x, W1, b1, WA, bA, WB, bB):
    rows = []
    for x_i in x:
        hidden = (x_i @ W1 + b1).relu()
        A, B = hidden @ WA + bA, hidden @ WB + bB  # equation (5)
        row = []
        for j in range(len(A) * len(B)):  # equation (6)
            row.append(A[j % len(A)] * B[j // len(A)])
        rows.append(torch.stack(row))
    return torch.stack(rows)


scores = axes(scores_with_loops(x, *parameters), "query key", "scores")

# %% [markdown]
# ### All tokens at once
#
# The last step twice: stretched lists, and flattened pictures.

# %%
def short_outputs(x, W1, b1, WA, bA, WB, bB):
    hidden = (x @ W1 + b1).relu()
    return hidden @ WA + bA, hidden @ WB + bB


def scores_with_torch(x, *parameters):
    A, B = short_outputs(x, *parameters)
    return A.repeat(1, B.shape[1]) * B.repeat_interleave(A.shape[1], dim=1)


def scores_with_einsum(x, *parameters):
    A, B = short_outputs(x, *parameters)
    products = einsum(A, B, "query tile, query repeat -> query repeat tile")
    return rearrange(products, "query repeat tile -> query (repeat tile)")


A, B = short_outputs(x, *parameters)
products = axes(einsum(A, B, "query tile, query repeat -> query repeat tile"),
                "query repeat tile", "products")

# %% [markdown]
# Six tokens, and for each a picture of three rows of two.
#
# ### As a module

# %%
class OneHead(nn.Module):
    def __init__(self, d_model, a, b):
        super().__init__()
        self.first = nn.Linear(d_model, d_model)
        self.short_a = nn.Linear(d_model, a)
        self.short_b = nn.Linear(d_model, b)

    def forward(self, x):
        hidden = self.first(x).relu()
        products = einsum(self.short_a(hidden), self.short_b(hidden),
                          "query tile, query repeat -> query repeat tile")
        return rearrange(products, "query repeat tile -> query (repeat tile)")

# %% fold=true
# @title Guard: all four have the same values, and the same gradients
def equal(got, wanted):
    """Same shape, same dtype, same values."""
    same_kind = got.shape == wanted.shape and got.dtype == wanted.dtype
    return same_kind and torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)


module = OneHead(d_model=12, a=2, b=3)
tensors = (W1.T, b1, WA.T, bA, WB.T, bB)  # nn.Linear stores its matrix with the output axis first
module.load_state_dict(dict(zip(module.state_dict(), tensors, strict=True)))
factors = draw(9, 6, 6, high=2)
of_module = torch.autograd.grad((module(x) * factors).sum(), list(module.parameters()))
assert equal(module(x), scores)
for function in (scores_with_loops, scores_with_torch, scores_with_einsum):
    copies = [parameter.clone().requires_grad_() for parameter in parameters]
    got = function(x, *copies)
    assert equal(got, scores)
    for mine, other in zip(torch.autograd.grad((got * factors).sum(), copies), of_module,
                           strict=True):
        assert equal(mine, other.T if other.dim() == 2 else other)

jacobian = torch.autograd.functional.jacobian(lambda tokens: scores_with_einsum(tokens,
                                                                                *parameters), x)
reads = axes(jacobian.abs().amax(dim=(1, 3)) > 0, "query length", "reads")
assert (reads == torch.eye(6, dtype=torch.bool)).all()  # row i reads token i, and no other

# %% [markdown]
# ## What a row looks like
#
# Row $i$ reads token $i$ and no other, as in Dense: *conditioned on* $X_i$ and *local*, in the words of
# Table 1. (The Jacobian of chapter 02 says so, in the guard above.) The map:

# %%
weights = axes(scores.softmax(dim=-1), "query key", "weights")
darkest = zip(words, weights.argmax(dim=1).tolist(), strict=True)
plots.show(
    plots.attention_map(weights, words, keys=[str(position) for position in range(6)]),
    "the attention map of Factorized Dense, a row for each of six words, a column for each "
    "position. The darkest cell of "
    "each row: " + ", ".join(f"{word} at position {j}" for word, j in darkest) + ".",
)

# %% [markdown]
# Now fold each row of *scores* into its picture, three rows of two:

# %%
pictures = rearrange(scores, "query (repeat tile) -> query repeat tile", tile=2)
pictures = axes(pictures, "query repeat tile", "pictures")

# %% fold=true
# @title Draw the six pictures
fig, panels = plt.subplots(1, 6, figsize=(7.2, 2.2), sharey=True, layout="constrained")
largest = pictures.abs().max().item()
for panel, word, row_picture in zip(panels, words, pictures, strict=True):
    image = panel.imshow(row_picture.numpy(), cmap="PuOr", vmin=-largest, vmax=largest)
    for r in range(3):
        for t in range(2):
            panel.text(t, r, f"{row_picture[r, t]:.2f}", ha="center", va="center", fontsize=8,
                       bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    panel.set_title(word, fontsize=9)
    panel.set_xticks([0, 1])
    panel.set_yticks([0, 1, 2])
panels[0].set_ylabel("j // a")
panels[2].set_xlabel("j % a")
fig.colorbar(image, ax=panels.tolist(), label="score", shrink=0.8)
plots.show(
    fig,
    "the six rows of scores as pictures of three rows and two columns, one for each word. In every "
    "picture the second column is the first one times one number, up to rounding.",
)

# %% [markdown]
# In each picture the second column is the first times *one* number. Dense, from the same hidden numbers, is
# free of that:

# %%
dense_scores = axes((x @ W1 + b1).relu() @ draw(10, 12, 6, high=0.5), "query key", "dense_scores")
of_dense = rearrange(dense_scores, "query (repeat tile) -> query repeat tile", tile=2)
print("rank of each picture:", torch.linalg.matrix_rank(pictures).tolist())
print("the same for Dense:  ", torch.linalg.matrix_rank(of_dense).tolist())

# %% [markdown]
# Rank 2 is the largest that three rows of two can have. It is what Factorized Dense gives up.
#
# ## Heads, shorter inputs, masks
#
# You know them from chapter 02. New is this:
#
# - **Heads** split the hidden numbers of the one $W_1$, neighbours together. Each head has two short layers of
#   its own, `WA` and `WB`.
# - **Shorter inputs.** $a\,b$ is `max_length`. Six words in a layer for 12 = 4 × 3 use the first 6 of 12
#   scores, cut *before* the softmax. They would fit into 2 × 3, but $a$ belongs to the layer: with another
#   $a$ position 5 meets other numbers.
# - **Masks** act on scores, not on $A$: one number of $A$ is in every $a$-th position.
#
# ### Exercise 04.3: only the keys that are needed
#
# *22 minutes, medium.* A cache has kept some positions and dropped others. Compute the scores of all heads for
# these alone, biases included. (You may make all $a\,b$ products first. Is it needed?)

# %% exercise="04.3" points=2
def scores_at(x, W1, b1, WA, bA, WB, bB, positions):
    """The scores of every head for the keys at `positions`.

    x: batch length d_model. W1: d_model (head d_head), b1: (head d_head).
    WA: head d_head tile, bA: head tile. WB: head d_head repeat, bB: head repeat.
    positions: key, int64, one at least, in any order; each is at least 0 and below tile * repeat,
    and may come again.
    Returns the scores, batch head query key: entry n of the last axis belongs to the position
    positions[n].
    """
    ### BEGIN SOLUTION
    hidden = torch.relu(x @ W1 + b1)
    hidden = rearrange(hidden, "batch length (head d_head) -> batch head length d_head",
                       head=len(WA))
    A = hidden @ WA + bA[:, None]
    B = hidden @ WB + bB[:, None]
    a = A.shape[-1]
    return A[..., positions % a] * B[..., positions // a]
    ### END SOLUTION

# %% check="04.3"
check("04.3", scores_at)

# %% [markdown] solution="04.3"
# The rule for one key is the whole exercise: `positions % a` and `positions // a` say which two numbers meet,
# and indexing with a tensor picks them for all keys at once. Nothing is stretched, and no product is
# made that is not asked for. Stretching first gives the same scores:

# %% solution="04.3"
def scores_at_after_all(x, W1, b1, WA, bA, WB, bB, positions):
    hidden = (x @ W1 + b1).relu().unflatten(2, (len(WA), -1)).transpose(1, 2)
    A, B = hidden @ WA + bA[:, None], hidden @ WB + bB[:, None]
    every = A.repeat(1, 1, 1, B.shape[-1]) * B.repeat_interleave(A.shape[-1], dim=3)
    return every[..., positions]


check("04.3", scores_at_after_all)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write down the shape after each step: hidden numbers, hidden numbers of each head, $A$, $B$. Then: which
# number of $A$ does position 7 need, if `tile` has the size 3?
#
# </details>
# <details><summary>Hint 2: adding the biases fails</summary>
#
# `bA` is "head tile", and $A$ has `query` between the two. `bA[:, None]` puts an axis of size 1 there.
#
# </details>
# <details><summary>Hint 3: the heads</summary>
#
# `rearrange` cuts `(head d_head)` into two axes and moves `head` to the front. A matrix product with `@` then
# takes one matrix for each head.
#
# </details>

# %% [markdown]
# ## What it costs
#
# ### Parameters
#
# $W_1$ has $d \cdot d$ numbers, the two short layers $d \cdot a$ and $d \cdot b$. Dense has $d \cdot l$ in
# their place. All pairs of factors of 36, up to their order, counted in the library's modules without biases:

# %%
def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


d, l = 64, 36
costs = {"Dense": count(Dense(d, 4, l, bias=False)) - d * d}
for a in (1, 2, 3, 4, 6):
    costs[f"{a} x {l // a}"] = count(FactorizedDense(d, 4, l, a=a, b=l // a, bias=False)) - d * d
    assert costs[f"{a} x {l // a}"] == d * (a + l // a)
plots.show(
    bars(costs, label="parameters after W1"),
    "parameters after the hidden layer, for d = 64 and 36 positions: "
    + ", ".join(f"{pair} {number:,}" for pair, number in costs.items())
    + ". The more square the pair, the lower the bar; 1 x 36 is a little above Dense.",
)

# %% [markdown]
# The most square pair is the smallest, for every length: $(a + b)^2 = (a - b)^2 + 4\,a\,b$, and $a\,b = l$
# is fixed. The library takes it if you name none. But a prime has one pair, 1 and $l$:

# %%
for l in (256, 257, 258, 260, 263, 264):
    pair = FactorizedDense(d_model=1, head=1, max_length=l)
    print(f"l {l} = {pair.a:2} x {pair.b:3}: {pair.a + pair.b:3} outputs for each token, Dense {l}")

# %% [markdown]
# You are free here: `max_length` only has to be *at least* your longest sentence. For 263 words take 264.
#
# ### One hidden layer, two, or none
#
# Equation (5) alone allows three readings; `none`, each factor one matrix without a relu, is that of some public
# code. For $d$ = 1024 and $l$ = 32 = 4 × 8, without biases:

# %%
d, a, b = 1024, 4, 8
readings = {"one, shared": d * d + d * (a + b),
            "one for each": 2 * d * d + d * (a + b), "none": d * (a + b)}
for reading, number in readings.items():
    print(f"hidden layer: {reading:>12}: {number:9,} parameters")
print(f"Table 1, d^2 + d (k1 + k2):  {d**2 + d * (a + b):9,}")
print("the library:               ",
      f"{count(FactorizedDense(d, 1, a * b, a=a, b=b, bias=False)):9,}")

# %% [markdown]
# ### Multiply-adds
#
# For one sentence of length $l$ = `max_length`:
#
# - the hidden layer, $l \times d$ times $d \times d$: $l\,d^2$;
# - the two short layers, over all heads: $l\,d\,(a + b)$, where Dense has $l^2 d$;
# - the products: $l^2$ in each head. torch counts matrix products alone, so we add these.
#
# At the paper's size:

# %%
def multiply_adds(module, *inputs):
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    # the counter counts a multiplication and an addition as two
    return counter.get_total_flops() // 2


l, d, head, a, b = 256, 512, 8, 16, 16
bills = {}
for name in ("dense", "factorized_dense"):
    layer, sentence = Attention(d, head, l, score=name), torch.randn(1, l, d)
    unseen = head * l * l if name == "factorized_dense" else 0
    bills[name] = multiply_adds(layer.score, sentence) + unseen, multiply_adds(layer,
                                                                               sentence) + unseen
    print(f"{name:>16}: scores {bills[name][0]:11,}, whole layer {bills[name][1]:11,}")
assert bills["factorized_dense"][0] == l * d**2 + l * d * (a + b) + head * l * l
shares = [ours / dense for ours, dense in zip(bills["factorized_dense"], bills["dense"],
                                              strict=True)]
print(f"Factorized Dense over Dense: scores {shares[0]:.2f}, whole layer {shares[1]:.2f}")

# %% [markdown]
# The whole layer shrinks less than its scores: values, output and the mixture are as large as before.
#
# ### Exercise 04.4: the best length
#
# *10 minutes, medium.* A `max_length` a little above your longest sentence may cost much less. Which one is best?

# %% exercise="04.4" points=2
def best_length(longest):
    """The max_length from `longest` to `longest` + 8 that gives Factorized Dense the fewest
    parameters.

    longest: a whole number from 1 to 1,100.
    Returns three whole numbers, (max_length, a, b), with a * b equal to max_length and a at most b.
    If several lengths cost the same, the shortest of them.
    """
    ### BEGIN SOLUTION
    best = None
    for length in range(longest, longest + 9):
        for a in range(1, length + 1):
            b = length // a
            if a * b == length and a <= b and (best is None or a + b < sum(best[1:])):
                best = (length, a, b)
    return best
    ### END SOLUTION

# %% check="04.4"
check("04.4", best_length)

# %% [markdown] solution="04.4"
# What counts is the sum $a + b$; the hidden layer is the same for all. The most square pair is best for *one*
# length, but not among several: for a longest sentence of 10, 16 = 4 × 4 is square, and 12 = 3 × 4 is
# cheaper. From the other side: which is the smallest sum for which a pair reaches a length in the window?

# %% solution="04.4"
def best_length_by_sum(longest):
    for total in range(2, longest + 2):
        pairs = [(a * (total - a), a, total - a) for a in range(1, total // 2 + 1)]
        fitting = [pair for pair in pairs if longest <= pair[0] <= longest + 8]
        if fitting:
            return min(fitting)


check("04.4", best_length_by_sum)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# What exactly should be small? Write the number of parameters of one pair, and drop what is the same for all.
#
# </details>
# <details><summary>Hint 2: it works for some lengths only</summary>
#
# Try 10 by hand, with all nine lengths and all their pairs. Does your search reach the last length, and a
# length that is a square? What happens if two lengths have the same sum?
#
# </details>

# %% fold=true
# @title The same as the library's layer: the whole layer rebuilt from its own parameters
_ = torch.manual_seed(0)
axes_layer = Axes(batch=2, head=5, length=6, d_model=40, tile=4, repeat=3)
two_sentences = axes_layer(draw(11, 2, 6, 40, high=2), "batch length d_model", "two_sentences")
layer = Attention(d_model=40, head=5, max_length=12, score="factorized_dense", a=4, b=3)
S, heads_apart = layer.score, "batch length (head d_head) -> batch head length d_head"


def rebuilt(x):
    hidden = rearrange(S.hidden(x).relu(), heads_apart, head=5)
    A, B = hidden @ S.weight_a + S.bias_a[:, None], hidden @ S.weight_b + S.bias_b[:, None]
    scores = torch.stack([A[..., j % 4] * B[..., j // 4] for j in range(x.shape[1])], dim=-1)
    weights = axes_layer(scores.softmax(dim=-1), "batch head query key", "weights")
    mixed = weights @ rearrange(layer.value(x), heads_apart, head=5)
    return layer.output(rearrange(mixed, "batch head length d_head -> batch "
                                         "length (head d_head)")), weights


(y, our_weights), (library_y, library_weights) = rebuilt(two_sentences), layer(two_sentences)
assert equal(y, library_y) and equal(our_weights, library_weights)
y_factors = draw(19, 2, 6, 40, high=2)
gradients = [torch.autograd.grad((out * y_factors).sum(), list(layer.parameters()))
             for out in (y, library_y)]
assert all(equal(mine, other) for mine, other in zip(*gradients, strict=True))
print("The library's layer: the same weights, outputs and gradients as rebuilt here.")

# %% [markdown]
# > **The start.** The paper states none. The library draws the two short layers as `nn.Linear` would, uniformly
# > within $1/\sqrt{d_\text{head}}$.
#
# ## Where it breaks
#
# The limits of Dense stay: a row knows its own token alone, and `max_length` is fixed. A new one: some rows
# cannot be written by any token.
#
# ### Fewer numbers than positions
#
# A row of weights over $l$ positions has $l - 1$ free numbers, since they sum to 1. $A$ and $B$ have $a + b$;
# one is lost, because twice $A$ and half of $B$ give the same products.

# %%
for a, b in ((2, 3), (4, 8), (16, 16)):
    print(f"{a} x {b}: {a + b - 1} free numbers for {a * b - 1}")

# %% [markdown]
# So almost no row can be met exactly; how near a table of low rank can come is a subject of chapter 05. First two
# rows that look impossible and are not.
#
# ### What helps: a constant, and a sign
#
# **Every position but the last, equally.** As scores: 1 everywhere, 0 at the end, which has rank 2. But the
# softmax forgives a constant: subtract 1, and the weights stay. A single number is not 0, and the rank is 1.

# %%
all_but_last = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
for picture_of_row in (all_but_last, all_but_last - 1):
    rank = torch.linalg.matrix_rank(picture_of_row).item()
    # times 9: a clear gap between 0 and 1
    weights_of_row = (9 * picture_of_row).flatten().softmax(dim=0)
    print("rank", rank, "weights", [f"{weight:.2f}" for weight in weights_of_row])

# %% [markdown]
# **Two positions that share neither row nor column**, such as 0 and 3, at (0, 0) and (1, 1). With all four
# numbers large, the crossing positions 1 and 2 get the same large score. The way out is a sign: minus times
# minus is plus, and the crossing positions get a large *negative* score.

# %%
for A_two, B_two in (([2.5, 2.5], [2.5, 2.5, 0.0]), ([2.5, -2.5], [2.5, -2.5, 0.0])):
    row = einsum(torch.tensor(A_two), torch.tensor(B_two), "tile, repeat -> repeat tile").flatten()
    print("A", A_two, "weights", [f"{weight:.2f}" for weight in row.softmax(dim=0)])

# %% [markdown]
# ### What fails: three positions on a diagonal
#
# Take three wanted positions, no two in the same row or column of the picture. Each has its own number of $A$,
# and two of these three numbers have the same sign, if 0 counts as plus. Draw their columns and rows, say with plus:
#
# | | column of $p$: $A$ = 1 | column of $q$: $A$ = 2 |
# |---|---|---|
# | row of $p$: $B$ = **3** | $p$ is wanted: 3 | crossing: **6** |
# | row of $q$: $B$ = 1 | 1 | $q$ is wanted: **2** |
#
# Take the row with the *larger* $B$, here that of $p$, and in it the *other* column, that of $q$. Both cells of that
# column have the same $A$, so the larger $B$ gives the larger score: the crossing position scores at least as
# high as $q$, and nobody wants it. (With minus signs take the smaller $B$.) A constant changes no order.
#
# Such rows are not exotic. With $a$ = 3 "every fourth" of 12 positions is one. "Every third" is a column:

# %%
def every(step, length=12):
    """Row i spreads its weight equally over the positions i, i + step, i - step, ..."""
    position = torch.arange(length)
    wanted = ((position[:, None] - position) % step == 0).float()
    return wanted / wanted.sum(dim=1, keepdim=True)


for step in (3, 4):
    print(f"every {step}, as a picture of 3 columns:")
    for row_of_picture in rearrange(every(step)[0] > 0, "(repeat tile) -> repeat tile",
                                    tile=3).int().tolist():
        print("  ", *row_of_picture)

# %% [markdown]
# ### Trained: every third, every fourth
#
# Now let modules learn both: 12 tokens, each with its row as a target, 300 steps. Which will get there?

# %%
my_guess = {
    "3 x 4, every third": None, "4 x 3, every third": None, "Dense, every third": None,
    "3 x 4, every fourth": None, "4 x 3, every fourth": None, "Dense, every fourth": None,
}  # yes or no

# %% [markdown]
# The *Kullback-Leibler divergence* measures the gap: the sum over $j$ of target · log(target / weight). It is 0
# where a row is its target.

# %%
def gap(target, scores):
    """Kullback-Leibler divergence of each row. Positions without a target add nothing."""
    return (target * (target.clamp(min=1e-9).log() - scores.log_softmax(dim=1))).sum(dim=1)


def fit(score, tokens, target, steps=300):
    """Train `score` until its map is as near to `target` as it gets. -> the map, the gap of each
    row"""
    optimizer = torch.optim.Adam(score.parameters(), lr=0.01)
    for _ in range(steps):
        loss = gap(target, score(tokens[None])[0, 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = score(tokens[None])[0, 0].detach()
    return scores.softmax(dim=1), gap(target, scores)

# %%
tokens = Axes(length=12, d_model=32)(draw(18, 12, 32, high=1), "length d_model", "tokens")
fits = {}
for step, name in ((3, "every third"), (4, "every fourth")):
    for module_name, pair in (("3 x 4", (3, 4)), ("4 x 3", (4, 3)), ("Dense", None)):
        _ = torch.manual_seed(0)
        score = FactorizedDense(32, 1, 12, a=pair[0], b=pair[1]) if pair else Dense(32, 1, 12)
        fits[f"{module_name}, {name}"] = fit(score, tokens, every(step))

compare_guess(my_guess, {name: bool(gaps.max() < 0.02) for name, (_, gaps) in fits.items()})

# %% [markdown]
# Factorized Dense learns the row that is a column of its picture. **The choice of $a$ and $b$ is a choice of what is
# easy.** And what does 3 × 4 do about "every fourth"?

# %%
map_fitted, gaps = fits["3 x 4, every fourth"]
maps = torch.stack([every(4), map_fitted, fits["Dense, every fourth"][0]])
titles = ["target", "Factorized 3 x 4", "Dense"]
fig = plots.attention_map(maps, [str(position) for position in range(12)], titles=titles)
fig.set_size_inches(6.5, 2.8)
plots.show(
    fig,
    "three attention maps over 12 positions. Target: every row has three cells of the same grey, "
    "four positions apart. Factorized Dense with 3 x 4: every row has one dark cell and four "
    "lighter ones, two of them at positions that the target leaves white. Dense: the same as the "
    "target.",
)

# %%
largest_first = map_fitted.sort(dim=1, descending=True).values.mean(dim=0)
print("weights, the largest first, mean over the rows:",
      [f"{weight:.2f}" for weight in largest_first[:6]])
print(f"gap, mean over the rows: {gaps.mean():.2f}; 2/3 log 2 = {2 / 3 * log(2):.2f}")

# %% [markdown]
# Every row ends at the same answer: one wanted position gets its 1/3, and the other two share the rest with
# their two crossing positions, 1/6 each: a gap of $\frac{2}{3} \log 2$.
#
# ### Exercise 04.5: can this row be made?
#
# *10 minutes, medium.* Which rows of *scores* are products? (Leave out the constant of the softmax.)

# %% exercise="04.5" points=3
def can_be_made(scores, a):
    """Which rows of scores could a token of Factorized Dense write?

    scores: query key, where key has a * b positions, b follows. a: the size of tile.
    Returns a bool tensor, query: True for row i if there are A and B with
    scores[i, j] = A[j % a] * B[j // a] for every j.

    Differences of up to 0.0001 are rounding. A row that misses every product by 0.01 or more cannot
    be made.
    Both numbers hold for rows of small and of large scores. Scores may be 0; a row of zeros can be
    made (A = 0).
    """
    ### BEGIN SOLUTION
    rows_as_pictures = rearrange(scores, "query (repeat tile) -> query repeat tile", tile=a)
    return torch.linalg.matrix_rank(rows_as_pictures, atol=1e-3) <= 1
    ### END SOLUTION

# %% check="04.5"
check("04.5", can_be_made)

# %% [markdown] solution="04.5"
# A row can be made if and only if its picture has rank 0 or 1. `atol` lies between the two limits; without it torch
# measures against the largest part of each picture, so that 0.0001 counts as rank. Without the word rank: take the
# largest number of the picture. Its row and its column predict all other numbers, if the picture is a product.

# %% solution="04.5"
def can_be_rebuilt(scores, a):
    answers = []
    for picture in scores.unflatten(1, (-1, a)):
        row, column = divmod(picture.abs().argmax().item(), a)
        corner = picture[row, column] if picture.any() else torch.ones(())
        rebuilt = torch.outer(picture[:, column], picture[row]) / corner
        answers.append(bool((rebuilt - picture).abs().max() < 0.001))
    return torch.tensor(answers)


check("04.5", can_be_rebuilt)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Fold every row into its picture. Which property do exactly the pictures of products have?
#
# </details>
# <details><summary>Hint 2: without the word rank</summary>
#
# In a product, any two rows of the picture are multiples of each other. So one of its rows and one of its columns tell
# all other numbers. Which row and column can you take without ever dividing by 0, or by almost 0?
#
# </details>
# <details><summary>Hint 3: some rows are wrong</summary>
#
# Is your picture $b$ rows of $a$ numbers, and not $a$ rows of $b$? Do you look at all of it? And where is the limit?
# `torch.linalg.matrix_rank` has two arguments for one: `rtol` measures against the largest part, `atol` does not.
#
# </details>

# %% [markdown]
# ### Stretch 04.6: pick positions with two lists
#
# *35 minutes, hard.* A block is easy, two on a diagonal need a sign, three cannot be had: which patterns can, in all?
# Many answers are right; the check looks at the weights that your lists give. Why the series asks: to know
# what an S cannot say, *before* any training, is worth more than a run that fails.

# %% exercise="04.6" points=1
def lists_for(wanted):
    """Two lists whose row gives the weight to the wanted positions, in equal shares.

    wanted: repeat tile, bool: the picture of the row, True where weight is wanted; at least one is.
    repeat and tile are at most 5. Returns a tuple of two tensors (A, B), tile and repeat, that hold
    whole numbers from -100 to 100, such that softmax(products) in 32 bits gives each of the n
    wanted positions at least 0.99 / n. Returns None where no two such lists do that.
    """
    ### BEGIN SOLUTION
    b, a = wanted.shape
    every_A = torch.cartesian_prod(*[torch.tensor([-4.0, 0.0, 4.0])] * a).reshape(-1, a)
    every_B = torch.cartesian_prod(*[torch.tensor([-4.0, 0.0, 4.0])] * b).reshape(-1, b)
    for B in every_B:
        rows = (every_A[:, None, :] * B[:, None]).flatten(1).softmax(dim=1)
        good = (rows[:, wanted.flatten()] >= 0.99 / wanted.sum()).all(dim=1)
        if good.any():
            return every_A[good][0], B
    return None
    ### END SOLUTION

# %% check="04.6"
check("04.6", lists_for)

# %% [markdown] solution="04.6"
# With whole numbers equal shares need equal scores, the highest of the row: a difference of 1 is a factor of e. (Small
# fractions could hide in the one percent that is left.) A product is highest on a block (one sign), on two blocks
# that share no row and no column (two signs), or, if the highest score is 0, outside of a block. For each of the
# three -4, 0 and 4 are enough (16 is a clear gap), so try all combinations; or see at once which of the three it is:

# %% solution="04.6"
def lists_by_pattern(wanted):
    def block(cells):
        columns, rows = cells.any(dim=0), cells.any(dim=1)
        return (columns, rows) if (cells == rows[:, None] & columns).all() else None

    if found := block(wanted):
        return 4.0 * found[0], 4.0 * found[1]
    if found := block(~wanted):
        return 4.0 * found[0], -4.0 * found[1]
    # the columns of one block; the other block must leave them alone
    first = wanted[wanted.any(dim=1)][0]
    in_first = (wanted == first).all(dim=1, keepdim=True)
    one, two = block(wanted & in_first), block(wanted & ~in_first)
    if one and two and not (one[0] & two[0]).any():
        return 4.0 * one[0] - 4.0 * two[0], 4.0 * one[1] - 4.0 * two[1]
    return None


check("04.6", lists_by_pattern)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Which numbers of $A$ and $B$ make a block? Which make the two examples of "What helps"? What do all of these have in
# common?
#
# </details>
# <details><summary>Hint 2: how do I know that no lists exist?</summary>
#
# Three numbers are enough for each place: large, 0, and large with a minus. (With whole numbers, which scores give
# equal shares? Why is no other number needed?) How many combinations are there for 3 × 4?
#
# </details>
# <details><summary>Hint 3: the right positions, but the shares are too small</summary>
#
# How large must the gap between wanted and unwanted scores be, so that the unwanted get 0.01 together?
#
# </details>

# %% [markdown]
# ## Three sentences to keep
#
# 1. Factorized Dense writes a row of $l = a\,b$ scores as products of two short lists: key $j$ gets `A[j %
#    a] * B[j // a]`, one list tiled, the other repeated; two tiles or two repeats lose products in silence.
# 2. It has $d^2 + d(a + b)$ parameters with one shared hidden layer; the most square pair is the smallest,
#    and a prime length costs more than Dense.
# 3. Every row of scores, folded into $b$ rows of $a$, has rank 1: columns and blocks are easy, three positions
#    on a diagonal cannot be had.
#
# **Where it is going next.** The same idea without a token: the table $R$ of chapter 03, as a product of
# two thin matrices. That is [chapter 05](05_factorized_random.ipynb), Factorized Random.
