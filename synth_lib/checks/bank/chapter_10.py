"""The exercises of chapter 10: masks that choose the keys, from places, by hashes, by clusters.

Sources: Child et al. 2019, arXiv 1904.10509; Neyshabur and Srebro 2015; Roy et al. 2020, arXiv 2003.05997.
"""

from functools import partial

import torch
from torch.nn import functional as F

from synth_lib.attention import Attention
from synth_lib.checks.compare import kind_of
from synth_lib.checks.exercise import Exercise, mistakes
from synth_lib.sparse.hashed import Hashed
from synth_lib.sparse.patterns import Strided

PLACES = "2. From places"
FAULTS = "Two faults that keep every shape"
CONNECT = "How many layers connect every pair?"
EXERCISE_STRIDED = "Exercise 10.1: strided rows while a model writes"
EXERCISE_CONNECT = "Exercise 10.2: connect all pairs"
TRANSFORMS = "Make nearness and product agree"
SCALING = "Why the lengths must be those after scaling"
EXERCISE_LSH = "Exercise 10.3: Simple-LSH with heads and padding"
HASHES = "Hashes, and how often they agree"
EXERCISE_CHANCE = "Exercise 10.4: how likely is a key found?"
CLUSTERS = "4. From content: clusters"
TRAP = "The trap"
EXERCISE_ROUTED = "Exercise 10.5: the nearest, without a look ahead"
RECALL = "Recall: how many of the true keys are found?"
STRETCH = "Stretch 10.6: two sentences that a hash gets wrong"


# 10.1. One trial writes one token, one has a single head, one an odd number and queries without a cache.


def _strided_inputs(draw):
    start, query, head, stride = draw.in_turn([
        (draw.integer(8, 11), draw.integer(3, 5), 2 * draw.integer(1, 2) + 1, 3),
        (draw.integer(9, 12), 3, 1, 4),
        (0, draw.integer(13, 15), 4, 5),
    ])  # fmt: skip
    return {"start": start, "query": query, "head": head, "stride": stride}


def _strided_said(answer, start, query, head, stride):
    """At these sizes, at the edges, and at the same sizes with another stride."""
    edges = {"one token": (start + 5, 1, 2, stride), "stride 1": (2, 4, 3, 1), "stride above the length": (1, 4, 5, 9),
             "the first token": (0, 1, 3, stride), "a long text": (90, 2, 2, stride),
             "another stride": (start, query, head, stride - 1)}  # fmt: skip
    sizes = {"the rows": (start, query, head, stride)} | edges
    return {
        name: answer(**dict(zip(("start", "query", "head", "stride"), of, strict=True))) for name, of in sizes.items()
    }


def _strided(near=lambda back, stride: (back >= 0) & (back <= stride),
             far=lambda back, stride: (back >= 0) & (back % stride == 0),
             nears=lambda head: (head + 1) // 2, place=lambda start, query: torch.arange(start, start + query),
             single=torch.logical_or):  # fmt: skip
    def answer(start, query, head, stride):
        back = place(start, query)[:, None] - torch.arange(start + query)[None, :]
        near_one, far_one = near(back, stride), far(back, stride)
        if head == 1:
            return single(near_one, far_one)[None]
        return torch.stack([near_one if h < nears(head) else far_one for h in range(head)])

    return answer


def _strided_in_loops(start, query, head, stride):
    rows = torch.zeros(head, query, start + query, dtype=torch.bool)
    for h in range(head):
        for n in range(query):
            for back in range(start + n + 1):
                is_near, is_far = back <= stride, back % stride == 0
                wanted = is_near or is_far if head == 1 else is_near if 2 * h < head else is_far
                rows[h, n, start + n - back] = wanted
    return rows


