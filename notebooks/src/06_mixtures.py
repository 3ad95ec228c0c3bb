# %% [markdown]
# # 06 · Mixtures, and Table 1 as a program
#
# **You mix any number of scores inside one softmax, train a small model and find out what each part does by
# switching it off. Then you compute the paper's Table 1, and read the numbers that a stranger's code prints.**
#
# - **Before you start:** chapters [01](01_dot_product.ipynb) to [05](05_factorized_random.ipynb).
# - **Time:** about 150 minutes, 90 of them for the four exercises; the stretch exercise takes 40 more. It is two
#   evenings: mixtures, then Table 1; the text says where to stop.
# - **Level:** medium.
# - **In use today:** T5 and ALiBi add position biases to the dot product inside its softmax: a mixture, all alphas 1.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*, [arXiv
# 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1. Outputs are stored: to
# guess before you see, clear them first (*Edit*, *Clear Outputs of All Cells*; Colab: *Clear all outputs*).

# %% fold=true
# @title Imports, and a comparison for the guards
from math import log, sqrt

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F

from synth_lib import plots
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.lab.curves import bars
from synth_lib.lab.patience import each
from synth_lib.scores import make_score
from synth_lib.shapes import Axes

torch.set_printoptions(precision=2, sci_mode=False)


def equal(a, b):
    """Same shape, same dtype, same values."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## The question
#
# You have five ways to score a pair of positions. **Why choose? Can a layer use several, and learn how much of each?**
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
# Half of each, added up, then *one* softmax: most of the weight goes to "dog", which is near **and** a noun.
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
# | $\alpha_n$ | `alphas[n]` | one number | how much part $n$ counts |
# | $\sum_n \alpha_n S_n(X)$ | `mixed` | query key | the scores of the mixture |
# | $\mathrm{softmax}(\cdot)$ | `weights` | query key | the attention map, one |
#
# *Weights* are the numbers of the attention map; the $\alpha_n$ are called alphas here.

# %%
plots.show(
    plots.flow("mixture", "as its parts do"),
    "the layer as boxes. X goes into S, here a mixture, and into the values G. The scores get the "
    "mask and one softmax; the weights average the values, which gives Y.",
)

# %% [markdown]
# > **How the sum stays 1.** The paper says that the alphas sum to 1, and not how. We compute them as a softmax
# > over $N$ learned numbers, the *logits*, which start at 0. That is our choice; the authors' code has one sigmoid.
#
# > **One alpha for all heads.** (8) prints an index for the part alone. Whether the heads share the alphas, it does
# > not say. Our choice: one set for each layer, shared by its heads, queries and keys.
#
# > **(9) has no alphas.** It is printed as a plain sum: taken literally, both alphas are 1. We read it as an example
# > of (8) whose alphas are left out.
#
# > **Scaling.** Of all parts only the dot product is divided by $\sqrt{d_\text{head}}$, as in chapter 01.
#
# ## The ladder: one equation, written three times
#
# For (8) it does not matter where the scores come from. Three tables of made-up numbers will do, in steps of 0.1.

# %%
def draw(seed, *shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-10 * high, 10 * high + 1, shape, generator=generator) / 10


axes = Axes(length=6, d_model=12)
scores = [axes(draw(seed, 6, 6, high=2), "query key", f"scores of part {seed}")
          for seed in range(3)]
alphas = torch.tensor([0.5, 0.3, 0.2])

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
for n, table in enumerate(scores):
    print(f"row 0 of part {n}:", table[0])
print("row 0 of mixed: ", mixed[0])
print("row 0 of weights", weights[0])

# %% [markdown]
# ### One sum of tables
#
# A number times a table is a table, so the loops over $i$ and $j$ go away. A sum also copes with parts of two
# kinds: Random gives one map for the whole batch, "1 head query key", Dense one for each sentence, "batch head
# query key", and `+` uses the one map for every sentence.

# %%
def mix_with_sum(alphas, scores):
    return sum(alpha * table for alpha, table in zip(alphas, scores, strict=True))

# %% [markdown]
# ### Logits: alphas that stay on the simplex
#
# Numbers that are not negative and sum to 1 form the *simplex*. If training moved the alphas themselves,
# the first step would leave it. So it moves $N$ logits $t_n$, and a softmax over the parts makes the alphas of them:
#
# $$\alpha_n = e^{t_n} \,/\, (e^{t_1} + \dots + e^{t_N})$$

# %%
for logits in ([0.0, 0.0, 0.0], [1.0, 0.0, -1.0], [4.0, 3.0, 2.0], [20.0, 0.0, 0.0]):
    print(logits, "->", " ".join(f"{alpha:.3f}" for alpha in torch.tensor(logits).softmax(dim=0)))

# %% [markdown]
# Equal logits give equal alphas: the start. Adding 3 to every logit changes nothing (rows two and three),
# because only differences count. So with two parts one number would do, a sigmoid of the difference.
#
# ### A module holds its parts
#
# `nn.ModuleList` is a list whose modules' parameters are found by training. A part of ours, `Table`, is Random
# with one head.

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
with torch.no_grad():
    module.logits.copy_(alphas.log())  # the logarithm undoes the softmax

# %% fold=true
# @title Guard: the three agree, in values and gradients
some = draw(11, 6, 6, high=2)
of_module = torch.autograd.grad((module(x) * some).sum(), list(module.parameters()))
assert equal(mix_with_sum(alphas, scores), mixed) and equal(module(x), mixed)
for mix in (mix_with_loops, mix_with_sum):
    logits, *tables = (parameter.detach().clone().requires_grad_()
                       for parameter in module.parameters())
    own = torch.autograd.grad((mix(logits.softmax(dim=0), tables) * some).sum(), [logits, *tables])
    assert all(equal(ours, theirs) for ours, theirs in zip(own, of_module, strict=True))

# %% [markdown]
# ## Inside the softmax, not after it
#
# There is another way to mix: make a map of each part first, then average the maps, $\sum_n \alpha_n\,
# \mathrm{softmax}(S_n)$. The rows sum to 1 as well, and the result is another one. Here is "saw" again:

# %%
def mix_inside(alphas, scores):
    return mix_with_sum(alphas, scores).softmax(dim=-1)


def mix_after(alphas, scores):
    return mix_with_sum(alphas, [table.softmax(dim=-1) for table in scores])


half = torch.tensor([0.5, 0.5])
rows = {"near": near.softmax(dim=0), "noun": noun.softmax(dim=0), "inside": inside,
        "after": mix_after(half, [near, noun])}
fig = plots.attention_map(torch.stack(list(rows.values())), list(rows), keys=words)
_ = fig.axes[0].set_ylabel("map of 'saw'")
plots.show(
    fig,
    "four rows of weights for the query 'saw'. Part 0, near, looks at dog and a, part 1, noun, at "
    "dog and bird, each half and half. Mixed inside the softmax: dog is dark, all others are pale. "
    "Mixed after it: dog is dark grey, and a and bird keep a lighter grey each.",
)
for name, row in rows.items():
    print(f"{name:>6}", " ".join(f"{weight:.2f}" for weight in row.tolist()))

# %% [markdown]
# Mixing inside asks for positions that part 0 **and** part 1 want. Mixing after asks for positions that part 0
# **or** part 1 wants. So inside, one part can *forbid* a position: a very low score there survives the sum.
# After the softmax it cannot. Let part 1 forbid "dog":

# %%
forbids = torch.tensor([0.0, -60.0, 0.0, 0.0, 0.0, 0.0])
print(f"weight of dog, inside: {mix_inside(half, [near, forbids])[1]:.2f}")
print(f"weight of dog, after:  {mix_after(half, [near, forbids])[1]:.2f}")

# %% [markdown]
# The two agree only in special cases, for instance if one alpha is 1, or all parts have the same map. A test that uses
# one table twice cannot tell them apart.
#
# ### Exercise 06.1: mix maps inside one softmax
#
# *20 minutes, medium.* The scores are lost; you have the *maps* of the parts, each part alone. That is enough for
# the map of the mixture of (8). Some parts have one map for the whole batch, and some forbid positions.

# %% exercise="06.1" points=1
def mixed_map(maps, logits):
    """The attention map of equation (8), from the maps of its parts, each made by a softmax of its
    own.

    maps: a list with the map of each part, "batch head query key", or "1 head query key" for a part
    that gives the whole batch the same. A weight of 0 is a position that this part forbids: its
    score is minus infinity.
    logits: a tensor with one number for each part, in the same order; the alphas are a softmax over
    them.
    Returns the weights, batch head query key. A row where the parts together forbid every position
    is all zeros, as everywhere in this series.
    """
    ### BEGIN SOLUTION
    alphas = torch.softmax(logits, dim=0)
    product = 1
    for n in range(len(maps)):
        product = product * maps[n] ** alphas[n]
    total = product.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, product / total, 0.0)
    ### END SOLUTION

# %% check="06.1"
check("06.1", mixed_map)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# A map is the softmax of some scores. Of which ones? Of many, for a number added to a whole row of scores changes
# nothing. Can you find one of them, for each part?
#
# </details>
# <details><summary>Hint 2: torch.stack fails</summary>
#
# The first axes differ, 1 and the size of the batch. Go part by part instead: `+` and `*` use the one map for
# every sentence. In place (`+=` into a tensor) fails if the first part has one map: write `mixed = mixed + ...`.
#
# </details>
# <details><summary>Hint 3: a row is NaN</summary>
#
# Which row of which map? Look for a row in which every position is forbidden by some part. What do the sums of
# such a row say before you divide?
#
# </details>

# %% [markdown] solution="06.1"
# An exponential turns a sum into a product. So the map of a mixture is the *product* of the parts' maps, each to
# the power of its alpha, divided by its sum; after the softmax it would be their average. That is the "and": a 0 in
# one factor stays 0. The same with logarithms: the logarithm of a map is one of the scores that the map can come
# from. Adding a small number before the logarithm would let forbidden positions back in.

# %% solution="06.1"
def mixed_map_by_logarithms(maps, logits):
    mixed = 0
    for alpha, weights in zip(logits.softmax(dim=0), maps, strict=True):
        mixed = mixed + alpha * weights.log()  # log 0 is minus infinity
    return mixed.softmax(dim=-1).nan_to_num(0.0)


check("06.1", mixed_map_by_logarithms)

# %% [markdown]
# ## The limits
#
# ### One logit far away
#
# Let the logit of part 0 run away from the others, which stay at 0. The mixture becomes part 0. And the others
# stop learning: the gradient of part $n$ comes through $\alpha_n$, so it shrinks with it. The last column is the
# largest gradient of `scores[1]`, as a share of that in the first line:

# %%
factors = draw(11, 6, 6, high=2)  # we differentiate a weighted sum of the map


def gradient_of_part_1(far):
    table = scores[1].clone().requires_grad_()
    total = (mix_inside(far, [scores[0], table, scores[2]]) * factors).sum()
    return torch.autograd.grad(total, table)[0].abs().max()


at_start = gradient_of_part_1(torch.ones(3) / 3)
for gap in (0, 1, 2, 5, 10):
    far = torch.tensor([gap, 0.0, 0.0]).softmax(dim=0)
    distance = (mix_inside(far, scores) - scores[0].softmax(dim=-1)).abs().max()
    print(f"logit {gap:2}: alpha {far[0]:.3f}, distance to the map of part 0 {distance:.3f}, "
          f"gradient of part 1 {gradient_of_part_1(far) / at_start:.3f}")

# %% [markdown]
# Alphas that start equal are a careful choice: every part can learn from the first step.
#
# ## Scales: how an unscaled dot product swallows R
#
# Equal alphas are no equal say: a part with large scores talks over the others. You find code that adds R to $Q K^T$
# and forgets to divide by $\sqrt{d_\text{head}}$. Rebuild it: one head, `d_model` 1024, 32 tokens whose features have
# mean 0 and spread (standard deviation) 1. $R$ starts as in the library, with spread $1/\sqrt{l}$.

# %%
axes_wide = Axes(length=32, d_model=1024)
_ = torch.manual_seed(0)
tokens = axes_wide(torch.randn(32, 1024), "length d_model", "tokens")
to_query, to_key = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)
R = axes_wide(torch.randn(32, 32) / sqrt(32), "query key", "R")
with torch.no_grad():
    unscaled = axes_wide(to_query(tokens) @ to_key(tokens).T, "query key", "unscaled")
scaled = axes_wide(unscaled / sqrt(1024), "query key", "scaled")
for name, table in {"unscaled": unscaled, "scaled": scaled, "R": R}.items():
    print(f"{name:>8}: spread {table.std():.2f}")
print(f"by formula: unscaled {sqrt(1024) / 3:.2f}, scaled {1 / 3:.2f}, R {1 / sqrt(32):.2f}")

# %% [markdown]
# The unscaled scores are about 60 times as large as $R$. That is no accident: a linear layer of torch starts with
# spread $1/\sqrt{3d}$, so each number of $Q$ and $K$ has spread $\sqrt{1/3}$, and a sum of $d$ products of two of them
# has spread $\sqrt{d}/3$.
#
# What does $R$ change in the map? *Moved* is the share of a row's weight that goes elsewhere when $R$ is added:
# half the sum of the changes, on average over the rows. And can $R$ fight back? The softmax passes a gradient in
# proportion to $p\,(1 - p)$, where $p$ is a weight.

# %%
for name, table in {"nothing": torch.zeros(32, 32), "scaled": scaled, "unscaled": unscaled}.items():
    p, with_R = table.softmax(dim=-1), (table + R).softmax(dim=-1)
    moved = (with_R - p).abs().sum(dim=1).mean() / 2
    print(f"R + {name:>8}: moved {100 * moved:.1f} % of a row, largest weight of a row "
          f"{p.amax(dim=1).mean():.2f}, "
          f"sum of p (1 - p) {(p * (1 - p)).sum(dim=1).mean():.2f}")

# %% [markdown]
# Beside the *scaled* dot product $R$ moves as much of a row as it does alone. Beside the *unscaled* one most of that is
# gone: most rows have decided for one key before $R$ is asked, and little gradient is left. (`xavier_uniform_` on three
# axes, in chapter 03, is a second slip: it makes $R$ smaller still.) Could the alphas mend it? To make the spreads
# equal, the two logits have to be this far apart:

# %%
print(f"scaled: {log(scaled.std() / R.std()):.1f}, unscaled: {log(unscaled.std() / R.std()):.1f}")

# %% [markdown]
# With Adam at a learning rate of 0.001 a logit moves about 0.001 a step (chapter 03): the unscaled one asks for
# thousands of steps.
#
# ### What (9) without alphas changes
#
# Alphas of 1 and 1 double all mixed scores. The order of the positions stays, the map becomes sharper. "saw", both
# ways:

# %%
for alpha in (0.5, 1.0):
    print(f"alphas {alpha}:", (alpha * near + alpha * noun).softmax(dim=0))

# %% [markdown]
# ## Any number of parts
#
# The library makes a mixture of any names joined by `+`. All five at once; each option goes to the parts that know
# it. (In the library the alphas are called `weights`.)

# %%
def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


axes_heads = Axes(batch=2, head=3, length=6, d_model=12)
sentences = axes_heads(draw(13, 2, 6, 12, high=2), "batch length d_model", "sentences")
names = ["dot_product", "dense", "random", "factorized_dense", "factorized_random"]
score = make_score(" + ".join(names), d_model=12, head=3, max_length=6, a=2, b=3, rank=4)
print("alphas:", score.weights.detach())
for name, part in zip(names, score.parts, strict=True):
    print(f"{name:>17}: {parameters(part):4} parameters")
print(f"{'the mixture':>17}: {parameters(score):4} parameters, 5 of them logits")

# %% [markdown]
# The parameters add up, plus one logit for each part. So does the work.
#
# ### What moves when one token changes
#
# A mixture reads whatever one of its parts reads. Change token 1, as in chapter 02, and see which rows move:

# %%
changed = sentences.clone()
changed[:, 1] = draw(14, 12, high=2)
pictures = []
for name in ("random + factorized_random", "random + dense", "dense + dot_product"):
    _ = torch.manual_seed(0)
    score = make_score(name, d_model=12, head=3, max_length=6)
    moved = (score(changed) - score(sentences)).detach().abs()[0].amax(dim=0)
    pictures.append(axes(moved / moved.max().clamp(min=1e-9), "query key", name))
titles = ["random +\nfact. random", "random +\ndense", "dense +\ndot product"]
plots.show(
    plots.attention_map(torch.stack(pictures), list("012345"), titles=titles,
                        label="change (1 = largest)"),
    "how much each score changes when token 1 changes, in three mixtures. Random and Factorized "
    "Random: nothing. Random and Dense: row 1 alone. Dense and dot product: all rows, for the dot "
    "product compares.",
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
# | after the twin | the token after the twin | ? |

# %%
LETTERS, DIGITS, LENGTH = 6, 8, 12
axes_task = Axes(batch=64, length=12, d_model=32)


def sentences_and_answers(task, generator, batch):
    """-> letters, digits and wanted digits, whole numbers, each "batch length"."""
    # a random order for each sentence
    order = torch.rand(batch, LENGTH, generator=generator).argsort(dim=1)
    letters = order % LETTERS
    digits = torch.randint(DIGITS, (batch, LENGTH), generator=generator)
    same_letter = letters[:, :, None] == letters[:, None, :]
    others = ~torch.eye(LENGTH, dtype=torch.bool)  # no token is its own twin
    twin = (same_letter & others).int().argmax(dim=2)  # the one position that is left
    position = torch.arange(LENGTH).expand(batch, LENGTH)
    looked_at = {"next": (position + 1) % LENGTH, "twin": twin,
                 "after the twin": (twin + 1) % LENGTH}[task]
    # gather picks, in each row, the positions looked at
    return letters, digits, digits.gather(1, looked_at)

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
# Nothing tells the model positions. So the dot product cannot know them, and Random cannot compare.

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
# there (here 33 times the rate of the rest, not 10 as in chapter 05: these runs are short), and the logits of the
# alphas 10 times.

# %% fold=true
# @title Training, and the share of right digits
def rates(model):
    """Three groups of parameters for Adam."""
    groups = {"R": 0.1, "logits": 0.03, "rest": 0.003}
    grouped = {group: [] for group in groups}
    for name, parameter in model.named_parameters():
        last = name.split(".")[-1]
        grouped[last if last in groups else "rest"].append(parameter)
    return [{"params": grouped[group], "lr": rate} for group, rate in groups.items()
            if grouped[group]]


def train(task, score, seed):
    torch.manual_seed(seed)
    model, generator = TwoLayers(score), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(rates(model))
    for _ in range(250 if task == "after the twin" else 150):
        letters, digits, wanted = sentences_and_answers(task, generator, batch=64)
        loss = F.cross_entropy(model(letters, digits).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def share_right(model, task):
    """The share of right digits in 200 new sentences."""
    letters, digits, wanted = sentences_and_answers(task,
                                                    torch.Generator().manual_seed(999), batch=200)
    with torch.no_grad():
        return (model(letters, digits).argmax(dim=-1) == wanted).float().mean().item()

# %% [markdown]
# The first two tasks are made for one of the two. **Predict** the third, with two layers and a few hundred steps:
# "solved", "half right" or "fails"?

# %%
my_guess = {"random": None, "dot_product": None, "both": None}  # for "after the twin"

# %% [markdown]
# A model that knows nothing better names the most frequent digit of the sentence: right for fewer than 35 %.
#
# Twelve models train, in less than half a minute. You may interrupt: run the cell again, and it goes on with the next.

# %%
tasks = ("next", "twin", "after the twin")
seeds_of = {"random": [0], "dot_product": [0], "random + dot_product": [0, 1]}
runs = [(task, name, seed) for task in tasks for name in seeds_of for seed in seeds_of[name]]
trained = each(runs, lambda run: train(*run), unit="model")

_, digits, wanted = sentences_and_answers("twin", torch.Generator().manual_seed(999), batch=200)
assert (digits.mode(dim=1, keepdim=True).values == wanted).float().mean() < 0.35

# %%
def in_words(share):
    """Shares differ a little between machines; the limits lie far from all that come out here."""
    return "solved" if share > 0.83 else "half right" if share > 0.42 else "fails"


names, outcome = {"random": "random", "dot_product": "dot_product",
                  "random + dot_product": "both"}, {}
for task in tasks:
    for score, name in names.items():  # one word: both seeds say the same
        words = {in_words(share_right(trained[task, score, seed], task))
                 for seed in seeds_of[score]}
        outcome[task, name] = " or ".join(words)
for task in ("next", "twin"):
    print(f"{task:>4}:", ", ".join(f"{name} {outcome[task, name]}" for name in names.values()))
print("\nafter the twin:")
compare_guess(my_guess, {name: outcome["after the twin", name] for name in names.values()})

# %% [markdown]
# Each part alone solves the task that is made for it. The mixture solves all three, and of the three scores it alone
# solves the last.
#
# And the alphas? Bars show Random's alpha in each layer; the dot product has the rest up to 1. All start at 0.5.

# %%
mixtures = {task: [trained[task, "random + dot_product", seed] for seed in (0, 1)]
            for task in tasks}
alpha = {
    (task, layer): [model.layers[layer].score.weights[0].item() for model in mixtures[task]]
    for task in tasks for layer in (0, 1)
}
below = {"next": "next", "twin": "twin", "after the twin": "after\nthe twin"}
named = {f"{below[task]}\nlayer {layer}": values for (task, layer), values in alpha.items()}
fig = bars(named, label="alpha of Random")
for number, bar in enumerate(fig.axes[0].patches):
    # a colour a task, layer 1 hatched
    bar.set(edgecolor=plots.COLOURS[number // 2], hatch=["", "//"][number % 2])
fig.axes[0].axhline(0.5, color="grey", linewidth=1)
fig.axes[0].tick_params(axis="x", labelsize=8, labelrotation=0)
plots.show(
    fig,
    "the alpha of Random after training, a colour for each of three tasks, layer 1 hatched. A bar "
    "is the mean of two seeds; the black line on it runs from one to the other. Next: above one "
    "half in both layers. Twin: below one half in both. After the twin: nearly 1 in layer 0, "
    "clearly lower in layer 1.",
)

# %% fold=true
# @title Guard: what we say of the alphas holds for both seeds
for seed in (0, 1):
    of_seed = {key: values[seed] for key, values in alpha.items()}
    assert of_seed["next", 0] > 0.65 and of_seed["next", 1] > 0.65
    assert of_seed["twin", 0] < 0.45 and of_seed["twin", 1] < 0.45
    assert of_seed["after the twin", 0] > 0.85
    assert of_seed["after the twin", 0] - of_seed["after the twin", 1] > 0.2

# %% [markdown]
# ### An alpha is not a share of the work
#
# In layer 1 of the last task the alpha of Random is still not small. Does it do half the work there? Ask in another
# way: replace the scores of one part by 0 and count again. A *forward hook* may replace what a module returns.
#
# **Predict:** "solved", "half right" or "fails", if this one part is switched off?

# %%
my_guess = {"layer 0, Random": None, "layer 0, dot product": None,
            "layer 1, Random": None, "layer 1, dot product": None}

# %%
def share_without(model, task, layer, part):
    module = model.layers[layer].score.parts[part]
    hook = module.register_forward_hook(lambda module, inputs, scores: torch.zeros_like(scores))
    share = share_right(model, task)
    hook.remove()
    return share

# %%
last = mixtures["after the twin"]
off = {}
for layer in (0, 1):
    for part, name in enumerate(("Random", "dot product")):
        words_of_seeds = {in_words(share_without(model, "after the twin", layer, part))
                          for model in last}
        off[f"layer {layer}, {name}"] = " or ".join(words_of_seeds)
compare_guess(my_guess, off)

# %% [markdown]
# So in layer 0 Random does everything. In layer 1 the dot product decides, and Random helps. How? Look at what
# Random adds to the scores in both layers: $\alpha R$, moved and stretched so that the lowest entry of a layer is 0
# and the highest is 1.

# %%
def table_of_random(model, layer):
    score = model.layers[layer].score
    return axes_task(score.weights[0] * score.parts[0].R[0], "query key", "alpha R").detach()


def stretched(table):
    return (table - table.min()) / (table.max() - table.min())


pictures = torch.stack([stretched(table_of_random(last[0], layer)) for layer in (0, 1)])
numbers = [str(position) for position in range(LENGTH)]
plots.show(
    plots.attention_map(pictures, numbers, titles=["layer 0", "layer 1"],
                        label="alpha R, stretched"),
    "two tables of 12 times 12 numbers, alpha R after training on the last task. Layer 0: a black "
    "diagonal at the position before the query, a white one at the position after it. Layer 1: a "
    "black one at the query's own position, a white one at the position after it.",
)

# %% [markdown]
# Four diagonals stand out. *Fill one in*: every entry becomes the mean of the others in its row, so
# that nothing is left to see there. **Predict:** "solved", "half right" or "fails"?

# %%
my_guess = {"layer 0, before, black": None, "layer 0, after, white": None,
            "layer 1, own, black": None, "layer 1, after, white": None}

# %%
def share_filled(model, layer, offset):
    """The share of right digits with one diagonal of R filled in: key = query + offset."""
    R, query = model.layers[layer].score.parts[0].R, torch.arange(LENGTH)
    kept, key = R.detach().clone(), (query + offset) % LENGTH
    with torch.no_grad():
        R[0, query, key] = (kept[0].sum(dim=1) - kept[0, query, key]) / (LENGTH - 1)
        share = share_right(model, "after the twin")
        R.copy_(kept)
    return share


# %%
filled = {}
for name, layer, offset in [("layer 0, before, black", 0, -1), ("layer 0, after, white", 0, 1),
                            ("layer 1, own, black", 1, 0), ("layer 1, after, white", 1, 1)]:
    filled[name] = " or ".join({in_words(share_filled(model, layer, offset)) for model in last})
compare_guess(my_guess, filled)

# %% fold=true
# @title Guard: the diagonals are in every row, for both seeds
for model in last:
    own = torch.arange(LENGTH)
    assert table_of_random(model, 0).argmax(dim=1).equal((own - 1) % LENGTH)
    assert table_of_random(model, 0).argmin(dim=1).equal((own + 1) % LENGTH)
    assert table_of_random(model, 1).argmax(dim=1).equal(own)
    assert table_of_random(model, 1).argmin(dim=1).equal((own + 1) % LENGTH)

# %% [markdown]
# Two of the four carry the model; the other two look as strong, and do nothing. A picture of weights is not yet an
# explanation. Now you can read what the model does:
#
# 1. **Layer 0, Random.** Every token fetches the features of the token *before* it. Now it knows which letter
#    stands before it.
# 2. **Layer 1, dot product.** Every token looks for tokens with *its own letter before them*. There are two:
#    the token after its twin, which is wanted, and its own next neighbour.
# 3. **Layer 1, Random.** The dot product cannot tell these two apart, because nothing tells it the positions.
#    Random can: it forbids the position after the query.
#
# There is another way: first fetch the digit of the next token, then look for the twin. Training found this one, with
# both seeds.
#
# "My letter stands before it, **and** it is not my neighbour": the *and* of a sum inside one softmax. Without the
# third step, is the weight shared between the two? Measure it on both:

# %%
def weight_on(model, with_random):
    """The mean weight, in layer 1, on the positions after the twin and after the query.
    with_random: 1 or 0."""
    letters, digits, _ = sentences_and_answers("after the twin",
                                               torch.Generator().manual_seed(998), batch=64)
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
    (wanted_with, other_with), (wanted_without, other_without) = weight_on(model,
                                                                           1), weight_on(model, 0)
    assert wanted_with > 0.8 and other_with < 0.1
    assert 0.25 < wanted_without < 0.6 and 0.25 < other_without < 0.6
print("with Random:    more than 0.8 on the token after the twin, less than 0.1 on the "
      "next neighbour")
print("without Random: 0.25 to 0.6 on each of the two")

# %% [markdown]
# So read alphas with care. They multiply scores whose sizes are learned too, and a part with the smaller alpha
# may decide. To know what a part does, switch it off.
#
# **A good place for a break.** Mixtures end here; what follows, about an hour and a half with its exercises, needs none
# of what you trained.

# %% [markdown]
# ## Table 1 as a program
#
# Table 1 of the paper says, for each score, what it is *conditioned on* (which tokens it reads), whether
# its map is *local* (each sentence has its own) or *global* (one for all), whether tokens *interact*, and
# how many parameters it has, for one head without biases. You have met every entry in its chapter. Now a program
# fills in the table. The sizes are all different, so that no formula fits by accident.

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
# ### S(X): the first column
#
# The five formulas; the cell stops where a module computes something else. The library's `.weight` of a linear layer
# has its output axis first, so it is transposed; `[0]` takes head 0.
#
# > **What differs from the paper's layers.** The paper's table prints the dot product without $\sqrt{d_\text{head}}$.
# > Biases are left out here; the layers have them unless you say `bias=False`.

# %%
def dot_product(S, x):
    return (x @ S.query.weight.T) @ (x @ S.key.weight.T).T / sqrt(d)


def dense(S, x):
    return (x @ S.hidden.weight.T).relu() @ S.weight[0]


def factorized_dense(S, x):
    hidden = (x @ S.hidden.weight.T).relu()
    return (hidden @ S.weight_a[0]).repeat(1,
                                           b) * (hidden @ S.weight_b[0]).repeat_interleave(a, dim=1)


formulas = {
    "dot_product": dot_product,
    "random": lambda S, x: S.R[0],
    "factorized_random": lambda S, x: S.R1[0] @ S.R2[0].T,
    "dense": dense,
    "factorized_dense": factorized_dense,
}
for name, score in family.items():
    assert equal(score(x_table)[0, 0],
                 axes_table(formulas[name](score, x_table[0]), "query key", name)), name

# %% [markdown]
# ### Conditioned on, sample, interacts
#
# The Jacobian of chapter 02: if its block of row $i$ and token $n$ holds anything but 0, row $i$ reads token $n$.
# From this table of True and False two of the columns follow. For the third we compare the scores of two sentences.

# %%
def read_tokens(score, x):
    """Which row reads which token: True or False, "query length"."""
    jacobian = torch.autograd.functional.jacobian(lambda x: score(x[None])[0], x)
    assert jacobian.shape[3:] == x.shape  # after head, query and key come the axes of x
    return jacobian.abs().amax(dim=(0, 2, 4)) > 0


def conditioned_on(reads):
    if reads.all():
        return "X_j for all j"
    if reads.equal(torch.eye(len(reads), dtype=torch.bool)):
        return "X_i"
    return "some tokens" if reads.any() else "nothing"


def row_of_table(score):
    reads = read_tokens(score, x_table[0])
    others = reads & ~torch.eye(len(reads), dtype=torch.bool)
    one, other = score(x_table[:1]), score(x_table[1:2])
    where = "global" if equal(one, other) else "local"
    return conditioned_on(reads), where, "yes" if others.any() else "no"


computed = {name: row_of_table(score) for name, score in family.items()}
for name in ("random + factorized_random", "random + dense", "random + dot_product"):
    computed[name] = row_of_table(make_score(name, d, 1, l))
for name, row in computed.items():
    print(f"{name:>26}: {row[0]:13}  {row[1]:6}  interacts: {row[2]}")

# %% [markdown]
# A mixture reads what its most curious part reads. But a derivative sees no steps. A dot product in whole numbers:

# %%
print(row_of_table(lambda x: family["dot_product"](x).round()))

# %% [markdown]
# ### Exercise 06.2: the row of any score function
#
# *40 minutes, hard.* "Nothing", and yet local: the program contradicts itself. Write one for score functions of
# strangers, with steps, quiet, or blind for some changes. It needs no derivative: change a token and look.

# %% exercise="06.2" points=3
def table_row(score, x, other):
    """What a score function reads: one row of Table 1.

    score: a function, "batch length d_model" -> "batch head query key", or "1 head query key" if
    every sentence gets the same. Twice the same input gives twice the same scores. It may have
    steps, where no derivative helps; they are crossed when the numbers of a token change by 1 or
    so.
    x, other: two different sentences, each "1 length d_model", length 1 or more. Some of their
    tokens may be equal.
    Returns a tuple of three texts:
    - reads: "nothing" if no row of the scores ever moves when a token changes; "own token" if rows
      move, but each only when its own token changes; "other tokens" if some row moves when the
      token at another position does.
    - sample: "global" if x and other get the same scores, else "local".
    - interacts: "yes" if some row moves when the token at another position changes, else "no".
    A score moves, and two scores differ, if the difference is more than 0.00001, however large the
    scores are.
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
# changes. Fill it column by column. Two answers can be read from it, the third from one comparison of `x`
# and `other`.
#
# </details>
# <details><summary>Hint 2: the check says that one score function is read wrongly</summary>
#
# Its name says what it does. Do you change every number of the token, every token, and look at every row,
# key and head? Changes up and changes down must not cancel. And what does `equal` above allow, beside 0.00001?
#
# </details>
# <details><summary>Hint 3: how do I change a token?</summary>
#
# Copy first: `x.clone()`. Then think of what a score may be blind for. Chapter 07 puts a layer norm in front of
# each layer: it takes off the mean of a token's numbers and divides by their spread. Does it see `+= 1`? Does it
# see `*= 2`? Give each number of the token an amount of its own.
#
# </details>

