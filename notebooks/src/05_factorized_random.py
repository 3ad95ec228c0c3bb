# %% [markdown]
# # 05 · Factorized Random: a table of scores from two thin ones
#
# **You build the table of Random as a product of two thin tables, see what the product can and cannot hold,
# and find out why two columns are enough for "look at the word before".**
#
# - **Before you start:** chapters [00](00_start_here.ipynb), [02](02_dense.ipynb) and [03](03_random.ipynb). What
#   this chapter needs of Random, one learned table of scores for every sentence, it repeats in a line.
# - **Time:** about 90 minutes, 45 of them for the four exercises.
# - **Level:** medium.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %%
from math import cos, log, pi, sqrt

import matplotlib.pyplot as plt
import torch
from einops import einsum, rearrange
from torch import nn

from synth_lib import masks, plots
from synth_lib.attention import Attention
from synth_lib.checks import check
from synth_lib.scores import FactorizedRandom, Random
from synth_lib.shapes import Axes

# %% [markdown]
# ## The question
#
# Random (chapter 03) does not read the words. It has one learned score for each pair of positions: a table $R$,
# the same for every sentence. For $l$ positions that is $l^2$ numbers in each head, 65,536 for 256 positions.
#
# But a table that is of use often has a pattern. "Look at the word before" is one rule, and it fills a whole
# table:

# %%
words = "the dog saw a small bird".split()
before = torch.zeros(6, 6)
for i in range(1, 6):
    before[i, i - 1] = 5.0
for word, row in zip(words, before.tolist(), strict=True):
    print(f"{word:>6}", row)

# %% [markdown]
# (Row "the" has no word before it. All its scores are 0.)
#
# The question of this chapter: **can fewer numbers than $l^2$ make the table, and which tables are lost?**
#
# ## The equation
#
# The paper writes the table as a product of two thin ones:
#
# $$Y = \mathrm{softmax}(R_1 R_2^\top)\, G(X) \tag{7}$$
#
# | paper | here | shape, in axis names | size here | what it is |
# |---|---|---|---|---|
# | $R_1$ | `R1` | query rank | 6 × 2 | $k$ learned numbers for each position that attends |
# | $R_2$ | `R2` | key rank | 6 × 2 | $k$ learned numbers for each position that is attended to |
# | $R_1 R_2^\top$ | `scores` | query key | 6 × 6 | the table of scores |
# | $\mathrm{softmax}(R_1 R_2^\top)$ | `weights` | query key | 6 × 6 | the attention map |
# | $G(X)$ | `value` | key d_model | 6 × 12 | what each token gives |
# | $Y$ | `y` | query d_model | 6 × 12 | the result |
#
# The paper's $l$ is `length`, its $k$ is `rank`, the number of columns of each thin table. The paper takes
# $k = 8$; ours is 2. $R_1$ and $R_2$ are called the *factors*. The small $\top$ says that $R_2$ is
# transposed: its columns become rows. One score is a sum of $k$ products:
#
# $$S_{ij} = \sum_{r=0}^{k-1} R_{1,ir}\, R_{2,jr}$$
#
# $X$ is not in it. This is a dot product of two *positions*, not of two tokens.
#
# Our numbers are drawn in steps of 0.1. Every call names its seed, so a cell gives the same however often you
# run it.

# %%
def draw(*shape, high, seed):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


def print_rows(names, rows, decimals=2):
    """One line for each name."""
    for name, row in zip(names, rows.tolist(), strict=True):
        print(f"{name:>6}", *(f"{number:5.{decimals}f}" for number in row))


axes = Axes(length=6, rank=2, d_model=12)
R1 = axes(draw(6, 2, high=2, seed=1), "query rank", "R1")
R2 = axes(draw(6, 2, high=2, seed=2), "key rank", "R2")
print_rows(words, R1, decimals=1)

# %% [markdown]
# ## The ladder: one equation, written five times
#
# ### Loops say the equation aloud
#
# Three loops: one for each position that attends, one for each position that is attended to, one for the sum.

# %%
def scores_with_loops(R1, R2):
    rows = []
    for i in range(len(R1)):
        row = []
        for j in range(len(R2)):
            total = 0.0
            for r in range(R1.shape[1]):
                total = total + R1[i, r] * R2[j, r]
            row.append(total)
        rows.append(torch.stack(row))
    return torch.stack(rows)

# %% [markdown]
# Predict the shape. Then run it.

# %%
scores = axes(scores_with_loops(R1, R2), "query key", "scores")
print_rows(words, scores)

# %% [markdown]
# ### A matrix product
#
# The sum runs over `rank`, the *last* axis of both. A matrix product sums over the last axis of the first and
# the first axis of the second, so `R2` has to be turned: `R2.T`.

# %%
def scores_with_matmul(R1, R2):
    return R1 @ R2.T


def equal(a, b):
    """Same shape, same dtype, same values. (torch.allclose alone would stretch a smaller tensor to fit.)"""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


print("same values:", equal(scores_with_matmul(R1, R2), scores))

# %% [markdown]
# Forget the `.T`, and torch refuses: 6 × 2 does not fit on 6 × 2. Do not rely on it. If the rank equals the
# length, `R1 @ R2` runs, and gives something else:

# %%
square_1, square_2 = draw(6, 6, high=2, seed=3), draw(6, 6, high=2, seed=4)
print("same shape: ", (square_1 @ square_2).shape == (square_1 @ square_2.T).shape)
print("same values:", equal(square_1 @ square_2, square_1 @ square_2.T))

# %% [markdown]
# ### A sum of k simple tables
#
# Put the sum over $r$ outside. Column $r$ of `R1` times column $r$ of `R2` is a whole table, an *outer
# product*: every number of the one times every number of the other. The scores are the sum of $k$ of them.
# Keep this picture, the section on rank needs it.

# %%
def scores_with_outer(R1, R2):
    return sum(torch.outer(R1[:, r], R2[:, r]) for r in range(R1.shape[1]))


print("same values:", equal(scores_with_outer(R1, R2), scores))

# %% [markdown]
# ### Named axes
#
# `rank` is missing on the right, so it is summed. `query` and `key` stay.

# %%
def scores_with_einsum(R1, R2):
    return einsum(R1, R2, "query rank, key rank -> query key")


print("same values:", equal(scores_with_einsum(R1, R2), scores))

# %% [markdown]
# ### A module holds its factors
#
# `nn.Parameter` marks a tensor as learned: it is saved and trained with the module. Of `x` the module reads
# the length and nothing else.

