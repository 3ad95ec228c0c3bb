# %% [markdown]
# # 13 · Train on real text: which S learns Shakespeare?
#
# **You train eight small language models on Shakespeare, live, and find out how far a model gets whose attention
# never looks at the sentence.**
#
# - **Before you start:** chapters [00](00_start_here.ipynb), [02](02_dense.ipynb) and [03](03_random.ipynb). You know
#   what S, a score and an attention map are.
# - **Time:** about 60 minutes, 32 of them for the three exercises. On two CPU cores the training itself takes about a
#   minute; with a GPU the models are bigger.
# - **Level:** medium.
#
# The paper is Tay et al., *Synthesizer: Rethinking Self-Attention for Transformer Models*, [arXiv
# 2005.00743](https://arxiv.org/abs/2005.00743). Equation numbers are those of its version 1.

# %%
import math

import torch
from torch import nn

from synth_lib import plots
from synth_lib.checks import check
from synth_lib.data import evaluation_windows, shakespeare
from synth_lib.models import LanguageModel
from synth_lib.shapes import Axes
from synth_lib.train import Settings, choose_device, parameter_groups, schedule, train_language_model

# %% [markdown]
# ## The question
#
# A *language model* reads a text and says, at every position, how likely each next token is. Here a token is one
# character. These six are short enough to see:

# %%
tokenizer, splits = shakespeare("characters")
tokens = tokenizer.encode("to be, ")
print("reads:   ", [tokenizer.decode([token]) for token in tokens[:-1]])
print("predicts:", [tokenizer.decode([token]) for token in tokens[1:]])
print("tokens:  ", tokens[:-1].tolist(), "of", tokenizer.vocab)

# %% [markdown]
# To predict what follows `to be` it helps to look back at the characters before. *Where* to look is the attention
# map, and the map comes from S:
#
# $$Y = \mathrm{softmax}(S(X) + \mathrm{mask})\, G(X)$$
#
# The mask is causal: no position may look at a later one. An S that never looks at the text is a table of numbers,
# the same for every text. The paper writes it without $X$:
#
# $$Y = \mathrm{softmax}(R)\, G(X) \tag{4}$$
#
# $R$ has a row for each position that looks and a column for each position that is looked at; here every head has an
# $R$ of its own. It starts with random numbers. In *Random* they are trained like all parameters. In *Fixed Random*
# they are *frozen*: they stay as they were drawn. You compare four choices of S:
#
# | S | equation | the map of a position depends on | its map is |
# |---|---|---|---|
# | dot product ("vanilla") | $Q K^T / \sqrt{d_{\text{head}}}$ | every token up to it | learned |
# | Dense | (2): $W_2\,\mathrm{relu}(W_1 X_i + b_1) + b_2$ | its own token | learned |
# | Random | (4): $R$ | nothing, the same for every text | learned |
# | Fixed Random | (4): $R$, frozen | nothing, the same for every text | as it was drawn |
#
# **Predict before you go on.** Write down an order, best first. Then write down whether Random, the same map for
# every text, comes close to the dot product or stays close to Fixed Random.
#
# ## A loss to compare with
#
# The *loss* is the mean, over all predicted tokens, of $-\log$ of the probability that the model gave to the token
# that came. The logarithm is the natural one, so the unit is *nats per token*. Smaller is better.
#
# A number alone says little. So start with a model that knows nothing of the text before: the *unigram* model always
# predicts each character as often as it occurs in the training text, which holds plays and poems. Its loss is that on
# two other plays, *A Midsummer Night's Dream* and *The Tempest*.

# %%
train, valid = splits["train"], splits["valid"]
share = torch.bincount(train, minlength=tokenizer.vocab) / len(train)
unigram_loss = -share.log()[valid].mean().item()
guess_loss = math.log(tokenizer.vocab)
print(f"guessing among all {tokenizer.vocab}: {guess_loss:.2f} nats per token")
print(f"unigram model:       {unigram_loss:.2f} nats per token")

# %% [markdown]
# A model that uses its text should end below the second number.
#
# ### Exercise 13.1: the bigram loss
#
# *12 minutes, medium.* A *bigram* model looks back at one token: it counts, in the training text, how often token *b*
# comes right after token *a*. To give no pair the probability 0, add 1 to every count:
#
# $$p(b \mid a) = \frac{\text{count}(a, b) + 1}{\sum_{c} \left(\text{count}(a, c) + 1\right)}$$
#
# Return its loss on another text. The first token of that text is not predicted, because nothing stands before it.

