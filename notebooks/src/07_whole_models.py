# %% [markdown]
# # 07 · From a layer to models: a Transformer around any S
#
# **You build three models around one layer: one that writes, one that translates, one that classifies. S stays
# an argument of each, and you find the few places where a model notices which S it holds.**
#
# - **Before you start:** chapters [01](01_dot_product.ipynb), [02](02_dense.ipynb) and
#   [03](03_random.ipynb): scores, maps, heads, masks. The names of the other scores come from chapters
#   [04](04_factorized_dense.ipynb) to [06](06_mixtures.ipynb).
# - **Time:** about 170 minutes, 97 of them for the five exercises; the stretch exercise takes 20 more.
# - **Level:** medium.
# - **What transfers:** blocks of sums around normalised parts, a cache, and care with padding are found in the large
#   language models of today too; their S is the dot product.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*,
# [arXiv 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1. Outputs are stored:
# to predict before you look, hide them (in JupyterLab: Edit, Clear Outputs of All Cells) and run cell by cell.

# %% fold=true
# @title Imports
import math

import torch
from einops import einsum, rearrange
from torch import nn
from torch.nn import functional as F

from synth_lib import masks, plots
from synth_lib.attention import Attention, Cache, CrossAttention
from synth_lib.checks import check, compare_guess
from synth_lib.decoding import sample
from synth_lib.models import Block, Classifier, EncoderDecoder, LanguageModel
from synth_lib.shapes import Axes

# %% [markdown]
# ## The question
#
# An attention layer takes a table, one row for each token, and returns a table of the same shape. You want the next
# word of a text, or its translation, or its class. **What has to stand around the layer? And does anything out there
# have to know which S is inside?**
#
# A token is from now on a whole number, the number of its word in a vocabulary. Four *special tokens* are a filler, the
# start and the end of a text, and a separator between two texts. Shorter texts of a batch get fillers, *padding*.

# %%
special = ["<padding>", "<start>", "<end>", "<separator>"]
english = "the a dog cat bird saw slept small old".split()
german = "der die einen eine Hund Katze Vogel sah schlief kleine kleinen".split()
vocabulary = [*special, *english, *german]
number = {word: token for token, word in enumerate(vocabulary)}
PADDING, START, END, SEPARATOR = 0, 1, 2, 3


def encode(*texts):
    """One row of tokens for each text; shorter texts get padding on the right."""
    rows = [torch.tensor([number[word] for word in text.split()]) for text in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)


tokens = encode("the dog saw a small bird", "the old cat slept")
axes = Axes(batch=2, length=6, d_model=12, vocab=24)
tokens = axes(tokens, "batch length", "tokens")
print(len(vocabulary), "words;", tokens.tolist())

# %% [markdown]
# The paper compares nine models, which differ in S alone. "Vanilla" is its word for the dot product. *All nine* means
# this table:

# %%
nine = {
    "Transformer": "dot_product",
    "Fixed Random": "fixed_random",
    "Random": "random",
    "Factorized Random": "factorized_random",
    "Dense": "dense",
    "Factorized Dense": "factorized_dense",
    "Random + Dense": "random + dense",
    "Dense + Vanilla": "dense + dot_product",
    "Random + Vanilla": "random + dot_product",
}

# %% fold=true
# @title Helpers: draw numbers, shake parameters, compare two results
def draw(seed, *shape, high):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(round(-10 * high), round(10 * high) + 1, shape, generator=generator) / 10


def equal(a, b):
    """Same shape, same dtype, same values."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def moves(a, b):
    """In words, whether a result has changed."""
    return "stays" if equal(a, b) else "moves"


def shaken(module, seed=0):
    """Move every parameter away from its start, where biases are 0 and a mistake could hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return module

# %% [markdown]
# `shaken(module)` moves all parameters away from their start, as training would. `moves(a, b)` says whether two
# results differ.
#
# ## The equations
#
# A *block* is one layer of attention and one small network, the *mlp*. Each of the two *adds* to its input, and
# each reads a copy that went through a *norm*:
#
# $$X' = X + \mathrm{Attention}(\mathrm{norm}(X)), \qquad X'' = X' + \mathrm{mlp}(\mathrm{norm}'(X'))$$
#
# Attention is equation (3), followed by the output projection. The mlp works on each token alone: a layer $d \to
# 4d$, a function that bends, a layer $4d \to d$. A model is a stack of blocks between two tables. In a language
# model, with $X''$ of the last block and a $\mathrm{norm}''$ of its own:
#
# $$X_i = E_{t_i} + P_i, \qquad \text{logits}_i = E \; \mathrm{norm}''(X''_i)$$
#
# | symbol | here | shape, in axis names | what it is |
# |---|---|---|---|
# | $t$ | `tokens` | batch length | whole numbers |
# | $E$ | `token` | vocab d_model | a row for each word |
# | $P$ | `position` | length d_model | a row for each position, up to `max_length` |
# | $X, X', X''$ | `x` | batch length d_model | the tokens on their way through a block |
# | $\text{logits}$ | `logits` | batch length vocab | the score of each word to come next |
#
# > **Not in the paper.** It has no such equations, and does not say where its norms stand. Ours stand before each part
# > (*pre-norm*), and our positions are learned rows.
#
# The layer inside is the one that you know. Only the filled box differs among the nine:

# %%
plots.show(plots.flow("any of nine", "all, one or no token"), "X goes to the values and to S, "
                                                              "whose scores become "
           "weights, which make Y. This chapter builds what stands before X and behind Y, "
           "and leaves S open.")

# %% [markdown]
# ## The block
#
# ### Why add?
#
# Stack six untrained attention layers without adding. After each, measure how much the tokens of a sentence differ from
# each other, as a share of their size: 1 means that they have nothing in common, 0 that all are equal.

# %%
x = axes(draw(1, 2, 6, 12, high=2), "batch length d_model", "x")


def difference(x):
    """The size of the tokens without the mean of their sentence, as a share of their size."""
    own = x - x.mean(dim=1, keepdim=True)
    return (own.pow(2).mean() / x.pow(2).mean()).sqrt().item()


print(f"before: {difference(x):.2f}")
for score in ("dot_product", "dense", "random"):
    _ = torch.manual_seed(0)
    alone, added, shares = x, x, []
    for _ in range(6):
        layer = Attention(12, 3, 8, score, bias=False)
        alone, added = layer(alone)[0], added + layer(added)[0]
        shares.append(f"{difference(alone):.2f}")
    print(f"{score:>11}: {' '.join(shares)}; with adding, after six: {difference(added):.2f}")

# %% [markdown]
# Averages of averages are all alike. After a few layers nobody can tell "dog" from "bird", whatever S made the weights.
# Random loses most in the first layer here and least in the second: by then the tokens have shrunk and are nearly
# alike, so that the maps of the dot product and of Dense are nearly plain means, or have nearly equal rows. Random's
# map does not depend on the tokens. With `x + ...` each token keeps what it was, and the layer adds to it: a *residual*
# connection.
#
# ### Why a norm?
#
# Sums grow. What happens to a map when the numbers of all tokens become ten times as large?

# %%
_ = torch.manual_seed(0)
layer = Attention(12, 3, 8, "dot_product")
for factor in (1, 10):
    _, weights = layer(factor * x)
    print(f"x times {factor:2}: the largest weight of a row is "
          f"{weights.amax(dim=-1).mean():.2f} on average")

# %% [markdown]
# The scores grew a hundred times, and the softmax looks at one position only. So every part reads a copy of standard
# size. A *layer norm* takes each token by itself: its mean becomes 0, its standard deviation 1. Then each feature
# gets a learned factor and a learned shift, which start at 1 and 0. (The `1e-5` prevents a division by 0.)

# %%
def norm_by_hand(x, factor, shift):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt() * factor + shift


start = torch.ones(12), torch.zeros(12)
for name, some in {"x": x, "norm(x)": norm_by_hand(x, *start),
                   "norm(10 x)": norm_by_hand(10 * x, *start)}.items():
    axes(some, "batch length d_model", name)
    print(f"{name:>10}: token 0 begins",
          " ".join(f"{feature:4.1f}" for feature in some[0, 0, :6].tolist()))

# %% fold=true
# @title torch's nn.LayerNorm is this norm
norm = shaken(nn.LayerNorm(12))
assert equal(norm(x), norm_by_hand(x, norm.weight, norm.bias))

# %% [markdown]
# ### Before the part, not after the sum
#
# *Pre-norm*, ours: `x + part(norm(x))`. *Post-norm*, that of the first Transformers: `norm(x + part(x))`. To tell them
# apart, silence a part, so that it adds 0:

# %%
def silent(x):
    return torch.zeros_like(x)


