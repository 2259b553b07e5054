"""plots/: the numbers in the figures."""

import pathlib
import tempfile
import unittest

from report_case import event, given, result, run, trace

from plots import inputs, loss, methods, page, prediction, style, timeline


class Numbers(unittest.TestCase):
    def test_mesh(self):
        one = given(result(mesh={"pp": 4, "dp": 8, "tp": 1}))
        self.assertEqual(one.results[0].mesh_text, "pp 4 × dp 8")

    def test_labels_are_unique(self):
        meshes = [("a", {"dp": 2}), ("b", {"dp": 2}), ("a", {"pp": 2}), ("a", {"pp": 2})]
        some = given({"schema_version": 1, "results": [result(name, mesh=mesh) for name, mesh in meshes]})
        self.assertEqual(methods.labels(some.results), ["a (dp 2)", "b", "a (pp 2) #1", "a (pp 2) #2"])

    def test_the_throughput_interval_follows_from_the_step_time(self):
        drawn = methods.draw(given(result(samples=1000)).results)
        bars = next(c for c in drawn.axes[0].containers if hasattr(c, "has_xerr"))
        (start, _), (end, _) = bars.lines[2][0].get_segments()[0]
        self.assertAlmostEqual((end - start) / 2, 1000 * 0.005 / 0.512)
        style.plt.close(drawn)

    def test_prediction_error(self):
        runs = given(
            {
                "schema_version": 1,
                "runs": [run(predicted=0.9, measured=1.0), run() | {"measured_step_time_s": None}],
            }
        ).runs
        self.assertAlmostEqual(prediction.error(runs[0]), -0.1)
        self.assertIsNone(prediction.error(runs[1]))
        style.plt.close(prediction.draw(runs))

    def test_one_step_of_a_trace(self):
        one = given(trace()).traces[0]
        self.assertEqual(timeline.common_step([one]), 1)
        events, begin, length = timeline.one_step(one, 1)
        self.assertEqual(len(events), 6)
        self.assertAlmostEqual(begin, 101)
        self.assertAlmostEqual(length, 0.9)
        self.assertEqual([timeline.kind_of(e) for e in events[:3]], ["forward", "backward", "collective"])
        self.assertEqual([e.args.micro_batch for e in events[:3]], [0, 1, None])
        self.assertIsNone(timeline.common_step(given({"traceEvents": [event(0, 0, "x", "send", 0, 1)]}).traces))

    def test_many_ranks_are_thinned_but_every_role_is_shown(self):
        value = trace(ranks=64)
        for item in value["traceEvents"]:
            if item.get("name") == "process_name":
                rank = item["pid"]
                item["args"]["name"] = f"rank {rank} (stage{rank % 4})"
        one = given(value).traces[0]
        rows, ranks, shown = timeline._rows(one, one.events)
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
        self.assertEqual([r.loss for r in rows], [2.0, None])

    def test_numbers_read_well(self):
        self.assertEqual([style.number(v) for v in (2268.4, 0.042134, 12, 0)], ["2,268", "0.0421", "12.0", "0"])
        self.assertEqual(style.time_unit(0.436), (1e3, "ms"))
        self.assertEqual(style.time_unit(1.5), (1.0, "s"))
        self.assertEqual(style.byte_unit(4.84e9), (1e9, "GB"))
        self.assertEqual(style.byte_unit(9 * 2**30), (1e9, "GB"))  # as in the command's output
        self.assertEqual(style.energy_unit(31.2e3), (1e3, "kJ"))
        self.assertEqual(style.percent(-1e-9), "0.0%")
        self.assertEqual([style.percent(v, sign="+") for v in (-1e-9, 0.05, -0.05)], ["0.0%", "+5.0%", "−5.0%"])
        self.assertEqual(page.in_unit(0.436, 0.012), ("436", "12", "ms"))
