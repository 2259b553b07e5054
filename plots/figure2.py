"""The figure of the ablation of Sun 2026: time and loss relative to the full method, with the paper's values as hollow marks; and the loss
of each form of error feedback over the kept fraction of a gradient. Reads the JSON of experiments/figure2/figure2.py."""

import io

from matplotlib import ticker

from plots import style

MARKS = (("o", style.BLUE), ("s", style.GREEN), ("^", style.PURPLE), ("v", style.ORANGE))
FORMS = (("conserving", "o", style.BLUE), ("printed", "s", style.GREEN), ("literal", "^", style.VERMILION))
HOLLOW = {"fmt": "D", "markersize": 6, "capsize": 2.5, "color": style.VERMILION, "markerfacecolor": "none"}


def relative(sample, full):
    """(mean, half-width of its interval or 0) with the full method's mean as 1."""
    return sample["mean"] / full["mean"], (sample["ci95"] or 0) / full["mean"]


def variants(result):
    """The names of all rows; those with times come first."""
    rows = [row for one in result["time"].values() for row in one["rows"]] + result["loss"]
    return list(dict.fromkeys(row["variant"] for row in rows))


def printed(axis, values, names):
    """Draws the paper's means and ± as hollow marks."""
    full = values["full"][0]
    for name, (mean, spread) in values.items():
        axis.errorbar(mean / full, names.index(name) - 0.33, xerr=spread / full, label=None if name != "full" else "paper", **HOLLOW)


def time(axis, result, names):
    """Draws a mark per reading, and a band for the range that any variances would give."""
    for place, ((label, one), (mark, colour)) in enumerate(zip(result["time"].items(), MARKS, strict=False)):
        shift = 0.2 * (place - 0.5)
        full = one["rows"][0]["step_time_s"]
        for row in one["rows"]:
            mean, spread = relative(row["step_time_s"], full)
            axis.errorbar(
                mean, names.index(row["variant"]) + shift, xerr=spread, fmt=mark, markersize=5, capsize=2.5,
                color=colour, label=f"simulated, {label}" if row is one["rows"][0] else None,
            )  # fmt: skip
        if one["bounds"]:
            ends = [1 / relative(row["step_time_s"], full)[0] for row in one["bounds"]]
            axis.plot(
                ends, [names.index("without layer-wise sparsity") + shift] * 2, color=colour, linewidth=5, alpha=0.25,
                solid_capstyle="butt", label="... under any variances",
            )  # fmt: skip
    printed(axis, result["paper"]["hours"], names)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.set_title("Time of a step: simulated")
    axis.set_xlabel("full = 1, log; paper: hours to its target")


def loss(axis, result, names):
    """Draws ratios seed by seed, as in the test. A variant with diverged runs has no mark, only their number."""
    for row in result["loss"]:
        place = names.index(row["variant"])
        if row["relative"]:
            mean, spread = row["relative"]["mean"], row["relative"]["ci95"]
            label = "trained, gpt-tiny" if row is result["loss"][0] else None
            axis.errorbar(mean, place, xerr=spread, fmt="o", markersize=5, capsize=2.5, color=style.BLUE, label=label)
        claimed = result["paper"]["diverged"].get(row["variant"])
        if row["diverged"] or claimed:
            words = f"diverged: {row['diverged']} of {row['seeds']}" + (f"; paper: {claimed[0]} of {claimed[1]}" if claimed else "")
            axis.annotate(words, (0.98, place - 0.3), xycoords=("axes fraction", "data"), ha="right", fontsize=7, color=style.QUIET)
    for name in (n for n in names if n not in [row["variant"] for row in result["loss"]]):
        axis.annotate("the same mathematics: not trained", (1, names.index(name)), ha="center", fontsize=7, color=style.QUIET)
    printed(axis, result["paper"]["loss"], names)
    axis.set_title("Validation loss: trained")
    axis.set_xlabel("the same seed's full = 1; paper: the means")


def forms(axis, rows):
    """Draws the loss over the kept fraction, one line per form, and dense as a band."""
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
    names = variants(result)
    figure, (left, middle, right) = style.figure(13, 4.2, ncols=3, width_ratios=(1.15, 1.15, 1))
    time(left, result, names)
    loss(middle, result, names)
    for axis in (left, middle):
        axis.grid(axis="x")
        axis.set_ylim(len(names) - 0.5, -0.6)
        axis.set_yticks(range(len(names)), names if axis is left else [])
        for row in range(1, len(names)):
            axis.axhline(row - 0.5, color=style.FAINT, linewidth=0.8)
        axis.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=1 if axis is left else 2)
    forms(right, result["feedback"])
    buffer = io.BytesIO()
    style.save(figure, buffer, "svg")
    return buffer.getvalue()
