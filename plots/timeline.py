"""The timeline of one step: a row for each lane of each rank, a bar for each op, and a panel for each
executor.

All panels have the same time axis, which starts with the step, so a difference between simulated and
real is visible as a shift.
"""

import re
from dataclasses import dataclass

from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from msgspec import field

from plots import style
from plots.fields import Amount, Number, Object, record

ROWS = 36  # most rows of a panel; if there are more, some ranks are left out
BARS_AS_SHAPES = 6000  # with more bars, they are drawn as one image, to keep the file small


class Phase(Object):
    """What an event is: complete (X), a name (M), or something that is not drawn."""

    ph: str
    name: object = None


Name = record("Name", name=str)
RankName = record("RankName", pid=int, args=Name)
LaneName = record("LaneName", pid=int, tid=int, args=Name)


class Details(Object):
    step: int | str | None = None
    micro_batch: int | str | None = None
    critical: bool = False


class Event(Object):
    """A complete event, times in microseconds."""

    name: str
    ts: Number
    dur: Amount
    rank: int = field(name="pid")
    lane: int = field(name="tid")
    kind: str = field(name="cat", default="")
    args: Details = Details()

    @property
    def start(self):
        return self.ts * 1e-6

    @property
    def end(self):
        return self.start + self.dur * 1e-6


@dataclass
class Trace:
    label: str
    events: list
    ranks: dict  # rank -> name
    lanes: dict  # (rank, lane) -> name


def kind_of(event):
    """The kind of work that sets the colour of a bar; for compute, the kind of pass."""
    name, kind = event.name.lower(), event.kind.lower()
    if kind in ("compute", ""):
        for word, found in (
            ("recompute", "recompute"),
            ("backward", "backward"),
            ("bwd", "backward"),
            ("forward", "forward"),
            ("fwd", "forward"),
        ):
            if word in name:
                return found
    return kind if kind in style.KINDS else "other"


def one_step(trace, step):
    """The events of `step` (all events if `step` is None), the first start, and the duration, in
    seconds."""
    events = [e for e in trace.events if e.args.step == step] if step is not None else trace.events
    begin = min(e.start for e in events)
    return events, begin, max(e.end for e in events) - begin


