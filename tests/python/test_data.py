"""data/prepare.py end to end on small inputs: formats, determinism, the split, and clean-up after
interrupts and full disks."""

import gzip
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time

from data_case import ROOT, DataTest, prose, tokens_of

# data/prepare.py, which does not get further than to its tokenizer.
HALF_WAY = """
import sys, time
sys.path.insert(0, sys.argv.pop(1))
from data import prepare
stage = prepare.Progress.stage
def stop(self, name):
    stage(self, name)
    if name == "tokenizer":
        time.sleep(3600)
prepare.Progress.stage = stop
sys.exit(prepare.main())
"""


class EndToEnd(DataTest):
    def test_shards_hold_the_text_and_the_manifest_describes_them(self):
        books = self.books()
        out, err = self.prepare(books, "--val-fraction", 0.2, vocab=400)
        self.assertEqual(err, "")  # not a terminal: no progress bar
        self.assertIn("vocabulary 400", out)
        manifest = self.manifest()
        self.assertEqual(manifest["format_version"], 1)
        self.assertEqual(manifest["vocab_size"], 400)
        self.assertEqual(manifest["special_token_ids"], {"end_of_text": 0, "pad": 1, "mask": 2})
        for entry in [
            manifest["tokenizer"],
            *manifest["train"]["shards"],
            *manifest["val"]["shards"],
        ]:
            self.assertEqual(hashlib.sha256((self.out / entry["file"]).read_bytes()).hexdigest(), entry["sha256"])
        self.assertEqual(len(tokens_of(self.out / "train_000000.bin")), manifest["train"]["tokens"])
        sides = self.documents()
        self.assertEqual(sorted(sides["train"] + sides["val"]), sorted(prose(i) for i in range(30)))

    def test_same_input_gives_the_same_bytes_whatever_the_folder_and_order(self):
        books = self.books()
        other = self.tmp / "elsewhere" / "books"
        other.mkdir(parents=True)
        for path in sorted(books.iterdir(), reverse=True):
            (other / path.name).write_bytes(path.read_bytes())
        self.prepare(books, vocab=400)
        self.prepare(other, out=self.tmp / "again", vocab=400)
        for path in self.out.iterdir():
            self.assertEqual(path.read_bytes(), (self.tmp / "again" / path.name).read_bytes(), path.name)

    def test_by_input_each_input_has_shards_of_its_own(self):
        books = self.books()
        more = self.tmp / "more"
        more.mkdir()
        for i in range(30, 50):
            (more / f"{i:03d}.txt").write_text(prose(i))
        single = self.tmp / "single.txt"
        single.write_text("\n\n".join(prose(i) for i in range(50, 58)))
        given = (books, more, single, "--max-document-chars", 3000)
        self.prepare(*given, "--by-input", "--val-fraction", 0.2, vocab=400)
        manifest = self.manifest()
        self.assertEqual([entry["name"] for entry in manifest["inputs"]], ["books", "more", "single.txt"])
        shards = manifest["train"]["shards"]
        self.assertEqual([shard["input"] for shard in shards], [0, 1, 2])
        self.assertFalse(any("input" in shard for shard in manifest["val"]["shards"]))
        sides = self.documents()
        at = 0
        for shard, texts in zip(
            shards, ([prose(i) for i in range(30)], [prose(i) for i in range(30, 50)], [single.read_text()]), strict=True
        ):
            for document in sides["train"][at : at + shard["documents"]]:
                self.assertTrue(any(document in text for text in texts))
            at += shard["documents"]
        self.assertEqual(at, len(sides["train"]))
        # The same documents as without the option, in another order; small shards still end where they would.
        self.prepare(*given, "--val-fraction", 0.2, out=self.tmp / "mixed", vocab=400)
        mixed = json.loads((self.tmp / "mixed/manifest.json").read_text())
        self.assertEqual(mixed["train"]["tokens"], manifest["train"]["tokens"])
        self.assertFalse(any("input" in shard for shard in mixed["train"]["shards"]))
        self.prepare(*given, "--by-input", "--shard-tokens", 1000, "--val-fraction", 0.2, vocab=400)
        of = [shard["input"] for shard in self.manifest()["train"]["shards"]]
        self.assertEqual((of, sorted(set(of))), (sorted(of), [0, 1, 2]))
        self.assertGreater(len(of), 6)

    def test_the_split_is_by_document_hash_and_stable_when_documents_are_added(self):
        books = self.books(40)
        self.prepare(books, "--val-fraction", 0.3)
        before = self.documents()
        for i in range(40, 60):
            (books / f"{i:03d}.txt").write_text(prose(i))
        self.prepare(books, "--val-fraction", 0.3)
        after = self.documents()
        self.assertTrue(before["val"] and set(before["val"]) <= set(after["val"]))
        self.assertTrue(set(before["train"]) <= set(after["train"]))
        for side, expected in (("val", True), ("train", False)):
            for text in after[side]:
                share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
                self.assertEqual(share < 0.3, expected)

    def test_special_tokens_in_the_text_stay_text(self):
        books = self.books(6)
        (books / "tricky.txt").write_text("Before <|endoftext|> and [MASK] after. " + prose(99))
        self.prepare(books)
        sides = self.documents()  # there would be one more document if the marker had become a token
        self.assertTrue(any("<|endoftext|> and [MASK]" in t for t in sides["train"] + sides["val"]))

    def test_shards_are_cut_between_documents(self):
        self.prepare(self.books(), "--shard-tokens", 3000)
        manifest = self.manifest()["train"]
        self.assertGreater(len(manifest["shards"]), 3)
        for shard in manifest["shards"]:
            tokens = tokens_of(self.out / shard["file"])
            self.assertEqual(tokens[0], 0)
            self.assertEqual((tokens == 0).sum(), shard["documents"])
            self.assertLessEqual(len(tokens), 3000)
        self.documents()

    def test_a_big_file_is_cut_at_paragraphs_when_asked(self):
        (self.tmp / "one.txt").write_text("\n\n".join(prose(i) for i in range(30)))
        self.prepare(self.tmp / "one.txt", "--max-document-chars", 5000)
        sides = self.documents()
        self.assertTrue(all(len(t) <= 5000 and t.endswith(".") for t in sides["train"] + sides["val"]))

    def test_limit_keeps_the_validation_share(self):
        self.prepare(self.books(60), "--val-fraction", 0.3, "--max-mb", 0.05)
        manifest = self.manifest()
        self.assertGreater(manifest["removed"]["beyond_limit"], 30)
        self.assertLess(manifest["val"]["characters"], manifest["train"]["characters"])

    def test_formats_patterns_and_compression(self):
        (self.tmp / "a.md.gz").write_bytes(gzip.compress(prose(1).encode()))
        (self.tmp / "b.jsonl").write_text("".join(json.dumps({"text": prose(i)}) + "\n" for i in (2, 3)))
        (self.tmp / "c.html").write_text(f"<p>{prose(4)}</p>")  # read as plain text
        self.prepare(self.tmp / "a*", self.tmp / "*.jsonl", self.tmp / "c.html")
        manifest = self.manifest()
        self.assertEqual([i["name"] for i in manifest["inputs"]], ["a.md.gz", "b.jsonl", "c.html"])
        self.assertEqual(manifest["train"]["documents"] + manifest["val"]["documents"], 4)

    def test_without_an_input_docstrings_serve(self):
        _, err = self.prepare("--max-mb", 0.3)
        self.assertEqual((err, [i["name"] for i in self.manifest()["inputs"]]), ("", ["matplotlib", "numpy", "scipy"]))
        sides = self.documents()
        self.assertGreater(min(len(text) for text in sides["train"]), 90)
        self.assertTrue(any("Parameters\n----------" in text for text in sides["train"]))

    def test_a_finished_result_is_reused_and_a_damaged_one_is_made_again(self):
        books = self.books(8)
        self.prepare(books)
        good = (self.out / "train_000000.bin").read_bytes()
        self.assertIn("up to date", self.prepare(books)[0])
        (self.out / "train_000000.bin").write_bytes(good[:-2])
        self.assertNotIn("up to date", self.prepare(books)[0])
        self.assertEqual((self.out / "train_000000.bin").read_bytes(), good)
        self.assertIn("in place of earlier data: ", self.prepare(books, vocab=310)[0])
        self.assertEqual(sorted(p.name for p in self.tmp.iterdir()), ["books", "tokens"])

    def test_a_saved_tokenizer_can_be_loaded(self):
        books = self.books(8)
        self.prepare(books)
        self.run_it(books, "-o", self.tmp / "two", "--tokenizer", self.out / "tokenizer.json", "--masked-lm")
        one, two = self.manifest(), self.manifest(self.tmp / "two")
        self.assertEqual(one["train"]["shards"], two["train"]["shards"])
        self.assertFalse(two["tokenizer"]["trained_here"])

    def test_an_interrupt_leaves_nothing_behind(self):
        books = self.books(8)
        process = subprocess.Popen([sys.executable, "-c", HALF_WAY, ROOT, books, "-o", self.out], stderr=subprocess.PIPE)
        deadline = time.monotonic() + 600
        while not list(self.tmp.glob(".tokens.partial-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130)
        self.assertEqual([p.name for p in self.tmp.iterdir()], ["books"])

    def test_what_a_killed_run_left_is_tidied_and_the_result_it_moved_comes_back(self):
        books = self.books(8)
        self.prepare(books)
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        self.out.rename(self.tmp / f".tokens.partial-{dead.pid}.old")
        (self.tmp / f".tokens.partial-{dead.pid}").mkdir()
        (self.tmp / f".tokens.partial-{os.getppid()}").mkdir()  # another process works there
        self.assertIn("up to date", self.prepare(books)[0])
        left = sorted(p.name for p in self.tmp.iterdir())
        self.assertEqual(left, sorted([f".tokens.partial-{os.getppid()}", "books", "tokens"]))

    def test_a_full_disk_leaves_the_old_result(self):
        books = self.books(20)
        self.prepare(books)
        before = {p.name: p.read_bytes() for p in self.out.iterdir()}
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))  # noqa: E731
        command = [sys.executable, ROOT / "data/prepare.py", books, "-o", self.out]
        command += ["--vocab-size", "310"]
        done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("data/prepare.py: cannot write", done.stderr)
        self.assertEqual({p.name: p.read_bytes() for p in self.out.iterdir()}, before)
        self.assertEqual(sorted(p.name for p in self.tmp.iterdir()), ["books", "tokens"])
