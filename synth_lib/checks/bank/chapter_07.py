"""The exercises of chapter 07: what parts add, top-p, steps with a cache, pooled pairs, the length penalty, padding."""

from dataclasses import replace
from functools import partial
from math import exp, inf, log

import torch
from einops import einsum, rearrange
from torch.nn.functional import gelu

from synth_lib.checks.compare import kind_of, plain_copy
from synth_lib.checks.exercise import Exercise, mistakes, told_apart

EQUATIONS = "The equations"
ADD = "Why add?"
NORM = "Why a norm?"
BEFORE = "Before the part, not after the sum"
WHOLE_BLOCK = "The whole block, S as an argument"
WRITING = "Writing: from logits to a token"
TOP_P = "Top-p"
CACHE = "One token at a time: the cache"
LEFT = "Padding on the left moves every word"
STRETCH = "Stretch 07.6: a table that does not mind padding on the left"
RIGHT = "Padding on the right changes nothing"
CLASSIFIER = "A classifier"
PAIR = "Two sentences in one input"
BEAM = "Beam search"
PENALTY = "The length penalty"


# 07.1. Attention mixes tokens, the mlp bends, and the norms differ: every order gives something else. One trial has one
# block and one token of one number, one has many blocks and one text.


def _parts_inputs(draw):
    sizes = draw.sizes("batch length d_model", low=3)
    layer = draw.in_turn((2, 1, 6))
    sizes |= {2: {}, 1: {"length": 1, "d_model": 1}, 6: {"batch": 1}}[layer]
    batch, length, d_model = sizes.values()
    mixing, first, second = draw.normal(layer, length, length), *(draw.normal(layer, d_model, d_model) for _ in "12")

    def norm():
        factor, shift = draw.normal(layer, d_model), draw.normal(layer, d_model)

        def standard(n, x):
            centred = x - x.mean(dim=-1, keepdim=True)
            return centred / (centred.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt() * factor[n] + shift[n]

        return standard

    return {
        "x": draw.normal(batch, length, d_model),
        "layer": layer,
        "attention": lambda n, x: mixing[n].softmax(dim=-1) @ (x @ first[n]) / 2 + 0.5,
        "mlp": lambda n, x: (x @ second[n]).tanh() - 0.3,
        "norm_attention": norm(),
        "norm_mlp": norm(),
    }


def _of_blocks(answer):
    """As the exercise calls it, from answer(x, blocks) with a tuple of four functions for each block."""

    def called(x, layer, attention, mlp, norm_attention, norm_mlp):
        four = attention, mlp, norm_attention, norm_mlp
        return answer(x, [tuple(partial(function, n) for function in four) for n in range(layer)])

    return called


def _parts(x, blocks):
    added = []
    for attention, mlp, norm_attention, norm_mlp in blocks:
        added.append(attention(norm_attention(x)))
        x = x + added[-1]
        added.append(mlp(norm_mlp(x)))
        x = x + added[-1]
    return torch.stack(added)


def _parts_as_differences(x, blocks):
    line = [x]
    for attention, mlp, norm_attention, norm_mlp in blocks:
        line.append(line[-1] + attention(norm_attention(line[-1])))
        line.append(line[-1] + mlp(norm_mlp(line[-1])))
    return torch.stack(line[1:]) - torch.stack(line[:-1])


def _parts_with(step, finish=torch.stack):
    """Another walk through all parts: step(x, part, norm) -> (what is recorded, x after the part)."""

    def answer(x, blocks):
        recorded = []
        for attention, mlp, norm_attention, norm_mlp in blocks:
            for part, norm in ((attention, norm_attention), (mlp, norm_mlp)):
                one, x = step(x, part, norm)
                recorded.append(one)
        return finish(recorded)

    return answer


def _parts_of(change):
    """The right answer for other blocks: change(attention, mlp, norm_attention, norm_mlp) gives such four."""
    return lambda x, blocks: _parts(x, [change(*block) for block in blocks])


def _same(x):
    return x


def _parts_reading(which):
    """Each part reads one of: the tokens before all blocks, before its block."""

    def answer(x, blocks):
        start, added = x, []
        for attention, mlp, norm_attention, norm_mlp in blocks:
            read = start if which == "all" else x
            both = [attention(norm_attention(read)), mlp(norm_mlp(read))]
            x, added = x + sum(both), added + both
        return torch.stack(added)

    return answer


def _parts_without_sum(of_mlp):
    """One of the two sums of each block is forgotten, after the part is recorded."""

    def answer(x, blocks):
        added = []
        for attention, mlp, norm_attention, norm_mlp in blocks:
            added.append(attention(norm_attention(x)))
            after = x + added[-1]
            added.append(mlp(norm_mlp(after)))
            x = after if of_mlp else x + added[-1]
        return torch.stack(added)

    return answer


def _parts_mlp_reads_summand(x, blocks):
    added = []
    for attention, mlp, norm_attention, norm_mlp in blocks:
        added.append(attention(norm_attention(x)))
        added.append(mlp(norm_mlp(added[-1])))
        x = x + added[-2] + added[-1]
    return torch.stack(added)


def _parts_whole_block_for_mlp(x, blocks):
    by_block = _parts_by_block(x, blocks)
    return torch.stack([by_block[:, 0], by_block.sum(dim=1)], dim=1).flatten(0, 1)


def _parts_by_kind(x, blocks):
    return rearrange(_parts(x, blocks), "(layer two) ... -> (two layer) ...", two=2)


def _parts_by_block(x, blocks):
    return rearrange(_parts(x, blocks), "(layer two) ... -> layer two ...", two=2)


PARTS = Exercise(
    key="07.1",
    title="what each part adds",
    name="what_each_part_adds",
    minutes=12,
    level="medium",
    inputs=_parts_inputs,
    returns="(layer 2) batch length d_model",
    right=(_of_blocks(_parts), _of_blocks(_parts_as_differences)),
    wrong=tuple(replace(mistake, answer=_of_blocks(mistake.answer)) for mistake in mistakes({
        NORM: {
            "there is no norm at all.":
                _parts_of(lambda attention, mlp, norm_attention, norm_mlp: (attention, mlp, _same, _same)),
            "there is no norm at all, and these are the sums; the exercise asks for what is added.":
                _parts_with(lambda x, part, norm: (x + part(x), x + part(x))),
            "there is no norm at all, and nothing is added on the way: each part reads what the part before returns.":
                _parts_with(lambda x, part, norm: (part(x), part(x))),
            "the attentions read the tokens as they are, without their norm.":
                _parts_of(lambda attention, mlp, norm_attention, norm_mlp: (attention, mlp, _same, norm_mlp)),
            "the mlps read the tokens as they are, without their norm.":
                _parts_of(lambda attention, mlp, norm_attention, norm_mlp: (attention, mlp, norm_attention, _same)),
        },
        ADD: {
            "these are the tokens after each part, the sums; the exercise asks for what is added.":
                _parts_with(lambda x, part, norm: (x + part(norm(x)), x + part(norm(x)))),
            "these are the tokens before each part.": _parts_with(lambda x, part, norm: (x, x + part(norm(x)))),
            "nothing is added on the way: each part reads what the part before returns, and not the sum.":
                _parts_with(lambda x, part, norm: (part(norm(x)), part(norm(x)))),
            "x is added once more at each part.":
                _parts_with(lambda x, part, norm: (part(norm(x)), x + x + part(norm(x)))),
            "these are sums from the first part on; each part should stand by itself.":
                lambda x, blocks: _parts(x, blocks).cumsum(dim=0),
        },
        EQUATIONS: {
            "all parts read the x from before the first block.": _parts_reading("all"),
            "in each block both parts read the same tokens; the mlp should read those after the attention.":
                _parts_reading("block"),
            "what an attention has found is lost behind its mlp: the second sum begins again with the tokens from "
            "before the attention.": _parts_without_sum(of_mlp=False),
            "what an mlp adds is recorded, and not added: the next block reads the tokens from before it.":
                _parts_without_sum(of_mlp=True),
            "the mlp reads what the attention adds, alone; it should read the sum.": _parts_mlp_reads_summand,
            "the entry of the mlp holds what the attention has added as well.": _parts_whole_block_for_mlp,
            "the mlps come first in their blocks; the attentions do.":
                _parts_of(lambda attention, mlp, norm_attention, norm_mlp: (mlp, attention, norm_mlp, norm_attention)),
            "all blocks are the first one.": lambda x, blocks: _parts(x, blocks[:1] * len(blocks)),
            "the blocks are gone through from the last to the first.": lambda x, blocks: _parts(x, blocks[::-1]),
            "only the first block is there.": lambda x, blocks: _parts(x, blocks[:1]),
            "there is one entry a block, for both parts together.":
                lambda x, blocks: _parts_by_block(x, blocks).sum(dim=1),
            "the parts of each block have an axis of their own; one axis holds all parts.": _parts_by_block,
            "first come all attentions, then all mlps; the two of a block belong side by side.": _parts_by_kind,
            "in each block the entry of the mlp stands before that of the attention.":
                lambda x, blocks: _parts_by_block(x, blocks).flip(1).flatten(0, 1),
            "x itself is among the entries; no part has added it.":
                lambda x, blocks: torch.cat([x[None], _parts(x, blocks)]),
            "only the attentions are recorded.": lambda x, blocks: _parts(x, blocks)[::2],
            "this is the sum of all that is added, and not each part alone.":
                lambda x, blocks: _parts(x, blocks).sum(dim=0),
        },
        BEFORE: {
            "the norms stand after the sums (post-norm), so the line of plain sums is broken.":
                _parts_with(lambda x, part, norm: (part(x), norm(x + part(x)))),
            "each norm acts on what its part returns; it should act on what the part reads.":
                _parts_with(lambda x, part, norm: (norm(part(x)), x + norm(part(x)))),
            "each part adds to the normalised copy; the copy is for reading only.":
                _parts_with(lambda x, part, norm: (part(norm(x)), norm(x) + part(norm(x)))),
            "the difference is taken to the normalised copy, and not to the tokens.":
                _parts_with(lambda x, part, norm: (x + part(norm(x)) - norm(x), x + part(norm(x)))),
        },
        WHOLE_BLOCK: {
            "the two norms of each block are exchanged; each has numbers of its own.":
                _parts_of(lambda attention, mlp, norm_attention, norm_mlp: (attention, mlp, norm_mlp, norm_attention)),
            "one norm is used twice in each block; the mlp has its own.":
                _parts_of(
                    lambda attention, mlp, norm_attention, norm_mlp: (attention, mlp, norm_attention, norm_attention)
                ),
            "[0] takes the result of the first text alone: this attention returns no weights beside its result.":
                _parts_of(
                    lambda attention, mlp, norm_attention, norm_mlp: (
                        lambda x: attention(x)[:1].expand_as(x), mlp, norm_attention, norm_mlp
                    )
                ),
        },
    })),
)  # fmt: skip

# 07.2. Rows keep different numbers of words, no running sum lies within rounding of p, and no row is sorted. The trials
# have several rows, one row, one word, and many words that are nearly alike, with a p just below the first running sum
# and just above the last but two: there the logits are far from 0, which a softmax does not see. In the last p is
# nearly 1.


def _top_p_inputs(draw):
    sizes = draw.sizes("batch vocab", low=4, high=8)
    while True:
        logits, p = 1.5 * draw.normal(sizes["batch"], sizes["vocab"]), draw.integer(45, 85) / 100
        ordered = logits.softmax(dim=-1).sort(dim=-1, descending=True).values
        running = ordered.cumsum(dim=-1)
        number = (running < p).sum(dim=-1) + 1  # of the words that stay
        clear, most = (running - p).abs().min() > 0.005, number.max()
        if clear and 1 in number and most >= 3 and number[0] not in (1, most) and most < sizes["vocab"]:
            return {"logits": logits, "p": p}


def _one_row(draw):
    while True:
        logits, p = 1.5 * draw.normal(1, draw.integer(4, 8)), draw.integer(3, 30) / 100
        running = logits.softmax(dim=-1).sort(dim=-1, descending=True).values.cumsum(dim=-1)
        if (running - p).abs().min() > 0.005 and running[0, 0] < 0.45:  # p may be small
            return {"logits": logits, "p": p}


def _one_word(draw):
    return {"logits": draw.normal(draw.integer(2, 4), 1), "p": draw.integer(3, 97) / 100}


def _many_words(draw, rows, vocab, spread, far, edge):
    """Rows of `vocab` words around the logit `far`. edge(running sums of row 0) -> p"""
    while True:
        logits = far + spread * draw.normal(rows, vocab).argsort(dim=-1)  # no two of a row are equal
        running = logits.softmax(dim=-1).sort(dim=-1, descending=True).values.cumsum(dim=-1)
        p = edge(running[0]).item()
        if (running - p).abs().min() > 1e-4:
            return {"logits": logits, "p": p}


def _nearly_all(draw):
    """A p so near to 1 that three words are needed, where 0.9999 would be content with two."""
    logits = torch.tensor([0.9998, 0.00012, 0.00006, 0.00002]).log()
    return {"logits": torch.stack([logits.roll(1), logits.roll(draw.integer(2, 3))]), "p": 0.99995}


TOP_P_INPUTS = (
    lambda draw: _several_rows(draw),
    _one_row,
    _one_word,
    lambda draw: _many_words(draw, 3, 120, 0.002, -12_000.0, lambda running: running[0] - 3e-4),
    lambda draw: _many_words(draw, 9, 80, 0.03, 200.0, lambda running: running[-3] + 3e-4),
    _nearly_all,
)


def _renormalized(probabilities, allowed):
    rest = probabilities.masked_fill(~allowed, 0.0)
    return rest / rest.sum(dim=-1, keepdim=True)


def _in_order(logits):
    return logits.softmax(dim=-1).sort(dim=-1, descending=True)


def _top_p(logits, p):
    ordered, order = _in_order(logits)
    rest = _renormalized(ordered, ordered.cumsum(dim=-1) - ordered < p)
    return torch.zeros_like(rest).scatter(-1, order, rest)


def _top_p_smallest(logits, p):
    """Find the smallest probability that stays, and compare."""
    probabilities = logits.softmax(dim=-1)
    ordered = probabilities.sort(dim=-1, descending=True).values
    last = (ordered.cumsum(dim=-1) < p).sum(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < ordered.gather(-1, last), float("-inf")).softmax(dim=-1)


def _top_p_in_loops(logits, p):
    rows = []
    for row in logits.softmax(dim=-1).tolist():
        total, rest = 0.0, [0.0] * len(row)
        for position in sorted(range(len(row)), key=lambda position: -row[position]):
            if total < p:
                rest[position] = row[position]
                total += row[position]
        rows.append([number / total for number in rest])
    return torch.tensor(rows)


def _top_p_with(allow, finish=_renormalized):
    """Another rule: allow(ordered, p) says which of the sorted probabilities stay."""

    def answer(logits, p):
        ordered, order = _in_order(logits)
        allowed = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, allow(ordered, p))
        return finish(logits.softmax(dim=-1), allowed)

    return answer


