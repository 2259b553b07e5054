#!/usr/bin/env python3
"""Simulates Table 2 of Sun 2026: its methods on the paper's cluster, n seeds of jitter each, with 95% intervals, p-values against the
fastest method, and the paper's numbers beside ours (docs/experiments.md).

    tools/python experiments/table2/table2.py -o out/table2

writes table2.md, table2.json and table2.svg. Nothing is tuned: the jobs beside this file state all assumptions.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

import paper  # noqa: E402
import study  # noqa: E402

from plots import table2 as picture  # noqa: E402

READINGS = ("110m", "110m-fp16", "110m-homogeneous", "1.3b")
METHODS = ("megatron", "zero2", "pipedream-2bw", "topk-sync", "adaptive")
ATTEMPTS = 3  # most changes that are tried until a method fits
ASSUMED = [
    "24 RTX 4090 and 8 V100 on 12 nodes (platforms/paper.toml says why; paper-homogeneous: 32 RTX 4090 on 8 nodes).",
    "The devices' efficiency is assumed, not measured (platforms/devices.toml), so the seconds are uncalibrated; the same"
    " efficiency holds for every method.",
    "Jitter: log-normal, sigma 5% on every local op and every transfer, drawn anew for each seed. The paper measures a shared"
    " cluster and states no jitter. Robustness is a picture of this assumption more than of a method.",
    "16 samples of 512 tokens a GPU, 512 a step, for every method; AdamW.",
    "adaptive: what `rehearse plan` decides for the job with method.name=adaptive, run as decided: placement, schedule, sharding,"
    " samples by speed, and for each layer a dense, sparse or two-level sum, whichever is predicted to be fastest. Variances are taken"
    " as equal (there is no gradient in a simulation), so a layer that is sparse keeps 17.5%, the middle of eq. 3's range.",
    "TopK-Sync keeps 10% and gathers (value, 32-bit index) pairs among all ranks.",
    "±: half of the 95% interval of the mean over the seeds (Student's t). The paper does not say what its ± is; its p-values"
    " below take it for a standard deviation.",
    "p: Welch's two-sided t-test against the fastest method of the reading, not corrected for the number of comparisons. It knows the"
    " spread between seeds, nothing of what a model gets wrong: a tiny p does not make an uncalibrated second true.",
    "Bytes are counted exactly and do not differ between seeds, so they have neither interval nor p.",
]


def settle(job, method, folder):
    """({key: value} that makes the method run, None), or (what was tried, why it cannot run)."""
    if method == "adaptive":
        try:
            return study.planned(job, folder / f"plan-{job.stem}.toml"), None
        except study.Refused as refused:
            return {}, str(refused)
    settings = {"method.name": method}
    for _ in range(ATTEMPTS + 1):
        try:
            study.rehearse("simulate", job, *study.sets(settings), "--fidelity", "analytic", "--seeds", 1)
            return settings, None
        except study.Refused as refused:
            why = str(refused)
            change = study.remedy(why)
            if "method.precision" in why and "does not combine" in why and "method.precision" not in settings:
                change = {"method.precision": "fp32"}
            if not change or change.items() <= settings.items():
                return settings, why
            settings |= change
    return settings, why


def simulate(job, settings, seed, options):
    how = ("--seeds", 1, "--fidelity", options.fidelity, *study.ALL_STEPS)
    return study.rehearse("simulate", job, *study.sets(settings | {"disturb.seed": seed}), *how)


def summary(method, settings, runs):
    """A row with the results of all seeds."""
    first = runs[0]
    return {
        "method": method,
        "settings": settings,
        "mesh": {axis: n for axis, n in first["mesh"].items() if n > 1},
        "samples_per_s": study.Sample([r["samples_per_s"] for r in runs]),
        "robustness": study.Sample([r["robustness"] for r in runs]),
        "gb_per_step": first["bytes_sent_per_rank"]["mean"] / 1e9,
        "gb_per_step_most": first["bytes_sent_per_rank"]["max"] / 1e9,
        "mfu": first["mfu"],
        "bubble_fraction": first["bubble_fraction"],
        "exposed_comm_s": first["exposed_comm_s"],
        "peak_memory_bytes": max(first["peak_memory_bytes"].values()),
        "calibrated": first["calibrated"],
    }


def tested(rows):
    """The rows with p-values against the fastest row."""
    best = max(rows, key=lambda row: row["samples_per_s"].mean)
    for row in rows:
        for what in ("samples_per_s", "robustness"):
            row[f"p_{what}"] = None if row is best else study.welch(row[what], best[what])
    return rows


def reading(name, options):
    """{"rows", "cannot_run"} of one job file."""
    job = (HERE / f"{name}.toml").relative_to(study.ROOT)
    settled = study.in_parallel(lambda method: settle(job, method, options.output), METHODS)
    able = [(m, s) for m, (s, why) in zip(METHODS, settled, strict=True) if why is None]
    work = [(m, s, seed) for m, s in able for seed in range(1, options.seeds + 1)]
    runs = study.in_parallel(lambda one: simulate(job, one[1], one[2], options), work)
    rows = [summary(m, s, [r for w, r in zip(work, runs, strict=True) if w[0] == m]) for m, s in able]
    return {
        "rows": tested(rows),
        "cannot_run": {m: why for m, (_, why) in zip(METHODS, settled, strict=True) if why is not None},
    }


def markdown_row(row, printed):
    changed = " ".join(f"{k.rpartition('.')[2]}={v}" for k, v in row["settings"].items() if v and k not in ("method.name", "method.plan"))
    mesh = " x ".join(f"{axis} {n}" for axis, n in row["mesh"].items())
    return [
        row["method"] + (f" ({changed})" if changed else ""),
        mesh,
        study.plus_minus(row["samples_per_s"]),
        f"{printed[1][0]:,}",
        study.number(row["gb_per_step"], 3),
        f"{printed[3][0]:.2f}",
        study.plus_minus(row["robustness"]),
        f"{printed[4][0]:.2f}",
        f"{row['mfu']:.1%}",
        f"{row['peak_memory_bytes'] / 1e9:.1f}",
        study.probability(row["p_samples_per_s"]),
        study.probability(row["p_robustness"]),
    ]


HEADER = [
    "method", "mesh", "samples/s", "paper", "GB a step", "paper", "robustness", "paper", "MFU", "memory GB",
    "p (samples/s)", "p (robustness)",
]  # fmt: skip


def markdown(found, options):
    text = "# Table 2 of Sun 2026, simulated\n\n"
    text += f"{options.seeds} seeds of jitter, fidelity `{options.fidelity}`; by `tools/python experiments/table2/table2.py`."
    text += " GB a step: mean sent per rank.\n"
    for name, one in found.items():
        comment = (HERE / f"{name}.toml").read_text().splitlines()[0].removeprefix("# ")
        text += f"\n## {name}\n{comment}\n\n"
        text += study.table(HEADER, [markdown_row(r, paper.ROWS[r["method"]]) for r in one["rows"]])
        for method, why in one["cannot_run"].items():
            text += f"\n`{method}` cannot run: {why}\n"
    text += "\n## The paper's own spread\nWelch's test on its means and ±, n = 5, against its own method:\n\n"
    text += study.table(["method", "p (samples/s)", "p (GB a step)", "p (robustness)"], paper_tests())
    text += "\n## What the paper's numbers cannot be\n"
    text += "".join(f"- **{what}** {how}\n" for what, how in paper.impossibilities())
    text += "\n## What was assumed\n" + "".join(f"- {line}\n" for line in ASSUMED)
    return text


def paper_tests():
    ours = paper.ROWS["adaptive"]
    return [
        [row[0], *(study.probability(study.welch_of_summaries(row[i], ours[i], paper.N)) for i in (1, 3, 4))]
        for method, row in paper.ROWS.items()
        if method != "adaptive"
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("out/table2"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fidelity", choices=("analytic", "fluid", "chunk"), default="fluid")
    parser.add_argument("--readings", nargs="+", choices=READINGS, default=READINGS)
    options = parser.parse_args()
    found = {name: reading(name, options) for name in options.readings}
    result = {
        "schema_version": 1,
        "seeds": options.seeds,
        "fidelity": options.fidelity,
        "readings": study.plain(found),
        "paper": {m: {"name": r[0], "samples_per_s": r[1], "gb_per_step": r[3], "robustness": r[4]} for m, r in paper.ROWS.items()},
    }
    study.write(
        options.output,
        {
            "table2.md": markdown(found, options),
            "table2.json": study.to_json(result),
            "table2.svg": picture.draw(result),
        },
    )


if __name__ == "__main__":
    main()
