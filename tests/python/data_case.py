"""Shared code of the tests of data/prepare.py: makes random prose, folders and packages, runs the
program, and reads its result."""

import contextlib
import io
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy  # noqa: E402

from data import prepare  # noqa: E402

WORDS = (
    "the of and to a in is that for it be with as on or this model worker gradient network batch"
    " memory link rank pipeline stage token loss update server cluster bandwidth latency schedule"
    " weight layer tensor"
).split()


def prose(seed, sentences=40):
    """Paragraphs of five sentences of English-looking words, different for every seed."""
    draw = random.Random(seed)
    made = [" ".join(draw.choice(WORDS) for _ in range(12)).capitalize() + "." for _ in range(sentences)]
    return "\n\n".join(" ".join(made[i : i + 5]) for i in range(0, sentences, 5))


def make_deb(path, files, version="1:2.5-1"):
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for inside, content in files.items():
            (root / inside).parent.mkdir(parents=True, exist_ok=True)
            (root / inside).write_bytes(content)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(
            f"Package: foo-doc\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"
        )
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, path], check=True, capture_output=True)


def tokens_of(path):
    """Reads a shard as llm.c describes it: 256 int32, the third of which is the number of tokens, then uint16."""
    header = numpy.fromfile(path, dtype="<i4", count=256)
    tokens = numpy.fromfile(path, dtype="<u2", offset=1024)
    assert header[:3].tolist() == [20240520, 1, len(tokens)] and not header[3:].any(), header
    return tokens


class DataTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)
        self.out = self.tmp / "tokens"

    def run_it(self, *arguments, expect=0):
        """Runs main(); returns (standard output, standard error) and checks the exit code."""
        out, err = io.StringIO(), io.StringIO()
        handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = prepare.main([str(a) for a in arguments])
                except SystemExit as stop:
                    code = stop.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        self.assertEqual(code, expect, err.getvalue())
        return out.getvalue(), err.getvalue()

    def prepare(self, *arguments, out=None, vocab=300, expect=0):
        return self.run_it(*arguments, "-o", out or self.out, "--vocab-size", vocab, expect=expect)

    def books(self, count=30, folder="books"):
        path = self.tmp / folder
        path.mkdir()
        for i in range(count):
            (path / f"{i:03d}.txt").write_text(prose(i))
        return path

    def manifest(self, out=None):
        return json.loads(((out or self.out) / "manifest.json").read_text())

    def documents(self, out=None):
        """{"train": [texts], "val": [texts]} decoded from the shards with the saved tokenizer."""
        from tokenizers import Tokenizer

        out, sides = out or self.out, {}
        manifest = self.manifest(out)
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        end = manifest["special_token_ids"]["end_of_text"]
        for side in ("train", "val"):
            sides[side], tokens = [], []
            for shard in manifest[side]["shards"]:
                tokens += tokens_of(out / shard["file"]).tolist()
            self.assertEqual(tokens[0], end)
            self.assertEqual(len(tokens), manifest[side]["tokens"])
            current = []
            for token in [*tokens[1:], end]:
                if token == end:
                    sides[side].append(tokenizer.decode(current, skip_special_tokens=False))
                    current = []
                else:
                    current.append(token)
            self.assertEqual(len(sides[side]), manifest[side]["documents"])
        return sides
