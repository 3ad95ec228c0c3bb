"""Slow references: every score and the layer as loops that say the equations of arXiv 2005.00743 aloud.

They read the weights of a module by name and share no code with it: one number at a time, no masks,
no einsum. Only the innermost sum over features is a dot product, so that gradients through the loops stay
quick.

In every row_of_... the tokens x stand at the places start, start + 1, ... and attend to the tokens of memory: their
own sentence in self-attention, another one in cross-attention.
"""

from math import sqrt

import torch
from torch.nn import functional as F


def allow_all(batch, head, query, key):
    """No mask: every query may attend to every key."""
    return True


def linear(module, token):
    """W token + b, one output feature after the other; `module` is an nn.Linear."""
    features = [row @ token for row in module.weight]
    if module.bias is not None:
        features = [feature + bias for feature, bias in zip(features, module.bias, strict=True)]
    return torch.stack(features)


def own_features(token, head, d_head):
    """The features that belong to one head: the head-th block of d_head numbers."""
    return token[head * d_head : (head + 1) * d_head]


def row_of_dot_product(score, x, head, memory, start):
    """(F_Q(X_i) . F_K(M_j)) / sqrt(d_head) for all i of x and j of memory."""
    queries = [own_features(linear(score.query, token), head, score.d_head) for token in x]
    keys = [own_features(linear(score.key, token), head, score.d_head) for token in memory]
    return [[query @ key / sqrt(score.d_head) for key in keys] for query in queries]


def hidden_features(score, token, head):
    """relu(W1 X_i + b1), the features of one head."""
    return own_features(linear(score.hidden, token).clamp(min=0), head, score.d_head)


def row_of_dense(score, x, head, memory, start):
    """Equation (2): W2 relu(W1 X_i + b1) + b2."""
    rows = []
    for token in x:
        hidden = hidden_features(score, token, head)
        row = [hidden @ score.weight[head, :, key] for key in range(len(memory))]
        if score.bias is not None:
            row = [number + score.bias[head, key] for key, number in enumerate(row)]
        rows.append(row)
    return rows


def row_of_factorized_dense(score, x, head, memory, start):
    """Equations (5) and (6): A is tiled, B is repeated element by element, all a * b products in one row."""
    rows = []
    for token in x:
        hidden = hidden_features(score, token, head)
        A = [hidden @ score.weight_a[head, :, i] for i in range(score.a)]
        B = [hidden @ score.weight_b[head, :, i] for i in range(score.b)]
        if score.bias_a is not None:
            A = [number + score.bias_a[head, i] for i, number in enumerate(A)]
            B = [number + score.bias_b[head, i] for i, number in enumerate(B)]
        tiled = A * score.b  # a list: A, then A again, b times
        repeated = [number for number in B for _ in range(score.a)]
        rows.append([one * other for one, other in zip(tiled, repeated, strict=True)][: len(memory)])
    return rows


def row_of_random(score, x, head, memory, start):
    """Equation (4): R, its top-left block."""
    return [[score.R[head, start + i, key] for key in range(len(memory))] for i in range(len(x))]


def row_of_factorized_random(score, x, head, memory, start):
    """Equation (7): R1 R2^T, its top-left block."""
    return [[score.R1[head, start + i] @ score.R2[head, key] for key in range(len(memory))] for i in range(len(x))]


def row_of_mixture(score, x, head, memory, start):
    """Equation (8): a_1 S_1(X) + ... + a_N S_N(X), where a = softmax of the learned logits."""
    total = sum(logit.exp() for logit in score.logits)
    parts = [ROWS[type(part).__name__](part, x, head, memory, start) for part in score.parts]
    return [
        [
            sum(logit.exp() / total * part[query][key] for logit, part in zip(score.logits, parts, strict=True))
            for key in range(len(memory))
        ]
        for query in range(len(x))
    ]


ROWS = {
    "DotProduct": row_of_dot_product,
    "Dense": row_of_dense,
    "Random": row_of_random,
    "FactorizedDense": row_of_factorized_dense,
    "FactorizedRandom": row_of_factorized_random,
    "Mixture": row_of_mixture,
}


