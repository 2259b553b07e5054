"""The figures of long runs (JSON of `rehearse simulate --duration` and `rehearse compare --duration`): where the time went, the
goodput of each seed, and goodput over the interval between checkpoints with Young's and Daly's."""

from dataclasses import dataclass

from plots import style

LOSSES = ("detection", "restart", "rework", "checkpoint", "degraded", "replanning", "waiting")
COLOURS = (*style.SERIES, style.QUIET)


@dataclass
class LongRun:
    """One run over weeks; shares are of its duration."""

    label: str
    title: str
    goodput: list  # one per seed
    lost: dict  # loss -> share
    curve: list  # [(seconds, goodput)]
    every: float | None  # the interval of the run; None: no checkpoint is written
    young: float | None
    daly: float | None


def read(top):
    """The runs of one file, which has one run or a comparison."""
    top.version()
    if "long_runs" not in top.value:
        return [_run(top)]
    runs = [_run(one) for one in top.get("long_runs").items()]
    if not runs:
        top.get("long_runs").fail("at least one run")
    return runs


def _run(top):
    duration = top.get("duration_s").number(0)
    policy, checkpoint, intervals = top.get("policy").text(), top.get("checkpoint"), top.get("intervals")
    label = top.get("label", f"{policy}, {checkpoint.get('kind').text()}").text()
    title = f"{top.get('model').text()} on {top.get('cluster').text()}, {top.get('method').text()}: {duration / 86400:.4g} days"
    lost = {name: top.get("lost_s").get(name).number(0) / duration for name in LOSSES}
    curve = [(p.get("seconds").number(0), p.get("goodput").number(0)) for p in intervals.get("curve").items()]
    every = checkpoint.get("every_s").number(0)
    young, daly = (intervals.get(name).optional_number(0) for name in ("young_s", "daly_s"))
    values = [v.number(0) for v in top.get("goodput").get("values").items()]
    return LongRun(label, f"{title} of {top.get('failures').text()}", values, lost, curve, every or None, young, daly)


def draw(runs):
    figure, axes = style.panels(12, max(4, 1.6 + 0.32 * len(runs)), (1, 1, 1))
    figure.suptitle(runs[0].title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    _where(axes[0], runs)
    _seeds(axes[1], runs)
    _intervals(axes[2], runs)
    return figure


def _where(axis, runs):
    axis.set_title("Lost time")
    axis.set_xlabel("% of the duration")
    if len(runs) == 1:  # a bar for each part
        axis.barh(LOSSES, [100 * runs[0].lost[name] for name in LOSSES], color=COLOURS)
        axis.invert_yaxis()
        return
    rows = range(len(runs))
    left = [0.0] * len(runs)
    for number, name in enumerate(LOSSES):
        widths = [100 * run.lost[name] for run in runs]
        axis.barh(rows, widths, left=left, color=COLOURS[number], label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.set_yticks(rows, [run.label for run in runs])
    axis.invert_yaxis()
    axis.legend(fontsize=7)


def _seeds(axis, runs):
    for row, run in enumerate(runs):
        axis.plot([100 * g for g in run.goodput], [row] * len(run.goodput), "o", color=style.INK, markersize=3.5, alpha=0.4)
        mean = sum(run.goodput) / len(run.goodput)
        axis.plot([100 * mean], [row], "|", color=style.SERIES[1], markersize=16, markeredgewidth=2)
    axis.set_yticks(range(len(runs)), [run.label if style.is_narrow() and len(runs) > 1 else "" for run in runs])
    axis.set_ylim(len(runs) - 0.5, -0.5)
    axis.set_title("Goodput of each seed, and the mean")
    axis.set_xlabel("goodput (%)")
    axis.grid(axis="x")


def _intervals(axis, runs):
    axis.set_title("Goodput over the interval")
    axis.set_xlabel("time between two checkpoints (min)")
    for number, run in enumerate(runs):
        if not run.curve:
            continue
        line = {"color": style.SERIES[number % len(style.SERIES)], "linewidth": 1.4}
        axis.plot([s / 60 for s, _ in run.curve], [100 * g for _, g in run.curve], label=run.label, **line)
        if run.every:
            nearest = min(run.curve, key=lambda point: abs(point[0] - run.every))
            axis.plot([run.every / 60], [100 * nearest[1]], "o", color=line["color"], markersize=5)
    if len(runs) == 1 and runs[0].curve:
        for name, seconds, dash in (("Young", runs[0].young, "--"), ("Daly", runs[0].daly, ":")):
            if seconds:
                axis.axvline(seconds / 60, color=style.INK, linestyle=dash, linewidth=1, label=name)
    axis.set_xscale("log")
    axis.grid()
    if any(run.curve for run in runs):
        axis.legend(fontsize=7)
