#!/usr/bin/env python3
"""Figure 3 of Sun 2026, section 4.4: validation loss over training time, by method. A small GPT is trained for real with four processes;
the time is that of the paper's model on the paper's cluster, simulated (docs/experiments.md).

    tools/python experiments/figure3/figure3.py -o out/figure3

writes figure3.md, figure3.json and figure3.svg. Nothing is tuned to match the paper's numbers.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

import claims  # noqa: E402
import curves  # noqa: E402
import study  # noqa: E402

from plots import figure3 as picture  # noqa: E402

LOSS_HEADER = ["variant", "validation loss", "more than megatron, by seed", "p", "band", "rises", "paper: loss", "paper: band"]
CLOCK_HEADER = ["variant", "mesh", "step s", "steps to the target", "seconds to the target", "of megatron", "p",
                "paper: hours", "paper: of megatron"]  # fmt: skip


def printed(table, variant, form="{}"):
    return form.format(table[variant]) if variant in table else ""


def loss_cells(curve):
    variant = curve["variant"]
    more = "" if variant == curves.MEGATRON else "same" if curve["same"] else study.plus_minus(curve["more"])
    return [
        variant,
        study.plus_minus(curve["final"]),
        more,
        study.probability(curve["p"]),
        f"{curve['band']:.3f}",
        f"{curve['rises']:.0%}",
        printed(claims.LOSS, variant, "{:.2f}"),
        printed(claims.BAND, variant, "{:.3f}"),
    ]


def clock_cells(row):
    variant = row["variant"]
    hours = claims.HOURS.get(variant)
    return [
        variant,
        " x ".join(f"{axis} {n}" for axis, n in row["mesh"].items()),
        study.plus_minus(row["step_time_s"]),
        study.plus_minus(row["steps_to_target"]),
        study.plus_minus(row["seconds_to_target"]),
        f"{row['of_megatron']:.2f}",
        study.probability(row["p"]),
        f"{hours:.1f}" if hours else "",
        f"{hours / claims.HOURS[curves.MEGATRON]:.2f}" if hours else "",
    ]


def markdown(found, options):
    text = "# Figure 3 of Sun 2026: loss over time\n\n"
    text += "By `tools/python experiments/figure3/figure3.py`. ±: half of the 95% interval of the mean over seeds; p: paired t-test over"
    text += " seeds against Megatron-LM, not corrected for the number of tests.\n\n## Loss: trained\n"
    text += f"`gpt-tiny`, four processes, {options.steps} steps of 16 samples of 64 tokens, {options.seeds} seeds, a validation loss every"
    text += f" {options.every} steps. A sparse adaptive run warms up under dense gradients, which counts as steps. band: mean width of the"
    text += " interval in the second half; rises: the part of all evaluations above the evaluation before; same: to"
    text += f" {curves.ROUNDING} in each seed, sums in another order.\n\n"
    text += study.table(LOSS_HEADER, map(loss_cells, found["curves"]))
    text += f"\n## Time: simulated\nThe target is a loss of {found['target']:.3f}, the lowest that every run reached. Seconds are those of"
    text += f" {options.seeds} seeds of jitter on the paper's cluster, fidelity `{options.fidelity}`: a step of the paper's model for each"
    text += " step of the small one. Sparse layers are summed in the way that is faster on the cluster.\n"
    for name, rows in found["clocks"].items():
        text += f"\n### {name}\n\n" + study.table(CLOCK_HEADER, map(clock_cells, rows))
    return text + "\n## Against the paper\n" + "".join(f"- **{what}.** {line}\n" for what, line in claims.verdicts(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("out/figure3"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="steps of each training run")
    parser.add_argument("--every", type=int, default=15, help="steps between two validation losses")
    parser.add_argument("--fidelity", choices=("analytic", "fluid", "chunk"), default="fluid", help="fidelity of the simulation")
    parser.add_argument("--clocks", nargs="+", choices=curves.CLOCKS, default=list(curves.CLOCKS), help="jobs of Table 2")
    parser.add_argument("--tokens", help="prepared text with a vocabulary of at most 512; default: the text of the demo")
    parser.add_argument(
        "--trained", type=pathlib.Path, metavar="JSON", help="simulate again, and take what was trained from this earlier result"
    )
    options = parser.parse_args()
    kept = study.trained(options.trained, curves.inputs(), options, ("seeds", "steps", "every")) if options.trained else None
    if options.tokens is None and not kept:
        options.tokens = curves.learning.TOKENS
        curves.learning.prepare_text()
    trained = kept["curves"] if kept else curves.compared([curves.curve_of(variant, options) for variant in curves.TRAINED])
    target = curves.target_of(trained)
    clocks = {name: curves.clock_of(curves.CLOCKS[name], trained, target, options) for name in options.clocks}
    found = {"curves": trained, "target": target, "clocks": clocks}
    result = {
        "schema_version": 1,
        "seeds": options.seeds,
        "steps": options.steps,
        "every": options.every,
        "fidelity": options.fidelity,
        **study.plain(found),
        "inputs": curves.inputs(),
        "paper": {"hours": claims.HOURS, "loss": claims.LOSS, "band": claims.BAND},
    }
    study.write(
        options.output,
        {"figure3.md": markdown(found, options), "figure3.json": study.to_json(result), "figure3.svg": picture.draw(result)},
    )


if __name__ == "__main__":
    main()
