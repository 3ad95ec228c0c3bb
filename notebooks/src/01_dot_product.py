# %% [markdown]
# # 01 · Dot-product attention: every token compares itself with every other
#
# **You build the attention that most language models use, from loops to a whole layer with heads and masks. You see
# why it divides by a square root, why it does not know the order of the words, and what it costs. At the end you
# train it, and it tells you who saw whom. All later chapters are compared with this one.**
#
# - **Before you start:** Python, a product of two matrices, and [chapter 00](00_start_here.ipynb): the softmax,
#   named axes, the four functions of einops.
# - **Time:** about 140 minutes, 73 of them for the five exercises; the stretch exercise takes 15 more.
# - **Level:** medium.
# - **What transfers:** the layer at the end of this chapter, with these heads, this root and these masks, is the one
#   inside GPT-2 and the first transformers. Newer models change details (how positions come in, how many heads share
#   keys), not the equation.
#
# Outputs are stored below the cells. Where the text says *predict*, hide them first: *Clear Outputs of All Cells*
# (JupyterLab) or *Clear all outputs* (Colab) in the menu *Edit*.
#
# The paper of this series is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743); equation numbers are those of its version 1. Dot-product
# attention is older: Vaswani et al., *Attention Is All You Need*,
# [arXiv 1706.03762](https://arxiv.org/abs/1706.03762).

# %% fold=true
# @title Imports, and `agree`, which stops the notebook where two tensors differ
from itertools import permutations
from math import sqrt

import torch
from einops import einsum, rearrange
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from synth_lib import masks, plots
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.scores import DotProduct
from synth_lib.shapes import Axes


def agree(one, other):
    """Same shape, same dtype, same values. (torch.allclose alone would stretch a smaller
    tensor.)"""
    assert one.shape == other.shape and one.dtype == other.dtype, "another shape or dtype"
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-5), "other values"


_ = torch.manual_seed(0)

# %% [markdown]
# ## The question
#
# Here are six words. **Who saw whom?**

# %%
# Six different words: the tokens. Their positions are 0 to 5.
words = "the dog saw a small bird".split()
print(list(enumerate(words)))

# %% [markdown]
# The token "saw" must take something from "dog" and something from "bird". In chapter 00 the scores for that were made
# up by hand. Now they have to be computed: **compare "saw" with every token, and give the largest weights to those
# that fit best.**
#
# Think of each token as having three things to say:
#
# - its *query*: what am I looking for? ("saw": a thing that can see, a thing that can be seen)
# - its *key*: what do I have to offer? ("dog": a thing that can see)
# - its *value*: what do I give to those who look at me?
#
# The score of a pair is high where the query of one fits the key of the other.
#
# A network sees a word as a row of numbers, its *embedding*: one row for each word of a small vocabulary. Ours
# are drawn at random, in steps of 0.1, so that you can read them. *Training* changes such numbers until the network
# predicts well; until the last section nothing here is trained. The word "-" fills up short sentences, later.

# %%
def draw(seed, *shape, high):
    """Random numbers from -high to high, in steps of 0.1. The same seed gives the same numbers."""
    tenths = round(10 * high)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


def print_rows(words, rows, decimals=2):
    """One line for each word."""
    for word, row in zip(words, rows.tolist(), strict=True):
        print(f"{word:>6}", *(f"{number:5.{decimals}f}" for number in row))


vocabulary = "a bird cat dog saw small the -".split()
embedding = dict(zip(vocabulary, draw(1, 8, 12, high=2), strict=True))


def embed(words):
    """The sentence as a table: torch.stack lays the rows of its words below each other."""
    return torch.stack([embedding[word] for word in words])

# %%
x = embed(words)
print_rows(words, x, decimals=1)

# %% [markdown]
# `length` counts the tokens, `d_model` the numbers of one token.

# %%
axes = Axes(length=6, d_model=12)
x = axes(x, "length d_model", "x")

# %% [markdown]
# ## The equations
#
# Queries, keys and values are made in the same way: the tokens times a matrix, a *projection*. The three matrices are
# learned; here they are drawn.
#
# $$Q = X W_Q \qquad K = X W_K \qquad G(X) = X W_V$$
#
# The score of query $i$ and key $j$ is the *dot product* of the two rows: multiply number by number, add up.
# For all pairs at once that is a matrix product. Why it is then divided has a section of its own below.
#
# $$S(X) = \frac{Q K^\top}{\sqrt{d_\text{head}}}$$
#
# A softmax turns each row of scores into weights that sum to 1, and the weights mix the values:
#
# $$Y = \mathrm{softmax}(S(X))\, G(X) \tag{3}$$
#
# | symbol | here | shape, in axis names | size here | what it is |
# |---|---|---|---|---|
# | $X$ | `x` | length d_model | 6 × 12 | the tokens, one in each row |
# | $W_Q$ | `W_query` | d_model d_head | 12 × 4 | makes queries |
# | $W_K$ | `W_key` | d_model d_head | 12 × 4 | makes keys |
# | $W_V$ | `W_value` | d_model d_head | 12 × 4 | makes values |
# | $Q$ | `query` | query d_head | 6 × 4 | what each token looks for |
# | $K$ | `key` | key d_head | 6 × 4 | what each token offers |
# | $G(X)$ | `value` | key d_head | 6 × 4 | what each token gives |
# | $S(X)$ | `scores` | query key | 6 × 6 | how well query $i$ fits key $j$ |
# | $\mathrm{softmax}(S(X))$ | `weights` | query key | 6 × 6 | the attention map |
# | $Y$ | `y` | query d_head | 6 × 4 | the result, one row for each token |
#
# The paper's $d$ is `d_model`, its $l$ is `length`. `query` and `key` are the same six tokens in two roles. We start
# with one *head*, which works with `d_head` = 4 numbers for each token. Later three stand side by side: 12 again.
#
# > **What the paper prints.** Its Table 1 has the dot product as $F_Q(X)\,F_K(X_i)^\top$, without the division.
# > Transformers usually divide; the formula with $\sqrt{d_\text{head}}$ is equation (1) of Vaswani et al. The
# > projections may also add a learned number to each column, a *bias*. We begin without, as Table 1 counts, and
# > take them in at the end.

# %%
plots.show(
    plots.flow("dot product", "all tokens, in pairs"),
    "the flow of the layer. X goes into S, which compares all tokens in pairs, and into G, the "
    "values. The scores go through mask and softmax and become weights; the weights mix the "
    "values; the result is Y.",
)

# %%
# The first four columns of three 12 x 12 matrices; the others belong to heads that come later.
W_query, W_key, W_value = (draw(seed, 12, 12, high=0.5)[:, :4] for seed in (23831, 23832, 7))

# The three matrices of the table above. The first line also fixes d_head: 4.
W_query = axes(W_query, "d_model d_head", "W_query")
W_key = axes(W_key, "d_model d_head", "W_key")
W_value = axes(W_value, "d_model d_head", "W_value")
print(axes)

# %% [markdown]
# The seeds of the first two were picked from many, so that the maps below can be read: by luck, not by
# training, "saw" will look at "dog" and "bird".
#
# ## The ladder: one equation, written four times
#
# First with loops, slow and plain. Then shorter and faster, on the same tensors: `agree` stops the notebook if a number
# differs. You meet this ladder in most chapters.
#
# ### Loops say the equation aloud
#
# Letters for the loops: query `i`, key `j`, number `m` of a token, number `f` of a head.

