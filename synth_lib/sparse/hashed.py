"""Which keys a query may attend to, from content: those whose hashes agree with the query's.

The keys with the largest product q . k are wanted. A hash finds near vectors, and the nearest is not the one with the
largest product: a long key wins from further away. So queries and keys get a few more coordinates, each in its own way,
such that the product is what a distance or an angle says. Four ways:

    simple-lsh   [k; sqrt(1 - |k|^2)]               [q; 0], |q| = 1           Neyshabur and Srebro 2015
    simple-alsh  [k; sqrt(1 - |k|^2); 0]            [q; 0; sqrt(1 - |q|^2)]
    xbox         [k; sqrt(1 - |k|^2)]               [q; 0]                    Bachrach et al. 2014
    i-alsh       [k; 1/2 - |k|^2; 1/2 - |k|^4]      [q; 0; 0]                 Shrivastava and Li 2015, arXiv 1410.5410

Here k, and in xbox q too, is divided by M, the length of the longest key, so |k| <= 1; in i-alsh |k| <= 0.75. The
square roots are of these lengths, not of those before. In simple-alsh a query longer than 1 is cut to length 1.
"""

import torch
from torch.nn import functional as F

from synth_lib.shapes import check_number, check_whole_number
from synth_lib.sparse.compared import Content

EXTRA = {"simple-lsh": 1, "simple-alsh": 2, "xbox": 1, "i-alsh": 2}  # further coordinates
LONGEST = 0.75  # of the keys in i-alsh


def key_transform(kind, norm):
    """norm: |k| / M, any shape -> (a number to multiply k / M with, a list of further coordinates of that shape)."""
    if kind == "i-alsh":
        norm = LONGEST * norm
        return LONGEST, [0.5 - norm**2, 0.5 - norm**4]
    rest = (1 - norm**2).clamp(min=0).sqrt()
    return 1.0, [rest, torch.zeros_like(rest)][: EXTRA[kind]]


def query_transform(kind, queries, longest, normalize=False):
    """Q(q): "... feature" -> "... feature + extra".

    longest: M, of the keys that the query may attend to, broadcasts to "... 1". normalize: the query gets the length M
    first (QNF, Huang et al. 2018), which is length 1 here.
    """
    norm = queries.norm(dim=-1, keepdim=True)
    if normalize or kind == "simple-lsh":
        queries = queries / above_zero(norm)
    elif kind == "xbox":
        queries = queries / above_zero(longest)
    elif kind == "simple-alsh":
        queries = queries / norm.clamp(min=1)
    zero = torch.zeros_like(norm)
    more = [zero] * EXTRA[kind]
    if kind == "simple-alsh":
        more[1] = (1 - queries.square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
    return torch.cat([queries, *more], dim=-1)


def transformed_keys(kind, keys, longest):
    """P(k): "... feature" -> "... feature + extra". longest: M, broadcasts to "... 1"."""
    factor, more = key_transform(kind, keys.norm(dim=-1, keepdim=True) / above_zero(longest))
    return torch.cat([keys * factor / above_zero(longest), *more], dim=-1)


class Hashed(Content):
    """Keeps the keys whose hashes agree most often with the query's; of equals, the later one.

    The hash of v is the sign of a . v, or for xbox, where distances count, the whole part of (a . v + b) / width: a is
    normal and b uniform in [0, width). They are drawn once, and saved with the layer.

    M is the longest key that the query may attend to: a later token or padding changes no earlier choice.

    Args:
        features, head: as in `Content`.
        kind: "simple-lsh", "simple-alsh", "xbox" or "i-alsh".
        hashes: how many.
        keep: how many keys at most; all that may be attended to where they are fewer.
        normalize_queries: queries get the length of the longest key first.
        width: of a hash of xbox, in units of M.

    Raises:
        TypeError, ValueError: an unknown kind, or a number that does not fit.
    """

    def __init__(self, features, head, kind="simple-lsh", *, hashes=16, keep=32, normalize_queries=False, width=2.0):
        super().__init__()
        if kind not in EXTRA:
            raise ValueError(f"kind must be one of {', '.join(EXTRA)}, not {kind!r}")
        for name, value in (("features", features), ("head", head), ("hashes", hashes), ("keep", keep)):
            check_whole_number(name, value)
        check_number("width", width)
        if width == 0:
            raise ValueError("width is 0, but must be above 0: it is the length of what one hash holds")
        self.features, self.head, self.kind, self.keep, self.width = features, head, kind, keep, width
        self.normalize_queries = normalize_queries
        self.register_buffer("directions", torch.randn(head, hashes, features + EXTRA[kind]))
        self.register_buffer("shifts", torch.rand(head, hashes) * width)

    def agreements(self, queries, keys, allowed):
        """How many hashes of each query and key agree: whole numbers, "batch head query key"."""
        norm = keys.norm(dim=-1)[:, :, None]
        longest = torch.where(allowed, norm, 0).amax(dim=-1, keepdim=True)  # batch head query 1
        factor, more = key_transform(self.kind, norm / above_zero(longest))
        directions = self.directions.float()
        of_queries = query_transform(self.kind, queries, longest, self.normalize_queries) @ directions.mT
        of_keys = factor * keys @ directions[..., : self.features].mT
        agree = torch.zeros_like(allowed, dtype=torch.long)
        for hashed in range(directions.shape[1]):  # one by one: memory for one map, not for one a hash
            product = of_keys[:, :, None, :, hashed] / above_zero(longest)
            for coordinate, weight in zip(more, directions[:, hashed, self.features :].T, strict=True):
                product = product + coordinate * weight[:, None, None]
            agree += self._hash(product, hashed) == self._hash(of_queries[..., hashed, None], hashed)
        return agree

    def _hash(self, product, hashed):
        if self.kind != "xbox":
            return product >= 0
        return ((product + self.shifts[:, hashed, None, None].float()) / self.width).floor()

    def choose(self, queries, keys, allowed, start=None):
        length = keys.shape[2]
        order = self.agreements(queries, keys, allowed) * length + torch.arange(length, device=keys.device)
        # torch.export knows no length: there `keep` columns of nobody stand behind the keys, which may be fewer.
        keep = self.keep if torch.compiler.is_compiling() else min(self.keep, length)
        more = (0, keep)
        best = F.pad(order.masked_fill(~allowed, -1), more, value=-1).topk(keep, dim=-1)
        return F.pad(torch.zeros_like(allowed), more).scatter(-1, best.indices, best.values >= 0)[..., :length]


def above_zero(norm):
    """A length to divide by: a vector of zeros stays one."""
    return norm.clamp(min=torch.finfo(norm.dtype).tiny)
