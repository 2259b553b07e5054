"""The figure of validation loss over training time of Sun 2026: one panel for each clock, a line and a band for each method. Reads the JSON
of experiments/figure3/figure3.py."""

import io

import numpy as np
from scipy import stats

from plots import style


def mean_and_half(runs):
    """Mean over the seeds, and half the width of its 95% interval, by evaluation."""
    values = np.array(runs)
    n = len(values)
    half = stats.t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(values.shape[1])
    return values.mean(axis=0), half


def panel(axis, name, rows, curves, target):
    seconds = {row["variant"]: row["step_time_s"]["mean"] for row in rows}
    last = max(seconds[curve["variant"]] * curve["steps"][-1] for curve in curves)
    factor, unit = style.time_unit(last)
    for curve, colour in zip(curves, style.SERIES, strict=False):
        mean, half = mean_and_half(curve["losses"])
        at = np.array(curve["steps"]) * seconds[curve["variant"]] * factor
        axis.plot(at, mean, color=colour, linewidth=1.6, label=curve["variant"])
        axis.fill_between(at, mean - half, mean + half, color=colour, alpha=0.12, linewidth=0)
        axis.plot(at[-1], mean[-1], "o", color=colour, markersize=4)
    axis.axhline(target, color=style.QUIET, linewidth=0.8, linestyle="--")
    axis.annotate("target", (last * factor, target), ha="right", va="bottom", fontsize=7, color=style.QUIET)
    axis.set_title(f"{name}: loss trained, time simulated")
    axis.set_xlabel(f"{unit} on the paper's cluster")
    axis.set_xlim(left=0)
    axis.grid()


def draw(result):
    """SVG bytes."""
    clocks = result["clocks"]
    figure, axes = style.figure(6.2 * len(clocks), 4.2, ncols=len(clocks), sharey=True, squeeze=False)
    for axis, (name, rows) in zip(axes[0], clocks.items(), strict=True):
        panel(axis, name, rows, result["curves"], result["target"])
    axes[0, 0].set_ylabel("validation loss (nats per token); bands: 95%")
    axes[0, -1].legend(loc="upper right")
    buffer = io.BytesIO()
    style.save(figure, buffer, "svg")
    return buffer.getvalue()
