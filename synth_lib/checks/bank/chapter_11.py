"""The exercises of chapter 11: the floor of a step, and kernels that never make the map."""

from operator import index, le, lt

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from synth_lib.checks.compare import plain_copy
from synth_lib.checks.exercise import Exercise, Mistake, mistakes
from synth_lib.lab import measure

FLOOR = "The floor"
TWO = "Two numbers of a machine"
BACKWARD = "The backward pass: each product twice more"
BYTES = "Bytes: who writes the map, who reads it"
FUSED = "A kernel that never writes the map"
DENSE = "The same from torch's own kernel"
SILENT = "Right, and silently slow"
QUERIES = "Factorized Random: queries and keys are parameters"
CAUSAL = "The causal mask: half of the work is for nothing"
EXERCISE_FLOOR = "Exercise 11.1: the floor of a product with a shared table"
EXERCISE_CROSSOVER = "Exercise 11.2: from which length on?"
EXERCISE_QUERIES = "Exercise 11.3: Factorized Random for a fused kernel"
EXERCISE_BLOCKS = "Exercise 11.4: the gradient leaves out the upper half, too"
EXERCISE_FEW = "Stretch 11.5: eight blocks, but not eight products"


# 11.1. Three of the six products are bound by memory on the drawn machine: in each another table is large, so a table
# that is forgotten shows; one of their small sizes is 1. Two are bound by compute. Two lie near the balance of the
# machine, one on either side. Of each bound, one has a batch of 1.


def _floor_inputs(draw):
    few = [draw.integer(2, 6) for _ in range(2)] + [draw.integer(2, 4)]
    few[draw.in_turn([0, 1, 2])] = 1
    many = [(draw.integer(200, 500), draw.integer(501, 900)) for _ in range(3)]
    products = [(draw.integer(3, 7), few[0], *many[0]), (1, many[1][0], few[1], many[1][1]), (2, *many[2], few[2])]
    products += [(batch, *(draw.integer(300, 900) for _ in range(3))) for batch in (draw.integer(2, 5), 1)]
    item = draw.in_turn([1, 8, 2])
    balance = draw.integer(20, 120)  # operations in the time of one number
    bytes_per_second = 1e9 * draw.integer(11, 99)
    batch, rows, columns = draw.integer(2, 4), draw.integer(500, 700), draw.integer(250, 350)
    for near in (balance * 1.5, balance / 1.5):  # operations for each number that is moved
        inner = round(near / (2 - near * (1 / rows + 1 / (batch * columns))))
        products += [(batch, rows, inner, columns)]
    products.append(products[0])  # the same product again
    turn = draw.integer(0, 6)
    return {
        "products": products[turn:] + products[:turn],
        "item": item,
        "operations_per_second": bytes_per_second * balance / item,
        "bytes_per_second": bytes_per_second,
    }


def _numbers(batch, rows, inner, columns):
    """How many numbers are read and written."""
    return rows * inner + batch * (inner * columns + rows * columns)


def _times(batch, rows, inner, columns, item, operations_per_second, bytes_per_second):
    """Microseconds: (of the operations, of the bytes)."""
    moved = _numbers(batch, rows, inner, columns)
    return 1e6 * 2 * batch * rows * inner * columns / operations_per_second, 1e6 * item * moved / bytes_per_second


def _floors(products, item, operations_per_second, bytes_per_second):
    floors = []
    for sizes in products:
        compute, memory = _times(*sizes, item, operations_per_second, bytes_per_second)
        floors.append((max(compute, memory), "compute" if compute > memory else "memory"))
    return floors


def _floors_by_balance(products, item, operations_per_second, bytes_per_second):
    """Operations for each byte, against what the machine does of both in the same time; all sentences side by side."""
    balance, floors = operations_per_second / bytes_per_second, []
    for batch, rows, inner, columns in products:
        columns *= batch
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
    """Another count of operations or bytes, another way to put the two times together."""

    def answer(products, item, operations_per_second, bytes_per_second):
        floors = []
        for sizes in products:
            batch, rows, inner, columns = sizes
            counted = operations(*sizes) if operations else 2 * batch * rows * inner * columns
            numbers = moved(*sizes, item) if moved else item * _numbers(*sizes)
            compute, memory = unit * counted / operations_per_second, unit * numbers / bytes_per_second
            larger = bound(compute, memory, counted, numbers) if bound else compute > memory
            floors.append((together(compute, memory), "compute" if larger else "memory"))
        return floors

    return answer


