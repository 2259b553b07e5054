"""data/prepare.py: what cleaning keeps, and how bytes are decoded."""

import gzip
import unittest

from data_case import DataTest, prose

from data import corpus, sources
from data.errors import InputError


class Cleaning(DataTest):
    def clean(self, *texts, **options):
        return corpus.clean([corpus.Document(str(i), t) for i, t in enumerate(texts)], **options)

    def test_normalisation(self):
        self.assertEqual(corpus.normalise("ﬁne\u00a0 words\r\n  x²\t\n\n\n\nend\u200b "), "fine words\nx2\n\nend")
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


class Reading(unittest.TestCase):
    def texts(self, name, data):
        return [document.text for document in sources.Sources().texts(name, data)]

    def test_encodings_and_binary(self):
        self.assertEqual(self.texts("x.txt", "naïve".encode("utf-16")), ["naïve"])
        self.assertEqual(self.texts("x.txt", b"caf\xe9"), ["café"])
        self.assertEqual(self.texts("x", b"\x7fELF\0\0"), [])

    def test_damaged_inputs(self):
        with self.assertRaisesRegex(InputError, "x.txt.gz: not a readable gz file"):
            self.texts("x.txt.gz", gzip.compress(b"hello")[:-6])
        with self.assertRaisesRegex(InputError, 'x.jsonl:2: expected a JSON object with a "text" field'):
            self.texts("x.jsonl", b'{"text": "a"}\n{"body": "b"}\n')
