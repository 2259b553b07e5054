"""Plain text from the formats documentation comes in: HTML, reStructuredText, man pages, POD, Info,
JSON lines, R data.

Every extractor returns paragraphs separated by one blank line. Navigation, tables of contents,
scripts and markup are dropped; preformatted blocks keep their lines. The formats' own manuals are
the reference: docutils for reStructuredText, perlpod(1), and the Info format of Texinfo; man pages
and R data have files of their own.
"""

import bz2
import gzip
import html.parser
import json
import lzma
import re
import zlib

from data.errors import InputError
from data.manpage import from_man
from data.paragraphs import fill
from data.rdata import r_character_vectors

_UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
_KINDS = {
    "html": (".html", ".htm", ".xhtml"),
    "rst": (".rst", ".rst.txt"),
    "pod": (".pod",),
    "info": (".info",),
    "jsonl": (".jsonl", ".ndjson"),
    "rdb": (".rdb",),
    "text": (".txt", ".text", ".md", ".markdown", ".asciidoc", ".adoc"),
}


def split_name(name):
    """("a/b.en.html.gz") -> ("b.en.html", compression suffix or "")."""
    base = name.rsplit("/", 1)[-1]
    for suffix in _UNPACK:
        if base.lower().endswith(suffix):
            return base[: -len(suffix)], suffix
    return base, ""


def kind_of(name):
    """The format a file name stands for, or None where the name does not say."""
    base, _ = split_name(name)
    for kind, endings in _KINDS.items():
        if base.lower().endswith(endings):
            return kind
    if re.search(r"\.info-\d+$", base):
        return "info"
    if re.search(r"(^|/)man/(?:[^/]+/)?man[1-9]/|\.[1-9](?:p|pm|perl|ssl|x)?$", name.removesuffix(".gz")):
        return "man"
    return None


def extract(name, data, kind=None):
    """The documents in one file, as a list of strings; [] for a binary file.

    `kind` overrides the name's format.
    """
    kind = kind or kind_of(name) or "text"
    suffix = split_name(name)[1]
    if suffix:
        try:
            data = _UNPACK[suffix](data)
        except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
            raise InputError(f"{name}: not a readable {suffix[1:]} file ({error})") from None
    if kind == "rdb":
        return r_character_vectors(data)
    text = decode(data, kind == "html")
    if text is None:
        return []
    if kind == "jsonl":
        return json_lines(name, text)
    return [
        {
            "html": from_html,
            "rst": from_rst,
            "pod": from_pod,
            "info": from_info,
            "man": from_man,
        }.get(kind, str)(text)
    ]