# %%
class OneHead(nn.Module):
    def __init__(self, max_length, rank):
        super().__init__()
        self.R1 = nn.Parameter(torch.randn(max_length, rank))
        self.R2 = nn.Parameter(torch.randn(max_length, rank))

    def forward(self, x):
        length = len(x)
        return self.R1[:length] @ self.R2[:length].T


x = axes(draw(6, 12, high=2, seed=5), "length d_model", "x")
module = OneHead(max_length=6, rank=2)
module.load_state_dict({"R1": R1, "R2": R2})
print("same values:", equal(module(x), scores))

# %% [markdown]
# ### The gradients agree too
#
# A gradient holds, for each parameter, how fast a result grows when that parameter grows. As in chapter 02 we
# multiply the scores by fixed numbers, add up, and compare the gradients of that sum.

# %%
probe = draw(6, 6, high=2, seed=6)


def gradients(function):
    parameters = [factor.clone().requires_grad_() for factor in (R1, R2)]
    return torch.autograd.grad((function(*parameters) * probe).sum(), parameters)


module.zero_grad()
(module(x) * probe).sum().backward()
for function in (scores_with_loops, scores_with_matmul, scores_with_outer, scores_with_einsum):
    pairs = zip(gradients(function), [module.R1.grad, module.R2.grad], strict=True)
    print(f"{function.__name__:>18}:", [equal(ours, theirs) for ours, theirs in pairs])

# %% [markdown]
# ### From scores to the result
#
# The rest is as in every chapter: softmax along the keys, then the average of the values.

# %%
weights = axes(scores.softmax(dim=-1), "query key", "weights")
value = axes(x @ draw(12, 12, high=0.5, seed=7), "key d_model", "value")
y = axes(weights @ value, "query d_model", "y")
darkest = zip(words, weights.argmax(dim=1).tolist(), strict=True)
plots.show(
    plots.attention_map(weights, words),
    "the attention map of our two factors, a row and a column for each of six words. The darkest cell of "
    "each row: " + ", ".join(f"{word} at position {j}" for word, j in darkest) + ".",
)

# %% [markdown]
# ## Two ways to lose the sum
#
# Both of these run in public code, with the right shapes at the end.
#
# ### Both factors on the key axis
#
# Somebody calls the first axis of both factors `key`. Then there is one number for each key, not one for each
# pair. Broadcasting, torch's way to stretch a tensor to fit, gives every query the same row:

# %%
one_row = axes(einsum(R1, R2, "key rank, key rank -> key"), "key", "one_row")
stretched = axes(one_row.expand(6, 6), "query key", "stretched")
print("same shape: ", stretched.shape == scores.shape)
print("same values:", equal(stretched, scores))
print("different rows:", len(stretched.unique(dim=0)), "instead of", len(scores.unique(dim=0)))

# %% [markdown]
# The numbers in that row are the diagonal of the right table: key $j$ meets only query $j$. Whatever $R_1$
# and $R_2$ learn, all rows stay equal, so every token gets the same result:

# %%
print("the row is the diagonal:", equal(one_row, scores.diagonal()))
y_stretched = axes(stretched.softmax(dim=-1) @ value, "query d_model", "y_stretched")
print("different rows of y:", len(y_stretched.unique(dim=0)), "instead of", len(y.unique(dim=0)))

# %% [markdown]
# ### A name twice in one tensor
#
# Suppose that a square matrix stands between the factors, $R_1 M R_2^\top$. The step $R_1 M$ sums over one
# axis of $M$ and keeps the other. The two axes need *two names*. `einsum` reads one name twice as one loop:
# it takes the diagonal and never looks at the rest. Here with 8 columns, as in the paper:

# %%
wide, M = draw(6, 8, high=2, seed=8), draw(8, 8, high=2, seed=9).requires_grad_()
twice = einsum(wide, M, "query rank, rank rank -> query rank")
print("same shape: ", twice.shape == (wide @ M).shape)
print("same values:", equal(twice, wide @ M))
print("only the diagonal:", equal(twice, wide * M.diagonal()))

(twice**2).sum().backward()
print("entries of M with a gradient:", int((M.grad != 0).sum()), "of", M.numel())

# %% [markdown]
# One eighth of the matrix learns. The loss still falls, so nobody notices.
#
# ## Heads and shorter inputs
#
# > **Heads.** Equation (7) is printed for one head. In the paper's models every head has its own table, so here
# > every head has its own two factors.
#
# The factors are `head length rank`. All heads at once are one `einsum` with `head` kept.
# The factors are as long as the longest input, `max_length`. A shorter input uses the first rows of *both*
# factors, and with that the top-left block of the table.

# %%
axes_max = Axes(head=3, length=8, rank=2)  # `length` is that of the longest input here
R1_max = axes_max(draw(3, 8, 2, high=2, seed=10), "head length rank", "R1_max")
R2_max = axes_max(draw(3, 8, 2, high=2, seed=11), "head length rank", "R2_max")
full = einsum(R1_max, R2_max, "head query rank, head key rank -> head query key")
full = axes_max(full, "head query key", "full")

axes_short = Axes(head=3, length=6, rank=2)
R1_short = axes_short(R1_max[:, :6], "head length rank", "R1_short")
R2_short = axes_short(R2_max[:, :6], "head length rank", "R2_short")
short = einsum(R1_short, R2_short, "head query rank, head key rank -> head query key")
short = axes_short(short, "head query key", "short")
print("cutting both factors is cutting the table:", equal(short, full[:, :6, :6]))

# %% [markdown]
# Cut only `R2`, and 8 queries remain. And cut before the softmax, for the reason that you know from chapter
# 02: what went to missing positions is lost.

# %%
cut_late = full.softmax(dim=-1)[:, :6, :6]
for when, cut in (("before", short.softmax(dim=-1)), ("after", cut_late)):
    sums = cut.sum(dim=-1)
    print(f"cut {when:>6} the softmax: the rows sum to {sums.min():.2f} to {sums.max():.2f}")

# %% [markdown]
# Masks act on the scores, before the softmax, as for every S. The table does not care who made it:

# %%
allowed = axes_short(masks.causal(6)[0, 0], "query key", "allowed")
causal_weights = short.masked_fill(~allowed, float("-inf")).softmax(dim=-1)
causal_weights = axes_short(causal_weights, "head query key", "causal_weights")
print("no weight on later positions:", bool((causal_weights[:, ~allowed] == 0).all()))
print("every row sums to 1:      ", equal(causal_weights.sum(dim=-1), torch.ones(3, 6)))

# %% [markdown]
# ### Exercise 05.1: the maps of a short input
#
# *10 minutes, easy.* You get the factors of all heads, for the longest input. Return the attention map of
# every head for an input of `length` tokens.

