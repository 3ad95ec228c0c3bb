"""The exercises of chapter 11: the floor of a step, and kernels that never make the map."""

from operator import index

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from synth_lib.checks.exercise import Exercise, Mistake, mistakes
from synth_lib.lab import measure

FLOOR = "The floor"
TWO = "Two numbers of a machine"
PRODUCT = "Multiply-adds, counted aloud"
BACKWARD = "The backward pass: each product twice more"
BYTES = "Bytes: who writes the map, who reads it"
FUSED = "A kernel that never writes the map"
DENSE = "The same from torch's own kernel"
SILENT = "Right, and silently slow"
QUERIES = "Factorized Random: queries and keys are parameters"
CAUSAL = "The causal mask: half of the work is for nothing"
EXERCISE_FLOOR = "Exercise 11.1: the floor of a matrix product"
EXERCISE_CROSSOVER = "Exercise 11.2: from which length on?"
EXERCISE_QUERIES = "Exercise 11.3: Factorized Random for a fused kernel"
EXERCISE_BLOCKS = "Exercise 11.4: leave out the upper half"


# 11.1. Three of the six products are bound by memory on the drawn machine: in each another table is small, so a table
# that is forgotten shows. One is bound by compute. Two lie near the balance of the machine, one on either side.


def _floor_inputs(draw):
    few = [draw.integer(2, 6) for _ in range(3)]
    many = [(draw.integer(200, 500), draw.integer(501, 900)) for _ in range(3)]
    products = [(few[0], *many[0]), (many[1][0], few[1], many[1][1]), (*many[2], few[2])]
    products += [tuple(draw.integer(300, 900) for _ in range(3))]
    item = 2 * draw.integer(1, 2)
    balance = draw.integer(20, 120)  # operations in the time of one number
    bytes_per_second = 1e9 * draw.integer(11, 99)
    rows, columns = draw.integer(500, 700), draw.integer(701, 900)
    for near in (balance * 1.5, balance / 1.5):  # operations for each number that is moved
        products += [(rows, round(near / (2 - near * (1 / rows + 1 / columns))), columns)]
    turn = draw.integer(0, 5)
    return {
        "products": products[turn:] + products[:turn],
        "item": item,
        "operations_per_second": bytes_per_second * balance / item,
        "bytes_per_second": bytes_per_second,
    }


def _times(rows, inner, columns, item, operations_per_second, bytes_per_second):
    """Microseconds: (of the operations, of the bytes)."""
    moved = rows * inner + inner * columns + rows * columns
    return 1e6 * 2 * rows * inner * columns / operations_per_second, 1e6 * item * moved / bytes_per_second


def _floors(products, item, operations_per_second, bytes_per_second):
    floors = []
    for rows, inner, columns in products:
        compute, memory = _times(rows, inner, columns, item, operations_per_second, bytes_per_second)
        floors.append((max(compute, memory), "compute" if compute > memory else "memory"))
    return floors


def _floors_by_balance(products, item, operations_per_second, bytes_per_second):
    """Operations for each byte, against what the machine does of both in the same time."""
    balance, floors = operations_per_second / bytes_per_second, []
    for rows, inner, columns in products:
        operations = 2 * rows * inner * columns
        moved = item * (inner * (rows + columns) + rows * columns)
        bound = "compute" if operations / moved > balance else "memory"
        seconds = operations / operations_per_second if bound == "compute" else moved / bytes_per_second
        floors.append((seconds / 1e-6, bound))
    return floors


def _floors_of_pairs(products, item, operations_per_second, bytes_per_second):
    pairs = [_times(*product, item, operations_per_second, bytes_per_second) for product in products]
    return [max(zip(pair, ("compute", "memory"), strict=True)) for pair in pairs]


def _floors_with(operations=None, moved=None, together=max, bound=None, unit=1e6):
    """Another count of operations or numbers, another way to put the two times together."""

    def answer(products, item, operations_per_second, bytes_per_second):
        floors = []
        for sizes in products:
            rows, inner, columns = sizes
            counted = operations(*sizes) if operations else 2 * rows * inner * columns
            numbers = moved(*sizes, item) if moved else item * (rows * inner + inner * columns + rows * columns)
            compute, memory = unit * counted / operations_per_second, unit * numbers / bytes_per_second
            larger = bound(compute, memory, counted, numbers) if bound else compute > memory
            floors.append((together(compute, memory), "compute" if larger else "memory"))
        return floors

    return answer


