"""The figure of training runs: loss and validation loss over steps, with the throughput below."""

from dataclasses import dataclass

from plots import style
from plots.fields import Number, Object


class Row(Object):
    """A step, or a validation after it."""

    step: int
    loss: Number | None = None  # None: there is no point to draw, as where the loss diverged
    validation_loss: Number | None = None
    tokens_per_s: Number | None = None


@dataclass
class Losses:
    label: str
    rows: list


def smooth(values):
    """Centred moving average over about a fifteenth of the run; the window is smaller at both ends,
    so that it stays centred."""
    half = max(1, len(values) // 30)
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    out = []
    for at in range(len(values)):
        reach = min(half, at, len(values) - 1 - at)
        out.append((sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1))
    return out


def draw(runs):
    """The figure for one or more training runs."""
    with_speed = any(row.tokens_per_s for run in runs for row in run.rows)
    figure, axes = style.figure(
        12.5,
        4.6 if with_speed else 3.4,
        nrows=2 if with_speed else 1,
        sharex=True,
        squeeze=False,
        height_ratios=(2.6, 1) if with_speed else None,
    )
    top = axes[0, 0]
    validated = False
    for run, colour in zip(runs, style.SERIES * (1 + len(runs) // len(style.SERIES)), strict=False):
        points = [(r.step, r.loss) for r in run.rows if r.loss is not None]
        if points:
            steps, values = zip(*points, strict=True)
            many = len(values) > 30
            if many:
                top.plot(steps, values, color=colour, alpha=0.35, linewidth=0.9)
            top.plot(
                steps,
                smooth(values) if many else values,
                color=colour,
                linewidth=2,
                label=run.label,
            )
        checks = [(r.step, r.validation_loss) for r in run.rows if r.validation_loss is not None]
        if checks:
            validated = True
            top.plot(*zip(*checks, strict=True), "o", color=colour, markerfacecolor=style.PAPER, markersize=6, markeredgewidth=1.6)
        if with_speed:
            speed = [(r.step, r.tokens_per_s) for r in run.rows if r.tokens_per_s is not None]
            if speed:
                axes[1, 0].plot(*zip(*speed, strict=True), color=colour, linewidth=1.2)
    top.set_title("Training loss")
    top.set_ylabel("cross-entropy (nats per token)")
    if validated:
        top.plot(
            [],
            [],
            "o",
            color=style.QUIET,
            markerfacecolor=style.PAPER,
            markeredgewidth=1.6,
            label="validation",
        )
    top.legend(loc="upper right")
    if with_speed:
        axes[1, 0].set_title("Throughput")
        axes[1, 0].set_ylabel("tokens/s")
        axes[1, 0].set_ylim(bottom=0)
    for axis in axes[:, 0]:
        axis.grid()
        axis.margins(x=0.01)
    axes[-1, 0].set_xlabel("step")
    return figure
