#!/usr/bin/env python3
"""Makes an HTML report, or single figures, from the JSON that `rehearse` writes.

docs/report.md is the reference.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
    import msgspec  # noqa: F401
except ImportError as missing:
    print(f"plots/report.py: needs the Python packages jinja2, matplotlib and msgspec ({missing}); tools/python has them", file=sys.stderr)
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


@dataclass(frozen=True)
class Figure:
    what: str  # it shows, and what it is drawn from
    inputs: Callable  # inputs.Given -> what there is to draw; empty: nothing
    draw: Callable  # those -> a matplotlib figure


def first(draw):
    return lambda some: draw(some[0])


FIGURES = {
    "methods": Figure("the methods side by side (JSON of rehearse compare or simulate)", lambda given: given.results, methods.draw),
    "explain": Figure(
        "where the step goes and what more would bring (JSON of rehearse simulate --explain)",
        lambda given: [r.explain for r in given.results if r.explain],
        first(explain.draw),
    ),
    "prediction": Figure("predicted against measured step time (a predictions file)", lambda given: given.runs, prediction.draw),
    "placement": Figure("the layers on the cluster (a plan's placement)", lambda given: given.placements, first(placement.draw)),
    "layers": Figure(
        "variance and sparsity of each layer (a plan's placement with layers)",
        lambda given: [p for p in given.placements if p.layers],
        first(placement.draw_layers),
    ),
    "timeline": Figure("the timeline of a step (a trace)", lambda given: given.traces, timeline.draw),
    "loss": Figure("the loss curve (JSON lines of rehearse train)", lambda given: given.losses, loss.draw),
    "collective": Figure("a collective by size (JSON of rehearse collective)", lambda given: given.collectives, first(collective.draw)),
    "accuracy": Figure(
        "predicted against measured time of published measurements (JSON of rehearse validate)",
        lambda given: given.validations,
        accuracy.draw,
    ),
    "goodput": Figure("where weeks go (JSON of rehearse simulate or compare --duration)", lambda given: given.long_runs, goodput.draw),
    "faults": Figure(
        "step times under a fault trace (JSON of rehearse simulate --faults)",
        lambda given: [r.faults for r in given.results if r.faults],
        first(faulted.draw),
    ),
    "sweep": Figure("the points of a sweep (JSON of rehearse sweep)", lambda given: given.sweeps, first(sweep.draw)),
    "diff": Figure("where two jobs differ (JSON of rehearse diff)", lambda given: given.differences, first(difference.draw)),
}
WHAT = {name: figure.what for name, figure in FIGURES.items()}


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
    parser.add_argument("--narrow", action="store_true", help="draw figures no wider than a telephone or a column of a paper")
    parser.add_argument("--title", default="Rehearsal report", help="title of the report")
    parser.add_argument("--quiet", action="store_true", help="do not print what was written")
    options = parser.parse_args(argv)
    options.form = os.path.splitext(options.output)[1].lstrip(".").lower()
    if options.form not in ("html", "svg", "png", "pdf"):
        raise InputError(f"-o {options.output}: the name must end in .html, .svg, .png or .pdf")
    if options.form == "html" and options.only:
        raise InputError("--only picks a single figure: -o must end in .svg, .png or .pdf")
    if options.form == "html" and options.narrow and not options.figures:
        raise InputError("--narrow: a page has each figure wide and narrow; the option is for single figures and those of --figures")
    return options


def able(given):
    """The names of the figures that the inputs allow."""
    return [name for name, figure in FIGURES.items() if figure.inputs(given)]


def rendered(name, given, form, narrow=False):
    """The bytes of a figure."""
    buffer = io.BytesIO()
    with style.narrow_page(narrow):
        style.save(FIGURES[name].draw(FIGURES[name].inputs(given)), buffer, form)
    return buffer.getvalue()


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


def write_report(options, given):
    names = able(given)
    wide, narrow = ({name: rendered(name, given, "svg", narrow) for name in names} for narrow in (False, True))
    if options.figures:
        try:
            os.makedirs(options.figures, exist_ok=True)
        except OSError as error:
            raise InputError(f"--figures {options.figures}: {error.strerror}") from None
        for name in names:
            write(os.path.join(options.figures, f"{name}.svg"), narrow[name] if options.narrow else wide[name])
            write(os.path.join(options.figures, f"{name}.png"), rendered(name, given, "png", options.narrow))
    write(options.output, page.render(options.title, given, wide, narrow, WHAT).encode())


def write_figure(options, given):
    names = able(given)
    name = options.only or names[0]
    if not options.only and len(names) > 1:
        raise InputError(f"the inputs allow several figures: choose with --only {' or '.join(names)}")
    if name not in names:
        raise InputError(f"--only {name}: no input for {WHAT[name]}")
    write(options.output, rendered(name, given, options.form, options.narrow))


def run(options):
    given = inputs.load(options.inputs)
    if options.form == "html":
        write_report(options, given)
    else:
        write_figure(options, given)
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