FLOORS = Exercise(
    key="11.1",
    title="the floor of a matrix product",
    name="product_floors",
    minutes=8,
    level="easy",
    inputs=_floor_inputs,
    returns="a list of (microseconds, bound)",
    right=(_floors, _floors_by_balance, _floors_of_pairs),
    wrong=mistakes({
        FLOOR: {
            "the two times are added; a machine can move the next numbers while it multiplies these.":
                _floors_with(together=lambda compute, memory: compute + memory),
            "the shorter of the two times is taken, but the step waits for the longer one.": _floors_with(together=min),
            "the two factors are read, but the result is never written.":
                _floors_with(moved=lambda rows, inner, columns, item: item * (rows * inner + inner * columns)),
            "the result is read and written; it is only written.":
                _floors_with(
                    moved=lambda rows, inner, columns, item: (
                        item * (rows * inner + inner * columns + 2 * rows * columns)
                    )
                ),
            "three tables are moved, but each is counted as large as the first one.":
                _floors_with(moved=lambda rows, inner, columns, item: 3 * item * rows * inner),
            "only the operations are counted, but the numbers must also come from memory.":
                _floors_with(together=lambda compute, memory: compute, bound=lambda *counts: True),
            "only the result is moved, but the two factors must be read.":
                _floors_with(moved=lambda rows, inner, columns, item: item * rows * columns),
            "the sizes of the three tables are multiplied, where the numbers in each table should be added up.":
                _floors_with(moved=lambda rows, inner, columns, item: item * rows * inner * columns),
            "every multiply-add is taken to fetch two numbers from memory, but each number is fetched once.":
                _floors_with(moved=lambda rows, inner, columns, item: 2 * item * rows * inner * columns),
            "the times are right, but the two names are swapped: the longer time is what binds.":
                _floors_with(bound=lambda compute, memory, counted, numbers: compute < memory),
            "the times are right, but the bound compares operations with bytes; compare the two times.":
                _floors_with(bound=lambda compute, memory, counted, numbers: counted > numbers),
        },
        TWO: {
            "a multiply-add is counted as one operation, but the rate of the machine counts it as two.":
                _floors_with(operations=lambda rows, inner, columns: rows * inner * columns),
            "numbers are counted, not bytes.":
                _floors_with(moved=lambda rows, inner, columns, item: rows * inner + inner * columns + rows * columns),
            "bits are counted, not bytes: item already is in bytes.":
                _floors_with(
                    moved=lambda rows, inner, columns, item: (
                        8 * item * (rows * inner + inner * columns + rows * columns)
                    )
                ),
            "the two rates of the machine are swapped.":
                lambda products, item, operations_per_second, bytes_per_second: _floors(
                    products, item, bytes_per_second, operations_per_second
                ),
        },
        PRODUCT: {
            "all are bound by memory here; but each number of the result is a sum over the whole inner axis.":
                _floors_with(operations=lambda rows, inner, columns: 2 * rows * columns),
        },
        EXERCISE_FLOOR: {
            "these are seconds; microseconds are asked for.": _floors_with(unit=1.0),
            "these are milliseconds; microseconds are asked for.": _floors_with(unit=1e3),
            "the times are right, but what sets each of them is not said.":
                lambda products, item, operations_per_second, bytes_per_second: [
                    seconds for seconds, _ in _floors(products, item, operations_per_second, bytes_per_second)
                ],
        },
    }),
)  # fmt: skip


# 11.2. Plain against fused, forward and backward. The machine is drawn so that there is a crossover, at `wanted`. The
# check also asks where there is none, and with a max_length at the crossover that the answer gives and just below it.


PLAIN, KERNEL = (12, 12, 11), (14, 12, 0)  # operations / (l^2 d_head), numbers / (l d_head), numbers / l^2


def _crossover_inputs(draw):
    d_head, item = 8 * draw.integer(3, 16), 2 * draw.integer(1, 2)
    wanted = draw.integer(150, 1500) + 0.5
    bytes_per_second = 1e9 * draw.integer(11, 99)
    # There the operations of the fused form take as long as the bytes of the plain one.
    balance = 14 * d_head * wanted / (item * (12 * d_head + 11 * wanted))
    return {
        "d_head": d_head,
        "item": item,
        "operations_per_second": bytes_per_second * balance,
        "bytes_per_second": bytes_per_second,
        "max_length": 3000 + draw.integer(1, 900),
    }


