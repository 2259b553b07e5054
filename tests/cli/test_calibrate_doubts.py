"""`rehearse calibrate` doubts measurements: other numbers of ranks and other batches than the job's, seconds and sizes in a wrong
unit, sizes that contradict each other, files of another kind. Prefixes of launchers in front of nccl-tests are read over."""

import json
import pathlib

from cli_test_case import CliTestCase

JOB = """model = { name = "gpt2-124m", dropout = 0.1 }
cluster = { name = "workstation-4090", world_size = 1 }
software.name = "pytorch-2"
method = { name = "ddp", precision = "bf16", bucket = "1TB" }
"""
DEVICE = "RTX 4090"
NCCL = ("--cluster", "dgx-a100", "--software", "megatron-2021")
COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"


class CalibrateDoubts(CliTestCase):
    def write(self, text, name):
        path = self.tmp / name
        path.write_text(text)
        return str(path)

    def sizes(self, bytes="1MiB:256MiB"):
        return self.json("collective", "all_reduce", *NCCL, "--bytes", bytes, "--factor", "4")["sizes"]

    def log(self, sizes, ranks=8, slower=lambda size: 1.0, name="all_reduce.txt"):
        text = "".join(f"#  Rank {i:2} Group  0 Pid  1 on node device {i} [0000:07:00] NVIDIA A100\n" for i in range(ranks)) + COLUMNS
        for size in sizes:
            us = f"{size['seconds'] * slower(size) * 1e6:.4f}  0.00  0.00  0"
            text += f"{size['bytes']} {size['elements']} float sum -1 {us} {us}\n"
        return self.write(text, name)

    def step_table(self, seconds, header="row,seconds,train.global_batch", batches=(1, 2, 4), name="steps.csv"):
        rows = "".join(f"b{b},{s},{b}\n" for b, s in zip(batches, seconds, strict=True))
        return self.write(f"{header}\n{rows}", name)

    def fit(self, table, *arguments, job=JOB):
        return ("calibrate", table, "--job", self.job(job), "--device", DEVICE, "--fit", "efficiency", *arguments)

    def test_ranks_of_a_log(self):
        log = self.log(self.sizes(), ranks=4)
        self.refused("calibrate", log, *NCCL, "--ranks", "8", says=["--ranks 8", "8 ranks", "all_reduce.txt has the times of 4"])
        self.refused("calibrate", log, *NCCL, "--ranks", "0-2", says=["--ranks 0-2", "3 ranks", "name 4 ranks"])
        job = self.job('collective = { cluster = "dgx-a100", ranks = "0-7" }\n', "c.toml")
        own = ("calibrate", log, "--job", job, "--software", "megatron-2021")
        self.refused(*own, says=["c.toml:1", "collective.ranks", "8 ranks", "the times of 4"])
        self.assertEqual(self.json(*own, "--ranks", "4-7")["facts"]["ranks"], "4")
        large = self.log(self.sizes(), ranks=24)
        self.refused("calibrate", large, *NCCL, says=["all_reduce.txt", "24 ranks", "dgx-a100 has 8 devices"])

    def test_ranks_and_batch_of_a_step_log(self):
        table = self.step_table((0.03, 0.04, 0.06), "row,seconds,global_batch")
        named = self.step_table((0.03, 0.04, 0.06), name="named.csv")
        for name in ("global_batch_size", "gbs"):
            other = self.step_table((0.03, 0.04, 0.06), f"row,seconds,{name}", name="other.csv")
            self.assertEqual(self.json(*self.fit(other))["rows"], self.json(*self.fit(named))["rows"])
        notes = self.json(*self.fit(table, job=JOB + "train.global_batch = 16\n"))["notes"]
        self.assertTrue(any("global_batch: row 1 has 1" in note and "job.toml:5 has 16" in note for note in notes), notes)
        self.refused(*self.fit(table, "--set", "train.global_batch=2"), says=["steps.csv: row 1: global_batch = 1", "global batch of 2"])
        both = self.write("row,seconds,train.global_batch,gbs\na,0.03,1,2\n", "both.csv")
        self.refused(*self.fit(both), says=["both.csv: row 1: gbs = 2", "global batch of 1"])
        for value in ("8.5", "0", "many", ""):
            wrong = self.write(f"row,seconds,global_batch\na,0.1,{value}\n", "wrong.csv")
            self.refused(*self.fit(wrong), says=[f'global_batch = "{value}" must be a whole number above 0'])
        ranks = self.write("row,seconds,ranks\na,0.03,24\nb,0.04,24\n", "ranks.csv")
        self.refused(*self.fit(ranks), says=["ranks.csv: row 1: ranks = 24", "its job has 1 ranks", "--set cluster.world_size=24"])
        unused = self.write("row,seconds,global_batch,loss,seq_len\na,0.03,1,2,3\nb,0.04,2,2,3\nc,0.05,4,2,3\n", "unused.csv")
        notes = self.json(*self.fit(unused))["notes"]
        self.assertTrue(any(note.startswith("not used: the columns loss, seq_len") for note in notes), notes)

    def test_units_of_step_times(self):
        for factor, unit in ((1e3, "milliseconds"), (1e6, "microseconds"), (1 / 3600, "hours")):
            table = self.step_table([repr(s * factor) for s in (0.02, 0.03, 0.05)])
            self.refused(*self.fit(table), says=['steps.csv: row "b1"', 'column "seconds"', unit])
        for seconds, says in (((20, 0.03, 0.05), "times the predicted"), ((1e-7, 2e-7, 3e-7), "need at their full rates")):
            notes = self.json(*self.fit(self.step_table(seconds)))["notes"]
            self.assertTrue(any('"b1"' in note and says in note for note in notes), notes)
        self.assertFalse(any("predicted" in note for note in self.json(*self.fit(self.step_table((0.02, 0.03, 0.05))))["notes"]))

    def test_units_of_collectives(self):
        sizes = self.sizes("64MB:4GB")
        for name, factor, divided, says in (
            ("us", 1e6, 1, ['column "seconds" has microseconds']),
            ("bytes", 1, 1_000_000, ['column "collective.bytes" has a million times the bytes', "MB for B"]),
        ):
            rows = "".join(f"s{s['bytes']},{s['seconds'] * factor!r},{s['bytes'] // divided}B\n" for s in sizes)
            table = self.write("row,seconds,collective.bytes\n" + rows, f"{name}.csv")
            self.refused("calibrate", table, *NCCL, says=[f"{name}.csv", *says])

    def test_links_in_bits_and_a_collapse(self):
        sizes = self.sizes("4MiB:1GiB")
        bits = self.json("calibrate", self.log(sizes, slower=lambda size: 8), *NCCL)["notes"]
        self.assertTrue(any(note.startswith("links:") and "GB/s where Gb/s is meant" in note for note in bits), bits)
        collapse = self.json("calibrate", self.log(sizes, slower=lambda size: 1 if size["bytes"] < 1e8 else 6), *NCCL)
        links = [note for note in collapse["notes"] if note.startswith("links:")]
        self.assertEqual(len(links), 1)
        for words in ("cannot both come from one bandwidth", "change none in the platform file", "GB/s"):
            self.assertIn(words, links[0])
        self.assertNotIn("implies", collapse["facts"]["links"])

    def test_prefixes_of_launchers(self):
        log = self.log(self.sizes())
        wanted = self.json("calibrate", log, *NCCL)
        lines = pathlib.Path(log).read_text().splitlines()
        stamps = [f"2024-05-01 12:{i // 60:02}:{i % 60:02}" for i in range(len(lines))]
        for name, prefix in (
            ("stamp", lambda i: f"[{stamps[i]}] "),
            ("iso", lambda i: stamps[i].replace(" ", "T") + ".125Z "),
            ("rank", lambda i: "0: "),
            ("tagged", lambda i: "node-3: [1,0]<stdout>:"),
            ("all", lambda i: f"{stamps[i]},250 node-3: [1,0]<stdout>:"),
        ):
            with self.subTest(name):
                marked = self.write("".join(f"{prefix(i)}{line}\n" for i, line in enumerate(lines)), f"{name}.txt")
                found = self.json("calibrate", marked, *NCCL)
                self.assertEqual((found["rows"], found["facts"]["ranks"]), (wanted["rows"], "8"))
        pieces = []
        for line in lines:
            words = line.split()
            parts = [line] if line.startswith("#") else [" ".join(words[:5]), " ".join(words[5:9]), " ".join(words[9:])]
            pieces.append("node-3: " + "".join(f"[1,0]<stdout>:  {part}" for part in parts))
        self.assertEqual(self.json("calibrate", self.write("\n".join(pieces) + "\n", "pieces.txt"), *NCCL)["rows"], wanted["rows"])

    def test_files_of_another_kind(self):
        trace = json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1}]})
        files = {
            "empty.csv": (b"", "empty"),
            "text.txt": (b"step one took long\n", 'text that begins with "step one took long"'),
            "binary.dat": (bytes(range(256)) * 8, "binary"),
            "wide.csv": ("row,seconds\n".encode("utf-16"), "UTF-16"),
            "object.json": (b'{"loss": 1}', 'a JSON object with the keys "loss"'),
            "log.jsonl": (
                b'{"step": 1, "time": 2}\n{"step": 2, "time": 2}\n',
                'JSON lines, an object a line, with the keys "step", "time"',
            ),
            "cut.json": (trace[:-20].encode(), "JSON that is cut off"),
            "semicolons.csv": (b"row;seconds\na;1\n", "semicolons"),
            "log.csv": (b"step,loss\n1,2\n", "a table with the columns step, loss"),
        }
        for name, (content, what) in files.items():
            path = self.tmp / name
            path.write_bytes(content)
            for kind in ((), ("--kind", "trace"), ("--kind", "steps")):
                wanted = "the columns are step, loss" if name == "log.csv" and kind[-1:] == ("steps",) else what
                with self.subTest(file=name, kind=kind):
                    said = self.refused("calibrate", path, *kind, "--device", DEVICE, says=[name, wanted])
                    for inside in ("json.exception", "strict checking"):
                        self.assertNotIn(inside, said)
                    if kind[-1:] == ("trace",):
                        self.assertIn('"traceEvents"', said)
        log = self.log(self.sizes())
        self.refused("calibrate", log, "--kind", "steps", "--device", DEVICE, says=["output of nccl-tests", "leave out --kind"])
        self.refused("calibrate", log, "--kind", "trace", "--device", DEVICE, says=["output of nccl-tests", "traceEvents"])
        marked = self.tmp / "marked.csv"
        marked.write_bytes(b"\xef\xbb\xbfrow,seconds,global_batch\na,0.03,1\nb,0.04,2\nc,0.05,4\n")
        self.assertEqual(len(self.json(*self.fit(marked))["rows"]), 3)
        self.refused(*self.fit(self.write("row,seconds\na,1,2\n", "long.csv")), says=["long.csv:2: 3 fields"])