# %% exercise="13.1" points=2
def bigram_loss(train, valid, vocab):
    """The loss of a bigram model on `valid`, a float in nats per token.

    train, valid: tokens, int64, each with the one axis length. vocab: the number of different tokens.
    """
    ### BEGIN SOLUTION
    counts = torch.ones(vocab, vocab, dtype=torch.float64)
    for before, after in zip(train[:-1].tolist(), train[1:].tolist(), strict=True):
        counts[before, after] += 1
    probabilities = counts / counts.sum(dim=1, keepdim=True)
    return -probabilities[valid[:-1], valid[1:]].log().mean().item()
    ### END SOLUTION

# %% check="13.1"
check("13.1", bigram_loss)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Make a table with a row for each token *a* and a column for each token *b*. The pairs of a text are its tokens
# without the last, beside its tokens without the first.
#
# </details>
# <details><summary>Hint 2: the check says the values are wrong</summary>
#
# Each row of your table of probabilities must sum to 1. Does it? And is the result the mean over the pairs of
# `valid`, not over the table?
#
# </details>
# <details><summary>Hint 3: I am stuck</summary>
#
# `table[rows, columns]` with two tensors of the same length reads one entry for each pair. It reads well, but do not
# count with it: `table[rows, columns] += 1` adds 1 only once where a pair comes several times. To *count*, use a loop,
# or give each pair a number: `torch.bincount(a * vocab + b, minlength=vocab**2)`. `.item()` turns a tensor with one
# number into a float.
#
# </details>
#
# When it is right, try `bigram_loss(splits["train"], splits["valid"], tokenizer.vocab)` in a cell of your own, and
# keep the number for the curves below. (The first text has 4.6 million characters; a plain loop takes a while.)

# %% [markdown]
# ## The settings
#
# Training is a sequence of *steps*. One step: take a *batch* of *windows* (pieces of the text, each of `max_length`
# tokens), compute the loss and its gradient, and let the *optimizer* move every parameter so that the loss falls. The
# *learning rate* says how far. At the start it rises from step to step; these steps are the *warm-up*, which has a
# section of its own below. The *seed* fixes the random start of the model and the order of the windows.
#
# Everything that decides the result stands in this one cell. With a CUDA GPU the same notebook takes a bigger model
# and reads longer texts.
# The order of the data comes from the seed alone, so the four S of one seed see the same windows of text in the same
# order.

# %%
scores = {"dot product": "dot_product", "Dense": "dense", "Random": "random", "Fixed Random": "fixed_random"}
seeds = [0, 1]
on_gpu = choose_device().type == "cuda"

if on_gpu:
    device = "cuda"
    sizes = {"d_model": 384, "head": 6, "layer": 6, "max_length": 256}
    training = {"steps": 1500, "batch": 64, "warmup": 100, "learning_rate": 1e-3, "evaluate_every": 100}
else:  # a model this small gains nothing from another accelerator
    device = "cpu"
    sizes = {"d_model": 64, "head": 4, "layer": 2, "max_length": 32}
    training = {"steps": 400, "batch": 32, "warmup": 40, "learning_rate": 3e-3, "evaluate_every": 40}

# %% [markdown]
# ## How many parameters?
#
# The model is a stack of *blocks*. A block adds to each token what the attention finds, then what a small network,
# the *mlp*, makes of it. Both read a normalised copy. A `norm` shifts and scales the numbers of each token to mean 0
# and standard deviation 1, then multiplies them by `d_model` learned numbers:
#
# - `x = x + attention(norm(x))`
# - `x = x + mlp(norm(x))`, with a hidden layer of four times `d_model`
#
# Before the blocks stand two tables: a row for each token and a row for each position. Behind them comes one more
# `norm`. The output uses the table of tokens a second time, as a matrix from `d_model` to `vocab`: the embeddings are
# *tied*.
#
# Without biases a block has 2 d_model² for the value and output projections, 8 d_model² for the mlp, 2 d_model for
# its two norms, and the parameters of S. Count them on small sizes:

# %%
small = {"vocab": 11, "d_model": 12, "head": 3, "layer": 2, "max_length": 8}
d_model, head, length = small["d_model"], small["head"], small["max_length"]

