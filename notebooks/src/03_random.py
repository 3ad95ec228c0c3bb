# %% [markdown]
# # 03 · Random: one map for every sentence
#
# **You build attention that looks at no word at all. You find out what "random" means, and why its table of
# scores needs a learning rate of its own.**
#
# - **Before you start:** [chapter 00](00_start_here.ipynb) and [chapter 02](02_dense.ipynb), which explain
#   scores, the attention map, modules and gradients.
# - **Time:** about 90 minutes, 42 of them for the four exercises.
# - **Level:** medium.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %%
import math

import matplotlib.pyplot as plt
import torch
from einops import einsum, rearrange
from torch import nn

from synth_lib import plots
from synth_lib.attention import Attention
from synth_lib.checks import check
from synth_lib.scores import Dense, DotProduct, Random
from synth_lib.shapes import Axes
from synth_lib.lab.curves import loss_curves
from synth_lib.lab.starts import decaying_scores, shifted_scores, uniform_scores
from synth_lib.lab.train import parameter_groups

# %% [markdown]
# ## The question
#
# In Dense each token writes its own row of scores. It looks at no other token, but still at itself. **Can a
# row be written without looking at any token?**
#
# Then there is one row for position 0, one for position 1, and so on, the same for every sentence. A row can say
# "look at the position before mine", or "look at position 0", whatever words stand there. All rows together are one
# table of numbers, and training finds the numbers.
#
# The six words of chapter 02 again, with embeddings in steps of 0.1. Each call of `draw` has a seed of its
# own, so a cell gives the same numbers however often you run it.

