# %% [markdown]
# # 00 · Start here
#
# **After this chapter you can run the series, read its one equation, and move the axes of a tensor without
# getting lost.**
#
# - **Before you start:** you know Python and have seen a product of two matrices. Nothing else is needed.
# - **Time:** about 55 minutes, 16 of them for the two exercises.
# - **Level:** easy.

# %% [markdown]
# ## How to read this series
#
# A chapter is a *notebook*: text and code in *cells*, one below the other. Click on a code cell and press
# **Shift+Enter**. The cell runs, its output appears below it, and you move on to the next cell. The first
# code cell, above this text, is the set-up. Run it in every chapter; you need not read it.
#
# Most chapters go the same way:
#
# 1. a question, asked about a sentence of six words,
# 2. the equation that answers it,
# 3. the equation as code: first in plain loops, then shorter, on the same numbers,
# 4. a picture, the cost, and a place where the idea breaks,
# 5. exercises.
#
# An **exercise** is a function with a gap. The gap says `raise NotImplementedError`. Put your code in its
# place, run the cell, then run the check cell below it. The check gives one of three verdicts: *not
# answered yet*; *right*; or *wrong*, with the mistake that it looks like and the section to read again. It
# never shows how it is done. Code that does not come to an end is stopped after 8 seconds, and your notebook
# stays as it was. Hints are folded: click on one to open it. The solved chapter has the same name, in the
# folder `notebooks/solutions`.
#
# **When you are lost**
#
# - A cell says `NameError`: a cell above it has not run, so run the cells from the top. Or, inside your own
#   function, you use a name that you have not defined.
# - A result looks strange: an old variable may still be there. Start afresh: *Restart Kernel and Run All
#   Cells...* in the menu *Kernel* of JupyterLab, *Restart session and run all* in *Runtime* of Colab. Every
#   chapter runs from top to bottom, with empty exercises too.
# - An exercise does not go: open its hints one by one, then the solved chapter. Nobody counts.
# - You want to know what a variable holds: add a cell and print it. You cannot break anything.

# %% [markdown]
# ## Does everything work?
#
# The next cells look at each thing that the series needs: first at Python and at packages that others
# wrote, then at the library of this series, at the texts, and at the *device*, the chip that computes. Run
# them; you need not read their code now.

# %%
import importlib
import re
import sys

PYTHON = "3.11"
NEEDED = {"torch": "2.6", "numpy": "1.26", "einops": "0.8", "matplotlib": "3.9",
          "tqdm": "4.66", "tokenizers": "0.20", "IPython": "7.34"}


def older(installed, needed):
    """Compare the first two numbers: "2.13.0+cpu" is newer than "2.6"."""
    installed, needed = ([int(number) for number in re.findall(r"\d+", text)[:2]] for text in (installed, needed))
    return installed < needed


def python_line(installed=sys.version):
    if older(installed, PYTHON):
        return f"FIX   Python is {installed.split()[0]}, but must be {PYTHON} or newer: install a newer Python"
    return "ok    Python"


def package_line(name, needed):
    repair = f'run  pip install "{name}>={needed}"  where Jupyter runs, then restart the kernel'
    try:
        installed = importlib.import_module(name).__version__
    except Exception as error:
        return f"FIX   {name} cannot be imported ({error}): {repair}"
    return f"FIX   {name} is {installed}, too old: {repair}" if older(installed, needed) else f"ok    {name}"

# %%
def library_line():
    try:
        importlib.import_module("synth_lib.attention")
    except Exception as error:
        return f"FIX   synth_lib cannot be imported ({error}): run the first code cell and do what it says"
    return "ok    synth_lib"


def data_line():
    try:
        data = importlib.import_module("synth_lib.text.corpora")
        for split in ("train", "valid", "test"):
            data.load_text(split)  # reads the file and compares its checksum
    except Exception as error:
        return f"FIX   data: {error}"
    return "ok    data"


def find_device():
    import torch  # here, so that this cell runs where torch is missing
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def device_line():
    try:
        torch = importlib.import_module("torch")
        total = torch.ones(6, 8, device=find_device()).sum().item()
    except Exception as error:
        return f"FIX   device: it does not compute ({error}): update its driver, or go on in Colab"
    return "ok    device" if total == 48 else f"FIX   device: it adds 48 ones to {total}: restart the machine"

# %% [markdown]
# Now ask them. Every line says `ok`, or `FIX` and what to do.