def _reached_before(ordered, p):
    return ordered.cumsum(dim=-1) - ordered < p


def _one_more(ordered, p):
    shifted = _reached_before(ordered, p)
    return torch.cat([torch.ones_like(shifted[:, :1]), shifted[:, :-1]], dim=-1) | shifted


def _first_row_for_all(ordered, p):
    return _reached_before(ordered, p)[:1].expand_as(ordered)


def _only_the_first(ordered, p):
    return ordered == ordered[:, :1]


def _share_of_the_first(ordered, p):
    return ordered >= p * ordered[:, :1]


def _below_the_rest(ordered, p):
    return _reached_before(ordered, 1 - p)


def _below_but_one(ordered, p):
    allowed = ordered.cumsum(dim=-1) <= p
    allowed[:, 0] = True
    return allowed


def _mask_not_sorted_back(logits, p):
    ordered, _ = _in_order(logits)
    return _renormalized(logits.softmax(dim=-1), _reached_before(ordered, p))


def _ascending(logits, p):
    probabilities = logits.softmax(dim=-1)
    ordered, order = probabilities.sort(dim=-1)
    rest = _renormalized(ordered, _reached_before(ordered, p))
    return torch.zeros_like(rest).scatter(-1, order, rest)


def _gathered(logits, p):
    ordered, order = _in_order(logits)
    return _renormalized(ordered, _reached_before(ordered, p)).gather(-1, order)


