"""Compares the numbers of Figure 2 with the paper's claims. Every sentence is generated from the rows."""

import printed
import study
import timing

LEVEL = 0.05  # significance level


def of_variants(rows):
    return {row["variant"]: row for row in rows}


def with_p(row):
    p = study.probability(row["p"]) or "none"
    return f"p {p}" if p.startswith("<") else f"p = {p}"


def longer(row):
    change = row["more_than_full"]
    return f"{abs(change):.1%} {'longer' if change > 0 else 'shorter'} ({with_p(row)})"


def found(p, change):
    """Whether a claimed increase is found here, by its sign and the test."""
    if p is None or p >= LEVEL:
        return "the seeds cannot tell them apart: not reproduced"
    return "the direction is reproduced" if change > 0 else "the direction is the opposite: not reproduced"


def size(change, claim):
    return f", the size is {change / claim:.2g} times the paper's" if change > 0 else ""


def placement(reading):
    rows = of_variants(reading["rows"])
    row, full = rows[printed.PLACEMENT], rows[printed.FULL]
    claim = printed.more(printed.HOURS, printed.PLACEMENT)
    text = (
        f"A step without placement is {longer(row)}; the paper's hours: {claim:+.1%} (it writes {printed.WRITTEN:+.1%}):"
        f" {found(row['p'], row['more_than_full'])}{size(row['more_than_full'], claim)}."
    )
    if row["mesh"] == full["mesh"] and row["samples"] != full["samples"]:
        text += " The mesh is the same with and without it; replicas get samples by speed with it, equal ones without."
    return text


def sparsity(reading):
    rows = of_variants(reading["rows"])
    if not rows[printed.FULL]["sparse_layers"]:
        return (
            "The planner sums every gradient whole, which is faster here than any sparse exchange it knows: there is neither"
            " sparsity nor feedback to leave out, and no time changes. Not reproduced."
        )
    layers, feedback = rows[printed.LAYERS], rows[printed.FEEDBACK]
    low, high = sorted(row["more_than_full"] for row in reading["bounds"])
    least, most = (1 / (1 + bound) - 1 for bound in (high, low))
    claim = printed.more(printed.HOURS, printed.LAYERS)
    text = (
        "Uniform equals layer-wise by construction: nobody measured this model's gradients, and without variances eq. 3 gives all"
        " layers the middle."
        if layers["same"]
        else f"A step of uniform sparsity is {longer(layers)}."
    )
    text += (
        f" Any variances put layer-wise between {timing.S_MAX} and {timing.S_MIN} everywhere, so the uniform step is between {least:+.1%}"
        f" and {most:+.1%} of it; the paper's hours, {claim:+.1%}, are {'inside' if least <= claim <= most else 'outside'}: "
        f"{'neither reproduced nor refuted' if least <= claim <= most else 'not reproduced'}. A step without error feedback is "
    )
    return text + ("the same work." if feedback["same"] else longer(feedback) + ".")


def of_time(readings):
    """[(reading, claim, sentence)]"""
    return [
        (name, what, say(one))
        for name, one in readings.items()
        for what, say in (("placement", placement), ("sparsity and feedback", sparsity))
    ]


def higher(row):
    if row["more_than"] is None:
        return "no run is left to compare"
    return f"{row['more_than']:+.3f} ({with_p(row)})"


def of_loss(rows, as_much, dense, total):
    """[(claim, sentence)]; `as_much`, `dense`, `total`: names of the control run, of training with dense gradients, and of the full
    method with the variance as eq. 2 prints it."""
    of = of_variants(rows)
    full, layers, feedback = (of[name] for name in (printed.FULL, printed.LAYERS, printed.FEEDBACK))
    claimed = printed.DIVERGED[printed.FEEDBACK]
    claim = printed.LOSS[printed.LAYERS][0] - printed.LOSS[printed.FULL][0]
    return [
        (
            "layer-wise sparsity",
            f"Loss of uniform minus layer-wise: {higher(layers)}; the paper's: {claim:+.2f}: {found(layers['p'], layers['more_than'])}."
            f" But eq. 3 kept {full['kept'].mean:.1%} of all gradients where uniform kept {layers['kept'].mean:.1%}. Uniform that keeps as"
            f" much as layer-wise, minus layer-wise: {higher(of[as_much])}: {found(of[as_much]['p'], of[as_much]['more_than'])}.",
        ),
        (
            "eq. 2 as printed",
            f"By the sum over a layer's entries, as eq. 2 prints it, eq. 3 kept {of[total]['kept'].mean:.1%}, by their mean"
            f" {full['kept'].mean:.1%}. Loss of the first minus that of the second: {higher(of[total])}.",
        ),
        (
            "error feedback",
            f"Without it {feedback['diverged']} of {feedback['seeds']} runs diverged, with it {full['diverged']}; the paper: {claimed[0]}"
            f" of {claimed[1]}: {'not reproduced' if feedback['diverged'] <= full['diverged'] else 'reproduced'}. Loss of those that did"
            f" not diverge, minus the full method's: {higher(feedback)}.",
        ),
        (
            "sparsification at all",
            f"Loss of dense gradients minus the full method's: {higher(of[dense])}. The paper does not compare them.",
        ),
        (
            "placement",
            "It moves the same sums to other devices: the loss is the full method's by construction, so it was not trained again.",
        ),
    ]