# %%
def project_with_loops(x, W):
    result = torch.zeros(len(x), W.shape[1])
    for i in range(len(x)):
        for f in range(W.shape[1]):
            for m in range(W.shape[0]):
                result[i, f] += x[i, m] * W[m, f]
    return result


def scores_with_loops(x, W_query, W_key):
    query, key = project_with_loops(x, W_query), project_with_loops(x, W_key)
    d_head = W_query.shape[1]
    scores = torch.zeros(len(x), len(x))
    for i in range(len(x)):  # the token that attends
        for j in range(len(x)):  # the token that is attended to
            for f in range(d_head):
                scores[i, j] += query[i, f] * key[j, f]
    return scores / sqrt(d_head)

# %% [markdown]
# In the last loops two tokens meet: `i` through its query, `j` through its key. That is the comparison.
#
# Predict the shape before you look: six tokens, each with a score for six tokens.

# %%
scores = scores_with_loops(x, W_query, W_key)
scores = axes(scores, "query key", "scores")
print_rows(words, scores)

# %% [markdown]
# Row "saw" belongs to token 2. Its largest score is number 1, "dog", then number 5, "bird". The table is not
# symmetric: "dog" asking "saw" is another score than "saw" asking "dog", because queries and keys come from different
# matrices.
#
# ### A matrix product does all pairs at once
#
# Each inner loop is a sum over an axis that two tensors share, which is a matrix product. `.T` transposes a
# table, rows become columns: the product needs the shared axis last in the first factor, and first in the second.

# %%
def scores_with_matmul(x, W_query, W_key):
    return (x @ W_query) @ (x @ W_key).T / sqrt(W_query.shape[1])


agree(scores_with_matmul(x, W_query, W_key), scores)

# %% [markdown]
# ### Named axes say which sum it is
#
# `einsum` needs no `.T`. The name that is missing on the right, `d_head`, is summed. Queries and keys have
# different names for their tokens, so every query meets every key.

# %%
def scores_with_einsum(x, W_query, W_key):
    query = einsum(x, W_query, "query d_model, d_model d_head -> query d_head")
    key = einsum(x, W_key, "key d_model, d_model d_head -> key d_head")
    return einsum(query, key, "query d_head, key d_head -> query key") / sqrt(W_query.shape[1])


agree(scores_with_einsum(x, W_query, W_key), scores)

# %% [markdown]
# ### A module holds its parameters
#
# The numbers that a network learns are its *parameters*. (*Weights*, in this series, are only the numbers of an
# attention map.) In torch, parameters live in a *module*, made from `nn.Module`. Its method `__init__` makes the parts,
# after `super().__init__()` has set up the module itself. Calling the module, `module(x)`, runs its method `forward`.
#
# `nn.Linear(12, 4)` is one projection, from 12 numbers to 4. **It stores its matrix with the output axis first**,
# 4 × 12, and multiplies by the transpose. `load_state_dict` puts our numbers in, by name; `W_query` as `W_query.T`.

# %%
class OneHead(nn.Module):
    def __init__(self, d_model, d_head):
        super().__init__()
        self.d_head = d_head
        self.query = nn.Linear(d_model, d_head, bias=False)
        self.key = nn.Linear(d_model, d_head, bias=False)

    def forward(self, x):
        return self.query(x) @ self.key(x).T / sqrt(self.d_head)


module = OneHead(d_model=12, d_head=4)
module.load_state_dict({"query.weight": W_query.T, "key.weight": W_key.T})
agree(module(x), scores)

# %% [markdown]
# (torch names the matrix of a projection `weight`.) Without the `.T` torch refuses: 12 × 4 is not 4 × 12. A square
# matrix would slip in, and give other numbers. No shape check sees that, so we compare values.
#
# ### The gradients agree too
#
# A *gradient* holds, for each parameter, how fast a result grows when that parameter grows. Training follows the
# gradient of an error, downwards, so two programs that shall train alike need the same gradients, too. The folded cell
# compares them; `backward()` computes those of a whole module.

# %% fold=true
# @title The gradients of the loops, the product and einsum equal those of the module
factors = draw(8, 6, 6, high=2)
(module(x) * factors).sum().backward()
of_module = [module.query.weight.grad.T, module.key.weight.grad.T]

for function in (scores_with_loops, scores_with_matmul, scores_with_einsum):
    matrices = [W.clone().requires_grad_() for W in (W_query, W_key)]
    ours = torch.autograd.grad((function(x, *matrices) * factors).sum(), matrices)
    for pair in zip(ours, of_module, strict=True):
        agree(*pair)

# %% [markdown]
# ### Exercise 01.1: the newest token
#
# *10 minutes, easy.* A model writes a text, one token after the other. It keeps the keys of the tokens so far, so
# that nothing is computed twice; the old tokens themselves are gone. Now a new one arrives. (Programs that serve
# language models do this; the kept keys are part of what they call the *cache*.)

# %% exercise="01.1" points=1
def newest_row(token, keys, W_query, W_key):
    """The scores of the newest token for all tokens so far and for itself, scaled as above.

    token: d_model. keys: key d_head, of the tokens before it, the oldest first; for the first token
    of a text this table has no row, 0 d_head. W_query: d_model d_head. W_key: d_model d_head.
    Returns two tensors: the row of scores, one number for each token up to the newest, and the keys
    to keep for the next token, one row more than before.
    """
    ### BEGIN SOLUTION
    keys = torch.cat([keys, (token @ W_key)[None]])
    query = token @ W_query
    return keys @ query / sqrt(W_query.shape[1]), keys
    ### END SOLUTION

# %% check="01.1"
check("01.1", newest_row)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# What of the new token do you need, besides what is kept? Write down the shape of each thing you make from it.
#
# </details>
# <details><summary>Hint 2: a row more</summary>
#
# <code>torch.cat</code> lays tables below each other. A list of numbers is no table yet: <code>[None]</code> makes it
# a table of one row.
#
# </details>
# <details><summary>Hint 3: it runs, but the check says the values are wrong</summary>
#
# Take a text of three tokens and compare with the last row of <code>scores_with_matmul</code>. Whose key is last?
# What stands under the root? What exactly do you keep?
#
# </details>

# %% [markdown] solution="01.1"
# The new token needs one query, its own; every earlier token has asked already. Its key is appended *before* the
# product, because a token attends to itself too. One row costs a product of a table and a list, where the whole map
# costs a product of two tables. Kept are the plain keys: the division belongs to the score. If you divide the kept
# keys instead, each is divided once more with every new token.

# %% solution="01.1"
def newest_row_by_names(token, keys, W_query, W_key):
    query = einsum(token, W_query, "d_model, d_model d_head -> d_head") / sqrt(W_query.shape[1])
    own = einsum(token, W_key, "d_model, d_model d_head -> d_head")
    keys = torch.vstack([keys, own])
    return einsum(query, keys, "d_head, key d_head -> key"), keys


check("01.1", newest_row_by_names)

# %% [markdown]
# ## From scores to weights to the result
#
# The softmax of chapter 00 runs along the *keys*, the last axis: one token divides its attention among all tokens.

# %%
def print_sums(name, table):
    """The sums of the rows and of the columns."""
    for axis, dim in (("rows", 1), ("columns", 0)):
        print(f"{name}: its {axis} sum to",
              *(f"{total:.2f}" for total in table.sum(dim=dim).tolist()))


weights = axes(scores.softmax(dim=-1), "query key", "weights")
print_rows(words, weights)
print_sums("weights", weights)

# %% [markdown]
# The table is square, so a softmax along the wrong axis has the right shape. Only the sums tell:

# %%
print_sums("sideways", scores.softmax(dim=0))

# %%
darkest = [words[j] for j in weights.argmax(dim=1).tolist()]
plots.show(
    plots.attention_map(weights, words),
    "the attention map of one head, a row for each query. Row saw is dark at dog and grey at bird. "
    "The darkest key, row by row: " + ", ".join(darkest) + ".",
)

# %% [markdown]
# Then the weights mix the values, equation (3). Once in loops, once as a matrix product:

# %%
value = axes(x @ W_value, "key d_head", "value")

y_with_loops = torch.zeros(6, 4)
for i in range(6):
    for j in range(6):
        y_with_loops[i] += weights[i, j] * value[j]

y = axes(weights @ value, "query d_head", "y")
agree(y, y_with_loops)
print_rows(words, y)

# %% [markdown]
# This is attention with one head.
#
# ## Why divide by the square root of d_head?
#
# A score is a sum of `d_head` products. The more terms, the more the scores spread. How much? Draw queries and
# keys whose numbers are independent, with mean 0 and spread 1, and measure. *Spread* is the standard deviation:
# the root of the mean squared distance from the mean. Here 1,000 queries meet six keys each; `batch` counts them.

# %%
def random_scores(d_head):
    """Scores that are not scaled: 1,000 queries, six keys for each."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1000, d_head, generator=generator)
    key = torch.randn(1000, 6, d_head, generator=generator)
    axes_random = Axes(batch=1000, key=6)
    axes_random(query, "batch d_head", "query")
    axes_random(key, "batch key d_head", "key")
    return einsum(query, key, "batch d_head, batch key d_head -> batch key")


print("d_head  root of d_head  spread of the scores  after the division")
for d_head in (4, 16, 64, 256):
    spread = random_scores(d_head).std().item()
    print(f"{d_head:6} {sqrt(d_head):15.1f} {spread:21.1f} {spread / sqrt(d_head):19.1f}")

# %% [markdown]
# The spread is the root of `d_head`. Why? Take one term, $q k$. Its mean is 0, so its *variance*, the spread squared,
# is the mean of $q^2 k^2$. $q$ and $k$ are independent: that is the mean of $q^2$ times the mean of $k^2$, so
# $1 \cdot 1 = 1$. The variances of independent terms add up: that of a score is `d_head`, and its spread the root.
# Divide by the root, and the spread is 1, whatever the size of a head. Divide by `d_head`, and large heads have scores
# near 0.
#
# ### What the softmax does with large scores
#
# A softmax looks at differences. A score that is 10 above the others gets nearly all the weight: `exp(10)` is
# about 22,000. Here are six queries and keys with `d_head` = 256:

# %%
def normal(seed, *shape):
    """Normally distributed numbers, mean 0 and spread 1. The same seed gives the same numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


axes_wide = Axes(length=6, d_head=256)
wide_query = axes_wide(normal(3, 6, 256), "query d_head", "wide_query")
wide_key = axes_wide(normal(4, 6, 256), "key d_head", "wide_key")
wide_scores = wide_query @ wide_key.T
both = torch.stack([(wide_scores / sqrt(256)).softmax(dim=-1), wide_scores.softmax(dim=-1)])
plots.show(
    plots.attention_map(both, list("012345"), titles=["divided by 16", "not divided"]),
    "two attention maps of the same random queries and keys, 256 numbers each. Left, divided: "
    "every row has several grey cells. Right, not divided: every row has one black cell and five "
    "white ones.",
)
print("rows with a weight above 0.9:", (both.amax(dim=-1) > 0.9).sum(dim=-1).tolist(), "of 6")

# %% [markdown]
# On the right the softmax is *saturated*: one key takes all. And the map stops learning, since hardly any score moves
# a weight. Take one score $s$ against all the others, whose exponentials add up to some number $c$. Its weight is
# $w = e^s / (e^s + c)$, and the *slope* of that, the derivative by $s$, is $w (1 - w)$ (the quotient rule; $c$ stays).
# It is near 0 where $w$ is near 1 or 0. The other weights move by $-w_j w_n$, which is as small. Measured on the 1,000
# queries (`amax` is the largest number along an axis; with `keepdim=True` that axis stays, with size 1):

# %%
print("           mean of the largest weight        mean slope of the largest weight")
print("d_head     divided      not divided          divided      not divided")
for d_head in (4, 16, 64, 256):
    raw = random_scores(d_head)
    largest = [scores_of.softmax(dim=1).amax(dim=1) for scores_of in (raw / sqrt(d_head), raw)]
    means = [w.mean().item() for w in largest]
    slopes = [(w * (1 - w)).mean().item() for w in largest]
    print(f"{d_head:6} {means[0]:11.2f} {means[1]:16.2f} {slopes[0]:16.2f} {slopes[1]:16.2f}")

# %% fold=true
# @title The formula for every weight and score, compared with torch's derivatives
row = wide_scores[0] / sqrt(256)
w = row.softmax(dim=0)
by_torch = torch.autograd.functional.jacobian(lambda row: row.softmax(dim=0), row)
agree(by_torch, w.diag() - w[:, None] * w)  # w[j] on the diagonal, minus w[j] * w[n] everywhere

# %% [markdown]
# Not divided, the larger `d_head`, the closer the largest weight comes to 1, and its slope to 0. The division is made
# for the *start* of training. Training may still make sharp rows, where they help.
#
# ## What the map depends on
#
# Replace "dog" by "cat". There are 36 scores and 36 weights. How many of each move? Write down what you expect, then
# run the folded cell.

# %%
my_guess = {"scores that move": None, "weights that move": None}  # two numbers, each at most 36

# %% fold=true
# @title How far each score and each weight moves, and your guess beside it
other_words = "the cat saw a small bird".split()
other_x = axes(embed(other_words), "length d_model", "other_x")
other_scores = scores_with_matmul(other_x, W_query, W_key)
other_weights = other_scores.softmax(dim=-1)

score_change = axes((other_scores - scores).abs(), "query key", "score_change")
weight_change = axes((other_weights - weights).abs(), "query key", "weight_change")
changes = torch.stack([score_change, weight_change])
# so that rows with small changes can be seen as well
changes = changes / changes.amax(dim=-1, keepdim=True)
tokens = ["the", "dog/cat", *words[2:]]
plots.show(
    plots.attention_map(changes, tokens, titles=["scores", "weights"],
                        label="change (1 = largest of row)"),
    "how much each score and each weight changes when dog becomes cat. Each row is drawn by its "
    "own scale: its largest change is black, so compare within a row only. Left, the scores: a "
    "cross of row 1 and column 1, all else is white. Right, the weights: every row has grey cells "
    "outside of column 1.",
)
compare_guess(my_guess, {
    "scores that move": int((score_change > 1e-4).sum()),
    "weights that move": int((weight_change > 1e-4).sum()),
})

# %% [markdown]
# - **Row 1** moves, because the query of token 1 is a new one.
# - **Column 1** moves, because its key is a new one: the other five compare themselves with it.
# - In the **weights** all rows move, everywhere. A row shares out a total of 1. If one key gets more, all others
#   get less.
#
# Now all tokens, not only one. The *Jacobian* is the table of all gradients: every number of the result, here every
# score, by every number of the input. Score $(i, j)$ should depend on the tokens $i$ and $j$, and on no third one.

