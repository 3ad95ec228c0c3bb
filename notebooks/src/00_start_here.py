# %% [markdown]
# # 00 · Start here
#
# **After this chapter you can read the one equation of the series and move the axes of a tensor without getting
# lost; and you have seen one attention learn what another cannot.**
#
# - **Before you start:** you know Python and have seen a product of two matrices. Nothing else is needed.
# - **Time:** about 65 minutes, 18 of them for the two exercises; the stretch exercise takes 15 more.
# - **Level:** easy.
#
# The page is made of text and code. Click on a code cell and press **Shift+Enter**: it runs, and its output appears
# below it. The first one is folded: it is the set-up, run it in every chapter; you need not read it. The outputs are
# stored below the cells. To guess before you look, hide them all now: *Clear Outputs of All Cells* (JupyterLab) or
# *Clear all outputs* (Colab) in the menu *Edit*. Should a cell
# fail, [Does everything work?](#Does-everything-work?) finds out what is missing.

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
import torch

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
# Now mix: every row of `X` times its weight, all added up. Compare the new row of "sat" with the old one.

# %%
new_sat = torch.zeros(3)
for i in range(6):
    new_sat += weights_of_sat[i] * X[i]
print("before", X[2])
print("after ", new_sat)
print("sum   ", X[2] + new_sat)

# %% [markdown]
# The first number, "a thing", has grown: "sat" now carries some of "cat". But the second, its own "action", fell
# from 0.8 to 0.24. Is "sat" still an action? In the mixture hardly: most of the weight went to "cat". A model
# therefore *adds* the mixture to the old row, as in the last line: an action, and by a cat. This addition stands
# outside the line that you will remember below; chapter 07 builds it.

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
# - `mask` is minus infinity for forbidden pairs and 0 for the others. (In code a mask is True where a pair is allowed
#   and False where not; it is turned into these numbers.) The softmax works on each row.
# - `G(X)` are the **values**: what a token gives when another attends to it. So far this was `X` itself;
#   later it is `X` times a matrix that the model learns.
#
# The weights, `softmax( S(X) + mask )`, are called the **attention map**. Most models that write text today are
# built on this very line, with one choice of S, the dot product, and a mask on all later words.

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
fig = plots.attention_map(torch.stack([attention_map, masked_map]), words,
                          titles=["no mask", "masked"])
alt = ("Two attention maps of 'the cat sat on the mat'. Left, without a mask: "
       "'sat' looks mostly at 'cat', 'mat' mostly at 'on'. Right, masked: all above the diagonal "
       "is white, no word looks at a later one.")
plots.show(fig, alt)

# %% [markdown]
# The same line as boxes. The filled box is what this series is about.

# %%
fig = plots.flow("a choice", "what it likes")
plots.show(fig, "X goes to S(X), which makes scores, and to G(X), which makes values. "
                "The mask and a softmax turn the scores into weights; the weighted means of the "
                "values are Y. The box of S is filled: it is a choice.")

# %% [markdown]
# ## What the series is about: where do the scores come from?
#
# The usual answer, the **dot product**, compares the query with each key. The paper behind this series (Tay
# et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*, arXiv 2005.00743) asks: must it
# compare? What if the scores are made, *synthesized*, from one token alone, or from no token at all? Each
# answer is a **synthesizer**, a choice of S. (The line to remember is the paper's equation (3), and a mask.)
#
# Here are three of them. The score of query i and key j is made
#
# - by the **dot product** from token i and token j;
# - by **Dense** from token i alone: it says how much it wants of each *place* j, whoever stands there;
# - by **Random** from no token: it is a learned number for each pair of places, whatever the words.
#
# All others of the series are relatives and mixtures of these; [the map of the series](../docs/map.md) lists them.
#
# In a moment "cat" becomes "dog". In how many of the six rows of scores does something change? Write your guess down,
# in place of each `None`.

# %%
my_guess = {"dot product": None, "Dense": None, "Random": None}  # rows that change, 0 to 6

# %% [markdown]
# The next cell asks the library. It works on many sentences and several maps at once, so its tensors have two axes
# more: `[None]` and `[0, 0]` put them on and take them off. You will meet both soon, `batch` and `head`. `max_length`
# is the longest sentence that this S can take.

# %%
from synth_lib.scores import make_score

