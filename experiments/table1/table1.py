#!/usr/bin/env python3
"""Table 1 of Sun 2026, which compares methods by words: privacy, communication efficiency, robustness to failure. Here each column is
measured: what a rank sends is read by an observer (trained for real), communication and failures are simulated (docs/experiments.md).

    tools/python experiments/table1/table1.py -o out/table1/result

writes table1.md, table1.json and table1.svg. Nothing is tuned to match the paper's words.
"""

import argparse
import hashlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

import claims  # noqa: E402
import paper  # noqa: E402
import privacy  # noqa: E402
import simulated  # noqa: E402
import study  # noqa: E402

from plots import table1 as picture  # noqa: E402


def settings_text(settings):
    """The method's own keys; a plan is named as such."""
    if "method.plan" in settings:
        return "adaptive, planned"
    own = {key.removeprefix("method."): value for key, value in settings.items() if key.startswith("method.")}
    return ", ".join([own.pop("name"), *(key if value == "true" else f"{key} {value}" for key, value in own.items())])


def observer_cells(found):
    header = ["sum of so many clients", "words named", "of them in a text of the sum", "of them read by one client", "words missed"]
    return header, [
        [str(one["sum_of"]), f"{one['named']:,.0f}", f"{one['in_its_text']:.0%}", f"{one['read_by_it']:.0%}", str(one["missed"])]
        for one in found["observer"]
    ]


def privacy_cells(found):
    header = ["method", "paper", "leaves a node in the clear", "an observer is right about the reader of a word"]
    right = claims.right_about_the_reader(found)
    return header, [
        [paper.ROWS[row["method"]][0], paper.ROWS[row["method"]][paper.PRIVACY], row["seen"]["what"], f"{right[row['method']]:.0%}"]
        for row in found["rows"]
    ]


def communication_cells(found):
    header = ["method", "paper", "run as", "step s", "of it exposed communication", "ideal: run as", "step s", "exposed", "MB a sample"]
    cells = []
    for row in found["rows"]:
        line = [paper.ROWS[row["method"]][0], paper.ROWS[row["method"]][paper.COMMUNICATION]]
        for name in ("paper", "ideal"):
            one = row["clusters"][name]
            exposed = one["exposed_s"] / one["step_time_s"].mean
            line += [settings_text(one["settings"]), study.plus_minus(one["step_time_s"]), f"{exposed:.1%}"]
        cells.append([*line, f"{row['clusters']['paper']['bytes_per_sample'] / 1e6:.1f}"])
    return header, cells


def robustness_cells(found):
    header = ["method", "paper", *simulated.POLICIES, "slow rank", "slow link", "step s then"]
    cells = []
    for row in found["rows"]:
        line = [paper.ROWS[row["method"]][0], paper.ROWS[row["method"]][paper.ROBUSTNESS]]
        line += [study.plus_minus(row["goodput"][policy]) if policy in row["goodput"] else "" for policy in simulated.POLICIES]
        step = row["clusters"]["paper"]["step_time_s"].mean
        slow = [row["slowdown"][what] for what in simulated.DISTURBED]
        cells.append([*line, *(f"{factor:.2f}" for factor in slow), " and ".join(f"{factor * step:.2f}" for factor in slow)])
    return header, cells


def markdown(found, options):
    left = found["left"]
    text = "# Table 1 of Sun 2026: privacy, communication, robustness\n\nBy `tools/python experiments/table1/table1.py`. The paper gives"
    text += " words without saying what they were measured by.\n\n## Privacy: trained\n"
    text += f"{privacy.CLIENTS} clients, each with the text of one Debian package, train `llama-tiny` with {options.vocabulary:,} words by"
    text += f" plain SGD for {privacy.ROUND - 1} steps; an observer looks at the rows of the embedding that an update changes. It sees the"
    text += " update of one client, or only the sum of several, as the server of a secure sum does.\n\n"
    text += study.table(*observer_cells(found)) + "\n" + study.table(*privacy_cells(found))
    text += f"\nA real secure sum of {left['clients']} clients, {left['left']} of which left in its midst, was"
    text += f" {'exact' if left['exact'] else 'wrong'} for the {left['in_the_sum']} whose numbers had come.\n"
    text += f"\n## Communication: simulated\n{simulated.JOB} on the paper's cluster, and on an ideal one, four DGX A100: the fastest of a"
    text += f" method's ways. {options.seeds} seeds of jitter, fidelity `{options.fidelity}`. FedAvg: {simulated.ROUND} steps a round; the"
    text += " making of masks counts as communication.\n\n" + study.table(*communication_cells(found))
    text += f"\n## Robustness: simulated\nThe part of {simulated.DURATION} that is productive with a failure an hour, by recovery policy;"
    text += " empty: the method cannot recover so. Slow rank: a V100 takes twice as long. Slow link: a node's link has a tenth of its"
    text += " bandwidth. Both as factors on the undisturbed step. Adaptive plans anew for each.\n\n"
    text += study.table(*robustness_cells(found))
    return text + "\n## Against the paper\n" + "".join(f"- **{what}.** {line}\n" for what, line in claims.verdicts(found))


def hashes():
    """{file: hash} of what the numbers come from besides the texts."""
    files = (privacy.JOB, "models/llama-tiny.toml", *simulated.INPUTS)
    return {name: hashlib.sha256((study.ROOT / name).read_bytes()).hexdigest() for name in files}


def results(options):
    """All that is measured."""
    found = {"observer": privacy.attacked(options), "left": simulated.left_clients()}
    found["secrecy"] = simulated.secrecy(options)
    found["rows"] = simulated.rows(options)
    for row in found["rows"]:
        mesh = row["clusters"]["paper"]["mesh"]
        what, ranks = privacy.seen(mesh, mesh["dp"] if row["method"] == "fedavg" else 0)
        row["seen"] = {"what": what, "sum_of": ranks}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("out/table1/result"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fidelity", choices=("analytic", "fluid", "chunk"), default="fluid", help="fidelity of the simulation")
    parser.add_argument("--tokens", type=pathlib.Path, help="four texts prepared with --by-input; default: of four Debian packages")
    options = parser.parse_args()
    options.vocabulary = privacy.VOCABULARY
    if options.tokens is None:
        options.tokens = privacy.TOKENS
        privacy.prepare_texts()
    found = results(options)
    result = {
        "schema_version": 1,
        "seeds": options.seeds,
        "fidelity": options.fidelity,
        "vocabulary": options.vocabulary,
        **study.plain(found),
        "inputs": {"files": hashes(), "texts": privacy.texts(options.tokens)},
        "paper": {
            method: dict(zip(("name", "privacy", "communication", "robustness"), row, strict=True)) for method, row in paper.ROWS.items()
        },
    }
    study.write(
        options.output,
        {"table1.md": markdown(found, options), "table1.json": study.to_json(result), "table1.svg": picture.draw(result)},
    )


if __name__ == "__main__":
    main()