# %% exercise="05.1" points=2
def short_maps(R1, R2, length):
    """Equation (7), the map alone, for every head and the first `length` positions.

    R1: head max_length rank. R2: head max_length rank. length: a whole number, below max_length.
    Returns the weights, head query key, where query and key have the size `length`. For head h:

        scores[h][i][j] = sum over r of R1[h][i][r] * R2[h][j][r]
        weights[h][i] = softmax of scores[h][i][0], ..., scores[h][i][length - 1]
    """
    ### BEGIN SOLUTION
    table = einsum(R1[:, :length], R2[:, :length], "head query rank, head key rank -> head query key")
    return table.softmax(dim=-1)
    ### END SOLUTION

# %% check="05.1"
check("05.1", short_maps)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# First cut, then multiply, then the softmax. Which axis of the factors counts positions?
#
# </details>
# <details><summary>Hint 2: the product of all heads</summary>
#
# With `einsum`, `head` is on both inputs and on the result. The two axes of positions need two names. With `@`,
# turn the last two axes of the second factor, and those alone: `.transpose(1, 2)`; `.T` would turn all three.
#
# </details>
# <details><summary>Hint 3: I want to write loops</summary>
#
# `head, max_length, rank = R1.shape` gives the sizes. Start with `scores = torch.zeros(head, length,
# length)`, and add the products with `+=`.
#
# </details>

# %% [markdown]
# ## It reads nothing
#
# One map serves every sentence. Two different inputs, the same weights:

# %%
axes_layer = Axes(batch=5, head=3, length=6, d_model=12)
layer = Attention(d_model=12, head=3, max_length=8, score="factorized_random", rank=2)
first_input = axes_layer(draw(5, 6, 12, high=2, seed=12), "batch length d_model", "first_input")
other_input = axes_layer(draw(5, 6, 12, high=2, seed=13), "batch length d_model", "other_input")
(y_first, map_first), (y_other, map_other) = layer(first_input), layer(other_input)
map_first = axes_layer(map_first, "batch head query key", "map_first")
print("same map:    ", equal(map_first, map_other))
print("same results:", equal(y_first, y_other))

# %% [markdown]
# The results differ, because the values read the words. Table 1 of the paper calls such a map *global*:
# conditioned on nothing, the same for every sample.
#
# ### "Random" that reads x
#
# Here is a class from public code, rebuilt, that carried the name "factorized random". Its output has the
# right shape. Its scores even have rank $k$. Read `forward` before you go on. What gives it away?

# %%
class SaysFactorizedRandom(nn.Module):
    def __init__(self, d_model, rank):
        super().__init__()
        self.first = nn.Linear(d_model, rank)
        self.second = nn.Linear(d_model, rank)

    def forward(self, x):
        return einsum(self.first(x), self.second(x), "batch query rank, batch key rank -> batch query key")


_ = torch.manual_seed(0)
suspect = SaysFactorizedRandom(d_model=12, rank=2)
suspect_scores = axes_layer(suspect(first_input), "batch query key", "suspect_scores")
print("same scores for two inputs:", equal(suspect_scores, suspect(other_input)))

# %% [markdown]
# It multiplies `x` by two matrices. That is the dot product of chapter 01 with a `d_head` of $k$, and it
# compares tokens. Counting finds it too, without running it. With the paper's $k = 8$, width 1024 and length
# 32:

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


print("says factorized random:", f"{parameters(SaysFactorizedRandom(d_model=1024, rank=8)):6,}",
      "= 2 (d k + k) =", f"{2 * (1024 * 8 + 8):,}")
print("factorized random:     ", f"{parameters(FactorizedRandom(1024, head=1, max_length=32, rank=8)):6,}",
      "= 2 l k =", 2 * 32 * 8)

# %% [markdown]
# If the count of the scores contains the width $d$, they read tokens. If it contains the length $l$, they know
# positions.
#
# ## What rank means
#
# An outer product, one column times one row, is the simplest table there is: all its rows are multiples of
# the same row. Such a table has *rank 1*. The rank of a table is the smallest number of outer products that
# add up to it. A product $R_1 R_2^\top$ is a sum of $k$, so its rank is at most $k$.
#
# torch can tell the rank of a table. Rounding leaves small remainders, so it counts the parts
# that stand out from them. For that reason we compute the tables themselves with 64-bit numbers: `.double()`
# on both factors, *before* the product. Converted afterwards, a table keeps the rounding of its 32-bit
# product, and in 64 bits that stands out and counts as rank.

# %%
def rank_of(table):
    return torch.linalg.matrix_rank(table.double()).item()


for k in (1, 2, 4, 6):
    table = axes(draw(6, k, high=2, seed=14).double() @ draw(6, k, high=2, seed=15).double().T, "query key")
    print(f"k = {k}: the table 6 x 6 has rank {rank_of(table)}")

# %% [markdown]
# ### The best table of rank k
#
# Now the other way round. Somebody gives you a table. Which table of rank $k$ comes closest?
#
# The *singular value decomposition*, SVD, answers it. It writes any table as a sum of outer products, sorted
# by size:
#
# $$T = \sigma_0\, u_0 v_0^\top + \sigma_1\, u_1 v_1^\top + \dots, \qquad
# \sigma_0 \ge \sigma_1 \ge \dots \ge 0$$
#
# In each $u_r$ and each $v_r$ the squares of the numbers sum to 1 (and different ones stand at right
# angles). So the *singular value* $\sigma_r$ alone says how large part $r$ is. Keep the first $k$ parts and
# drop the rest. It is a theorem (Eckart and Young) that no other table of rank $k$ is closer, measured by
# the sum of the squared differences.
#
# Our target has 16 positions. Each likes itself and its neighbours, and all like position 0 a little more:

# %%
position = torch.arange(16.0)
target = 4 * torch.exp(-(position[:, None] - position).abs() / 2)
target[:, 0] += 2
U, sizes, V_rows = torch.linalg.svd(target)


def best_of_rank(k):
    """The sum of the first k parts: column r of U times row r of V_rows, with its size."""
    return sum(sizes[r] * torch.outer(U[:, r], V_rows[r]) for r in range(k))


print("all 16 parts give the target:", equal(best_of_rank(16), target))
print("the singular values:", [f"{size:.1f}" for size in sizes.tolist()])

# %% [markdown]
# Predict before you look: how does the table look with one part, with two? And is the map, after the
# softmax, as blurred as the scores?

