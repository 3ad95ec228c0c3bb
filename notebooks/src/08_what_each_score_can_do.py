# %% [markdown]
# # 08 · What can each S do? Three tasks that tell them apart
#
# **You predict from one column of the paper's Table 1 which score solves which task, then you train a hundred
# small models and look. After that you ask what changes when layers are stacked.**
#
# - **Before you start:** chapters [02](02_dense.ipynb), [03](03_random.ipynb) and [06](06_mixtures.ipynb):
#   Dense, Random, mixtures. [04](04_factorized_dense.ipynb) and [05](05_factorized_random.ipynb) help with
#   two of the exercises.
# - **Time:** about 125 minutes, 64 of them for the four exercises; the stretch exercise takes 30 more.
# - **Level:** medium.
# - **Of use elsewhere:** the task *pair* is a form of *associative recall*, on which models without attention are
#   compared today (Arora et al. 2023, *Zoology*); *induction* has its name from the induction heads of Olsson et al.
#   2022. And: no score means anything before you know what counting scores.
# - **To predict before you look:** the outputs are stored. Hide them: *Edit*, *Clear Outputs of All Cells*
#   (Colab: *Clear all outputs*).
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*, [arXiv
# 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %% fold=true
# @title Imports
from functools import partial

import matplotlib.pyplot as plt
import torch
from einops import einsum
from torch import nn

from synth_lib import plots
from synth_lib.attention import Attention
from synth_lib.checks import check, compare_guess
from synth_lib.lab import probes
from synth_lib.lab.patience import each
from synth_lib.lab.runner import read_record
from synth_lib.lab.train import schedule
from synth_lib.scores import make_score
from synth_lib.shapes import Axes
from synth_lib.text.corpora import DATA

# %% [markdown]
# ## The question
#
# On real text every S learns something, and a table of losses does not tell what. So this chapter takes small
# tasks made by hand: you can see whether an S can do them, and why.
#
# All tasks are one question: **which token must I look at?** What changes is only where the answer to that
# question can be read. A token here has three parts: a *value*, which somebody may want to have, a *pointer*
# and a *key*. Six tokens are enough to see it. Their values are words:

# %%
words = "the dog saw a small bird".split()
pointer = [3, 5, 4, 0, 1, 2]
key = [2, 0, 5, 1, 3, 4]
print("position  value  pointer  key")
for i in range(6):
    print(f"{i:8}  {words[i]:5}  {pointer[i]:7}  {key[i]:3}")

# %% [markdown]
# Every token is to output the value of *one* token. Which one?
#
# - **position:** the one at position $l - 1 - i$, counted from the other end. My own position says it.
# - **token:** the one at the position that my pointer names. My own token says it.
# - **pair:** the one whose key equals my pointer. Only another token says it: I must compare.
#
# Take token 1, "dog", and find its three answers in the table with your finger. Then run the loop.

# %%
for i in range(6):
    position = words[6 - 1 - i]
    token = words[pointer[i]]
    pair = words[key.index(pointer[i])]
    print(f"{i}  {words[i]:5}  position: {position:5}  token: {token:5}  pair: {pair}")

# %% [markdown]
# For "dog": position 4, position 5, and the position of the key 5.
#
# ## The equations
#
# One layer, one head, as in all chapters:
#
# $$Y = \mathrm{softmax}(S(X))\, G(X)$$
#
# | paper | here | shape, in axis names | size in the experiment | what it is |
# |---|---|---|---|---|
# | $X$ | `x` | batch length d_model | 24 × 12 × 32 | tokens, each the sum of its embeddings |
# | $\mathrm{softmax}(S(X))$ | `weights` | batch head query key | 24 × 1 × 12 × 12 | the attention map |
# | $Y$ | `y` | batch length d_model | 24 × 12 × 32 | what each token gets |

# %% fold=true
# @title Draw it
plots.show(
    plots.flow("ten kinds", "nothing, its\nown token, or all"),
    "X goes to two boxes, S(X) and the values G(X). S(X) gives scores, these plus the mask go "
    "through softmax, and the weights and the values make weighted means, which are Y. The box of "
    "S is filled: it may read nothing, its own token, or all.",
)

# %% [markdown]
# This chapter is about one arrow, the one from $X$ into S. Table 1 of the paper has a column for it, *conditioned
# on*: what a row of scores reads.
#
# | S | equation | conditioned on |
# |---|---|---|
# | Random, Fixed Random | (4): $R$ | nothing |
# | Factorized Random | (7): $R_1 R_2^T$ | nothing |
# | Dense | (2): $W_2\,\mathrm{relu}(W_1 X_i + b_1) + b_2$ | $X_i$, the own token |
# | Factorized Dense | (6): a long row from two short ones | $X_i$, the own token |
# | dot product | $Q K^T / \sqrt{d}$ | $X_j$ for all $j$, every token |
# | a mixture | (8): $\alpha_1 S_1 + \dots + \alpha_N S_N$ | what its parts read, taken together |
#
# > **Positions are part of the token.** Equation (2) does not know where token $i$ stands. We add an embedding
# > of the position to every token, as transformers do. So a row that reads its own token reads its own position
# > too.
#
# ## Predict the table
#
# Which of the three tasks can one layer learn? Answer *from the column alone*. It does not say whether S is
# trained. *Frozen* means that all numbers inside S stay as they were drawn; the embeddings in front of S and the
# layers behind it are trained all the same. Fixed Random is frozen Random. What do you expect of a frozen Dense,
# and of a frozen dot product?

# %%
my_table = {  # the tasks that it learns: "position token pair", "position", ..., or "none"
    "Fixed Random": None, "Random": None, "Factorized Random": None,
    "Dense": None, "Factorized Dense": None, "dot product": None,
    "Random + Dense": None, "Random + dot product": None, "Dense + dot product": None,
    "Factorized Random + Factorized Dense": None,
    "frozen Dense": None, "frozen dot product": None,
}

# %% [markdown]
# ### Exercise 08.1: the table as a rule
#
# *12 minutes, medium.* Turn your table into a function that knows nothing but the column and whether S is trained.

# %% exercise="08.1" points=1
def solves(conditioned_on, trained, task):
    """Can one layer with this S learn to give nearly every right answer, if it is trained long
    enough? -> bool

    conditioned_on: a tuple with the entry of Table 1 for each part of S: "nothing", "X_i" or "X_j
    for all j".
    A plain S has one part, a mixture several. trained: False means that all parts of S stay as they
    were drawn; the embeddings in front of S are trained in any case. task: "position", "token" or
    "pair".
    """
    ### BEGIN SOLUTION
    order = ["nothing", "X_i", "X_j for all j"]
    reads = max(order.index(entry) for entry in conditioned_on)
    if not trained and reads == 0:
        return False
    return reads >= ["position", "token", "pair"].index(task)
    ### END SOLUTION

# %% check="08.1"
check("08.1", solves)

# %% [markdown] solution="08.1"
# What a task needs and what S reads are levels, 0 to 2, and a mixture reads what its most curious part reads. A frozen
# row that reads something still follows what is trained in front of it; one that reads nothing cannot change. The same
# with sets: which entries are enough?

# %% solution="08.1"
def solves_with_sets(conditioned_on, trained, task):
    enough = {"position": {"X_i", "X_j for all "
                                  "j"}, "token": {"X_i",
                                                  "X_j for all j"}, "pair": {"X_j for all j"}}
    if trained:
        enough["position"].add("nothing")
    return not enough[task].isdisjoint(conditioned_on)


check("08.1", solves_with_sets)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# For each task ask what a row must read to know where to look: nothing but its position, its own token, or all
# tokens? Remember that every row of $R$ belongs to one position.
#
# </details>
# <details><summary>Hint 2: what does a mixture read?</summary>
#
# Its scores are a sum. If one part writes the right row, and the others stay small, the sum is right.
#
# </details>
# <details><summary>Hint 3: frozen</summary>
#
# A frozen Dense is a fixed function from a token to a row. Somebody may choose the token's embedding so that the row
# comes out right. Who could do that for a frozen $R$?
#
# </details>
# <details><summary>Hint 4: the check says that a column is not right</summary>
#
# It prints the names for which your function says yes, plain ones and mixtures apart. Go through them one by
# one with the loop above: could *you* find the answer of "dog" if you saw only what this S sees?
#
# </details>

# %% [markdown]
# ## What would a guess score?
#
# A failing model is not at zero. Ten different values, chosen evenly: an answer out of the blue is right in 1 of
# 10 cases. But there is a better guess. Who cannot find the right position can still average over *all*
# positions, and an average tells which value occurs most often in this sentence. For the task *token*, the right
# position is each of the 12 with the same chance. For *pair*, it is each of the 11 *others*: in our sentences
# nobody points to his own key. We call this the **counting guess**: the best answer of one who only counts the
# values. It is a mark to compare with; that nobody without the right position can do better is not proven.

# %%
length, vocab = 12, 10
axes = Axes(batch=4000, length=12, vocab=10)
values, _, _ = probes.sentences(4000, length, vocab, torch.Generator().manual_seed(0))
values = axes(values, "batch length", "values")
one_hot = axes(nn.functional.one_hot(values, vocab), "batch length vocab", "one_hot")

counts = axes(one_hot.sum(dim=1), "batch vocab", "counts")
counts_of_others = axes(counts[:, None] - one_hot, "batch length vocab", "counts_of_others")
guess = {"blind": 1 / vocab}
guess["token"] = (counts.amax(dim=-1) / length).mean().item()
guess["pair"] = (counts_of_others.amax(dim=-1) / (length - 1)).mean().item()
for name, share in guess.items():
    print(f"{name:>5}: {share:.2f}")

# %% [markdown]
# `one_hot` turns a value into a row with a single 1. Keep these numbers: in the model of this chapter, expect about
# 0.26 from an S that cannot look at the right position, and not 0.1.
#
# ### Exercise 08.2: a guess when positions are not alike
#
# *12 minutes, easy.* Above, every position had the same chance to be the right one. Now some positions are likelier
# than others. What does one score who knows these chances, and where each value stands?

# %% exercise="08.2" points=1
def counting_guess(values, chance):
    """The share of right answers of one who gives each value the chances of all the positions where
    it stands.

    values: whole numbers from 0, batch length, with two positions or more. chance: for each
    position, how likely it is to be the right one, length; the same in every sentence, and the sum
    is 1. In every sentence the guesser says the value that is the best guess there. Returns a
    float, the mean over the sentences.
    """
    ### BEGIN SOLUTION
    one_hot = nn.functional.one_hot(values).float()
    chance_of_value = einsum(chance, one_hot, "length, batch length vocab -> batch vocab")
    return chance_of_value.amax(dim=1).mean().item()
    ### END SOLUTION

# %% check="08.2"
check("08.2", counting_guess)

# %% [markdown] solution="08.2"
# Positions with the same value are one answer, so their chances add up, and the guesser takes the largest sum of each
# sentence. Without `one_hot`: for each position, add up the chances of all positions that hold the *same* value as it
# does. Saying the likeliest position's value, or the most common value, is right less often.

# %% solution="08.2"
def counting_guess_by_pairs(values, chance):
    same = values[:, :, None] == values[:, None, :]
    return (same.float() @ chance).amax(dim=1).mean().item()


check("08.2", counting_guess_by_pairs)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# One sentence first: 4 4 1 4 2, with the chances 0.1, 0.1, 0.5, 0.1 and 0.2. How likely is it that the answer
# is 4? That it is 1? What do you say?
#
# </details>
# <details><summary>Hint 2: tools</summary>
#
# `sentence.bincount(weights=chance)` adds up the chances for each number of one sentence. For all sentences,
# `one_hot` tells which positions hold a value.
#
# </details>

# %% [markdown]
# ## The model
#
# Embeddings of value, pointer, key and position are added up; one attention layer; one linear layer, the
# *readout*, with a score for each of the ten values. There is no way around the attention: a token hears of a
# value only through the map.

# %%
class OneLayer(nn.Module):
    def __init__(self, score):
        super().__init__()
        self.value = nn.Embedding(10, 32)
        self.pointer = nn.Embedding(12, 32)
        self.key = nn.Embedding(12, 32)
        self.position = nn.Embedding(12, 32)
        self.attention = Attention(d_model=32, head=1, max_length=12, score=score)
        self.readout = nn.Linear(32, 10)

    def embed(self, value, pointer, key):
        return self.value(value) + self.pointer(pointer) + self.key(key) + self.position.weight

    def forward(self, value, pointer, key):
        y, _ = self.attention(self.embed(value, pointer, key))
        return self.readout(y)

# %% [markdown]
# The library draws sentences and knows the right positions. `partial` fills in some arguments of a function and
# leaves the others open: `draws["token"](24, generator)` draws 24 sentences with their answers.

# %%
draws = {
    task: partial(probes.look_up, task=task, length=12, vocab=10)
    for task in ("position", "token", "pair")
}
parts, targets = draws["token"](24, torch.Generator().manual_seed(0))
print("values  ", parts[0][0].tolist())
print("pointers", parts[1][0].tolist())
print("answers ", targets[0].tolist())

# %% fold=true
# @title Guard: the library's tasks are those of our loop, and the model has the shapes of the table
for task, answers in {
    "position": words[::-1],
    "token": [words[i] for i in pointer],
    "pair": [words[key.index(i)] for i in pointer],
}.items():
    positions = probes.right_position(task, torch.tensor([pointer]),
                                      torch.tensor([key]))[0].tolist()
    assert [words[position] for position in positions] == answers
axes_task = Axes(batch=24, length=12, d_model=32, vocab=10)
targets = axes_task(targets, "batch length", "targets")
model = OneLayer("dense")
_ = axes_task(model.embed(*parts), "batch length d_model", "x")
_ = axes_task(model(*parts), "batch length vocab", "answers")
_ = axes_task(model.attention(model.embed(*parts))[1], "batch 1 query key", "weights")

# %% [markdown]
# ### Train one
#
# Fresh sentences in every step, the loss is the cross-entropy of chapter 03, the optimizer Adam. The learning
# rate rises in the first steps, then falls. Dense on the task *token*:

# %%
def train_one(model, draw, seed, steps=200, learning_rate=0.02):
    generator = torch.Generator().manual_seed(seed)
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    for step in range(steps):
        parts, targets = draw(24, generator)
        loss = nn.functional.cross_entropy(model(*parts).flatten(0, 1), targets.flatten())
        adam.param_groups[0]["lr"] = learning_rate * schedule(step, steps // 20, steps)
        adam.zero_grad()
        loss.backward()
        adam.step()


_ = torch.manual_seed(0)
dense_alone = OneLayer("dense")
before = probes.accuracy(dense_alone, draws["token"])
train_one(dense_alone, draws["token"], seed=0)
after = probes.accuracy(dense_alone, draws["token"])
assert before < 0.2 and after > 0.95
print("before training: like a blind guess. After 200 steps: more than 0.95 of the "
      "answers are right.")

# %% [markdown]
# ### Train a hundred
#
# Twelve S (the ten kinds, and two of them frozen as well), three tasks, three *seeds*: the same model from three
# random starts, on other sentences, so that no result is one seed's luck. That makes 108 models.
#
# `probes.train_side_by_side` is the same loop for several models at once: it stacks their parameters along a new
# axis, and `vmap` of torch runs one computation for the whole stack. Two things are added. $R$, $R_1$ and $R_2$
# learn ten times faster, as in chapter 03. And the three frozen ones get three times the steps, at twice the
# rate. On two calm cores it takes half a minute to a minute. You may interrupt: run the cell again, and it goes on with
# the next S.

# %%
names = {
    "Fixed Random": "fixed_random", "Random": "random", "Factorized Random": "factorized_random",
    "Dense": "dense", "Factorized Dense": "factorized_dense", "dot product": "dot_product",
    "Random + Dense": "random + dense", "Random + dot product": "random + dot_product",
    "Dense + dot product": "dense + dot_product",
    "Factorized Random + Factorized Dense": "factorized_random + factorized_dense",
    "frozen Dense": "dense", "frozen dot product": "dot_product",
}
seeds = [0, 1, 2]
runs = [(task, seed) for task in draws for seed in seeds]


def train_on_all(name):
    """One S on three tasks with three seeds: -> its nine models, and the share of right answers of
    each."""
    frozen, models = name.startswith(("Fixed", "frozen")), {}
    for task, seed in runs:
        torch.manual_seed(seed)
        models[task, seed] = OneLayer(names[name])
        models[task, seed].attention.score.requires_grad_(not frozen)
    probes.train_side_by_side(
        list(models.values()), [draws[task] for task, _ in runs], [seed for _, seed in runs],
        steps=600 if frozen else 200, batch=24, learning_rate=0.04 if frozen else 0.02,
    )
    return models, {(task, seed): probes.accuracy(models[task, seed], draws[task])
                    for task, seed in runs}


of_name = each(names, train_on_all, unit="S")
trained = {(name, *run): of_name[name][0][run] for name in names for run in runs}
measured = {(name, task): [of_name[name][1][task, seed] for seed in seeds] for name in names
            for task in draws}
assert len(trained) == 108

# %% fold=true
# @title Guards: each model got what it would have got alone, and a frozen S did not move
def fresh(seed):
    _ = torch.manual_seed(seed)
    return OneLayer("dense")


alone, together = fresh(0), [fresh(0), fresh(1)]
train_one(alone, draws["token"], seed=0, steps=40)
probes.train_side_by_side(
    together, [draws["token"]] * 2, seeds=[0, 1], steps=40, batch=24, learning_rate=0.02
)
for (name, ours), (_, theirs) in zip(alone.named_parameters(), together[0].named_parameters(),
                                     strict=True):
    assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3), name

start, end = fresh(0), trained["frozen Dense", "pair", 0]
for ours, theirs in zip(start.attention.score.parameters(), end.attention.score.parameters(),
                        strict=True):
    assert torch.equal(ours, theirs)
assert not torch.equal(start.pointer.weight, end.pointer.weight)

# %% [markdown]
# The share of right answers in 1000 new sentences: the mean of the three seeds, and in brackets the lowest
# and the highest.

# %% fold=true
# @title Print the shares
# Output varies: the last digit of a share differs between machines.
def summary(shares):
    """'0.26 (0.25-0.27)': the mean, the lowest and the highest of the seeds."""
    return f"{sum(shares) / len(shares):.2f} ({min(shares):.2f}-{max(shares):.2f})"


print(f"{'':>36} ", "   ".join(f"{task:16}" for task in draws))
for name in names:
    print(f"{name:>36} ", "   ".join(summary(measured[name, task]) for task in draws))

# %% [markdown]
# **A staircase.** Nothing lies between a solved task and a guess, and no seed disagrees. So two words are enough
# for each number, and the next cell would stop if it were different on your machine. Beside your table:

# %%
def in_a_word(shares):
    if min(shares) > 0.95:
        return "solved"
    assert max(shares) < 0.32, shares
    return "a guess"


table = {cell: in_a_word(shares) for cell, shares in measured.items()}
came_out = {}
for name in names:
    came_out[name] = " ".join(task for task in draws if table[name, task] == "solved") or "none"
compare_guess(my_table, came_out)

# %% [markdown]
# As a rule of one line: *a task is solved if some part of S reads as much as the task needs*, unless nothing can
# move the rows of S. A row that reads more can leave unread what it does not need. A mixture does what its best
# part can do, and no more. The factorized ones stand beside the full ones; what they lose shows further down.
#
# **And the frozen ones?** Frozen Dense solves what Dense solves, and the frozen dot product even compares. Their
# numbers stay random, but the embeddings learn to be what these random numbers need. Freezing ends Random alone,
# because *nothing stands before it*. What S reads counts more than whether it is trained.

# %% fold=true
# @title Guard: every cell of the table agrees with the rule
# the last word of a name: nothing, X_i, X_j for all j
reads = {"random": 0, "dense": 1, "product": 2}
for name in names:
    most = max(reads[part.lower().split()[-1]] for part in name.split(" + "))
    for needs, task in enumerate(draws):
        expected = "solved" if most >= needs and name != "Fixed Random" else "a guess"
        assert table[name, task] == expected, (name, task)

# %% [markdown]
# ## The learned maps
#
# One new sentence, three tasks. A small circle marks the right position of each row.

# %% fold=true
# @title Draw three maps of a task
shown = ("Random", "Dense", "dot product")
dots = [str(position) if position % 3 == 0 else "" for position in range(12)]


ALT = {
    "position": "All three show the same line of dark cells, from the upper right to the lower "
                "left, in the circles.",
    "token": "Random: pale all over. Dense and dot product: one dark cell in each row, "
             "in the circle, without order.",
    "pair": "Random and Dense: pale all over; Random is palest on the diagonal from the upper left "
            "to the lower right. "
    "Dot product: one dark cell in each row, in the circle, where the key equals the pointer.",
}


def show_maps(task, works):
    """Draw the maps of three S for one sentence, with a circle at each right position. works: which
    of them find it."""
    parts, _ = draws[task](1, torch.Generator().manual_seed(4))
    positions = probes.right_position(task, parts[1], parts[2])[0]
    models = [trained[name, task, 0] for name in shown]
    with torch.no_grad():
        weights = torch.stack([model.attention(model.embed(*parts))[1][0, 0] for model in models])
    fig = plots.attention_map(weights, dots, titles=shown)
    fig.set_size_inches(6.8, 2.6)
    for panel in fig.axes[:3]:
        panel.scatter(positions, range(12), s=25, facecolors="none", edgecolors=plots.COLOURS[1])
    on_right_position = weights[:, torch.arange(12), positions].mean(dim=1).tolist()
    for name, weight in zip(shown, on_right_position, strict=True):
        assert weight > 0.8 if name in works else weight < 0.2, name
    plots.show(fig, f"three maps for the task {task}, 12 rows and columns. {ALT[task]}")

# %%
show_maps("position", works=("Random", "Dense", "dot product"))

# %% [markdown]
# The *anti-diagonal*: row 0 looks at position 11, row 11 at position 0. Next, the pointers.

# %%
show_maps("token", works=("Dense", "dot product"))

# %% [markdown]
# The dark cells of Dense and of the dot product stand where the pointers of this sentence point. Random has
# to use the same map for every sentence, so it gave up: its even, pale map says "everywhere alike". Last, the matches.

# %%
show_maps("pair", works=("dot product",))

# %% [markdown]
# Random and Dense are pale here. Look closely at Random: its diagonal is lighter than the rest. You will see
# why in a moment.
#
# ## Each failure has a reason
#
# "It did not learn it" is no explanation: it could be the learning rate, as in chapter 03. An argument begins
# like this: *show two sentences that need different rows and get the same one*. (For one layer with a linear
# readout, as ours.) Then compute what is left to do for such an S.
#
# ### Random and the task token
#
# Two sentences, one pointer different: that of token 2. Its right position moves. Does its row?

# %%
parts, _ = draws["token"](1, torch.Generator().manual_seed(4))
value_0, pointer_0, key_0 = parts
pointer_1 = pointer_0.clone()
pointer_1[0, 2] = (pointer_0[0, 2] + 1) % 12


def what_the_row_does(task, one, other, i=2):
    """Print for each S whether its row for token i is the same in two sentences."""
    for name in shown:
        model = trained[name, task, 0]
        with torch.no_grad():
            rows = [model.attention.score(model.embed(*parts))[0, 0, i] for parts in (one, other)]
        print(f"{name:>11}: the row of token {i} {'stays' if torch.equal(*rows) else 'moves'}")


what_the_row_does("token", (value_0, pointer_0, key_0), (value_0, pointer_1, key_0))

# %% [markdown]
# The row of Random stays, for any $R$. What is left? The right position can be any of the 12, so no position deserves
# more weight than another. Look everywhere alike, then answer with the most common value: the counting guess.
#
# > **What the readout can do.** It is linear: it adds up what the average brings, value by value. A hidden layer
# > could do more with the same average: see the section on depth.
#
# ### Dense and the task pair
#
# Dense reads its own pointer, say 7. Where is the key 7? Exchange the keys of two *other* tokens. Nothing has
# changed in token 2, so its row stays. The right position has moved.

# %%
match = int(probes.right_position("pair", pointer_0, key_0)[0, 2])
other = next(position for position in range(12) if position not in (2, match))
key_1 = key_0.clone()
key_1[0, match], key_1[0, other] = key_0[0, other], key_0[0, match]
moved = int(probes.right_position("pair", pointer_0, key_1)[0, 2])
print(f"the right position of token 2 was {match} and is {moved}")
what_the_row_does("pair", (value_0, pointer_0, key_0), (value_0, pointer_0, key_1))

# %% [markdown]
# The row stays, but what it averages does not: the exchanged keys stand in the values $G(X)$ too. Why does that
# not help? Take the two positions of this cell. Let them hold the keys one way or the other, $k$ or $k'$, and the
# values A and B one way or the other, $AB$ or $BA$. That makes four sentences. The right answer is A in two of
# them and B in two. The average and the readout only add, so "logit of A minus logit of B" is a number $f$ that
# comes from the keys plus a number $g$ that comes from the values:
#
# | sentence | answer | so this must be |
# |---|---|---|
# | keys $k$, values $AB$ | A | $f(k) + g(AB) > 0$ |
# | keys $k'$, values $BA$ | A | $f(k') + g(BA) > 0$ |
# | keys $k'$, values $AB$ | B | $f(k') + g(AB) < 0$ |
# | keys $k$, values $BA$ | B | $f(k) + g(BA) < 0$ |
#
# Add up the first two lines: $f(k) + f(k') + g(AB) + g(BA)$, above 0. Add up the last two: the same four numbers,
# below 0. No $f$ and $g$ do both.
#
# One thing *is* known without comparing: my own key is never the right one. So the counting guess leaves out
# the own value, and it wins a little: 0.27 in place of 0.26. A row that reads nothing can learn that as well, as
# a light diagonal: the one in the figure. Did Random find it for every seed? And Dense?

# %% fold=true
# @title Measure the weight on the diagonal
on_diagonal = {
    (task, which.__name__): which(
        trained["Random", task, seed].attention.score.R.softmax(-1)[0].diagonal().mean().item()
        for seed in seeds
    )
    for task in ("token", "pair")
    for which in (min, max)
}
assert on_diagonal["pair", "max"] < 0.05 < 0.07 < on_diagonal["token", "min"]
assert on_diagonal["token", "max"] < 0.1
print(f"uniform would be {1 / 12:.2f}")
print("Random: on token the diagonal is between 0.07 and 0.1, on pair it is below 0.05")

of_dense = []
parts_of_pair, _ = draws["pair"](500, torch.Generator().manual_seed(9))
for seed in seeds:
    model = trained["Dense", "pair", seed]
    with torch.no_grad():
        weights = model.attention(model.embed(*parts_of_pair))[1]
    of_dense.append(weights[:, 0].diagonal(dim1=1, dim2=2).mean().item())
assert 0.06 < min(of_dense) and max(of_dense) < 0.08
print("Dense: on pair it is between 0.06 and 0.08, in the mean over 500 sentences")

# %% [markdown]
# Random found it. Dense hardly did, in 200 steps.
#
# ### Measured against the counting guess
#
# All failures, but those of Fixed Random, beside the computed guess:

# %% fold=true
# @title Compare with the guess
away = []
for (name, task), shares in measured.items():
    if table[name, task] == "a guess" and name != "Fixed Random":
        away += [share - guess[task] for share in shares]
assert -0.03 < min(away) and max(away) < 0.02
print(f"{len(away)} failed models: at most 0.03 below the counting guess, at most 0.02 above it")

# %% [markdown]
# ### Fixed Random
#
# It fails even at *position*, where one map for all sentences is all that it takes. The map is not the right one.
# What a linear readout can make of it follows from the map itself. Row $i$ of a frozen $R$ gives each position a
# weight. Let every position vote for its value with its weight, and answer with the value that gets most:

# %%
parts, targets = draws["position"](1000, torch.Generator().manual_seed(5))
votes = nn.functional.one_hot(parts[0], 10).float()
differences = []
for seed in seeds:
    model = trained["Fixed Random", "position", seed]
    fixed_map = model.attention.score.R.softmax(dim=-1)[0]
    sums = einsum(fixed_map, votes, "query key, batch key vocab -> batch query vocab")
    predicted = (sums.argmax(dim=-1) == targets).float().mean().item()
    differences.append(abs(predicted - probes.accuracy(model, draws["position"])))
assert max(differences) < 0.03
print("predicted from the frozen map, and measured: they differ by less than 0.03 for each seed")

# %% [markdown]
# The readout has learned to read the vote. By chance, one frozen map gives the right positions a little more
# weight than another, and so its share is a little higher.
#
# ## What the factorized ones lose
#
# In the table, Factorized Dense equals Dense, because each row has *one* right position: a peak in $A$ times a
# peak in $B$ is enough (chapter 04). For Factorized Random, directions on a circle are enough, and those fit into
# rank 2 (chapter 05).
#
# Now let a token need *several* positions, all alike: the answer is the mean of their values. Leave the values
# out, and train S alone to make a *wanted map*. `probes.distance_to` does it from four random starts, and returns
# the distance of the best one: the weight at wrong positions, in the mean over the rows. 0 is a perfect map.
#
# Row $n$ of the wanted map belongs to the token that carries the number $n$. First example: the two positions
# $n$ and $n + 6$, counted in a circle.

# %%
n, j = torch.arange(12)[:, None], torch.arange(12)[None, :]
two_positions = (j - n) % 6 == 0
two_positions = Axes(length=12)(two_positions, "query key", "two_positions")
print("positions of number 0:", two_positions[0].nonzero().flatten().tolist())


def compare(wanted, *scores):
    distances = {}
    for score, options in scores:
        distances[score] = probes.distance_to(wanted, score, **options)
    return ["perfect" if d < 0.03 else "not reached" if d > 0.1 else "nearly"
            for d in distances.values()]


both_dense = (("dense", {}), ("factorized_dense", {"a": 3, "b": 4}))
print("Dense, Factorized Dense:", compare(two_positions, *both_dense))

# %% [markdown]
# With $a = 3$, position $j$ gets $A_{j \bmod 3} B_{\lfloor j / 3 \rfloor}$. Write the 12 positions as a table with
# 4 rows and 3 columns: then a row of scores is a product table. Positions $n$ and $n + 6$ stand in one column,
# so they are easy: a peak in $A$, two peaks in $B$.
#
# Which positions are hard? Three that share no column and no row, such as 0, 4 and 8. All three products must be
# the same, and higher than all others. Two of the three numbers of $A$ have the same sign (or one is 0). Look at these
# two alone: two products are wanted, and beside them stand two *cross* products. Four tries:

# %%
for A, B in (((2, 3), (6, 4)), ((2, 3), (-6, -4)), ((2, 3), (0, 0)), ((2, -3), (6, -4))):
    wanted, cross = [A[0] * B[0], A[1] * B[1]], [A[1] * B[0], A[0] * B[1]]
    wins = "wins" if min(wanted) > max(cross) else "does not win"
    print(f"A = {A}, B = {B}: wanted {wanted}, cross {cross}: what is wanted {wins}")

# %% [markdown]
# - **Wanted products above 0:** the cross products multiply to the same, 18 times 8 is 12 times 12. So they cannot
#   both be below 12.
# - **Below 0:** all four are, and by the same rule one cross product is closer to 0.
# - **0:** one of its two factors is 0, so a cross product is 0 as well.
# - **Two numbers of $A$ with different signs:** plus times plus and minus times minus. That is the way out, but of
#   three numbers two share a sign. So two positions escape, and three do not.

# %%
three_positions = (j - n) % 4 == 0
print("positions of number 0:", three_positions[0].nonzero().flatten().tolist())
print("Dense, Factorized Dense:", compare(three_positions, *both_dense))
turned = (("dense", {}), ("factorized_dense", {"a": 4, "b": 3}))
print("the same with 4 x 3:    ", compare(three_positions, *turned))

# %% [markdown]
# With $a = 4$ and $b = 3$ the same three positions stand in one column, and nothing is lost. So the loss is not
# "several positions", it is several positions *that do not fit the table*.
#
# ### Exercise 08.3: a task for Dense that Factorized Dense cannot learn
#
# *30 minutes, hard.* Design a wanted map that separates the two, for any $a$ and $b$ of at least 3: also where
# the example above, every fourth position, fits the table. The check takes tables with 3, 4 and 5 columns, and a
# square one. What no argument decides, it trains, and looks at the gap: that takes seconds, on a busy machine longer.

# %% exercise="08.3" points=3
def positions_of_number(tile, repeat, length):
    """Which positions does a token want that carries the number n, for n from 0 to length - 1?

    tile, repeat: a and b of Factorized Dense, at least 3. length: tile * repeat.
    Returns bool, length length: row n, column j is True if number n wants position j. Every row has
    a True. All wanted positions of a row are to get the same weight. Dense must learn the map,
    Factorized Dense must not: at least a tenth of its weight, in the mean over the rows, stays at
    wrong positions.
    """
    ### BEGIN SOLUTION
    positions = torch.zeros(length, length, dtype=torch.bool)
    for n in range(length):
        for k in range(3):  # three positions in different columns and different rows of the table
            column, line = (n + k) % tile, (n // tile + k) % repeat
            positions[n, line * tile + column] = True
    return positions
    ### END SOLUTION

# %% check="08.3"
check("08.3", positions_of_number)

# %% [markdown] solution="08.3"
# Three positions in different rows and columns of the table cannot be had: two of the three numbers of $A$ share
# a sign, and then a cross product beats a wanted one. It does not matter which three, nor that the numbers $n$
# differ; here every number wants the same diagonal. Most maps without a pattern are out of reach as well.

# %% solution="08.3"
def one_diagonal_for_all(tile, repeat, length):
    j = torch.arange(length)
    diagonal = (j % tile == j // tile) & (j % tile < 3)
    return diagonal.repeat(length, 1)


check("08.3", one_diagonal_for_all)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Draw the positions as a table: position $j$ stands in column $j \bmod a$ and row $\lfloor j / a \rfloor$. Put
# three crosses so that no two share a row or a column.
#
# </details>
# <details><summary>Hint 2: it says that Factorized Dense learns it too</summary>
#
# Often the positions form a block: some columns times some rows. One position is a block. So is a whole row, and so
# are all positions. A cross fits as well: one column and one row together. And where $a$ is 4, every fourth position
# is a column: let the distances depend on `tile`.
#
# </details>
# <details><summary>Hint 3: it says that there are two positions in each row</summary>
#
# Two positions can be made with different signs, even where training does not find it. Take three.
#
# </details>

# %% [markdown]
# Now the random ones. Here row $i$ belongs to *position* $i$, and a sentence has no influence. How does the rank
# limit a map? One position in each row is possible with rank 2 already: give every position a direction on a
# circle. With rank 1 there are only two directions, plus and minus, so at most two different positions can ever
# win.

# %%
reversal = torch.eye(12, dtype=torch.bool).flip(0)
ranks = [("factorized_random", {"rank": rank}) for rank in (1, 2, 4)]
print(f"Random: {compare(reversal, ('random', {}))[0]}")
for score in ranks:
    print(f"Factorized Random, rank {score[1]['rank']}: {compare(reversal, score)[0]}")

# %% [markdown]
# A softmax needs the *order* of the scores, not the scores themselves. That is why rank 2 can make 12 sharp
# rows, although the map it makes has rank 12.
#
# ### Exercise 08.4: a map for Random that a small rank cannot learn
#
# *10 minutes, medium.* Design a wanted map that Random learns and Factorized Random of the given rank does not.

# %% exercise="08.4" points=3
def wanted_positions(length, rank):
    """Which positions does position i want, for i from 0 to length - 1?

    length: 12 to 16. rank: 2 or 3.
    Returns bool, length length: row i, column j is True if position i wants position j. Every row
    has a True. All wanted positions of a row are to get the same weight. Random must learn the map,
    Factorized Random of this rank must not: at least a tenth of its weight, in the mean over the
    rows, stays at wrong positions.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(length, length, generator=generator).argsort(dim=1)
    return order < length // 2  # a random half of the positions in each row
    ### END SOLUTION

# %% check="08.4"
check("08.4", wanted_positions)

# %% [markdown] solution="08.4"
# With rank 2 or 3 each row is made from two or three numbers: too few to choose any half of all positions. Random
# halves do it, and so does a pattern whose rows tell little of each other, such as whether $i + j$ is a square
# modulo 11:

# %% solution="08.4"
def squares_modulo_11(length, rank):
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    return torch.isin((i + j) % 11, torch.tensor([1, 3, 4, 5, 9]))


check("08.4", squares_modulo_11)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# A pattern that you can say in few words often fits into a small rank. How would you write a map of which no
# row tells anything about another one?
#
# </details>
# <details><summary>Hint 2: it says that the small rank learns it, or comes near</summary>
#
# How many positions does each row want? With one there are easy maps. In a row with half of the positions there are
# far more possibilities.
#
# </details>

# %% [markdown]
# ## Depth: can Dense learn to compare after all?
#
# One attention layer and a linear readout: that cannot compare without the dot product. But models have more.
# After each attention layer stands an *mlp*, a small network that works on one token at a time, and there are
# several layers. The task is *pair*, with 6 positions and 5 values. Write down what you expect; two ways by hand
# come first, then the measurement.

# %%
my_depth = {  # "a guess", "between", or "above 0.9"
    "Dense, one block": None, "Dense, four blocks": None,
    "Fixed Random, one block": None, "Fixed Random, four blocks": None,
}

# %% [markdown]
# ### By hand: first bind, then average
#
# Here is a way with a *uniform* map, in two layers. First each token writes down its fact: "key 3 has the
# value 4", as a row with a single 1, one entry for each pair of key and value. An mlp can do that. Then
# everybody averages everything, so each token holds a table of all facts. Then it reads the table at its own
# pointer, which is work for an mlp again. On 4000 sentences:

# %%
few_values, few_pointers, few_keys = probes.sentences(4000, 6, 5, torch.Generator().manual_seed(0))
axes_few = Axes(batch=4000, length=6, vocab=5)
few_values = axes_few(few_values, "batch length", "few_values")
facts = nn.functional.one_hot(few_keys * 5 + few_values, 6 * 5)  # 30 kinds of fact
everything = facts.float().mean(dim=1).reshape(4000, 6, 5)
# key: the six keys of a sentence
everything = axes_few(everything, "batch key vocab", "everything")
row_of_my_pointer = everything.gather(1, few_pointers[:, :, None].expand(4000, 6, 5))
answers = axes_few(row_of_my_pointer.argmax(dim=-1), "batch length", "answers")
right = few_values.gather(1, probes.right_position("pair", few_pointers, few_keys))
print("right answers:", (answers == right).float().mean().item())

# %% [markdown]
# So the *model* compares, and the *map* does not. The price is room for $l \cdot v$ kinds of fact in one
# token, with $v$ for the number of values: 30 here, 120 for the sentences above.
#
# ### By hand: average unevenly
#
# Is one block enough, with an mlp only *after* the average? An even average of sums tells which keys and
# which values there are. Which belong together is lost. But let every position have another weight: 1, 2, 4, 8,
# 16, 32 (and divide by 63). Then the key and the value of one token arrive in the same amount, and amounts
# can be matched:

# %%
amount = 2 ** torch.arange(6)
few_one_hot = axes_few(nn.functional.one_hot(few_values, 5), "batch length vocab", "few_one_hot")
of_values = einsum(amount, few_one_hot, "length, batch length vocab -> batch vocab")
of_keys = einsum(amount, nn.functional.one_hot(few_keys, 6),
                 "length, batch length key -> batch key")
of_my_key = of_keys.gather(1, few_pointers)  # in which amount the key arrived that I look for
contains = of_values[:, None, :] // of_my_key[:, :, None] % 2  # a binary digit
answers = axes_few(contains.argmax(dim=-1), "batch length", "answers")
print("right answers:", (answers == right).float().mean().item())

# %% [markdown]
# Again the map reads nothing: $R$ can hold these weights. The price is precision. With 12 positions the largest
# amount is 2048 times the smallest, and the mlp would have to read binary digits. The dot product needs
# neither room nor precision.
#
# ### Measured
#
# Does training find such a way? Now with whole blocks, as in [chapter 07](07_whole_models.ipynb): attention, mlp,
# and *residual connections*, which means that each part adds to what is there. These trainings are recorded in
# `data/results`; `python -m synth_lib.lab probes depth` made them: 64 features, 4,000 steps. (The probes further down
# have 32 features and 1,500 steps.) All have one learning rate, 0.003, that nobody tuned. So "did not learn" speaks of
# these trainings.

# %% fold=true
# @title Read the records, and print them as a table
shown_names = {
    "fixed_random": "Fixed Random", "random": "Random", "dense": "Dense",
    "dot_product": "dot product",
    "random + dot_product": "Random + dot product",
}


def recorded(study):
    """The records of a study: a list of dictionaries, one for each kind of model."""
    _, runs = read_record(DATA / "results" / f"probes_{study}.jsonl")
    return runs


def print_table(records, by):
    """A line for each S, a column for each number of the entry `by`: mean, lowest and highest of
    the seeds."""
    columns = list(dict.fromkeys(record[by] for record in records))
    print(f"{'':>20} ", "  ".join(f"{by + 's: ' + str(column):16}" for column in columns))
    for score in dict.fromkeys(record["score"] for record in records):
        cells = [summary(record["accuracy"]) for record in records if record["score"] == score]
        print(f"{shown_names[score]:>20} ", "  ".join(cells))


def shares(records, **wanted):
    """The shares of all seeds of the records that fit."""
    fitting = [record for record in records
               if all(record[name] == value for name, value in wanted.items())]
    assert fitting, wanted
    return [share for record in fitting for share in record["accuracy"]]

# %%
depth = recorded("depth")
small = [record for record in depth if record["length"] == 6]
counts_of_other_five = few_one_hot.sum(dim=1, keepdim=True) - few_one_hot
small_guess = (counts_of_other_five.amax(dim=-1) / 5).mean().item()
print(f"counting guess {small_guess:.2f}")
print_table(small, "layer")

# %% fold=true
# @title Draw the curves of Dense
fig, panel = plt.subplots(figsize=(4.5, 2.7), layout="constrained")
for number, layer in enumerate((1, 2, 4)):
    (record,) = [record for record in small
                 if (record["score"], record["layer"]) == ("dense", layer)]
    steps = [point["step"] for point in record["curve"]]
    of_seeds = torch.tensor([point["accuracy"] for point in record["curve"]])
    colour, line = plots.COLOURS[number], plots.LINES[number]
    panel.fill_between(steps, of_seeds.amin(1), of_seeds.amax(1), color=colour, alpha=0.25,
                       linewidth=0)
    panel.plot(steps, of_seeds.mean(1), color=colour, linestyle=line, label=f"{layer} x Dense")
panel.axhline(small_guess, color="grey", linewidth=1)
panel.set_xlabel("training step")
panel.set_ylabel("share of right answers")
panel.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
plots.show(
    fig,
    "share of right answers of Dense on pair, 6 positions, against the training step; a band from "
    "the lowest to the highest of three seeds, and a grey line at the counting guess. At step 500 "
    "all three are near the grey line. They rise slowly: four layers to above 0.9, two layers to "
    "between 0.8 and 0.9, one layer to below 0.8.",
)


# %%
def in_words(score, layer):
    of_seeds = shares(small, score=score, layer=layer)
    if max(of_seeds) < small_guess + 0.05:
        return "a guess"
    return "above 0.9" if min(of_seeds) > 0.9 else "between"


compare_guess(my_depth, {
    "Dense, one block": in_words("dense", 1), "Dense, four blocks": in_words("dense", 4),
    "Fixed Random, one block": in_words("fixed_random", 1),
    "Fixed Random, four blocks": in_words("fixed_random", 4),
})

# %% [markdown]
# **So: yes.** In blocks Dense learns to compare six tokens, and so does Random, whose maps never read
# anything. More layers help all of them. Even Fixed Random, whose maps never change, learns it in part, and
# differs most between seeds.
#
# That *one* block stays at the guess is the natural prediction, and it is wrong for Random and Dense. Fixed
# Random with one block *is* at the guess. That fits the second way: it needs amounts that double from position to
# position, and a frozen map keeps the amounts with which it was drawn. From two blocks on the first way is open
# too, and it needs no trained map: the mlp of one block can bind, and the map of a later one, whatever it is, can
# average. So Fixed Random can gain from depth. None of this proves that the models do it so.
#
# And the dot product? One block, all seeds at 1. Now twice as many positions and values, with the same settings:

# %%
twelve = [record for record in depth if record["length"] == 12]
print(f"counting guess {guess['pair']:.2f}")
print_table(twelve, "layer")

# %% fold=true
# @title Guard: the sentences around this cell are true of the records
def mean(shares):
    return sum(shares) / len(shares)


assert max(shares(small, score="fixed_random", layer=1)) < small_guess + 0.05
for score in ("random", "dense"):
    assert small_guess + 0.2 < min(shares(small, score=score, layer=1))
    assert max(shares(small, score=score, layer=2)) < 0.95 and min(shares(small, score=score,
                                                                          layer=4)) > 0.9
for score in ("fixed_random", "random", "dense"):
    one, two, four = (mean(shares(small, score=score, layer=layer)) for layer in (1, 2, 4))
    assert one < two < four
spread = {}
for record in small:
    spread.setdefault(record["score"], []).append(max(record["accuracy"]) - min(record["accuracy"]))
assert max(spread, key=lambda score: max(spread[score])) == "fixed_random"
assert max(shares(small, score="dense", layer=1)) < 0.8 < min(shares(small, score="dense", layer=2))
assert max(shares(small, score="dense", layer=2)) < 0.9
assert min(shares(small, score="dot_product")) > 0.99
assert max(shares(twelve, score="dense")) < guess["pair"] + 0.05
assert min(shares(twelve, score="dot_product")) > 0.99

# %% [markdown]
# Back at the guess. This is no proof: a longer training or a wider model may find it. But it is what the price
# predicts, and the dot product does not pay it.
#
# > **What to make of the paper.** "Interacts: no" in Table 1 is said of one layer's S. A deep model of
# > synthesizers can still relate its tokens, if it has the room. On translation the paper's Random and Dense
# > stay within half a BLEU of its own Transformer. This does not contradict the staircase, and depth may be
# > one reason.

# %% [markdown]
# ## Other probes
#
# Five more tasks that people use to test attention: eight tokens of one part, ten different ones; whole blocks,
# one or two layers; the same four S. Which of the five need a comparison? Write down for which of them Random, which
# reads nothing, reaches 0.95 with two blocks.
#
# - **copying:** every token, itself.
# - **reversing:** the token at the mirrored position.
# - **sorting:** at position $i$ the $i$-th smallest token of the sentence.
# - **counting:** how often does my own token occur?
# - **induction:** the last token has occurred once before; all others differ from one another. What came right
#   after it then? (Asked at the last position alone.)
#
# First the floor, in a folded cell. A blind answer knows the position and nothing of the sentence: it says the most
# common right answer of that position. (For sorting that is not bad: the first token is often 0.) For induction there
# is a better guess: that of one who knows *which* tokens may have followed, and no more.

# %%
# True or False
my_probes = {"copying": None, "reversing": None, "sorting": None, "counting": None,
             "induction": None}

# %% fold=true
# @title Compute the guesses
for task in ("copying", "reversing", "sorting", "counting", "induction"):
    _, targets = probes.TASKS[task](4000, torch.Generator().manual_seed(0), length=8, vocab=10)
    asked = [i for i in range(8) if targets[0, i] >= 0]
    blind = [targets[:, i].bincount().amax().item() / 4000 for i in asked]
    print(f"{task:>9}: {sum(blind) / len(blind):.2f}")

(tokens,), _ = probes.induction(4000, torch.Generator().manual_seed(0), length=8, vocab=10)
# what may have followed, other than my own token
candidates = (tokens[:, 1:7] != tokens[:, 7:]).sum(dim=1)
induction_guess = (1 / candidates).mean().item()
print(f"induction, for one who knows the tokens of the positions 1 to 6: {induction_guess:.2f}")

# %% fold=true
# @title Copying and reversing
others = recorded("others")
for task in ("copying", "reversing"):
    print(task)
    print_table([record for record in others if record["task"] == task], "layer")

# %%
for task in ("sorting", "counting", "induction"):
    print(task)
    print_table([record for record in others if record["task"] == task], "layer")
compare_guess(my_probes, {
    task: min(shares(others, task=task, score="random", layer=2)) > 0.95 for task in my_probes
})

# %% [markdown]
# What the records say, task by task:
#
# - **copying:** all four. The residual connection carries the token past the attention. No map is needed.
# - **reversing:** as in the staircase, *position*. Fixed Random does not solve it, but it is well above the
#   blind answer, more so with two layers: a frozen map gives each position its own weight, and an mlp can read
#   off a part of what was mixed.
# - **sorting:** nobody has to find the $i$-th smallest token. An average over everything says how often each
#   token occurs, and with these counts and my position $i$ the answer is fixed. The rest is work for the mlp. So
#   Random is as good as the dot product, and with two layers Fixed Random is too.
# - **counting:** it sounds like comparing, but the counts of *all* tokens are in the average again, and the
#   own token picks one of them. With one layer the seeds differ more than the scores; with two, Random and the
#   dot product are a little ahead of Fixed Random, which was still gaining.
# - **induction:** with one layer nobody is more than 0.09 above the guess of one who knows which tokens there are.
#   With two layers the dot product does it: the first can fetch the token before me, the second can find where
#   *that* equals the last token. Did you expect Dense to fail? It gets there with two layers as well, and Random
#   part of the way in these 1,500 steps. The first way by hand fits: bind each token to the one before it, then
#   average. Fixed Random did not get there.
#
# Two lessons. What *sounds* like a comparison need not be one: ask what an average already tells. And a block
# is more than its map.

# %% fold=true
# @title Guard: each sentence above is true of the records
names_of_four = ("fixed_random", "random", "dense", "dot_product")
for score in names_of_four:
    assert min(shares(others, task="copying", score=score)) > 0.99
    assert min(shares(others, task="counting", score=score, layer=2)) > 0.85
    if score in ("random", "dot_product"):
        fixed = shares(others, task="counting", score="fixed_random", layer=2)
        assert max(fixed) < min(shares(others, task="counting", score=score, layer=2))
    assert min(shares(others, task="sorting", score=score, layer=2)) > 0.99
    assert max(shares(others, task="induction", score=score, layer=1)) < induction_guess + 0.09
for score in names_of_four[1:]:
    assert min(shares(others, task="reversing", score=score)) > 0.99
    assert min(shares(others, task="sorting", score=score)) > 0.99
for layer, low, high in ((1, 0.3, 0.5), (2, 0.5, 0.75)):
    reversed_by_fixed = shares(others, task="reversing", score="fixed_random", layer=layer)
    assert low < min(reversed_by_fixed) and max(reversed_by_fixed) < high
counted = [shares(others, task="counting", score=score, layer=1) for score in names_of_four]
means = [mean(of_seeds) for of_seeds in counted]
assert max(max(of_seeds) - min(of_seeds) for of_seeds in counted) > max(means) - min(means)
assert max(shares(others, task="induction", score="fixed_random", layer=2)) < induction_guess + 0.05
assert induction_guess + 0.2 < min(shares(others, task="induction", score="random", layer=2))
for score in ("dense", "dot_product"):
    assert min(shares(others, task="induction", score=score, layer=2)) > 0.95

# %% [markdown]
# ## Longer than trained
#
# A block with one layer, trained on sentences of 12 tokens, tested on 24. For *pair*, keys and pointers are
# numbers up to 23 from the start, so that only the *positions* 12 to 23 are new. For *token* a pointer is a
# position: there 12 to 23 are new pointers as well. Old positions are those that were trained. With 24 positions the
# counting guess is another one.

# %% fold=true
# @title Print the shares at both lengths
longer = recorded("length")
print(f"{'':>20} ", "  ".join(f"{head:16}"
                              for head in ("12 tokens", "24, old positions", "24, new positions")))
for record in longer:
    parts = [summary(record["accuracy"]),
             *(summary(record["longer"][part]) for part in record["longer"])]
    print(f"{record['task']:>8} {shown_names[record['score']]:>11} ", "  ".join(parts))

many_values, _, _ = probes.sentences(4000, 24, 10, torch.Generator().manual_seed(0))
longer_guess = (nn.functional.one_hot(many_values).sum(dim=1).amax(dim=1) / 24).mean().item()
print(f"counting guess with 24 positions: {longer_guess:.2f}")

# %% [markdown]
# - **position:** nobody, not even the dot product. All have learned "look at $11 - i$", and now the right
#   position is $23 - i$. At the trained positions they are right about as often as a stranger's value happens to
#   be the same, 1 in 10; at the new ones the mean of the three seeds is not above the counting guess, though single
#   seeds are. *Where* was learned as a number, not as a rule.
# - **token:** Dense and the dot product are right in about half of the cases: half of the pointers name a
#   position that was trained.
# - **pair:** the dot product keeps most of it. Keys and pointers are the same numbers as before, and *comparing
#   does not need to know positions*. It is not perfect: 24 keys share the softmax now, and the positions are
#   untrained. Random and Dense guess, as before.
#
# A map that names positions is tied to the positions it was trained with. A map that compares goes further.

# %% fold=true
# @title Guard: each sentence above is true of the records
def at(task, score):
    (record,) = [record for record in longer if (record["task"], record["score"]) == (task, score)]
    return record["accuracy"], *record["longer"].values()


for score in ("random", "dense", "dot_product"):
    short, seen, new = at("position", score)
    assert min(short) > 0.95 and max(seen) < 0.15 and max(new) < 0.3
for score in ("dense", "dot_product"):
    short, seen, new = at("token", score)
    assert min(short) > 0.95 and 0.45 < min(*seen, *new) and max(*seen, *new) < 0.6
short, seen, new = at("pair", "dot_product")
assert min(short) > 0.95 and min(seen) > 0.85 and 0.6 < min(new) and max(new) < 0.8
assert max(mean(at("position", score)[2])
           for score in ("random", "dense", "dot_product")) < longer_guess
for score in ("dense", "random"):
    _, seen, new = at("pair", score)
    assert longer_guess - 0.04 < min(seen + new) and max(seen + new) < longer_guess + 0.02

# %% [markdown]
# ## Two sentences that must be compared
#
# The paper's averages on GLUE, a collection of English tasks: its Transformer 83.5, Random 75.1, Dense 72.0,
# but Dense + Vanilla 82.6 and Random + Vanilla 84.1. ("Vanilla" is the dot product.) Its reason for the fall
# of the two: those tasks give *two* sentences in one input, and the attention inside that input has to
# compare them. You can test the reason without a large model.
#
# The first half of a sentence states six facts, key and value; the second half claims six. Are the claims true?
# The answer is one bit, read from the mean over the positions. In a false sentence the values have moved on to
# other keys. So both halves always hold the same keys and values, and whoever only counts is right in half of the
# cases.
#
# There are two versions: the second half has the keys in the *same order*, or in *any order*. Write down who solves
# which, with a block or two. (A block has an mlp, which can compare two things once they are in one token.)

# %%
my_halves = {  # yes or no, that is True or False
    "Random, same order": None, "Random, any order": None,
    "dot product, same order": None, "dot product, any order": None,
}

# %% [markdown]
# Four sentences in any order, as key:value. Judge them yourself, and look what your eyes do. They look for a match.

# %%
(value_of, key_of), truth = probes.TASKS["halves in any order"](
    4, torch.Generator().manual_seed(3), length=12, vocab=10
)
for values_here, keys_here, true in zip(value_of.tolist(), key_of.tolist(), truth.tolist(),
                                        strict=True):
    facts = [f"{k}:{v}" for k, v in zip(keys_here, values_here, strict=True)]
    print(" ".join(facts[:6]), " claims ", " ".join(facts[6:]), "  true" if true else "  false")

# %%
pairs = recorded("halves")
for task in dict.fromkeys(record["task"] for record in pairs):
    print(task)
    print_table([record for record in pairs if record["task"] == task], "layer")

# %%
same, any_order = "halves in the same order", "halves in any order"
compare_guess(my_halves, {
    "Random, same order": min(shares(pairs, task=same, score="random")) > 0.95,
    "Random, any order": min(shares(pairs, task=any_order, score="random")) > 0.95,
    "dot product, same order": min(shares(pairs, task=same, score="dot_product")) > 0.95,
    "dot product, any order": min(shares(pairs, task=any_order, score="dot_product")) > 0.95,
})

# %% [markdown]
# In the same order Random needs no comparison of its own: "look six positions back" is one map for all sentences,
# and the mlp compares the fetched token with its own.
#
# In any order, Random and Dense are at one half after these 1,500 steps, with one layer and with two. (On *pair*, with
# more features, Dense needed more than 500 steps to leave the guess.) The dot product solves it, and so does the
# mixture, though one seed stays a little lower. That is the pattern of the paper's table: not that there are *two
# sentences* is the difficulty here, but that *what belongs together stands at positions nobody can know*. That it is
# the paper's reason, this does not show.

# %% fold=true
# @title Guard: each sentence above is true of the records
for score in ("random", "dense", "dot_product", "random + dot_product"):
    assert min(shares(pairs, task=same, score=score)) > 0.95
assert max(shares(pairs, score="fixed_random")) < 0.6
for score in ("random", "dense"):
    assert max(shares(pairs, task=any_order, score=score)) < 0.6
assert min(shares(pairs, task=any_order, score="dot_product")) > 0.95
assert min(shares(pairs, task=any_order, score="random + dot_product")) > 0.85

# %% [markdown]
# A caution: our task is made so that nothing else helps. Real sentence pairs have words that give the answer
# away; in the paper Random and Dense fall on GLUE, but not to guessing.
#
# ### Stretch 08.5: sentences that need no comparison
#
# *30 minutes, hard.* Make sentences for the task *pair* in which nobody has to compare: every token can tell from its
# own position, pointer and key where its match stands, but not from position and pointer alone. Many answers are right;
# the check lets three readers guess, from the counts in all your sentences, and trains nothing. Why the series asks:
# before you believe that a model compares, look for what its data give away without.

# %% exercise="08.5" points=1
def tell_tale_sentences(count, length):
    """Sentences whose match can be told from the own token alone. -> (pointer, key), int64, each
    batch length

    count: how many sentences, the axis batch; more than 1000. length: 5 to 12.
    key: in each sentence the numbers 0 to length - 1, each once. pointer: the key of another token
    of the sentence.
    Where does the match of a token stand? One who knows its position, pointer and key is always
    right. One who knows position and pointer alone, or the position alone, is right in less than
    half of the cases.
    """
    ### BEGIN SOLUTION
    # sentence n is turned by n positions
    key = (torch.arange(length) + torch.arange(count)[:, None]) % length
    generator = torch.Generator().manual_seed(0)
    distance = torch.randint(1, length, (count, length), generator=generator)
    pointer = key.gather(1, (torch.arange(length) + distance) % length)
    return pointer, key
    ### END SOLUTION

# %% check="08.5"
check("08.5", tell_tale_sentences)

# %% [markdown] solution="08.5"
# One hidden number for each sentence, here by how much it is turned, decides where all keys stand. The own key
# gives it away, the pointer alone does not. Quite another way: shuffle the keys freely, and let the own key say
# how far ahead the token points. (The gap to a trained model: the own token holds the answer as a sum modulo the
# length. With three turns instead of all, Dense learns it in a thousand steps.)

# %% solution="08.5"
def my_key_tells_how_far(count, length):
    generator = torch.Generator().manual_seed(0)
    key = torch.rand(count, length, generator=generator).argsort(dim=1)
    distance = 1 + key % (length - 1)
    return key.gather(1, (torch.arange(length) + distance) % length), key


check("08.5", my_key_tells_how_far)

# %% solution="08.5"
def three_turns(count, generator):
    turn = torch.randint(3, (count, 1), generator=generator)
    key = (torch.arange(12) + turn) % 12
    match = (torch.arange(12) + torch.randint(1, 12, (count, 12), generator=generator)) % 12
    values = torch.randint(10, (count, 12), generator=generator)
    return (values, key.gather(1, match), key), values.gather(1, match)


for score in ("random", "dense"):
    _ = torch.manual_seed(0)
    learner = OneLayer(score)
    probes.train_side_by_side([learner], [three_turns], [0], steps=1000, batch=24,
                              learning_rate=0.02)
    print(f"{score:>6}:", "solves it" if probes.accuracy(learner, three_turns) > 0.95
          else "guesses")

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Keys drawn at random need a comparison. Keys that are the same in every sentence need none, but then the pointer
# alone names the position. Look for something in between: *kinds* of sentences, at least three of them.
#
# </details>
# <details><summary>Hint 2: the own key</summary>
#
# A token knows its position and its key. What about the whole sentence could these two give away?
#
# </details>
# <details><summary>Hint 3: tools</summary>
#
# Choose for each token the position of its match first, then `key.gather(1, match)` is its pointer. A
# `torch.Generator().manual_seed(0)` makes the draws repeatable.
#
# </details>

# %% [markdown]
# In sentences like these Dense and the dot product may look alike, and nothing in the shares tells why. The same
# holds for a benchmark: if a reader of one token, or of one of two sentences, does as well as your model, the
# benchmark does not show that the model compares.
#
# ## What it costs
#
# The parameters of S, without biases, counted and by the formulas of Table 1 (you know them from 01 to 05):

# %% fold=true
# @title Count the parameters
d, l, k, a, b = 32, 12, 8, 3, 4
formulas = {
    "random": l**2, "factorized_random": 2 * l * k, "dense": d**2 + d * l,
    "factorized_dense": d**2 + d * (a + b), "dot_product": 2 * d**2,
}
for score, formula in formulas.items():
    options = {} if "random" in score else {"bias": False}
    counted = sum(p.numel() for p in make_score(score, d, 1, l, **options).parameters())
    assert counted == formula
    print(f"{score:>17}: {counted:5,}")

# %% [markdown]
# With $l = 12$ and $k = 8$ Factorized Random is larger than Random: $2 l k > l^2$ whenever $k > l / 2$. The
# comparison costs $2 d^2$, less than twice what Dense pays.
#
# ## Where it breaks
#
# What these probes do *not* tell:
#
# - **A guess is not a proof.** "Not learned in 200 steps" says nothing by itself. The arguments do, for
#   one layer and a linear readout. Where there is none, as with depth, only "not with these settings" is left.
# - **A solved task is not a good language model.** In [chapter 13](13_train_on_gpu.ipynb) text rewards many
#   things that need no comparison.
# - **One head.** More heads can look at several positions, and what comes after them can choose.
# - **Accuracy hides confidence.** Take the trained Dense, which just guesses at *pair*, and the same model
#   with its logits multiplied by 10. It gives the same answers, so its accuracy is the same; but it is sure of
#   guesses, and its loss says so: a blind guess has $\log 10 = 2.3$.

# %%
parts, targets = draws["pair"](1000, torch.Generator().manual_seed(5))
with torch.no_grad():
    logits = trained["Dense", "pair", 0](*parts).flatten(0, 1)
for name, surer in {"as trained": logits, "ten times as sure": 10 * logits}.items():
    loss = nn.functional.cross_entropy(surer, targets.flatten()).item()
    assert (loss > 2.3) == (name != "as trained") and torch.equal(surer.argmax(-1),
                                                                  logits.argmax(-1))
    print(f"{name}: the same answers, and a loss {'above' if loss > 2.3 else 'below'} 2.3")

# %% [markdown]
# ## Three sentences to keep
#
# 1. For one layer with a linear readout, the column *conditioned on* of Table 1 is a staircase of tasks: reading
#    nothing gives fixed positions, reading the own token gives positions that it names, and only reading all tokens
#    finds a match; what S reads counts more than whether S itself is trained.
# 2. To call a number a failure, compute what counting gives first; to call it a limit, show two inputs that need
#    different rows and get the same one, when nothing after the map can compare.
# 3. A block is more than its map: an mlp that reads an average can do a comparison that the map did not, as
#    long as there is little to compare; the dot product did not meet that limit here.
#
# **Where it is going next.** [Chapter 09](09_reading_other_code.ipynb) asks which of several published layers is what
# it claims to be. [Chapter 13](13_train_on_gpu.ipynb) puts the same scores on real text, where the three kinds of
# question come mixed.
