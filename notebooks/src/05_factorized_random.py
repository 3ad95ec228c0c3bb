# %% [markdown]
# # 05 · Factorized Random: a table of scores from two thin ones
#
# **You build the table of Random as a product of two thin tables, see what the product can and cannot hold,
# and find out why two columns are enough for "look at the word before".**
#
# - **Before you start:** chapters [00](00_start_here.ipynb) to [04](04_factorized_dense.ipynb). To predict before
#   you look, hide the stored outputs: *Edit*, *Clear Outputs of All Cells* (Colab: *Clear all outputs*).
# - **Time:** about 110 minutes, 70 of them for the four exercises; the stretch exercise takes 45 more.
# - **Level:** medium.
# - **Of use elsewhere:** the scores of the dot product have a rank, too, at most `d_head`, so all that you learn here
#   about rank and softmax holds for them. And LoRA, a common way to fine-tune large models, learns the change of
#   a matrix as a product of two thin ones.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %% fold=true
# @title Imports
from math import cos, log, pi, sqrt

import matplotlib.pyplot as plt
import torch
from einops import einsum, rearrange
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from synth_lib import plots
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.scores import FactorizedRandom, Random
from synth_lib.shapes import Axes

# %% [markdown]
# ## The question
#
# Random (chapter 03) does not read the words: one learned table $R$ for every sentence. For $l$ positions that is
# $l^2$ numbers in each head, 65,536 for 256. But a table that is of use often has a pattern. "Look at the word
# before" is one rule, and it fills a whole table:

# %% fold=true
# @title Two helpers: numbers from a seed, and rows with names
def draw(*shape, high, seed):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


def print_rows(names, rows, decimals=2):
    """One line for each name."""
    for name, row in zip(names, rows.tolist(), strict=True):
        print(f"{name:>6}", *(f"{number:5.{decimals}f}" for number in row))

# %%
words = "the dog saw a small bird".split()
before = 5 * torch.eye(6).roll(-1, dims=1)
before[0] = 0  # no word stands before the first
print_rows(words, before, decimals=0)

# %% [markdown]
# **Can fewer numbers than $l^2$ make the table, and which tables are lost?**
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
# | $G(X)$ | `value` | key d_model | 6 × 12 | what each token gives |
# | $Y$ | `y` | query d_model | 6 × 12 | the result |
#
# The paper's $k$ is `rank`; it takes $k = 8$, ours is 2. $R_1$ and $R_2$ are called the *factors*. One score is
# a sum of $k$ products, a dot product of two *positions*:
#
# $$S_{ij} = \sum_{r=0}^{k-1} R_{1,ir}\, R_{2,jr}$$

# %%
plots.show(
    plots.flow("Factorized Random", None),
    "Y = softmax(S(X) + mask) G(X) as boxes and arrows. No arrow leads from X into the filled box "
    "of S, Factorized Random: it reads no token.",
)

# %%
axes = Axes(length=6, rank=2, d_model=12)
R1 = axes(draw(6, 2, high=2, seed=1), "query rank", "R1")
R2 = axes(draw(6, 2, high=2, seed=2), "key rank", "R2")
print_rows(words, R1, decimals=1)

# %% [markdown]
# ## The ladder
#
# ### Loops say the equation aloud

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


scores = axes(scores_with_loops(R1, R2), "query key", "scores")
print_rows(words, scores)

# %% [markdown]
# ### A matrix product
#
# The sum runs over `rank`, the *last* axis of both, so `R2` has to be turned. Forget the `.T`, and torch refuses: 6 ×
# 2 does not fit on 6 × 2. Do not rely on it. If the rank equals the length, both run, and the loops alone tell which
# is right:

# %%
def scores_with_matmul(R1, R2):
    return R1 @ R2.T


def scores_with_einsum(R1, R2):
    return einsum(R1, R2, "query rank, key rank -> query key")


square_1, square_2 = (draw(6, 6, high=2, seed=seed) for seed in (3, 4))
by_loops = scores_with_loops(square_1, square_2)
for name, table in {"R1 @ R2.T": square_1 @ square_2.T, "R1 @ R2": square_1 @ square_2}.items():
    right = table.isclose(by_loops, atol=1e-4).sum()
    print(f"{name:9} at rank 6: {tuple(table.shape)}, {right} of 36 scores are right")

# %% [markdown]
# ### A sum of k simple tables
#
# Put the sum over $r$ outside. Column $r$ of `R1` times column $r$ of `R2` is a whole table, an *outer
# product*: every number of the one times every number of the other. The scores are the sum of $k$ of them.
# The section on rank needs this.

# %%
def scores_with_outer(R1, R2):
    return sum(torch.outer(R1[:, r], R2[:, r]) for r in range(R1.shape[1]))


class OneHead(nn.Module):
    def __init__(self, max_length, rank):
        super().__init__()
        self.R1 = nn.Parameter(torch.randn(max_length, rank))
        self.R2 = nn.Parameter(torch.randn(max_length, rank))

    def forward(self, x):
        length = len(x)  # all that it reads of x
        return self.R1[:length] @ self.R2[:length].T