FLOORS = Exercise(
    key="11.1",
    title="the floor of a product with a shared table",
    name="product_floors",
    minutes=12,
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
                _floors_with(moved=lambda batch, rows, inner, columns, item: item * inner * (rows + batch * columns)),
            "the result is read and written; it is only written.":
                _floors_with(
                    moved=lambda batch, rows, inner, columns, item: (
                        item * (_numbers(batch, rows, inner, columns) + batch * rows * columns)
                    )
                ),
            "only the operations are counted, but the numbers must also come from memory.":
                _floors_with(together=lambda compute, memory: compute, bound=lambda *counts: True),
            "only the result is moved, but the factors must be read.":
                _floors_with(moved=lambda batch, rows, inner, columns, item: item * batch * rows * columns),
            "the sizes of the tables are multiplied, where the numbers in each table should be added up.":
                _floors_with(moved=lambda batch, rows, inner, columns, item: item * batch * rows * inner * columns),
            "every multiply-add is taken to fetch two numbers from memory, but each number is fetched once.":
                _floors_with(moved=lambda batch, rows, inner, columns, item: 2 * item * batch * rows * inner * columns),
            "the times are right, but the two names are swapped: the longer time is what binds.":
                _floors_with(bound=lambda compute, memory, counted, numbers: compute < memory),
            "the times are right, but the bound compares operations with bytes; compare the two times.":
                _floors_with(bound=lambda compute, memory, counted, numbers: counted > numbers),
        },
        TWO: {
            "a multiply-add is counted as one operation, but the rate of the machine counts it as two.":
                _floors_with(operations=lambda batch, rows, inner, columns: batch * rows * inner * columns),
            "numbers are counted, not bytes.":
                _floors_with(moved=lambda batch, rows, inner, columns, item: _numbers(batch, rows, inner, columns)),
            "bits are counted, not bytes: item already is in bytes.":
                _floors_with(
                    moved=lambda batch, rows, inner, columns, item: 8 * item * _numbers(batch, rows, inner, columns)
                ),
            "the two rates of the machine are swapped.":
                lambda products, item, operations_per_second, bytes_per_second: _floors(
                    products, item, bytes_per_second, operations_per_second
                ),
        },
        EXERCISE_FLOOR: {
            "the shared table is read anew for each sentence; who has it once need not fetch it again.":
                _floors_with(
                    moved=lambda batch, rows, inner, columns, item: item * batch * _numbers(1, rows, inner, columns)
                ),
            "the batch is not used: this is the floor of one sentence.":
                lambda products, **machine: _floors([(1, *sizes) for _, *sizes in products], **machine),
            "the operations are those of one sentence, the bytes those of all.":
                _floors_with(operations=lambda batch, rows, inner, columns: 2 * rows * inner * columns),
            "the bytes are those of one sentence, the operations those of all.":
                _floors_with(moved=lambda batch, rows, inner, columns, item: item * _numbers(1, rows, inner, columns)),
            "the other factor too is read once, but every sentence has its own.":
                _floors_with(
                    moved=lambda batch, rows, inner, columns, item: (
                        item * (inner * (rows + columns) + batch * rows * columns)
                    )
                ),
            "the shared table is left out; it is read once, and once is not never.":
                _floors_with(
                    moved=lambda batch, rows, inner, columns, item: item * batch * columns * (inner + rows)
                ),
            "all are bound by memory here; but each number of a result is a sum over the whole inner axis.":
                _floors_with(operations=lambda batch, rows, inner, columns: 2 * batch * rows * columns),
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
# check also asks where there is none, with a max_length at the crossover that the answer gives, just below it, and 1,
# on a machine that is faster in all, and on one on which the two floors are equal at one length: its rates are powers
# of 2, so no time there is rounded. In one trial of three it asks for a crossover beyond 10,000, where loops may end.


PLAIN, KERNEL = (12, 12, 11), (14, 12, 0)  # operations / (l^2 d_head), numbers / (l d_head), numbers / l^2
# d_head, and the bytes of one number times the operations in the time of one byte: equal at lengths 256, 512, 640, 832.
TIES = [(64, 64), (128, 128), (55, 64), (26, 32)]


def _balance(d_head, item, wanted):
    """Operations for each byte: at this length, those of the fused form take as long as the bytes of the plain one."""
    return 14 * d_head * wanted / (item * (12 * d_head + 11 * wanted))


def _crossover_inputs(draw):
    d_head, item = 8 * draw.integer(3, 16), 2 * draw.integer(1, 2)
    wanted = 2 * draw.integer(501, 749) + draw.in_turn((0, 1, 1)) + 0.5
    bytes_per_second = 1e9 * draw.integer(11, 99)
    return {
        "d_head": d_head,
        "item": item,
        "operations_per_second": bytes_per_second * _balance(d_head, item, wanted),
        "bytes_per_second": bytes_per_second,
        "max_length": 10 * draw.integer(181, 200) + draw.in_turn((0, 1, 2)),
    }


def _crossovers(answer, operations_per_second, max_length, **machine):
    """The answer, also on machines of another balance, on one with a tie, and with other values of max_length.

    Where bytes are slow, both forms are bound by them, and where operations are slow, by those: so each count matters,
    and there plain is ahead at every length, from 1 on.
    """
    given = dict(machine, operations_per_second=operations_per_second, max_length=max_length)

    def ask(**other):
        return plain_copy(answer(**given | other))

    result = ask()
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        return result
    own = result[0] if type(result[0]) is int and 1 < result[0] < max_length else max_length
    others = {"where bytes are slower": 200, "where operations are slower": 1 / 2000}
    others = {where: ask(operations_per_second=factor * operations_per_second) for where, factor in others.items()}
    d_head, work = TIES[max_length % len(TIES)]
    tie = dict(d_head=d_head, bytes_per_second=2.0**34, operations_per_second=2.0**34 * work / machine["item"])
    far = 6 * max_length - 20.5
    far_operations = given["bytes_per_second"] * _balance(machine["d_head"], machine["item"], far)
    faster = dict(
        operations_per_second=1e7 * operations_per_second, bytes_per_second=1e7 * given["bytes_per_second"]
    )
    first = {
        "on this machine": result[0],
        **{where: found[0] for where, found in others.items()},
        "if max_length is too short": ask(max_length=own - 1)[0],
        "if max_length is just long enough": ask(max_length=own)[0],
        "where the two floors are equal at one length": ask(**tie)[0],
        "where both are 10 million times as fast": ask(**faster)[0],
        "where operations are slower, with max_length 1": ask(
            operations_per_second=operations_per_second / 2000, max_length=1
        )[0],
    }
    if max_length % 10 == 0:
        first[f"where operations are faster, with max_length {6 * max_length}"] = ask(
            operations_per_second=far_operations, max_length=6 * max_length
        )[0]
    all_three = {"on this machine": result, **others}
    plain, fused = ({where: found[part] for where, found in all_three.items()} for part in (1, 2))
    return {where: _in_words(length) for where, length in first.items()}, plain, fused


def _in_words(first):
    """In words: a None that is an answer is no forgotten return."""
    try:
        return f"length {index(first)}"
    except TypeError:
        return "no length" if first is None else repr(first)


def _crossover_with(
    plain=PLAIN, fused=KERNEL, together=max, unit=1e6, item_of=lambda item: item, pick=None, swap=False, none=None,
    below=lt
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

        ahead = (length for length in range(1, max_length + 1) if below(floor(plain, length), floor(fused, length)))
        first = pick(list(ahead), max_length) if pick else next(ahead, none(max_length) if none else None)
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


def _crossover_solved(d_head, item, operations_per_second, bytes_per_second, max_length):
    """Where the operations of the fused form take as long as the bytes of the plain one: an equation for the length."""
    byte, operation = 1 / bytes_per_second, 1 / operations_per_second
    slope = 14 * d_head * operation - 11 * item * byte
    first = int(12 * d_head * item * byte / slope) + 1 if slope > 0 else None
    l2, tokens = max_length**2, 12 * item * max_length * d_head * byte
    plain = max(12 * l2 * d_head * operation, tokens + 11 * item * l2 * byte)
    return (
        first if first and first <= max_length else None, 1e6 * plain, 1e6 * max(14 * l2 * d_head * operation, tokens)
    )


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
    minutes=20,
    level="medium",
    inputs=_crossover_inputs,
    returns="first, plain, fused",
    run=_crossovers,
    right=(_crossover, _crossover_while, _crossover_vectors, _crossover_solved),
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
            "the fused form moves tokens in the forward pass alone, but the backward pass reads and writes them, too.":
                _crossover_with(fused=(14, 4, 0)),
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
            "where the two floors are equal, plain is not below; this takes it for the first.":
                _crossover_with(below=le),
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
                    _crossover(max_length=2 * max_length, **machine)[0],
                    *_crossover(max_length=max_length, **machine)[1:],
                ),
            "the search ends before max_length, which belongs to the lengths that are asked about.":
                _crossover_with(pick=lambda ahead, max_length: ahead[0] if ahead and ahead[0] < max_length else None),
            "the search ends at 10,000, but max_length may be larger.":
                _crossover_with(pick=lambda ahead, max_length: ahead[0] if ahead and ahead[0] <= 10_000 else None),
            "this is the last length at which the fused form is at least as good, not the first at which it is not.":
                _crossover_with(pick=lambda ahead, max_length: max_length - len(ahead) if ahead else None),
            "this is the last length that was tried: does the loop end when the first one is found?":
                _crossover_with(pick=lambda ahead, max_length: ahead[-1] if ahead else None),
            "this is the first length at which the fused form is the better one; it is asked when the plain one is.":
                _crossover_with(pick=lambda ahead, top: next(n for n in range(1, top + 2) if n not in ahead)),
        },
    }),
)  # fmt: skip