with_dog = X.clone()
with_dog[1] = torch.tensor([0.8, 0.4, 0.2])
changed_rows = {}
for name in ("dot product", "Dense", "Random"):
    _ = torch.manual_seed(2)  # the same random numbers on every run
    score = make_score(name.lower().replace(" ", "_"), d_model=3, head=1, max_length=6)
    change = (score(with_dog[None]) - score(X[None]))[0, 0].abs()
    queries = [words[i] for i in range(6) if change[i].max() > 1e-3]
    changed_rows[name] = len(queries)
    print(f"{name:12}", " ".join(queries) or "none")

# %%
from synth_lib.checks import compare_guess

compare_guess(my_guess, changed_rows)

# %% [markdown]
# The dot product: every query compares itself with the new word, so all rows change. Dense: only the row of the word
# that changed. Random: none. Is so little enough? At the end of this chapter you train two of them and see. Can you
# not wait? [The taste](#A-taste:-two-S-learn-the-same-task) needs nothing of what lies between; come back after it.

# %% [markdown]
# ## How to read this series
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
# folder `notebooks/solutions`. The last exercise of each chapter is a *stretch*: it has many right answers.
#
# A word you have forgotten? [The glossary](../docs/glossary.md) has a sentence on each. Which chapters do you need?
# [The map](../docs/map.md) has three routes.
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
# ## einops in ten minutes
#
# Code for attention moves axes around all the time, and it is easy to move the wrong one. So this series
# gives every axis a name. `einops` is a small library that moves axes by name. Four of its functions are
# enough.
#
# Our tensor for practice has six tokens again, and eight features. We count from 0, as Python does. The
# numbers say where they stand: 47 is feature 7 of token 4, and 3 is feature 3 of token 0.
#
# For each cell: **predict the shape first**, then run it.

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
# Brackets on the right **merge** axes again. Predict: what does token 3 look like after this?

# %%
merged = rearrange(parts, "length head d_head -> length (head d_head)")
print(merged.shape)
print(merged[3])

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
# You mixed the rows of `X` with the weights of "sat". For all six queries these are three loops, one for each name:

# %%
by_hand = torch.zeros(6, 3)
for query in range(6):
    for d_model in range(3):
        for key in range(6):
            by_hand[query, d_model] += attention_map[query, key] * X[key, d_model]
print(by_hand[2])

# %% [markdown]
# The row of "sat" again. `einsum` says the same in one line: the names of the first tensor, of the second, and of
# the result.

# %%
from einops import einsum

mixed = einsum(attention_map, X, "query key, key d_model -> query d_model")
print(mixed[2])

# %% [markdown]
# Now the rule, which you can check on the loops. Every name is a loop. Two numbers with the same index on the names
# they share are **multiplied**. Along a name that is missing on the right, here `key`, the products are **summed**.
#
# `query` and `key` are both positions in the sentence. They have two names because they play two roles: the
# query attends, the key is attended to. The rows of `X` are what is attended to, so here their axis is
# called `key`.
#
# A wrong name can give a wrong result without an error. Here the rows of `X` are called `query`. Predict: what
# happens to "sat"?

# %%
wrong = einsum(attention_map, X, "query key, query d_model -> query d_model")
print(wrong[2])

# %% [markdown]
# It gets its own row back, and so does every token. Each row of `X` meets only the weights of its own query, all of
# them, and they sum to 1.

# %% fold=true
# @title The same, for all six tokens at once
assert torch.allclose(by_hand, Y) and torch.allclose(mixed, Y) and torch.allclose(wrong, X)

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
# Everywhere in the series a number of numpy counts as a number, and a list as a tuple; a tensor of one value does not
# count as a number: `.item()` takes it out.

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
# *6 minutes, easy.* Cut the features of each token into heads, and give each head its own table of tokens, in every
# sentence of the batch. One call is enough. The check also tries one sentence, one head and one token.

# %% exercise="00.1" points=1
def split_heads(features, head):
    """Give every head its own table: a row per token, d_head columns.

    Args:
        features: "batch length d_model", where d_model = head * d_head.
        head: the number of heads.

    Returns:
        "batch head length d_head". Of each token, head 0 has the first d_head features, head 1 the
        next d_head, ...
    """
    ### BEGIN SOLUTION
    return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=head)
    ### END SOLUTION