# %% [markdown] solution="06.2"
# `torch.linspace(0.5, 1.5, d_model)` gives every number of the token *another* amount. The same amount for all is
# invisible behind a layer norm, which takes off the mean; a factor is invisible to a score that looks at directions;
# a new sign to one that looks at lengths. A change of about 1 crosses steps and lifts quiet scores over the limit.
# The second way puts new random tokens in place of the old ones, all in one batch.
#
# No finite number of changes proves "nothing": somebody can write a score that is blind for exactly yours. And one
# pair of sentences does not prove "global"; "reads nothing" does.

# %% solution="06.2"
def table_row_in_one_batch(score, x, other):
    length = x.shape[1]
    batch = x.repeat(length, 1, 1)
    n = torch.arange(length)
    batch[n, n] = 2 * torch.randn(length, x.shape[2], generator=torch.Generator().manual_seed(1))
    # changed token, row
    moves = (score(batch) - score(x)).abs().amax(dim=(1, 3)).expand(length, -1) > 1e-5
    interacts = bool((moves & (n[:, None] != n)).any())
    reads = "other tokens" if interacts else "own token" if moves.any() else "nothing"
    same = torch.allclose(score(x), score(other), rtol=0, atol=1e-5)
    return reads, "global" if same else "local", "yes" if interacts else "no"