def _crossovers(answer, operations_per_second, max_length, **machine):
    """The answer, also on a machine whose bytes are slow, and with the max_length that it gives and just below."""

    def ask(operations_per_second=operations_per_second, max_length=max_length):
        return answer(operations_per_second=operations_per_second, max_length=max_length, **machine)

    result = ask()
    if not isinstance(result, tuple) or len(result) != 3:
        return result
    own = result[0] if type(result[0]) is int and 1 < result[0] < max_length else max_length
    slow = ask(operations_per_second=20 * operations_per_second)
    first = {
        "on this machine": result[0],
        "where bytes are slower": slow[0],
        "if max_length is too short": ask(max_length=own - 1)[0],
        "if max_length is just long enough": ask(max_length=own)[0],
    }
    plain, fused = ({"on this machine": result[part], "where bytes are slower": slow[part]} for part in (1, 2))
    return {where: _in_words(length) for where, length in first.items()}, plain, fused


def _in_words(first):
    """In words: a None that is an answer is no forgotten return."""
    try:
        return f"length {index(first)}"
    except TypeError:
        return "no length" if first is None else repr(first)


def _crossover_with(
    plain=PLAIN, fused=KERNEL, together=max, unit=1e6, item_of=lambda item: item, pick=None, swap=False, none=None
):
    """The answer from other counts, or other ways to use them. none(max_length): what is returned for None."""

    def answer(d_head, item, operations_per_second, bytes_per_second, max_length):
        if swap:
            operations_per_second, bytes_per_second = bytes_per_second, operations_per_second

        def floor(counts, length):
            operations, tokens, maps = counts
            compute = unit * operations * length**2 * d_head / operations_per_second
            memory = unit * item_of(item) * (tokens * length * d_head + maps * length**2) / bytes_per_second
            return together(compute, memory)

        ahead = [length for length in range(1, max_length + 1) if floor(plain, length) < floor(fused, length)]
        first = pick(ahead, max_length) if pick else ahead[0] if ahead else none(max_length) if none else None
        return first, floor(plain, max_length), floor(fused, max_length)

    return answer


_crossover = _crossover_with()


def _crossover_while(d_head, item, operations_per_second, bytes_per_second, max_length):
    """For one head; written out."""

    def plain(length):
        operations = 6 * (2 * length * length * d_head)
        moved = item * (12 * length * d_head + 11 * length * length)
        return 1e6 * max(operations / operations_per_second, moved / bytes_per_second)

    def fused(length):
        operations = 7 * (2 * length * length * d_head)
        return 1e6 * max(operations / operations_per_second, item * 12 * length * d_head / bytes_per_second)

    length = 1
    while length <= max_length and plain(length) >= fused(length):
        length += 1
    return (length if length <= max_length else None), plain(max_length), fused(max_length)


def _crossover_vectors(d_head, item, operations_per_second, bytes_per_second, max_length):
    length = torch.arange(1, max_length + 1, dtype=torch.float64)
    product, tokens = 2 * length**2 * d_head / operations_per_second, 12 * item * length * d_head / bytes_per_second
    plain = torch.maximum(6 * product, tokens + 11 * item * length**2 / bytes_per_second)
    fused = torch.maximum(7 * product, tokens)
    ahead = (plain < fused).nonzero().flatten().tolist()
    first = ahead[0] + 1 if ahead else None
    return first, 1e6 * plain[-1].item(), 1e6 * fused[-1].item()


