"""What the studies of this folder share: running `rehearse`, intervals and p-values, Markdown tables, writing results.

p-values are two-sided t-tests of SciPy. Simulated methods are compared by Welch's, unpaired although seeds repeat: jitter is
drawn by (seed, rank, step, op), and two methods have different ops, so seed 1 of one has nothing to do with seed 1 of the
other; and their spreads differ by an order of magnitude, which a pooled variance would hide. Training runs are compared by
the paired test: a seed fixes initial weights and data order, whatever is done to the gradients.
"""

import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
REHEARSE = os.environ.get("REHEARSE", str(ROOT / "build/bin/rehearse"))

sys.path.insert(0, str(ROOT))
try:
    from scipy import stats
except ImportError as missing:
    sys.exit(f"the experiments need SciPy ({missing}): run tools/setup, then tools/python {sys.argv[0]}")


class Refused(Exception):
    """`rehearse` will not run this (status 2): a model that does not fit, a combination that cannot be."""


def rehearse(*arguments, timeout=3600):
    """The JSON that a command prints. Runs in the top folder, so job files name things from there."""
    command = [REHEARSE, *map(str, arguments), "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=timeout)
    if done.returncode == 2:
        raise Refused(done.stderr.strip().removeprefix("rehearse: "))
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nfailed with status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def sets(settings):
    """["--set", "key=value", ...] of a dict."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def planned(job, path, settings=None):
    """The settings that run what the planner decides for this job under the adaptive method; the plan goes to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rehearse("plan", job, *sets({"method.name": "adaptive"} | (settings or {})), "-o", path)
    return {"method.name": "", "method.precision": "", "method.plan": str(path)}


def remedy(refusal):
    """The nearest change that fits, as a refusal names it: {key: value}, empty where it names none."""
    _, found, change = refusal.partition("this would fit")
    return dict(re.findall(r"--set ([\w.]+)=([^\s;,]+)", change)) if found else {}


def in_parallel(function, items, workers=None):
    """[function(item)], as many at once as there are cores; in the order of the items."""
    with concurrent.futures.ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, items))


@dataclasses.dataclass
class Sample:
    """What n seeds gave."""

    values: list

    @property
    def mean(self):
        return statistics.fmean(self.values)

    @property
    def std(self):
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def ci95(self):
        """Half the width of the 95% interval of the mean, by Student's t."""
        n = len(self.values)
        return float(stats.t.ppf(0.975, n - 1)) * self.std / math.sqrt(n) if n > 1 else None

    def json(self):
        return {"mean": self.mean, "std": self.std, "ci95": self.ci95, "values": self.values}


def welch(a, b):
    """p of equal means, two-sided; none where a test says nothing: fewer than two values, or no spread at all."""
    if min(len(a.values), len(b.values)) < 2 or a.std == b.std == 0:
        return None
    return float(stats.ttest_ind(a.values, b.values, equal_var=False).pvalue)


def paired(a, b):
    """p of equal means of two samples that share their seeds, two-sided; none where no seed differs from another."""
    differences = Sample([x - y for x, y in zip(a.values, b.values, strict=True)])
    if len(differences.values) < 2 or differences.std == 0:
        return None
    return float(stats.ttest_rel(a.values, b.values).pvalue)


def welch_of_summaries(a, b, n):
    """The same from (mean, standard deviation) of two samples of n, as papers print them."""
    return float(stats.ttest_ind_from_stats(*a, n, *b, n, equal_var=False).pvalue)


def probability(p):
    if p is None:
        return ""
    return "<1e-6" if p < 1e-6 else f"{p:.1e}" if p < 1e-3 else f"{p:.3f}"


def number(value, digits=4):
    """So many significant digits, thousands apart: 2268 -> 2,268; 0.04213 -> 0.04213."""
    if value == 0:
        return "0"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def plus_minus(sample, digits=4):
    """Mean and half-width of its interval, both to the place of the half-width's second digit."""
    if not sample.ci95:
        return number(sample.mean, digits)
    places = max(0, 1 - math.floor(math.log10(sample.ci95)))
    return f"{sample.mean:,.{places}f} ± {sample.ci95:,.{places}f}"


def table(header, rows):
    """A Markdown table; cells are text."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def plain(value):
    """For JSON."""
    if isinstance(value, Sample):
        return value.json()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def write(folder, files):
    """{name: text or bytes} under the folder, each beside and renamed, so that a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        part = folder / f"{name}.part-{os.getpid()}"
        part.write_bytes(content if isinstance(content, bytes) else content.encode())
        part.rename(folder / name)
        print(folder / name)


def to_json(value):
    return json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n"
