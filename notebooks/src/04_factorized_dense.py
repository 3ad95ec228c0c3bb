# %% [markdown]
# # 04 · Factorized Dense: two short lists make a long row
#
# **You build a Dense whose parameters grow with two factors of the length instead of with the length. You
# count what this saves, find the one stretching that works, and meet the rows that it cannot write.**
#
# - **Before you start:** [chapter 00](00_start_here.ipynb) and [chapter 02](02_dense.ipynb): the words of
#   chapter 02 (layer, relu, head, module, gradient, Jacobian) are used here without a new explanation.
# - **Time:** about 100 minutes, 58 of them for the five exercises.
# - **Level:** medium.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %%
from math import gcd, lcm, log

import torch
from einops import einsum, rearrange, repeat
from torch import nn

from synth_lib import masks, plots
from synth_lib.attention import Attention
from synth_lib.checks import check
from synth_lib.lab.curves import bars
from synth_lib.scores import Dense, FactorizedDense
from synth_lib.shapes import Axes

torch.set_printoptions(precision=2, sci_mode=False)

# %% [markdown]
# ## The question
#
# In Dense each token writes its own row of scores: a hidden layer $W_1$, $d \to d$, then $W_2$, $d \to l$.
# So $W_2$ has one column for every position, and grows with the length. The paper's translation models have
# $d$ = 512 and $l$ = 256. Look at what happens to the second layer when the text gets longer:

# %%
d = 512
for l in (256, 1024, 4096, 16384):
    print(f"l {l:6,}: W1 {d * d:8,} parameters, W2 {d * l:10,}")

# %% [markdown]
# **Can a token write a row of $l$ scores with fewer than $l$ outputs?**
#
# A multiplication table does it. Two numbers along the top, three down the side: five numbers fill six
# cells. With 16 and 16, 32 numbers fill 256 cells. Lay the rows of that table one behind the other, and you
# have a row of $l$ scores.
#
# Our example has six positions again, so 2 times 3 is enough to see everything. Every call of `draw` has a
# number of its own, its *seed*, so a cell that you run twice gives the same.

# %%
words = "the dog saw a small bird".split()