# %%
axes_picture = Axes(head=5, length=16)  # five tables side by side stand where heads do
tables = torch.stack([target] + [best_of_rank(k) for k in (1, 2, 4, 8)])
tables = axes_picture(tables, "head query key", "tables")
tables_as_maps = axes_picture(tables.softmax(dim=-1), "head query key", "tables_as_maps")

fig, panels = plt.subplots(2, 5, figsize=(7.5, 3.3), layout="constrained")
for i, title in enumerate(["target", "k = 1", "k = 2", "k = 4", "k = 8"]):
    panels[0, i].imshow(tables[i], cmap="Greys", vmin=tables.min(), vmax=tables.max())
    panels[1, i].imshow(tables_as_maps[i], cmap="Greys", vmin=0, vmax=0.5)
    panels[0, i].set_title(title)
for panel in panels.flat:
    panel.set_xticks([])
    panel.set_yticks([])
panels[0, 0].set_ylabel("scores")
panels[1, 0].set_ylabel("map")
plots.show(
    fig,
    "above, a table of 16 x 16 scores and its best approximations of rank 1, 2, 4 and 8; below, their "
    "attention maps, in which a weight of 0.5 or more is black. Rows are queries, columns keys, dark is "
    "large. The target has a thin dark diagonal. With k = 1 all rows have the same form. With k = 2 there "
    "are two blurred spots, with k = 4 a broad diagonal band. With k = 8 the diagonal is thin, and in the "
    "map still paler than in the target.",
)

# %% [markdown]
# How far off is each? The squared error is the sum of the squares of the singular values that were dropped.
# So the singular values alone tell you, before you build anything:

# %%
for k in (1, 2, 4, 8):
    error = (best_of_rank(k) - target).norm() / target.norm()
    from_sizes = (sizes[k:] ** 2).sum().sqrt() / target.norm()
    print(f"k = {k}: error {100 * error:.0f} % of the target, by the singular values {100 * from_sizes:.0f} %")

# %% [markdown]
# Do not believe the theorem, try to beat it. We start two factors with random numbers and let training make
# the squared error as small as it can. (`torch.optim.Adam` moves the factors along their gradient, a step
# at a time.)

# %%
_ = torch.manual_seed(0)
trained = [nn.Parameter(torch.randn(16, 2)) for _ in range(2)]
optimizer = torch.optim.Adam(trained, lr=0.05)
for _ in range(300):
    squared_error = ((trained[0] @ trained[1].T - target) ** 2).sum()
    optimizer.zero_grad()
    squared_error.backward()
    optimizer.step()
ratio = squared_error.item() / ((best_of_rank(2) - target) ** 2).sum().item()
print("training beats the SVD:    ", ratio < 0.9999)
print("training comes near to it: ", ratio < 1.01)

# %% [markdown]
# One caution: the table is determined, its factors are not. Double the one and halve the other, and the
# product is the same. So compare products, never factors:

# %%
print("same product:", equal((2 * R1) @ (R2 / 2).T, scores))

# %% [markdown]
# ## The same as Random at full rank
#
# With $k = l$ nothing is lost: every table $R$ is a product. The SVD gives one: put the sizes on the left
# part. So a Factorized Random layer can do whatever a Random layer does. Here are two layers of the library
# with the same values and the same output projection. The one gets the factors of the other's $R$, in every
# head:

# %%
_ = torch.manual_seed(0)
random_layer = Attention(d_model=12, head=3, max_length=6, score="random", initial_scale=1.0)
full_rank_layer = Attention(d_model=12, head=3, max_length=6, score="factorized_random", rank=6)

R = random_layer.score.R.detach()
U_of_R, sizes_of_R, V_rows_of_R = torch.linalg.svd(R)  # of each head
state = random_layer.state_dict()
del state["score.R"]
state["score.R1"] = U_of_R * sizes_of_R[:, None]
state["score.R2"] = V_rows_of_R.transpose(1, 2)
full_rank_layer.load_state_dict(state)

(y_random, map_random), (y_full_rank, map_full_rank) = random_layer(first_input), full_rank_layer(first_input)
print("same maps:   ", equal(map_random, map_full_rank))
print("same results:", equal(y_random, y_full_rank))
print("parameters of the scores:", parameters(random_layer.score), "and", parameters(full_rank_layer.score))

# %% [markdown]
# It has twice the parameters of Random. Full rank is for the proof, not for use.
#
# ### Exercise 05.2: the best two factors
#
# *15 minutes, medium.* Somebody has trained a Random layer and wants a smaller one. Find the factors of
# rank $k$ whose product is closest to the table, in every head.

# %% exercise="05.2" points=2
def best_factors(R, rank):
    """Factors whose product has the smallest sum of squared differences from R, in every head.

    R: head length length, any numbers. rank: a whole number, below length.
    Returns a tuple (R1, R2), both head length rank. R1[h] @ R2[h].T is the best table of that rank for R[h].
    How the singular values are shared between R1 and R2 is up to you.
    """
    ### BEGIN SOLUTION
    left, singular, right = torch.linalg.svd(R)
    root = singular[:, None, :rank].sqrt()
    return left[:, :, :rank] * root, right[:, :rank].transpose(1, 2) * root
    ### END SOLUTION

# %% check="05.2"
check("05.2", best_factors)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# `torch.linalg.svd(R)` takes all heads at once and returns three tensors. Print their shapes for an `R` of
# 3 × 6 × 6. In the second and the third, which axis counts the parts?
#
# </details>
# <details><summary>Hint 2: from a sum of parts to two factors</summary>
#
# Look at `scores_with_outer`: part r is column r of one factor times column r of the other. The third tensor
# of the SVD holds its parts as *rows*.
#
# </details>
# <details><summary>Hint 3: the product is too large or too small</summary>
#
# Each singular value may enter the product once. If both factors carry something of it, what must that be?
# And sizes belong to columns: `S[:, None, :k]` gives column r of every head the size r of that head.
#
# </details>

# %% [markdown]
# ## The map can have a higher rank than the scores
#
# The scores have rank $k$. The *map* is made of them by a softmax, and a softmax is not a product of tables.
# Compare:

# %%
for k in (1, 2, 4):
    table = axes(draw(6, k, high=2, seed=14).double() @ draw(6, k, high=2, seed=15).double().T, "query key")
    print(f"k = {k}: rank of the scores {rank_of(table)}, rank of the map {rank_of(table.softmax(dim=-1))}")

# %% [markdown]
# How can two columns make a map of rank 6? One column shows it. With $k = 1$ all rows are multiples of one
# row, say 1, 2 and 3 times $(0, 1, 2)$. The exponential turns a multiple into a power, and powers of a row
# are *not* multiples of it:

