#!/usr/bin/env python3
"""Figure 2 of Sun 2026, section 4.3: the adaptive method without placement, without layer-wise sparsity, without error feedback.
Step times are simulated on the paper's cluster. Losses come from real training of a small GPT with four processes
(docs/experiments.md).

    tools/python experiments/figure2/figure2.py -o out/figure2

writes figure2.md, figure2.json and figure2.svg. Nothing is tuned to match the paper's numbers.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

import learning  # noqa: E402
import printed  # noqa: E402
import study  # noqa: E402
import timing  # noqa: E402
import verdicts  # noqa: E402

from plots import figure2 as picture  # noqa: E402


def more(value, form="+.1%"):
    return "" if value is None else format(value, form)


def time_cells(row):
    hours = printed.HOURS.get(row["variant"])
    mesh = " x ".join(f"{axis} {n}" for axis, n in row["mesh"].items())
    return [
        row["variant"],
        mesh + (f", {row['samples'][0]} to {row['samples'][-1]} samples a replica" if row["samples"] else ", equal samples"),
        str(row["sparse_layers"] or "none"),
        study.plus_minus(row["step_time_s"]),
        "same" if row["same"] else f"{row['more_than_full']:+.1%}",
        study.probability(row["p"]),
        study.number(row["gb_per_step"], 3),
        f"{hours[0]} ± {hours[1]}" if hours else "",
        more(printed.more(printed.HOURS, row["variant"])),
    ]


TIME_HEADER = [
    "variant", "plan", "sparse layers", "step s", "against full", "p", "GB a step", "paper: hours", "paper: against full",
]  # fmt: skip


def loss_cells(row):
    loss, paper = row["validation_loss"], printed.LOSS.get(row["variant"])
    unstable = printed.DIVERGED.get(row["variant"])
    return [
        row["variant"],
        study.plus_minus(row["kept"]) if row.get("kept") else "",
        "none" if loss is None else study.plus_minus(loss),
        more(row["more_than"], "+.3f"),
        study.plus_minus(row["relative"]) if row["relative"] and row["relative"].std else "",
        study.probability(row["p"]),
        f"{row['diverged']} of {row['seeds']}",
        f"{paper[0]} ± {paper[1]}" if paper else "",
        f"{unstable[0]} of {unstable[1]}" if unstable else "",
    ]


LOSS_HEADER = [
    "variant",
    "kept",
    "validation loss",
    "more than full",
    "of full, by seed",
    "p",
    "diverged",
    "paper: loss",
    "paper: diverged",
]


def time_part(readings, options):
    text = f"\n## Time of a step: simulated\n{options.seeds} seeds of jitter, fidelity `{options.fidelity}`. The paper prints hours to"
    text += " its target loss, which are steps times seconds a step; only seconds a step are simulated. p: Welch's test against full.\n"
    for name, one in readings.items():
        text += f"\n### {name}\n"
        if one["reduction"]:
            tried = ", ".join(f"`{how}` {seconds:.3f} s" for how, seconds in one["tried"].items())
            text += f"Every layer is sparse as in the paper, summed the faster way: {tried}.\n"
        text += "\n" + study.table(TIME_HEADER, map(time_cells, one["rows"] + one["bounds"]))
    return text + "\n" + "".join(f"- **{name}, {what}.** {line}\n" for name, what, line in verdicts.of_time(readings))


def loss_part(rows, options):
    text = f"\n## Loss: trained\n`gpt-tiny`, {learning.RANKS} processes, {options.steps} steps of 16 samples of 64 tokens,"
    text += f" {options.seeds} seeds. Sparse variants warm up under dense gradients, a quarter of the steps and at most 50, which count"
    text += " as steps. kept: the part of all gradients that is sent afterwards, by eq. 3 from the variances of warm-up or as stated."
    text += " p: paired t-test over seeds against full.\n\n"
    text += study.table(LOSS_HEADER, map(loss_cells, rows))
    return (
        text
        + "\n"
        + "".join(f"- **{what}.** {line}\n" for what, line in verdicts.of_loss(rows, learning.AS_MUCH, learning.DENSE, learning.TOTAL))
    )


def feedback_part(rows, options):
    text = "\n## Forms of error feedback: trained\n"
    text += f"The same training under uniform top-k from the first step (`topk-sync`), {options.seeds} seeds; p: against dense.\n\n"
    header = ["variant", "validation loss", "more than dense", "of dense, by seed", "p", "diverged"]
    text += study.table(header, [cells[:1] + cells[2:7] for cells in map(loss_cells, rows)])
    return text + "\n" + "".join(f"- {line}\n" for line in learning.form_against_form(rows))


def markdown(found, options):
    text = "# Figure 2 of Sun 2026: what each part of the method brings\n\n"
    text += "By `tools/python experiments/figure2/figure2.py`. ±: half of the 95% interval of the mean over seeds (the paper does not"
    text += " say what its ± is); p-values are not corrected for their number.\n"
    text += time_part(found["time"], options) + loss_part(found["loss"], options) + feedback_part(found["feedback"], options)
    if learning.oversubscribed():
        text += f"\n{learning.RANKS} processes shared fewer cores: the losses do not depend on it, and no time of theirs is used.\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("out/figure2"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="steps of each training run")
    parser.add_argument("--fidelity", choices=("analytic", "fluid", "chunk"), default="fluid", help="fidelity of the simulation")
    parser.add_argument("--tokens", help="prepared text with a vocabulary of at most 512; default: the text of the demo")
    parser.add_argument(
        "--trained", type=pathlib.Path, metavar="JSON", help="simulate again, and take what was trained from this earlier result"
    )
    options = parser.parse_args()
    kept = study.trained(options.trained, learning.inputs(), options, ("seeds", "steps")) if options.trained else None
    if options.tokens is None and not kept:
        options.tokens = learning.TOKENS
        learning.prepare_text()
    dense = None if kept else learning.dense(options)
    found = {
        "time": {name: timing.reading(*one, options) for name, one in timing.READINGS.items()},
        "loss": kept["loss"] if kept else learning.ablation(options, dense),
        "feedback": kept["feedback"] if kept else learning.forms(options, dense),
    }
    printed_values = {"hours": printed.HOURS, "loss": printed.LOSS, "diverged": printed.DIVERGED}
    result = {
        "schema_version": 2,
        "seeds": options.seeds,
        "steps": options.steps,
        "fidelity": options.fidelity,
        **study.plain(found),
        "inputs": learning.inputs(),
        "paper": printed_values,
    }
    study.write(
        options.output,
        {"figure2.md": markdown(found, options), "figure2.json": study.to_json(result), "figure2.svg": picture.draw(result)},
    )


if __name__ == "__main__":
    main()