# Parameters of S in one layer, from Table 1 of the paper; the random map is one for each head.
of_s = {
    "dot product": 2 * d_model**2,
    "Dense": d_model**2 + d_model * length,
    "Random": head * length**2,
    "Fixed Random": 0,
}
for name, expected in of_s.items():
    model = LanguageModel(**small, score=scores[name], bias=False)
    counted = sum(parameter.numel() for parameter in model.blocks[0].attention.score.parameters())
    print(f"{name:>12}: {counted:3} of {sum(p.numel() for p in model.parameters())}", counted == expected)

# %% [markdown]
# ### Exercise 13.2: count the parameters of a Random model
#
# *10 minutes, medium.* Return the number of all parameters of a model without biases whose S is Random, trained. Your
# formula must hold for any sizes. Asked is the formula; building a model and counting is a good way to test it.

# %% exercise="13.2" points=2
def count_parameters(vocab, d_model, head, layer, max_length):
    """The number of parameters of LanguageModel(..., score="random", bias=False), a whole number."""
    ### BEGIN SOLUTION
    attention = 2 * d_model**2 + head * max_length**2
    mlp = d_model * 4 * d_model + 4 * d_model * d_model
    block = attention + mlp + 2 * d_model
    return (vocab + max_length) * d_model + layer * block + d_model
    ### END SOLUTION

# %% check="13.2"
check("13.2", count_parameters)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Go through the model from the input to the output and write one line for each part: two tables, the blocks, the last
# norm. What does the output add?
#
# </details>
# <details><summary>Hint 2: my number is a little too small or too large</summary>
#
# Build `LanguageModel(11, 12, 3, 2, 8, "random", bias=False)` and print `name` and `parameter.shape` for each of its
# `named_parameters()`. Which line of yours has no counterpart?
#
# </details>

# %% [markdown]
# ## R needs a learning rate of its own
#
# All models are trained with *Adam*. It divides the gradient of each number by the usual size of that same gradient.
# So a number moves by about the learning rate in each step, whether its gradients are tiny or huge:

# %%
for gradient in (0.0001, 1.0, 100.0):
    number = nn.Parameter(torch.zeros(1))
    adam = torch.optim.Adam([number], lr=0.003)
    for _ in range(100):
        number.grad = torch.tensor([gradient])
        adam.step()
    print(f"gradient {gradient:8}: after 100 steps of 0.003 the number has moved by {number.abs().item():.2f}")

# %% [markdown]
# A parameter of a linear layer is one of many that work together, so a small move of each is enough. An entry of $R$
# works alone: it *is* a score. How far must one score rise above the others, before its key gets half of the weight,
# or 90 %? At best the score rises by the learning rate in each step while the others fall by as much. The numbers here
# are those of the small model: 32 keys and a learning rate of 0.003.

# %%
keys = 32
for wanted in (0.5, 0.9):
    rise = math.log(wanted * (keys - 1) / (1 - wanted))
    score = torch.zeros(keys)
    score[0] = rise
    assert abs(score.softmax(dim=0)[0].item() - wanted) < 1e-5
    needed = [round(rise / (2 * rate)) for rate in (0.003, 0.03)]  # it rises, and the others fall
    print(f"weight {wanted} of {keys} keys: rise {rise:.1f}, at least {needed[0]} steps of 0.003, {needed[1]} of 0.03")
assert on_gpu or needed[0] > training["steps"]

# %% [markdown]
# With the learning rate that suits the rest of the small model, 0.003, such a map would need more steps than its whole
# training has. $R$ would stay near its start, close to a plain average, and you would blame Random for a setting.
#
# So the optimizer gets three *parameter groups*, and $R$ has 10 times the learning rate. We give it no *weight decay*
# either. Weight decay pulls numbers towards 0 in each step, and scores near 0 mean a uniform map. No run of this
# chapter shows how much that matters.

# %%
model = LanguageModel(**small, score="random")
names = {id(parameter): name for name, parameter in model.named_parameters()}
for group in parameter_groups(model, learning_rate=0.003, weight_decay=0.1, r_learning_rate_factor=10):
    of_block_0 = [names[id(p)].removeprefix("blocks.0.") for p in group["params"] if "blocks.0" in names[id(p)]]
    print(f"{group['name']}: learning rate {group['lr']:.3f}, weight decay {group['weight_decay']}")
    print("   ", ", ".join(of_block_0))

