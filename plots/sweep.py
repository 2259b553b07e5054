"""The figure of a sweep (JSON of `rehearse sweep`). One axis of numbers: lines, one for each combination of the other axes; two axes of
words: a heat map; anything else, or too many lines: the best points as bars."""

import math
from typing import Annotated

from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from msgspec import Meta, defstruct, field

from plots import style
from plots.fields import Amount, Object, Some, one_of, record

MOST_LINES, MOST_CELLS, MOST_BARS = 12, 400, 25
LABELS = {
    "step_s": "step time (s)",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "mfu": "MFU",
    "bubble_fraction": "bubble, share of the compute lanes' time",
    "exposed_comm_s": "exposed communication (s)",
    "peak_memory_bytes": "peak memory (GB)",
    "joules_per_step": "energy of a step (J)",
    "cost_per_step": "cost of a step",
    "cost_per_billion_tokens": "cost of a billion tokens",
    "cost": "cost in all",
    "dry_run_s": "step time without contention (s)",
    "goodput": "goodput",
    "productive_s": "productive time (s)",
    "lost_s": "lost time (s)",
    "interruptions": "interruptions",
}
Metrics = defstruct(
    "Metrics",
    [("currency", str | None, None), *((name, Amount | None, None) for name in (*LABELS, "efficiency"))],
    bases=(Object,),
)
Axis = record("Axis", name=str, values=list)


class Point(Object):
    key: str
    point: dict[str, object]  # axis -> value
    metrics: Metrics | None = None  # None: it cannot run


Metric = record("Metric", metric=one_of(LABELS))
# The keys are those of the points to which no other is preferable.
Frontier = record("Frontier", by=Annotated[list[Metric], Meta(min_length=2)], keys=list[str])


def _figure(metrics, name):
    """In the unit of LABELS; None: the point cannot run, or has no such metric."""
    number = metrics and getattr(metrics, name)
    return number / 1e9 if number is not None and name == "peak_memory_bytes" else number


class Sweep(Object):
    name: str = field(name="sweep")
    by: one_of(LABELS)
    most: bool  # the largest is the best
    axes: list[Axis]
    points: Some[Point]
    vary: str = "together"  # or "alone"
    scaling: str | None = None  # "strong", "weak", or None: no scaling
    frontier: Frontier | None = None  # None: one metric ranks

    def __post_init__(self):
        axes = self.values.keys()
        for one in self.points:
            if missing := axes - one.point.keys():
                raise ValueError(f"Point {one.key} missing required axis `{min(missing)}`")
            devices, metrics = one.point.get("devices"), one.metrics
            scaled = _is_number(devices) and 1 <= devices < math.inf and metrics and None not in (metrics.step_s, metrics.efficiency)
            if self.scaling and metrics and not scaled:
                raise ValueError(f"Point {one.key} of a scaling missing required `devices` >= 1, `step_s` or `efficiency`")

    @property
    def values(self):
        """{axis: its values}"""
        return {axis.name: axis.values for axis in self.axes}

    @property
    def many(self):
        """The names of axes with several values."""
        return [axis.name for axis in self.axes if len(axis.values) > 1]

    @property
    def figures(self):
        """[(the values of a point by axis, its figure or None)]"""
        return [(one.point, _figure(one.metrics, self.by)) for one in self.points]


def draw(sweep):
    if sweep.frontier and (points := _by_two(sweep)):
        return _frontier(sweep, points)
    if sweep.scaling and any(one.metrics for one in sweep.points):
        return _curves(sweep)
    if sweep.vary == "alone" and any(number is not None for _, number in sweep.figures[1:]):
        return _tornado(sweep)
    many = sweep.many
    numeric = [name for name in many if all(_is_number(v) for v in sweep.values[name])]
    if numeric:
        longest = max(numeric, key=lambda name: len(sweep.values[name]))
        others = [name for name in many if name != longest]
        if math.prod(len(sweep.values[name]) for name in others) <= MOST_LINES:
            return _lines(sweep, longest, others)
    if len(many) == 2 and math.prod(len(sweep.values[name]) for name in many) <= MOST_CELLS:
        return _map(sweep, *many)
    return _bars(sweep, many)


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name(values, axes):
    return ", ".join(str(values[a]) if isinstance(values[a], str) else f"{a.rsplit('.', 1)[-1]} {values[a]}" for a in axes)