CROSSOVER = Exercise(
    key="11.2",
    title="from which length on?",
    name="crossover",
    minutes=15,
    level="medium",
    inputs=_crossover_inputs,
    returns="first, plain, fused",
    run=_crossovers,
    right=(_crossover, _crossover_while, _crossover_vectors),
    wrong=mistakes({
        BACKWARD: {
            "only the forward pass is counted; a training step also goes backward.":
                _crossover_with(plain=(4, 4, 4), fused=(4, 4, 0)),
            "the backward pass is counted like the forward pass, but it has more products.":
                _crossover_with(plain=(8, 8, 8), fused=(8, 8, 0)),
        },
        FUSED: {
            "the fused form has as many products as the plain one, but in the backward pass it lacks something.":
                _crossover_with(fused=(12, 12, 0)),
            "the fused form computes two products again in the backward pass; the average is not needed again.":
                _crossover_with(fused=(16, 12, 0)),
            "the fused form is taken to move the map as often as the plain one, but it never writes a map down.":
                _crossover_with(fused=(14, 12, 11)),
        },
        TWO: {
            "a multiply-add is counted as one operation, but the rate of the machine counts it as two.":
                _crossover_with(plain=(6, 12, 11), fused=(7, 12, 0)),
            "numbers are counted, not bytes.": _crossover_with(item_of=lambda item: 1),
            "the two rates of the machine are swapped.": _crossover_with(swap=True),
        },
        BYTES: {
            "the map is moved in the forward pass alone, but the backward pass reads and writes it more often.":
                _crossover_with(plain=(12, 12, 4)),
            "the map is moved once, but each step that writes or reads it counts.": _crossover_with(plain=(12, 12, 1)),
            "queries, keys and values are not moved; they are small beside a long map, not beside a short one.":
                _crossover_with(plain=(12, 0, 11), fused=(14, 0, 0)),
        },
        FLOOR: {
            "the two times are added; the floor is the longer one.":
                _crossover_with(together=lambda compute, memory: compute + memory),
            "the shorter of the two times is taken, but a step waits for the longer one.":
                _crossover_with(together=min),
            "only the operations are counted, so the plain form wins from the first length on.":
                _crossover_with(together=lambda compute, memory: compute),
            "only the bytes are counted, so the fused form can never lose.":
                _crossover_with(together=lambda compute, memory: memory),
        },
        EXERCISE_CROSSOVER: {
            "the floors are in seconds; microseconds are asked for.": _crossover_with(unit=1.0),
            "the floors are in milliseconds; microseconds are asked for.": _crossover_with(unit=1e3),
            "the two floors are returned in the wrong order: plain comes before fused.":
                lambda **machine: (lambda first, plain, fused: (first, fused, plain))(*_crossover(**machine)),
            "where there is no such length, this gives 0; None is asked for.":
                _crossover_with(none=lambda max_length: 0),
            "where there is no such length, this gives -1; None is asked for.":
                _crossover_with(none=lambda max_length: -1),
            "where there is no such length, this gives max_length; None is asked for.":
                _crossover_with(none=lambda max_length: max_length),
            "where there is no such length, this gives max_length + 1; None is asked for.":
                _crossover_with(none=lambda max_length: max_length + 1),
            "the search goes on beyond max_length.":
                lambda max_length, **machine: (
                    _crossover(max_length=4000, **machine)[0],
                    *_crossover(max_length=max_length, **machine)[1:],
                ),
            "the search ends before max_length, which belongs to the lengths that are asked about.":
                _crossover_with(pick=lambda ahead, max_length: ahead[0] if ahead and ahead[0] < max_length else None),
            "this is the last length at which the fused form is at least as good, not the first at which it is not.":
                _crossover_with(pick=lambda ahead, max_length: max_length - len(ahead) if ahead else None),
            "this is the last length that was tried: does the loop end when the first one is found?":
                _crossover_with(pick=lambda ahead, max_length: ahead[-1] if ahead else None),
            "this is the first length at which the fused form is the better one; it is asked when the plain one is.":
                _crossover_with(pick=lambda ahead, max_length: next(n for n in range(1, max_length) if n not in ahead)),
        },
    }),
)  # fmt: skip


# 11.3. The answer prepares the arguments, the check calls the kernel: so it also sees whether a map is made. Where
# answers run in a process of their own, a map that one makes and throws away is not seen; one that it returns is.


def _kernel_inputs(draw):
    sizes = draw.sizes("batch head rank d_head", high=11)
    rank, d_head = sorted((sizes["rank"], sizes["d_head"]))
    # Primes, larger than the other sizes: no product or difference of those is taken for an axis of a map.
    length, max_length = [(23, 29), (23, 31), (29, 37), (31, 37)][draw.integer(0, 3)]
    factor = (sizes["head"], max_length, rank)
    value = (sizes["batch"], sizes["head"], length, d_head)
    return {"R1": draw.normal(*factor), "R2": draw.normal(*factor), "value": draw.normal(*value)}


