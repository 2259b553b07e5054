"""Shared code of the tests of plots/report.py: makes small inputs of every kind, runs the program, and
reads the text of a page."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from html.parser import HTMLParser

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from plots import inputs, report  # noqa: E402


def result(method="ddp", samples=1000.0, **more):
    """An object as `rehearse simulate --json` writes it."""
    value = {
        "schema_version": 1,
        "method": method,
        "world_size": 8,
        "mesh": {"pp": 1, "dp": 8, "tp": 1},
        "rank_to_device": list(range(8)),
        "seeds": [1, 2],
        "samples_per_s": samples,
        "tokens_per_s": 512 * samples,
        "step_time_s": {
            "mean": 512 / samples,
            "std": 0.01,
            "ci95": 0.005,
            "values": [512 / samples] * 2,
        },
        "mfu": 0.31,
        "bubble_fraction": 0.125,
        "exposed_comm_s": 0.02,
        "bytes_sent_per_rank": {"mean": 4.84e9, "max": 5e9},
        "bytes_per_step_total": 3.9e10,
        "peak_memory_bytes": {"rtx4090": 9 * 2**30},
        "robustness": 0.95,
        "fidelity": "fluid",
        "calibrated": True,
        "program_hash": "abcd1234",
        "cluster_hash": "ef567890",
        "warnings": [],
    }
    return value | more


WAYS = [{"algorithm": "ring", "protocol": "LL", "seconds": 1e-5}, {"algorithm": "ring", "protocol": "Simple", "seconds": 2e-5}]
CURVE = {
    "schema_version": 1,
    "collective": "all_reduce",
    "cluster": "dgx1",
    "ranks": 8,
    "software": "pytorch-2",
    "library": "nccl-2.20",
    "sizes": [{"bytes": size, **WAYS[0], "bus_bandwidth": size / 1e-5, "ways": WAYS} for size in (1024, 2048)],
}
SWEEP = {
    "schema_version": 1,
    "sweep": "methods.toml",
    "by": "step_s",
    "most": False,
    "axes": [{"name": "methods", "values": ["ddp", "zero3"]}, {"name": "cluster.world_size", "values": [4, 8]}],
    "points": [
        {"key": "1", "point": {"methods": "ddp", "cluster.world_size": 4}, "metrics": {"step_s": 0.4}},
        {"key": "2", "point": {"methods": "ddp", "cluster.world_size": 8}, "metrics": {"step_s": 0.25}},
        {"key": "3", "point": {"methods": "zero3", "cluster.world_size": 4}, "refused": "memory"},
        {"key": "4", "point": {"methods": "zero3", "cluster.world_size": 8}, "metrics": {"step_s": 0.3}},
    ],
}
DIFFERENCE = {
    "schema_version": 1,
    "diff": {"job": [{"key": "method.name", "a": '"ddp"', "b": '"zero3"'}], "plan": []},
    "parts": [
        {"kind": "communication", "name": "dp all-reduce", "a_s": 0.2, "b_s": 0.0},
        {"kind": "communication", "name": "dp all-gather", "a_s": 0.0, "b_s": 0.3},
        {"kind": "compute", "name": "forward mlp", "a_s": 0.1, "b_s": 0.1},
    ],
    "a": {
        "job": "a.toml",
        "explained_step_time_s": 0.3,
        "critical_path": [
            {"what": "forward", "start_s": 0.0, "seconds": 0.1, "communication_s": 0.0},
            {"what": "dp all-reduce", "start_s": 0.1, "seconds": 0.2, "communication_s": 0.2},
        ],
    },
    "b": {
        "job": "b.toml",
        "explained_step_time_s": 0.4,
        "critical_path": [{"what": "forward", "start_s": 0.0, "seconds": 0.4, "communication_s": 0.3}],
    },
}
LONG_RUN = {
    "schema_version": 1,
    "method": "ddp",
    "model": "gpt-tiny",
    "cluster": "paper",
    "step_time_s": 2.0,
    "duration_s": 1000.0,
    "failures": "llama3-h100",
    "policy": "restart",
    "checkpoint": {"kind": "sharded", "every_s": 60.0},
    "goodput": {"mean": 0.9, "values": [0.88, 0.92]},
    "lost_s": {
        name: seconds for seconds, name in enumerate(("detection", "restart", "rework", "checkpoint", "degraded", "replanning", "waiting"))
    },
    "intervals": {
        "young_s": 50.0,
        "daly_s": 45.0,
        "curve": [{"seconds": 30.0, "goodput": 0.85}, {"seconds": 60.0, "goodput": 0.9}, {"seconds": 120.0, "goodput": 0.8}],
    },
}
VALIDATION = {
    "schema_version": 1,
    "sets": [
        {
            "set": "one",
            "goal_percent": 5,
            "check": {"rows": 1, "mean_abs_error": 0.1},
            "rows": [
                {"use": "check", "measured_s": 1.0, "predicted_s": 1.1},
                {"use": "calibrate", "measured_s": 2.0, "predicted_s": 2.0},
                {"use": "check", "measured_s": 3.0, "refused": "too large"},
            ],
        }
    ],
}


def faulted(**more):
    """The value of "faults" as `rehearse simulate --faults` writes it."""
    event = {"event": 1, "kind": "freezes", "text": "freezes rank 1 for 1 s", "struck_s": 1.5, "step": 2, "until_s": 2.5, "cost_s": 1}
    one = {"step_times_s": [1, 2, 1], "undisturbed_step_times_s": [1, 1, 1], "stop": None}
    return {**one, "events": [{**event, "together_with": [], "no_effect": None}], **more}


def explained(**more):
    """The value of "explain" as `rehearse simulate --explain` writes it."""
    value = {
        "step_time_s": 0.5,
        "prediction_differs_by": 0.02,
        "steps": 50,
        "bubble_fraction": 0.4,
        "exposed_comm_s": 0.1,
        "parts": [
            {"kind": "compute", "name": "forward mlp", "path_s": 0.4, "latency_s": 0, "mean_rank_s": 0.3},
            {"kind": "communication", "name": "dp all-reduce", "path_s": 0.1, "latency_s": 0.01, "mean_rank_s": 0.1},
            {"kind": "waiting", "name": "for other ranks", "path_s": 0, "latency_s": 0, "mean_rank_s": 0.1},
        ],
        "critical_path": [],
        "devices": [{"kind": "V100", "role": "worker", "first_rank": 6, "ranks": 2, "busy": 0.8}],
        "links": [{"links": "a* - b*", "first": "a0>b0", "number": 1, "bytes": 1e9, "bytes_per_s": 1e10, "used": 0.2}],
        "ten_percent_more": [
            {"resource": "V100: matrix rate", "step_time_s": 0.46, "saved": 0.08},
            {"resource": "all links: latency", "step_time_s": 0.5, "saved": 0.0},
        ],
    }
    return value | more


def run(name="ddp", predicted=1.0, measured=1.1, **more):
    value = {
        "name": name,
        "world_size": 2,
        "predicted_step_time_s": predicted,
        "predicted_ci95": 0.01,
        "oversubscribed": False,
        "prediction_hash": "0123456789abcdef",
        "measured_step_time_s": {"median": measured, "deviation": 0.02, "values": [measured] * 3},
    }
    return value | more


def event(rank, lane, name, kind, start, duration, step=None, **more):
    value = {
        "ph": "X",
        "pid": rank,
        "tid": lane,
        "name": name,
        "cat": kind,
        "ts": start * 1e6,
        "dur": duration * 1e6,
    }
    return value if step is None else value | {"args": {"step": step} | more}


def trace(ranks=2, steps=3, length=1.0):
    events = []
    for rank in range(ranks):
        events += [
            {
                "ph": "M",
                "pid": rank,
                "name": "process_name",
                "args": {"name": f"rank {rank} (worker)"},
            }
        ]
        events += [{"ph": "M", "pid": rank, "tid": t, "name": "thread_name", "args": {"name": n}} for t, n in enumerate(("compute", "dp"))]
        for step in range(steps):
            events += [
                event(
                    rank,
                    0,
                    "forward attention",
                    "compute",
                    100 + step * length,
                    0.3 * length,
                    step,
                    micro_batch=0,
                ),
                event(
                    rank,
                    0,
                    "backward attention",
                    "compute",
                    100 + (step + 0.3) * length,
                    0.4 * length,
                    step,
                    micro_batch=1,
                ),
                event(
                    rank,
                    1,
                    "all-reduce",
                    "collective",
                    100 + (step + 0.7) * length,
                    0.2 * length,
                    step,
                ),
            ]
    return {"traceEvents": events}


def metrics(count=40):
    return [
        {
            "step": i,
            "loss": 9 - 0.05 * i,
            "tokens_per_s": 1000.0,
            "step_time_s": 0.1,
            "mfu": None,
            "grad_norm": 1.0,
        }
        | ({"validation_loss": 9.1 - 0.05 * i} if i % 10 == 0 else {})
        for i in range(1, count + 1)
    ]


def placement(**more):
    """A placement as `rehearse simulate --report` writes it: four nodes with two devices, two stages, one idle device."""
    devices = [
        {
            "name": f"node{n}/gpu{g}",
            "kind": "V100" if n == 3 else "RTX 4090",
            "rank": None if (n, g) == (3, 1) else 2 * n + g,
            "stage": None if (n, g) == (3, 1) else n // 2,
        }
        for n in range(4)
        for g in range(2)
    ]
    layers = [
        {"name": name, "stage": i // 2, "density": d, "reduction": how, "variance": v}
        for i, (name, d, how, v) in enumerate(
            [
                ("embedding", 1.0, "dense", 1e-9),
                ("L0.attention", 0.3, "sparse", 3e-7),
                ("L0.mlp", 0.05, "two_level", 1e-8),
                ("head", 0.1, "sparse", 2e-8),
            ]
        )
    ]
    value = {
        "cluster": "small",
        "nodes": [{"name": f"node{n}", "devices": devices[2 * n : 2 * n + 2]} for n in range(4)],
        "stages": ["embedding .. L0.attention", "L0.mlp .. head"],
        "layers": layers,
    }
    return {"schema_version": 1, "placement": value | more}


def given(value, name="x.json"):
    """What is read of a file with this content."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.write_text(json.dumps(value))
        return inputs.load([str(path)])


