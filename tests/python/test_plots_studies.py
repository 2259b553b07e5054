"""The figures of experiments/table2 and experiments/figure2: what is drawn for each number, and for missing numbers."""

import itertools
import pathlib
import sys
import unittest

import matplotlib.colors
import msgspec

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from report_case import CURVE, DIFFERENCE, LONG_RUN, SWEEP, VALIDATION, given

from plots import accuracy, collective, difference, figure2, figure3, goodput, inputs, style, sweep, table1, table2


def sample(mean, ci95=0.1):
    return {"mean": mean, "std": ci95, "ci95": ci95, "values": [mean]}


def row(method, rate):
    return {"method": method, "samples_per_s": sample(rate), "gb_per_step": 0.5, "robustness": sample(0.99, None)}


TABLE = {
    "paper": {m: {"samples_per_s": [10, 1], "gb_per_step": [2, 0.1], "robustness": [0.8, 0.02]} for m in ("zero2", "adaptive")},
    "readings": {"110m": {"rows": [row("zero2", 20), row("adaptive", 30)]}, "1.3b": {"rows": [row("zero2", 5)]}},
}


def trained(name, loss, diverged=0):
    relative = None if diverged else sample(loss / 4)
    return {"variant": name, "validation_loss": loss and sample(loss), "relative": relative, "diverged": diverged, "seeds": 5}


def timed(name, seconds):
    return {"variant": name, "step_time_s": sample(seconds, 0.02)}


LAYERS, FEEDBACK = "without layer-wise sparsity", "without error feedback"
FIGURE = {
    "time": {
        "dense": {"rows": [timed("full", 0.5), timed("without placement", 1)], "bounds": []},
        "sparse": {"rows": [timed("full", 2), timed(LAYERS, 2)], "bounds": [timed("s_max", 1.6), timed("s_min", 2.5)]},
    },
    "loss": [trained("full", 4), trained(LAYERS, 4.4), trained(FEEDBACK, None, 5)],
    "paper": {"hours": {"full": [10, 1], LAYERS: [12, 1]}, "loss": {"full": [2, 0.1]}, "diverged": {FEEDBACK: [2, 5]}},
    "feedback": [
        trained("dense", 4.4),
        trained("literal, 10% kept", 4.6),
        trained("literal, 1% kept", 5.0, 2),
        trained("printed, 10% kept", None, 5),
    ],
}


