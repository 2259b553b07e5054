"""data/prepare.py with Debian packages: from a file, from the cache, downloaded, unknown, damaged."""

import gzip
import os

from data_case import DataTest, make_deb, prose


class Packages(DataTest):
    NAME = "foo-doc_1%3a2.5-1_all.deb"

    def make_cache(self):
        cache = self.tmp / "cache"
        cache.mkdir()
        files = {f"usr/share/doc/foo/ch{i}.txt": prose(i).encode() for i in range(5)}
        files["usr/share/doc/foo/ch5.md.gz"] = gzip.compress(prose(5).encode())
        files["usr/share/doc/foo/copyright"] = prose(100).encode()
        files["usr/share/doc/foo/changelog.gz"] = gzip.compress(prose(101).encode())
        files["usr/share/doc/foo/index.html"] = b"<p>" + prose(102).encode()
        files["usr/bin/foo"] = b"\x7fELF\0"
        make_deb(cache / self.NAME, files)
        return cache

    def apt(self, script):
        """Replaces apt-get by a script."""
        folder = self.tmp / "bin"
        folder.mkdir()
        (folder / "apt-get").write_text("#!/bin/sh\n" + script)
        (folder / "apt-get").chmod(0o755)
        saved = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}:{saved}"
        self.addCleanup(os.environ.__setitem__, "PATH", saved)

    def check(self):
        (entry,) = self.manifest()["inputs"]
        self.assertEqual((entry["kind"], entry["name"], entry["version"]), ("debian", "foo-doc", "1:2.5-1"))
        sides = self.documents()
        self.assertEqual(sorted(sides["train"] + sides["val"]), sorted(prose(i) for i in range(6)))

    def test_a_package_is_its_plain_text(self):
        self.prepare(self.make_cache() / self.NAME)
        self.check()

    def test_a_cached_package_is_not_downloaded(self):
        self.apt("exit 1")
        self.prepare("--debian", "foo-doc", "--cache", self.make_cache())
        self.check()

    def test_a_download_stays_in_the_cache(self):
        source = self.make_cache() / self.NAME
        self.apt(f'[ "$*" = "-q download foo-doc" ] && cp "{source}" .')
        fresh = self.tmp / "fresh"
        self.prepare("--debian", "foo-doc", "--cache", fresh)
        self.check()
        self.assertEqual(os.listdir(fresh), [self.NAME])

    def refused(self, *arguments, says):
        _, err = self.run_it(*arguments, "-o", self.out, expect=2)
        self.assertIn(says, err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertFalse(self.out.exists())

    def test_what_apt_complains_of_is_said(self):
        self.apt('echo "W: slow" >&2; echo "E: Unable to locate package foo-dok" >&2; exit 100')
        says = "--debian foo-dok: apt-get: Unable to locate package foo-dok"
        self.refused("--debian", "foo-dok", "--cache", self.tmp / "c", says=says)

    def test_a_damaged_package(self):
        path = self.make_cache() / self.NAME
        path.write_bytes(path.read_bytes()[:-200])
        self.refused(path, says=f"{self.NAME}: dpkg-deb: ")
        path.write_text(prose(1))
        self.refused(path, says=f"'{path}' is not a Debian format archive")