# %% [markdown]
# ## Warm-up, then a cosine
#
# The learning rate is not the same in every step. At the start the gradients say little, so it rises along a straight
# line; that is the *warm-up*. Then it falls along half a wave of a cosine to a tenth of its peak. In step $t = 0, 1,
# \dots, T - 1$ with $w$ steps of warm-up the peak is multiplied by
#
# $$\frac{t + 1}{w} \ \text{ for } t < w, \qquad
# 0.1 + 0.9 \cdot \frac{1 + \cos\left(\pi\, \frac{t - w}{T - 1 - w}\right)}{2} \ \text{ from } t = w \text{ on.}$$

# %% [markdown]
# ### Exercise 13.3: warm-up, then a cosine
#
# *10 minutes, easy.* Write the factors of all steps as a list, without the library's `schedule`. The formula stands
# above.

# %% exercise="13.3" points=1
def learning_rate_factors(warmup, steps):
    """The factor of each step 0 .. steps - 1, a list of floats; warmup < steps - 1."""
    ### BEGIN SOLUTION
    factors = [(step + 1) / warmup for step in range(warmup)]
    for step in range(warmup, steps):
        passed = (step - warmup) / (steps - 1 - warmup)
        factors.append(0.1 + 0.9 * (1 + math.cos(math.pi * passed)) / 2)
    return factors
    ### END SOLUTION

# %% check="13.3"
check("13.3", learning_rate_factors)

# %% [markdown]
# <details><summary>Hint 1: where do I start?</summary>
#
# Two loops, or one loop with an `if`. Try `warmup=4, steps=13` on paper: the factors of steps 3 and 4 are both 1.
#
# </details>
# <details><summary>Hint 2: the check says that a value is not right</summary>
#
# Look at the first factor, the two around the end of the warm-up, and the last. They should be 1 / warmup, 1, 1 and a
# tenth. Where the check speaks of "part 6", it means the factor of step 6.
#
# </details>

# %% [markdown]
# The library's `schedule` is this formula. Here it is over the whole training:

# %%
steps, warmup = training["steps"], training["warmup"]
factors = [schedule(step, warmup, steps) for step in range(steps)]
assert max(factors) == 1.0 and abs(factors[-1] - 0.1) < 1e-12
curve = [{"step": step, "loss": factor} for step, factor in enumerate(factors)]
fig = plots.loss_curves({"factor": [curve]})
fig.axes[0].set_ylabel("factor on the learning rate")
plots.show(
    fig, "the factor on the learning rate: a short straight rise to 1, then half a wave of a cosine down to a tenth."
)

# %% [markdown]
# ## Train all eight
#
# Four S, two seeds. This cell is the whole experiment. It runs for about a minute on a CPU.

# %%
models, records = {}, {}
for name, score in scores.items():
    for seed in seeds:
        settings = Settings(**training, seed=seed)
        models[name, seed], records[name, seed] = train_language_model(
            {"score": score, **sizes}, settings, tokenizer, splits, device=device, progress=False
        )
        print(f"{name}, seed {seed}: {records[name, seed]['status']}")

# %% [markdown]
# Every run has a *record*: what was trained, with which settings, seed, versions and device, the curve and the
# seconds. The curve is measured on 64 fixed windows of the two plays that are not trained on. This is a part of one
# record:

# %%
# Output varies: with a GPU the sizes and the settings are others.
for part in ("what", "settings", "status", "unit"):
    print(f"{part}: {records['Random', 0][part]}")

# %% [markdown]
# And these are the results:

# %%
# Output varies: the time differs between machines, and the last digits of a loss with the processor.
for (name, seed), record in records.items():
    print(
        f"{name:>12}, seed {seed}: loss {record['final_loss']:.3f}, "
        f"{record['parameters']:,} parameters, {record['seconds']:.0f} s on {record['device']}"
    )

# %% [markdown]
# ## The curves
#
# A line is the mean of the two seeds. The band around it runs from the lower to the higher one. With the small model
# the band is so narrow that it hides behind its line. The bigram model of exercise 13.1 is counted here as well, for a
# second level line. It is judged on the same 64 windows as the curves, so its loss differs a little from that on the
# whole text.

# %%
curves = {name: [records[name, seed]["curve"] for seed in seeds] for name in scores}
pairs = torch.bincount(train[:-1] * tokenizer.vocab + train[1:], minlength=tokenizer.vocab**2)
of_bigram = 1 + pairs.reshape(tokenizer.vocab, tokenizer.vocab)
of_bigram = (of_bigram / of_bigram.sum(dim=1, keepdim=True)).log()
inputs, targets = evaluation_windows(valid, sizes["max_length"], 64)
references = {"unigram": unigram_loss, "bigram": -of_bigram[inputs, targets].mean().item()}
print({name: round(loss, 2) for name, loss in references.items()})
plots.show(
    plots.loss_curves(curves, references=references),
    "the loss of the four models against the training step, with the unigram and the bigram model as level lines. All "
    "start near the loss of guessing and fall below the unigram line. In the end Random is the lowest and Fixed Random "
    "the highest of the four, a little below the bigram line.",
)

