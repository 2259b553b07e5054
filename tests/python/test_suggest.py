"""search/suggest.py on made-up sweeps: what it asks for, where it ends, and how near it comes to a frontier that is known."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "search"))
import suggest  # noqa: E402

AXES = [{"values": 12, "ordered": True}, {"values": 8, "ordered": False}, {"values": 6, "ordered": True}]
POINTS = [[a, b, c] for a in range(12) for b in range(8) for c in range(6) if (a + b) % 5 != 4]  # the sweep excludes some


def figures(point):
    """Fast or cheap by the first axis; the others have one best value. A corner cannot run."""
    a, b, c = point
    if b == 7 or a + c > 14:
        return None
    waste = 1 + 0.3 * abs(b - 3) + 0.2 * c
    return [waste * 2**-a, waste * 1.1**a]


def search(budget, points=POINTS, most=(False, False)):
    """The places that a whole search asks for, in its order."""
    known = []
    while True:
        state = {"axes": AXES, "points": points, "most": list(most), "known": known, "budget": budget}
        asked = suggest.suggest(state)
        if not asked:
            return [one["point"] for one in known]
        signed = {at: figures(points[at]) for at in asked}
        for at, found in signed.items():
            values = found and [-v if m else v for v, m in zip(found, most, strict=True)]
            known.append({"point": at, "figures": values})


def frontier(places):
    found = {at: figures(POINTS[at]) for at in places if figures(POINTS[at])}
    return {
        at for at, mine in found.items() if not any(all(x <= y for x, y in zip(o, mine, strict=True)) and o != mine for o in found.values())
    }


class Suggest(unittest.TestCase):
    def test_no_point_is_asked_for_twice_and_the_budget_holds(self):
        for budget in (1, 7, 40):
            places = search(budget)
            self.assertEqual(len(places), budget)
            self.assertEqual(len(set(places)), budget)

    def test_a_large_budget_ends_with_all_points(self):
        few = [point for point in POINTS if point[0] < 3]
        self.assertEqual(sorted(search(1000, few)), list(range(len(few))))

    def test_equal_figures_lead_to_equal_points(self):
        self.assertEqual(search(40), search(40))

    def test_a_fifth_of_the_points_has_most_of_the_frontier(self):
        whole = frontier(range(len(POINTS)))
        for most in (False, True):  # the same figures, or their negatives of which the largest is the best
            found = frontier(search(len(POINTS) // 5, most=(most, most))) & whole
            self.assertGreater(len(found), 0.6 * len(whole), f"{len(found)} of {len(whole)}")
        drawn = suggest.drawn({"points": POINTS}, {}, [], len(POINTS) // 5)
        self.assertLess(len(frontier(drawn) & whole), 0.4 * len(whole), "points that are drawn have less of it")

    def test_points_near_the_best_come_first(self):
        near = suggest.drawn({"points": POINTS}, {0: [1]}, [tuple(POINTS[0])], 5)
        self.assertTrue(all(suggest.differ_by_one(POINTS[at], POINTS[0]) for at in near))

    def test_one_figure_is_enough(self):
        known, best = [], None
        while asked := suggest.suggest({"axes": AXES, "points": POINTS, "most": [False], "known": known, "budget": 100}):
            known += [{"point": at, "figures": figures(POINTS[at]) and figures(POINTS[at])[:1]} for at in asked]
            best = min(one["figures"][0] for one in known if one["figures"])
        self.assertEqual(best, min(figures(point)[0] for point in POINTS if figures(point)))

    def test_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            state = pathlib.Path(folder, "state.json")
            state.write_text(json.dumps({"axes": AXES, "points": POINTS, "most": [False, False], "known": [], "budget": 4}))
            command = [sys.executable, ROOT / "search/suggest.py", state]
            said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
            self.assertEqual(len(json.loads(said)), 4)
            without = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ""}, timeout=300)
            self.assertEqual(without.returncode, 2)
            self.assertRegex(without.stderr, r"^search/suggest.py: needs the Python package optuna .*\n$")
