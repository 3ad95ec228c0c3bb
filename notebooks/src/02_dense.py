# %% [markdown]
# # 02 · Dense: every token writes its own row of weights
#
# **You build attention that compares nothing: each token alone decides where it looks. You show, by running it,
# what this can do and what it cannot, and at the end you train it and see both.**
#
# - **Before you start:** [chapter 00](00_start_here.ipynb) and [chapter 01](01_dot_product.ipynb), whose words (head,
#   module, gradient, mask) and steps are used here without a new explanation.
# - **Time:** about 100 minutes, 64 of them for the five exercises; the stretch exercise takes 18 more.
# - **Level:** medium.
# - **What transfers:** layers that mix positions by learned weights instead of comparing tokens exist beside attention
#   (MLP-Mixer does it in images). And the tools of this chapter, changing one token or taking a Jacobian, tell of any
#   model what it reads.
#
# Outputs are stored below the cells. Where the text says *predict*, hide them first: *Clear Outputs of All Cells*
# (JupyterLab) or *Clear all outputs* (Colab) in the menu *Edit*.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %% fold=true
# @title Imports, and the helpers of chapter 01: draw, embed, print_rows, agree
import torch
from einops import einsum, rearrange
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from synth_lib import plots
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.scores import Dense, DotProduct
from synth_lib.shapes import Axes

generator = torch.Generator().manual_seed(1700)  # chosen so that the maps below are easy to read