# %%
multiples = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 2.0]))
print("rank of the multiples:   ", rank_of(multiples))
print("rank of the exponentials:", rank_of(multiples.double().exp()))

# %% [markdown]
# Dividing each row by its sum does not change the rank. So equation (7) limits the scores and not the map.
# This is more than a curiosity: it is why a small $k$ can make a sharp map, as you see below.
#
# The reverse happens too. The softmax ignores a number that is added to a whole row, so scores of rank 2 can
# make a map of rank 1, with all rows equal:

# %%
key_part = draw(6, seed=16, high=2)
two_columns = axes(torch.stack([torch.ones(6), draw(6, seed=17, high=2)], dim=1), "query rank", "two_columns")
two_rows = axes(torch.stack([key_part, torch.ones(6)], dim=1), "key rank", "two_rows")
row_plus_constant = axes(two_columns.double() @ two_rows.double().T, "query key", "row_plus_constant")
print("rank of the scores:", rank_of(row_plus_constant))
print("rank of the map:   ", rank_of(row_plus_constant.softmax(dim=-1)))

# %% [markdown]
# ## What it costs
#
# ### Parameters
#
# Two factors of $l \times k$: $2 l k$ numbers in each head, instead of $l^2$. So says Table 1 of the paper. There
# are no biases. Counted:

# %%
print("  l   k   Random  Factorized Random  2 l k")
for max_length in (8, 16, 32, 256):
    for k in (4, 8):
        random = parameters(Random(1, head=1, max_length=max_length))
        factorized = parameters(FactorizedRandom(1, head=1, max_length=max_length, rank=k))
        print(f"{max_length:3} {k:3} {random:8,} {factorized:18,} {2 * max_length * k:6,}")

# %% [markdown]
# $2 l k < l^2$ means $k < l/2$. At $l = 8$ and $k = 4$ nothing is saved, at $l = 8$ and $k = 8$ you pay
# double. The paper's $k = 8$ saves from 17 positions on; at its 256 positions it keeps one sixteenth.
#
# Does that fit the paper's own numbers? Its translation model has 6 + 6 layers with 8 heads and length 256,
# and it reports 67 million parameters with Random and 61 million with Factorized Random. The difference by
# our formulas:

# %%
layers, heads, longest = 12, 8, 256
saved = layers * heads * (longest**2 - 2 * longest * 8)
print(f"{saved:,}")

# %% [markdown]
# 5.9 million, and 67 - 61 = 6. It fits.
#
# ### Multiply-adds
#
# Random has its table ready. Factorized Random first multiplies it out: $l^2 k$ multiply-adds in each head.
# This is done once for the whole batch, since the batch shares one table; and once and for all when
# training is over.

# %%
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2  # torch counts a multiplication and an addition as two


score = FactorizedRandom(d_model=12, head=3, max_length=8, rank=2)
print("a batch of 1:", multiply_adds(score, torch.randn(1, 6, 12)))
print("a batch of 5:", multiply_adds(score, torch.randn(5, 6, 12)))
print("formula:     ", 3 * 6**2 * 2)
print("Random:      ", multiply_adds(Random(d_model=12, head=3, max_length=8), torch.randn(5, 6, 12)))

# %% [markdown]
# The softmax and the average of the values cost the same for every S.
#
# ### Exercise 05.3: up to which rank is it smaller?
#
# *5 minutes, easy.* The inequality is simple. The whole number is where people slip.

# %% exercise="05.3" points=1
def largest_rank(max_length, head):
    """The largest rank with which FactorizedRandom has fewer parameters than Random.

    max_length, head: whole numbers of at least 1; both classes have this many heads.
    Returns a whole number; 0 if no rank will do. Equal is not fewer.
    """
    ### BEGIN SOLUTION
    return (max_length - 1) // 2
    ### END SOLUTION

# %% check="05.3"
check("05.3", largest_rank)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write both counts with all heads, and a "<" between them. What stands on both sides can go.
#
# </details>
# <details><summary>Hint 2: check yourself before you ask the check</summary>
#
# A loop over the ranks needs no formula. Try it on paper with 16 and with 17 positions.
#
# </details>

# %% [markdown]
# ## What rank a shift needs
#
# Back to "look at the word before". To have the first word look somewhere, let it look at the last: the
# positions stand in a circle. As a table of scores this is a shifted diagonal. What do its singular values
# say?

# %%
shifted_table = torch.eye(6).roll(-1, dims=1)  # row i has its 1 in column i - 1
print_rows(words, shifted_table, decimals=0)
shifted_sizes = torch.linalg.svdvals(shifted_table)
print("singular values:", [f"{size:.2f}" for size in shifted_sizes.tolist()])
print(f"error of the best table of rank 2: {100 * shifted_sizes[2:].norm() / shifted_sizes.norm():.0f} %")

# %% [markdown]
# All are equal. No part is larger than another, so the best table of rank 2 misses 4 of 6 parts. It looks
# hopeless. But we asked for too much. Attention needs no 1 and 0 there. **It needs the right key to have
# the highest score of its row.** The softmax does the rest.
#
# ### Points on a circle
#
# Put the $l$ positions on a circle like the hours of a clock. Position $j$ has the angle $\theta_j = 2\pi j / l$,
# its point is $(\cos\theta_j, \sin\theta_j)$. Let query $i$ prefer the position $n$ steps away, at the angle
# $\theta_i + \varphi$ with $\varphi = 2\pi n / l$; for the word before, $n = -1$. As scores take
#
# $$S_{ij} = c\, \cos(\theta_i + \varphi - \theta_j).$$
#
# The cosine is largest at 0, so the best key is the one with $\theta_j = \theta_i + \varphi$: the right
# one. And its rank? The addition formula $\cos(\alpha - \beta) = \cos\alpha\cos\beta + \sin\alpha\sin\beta$
# gives
#
# $$S_{ij} = c\,\cos(\theta_i + \varphi)\,\cos\theta_j + c\,\sin(\theta_i + \varphi)\,\sin\theta_j.$$
#
# Two products of something of $i$ and something of $j$: rank 2, for every length. Read the factors off:
#
# $$R_1: \; c\,\bigl(\cos(\theta_i + \varphi),\ \sin(\theta_i + \varphi)\bigr), \qquad
# R_2: \; (\cos\theta_j,\ \sin\theta_j).$$

