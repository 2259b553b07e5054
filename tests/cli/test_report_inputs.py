"""Checks that plots/ can read what the command writes: every key that the reader uses is in a file that `rehearse` wrote, and the report
of a real run is complete."""

import os
import re
import sys
from unittest import mock

import msgspec
from cli_test_case import ROOT
from cli_test_train_data import TrainingCase

sys.path[:0] = [str(ROOT), str(ROOT / "tests/python")]
from report_case import PageText  # noqa: E402

from plots import inputs, report  # noqa: E402

STEPS = 12
# Replaces the Python that draws, and keeps the files that it gets.
KEEP = """#!/bin/sh
shift
for one in "$@"; do
  file=${one#*=}
  [ -f "$file" ] && cp "$file" "$KEPT/$(basename "$file")"
done
exit 0
"""


class WhatIsWritten(TrainingCase):
    def trained(self):
        """Metrics, a trace and a profile of a real run."""
        files = [self.tmp / "real.json", self.tmp / "profile.json"]
        evaluate = ["--set", "train.eval_every=4", "--trace", files[0], "--profile-out", files[1]]
        self.rehearse("train", self.job(STEPS), "--nproc", "2", *evaluate)
        return [self.tmp / "out/metrics.jsonl", *files]

    def drawn(self, *arguments):
        """The files that a command passes to the report."""
        kept, stub = self.tmp / "kept", self.tmp / "python"
        kept.mkdir(exist_ok=True)
        stub.write_text(KEEP)
        stub.chmod(0o755)
        env = os.environ | {"REHEARSE_PYTHON": str(stub), "KEPT": str(kept)}
        self.rehearse(*arguments, "--report", self.tmp / "none.html", env=env)
        return sorted(kept.iterdir())

    def test_every_key_that_is_read_is_written(self):
        metrics, real, profile = self.trained()
        compared = self.tmp / "compare.json"
        self.rehearse("compare", self.job(), "--methods", "ddp,1f1b", "--seeds", 1, "-o", compared)
        adaptive = super(TrainingCase, self).job(
            'model.name = "gpt-tiny"\ncluster.name = "paper"\ncluster.world_size = 4\n'
            'method = { name = "adaptive", reduction = "sparse" }\ntrain.global_batch = 16\n',
            "adaptive.toml",
        )
        explained, marked = self.tmp / "explained.json", self.tmp / "marked.json"
        self.rehearse("simulate", self.job(), "--explain", "--seeds", 1, "-o", explained, "--trace", marked)
        trace, faulted = self.tmp / "faults.toml", self.tmp / "faulted.json"
        events = ('kind = "freezes"\nduration = "1ms"\n', 'kind = "wrong_numbers"\n')  # the second one has no effect on times
        trace.write_text("version = 1\n" + "".join(f"[[event]]\nrank = 0\nstep = 3\n{event}" for event in events))
        self.rehearse("simulate", self.job(), "--faults", trace, "--seeds", 1, "-o", faulted)
        pictures = self.drawn("plan", adaptive, "--profile", profile, "--no-rescore")
        self.assertIn("placement.json", [path.name for path in pictures])
        asked = {}  # the path of each key that a type of plots/ names -> whether a file has it
        convert = inputs.convert

        def note(value, read, where):
            if isinstance(read, list):
                for one, of_it in zip(value, read, strict=True):
                    note(one, of_it, f"{where}[]")
            elif isinstance(read, msgspec.Struct):
                for key in msgspec.structs.fields(read):
                    there, place = key.encode_name in value, f"{where}.{key.encode_name}"
                    asked[place] = asked.get(place, False) or there
                    if there:
                        note(value[key.encode_name], getattr(read, key.name), place)

        def remembering(value, kind, path, at="$"):
            read = convert(value, kind, path, at)
            note(value, read, re.sub(r"\[\d+\]", "[]", at))
            return read

        with mock.patch.object(inputs, "convert", remembering):
            read = inputs.load([str(path) for path in (metrics, real, compared, explained, marked, faulted, *pictures)])
        # `compare` explains nothing and replays no faults, and labels come from the command line.
        elsewhere = {"$.results[].explain", "$.results[].faults", "$.results[].label", "$.label"}
        self.assertEqual([key for key, there in asked.items() if not there and key not in elsewhere], [])
        for kind in (read.results, read.traces, read.losses, read.placements):
            self.assertTrue(kind)
        for key in ("$.validation_loss", "$.traceEvents[].args.micro_batch", "$.placement.layers[].variance"):
            self.assertIn(key, asked)

    def test_the_report_of_a_run_has_no_gap(self):
        metrics, real, _ = self.trained()
        page = self.tmp / "report.html"
        report.main([str(metrics), f"real={real}", "-o", str(page), "--quiet"])
        rows = PageText(page.read_text()).rows
        head, values = rows[-2], rows[-1]
        self.assertEqual(values[head.index("Steps")], str(STEPS))
        for title in ("First loss", "Last loss", "Validationlast"):
            self.assertRegex(values[head.index(title)], r"^\d+\.\d{3}$")
        text = " ".join(PageText(page.read_text()).text)
        self.assertIn(f"over {STEPS} steps", text)
        rows = inputs.load([str(metrics)]).losses[0].rows
        checks = [row.step for row in rows if row.validation_loss is not None]
        self.assertEqual(checks, [4, 8, 12])
        self.assertEqual([row.step for row in rows if row.loss is not None], list(range(1, STEPS + 1)))