# %%
lines = [python_line()]
lines += [package_line(name, needed) for name, needed in NEEDED.items()]
lines += [library_line(), data_line(), device_line()]
print("\n".join(lines))
all_is_well = all(line.startswith("ok") for line in lines)
print("\nAll is well: go on." if all_is_well else "\nDo what the first FIX line says, then start afresh.")

# %% [markdown]
# What would a bad line look like? Ask for a package that does not exist:

# %%
print(package_line("no_such_package", needed="1.0"))

# %% [markdown]
# The last cell of this section shows what your machine has. The device `cpu` is enough.

# %%
# Output varies: versions and device are those of the machine.
import torch

print("Python", sys.version.split()[0], "| torch", torch.__version__, "| device", find_device())

# %% [markdown]
# ## The one idea
#
# A language model reads a text as **tokens**: pieces of text, here whole words. For the model a token is a
# list of numbers, its **features**. Our sentence has six tokens. We give each three features, made up by
# hand: how much it is a thing, an action, a place.
#
# A table of numbers like this is a **tensor**. It has two **axes**: down the rows you go from token to
# token, along a row from feature to feature. The sizes of all axes together, 6 and 3, are its **shape**. A
# tensor can have more axes than two.

# %%
torch.set_printoptions(precision=3, sci_mode=False)
words = "the cat sat on the mat".split()
X = torch.tensor([
    [0.1, 0.1, 0.2],  # the
    [0.9, 0.2, 0.1],  # cat
    [0.1, 0.8, 0.2],  # sat
    [0.1, 0.2, 0.7],  # on
    [0.1, 0.1, 0.2],  # the
    [0.8, 0.1, 0.6],  # mat
])
print(X.shape)

# %% [markdown]
# **Who sat?** The row of "sat" cannot say: it knows an action, not its actor. It must take something from
# the row of "cat". **Attention** is the step in which every token takes something from all tokens.
#
# It needs *scores*. A score is one number for a pair: how much the token that attends, the **query**, wants
# from the token that is attended to, the **key**. Here are six scores for the query "sat", again made up by
# hand.
#
# The **softmax** turns scores into **weights**: it takes `exp(score)` of each, that is *e* to the power of
# the score, then divides by the sum of all six. Weights are positive and sum to 1 (here they are printed
# rounded). The highest score gets the largest weight.

# %%
scores_of_sat = torch.tensor([0.0, 3.0, 1.0, 0.0, 0.0, 1.0])
weights_of_sat = scores_of_sat.exp() / scores_of_sat.exp().sum()
for i in range(6):
    print(f"{words[i]:4} {weights_of_sat[i]:.2f}")
print(f"sum  {weights_of_sat.sum():.2f}")

# %% [markdown]
# Now mix: every row of `X` times its weight, all added up. Compare the new row of "sat" with the old one:
# the first number, "a thing", has grown. "sat" now carries some of "cat".

# %%
new_sat = torch.zeros(3)
for i in range(6):
    new_sat += weights_of_sat[i] * X[i]
print("before", X[2])
print("after ", new_sat)

# %% [markdown]
# A **mask** forbids pairs. A model that writes text from left to right must not look at later words, for
# instance. A forbidden pair gets the score minus infinity before the softmax. `exp` of that is 0, so its
# weight is 0, and the other weights still sum to 1.
#
# In the code, `~` turns True into False and False into True, and `masked_fill` writes minus infinity where it
# then finds True. `.softmax(dim=0)` is the softmax from above. `dim` says along which axis it runs: axes are
# counted from 0, and this tensor has no other.

# %%
may_attend = torch.tensor([True, True, True, False, False, False])
masked_weights = scores_of_sat.masked_fill(~may_attend, float("-inf")).softmax(dim=0)
for i in range(6):
    print(f"{words[i]:4} {masked_weights[i]:.2f}")
print(f"sum  {masked_weights.sum():.2f}")

# %% [markdown]
# Six queries give six rows of scores, a table S. All of it, for all tokens at once, is one line. Remember
# this line, the series is about nothing else:
#
#     Y = softmax( S(X) + mask ) G(X)
#
# - `X` are the tokens, a row each. `Y` are the tokens after the step, in the same positions.
# - `S(X)` are the scores: a row for each query, a column for each key. S stands for *synthesize*.
# - `mask` is minus infinity for forbidden pairs and 0 for the others. The softmax works on each row.
# - `G(X)` are the **values**: what a token gives when another attends to it. So far this was `X` itself;
#   later it is `X` times a matrix that the model learns.
#
# The weights, `softmax( S(X) + mask )`, are called the **attention map**.