class PageText(HTMLParser):
    """Collects the text of a page, the data of its images, and every attribute that could load something."""

    def __init__(self, source):
        super().__init__()
        self.text, self.images, self.loads, self.rows, self.cell = [], [], [], [], False
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "img":
            self.images.append(attributes["src"])
        elif attributes.get("src") or attributes.get("href") or tag in ("script", "link", "iframe"):
            self.loads.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "br" and self.cell:
            self.rows[-1][-1] += " "
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.cell = True

    def handle_endtag(self, tag):
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data):
        self.text.append(data)
        if self.cell:
            self.rows[-1][-1] += data


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)
        self.page = self.tmp / "report.html"

    def file(self, name, value):
        path = self.tmp / name
        if name.endswith("l"):
            path.write_text("".join(json.dumps(v) + "\n" for v in value))
        else:
            path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    def compare(self, *results):
        return self.file("compare.json", {"schema_version": 1, "results": list(results or [result()])})

    def everything(self):
        return [
            self.compare(
                result("ddp", 1842, explain=explained(), faults=faulted()), result("1f1b", 2100, mesh={"pp": 4, "dp": 2, "tp": 1})
            ),
            self.file("predictions.json", {"schema_version": 1, "runs": [run(), run("pp", 0.9, 1.0)]}),
            self.file("placement.json", placement()),
            "simulated=" + self.file("a.json", trace()),
            "real=" + self.file("b.json", trace(length=1.2)),
            self.file("run.jsonl", metrics()),
            self.file("collective.json", CURVE),
            self.file("validate.json", VALIDATION),
            self.file("goodput.json", LONG_RUN),
            self.file("sweep.json", SWEEP),
            self.file("diff.json", DIFFERENCE),
        ]

    def run_it(self, *arguments, expect=0):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = report.main([str(a) for a in arguments])
        self.assertEqual(code, expect, err.getvalue())
        return err.getvalue()

    def fails(self, *arguments, says):
        err = self.run_it(*arguments, "-o", self.page, expect=2)
        self.assertIn(says, err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertFalse(self.page.exists())