# %%
angle = 2 * pi * torch.arange(6) / 6
step = 2 * pi / 6  # from one position to the next
R1_back = 10 * torch.stack([torch.cos(angle - step), torch.sin(angle - step)], dim=1)
R2_back = torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)
R1_back, R2_back = axes(R1_back, "query rank", "R1_back"), axes(R2_back, "key rank", "R2_back")
map_back = axes((R1_back @ R2_back.T).softmax(dim=-1), "query key", "map_back")
print("best key of each query:", map_back.argmax(dim=1).tolist())
print("its weight:            ", [f"{weight:.2f}" for weight in map_back.amax(dim=1).tolist()])
scores_in_64_bit = R1_back.double() @ R2_back.double().T
print("rank of scores and map:", rank_of(scores_in_64_bit), "and", rank_of(scores_in_64_bit.softmax(dim=-1)))

# %% [markdown]
# Two columns, and 99 % of the weight on the right word. The map has rank 6.
#
# ### A reversal
#
# "The first looks at the last, the second at the last but one": key $l - 1 - i$. Its angle is
# $-\theta_i - 2\pi/l$: the query's point in a mirror, then one step back. So
#
# $$S_{ij} = c\,\cos(\theta_i + \theta_j + 2\pi/l)
# = c\,\cos(\theta_i + 2\pi/l)\,\cos\theta_j - c\,\sin(\theta_i + 2\pi/l)\,\sin\theta_j,$$
#
# by $\cos(\alpha + \beta) = \cos\alpha\cos\beta - \sin\alpha\sin\beta$. Rank 2 again; one sign differs.

# %%
R1_reversal = axes(10 * torch.stack([torch.cos(angle + step), -torch.sin(angle + step)], dim=1), "query rank")
map_reversal = axes((R1_reversal @ R2_back.T).softmax(dim=-1), "query key", "map_reversal")
print("best key of each query:", map_reversal.argmax(dim=1).tolist())
print("its weight:            ", [f"{weight:.2f}" for weight in map_reversal.amax(dim=1).tolist()])

# %%
axes_two = Axes(head=2, length=6)
pair = axes_two(torch.stack([map_back, map_reversal]), "head query key", "pair")
plots.show(
    plots.attention_map(pair, words, titles=["the position before", "reversal"]),
    "two attention maps from factors of rank 2. Left, the dark cells stand one to the left of the diagonal, "
    "and the first word looks at the last. Right, they stand on the other diagonal, from top right to bottom "
    "left.",
)

# %% [markdown]
# Is rank 1 enough? No. With $k = 1$ row $i$ is a multiple of one row of keys. A positive multiple has its
# highest score where that row is highest, a negative one where it is lowest. There are no other best keys:

# %%
one_column = torch.linspace(-2, 2, 6)[:, None] @ draw(6, 1, high=2, seed=18).T
print("best keys with rank 1:", one_column.argmax(dim=1).unique().tolist())

# %% [markdown]
# ### How large the factor c must be
#
# The neighbours of the right key are close on the circle. Their score is $c\cos(2\pi/l)$ against $c$. The gap
# between the two,
#
# $$c\,\bigl(1 - \cos(2\pi/l)\bigr) \approx c\,\frac{2\pi^2}{l^2},$$
#
# shrinks with the *square* of the length. A weight of 0.9 needs a certain gap: two neighbours with
# $e^{-\text{gap}}$ each and all others far below give a weight of about $1 / (1 + 2e^{-\text{gap}})$, so
# the gap must be about $\ln 18$. The prediction is $c \approx \ln 18 / (1 - \cos(2\pi/l))$. Measured, in
# whole numbers:

# %%
def weight_of_the_position_before(length, c):
    """The weight of the right key. All rows have the same scores, only turned, so row 0 tells it."""
    row = c * torch.cos(2 * pi * (torch.arange(length) + 1) / length)  # key j for query 0
    return row.softmax(dim=0)[length - 1].item()


for length in (6, 12, 24, 48):
    c = 1
    while weight_of_the_position_before(length, c) < 0.9:
        c += 1
    print(f"l = {length:2}: c = {c:3}, predicted {log(18) / (1 - cos(2 * pi / length)):3.0f}")

# %% [markdown]
# Twice the length, four times the scale. This is the price of a small rank: not *whether* the right key
# wins, but how large the numbers must be. More columns make it cheaper. Use the circle several times, at 1,
# 2, 3 and 4 times the angle, two columns for each: rank 8, as in the paper. The right key is best in all
# four, its neighbours fall off faster:

# %%
for length in (24, 48):
    turns = 2 * pi * (torch.arange(length) + 1) / length
    row = sum(torch.cos(times * turns) for times in (1, 2, 3, 4))
    c = 1
    while (c * row).softmax(dim=0)[length - 1] < 0.9:
        c += 1
    print(f"l = {length}: the highest score is {4 * c} with rank 8")

# %% [markdown]
# Compare with the scores of rank 2 above, whose highest is $c$ itself.
#
# ### Exercise 05.4: factors for any shift
#
# *15 minutes, medium.* Build the two factors with which query $i$ looks at position $i + n$, for any length
# and any $n$, forwards and backwards. The check looks at the map: at the best key of each query whose position
# $i + n$ is inside the sentence, and at its weight.

# %% exercise="05.4" points=2
def shift_factors(length, shift):
    """Factors of rank 2 for "look at the position `shift` steps away".

    length: a whole number, at least 9. shift: a whole number, from -3 to 3, not 0.
    Returns a tuple (R1, R2), both length rank, with rank = 2. In softmax(R1 @ R2.T), row i has its highest
    weight at key i + shift, and that weight is at least 0.9. Rows where i + shift is below 0 or not below
    length may look anywhere.
    """
    ### BEGIN SOLUTION
    key_angle = torch.arange(length) * (2 * pi / length)
    wanted_angle = key_angle + shift * (2 * pi / length)
    c = 4 / (1 - cos(2 * pi / length))
    R1 = c * torch.stack([wanted_angle.cos(), wanted_angle.sin()], dim=1)
    return R1, torch.stack([key_angle.cos(), key_angle.sin()], dim=1)
    ### END SOLUTION

# %% check="05.4"
check("05.4", shift_factors)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# The cell with `R1_back` is a shift by -1 for 6 positions. Which three numbers in it must become variables?
#
# </details>
# <details><summary>Hint 2: the positions are right, the weights are not</summary>
#
# The scale must grow with the length. The formula for the prediction above gives *about* 0.9. Ask for a gap
# that is somewhat larger.
#
# </details>
# <details><summary>Another way, to compare with when you are done</summary>
#
# A parabola does it too, and needs no circle. Take $-(i + n - j)^2$: it is highest at $j = i + n$.
# Multiplied out it is $-(i+n)^2 + 2(i+n)j - j^2$. The first term is the same in the whole row, so the
# softmax ignores it. The other two have rank 2. A factor in front makes it sharp.
#
# </details>