# %%
jacobian = torch.autograd.functional.jacobian(lambda x: scores_with_matmul(x, W_query, W_key), x)
jacobian = axes(jacobian, "query key length d_model", "jacobian")
jacobian_weights = torch.autograd.functional.jacobian(
    lambda x: scores_with_matmul(x, W_query, W_key).softmax(dim=-1), x
)
jacobian_weights = axes(jacobian_weights, "query key length d_model", "jacobian_weights")


def tokens_behind(block):
    """The tokens n where block, "length d_model", holds a gradient that is not 0."""
    return {n for n in range(6) if block[n].abs().max() > 0}


print("score (2, 5) depends on the tokens ", tokens_behind(jacobian[2, 5]))
print("weight (2, 5) depends on the tokens", tokens_behind(jacobian_weights[2, 5]))

# %% fold=true
# @title The same for all 36 pairs
for i in range(6):
    for j in range(6):
        assert tokens_behind(jacobian[i, j]) == {i, j}
        assert tokens_behind(jacobian_weights[i, j]) == set(range(6))

# %% [markdown]
# The paper says it in Table 1: the dot product is conditioned on all tokens $X_j$, it *interacts*, and it is
# *local*, that is, made anew for every sentence. Keep this in mind: later chapters take it away, piece by piece.
#
# ## Heads: several maps side by side
#
# "saw" wants to know who sees and who is seen, but one row of weights mixes "dog" and "bird" into one row of values. So
# a layer has several *heads*. Each has its own projections to `d_head` numbers and its own map.
# `d_model = head * d_head`: here 12 = 3 · 4. The matrices of the three heads are kept side by side in one matrix,
# 12 × 12. Head $h$ owns the columns $4h$ to $4h + 3$. Head 0 is the one that you know already.

# %%
axes_heads = Axes(batch=2, head=3, length=6, d_model=12)  # so d_head = 4
WQ, WK, WV = (draw(seed, 12, 12, high=0.5) for seed in (23831, 23832, 7))
WQ = axes_heads(WQ, "d_model (head d_head)", "WQ")
WK = axes_heads(WK, "d_model (head d_head)", "WK")
WV = axes_heads(WV, "d_model (head d_head)", "WV")

maps = []
for h in range(3):
    own = slice(4 * h, 4 * h + 4)
    maps.append(scores_with_matmul(x, WQ[:, own], WK[:, own]).softmax(dim=-1))
maps = axes_heads(torch.stack(maps), "head query key", "maps")
agree(maps[0], weights)

# %%
looks_at = [words[j] for j in maps[:, 2].argmax(dim=-1).tolist()]
plots.show(
    plots.attention_map(maps, words),
    "the attention maps of three heads, side by side. They differ in every row. "
    "Row saw is darkest at "
    + ", ".join(f"{word} in head {h}" for h, word in enumerate(looks_at))
    + ".",
)

# %% [markdown]
# Head 0 of "saw" looks mostly at "dog", heads 1 and 2 at "bird". In a trained model such a division of labour is
# learned; here it is luck.
#
# ### All heads, and all sentences, at once
#
# Code has no loop over heads. One big product makes the queries of all heads; then `head` becomes an axis of its
# own, in front of `length`, by the `rearrange` of chapter 00. Two sentences stand side by side in a batch.

# %%
two_sentences = axes_heads(torch.stack([x, other_x]), "batch length d_model", "two_sentences")


def split(features):
    return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=3)


queries = axes_heads(split(two_sentences @ WQ), "batch head query d_head", "queries")
keys = axes_heads(split(two_sentences @ WK), "batch head key d_head", "keys")
values = axes_heads(split(two_sentences @ WV), "batch head key d_head", "values")
pattern = "batch head query d_head, batch head key d_head -> batch head query key"
all_scores = einsum(queries, keys, pattern)
all_weights = axes_heads((all_scores / sqrt(4)).softmax(dim=-1), "batch head query key",
                         "all_weights")
agree(all_weights[0], maps)

# %% [markdown]
# The root is that of `d_head`, 4, because each score is a sum of 4 products. And `reshape` in place of `rearrange`?
# Same shape, wrong tokens: you know this from 00, "The trap: right shape, wrong numbers".
#
# Each head mixes its own values. Their results are put side by side again, 12 numbers for each token, as at the start.

# %%
mixed = all_weights @ values  # @ leaves the axes in front, batch and head, as they are
merged = rearrange(mixed, "batch head query d_head -> batch query (head d_head)")
merged = axes_heads(merged, "batch length d_model", "merged")
agree(merged[0, :, :4], y)

# %% [markdown]
# A last projection, from 12 numbers to 12, then lets the heads exchange what they found: the *output projection*.
# Equation (3) ends before it, but transformers have it, whatever S they use. You meet it at the end.
#
# ### Exercise 01.2: the maps inside a layer of torch
#
# *15 minutes, medium.* torch has a layer of attention, `nn.MultiheadAttention`. It keeps the three matrices in one
# parameter and three biases in another, and does not show its maps unless asked. Make them from its parameters.

# %% exercise="01.2" points=2
def torch_maps(x, in_proj_weight, in_proj_bias, head):
    """The attention maps of nn.MultiheadAttention(d_model, head), from its parameters.

    x: batch length d_model. head: the number of heads; each owns neighbouring features, as above.
    in_proj_weight: 3 d_model in all, then d_model. Its first d_model rows make the queries, the
    next the keys, the last the values, each part stored as nn.Linear stores its matrix.
    in_proj_bias: 3 d_model numbers in all, in the same order: they are added to the queries, keys
    and values.
    Returns the weights, batch head query key.
    """
    ### BEGIN SOLUTION
    pattern = "batch length (head d_head) -> batch head length d_head"
    projected = x @ in_proj_weight.T + in_proj_bias
    query, key, _ = projected.chunk(3, dim=-1)
    query, key = (rearrange(features, pattern, head=head) for features in (query, key))
    scores = einsum(query, key, "batch head query d_head, batch head key d_head -> batch "
                                "head query key")
    return (scores / sqrt(query.shape[-1])).softmax(dim=-1)
    ### END SOLUTION

# %% check="01.2"
check("01.2", torch_maps)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Cut the stored matrix into its three parts: how many rows has each? Then look up how <code>nn.Linear</code> uses
# what it stores ("A module holds its parameters").
#
# </details>
# <details><summary>Hint 2: the shape is right, the values are not</summary>
#
# Print the sums over the last axis of your result: are they 1? Each part is square: which of its axes goes in? Are
# the biases there? Which of your heads gets which numbers of which token? What stands under the root?
#
# </details>
# <details><summary>Hint 3: compare with torch</summary>
#
# Derive it first, then make <code>layer = nn.MultiheadAttention(6, 2, batch_first=True)</code>, set its
# <code>in_proj_bias</code> to something that is not 0, and ask
# <code>layer(x, x, x, average_attn_weights=False)[1]</code>.
#
# </details>

# %% [markdown] solution="01.2"
# One product makes queries, keys and values at once, because the three matrices lie below each other and torch stores
# the output axis first. The rest is the layer of this chapter. The values are not needed for the map. Try to leave
# out the bias of the keys alone: the check says "Right", for a reason that you meet at the end of the chapter.

# %% solution="01.2"
def torch_maps_by_torch(x, in_proj_weight, in_proj_bias, head):
    layer = nn.MultiheadAttention(x.shape[-1], head, batch_first=True)
    layer.load_state_dict({**layer.state_dict(), "in_proj_weight": in_proj_weight,
                           "in_proj_bias": in_proj_bias})
    return layer(x, x, x, average_attn_weights=False)[1].detach()


check("01.2", torch_maps_by_torch)