class _Maps(TorchDispatchMode):
    """Whether a tensor is made that holds length x length numbers for each head, or max_length of either."""

    def __init__(self, R1, value):
        super().__init__()
        self.lengths, self.made = {R1.shape[1], value.shape[2]}, False
        self.smallest = value.shape[1] * value.shape[2] ** 2

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        made = function(*arguments, **(named or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1 and self.lengths.issuperset(tensor.shape[-2:]):
                self.made |= tensor.numel() >= self.smallest
        return made


def _by_kernel(answer, R1, R2, value):
    with _Maps(R1, value) as own:
        arguments = answer(R1=R1, R2=R2, value=value)
    if not isinstance(arguments, dict):
        raise TypeError(f"the result should be a dict of arguments, but is of type {type(arguments).__name__}")
    key, mask = arguments.get("key"), arguments.get("attn_mask")
    if isinstance(key, torch.Tensor) and key.dim() == 4 and key.shape[2] != value.shape[2]:
        # torch's kernel on a CPU does not check this: it would read what lies behind the values.
        raise ValueError(f"there are {key.shape[2]} keys, but {value.shape[2]} values")
    with _Maps(R1, value) as maps:
        mixed = F.scaled_dot_product_attention(value=value, **arguments)
    if isinstance(mask, torch.Tensor) and mask.numel() >= own.smallest:
        tables = mask.flatten(0, -3)
        shared = torch.equal(tables, tables[:1].expand_as(tables))
        return mixed, f"attn_mask holds {'the same' if shared else 'another'} table for every head"
    if own.made:
        return mixed, "a map is made before the kernel runs"
    if not maps.made:
        return mixed, "no map is made"
    same = arguments["query"].shape[-1] == value.shape[-1]
    return mixed, f"a map is made, though the features are {'as many as' if same else 'not those of'} the values"


def _arguments(query, key, value, **options):
    """Factors "head length rank" as the kernel takes them: for every sentence, with zeros up to d_head features."""
    query, key = (
        F.pad(factor, (0, value.shape[-1] - factor.shape[-1])).expand(len(value), -1, -1, -1) for factor in (query, key)
    )
    return {"query": query, "key": key, "is_causal": True, "scale": 1.0} | options


def _cut(R1, R2, value):
    length = value.shape[2]
    return R1[:, :length], R2[:, :length]


def _kernel(R1, R2, value):
    return _arguments(*_cut(R1, R2, value), value)


def _kernel_default_scale(R1, R2, value):
    """The default scale, taken back by the queries."""
    batch, head, length, d_head = value.shape
    query, key = torch.zeros(2, batch, head, length, d_head)
    query[..., : R1.shape[-1]] = R1[:, :length] * d_head**0.5
    key[..., : R2.shape[-1]] = R2[:, :length]
    return {"query": query, "key": key, "is_causal": True}


def _kernel_ones(R1, R2, value):
    """Filled up with ones: every score grows by the same number, and the softmax does not see it."""
    query, key = _cut(R1, R2, value)
    ones = torch.ones(len(value), *query.shape[:2], value.shape[-1] - query.shape[-1])
    query, key = (torch.cat([factor.expand(len(value), -1, -1, -1), ones], dim=-1) for factor in (query, key))
    return {"query": query, "key": key, "is_causal": True, "scale": 1}


def _kernel_mask(R1, R2, value):
    """The mask as a table, which all heads share."""
    length = value.shape[2]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    fill = torch.zeros(len(R1), length, value.shape[-1] - R1.shape[-1])
    query, key = (torch.cat([factor[:, :length], fill], dim=-1).repeat(len(value), 1, 1, 1) for factor in (R1, R2))
    return {"query": query, "key": key, "attn_mask": mask, "scale": 1.0}


def _kernel_unpadded(R1, R2, value):
    query, key = (factor.expand(len(value), -1, -1, -1) for factor in _cut(R1, R2, value))
    return {"query": query, "key": key, "is_causal": True, "scale": 1.0}


def _kernel_unexpanded(R1, R2, value):
    return _arguments(*_cut(R1, R2, value), value[:1])


def _kernel_backward(R1, R2, value):
    mask = torch.ones(value.shape[2], value.shape[2], dtype=torch.bool).triu()
    return _arguments(*_cut(R1, R2, value), value, is_causal=False, attn_mask=mask)


def _kernel_mask_for_each(R1, R2, value):
    batch, head, length, _ = value.shape
    mask = torch.ones(length, length, dtype=torch.bool).tril().expand(batch, head, -1, -1)
    return _arguments(*_cut(R1, R2, value), value, is_causal=False, attn_mask=mask)


def _kernel_bias(R1, R2, value):
    scores = torch.einsum("hik,hjk->hij", *_cut(R1, R2, value))
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    nothing = torch.zeros_like(value)
    return {"query": nothing, "key": nothing, "attn_mask": scores.masked_fill(future, -float("inf"))}


def _kernel_and_a_map(R1, R2, value):
    torch.einsum("hik,hjk->hij", R1, R2)
    return _kernel(R1, R2, value)


def _kernel_with(change):
    """The right arguments, from other factors: change(R1, R2, value) -> two factors."""
    return lambda R1, R2, value: _arguments(*change(R1, R2, value), value)


def _softmax_first(R1, R2, value):
    return [factor.softmax(dim=-1) for factor in _cut(R1, R2, value)]


def _relu_first(R1, R2, value):
    query, key = _cut(R1, R2, value)
    return query.relu(), key


def _last_rows(R1, R2, value):
    length = value.shape[2]
    return R1[:, -length:], R2[:, -length:]


def _first_head(R1, R2, value):
    return [factor[:1].expand(len(R1), -1, -1) for factor in _cut(R1, R2, value)]


FACTORS = Exercise(
    key="11.3",
    title="Factorized Random for a fused kernel",
    name="kernel_arguments",
    minutes=15,
    level="medium",
    inputs=_kernel_inputs,
    returns="mixed, memory",
    run=_by_kernel,
    right=(_kernel, _kernel_default_scale, _kernel_mask, _kernel_ones),
    wrong=(*mistakes({
        SILENT: {
            "the values are right, but torch takes the slow form: queries and keys have too few features.":
                _kernel_unpadded,
            "the values are right, but torch takes the slow form: queries and keys have another batch axis.":
                _kernel_unexpanded,
        },
        QUERIES: {
            "the values are right, but the map is made first and given to the kernel as a bias.": _kernel_bias,
            "the two factors are swapped: which one has a row for each query?":
                lambda R1, R2, value: _kernel(R2, R1, value),
            "the factors go through a softmax of their own; the kernel makes the only one there is.":
                _kernel_with(_softmax_first),
            "the queries go through a relu; that belongs to Dense, here the factors are used as they are.":
                _kernel_with(_relu_first),
            "every head uses the factors of the first one.": _kernel_with(_first_head),
            "queries and keys both come from R1.": lambda R1, R2, value: _kernel(R1, R1, value),
        },
        EXERCISE_QUERIES: {
            "the values are right, but the function itself makes a map, before the kernel runs.": _kernel_and_a_map,
            "the values are right, but attn_mask is a table for every head; they can share one.": _kernel_mask_for_each,
            "the mask is missing: queries attend to later keys.":
                lambda R1, R2, value: _arguments(*_cut(R1, R2, value), value, is_causal=False),
            "the mask is missing, and the scores are divided by the root of d_head.":
                lambda R1, R2, value: _arguments(*_cut(R1, R2, value), value, is_causal=False, scale=None),
            "the mask is the wrong way round: queries attend to themselves and to later keys.": _kernel_backward,
            "a shorter sentence gets the last rows of the factors; it stands at the first positions.":
                _kernel_with(_last_rows),
        },
        DENSE: {
            "the scores are divided by the root of d_head: the default of the kernel, made for the dot product.":
                lambda R1, R2, value: _arguments(*_cut(R1, R2, value), value, scale=None),
            "the scores are divided by the root of the rank; only the dot product is scaled.":
                lambda R1, R2, value: _arguments(*_cut(R1, R2, value), value, scale=R1.shape[-1] ** -0.5),
        },
    }), Mistake(
            lambda R1, R2, value: _arguments(R1, R2, value),
            "the factors have a row for each of max_length positions, the values only for those of the sentence.",
            EXERCISE_QUERIES,
            error="ValueError: there are",
        )),
)  # fmt: skip


# 11.4. One map for the batch, made and used in blocks. The last block is shorter than the others.


def _blocks_inputs(draw):
    while True:
        sizes = draw.sizes("batch head d_head size", low=2, high=6)
        if sizes["size"] > 2:  # in a block of two, one key ahead is all that there is
            break
    length = sizes["size"] * draw.integer(3, 4) + draw.integer(1, sizes["size"] - 1)
    value = (sizes["batch"], sizes["head"], length, sizes["d_head"])
    return {"scores": draw.normal(sizes["head"], length, length), "value": draw.normal(*value), "size": sizes["size"]}


def _with_reads(answer, scores, value, size):
    """The result; which query's result reads which key; and whether less is multiplied than in the full product.

    0 times NaN is NaN, so a NaN shows who multiplies it. But not whether somebody set it to 0 before: where the NaNs
    show nothing amiss, the operations are counted too.
    """
    results = []
    counted = measure.operations(lambda: results.append(answer(scores=scores, value=value, size=size)))
    (mixed,), length = results, value.shape[2]
    each = value[:1].repeat(length, 1, 1, 1)  # in sentence j, key j is NaN
    each[range(length), :, range(length)] = float("nan")
    read = answer(scores=scores, value=each, size=size)
    if not isinstance(read, torch.Tensor) or read.shape != each.shape:
        return mixed, None, None
    multiplied = read.isnan().any(dim=3).any(dim=1).mT.contiguous()
    position = torch.arange(length)
    amiss = (multiplied & (position >= (position // size + 1)[:, None] * size)).any().item()
    return mixed, multiplied, amiss or counted < 0.9 * 2 * value.numel() * length


def _masked(scores, first=0, ahead=1):
    """The weights of the queries first, first + 1, ..., from their scores for the keys 0, 1, ..."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(first + ahead)
    return scores.masked_fill(future, -float("inf")).softmax(dim=-1)


def _blocks_cat(scores, value, size):
    parts = []
    for start in range(0, value.shape[2], size):
        stop = min(start + size, value.shape[2])
        parts.append(_masked(scores[:, start:stop, :stop], start) @ value[:, :, :stop])
    return torch.cat(parts, dim=2)


def _blocks_written(scores, value, size):
    """The whole map first, its products in blocks."""
    weights, mixed = _masked(scores), torch.empty_like(value)
    for stop in range(size, value.shape[2] + size, size):
        rows = weights[:, stop - size : stop, :stop]
        mixed[:, :, stop - size : stop] = torch.einsum("hij,bhjd->bhid", rows, value[:, :, :stop])
    return mixed


def _blocks_one_matrix(scores, value, size):
    """The values of all sentences side by side, as one matrix for each head."""
    features = value.permute(1, 2, 0, 3).flatten(2)
    parts, seen = [], 0
    for rows in _masked(scores).split(size, dim=1):
        seen += rows.shape[1]
        parts.append(torch.bmm(rows[:, :, :seen], features[:, :seen]))
    mixed = torch.cat(parts, dim=1).unflatten(2, (len(value), -1))
    return mixed.permute(2, 0, 1, 3)


def _blocks_with(keys, weights=_masked):
    """keys(start, stop, length): the keys (first, last) of the block of queries start .. stop; weights: the map."""

    def answer(scores, value, size):
        length, parts = value.shape[2], []
        for start in range(0, length, size):
            stop = min(start + size, length)
            first, last = keys(start, stop, length)
            parts.append(weights(scores)[:, start:stop, first:last] @ value[:, :, first:last])
        return torch.cat(parts, dim=2)

    return answer


def _to_its_end(start, stop, length):
    return 0, stop


def _blocks_each(weights, keys=_to_its_end):
    """weights(scores, start): the weights of one block, from its scores alone."""

    def answer(scores, value, size):
        length, parts = value.shape[2], []
        for start in range(0, length, size):
            stop = min(start + size, length)
            first, last = keys(start, stop, length)
            parts.append(weights(scores[:, start:stop, first:last], start) @ value[:, :, first:last])
        return torch.cat(parts, dim=2)

    return answer


def _no_softmax(scores, start):
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(start + 1)
    return scores.masked_fill(future, -float("inf"))


def _blocks_without_the_rest(scores, value, size):
    whole = value.shape[2] // size * size
    return _blocks_cat(scores[:, :whole, :whole], value[:, :, :whole], size)


def _blocks_rest_at_zero(scores, value, size):
    mixed = _blocks_without_the_rest(scores, value, size)
    return torch.cat([mixed, torch.zeros_like(value[:, :, mixed.shape[2] :])], dim=2)


BLOCKS = Exercise(
    key="11.4",
    title="leave out the upper half",
    name="causal_product",
    minutes=15,
    level="medium",
    inputs=_blocks_inputs,
    returns="mixed, multiplied, less work than the full product",
    run=_with_reads,
    right=(_blocks_cat, _blocks_written, _blocks_one_matrix),
    wrong=mistakes({
        CAUSAL: {
            "the values are right, but it multiplies the upper half too: a weight of 0 costs as much as any other.":
                lambda scores, value, size: _masked(scores) @ value,
            "nothing is masked, and nothing is left out: queries attend to later keys.":
                lambda scores, value, size: scores.softmax(dim=-1) @ value,
            "inside its own block, a query attends to keys behind it: the stairs are not yet the diagonal.":
                _blocks_each(lambda scores, start: scores.softmax(dim=-1)),
            "each block sees the keys from its own on: that is the half that should be left out.":
                _blocks_with(lambda start, stop, length: (start, length)),
        },
        EXERCISE_BLOCKS: {
            "the mask of every block begins at its first key, as if its first query stood at position 0.":
                _blocks_each(lambda scores, start: _masked(scores)),
            "the softmax runs over all keys, and the later ones are cut off after it: the rows no longer sum to 1.":
                _blocks_with(_to_its_end, weights=lambda scores: scores.softmax(dim=-1).tril()),
            "later keys get the score 0, not minus infinity, and with it some of the weight.":
                _blocks_with(_to_its_end, weights=lambda scores: scores.tril().softmax(dim=-1)),
            "the scores themselves average the values; the softmax is missing.":
                _blocks_with(_to_its_end, weights=lambda scores: scores.tril()),
            "there is no softmax and no mask: the scores themselves average the values.":
                _blocks_each(lambda scores, start: scores),
            "the mask of minus infinity is there, but no softmax after it, which would make it 0.":
                _blocks_each(_no_softmax),
            "the own token is masked too: query 0 has nothing left, and its weights are NaN.":
                _blocks_with(_to_its_end, weights=lambda scores: _masked(scores, ahead=0)),
            "the mask lets each query see one key ahead.":
                _blocks_with(_to_its_end, weights=lambda scores: _masked(scores, ahead=2)),
            "the mask of each block lets a query see one key ahead.":
                _blocks_each(lambda scores, start: _masked(scores, start, ahead=2)),
            "the scores are transposed: rows are queries.":
                _blocks_with(_to_its_end, weights=lambda scores: _masked(scores.mT)),
            "each block ends before its own keys: a query must attend to itself.":
                _blocks_with(lambda start, stop, length: (0, start)),
            "each block sees its own keys alone; the keys before it are missing.":
                _blocks_with(lambda start, stop, length: (start, stop)),
            "only the blocks on the diagonal are left, each with a softmax of its own; earlier keys are missing.":
                _blocks_each(lambda scores, start: _masked(scores), keys=lambda start, stop, length: (start, stop)),
            "each block ends one key too early: its last query must attend to itself.":
                _blocks_with(lambda start, stop, length: (0, stop - 1)),
            "each block sees no key after its first query, though its later queries may.":
                _blocks_with(lambda start, stop, length: (0, start + 1)),
            "the values are right, but each block multiplies one key too many.":
                _blocks_with(lambda start, stop, length: (0, min(stop + 1, length))),
            "the values are right, but every query is a block of its own; the argument size is not used.":
                lambda scores, value, size: _blocks_cat(scores, value, 1),
            "the last block, shorter than the others, is left at 0.": _blocks_rest_at_zero,
            "the last block, shorter than the others, is missing.": _blocks_without_the_rest,
        },
    }),
)  # fmt: skip

EXERCISES = [FLOORS, CROSSOVER, FACTORS, BLOCKS]
