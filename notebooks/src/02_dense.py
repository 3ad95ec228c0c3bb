# %% [markdown]
# # 02 · Dense: every token writes its own row of weights
#
# **You build attention that compares nothing: each token alone decides where it looks. Then you show, by
# running it, what this can do and what it cannot.**
#
# - **Before you start:** [chapter 00](00_start_here.ipynb). [Chapter 01](01_dot_product.ipynb) builds the usual
#   attention at length; if you come without it, words such as module and gradient get a sentence here too.
# - **Time:** about 90 minutes, 60 of them for the five exercises.
# - **Level:** medium.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %%
import torch
from einops import einsum, rearrange, repeat
from torch import nn

from synth_lib import masks, plots
from synth_lib.attention import Attention
from synth_lib.checks import check
from synth_lib.scores import Dense, DotProduct
from synth_lib.shapes import Axes

_ = torch.manual_seed(0)

# %% [markdown]
# ## The question
#
# An attention layer replaces every token by a weighted average of all tokens, or rather of their *values*,
# which you meet below. The weights stand in a table, the *attention map*: row *i* belongs to the token that
# attends (the *query*), column *j* to the token that is attended to (the *key*).
#
# In the usual attention, the *dot product* of [chapter 01](01_dot_product.ipynb), each entry comes from
# comparing two tokens. Every token is multiplied by two learned matrices, $d \to d$; such a product is called
# a *projection*. The results are $Q$ and $K$. The score of the pair (*i*, *j*) is the dot product of row *i*
# of $Q$ and row *j* of $K$, so all scores together are $Q K^T$.
#
# The question of this chapter: **can a token choose its row without looking at any other token?**
#
# Such a token cannot say "I look at the noun". It can only say "I look mostly at position 1, and a little at
# position 5", whoever stands there. It names *positions*, not words. Six words are enough to see what follows from
# that.

# %%
# Six different words: the tokens. Their positions are 0 to 5.
words = "the dog saw a small bird".split()
print(list(enumerate(words)))

# %% [markdown]
# A network sees each word as a row of numbers, its *embedding*. Ours are drawn at random, in steps of 0.1, so
# that you can read them. *Training* changes the numbers of a network, step by step, until it predicts well.
# Nothing in this chapter is trained.

# %%
generator = torch.Generator().manual_seed(1700)  # chosen so that the maps below are easy to read


