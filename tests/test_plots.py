"""Figures: what is drawn is what was given, with rows as queries, and no figure goes without words."""

import base64
import io
import warnings

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch
from IPython.display import Markdown
from PIL import Image

from synth_lib import plots


@pytest.fixture(autouse=True)
def close_figures():
    warnings.simplefilter("error")  # a missing glyph or a layout that does not fit is a warning
    yield
    plt.close("all")


def draw(fig):
    file = io.BytesIO()
    fig.savefig(file, format="png")
    return len(file.getvalue())


def images(fig):
    return [axes.images[0] for axes in fig.axes if axes.images]


def shown_by(monkeypatch, fig, alt):
    """What show displays: (data, metadata, the numbers of the open figures), and the caption."""
    shown = []
    monkeypatch.setattr(plots, "display", lambda thing, **more: shown.append((thing, more, plt.get_fignums())))
    plots.show(fig, alt)
    return shown


def test_show_displays_closes_then_captions(monkeypatch):
    fig = plots.flow("Dense", "its own token")
    (first, more, _), (second, _, left) = shown_by(monkeypatch, fig, " One bar.\n")
    assert first["text/plain"] == "<Figure size 650x220 with 1 Axes>" and more["raw"] and left == []
    assert isinstance(second, Markdown) and second.data == "*Figure: One bar.*"


def test_show_has_two_pixels_for_each_point_of_the_screen(monkeypatch):
    fig = plots.attention_map(torch.rand(1, 6, 6), "abcdef")
    (data, more, _), _ = shown_by(monkeypatch, fig, "One map.")
    picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
    width = more["metadata"]["image/png"]["width"]
    assert picture.width - 2 * width in (0, 1)
    inches = fig.get_tightbbox().width + 2 * plt.rcParams["savefig.pad_inches"]
    assert width == pytest.approx(96 * inches, abs=1), "a letter of 8 points is 8 points high"


@pytest.mark.parametrize("small", ["label", "tick"])
def test_show_refuses_letters_that_are_too_small_to_read(monkeypatch, small):
    fig, axes = plt.subplots()
    axes.text(0.5, 0.5, "read me", fontsize=8)
    axes.text(0.5, 0.5, "", fontsize=7)
    shown_by(monkeypatch, fig, "Letters of 8 points.")
    axes.text(0.5, 0.5, "read me", fontsize=7.5) if small == "label" else axes.tick_params(labelsize=7)
    with pytest.raises(ValueError, match=r"'.*' has 7(\.5)? points, but a letter has 8 or more"):
        shown_by(monkeypatch, fig, "Letters of less.")


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_show_refuses_an_empty_alternative(alt):
    with pytest.raises(ValueError, match="alt must say in words"):
        plots.show(plots.flow("Dense", "its own token"), alt)


def test_attention_map_has_queries_as_rows():
    weights = torch.rand(3, 5, requires_grad=True)
    fig = plots.attention_map(weights, ["I", "am", "here"], keys=list("abcde"))
    draw(fig)
    (image,) = images(fig)
    assert torch.equal(torch.as_tensor(image.get_array().copy()), weights.detach())
    assert [text.get_text() for text in image.axes.get_yticklabels()] == ["I", "am", "here"]
    assert [text.get_text() for text in image.axes.get_xticklabels()] == list("abcde")
    # Row 0 is drawn on top, so that a map reads like a matrix.
    assert image.axes.get_ylim()[0] > image.axes.get_ylim()[1]


def test_attention_maps_of_heads_share_one_scale():
    weights = torch.tensor([[[0.2, 0.1], [0.1, 0.3]], [[0.9, 0.1], [0.4, 0.6]]]).to(torch.bfloat16)
    fig = plots.attention_map(weights, "a\n", titles=["near", "far"])
    draw(fig)
    assert [image.get_clim() for image in images(fig)] == [(0, pytest.approx(0.9, abs=0.01))] * 2
    assert [image.axes.get_title() for image in images(fig)] == ["near", "far"]
    axes = images(fig)[0].axes
    assert axes.get_xticklabels()[1].get_text() == axes.get_yticklabels()[1].get_text() == "\\n"


def test_one_head_has_the_title_that_it_is_given():
    of_one = [plots.attention_map(torch.rand(1, 2, 2), "ab", **options) for options in ({}, {"titles": ["mine"]})]
    assert [images(fig)[0].axes.get_title() for fig in of_one] == ["", "mine"]


def test_single_letters_stand_upright_and_words_do_not_meet_their_neighbours():
    for keys, turned in ((["7", "8", " "], 0), (["7", "10", "8"], 90)):
        fig = plots.attention_map(torch.rand(3, 3), "abc", keys=keys)
        assert [label.get_rotation() for label in fig.axes[0].get_xticklabels()] == [turned] * 3


def test_white_space_is_visible_in_the_standard_font():
    assert draw(plots.attention_map(torch.rand(4, 4), "a b\n")) > 0


@pytest.mark.parametrize(
    "shape, options, message",
    [
        ((3, 4), {"tokens": "abc"}, "axis key of weights is 4, but there are 3 texts"),
        ((4, 3), {"tokens": "abc", "keys": "abc"}, "axis query of weights is 4, but there are 3"),
        ((2, 3, 3), {"tokens": "abc", "titles": ["one"]}, "axis head of weights is 2, but there are 1"),
        ((1, 2, 3, 3), {"tokens": "abc"}, r'"query key" or "head query key", not \(1, 2, 3, 3\)'),
    ],
)
def test_attention_map_names_the_axis_that_does_not_fit(shape, options, message):
    with pytest.raises(ValueError, match=message):
        plots.attention_map(torch.rand(shape), **options)


@pytest.mark.parametrize(("reads", "arrows"), [("its own token", 6), (None, 5)])
def test_flow_draws_every_part_once_and_no_arrow_into_a_score_that_reads_nothing(reads, arrows):
    fig = plots.flow("Dense", reads)
    draw(fig)
    texts = [text.get_text().split("\n")[0] for text in fig.axes[0].texts if text.get_text()]
    assert texts == ["X", "S(X): Dense", "+ mask,", "G(X):", "weighted", "Y", "scores", "weights"]
    assert sum(getattr(text, "arrow_patch", None) is not None for text in fig.axes[0].texts) == arrows
    filled = [text for text in fig.axes[0].texts[:6] if text.get_bbox_patch().get_facecolor()[:3] != (1, 1, 1)]
    assert [text.get_text() for text in filled] == [f"S(X): Dense\nreads {reads or 'no token'}"]


def test_figures_are_small():
    fig = plots.attention_map(torch.rand(4, 16, 16), "sixteen letters!")
    assert tuple(fig.get_size_inches()) == (5, 3) and draw(fig) < 60_000