# %% [markdown]
# What the figure shows is also asserted. If a sentence does not hold on your machine, this cell names it and stops:
# then the text below does not hold there either.

# %%
final = {name: [records[name, seed]["final_loss"] for seed in seeds] for name in scores}
spread = {name: max(losses) - min(losses) for name, losses in final.items()}
gap = min(final["Fixed Random"]) - max(final["Random"])
worst = max(max(losses) for losses in final.values())
best_other = min(min(losses) for name, losses in final.items() if name != "Random")
claims = {
    "the two seeds of each S differ by less than 0.15": max(spread.values()) < 0.15,
    "every model is better than the unigram model by more than half a nat": worst < unigram_loss - 0.5,
    "the worse Random is better than the better Fixed Random by more than 0.1": gap > 0.1,
    "and by more than twice their spread over seeds": gap > 2 * max(spread["Random"], spread["Fixed Random"]),
    "Fixed Random is the worst of the four with both seeds": all(
        min(final["Fixed Random"]) > max(final[name]) for name in scores if name != "Fixed Random"
    ),
}
if on_gpu:  # the losses of the bigger model are not recorded yet
    behind = max(final["Random"]) - min(final["dot product"])
    claims["Random is not behind the dot product by more than 0.1"] = behind < 0.1
else:
    claims["Random is the best of the four with both seeds"] = max(final["Random"]) < best_other
    claims["Fixed Random ends below the bigram model"] = max(final["Fixed Random"]) < references["bigram"]
for sentence, holds in claims.items():
    print("holds:" if holds else "DOES NOT HOLD:", sentence)
broken = [sentence for sentence, holds in claims.items() if not holds]
assert not broken, f"does not hold here: {broken}"

# %% [markdown]
# The losses themselves are asserted too, on a CPU, within ranges that leave room for another processor:

# %%
ranges = {"dot product": (2.2, 2.6), "Dense": (2.2, 2.5), "Random": (2.1, 2.4), "Fixed Random": (2.35, 2.65)}
for name, (low, high) in ranges.items():
    inside = all(low < loss < high for loss in final[name])
    assert on_gpu or inside, f"{name}: its losses {final[name]} are not between {low} and {high}"

# %% [markdown]
# Compare with your prediction. Random's map never looks at the text, and it learns all the same: knowing *which
# places to look at* is worth a lot, whatever stands there. What Fixed Random lacks is not a view of the text, but a
# map that was learned.
#
# With the small model Random is even ahead of the two maps that do look. Before you believe that this is a law: $R$
# got a learning rate of its own. The factor 10 was chosen on these same two plays. The dot product and Dense got
# nothing of the kind.
#
# **A question.** A model that only knows the character before reaches the bigram loss. Where does Fixed Random end,
# compared with it, and what does that say?
#
# <details><summary>Answer</summary>
#
# With the small model it ends a little below the bigram line, as the last sentence of the list says. Its own character
# comes to each position past the attention, along the sum `x + ...`, so without a useful map a model can still
# learn what a bigram model knows. Fixed Random learns a little more, from a noisy average of the characters before.
# Random ends much further below: it chose the places that it adds up.
#
# </details>
#
# ## What they write
#
# Each model continues the same start. The next character is drawn from the model's probabilities, one after the
# other. A `temperature` below 1 makes the likely characters likelier still.

# %%
# Output varies: the last digits of a probability differ between machines, and one other draw changes all that follows.
start = tokenizer.encode("\nKING.\n")[None].to(device)
for name in scores:
    text = models[name, 0].generate(start, 160, temperature=0.8, generator=torch.Generator().manual_seed(0))
    print(f"--- {name}\n{tokenizer.decode(text[0]).strip()}\n")

# %% [markdown]
# No model of this size writes English after so few steps. Look for smaller things: do names stand in capitals on
# lines of their own, do words have the usual lengths, which pairs of letters never occur?
#
# ## The maps they learned
#
# Here is the first layer of seed 0, one head of each model, for a piece of the valid text. A row is a position that
# looks back, dark is a large weight. `evaluation_windows` cuts out five pieces and returns two tensors, what is read
# and what comes next; `[0][2]` is the third piece of what is read. `.eval()` tells a model that it is used and not
# trained, so dropout is off.