# %% fold=true
# @title Guard: all five have the same values, and the same gradients
def equal(a, b):
    """Same shape, same dtype, same values."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


x = axes(draw(6, 12, high=2, seed=5), "length d_model", "x")
probe = draw(6, 6, high=2, seed=6)
module = OneHead(max_length=6, rank=2)
module.load_state_dict({"R1": R1, "R2": R2})
assert equal(module(x), scores)
of_module = torch.autograd.grad((module(x) * probe).sum(), [module.R1, module.R2])
for function in (scores_with_loops, scores_with_matmul, scores_with_outer, scores_with_einsum):
    factors = [factor.clone().requires_grad_() for factor in (R1, R2)]
    got = function(*factors)
    pairs = zip(torch.autograd.grad((got * probe).sum(), factors), of_module, strict=True)
    assert equal(got, scores) and all(equal(mine, other) for mine, other in pairs)

# %% [markdown]
# ### From scores to the result
#
# As in every chapter: softmax along the keys, then the average of the values.

# %%
weights = axes(scores.softmax(dim=-1), "query key", "weights")
value = axes(x @ draw(12, 12, high=0.5, seed=7), "key d_model", "value")
y = axes(weights @ value, "query d_model", "y")

# %% [markdown]
# ### Both factors on the key axis
#
# A mistake from public code: somebody calls the first axis of both factors `key`. Then there is one number for
# each key, not one for each pair, and broadcasting gives every query the same row. Shapes fit:

# %%
one_row = axes(einsum(R1, R2, "key rank, key rank -> key"), "key", "one_row")
stretched = axes(one_row.expand(6, 6), "query key", "stretched")
y_stretched = axes(stretched.softmax(dim=-1) @ value, "query d_model", "y_stretched")
print("different rows of the scores:", len(stretched.unique(dim=0)), "instead of",
      len(scores.unique(dim=0)))
print("different rows of y:         ", len(y_stretched.unique(dim=0)), "instead of",
      len(y.unique(dim=0)))
assert equal(one_row, scores.diagonal())

# %% [markdown]
# That row is the diagonal of the right table: key $j$ meets only query $j$. Whatever is learned, every token
# gets the same result.
#
# ## Heads and shorter inputs
#
# > **Heads.** Equation (7) is printed for one head. In the paper's models every head has its own table, so here
# > every head has its own two factors, `head length rank`.
#
# As in chapter 03 a shorter input uses the top-left block of the table, here the first rows of *both* factors, cut
# before the softmax. Masks act on the scores.
#
# ### Exercise 05.1: rows for new tokens
#
# *20 minutes, medium.* A model writes: `start` tokens stand there, and `count` new ones come in at once. Make the
# rows of the map for the new ones. No token may look at a later one.

# %% exercise="05.1" points=2
def new_rows(R1, R2, start, count):
    """Equation (7), the map alone, for the tokens at the positions start .. start + count - 1.

    R1: head max_length rank. R2: head max_length rank. Any numbers: scores may be tens of thousands
    above or below 0.
    start: at least 0, count: at least 1, whole numbers with start + count <= max_length.
    Returns the weights, head query key: query has the size count, key has start + count. A token
    attends to itself and to all tokens before it; its other weights are 0.
    """
    ### BEGIN SOLUTION
    length = start + count
    table = einsum(R1[:, start:length], R2[:, :length],
                   "head query rank, head key rank -> head query key")
    position = torch.arange(length)
    later = position > position[start:, None]
    return table.masked_fill(later, float("-inf")).softmax(dim=-1)
    ### END SOLUTION

# %% check="05.1"
check("05.1", new_rows)

# %% [markdown] solution="05.1"
# Queries and keys are cut differently: the new positions of $R_1$, all positions so far of $R_2$. And the mask compares
# *positions*, so query 0 of the new rows is position `start`. The long way round gives the same: make the whole
# causal map of all tokens, and keep its last rows.

# %% solution="05.1"
def last_rows_of_all(R1, R2, start, count):
    table = (R1 @ R2.transpose(1, 2))[:, : start + count, : start + count]
    later = torch.ones(start + count, start + count).triu(diagonal=1).bool()
    return table.masked_fill(later, float("-inf")).softmax(dim=2)[:, start:]


check("05.1", last_rows_of_all)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Draw the map for `start` = 2 and `count` = 3. Which rows of $R_1$, which of $R_2$ does it need?
#
# </details>
# <details><summary>Hint 2: the product of all heads</summary>
#
# With `einsum`, the two axes of positions need two names. With `@`, turn the last two axes of the second
# factor, and those alone: `.transpose(1, 2)`; `.T` would turn all three.
#
# </details>
# <details><summary>Hint 3: the first row is right, the others are not, or the other way round</summary>
#
# Row 0 of the result is no row 0 of the table. Which keys may it see? Write its position beside it, and compare
# positions.
#
# </details>

# %% [markdown]
# ## "Random" that reads x
#
# A class from public code, rebuilt, that carried the name "factorized random". Its output has the right shape,
# and its scores have rank $k$. What gives it away?

# %%
class SaysFactorizedRandom(nn.Module):
    def __init__(self, d_model, rank):
        super().__init__()
        self.first = nn.Linear(d_model, rank)
        self.second = nn.Linear(d_model, rank)

    def forward(self, x):
        return einsum(self.first(x), self.second(x),
                      "batch query rank, batch key rank -> batch query key")

# %% [markdown]
# It multiplies `x` by two matrices. That is the dot product of chapter 01 with a `d_head` of $k$. Counting finds
# it without running it, here with $k = 8$, width 1024 and length 32:

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


print("says factorized random: "
      f"{parameters(SaysFactorizedRandom(d_model=1024, rank=8)):6,} = 2 (d k + k)")
print("factorized random:      "
      f"{parameters(FactorizedRandom(1024, head=1, max_length=32, rank=8)):6,} = 2 l k")

# %% [markdown]
# If the count contains the width $d$, the scores read tokens. If it contains the length $l$, they know positions.
#
# ## What rank means
#
# In chapter 04 one outer product was a row of scores, folded: a table of *rank 1*, all its rows multiples of one row.
# And the rank of a table was the fewest outer products that add up to it. Here the table is that of the scores, and
# $R_1 R_2^\top$ is a sum of $k$ outer products, so its rank is at most $k$.

# %%
def table_of_rank(k):
    """A product of drawn factors, in 64 bits: torch counts what stands out from rounding, and 32
    bits round more."""
    return draw(6, k, high=2, seed=14).double() @ draw(6, k, high=2, seed=15).double().T


def rank_of(table):
    return torch.linalg.matrix_rank(table.double()).item()


print("k = 1, 2, 4, 6: the table 6 x 6 has the rank",
      [rank_of(table_of_rank(k)) for k in (1, 2, 4, 6)])

# %% [markdown]
# ### The best table of rank k
#
# The other way round: somebody gives you a table. Which table of rank $k$ comes closest? The *singular value
# decomposition*, SVD, answers it. It writes any table as a sum of outer products, sorted by size:
#
# $$T = \sigma_0\, u_0 v_0^\top + \sigma_1\, u_1 v_1^\top + \dots, \qquad
# \sigma_0 \ge \sigma_1 \ge \dots \ge 0$$
#
# In each $u_r$ and each $v_r$ the squares of the numbers sum to 1, so the *singular value* $\sigma_r$ alone says
# how large part $r$ is. Keep the first $k$ parts and drop the rest. It is a theorem (Eckart and Young) that no
# other table of rank $k$ is closer, by the sum of the squared differences.
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


assert equal(best_of_rank(16), target)
print("the singular values:", [f"{size:.1f}" for size in sizes.tolist()])

# %% [markdown]
# How does the table look with one part, with two? And is the map, after the softmax, as blurred as the scores?

# %% fold=true
# @title Draw the best tables and their maps
axes_picture = Axes(head=5, length=16)  # five tables side by side stand where heads do
tables = torch.stack([target] + [best_of_rank(k) for k in (1, 2, 4, 8)])
tables = axes_picture(tables, "head query key", "tables")
fig, panels = plt.subplots(2, 5, figsize=(7.5, 3.3), layout="constrained")
for i, title in enumerate(["target", "k = 1", "k = 2", "k = 4", "k = 8"]):
    panels[0, i].imshow(tables[i], cmap="Greys", vmin=tables.min(), vmax=tables.max())
    panels[1, i].imshow(tables[i].softmax(dim=-1), cmap="Greys", vmin=0, vmax=0.5)
    panels[0, i].set_title(title)
for panel in panels.flat:
    panel.set_xticks([])
    panel.set_yticks([])
panels[0, 0].set_ylabel("scores")
panels[1, 0].set_ylabel("map")
plots.show(
    fig,
    "above, a table of 16 x 16 scores and its best tables of rank 1, 2, 4 and 8; below, their "
    "maps. The target has a thin dark diagonal. With k = 1 all rows have the same form, with k = 4 "
    "the diagonal is a broad band, with k = 8 it is thin, and in the map still paler than in the "
    "target.",
)

# %%
for k in (1, 2, 4, 8):
    error = (best_of_rank(k) - target).norm() / target.norm()
    moved = (best_of_rank(k).softmax(dim=-1) - target.softmax(dim=-1)).abs().sum(dim=-1).mean() / 2
    print(f"k = {k}: the scores are off by {100 * error:.0f} %, of the weight {100 * moved:.0f} % "
          "lies elsewhere")
    assert torch.isclose(error, (sizes[k:] ** 2).sum().sqrt() / target.norm(), rtol=1e-3)

# %% [markdown]
# So the map is blurred in its own measure: with $k = 8$ the scores look right, and still a part of the weight lies
# elsewhere, because the peaks are lower. (The squared error is the sum of the squares of the singular values that
# you drop: you know it before you build anything.)
#
# A table has many pairs of factors: double the one and halve the other. So compare products, never factors.
#
# ## The same as Random at full rank
#
# With $k = l$ every table is a product: $R$ times the table with 1 on its diagonal and 0 elsewhere is $R$. So
# Factorized Random can do whatever Random does, with twice the parameters. That is for the proof, not for use.
#
# ### Exercise 05.2: the best two factors
#
# *15 minutes, medium.* Somebody has trained a Random layer and wants a smaller one. Find the factors of
# rank $k$ whose product is closest to the table, in every head.

# %% exercise="05.2" points=2
def best_factors(R, rank):
    """Factors whose product has the smallest sum of squared differences from R, in every head.

    R: head length length, any numbers, all 0 too. rank: a whole number, at least 1 and below
    length.
    Returns a tuple (R1, R2), both head length rank. R1[h] @ R2[h].T is the best table of that rank
    for R[h].
    How the singular values are shared between R1 and R2 is up to you.
    """
    ### BEGIN SOLUTION
    U, sizes, V_rows = torch.linalg.svd(R)
    R1 = U[:, :, :rank] * sizes[:, None, :rank]
    return R1, V_rows[:, :rank].transpose(1, 2)
    ### END SOLUTION

# %% check="05.2"
check("05.2", best_factors)

# %% [markdown] solution="05.2"
# The first $k$ parts are the best table (Eckart and Young). A part is a column of `U` times a row of `V_rows`, so the
# rows are turned into columns; the sizes go to one side, column by column. Without the SVD: the best $R_2$ are
# the eigenvectors of $R^\top R$ with the largest eigenvalues, and $R_1$ is what $R$ makes of them.

# %% solution="05.2"
def best_factors_by_eigenvectors(R, rank):
    table = R.double()
    # the smallest eigenvalue comes first
    _, vectors = torch.linalg.eigh(table.transpose(1, 2) @ table)
    R2 = vectors[:, :, -rank:]
    return (table @ R2).float(), R2.float()


check("05.2", best_factors_by_eigenvectors)

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
# of the SVD holds its parts as *rows*: turn them, do not reshape them.
#
# </details>
# <details><summary>Hint 3: the product is too large or too small</summary>
#
# Each singular value may enter the product once. If both factors carry something of it, what must that be?
# And a size belongs to a column: print the shapes of the sizes and of the factor. Which axis is missing?
#
# </details>

# %% [markdown]
# ## Which rank has the map?
#
# The scores have rank $k$. The map is made of them by a softmax. Which rank has the *map*, 6 × 6, for the tables above?

# %%
my_guess = {"k = 1": None, "k = 2": None, "k = 4": None}  # the rank of the map

# %% [markdown]
# With $k = 1$ all rows are multiples of one row, say 1, 2 and 3 times $(0, 1, 2)$. The exponential turns a multiple
# into a power, and powers of a row are *not* multiples of it. Dividing a row by its sum does not change the rank:

# %%
multiples = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 2.0]))
print("rank of the multiples:", rank_of(multiples), " of their exponentials:",
      rank_of(multiples.double().exp()))
compare_guess(my_guess, {f"k = {k}": rank_of(table_of_rank(k).softmax(dim=-1)) for k in (1, 2, 4)})

# %% [markdown]
# Equation (7) limits the scores and not the map. That is why a small $k$ can make a sharp map, as you see below.
#
# ## What it costs
#
# ### Parameters
#
# Two factors of $l \times k$: $2 l k$ numbers in each head, instead of $l^2$. So says Table 1 of the paper. There
# are no biases. Counted:

# %%
print("  l   k   Random  Factorized Random")
for max_length, k in ((8, 4), (8, 8), (16, 8), (32, 8), (256, 8)):
    random = parameters(Random(1, head=1, max_length=max_length))
    factorized = parameters(FactorizedRandom(1, head=1, max_length=max_length, rank=k))
    assert factorized == 2 * max_length * k
    print(f"{max_length:3} {k:3} {random:8,} {factorized:18,}")

# %% [markdown]
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
# Random has its table ready. Factorized Random multiplies it out first, $l^2 k$ multiply-adds in each head, once
# for the whole batch:

# %%
def multiply_adds(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2  # torch counts a multiplication and an addition as two


score = FactorizedRandom(d_model=12, head=3, max_length=8, rank=2)
for batch in (1, 5):
    print(f"a batch of {batch}: {multiply_adds(score, torch.randn(batch, 6, 12))} = 3 "
          "heads * 6^2 * 2")

# %% [markdown]
# ### Exercise 05.3: up to which rank is it smaller?
#
# *5 minutes, easy.* The inequality is simple. The whole number is where people slip.

# %% exercise="05.3" points=1
def largest_rank(max_length, head):
    """The largest rank with which FactorizedRandom has fewer parameters than Random.

    max_length: a whole number from 1 to 400. head: at least 1; both classes have this many heads.
    Returns a whole number; 0 if no rank will do. Equal is not fewer.
    """
    ### BEGIN SOLUTION
    return (max_length - 1) // 2
    ### END SOLUTION

# %% check="05.3"
check("05.3", largest_rank)

# %% [markdown] solution="05.3"
# $2 l k < l^2$ means $2 k < l$, in every head. With whole numbers that is $2 k \le l - 1$: one is taken away *before*
# halving, so that an even length does not count as smaller where both are equal. A loop needs no formula:

# %% solution="05.3"
def largest_rank_by_counting(max_length, head):
    ranks = [k for k in range(1, max_length) if head * 2 * max_length * k < head * max_length**2]
    return max(ranks, default=0)


check("05.3", largest_rank_by_counting)

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
# Back to "look at the word before". Let the first word look at the last: the positions stand in a circle. As a table
# of scores this is a shifted diagonal. What do its singular values say?

# %%
shifted_table = torch.eye(6).roll(-1, dims=1)  # row i has its 1 in column i - 1
shifted_sizes = torch.linalg.svdvals(shifted_table)
print("singular values:", [f"{size:.2f}" for size in shifted_sizes.tolist()])
print("error of the best table of rank 2: "
      f"{100 * shifted_sizes[2:].norm() / shifted_sizes.norm():.0f} %")

# %% [markdown]
# All are equal, so the best table of rank 2 misses 4 of 6 parts. It looks hopeless. But we asked for too much:
# attention needs no 1 and 0 there. **It needs the right key to have the highest score of its row.** The softmax
# does the rest.
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

# %% [markdown]
# Two columns, and 99 % of the weight on the right word.
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
R1_reversal = axes(10 * torch.stack([torch.cos(angle + step), -torch.sin(angle + step)], dim=1),
                   "query rank")
map_reversal = axes((R1_reversal @ R2_back.T).softmax(dim=-1), "query key", "map_reversal")
pair = Axes(head=2, length=6)(torch.stack([map_back, map_reversal]), "head query key", "pair")
plots.show(
    plots.attention_map(pair, words, titles=["the position before", "reversal"]),
    "two attention maps from factors of rank 2. Left, the dark cells stand one to the left of the "
    "diagonal, and the first word looks at the last. Right, they stand on the other diagonal, from "
    "top right to bottom left.",
)

# %% [markdown]
# Is rank 1 enough? No. With $k = 1$ row $i$ is a multiple of one row of keys. A positive multiple has its
# highest score where that row is highest, a negative one where it is lowest. There are no other best keys.
#
# ### How large the factor c must be
#
# The neighbours of the right key are close on the circle. Their score is $c\cos(2\pi/l)$ against $c$. The gap
# between the two,
#
# $$c\,\bigl(1 - \cos(2\pi/l)\bigr) \approx c\,\frac{2\pi^2}{l^2},$$
#
# shrinks with the *square* of the length. Two neighbours with $e^{-\text{gap}}$ each and all others far below
# give a weight of about $1 / (1 + 2e^{-\text{gap}})$, which is 0.9 for a gap of $\ln 18$. Measured, in whole
# numbers, and beside it a circle with *eight* columns, as in the paper: the same circle at 1, 2, 3 and 4 times
# the angle.

# %%
def smallest_highest_score(length, times):
    """The circle at these multiples of the angle: the highest score when the right key has a weight
    of 0.9."""
    turns = 2 * pi * torch.arange(length) / length  # the angle between a key and the right one
    row = sum(torch.cos(multiple * turns) for multiple in times)
    c = 1
    while (c * row).softmax(dim=0)[0] < 0.9:
        c += 1
    return c * len(times)


print("  l  predicted  rank 2  rank 8")
for length in (12, 24, 48):
    predicted = log(18) / (1 - cos(2 * pi / length))
    rank_2, rank_8 = (smallest_highest_score(length, times) for times in ((1,), (1, 2, 3, 4)))
    print(f"{length:3} {predicted:10.0f} {rank_2:7} {rank_8:7}")

# %% [markdown]
# At rank 2: twice the length, four times the score. This is the price of a small rank: not *whether* the right key
# wins, but how large the numbers must be. More columns make it cheaper: at four times the angle the neighbours fall off
# faster. (At rank 8 the whole $c$ is 2, 4 and 12: too coarse to show the square.)
#
# ### Exercise 05.4: any keys, as sharp as you like
#
# *30 minutes, medium.* A shift is a small part of what two columns can do. Now each query names *its own* key,
# whichever it likes, and you are told how much weight that key should get: not more, not less.

# %% exercise="05.4" points=2
def pointer_factors(wanted, weight):
    """Factors of rank 2 with which query i gives the key wanted[i] the weight `weight`.

    wanted: int64, a position for each query; two queries may want the same. There are 6 to 300
    positions.
    weight: a number from 0.5 to 0.98.
    Returns a tuple (R1, R2), both length rank, with rank = 2. In softmax(R1 @ R2.T), row i has its
    highest weight at key wanted[i], and it differs from `weight` by less than 0.01.
    """
    ### BEGIN SOLUTION
    angle = 2 * pi * torch.arange(len(wanted)) / len(wanted)
    points = torch.stack([angle.cos(), angle.sin()], dim=1)
    low, high = 0.0, 1e6
    for _ in range(60):
        c = (low + high) / 2
        if (c * angle.cos()).softmax(dim=0)[0] < weight:
            low = c
        else:
            high = c
    return c * points[wanted], points
    ### END SOLUTION

# %% check="05.4"
check("05.4", pointer_factors)

# %% [markdown] solution="05.4"
# Row $i$ of $R_1$ is $c$ times the *point of the key that it wants*, whichever that is; all rows have the same scores
# in another order, so one $c$ serves all, and halving an interval finds it. No circle is needed: the parabola $-(j -
# w)^2$ is highest at $j = w$, and without $-w^2$, which is the same in the whole row, it has rank 2. Keys at its ends
# have one neighbour, so there each query needs its own $c$:

# %% solution="05.4"
def pointer_factors_on_a_parabola(wanted, weight):
    j = torch.arange(len(wanted)).double()
    distance = -((j[wanted, None] - j) ** 2)
    low, high = torch.zeros(len(wanted), 1).double(), 100 * torch.ones(len(wanted), 1).double()
    for _ in range(60):
        c = (low + high) / 2
        got = (c * distance).softmax(dim=1).gather(1, wanted[:, None])
        low, high = torch.where(got < weight, c, low), torch.where(got < weight, high, c)
    return c * torch.stack([2 * j[wanted], -torch.ones_like(j)],
                           dim=1), torch.stack([j, j**2], dim=1)


check("05.4", pointer_factors_on_a_parabola)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Read the first factor of the shift again: row $i$ is a point on the circle. Which one? Nothing says that it must be
# one step away.
#
# </details>
# <details><summary>Hint 2: the best keys are right, the weights are not</summary>
#
# The formula for the prediction counts two neighbours alone, and whole numbers are too coarse for a short sentence.
# The weight grows with $c$, and `smallest_highest_score` has a row of scores from which you can read it, for any $c$.
#
# </details>
# <details><summary>Hint 3: searching takes too long</summary>
#
# As in the game of guessing a number from 1 to 100: keep a low $c$ that gives too little and a high one that gives too
# much. Try the middle: it takes the place of one of them. Each try halves what is left, so 60 are plenty.
#
# </details>

# %% [markdown]
# ## How it starts and learns
#
# ### The scale of the start
#
# Let every entry of both factors be drawn independently, with mean 0 and standard deviation $s$. A product of two such
# numbers has the variance $s^4$, and a score is a sum of $k$ of them. Variances add up:
#
# $$\mathrm{std}(S_{ij}) = \sqrt{k}\, s^2.$$

# %%
generator = torch.Generator().manual_seed(0)
s = 0.5
for k in (2, 8, 32):
    start_1, start_2 = (s * torch.randn(16, 256, k, generator=generator) for _ in range(2))
    measured = (start_1 @ start_2.transpose(1, 2)).std().item()
    print(f"k = {k:2}: formula {sqrt(k) * s**2:.1f}, measured {measured:.1f}")

# %% [markdown]
# > **Initial scale.** The paper does not state how $R_1$ and $R_2$ start. In the library `initial_scale` is the
# > standard deviation of the *scores*, the same for Random and Factorized Random, so that the two can be
# > compared; the class solves the formula for $s$. The default is $1/\sqrt{\text{max\_length}}$, our choice.
#
# Random may start at 0. Two factors may not: the gradient of $R_1$ contains $R_2$, and that of $R_2$ contains $R_1$.
# If both are 0, both gradients are 0, for ever.

# %%
try:
    FactorizedRandom(d_model=12, head=3, max_length=8, initial_scale=0)
except ValueError as error:
    print(error)

# %% [markdown]
# ### The learning rate
#
# Chapter 03 shows why $R$ needs its own learning rate: Adam moves a number by about the rate a step. For 12
# positions the circle needs $c = 22$. If both factors share it, each has points at the distance $\sqrt{22}$ from 0,
# between 4 and 5. A number that starts near 0 and moves 0.001 a step has come 0.3 far after 300 steps.
#
# We train "the position before" on the circle of 12, 300 steps. Which mean weight has the right key?

# %%
my_guess = {"rate 0.001": None, "rate 0.01": None, "rate 0.1": None}  # from 0.0 to 1.0

# %% [markdown]
# The *loss* is minus the logarithm of the weight on the right key, averaged over the rows: 0 if each right key
# has all the weight.

# %%
def train(goal, rank, learning_rate, steps):
    """Train factors so that softmax(R1 R2^T) comes close to `goal`, rows of weights. -> module,
    last loss"""
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
right = {}
for learning_rate in (0.001, 0.01, 0.1):
    module_12, _ = train(position_before, rank=2, learning_rate=learning_rate, steps=300)
    learned = module_12(torch.zeros(1, 12, 1))[0, 0].softmax(dim=-1)
    right[f"rate {learning_rate}"] = f"{(learned * position_before).sum(dim=1).mean():.1f}"
compare_guess(my_guess, right)

# %% [markdown]
# The library's training loop gives $R$, $R_1$ and $R_2$ 10 times the learning rate of the rest, and no weight decay,
# which would pull them back to 0. And what did the last run find? Each position has two numbers in $R_2$, a
# point in the plane. Nobody told it about circles:

# %% fold=true
# @title Draw the learned points
points = Axes(length=12, rank=2)(module_12.R2.detach()[0], "length rank", "points")
distance = points.norm(dim=1)  # from the middle
assert distance.min() > 0.8 * distance.max()
fig, panel = plt.subplots(figsize=(3.4, 3.2), layout="constrained")
panel.plot(*points.T, linestyle="none", marker="o", markersize=14, color="0.9")
for j, (across, up) in enumerate(points.tolist()):
    panel.text(across, up, str(j), ha="center", va="center")
panel.set_aspect("equal")
panel.set_xlabel("column 0 of R2")
panel.set_ylabel("column 1 of R2")
plots.show(
    fig,
    "the two learned numbers of each of 12 positions, as points in the plane with the number of "
    "the position. They form a ring around the middle. Going round it, the positions do not come "
    "in their order.",
)

# %% [markdown]
# A ring, but with the positions in any order. That is no harm: it is of no importance which point belongs to which
# key, as long as each has its own.

# %% fold=true
# @title The same as the library's layer, and as Random at full rank
class FactorizedRandomAttention(nn.Module):
    def __init__(self, d_model, head, max_length, rank):
        super().__init__()
        self.R1, self.R2 = (nn.Parameter(torch.randn(head, max_length, rank)) for _ in range(2))
        self.value, self.output = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        R1, R2 = self.R1[:, : x.shape[1]], self.R2[:, : x.shape[1]]
        weights = (R1 @ R2.transpose(1, 2)).softmax(dim=-1)  # (7), no x in it
        value = rearrange(self.value(x), "batch key (head d_head) -> batch head key d_head",
                          head=len(R1))
        return self.output(rearrange(weights @ value, "batch head query d_head -> batch "
                                                      "query (head d_head)")), weights


sentences, y_probe = draw(5, 6, 12, high=2, seed=12), draw(5, 6, 12, high=2, seed=19)
ours = FactorizedRandomAttention(d_model=12, head=3, max_length=8, rank=2)
library = Attention(d_model=12, head=3, max_length=8, score="factorized_random", rank=2)
of_ours = {("score." if name in ("R1", "R2") else "") + name: value
           for name, value in ours.named_parameters()}
library.load_state_dict(of_ours)
(y_ours, map_ours), (y_library, map_library) = ours(sentences), library(sentences)
assert equal(y_ours, y_library) and all(equal(one, map_ours) for one in map_library)
for out in (y_ours, y_library):
    (out * y_probe).sum().backward()
assert all(equal(of_ours[name].grad, tensor.grad) for name, tensor in library.named_parameters())

random, full = Random(12, 3, 6, initial_scale=1.0), FactorizedRandom(12, 3, 6, rank=6)
full.load_state_dict({"R1": random.R, "R2": torch.eye(6).expand(3, 6, 6)})
assert equal(full(sentences), random(sentences))
print("The library's layer: the same maps, outputs and gradients. At full rank: "
      "the same scores as Random.")

# %% [markdown]
# ## Where it breaks
#
# One key a row is no limit, if the scores may be large. What the circle cannot do is to like *two far
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
# ### Trained: how many keys, which rank?
#
# For each of 12 queries 1, 2, 3 or 6 random keys, in equal parts; with 1 key, each query has another one. Factors are
# trained with the ranks 1, 2, 4, 8 and 12, all alike. The error is the loss minus the lowest value that it can have;
# its unit is the *nat*, that of the natural logarithm. From which of these ranks on is it below 0.05?

# %%
my_guess = {"1 key": None, "2 keys": None, "3 keys": None, "6 keys": None}  # 1, 2, 4, 8 or 12

# %%
generator = torch.Generator().manual_seed(0)
ranks, errors = [1, 2, 4, 8, 12], {}
for count in (1, 2, 3, 6):
    order = torch.stack([torch.randperm(12, generator=generator) for _ in range(12)])
    keys = order[:1].T if count == 1 else order[:, :count]
    goal = torch.zeros(12, 12).scatter(1, keys, 1 / count)
    losses = [train(goal, k, learning_rate=0.05, steps=300)[1] for k in ranks]
    errors[f"{count} key{'s' if count > 1 else ''}"] = [loss - log(count) for loss in losses]

# %% fold=true
# @title Draw the errors, and compare with your guess
fig, panel = plt.subplots(figsize=plots.SIZE, layout="constrained")
for number, (name, values) in enumerate(errors.items()):
    panel.plot(ranks, values, label=name, color=plots.COLOURS[number],
               linestyle=plots.LINES[number],
               marker=plots.MARKERS[number])
panel.set_xticks(ranks)
panel.set_xlabel("rank k")
panel.set_ylabel("error of the map (nats)")
panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
at_rank_1 = [values[0] for values in errors.values()]
assert at_rank_1[0] == max(at_rank_1) and at_rank_1[3] == min(at_rank_1)
assert all(error < log(12 / count) for error, count in zip(at_rank_1, (1, 2, 3, 6), strict=True))
enough = {name: min(k for k, error in zip(ranks, values, strict=True) if error < 0.05)
          for name, values in errors.items()}
plots.show(
    fig,
    "the error of the trained map against the rank, for 1, 2, 3 and 6 random keys a query. With "
    "rank 1 all are far off, six keys least of all. It is below 0.05 from these ranks on: "
    + ", ".join(f"{name} from rank {k}" for name, k in enough.items()) + ".",
)
compare_guess(my_guess, enough)

# %% [markdown]
# Up to half of all keys, more keys to pick out need at least as many columns: this is what Factorized Random gives up.
# (At rank 1 six keys are nearest: they are half of all, not far from the average of all, which needs no scores. That
# one is off by $\ln(12/n)$ for $n$ keys, 2.5 for one and 0.7 for six; rank 1 comes nearer, each time.) The rest it
# shares with Random: it never reads a word, and it is tied to `max_length`.
#
# ### Stretch 05.5: two keys for each query
#
# *45 minutes, hard.* Four columns learned some pairs. Can they make *any* pairs, near and far? Build it. There are
# several ways; the check looks at the map. Why the series asks: the rank, in a dot product `d_head`, limits at how
# many positions a row can point.

# %% exercise="05.5" points=1
def pair_factors(wanted):
    """Factors with which each query gives nearly all its weight to two keys, in equal parts.

    wanted: int64, one row for each query, with two different positions in it. There are 6 to 12
    positions.
    Returns a tuple (R1, R2), both length rank, with at most 4 columns. In softmax(R1 @ R2.T), row i
    has a weight of at least 0.45 at each of its two keys.
    """
    ### BEGIN SOLUTION
    p, q = wanted.double().T  # -c (j - p)^2 (j - q)^2 is highest at p and q
    j = torch.arange(len(wanted)).double()
    total, times = p + q, p * q  # (j - p) (j - q) = j^2 - total j + times
    R1 = torch.stack([2 * total * times, -(total**2) - 2 * times, 2 * total,
                      -torch.ones_like(total)], dim=1)
    return 5 * R1, torch.stack([j, j**2, j**3, j**4], dim=1)
    ### END SOLUTION

# %% check="05.5"
check("05.5", pair_factors)

# %% [markdown] solution="05.5"
# Take a function of $j$ that is 0 at both keys and negative elsewhere: $-(j - p)^2 (j - q)^2$. Multiplied out it is a
# sum of $j^4, j^3, j^2, j$ and a constant, which the softmax forgives: four columns. On the circle the same idea is
# $-(1 - \cos(\theta - \alpha))(1 - \cos(\theta - \beta))$, which needs the angle once and twice. With three columns
# not all pairs of six positions can be had: the keys are points in space, and a query's scores set its two apart by a
# plane. But any five points fall into two groups whose hulls meet (Radon's theorem), one and four, or two and three. So
# the two, or the one with the sixth point, cannot be set apart.

# %% solution="05.5"
def pair_factors_on_the_circle(wanted):
    angle = 2 * pi * torch.arange(len(wanted)).double() / len(wanted)
    alpha, beta = angle[wanted].T
    R1 = torch.stack([
        alpha.cos() + beta.cos(), alpha.sin() + beta.sin(), -(alpha + beta).cos() / 2,
        -(alpha + beta).sin() / 2,
    ], dim=1)  # fmt: skip
    return 200 * R1, torch.stack([angle.cos(), angle.sin(), (2 * angle).cos(), (2 * angle).sin()],
                                 dim=1)


check("05.5", pair_factors_on_the_circle)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# On the circle $1 - \cos(\theta_j - \alpha)$ is 0 at the key with the angle $\alpha$ and positive elsewhere. Make of it
# something that is 0 at two keys and *negative* elsewhere.
#
# </details>
# <details><summary>Hint 2: how do I read the factors off?</summary>
#
# Multiply out until each part is something of the query times something of the key. A product of two cosines is
# $\cos u \cos v = \tfrac12 \cos(u + v) + \tfrac12 \cos(u - v)$. A part without the key is the same in the whole row:
# what does the softmax do with it? Four parts are left.
#
# </details>
# <details><summary>Hint 3: the right keys, but the weights are unequal or too small</summary>
#
# A factor in front makes the map sharp. If a larger one makes it worse, look at your numbers: large scores that are
# nearly equal lose their difference in 32 bits. `.double()` has 64.
#
# </details>

# %% [markdown]
# ## Three sentences to keep
#
# 1. $R_1 R_2^\top$ is Random with $2 l k$ numbers in each head instead of $l^2$, smaller for $k < l/2$; it reads
#    no word, and a count with the width $d$ in it gives an impostor away.
# 2. The rank limits the scores, not the map: with two columns, points on a circle, every query can have any one
#    key as its best, at scores that grow with $l^2$.
# 3. The shapes do not tell: a shared key axis, a missing `.T` at $k = l$ both fit; different rows, a comparison with
#    loops and parameter counts tell.
#
# **Where it is going next.** You now have every kind of S: the dot product compares tokens, the two dense
# ones read one token, the two random ones read none. They need not compete. Chapter 06 mixes them inside
# one softmax.