def common_step(traces):
    """The middle one of the steps that all traces hold, away from warm-up and end; None without
    step numbers."""
    sets = [{e.args.step for e in t.events if e.args.step is not None} for t in traces]
    if not all(sets):
        return None
    shared = sorted(set.intersection(*sets)) or None
    return shared[len(shared) // 2] if shared else None


def _rows(trace, events):
    """[(rank, lane)] to show from top to bottom, the number of ranks in all, and the number
    shown."""
    used = {(e.rank, e.lane) for e in events}
    ranks = sorted({rank for rank, _ in used})
    lanes = max(sum(1 for r, _ in used if r == rank) for rank in ranks)
    shown = _some(trace, ranks, max(1, ROWS // lanes))
    rows = [(rank, lane) for rank in shown for lane in sorted(ln for r, ln in used if r == rank)]
    return rows, len(ranks), len(shown)


def _some(trace, ranks, count):
    """At most `count` ranks: first one of each role (by process name), then more from each role in
    turn."""
    if len(ranks) <= count:
        return ranks
    roles = {}
    for rank in ranks:
        roles.setdefault(re.sub(r"rank\s*\d+", "", trace.ranks.get(rank, "")), []).append(rank)
    queues = [list(members) for members in roles.values()]
    shown = []
    while len(shown) < count:
        for queue in queues:
            if queue and len(shown) < count:
                shown.append(queue.pop(0))
    return sorted(shown)


def draw(traces):
    """The figure: a panel for each trace, simulated above real."""
    traces = sorted(traces, key=lambda t: not t.label.lower().startswith("sim"))
    step = common_step(traces)
    panels = []
    for trace in traces:
        own = step if step is not None else common_step([trace])
        events, begin, length = one_step(trace, own)
        rows, ranks, shown = _rows(trace, events)
        panels.append((trace, own, events, begin, length, rows, ranks, shown))
    heights = [len(p[5]) for p in panels]
    figure, axes = style.figure(
        12.5,
        1.0 + sum(0.55 + 0.235 * h for h in heights),
        nrows=len(panels),
        sharex=True,
        height_ratios=[h + 1.5 for h in heights],
        squeeze=False,
    )
    longest = max(p[4] for p in panels)
    factor, unit = style.time_unit(longest)
    kinds = set()
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        kinds |= _panel(axis, panel, factor, unit, longest * factor)
    axes[-1, 0].set_xlabel(f"time since the step began ({unit})")
    handles = [Patch(color=colour, label=kind) for kind, colour in style.KINDS.items() if kind in kinds]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=style.legend_columns(len(handles)) + style.is_narrow(),
        handlelength=1.2,
        columnspacing=1.6,
    )
    return figure


def _panel(axis, panel, factor, unit, longest):
    trace, step, events, begin, length, rows, ranks, shown = panel
    place = {row: i for i, row in enumerate(rows)}
    microbatches = {e.args.micro_batch for e in events if e.args.micro_batch is not None}
    boxes, texts, edges, critical = {}, [], {}, []
    for event in sorted(events, key=lambda e: e.start):
        row = place.get((event.rank, event.lane))
        if row is None:
            continue
        kind, left, right = (
            kind_of(event),
            (event.start - begin) * factor,
            (event.end - begin) * factor,
        )
        wide = right - left > 0.004 * longest
        shape = [(left, row - 0.4), (right, row - 0.4), (right, row + 0.4), (left, row + 0.4)]
        boxes.setdefault(kind, []).append(shape)
        edges.setdefault(kind, []).append(0.5 if wide else 0)
        if event.args.critical:
            critical.append(shape)
        if len(microbatches) > 1 and event.args.micro_batch is not None and right - left > 0.014 * longest:
            texts.append((0.5 * (left + right), row, str(event.args.micro_batch), kind))
    count = sum(map(len, boxes.values()))
    for kind, shapes in boxes.items():
        axis.add_collection(
            PolyCollection(
                shapes,
                facecolors=style.KINDS[kind],
                edgecolors="white",
                linewidths=edges[kind],
                rasterized=count > BARS_AS_SHAPES,
            )
        )
    axis.add_collection(PolyCollection(critical, facecolors="none", edgecolors=style.VERMILION, linewidths=0.9, zorder=3))
    for x, y, text, kind in texts:
        dark = kind in ("backward", "update", "put", "take", "send")
        axis.text(x, y, text, ha="center", va="center", fontsize=6.5, color="white" if dark else style.INK)

    previous = None
    for row, (rank, _) in enumerate(rows):
        if rank != previous and previous is not None:
            axis.axhline(row - 0.5, color="#cfd6dc", linewidth=0.8)
        previous = rank
        axis.axhspan(row - 0.4, row + 0.4, color="#f4f6f8", zorder=0, linewidth=0)
    axis.axvline(length * factor, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    axis.set_yticks(range(len(rows)), [_row_name(trace, rows, i) for i in range(len(rows))])
    axis.tick_params(axis="y", labelsize=7.5)
    axis.set_ylim(len(rows) - 0.45, -0.55)
    axis.set_xlim(0, longest * 1.015)
    axis.spines["left"].set_visible(False)
    note = f"{shown} of {ranks} ranks" if shown < ranks else f"{ranks} rank{'s' if ranks > 1 else ''}"
    which = f"step {step}" if step is not None else "whole trace"
    axis.set_title(f"{trace.label[:1].upper() + trace.label[1:]}: {which}, {style.number(length * factor)} {unit}, {note}")
    return set(boxes)


def _row_name(trace, rows, at):
    rank, lane = rows[at]
    lane_name = trace.lanes.get((rank, lane), f"lane {lane}")
    first = at == 0 or rows[at - 1][0] != rank
    rank_name = trace.ranks.get(rank, f"rank {rank}")
    return f"{rank_name}   {lane_name}" if first else lane_name
