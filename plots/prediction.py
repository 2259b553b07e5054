"""The figure of predicted and measured step times: one row per run, and a scatter plot of all runs
with the diagonal."""

from matplotlib.lines import Line2D
from msgspec import field

from plots import style
from plots.fields import Amount, Object, Positive

BAND = 0.15  # the project's goal for the error on a machine with a core for every rank


class Measured(Object):
    median: Positive
    deviation: Amount | None = None
    values: list[Amount] = []


class Run(Object):
    name: str
    world_size: int
    predicted: Amount = field(name="predicted_step_time_s")
    ci95: Amount | None = field(name="predicted_ci95", default=None)
    measured: Measured | None = field(name="measured_step_time_s", default=None)  # None: before the run
    oversubscribed: bool = False
    prediction_hash: str = ""


def error(run):
    """Signed relative error of the prediction, or None before the run."""
    return None if run.measured is None else run.predicted / run.measured.median - 1


def draw(runs):
    """The figure: runs as dumbbells; with two or more measured runs also a square plot of predicted
    over measured times."""
    measured = [r for r in runs if r.measured]
    both = len(measured) > 1
    names = [style.broken(f"{row + 1}   {run.name}" if len(runs) > 1 else run.name) for row, run in enumerate(runs)]
    height = max(3.4 if both else 2.0, 1.5 + (0.55 + 0.16 * style.more_lines(names)) * len(runs))
    figure, axes = style.panels(12.5 if both else 9, height, (1.9, 1) if both else (1,))
    largest = max(max([r.predicted, *((r.measured.median, *r.measured.values) if r.measured else ())]) for r in runs)
    factor, unit = style.time_unit(largest)
    _dumbbells(axes[0], runs, names, factor, unit)
    if both:
        _diagonal(axes[1], runs, factor, unit)
    return figure


def _dumbbells(axis, runs, names, factor, unit):
    reach = 0
    for row, run in enumerate(runs):
        predicted = run.predicted * factor
        if run.measured:
            measured = run.measured.median * factor
            axis.plot(
                [predicted, measured],
                [row, row],
                color="#b8c0c8",
                linewidth=3,
                zorder=1,
                solid_capstyle="round",
            )
            steps = [v * factor for v in run.measured.values]
            axis.plot(
                steps,
                [row + 0.24] * len(steps),
                "|",
                color=style.VERMILION,
                alpha=0.55,
                markersize=7,
                zorder=2,
            )
            fill = style.PAPER if run.oversubscribed else style.VERMILION
            axis.plot(
                measured,
                row,
                "o",
                markersize=9,
                markerfacecolor=fill,
                markeredgecolor=style.VERMILION,
                markeredgewidth=1.8,
                zorder=3,
            )
            reach = max([reach, measured, *steps])
        axis.errorbar(
            predicted,
            row,
            xerr=(run.ci95 or 0) * factor,
            fmt="D",
            color=style.BLUE,
            markersize=7,
            elinewidth=1.4,
            capsize=3,
            zorder=4,
        )
        reach = max(reach, predicted + (run.ci95 or 0) * factor)
    for row, run in enumerate(runs):
        off = error(run)
        text = "not yet measured" if off is None else style.percent(off, sign="+")
        if run.oversubscribed:
            text += "  oversubscribed"
        good = off is not None and abs(off) <= BAND
        axis.annotate(
            text,
            (1.0, row),
            (8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=9,
            fontweight="bold",
            color=style.GREEN if good else style.QUIET,
            annotation_clip=False,
        )
    axis.set_title("Step time by run")
    axis.set_xlabel(f"step time ({unit})")
    style.name_rows(axis, [(name, f"{run.world_size} rank{'s' * (run.world_size > 1)}") for name, run in zip(names, runs, strict=True)])
    axis.set_ylim(len(runs) - 0.5, -0.5)
    axis.set_xlim(0, reach * 1.08)
    axis.grid(axis="x")
    axis.spines["left"].set_visible(False)
    handles = [
        Line2D([], [], marker="D", color=style.BLUE, linestyle="", label="predicted (95% interval)"),
        Line2D([], [], marker="o", color=style.VERMILION, linestyle="", label="measured median"),
        Line2D([], [], marker="|", color=style.VERMILION, linestyle="", label="measured steps"),
    ]
    if any(r.oversubscribed for r in runs):
        handles.append(
            Line2D(
                [],
                [],
                marker="o",
                color=style.VERMILION,
                markerfacecolor=style.PAPER,
                linestyle="",
                label="more ranks than cores",
            )
        )
    axis.figure.legend(handles=handles, loc="outside lower left", ncols=style.legend_columns(4))


def _diagonal(axis, runs, factor, unit):
    points = {i: (r.measured.median * factor, r.predicted * factor) for i, r in enumerate(runs) if r.measured}
    low, high = min(map(min, points.values())) * 0.8, max(map(max, points.values())) * 1.2
    logarithmic = high / low > 8
    if logarithmic:
        axis.set_xscale("log")
        axis.set_yscale("log")
    axis.fill_between(
        [low, high],
        [low * (1 - BAND), high * (1 - BAND)],
        [low * (1 + BAND), high * (1 + BAND)],
        color=style.GREEN,
        alpha=0.14,
        linewidth=0,
        label=f"within ±{BAND:.0%}",
    )
    axis.plot([low, high], [low, high], color=style.GREEN, linewidth=1)
    for index, (x, y) in points.items():
        hollow = runs[index].oversubscribed
        axis.plot(
            x,
            y,
            "o",
            color=style.BLUE,
            markerfacecolor=style.PAPER if hollow else style.BLUE,
            markersize=11,
            markeredgewidth=1.5,
            alpha=0.9,
        )
        axis.annotate(
            str(index + 1),
            (x, y),
            ha="center",
            va="center_baseline",
            fontsize=7.5,
            fontweight="bold",
            color=style.BLUE if hollow else style.PAPER,
        )
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    axis.set_aspect("equal")
    axis.set_title("Predicted over measured")
    axis.set_xlabel(f"measured ({unit})")
    axis.set_ylabel(f"predicted ({unit})")
    axis.grid()
    axis.legend(loc="lower right" if not any(y < x * 0.8 for x, y in points.values()) else "upper left")