class Sweeps(unittest.TestCase):
    def drawn(self, axes=SWEEP["axes"], points=SWEEP["points"]):
        (axis,) = sweep.draw(given({**SWEEP, "axes": axes, "points": points}).sweeps[0]).axes
        return axis

    def test_an_axis_of_numbers_gives_lines_without_refused_points(self):
        ddp, zero3 = self.drawn().lines
        self.assertEqual((list(ddp.get_xdata()), list(ddp.get_ydata())), ([4, 8], [0.4, 0.25]))
        self.assertEqual((list(zero3.get_xdata()), list(zero3.get_ydata())), ([8], [0.3]))

    def test_two_axes_of_words_give_a_map(self):
        axes = [SWEEP["axes"][0], {"name": "cluster.name", "values": ["a", "b"]}]
        names = {4: "a", 8: "b"}
        points = [
            {**p, "point": {"methods": p["point"]["methods"], "cluster.name": names[p["point"]["cluster.world_size"]]}}
            for p in SWEEP["points"]
        ]
        cells = [text.get_text() for text in self.drawn(axes, points).texts]
        self.assertEqual(cells, ["0.400", "0.250", "–", "0.300"])

    def test_many_lines_give_bars_of_the_best(self):
        axes = {"methods": [f"m{n}" for n in range(sweep.MOST_LINES)], "link": ["slow", "fast"], "size": [1, 2]}
        points = [
            {"key": "k", "point": dict(zip(axes, values, strict=True)), "metrics": {"step_s": 1 + n}}
            for n, values in enumerate(itertools.product(*axes.values()))
        ]
        axis = self.drawn([{"name": name, "values": values} for name, values in axes.items()], points)
        self.assertEqual([bar.get_width() for bar in axis.patches], [1 + n for n in range(sweep.MOST_BARS)])
        self.assertEqual(axis.get_yticklabels()[0].get_text(), "m0, slow, size 1")

    def test_values_alone_give_a_bar_an_input_the_widest_first(self):
        axes = [{"name": "bucket", "values": [5, 50]}, {"name": "link", "values": ["slow", "fast"]}, {"name": "tp", "values": [8]}]
        found = [(None, None, 2.0), ("bucket", 5, 2.1), ("bucket", 50, 2.3), ("link", "slow", 3.0), ("link", "fast", 1.5)]
        points = [
            {"key": str(n), "point": {a["name"]: value if a["name"] == name else None for a in axes}, "metrics": {"step_s": step}}
            for n, (name, value, step) in enumerate(found)
        ]
        points.append({"key": "refused", "point": {"bucket": None, "link": None, "tp": 8}, "refused": "memory"})
        top = {**SWEEP, "vary": "alone", "axes": axes, "points": points}
        (axis,) = sweep.draw(given(top).sweeps[0]).axes
        self.assertEqual([label.get_text() for label in axis.get_yticklabels()], ["link", "bucket"])
        self.assertEqual([(bar.get_x(), bar.get_width()) for bar in axis.patches], [(1.5, 1.5), (2.0, 2.3 - 2.0)])
        self.assertEqual([text.get_text() for text in axis.texts], ["fast", "slow", "job", "50"])

    def test_a_scaling_gives_step_times_beside_perfect_ones_and_efficiencies(self):
        axes = [{"name": "devices", "values": [8, 16, 32]}]
        points = [
            {"key": "1", "point": {"devices": 8}, "metrics": {"step_s": 4.0, "efficiency": 1.0}},
            {"key": "2", "point": {"devices": 16}, "metrics": {"step_s": 2.5, "efficiency": 0.8}},
            {"key": "3", "point": {"devices": 32}, "refused": "memory"},
        ]
        for kind, ideal in (("strong", [4.0, 2.0]), ("weak", [4.0, 4.0])):
            top = {**SWEEP, "scaling": kind, "axes": axes, "points": points}
            left, right = sweep.draw(given(top).sweeps[0]).axes
            steps, perfect = left.lines
            self.assertEqual((list(steps.get_xdata()), list(steps.get_ydata())), ([8, 16], [4.0, 2.5]))
            self.assertEqual(list(perfect.get_ydata()), ideal)
            self.assertEqual(list(right.lines[0].get_ydata()), [1.0, 0.8])
            self.assertIn(f"{kind} scaling", left.get_title(loc="left"))

    def test_a_point_has_a_value_of_every_axis_and_a_scaling_has_its_numbers(self):
        point = SWEEP["points"][0]
        with self.assertRaisesRegex(inputs.InputError, r"\$: Point 1 missing required axis `methods`"):
            self.drawn(points=[{**point, "point": {"cluster.world_size": 4}}])
        with self.assertRaisesRegex(inputs.InputError, r"\$: Point 1 of a scaling missing required `devices` >= 1"):
            given({**SWEEP, "scaling": "weak"})
        with self.assertRaisesRegex(inputs.InputError, r"\$.points\[0\].metrics.step_s: Expected `float` >= 0.0"):
            self.drawn(points=[{**point, "metrics": {"step_s": -1}}])
        with self.assertRaisesRegex(inputs.InputError, r"\$.by: Expected `str` matching regex"):
            given({**SWEEP, "by": "beauty"})


class Differences(unittest.TestCase):
    def test_parts_that_differ_and_both_paths(self):
        bars, paths = difference.draw(given(DIFFERENCE).differences[0]).axes
        self.assertEqual(
            [label.get_text() for label in bars.get_yticklabels()], [f"communication: dp all-{m}" for m in ("reduce", "gather")]
        )
        self.assertEqual([round(bar.get_width()) for bar in bars.patches], [-200, 300])  # ms
        self.assertEqual([(round(bar.get_x()), round(bar.get_width())) for bar in paths.patches], [(0, 100), (100, 200), (0, 400)])
        self.assertEqual([text.get_text() for text in paths.get_legend().get_texts()], ["forward", "communication"])

    def test_an_unknown_part_is_named(self):
        wrong = {**DIFFERENCE, "parts": [{**DIFFERENCE["parts"][0], "kind": "magic"}]}
        with self.assertRaisesRegex(inputs.InputError, r"diff.json: \$.parts\[0\].kind: Expected `str` matching regex '\^\(compute\|"):
            given(wrong, "diff.json")