STRIDED = Exercise(
    key="10.1",
    title="strided rows while a model writes",
    name="strided_rows",
    minutes=15,
    level="medium",
    inputs=_strided_inputs,
    returns="head query key",
    run=_strided_said,
    right=(
        _strided(),
        _strided_in_loops,
        lambda start, query, head, stride: Strided(stride).mask(start + query, head=head)[0, :, start:].clone(),
    ),
    wrong=mistakes({
        FAULTS: {
            "the distance is taken without its sign, so near heads look at later tokens.":
                _strided(near=lambda back, stride: back.abs() <= stride),
            "the near heads forget that a key must not come later than the query.":
                _strided(near=lambda back, stride: back <= stride),
            "the far heads forget that a key must not come later than the query.":
                _strided(far=lambda back, stride: back % stride == 0),
            "neither half forbids later keys, as long as the distance fits.":
                _strided(near=lambda back, stride: back <= stride, far=lambda back, stride: back % stride == 0),
            "far keys are counted from the first token of the text, not from the query.": _strided(
                far=lambda back, stride: (back >= 0) & (torch.arange(back.shape[1]) % stride == 0)
            ),
            "far keys are counted from the last token, so they move when another one is written.": _strided(
                far=lambda back, stride: (back >= 0) & (torch.arange(back.shape[1]).flip(0) % stride == 0)
            ),
        },
        PLACES: {
            "the near heads end one key too early: this is a window of `stride` keys.":
                _strided(near=lambda back, stride: (back >= 0) & (back < stride)),
            "the near heads go one key too far.":
                _strided(near=lambda back, stride: (back >= 0) & (back <= stride + 1)),
            "this is the fixed pattern: near heads have blocks in place of a band.": _strided(
                near=lambda back, stride: (back >= 0) & (
                    (torch.arange(back.shape[1] - len(back), back.shape[1])[:, None] // stride)
                    == torch.arange(back.shape[1]) // stride
                )
            ),
            "the far heads leave out the query itself.":
                _strided(far=lambda back, stride: (back > 0) & (back % stride == 0)),
            "near and far are exchanged.": _strided(
                near=lambda back, stride: (back >= 0) & (back % stride == 0),
                far=lambda back, stride: (back >= 0) & (back <= stride),
                nears=lambda head: (head + 1) // 2,
            ),
        },
        EXERCISE_STRIDED: {
            "the queries are counted from 0, as if there were no cache.":
                _strided(place=lambda start, query: torch.arange(query)),
            "the queries begin one place too late.":
                _strided(place=lambda start, query: torch.arange(start + 1, start + query + 1)),
            "with an odd number of heads the far half is the larger one.": _strided(nears=lambda head: head // 2),
            "a single head is near only.": _strided(single=lambda near, far: near),
            "a single head is far only.": _strided(single=lambda near, far: far),
            "a single head has the keys that are near and far, in place of near or far.":
                _strided(single=torch.logical_and),
            "every second head is near; it is the first half.": lambda start, query, head, stride: (
                _strided()(start, query, head, stride)[
                    sorted(range(head), key=lambda h: (h % 2 * ((head + 1) // 2) + h // 2))
                ] if head < 3 else _alternating(start, query, head, stride)
            ),
            "the whole square is returned, not the rows of the queries.":
                lambda start, query, head, stride: _strided()(0, start + query, head, stride),
            "every head is near and far at once.": lambda start, query, head, stride: (
                _strided()(start, query, 1, stride).expand(head, -1, -1).clone()
            ),
        },
    }),
)  # fmt: skip


def _alternating(start, query, head, stride):
    near, far = _strided()(start, query, 2, stride)
    return torch.stack([far if h % 2 else near for h in range(head)])


# 10.2. Judged by what is reached. The sizes include one token, powers of `keys` and a number above one.

CONNECTED = "every pair is connected, in as few layers as can be"


def _connect_inputs(draw):
    return {"length": draw.integer(40, 60), "keys": draw.in_turn([3, 4, 2])}


def _fewest(length, keys):
    layers = 1
    while keys**layers < length:
        layers += 1
    return layers


def _connects(found, length, keys):
    """What is wrong with these masks, or CONNECTED."""
    if not found:
        return "there is no layer"
    if any(mask.triu(1).any() for mask in found):
        return "a row looks at a later token"
    most = max(int(mask.sum(dim=1).max()) for mask in found)
    if most > keys:
        return f"a row has {'one key' if most == keys + 1 else 'several keys'} too many"
    reached = torch.eye(length)
    for mask in found:  # the first layer first: row i of a later one reads what its keys have reached
        reached = ((mask.float() @ reached) > 0).float()
    missing = int((torch.ones(length, length).tril() - reached).sum())
    fewest = _fewest(length, keys)
    if missing:
        share = missing / (length * (length + 1) / 2)
        what = "some pair" if reached.diagonal().all() else "a token loses itself"
        layers = "with a layer too few, " * (len(found) < fewest)
        return f"{layers}{what}, {_size(share)} of all pairs are not connected"
    if len(found) > 3 * fewest:
        return "many times as many layers as needed"
    more = len(found) - fewest
    return CONNECTED if more == 0 else f"{'one layer' if more == 1 else 'several layers'} more than needed"


def _size(share):
    return "a few" if share < 0.1 else "some" if share < 0.5 else "most"


def _connect_sizes(length, keys):
    """At this size, at both sides of a power of `keys`, for one token, for many keys."""
    # Of 125 and 5 the quotient of logarithms is a little above 3.
    sizes = [(length, keys), (keys**2, keys), (keys**2 + 1, keys), (1, 2), (2, 3), (27, 3), (7, 9), (125, 5), (260, 17)]
    return {f"for length {one} and keys {of}": (one, of) for one, of in sizes}


def _run_connect(answer, length, keys):
    return {name: answer(length=one, keys=of) for name, (one, of) in _connect_sizes(length, keys).items()}


def _connects_all(said, length, keys):
    reasons = {}
    for name, size in _connect_sizes(length, keys).items():
        found, right = said[name], "a list of bool tensors, query key"
        if not isinstance(found, (list, tuple)):
            raise ValueError(f"{name} the result is {kind_of(found)}, but should be {right}")
        for mask in found:
            if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
                what = mask.dtype if isinstance(mask, torch.Tensor) else kind_of(mask)
                raise ValueError(f"{name} the result is a list with {what}, but should be {right}")
            if tuple(mask.shape) != (size[0],) * 2:
                raise ValueError(f"{name} a mask has the shape {tuple(mask.shape)}, but should be {(size[0],) * 2}")
        reasons[name] = _connects(found, *size)
    return reasons


def _steps(length, keys):
    steps = [1]
    while steps[-1] * keys < length:
        steps.append(steps[-1] * keys)
    return steps


def _by_steps(steps=_steps, row=lambda back, step, keys: (back >= 0) & (back % step == 0) & (back < keys * step)):
    def answer(length, keys):
        back = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        return [row(back, step, keys) for step in steps(length, keys)]

    return answer


def _connect_in_blocks(length, keys):
    """No digits of the distance, but of the places: a layer brings together what stands in one larger block."""
    place, layers, size = torch.arange(length), [], 1
    while size < length or not layers:
        mask = torch.zeros(length, length, dtype=torch.bool)
        for i in range(length):
            first = i // (size * keys) * size * keys
            ends = [min(start + size - 1, i) for start in range(first, i + 1, size)]
            mask[i, ends] = True
        layers.append(mask)
        size *= keys
    return layers if len(place) else []


def _windows_only(length, keys):
    back = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    reach, layers = 1, []
    while reach < length or not layers:
        layers.append((back >= 0) & (back < keys))
        reach += keys - 1
    return layers


CONNECT_ALL = Exercise(
    key="10.2",
    title="connect all pairs",
    name="masks_that_connect",
    minutes=20,
    level="hard",
    inputs=_connect_inputs,
    returns="a list of bool tensors, query key",
    run=_run_connect,
    measure=_connects_all,
    right=(_by_steps(), _by_steps(steps=lambda length, keys: _steps(length, keys)[::-1]), _connect_in_blocks),
    wrong=mistakes({
        CONNECT: {
            "windows alone connect everything, but go only a few places further with each layer.": _windows_only,
            "strided near and far are two layers; with a small budget two layers are not enough.":
                lambda length, keys: _by_steps()(length, keys)[:2],
            "all keys in one layer are more than a row may have, where there are more than `keys`.":
                lambda length, keys: [torch.ones(length, length, dtype=torch.bool).tril()],
            "the masks are not causal.": _by_steps(
                row=lambda back, step, keys: (back.abs() % step == 0) & (back.abs() < keys * step) & (back.abs() >= 0)
            ),
        },
        EXERCISE_CONNECT: {
            "the own place is missing in the rows, and nothing else keeps a token.": _by_steps(
                row=lambda back, step, keys: (back > 0) & (back % step == 0) & (back <= keys * step)
            ),
            "a row has one key more than it may have: 0 to `keys` steps back are one too many.": _by_steps(
                row=lambda back, step, keys: (back >= 0) & (back % step == 0) & (back <= keys * step)
            ),
            "steps of the sizes 1, 2, 4, ... whatever `keys` is: more layers than are needed.": _by_steps(
                steps=lambda length, keys: [2**n for n in range(max(1, (length - 1).bit_length()))]
            ),
            "a step is larger than what the layers before bring together, so some distances are missing.": _by_steps(
                steps=lambda length, keys: [(keys + 1) ** n for n in range(_fewest(length, keys))]
            ),
            "one layer too few: a length just above a power of `keys` needs one more.": _by_steps(
                steps=lambda length, keys: _steps(length, keys)[: max(1, len(_steps(length, keys)) - 1)]
            ),
            "there is one layer more than needed, for a length that is a power of `keys`.": _by_steps(
                steps=lambda length, keys: [keys**n for n in range(_fewest(length + 1, keys))]
            ),
            "a quotient of logarithms may be rounded above a whole number; then there is a layer too many.": _by_steps(
                steps=lambda length, keys: [keys**n for n in range(_fewest(length, keys) + (length == 125))]
            ),
            "for one token there is no layer at all; the list must hold one.":
                lambda length, keys: _by_steps()(length, keys) if length > 1 else [],
        },
    }),
)  # fmt: skip


# 10.3. Padding holds the longest key of all, each head has another M, and a key is 0; one trial has one head and query.


def _lsh_inputs(draw):
    sizes = draw.sizes("head query key d_head", low=3, high=8)
    head, query, key, d_head = draw.in_turn([
        (sizes["head"], sizes["query"], sizes["key"] + 2, sizes["d_head"]), (1, 1, 4, sizes["d_head"]),
        (sizes["head"], sizes["query"], sizes["key"] + 2, 1),
    ])  # fmt: skip
    keys = draw.normal(head, key, d_head) * torch.linspace(0.4, 1.7, head)[:, None, None]
    real = torch.ones(key, dtype=torch.bool)
    padded = draw.integer(0, min(query, key) - 1)  # a query stands at this place, too
    real[padded] = False
    keys[:, padded] *= 9
    queries = draw.normal(head, query, d_head) * 1.7
    queries[-1, -1] *= draw.in_turn([1e-6, 1.0, 1e5])  # any length above 0
    keys[-1] *= draw.in_turn([1e-7, 1e6, 1.0])
    return {"queries": queries, "keys": keys, "real": real}


def _lsh(M=lambda keys, real: (keys.norm(dim=-1, keepdim=True) * real[:, None]).amax(dim=1, keepdim=True),
         inside=lambda keys, scaled: scaled, root=torch.sqrt, unit=lambda queries, M: F.normalize(queries, dim=-1),
         order=lambda vector, more: torch.cat([vector, more], dim=-1), more_of_queries=torch.zeros_like,
         hide=lambda P, real: P * real[:, None]):  # fmt: skip
    def answer(queries, keys, real):
        longest = M(keys, real)
        scaled = keys / longest
        rest = root((1 - inside(keys, scaled).square().sum(dim=-1, keepdim=True)).clamp(min=0))
        Q = unit(queries, longest)
        return order(Q, more_of_queries(Q[..., :1])), hide(order(scaled, rest), real)

    return answer


CHANGED = "it changes keys"


def _lsh_said(answer, queries, keys, real):
    """With a key of length 0; the further coordinate as its square: the root of a rounding error is no mistake."""
    first = int(real.nonzero()[0])
    longest = keys.norm(dim=-1).masked_fill(~real, 0).argmax(dim=1) == first
    keys = torch.where((torch.arange(keys.shape[1]) == first)[None, :, None] & ~longest[:, None, None], 0, keys)
    given = keys.clone()
    found = answer(queries, given, real)
    if not torch.equal(given, keys):
        return CHANGED
    if isinstance(found, (tuple, list)) and len(found) == 2 and isinstance(found[1], torch.Tensor) and found[1].dim():
        Q, P = found
        return Q, torch.cat([P[..., :-1], P[..., -1:] * P[..., -1:].abs()], dim=-1)
    return found


def _lsh_keeps_its_input(result, queries, keys, real):
    if isinstance(result, str) and result == CHANGED:
        raise ValueError("your code changes one of its inputs, keys; make a new one instead")
    return result


SIMPLE_LSH = Exercise(
    key="10.3",
    title="Simple-LSH with heads and padding",
    name="simple_lsh",
    minutes=18,
    level="medium",
    inputs=_lsh_inputs,
    returns="Q, P",
    run=_lsh_said,
    measure=_lsh_keeps_its_input,
    right=(
        _lsh(),
        lambda queries, keys, real: _lsh(M=lambda keys, _: keys.norm(dim=-1, keepdim=True).amax(dim=1, keepdim=True))(
            queries, torch.where(real[:, None], keys, 0), real
        ),
    ),
    wrong=mistakes({
        SCALING: {
            "the root is of the length before scaling.": _lsh(inside=lambda keys, scaled: keys),
            "every key is scaled to length 1 by itself, and its length is lost.":
                _lsh(M=lambda keys, real: keys.norm(dim=-1, keepdim=True).clamp(min=1e-12)),
        },
        TRANSFORMS: {
            "the further coordinate of the keys has no root.": _lsh(root=lambda z: z),
            "the further coordinate of the keys is 0.": _lsh(root=torch.zeros_like),
            "the further coordinate is 1 - |k|, with the root of neither.": lambda queries, keys, real: (
                lambda Q, P: (Q, torch.cat([P[..., :-1], (1 - P[..., :-1].norm(dim=-1, keepdim=True))
                                            * real[:, None]], dim=-1))
            )(*_lsh()(queries, keys, real)),
            "the queries keep their length, as in XBOX; here they need the length 1.":
                _lsh(unit=lambda queries, M: queries),
            "the queries are divided by the longest key, as the keys are.": _lsh(unit=lambda queries, M: queries / M),
            "the queries are divided by the longest query, so only that one has the length 1.": _lsh(
                unit=lambda queries, M: queries / queries.norm(dim=-1, keepdim=True).amax(dim=1, keepdim=True)
            ),
            "the further coordinate of the queries is 1, so each product is wrong by that of the key.":
                _lsh(more_of_queries=torch.ones_like),
            "the queries get a root as well, but with a length of 1 nothing is left for it; they have the keys' own.":
                lambda queries, keys, real: (
                    _lsh(unit=lambda queries, M: queries / M, more_of_queries=lambda z: torch.ones_like(z))
                    (queries, keys, real)[0] * 0.5, _lsh()(queries, keys, real)[1],
                ),
        },
        EXERCISE_LSH: {
            "the longest key of all heads is taken; each head has its own.": _lsh(
                M=lambda keys, real: (keys.norm(dim=-1, keepdim=True) * real[:, None]).amax(dim=(0, 1), keepdim=True)
            ),
            "padding takes part in the longest key.":
                _lsh(M=lambda keys, real: keys.norm(dim=-1, keepdim=True).amax(dim=1, keepdim=True)),
            "what stands at padding is not set to zeros.": _lsh(hide=lambda P, real: P),
            "padding loses its numbers, but keeps the further coordinate.": _lsh(
                hide=lambda P, real: torch.where(
                    real[:, None], P, F.pad(torch.zeros_like(P[..., :-1]), (0, 1), value=1.0)
                )
            ),
            "the further coordinate stands first; asked is last.":
                _lsh(order=lambda vector, more: torch.cat([more, vector], dim=-1)),
            "queries that stand where a key is padding are set to zeros; `real` is about keys.":
                lambda queries, keys, real: (
                    lambda Q, P: (Q * F.pad(real, (0, len(Q[0])), value=True)[: len(Q[0]), None], P)
                )(*_lsh()(queries, keys, real)),
            "P and Q are exchanged.": lambda queries, keys, real: _lsh()(queries, keys, real)[::-1],
            "M is the largest number in the keys, not the largest length.":
                _lsh(M=lambda keys, real: (keys.abs() * real[:, None]).amax(dim=(1, 2), keepdim=True)),
            "M is the largest square of a length.": _lsh(
                M=lambda keys, real: (keys.square().sum(dim=-1, keepdim=True) * real[:, None]).amax(1, keepdim=True)
            ),
        },
    }),
)  # fmt: skip


# 10.4. For each query one key has its direction, one is opposite, and one each is nearly so: by an angle that float32
# takes for 0. One trial has one hash, one has one table. Keys are drawn until rounding makes some cosine larger than 1
# and some smaller than -1.


def _chance_inputs(draw):
    sizes = draw.sizes("query key d_head", low=3, high=7)
    hashes, tables = draw.in_turn([(draw.integer(2, 4), 40), (1, 3), (20, 1)])
    query = draw.in_turn([sizes["query"], 1, sizes["query"]])
    while True:
        queries, keys = (draw.normal(n, sizes["d_head"]).double() for n in (query, sizes["key"]))
        queries = queries * torch.linspace(0.3, 3, len(queries))[:, None]
        beside = 2e-4 * queries[0].norm() * F.normalize(_across(queries[0], keys[0]), dim=-1)
        nearly = torch.stack([1.3 * queries[0] + beside, beside - 0.8 * queries[0]])
        keys = torch.cat([2 * keys, 1.7 * queries, -0.6 * queries, nearly])
        queries[-1], keys[0], keys[1] = queries[-1] * 1e-5, keys[0] * 1e-7, keys[1] * 1e6
        cosines = F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).T
        if cosines.max() > 1 and cosines.min() < -1:
            return {"queries": queries, "keys": keys, "hashes": hashes, "tables": tables}


def _across(one, other):
    """What of `other` is at a right angle to `one`."""
    return other - other @ one / (one @ one) * one


def _cosines(queries, keys):
    return (F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).T).clamp(-1, 1)


def _agree(queries, keys):
    return 1 - _cosines(queries, keys).arccos() / torch.pi


def _chance(one=_agree, found=lambda one, hashes, tables: 1 - (1 - one**hashes) ** tables):
    return lambda queries, keys, hashes, tables: found(one(queries, keys), hashes, tables)


def _by_half_angles(queries, keys):
    q, k = F.normalize(queries, dim=-1)[:, None], F.normalize(keys, dim=-1)[None]
    return 1 - 2 * torch.atan2((q - k).norm(dim=-1), (q + k).norm(dim=-1)) / torch.pi


def _table_by_table(queries, keys, hashes, tables):
    one = _agree(queries, keys)
    missed = torch.ones_like(one)
    for _ in range(tables):
        missed = missed * (1 - one.pow(hashes))
    return 1 - missed


def _without_clamp(queries, keys):
    return 1 - (F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).T).arccos() / torch.pi


def _in_float32(queries, keys):
    return 1 - _cosines(queries, keys).float().arccos().double() / torch.pi


CHANCE = Exercise(
    key="10.4",
    title="how likely is a key found?",
    name="chance_to_find",
    minutes=12,
    level="medium",
    inputs=_chance_inputs,
    returns="query key",
    right=(_chance(), _chance(one=_by_half_angles), _table_by_table),
    wrong=mistakes({
        HASHES: {
            "the products are taken for cosines; the vectors have any length.": _chance(
                one=lambda queries, keys: 1 - (queries @ keys.T).clamp(-1, 1).arccos() / torch.pi
            ),
            "only the queries are scaled to length 1, the keys are not.": _chance(
                one=lambda queries, keys: 1 - (F.normalize(queries, dim=-1) @ keys.T).clamp(-1, 1).arccos() / torch.pi
            ),
            "the cosine itself is taken for the chance; the chance comes from the angle.":
                _chance(one=lambda queries, keys: _cosines(queries, keys).clamp(min=0)),
            "the cosine is moved from -1 .. 1 to 0 .. 1; the angle does not rise evenly with it.":
                _chance(one=lambda queries, keys: (1 + _cosines(queries, keys)) / 2),
            "this is the chance that hashes differ.": _chance(one=lambda queries, keys: 1 - _agree(queries, keys)),
            "the angle is divided by a whole turn; the largest one is half a turn.":
                _chance(one=lambda queries, keys: 1 - _cosines(queries, keys).arccos() / (2 * torch.pi)),
            "the angle without its sign: opposite vectors are taken for near ones.":
                _chance(one=lambda queries, keys: 1 - _cosines(queries, keys).abs().arccos() / torch.pi),
            "rounding makes a cosine a little larger than 1, and that has no arccos: NaN.": _chance(one=_without_clamp),
            "the cosine is rounded to float32, where it is 1 for all small angles.": _chance(one=_in_float32),
            "the vectors are float32, where a small angle is lost.":
                lambda queries, keys, hashes, tables: _chance()(queries.float(), keys.float(), hashes, tables).double(),
            "the cosine is cut below 1, so a vector of the same direction has an angle.": _chance(
                one=lambda queries, keys: 1 - _cosines(queries, keys).clamp(-1 + 1e-7, 1 - 1e-7).arccos() / torch.pi
            ),
        },
        EXERCISE_CHANCE: {
            "this is one hash of one table.": _chance(found=lambda one, hashes, tables: one),
            "this is one table; the others may find the key as well.":
                _chance(found=lambda one, hashes, tables: one**hashes),
            "one hash of a table is enough here; all of it must agree.":
                _chance(found=lambda one, hashes, tables: 1 - (1 - one) ** tables),
            "all hashes of all tables must agree here; one table is enough.":
                _chance(found=lambda one, hashes, tables: one ** (hashes * tables)),
            "hashes and tables are exchanged.":
                _chance(found=lambda one, hashes, tables: 1 - (1 - one**tables) ** hashes),
            "any hash of a table is enough here, and all tables must find the key: the two are the other way round.":
                _chance(found=lambda one, hashes, tables: (1 - (1 - one) ** hashes) ** tables),
            "the chances of the tables are added up; that is the mean number of tables, and may be above 1.":
                _chance(found=lambda one, hashes, tables: tables * one**hashes),
            "the sum of the chances is cut at 1.":
                _chance(found=lambda one, hashes, tables: (tables * one**hashes).clamp(max=1)),
            "this is the chance that the key is not found.":
                _chance(found=lambda one, hashes, tables: (1 - one**hashes) ** tables),
            "the result has a row for each key; asked is one for each query.":
                lambda queries, keys, hashes, tables: _chance()(keys, queries, hashes, tables),
        },
    }),
)  # fmt: skip


# 10.5. Few different numbers in rows long enough that topk mixes up equal ones. In one trial the keys' are far below
# any made-up smallest number. Keys and queries differ by less than a rounding to 16 bits would leave. Padding is the
# nearest of all, and token 1 the furthest. One trial keeps one key, one more than there are.


def _routed_inputs(draw):
    length, clusters, keep = draw.in_turn([(draw.integer(36, 42), 4, 3), (draw.integer(30, 35), 3, 1), (7, 2, 9)])
    numbers = [[draw.integer(0, 4) for _ in range(clusters)] for _ in range(2 * length)]
    to_query, to_key = torch.tensor(numbers).float().view(2, length, clusters) / 2 - 1.25  # no zeros
    if keep < 9:
        far, near = (to_query, to_key) if keep == 1 else (to_key, to_query)
        far.div_(1024).sub_(3000)
        near.div_(4096).add_(1)
    real = torch.ones(length, dtype=torch.bool)
    real[[0, draw.integer(2, length - 2)]] = False  # padding on the left, and one in between
    to_key[~real] = to_key.max()
    to_key[1] = to_key.min()
    return {"to_query": to_query, "to_key": to_key, "real": real, "keep": keep}


def _run_routed(answer, to_query, to_key, real, keep):
    one = answer(to_query[:1], to_key[:1], torch.tensor([True]), keep)
    order = to_key.unique(return_inverse=True)[1]  # the same order in other numbers
    padded = real & (torch.arange(len(real)) > 1)  # the first two
    return {
        "the rows": answer(to_query, to_key, real, keep),
        "one token": one,
        "large numbers, and a larger keep": answer(to_query, (order - order.median()) * 1e30, real, keep + 9),
        "numbers that differ in the last digit": answer(to_query, 1 + order * 2.0**-22, padded, keep),
    }


def _rows_of(to_query, to_key):
    return to_key.T[to_query.argmax(dim=1)]


def _routed(rows=_rows_of, allowed=lambda real, n: real & torch.ones(n, n, dtype=torch.bool).tril(),
            choose_from=None, keep_of=lambda keep: keep, later_first=False,
            end=lambda chosen, allowed: chosen & allowed):  # fmt: skip
    """choose_from: what the choice sees; by default what is allowed."""

    def answer(to_query, to_key, real, keep):
        n = len(to_query)
        may, closeness = allowed(real, n), rows(to_query, to_key)
        seen = may if choose_from is None else choose_from(real, n)
        closeness = closeness.masked_fill(~seen, -torch.inf)
        if later_first:
            order = n - 1 - closeness.flip(1).sort(dim=1, descending=True, stable=True).indices
        else:
            order = closeness.sort(dim=1, descending=True, stable=True).indices
        return end(torch.zeros(n, n, dtype=torch.bool).scatter(1, order[:, : keep_of(keep)], True), may)

    return answer


def _everything(real, n):
    return torch.ones(n, n, dtype=torch.bool)


def _past(real, n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def _routed_in_loops(to_query, to_key, real, keep):
    chosen = torch.zeros(len(to_query), len(to_key), dtype=torch.bool)
    for i, row in enumerate(to_query.tolist()):
        cluster = row.index(max(row))
        before = [j for j in range(i + 1) if real[j]]
        for j in sorted(before, key=lambda j: (-to_key[j, cluster].item(), j))[:keep]:
            chosen[i, j] = True
    return chosen


def _routed_by_rank(to_query, to_key, real, keep):
    """A key is chosen if fewer than `keep` allowed ones come before it."""
    closeness, n = _rows_of(to_query, to_key), len(to_query)
    allowed = real & _past(real, n)
    place = torch.arange(n)
    better = (closeness[:, None, :] > closeness[:, :, None]) | (
        (closeness[:, None, :] == closeness[:, :, None]) & (place[None, None, :] < place[None, :, None])
    )
    return allowed & ((better & allowed[:, None, :]).sum(dim=2) < keep)


def _smallest_is_minus_9(to_query, to_key, real, keep):
    closeness = _rows_of(to_query, to_key).masked_fill(~(real & _past(real, len(real))), -9)
    order = closeness.sort(dim=1, descending=True, stable=True)
    chosen = torch.zeros(closeness.shape, dtype=torch.bool)
    return chosen.scatter(1, order.indices[:, :keep], order.values[:, :keep] > -9)


def _forbidden_gets_the_smallest(to_query, to_key, real, keep):
    closeness, allowed = _rows_of(to_query, to_key), real & _past(real, len(real))
    order = closeness.masked_fill(~allowed, closeness.min()).sort(dim=1, descending=True, stable=True).indices
    return torch.zeros_like(allowed).scatter(1, order[:, :keep], True) & allowed


def _nearest_centroid(to_query, to_key, real, keep):
    return (to_query.argmax(dim=1)[:, None] == to_key.argmax(dim=1)[None]) & real & _past(real, len(real))


def _first_of_the_cluster(to_query, to_key, real, keep):
    member = _nearest_centroid(to_query, to_key, real, keep)
    return member & (member.cumsum(dim=1) <= keep)


def _members_of_all(to_query, to_key, real, keep):
    """The paper's way: a cluster takes the nearest of all tokens, queries too."""
    order = to_key.masked_fill(~real[:, None], -torch.inf).sort(dim=0, descending=True, stable=True).indices[:keep]
    member = torch.zeros(to_key.shape, dtype=torch.bool).scatter(0, order, True)
    return (member.int() @ member.int().T > 0) & real & _past(real, len(real))


ROUTED = Exercise(
    key="10.5",
    title="the nearest, without a look ahead",
    name="routed_rows",
    minutes=15,
    level="medium",
    inputs=_routed_inputs,
    returns="query key",
    run=_run_routed,
    right=(_routed(), _routed_in_loops, _routed_by_rank),
    wrong=mistakes({
        TRAP: {
            "the nearest are chosen among all tokens, and later ones are taken away after that: they push earlier ones "
            "out.": _routed(choose_from=lambda real, n: real.expand(n, n)),
            "the nearest are chosen among all tokens, padding too, and only then is forbidden what is forbidden.":
                _routed(choose_from=_everything),
            "later keys may be chosen.": _routed(allowed=lambda real, n: real.expand(n, n)),
            "what is forbidden gets a made-up smallest number, and a closeness can be lower.": _smallest_is_minus_9,
            "what is forbidden gets the smallest closeness of all, and an allowed key may have the same.":
                _forbidden_gets_the_smallest,
            "this is the cluster that takes its nearest of all tokens; a query asks among those before it.":
                _members_of_all,
            "the query itself is left out; j <= i includes it.":
                _routed(allowed=lambda real, n: real & torch.ones(n, n, dtype=torch.bool).tril(-1)),
        },
        CLUSTERS: {
            "these are all keys of the cluster, whatever `keep` is.": _nearest_centroid,
            "only keys whose own nearest centroid it is are chosen, the first of them; asked are the closest, whatever "
            "cluster is theirs.": _first_of_the_cluster,
            "each key looks at the centroid of its own cluster, not at that of the query.": _routed(
                rows=lambda to_query, to_key: to_key.amax(dim=1).expand(len(to_query), -1)
            ),
            "the cluster is that of the key with the same number, not that of the query.":
                _routed(rows=lambda to_query, to_key: to_key.T[to_key.argmax(dim=1)]),
            "the keys are those that are furthest from the centroid.":
                _routed(rows=lambda to_query, to_key: -_rows_of(to_query, to_key)),
            "a query belongs to the centroid from which it is furthest.":
                _routed(rows=lambda to_query, to_key: to_key.T[to_query.argmin(dim=1)]),
            "the closeness of the queries is taken for that of the keys.":
                _routed(rows=lambda to_query, to_key: to_query.T[to_query.argmax(dim=1)]),
            "queries and keys are compared by all their clusters; only that of the query counts.":
                _routed(rows=lambda to_query, to_key: to_query @ to_key.T),
        },
        EXERCISE_ROUTED: {
            "padding may be chosen.": _routed(allowed=_past),
            "padding is left out of the result, but has taken a place of `keep`.": _routed(choose_from=_past),
            "early rows are filled up with keys that they may not attend to.":
                _routed(end=lambda chosen, allowed: chosen),
            "of equals the later key is chosen.": _routed(later_first=True),
            "equals are told apart by a little that is taken off each place; two keys may differ by less than that.":
                lambda to_query, to_key, real, keep: (
                    _routed()(to_query, to_key - 1e-4 * torch.arange(len(real))[:, None], real, keep)
                ),
            "closeness is rounded to 16 bits, and what differed becomes equal.":
                lambda to_query, to_key, real, keep: _routed()(to_query.half(), to_key.half(), real, keep),
            "how close a query is to the centroids is rounded to 16 bits, so it gets another cluster.":
                lambda to_query, to_key, real, keep: _routed()(to_query.half(), to_key, real, keep),
            "there is one key too few in a row.": _routed(keep_of=lambda keep: keep - 1),
            "there is one key too many in a row.": _routed(keep_of=lambda keep: keep + 1),
            "of equal centroids the last one is taken for the query's.": _routed(
                rows=lambda to_query, to_key: (
                    to_key.T[to_query.shape[1] - 1 - to_query.flip(1).argmax(dim=1)]
                )
            ),
            "a query at padding gets no keys; it is treated as any other.":
                lambda to_query, to_key, real, keep: _routed()(to_query, to_key, real, keep) & real[:, None],
            "a row without a key gets its own; it stays without one.":
                lambda to_query, to_key, real, keep: (
                    lambda rows: rows | (torch.eye(len(rows), dtype=torch.bool) & ~rows.any(dim=1, keepdim=True))
                )(_routed()(to_query, to_key, real, keep)),
        },
    }),
)  # fmt: skip


# 10.6. The layers are made where the answer runs: what is drawn is their seed.

LENGTH = 16
MANY, ONE = "many keys count, and more than half of a row is lost", "the one key that counts is lost"


def _sentences_inputs(draw):
    return {"hashed": draw.integer(0, 10**6), "full": 8, "length": LENGTH}


def _layers(seed, d_model):
    """Two layers with the same numbers, one of them with hashes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hashed, full = (Attention(d_model, 1, LENGTH, "dot_product").eval() for _ in range(2))
        full.load_state_dict(hashed.state_dict())
        hashed.pattern = Hashed(d_model, 1, "simple-lsh", hashes=8, keep=4).eval()
    return hashed, full


def _what_is_lost(hashed, full, x):
    """Of each row of each sentence: what is lost, the largest weight of the full row, the largest one that is lost."""
    with torch.no_grad():
        weights, kept = full(x)[1][:, 0], hashed(x)[1][:, 0] > 0
    lost = weights.masked_fill(kept, 0)
    return lost.sum(dim=-1), weights.amax(dim=-1), lost.amax(dim=-1)


def _run_sentences(answer, hashed, full, length):
    seed, d_model = hashed, full
    hashed, full = _layers(seed, d_model)
    x = answer(hashed=hashed, full=full, length=length)
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"the result should be one tensor with both sentences, but is {kind_of(x)}")
    if tuple(x.shape) != (2, length, d_model) or x.dtype != torch.float32:
        raise ValueError(f"the result is {x.dtype} {tuple(x.shape)}, but should be float32 (2, {length}, {d_model})")
    if not x.isfinite().all():
        raise ValueError("the result has numbers that are not finite")
    with torch.no_grad():
        if not _layers(seed, d_model)[1](x.detach())[1].isfinite().all():
            raise ValueError("the map that `full` makes of these sentences holds NaN: the numbers are too large")
    lost, most, most_lost = _what_is_lost(*_layers(seed, d_model), x.detach())  # whatever it has set
    first = MANY if ((lost[0] > 0.5) & (most[0] < 0.25)).any() else (
        "more than half of a row is lost, but a single key has a quarter of it" if (lost[0] > 0.5).any()
        else "in no row more than half is lost"
    )  # fmt: skip
    second = ONE if (most_lost[1] > 0.5).any() else (
        "the keys that hold more than half are all kept" if (most[1] > 0.5).any() else "no key holds more than half"
    )
    return {"sentence 0": first, "sentence 1": second}


def _one_token(hashed, full, length):
    return torch.ones(length, full.score.d_model)


def _lost_key(hashed, full, length, seed=0):
    """A random sentence, long enough vectors, in which the hash misses the key that has more than half."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = 6 * torch.randn(1, length, full.score.d_model, generator=generator)
        if (_what_is_lost(hashed, full, x)[2] > 0.6).any():
            return x[0]


def _all_sharp(hashed, full, length):
    """A sentence in which each row has one key with nearly all, and the hash misses some."""
    generator = torch.Generator().manual_seed(7)
    while True:
        x = 60 * torch.randn(1, length, full.score.d_model, generator=generator)
        lost, most, most_lost = _what_is_lost(hashed, full, x)
        if most.min() > 0.3 and most_lost.max() > 0.6:
            return x[0]


def _kept_key(hashed, full, length):
    """A sentence in which some key holds more than half of a row, and the hash keeps each such key."""
    generator = torch.Generator().manual_seed(3)
    while True:
        x = torch.randn(1, length, full.score.d_model, generator=generator)
        for _ in range(12):
            x = 1.3 * x
            _, most, most_lost = _what_is_lost(hashed, full, x)
            if most.max() > 0.55:
                if most_lost.max() < 0.45:
                    return x[0]
                break


def _both(one, other):
    return lambda hashed, full, length: torch.stack([one(hashed, full, length), other(hashed, full, length)])


def _quiet(hashed, full, length):
    return 0.01 * torch.randn(length, full.score.d_model, generator=torch.Generator().manual_seed(5))


def _query_against_its_key(hashed, full, length):
    """The first sentence that works, of one token drawn at random and others that are its multiples."""
    generator = torch.Generator().manual_seed(11)
    while True:
        one = torch.randn(full.score.d_model, generator=generator)
        x = one * torch.randn(length, 1, generator=generator) * 8
        if (_what_is_lost(hashed, full, x[None])[2] > 0.6).any():
            return x


SENTENCES = Exercise(
    key="10.6",
    title="two sentences that a hash gets wrong",
    name="sentences_that_differ",
    minutes=30,
    level="hard",
    inputs=_sentences_inputs,
    returns="two sentences",
    run=_run_sentences,
    right=(
        _both(_one_token, _lost_key),
        _both(_quiet, partial(_lost_key, seed=1)),
        _both(lambda hashed, full, length: torch.zeros(length, full.score.d_model), _query_against_its_key),
    ),
    wrong=mistakes({
        STRETCH: {
            "both sentences have many keys that count; in the second one key is to hold more than half.":
                _both(_quiet, _one_token),
            "in both sentences one key of a row has nearly all; in the first many are to count.":
                _both(_all_sharp, _lost_key),
            "the two sentences have changed places.": _both(_all_sharp, _one_token),
            "in the second sentence one key holds more than half, but the hash finds it.": _both(_one_token, _kept_key),
        },
        RECALL: {
            "one key has nearly all in the first sentence, and in the second such a key is found by the hash.":
                _both(_all_sharp, _kept_key),
        },
    }) + mistakes({
        STRETCH: {
            "these are two results, not one tensor.":
                lambda hashed, full, length: (_one_token(hashed, full, length), _lost_key(hashed, full, length)),
        },
    }, error="but is a tuple of 2") + mistakes({
        STRETCH: {
            "this is one sentence; asked are two, and a batch axis.": _one_token,
        },
    }, error="float32 (16, 8), but") + mistakes({
        STRETCH: {
            "these are maps of attention, not sentences.":
                lambda hashed, full, length: full(_both(_one_token, _quiet)(hashed, full, length))[1],
        },
    }, error="(2, 1, 16, 16), but"),
)  # fmt: skip

EXERCISES = [STRIDED, CONNECT_ALL, SIMPLE_LSH, CHANCE, ROUTED, SENTENCES]
