"""Draw the picture of the README: which attention weights move when one word of a sentence changes.

    python tools/readme_picture.py        # writes docs/which_weights_move.png
"""

from pathlib import Path

import torch

from synth_lib import plots
from synth_lib.attention import Attention

WORDS = "the cat sat on a mat".split()
CHANGED = 1  # the row of the word that is exchanged
PATH = Path(__file__).resolve().parents[1] / "docs" / "which_weights_move.png"


def moved(score):
    """|change of every weight| when one token is exchanged, in one untrained head. -> "query key" """
    torch.manual_seed(0)
    layer = Attention(d_model=12, head=1, max_length=len(WORDS), score=score).eval()
    before = torch.randn(1, len(WORDS), 12)
    after = before.clone()
    after[0, CHANGED] = torch.randn(12)
    with torch.no_grad():
        change = (layer(after)[1] - layer(before)[1]).abs()[0, 0]
    return change / change.max().clamp_min(1e-9)  # every panel on its own scale: which, not how much


scores = {"dot product": "dot_product", "Dense": "dense", "Random": "random"}
changes = torch.stack([moved(score) for score in scores.values()])
fig = plots.attention_map(changes, WORDS, titles=list(scores), label="change (1 = largest in its panel)")
fig.set_size_inches(7.5, 3)
PATH.parent.mkdir(exist_ok=True)
fig.savefig(PATH, dpi=130)