# %%
S = torch.tensor([
    [1.0, 2.0, 0.0, 0.0, 0.0, 0.0],  # the
    [1.0, 1.0, 2.0, 0.0, 0.0, 0.0],  # cat
    [0.0, 3.0, 1.0, 0.0, 0.0, 1.0],  # sat
    [0.0, 0.0, 2.0, 1.0, 0.0, 2.0],  # on
    [0.0, 0.0, 0.0, 1.0, 1.0, 2.0],  # the
    [0.0, 0.0, 1.0, 3.0, 1.0, 1.0],  # mat
])
attention_map = S.softmax(dim=1)
Y = attention_map @ X
print(Y)

# %% [markdown]
# The third row of `Y` is the row of "sat" that you saw before the mask. With `dim=1` the softmax runs along
# the keys. The `@` is Python's sign for the product of matrices.
#
# And the map as a picture: a row is a query, dark is a large weight. On the right no word looks at a later
# one.

# %%
from synth_lib import plots

later = torch.ones(6, 6).triu(diagonal=1).bool()
masked_map = S.masked_fill(later, float("-inf")).softmax(dim=1)
fig = plots.attention_map(torch.stack([attention_map, masked_map]), words, titles=["no mask", "masked"])
alt = ("Two attention maps of 'the cat sat on the mat'. Left, without a mask: 'sat' looks mostly at 'cat', "
       "'mat' mostly at 'on'. Right, masked: all above the diagonal is white, no word looks at a later one.")
plots.show(fig, alt)

# %% [markdown]
# ## What the series is about: where do the scores come from?
#
# The usual answer, the **dot product**, compares the query with each key. The paper behind this series (Tay
# et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*, arXiv 2005.00743) asks: must it
# compare? What if the scores are made, *synthesized*, from one token alone, or from no token at all? Each
# answer is a **synthesizer**, a choice of S. (The line to remember is the paper's equation (3), and a mask.)
#
# | S | the score of query i and key j is made from | name in `synth_lib` |
# |---|---|---|
# | dot product | token i and token j | `dot_product` |
# | dense | token i alone | `dense` |
# | random | the positions i and j: a learned number for each pair, whatever the words | `random` |
# | fixed random | the same, but the number stays as it was drawn | `fixed_random` |
# | factorized dense | token i alone, through two short lists of numbers | `factorized_dense` |
# | factorized random | as random, but the table is a product of two thin matrices | `factorized_random` |
# | mixture | any of these, added up in learned proportions | `random + dense` and so on |
#
# You need not understand each row now. But you can see the second column at work. The next cell replaces
# "cat" by "dog" and asks each S of the library: for which queries do the scores change?

# %%
from synth_lib.scores import SCORES, make_score

with_dog = X.clone()
with_dog[1] = torch.tensor([0.8, 0.4, 0.2])
for name in SCORES:
    _ = torch.manual_seed(2)  # the same random numbers on every run
    score = make_score(name, d_model=3, head=1, max_length=6)
    change = (score(with_dog[None]) - score(X[None]))[0, 0].abs()
    queries = [words[i] for i in range(6) if change[i].max() > 1e-3]
    print(f"{name:18}", " ".join(queries) or "none")

# %% [markdown]
# Read it from the top. The dot product: every query compares itself with the new word, so all six rows of
# scores change. Dense: only the row of the word that changed. Random: none. (A mixture is not printed: its
# row changes where a row of one of its parts does.)
#
# The library works on many sentences and several maps at once, so its tensors have two axes more; `[None]`
# and `[0, 0]` put them on and take them off. You will meet both, `batch` and `head`, in a moment.
# `max_length` is the longest sentence that this S can take.
#
# **The chapters**
#
# | chapter | what you will be able to do | |
# |---|---|---|
# | 00 | read and run the series | you are here |
# | [01 · Dot product](01_dot_product.ipynb) | build the usual attention: heads, masks, cost | ready |
# | [02 · Dense](02_dense.ipynb) | build the dense synthesizer, from loop to layer; see its limit | ready |
# | [03 · Random](03_random.ipynb) | build one map for all sentences; make it learn | ready |
# | [04 · Factorized Dense](04_factorized_dense.ipynb) | make a long row from two short lists | ready |
# | [05 · Factorized Random](05_factorized_random.ipynb) | make a table from two thin ones; use its rank | ready |
# | [06 · Mixtures](06_mixtures.ipynb) | mix scores; compute the paper's table of all of them | ready |
# | [07 · Whole models](07_whole_models.ipynb) | build models around any S; let them write and translate | ready |
# | [08 · What each score can do](08_what_each_score_can_do.ipynb) | tell which S solves a task | ready |
# | 09, 10 | more masks | planned |
# | [11 · Speed](11_speed.ipynb) | predict from counts how long each S takes, then measure it | ready |
# | 12 | reading other people's code | planned |
# | [13 · Train](13_train_on_gpu.ipynb) | train language models that differ in S; compare them | ready |
#
# The numbers are the reading order. 13 needs 03, 06 and 07.

