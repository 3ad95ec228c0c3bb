# %% [markdown]
# # 09 · Reading other people's code: which layer computes what it claims?
#
# **You get five layers that run, with the right shapes, and find out with a few runs which of them compute what they
# claim. Then you find the smallest set of questions that convicts every fault you have met.**
#
# - **Before you start:** chapters [02](02_dense.ipynb), [03](03_random.ipynb), [04](04_factorized_dense.ipynb),
#   [05](05_factorized_random.ipynb) and [06](06_mixtures.ipynb); one cell near the end uses the cache of
#   [07](07_whole_models.ipynb). To predict before you look, hide the stored outputs: *Edit*, *Clear Outputs of All
#   Cells* (Colab: *Clear all outputs*).
# - **Time:** about 140 minutes, 95 of them for the five exercises; the stretch exercise takes 10 more.
# - **Level:** medium.
# - **Of use elsewhere:** all of it. Whoever reviews a change, ports a model or uses code that a program wrote asks
#   the same: it runs, but is it what it says?
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*, [arXiv
# 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %% fold=true
# @title Imports
from itertools import combinations

import torch
from torch import nn
from torch.autograd.functional import jacobian
from torch.utils.flop_counter import FlopCounterMode

from synth_lib import plots
from synth_lib.attention import Attention, Cache
from synth_lib.checks import check, compare_guess
from synth_lib.checks.audit import QUESTIONS, Claim, audit
from synth_lib.checks.boxes import LETTERS, box
from synth_lib.shapes import Axes

# %% [markdown]
# ## The question
#
# The six words are "the dog saw a small bird". Somebody gives you a layer for them and says: this is Dense, equation
# (2). It takes `x` and gives `y` and a map; a model with it trains, its loss falls. **How do you know that it is
# Dense? And how little do you have to run to know?**
#
# Reading the code is one way. It is slow, and you read what you expect. The other way treats the code as a sealed box:
# you only look at what goes in and what comes out.
#
# ## A layer as a sealed box
#
# Each box makes the same claim, up to its S:
#
# $$Y = \mathrm{softmax}(S(X))\, G(X) \tag{3}$$
#
# with `d_model` 12, three heads, at most 8 tokens, a value and an output projection, and no biases. From a box you get
# three things: its `claim`, `run(x)`, which gives `y` and the map, and `numbers`, the tensors that it saves.

# %% fold=true
# @title Draw it
plots.show(
    plots.flow("sealed", "what?"),
    "X goes to two boxes, S(X) and the values G(X). S(X) gives scores, these plus the mask go "
    "through softmax, and the weights and the values make weighted means, which are Y. The box of "
    "S is filled: it is sealed, and what it reads is the question.",
)

# %% fold=true
# @title A helper: numbers from a seed
def draw(*shape, high, seed):
    """Random numbers from -high to high, in steps of 0.1: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    tenths = round(10 * high)
    return torch.randint(-tenths, tenths + 1, shape, generator=generator) / 10

# %%
words = "the dog saw a small bird".split()
x = draw(5, 6, 12, high=2, seed=38)  # five sentences of six tokens; the words name the first one
boxes = {letter: box(letter) for letter in "ABCDE"}
for letter, sealed in boxes.items():
    print(f"box {letter} claims to be {sealed.claim.score}")

# %% [markdown]
# The first check that comes to mind, and often the only one:

# %%
axes = Axes(batch=5, length=6, head=3, d_model=12)
maps, ys = {}, {}
for letter, sealed in boxes.items():
    y, weights = sealed.run(x)
    ys[letter] = axes(y.detach(), "batch length d_model", "y")
    maps[letter] = axes(weights.detach(), "batch head query key", "weights")

# %%
axes_pictures = Axes(head=5, length=6)  # five boxes side by side stand where heads do
pictures = axes_pictures(torch.stack([maps[letter][0, 0] for letter in boxes]),
                         "head query key", "pictures")
plots.show(
    plots.attention_map(pictures, words, titles=list(boxes)),
    "a map of each of the five boxes, head 0 of the first sentence, side by side. All have six "
    "rows and six columns; A has the darkest cells and the whitest.",
)

# %% [markdown]
# All five pass, and all five look like maps. At least one of them is wrong. So shapes prove nothing: that is the
# first finding of this chapter, and faults like these stand in public code, with outputs of the right shape.
#
# ## Predict, then ask
#
# You can say a good deal about a box *before* you run it. Table 1 of the paper, and equation (3), fix five facts for
# each S. Write them down; this form is the audit. (For `numbers` count S alone, with $R$ for each of the three heads,
# $a = 2$ and $b = 4$ for Factorized Dense, and the $d^2$ of the hidden layer, chapters 02 and 04, where there is one.)

# %%
form = {
    # A row of the map, the weights of one query, sums to "1" or to "anything".
    # The numbers of S: a number. When tokens change places, the map "stays", "rows move" or
    # "all moves".
    # A sample alone gives "the same" as in a batch, or "something else".
    # A row reads the tokens that it changes with: "nothing", "its own token" or "every token".
    "random": {
        "a row of the map sums to": None, "numbers of S": None,
        "when tokens change places, the map": None, "a sample alone": None,
        "a row of the map reads": None,
    },
    "dense": {
        "a row of the map sums to": None, "numbers of S": None,
        "when tokens change places, the map": None, "a sample alone": None,
        "a row of the map reads": None,
    },
    "factorized_dense": {
        "a row of the map sums to": None, "numbers of S": None,
        "when tokens change places, the map": None, "a sample alone": None,
        "a row of the map reads": None,
    },
}

# %% fold=true
# @title A helper: your form beside the claim and the box (it holds the answers)
claims = {
    "random": ("1", 3 * 8**2, "stays", "the same", "nothing"),
    "dense": ("1", 12**2 + 12 * 8, "rows move", "the same", "its own token"),
    "factorized_dense": ("1", 12**2 + 12 * (2 + 4), "rows move", "the same", "its own token"),
}


def compare(fact, outcome):
    """What you said, what the claim says and what came out; boxes for which all agree share a
    line."""
    place, rows = list(form["random"]).index(fact), {}
    for letter, came in outcome.items():
        score = boxes[letter].claim.score
        said = "-" if form[score][fact] is None else str(form[score][fact])
        rows.setdefault((said, claims[score][place], came), []).append(letter)
    print(f"{'':9}  {'you said':14}  {'the claim':14}  came out")
    for (said, claim, came), letters in rows.items():
        print(f"{' '.join(letters):9}  {said:14}  {claim!s:14}  {came}")

# %% [markdown]
# And a second list: which of the boxes are sound? You know nothing yet, so guess.

# %%
my_verdict = {"A": None, "B": None, "C": None, "D": None, "E": None}  # "sound" or "broken"

# %% [markdown]
# ## From cheap to dear
#
# A question is cheap if it takes one run and a line, dear if it takes many runs or thought. We ask the cheap ones
# first.
#
# ### Do the rows sum to 1?
#
# One run. A softmax along the keys leaves rows that sum to 1, without a negative number.

# %%
for letter, weights in maps.items():
    sums = weights.sum(dim=-1)
    print(f"{letter}: a row sums to {sums.min():5.2f} at least, {sums.max():4.2f} at most")
compare("a row of the map sums to", {
    letter: "1" if (weights.sum(dim=-1) - 1).abs().max() < 1e-4 else "anything"
    for letter, weights in maps.items()
})  # fmt: skip

# %% [markdown]
# Box A multiplies the values by raw numbers. There is no softmax. It trains all the same, for a table of numbers can
# learn something useful without one; but what comes out is no average of the values, and no equation of the paper.
#
# ### Exercise 09.1: is it a map?
#
# *10 minutes, easy.* Write the cheap question so that it also holds under a mask.

# %% exercise="09.1" points=1
def is_a_map(weights, allowed):
    """Whether these numbers can be what a softmax over the allowed keys leaves.

    weights: head query key. allowed: bool, query key, True where a query may attend; the same for
    every head.
    Returns True or False. Each row sums to 1, or holds zeros alone where its query may attend to
    nothing. No weight is negative, and where nothing is allowed, it is exactly 0. Up to 0.0001 of a
    sum are rounding, and an allowed weight down to -0.000001 is not negative. NaN is no weight.
    """
    ### BEGIN SOLUTION
    wanted = allowed.any(dim=-1).float()
    sums_right = ((weights.sum(dim=-1) - wanted).abs() <= 1e-4).all()
    zero_outside = (weights[:, ~allowed] == 0).all()
    return bool(sums_right and zero_outside and (weights >= -1e-6).all())
    ### END SOLUTION

# %% check="09.1"
check("09.1", is_a_map)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# What must a row sum to? That depends on its query: may it attend to anything?
#
# </details>
# <details><summary>Hint 2: the sums are right, and the check still refuses it</summary>
#
# A row can sum to 1 with a weight where none is allowed, or with 1.2 and -0.2. These are two more questions.
#
# </details>
# <details><summary>Hint 3: NaN</summary>
#
# Every comparison with NaN is False. So ask whether all is *right*, not whether something is wrong.
#
# </details>

# %% [markdown] solution="09.1"
# Three questions, each put so that NaN fails it: sums, zeros outside, signs. `weights[:, ~allowed]` takes the masked
# cells of all heads at once. The loop says the same row by row. Zeros outside make the third promise of an empty row
# true by themselves.

# %% solution="09.1"
def is_a_map_in_loops(weights, allowed):
    for head in weights.tolist():
        for row, may in zip(head, allowed.tolist(), strict=True):
            if not abs(sum(row) - any(may)) <= 1e-4:
                return False
            if not all(weight >= -1e-6 and (key or weight == 0)
                       for weight, key in zip(row, may, strict=True)):
                return False
    return True


check("09.1", is_a_map_in_loops)

# %% [markdown]
# ### How many numbers, and are they kept?
#
# No run at all. What a layer saves has sizes, and Table 1 has formulas. Take off the value and the output projection,
# $2 d^2$ numbers; the rest belongs to S.

# %%
def of_S(sealed):
    """How many numbers S trains."""
    return sum(tensor.numel() for tensor in sealed.numbers.values()
               if tensor.requires_grad) - 2 * 12**2


compare("numbers of S", {letter: of_S(sealed) for letter, sealed in boxes.items()})

# %% [markdown]
# Box B makes maps, but trains nothing for them. What does it save?

# %%
for letter in "AB":
    print(letter, "saves", [tuple(tensor.shape) for tensor in boxes[letter].numbers.values()])

# %% [markdown]
# Its $R$ is a plain tensor, neither a Parameter nor a buffer (chapter 03). So the optimizer never gets it,
# `.to("cuda")` leaves it behind, and a saved model comes back with another $R$. As long as the program runs,
# everything fits.
#
# ### Exercise 09.2: the count tells
#
# *15 minutes, medium.* Somebody prints one number, the parameters of a layer with one head. Which layer is it?

# %% exercise="09.2" points=2
def explain(count, d_model, max_length, rank):
    """What a layer with so many parameters is.

    The layer has one head, the value projection d_model to d_model, no output projection, and one
    of these S. Either all of its linear layers have a bias, or none has. A table is no linear
    layer.

        "random"               one table, max_length by max_length
        "factorized random"    two tables, max_length by rank
        "narrow dot product"   two linear layers d_model to rank
        "dense"                linear layers d_model to d_model to max_length
        "narrow dense"         linear layers d_model to max_length to max_length

    count: a whole number. Returns a tuple: the name, and whether there are biases, True or False;
    None if no such layer has exactly this count. Never do two of them have the same count.
    """
    ### BEGIN SOLUTION
    d, l, k = d_model, max_length, rank
    tables = {"random": [(l, l)], "factorized random": [(l, k), (l, k)]}
    linear = {
        "narrow dot product": [(d, k), (d, k)], "dense": [(d, d), (d, l)],
        "narrow dense": [(d, l), (l, l)],
    }
    for name in (*tables, *linear):
        for bias in (False, True):
            layers = [(d, d), *linear.get(name, [])]
            found = sum(rows * columns for rows, columns in layers + tables.get(name, []))
            if count == found + bias * sum(columns for _, columns in layers):
                return name, bias
    return None
    ### END SOLUTION

# %% check="09.2"
check("09.2", explain)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Five layers, with and without biases: ten formulas. Write them as a dict from the count to the answer.
#
# </details>
# <details><summary>Hint 2: the ones without biases are right</summary>
#
# A linear layer $m \to n$ has $n$ biases. The value projection is a linear layer, too, so Random can have biases.
#
# </details>
# <details><summary>Hint 3: near is not enough</summary>
#
# A count that is one off belongs to no layer of the list. Then the answer is None.
#
# </details>

# %% [markdown] solution="09.2"
# All ten counts are made, and the given one is looked up. What makes it sharp is that it must fit exactly: the formulas
# differ by a bias here and a hidden layer there. A dict does the same; a count that is not in it gives None.

# %% solution="09.2"
def explain_by_a_dict(count, d_model, max_length, rank):
    d, length = d_model, max_length
    known = {}
    for bias in (0, 1):
        values = d * d + bias * d
        known[length**2 + values] = ("random", bool(bias))
        known[2 * length * rank + values] = ("factorized random", bool(bias))
        known[2 * (d + bias) * rank + values] = ("narrow dot product", bool(bias))
        known[(d + bias) * (d + length) + values] = ("dense", bool(bias))
        known[(d + bias + length + bias) * length + values] = ("narrow dense", bool(bias))
    return known.get(count)


check("09.2", explain_by_a_dict)

# %% [markdown]
# ### Do the rows move with the tokens?
#
# Two runs. Let the tokens change places, $X \to PX$, with a matrix $P$ that reorders rows. What a row reads says what
# its map must do:
#
# | a row reads | then $S(PX)$ is | in words |
# |---|---|---|
# | every token | $P\,S(X)\,P^\top$ | rows and columns go with the tokens |
# | its own token | $P\,S(X)$ | rows go with the tokens, columns stay |
# | nothing | $S(X)$ | the map stays |
#
# The laws hold for the scores and for the map. They need no derivative, so they also work where a layer rounds or
# sorts.

# %%
order = torch.tensor([3, 0, 5, 1, 4, 2])
laws = {
    "stays": lambda weights: weights,
    "rows move": lambda weights: weights[..., order, :],
    "all moves": lambda weights: weights[..., order, :][..., order],
}
kept = {}
print("off by", *(f"{law:>9}" for law in laws))
for letter, sealed in boxes.items():
    after = sealed.run(x[:, order])[1]
    off = {law: (after - move(maps[letter])).abs().max().item() for law, move in laws.items()}
    kept[letter] = ", ".join(law for law, distance in off.items()
                             if distance < 1e-4) or "keeps no law"
    print(f"{letter:6}", *(f"{distance:9.2f}" for distance in off.values()))
compare("when tokens change places, the map", kept)

# %% [markdown]
# Box C claims Dense and keeps no law at all. No S of Table 1 does that, so something is put in the wrong place. Which
# token feeds which row? Two runs cannot say. Derivatives will.
#
# ### Exercise 09.3: who moves with whom
#
# *15 minutes, medium.* A model may choose another S for each head. Which laws does each head keep? A mixture may keep
# none, and a degenerate score more than one.

# %% exercise="09.3" points=2
def moves_like(score, x, order):
    """Which of the three laws hold in each head when the tokens of x change places.

    score: a function, length d_model -> head query key. x: length d_model. order: int64, length;
    the token at position i of the reordered sentence is token order[i] of x.
    Returns a list with one list for each head: those of "every token", "own token" and "nothing"
    whose law this head keeps, in any order; it may be empty. Differences of less than 0.0001 are
    rounding.
    """
    ### BEGIN SOLUTION
    before, after = score(x), score(x[order])
    expected = {
        "every token": before[:, order][:, :, order],
        "own token": before[:, order],
        "nothing": before,
    }
    off = {reads: (after - moved).abs().amax(dim=(1, 2)) for reads, moved in expected.items()}
    return [[reads for reads in expected if off[reads][head] < 1e-4] for head in range(len(before))]
    ### END SOLUTION

# %% check="09.3"
check("09.3", moves_like)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Score the sentence twice, as it is and reordered. For each law make from the *first* scores what the second should be.
#
# </details>
# <details><summary>Hint 2: which axis?</summary>
#
# The scores have a head axis in front, `x` has not. `before[:, order]` reorders queries, `before[:, :, order]` keys.
# And the largest difference has to be taken in each head, not over all.
#
# </details>
# <details><summary>Hint 3: nearly all answers are right</summary>
#
# If you move the second scores back instead, you need the order that undoes `order`: `order.argsort()`.
#
# </details>

# %% [markdown] solution="09.3"
# Indexing with `order` on the query axis is $P S$, on both axes $P S P^\top$. Each law is asked by itself, so a head
# that keeps two, such as one with equal rows, is seen, and the largest difference is taken in each head. The second way
# builds $P$ and multiplies.

# %% solution="09.3"
def moves_like_by_matrices(score, x, order):
    P, found = torch.eye(len(x))[order], []
    for before, after in zip(score(x), score(P @ x), strict=True):
        expected = {"every token": P @ before @ P.T, "own token": P @ before, "nothing": before}
        found.append([reads for reads, moved in expected.items()
                      if torch.allclose(after, moved, rtol=0, atol=1e-4)])
    return found


check("09.3", moves_like_by_matrices)

# %% [markdown]
# ### Alone, or in company?
#
# As many runs as there are samples. A sample gives the same alone and in a batch.

# %%
together = {}
for letter, sealed in boxes.items():
    alone = torch.cat([sealed.run(x[n : n + 1])[0].detach() for n in range(5)])
    together[letter] = "the same" if (alone - ys[letter]).abs().max() < 1e-4 else "something else"
compare("a sample alone", together)

# %% [markdown]
# Nothing found. A question that finds nothing is not wasted: somebody who tests with a batch of one asks it never,
# and one of the boxes below lives by that.
#
# ### Exercise 09.4: alone or together
#
# *10 minutes, easy.* If a layer fails this question, you want to know who disturbs whom.

# %% exercise="09.4" points=2
def leaks(layer, x):
    """Which samples of a batch look at which others.

    layer: a function, batch length d_model -> y, batch length d_model. x: batch length d_model.
    Returns a list of pairs (moved, changed) of sample numbers, each once, in any order: y of sample
    `moved` depends on some number of sample `changed`, another one. A dependence shows when all
    numbers of a sample change, each by another amount of about 1: then some number of y moves by
    more than 0.001. Less than 0.00001 is rounding.
    """
    ### BEGIN SOLUTION
    before, pairs = layer(x), []
    for changed in range(len(x)):
        other = x.clone()
        other[changed] += torch.linspace(0.5, 1.5,
                                         other[changed].numel()).view(other[changed].shape)
        distance = (layer(other) - before).abs().amax(dim=(1, 2))
        pairs += [(moved, changed) for moved in range(len(x)) if moved != changed
                  and distance[moved] > 1e-3]
    return sorted(pairs)
    ### END SOLUTION

# %% check="09.4"
check("09.4", leaks)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Change one sample, run the whole batch again, and see whose y has moved. Then the next sample.
#
# </details>
# <details><summary>Hint 2: a pair is missing</summary>
#
# If all numbers grow alike, a layer that reads differences does not notice. `torch.linspace` gives numbers that differ.
#
# </details>
# <details><summary>Hint 3: there are too many pairs</summary>
#
# A sample may depend on itself: that is no leak. And do you begin each time from the x that you were given?
#
# </details>

# %% [markdown] solution="09.4"
# One sample changes at a time, so each pair has its own evidence. Running each sample alone finds *that* something
# leaks, but not from whom. Where the layer is smooth, derivatives find the same pairs: a number of y of one sample has
# a gradient at another. A leak through a rounding, or through a relu that is shut at this x, they miss.

# %% solution="09.4"
def leaks_by_derivatives(layer, x):
    found = jacobian(layer, x).abs().amax(dim=(1, 2, 4, 5)) > 1e-5  # who is moved, who is changed
    found.fill_diagonal_(False)
    return [tuple(pair) for pair in found.nonzero().tolist()]


check("09.4", leaks_by_derivatives)

# %% [markdown]
# ### What do derivatives see?
#
# The dear one: a derivative for each number. But it answers two questions at once, of tokens and of parameters.
#
# **Of tokens.** Row $i$ of the map: on which tokens does it depend? You know `depends_on` from chapter 02; here it is
# with heads. What should C show, if it were Dense?

# %%
def tokens_behind(run, sentence):
    """Which row of which head depends on which token: 1 or 0, head query length."""
    derivatives = jacobian(lambda tokens: run(tokens[None])[1][0], sentence)
    return (derivatives.abs().amax(dim=(2, 4)) > 0).float()


behind = {letter: tokens_behind(sealed.run, x[0]) for letter, sealed in boxes.items()}
reads = {0: "nothing", 1: "one token", 6: "every token"}
per_row = {letter: found.sum(dim=-1).unique().tolist() for letter, found in behind.items()}
own = {letter: bool((found == torch.eye(6)).all()) for letter, found in behind.items()}
compare("a row of the map reads", {
    letter: "its own token" if own[letter] else " or ".join(reads[int(one)] for one in numbers)
    for letter, numbers in per_row.items()
})  # fmt: skip

# %%
fig = plots.attention_map(axes(behind["C"], "head query length", "behind"), words,
                          label="depends on it")
fig.axes[0].set_ylabel("row of the map")
fig.axes[1].set_xlabel("token that feeds it")
plots.show(
    fig,
    "which token feeds which row of box C, for its three heads. Each row is fed by one token, "
    "seldom by its own: the cells form a staircase, three rows to each token, that goes on from "
    "head to head.",
)

# %% [markdown]
# A staircase: the rows of token 0 fill three rows of head 0, then those of token 1 follow, and so on. The scores were
# made as (query, head, key) and *reshaped* to (head, query, key), where `query` and `head` should have changed places.
# Under a causal mask this is worse than a wrong map. Which tokens does $y_i$ depend on in the causal twin of box C?

# %%
twin = box("C", causal=True)
of_y = jacobian(lambda tokens: twin.run(tokens[None])[0][0], x[0]).abs().amax(dim=(1, 3)) > 0
for i, word in enumerate(words):
    later = [words[n] for n in range(i + 1, 6) if of_y[i, n]]
    print(f"y of {word:5} depends on later tokens: {', '.join(later) or 'none'}")

# %% [markdown]
# The first word shows none, since its row has one allowed key, whose weight is 1 whatever the scores are; the last word
# has no later token. At two of the positions the next word is among them: there a language model with this layer reads
# the token that it is to predict. So two questions convict C: order, and derivatives. Padding would be a third. One is
# enough for the verdict; the derivative alone says *where* to look.
#
# **Of parameters.** Every number that a layer trains should have a gradient. How many have one?

# %%
def share_with_gradient(sealed):
    """For each trained tensor its size, and the share of its numbers that move y."""
    trained = [tensor for tensor in sealed.numbers.values() if tensor.requires_grad]
    # many tokens: a relu that is shut for one is open for another
    y = sealed.run(draw(64, 8, 12, high=2, seed=3))[0]
    gradients = torch.autograd.grad((y * draw(64, 8, 12, high=1, seed=4)).sum(), trained)
    return [(tuple(one.shape), f"{(one != 0).double().mean():.2f}") for one in gradients]


for letter, sealed in boxes.items():
    print(letter, *(f"{size} {share}" for size, share in share_with_gradient(sealed)), sep="   ")

# %% [markdown]
# Box E: of the 12 × 12 numbers of its first layer only one in twelve has a gradient, those of the diagonal. An index
# stands twice on one operand of an `einsum`, as in `"nf,ff->nf"`, and that takes the diagonal. The count is right, the
# rows read their own token, the rows move as they should. It is Dense with a crippled first layer, and no error.
#
# What remains is D. Which of your guesses do you change now? Write them between the braces, such as "B": "broken".

# %%
my_verdict |= {}

# %%
compare_guess(my_verdict, {letter: "broken" if LETTERS[letter] else "sound" for letter in "ABCDE"})

# %% [markdown]
# ## Four more boxes, and two more questions
#
# Four faults are left. G and I claim Factorized Random with `rank` 2, the largest rank that its scores can have, H
# claims Factorized Dense with 2 × 4, J claims Dense. H and I pass everything that we have asked, as a table
# below shows. Which questions are left? What a *map can hold*: the number of different weights in a row, of different
# rows, and the rank of the
# scores, as linear algebra has it.
#
# (The scores can be read off a map: $\log$ undoes the softmax, but for a number in each row, so we take the mean of
# each row off. The rank of $R_1 R_2^\top$ is still at most $k$.)

# %%
boxes |= {letter: box(letter) for letter in "GHIJ"}
whole = draw(5, 8, 12, high=2, seed=5)  # all 8 positions
for letter in "DGHIJ":
    weights = boxes[letter].run(whole)[1][0, 0].detach().double()
    scores = weights.log() - weights.log().mean(dim=-1, keepdim=True)
    different = max(len(row.mul(1e5).round().unique()) for row in weights)
    rows = len(weights.mul(1e5).round().unique(dim=0))
    rank = torch.linalg.matrix_rank(scores, rtol=1e-4).item()
    print(f"{letter} {boxes[letter].claim.score:17}: weights in a row {different}, "
          f"different rows {rows}, rank {rank}")

# %% [markdown]
# H has four different weights where eight are claimed: both short lists are tiled, so of the $2 \cdot 4$ products only
# the least common multiple of 2 and 4 appear. I has one row for all queries: both factors carry the key axis. (Such a
# map keeps *two* laws when tokens change places. Which?)
#
# And the other ranks? A row without its mean leaves 7 of 8 at most: that is D. J is Dense, whose hidden layer gives
# each head four numbers, so its rank is 4 at most.
#
# You could ask all of it by hand again, for G and J. The library does for any layer what you have done here:

# %%
def ask(sealed):
    """The library's audit of a box."""
    return audit(sealed.run, sealed.claim, sealed.numbers)


print(ask(boxes["J"]))

# %% [markdown]
# `audit(layer, claim)` takes anything that gives y and a map. It *runs* the layer and never looks inside. J's claim
# holds `bias=False`, as that of every box. J gives every sample of the batch the result of sample 0.
#
# ## The story of each box
#
# | box | what was written | why it looks right | how it survived |
# |---|---|---|---|
# | A | the values times $R$; a softmax is made and never used | the table learns | nobody sums a row |
# | B | $R$ is no `nn.Parameter` | the map is random, as claimed | nobody reloads it |
# | C | a reshape where two axes should change places | each row is one that Dense made | all sizes fit |
# | E | one letter twice in an `einsum` | the count is right | the layer learns with what is left |
# | G | $R_1$ and $R_2$ are projections of $x$ | the scores have rank $k$ | nobody counts |
# | H | both lists tiled; the paper says "tile" of both | $a \, b$ columns | nobody looks at the values |
# | I | one name for the first axis of both factors | broadcasting fills the map | nobody compares two rows |
# | J | `[0]` behind a step that once gave a tuple | y is as large as x | every test has a batch of one |
#
# > **Where they stood.** A, G and H are in one popular implementation; C is in the code of a benchmark that many papers
# > quote, and that shares its first author with the paper; E, B and I are in three more repositories. Where J stood is
# > not verified. `notebooks/ledger.yml` names files and commits. The boxes are written anew, from one sentence each.
# > Who finds such a line in somebody's code writes to the author: it is what you would want.
#
# ## The cheapest audit
#
# Ten questions, eight faults. Ask every question of every box, and look at the table. First your guess: how many of the
# ten questions do you need, so that each fault is found by at least one? And which questions can no other one replace?

# %%
# a number, and how many of them
my_guess = {"questions needed": None, "without a substitute": None}

# %%
broken = [letter for letter in LETTERS if LETTERS[letter]]
found = {letter: set(ask(boxes[letter]).fails) for letter in broken}
print(f"{'':9}", *broken)
for question in QUESTIONS:
    print(f"{question:9}", *("x" if question in found[letter] else "." for letter in broken))

# %% [markdown]
# Read a row: the faults that this question sees; the dots are those that it would never see. Read a column: the
# questions that convict a box. `shapes` convicts nobody. A column with a single x names a question that nothing
# replaces. Look at J: `batch` convicts it, and `learns` does too, but only by its half about *tokens*: y of the other
# samples depends on no token of theirs. Every number that J trains has a gradient. Now try all sets, the small ones
# first:

# %%
for size in range(1, len(QUESTIONS) + 1):
    sets = [set(chosen) for chosen in combinations(QUESTIONS, size)]
    enough = [chosen for chosen in sets if all(chosen & questions for questions in found.values())]
    if enough:
        break
needed = set.intersection(*enough)
print(f"{size} questions are enough, in {len(enough)} ways")
print("in all of them:", ", ".join(question for question in QUESTIONS if question in needed))
for pair in combinations(QUESTIONS, 2):
    if not needed & set(pair) and all(len(chosen & set(pair)) == 1 for chosen in enough):
        print("and one of these two:", " or ".join(pair))
compare_guess(my_guess, {"questions needed": size, "without a substitute": len(needed)})

# %% fold=true
# @title Guard: by hand and by the library, the same verdicts
assert "rows" in found["A"] and "count" in found["B"]
assert "moves" in found["C"] and "learns" in found["E"]
assert "products" in found["H"] and "rank" in found["I"] and not ask(boxes["D"]).fails

# %% [markdown]
# Four have no substitute. Besides them one that asks what is *read*, by order or by derivatives, and one that looks at
# the *numbers*. Derivatives do not find everything: of rows by tokens (`reads`) they see two of the eight, of y by
# parameters and tokens (`learns`) two others. And the cheapest question of all, whether the shapes fit, sees none.
#
# ## A listing that counts something else
#
# Chapter 06 reads the parameters in the listing of a popular implementation. The listing has one more column, "flops".
# (A *flop* is one operation on numbers.) The settings are `d_model` 1024, 32 tokens, a batch of 2.

# %%
printed = {
    "vanilla": 3_145_729, "dense": 1_082_370, "random": 1_048_577, "factorized random": 1_064_961,
    "factorized dense": 1_060_865, "random + vanilla": 3_145_729,
}  # fmt: skip
for name, number in printed.items():
    print(f"{name:>17}: {number:9,} = {number // 1024**2} * 1024^2 + {number % 1024**2:6,}")

# %% [markdown]
# Three things are odd. Three rows are one above a multiple of 1024², and a cost is seldom odd. Random and vanilla
# differ by two matrices of 1024 × 1024, and nothing with $l^2$ is in sight. And adding Random to vanilla costs nothing.
# Before you read on: what is counted? And what would be printed for more work?

# %%
# "more", "less" or "the same"
my_guess = {"a batch of 200 instead of 2": None, "256 tokens instead of 32": None}

# %% [markdown]
# Try the simplest thing: the sizes of all linear layers, added up, and 1 for each part that has none, a softmax or a
# relu.

# %%
sizes = {  # of the linear layers, as chapter 06 found them; and the parts without any
    "vanilla": ([(1024, 1024)] * 3, ["softmax"]),
    "dense": ([(1024, 32), (32, 32), (1024, 1024)], ["relu", "softmax"]),
    "random": ([(1024, 1024)], ["softmax"]),
    "factorized random": ([(1024, 8), (1024, 8), (1024, 1024)], ["softmax"]),
    "factorized dense": ([(1024, 4), (1024, 8), (1024, 1024)], ["softmax"]),
    "random + vanilla": ([(1024, 1024)] * 3, ["softmax"]),
}
for name, (linear, others) in sizes.items():
    fits = sum(rows * columns for rows, columns in linear) + len(others)
    assert fits == printed[name], name
    terms = [f"{rows}*{columns}" for rows, columns in linear] + ["1"] * len(others)
    print(f"{name:>17}: {fits:9,} = {' + '.join(terms)}")

# %% [markdown]
# Every row fits. No batch and no length is in it: what is printed are the *parameters* of the linear layers, without
# biases, under another name. $R$ belongs to no linear layer and costs nothing, and neither do the two products of
# `length` × `length`. What does a layer really multiply? We let torch count, once for vanilla and once for Random.

# %%
def multiply_adds(score, batch, length):
    """Multiply-adds of a layer with one head, without the output projection, which the listing has
    not."""
    with torch.device("meta"):  # sizes only, no numbers
        layer, tokens = Attention(1024, 1, 256, score), torch.empty(batch, length, 1024)
    with FlopCounterMode(display=False) as counter:
        layer(tokens)
    return counter.get_total_flops() // 2 - batch * length * 1024**2


for score, name in (("dot_product", "vanilla"), ("random", "random")):
    real = multiply_adds(score, batch=2, length=32)
    print(f"{name:>8}: printed {printed[name]:9,}, real {real:11,}, "
          f"{real / printed[name]:.0f} times as many")

# %% fold=true
# @title What you said of the batch and of the length
compare_guess(my_guess, {"a batch of 200 instead of 2": "the same", "256 tokens instead of "
                                                                    "32": "the same"})
assert multiply_adds("random", 200, 32) == 100 * multiply_adds("random", 2, 32)
assert multiply_adds("dot_product", 2, 256) > 8 * multiply_adds("dot_product", 2, 32)

# %% [markdown]
# 64 tokens go through each linear layer, so the real number is at least 64 times as large (a larger batch changes
# nothing in what is printed, and everything in what is computed). **A printed number is a formula waiting to be found;
# a number that does not change when the work doubles is not the work.**
#
# ## What the questions do not see
#
# A clean audit leaves room. No question asks how large the scores are, so a dot product without $1 / \sqrt{d_{head}}$
# passes. A head that averages the values of another passes, too. That heads are merged without a transpose shows only
# where S reads every token: there y has to move with the tokens, as the map does, and `moves` asks it. Padding is not
# asked, nor another number type, nor training against evaluation: a layer is asked in evaluation mode.
#
# ## Turn it on the library
#
# Who reads code also reads ours. The six scores of this library, and a layer that somebody else wrote: torch's own
# attention, wrapped so that it gives a map for each head.

# %%
_ = torch.manual_seed(0)
for score in ("dot_product", "dense", "random", "fixed_random", "factorized_dense",
              "factorized_random"):
    result = audit(Attention(12, 3, 8, score), Claim(score, d_model=12, head=3, max_length=8))
    print(f"{score:17}: {sum(one.status == 'holds' for one in result.answers)} hold, "
          f"{len(result.fails)} fail")

# %%
class OfTorch(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, average_attn_weights=False)


print(audit(OfTorch(), Claim("dot_product", d_model=12, head=3, max_length=8)))

# %% [markdown]
# Sound, all of it. The bias of its four projections is counted: a claim has biases unless it says `bias=False`. A
# wrapper of a few lines is what you write for a layer that gives something else, or in another order. A row says "not
# asked" where the claim promises nothing: a table may hold any rows.
#
# ### The sixth box is ours
#
# Box F is missing. It stood in this library. Chapter 06 hangs a hook on a part of S and replaces its scores by zeros,
# to see what the layer loses. A *hook* is a function that torch calls when a module is called. Now a layer has two ways
# to y, a plain one and a fast one for long inputs, and the fast one took the numbers of S without *calling* it:

# %%
class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.R = nn.Parameter(torch.randn(8, 8))

    def forward(self):
        return self.R


class BoxF(nn.Module):
    """Two ways to the same y: equal in every test of values, gradients and sizes."""

    def __init__(self):
        super().__init__()
        self.score, self.value = Table(), nn.Linear(12, 12, bias=False)

    def forward(self, x):
        length = x.shape[1]
        scores = self.score.R if length > 6 else self.score()  # fast, or plain
        return scores[:length, :length].softmax(dim=-1) @ self.value(x)


# %% [markdown]
# Replace the scores by zeros with a hook, and every row of the map is uniform: y has to move. Does it, with six tokens,
# and with seven?

# %%
my_guess = {6: None, 7: None}  # tokens: "y moves" or "y stays"

# %%
ours, long = BoxF(), draw(2, 8, 12, high=2, seed=6)
with torch.no_grad():
    for seed, parameter in enumerate(ours.parameters()):
        parameter.copy_(draw(*parameter.shape, high=1, seed=seed))
before = {length: ours(long[:, :length]) for length in (6, 7)}
ours.score.register_forward_hook(lambda module, inputs, scores: torch.zeros_like(scores))
by = {length: (ours(long[:, :length]) - y).abs().max().item() for length, y in before.items()}
for length, distance in by.items():
    print(f"{length} tokens: the hook moves y by {distance:.2f}")
compare_guess(my_guess, {length: "y moves" if distance else "y stays"
                         for length, distance in by.items()})

# %% [markdown]
# With seven tokens the hook is ignored, without a word, and "the layer loses nothing" is read off. Every number in
# every test was right. Nobody had asked: *does what hangs on S act, on every way through the layer?* The answer to a
# fault is a question.
#
# Here it is, asked of the library as it is now. A layer has three ways to y. Asked for its map, it goes the plain way.
# With `need_weights=False` it may take the fast one, on 256 tokens here. And a `Cache` keeps what was computed of the
# first tokens, here 255, so that the last one can come alone, as in a model that writes (chapter 07). On all three ways
# the y of the last token is the same, and the hook has to move it by the same amount.

# %%
layer = Attention(12, 3, 256, "dense + dot_product", causal=True).eval()
with torch.no_grad():
    for seed, parameter in enumerate(layer.parameters()):
        parameter.copy_(draw(*parameter.shape, high=0.5, seed=seed))
tokens = draw(1, 256, 12, high=2, seed=7)


def all_ways():
    """y of the last token: by the map, by the fast way, by a cache."""
    cache = Cache()
    with torch.no_grad():
        plain, fast = layer(tokens)[0], layer(tokens, need_weights=False)[0]
        cached = [layer(part, cache=cache, need_weights=False)[0]
                  for part in (tokens[:, :255], tokens[:, 255:])][1]
    return {"by the map": plain[0, -1], "fast": fast[0, -1], "with a cache": cached[0, -1]}


as_it_was = all_ways()
layer.score.parts[0].register_forward_hook(lambda module, inputs, scores: torch.zeros_like(scores))
for way, y_last in all_ways().items():
    print(f"{way:12}: the hook moves y by {(y_last - as_it_was[way]).abs().max():.2f}")

# %% [markdown]
# All three agree, and a test of the library holds it now.
#
# ### Exercise 09.5: the audit
#
# *45 minutes, hard.* Write the audit yourself. The check draws 40 boxes with other sizes and numbers. Half of them are
# sound. Of the others, eight have faults that you know, and twelve have faults that you have not met, some of them two;
# these questions find them all. A wrong accusation counts as much as a miss. You may use all that stands above, but not
# the library's `audit`. Give the first question that fails, in this order:
#
# | question | asked of | what holds |
# |---|---|---|
# | `"rows"` | all | rows of the map sum to 1, no weight is negative |
# | `"count"` | all | the trained numbers are as many as Table 1 says, and $2 d^2$ more |
# | `"batch"` | all | each of four samples or more gives the same y and map alone as among the others |
# | `"moves"` | all | every row of every head moves with the tokens as the claim says |
# | `"learns"` | all | every trained number has a gradient (the audit's half about tokens is not asked) |
# | `"products"` | factorized_dense | some row of the map has `max_length` different weights |
# | `"rank"` | factorized_random | in each head rows differ: where all are alike, the scores have rank 1 at most |

# %% exercise="09.5" points=3
def verdict(box):
    """The name of the first question that a box fails, or "sound".

    Only the name counts, not the order in which you ask. box: as in the lesson: box.run(x), for x
    with at most max_length tokens; box.numbers; box.claim with score (one of the library's six
    names), d_model, head, max_length, rank, a and b (a b = max_length, with a common divisor). No
    box has biases. box.claim.counts()[0]: how many numbers the layer as claimed trains, in all.
    """
    ### BEGIN SOLUTION
    claim = box.claim
    x, order = torch.randn(16, claim.max_length, claim.d_model), torch.randperm(claim.max_length)
    y, weights = box.run(x)
    y_alone, map_alone = map(torch.cat, zip(*(box.run(one[None]) for one in x), strict=True))
    moved = weights if "random" in claim.score else weights[:, :, order]
    moved = moved[..., order] if claim.score == "dot_product" else moved
    trained = [tensor for tensor in box.numbers.values() if tensor.requires_grad]
    gradients = torch.autograd.grad((y * torch.randn(y.shape)).sum(), trained, allow_unused=True)
    rows = weights.detach().mul(1e5).round().flatten(0, 2)
    different = max(len(row.unique()) for row in rows)
    apart = (weights - weights[:, :, :1]).abs().amax(dim=(0, 2, 3))  # in each head
    holds = {
        "rows": (weights.sum(dim=-1) - 1).abs().max() < 1e-3 and weights.min() >= 0,
        "count": sum(tensor.numel() for tensor in trained) == claim.counts()[0],
        "batch": (y_alone - y).abs().max() < 1e-3 and (map_alone - weights).abs().max() < 1e-4,
        "moves": (box.run(x[:, order])[1] - moved).abs().max() < 1e-4,
        "learns": all(gradient is not None and (gradient != 0).all() for gradient in gradients),
        "products": claim.score != "factorized_dense" or different == claim.max_length,
        "rank": claim.score != "factorized_random" or (apart > 1e-4).all(),
    }
    return next((question for question, right in holds.items() if not right), "sound")
    ### END SOLUTION

# %% check="09.5"
check("09.5", verdict)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# One helper for each question, that gives True or False; then a loop over the names. Try it on `box("A")` to `box("J")`
# first: you know what comes out.
#
# </details>
# <details><summary>Hint 2: a sound box is accused</summary>
#
# Is it rounding? Two runs of another size differ in the last digits. Is it a relu? With few tokens some of its numbers
# stay shut, and have no gradient; take more tokens, drawn at random.
#
# </details>
# <details><summary>Hint 3: a broken box is called sound</summary>
#
# Do you use a batch of more than one, all `max_length` positions, and an order without a pattern? The faults that you
# have not met are found by the same questions, if you ask them whole: every row of every head, both sides of a limit,
# each sample alone.
#
# </details>

# %% [markdown] solution="09.5"
# Each question is the one of the lesson, with sizes from the claim. What makes it sound is the input: many random
# tokens, so that every relu opens somewhere, the whole length, several samples; and limits between rounding and fault,
# which lie far apart. The second way stops at the first failure, and so asks the dear questions only of boxes that
# have passed the cheap ones. Note that the order has to be without a pattern: a layer that reads its neighbours keeps
# its law when all tokens turn, and a swap of two tokens tells nothing of the others.

# %% solution="09.5"
def verdict_from_cheap_to_dear(box):
    claim, x = box.claim, torch.randn(24, box.claim.max_length, box.claim.d_model)
    y, weights = box.run(x)
    if not torch.allclose(weights.sum(dim=-1), torch.ones(()), atol=1e-4) or (weights < 0).any():
        return "rows"
    trained = [tensor for tensor in box.numbers.values() if tensor.requires_grad]
    if sum(tensor.numel() for tensor in trained) != claim.counts()[0]:
        return "count"
    for n in range(len(x)):
        alone = box.run(x[n : n + 1])
        if (alone[0][0] - y[n]).abs().max() > 1e-3 or (alone[1][0] - weights[n]).abs().max() > 1e-4:
            return "batch"
    P = torch.eye(claim.max_length)[torch.randperm(claim.max_length)]
    law = {"dot_product": P @ weights @ P.T, "dense": P @ weights, "factorized_dense": P @ weights}
    if not torch.allclose(box.run(P @ x)[1], law.get(claim.score, weights), atol=1e-4):
        return "moves"
    for tensor in trained:
        (gradient,) = torch.autograd.grad(y.square().sum(), tensor, retain_graph=True,
                                          allow_unused=True)
        if gradient is None or (gradient == 0).any():
            return "learns"
    rows = weights.detach().mul(1e5).round()
    if claim.score == "factorized_dense":
        full = any(len(row.unique()) == len(row) for row in rows.flatten(0, 2))
        return "sound" if full else "products"
    alike = any(len(head.unique(dim=0)) == 1 for head in rows[0])
    return "rank" if claim.score == "factorized_random" and alike else "sound"


check("09.5", verdict_from_cheap_to_dear)

# %% [markdown]
# ### Stretch 09.6: pass, and be wrong
#
# *10 minutes, easy.* A clean audit is no proof. Show it: build a layer that claims Random, passes every question that
# the library's `audit` asks of it, and is not Random. Why the series asks: who has fooled a test knows which question
# it lacks.

# %% exercise="09.6" points=1
def impostor(d_model, head, max_length):
    """A layer that passes the audit of Random, and is not Random.

    Returns a module; module(x) gives y "batch length d_model" and a map "batch head query key". The
    library's audit(module, Claim("random", d_model, head, max_length, bias=False)) finds nothing.
    But y is not what (3) says: Random is linear in x, so y(u + v) - y(u) - y(v) + y(0) is 0, also
    with a constant added to y. Yours misses 0 by more than 0.01 somewhere (and by more than
    rounding) in evaluation mode, for u and v from torch.randn(50, max_length, d_model).
    """
    ### BEGIN SOLUTION
    class Bent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attention(d_model, head, max_length, "random", bias=False)

        def forward(self, x):
            y, weights = self.inner(x)
            return y + 0.5 * y.abs(), weights

    return Bent()
    ### END SOLUTION

# %% check="09.6"
check("09.6", impostor)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Begin with the library's own Random, wrapped in a module as torch's attention is above. It passes. What may you do to
# y, or to the values, that none of the ten questions looks at?
#
# </details>
# <details><summary>Hint 2: the audit finds something</summary>
#
# `print(audit(...))` says what. A new parameter changes the count, a mean over the batch shows in company, a relu may
# shut tokens out. The map must stay a map of Random.
#
# </details>

# %% [markdown] solution="09.6"
# All ten questions look at the map, at the numbers, or at *whether* y depends on something; none asks *how* y is made
# from map and values. So bend y itself. Or bend the values before they are averaged: the map is right, the numbers are
# right, and G is no longer what equation (3) says. The missing question is now easy to name: is y the map times values?

# %% solution="09.6"
def impostor_in_the_values(d_model, head, max_length):
    class Curved(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attention(d_model, head, max_length, "random", bias=False)

        def forward(self, x):
            return self.inner(x + 0.3 * x**3)

    return Curved()


check("09.6", impostor_in_the_values)

# %% [markdown]
# ## What would have convinced you?
#
# Take the layer that you wrote last, anywhere. Which of the ten questions has anybody asked of it? Write down the one
# that would have convinced you that it is right, and the fault that this question would never see. Then run it.
#
# ## Three sentences to keep
#
# 1. Right shapes and a falling loss are what all of these faults had; what a layer claims can be predicted before it
#    runs, and every prediction is a test.
# 2. Ask cheap questions first, and know which fault each never sees: six of ten were enough here, four had no
#    substitute, and derivatives did not find everything.
# 3. A clean audit is no proof, also of our own code: every fault that got through is a question nobody had asked.
#
# **Where it is going next.** You can now read an S that others wrote. Others left S alone and changed the mask:
# chapter 10 is about them, and about a leak that no look at a map finds.