# 11.3. The answer prepares the arguments, the check calls the kernel: so it also sees whether a map is made. Where
# answers run in a process of their own, a map that one makes and throws away is not seen; one that it returns is.


def _kernel_inputs(draw):
    sizes = draw.sizes("batch head rank d_head", high=11)
    rank, d_head = sorted((sizes["rank"], sizes["d_head"]))
    batch, whole = draw.in_turn([(1, False), (sizes["batch"], True), (sizes["batch"], False)])
    # Primes, larger than the other sizes: no product or difference of those is taken for an axis of a map.
    length, max_length = [(23, 29), (23, 31), (29, 37), (31, 37)][draw.integer(0, 3)] if batch > 1 else (131, 137)
    factor = (sizes["head"], length if whole else max_length, rank)
    value = (batch, sizes["head"], length, d_head)
    R1, R2 = draw.normal(*factor), draw.normal(*factor)
    if whole:  # the first query sees one score, so low that no large negative number is a minus infinity beside it
        R1[:, 0] = -1e10 * R2[:, 0] / R2[:, 0].square().sum(dim=-1, keepdim=True)
    return {"R1": R1, "R2": R2, "value": draw.normal(*value)}


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
    token = value[:, :, :1].clone()  # a sentence of one token: what it mixes is itself
    alone = F.scaled_dot_product_attention(value=token, **answer(R1=R1, R2=R2, value=token))
    if isinstance(mask, torch.Tensor) and mask.numel() >= own.smallest:
        tables = mask.flatten(0, -3)
        shared = torch.equal(tables, tables[:1].expand_as(tables))
        return mixed, f"attn_mask holds {'the same' if shared else 'another'} table for every head", alone
    if own.made:
        return mixed, "a map is made before the kernel runs", alone
    if not maps.made:
        return mixed, "no map is made", alone
    same = arguments["query"].shape[-1] == value.shape[-1]
    features = "as many as" if same else "not those of"
    return mixed, f"a map is made, though the features are {features} the values", alone


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
    minutes=25,
    level="medium",
    inputs=_kernel_inputs,
    returns="mixed, memory, mixed of a single token",
    run=_by_kernel,
    right=(_kernel, _kernel_default_scale, _kernel_mask, _kernel_ones),
    wrong=(*mistakes({
        SILENT: {
            "the values are right, but torch takes the slow form: queries and keys are not as long as the values.":
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
            "the values are right, but attn_mask has the axis head, so the kernel makes a table for every head.":
                _kernel_mask_for_each,
            "the mask is missing: queries attend to later keys.":
                lambda R1, R2, value: _arguments(*_cut(R1, R2, value), value, is_causal=False),
            "the mask is missing, and the scores are divided by the root of d_head.":
                lambda R1, R2, value: _arguments(*_cut(R1, R2, value), value, is_causal=False, scale=None),
            "later keys get a large negative number, not minus infinity; a score can be as low as that.":
                lambda R1, R2, value: _arguments(
                    *_cut(R1, R2, value), value, is_causal=False,
                    attn_mask=-100.0 * torch.ones(value.shape[2], value.shape[2]).triu(1),
                ),
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


# 11.4. The gradient of the values, in blocks of keys. The last block is shorter than the others. The three trials have
# a batch of 1, one head, and a text that is a single block.


def _blocks_inputs(draw):
    sizes = draw.sizes("batch head d_head", low=2, high=6)
    kind = draw.in_turn(["batch", "head", "length"])
    if kind in sizes:
        sizes[kind] = 1
    # Large blocks; blocks of two; one block that is not full. With one key in the last block, equal blocks differ.
    size = draw.in_turn([draw.integer(9, 10), 2, draw.integer(4, 6)])
    length = draw.in_turn([2 * size + 1, 2 * draw.integer(3, 5) + 1, size - 1])
    upstream = draw.normal(sizes["batch"], sizes["head"], length, sizes["d_head"])
    return {"scores": _far_scores(draw, sizes["head"], length), "upstream": upstream, "size": size}


def _far_scores(draw, head, length):
    """In one of three trials so low, and so far apart, that a large negative number is no minus infinity."""
    scores = draw.normal(head, length, length)
    return draw.in_turn([40 * scores - 20000, scores, scores])


def _masked(scores, fill=-float("inf"), ahead=1):
    """The weights of a causal map."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(ahead)
    return scores.masked_fill(future, fill).softmax(dim=-1)


def _of(answer, weights=_masked):
    """An answer to the exercise from one that gets the map: (scores, ...) -> answer(weights, ...)."""
    return lambda scores, **others: answer(weights(scores), **others)


def _with_reads(answer, scores, upstream, size):
    """The result; which key's gradient reads which query; and whether more is multiplied than that.

    0 times NaN is NaN, so a NaN shows who multiplies it. But not whether somebody set it to 0 before: so the operations
    are counted too.
    """
    results = []
    counted = measure.operations(lambda: results.append(answer(scores=scores, upstream=upstream, size=size)))
    multiplied = _multiplied(lambda each: answer(scores=scores, upstream=each, size=size), upstream)
    if multiplied is None:
        return results[0], None, None
    batch, head, length, d_head = upstream.shape
    stairs = sum(min(size, length - start) * (length - start) for start in range(0, length, size))
    return results[0], multiplied, counted > 2 * batch * head * d_head * stairs


def _multiplied(answer, table):
    """Which position of the result is made of which position of the table; None if the result has another shape."""
    length = table.shape[2]
    each = table[:1].repeat(length, 1, 1, 1)  # in sentence j, position j is NaN
    each[range(length), :, range(length)] = float("nan")
    result = answer(each)
    if not isinstance(result, torch.Tensor) or result.shape != each.shape:
        return None
    return result.isnan().any(dim=3).any(dim=1).mT.contiguous()


def _blocks_cat(weights, upstream, size):
    parts = []
    for start in range(0, upstream.shape[2], size):
        parts.append(weights[:, start:, start : start + size].mT @ upstream[:, :, start:])
    return torch.cat(parts, dim=2)


def _blocks_written(weights, upstream, size):
    gradient = torch.empty_like(upstream)
    for block, columns in enumerate(weights.split(size, dim=2)):
        seen = slice(block * size, None)
        part = torch.einsum("hij,bhid->bhjd", columns[:, seen], upstream[:, :, seen])
        gradient[:, :, block * size : block * size + columns.shape[2]] = part
    return gradient


def _blocks_one_matrix(weights, upstream, size):
    """The gradients of all sentences side by side, as one matrix for each head; from the last block to the first."""
    features = upstream.permute(1, 0, 3, 2).flatten(1, 2)
    length, parts = upstream.shape[2], []
    for start in reversed(range(0, length, size)):
        parts.insert(0, torch.bmm(features[:, :, start:], weights[:, start:, start : start + size]))
    gradient = torch.cat(parts, dim=2).unflatten(1, (len(upstream), -1))
    return gradient.permute(1, 0, 3, 2)


def _blocks_tiles(weights, upstream, size):
    """Several products for each block, one for each block of queries: as much work, and the same pairs."""
    gradient, length = torch.zeros_like(upstream), upstream.shape[2]
    for start in range(0, length, size):
        keys = slice(start, start + size)
        for first in range(start, length, size):
            queries = slice(first, first + size)
            gradient[:, :, keys] += weights[:, queries, keys].mT @ upstream[:, :, queries]
    return gradient


def _blocks_with(queries, turned=True, keys=slice):
    """queries(start, stop, length): the (first, last) queries of the block of keys start .. stop."""

    def answer(weights, upstream, size):
        length, parts = upstream.shape[2], []
        for start in range(0, length, size):
            stop = min(start + size, length)
            first, last = queries(start, stop, length)
            block = weights[:, first:last, start:stop].mT if turned else weights[:, start:stop, first:last]
            parts.append(block @ upstream[:, :, first:last])
        return torch.cat(parts, dim=2)

    return answer


def _blocks_without_the_rest(weights, upstream, size):
    """Of the keys alone: the queries of a last block that is shorter are seen by all."""
    parts = []
    for start in range(0, upstream.shape[2] // size * size, size):
        parts.append(weights[:, start:, start : start + size].mT @ upstream[:, :, start:])
    return torch.cat([*parts, upstream[:, :, :0]], dim=2)


def _blocks_rest_at_zero(weights, upstream, size):
    gradient = _blocks_without_the_rest(weights, upstream, size)
    return torch.cat([gradient, torch.zeros_like(upstream[:, :, gradient.shape[2] :])], dim=2)


def _blocks_by_autograd(weights, upstream, size):
    value = torch.zeros_like(upstream, requires_grad=True)
    ends = range(size, len(weights[0]) + size, size)
    parts = [weights[:, end - size : end, :end] @ value[:, :, :end] for end in ends]
    return torch.autograd.grad(torch.cat(parts, dim=2), value, upstream)[0]


def _blocks_own_softmax(scores, upstream, size):
    """Its mask is right, and empty rows stay empty; but a row of the map is cut up before the softmax."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    blocks = scores.masked_fill(future, -float("inf")).split(size, dim=2)
    return _blocks_cat(torch.cat([block.softmax(dim=-1).nan_to_num(0) for block in blocks], dim=2), upstream, size)


def _blocks_summed(weights, upstream, size):
    gradient = _blocks_cat(weights, upstream, size)
    return gradient.sum(dim=0, keepdim=True).expand_as(gradient)


BLOCKS = Exercise(
    key="11.4",
    title="the gradient leaves out the upper half, too",
    name="gradient_of_values",
    minutes=15,
    level="medium",
    inputs=_blocks_inputs,
    returns="gradient, multiplied, more work than that",
    run=_with_reads,
    right=tuple(map(_of, (_blocks_cat, _blocks_written, _blocks_one_matrix, _blocks_tiles))),
    wrong=mistakes({
        CAUSAL: {
            "the values are right, but it multiplies the upper half too: a weight of 0 costs as much as any other.":
                _of(lambda weights, upstream, size: weights.mT @ upstream),
            "each block of keys gets the queries up to its own end: that is the forward pass, turned round.":
                _of(_blocks_with(lambda start, stop, length: (0, stop))),
            "these are the blocks of the forward pass, with the gradient in the place of the values.":
                _of(_blocks_with(lambda start, stop, length: (0, stop), turned=False)),
        },
        BACKWARD: {
            "the map is not transposed: this averages the gradient as the forward pass averages the values.":
                _of(lambda weights, upstream, size: weights @ upstream),
            "the map is not transposed, though the blocks take the right queries.":
                _of(_blocks_with(lambda start, stop, length: (start, length), turned=False)),
            "the gradient is right, but the forward pass is done for it, too: twice the work.":
                _of(_blocks_by_autograd),
            "the gradients of all sentences are added up; the map is shared, but each sentence has its own values.":
                _of(_blocks_summed),
        },
        EXERCISE_BLOCKS: {
            "nothing is masked: queries attend to later keys, too, and have less weight for the others.":
                _of(_blocks_cat, lambda scores: scores.softmax(dim=-1)),
            "later keys get a large negative number, not minus infinity; a score can be as low as that.":
                _of(_blocks_cat, lambda scores: _masked(scores, fill=-30.0)),
            "later keys get the score 0, not minus infinity, and with it some of the weight.":
                _of(_blocks_cat, lambda scores: _masked(scores, fill=0.0)),
            "the softmax runs over all keys, and the later ones are cut off after it: the rows no longer sum to 1.":
                _of(_blocks_cat, lambda scores: scores.softmax(dim=-1).tril()),
            "the softmax is missing: these are the scores, not the weights.":
                _of(_blocks_cat, lambda scores: scores.tril()),
            "the softmax runs down the columns: the weights of a query sum to 1, not those of a key.":
                _of(_blocks_cat, lambda scores: _masked(scores.mT).mT),
            "the own key is masked, too: query 0 has nothing left, and its weights are NaN.":
                _of(_blocks_cat, lambda scores: _masked(scores, ahead=0)),
            "each block has a softmax of its own, over its own keys alone.": _blocks_own_softmax,
            "each block begins after its own queries: a key is attended to by its own query, too.":
                _of(_blocks_with(lambda start, stop, length: (stop, length))),
            "each block has its own queries alone; the later ones attend to its keys, too.":
                _of(_blocks_with(lambda start, stop, length: (start, stop))),
            "each block begins one query too late: its first key is attended to by its own query.":
                _of(_blocks_with(lambda start, stop, length: (start + 1, length))),
            "each block takes the queries from its last key on, though its other keys are attended to before.":
                _of(_blocks_with(lambda start, stop, length: (stop - 1, length))),
            "each block takes the queries of the next block alone.":
                _of(_blocks_with(lambda start, stop, length: (stop, stop + stop - start))),
            "the last query is missing in every block.":
                _of(_blocks_with(lambda start, stop, length: (start, length - 1))),
            "the values are right, but each block multiplies one query too many.":
                _of(_blocks_with(lambda start, stop, length: (max(start - 1, 0), length))),
            "the values are right, but every key is a block of its own; the argument size is not used.":
                _of(lambda weights, upstream, size: _blocks_cat(weights, upstream, 1)),
            "the values are right, but size is taken for the number of blocks; it is the keys in each.":
                _of(lambda weights, upstream, size: _blocks_cat(weights, upstream, -(-upstream.shape[2] // size))),
            "the last block, shorter than the others, is left at 0.": _of(_blocks_rest_at_zero),
            "the last block, shorter than the others, is missing.": _of(_blocks_without_the_rest),
        },
    }),
)  # fmt: skip


# 11.5. Judged by the numbers, by the share of all pairs that is multiplied (NaNs show it) and by the matrix products
# (counted, where the answer runs in this process). Lengths are multiples of 16, so that halves and eighths are whole.


def _few_inputs(draw):
    sizes = draw.sizes("batch head d_head", low=2, high=6)
    kind = draw.in_turn(["batch", "head", "both"])
    sizes |= {kind: 1} if kind in sizes else {}
    length = draw.in_turn([48, 16, 32])
    value = draw.normal(sizes["batch"], sizes["head"], length, sizes["d_head"])
    return {"scores": _far_scores(draw, sizes["head"], length), "value": value}


class _Products(TorchDispatchMode):
    """How many matrix products are started, and whether anything was seen."""

    NAMES = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"}

    def __init__(self):
        super().__init__()
        self.number, self.seen = 0, False

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.seen = True
        self.number += function.__name__.split(".")[0].strip("_") in self.NAMES
        return function(*arguments, **(named or {}))


def _with_products(answer, scores, value):
    """The result, how many products, how much of the square, and where its numbers are multiplied: all in words."""
    results = []
    with _Products() as products:
        counted = measure.operations(lambda: results.append(answer(scores=scores, value=value)))
    multiplied = _multiplied(lambda each: answer(scores=scores, value=each), value)
    if multiplied is None:
        return results[0], None, None, None
    batch, head, length, d_head = value.shape
    by_products, by_nan = counted / (2 * batch * head * d_head * length**2), multiplied.float().mean().item()
    share = max(by_products, by_nan)
    work = "at most 9/16" if share <= 9 / 16 else f"{share:.3f} of the square, more than 9/16"
    if 1 / 2 < by_products <= 9 / 16 < by_nan:
        work = "few enough products, but a NaN of one sentence gets into another one"
    if not multiplied[torch.ones(length, length, dtype=torch.bool).tril()].all():
        work = "not all that is needed"
    # A product of numbers that a NaN shows, but that no product of matrices holds. (einsum makes none of tables of one
    # number: the tiles of a side of 1, on the diagonal and beside it.)
    outside = products.seen and counted < batch * head * d_head * length * (length - 3)
    return (
        results[0],
        "at most 5" if products.number <= 5 else f"{products.number} products, more than 5",
        work,
        "elsewhere" if outside else "in matrix products",
    )


def _side_by_side(value):
    """All sentences in one matrix for each head, and the way back."""
    features = value.permute(1, 2, 0, 3).flatten(2)
    return features, lambda mixed: mixed.unflatten(2, (len(value), -1)).permute(2, 0, 1, 3)


def _level(weights, features, places, side):
    """The products of equal squares, as one: the parts in the order of the places, (first query, first key)."""
    maps = torch.stack([weights[:, q : q + side, k : k + side] for q, k in places])
    return maps @ torch.stack([features[:, k : k + side] for _, k in places])


def _levels(tiles):
    """Triangles on the diagonal, then squares of one, two, four ... of their sides: a product for each size."""
    def answer(weights, value):
        features, back = _side_by_side(value)
        mixed, length = torch.zeros_like(features), value.shape[2]
        side = length // tiles
        sizes = [(side, [(start, start) for start in range(0, length, side)])]
        while side < length:
            sizes.append((side, [(start + side, start) for start in range(0, length, 2 * side)]))
            side *= 2
        for side, places in sizes:
            for (q, _), part in zip(places, _level(weights, features, places, side), strict=True):
                mixed[:, q : q + side] += part
        return back(mixed)

    return answer


def _two_stairs(weights, value):
    """One square, and below and beside it two triangles, whose stairs go up together: four products for both."""
    features, back = _side_by_side(value)
    half, step = value.shape[2] // 2, value.shape[2] // 8
    both = torch.stack([features[:, :half], features[:, half:]])
    maps = torch.stack([weights[:, :half, :half], weights[:, half:, half:]])
    parts = [maps[:, :, end - step : end, :end] @ both[:, :, :end] for end in range(step, half + 1, step)]
    upper, lower = torch.cat(parts, dim=2)
    return back(torch.cat([upper, lower + weights[:, half:, :half] @ features[:, :half]], dim=1))


def _by_reshape(weights, value):
    """The same squares as `_levels`, cut out by shapes: of both halves of all triangles at once."""
    mixed, length = torch.zeros_like(value), value.shape[2]
    count, side = 8, length // 8
    maps = weights.reshape(len(weights), count, side, count, side).diagonal(dim1=1, dim2=3)
    mixed += torch.einsum("hijn,bhnjd->bhnid", maps, value.unflatten(2, (count, side))).flatten(2, 3)
    while side < length:
        count, halves = count // 2, (-1, 2, side)
        maps = weights.unflatten(1, halves)[:, :, 1].unflatten(3, halves)[:, :, :, :, 0].diagonal(dim1=1, dim2=3)
        part = torch.einsum("hijn,bhnjd->bhnid", maps, value.unflatten(2, halves)[:, :, :, 0])
        mixed.unflatten(2, halves)[:, :, :, 1] += part
        side *= 2
    return mixed


def _stairs(blocks):
    def answer(weights, value):
        step, length = value.shape[2] // blocks, value.shape[2]
        ends = range(step, length + 1, step)
        return torch.cat([weights[:, end - step : end, :end] @ value[:, :, :end] for end in ends], dim=2)

    return answer


def _stairs_of_one(weights, value):
    return _stairs(value.shape[2])(weights, value)


def _some_levels(kept, of=8, together=torch.add, one_by_one=False, move=0):
    """Levels by number, 0 the diagonal; how a part joins the rest; move: the keys of a square, in sides."""

    def answer(weights, value):
        features, back = _side_by_side(value)
        mixed, length = torch.zeros_like(features), value.shape[2]
        side = length // of
        sizes = [(side, [(start, start) for start in range(0, length, side)])]
        while side < length:
            sizes.append((side, [(start + side, start) for start in range(0, length, 2 * side)]))
            side *= 2
        for number, (side, places) in enumerate(sizes):
            for group in ([[place] for place in places] if one_by_one else [places]) if number in kept else []:
                maps = torch.stack([weights[:, q : q + side, k : k + side] for q, k in group])
                shift = move * side if number else 0
                keys = torch.stack([features[:, k + shift : k + shift + side] for _, k in group])
                for (q, _), part in zip(group, maps @ keys, strict=True):
                    mixed[:, q : q + side] = together(mixed[:, q : q + side], part)
        return back(mixed)

    return answer


def _one_by_one(weights, value):
    """Each query by itself, number by number."""
    rows = [(weights[:, i, : i + 1, None] * value[:, :, : i + 1]).sum(dim=2) for i in range(value.shape[2])]
    return torch.stack(rows, dim=2)


FEW = Exercise(
    key="11.5",
    title="eight blocks, but not eight products",
    name="few_products",
    minutes=45,
    level="hard",
    inputs=_few_inputs,
    returns="mixed, products, work, where numbers are multiplied",
    run=_with_products,
    right=(_of(_levels(8)), _of(_two_stairs), _of(_by_reshape), _of(_levels(16))),
    wrong=mistakes({
        CAUSAL: {
            "the numbers are right, and one product is few, but it multiplies the whole square.":
                _of(lambda weights, value: weights @ value),
            "these are eight steps of the stairs: little enough work, but a product for each step.": _of(_stairs(8)),
            "few products, but 10/16 of the work: four steps of the stairs, or a triangle cut twice, are too coarse.":
                _of(_stairs(4)),
            "every query is a product of its own: the least work there is, and the most products.":
                _of(_stairs_of_one),
        },
        EXERCISE_FEW: {
            "nothing is masked: in the parts along the diagonal, queries attend to later keys, too.":
                _of(_levels(8), lambda scores: scores.softmax(dim=-1)),
            "later keys get a large negative number, not minus infinity; a score can be as low as that.":
                _of(_levels(8), lambda scores: _masked(scores, fill=-30.0)),
            "the triangle is cut once: one square is gone from it, but its two triangles are multiplied as squares.":
                _of(_some_levels((0, 1), of=2)),
            "the squares are the right ones, but each is a product of its own; equal ones can share one.":
                _of(_some_levels(range(4), one_by_one=True)),
            "the parts along the diagonal are missing: a query also attends to itself and to what is just before it.":
                _of(_some_levels((1, 2, 3))),
            "only the parts along the diagonal are there; earlier keys are missing.": _of(_some_levels((0,))),
            "one size of the parts is missing: the keys of the first half for the second half of the queries.":
                _of(_some_levels((0, 1, 2))),
            "a part overwrites what other parts have found for the same queries; they belong together.":
                _of(_some_levels(range(4), together=lambda before, part: part)),
            "the squares meet the values of their queries, not those of their keys.":
                _of(_some_levels(range(4), move=1)),
            "no matrix product is left: number by number is the slowest way to multiply.": _of(_one_by_one),
        },
    }),
)  # fmt: skip

EXERCISES = [FLOORS, CROSSOVER, FACTORS, BLOCKS, FEW]
