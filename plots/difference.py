"""The figure of two jobs (JSON of `rehearse diff`): what the seconds between their steps are spent on, and both critical paths in time."""

import math

from plots import explain, style
from plots.fields import Amount, Number, record

BARS = 12  # most parts
PATHS = {"forward": style.KINDS["forward"], "backward": style.KINDS["backward"], "update": style.KINDS["update"]}


class Part(explain.Part):
    a_s: Amount
    b_s: Amount


Stretch = record("Stretch", what=str, start_s=Number, seconds=Amount, communication_s=Amount)
Side = record("Side", job=str, explained_step_time_s=Amount, critical_path=list[Stretch])
Difference = record("Difference", parts=list[Part], a=Side, b=Side)


def draw(difference):
    parts = [(p.kind, p.name, p.b_s - p.a_s) for p in difference.parts if not math.isclose(p.a_s, p.b_s)][:BARS]
    figure, axes = style.panels(12.5, 1.6 + 0.28 * max(len(parts), 6), (1, 1.5))
    longest = max(difference.a.explained_step_time_s, difference.b.explained_step_time_s)
    factor, unit = style.time_unit(longest)
    _bars(axes[0], parts, factor, unit)
    _timelines(axes[1], difference, factor, unit)
    return figure


def _bars(axis, parts, factor, unit):
    axis.set_title("B − A on the critical path")
    axis.set_xlabel(f"{unit} a step")
    axis.barh(range(len(parts)), [s * factor for *_, s in parts], height=0.62, color=[explain.COLOURS[kind] for kind, *_ in parts])
    axis.set_yticks(range(len(parts)), [kind if kind == name else f"{kind}: {name}" for kind, name, _ in parts], fontsize=7)
    axis.set_ylim(max(len(parts), 1) - 0.4, -0.6)
    axis.axvline(0, color=style.INK, linewidth=0.8)
    if not parts:
        axis.text(0.5, 0.5, "no difference", transform=axis.transAxes, ha="center", color=style.QUIET)
    axis.margins(x=0.12)


def _look(stretch):
    """Label and colour of a stretch of the path."""
    if stretch.what in PATHS:
        return stretch.what, PATHS[stretch.what]
    communicates = stretch.communication_s > stretch.seconds / 2
    return ("communication", style.KINDS["collective"]) if communicates else ("other", style.KINDS["other"])


def _timelines(axis, difference, factor, unit):
    labelled = {}
    for row, side in enumerate((difference.a, difference.b)):
        for one in side.critical_path:
            label, colour = _look(one)
            edge = {"edgecolor": style.PAPER, "linewidth": 0.4}
            bar = axis.barh(row, one.seconds * factor, left=one.start_s * factor, height=0.6, color=colour, **edge)
            labelled.setdefault(label, bar)
    axis.set_title("Critical path of a step")
    axis.set_xlabel(unit)
    axis.set_yticks((0, 1), ("A", "B"))
    axis.set_ylim(1.5, -0.5)
    axis.set_xlim(0)
    axis.legend(labelled.values(), labelled.keys(), loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=style.legend_columns(4))