check("06.2", table_row_in_one_batch)

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
    options = {"factorized_random": {"rank": k}, "factorized_dense": {"a": a, "b": b}}.get(name, {})
    one, three = (parameters(make_score(name, d, head, l, bias=False, **options))
                  for head in (1, 3))
    print(f"{name:>17}: formula {formula:3}, counted: 1 head {one:3}, 3 heads {three:3}")

# %% [markdown]
# With more heads, Random and Factorized Random have one table for each head. The other three split their $d$ features
# among the heads.
#
# ### Exercise 06.3: the longest sentence that a budget allows
#
# *20 minutes, medium.* Some parts pay for every position, some for every pair, some nothing. How long can sentences
# be, if the scores of a mixture may have only so many parameters?

# %% exercise="06.3" points=2
def longest_length(names, d_model, head, rank, budget):
    """The largest max_length with which a mixture stays within a budget of parameters, and what is
    left then.

    names: a list with at least two names, each "dot_product", "dense", "random", "fixed_random" or
    "factorized_random". A name may occur more than once: each time is a part of its own. At least
    one grows with max_length. There are no biases; rank is k.
    budget: the most parameters that the scores of the mixture may have, in all; enough for
    max_length 1, not for 1000.
    A parameter is what training may change; the logits of the alphas are parameters too.
    Returns a tuple of two whole numbers: max_length, and the budget minus the parameters at that
    max_length.
    """
    ### BEGIN SOLUTION
    def bill(max_length):
        counts = {
            "dot_product": 2 * d_model**2,
            "dense": d_model**2 + d_model * max_length,
            "random": head * max_length**2,
            "fixed_random": 0,
            "factorized_random": head * 2 * max_length * rank,
        }
        return sum(counts[name] for name in names) + len(names)

    max_length = 1
    while bill(max_length + 1) <= budget:
        max_length += 1
    return max_length, budget - bill(max_length)
    ### END SOLUTION

