"""Figures of a plan: the model's layers on the cluster's devices, and for each layer the variance of
its gradient and the fraction that is sent (Sun 2026, eq. 1 and 3)."""

from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from plots import style
from plots.fields import Amount, Object, Some, record

NODES = 48  # most nodes that are drawn; others are similar, and the page is limited
COLUMNS = 8  # nodes in a row


class Device(Object):
    name: str
    kind: str
    rank: int | None  # None: the plan does not use the device
    stage: int | None = None


Node = record("Node", name=str, devices=list[Device])


class Layer(Object):
    name: str
    stage: int
    density: Amount
    reduction: str
    variance: Amount | None  # per gradient entry; None: not measured


class Placement(Object):
    """The value of "placement" in the JSON of `simulate --report`."""

    cluster: str
    nodes: Some[Node]
    stages: list[str]  # "embedding .. L5.mlp"
    layers: list[Layer]

    def __post_init__(self):
        known = range(len(self.stages))
        for one in (*(device for node in self.nodes for device in node.devices if device.rank is not None), *self.layers):
            if one.stage not in known:
                raise ValueError(f"Expected `stage` of {one.name} below {len(known)}, got {one.stage}")


def colour(stage):
    """With few stages, a colour of the palette; with many, a colour of one colour map."""
    if stage < len(style.SERIES):
        return style.SERIES[stage]
    return style.plt.get_cmap("viridis")((stage * 0.381966) % 1)


def draw(placement):
    """The figure: nodes as boxes with their devices, coloured by pipeline stage."""
    shown = placement.nodes[:NODES]
    most = max(len(node.devices) for node in shown)
    across = 4 if most > 2 else most
    columns = min(COLUMNS // (across if style.is_narrow() else 1), len(shown))
    rows = -(-len(shown) // columns)
    down = -(-most // across)
    width, height = across + 0.9, down + 1.1
    kinds = sorted({device.kind for node in shown for device in node.devices})
    handles = [Patch(facecolor=colour(i), edgecolor=style.INK, label=f"stage {i}: {text}") for i, text in enumerate(placement.stages)]
    handles += [
        Patch(facecolor=style.PAPER, edgecolor=style.INK, hatch="//" * i, label=kind) for i, kind in enumerate(kinds) if len(kinds) > 1
    ]
    most_wide = style.NARROW if style.is_narrow() else 11.5
    scale = min(0.5, most_wide / (width * columns))  # inches per device
    figure, axes = style.figure(scale * width * columns, 0.5 + scale * height * rows + 0.12 * len(handles))
    for i, node in enumerate(shown):
        left, top = (i % columns) * width, -(i // columns) * height
        axes.add_patch(
            FancyBboxPatch(
                (left, top - down - 0.35),
                across + 0.35,
                down + 0.55,
                boxstyle="round,pad=0.08",
                facecolor="#f5f7f9",
                edgecolor="#b8c0c8",
                linewidth=0.8,
            )
        )
        axes.text(left + 0.1, top + 0.02, node.name, fontsize=7, color=style.QUIET, va="center")
        for k, device in enumerate(node.devices):
            x, y = left + 0.18 + k % across, top - 1.15 - k // across
            used = device.rank is not None
            axes.add_patch(
                Rectangle(
                    (x, y),
                    0.86,
                    0.86,
                    facecolor=colour(device.stage) if used else style.PAPER,
                    edgecolor=style.INK,
                    linewidth=0.6,
                    hatch="" if kinds.index(device.kind) == 0 else "//" * kinds.index(device.kind),
                )
            )
            if used:
                axes.text(
                    x + 0.43, y + 0.43, str(device.rank), ha="center", va="center", fontsize=7,
                    color=style.PAPER, fontweight="bold",
                )  # fmt: skip
    axes.set_xlim(-0.2, columns * width)
    axes.set_ylim(-rows * height, 0.4)
    axes.set_aspect("equal")
    axes.set_axis_off()
    more = len(placement.nodes) - len(shown)
    axes.set_title(f"Layers on {placement.cluster}: ranks by stage" + (f" ({more} more nodes not drawn)" if more else ""))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncol=1 if style.is_narrow() else 2)
    return figure


def draw_layers(placement):
    """The figure: variance per gradient entry above and sparsity below, with a bar for each layer in
    the colour of its stage."""
    measured = [layer.variance is not None for layer in placement.layers]
    panels = 2 if any(measured) else 1
    figure, axes = style.figure(10, 1.2 + 2.1 * panels, nrows=panels, sharex=True, squeeze=False)
    places = range(len(placement.layers))
    colours = [colour(layer.stage) for layer in placement.layers]
    if panels == 2:
        top = axes[0][0]
        top.bar(places, [layer.variance or 0 for layer in placement.layers], color=colours)
        top.set_yscale("log")
        top.set_title("Variance of a gradient entry over warm-up")
    bottom = axes[-1][0]
    bottom.bar(places, [1 - layer.density for layer in placement.layers], color=colours)
    bottom.set_ylim(0, 1)
    bottom.set_title("Sparsity: part of the gradient that is not sent")
    for place, layer in zip(places, placement.layers, strict=True):
        if layer.reduction == "dense":
            bottom.text(place, 0.02, "dense", rotation=90, ha="center", fontsize=6.5)
    bottom.set_xticks(list(places), [layer.name for layer in placement.layers], rotation=90)
    return figure
