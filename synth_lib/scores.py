"""S(X): how each synthesizer scores every (query, key) pair. Tay et al., arXiv 2005.00743.

Every score is a module with the same three sizes and one method:

    score = Dense(d_model=12, head=3, max_length=6)
    scores = score(x)      # x: batch length d_model  ->  scores: batch head query key

What it may look at is the whole difference: the dot product compares every pair of tokens, Dense looks at the
attending token alone, Random looks at nothing, and returns "1 head query key", one map for every sentence.

So each score is written as `rows`: what the attending tokens x get from x, from their positions, and, for the dot
product alone, from the `keys` of the attended tokens. What the rest of the library has to know of it, a score says
itself: `reads_tokens`, `tables` and `fold`.
"""

import inspect
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import isqrt, sqrt

import torch
from einops import einsum, rearrange
from torch import nn
from torch.nn import functional as F

from synth_lib.shapes import check_number, check_whole_number


@dataclass
class Folded:
    """A score as a sum that a fused kernel adds up, and never makes the map:

    - scale * queries times keys: "batch|1 head query feature" and "batch|1 head key feature", lists of such pairs;
    - tables: "head query key", the same for every sample;
    - products: pairs (A, B), "batch head query tile" and "batch head query repeat"; key j gets A[j % a] * B[j // a].
    """

    queries: list = field(default_factory=list)
    keys: list = field(default_factory=list)
    tables: list = field(default_factory=list)
    products: list = field(default_factory=list)
    scale: float = 1.0