for name, y in {"x": x, "pre-norm": x + silent(norm(x)), "post-norm": norm(x + silent(x))}.items():
    print(f"{name:>9}: token 0 begins",
          " ".join(f"{feature:4.1f}" for feature in y[0, 0, :6].tolist()))

# %% [markdown]
# In pre-norm tokens and gradients walk through all blocks along a line of plain sums, and nothing on it rescales them.
# The price: the last sum was never normalised, so one more norm stands behind the last block.
#
# ### The mlp: each token on its own
#
# Attention moves things between tokens. The mlp reads each token by itself. Its bend is a *gelu*, a relu with a round
# corner. Change token 1 and see what moves:

# %%
_ = torch.manual_seed(0)
mlp = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 12))
layer = Attention(12, 3, 8, "random")
changed = x.clone()
changed[:, 1] += 1
for name, part in {"attention": lambda x: layer(x)[0], "mlp": mlp}.items():
    moved = (part(changed) - part(x)).abs().amax(dim=(0, 2)) > 1e-6
    print(f"{name:>9}: rows that move {moved.nonzero().flatten().tolist()}")

# %% [markdown]
# ### The whole block, S as an argument
#
# Two lines of `forward` are the two equations. A model that only reads may look at later words, so `causal` is an
# option. The mask is for padding. Nothing asks for the name of S.

# %%
class OurBlock(nn.Module):
    def __init__(self, d_model, head, max_length, score, causal):
        super().__init__()
        self.norm_attention = nn.LayerNorm(d_model)
        self.attention = Attention(d_model, head, max_length, score, causal=causal)
        self.norm_mlp = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(),
                                 nn.Linear(4 * d_model, d_model))

    def forward(self, x, mask=None):
        x = x + self.attention(self.norm_attention(x), mask)[0]  # [1] would be the weights
        return x + self.mlp(self.norm_mlp(x))


for name, score in nine.items():
    block = OurBlock(12, 3, 8, score, causal=True)
    axes(block(x), "batch length d_model", name)
print("all nine: tokens", tuple(x.shape), "in, tokens", tuple(block(x).shape), "out")

# %% [markdown]
# ### Exercise 07.1: what each part adds
#
# *12 minutes, medium.* What comes out of a stack is a sum: x, and what each part has added on the way. Take the
# sum apart. (People do this with trained models, to ask which part has brought a word forward.)

# %% exercise="07.1" points=1
def what_each_part_adds(x, layer, attention, mlp, norm_attention, norm_mlp):
    """What the attention and the mlp of each pre-norm block add to the tokens that pass through all
    blocks.

    x: batch length d_model. layer: the number of blocks. attention, mlp, norm_attention, norm_mlp:
    functions of a number n and a tensor "batch length d_model"; attention(n, some) is what the
    attention of block n, 0 .. layer - 1, makes of some, of the same shape. (This attention returns
    no weights.) Returns (layer 2) batch length d_model: first what the attention of block 0 adds,
    then what its mlp adds, then the same for block 1, and so on.
    """
    ### BEGIN SOLUTION
    added = []
    for n in range(layer):
        added.append(attention(n, norm_attention(n, x)))
        x = x + added[-1]
        added.append(mlp(n, norm_mlp(n, x)))
        x = x + added[-1]
    return torch.stack(added)
    ### END SOLUTION

# %% check="07.1"
check("07.1", what_each_part_adds)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Carry the tokens along, from part to part, and keep a list beside them. At each part, ask two things: what does it
# read, and what goes into the list, the sum or the summand?
#
# </details>
# <details><summary>Hint 2: how can I test it?</summary>
#
# Your entries, added to x, must give what comes out of the last block. If they do not, a part has read something
# else than the tokens as they are at that place.
#
# </details>

# %% [markdown] solution="07.1"
# Each part reads the tokens as the parts before it have left them, but its summand is recorded by itself. Nothing
# rescales the line of sums, so x and all summands together are exactly what comes out. In post-norm this would not
# hold: each norm rescales all that came before. The second way never keeps a running sum: it adds up the list anew.

# %% solution="07.1"
def what_each_part_adds_from_sums(x, layer, attention, mlp, norm_attention, norm_mlp):
    terms = [x]
    for n in range(layer):
        for part, norm in ((attention, norm_attention), (mlp, norm_mlp)):
            terms.append(part(n, norm(n, torch.stack(terms).sum(dim=0))))
    return torch.stack(terms[1:])


check("07.1", what_each_part_adds_from_sums)

# %% [markdown]
# ## A language model
#
# ### Tokens and positions become rows
#
# A token picks a row of the table $E$, and `nn.Embedding` is the module that holds the table. So "the dog" and "dog
# the" give the same two rows. Who notices the order? Swap tokens 0 and 1 and look at the last token of one causal
# layer, which may look at all six. Does its row move? Write yes or no (`True` or `False`) for four models:

# %%
my_guess = {"Transformer": None, "Random": None, "Dense": None, "Dense + Vanilla": None}

# %%
E = axes(nn.Embedding(24, 12).weight, "vocab d_model", "E")
picked = axes(E[tokens], "batch length d_model", "picked")
swapped = picked[:, [1, 0, 2, 3, 4, 5]]
notices = {}
for name, score in nine.items():
    layer = shaken(Attention(12, 3, 8, score, causal=True))
    notices[name] = not equal(layer(swapped)[0][:, -1], layer(picked)[0][:, -1])

# %% [markdown]
# Whoever sees the order here sees it in the scores alone. So all nine models get a row of $P$ added to each token: then
# a value can say "dog, at position 1". The result:

# %%
compare_guess(my_guess, {name: notices[name] for name in my_guess})
print("do not notice:", ", ".join(name for name in nine if not notices[name]))

# %% [markdown]
# The dot product alone sees a bag of words. In every synthesizer, and every mixture with one, positions stand in the
# parameters. (Two causal layers of dot products do see some order. In layer 0 a word can read those before it, and none
# behind it: so what it brings into layer 1 depends on what stood before.)
#
# ### Rows become logits
#
# How well does each of the 24 words fit as the next one? Compare the last row of a token with their rows: a dot product
# with each row of $E$. The same table at both ends is called *tied*. (`nn.ModuleList` is a list of modules whose
# parameters the model knows.)

