"""The exercises of chapter 12, Hugging Face: padding, labels, caches and copied weights, as transformers means them."""

from itertools import product
from numbers import Integral

import torch
from torch.nn import functional as F

from synth_lib.checks.exercise import Exercise, RowsSumTo1, mistakes

MASKS = "Masks: two kinds of zero"
POSITIONS = "Positions: which row of R?"
LABELS = "Labels: who shifts?"
CACHES = "Caches: what is kept"
SWAP = "Swap S in a GPT-2"
EXERCISE_MAP = "Exercise 12.1: one map, wherever the text stands"
EXERCISE_LOSS = "Exercise 12.2: the loss of a padded batch"
EXERCISE_KEPT = "Exercise 12.3: how much is kept?"
EXERCISE_PARTS = "Exercise 12.4: three linear maps out of one"
STRETCH = "Stretch 12.5: one mask that convicts them all"


# 12.1. In each trial padding stands in front, behind and inside. One trial has more columns than R has rows, one has a
# row of padding alone, one has batch 1 and one head 1. Then comes a batch without padding, and one of very low scores
# with a text that fills R, a text of one token, and tokens in the first and the last column.


def _row(draw, columns, tokens):
    """A row with so many tokens, at least four, with padding in front, inside and behind."""
    while True:
        mask = [1] * tokens + [0] * (columns - tokens)
        for last in range(columns - 1, 0, -1):
            other = draw.integer(0, last)
            mask[last], mask[other] = mask[other], mask[last]
        inside = mask[mask.index(1) : columns - mask[::-1].index(1)]
        if mask[0] == mask[-1] == 0 and 0 in inside:
            return mask


def _map_inputs(draw):
    sizes = draw.sizes("head batch", low=2, high=4)
    max_length = draw.integer(7, 8)
    full, ends, one = torch.ones(max_length), torch.zeros(max_length), torch.zeros(max_length)
    ends[[0, 2, -1]], one[2] = 1, 1
    head, batch, columns, mask = draw.in_turn([
        (sizes["head"], sizes["batch"], max_length, None), (sizes["head"], 1, max_length + 3, None),
        (1, 3, max_length + 1, None), (2, 3, max_length, torch.stack([full, full, full])),
        (2, 3, max_length, torch.stack([one, full, ends])),
    ])  # fmt: skip
    if mask is not None:
        low = -20_000 * (1 - mask).max()
        return {"R": draw.normal(head, max_length, max_length) + low, "attention_mask": mask.long()}
    differ = False
    while not differ:  # a token of some row has another position than the same column of row 0
        rows = [_row(draw, columns, draw.integer(4, columns - 3)) for _ in range(batch)]
        if head == 1:
            rows[1] = [0] * columns
        mask = torch.tensor(rows)
        differ = batch == 1 or bool(((_count(mask) != _count(mask)[:1]) & mask.bool()).any())
    return {"R": draw.normal(head, max_length, max_length), "attention_mask": mask}


def _count(attention_mask):
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


def _by_column(attention_mask):
    return torch.arange(attention_mask.shape[1]).expand(attention_mask.shape)


def _without_front(attention_mask):
    front = attention_mask.argmax(dim=1, keepdim=True)
    return (_by_column(attention_mask) - front).clamp(min=0)


def _read(R, query, key):
    """The scores "batch head query key" at these positions; positions that R has not read 0."""
    more = max(0, int(query.max()) + 1 - R.shape[1], int(key.max()) + 1 - R.shape[1])
    R = F.pad(R, (0, more, 0, more))
    return R[:, query[:, :, None], key[:, None, :]].transpose(0, 1)


def _allowed(attention_mask, diagonal=0, causal=True, queries=True, keys=True):
    real, square = attention_mask.bool(), torch.ones(attention_mask.shape[1], attention_mask.shape[1]).bool()
    allowed = square.tril(diagonal) if causal else square
    allowed = allowed & real[:, :, None] if queries else allowed.expand(len(real), -1, -1)
    return (allowed & real[:, None, :] if keys else allowed)[:, None]