def draw(seed, *shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same for the same seed, on every machine."""
    generator = torch.Generator().manual_seed(seed)
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


axes = Axes(length=6, d_model=12, tile=2, repeat=3)
x = axes(draw(0, 6, 12, high=2), "length d_model", "x")

# %% [markdown]
# ## The equations
#
# Two functions of token $i$ write two short lists, of $a$ and of $b$ numbers, where $a\,b = l$:
#
# $$A_i,\ B_i = F_A(X_i),\ F_B(X_i) \tag{5}$$
#
# $H_A$ and $H_B$ stretch both lists to $l$ numbers. They are multiplied number by number (that is what
# $\ast$ means), and the rest is as before:
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
#
# The axes are called `tile` and `repeat` after the way in which each is stretched, as you will see. Their
# sizes are $a$ and $b$.
#
# > **One letter, two meanings in the paper.** In equation (1) $B$ was the whole table of scores. From
# > equation (5) on $B$ is the second short output, and the scores are $C$. This chapter keeps to that.
#
# > **Two stretchings, one word.** Version 1 calls both $H$ "tiling". Read so, products get lost whenever $a$
# > and $b$ have a common divisor: you will count them. Here **A is tiled and B is repeated**, and all $a\,b$
# > products appear, for every $a$ and $b$. A later survey by the paper's first author says "tile and repeat",
# > too. Which of the two lists is tiled changes no more than the order of the positions; the library does it as
# > we do.
#
# ## Tile and repeat, on paper
#
# Take one token. Let $A$ = (2, 3) and $B$ = (5, 7, 11). All five are primes, so every product tells which
# two numbers it came from.
#
# - **Tile:** lay the whole list again and again, like tiles. $A$: 2 3 · 2 3 · 2 3.
# - **Repeat:** say each number several times before the next. $B$: 5 5 · 7 7 · 11 11.
#
# | position $j$ | 0 | 1 | 2 | 3 | 4 | 5 |
# |---|---|---|---|---|---|---|
# | index into $A$: `j % 2` | 0 | 1 | 0 | 1 | 0 | 1 |
# | index into $B$: `j // 2` | 0 | 0 | 1 | 1 | 2 | 2 |
# | $A$ tiled | 2 | 3 | 2 | 3 | 2 | 3 |
# | $B$ repeated | 5 | 5 | 7 | 7 | 11 | 11 |
# | product | 10 | 15 | 14 | 21 | 22 | 33 |
#
# `j // 2` is the whole number of twos in $j$, and `j % 2` is what is left. Both divide by $a$, the length
# of $A$. So the rule is: **key** $j$ **gets** `A[j % a] * B[j // a]`.

# %%
A_row = axes(torch.tensor([2, 3]), "tile", "A_row")
B_row = axes(torch.tensor([5, 7, 11]), "repeat", "B_row")
a, b = 2, 3
print([(A_row[j % a] * B_row[j // a]).item() for j in range(a * b)])

# %% [markdown]
# ### The same with einops
#
# Brackets on the right merge axes, and the last name in the brackets runs fastest. `(repeat tile)` means:
# for each index of `repeat`, all of `tile`. So one pattern tiles and the other repeats, and the only
# difference is which of the two axes is new. (`repeat` is also the name of the function. It copies along a
# new axis; the word in the pattern is our axis.)

# %%
long_A = axes(repeat(A_row, "tile -> (repeat tile)", repeat=3), "key", "long_A")
long_B = axes(repeat(B_row, "repeat -> (repeat tile)", tile=2), "key", "long_B")
print(long_A, long_B, long_A * long_B)

# %% [markdown]
# torch has both, under names that mislead: `.repeat` **tiles**, and `.repeat_interleave` repeats. The
# number is how often.

# %%
print(A_row.repeat(3), B_row.repeat_interleave(2))
print("not what you want for B:", B_row.repeat(2))

# %% [markdown]
# ### The row as a picture
#
# No stretching is needed, if you think of the table first. The *outer product* multiplies every number of
# one list with every number of the other. Here it has `repeat` for its rows and `tile` for its columns: $b$
# rows of $a$ numbers. Lay its rows one behind the other, and you have the row of scores.

# %%
picture = axes(einsum(A_row, B_row, "tile, repeat -> repeat tile"), "repeat tile", "picture")
print(picture)
print(rearrange(picture, "repeat tile -> (repeat tile)"))

# %% [markdown]
# We call this table the *picture* of the row. Position $j$ stands in its row `j // a` and column `j % a`.
# Every row of the picture is a multiple of $A$, every column a multiple of $B$. A table like that, not all
# zeros, has *rank* 1. The rank says how many outer products you must add up to get the table; remember it
# for the end of the chapter.
#
# What can one number do? Change one number of $A$: a column of the picture moves. Change one of $B$: a row
# of the picture moves, which is a block of neighbours.

# %%
other_A, other_B = A_row.clone(), B_row.clone()
other_A[1] += 1
other_B[1] += 1
moved_by_A = (einsum(other_A, B_row, "tile, repeat -> repeat tile") != picture).flatten()
moved_by_B = (einsum(A_row, other_B, "tile, repeat -> repeat tile") != picture).flatten()
print("A[1] moves the positions", moved_by_A.nonzero().flatten().tolist())
print("B[1] moves the positions", moved_by_B.nonzero().flatten().tolist())

# %% [markdown]
# ### Exercise 04.1: rows of scores from A and B
#
# *10 minutes, easy.* The same for many tokens at once: each has its own $A$ and its own $B$.

# %% exercise="04.1" points=1
def product_rows(A, B):
    """Stretch both short outputs and multiply them.

    A: query tile. B: query repeat. Returns the scores, query key, where key has tile * repeat positions.
    In loops, with a for the size of tile and b for the size of repeat:

        for i in range(number of queries):
            for j in range(a * b):
                scores[i, j] = A[i, j % a] * B[i, j // a]
    """
    ### BEGIN SOLUTION
    pictures = einsum(A, B, "query tile, query repeat -> query repeat tile")
    return rearrange(pictures, "query repeat tile -> query (repeat tile)")
    ### END SOLUTION

# %% check="04.1"
check("04.1", product_rows)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Take one of the three ways above: two stretched lists, or a picture that is flattened, or the loops. Put
# `query` in front of every pattern.
#
# </details>
# <details><summary>Hint 2: I want to write the loops</summary>
#
# Start with `query, a = A.shape` and `b = B.shape[1]`, and make `scores` with `torch.zeros`.
#
# </details>
# <details><summary>Hint 3: the shape is right, the values are not</summary>
#
# Try your function on `A_row[None]` and `B_row[None]`, the primes above; `[None]` makes one query of them.
# Factor each number of your result: which two numbers met, and which should have met at that position?
#
# </details>

# %% [markdown]
# ## Two tiles, or two repeats: what gets lost
#
# What if both are tiled, as the word in the paper says? Shapes fit, nothing complains. Take $l$ = 32 = 4 ×
# 8, and write down which number of $A$ meets which number of $B$ at each position:

# %%
def tiled(n, length):
    """The indices 0 .. n-1, laid again and again."""
    return [j % n for j in range(length)]


def repeated(n, length):
    """The indices 0 .. n-1, each said length / n times."""
    return [j // (length // n) for j in range(length)]


def different_pairs(indices_A, indices_B):
    return len(set(zip(indices_A, indices_B, strict=True)))


print("tile x tile:    ", different_pairs(tiled(4, 32), tiled(8, 32)), "different products of 32")
print("repeat x repeat:", different_pairs(repeated(4, 32), repeated(8, 32)), "different products of 32")
print("tile x repeat:  ", different_pairs(tiled(4, 32), repeated(8, 32)), "different products of 32")

# %% [markdown]
# With two tiles a row of 32 scores holds 8 different numbers, each four times. Public code has been seen
# that does this. Nothing can then tell position 0 from position 8, 16 or 24: they have the same score, whatever
# is learned.

# %%
A_32, B_32 = draw(1, 4, high=2), draw(2, 8, high=2)
both_tiled = A_32.repeat(8) * B_32.repeat(4)
positions = torch.arange(0, 32, 8)
print("positions", positions.tolist(), "have one score:", bool((both_tiled[positions] == both_tiled[0]).all()))

# %% [markdown]
# ### Exercise 04.2: how many different products?
#
# *8 minutes, easy.* Count for any $a$ and $b$, in all three cases. A formula is as good as a count.

# %% exercise="04.2" points=1
def count_products(a, b):
    """How many different pairs (index into A, index into B) stand in a row of a * b positions?

    a, b: the lengths of A and B, whole numbers of at least 1.
    Returns three whole numbers, (two_tiles, two_repeats, tile_and_repeat): both lists tiled, both repeated,
    A tiled and B repeated.
    """
    ### BEGIN SOLUTION
    shared = gcd(a, b)
    return a * b // shared, a + b - shared, a * b
    ### END SOLUTION

# %% check="04.2"
check("04.2", count_products)

# %% [markdown]
# <details><summary>Hint 1: count</summary>
#
# Make the two lists of indices for all positions, pair them with `zip`, and let `set` remove what comes twice.
#
# </details>
# <details><summary>Hint 2: a formula for two tiles</summary>
#
# The pair of position 0 is (0, 0). Which is the next position with the pair (0, 0)? From there on everything
# comes again.
#
# </details>
# <details><summary>Hint 3: a formula for two repeats</summary>
#
# Walk along the row. A new pair begins only where one of the lists moves on. How often does each of them
# move on, and how often do both at the same position?
#
# </details>

# %% [markdown]
# ### All small cases, counted
#
# Two tiles begin again where $j$ is a multiple of both $a$ and $b$. So they reach $\mathrm{lcm}(a, b)$
# products, the least common multiple. With two repeats a new pair begins where $A$ moves on, $a - 1$ times,
# or where $B$ does, $b - 1$ times; both at once $\gcd(a, b) - 1$ times, with the greatest common divisor.
# Together with the first pair this makes $a + b - \gcd(a, b)$. Do the counts agree?

# %%
sizes = range(1, 13)
by_tiles, by_repeats = torch.zeros(12, 12), torch.zeros(12, 12)
for a in sizes:
    for b in sizes:
        length = a * b
        two_tiles = different_pairs(tiled(a, length), tiled(b, length))
        two_repeats = different_pairs(repeated(a, length), repeated(b, length))
        assert two_tiles == lcm(a, b) and two_repeats == a + b - gcd(a, b)
        assert different_pairs(tiled(a, length), repeated(b, length)) == length
        by_tiles[a - 1, b - 1] = two_tiles / length
        by_repeats[a - 1, b - 1] = two_repeats / length
print("all 144 pairs agree with the formulas")
print("two tiles reach everything for", int((by_tiles == 1).sum()), "pairs, two repeats for",
      int((by_repeats == 1).sum()))
print("16 x 16, two tiles:", different_pairs(tiled(16, 256), tiled(16, 256)), "of 256")

# %%
import matplotlib.pyplot as plt

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
    "the share of all a b products that appear, for a and b from 1 to 12. Left, two tiles: black where a and "
    "b have no common divisor but 1, light on the diagonal and wherever they share a large one. Right, two "
    "repeats: black only where a or b is 1, and lighter the larger both are.",
)

# %% [markdown]
# Two things to take along. The square cases, which save most, are the worst: with 16 × 16 two tiles reach
# 16 of 256. And where $a$ and $b$ have no common divisor, two tiles reach everything, only at other positions.
# Our 2 × 3 is such a case. **A count on 2 × 3 finds no mistake, a comparison of values does:**

# %%
two_tiles = A_row.repeat(3) * B_row.repeat(2)
print(two_tiles.tolist(), "instead of", (long_A * long_B).tolist())

# %% [markdown]
# ## The ladder
#
# Now from tokens to scores. $F_A$ and $F_B$ are made as in Dense: a hidden layer with a relu, then a second
# layer, short this time.
#
# > **The hidden layer is shared.** Equation (5) does not show what $F_A$ and $F_B$ are made of. Table 1 of
# > the paper counts $d^2 + d(k_1 + k_2)$ parameters, with $k_1$, $k_2$ for our $a$, $b$. One matrix $d \to
# > d$, not two: both functions read the same hidden numbers. The section on cost counts the other readings.
#
# > **Biases.** As in chapter 02 we compute with them and count without them, as Table 1 does.

# %%
W1, b1 = draw(3, 12, 12, high=0.5), draw(4, 12, high=0.5)
WA, bA = draw(5, 12, 2, high=0.5), draw(6, 2, high=0.5)
WB, bB = draw(7, 12, 3, high=0.5), draw(8, 3, high=0.5)

axes(W1, "d_model d_head", "W1")  # one head: as many hidden numbers as features
axes(b1, "d_head", "b1")
axes(WA, "d_head tile", "WA")
axes(bA, "tile", "bA")
axes(WB, "d_head repeat", "WB")
axes(bB, "repeat", "bB")
parameters = (W1, b1, WA, bA, WB, bB)

# %% [markdown]
# ### Loops say the equations aloud
#
# One token, two short lists, one product for each position. No other token comes in.

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
# Three ways to write the last step. The first two stretch, with torch and with einops; the third makes the
# pictures and flattens them. Predict the shape of `products` before it is flattened.

# %%
def short_outputs(x, W1, b1, WA, bA, WB, bB):
    hidden = (x @ W1 + b1).relu()
    return hidden @ WA + bA, hidden @ WB + bB


def scores_with_torch(x, *parameters):
    A, B = short_outputs(x, *parameters)
    return A.repeat(1, B.shape[1]) * B.repeat_interleave(A.shape[1], dim=1)


def scores_with_repeat(x, *parameters):
    A, B = short_outputs(x, *parameters)
    long_A = repeat(A, "query tile -> query (repeat tile)", repeat=B.shape[1])
    long_B = repeat(B, "query repeat -> query (repeat tile)", tile=A.shape[1])
    return long_A * long_B


def scores_with_einsum(x, *parameters):
    A, B = short_outputs(x, *parameters)
    products = einsum(A, B, "query tile, query repeat -> query repeat tile")
    return rearrange(products, "query repeat tile -> query (repeat tile)")

# %%
def equal(got, wanted):
    """Same shape, same dtype, same values."""
    same_kind = got.shape == wanted.shape and got.dtype == wanted.dtype
    return same_kind and torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)


A, B = short_outputs(x, *parameters)
A, B = axes(A, "query tile", "A"), axes(B, "query repeat", "B")
for function in (scores_with_torch, scores_with_repeat, scores_with_einsum):
    print(f"{function.__name__:>18}: same values:", equal(function(x, *parameters), scores))

# %% [markdown]
# ### As a module, with the same gradients
#
# `nn.Linear` stores its matrix with the output axis first, so ours go in transposed. For the gradients we
# multiply the scores by fixed numbers and add up, as in chapter 02.

# %%
class OneHead(nn.Module):
    def __init__(self, d_model, a, b):
        super().__init__()
        self.first = nn.Linear(d_model, d_model)
        self.short_a = nn.Linear(d_model, a)
        self.short_b = nn.Linear(d_model, b)

    def forward(self, x):
        hidden = self.first(x).relu()
        A, B = self.short_a(hidden), self.short_b(hidden)
        products = einsum(A, B, "query tile, query repeat -> query repeat tile")
        return rearrange(products, "query repeat tile -> query (repeat tile)")


module = OneHead(d_model=12, a=2, b=3)
module.load_state_dict({
    "first.weight": W1.T, "first.bias": b1,
    "short_a.weight": WA.T, "short_a.bias": bA,
    "short_b.weight": WB.T, "short_b.bias": bB,
})
print("same values:", equal(module(x), scores))

# %%
factors = draw(9, 6, 6, high=2)


def gradients(function):
    copies = [parameter.clone().requires_grad_() for parameter in parameters]
    return torch.autograd.grad((function(x, *copies) * factors).sum(), copies)


of_module = torch.autograd.grad((module(x) * factors).sum(), list(module.parameters()))
of_module = [gradient.T if gradient.dim() == 2 else gradient for gradient in of_module]
for function in (scores_with_loops, scores_with_torch, scores_with_repeat, scores_with_einsum):
    pairs = zip(gradients(function), of_module, strict=True)
    print(f"{function.__name__:>18}:", [equal(ours, theirs) for ours, theirs in pairs])

# %% [markdown]
# ## What a row looks like
#
# The map, as in chapter 02: a softmax along the keys. Dark is a large weight.

# %%
weights = axes(scores.softmax(dim=-1), "query key", "weights")
darkest = zip(words, weights.argmax(dim=1).tolist(), strict=True)
plots.show(
    plots.attention_map(weights, words),
    "the attention map of Factorized Dense, a row and a column for each of six words. The darkest cell of "
    "each row: " + ", ".join(f"{word} at position {j}" for word, j in darkest) + ".",
)

# %% [markdown]
# Now fold each row of *scores* into its picture, three rows of two. Predict the rank of each.
# `torch.linalg.matrix_rank` takes many tables at once, one for each index of the axes before the last two.
# Parts as small as rounding do not count.

# %%
pictures = rearrange(scores, "query (repeat tile) -> query repeat tile", tile=2)
pictures = axes(pictures, "query repeat tile", "pictures")
print("rank of each picture:", torch.linalg.matrix_rank(pictures).tolist())

dense_scores = axes((x @ W1 + b1).relu() @ draw(10, 12, 6, high=0.5), "query key", "dense_scores")
of_dense = rearrange(dense_scores, "query (repeat tile) -> query repeat tile", tile=2)
print("the same for Dense:  ", torch.linalg.matrix_rank(of_dense).tolist())

# %%
fig, panels = plt.subplots(1, 6, figsize=(5, 2), sharey=True, layout="constrained")
largest = pictures.abs().max().item()
for panel, word, row_picture in zip(panels, words, pictures, strict=True):
    image = panel.imshow(row_picture.numpy(), cmap="PuOr", vmin=-largest, vmax=largest)
    for r in range(3):
        for t in range(2):
            panel.text(t, r, f"{row_picture[r, t]:.1f}", ha="center", va="center", fontsize=7,
                       bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    panel.set_title(word, fontsize=9)
    panel.set_xticks([0, 1])
    panel.set_yticks([0, 1, 2])
panels[0].set_ylabel("j // a")
panels[2].set_xlabel("j % a")
fig.colorbar(image, ax=panels.tolist(), label="score", shrink=0.8)
plots.show(
    fig,
    "the six rows of scores as pictures of three rows and two columns, one for each word. In every picture "
    "the second column is the first one times one number, up to rounding.",
)

# %% [markdown]
# Dense, from the same hidden numbers, writes rows whose pictures have rank 2, the largest that three rows
# of two can have. That is what Factorized Dense gives up.
#
# ### What moves when one token changes
#
# Nothing new against Dense: row $i$ reads token $i$ alone. The Jacobian says it for all tokens. A 1 stands
# where the row of scores (down) has a derivative by that token (across) that is not 0.

# %%
jacobian = torch.autograd.functional.jacobian(lambda tokens: scores_with_einsum(tokens, *parameters), x)
jacobian = axes(jacobian, "query key length d_model", "jacobian")
for word, row in zip(words, jacobian, strict=True):
    print(f"{word:>6}", *[int(row[:, n].abs().max() > 0) for n in range(6)])

# %% [markdown]
# In the words of Table 1: *conditioned on* $X_i$, *local*, and it does not *interact*, exactly as Dense.
#
# ## Heads, shorter inputs, masks
#
# **Heads.** As in Dense the heads split the hidden numbers of the one $W_1$. Each head has its own two
# short layers, from its `d_head` hidden numbers to $a$ and to $b$ outputs. Split with `rearrange`, not with
# `reshape`, and give each head neighbours: chapter 02 shows why.
#
# **Shorter inputs.** $a\,b$ is `max_length`, the longest sentence. Our six words in a layer for 12 = 4 × 3
# use the first 6 of 12 scores, cut *before* the softmax, so that every row of weights sums to 1.

# %%
axes_heads = Axes(batch=2, head=5, length=6, d_model=40, tile=4, repeat=3)  # d_head = 8
two_sentences = axes_heads(draw(11, 2, 6, 40, high=2), "batch length d_model", "two_sentences")
hidden = (two_sentences @ draw(12, 40, 40, high=0.3)).relu()
hidden = rearrange(hidden, "batch length (head d_head) -> batch head length d_head", head=5)
WA_heads = axes_heads(draw(13, 5, 8, 4, high=0.5), "head d_head tile", "WA_heads")
WB_heads = axes_heads(draw(14, 5, 8, 3, high=0.5), "head d_head repeat", "WB_heads")

A_heads = axes_heads(hidden @ WA_heads[None], "batch head query tile", "A_heads")
B_heads = axes_heads(hidden @ WB_heads[None], "batch head query repeat", "B_heads")
outer = "batch head query tile, batch head query repeat -> batch head query repeat tile"
products = einsum(A_heads, B_heads, outer)
all_positions = rearrange(products, "batch head query repeat tile -> batch head query (repeat tile)")
head_scores = axes_heads(all_positions[..., :6], "batch head query key", "head_scores")

# %%
cut_before, cut_after = all_positions[..., :6].softmax(dim=-1), all_positions.softmax(dim=-1)[..., :6]
ones = torch.ones(2, 5, 6)
print("rows sum to 1, cut before the softmax:", equal(cut_before.sum(dim=-1), ones))
print("rows sum to 1, cut after it:          ", equal(cut_after.sum(dim=-1), ones))

# %% [markdown]
# Six words would also fit into 2 × 3. But $a$ belongs to the layer, not to the sentence: with another $a$ a
# position meets other numbers. Position 5 is `(5 % 4, 5 // 4)` = (1, 1) in the layer, and would be (1, 2) in 2 ×
# 3. So cut the products, and leave $A$ and $B$ alone.
#
# **Masks.** They act on the scores, too, before the softmax. There is no other place for them: without
# $A[1]$ the positions 1, 5 and 9 would all go.

# %%
allowed = masks.causal(6)
causal_weights = masks.masked_softmax(head_scores, allowed)
causal_weights = axes_heads(causal_weights, "batch head query key", "causal_weights")
print("no weight on later positions:", bool((causal_weights[..., ~allowed[0, 0]] == 0).all()))
print("rows sum to 1:            ", equal(causal_weights.sum(dim=-1), ones))

# %% [markdown]
# ### Exercise 04.3: all heads, and a shorter sentence
#
# *15 minutes, medium.* The whole of $S$: from tokens to the scores of all heads, biases included, for
# sentences that are shorter than the layer allows.

# %% exercise="04.3" points=2
def factorized_scores(x, W1, b1, WA, bA, WB, bB):
    """The scores of every head for sentences with length < tile * repeat.

    x: batch length d_model. W1: d_model (head d_head), b1: (head d_head).
    WA: head d_head tile, bA: head tile. WB: head d_head repeat, bB: head repeat.
    Returns the scores, batch head query key, where query and key have the size of length. For sentence s and
    head h, with a for the size of tile:

        own = slice(h * d_head, (h + 1) * d_head)
        hidden = relu(x[s] @ W1[:, own] + b1[own])
        A, B = hidden @ WA[h] + bA[h], hidden @ WB[h] + bB[h]
        scores[s, h, i, j] = A[i, j % a] * B[i, j // a]      for every i and j below length
    """
    ### BEGIN SOLUTION
    hidden = torch.relu(x @ W1 + b1)
    hidden = rearrange(hidden, "batch length (head d_head) -> batch head length d_head", head=len(WA))
    A = hidden @ WA + bA[:, None]
    B = hidden @ WB + bB[:, None]
    products = einsum(A, B, "batch head query tile, batch head query repeat -> batch head query repeat tile")
    scores = rearrange(products, "batch head query repeat tile -> batch head query (repeat tile)")
    return scores[..., : x.shape[1]]
    ### END SOLUTION

# %% check="04.3"
check("04.3", factorized_scores)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write down the shape after each step: hidden numbers, hidden numbers of each head, $A$, $B$, products,
# cut. The cells above do the same without biases.
#
# </details>
# <details><summary>Hint 2: adding the biases fails</summary>
#
# `bA` is "head tile", and $A$ has `query` between the two. `bA[:, None]` puts an axis of size 1 there.
#
# </details>
# <details><summary>Hint 3: I want to write the loops</summary>
#
# The sizes: `batch, length, _ = x.shape` and `head, d_head, a = WA.shape`. Loop over the sentences and the
# heads, and let the check of exercise 04.1 help you with the last line.
#
# </details>

# %% [markdown]
# ## What it costs
#
# ### Parameters
#
# $W_1$ has $d \cdot d$ numbers, the two short layers $d \cdot a$ and $d \cdot b$. Dense has $d \cdot l$ in
# their place. Here are all pairs of factors of 36, counted in the library's modules without biases:

# %%
def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def factor_pairs(l):
    """All (a, b) with a * b = l and a <= b."""
    return [(a, l // a) for a in range(1, l + 1) if l % a == 0 and a <= l // a]


d, l = 64, 36
print(f"Dense        : counted {count(Dense(d, 4, l, bias=False)):,}, formula {d * d + d * l:,}")
for a, b in factor_pairs(l):
    counted = count(FactorizedDense(d, 4, l, a=a, b=b, bias=False))
    print(f"a {a}, b {b:2}    : counted {counted:,}, formula {d * d + d * (a + b):,}")

# %%
d, l = 64, 36
costs = {f"{a} x {b}": d * (a + b) for a, b in factor_pairs(l)}
plots.show(
    bars({"Dense": d * l, **costs}, label="parameters after W1"),
    "parameters after the hidden layer, for d = 64 and 36 positions. Dense has " + f"{d * l:,}; "
    + ", ".join(f"{pair} {number:,}" for pair, number in costs.items())
    + ". The more square the pair, the lower the bar; 1 x 36 is a little above Dense.",
)

# %% [markdown]
# The most square pair is the smallest, for every length: $(a + b)^2 = (a - b)^2 + 4\,a\,b$, and $a\,b = l$
# is fixed. So the sum is smallest where the difference is. Checked for all lengths up to 400:

# %%
for l in range(1, 401):
    by_sum = min(factor_pairs(l), key=sum)
    by_difference = min(factor_pairs(l), key=lambda pair: pair[1] - pair[0])
    assert by_sum == by_difference == factor_pairs(l)[-1]
print("for every l up to 400 the most square pair has the smallest sum")

# %% [markdown]
# How much that saves depends on the number $l$, not only on its size. A prime has one pair, 1 and $l$, and
# costs *more* than Dense, $d(l + 1)$ instead of $d\,l$:

# %%
for l in range(254, 264):
    a, b = min(factor_pairs(l), key=sum)
    print(f"l {l} = {a:2} x {b:3}: {a + b:3} outputs for each token, Dense {l}")

# %% [markdown]
# You are free here. `max_length` only has to be *at least* as long as your longest sentence, and shorter
# ones are cut. For sentences of up to 257 tokens take 260 = 13 × 20 instead of the prime. The library takes
# the most square pair if you name none, and refuses a pair that does not fit:

# %%
default = FactorizedDense(d_model=12, head=3, max_length=260)
print("the library takes", default.a, "x", default.b)
try:
    FactorizedDense(d_model=12, head=3, max_length=260, a=16, b=16)
except ValueError as error:
    print(error)

# %% [markdown]
# ### One hidden layer, two, or none
#
# Equation (5) alone allows three readings. Here they are counted for $d$ = 1024 and $l$ = 32 = 4 × 8,
# without biases. `none` is the reading of some public code: each factor is one matrix, without a hidden
# layer and without a relu.

# %%
d, a, b = 1024, 4, 8
readings = {"one, shared": d * d + d * (a + b), "one for each": 2 * d * d + d * (a + b), "none": d * (a + b)}
for reading, number in readings.items():
    as_in_table = number == d**2 + d * (a + b)
    print(f"hidden layer: {reading:>12}: {number:9,} parameters, as in Table 1: {as_in_table}")
print("the library:               ", f"{count(FactorizedDense(d, 1, a * b, a=a, b=b, bias=False)):9,}")

# %% [markdown]
# Without a hidden layer nearly all parameters are gone. A count finds that. So does this test: without relu
# and without biases, $A$ and $B$ both change their sign with the token, so their product does not. A token
# and its negative would write the same row.

# %%
def without_relu(x):
    products = einsum(x @ W1 @ WA, x @ W1 @ WB, "query tile, query repeat -> query repeat tile")
    return rearrange(products, "query repeat tile -> query (repeat tile)")


def with_relu(x):
    return scores_with_einsum(x, W1, 0 * b1, WA, 0 * bA, WB, 0 * bB)


for function in (without_relu, with_relu):
    print(f"{function.__name__:>12}: x and -x get the same rows: {equal(function(x), function(-x))}")

# %% [markdown]
# ### Multiply-adds
#
# For one sentence of length $l$ = `max_length`:
#
# - the hidden layer, $l \times d$ times $d \times d$: $l\,d^2$;
# - the two short layers, over all heads: $l\,d\,(a + b)$, where Dense has $l^2 d$;
# - the products: $l^2$ in each head. They are multiplications without an addition, one for each score.
#
# torch's counter counts matrix products. It does not see a product number by number. To make it see ours,
# we write the same picture as a matrix product, a column of $b$ numbers times a row of $a$ numbers:

# %%
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(function, *inputs):
    with FlopCounterMode(display=False) as counter:
        function(*inputs)
    return counter.get_total_flops() // 2  # the counter counts a multiplication and an addition as two


batch, head, d_model, a, b = 2, 5, 40, 4, 3
length = a * b
score = FactorizedDense(d_model, head, length, a=a, b=b)
A_full, B_full = draw(15, batch, head, length, a, high=2), draw(16, batch, head, length, b, high=2)
layers = batch * (length * d_model**2 + length * d_model * (a + b))
counted = multiply_adds(score, torch.randn(batch, length, d_model))
print(f"the library's S: counted {counted:,}, formula without products {layers:,}")
print("products, number by number: counted",
      multiply_adds(lambda A, B: B[..., :, None] * A[..., None, :], A_full, B_full))
print("products, as matrices:      counted",
      multiply_adds(lambda A, B: B[..., :, None] @ A[..., None, :], A_full, B_full),
      "= batch * head * l * l:", batch * head * length**2)

# %% [markdown]
# The difference is exactly $l \cdot l$ for each head and each sentence. (For a shorter input the library
# still makes all $a\,b$ products of a row before it cuts.) Now at the paper's size, and for the whole
# layer, with the values, the average and the output projection:

# %%
l, d, head = 256, 512, 8
bills = {}
for name in ("dense", "factorized_dense"):
    layer, sentence = Attention(d, head, l, score=name), torch.randn(1, l, d)
    unseen = head * l * l if name == "factorized_dense" else 0  # the products that the counter does not see
    bills[name] = multiply_adds(layer.score, sentence) + unseen, multiply_adds(layer, sentence) + unseen
    print(f"{name:>16}: scores {bills[name][0]:11,}, whole layer {bills[name][1]:11,}")
shares = [ours / dense for ours, dense in zip(bills["factorized_dense"], bills["dense"], strict=True)]
print(f"Factorized Dense over Dense: scores {shares[0]:.2f}, whole layer {shares[1]:.2f}")

# %% [markdown]
# The work shrinks less than the parameters. $W_1$ is as large as before, and the map is still $l \times l$:
# it must be filled, go through the softmax and average the values.
#
# ### Exercise 04.4: the best pair of factors
#
# *10 minutes, medium.* Write the function that the library needs for its default.

# %% exercise="04.4" points=2
def best_factors(max_length):
    """The pair of factors that gives Factorized Dense the fewest parameters.

    max_length: a whole number of at least 1.
    Returns two whole numbers, (a, b), with a * b equal to max_length and a at most b.
    """
    ### BEGIN SOLUTION
    a = int(max_length**0.5)
    while max_length % a:
        a -= 1
    return a, max_length // a
    ### END SOLUTION

# %% check="04.4"
check("04.4", best_factors)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# The smaller factor is at most the square root. Which numbers can it be, and which of them is best?
#
# </details>
# <details><summary>Hint 2: it works for some lengths only</summary>
#
# Try 36, 12, 13 and 1 by hand. Does your loop reach 6 for 36? Does it end for 13?
#
# </details>

# %% [markdown]
# ## Where it breaks
#
# Two limits of Dense stay: a row knows its own token and nobody else, and `max_length` is fixed. A third is
# new. Some rows cannot be written at all, by any token.
#
# ### Fewer numbers than positions
#
# A row of weights over $l$ positions has $l - 1$ free numbers, since they sum to 1. $A$ and $B$ have $a + b$;
# one is lost, because twice $A$ and half of $B$ give the same products.

# %%
for a, b in ((2, 3), (4, 8), (16, 16)):
    print(f"{a} x {b}: {a + b - 1} free numbers for {a * b - 1}")

# %% [markdown]
# So almost no row can be met exactly. How near can we come? The *singular value decomposition* (SVD) writes
# a table as a sum of outer products, the largest first; a *singular value* is the size of one of them. Keep
# only the first, and you have the best picture of rank 1: no other has a smaller sum of squared
# differences.
#
# We take twelve rows of 12 free scores as targets. Scores are the logarithms of weights, up to one number
# for the whole row. torch's `svd` returns three tensors, for each picture: `U` holds a list of each part in
# its *columns*, then come the singular values, and `V_rows` holds the other lists as *rows*.
# `full_matrices=False` leaves out the columns and rows that belong to no part.

# %%
axes_long = Axes(length=12, tile=3, repeat=4, d_model=32)
target_scores = axes_long(draw(17, 12, 12, high=2), "query key", "target_scores")
target_pictures = rearrange(target_scores, "query (repeat tile) -> query repeat tile", tile=3)
U, sizes_of_parts, V_rows = torch.linalg.svd(target_pictures, full_matrices=False)
# The two lists of part 0: the first column of U, and the first row of V_rows.
list_of_B, list_of_A = U[:, :, 0] * sizes_of_parts[:, :1], V_rows[:, 0]
best = einsum(list_of_A, list_of_B, "query tile, query repeat -> query repeat tile")
best = axes_long(rearrange(best, "query repeat tile -> query (repeat tile)"), "query key", "best")

kept = sizes_of_parts[:, 0] ** 2 / (sizes_of_parts**2).sum(dim=1)
difference = (best.softmax(dim=1) - target_scores.softmax(dim=1)).abs().sum(dim=1) / 2
print(f"of the squares the best rank 1 keeps {kept.min():.2f} to {kept.max():.2f}, mean {kept.mean():.2f}")
print(f"weight that lies on a wrong position: {difference.min():.2f} to {difference.max():.2f}, "
      f"mean {difference.mean():.2f}")

# %% [markdown]
# A quarter of the weight, on average, lies where it should not. (The squares
# are those of the scores. Measured on the weights another picture of rank 1 can be better; none is exact.)
#
# ### What helps: a constant, and a sign
#
# Before we look for rows that fail for certain, two that look impossible and are not.
#
# **Every position but the last, equally.** As scores: 1 everywhere, 0 at the end. That picture has rank 2. But
# the softmax forgives a constant: subtract 1 from all scores, and the weights stay. Then a single number is
# not 0, and the rank is 1.

# %%
all_but_last = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
for picture_of_row in (all_but_last, all_but_last - 1):
    rank = torch.linalg.matrix_rank(picture_of_row).item()
    weights_of_row = (9 * picture_of_row).flatten().softmax(dim=0)  # times 9: a clear gap between 0 and 1
    print("rank", rank, "weights", [f"{weight:.2f}" for weight in weights_of_row])

# %% [markdown]
# **Two positions that share neither row nor column.** Positions 0 and 3 stand at (0, 0) and (1, 1) of the
# picture. Make $A[0]$, $A[1]$, $B[0]$ and $B[1]$ large, and the crossing positions 1 and 2, at (0, 1) and (1,
# 0), get the same large score. The way out is a sign: with $A$ = (2.5, -2.5) and $B$ = (2.5, -2.5, 0),
# minus times minus is plus, and the crossing positions get a large *negative* score.

# %%
for A_two, B_two in (([2.5, 2.5], [2.5, 2.5, 0.0]), ([2.5, -2.5], [2.5, -2.5, 0.0])):
    row = einsum(torch.tensor(A_two), torch.tensor(B_two), "tile, repeat -> repeat tile").flatten()
    print("A", A_two, "weights", [f"{weight:.2f}" for weight in row.softmax(dim=0)])

# %% [markdown]
# ### What fails: three positions on a diagonal
#
# There are only two signs. Take three positions, no two in the same row or column of the picture. Each has its
# own number of $A$, and two of these three numbers have the same sign (0 counts as either). Say neither is
# negative. Of the two numbers of $B$ that belong to them, take the larger. Where it meets the *other*
# number of $A$ there is a crossing position, and it scores at least as high as the wanted position in its column.
# (If neither is positive, take the smaller number of $B$.) So a position that should get nothing gets at least
# as much as one that is wanted. A constant does not change which score is higher.
#
# Such rows are not exotic. "Every fourth position" in 12 positions is one, if $a$ = 3: positions 0, 4 and 8 stand at
# (0, 0), (1, 1), (2, 2). "Every third position" is a column of the same picture, and easy. As pictures of
# scores, with 1 for the positions that are wanted:

# %%
def every(step, length=12):
    """Row i spreads its weight equally over the positions i, i + step, i - step, ..."""
    position = torch.arange(length)
    wanted = ((position[:, None] - position) % step == 0).float()
    return wanted / wanted.sum(dim=1, keepdim=True)


for step in (3, 4):
    row = (every(step)[0] > 0).float()
    singular_values = torch.linalg.svdvals(rearrange(row, "(repeat tile) -> repeat tile", tile=3))
    scaled = singular_values / singular_values[0]
    print(f"every {step}: positions {row.nonzero().flatten().tolist()}, singular values, scaled:",
          [f"{size:.0f}" for size in scaled.abs()])

# %% [markdown]
# One outer product for every third position, three equal ones for every fourth. Now let modules learn it: 12
# tokens, each with its row as a target, and 300 steps of training. The *Kullback-Leibler divergence*
# measures the gap: the sum over $j$ of target · log(target / weight). It is 0 where a row is its target,
# and larger the more they differ. `log_softmax` gives the logarithms of the weights, also of those that are
# too small to be written as a number. In each step `backward` computes the gradient of the gap, and *Adam*, a
# common way to do it, moves the parameters along it so that the gap gets smaller.

# %%
def gap(target, scores):
    """Kullback-Leibler divergence of each row. Positions without a target add nothing."""
    return (target * (target.clamp(min=1e-9).log() - scores.log_softmax(dim=1))).sum(dim=1)


def fit(score, tokens, target, steps=300):
    """Train `score` until its map is as near to `target` as it gets. -> the map, the gap of each row"""
    optimizer = torch.optim.Adam(score.parameters(), lr=0.01)
    for _ in range(steps):
        loss = gap(target, score(tokens[None])[0, 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scores = score(tokens[None])[0, 0].detach()
    return scores.softmax(dim=1), gap(target, scores)

# %%
tokens = axes_long(draw(18, 12, 32, high=1), "length d_model", "tokens")
fits = {}
for step in (3, 4):
    for a, b in ((3, 4), (4, 3)):
        _ = torch.manual_seed(0)
        fits[step, f"{a} x {b}"] = fit(FactorizedDense(32, 1, 12, a=a, b=b), tokens, every(step))
    _ = torch.manual_seed(0)
    fits[step, "Dense"] = fit(Dense(32, 1, 12), tokens, every(step))

for (step, name), (_, gaps) in fits.items():
    says = "every row learned" if gaps.max() < 0.02 else "no row learned" if gaps.min() > 0.3 else "mixed"
    print(f"every {step}, {name:>5}: {says}")

# %% [markdown]
# Dense learns both. Factorized Dense learns the one that is a column of its picture: every third position with
# $a$ = 3, every fourth with $a$ = 4. **The choice of $a$ and $b$ is a choice of what is easy.**
#
# And how near does 3 × 4 come to "every fourth position"? In every row the fit ends at the same answer: one
# wanted position gets its 1/3, and the other two share what is left with their two crossing positions, 1/6 each.
# Such a row has the gap $\frac{2}{3} \log 2$:

# %%
map_fitted, gaps = fits[4, "3 x 4"]
largest_first = map_fitted.sort(dim=1, descending=True).values
expected = torch.tensor([1 / 3, 1 / 6, 1 / 6, 1 / 6, 1 / 6] + 7 * [0]).expand(12, 12)
all_near = bool(((gaps - 2 / 3 * log(2)).abs() < 0.03).all())
print(f"2/3 log 2 = {2 / 3 * log(2):.2f}, every gap is near it:", all_near)
print("every row is near 1/3, 1/6, 1/6, 1/6, 1/6:", bool(((largest_first - expected).abs() < 0.03).all()))

# %%
maps = torch.stack([every(4), map_fitted, fits[4, "Dense"][0]])
titles = ["target", "Factorized 3 x 4", "Dense"]
fig = plots.attention_map(maps, [str(position) for position in range(12)], titles=titles)
fig.set_size_inches(6.5, 2.8)
plots.show(
    fig,
    "three attention maps over 12 positions. Target: every row has three cells of the same grey, four positions "
    "apart. Factorized Dense with 3 x 4: every row has one dark cell and four lighter ones, two of them at "
    "positions that the target leaves white. Dense: the same as the target.",
)

# %% [markdown]
# ### Exercise 04.5: can this row be made?
#
# *15 minutes, hard.* A tool for the question above: which rows of *scores* are exact products $A$ × $B$?
# (For rows of *weights* the constant of the softmax would come in; leave it out.)

# %% exercise="04.5" points=3
def can_be_made(scores, a):
    """Which rows of scores could a token of Factorized Dense write exactly?

    scores: query key, where key has a * b positions, b follows. a: the size of tile.
    Returns a bool tensor, query: True for row i if there are A and B with
    scores[i, j] = A[j % a] * B[j // a] for every j. Differences below 0.001 are rounding.
    Numbers may be 0; a row of zeros can be made (A = 0).
    """
    ### BEGIN SOLUTION
    rows_as_pictures = rearrange(scores, "query (repeat tile) -> query repeat tile", tile=a)
    return torch.linalg.matrix_rank(rows_as_pictures, atol=1e-3) <= 1
    ### END SOLUTION

# %% check="04.5"
check("04.5", can_be_made)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Fold every row into its picture. Which property do exactly the pictures of products have?
#
# </details>
# <details><summary>Hint 2: without the word rank</summary>
#
# In a product, any two rows of the picture are multiples of each other. For rows $r$, $s$ and columns $t$,
# $u$: what is `picture[r, t] * picture[s, u]`, and what is `picture[r, u] * picture[s, t]`?
#
# </details>
# <details><summary>Hint 3: some rows are wrong</summary>
#
# Is your picture $b$ rows of $a$ numbers, and not $a$ rows of $b$? Do you look at all of it? A row may be a
# product in all cells but one. Do you divide by a number that can be 0? And rounding is no rank:
# `matrix_rank(..., atol=0.001)` ignores small remainders.
#
# </details>

# %% [markdown]
# ## The same as the library's layer
#
# Everything in one class: heads, biases, shorter inputs, values, output projection.

# %%
class FactorizedDenseAttention(nn.Module):
    def __init__(self, d_model, head, a, b):
        super().__init__()
        self.head, d_head = head, d_model // head
        self.first = nn.Linear(d_model, d_model)
        self.WA, self.bA = nn.Parameter(torch.randn(head, d_head, a)), nn.Parameter(torch.randn(head, a))
        self.WB, self.bB = nn.Parameter(torch.randn(head, d_head, b)), nn.Parameter(torch.randn(head, b))
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def split(self, features):
        return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=self.head)

    def forward(self, x):
        hidden, value = self.split(self.first(x).relu()), self.split(self.value(x))
        A = hidden @ self.WA + self.bA[:, None]  # (5)
        B = hidden @ self.WB + self.bB[:, None]
        long_A = repeat(A, "batch head query tile -> batch head query (repeat tile)", repeat=B.shape[-1])
        long_B = repeat(B, "batch head query repeat -> batch head query (repeat tile)", tile=A.shape[-1])
        scores = (long_A * long_B)[..., : x.shape[1]]  # (6), cut before the softmax
        weights = scores.softmax(dim=-1)
        mixed = rearrange(weights @ value, "batch head query d_head -> batch query (head d_head)")
        return self.output(mixed), scores, weights

# %% [markdown]
# The library's layer with the same parameters. Six tokens, a layer for 12:

# %%
_ = torch.manual_seed(0)
ours = FactorizedDenseAttention(d_model=40, head=5, a=4, b=3)
library = Attention(d_model=40, head=5, max_length=12, score="factorized_dense", a=4, b=3)
names = {  # ours -> the library's
    "first.weight": "score.hidden.weight", "first.bias": "score.hidden.bias",
    "WA": "score.weight_a", "bA": "score.bias_a", "WB": "score.weight_b", "bB": "score.bias_b",
    "value.weight": "value.weight", "value.bias": "value.bias",
    "output.weight": "output.weight", "output.bias": "output.bias",
}  # fmt: skip
library.load_state_dict({names[name]: parameter for name, parameter in ours.state_dict().items()})

y, our_scores, our_weights = ours(two_sentences)
y = axes_heads(y, "batch length d_model", "y")
library_y, library_weights = library(two_sentences)
print("same scores: ", equal(library.score(two_sentences), our_scores))
print("same weights:", equal(library_weights, our_weights))
print("same outputs:", equal(library_y, y))

# %%
factors_y = draw(19, 2, 6, 40, high=2)
ours.zero_grad()
library.zero_grad()
(ours(two_sentences)[0] * factors_y).sum().backward()
(library(two_sentences)[0] * factors_y).sum().backward()
of_library = dict(library.named_parameters())
for name, parameter in ours.named_parameters():
    print(f"same gradient of {name:>13}:", equal(parameter.grad, of_library[names[name]].grad))

# %% [markdown]
# And the rule of this chapter, key $j$ gets `A[j % a] * B[j // a]`, in the library's scores. We take its
# own short outputs, and compare position by position:

# %%
S = library.score
library_hidden = ours.split(S.hidden(two_sentences).relu())
library_A = library_hidden @ S.weight_a + S.bias_a[:, None]
library_B = library_hidden @ S.weight_b + S.bias_b[:, None]
library_scores, a = S(two_sentences), S.a
print([equal(library_scores[..., j], library_A[..., j % a] * library_B[..., j // a]) for j in range(6)])

# %% [markdown]
# > **The start.** The library draws the two short layers as `nn.Linear` would, uniformly within
# > $1/\sqrt{d_\text{head}}$. A product of two small numbers is smaller still, so an untrained Factorized
# > Dense is nearer to a plain average than an untrained Dense. The paper states no start; this one is the
# > library's choice.
#
# The *spread* of the scores in the next cell is their standard deviation.

# %%
_ = torch.manual_seed(0)
untrained = torch.randn(1, 256, 512)
for name in ("dense", "factorized_dense"):
    spread = Attention(512, 8, 256, score=name).score(untrained).std().item()
    print(f"{name:>16}: spread of the scores at the start {spread:.1f}")

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
