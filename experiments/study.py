"""Shared code of the studies in this folder: running `rehearse`, intervals and p-values, Markdown tables, writing results.

p-values are two-sided t-tests of SciPy. Simulated methods are compared by Welch's unpaired test, although all methods use the same
seeds: jitter depends on (seed, rank, step, op), and two methods have different ops, so equal seeds of two methods are independent.
Their spreads also differ by an order of magnitude, which a pooled variance would hide. Training runs are compared by the paired test,
because a seed fixes initial weights and data order, independent of the treatment of gradients.
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


# Published tables come from a stated number of steps.
ALL_STEPS = ("--precision", "0%")


class Refused(Exception):
    """`rehearse` refuses to run this (status 2): the model does not fit, or the combination is not possible."""


def rehearse(*arguments, timeout=3600):
    """The JSON that a command prints. It runs in the top folder, so paths in job files are relative to that."""
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
    """The settings that run the plan for this job under the adaptive method; the plan is written to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rehearse("plan", job, *sets({"method.name": "adaptive"} | (settings or {})), "-o", path)
    return {"method.name": "", "method.precision": "", "method.plan": str(path)}


def remedy(refusal):
    """The nearest change that fits, as the refusal names it: {key: value}; empty if it names none."""
    _, found, change = refusal.partition("this would fit")
    return dict(re.findall(r"--set ([\w.]+)=([^\s;,]+)", change)) if found else {}


def in_parallel(function, items, workers=None):
    """[function(item)] in the order of the items; runs as many at a time as there are cores."""
    with concurrent.futures.ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, items))


@dataclasses.dataclass
class Sample:
    """The results of n seeds."""

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
    """Two-sided p of equal means; None if there is no test, with fewer than two values or without any spread."""
    if min(len(a.values), len(b.values)) < 2 or a.std == b.std == 0:
        return None
    return float(stats.ttest_ind(a.values, b.values, equal_var=False).pvalue)


def paired(a, b):
    """Two-sided p of equal means of two samples that share their seeds; None if all seeds have the same difference."""
    differences = Sample([x - y for x, y in zip(a.values, b.values, strict=True)])
    if len(differences.values) < 2 or differences.std == 0:
        return None
    return float(stats.ttest_rel(a.values, b.values).pvalue)


def welch_of_summaries(a, b, n):
    """Welch's test from (mean, standard deviation) of two samples of n values, as papers print them."""
    return float(stats.ttest_ind_from_stats(*a, n, *b, n, equal_var=False).pvalue)


def probability(p):
    if p is None:
        return ""
    return "<1e-6" if p < 1e-6 else f"{p:.1e}" if p < 1e-3 else f"{p:.3f}"


def number(value, digits=4):
    """A number with this many significant digits and thousands separators: 2268 -> 2,268; 0.04213 -> 0.04213."""
    if value == 0:
        return "0"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def plus_minus(sample, digits=4):
    """Mean and half-width of its interval, both rounded to the second digit of the half-width."""
    if not sample.ci95 or sample.ci95 < 1e-9 * abs(sample.mean):  # no spread but that of rounding
        return number(sample.mean, digits)
    places = max(0, 1 - math.floor(math.log10(sample.ci95)))
    return f"{sample.mean:,.{places}f} ± {sample.ci95:,.{places}f}"


def table(header, rows):
    """A Markdown table; cells are text."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def plain(value):
    """The value as plain types for JSON."""
    if isinstance(value, Sample):
        return value.json()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def sampled(value):
    """The value that `plain` was given, as far as it is made of samples, dicts and lists."""
    if isinstance(value, dict):
        return Sample(value["values"]) if "values" in value else {k: sampled(v) for k, v in value.items()}
    return [sampled(v) for v in value] if isinstance(value, list) else value


def trained(path, inputs, options, names):
    """The JSON that a study wrote earlier, for what it trained. Exits if that had other inputs, or the options `names` were others."""
    kept = json.loads(path.read_text())
    now = {"inputs": inputs} | {name: getattr(options, name) for name in names}
    for name, value in now.items():
        if kept[name] != value:
            sys.exit(f"--trained {path}: its {name} are {kept[name]}, now they are {value}; train again (without --trained)")
    return sampled({name: value for name, value in kept.items() if name != "inputs"})


def write(folder, files):
    """Writes {name: text or bytes} to the folder, each under another name and then renamed, so a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        part = folder / f"{name}.part-{os.getpid()}"
        part.write_bytes(content if isinstance(content, bytes) else content.encode())
        part.rename(folder / name)
        print(folder / name)


def to_json(value):
    return json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n"
