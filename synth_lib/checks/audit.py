"""Does a layer compute what it claims? `audit(layer, claim)` asks it ten questions and says what it saw.

    claim = Claim("dense", d_model=12, head=3, max_length=8)
    print(audit(layer, claim))

The layer is run, on inputs of its own, and never read: it may be anybody's. A layer that passes is no proof, but each
question has a fault, seen in public code, that runs with the right shapes and that only this kind of question finds
(chapter 09). None sees the size of the scores (a missing 1 / sqrt(d_head)), the values of another head,
padding, other number types or training mode; heads merged in a wrong order show only where S reads every token.
The claims are the rows of Table 1 in arXiv 2005.00743.
"""

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import nn

from synth_lib.scores import Mixture, make_score

EVERY_TOKEN, OWN_TOKEN, NOTHING = "every token", "own token", "nothing"
READS = {  # Table 1, "conditioned on": what row i of the map reads
    "dot_product": EVERY_TOKEN,
    "dense": OWN_TOKEN,
    "factorized_dense": OWN_TOKEN,
    "random": NOTHING,
    "fixed_random": NOTHING,
    "factorized_random": NOTHING,
}
BATCH = 3  # samples of an input
DRAWS = 3  # a relu that is shut on one input is open on another
ALL_DIFFERENT = 32  # keys, up to which all weights of a row must differ; among more, two are alike by chance