# %% [markdown]
# ## einops in ten minutes
#
# Code for attention moves axes around all the time, and it is easy to move the wrong one. So this series
# gives every axis a name. `einops` is a small library that moves axes by name. Four of its functions are
# enough.
#
# Our tensor for practice has six tokens again, and eight features. We count from 0, as Python does. The
# numbers say where they stand: 47 is feature 7 of token 4, and 3 is feature 3 of token 0.
#
# For each cell: **predict the shape first**, then look. The outputs are stored below the cells. To hide them
# all, choose *Clear Outputs of All Cells* (JupyterLab) or *Clear all outputs* (Colab) in the menu *Edit*,
# then run each cell once you have predicted.

# %%
tokens = torch.tensor([[10 * token + feature for feature in range(8)] for token in range(6)])
print(tokens)

# %% [markdown]
# The axis of the tokens is called `length`, the axis of the features `d_model`. You choose the names; we
# always choose these.

# %% [markdown]
# ### rearrange: name the axes, move them
#
# Left of the arrow: the axes as they are. Right: as you want them. Here two axes change places. 47 stood in
# row 4, column 7; now it stands in row 7, column 4.

# %%
from einops import rearrange

print(rearrange(tokens, "length d_model -> d_model length"))

# %% [markdown]
# Brackets on the left **split** an axis. Models often cut the features of a token into parts, called
# **heads**, and let each head attend on its own. With two heads, 8 features are 2 heads times 4 features;
# `d_head` is the name for these 4. einops needs one of the two sizes and works out the other. Predict the
# shape: how many axes, and how long?

# %%
parts = rearrange(tokens, "length (head d_head) -> length head d_head", head=2)
print(parts.shape)
print(parts[3])

# %% [markdown]
# You see token 3: head 0 has its features 0 to 3, head 1 its features 4 to 7.
#
# The order in the brackets matters. `(d_head head)` deals the features out like cards: feature 0 to head 0,
# feature 1 to head 1, feature 2 to head 0 again. The shape is the same, the numbers are not.

# %%
cards = rearrange(tokens, "length (d_head head) -> length head d_head", head=2)
print(cards.shape)
print(cards[3])

# %% [markdown]
# Brackets on the right **merge** axes again.

# %%
merged = rearrange(parts, "length head d_head -> length (head d_head)")
print(torch.equal(merged, tokens))

# %% [markdown]
# ### reduce: name the axis that goes
#
# An axis that is missing on the right disappears. The last argument says how: `"sum"`, `"mean"`, `"max"`,
# `"min"`. Predict: which numbers remain, and how many?

# %%
from einops import reduce

print(reduce(tokens, "length d_model -> length", "max"))

# %% [markdown]
# ### repeat: name the axis that comes
#
# A name that is new on the right is a new axis, along which everything is copied. You have to say how long
# it is. `batch` is our name for sentences, or other sequences, that are computed side by side. Predict the
# shape.

# %%
from einops import repeat

copies = repeat(tokens, "length d_model -> batch length d_model", batch=3)
print(copies.shape)

# %% [markdown]
# ### einsum: name the axes, multiply, sum
#
# `einsum` takes two tensors. It has two rules. Every number of the first meets every number of the second
# that has the same index on the axes they share, and the two are **multiplied**. Along a name that is missing
# on the right, the products are **summed**. The product of two matrices, in which you mix the rows of `X` with
# the weights, is this:

# %%
from einops import einsum

mixed = einsum(attention_map, X, "query key, key d_model -> query d_model")
print(torch.allclose(mixed, Y))

# %% [markdown]
# `query` and `key` are both positions in the sentence. They have two names because they play two roles: the
# query attends, the key is attended to. The rows of `X` are what is attended to, so here their axis is
# called `key`. No `key` on the right: it is summed.
#
# Here are the two rules as loops. Each name is a loop.