def _map(query=_count, key=None, change=lambda R: R, dim=-1, fill=-1e9, keep_zeros=True, **options):
    """The right way with other positions, another table, another axis of the softmax, or other options of the mask."""

    def answer(R, attention_mask):
        scores = _read(change(R), query(attention_mask), (key or query)(attention_mask))
        allowed = _allowed(attention_mask, **options)
        weights = scores.masked_fill(~allowed, fill).softmax(dim=dim)
        return weights * allowed if keep_zeros else weights

    return answer


def _by_column_cut_off(R, attention_mask):
    place = _by_column(attention_mask).clamp(max=R.shape[1] - 1)
    allowed = _allowed(attention_mask)
    return _read(R, place, place).masked_fill(~allowed, -1e9).softmax(dim=-1) * allowed


def _by_column_at_once(R, attention_mask):
    """Stops in a batch with more columns than R has rows."""
    scores = torch.stack([R[:, place][:, :, place] for place in _by_column(attention_mask)])
    return scores.masked_fill(~_allowed(attention_mask), -1e9).softmax(dim=-1) * _allowed(attention_mask)


def _map_in_loops(R, attention_mask):
    batch, columns = attention_mask.shape
    weights = torch.zeros(batch, len(R), columns, columns)
    for sample, row in enumerate(attention_mask):
        where = row.nonzero()[:, 0]
        for count, query in enumerate(where, start=1):
            weights[sample, :, query, where[:count]] = R[:, count - 1, :count].softmax(dim=-1)
    return weights


def _map_cut_out(R, attention_mask):
    weights = torch.zeros(len(attention_mask), len(R), *[attention_mask.shape[1]] * 2)
    for sample, row in enumerate(attention_mask.bool()):
        count = int(row.sum())
        alone = R[:, :count, :count].masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf")).softmax(dim=-1)
        place = torch.zeros(count, len(row))
        place[torch.arange(count), row.nonzero()[:, 0]] = 1.0
        weights[sample] = place.T @ alone @ place
    return weights


def _after_softmax(R, attention_mask):
    place = _count(attention_mask)
    return _read(R, place, place).softmax(dim=-1) * _allowed(attention_mask)


def _from_the_end(attention_mask):
    return attention_mask.flip(1).cumsum(dim=1).flip(1).sub(1).clamp(min=0)


def _from_one(attention_mask):
    return attention_mask.cumsum(dim=1)


MAP = Exercise(
    key="12.1",
    title="one map, wherever the text stands",
    name="map_of_random",
    minutes=15,
    level="medium",
    inputs=_map_inputs,
    trials=5,
    returns="batch head query key",
    properties=(RowsSumTo1(),),
    right=(_map(), _map_in_loops, _map_cut_out),
    wrong=mistakes({
        POSITIONS: {
            "positions are columns: a text gets other rows of R when padding stands before it.": _map(_by_column),
            "positions are columns, and columns that R does not have take its last row and its last key.":
                _by_column_cut_off,
            "padding before the text is left out, but padding inside it is counted as a position.":
                _map(_without_front),
            "all padding of the row is taken off, also what stands behind the token.":
                _map(lambda mask: (_by_column(mask) - (mask == 0).sum(dim=1, keepdim=True)).clamp(min=0)),
            "the queries count tokens, but the keys are read at their columns.": _map(_count, _by_column),
            "the keys count tokens, but the queries are read at their columns.": _map(_by_column, _count),
            "the first token has position 1, so every row and column of R is one too far.": _map(_from_one),
            "positions are counted from the end of the text, but the first token has position 0.":
                _map(_from_the_end),
            "every row of the batch has the positions of row 0.":
                _map(lambda mask: _count(mask[:1]).expand(mask.shape)),
            "query and key are swapped: a query has a row of R.": _map(change=lambda R: R.transpose(1, 2)),
            "all heads read the table of head 0.": _map(change=lambda R: R[:1].expand_as(R)),
            "the numbers are there, but the axis head stands first.":
                lambda R, attention_mask: _map()(R, attention_mask).transpose(0, 1),
        },
        MASKS: {
            "the mask is upside down: padding is shown and tokens are hidden.":
                lambda R, attention_mask: _map()(R, 1 - attention_mask),
            "a token attends to later ones.": _map(causal=False),
            "a token does not attend to itself.": _map(diagonal=-1),
            "a token attends to the next column, too.": _map(diagonal=1),
            "padding attends to tokens; its rows should be 0.": _map(queries=False),
            "tokens attend to padding before them.": _map(keys=False),
            "nothing hides the padding, neither its rows nor its columns.": _map(queries=False, keys=False),
            "hidden scores are set to 0, and a score of 0 still takes weight.": _map(fill=0.0),
            "hidden scores are set to -100 or so, but a score of R may be as low.": _map(fill=-100.0),
            "the last column is taken for padding; a text may end there.":
                lambda R, attention_mask: _map()(
                    R, attention_mask * (torch.arange(attention_mask.shape[1]) < attention_mask.shape[1] - 1)
                ),
            "the mask comes after the softmax, so the rows no longer sum to 1.": _after_softmax,
            "the softmax runs along the queries, so the columns sum to 1 and not the rows.": _map(dim=-2),
            "these are scores; the softmax is missing.":
                lambda R, attention_mask: _read(R, _count(attention_mask), _count(attention_mask))
                * _allowed(attention_mask),
        },
        EXERCISE_MAP: {
            "a row that may attend to nothing is uniform; it should be 0.": _map(keep_zeros=False),
            "a row that may attend to nothing is not a number.": _map(fill=float("-inf"), keep_zeros=False),
        },
    }) + mistakes({
        POSITIONS: {
            "a position is no row of R, which has the rows 0 to max_length - 1: is it a column, does it count padding, "
            "or does the first token have position 1?": _by_column_at_once,
        },
    }, error="out of bounds for dimension"),
)  # fmt: skip


