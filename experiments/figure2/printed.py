"""What Sun 2026 prints in section 4.3 and Figure 2, mean and ±, n = 5. Nothing here enters a simulation or a training run."""

FULL = "full"
PLACEMENT = "without placement"
LAYERS = "without layer-wise sparsity"
FEEDBACK = "without error feedback"

HOURS = {FULL: (12.8, 0.2), PLACEMENT: (15.1, 0.4), LAYERS: (14.4, 0.3)}  # to its target loss, 2.85
WRITTEN = 0.183  # ... and what it writes that leaving placement out adds to the hours
LOSS = {FULL: (2.82, 0.01), LAYERS: (2.91, 0.03)}
DIVERGED = {FEEDBACK: (2, 5)}


def more(values, row):
    """By which part a row's mean is above that of the full method; none where the paper prints no such value."""
    return values[row][0] / values[FULL][0] - 1 if row in values else None
