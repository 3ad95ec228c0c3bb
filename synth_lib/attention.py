"""The one layer: Y = softmax(S(X) + mask) G(X). Nothing in it knows which S it holds."""

from einops import einsum, rearrange
from torch import nn
from torch.nn import functional as F

from synth_lib.masks import causal, check_mask, masked_softmax
from synth_lib.scores import Score, check_dtype, make_score
from synth_lib.shapes import check_number


class Attention(nn.Module):
    """Self-attention with synthesized weights, equation (3) of arXiv 2005.00743, with heads and masks.

    Args:
        d_model, head, max_length: features of a token, attention heads, longest input.
        score: S, by name ("dense", "random + dot_product", see `scores.SCORES`) or as a ready `Score` module.
        causal: no token may attend to a later one.
        bias: biases in every linear layer; those of S too, if S is given by name. Table 1 counts without them.
        dropout: probability of dropping a weight of the map while training. A map that the whole batch shares
            (Random) is dropped once for the whole batch.
        **score_options: options of S, such as `rank=4` or `initial_scale=0.5`.

    Raises:
        ValueError: a size, name or option that does not fit; the message says which and what would.
    """

    def __init__(
        self, d_model, head, max_length, score="dense", *, causal=False, bias=True, dropout=0.0, **score_options
    ):
        super().__init__()
        check_number("dropout", dropout, below=1)
        if not isinstance(score, Score):
            score = make_score(score, d_model, head, max_length, bias=bias, **score_options)
        elif score_options:
            raise ValueError(f"score is a ready module; its options {sorted(score_options)} belong where it is made")
        for name, size in (("d_model", d_model), ("head", head), ("max_length", max_length)):
            if getattr(score, name) != size:
                raise ValueError(f"{name} is {size}, but the score was made with {name} = {getattr(score, name)}")
        self.head, self.causal, self.dropout = head, causal, dropout
        self.score = score
        self.value = nn.Linear(d_model, d_model, bias=bias)  # G of equation (3)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, x, mask=None):
        """Attend.

        Args:
            x: "batch length d_model", floating point, 1 <= length <= max_length. Finite, at masked places too: a
                weight of 0 times NaN is NaN.
            mask: bool, True = may be attended: "batch key", or anything that broadcasts to "batch head query key".
                Two axes are always (batch, key), three always (head, query, key): write out the axes that you mean.

        Returns:
            y: "batch length d_model".
            weights: "batch head query key", before dropout. Each row sums to 1, or is all zeros where the query may
                attend to nothing; what that query mixes is 0, so its y is the bias of `output`. For a score that does
                not read x, and no mask that differs between samples, a view of one map: do not write into it.

        Raises:
            TypeError, ValueError: x or mask has a wrong type, number of axes or size; the message names the axis.
        """
        scores = self.score(x)
        batch, length, _ = x.shape
        self._check(scores, batch, length)
        check_dtype(x, self.value)

        allowed = None if mask is None else check_mask(mask, batch, self.head, length)
        if self.causal:
            past = causal(length, device=x.device)
            allowed = past if allowed is None else allowed & past
        weights = scores.softmax(dim=-1) if allowed is None else masked_softmax(scores, allowed)

        value = rearrange(self.value(x), "batch key (head d_head) -> batch head key d_head", head=self.head)
        # A map with batch axis 1 serves every sample: einsum multiplies it as one matrix per head and never copies it.
        kept = F.dropout(weights, self.dropout, self.training)
        mixed = einsum(kept, value, "batch head query key, batch head key d_head -> batch head query d_head")
        y = self.output(rearrange(mixed, "batch head query d_head -> batch query (head d_head)"))
        return y, weights.expand(batch, -1, -1, -1)

    def _check(self, scores, batch, length):
        """A score of somebody else may break its promise; broadcasting would hide it."""
        first, *rest = scores.shape
        # Size by size: torch.compile with dynamic sizes gets the comparison of whole tuples wrong.
        fits = len(rest) == 3 and rest[0] == self.head and rest[1] == length and rest[2] == length
        if not (fits and (first == 1 or first == batch)):
            raise ValueError(
                f"{type(self.score).__name__} gave scores {tuple(scores.shape)}, but they must be "
                f"(batch or 1, head, query, key) = ({batch} or 1, {self.head}, {length}, {length})"
            )