def draw(*shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


def embed(words):
    return torch.stack([embedding[word] for word in words])


def print_rows(words, rows, decimals=2):
    for word, row in zip(words, rows.tolist(), strict=True):
        print(f"{word:>6}", *(f"{number:5.{decimals}f}" for number in row))


def agree(one, other):
    """Stops the notebook unless both have the same shape, dtype and values."""
    assert one.shape == other.shape and one.dtype == other.dtype
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## The question
#
# With the dot product each entry of the map comes from comparing two tokens. The question of this chapter: **can a
# token choose its row without looking at any other token?**
#
# Such a token cannot say "I look at the noun". It can only say "I look mostly at position 1, and a little at
# position 5", whoever stands there. It names *positions*, not words. Six words are enough to see what follows from
# that. Their embeddings are drawn, in steps of 0.1.

# %%
words = "the dog saw a small bird".split()
embedding = {word: draw(12, high=2) for word in [*words, "cat"]}
axes = Axes(length=6, d_model=12)
x = axes(embed(words), "length d_model", "x")

# %% [markdown]
# ## The equations
#
# Row $i$ of the scores $B$ is a function $F$ of token $i$ alone:
#
# $$B_i = F(X_i) \tag{1}$$
#
# $F$ has two *layers*. A layer is a product with a matrix, plus a row of numbers, its *bias*. Between the two
# stands a *relu*, which sets negative numbers to 0:
#
# $$F(X_i) = W_2 \,\mathrm{relu}(W_1 X_i + b_1) + b_2 \tag{2}$$
#
# Unlike the dot product of 01, Dense does not divide its scores by $\sqrt{d_\text{head}}$.
#
# A softmax turns each row of scores into weights that sum to 1, and the weights average the values $G(X)$:
#
# $$Y = \mathrm{softmax}(B)\, G(X) \tag{3}$$
#
# | paper | here | shape, in axis names | size here | what it is |
# |---|---|---|---|---|
# | $X$ | `x` | length d_model | 6 × 12 | the tokens, one in each row |
# | $W_1$, $b_1$ | `W1`, `b1` | d_model d_head, d_head | 12 × 12, 12 | first layer of $F$, $d \to d$ |
# | $W_2$, $b_2$ | `W2`, `b2` | d_head key, key | 12 × 6, 6 | second layer of $F$, $d \to l$ |
# | $B$ | `scores` | query key | 6 × 6 | how much token $i$ wants position $j$ |
# | $\mathrm{softmax}(B)$ | `weights` | query key | 6 × 6 | the attention map |
# | $G(X)$ | `value` | key d_model | 6 × 12 | what each token gives |
# | $Y$ | `y` | query d_model | 6 × 12 | the result, one row for each token |
#
# The hidden numbers between the layers form the axis `d_head`. With one head there are as many of them as
# `d_model`; this changes in the section on heads.
#
# > **Rows and columns.** The paper writes a token as a column, so its matrix stands on the left: $W_1 X_i$.
# > In code tokens are rows, and the matrix stands on the right: `x @ W1`, first axis in, second axis out.
#
# > **Biases.** Version 3 prints none. We compute with two, and count without
# > them where the paper's Table 1 does. In the library `bias=False` leaves them out.

# %%
plots.show(
    plots.flow("Dense", "its own token"),
    "the flow of the layer. X goes into S, in which each row reads its own token, and into G, the "
    "values. The scores go through mask and softmax and become weights; the weights mix the "
    "values; the result is Y.",
)

# %%
W1, b1 = draw(12, 12, high=0.5), draw(12, high=0.5)
W2, b2 = draw(12, 6, high=0.5), draw(6, high=0.5)
W1 = axes(W1, "d_model d_head", "W1")
b1 = axes(b1, "d_head", "b1")
W2 = axes(W2, "d_head key", "W2")
b2 = axes(b2, "key", "b2")

# %% [markdown]
# ## The ladder
#
# You know its rungs from 01. The loops come first; the rung with matrix products is yours, before you see the others.
#
# ### Loops say the equation aloud
#
# Read the code from the outside in. Where does a token other than `x_i` come in? Nowhere.

# %%
def scores_with_loops(x, W1, b1, W2, b2):
    scores = torch.zeros(len(x), len(b2))
    for i, x_i in enumerate(x):  # equation (1): one token, one row
        hidden = b1.clone()
        for h in range(len(b1)):  # equation (2), inner part: W1 x_i + b1, then relu
            for m in range(len(x_i)):
                hidden[h] += x_i[m] * W1[m, h]
        for j in range(len(b2)):  # equation (2), outer part: one score for each position j
            scores[i, j] = b2[j]
            for h in range(len(b1)):
                scores[i, j] += hidden[h].relu() * W2[h, j]
    return scores


scores = axes(scores_with_loops(x, W1, b1, W2, b2), "query key", "scores")
print_rows(words, scores)

# %% [markdown]
# Row "the" belongs to token 0. Its six numbers say how much "the" wants position 0, position 1, and so on.
#
# ### Exercise 02.1: scores from the parameters of two nn.Linear
#
# *8 minutes, easy.* The next rung, for a batch of sentences, and for matrices as `nn.Linear` stores them, with the
# output axis first. Try it without a loop and without `nn.Linear`. The check takes another number of keys than of
# tokens.

# %% exercise="02.1" points=1
def linear_scores(x, W1, b1, W2, b2):
    """Equation (2) for every token of every sentence.

    x: batch length d_model. W1: d_head d_model, b1: d_head. W2: key d_head, b2: key; output axis
    first.
    d_head is as large as d_model. Returns the scores, batch query key.
    """
    ### BEGIN SOLUTION
    hidden = torch.relu(x @ W1.T + b1)
    return hidden @ W2.T + b2
    ### END SOLUTION

# %% check="02.1"
check("02.1", linear_scores)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write the shapes of both factors beside each other. In `A @ B` the last axis of `A` and the first axis of
# `B` must be the axis you sum over. Axes in front of these two, here the batch, stay as they are.
#
# </details>
# <details><summary>Hint 2: it runs, but the check says the values are wrong</summary>
#
# One of the two matrices is square. It runs either way round. Which of its axes goes in?
#
# </details>

# %% [markdown] solution="02.1"
# Each token is a row, so a product with a matrix on the right treats all rows of all sentences alike, and a bias is
# added to every row. The stored matrices have the output axis first, so both are transposed. With names nothing has
# to be transposed: the order of the names says it.

# %% solution="02.1"
def linear_scores_by_names(x, W1, b1, W2, b2):
    hidden = einsum(x, W1, "batch query d_model, d_head d_model -> batch query d_head") + b1
    return einsum(hidden.relu(), W2, "batch query d_head, key d_head -> batch query key") + b2


check("02.1", linear_scores_by_names)

# %% [markdown]
# ### Named axes, and a module

# %%
def dense_scores(x, W1, b1, W2, b2):
    hidden = einsum(x, W1, "query d_model, d_model d_head -> query d_head") + b1
    return einsum(hidden.relu(), W2, "query d_head, d_head key -> query key") + b2


module = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 6))  # one after the other
_ = module.load_state_dict({"0.weight": W1.T, "0.bias": b1, "2.weight": W2.T, "2.bias": b2})

# %% fold=true
# @title The loops, the named axes and the module give the same scores, and the same gradients
agree(dense_scores(x, W1, b1, W2, b2), scores)
agree(module(x), scores)
factors = draw(6, 6, high=2)
(module(x) * factors).sum().backward()
of_module = [module[0].weight.grad.T, module[0].bias.grad, module[2].weight.grad.T,
             module[2].bias.grad]
for function in (scores_with_loops, dense_scores):
    parameters = [parameter.clone().requires_grad_() for parameter in (W1, b1, W2, b2)]
    ours = torch.autograd.grad((function(x, *parameters) * factors).sum(), parameters)
    for pair in zip(ours, of_module, strict=True):
        agree(*pair)

# %% [markdown]
# `nn.Linear` stores its matrix with the output axis first, hence `.T`. For `W2` torch refuses the wrong way round: 12
# × 6 is not 6 × 12. `W1` is square: it slips in, and only the numbers tell.

# %% [markdown]
# ## What the relu is for
#
# Without the relu the two layers are one: $W_2 (W_1 X_i) = (W_2 W_1) X_i$, a matrix and a bias, called *affine*. Then
# scores rise and fall evenly. Take two tokens that look most at the same position. Halfway between them every score is
# halfway, too, so the token in the middle looks at that position as well. No exceptions: the tokens that look at a
# position form one block without a dent. The bend of the relu allows dents: "look at position 1 if the number is large
# *or* very negative". Of 2,000 random pairs of tokens, count those that agree, and their middles that do not:

