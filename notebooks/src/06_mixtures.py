# %% [markdown]
# # 06 · Mixtures, and Table 1 as a program
#
# **You mix any number of scores inside one softmax, train a small model and see which part each layer
# chooses. Then you compute the paper's Table 1, and read the numbers that a stranger's code prints.**
#
# - **Before you start:** chapters [01](01_dot_product.ipynb) to [05](05_factorized_random.ipynb). You know
#   the five scores that are mixed here, and what a module, a gradient and a Jacobian are.
# - **Time:** about 105 minutes, 55 of them for the four exercises.
# - **Level:** medium.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*, [arXiv
# 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %%
from math import log, sqrt

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F

from synth_lib import plots
from synth_lib.attention import Attention
from synth_lib.checks import check
from synth_lib.lab.curves import bars
from synth_lib.scores import Mixture, make_score
from synth_lib.shapes import Axes

torch.set_printoptions(precision=3, sci_mode=False)


def equal(a, b):
    """Same shape, same dtype, same values."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## The question
#
# You have five ways to score a pair of positions. The dot product compares two tokens, Dense reads the token
# that attends, Random reads no token at all, and the factorized scores are smaller versions of the last
# two. **Why choose? Can a layer use several, and learn how much of each?**
#
# Take one row of one map, that of the query "saw". Two *parts* have an opinion. Part 0 looks at neighbours,
# as Random can. Part 1 looks at nouns, as the dot product can. The scores are made up by hand: 4 for a
# position that the part wants, 0 for the others.

# %%
words = "the dog saw a small bird".split()
near = torch.tensor([0.0, 4.0, 0.0, 4.0, 0.0, 0.0])
noun = torch.tensor([0.0, 4.0, 0.0, 0.0, 0.0, 4.0])
inside = (0.5 * near + 0.5 * noun).softmax(dim=0)
for word, weight in zip(words, inside.tolist(), strict=True):
    print(f"{word:>6} {weight:.2f}")

# %% [markdown]
# Half of each, added up, then *one* softmax: most of the weight goes to "dog", which is near **and** a
# noun. Neither part alone could say that.
#
# ## The equations
#
# $$Y = \mathrm{softmax}\big(\alpha_1 S_1(X) + \dots + \alpha_N S_N(X)\big)\, G(X) \tag{8}$$
#
# Each $S_n$ is any score. Each $\alpha_n$ (alpha) is one number that training finds, and $\sum_n \alpha_n =
# 1$. The paper's example mixes Factorized Random with Dense:
#
# $$Y = \mathrm{softmax}\big(R_1 R_2^T + F(X)\big)\, G(X) \tag{9}$$
#
# | paper | here | shape, in axis names | what it is |
# |---|---|---|---|
# | $S_n(X)$ | `scores[n]` | query key | the scores of part $n$; we count from 0 |
# | $\alpha_n$ | `alphas[n]` | one number | how much part $n$ counts, the same for every query, key and head |
# | $\sum_n \alpha_n S_n(X)$ | `mixed` | query key | the scores of the mixture |
# | $\mathrm{softmax}(\cdot)$ | `weights` | query key | the attention map, one |
#
# As before, *weights* are the numbers of the attention map. So the $\alpha_n$ are called alphas here, never
# weights.
#
# > **How the sum stays 1.** The paper says that the alphas sum to 1. It does not say how this is kept
# > during training. We compute them as a softmax over $N$ learned numbers, the *logits*, which start at 0.
# > That is our choice.
#
# > **(9) has no alphas.** It is printed as a plain sum. We read it as an example of (8) whose alphas are
# > left out. Taken literally, both alphas are 1 and sum to 2. You see below what that changes.
#
# > **Scaling.** Of all parts only the dot product is divided by $\sqrt{d_\text{head}}$, as in chapter 01.
# > The section on scales shows what happens without it.
#
# ## The ladder: one equation, written four times
#
# For (8) it does not matter where the scores come from. Three tables of made-up numbers will do, in steps
# of 0.1. Every `draw` has a seed of its own, so a cell that you run twice gives the same.

# %%
def draw(seed, *shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-10 * high, 10 * high + 1, shape, generator=generator) / 10


axes = Axes(length=6, d_model=12)
scores = [axes(draw(seed, 6, 6, high=2), "query key", f"scores of part {seed}") for seed in range(3)]
alphas = torch.tensor([0.5, 0.3, 0.2])
print("the alphas sum to 1:", equal(alphas.sum(), torch.tensor(1.0)))

# %% [markdown]
# ### Loops say the equation aloud

# %%
def mix_with_loops(alphas, scores):
    mixed = torch.zeros_like(scores[0])
    for i in range(len(mixed)):  # the query
        for j in range(len(mixed)):  # the key
            for n in range(len(scores)):  # the part
                mixed[i, j] += alphas[n] * scores[n][i, j]
    return mixed


mixed = axes(mix_with_loops(alphas, scores), "query key", "mixed")
weights = axes(mixed.softmax(dim=-1), "query key", "weights")
print("every row sums to 1:", equal(weights.sum(dim=1), torch.ones(6)))

# %% [markdown]
# ### One sum of tables
#
# A number times a table is a table, so the loops over $i$ and $j$ go away.

# %%
def mix_with_sum(alphas, scores):
    return sum(alpha * table for alpha, table in zip(alphas, scores, strict=True))


print("same values:", equal(mix_with_sum(alphas, scores), mixed))

# %% [markdown]
# ### One matrix product
#
# `torch.stack` puts the tables on top of each other, along a new axis. With that axis last, each pair (*i*,
# *j*) holds its three scores side by side, and `@` multiplies them by the three alphas and adds.

# %%
def mix_with_matmul(alphas, scores):
    return torch.stack(scores, dim=-1) @ alphas


print("same values:", equal(mix_with_matmul(alphas, scores), mixed))

# %% [markdown]
# This needs tables of one shape. Random gives one map for the whole batch, "1 head query key", and Dense
# gives one for each sentence, "batch head query key". The plain sum copes: torch uses the one map for every
# sentence. So the library sums.
#
# ### Logits: alphas that stay on the simplex
#
# Numbers that are not negative and sum to 1 form the *simplex*. If training moved the alphas themselves,
# the first step would leave it. So it moves $N$ logits $t_n$, and a softmax makes the alphas of them:
#
# $$\alpha_n = e^{t_n} \,/\, (e^{t_1} + \dots + e^{t_N})$$
#
# Two softmaxes are in play now. This one runs over the parts. That of (8) runs over the keys.

# %%
for logits in ([0.0, 0.0, 0.0], [1.0, 0.0, -1.0], [4.0, 3.0, 2.0], [20.0, 0.0, 0.0]):
    print(logits, "->", " ".join(f"{alpha:.3f}" for alpha in torch.tensor(logits).softmax(dim=0)))

# %% [markdown]
# Equal logits give equal alphas: the start. Adding 3 to every logit changes nothing (rows two and three),
# because only differences count. With two parts a single number would do, a *sigmoid*, $1/(1 + e^{-t})$;
# the softmax does it for any number of parts:

# %%
difference = torch.tensor(0.7)
print("same:", equal(torch.tensor([0.7, 0.0]).softmax(dim=0)[0], 1 / (1 + torch.exp(-difference))))

# %% [markdown]
# ### A module holds its parts
#
# `nn.ModuleList` is a list whose modules' parameters are found by training. A part of ours, `Table`, is the
# simplest score there is: a table that is a parameter. (It is Random with one head.)

# %%
class Table(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table.clone())

    def forward(self, x):
        return self.table


class Mixed(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.logits = nn.Parameter(torch.zeros(len(parts)))

    def forward(self, x):
        alphas = self.logits.softmax(dim=0)
        return sum(alpha * part(x) for alpha, part in zip(alphas, self.parts, strict=True))


x = axes(draw(10, 6, 12, high=2), "length d_model", "x")
module = Mixed([Table(table) for table in scores])
_ = module.load_state_dict({"logits": alphas.log()}, strict=False)  # the logarithm undoes the softmax
print("same values:", equal(module(x), mixed))

# %% [markdown]
# `strict=False` lets `load_state_dict` set the logits alone and leave the tables.
#
# ### The gradients agree too
#
# We multiply the scores by fixed numbers, add up, and compare the gradients of that sum by the logits and
# by the three tables.

# %%
factors = draw(11, 6, 6, high=2)


def gradients(mix):
    logits, *tables = (tensor.clone().requires_grad_() for tensor in (alphas.log(), *scores))
    total = (mix(logits.softmax(dim=0), tables) * factors).sum()
    return torch.autograd.grad(total, [logits, *tables])


module.zero_grad()  # backward adds to what is there
(module(x) * factors).sum().backward()
of_module = [module.logits.grad, *(part.table.grad for part in module.parts)]
for mix in (mix_with_loops, mix_with_sum, mix_with_matmul):
    pairs = zip(gradients(mix), of_module, strict=True)
    print(f"{mix.__name__:>15}:", [equal(ours, theirs) for ours, theirs in pairs])
print("the gradients of the logits sum to 0:", bool(module.logits.grad.sum().abs() < 1e-4))

# %% [markdown]
# The last line is the simplex at work: what one part gains, the others lose.
#
# ### Exercise 06.1: mix maps inside one softmax
#
# *10 minutes, easy.* You get the scores of the parts and the logits. Return the attention map of the
# mixture. Some parts have one map for the whole batch.

# %% exercise="06.1" points=1
def mixed_map(scores, logits):
    """The attention map of equation (8), with alphas from a softmax over the logits.

    scores: a list with the scores of each part, "batch head query key", or "1 head query key" for a part that
    gives the whole batch the same scores. logits: a tensor with one number for each part, in the same order.
    Returns the weights, batch head query key.
    """
    ### BEGIN SOLUTION
    alphas = torch.softmax(logits, dim=0)
    total = sum(alphas[n] * scores[n] for n in range(len(scores)))
    return torch.softmax(total, dim=-1)
    ### END SOLUTION

# %% check="06.1"
check("06.1", mixed_map)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Two softmaxes. The first turns logits into alphas. What does the second one turn into what, and along
# which axis?
#
# </details>
# <details><summary>Hint 2: torch.stack fails</summary>
#
# The first axes differ, 1 and the size of the batch. Multiply and add the parts one by one instead: `+`
# uses the one map for every sentence. `+=` into a tensor fails as well if the first part has one map, for a
# tensor cannot grow: write `mixed = mixed + ...`.
#
# </details>
# <details><summary>Hint 3: the check says that some values are wrong</summary>
#
# Sum your alphas: do you get 1? Sum the rows of your result: 1 each? And is there any softmax between a
# part and the sum?
#
# </details>

# %% [markdown]
# ## Inside the softmax, not after it
#
# There is another way to mix: make a map of each part first, then average the maps, $\sum_n \alpha_n\,
# \mathrm{softmax}(S_n)$. The shapes are the same, the rows sum to 1, and the result is another one. Here is
# "saw" again:

# %%
def mix_inside(alphas, scores):
    return mix_with_sum(alphas, scores).softmax(dim=-1)


def mix_after(alphas, scores):
    return mix_with_sum(alphas, [table.softmax(dim=-1) for table in scores])


half = torch.tensor([0.5, 0.5])
after = mix_after(half, [near, noun])
of_near, of_noun = near.softmax(dim=0), noun.softmax(dim=0)
rows = {"near": of_near, "noun": of_noun, "inside": inside, "after": after}
fig = plots.attention_map(torch.stack(list(rows.values())), list(rows), keys=words)
_ = fig.axes[0].set_ylabel("map of 'saw'")
plots.show(
    fig,
    "four rows of weights for the query 'saw'. Part 0, near, looks at dog and a, part 1, noun, at dog and bird, "
    "each half and half. Mixed inside the softmax: dog is dark, all others are pale. Mixed after it: dog is dark grey, "
    "and a and bird keep a lighter grey each.",
)
for name, row in rows.items():
    print(f"{name:>6}", " ".join(f"{weight:.2f}" for weight in row.tolist()))

# %% [markdown]
# Mixing inside asks for positions that part 0 **and** part 1 want. Mixing after asks for positions that part 0
# **or** part 1 wants. The reason is in one line: an exponential turns a sum into a product. In each row the
# map of the mixture is the *product* of the parts' maps, each to the power of its alpha, divided by its
# sum. After the softmax it is their average.

# %%
maps = [table.softmax(dim=-1) for table in scores]
product = axes(maps[0] ** 0.5 * maps[1] ** 0.3 * maps[2] ** 0.2, "query key", "product")
from_product = product / product.sum(dim=1, keepdim=True)
print("inside is the product of powers:", equal(mix_inside(alphas, scores), from_product))
print("inside equals after:            ", equal(mix_inside(alphas, scores), mix_after(alphas, scores)))

# %% [markdown]
# So one part can *forbid* a position inside: a very low score there survives the sum. After the softmax it
# cannot. Let part 1 forbid "dog":

# %%
forbids = torch.tensor([0.0, -60.0, 0.0, 0.0, 0.0, 0.0])
print(f"weight of dog, inside: {mix_inside(half, [near, forbids])[1]:.2f}")
print(f"weight of dog, after:  {mix_after(half, [near, forbids])[1]:.2f}")

# %% [markdown]
# ### When the two agree
#
# Only in special cases. Three of them:

# %%
S = scores[0]
mirrored = [torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])]
cases = {
    "one alpha is 1": (torch.tensor([0.0, 1.0, 0.0]), scores),
    "every part has the same map": (half, [S, S + draw(12, 6, 1, high=2)]),  # a constant in each row
    "two mirrored rows of two positions": (half, mirrored),
}
for name, case in cases.items():
    print(f"{name:>31}:", equal(mix_inside(*case), mix_after(*case)))

# %% [markdown]
# A test that uses one of these cases cannot tell the two apart. Tests of the second kind are easy to write
# by accident: one table, used twice.
#
# ## The limits
#
# ### One logit far away
#
# Let the logit of part 0 run away from the others, which stay at 0. The mixture becomes part 0:

# %%
for gap in (0, 1, 2, 5, 10):
    far = torch.tensor([gap, 0.0, 0.0]).softmax(dim=0)
    distance = (mix_inside(far, scores) - scores[0].softmax(dim=-1)).abs().max()
    print(f"logit {gap:2}: alpha {far[0]:.3f}, distance to the map of part 0: {distance:.3f}")

# %% [markdown]
# With the layer of the library: it has two parts, and one logit is 30 above the other. Its output equals
# that of a layer with this part alone. (`head=3`, so `d_head` is 4.)

# %%
axes_heads = Axes(batch=2, head=3, length=6, d_model=12)
sentences = axes_heads(draw(13, 2, 6, 12, high=2), "batch length d_model", "sentences")
_ = torch.manual_seed(0)
both = Attention(d_model=12, head=3, max_length=6, score="random + dense")
for n, name in enumerate(["random", "dense"]):
    alone = Attention(d_model=12, head=3, max_length=6, score=both.score.parts[n])
    alone.value, alone.output = both.value, both.output
    with torch.no_grad():
        both.score.logits.zero_()
        start = both(sentences)[0]
        both.score.logits[n] = 30.0
    print(f"{name:>6}: equal at the start {equal(start, alone(sentences)[0])}, "
          f"in the limit {equal(both(sentences)[0], alone(sentences)[0])}")

# %% [markdown]
# ### Equal parts
#
# If all parts give the same scores, the alphas cannot matter, and the mixture is that part:

# %%
print("same:", all(equal(mix_with_sum(a, [S, S, S]), S) for a in (alphas, torch.tensor([0.0, 0.1, 0.9]))))

# %% [markdown]
# ### A part that is switched off stops learning
#
# The gradient of part $n$ comes through $\alpha_n$, so it shrinks with it. A part whose alpha is nearly 0
# hardly moves the map, and hardly learns. Here is the largest gradient of `scores[1]` while the logit of
# part 0 runs away. The first line, logit 0, is the start, and the others are shares of it:

# %%
def gradient_of_part_1(gap):
    table = scores[1].clone().requires_grad_()
    far = torch.tensor([gap, 0.0, 0.0]).softmax(dim=0)
    total = (mix_inside(far, [scores[0], table, scores[2]]) * factors).sum()
    return torch.autograd.grad(total, table)[0].abs().max()


for gap in (0, 5, 10):
    print(f"logit {gap:2}: {gradient_of_part_1(gap) / gradient_of_part_1(0):.3f} of the gradient at the start")

# %% [markdown]
# So alphas that start equal are a careful choice: every part can learn from the first step.
#
# ## Scales: how an unscaled dot product swallows R
#
# Equal alphas are no equal say. What counts in (8) is $\alpha_n S_n$, and a part with large scores talks
# over the others. You find code that adds R to $Q K^T$ and forgets to divide by $\sqrt{d_\text{head}}$.
# Rebuild it: one head, `d_model` 1024, 32 tokens whose features have mean 0 and spread 1. *Spread* is short
# for standard deviation.
#
# $R$ starts with `xavier_uniform_`, which chapter 03 explains, on a tensor with three axes.

# %%
axes_wide = Axes(length=32, d_model=1024)
_ = torch.manual_seed(0)
tokens = axes_wide(torch.randn(32, 1024), "length d_model", "tokens")
to_query, to_key = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)
R = axes_wide(nn.init.xavier_uniform_(torch.empty(1, 32, 32))[0], "query key", "R")
with torch.no_grad():
    unscaled = axes_wide(to_query(tokens) @ to_key(tokens).T, "query key", "unscaled")
scaled = axes_wide(unscaled / sqrt(1024), "query key", "scaled")
for name, table in {"unscaled": unscaled, "scaled": scaled, "R": R}.items():
    print(f"{name:>8}: spread {table.std():.2f}")

# %% [markdown]
# The unscaled scores are more than 200 times as large as $R$. The number is no accident. A linear layer of
# torch starts with spread $1/\sqrt{3d}$, so each number of $Q$ and $K$ has spread $\sqrt{1/3}$, and a sum
# of $d$ products of two of them has spread $\sqrt{d}/3$:

# %%
print(f"predicted for d 1024: {sqrt(1024) / 3:.1f}, and scaled: {1 / 3:.2f}")

# %% [markdown]
# What does $R$ change in the map? Compare the weights with and without it. *Moved* is the share of a row's
# weight that goes to other positions, half the sum of the changes, on average over the rows. For reference:
# $R$ added to nothing at all.

# %%
def effect(table):
    before, with_R = table.softmax(dim=-1), (table + R).softmax(dim=-1)
    change = (with_R - before).abs()
    return change.max().item(), change.sum(dim=1).mean().item() / 2, before.amax(dim=1).mean().item()


effects = {name: effect(table) for name, table in
           {"nothing": torch.zeros(32, 32), "scaled": scaled, "unscaled": unscaled}.items()}
for name, (largest, moved, top) in effects.items():
    assert largest < 0.03
    print(f"R + {name:>8}: largest change of a weight {largest:.3f}, "
          f"moved {100 * moved:.1f} % of a row, largest weight of a row {top:.2f}")
assert effects["unscaled"][1] < 0.5 * effects["scaled"][1]

# %% [markdown]
# Beside the *scaled* dot product $R$ moves as much of a row as it does alone. Beside the *unscaled* one most of
# that is gone: the map has decided for one key in most rows before $R$ is asked, and $R$ moves no weight by more
# than 0.03. (The largest change of a single weight is no good measure. A single weight of an undecided row can
# still jump, and weights near $1/32 \approx 0.03$, as in the other two, cannot change by much. So look at the
# average, what moved.)
#
# And $R$ cannot fight back. The softmax passes a gradient in proportion to $p\,(1 - p)$, where $p$ is a weight,
# and that is small where $p$ is near 0 or 1:

# %%
for name, table in {"scaled": scaled, "unscaled": unscaled}.items():
    p = table.softmax(dim=-1)
    print(f"{name:>8}: sum of p (1 - p) in a row, on average {(p * (1 - p)).sum(dim=1).mean():.2f}")

# %% [markdown]
# Could the alphas mend it? They would have to make the two spreads equal. That is a distance between the
# two logits of:

# %%
print(f"scaled: {log(scaled.std() / R.std()):.1f}, unscaled: {log(unscaled.std() / R.std()):.1f}")

# %% [markdown]
# With Adam at a learning rate of 0.001 a logit moves about 0.001 a step (chapter 03), so thousands of
# steps. The scaled dot product is still the louder of the two: this $R$ starts very small. The library
# starts $R$ with spread $1/\sqrt{l}$, and scales the dot product:

# %%
_ = torch.manual_seed(0)
for name in ("dot_product", "random", "factorized_dense"):
    start = make_score(name, d_model=1024, head=1, max_length=32)(tokens[None])
    print(f"{name:>16}: spread {start.std():.2f}")

# %% [markdown]
# So here $R$ starts with about half the spread of the dot product. Do not count on that for every layer and part:
# in a longer layer $R$ starts smaller, and Factorized Dense is quieter still.
#
# ### What (9) without alphas changes
#
# Now (9) itself, with the library's parts: Factorized Random gives $R_1 R_2^T$, Dense gives $F(X)$. Alphas of 1
# and 1 instead of ½ and ½ double all mixed scores. The order of the positions stays, the map becomes sharper:

# %%
_ = torch.manual_seed(0)
nine = make_score("factorized_random + dense", d_model=12, head=3, max_length=6, rank=2, initial_scale=1.0)
factorized, F_of_X = (part(sentences) for part in nine.parts)
literal = axes_heads(factorized + F_of_X, "batch head query key", "literal")
with_alphas = axes_heads(nine(sentences), "batch head query key", "with_alphas")
print("twice the scores:", equal(literal, 2 * with_alphas))
print("the same position is darkest in each row:", equal(literal.argmax(dim=-1), with_alphas.argmax(dim=-1)))
top, top_with_alphas = (table.softmax(dim=-1).amax(dim=-1) for table in (literal, with_alphas))
print("its weight is larger in each row:", bool((top > top_with_alphas).all()))

# %% [markdown]
# ## Any number of parts
#
# The library makes a mixture of any names joined by `+`. All five at once:

# %%
names = ["dot_product", "dense", "random", "factorized_dense", "factorized_random"]
_ = torch.manual_seed(0)
score = make_score(" + ".join(names), d_model=12, head=3, max_length=6, a=2, b=3, rank=4)
five = axes_heads(score(sentences), "batch head query key", "five")
print("parts: ", [type(part).__name__ for part in score.parts])
print("alphas:", score.weights.detach())

# %% [markdown]
# Each option goes to the parts that know it: `a` and `b` to Factorized Dense, `rank` to Factorized Random.
# (In the library the alphas are called `weights`.)
#
# The parameters add up, plus one logit for each part. So do the multiply-adds.

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


print({name: parameters(part) for name, part in zip(names, score.parts, strict=True)})
print("the parts and 5 logits:", sum(map(parameters, score.parts)) + 5)
print("the mixture:           ", parameters(score))

# %% [markdown]
# ### What moves when one token changes
#
# A mixture reads whatever one of its parts reads. Change token 1 of each sentence, and see which rows of
# the scores move:

# %%
changed = sentences.clone()
changed[:, 1] = draw(14, 12, high=2)
pictures = {}
for name in ("random + factorized_random", "random + dense", "dense + dot_product"):
    _ = torch.manual_seed(0)
    score = make_score(name, d_model=12, head=3, max_length=6)
    difference = (score(changed) - score(sentences)).detach().abs()
    pictures[name] = difference[0].amax(dim=0)
    print(f"{name:>26}: rows that move {(pictures[name].amax(dim=1) > 1e-6).nonzero().flatten().tolist()}")

# %%
largest = [picture / picture.max().clamp(min=1e-9) for picture in pictures.values()]
titles = ["random +\nfact. random", "random +\ndense", "dense +\ndot product"]
names_of_positions = [str(position) for position in range(6)]
plots.show(
    plots.attention_map(torch.stack(largest), names_of_positions, titles=titles, label="change (1 = largest)"),
    "how much each score changes when token 1 changes, in three mixtures. Random and Factorized Random: "
    "nothing. Random and Dense: row 1 alone. Dense and dot product: all rows, for the dot product compares.",
)

# %% [markdown]
# ## What the alphas learn
#
# Now let training choose. We need tasks for which we know which score helps. A sentence has 12 tokens. A
# token is a letter and a digit. Each of the letters A to F occurs twice, at random positions: the two are
# *twins*. The digits, 0 to 7, are random. For every token the model must name a digit:
#
# | task | the digit of | what it takes |
# |---|---|---|
# | next | the next token (after the last comes the first) | the *position* |
# | twin | the other token with the same letter | a *comparison* |
# | after the twin | the token after the twin | first the one, then the other |

# %%
LETTERS, DIGITS, LENGTH = 6, 8, 12
axes_task = Axes(batch=64, length=12, d_model=32)


def sentences_and_answers(task, generator, batch):
    """-> letters, digits and wanted digits, whole numbers, each "batch length"."""
    order = torch.rand(batch, LENGTH, generator=generator).argsort(dim=1)  # a random order for each sentence
    letters = order % LETTERS
    digits = torch.randint(DIGITS, (batch, LENGTH), generator=generator)
    same_letter = letters[:, :, None] == letters[:, None, :]
    others = ~torch.eye(LENGTH, dtype=torch.bool)  # no token is its own twin
    twin = (same_letter & others).int().argmax(dim=2)  # the one position that is left
    position = torch.arange(LENGTH).expand(batch, LENGTH)
    looked_at = {"next": (position + 1) % LENGTH, "twin": twin, "after the twin": (twin + 1) % LENGTH}[task]
    return letters, digits, digits.gather(1, looked_at)  # gather picks, in each row, the positions looked at

# %% [markdown]
# One sentence of each, to read:

# %%
for task in ("next", "twin", "after the twin"):
    shown = sentences_and_answers(task, torch.Generator().manual_seed(3), batch=64)
    letters, digits, wanted = (axes_task(table, "batch length") for table in shown)
    pairs = zip(letters[0].tolist(), digits[0].tolist(), strict=True)
    print(f"{task:>14}: {' '.join('ABCDEF'[letter] + str(digit) for letter, digit in pairs)}")
    print(" " * 15, "  ".join(str(digit) for digit in wanted[0].tolist()))

# %% [markdown]
# The model is small: two layers of attention with one head. `nn.Embedding` is a table with a learned row of
# features for each letter, or digit; the two rows of a token are added. Each layer *adds* what it finds to
# the features. A last linear layer turns them into 8 logits, one for each digit.
#
# Nothing tells the model the position of a token. So the dot product cannot know positions, and Random cannot
# compare.

# %%
class TwoLayers(nn.Module):
    def __init__(self, score, d_model=32):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, d_model)
        self.digit = nn.Embedding(DIGITS, d_model)
        self.layers = nn.ModuleList(Attention(d_model, 1, LENGTH, score) for _ in range(2))
        self.answer = nn.Linear(d_model, DIGITS)

    def forward(self, letters, digits):
        x = self.letter(letters) + self.digit(digits)
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.answer(x)

# %% [markdown]
# Training is the loop of chapter 03, with three learning rates: R gets a larger one, for the reason given
# there, and the logits of the alphas get 10 times the rate of the rest, so that a few hundred
# steps are enough to see them move.

# %%
def rates(model):
    """Three groups of parameters for Adam."""
    groups = {"R": 0.1, "logits": 0.03, "rest": 0.003}
    grouped = {group: [] for group in groups}
    for name, parameter in model.named_parameters():
        last = name.split(".")[-1]
        grouped[last if last in groups else "rest"].append(parameter)
    return [{"params": grouped[group], "lr": rate} for group, rate in groups.items() if grouped[group]]


STEPS = {"next": 150, "twin": 150, "after the twin": 250}


def train(task, score, seed):
    torch.manual_seed(seed)
    model, generator = TwoLayers(score), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(rates(model))
    for _ in range(STEPS[task]):
        letters, digits, wanted = sentences_and_answers(task, generator, batch=64)
        loss = F.cross_entropy(model(letters, digits).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def share_right(model, task):
    """The share of right digits in 200 new sentences."""
    letters, digits, wanted = sentences_and_answers(task, torch.Generator().manual_seed(999), batch=200)
    with torch.no_grad():
        return (model(letters, digits).argmax(dim=-1) == wanted).float().mean().item()

# %% [markdown]
# `F.cross_entropy` is the loss, minus the logarithm of the probability given to the wanted digit, on
# average.
#
# **Predict:** three tasks, three scores (Random, dot product, their mixture). Which of the nine
# combinations can work? A model that knows nothing better names the most frequent digit of the sentence.

# %%
tasks = ("next", "twin", "after the twin")
alone = {
    (task, name): share_right(train(task, name, seed=0), task)
    for task in tasks for name in ("random", "dot_product")
}
trained = {(task, seed): train(task, "random + dot_product", seed) for task in tasks for seed in (0, 1)}

_, digits, wanted = sentences_and_answers("twin", torch.Generator().manual_seed(999), batch=200)
most_frequent = (digits.mode(dim=1, keepdim=True).values == wanted).float().mean().item()
print("the most frequent digit is right for fewer than 35 %:", most_frequent < 0.35)

# %%
def verdict(share):
    assert share > 0.95 or share < 0.4  # solved, or no better than the most frequent digit
    return "solved" if share > 0.95 else "fails"


print(f"{'':>14}  random  dot_product  random + dot_product")
for task in tasks:
    mixture = {verdict(share_right(trained[task, seed], task)) for seed in (0, 1)}  # the same for both seeds
    one, other = verdict(alone[task, "random"]), verdict(alone[task, "dot_product"])
    print(f"{task:>14}  {one:6}  {other:11}  {' '.join(mixture)}")

# %% [markdown]
# Each part alone solves the task that is made for it. The mixture solves all three. The last task needs
# both: no single score solves it.
#
# And the alphas? Bars show Random's alpha in each layer, the mean of two seeds; the dot product has the
# rest up to 1. At the start every bar stood at 0.5.

# %%
alpha = {
    (task, layer): [trained[task, seed].layers[layer].score.weights[0].item() for seed in (0, 1)]
    for task in tasks for layer in (0, 1)
}
short = {"next": "next", "twin": "twin", "after the twin": "after"}
named = {f"{short[task]}\nlayer {layer}": values for (task, layer), values in alpha.items()}
fig = bars(named, label="alpha of Random")
fig.axes[0].axhline(0.5, color="grey", linewidth=1)
fig.axes[0].tick_params(axis="x", labelsize=8, labelrotation=0)
plots.show(
    fig,
    "the alpha of Random after training, for three tasks and two layers. Next: above one half in both layers. "
    "Twin: below one half in both. After (the twin): nearly 1 in layer 0, clearly lower in layer 1.",
)

# %% [markdown]
# The numbers differ a little between machines. What we claim about them is checked, for both seeds:

# %%
for seed in (0, 1):
    of_seed = {key: values[seed] for key, values in alpha.items()}
    assert of_seed["next", 0] > 0.65 and of_seed["next", 1] > 0.65
    assert of_seed["twin", 0] < 0.45 and of_seed["twin", 1] < 0.45
    assert of_seed["after the twin", 0] > 0.85
    assert of_seed["after the twin", 0] - of_seed["after the twin", 1] > 0.2
print("next: Random above 0.65 in both layers")
print("twin: the dot product above 0.55 in both layers")
print("after the twin: Random above 0.85 in layer 0, and at least 0.2 lower in layer 1")

# %% [markdown]
# ### An alpha is not a share of the work
#
# In layer 1 of the last task the alpha of Random is still not small. Does Random do half the work there? Ask
# in another way: replace the scores of one part by 0 and count again. A *forward hook* is a function that may
# replace what a module returns.

# %%
def share_without(model, task, layer, part):
    module = model.layers[layer].score.parts[part]
    hook = module.register_forward_hook(lambda module, inputs, scores: torch.zeros_like(scores))
    share = share_right(model, task)
    hook.remove()
    return share


last = [trained["after the twin", seed] for seed in (0, 1)]
for model in last:
    left = {(layer, part): share_without(model, "after the twin", layer, part)
            for layer in (0, 1) for part in (0, 1)}
    assert left[0, 0] < 0.4 and left[0, 1] > 0.9  # layer 0: Random decides, the dot product does nothing
    assert left[1, 1] < 0.4 and 0.45 < left[1, 0] < 0.75  # layer 1: the dot product decides, Random helps
print("layer 0 without Random fails, without the dot product it still works")
print("layer 1 without the dot product fails, without Random about half is right")

# %% [markdown]
# So in layer 1 the dot product decides, and Random helps. How? Look at what Random adds to the scores in both
# layers: $\alpha R$, moved and stretched so that the lowest entry of a layer is 0 and the highest is 1.

# %%
def table_of_random(model, layer):
    score = model.layers[layer].score
    return axes_task(score.weights[0] * score.parts[0].R[0], "query key", "alpha R").detach()


def stretched(table):
    return (table - table.min()) / (table.max() - table.min())


pictures = torch.stack([stretched(table_of_random(last[0], layer)) for layer in (0, 1)])
numbers = [str(position) for position in range(LENGTH)]
plots.show(
    plots.attention_map(pictures, numbers, titles=["layer 0", "layer 1"], label="alpha R, stretched"),
    "two tables of 12 times 12 numbers, R after training on the last task. Layer 0: in each row the position before "
    "the query is darkest. Layer 1: in each row the position after the query is white.",
)
i = torch.arange(LENGTH)
for model in last:
    assert table_of_random(model, 0).argmax(dim=1).equal((i - 1) % LENGTH)
    assert table_of_random(model, 1).argmin(dim=1).equal((i + 1) % LENGTH)
print("layer 0: every row of R is highest at the position before the query, for both seeds")
print("layer 1: every row of R is lowest at the position after the query, for both seeds")

# %% [markdown]
# Now you can read what the model does:
#
# 1. **Layer 0, Random.** Every token fetches the features of the token *before* it. Now it knows which letter
#    stands before it.
# 2. **Layer 1, dot product.** Every token looks for tokens with *its own letter before them*. There are two:
#    the token after its twin, which is wanted, and its own next neighbour.
# 3. **Layer 1, Random.** The dot product cannot tell these two apart, because nothing tells it the positions.
#    Random can: it forbids the position after the query.
#
# You may have expected another way: first fetch the digit of the next token, then look for the twin. Training
# found this one, with both seeds.
#
# "My letter stands before it, **and** it is not my neighbour": the *and* of a sum inside one softmax. Without
# the third step half of the weight goes to the wrong one of the two. Is that so? Measure the weight on both:

# %%
def weight_on(model, with_random):
    """The mean weight, in layer 1, on the position after the twin and on the position after the query.

    with_random: 1 to keep the scores of Random, 0 to leave them out.
    """
    letters, digits, _ = sentences_and_answers("after the twin", torch.Generator().manual_seed(998), batch=64)
    x = model.letter(letters) + model.digit(digits)
    x = axes_task(x + model.layers[0](x)[0], "batch length d_model", "x")
    parts = model.layers[1].score
    total = parts.weights[1] * parts.parts[1](x) + with_random * table_of_random(model, 1)
    weights = axes_task(total.softmax(dim=-1)[:, 0], "batch query key", "weights").detach()
    same_letter = letters[:, :, None] == letters[:, None, :]
    own = torch.eye(LENGTH, dtype=torch.bool).expand_as(same_letter)
    twin_follower, follower = (mark.roll(1, dims=2) for mark in (same_letter & ~own, own))
    return weights[twin_follower].mean().item(), weights[follower].mean().item()


for model in last:
    (wanted_with, other_with), (wanted_without, other_without) = weight_on(model, 1), weight_on(model, 0)
    assert wanted_with > 0.8 and other_with < 0.1
    assert 0.25 < wanted_without < 0.6 and 0.25 < other_without < 0.6
print("with Random:    more than 0.8 of the weight on the token after the twin")
print("without Random: 0.25 to 0.6 on it, and 0.25 to 0.6 on the next neighbour")

# %% [markdown]
# So read alphas with care. They multiply scores whose sizes are learned too, and a part with the smaller alpha
# may decide. To know what a part does, switch it off.
#
# ## Table 1 as a program
#
# Table 1 of the paper says, for each score, what it is *conditioned on* (which tokens it reads), whether
# its map is *local* (each sentence has its own) or *global* (one for all), whether tokens *interact*, and
# how many parameters it has. You have met every entry in its chapter. Now a program fills in the whole
# table, and we compare.
#
# The sizes are all different, so that no formula fits by accident. Table 1 counts one head and no biases.

# %%
d, l, k, a, b = 12, 10, 3, 2, 5
_ = torch.manual_seed(0)
family = {
    "dot_product": make_score("dot_product", d, 1, l, bias=False),
    "random": make_score("random", d, 1, l),
    "factorized_random": make_score("factorized_random", d, 1, l, rank=k),
    "dense": make_score("dense", d, 1, l, bias=False),
    "factorized_dense": make_score("factorized_dense", d, 1, l, a=a, b=b, bias=False),
}
axes_table = Axes(batch=4, length=10, d_model=12)
x_table = axes_table(draw(15, 4, 10, 12, high=2), "batch length d_model", "x_table")

# %% [markdown]
# > **What differs from the paper's layers.** Biases are left out here; the layers have them unless you say
# > `bias=False`. With more heads Random and Factorized Random have one table for each head, so $l^2$ and
# > $2\,l\,k$ are counts per head. The other three split their $d$ features among the heads, and their
# > counts stay. Factorized Dense has one hidden layer that both short outputs share; only then the count of
# > Table 1 holds.
#
# ### S(X): the first column
#
# Does each module compute the formula that the paper prints? Here are the five formulas, one line each. The
# library's `.weight` of a linear layer has its output axis first, so it is transposed; `[0]` takes head 0.
#
# > **Scaling.** The paper's table prints the dot product without $\sqrt{d_\text{head}}$. We divide, as the
# > Transformer does.

# %%
def dot_product(S, x):
    return (x @ S.query.weight.T) @ (x @ S.key.weight.T).T / sqrt(d)


def dense(S, x):
    return (x @ S.hidden.weight.T).relu() @ S.weight[0]


def factorized_dense(S, x):
    hidden = (x @ S.hidden.weight.T).relu()
    return (hidden @ S.weight_a[0]).repeat(1, b) * (hidden @ S.weight_b[0]).repeat_interleave(a, dim=1)


formulas = {
    "dot_product": dot_product,
    "random": lambda S, x: S.R[0],
    "factorized_random": lambda S, x: S.R1[0] @ S.R2[0].T,
    "dense": dense,
    "factorized_dense": factorized_dense,
}
for name, score in family.items():
    expected = axes_table(formulas[name](score, x_table[0]), "query key", name)
    print(f"{name:>17}: same values {equal(score(x_table)[0, 0], expected)}")

# %% [markdown]
# ### Conditioned on, sample, interacts
#
# The Jacobian of chapter 02 holds the derivative of every score by every input number. If the block of row
# $i$ and token $n$ holds anything but 0, row $i$ reads token $n$. From this table of True and False two of
# the columns follow. For the third we compare the scores of two sentences.

# %%
def read_tokens(score, x):
    """Which row reads which token: True or False, "query length"."""
    jacobian = torch.autograd.functional.jacobian(lambda x: score(x[None])[0], x)
    axes_table(jacobian, "head query key length d_model", "jacobian")
    return jacobian.abs().amax(dim=(0, 2, 4)) > 0


def conditioned_on(reads):
    own = torch.eye(len(reads), dtype=torch.bool)
    if reads.all():
        return "X_j for all j"
    if reads.equal(own):
        return "X_i"
    return "some tokens" if reads.any() else "nothing"


def row_of_table(score):
    reads = read_tokens(score, x_table[0])
    others = reads & ~torch.eye(len(reads), dtype=torch.bool)
    one, other = score(x_table[:1]), score(x_table[1:2])
    return conditioned_on(reads), "global" if equal(one, other) else "local", "yes" if others.any() else "no"


computed = {name: row_of_table(score) for name, score in family.items()}
for name, row in computed.items():
    print(f"{name:>17}: {row[0]:13}  {row[1]:6}  interacts: {row[2]}")

# %% [markdown]
# The same program reads any score, also those that Table 1 does not list:

# %%
_ = torch.manual_seed(0)
others = ("fixed_random", "random + factorized_random", "random + dense", "dense + factorized_dense",
          "random + dot_product")
for name in others:
    row = row_of_table(make_score(name, d, 1, l))
    print(f"{name:>26}: {row[0]:13}  {row[1]:6}  interacts: {row[2]}")

# %% [markdown]
# A mixture reads what its most curious part reads.
#
# ### Exercise 06.2: the row of any score function
#
# *20 minutes, hard.* Write the program for score functions that you cannot differentiate: change a token
# and look. Your function gets one score function of a stranger and two sentences.

# %% exercise="06.2" points=3
def table_row(score, x, other):
    """What a score function reads: one row of Table 1.

    score: a function, "batch length d_model" -> "batch head query key", or "1 head query key" if every
    sentence gets the same. Twice the same input gives twice the same scores.
    x, other: two different sentences, each "1 length d_model".
    Returns a tuple of three texts:
    - "nothing" if no row of the scores ever moves when a token changes; "own token" if rows move, but each
      only when its own token changes; "other tokens" if some row moves when the token at another position does.
    - "global" if x and other get the same scores, else "local".
    - "yes" if some row moves when the token at another position changes, else "no".
    A score moves if it changes by more than 0.00001.
    """
    ### BEGIN SOLUTION
    length, d_model = x.shape[1:]
    moves = torch.zeros(length, length, dtype=torch.bool)
    for n in range(length):
        moved = x.clone()
        moved[0, n] += torch.linspace(0.5, 1.5, d_model)
        moves[:, n] = (score(moved) - score(x)).abs().amax(dim=(0, 1, 3)) > 1e-5
    interacts = bool(moves[~torch.eye(length, dtype=torch.bool)].any())
    reads = "other tokens" if interacts else "own token" if moves.any() else "nothing"
    differs = bool((score(x) - score(other)).abs().max() > 1e-5)
    return reads, "local" if differs else "global", "yes" if interacts else "no"
    ### END SOLUTION

# %% check="06.2"
check("06.2", table_row)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With a table of True and False, like `reads` above: entry [i, n] says whether row i moves when token n
# changes. Fill it column by column. All three answers can be read from it, and from one comparison of `x`
# and `other`.
#
# </details>
# <details><summary>Hint 2: the check says that one score function is read wrongly</summary>
#
# Its name says what it does. Do you change every number of the token, every token, and look at every row,
# key and head? Changes up and changes down must not cancel: absolute values first.
#
# </details>
# <details><summary>Hint 3: the sizes</summary>
#
# `length, d_model = x.shape[1:]`. Copy with `x.clone()` before you change a token: `moved[0, n] += 1`
# changes all numbers of token n. `torch.eye(length, dtype=torch.bool)` is True where i equals n.
#
# </details>

# %% [markdown]
# ### Parameters by formula and by count

# %%
parameter_formulas = {
    "dot_product": 2 * d**2,
    "random": l**2,
    "factorized_random": 2 * l * k,
    "dense": d**2 + d * l,
    "factorized_dense": d**2 + d * (a + b),
}
for name, formula in parameter_formulas.items():
    print(f"{name:>17}: formula {formula:3}, counted {parameters(family[name]):3}")

# %% [markdown]
# And with three heads, or with biases?

# %%
for name in parameter_formulas:
    options = {"factorized_random": {"rank": k}, "factorized_dense": {"a": a, "b": b}}.get(name, {})
    heads = [parameters(make_score(name, d, head, l, bias=False, **options)) for head in (1, 3)]
    print(f"{name:>17}: 1 head {heads[0]:3}, 3 heads {heads[1]:3}, "
          f"3 heads with biases {parameters(make_score(name, d, 3, l, **options)):3}")

# %% [markdown]
# ### Exercise 06.3: the bill of a mixture
#
# *10 minutes, medium.* Count the parameters of a mixture from the names of its parts.

# %% exercise="06.3" points=2
def mixture_parameters(names, d_model, head, max_length, rank, tile, repeat):
    """The number of parameters of a Mixture, without biases, a whole number.

    names: a list with at least two names, each "dot_product", "dense", "random", "fixed_random",
    "factorized_dense" or "factorized_random". A name may occur more than once: each time is a part of its own.
    rank is k, tile and repeat are a and b, max_length is l. A parameter is what training may change; the
    logits of the alphas are parameters too.
    """
    ### BEGIN SOLUTION
    counts = {
        "dot_product": 2 * d_model**2,
        "dense": d_model**2 + d_model * max_length,
        "random": head * max_length**2,
        "fixed_random": 0,
        "factorized_dense": d_model**2 + d_model * (tile + repeat),
        "factorized_random": head * 2 * max_length * rank,
    }
    return sum(counts[name] for name in names) + len(names)
    ### END SOLUTION

# %% check="06.3"
check("06.3", mixture_parameters)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With a dictionary from each name to its number of parameters. The count with three heads above tells which
# of them depend on `head`.
#
# </details>
# <details><summary>Hint 2: my number is a little off</summary>
#
# A little too small: what belongs to the mixture and to none of its parts? Too large: which table is never
# trained?
#
# </details>
# <details><summary>Hint 3: ask the library</summary>
#
# `parameters(make_score("random + dense", 12, 3, 10, bias=False))` counts a mixture. Add `rank=`, `a=` and
# `b=` where a part needs them.
#
# </details>

# %% [markdown]
# ### Multiply-adds by formula and by torch's counter
#
# As in chapter 02, for the scores of a whole batch. Random has nothing to multiply. Factorized Random is
# one product for the whole batch, because it reads no sentence.

# %%
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(module, x):
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2  # torch counts a multiplication and an addition as two


batch = 4
multiply_add_formulas = {
    "dot_product": batch * (2 * l * d**2 + l**2 * d),
    "random": 0,
    "factorized_random": l**2 * k,
    "dense": batch * (l * d**2 + l**2 * d),
    "factorized_dense": batch * (l * d**2 + l * d * (a + b)),
}
for name, formula in multiply_add_formulas.items():
    print(f"{name:>17}: formula {formula:6,}, counted {multiply_adds(family[name], x_table):6,}")

# %% [markdown]
# > **What is not counted.** torch counts matrix products. The products of two numbers in (6), $l^2$ in each
# > sentence, are none, nor is the sum of a mixture, $N\,l^2$. Both are small beside $l\,d^2$.
#
# ### Cell by cell with the paper
#
# These are the cells of Table 1 in version 1 of the paper. For Factorized Dense it prints $d^2 + d(k_1 +
# k_2)$; its $k_1$ and $k_2$ are our $a$ and $b$.

# %%
paper = {  # conditioned on, sample, interacts, parameters as they are printed, the same as a number
    "dot_product": ("X_j for all j", "local", "yes", "2 d^2", 2 * d**2),
    "random": ("nothing", "global", "no", "l^2", l**2),
    "factorized_random": ("nothing", "global", "no", "2 l k", 2 * l * k),
    "dense": ("X_i", "local", "no", "d^2 + d l", d**2 + d * l),
    "factorized_dense": ("X_i", "local", "no", "d^2 + d (k1 + k2)", d**2 + d * (a + b)),
}
columns = ("conditioned on", "sample", "interacts", "parameters")
agree = 0
for name, (*cells, formula, number) in paper.items():
    ours = (*computed[name], parameters(family[name]))
    for column, cell, our in zip(columns, (*cells, number), ours, strict=True):
        assert our == cell, f"{name}, {column}: the paper says {cell}, the program says {our}"
        agree += 1
    print(f"{name:>17}: {ours[0]:13}  {ours[1]:6}  {ours[2]:3}  {ours[3]:3} = {formula}")
print(f"{agree} cells agree with the paper")

# %% [markdown]
# Look at three columns once more: conditioned on, sample, interacts. *Nothing* always goes with *global*, and
# *X_j for all j* with *yes*. They are three views of one fact: which tokens a row reads.
#
# ## The listing of a popular implementation
#
# A widely used implementation of these scores prints its own table, for `d_model` 1024, 32 tokens, a batch
# of 2 and one head: the parameters of each layer, values included, and a column called "flops". Here it is,
# as numbers. Can you trust it? The way to find out is to look for a formula that gives *exactly* the
# printed number, and then to ask what the formula counts.

# %%
d_model, length, batch, rank, tile, repeat = 1024, 32, 2, 8, 4, 8
printed = {  # parameters, "flops"
    "vanilla": (3_148_800, 3_145_729),
    "dense": (1_083_456, 1_082_370),
    "random": (1_050_624, 1_048_577),
    "random, fixed": (1_050_624, 1_048_577),
    "factorized random": (1_066_000, 1_064_961),
    "factorized dense": (1_061_900, 1_060_865),
    "random + vanilla": (3_149_824, 3_145_729),
}

# %% [markdown]
# ### The parameters: which formula fits, and is it the paper's?
#
# $G$ is a linear layer with a bias, $d^2 + d$ parameters. "Expected" is the count of Table 1 plus biases
# plus $G$.

# %%
def linear(n_in, n_out):
    """Parameters of a linear layer with a bias."""
    return n_in * n_out + n_out


G = linear(d_model, d_model)
fits = {
    "vanilla": 2 * linear(d_model, d_model) + G,
    "dense": linear(d_model, length) + linear(length, length) + G,
    "random": length**2 + G,
    "random, fixed": length**2 + G,
    "factorized random": 2 * linear(d_model, rank) + G,
    "factorized dense": linear(d_model, tile) + linear(d_model, repeat) + G,
    "random + vanilla": length**2 + 2 * linear(d_model, d_model) + G,
}
expected = {
    "vanilla": 2 * linear(d_model, d_model) + G,
    "dense": linear(d_model, d_model) + linear(d_model, length) + G,
    "random": length**2 + G,
    "random, fixed": G,  # R is there, but training must not change it
    "factorized random": 2 * length * rank + G,
    "factorized dense": linear(d_model, d_model) + linear(d_model, tile) + linear(d_model, repeat) + G,
    "random + vanilla": length**2 + 2 * linear(d_model, d_model) + G + 2,  # and two logits of alphas
}
for name, (count, _) in printed.items():
    assert fits[name] == count, name
    meets = "meets" if count == expected[name] else "misses"
    print(f"{name:>17}: printed {count:9,}, expected {expected[name]:9,}, {meets}")

# %% [markdown]
# Every printed number has its formula. What it says:
#
# | row | the formula that fits | what the code does | Table 1 |
# |---|---|---|---|
# | vanilla | $3\,(d^2 + d)$ | $Q$, $K$ and the values | meets $2d^2$ |
# | dense | $(d\,l + l) + (l^2 + l) + d^2 + d$ | its hidden layer is $l$ wide: $d \to l \to l$ | misses $d^2 + d\,l$ |
# | random | $l^2 + d^2 + d$ | one $R$ | meets $l^2$ |
# | random, fixed | the same | it counts an $R$ that is not trained | misses: 0 of them are trained |
# | factorized random | $2\,(d\,k + k) + d^2 + d$ | two linear layers that *read* the tokens | misses $2\,l\,k$ |
# | factorized dense | $(d\,a + a) + (d\,b + b) + d^2 + d$ | no hidden layer, so no relu | misses $d^2 + d(a + b)$ |
# | random + vanilla | $l^2 + 3\,(d^2 + d)$ | a plain sum, as (9) is printed | misses (8) by its two logits |
#
# The row "factorized random" is the worst. $2\,d\,k$ contains $d$, and a score that reads nothing has no
# use for $d$. It is a dot product of two projections $d \to k$. The count alone gives it away.
#
# ### The "flops": they count no work

# %%
sizes = {
    "vanilla": 3 * d_model**2,
    "dense": d_model * length + length**2 + d_model**2,
    "random": d_model**2,
    "random, fixed": d_model**2,
    "factorized random": 2 * d_model * rank + d_model**2,
    "factorized dense": d_model * (tile + repeat) + d_model**2,
    "random + vanilla": 3 * d_model**2,
}
for name, (_, flops) in printed.items():
    print(f"{name:>17}: printed {flops:9,} = {sizes[name]:9,} + {flops - sizes[name]}")

# %% [markdown]
# These formulas are the sizes of the matrices in the linear layers, without biases, and nothing else. For
# vanilla: $3\,d^2 + 1$. No formula contains the batch. $l$ occurs only as the width of a layer. So the
# column says the same for one sentence and for a thousand, and it leaves out $Q K^T$ and the average of
# the values.
#
# The rest is 1, and 2 for dense. That fits one unit for each activation function without a matrix: a
# softmax everywhere, and a relu in dense alone. The listing does not say.
#
# ### The real multiply-adds
#
# By formula, and by torch's counter with the layers of `synth_lib`. `nn.Identity` returns its input; it
# replaces the output projection, which the listing does not have. Every layer pays $l\,d^2$ for the values
# and $l^2 d$ for their average.

# %%
layer_work = batch * length * d_model**2  # one projection, d to d, of every token
map_work = batch * length**2 * d_model  # one product with a map: Q K^T, or the average of the values
short_work = batch * length * d_model * (tile + repeat)
real = {
    "vanilla": ("dot_product", 3 * layer_work + 2 * map_work),
    "dense": ("dense", 2 * layer_work + 2 * map_work),
    "random": ("random", layer_work + map_work),
    "random, fixed": ("fixed_random", layer_work + map_work),
    "factorized random": ("factorized_random", layer_work + map_work + length**2 * rank),
    "factorized dense": ("factorized_dense", 2 * layer_work + short_work + map_work),
    "random + vanilla": ("random + dot_product", 3 * layer_work + 2 * map_work),
}
options = {"factorized_random": {"rank": rank}, "factorized_dense": {"a": tile, "b": repeat}}
for name, (score, formula) in real.items():
    layer = Attention(d_model, 1, length, score, **options.get(score, {}))
    layer.output = nn.Identity()
    assert parameters(layer) == expected[name]
    counted = multiply_adds(layer, torch.randn(batch, length, d_model))
    times = counted / printed[name][1]
    assert times > 64
    print(f"{name:>17}: formula {formula:11,}, counted {counted:11,}, {times:.0f} times the printed")
with_products = real["factorized dense"][1] + batch * length**2
print(f"factorized dense with the products of (6), which torch does not count: {with_products:,}")

# %% [markdown]
# Each of our layers has the expected parameters (that is the `assert` in the cell), and its work is 64
# times the printed number or more: $64 = 2 \cdot 32$ is the number of tokens in the batch, each of which
# passes every matrix once.
#
# The lesson is not that this code is bad. It is that **a printed number is a formula waiting to be found**,
# and the formula tells you what the code does.
#
# ### Exercise 06.4: how wide is the hidden layer?
#
# *15 minutes, medium.* You get what strangers' listings print for Dense layers with one head: the
# parameters, biases and value projection included. Work out the width of each hidden layer.

# %% exercise="06.4" points=2
def hidden_widths(printed, d_model, max_length):
    """The width h of the hidden layer of each listed layer, a float.

    Each layer holds: a linear layer d_model to h, a linear layer h to max_length, and the value projection
    d_model to d_model, all three with a bias.
    printed: a list of whole numbers, the parameters of each layer.
    Returns a list of floats, one for each layer, not rounded: a width that is no whole number says that this
    layer is built in another way.
    """
    ### BEGIN SOLUTION
    fixed = d_model**2 + d_model + max_length
    per_width = d_model + 1 + max_length
    return [(number - fixed) / per_width for number in printed]
    ### END SOLUTION

# %% check="06.4"
check("06.4", hidden_widths)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write the number of parameters as a formula with d, l and h, three linear layers. Collect what is
# multiplied by h, then solve for h.
#
# </details>
# <details><summary>Hint 2: check yourself</summary>
#
# `hidden_widths([1_083_456], 1024, 32)` must give `[32.0]`, the width that you saw in the listing. Which width
# would 2,132,000 have to give?
#
# </details>

# %% [markdown]
# ## Where it breaks
#
# ### It cannot subtract, and it cannot sharpen
#
# The alphas are not negative and sum to 1, so a mixed score lies between the smallest and the largest score
# that the parts give this pair. No choice of alphas goes beyond. In a row, the distance from the lowest to
# the highest score is never larger than the largest such distance of a part:

# %%
def reach(table):
    return table.amax(dim=1) - table.amin(dim=1)


generator = torch.Generator().manual_seed(16)
largest_reach = torch.stack([reach(table) for table in scores]).amax(dim=0)
inside_bounds = []
for _ in range(1000):
    some_alphas = (3 * torch.randn(3, generator=generator)).softmax(dim=0)
    inside_bounds.append(bool((reach(mix_with_sum(some_alphas, scores)) <= largest_reach + 1e-5).all()))
print("never beyond the parts, in 1000 mixtures:", all(inside_bounds))

# %% [markdown]
# So a map such as $\mathrm{softmax}(S_0 - S_1)$ has to come from a part that turns its own sign. The
# learned parts can; Fixed Random cannot.
#
# ### Many parts start flat
#
# Parts that do not know of each other cancel. With $N$ of them, of equal spread, the mixed scores have only
# $1/\sqrt{N}$ of that spread at the start, and the map is closer to uniform:

# %%
for N in (1, 4, 16):
    tables = torch.randn(N, 200, 200, generator=torch.Generator().manual_seed(17))
    print(f"N {N:2}: spread {tables.mean(dim=0).std():.2f}, predicted {1 / sqrt(N):.2f}")

# %% [markdown]
# ### It can do no more than its parts together
#
# A mixture without the dot product never compares, however many parts it has. Two sentences begin with the
# same token and differ in all others. Row 0 of four synthesized parts is the same in both. With the dot
# product as a fifth part it is not:

# %%
_ = torch.manual_seed(0)
second = torch.cat([sentences[:1, :1], sentences[1:, 1:]], dim=1)  # token 0 of the first sentence
four = "dense + random + factorized_dense + factorized_random"
for name in (four, four + " + dot_product"):
    score = make_score(name, d_model=12, head=3, max_length=6, rank=4)
    row_0, other_row_0 = score(sentences[:1])[0, :, 0], score(second)[0, :, 0]
    print(f"{len(score.parts)} parts: row 0 is the same: {equal(row_0, other_row_0)}")

# %% [markdown]
# And it pays for all of them: parameters and work add up. Our layer for the mixture of the listing has 1,026
# parameters more than vanilla, its two logits included, and no less work.
#
# ## The same as the library's Mixture
#
# The class `Mixed` from the ladder knows nothing of heads. It need not: its parts do. Give it three parts
# of the library, and put it beside `Mixture` with the same parameters.
#
# > **Output projection.** Equations (3) to (9) end with the average of the values. Transformers send the result
# > through one more layer, $d \to d$, that mixes the heads. It stays when the scores are synthesized, and our
# > layers have it.

# %%
_ = torch.manual_seed(0)
three = "random + dense + dot_product"
library = Attention(d_model=12, head=3, max_length=8, score=three)
ours = Mixed([make_score(name, 12, 3, 8) for name in three.split(" + ")])
with torch.no_grad():
    library.score.logits.copy_(torch.tensor([0.3, -0.5, 0.9]))
ours.load_state_dict(library.score.state_dict())
print("ours takes the library's names:", set(ours.state_dict()) == set(library.score.state_dict()))
print("a Mixture:", isinstance(library.score, Mixture), "| max_length 8, sentences of 6")

# %%
value = rearrange(library.value(sentences), "batch key (head d_head) -> batch head key d_head", head=3)
value = axes_heads(value, "batch head key d_head", "value")
our_weights = axes_heads(ours(sentences).softmax(dim=-1), "batch head query key", "our_weights")  # (8)
our_mixed = rearrange(our_weights @ value, "batch head query d_head -> batch query (head d_head)")
our_y = axes_heads(library.output(our_mixed), "batch length d_model", "our_y")
library_y, library_weights = library(sentences)
print("same weights:", equal(library_weights, our_weights))
print("same outputs:", equal(library_y, our_y))

# %%
y_factors = draw(18, 2, 6, 12, high=2)
of_ours = torch.autograd.grad((our_y * y_factors).sum(), list(ours.parameters()))
of_library = torch.autograd.grad((library_y * y_factors).sum(), list(library.score.parameters()))
for (name, _), our, their in zip(ours.named_parameters(), of_ours, of_library, strict=True):
    print(f"same gradient of {name:>21}:", equal(our, their))

# %% [markdown]
# ## Three sentences to keep
#
# 1. A mixture adds scores, with alphas that sum to 1, *inside* one softmax: it asks for what all parts
#    want, an *and*; averaging maps after the softmax is an *or*.
# 2. What counts is alpha times the size of the scores: an unscaled part swallows the others, and an alpha
#    alone does not tell what a part does.
# 3. Table 1 is a program: which token moves which row, and how many numbers are learned; a listing that
#    cannot be derived from formulas tells you nothing, and one that can tells you what the code does.
#
# **Where it is going next.** [Chapter 07](07_whole_models.ipynb) puts this layer into whole models: a
# language model, a classifier and a translator, with S as an argument of each.
