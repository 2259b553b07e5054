"""The figure that compares methods: throughput, traffic, bubble, exposed communication and peak
memory, with one row per method."""

from plots import style
from plots.explain import Explanation
from plots.faulted import Faults
from plots.fields import Amount, Number, Object, Version, record


class StepTime(Object):
    mean: Amount
    std: Amount | None = None
    ci95: Amount | None = None
    values: list[Amount] = []


Sent = record("Sent", mean=Amount, max=Amount)
Energy = record("Energy", per_step=Amount)
Cost = record("Cost", per_billion_tokens=Amount, currency=str)


class Result(Object):
    """The JSON of `simulate`; `label` comes from the command line, whatever the file says."""

    schema_version: Version
    method: str
    world_size: int
    step_time_s: StepTime
    samples_per_s: Amount
    tokens_per_s: Amount
    bubble_fraction: Amount
    exposed_comm_s: Amount
    bytes_sent_per_rank: Sent
    bytes_per_step_total: Amount
    peak_memory_bytes: dict[str, Amount]
    model: str = ""
    cluster: str = ""
    global_batch: int = 0
    seq_len: int = 0
    precision: str = ""
    mesh: dict[str, int] = {}
    mfu: Amount | None = None
    robustness: Number | None = None
    energy_j: Energy | None = None
    cost: Cost | None = None
    explain: Explanation | None = None
    faults: Faults | None = None
    fidelity: str = ""
    calibrated: bool = True
    program_hash: str = ""
    cluster_hash: str = ""
    warnings: list[str] = []
    label: object = ""

    @property
    def mesh_text(self):
        """ "pp 4 × dp 8"; ones are left out."""
        return " × ".join(f"{name} {size}" for name, size in self.mesh.items() if size > 1)

    @property
    def joules(self):
        return self.energy_j and self.energy_j.per_step


def labels(results):
    """A unique name for each row: the method, plus its mesh if methods repeat, plus a counter if
    that repeats too."""
    names = []
    for result in results:
        same = [r for r in results if r.method == result.method]
        name = result.method
        if len(same) > 1 and (result.label or result.mesh_text):
            name += f" ({result.label or result.mesh_text})"
        names.append(name)
    return [f"{n} #{names[: i + 1].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]


def ranked(results):
    """[(label, result)], the fastest first."""
    pairs = zip(labels(results), results, strict=True)
    return sorted(pairs, key=lambda p: -p[1].samples_per_s)


def draw(results):
    """The figure: rows are methods, panels are quantities, and the best value of a panel is dark."""
    rows = ranked(results)
    names = [style.broken(name) for name, _ in rows]
    results = [result for _, result in rows]
    height = 0.9 + (0.3 + 0.16 * style.more_lines(names)) * len(rows) if style.is_narrow() else 1.2 + 0.4 * len(rows)
    width = 12.5 + 0.09 * max(0, max(map(len, names)) - 20)  # long names take room from the panels
    figure, axes = style.panels(width, height, (1.25, 1, 1, 1, 1.15), sharey=True)

    throughput = [r.samples_per_s for r in results]
    times = [r.step_time_s for r in results]
    spread = [r * (t.ci95 or 0) / t.mean if t.mean else 0 for r, t in zip(throughput, times, strict=True)]
    _bars(axes[0], "Throughput", "samples/s (95% interval)", throughput, max, style.number, spread)

    divisor, unit = style.byte_unit(max(r.bytes_sent_per_rank.mean for r in results))
    _bars(
        axes[1],
        "Sent per rank and step",
        unit,
        [r.bytes_sent_per_rank.mean / divisor for r in results],
        min,
        style.number,
    )

    bubble = [round(100 * r.bubble_fraction, 9) for r in results]  # below that, rounding of sums
    _bars(axes[2], "Bubble", "% of the compute lane idle", bubble, min, lambda v: f"{v:.1f}")

    factor, unit = style.time_unit(max(r.exposed_comm_s for r in results) or 1)
    exposed = [r.exposed_comm_s * factor for r in results]
    _bars(axes[3], "Exposed communication", f"{unit} a step", exposed, min, style.number)

    _memory(axes[4], results)

    meshes = [r.mesh_text if r.mesh_text not in n else "" for n, r in zip(names, results, strict=True)]
    for axis in axes if style.is_narrow() else axes[:1]:
        style.name_rows(axis, list(zip(names, meshes, strict=True)))
    axes[0].set_ylim(len(names) - 0.4, -0.6)
    return figure


def _bars(axis, title, unit, values, best, text, spread=None):
    chosen = best(values)
    colours = [style.BLUE if v == chosen else "#a9cfe6" for v in values]
    axis.barh(range(len(values)), values, height=0.62, color=colours)
    if spread:
        axis.errorbar(
            values,
            range(len(values)),
            xerr=spread,
            fmt="none",
            ecolor=style.INK,
            elinewidth=1,
            capsize=2.5,
        )
    _frame(
        axis,
        title,
        unit,
        max(v + s for v, s in zip(values, spread or [0] * len(values), strict=True)),
    )
    for row, value in enumerate(values):
        end = value + (spread[row] if spread else 0)
        axis.annotate(
            text(value),
            (end, row),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style.INK,
            fontweight="bold" if value == chosen else "normal",
        )


def _memory(axis, results):
    kinds = list(dict.fromkeys(k for r in results for k in r.peak_memory_bytes))
    largest = max((v for r in results for v in r.peak_memory_bytes.values()), default=0)
    divisor, unit = style.byte_unit(largest)
    thickness = 0.62 / max(1, len(kinds))
    least = {k: min(r.peak_memory_bytes[k] for r in results if k in r.peak_memory_bytes) for k in kinds}
    for place, kind in enumerate(kinds):
        dark, light = (
            (style.BLUE, "#a9cfe6"),
            (style.ORANGE, "#f5d596"),
            (style.GREEN, "#99d8c7"),
        )[place % 3]
        for row, result in enumerate(results):
            value = result.peak_memory_bytes.get(kind)
            if value is None:
                continue
            y = row + (place - (len(kinds) - 1) / 2) * thickness
            best = value == least[kind]
            axis.barh(y, value / divisor, height=0.94 * thickness, color=dark if best else light)
            axis.annotate(
                style.number(value / divisor),
                (value / divisor, y),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8 if len(kinds) == 1 else 6.5,
                fontweight="bold" if best else "normal",
            )
    _frame(axis, "Peak memory per device", unit, largest / divisor)
    if len(kinds) > 1:
        colours = (style.BLUE, style.ORANGE, style.GREEN)
        handles = [axis.barh(0, 0, color=colours[i % 3], label=k) for i, k in enumerate(kinds)]
        axis.legend(
            handles=handles,
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            borderaxespad=2.6,
            ncols=len(kinds),
            fontsize=7,
            handlelength=1,
            columnspacing=1,
        )


def _frame(axis, title, unit, largest):
    axis.set_title(title)
    axis.set_xlabel(unit)
    axis.set_xlim(0, largest * 1.24 if largest else 1)
    axis.grid(axis="x")
    axis.spines["left"].set_visible(False)
    if largest:
        axis.locator_params(axis="x", nbins=4)
    else:
        axis.set_xticks([0])
