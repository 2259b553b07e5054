#!/usr/bin/env python3
"""The claim of Sun 2026, section 4.3 and Figure 2, that error feedback decides whether sparsified training learns: three forms of it
against dense gradients, in real training of a small GPT by four processes (docs/experiments.md).

    tools/python experiments/figure2/figure2.py -o out/figure2

writes figure2.md, figure2.json and figure2.svg.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

import learning  # noqa: E402
import study  # noqa: E402
from plots import figure2 as picture  # noqa: E402


def cells(rows):
    for row in rows:
        loss = row["validation_loss"]
        yield [
            row["variant"],
            "none" if loss is None else study.plus_minus(loss),
            "" if row["more_than"] is None else f"{row['more_than']:+.3f}",
            study.probability(row["p"]),
            f"{row['diverged']} of {row['seeds']}",
        ]


def markdown(rows, options):
    text = "# Forms of error feedback, really trained\n\n"
    text += f"`gpt-tiny`, {learning.RANKS} processes, {options.steps} steps of 16 samples of 64 tokens, uniform top-k (`topk-sync`),"
    text += f" {options.seeds} seeds; by `tools/python experiments/figure2/figure2.py`. ±: half of the 95% interval of the mean;"
    text += " p: paired t-test over seeds, against dense, uncorrected.\n\n"
    text += study.table(["variant", "validation loss", "more than dense", "p", "diverged"], cells(rows))
    text += "\n## Form against form\n" + "".join(f"- {line}\n" for line in learning.verdicts(rows))
    if learning.oversubscribed():
        text += f"\n{learning.RANKS} processes shared fewer cores: the losses do not depend on it, and no time of theirs is used.\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("out/figure2"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="of each training run")
    parser.add_argument("--tokens", help="prepared text of at most 512 tokens' vocabulary; default: that of the demo")
    options = parser.parse_args()
    if options.tokens is None:
        options.tokens = learning.TOKENS
        learning.prepare_text()
    rows = learning.study_of(learning.forms_of_feedback(), options, "dense")
    result = {"schema_version": 1, "seeds": options.seeds, "steps": options.steps, "feedback": study.plain(rows)}
    study.write(
        options.output,
        {"figure2.md": markdown(rows, options), "figure2.json": study.to_json(result), "figure2.svg": picture.draw(result)},
    )


if __name__ == "__main__":
    main()
