"""Debian packages as a source of text, without root: download, read, never install.

`apt-get download` needs no root and no installed package; where the package lists are missing (a
fresh container), a private copy of them is fetched into the cache. A .deb is an `ar` archive with a
data.tar inside (deb(5)); it is read in memory. Downloads are kept in
${XDG_CACHE_HOME:-~/.cache}/rehearse/debs and reused.
"""

import difflib
import gzip
import hashlib
import io
import lzma
import os
import re
import subprocess
import tarfile
import tempfile
import urllib.parse

from data.errors import InputError

# Real English prose, 9.4 MB to download, 9 MB of text: reference books, manuals and six novels.
DEFAULT_PACKAGES = (
    "debian-reference-en",
    "developers-reference",
    "debian-policy",
    "debian-faq",
    "git-doc",
    "r-cran-janeaustenr",
)
INSTALLED_FOLDERS = (
    "/usr/share/doc",
    "/usr/share/man/man7",
    "/usr/share/man/man8",
    "/usr/share/man/man5",
    "/usr/share/man/man1",
    "/usr/share/perl",
)


class AptUnavailable(Exception):
    """There is no apt-get here, or it cannot reach an archive."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "rehearse", "debs")


def fetch(packages, cache, refresh=False, offline=False):
    """Paths of one .deb for each package, in order; downloads what the cache does not hold.

    Raises InputError for a package the archive does not know, AptUnavailable where nothing can be
    downloaded.
    """
    for package in packages:
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", package):
            raise InputError(f"--debian: '{package}' is not a package name (lower-case letters, digits, '+', '-' and '.')")
    found = {} if refresh else {p: path for p in packages if (path := cached(p, cache))}
    missing = [p for p in packages if p not in found]
    if missing and offline:
        raise AptUnavailable(f"not in {cache}: {', '.join(missing)}")
    if missing:
        found.update(_download(missing, cache))
    return [found[p] for p in packages]


def cached(package, cache):
    try:
        names = [n for n in os.listdir(cache) if n.startswith(package + "_") and n.endswith(".deb")]
    except OSError:
        return None
    paths = sorted((os.path.join(cache, n) for n in names), key=os.path.getmtime)
    return paths[-1] if paths else None


def _apt(arguments, folder, options=()):
    try:
        done = subprocess.run(
            ["apt-get", "-q", *options, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise AptUnavailable("apt-get is not installed") from None
    except subprocess.TimeoutExpired:
        raise AptUnavailable("apt-get did not answer within 300 s") from None
    return done.returncode, done.stdout + done.stderr


def _download(packages, cache):
    try:
        os.makedirs(cache, exist_ok=True)
        beside = tempfile.TemporaryDirectory(prefix=".download-", dir=cache)
    except OSError as error:
        raise InputError(f"cannot write the package cache {cache}: {error.strerror}") from None
    with beside as folder:
        code, output = _apt(["download", *packages], folder)
        unknown = re.findall(r"Unable to locate package (\S+)", output)
        if code and (unknown or "no installation candidate" in output or "Can't find a source" in output):
            # A misspelt name or a machine without package lists: a private copy of them tells.
            private = os.path.join(os.path.dirname(cache), "apt")
            for part in ("state/lists/partial", "cache/archives/partial"):
                os.makedirs(os.path.join(private, part), exist_ok=True)
            options = (
                "-o",
                f"Dir::State={private}/state",
                "-o",
                f"Dir::State::lists={private}/state/lists",
                "-o",
                f"Dir::Cache={private}/cache",
                "-o",
                "Dir::State::status=/var/lib/dpkg/status",
            )
            _apt(["update"], folder, options)
            code, output = _apt(["download", *packages], folder, options)
            unknown = re.findall(r"Unable to locate package (\S+)", output)
            if unknown and os.path.exists("/var/lib/dpkg/status"):
                near = difflib.get_close_matches(unknown[0], _known(options), 3)
                if near or _known(options):
                    raise InputError(
                        f"--debian: no package named '{unknown[0]}' in this machine's archives"
                        + (f"; nearest: {', '.join(near)}" if near else "")
                    )
        if code:
            reason = [line for line in output.splitlines() if line.startswith(("E:", "W:", "Err:"))]
            raise AptUnavailable(reason[-1] if reason else f"apt-get ended with {code}")
        found = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".deb"):
                path = os.path.join(cache, name)
                os.replace(os.path.join(folder, name), path)
                os.utime(path)
                found[name.split("_")[0]] = path
        absent = [p for p in packages if p not in found]
        if absent:
            raise AptUnavailable(f"apt-get downloaded no file for {', '.join(absent)}")
        return found


def _known(options):
    try:
        return subprocess.run(["apt-cache", *options, "pkgnames"], capture_output=True, text=True, timeout=60).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return []


def identity(path):
    """(package, version) from the file name apt gives a .deb."""
    parts = urllib.parse.unquote(os.path.basename(path)).removesuffix(".deb").split("_")
    return parts[0], parts[1] if len(parts) > 1 else ""


def members(path, data):
    """Yields (name, bytes) for the regular files of a .deb, given its own bytes."""
    archive = _data_tar(path, data)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for entry in tar:
                if entry.isreg():
                    yield entry.name.removeprefix("./"), tar.extractfile(entry).read()
    except tarfile.TarError as error:
        raise InputError(f"{path}: not a readable Debian package ({error})") from None


def _data_tar(path, data):
    if data[:8] != b"!<arch>\n":
        raise InputError(f"{path}: not a Debian package (no ar archive)")
    position = 8
    while position + 60 <= len(data):
        name, size = (
            data[position : position + 16].decode("ascii", "replace").strip(" /"),
            data[position + 48 : position + 58],
        )
        if not size.strip().isdigit():
            break
        body = data[position + 60 : position + 60 + int(size)]
        if name.startswith("data.tar") and len(body) == int(size):
            try:
                return _unpack(path, name, body)
            except (OSError, EOFError, lzma.LZMAError, subprocess.SubprocessError) as error:
                raise InputError(f"{path}: damaged Debian package ({error})") from None
        position += 60 + int(size) + int(size) % 2
    raise InputError(f"{path}: damaged Debian package (no complete data.tar in it); delete it to download it again")


def _unpack(path, name, body):
    if name.endswith(".xz"):
        return lzma.decompress(body)
    if name.endswith(".gz"):
        return gzip.decompress(body)
    if name == "data.tar":
        return body
    return subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout


def sha256(data):
    return hashlib.sha256(data).hexdigest()