# %% [markdown]
# ## Masks: where a token may not look
#
# So far every token looks at every token. Two reasons forbid that.
#
# - **Order of writing.** A language model learns to predict the next word. A token that could look at the next
#   word would simply copy it. So no token may look at later ones: the *causal* mask.
# - **Padding.** Sentences of different lengths share one tensor. The short ones are filled up with filler tokens,
#   here "-". Nobody should look at a filler.
#
# A mask is a table of True (may be attended) and False. The library makes both kinds, with axes for batch and head too,
# of size 1; `[0, 0]` takes them off.

# %%
print(masks.causal(6)[0, 0].int())

# %% [markdown]
# It acts on the **scores**, before the softmax: a forbidden score becomes minus infinity, its weight 0. *After* the
# softmax is too late: what the forbidden keys took is missing.

# %%
allowed = axes(masks.causal(6)[0, 0], "query key", "allowed")
before = axes(scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1), "query key", "before")
after = axes(scores.softmax(dim=-1) * allowed, "query key", "after")
print("sums of the rows, masked before:", [f"{total:.2f}" for total in before.sum(dim=1).tolist()])
print("sums of the rows, masked after: ", [f"{total:.2f}" for total in after.sum(dim=1).tolist()])

# %% [markdown]
# Padding depends on the sentence, so its mask is "batch 1 1 key". The axes of size 1 are stretched: it holds for all
# heads and all queries. `masks.padding([6, 3], length=6)` gets the lengths without fillers: 6 words in sentence 0, and
# 3 in sentence 1. `&` combines two masks: allowed by both.

# %%
padded_words = [words, "a bird saw - - -".split()]
padded = torch.stack([embed(sentence) for sentence in padded_words])
padded = axes_heads(padded, "batch length d_model", "padded")
real = axes_heads(masks.padding([6, 3], length=6), "batch 1 1 key", "real")


def weights_of(x, allowed):
    """The maps of our three heads, masked."""
    scores = einsum(split(x @ WQ), split(x @ WK), pattern)
    return (scores / sqrt(4)).masked_fill(~allowed, float("-inf")).softmax(dim=-1)


padded_weights = weights_of(padded, real)
causal_weights = weights_of(padded, real & masks.causal(6))
padded_weights = axes_heads(padded_weights, "batch head query key", "padded_weights")
causal_weights = axes_heads(causal_weights, "batch head query key", "causal_weights")
of_sentence_1 = torch.stack([padded_weights[1, 0], causal_weights[1, 0]])
plots.show(
    plots.attention_map(of_sentence_1, padded_words[1], titles=["padding", "and causal"]),
    "two maps of 'a bird saw' and three fillers, head 0. Left, padding masked: the three columns "
    "of the fillers are white. Right, causal too: all above the diagonal is white as well.",
)

# %% [markdown]
# The fillers are queries, too: their rows have weights. That does no harm, nobody reads their results. What
# counts is that no real token depends on a filler. Put another word in their place: how far do the results move?

# %% fold=true
# @title Another word in place of the fillers
other_filler = torch.stack([x, embed("a bird saw cat cat cat".split())])
other_filler = axes_heads(other_filler, "batch length d_model", "other_filler")
result = weights_of(padded, real) @ split(padded @ WV)
other_result = weights_of(other_filler, real) @ split(other_filler @ WV)
moved = (result - other_result)[1].abs().amax(dim=(0, 2))
print_rows(["moved"], moved[None])

# %% [markdown]
# Those of the three real tokens do not move at all.
#
# ### A row that may look nowhere
#
# Some programs put the fillers on the *left*, so that all sentences end at the same position. Take a causal mask on
# top, and three tokens: a filler, then two words. Token 0 may look at itself only, and it is a filler. It may look
# nowhere. A softmax over nothing but minus infinity is 0 divided by 0: NaN, "not a number".

# %%
left_words = "- a bird".split()
left_x = embed(left_words)
left_scores = scores_with_matmul(left_x, W_query, W_key)
nowhere = (masks.causal(3) & masks.padding([2], length=3, side="left"))[0, 0]
naive = left_scores.masked_fill(~nowhere, float("-inf")).softmax(dim=-1)
print(nowhere.int())
print_rows(left_words, naive)

# %% [markdown]
# Can you ignore the row of a filler? No. Mix values with this map, and again in the next layer. The filler has the
# weight 0 there, but 0 times NaN is NaN:

# %%
once = naive @ (left_x @ W_value)
print_rows(left_words, once)
print("and mixed once more:")
print_rows(left_words, naive @ once)

# %% [markdown]
# Everything is gone. A uniform row would look exactly where it is forbidden. A token that may look nowhere takes
# nothing: a row of zeros, as the library's `masks.masked_softmax` gives it for scores and a mask:

# %%
safe = masks.masked_softmax(left_scores, nowhere)
print_rows(left_words, safe)
agree(safe[1:], naive[1:])

# %% [markdown]
# ### Exercise 01.3: masked softmax
#
# *18 minutes, medium.* Turn scores into weights under a mask, for all sentences and heads. Some rows may look
# nowhere; they are zeros. And the scores may be large.

# %% exercise="01.3" points=2
def masked_weights(scores, allowed):
    """Softmax along the keys that are allowed.

    scores: batch head query key, float32; any number from -10,000 to 10,000, also where it is
    forbidden.
    allowed: bool, batch 1 query key, True = may be attended, for all heads alike.
    Returns the weights, batch head query key. A row is the softmax over its allowed keys alone;
    what a forbidden key scores makes no difference, and its weight is 0. A row in which no key is
    allowed is all zeros.
    """
    ### BEGIN SOLUTION
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1)
    somewhere = allowed.any(dim=-1, keepdim=True)
    return weights.where(somewhere, 0.0)
    ### END SOLUTION

# %% check="01.3"
check("01.3", masked_weights)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write the version with minus infinity first, and ask the check. What it says next is the second half of the
# exercise.
#
# </details>
# <details><summary>Hint 2: the rows that may look nowhere</summary>
#
# Two ways. Either find these rows (<code>allowed.any(dim=-1, keepdim=True)</code> is True where a row may look
# somewhere), or fill in a number that is finite, so that no NaN appears, but far below any score that could come. In
# both, something is left to set to 0.
#
# </details>
# <details><summary>Hint 3: I want to write the loops, or the exponentials</summary>
#
# Start with <code>batch, head, length, _ = scores.shape</code>, and <code>torch.zeros_like(scores)</code>. A row
# with nothing open stays as it is. Mind that <code>exp</code> of 10,000 is infinite, and of -10,000 is 0, in float32:
# what may you subtract from a row before?
#
# </details>

# %% [markdown] solution="01.3"
# Minus infinity is below every score, so a forbidden key gets exactly 0 and the others share 1. Only the rows without
# an allowed key are 0 divided by 0; `allowed.any` finds them, and `where` replaces them. Multiplying by 0 would not
# do: 0 times NaN is NaN. The second way never meets NaN, because the lowest number of float32 is finite: such a row
# is uniform for a moment, and the product with the mask empties it.

# %% solution="01.3"
def masked_weights_finite(scores, allowed):
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~allowed, lowest).softmax(dim=-1) * allowed


check("01.3", masked_weights_finite)

# %% [markdown]
# ## What it costs
#
# ### Parameters
#
# Table 1 of the paper gives the dot product $2d^2$ parameters, with $d$ for `d_model`: two projections $d \to d$,
# for queries and for keys. (Values and output come on top, for every S alike.) Count them: the library's `DotProduct`
# is our score with all its heads, `numel` the number of numbers in a tensor.

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