class Score(nn.Module):
    """What all scores share: the three sizes, the check of their input, and what they say of themselves.

    Args:
        d_model: features of a token.
        head: attention heads; each has its own scores from its own d_head = d_model / head features.
        max_length: the longest input. Shorter inputs use the top-left block of what is learned per position.

    A score of your own is a subclass with `rows`, and, where they differ from these:

        reads_tokens: False if `rows` look at the number of tokens alone: then one map serves every sentence.
        tables: the names of its parameters that are tables of scores: they need a higher learning rate than the rest.
        folds_into: None, or what fold(x, memory, length, start, cache) -> `Folded` is made of: "token keys",
            "parameter keys", "tables", "products". Then a fused kernel can compute it.

    Raises ValueError: a size is below 1, or `head` does not divide `d_model`.
    """

    reads_tokens = True
    tables = ()
    folds_into = None

    def __init_subclass__(cls):
        """A class with newer rows than its `fold` has none: a kernel would compute the rows of its parent."""
        super().__init_subclass__()
        methods = [{"rows", "keys", "forward", "fold"} & vars(parent).keys() for parent in cls.__mro__]
        if "fold" not in next(filter(None, methods)):
            cls.folds_into = None
        if "memory" not in inspect.signature(cls.forward).parameters:
            raise TypeError(f"{cls.__name__} has a forward(x): write rows(x, keys, length, start) instead")

    def __init__(self, d_model, head, max_length):
        super().__init__()
        for name, value in (("d_model", d_model), ("head", head), ("max_length", max_length)):
            check_whole_number(name, value)
        if d_model % head:
            raise ValueError(f"head = {head} does not divide d_model = {d_model}; a head has d_model / head features")
        self.d_model, self.head, self.max_length = d_model, head, max_length
        self.d_head = d_model // head

    def forward(self, x, *, memory=None, length=None, start=0, cache=None):
        """x: batch length d_model -> scores: batch head query key, or 1 head query key if no token is read.

        A layer says the rest too, and has checked it:

        Args:
            memory: the attended tokens, "batch key d_model"; None: those of x.
            length: how many tokens are attended to.
            start: the position of the first token of x.
            cache: an `attention.Cache` with the keys of the tokens before.
        """
        if length is None:
            length = self.check(x)
        return self.rows(x, self._all_keys(x, memory, length, cache), length, start)

    def keys(self, x):
        """What has to be kept of the attended tokens x "batch length d_model" to score them later: here nothing.

        Only a score that compares tokens needs something: "batch head key d_head".
        """
        return None

    def rows(self, x, keys, length, start=0):
        """The rows of the map for the tokens x, which stand at the positions start, start + 1, ...

        Args:
            x: the attending tokens, "batch query d_model", start + query <= max_length.
            keys: what `self.keys` gave for the attended tokens; they need not be those of x.
            length: how many tokens are attended to, at most max_length.

        Returns:
            scores "batch head query key", or "1 head query key" if no token is read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rows(): a score needs them")

    def _all_keys(self, x, memory, length, cache):
        """The keys of all attended tokens, those in the cache included; None for a score that needs none."""
        read = partial(self.keys, x if memory is None else memory)
        return read() if cache is None or type(self).keys is Score.keys else cache.extend(length, read)

    def check(self, x, name="x", module=None):
        """Refuse an input that cannot be scored, else return its length.

        Args:
            name: what the errors call x.
            module: whose dtype x must have; default: this score.

        Raises:
            TypeError: `x` is no floating-point tensor, or has another dtype than the weights.
            ValueError: `x` is not "batch length d_model" with 1 <= length <= max_length.
        """
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise TypeError(f"{name} must be a floating-point tensor (batch, length, d_model), not {kind}")
        if x.dim() != 3:
            axes = f"{x.dim()}: {tuple(x.shape)}"
            raise ValueError(f"{name} must have the 3 axes (batch, length, d_model), but has {axes}")
        _, length, d_model = x.shape
        if d_model != self.d_model:
            raise ValueError(f"axis d_model of {name} is {d_model}, but this layer has d_model = {self.d_model}")
        if not 1 <= length <= self.max_length:
            limit = f"must lie between 1 and max_length = {self.max_length}"
            raise ValueError(f"axis length of {name} is {length}, but {limit}")
        check_dtype(x, self if module is None else module, name)
        return length

    def _split_heads(self, features):
        return rearrange(features, "batch length (head d_head) -> batch head length d_head", head=self.head)


class DotProduct(Score):
    """Q K^T / sqrt(d_head): compares the tokens of every pair. The baseline; 2 d_model^2 parameters.

    The only score that is scaled: a sum of d_head products spreads with sqrt(d_head).
    """

    folds_into = {"token keys"}

    def __init__(self, d_model, head, max_length, *, bias=True):
        super().__init__(d_model, head, max_length)
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, d_model, bias=bias)

    def keys(self, x):
        """x: batch length d_model -> keys: batch head key d_head."""
        return self._split_heads(self.key(x))

    def rows(self, x, keys, length, start=0):
        """x: batch query d_model, keys: batch head key d_head -> scores: batch head query key."""
        query = self._split_heads(self.query(x))
        query = query / sqrt(self.d_head)  # before the product: length * d_head divisions instead of length^2
        return einsum(query, keys, "batch head query d_head, batch head key d_head -> batch head query key")

    def fold(self, x, memory, length, start, cache):
        query, keys = self._split_heads(self.query(x)), self._all_keys(x, memory, length, cache)
        return Folded([query], [keys], scale=1 / sqrt(self.d_head))


class Dense(Score):
    """W2 relu(W1 x_i + b1) + b2, equations (1) and (2): row i from token i alone.

    W1 maps d_model to d_model and is split over the heads; every head has its own W2 from d_head to max_length.
    Without biases d_model^2 + d_model * max_length parameters (Table 1), whatever the number of heads.
    """

    folds_into = {"parameter keys"}

    def __init__(self, d_model, head, max_length, *, bias=True):
        super().__init__(d_model, head, max_length)
        self.hidden = nn.Linear(d_model, d_model, bias=bias)
        self.weight = _linear_start(head, self.d_head, max_length, fan_in=self.d_head)
        self.bias = _linear_start(head, max_length, fan_in=self.d_head) if bias else None

    def rows(self, x, keys, length, start=0):
        """x: batch query d_model -> scores: batch head query key."""
        hidden = self._split_heads(self.hidden(x)).relu()
        weight = self.weight[:, :, :length]
        scores = einsum(hidden, weight, "batch head query d_head, head d_head key -> batch head query key")
        return scores if self.bias is None else scores + self.bias[:, None, :length]

    def fold(self, x, memory, length, start, cache):
        """A dot product of queries, relu(W1 x + b1), with keys that are parameters: the columns of W2."""
        query, keys = self._split_heads(self.hidden(x)).relu(), self.weight[:, :, :length].mT
        if self.bias is not None:  # b2 is one more feature of the keys, beside which the queries hold a 1
            more = 1 + (-self.d_head - 1) % 8  # and zeros, since kernels like a multiple of 8
            query = F.pad(query, (0, more), value=1.0)
            keys = torch.cat([keys, F.pad(self.bias[:, :length, None], (0, more - 1))], dim=-1)
        return Folded([query], [keys[None]])


class Random(Score):
    """R, equation (4): one learned matrix per head that never looks at x. max_length^2 parameters per head.

    Args:
        initial_scale: standard deviation of the normal distribution that R starts from. The paper does not state
            one. Default 1 / sqrt(max_length), which is Glorot's for one max_length x max_length matrix: the map
            then starts close to uniform.
        fixed: keep R as it starts ("Fixed Random"): a buffer, saved and moved with the layer, never trained.
        start: scores to start from instead, "length length" for all heads or "head length length", for instance
            `lab.starts.shifted_scores(...)`. Scores, not probabilities: they go through the softmax.

    Raises:
        ValueError: `start` has another shape, holds probabilities, or is given together with `initial_scale`;
            `initial_scale` is negative.
    """

    reads_tokens = False
    tables = ("R",)
    folds_into = {"tables"}

    def __init__(self, d_model, head, max_length, *, initial_scale=None, fixed=False, start=None):
        super().__init__(d_model, head, max_length)
        if start is None:
            scale = _scale(initial_scale, max_length)
            R = torch.randn(head, max_length, max_length) * scale
        elif initial_scale is not None:
            raise ValueError(f"give start or initial_scale = {initial_scale}, not both: start has a scale of its own")
        else:
            R = _checked_start(start, head, max_length)
        if fixed:
            self.register_buffer("R", R)
        else:
            self.R = nn.Parameter(R)

    def rows(self, x, keys, length, start=0):
        """x: batch query d_model (only its length is read) -> scores: 1 head query key."""
        return self.R[None, :, start : start + x.shape[1], :length]

    def fold(self, x, memory, length, start, cache):
        return Folded(tables=[self.rows(x, None, length, start)[0]])


class FactorizedDense(Score):
    """H_A(A) * H_B(B), equations (5) and (6): two short outputs of token i, multiplied into one long row.

    A has a numbers, B has b, and a * b = max_length. A is tiled and B is repeated element by element, so that key j
    gets A[j % a] * B[j // a] and all a * b products appear (two tiles would reach only lcm(a, b) of them).
    Both read one shared hidden layer, relu(W1 x_i + b1): only then the parameters are those of Table 1,
    d_model^2 + d_model * (a + b) without biases.

    Args:
        a, b: the two factors of max_length. Default: the most square pair.

    Raises ValueError: a * b is not max_length; the message proposes a pair.
    """

    folds_into = {"products"}

    def __init__(self, d_model, head, max_length, *, a=None, b=None, bias=True):
        super().__init__(d_model, head, max_length)
        self.a, self.b = _factor_pair(max_length, a, b)
        self.hidden = nn.Linear(d_model, d_model, bias=bias)
        self.weight_a = _linear_start(head, self.d_head, self.a, fan_in=self.d_head)
        self.weight_b = _linear_start(head, self.d_head, self.b, fan_in=self.d_head)
        self.bias_a = _linear_start(head, self.a, fan_in=self.d_head) if bias else None
        self.bias_b = _linear_start(head, self.b, fan_in=self.d_head) if bias else None

    def rows(self, x, keys, length, start=0):
        """x: batch query d_model -> scores: batch head query key."""
        A, B = self.factors(x)
        products = einsum(A, B, "batch head query tile, batch head query repeat -> batch head query repeat tile")
        return rearrange(products, "batch head query repeat tile -> batch head query (repeat tile)")[..., :length]

    def factors(self, x):
        """A: batch head query tile, and B: batch head query repeat."""
        hidden = self._split_heads(self.hidden(x)).relu()
        A = einsum(hidden, self.weight_a, "batch head query d_head, head d_head tile -> batch head query tile")
        B = einsum(hidden, self.weight_b, "batch head query d_head, head d_head repeat -> batch head query repeat")
        return (A, B) if self.bias_a is None else (A + self.bias_a[:, None], B + self.bias_b[:, None])

    def fold(self, x, memory, length, start, cache):
        return Folded(products=[self.factors(x)])


class FactorizedRandom(Score):
    """R1 R2^T, equation (7): Random of rank at most k. 2 * max_length * rank parameters per head.

    Args:
        rank: k, the inner axis; 8 in the paper.
        initial_scale: standard deviation of the *scores* R1 R2^T at the start. Default 1 / sqrt(max_length), as Random.

    Raises ValueError: `rank` is below 1; `initial_scale` is not above 0 (both factors would stay 0 for ever).
    """

    reads_tokens = False
    tables = ("R1", "R2")
    folds_into = {"parameter keys"}

    def __init__(self, d_model, head, max_length, *, rank=8, initial_scale=None):
        super().__init__(d_model, head, max_length)
        check_whole_number("rank", rank)
        scale = _scale(initial_scale, max_length)
        if scale == 0:
            raise ValueError("initial_scale is 0, but must be above 0: two factors that start at 0 have no gradient")
        # An entry of R1 R2^T is a sum of `rank` products of two normal numbers: its variance is rank * factor^4.
        factor = sqrt(scale / sqrt(rank))
        self.R1 = nn.Parameter(torch.randn(head, max_length, rank) * factor)
        self.R2 = nn.Parameter(torch.randn(head, max_length, rank) * factor)

    def rows(self, x, keys, length, start=0):
        """x: batch query d_model (only its length is read) -> scores: 1 head query key."""
        R1, R2 = self.R1[:, start : start + x.shape[1]], self.R2[:, :length]
        return einsum(R1, R2, "head query rank, head key rank -> head query key")[None]

    def fold(self, x, memory, length, start, cache):
        return Folded([self.R1[None, :, start : start + x.shape[1]]], [self.R2[None, :, :length]])


class Mixture(Score):
    """alpha_1 S_1(X) + ... + alpha_N S_N(X), equation (8): scores are mixed, inside one softmax.

    The alphas are learned, positive and sum to 1: a softmax over N logits that start equal. (The paper states the
    sum; how it is kept is not stated.)

    Args:
        parts: the scores to mix, any number of them, all with the same d_model, head and max_length.

    Raises:
        TypeError: a part is no Score.
        ValueError: no parts, or parts of different sizes.
    """

    def __init__(self, parts):
        parts = list(parts)
        if not parts:
            raise ValueError("parts is empty; a mixture needs at least one score")
        for part in parts:
            if not isinstance(part, Score):
                raise TypeError(f"parts must hold Score modules, not {type(part).__name__}")
        super().__init__(parts[0].d_model, parts[0].head, parts[0].max_length)
        for name in ("d_model", "head", "max_length"):
            sizes = [getattr(part, name) for part in parts]
            if len(set(sizes)) > 1:
                raise ValueError(f"parts differ in {name}: {sizes}; all parts of a mixture need the same")
        self.parts = nn.ModuleList(parts)
        self.logits = nn.Parameter(torch.zeros(len(parts)))

    @property
    def reads_tokens(self):
        return any(part.reads_tokens for part in self.parts)

    @property
    def folds_into(self):
        folds = [part.folds_into for part in self.parts]
        return None if None in folds else set().union(*folds)

    @property
    def weights(self):
        """The alphas: one number per part, summing to 1."""
        return self.logits.softmax(dim=0)

    def forward(self, x, *, memory=None, length=None, start=0, cache=None):
        """As in `Score`; each part is called as a module, so that what hangs on it acts."""
        if length is None:
            length = self.check(x)
        total = 0
        for weight, part in zip(self.weights, self.parts, strict=True):
            scores = part(x, memory=memory, length=length, start=start, cache=cache)
            check_scores(part, scores, x, length)
            total = total + weight * scores
        return total

    def fold(self, x, memory, length, start, cache):
        """The parts side by side, each times its alpha."""
        whole = Folded()
        for weight, score in zip(self.weights, self.parts, strict=True):
            part = score.fold(x, memory, length, start, cache)
            whole.queries += [query * (weight * part.scale) for query in part.queries]
            whole.keys += part.keys
            whole.tables += [table * weight for table in part.tables]
            whole.products += [(A * weight, B) for A, B in part.products]
        return whole


SCORES = {
    "dot_product": DotProduct,
    "dense": Dense,
    "random": Random,
    "fixed_random": partial(Random, fixed=True),
    "factorized_dense": FactorizedDense,
    "factorized_random": FactorizedRandom,
}


def make_score(name, d_model, head, max_length, **options):
    """A score by its name, or a mixture of several: "dense", "random + dot_product".

    Every option goes to each part that knows it: `rank` to factorized_random, `a` and `b` to factorized_dense,
    `initial_scale` to all the random ones, `bias` (default True) to those with linear layers.

    Raises ValueError: a name is unknown, or no part knows an option.
    """
    names = [part.strip() for part in str(name).split("+")]
    for part in names:
        if part not in SCORES:
            raise ValueError(f'unknown score "{part}"; known are {", ".join(SCORES)} and sums: "random + dense"')
    known = {part: _options(SCORES[part]) for part in names}
    for option in options:
        if option != "bias" and not any(option in known[part] for part in names):
            raise ValueError(f'no part of the score "{name}" has an option {option}')
    own = [{option: options[option] for option in known[part] & options.keys()} for part in names]
    parts = [SCORES[part](d_model, head, max_length, **its) for part, its in zip(names, own, strict=True)]
    return parts[0] if len(parts) == 1 else Mixture(parts)


def _options(make):
    """The options of a score class; what `partial` has settled is none."""
    return set(inspect.signature(make).parameters) - set(getattr(make, "keywords", ()))


def check_scores(score, scores, x, length):
    """A score of somebody else may break its promise; broadcasting would hide it. Raises TypeError or ValueError."""
    name = type(score).__name__
    if not isinstance(scores, torch.Tensor) or not scores.is_floating_point():
        kind = scores.dtype if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise TypeError(f"{name} gave {kind}, but scores must be a floating-point tensor")
    first, *rest = scores.shape
    # Size by size: torch.compile with dynamic sizes gets the comparison of whole tuples wrong.
    fits = len(rest) == 3 and rest[0] == score.head and rest[1] == x.shape[1] and rest[2] == length
    if not (fits and (first == 1 or (first == x.shape[0] and score.reads_tokens))):
        samples, size = ("batch or 1", f"{len(x)} or 1") if score.reads_tokens else ("1", "1")
        right = f"({samples}, head, query, key) = ({size}, {score.head}, {x.shape[1]}, {length})"
        raise ValueError(f"{name} gave scores {tuple(scores.shape)}, but they must be {right}")


def check_dtype(x, module, name="x"):
    """Raise a TypeError if x has another dtype than the weights of `module`; autocast bridges all but float64."""
    tensor = next((one for one in chain(module.parameters(), module.buffers()) if one.is_floating_point()), x)
    if x.dtype == tensor.dtype:  # on meta nobody may ask for autocast
        return
    if torch.float64 in (x.dtype, tensor.dtype) or not torch.is_autocast_enabled(x.device.type):
        dtypes = f"{x.dtype}, but the layer is {tensor.dtype}"
        raise TypeError(f"{name} is {dtypes}; convert one of them with .to({tensor.dtype})")


def _linear_start(*shape, fan_in):
    """A Parameter that starts as torch's own nn.Linear does: uniform within 1 / sqrt(fan_in)."""
    return nn.Parameter(torch.empty(shape).uniform_(-1 / sqrt(fan_in), 1 / sqrt(fan_in)))


def _scale(initial_scale, max_length):
    if initial_scale is None:
        return 1 / sqrt(max_length)
    check_number("initial_scale", initial_scale)
    return initial_scale


def _checked_start(start, head, max_length):
    """`start` as "head length length", or an error: wrong shape, or probabilities where scores are meant."""
    square = (max_length, max_length)
    if not isinstance(start, torch.Tensor) or tuple(start.shape) not in (square, (head, *square)):
        shape = tuple(start.shape) if isinstance(start, torch.Tensor) else type(start).__name__
        raise ValueError(f"start is {shape}, but must be (length, length) = {square} or (head, length, length)")
    if start.is_complex() or not start.to(torch.get_default_dtype()).isfinite().all():
        raise ValueError("start must hold real, finite numbers: a score of infinity or NaN cannot be trained")
    start = start.detach().to(torch.get_default_dtype())
    if max_length > 1 and (start >= 0).all() and torch.allclose(start.sum(-1), torch.ones(())):
        raise ValueError("start holds probabilities, its rows sum to 1; give scores: they still go through the softmax")
    return start.expand(head, *square).clone()


def _factor_pair(max_length, a, b):
    """Two whole numbers with a * b = max_length: those given, or the most square pair."""
    best = next(small for small in range(isqrt(max_length), 0, -1) if max_length % small == 0)
    if a is None and b is None:
        return best, max_length // best
    for name, value in (("a", a), ("b", b)):
        if value is not None:
            check_whole_number(name, value)
    proposal = f"a = {best} and b = {max_length // best} would"
    if a is None or b is None:  # one is given, the other follows if it can
        name, size = ("a", a) if b is None else ("b", b)
        if max_length % size:
            raise ValueError(f"{name} = {size} does not divide max_length = {max_length}; {proposal}")
        return (a, max_length // a) if b is None else (max_length // b, b)
    if a * b != max_length:
        limit = f"must multiply to max_length = {max_length}; {proposal}"
        raise ValueError(f"a = {a} and b = {b} multiply to {a * b}, but {limit}")
    return a, b
