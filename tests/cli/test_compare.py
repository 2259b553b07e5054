"""compare: its rows, keys of single rows, methods that cannot run, notes, report."""

from cli_test_case import ROOT, TINY, CliTestCase


class Compare(CliTestCase):
    SERVERS = "ps-async@servers=2,dp=2"

    def test_rows(self):
        job = self.job(TINY + "method.micro_batches = 2\n")
        given = "zero1,ddp,1f1b@pp=2,micro_batches=4,megatron@tp=3,ps-async@servers=2,dp=2"
        both = self.json("compare", job, "--methods", given, "--fidelity", "analytic")
        self.assertEqual(both["schema_version"], 1)
        labels = [r["method"] for r in both["results"]]
        self.assertEqual(labels, ["zero1", "ddp", "1f1b@pp=2,micro_batches=4", self.SERVERS])
        self.assertEqual(both["results"][2]["mesh"], {"pp": 2, "dp": 2, "tp": 1})
        self.assertEqual(both["results"][3]["mesh"]["servers"], 2)
        [refused] = both["cannot_run"]
        self.assertEqual(refused["method"], "megatron@tp=3")
        self.assertIn("method.tp", refused["reason"])
        # The row of the job's own method keeps its micro-batches and equals simulate of the same job.
        alone = self.json("simulate", job, "--fidelity", "analytic")
        self.assertEqual(both["results"][1], {k: v for k, v in alone.items() if k not in ("version", "command")})
        table = self.rehearse("compare", job, "--methods", given, "--fidelity", "analytic").stdout
        lines = [line.split()[0] for line in table.splitlines()[1:5]]
        self.assertEqual(lines, ["zero1", "ddp", "1f1b@pp=2,micro_batches=4", self.SERVERS])
        self.assertRegex(table, r"\ncannot run:\n  megatron@tp=3: .*method\.tp.*\n")

    def test_a_row_twice(self):
        for rows, twice in (("ddp,zero2,ddp", "ddp"), ("1f1b@pp=2,1f1b,1f1b@pp=2", "1f1b@pp=2")):
            self.refused("compare", self.job(), "--methods", rows, says=[f'--methods {rows}: "{twice}" is there twice'])

    def test_methods_that_do_not_fit(self):
        """In brief below the table; with --fit they run with what makes them fit, as they would with these keys in the list."""
        text = 'model.name = "gpt2-1.5b"\ncluster = { name = "paper", world_size = 4 }\nmethod.name = "ddp"\ntrain.global_batch = 4\n'
        given = ("compare", self.job(text), "--methods", "ddp,local-sgd,zero1,zero3", "--fidelity", "analytic", "--seeds", 1)
        said = self.rehearse(*given).stdout
        needs = r"needs 3\d\.\d GB on RTX 4090, which has 24\.3 GB to use; "
        self.assertRegex(said, rf"\ncannot run:\n  ddp: {needs}fits with --set method\.\S+")
        self.assertRegex(said, rf"\n  local-sgd: {needs}no change was found that fits\n")
        self.assertIn("\n--fit predicts methods with the keys that make them fit\n", said)
        both = self.json(*given, "--fit")
        self.assertEqual([row["method"] for row in both["cannot_run"]], ["local-sgd"])
        labels = [row["method"] for row in both["results"]]
        self.assertEqual([label.split("@")[0] for label in labels], ["ddp", "zero1", "zero3"])
        self.assertIn("@", labels[0])
        again = self.json("compare", self.job(text), "--methods", ",".join(labels), "--fidelity", "analytic", "--seeds", 1)
        self.assertEqual(again["results"], both["results"])
        self.assertNotIn("--fit", self.rehearse(*given, "--fit").stdout)

    def test_keys_of_the_jobs_method_alone_leave_the_other_rows(self):
        """Each key is refused by a method of another row, which could then not run."""
        for keys in (
            {"name": '"qsgd"', "bits": 4},
            {"name": '"zero3"', "prefetch": 2, "pending_buckets": 3, "keep_gathered": "true"},
            {"name": '"1f1b"', "pp": 2, "stage_layers": "[1, 1]"},
        ):
            with self.subTest(keys):
                job = self.job(
                    'model.name = "gpt-tiny"\ncluster.name = "paper"\n'
                    + "".join(f"method.{key} = {value}\n" for key, value in keys.items())
                )
                both = self.json("compare", job, "--methods", "qsgd,int8-sync,zero3,ddp,1f1b", "--fidelity", "analytic")
                self.assertEqual(both["cannot_run"], [])

    def test_values_with_commas(self):
        given = 'megatron@order=dp,pp,tp,tp=2,ddp@shares=[5,3,4,4],megatron@order="tp,pp,dp",tp=2'
        both = self.json("compare", self.job(), "--methods", given, "--fidelity", "analytic")
        self.assertEqual(both["cannot_run"], [])
        labels = ["megatron@order=dp,pp,tp,tp=2", "ddp@shares=[5,3,4,4]", 'megatron@order="tp,pp,dp",tp=2']
        self.assertEqual([r["method"] for r in both["results"]], labels)
        self.assertEqual([next(iter(r["mesh"])) for r in both["results"]], ["dp", "pp", "tp"])

    def test_all_methods(self):
        both = self.json("compare", self.job(), "--fidelity", "analytic")
        names = {r["method"] for r in both["results"]} | {r["method"] for r in both["cannot_run"]}
        self.assertLessEqual({"ddp", "gpipe", "1f1b", "zero3", "megatron", "topk-sync"}, names)

    def test_faster_replicas_take_more_samples(self):
        """On the paper's cluster, adaptive's plan is data parallelism whose replicas take samples by speed: as fast as ddp so."""
        rows = ("compare", ROOT / "experiments/paper-ddp.toml", "--fidelity", "analytic", "--set", "disturb.compute_jitter=0", "--methods")
        both = self.json(*rows, "ddp,ddp@shares=speed,adaptive,adaptive@shares=equal", cwd=ROOT)
        equal, by_speed, adaptive, kept_equal = both["results"]
        self.assertNotIn("shares", equal)
        self.assertEqual(sum(by_speed["shares"]), by_speed["global_batch"])
        slow = [share for share, device in zip(by_speed["shares"], by_speed["rank_to_device"], strict=True) if device[-1] in "23"]
        self.assertEqual((len(slow), len(set(slow))), (8, 1))
        self.assertLess(slow[0], min(set(by_speed["shares"]) - set(slow)))
        seconds = [row["step_time_s"]["mean"] for row in both["results"]]
        self.assertLess(seconds[1], 0.4 * seconds[0])
        self.assertAlmostEqual(seconds[2] / seconds[1], 1, delta=0.03)
        self.assertGreater(seconds[3], 1.2 * seconds[2])  # with equal samples, unequal stages of a pipeline help most
        self.assertGreater(both["results"][3]["mesh"].get("pp", 1), 1)
        self.assertEqual(adaptive["shares"], by_speed["shares"])
        self.assertNotIn("shares", kept_equal)
        choice = {c["choice"]: c for c in adaptive["choices"]}["samples a replica"]
        self.assertRegex({other["value"]: other["why"] for other in choice["runners_up"]}["equal"], r"\d\d\.\d% slower: compute ")
        said = self.rehearse(*rows, "zero2@bucket=5MB,adaptive", cwd=ROOT).stdout
        self.assertRegex(said, r"adaptive chose pp 1 x dp 32 x tp 1, .*samples by speed")
        self.assertRegex(said, r"  samples a replica +by speed +equal: \d\d\.\d% slower\n")
        self.assertIn("note: only adaptive gives faster devices more samples; zero2@bucket=5MB,shares=speed does so too", said)
        self.assertNotIn("note: only", self.rehearse(*rows, "ddp@shares=speed,adaptive", cwd=ROOT).stdout)

    def test_all_methods_with_samples_by_speed(self):
        """A row with them for each method that takes shares, where devices are unlike; none where they are alike."""
        devices = '["node8/gpu0", "node8/gpu1", "node8/gpu2", "node8/gpu3"]'
        text = TINY.replace("gpt-tiny", "gpt2-124m").replace("world_size = 4", f"devices = {devices}")
        unlike = self.job(text)
        labels = [row["method"] for row in self.json("compare", unlike, "--fidelity", "analytic")["results"]]
        for method in ("ddp", "zero1", "zero2", "zero3", "topk-sync", "horovod", "powersgd", "hsdp"):
            self.assertEqual(labels[labels.index(method) + 1], f"{method}@shares=speed")
        self.assertNotIn("ps-sync@shares=speed", labels)
        alike = self.json("compare", self.job(), "--fidelity", "analytic")
        self.assertEqual([row["method"] for row in alike["results"] + alike["cannot_run"] if "@" in row["method"]], [])
        # A job that states shares by speed has them in all rows that can.
        stated = self.job(text + 'method.shares = "speed"\n')
        both = self.json("compare", stated, "--fidelity", "analytic", "--methods", "zero1,diloco")
        self.assertEqual(["shares" in row for row in both["results"]], [True, False])

    def test_parts_of_memory(self):
        one = self.json("simulate", self.job(), "--fidelity", "analytic")
        ((kind, parts),) = one["memory_parts_bytes"].items()
        total = one["peak_memory_bytes"][kind]
        self.assertEqual(sum(parts.values()) - parts["reserve"] - parts["capacity"], total)
        self.assertEqual(parts["moments"], 2 * parts["weights"])
        said = self.rehearse("simulate", self.job(), "--fidelity", "analytic").stdout
        self.assertRegex(said, r"\n {23}weights [\d.]+ [kM]B, gradients [\d.]+ [kM]B, moments [\d.]+ [kM]B, activations ")

    def test_rows_of_different_work(self):
        def said(*methods):
            return self.rehearse("compare", self.job(), "--methods", ",".join(methods), "--fidelity", "analytic").stdout

        batches = said("ddp", "ddp@train.global_batch=32")
        self.assertIn(", 16 or 32 samples of ", batches)
        self.assertIn("no row is called the fastest", batches)
        self.assertNotIn("\nfastest: ", batches)
        precisions = said("ddp", "ddp@precision=bf16")
        self.assertIn(" a step, bf16 or fp32 on ", precisions)
        self.assertIn("\nfastest: ", precisions)

    def test_none_can_run(self):
        done = self.rehearse("compare", self.job(), "--methods", "megatron@tp=3", expect=2)
        self.assertIn("none of the methods", done.stderr)

    def test_report(self):
        out = self.tmp / "report.html"
        arguments = ["--methods", "ddp,zero1", "--report", out, "--fidelity", "analytic"]
        self.rehearse("compare", self.job(), *arguments)
        page = out.read_text()
        self.assertTrue("zero1" in page)
        self.assertIn("gpt-tiny, 16 samples of 64 tokens a step, fp32, on paper", page)
        self.assertIn("<code>rehearse compare ", page)
