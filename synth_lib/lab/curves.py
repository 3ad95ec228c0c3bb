"""Figures of what was trained: losses by step, and one number of each model."""

import matplotlib.pyplot as plt
import torch

from synth_lib import plots

HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")


def loss_curves(curves, *, references=None, unit="nats per token"):
    """Loss against the training step: a line for the mean of the seeds, a band from the lowest to the highest.

    curves: {label: [curve of one seed, ...]}; a curve is a list of {"step": ..., "loss": ...}, as in the
    records of `train`, with the same steps for all seeds of a label. references: {label: loss}, drawn as
    level lines. Legend and labels stand outside, so that no curve runs through a word.
    """
    fig, axes = plt.subplots(figsize=plots.SIZE, layout="constrained")
    for number, (label, seeds) in enumerate(curves.items()):
        steps = [point["step"] for point in seeds[0]]
        losses = torch.tensor([[point["loss"] for point in curve] for curve in seeds])
        colour, line, marker = (styles[number % len(styles)] for styles in (plots.COLOURS, plots.LINES, plots.MARKERS))
        axes.fill_between(steps, losses.amin(0), losses.amax(0), color=colour, alpha=0.25, linewidth=0)
        axes.plot(
            steps, losses.mean(0), label=label, color=colour, linestyle=line,
            marker=marker, markersize=4, markevery=max(1, len(steps) // 8),
        )  # fmt: skip
    for label, loss in (references or {}).items():
        axes.axhline(loss, color="grey", linewidth=1)
        axes.text(1.01, loss, label, transform=axes.get_yaxis_transform(), va="center", fontsize=10)
    axes.set_xlabel("training step")
    axes.set_ylabel(f"loss ({unit})")
    axes.legend(fontsize=10, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return fig


def bars(values, *, label):
    """A bar for each entry of `values`: {name: number, or a list with one number for each seed}.

    A bar is as high as the mean; with several seeds a black line runs from the lowest to the highest.
    label: what the height means, with its unit.
    """
    fig, axes = plt.subplots(figsize=plots.SIZE, layout="constrained")
    for number, (name, value) in enumerate(values.items()):
        seeds = torch.tensor(value, dtype=torch.float64).reshape(-1)
        mean, style = seeds.mean().item(), number % len(plots.COLOURS)
        axes.bar(name, mean, color="white", edgecolor=plots.COLOURS[style], hatch=HATCHES[style])
        if len(seeds) > 1:
            spread = [[mean - seeds.min().item()], [seeds.max().item() - mean]]
            axes.errorbar(name, mean, spread, color="black", capsize=4)
    axes.set_ylabel(label)
    axes.tick_params(axis="x", labelrotation=20)
    return fig