# %%
class OurLanguageModel(nn.Module):
    def __init__(self, vocab, d_model, head, layer, max_length, score):
        super().__init__()
        self.token = nn.Embedding(vocab, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(
            OurBlock(d_model, head, max_length, score, causal=True) for _ in range(layer)
        )
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.token.weight.T

# %% [markdown]
# Predict the shape of the result, and at which positions it changes if the *last* of the 6 tokens changes. (The
# dictionary `sizes` serves all models to come.)

# %%
my_logits = {"shape": None, "positions that move": None}  # a tuple and a list

# %%
sizes = {"vocab": 24, "d_model": 12, "head": 3, "layer": 2, "max_length": 8}
other_end = tokens.clone()
other_end[:, -1] = number["cat"]
moved = {}
for name, score in nine.items():
    model = shaken(OurLanguageModel(**sizes, score=score))
    logits = axes(model(tokens), "batch length vocab", "logits")
    moved[name] = [t for t in range(6) if not equal(model(other_end)[:, t], logits[:, t])]
assert len(set(map(tuple, moved.values()))) == 1  # all nine agree
compare_guess(my_logits, {"shape": tuple(logits.shape), "positions that move": moved["Random"]})

# %% [markdown]
# One pass gives a prediction at *every* position: the logits at position $i$ are about token $i + 1$ and know the
# tokens 0 to $i$. That is why a causal model learns from all positions of a text at once.
#
# Train one, with Random as S, on eight texts: four sentences, some more often than others. The loss is the mean of
# $-\log$ of the probability of the word that comes. (`ignore_index` leaves the padding out. `eval()` says that training
# is over: a model with dropout then drops nothing.)

# %%
corpus = encode(*(
    3 * ["<start> the dog saw a small bird <end>"] + 2 * ["<start> the small bird slept <end>"]
    + 2 * ["<start> a cat saw the old dog <end>"] + ["<start> the old cat slept <end>"]
))


def train(model, steps=150):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        logits = model(corpus[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), corpus[:, 1:].flatten(), ignore_index=PADDING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


_ = torch.manual_seed(0)
writer = train(LanguageModel(**sizes, score="random"))

# %% [markdown]
# ## Writing: from logits to a token
#
# Take the logits of the *last* position, choose a word, append it, and begin again. S plays no part in the choice. The
# library's `sample` knows four rules; **greedy**, the most likely word, is temperature 0:

# %%
def write(model, tokens, count, **rule):
    for _ in range(count):
        logits = model(tokens)[:, -1]
        tokens = torch.cat([tokens, sample(logits, **rule)], dim=1)
    return tokens


with torch.no_grad():  # no gradients are wanted: torch need not prepare for them
    greedy = write(writer, encode("<start>"), 7, temperature=0)
print(" ".join(vocabulary[token] for token in greedy[0].tolist()))

# %% fold=true
# @title The library's generate writes the same
assert writer.generate(encode("<start>"), 7, temperature=0).equal(greedy)

# %% [markdown]
# The other three *draw* a word. **Temperature** $T$ divides the logits first: close to 0 the likely words win.
# **Top-k** forbids all but the k most likely words. **Top-p** lets the model decide how many stay. Take six logits
# made by hand, draw 2,000 times each, and look which words come at all:

# %%
words = "small dog saw bird the cat".split()
row = torch.tensor([0.4, 2.0, -2.0, 1.6, -0.6, 1.2])
generator = torch.Generator().manual_seed(0)
many = Axes(batch=2000, vocab=6)(row.expand(2000, 6), "batch vocab", "many")
print(f"{'softmax':>16}:", " ".join(f"{word} {p:.2f}"
                                    for word, p in zip(words, row.softmax(dim=0), strict=True)))
for rule in ({"temperature": 0}, {"temperature": 3.0}, {"top_k": 2}, {"top_p": 0.7}):
    drawn = sample(many, generator=generator, **rule).unique().tolist()
    name, value = next(iter(rule.items()))
    print(f"{name + ' ' + str(value):>16}:", " ".join(words[word] for word in drawn))

# %% [markdown]
# ### Top-p
#
# Top-p keeps the most likely words, as few as reach the probability p *together*. The word that crosses the line is
# still in. In the order of their probability:

# %%
order = row.argsort(descending=True)
ordered = row.softmax(dim=0)[order]
for name, numbers in {"probability": ordered, "running sum": ordered.cumsum(dim=0)}.items():
    both = zip(order.tolist(), numbers.tolist(), strict=True)
    print(f"{name:>11}:", " ".join(f"{words[word]} {value:.2f}" for word, value in both))

# %% [markdown]
# For p = 0.7 "dog" and "bird" are not enough, and "cat" crosses the line.
#
# ### Exercise 07.2: top-p
#
# *20 minutes, medium.* Return the probabilities after top-p for a batch of rows. Every row has its own number of
# allowed words.

# %% exercise="07.2" points=2
def top_p_probabilities(logits, p):
    """The probabilities from which a word is drawn under top-p.

    logits: batch vocab, no two equal in a row; they may lie far from 0. p: a number, 0 < p < 1.
    Returns probabilities, batch vocab, in the order of the vocabulary. In each row: with the
    softmax of the logits, from the most likely word on, the words so far are counted until they
    reach p together, the word that reaches it included. All others get 0, and those that stay are
    divided by their sum.
    """
    ### BEGIN SOLUTION
    probabilities, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = probabilities.masked_fill(before >= p, 0.0)
    kept = kept / kept.sum(dim=-1, keepdim=True)
    return torch.zeros_like(kept).scatter(-1, order, kept)
    ### END SOLUTION

# %% check="07.2"
check("07.2", top_p_probabilities)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# `values, order = probabilities.sort(dim=-1, descending=True)` and `values.cumsum(dim=-1)`. A word stays if the sum
# of the words *before* it is still below p. How do you get that sum from the running sum?
#
# </details>
# <details><summary>Hint 2: the check speaks of another order</summary>
#
# After sorting, column 0 is the most likely word, not word 0. `order` says where each came from:
# `zeros.scatter(-1, order, values)` writes `values[b, n]` to column `order[b, n]`. Or do not sort back at all: find
# the smallest probability that stays, and compare.
#
# </details>
# <details><summary>Hint 3: one word too few, or one too many</summary>
#
# Take p = 0.7 and the row above. The running sums are printed there. "cat" must stay and "small" must not.
#
# </details>

# %% [markdown] solution="07.2"
# A word stays if those before it have not reached p yet: so the word that crosses the line stays by itself, and so does
# the first word, whatever p is. `scatter` is the way back from the sorted order. The second way needs none: the words
# that stay are those at least as likely as the last one that stays.

# %% solution="07.2"
def top_p_by_the_smallest(logits, p):
    probabilities = logits.softmax(dim=-1)
    ordered = probabilities.sort(dim=-1, descending=True).values
    last = (ordered.cumsum(dim=-1) < p).sum(dim=-1, keepdim=True)
    kept = probabilities * (probabilities >= ordered.gather(-1, last))
    return kept / kept.sum(dim=-1, keepdim=True)


check("07.2", top_p_by_the_smallest)

# %% [markdown]
# ## One token at a time: the cache
#
# `write` reads the whole text again for every word. That is not needed: you saw that only the logits of the last
# position move with the last word. So only the newest token has to be computed, at position $t$. What does its row of
# equation (3) need?
#
# - its row of scores, $t + 1$ numbers, and
# - the **values** of all tokens up to it. Those of the earlier tokens were computed before: keep them.
#
# Where does its row of scores come from? Here S comes in:
#
# | S | row $t$ of the scores | to keep of each earlier token |
# |---|---|---|
# | dot product | query $t$ times the **keys** of all tokens up to $t$ | its key and its value |
# | Dense, Factorized Dense | $F(X_t)$: the newest token alone, cut to $t + 1$ columns | its value |
# | Random, Fixed or Factorized Random | row $t$ of the table, cut to $t + 1$ columns | its value |
#
# **A synthesizer has no keys to cache, only values.** By hand, with three heads and the parameters that you know:

# %%
axes_head = Axes(batch=2, head=3, length=6, d_model=12)  # d_head = 4


def split(features):
    return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=3)


def random_row(S, token, t, keys):
    # S.R: the tables of chapter 03, one for each head.
    return S.R[None, :, t : t + 1, : t + 1]


def dense_row(S, token, t, keys):
    # S.hidden: W1 and b1 of chapter 02, all heads side by side. S.weight, S.bias: W2 and b2.
    hidden = split(S.hidden(token)).relu()
    return hidden @ S.weight[:, :, : t + 1] + S.bias[:, None, : t + 1]


def dot_product_row(S, token, t, keys):
    # S.query, S.key: the two layers of chapter 01.
    keys.append(split(S.key(token)))
    return split(S.query(token)) @ torch.cat(keys, dim=2).transpose(2, 3) / math.sqrt(4)

# %% [markdown]
# `token` is the newest one, "batch 1 d_model". No causal mask is needed: later tokens do not exist yet.

# %%
def attend_step_by_step(layer, x, row_of_scores):
    values, keys, rows = [], [], []
    for t in range(x.shape[1]):
        token = x[:, t : t + 1]
        values.append(split(layer.value(token)))
        weights = row_of_scores(layer.score, token, t, keys).softmax(dim=-1)
        mixed = weights @ torch.cat(values, dim=2)
        rows.append(layer.output(rearrange(mixed, "batch head query d_head -> batch "
                                                  "query (head d_head)")))
    return torch.cat(rows, dim=1), len(values), len(keys)


for score, row_of_scores in {"random": random_row, "dense": dense_row,
                             "dot_product": dot_product_row}.items():
    layer = shaken(Attention(12, 3, 8, score, causal=True))
    y, of_values, of_keys = attend_step_by_step(layer, x, row_of_scores)
    off = (axes(y, "batch length d_model", "y") - layer(x)[0]).abs().max()
    print(f"{score:>11}: off the full pass by {off:.3f}; kept: {of_values} values, {of_keys} keys")

# %% [markdown]
# In the library a `Cache` for each layer holds values and keys; `keys(x)` of a score gives what must be kept of each
# token, `None` where that is nothing.
#
# ### The bytes of the cache
#
# A value is `d_model` numbers of 4 bytes (float32), and so is a key:
#
# $$\text{bytes} = 4 \cdot \text{layer} \cdot \text{batch} \cdot \text{length} \cdot d \cdot
# \begin{cases} 1 & \text{values alone} \\ 2 & \text{keys and values} \end{cases}$$
#
# Which S needs keys? For these four, write the share of a full key-value cache, 0.5 or 1:

# %%
my_share = {"Transformer": None, "Factorized Random": None, "Random + Dense": None,
            "Random + Vanilla": None}

# %% fold=true
# @title All nine, token by token with caches: the logits of the full pass, the bytes of the formula
share = {}
with torch.no_grad():
    for name, score in nine.items():
        model = shaken(LanguageModel(**sizes, score=score))
        full, caches = axes(model(tokens), "batch length vocab", "full"), model.new_caches()
        for t in range(6):
            assert equal(model(tokens[:, t : t + 1], caches=caches)[:, 0], full[:, t]), name
        axes_head(caches[0].entries[0], "batch head key d_head", name)
        counted, per_tensor = sum(cache.bytes for cache in caches), 4 * 2 * 2 * 6 * 12
        assert counted == per_tensor * (2 if "dot_product" in score else 1), name
        share[name] = counted / (2 * per_tensor)
        with_cache, without = (model.generate(tokens, 10, temperature=0, cache=cache)
                               for cache in (True, False))
        assert with_cache.equal(without), name

# %% [markdown]
# In the size of the paper's language model, 6 layers, $d = 512$ and length 256, for one text:

# %%
for name, tensors in {"values": 1, "keys and values": 2}.items():
    print(f"{name:>15}: {4 * 6 * 1 * 256 * 512 * tensors:9,} bytes")
compare_guess(my_share, {name: share[name] for name in my_share})

# %% [markdown]
# Keys are kept wherever the dot product is a part of S: a mixture with it saves nothing. And a cache ends at
# `max_length`: to go on, the text must move by one position, and every token gets another row of $P$. From there on
# `generate` reads the last `max_length` tokens again at every step.
#
# ### Exercise 07.3: several tokens at once
#
# *30 minutes, hard.* A prompt is not read token by token. Its tokens come at once, and so do the words that a cache
# has not seen yet. The scores are the plain sum $R + F(X)$, in the spirit of equation (9), without biases. You get
# the newest tokens and the values of those before them. Return the rows of the newest tokens, and all values.

# %% exercise="07.3" points=3
def next_steps(tokens, past, R, W1, W2, G):
    """Several new tokens with a cache, in one causal layer of Random + Dense.

    tokens: batch query d_model, the newest tokens, at least one. past: batch head key d_head, the
    values of all tokens before them, perhaps none (key = 0).
    R: head max_length max_length, with max_length above the number of all tokens; its numbers may
    lie far from 0. W1: d_model (head d_head), W2: head d_head max_length: the two layers of F, with
    a relu between them. G: d_model (head d_head) makes values.
    The first of the new tokens stands at position t, where t is how many tokens came before. Each
    of them looks at all tokens before it and at itself, as in a causal layer that reads the whole
    text.
    Returns (mixed, value), mixed: batch head query d_head, one softmax over R + F(X), times values;
    value: batch head key d_head, the values of all tokens, the new ones behind the others.
    """
    ### BEGIN SOLUTION
    t, n = past.shape[2], tokens.shape[1]
    in_heads = "batch query (head d_head) -> batch head query d_head"
    value = torch.cat([past, rearrange(tokens @ G, in_heads, head=len(R))], dim=2)
    hidden = rearrange((tokens @ W1).relu(), in_heads, head=len(R))
    scores = R[:, t : t + n, : t + n] + hidden @ W2[:, :, : t + n]
    later = ~masks.causal(t + n)[:, :, t:]
    weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
    return weights @ value, value
    ### END SOLUTION

# %% check="07.3"
check("07.3", next_steps)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With `t = past.shape[2]` and `n = tokens.shape[1]`. Make the values of the new tokens and append them. Then draw the
# table of scores on paper for t = 3 and n = 2: which rows of `R`, which columns, and which two of the ten numbers are
# there that no token may use?
#
# </details>
# <details><summary>Hint 2: the shapes do not fit</summary>
#
# `rearrange(tokens @ G, "batch query (head d_head) -> batch head query d_head", head=...)` splits the heads.
# A cut of `R` is "head query key" and is stretched over the batch by itself.
#
# </details>
# <details><summary>Hint 3: one token works, several do not</summary>
#
# With one token nothing is hidden. With several, the first of them must not see the second. Take the last rows of the
# causal mask of the whole text, t + n long.
#
# </details>

# %% [markdown] solution="07.3"
# Row and column numbers are positions in the whole text, so the new rows are t to t + n - 1 of `R`, of the mask, and of
# nothing else: F makes each row from its own token. With key = 0 this is the full pass over a prompt, with one new
# token the step of a writer; one function does both. The second way makes one step after another, and no mask.

# %% solution="07.3"
def next_steps_one_by_one(tokens, past, R, W1, W2, G):
    mixed, value = [], past
    for i in range(tokens.shape[1]):
        token, t = tokens[:, i : i + 1], value.shape[2]
        newest, hidden = (rearrange(part, "batch 1 (head d_head) -> "
                                          "batch head 1 d_head", head=len(R))
                          for part in (token @ G, (token @ W1).relu()))
        value = torch.cat([value, newest], dim=2)
        scores = R[:, t : t + 1, : t + 1] + hidden @ W2[:, :, : t + 1]
        mixed.append(scores.softmax(dim=-1) @ value)
    return torch.cat(mixed, dim=2), value


check("07.3", next_steps_one_by_one)

# %% [markdown]
# > **A good place to stop.** You have built a block and a model that writes. Two further parts follow: padding and
# > classifying up to exercise 07.4, then translating and beam search.
#
# ## Reading whole texts: positions and padding
#
# A model that only reads, an *encoder*, needs no causal mask. Its last rows are the result; there are no logits.
# But now later positions can be seen, and some of them are padding.

# %%
class OurEncoder(nn.Module):
    def __init__(self, vocab, d_model, head, layer, max_length, score):
        super().__init__()
        self.token = nn.Embedding(vocab, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(
            OurBlock(d_model, head, max_length, score, causal=False) for _ in range(layer)
        )
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens, real=None, positions=None):
        positions = torch.arange(tokens.shape[1]) if positions is None else positions
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x, real)
        return self.norm(x)

