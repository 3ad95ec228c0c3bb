"""Loss curves and bars: the mean of the seeds, the band around it, and what differs without colour."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch

from synth_lib.lab.curves import bars, loss_curves


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def draw(fig):
    fig.canvas.draw()


def curve(*losses):
    return [{"step": 10 * number, "loss": loss} for number, loss in enumerate(losses)]


def test_loss_curves_draw_mean_and_spread_over_seeds():
    curves = {"dense": [curve(4.0, 2.0), curve(4.4, 1.0)], "random": [curve(4.0, 3.0)]}
    fig = loss_curves(curves, references={"unigram": 3.3})
    draw(fig)
    axes = fig.axes[0]
    line = axes.lines[0]
    assert list(line.get_xdata()) == [0, 10]
    assert torch.as_tensor(line.get_ydata()).tolist() == pytest.approx([4.2, 1.5])
    corners = axes.collections[0].get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == pytest.approx((1.0, 4.4))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["dense", "random"]
    assert axes.lines[2].get_ydata()[0] == 3.3 and axes.texts[0].get_text() == "unigram"
    assert axes.get_ylabel() == "loss (nats per token)"


def test_no_curve_runs_through_a_word():
    curves = {f"a long name, {n}": [curve(9.0, n)] for n in range(4)}
    fig = loss_curves(curves, references={"counted": 1.0, "another": 5.0})
    draw(fig)
    axes, renderer = fig.axes[0], fig.canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    words = [axes.get_legend(), *axes.texts]
    for box in (word.get_window_extent(renderer) for word in words):
        assert not box.overlaps(inside)
        assert fig.bbox.x0 <= box.x0 and box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1  # and nothing is cut off


def test_lines_differ_without_colour():
    fig = loss_curves({str(n): [curve(n + 1.0, n)] for n in range(7)})
    draw(fig)
    styles = {(str(line._unscaled_dash_pattern), line.get_marker()) for line in fig.axes[0].lines}
    assert len(styles) == 7
    assert len({line.get_marker() for line in fig.axes[0].lines}) == 7


def test_bars_show_mean_and_spread_and_differ_without_colour():
    fig = bars({"dense": [1.0, 3.0], "random": 5.0}, label="loss (nats per token)")
    draw(fig)
    axes = fig.axes[0]
    assert [bar.get_height() for bar in axes.patches] == [2.0, 5.0]
    low, high = axes.collections[0].get_segments()[0][:, 1]
    assert (low, high) == (1.0, 3.0)
    assert len({bar.get_hatch() for bar in axes.patches}) == 2
    assert axes.get_ylabel() == "loss (nats per token)"