# %% check="06.3"
check("06.3", longest_length)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With the parameters for one max_length, a dictionary from each name to its number. The count with three heads above
# tells which of them depend on `head`. Then try lengths, or solve.
#
# </details>
# <details><summary>Hint 2: my number is a little off</summary>
#
# What belongs to the mixture and to none of its parts? Which table is never trained? And may the budget be used up?
#
# </details>
# <details><summary>Hint 3: ask the library</summary>
#
# `parameters(make_score("random + dense", 12, 3, 10, bias=False))` counts a mixture of max_length 10. What does it
# count for a fixed table?
#
# </details>

# %% [markdown] solution="06.3"
# The bill grows with max_length, so the first length that does not fit ends the
# search. It is $A\,l^2 + B\,l + C$: every Random gives `head` to $A$, Dense gives $d$ and Factorized Random
# $2\,h\,k$ to $B$, and $C$ has what no length changes. The second way solves that. You see who pays: with one
# Random the longest length grows with the *root* of the budget, without it in proportion.

# %% solution="06.3"
from math import isqrt


def longest_length_solved(names, d_model, head, rank, budget):
    A = head * names.count("random")
    B = d_model * names.count("dense") + 2 * head * rank * names.count("factorized_random")
    C = d_model**2 * (names.count("dense") + 2 * names.count("dot_product")) + len(names)
    room = budget - C
    longest = (isqrt(B**2 + 4 * A * room) - B) // (2 * A) if A else room // B
    return longest, room - A * longest**2 - B * longest