@dataclass(frozen=True)
class Claim:
    """What a layer says that it is.

    Args:
        score: S by its name, or a sum, as in `scores.SCORES`: "dense", "random + dot_product".
        d_model, head, max_length: features of a token, attention heads, longest input.
        causal: no token attends to a later one. True or False.
        bias: whether all its linear layers have biases. True or False.
        rank, a, b: the options of factorized_random and factorized_dense; None: the library's.
        parameters: how many numbers the whole layer trains. None: those of Table 1, with R for each head, and a value
            and an output projection.

    Raises:
        ValueError: an unknown score, or a size or an option that does not fit; the message names it and says what
            would.
    """

    score: str
    d_model: int
    head: int
    max_length: int
    causal: bool = False
    bias: bool = True
    rank: int | None = None
    a: int | None = None
    b: int | None = None
    parameters: int | None = None

    def __post_init__(self):
        for name in ("causal", "bias"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be True or False")
        if self.parameters is not None:
            _check_from_zero("parameters", self.parameters)
        self.parts  # noqa: B018  it refuses what does not fit

    @property
    def parts(self):
        """A `Score` for each part, without numbers."""
        options = {name: getattr(self, name) for name in ("rank", "a", "b") if getattr(self, name) is not None}
        with torch.device("meta"):
            score = make_score(self.score, self.d_model, self.head, self.max_length, bias=self.bias, **options)
        return list(score.parts) if isinstance(score, Mixture) else [score]

    @property
    def names(self):
        return [name.strip() for name in self.score.split("+")]

    @property
    def reads(self):
        """What a row of the map reads: what its most curious part reads."""
        read = {READS[name] for name in self.names}
        return next(kind for kind in (EVERY_TOKEN, OWN_TOKEN, NOTHING) if kind in read)

    def counts(self):
        """How many numbers of the whole layer are trained, and how many must be saved."""
        d, sizes = self.d_model, zip(self.names, self.parts, strict=True)
        made = {name: 0 for name in READS}
        for name, part in sizes:
            made[name] += _count(name, part, self.bias)
        around = 2 * (d * d + self.bias * d) + (len(self.names) if len(self.names) > 1 else 0)  # and the alphas
        trained = around + sum(made.values()) - made["fixed_random"]
        trained = trained if self.parameters is None else self.parameters
        return trained, trained + made["fixed_random"]


def _count(name, part, bias):
    """Table 1, last column, with R, R1 and R2 for each head, and with biases where there are any."""
    d, length, head = part.d_model, part.max_length, part.head
    match name:
        case "dot_product":
            return 2 * (d * d + bias * d)
        case "dense":
            return d * d + d * length + bias * (d + head * length)
        case "factorized_dense":
            return d * d + d * (part.a + part.b) + bias * (d + head * (part.a + part.b))
        case "factorized_random":
            return 2 * head * length * part.R1.shape[-1]
    return head * length**2


@dataclass(frozen=True)
class Answer:
    """One row of an audit. status: "holds", "fails" or "not asked"; sentence: what was seen, or why not."""

    question: str
    status: str
    sentence: str


@dataclass(frozen=True)
class Audit:
    """What `audit` found; printed, it is one table.

    Attributes:
        claim: the `Claim`. answers: an `Answer` for each question, from cheap to dear.
        fails: the questions that the layer fails, in this order.
    """

    claim: Claim
    answers: tuple

    @property
    def fails(self):
        return tuple(answer.question for answer in self.answers if answer.status == "fails")

    def __getitem__(self, question):
        """The status of one question. Raises KeyError, with those there are."""
        for answer in self.answers:
            if answer.question == question:
                return answer.status
        raise KeyError(f"no question {question!r}; there are {', '.join(QUESTIONS)}")

    def __repr__(self):
        width = max(len(answer.question) for answer in self.answers)
        rows = [f"{one.question:{width}}  {one.status:9}  {one.sentence}" for one in self.answers]
        claim = self.claim
        sizes = f"d_model {claim.d_model}, head {claim.head}, max_length {claim.max_length}"
        return "\n".join([f"claim: {claim.score}, {sizes}{', causal' * claim.causal}", *rows])


def audit(layer, claim, numbers=None, seed=0):
    """Ask `layer` all questions about its `claim`. -> Audit

    Args:
        layer: a module or any function. layer(x), x "batch length d_model", gives y "batch length d_model" and its map
            "batch head query key", or "1 head query key" for an S that reads no token; what it gives besides does not
            matter. A module is asked in evaluation mode; its modes and buffers are left as they were, and so is torch's
            random state. Gradients are read, and none is kept.
        claim: a `Claim`.
        numbers: for a function, the tensors that it saves, by name, those it trains with requires_grad. None: those of
            a module; of a function nothing is known, and the questions about numbers are not asked.
        seed: a whole number; the inputs come from it.

    Raises:
        TypeError: `layer` cannot be called, or gives no y and map of floating-point numbers; `claim` is no Claim;
            `numbers` are no dict.
        ValueError: `layer` stops with an error on an input that its claim allows; the message says which. Its numbers
            have 16 bits or fewer, whose rounding would be taken for faults. `seed` is no whole number.
    """
    if isinstance(layer, type) or not callable(layer):
        raise TypeError(f"layer is {_kind(layer)}, but must be a module, or a function that gives y and a map")
    if not isinstance(claim, Claim):
        right = "Claim('dense', d_model=12, head=3, max_length=8)"
        raise TypeError(f"claim is {_kind(claim)}, but must be a Claim, such as {right}")
    if numbers is None and isinstance(layer, nn.Module):
        numbers = layer.state_dict(keep_vars=True)
    if numbers is not None and not (isinstance(numbers, dict) and all(map(torch.is_tensor, numbers.values()))):
        raise TypeError(f"numbers is {_kind(numbers)}, but must be a dict of tensors, by name")
    _check_from_zero("seed", seed)
    asked = _Asked(layer, claim, numbers, seed)
    cards = [asked.kind["device"]] if asked.kind["device"].type == "cuda" else []
    modules = list(layer.modules()) if isinstance(layer, nn.Module) else []
    before = [(module, module.training, dict(module._buffers)) for module in modules]
    kept = [(buffer, buffer.clone()) for module in modules for buffer in module._buffers.values() if buffer is not None]
    try:
        for module in modules:
            module.training = False
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=cards):
            return Audit(claim, tuple(asked.answers()))
    finally:
        for module, mode, buffers in before:
            module.training = mode
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


class _NotAsked(Exception):
    """Why a question has no answer."""


