# %% [markdown]
# # 03 · Random: one map for every sentence
#
# **You build attention that looks at no word, find out why its table of scores needs a learning rate of its own, and
# end with a model of your own that writes.**
#
# - **Before you start:** chapters [00](00_start_here.ipynb), [01](01_dot_product.ipynb) and
#   [02](02_dense.ipynb), which explain scores, the attention map, modules and gradients.
# - **Time:** about 115 minutes, 54 of them for the four exercises; the stretch exercise takes 20 more.
# - **Level:** medium.
# - **In use today:** scores that read no token. T5 adds to the scores of the dot product a learned number for each
#   head and range of distances, BLOOM (by ALiBi) a fixed one that falls with the distance.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1. Outputs are
# stored with the cells. To predict before you look, clear them first: menu Edit, Clear Outputs of All Cells.

# %% fold=true
# @title Imports
import math

import torch
from einops import einsum, rearrange
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from synth_lib import plots
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.lab.curves import loss_curves
from synth_lib.lab.patience import each
from synth_lib.lab.starts import decaying_scores, shifted_scores, uniform_scores
from synth_lib.lab.train import parameter_groups
from synth_lib.models import LanguageModel
from synth_lib.scores import Dense, DotProduct, Random, Score
from synth_lib.shapes import Axes
from synth_lib.text.baselines import ngram_loss
from synth_lib.text.corpora import evaluation_windows, random_windows, shakespeare

# %% [markdown]
# ## The question
#
# In Dense each token writes its own row of scores. It looks at no other token, but still at itself. **Can a
# row be written without looking at any token?**
#
# Then there is one row for position 0, one for position 1, and so on, the same for every sentence. A row can say
# "look at the position before mine", or "look at position 0", whatever words stand there. All rows together are one
# table of numbers, and training finds the numbers. The six words are those of chapter 02.