# 12.2. Padding in front, behind and inside; labels of -100 at tokens, too, and labels that are no -100 at padding. A
# token stands in the first column of a text, and in another the last one.


def _loss_inputs(draw):
    batch, columns, vocab = draw.in_turn([(3, 9, 5), (1, 10, 4), (2, 8, 6)])
    rows = [_row(draw, columns, columns - 3 - number % 2) for number in range(batch)]
    labels = torch.tensor([[draw.integer(0, vocab - 1) for _ in range(columns)] for _ in range(batch)])
    rows[0][-1] = 1  # the last column is a token that predicts nothing
    rows[-1][0] = 1 if batch > 1 else 0  # the first one is a token that predicts
    where = torch.tensor(rows)
    counts = []
    while len(set(counts)) < batch:  # no two texts have as many predictions: a mean of means is another one
        hidden = torch.tensor([[draw.integer(0, 5) == 0 for _ in range(columns)] for _ in range(batch)])
        hidden[0, :2] = hidden[-1, :2] = False
        counts = (where[:, :-1].bool() & ~hidden[:, 1:]).sum(dim=1).tolist()
    labels = labels.masked_fill(hidden, -100)
    labels[0, int(where[0].argmax())] = 1  # the first token of a text: a target that padding would predict
    labels[0, int(where[0].argmax()) + 1] = 2 % vocab
    labels[0, 0] = 3
    size = draw.in_turn((2, 2, 20))  # in the last, some probabilities are below 1e-8
    return {"logits": size * draw.normal(batch, columns, vocab), "labels": labels, "attention_mask": where}


def _cross_entropy(logits, targets, **options):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)


def _hide(labels, hidden):
    return labels.masked_fill(hidden, -100)


def _loss(logits, labels, attention_mask):
    return _cross_entropy(logits[:, :-1], _hide(labels[:, 1:], attention_mask[:, :-1] == 0))


def _loss_chosen(logits, labels, attention_mask):
    counts = (labels[:, 1:] != -100) & (attention_mask[:, :-1] == 1)
    return F.cross_entropy(logits[:, :-1][counts], labels[:, 1:][counts])


def _loss_in_loops(logits, labels, attention_mask):
    losses = []
    for row, targets, mask in zip(logits, labels.tolist(), attention_mask.tolist(), strict=True):
        for column in range(len(targets) - 1):
            if mask[column] and targets[column + 1] != -100:
                losses.append(-row[column].log_softmax(dim=0)[targets[column + 1]])
    return torch.stack(losses).mean()