class _Asked:
    """A layer that is being asked. A method of the name of a question gives (whether it holds, what was seen)."""

    def __init__(self, layer, claim, numbers, seed):
        self.layer, self.claim, self.numbers = layer, claim, numbers
        floating = [tensor for tensor in (numbers or {}).values() if tensor.is_floating_point()]
        example = floating[0] if floating else torch.zeros(())
        self.kind = {"dtype": example.dtype, "device": example.device}
        self.eps = torch.finfo(example.dtype).eps
        if example.dtype.itemsize < 4:
            coarse = f"the numbers are {example.dtype}, too coarse to tell rounding from faults"
            raise ValueError(f"{coarse}: give layer.float()")
        self.near = self.eps**0.75  # what may be rounding: 6e-6 in 32 bits
        self.generator = torch.Generator().manual_seed(int(seed))

    def answers(self):
        before = None
        for question in QUESTIONS:
            if before == "fails" and question != "shapes":
                yield Answer(question, "not asked", "the shapes are not those of an attention layer")
                continue
            try:
                holds, sentence = getattr(self, question.replace(" ", "_"))()
            except _NotAsked as reason:
                yield Answer(question, "not asked", str(reason))
                continue
            status = "holds" if holds else "fails"
            before = status if question == "shapes" else before
            yield Answer(question, status, sentence)

    def draw(self, *shape):
        return torch.randn(shape, generator=self.generator).to(**self.kind)

    def inputs(self, batch=BATCH, length=None):
        return self.draw(batch, length or self.claim.max_length, self.claim.d_model)

    def run(self, x):
        """-> y, map, with the sample axis written out; after "shapes" both have the right ones."""
        try:
            result = self.layer(x)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(f"layer stops on x {tuple(x.shape)} (batch, length, d_model) with {reason}") from error
        if not isinstance(result, (tuple, list)) or len(result) < 2 or not all(map(torch.is_tensor, result[:2])):
            inside = f" of {', '.join(map(_kind, result[:2]))}" if isinstance(result, (tuple, list)) else ""
            raise TypeError(f"layer gives {_kind(result)}{inside}, but must give two tensors, y and its map")
        for name, tensor in zip(("y", "the map"), result, strict=False):
            if not tensor.is_floating_point():
                raise TypeError(f"layer gives {name} in {tensor.dtype}, but must give floating-point numbers")
        return result[0], result[1]

    def run_whole(self, x):
        y, weights = self.run(x)
        return y, weights.expand(len(x), -1, -1, -1)

    def close(self, one, other):
        return one.shape == other.shape and torch.allclose(one, other, rtol=self.near, atol=self.near)

    # --- the questions ---

    def shapes(self):
        claim = self.claim
        for batch, length in dict.fromkeys(((BATCH, claim.max_length), (1, 1), (2, (claim.max_length + 1) // 2))):
            x = self.inputs(batch, length)
            (y, weights), again = self.run(x), self.run(x)
            samples = {batch, 1} if claim.reads == NOTHING else {batch}
            wanted = (claim.head, length, length)
            if y.shape != x.shape:
                return False, f"y is {tuple(y.shape)}, but x is {tuple(x.shape)}"
            if weights.dim() != 4 or len(weights) not in samples or tuple(weights.shape[1:]) != wanted:
                return False, f"the map is {tuple(weights.shape)}, not (batch, head, query, key) = {(batch, *wanted)}"
            if not (y.isfinite().all() and weights.isfinite().all()):
                return False, f"there are NaN or infinite numbers at batch {batch}, length {length}"
            if not (self.close(y, again[0]) and self.close(weights, again[1])):
                return False, "two calls with the same x give different results: is it training, or drawing?"
        return True, "y and map have their shapes, at every length tried, and come out twice the same"

    def rows(self):
        weights = self.run(self.inputs())[1].detach()
        low, sums = weights.min().item(), weights.sum(dim=-1)
        if low < -self.near:
            return False, f"a weight is {low:.2g}; no weight is negative"
        worst = sums.flatten()[(sums - 1).abs().argmax()].item()
        holds = abs(worst - 1) < 100 * self.near
        return holds, "each row sums to 1, no weight is negative" if holds else f"a row sums to {worst:.2g}, not to 1"

    def count(self):
        trained = sum(tensor.numel() for tensor in self._numbers().values() if tensor.requires_grad)
        wanted = self.claim.counts()[0]
        holds = trained == wanted
        return holds, f"it trains {trained:,} numbers" + ("" if holds else f"; the claim has {wanted:,}")

    def saved(self):
        there, wanted = sum(tensor.numel() for tensor in self._numbers().values()), self.claim.counts()[1]
        if there < wanted:
            return False, f"it saves {there:,} numbers; the claim has {wanted:,}: the others are gone after a reload"
        return True, f"it saves {there:,} numbers, all that the claim has"

    def batch(self):
        x = self.inputs()
        y, weights = self.run_whole(x)
        for n in range(len(x)):
            alone = self.run_whole(x[n : n + 1])
            if not (self.close(alone[0][0], y[n]) and self.close(alone[1][0], weights[n])):
                return False, f"sample {n} alone gives something else than among {len(x)}"
        return True, "each sample alone gives what it gives among others"

    def moves(self):
        if self.claim.causal:
            raise _NotAsked("a causal mask knows the order of the tokens")
        kinds = {READS[name] for name in self.claim.names}
        if len(kinds) > 1:
            raise _NotAsked("the parts of this mixture move in different ways")
        length = self.claim.max_length
        if length < 3:
            raise _NotAsked("it takes 3 tokens")
        x = self.inputs()
        order = torch.arange(length).roll(1)
        order[:2] = order[:2].flip(0)  # no law holds by turning the tokens round
        (y, before), (y_after, after) = (self.run_whole(one) for one in (x, x[:, order.to(x.device)]))
        reads, says = kinds.pop(), MOVES[self.claim.reads]
        holds = self.close(after, moved(before, order, reads))
        if holds and reads == EVERY_TOKEN and not self.close(y_after, y[:, order.to(x.device)]):
            return False, "when tokens change places, the map goes with them, and y does not: P y(x) is not y(P x)"
        return holds, f"when tokens change places, {says}" if holds else f"when tokens change places, not: {says}"

    def reads(self):
        found, leaks = 0, 0
        length = self.claim.max_length
        for _ in range(DRAWS):
            x = self.inputs(1).requires_grad_()
            y, weights = self.run_whole(x)
            found = found + self._tokens_behind(weights[0].transpose(0, 1), x)
            leaks = leaks + self._tokens_behind(y[0], x).triu(1) if self.claim.causal else leaks
        found = found > 0
        wanted = {
            EVERY_TOKEN: torch.ones(length, length), OWN_TOKEN: torch.eye(length), NOTHING: torch.zeros(length, length)
        }[self.claim.reads].bool()  # fmt: skip
        if self.claim.causal:
            wanted = wanted.tril()
            wanted[0] = False  # the first row has one key, and its weight is 1 whatever it reads
            if torch.as_tensor(leaks).any():
                i, n = torch.as_tensor(leaks).nonzero()[0].tolist()
                return False, f"y of token {i} depends on token {n}, a later one"
        if torch.equal(found, wanted) or length == 1:
            return True, f"by derivatives, a row of the map reads {self.claim.reads}"
        if not weights.requires_grad:
            return False, "the map has no gradient: it reads no token, or it is cut off, as by detach or no_grad"
        i, n = (found != wanted).nonzero()[0].tolist()
        return False, f"row {i} of the map {'reads' if found[i, n] else 'does not read'} token {n}"

    def learns(self):
        if self.claim.causal:
            raise _NotAsked("under a causal mask a part of a table never learns")
        if self.claim.max_length == 1:
            raise _NotAsked("the weight of one key is 1, whatever S is")
        trained = {name: tensor for name, tensor in self._numbers().items() if tensor.requires_grad}
        moves_y = {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in trained.items()}
        token = False
        for _ in range(DRAWS):
            x = self.inputs(8).requires_grad_()
            y = self.run(x)[0]
            wanted = [x, *trained.values()]
            loss = (y * self.draw(*y.shape)).sum()
            if not loss.requires_grad:
                return False, "y has no gradient: something on the way is cut off"
            given = torch.autograd.grad(loss, wanted, allow_unused=True)
            given = [torch.zeros_like(one) if grad is None else grad for one, grad in zip(wanted, given, strict=True)]
            largest = max((grad.abs().max().item() for grad in given[1:]), default=0.0)
            token = token | (given[0] != 0).any(dim=-1)
            for name, grad in zip(trained, given[1:], strict=True):
                moves_y[name] |= grad.abs() > 10 * self.eps * largest
        if not token.all():
            n, i = (~token).nonzero()[0].tolist()
            return False, f"no number of y depends on token {i} of sample {n}"
        still = {name: int((~moves).sum()) for name, moves in moves_y.items()}
        # The bias of the keys adds the same to a whole row, which the softmax forgives: these numbers may stand still.
        forgiven = self.claim.d_model * self.claim.names.count("dot_product") * self.claim.bias
        flat = sum(count for name, count in still.items() if trained[name].dim() == 1)
        dead = sum(still.values()) - min(flat, forgiven)
        total = sum(tensor.numel() for tensor in trained.values())
        if dead:
            return False, f"{dead:,} of the {total:,} numbers that it trains have no gradient"
        return True, "every number that it trains has a gradient, and y depends on every token"

    def products(self):
        if "factorized_dense" not in self.claim.names:
            raise _NotAsked("only rows made of two short lists promise it")
        length = self.claim.max_length
        weights = self.run(self.inputs())[1].detach().flatten(0, 2).sort(dim=-1).values
        if length == 1:
            return True, "one key has one weight"
        steps = (weights.diff(dim=-1) > 10 * self.eps * weights[:, -1:]).sum(dim=-1)
        most, wanted = int(steps.max()) + 1, length if length <= ALL_DIFFERENT else length // 2 + 1
        return most >= wanted, f"a row holds up to {most} different weights for {length} keys"

    def rank(self):
        if self.claim.causal:
            raise _NotAsked("a causal mask hides half of the scores")
        if set(self.claim.names) <= {"random", "fixed_random"}:
            raise _NotAsked("a table may hold any rows")
        weights = self.run(self.inputs())[1].detach()[0].double()
        if (weights <= 0).any():
            raise _NotAsked("scores can be read from positive weights alone")
        scores = weights.log()
        scores = scores - scores.mean(dim=-1, keepdim=True)  # what a softmax forgives
        length, size = self.claim.max_length, scores.abs().amax(dim=(1, 2), keepdim=True)
        if length > 1 and ((scores - scores[:, :1]).abs() <= 100 * self.near * size).all():
            return False, "all rows of a head are the same: no query has a row of its own"
        allowed = self._largest_rank()
        if allowed is None:
            return True, "the rows of a head differ"
        allowed = min(allowed, length - 1)  # a row whose mean is taken off has one number less
        found = torch.linalg.matrix_rank(scores, rtol=max(1e-4, 100 * self.near)).tolist()
        holds = all(0.9 * allowed <= one <= allowed for one in found)
        return holds, f"the scores have rank {', '.join(map(str, found))} by head" + (
            "" if holds else f"; the claim says {allowed}"
        )

    # --- what they share ---

    def _numbers(self):
        if self.numbers is None:
            raise _NotAsked("a function shows no numbers: give audit numbers=")
        return self.numbers

    def _largest_rank(self):
        """The rank of the scores of each head, where Table 1 fixes it."""
        (name, *more), part = self.claim.names, self.claim.parts[0]
        if more:
            return None
        if name == "factorized_random":
            return part.R1.shape[-1]
        return part.d_head if name == "dot_product" else None

    def _tokens_behind(self, rows, x):
        """Which row depends on which token: bool "row token". rows: "row ...". x: "1 length d_model", a leaf."""
        found = torch.zeros(len(rows), x.shape[1], dtype=torch.bool)
        if rows.requires_grad:
            probe = self.draw(*rows.shape[1:])  # a plain sum of weights is 1 and depends on nothing
            for i, row in enumerate(rows):
                (grad,) = torch.autograd.grad((row * probe).sum(), x, retain_graph=True, allow_unused=True)
                if grad is not None:
                    size = grad[0].abs().amax(dim=-1)
                    found[i] = (size > 10 * self.eps * size.max()).cpu()
        return found


QUESTIONS = ("shapes", "rows", "count", "saved", "batch", "moves", "reads", "learns", "products", "rank")
MOVES = {
    EVERY_TOKEN: "rows and columns of the map go with them",
    OWN_TOKEN: "the rows of the map go with them, the columns stay",
    NOTHING: "the map stays",
}


def moved(weights, order, reads):
    """The map that an S has for x[:, order], if it has `weights` for x and reads this: P W P^T, P W or W.

    weights: "... query key", the weights or the scores. order: positions, "length". reads: what a row reads,
    "every token", "own token" or "nothing".
    """
    if reads == EVERY_TOKEN:
        return weights[..., order, :][..., order]
    return weights[..., order, :] if reads == OWN_TOKEN else weights


def _check_from_zero(name, value):
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r}, but must be a whole number from 0 to 2**63 - 1")


def _kind(value):
    return "None" if value is None else f"a {type(value).__name__}"