def _look(number):
    cycle, colour = divmod(number, len(style.SERIES))
    return {"color": style.SERIES[colour], "linestyle": ("-", "--")[cycle % 2], "marker": "o", "markersize": 4}


def _lines(sweep, along, others):
    figure, axis = style.figure(8, 4.5)
    series = {}
    for values, number in sweep.figures:
        if number is not None:
            series.setdefault(_name(values, others), []).append((values[along], number))
    for number, (name, points) in enumerate(series.items()):
        axis.plot(*zip(*sorted(points), strict=True), label=name or None, **_look(number))
    places = [v for v in sweep.values[along] if _is_number(v)]
    if min(places) > 0 and max(places) / min(places) >= 8:
        axis.set_xscale("log")
    axis.set_xticks(places if len(places) <= MOST_LINES else places[:: len(places) // 8], minor=False)
    axis.minorticks_off()
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axis.set_xlabel(along)
    axis.set_ylabel(LABELS[sweep.by])
    axis.set_ylim(0)
    axis.grid()
    axis.set_title(sweep.name)
    if any(series):
        figure.legend(loc="outside lower center" if style.is_narrow() else "outside right upper")
    return figure


def _by_two(sweep):
    """[(name, first figure, second figure, whether it is on the frontier)] of the points that have the first two metrics."""
    first, second = (one.metric for one in sweep.frontier.by[:2])
    found = [(one, _figure(one.metrics, first), _figure(one.metrics, second)) for one in sweep.points]
    return [(_name(one.point, sweep.many), x, y, one.key in sweep.frontier.keys) for one, x, y in found if None not in (x, y)]


def _frontier(sweep, points):
    """Every point by two metrics, and those to which none is preferable, with their names."""
    best = sorted((point for point in points if point[3]), key=lambda point: point[1:3])
    currency = next((one.metrics.currency for one in reversed(sweep.points) if one.metrics and one.metrics.currency), None)
    figure, axis = style.figure(9, 5)
    others = [point for point in points if not point[3]]
    axis.plot([p[1] for p in others], [p[2] for p in others], "o", color=style.QUIET, markersize=3.5, alpha=0.5, label="other points")
    axis.plot([p[1] for p in best], [p[2] for p in best], "o-", color=style.VERMILION, markersize=5, linewidth=1, label="the frontier")
    for number, (_, x, y, _) in enumerate(best[:MOST_BARS], 1):
        axis.annotate(str(number), (x, y), (-4, -12), textcoords="offset points", fontsize=8, fontweight="bold", color=style.VERMILION)
    for scale, ticks, at in ((axis.set_xscale, axis.xaxis, 1), (axis.set_yscale, axis.yaxis, 2)):
        values = [point[at] for point in points]
        if min(values) > 0 and max(values) / min(values) >= 20:
            scale("log")
            ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ticks.set_major_formatter(lambda x, _: f"{x:g}")
            ticks.set_minor_formatter(NullFormatter())
    for label, one in zip((axis.set_xlabel, axis.set_ylabel), sweep.frontier.by, strict=False):
        label(f"{LABELS[one.metric]} ({currency})" if currency and one.metric.startswith("cost") else LABELS[one.metric])
    axis.grid()
    axis.set_title(f"{sweep.name}: {len(best)} of {len(points)} points are on the frontier")
    names = [Line2D([], [], linestyle="", label=f"{number}  {name}") for number, (name, *_) in enumerate(best[:MOST_BARS], 1)]
    axis.legend()
    figure.legend(
        handles=names, loc="outside lower center" if style.is_narrow() else "outside right upper", handlelength=0, handletextpad=0
    )
    return figure


def _curves(sweep):
    """Step times beside what perfect scaling gives, and the efficiency."""
    figure, (left, right) = style.panels(10, 4.2, (1, 1))
    able, curves = [one for one in sweep.points if one.metrics], {}
    for one in able:
        curves.setdefault(_name(one.point, [name for name in sweep.many if name != "devices"]), []).append(one)
    for number, (name, points) in enumerate(curves.items()):
        look = _look(number)
        devices, steps = [one.point["devices"] for one in points], [one.metrics.step_s for one in points]
        left.plot(devices, steps, label=name or None, **look)
        right.plot(devices, [one.metrics.efficiency for one in points], **look)
        ideal = [steps[0] * (devices[0] / n if sweep.scaling == "strong" else 1) for n in devices]
        left.plot(devices, ideal, color=look["color"], linewidth=0.8, linestyle=":")
    places = sorted({one.point["devices"] for one in able})
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xticks(places if len(places) <= 8 else places[:: math.ceil(len(places) / 8)], minor=False)
        axis.minorticks_off()
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axis.set_xlabel("devices")
        axis.grid()
    if sweep.scaling == "strong":
        left.set_yscale("log")
    else:
        left.set_ylim(0)
    left.set_ylabel(LABELS["step_s"] + "; dotted: perfect scaling")
    right.set_ylim(0, 1.05 * max(1, *(one.metrics.efficiency for one in able)))
    right.set_ylabel("efficiency")
    right.set_title("samples/s a device, beside the fewest devices", loc="left")
    left.set_title(f"{sweep.name}: {sweep.scaling} scaling")
    if any(curves):
        figure.legend(loc="outside lower center", ncols=style.legend_columns(3))
    return figure


def _tornado(sweep):
    """For each axis the figures from its least to its largest, beside the job's; the axis that moves them most comes first."""
    base = sweep.figures[0][1]
    found = {}  # axis -> [(figure, value)]
    for values, number in sweep.figures[1:]:
        (name,) = (name for name in sweep.values if values[name] is not None)
        if number is not None:
            found.setdefault(name, []).append((number, str(values[name])))
    ends = {name: (min(some), max(some)) for name, some in found.items()}
    if base is not None:
        ends = {name: (min(low, (base, "job")), max(high, (base, "job"))) for name, (low, high) in ends.items()}
    order = sorted(ends, key=lambda name: ends[name][0][0] - ends[name][1][0])
    figure, axis = style.figure(8, 1.4 + 0.42 * len(order))
    for y, name in enumerate(order):
        (low, at_low), (high, at_high) = ends[name]
        axis.barh(y, high - low, left=low, color=style.BLUE, height=0.6)
        axis.annotate(at_low, (low, y), (-4, 0), textcoords="offset points", ha="right", va="center", fontsize=8)
        axis.annotate(at_high, (high, y), (4, 0), textcoords="offset points", ha="left", va="center", fontsize=8)
    if base is not None:
        axis.axvline(base, color=style.INK, linewidth=1)
    axis.set_yticks(range(len(order)), order)
    axis.invert_yaxis()
    axis.use_sticky_edges = False  # room for the values beside the bars
    axis.margins(x=0.15)
    axis.set_xlabel(LABELS[sweep.by])
    axis.set_title(f"{sweep.name}: each input alone; the line is the job's own")
    axis.grid(axis="x")
    return figure


def _map(sweep, down, across):
    rows, columns = sweep.values[down], sweep.values[across]
    found = {(str(v[down]), str(v[across])): number for v, number in sweep.figures}
    cells = [[found.get((str(r), str(c))) for c in columns] for r in rows]
    figure, axis = style.figure(2.5 + 0.9 * len(columns), 1.6 + 0.35 * len(rows), narrow=max(style.NARROW, 1.7 + 0.55 * len(columns)))
    numbers = [[math.nan if cell is None else cell for cell in row] for row in cells]
    image = axis.imshow(numbers, aspect="auto", cmap="cividis" if sweep.most else "cividis_r")
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            text = "–" if cell is None else style.number(cell)
            dark = cell is not None and sum(image.cmap(image.norm(cell))[:3]) < 1.5
            axis.text(x, y, text, ha="center", va="center", fontsize=8, color=style.PAPER if dark else style.INK)
    axis.set_xticks(range(len(columns)), [str(c) for c in columns], rotation=30 if len(columns) > 6 else 0)
    axis.set_yticks(range(len(rows)), [str(r) for r in rows])
    axis.set_xlabel(across)
    axis.set_ylabel(down)
    axis.set_title(f"{sweep.name}: {LABELS[sweep.by]}; – cannot run")
    return figure


def _bars(sweep, many):
    able = [(number, _name(values, many)) for values, number in sweep.figures if number is not None]
    best = sorted(able, reverse=sweep.most)[:MOST_BARS]
    figure, axis = style.figure(8, 1.2 + 0.26 * max(1, len(best)))
    axis.barh(range(len(best)), [number for number, _ in best], color=style.BLUE)
    axis.set_yticks(range(len(best)), [name for _, name in best])
    axis.invert_yaxis()
    axis.set_xlabel(LABELS[sweep.by])
    axis.set_title(f"{sweep.name}: the best {len(best)} of {len(able)} points that can run")
    axis.grid(axis="x")
    return figure
