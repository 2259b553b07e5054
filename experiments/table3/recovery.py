"""What "recovery steps" can mean. The paper does not say; these definitions are ours. Steps are counted as they are executed after the
fault, so a step that is done again counts.

A curve is {step: training loss}, where `step` is the number of steps done. A run that goes on from step c has the loss of its e-th step
after the fault at c + e."""

import dataclasses
import statistics

LIMIT = 200  # executed steps within which a run must have recovered, as in the paper
TOLERANCE, WIDTH = 0.01, 10  # of the table; the others show the sensitivity
TOLERANCES, WIDTHS = (0.002, 0.005, 0.01, 0.02, 0.05), (1, 5, 10, 20)


@dataclasses.dataclass
class Faulted:
    """A run that lost a rank, and the run of the same seed that lost none."""

    step: int  # the step in which the rank died; those before it are complete
    goes_on_from: int  # steps done in the state that it went on with
    curve: dict
    twin: dict

    @property
    def again(self):
        """Rework: complete steps that are done again."""
        return self.step - 1 - self.goes_on_from


def mean(curve, first, width):
    """The mean loss of so many steps from `first` on; None if the curve does not have all of them."""
    if first not in curve or first + width - 1 not in curve:
        return None
    return statistics.fmean(curve[step] for step in range(first, first + width))


def back_on_course(run, tolerance=TOLERANCE, width=WIDTH, limit=LIMIT):
    """Executed steps until the run is past the step of the fault, and its loss has stopped being above that of its twin at the same step
    by more than `tolerance`: for every later window of `width` steps. None: not within `limit`."""
    last = max(run.curve) - width + 1  # where the last whole window begins
    found = None
    for executed in range(min(limit, last - run.goes_on_from - 1), run.again - 1, -1):
        first = run.goes_on_from + executed + 1
        ours, twins = mean(run.curve, first, width), mean(run.twin, first, width)
        if ours > (1 + tolerance) * twins:
            break
        found = executed
    return found


def back_at_level(run, tolerance=TOLERANCE, width=WIDTH, limit=LIMIT):
    """Executed steps after which the mean loss of the next `width` steps is at most (1 + tolerance) times that of the `width` steps before
    the fault. It needs no twin, but a run that lost steps passes it at once where the loss falls by less than the tolerance in so many
    steps. None: not within `limit`."""
    before = mean(run.twin, run.step - width, width)
    for executed in range(limit + 1):
        ours = mean(run.curve, run.goes_on_from + executed + 1, width)
        if ours is None or before is None:
            return None
        if ours <= (1 + tolerance) * before:
            return executed
    return None


def sensitivity(runs):
    """[{"tolerance", "width", "on_course", "level"}]: the recovery steps of all runs under each definition; None where not recovered."""
    return [
        {
            "tolerance": tolerance,
            "width": width,
            "on_course": [back_on_course(run, tolerance, width) for run in runs],
            "level": [back_at_level(run, tolerance, width) for run in runs],
        }
        for tolerance in TOLERANCES
        for width in WIDTHS
    ]