# %% [markdown]
# `real` is the padding mask of [chapter 01](01_dot_product.ipynb), "batch 1 1 key". `positions` says which row of $P$
# each token gets.
#
# ### Padding on the right changes nothing
#
# "the old cat slept" has 4 words. Encode it alone, then in the batch of two, where 2 fillers stand behind it. Do
# its four rows stay the same, with the mask and without?

# %%
lengths = [6, 4]
real = axes(masks.padding(lengths, length=6), "batch 1 1 key", "real")
seen = {"with the mask": [], "without the mask": []}
for score in nine.values():
    encoder = shaken(OurEncoder(**sizes, score=score))
    for column, mask in zip(seen.values(), (real, None), strict=True):
        y = axes(encoder(tokens, mask), "batch length d_model", "y")
        column.append(moves(y[1:, :4], encoder(tokens[1:, :4])))
for name, column in seen.items():
    print(f"{name}: stays in {column.count('stays')} models, moves in {column.count('moves')}")

# %% [markdown]
# The mask acts after S, on the scores, so S need not know of it. Without it the four words average the fillers in,
# whatever S is. In code that you read, look whether the mask is used for *every* S: it is easy to forget.
#
# ### Padding on the left moves every word
#
# With padding on the left all texts end at the same position, so the newest token of a whole batch is `x[:, -1]`. But
# now "the" stands at position 2.

# %%
left_tokens = axes(torch.stack([tokens[0], tokens[1].roll(2)]), "batch length", "left_tokens")
left_real = axes(masks.padding(lengths, length=6, side="left"), "batch 1 1 key", "left_real")
print("tokens:", left_tokens[1].tolist())
print("real:  ", left_real[1, 0, 0].int().tolist())

# %% [markdown]
# The mask is right. Now repair the positions too, so that "the" gets row 0 of $P$ again. For whom is all well then?
# Write yes or no: are the four rows those of the text alone, with padding on the left and repaired positions?

# %%
my_repair = {"Transformer": None, "Random": None, "Dense": None, "Random + Vanilla": None}

# %%
# a filler gets position 0: nobody looks at it
positions = (torch.arange(6) - torch.tensor([[0], [2]])).clamp(min=0)
positions = axes(positions, "batch length", "positions")
on_the_left = {}
for name, score in nine.items():
    encoder = shaken(OurEncoder(**sizes, score=score))
    alone = encoder(tokens[1:, :4])
    left = axes(encoder(left_tokens, left_real), "batch length d_model", "left")
    repaired = axes(encoder(left_tokens, left_real, positions), "batch length d_model", "repaired")
    on_the_left[name] = [moves(some[1:, 2:], alone) for some in (left, repaired)]

# %% [markdown]
# To see what to expect, look at one layer of Random and the four words, with fillers behind and in front. (`F.pad`
# adds rows of zeros.)

# %%
_ = torch.manual_seed(29)
one_layer = Attention(12, 1, 8, "random", initial_scale=2.0)
x_right, x_left = (F.pad(x[1:, :4], (0, 0, *sides)) for sides in ((0, 2), (2, 0)))
_, on_right = one_layer(x_right, real[1:])
_, on_left = one_layer(x_left, left_real[1:])
two_maps = torch.stack([on_right[0, 0, :4, :4], on_left[0, 0, 2:, 2:]])
fig = plots.attention_map(two_maps, "the old cat slept".split(),
                          titles=["padding right", "padding left"])
