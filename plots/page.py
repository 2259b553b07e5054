"""The HTML report: one file without scripts, which loads nothing from elsewhere and contains its figures as SVG. report.html.jinja has the
text and report.css the style; this file computes the values for the template."""

import base64
import operator
import pathlib
import re
import statistics

import jinja2

from plots import methods, prediction, style

BEST = {
    "step_time_s.mean": min,
    "samples_per_s": max,
    "mfu": max,
    "bubble_fraction": min,
    "exposed_comm_s": min,
    "bytes_sent_per_rank.mean": min,
    "joules": min,
    "robustness": max,
}


def in_unit(seconds, spread=None):
    """(value, half-width or "", unit) as text."""
    factor, unit = style.time_unit(seconds)
    return style.number(seconds * factor), style.number(spread * factor, 2) if spread else "", unit


def size(count):
    divisor, unit = style.byte_unit(count)
    return f"{style.number(count / divisor)} {unit}"


def energy(joules):
    divisor, unit = style.energy_unit(joules)
    return f"{style.number(joules / divisor)} {unit}"


def fixed(value, digits):
    return f"{value:.{digits}f}"


def where_known(written):
    """The same filter, but with a dash for None."""
    return lambda value, *more, **named: "–" if value is None else written(value, *more, **named)


def environment():
    made = jinja2.Environment(
        keep_trailing_newline=True,
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for filter_ in (size, energy, fixed, style.number, style.percent):
        made.filters[filter_.__name__] = where_known(filter_)
    made.filters.update(in_unit=in_unit, error=prediction.error)
    return made


def best(results):
    """The best value of each column that has one; None if all values are equal."""
    found = {}
    for key, choose in BEST.items():
        known = [value for value in map(operator.attrgetter(key), results) if value is not None]
        found[key] = choose(known) if len(set(known)) > 1 else None
    return found


def trained(run):
    """The numbers in the row of a training run."""

    def known(key):
        return [value for value in map(operator.attrgetter(key), run.rows) if value is not None]

    losses, checks, speeds = known("loss"), known("validation_loss"), known("tokens_per_s")
    return {
        "label": run.label,
        "steps": run.rows[-1].step,
        "losses": len(losses),
        "first": losses[0] if losses else None,
        "last": losses[-1] if losses else None,
        "validation": checks[-1] if checks else None,
        "tokens_per_s": statistics.median_high(speeds) if speeds else None,
    }


def warnings(ranked):
    """{warning: the methods that gave it}."""
    said = {}
    for name, result in ranked:
        for warning in result.warnings:
            said.setdefault(warning, []).append(name)
    return said


def subject(result):
    """What was simulated: model, batch and cluster."""
    text = result.model
    if result.global_batch and result.seq_len:
        text += f", {result.global_batch:,} samples of {result.seq_len:,} tokens a step"
    if result.precision:
        text += f", {result.precision}"
    if result.cluster:
        text += f", on {result.cluster}"
    return text


def intro(results):
    """Each subject once, then the numbers of methods, seeds and ranks."""
    subjects = "; ".join(dict.fromkeys(subject(r) for r in results if r.model))
    text = f"{len(results)} simulated method{'s' * (len(results) != 1)}" if results else ""
    if seeds := {len(r.step_time_s.values) for r in results if r.step_time_s.values}:
        text += f", {'/'.join(map(str, sorted(seeds)))} seed{'s' * (max(seeds) > 1)} each"
    if sizes := sorted({r.world_size for r in results}):
        text += f", on {'/'.join(map(str, sizes))} ranks"
    return f"{subjects}: {text}" if subjects else text


def provenance(given, ranked):
    """(text, code) pairs of what is needed to get the same numbers again: commands, version, fidelity and hashes."""
    found = [("", command) for command in dict.fromkeys(o.command for o in given.origins if o.command)]
    found += [(f"rehearse {version}", "") for version in sorted({o.version for o in given.origins if o.version})]
    for key, title in (("fidelity", "fidelity"), ("cluster_hash", "cluster")):
        found += [(title, value) for value in sorted({getattr(r, key) for r in given.results} - {""})]
    return found + [(f"program of {name}", r.program_hash) for name, r in ranked if r.program_hash]


OF_NO_JOB = ("collective", "accuracy", "goodput", "sweep", "diff")  # figures that a report of a job does not miss


def data(svg):
    """An image's address that contains it. Figures are images, so that their ids do not collide with those of another SVG on the page."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def width(svg):
    """The width of an SVG of matplotlib in CSS pixels."""
    return round(float(re.search(rb'<svg [^>]*width="([\d.]+)pt"', svg)[1]) / 0.75)


def render(title, given, wide, narrow, what):
    """The page. `wide` and `narrow`: {figure: SVG bytes}, which a browser chooses from by the width of its window;
    `what`: a description of each possible figure."""
    ranked = methods.ranked(given.results)
    return (
        environment()
        .get_template("report.html.jinja")
        .render(
            title=title,
            intro=intro(given.results),
            given=given,
            ranked=ranked,
            best=best(given.results),
            errors=[abs(prediction.error(r)) for r in given.runs if r.measured and not r.oversubscribed],
            band=prediction.BAND,
            trained=[trained(run) for run in given.losses],
            warnings=warnings(ranked),
            provenance=provenance(given, ranked),
            pictures={
                name: {"wide": data(wide[name]), "narrow": data(narrow[name]), "widths": (width(wide[name]), width(narrow[name]))}
                for name in wide
            },
            what=what,
            absent=[text for name, text in what.items() if name not in (*wide, *OF_NO_JOB)],
        )
    )