def decode(data, is_html=False):
    """Text, or None for a binary file.

    UTF-8 unless a mark or an HTML charset says otherwise; Windows-1252 as last resort.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:65536]:
        return None
    charset = re.search(rb"charset=[\"']?([\w-]+)", data[:2048]) if is_html else None
    for encoding in ("utf-8-sig", charset.group(1).decode() if charset else "utf-8"):
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    return data.decode("cp1252", "replace")


def json_lines(name, text):
    """The "text" field of every line."""
    documents = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            documents.append(json.loads(line)["text"])
        except (json.JSONDecodeError, KeyError, TypeError):
            raise InputError(f'{name}:{number}: expected a JSON object with a "text" field') from None
        if not isinstance(documents[-1], str):
            raise InputError(f'{name}:{number}: the "text" field is not a string')
    return documents


class _HtmlText(html.parser.HTMLParser):
    SKIP = {
        "script",
        "style",
        "head",
        "nav",
        "footer",
        "noscript",
        "svg",
        "template",
        "button",
        "form",
        "select",
    }
    BLOCK = set("p div li dt dd h1 h2 h3 h4 h5 h6 blockquote section article tr table ul ol dl pre hr body".split())
    VOID = set("area base br col embed hr img input link meta source track wbr".split())
    NAVIGATION = re.compile(
        r"\b(nav\w*|toc\w*|menu|sphinxsidebar\w*|related|footer|header-?link|headerlink|breadcrumbs?|"
        r"copyright|legalnotice|indexterm)\b",
        re.I,
    )

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.paragraphs, self.parts = [], []
        self.skipped = []  # the open elements inside a dropped one, outermost first
        self.pre = 0

    def handle_starttag(self, tag, attrs):
        if self.skipped:
            if tag not in self.VOID:
                self.skipped.append(tag)
            return
        named = " ".join(v or "" for k, v in attrs if k in ("class", "role", "id"))
        if tag in self.SKIP or (tag != "body" and tag != "html" and named and self.NAVIGATION.search(named)):
            if tag not in self.VOID:
                self.flush()
                self.skipped.append(tag)
            return
        if tag in self.BLOCK:
            self.flush()
        if tag == "pre":
            self.pre += 1
        elif tag == "br":
            self.parts.append("\n" if self.pre else " ")
        elif tag in ("td", "th"):
            self.parts.append(" ")

    def handle_endtag(self, tag):
        if self.skipped:
            if tag in self.skipped:  # tolerate elements that were never closed
                while self.skipped.pop() != tag:
                    pass
            elif tag in ("body", "html"):
                self.skipped.clear()
            return
        if tag in self.BLOCK:
            self.flush()
        if tag == "pre" and self.pre:
            self.pre -= 1

    def handle_data(self, data):
        if not self.skipped:
            self.parts.append(data)

    def flush(self):
        text = "".join(self.parts)
        self.parts = []
        if not self.pre:
            text = " ".join(text.split())
        if text.strip():
            self.paragraphs.append(text.strip("\n"))


def from_html(text):
    """Paragraphs of a page without its navigation."""
    parser = _HtmlText()
    parser.feed(text)
    parser.close()
    parser.flush()
    return "\n\n".join(parser.paragraphs)


def from_rst(text):
    """ReStructuredText: directives, targets, options and underlines go, roles keep their text."""
    lines, literal = [], False
    for line in text.splitlines():
        if literal and line and not line[0].isspace():
            literal = False
        if re.match(r"\s*(\.\. |:[\w-]+:(\s|$)|\.\.$)", line) or re.fullmatch(r"\s*([=\-~^\"'`#*+.:_])\1{2,}\s*", line):
            lines.append(None)
            continue
        if literal and line.strip():
            lines.append((line,))
            continue
        literal = literal or line.rstrip().endswith("::")
        line = re.sub(r"::\s*$", ":", line)
        line = re.sub(r":[\w:-]+:`([^`<]*?)\s*(?:<[^`>]*>)?`", r"\1", line)
        line = re.sub(r"`([^`<]*?)\s*<[^`>]*>`_+", r"\1", line)
        line = re.sub(
            r"``([^`]*)``|`([^`]*)`_*|\*\*(\S[^*]*)\*\*|\*(\S[^*]*)\*",
            lambda m: next(g for g in m.groups() if g is not None),
            line,
        )
        if re.match(r"\s*([-*+]|\d+[.)]|#\.) ", line):
            lines.append(None)
        lines.append(line.strip())
    return fill(lines)


def from_pod(text):
    """Perl's Plain Old Documentation, also inside a program."""
    lines, skip, pod = [], False, not re.search(r"^=(head1|pod)", text, re.M)
    for line in text.splitlines():
        command = re.match(r"=([a-zA-Z]\w*)\s*(.*)", line)
        if command:
            name, rest = command.groups()
            pod = name != "cut"
            skip = name == "begin" or (skip and name != "end")
            lines.append(None)
            if (name.startswith("head") or name == "item") and rest not in ("*", "") and not skip:
                lines += [_unpod(rest), None]
        elif pod and not skip:
            lines.append((line,) if line[:1].isspace() and line.strip() else _unpod(line))
    return fill(lines)


def _unpod(line):
    line = re.sub(r"[XZ]<[^<>]*>", "", line)
    line = re.sub(
        r"E<(\w+)>",
        lambda m: {"lt": "\1", "gt": "\2", "sol": "/", "verbar": "|"}.get(m.group(1), ""),
        line,
    )
    line = re.sub(r"[A-Z]<<+ (.*?) >>+", lambda m: m.group(1).replace("<", "\1").replace(">", "\2"), line)
    for _ in range(4):
        line = re.sub(
            r"L<(?:([^<>|]*)\|)?([^<>]*)>",
            lambda m: m.group(1) or m.group(2).replace("/", " "),
            line,
        )
        line = re.sub(r"[BCFIS]<([^<>]*)>", r"\1", line)
    return line.replace("\1", "<").replace("\2", ">")


def from_info(text):
    """An Info file: node headers, menus and tables go, underlined headings stay."""
    paragraphs = []
    for node in text.split("\x1f")[1:] or [text]:
        if re.match(r"\s*(Tag Table|Indirect|Local Variables|End Tag Table)", node):
            continue
        node = re.sub(r"^\s*File: .*$", "", node, count=1, flags=re.M)
        node = re.sub(r"^\* (Menu:.*|.*::.*|[^:\n]+: .*\.)$(\n {20,}.*)*", "", node, flags=re.M)
        node = re.sub(r"^([*=\-.])\1{2,}$", "", node, flags=re.M)
        node = re.sub(r"\*[Nn]ote\s+([^:]+)::?", r"\1", node)
        paragraphs.append(node.strip())
    return "\n\n".join(p for p in paragraphs if p)