# %%
def without_relu(x, W1, b1, W2, b2):
    return (x @ W1 + b1) @ W2 + b2


one, other = torch.randn(2, 2000, 12, generator=torch.Generator().manual_seed(0))
for name, F in {"without relu": without_relu, "with relu": dense_scores}.items():
    looks_at, looks_too, middle = (
        F(tokens, W1, b1, W2, b2).argmax(dim=1) for tokens in (one, other, (one + other) / 2)
    )
    agreeing = looks_at == looks_too
    elsewhere = int((middle != looks_at)[agreeing].sum())
    print(f"{name:12}: {int(agreeing.sum())} pairs look at the same position, {elsewhere} of their "
          "middles elsewhere")

# %% [markdown]
# Without the relu it is 0, and must be, for any parameters. With it some dents are there, although these parameters
# were drawn and nobody asked for dents. The stretch exercise at the end builds one on purpose.
#
# ## From scores to the result
#
# You know this from 01, "From scores to weights to the result": softmax along the keys, then the mixture of the values.

# %%
G = draw(12, 12, high=0.5)
weights = axes(scores.softmax(dim=-1), "query key", "weights")
value = axes(x @ G, "key d_model", "value")
y = axes(weights @ value, "query d_model", "y")
positions = list("012345")
plots.show(
    plots.attention_map(weights, words, keys=positions),
    "the attention map of Dense: a row for each of six words, a column for each position. "
    "The darkest position, "
    "row by row: " + " ".join(map(str, weights.argmax(dim=1).tolist())) + ".",
)

# %% [markdown]
# The columns are positions, not words: a token names places, and other tokens come in through the values alone.
#
# ## What moves when one token changes
#
# Replace "dog" by "cat". How many of the six rows of the map move, how many weights in its other rows, and how many
# rows of the result $Y$? Write it down, then run the two cells below.

# %%
my_guess = {"rows of the map": None, "weights in the other rows": None, "rows of Y": None}

# %% fold=true
# @title How much each weight changes, as a picture
other_words = "the cat saw a small bird".split()
other_x = axes(embed(other_words), "length d_model", "other_x")
other_weights = dense_scores(other_x, W1, b1, W2, b2).softmax(dim=-1)
change = axes((other_weights - weights).abs(), "query key", "change")
plots.show(
    plots.attention_map(change, ["the", "dog/cat", *words[2:]], keys=positions, label="change"),
    "how much each weight changes when dog becomes cat. Only the row of dog/cat has grey or black "
    "cells; every other row is white.",
)

# %% fold=true
# @title Your guess beside what came out
other_y = other_weights @ (other_x @ G)
rows = change.amax(dim=1) > 1e-6
compare_guess(my_guess, {
    "rows of the map": int(rows.sum()),
    "weights in the other rows": int((change[~rows] > 1e-6).sum()),
    "rows of Y": int(((other_y - y).abs().amax(dim=1) > 1e-6).sum()),
})

# %% [markdown]
# One row moves, that of the changed token. The five others give position 1 the same weight as before, whoever stands
# there. And $Y$? Position 1 now gives another value, and everybody takes some of it.
#
# ### Every dependence at once: the Jacobian
#
# One changed token is one example. The Jacobian of 01 holds the derivative of every score by every input number. If row
# $i$ reads token $i$ alone, the block (row $i$, token $n$) is zero for all $n \ne i$. First Dense, then the dot
# product of the library (it wants a batch and gives a head):

# %%
def print_blocks(score):
    """A line for each row i: 1 where the block of token n holds a derivative that is more than
    rounding."""
    jacobian = axes(torch.autograd.functional.jacobian(score, x),
                    "query key length d_model", "jacobian")
    for word, row in zip(words, jacobian, strict=True):
        print(f"{word:>6}", *[int(row[:, n].abs().max() > 1e-5) for n in range(6)])


torch.manual_seed(0)
dot_product = DotProduct(d_model=12, head=1, max_length=6)
print("Dense")
print_blocks(lambda x: dense_scores(x, W1, b1, W2, b2))
print("dot product")
print_blocks(lambda x: dot_product(x[None])[0, 0])

# %% [markdown]
# Table 1 of the paper says it in one word each: the dot product *interacts*, Dense does not.
#
# ### Exercise 02.2: the scores of another sentence
#
# *10 minutes, medium.* You get the scores of a sentence, and no parameters. What can you tell of a new sentence made
# of its words? Everything, if you know the kind of S. Positions are not added to the embeddings, as above.

# %% exercise="02.2" points=2
def scores_again(kind, scores, words, new_words):
    """The scores of a new sentence, from those of another one and the same layer.

    kind: "dense" or "dot product". scores: query key, of the sentence `words`, a list of words.
    new_words: a list of words that all occur in `words`, in any order, some perhaps twice; it is
    not longer.
    Returns the scores of the new sentence, query key, each axis as long as new_words.
    """
    ### BEGIN SOLUTION
    found = [words.index(word) for word in new_words]
    rows = scores[found]
    return rows[:, found] if kind == "dot product" else rows[:, : len(new_words)]
    ### END SOLUTION

