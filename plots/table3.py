"""The figure of Table 3 of Sun 2026: recovery steps by method, trained and simulated, with the paper's values as hollow marks; and how far
the loss of a run that lost a rank is above that of the undisturbed run. Reads the JSON of experiments/table3/table3.py."""

import io
import statistics

from plots import style

COLOURS = (style.BLUE, style.GREEN, style.PURPLE, style.ORANGE, style.VERMILION)
HOLLOW = {"fmt": "D", "markersize": 6, "capsize": 2.5, "color": style.VERMILION, "markerfacecolor": "none"}
LIMIT = 200
WIDTH = 10  # steps of a point of the loss


def methods(result):
    return list(dict.fromkeys(row["method"] for row in result["trained"]["rows"]))


def recovery(axis, result):
    """A mark for each method and way to recover; runs that did not recover are counted at the right edge."""
    names = methods(result)
    ways = list(dict.fromkeys(row["recovery"].split(" without")[0] for row in result["trained"]["rows"]))
    shift = 0.16
    for place, (way, colour) in enumerate(zip(ways, COLOURS, strict=False)):
        labelled = False
        for row in result["trained"]["rows"]:
            if row["recovery"] != way or row["on_course"]["steps"] is None:
                continue
            found = row["on_course"]["steps"]
            axis.errorbar(
                found["mean"], names.index(row["method"]) - shift * place, xerr=found["ci95"] or 0, fmt="o", markersize=5, capsize=2.5,
                color=colour, label=None if labelled else f"trained, {way}",
            )  # fmt: skip
            labelled = True
    for place, (speed, mark) in enumerate((("cold", "s"), ("warm", "^")), 2):
        labelled = False
        for row in result["simulated"]:
            if row["policy"] != "restart" or row["speed"] != speed or row["method"] not in names:
                continue
            axis.errorbar(
                row["steps"]["mean"], names.index(row["method"]) + shift * (place - 1), xerr=row["steps"]["ci95"] or 0, fmt=mark,
                markersize=5, capsize=2.5, color=style.QUIET, label=None if labelled else f"simulated, {speed} restart",
            )  # fmt: skip
            labelled = True
    for place, name in enumerate(names):
        claimed = result["paper"][name]["steps"]
        label = "paper" if place == 0 else None
        if claimed:
            axis.errorbar(claimed[0], place + 3 * shift, xerr=claimed[1], label=label, **HOLLOW)
        else:
            axis.plot([LIMIT], [place + 3 * shift], ">", color=style.VERMILION, markerfacecolor="none", markersize=6)
    axis.set_xscale("symlog", linthresh=10)
    axis.set_xticks([0, 10, 30, 100, 200, 1000], ["0", "10", "30", "100", "200", "1000"])
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(axis="x")
    axis.set_title("Recovery")
    axis.set_xlabel("steps after the fault")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2)


def excess(axis, result, method):
    rows = [row for row in result["trained"]["rows"] if row["method"] == method]
    for row, colour in zip(rows, COLOURS, strict=False):
        length = min(map(len, row["excess"]))
        middle = [100 * statistics.median(points[i] for points in row["excess"]) for i in range(length)]
        steps = [WIDTH * (i + 0.5) for i in range(length)]
        axis.plot(steps, middle, color=colour, linewidth=1.3, label=row["recovery"])
    axis.axhline(0, color=style.QUIET, linewidth=0.8)
    axis.set_xlim(0, LIMIT)
    axis.set_title(method)
    axis.set_xlabel("executed steps after the fault")
    axis.grid(axis="y")
    axis.legend(fontsize=7)


def draw(result):
    """SVG bytes."""
    names = methods(result)
    figure, axes = style.figure(4.2 * (1 + len(names)), 4.2, ncols=1 + len(names), width_ratios=(1.3, *[1] * len(names)))
    recovery(axes[0], result)
    for axis, name in zip(axes[1:], names, strict=True):
        excess(axis, result, name)
    axes[1].set_ylabel("loss above that of the undisturbed run, %")
    buffer = io.BytesIO()
    style.save(figure, buffer, "svg")
    return buffer.getvalue()
