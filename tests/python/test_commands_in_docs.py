"""Runs every command of docs/data.md and docs/report.md unchanged, on small files with the names that
the command uses."""

import contextlib
import gzip
import io
import json
import os
import pathlib
import re
import shlex
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/python")]

from data_case import make_deb, prose  # noqa: E402
from report_case import metrics, result, run, trace  # noqa: E402

from data import prepare, sources, tokenizer  # noqa: E402
from plots import report  # noqa: E402


def commands(document):
    """The lines of the document's sh blocks, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)
    return [words for block in blocks for line in block.splitlines() if (words := shlex.split(line, comments=True))]


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)
        self.enterContext(contextlib.chdir(self.tmp))
        cache = {"XDG_CACHE_HOME": str(self.tmp / "cache")}
        self.enterContext(mock.patch.dict(os.environ, cache))

    def run_all(self, document, least):
        found = commands(document)
        self.assertGreaterEqual(len(found), least)
        for words in found:
            with self.subTest(command=" ".join(words)):
                self.assertEqual(words[0], "tools/python")
                program = {"data/prepare.py": prepare, "plots/report.py": report}[words[1]]
                out, err = io.StringIO(), io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    self.assertEqual(program.main(words[2:]), 0, err.getvalue())
                # The texts are small, so there is a warning about that; there must be no other.
                self.assertRegex(err.getvalue(), r"^(.*warning: the text supports a vocabulary.*\n)?$")
                made = self.tmp / words[words.index("-o") + 1]
                self.assertTrue(made.exists(), made)

    def test_data(self):
        for name in ("books/a.txt", "books/b.txt", "notes/one.md", "notes/deep/two.md"):
            path = self.tmp / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(prose(name))
        (self.tmp / "more.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps({"text": prose(i)}) + "\n" for i in range(3)).encode()))
        (self.tmp / "corpus.txt").write_text("\n\n".join(prose(i) for i in range(60)))
        self.enterContext(mock.patch.object(sources, "LIBRARIES", ("matplotlib",)))
        debs = self.tmp / "cache/rehearse/debs"
        debs.mkdir(parents=True)
        for package in ("git-doc", "debian-policy"):
            make_deb(
                debs / f"{package}_1_all.deb",
                {f"usr/share/doc/{package}/{i}.txt": prose(f"{package}{i}").encode() for i in range(3)},
            )
        (self.tmp / "gpt2").mkdir()
        tokenizer.train([prose(0)], 300).save(str(self.tmp / "gpt2/tokenizer.json"))
        self.run_all("docs/data.md", 5)

    def test_report(self):
        for name, value in (
            ("compare", {"schema_version": 1, "results": [result(), result("zero3", 900)]}),
            ("sim", trace()),
            ("predictions", {"schema_version": 1, "runs": [run()]}),
            ("real", trace()),
        ):
            (self.tmp / f"{name}.json").write_text(json.dumps(value))
        (self.tmp / "run.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics()))
        self.run_all("docs/report.md", 4)