# %% fold=true
# @title Six words, and two small functions
def draw(seed, *shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10


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

# %%
plots.show(
    plots.flow("Random", None),
    "boxes and arrows. No arrow leads from X to the box S(X), which is filled and says: Random, "
    "reads no token. The scores in it go through mask and softmax and become weights. X reaches "
    "the result by the values G(X) alone.",
)

# %% [markdown]
# $R$ starts as random numbers. There are two kinds: **Random**, where $R$ is a parameter, trained like any other, and
# **Fixed Random**, where $R$ stays as it was drawn and only the rest of the model is trained.
#
# > **One R for each head.** Equation (4) shows one matrix, and Table 1 counts $l^2$ parameters, with $l$ for
# > the length. With several heads every head has a matrix of its own, so the layer has $l^2$ parameters *a
# > head*.
#
# Nothing is trained yet. Our $R$ is drawn in tenths, large enough that you can see a map.

# %%
R = axes(draw(2, 6, 6, high=2), "query key", "R")
G = draw(3, 12, 12, high=0.5)
value = axes(x @ G, "key d_model", "value")
for i, row in enumerate(R.tolist()):
    print(f"position {i}:", *(f"{number:4.1f}" for number in row))

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
        row = torch.zeros(value.shape[1])
        for j in range(len(R)):
            row = row + exponentials[j] / sum(exponentials) * value[j]
        rows.append(row)
    return torch.stack(rows)


y = axes(random_with_loops(R, value), "query d_model", "y")

# %% [markdown]
# ### Heads, a batch, and named axes
#
# A softmax along the keys and a matrix product do the same, for one head:

# %%
weights = axes(R.softmax(dim=-1), "query key", "weights")
difference = (weights @ value - y).abs().max()
print(f"largest difference from the loops: {difference:.4f}")

# %% [markdown]
# Two sentences, three heads: the values get the axes batch and head, as in chapter 02. Each head has its own
# $R$. Read the pattern of the `einsum`: **the map has no batch axis.** The same weights meet the values of
# every sentence.

# %%
axes_heads = Axes(batch=2, head=3, length=6, d_model=12)  # d_head = 4
other_words = "the cat saw a small bird".split()
other_x = axes(torch.stack([embedding[word] for word in other_words]), "length d_model", "other_x")
two_sentences = axes_heads(torch.stack([x, other_x]), "batch length d_model", "two_sentences")

R_heads = axes_heads(draw(4, 3, 6, 6, high=2), "head query key", "R_heads")
value_heads = rearrange(two_sentences @ G,
                        "batch key (head d_head) -> batch head key d_head", head=3)
value_heads = axes_heads(value_heads, "batch head key d_head", "value_heads")


def random_with_einsum(R, value):
    pattern = "head query key, batch head key d_head -> batch head query d_head"
    return einsum(R.softmax(dim=-1), value, pattern)


y_heads = axes_heads(random_with_einsum(R_heads, value_heads), "batch head query d_head", "y_heads")

# %% [markdown]
# ### A module holds R
#
# Wrapped in `nn.Parameter`, a tensor becomes a parameter of its module. The module is short, since $R$ *is*
# the scores. It asks `x` for one thing, its length.

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

# %% fold=true
# @title A guard: loops, einsum and module agree, in values and in the gradient of R
def loops_for_all(R, value):
    sentences = [[random_with_loops(R[h], value[b, h]) for h in range(3)] for b in range(2)]
    return torch.stack([torch.stack(heads) for heads in sentences])


# with fixed factors every number of the result counts differently
factors = draw(5, 2, 3, 6, 4, high=2)
(y_of_module * factors).sum().backward()
for function in (loops_for_all, random_with_einsum):
    R_copy = R_heads.clone().requires_grad_()
    result = function(R_copy, value_heads)
    (gradient,) = torch.autograd.grad((result * factors).sum(), R_copy)
    assert equal(result, y_of_module) and equal(gradient, module.R.grad), function.__name__

# %% [markdown]
# ## One map for every sentence
#
# Here is the map of the single head. Dark is a large weight. Rows and columns are numbered: it knows positions,
# no words.

# %%
darkest = zip(range(6), weights.argmax(dim=1).tolist(), strict=True)
plots.show(
    plots.attention_map(weights, [str(position) for position in range(6)]),
    "the attention map of Random, six rows and six columns. The darkest cell of each row: "
    + ", ".join(f"position {i} looks at position {j}" for i, j in darkest)
    + ".",
)

# %% [markdown]
# Now "cat" takes the place of "dog", at position 1. How many of the six rows change? Write a number for None.

# %%
my_guess = {"rows of the map": None, "rows of the result": None}

# %%
score = OnlyR(R[None])
map_change = (score(other_x[None]).softmax(dim=-1) - score(x[None]).softmax(dim=-1))[0].abs()
y_change = (weights @ (other_x @ G) - y).abs()

moved = {name: (change > 1e-6).any(dim=1)
         for name, change in zip(my_guess, (map_change, y_change), strict=True)}
compare_guess(my_guess, {name: int(rows.sum()) for name, rows in moved.items()})

# %% [markdown]
# Nothing moves in the map: Table 1 of the paper calls Random *conditioned on* nothing, and *global*, one map for all
# samples. The result moves everywhere, because position 1 now gives another value. The sentence comes in through the
# values, and only there.
#
# Shuffle the tokens. With the dot product, rows and columns of the map would move along; with Dense, rows
# would. Here the map stays still, and the values take other positions. So the result is *not* the old result
# shuffled: positions are all that Random knows.

# %%
order = torch.tensor([2, 0, 5, 1, 4, 3])
y_after = score(x[order][None]).softmax(dim=-1)[0] @ (x[order] @ G)
print(f"largest difference from the old result, shuffled: {(y_after - y[order]).abs().max():.2f}")

# %% [markdown]
# ### R has no batch axis
#
# A wrong program that runs: $R$ gets an axis for the batch, because the dot product and Dense have one there.
# Every *row of the batch* then has its own map, and one sentence, four times in a batch, gives four results.
# (`expand` repeats a tensor along a new axis, without copying it.)

# %%
axes_four = Axes(batch=4, length=6, d_model=12)
four_values = axes_four(value.expand(4, 6, 12), "batch key d_model", "four_values")
wrong_R = axes_four(draw(6, 4, 6, 6, high=2), "batch query key", "wrong_R")
for name, table in {"R": R, "wrong R": wrong_R}.items():
    y_four = axes_four(table.softmax(dim=-1) @ four_values, "batch query d_model", name)
    apart = [f"{(y_one - y_four[0]).abs().max():.2f}" for y_one in y_four]
    print(f"{name:>7}: how far each result is from that of sentence 0:", *apart)

# %% [markdown]
# What a sentence becomes must not depend on where it stands in a batch.
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
# ### Exercise 03.1: the newest tokens of a text
#
# *15 minutes, medium.* A model that writes reads its text from left to right: no token may look at a later one.
# And when a few tokens are new, only *their* results are wanted; those before are known. So every row of $R$ is cut
# at a place of its own, and the first row that you need is not row 0.

# %% exercise="03.1" points=2
def newest_tokens(R, value, query):
    """Equation (4) for the last tokens of a text, where no token looks at a later one.

    R: the scores, head max_length max_length, each between -20,000 and 20,000. value: batch head
    key d_head, of all tokens of the text from its beginning; key is at most max_length. query: how
    many of them are new, 1 to key.
    Returns the result of the new tokens alone, batch head query d_head, in the order of the text.
    Each averages the values of the tokens before it and of itself. The weights of these, and of no
    others, sum to 1.
    """
    ### BEGIN SOLUTION
    key = value.shape[2]
    results = []
    for i in range(key - query, key):
        weights = R[:, i, : i + 1].softmax(dim=-1)
        pattern = "head key, batch head key d_head -> batch head d_head"
        results.append(einsum(weights, value[:, :, : i + 1], pattern))
    return torch.stack(results, dim=2)
    ### END SOLUTION

# %% check="03.1"
check("03.1", newest_tokens)

# %% [markdown] solution="03.1"
# A token at position $i$ has row $i$ of $R$, and of it the numbers 0 to $i$: cut before the softmax, they sum to 1. One
# loop over the new positions says just that. The second way does all rows at once: the scores of later tokens become
# minus infinity, whose weight is exactly 0. Print `newest_tokens(R_heads, value_heads, 6)[:, :, 0]`: the first token
# has nothing before it, so it gets its own value, whatever $R$ says.

# %% solution="03.1"
def newest_by_mask(R, value, query):
    key = value.shape[2]
    later = torch.ones(key, key, dtype=torch.bool).triu(diagonal=1)
    scores = R[:, :key, :key].masked_fill(later, float("-inf"))
    return scores.softmax(dim=-1)[:, key - query :] @ value


check("03.1", newest_by_mask)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With one new token and one head, on paper. The text has 4 tokens: at which position does the new one stand? Which row
# of R is its row, and which numbers of it count?
#
# </details>
# <details><summary>Hint 2: the shape is right, the values are not</summary>
#
# Take values that are all 1. Whatever R is, every result must be 1, because the weights of a row sum to 1. If it is
# less, you cut after the softmax. If it is 1, then look at which row you use, and at where you cut it. NaN? `exp` of a
# large score is infinite in 32 bits; the softmax of torch sees to that.
#
# </details>
# <details><summary>Hint 3: must I loop?</summary>
#
# A loop over the new positions is a good answer. Without one you need scores that get no weight at all: what is the
# exponential of minus infinity?
#
# </details>
# <details><summary>Hint 4: it fails for one sentence, one head or one token</summary>
#
# `squeeze` removes every axis of size 1, also those that you want to keep. Index or stack instead.
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
# The same 16 × 16 random numbers, multiplied by four scales. Which of the maps is closest to "look everywhere
# alike", and which to "look at one random position"? (The axis name `head` here just stacks the maps.)

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
    "four maps of 16 positions, the same random numbers at the scales 0.1, 1, 3 and 10. The first "
    "is an even, very light grey, the second has some darker cells, the third a dark cell in most "
    "rows, the last a black one in most rows.",
)

