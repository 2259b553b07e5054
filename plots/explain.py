"""The figure of an explanation (`rehearse simulate --explain`): where the step goes, what 10% more of each resource would bring, and the
busiest links and devices."""

from plots import style

BARS = 12  # most bars of a panel
LEAST = 0.0005  # of the step: smaller gains are left out

COLOURS = {
    "compute": style.SKY,
    "kernel": "#8d99a6",
    "optimizer": style.GREEN,
    "host": style.PURPLE,
    "communication": style.ORANGE,
    "waiting": "#c3cad1",
}


def read(item):
    """Reads the value of "explain" in the JSON of `simulate`; None without one. `item` is an inputs.Checked."""
    if item.value is None:
        return None
    return {
        "step_time": item.get("step_time_s").number(0),
        "parts": read_parts(item.get("parts").items(), "path_s", "mean_rank_s"),
        "gains": [(g.get("resource").text(), g.get("saved").number()) for g in item.get("ten_percent_more").items()],
        "links": [(x.get("first").text(), x.get("number").integer(), x.get("used").number(0)) for x in item.get("links").items()],
        "devices": [
            (f"rank {d.get('first_rank').integer()}", d.get("ranks").integer(), d.get("busy").number(0))
            for d in item.get("devices").items()
        ],
    }


def read_parts(items, *figures):
    """Kind, name and the named figures of each part of a step. Each kind has a colour."""
    parts = [(p.get("kind").text(), p.get("name").text(), *(p.get(key).number(0) for key in figures)) for p in items]
    for part, (kind, *_) in zip(items, parts, strict=True):
        if kind not in COLOURS:
            part.get("kind").fail(f"one of {', '.join(COLOURS)}")
    return parts


def draw(explained):
    """The figure of one explanation, as `read` returns it."""
    gains = [(name, 100 * saved) for name, saved in explained["gains"] if abs(saved) >= LEAST][:BARS]
    used = [(alike(name, count), 100 * share) for name, count, share in explained["devices"][:BARS]]
    used += [(alike(name, count), 100 * share) for name, count, share in explained["links"][:BARS]]
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
    factor, unit = style.time_unit(explained["step_time"])
    seen = set()
    for column in (0, 1):
        bottom = 0.0
        for kind, name, *seconds in explained["parts"]:
            height = seconds[column] * factor
            label = kind if kind not in seen and height else None
            seen |= {kind} if label else set()
            axis.bar(column, height, bottom=bottom, width=0.8, color=COLOURS[kind], edgecolor=style.PAPER, linewidth=0.6, label=label)
            if height > 0.05 * explained["step_time"] * factor:
                axis.text(column, bottom + height / 2, name, ha="center", va="center", fontsize=6.5)
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
