"""The measured step time of `make demo`: the median without the first steps, which a short load on the machine does not change."""

import importlib.machinery
import importlib.util
import json
import pathlib
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_demo():
    loader = importlib.machinery.SourceFileLoader("demo", str(ROOT / "tools/demo"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("demo", loader))
    loader.exec_module(module)
    return module


class Measured(unittest.TestCase):
    def test_is_the_median_after_the_first_steps(self):
        demo = load_demo()
        quiet = [0.40, 0.41, 0.42, 0.41, 0.40]
        busy = [0.80, 0.83]
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder, "ddp")
            run.mkdir()
            rows = [{"event": "start"}]
            rows += [{"step": i, "loss": 5.0, "step_time_s": 9.0} for i in range(demo.WARM_UP)]
            rows += [{"step": 9, "loss": 5.0, "step_time_s": t} for t in quiet + busy]
            rows += [{"step": 9, "validation_loss": 5.0}]
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            with mock.patch.object(demo, "OUT", pathlib.Path(folder)):
                found = demo.measured("ddp")
        self.assertEqual(found["median"], 0.41)
        self.assertAlmostEqual(found["deviation"], 0.01)
        self.assertEqual(found["values"], quiet + busy)
