"""Table 3 of Sun 2026 as printed, and what its numbers imply. No simulation and no training run uses these numbers. As a script, this
file prints the implications."""

import importlib.util
import math
import pathlib

N = 5  # trials
LIMIT = 200  # steps after which a trial counts as failed

# method: (its name in the paper, perplexity on PubMed, on GitHub, recovery steps), each as mean and "±"
ROWS = {
    "megatron": ("Megatron-LM", (14.0, 0.2), (18.5, 0.3), (35, 4)),
    "topk-sync": ("TopK-Sync", (15.8, 0.4), (21.3, 0.6), (42, 5)),
    "pipedream-2bw": ("PipeDream-2BW", (14.1, 0.2), (18.6, 0.3), None),
    "adaptive": ("Ours", (14.2, 0.2), (18.7, 0.3), (30, 3)),
}
FAILED = 4  # of N trials of PipeDream-2BW
SAMPLES = 512  # a step


def table2():
    """The paper's table 2, samples/s by method."""
    path = pathlib.Path(__file__).resolve().parent.parent / "table2/paper.py"
    spec = importlib.util.spec_from_file_location("table2_paper", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: row[1][0] for name, row in module.ROWS.items()}


def seconds(method, steps):
    """How long so many steps take at the throughput of the paper's table 2."""
    return steps * SAMPLES / table2()[method]


def failures(n, k, p):
    """The probability of k failures in n trials."""
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def rework(interval):
    """(mean, standard deviation) of the steps since the last checkpoint, if a fault strikes any step of an interval alike."""
    return (interval - 1) / 2, math.sqrt((interval**2 - 1) / 12)


def beyond(interval, limit=LIMIT):
    """The probability that more than `limit` steps have passed since the last checkpoint."""
    return max(0.0, (interval - 1 - limit) / interval)


def likeliest(n=N, k=FAILED):
    """The interval between checkpoints under which k of n trials losing more than LIMIT steps is most probable."""
    return max(range(LIMIT + 1, 20 * LIMIT), key=lambda interval: failures(n, k, beyond(interval)))


def implications():
    """[(what, derivation)]; every number is computed here."""
    steps = {name: row[3][0] for name, row in ROWS.items() if row[3]}
    spread = {name: row[3][1] for name, row in ROWS.items() if row[3]}
    intervals = {name: 2 * mean + 1 for name, mean in steps.items()}
    found = likeliest()
    return [
        (
            "If recovery is the steps since the last checkpoint, its means are those of checkpoints every 61 to 85 steps, but its"
            " spreads are too small.",
            "; ".join(
                f"{ROWS[m][0]}: mean {steps[m]} is an interval of {intervals[m]}, whose standard deviation is"
                f" {rework(intervals[m])[1]:.0f}, printed {spread[m]}"
                for m in steps
            )
            + ". Such spreads need faults at nearly the same distance from a checkpoint in every trial.",
        ),
        (
            "In seconds, its recoveries are shorter than it takes to start the processes again.",
            ", ".join(f"{ROWS[m][0]} {seconds(m, steps[m]):.1f} s" for m in steps)
            + " at its own samples/s. So its recovery steps count no time in which nothing runs, or a faulty rank is replaced in place.",
        ),
        (
            "Its PipeDream-2BW fits a cold restart, counted on the clock.",
            f"{LIMIT} steps at its own samples/s are {seconds('pipedream-2bw', LIMIT):.0f} s, about what a restart of 32 processes takes.",
        ),
        (
            "It also fits rare checkpoints. PipeDream saves each stage at the end of an epoch.",
            f"4 of 5 trials beyond {LIMIT} steps are most probable with a checkpoint each {found:,} steps:"
            f" {failures(N, FAILED, beyond(found)):.0%}. Then a trial loses more than {LIMIT} steps with a probability of"
            f" {beyond(found):.0%}, whatever the method computes.",
        ),
    ]


if __name__ == "__main__":
    for what, how in implications():
        print(f"- {what} {how}")