def _loss_of_each_text(logits, labels, attention_mask):
    losses = [_loss(*[part[None] for part in one]) for one in zip(logits, labels, attention_mask, strict=True)]
    return torch.stack(losses).nanmean()


def _divided_by(count):
    def answer(logits, labels, attention_mask):
        targets = _hide(labels[:, 1:], attention_mask[:, :-1] == 0)
        return _cross_entropy(logits[:, :-1], targets, reduction="sum") / count(targets, attention_mask)

    return answer


def _padding_as_zero(logits, labels, attention_mask):
    """-100 taken as the token 0."""
    counts = attention_mask[:, :-1] == 1
    return F.cross_entropy(logits[:, :-1][counts], labels[:, 1:][counts].clamp(min=0))


def _without_logarithm(logits, labels, attention_mask):
    counts = (labels[:, 1:] != -100) & (attention_mask[:, :-1] == 1)
    return -logits[:, :-1].softmax(dim=-1)[counts].gather(1, labels[:, 1:][counts][:, None]).mean()


def _loss_of_texts_cut_out(logits, labels, attention_mask):
    """Padding is cut out before the shift, so a token before a hole is judged by the one behind it."""
    predictions, targets = [], []
    for row, label, mask in zip(logits, labels, attention_mask.bool(), strict=True):
        predictions.append(row[mask][:-1])
        targets.append(label[mask][1:])
    return F.cross_entropy(torch.cat(predictions), torch.cat(targets))


LOSS = Exercise(
    key="12.2",
    title="the loss of a padded batch",
    name="loss_of",
    minutes=10,
    level="medium",
    inputs=_loss_inputs,
    returns="a tensor without axes",
    right=(_loss, _loss_chosen, _loss_in_loops),
    wrong=mistakes({
        LABELS: {
            "what the first column predicts is left out; a text may begin there.":
                lambda logits, labels, attention_mask: _loss(logits[:, 1:], labels[:, 1:], attention_mask[:, 1:]),
            "a small number is added to the probabilities before the logarithm, which hides bad predictions.":
                lambda logits, labels, attention_mask: _loss(
                    (logits.softmax(dim=-1) + 1e-6).log(), labels, attention_mask
                ),
            "nothing is shifted: each prediction is judged by its own token.":
                lambda logits, labels, attention_mask: _cross_entropy(logits, _hide(labels, attention_mask == 0)),
            "the shift goes the wrong way: a prediction is judged by the token before it.":
                lambda logits, labels, attention_mask: _cross_entropy(
                    logits[:, 1:], _hide(labels[:, :-1], attention_mask[:, 1:] == 0)
                ),
            "it is shifted twice: a prediction is judged by the token after the next one.":
                lambda logits, labels, attention_mask: _cross_entropy(
                    logits[:, :-2], _hide(labels[:, 2:], attention_mask[:, :-2] == 0)
                ),
            "the labels are rolled: the last prediction is judged by the first token.":
                lambda logits, labels, attention_mask: _cross_entropy(
                    logits, _hide(labels.roll(-1, dims=1), attention_mask == 0)
                ),
            "padding is cut out before the shift; a column is judged by the next column, whatever stands there.":
                _loss_of_texts_cut_out,
            "-100 is taken for token 0, but it marks a target that does not count.": _padding_as_zero,
        },
        EXERCISE_LOSS: {
            "predictions from padding are counted; the mask is not used.":
                lambda logits, labels, attention_mask: _cross_entropy(logits[:, :-1], labels[:, 1:]),
            "the mask hides predictions *of* padding, but those *from* padding are counted.":
                lambda logits, labels, attention_mask: _cross_entropy(
                    logits[:, :-1], _hide(labels[:, 1:], attention_mask[:, 1:] == 0)
                ),
            "more is left out than the docstring says: padding as a target, too, where its label is a token.":
                lambda logits, labels, attention_mask: _cross_entropy(
                    logits[:, :-1], _hide(labels[:, 1:], (attention_mask[:, 1:] * attention_mask[:, :-1]) == 0)
                ),
            "the mask is upside down: predictions from tokens are left out.":
                lambda logits, labels, attention_mask: _cross_entropy(
                    logits[:, :-1], _hide(labels[:, 1:], attention_mask[:, :-1] == 1)
                ),
            "the mean is taken for each text first; a long text has more predictions than a short one.":
                _loss_of_each_text,
            "the sum is divided by all columns, also those that do not count.":
                _divided_by(lambda targets, mask: targets.numel()),
            "the sum is divided by the number of tokens in the mask; predictions count, not tokens.":
                _divided_by(lambda targets, mask: mask.sum()),
            "the sum is divided by all predictions from tokens; those whose label is -100 do not count.":
                _divided_by(lambda targets, mask: mask[:, :-1].sum()),
            "the sum is divided by the number of texts.": _divided_by(lambda targets, mask: len(mask)),
            "this is the sum; the mean is asked for.": _divided_by(lambda targets, mask: 1),
            "the loss is in bits; the docstring asks for nats.":
                lambda logits, labels, attention_mask: _loss(logits, labels, attention_mask)
                / torch.tensor(2.0).log(),
            "the sign is turned: a log-probability is at most 0, a loss at least 0.":
                lambda logits, labels, attention_mask: -_loss(logits, labels, attention_mask),
            "this is the mean probability, turned round; the logarithm is missing.": _without_logarithm,
            "this is the perplexity, the exponential of the loss.":
                lambda logits, labels, attention_mask: _loss(logits, labels, attention_mask).exp(),
            "the softmax is taken twice; cross_entropy takes it of logits itself.":
                lambda logits, labels, attention_mask: _loss(logits.softmax(dim=-1), labels, attention_mask),
        },
    }),
)  # fmt: skip