def scores(score, x, memory=None, start=0):
    """S(X) for every sentence and head. x: batch length d_model -> batch head query key, for every S."""
    rows, memory = ROWS[type(score).__name__], x if memory is None else memory
    return stack(
        [
            [rows(score, own, head, other, start) for head in range(score.head)]
            for own, other in zip(x, memory, strict=True)
        ]
    )


def attention(layer, x, allowed=allow_all, memory=None, start=0):
    """Equation (3) with heads: x, may-attend function of (batch, head, query, key) -> (y, weights).

    A query that may attend to nothing gets weights of zero. `layer.causal` is not read: say it in `allowed`.
    """
    memory = x if memory is None else memory
    all_scores = scores(layer.score, x, memory, start)
    batch, query, d_model = x.shape
    key, head, d_head = memory.shape[1], layer.head, d_model // layer.head
    maps, outputs = [], []
    for b in range(batch):
        values = [linear(layer.value, token) for token in memory[b]]
        maps.append([])
        mixed = [[] for _ in range(query)]
        for h in range(head):
            rows = []
            for i in range(query):
                row = weights_of_one_query(all_scores[b, h, i], [allowed(b, h, i, j) for j in range(key)])
                rows.append(row)
                mixed[i].append(sum(row[j] * own_features(values[j], h, d_head) for j in range(key)))
            maps[-1].append(rows)
        outputs.append([linear(layer.output, torch.cat(features)) for features in mixed])
    return stack(outputs), stack(maps)


def weights_of_one_query(row, may_attend):
    """Softmax over the keys that may be attended: exp(s_j) / sum of the others, 0 elsewhere."""
    total = sum(score.exp() for score, may in zip(row, may_attend, strict=True) if may)
    return [score.exp() / total if may else torch.zeros_like(score) for score, may in zip(row, may_attend, strict=True)]


def stack(nested):
    """Lists of lists of tensors -> one tensor."""
    return nested if isinstance(nested, torch.Tensor) else torch.stack([stack(inner) for inner in nested])


# The models, one sentence at a time and without its padding.


def up_to_itself(batch, head, query, key):
    """The causal mask: a query may attend to itself and to what stands before it."""
    return key <= query


def norm(module, x):
    """Every token minus its mean, divided by its spread, then scaled and shifted feature by feature."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias


def embed(model, sentence):
    """Token plus place. sentence: a list of tokens -> length d_model."""
    return torch.stack([model.token.weight[token] + model.position.weight[i] for i, token in enumerate(sentence)])


def block(module, x, allowed=allow_all, memory=None):
    """One block of one sentence, "length d_model" -> (the same, map, cross map or None): norm, part, add, each time."""
    y, weights = attention(module.attention, norm(module.norm_attention, x)[None], allowed)
    x, cross_weights = x + y[0], None
    if memory is not None:
        y, cross_weights = attention(module.cross_attention, norm(module.norm_cross, x)[None], memory=memory[None])
        x, cross_weights = x + y[0], cross_weights[0]
    first, _, second = module.mlp
    return x + second(F.gelu(first(norm(module.norm_mlp, x)))), weights[0], cross_weights


def tied_logits(model, x):
    """Every token of the vocabulary compared with x by the matrix that also embeds it."""
    return torch.stack([torch.stack([row @ column for column in model.token.weight]) for row in x])


def encoder_decoder(model, source, target):
    """Two lists of tokens -> (logits "length vocab", {"encoder": [...], "decoder": [...], "cross": [...]})."""
    maps = {"encoder": [], "decoder": [], "cross": []}
    memory = embed(model, source)
    for module in model.encoder:
        memory, weights, _ = block(module, memory)
        maps["encoder"].append(weights)
    memory = norm(model.encoder_norm, memory)
    x = embed(model, target)
    for module in model.decoder:
        x, weights, cross_weights = block(module, x, up_to_itself, memory)
        maps["decoder"].append(weights)
        maps["cross"].append(cross_weights)
    return tied_logits(model, norm(model.decoder_norm, x)), maps


def classifier(model, sentence):
    """A list of tokens -> (logits "label", the maps of the blocks)."""
    x, maps = embed(model, sentence), []
    for module in model.blocks:
        x, weights, _ = block(module, x)
        maps.append(weights)
    x = norm(model.norm, x)
    mean = sum(x[i] for i in range(len(sentence))) / len(sentence)
    return linear(model.label, mean), maps
