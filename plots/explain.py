"""The figure of an explanation (`rehearse simulate --explain`): where the step goes, what 10% more of each resource would bring, and the
busiest links and devices."""

from plots import style
from plots.fields import Amount, Number, Object, one_of, record

BARS = 12  # most bars of a panel
LEAST = 0.0005  # of the step: smaller gains are left out

COLOURS = {
    "compute": style.SKY,
    "kernel": "#8d99a6",
    "optimizer": style.GREEN,
    "checkpoint": style.BLUE,
    "host": style.PURPLE,
    "host_copy": style.YELLOW,
    "communication": style.ORANGE,
    "waiting": "#c3cad1",
}


class Part(Object):
    kind: one_of(COLOURS)
    name: str


class TimedPart(Part):
    path_s: Amount
    mean_rank_s: Amount


Gain = record("Gain", resource=str, saved=Number)
Links = record("Links", first=str, number=int, used=Amount)
Devices = record("Devices", first_rank=int, ranks=int, busy=Amount)


class Explanation(Object):
    """The value of "explain" in the JSON of `simulate`."""

    step_time_s: Amount
    parts: list[TimedPart]
    ten_percent_more: list[Gain]
    links: list[Links]
    devices: list[Devices]


def draw(explained):
    gains = [(g.resource, 100 * g.saved) for g in explained.ten_percent_more if abs(g.saved) >= LEAST][:BARS]
    used = [(alike(f"rank {d.first_rank}", d.ranks), 100 * d.busy) for d in explained.devices[:BARS]]
    used += [(alike(x.first, x.number), 100 * x.used) for x in explained.links[:BARS]]
    rows = max(len(gains), len(used), 6)
    figure, axes = style.panels(12.5, 1.2 + 0.28 * rows, (0.9, 1, 1))
    stacks(axes[0], explained)
    bars(axes[1], "What 10% more would bring", "% of the step time", gains, "nothing brings 0.05%")
    bars(axes[2], "Devices and links", "% busy", used, "nothing is used")
    return figure


def alike(name, count):
    return name if count == 1 else f"{name} and {count - 1} equal"


def stacks(axis, explained):
    """Both views of the step as stacks of kinds; the largest parts have their names beside them."""
    factor, unit = style.time_unit(explained.step_time_s)
    seen = set()
    for column in (0, 1):
        bottom = 0.0
        for part in explained.parts:
            kind, height = part.kind, (part.path_s, part.mean_rank_s)[column] * factor
            label = kind if kind not in seen and height else None
            seen |= {kind} if label else set()
            axis.bar(
                column,
                height,
                bottom=bottom,
                width=0.8,
                color=COLOURS[kind],
                edgecolor=style.PAPER,
                linewidth=0.6,
                label=label and label.replace("_", " "),
            )
            if height > 0.05 * explained.step_time_s * factor:
                axis.text(column, bottom + height / 2, part.name, ha="center", va="center", fontsize=6.5)
            bottom += height
    axis.set_title("Where the step goes")
    axis.set_ylabel(f"{unit} a step")
    axis.set_xticks((0, 1), ("critical path", "mean of ranks"))
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3)


def bars(axis, title, unit, rows, otherwise):
    axis.set_title(title)
    axis.set_xlabel(unit)
    axis.barh(range(len(rows)), [value for _, value in rows], height=0.62, color=style.BLUE)
    axis.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
    axis.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    for row, (_, value) in enumerate(rows):
        axis.text(max(value, 0), row, f" {value:.1f}", va="center", fontsize=7)
    if not rows:
        axis.text(0.5, 0.5, otherwise, transform=axis.transAxes, ha="center", color=style.QUIET)
    axis.margins(x=0.12)
