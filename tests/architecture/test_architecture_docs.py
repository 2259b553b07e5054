"""The pages that show a newcomer around say what is there: docs/architecture.md, docs/glossary.md and the README.md of every room.

Every path in backticks exists, and so does every path in a drawing. `namespace::Name` is declared in a header of that namespace's
folder, `Type::member` in a header that declares the type, and a `Type` alone in any header. Every key of a job is in docs/job.md. Every
link leads to a file and to a heading in it. Every room has its page, and the table of docs/architecture.md lists the rooms in their
order. The glossary is in alphabetical order.
"""

import collections
import re
import sys

from rooms import ROOMS, ROOT, namespace_of, room_of, sources

FOLDERS = [*ROOMS, "engine", "runtime", "tests"]
ARCHITECTURE, GLOSSARY = ROOT / "docs/architecture.md", ROOT / "docs/glossary.md"
# Files that a run writes, and the source file that names each.
WRITTEN = {
    "metrics.jsonl": "runtime/checkpoints/files/run_folder.cpp",
    "manifest.json": "runtime/checkpoints/files/manifest.h",
    "plan.toml": "cli/train/after_warm_up.cpp",
}
SUFFIXES = r"\.(?:h|cuh|cpp|cu|py|md|toml|txt|program)$"
SECTIONS = "model|cluster|method|train|adaptive|run|disturb|faults|checkpoint|recovery"
DECLARED = re.compile(r"^\s*(?:class|struct|union|enum class|enum|using)\s+(\w+)", re.M)
# What follows these on a line that is not indented: a function, a constant.
OUTERMOST = re.compile(r"(\w+)\s*[(=;{]")


def code_of(path):
    return re.sub(r"//[^\n]*|^#[^\n]*", "", path.read_text(), flags=re.M)


class Headers:
    """What headers declare: names by namespace, and by type the words of the headers that declare it."""

    def __init__(self):
        self.names, self.words = collections.defaultdict(set), collections.defaultdict(set)
        self.spaces = {"std"}
        for header in (h for top in {r.split("/")[0] for r in ROOMS} for h in sources(top) if h.suffix in {".h", ".cuh"}):
            path = header.relative_to(ROOT)
            if room_of(path) is None:
                continue
            space = namespace_of(path).removeprefix("rehearse").removeprefix("::")
            code = code_of(header)
            types = set(DECLARED.findall(code))
            words = set(re.findall(r"\w+", code))
            outermost = {name for line in code.splitlines() if line[:1].isalpha() for name in OUTERMOST.findall(line)}
            self.spaces.add(space)
            self.names[space] |= types | outermost
            for name in types:
                self.words[name] |= words
                self.words[space, name] |= words

    def lacks(self, name):
        """Why there is no such name; empty where there is."""
        plain = name.removeprefix("rehearse::")
        first, *rest = plain.split("::")
        if first == "std" or plain in self.spaces or (plain != name and plain in self.names[""]):
            return ""
        if first not in self.spaces:  # a type
            if first not in self.words:
                return "no header declares it"
            return "" if all(part in self.words[first] for part in rest) else f"no header of {first} has it"
        if rest[0] not in self.names[first]:
            return f"no header of namespace {first} declares {rest[0]}"
        return "" if all(part in self.words[first, rest[0]] for part in rest[1:]) else f"no header of {rest[0]} has it"


def exists(name, folder):
    """Relative to the top folder or to the page's; with a * that matches something."""
    for base in (ROOT, folder):
        if "*" in name:
            if any(base.glob(name)):
                return True
        elif (base / name).is_dir() if name.endswith("/") else (base / name).exists():
            return True
    return name in WRITTEN