check("06.3", longest_length_solved)

# %% [markdown]
# ### Cell by cell with the paper
#
# Table 1 in version 1 of the paper; its $k_1$ and $k_2$ are our $a$ and $b$. The code stops where the program says
# something else. It does not: 20 cells agree.

# %%
paper = {  # conditioned on, sample, interacts, parameters as they are printed, the same as a number
    "dot_product": ("X_j for all j", "local", "yes", "2 d^2", 2 * d**2),
    "random": ("nothing", "global", "no", "l^2", l**2),
    "factorized_random": ("nothing", "global", "no", "2 l k", 2 * l * k),
    "dense": ("X_i", "local", "no", "d^2 + d l", d**2 + d * l),
    "factorized_dense": ("X_i", "local", "no", "d^2 + d (k1 + k2)", d**2 + d * (a + b)),
}
for name, (*cells, formula, number) in paper.items():
    ours = (*computed[name], parameters(family[name]))
    printed = (*cells, number)
    assert ours == printed, f"{name}: the paper says {printed}, the program says {ours}"
    print(f"{name:>17}: {ours[0]:13}  {ours[1]:6}  {ours[2]:3}  {ours[3]:3} = {formula}")

# %% [markdown]
# *Nothing* always goes with *global*, and *X_j for all j* with *yes*: three views of one fact, which
# tokens a row reads.
#
# ## The listing of a popular implementation
#
# A widely used implementation of these scores prints the parameters of each layer, for `d_model` 1024, 32 tokens and
# one head, values included. Can you trust it? Look for a formula that gives *exactly* the printed number, and ask what
# it counts. (Such listings print multiply-adds, too, often called "flops". Those, and the code itself, are chapter 09.)
#
# ### The parameters: which formula fits, and is it the paper's?
#
# "Expected" is the count of Table 1 plus biases plus $G$, a linear layer with a bias.

