"""The figure of Table 2 of Sun 2026 as printed and as simulated: one row per method, one panel per quantity, one mark per reading of the
paper. Reads the JSON of experiments/table2/table2.py."""

import io

from matplotlib import ticker

from plots import style

PANELS = (
    ("samples_per_s", "Throughput", "samples/s"),
    ("gb_per_step", "Sent per rank and step", "GB"),
    ("robustness", "Robustness", "1 - std / mean of step times"),
)
MARKS = (("o", style.BLUE), ("s", style.GREEN), ("^", style.PURPLE), ("v", style.ORANGE))


def middle_and_spread(value):
    """(mean, half-width or 0) of a sample, a printed pair or a bare number."""
    if isinstance(value, dict):
        return value["mean"], value["ci95"] or 0
    return tuple(value) if isinstance(value, list | tuple) else (value, 0)


def series(result, quantity):
    """[(label, mark, colour, {method: value})], the paper first."""
    found = [("paper, as printed", "D", style.VERMILION, {m: r[quantity] for m, r in result["paper"].items()})]
    for (name, reading), (mark, colour) in zip(result["readings"].items(), MARKS, strict=False):
        found.append((name, mark, colour, {r["method"]: r[quantity] for r in reading["rows"]}))
    return found


def draw(result):
    """SVG bytes."""
    methods = list(result["paper"])
    figure, axes = style.figure(11, 1.5 + 0.62 * len(methods), ncols=len(PANELS), sharey=True)
    for axis, (quantity, title, unit) in zip(axes, PANELS, strict=True):
        all_series = series(result, quantity)
        for place, (label, mark, colour, values) in enumerate(all_series):
            shift = 0.66 * (place / max(1, len(all_series) - 1) - 0.5)
            for row, method in enumerate(methods):
                if method not in values:
                    continue
                mean, spread = middle_and_spread(values[method])
                axis.errorbar(
                    mean, row + shift, xerr=spread or None, fmt=mark, markersize=5, capsize=2.5,
                    color=colour, label=label if axis is axes[0] and row == 0 else None,
                )  # fmt: skip
        axis.set_title(title)
        axis.set_xlabel(unit + (", log" if quantity != "robustness" else ""))
        if quantity != "robustness":
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
            axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.grid(axis="x")
        for row in range(1, len(methods)):
            axis.axhline(row - 0.5, color=style.FAINT, linewidth=0.8)
    axes[0].set_yticks(range(len(methods)), methods, fontsize=9.5)
    axes[0].set_ylim(len(methods) - 0.5, -0.5)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    buffer = io.BytesIO()
    style.save(figure, buffer, "svg")
    return buffer.getvalue()
