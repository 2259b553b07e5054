"""From raw documents to a clean corpus: NFKC, licences and duplicates out, then a split by document
hash.

Order matters: everything that could put the same text on both sides of the split is removed before
it (Lee et al. 2022, "Deduplicating Training Data Makes Language Models Better"). Duplicates are
removed twice: whole documents that are equal, then long paragraphs seen before (a manual shipped
page by page and as one file, a preface in every chapter). The result does not depend on the order
in which documents arrive.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field

_LICENCE_TITLE = re.compile(
    r"^\W*(the\s+)?(gnu\s+(lesser\s+|library\s+|affero\s+)?general public licen[cs]e|gnu free"
    r" documentation licen[cs]e|"
    r"apache licen[cs]e|mozilla public licen[cs]e|the artistic licen[cs]e|creative commons legal"
    r" code|"
    r"(the )?(mit|bsd|isc) licen[cs]e|open publication licen[cs]e)\b",
    re.I,
)
_LICENCE_PARAGRAPH = re.compile(
    r"permission (is hereby|is) granted|all rights reserved|general public licen[cs]e|free"
    r" documentation licen[cs]e|"
    r"without (even the implied )?warranty|provided .?as is.? |redistribution and use in"
    r" source|creative commons|"
    r"licensed under|project gutenberg|(copyright|©|\(c\))\W{0,4}(\(c\)|©)?\s*(19|20)\d\d|"
    r"\bcopyright (holder|notice|statement)s?\b",
    re.I,
)
_BOILERPLATE_FILE = re.compile(
    r"(^|/)(copyright|copying|licen[cs]e|changelog|changes|news|authors|credits|thanks|contributors|genindex|search|"
    r"index-all|py-modindex|bookindex|lintian|overrides?)([._-][^/]*)?(/|$)",
    re.I,
)
_COMMON = frozenset("the of and to a in is that for it be with as on or this are not by you was i he she had his her at".split())
LONG_PARAGRAPH = 100  # characters of letters and digits: below, repetition is ordinary language


@dataclass(eq=False)
class Document:
    """One text, the index of the input it came from and its name there."""

    source: int
    name: str
    text: str
    rank: int = 0  # of the format: of two documents that say the same, the lower rank stays
    english_only: bool = False
    digest: bytes = b""


@dataclass
class Removed:
    """How many documents each step dropped, and the characters of repeated paragraphs and
    licences."""

    empty: int = 0
    licences: int = 0
    not_english: int = 0
    duplicates: int = 0
    near_duplicates: int = 0
    paragraph_characters: int = 0
    beyond_limit: int = 0


@dataclass
class Split:
    train: list = field(default_factory=list)
    val: list = field(default_factory=list)


def is_boilerplate_file(name):
    return bool(_BOILERPLATE_FILE.search(name))


def normalise(text, keep_whitespace=False):
    """NFKC, Unix line ends, no control characters; runs of blanks and of empty lines collapsed
    unless kept."""
    text = unicodedata.normalize("NFKC", text).replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\u00ad\u200b-\u200f\ufeff\ufffd]", "", text)
    if keep_whitespace:
        return text.strip("\n")
    text = re.sub(r"[^\S\n]+", " ", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" ?\n ?", "\n", text)).strip()


def looks_english(text):
    """Common English words make a quarter of prose, a tenth of tables and code, less of other
    languages."""
    words = re.findall(r"[^\W\d_]+", text[:20000].lower())
    return len(words) >= 30 and sum(w in _COMMON for w in words) >= 0.18 * len(words)


def is_licence(text):
    return bool(_LICENCE_TITLE.search(text[:300]))


def _without_licences(text):
    kept = [p for p in text.split("\n\n") if not (len(p) < 4000 and _LICENCE_PARAGRAPH.search(p))]
    return "\n\n".join(kept)


def digest(text):
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def clean(documents, keep_whitespace=False, keep_duplicates=False, keep_licences=False):
    """(documents, Removed): normalised, deduplicated, in `shuffled` order."""
    removed = Removed()
    kept = []
    for document in documents:
        text = normalise(document.text, keep_whitespace)
        if not keep_licences:
            if is_licence(text):
                removed.licences += 1
                continue
            before = len(text)
            text = _without_licences(text)
            removed.paragraph_characters += before - len(text)
        if not text.strip():
            removed.empty += 1
        elif document.english_only and not looks_english(text):
            removed.not_english += 1
        else:
            document.text, document.digest = text, digest(text)
            kept.append(document)
    if not keep_duplicates:
        kept = _distinct(kept, removed)
    return shuffled(kept), removed


def shuffled(documents):
    """Ordered by the end of the digest: the same every time, and independent of the split, which
    reads its beginning."""
    return sorted(documents, key=lambda d: (d.digest[::-1], d.source, d.name))


def _distinct(documents, removed):
    # The shorter first: chapters survive, and the book made of them goes. More is left to split.
    documents.sort(key=lambda d: (d.rank, len(d.text), d.digest, d.source, d.name))
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
                key = hashlib.blake2b(letters.encode("utf-8", "surrogatepass"), digest_size=8).digest()
                if key in seen_paragraphs or key in keys:
                    continue
                keys.add(key)
            fresh.append(paragraph)
        text = "\n\n".join(fresh).strip()
        if len(text) < 0.5 * len(document.text):
            removed.near_duplicates += 1
            continue
        seen_paragraphs |= keys
        if text != document.text:
            removed.paragraph_characters += len(document.text) - len(text)
            document.text, document.digest = text, digest(text)
        kept.append(document)
    return kept


def cut(documents, characters):
    """Documents longer than `characters` become pieces, cut at the last paragraph (or line) end
    before the limit."""
    pieces = []
    for document in documents:
        text = document.text
        while len(text) > characters:
            at = max(text.rfind("\n\n", 1, characters), 0) or max(text.rfind("\n", 1, characters), 0) or characters
            pieces.append(Document(document.source, document.name, text[:at].strip("\n")))
            text = text[at:].lstrip("\n")
        pieces.append(Document(document.source, document.name, text))
    pieces = [p for p in pieces if p.text.strip()]
    for piece in pieces:
        piece.digest = digest(piece.text)
    return shuffled(pieces)


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
    """By the documents' digests, so a document's side never depends on the other documents.

    Where no digest falls below the fraction, the smallest one goes to validation: both sides hold
    text.
    """
    threshold = int(val_fraction * 2**64)
    sides = Split()
    for document in documents:
        side = sides.val if int.from_bytes(document.digest[:8], "big") < threshold else sides.train
        side.append(document)
    if not sides.val and len(sides.train) > 1:
        sides.val.append(min(sides.train, key=lambda d: d.digest))
        sides.train.remove(sides.val[0])
    elif not sides.train and len(sides.val) > 1:
        sides.train.append(max(sides.val, key=lambda d: d.digest))
        sides.val.remove(sides.train[0])
    return sides
