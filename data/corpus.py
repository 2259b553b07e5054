"""Makes a clean corpus from raw documents: normalises text, removes duplicates, splits by document hash.

Text that could be on both sides of the split is removed before the split (Lee et al. 2022, "Deduplicating Training Data Makes Language
Models Better"): first equal documents, then long paragraphs that were seen before. The result does not depend on the order of the
documents.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field

LONG_PARAGRAPH = 100  # letters and digits; shorter paragraphs repeat in ordinary language


@dataclass(eq=False)
class Document:
    """One text and its name in its source."""

    name: str
    text: str
    digest: bytes = b""
    source: int = 0  # the place of its input in the manifest's `inputs`

    def __post_init__(self):
        self.digest = hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest()


@dataclass
class Removed:
    """How many documents each step dropped, and the characters of repeated paragraphs."""

    empty: int = 0
    duplicates: int = 0
    near_duplicates: int = 0
    paragraph_characters: int = 0
    beyond_limit: int = 0


@dataclass
class Split:
    train: list = field(default_factory=list)
    val: list = field(default_factory=list)


def normalise(text, keep_whitespace=False):
    """Normalises to NFKC and Unix line ends, removes control characters, and collapses runs of blanks and of empty lines unless kept."""
    text = unicodedata.normalize("NFKC", text).replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\u00ad\u200b-\u200f\ufeff\ufffd]", "", text)
    if keep_whitespace:
        return text.strip("\n")
    text = re.sub(r"[^\S\n]+", " ", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" ?\n ?", "\n", text)).strip()


def clean(documents, keep_whitespace=False, keep_duplicates=False):
    """(documents, Removed): normalised, deduplicated, in `shuffled` order."""
    removed = Removed()
    kept = [Document(document.name, normalise(document.text, keep_whitespace), source=document.source) for document in documents]
    full = [document for document in kept if document.text.strip()]
    removed.empty = len(kept) - len(full)
    return shuffled(full if keep_duplicates else _distinct(full, removed)), removed


def shuffled(documents):
    """Ordered by the end of the digest: always in the same order, and independent of the split, which uses the digest's beginning."""
    return sorted(documents, key=lambda d: (d.digest[::-1], d.name))


def _distinct(documents, removed):
    # Shorter documents first: chapters stay and the book made of them is dropped, which leaves more documents to split.
    documents.sort(key=lambda d: (len(d.text), d.digest, d.name))
    seen_documents, seen_paragraphs, kept = set(), set(), []
    for document in documents:
        if document.digest in seen_documents:
            removed.duplicates += 1
            continue
        seen_documents.add(document.digest)
        fresh, keys = [], set()
        for paragraph in document.text.split("\n\n"):
            letters = re.sub(r"[\W_]+", "", paragraph).lower()
            if len(letters) >= LONG_PARAGRAPH:
                if letters in seen_paragraphs or letters in keys:
                    continue
                keys.add(letters)
            fresh.append(paragraph)
        text = "\n\n".join(fresh).strip()
        if len(text) < 0.5 * len(document.text):
            removed.near_duplicates += 1
            continue
        seen_paragraphs |= keys
        removed.paragraph_characters += len(document.text) - len(text)
        kept.append(Document(document.name, text, source=document.source))
    return kept


def cut(documents, characters):
    """Cuts documents longer than `characters` into pieces, at the last end of a paragraph (or line) before the limit."""
    pieces = []
    for document in documents:
        text = document.text
        while len(text) > characters:
            at = max(text.rfind("\n\n", 1, characters), 0) or max(text.rfind("\n", 1, characters), 0) or characters
            pieces.append(Document(document.name, text[:at].strip("\n"), source=document.source))
            text = text[at:].lstrip("\n")
        pieces.append(Document(document.name, text, source=document.source))
    return shuffled(piece for piece in pieces if piece.text.strip())


def limit(documents, characters, removed):
    """The first documents that together hold `characters`."""
    total = 0
    for count, document in enumerate(documents):
        if total >= characters:
            removed.beyond_limit = len(documents) - count
            return documents[:count]
        total += len(document.text)
    return documents


def split(documents, val_fraction):
    """Splits by the documents' digests, so a document's side never depends on other documents. If no digest is below the fraction, the
    document with the smallest goes to validation, so that both sides hold text."""
    threshold = int(val_fraction * 2**64)
    sides = Split()
    for document in documents:
        side = sides.val if int.from_bytes(document.digest[:8], "big") < threshold else sides.train
        side.append(document)
    if not sides.val:
        sides.val.append(min(sides.train, key=lambda d: d.digest))
        sides.train.remove(sides.val[0])
    elif not sides.train:
        sides.train.append(max(sides.val, key=lambda d: d.digest))
        sides.val.remove(sides.train[0])
    return sides