def _last_row_for_all(logits, p):
    """What result[:, order] = ... comes to: each row is written into all rows, and the last one stays."""
    return _top_p(logits, p)[-1:].expand_as(logits).clone()


def _sorted_back(rest, order):
    return torch.zeros_like(rest).scatter(-1, order, rest)


def _softmax_along_batch(logits, p):
    ordered, order = logits.softmax(dim=0).sort(dim=-1, descending=True)
    return _sorted_back(_renormalized(ordered, _reached_before(ordered, p)), order)


def _sum_along_batch(logits, p):
    ordered, order = _in_order(logits)
    return _sorted_back(_renormalized(ordered, ordered.cumsum(dim=0) - ordered < p), order)


def _no_softmax(logits, p):
    ordered, order = logits.sort(dim=-1, descending=True)
    return _sorted_back(_renormalized(ordered, _reached_before(ordered, p)), order)


def _one_threshold(logits, p):
    ordered, _ = _in_order(logits)
    probabilities = logits.softmax(dim=-1)
    return _renormalized(probabilities, probabilities >= ordered[_reached_before(ordered, p)].min())


def _order_of_row_0(logits, p):
    ordered, order = _in_order(logits)
    return _sorted_back(_renormalized(ordered, _reached_before(ordered, p)), order[:1].expand_as(order))


def _divided_by(number):
    """The right words, their probabilities divided by number(probabilities, those that stay, p)."""

    def answer(logits, p):
        probabilities = logits.softmax(dim=-1)
        stay = probabilities.masked_fill(_top_p(logits, p) == 0, 0.0)
        return stay / number(probabilities, stay, p)

    return answer


_several_rows = told_apart(
    _top_p_inputs,
    [
        _top_p,
        _one_threshold,
        _ascending,
        _top_p_with(_below_but_one),
        _top_p_with(_only_the_first),
        _top_p_with(_share_of_the_first),
        _top_p_with(_below_the_rest),
        lambda logits, p: logits.softmax(dim=-1),
    ],
)


TOP_P_EXERCISE = Exercise(
    key="07.2",
    title="top-p",
    name="top_p_probabilities",
    minutes=20,
    level="medium",
    inputs=lambda draw: draw.in_turn(TOP_P_INPUTS)(draw),
    returns="batch vocab",
    trials=len(TOP_P_INPUTS),
    right=(_top_p, _top_p_smallest, _top_p_in_loops),
    wrong=mistakes({
        TOP_P: {
            "the word that crosses the line is left out; where the first word crosses it, nothing is left.":
                _top_p_with(lambda ordered, p: ordered.cumsum(dim=-1) <= p),
            "the word that crosses the line is left out, unless it is the only one.": _top_p_with(_below_but_one),
            "one word too many stays in each row.": _top_p_with(_one_more),
            "each probability alone is compared with p; it is their sum that has to reach p.":
                _top_p_with(lambda ordered, p: ordered >= p),
            "each probability alone is compared with 1 - p; it is a sum that has to reach p.":
                _top_p_with(lambda ordered, p: ordered >= 1 - p),
            "each word is compared with a share of the most likely one; top-p looks at the sum.":
                _top_p_with(_share_of_the_first),
            "the running sum goes through the words in the order of the vocabulary, not of their probability.":
                lambda logits, p: _renormalized(logits.softmax(dim=-1), _reached_before(logits.softmax(dim=-1), p)),
            "the sum begins with the least likely words.": _ascending,
            "the result is sorted; every word must keep its own column.":
                lambda logits, p: _renormalized(ordered := _in_order(logits).values, _reached_before(ordered, p)),
            "the mask is in sorted order and the probabilities are not, so it hits the wrong words.":
                _mask_not_sorted_back,
            "the way back is the way there: the sorted numbers are sorted a second time by the same order.": _gathered,
            "every row is that of the last text: result[:, order] writes into all rows.": _last_row_for_all,
            "every row keeps as many words as row 0; each row has its own number.": _top_p_with(_first_row_for_all),
            "the right words stay, but their probabilities no longer sum to 1.":
                _top_p_with(_reached_before, lambda probabilities, allowed: probabilities.masked_fill(~allowed, 0.0)),
            "the probabilities that stay go through a softmax a second time; they need dividing by their sum.":
                _top_p_with(
                    _reached_before,
                    lambda probabilities, allowed: probabilities.masked_fill(~allowed, float("-inf")).softmax(dim=-1),
                ),
            "the right words stay, but they are divided by the sum over all rows; each row has its own.":
                _divided_by(lambda probabilities, stay, p: stay.sum()),
            "the right words stay, but they are divided by the sum of the whole table.":
                _divided_by(lambda probabilities, stay, p: probabilities.sum()),
            "the right words stay, but they are divided by p; together they are more than p.":
                _divided_by(lambda probabilities, stay, p: p),
            "the softmax runs along the batch, not along the words.": _softmax_along_batch,
            "the running sum goes along the batch, not along the words.": _sum_along_batch,
            "the logits themselves are summed and divided; p is about probabilities.": _no_softmax,
            "one smallest probability is used for the whole batch; each row has its own.": _one_threshold,
            "every row is sorted back by the order of row 0.": _order_of_row_0,
            "the sum is compared with 1 - p.": _top_p_with(_below_the_rest),
            "no word is forbidden: this is the plain softmax.": lambda logits, p: logits.softmax(dim=-1),
            "the last softmax runs along the batch; each row should sum to 1.":
                lambda logits, p: torch.softmax(logits.masked_fill(_top_p(logits, p) == 0, float("-inf")), dim=0),
            "these are logits; the exercise asks for probabilities.":
                lambda logits, p: logits.masked_fill(_top_p(logits, p) == 0, float("-inf")),
        },
        WRITING: {
            "the forbidden logits become 0, which is a logit like any other; think of what a softmax makes of it.":
                lambda logits, p: torch.softmax(logits.masked_fill(_top_p(logits, p) == 0, 0.0), dim=-1),
            "only the most likely word stays: this is greedy.": _top_p_with(_only_the_first),
            "p divides the logits too, as if it were a temperature.": lambda logits, p: _top_p((logits / p), p),
        },
    }),
)  # fmt: skip


def _as_tuple(answer, **arguments):
    """A list of parts is as good as a tuple."""
    result = answer(**arguments)
    return tuple(result) if type(result) is list else result


# 07.3. R, W1 and G are square, so that a wrong way round fits; max_length is larger than the number of keys. One trial
# has a long past and hidden numbers far above 6, one no past, one a single new token in a single text and head, and one
# a single token in all: the first and the last step are those of a prompt and of a writer. With no past R lies far from
# 0, which a softmax does not see, and the only score that the first token may see lies below any number that could
# stand for minus infinity. The second sees two below -10,000, the third two above 10,000: whoever cuts there has a tie.


