"""Forms of error feedback: loss by the part of a gradient that is kept. Takes the JSON of experiments/figure2/figure2.py."""

import io

from plots import style

FORMS = (("conserving", "o", style.BLUE), ("printed", "s", style.GREEN), ("literal", "^", style.VERMILION))


def forms(axis, rows):
    """Loss over the part kept, a line a form, dense as a band."""
    of = {row["variant"]: row["validation_loss"] for row in rows if row["validation_loss"]}
    dense = of.get("dense")
    if dense:
        half = dense["ci95"] or 0
        axis.axhline(dense["mean"], color=style.QUIET, label="dense")
        axis.axhspan(dense["mean"] - half, dense["mean"] + half, color=style.FAINT)
    for place, (form, mark, colour) in enumerate(FORMS):
        points = [
            (float(name.split(", ")[1].split("%")[0]), loss)
            for name, loss in of.items()
            if name.startswith(form)
        ]  # fmt: skip
        if not points:
            continue
        axis.errorbar(
            [kept * 1.06 ** (place - 1) for kept, _ in points],  # side by side
            [loss["mean"] for _, loss in points],
            yerr=[loss["ci95"] or 0 for _, loss in points],
            fmt=mark + "-", markersize=5, capsize=3, linewidth=1, color=colour, label=form,
        )  # fmt: skip
    axis.set_xscale("log")
    kept = sorted({float(name.split(", ")[1].split("%")[0]) for name in of if ", " in name})
    axis.set_xticks(kept, [f"{k:g}" for k in kept])
    axis.minorticks_off()
    axis.set_title("Forms of error feedback: trained")
    axis.set_xlabel("% of the gradient kept, log")
    axis.set_ylabel("validation loss")
    axis.grid(axis="y")
    axis.legend()


def draw(result):
    """SVG bytes."""
    figure, axis = style.figure(6, 3.6)
    forms(axis, result["feedback"])
    buffer = io.BytesIO()
    style.save(figure, buffer, "svg")
    return buffer.getvalue()
