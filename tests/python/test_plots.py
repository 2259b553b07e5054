"""plots/report.py on small inputs: what the report shows, what it leaves out, and every error
message."""

import base64
import copy
import warnings
from xml.etree import ElementTree

import pytest
from report_case import (
    CURVE,
    DIFFERENCE,
    LONG_RUN,
    SWEEP,
    VALIDATION,
    PageText,
    ReportTest,
    event,
    explained,
    given,
    placement,
    result,
    run,
)

from plots import explain, report, style


class Reports(ReportTest):
    @pytest.mark.long
    def test_equal_input_gives_equal_bytes(self):
        for page in ("once.html", "again.html"):
            self.run_it(*self.everything(), "-o", self.tmp / page)
        self.assertEqual((self.tmp / "once.html").read_bytes(), (self.tmp / "again.html").read_bytes())

    def test_a_full_report_is_self_contained_and_says_everything(self):
        files, figures = self.everything(), self.tmp / "figures"
        self.run_it(*files, "-o", self.page, "--figures", figures)
        self.assertEqual(
            sorted(p.name for p in figures.iterdir()),
            sorted(f"{n}.{f}" for n in report.FIGURES for f in ("png", "svg")),
        )
        parsed = PageText(self.page.read_text())
        self.assertEqual(parsed.loads, [])
        self.assertNotRegex(self.page.read_text(), r"url\(|@import|https?://")
        self.assertEqual(len(parsed.images), len(report.FIGURES))
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
            "Where the step goes",
            "8.95 → 7.00",
            "abcd1234",
        ):
            self.assertIn(words, text)

    def test_an_explanation_shows_what_saves_something(self):
        figure = explain.draw(given(result(explain=explained())).results[0].explain)
        stacks, gains, used = figure.axes
        self.assertAlmostEqual(sum(bar.get_height() for bar in stacks.patches), 1000)  # ms, two stacks
        self.assertEqual([text.get_text() for text in gains.get_yticklabels()], ["V100: matrix rate"])
        self.assertEqual([text.get_text() for text in used.get_yticklabels()], ["rank 6 and 1 equal", "a0>b0"])
        wrong = explained(parts=[{"kind": "magic", "name": "x", "path_s": 1, "latency_s": 0, "mean_rank_s": 1}])
        self.fails(self.compare(result(explain=wrong)), says="explain.parts[0].kind: Expected `str` matching regex '^(compute|kernel|")
        self.fails(self.compare(result(explain=explained(step_time_s="long"))), says="explain.step_time_s: Expected `float`, got `str`")

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
        self.assertEqual(fast[2], "2,000 1,024,000")
        self.assertEqual(fast[3:8], ["31.0%", "12.5%", "20.0 ms", "4.84 GB", "9.66 GB"])
        self.assertIn("uncalibrated", slow[1])
        self.assertIn("–", slow[3])

    def test_it_says_of_what_the_results_are(self):
        of = dict(model="gpt2-124m", cluster="rack:4", global_batch=192, seq_len=1024, precision="bf16")
        made = dict(command="rehearse compare 'my job.toml'", version="1.2.3")
        energy = {"per_step": 31250.0, "per_rank": 3906.25, "idle_unknown": []}
        cost = {"per_billion_tokens": 3.234, "currency": "USD"}
        both = {"schema_version": 1, "results": [result("a", energy_j=energy, cost=cost, **of), result("b", **of)]}
        self.run_it(self.file("compare.json", both | made), "-o", self.page)
        parsed = PageText(self.page.read_text())
        text = " ".join(parsed.text)
        for words in (
            "gpt2-124m, 192 samples of 1,024 tokens a step, bf16, on rack:4: 2 simulated methods",
            "rehearse compare 'my job.toml'",
            "rehearse 1.2.3",
        ):
            self.assertIn(words, text)
        self.assertEqual({row[0][0]: row[8] for row in parsed.rows[1:]}, {"a": "31.2 kJ 3.23 USD", "b": "–"})

    def test_what_is_missing_is_named_and_left_out(self):
        self.run_it(self.compare(), "-o", self.page)
        text = " ".join(PageText(self.page.read_text()).text)
        self.assertIn(
            "Left out, because no input for it was given: where the step goes",
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

    def test_a_narrow_figure_is_as_wide_as_a_column(self):
        for options, points in ((["--narrow"], "316.8pt"), ([], "900pt")):
            self.run_it(self.compare(), "-o", self.tmp / "m.svg", *options)
            self.assertEqual(ElementTree.parse(self.tmp / "m.svg").getroot().get("width"), points)
        self.fails(self.compare(), "--narrow", says="--narrow: a page has each figure wide and narrow")

    def test_long_names_and_dollars(self):
        name = "megatron@pp=2,tp=2,micro_batches=8,zero=1,recompute=true for $100, not $\\foo$"
        path = self.file("long.json", {"schema_version": 1, "results": [result(method=name), result(method="ddp")], "cannot_run": []})
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that of a figure that has no room for its panels
            for options in (["--narrow"], []):
                self.run_it(path, "-o", self.tmp / "long.svg", *options)
        texts = (self.tmp / "long.svg").read_text()
        self.assertIn("for $100, not $\\foo$", texts)
        self.assertEqual([style.Powers()(value) for value in (1e-3, 1, 1e12)], ["10⁻³", "10⁰", "10¹²"])

    def test_a_single_simulation_is_a_comparison_of_one(self):
        self.run_it(self.file("one.json", result()), "-o", self.page)
        self.assertIn("step time, ddp", self.page.read_text())


class Complaints(ReportTest):
    def test_files(self):
        self.fails(self.tmp / "none.json", says="none.json: No such file or directory")
        self.fails(self.file("empty.json", ""), says="empty.json: empty file")
        self.fails(self.file("broken.json", '{"a": '), says="broken.json:1:7: not JSON")
        self.fails(self.file("other.json", {"a": 1}), says="neither a trace (traceEvents), a plan (placement)")
        self.fails(self.file("text.json", '"a"'), says="text.json: $: Expected `object`, got `str`")
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
            (("schema_version",), 2, "compare.json: $.results[1].schema_version: Expected `int` <= 1"),
            (("schema_version",), KeyError, "compare.json: $.results[1]: Object missing required field `schema_version`"),
            (("step_time_s", "mean"), None, "$.results[1].step_time_s.mean: Expected `float`, got `null`"),
            (("step_time_s",), 3, "$.results[1].step_time_s: Expected `object`, got `int`"),
            (("step_time_s", "values"), [1, "2"], "$.results[1].step_time_s.values[1]: Expected `float`, got `str`"),
            (("samples_per_s",), "fast", "$.results[1].samples_per_s: Expected `float`, got `str`"),
            (("samples_per_s",), True, "$.results[1].samples_per_s: Expected `float`, got `bool`"),
            (("samples_per_s",), -1, "$.results[1].samples_per_s: Expected `float` >= 0.0"),
            (("bubble_fraction",), float("nan"), "$.results[1].bubble_fraction: Expected `float` >= 0.0"),
            (("bubble_fraction",), float("inf"), "$.results[1].bubble_fraction: Expected `float` <= 1.79"),
            (("robustness",), float("nan"), "$.results[1].robustness: Expected `float` >= -1.79"),
            (("bytes_sent_per_rank", "mean"), KeyError, "$.results[1].bytes_sent_per_rank: Object missing required field `mean`"),
            (("peak_memory_bytes",), [1], "$.results[1].peak_memory_bytes: Expected `object`, got `array`"),
            (("world_size",), 2.5, "$.results[1].world_size: Expected `int`, got `float`"),
            (("world_size",), True, "$.results[1].world_size: Expected `int`, got `bool`"),
            (("calibrated",), "no", "$.results[1].calibrated: Expected `bool`, got `str`"),
            (("warnings",), "w", "$.results[1].warnings: Expected `array`, got `str`"),
            (("method",), 7, "$.results[1].method: Expected `str`, got `int`"),
        ):
            with self.subTest(path=path, value=value):
                self.fails(broken(path, value), says=says)

    def test_every_kind_has_a_version_and_may_have_keys_of_newer_ones(self):
        predictions = {"schema_version": 1, "runs": [run()]}
        for value in (result(), predictions, placement(), CURVE, VALIDATION, LONG_RUN, SWEEP, DIFFERENCE):
            with self.subTest(keys=list(value)):
                given(value | {"of_tomorrow": [float("nan")]})
                self.fails(self.file("x.json", value | {"schema_version": 2}), says="x.json: $.schema_version: Expected `int` <= 1")

    def test_predictions_traces_and_metrics(self):
        self.fails(
            self.file("p.json", {"schema_version": 3, "runs": []}),
            says="p.json: $.schema_version: Expected `int` <= 1",
        )
        self.fails(
            self.file("p.json", {"schema_version": 1, "runs": [{"name": "x"}]}),
            says="p.json: $.runs[0]: Object missing required field `world_size`",
        )
        self.fails(
            self.file("p.json", {"schema_version": 1, "runs": [run(measured=0)]}),
            says="$.runs[0].measured_step_time_s.median: Expected `float` > 0.0",
        )
        self.fails(self.file("t.json", {"traceEvents": []}), says="no complete events (ph X)")
        self.fails(
            self.file("t.json", {"traceEvents": [{"ph": "X", "pid": "a"}]}),
            says="t.json: $.traceEvents[0].pid: Expected `int`, got `str`",
        )
        self.fails(
            self.file("t.json", {"traceEvents": [{"ph": "i"}, event(0, 0, "x", "send", 0, -1)]}), says="$.traceEvents[1].dur: Expected"
        )
        self.fails(self.file("m.jsonl", [{"event": "start"}]), says="no line with a step and a loss")
        self.fails(
            self.file("m.jsonl", [{"step": 1.5, "loss": 2.0}]),
            says="m.jsonl:1: $.step: Expected `int`, got `float`",
        )
        (self.tmp / "n.jsonl").write_text('{"step": 1, "loss": 2}\n{"step": 2, "lo\n{"step": 3, "loss": 2}\n')
        self.fails(self.tmp / "n.jsonl", says="n.jsonl:2: not JSON")