# %% check="00.1"
check("00.1", split_heads)

# %% [markdown]
# <details><summary>Hint 1: where to start</summary>
#
# Use <code>rearrange</code>. Write down the axes of the input, left of the arrow, with one of them split by
# brackets.
#
# </details>
# <details><summary>Hint 2: the other side</summary>
#
# Right of the arrow stand four names, in the order of "Returns". You saw the split of one sentence above;
# here <code>batch</code> stands in front, and one more axis moves.
#
# </details>
# <details><summary>I see "Could not infer sizes"</summary>
#
# einops knows the product of the two sizes in the brackets, not the sizes. Tell it the number of heads, as
# a last argument with a name.
#
# </details>

# %% [markdown] solution="00.1"
# **Why it works.** The brackets cut the features where a head ends, and the order of the names on the right moves
# `head` in front of `length`. No number changes, only its place. In plain torch it takes a view, which cuts, and a
# transpose, which moves; `reshape` alone cuts and moves nothing.

# %% solution="00.1"
def split_heads_in_torch(features, head):
    batch, length, d_model = features.shape
    return features.view(batch, length, head, d_model // head).transpose(1, 2)


check("00.1", split_heads_in_torch)

# %% [markdown]
# ### Exercise 00.2: sum the values with the weights
#
# *12 minutes, medium.* This is where equation (3) ends, and every attention in this series does it. Each head has an
# attention map of its own, and mixes its own part of the features: each query gets the sum of all values, each times
# its weight. The weights have been through the softmax. The values come as a model makes them, all heads side by side,
# and the result goes back in this form. So you need a split, a sum and a merge.

# %% exercise="00.2" points=1
def weighted_sum(weights, value):
    """Let each head mix its own part of the values with its own weights.

    Args:
        weights: "batch head query key"; every row, along key, sums to 1. As many queries as keys:
        the same tokens.
        value: "batch key d_model", where d_model = head * d_head, as in exercise 00.1.

    Returns:
        "batch query d_model": first the d_head features that head 0 has mixed, then those of head
        1, ...
    """
    ### BEGIN SOLUTION
    head = weights.shape[1]
    parts = rearrange(value, "batch key (head d_head) -> batch head key d_head", head=head)
    mixed = einsum(weights, parts, "batch head query key, batch head key d_head -> batch "
                                   "head query d_head")
    return rearrange(mixed, "batch head query d_head -> batch query (head d_head)")
    ### END SOLUTION

# %% check="00.2"
check("00.2", weighted_sum)

# %% [markdown]
# <details><summary>Hint 1: where to start</summary>
#
# Three lines. What must the values look like, so that head 2 of the weights meets part 2 of the features? You did that
# in exercise 00.1. How many heads there are, the weights know.
#
# </details>
# <details><summary>Hint 2: the sum</summary>
#
# Use <code>einsum</code>. You mixed the rows of one sentence with it above. Two axes are new here, and both tensors
# have them. Exactly one name of the inputs is missing in the result: it is summed.
#
# </details>
# <details><summary>Hint 3: back again</summary>
#
# The brackets that split on the left of an arrow merge on the right of one. Mind the order inside them.
#
# </details>
# <details><summary>I see "does not match the number of dimensions"</summary>
#
# Every axis of a tensor needs a name in the text. The weights have four axes, the values three until you split them.
#
# </details>
# <details><summary>I see another error about the pattern</summary>
#
# The order is: first tensor, second tensor, then one text. In the text, a comma stands between the two
# inputs and an arrow before the result.
#
# </details>

# %% [markdown] solution="00.2"
# **Why it works.** After the split both tensors say `head`, so head 2 of the weights meets part 2 of the features and
# nothing else; `key` is missing on the right, so it is summed. The merge undoes the split, in the same order. A second
# way takes the heads one by one and lays the results side by side.

# %% solution="00.2"
def weighted_sum_by_heads(weights, value):
    head = weights.shape[1]
    parts = value.chunk(head, dim=-1)  # one table for each head
    return torch.cat([weights[:, h] @ parts[h] for h in range(head)], dim=-1)


check("00.2", weighted_sum_by_heads)

# %% [markdown]
# ### Stretch 00.3: an input that hides the trap
#
# *15 minutes, medium.* Somebody tries the trap on one input, gets the right numbers, and keeps it for years. Build such
# an input: features for which the trap, `features.reshape(batch, head, length, d_head)`, gives exactly what
# `split_heads` must give. But no cheap one: every sentence holds at least two different numbers.
#
# The check tries several sizes, and judges these two properties and the shape. There are many right answers. When yours
# is right, ask: how many *different* numbers can one sentence hold and still hide the trap?
#
# Why the series asks this: each check here draws its numbers at random, all different. You find out what slips past
# a check that does not.

# %% exercise="00.3" points=1
def hide_the_trap(batch, length, head, d_head):
    """Features on which a reshape and the right split into heads agree.

    Args:
        batch, length, head, d_head: sizes, each at least 1. length * head is at least 2.

    Returns:
        "batch length d_model", where d_model = head * d_head. Every sentence holds two different
        numbers or more, all of them finite.
    """
    ### BEGIN SOLUTION
    features = torch.zeros(batch, length, head * d_head)
    features[:, 0, 0] = 1.0
    return features
    ### END SOLUTION

# %% check="00.3"
check("00.3", hide_the_trap)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Write the numbers 0, 1, 2, ... into one sentence, with <code>length</code> 3, <code>head</code> 2 and
# <code>d_head</code> 2, and print both results one above the other. Which numbers stand at the same place in both?
#
# </details>
# <details><summary>Hint 2: some numbers never move</summary>
#
# Those that stay may be what you like; what you write everywhere else can be as dull as you like. Does your input
# also work with a <code>d_head</code> of 1?
#
# </details>
# <details><summary>Hint 3: how many different numbers?</summary>
#
# A number that moves takes the place of another one, which takes the place of a third, until the circle closes. All
# of a circle must be equal. Two circles need not be.
#
# </details>

# %% [markdown] solution="00.3"
# **Why it works.** The trap and the split cut the same blocks of `d_head` numbers, and put them in different places.
# The first block and the last one stand at the same place in both, so they may hold anything; zeros change places
# unseen. The second way follows the circles: a block goes where another one stood, round and round, and all blocks of
# a circle are equal. It is the richest input there is: blocks of one circle must be equal, and nothing else must.

# %% solution="00.3"
def hide_the_trap_in_circles(batch, length, head, d_head):
    place = torch.arange(length * head)
    # what the split puts there
    came_from = rearrange(place, "(length head) -> (head length)", head=head)
    circle = place
    for _ in place:  # every block takes the smaller name of the two, until a circle has one name
        circle = torch.minimum(circle, circle[came_from])
    numbers = d_head * circle[:, None] + torch.arange(d_head)
    return numbers.reshape(1, length, head * d_head).repeat(batch, 1, 1)


check("00.3", hide_the_trap_in_circles)

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
print(axes["head"], "*", axes["d_head"], "=", axes["d_model"])

# %% [markdown]
# **What it cannot catch.** It compares sizes, nothing else. An attention map has as many queries as keys.
# Exchange the two, and the shape is the same, so the check lets it pass:

# %%
turned = rearrange(attention_map, "query key -> key query")
axes(turned, "query key", "turned")
print(turned.shape, "passes")

# %% [markdown]
# The values tell: the rows of an attention map sum to 1. The rows of `turned` do not. So chapters check
# shapes everywhere, and values where shapes are not enough.

# %%
print("map   ", reduce(attention_map, "query key -> query", "sum"))
print("turned", reduce(turned, "query key -> query", "sum"))

# %% [markdown]
# One name, one meaning, in all chapters: [the glossary](../docs/glossary.md) has every axis and, where there is one,
# the letter that the paper uses.

# %% [markdown]
# ## A taste: two S learn the same task
#
# A sentence has five different words in any order. Behind it stands a question: which word is at place 0, 1, 2, 3
# or 4? The answer is that word.

# %% fold=true
# @title Sentences, questions and answers, as numbers
vocabulary = "cat dog hat mat ran rat sat saw".split()
places = 5
questions = [f"{place}?" for place in range(places)]


def ask(sentence, asked):
    """Sentences with a question behind each, as numbers of tokens; and the answers."""
    tokens = torch.cat([sentence, len(vocabulary) + asked], dim=1)
    return tokens, sentence.gather(1, asked)[:, 0]  # the word at the place that is asked for


def draw(count):
    """Sentences of five different words: the vocabulary in a random order, cut off."""
    return torch.rand(count, len(vocabulary)).argsort(dim=1)[:, :places]


sentence = torch.tensor([[vocabulary.index(word) for word in "mat ran rat cat saw".split()]])
for place in range(places):
    tokens_of_one, answer = ask(sentence, torch.tensor([[place]]))
    names = [(vocabulary + questions)[token] for token in tokens_of_one[0]]
    print(" ".join(names), "->", vocabulary[answer])

# %% [markdown]
# The model is one layer of attention. Each token gets a row of 16 numbers, the layer mixes the rows, and from the
# mixture that stands at the question comes one number for each word of the vocabulary: the largest is the answer. A
# mask forbids everybody to look at the question, so its mixture is made of the five words alone.

# %% fold=true
# @title The model: rows for words and questions, one layer of attention, a number for each word
from torch import nn
from torch.nn import functional as F

from synth_lib.attention import Attention

mask = torch.tensor([[True] * places + [False]])  # one row for all sentences


def make_model(score):
    rows = nn.Embedding(len(vocabulary) + places, 16)  # a row for each word and each question
    attention = Attention(d_model=16, head=1, max_length=places + 1, score=score)
    to_words = nn.Linear(16, len(vocabulary))  # 16 numbers become one for each word
    return nn.ModuleList([rows, attention, to_words])


def run(model, tokens):
    """A number for each word of the vocabulary, and the weights of the question."""
    rows, attention, to_words = model
    Y, weights = attention(rows(tokens), mask.expand(len(tokens), -1))
    return to_words(Y[:, -1]), weights[:, 0, -1]

# %% [markdown]
# Two models, equal but for S: Dense, whose weights are made from the token that attends, here the question; and Random,
# whose weights are made from no token. What share of the questions will each answer rightly, after it has learned: 1.0,
# all? 0.5? Less? Write it down.

# %%
my_guess = {"Dense": None, "Random": None}  # the share of right answers, from 0 to 1

# %% [markdown]
# **Training**, in two sentences. The *loss* is a number that is small when the model gives the right words a high
# probability. A *step* draws a hundred new questions, computes the loss, and moves every number of the model a little
# in the direction in which the loss falls; the cell does it 200 times for each S, which takes seconds.

# %%
def train(score, seed=0, steps=200):
    _ = torch.manual_seed(seed)
    model = make_model(score)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        tokens, answers = ask(draw(100), torch.randint(places, (100, 1)))
        guesses, _ = run(model, tokens)
        loss = F.cross_entropy(guesses, answers)
        optimizer.zero_grad()  # forget the directions of the step before
        loss.backward()  # for each number: in which direction does the loss fall?
        optimizer.step()  # go there, about 0.01 far
    return model


models = {"Dense": train("dense"), "Random": train("random")}

# %% [markdown]
# Now the test: 400 new sentences, each with all five questions. What would one get without looking at the question? It
# gives one and the same word five times. The five answers are five different words, so at most one is right.

# %%
def share_right(model, count=400):
    five_times = draw(count).repeat_interleave(places, dim=0)
    tokens, answers = ask(five_times, torch.arange(places).repeat(count)[:, None])
    with torch.no_grad():  # a test: nothing is learned
        guesses, _ = run(model, tokens)
    return (guesses.argmax(dim=1) == answers).float().mean().item()


shares = {name: round(share_right(model), 1) for name, model in models.items()}
print("without the question, at most", 1 / places)
compare_guess(my_guess, shares)

# %% [markdown]
# One learned it completely. The other is where it would be without the question. And longer training? Look at the maps
# first: one row for each of the five questions, behind the same sentence.

# %%
tokens, _ = ask(sentence.repeat(places, 1), torch.arange(places)[:, None])
maps = torch.stack([run(model, tokens)[1] for model in models.values()])
keys = [vocabulary[token] for token in sentence[0]] + ["?"]
fig = plots.attention_map(maps, questions, keys=keys, titles=list(models))
plots.show(fig, "Two maps; a row is a question, a column a word of the sentence. Left, Dense: "
                "the row of '0?' is black at the first word, '1?' at the second, and so on. Right, "
                "Random: all five rows are equal.")

# %% [markdown]
# There is the reason. In Dense the row of weights is made from the question, and five questions have learned five rows.
# In Random it is made from nothing: the same row for all five. So the mixture is the same, and so is the answer. No
# training changes that, no other seed, no larger model of this kind: with `steps=600` or `seed=1` you get the same.

# %%
for name, model in models.items():
    with torch.no_grad():
        guesses, _ = run(model, tokens)
    print(f"{name:7} different answers to the five questions: "
          f"{len(guesses.argmax(dim=1).unique())}")

# %% [markdown]
# And yet the winner compares nothing. To find its place it reads one token, its own, and it does not know which words
# are there. For this task that is enough.
#
# Now you. Try `share_right(train("dot_product"))` in a cell of your own: the usual attention, which compares every
# pair. It reads all that Dense reads, and more. Guess first. Chapter 01 explains what you see.
#
# **Why** can one S do what another cannot? How much must S see, and what does that cost? That is the question of the
# series.

# %% [markdown]
# ## Does everything work?
#
# The next two cells, folded, look at each thing that the series needs: Python and packages that others wrote, the
# library of this series, the texts, and the *device*, the chip that computes. You need not read their code.

# %% fold=true
# @title Look at Python and at the packages
import importlib
import re
import sys

PYTHON = "3.11"
NEEDED = {"torch": "2.6", "numpy": "1.26", "einops": "0.8", "matplotlib": "3.9",
          "tqdm": "4.66", "tokenizers": "0.22", "IPython": "7.34"}


def older(installed, needed):
    """Compare the first two numbers: "2.13.0+cpu" is newer than "2.6"."""
    installed, needed = ([int(number) for number in re.findall(r"\d+", text)[:2]]
                         for text in (installed, needed))
    return installed < needed


def python_line(installed=sys.version):
    if older(installed, PYTHON):
        installed = installed.split()[0]
        return f"FIX   Python is {installed}, but must be {PYTHON} or newer: install a newer Python"
    return "ok    Python"


def package_line(name, needed):
    repair = f'run  pip install "{name}>={needed}"  where Jupyter runs, then restart the kernel'
    try:
        installed = importlib.import_module(name).__version__
    except Exception as error:
        return f"FIX   {name} cannot be imported ({error}): {repair}"
    return f"FIX   {name} is {installed}, too old: {repair}" if older(installed,
                                                                      needed) else f"ok    {name}"

# %% fold=true
# @title Look at the library, the texts and the device
def library_line():
    try:
        importlib.import_module("synth_lib.attention")
    except Exception as error:
        repair = "run the first code cell and do what it says"
        return f"FIX   synth_lib cannot be imported ({error}): {repair}"
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
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def device_line():
    try:
        torch = importlib.import_module("torch")
        total = torch.ones(6, 8, device=find_device()).sum().item()
    except Exception as error:
        return f"FIX   device: it does not compute ({error}): update its driver, or go on in Colab"
    if total == 48:
        return "ok    device"
    return f"FIX   device: it adds 48 ones to {total}: restart the machine"

# %% [markdown]
# Now ask them. Every line says `ok`, or `FIX` and what to do.

# %%
lines = [python_line()]
lines += [package_line(name, needed) for name, needed in NEEDED.items()]
lines += [library_line(), data_line(), device_line()]
print("\n".join(lines))
all_is_well = all(line.startswith("ok") for line in lines)
print("\nAll is well: go on." if all_is_well
      else "\nDo what the first FIX line says, then start afresh.")

# %% [markdown]
# What would a bad line look like? Ask for a package that does not exist:

# %%
print(package_line("no_such_package", needed="1.0"))

# %% [markdown]
# The last cell shows what your machine has. The device `cpu` is enough.

# %%
# Output varies: versions and device are those of the machine.
print("Python", sys.version.split()[0], "| torch", torch.__version__, "| device", find_device())

# %% [markdown]
# ## Three sentences to keep
#
# - Attention is `Y = softmax( S(X) + mask ) G(X)`: scores become weights, weights mix values.
# - A synthesizer is a choice of S: it says what the scores may look at, and so what can be learned.
# - A right shape is not a right result: name the axes, check them, then check values.
#
# **Next:** [chapter 01](01_dot_product.ipynb) builds the attention that everything else is compared with. Or go
# straight to [chapter 02](02_dense.ipynb), and build the winner.