# %% check="02.2"
check("02.2", scores_again)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# For one new token: which old row did the same word have? Then ask of one entry of that row: which position did it
# speak of, or which word?
#
# </details>
# <details><summary>Hint 2: it is right for one kind only</summary>
#
# The picture of "What moves" shows it for Dense. For the dot product the picture of that section in 01 does.
#
# </details>

# %% [markdown] solution="02.2"
# A row belongs to a word in both: no score reads where its query stands. A column of the dot product belongs to a word,
# so it moves along; a column of Dense belongs to a position, so column $j$ stays column $j$, and a shorter sentence
# uses the first ones. Dense without positions is a dictionary from words to rows.

# %% solution="02.2"
def scores_again_in_loops(kind, scores, words, new_words):
    size = len(new_words)
    again = torch.zeros(size, size)
    for i, word in enumerate(new_words):
        for j, other in enumerate(new_words):
            again[i, j] = scores[words.index(word), j if kind == "dense" else words.index(other)]
    return again


check("02.2", scores_again_in_loops)

# %% [markdown]
# ## Heads: several maps side by side
#
# As in 01, each head has `d_head` of the hidden numbers, 4 of 12, a map of its own, and its share of the values.
#
# > **How the heads share W1.** In the paper every head makes its own map, and Table 1 counts $d^2 + d\,l$
# > parameters. Both hold if one $W_1$, $d \to d$, makes all hidden numbers, the heads split them, and each
# > head has its own $W_2$, `d_head` → `length`. That is our reading, and what the library does.
#
# The same numbers as before, cut into three, and a bias for each head:

# %%
axes_heads = Axes(batch=2, head=3, length=6, d_model=12)  # d_head = 4
W2_heads = axes_heads(rearrange(W2, "(head d_head) key -> head d_head key", head=3),
                      "head d_head key", "W2_heads")
b2_heads = axes_heads(draw(3, 6, high=0.5), "head key", "b2_heads")
maps = []
for h in range(3):
    own = slice(4 * h, 4 * h + 4)  # the columns of W1 that head h owns, and so its hidden numbers
    maps.append(dense_scores(x, W1[:, own], b1[own], W2_heads[h], b2_heads[h]).softmax(dim=-1))
maps = axes_heads(torch.stack(maps), "head query key", "maps")
darkest = enumerate(maps.argmax(dim=-1).tolist())
plots.show(
    plots.attention_map(maps, words, keys=positions),
    "three attention maps side by side, one for each head. The darkest position, row by row: "
    + ", ".join(f"head {h}: {' '.join(map(str, row))}" for h, row in darkest) + ".",
)

# %% [markdown]
# ## max_length and shorter inputs
#
# The last axis of `W2` counts *positions*. A layer for sentences of up to 8 tokens needs 8 columns, `max_length` = 8.
# The dot product has no such number. A sentence starts at position 0, so our 6 words use the first 6 columns, and of
# the largest map, 8 × 8, the top-left block.
#
# ### Cut before the softmax
#
# The softmax divides a total of 1 among the columns it sees. Cut afterwards, and what went to positions 6 and 7
# is missing:

# %%
axes_max = Axes(length=8, d_model=12)  # the layer; `axes` is still for this sentence
W2_max = axes_max(draw(12, 8, high=0.5), "d_head key", "W2_max")
b2_max = axes_max(draw(8, high=0.5), "key", "b2_max")
full = dense_scores(x, W1, b1, W2_max, b2_max)
for name, cut in {"before": full[:, :6].softmax(dim=-1),
                  "after": full.softmax(dim=-1)[:, :6]}.items():
    print(f"cut {name:6}: the rows sum to", *(f"{total:.2f}" for total in cut.sum(dim=1).tolist()))

# %% [markdown]
# A longer sentence cannot be scored at all: position 8 has no column. The library says so:

# %%
try:
    Dense(d_model=12, head=3, max_length=8)(torch.randn(1, 9, 12))
except ValueError as error:
    print(error)

# %% [markdown]
# Masks act on scores before the softmax, and a row that may look nowhere is zeros. You know this from 01: jump to
# "Masks: where a token may not look".
#
# ### Exercise 02.3: the maps of a saved layer
#
# *18 minutes, medium.* Somebody has trained a layer and saved its parameters. Compute its maps, for sentences that may
# be shorter than it allows.

