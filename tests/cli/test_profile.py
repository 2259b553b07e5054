"""profile: of modelled clusters, merged, of another cluster; and what training writes to one."""

import json

from cli_test_case import CliTestCase, has_device
from cli_test_train_data import TOKENS

PAPER = 'model.name = "bert-paper-110m"\ncluster.name = "{cluster}"\nmethod = {{ name = "ddp" }}\ntrain.global_batch = 512\n'


class Profile(CliTestCase):
    def job(self, cluster="paper"):
        path = self.tmp / f"{cluster}.toml"
        path.write_text(PAPER.format(cluster=cluster))
        return path

    def of_paper(self, name, *more):
        path = self.tmp / name
        self.rehearse("profile", "-o", path, "--cluster", "paper", "--model", "bert-paper-110m", "--samples", "16", *more)
        return path, json.loads(path.read_text())

    def test_modelled_cluster(self):
        path, found = self.of_paper("paper.json")
        self.assertEqual(len(found["pairs"]), 32 * 31)
        self.assertEqual({s["device_kind"] for s in found["segments"]}, {"RTX 4090", "V100 PCIe 32GB"})
        self.assertIs(found["simulated"], True)
        with_table = self.json("simulate", self.job(), "--fidelity", "analytic")
        measured = self.json("simulate", self.job(), "--fidelity", "analytic", "--set", f"cluster.profile={path}")
        # Without disturbances the profile equals the device table, so results stay uncalibrated. They do not agree to the last digit,
        # because the attention of the first layer differs, and the profile has one entry for the attention of all layers.
        self.assertAlmostEqual(measured["step_time_s"]["mean"] / with_table["step_time_s"]["mean"], 1, delta=2e-3)
        self.assertIs(measured["calibrated"], False)

    def test_disturbances_count(self):
        _, still = self.of_paper("still.json")
        _, slow = self.of_paper("slow.json", "--set", "disturb.compute_jitter=0.1", "--set", "disturb.link_jitter=0.1")
        ratios = [b["seconds"] / a["seconds"] for a, b in zip(still["segments"], slow["segments"], strict=True)]
        self.assertTrue(all(0.9 < r < 1.1 for r in ratios), ratios)
        self.assertGreater(len(set(ratios)), 3)
        self.assertTrue(all(p["bandwidth_spread"] > 0 and p["latency_spread"] > 0 for p in slow["pairs"]))

    def test_another_cluster_refuses_it(self):
        path, _ = self.of_paper("paper.json")
        says = ["cluster.profile", "another cluster", "paper", "dgx1"]
        args = ["--set", f"cluster.profile={path}", "--set", "train.global_batch=64"]
        self.refused("simulate", self.job("dgx1"), *args, says=says)

    def test_encryption_that_differs_from_the_jobs_is_said(self):
        _, found = self.of_paper("clear.json")
        self.assertEqual((found["profile_version"], found["encrypted"]), (3, False))
        (self.tmp / "encrypted.json").write_text(json.dumps(found | {"encrypted": True}))
        (self.tmp / "alone.json").write_text(json.dumps(found | {"pairs": []}))  # it has no times of communication
        clear = (
            "run.encrypt = true, but connections were not encrypted when cluster.profile was measured: `rehearse profile --encrypt -o FILE`"
        )
        encrypted = "run.encrypt = false, but connections were encrypted when cluster.profile was measured: `rehearse profile -o FILE`"
        table = (
            "run.encrypt = true, but times of communication are those of connections that are not encrypted: `rehearse profile --encrypt"
        )
        cases = (("clear", "true", clear), ("encrypted", "false", encrypted), ("alone", "true", table), ("clear", "false", None))
        for profile, encrypt, says in (*cases, ("encrypted", "true", None), ("alone", "false", None)):
            words = ["--set", f"cluster.profile={self.tmp / profile}.json", "--set", f"run.encrypt={encrypt}"]
            commands = [["simulate", self.job(), "--fidelity", "analytic"]]
            if says == clear:
                commands += [["compare", self.job(), "--methods", "ddp,zero1"], ["plan", self.job(), "--no-rescore"]]
            for command in commands:
                with self.subTest(profile=profile, encrypt=encrypt, command=command[0]):
                    text = self.rehearse(*command, *words).stdout
                    self.assertEqual(text.count("run.encrypt"), 0 if says is None else 1, text)
                    self.assertIn("" if says is None else f"warning: {says}", text)
                    given = self.json(*command, *words)
                    all_of = [study["warnings"] for study in given.get("results", [given])]
                    for warnings in all_of:
                        self.assertEqual([w for w in warnings if "run.encrypt" in w and w.startswith(says or "")] != [], says is not None)

    def test_merge(self):
        path, found = self.of_paper("paper.json")
        pairs, times = self.tmp / "pairs.json", self.tmp / "times.json"
        empty = {key: [] for key in ("segments", "updates", "kernels")}
        pairs.write_text(json.dumps({**found, **empty}))
        times.write_text(json.dumps({**found, "pairs": []}))
        both = self.tmp / "both.json"
        self.rehearse("profile", "-o", both, "--merge", f"{times},{pairs}")
        self.assertEqual(json.loads(both.read_text()), found)
        self.rehearse("profile", "-o", both, "--merge", f"{both},{pairs}")  # what was read stays in it
        self.assertEqual(json.loads(both.read_text()), found)
        found["pairs"][0]["latency"] *= 2
        pairs.write_text(json.dumps(found))
        self.refused("profile", "-o", both, "--merge", f"{times},{path},{pairs}", says=["pair 0 to 1", "pairs.json"])

    def test_without_a_network(self):
        """The profile has times of work alone, and fits a cluster that it was not measured on."""
        path = self.tmp / "work.json"
        self.rehearse("profile", "-o", path, "--nproc", 2, "--threads", 1, "--model", "gpt-tiny", "--samples", 2, "--no-network")
        found = json.loads(path.read_text())
        self.assertTrue(found["segments"] and found["updates"] and found["kernels"])
        self.assertEqual([found[key] for key in ("collectives", "transfers", "pairs")], [[], [], []])
        nodes = self.tmp / "nodes.toml"
        step = {}
        for rate in ("10kb/s", "20kb/s"):  # so slow that the measured times of work, on however busy a machine, count for nothing
            link = f'{{ from = "gpu0", to = "fabric", bandwidth = "{rate}", latency = "1us" }}'
            nodes.write_text(f'summary = "s"\n[[nodes]]\ncount = 2\ndevices = ["CPU core"]\nlinks = [{link}]\n')
            job = self.tmp / "job.toml"
            job.write_text(f'model.name = "gpt-tiny"\ncluster.name = "{nodes}"\nmethod.name = "ddp"\ntrain.global_batch = 4\n')
            one = self.json("simulate", job, "--set", f"cluster.profile={path}")
            self.assertIs(one["calibrated"], True)
            step[rate] = one["step_time_s"]["mean"]
        self.assertTrue(1.8 < step["10kb/s"] / step["20kb/s"] <= 2, step)
        self.refused("profile", "-o", path, "--cluster", "paper", "--no-network", says=["--no-network"])

    def test_refusals(self):
        given = ["profile", "-o", self.tmp / "p.json", "--cluster"]
        self.refused(*given, "papper", says=['"paper"'])
        self.refused(*given, "dgx-h100:2048", says=["dgx-h100:N", "256"])
        self.refused(*given, "paper", "--nproc", "2", says=["--nproc"])
        self.refused(*given, "paper", "--set", "train.lr=1", says=["train.lr", "disturb"])
        real = ["profile", "-o", self.tmp / "p.json", "--nproc", 1]
        self.refused(*real, "--device", "tpu", says=["tpu", "auto, cpu or cuda"])
        self.refused(*real, "--kind", "H 100", says=["H 100", 'did you mean "H100"?'])
        if has_device("emulated"):
            self.refused(*real, "--device", "emulated", says=["emulated", "--kind or --ranks-on"])

    def test_training_writes_variances(self):
        job = self.tmp / "job.toml"
        job.write_text(
            'model.name = "gpt-tiny"\ncluster.name = "this-machine"\nmethod = { name = "zero2", dp = 2 }\n'
            f'train = {{ global_batch = 4, steps = 5, data = "{TOKENS}", out = "{self.tmp}/out" }}\nrun.threads = 1\n'
        )
        path, found = self.of_paper("paper.json")
        self.rehearse("train", job, "--nproc", "2", "--profile-out", path)
        written = json.loads(path.read_text())
        self.assertEqual(written["pairs"], found["pairs"])  # the old content of the file is kept
        layers = written["variances"]
        self.assertEqual({v["model"] for v in layers}, {"gpt-tiny"})
        for v in layers:
            self.assertEqual(v["steps"], 5)
            self.assertGreater(v["total"], 0)
            self.assertLess(v["total"], v["square_norm"])
        self.rehearse("train", job, "--nproc", "2", "--overwrite", "--profile-out", path)  # a second run replaces the variances
        self.assertEqual(len(json.loads(path.read_text())["variances"]), len(layers))
        self.refused(
            "train",
            job,
            "--nproc",
            "3",
            "--overwrite",
            "--profile-out",
            path,
            "--set",
            "method.name=ps-async",
            says=["ps-async", "ps-sync"],
        )