for d_model, head, max_length in [(12, 3, 6), (12, 4, 6), (12, 3, 100), (512, 8, 256)]:
    counted = parameters(DotProduct(d_model, head, max_length, bias=False))
    print(f"d {d_model:3}, heads {head}, l {max_length:3}: counted {counted:7,}, "
          f"formula {2 * d_model**2:7,}")

# %% [markdown]
# More heads are smaller ones. The length makes no difference, although the library asks for the longest one,
# `max_length`, as it does for every S: other kinds need it.
#
# ### Multiply-adds
#
# How much is computed? Take a product of two matrices, 6 × 12 and 12 × 4. Each of the $6 \cdot 4$ numbers of the
# result is a sum of 12 products. One product and its addition are called a *multiply-add*; there are
# $6 \cdot 12 \cdot 4$ of them: **multiply the three sizes.** Here are all products of the scores, for one sentence of
# length $l$:
#
# | product | first factor | second factor | multiply-adds |
# |---|---|---|---|
# | queries | $l \times d$ | $d \times d$ | $l\,d^2$ |
# | keys | $l \times d$ | $d \times d$ | $l\,d^2$ |
# | comparison, one head | $l \times d_\text{head}$ | $d_\text{head} \times l$ | $l^2\,d_\text{head}$ |
# | comparison, all heads | | | $l^2\,d$ |
#
# Together $2\,l\,d^2 + l^2\,d$, without softmax, division and biases. torch has a counter of its own. A *flop* is one
# operation on numbers, so it counts a multiplication and an addition as two:

# %%
def multiply_adds(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


def formula(batch, length, d_model):
    return batch * (2 * length * d_model**2 + length**2 * d_model)


for batch, length, d_model, head in [(1, 6, 12, 3), (2, 6, 12, 3), (2, 6, 12, 4), (2, 50, 64, 8)]:
    counted = multiply_adds(DotProduct(d_model, head, max_length=50),
                            torch.randn(batch, length, d_model))
    print(f"batch {batch}, l {length:2}, d {d_model:2}, heads {head}: "
          f"counted {counted:9,}, formula",
          f"{formula(batch, length, d_model):9,}")

# %% [markdown]
# ### Is it "O(d³)"?
#
# If it were, twice the $d$ would be eight times the work. Ask the counter: the comparison alone, then the projections,
# each with one size doubled:

# %%
def counted_parts(length, d_model):
    """The multiply-adds of the comparison and of the two projections, counted."""
    x = torch.randn(1, length, d_model)
    score = DotProduct(d_model, head=1, max_length=length, bias=False)
    projections = multiply_adds(score.query, x) + multiply_adds(score.key, x)
    return multiply_adds(score, x) - projections, projections


comparison, projections = counted_parts(length=20, d_model=32)
for what, length, d_model in [("d doubled", 20, 64), ("l doubled", 40, 32)]:
    grown = counted_parts(length, d_model)
    factors_grown = [grown[0] / comparison, grown[1] / projections]
    print(f"{what}: comparison {factors_grown[0]:.0f} times, "
          f"projections {factors_grown[1]:.0f} times")

# %% [markdown]
# The comparison, $l^2 d$, grows with $d$ itself, the projections, $l\,d^2$, with its square, and nothing with $d^3$: no
# product has three factors $d$. What does hurt is the *length*: the comparison grows with its square. For short
# sentences the projections are the larger part, for long ones the comparison; they are equal where
# $2\,l\,d^2 = l^2 d$, at $l = 2d$. A whole layer has more: values, mixture, output. At which length are projections and
# pairs equal there? Write down a multiple of $d$; the answer comes behind the next exercise.

# %%
whole_layer = {"the length, as a multiple of d": None}  # a number

# %% [markdown]
# ### Exercise 01.4: the work of the whole layer
#
# *12 minutes, medium.* A layer has more than the scores: the values, the mixture of equation (3), and the output
# projection $d \to d$. Count all of it, in two parts: what grows with the length, and what with its square.

# %% exercise="01.4" points=2
def layer_work(batch, length, d_model, head):
    """The multiply-adds of Attention(d_model, head, max_length, score="dot_product").

    One forward pass over x: batch length d_model. Softmax, division and biases are not counted.
    Returns two whole numbers, (projections, pairs):
    projections: all products of tokens with a matrix of parameters;
    pairs: all products that work on pairs of a query and a key.
    """
    ### BEGIN SOLUTION
    projections = 4 * length * d_model * d_model
    pairs = 2 * length * length * d_model
    return batch * projections, batch * pairs
    ### END SOLUTION

# %% check="01.4"
check("01.4", layer_work)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Make a list of all products of the layer, with the three sizes of each, as in the table above. Walk
# through the layer from <code>x</code> to <code>y</code>, up to the last projection.
#
# </details>
# <details><summary>Hint 2: the mixture</summary>
#
# In each head the map, query × key, meets the values, key × <code>d_head</code>. Multiply the three sizes, then
# add up the heads.
#
# </details>
# <details><summary>Hint 3: check yourself before you ask the check</summary>
#
# Derive it first, then add your two numbers and compare the sum with
# <code>multiply_adds(Attention(12, 3, 8, score="dot_product"), torch.randn(2, 6, 12))</code>.
#
# </details>

# %% [markdown] solution="01.4"
# Four projections of the same size: queries, keys, values, output. Two products on pairs: the comparison, and the
# mixture, in which each head multiplies length × length by length × `d_head`; the heads together make `d_model` of
# it. So the number of heads falls away.

# %% solution="01.4"
def layer_work_listed(batch, length, d_model, head):
    d_head = d_model // head
    tokens_with_matrix = [(length, d_model, d_model)] * 4
    in_one_head = [(length, d_head, length), (length, length, d_head)]
    projections = sum(r * s * t for r, s, t in tokens_with_matrix)
    pairs = head * sum(r * s * t for r, s, t in in_one_head)
    return batch * projections, batch * pairs


check("01.4", layer_work_listed)

# %% fold=true
# @title At which length are the two parts of the whole layer equal? Counted.
def whole_parts(length, d_model):
    """The multiply-adds of all projections of a layer, and of what works on pairs, counted."""
    x = torch.randn(1, length, d_model)
    layer = Attention(d_model, head=1, max_length=length, score="dot_product")
    projections = sum(multiply_adds(part, x) for part in layer.modules()
                      if isinstance(part, nn.Linear))
    return projections, multiply_adds(layer, x) - projections


# for the scores alone they are equal at 2 d
assert len(set(counted_parts(length=64, d_model=32))) == 1
(equal_at,) = [length for length in range(1, 97) if len(set(whole_parts(length, d_model=24))) == 1]
compare_guess(whole_layer, {"the length, as a multiple of d": equal_at // 24})

# %% [markdown]
# ## Where it breaks: it does not know the order
#
# Exchange "dog" and "bird". Now another one sees. What does "saw" take home?

# %%
swapped_words = "the bird saw a small dog".split()
swapped_x = axes(embed(swapped_words), "length d_model", "swapped_x")
swapped_y = scores_with_matmul(swapped_x, W_query, W_key).softmax(dim=-1) @ (swapped_x @ W_value)
swapped_y = axes(swapped_y, "query d_head", "swapped_y")
print_rows(["before", "after"], torch.stack([y[2], swapped_y[2]]))

# %% [markdown]
# The same. The score knows the two words and nothing of their positions. Who saw whom is lost. (This is the 0.2 of
# `share_right(train("dot_product"))` in chapter 00: nothing told the places apart there either.)
#
# Shuffle the tokens in any way, and the map is shuffled the same way, rows and columns; each result follows its token.
# The word for this is *equivariant*. Compare with the `y` above:

# %%
order = torch.tensor([2, 0, 5, 1, 4, 3])
shuffled_weights = scores_with_matmul(x[order], W_query, W_key).softmax(dim=-1)
shuffled_y = shuffled_weights @ (x[order] @ W_value)
print_rows([words[i] for i in order.tolist()], shuffled_y)
agree(shuffled_weights, weights[order][:, order])  # rows and columns move
agree(shuffled_y, y[order])

# %% [markdown]
# `x[order]` takes the rows of `x` in the order of the list; `[:, order]` does it with columns.
#
# So **the order must come from somewhere else**. The usual way: a second embedding, one row for each *position*, is
# added to the tokens before the first layer. Then "dog at position 1" and "dog at position 5" are different tokens:

# %%
positions = axes(draw(9, 6, 12, high=1), "length d_model", "positions")


def result_of_saw(words):
    with_positions = embed(words) + positions
    weights = scores_with_matmul(with_positions, W_query, W_key).softmax(dim=-1)
    return (weights @ (with_positions @ W_value))[2]


print_rows(["before", "after"], torch.stack([result_of_saw(words), result_of_saw(swapped_words)]))

# %% [markdown]
# A causal mask brings in some order, too: in one layer, a token sees who stands before it, though not in which
# order.
#
# ### Exercise 01.5: does the output follow the tokens?
#
# *18 minutes, hard.* Write the test for any layer. The check gives it layers of many kinds: some follow their
# tokens in every order, some in a few orders only. One shuffle is an example, not a proof: think about which
# orders you have to try.

# %% exercise="01.5" points=3
def follows_tokens(layer, x):
    """Do the results of a layer follow their tokens, in whatever order these come?

    layer: a function from length d_model to length d_model. x: length d_model, 4 or 5 tokens.
    Returns True if each token gets the same result, wherever it and the others stand; else False.
    Differences below 0.00001 are rounding.
    """
    ### BEGIN SOLUTION
    result = layer(x)
    for order in permutations(range(len(x))):
        order = list(order)
        if not torch.allclose(layer(x[order]), result[order], rtol=0, atol=1e-5):
            return False
    return True
    ### END SOLUTION

# %% check="01.5"
check("01.5", follows_tokens)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Call the layer twice: once with <code>x</code>, once with <code>x[order]</code>. Which rows of the two results
# should be the same?
#
# </details>
# <details><summary>Hint 2: which orders?</summary>
#
# <code>itertools.permutations(range(len(x)))</code> gives all of them; <code>x[list(order)]</code> takes the rows.
# Five tokens have 120 orders, which is not many. Which of them can you leave out, if a layer may break at any one?
#
# </details>
# <details><summary>Hint 3: the check says the result is a Tensor</summary>
#
# A comparison of tensors gives a tensor, <code>tensor(True)</code>. <code>bool(...)</code> makes it a plain
# <code>True</code>. <code>torch.allclose</code> gives one at once.
#
# </details>

# %% [markdown] solution="01.5"
# "For every order" is what the definition says, and at most 120 orders are few enough to try. Only the order that
# changes nothing can be left out: for any other a layer can be made that breaks at it alone. `rtol=0` matters as well:
# without it `torch.allclose` allows more where the numbers are larger, and the docstring gives one limit for all.

# %% solution="01.5"
def follows_tokens_by_matrices(layer, x):
    result = layer(x)
    for order in permutations(range(len(x))):
        shuffle = torch.eye(len(x))[list(order)]  # a matrix that takes the rows in this order
        if (layer(shuffle @ x) - shuffle @ result).abs().max() > 1e-5:
            return False
    return True


check("01.5", follows_tokens_by_matrices)

# %% [markdown]
# ## The same as the library's layer
#
# Everything in one class: heads, masks, values, output projection, and now the biases: `nn.Linear` adds a learned
# number to each column, unless you say `bias=False`.

# %%
class DotProductAttention(nn.Module):
    def __init__(self, d_model, head):
        super().__init__()
        self.head = head
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def split(self, x):
        pattern = "batch length (head d_head) -> batch head length d_head"
        return [rearrange(part(x), pattern, head=self.head)
                for part in (self.query, self.key, self.value)]

    def merge(self, mixed):
        return rearrange(mixed, "batch head query d_head -> batch query (head d_head)")

    def forward(self, x, allowed):
        query, key, value = self.split(x)
        pattern = "batch head query d_head, batch head key d_head -> batch head query key"
        scores = einsum(query, key, pattern) / sqrt(query.shape[-1])
        weights = masks.masked_softmax(scores, allowed)
        # equation (3), then the output projection
        return self.output(self.merge(weights @ value)), weights

# %% [markdown]
# Predict the two shapes that come back. Then run it, on the two sentences with their padding and causal mask.

# %%
_ = torch.manual_seed(0)
ours = DotProductAttention(d_model=12, head=3)
mask = real & masks.causal(6)
our_y, our_weights = ours(padded, mask)
our_y = axes_heads(our_y, "batch length d_model", "our_y")
our_weights = axes_heads(our_weights, "batch head query key", "our_weights")

# %% [markdown]
# The library's layer is this one. Its class `Attention` knows nothing of dot products: the scores are a part that it
# holds, `score`. Exchanging that part is how the next chapters work. The folded cell gives it the same parameters and
# stops if a map, a result or a gradient differs, and asks torch's own function too,
# `nn.functional.scaled_dot_product_attention`, which on many machines never stores the whole map.

# %% fold=true
# @title The library's layer, and torch's function, give the same maps, results and gradients
library = Attention(d_model=12, head=3, max_length=8, score="dot_product", causal=True)
names = {  # ours -> the library's
    name: "score." + name if name.startswith(("query", "key")) else name
    for name in ours.state_dict()
}
library.load_state_dict({names[name]: parameter for name, parameter in ours.state_dict().items()})
library_y, library_weights = library(padded, mask=real)
agree(library_weights, our_weights)
agree(library_y, our_y)

factors_y = draw(10, 2, 6, 12, high=2)
of_ours = torch.autograd.grad((ours(padded, mask)[0] * factors_y).sum(), list(ours.parameters()))
of_library = torch.autograd.grad(
    (library(padded, mask=real)[0] * factors_y).sum(),
    [library.get_parameter(names[name]) for name, _ in ours.named_parameters()],
)
for one, other in zip(of_ours, of_library, strict=True):
    agree(one, other)

by_torch = nn.functional.scaled_dot_product_attention(*ours.split(padded), attn_mask=mask)
agree(ours.output(ours.merge(by_torch)), our_y)

# %% [markdown]
# One of the eight parameters does nothing, the bias of the keys. It adds to every score of row $i$ the same number,
# query $i$ times the bias. A softmax looks at differences only, so no weight moves. Its gradient is 0:

# %%
for (name, _), gradient in zip(ours.named_parameters(), of_ours, strict=True):
    print(f"{name:13} largest gradient {gradient.abs().max():6.2f}")

# %% [markdown]
# ## Trained: who saw whom?
#
# Back to the question of the first cell, with a layer that learns. The sentences are "the ... saw a small ...", with
# two of six nouns. After attention, a linear layer reads the result of **"saw"** alone and names the one who saw. So
# "saw" must have taken it home.
#
# Three pairs of nouns, in both orders, are kept for the end: the model never sees "the dog saw a small bird" in
# training, nor "the bird saw a small dog".

# %%
nouns = "dog bird cat fox cow hen".split()
kept = [{"dog", "bird"}, {"cat", "fox"}, {"cow", "hen"}]
pairs = [(one, other) for one, other in permutations(nouns, 2) if {one, other} not in kept]
new_pairs = [(one, other) for one, other in permutations(nouns, 2) if {one, other} in kept]
numbers = {word: number for number, word in enumerate("the saw a small".split() + nouns)}


def sentences(pairs):
    """The words of each sentence as numbers, and which noun is the one who saw."""
    texts = [f"the {one} saw a small {other}".split() for one, other in pairs]
    tokens = torch.tensor([[numbers[word] for word in text] for text in texts])
    return tokens, torch.tensor([nouns.index(one) for one, _ in pairs])


print(f"{len(pairs)} sentences for training, {len(new_pairs)} new ones")

# %% fold=true
# @title The model, with our layer in it, and its training
class WhoSaw(nn.Module):
    def __init__(self, with_positions):
        super().__init__()
        self.tokens = nn.Embedding(len(numbers), 12)  # a learned row of 12 numbers for each word
        start = 0.1 * torch.randn(6, 12) if with_positions else torch.zeros(6, 12)
        self.positions = nn.Parameter(start, requires_grad=with_positions)
        self.attention = DotProductAttention(d_model=12, head=1)
        self.name = nn.Linear(12, len(nouns))

    def forward(self, tokens):
        everywhere = torch.ones(1, 1, 6, 6, dtype=torch.bool)
        y, weights = self.attention(self.tokens(tokens) + self.positions, everywhere)
        return self.name(y[:, 2]), weights  # "saw" is token 2


def train(model, steps=300):
    """Adam moves all parameters a little, again and again, so that the right noun gets a larger
    number."""
    tokens, who = sentences(pairs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(tokens)[0], who)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %% [markdown]
# One model gets learned positions, the other none. Of the three new pairs, how many does each get right *in both
# orders*? Predict, then train; it takes a few seconds.

# %%
my_guess = {"with positions": None, "without": None}  # of 3

# %%
def pairs_right(model):
    """For how many of the new pairs both orders are right."""
    tokens, who = sentences(new_pairs)
    right = model(tokens)[0].argmax(dim=1) == who
    return sum(all(right[i] for i, pair in enumerate(new_pairs) if set(pair) == both)
               for both in kept)


models = {}
for name in my_guess:
    _ = torch.manual_seed(0)
    models[name] = WhoSaw(with_positions=name == "with positions")
    train(models[name])
compare_guess(my_guess, {name: pairs_right(model) for name, model in models.items()})

# %%
# Output varies: the last digits of trained weights are those of the machine.
tokens, _ = sentences([("dog", "bird"), ("bird", "dog")])
# the row of "saw", in both sentences
rows = [model(tokens)[1][:, 0, 2] for model in models.values()]
plots.show(
    plots.attention_map(torch.stack(rows), ["dog,bird", "bird,dog"], keys=list("012345"),
                        titles=list(models)),
    "where saw looks, a row for each of two sentences that were not in training: who saw, and who "
    "was seen. A column for each position. Left, with positions: nearly all weight lies on "
    "position 1, the one who saw. Right, without: the two nouns, at positions 1 and 5, share most "
    "of it, in both sentences alike.",
)

# %% [markdown]
# With positions, the layer has learned what was luck at the start of this chapter: "saw" looks at the noun in front of
# it, also for pairs that it never met. Without positions it finds the *nouns*, and cannot do more: both orders give
# "saw" the same result, so at best one of the two is right. More training cannot change that.
#
# The sentences are built alike, so "look at position 1" is enough. Does it take a comparison of all pairs to do
# that? Remember this task; chapter 02 has another answer.

# %% fold=true
# @title Both orders give "saw" the same result without positions, and only then
tokens, _ = sentences(new_pairs)
for name, model in models.items():
    of_pairs = dict(zip(new_pairs, model(tokens)[0].detach(), strict=True))
    apart = min((of_pairs[one, other] - of_pairs[other, one]).abs().max()
                for one, other in new_pairs)
    assert apart > 0.1 if name == "with positions" else apart < 1e-3

# %% [markdown]
# ### Stretch 01.6: tokens that nobody can look at
#
# *15 minutes, hard.* Open-ended: many answers are right. In the maps so far any token could become the darkest one,
# it seems. It is not so. A head compares with `d_head` numbers, and for some keys **no query at all** gives them the
# largest score. Build a table of keys in which only two can ever win.
#
# Why the series asks it: a score that is a dot product can make some maps and not others, because the keys decide
# together what can be looked at. The scores of the next chapters give each position numbers of its own, and later a
# *rank* takes them away again. This is the first time that you meet that limit.

# %% exercise="01.6" points=1
def hidden_keys(length):
    """Keys of two features, such that only two of them can ever win.

    length: how many keys, 4 to 100. Returns the keys, float32, key d_head, with d_head = 2, no two
    of them the same (they differ by at least 0.01 in some number), and no number larger than 100 or
    below -100.
    A key wins for a query, any two numbers, if its score is larger than those of all others; a
    difference as small as rounding does not count, and a tie is no win. Whatever the query, only
    two of your keys, always the same two, may win.
    """
    ### BEGIN SOLUTION
    keys = torch.zeros(length, 2)
    keys[:, 0] = torch.arange(length)
    return keys
    ### END SOLUTION

# %% check="01.6"
check("01.6", hidden_keys)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Draw keys as points on paper. A query is a direction; a score says how far a point lies in that direction. Which
# points can be the farthest in some direction, and which never are?
#
# </details>
# <details><summary>Hint 2: only three win, but not two</summary>
#
# Three points that win are the corners of a triangle, with all others inside, however thin it is. What becomes of the
# triangle if you press one corner quite flat?
#
# </details>

# %% [markdown] solution="01.6"
# A score is the length of a key in the direction of the query, so the winner is the farthest point in that direction.
# What lies between other points is never the farthest. On one line everything lies between the two ends: only these
# win. Two is the least, because two different points always differ in some direction. If all keys have the same
# length, every one can win: its own direction is the query.

# %% solution="01.6"
def hidden_keys_aslant(length):
    end = torch.tensor([3.0, -2.0])
    shares = torch.linspace(0, 1, length)[:, None]
    return torch.tensor([1.0, 5.0]) + shares * end


check("01.6", hidden_keys_aslant)

# %% [markdown]
# ## Is the comparison needed at all?
#
# The dot product pays $2d^2$ parameters, and a product that grows with the square of the length, so that every token
# can compare itself with every other. Does it have to? A token could decide alone where to look. All sentences could
# even share one map. The paper calls every such way to make scores a *synthesizer*, and asks how far one gets without
# the comparison. This question is what the series is about.
#
# ## Three sentences to keep
#
# 1. Dot-product attention compares every query with every key, $Q K^\top / \sqrt{d_\text{head}}$; through the
#    softmax every weight depends on all tokens.
# 2. It knows words, not positions: results follow their tokens, and the order must be added.
# 3. It costs $2d^2$ parameters, $2\,l\,d^2$ multiply-adds for the projections and $l^2 d$ for the comparison, and
#    nothing with $d^3$.
#
# **Next:** [chapter 02, Dense](02_dense.ipynb). Each token writes its row of scores alone, and looks at no other
# token.