# %%
def linear(n_in, n_out):
    """Parameters of a linear layer with a bias."""
    return n_in * n_out + n_out


d_model, length, rank, tile, repeat = 1024, 32, 8, 4, 8
G = hidden = linear(d_model, d_model)
listing = {  # printed, the formula that fits, expected
    "vanilla": (3_148_800, 2 * linear(d_model, d_model) + G, 2 * linear(d_model, d_model) + G),
    "dense": (1_083_456, linear(d_model, length) + linear(length, length) + G,
              hidden + linear(d_model, length) + G),
    "random": (1_050_624, length**2 + G, length**2 + G),
    "random, fixed": (1_050_624, length**2 + G, G),  # R is there, but training must not change it
    "factorized random": (1_066_000, 2 * linear(d_model, rank) + G, 2 * length * rank + G),
    "factorized dense": (1_061_900, linear(d_model, tile) + linear(d_model, repeat) + G,
                         hidden + linear(d_model, tile) + linear(d_model, repeat) + G),
}
for name, (printed, fits, expected) in listing.items():
    assert fits == printed, name
    meets = "meets" if printed == expected else "misses"
    print(f"{name:>17}: printed {printed:9,}, expected {expected:9,}, {meets}")

# %% [markdown]
# Every printed number has its formula. What it says, without $G$:
#
# | row | the formula that fits | what the code does |
# |---|---|---|
# | vanilla | $2\,(d^2 + d)$ | $Q$ and $K$, as in Table 1 |
# | dense | $(d\,l + l) + (l^2 + l)$ | its hidden layer is $l$ wide: $d \to l \to l$ |
# | random | $l^2$ | one $R$, as in Table 1 |
# | random, fixed | $l^2$ | it counts an $R$ that is not trained |
# | factorized random | $2\,(d\,k + k)$ | two linear layers that *read* the tokens |
# | factorized dense | $(d\,a + a) + (d\,b + b)$ | no hidden layer, so no relu |
#
# The row "factorized random" you know from chapter 05, "'Random' that reads x". **A printed number is a formula waiting
# to be found.**
#
# ### Exercise 06.4: how wide is the hidden layer?
#
# *10 minutes, medium.* You get what strangers' listings print for Dense layers with one head: the
# parameters, biases and value projection included. Work out the width of each hidden layer.