class LongRuns(unittest.TestCase):
    def read(self, **more):
        return given({**LONG_RUN, **more}, "goodput.json").long_runs

    def test_a_run_shows_its_parts_its_seeds_and_both_formulas(self):
        (one,) = self.read()
        self.assertEqual(one.lost_percent("rework"), 0.2)
        self.assertEqual((one.checkpoint.every_s, one.intervals.young_s, one.intervals.daly_s), (60, 50, 45))
        where, seeds, intervals = goodput.draw([one]).axes
        self.assertAlmostEqual(sum(bar.get_width() for bar in where.patches), 100 * 21 / 1000)
        self.assertEqual([label.get_text() for label in where.get_yticklabels()], list(goodput.LOSSES))
        self.assertEqual(list(seeds.lines[0].get_xdata()), [88, 92])
        self.assertEqual(list(intervals.lines[0].get_xdata()), [0.5, 1, 2])
        self.assertEqual([text.get_text() for text in intervals.get_legend().get_texts()], ["restart, sharded", "Young", "Daly"])

    def test_a_comparison_has_a_row_for_each_run(self):
        whole = {"schema_version": 1, "long_runs": [LONG_RUN, {**LONG_RUN, "label": "spare, peer"}]}
        runs = given(whole).long_runs
        self.assertEqual([run.name for run in runs], ["restart, sharded", "spare, peer"])
        where = goodput.draw(runs).axes[0]
        self.assertEqual(len({bar.get_facecolor() for bar in where.patches}), len(goodput.LOSSES))
        self.assertEqual([label.get_text() for label in where.get_yticklabels()], ["restart, sharded", "spare, peer"])

    def test_nothing_fails_and_there_is_no_curve(self):
        (one,) = self.read(intervals={"young_s": None, "daly_s": None, "curve": []}, checkpoint={"kind": "full", "every_s": 0})
        self.assertEqual(len(goodput.draw([one]).axes[2].lines), 0)

    def test_a_missing_part_is_named(self):
        with self.assertRaisesRegex(inputs.InputError, r"goodput.json: \$.lost_s: Object missing required field `detection`"):
            self.read(lost_s={})


class Measurements(unittest.TestCase):
    def test_a_collective_has_a_curve_for_each_way_and_one_for_the_choice(self):
        figure = collective.draw(given(CURVE).collectives[0])
        time, bus = figure.axes
        self.assertEqual([line.get_label() for line in time.lines], ["ring LL", "ring Simple", "chosen"])
        self.assertEqual([list(line.get_ydata()) for line in time.lines], [[10, 10], [20, 20], [10, 10]])  # µs
        self.assertEqual([list(line.get_xdata()) for line in time.lines], [[1024, 2048]] * 3)
        # Twice the seconds, half the bandwidth.
        fast, slow, chosen = (list(line.get_ydata()) for line in bus.lines)
        self.assertEqual(fast, chosen)
        self.assertEqual([2 * y for y in slow], fast)
        with self.assertRaisesRegex(inputs.InputError, r"\$.sizes: Expected `array` of length >= 1"):
            given({**CURVE, "sizes": []})

    def test_a_validation_has_a_point_for_each_predicted_row_and_a_bar_for_each_set(self):
        (one,) = given(VALIDATION).validations
        self.assertEqual(one.points, [(1.0, 1.1, False), (2.0, 2.0, True)])
        scatter, bars = accuracy.draw([one]).axes
        self.assertEqual([len(points.get_offsets()) for points in scatter.collections[1:]], [1, 1])
        (bar,) = bars.patches
        self.assertAlmostEqual(bar.get_width(), 10)
        self.assertEqual(bar.get_facecolor(), matplotlib.colors.to_rgba(style.ORANGE))  # above its goal
        wrong = {**VALIDATION["sets"][0], "rows": [{"use": "check", "predicted_s": 1.0}]}
        with self.assertRaisesRegex(inputs.InputError, r"\$.sets\[0\].rows\[0\]: .* missing required field `measured_s`"):
            given({**VALIDATION, "sets": [wrong]})
        # Without check rows there is no bar.
        none = msgspec.structs.replace(one, check=accuracy.Check(rows=0, mean_abs_error=None))
        self.assertEqual(len(accuracy.draw([none]).axes[1].patches), 0)


class Table2(unittest.TestCase):
    def test_series(self):
        [printed, first, second] = table2.series(TABLE, "samples_per_s")
        self.assertEqual(printed[3], {"zero2": [10, 1], "adaptive": [10, 1]})
        self.assertEqual((first[0], set(first[3])), ("110m", {"zero2", "adaptive"}))
        self.assertEqual(set(second[3]), {"zero2"})  # a method that cannot run has no mark

    def test_values(self):
        self.assertEqual(table2.middle_and_spread(sample(2, 0.5)), (2, 0.5))
        self.assertEqual(table2.middle_and_spread(sample(2, None)), (2, 0))
        self.assertEqual(table2.middle_and_spread([4.8, 0.05]), (4.8, 0.05))
        self.assertEqual(table2.middle_and_spread(0.5), (0.5, 0))

    def test_same_bytes(self):
        self.assertEqual(table2.draw(TABLE), table2.draw(TABLE))