# %%
def draw(seed, *shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


def print_rows(words, rows, decimals=2):
    """One line for each word."""
    for word, row in zip(words, rows.tolist(), strict=True):
        print(f"{word:>6}", *(f"{number:5.{decimals}f}" for number in row))


def equal(a, b):
    """Same shape, same dtype, same values."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


words = "the dog saw a small bird".split()
embedding = dict(zip([*words, "cat"], draw(1, 7, 12, high=2), strict=True))
axes = Axes(length=6, d_model=12)
x = axes(torch.stack([embedding[word] for word in words]), "length d_model", "x")

# %% [markdown]
# ## The equation
#
# The scores are a matrix $R$. Where Dense has $F(X_i)$, there is no $X$:
#
# $$Y = \mathrm{softmax}(R)\, G(X) \tag{4}$$
#
# | paper | here | shape, in axis names | size here | what it is |
# |---|---|---|---|---|
# | $R$ | `R` | query key | 6 × 6 | the scores, the same for every sentence |
# | $\mathrm{softmax}(R)$ | `weights` | query key | 6 × 6 | the attention map |
# | $G(X)$ | `value` | key d_model | 6 × 12 | what each token gives |
# | $Y$ | `y` | query d_model | 6 × 12 | the result, one row for each token |
#
# $R$ starts as random numbers. There are two kinds:
#
# - **Random**: $R$ is a parameter, trained like any other.
# - **Fixed Random**: $R$ stays as it was drawn. Only the rest of the model is trained.
#
# > **One R for each head.** Equation (4) shows one matrix, and Table 1 counts $l^2$ parameters, with $l$ for
# > the length. With several heads every head has a matrix of its own, so the layer has $l^2$ parameters *a
# > head*.
#
# > **The start is not stated.** The paper does not say how large the random numbers are. You will see below
# > how much hangs on it.
#
# Nothing is trained yet. Our $R$ is drawn in tenths, large enough that you can see a map.

# %%
R = axes(draw(2, 6, 6, high=2), "query key", "R")
G = draw(3, 12, 12, high=0.5)
value = axes(x @ G, "key d_model", "value")
print_rows([f"row {i}" for i in range(6)], R, decimals=1)

# %% [markdown]
# ## The ladder
#
# The steps are those of chapter 02, and there are fewer, because there is no $F$.
#
# ### Loops say the equation aloud

# %%
def random_with_loops(R, value):
    rows = []
    for i in range(len(R)):
        exponentials = [R[i, j].exp() for j in range(len(R))]
        total = sum(exponentials)
        row = torch.zeros(value.shape[1])
        for j in range(len(R)):
            row = row + exponentials[j] / total * value[j]
        rows.append(row)
    return torch.stack(rows)


y = axes(random_with_loops(R, value), "query d_model", "y")

# %% [markdown]
# ### A softmax and a matrix product
#
# The softmax runs along the keys, the last axis: a row of weights sums to 1.

# %%
def random_with_matmul(R, value):
    return R.softmax(dim=-1) @ value


weights = axes(R.softmax(dim=-1), "query key", "weights")
print("every row sums to 1:", equal(weights.sum(dim=1), torch.ones(6)))
print("same values:        ", equal(random_with_matmul(R, value), y))

# %% [markdown]
# ### Heads, a batch, and named axes
#
# Two sentences, three heads: the values get the axes batch and head, as in chapter 02. Each head has its own
# $R$. Read the pattern of the `einsum`: **the map has no batch axis.** The same weights meet the values of
# every sentence.

# %%
axes_heads = Axes(batch=2, head=3, length=6, d_model=12)  # d_head = 4
other_words = "the cat saw a small bird".split()
other_x = axes(torch.stack([embedding[word] for word in other_words]), "length d_model", "other_x")
two_sentences = axes_heads(torch.stack([x, other_x]), "batch length d_model", "two_sentences")

R_heads = axes_heads(draw(4, 3, 6, 6, high=2), "head query key", "R_heads")
value_heads = rearrange(two_sentences @ G, "batch key (head d_head) -> batch head key d_head", head=3)
value_heads = axes_heads(value_heads, "batch head key d_head", "value_heads")


def random_with_einsum(R, value):
    pattern = "head query key, batch head key d_head -> batch head query d_head"
    return einsum(R.softmax(dim=-1), value, pattern)


y_heads = axes_heads(random_with_einsum(R_heads, value_heads), "batch head query d_head", "y_heads")
for b in range(2):
    by_loops = [random_with_loops(R_heads[h], value_heads[b, h]) for h in range(3)]
    same = [equal(y_heads[b, h], by_loops[h]) for h in range(3)]
    print(f"sentence {b}: same values as the loops, head by head: {same}")

# %% [markdown]
# ### A module holds R
#
# Wrapped in `nn.Parameter`, a tensor becomes a parameter of its module. The module is short, since $R$ *is*
# the scores. (`x` is asked for one thing, its length; you will see why.)

# %%
class OnlyR(nn.Module):
    def __init__(self, R):
        super().__init__()
        self.R = nn.Parameter(R.clone())

    def forward(self, x):
        length = x.shape[1]
        return self.R[:, :length, :length]


module = OnlyR(R_heads)
y_of_module = module(two_sentences).softmax(dim=-1) @ value_heads
print("same values:", equal(y_of_module, y_heads))

# %% [markdown]
# And the gradients, of a sum with fixed factors, as in chapter 02. The loops, the matrix product and the
# `einsum` must agree with the module:

# %%
factors = draw(5, 2, 3, 6, 4, high=2)
module = OnlyR(R_heads)
y_of_module = module(two_sentences).softmax(dim=-1) @ value_heads
(y_of_module * factors).sum().backward()


def loops_for_all(R, value):
    sentences = [[random_with_loops(R[h], value[b, h]) for h in range(3)] for b in range(2)]
    return torch.stack([torch.stack(heads) for heads in sentences])


for function in (loops_for_all, random_with_matmul, random_with_einsum):
    R_copy = R_heads.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((function(R_copy, value_heads) * factors).sum(), R_copy)
    print(f"{function.__name__:>18}: same gradient of R: {equal(gradient, module.R.grad)}")

# %% [markdown]
# ## One map for every sentence
#
# Here is the map of the single head. Dark is a large weight. The words stand at the axes to help you, the map
# does not know them.

# %%
darkest = zip(range(6), weights.argmax(dim=1).tolist(), strict=True)
plots.show(
    plots.attention_map(weights, words),
    "the attention map of Random, six rows and six columns. The darkest cell of each row: "
    + ", ".join(f"position {i} looks at position {j}" for i, j in darkest)
    + ".",
)

# %% [markdown]
# Now replace "dog" by "cat". Which rows of the map move, and which rows of the result?

# %%
score = OnlyR(R[None])
change = (score(other_x[None]).softmax(dim=-1) - score(x[None]).softmax(dim=-1))[0].abs()
y_change = (random_with_matmul(R, other_x @ G) - random_with_matmul(R, value)).abs()
print("rows of the map that move:", [i for i in range(6) if change[i].max() > 1e-6])
print("rows of y that move:      ", [i for i in range(6) if y_change[i].max() > 1e-6])

# %% [markdown]
# Nothing moves in the map. The result moves everywhere, because position 1 now gives another value. The sentence
# comes in through the values, and only there.
#
# That was one change. The *Jacobian* of chapter 02 holds the derivative of every score by every input number.
# For the library's `Random` all of it is 0:

# %%
library_random = Random(d_model=12, head=1, max_length=6)
jacobian = torch.autograd.functional.jacobian(lambda x: library_random(x[None])[0, 0], x)
jacobian = axes(jacobian, "query key length d_model", "jacobian")
print("derivatives that are not 0:", int((jacobian != 0).sum()), "of", jacobian.numel())

# %% [markdown]
# Table 1 of the paper says it in words: Random is *conditioned on* nothing, and it is *global*, one map for
# all samples.
#
# Shuffle the tokens. With the dot product, rows and columns of the map would move along; with Dense, rows
# would. Here the map stays still, and the values take other positions. So the result is *not* the old result
# shuffled: positions are all that Random knows.

# %%
order = torch.tensor([2, 0, 5, 1, 4, 3])
after = score(x[order][None]).softmax(dim=-1)[0]
y_after = after @ (x[order] @ G)
print("the map stays:              ", equal(after, weights))
print("the result is shuffled too: ", equal(y_after, y[order]))

# %% [markdown]
# ### R has no batch axis
#
# A wrong program that runs: $R$ gets an axis for the batch, because the dot product and Dense have one there.
# Every *row of the batch* then has its own map. Four equal sentences give four different results
# (`expand` repeats a tensor along a new axis, without copying it):

# %%
axes_four = Axes(batch=4, length=6, d_model=12)
# One sentence, four times.
four_values = axes_four(value.expand(4, 6, 12), "batch key d_model", "four_values")
wrong_R = axes_four(draw(6, 4, 6, 6, high=2), "batch query key", "wrong_R")
for name, table in {"R": R, "wrong R": wrong_R}.items():
    y_four = axes_four(random_with_matmul(table, four_values), "batch query d_model", name)
    print(f"{name:>7}: results equal to that of sentence 0:", [equal(y_four[b], y_four[0]) for b in range(4)])

# %% [markdown]
# What a sentence becomes must not depend on where it stands in a batch. And a batch of five would not even
# run.
#
# ### Shorter inputs
#
# $R$ has a row and a column for each position, up to the longest sentence, `max_length`. A shorter sentence uses
# the top-left block: rows *and* columns, since it has fewer queries and fewer keys. As with Dense you cut
# before the softmax. After it, part of each row is gone:

# %%
axes_longest = Axes(length=8, d_model=12)
R_longest = axes_longest(draw(7, 8, 8, high=2), "query key", "R_longest")
cut_before = axes(R_longest[:6, :6].softmax(dim=-1), "query key", "cut_before")
cut_after = axes(R_longest.softmax(dim=-1)[:6, :6], "query key", "cut_after")
print("sums of the rows, cut before:", [f"{total:.2f}" for total in cut_before.sum(dim=1).tolist()])
print("sums of the rows, cut after: ", [f"{total:.2f}" for total in cut_after.sum(dim=1).tolist()])

# %% [markdown]
# ### Exercise 03.1: the average, from R to the result
#
# *10 minutes, easy.* Equation (4) for a batch of sentences that may be shorter than $R$, all heads at once.
# The values are given.

# %% exercise="03.1" points=1
def random_attention(R, value):
    """Average the values with the map that R makes.

    R: the scores, head max_length max_length. value: batch head key d_head, where key is at most max_length.
    Returns y, batch head query d_head, with as many queries as keys. For sentence b, head h and position i, with
    length for the size of the axis key of value:

        weights = softmax of the numbers R[h, i, 0], ..., R[h, i, length - 1]
        y[b, h, i] = sum over j of weights[j] * value[b, h, j]
    """
    ### BEGIN SOLUTION
    length = value.shape[2]
    block = R[:, :length, :length]
    return einsum(
        block.softmax(dim=-1), value, "head query key, batch head key d_head -> batch head query d_head"
    )
    ### END SOLUTION

# %% check="03.1"
check("03.1", random_attention)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# `batch, head, length, d_head = value.shape` gives all sizes. Which part of `R` do these sentences use?
#
# </details>
# <details><summary>Hint 2: the shape is right, the values are not</summary>
#
# Make the weights first and print `weights.sum(dim=-1)`. Every row of every head must give 1. If they do,
# look at the names in your `einsum`, or at the order of the axes in your product.
#
# </details>
# <details><summary>Hint 3: my code stops with "Expected size" or "must match"</summary>
#
# Then the map and the values have different numbers of keys. Print both shapes. Is `R` cut along both of its
# last axes, and did you take the length from the axis key of `value`, not from head?
#
# </details>
# <details><summary>Hint 4: where does the batch come from?</summary>
#
# Only from the values. In an `einsum` leave `batch` out of the map. With `@`, torch repeats the map for every
# sentence by itself.
#
# </details>

# %% [markdown]
# ## The start of R
#
# "Random" alone says little. Numbers drawn from a *normal distribution* lie around 0 in the shape of a bell,
# and the *standard deviation* says how wide the bell is: about two thirds of the numbers are closer to 0 than
# that. In the library it is the argument `initial_scale` of `Random`.
#
# ### What random means at each scale
#
# The same 16 × 16 random numbers, multiplied by four scales. Predict which of the maps is closest to "look
# everywhere alike", and which to "look at one random position". (The axis name `head` here just stacks the maps.)

# %%
def start_map(scale, length):
    """The map of the library's Random at the start, one head."""
    _ = torch.manual_seed(0)  # the same random numbers for every scale
    score = Random(d_model=12, head=1, max_length=length, initial_scale=scale)
    return score.R.detach()[0].softmax(dim=-1)  # detach: the numbers alone, no gradients


scales = (0.1, 1.0, 3.0, 10.0)
start_maps = torch.stack([start_map(scale, 16) for scale in scales])
start_maps = Axes(head=4, length=16)(start_maps, "head query key", "start_maps")
positions = [str(position) if position % 5 == 0 else "" for position in range(16)]
plots.show(
    plots.attention_map(start_maps, positions, titles=[f"scale {scale:g}" for scale in scales]),
    "four maps of 16 positions, the same random numbers at the scales 0.1, 1, 3 and 10. The first is an "
    "even, very light grey, the second has some darker cells, the third a dark cell in most rows, the "
    "last a black one in most rows.",
)

# %% [markdown]
# To measure this we need a number. The *distance from uniform* of a row is the share of its weight that would
# have to move to make the row uniform, $\frac{1}{2} \sum_j |w_j - 1/l|$. It is 0 for a uniform row. A row
# that looks at a single position out of $l$ has $1 - 1/l$.

# %%
def distance_from_uniform(weights):
    """The mean over the rows."""
    return ((weights - 1 / weights.shape[-1]).abs().sum(dim=-1) / 2).mean().item()


size = 32
print(f"{size} positions; uniform weight {1 / size:.3f}")
for scale in (0.0, 0.005, 1 / math.sqrt(size), 1.0, 3.0, 10.0):
    start_weights = start_map(scale, size)
    largest = start_weights.amax(dim=-1).mean()  # of each row, then the mean
    distance = distance_from_uniform(start_weights)
    print(f"scale {scale:5.3g}: largest weight {largest:.3f}, distance {distance:.3f}")

# %% [markdown]
# The third line, $1/\sqrt{l}$, is the default of the library. All small scales start close to uniform: for
# them the distance is about 0.4 times the scale. From a scale of about 3 on, most rows look at few positions,
# drawn by lot.
#
# > **Our choice.** The library draws $R$ from a normal distribution with the standard deviation
# > $1/\sqrt{\text{max\_length}}$. The paper states none.
#
# ### Fixed Random is nearly an average
#
# A map close to uniform gives every token nearly the same: the plain average of all values. How nearly?
# Compare how far the results are from the average with how far the values themselves are. `norm` measures a
# table: the root of the sum of all its squared numbers.

# %%
axes_start = Axes(length=32, d_model=20)
values_of_32 = axes_start(draw(11, 32, 20, high=2), "key d_model", "values_of_32")
average = values_of_32.mean(dim=0)
for scale in (0.005, 1 / math.sqrt(size), 1.0, 3.0, 10.0):
    start_weights = axes_start(start_map(scale, size), "query key", "start_weights")
    y_start = axes_start(start_weights @ values_of_32, "query d_model", "y_start")
    share = (y_start - average).norm() / (values_of_32 - average).norm()
    print(f"scale {scale:5.3g}: the results are {share:.3f} times as far from the average as the values")

# %% [markdown]
# At the default scale less than 4 % of what tells the tokens apart is left. If $R$ is never trained, it stays
# so. So "Fixed Random" with a small start is hardly random: it is *fixed averaging*. In the paper it still
# translates, from English to German with a BLEU of 23.89, where trained Random has 27.27. (BLEU compares a
# translation with one by a person, and higher is better. One run each.)
#
# ### Xavier on three axes
#
# Many programs draw parameters with *Xavier* initialization, also called *Glorot*, after its author Xavier
# Glorot. The numbers are uniform between $-b$ and $b$, and for a matrix with `fan_in` numbers going in and
# `fan_out` coming out
#
# $$b = \sqrt{\frac{6}{\text{fan\_in} + \text{fan\_out}}}.$$
#
# For one $l \times l$ matrix both fans are $l$. But a program for several heads asks for a tensor of $h$
# heads, $h \times l \times l$, and torch then takes the axes for those of a convolution, a layer for images:
# out, in, and a *receptive field*, the patch of the image that one output sees. Both fans are multiplied by
# the size of that patch. Compute the bounds, and ask torch for its largest number. `torch.empty` makes a
# tensor without setting its numbers, and `nn.init.xavier_uniform_` draws them by the rule:

# %%
def xavier_bound(shape):
    """torch's rule: the axes are out, in, and all further ones are the receptive field."""
    field = math.prod(shape[2:])
    fan_in, fan_out = shape[1] * field, shape[0] * field
    return math.sqrt(6 / (fan_in + fan_out))


for shape in [(32, 32), (1, 32, 32), (8, 32, 32), (8, 512, 512)]:
    _ = torch.manual_seed(0)
    start = nn.init.xavier_uniform_(torch.empty(shape))
    bound, largest = xavier_bound(shape), start.abs().max().item()
    is_bound = 0.98 * bound < largest <= bound
    distance = distance_from_uniform(start.softmax(dim=-1))
    print(f"{shape!s}: bound {bound:.4f}, torch keeps it {is_bound}, distance from uniform {distance:.4f}")

# %% [markdown]
# The matrix alone gets 0.306. The same matrix as one head of a three-axis tensor gets 0.075, and with 8 heads
# less again. At length 512 the bound is about 0.005, which is also what code by the paper's authors uses.
# Nobody chose these numbers; a rule for another kind of layer did. If you want Xavier's rule for $R$, apply
# it head by head. (Its standard deviation is then $b/\sqrt{3} = 1/\sqrt{l}$, the default above.)
#
# ## Hand-made starts
#
# $R$ need not start from random numbers. You can write down a map that you think is useful, and train from
# there, or keep it. Wu et al. ([arXiv 2006.05174](https://arxiv.org/abs/2006.05174)) tried such patterns:
# uniform, the identity, shifts and decays. The map is easy to write. But what is stored is *scores*, so you
# have to find scores whose softmax is the map.
#
# ### How far apart the scores must be
#
# A softmax only knows differences: adding a number to all scores of a row changes no weight. So give all keys
# the score 0, and the wanted key the score $g$, the *gap*. Its weight is
#
# $$w = \frac{e^g}{e^g + (l - 1)} \quad\text{so}\quad g = \log \frac{w\,(l - 1)}{1 - w}.$$
#
# In words: $e^g$ is how many times the weight of *one* other key the wanted key must get. The logarithm is
# the natural one. The function says what would be needed, the softmax says whether it is true:

# %%
def gap(weight, length):
    return math.log(weight * (length - 1) / (1 - weight))


for length, weight in [(6, 0.9), (32, 0.5), (32, 0.9), (512, 0.9), (512, 0.999)]:
    row = torch.zeros(length)
    row[0] = gap(weight, length)
    is_right = abs(row.softmax(dim=0)[0].item() - weight) < 1e-5
    print(f"weight {weight:5} of {length:3} keys: a gap of {row[0]:4.1f}, softmax agrees: {is_right}")

# %% [markdown]
# A weight never gets to 1. For most purposes a gap of 5 to 10 is near enough. Keep these numbers in mind;
# they come back as the distance that training has to cover.
#
# ### Shifts and decays
#
# The library has three functions that return scores:
#
# - `uniform_scores(length)`: all 0;
# - `shifted_scores(length, offset, error)`: query $i$ gives key $i + \text{offset}$ the weight $1 -
#   \text{error}$. An offset of 0 is the identity. A row whose key would lie outside the sentence is uniform;
# - `decaying_scores(length, rate)`: weights fall with the distance, in proportion to $e^{-\text{rate}\,|i -
#   j|}$.

# %%
starts = {
    "uniform": uniform_scores(6),
    "identity": shifted_scores(6, 0, error=0.01),
    "shift by -1": shifted_scores(6, -1, error=0.01),
    "decay": decaying_scores(6, rate=0.7),
}
hand_made = Axes(head=4, length=6)(torch.stack(list(starts.values())), "head query key", "hand_made")
plots.show(
    plots.attention_map(hand_made.softmax(dim=-1), words, titles=list(starts)),
    "four hand-made maps of six words. uniform: one even grey. identity: a black diagonal. shift by -1: a "
    "black diagonal one column further left, and an even grey row for the first word, which has no word "
    "before it. decay: darkest on the diagonal, fading with the distance.",
)

# %%
shift = starts["shift by -1"].softmax(dim=-1)
print("row of 'saw':", [f"{weight:.3f}" for weight in shift[2].tolist()])
print("row of 'the':", [f"{weight:.3f}" for weight in shift[0].tolist()])
log_weights = -0.7 * (torch.arange(6.0)[:, None] - torch.arange(6.0)).abs()
by_formula = log_weights.exp() / log_weights.exp().sum(dim=1, keepdim=True)
print("decay fits its formula:", equal(starts["decay"].softmax(dim=-1), by_formula))

# %% [markdown]
# `Random` takes such scores as `start`:

# %%
started = Random(d_model=12, head=1, max_length=6, start=starts["shift by -1"])
print("the layer starts from the shift:", equal(started(x[None])[0, 0].softmax(dim=-1), shift))

# %% [markdown]
# ### Not through a softmax twice
#
# It is tempting to store the map itself, the identity for instance, with ones on the diagonal. But what is
# stored is scores. A score of 1 among zeros is a gap of 1, and the diagonal gets $e / (e + l - 1)$:

# %%
for length in (6, 32, 512):
    diagonal = torch.eye(length).softmax(dim=-1)[0, 0].item()
    formula = math.e / (math.e + length - 1)
    print(f"length {length:3}: {diagonal:.4f} on the diagonal, formula {formula:.4f}, wanted 1")

# %% [markdown]
# At length 512 the "identity" is uniform for all that matters, 0.005 where you wanted 1. It runs, has the
# right shape, and even its largest weights stand in the right columns. A softmax of weights is always this
# flat, since weights differ by 1 at most. So the library refuses a `start` whose rows are weights:

# %%
try:
    Random(d_model=12, head=1, max_length=6, start=torch.eye(6))
except ValueError as error:
    print(error)

# %% [markdown]
# ### Exercise 03.2: scores for a shift
#
# *12 minutes, medium.* Write the scores yourself. The check puts them through a softmax and looks at the map,
# for an offset, for its opposite, and for 0.

# %% exercise="03.2" points=2
def shift_scores(length, offset, error):
    """Scores whose softmax along the keys is a shift.

    length: the number of positions. offset: a whole number, negative for "look back". error: between 0 and 1.
    Returns scores, query key, float32. After the softmax, row i has
        the weight 1 - error at key i + offset, and error shared evenly by all other keys;
        or the weight 1 / length everywhere, if there is no position i + offset.
    """
    ### BEGIN SOLUTION
    scores = torch.zeros(length, length)
    for i in range(length):
        if 0 <= i + offset < length:
            scores[i, i + offset] = math.log((1 - error) * (length - 1) / error)
    return scores
    ### END SOLUTION

# %% check="03.2"
check("03.2", shift_scores)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Start from zeros: a row of equal scores is uniform. Then one loop over the rows, and one score in each.
#
# </details>
# <details><summary>Hint 2: the score of the wanted key</summary>
#
# It is the gap from the section above. Which weight do you want there, and how many other keys are there?
#
# </details>
# <details><summary>Hint 3: the check says that only some maps are right</summary>
#
# Try `shift_scores(5, -1, 0.1).softmax(dim=-1)` and look at row 0. A negative index is no error in Python: -1
# is the last position.
#
# </details>
# <details><summary>Hint 4: I would rather write the weights first</summary>
#
# You may. The logarithms of the weights are scores, too: the softmax of them gives the weights back. But then
# *all* scores of the row must be logarithms.
#
# </details>

# %% [markdown]
# ## Why R needs its own learning rate
#
# Training makes the *loss* smaller, a number that says how wrong a model is. In each step an *optimizer*
# moves every parameter a little against its gradient. How far, that is decided by the *learning rate*. One
# learning rate for all parameters is the usual choice. For $R$ it is a bad one, and you can compute why
# before you train anything.
#
# ### How far one step of Adam goes
#
# Plain gradient descent moves a parameter by learning rate × gradient. *Adam*, the optimizer used for nearly
# all transformers, keeps two running averages for each parameter: $m$ of its gradients, $v$ of their squares.
# It moves by
#
# $$\text{learning rate} \times \frac{m}{\sqrt{v}}.$$
#
# If the gradient has been $c$ for a while, then $m = c$ and $\sqrt{v} = |c|$, and the fraction is 1 or -1.
# **So a step is about as long as the learning rate, however large or small the gradient is.** If the gradient
# keeps changing its sign, $m$ is small and the step is shorter. Only a gradient that grows can make steps
# longer than that, for a while.

# %%
def moved_by_adam(gradients, learning_rate=0.003):
    number = nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([number], lr=learning_rate)
    for c in gradients:
        number.grad = torch.tensor([c])
        adam.step()
    return abs(number.item())


for name, gradients in {
    "0.0001 each time": [0.0001] * 100,
    "1 each time": [1.0] * 100,
    "100 each time": [100.0] * 100,
    "1 and -1 in turn": [1.0, -1.0] * 50,
}.items():
    print(f"gradient {name:>16}: after 100 steps of 0.003 it has moved by {moved_by_adam(gradients):.2f}")

# %% [markdown]
# ### How far a score must travel
#
# For most parameters short steps are enough: a token passes many numbers of a linear layer, and many small
# changes add up. A number of $R$ has no company. It *is* a score, and the gap above says how far it has to be
# from the others: 5.6 for a weight of 0.9 among 32 keys.
#
# Which scores move? Take the simplest task: query $i$ should look at one key, and the loss is $-\log$ of the
# weight that this key gets. Then the gradient of the score of key $j$ is its weight, minus 1 if $j$ is the
# wanted key:

# %%
row = draw(8, 6, high=2).requires_grad_()
wanted_key = 4
(-row.softmax(dim=0)[wanted_key].log()).backward()
expected = row.detach().softmax(dim=0)
expected[wanted_key] -= 1
print("the gradient is weight - 1 for the wanted key, weight for the others:", equal(row.grad, expected))

# %% [markdown]
# So the wanted score rises and *all others fall*. Adam moves each by at most about the learning rate $\eta$:
# the gradients start at their largest and only shrink. The gap grows by at most $2\eta$ a step. From a
# uniform start, a gap $g$ needs at least
#
# $$\text{steps} \ge \frac{g}{2\,\eta}, \qquad g = \log \frac{w\,(l - 1)}{1 - w}.$$
#
# (If the others stood still, it would be twice as many.) Predict the steps to a weight of 0.9:

# %%
def least_steps(length, learning_rate, weight=0.9):
    return math.ceil(gap(weight, length) / (2 * learning_rate))


for length in (32, 256, 512):
    steps = {rate: least_steps(length, rate) for rate in (0.001, 0.003, 0.03)}
    text = ", ".join(f"{number} at {rate}" for rate, number in steps.items())
    print(f"{length:3} keys, gap {gap(0.9, length):.1f}: at least {text}")

# %% [markdown]
# Hundreds or thousands of steps for one sharp row, at learning rates that suit the rest of a model, and this
# is the best case: a gradient that never changes its sign. A score that is pulled one way by some sentences
# and the other way by others is slower.
#
# ### Predicted, then measured
#
# Now train such an $R$, with nothing around it. The task is to *reverse* 32 positions: query $i$ should look at
# key $31 - i$. `nn.functional.cross_entropy(R, wanted)` is the loss from above, the mean of $-\log$ of the
# wanted weight over the rows. `AdamW` is Adam with an option that comes next. `betas` say how long the two averages
# remember; these are the values of `synth_lib.lab.train`. A step of training is three lines: `zero_grad` forgets
# the gradients of the step before, `backward` computes new ones, `step` moves the parameters.

# %%
wanted = torch.arange(32).flip(0)
rows = torch.arange(32)


def train_alone(learning_rate, weight_decay=0.0, steps=2000):
    """Train R until the wanted weight is 0.9 in the mean of the rows: -> steps made, weight."""
    R = nn.Parameter(uniform_scores(32))
    adam = torch.optim.AdamW([R], lr=learning_rate, weight_decay=weight_decay, betas=(0.9, 0.95))
    made, reached = 0, 0.0
    while made < steps and reached < 0.9:
        adam.zero_grad()
        nn.functional.cross_entropy(R, wanted).backward()
        adam.step()
        made, reached = made + 1, R.detach().softmax(dim=-1)[rows, wanted].mean().item()
    return made, reached


for learning_rate in (0.003, 0.03, 0.09):
    made, _ = train_alone(learning_rate)
    predicted = least_steps(32, learning_rate)
    print(f"learning rate {learning_rate:5}: predicted at least {predicted}, measured {made}")

# %% [markdown]
# The prediction holds, and it is close, because here the gradient never changes its sign. (The mean over 32
# rows divides every gradient by 32. Adam does not mind.) Try `betas=(0.9, 0.999)`, the values that torch has
# by itself: then $v$ remembers the large first gradients for longer, and the steps are shorter. "At least"
# still holds.
#
# ### Weight decay pulls back
#
# *Weight decay* shrinks parameters: in each step AdamW also takes away learning rate × decay × the parameter
# itself. (The name is old; what it shrinks is parameters, not attention weights.) For a matrix this is a
# useful habit. For scores it means a pull towards 0, and equal scores are a uniform map.
#
# The push of Adam is at most about $\eta$, the pull on a score $s$ is $\eta \cdot \text{decay} \cdot |s|$.
# They stand still at $|s| = 1/\text{decay}$, however long you train. With a decay of 1 no score gets beyond 1
# or -1, so no gap beyond 2. Predict the weight, then measure it:

# %%
most = math.exp(2) / (math.exp(2) + 31)
made, reached = train_alone(0.03, weight_decay=1.0)
print(f"decay 1:   predicted at most {most:.2f}, measured {reached:.2f} after {made} steps")
for decay in (0.1, 0.0):
    print(f"decay {decay}: {train_alone(0.003, weight_decay=decay)[0]} steps to a weight of 0.9")

# %% [markdown]
# A common decay of 0.1 has its standstill at 10. That is out of reach here, so it only costs steps.
#
# ### The same inside a model
#
# Is it the same when $R$ is one part of a model? The task: 32 random tokens out of 10, and the model should
# say them in reverse. An `nn.Embedding` is a table of parameters with a row for each token. The attention
# must bring the row of the right position, and a linear layer reads the token off.

# %%
axes_task = Axes(batch=24, length=32, d_model=20, vocab=10)


class Reverser(nn.Module):
    def __init__(self, score):
        super().__init__()
        self.embedding = nn.Embedding(10, 20)
        self.attention = Attention(d_model=20, head=1, max_length=32, score=score)
        self.readout = nn.Linear(20, 10)

    def forward(self, tokens):
        y, _ = self.attention(self.embedding(tokens))
        return self.readout(y)


def draw_tokens(generator):
    return torch.randint(10, (24, 32), generator=generator)


tokens = axes_task(draw_tokens(torch.Generator().manual_seed(0)), "batch length", "tokens")
_ = axes_task(Reverser("random")(tokens), "batch length vocab", "answers")

# %% [markdown]
# `parameter_groups` of the library sorts the parameters of a model into groups, each with its own settings.
# $R$ gets `factor` times the learning rate and no weight decay. The two marked lines are the experiment:
# which factor, and which decay for $R$.
#
# The model gives ten scores for each position, one for each possible token. `cross_entropy` puts them through
# a softmax and takes the mean of $-\log$ of what the right token gets. `flatten` lays all positions of all
# sentences in one row, `flip(1)` reverses each sentence.

# %%
def train_reverser(factor, decay_of_R=0.0, *, seed=0, score="random", steps=200):
    """Train on fresh tokens in every step: -> the model, and its curve."""
    torch.manual_seed(seed)
    model = Reverser(score)
    groups = parameter_groups(model, 0.003, weight_decay=0.1, r_learning_rate_factor=factor)  # line 1
    for group in groups:
        if group["name"] == "R":
            group["weight_decay"] = decay_of_R  # line 2
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    generator, curve = torch.Generator().manual_seed(seed), []
    for step in range(steps):
        tokens = draw_tokens(generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
        curve.append({"step": step, "loss": loss.item()})
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model, curve


def weight_on_the_right_key(model):
    return model.attention.score.R.detach()[0].softmax(dim=-1)[rows, wanted].mean().item()

# %% [markdown]
# Predict before you run. In 200 steps of 0.003 the gap grows to at most 200 × 2 × 0.003 = 1.2. Which weight
# is that? And the loss: a model that knows nothing gives each of the 10 tokens 1/10, a loss of $\log 10 =
# 2.3$. The cell trains $R$ with the factors 1, 10 and 30, and a fixed $R$, with two seeds each. It takes a
# few seconds.

# %%
runs = {}
for seed in (0, 1):
    for factor in (1, 10, 30):
        runs[f"factor {factor}", seed] = train_reverser(factor, seed=seed)
    runs["fixed", seed] = train_reverser(1, seed=seed, score="fixed_random")
names = ["fixed", "factor 1", "factor 10", "factor 30"]
plots.show(
    loss_curves({name: [runs[name, seed][1] for seed in (0, 1)] for name in names}, unit="mean of -log"),
    "the loss of the four models over 200 steps. All start near 2.3. Fixed Random stays above 2.1. With "
    "the factor 1 the line falls slowly and is still above 1 at the end; with 10 it reaches 0 well before "
    "the end, with 30 sooner.",
)

# %% [markdown]
# What the figure shows is asserted, so that you would notice if it were different on your machine.

# %%
last = {name: max(runs[name, seed][1][-1]["loss"] for seed in (0, 1)) for name in names}
first = {name: min(runs[name, seed][1][-1]["loss"] for seed in (0, 1)) for name in names}
reached = {name: max(weight_on_the_right_key(runs[name, seed][0]) for seed in (0, 1)) for name in names}
bound = math.exp(1.2) / (math.exp(1.2) + 31)
assert first["fixed"] > 2.1 and 1 < first["factor 1"] < 2.1
assert last["factor 10"] < 0.1 and last["factor 30"] < 0.1
assert reached["factor 1"] < bound < 0.1
assert reached["factor 10"] > 0.5 and reached["factor 30"] > 0.9
print(f"factor 1: the weight on the right key is below {bound:.2f}, as predicted, and the loss is above 1")
print("factor 10: more than half of the weight is on the right key; factor 30: more than 0.9")

# %%
end_maps = torch.stack([runs[name, 0][0].attention.score.R.detach()[0].softmax(dim=-1) for name in names[1:]])
end_maps = Axes(head=3, length=32)(end_maps, "head query key", "end_maps")
positions = [str(position) if position % 10 == 0 else "" for position in range(32)]
plots.show(
    plots.attention_map(end_maps, positions, titles=names[1:]),
    "the maps after 200 steps, 32 rows and columns. The reversal runs from the lower left to the upper "
    "right. With the factor 1 it can hardly be seen, with the factor 10 it is dark grey, with the factor "
    "30 black.",
)

# %% [markdown]
# With the factor 1 the map points to the right positions, but faintly. A reader of that loss would say "Random
# cannot reverse", and blame the idea for a setting. (Fixed Random gets a little below 2.3: an average tells
# which tokens occur often in the sentence, not where.) With the factor 10 the map stops before it is sharp,
# because the loss is near 0 by then and nothing pushes any more.
#
# Two more questions for the same model. Does a weight decay of 0.1 on $R$ matter? Alone it only cost steps.
# In a model that already answers well, the gradient gets small and changes its sign, so the push fades. The
# pull does not. And if you give the factor 1 twice the time?

# %%
# Output varies: the last digits of a trained weight differ between machines.
for factor in (1, 10, 30):
    by_decay = {decay: weight_on_the_right_key(train_reverser(factor, decay)[0]) for decay in (0.0, 0.1)}
    text = ", ".join(f"{weight:.2f} with decay {decay}" for decay, weight in by_decay.items())
    print(f"factor {factor:2}: weight on the right key {text}")
    assert factor == 1 or by_decay[0.1] < by_decay[0.0] - 0.1

longer, curve = train_reverser(1, steps=400)
loss, weight = curve[-1]["loss"], weight_on_the_right_key(longer)
print(f"factor 1, 400 steps: loss {loss:.2f}, weight {weight:.2f}")
assert loss < 0.6 and weight < 0.3

# %% [markdown]
# Decay flattens the sharp maps. And the last line is a warning in the other direction: the loss comes down
# although the map is still weak, because the readout has learned to amplify what little arrives. On a task
# this clean that works. So look at the map too, not only at the loss.
#
# [Chapter 13](13_train_on_gpu.ipynb) shows the same on real text: there $R$ has 10 times the learning rate
# and no weight decay, and you can set the factor back to 1.
#
# ### The weights at the start and after training
#
# The paper's figures 2 and 3 are histograms: how many weights of the map have which size, layer by layer. A
# map close to uniform is one narrow spike at $1/l$. In the paper that is Random at the start, and after
# training Random is still the one that stays near uniform. Here are ours: the start, and the ends with three
# factors.

# %%
histograms = {"start": start_map(1 / math.sqrt(32), 32)}
histograms.update(zip(names[1:], end_maps, strict=True))
fig, panels = plt.subplots(1, 4, figsize=plots.SIZE, sharey=True, layout="constrained")
for panel, (name, of_map) in zip(panels, histograms.items(), strict=True):
    panel.hist(of_map.flatten().numpy(), bins=20, range=(0, 1), color=plots.COLOURS[2])
    panel.set_yscale("log")
    panel.set_ylim(0.7, 2000)
    panel.set_title(name, fontsize=9)
    panel.set_xticks([0, 0.5, 1])
panels[0].set_ylabel("number of weights")
fig.supxlabel("weight", fontsize=10)
plots.show(
    fig,
    "four histograms of the 1024 weights of a map, numbers on a logarithmic scale. start: a spike in the "
    "first two bars, up to 0.1. factor 1: the same spike, a little wider. factor 10 and 30: nearly all "
    "weights in the first bar, and a group of 32 far to the right, above 0.5 with the factor 10, close to "
    "1 with the factor 30.",
)

# %% [markdown]
# ### Exercise 03.3: how many steps at least
#
# *10 minutes, medium.* The same prediction for a row that does not start uniform: training, or a hand-made
# start, has already brought the wanted key to some weight. The length is not given. Do you need it?

# %% exercise="03.3" points=2
def steps_needed(start, weight, learning_rate, factor):
    """The least number of Adam steps in which one key of a row gets from the weight `start` to `weight`.

    0 < start < weight < 1. The other keys have equal weights. In each step the score of the wanted key rises
    by factor * learning_rate, and all others fall by as much. No weight decay. Returns a whole number.
    """
    ### BEGIN SOLUTION
    distance = math.log(weight / (1 - weight)) - math.log(start / (1 - start))
    return math.ceil(distance / (2 * factor * learning_rate))
    ### END SOLUTION

# %% check="03.3"
check("03.3", steps_needed)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Two numbers: how far the gap has to grow, and how much it grows in one step. A weight has a gap, at the
# start as well as at the end.
#
# </details>
# <details><summary>Hint 2: the length</summary>
#
# Write the gap of `weight` and the gap of `start` for a length $l$, and subtract. What becomes of $l$?
#
# </details>
# <details><summary>Hint 3: the check says that a number is not right</summary>
#
# Simulate it with two keys: their scores start at log(start) and log(1 - start). Move both as the docstring
# says, and count until the softmax gives the weight. That is slower, and a right answer too.
#
# </details>

# %% [markdown]
# ## State: Parameter, buffer, plain tensor
#
# $R$ is *state*: numbers that a layer keeps from one call to the next. torch knows three ways to keep a
# tensor in a module. They compute the same:
#
# - `nn.Parameter`: state that training changes;
# - a *buffer*, made by `register_buffer`: state that training leaves alone;
# - a plain tensor, `self.R = R`: torch does not know that it is there.

# %%
class Kept(nn.Module):
    """R in one of the three ways."""

    def __init__(self, R, kind):
        super().__init__()
        if kind == "buffer":
            self.register_buffer("R", R.clone())
        elif kind == "Parameter":
            self.R = nn.Parameter(R.clone())
        elif kind == "plain tensor":
            self.R = R.clone()

    def forward(self, x):
        length = x.shape[1]
        return self.R[:, :length, :length]


kinds = ("Parameter", "buffer", "plain tensor")
print("same scores:", [equal(Kept(R_heads, kind)(two_sentences), R_heads) for kind in kinds])

# %% [markdown]
# They differ in everything else. *Saving* writes what `state_dict` lists. *Moving* to a GPU, or to another
# dtype, takes along what torch knows. *Training* moves what `parameters` lists. To test moving on any machine
# we use torch's device `meta`, which stores sizes only and is always there.

# %%
for kind in kinds:
    saved = "R" in Kept(R_heads, kind).state_dict()
    converted = Kept(R_heads, kind).double().R.dtype == torch.float64
    moved = Kept(R_heads, kind).to("meta").R.device.type == "meta"
    trained = len(list(Kept(R_heads, kind).parameters())) == 1
    print(f"{kind:>12}: saved {saved}, converted {converted}, moved {moved}, trained {trained}")

# %% [markdown]
# What a plain tensor costs: you train a model, save it, and load it into a new one, which has drawn another
# $R$. Nothing is missing in the file, as far as torch can tell, so there is no error. The model now computes
# something else:

# %%
for kind in kinds:
    before, fresh = Kept(R_heads, kind), Kept(draw(9, 3, 6, 6, high=2), kind)
    fresh.load_state_dict(before.state_dict())
    same = equal(fresh(two_sentences), before(two_sentences))
    print(f"{kind:>12}: the same scores after reloading: {same}")

# %% [markdown]
# So Random keeps $R$ as a Parameter, and Fixed Random as a buffer. A Parameter with `requires_grad=False`
# would also do for Fixed Random: it is saved and moved, and gets no gradient. Parameter counts then differ,
# so say what you count.
#
# ### Exercise 03.4: a module that keeps its R
#
# *10 minutes, medium.* Finish the module so that its $R$ is saved and moved in both kinds, and trained in one
# of them. The forward pass is there.

# %% exercise="03.4" points=2
class RandomScores(nn.Module):
    """The scores of Random or, with fixed=True, of Fixed Random.

    R: the scores to start from, head max_length max_length; keep them as `self.R`.
    """

    def __init__(self, R, fixed):
        super().__init__()
        ### BEGIN SOLUTION
        if fixed:
            self.register_buffer("R", R)
        else:
            self.R = nn.Parameter(R)
        ### END SOLUTION

    def forward(self, x):
        """x: batch length d_model, of which the length alone is read. Returns scores, 1 head query key."""
        length = x.shape[1]
        return self.R[None, :, :length, :length]

# %% check="03.4"
check("03.4", RandomScores)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Read the table above line by line. Which kind has the answers that Random needs, and which those of Fixed
# Random?
#
# </details>
# <details><summary>Hint 2: the check names a question and says "no"</summary>
#
# Ask it yourself: `RandomScores(R_heads, fixed=True).state_dict()`, and the other lines of the cell that made
# the table.
#
# </details>

# %% [markdown]
# ## What it costs
#
# The parameters are $l^2$ for each head, with $l$ for `max_length`. There is no $d$ in it. Fixed Random has
# none that are trained. Count:

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


for d_model, head, max_length in [(12, 3, 8), (24, 3, 8), (64, 8, 10), (512, 8, 256)]:
    counted = parameters(Random(d_model, head, max_length))
    fixed = parameters(Random(d_model, head, max_length, fixed=True))
    formula = head * max_length**2
    sizes = f"d {d_model:3}, {head} heads, l {max_length:3}"
    print(f"{sizes}: counted {counted:7,}, formula {formula:7,}, fixed {fixed}")

# %% [markdown]
# The dot product has $2d^2$, for its two projections to $Q$ and $K$. Random grows with the square of the
# length instead, so for short sentences it is smaller and for long ones larger. At $d = 512$ with 8 heads:

# %%
for max_length in (128, 256, 512):
    random = parameters(Random(512, 8, max_length))
    dot = parameters(DotProduct(512, 8, max_length, bias=False))
    print(f"l {max_length}: Random {random:9,}, dot product {dot:9,}")

# %% [markdown]
# The multiply-adds of the scores: **none**. There is nothing to compute, they are looked up. What remains in
# the layer is the average, $l^2 d$, and the two projections for values and output, $2\,l\,d^2$, a sentence.
# The counter of chapter 02 agrees:

# %%
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


batch, length, d_model = 2, 6, 12
many = axes_heads(torch.randn(batch, length, d_model), "batch length d_model", "many")
for kind in (Random, Dense, DotProduct):
    print(f"scores of {kind.__name__:>10}: {multiply_adds(kind(d_model, head=3, max_length=8), many):5,}")
formula = batch * (2 * length * d_model**2 + length**2 * d_model)
layer = Attention(d_model, head=3, max_length=8, score="random")
print(f"whole layer: counted {multiply_adds(layer, many):,}, formula {formula:,}")

# %% [markdown]
# ## Where it breaks
#
# ### It cannot react to a word
#
# Suppose the first word tells where to look: after "the" at position 3, after "cat" at position 5. Dense could
# learn it, its row 0 reads the word at position 0. Random has one row for both cases. Train that row on both,
# half and half:

# %%
one_row = nn.Parameter(torch.zeros(6))
adam = torch.optim.Adam([one_row], lr=0.1)
for _ in range(600):
    loss = -(one_row.log_softmax(dim=0)[3] + one_row.log_softmax(dim=0)[5]) / 2
    adam.zero_grad()
    loss.backward()
    adam.step()
print(f"weights at positions 3 and 5: {one_row.softmax(dim=0)[3]:.2f}, {one_row.softmax(dim=0)[5]:.2f}")
print(f"loss {loss:.2f}, and log 2 is {math.log(2):.2f}")

# %% [markdown]
# Half of the weight goes to the wrong position in either case, and the loss cannot go below $\log 2$: two
# weights of one row sum to at most 1. No training changes that, no width, and no learning rate. More heads
# can look at both positions at once. But which of them counts in this sentence, the map will not say.
#
# ### Longer inputs are impossible
#
# Position 8 has no row and no column in an $R$ for 8 positions:

# %%
random_8 = Random(d_model=12, head=3, max_length=8)
try:
    random_8(torch.randn(1, 9, 12))
except ValueError as error:
    print(error)

# %% [markdown]
# And a position that training never saw stays as it was drawn. Here all sentences have 6 words: the last two
# rows and columns get no gradient at all. A first sentence of 8 words would meet numbers that nobody trained.

# %%
(random_8(two_sentences).softmax(dim=-1) @ value_heads).square().sum().backward()
got_gradient = (random_8.R.grad != 0).any(dim=0)
got_gradient = axes_longest(got_gradient, "query key", "got_gradient")
for row in got_gradient.int().tolist():
    print(*row)

# %% [markdown]
# ## The same as the library's layer
#
# Everything in one class, with values and the output projection. `fixed` is left to the exercise above; this
# one is trained.

# %%
class RandomAttention(nn.Module):
    def __init__(self, d_model, head, max_length):
        super().__init__()
        self.head = head
        self.R = nn.Parameter(torch.randn(head, max_length, max_length))
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x):
        length = x.shape[1]
        weights = self.R[:, :length, :length].softmax(dim=-1)
        value = rearrange(self.value(x), "batch key (head d_head) -> batch head key d_head", head=self.head)
        mixed = rearrange(weights @ value, "batch head query d_head -> batch query (head d_head)")  # (4)
        return self.output(mixed), weights


ours = RandomAttention(d_model=12, head=3, max_length=8)
our_y, our_weights = ours(two_sentences)
our_y = axes_heads(our_y, "batch length d_model", "our_y")
our_weights = axes_heads(our_weights, "head query key", "our_weights")

# %% [markdown]
# The library's layer holds $R$ in its part `score`. It returns one map for each sentence, so that all kinds
# of S look alike from outside. But these are views of the same numbers, not copies.

# %%
numbers = {name.replace("R", "score.R"): parameter for name, parameter in ours.state_dict().items()}
layers = {}
for kind in ("random", "fixed_random"):
    layers[kind] = Attention(d_model=12, head=3, max_length=8, score=kind)
    layers[kind].load_state_dict(numbers)
    library_y, library_weights = layers[kind](two_sentences)
    library_weights = axes_heads(library_weights, "batch head query key", "library_weights")
    print(f"{kind:>12}: same weights {[equal(map_of_one, our_weights) for map_of_one in library_weights]}")
    print(f"{'':>12}  same outputs {equal(library_y, our_y)}")

# %%
y_factors = draw(10, 2, 6, 12, high=2)


def gradients(layer):
    names, parameters = zip(*layer.named_parameters(), strict=True)
    total = (layer(two_sentences)[0] * y_factors).sum()
    return dict(zip(names, torch.autograd.grad(total, parameters), strict=True))


of_ours = gradients(ours)
for kind, layer in layers.items():
    theirs = gradients(layer)
    print(f"{kind}:")
    for name, gradient in of_ours.items():
        other = theirs.get(name.replace("R", "score.R"))
        same = "there is none" if other is None else equal(gradient, other)
        print(f"    same gradient of {name:>13}: {same}")

# %% [markdown]
# What you built is the library's layer. For Fixed Random there is no gradient of $R$: it is a buffer.
#
# ## Three sentences to keep
#
# 1. Random is a table of scores, $Y = \mathrm{softmax}(R)\,G(X)$: one map for every sentence, with no
#    multiply-adds to make it, and with no way to react to a word.
# 2. "Random" means nothing without a scale: small scores are a uniform map, so Fixed Random is nearly an
#    average, and weights that are stored as scores are flat.
# 3. Adam moves a score by about the learning rate a step, and a sharp row needs a gap of 5 to 10: $R$ needs a
#    larger learning rate than the rest, and no weight decay.
#
# **Where it is going next.** $l^2$ numbers a head is much for long sentences, and Dense needs $d\,l$. The
# next two chapters make both smaller: [chapter 04](04_factorized_dense.ipynb) writes the row of a token from
# two short lists, and [chapter 05](05_factorized_random.ipynb) makes $R$ from two thin matrices.