# %%
by_hand = torch.zeros(6, 3)
for query in range(6):
    for d_model in range(3):
        for key in range(6):
            by_hand[query, d_model] += attention_map[query, key] * X[key, d_model]
print(torch.allclose(by_hand, Y))

# %% [markdown]
# A wrong name can give a wrong result without an error. Here the rows of `X` are called `query`. Then each
# row meets only the weights of its own query, all of them. They sum to 1, and every token gets its own
# features back.

# %%
wrong = einsum(attention_map, X, "query key, query d_model -> query d_model")
print(torch.allclose(wrong, X))

# %% [markdown]
# ## The trap: right shape, wrong numbers
#
# You want a table for each head: 2 heads, 6 tokens, 4 features. torch has `reshape`, which takes all
# numbers in order, row after row, and cuts them into new sizes. It looks like the right thing, and the
# shape is what you wanted:

# %%
trap = tokens.reshape(2, 6, 4)
print(trap.shape)
print(trap[0])

# %% [markdown]
# Look at the tens. The table of head 0 should have one row for each of the six tokens. It has two rows for
# each of the first three. No error, no warning. `reshape` cannot move an axis past another one.
# `rearrange` can, and it says what it does.

# %% [markdown]
# ## Your first exercise
#
# First see what a check says, on three functions of ours. One has a gap, like every exercise before you
# answer it:

# %%
from synth_lib.checks import check


def with_a_gap(features, head):
    raise NotImplementedError


check("00.1", with_a_gap)

# %% [markdown]
# One returns what it was given. The check says which shape it got, which one it should be, and on which
# inputs: it draws sizes and numbers of its own, so that nothing fits by chance. Some exercises, like this
# one, also put the result of your code beside the expected one, row by row, for a small example.

# %%
def too_simple(features, head):
    return features


check("00.1", too_simple)

# %% [markdown]
# One has the right shape and walks into the trap. The check has a list of mistakes that people make, and
# finds this one on it:

# %%
def trapped(features, head):
    batch, length, d_model = features.shape
    return features.reshape(batch, head, length, d_model // head)


check("00.1", trapped)

# %% [markdown]
# The verdict that is missing, *right*, is yours.
#
# ### Exercise 00.1: split the heads
#
# *8 minutes, easy.* Cut the features of each token into heads, and give each head its own table of tokens.
# The loops in the docstring say exactly what is wanted; you need no loop, one call is enough.

# %% exercise="00.1" points=1
def split_heads(features, head):
    """Give every head its own table: a row per token, d_head columns.

    Args:
        features: "batch length d_model", where d_model = head * d_head.
        head: the number of heads.

    Returns:
        "batch head length d_head". In loops:

        for b in range(batch):
            for h in range(head):
                for i in range(length):
                    for d in range(d_head):
                        result[b, h, i, d] = features[b, i, h * d_head + d]
    """
    ### BEGIN SOLUTION
    return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=head)
    ### END SOLUTION

# %% check="00.1"
check("00.1", split_heads)

# %% [markdown]
# <details><summary>Hint 1: where to start</summary>
# Use <code>rearrange</code>. Write down the axes of the input, left of the arrow, with one of them split by
# brackets.
# </details>
# <details><summary>Hint 2: the other side</summary>
# Right of the arrow stand four names, in the order of "Returns". You saw the split of one sentence above;
# here <code>batch</code> stands in front, and one more axis moves.
# </details>
# <details><summary>I want to write the loops</summary>
# Start with <code>batch, length, d_model = features.shape</code>, work out <code>d_head</code>, and make
# <code>result</code> with <code>torch.zeros</code>. Return it after the last loop.
# </details>
# <details><summary>I see "Could not infer sizes"</summary>
# einops knows the product of the two sizes in the brackets, not the sizes. Tell it the number of heads, as
# a last argument with a name.
# </details>

# %% [markdown]
# ### Exercise 00.2: sum the values with the weights
#
# *8 minutes, easy.* This is the last step of every attention in this series: each query gets the sum of all
# values, each times its weight. It happens in every sentence of the batch and in every head. The weights
# are an attention map: they have been through the softmax.

# %% exercise="00.2" points=1
def weighted_sum(weights, value):
    """Mix the values with the weights.

    Args:
        weights: "batch head query key"; every row, along key, sums to 1.
        value: "batch head key d_head".

    Returns:
        "batch head query d_head". In loops, starting from zeros:

        for b in range(batch):
            for h in range(head):
                for i in range(length):          # the query
                    for j in range(length):      # the key
                        for d in range(d_head):
                            result[b, h, i, d] += weights[b, h, i, j] * value[b, h, j, d]
    """
    ### BEGIN SOLUTION
    return einsum(weights, value, "batch head query key, batch head key d_head -> batch head query d_head")
    ### END SOLUTION