class Figure2(unittest.TestCase):
    def test_same_bytes(self):
        self.assertEqual(figure2.draw(FIGURE), figure2.draw(FIGURE))

    def test_relative_to_full(self):
        self.assertEqual(figure2.relative(sample(3, 0.5), sample(2)), (1.5, 0.25))
        self.assertEqual(figure2.relative(sample(3, None), sample(2)), (1.5, 0))

    def marks(self, panel):
        """{label: x of its first mark}, and the texts in the panel."""
        _, axis = style.figure(4, 3)
        panel(axis, FIGURE, figure2.variants(FIGURE))
        handles, labels = axis.get_legend_handles_labels()
        lines = [handle if hasattr(handle, "get_xdata") else handle.lines[0] for handle in handles]
        drawn = [tuple(container.lines[0].get_xdata()) for container in axis.containers]
        return dict(zip(labels, [list(line.get_xdata()) for line in lines], strict=True)), drawn, [t.get_text() for t in axis.texts]

    def test_time(self):
        labels, drawn, _ = self.marks(figure2.time)
        self.assertEqual(set(labels), {"simulated, dense", "simulated, sparse", "... under any variances", "paper"})
        self.assertEqual(labels["... under any variances"], [1.25, 0.8])  # uniform against any layer-wise
        self.assertEqual(drawn, [(1.0,), (2.0,), (1.0,), (1.0,), (1.0,), (1.2,)])  # two marks of each reading, and two of the paper

    def test_loss(self):
        labels, drawn, words = self.marks(figure2.loss)
        self.assertEqual(set(labels), {"trained, gpt-tiny", "paper"})
        self.assertEqual(drawn, [(1.0,), (1.1,), (1.0,)])  # a diverged variant has no mark
        self.assertEqual(words, ["diverged: 5 of 5; paper: 2 of 5", "the same mathematics: not trained"])

    def test_forms_that_diverged_have_no_mark(self):
        _, axis = style.figure(4, 3)
        figure2.forms(axis, FIGURE["feedback"])
        self.assertEqual(set(axis.get_legend_handles_labels()[1]), {"dense", "literal"})
        self.assertEqual([tick.get_text() for tick in axis.get_xticklabels()], ["1", "10"])


RACE = {
    "curves": [
        {"variant": "megatron", "steps": [10, 20], "losses": [[5, 4], [5, 4.2]]},
        {"variant": "topk-sync", "steps": [10, 20], "losses": [[6, 5], [6, 5.4]]},
    ],
    "target": 5.4,
    "clocks": {
        "slow": [{"variant": "megatron", "step_time_s": sample(0.5)}, {"variant": "topk-sync", "step_time_s": sample(0.25)}],
        "fast": [{"variant": "megatron", "step_time_s": sample(0.05)}, {"variant": "topk-sync", "step_time_s": sample(0.1)}],
    },
}


def measured(method, exposed, seen, **slowdown):
    one = {"exposed_s": exposed, "step_time_s": sample(1.0)}
    return {
        "method": method,
        "clusters": {"ideal": one | {"exposed_s": exposed / 2}, "paper": one},
        "slowdown": slowdown,
        "goodput": {"restart": sample(0.8), "spare": sample(0.9)},
        "seen": {"sum_of": seen},
    }


WORDS = {
    "observer": [{"sum_of": 1, "read_by_it": 1.0}, {"sum_of": 4, "read_by_it": 0.4}],
    "rows": [measured("ddp", 0.2, 1, link=2.0), measured("fedavg", 0.6, 31, link=1.0)],
    "paper": {name: {"name": name.upper(), "privacy": "None", "communication": "High", "robustness": "Low"} for name in ("ddp", "fedavg")},
}


class Table1(unittest.TestCase):
    def test_same_bytes(self):
        self.assertEqual(table1.draw(WORDS), table1.draw(WORDS))

    def test_panels_have_what_was_measured(self):
        privacy, communication, robustness = ([values for _, values in series] for *_, series in table1.panels(WORDS))
        self.assertEqual(privacy, [[100, 40]])  # the sum of 31 counts as the largest that was trained
        self.assertEqual(communication, [[10, 30], [20, 60]])
        self.assertEqual([[round(value) for value in values] for values in robustness], [[10, 10], [50, 0]])


class Figure3(unittest.TestCase):
    def test_same_bytes(self):
        self.assertEqual(figure3.draw(RACE), figure3.draw(RACE))

    def test_a_step_of_each_method_takes_its_own_time(self):
        for name, ends in {"slow": (10, 5), "fast": (1, 2)}.items():
            _, axis = style.figure(4, 3)
            figure3.panel(axis, name, RACE["clocks"][name], RACE["curves"], RACE["target"])
            lines = {line.get_label(): line for line in axis.lines}
            for variant, end, loss in zip(("megatron", "topk-sync"), ends, (4.1, 5.2), strict=True):
                self.assertAlmostEqual(lines[variant].get_xdata()[-1], end)
                self.assertAlmostEqual(lines[variant].get_ydata()[-1], loss)
        self.assertEqual(len(axis.collections), 2)  # bands

    def test_one_seed_has_no_band(self):
        mean, half = figure3.mean_and_half([[5, 4]])
        self.assertEqual((list(mean), list(half)), ([5, 4], [0, 0]))
