"""data/prepare.py: what cleaning keeps, and the text that is found in each format."""

import gzip
import struct
import unittest
import zlib

from data_case import DataTest, prose

from data import corpus, extract
from data.errors import InputError


class Cleaning(DataTest):
    def clean(self, *texts, **options):
        return corpus.clean([corpus.Document(0, str(i), t) for i, t in enumerate(texts)], **options)

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

    def test_licences_go(self):
        grant = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software."
        kept, removed = self.clean("GNU GENERAL PUBLIC LICENSE\nVersion 2\n\n" + prose(1), prose(2) + "\n\n" + grant)
        self.assertEqual((len(kept), removed.licences), (1, 1))
        self.assertEqual(kept[0].text, prose(2))
        self.assertTrue(corpus.is_boilerplate_file("usr/share/doc/x/copyright"))
        self.assertTrue(corpus.is_boilerplate_file("usr/share/doc/x/changelog.Debian.gz"))
        self.assertFalse(corpus.is_boilerplate_file("usr/share/doc/x/html/newsgroups.html"))

    def test_english(self):
        self.assertTrue(corpus.looks_english(prose(1)))
        self.assertFalse(corpus.looks_english("Der schnelle Fuchs springt über den faulen Hund und läuft davon. " * 5))
        self.assertFalse(corpus.looks_english("int main(void) { return printf(x); } /* code */ " * 20))


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
        page = '<html><head><meta charset="iso-8859-1"></head><body><p>caf\xe9</p></body></html>'.encode("latin-1")
        self.assertEqual(extract.extract("x.htm", page), ["café"])

    def test_rst(self):
        text = "Title\n=====\n\n.. note:: hidden\n\nSee :ref:`the guide <g>` and ``code``\nwrapped *here*.\n\n- item one\n- item two\n"
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
            "NAME\n\nx - does\n\nDESCRIPTION\n\nThe x program reads open(2) or file.\n\nx -a\nx -b\n\nDone— really.",
        )
        self.assertEqual(extract.extract("man1/y.1", b".so man1/x.1\n"), [""])

    def test_pod(self):
        text = (
            "=head1 NAME\n\nx - B<bold> C<< a->b >> L<text|perlop/Ops> E<lt>\n\n  code\n\n=begin"
            " html\n\n<b>\n\n=end html\n\n=cut\n\nsub f;\n"
        )
        self.assertEqual(extract.extract("x.pod", text.encode()), ["NAME\n\nx - bold a->b text <\n\n  code"])

    def test_info(self):
        text = (
            "head\n\x1f\nFile: a.info,  Node: Top,  Next: B\n\nTop\n***\n\n* Menu:\n\n* B::"
            " b\n\x1f\nFile: a.info,  Node: B\n\n1 B\n===\n\nBody.\n\x1f\nTag Table:\nNode: Top\n"
        )
        self.assertEqual(extract.extract("a.info", text.encode())[0].split(), ["Top", "1", "B", "Body."])

    def test_r_books(self):
        lines = [b"Title"] + ([b"CHAPTER I", b""] + [b"It was a fine day and", b"the end.", b""] * 400) * 2
        body = (
            b"X\n"
            + struct.pack(">iiiii", 2, 0, 0, 16, len(lines))
            + b"".join(b"\0\x04\0\x09" + struct.pack(">i", len(x)) + x for x in lines)
        )
        block = zlib.compress(body)
        documents = extract.extract("Rdata.rdb", struct.pack(">i", len(body)) + block)
        self.assertEqual(len(documents), 2)
        self.assertTrue(documents[0].startswith("CHAPTER I\n\nIt was a fine day and the end.\n\nIt was"))

    def test_encodings_and_binary(self):
        self.assertEqual(extract.extract("x.txt", "naïve".encode("utf-16")), ["naïve"])
        self.assertEqual(extract.extract("x.txt", b"caf\xe9"), ["café"])
        self.assertEqual(extract.extract("x", b"\x7fELF\0\0"), [])

    def test_damaged_inputs(self):
        with self.assertRaisesRegex(InputError, "x.txt.gz: not a readable gz file"):
            extract.extract("x.txt.gz", gzip.compress(b"hello")[:-6])
        with self.assertRaisesRegex(InputError, 'x.jsonl:2: expected a JSON object with a "text" field'):
            extract.extract("x.jsonl", b'{"text": "a"}\n{"body": "b"}\n')


if __name__ == "__main__":
    unittest.main()