def _steps_inputs(draw):
    kind = draw.in_turn(("long past", "no past", "one new", "first token"))
    while True:
        sizes = draw.sizes("batch head d_head key query", low=2, high=6)
        sizes["key"] += 12 * (kind == "long past")
        max_length = sizes["key"] + sizes["query"] + draw.integer(2, 4)
        if max_length not in sizes.values() and sizes["query"] > 2:  # of two new tokens one sees the other, or all
            break
    if kind == "one new":
        sizes |= {"batch": 1, "query": 1, "head": 1, "d_model": sizes["d_head"]}
    if kind in ("no past", "first token"):
        sizes |= {"key": 0}
    if kind == "first token":
        sizes |= {"query": 1}
    batch, head, d_head, d_model = (sizes[name] for name in ("batch", "head", "d_head", "d_model"))
    R = draw.normal(head, max_length, max_length) - 150 * (kind == "no past")
    if kind == "no past":
        R[:, 0, 0] -= 1e10
        R[:, 1, :2] -= torch.tensor([2e4, 3e4])
        R[:, 2, :2] += torch.tensor([2e4, 3e4])
    return {
        "tokens": draw.normal(batch, sizes["query"], d_model) * (5 if kind == "long past" else 1),
        "past": draw.normal(batch, head, sizes["key"], d_head),
        "R": R,
        "W1": draw.normal(d_model, d_model) / d_model**0.5,
        "W2": draw.normal(head, d_head, max_length) / d_head**0.5,
        "G": draw.normal(d_model, d_model) / d_model**0.5,
    }


def _heads(features, head):
    return rearrange(features, "batch query (head d_head) -> batch head query d_head", head=head)


def _visible(t, n):
    """Which of t + n keys each of the n new tokens may look at, "query key"."""
    return torch.arange(t + n) <= torch.arange(t, t + n)[:, None]


def _softmax_where(scores, allowed):
    return scores.masked_fill(~allowed, -inf).softmax(dim=-1)


def _steps(tokens, past, R, W1, W2, G):
    t, n = past.shape[2], tokens.shape[1]
    value = torch.cat([past, _heads(tokens @ G, len(R))], dim=2)
    scores = R[:, t : t + n] + _heads((tokens @ W1).relu(), len(R)) @ W2
    return _softmax_where(scores[..., : t + n], _visible(t, n)) @ value, value


def _steps_in_loops(tokens, past, R, W1, W2, G):
    (batch, head, t, d_head), n = past.shape, tokens.shape[1]
    value = torch.zeros(batch, head, t + n, d_head)
    mixed = torch.zeros(batch, head, n, d_head)
    for b in range(batch):
        for h in range(head):
            own = slice(h * d_head, (h + 1) * d_head)
            value[b, h, :t] = past[b, h]
            for i in range(n):
                value[b, h, t + i] = (tokens[b, i] @ G)[own]
                hidden = torch.relu(tokens[b, i] @ W1)[own]
                scores = torch.stack([R[h, t + i, j] + hidden @ W2[h, :, j] for j in range(t + i + 1)])
                mixed[b, h, i] = scores.softmax(dim=0) @ value[b, h, : t + i + 1]
    return mixed, value


def _steps_one_by_one(tokens, past, R, W1, W2, G):
    """Without a mask: each step appends its value, and looks at all that is there."""
    mixed, value = [], past
    for i in range(tokens.shape[1]):
        token, t = tokens[:, i : i + 1], value.shape[2]
        value = torch.cat([value, _heads(token @ G, len(R))], dim=2)
        hidden = _heads((token @ W1).clamp(min=0), len(R))
        dense = einsum(hidden, W2, "batch head one d_head, head d_head key -> batch head one key")
        mixed.append((R[:, t : t + 1] + dense)[..., : t + 1].softmax(dim=-1) @ value)
    return torch.cat(mixed, dim=2), value


def _all_scores(tokens, R, W1, W2, rows, bend=torch.relu):
    """The rows of R and those of Dense, for all max_length positions."""
    return R[:, rows] + _heads(bend(tokens @ W1), len(R)) @ W2


def _rows(t, n):
    return torch.arange(t, t + n)


def _steps_with(rows=_rows, allowed=_visible, weights=None, newest=None, scores=None):
    """Another step: rows(t, n) of R, allowed(t, n) keys, weights(scores, allowed, t, n), newest values, or scores."""
    weights = weights or (lambda scores, allowed, t, n: _softmax_where(scores[..., : t + n], allowed))
    newest = newest or (lambda tokens, G, head: _heads(tokens @ G, head))
    scores = scores or _all_scores

    def answer(tokens, past, R, W1, W2, G):
        t, n = past.shape[2], tokens.shape[1]
        value = torch.cat([past, newest(tokens, G, len(R))], dim=2)
        return weights(scores(tokens, R, W1, W2, rows(t, n)), allowed(t, n), t, n) @ value, value

    return answer


def _new_only_themselves(t, n):
    """All of the past, and of the new tokens each itself alone."""
    return torch.cat([torch.ones(n, t, dtype=torch.bool), torch.eye(n, dtype=torch.bool)], dim=1)


def _new_only_each_other(t, n):
    return torch.cat([torch.zeros(n, t, dtype=torch.bool), torch.ones(n, n, dtype=torch.bool).tril()], dim=1)


def _all_see_all(t, n):
    return torch.ones(n, t + n, dtype=torch.bool)


def _zero_where(scores, allowed, t, n):
    return scores[..., : t + n].masked_fill(~allowed, 0.0).softmax(dim=-1)


def _cut_after(scores, allowed, t, n):
    return scores[..., : t + n].softmax(dim=-1) * allowed


def _lost_to_later(scores, allowed, t, n):
    return scores.softmax(dim=-1)[..., : t + n] * allowed


def _softmax_along(dim):
    return lambda scores, allowed, t, n: scores[..., : t + n].softmax(dim=dim) * allowed


def _not_appended(tokens, past, R, W1, W2, G):
    return _steps(tokens, past, R, W1, W2, G)[0], past


def _only_new_values(tokens, past, R, W1, W2, G):
    mixed, value = _steps(tokens, past, R, W1, W2, G)
    return mixed, value[:, :, past.shape[2] :]


def _in_front(tokens, past, R, W1, W2, G):
    t, n = past.shape[2], tokens.shape[1]
    value = torch.cat([_heads(tokens @ G, len(R)), past], dim=2)
    return _softmax_where(_all_scores(tokens, R, W1, W2, _rows(t, n))[..., : t + n], _visible(t, n)) @ value, value


def _split_the_other_way(tokens, past, R, W1, W2, G):
    swap = "d_model (d_head head) -> d_model (head d_head)"
    W1, G = (rearrange(matrix, swap, head=len(R)) for matrix in (W1, G))
    return _steps(tokens, past, R, W1, W2, G)


def _two_softmaxes(tokens, past, R, W1, W2, G):
    parts = (_steps(tokens, past, R, W1, 0 * W2, G), _steps(tokens, past, 0 * R, W1, W2, G))
    return (parts[0][0] + parts[1][0]) / 2, parts[0][1]


def _like_a_new_text(tokens, past, R, W1, W2, G):
    n = tokens.shape[1]
    mixed, value = _steps(tokens, past[:, :, :0], R, W1, W2, G)
    assert value.shape[2] == n
    return mixed, torch.cat([past, value], dim=2)


def _other(change):
    """The right answer for other parameters."""
    return lambda tokens, past, R, W1, W2, G: _steps(tokens, past, *change(R, W1, W2, G))