looks = [", ".join("the old cat slept".split()[key] for key in one.argmax(dim=-1))
         for one in two_maps]
plots.show(fig, "the map of one Random layer for the same four words. The darkest key, row by row: "
                "with two fillers "
           f"on the right {looks[0]}, with two on the left {looks[1]}.")

# %% [markdown]
# Both are blocks of one table $R$: rows and columns 0 to 3, and 2 to 5. The words had no say. And the nine:

# %%
compare_guess(my_repair, {name: on_the_left[name][1] == "stays" for name in my_repair})
print(f"\n{'padding left':>17}  as it is  positions repaired")
for name, (left, repaired) in on_the_left.items():
    print(f"{name:>17}  {left:8}  {repaired}")

# %% [markdown]
# The dot product alone is repaired, because $P$ is the only way in which it knows positions. A synthesizer knows
# them a second time: row and column numbers *are* the positions of Random, and the columns of Dense are. Row 0 of $R$
# was learned for the first word of a text, and now a filler uses it.
#
# **The remedy:** keep padding on the right for an S that is bound to positions. Where a batch comes with padding on the
# left, roll each row back, read, and, if you must, roll the result:

# %%
fillers = [0, 2]


def roll_rows(table, steps):
    return torch.stack([row.roll(step, dims=0) for row, step in zip(table, steps, strict=True)])


rolled = []
for score in nine.values():
    encoder = shaken(OurEncoder(**sizes, score=score))
    y = encoder(roll_rows(left_tokens, [-n for n in fillers]), real)
    y = axes(roll_rows(y, fillers), "batch length d_model", "y")
    rolled.append(moves(y[1:, 2:], encoder(tokens[1:, :4])))
print(f"rolled, read, rolled back: stays in {rolled.count('stays')} models, "
      f"moves in {rolled.count('moves')}")

# %% [markdown]
# (A longer text than `max_length` does not fit at all, not even with the dot product: $P$ ends as well.)
#
# ## A classifier
#
# To classify a text, turn its rows into one row, then into a logit for each class (*label*). We take the mean of
# the **real** rows. Fillers have rows too, which are not zero: each went through the mlp of every block.

# %%
class OurClassifier(OurEncoder):
    def __init__(self, vocab, label, d_model, head, layer, max_length, score):
        super().__init__(vocab, d_model, head, layer, max_length, score)
        self.label = nn.Linear(d_model, label)

    def forward(self, tokens, lengths):
        real = masks.padding(lengths, tokens.shape[1])
        rows = super().forward(tokens, real)
        is_real = rearrange(real, "batch 1 1 key -> batch key 1")
        return self.label((rows * is_real).sum(dim=1) / is_real.sum(dim=1))

# %% [markdown]
# The logits of "the old cat slept", alone and in the batch, and what a plain mean makes of the same rows:

# %%
_ = torch.manual_seed(0)
model = shaken(OurClassifier(label=5, **sizes, score="random"))
in_batch = Axes(batch=2, label=5)(model(tokens, lengths), "batch label", "in_batch")
rows = OurEncoder.forward(model, tokens, real)
for name, logits in {"alone": model(tokens[1:, :4], [4]), "in the batch": in_batch[1:],
                     "plain mean": model.label(rows.mean(dim=1))[1:]}.items():
    print(f"{name:>12}:", " ".join(f"{logit:5.2f}" for logit in logits[0].tolist()))

# %% [markdown]
# ### Two sentences in one input
#
# Does the second sentence follow from the first? Such tasks pack *two* texts into one: the first, a separator, the
# second. So the self-attention has to compare them, because nothing else could.

# %%
pairs = encode(
    "the dog slept <separator> the cat slept",
    "the small dog slept <separator> the cat slept",
)
axes_pairs = Axes(batch=2, length=8, vocab=24)
pairs = axes_pairs(pairs, "batch length", "pairs")
second_starts = [row.tolist().index(SEPARATOR) + 1 for row in pairs]
print("the second sentence begins at position", second_starts)

# %% [markdown]
# Change a word of the *first* sentence, "dog" to "bird". Do the rows of the words of the *second* sentence move in
# the attention map? Write True or False:

# %%
my_rows = {
    "Transformer, layer 0": None, "Dense, layer 0": None, "Dense, layer 1": None,
    "Random, layer 0": None, "Random, layer 1": None,
}

# %%
other_pairs = pairs.clone()
other_pairs[0, 1] = number["bird"]
second = slice(second_starts[0], 7)
second_moves = {}
for name, score in nine.items():
    model = shaken(Classifier(label=5, **sizes, score=score))
    maps, other_maps = (model.attention_maps(some, [7, 8]) for some in (pairs, other_pairs))
    for one in (*maps, *other_maps):
        Axes(batch=2, head=3, length=8)(one, "batch head query key", name)
    both = zip(maps, other_maps, strict=True)
    second_moves[name] = [moves(one[0, :, second], other[0, :, second]) for one, other in both]

compare_guess(my_rows, {
    asked: second_moves[asked.split(",")[0]][int(asked[-1])] == "moves" for asked in my_rows
})
print(f"\n{'':>17}  layer 0  layer 1")
for name, in_layers in second_moves.items():
    print(f"{name:>17}  {'    '.join(in_layers)}")

# %% [markdown]
# With the dot product they move at once. With Dense not in layer 0, where a word knows only itself; in layer 1 it
# has read the first sentence through the *values* of layer 0. That is not yet a comparison, but it is a way to one;
# [Table 1](06_mixtures.ipynb) speaks of one layer. With Random alone no map ever moves. And "slept" of the second
# sentence stands at position 6 in one pair and at 7 in the other: an S that is bound to positions sees two tasks.
#
# On GLUE, tasks of which most are pairs, the paper reports an average of 83.5 for its baseline, 75.1 for Random, 72.0
# for Dense, 82.6 for Dense + Vanilla, 84.1 for Random + Vanilla, and gives this very reason.
#
# ### Exercise 07.4: one row for each sentence of a pair
#
# *15 minutes, medium.* To compare two sentences outside of the model, one wants a row for each. There are no lengths
# here: read from the tokens what belongs where.

# %% exercise="07.4" points=1
def mean_of_each(x, tokens, padding, separator):
    """The mean row of the first and of the second sentence of each pair.

    x: batch length d_model. tokens: batch length, int64. padding, separator: the numbers of these
    two tokens.
    In each row of tokens stand the words of the first sentence, one separator, the words of the
    second, at least one word in each; all fillers stand before them or all behind them, in some
    rows there is none.
    Returns (first, second), both batch d_model. Fillers and the separator belong to neither
    sentence.
    """
    ### BEGIN SOLUTION
    is_separator = tokens == separator
    word = (tokens != padding) & ~is_separator
    seen = is_separator.cumsum(dim=1)  # 0 in front of the separator, 1 behind it
    means = []
    for sentence in (0, 1):
        own = rearrange(word & (seen == sentence), "batch length -> batch length 1")
        means.append((x * own).sum(dim=1) / own.sum(dim=1))
    return tuple(means)
    ### END SOLUTION

# %% check="07.4"
check("07.4", mean_of_each)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# For each token three questions have an answer: is it a filler, is it the separator, and has the separator been seen
# yet? Write down the three rows of answers for a small pair.
#
# </details>
# <details><summary>Hint 2: how do I find out what has been seen?</summary>
#
# `cumsum` of a row of zeros and ones counts the ones so far. Or ask in each row for the position of the separator
# (`argmax`), and compare all positions with it.
#
# </details>

# %% [markdown] solution="07.4"
# Each sentence has a mask: words only, and on its side of the separator. The mask makes the sum, and its own count
# divides it. Whether the fillers stand left or right makes no difference, because no position is named. The second way
# goes through the texts and picks rows by hand: slower, and easier to believe.

# %% solution="07.4"
def mean_of_each_in_loops(x, tokens, padding, separator):
    first, second = [], []
    for rows, own in zip(x, tokens, strict=True):
        rows, own = rows[own != padding], own[own != padding].tolist()
        middle = own.index(separator)
        first.append(rows[:middle].mean(dim=0))
        second.append(rows[middle + 1 :].mean(dim=0))
    return torch.stack(first), torch.stack(second)


check("07.4", mean_of_each_in_loops)

# %% [markdown]
# ## Two texts: encoder and decoder
#
# To translate, a model reads a *source* and writes a *target*. The rows of an encoder, as above, are the *memory*. A
# *decoder* is a language model that writes the target, with one more part in each block: **cross-attention**. Its
# queries come from the target, its keys and values from the memory.
#
# | tensor | shape, in axis names | size here |
# |---|---|---|
# | `x`, the target tokens in the decoder | batch query d_model | 2 × 5 × 12 |
# | `memory` | batch key d_model | 2 × 6 × 12 |
# | scores, weights | batch head query key | 2 × 3 × 5 × 6 |
# | result | batch query d_model | 2 × 5 × 12 |
#
# For the first time query and key have different sizes:

