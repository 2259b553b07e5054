"""The numbers that Sun 2026 prints in section 4.3 and Figure 2: mean and ±, n = 5. No simulation and no training run uses them."""

FULL = "full"
PLACEMENT = "without placement"
LAYERS = "without layer-wise sparsity"
FEEDBACK = "without error feedback"

HOURS = {FULL: (12.8, 0.2), PLACEMENT: (15.1, 0.4), LAYERS: (14.4, 0.3)}  # to its target loss, 2.85
WRITTEN = 0.183  # the increase of the hours without placement, as its text states it
LOSS = {FULL: (2.82, 0.01), LAYERS: (2.91, 0.03)}
DIVERGED = {FEEDBACK: (2, 5)}


def more(values, row):
    """The relative increase of a row's mean over that of the full method; None if the paper prints no such value."""
    return values[row][0] / values[FULL][0] - 1 if row in values else None