def slugs(text):
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def complaints(page, text, headers, keys):
    """What a page says that is not so; `keys`: of docs/job.md."""
    drawings = "".join(re.findall(r"^```.*?^```", text, re.M | re.S))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for span in re.findall(r"`([^`\n]+)`", prose):
        key = re.match(rf"(?:{SECTIONS})\.[\w\[\].]+", span)
        if re.search(SUFFIXES, span) or re.fullmatch(r"[\w.*-]*/[\w./*-]*", span) or span in WRITTEN:
            if not exists(span, page.parent):
                yield f"`{span}`: there is no such file"
        elif re.fullmatch(r"\w+(?:::\w+)+|[A-Z][a-z]\w*", span):
            if why := headers.lacks(span):
                yield f"`{span}`: {why}"
        elif key and key[0] not in keys:
            yield f"`{span}`: no such key in docs/job.md"
    for path in re.findall(r"(?<![\w/.])(?:engine|runtime|cli|models|sim|study|tests)/[\w/.]*\w", drawings):
        if not exists(path, ROOT):
            yield f"{path}: there is no such file"
    for target, heading in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose):
        if target.startswith("https://"):
            continue
        file = page.parent / target if target else page
        if file != page and not file.is_file():
            yield f"({target}): the link leads nowhere"
        elif heading and heading not in slugs(text if file == page else file.read_text()):
            yield f"({target}#{heading}): no such heading"


def rooms_of_table(text):
    """The rooms that rows of a table begin with, each as a link to its page."""
    return re.findall(r"^\| \[[^\]]*\]\(\.\./([\w/]+)/README\.md\) \|", text, re.M)


def terms_of(text):
    return re.findall(r"^- \*\*(.+?)\*\*", text, re.M)


def unsorted(terms):
    plain = [re.sub(r"[^\w ]", " ", term.lower()) for term in terms]
    return [terms[i] for i in range(1, len(terms)) if plain[i] <= plain[i - 1]]


def self_check(headers):
    """The rules find what they are for, and leave a good page alone."""
    good = (
        "# A page\n`engine/link/link.h`, `engine/link/`, `link.h`, `models/*.toml`, `metrics.jsonl`, `rehearse::Config`, `Config`,\n"
        "`program::Program`, `link::link`, `program::Life::value`, `Schedule::rounds`, `std::visit`, `ddp`, `method.name = x`,\n"
        "[here](#a-page), [there](link.h)\n```\nengine/link -> engine/base\n```\n"
    )
    bad = (
        "`engine/link/nowhere.h`, `nothing/`, `nowhere*.toml`, `rehearse::Nothing`, `Nothing`, `program::Nothing`, `nothing::Program`,\n"
        "`program::Life::nothing`, `method.nothing`, [here](#nowhere), [there](nowhere.md)\n```\nengine/nowhere\n```\n"
    )
    page = ROOT / "engine/link/README.md"
    assert not (found := list(complaints(page, good, headers, {"method.name"}))), found
    assert len(found := list(complaints(page, bad, headers, {"method.name"}))) == 12, found
    assert rooms_of_table("| [sim](../sim/README.md) | x |\n| sim | x |\n") == ["sim"]
    assert unsorted(["age", "bound", "axis"]) == ["axis"]
    assert terms_of("- **age**: old\n") == ["age"]


def main():
    headers = Headers()
    if len(headers.words) < 200:
        sys.exit(f"only {len(headers.words)} types were found: the pattern is wrong")
    self_check(headers)
    keys = set(re.findall(rf"`((?:{SECTIONS})\.[\w\[\].]+)`", (ROOT / "docs/job.md").read_text()))
    pages = [ARCHITECTURE, GLOSSARY, *(ROOT / folder / "README.md" for folder in FOLDERS)]
    found = [f"{page.relative_to(ROOT)}: is missing" for page in pages if not page.is_file()]
    pages = [page for page in pages if page.is_file()]
    for page in pages:
        found += [f"{page.relative_to(ROOT)}: {what}" for what in complaints(page, page.read_text(), headers, keys)]
    if ARCHITECTURE in pages and (rooms := rooms_of_table(ARCHITECTURE.read_text())) != ROOMS:
        found.append(f"docs/architecture.md: its table lists {', '.join(rooms)}; rooms.py has {', '.join(ROOMS)}")
    terms = terms_of(GLOSSARY.read_text()) if GLOSSARY in pages else []
    found += [f"docs/glossary.md: {term} is not in alphabetical order" for term in unsorted(terms)]
    found += [
        f"{file} is written by nobody: {source} does not name it"
        for file, source in WRITTEN.items()
        if file not in (ROOT / source).read_text()
    ]
    print("\n".join(found) or f"{len(pages)} pages, {len(terms)} terms: all that they name exists")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
