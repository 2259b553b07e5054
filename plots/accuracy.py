"""The figure of `rehearse validate`: predicted against measured time of every row, in logarithmic axes, and the mean error of each set
beside its goal."""

from plots import style
from plots.fields import Amount, Object, record

BAND = 0.10  # grey: within 10% of the measurement


class Row(Object):
    """Without times if it was refused or measures bytes."""

    use: str
    measured_s: Amount | None = None
    predicted_s: Amount | None = None

    def __post_init__(self):
        if self.predicted_s is not None and self.measured_s is None:
            raise ValueError("Object with `predicted_s` missing required field `measured_s`")


Check = record("Check", rows=int, mean_abs_error=Amount | None)


class Set(Object):
    """One set of measurements; one of bytes has a bar only."""

    set: str
    goal_percent: Amount
    check: Check  # of its check rows
    rows: list[Row]

    @property
    def points(self):
        """(measured, predicted, whether the row calibrates), seconds."""
        return [(row.measured_s, row.predicted_s, row.use == "calibrate") for row in self.rows if row.predicted_s is not None]


def draw(sets):
    figure, (scatter, bars) = style.panels(12, 5.6, (1.25, 1))
    times = [time for one in sets for measured, predicted, _ in one.points for time in (measured, predicted)]
    low, high = min(times, default=1) / 1.5, max(times, default=1) * 1.5
    scatter.fill_between([low, high], [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)], color=style.FAINT)
    scatter.plot([low, high], [low, high], color=style.QUIET, linewidth=0.8)
    markers = "osD^vPX*<>ph"
    for number, one in enumerate(one for one in sets if one.points):
        colour, marker = style.SERIES[number % len(style.SERIES)], markers[number % len(markers)]
        for calibrates in (True, False):
            points = [(m, p) for m, p, use in one.points if use == calibrates]
            face = "none" if calibrates else colour
            label = one.set if not calibrates else None
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
    checked = [one for one in sets if one.check.rows]
    for row, one in enumerate(checked):
        error, goal = one.check.mean_abs_error, one.goal_percent
        good = not goal or 100 * error <= goal
        bars.barh(row, 100 * error, height=0.55, color=style.GREEN if good else style.ORANGE)
        bars.annotate(style.percent(error), (100 * error, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
        if goal:
            bars.plot([goal] * 2, [row - 0.4, row + 0.4], color=style.INK, linewidth=1.4)
    bars.set_yticks(range(len(checked)), [f"{one.set} ({one.check.rows})" for one in checked])
    bars.set_ylim(max(1, len(checked)) - 0.5, -0.5)
    bars.set_xlim(0, 1.15 * max((max(100 * one.check.mean_abs_error, one.goal_percent) for one in checked), default=1))
    bars.set_title("Mean error of the check rows (line: goal)")
    bars.set_xlabel("mean of |predicted / measured - 1| (%)")
    bars.grid(axis="x")
    return figure
