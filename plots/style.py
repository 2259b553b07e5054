"""The style of all figures: the Okabe-Ito palette (safe for colour-blind readers), plain axes,
readable units. Each figure can be drawn for a wide page, and narrow, for a telephone or a column of a paper."""

import contextlib
import math
import re
import textwrap

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, LogFormatterMathtext, LogFormatterSciNotation, MaxNLocator

# Okabe & Ito 2008, "Color Universal Design".
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
INK, QUIET, FAINT, PAPER = "#1f2933", "#6b7785", "#e4e8ec", "#ffffff"
SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)

# Kind of work -> colour; darker is heavier. Lightness differs too, so kinds can be distinguished in grey.
KINDS = {
    "forward": SKY,
    "backward": BLUE,
    "recompute": "#9ad7c3",
    "compute": SKY,
    "kernel": "#8d99a6",
    "update": GREEN,
    "collective": ORANGE,
    "send": VERMILION,
    "recv": PURPLE,
    "put": "#a3450a",
    "take": "#8c4f77",
    "copy": YELLOW,
    "other": "#c3cad1",
}

RC = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": "#b8c0c8",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": 110,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "path",
    "svg.hashsalt": "rehearse",  # the same figure gives the same bytes
    "text.parse_math": False,  # names of jobs may have a $
}


plt.rcParams.update(RC)


NARROW = 4.4  # inches: as wide as a figure for a narrow page gets
NAME = 22  # letters of a line of a name beside a bar there
_narrow = False


@contextlib.contextmanager
def narrow_page(wanted=True):
    """Figures that are drawn and saved inside are for a narrow page: no wider than NARROW, their panels below each other."""
    global _narrow
    outside, _narrow = _narrow, wanted
    try:
        yield
    finally:
        _narrow = outside


def is_narrow():
    return _narrow


def figure(width, height, narrow=NARROW, **arguments):
    """A figure and its axes, sizes in inches; `narrow`: its width on a narrow page, if `width` is more."""
    return plt.subplots(figsize=(min(width, narrow) if _narrow else width, height), layout="constrained", **arguments)


def panels(width, height, ratios, **arguments):
    """A figure and a list of axes: beside each other, their widths as `ratios`; on a narrow page below each other, each `height` inches."""
    if _narrow:
        drawn, axes = figure(width, height * len(ratios), nrows=len(ratios), squeeze=False, **arguments)
    else:
        drawn, axes = figure(width, height, ncols=len(ratios), width_ratios=ratios, squeeze=False, **arguments)
    return drawn, list(axes.flat)


def legend_columns(wanted):
    """How many entries of a legend stand beside each other."""
    return min(wanted, 2) if _narrow else wanted


def broken(name):
    """On a narrow page a long name in lines, which end behind commas and blanks where they can."""
    if not _narrow or len(name) <= NAME:
        return name
    lines = [""]
    for piece in re.findall(rf"[^, ]{{1,{NAME - 1}}}[, ]*|[, ]+", name):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > NAME:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def name_rows(axis, rows):
    """Names beside the rows of a chart, each with a note below it in small letters: [(name, note)]."""
    axis.set_yticks(range(len(rows)), [""] * len(rows))
    at = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right", "annotation_clip": False}
    for row, (name, note) in enumerate(rows):
        lower = 6 * name.count("\n")  # so that name and note stand in the middle of the row
        axis.annotate(name, (0, row), (-8, 1 - lower if note else 0), va="bottom" if note else "center", fontsize=9.5, **at)
        axis.annotate(note, (0, row), (-8, -1 - lower), va="top", fontsize=7, color=QUIET, **at)


def more_lines(names):
    """How many lines the longest of the names has beyond one."""
    return max(name.count("\n") for name in names)


def _wrap(drawn):
    """Makes what is too wide for a narrow page fit: fewer numbers below an axis; lines for long names beside bars and for long titles."""
    for axis in drawn.axes:
        if isinstance(axis.xaxis.get_major_locator(), MaxNLocator):
            axis.locator_params(axis="x", nbins=5)
        names = [label.get_text() for label in axis.get_yticklabels()]
        if isinstance(axis.yaxis.get_major_locator(), FixedLocator) and any(len(name) > NAME for name in names):
            axis.set_yticks(axis.get_yticks(), [broken(name) for name in names])
    drawn.draw_without_rendering()
    titles = [(axis.title if axis.get_title() else axis._left_title, axis.get_window_extent().x0) for axis in drawn.axes]
    for text, left in [*titles, *((text, 0.01 * drawn.bbox.x1) for text in drawn.texts)]:
        points = (drawn.bbox.x1 - left) * 72 / drawn.dpi
        text.set_text(textwrap.fill(text.get_text(), max(NAME, int(points / (0.64 * text.get_fontsize())))))


class Powers(LogFormatterSciNotation):
    """Labels of a logarithmic axis without math text: 10³."""

    def __call__(self, value, position=None):
        text = super().__call__(value, position).replace("$", "").replace(r"\times", "×")
        text = re.sub(r"\\mathdefault\{(.*)\}", r"\1", text)
        return re.sub(r"\^\{([^}]*)\}", lambda found: found[1].replace("−", "-").translate(RAISED), text)


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _plain_powers(drawn):
    def plain(formatter, choose):
        if isinstance(formatter, LogFormatterMathtext) and not isinstance(formatter, Powers):
            choose(Powers(formatter._base, formatter.labelOnlyBase, formatter.minor_thresholds, formatter._linthresh))

    for axis in (one for axes in drawn.axes for one in (axes.xaxis, axes.yaxis)):
        plain(axis.get_major_formatter(), axis.set_major_formatter)
        plain(axis.get_minor_formatter(), axis.set_minor_formatter)


def save(drawn, target, form):
    """Writes a figure to a path or a file object. The same figure always gives the same bytes."""
    _plain_powers(drawn)
    if _narrow:
        _wrap(drawn)
    metadata = {
        "svg": {"Date": None, "Creator": None},
        "png": {"Software": None},
        "pdf": {"CreationDate": None},
    }
    drawn.savefig(target, format=form, dpi=160, metadata=metadata.get(form))
    plt.close(drawn)


def time_unit(seconds):
    """(factor, name) of the unit in which a duration of this size has one to three digits before
    the point."""
    for factor, name in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return factor, name
    return 1.0, "s"


def _unit(count, names):
    power = 0 if count <= 0 else min(len(names) - 1, int(math.log10(count) / 3 + 1e-9))
    return 1000.0 ** max(0, power), names[max(0, power)]


def byte_unit(count):
    """(divisor, name) of the unit, decimal as in the command's output."""
    return _unit(count, ("B", "kB", "MB", "GB", "TB"))


def energy_unit(joules):
    return _unit(joules, ("J", "kJ", "MJ", "GJ", "TJ"))


def number(value, digits=3):
    """Three significant digits with thousands separators: 2268 -> 2,268; 0.04213 -> 0.0421."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def percent(value, digits=1, sign=""):
    """A fraction in percent. `sign` "+": with its sign, unless it rounds to 0."""
    text = f"{100 * value:{sign}.{digits}f}"
    return f"{text if float(text) else f'{0:.{digits}f}'}%".replace("-", "−")