# %% exercise="06.4" points=2
def hidden_widths(printed, d_model, max_length):
    """The width h of the hidden layer of each listed layer, a float.

    Each layer holds: a linear layer d_model to h, a linear layer h to max_length, and the value
    projection d_model to d_model, all three with a bias.
    printed: a list of whole numbers, the parameters of each layer.
    Returns a list of floats, one for each layer, not rounded: a width that is no whole number, or
    below 1, says that this layer is built in another way.
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

# %% [markdown] solution="06.4"
# The count is a straight line in h: each unit of the hidden layer brings one column, one bias and one row,
# $d + 1 + l$ numbers; what is left does not depend on h. So two points of the line are enough too, which is the second
# way. A fraction in the answer is news: no layer of this kind has so many parameters.

# %% solution="06.4"
def hidden_widths_by_two_points(printed, d_model, max_length):
    def count(width):
        sizes = [(d_model, width), (width, max_length), (d_model, d_model)]
        return sum(n_in * n_out + n_out for n_in, n_out in sizes)

    return [(number - count(0)) / (count(1) - count(0)) for number in printed]


check("06.4", hidden_widths_by_two_points)

# %% [markdown]
# ## Where it breaks
#
# **It cannot subtract, and it cannot make scores larger.** A mixed score lies between the smallest and the largest
# score that the parts give this pair. So equal parts never make a sharper map than one of them; parts that differ can,
# as above. For $\mathrm{softmax}(S_0 - S_1)$ a part has to turn its own sign; Fixed Random cannot.
#
# **Many parts start flat.** Parts that do not know of each other cancel. With $N$ of them, of equal spread, the mixed
# scores have $1/\sqrt{N}$ of that spread at the start, and the map is closer to uniform:

# %%
for N in (1, 4, 16):
    tables = torch.randn(N, 200, 200, generator=torch.Generator().manual_seed(17))
    print(f"N {N:2}: spread {tables.mean(dim=0).std():.2f}, by formula {1 / sqrt(N):.2f}")

# %% [markdown]
# **It can do no more than its parts together.** Without the dot product a mixture never compares. And it pays for all.

# %% fold=true
# @title The same as the library's Mixture, in values and gradients
_ = torch.manual_seed(0)
three = "random + dense + dot_product"
library = Attention(d_model=12, head=3, max_length=8, score=three)  # max_length 8, sentences of 6
ours = Mixed([make_score(name, 12, 3, 8) for name in three.split(" + ")])
with torch.no_grad():
    library.score.logits.copy_(torch.tensor([0.3, -0.5, 0.9]))
ours.load_state_dict(library.score.state_dict())
value = rearrange(library.value(sentences),
                  "batch key (head d_head) -> batch head key d_head", head=3)
# (8)
our_weights = axes_heads(ours(sentences).softmax(dim=-1), "batch head query key", "our_weights")
our_mixed = rearrange(our_weights @ value, "batch head query d_head -> batch query (head d_head)")
our_y, (library_y, library_weights) = library.output(our_mixed), library(sentences)
assert equal(library_weights, our_weights) and equal(library_y, our_y)
y_factors = draw(18, 2, 6, 12, high=2)
of_ours = torch.autograd.grad((our_y * y_factors).sum(), list(ours.parameters()))
of_library = torch.autograd.grad((library_y * y_factors).sum(), list(library.score.parameters()))
assert all(equal(our, their) for our, their in zip(of_ours, of_library, strict=True))

# %% [markdown]
# > **Output projection.** Equations (3), (4) and (6) to (9) end with the average of the values. Transformers send the
# > result through one more layer, $d \to d$, that mixes the heads; our layers have it too.
#
# ### Stretch 06.5: the position that nobody wants
#
# *40 minutes, hard.* A sum inside a softmax is an election. Build one that ends in a surprise: each part gives a
# position less than 0.01, and the mixture gives it more than 0.99. There are many ways, and some elections where there
# is none. Why we ask: who reads the maps of the parts one by one misses what the layer does.

# %% exercise="06.5" points=2
def nobody_wants(length, position, alphas):
    """Scores with which the mixture looks at one position, though none of its parts does.

    length: the number of positions. position: the one that the mixture is to look at, counted from
    0.
    alphas: a tensor with one number for each part, at least 0.01 each; together 1.
    Returns a tensor of floats with a row for each part, in the order of the alphas, and a column
    for each position: the scores of one query, all finite. The softmax of each row gives `position`
    a weight below 0.01; the softmax of the sum of alphas times rows gives it more than 0.99.
    Returns None where no scores can do that.
    """
    ### BEGIN SOLUTION
    others = [key for key in range(length) if key != position]
    if len(alphas) < 2 or len(others) < 2:
        return None
    scores = torch.full((len(alphas), length), -10_000.0)
    scores[:, position] = 0.0
    for n in range(len(alphas)):
        scores[n, others[n % len(others)]] = 10.0
    return scores
    ### END SOLUTION

# %% check="06.5"
check("06.5", nobody_wants)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With two parts, three positions, and alphas of one half. What does each part think of the position that wins? It is
# not its first choice. Is it its last?
#
# </details>
# <details><summary>Hint 2: it works for one half and one half only</summary>
#
# A part with a large alpha carries its first choice far. Who can stop that, with a small alpha, and how loud must it
# be?
#
# </details>
# <details><summary>Hint 3: when is there no way?</summary>
#
# Take two positions. If every part prefers the other one, what is the sign of the sum of their differences? And what
# is a mixture of one part?
#
# </details>

# %% [markdown] solution="06.5"
# Everybody's second choice wins: each part prefers a position that another part forbids, loudly enough for its small
# alpha. It takes two parts with different first choices, so two positions beside the wanted one. With two
# positions every part prefers the other, and so does every sum with positive alphas. In the second way two camps
# are enough, however many parts there are.

# %% solution="06.5"
def nobody_wants_in_two_camps(length, position, alphas):
    if len(alphas) == 1 or length <= 2:
        return None
    left, right = (position + 1) % length, (position + 2) % length
    loud = 100 / alphas.min()  # a veto is heard, whatever its alpha
    scores = torch.zeros(len(alphas), length)
    scores[:, position] = 50
    scores[0, left], scores[0, right] = 60, -loud
    scores[1:, right], scores[1:, left] = 60, -loud
    return scores


check("06.5", nobody_wants_in_two_camps)

# %% [markdown]
# ## Three sentences to keep
#
# 1. A mixture adds scores, with alphas that sum to 1, *inside* one softmax: it asks for what all parts
#    want, an *and*; averaging maps after the softmax is an *or*.
# 2. What counts is alpha times the size of the scores: an unscaled part swallows the others, and an alpha
#    alone does not tell what a part does. Switch it off to know.
# 3. Table 1 is a program: which token moves which row, and how many numbers are learned; a printed count is a
#    formula that tells what the code does.
#
# **Where it is going next.** [Chapter 07](07_whole_models.ipynb) puts this layer into whole models: a
# language model, a classifier and a translator, with S as an argument of each.
