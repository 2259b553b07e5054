"""data/prepare.py: the message of every error, one line each."""

from data_case import DataTest, prose


class Errors(DataTest):
    def fails(self, *arguments, says, out=None):
        _, err = self.run_it(*arguments, "-o", out or self.out, expect=2)
        self.assertIn(says, err)
        self.assertEqual(err.count("\n"), 1, err)

    def test_no_text(self):
        (self.tmp / "empty").mkdir()
        self.fails(self.tmp / "empty", says="no text found in")
        self.fails(self.tmp / "nothing.txt", says="nothing.txt: no such file, folder or match")
        (self.tmp / "x.bin").write_bytes(b"\0" * 10)
        self.fails(self.tmp / "x.bin", says="(1 binary files)")
        (self.tmp / "blank.txt").write_text(" \n \n")
        self.fails(self.tmp / "blank.txt", says="no text left after cleaning: 1 empty")
        self.assertFalse(self.out.exists())

    def test_one_document_cannot_be_split(self):
        (self.tmp / "one.txt").write_text(prose(1))
        self.fails(self.tmp / "one.txt", says="only one document (one.txt)")

    def test_output(self):
        books = self.books(3)
        self.fails(books, out="/proc/nowhere/tokens", says="cannot write in /proc/nowhere")
        (self.tmp / "file").write_text("x")
        self.fails(books, out=self.tmp / "file", says="exists and is not a folder")
        self.fails(books, out=books, says="holds files that this program did not write")
        self.prepare(books)
        (self.out / "note.txt").write_text("keep")
        self.prepare(books)  # up to date: nothing is replaced
        for options in (("--val-fraction", 0.4), ("--force",)):
            self.fails(books, *options, says="holds note.txt, which this program did not write")
        self.assertEqual((self.out / "note.txt").read_text(), "keep")
        self.assertEqual(len(list(books.iterdir())), 3)

    def test_vocabulary(self):
        books = self.books(3)
        self.fails(books, "--vocab-size", 65536, says="at most 65535")
        self.fails(books, "--vocab-size", 100, says="at least 259")
        self.fails(books, "--vocab-size", 300, "--tokenizer", "t.json", says="exclude each other")

    def test_tokenizer(self):
        books = self.books(3)
        self.fails(books, "--tokenizer", self.tmp / "none.json", says="none.json: no such file")
        bad = self.tmp / "bad.json"
        given = [books, "--tokenizer", bad]
        bad.write_text("{}")
        self.fails(*given, says="bad.json: not a tokenizer.json")
        from tokenizers import Tokenizer, models

        Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(bad))
        self.fails(*given, says="name its end-of-text token with --end-of-text")
        self.fails(*given, "--end-of-text", "<x>", says="the tokenizer has no '<x>'")
        masked = ["--end-of-text", "a", "--masked-lm"]
        self.fails(*given, *masked, says="has no mask and no pad token")
        Tokenizer(models.WordLevel({"a": 0, "[UNK]": 70000}, unk_token="[UNK]")).save(str(bad))
        self.fails(*given, says="vocabulary of 70001; tokens are stored in 16 bits")

    def test_values(self):
        self.fails("--val-fraction", 1, says="--val-fraction 1.0: between 0 and 1")
        self.fails("--max-document-chars", 5, says="--max-document-chars 5: at least 100")
        self.fails("--shard-tokens", 5, says="--shard-tokens 5: at least 1000")
        self.fails("--debian", "Foo Bar", says="'Foo Bar' is not a package name")
        self.fails("--debian", ",", says="--debian: no package named")
