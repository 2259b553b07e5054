"""Shared code of tests that train: token shards from the project's documents, a tiny job with two ranks."""

import contextlib
import io
import json
import pathlib
import re
import sys
import tempfile

from cli_test_case import ROOT, CliTestCase

sys.path.insert(0, str(ROOT))
from data import prepare


def write_tokens(folder, model="gpt-tiny"):
    """Writes token shards for a model's vocabulary below `folder`; returns their folder."""
    text = folder / "text"
    text.mkdir()
    for i, page in enumerate(sorted((ROOT / "docs").glob("*.md"))):
        (text / f"{i}.md").write_text(page.read_text())
    vocab = re.search(r"^vocab = (\d+)", (ROOT / f"models/{model}.toml").read_text(), re.M)[1]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = prepare.main([str(text), "-o", str(folder / "tokens"), "--vocab-size", vocab, "--quiet"])
    assert status == 0
    return folder / "tokens"


JOB = """model.name = "gpt-tiny"
cluster.name = "this-machine"
method = {{ name = "ddp", dp = 2 }}
train = {{ global_batch = 8, steps = {steps}, lr = 1e-2, data = "{tokens}", out = "{out}" }}
run = {{ threads = 1, timeout = "30s" }}
"""


class TrainingCase(CliTestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.tokens = write_tokens(pathlib.Path(folder.name))

    def job(self, steps=12, more="", folder=None):
        folder = folder or self.tmp
        text = JOB.format(steps=steps, tokens=self.tokens, out=folder / "out")
        return super().job(text + more, name=folder / "job.toml")

    def losses(self, folder=None):
        """The losses that a run has written so far, by step."""
        path = (folder or self.tmp) / "out/metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row["loss"] for row in rows if "loss" in row]
