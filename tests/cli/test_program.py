"""program: the text can be read back as the same program, --check reports it, and a broken program is
refused."""

import re
import resource

import pytest
from cli_test_case import ROOT, TINY, CliTestCase

PIPELINE = TINY.replace('"ddp"', '"1f1b"') + "method.pp = 2\nmethod.micro_batches = 4\n"


class Programs(CliTestCase):
    def test_round_trip(self):
        for text in (TINY, PIPELINE):
            path = self.tmp / "one.program"
            job = self.job(text)
            self.assertEqual(self.rehearse("program", job, "-o", path).stdout, "")
            printed = self.rehearse("program", job).stdout
            self.assertEqual(path.read_text(), printed)
            self.assertEqual(self.rehearse("program", "--from", path).stdout, printed)
            self.assertEqual(
                self.rehearse("program", job, "--from", path, "--check").stdout,
                self.rehearse("program", job, "--check").stdout,
            )
            self.assertEqual(
                self.json("program", job)["program_hash"],
                self.json("simulate", job, "--fidelity", "analytic")["program_hash"],
            )

    def test_a_program_of_another_job(self):
        path = self.tmp / "two.program"
        self.rehearse("program", self.job(TINY), "-o", path)
        other = self.job(TINY.replace("cluster.world_size = 4", "cluster.world_size = 8"), "eight.toml")
        says = [f"--from {path}: it is for 4 ranks, but {other} has 8"]
        for check in ((), ("--check",)):
            self.refused("program", other, "--from", path, *check, says=says)
        # As many ranks, but another method, mesh or model.
        for keys, why in (
            (["method.name=zero1"], "its method is ddp, the job's zero1"),
            (["method.tp=2"], "its mesh is pp 1 x dp 4 x tp 1, the job's pp 1 x dp 2 x tp 2"),
            (["method.precision=bf16"], "the numbers that worker keeps between steps are"),
            (["model.ffn=128"], "the numbers that worker keeps between steps are"),
        ):
            sets = [word for key in keys for word in ("--set", key)]
            says = [f"--from {path}: it is of another job than ", "(model gpt-tiny", why]
            for check in ((), ("--check",)):
                self.refused("program", self.job(TINY), "--from", path, *check, *sets, says=says)

    def test_what_differs_from_the_job(self):
        """A program with other ops may be one that the user has edited, so it is checked, and the first difference is shown."""
        path = self.tmp / "one.program"
        job = self.job()
        self.rehearse("program", job, "-o", path)
        given = ("program", job, "--from", path, "--check")
        self.assertIsNone(self.json(*given)["difference_from_job"])
        own = self.json("program", job)["program_hash"]
        double = ("--set", "train.global_batch=32")
        said = self.rehearse(*given, *double).stdout
        self.assertRegex(said, rf"\ndiffers from the program of {job}, hash [0-9a-f]+: line \d+ is \".*\", that of the job \".*\"\n")
        difference = self.json(*given, *double)["difference_from_job"]
        self.assertNotEqual(difference["job_program_hash"], own)
        self.assertEqual(path.read_text().splitlines()[difference["line"] - 1], difference["text"])
        self.assertNotIn("differs", self.rehearse(*given).stdout)

    def test_check(self):
        out = self.rehearse("program", self.job(PIPELINE), "--check").stdout
        self.assertIn("redundant waits: 0", out)
        found = self.json("program", self.job(PIPELINE), "--check")
        self.assertEqual(found["mesh"], {"pp": 2, "dp": 2, "tp": 1})
        self.assertEqual([len(r["ranks"]) for r in found["roles"]], [2, 2])
        for role in found["roles"]:
            memory = role["memory_bytes"]
            self.assertEqual(memory["total"], memory["state"] + memory["buffer"] + memory["value"])

    def test_check_counts_workspace_where_the_model_is_known(self):
        """--check and simulate report the same memory of a rank, with batches and workspace."""
        job, path = self.job(), self.tmp / "one.program"
        self.rehearse("program", job, "-o", path)
        alone = self.json("program", "--from", path, "--check")
        known = self.json("program", job, "--check")
        self.assertIs(alone["workspace_included"], False)
        self.assertIs(known["workspace_included"], True)
        need = [found["roles"][0]["memory_bytes"]["total"] for found in (alone, known)]
        simulated = self.json("simulate", job, "--fidelity", "analytic")["peak_memory_bytes"]
        self.assertEqual(need[1], max(simulated.values()))
        model = (ROOT / "models/gpt-tiny.toml").read_text()
        seq_len = int(re.search(r"^seq_len = (\d+)", model, re.M)[1])
        batch = 16 // 4 * seq_len * 16  # samples of a rank; token and label, 8 bytes each
        self.assertGreaterEqual(need[1], need[0] + batch)
        said = self.rehearse("program", "--from", path, "--check").stdout
        self.assertIn("without workspace and batches", said)
        self.refused("program", says=["JOB.toml or --from"])
        other = self.job(TINY.replace("gpt-tiny", "gpt2-124m"), "other.toml")
        self.rehearse("program", other, "-o", path)
        self.refused("program", job, "--from", path, "--check", says=["segment 6", "gpt-tiny"])

    def test_broken(self):
        """Without one collective the gradient stays a partial sum, which an update refuses."""
        lines = self.rehearse("program", self.job()).stdout.splitlines()
        [cut] = [i for i, line in enumerate(lines) if " all_reduce " in line][:1] or self.fail("none")
        number = int(lines[cut].split()[0][1:])
        renumbered = []
        for i, line in enumerate(lines):
            if i == cut:
                continue
            words = []
            for word in line.split(" "):
                if word.startswith("%") and word[1:].rstrip("!").isdigit():
                    op = int(word[1:].rstrip("!"))
                    if op == number:
                        continue
                    word = f"%{op - (op > number)}" + ("!" if word.endswith("!") else "")
                words.append(word)
            renumbered.append(" ".join(words[:-1] if words[-1] == "after" else words))
        path = self.tmp / "broken.program"
        path.write_text("\n".join(renumbered) + "\n")
        done = self.rehearse("program", "--from", path, "--check", expect=2)
        self.assertIn("partial", done.stderr)

    def test_malformed(self):
        path = self.tmp / "bad.program"
        text = self.rehearse("program", self.job()).stdout
        path.write_text(text.replace("rehearse-program 1", "rehearse-program 99"))
        done = self.rehearse("program", "--from", path, expect=2)
        self.assertIn("bad.program", done.stderr)
        self.assertIn("99", done.stderr)
        path.write_text(text.replace("storage", "stroage", 1))
        done = self.rehearse("program", "--from", path, expect=2)
        self.assertIn("stroage", done.stderr)

    def test_texts_that_say_too_much(self):
        """Counts beyond the world size are refused with file and line before anything is allocated. These two once caused a SIGSEGV and
        used 4.4 GB."""
        corpus = ROOT / "tests/fuzz/corpus/program"
        for name, says in (
            ("found-mesh-beyond-world.program", ["line 4", "dp=64", "from 1 to 4 places"]),
            ("found-range-of-colours.program", ["line 5", "0-2147483648", "one for each rank of the world"]),
        ):
            said = self.rehearse("program", "--from", corpus / name, "--check", expect=2).stderr
            for words in [name, *says]:
                self.assertIn(words, said)

    def test_a_wrong_program_is_said_with_its_file(self):
        path = self.tmp / "wrong.program"
        text = self.rehearse("program", self.job()).stdout
        path.write_text(text.replace(" after %11", "", 1))
        said = self.rehearse("program", "--from", path, "--check", expect=2).stderr
        self.assertIn("wrong.program", said)
        self.assertIn("data race", said)

    @pytest.mark.long
    def test_many_ranks(self):
        """A role with 65,536 ranks takes about as long as one with 8, except for a few loops over ranks. It once took minutes."""
        job = self.job('model.name = "gpt-tiny"\ncluster.name = "dgx-a100:8192"\nmethod.name = "ddp"\n', "many.toml")
        spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        text = self.rehearse("program", job, "--check", "-o", self.tmp / "many.program").stdout
        self.assertIn("65536 ranks", text)
        text = (self.tmp / "many.program").read_text()
        self.assertIn("role worker ranks=0-65535\n", text)
        self.assertLess(len(text), 20_000)
        found = self.json("simulate", job, "--fidelity", "analytic")
        self.assertEqual(found["world_size"], 65536)
        # CPU time, which does not depend on other work: about 5 s.
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - spent, 60)