def draw(*shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


def print_rows(words, rows, decimals=2):
    """One line for each word."""
    for word, row in zip(words, rows.tolist(), strict=True):
        print(f"{word:>6}", *(f"{number:5.{decimals}f}" for number in row))


# One row of 12 numbers for each word of a small vocabulary.
embedding = {word: draw(12, high=2) for word in [*words, "cat"]}

# %% [markdown]
# Each call of `draw` takes the next numbers of one generator. If you run a cell with `draw` in it twice, it gets
# other numbers than those you see here. Then run all cells again, from the one above on.

# %%
def embed(words):
    """The sentence as a table: a row for each word."""
    return torch.stack([embedding[word] for word in words])


x = embed(words)
print_rows(words, x, decimals=1)

# %% [markdown]
# One line now says what this table is, and stops the notebook if it is something else. `length` counts the
# tokens, `d_model` the numbers of one token.

# %%
axes = Axes(length=6, d_model=12)
x = axes(x, "length d_model", "x")

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
# The paper's $d$ is `d_model`, its $l$ is `length`. `query` and `key` are the same six tokens in two roles.
# The hidden numbers between the layers form the axis `d_head`. With one head there are as many of them as
# `d_model`; this changes in the section on heads.
#
# > **Rows and columns.** The paper writes a token as a column, so its matrix stands on the left: $W_1 X_i$.
# > In code tokens are rows, and the matrix stands on the right: `x @ W1`, first axis in, second axis out.
#
# > **Parameters and weights.** What training finds, here $W_1$, $b_1$, $W_2$, $b_2$ and $G$, we call
# > *parameters*, and only the numbers of the attention map *weights*. (torch calls the matrix of a layer `weight`.)
#
# > **Biases.** Version 1 prints $b_1$ and $b_2$, version 3 does not. We compute with them, and count without
# > them where the paper's Table 1 does. In the library `bias=False` leaves them out.

# %%
W1, b1 = draw(12, 12, high=0.5), draw(12, high=0.5)
W2, b2 = draw(12, 6, high=0.5), draw(6, high=0.5)

# The table above, as four checks. The first one also fixes d_head: 12.
W1 = axes(W1, "d_model d_head", "W1")
b1 = axes(b1, "d_head", "b1")
W2 = axes(W2, "d_head key", "W2")
b2 = axes(b2, "key", "b2")
print(axes)

# %% [markdown]
# `W1` is square, because the paper says $d \to d$. No shape check can see whether a square matrix is
# transposed. Only numbers can, so we compare numbers at every step.
#
# ## The ladder: one equation, written four times
#
# First with loops, slow and plain. Then shorter and faster, always on the same tensors, and always checked
# against the step before.
#
# ### Loops say the equation aloud
#
# Read the code from the outside in. Where does a token other than `x_i` come in? Nowhere.

# %%
def scores_with_loops(x, W1, b1, W2, b2):
    rows = []
    for x_i in x:  # equation (1): one token, one row
        hidden = []
        for m in range(len(b1)):  # equation (2), inner part: W1 x_i + b1, then relu
            total = b1[m]
            for d in range(len(x_i)):
                total = total + x_i[d] * W1[d, m]
            hidden.append(total.relu())
        row = []
        for j in range(len(b2)):  # equation (2), outer part: one score for each position j
            total = b2[j]
            for m in range(len(hidden)):
                total = total + hidden[m] * W2[m, j]
            row.append(total)
        rows.append(torch.stack(row))
    return torch.stack(rows)

# %% [markdown]
# Predict the shape of the result, before you look below the cell.

# %%
scores = scores_with_loops(x, W1, b1, W2, b2)
scores = axes(scores, "query key", "scores")
print_rows(words, scores)

# %% [markdown]
# Row "the" belongs to token 0. Its six numbers say how much "the" wants position 0, position 1, and so on to position
# 5.
#
# ### A matrix product does all tokens at once
#
# The two inner loops are a sum over a shared axis, which is a matrix product. The loop over tokens goes away
# too: the rows of `x @ W1` do not mix.

# %%
def scores_with_matmul(x, W1, b1, W2, b2):
    return (x @ W1 + b1).relu() @ W2 + b2


def equal(a, b):
    """Same shape, same dtype, same values. (torch.allclose alone would stretch a smaller tensor to fit.)"""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


print("same values:", equal(scores_with_matmul(x, W1, b1, W2, b2), scores))

# %% [markdown]
# ### Named axes say which sum it is
#
# `einsum` sums over every name that is missing on the right of the arrow. Here the names say what `@` leaves
# to your memory.

# %%
def scores_with_einsum(x, W1, b1, W2, b2):
    hidden = einsum(x, W1, "query d_model, d_model d_head -> query d_head") + b1
    return einsum(hidden.relu(), W2, "query d_head, d_head key -> query key") + b2


print("same values:", equal(scores_with_einsum(x, W1, b1, W2, b2), scores))

# %% [markdown]
# ### A module holds its parameters
#
# A *module* is an object that holds parameters. Calling it, `module(x)`, runs its `forward`. You write one as a
# class made from `nn.Module`, and `super().__init__()` comes first. `load_state_dict` puts our numbers in.
#
# `nn.Linear` is a module for one layer, matrix and bias together. **It stores its matrix with the output axis
# first**, and multiplies by the transpose. So our `W1` goes in as `W1.T`.

# %%
class OneHead(nn.Module):
    def __init__(self, d_model, length):
        super().__init__()
        self.first = nn.Linear(d_model, d_model)
        self.second = nn.Linear(d_model, length)

    def forward(self, x):
        return self.second(self.first(x).relu())


module = OneHead(d_model=12, length=6)
module.load_state_dict({"first.weight": W1.T, "first.bias": b1, "second.weight": W2.T, "second.bias": b2})
print("same values:", equal(module(x), scores))

# %% [markdown]
# What if you forget one `.T`? For `W2` torch refuses: 12 × 6 is not 6 × 12. For the square `W1` it says
# nothing:

# %%
wrong = OneHead(d_model=12, length=6)
wrong.load_state_dict({"first.weight": W1, "first.bias": b1, "second.weight": W2.T, "second.bias": b2})
print("same shape: ", wrong(x).shape == scores.shape)
print("same values:", equal(wrong(x), scores))

# %% [markdown]
# ### The gradients agree too
#
# A *gradient* says, for each parameter, how fast a result grows when that parameter grows. Training follows it
# downhill on an error, so equal values are not enough. We multiply the scores by fixed numbers, add up, and
# compare the gradients of that sum: of our functions by `torch.autograd.grad`, of the module by `backward`, which
# leaves them in `.grad`. You may skip this cell on a first reading.

# %%
factors = draw(6, 6, high=2)


def gradients(function):
    parameters = [parameter.clone().requires_grad_() for parameter in (W1, b1, W2, b2)]
    return torch.autograd.grad((function(x, *parameters) * factors).sum(), parameters)


module.zero_grad()  # `backward` adds to what is there: nothing may be left from a run before
(module(x) * factors).sum().backward()
first, second = module.first, module.second
of_module = [first.weight.grad.T, first.bias.grad, second.weight.grad.T, second.bias.grad]
for function in (scores_with_loops, scores_with_matmul, scores_with_einsum):
    pairs = zip(gradients(function), of_module, strict=True)
    print(f"{function.__name__:>18}:", [equal(ours, theirs) for ours, theirs in pairs])

# %% [markdown]
# ### Exercise 02.1: scores from the parameters of two nn.Linear
#
# *10 minutes, easy.* You get `W1` and `W2` as `nn.Linear` stores them: output axis first. Write the scores of
# one sentence. Any way that is right counts; try it without a loop and without `nn.Linear`. The check takes
# another number of keys than of tokens.

# %% exercise="02.1" points=1
def linear_scores(x, W1, b1, W2, b2):
    """Equation (2) for every token of one sentence.

    x: length d_model. W1: d_head d_model, b1: d_head. W2: key d_head, b2: key.
    Returns the scores, query key. In loops, with m for d_head and d for d_model:

        hidden[i][m] = relu(b1[m] + sum over d of W1[m][d] * x[i][d])
        scores[i][j] = b2[j] + sum over m of W2[j][m] * hidden[i][m]
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
# `B` must be the axis you sum over.
#
# </details>
# <details><summary>Hint 2: it runs, but the check says the values are wrong</summary>
#
# One of the two matrices is square. It runs either way round. Compare the index order in the docstring,
# `W1[m][d]`, with that of the loops in this chapter, `W1[d, m]`.
#
# </details>
# <details><summary>Hint 3: I am stuck</summary>
#
# `einsum` needs no transposing at all. Name the axes of each input in the order of the docstring, and name
# the result you want.
#
# </details>

# %% [markdown]
# ## What the relu is for
#
# Without the relu the two layers are one: $W_2 (W_1 X_i) = (W_2 W_1) X_i$, and $F$ is *affine*, a matrix and
# a bias. There is a test for that. An affine $F$ satisfies $F(p + q) - F(p) - F(q) + F(0) = 0$ for all $p$
# and $q$.

# %%
def without_relu(x, W1, b1, W2, b2):
    return (x @ W1 + b1) @ W2 + b2


p, q, zero = x[0], x[1], torch.zeros(12)
for F in (without_relu, scores_with_matmul):
    f_sum, f_p, f_q, f_zero = (F(token, W1, b1, W2, b2) for token in (p + q, p, q, zero))
    left = (f_sum - f_p - f_q + f_zero).abs().max()
    print(f"{F.__name__:>18}: nothing is left: {bool(left < 1e-4)}")

# %% [markdown]
# An implementation that leaves out the hidden layer or the relu runs, and has the right shapes. This test finds
# it: something left proves that $F$ is not affine; nothing left, for several pairs, makes you suspect that it is.
#
# ## From scores to weights: the softmax
#
# The softmax makes every score positive, $e^{B_{ij}}$, then divides by the sum of these over all $j$ of the row.
# So each row becomes weights that sum to 1, and the largest score gets the largest weight. It must run along the
# *keys*, the last axis: one token divides its attention among the positions.

# %%
weights = scores.softmax(dim=-1)
weights = axes(weights, "query key", "weights")
print_rows(words, weights)
print("every row sums to 1:   ", equal(weights.sum(dim=1), torch.ones(6)))
print("every column sums to 1:", equal(weights.sum(dim=0), torch.ones(6)))

# %% [markdown]
# The table is square, so a softmax along the wrong axis has the right shape. Only the sums tell:

# %%
sideways = scores.softmax(dim=0)
print("every row sums to 1:   ", equal(sideways.sum(dim=1), torch.ones(6)))
print("every column sums to 1:", equal(sideways.sum(dim=0), torch.ones(6)))

# %% [markdown]
# ## From weights to the result: the values
#
# What is averaged is not `x` itself but $G(X)$, one more layer, here without a bias: the *values*. The product in
# equation (3) is a sum over positions. Here it is once in loops, once as a matrix product.

# %%
G = draw(12, 12, high=0.5)
value = axes(x @ G, "key d_model", "value")

y_with_loops = torch.zeros(6, 12)
for i in range(6):
    for j in range(6):
        y_with_loops[i] += weights[i, j] * value[j]

y = axes(weights @ value, "query d_model", "y")
print("same values:", equal(y, y_with_loops))

# %% [markdown]
# This is the whole layer for one head. Other tokens come in here, and only here: through the values.
#
# ## What moves when one token changes
#
# Here is the map as a picture. Dark is a large weight. Rows attend, columns are attended to.

# %%
darkest = zip(words, weights.argmax(dim=1).tolist(), strict=True)
plots.show(
    plots.attention_map(weights, words),
    "the attention map of Dense, a row and a column for each of six words. The darkest cell of each row: "
    + ", ".join(f"{word} at position {j}" for word, j in darkest)
    + ".",
)

# %% [markdown]
# Now replace "dog" by "cat". Predict: which rows of the map move, which columns?

# %%
other_words = "the cat saw a small bird".split()
other_x = axes(embed(other_words), "length d_model", "other_x")
other_weights = scores_with_matmul(other_x, W1, b1, W2, b2).softmax(dim=-1)

change = axes((other_weights - weights).abs(), "query key", "change")
plots.show(
    plots.attention_map(change, ["the", "dog/cat", *words[2:]], label="change"),
    "how much each weight changes when dog becomes cat. Only the row of dog/cat has grey or black cells; "
    "every other row is white.",
)
print("rows that move:", [words[i] for i in range(6) if change[i].max() > 1e-6])

# %% [markdown]
# One row moves, the row of the changed token. Its *column* stays: the five others give position 1 the same
# weight as before, whoever stands there.
#
# And the result `y`? Every row of it moves, because position 1 now gives another value:

# %%
other_y = other_weights @ (other_x @ G)
print("rows of y that move:", [words[i] for i in range(6) if (other_y - y)[i].abs().max() > 1e-6])

# %% [markdown]
# ### Every dependence at once: the Jacobian
#
# One changed token is one example. Equation (1) says it for all: $F$ is given token $i$ and nothing else. But
# does the *program* do what the equation says? The *Jacobian* holds the derivative of every score by every
# input number. If row $i$ reads token $i$ alone, the block (row $i$, token $n$) is zero for all $n \ne i$.
#
# Predict its shape: one derivative for each score (query, key) and each input number (length, d_model).

# %%
jacobian = torch.autograd.functional.jacobian(lambda x: scores_with_matmul(x, W1, b1, W2, b2), x)
jacobian = axes(jacobian, "query key length d_model", "jacobian")


def print_blocks(jacobian):
    """A line for each row i: 1 where the block of token n holds a derivative that is more than rounding."""
    for word, row in zip(words, jacobian, strict=True):
        print(f"{word:>6}", *[int(row[:, n].abs().max() > 1e-5) for n in range(6)])


print_blocks(jacobian)

# %% [markdown]
# Only the diagonal. For comparison the same table for the dot product, borrowed from the library (it wants a
# batch and gives a head, here one of each):

# %%
dot_product = DotProduct(d_model=12, head=1, max_length=6)
print_blocks(torch.autograd.functional.jacobian(lambda x: dot_product(x[None])[0, 0], x))

# %% [markdown]
# Every row reads every token. That is what "compares" means, and what Dense gives up. Table 1 of the paper
# says it in one word each: the dot product *interacts*, Dense does not.
#
# ## Heads: several maps side by side
#
# One map is one way to look. A *head* is one of several, each with its own map and a share of the features:
# `d_model = head * d_head`. With 3 heads each has 4 of the 12 hidden numbers.
#
# Each head averages its own 4 columns of the values with its own map, and the results are put side by side
# again.
#
# > **How the heads share W1.** In the paper every head makes its own map, and Table 1 counts $d^2 + d\,l$
# > parameters. Both hold if one $W_1$, $d \to d$, makes all hidden numbers, the heads split them, and each
# > head has its own $W_2$, `d_head` → `length`. That is our reading, and what the library does.
#
# The same numbers as before, cut into three, and a bias for each head. In a pattern of einops, parentheses stand
# for one axis that is made of two: on the left of the arrow `(head d_head)` are the 12 rows of `W2`, on the right
# `head` and `d_head` are axes of their own, the rows 0 to 3 in head 0, 4 to 7 in head 1, 8 to 11 in head 2.

# %%
axes_heads = Axes(batch=2, head=3, length=6, d_model=12)  # d_head = 4
W2_heads = rearrange(W2, "(head d_head) key -> head d_head key", head=3)
W2_heads = axes_heads(W2_heads, "head d_head key", "W2_heads")
b2_heads = axes_heads(draw(3, 6, high=0.5), "head key", "b2_heads")

# Head h owns the columns 4h to 4h + 3 of W1, and so the hidden numbers 4h to 4h + 3.
maps = []
for h in range(3):
    own = slice(4 * h, 4 * h + 4)
    maps.append(scores_with_matmul(x, W1[:, own], b1[own], W2_heads[h], b2_heads[h]))
head_scores_of_x = axes_heads(torch.stack(maps), "head query key", "head_scores_of_x")

# %% [markdown]
# Cutting a sum into three does not change the sum. So the scores of the heads, biases aside, add up to the
# scores of the one big head. `b2_heads[:, None]` puts an axis of size 1 between "head" and "key", so that every
# query gets the same bias:

# %%
print("same values:", equal((head_scores_of_x - b2_heads[:, None]).sum(dim=0), scores - b2))

# %%
head_weights = axes_heads(head_scores_of_x.softmax(dim=-1), "head query key", "head_weights")
darkest = enumerate(head_weights.argmax(dim=-1).tolist())
plots.show(
    plots.attention_map(head_weights, words),
    "three attention maps side by side, one for each head. The position with the darkest cell, row by row: "
    + ", ".join(f"head {h}: {' '.join(map(str, positions))}" for h, positions in darkest)
    + ".",
)

# %% [markdown]
# ### Splitting: rearrange, not reshape
#
# With a batch of sentences the hidden numbers are "batch length (head d_head)": the 12 numbers of a token lie
# side by side, 4 for each head. Heads must become an axis *before* length.

# %%
two_sentences = axes_heads(torch.stack([x, other_x]), "batch length d_model", "two_sentences")
hidden = axes_heads((two_sentences @ W1 + b1).relu(), "batch length (head d_head)", "hidden")
split = rearrange(hidden, "batch length (head d_head) -> batch head length d_head", head=3)
split = axes_heads(split, "batch head length d_head", "split")

# %% [markdown]
# `reshape` gives the same shape and something else. To see what, put the *position* of each token in all of its
# 12 numbers, and watch where the positions go:

# %%
position = repeat(torch.arange(6), "length -> batch length d_model", batch=2, d_model=12)
right = rearrange(position, "batch length (head d_head) -> batch head length d_head", head=3)
wrong = position.reshape(2, 3, 6, 4)
right, wrong = axes_heads(right, "batch head length d_head"), axes_heads(wrong, "batch head length d_head")
for h in range(3):
    by_rearrange, by_reshape = right[0, h, :, 0].tolist(), wrong[0, h, :, 0].tolist()
    print(f"head {h} gets the tokens {by_rearrange} by rearrange, {by_reshape} by reshape")

# %% [markdown]
# After `reshape`, row 1 of head 2 belongs to token 4, not to token 1. Some rows are fed by *later* tokens,
# and no mask can take that back.
#
# ### Exercise 02.2: all heads at once
#
# *15 minutes, medium.* Write the scores of all heads for a batch. The loop above is your specification; can
# you do it without a loop over heads?

# %% exercise="02.2" points=2
def head_scores(x, W1, b1, W2, b2):
    """The scores of every head for every sentence.

    x: batch length d_model. W1: d_model (head d_head), b1: (head d_head). W2: head d_head key, b2: head key.
    Returns the scores, batch head query key. For sentence b and head h:

        own = slice(h * d_head, (h + 1) * d_head)
        scores[b, h] = relu(x[b] @ W1[:, own] + b1[own]) @ W2[h] + b2[h]
    """
    ### BEGIN SOLUTION
    features = torch.relu(x @ W1 + b1)
    features = rearrange(features, "batch query (head d_head) -> batch head query d_head", head=len(W2))
    products = einsum(features, W2, "batch head query d_head, head d_head key -> batch head query key")
    return products + b2[:, None]
    ### END SOLUTION

# %% check="02.2"
check("02.2", head_scores)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# One matrix product gives the hidden numbers of all heads. Then split them. Ask `W2` how many heads there
# are.
#
# </details>
# <details><summary>Hint 2: the product with W2</summary>
#
# Every head has its own matrix, so `head` stays on both inputs and on the result. Only one name is summed
# away. Write the three parts of an `einsum` pattern from the shapes in the docstring.
#
# </details>
# <details><summary>Hint 3: adding b2 fails</summary>
#
# `b2` is "head key", and the scores have `query` between the two. Give `b2` an axis of size 1 there, as
# `b2_heads` got one above.
#
# </details>

# %% [markdown]
# ## max_length and shorter inputs
#
# Look at the shape of `W2` again: its last axis counts *positions*. A layer for sentences of up to 8 tokens
# needs 8 columns, `max_length` = 8. This number is a size of its parameters. The dot product has no such number.
#
# What about our 6 words, then? Positions 6 and 7 do not exist in this sentence, so only the first 6 columns of
# `W2` are used: a sentence starts at position 0. Of the largest map, 8 × 8, our six words use the top-left block
# of 6 × 6.

# %%
axes_max = Axes(length=8, d_model=12)  # the layer; `axes` is still for this sentence
W2_max = axes_max(draw(12, 8, high=0.5), "d_head key", "W2_max")
b2_max = axes_max(draw(8, high=0.5), "key", "b2_max")

short = scores_with_matmul(x, W1, b1, W2_max[:, :6], b2_max[:6])
short = axes(short, "query key", "short")
full = scores_with_matmul(x, W1, b1, W2_max, b2_max)
print("cutting W2 is cutting the scores:", equal(full[:, :6], short))

# %% [markdown]
# ### Cut before the softmax
#
# The softmax divides a total of 1 among the columns it sees. Cut afterwards, and what went to positions 6 and 7
# is missing:

# %%
cut_before = axes(full[:, :6].softmax(dim=-1), "query key", "cut_before")
cut_after = axes(full.softmax(dim=-1)[:, :6], "query key", "cut_after")
print("sums of the rows, cut before:", [f"{total:.2f}" for total in cut_before.sum(dim=1).tolist()])
print("sums of the rows, cut after: ", [f"{total:.2f}" for total in cut_after.sum(dim=1).tolist()])

# %% [markdown]
# A longer sentence cannot be scored at all: position 8 has no column. The library says so:

# %%
score = Dense(d_model=12, head=3, max_length=8)
try:
    score(torch.randn(1, 9, 12))
except ValueError as error:
    print(error)

# %% [markdown]
# ### Exercise 02.3: the map of a short sentence
#
# *10 minutes, medium.* One head, no biases, a batch of sentences that are shorter than the layer allows.
# Return the attention map.

# %% exercise="02.3" points=2
def short_map(x, W1, W2):
    """The attention map of sentences with length < max_length.

    x: batch length d_model. W1: d_model d_head. W2: d_head max_length.
    Returns the weights, batch query key, where query and key have the size of length. Every row sums to 1.
    """
    ### BEGIN SOLUTION
    length = x.shape[1]
    return torch.softmax(torch.relu(x @ W1) @ W2[:, :length], dim=-1)
    ### END SOLUTION

# %% check="02.3"
check("02.3", short_map)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Which of the axes of `x` tells how many columns of `W2` this sentence needs? There are two places where you
# can cut; both come before the softmax.
#
# </details>
# <details><summary>Hint 2: the shape is right, the values are not</summary>
#
# Print the sums of the rows of your result. Below 1: something was divided among positions that do not exist.
# All different, some above 1: look at the axis of your softmax.
#
# </details>

# %% [markdown]
# ## Masks: where a token may not look
#
# A language model predicts the next word, so no token may look at later positions: a *causal* mask. Sentences of
# different lengths share a batch by *padding*: filler tokens are added until all have the same length. No token
# may look at those either. A mask is a table of True (may be attended) and False. It acts on the scores, before
# the softmax, for the same reason as the cut: forbidden positions must get no share. A score of minus infinity gets
# the weight 0. The masks of the library have the axes batch and head too; `[0, 0]` takes them off.

# %%
allowed = axes(masks.causal(6)[0, 0], "query key", "allowed")
causal_weights = scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1)
causal_weights = axes(causal_weights, "query key", "causal_weights")
print_rows(words, causal_weights)

# %% [markdown]
# One case needs care: a token that may look nowhere. This happens with padding on the left: the first token
# of a padded sentence may look only at itself, and it is padding. A row of minus infinities gives NaN, "not a
# number", which then spreads. The library returns a row of zeros instead:

# %%
real = masks.padding([4], length=6, side="left")[0, 0]  # 2 positions of padding, then 4 words
allowed = axes(allowed & real, "query key", "allowed")
naive = scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1)
safe = masks.masked_softmax(scores, allowed)
print("rows with NaN: ", naive.isnan().any(dim=1).tolist())
print("rows all zero: ", (safe == 0).all(dim=1).tolist())

# %% [markdown]
# ## What it costs
#
# ### Parameters
#
# $W_1$ has $d \cdot d$ numbers and $W_2$ has $d \cdot l$, with $l$ for `max_length`. Table 1 of the paper
# says $d^2 + d\,l$. Do not believe it, count:

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


for d_model, head, max_length in [(12, 3, 8), (64, 8, 10), (512, 8, 256)]:
    counted = parameters(Dense(d_model, head, max_length, bias=False))
    formula = d_model**2 + d_model * max_length
    print(f"d {d_model:3}, l {max_length:3}: counted {counted:7,}, formula {formula:7,}")

# %% [markdown]
# Does the number of heads matter? Each head has a smaller $W_2$, and there are more of them:

# %%
print({head: parameters(Dense(12, head, 8, bias=False)) for head in (1, 2, 3, 4, 6, 12)})

# %% [markdown]
# The dot product has the two projections to $Q$ and $K$, $2d^2$ parameters, whatever the length. So Dense is the
# smaller one as long as $l < d$:

# %%
for max_length in (32, 64, 128):
    dense = parameters(Dense(64, 8, max_length, bias=False))
    dot = parameters(DotProduct(64, 8, max_length, bias=False))
    print(f"d 64, l {max_length:3}: Dense {dense:6,}, dot product {dot:6,}, Dense smaller: {dense < dot}")

# %% [markdown]
# ### Multiply-adds
#
# A product of an $r \times s$ and an $s \times t$ matrix takes $r\,s\,t$ *multiply-adds*: one multiplication
# and one addition for each pair of numbers that meet. For the scores of one sentence of length $l$:
#
# - the first layer, $l \times d$ times $d \times d$: $l\,d^2$;
# - the second layer, in each head $l \times d_\text{head}$ times $d_\text{head} \times l$, and over all
#   heads: $l^2 d$. Only $l$ columns, because `W2` is cut first.
#
# For the dot product: the projections to $Q$ and $K$, $2\,l\,d^2$, and their product $Q K^T$, $l^2 d$. Biases,
# relu and softmax are not in this count. torch has a counter of its own. It counts a multiplication and an
# addition as two:

# %%
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


batch, length, d_model = 2, 6, 12
formulas = {
    Dense: batch * (length * d_model**2 + length**2 * d_model),
    DotProduct: batch * (2 * length * d_model**2 + length**2 * d_model),
}
for kind, formula in formulas.items():
    counted = multiply_adds(kind(d_model, head=3, max_length=8), torch.randn(batch, length, d_model))
    print(f"{kind.__name__:>10}: counted {counted:6,}, formula {formula:6,}")

# %% [markdown]
# Dense saves one projection, $l\,d^2$, at every length. The part that grows with the square of the length,
# $l^2 d$, is the same in both: there is still a full map to fill. You may read that the dot product costs
# $O(d^3)$. It does not: no product here has three factors $d$.
#
# ### Exercise 02.4: the bill for the whole layer
#
# *10 minutes, medium.* The layer has more than the scores: the values $G(X)$, the average of equation (3),
# and an output projection $d \to d$ that mixes the heads. Count all of it.

# %% exercise="02.4" points=2
def layer_cost(batch, length, max_length, d_model, head):
    """What Attention(d_model, head, max_length, score="dense") costs.

    Returns two whole numbers, (parameters, multiply_adds):
    the parameters of the scores, of the value projection and of the output projection, biases included
    (b2 is head max_length); the multiply-adds of one forward pass over x: batch length d_model, biases,
    relu and softmax not counted.
    """
    ### BEGIN SOLUTION
    linear = d_model**2 + d_model
    second = (d_model + head) * max_length
    sentence = 3 * length * d_model**2 + 2 * length**2 * d_model
    return 3 * linear + second, batch * sentence
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
# <details><summary>Hint 2: the average</summary>
#
# In each head the map, query × key, meets the values, key × `d_head`. Multiply the three sizes, then add up
# the heads.
#
# </details>
# <details><summary>Hint 3: check yourself before you ask the check</summary>
#
# Derive it first, then let the functions above count. With `layer = Attention(12, 3, 8, score="dense")` call
# `parameters(layer)` and `multiply_adds(layer, torch.randn(2, 6, 12))`.
#
# </details>

# %% [markdown]
# ## Where it breaks
#
# ### It cannot see who else is there
#
# "saw" in two sentences that differ in one other word. The subject is another one; the row of "saw" is the
# same:

# %%
i = words.index("saw")
of_dense = [scores_with_matmul(sentence, W1, b1, W2, b2) for sentence in (x, other_x)]
of_dot_product = [dot_product(sentence[None])[0, 0] for sentence in (x, other_x)]
print("the row of 'saw' is the same with Dense:          ", equal(of_dense[0][i], of_dense[1][i]))
print("the row of 'saw' is the same with the dot product:", equal(of_dot_product[0][i], of_dot_product[1][i]))

# %% [markdown]
# So there are tasks that Dense cannot do, with any parameters. For instance "look at the other token that equals
# you". Two sentences begin with the same word, and its twin stands at different positions. Raw dot products of
# the embeddings, no parameters at all, find it:

# %%
sentences = ["bird the a bird dog saw".split(), "bird the a dog saw bird".split()]
for sentence in sentences:
    x_twins = embed(sentence)
    best_two = (x_twins @ x_twins[0]).topk(2).indices.sort().values
    print("the best two positions for token 0:", best_two.tolist())

# %%
first_rows = [scores_with_matmul(embed(sentence), W1, b1, W2, b2)[0] for sentence in sentences]
print("Dense: the rows of token 0 are the same:", equal(*first_rows))

# %% [markdown]
# The wanted rows differ, the rows of Dense do not: it read the same token twice. No training changes that.
#
# ### Order: rows move with the tokens, columns stay
#
# Shuffle the tokens. With the dot product the map is shuffled the same way, rows and columns, because the
# word is all that counts. With Dense the rows move with their tokens, and column 0 stays position 0. Positions are
# in the parameters:

# %%
order = torch.tensor([2, 0, 5, 1, 4, 3])
dense = Dense(d_model=12, head=1, max_length=6)
for score in (dense, dot_product):
    before, after = score(x[None])[0, 0], score(x[order][None])[0, 0]
    print(f"{type(score).__name__}: rows move: {equal(after, before[order])}")
    print(f"{type(score).__name__}: rows and columns move: {equal(after, before[order][:, order])}")

# %% [markdown]
# ### Exercise 02.5: who depends on whom
#
# *15 minutes, medium.* Write the tool that would have told you all this: for any score function, the table of
# which row depends on which token. You can differentiate, or change one token at a time and compare.

# %% exercise="02.5" points=3
def depends_on(score, x):
    """Which row of the scores depends on which token?

    score: a smooth function, length d_model -> query key; its derivatives miss no dependence.
    x: length d_model. Returns a bool tensor, query length: entry [i, n] is True if some number in row i of
    score(x) changes when some number of token n changes. A difference of less than 0.00001, or a derivative
    of less than that, counts as rounding, not as dependence.
    """
    ### BEGIN SOLUTION
    answer = torch.zeros(len(x), len(x), dtype=torch.bool)
    for n in range(len(x)):
        moved = x.clone()
        moved[n] += torch.linspace(0.5, 1.5, x.shape[1])
        answer[:, n] = (score(moved) - score(x)).abs().amax(dim=1) > 1e-5
    return answer
    ### END SOLUTION

# %% check="02.5"
check("02.5", depends_on)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Fill the answer column by column. For column n, make a copy of `x` in which token n alone is different, and
# score both. Change it by about 1.
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

# %% [markdown]
# ## A question that learners ask
#
# > `linear1 = Linear(d, l); linear2 = Linear(l, l); softmax(linear2(relu(linear1(x)))) @ v` with l = 4 and d
# > = 5: is this the Dense Synthesizer? The shapes fit. And how is it different from an MLP on two inputs?
#
# An MLP, *multilayer perceptron*, is what you know by now: layers with a relu or its like between them.
# `nn.Sequential` is a module that runs others one after the other.
#
# Run it before you answer. These are the learner's numbers:

# %%
x_asked = torch.tensor([
    [0.0844, 0.2683, 0.4299, 0.1827, 0.1188],
    [0.2793, 0.0389, 0.3834, 0.9897, 0.4197],
    [0.1420, 0.8051, 0.1601, 0.3299, 0.3340],
    [0.8908, 0.1066, 0.1140, 0.7145, 0.3619],
])
v = torch.tensor([
    [0.3806, 0.1775, 0.5457, 0.6746, 0.4505],
    [0.6309, 0.2790, 0.7215, 0.4283, 0.5853],
    [0.7548, 0.6887, 0.0426, 0.1057, 0.7895],
    [0.1881, 0.5334, 0.6834, 0.4845, 0.1960],
])
axes_asked = Axes(length=4, d_model=5)
x_asked, v = axes_asked(x_asked, "length d_model", "x_asked"), axes_asked(v, "length d_model", "v")

# %%
_ = torch.manual_seed(0)
as_asked = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4))
as_paper = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4))
for name, F in {"as asked": as_asked, "as in the paper": as_paper}.items():
    asked_weights = axes_asked(F(x_asked).softmax(dim=-1), "query key", "asked_weights")
    asked_y = axes_asked(asked_weights @ v, "query d_model", "asked_y")
    print(name)
    print_rows(["row 0", "row 1", "row 2", "row 3"], asked_y)

# %% [markdown]
# Both run, and both have the right shapes. Three answers:
#
# **1. The hidden layer has the wrong width.** The paper's first layer is $d \to d$, the second $d \to l$.
# Here they are $d \to l$ and $l \to l$. Counting finds it, without biases: $d\,l + l^2$ instead of
# $d^2 + d\,l$.

# %%
def matrices(module):
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)


print("as asked:       ", matrices(as_asked), "=", 5 * 4 + 4 * 4)
print("as in the paper:", matrices(as_paper), "=", 5 * 5 + 5 * 4)

# %% [markdown]
# **2. It is an MLP, but of one token, and what it makes is weights.** $F$ reads token $i$ and never another
# one. The other tokens come in as the values that the weights add up. An MLP on two inputs would read both.
#
# Change one token of the learner's four, and see which rows of scores move:

# %%
changed = x_asked.clone()
changed[3] += 1
for name, F in {"as asked": as_asked, "as in the paper": as_paper}.items():
    moved = (F(changed) - F(x_asked)).abs().amax(dim=1) > 1e-6
    print(f"{name}: rows that move {moved.nonzero().flatten().tolist()}")

# %% [markdown]
# **3. Name the axis of the softmax.** `softmax(...)` without `dim` is a guess. It must be the keys, `dim=-1`.
#
# One thing is left: why are the rows of the result nearly equal? An untrained layer has small parameters, so its
# scores are small, and every row lies not far from the plain mean of `v`. What *differs* between the tokens is
# smaller still, because the biases are the same for all of them. So the rows are closer to each other than to
# the mean:

# %%
print_rows(["mean"], v.mean(dim=0, keepdim=True))
for factor in (0.01, 1, 20):
    asked_weights = axes_asked((factor * as_paper(x_asked)).softmax(dim=-1), "query key", "asked_weights")
    asked_y = axes_asked(asked_weights @ v, "query d_model", "asked_y")
    from_mean = (asked_y - v.mean(dim=0)).abs().max()
    from_each_other = (asked_y.amax(dim=0) - asked_y.amin(dim=0)).max()
    print(f"scores times {factor:5}: from the mean {from_mean:.2f}, from each other {from_each_other:.2f}")

# %% [markdown]
# The numbers are the largest distances. Larger scores move the rows apart. The layer is not broken, it is untrained.
#
# ## The same as the library's layer
#
# Everything in one class: heads, biases, shorter inputs, values, and the output projection that mixes the
# heads. Equation (3) ends before that projection; transformers have it, and it stays when the scores are
# synthesized. `nn.Parameter` makes a tensor a parameter of its module.

# %%
class DenseAttention(nn.Module):
    def __init__(self, d_model, head, max_length):
        super().__init__()
        self.head = head
        self.first = nn.Linear(d_model, d_model)
        self.W2 = nn.Parameter(torch.randn(head, d_model // head, max_length))
        self.b2 = nn.Parameter(torch.randn(head, max_length))
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def split(self, features):
        return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=self.head)

    def forward(self, x):
        length = x.shape[1]
        hidden, value = self.split(self.first(x).relu()), self.split(self.value(x))
        scores = hidden @ self.W2[:, :, :length] + self.b2[:, None, :length]  # (2)
        weights = scores.softmax(dim=-1)
        mixed = rearrange(weights @ value, "batch head query d_head -> batch query (head d_head)")  # (3)
        return self.output(mixed), weights

# %% [markdown]
# Predict the two shapes that come back. Then run it.

# %%
ours = DenseAttention(d_model=12, head=3, max_length=8)
our_y, our_weights = ours(axes_heads(two_sentences, "batch length d_model", "two_sentences"))
our_y = axes_heads(our_y, "batch length d_model", "our_y")
our_weights = axes_heads(our_weights, "batch head query key", "our_weights")

# %% [markdown]
# Now the library's layer with the same parameters. Its class `Attention` knows nothing about Dense: the scores
# are a part that it holds, `score`. Exchanging that part is how the next chapters work.

# %%
library = Attention(d_model=12, head=3, max_length=8, score="dense")
names = {  # ours -> the library's
    "first.weight": "score.hidden.weight", "first.bias": "score.hidden.bias",
    "W2": "score.weight", "b2": "score.bias",
    "value.weight": "value.weight", "value.bias": "value.bias",
    "output.weight": "output.weight", "output.bias": "output.bias",
}
library.load_state_dict({names[name]: parameter for name, parameter in ours.state_dict().items()})
library_y, library_weights = library(two_sentences)
print("same weights:", equal(library_weights, our_weights))
print("same outputs:", equal(library_y, our_y))

# %%
y_factors = draw(2, 6, 12, high=2)
for layer in (ours, library):
    layer.zero_grad()
    (layer(two_sentences)[0] * y_factors).sum().backward()
of_library = dict(library.named_parameters())
for name, parameter in ours.named_parameters():
    print(f"same gradient of {name:>13}:", equal(parameter.grad, of_library[names[name]].grad))

# %% [markdown]
# What you built is the library's layer. One difference is left, the *start*: the library draws $W_2$ and
# $b_2$ as `nn.Linear` would, uniformly within $1/\sqrt{d_\text{head}}$; we drew larger numbers so that a
# mistake would show. That start is the library's choice.
#
# ## Three sentences to keep
#
# 1. In Dense each token writes its own row of scores, $F(X_i) = W_2\,\mathrm{relu}(W_1 X_i + b_1) + b_2$;
#    other tokens come in through the values alone.
# 2. It names positions, not words: it knows the order, it is tied to `max_length`, and it cannot compare.
# 3. Shapes do not prove it: a transposed square matrix, a softmax along the queries, a `reshape` of the heads
#    and a late cut all fit; numbers, row sums, Jacobians and counts tell.
#
# **Where it is going next.** Dense still reads one token. What if the scores read *nothing*, and one learned table
# serves every sentence? That is Random, [chapter 03](03_random.ipynb).
