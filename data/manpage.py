"""Plain text from man pages, in man(7) or mdoc(7): fonts and requests go, fill mode joins lines,
escapes become characters."""

import re

from data.paragraphs import fill

_ROFF = {
    "em": "—",
    "en": "–",
    "hy": "-",
    "bu": "-",
    "lq": '"',
    "rq": '"',
    "oq": "'",
    "cq": "'",
    "aq": "'",
    "dq": '"',
    "co": "(c)",
    "rg": "(R)",
    "ha": "^",
    "ti": "~",
    "rs": "\\",
    "ga": "`",
    "<=": "<=",
    ">=": ">=",
    "->": "->",
    "mu": "x",
    "+-": "+/-",
    "sl": "/",
    "bv": "|",
    "or": "|",
    "R": "(R)",
    "Tm": "(TM)",
    "lB": "[",
    "rB": "]",
    'L"': '"',
    'R"': '"',
    "T<": "<",
    "T>": ">",
    "C+": "C++",
    "C`": "",
    "C'": "",
}
_ROFF_ESCAPE = re.compile(
    r"\\(?:f(?:\[[^\]]*\]|\(..|.)|s(?:\[[^\]]*\]|[-+]?\d{1,2}|\([-+]?\d\d)|[vhwLlDXZobNk]'[^']*'|\*(?:\[([^\]]*)\]|\((..)|(.))|"
    r"n(?:\[[^\]]*\]|\(..|.)|\(([^\s]{2})|\[([^\]]*)\]|([-e&|^%c0~ /,)'`:{}.\\tdupsamzA-Z]))"
)


def _unroff(text):
    def plain(match):
        string, string2, string1, two, bracket, one = match.groups()
        name = string or string2 or string1 or two or bracket
        if name is not None:
            code = re.fullmatch(r"u([0-9A-F]{4,6})", name)
            return chr(int(code.group(1), 16)) if code else _ROFF.get(name, "")
        return {
            "-": "-",
            "e": "\\",
            "\\": "\\",
            "~": " ",
            " ": " ",
            "0": " ",
            "'": "'",
            "`": "`",
            ".": ".",
            "t": "\t",
        }.get(one, "")

    return _ROFF_ESCAPE.sub(plain, re.sub(r"\\[\"#].*", "", text))


def from_man(text):
    """A man page, man(7) or mdoc(7); "" for one that only points to another."""
    lines, filling, skip = [], True, None
    for raw in text.replace("\\\n", "").splitlines():
        if skip:
            skip = None if re.match(skip, raw) else skip
            continue
        macro = re.match(r"[.']\s*([A-Za-z0-9]+|\\\")\s?(.*)", raw)
        if not macro:
            line = _unroff(raw) if raw[:1] not in (".", "'") else ""
            lines.append(line.strip() if filling else (line,) if line.strip() else None)
            continue
        name, rest = macro.groups()
        if name == "so":
            return ""
        if name in ("de", "de1", "ig", "am"):
            skip = r"\.\s*\.\s*$"
        elif name in ("TS", "EQ"):
            skip = r"\.(TE|EN)\b"
        elif name in ("nf", "EX", "Bd", "Vb", "fi", "EE", "Ed", "Ve"):
            filling = name in ("fi", "EE", "Ed", "Ve")
            lines.append(None)
        elif name in ("SH", "SS", "Sh", "Ss"):
            filling = True
            lines += [None, " ".join(_arguments(rest)), None]
        elif name in ("B", "I", "SM", "SB", "UR", "MT", "Nd"):
            lines.append(("- " if name == "Nd" else "") + " ".join(_arguments(rest)))
        elif name in ("BR", "RB", "BI", "IB", "IR", "RI"):
            lines.append("".join(_arguments(rest)))
        elif name in ("IP", "TP", "HP", "PP", "P", "LP", "TQ", "sp", "br", "Pp", "It", "RS", "RE"):
            lines.append(None)
            if name in ("IP", "It") and rest:
                lines.append(_mdoc(rest) if name == "It" else (_arguments(rest) or [""])[0])
        elif re.fullmatch(r"[A-Z][a-z]|Dlurl", name) and name not in (
            "Dd",
            "Dt",
            "Os",
            "El",
            "Bl",
            "Ek",
            "Bk",
            "Rs",
            "Re",
        ):
            lines.append(_mdoc(name + " " + rest))
    return fill([line if line is None or isinstance(line, tuple) else re.sub(r"\s+", " ", line) for line in lines])


def _arguments(rest):
    return [_unroff(a or b) for a, b in re.findall(r'"((?:[^"]|"")*)"|(\S+)', re.sub(r"\\\".*", "", rest))]


def _mdoc(rest):
    words = []
    for word in _arguments(rest):
        if re.fullmatch(r"[A-Z][a-z]|Oo|Oc|Xo|Xc", word):
            continue
        if words and re.fullmatch(r"[.,;:)\]]", word):
            words[-1] += word
        else:
            words.append(word)
    return " ".join(words)
