"""The figures of long runs (JSON of `rehearse simulate --duration` and `rehearse compare --duration`): where the time went, the
goodput of each seed, and goodput over the interval between checkpoints with Young's and Daly's."""

from plots import style
from plots.fields import Amount, Object, Positive, Some, record

LOSSES = ("detection", "restart", "rework", "checkpoint", "degraded", "replanning", "waiting")
COLOURS = (*style.SERIES, style.QUIET)

Lost = record("Lost", **dict.fromkeys(LOSSES, Amount))
Checkpoint = record("Checkpoint", kind=str, every_s=Amount)  # every 0 s: none is written
Seeds = record("Seeds", values=Some[Amount])
Point = record("Point", seconds=Amount, goodput=Amount)
Intervals = record("Intervals", curve=list[Point], young_s=Amount | None, daly_s=Amount | None)


class LongRun(Object):
    """One run over weeks."""

    model: str
    cluster: str
    method: str
    failures: str
    duration_s: Positive
    policy: str
    checkpoint: Checkpoint
    goodput: Seeds
    lost_s: Lost
    intervals: Intervals
    label: str = ""

    @property
    def name(self):
        return self.label or f"{self.policy}, {self.checkpoint.kind}"

    def lost_percent(self, loss):
        return 100 * (getattr(self.lost_s, loss) / self.duration_s)


def draw(runs):
    figure, axes = style.panels(12, max(4, 1.6 + 0.32 * len(runs)), (1, 1, 1))
    first = runs[0]
    title = f"{first.model} on {first.cluster}, {first.method}: {first.duration_s / 86400:.4g} days of {first.failures}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    _where(axes[0], runs)
    _seeds(axes[1], runs)
    _intervals(axes[2], runs)
    return figure


def _where(axis, runs):
    axis.set_title("Lost time")
    axis.set_xlabel("% of the duration")
    if len(runs) == 1:  # a bar for each part
        axis.barh(LOSSES, [runs[0].lost_percent(name) for name in LOSSES], color=COLOURS)
        axis.invert_yaxis()
        return
    rows = range(len(runs))
    left = [0.0] * len(runs)
    for number, name in enumerate(LOSSES):
        widths = [run.lost_percent(name) for run in runs]
        axis.barh(rows, widths, left=left, color=COLOURS[number], label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.set_yticks(rows, [run.name for run in runs])
    axis.invert_yaxis()
    axis.legend(fontsize=7)


def _seeds(axis, runs):
    for row, run in enumerate(runs):
        values = run.goodput.values
        axis.plot([100 * g for g in values], [row] * len(values), "o", color=style.INK, markersize=3.5, alpha=0.4)
        axis.plot([100 * (sum(values) / len(values))], [row], "|", color=style.SERIES[1], markersize=16, markeredgewidth=2)
    axis.set_yticks(range(len(runs)), [run.name if style.is_narrow() and len(runs) > 1 else "" for run in runs])
    axis.set_ylim(len(runs) - 0.5, -0.5)
    axis.set_title("Goodput of each seed, and the mean")
    axis.set_xlabel("goodput (%)")
    axis.grid(axis="x")


def _intervals(axis, runs):
    axis.set_title("Goodput over the interval")
    axis.set_xlabel("time between two checkpoints (min)")
    for number, run in enumerate(runs):
        curve, every = run.intervals.curve, run.checkpoint.every_s
        if not curve:
            continue
        line = {"color": style.SERIES[number % len(style.SERIES)], "linewidth": 1.4}
        axis.plot([p.seconds / 60 for p in curve], [100 * p.goodput for p in curve], label=run.name, **line)
        if every:
            nearest = min(curve, key=lambda point: abs(point.seconds - every))
            axis.plot([every / 60], [100 * nearest.goodput], "o", color=line["color"], markersize=5)
    only = runs[0].intervals
    if len(runs) == 1 and only.curve:
        for name, seconds, dash in (("Young", only.young_s, "--"), ("Daly", only.daly_s, ":")):
            if seconds:
                axis.axvline(seconds / 60, color=style.INK, linestyle=dash, linewidth=1, label=name)
    axis.set_xscale("log")
    axis.grid()
    if any(run.intervals.curve for run in runs):
        axis.legend(fontsize=7)
