#!/usr/bin/env python3
"""Makes an HTML report, or single figures, from the JSON that `rehearse` writes.

docs/report.md is the reference.
"""

import argparse
import io
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
except ImportError as missing:
    print(f"plots/report.py: needs the Python packages jinja2 and matplotlib ({missing}); tools/python has them", file=sys.stderr)
    sys.exit(2)

from plots import (
    accuracy,
    collective,
    difference,
    explain,
    faulted,
    goodput,
    inputs,
    loss,
    methods,
    page,
    placement,
    prediction,
    style,
    sweep,
    timeline,
)
from plots.inputs import InputError

FIGURES = (
    "methods",
    "explain",
    "prediction",
    "placement",
    "layers",
    "timeline",
    "loss",
    "collective",
    "accuracy",
    "goodput",
    "faults",
    "sweep",
    "diff",
)
WHAT = {
    "methods": "the methods side by side (JSON of rehearse compare or simulate)",
    "explain": "where the step goes and what more would bring (JSON of rehearse simulate --explain)",
    "prediction": "predicted against measured step time (a predictions file)",
    "placement": "the layers on the cluster (a plan's placement)",
    "layers": "variance and sparsity of each layer (a plan's placement with layers)",
    "timeline": "the timeline of a step (a trace)",
    "loss": "the loss curve (JSON lines of rehearse train)",
    "collective": "a collective by size (JSON of rehearse collective)",
    "accuracy": "predicted against measured time of published measurements (JSON of rehearse validate)",
    "goodput": "where weeks go (JSON of rehearse simulate or compare --duration)",
    "faults": "step times under a fault trace (JSON of rehearse simulate --faults)",
    "sweep": "the points of a sweep (JSON of rehearse sweep)",
    "diff": "where two jobs differ (JSON of rehearse diff)",
}


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="plots/report.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=("Make a self-contained HTML report, or one figure, from the JSON that rehearse writes."),
        epilog=(
            "examples:\n  plots/report.py compare.json predictions.json simulated=a.json"
            " real=b.json run.jsonl -o report.html\n  plots/report.py compare.json -o methods.svg\n"
            "  plots/report.py simulated=a.json real=b.json --only timeline -o timeline.png"
        ),
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="[LABEL=]INPUT",
        help="JSON or JSONL; the label names a trace or a run",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help=".html for the report; .svg, .png or .pdf for one figure",
    )
    parser.add_argument("--only", choices=FIGURES, help="which figure, if the inputs allow several")
    parser.add_argument(
        "--figures",
        metavar="DIR",
        help="also write each figure of the report there, as SVG and PNG",
    )
    parser.add_argument("--title", default="Rehearsal report", help="title of the report")
    parser.add_argument("--quiet", action="store_true", help="do not print what was written")
    options = parser.parse_args(argv)
    options.form = os.path.splitext(options.output)[1].lstrip(".").lower()
    if options.form not in ("html", "svg", "png", "pdf"):
        raise InputError(f"-o {options.output}: the name must end in .html, .svg, .png or .pdf")
    if options.form == "html" and options.only:
        raise InputError("--only picks a single figure: -o must end in .svg, .png or .pdf")
    return options


def compressed(given):
    return [p for p in given.placements if p.layers]


def explained(given):
    return [r["explain"] for r in given.results if r["explain"]]


def struck(given):
    return [r["faults"] for r in given.results if r["faults"]]


def drawing(name, given):
    """The matplotlib figure of that name, or None if its input was not given."""
    if name == "methods":
        return methods.draw(given.results) if given.results else None
    if name == "explain":
        return explain.draw(explained(given)[0]) if explained(given) else None
    if name == "prediction":
        return prediction.draw(given.runs) if given.runs else None
    if name == "placement":
        return placement.draw(given.placements[0]) if given.placements else None
    if name == "layers":
        return placement.draw_layers(given.placements[0]) if compressed(given) else None
    if name == "timeline":
        return timeline.draw(given.traces) if given.traces else None
    if name == "collective":
        return collective.draw(given.collectives[0]) if given.collectives else None
    if name == "accuracy":
        return accuracy.draw(given.validations) if given.validations else None
    if name == "goodput":
        return goodput.draw(given.long_runs) if given.long_runs else None
    if name == "sweep":
        return sweep.draw(given.sweeps[0]) if given.sweeps else None
    if name == "diff":
        return difference.draw(given.differences[0]) if given.differences else None
    if name == "faults":
        return faulted.draw(struck(given)[0]) if struck(given) else None
    return loss.draw(given.losses) if given.losses else None


def write(path, content):
    """Writes the file under another name and renames it, so a reader never sees half a file."""
    beside = f"{path}.partial-{os.getpid()}"
    try:
        with open(beside, "wb") as file:
            file.write(content)
        os.replace(beside, path)
    except OSError as error:
        if os.path.exists(beside):
            os.remove(beside)
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def rendered(drawn, form):
    buffer = io.BytesIO()
    style.save(drawn, buffer, form)
    return buffer.getvalue()


def report(options, given):
    """(the page, {figure: SVG bytes})."""
    pictures = {name: rendered(drawn, "svg") for name in FIGURES if (drawn := drawing(name, given))}
    return page.render(options.title, given, pictures, WHAT), pictures


def run(options):
    given = inputs.load(options.inputs)
    if options.form == "html":
        content, pictures = report(options, given)
        if options.figures:
            try:
                os.makedirs(options.figures, exist_ok=True)
            except OSError as error:
                raise InputError(f"--figures {options.figures}: {error.strerror}") from None
            for name, svg in pictures.items():
                write(os.path.join(options.figures, f"{name}.svg"), svg)
                write(
                    os.path.join(options.figures, f"{name}.png"),
                    rendered(drawing(name, given), "png"),
                )
        write(options.output, content.encode())
    else:
        able = [
            n
            for n, there in zip(
                FIGURES,
                (
                    given.results,
                    explained(given),
                    given.runs,
                    given.placements,
                    compressed(given),
                    given.traces,
                    given.losses,
                    given.collectives,
                    given.validations,
                    given.long_runs,
                    struck(given),
                    given.sweeps,
                    given.differences,
                ),
                strict=True,
            )
            if there
        ]
        name = options.only or able[0]
        if not options.only and len(able) > 1:
            raise InputError(f"the inputs allow several figures: choose with --only {' or '.join(able)}")
        if name not in able:
            raise InputError(f"--only {name}: no input for {WHAT[name]}")
        write(options.output, rendered(drawing(name, given), options.form))
    if not options.quiet:
        print(options.output)


def main(argv=None):
    try:
        run(arguments(argv))
        return 0
    except InputError as error:
        print(f"plots/report.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
