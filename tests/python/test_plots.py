"""plots/report.py on small inputs: what the report shows, what it leaves out, and every complaint's
message."""

import base64
import contextlib
import copy
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest
from html.parser import HTMLParser
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from plots import inputs, loss, methods, page, prediction, report, style, timeline  # noqa: E402


def result(method="ddp", samples=1000.0, **more):
    """What `rehearse simulate --json` writes."""
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


def run(name="ddp", predicted=1.0, measured=1.1, **more):
    value = {
        "name": name,
        "world_size": 2,
        "predicted_step_time_s": predicted,
        "predicted_ci95": 0.01,
        "oversubscribed": False,
        "prediction_hash": "0123456789abcdef",
        "measured_step_time_s": {"mean": measured, "std": 0.02, "values": [measured] * 3},
    }
    return value | more


def event(rank, lane, name, kind, start, duration, step=None):
    value = {
        "ph": "X",
        "pid": rank,
        "tid": lane,
        "name": name,
        "cat": kind,
        "ts": start * 1e6,
        "dur": duration * 1e6,
    }
    return value if step is None else value | {"args": {"step": step}}


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
        events += [
            {"ph": "M", "pid": rank, "tid": t, "name": "thread_name", "args": {"name": n}}
            for t, n in enumerate(("compute", "dp"))
        ]
        for step in range(steps):
            events += [
                event(
                    rank,
                    0,
                    "forward attention0 mb 0",
                    "compute",
                    100 + step * length,
                    0.3 * length,
                    step,
                ),
                event(
                    rank,
                    0,
                    "backward attention0 mb 1",
                    "compute",
                    100 + (step + 0.3) * length,
                    0.4 * length,
                    step,
                ),
                event(
                    rank,
                    1,
                    "all_reduce bucket0",
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
        | ({"val_loss": 9.1 - 0.05 * i} if i % 10 == 0 else {})
        for i in range(1, count + 1)
    ]


class PageText(HTMLParser):
    """The text of a page, its images' data and every attribute that could load something."""

    def __init__(self, source):
        super().__init__()
        self.text, self.images, self.loads, self.rows = [], [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "img":
            self.images.append(attributes["src"])
        elif attributes.get("src") or attributes.get("href") or tag in ("script", "link", "iframe"):
            self.loads.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data):
        self.text.append(data)
        if self.rows and self.rows[-1]:
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
        return self.file(
            "compare.json", {"schema_version": 1, "results": list(results or [result()])}
        )

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


class Reports(ReportTest):
    def everything(self):
        return [
            self.compare(
                result("ddp", 1842), result("1f1b", 2100, mesh={"pp": 4, "dp": 2, "tp": 1})
            ),
            self.file(
                "predictions.json", {"schema_version": 1, "runs": [run(), run("pp", 0.9, 1.0)]}
            ),
            "simulated=" + self.file("a.json", trace()),
            "real=" + self.file("b.json", trace(length=1.2)),
            self.file("run.jsonl", metrics()),
        ]

    def test_a_full_report_is_self_contained_repeatable_and_says_everything(self):
        files, figures = self.everything(), self.tmp / "figures"
        self.run_it(*files, "-o", self.page)
        self.run_it(*files, "-o", self.tmp / "again.html", "--figures", figures)
        self.assertEqual(self.page.read_bytes(), (self.tmp / "again.html").read_bytes())
        self.assertEqual(
            sorted(p.name for p in figures.iterdir()),
            sorted(f"{n}.{f}" for n in report.FIGURES for f in ("png", "svg")),
        )
        parsed = PageText(self.page.read_text())
        self.assertEqual(parsed.loads, [])
        self.assertNotRegex(self.page.read_text(), r"url\(|@import|https?://")
        self.assertEqual(len(parsed.images), 4)
        for image in parsed.images:
            kind, content = image.split(",", 1)
            self.assertEqual(kind, "data:image/svg+xml;base64")
            self.assertTrue(ElementTree.fromstring(base64.b64decode(content)).tag.endswith("svg"))
        text = " ".join(parsed.text)
        self.assertNotIn("Left out", text)
        for words in (
            "Methods side by side",
            "Predicted against measured",
            "Timeline of one step",
            "8.95 → 7.00",
            "abcd1234",
        ):
            self.assertIn(words, text)

    def test_the_methods_table_is_sorted_and_converted(self):
        self.run_it(
            self.compare(result("slow", 500, calibrated=False, mfu=None), result("fast", 2000)),
            "-o",
            self.page,
        )
        rows = PageText(self.page.read_text()).rows
        self.assertEqual([row[0][:4] for row in rows[1:]], ["fast", "slow"])
        fast, slow = rows[1], rows[2]
        self.assertEqual(fast[1], "256 ± 5.0 ms")
        self.assertEqual(fast[2], "2,000")
        self.assertEqual(fast[4:9], ["31.0%", "12.5%", "20.0 ms", "4.84 GB", "9.00 GiB"])
        self.assertIn("uncalibrated", slow[1])
        self.assertIn("–", slow[4])

    def test_what_is_missing_is_named_and_left_out(self):
        self.run_it(self.compare(), "-o", self.page)
        text = " ".join(PageText(self.page.read_text()).text)
        self.assertIn(
            "Left out, because no input for it was given: predicted against measured step time",
            text,
        )
        self.assertIn("the loss curve", text)
        self.assertNotIn("methods side by side (JSON", text)

    def test_warnings_appear_once_with_their_methods(self):
        warning = "no measured <efficiency>"
        self.run_it(
            self.compare(result("a", warnings=[warning]), result("b", warnings=[warning])),
            "-o",
            self.page,
        )
        content = self.page.read_text()
        self.assertEqual(content.count("no measured &lt;efficiency&gt;"), 1)
        self.assertIn("(a, b)", content)

    def test_each_figure_alone(self):
        for name, start in (("m.svg", b"<?xml"), ("m.png", b"\x89PNG"), ("m.pdf", b"%PDF")):
            self.run_it(self.compare(), "-o", self.tmp / name)
            self.assertTrue((self.tmp / name).read_bytes().startswith(start))
        self.run_it(*self.everything(), "--only", "loss", "-o", self.tmp / "loss.png")
        self.assertEqual([p.name for p in self.tmp.glob("*.partial-*")], [])

    def test_a_single_simulation_is_a_comparison_of_one(self):
        self.run_it(self.file("one.json", result()), "-o", self.page)
        self.assertIn("step time, ddp", self.page.read_text())


class Complaints(ReportTest):
    def test_files(self):
        self.fails(self.tmp / "none.json", says="none.json: No such file or directory")
        self.fails(self.file("empty.json", ""), says="empty.json: empty file")
        self.fails(self.file("broken.json", '{"a": '), says="broken.json:1:7: not JSON")
        self.fails(self.file("other.json", {"a": 1}), says="neither a comparison (results)")
        (self.tmp / "binary.json").write_bytes(b"\xff\xfe\x00")
        self.fails(self.tmp / "binary.json", says="binary.json: not text")

    def test_output(self):
        err = self.run_it(self.compare(), "-o", self.tmp / "x.gif", expect=2)
        self.assertIn("must end in .html, .svg, .png or .pdf", err)
        err = self.run_it(self.compare(), "-o", "/proc/none/x.html", expect=2)
        self.assertIn("cannot write /proc/none/x.html", err)
        err = self.run_it(self.compare(), "-o", self.tmp / "x.svg", "--only", "loss", expect=2)
        self.assertIn("--only loss: no input for the loss curve", err)
        runs = self.file("p.json", {"schema_version": 1, "runs": [run()]})
        err = self.run_it(self.compare(), runs, "-o", self.tmp / "x.svg", expect=2)
        self.assertIn("choose with --only methods or prediction", err)

    def test_every_field_of_a_result_is_checked(self):
        def broken(path, value):
            bad = copy.deepcopy(result())
            at = bad
            for key in path[:-1]:
                at = at[key]
            if value is KeyError:
                del at[path[-1]]
            else:
                at[path[-1]] = value
            return self.compare(result(), bad)

        for path, value, says in (
            (("schema_version",), 2, "results[1]: schema_version 2 is unknown, only 1 is read"),
            (("schema_version",), KeyError, "results[1]: the key 'schema_version' is missing"),
            (
                ("step_time_s", "mean"),
                None,
                "results[1].step_time_s.mean: expected a number, found null",
            ),
            (("step_time_s",), 3, "results[1].step_time_s: expected an object, found 3"),
            (
                ("samples_per_s",),
                "fast",
                'results[1].samples_per_s: expected a number, found "fast"',
            ),
            (("samples_per_s",), -1, "expected a number of at least 0, found -1"),
            (
                ("bubble_fraction",),
                float("nan"),
                "results[1].bubble_fraction: expected a number, found NaN",
            ),
            (
                ("bytes_sent_per_rank", "mean"),
                KeyError,
                "results[1].bytes_sent_per_rank: the key 'mean' is missing",
            ),
            (("peak_memory_bytes",), [1], "results[1].peak_memory_bytes: expected an object"),
            (("world_size",), 2.5, "results[1].world_size: expected a whole number, found 2.5"),
            (("calibrated",), "no", "results[1].calibrated: expected true or false"),
            (("warnings",), "w", "results[1].warnings: expected a list"),
            (("method",), 7, "results[1].method: expected a string, found 7"),
        ):
            with self.subTest(path=path, value=value):
                self.fails(broken(path, value), says=says)

    def test_predictions_traces_and_metrics(self):
        self.fails(
            self.file("p.json", {"schema_version": 3, "runs": []}),
            says="schema_version 3 is unknown",
        )
        self.fails(
            self.file("p.json", {"schema_version": 1, "runs": [{"name": "x"}]}),
            says="runs[0]: the key 'world_size' is missing",
        )
        self.fails(
            self.file("p.json", {"schema_version": 1, "runs": [run(measured=0)]}),
            says="expected a time above 0",
        )
        self.fails(self.file("t.json", {"traceEvents": []}), says="no complete events (ph X)")
        self.fails(
            self.file("t.json", {"traceEvents": [{"ph": "X", "pid": "a"}]}),
            says="traceEvents[0].ts' is missing".replace(".ts'", ": the key 'ts'"),
        )
        self.fails(
            self.file("m.jsonl", [{"event": "start"}]), says="no line with a step and a loss"
        )
        self.fails(
            self.file("m.jsonl", [{"step": 1.5, "loss": 2.0}]),
            says="m.jsonl:1.step: expected a whole number",
        )
        (self.tmp / "n.jsonl").write_text(
            '{"step": 1, "loss": 2}\n{"step": 2, "lo\n{"step": 3, "loss": 2}\n'
        )
        self.fails(self.tmp / "n.jsonl", says="n.jsonl:2: not JSON")


class Numbers(unittest.TestCase):
    """What the pictures are made of."""

    def load(self, value):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.json"
            path.write_text(json.dumps(value))
            return inputs.load([str(path)])

    def test_mesh(self):
        for mesh in (
            {"pp": 4, "dp": 8, "tp": 1},
            [["pp", 4], ["dp", 8], ["tp", 1]],
            [{"name": "pp", "size": 4}, {"axis": "dp", "size": 8}],
            "pp 4 × dp 8",
        ):
            self.assertEqual(self.load(result(mesh=mesh)).results[0]["mesh"], "pp 4 × dp 8")

    def test_labels_are_unique(self):
        given = [
            {"method": m, "mesh": mesh, "label": ""}
            for m, mesh in (("a", "dp 2"), ("b", "dp 2"), ("a", "pp 2"), ("a", "pp 2"))
        ]
        self.assertEqual(methods.labels(given), ["a (dp 2)", "b", "a (pp 2) #1", "a (pp 2) #2"])

    def test_the_throughput_interval_follows_from_the_step_time(self):
        drawn = methods.draw(self.load(result(samples=1000)).results)
        bars = [c for c in drawn.axes[0].containers if hasattr(c, "has_xerr")][0]
        (start, _), (end, _) = bars.lines[2][0].get_segments()[0]
        self.assertAlmostEqual((end - start) / 2, 1000 * 0.005 / 0.512)
        style.plt.close(drawn)

    def test_prediction_error(self):
        runs = self.load(
            {
                "schema_version": 1,
                "runs": [run(predicted=0.9, measured=1.0), run() | {"measured_step_time_s": None}],
            }
        ).runs
        self.assertAlmostEqual(prediction.error(runs[0]), -0.1)
        self.assertIsNone(prediction.error(runs[1]))
        style.plt.close(prediction.draw(runs))

    def test_one_step_of_a_trace(self):
        given = self.load(trace()).traces[0]
        self.assertEqual(timeline.common_step([given]), 1)
        events, begin, length = timeline.one_step(given, 1)
        self.assertEqual(len(events), 6)
        self.assertAlmostEqual(begin, 101)
        self.assertAlmostEqual(length, 0.9)
        self.assertEqual(
            [timeline.kind_of(e) for e in events[:3]], ["forward", "backward", "collective"]
        )
        self.assertIsNone(
            timeline.common_step(
                self.load({"traceEvents": [event(0, 0, "x", "send", 0, 1)]}).traces
            )
        )

    def test_many_ranks_are_thinned_but_every_role_is_shown(self):
        value = trace(ranks=64)
        for item in value["traceEvents"]:
            if item.get("name") == "process_name":
                rank = item["pid"]
                item["args"]["name"] = f"rank {rank} (stage{rank % 4})"
        given = self.load(value).traces[0]
        rows, ranks, shown = timeline._rows(given, given.events)
        self.assertEqual(ranks, 64)
        self.assertEqual(len(rows), 2 * shown)
        self.assertLessEqual(len(rows), timeline.ROWS)
        self.assertEqual({rank % 4 for rank, _ in rows}, {0, 1, 2, 3})

    def test_smoothing_keeps_a_straight_line(self):
        line = [9 - 0.1 * i for i in range(60)]
        for smoothed, value in zip(loss.smooth(line), line, strict=True):
            self.assertAlmostEqual(smoothed, value)

    def test_a_diverged_loss_is_a_gap_and_a_half_written_last_line_is_ignored(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "m.jsonl"
            path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n{"step": 3, "lo')
            rows = inputs.load([str(path)]).losses[0].rows
        self.assertEqual([r["loss"] for r in rows], [2.0, None])

    def test_numbers_read_well(self):
        self.assertEqual(
            [style.number(v) for v in (2268.4, 0.042134, 12, 0)], ["2,268", "0.0421", "12.0", "0"]
        )
        self.assertEqual(style.time_unit(0.436), (1e3, "ms"))
        self.assertEqual(style.time_unit(1.5), (1.0, "s"))
        self.assertEqual(style.byte_unit(4.84e9), (1e9, "GB"))
        self.assertEqual(style.byte_unit(9 * 2**30, binary=True), (float(2**30), "GiB"))
        self.assertEqual(re.sub("<.*?>", "", page.time_cell(0.436, 0.012)), "436 ± 12 ms")


if __name__ == "__main__":
    unittest.main()