STEPS = Exercise(
    key="07.3",
    title="several tokens at once",
    name="next_steps",
    minutes=30,
    level="hard",
    inputs=_steps_inputs,
    trials=4,
    returns="mixed, value",
    run=_as_tuple,
    right=(_steps, _steps_in_loops, _steps_one_by_one),
    wrong=mistakes({
        CACHE: {
            "the new tokens see those that come after them; the layer is causal.": _steps_with(allowed=_all_see_all),
            "the mask begins at column 0, as if the new tokens began the text: they see too little of the past.":
                _steps_with(allowed=lambda t, n: torch.ones(n, t + n, dtype=torch.bool).tril()),
            "no new token looks at itself.":
                _steps_with(allowed=lambda t, n: torch.ones(n, t + n, dtype=torch.bool).tril(t - 1)),
            "each new token sees one that comes after it.":
                _steps_with(allowed=lambda t, n: torch.ones(n, t + n, dtype=torch.bool).tril(t + 1)),
            "each new token sees the past and itself, and not the new ones before it.":
                _steps_with(allowed=_new_only_themselves),
            "the new tokens see each other and nothing of the past.": _steps_with(allowed=_new_only_each_other),
            "the new tokens are read as a text of their own, from position 0 on; only the values know the past.":
                _like_a_new_text,
            "the mask is turned round: each token sees those that come after it.":
                _steps_with(allowed=lambda t, n: torch.ones(n, t + n, dtype=torch.bool).triu(t)),
            "hidden scores become 0, which is a score like any other.": _steps_with(weights=_zero_where),
            "hidden scores become a large negative number, not minus infinity; a score can be as low as that.":
                _steps_with(
                    weights=lambda scores, allowed, t, n: (
                        scores[..., : t + n].masked_fill(~allowed, -1e4).softmax(dim=-1)
                    )
                ),
            "the mask acts after the softmax, so the rows no longer sum to 1.": _steps_with(weights=_cut_after),
            "the values of the new tokens are never appended; every later step needs them.": _not_appended,
            "only the new values are returned; those of the past are needed again.": _only_new_values,
            "the new values stand in front of the others, so every value has moved.": _in_front,
            "the rows of R begin one too early.": _steps_with(rows=lambda t, n: _rows(t, n) - 1),
            "the rows of R begin one too late: positions are counted from 0.":
                _steps_with(rows=lambda t, n: _rows(t, n) + 1),
            "the last rows of R are used, which belong to the end of the longest text.":
                _steps_with(rows=lambda t, n: torch.arange(-n, 0)),
            "the first rows of R are used, as if the new tokens began the text.":
                _steps_with(rows=lambda t, n: torch.arange(n)),
            "all new tokens use the row of R of the first one.": _steps_with(rows=lambda t, n: torch.full((n,), t)),
            "all new tokens use the row of R of the last one.":
                _steps_with(rows=lambda t, n: torch.full((n,), t + n - 1)),
            "columns of R are used instead of rows: rows belong to the token that attends.":
                _other(lambda R, W1, W2, G: (R.transpose(1, 2), W1, W2, G)),
            "the softmax runs over all positions, and what went to positions that do not exist yet is lost.":
                _steps_with(weights=_lost_to_later),
            "the last columns are used; the tokens stand at the first positions.":
                _steps_with(weights=lambda scores, allowed, t, n: _softmax_where(scores[..., -t - n :], allowed)),
            "the columns begin at position 1: positions are counted from 0.":
                _steps_with(
                    weights=lambda scores, allowed, t, n: _softmax_where(scores[..., 1 : t + n + 1], allowed)
                ),
            "the softmax is missing: the values are multiplied by scores.":
                _steps_with(weights=lambda scores, allowed, t, n: scores[..., : t + n] * allowed),
            "the softmax runs along the heads, not along the keys.": _steps_with(weights=_softmax_along(1)),
            "the softmax runs along the batch, not along the keys.": _steps_with(weights=_softmax_along(0)),
            "the softmax runs along the queries, not along the keys.": _steps_with(weights=_softmax_along(2)),
            "there is no relu in the part of Dense.":
                _steps_with(scores=lambda *given: _all_scores(*given, bend=lambda x: x)),
            "the relu comes after W2; it stands between W1 and W2, as in chapter 02.":
                _steps_with(
                    scores=lambda tokens, R, W1, W2, rows: (
                        R[:, rows] + _all_scores(tokens, 0 * R, W1, W2, rows, bend=lambda x: x).relu()
                    )
                ),
            "a gelu is used, which is the bend of the mlp; that of Dense is a relu.":
                _steps_with(scores=lambda *given: _all_scores(*given, bend=gelu)),
            "each part has a softmax of its own, and the two maps are averaged; in chapter 06 parts are mixed inside "
            "one softmax.":
                _two_softmaxes,
            "W1 and G are exchanged: one makes scores, the other values. Both are square, so torch does not complain.":
                _other(lambda R, W1, W2, G: (R, G, W2, W1)),
            "a relu acts on the scores; scores may be negative.":
                _steps_with(scores=lambda *given: _all_scores(*given).relu()),
            "the scores are those of Dense alone; R is missing.": _other(lambda R, W1, W2, G: (0 * R, W1, W2, G)),
            "the scores are those of Random alone; F(X) is missing.": _other(lambda R, W1, W2, G: (R, W1, 0 * W2, G)),
            "each part counts half, as in a mixture with alphas; here the sum is plain.":
                _other(lambda R, W1, W2, G: (R / 2, W1, W2 / 2, G)),
            "the scores are divided by the square root of d_head; only the dot product is scaled.":
                _other(lambda R, W1, W2, G: (R / W2.shape[1] ** 0.5, W1, W2 / W2.shape[1] ** 0.5, G)),
            "W1 is used the wrong way round. It is square, so torch does not complain.":
                _other(lambda R, W1, W2, G: (R, W1.T, W2, G)),
            "G is used the wrong way round. It is square, so torch does not complain.":
                _other(lambda R, W1, W2, G: (R, W1, W2, G.T)),
            "the tokens themselves are appended; the cache holds values, made by G.":
                _steps_with(newest=lambda tokens, G, head: _heads(tokens, head)),
            "the value is split the other way: the numbers of one head lie side by side.":
                _steps_with(
                    newest=lambda tokens, G, head: rearrange(
                        tokens @ G, "batch query (d_head head) -> batch head query d_head", head=head
                    )
                ),
            "the heads are split the other way, in the values and in F(X): the numbers of one head lie side by side.":
                _split_the_other_way,
            "every head gets the R of head 0.": _other(lambda R, W1, W2, G: (R[:1].expand_as(R), W1, W2, G)),
            "the heads are joined at the end; each keeps its own rows.":
                lambda tokens, past, R, W1, W2, G: (
                    rearrange((both := _steps(tokens, past, R, W1, W2, G))[0], "b head i d_head -> b i (head d_head)"),
                    both[1],
                ),
        },
    }),
)  # fmt: skip


# 07.4. Fillers on the left, on the right and none; the two special tokens have other numbers in each trial, and
# sentences of one word are among them. One trial has one text of two words and one feature, one has long texts.


def _pairs_inputs(draw):
    padding, separator = draw.integer(5, 9), draw.integer(10, 14)
    times = draw.in_turn((1, 0, 4))
    if not times:
        words = [draw.integer(15, 40), draw.integer(15, 40)]
        return {
            "x": draw.normal(1, 3, 1), "tokens": torch.tensor([[words[0], separator, words[1]]]),
            "padding": padding, "separator": separator,
        }  # fmt: skip
    d_model, batch = draw.integer(2, 4), 5
    lengths = [(1, 4), (3, 2), (2, 5), (4, 1), (3, 3)]
    fillers = [(2, 0), (0, 2), (0, 0), (2, 0), (0, 1)]  # with the separator 8 tokens, or 29
    if draw.integer(0, 1):
        lengths, fillers = lengths[::-1], fillers[::-1]
    rows = []
    for numbers in zip(lengths, fillers, strict=True):
        (first, second), (before, behind) = [(times * one, times * other) for one, other in numbers]
        words = [draw.integer(0, 4) if draw.integer(0, 1) else draw.integer(15, 40) for _ in range(first + second)]
        rows.append([padding] * before + words[:first] + [separator] + words[first:] + [padding] * behind)
    x = draw.normal(batch, len(rows[0]), d_model)
    if times == 4:
        x[0, rows[0].index(separator) + 1] = 0.0  # a word, though its numbers are all 0
    return {
        "x": x, "tokens": torch.tensor(rows),
        "padding": padding, "separator": separator,
    }  # fmt: skip


def _masks(tokens, padding, separator):
    """Words, and for each token how many separators have been seen, itself included."""
    return (tokens != padding) & (tokens != separator), (tokens == separator).cumsum(dim=1)


def _mean(x, own):
    return (x * own[:, :, None]).sum(dim=1) / own.sum(dim=1, keepdim=True)


def _each(x, tokens, padding, separator):
    word, seen = _masks(tokens, padding, separator)
    return _mean(x, word & (seen == 0)), _mean(x, word & (seen == 1))


def _each_in_loops(x, tokens, padding, separator):
    first, second = [], []
    for b, row in enumerate(tokens.tolist()):
        middle = row.index(separator)
        first.append(torch.stack([x[b, i] for i in range(middle) if row[i] != padding]).mean(dim=0))
        second.append(torch.stack([x[b, i] for i in range(middle + 1, len(row)) if row[i] != padding]).mean(dim=0))
    return torch.stack(first), torch.stack(second)


