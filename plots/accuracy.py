"""The figure of `rehearse validate`: predicted against measured time of every row, in logarithmic axes, and the mean error of each set
beside its goal."""

from dataclasses import dataclass

from plots import style

BAND = 0.10  # grey: within 10% of the measurement


@dataclass
class Set:
    """One set of measurements. `rows`: (measured, predicted, whether it calibrates), seconds; none for a set of bytes, which has a bar
    only. `goal`, `mean`: fractions, of check rows."""

    name: str
    rows: list
    goal: float
    mean: float
    checked: int


def read(top):
    top.version()
    out = []
    for one in top.get("sets").items():
        rows = []
        for row in one.get("rows").items():
            predicted = row.get("predicted_s", None).optional_number(0)
            if predicted is not None:
                rows.append((row.get("measured_s").number(0), predicted, row.get("use").text() == "calibrate"))
        check = one.get("check")
        goal = one.get("goal_percent").number(0) / 100
        out.append(Set(one.get("set").text(), rows, goal, check.get("mean_abs_error").optional_number(0), check.get("rows").integer()))
    return out


def draw(sets):
    figure, (scatter, bars) = style.panels(12, 5.6, (1.25, 1))
    times = [time for one in sets for measured, predicted, _ in one.rows for time in (measured, predicted)]
    low, high = min(times, default=1) / 1.5, max(times, default=1) * 1.5
    scatter.fill_between([low, high], [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)], color=style.FAINT)
    scatter.plot([low, high], [low, high], color=style.QUIET, linewidth=0.8)
    markers = "osD^vPX*<>ph"
    for number, one in enumerate(one for one in sets if one.rows):
        colour, marker = style.SERIES[number % len(style.SERIES)], markers[number % len(markers)]
        for calibrates in (True, False):
            points = [(m, p) for m, p, use in one.rows if use == calibrates]
            face = "none" if calibrates else colour
            label = f"{one.name}" if not calibrates else None
            scatter.scatter(
                [m for m, _ in points],
                [p for _, p in points],
                s=15,
                marker=marker,
                facecolors=face,
                edgecolors=colour,
                linewidths=0.7,
                label=label,
            )
    scatter.set_xscale("log")
    scatter.set_yscale("log")
    scatter.set_xlim(low, high)
    scatter.set_ylim(low, high)
    scatter.set_aspect("equal")
    scatter.set_title(f"Predicted over measured (hollow: calibrated on; grey: within {BAND:.0%})")
    scatter.set_xlabel("measured (s)")
    scatter.set_ylabel("predicted (s)")
    scatter.grid()
    scatter.legend(loc="upper left")
    checked = [one for one in sets if one.checked]
    for row, one in enumerate(checked):
        good = not one.goal or one.mean <= one.goal
        bars.barh(row, 100 * one.mean, height=0.55, color=style.GREEN if good else style.ORANGE)
        bars.annotate(style.percent(one.mean), (100 * one.mean, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
        if one.goal:
            bars.plot([100 * one.goal] * 2, [row - 0.4, row + 0.4], color=style.INK, linewidth=1.4)
    bars.set_yticks(range(len(checked)), [f"{one.name} ({one.checked})" for one in checked])
    bars.set_ylim(max(1, len(checked)) - 0.5, -0.5)
    bars.set_xlim(0, 1.15 * max((100 * max(one.mean, one.goal) for one in checked), default=1))
    bars.set_title("Mean error of the check rows (line: goal)")
    bars.set_xlabel("mean of |predicted / measured - 1| (%)")
    bars.grid(axis="x")
    return figure