# %% [markdown]
# ## How it starts and learns
#
# ### The scale of the start
#
# How large are the scores at the start, if every entry of both factors is drawn independently, with mean 0
# and standard deviation $s$? A product of two such numbers has the variance $s^2 \cdot s^2 = s^4$. A score
# is a sum of $k$ independent products. Variances add up: $k s^4$. So
#
# $$\mathrm{std}(S_{ij}) = \sqrt{k}\, s^2.$$

# %%
generator = torch.Generator().manual_seed(0)
s = 0.5
for k in (1, 2, 8, 32):
    start_1, start_2 = (s * torch.randn(16, 256, k, generator=generator) for _ in range(2))
    measured = (start_1 @ start_2.transpose(1, 2)).std().item()
    formula = sqrt(k) * s**2
    print(f"k = {k:2}: formula {formula:.3f}, measured within 5 %:", abs(measured / formula - 1) < 0.05)

# %% [markdown]
# Whoever gives the factors the start that is usual for a table, $s = 1/\sqrt{l}$, gets scores of
# $\sqrt{k} / l$. Compare with Random, whose scores start with $1/\sqrt{l}$ in the library:

# %%
print("with l = 256 and k = 8")
print(f"factors drawn with 1/sqrt(l): {sqrt(8) / 256:.4f}")
print(f"Random:                       {1 / sqrt(256):.4f}")

# %% [markdown]
# The scores are several times smaller, and the map is even closer to a plain average.
#
# > **Initial scale.** The paper does not state how $R_1$ and $R_2$ start. In the library `initial_scale` is the
# > standard deviation of the *scores*, the same for Random and Factorized Random, so that the two can be
# > compared. The class solves the formula for $s$. The default is $1/\sqrt{\text{max\_length}}$, our choice.

# %%
_ = torch.manual_seed(0)
for k in (2, 8, 32):
    score = FactorizedRandom(d_model=16, head=16, max_length=256, rank=k, initial_scale=0.5)
    measured = score(torch.zeros(1, 256, 16)).std().item()
    print(f"k = {k:2}: the scores start with 0.5, within 5 %:", abs(measured / 0.5 - 1) < 0.05)

# %% [markdown]
# ### Two factors at 0 never move
#
# Random may start at 0. Two factors may not. A score is a product, so the gradient of $R_1$ contains $R_2$,
# and the gradient of $R_2$ contains $R_1$. If both are 0, both gradients are 0, for ever. If one of them is
# not 0, the other one learns:

# %%
for name, start_1, start_2 in [("both 0", 0 * R1, 0 * R2), ("R1 is 0", 0 * R1, R2)]:
    start_1, start_2 = start_1.requires_grad_(), start_2.clone().requires_grad_()
    ((start_1 @ start_2.T) * probe).sum().backward()
    moves = [bool((factor.grad != 0).any()) for factor in (start_1, start_2)]
    print(f"{name:>7}: R1 has a gradient: {moves[0]}, R2 has a gradient: {moves[1]}")

# %%
try:
    FactorizedRandom(d_model=12, head=3, max_length=8, initial_scale=0)
except ValueError as error:
    print(error)

# %% [markdown]
# ### The learning rate
#
# Chapter 03 shows why $R$ needs its own learning rate. Adam moves a number by about the learning rate a
# step, however small the gradient. What does that mean for factors? For 12 positions the circle needs $c =
# 22$. If both factors share it, each has points at the distance $\sqrt{22}$ from 0, between 4 and 5. A
# number that starts near 0 and moves 0.001 a step has come 0.3 far after 300 steps. With 0.01 it can come 3
# far, with 0.1 it is there.
#
# We train on "look at the position before", on the circle of 12. The *loss*, the number that training makes
# small, is minus the logarithm of the weight on the right key, averaged over the rows. It is 0 if each
# right key has all the weight. Predict the three weights. Then run it.