# %%
axes_cross = Axes(batch=2, head=3, query=5, key=6, d_model=12)  # d_head = 4
layer = shaken(CrossAttention(12, 3, 8, "dot_product"))
x_target = axes_cross(draw(3, 2, 5, 12, high=2), "batch query d_model", "x_target")
memory = axes_cross(draw(4, 2, 6, 12, high=2), "batch key d_model", "memory")

queries = axes_cross(split(layer.score.query(x_target)), "batch head query d_head", "queries")
keys = axes_cross(split(layer.score.key(memory)), "batch head key d_head", "keys")
values = axes_cross(split(layer.value(memory)), "batch head key d_head", "values")
scores = einsum(queries, keys, "batch head query d_head, batch head key d_head -> batch "
                               "head query key")
weights = axes_cross((scores / math.sqrt(4)).softmax(dim=-1), "batch head query key", "weights")
mixed = axes_cross(weights @ values, "batch head query d_head", "mixed")
y = layer.output(rearrange(mixed, "batch head query d_head -> batch query (head d_head)"))
print("y:", tuple(axes_cross(y, "batch query d_model", "y").shape), " weights:",
      tuple(weights.shape))

# %% fold=true
# @title One score in loops, and the library's layer
for i in range(5):
    for j in range(6):
        assert equal(scores[0, 0, i, j], (queries[0, 0, i] * keys[0, 0, j]).sum())
library_y, library_weights = layer(x_target, memory)
assert equal(library_y, y) and equal(library_weights, weights)

# %% [markdown]
# No causal mask here: the source is known from its first to its last word. A padding mask of the source, yes.
#
# ### Why cross-attention stays vanilla
#
# The paper synthesizes the self-attention of encoder and decoder and keeps the dot product here: in most cases, it
# says, cross-attention could not be replaced. Why? `CrossAttention` takes any score. Ask three questions: does the map
# move when the source changes? Does the map move when the target changes? Does the result `y` move when the source
# changes? Guess the first, yes or no:

# %%
my_map = {"dot_product": None, "dense": None, "random": None}

# %%
other_memory, other_target = memory + draw(5, 2, 6, 12, high=1), x_target + draw(6, 2,
                                                                                 5, 12, high=1)
answers = {}
for score in ("dot_product", "dense", "factorized_dense", "random", "factorized_random",
              "fixed_random"):
    layer = shaken(CrossAttention(12, 3, 8, score))
    y, weights = layer(x_target, memory)
    weights = axes_cross(weights, "batch head query key", "weights")
    new_y, by_source = layer(x_target, other_memory)
    _, by_target = layer(other_target, memory)
    answers[score] = [moves(*two)
                      for two in ((by_source, weights), (by_target, weights), (new_y, y))]

# %%
compare_guess(my_map, {score: answers[score][0] == "moves" for score in my_map})
print(f"\n{'':>17}  map by source  map by target  y by source")
for score, (by_source, by_target, y_by_source) in answers.items():
    print(f"{score:>17}  {by_source:13}  {by_target:13}  {y_by_source}")

# %% [markdown]
# The first column: a synthesized map never moves with the source, which comes in through the values alone. Row *t* of
# Random knows that it stands at position *t* of the target; row *t* of Dense knows the word that was written there.
# Neither can ask where in *this* source the word stands that is needed now.
#
# An example: two sources with the same words in another order. The "learned" numbers are made by
# hand: a German word gets the row of its English translation, so the dot product finds it. $R$ gets the best table
# for the first source. (The target leaves "small" out.)

# %%
translation = dict(zip("der Hund sah einen Vogel".split(), "the dog saw a "
                                                           "bird".split(), strict=True))
row_of = dict(zip(english, draw(7, 9, 12, high=2), strict=True))
R = torch.zeros(5, 6)
for position, source_position in enumerate([0, 1, 2, 3, 5]):
    R[position, source_position] = 4.0

axes_pair = Axes(query=5, key=6, d_model=12)
right = {}
for source in ("the dog saw a small bird", "the small dog saw a bird"):
    target_rows = axes_pair(torch.stack([row_of[word] for word in translation.values()]),
                            "query d_model")
    source_rows = axes_pair(torch.stack([row_of[word] for word in source.split()]), "key d_model")
    maps = torch.stack([(target_rows @ source_rows.T / math.sqrt(12)), R]).softmax(dim=-1)
    looks = [[source.split()[j] for j in one.argmax(dim=-1).tolist()] for one in maps]
    right[source] = [sum(map(str.__eq__, one, translation.values())) for one in looks]
    fig = plots.attention_map(maps, list(translation), keys=source.split(),
                              titles=["dot product", "Random"])
    plots.show(fig, f"two cross-attention maps for the source '{source}'. Dot product: "
                    "the rows look at "
               f"{', '.join(looks[0])}. Random: they look at {', '.join(looks[1])}.")

# %%
for source, (by_dot_product, by_random) in right.items():
    print(f"{source}: right rows, dot product {by_dot_product} of 5, Random {by_random} of 5")

# %% [markdown]
# In the second source only "der" and "Vogel" of Random's map are right. Another table would be right for the second
# and wrong for the first.
#
# Two ways are left. The encoder can carry each word to the position where the target will look for it. And Dense in the
# second block of the decoder reads a token that has already met the source. Random has only the first:

# %%
sources = encode("the dog saw a small bird", "the old cat slept")
targets = encode("<start> der Hund sah einen", "<start> die Katze schlief")
other_sources = encode("the dog saw the small bird", "the old cat slept")
print(f"{'cross map':>11}  layer 0  layer 1")
for cross_score in ("dot_product", "dense", "random"):
    model = shaken(EncoderDecoder(**sizes, score="dense", cross_score=cross_score))
    with torch.no_grad():
        maps = [model.attention_maps(some, targets, lengths)["cross"]
                for some in (sources, other_sources)]
    print(f"{cross_score:>11}  "
          f"{'    '.join(moves(one[0], other[0]) for one, other in zip(*maps, strict=True))}")

# %% [markdown]
# <details><summary>How much does it matter?</summary>
#
# One public implementation, TaraSPande/synthesizer, synthesizes cross-attention too. It
# reports, in one run each and on its validation set, 27.01 BLEU from English to German for the dot product, 23.06 for
# Dense and 21.09 for Random. (*BLEU* counts the pieces of a translation that a human translation has too; more is
# better.) The paper, with vanilla cross-attention, reports 27.67, 27.43 and 27.27. So the fall is larger there. But
# those runs replace the self-attention as well, in other code and another training: they do not say how much of the
# fall is due to the cross-attention.
#
# </details>
#
# ### The whole model
#
# The decoder reads `<start> der Hund` and is to predict `der Hund <end>`: the target, shifted by one. One table
# $E$ serves both languages and the output, one table $P$ both texts.

# %%
class OurDecoderBlock(OurBlock):
    def __init__(self, d_model, head, max_length, score, cross_score):
        super().__init__(d_model, head, max_length, score, causal=True)
        self.norm_cross = nn.LayerNorm(d_model)
        self.cross_attention = CrossAttention(d_model, head, max_length, cross_score)

    def forward(self, x, memory, real):
        x = x + self.attention(self.norm_attention(x))[0]
        x = x + self.cross_attention(self.norm_cross(x), memory, real)[0]
        return x + self.mlp(self.norm_mlp(x))