# %% check="00.2"
check("00.2", weighted_sum)

# %% [markdown]
# <details><summary>Hint 1: where to start</summary>
# Use <code>einsum</code>. You mixed the rows of one sentence with it above. Which axes are new here?
# </details>
# <details><summary>Hint 2: the names</summary>
# The docstring has the names of all three tensors. Exactly one name of the inputs is missing in the result:
# it is summed.
# </details>
# <details><summary>I want to write the loops</summary>
# Start with <code>batch, head, length, d_head = value.shape</code>, and make <code>result</code> with
# <code>torch.zeros</code>. Return it after the last loop.
# </details>
# <details><summary>I see "does not match the number of dimensions"</summary>
# Every axis of a tensor needs a name in the text. Both tensors have four axes.
# </details>
# <details><summary>I see another error about the pattern</summary>
# The order is: first tensor, second tensor, then one text. In the text, a comma stands between the two
# inputs and an arrow before the result.
# </details>

# %% [markdown]
# ### How far are you?
#
# `checks.progress()` finds the exercises of a chapter by the names of their functions, checks each of them
# and says what is left. It works in every chapter, in a cell of your own:

# %%
from synth_lib import checks

checks.progress()

# %% [markdown]
# ## Named axes in ten minutes
#
# einops moves axes by name. `synth_lib.shapes` *checks* them by name. A comment that says a shape can be
# wrong for years. A line that checks it cannot. You will see such a line below almost every new tensor.
#
# Say which sizes you know. We take them all different: then a swapped axis cannot hide.

# %%
from synth_lib.shapes import Axes

axes = Axes(batch=3, length=6, d_model=8)
x = axes(copies, "batch length d_model", "x")
print(axes)

# %% [markdown]
# The shape fits, so the tensor simply comes back. You also see that `length` fixes `query` and `key`: both
# are positions in the same sentence.
#
# Now swap two axes and check again. The message names the tensor, the axis, both sizes, where the right
# size was stated, and a guess.

# %%
swapped = rearrange(copies, "batch length d_model -> batch d_model length")
try:
    axes(swapped, "batch length d_model", "swapped")
except ValueError as error:
    print(error)

# %% [markdown]
# A name that is not known yet takes the size at which it is first met, and keeps it. Here `axes` learns
# `head` and `d_head`:

# %%
per_head = rearrange(copies, "batch length (head d_head) -> batch length head d_head", head=2)
axes(per_head, "batch length head d_head", "per_head")
print(axes["head"], axes["d_head"])

# %% [markdown]
# Brackets work as in einops: they stand for one axis whose size is a product.

# %%
axes(copies, "batch length (head d_head)", "copies")
print(axes["head"] * axes["d_head"] == axes["d_model"])

# %% [markdown]
# **What it cannot catch.** It compares sizes, nothing else. An attention map has as many queries as keys.
# Exchange the two, and the shape is the same, so the check lets it pass:

# %%
turned = rearrange(attention_map, "query key -> key query")
axes(turned, "query key", "turned")
print(torch.equal(turned, attention_map))

# %% [markdown]
# The values tell: the rows of an attention map sum to 1. The rows of `turned` do not. So chapters check
# shapes everywhere, and values where shapes are not enough.

# %%
print(torch.allclose(reduce(attention_map, "query key -> query", "sum"), torch.ones(6)))
print(torch.allclose(reduce(turned, "query key -> query", "sum"), torch.ones(6)))

# %% [markdown]
# ## The names
#
# One name, one meaning, in all chapters. Behind some stands the letter that the paper uses. You will meet
# those you do not know yet in the chapter that needs them; come back here when you forget one.

# %%
from IPython.display import Markdown

from synth_lib.shapes import GLOSSARY

rows = [f"| `{name}` | {meaning} |" for name, meaning in GLOSSARY.items()]
Markdown("\n".join(["| axis | meaning |", "|---|---|", *rows]))

# %% [markdown]
# ## Three sentences to keep
#
# - Attention is `Y = softmax( S(X) + mask ) G(X)`: scores become weights, weights mix values.
# - A synthesizer is a choice of S: it says what the scores may look at.
# - A right shape is not a right result: name the axes, check them, then check values.
#
# **Next:** [chapter 01](01_dot_product.ipynb) builds the attention that everything else is compared with.
