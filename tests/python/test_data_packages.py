"""data/prepare.py on Debian packages: read from a cache, downloaded, unknown, damaged, replaced by
what is installed."""

import gzip
import os
import subprocess
import unittest

from data_case import DataTest, make_deb, prose

from data import debian


class Packages(DataTest):
    def make_cache(self):
        cache = self.tmp / "cache"
        cache.mkdir()
        files = {
            f"usr/share/doc/foo/ch{i}.html": (f"<html><body><p>{prose(i).replace(chr(10) * 2, '<p>')}</body></html>".encode())
            for i in range(6)
        }
        files["usr/share/doc/foo/copyright"] = prose(100).encode()
        files["usr/share/doc/foo/changelog.gz"] = gzip.compress(prose(101).encode())
        files["usr/share/doc/foo/ch0.txt"] = prose(102).encode()  # the source of ch0.html
        files["usr/share/doc/foo/german.html"] = b"<p>" + b"Der Fuchs springt jetzt schnell davon. " * 20
        files["usr/bin/foo"] = b"\x7fELF\0"
        make_deb(cache / "foo-doc_1%3a2.5-1_all.deb", files)
        return cache

    def test_a_cached_package_needs_no_network(self):
        self.prepare("--debian", "foo-doc", "--cache", self.make_cache(), "--offline")
        manifest = self.manifest()
        (entry,) = manifest["inputs"]
        self.assertEqual((entry["package"], entry["version"]), ("foo-doc", "1:2.5-1"))
        self.assertEqual(manifest["removed"]["not_english"], 1)
        sides = self.documents()
        self.assertEqual(sorted(sides["train"] + sides["val"]), sorted(prose(i) for i in range(6)))

    def test_a_deb_file_is_an_input(self):
        cache = self.make_cache()
        self.prepare(cache / "foo-doc_1%3a2.5-1_all.deb")
        self.assertEqual(self.manifest()["inputs"][0]["kind"], "debian")

    @unittest.skipUnless(__import__("shutil").which("dpkg-deb"), "dpkg-deb is Debian's")
    def test_a_package_made_by_dpkg(self):
        root = self.tmp / "root"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text("Package: bar\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n")
        (root / "page.txt").write_text(prose(1))
        for compression in ("none", "gzip", "xz", "zstd"):
            path = self.tmp / f"bar_1_{compression}.deb"
            done = subprocess.run(
                ["dpkg-deb", f"-Z{compression}", "--root-owner-group", "-b", root, path],
                capture_output=True,
            )
            if done.returncode:
                self.assertEqual(compression, "zstd", done.stderr)  # older dpkg has no zstd
                continue
            self.assertEqual(
                [(n, c.decode()) for n, c in debian.members(str(path), path.read_bytes())],
                [("page.txt", prose(1))],
            )

    def fake_apt(self, script):
        folder = self.tmp / "bin"
        folder.mkdir()
        for name, body in {
            "apt-get": script,
            "apt-cache": "#!/bin/sh\necho foo-doc\necho zsh-doc\n",
        }.items():
            (folder / name).write_text(body)
            (folder / name).chmod(0o755)
        saved = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}:{saved}"
        self.addCleanup(os.environ.__setitem__, "PATH", saved)

    def test_download_fills_the_cache(self):
        source = self.make_cache() / "foo-doc_1%3a2.5-1_all.deb"
        self.fake_apt(f'#!/bin/sh\ncase "$*" in *download*) cp "{source}" . ;; esac\n')
        for _ in range(2):
            paths = debian.fetch(["foo-doc"], str(self.tmp / "fresh"))
            self.assertEqual(os.path.basename(paths[0]), source.name)
            (self.tmp / "bin/apt-get").unlink(missing_ok=True)  # the second time it must come from the cache
        self.assertEqual(os.listdir(self.tmp / "fresh"), [source.name])

    def test_an_unknown_package_is_an_error_that_names_the_nearest(self):
        self.fake_apt('#!/bin/sh\ncase "$*" in *download*) echo "E: Unable to locate package foo-dok" ; exit 100 ;; esac\n')
        _, err = self.run_it("--debian", "foo-dok", "--cache", self.tmp / "c", "-o", self.out, expect=2)
        self.assertIn("no package named 'foo-dok'", err)
        self.assertIn("nearest: foo-doc", err)

    def test_without_a_network_installed_documentation_serves(self):
        self.fake_apt('#!/bin/sh\necho "E: Failed to fetch http://archive/x"; exit 100\n')
        installed = self.books(8, "installed")
        (installed / "copyright").write_text(prose(77))
        saved = debian.INSTALLED_FOLDERS
        debian.INSTALLED_FOLDERS = (str(installed),)
        self.addCleanup(setattr, debian, "INSTALLED_FOLDERS", saved)
        _, err = self.prepare("--cache", self.tmp / "c")
        self.assertIn("cannot download packages (E: Failed to fetch", err)
        self.assertIn("using the documentation installed on this machine", err)
        manifest = self.manifest()
        self.assertEqual(manifest["inputs"][0]["kind"], "installed")
        self.assertEqual(manifest["train"]["documents"] + manifest["val"]["documents"], 8)

    def test_a_damaged_package(self):
        path = self.make_cache() / "foo-doc_1%3a2.5-1_all.deb"
        path.write_bytes(path.read_bytes()[:-200])
        _, err = self.run_it(path, "-o", self.out, expect=2)
        self.assertIn("damaged Debian package", err)
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    unittest.main()