# %%
class OurEncoderDecoder(nn.Module):
    def __init__(self, vocab, d_model, head, layer, max_length, score, cross_score="dot_product"):
        super().__init__()
        of_block = (d_model, head, max_length, score)
        self.token = nn.Embedding(vocab, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.encoder = nn.ModuleList(OurBlock(*of_block, causal=False) for _ in range(layer))
        self.encoder_norm = nn.LayerNorm(d_model)
        self.decoder = nn.ModuleList(OurDecoderBlock(*of_block, cross_score) for _ in range(layer))
        self.decoder_norm = nn.LayerNorm(d_model)

    def rows(self, tokens):
        return self.token(tokens) + self.position.weight[: tokens.shape[1]]

    def forward(self, source, target, source_lengths):
        real = masks.padding(source_lengths, source.shape[1])
        memory = self.rows(source)
        for block in self.encoder:
            memory = block(memory, real)
        memory = self.encoder_norm(memory)
        x = self.rows(target)
        for block in self.decoder:
            x = block(x, memory, real)
        return self.decoder_norm(x) @ self.token.weight.T

# %% [markdown]
# The source is read once, and a second cache in each block keeps what cross-attention needs of it. One decoder block
# with vanilla cross-attention, token by token:

# %%
with torch.no_grad():
    for name in ("Transformer", "Random", "Dense", "Dense + Vanilla"):
        block = shaken(Block(12, 3, 8, nine[name], causal=True, cross_score="dot_product"))
        full, *_ = block(x_target, memory=memory)
        caches = {"cache": Cache(), "memory_cache": Cache()}
        steps = [block(x_target[:, t : t + 1], memory=memory, **caches)[0] for t in range(5)]
        off = (axes_cross(torch.cat(steps, dim=1), "batch query "
                                                   "d_model", "by_steps") - full).abs().max()
        of_target, of_source = (cache.bytes for cache in caches.values())
        print(f"{name:>17}: off by {off:.3f}, bytes: target {of_target}, source {of_source}")

# %% [markdown]
# The keys *and* values of the source are kept, whatever S the decoder has. A synthesizer spares only the keys of the
# target.

# %% fold=true
# @title The library's models are ours, for all nine: values, and gradients in double precision
def assert_same(ours, library, *inputs):
    """Same outputs, and same gradients of every parameter, of a sum with fixed factors."""
    ours = shaken(ours).double()
    library.double().load_state_dict(ours.state_dict())
    theirs, first = library(*inputs), ours(*inputs)
    theirs = theirs[0] if isinstance(theirs, tuple) else theirs
    assert equal(first, theirs), type(library)
    factors, of_library = draw(2, *first.shape, high=2), dict(library.named_parameters())
    names, parameters = zip(*ours.named_parameters(), strict=True)
    gradients = torch.autograd.grad((first * factors).sum(), parameters)
    others = torch.autograd.grad((theirs * factors).sum(), [of_library[name] for name in names])
    assert all(map(equal, gradients, others)), type(library)


label = {**sizes, "label": 5}
for score in nine.values():
    assert_same(OurBlock(12, 3, 8, score, causal=True),
                Block(12, 3, 8, score, causal=True), x.double())
    assert_same(OurLanguageModel(**sizes, score=score), LanguageModel(**sizes, score=score), tokens)
    assert_same(OurClassifier(**label, score=score), Classifier(**label, score=score),
                tokens, lengths)
    for cross in ("dot_product", "dense"):
        both = (kind(**sizes, score=score, cross_score=cross)
                for kind in (OurEncoderDecoder, EncoderDecoder))
        assert_same(*both, sources, targets, lengths)

# %% [markdown]
# ## Beam search
#
# Greedy takes the best next word and never comes back. Here is a model of a few German sentences, as a table: what
# stands before, and the probability of each next word. (It is not sure of its genders: "die Hund" is wrong.) Find by
# eye the most likely whole output. What is not in the table ends.

# %%
next_word = {
    "": {"die": 0.55, "der": 0.45},
    "die": {"Katze": 0.40, "Hund": 0.30, "Vogel": 0.30},
    "der": {"Hund": 0.90, "Vogel": 0.10},
    "die Katze": {"schlief": 0.70, "<end>": 0.30},
    "der Hund": {"<end>": 0.52, "schlief": 0.48},
}


def following(written):
    return next_word.get(" ".join(written), {"<end>": 1.0})

# %% [markdown]
# Greedy begins with "die". A **beam search** keeps several beginnings, and at each step goes on with the best among
# *all* their continuations. One adds logarithms, since products of probabilities become tiny. With a beam of 1 it is
# greedy:

# %%
def beam_by_hand(beam, steps):
    beginnings, finished = {(): 0.0}, {}
    for step in range(steps):
        candidates = {}
        for written, total in beginnings.items():
            for word, p in following(written).items():
                candidates[(*written, word)] = total + math.log(p)
        best = sorted(candidates, key=candidates.get, reverse=True)
        finished |= {one: candidates[one] for one in best[:beam] if one[-1] == "<end>"}
        going_on = [one for one in best if one[-1] != "<end>"][:beam]
        beginnings = {one: candidates[one] for one in going_on}
        shown = [f"{' '.join(one)} {math.exp(total):.3f}" for one, total in beginnings.items()]
        print(f"  step {step}:", ", ".join(shown) or "all have ended")
    return finished


for beam in (1, 2):
    print(f"beam {beam}")
    finished = beam_by_hand(beam, steps=4)
    print("  finds:", ", ".join(f"{' '.join(one)} "
                                f"{math.exp(total):.3f}" for one, total in finished.items()))

# %% [markdown]
# With two beginnings "der Hund" comes out on top, which greedy could not reach. A wider beam is more work, and still no
# promise: what fell out of it is gone. A cache has to follow the beginnings; a synthesizer has half as much to move.
#
# ### The length penalty
#
# Longer outputs tend to be less likely, and the search likes to stop early: "der Hund" has lost its verb. The usual
# remedy divides the sum of logarithms by a factor that grows with the length, the end token counted:
#
# $$\text{score} = \frac{\sum_t \log p_t}{\left(\frac{5 + \text{length}}{6}\right)^{\alpha}}$$
#
# With $\alpha = 0$ nothing changes. The paper uses $\alpha = 0.6$ and a beam of 4. On the two best outputs:

# %%
for alpha in (0.0, 0.6):
    for written in (("der", "Hund", "<end>"), ("der", "Hund", "schlief", "<end>")):
        total, factor = finished[written], ((5 + len(written)) / 6) ** alpha
        print(f"alpha {alpha}: {total:.3f} / {factor:.3f} = {total / factor:.3f}  "
              f"{' '.join(written)}")

# %% [markdown]
# A negative number comes closer to 0 when it is divided by a larger factor. So the longer one wins now. In the library:
# `translate(..., beam=4, length_penalty=0.6)`.
#
# ### Exercise 07.5: where the order changes
#
# *20 minutes, medium.* Somewhere between $\alpha = 0$ and 0.6 the winner changed. Where? Find the place, for any
# number of finished outputs, and do not try out a list of values.

# %% exercise="07.5" points=1
def first_change(outputs):
    """Where another output wins for the first time, when alpha grows from 0 on.

    outputs: at least two finished outputs of different lengths, each a list with the
    log-probability (below 0) of each of its tokens; the last is that of the end token, which
    counts. The best score wins. At alpha = 0 one wins alone, and at least one output is longer than
    it.
    Returns (winner, alpha, next_winner): the position in outputs, from 0 on, of the output that
    wins at alpha = 0, an int; the alpha, a float, up to which it wins (four digits after the point
    are compared); and the position of the output that wins right after that.
    """
    ### BEGIN SOLUTION
    totals = [-sum(tokens) for tokens in outputs]
    factors = [(5 + len(tokens)) / 6 for tokens in outputs]
    winner = totals.index(min(totals))
    changes = {}
    for i in range(len(outputs)):
        if factors[i] > factors[winner]:
            longer = math.log(factors[i] / factors[winner])
            changes[i] = math.log(totals[i] / totals[winner]) / longer
    next_winner = min(changes, key=changes.get)
    return winner, changes[next_winner], next_winner
    ### END SOLUTION

# %% check="07.5"
check("07.5", first_change)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With two outputs. At the alpha that you look for, both have the same score. Write that down as an equation, and bring
# both powers of alpha to one side. Which function takes alpha out of a power?
#
# </details>
# <details><summary>Hint 2: there are more than two</summary>
#
# Each of the others could catch up with the winner, at an alpha of its own. Which of these comes first? And can an
# output that is shorter than the winner ever catch up?
#
# </details>

# %% [markdown] solution="07.5"
# Two scores are equal where the ratio of the sums is the ratio of the factors to the power alpha, so a logarithm on
# both sides gives alpha. Plotted against alpha, the logarithm of each score (without its sign) is a straight line
# that falls the faster the longer the output is: the winner is the lowest line, and the first line to cross it is the
# next winner. The second way halves an interval again and again.

# %% solution="07.5"
def first_change_by_halving(outputs):
    def best(alpha):
        scores = [sum(tokens) / ((5 + len(tokens)) / 6) ** alpha for tokens in outputs]
        return scores.index(max(scores))

    low, high = 0.0, 1.0
    while best(high) == best(0.0):
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if best(middle) == best(0.0) else (low, middle)
    return best(0.0), high, best(high)


check("07.5", first_change_by_halving)

# %% [markdown]
# ## What it costs: the parameters of whole models
#
# The folded cells count the parameters of all nine translation models at the sizes of the paper: 6 + 6 layers, $d =
# 512$, 8 heads, an mlp of 2048, length 256, no biases. The paper does not give the size of its vocabulary; we take
# 32,000, a round number of ours.
#
# <details><summary>The formulas that the counts have to meet</summary>
#
# With $d$ for d_model, $l$ for max_length, $V$ for vocab, $N$ for layer, $c$ classes, and $s$ for the parameters of the
# scores in one layer: that of Table 1, with a table for each head in the Random family, and one logit for each part
# of a mixture.
#
# | part | parameters |
# |---|---|
# | tables $E$ and $P$ | $V d + l\,d$ |
# | block | $s + 2d^2$ (values, output) $+\, 8d^2$ (mlp) $+\, 2d$ (norms) |
# | decoder block of a translation model | the same $+\, 4d^2 + d$: vanilla cross-attention and its norm |
# | language model | tables + $N$ blocks + $d$ |
# | classifier | the same $+\, c\,d$ |
# | encoder-decoder | tables + $N$ blocks + $N$ decoder blocks + $2d$ |
#
# </details>

# %% fold=true
# @title The formulas
def of_scores(score, d, head, l, k=8):
    a = math.isqrt(l)  # the most square pair; 16 * 16 for l = 256
    table_1 = {
        "dot_product": 2 * d**2,
        "fixed_random": 0,
        "random": head * l**2,
        "factorized_random": head * 2 * l * k,
        "dense": d**2 + d * l,
        "factorized_dense": d**2 + d * (a + l // a),
    }
    parts = score.split(" + ")
    return sum(table_1[part] for part in parts) + (len(parts) if len(parts) > 1 else 0)


def by_formula(score, vocab, label, d, head, layer, l):
    tables = vocab * d + l * d
    block = of_scores(score, d, head, l) + 10 * d**2 + 2 * d
    language_model = tables + layer * block + d
    encoder_decoder = tables + layer * (2 * block + 4 * d**2 + d) + 2 * d
    return language_model, language_model + label * d, encoder_decoder

# %% fold=true
# @title Count the parameters, compare with the formulas, print the column of the paper
base = {"vocab": 32_000, "label": 3, "d": 512, "head": 8, "layer": 6, "l": 256}
printed = {"Transformer": 68, "Fixed Random": 61, "Random": 67, "Factorized Random": 61,
           "Dense": 62,
           "Factorized Dense": 61, "Random + Dense": 67, "Dense + Vanilla": 74,
           "Random + Vanilla": 73}
whole = {}
for name, score in nine.items():
    with torch.device("meta"):  # tensors without numbers: such models are built at once
        of_model = {"vocab": 32_000, "d_model": 512, "head": 8, "layer": 6, "max_length": 256,
                    "score": score}
        models = [LanguageModel(**of_model, bias=False),
                  Classifier(label=3, **of_model, bias=False),
                  EncoderDecoder(**of_model, bias=False)]
    counts = tuple(sum(parameter.numel() for parameter in model.parameters()) for model in models)
    assert counts == by_formula(score, **base), name
    whole[name] = counts[2]
print("parameters of a translation model, and how many millions more than Fixed Random it has")
print(f"{'':>17} {'by our count':>12} | {'our count':>9}  {'the paper':>9}")
for name in nine:
    ours = (whole[name] - whole["Fixed Random"]) / 1e6
    paper = printed[name] - printed["Fixed Random"]
    # a difference of two rounded numbers
    fits = "fits" if abs(ours - paper) < 1 else "does not fit"
    print(f"{name:>17} {whole[name]:12,} | {ours:9.2f}  {paper:9}  {fits}")
    if "Dense" in name:  # what the text says of d^2
        without = ours - 12 * 512**2 / 1e6
        assert (abs(without - paper) < 1) == (name in ("Dense", "Factorized Dense"))

# %% [markdown]
# Look at Transformer and Random. They agree to the last digit: $8 \cdot 256^2 = 2 \cdot 512^2$. At this length
# Random saves nothing.
#
# ### Beside the paper's column
#
# The paper prints whole millions. What all nine share, the vocabulary above all, is unknown; the *differences* come
# from S alone, so the folded cell subtracts Fixed Random. **No row with Dense fits:** Table 1 says $d^2 + d\,l$ for
# each of twelve layers, which is much more than the paper's 1 million. (Without the $d^2$ Dense and Factorized Dense
# would fit, and the two mixtures would not.)
#
# By our count Transformer and Random are equal, while the paper prints 68 and 67. The four rows that fit and hold a
# Random agree on what is shared, the printed number minus the scores, and 68 stands apart. With 67, the number of
# Random, all five would agree. The folded cell has the numbers.

# %% fold=true
# @title What the rows with Random leave for the shared part, and the Transformer beside them
rest = {}
for name in ("Fixed Random", "Random", "Factorized Random", "Random + Vanilla"):
    own = 12 * of_scores(nine[name], 512, 8, 256) / 1e6
    rest[name] = (printed[name] - 0.5 - own, printed[name] + 0.5 - own)
low, high = max(one[0] for one in rest.values()), min(one[1] for one in rest.values())
print(f"the four rows with Random agree on {low:.2f} to {high:.2f} million")
own = 12 * of_scores("dot_product", 512, 8, 256) / 1e6
for million in (68, 67):
    meets = "meets" if million - 0.5 - own < high and million + 0.5 - own > low else "misses"
    print(f"the Transformer, were it {million}: {million - 0.5 - own:.2f} to "
          f"{million + 0.5 - own:.2f}, {meets} them")

# %% [markdown]
# ## What is left
#
# ### Stretch 07.6: a table that does not mind padding on the left
#
# *20 minutes, medium.* Open-ended: many answers are right. Padding on the left moved every model with a table. It need
# not. Build a table $R$ for one head of Random, without a causal mask, whose map of a text stays as it
# is when fillers stand in front, and in which a word looks more at what stands near.
#
# Why the series asks it: you have seen where an S is bound to positions. Now find what a table must give up to be
# free of them, and that it need not give up everything.

# %% exercise="07.6" points=1
def table_for_padding(max_length):
    """A table R for which padding on the left changes nothing.

    max_length: a whole number of at least 1. Returns R, float32, query key, both max_length long;
    all numbers finite.
    A text of n words with m fillers in front (m + n at most max_length) has the map
    softmax(R[m:m+n, m:m+n]), row by row: the columns of the fillers are masked. For every n this
    map must be the same for every m, to 0.0001.
    And the map must be worth having: in a text of two or more words, in every row, the largest
    weight is at most 0.9, and larger than the smallest by at least 0.05. To both sides of the row's
    own word the weights fall: each is at least 5 % smaller than the one beside it that is nearer to
    that word.
    """
    ### BEGIN SOLUTION
    position = torch.arange(max_length)
    distance = (position[None, :] - position[:, None]).abs()
    return -0.5 * distance
    ### END SOLUTION

# %% check="07.6"
check("07.6", table_for_padding)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# With one filler in front, the four words use rows and columns 1 to 4 of the table, before it 0 to 3. Draw a table of
# 6 by 6 and mark both blocks. Which numbers have to be equal, if the two blocks are to be equal?
#
# </details>
# <details><summary>Hint 2: padding changes nothing, but the map is not worth having</summary>
#
# A plain mean stays, and so does a map where every word looks at itself alone; both are too simple. Give the neighbours
# something, and the words further off less. What if the numbers grow too large at max_length = 40?
#
# </details>
# <details><summary>Hint 3: must the blocks be equal?</summary>
#
# The maps must be. The softmax of a row does not see a number that is added to the whole row.
#
# </details>

# %% [markdown] solution="07.6"
# A filler in front moves each word down one row and one column. So $R$ may depend on how far the key stands from the
# query, and on nothing else: the same numbers along each diagonal. One thing more is free, since the softmax does not
# see it: a number that is added to a whole row. The second way has one for each row, and falls faster to the right than
# to the left. Models in use add such a number to their scores: T5 learns one for each range of offsets, ALiBi takes
# away more the further off a token is.

# %% solution="07.6"
def table_for_padding_with_two_slopes(max_length):
    position = torch.arange(max_length).float()
    offset = position - position[:, None]
    return torch.where(offset > 0, -0.7 * offset, 0.3 * offset) + position[:, None].sin()


check("07.6", table_for_padding_with_two_slopes)

# %% [markdown]
# ## Three sentences to keep
#
# 1. A model is blocks between two tables: each block adds what attention finds, then what an mlp makes of it, and
#    each part reads a normalised copy; none of this knows which S is inside.
# 2. S shows in three places: an S bound to positions needs texts that start at position 0, so padding belongs on
#    the right; a synthesizer caches values and no keys; and between two texts a synthesized row looks at positions,
#    not words.
# 3. What a model writes is decided after its logits as well: temperature, top-k, top-p, a beam and its length penalty
#    change the text, and no parameter.
#
# **Where it is going next.** You can build any model with any S. Which tasks can each of them learn at all, and which
# can it never learn? That is the question of [chapter 08](08_what_each_score_can_do.ipynb).
