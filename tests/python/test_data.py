"""data/prepare.py end to end on small inputs: formats, determinism, the split, packages, and every
error's message."""

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from data import corpus, debian, extract, prepare, shards  # noqa: E402
from data.errors import InputError  # noqa: E402

WORDS = (
    "the of and to a in is that for it be with as on or this model worker gradient network batch"
    " memory link rank pipeline stage token loss update server cluster bandwidth latency schedule"
    " weight layer tensor"
).split()


def prose(seed, sentences=40):
    """Paragraphs of five sentences of English-looking words, different for every seed."""
    draw = random.Random(seed)
    made = [
        " ".join(draw.choice(WORDS) for _ in range(12)).capitalize() + "." for _ in range(sentences)
    ]
    return "\n\n".join(" ".join(made[i : i + 5]) for i in range(0, sentences, 5))


def make_deb(path, files):
    """A .deb by deb(5): an ar archive of debian-binary, control.tar.xz and data.tar.xz."""

    def tar(entries):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, content in entries.items():
                entry = tarfile.TarInfo("./" + name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return lzma.compress(buffer.getvalue())

    with open(path, "wb") as file:
        file.write(b"!<arch>\n")
        for name, body in (
            ("debian-binary", b"2.0\n"),
            ("control.tar.xz", tar({})),
            ("data.tar.xz", tar(files)),
        ):
            file.write(
                f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(body):<10}`\n".encode()
                + body
                + b"\n" * (len(body) % 2)
            )


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

    def books(self, count=30, folder="books"):
        path = self.tmp / folder
        path.mkdir()
        for i in range(count):
            (path / f"{i:03d}.txt").write_text(prose(i))
        return path

    def manifest(self, out=None):
        return json.loads(((out or self.out) / "manifest.json").read_text())

    def documents(self, out=None):
        """{"train": [texts], "val": [texts]} decoded from the shards, read with struct-free NumPy
        and the saved tokenizer."""
        from tokenizers import Tokenizer

        out, sides = out or self.out, {}
        manifest = self.manifest(out)
        tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
        end = manifest["special_token_ids"]["end_of_text"]
        for side in ("train", "val"):
            sides[side], tokens = [], []
            for shard in manifest[side]["shards"]:
                tokens += shards.read(out / shard["file"]).tolist()
            self.assertEqual(tokens[0], end)
            self.assertEqual(len(tokens), manifest[side]["tokens"])
            current = []
            for token in tokens[1:] + [end]:
                if token == end:
                    sides[side].append(tokenizer.decode(current, skip_special_tokens=False))
                    current = []
                else:
                    current.append(token)
            self.assertEqual(len(sides[side]), manifest[side]["documents"])
        return sides


class EndToEnd(DataTest):
    def test_shards_hold_the_text_and_the_manifest_describes_them(self):
        books = self.books()
        out, err = self.run_it(books, "-o", self.out, "--vocab-size", 400, "--val-fraction", 0.2)
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
            self.assertEqual(
                hashlib.sha256((self.out / entry["file"]).read_bytes()).hexdigest(), entry["sha256"]
            )
        raw = (self.out / "train_000000.bin").read_bytes()
        self.assertEqual(
            [int.from_bytes(raw[i : i + 4], "little") for i in (0, 4, 8)],
            [20240520, 1, manifest["train"]["tokens"]],
        )
        self.assertEqual(len(raw), 1024 + 2 * manifest["train"]["tokens"])
        sides = self.documents()
        self.assertEqual(sorted(sides["train"] + sides["val"]), sorted(prose(i) for i in range(30)))

    def test_same_input_gives_the_same_bytes_whatever_the_folder_and_order(self):
        books = self.books()
        other = self.tmp / "elsewhere" / "books"
        other.mkdir(parents=True)
        for path in sorted(books.iterdir(), reverse=True):
            (other / path.name).write_bytes(path.read_bytes())
        self.run_it(books, "-o", self.out, "--vocab-size", 400)
        self.run_it(other, "-o", self.tmp / "again", "--vocab-size", 400)
        for path in self.out.iterdir():
            self.assertEqual(
                path.read_bytes(), (self.tmp / "again" / path.name).read_bytes(), path.name
            )

    def test_the_split_is_by_document_hash_and_stable_when_documents_are_added(self):
        books = self.books(40)
        self.run_it(books, "-o", self.out, "--vocab-size", 300, "--val-fraction", 0.3)
        before = self.documents()
        for i in range(40, 60):
            (books / f"{i:03d}.txt").write_text(prose(i))
        self.run_it(books, "-o", self.out, "--vocab-size", 300, "--val-fraction", 0.3)
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
        self.run_it(books, "-o", self.out, "--vocab-size", 300)
        sides = self.documents()  # would count one document more if the marker had become a token
        self.assertTrue(any("<|endoftext|> and [MASK]" in t for t in sides["train"] + sides["val"]))

    def test_shards_are_cut_between_documents(self):
        self.run_it(self.books(), "-o", self.out, "--vocab-size", 300, "--shard-tokens", 3000)
        manifest = self.manifest()["train"]
        self.assertGreater(len(manifest["shards"]), 3)
        for shard in manifest["shards"]:
            tokens = shards.read(self.out / shard["file"])
            self.assertEqual(tokens[0], 0)
            self.assertEqual((tokens == 0).sum(), shard["documents"])
            self.assertLessEqual(len(tokens), 3000)
        self.documents()

    def test_a_big_file_is_cut_at_paragraphs_when_asked(self):
        (self.tmp / "one.txt").write_text("\n\n".join(prose(i) for i in range(30)))
        self.run_it(
            self.tmp / "one.txt", "-o", self.out, "--vocab-size", 300, "--max-document-chars", 5000
        )
        sides = self.documents()
        self.assertTrue(
            all(len(t) <= 5000 and t.endswith(".") for t in sides["train"] + sides["val"])
        )

    def test_limit_keeps_the_validation_share(self):
        self.run_it(
            self.books(60),
            "-o",
            self.out,
            "--vocab-size",
            300,
            "--val-fraction",
            0.3,
            "--max-mb",
            0.05,
        )
        manifest = self.manifest()
        self.assertGreater(manifest["removed"]["beyond_limit"], 30)
        self.assertLess(manifest["val"]["characters"], manifest["train"]["characters"])

    def test_formats_patterns_and_compression(self):
        (self.tmp / "a.md.gz").write_bytes(gzip.compress(prose(1).encode()))
        (self.tmp / "b.jsonl").write_text(
            "".join(json.dumps({"text": prose(i)}) + "\n" for i in (2, 3))
        )
        (self.tmp / "c.html").write_text(
            f"<html><body><p>{prose(4)}</p><script>var x;</script></body></html>"
        )
        self.run_it(
            self.tmp / "a*",
            self.tmp / "*.jsonl",
            self.tmp / "c.html",
            "-o",
            self.out,
            "--vocab-size",
            300,
        )
        manifest = self.manifest()
        self.assertEqual([i["path"] for i in manifest["inputs"]], ["a.md.gz", "b.jsonl", "c.html"])
        self.assertEqual(manifest["train"]["documents"] + manifest["val"]["documents"], 4)

    def test_a_finished_result_is_reused_and_a_damaged_one_is_made_again(self):
        books = self.books(8)
        self.run_it(books, "-o", self.out, "--vocab-size", 300)
        good = (self.out / "train_000000.bin").read_bytes()
        self.assertIn("up to date", self.run_it(books, "-o", self.out, "--vocab-size", 300)[0])
        (self.out / "train_000000.bin").write_bytes(good[:-2])
        self.assertNotIn("up to date", self.run_it(books, "-o", self.out, "--vocab-size", 300)[0])
        self.assertEqual((self.out / "train_000000.bin").read_bytes(), good)
        self.assertNotIn("up to date", self.run_it(books, "-o", self.out, "--vocab-size", 310)[0])
        self.assertEqual(sorted(p.name for p in self.tmp.iterdir()), ["books", "tokens"])

    def test_a_saved_tokenizer_can_be_loaded(self):
        books = self.books(8)
        self.run_it(books, "-o", self.out, "--vocab-size", 300)
        self.run_it(
            books, "-o", self.tmp / "two", "--tokenizer", self.out / "tokenizer.json", "--masked-lm"
        )
        one, two = self.manifest(), self.manifest(self.tmp / "two")
        self.assertEqual(one["train"]["shards"], two["train"]["shards"])
        self.assertFalse(two["tokenizer"]["trained_here"])

    def test_an_interrupt_leaves_nothing_behind(self):
        books = self.books(400)
        process = subprocess.Popen(
            [sys.executable, ROOT / "data/prepare.py", books, "-o", self.out],
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 10
        while not list(self.tmp.glob(".tokens.partial-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
        self.assertEqual(process.returncode, 130)
        self.assertEqual([p.name for p in self.tmp.iterdir()], ["books"])

    def test_what_a_killed_run_left_is_tidied_and_the_result_it_moved_comes_back(self):
        books = self.books(8)
        self.run_it(books, "-o", self.out, "--vocab-size", 300)
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        self.out.rename(self.tmp / f".tokens.partial-{dead.pid}.old")
        (self.tmp / f".tokens.partial-{dead.pid}").mkdir()
        (self.tmp / f".tokens.partial-{os.getppid()}").mkdir()  # somebody is at work there
        self.assertIn("up to date", self.run_it(books, "-o", self.out, "--vocab-size", 300)[0])
        left = sorted(p.name for p in self.tmp.iterdir())
        self.assertEqual(left, sorted([f".tokens.partial-{os.getppid()}", "books", "tokens"]))

    def test_a_full_disk_leaves_the_old_result(self):
        books = self.books(20)
        self.run_it(books, "-o", self.out, "--vocab-size", 300)
        before = {p.name: p.read_bytes() for p in self.out.iterdir()}
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))  # noqa: E731
        command = [
            sys.executable,
            ROOT / "data/prepare.py",
            books,
            "-o",
            self.out,
            "--vocab-size",
            "310",
        ]
        done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("data/prepare.py: cannot write", done.stderr)
        self.assertEqual({p.name: p.read_bytes() for p in self.out.iterdir()}, before)
        self.assertEqual(sorted(p.name for p in self.tmp.iterdir()), ["books", "tokens"])


class Cleaning(DataTest):
    def clean(self, *texts, **options):
        return corpus.clean([corpus.Document(0, str(i), t) for i, t in enumerate(texts)], **options)

    def test_normalisation(self):
        self.assertEqual(
            corpus.normalise("ﬁne\u00a0 words\r\n  x²\t\n\n\n\nend\u200b "), "fine words\nx2\n\nend"
        )
        self.assertEqual(corpus.normalise("if x:\n    y\n", keep_whitespace=True), "if x:\n    y")

    def test_equal_documents_count_once(self):
        kept, removed = self.clean(prose(1), prose(1) + "  \n", prose(2))
        self.assertEqual((len(kept), removed.duplicates), (2, 1))
        self.assertEqual(len(self.clean(prose(1), prose(1), keep_duplicates=True)[0]), 2)

    def test_a_book_made_of_its_chapters_is_dropped_not_the_chapters(self):
        chapters = [prose(i) for i in range(4)]
        kept, removed = self.clean("\n\n".join(chapters), *chapters)
        self.assertEqual({d.text for d in kept}, set(chapters))
        self.assertEqual(removed.near_duplicates, 1)

    def test_a_repeated_paragraph_stays_in_one_document(self):
        preface = prose(50, 5)
        kept, _ = self.clean(*(preface + "\n\n" + prose(i) for i in range(5)))
        self.assertEqual(sum(preface in d.text for d in kept), 1)
        self.assertEqual(len(kept), 5)

    def test_licences_go(self):
        grant = (
            "Permission is hereby granted, free of charge, to any person obtaining a copy of this"
            " software."
        )
        kept, removed = self.clean(
            "GNU GENERAL PUBLIC LICENSE\nVersion 2\n\n" + prose(1), prose(2) + "\n\n" + grant
        )
        self.assertEqual((len(kept), removed.licences), (1, 1))
        self.assertEqual(kept[0].text, prose(2))
        self.assertTrue(corpus.is_boilerplate_file("usr/share/doc/x/copyright"))
        self.assertTrue(corpus.is_boilerplate_file("usr/share/doc/x/changelog.Debian.gz"))
        self.assertFalse(corpus.is_boilerplate_file("usr/share/doc/x/html/newsgroups.html"))

    def test_english(self):
        self.assertTrue(corpus.looks_english(prose(1)))
        self.assertFalse(
            corpus.looks_english(
                "Der schnelle Fuchs springt über den faulen Hund und läuft davon. " * 5
            )
        )
        self.assertFalse(
            corpus.looks_english("int main(void) { return printf(x); } /* code */ " * 20)
        )


class Extraction(unittest.TestCase):
    def test_html(self):
        page = (
            "<html><head><title>t</title></head><body><div"
            " class='navheader'><p>Next<br></div><h1>Chapter&nbsp;1</h1><p>Some <em>wrapped\n"
            " text</em> &amp; more.<nav><ul><li>menu</ul></nav><pre>a = 1\n  b</pre></body></html>"
        )
        self.assertEqual(
            extract.extract("x.html", page.encode()),
            ["Chapter 1\n\nSome wrapped text & more.\n\na = 1\n  b"],
        )

    def test_html_charset(self):
        page = (
            '<html><head><meta charset="iso-8859-1"></head><body><p>caf\xe9</p></body></html>'
            .encode("latin-1")
        )
        self.assertEqual(extract.extract("x.htm", page), ["café"])

    def test_rst(self):
        text = (
            "Title\n=====\n\n.. note:: hidden\n\nSee :ref:`the guide <g>` and ``code``\nwrapped"
            " *here*.\n\n- item one\n- item two\n"
        )
        self.assertEqual(
            extract.extract("x.rst", text.encode()),
            ["Title\n\nSee the guide and code wrapped here.\n\n- item one\n\n- item two"],
        )

    def test_man(self):
        page = (
            '.\\" comment\n.TH X 1\n.SH NAME\nx \\- does\n.SH DESCRIPTION\nThe\n.B x\nprogram'
            " reads\n.BR open (2)\nor \\fIfile\\fP.\n.PP\n.nf\nx -a\nx -b\n.fi\nDone\\(em really.\n"
        )
        text = extract.extract("man/man1/x.1", page.encode())[0]
        self.assertEqual(
            text,
            "NAME\n\nx - does\n\nDESCRIPTION\n\nThe x program reads open(2) or file.\n\nx -a\nx"
            " -b\n\nDone— really.",
        )
        self.assertEqual(extract.extract("man1/y.1", b".so man1/x.1\n"), [""])

    def test_pod(self):
        text = (
            "=head1 NAME\n\nx - B<bold> C<< a->b >> L<text|perlop/Ops> E<lt>\n\n  code\n\n=begin"
            " html\n\n<b>\n\n=end html\n\n=cut\n\nsub f;\n"
        )
        self.assertEqual(
            extract.extract("x.pod", text.encode()), ["NAME\n\nx - bold a->b text <\n\n  code"]
        )

    def test_info(self):
        text = (
            "head\n\x1f\nFile: a.info,  Node: Top,  Next: B\n\nTop\n***\n\n* Menu:\n\n* B::"
            " b\n\x1f\nFile: a.info,  Node: B\n\n1 B\n===\n\nBody.\n\x1f\nTag Table:\nNode: Top\n"
        )
        self.assertEqual(
            extract.extract("a.info", text.encode())[0].split(), ["Top", "1", "B", "Body."]
        )

    def test_r_books(self):
        import struct
        import zlib

        lines = [b"Title"] + (
            [b"CHAPTER I", b""] + [b"It was a fine day and", b"the end.", b""] * 400
        ) * 2
        body = (
            b"X\n"
            + struct.pack(">iiiii", 2, 0, 0, 16, len(lines))
            + b"".join(b"\0\x04\0\x09" + struct.pack(">i", len(x)) + x for x in lines)
        )
        block = zlib.compress(body)
        documents = extract.extract("Rdata.rdb", struct.pack(">i", len(body)) + block)
        self.assertEqual(len(documents), 2)
        self.assertTrue(
            documents[0].startswith("CHAPTER I\n\nIt was a fine day and the end.\n\nIt was")
        )

    def test_encodings_and_binary(self):
        self.assertEqual(extract.extract("x.txt", "naïve".encode("utf-16")), ["naïve"])
        self.assertEqual(extract.extract("x.txt", b"caf\xe9"), ["café"])
        self.assertEqual(extract.extract("x", b"\x7fELF\0\0"), [])

    def test_damaged_inputs(self):
        with self.assertRaisesRegex(InputError, "x.txt.gz: not a readable gz file"):
            extract.extract("x.txt.gz", gzip.compress(b"hello")[:-6])
        with self.assertRaisesRegex(
            InputError, 'x.jsonl:2: expected a JSON object with a "text" field'
        ):
            extract.extract("x.jsonl", b'{"text": "a"}\n{"body": "b"}\n')


class Packages(DataTest):
    def make_cache(self):
        cache = self.tmp / "cache"
        cache.mkdir()
        files = {
            f"usr/share/doc/foo/ch{i}.html": (
                f"<html><body><p>{prose(i).replace(chr(10) * 2, '<p>')}</body></html>".encode()
            )
            for i in range(6)
        }
        files["usr/share/doc/foo/copyright"] = prose(100).encode()
        files["usr/share/doc/foo/changelog.gz"] = gzip.compress(prose(101).encode())
        files["usr/share/doc/foo/ch0.txt"] = prose(102).encode()  # the source of ch0.html
        files["usr/share/doc/foo/german.html"] = (
            b"<p>" + b"Der Fuchs springt jetzt schnell davon. " * 20
        )
        files["usr/bin/foo"] = b"\x7fELF\0"
        make_deb(cache / "foo-doc_1%3a2.5-1_all.deb", files)
        return cache

    def test_a_cached_package_needs_no_network(self):
        self.run_it(
            "--debian",
            "foo-doc",
            "--cache",
            self.make_cache(),
            "-o",
            self.out,
            "--vocab-size",
            300,
            "--offline",
        )
        manifest = self.manifest()
        (entry,) = manifest["inputs"]
        self.assertEqual((entry["package"], entry["version"]), ("foo-doc", "1:2.5-1"))
        self.assertEqual(manifest["removed"]["not_english"], 1)
        sides = self.documents()
        self.assertEqual(sorted(sides["train"] + sides["val"]), sorted(prose(i) for i in range(6)))

    def test_a_deb_file_is_an_input(self):
        cache = self.make_cache()
        self.run_it(cache / "foo-doc_1%3a2.5-1_all.deb", "-o", self.out, "--vocab-size", 300)
        self.assertEqual(self.manifest()["inputs"][0]["kind"], "debian")

    @unittest.skipUnless(__import__("shutil").which("dpkg-deb"), "dpkg-deb is Debian's")
    def test_a_package_made_by_dpkg(self):
        root = self.tmp / "root"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text(
            "Package: bar\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"
        )
        (root / "page.txt").write_text(prose(1))
        for compression in ("none", "gzip", "xz", "zstd"):
            path = self.tmp / f"bar_1_{compression}.deb"
            done = subprocess.run(
                ["dpkg-deb", f"-Z{compression}", "--root-owner-group", "-b", root, path],
                capture_output=True,
            )
            if done.returncode:
                self.assertEqual(compression, "zstd", done.stderr)  # older dpkg has no zstd
                continue
            self.assertEqual(
                [(n, c.decode()) for n, c in debian.members(str(path), path.read_bytes())],
                [("page.txt", prose(1))],
            )

    def fake_apt(self, script):
        folder = self.tmp / "bin"
        folder.mkdir()
        for name, body in {
            "apt-get": script,
            "apt-cache": "#!/bin/sh\necho foo-doc\necho zsh-doc\n",
        }.items():
            (folder / name).write_text(body)
            (folder / name).chmod(0o755)
        saved = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}:{saved}"
        self.addCleanup(os.environ.__setitem__, "PATH", saved)

    def test_download_fills_the_cache(self):
        source = self.make_cache() / "foo-doc_1%3a2.5-1_all.deb"
        self.fake_apt(f'#!/bin/sh\ncase "$*" in *download*) cp "{source}" . ;; esac\n')
        for _ in range(2):
            paths = debian.fetch(["foo-doc"], str(self.tmp / "fresh"))
            self.assertEqual(os.path.basename(paths[0]), source.name)
            (self.tmp / "bin/apt-get").unlink(
                missing_ok=True
            )  # the second time it must come from the cache
        self.assertEqual(os.listdir(self.tmp / "fresh"), [source.name])

    def test_an_unknown_package_is_an_error_that_names_the_nearest(self):
        self.fake_apt(
            '#!/bin/sh\ncase "$*" in *download*) echo "E: Unable to locate package foo-dok" ; exit'
            " 100 ;; esac\n"
        )
        _, err = self.run_it(
            "--debian", "foo-dok", "--cache", self.tmp / "c", "-o", self.out, expect=2
        )
        self.assertIn("no package named 'foo-dok'", err)
        self.assertIn("nearest: foo-doc", err)

    def test_without_a_network_installed_documentation_serves(self):
        self.fake_apt('#!/bin/sh\necho "E: Failed to fetch http://archive/x"; exit 100\n')
        installed = self.books(8, "installed")
        (installed / "copyright").write_text(prose(77))
        saved = debian.INSTALLED_FOLDERS
        debian.INSTALLED_FOLDERS = (str(installed),)
        self.addCleanup(setattr, debian, "INSTALLED_FOLDERS", saved)
        _, err = self.run_it("--cache", self.tmp / "c", "-o", self.out, "--vocab-size", 300)
        self.assertIn("cannot download packages (E: Failed to fetch", err)
        self.assertIn("using the documentation installed on this machine", err)
        manifest = self.manifest()
        self.assertEqual(manifest["inputs"][0]["kind"], "installed")
        self.assertEqual(manifest["train"]["documents"] + manifest["val"]["documents"], 8)

    def test_a_damaged_package(self):
        path = self.make_cache() / "foo-doc_1%3a2.5-1_all.deb"
        path.write_bytes(path.read_bytes()[:-200])
        _, err = self.run_it(path, "-o", self.out, expect=2)
        self.assertIn("damaged Debian package", err)
        self.assertFalse(self.out.exists())


class Errors(DataTest):
    def fails(self, *arguments, says):
        _, err = self.run_it(*arguments, expect=2)
        self.assertIn(says, err)
        self.assertEqual(err.count("\n"), 1, err)

    def test_no_text(self):
        (self.tmp / "empty").mkdir()
        self.fails(self.tmp / "empty", "-o", self.out, says="no text found in")
        self.fails(
            self.tmp / "nothing.txt",
            "-o",
            self.out,
            says="nothing.txt: no such file, folder or match",
        )
        (self.tmp / "x.bin").write_bytes(b"\0" * 10)
        self.fails(self.tmp / "x.bin", "-o", self.out, says="(1 binary files)")
        (self.tmp / "blank.txt").write_text(" \n \n")
        self.fails(
            self.tmp / "blank.txt", "-o", self.out, says="no text left after cleaning: 1 empty"
        )
        self.assertFalse(self.out.exists())

    def test_one_document_cannot_be_split(self):
        (self.tmp / "one.txt").write_text(prose(1))
        self.fails(self.tmp / "one.txt", "-o", self.out, says="only one document (one.txt)")

    def test_output(self):
        books = self.books(3)
        self.fails(books, "-o", "/proc/nowhere/tokens", says="cannot write in /proc/nowhere")
        (self.tmp / "file").write_text("x")
        self.fails(books, "-o", self.tmp / "file", says="exists and is not a folder")
        self.fails(books, "-o", books, says="holds files that this program did not write")
        self.assertEqual(len(list(books.iterdir())), 3)

    def test_vocabulary(self):
        books = self.books(3)
        self.fails(books, "-o", self.out, "--vocab-size", 65536, says="at most 65535")
        self.fails(books, "-o", self.out, "--vocab-size", 100, says="at least 259")
        self.fails(
            books,
            "-o",
            self.out,
            "--vocab-size",
            300,
            "--tokenizer",
            "t.json",
            says="exclude each other",
        )

    def test_tokenizer(self):
        books = self.books(3)
        self.fails(
            books,
            "-o",
            self.out,
            "--tokenizer",
            self.tmp / "none.json",
            says="none.json: no such file",
        )
        bad = self.tmp / "bad.json"
        bad.write_text("{}")
        self.fails(books, "-o", self.out, "--tokenizer", bad, says="bad.json: not a tokenizer.json")
        from tokenizers import Tokenizer, models

        Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(bad))
        self.fails(
            books,
            "-o",
            self.out,
            "--tokenizer",
            bad,
            says="name its end-of-text token with --end-of-text",
        )
        self.fails(
            books,
            "-o",
            self.out,
            "--tokenizer",
            bad,
            "--end-of-text",
            "<x>",
            says="the tokenizer has no '<x>'",
        )
        self.fails(
            books,
            "-o",
            self.out,
            "--tokenizer",
            bad,
            "--end-of-text",
            "a",
            "--masked-lm",
            says="has no mask and no pad token",
        )
        Tokenizer(models.WordLevel({"a": 0, "[UNK]": 70000}, unk_token="[UNK]")).save(str(bad))
        self.fails(
            books,
            "-o",
            self.out,
            "--tokenizer",
            bad,
            says="vocabulary of 70001; tokens are stored in 16 bits",
        )

    def test_values(self):
        self.fails("-o", self.out, "--val-fraction", 1, says="--val-fraction 1.0: between 0 and 1")
        self.fails(
            "-o", self.out, "--max-document-chars", 5, says="--max-document-chars 5: at least 100"
        )
        self.fails(
            "-o",
            self.out,
            "--debian",
            "Foo Bar",
            "--offline",
            says="'Foo Bar' is not a package name",
        )

    def test_reading_a_damaged_shard(self):
        self.run_it(self.books(4), "-o", self.out, "--vocab-size", 300)
        path = self.out / "val_000000.bin"
        content = path.read_bytes()
        for damaged, says in (
            (content[:-2], "truncated"),
            (b"\0" + content[1:], "not a token shard"),
            (content[:4] + b"\x07" + content[5:], "version 7"),
            (b"", "not a token shard"),
        ):
            path.write_bytes(damaged)
            with self.assertRaisesRegex(InputError, says):
                shards.read(path)


if __name__ == "__main__":
    unittest.main()
