"""Every job of experiments/ still gives the expected output beside it. REHEARSE_UPDATE=1 rewrites the
expected outputs."""

import json
import os

from cli_test_case import ROOT, CliTestCase

# Measured seconds, rates and rounded logarithms may differ in the last digits between processors.
TOLERANCE = 1e-6
UPDATE = os.environ.get("REHEARSE_UPDATE") == "1"


def differences(found, expected, path=""):
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected.keys() | found.keys():
            yield from differences(found.get(key), expected.get(key), f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            yield from differences(a, b, f"{path}[{i}]")
    elif isinstance(expected, float) and isinstance(found, float):
        if abs(found - expected) > TOLERANCE * abs(expected):
            yield f"{path}: {found}, expected {expected}"
    elif found != expected:
        yield f"{path}: {found}, expected {expected}"


class Experiments(CliTestCase):
    def test_expected_output(self):
        jobs = [path for path in sorted((ROOT / "experiments").glob("*.toml")) if "this-machine" not in path.read_text()]
        self.assertGreaterEqual(len(jobs), 7)
        for job in jobs:
            with self.subTest(job=job.name):
                name = str(job.relative_to(ROOT))
                out = self.json("simulate", name, "--fidelity", "analytic", cwd=ROOT)
                expected = job.with_suffix(".expected.json")
                if UPDATE:
                    expected.write_text(json.dumps(out, indent=1) + "\n")
                wrong = list(differences(out, json.loads(expected.read_text())))
                self.assertEqual(wrong, [], f"{name}\n" + "\n".join(wrong[:10]))

    def test_what_if(self):
        """The example of the README: both changes make the job faster, and the faster network helps more."""
        rates = {}
        for change in ("name=experiments/what-if/rack.toml:4", "links.network.bandwidth=50Gb/s", "name=experiments/what-if/rack.toml:6"):
            one = self.json("simulate", "experiments/what-if/gpt2.toml", "--set", f"cluster.{change}", cwd=ROOT)
            rates[change] = one["samples_per_s"]
        today, faster, larger = rates.values()
        self.assertGreater(faster, 1.2 * larger)
        self.assertGreater(larger, today)

    def test_a_differing_number_is_found(self):
        self.assertEqual(list(differences({"a": [1.0]}, {"a": [1.0 + 1e-9]})), [])
        self.assertEqual(len(list(differences({"a": [1.0]}, {"a": [1.001]}))), 1)
        self.assertEqual(len(list(differences({"a": 1}, {"a": 1, "b": 2}))), 1)
        self.assertEqual(len(list(differences([1], [1, 2]))), 1)