def _each_by_position(x, tokens, padding, separator):
    middle = (tokens == separator).int().argmax(dim=1, keepdim=True)
    position = torch.arange(tokens.shape[1])
    filler = (tokens == padding).to(x.dtype)
    results = []
    for side in ((position < middle), (position > middle)):
        share = side * (1 - filler)
        results.append(einsum(share / share.sum(dim=1, keepdim=True), x, "b length, b length d -> b d"))
    return tuple(results)


def _each_with(first, second, mean=_mean):
    """Other masks: first(word, seen, filler, is_separator), second the same."""

    def answer(x, tokens, padding, separator):
        word, seen = _masks(tokens, padding, separator)
        given = word, seen, tokens == padding, tokens == separator
        return mean(x, first(*given)), mean(x, second(*given))

    return answer


def _before(word, seen, filler, is_separator):
    return word & (seen == 0)


def _behind(word, seen, filler, is_separator):
    return word & (seen == 1)


def _each_middle_of_text_0(x, tokens, padding, separator):
    middle = tokens[0].tolist().index(separator)
    word, _ = _masks(tokens, padding, separator)
    position = torch.arange(tokens.shape[1])
    return _mean(x, word & (position < middle)), _mean(x, word & (position > middle))


def _each_half(x, tokens, padding, separator):
    word, _ = _masks(tokens, padding, separator)
    position, half = torch.arange(tokens.shape[1]), tokens.shape[1] // 2
    return _mean(x, word & (position < half)), _mean(x, word & (position >= half))


PAIRS = Exercise(
    key="07.4",
    title="one row for each sentence of a pair",
    name="mean_of_each",
    minutes=15,
    level="medium",
    inputs=_pairs_inputs,
    returns="first, second",
    run=_as_tuple,
    right=(_each, _each_in_loops, _each_by_position),
    wrong=mistakes({
        PAIR: {
            "the separator counts as a word of the second sentence; it belongs to neither.":
                _each_with(_before, lambda word, seen, filler, is_separator: _behind(word, seen, 0, 0) | is_separator),
            "the separator counts as a word of the first sentence; it belongs to neither.":
                _each_with(lambda word, seen, filler, is_separator: _before(word, seen, 0, 0) | is_separator, _behind),
            "the separator counts as a word of both sentences; it belongs to neither.":
                _each_with(
                    lambda word, seen, filler, is_separator: _before(word, seen, 0, 0) | is_separator,
                    lambda word, seen, filler, is_separator: _behind(word, seen, 0, 0) | is_separator,
                ),
            "the two sentences are exchanged.": _each_with(_behind, _before),
            "both rows are the mean of the whole pair.":
                _each_with(lambda word, *rest: word, lambda word, *rest: word),
            "both rows are that of the first sentence.": _each_with(_before, _before),
            "the second row is the mean of the whole pair.": _each_with(_before, lambda word, *rest: word),
            "the separator of text 0 divides all texts; each has its own.": _each_middle_of_text_0,
            "the pair is cut in the middle, and not at its separator.": _each_half,
            "both rows stand in one tensor; a tuple of two is asked for.":
                lambda x, tokens, padding, separator: torch.stack(_each(x, tokens, padding, separator)),
        },
        LEFT: {
            "fillers in front count as words of the first sentence; those behind are left out.":
                _each_with(
                    lambda word, seen, filler, is_separator: (word | filler) & (seen == 0), _behind
                ),
            "the first sentence is taken to begin at position 0, and to be as long as it has words.":
                lambda x, tokens, padding, separator: (
                    _mean(
                        x,
                        torch.arange(tokens.shape[1])
                        < _before(*_masks(tokens, padding, separator), 0, 0).sum(dim=1, keepdim=True),
                    ),
                    _each(x, tokens, padding, separator)[1],
                ),
        },
        RIGHT: {
            "fillers behind count as words of the second sentence; those in front are left out.":
                _each_with(_before, lambda word, seen, filler, is_separator: (word | filler) & (seen == 1)),
            "the mask of the fillers is turned round: only fillers are averaged.":
                _each_with(
                    lambda word, seen, filler, is_separator: filler & (seen == 0),
                    lambda word, seen, filler, is_separator: filler & (seen == 1),
                ),
        },
        CLASSIFIER: {
            "the fillers are averaged in, on both sides.":
                _each_with(
                    lambda word, seen, filler, is_separator: (word | filler) & (seen == 0),
                    lambda word, seen, filler, is_separator: (word | filler) & (seen == 1),
                ),
            "the right rows are added up, and divided by the length of the row of tokens.":
                _each_with(_before, _behind, lambda x, own: (x * own[:, :, None]).mean(dim=1)),
            "these are sums; they are not divided by the number of words.":
                _each_with(_before, _behind, lambda x, own: (x * own[:, :, None]).sum(dim=1)),
            "each sum is divided by the words of both sentences; each sentence has its own number.":
                lambda x, tokens, padding, separator: tuple(
                    _mean(x, own) * own.sum(dim=1, keepdim=True) / word.sum(dim=1, keepdim=True)
                    for word, seen in [_masks(tokens, padding, separator)]
                    for own in (word & (seen == 0), word & (seen == 1))
                ),
            "each sum is divided by the words of the whole batch; each text has its own number.":
                _each_with(_before, _behind, lambda x, own: (x * own[:, :, None]).sum(dim=1) / own.sum()),
            "these are the largest numbers of each feature, and not the means.":
                _each_with(
                    _before, _behind, lambda x, own: x.masked_fill(~own[:, :, None], -inf).amax(dim=1)
                ),
            "every text gets the mean over the whole batch.":
                _each_with(_before, _behind, lambda x, own: x[own].mean(dim=0).expand(len(x), -1)),
        },
        "The question": {
            "the numbers 0 and 3 stand for the filler and the separator; here they are arguments.":
                lambda x, tokens, padding, separator: _each(x, tokens, 0, 3),
        },
    }),
)  # fmt: skip


# 07.5. The first to catch up with the winner is neither the longest nor the second best, and another is the last; one
# is shorter than the winner. One trial has two outputs, one of them the end token alone.


def _change_inputs(draw):
    def output(length, total):
        shares = [draw.integer(5, 30) for _ in range(length)]
        return [total * share / sum(shares) for share in shares]

    def catching_up(best, of_best, length, low, high):
        """The total of an output of this length that catches up with the best at an alpha between low and high."""
        return best * ((5 + length) / (5 + of_best)) ** ((draw.integer(low, high) + 0.37) / 100)

    kind = draw.in_turn(("several", "far", "near"))
    if kind == "far":
        best, length = -draw.integer(100, 120) / 100, draw.integer(2, 4)
        outputs = [output(1, best), output(length, catching_up(best, 1, length, 1100, 1300))]  # alpha has no limit
        return {"outputs": outputs[:: draw.in_turn((1, -1))]}
    best = -draw.integer(140, 160) / 100  # of 3 tokens; the others catch up with it at an alpha of these hundredths
    if kind == "near":  # an output of 2 tokens would do so at an alpha a little below 0, and another wins soon after
        four, nine = catching_up(best, 3, 4, 2, 3), catching_up(best, 3, 9, 5, 6)
        return {"outputs": [output(9, nine), output(3, best), output(2, 1.001 * best), output(4, four)]}
    limits = {4: (85, 95), 5: (37, 41), 6: (30, 33), 9: (110, 120), 12: (50, 58)}
    totals = {length: catching_up(best, 3, length, *both) for length, both in limits.items()}
    outputs = [output(length, total) for length, total in ({2: 1.4 * best, 3: best} | totals).items()]
    turn = draw.integer(3, 4)  # so that longer ones stand on both sides of the winner, and the next winner in front
    return {"outputs": outputs[turn:] + outputs[:turn]}


def _factor(tokens):
    return (5 + len(tokens)) / 6


