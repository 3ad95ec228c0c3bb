"""The layers with a pattern that `test_groups` and `test_flex` compare with their other forms."""

import torch

from synth_lib.attention import Attention
from synth_lib.sparse.compared import queries_and_keys
from synth_lib.sparse.hashed import Hashed
from synth_lib.sparse.patterns import Fixed, Strided, Window
from synth_lib.sparse.routed import Routed

PATTERNS = {
    "window": lambda features, head: Window(3),
    "strided": lambda features, head: Strided(4),
    "fixed": lambda features, head: Fixed(4, ends=2),
    "routed": lambda features, head: Routed(features, head, 3),
    "routed, nearest": lambda features, head: Routed(features, head, 3, keep=2),
    "hashed": lambda features, head: Hashed(features, head),
}


def make(name, score="dot_product", causal=True, head=3, dtype=torch.float32):
    torch.manual_seed(2)
    layer = Attention(12, head, 24, score, causal=causal)
    queries, _ = queries_and_keys(layer.score, torch.randn(1, 3, 12))
    layer.pattern = PATTERNS[name](queries.shape[-1], head)
    return layer.eval().to(dtype)
