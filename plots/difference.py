"""The figure of two jobs (JSON of `rehearse diff`): what the seconds between their steps are spent on, and both critical paths in time."""

import math

from plots import explain, style

BARS = 12  # most parts
PATHS = {"forward": style.KINDS["forward"], "backward": style.KINDS["backward"], "update": style.KINDS["update"]}


def read(top):
    top.version()
    return {"parts": explain.read_parts(top.get("parts").items(), "a_s", "b_s"), "a": _side(top.get("a")), "b": _side(top.get("b"))}


def _side(item):
    path = [
        (s.get("what").text(), s.get("start_s").number(), s.get("seconds").number(0), s.get("communication_s").number(0))
        for s in item.get("critical_path").items()
    ]
    return {"job": item.get("job").text(), "step_time": item.get("explained_step_time_s").number(0), "path": path}


def draw(difference):
    """The figure of one difference, as `read` returns it."""
    parts = [(kind, name, b - a) for kind, name, a, b in difference["parts"] if not math.isclose(a, b)][:BARS]
    figure, axes = style.panels(12.5, 1.6 + 0.28 * max(len(parts), 6), (1, 1.5))
    longest = max(difference["a"]["step_time"], difference["b"]["step_time"])
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


def _look(what, seconds, communication):
    """Label and colour of a stretch of the path."""
    if what in PATHS:
        return what, PATHS[what]
    return ("communication", style.KINDS["collective"]) if communication > seconds / 2 else ("other", style.KINDS["other"])


def _timelines(axis, difference, factor, unit):
    labelled = {}
    for row, side in enumerate(("a", "b")):
        for what, start, seconds, communication in difference[side]["path"]:
            label, colour = _look(what, seconds, communication)
            bar = axis.barh(row, seconds * factor, left=start * factor, height=0.6, color=colour, edgecolor=style.PAPER, linewidth=0.4)
            labelled.setdefault(label, bar)
    axis.set_title("Critical path of a step")
    axis.set_xlabel(unit)
    axis.set_yticks((0, 1), ("A", "B"))
    axis.set_ylim(1.5, -0.5)
    axis.set_xlim(0)
    axis.legend(labelled.values(), labelled.keys(), loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=style.legend_columns(4))
