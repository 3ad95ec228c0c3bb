"""What a pattern that reads content compares: the queries and keys of each head."""

import torch
from einops import rearrange

from synth_lib.sparse.patterns import Pattern

PAIRS = {"token keys", "parameter keys"}


class Content(Pattern):
    """A pattern that reads content. A subclass has `choose`.

    Args:
        features: of a query and of a key of one head: d_head for the dot product.
        head: attention heads.
    """

    keeps_tokens = True

    def choose(self, queries, keys, allowed, start=None):
        """queries: "batch head query feature"; keys: "batch head key feature"; allowed: bool, full axes -> bool.

        start: the place of the first query among the keys; None: queries and keys are not of the same tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} has no choose(): a pattern of content needs it")

    def compared(self, score, x, memory=None, start=0, length=None, cache=None):
        """`queries_and_keys` of S, or a ValueError if they have other sizes than the pattern."""
        queries, keys = queries_and_keys(score, x, memory, start, length, cache)
        sizes = (score.head, queries.shape[-1])
        if sizes != (self.head, self.features):
            given = f"head = {sizes[0]} and features = {sizes[1]}"
            raise ValueError(f"the pattern has head = {self.head} and features = {self.features}, but S gives {given}")
        return queries, keys

    def leave(self, allowed, score, x, memory, start, length, cache):
        queries, keys = self.compared(score, x, memory, start, length, cache)
        allowed = allowed.expand(len(x), score.head, x.shape[1], length)
        with torch.no_grad(), in_float32(x):  # a choice has no gradient
            return self.choose(queries, keys, allowed, start if memory is None else None)


def queries_and_keys(score, x, memory=None, start=0, length=None, cache=None):
    """What S compares, in float32: queries "batch head query feature" and keys "batch head key feature".

    S says it itself where it is, or holds, a product of queries and keys: the dot product, Dense and Factorized Random
    (whose keys are parameters), and mixtures of them. Else both are the tokens, d_head of their features for each head.
    """
    length = x.shape[1] if length is None else length
    tokens = x if memory is None else memory
    if cache is not None and memory is None:
        split = cache.extend(length, lambda: split_heads(x, score.head))
        tokens = rearrange(split, "batch head length d_head -> batch length (head d_head)")
    with torch.no_grad():
        folded = score.fold(x, tokens, length, start, None) if PAIRS & set(score.folds_into or ()) else None
        if folded is None:
            queries, keys = split_heads(x, score.head), split_heads(tokens, score.head)
        else:
            queries, keys = (
                torch.cat([part.expand(len(x), -1, -1, -1) for part in parts], dim=-1)
                for parts in (folded.queries, folded.keys)
            )
            queries = queries * folded.scale
        return queries.float(), keys.float()


def in_float32(x):
    """Under autocast too: a hash or a centroid in bfloat16 would choose otherwise, and hardly move."""
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)


def split_heads(x, head):
    return rearrange(x, "batch length (head d_head) -> batch head length d_head", head=head)