def _change_with(
    factor=_factor, total=sum, first=max, choose=min, among=lambda length, of_winner: length > of_winner,
    alpha=lambda totals, factors: log(totals) / log(factors), finish=lambda winner, alpha, then: (winner, alpha, then),
):  # fmt: skip
    """Another way: what a total, a factor, the winner, a candidate and the alpha of two ratios are."""

    def answer(outputs):
        totals = [total(tokens) for tokens in outputs]
        winner = totals.index(first(totals))
        changes = {
            i: alpha(totals[i] / totals[winner], factor(outputs[i]) / factor(outputs[winner]))
            for i in range(len(outputs))
            if i != winner and among(len(outputs[i]), len(outputs[winner]))
        }
        then = choose(changes, key=changes.get)
        return finish(winner, changes[then], then)

    return answer


_change = _change_with()


def _change_by_halving(outputs):
    def best(alpha):
        return max(range(len(outputs)), key=lambda i: sum(outputs[i]) / _factor(outputs[i]) ** alpha)

    low, high = 0.0, 64.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if best(middle) == best(0.0) else (low, middle)
    return best(0.0), high, best(high)


def _change_in_lines(outputs):
    """The logarithms of the scores without their sign are straight lines in alpha; the lowest wins."""
    lines = [(log(-sum(tokens)), -log(_factor(tokens))) for tokens in outputs]
    height, slope = min(lines)
    crossings = [((height - h) / (s - slope), i) for i, (h, s) in enumerate(lines) if s < slope]
    alpha, then = min(crossings)
    return lines.index((height, slope)), alpha, then


def _change_on_a_grid(step):
    def answer(outputs):
        def best(alpha):
            return max(range(len(outputs)), key=lambda i: sum(outputs[i]) / _factor(outputs[i]) ** alpha)

        alpha = 0.0
        while best(alpha) == best(0.0) and alpha < 64:
            alpha += step
        return best(0.0), alpha, best(alpha)

    return answer


def _change_to_last(outputs):
    winner, alpha, _ = _change(outputs)
    return winner, alpha, max(range(len(outputs)), key=lambda i: len(outputs[i]))


def _change_of_second(outputs):
    """Where the second best of alpha = 0 would catch up."""
    totals = [sum(tokens) for tokens in outputs]
    winner = totals.index(max(totals))
    longer = [i for i in range(len(outputs)) if len(outputs[i]) > len(outputs[winner])]
    second = max(longer, key=totals.__getitem__)
    factors = _factor(outputs[second]) / _factor(outputs[winner])
    return winner, log(totals[second] / totals[winner]) / log(factors), second


def _as_result(answer, outputs):
    """alpha is compared to four digits after the point."""
    result = plain_copy(answer(outputs))
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        return result
    winner, alpha, then = result
    return winner, round(alpha, 4) if type(alpha) is float else alpha, then


FIRST_CHANGE = Exercise(
    key="07.5",
    title="where the order changes",
    name="first_change",
    minutes=20,
    level="medium",
    inputs=_change_inputs,
    returns="winner, alpha, next_winner",
    run=_as_result,
    right=(_change, _change_by_halving, _change_in_lines),
    wrong=mistakes({
        PENALTY: {
            "the factor is the length itself; the 5 and the 6 are missing.": _change_with(factor=len),
            "the end token is not counted in the length.":
                _change_with(factor=lambda tokens: (4 + len(tokens)) / 6),
            "the length is one too large; the start token is no part of the output.":
                _change_with(factor=lambda tokens: (6 + len(tokens)) / 6),
            "the 6 divides the length alone.": _change_with(factor=lambda tokens: 5 + len(tokens) / 6),
            "the ratio of the sums is divided by that of the factors; alpha is a power.":
                _change_with(alpha=lambda totals, factors: totals / factors),
            "alpha is solved for as if it multiplied the factor; it is a power.":
                _change_with(alpha=lambda totals, factors: (totals - 1) / (factors - 1)),
            "the two logarithms are exchanged in the fraction.":
                _change_with(alpha=lambda totals, factors: log(factors) / log(totals), choose=max),
            "the two logarithms are subtracted; think of what alpha does to the logarithm of a factor.":
                _change_with(alpha=lambda totals, factors: log(totals) - log(factors)),
            "the sign of alpha is turned.":
                _change_with(finish=lambda winner, alpha, then: (winner, -alpha, then)),
            "alpha is the power to which one sum must be raised, and the factors play no part.":
                _change_with(alpha=lambda totals, factors: log(totals)),
            "this is the mean over the tokens: it looks at the factor as at a length, and takes alpha to be 1.":
                lambda outputs: (
                    max(range(len(outputs)), key=lambda i: sum(outputs[i])),
                    1.0,
                    max(range(len(outputs)), key=lambda i: sum(outputs[i]) / len(outputs[i])),
                ),
            "0.6 is what the paper takes; the change comes where two scores are equal.":
                lambda outputs: (_change(outputs)[0], 0.6, _change(outputs)[2]),
            "alpha comes from a list of steps of 0.1.": _change_on_a_grid(0.1),
            "alpha comes from a list of steps of 0.01.": _change_on_a_grid(0.01),
            "alpha comes from a list of steps of 0.001.": _change_on_a_grid(0.001),
        },
        BEAM: {
            "this is the last output that catches up with the winner; another does so before it.":
                _change_with(choose=max),
            "the longest output is taken; another may catch up with the winner before it.":
                lambda outputs: _change_with(
                    among=lambda length, of_winner: length == max(map(len, outputs))
                )(outputs),
            "the alpha is that of the first change, but the longest output is named.": _change_to_last,
            "the second best output is taken; another may catch up with the winner before it.": _change_of_second,
            "the next longer output is taken; another may catch up with the winner before it.":
                lambda outputs: _change_with(
                    among=lambda length, of_winner: length == min(len(one) for one in outputs if len(one) > of_winner)
                )(outputs),
            "shorter outputs are among the candidates; they would need an alpha below 0.":
                _change_with(among=lambda length, of_winner: length != of_winner),
            "the output with the lowest sum is taken for the winner.":
                _change_with(first=min, among=lambda length, of_winner: True),
            "winner and next winner are exchanged.":
                _change_with(finish=lambda winner, alpha, then: (then, alpha, winner)),
            "positions are counted from 0.":
                _change_with(finish=lambda winner, alpha, then: (winner + 1, alpha, then + 1)),
            "probabilities are compared with factors; the formula divides their logarithms.":
                _change_with(
                    total=lambda tokens: exp(sum(tokens)), alpha=lambda totals, factors: -log(totals) / log(factors)
                ),
            "the first output of the list is taken for the winner.":
                _change_with(first=lambda totals: totals[0], among=lambda length, of_winner: True),
            "the winner is named twice; right after alpha another wins.":
                _change_with(finish=lambda winner, alpha, then: (winner, alpha, winner)),
        },
    }),
)  # fmt: skip


# 07.6. Judged by what the table does, for every number of words and of fillers. `run` turns it into what holds of it.


FACTS = (
    "a float32 tensor with max_length rows and columns", "finite numbers", "every row tells words apart",
    "padding on the left changes nothing", "no word gets more than 0.9", "each step away from a word takes off 5 %",
)  # fmt: skip


def _table_facts(answer, max_length):
    """{what is asked: "yes" or "no"}, and a clue to what cannot be told by that."""
    R = answer(max_length)
    facts = dict.fromkeys(FACTS, "no") | {"a clue": ""}
    if not isinstance(R, torch.Tensor):
        return facts | {"a clue": kind_of(R)}
    if tuple(R.shape) != (max_length, max_length) or R.dtype != torch.float32:
        return facts | {"a clue": f"{tuple(R.shape)}, {R.dtype}"}
    facts[FACTS[0]] = "yes"
    if not R.isfinite().all():
        return facts | {"a clue": "NaN" if R.isnan().any() else "infinite"}
    R, moved, most, least, falls = R.double(), 0.0, 0.0, 1.0, True
    for n in range(1, max_length + 1):
        maps = torch.stack([R[m : m + n, m : m + n].softmax(dim=-1) for m in range(max_length - n + 1)])
        moved = max(moved, (maps - maps[:1]).abs().max().item())
        if n > 1:
            most = max(most, maps.max().item())
            least = min(least, (maps.amax(dim=-1) - maps.amin(dim=-1)).min().item())
            falls = falls and _falls(maps)
    holds = True, least >= 0.05, moved <= 1e-4, most <= 0.9, falls
    facts |= {name: "yes" if one else "no" for name, one in zip(FACTS[1:], holds, strict=True)}
    return facts if all(holds) else facts | {"a clue": _clue(R)}