# 12.3. Every model has layers of both kinds, a mixture with two dot products, and heads that are shared; the last
# one, of few layers, has other mixtures than these.

OURS = ("dense", "random", "dot_product", "random + dot_product", "factorized_random + dense",
        "dot_product + dense + dot_product")  # fmt: skip


def _kept_inputs(draw):
    head = draw.in_turn([6, 4, 1])
    shared = [draw.in_turn([2, 4, 1])] * draw.integer(1, 2)
    layers = [*OURS, *OURS[3:], 1, *shared]  # with each mixture twice, no two mistakes come to one sum
    few = [*shared, "fixed_random"] + ["dot_product + random"] * draw.integer(1, 3)
    return {
        "layers": draw.in_turn([layers, layers[::-1], layers, few]), "d_model": head * draw.in_turn([5, 7, 9]),
        "head": head, "batch": draw.in_turn([3, 1, 2]), "length": draw.in_turn([11, 8, 1]),
    }  # fmt: skip


def _kept(theirs=lambda kept, d_model, head: 2 * kept * (d_model // head), ours=None, total=None):
    """The right count with another count of one of their layers, of ours, or of all."""
    ours = ours or (lambda name, d_model, head: d_model * (1 + name.count("dot_product")))

    def answer(layers, d_model, head, batch, length):
        features = sum((ours if isinstance(layer, str) else theirs)(layer, d_model, head) for layer in layers)
        return (total or (lambda features, batch, length: batch * length * features))(features, batch, length)

    return answer


def _kept_in_loops(layers, d_model, head, batch, length):
    count = 0
    for layer in layers:
        if isinstance(layer, int):
            count += batch * length * layer * d_model // head * 2
            continue
        count += batch * length * d_model
        for part in layer.split(" + "):
            if part == "dot_product":
                count += batch * length * d_model
    return count


def _run_kept(answer, **arguments):
    count = answer(**arguments)
    whole = isinstance(count, Integral) and not isinstance(count, bool)  # those of numpy, too
    return int(count) if whole else count


KEPT = Exercise(
    key="12.3",
    title="how much is kept?",
    name="numbers_kept",
    minutes=8,
    level="easy",
    inputs=_kept_inputs,
    trials=4,
    returns="a whole number",
    run=_run_kept,
    right=(_kept(), _kept_in_loops),
    wrong=mistakes({
        CACHES: {
            "our layers are counted with keys even where S compares nothing.":
                _kept(ours=lambda name, d_model, head: 2 * d_model),
            "our layers keep values alone here, but a dot product needs its keys, too.":
                _kept(ours=lambda name, d_model, head: d_model),
            "a mixture with two dot products has two sets of keys; one is counted.":
                _kept(ours=lambda name, d_model, head: d_model * (1 + ("dot_product" in name))),
            "every part of a mixture is counted with keys of its own; Random and Dense have none.":
                _kept(ours=lambda name, d_model, head: d_model * (1 + len(name.split("+")))),
            "the parts of a mixture share the values; here each part has its own.":
                _kept(ours=lambda name, d_model, head: d_model * (len(name.split("+")) + name.count("dot_product"))),
            "only a plain dot product is counted with keys; one inside a mixture has them, too.":
                _kept(ours=lambda name, d_model, head: d_model * (1 + (name == "dot_product"))),
            "a layer that compares is counted with its keys alone; the values are missing.":
                _kept(ours=lambda name, d_model, head: d_model * (name.count("dot_product") or 1)),
            "keys are counted nowhere, neither in their layers nor in ours that compare.":
                _kept(lambda kept, d_model, head: kept * (d_model // head), lambda name, d_model, head: d_model),
            "every S is counted with keys: one set for each dot product, and one where there is none.":
                _kept(ours=lambda name, d_model, head: d_model * (1 + (name.count("dot_product") or 1))),
            "every part of a mixture is counted with keys and values of its own.":
                _kept(ours=lambda name, d_model, head: 2 * d_model * len(name.split("+"))),
            "the parts of a mixture are counted with values of their own, and their keys are missing.":
                _kept(ours=lambda name, d_model, head: d_model * len(name.split("+"))),
            "the queries of our dot products are counted, too; a query is used once, in its own step.":
                _kept(ours=lambda name, d_model, head: d_model * (1 + 2 * name.count("dot_product"))),
            "a layer that compares nothing is counted as keeping nothing; its values are kept.":
                _kept(ours=lambda name, d_model, head: d_model * ((c := name.count("dot_product")) and 1 + c)),
            "of our layers one head is counted; all are kept.":
                _kept(ours=lambda name, d_model, head: d_model // head * (1 + name.count("dot_product"))),
        },
        EXERCISE_KEPT: {
            "their heads share keys and values; here every head has its own.":
                _kept(theirs=lambda kept, d_model, head: 2 * d_model),
            "their keys are shared, but their values are counted for every head.":
                _kept(theirs=lambda kept, d_model, head: kept * (d_model // head) + d_model),
            "of their layers only the keys are counted, or only the values.":
                _kept(theirs=lambda kept, d_model, head: kept * (d_model // head)),
            "the number of their key heads is taken for the number of heads that share one.":
                _kept(theirs=lambda kept, d_model, head: 2 * (d_model // kept)),
            "a shared head is counted as wide as d_model; it has d_model / head features.":
                _kept(theirs=lambda kept, d_model, head: 2 * kept * d_model),
            "their layers are left out.": _kept(theirs=lambda kept, d_model, head: 0),
            "our layers are left out.": _kept(ours=lambda name, d_model, head: 0),
            "this is the count for one text; the batch is missing.":
                _kept(total=lambda features, batch, length: features * length),
            "this is the count for one token; the length is missing.":
                _kept(total=lambda features, batch, length: features * batch),
            "this is the count for one token of one text.": _kept(total=lambda features, batch, length: features),
            "these are bytes of 4 for each number; numbers are asked for.":
                _kept(total=lambda features, batch, length: 4 * features * batch * length),
            "length is squared, as for a map; a cache holds tokens, not pairs.":
                _kept(total=lambda features, batch, length: features * batch * length**2),
        },
    }),
)  # fmt: skip


# 12.4. d_model is no square of anything here, one trial has one head, and one heads of one feature. Each weight and
# bias is compared.


def _parts_inputs(draw):
    head, d_head, number = draw.in_turn([(3, 4, 1), (1, 5, 0), (4, 3, 3), (3, 1, 2)])
    d_model = head * d_head
    return {
        "weight": draw.normal(d_model, 3 * d_model), "bias": draw.normal(3 * d_model), "head": head, "number": number,
    }  # fmt: skip


def _columns(part, number, d_model, d_head):
    return slice(part * d_model + number * d_head, part * d_model + (number + 1) * d_head)


def _parts(columns=_columns, order=(0, 1, 2), turn=True, biases=None):
    """The right way with other columns, another order, without the transpose, or with other columns of the bias."""

    def answer(weight, bias, head, number):
        sizes = len(weight), len(weight) // head
        taken = []
        for part in order:
            own = weight[:, columns(part, number, *sizes)]
            taken.append((own.T if turn else own, bias[(biases or columns)(part, number, *sizes)]))
        return taken

    return answer


def _parts_unflattened(weight, bias, head, number):
    weights, biases = weight.T.unflatten(0, (3, head, -1)), bias.unflatten(0, (3, head, -1))
    return [(weights[part, number], biases[part, number]) for part in range(3)]


def _parts_chunked(weight, bias, head, number):
    pairs = zip(weight.chunk(3, dim=1), bias.chunk(3), strict=True)
    return tuple((w.chunk(head, dim=1)[number].T, b.chunk(head)[number]) for w, b in pairs)


def _three_pairs(parts, **arguments):
    if not isinstance(parts, (tuple, list)) or len(parts) != 3:
        raise TypeError("the result must be three pairs (w, b)")
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in parts):
        raise TypeError("each of the three parts must be a pair (w, b)")
    return tuple(tensor for pair in parts for tensor in pair)


def _interleaved_rows(weight, bias, head, number):
    """The transpose made by reshape, which mixes inputs and outputs."""
    rows = weight.reshape(weight.shape[::-1])
    sizes = len(weight), len(weight) // head
    return [(rows[_columns(part, number, *sizes)], bias[_columns(part, number, *sizes)]) for part in range(3)]


PARTS = Exercise(
    key="12.4",
    title="three linear maps out of one",
    name="parts_of_head",
    minutes=10,
    level="medium",
    inputs=_parts_inputs,
    trials=4,
    returns="w of queries, b of queries, w of keys, b of keys, w of values, b of values",
    measure=_three_pairs,
    right=(_parts(), _parts_unflattened, _parts_chunked),
    wrong=mistakes({
        EXERCISE_PARTS: {
            "the order is another: queries come first, then keys, then values.": _parts(order=(1, 0, 2)),
            "keys and values are exchanged.": _parts(order=(0, 2, 1)),
            "the values come first; the queries should.": _parts(order=(2, 0, 1)),
            "the order is turned round: values, keys, queries.": _parts(order=(2, 1, 0)),
            "all three are the queries.": _parts(order=(0, 0, 0)),
            "the heads are counted from 1, but the first one has the number 0.":
                _parts(lambda part, number, d_model, d_head: slice(
                    (part * d_model + (number - 1) * d_head) % (3 * d_model),
                    (part * d_model + (number - 1) * d_head) % (3 * d_model) + d_head,
                )),
            "the heads are counted from the last one.":
                _parts(lambda part, number, d_model, d_head: _columns(
                    part, d_model // d_head - 1 - number, d_model, d_head
                )),
            "queries, keys and values of one head are taken to stand beside each other; each third holds all heads.":
                _parts(lambda part, number, d_model, d_head: slice(
                    (3 * number + part) * d_head, (3 * number + part + 1) * d_head
                )),
            "the features of a head are taken to lie apart, one in every so many; they stand beside each other.":
                _parts(lambda part, number, d_model, d_head: slice(
                    part * d_model + number, (part + 1) * d_model, d_model // d_head
                )),
            "it is head 0, whichever is asked for.":
                _parts(lambda part, number, d_model, d_head: _columns(part, 0, d_model, d_head)),
            "these are all heads; one is asked for.":
                _parts(lambda part, number, d_model, d_head: slice(part * d_model, (part + 1) * d_model)),
            "the weights are those of the head, but the biases those of head 0.":
                _parts(biases=lambda part, number, d_model, d_head: _columns(part, 0, d_model, d_head)),
            "the weights are right, but all biases are those of the queries.":
                _parts(biases=lambda part, number, d_model, d_head: _columns(0, number, d_model, d_head)),
            "the biases are those of all heads.":
                _parts(biases=lambda part, number, d_model, d_head: slice(part * d_model, (part + 1) * d_model)),
        },
        SWAP: {
            "inputs stand first in the weights; a linear layer holds outputs first.": _parts(turn=False),
            "the weights are reshaped, not turned; that mixes inputs and outputs.": _interleaved_rows,
            "the weights are scaled by the root of d_head; the docstring asks for the maps as they are.":
                lambda weight, bias, head, number: [
                    (w / (len(weight) // head) ** 0.5, b) for w, b in _parts()(weight, bias, head, number)
                ],
        },
    }),
)  # fmt: skip


# 12.5. A mask is run through the five wrappers; what comes out is which of them escape.

# In the order of the chapter: the column; minus all zeros; minus the zeros before the first token; the same, minus the
# holes of one column; the count if the last column is a token, else the column.
WRAPPERS = (
    lambda mask, c: c,
    lambda mask, c: c - mask.count(0),
    lambda mask, c: c - mask.index(1),
    lambda mask, c: c - mask.index(1) - sum(mask[i - 1 : i + 2] == [1, 0, 1] for i in range(1, c)),
    lambda mask, c: sum(mask[:c]) if mask[-1] else c,
)
SIZES = range(6, 21)


def _masks_of_all_sizes(answer, columns):
    return {size: answer(columns=size) for size in dict.fromkeys((columns, *SIZES))}


def _escaped(masks, columns):
    """For each number of columns which wrappers escape, by their numbers in the chapter."""
    escaped = {}
    for size, mask in masks.items():
        mask = mask.tolist() if hasattr(mask, "tolist") else list(mask) if isinstance(mask, tuple) else mask
        if not isinstance(mask, list) or len(mask) != size:
            got = f"of {len(mask)}" if isinstance(mask, list) else type(mask).__name__
            raise ValueError(f"the mask must be a list of {size} numbers, not {got}")
        if any(number not in (0, 1) for number in mask):
            raise ValueError("the mask must hold 0 and 1 alone")
        mask = [int(number) for number in mask]
        if sum(mask) < 3:
            raise ValueError(f"with {size} columns the mask has {sum(mask)} tokens, but must have at least three")
        tokens = [column for column in range(size) if mask[column]]
        free = [
            str(number) for number, position in enumerate(WRAPPERS, start=1)
            if all(position(mask, column) == sum(mask[:column]) for column in tokens)
        ]  # fmt: skip
        escaped[f"for {size} columns"] = f"not convicted: {', '.join(free) or 'none'}"
    return escaped


def _mask(front=0, first=1, hole=2, behind=1):
    """A mask with so many zeros in front, tokens, zeros inside and zeros behind."""

    def answer(columns):
        rest = columns - front - first - hole - behind
        return [0] * front + [1] * first + [0] * hole + [1] * rest + [0] * behind

    return answer


def _searched(columns):
    for middle in product((0, 1), repeat=4):
        mask = [1, *middle, *[1] * (columns - 6), 0]
        if sum(mask) >= 3 and "1001" in "".join(map(str, mask)):
            return mask


CONVICTING = Exercise(
    key="12.5",
    title="one mask that convicts them all",
    name="convicting_mask",
    minutes=12,
    level="medium",
    inputs=lambda draw: {"columns": draw.in_turn([6, draw.integer(9, 12), draw.integer(13, 20)])},
    returns="which wrappers escape",
    run=_masks_of_all_sizes,
    measure=_escaped,
    right=(_mask(), _searched, lambda columns: torch.tensor(_mask(first=2)(columns))),
    wrong=mistakes({
        STRETCH: {
            "a text without padding convicts nobody.": _mask(hole=0, behind=0),
            "padding stands behind the text alone: for the tokens their column is their position.":
                _mask(hole=0, behind=2),
            "padding stands before the text alone, and most of the five were written for that.":
                _mask(front=2, hole=0, behind=0),
            "padding stands on both sides and none inside.": _mask(front=1, hole=0, behind=1),
            "every hole is one column wide, and one of the five sees such holes.": _mask(hole=1, behind=1),
            "the last column is a token, and one of the five is right then.": _mask(hole=2, behind=0),
            "every hole is one column wide, and the last column is a token: two of the five are right then.":
                _mask(hole=1, behind=0),
        },
    }),
)  # fmt: skip


EXERCISES = (MAP, LOSS, KEPT, PARTS, CONVICTING)
