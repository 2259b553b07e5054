"""Reading the inputs: files, folders, patterns and Debian packages become documents and a list of
what they were."""

import glob
import hashlib
import os
import sys

from data import corpus, debian, extract
from data.errors import InputError

# Of two formats of one page the lower is the cleaner text.
_RANK = {"html": 0, "rst": 1, "pod": 1, "rdb": 1, "jsonl": 1, "text": 2, "man": 3, "info": 4}


def warn(message):
    print(f"data/prepare.py: warning: {message}", file=sys.stderr)


class Gathering:
    """The inputs read so far and the documents found in them."""

    def __init__(self):
        self.inputs, self.documents, self.skipped = [], [], 0

    def _add(self, name, data, source, only_prose):
        kind = extract.kind_of(name)
        if only_prose and (kind is None or corpus.is_boilerplate_file(name)):
            return 0
        documents = [
            corpus.Document(source, f"{name}#{i}" if i else name, text, _RANK.get(kind, 2), only_prose)
            for i, text in enumerate(extract.extract(name, data, kind))
        ]
        self.skipped += not documents
        self.documents += documents
        return len(documents)

    def file(self, path, name):
        data = _read(path)
        if name.endswith(".deb"):
            self.package(path, data)
            return
        count = self._add(name, data, len(self.inputs), False)
        self.inputs.append(
            {
                "kind": "file",
                "path": name,
                "sha256": debian.sha256(data),
                "bytes": len(data),
                "documents": count,
            }
        )

    def package(self, path, data):
        package, version = debian.identity(path)
        source, best, files = len(self.inputs), {}, []
        for name, content in debian.members(path, data):
            kind = extract.kind_of(name)
            if kind and not corpus.is_boilerplate_file(name):
                # One page often comes as HTML and as its source: the better format is read.
                stem = extract.split_name(name)[0].split(".")[0].lower()
                best[stem] = min(best.get(stem, 9), _RANK[kind])
                files.append((stem, _RANK[kind], name, content))
        count = sum(self._add(name, content, source, True) for stem, rank, name, content in files if rank == best[stem])
        self.inputs.append(
            {
                "kind": "debian",
                "package": package,
                "version": version,
                "sha256": debian.sha256(data),
                "bytes": len(data),
                "documents": count,
            }
        )

    def folder(self, path, installed=False):
        """All text files below a folder: one input, whose checksum covers every name and content in
        it."""
        files = []
        for root, folders, names in os.walk(path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            files += [os.path.join(root, n) for n in sorted(names) if not n.startswith(".")]
        checksum, size, count, used, packages = hashlib.sha256(), 0, 0, 0, []
        for file in sorted(files):
            name = os.path.relpath(file, path)
            if not os.path.isfile(file) or (installed and (os.path.islink(file) or not os.access(file, os.R_OK))):
                continue
            if name.endswith(".deb") and not installed:
                packages.append(file)
                continue
            if installed and (extract.kind_of(file) is None or corpus.is_boilerplate_file(name)):
                continue
            data = _read(file)
            found = self._add(
                os.path.join(os.path.basename(os.path.abspath(path)), name),
                data,
                len(self.inputs),
                installed,
            )
            if found:
                checksum.update(f"{name}\n{debian.sha256(data)}\n".encode("utf-8", "surrogateescape"))
                size, count, used = size + len(data), count + found, used + 1
        self.inputs.append(
            {
                "kind": "installed" if installed else "folder",
                "path": path if installed else os.path.basename(os.path.abspath(path)),
                "files": used,
                "sha256": checksum.hexdigest(),
                "bytes": size,
                "documents": count,
            }
        )
        for file in packages:
            self.package(file, _read(file))


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def gather(options, progress):
    gathering = Gathering()
    progress.stage("reading")
    for pattern in options.inputs:
        paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not paths:
            raise InputError(f"{pattern}: no such file, folder or match")
        for path in paths:
            if os.path.isdir(path):
                gathering.folder(path)
            else:
                gathering.file(path, os.path.basename(path))
    if options.debian or not options.inputs:
        _debian(options, gathering, progress)
    if not gathering.documents:
        where = ", ".join(options.inputs) or "the Debian packages"
        raise InputError(f"no text found in {where}" + (f" ({gathering.skipped} binary files)" if gathering.skipped else ""))
    return gathering


def _debian(options, gathering, progress):
    wanted = [p.strip() for p in (options.debian or "default").split(",") if p.strip()]
    packages = [q for p in wanted for q in (debian.DEFAULT_PACKAGES if p == "default" else (p,))]
    packages = list(dict.fromkeys(packages))
    if not packages:
        raise InputError("--debian: no package named")
    cache = options.cache or debian.cache_folder()
    try:
        paths = debian.fetch(packages, cache, options.refresh, options.offline)
    except debian.AptUnavailable as error:
        paths = [path for p in packages if (path := debian.cached(p, cache))]
        instead = "the packages in the cache" if paths else "the documentation installed on this machine"
        warn(f"cannot download packages ({error}); using {instead}")
    for at, path in enumerate(paths):
        gathering.file(path, os.path.basename(path))
        progress.update(at + 1, len(paths))
    if not paths:
        for folder in debian.INSTALLED_FOLDERS:
            if sum(len(d.text) for d in gathering.documents) < 20e6:
                gathering.folder(folder, installed=True)