def _falls(maps):
    """Whether, on both sides of its own place, each word gets 5 % less than the next nearer one. maps: ... query key"""
    left, right = maps[..., :-1], maps[..., 1:]
    behind = torch.ones_like(left[0], dtype=torch.bool).triu()  # where the right one of two is the further one
    nearer, further = torch.where(behind, left, right), torch.where(behind, right, left)
    return bool((further <= (0.95 + 1e-4) * nearer).all())


def _clue(R):
    """What kind of wrong table it is: several kinds break the same property."""
    if len(R) < 2:
        return ""
    spread, flipped = R.amax(dim=1) - R.amin(dim=1), R.flip(0)
    if spread.max() < 1e-6:
        return "zeros" if R.abs().max() == 0 else "numbers for rows"
    if (R - R[:1]).abs().max() < 1e-6:
        return "first column" if R[0, 1:].amax() - R[0, 1:].amin() < 1e-6 else "one row"
    diagonals = [flipped.diagonal(k) for k in range(1 - len(R), len(R))]
    if all((numbers - numbers[0]).abs().max() < 1e-6 for numbers in diagonals):
        return "sum of positions"
    if all((R.diagonal(k) - R.diagonal()[:-1]).abs().max() < 1e-6 for k in (-1, 1)):
        return "neighbours"
    if (R - R.T).abs().max() < 1e-6:
        steps = R[0, 1:] - R[0, :-1]
        if not _same_on_diagonals(R) or len(R) < 3:
            return "symmetric"
        return "one number for others" if steps[1:].abs().max() < 1e-6 else "rises" if steps.min() > 0 else "distances"
    steps = R[1:] - R[:-1]
    if (steps - steps[:1]).abs().max() < 1e-6:
        return "product of positions"
    if _same_on_diagonals(R[:-1, :-1]):
        return "hidden" if R[0, 0] - R[0, 1:].max() > 50 else "offsets" if _same_on_diagonals(R) else "last row"
    return "divided" if _same_on_diagonals(R * torch.arange(1, len(R) + 1)[:, None]) else ""


def _same_on_diagonals(R):
    return bool((R[1:, 1:] - R[:-1, :-1]).abs().max() < 1e-6)


def _offsets(max_length):
    """key - query, in float32, "query key"."""
    position = torch.arange(max_length).float()
    return position - position[:, None]


def _drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _table_of_offsets(max_length):
    return -0.5 * _offsets(max_length).abs()


def _table_of_squares(max_length):
    return -0.2 * _offsets(max_length).abs() - 0.01 * _offsets(max_length) ** 2


def _table_of_two_sides(max_length):
    """A slope for each side, and for each row a number that the softmax does not see."""
    offsets = _offsets(max_length)
    return torch.where(offsets > 0, -0.7 * offsets, 0.3 * offsets) + 3 * _drawn(max_length, 1)


def _table_last_row_other(max_length):
    R = _table_of_offsets(max_length)
    R[-1] = R[-1].flip(0)
    return R


TABLE = Exercise(
    key="07.6",
    title="a table that does not mind padding on the left",
    name="table_for_padding",
    minutes=20,
    level="medium",
    inputs=lambda draw: {"max_length": draw.in_turn((7, 1, 40))},
    returns="the table's properties",
    run=_table_facts,
    right=(_table_of_offsets, _table_of_squares, _table_of_two_sides),
    wrong=mistakes({
        LEFT: {
            "with fillers in front the words get other rows and columns, and there stand other numbers.":
                lambda max_length: _drawn(max_length, max_length),
            "every row is the same and names positions: the words stand at others as soon as fillers stand in front.":
                lambda max_length: torch.sin(2.0 * torch.arange(max_length)).repeat(max_length, 1),
            "every row looks at position 0, where a filler stands now.":
                lambda max_length: 1.5 * torch.eye(max_length)[:1].repeat(max_length, 1),
            "the numbers depend on the sum of the two positions, and both grow when fillers stand in front.":
                lambda max_length: torch.cos(
                    torch.arange(max_length)[:, None] + torch.arange(max_length).float()
                ),
            "the numbers depend on the product of the two positions, and it grows when fillers stand in front.":
                lambda max_length: -0.1 * torch.arange(max_length).float().outer(torch.arange(max_length) + 1.0),
            "the table is the same when rows and columns are exchanged; that is not what keeps a map in its place.":
                lambda max_length: (table := _drawn(max_length, max_length)) + table.T,
            "the last row is not like the others: some text, with some fillers in front, uses it.":
                _table_last_row_other,
            "the offset is right, and then it is divided by the position of the query, which grows with the fillers.":
                lambda max_length: -_offsets(max_length).abs() / torch.arange(1, max_length + 1)[:, None],
        },
        STRETCH: {
            "all numbers are 0: the map is a plain mean, and its weights fall nowhere.":
                lambda max_length: torch.zeros(max_length, max_length),
            "each row has one number in all its columns, and the softmax does not see it: the map is a plain mean.":
                lambda max_length: torch.arange(1.0, max_length + 1)[:, None].repeat(1, max_length),
            "every word looks at itself alone: one weight is larger than 0.9.":
                lambda max_length: 20 * torch.eye(max_length),
            "each word gets more than all others, and these get the same; the weight has to go on falling.":
                lambda max_length: 1.5 * torch.eye(max_length),
            "the numbers rise with the distance: a word gets the least of its own weight.":
                lambda max_length: 0.3 * _offsets(max_length).abs(),
            "the numbers do not fall enough with each step away: every step has to take 5 % off the weight.":
                lambda max_length: -0.5 * _offsets(max_length).abs().clamp(max=4),
            "the numbers rise from column to column: in front of a word, the further ones get less, behind it more.":
                lambda max_length: 0.4 * torch.arange(max_length).float().repeat(max_length, 1),
            "the numbers depend on the offset alone, and that is right; but they do not fall with the distance.":
                lambda max_length: torch.tensor([0.9, 0.0, 0.5, -0.3])[(_offsets(max_length).long() - 1) % 4],
            "words are hidden by infinite numbers, and all have to be finite.":
                lambda max_length: _table_of_offsets(max_length).masked_fill(_offsets(max_length) > 0, -inf),
            "later words are hidden, so the first word sees itself alone: one weight is larger than 0.9.":
                lambda max_length: _table_of_offsets(max_length).masked_fill(_offsets(max_length) > 0, -1e4),
            "some rows hardly tell their words apart: the numbers lie too close together.":
                lambda max_length: -0.02 * _offsets(max_length).abs(),
            "in a text of two words all weights are equal: a word and its neighbour have the same number.":
                lambda max_length: (_offsets(max_length).abs() <= 1).float(),
            "the numbers rise by so much from column to column that one word takes nearly all.":
                lambda max_length: 3.0 * torch.arange(max_length).float().repeat(max_length, 1),
        },
        EQUATIONS: {
            "the numbers are whole (int64); a table of scores holds float32.":
                lambda max_length: -(torch.arange(max_length) - torch.arange(max_length)[:, None]).abs(),
            "the table has the axis of the heads too; one head is asked for.":
                lambda max_length: _table_of_offsets(max_length)[None],
            "the table has a number for each offset, and not for each query and key.":
                lambda max_length: -0.5 * torch.arange(1.0 - max_length, max_length).abs()[None],
        },
    }),
)  # fmt: skip

EXERCISES = [PARTS, TOP_P_EXERCISE, STEPS, PAIRS, FIRST_CHANGE, TABLE]