# %% [markdown]
# ### Fixed Random is nearly an average
#
# Two numbers for a map: the *largest weight* of a row, in the mean over the rows; and what is *left* of the
# differences between tokens. A uniform map gives every token the average of all values: compare how far the results are
# from it with how far the values are. (`norm` is the root of the sum of all squared numbers.)

# %%
axes_start = Axes(length=32, d_model=20)
values_of_32 = axes_start(draw(11, 32, 20, high=2), "key d_model", "values_of_32")
average = values_of_32.mean(dim=0)
for scale in (0.005, 1 / math.sqrt(32), 1.0, 3.0, 10.0):
    start_weights = axes_start(start_map(scale, 32), "query key", "start_weights")
    y_start = axes_start(start_weights @ values_of_32, "query d_model", "y_start")
    left = (y_start - average).norm() / (values_of_32 - average).norm()
    print(f"scale {scale:5.3g}: largest weight {start_weights.amax(dim=1).mean():.3f}, "
          f"left {left:.3f}")

# %% [markdown]
# The second line, $1/\sqrt{l}$, is the default of the library: less than 4 % of what tells the tokens apart is left.
# Never trained, it stays so: "Fixed Random" with a small start is *fixed averaging*. In the paper it still translates,
# English to German with a BLEU of 23.89, where trained Random has 27.27. (BLEU compares a translation with one by a
# person; higher is better. One run each.)
#
# > **Our choice.** The library draws $R$ from a normal distribution with the standard deviation
# > $1/\sqrt{\text{max\_length}}$. The paper states none.
#
# <details><summary>Aside: what <code>xavier_uniform_</code> does to a tensor with three axes</summary>
#
# *Xavier* (or *Glorot*) initialization draws numbers between $-b$ and $b$, with $b = \sqrt{6 / (\text{numbers in} +
# \text{numbers out})}$ for a matrix. For one $l \times l$ matrix, $b = \sqrt{3/l}$, whose standard deviation is
# $1/\sqrt{l}$, the default above. A program for several heads asks for a tensor head × $l$ × $l$, and torch takes its
# axes for those of a layer for images, the last one for a patch: $b = \sqrt{6/(l\,(l + \text{head}))}$. With
# length 32 and 8 heads that is 0.068 instead of 0.306, a map that is closer still to uniform. Nobody chose that
# number. If you want Xavier's rule for $R$, apply it head by head.
#
# </details>

# %% fold=true
# @title A guard for the aside: torch's bound for one matrix and for three axes
for shape, bound in {(32, 32): math.sqrt(3 / 32),
                     (8, 32, 32): math.sqrt(6 / (32 * (32 + 8)))}.items():
    _ = torch.manual_seed(0)
    largest = nn.init.xavier_uniform_(torch.empty(shape)).abs().max().item()
    assert 0.98 * bound < largest <= bound
    print(f"xavier_uniform_ of {shape}: numbers up to {bound:.3f}")

# %% [markdown]
# ## Hand-made starts
#
# $R$ need not start from random numbers. You can write down a map, and train from there, or keep it. Wu et al.
# ([arXiv 2006.05174](https://arxiv.org/abs/2006.05174)) tried such patterns: the identity, shifts and decays.
# What is stored is *scores*, so you have to find scores whose softmax is the map.
#
# ### How far apart the scores must be
#
# A softmax only knows differences: adding a number to all scores of a row changes no weight. So give all keys
# the score 0, and the wanted key the score $g$, the *gap*. Its weight is
#
# $$w = \frac{e^g}{e^g + (l - 1)} \quad\text{so}\quad g = \log \frac{w\,(l - 1)}{1 - w}.$$
#
# In words: $e^g$ is how many times the weight of *one* other key the wanted key must get. The logarithm is
# the natural one.

# %%
def gap(weight, length):
    return math.log(weight * (length - 1) / (1 - weight))


for length, weight in [(6, 0.9), (32, 0.5), (32, 0.9), (512, 0.9), (512, 0.999)]:
    row = torch.zeros(length)
    row[0] = gap(weight, length)
    print(f"{length:3} keys: with a gap of {row[0]:4.1f} the softmax gives "
          f"{row.softmax(dim=0)[0]:.3f}")

# %% [markdown]
# A weight never gets to 1. For most purposes a gap of 5 to 10 is near enough. Keep these numbers in mind;
# they come back as the distance that training has to cover.
#
# ### Shifts and decays
#
# The library has three functions that return scores, and `Random` takes them as `start`:
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
hand_made = Axes(head=4, length=6)(torch.stack(list(starts.values())), "head query key",
                                   "hand_made")
plots.show(
    plots.attention_map(hand_made.softmax(dim=-1), [str(i) for i in range(6)], titles=list(starts)),
    "four hand-made maps of six positions. uniform: one even grey. identity: a black diagonal. "
    "shift by -1: a black diagonal one column further left, and an even grey row for position 0, "
    "which has nothing before it. decay: darkest on the diagonal, fading with the distance.",
)

# %% [markdown]
# ### Not through a softmax twice
#
# It is tempting to store the map itself, the identity for instance, with ones on the diagonal. But what is
# stored is scores. A score of 1 among zeros is a gap of 1:

# %%
for length in (6, 32, 512):
    diagonal = torch.eye(length).softmax(dim=-1)[0, 0]
    print(f"length {length:3}: {diagonal:.3f} on the diagonal, wanted 1")
try:
    Random(d_model=12, head=1, max_length=6, start=torch.eye(6))
except ValueError as error:
    print(error)

