"""Sources of text: files, folders, patterns and Debian packages. If none is named: the docstrings of the Python packages that the project
pins, which are English prose, and the same on every machine."""

import ast
import bz2
import glob
import gzip
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import lzma
import os
import pathlib
import re
import subprocess
import tarfile
import tempfile
import zlib

from data.corpus import Document
from data.errors import InputError

LIBRARIES = ("matplotlib", "numpy", "scipy")
LEAST_DOCSTRING = 200  # characters; a single line has little content
_UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
_PLAIN_TEXT = re.compile(r"\.(txt|text|md|rst)(\.(gz|bz2|xz))?$")


class Sources:
    """The documents read so far, and an entry of the manifest for each source."""

    def __init__(self):
        self.documents, self.entries, self.binary = [], [], 0

    def add(self, documents, **entry):
        checksum = hashlib.sha256()
        for document in documents:
            document.source = len(self.entries)
            checksum.update(f"{document.name}\n{document.text}\n".encode("utf-8", "surrogatepass"))
        self.documents += documents
        self.entries.append(entry | {"sha256": checksum.hexdigest(), "documents": len(documents)})

    def named(self, pattern):
        """Reads a file, a folder or everything that a pattern matches."""
        paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not paths:
            raise InputError(f"{pattern}: no such file, folder or match")
        for path in map(pathlib.Path, paths):
            if path.is_dir():
                self.folder(path)
            elif path.suffix == ".deb":
                self.package(path)
            else:
                self.add(self.texts(path.name, read(path)), kind="file", name=path.name)

    def folder(self, path):
        found, packages = [], []
        for file in sorted(path.rglob("*")):
            inside = file.relative_to(path)
            if file.is_file() and not any(part.startswith(".") for part in inside.parts):
                if file.suffix == ".deb":
                    packages.append(file)
                else:
                    found += self.texts(str(inside), read(file))
        self.add(found, kind="folder", name=path.resolve().name)
        for package in packages:
            self.package(package)

    def package(self, path):
        """Reads the plain text in a .deb."""
        name, version = printed(path, "dpkg-deb", "--show", "--showformat=${Package} ${Version}", path).decode().split()
        found = []
        with tarfile.open(fileobj=io.BytesIO(printed(path, "dpkg-deb", "--fsys-tarfile", path))) as tar:
            for entry in tar:
                if entry.isreg() and _PLAIN_TEXT.search(entry.name):
                    found += self.texts(entry.name.removeprefix("./"), tar.extractfile(entry).read())
        self.add(found, kind="debian", name=name, version=version)

    def library(self, name):
        """Reads the docstrings of an installed Python package without running it."""
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise InputError(f"no INPUT is given and this Python has no {name} whose docstrings to read; tools/python has them")
        found = []
        for file in sorted(pathlib.Path(spec.submodule_search_locations[0]).rglob("*.py")):
            if "tests" not in file.parts:
                texts = docstrings(ast.parse(file.read_bytes()))
                found += [Document(file.name, text) for text in texts if len(text) >= LEAST_DOCSTRING]
        self.add(found, kind="docstrings", name=name, version=importlib.metadata.version(name))

    def texts(self, name, data):
        """The documents in a file's bytes; none in a binary file."""
        base, suffix = os.path.splitext(name)
        if suffix in _UNPACK:
            try:
                data = _UNPACK[suffix](data)
            except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                raise InputError(f"{name}: not a readable {suffix[1:]} file ({error})") from None
        else:
            base = name
        text = decode(data)
        if text is None:
            self.binary += 1
            return []
        if base.endswith((".jsonl", ".ndjson")):
            return list(json_lines(name, text))
        return [Document(name, text)]


def read(path):
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def decode(data):
    """Decodes as UTF-8, as UTF-16 if a byte-order mark says so, or else as Windows-1252; None for a binary file."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:65536]:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def docstrings(node):
    """The docstrings of a module and of all classes and functions in it, nested ones included."""
    yield ast.get_docstring(node) or ""
    for inside in node.body:
        if isinstance(inside, ast.ClassDef | ast.FunctionDef):
            yield from docstrings(inside)


def json_lines(name, text):
    """The "text" field of every line."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)["text"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise InputError(f'{name}:{number}: expected a JSON object with a "text" field') from None
        if not isinstance(value, str):
            raise InputError(f'{name}:{number}: the "text" field is not a string')
        yield Document(f"{name}:{number}", value)


def printed(about, *words, folder=None):
    """The output of a Debian program; InputError with its message if it fails."""
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})
    except FileNotFoundError:
        raise InputError(f"{about}: needs {words[0]}, which is not installed") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").splitlines() or [f"exit status {done.returncode}"]
        errors = [line for line in said if re.match(r"E: |dpkg-deb: error: ", line)]
        raise InputError(f"{about}: {words[0]}: {re.sub('^(E|dpkg-deb: error): ', '', (errors or said)[0])}")
    return done.stdout


def download(package, cache):
    """The path of a package's .deb; downloads it, without root, if it is not in the cache."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", package):
        raise InputError(f"--debian: '{package}' is not a package name (lower-case letters, digits, '+', '-' and '.')")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not (found := sorted(cache.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime)):
            with tempfile.TemporaryDirectory(prefix=".download-", dir=cache) as folder:
                printed(f"--debian {package}", "apt-get", "-q", "download", package, folder=folder)
                found = [path.rename(cache / path.name) for path in pathlib.Path(folder).glob("*.deb")]
    except OSError as error:
        raise InputError(f"cannot write the package cache {cache}: {error.strerror}") from None
    if not found:
        raise InputError(f"--debian {package}: apt-get downloaded no package")
    return found[-1]


def gather(options, progress):
    sources = Sources()
    progress.stage("reading")
    packages = [p.strip() for p in (options.debian or "").split(",") if p.strip()]
    if options.debian is not None and not packages:
        raise InputError("--debian: no package named")
    readers = [(sources.named, pattern) for pattern in options.inputs]
    readers += [(lambda package: sources.package(download(package, options.cache)), package) for package in dict.fromkeys(packages)]
    readers = readers or [(sources.library, name) for name in LIBRARIES]
    for at, (reader, name) in enumerate(readers, 1):
        reader(name)
        progress.update(at, len(readers))
    if not sources.documents:
        binary = f" ({sources.binary} binary files)" if sources.binary else ""
        raise InputError(f"no text found in {', '.join([*options.inputs, *packages])}{binary}")
    return sources
