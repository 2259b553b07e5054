"""`cmake --install build --prefix P`: the installed program works from any folder, also after P was moved, and reads no file of the source
folder."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from cli_test_case import PATIENCE, ROOT
from cli_test_train_data import TrainingCase

BUILD = pathlib.Path(os.environ.get("REHEARSE_BUILD", ROOT / "build"))


class Installed(TrainingCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        made = pathlib.Path(folder.name, "made")
        subprocess.run(["cmake", "--install", BUILD, "--prefix", made], check=True, stdout=subprocess.DEVNULL)
        cls.prefix = made.rename(made.with_name("moved"))
        cls.share = cls.prefix / "share/rehearse"
        cls.experiments = cls.share / "experiments"

    def setUp(self):
        super().setUp()
        self.elsewhere = self.tmp / "elsewhere"
        self.elsewhere.mkdir()

    def run_it(self, *arguments, expect=0):
        command = [self.prefix / "bin/rehearse", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=self.elsewhere)
        self.assertEqual(done.returncode, expect, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def test_it_reads_its_own_files(self):
        # A model and a report that are not in the source folder.
        models = self.share / "models"
        (models / "only-here.toml").write_bytes((models / "gpt-tiny.toml").read_bytes())
        (self.elsewhere / "job.toml").write_text('model.name = "only-here"\ncluster.name = "paper"\nmethod.name = "ddp"\n')
        self.run_it("simulate", "job.toml", "--seeds", 1)
        self.run_it("simulate", "job.toml", "--seeds", 1, "--report", "r.html")
        self.assertTrue((self.elsewhere / "r.html").read_text().endswith("</html>\n"))
        report = self.share / "plots/report.py"
        self.addCleanup(report.write_text, report.read_text())
        report.write_text('raise SystemExit("of the prefix")')
        self.assertIn("of the prefix", self.run_it("simulate", "job.toml", "--report", "r.html", expect=1).stderr)
        found = {f["what"]: f["detail"] for f in json.loads(self.run_it("doctor", "--json").stdout)["findings"]}
        self.assertTrue(found["models and platforms"].startswith(f"{self.share}: "), found)
        self.assertEqual(found["LibTorch"], f"loaded by {self.prefix}/lib/rehearse/librehearse_training.so")

    def test_it_links_its_own_simgrid(self):
        linked = subprocess.check_output(["ldd", self.prefix / "bin/rehearse"], text=True)
        self.assertRegex(linked, rf"libsimgrid\S* => {self.prefix}/\S*lib/rehearse/libsimgrid")
        for library in (self.prefix / "bin/rehearse", *(self.prefix / "lib").glob("**/librehearse*")):
            paths = subprocess.check_output(["readelf", "-d", library], text=True)
            self.assertNotIn(str(ROOT), paths)
            self.assertNotIn(str(BUILD), paths)

    def test_a_program_links_the_library(self):
        examples, made = self.prefix / "share/doc/rehearse/examples", self.elsewhere / "build"
        for command in (["-S", examples, "-B", made, f"-DCMAKE_PREFIX_PATH={self.prefix}"], ["--build", made]):
            subprocess.run(["cmake", *command], check=True, stdout=subprocess.DEVNULL)
        linked = subprocess.check_output(["ldd", made / "compare_methods"], text=True)
        self.assertRegex(linked, rf"librehearse.so => {self.prefix}/lib/librehearse.so")
        self.assertRegex(linked, rf"libsimgrid\S* => {self.prefix}/lib/rehearse/libsimgrid")
        (self.share / "models/only-for-programs.toml").write_bytes((self.share / "models/gpt-tiny.toml").read_bytes())
        (self.elsewhere / "job.toml").write_text('model.name = "only-for-programs"\ncluster.name = "paper"\nmethod.name = "ddp"\n')
        said = subprocess.check_output([made / "compare_methods", "job.toml", "zero3"], text=True, cwd=self.elsewhere)
        self.assertEqual([line.split(",")[0] for line in said.splitlines()], ["method", "the job", "zero3"])

    def test_the_python_package(self):
        text = (
            "import rehearse; print(rehearse._core.data_dir()); print(rehearse.simulate('job.toml', seeds=1).method, flush=True); "
            "import sys; sys.argv[1:] = ['--version']; from rehearse.__main__ import main; main()"
        )
        (self.elsewhere / "job.toml").write_bytes((self.experiments / "paper-ddp.toml").read_bytes())
        environment = os.environ | {"PYTHONPATH": str(self.prefix / "lib/python")}
        said = subprocess.check_output([sys.executable, "-c", text], text=True, cwd=self.elsewhere, env=environment)
        self.assertEqual(said, f"{self.share}\nddp\nrehearse 0.1.0\n")

    def test_compare_and_plan(self):
        job = self.experiments / "paper-ddp.toml"
        self.assertIn("zero3", self.run_it("compare", job, "--methods", "ddp,zero3", "--seeds", 1).stdout)
        self.assertIn("predicted", self.run_it("plan", job, "--budget", 20, "--no-rescore").stdout)

    def test_failure_models(self):
        job = self.experiments / "paper-ddp.toml"
        self.assertIn("machine lost", self.run_it("faults", job, "--duration", "100d", "--set", "faults.model=opt-175b").stdout)

    def test_train(self):
        job = self.job(steps=2)
        trained = json.loads(self.run_it("train", job, "--nproc", 2, "--json").stdout)
        self.assertEqual(len(trained["losses"]), 2)

    def test_help_for_people_and_shells(self):
        share = self.prefix / "share"
        for path, command in (
            ("man/man1/rehearse.1", ("help", "--man")),
            ("bash-completion/completions/rehearse", ("completion", "bash")),
            ("zsh/site-functions/_rehearse", ("completion", "zsh")),
            ("fish/vendor_completions.d/rehearse.fish", ("completion", "fish")),
        ):
            self.assertEqual((share / path).read_text(), self.run_it(*command).stdout, path)
        for name in ("README.md", "LICENSE", "docs/cli.md"):
            self.assertTrue((share / "doc/rehearse" / name).is_file(), name)