# %%
length = 24
text = evaluation_windows(valid, length, 5)[0][2]
shown = [tokenizer.decode([token]) for token in text]
axes = Axes(batch=1, length=24)
maps = {}
for name in scores:
    of_layers = models[name, 0].eval().attention_maps(text[None].to(device))
    first_layer = axes(of_layers[0].detach().cpu(), "batch head query key", name)
    maps[name] = first_layer[0]

# %%
for name, what in {
    "dot product": "the dot product. The rows differ from each other; none looks at a later position",
    "Dense": "Dense. Rows of the same character have related patterns, since each row is made from its own character",
    "Random": "trained Random. Dark cells lie close to the diagonal: every position looks at its near past",
    "Fixed Random": "Fixed Random. Each row is a noisy average of all positions up to its own, without a preference",
}.items():
    plots.show(plots.attention_map(maps[name][0], shown), f"one head of {what}.")

# %% [markdown]
# One head is a sample, so measure all of them. How much weight falls on the last four positions, the own one
# included? A uniform map over the past would give 4 / (i + 1) in row i.

# %%
rows = range(8, length)


def near(weights):
    """The mean weight on the last four positions, over the heads and the rows from 8 on."""
    return sum(weights[:, i, i - 3 : i + 1].sum(dim=-1).mean().item() for i in rows) / len(rows)


uniform = sum(4 / (i + 1) for i in rows) / len(rows)
measured = {name: near(weights) for name, weights in maps.items()}
plots.show(
    plots.bars({"uniform": uniform, **measured}, label="weight on the last four positions"),
    "the mean weight on the last four positions in the first layer. Trained Random puts far more there than a "
    "uniform map; Fixed Random does not.",
)
assert measured["Random"] > uniform + 0.2
assert abs(measured["Fixed Random"] - uniform) < 0.05

# %% [markdown]
# Nobody told Random that near characters matter most. It is the same map for all texts, and it found that.
#
# ## The same from the command line
#
# One run of this chapter, with a progress bar, checkpoints (the state to go on from) and a record as a JSON file, is
# one command, typed in a terminal in the folder of the project:
#
# ```
# .venv/bin/python -m synth_lib.train --score random --d_model 64 --layer 2 --max_length 32 --steps 400 \
#     --warmup 40 --learning_rate 0.003 --folder runs/random-0
# ```
#
# `.venv/bin/python` is the Python that `make lab` has set up. With conda, write `python` instead. On Colab, write it
# in a cell: `!cd synthesizers && python -m synth_lib.train ...`.
#
# Ctrl-C stops it after the running step, and `--resume` goes on from there. On the CPU the losses are then the same
# as without the break. The option `--help` lists all of them.
#
# ## What this shows, and what it does not
#
# - **Two seeds** give a spread, not an error bar. They can show that a gap is larger than what two starts differ by.
#   They cannot rank two models whose losses overlap.
# - **A few hundred steps** show who learns fast. The dot product must first learn to compare tokens, and it is early
#   for that. Its place in this chapter says nothing about its place after long training: in the paper, all models
#   trained to the end, Random has a perplexity of 40.60 on the text corpus LM1B and the dot product 38.21 (one run
#   each). *Perplexity* is e to the power of the loss, so smaller is better.
# - **A small model on short windows.** Here a map has at most 32 places on a CPU. Fixed places may be a good choice
#   for characters, and a bad one for longer texts.
# - **Fixed Random depends on its scale.** Here $R$ is drawn with a standard deviation of 1 / √max_length, so its map
#   is close to uniform. The paper does not state its scale.
# - **One text, one tokenizer, settings chosen on the same two plays.** The test plays have not been touched.
#
# More seeds, longer training and the other synthesizers belong to the full evidence, which this chapter leaves for
# later.
#
# ## Three sentences to keep
#
# 1. A learned map that never looks at the text is far better than an unlearned one; on this short race of small
#    models, with a learning rate of its own, it is even ahead of maps that do look.
# 2. $R$ is a table of scores, so it needs larger steps than the other parameters.
# 3. A loss means something beside a baseline, a spread over seeds and a sentence on what was not tried.
#
# **Next:** add `"r_learning_rate_factor": 1` to `training`, run the chapter again, and see which of the asserted
# sentences breaks.