# %% exercise="02.3" points=2
def saved_maps(x, hidden_weight, hidden_bias, weight, bias):
    """The attention maps of a Dense layer of the library, from the parameters of its score.

    x: batch length d_model, with length <= max_length. hidden_weight: (head d_head) d_model, output
    axis first, as nn.Linear stores it. hidden_bias: (head d_head).
    weight: head d_head max_length, the W2 of each head, for x @ W2. bias: head max_length.
    Returns the weights, batch head query key; query and key have the size of length.
    """
    ### BEGIN SOLUTION
    length = x.shape[1]
    hidden = torch.relu(x @ hidden_weight.T + hidden_bias)
    hidden = rearrange(hidden, "batch query (head d_head) -> batch head query d_head",
                       head=len(weight))
    scores = einsum(hidden, weight[..., :length], "batch head query d_head, "
                                                  "head d_head key -> batch head query key")
    return (scores + bias[:, None, :length]).softmax(dim=-1)
    ### END SOLUTION

# %% check="02.3"
check("02.3", saved_maps)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# One matrix product gives the hidden numbers of all heads. Then split them. Ask `weight` how many heads there are.
#
# </details>
# <details><summary>Hint 2: a product for each head, and its bias</summary>
#
# Every head has its own matrix, so `head` stays on both inputs and on the result; only one name is summed away. `bias`
# is "head key", and the scores have `query` between the two: give it an axis of size 1 there.
#
# </details>
# <details><summary>Hint 3: the shape is right, the values are not</summary>
#
# Print the sums of the rows of your result. Below 1: something was divided among positions that do not exist. All 1:
# which of the axes of `hidden_weight` goes in? Which hidden numbers does a head own?
#
# </details>

# %% [markdown] solution="02.3"
# It is equation (2) with three things that a shape does not show: the square matrix lies the other way round, a head
# owns neighbouring hidden numbers, and the columns beyond the sentence go before the softmax. The second way lets the
# library's class do it, with the parameters put in by name; so you can check a file that you were given.

# %% solution="02.3"
def saved_maps_by_class(x, hidden_weight, hidden_bias, weight, bias):
    head, d_head, max_length = weight.shape
    score = Dense(head * d_head, head, max_length)
    names = "hidden.weight", "hidden.bias", "weight", "bias"
    score.load_state_dict(dict(zip(names, (hidden_weight, hidden_bias, weight, bias), strict=True)))
    return score(x).softmax(dim=-1).detach()


check("02.3", saved_maps_by_class)

# %% [markdown]
# ## What it costs
#
# ### Parameters
#
# $W_1$ has $d \cdot d$ numbers and $W_2$, all heads together, $d \cdot l$, with $l$ for `max_length`: Table 1 says
# $d^2 + d\,l$. The dot product has $2d^2$, so Dense is the smaller one as long as $l < d$. Counted:

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


for head, max_length in [(8, 32), (4, 32), (8, 64), (8, 128)]:
    dense, dot = (parameters(kind(64, head, max_length, bias=False))
                  for kind in (Dense, DotProduct))
    print(f"d 64, heads {head}, l {max_length:3}: Dense {dense:6,}, "
          f"formula {64**2 + 64 * max_length:6,}, dot {dot:6,}")

# %% [markdown]
# ### Multiply-adds
#
# By the rule of 01, multiply the three sizes: the first layer $l\,d^2$, the second, over all heads, $l^2 d$; only $l$
# columns, because `W2` is cut first.