# %% [markdown]
# It runs, has the right shape, and even its largest weights stand in the right columns. A softmax of weights is
# always this flat, since weights differ by 1 at most. So the library refuses a `start` whose rows are weights.
#
# ### Exercise 03.2: scores for a shift
#
# *12 minutes, medium.* Write the scores yourself. The check puts them through a softmax and looks at the map, for
# several offsets and errors.

# %% exercise="03.2" points=2
def shift_scores(length, offset, error):
    """Scores whose softmax along the keys is a shift.

    length: the number of positions, at least 2. offset: less than length either way, negative for
    "look back". error:
    between 0.000001 and 0.999. Returns scores, query key, float32. After the softmax, row i has
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

# %% [markdown] solution="03.2"
# A row of zeros is uniform, so only rows whose key exists get a score, and it is the gap of the weight `1 - error`. The
# comparison on both sides matters: Python takes a negative index for the other end of the sentence. The second way
# writes the weights themselves and takes logarithms. That is right for every map without zeros, since the softmax of
# logarithms of weights gives the weights back; uniform rows need theirs as well.

# %% solution="03.2"
def shift_by_logarithms(length, offset, error):
    weights = torch.full((length, length), error / (length - 1))
    for i in range(length):
        if 0 <= i + offset < length:
            weights[i, i + offset] = 1 - error
        else:
            weights[i] = 1 / length
    return weights.log()


check("03.2", shift_by_logarithms)

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
# *all* scores of the table must be logarithms.
#
# </details>

# %% [markdown]
# ## Why R needs its own learning rate
#
# Training makes the *loss* smaller, a number that says how wrong a model is. In each step an *optimizer*
# moves every parameter a little against its gradient; how far, the *learning rate* decides. One rate for all parameters
# is the usual choice. For $R$ it is a bad one, and you can compute why before you train anything.
#
# ### How far one step of Adam goes
#
# Plain gradient descent moves a parameter by learning rate × gradient. *Adam*, the optimizer used for nearly
# all transformers, keeps two running averages for each parameter: $m$ of its gradients, $v$ of their squares.
# It moves by
#
# $$\text{learning rate} \times \frac{m}{\sqrt{v}}.$$
#
# One parameter, 100 steps at a learning rate of 0.003. How far does it move with these gradients? Write numbers.

# %%
my_distances = {"0.0001 each time": None, "100 each time": None, "1 and -1 in turn": None,
                "growing": None}

# %%
def moved_by_adam(gradients, learning_rate=0.003):
    number = nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([number], lr=learning_rate)
    for c in gradients:
        number.grad = torch.tensor([c])
        adam.step()
    return f"{abs(number.item()):.2f}"


gradients_of = {
    "0.0001 each time": [0.0001] * 100,
    "100 each time": [100.0] * 100,
    "1 and -1 in turn": [1.0, -1.0] * 50,
    "growing": [1.1**step for step in range(100)],
}
compare_guess(my_distances, {name: moved_by_adam(gradients)
                             for name, gradients in gradients_of.items()})

# %% [markdown]
# If the gradient has been $c$ for a while, then $m = c$ and $\sqrt{v} = |c|$, and the fraction is 1 or -1.
# **So a step is about as long as the learning rate, however large or small the gradient is.** If the gradient
# keeps changing its sign, $m$ is small and the step is shorter. Steps are longer only while a gradient grows: $v$
# remembers for longer, and lags behind.
# ### How far a score must travel
#
# A number that a linear layer computes is a sum: of 64 products, say. If each of its 64 parameters moves by a step in
# the right direction, the sum gets all 64. A score of $R$ is no sum. It is *one* parameter, it moves by one step, and
# the gap above says how far it has to be from the others: 5.6 for a weight of 0.9 among 32 keys.
#
# Which scores move? Take the simplest loss, $-\log$ of the weight of a wanted key. Then the gradient of the score of
# key $j$ is its weight, minus 1 if $j$ is the wanted key:

# %%
row = draw(8, 6, high=2).requires_grad_()
(-row.softmax(dim=0)[4].log()).backward()
print("weights: ", *(f"{weight:5.2f}" for weight in row.softmax(dim=0)))
print("gradient:", *(f"{number:5.2f}" for number in row.grad), " (key 4 is wanted)")

# %% [markdown]
# So the wanted score rises and *all others fall*. Adam moves each by at most about the learning rate $\eta$:
# the gradients start at their largest and only shrink. The gap grows by at most $2\eta$ a step. From a
# uniform start, a gap $g$ needs at least
#
# $$\text{steps} \ge \frac{g}{2\,\eta}, \qquad g = \log \frac{w\,(l - 1)}{1 - w}.$$
#
# (If the others stood still, it would be twice as many.) For a weight of 0.9:

# %%
def least_steps(length, learning_rate, weight=0.9):
    return math.ceil(gap(weight, length) / (2 * learning_rate))


for length in (32, 512):
    steps = {rate: least_steps(length, rate) for rate in (0.001, 0.003, 0.03)}
    text = ", ".join(f"{number} at {rate}" for rate, number in steps.items())
    print(f"{length:3} keys, gap {gap(0.9, length):.1f}: at least {text}")

# %% [markdown]
# Hundreds or thousands of steps for one sharp row, and this is the best case: a score that some sentences pull up and
# others down is slower.
#
# ### Predicted, then measured
#
# Now train such an $R$, with nothing around it, to *reverse* 32 positions: query $i$ should look at key $31 - i$.
# `nn.functional.cross_entropy(R, wanted)` is the loss from above, the mean of $-\log$ of the wanted weight over the
# rows. `AdamW` is Adam with an option that comes next; `betas` say how long the two averages remember. A step of
# training is three lines: `zero_grad` forgets the old gradients, `backward` computes new ones, `step` moves the
# parameters.

# %%
wanted, rows = torch.arange(32).flip(0), torch.arange(32)


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
# The prediction holds, and it is close, because here the gradient never changes its sign.
#
# ### Weight decay pulls back
#
# *Weight decay* shrinks parameters (not attention weights, in spite of its name): in each step AdamW also takes away
# learning rate × decay × the parameter itself. For scores it is a pull towards 0, and equal scores are a uniform map.
#
# The push of Adam is at most about $\eta$, the pull on a score $s$ is $\eta \cdot \text{decay} \cdot |s|$.
# They balance at $|s| = 1/\text{decay}$, however long you train. With a decay of 1 no gap gets beyond 2:

# %%
most = math.exp(2) / (math.exp(2) + 31)
made, reached = train_alone(0.03, weight_decay=1.0)
print(f"decay 1: predicted at most {most:.2f}, measured {reached:.2f} after {made} steps")

# %% [markdown]
# ### The same inside a model
#
# Now $R$ is one part of a model, which should say 32 random tokens in reverse. An `nn.Embedding` is a table of
# parameters with a row for each of 10 tokens. The attention must bring the row of the right position, and a linear
# layer reads the token off.

# %%
axes_task = Axes(batch=24, length=32, d_model=20, vocab=10)


class Reverser(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 20)
        self.attention = Attention(d_model=20, head=1, max_length=32, score="random")
        self.readout = nn.Linear(20, 10)

    def forward(self, tokens):
        y, _ = self.attention(self.embedding(tokens))
        return self.readout(y)


tokens = axes_task(torch.arange(24 * 32).view(24, 32) % 10, "batch length", "tokens")
_ = axes_task(Reverser()(tokens), "batch length vocab", "answers")

# %% [markdown]
# `parameter_groups` of the library sorts the parameters of a model into groups: $R$ gets `factor` times the learning
# rate and no weight decay. The model gives ten scores for each position, one for each possible token. `flatten` lays
# the positions of all sentences in one row for `cross_entropy`, `flip(1)` reverses each sentence.

# %%
def train_reverser(factor, steps=200):
    """Train on fresh tokens in every step: -> the model, and its curve."""
    torch.manual_seed(0)
    model = Reverser()
    groups = parameter_groups(model, 0.003, weight_decay=0.1, r_learning_rate_factor=factor)
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    generator, curve = torch.Generator().manual_seed(0), []
    for step in range(steps):
        tokens = torch.randint(10, (24, 32), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
        curve.append({"step": step, "loss": loss.item()})
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model, curve

# %% [markdown]
# In 200 steps of 0.003 the gap grows to at most 200 × 2 × 0.003 = 1.2. With which factors does the right key get
# more than half of the weight?

# %%
my_factors = {"factor 1": None, "factor 10": None, "factor 30": None}  # yes or no

# %% fold=true
# @title Train with three factors: the losses
runs = {}
for factor in (1, 10, 30):
    runs[f"factor {factor}"] = train_reverser(factor)
plots.show(
    loss_curves({name: [curve] for name, (_, curve) in runs.items()}, unit="mean of -log"),
    "the loss of the three models over 200 steps. All start near 2.3, the logarithm of 10, a "
    "guess. With the factor 1 the line falls slowly and is still above 1 at the end; with 10 it "
    "reaches 0 well before the end, with 30 sooner.",
)

# %% fold=true
# @title The maps after training
end_maps = torch.stack([model.attention.score.R.detach()[0].softmax(dim=-1)
                        for model, _ in runs.values()])
end_maps = Axes(head=3, length=32)(end_maps, "head query key", "end_maps")
positions = [str(position) if position % 10 == 0 else "" for position in range(32)]
plots.show(
    plots.attention_map(end_maps, positions, titles=list(runs)),
    "the maps after 200 steps, 32 rows and columns. The reversal runs from the lower left to the "
    "upper right. With the factor 1 it can hardly be seen, with the factor 10 it is dark grey, "
    "with the factor 30 black.",
)

# %% fold=true
# @title Guards for the figures, and your guess beside what came out
# Output varies: the last digits of a trained weight differ between machines.
right_key = {name: end_map[rows, wanted].mean().item()
             for name, end_map in zip(runs, end_maps, strict=True)}
last = {name: curve[-1]["loss"] for name, (_, curve) in runs.items()}
most = math.exp(1.2) / (math.exp(1.2) + 31)
assert 1 < last["factor 1"] < 2.1 and last["factor 10"] < 0.1 and last["factor 30"] < 0.1
assert right_key["factor 1"] < most < 0.1
assert right_key["factor 10"] > 0.5 and right_key["factor 30"] > 0.9
print(f"weight on the right key: factor 1 {right_key['factor 1']:.2f}, "
      f"predicted at most {most:.2f};", end=" ")
print(f"factor 10 {right_key['factor 10']:.2f}; factor 30 {right_key['factor 30']:.2f}")
compare_guess(my_factors, {name: weight > 0.5 for name, weight in right_key.items()})

# %% [markdown]
# With the factor 1 the map points to the right positions, but faintly. A reader of that loss would say "Random
# cannot reverse", and blame the idea for a setting. The model at the end of this chapter has the factor 10.
#
# ### Exercise 03.3: how many steps at least
#
# *12 minutes, medium.* The same prediction for a row that does not start uniform: training, or a hand-made
# start, has already brought the wanted key to some weight. The length is not given.

# %% exercise="03.3" points=2
def steps_needed(start, weight, learning_rate, factor):
    """The least number of Adam steps in which one key of a row gets from the weight `start` to
    `weight`.

    0 < start < weight < 1. The other keys have equal weights. In each step the score of the wanted
    key rises by factor * learning_rate, and all others fall by as much; factor may be below 1. No
    weight decay. Returns a whole number.
    """
    ### BEGIN SOLUTION
    distance = math.log(weight / (1 - weight)) - math.log(start / (1 - start))
    return math.ceil(distance / (2 * factor * learning_rate))
    ### END SOLUTION

# %% check="03.3"
check("03.3", steps_needed)

# %% [markdown] solution="03.3"
# If you invented a length: do you need it? The gap of each weight is $\log \frac{w}{1 - w} + \log(l - 1)$, and in
# the difference of two gaps the length cancels: what counts is how many times more than *all* others together a key
# gets. The second way asks nobody for a formula: it moves two scores, step by step, until the weight is there.

# %% solution="03.3"
def steps_counted(start, weight, learning_rate, factor):
    wanted, others, steps = math.log(start), math.log(1 - start), 0
    while math.exp(wanted) / (math.exp(wanted) + math.exp(others)) < weight:
        wanted, others = wanted + factor * learning_rate, others - factor * learning_rate
        steps += 1
    return steps


check("03.3", steps_counted)

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
# $R$ is *state*: numbers that a layer keeps from call to call. torch knows three ways, which compute the same:
#
# | | saved with the model | moved and converted with it | trained |
# |---|---|---|---|
# | `self.R = nn.Parameter(R)` | yes | yes | yes |
# | `self.register_buffer("R", R)`, a *buffer* | yes | yes | no |
# | `self.R = R`, a plain tensor | no | no | no |
#
# So Random keeps $R$ as a Parameter, and Fixed Random as a buffer. A plain tensor is lost without an error: the saved
# file lacks it, and a new model draws another.

# %% fold=true
# @title A guard for the table: each of the nine answers is asked of torch
for kind, answers in {"Parameter": (1, 1, 1), "buffer": (1, 1, 0),
                      "plain tensor": (0, 0, 0)}.items():
    module = nn.Module()
    if kind == "buffer":
        module.register_buffer("R", R)
    else:
        module.R = nn.Parameter(R) if kind == "Parameter" else R
    saved, trained = "R" in module.state_dict(), len(list(module.parameters())) == 1
    assert (saved, module.double().R.dtype == torch.float64, trained) == answers, kind

# %% [markdown]
# All three keep the tensor that they are given, not a copy. If a caller hands the same tensor to two modules, training
# one of them moves the other. `.clone()` makes a copy, as `OnlyR` does.
#
# ### Exercise 03.4: heads that learn, heads that stay
#
# *15 minutes, medium.* Some heads of a layer are Random, the others Fixed Random. An optimizer
# trains the `parameters()` that it is given, unless `requires_grad` is False, each as a whole. Weight decay moves
# even a number whose gradient is 0.

# %% exercise="03.4" points=2
class RandomScores(nn.Module):
    """Scores of which some heads are trained and the others stay as they start, whatever the
    optimizer does.

    R: the scores to start from, head max_length max_length. fixed: bool, head; True for a head that
    stays. Of both the module keeps copies. Every tensor that it needs is saved, moved and converted
    with it.

    forward(x), with x: batch length d_model, of which the length alone is read: scores, 1 head
    query key, the heads in the order of R.
    """

    def __init__(self, R, fixed):
        super().__init__()
        ### BEGIN SOLUTION
        self.register_buffer("start", R.clone())
        self.register_buffer("fixed", fixed.clone())
        self.R = nn.Parameter(R.clone())

    def forward(self, x):
        length = x.shape[1]
        scores = torch.where(self.fixed[:, None, None], self.start, self.R)
        return scores[None, :, :length, :length]
        ### END SOLUTION

# %% check="03.4"
check("03.4", RandomScores)

# %% [markdown] solution="03.4"
# The optimizer may do what it likes with the whole parameter: for a fixed head nobody reads it, `where` takes the
# buffer. Each of the three is a copy, and a mask is a buffer, too. To freeze a head by its gradient would
# not do: weight decay moves a number without one. The second way has no spare numbers: a parameter of the learning
# heads, a buffer of the others, and the place where each head is found.

# %% solution="03.4"
class RandomScoresInTwoParts(nn.Module):
    def __init__(self, R, fixed):
        super().__init__()
        self.learning = nn.Parameter(R[~fixed].clone())
        self.register_buffer("staying", R[fixed].clone())
        # The two parts one behind the other, and for each head its place there.
        self.register_buffer("place",
                             torch.cat([(~fixed).nonzero(), fixed.nonzero()]).flatten().argsort())

    def forward(self, x):
        length = x.shape[1]
        scores = torch.cat([self.learning, self.staying])[self.place]
        return scores[None, :, :length, :length]


check("03.4", RandomScoresInTwoParts)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# A Parameter is trained as a whole, a buffer not at all. You need both. Then `forward` puts one table together.
#
# </details>
# <details><summary>Hint 2: where is forward?</summary>
#
# You write it too: a method `forward(self, x)` of the class. `R[fixed]` are the heads that stay, `R[~fixed]` the
# others. `torch.where(condition, a, b)` chooses number by number, with `fixed[:, None, None]` head by head.
#
# </details>
# <details><summary>Hint 3: the check lists what is "not so"</summary>
#
# Ask it yourself, with two heads: train for one step with `torch.optim.AdamW(module.parameters(), weight_decay=0.5)`
# and print the scores before and after, and the R that you gave. Is every tensor in `state_dict()`, the mask too? Does
# anything change that you gave, if you change the tensors of the module in place?
#
# </details>

# %% [markdown]
# ## What it costs
#
# The parameters are $l^2$ for each head, with $l$ for `max_length`. There is no $d$ in it. The dot product has $2d^2$,
# for its two projections to $Q$ and $K$: so for short sentences Random is smaller and for long ones larger. At $d =
# 512$ with 8 heads:

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


for max_length in (128, 256, 512):
    random, dot = Random(512, 8, max_length), DotProduct(512, 8, max_length, bias=False)
    assert parameters(random) == 8 * max_length**2 and parameters(Random(512, 8, max_length,
                                                                         fixed=True)) == 0
    print(f"l {max_length}: Random {parameters(random):9,}, dot product {parameters(dot):9,}")

# %% [markdown]
# The multiply-adds of the scores: **none**. There is nothing to compute, they are looked up. What remains in
# the layer is the average, $l^2 d$, and the two projections for values and output, $2\,l\,d^2$, a sentence.
# The counter of chapter 02:

# %%
def multiply_adds(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


for kind in (Random, Dense, DotProduct):
    count = multiply_adds(kind(12, head=3, max_length=8), two_sentences)
    print(f"scores of {kind.__name__:>10}: {count:5,}")
whole = multiply_adds(Attention(12, head=3, max_length=8, score="random"), two_sentences)
assert whole == 2 * (2 * 6 * 12**2 + 6**2 * 12)  # two sentences
print(f"Random, the whole layer: {whole:5,}")

# %% [markdown]
# The last two lines are equal, and that is no accident: the dot product pays $2\,l\,d^2$ for queries and keys and $l^2
# d$ for comparing them. **The whole layer of Random costs what the dot product pays for its scores alone.**
#
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
print(f"weights at positions 3 and 5: {one_row.softmax(dim=0)[3]:.2f}, "
      f"{one_row.softmax(dim=0)[5]:.2f}")
print(f"loss {loss:.2f}, and log 2 is {math.log(2):.2f}")

# %% [markdown]
# Half of the weight goes to the wrong position in either case, and the loss cannot go below $\log 2$: two
# weights of one row sum to at most 1. No training, width or learning rate changes that. More heads
# can look at both positions at once, but which of them counts in this sentence, the map will not say.
#
# ### Longer inputs are impossible
#
# Position 8 has no row and no column in an $R$ for 8 positions. And a position that training never saw stays as it
# was drawn: here all sentences have 6 words, and this is where $R$ gets a gradient.

# %%
random_8 = Random(d_model=12, head=3, max_length=8)
try:
    random_8(torch.randn(1, 9, 12))
except ValueError as error:
    print(error)
(random_8(two_sentences).softmax(dim=-1) @ value_heads).square().sum().backward()
for row in axes_longest((random_8.R.grad != 0).any(dim=0), "query key",
                        "got_gradient").int().tolist():
    print(*row)

# %% fold=true
# @title The same as the library's layer: a guard for values and gradients
layer = Attention(d_model=12, head=3, max_length=8, score="random")


def by_hand(x):
    weights = layer.score.R[:, : x.shape[1], : x.shape[1]].softmax(dim=-1)
    value = rearrange(layer.value(x), "batch key (head d_head) -> batch head key d_head", head=3)
    return layer.output(rearrange(weights @ value, "batch head query d_head -> batch "
                                                   "query (head d_head)"))


results = [by_hand(two_sentences), layer(two_sentences)[0]]
gradients = [torch.autograd.grad(result.square().sum(), list(layer.parameters()))
             for result in results]
assert equal(*results) and all(equal(*pair) for pair in zip(*gradients, strict=True))

# %% [markdown]
# ### Stretch 03.5: a map that follows one shuffle
#
# *20 minutes, hard.* A shuffle of the tokens left Random's map still, so the result was not the old result shuffled.
# Must that be so? Build scores for which it *is*: for one given shuffle, whatever the values are. Many maps do it, and
# the check asks only for what the docstring says. The series asks this because what a map may know is decided by what
# it must not notice: one that follows every shift is a convolution, one that follows every shuffle knows no positions.
#
# `x[order]` puts the token `order[i]` at position `i`; some may keep their places. The plain average follows every
# shuffle. What else is there, and when is there nothing else?

# %% exercise="03.5" points=1
def following_scores(order):
    """Scores whose map follows the shuffle `order`: averaging shuffled values gives the old result,
    shuffled.

    order: int64, length: each position once. length is at most 100.
    Returns scores, query key, float32, with length rows and columns. After the softmax along the
    keys, called weights:
        weights @ value[order] is (weights @ value)[order], for every value (key d_model);
        every row has one weight of at least 0.9, and never at its own position.
    Returns None where no scores do that.
    """
    ### BEGIN SOLUTION
    staying = (order == torch.arange(len(order))).nonzero().flatten()
    if len(staying) == 1:
        return None
    looks_at = order.clone()
    looks_at[staying] = staying.roll(1)
    return 9.0 * nn.functional.one_hot(looks_at, len(order)).float()
    ### END SOLUTION

# %% check="03.5"
check("03.5", following_scores)

# %% [markdown] solution="03.5"
# Row $i$ of the first line says: what position $i$ gives to $j$, position order$[i]$ must give to order$[j]$. If each
# position looks where the shuffle sends it, to order$[i]$, then order$[i]$ looks at order$[$order$[i]]$, and that is
# what is asked. A position that stays must give the same to $j$ and to order$[j]$, so its large weight can only lie at
# another one that stays: they look at each other in a circle, and one alone has nobody. The second way looks back along
# the shuffle; it writes weights, and takes logarithms.

# %% solution="03.5"
def following_backwards(order):
    length = len(order)
    staying = [i for i in range(length) if order[i] == i]
    weights = torch.full((length, length), 0.05 / length)
    for i in range(length):
        if order[i] != i:
            weights[order[i], i] = 0.95
        elif len(staying) > 1:
            weights[i, staying[staying.index(i) - 1]] = 0.95
        else:
            return None
    return weights.log()


check("03.5", following_backwards)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Say row $i$ looks at one position, $f(i)$. After the shuffle, the result at $i$ is the value that now stands at
# $f(i)$, so `value[order[f(i)]]`. Which one should it be?
#
# </details>
# <details><summary>Hint 2: I have an equation for f</summary>
#
# Follow one position along the shuffle: 0, `order[0]`, `order[order[0]]`, ... until you are back. Draw it as a circle.
# Which maps of the circle does a turn leave alone?
#
# </details>
# <details><summary>Hint 3: a position keeps its place</summary>
#
# Your equation for $f$ holds for it as well. If $i$ stays, what does it say of $f(i)$?
#
# </details>
# <details><summary>Hint 4: my map is not sharp</summary>
#
# You return scores: a 1 is a gap of 1. The section on gaps says how large it has to be, among `length` keys.
#
# </details>

# %% [markdown]
# ## A model of your own that writes
#
# A *language model* gives, after each token of a text, a probability for each token that may come next. To write, you
# draw a token from them, append it, and ask again.
#
# Here a token is a character, and the text is plays by Shakespeare. `LanguageModel` of the library stacks layers of
# attention and other parts, which chapter 07 builds, around any S. You give it yours: `OnlyR`, which says two things of
# itself. The model asks for the rows that it needs, and lets no token look at a later one, as you did in 03.1.

# %%
class OwnRandom(Score):
    """Your table, as a model asks for it."""

    reads_tokens = False  # one map for every sentence
    tables = ("R",)  # parameter_groups gives R 10 times the learning rate, and no weight decay

    def __init__(self, d_model, head, max_length):
        super().__init__(d_model, head, max_length)
        self.R = nn.Parameter(torch.randn(head, max_length, max_length) / math.sqrt(max_length))

    def rows(self, x, keys, length, start=0):
        return self.R[None, :, start : start + x.shape[1], :length]


axes_text = Axes(head=4, length=32, d_model=64)
scores = OwnRandom(64, head=4, max_length=32)(torch.randn(1, 32, 64))
scores = axes_text(scores[0], "head query key", "scores")

# %% [markdown]
# What must it beat? A *bigram table* counts which character follows which, how often, in the training text. It reads
# one character. The loss is the mean of $-\log$ of the probability that was given to the character that came, on text
# that nobody counted or learned. A guess among 65 characters has $\log 65 = 4.17$, the bigram table about 2.5. What
# will yours have after half a minute of training? Write a number for None.

# %%
my_loss = {"your Random": None}

# %%
tokenizer, splits = shakespeare("characters", corpus="tinyshakespeare")
_ = torch.manual_seed(0)
scores = [OwnRandom(64, head=4, max_length=32) for _ in range(2)]  # one for each layer
writer = LanguageModel(tokenizer.vocab, d_model=64, head=4, layer=2, max_length=32, score=scores)
adam = torch.optim.AdamW(parameter_groups(writer, 0.003, weight_decay=0.1), betas=(0.9, 0.95))
of_batches = torch.Generator().manual_seed(0)

# %% [markdown]
# 800 steps on windows of 32 characters. A bar shows the time left. You may interrupt: run the cell again, and it goes
# on from there.

# %%
def one_step(step):
    characters, following = random_windows(splits["train"], 32, 32, of_batches)
    loss = nn.functional.cross_entropy(writer(characters).flatten(0, 1), following.flatten())
    adam.zero_grad()
    loss.backward()
    adam.step()


_ = each(range(800), one_step, unit="step")

# %%
# Output varies: the losses and the text come from the training above.
bigram = torch.ones(tokenizer.vocab, tokenizer.vocab)  # 1 each, so that no pair is impossible
pairs = splits["train"][:-1], splits["train"][1:]
bigram.index_put_(pairs, torch.ones(len(pairs[0])), accumulate=True)
bigram /= bigram.sum(dim=1, keepdim=True)

characters, following = evaluation_windows(splits["valid"], 32, 400)
with torch.no_grad():
    own_loss = nn.functional.cross_entropy(writer(characters).flatten(0, 1),
                                           following.flatten()).item()
for order in (2, 3, 4):
    counted = ngram_loss(splits["train"], characters, following, order, tokenizer.vocab)
    assert order > 2 or own_loss < counted - 0.2
    print(f"counts, {order - 1} read before each character: {counted:.2f}"
          + " (the bigram table)" * (order == 2))
compare_guess(my_loss, {"your Random": f"{own_loss:.2f}"})

generator = torch.Generator().manual_seed(0)
first = tokenizer.encode("\n")
text = [int(first)]
for _ in range(240):
    text.append(int(torch.multinomial(bigram[text[-1]], 1, generator=generator)))
print(f"\n--- the bigram table writes\n{tokenizer.decode(text)}\n")
text = writer.generate(first[None], 240, generator=generator)[0]
print(f"--- your Random writes\n{tokenizer.decode(text)}")

# %% [markdown]
# It beats the bigram table, with a map that looks at no character. (Counts of more characters are a harder test: look
# at your numbers.) How can it? The map decides *where* to look, and the rest of the model reads *what* is there.
# Without a map it would see one character and its place. So which places has $R$ found? For each head of both
# layers, the mean weight that a row gives to itself, to the character before it, and to those two and three back:

# %%
# Output varies: the map comes from the training above.
maps = [axes_text(of_layer[0], "head query key", "map")
        for of_layer in writer.attention_maps(characters[:1])]
assert max(of_head.diagonal(-1)[8:].mean() for of_layer in maps for of_head in of_layer) > 0.3
for layer, of_layer in enumerate(maps):
    for head, of_head in enumerate(of_layer):
        back = [f"{of_head.diagonal(-offset)[8:].mean():.2f}" for offset in range(4)]
        print(f"layer {layer}, head {head}: itself {back[0]}, 1 back {back[1]}, 2 back {back[2]}, "
              f"3 back {back[3]}")
plots.show(
    plots.attention_map(maps[1], positions, titles=[f"head {head}" for head in range(4)]),
    "the maps of the four heads of the second layer after training. Above the diagonal all is "
    "white: no token looks at a later one. Where a head looks at a fixed distance back, a dark "
    "line runs beside the diagonal.",
)

# %% [markdown]
# Nobody wrote these shifts: training found what you wrote by hand in 03.2. Try more steps; or give `parameter_groups`
# an `r_learning_rate_factor=1`, and look at the maps. What Random is worth beside the other S is a question for equal
# tuning and several seeds: chapter 13.
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
