"""`pip install .` into a new environment: the package works from any folder, and reads no file of the source folder."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.soak
SCRIPT = """
import rehearse
job = {"model.name": "gpt-tiny", "cluster.name": "paper", "cluster.world_size": 4, "method.name": "ddp", "train.global_batch": 16}
frame = rehearse.compare(job, ["ddp", "zero3"], seeds=1)
print(*frame["method"], frame["refused"].isna().all(), rehearse._core.data_dir())
"""


class Wheel(unittest.TestCase):
    def test_install(self):
        with tempfile.TemporaryDirectory() as folder:
            home = pathlib.Path(folder).resolve() / "venv"
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
            subprocess.run([home / "bin/pip", "install", "--quiet", ROOT], check=True)
            said = subprocess.check_output([home / "bin/python", "-c", SCRIPT], text=True, cwd=folder)
            (package,) = home.glob("lib/python3*/site-packages/rehearse")
            self.assertEqual(said, f"ddp zero3 True {package}/share/rehearse\n")
            for command in ([home / "bin/rehearse"], [home / "bin/python", "-m", "rehearse"]):
                said = subprocess.check_output(
                    [*command, "simulate", "experiments/paper-ddp.toml"], text=True, cwd=package / "share/rehearse"
                )
                self.assertIn("step time", said)
            for library in (package / "bin/rehearse", *package.glob("*.so"), *(package / "lib").glob("*.so")):
                self.assertNotIn(str(ROOT), subprocess.check_output(["readelf", "-d", library], text=True))
            for file in ("py.typed", "_core.pyi"):
                self.assertTrue((package / file).is_file(), file)