# %%
def multiply_adds(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


batch, length, d_model = 2, 6, 12
for kind, projections in ((Dense, 1), (DotProduct, 2)):
    counted = multiply_adds(kind(d_model, head=3, max_length=8),
                            torch.randn(batch, length, d_model))
    formula = batch * (projections * length * d_model**2 + length**2 * d_model)
    print(f"{kind.__name__:>10}: counted {counted:6,}, formula {formula:6,}")

# %% [markdown]
# Dense saves one projection, $l\,d^2$, at every length. The part that grows with the square of the length,
# $l^2 d$, is the same in both: there is still a full map to fill.
#
# ### Exercise 02.4: the bill for the whole layer
#
# *13 minutes, medium.* You did the work of a layer in 01.4. Now the layer is Dense, the sentence may be shorter than
# the layer allows, and the parameters count as well, with all their biases.

# %% exercise="02.4" points=2
def layer_cost(batch, length, max_length, d_model, head):
    """What Attention(d_model, head, max_length, score="dense") costs.

    Returns two whole numbers, (parameters, multiply_adds):
    the parameters of the scores, of the value projection and of the output projection, biases
    included (b2 is head max_length); the multiply-adds of one forward pass over x: batch length
    d_model, biases, relu and softmax not counted.
    """
    ### BEGIN SOLUTION
    linear = d_model * d_model + d_model  # hidden layer, values, output: one each
    second = d_model * max_length + head * max_length
    products = 3 * length * d_model * d_model + 2 * length * length * d_model
    return 3 * linear + second, batch * products
    ### END SOLUTION

# %% check="02.4"
check("02.4", layer_cost)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Make a list of all matrices of the layer with their two sizes. There are four kinds. Then make a list of all
# products, with three sizes each.
#
# </details>
# <details><summary>Hint 2: check yourself before you ask the check</summary>
#
# Derive it first, then let the functions above count. With `layer = Attention(12, 3, 8, score="dense")` call
# `parameters(layer)` and `multiply_adds(layer, torch.randn(2, 6, 12))`.
#
# </details>

# %% [markdown] solution="02.4"
# Parameters know `max_length`, because they must serve the longest sentence; the work knows `length`, because the cut
# comes first. Three matrices are $d \to d$; the second layers of all heads together are one of $d \to l$, but each has
# its own bias.

# %% solution="02.4"
def layer_cost_listed(batch, length, max_length, d_model, head):
    d_head = d_model // head
    matrices = [(d_model, d_model)] * 3 + [(d_head, max_length)] * head
    products = [(length, d_model, d_model)] * 3 + [(length, d_head, length),
                                                   (length, length, d_head)] * head
    numbers = sum(rows * columns + columns for rows, columns in matrices)
    return numbers, batch * sum(r * s * t for r, s, t in products)


check("02.4", layer_cost_listed)

# %% [markdown]
# ## Where it breaks
#
# ### It cannot see who else is there
#
# Two sentences begin with the same word, and its twin stands at different positions. Raw dot products of the
# embeddings, no parameters at all, find it. The row of Dense is the same: it read the same token twice.

# %%
for sentence in ("bird the a bird dog saw".split(), "bird the a dog saw bird".split()):
    x_twins = embed(sentence)
    best_two = (x_twins @ x_twins[0]).topk(2).indices.sort().values.tolist()
    print("the best two positions for token 0:", best_two)
    print_rows(["Dense"], dense_scores(x_twins[:1], W1, b1, W2, b2))

# %% [markdown]
# So one layer of Dense cannot look at the twin, with any parameters. (A second layer reads tokens that have met others
# in the first; [chapter 08](08_what_each_score_can_do.ipynb) asks what that helps.)
#
# ### Exercise 02.5: who depends on whom
#
# *15 minutes, medium.* Write the tool that would have told you all this: for any score function, the table of
# which row depends on which token. You can differentiate, or change one token at a time and compare. The check has
# functions that do not notice some ways to change a token: scores may read differences, squares or directions alone.
# If you change numbers, change every one by about 1, as the docstring says: after a tiny change a real dependence looks
# like rounding.

# %% exercise="02.5" points=3
def depends_on(score, x):
    """Which row of the scores depends on which token?

    score: a smooth function, length d_model -> query key; its derivatives miss no dependence.
    x: length d_model. Returns a bool tensor, query length: entry [i, n] is True if some number in
    row i of score(x) changes when some number of token n changes. A derivative of less than
    0.00001, or a difference of less than that when numbers are changed by about 1, counts as
    rounding, not as dependence.
    """
    ### BEGIN SOLUTION
    before = score(x)
    answer = torch.zeros(len(x), len(x), dtype=torch.bool)
    for n in range(len(x)):
        changed = x.clone()
        changed[n] += torch.linspace(0.5, 1.5, x.shape[1])  # each number by another amount
        answer[:, n] = (score(changed) - before).abs().amax(dim=1) > 1e-5
    return answer
    ### END SOLUTION

# %% check="02.5"
check("02.5", depends_on)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Fill the answer column by column. For column n, make a copy of `x` in which token n alone is different, and
# score both. Change its numbers by *different* amounts, about 1 (`torch.linspace(0.5, 1.5, 4)` gives four of them):
# a score that looks at differences does not notice when all grow alike.
#
# </details>
# <details><summary>Hint 2: the check says that some entries are wrong</summary>
#
# Three questions. Do you change *all* numbers of token n? Do you look at *every* number of row i, and without
# letting plus and minus cancel? Is the row the first index of your answer?
#
# </details>
# <details><summary>Hint 3: with derivatives</summary>
#
# `torch.autograd.functional.jacobian(score, x)` is "query key length d_model". Take absolute values first,
# then the largest along the two axes that the answer does not have. Mind the limit in the docstring.
#
# </details>

# %% [markdown] solution="02.5"
# A change shows a dependence if it moves what the score reads. Adding the same to all numbers, turning signs, or
# doubling a token are each invisible to some score; `torch.linspace` adds a different amount to each number, which none
# of these misses. Derivatives ask about all directions at once, so they need no such luck.

# %% solution="02.5"
def depends_on_by_derivatives(score, x):
    jacobian = torch.autograd.functional.jacobian(score, x)
    return jacobian.abs().amax(dim=(1, 3)) > 1e-5


check("02.5", depends_on_by_derivatives)

# %% [markdown]
# ## A question that learners ask
#
# > `linear1 = Linear(d, l); linear2 = Linear(l, l); softmax(linear2(relu(linear1(x)))) @ v` with l = 4 and d
# > = 5: is this the Dense Synthesizer? The shapes fit. And how is it different from an MLP on two inputs?
#
# (An MLP, *multilayer perceptron*, is layers with a relu or its like between them.) Three answers.
#
# **1. The hidden layer has the wrong width.** The paper's first layer is $d \to d$, the second $d \to l$. Here they are
# $d \to l$ and $l \to l$. Counting finds it, without biases: $d\,l + l^2 = 36$ instead of $d^2 + d\,l = 45$.
#
# **2. It is an MLP, but of one token, and what it makes is weights.** The other tokens come in as the values that the
# weights add up. An MLP on two inputs would read both.
#
# **3. Name the axis of the softmax.** `softmax(...)` without `dim` is a guess. It must be the keys, `dim=-1`.
#
# One more thing puzzles those who run it: untrained, the rows of the result are nearly equal. Small scores leave every
# row near the plain mean of the values. And the rows leave it together, for two reasons: the biases are the same for
# all tokens, and the learner's tokens are alike, all numbers between 0 and 1. Of 200 layers, in how many do the rows
# lie closer to each other than to the mean?

# %%
torch.manual_seed(0)
v = torch.rand(4, 5)
for tokens, kind in ((torch.rand(4, 5), "numbers between 0 and 1"),
                     (torch.randn(4, 5), "numbers around 0")):
    for bias in (True, False):
        closer = 0
        for _ in range(200):
            F = nn.Sequential(nn.Linear(5, 5, bias=bias), nn.ReLU(), nn.Linear(5, 4, bias=bias))
            rows = F(tokens).softmax(dim=-1) @ v
            spread = (rows.amax(dim=0) - rows.amin(dim=0)).max()
            closer += int(spread < (rows - v.mean(dim=0)).abs().max())
        print(f"{kind:23}, {'with' if bias else 'without'} biases: {closer}")

# %% [markdown]
# With both causes it is the rule, with neither the exception: it tells of the start and of the tokens, not of Dense.

# %% [markdown]
# ## The same as the library's layer
#
# Our heads, biases, cut and values, and the output projection of 01, are the library's layer with `score="dense"`. The
# folded cell puts its parameters into the functions of this chapter and compares. The library *starts* with $W_2$ and
# $b_2$ as `nn.Linear` would, uniformly within $1/\sqrt{d_\text{head}}$; that is its choice.

# %% fold=true
# @title The library's layer gives the same maps, results and gradients
library = Attention(d_model=12, head=3, max_length=8, score="dense")
two_sentences = axes_heads(torch.stack([x, other_x]), "batch length d_model", "two_sentences")


def by_hand(x, layer):
    W, b, S = layer.score.hidden.weight.T, layer.score.hidden.bias, layer.score
    hidden = rearrange((x @ W + b).relu(),
                       "batch length (head d_head) -> batch head length d_head", head=3)
    value = rearrange(layer.value(x),
                      "batch length (head d_head) -> batch head length d_head", head=3)
    weights = (hidden @ S.weight[:, :, : x.shape[1]]
               + S.bias[:, None, : x.shape[1]]).softmax(dim=-1)
    mixed = rearrange(weights @ value, "batch head query d_head -> batch query (head d_head)")
    return layer.output(mixed), weights


gradients = []
for layer in (library, lambda x: by_hand(x, library)):
    our_y, our_weights = layer(two_sentences)
    axes_heads(our_weights, "batch head query key", "our_weights")
    gradients.append([our_y, our_weights,
                      *torch.autograd.grad(our_y.square().sum(), list(library.parameters()))])
for one, other in zip(*gradients, strict=True):
    agree(one, other)

# %% [markdown]
# ## Trained: what Dense does, and what it cannot
#
# Two tasks, two S, each with one layer and a linear layer that reads one token of its result.
#
# - **Who saw.** "the ... saw a small ...": read "saw", name the noun in front. This is the task at the end of 01, but
#   here *no positions are added* to the embeddings.
# - **The twin.** Three nouns: "dog dog bird" or "dog bird dog". Read token 0: is its twin at position 1 or at 2? Here
#   positions are added, for both.
#
# Which of the four gets *every* sentence right? Predict, then train; it takes some seconds.

# %%
my_guess = {"who saw, dense": None, "who saw, dot_product": None, "twin, dense": None,
            "twin, dot_product": None}

# %% fold=true
# @title The two tasks, the model, and its training
nouns = range(4, 10)  # six nouns; 0 to 3 are the, saw, a, small
pairs = [(one, other) for one in nouns for other in nouns if one != other]
who = torch.tensor([[0, one, 1, 2, 3, other] for one, other in pairs])
twin = torch.tensor([[one, one, other] for one, other in pairs]
                    + [[one, other, one] for one, other in pairs])
at_2 = (twin[:, 0] == twin[:, 2]).long()
tasks = {"who saw": (who, who[:, 1] - 4, 2, False), "twin": (twin, at_2, 0, True)}


class Reader(nn.Module):
    def __init__(self, score, length, at, with_positions, answers):
        super().__init__()
        self.at, self.tokens, self.name = at, nn.Embedding(10, 12), nn.Linear(12, answers)
        start = 0.1 * torch.randn(length, 12) if with_positions else torch.zeros(length, 12)
        self.positions = nn.Parameter(start, requires_grad=with_positions)
        self.attention = Attention(12, 1, length, score=score)

    def forward(self, tokens):
        y, weights = self.attention(self.tokens(tokens) + self.positions)
        return self.name(y[:, self.at]), weights[:, 0, self.at]


def train(task, score):
    tokens, wanted, at, with_positions = tasks[task]
    torch.manual_seed(1)
    model = Reader(score, tokens.shape[1], at, with_positions, answers=int(wanted.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        loss = nn.functional.cross_entropy(model(tokens)[0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model

# %%
models = {name: train(*name.split(", ")) for name in my_guess}
outcome = {}
for name, model in models.items():
    tokens, wanted, *_ = tasks[name.split(", ")[0]]
    outcome[name] = bool((model(tokens)[0].argmax(dim=1) == wanted).all())
compare_guess(my_guess, outcome)

# %%
# Output varies: the last digits of trained weights are those of the machine.
asked = torch.tensor([[4, 4, 5], [4, 5, 4]])
rows = [models[f"twin, {score}"](asked)[1] for score in ("dense", "dot_product")]
plots.show(
    plots.attention_map(torch.stack(rows), ["dog,dog,bird", "dog,bird,dog"], keys=list("012"),
                        titles=["Dense", "dot"]),
    "where token 0, dog, looks in two sentences: its twin at position 1, and at position 2. Left, "
    "Dense: both rows are the same. Right, dot product: the row changes with the place of the "
    "twin.",
)

# %% [markdown]
# Where the dot product is dark at *the other noun*, it looks away from the twin. A head may learn either: to the twin,
# or away from it. Both tell where the twin is, since only two places are left.

# %% [markdown]
# **Dense knows places without being told.** "Look at position 1" is in its parameters; the dot product, without added
# positions, gives "saw" the same result in both orders, and one of the two is wrong. **It cannot compare.** In the twin
# task the row of Dense is the same, wherever the twin stands; that of the dot product turns with it. More training
# cannot help Dense: only the values that it mixes differ, and one linear layer can make use of them for some nouns,
# never for all.
#
# ### Stretch 02.6: a rule with two sides
#
# *18 minutes, hard.* Open-ended: many answers are right. Tokens have two numbers, sentences two positions. Write
# parameters of equation (2) by hand, for a rule that no affine $F$ can follow: a token whose *first* number lies near 0
# looks most at position 0; one whose first number is far from 0, on *either* side, looks most at position 1. The second
# number must not matter.
#
# Why the series asks it: the hidden layer is $d^2$ of the $d^2 + d\,l$ parameters of Dense. This is the smallest thing
# that it is needed for, and later chapters take parts of it away.

# %% exercise="02.6" points=1
def two_sided(limit):
    """Parameters of one head of Dense, with d_model = 2, two hidden numbers and two positions.

    limit: a float from 0.5 to 5. A token looks most at position 0 if its first number lies between
    -limit and limit, else at position 1. Numbers from -20 to 20 are tried, but no first number
    within 0.01 of a limit.
    Returns W1, b1, W2, b2, float32: d_model d_head, d_head, d_head key and key, for relu(x @ W1 +
    b1) @ W2 + b2.
    """
    ### BEGIN SOLUTION
    W1 = torch.tensor([[1.0, -1.0], [0.0, 0.0]])
    b1 = torch.tensor([-limit, -limit])
    W2 = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    b2 = torch.tensor([0.001, 0.0])
    return W1, b1, W2, b2
    ### END SOLUTION

# %% check="02.6"
check("02.6", two_sided)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Draw the two scores over the first number. One of them may stay flat. What must the other look like? Which pieces can
# one relu give you, and which two?
#
# </details>
# <details><summary>Hint 2: one side is right, the other is not</summary>
#
# A relu bends once: it is 0 on one side and rises on the other. Let one hidden number watch each side.
#
# </details>

# %% [markdown] solution="02.6"
# Each hidden number is 0 until the token is beyond its side, and rises from there. Position 1 gets their sum,
# position 0 a small constant that wins while both are 0. The second way bends at 0: relu of $t$ and relu of $-t$ add up
# to the size of $t$, which is compared with the limit.

# %% solution="02.6"
def two_sided_by_size(limit):
    W1 = torch.tensor([[1.0, -1.0], [0.0, 0.0]])
    W2 = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    return W1, torch.zeros(2), W2, torch.tensor([float(limit), 0.0])


check("02.6", two_sided_by_size)

# %% [markdown]
# ## Three sentences to keep
#
# 1. In Dense each token writes its own row of scores, $F(X_i) = W_2\,\mathrm{relu}(W_1 X_i + b_1) + b_2$;
#    other tokens come in through the values alone.
# 2. It names positions, not words: it knows the order, it is tied to `max_length`, and one layer of it cannot compare.
# 3. Shapes do not prove it: a transposed square matrix, a softmax along the queries, a `reshape` of the heads
#    and a late cut all fit; numbers, row sums, Jacobians and counts tell.
#
# **Where it is going next.** Dense still reads one token. What if the scores read *nothing*, and one learned table
# serves every sentence? That is Random, [chapter 03](03_random.ipynb).
