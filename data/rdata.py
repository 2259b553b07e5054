"""The books in an R lazy-load database, by the "R Internals" manual: zlib blocks of serialized
character vectors."""

import re
import struct
import zlib

from data.errors import InputError
from data.paragraphs import fill


def r_character_vectors(data):
    """The books in an R lazy-load database: blocks of [4-byte length, zlib stream], each a
    serialized character vector.

    Only plain vectors of strings count (one string a line of the book); a book is cut at its
    chapter headings, so that a document is a chapter.
    """
    documents, position = [], 0
    while position + 6 < len(data):
        stream = zlib.decompressobj()
        try:
            block = stream.decompress(data[position + 4 :])
        except zlib.error as error:
            raise InputError(f"not an R lazy-load database of zlib blocks ({error})") from None
        position = len(data) - len(stream.unused_data)
        lines = _strings(block)
        if sum(map(len, lines)) < 20000:
            continue
        chapter = []
        for line in [*lines, "CHAPTER"]:
            if re.match(r"\s*(CHAPTER|Chapter|VOLUME)\b", line):
                documents.append(fill([text.strip() for text in chapter]))
                chapter = []
            chapter.append(line)
    return [d for d in documents if len(d) > 500]


def _strings(block):
    """CHARSXP items of R's XDR serialization: a flags word whose low byte is 9, a length, the
    bytes."""
    lines, position = [], 0
    while (found := block.find(b"\x09", position)) >= 0:
        position = found + 1
        if found < 3 or block[found - 3] != 0 or found + 5 > len(block):
            continue
        (length,) = struct.unpack_from(">i", block, found + 1)
        if 0 <= length < 4096 and found + 5 + length <= len(block):
            lines.append(block[found + 5 : found + 5 + length].decode("utf-8", "replace"))
            position = found + 5 + length
    return lines