# %%
def train(goal, rank, learning_rate, steps):
    """Train factors so that softmax(R1 R2^T) comes close to `goal`, rows of weights. -> module, last loss"""
    _ = torch.manual_seed(0)
    module = FactorizedRandom(d_model=1, head=1, max_length=len(goal), rank=rank)
    x = torch.zeros(1, len(goal), 1)  # only its length is read
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate)
    for _ in range(steps):
        loss = -(goal * module(x)[0, 0].log_softmax(dim=-1)).sum(dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return module, loss.item()


position_before = torch.eye(12).roll(-1, dims=1)
for learning_rate in (0.001, 0.01, 0.1):
    module_12, _ = train(position_before, rank=2, learning_rate=learning_rate, steps=300)
    learned = module_12(torch.zeros(1, 12, 1))[0, 0].softmax(dim=-1)
    right = (learned * position_before).sum(dim=1)
    print(f"learning rate {learning_rate:5}: mean weight of the right key {right.mean():.1f}")

# %% [markdown]
# The library's training loop puts $R$, $R_1$ and $R_2$ into one group with 10 times the learning rate of
# the rest, and without weight decay, which would pull them back to 0. And what did the last run find? Each
# position has two numbers in $R_2$. They are a point in the plane. Nobody told it about circles:

# %%
points = module_12.R2.detach()[0]
points = Axes(length=12, rank=2)(points, "length rank", "points")
distance = points.norm(dim=1)  # from the middle
print("a ring: the nearest is at least 0.8 times as far from the middle as the farthest:",
      bool(distance.min() > 0.8 * distance.max()))

fig, panel = plt.subplots(figsize=(3.4, 3.2), layout="constrained")
panel.plot(*points.T, linestyle="none", marker="o", markersize=14, color="0.9")
for j, (across, up) in enumerate(points.tolist()):
    panel.text(across, up, str(j), ha="center", va="center")
panel.set_aspect("equal")
panel.set_xlabel("column 0 of R2")
panel.set_ylabel("column 1 of R2")
plots.show(
    fig,
    "the two learned numbers of each of 12 positions, as points in the plane with the number of the position. They "
    "form a ring around the middle. Going round it, the positions do not come in their order.",
)

# %% [markdown]
# A ring, as predicted, but the positions stand on it in any order. The next section says why that is no harm.
#
# ## Where it breaks
#
# Look at the factors of the circle once more. Row $i$ of $R_1$ is $c$ times the *point of the wanted key*.
# It is of no importance which point belongs to which key, as long as each has its own. So nothing ties us
# to shifts either. Any choice of one key for each query has rank 2, however wild:

# %%
wanted = torch.tensor([3, 0, 5, 5, 1, 2])
R1_wild = axes(10 * R2_back[wanted], "query rank", "R1_wild")
map_wild = axes((R1_wild @ R2_back.T).softmax(dim=-1), "query key", "map_wild")
print("best key of each query:", map_wild.argmax(dim=1).tolist())

# %% [markdown]
# One key a row is thus no limit, if the scores may be large. What the circle cannot do is to like *two far
# positions* and not what lies between. For a query, the scores of all keys are one cosine wave around the
# circle. It has one top, so the two best keys are neighbours, for every query that there can be. We try
# 1,000 directions:

# %%
directions = torch.linspace(0, 2 * pi, 1000)
queries = torch.stack([directions.cos(), directions.sin()], dim=1)
best_two = (queries @ R2_back.T).topk(2, dim=1).indices
steps_apart = (best_two[:, 0] - best_two[:, 1]).abs()
steps_apart = torch.minimum(steps_apart, 6 - steps_apart)
print("steps between the two best keys:", steps_apart.unique().tolist())

# %% [markdown]
# So how does the error fall with the rank? Four goals for 12 positions: the position before; a random reordering
# of the positions (each query looks at one, each position is looked at once); for each query 3 random positions; for
# each query 6 random positions, half of all. Each is trained with ranks from 1 to 12, all alike. The error is
# the loss minus the lowest value that it can have, so 0 is perfect. (Its unit is the *nat*, that of the
# natural logarithm.)

# %%
generator = torch.Generator().manual_seed(0)


def random_positions(count):
    """For each query `count` random keys, with equal weights."""
    goal = torch.zeros(12, 12)
    for i in range(12):
        goal[i, torch.randperm(12, generator=generator)[:count]] = 1 / count
    return goal


goals = {
    "the position before": position_before,
    "a reordering": torch.eye(12)[torch.randperm(12, generator=generator)],
    "3 positions": random_positions(3),
    "6 positions": random_positions(6),
}
ranks = [1, 2, 4, 8, 12]
errors = {}
for name, goal in goals.items():
    lowest = log(round(1 / goal.max().item()))  # the loss of a perfect map with equal weights
    errors[name] = [train(goal, k, learning_rate=0.05, steps=300)[1] - lowest for k in ranks]

# %%
fig, panel = plt.subplots(figsize=plots.SIZE, layout="constrained")
for number, (name, values) in enumerate(errors.items()):
    panel.plot(ranks, values, label=name, color=plots.COLOURS[number], linestyle=plots.LINES[number],
               marker=plots.MARKERS[number])
panel.set_xticks(ranks)
panel.set_xlabel("rank k")
panel.set_ylabel("error of the map (nats)")
panel.legend()
plots.show(
    fig,
    "the error of the trained map against the rank, for four goals. With rank 1 all are far off. The position "
    "before and the reordering are near 0 from rank 2 on; 3 random positions a query from rank 4 on; 6 random "
    "positions a query only with rank 8 and 12.",
)
for name, values in errors.items():
    enough = [k for k, error in zip(ranks, values, strict=True) if error < 0.05]
    print(f"{name:>16}: error below 0.05 with the ranks {enough}")

# %% [markdown]
# The more positions a row must pick out, the more columns the factors need. This is what Factorized Random
# gives up. The rest it shares with Random: it never reads a word, and it is tied to `max_length`.
#
# ## The same as the library's layer
#
# Everything in one class: heads, shorter inputs, values, output projection.

# %%
class FactorizedRandomAttention(nn.Module):
    def __init__(self, d_model, head, max_length, rank):
        super().__init__()
        self.head = head
        self.R1 = nn.Parameter(torch.randn(head, max_length, rank))
        self.R2 = nn.Parameter(torch.randn(head, max_length, rank))
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x):
        length = x.shape[1]
        scores = self.R1[:, :length] @ self.R2[:, :length].transpose(1, 2)  # (7), no x in it
        weights = scores.softmax(dim=-1)
        value = rearrange(self.value(x), "batch key (head d_head) -> batch head key d_head", head=self.head)
        mixed = einsum(weights, value, "head query key, batch head key d_head -> batch head query d_head")
        y = self.output(rearrange(mixed, "batch head query d_head -> batch query (head d_head)"))
        return y, weights

# %% [markdown]
# The map has no batch axis: one table, many sentences. The *layer* repeats it for every sentence at the
# end, so that all its scores hand back the same axes.

# %%
_ = torch.manual_seed(0)
axes_end = Axes(batch=5, head=3, length=6, d_model=12)
ours = FactorizedRandomAttention(d_model=12, head=3, max_length=8, rank=2)
y_ours, map_ours = ours(first_input)
y_ours = axes_end(y_ours, "batch length d_model", "y_ours")
map_ours = axes_end(map_ours, "head query key", "map_ours")

library = Attention(d_model=12, head=3, max_length=8, score="factorized_random", rank=2)
names = {"R1": "score.R1", "R2": "score.R2"}  # ours -> the library's; the others have the same names
library.load_state_dict({names.get(name, name): tensor for name, tensor in ours.state_dict().items()})
y_library, map_library = library(first_input)
map_library = axes_end(map_library, "batch head query key", "map_library")
print("same parameters:", parameters(ours) == parameters(library))
print("same maps:      ", all(equal(map_library[b], map_ours) for b in range(5)))
print("same outputs:   ", equal(y_library, y_ours))

# %%
output_probe = draw(5, 6, 12, high=2, seed=19)
for each in (ours, library):
    each.zero_grad()
    (each(first_input)[0] * output_probe).sum().backward()
of_library = dict(library.named_parameters())
for name, parameter in ours.named_parameters():
    same = equal(parameter.grad, of_library[names.get(name, name)].grad)
    print(f"same gradient of {name:>13}:", same)

# %% [markdown]
# What you built is the library's layer. One difference is left, the start: ours is drawn with standard
# deviation 1 so that a mistake would show.
#
# ## Three sentences to keep
#
# 1. $R_1 R_2^\top$ is Random with $2 l k$ numbers in each head instead of $l^2$, smaller for $k < l/2$; it reads
#    no word, and a count with the width $d$ in it gives an impostor away.
# 2. The rank limits the scores, not the map: with two columns, points on a circle, every query can have any one
#    key as its best, at scores that grow with $l^2$.
# 3. The shapes do not tell: a shared key axis, a repeated name, a missing `.T` at $k = l$ all fit; row counts,
#    gradients and parameter counts tell.
#
# **Where it is going next.** You now have every kind of S: the dot product compares tokens, the two dense
# ones read one token, the two random ones read none. They need not compete. Chapter 06 mixes them inside
# one softmax.
