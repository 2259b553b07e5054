"""The figure of Table 1 of Sun 2026: a panel for each of its columns with what was measured, and the paper's word at the right. Reads the
JSON of experiments/table1/table1.py."""

import io

from plots import style

BETTER = "  (left is better)"


def right_about_the_reader(result, row):
    sizes = {one["sum_of"]: one["read_by_it"] for one in result["observer"]}
    return sizes[max(size for size in sizes if size <= row["seen"]["sum_of"])]


def exposed(row, cluster):
    one = row["clusters"][cluster]
    return one["exposed_s"] / one["step_time_s"]["mean"]


def panels(result):
    """[(title, unit, column of the paper, [(label, [value of each row])])]"""
    rows = result["rows"]
    lost = [1 - max(one["mean"] for one in row["goodput"].values()) for row in rows]
    return [
        (
            "Privacy, trained",
            "observer right about who read a word, %" + BETTER,
            "privacy",
            [("", [100 * right_about_the_reader(result, row) for row in rows])],
        ),
        (
            "Communication, simulated",
            "exposed communication, % of a step" + BETTER,
            "communication",
            [(f"{name} cluster", [100 * exposed(row, name) for row in rows]) for name in ("ideal", "paper")],
        ),
        (
            "Robustness, simulated",
            "time lost, %" + BETTER,
            "robustness",
            [("a failure an hour, best policy", [100 * value for value in lost])]
            + [(what, [100 * (1 - 1 / row["slowdown"][what]) for row in rows]) for what in rows[0]["slowdown"]],
        ),
    ]


def draw(result):
    """SVG bytes."""
    names = [result["paper"][row["method"]]["name"] for row in result["rows"]]
    drawn = panels(result)
    figure, axes = style.figure(14, 1.7 + 0.5 * len(names), ncols=len(drawn), sharey=True)
    for axis, (title, unit, column, series) in zip(axes, drawn, strict=True):
        for place, ((label, values), colour) in enumerate(zip(series, style.SERIES, strict=False)):
            shift = 0.22 * (place - (len(series) - 1) / 2)
            axis.plot(values, [at + shift for at in range(len(names))], "o", color=colour, markersize=6, label=label)
        for at, row in enumerate(result["rows"]):
            word = result["paper"][row["method"]][column]
            axis.annotate(word, (1.01, at), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=style.VERMILION)
            if at:
                axis.axhline(at - 0.5, color=style.FAINT, linewidth=0.8)
        axis.annotate("the paper:", (1.01, -0.55), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=style.QUIET)
        axis.set_xlim(left=0)
        axis.grid(axis="x")
        axis.set_title(title)
        axis.set_xlabel(unit)
        if len(series) > 1:
            axis.legend(loc="upper left", bbox_to_anchor=(0, -0.18), ncols=3)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.8)
    buffer = io.BytesIO()
    style.save(figure, buffer, "svg")
    return buffer.getvalue()
