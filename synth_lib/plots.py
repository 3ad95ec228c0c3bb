"""Figures that can be read in grey, by colour-blind readers, and by readers who do not see them.

Every function returns a matplotlib figure; `show` displays it with its text alternative as a visible caption.
"""

import matplotlib.pyplot as plt
from IPython.core.pylabtools import retina_figure
from IPython.display import Markdown, display

SIZE = (5, 3)  # inches of 96 pixels, as in a browser: a letter of 8 points is 8 points high there
# Okabe and Ito's colours, ordered by brightness where they follow each other; never the only difference.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (7, 2)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
VISIBLE = str.maketrans({"\n": "\\n", " ": "\u2423"})  # white space that can be seen on an axis


def show(fig, alt):
    """Display `fig`, sharp on screens of two pixels a point, close it, and display `alt` as its caption "Figure: ...".

    alt: the same in words. Raises ValueError if it is empty, or if the figure has letters of less than 8 points.
    """
    if not alt.strip():
        raise ValueError("alt must say in words what the figure shows, it is empty")
    png, size = retina_figure(fig, base64=True, dpi=2 * 96)
    for text in fig.findobj(plt.Text):
        if text.get_text() and text.get_fontsize() < 8:
            raise ValueError(f"{text.get_text()!r} has {text.get_fontsize():g} points, but a letter has 8 or more")
    display({"image/png": png, "text/plain": repr(fig)}, raw=True, metadata={"image/png": {"width": size["width"]}})
    plt.close(fig)
    display(Markdown(f"*Figure: {alt.strip()}*"))


def attention_map(weights, tokens, *, keys=None, titles=None, label="weight"):
    """Attention weights as images: a row per query, a column per key, the heads side by side on one scale.

    weights: "query key" or "head query key". tokens: a text for each query, a list of words or a string of
    characters; `keys` the same for each key, if they differ. titles: one for each head; one head alone has none.
    label: what the grey means.

    Raises ValueError if a number of texts differs from its axis.
    """
    weights = weights.detach().float().cpu()
    heads = weights[None] if weights.ndim == 2 else weights
    if heads.ndim != 3:
        raise ValueError(f'weights must be "query key" or "head query key", not {tuple(weights.shape)}')
    keys = tokens if keys is None else keys
    names = [f"head {number}" for number in range(len(heads))] if len(heads) > 1 else [""]
    titles = names if titles is None else titles
    for axis, texts, size in zip(("head", "query", "key"), (titles, tokens, keys), heads.shape, strict=True):
        if len(texts) != size:
            raise ValueError(f"axis {axis} of weights is {size}, but there are {len(texts)} texts for it")
    fig, panels = plt.subplots(1, len(heads), figsize=SIZE, squeeze=False, sharey=True, layout="constrained")
    for panel, head, title in zip(panels[0], heads, titles, strict=True):
        image = panel.imshow(head.numpy(), cmap="Greys", vmin=0, vmax=heads.max().item())
        turned = 90 * any(len(text) > 1 for text in keys)  # a letter stands upright
        panel.set_xticks(range(len(keys)), [text.translate(VISIBLE) for text in keys], rotation=turned, fontsize=8)
        panel.set_yticks(range(len(tokens)), [text.translate(VISIBLE) for text in tokens], fontsize=8)
        panel.set_title(title, fontsize=9)
    panels[0][0].set_ylabel("query: attends")
    panels[0][len(heads) // 2].set_xlabel("key: attended to")
    fig.colorbar(image, ax=panels[0].tolist(), label=label, shrink=0.7)
    return fig


def flow(score, reads, filled="S(X)"):
    """Y = softmax(S(X) + mask) G(X) as boxes and arrows, the box that begins with `filled` in colour.

    score: the name of S. reads: what of X its rows read, in a few words; None draws no arrow from X to S.
    """
    boxes = {
        "X": (0, 1), f"S(X): {score}\nreads {reads or 'no token'}": (1.8, 2), "+ mask,\nsoftmax": (4.1, 2),
        "G(X):\nvalues": (1.8, 0), "weighted\nmeans": (5, 1), "Y": (6, 1),
    }  # fmt: skip
    drawn, area = [], {"xlim": (-0.3, 6.2), "ylim": (-0.5, 2.5), "frame_on": False, "xticks": [], "yticks": []}
    fig, axes = plt.subplots(figsize=(6.5, 2.2), layout="constrained", subplot_kw=area)
    for text, place in boxes.items():
        style = {"boxstyle": "round,pad=0.5", "facecolor": COLOURS[3] if text.startswith(filled) else "white"}
        drawn.append(axes.text(*place, text, ha="center", va="center", fontsize=10, bbox=style))
    for a, b in [(0, 3), (1, 2), (2, 4), (3, 4), (4, 5)] + [(0, 1)] * (reads is not None):
        patches = {"patchA": drawn[a].get_bbox_patch(), "patchB": drawn[b].get_bbox_patch()}
        arrow = {"arrowstyle": "-|>", "facecolor": "black", **patches}
        axes.annotate("", drawn[b].get_position(), drawn[a].get_position(), arrowprops=arrow)
    axes.text(3.1, 2.12, "scores", fontsize=9)
    axes.text(4.75, 1.6, "weights", fontsize=9)
    return fig
