"""`rehearse simulate --faults` beyond closed forms: random traces, none of which may hang or end early, and long runs, which agree with
the full simulation."""

import os
import random

from cli_test_case import ROOT, CliTestCase
from faulted_case import ACK_TIMEOUT, JOB, LINKS, Faulted


class RandomTraces(Faulted):
    """No trace may hang a run or end it early, or make it shorter (ps-async: by much)."""

    METHODS = {
        "ddp": (),
        "zero1": (),
        "zero3": (),
        "1f1b": ("--set", "method.pp=2"),
        "pipedream-2bw": ("--set", "method.pp=2"),
        "topk-sync": (),
        "ps-sync": (),
        "ps-async": (),
    }
    TRACES = 200

    def random_event(self, draw, whole):
        kind = draw.choice(
            (
                "rank_dies",
                "device_dies",
                "node_dies",
                "node_returns",
                "freezes",
                "freezes",
                "slows",
                "slows",
                "link_down",
                "link_down",
                "link_up",
                "link_slow",
                "link_slow",
                "packet_loss",
                "packet_loss",
                "partition",
                "disk_full",
                "disk_slow",
                "checkpoint_truncated",
                "wrong_numbers",
            )
        )
        event = {"kind": kind}
        if kind in ("rank_dies", "freezes", "slows", "wrong_numbers", "checkpoint_truncated"):
            event["rank"] = draw.randrange(4)
        if kind in ("node_dies", "node_returns"):
            event["node"] = draw.randrange(4)
        if kind == "device_dies":
            event["device"] = f"node{draw.randrange(4)}/gpu0"
        if kind.startswith("link") or kind == "packet_loss":
            event["link"] = draw.choice(LINKS).format(draw.randrange(4))
        if kind == "partition":
            event["nodes"] = draw.sample(range(4), draw.randrange(1, 4))
        if draw.random() < 0.5:
            event["at"] = f"{draw.uniform(0, 1.2 * whole) * 1e9:.0f}ns"
        else:
            event["step"] = draw.randrange(0, 14)
            event["phase"] = draw.choice(("begin", "forward", "backward", "exchange", "update", "save", "recovery"))
        if kind in ("freezes", "slows", "link_down", "link_slow", "packet_loss", "partition", "disk_full", "disk_slow"):
            lasts = draw.choice((0, 0.01 * whole, 0.3 * whole, 2, 30, 1000))
            if lasts:
                event["duration"] = f"{lasts * 1e9:.0f}ns"
        if kind in ("slows", "link_slow", "disk_slow"):
            event["factor"] = draw.choice((1, 1.3, 4, 100))
        if kind == "packet_loss":
            event["factor"] = draw.choice((0, 1e-6, 0.01, 0.5, 1))
        return event

    def test_random_traces(self):
        cluster = self.platform(nodes=4)
        tcp = self.platform(nodes=4, mtu=1500, name="tcp.toml")
        draw = random.Random(20)
        stops = 0
        for number in range(int(os.environ.get("REHEARSE_TRACES", self.TRACES))):
            method = draw.choice(sorted(self.METHODS))
            fidelity = draw.choice(("fluid", "fluid", "chunk"))
            events = [self.random_event(draw, 0.03) for _ in range(draw.randrange(0, 5))]
            more = ("--set", f"method.name={method}", "--fidelity", fidelity, "--steps", "12", *self.METHODS[method])
            if draw.random() < 0.3:
                more += ("--set", "checkpoint.kind=async", "--set", "train.save_every=3") if not method.startswith("ps") else ()
            with self.subTest(number=number, method=method, fidelity=fidelity, events=events):
                job = JOB.replace('method.bucket = "10GB"\n', "").replace("global_batch = 8", "global_batch = 24")
                run = self.faulted(*events, cluster=draw.choice((cluster, tcp)), more=more, job=job)
                if run["stopped"]:
                    stops += 1
                    self.assertTrue(1 <= run["stop"]["event"] <= len(events))
                    self.assertLess(run["steps_done"], run["steps"])
                    self.assertGreaterEqual(run["stop"]["noticed_s"], run["stop"]["struck_s"])
                else:
                    self.assertIsNone(run["stop"])
                    self.assertEqual(run["steps_done"], run["steps"])
                # Workers of ps-async push at the same time and share the server's link, until one of them is late.
                slack = 0.15 if method == "ps-async" else 1e-6
                self.assertGreaterEqual(run["run_s"], run["undisturbed_s"] * (1 - slack))
                if not events:
                    for a, b in zip(run["step_times_s"], run["undisturbed_step_times_s"], strict=True):
                        self.assert_close(a, b, 1e-9)
        self.assertGreater(stops, 20 if not os.environ.get("REHEARSE_TRACES") else 0)


class LongRuns(Faulted):
    COMPUTES = JOB.replace("gpt-tiny", "gpt2-124m").replace("global_batch = 8", "global_batch = 32")

    def both(self, *events, duration=90, gigabits=10):
        """The long run; productive and lost seconds of the full simulation of the same trace."""
        cluster = self.platform(gigabits=gigabits)
        trace = self.trace(*events)
        job = self.job(self.COMPUTES.format(cluster=cluster))
        full = self.json("simulate", job, "--faults", trace, "--steps", "400")["faults"]
        long = self.json("simulate", job, "--faults", trace, "--duration", f"{duration}s")
        self.assertGreater(full["run_s"], duration)
        done, now = 0.0, 0.0
        step = full["undisturbed_step_times_s"][-1]
        for one in full["step_times_s"]:
            done += min(1.0, (duration - now) / one)
            now += one
            if now >= duration:
                break
        return long, done * step, duration - done * step

    def test_they_agree_with_the_full_simulation(self):
        long, productive, lost = self.both(
            {"kind": "freezes", "rank": 1, "at": "20s", "duration": "6s"},
            {"kind": "slows", "rank": 0, "at": "40s", "duration": "10s", "factor": 1.5},
            {"kind": "freezes", "rank": 0, "at": "70s", "duration": "2s"},
            gigabits=1000,
        )
        # The long run slows down whole steps, the simulation their local ops; here there is little else. A pace that changes within a step
        # costs the long run that step's part.
        self.assertGreater(lost, 11)
        self.assert_close(long["productive_s"], productive, 0.01)
        self.assert_close(sum(long["lost_s"].values()), lost, 0.06)
        self.assertEqual(long["interruptions"], 0)

    def test_slow_links_have_a_price(self):
        for event in (
            {"kind": "link_slow", "link": LINKS[0].format(0), "at": "20s", "duration": "40s", "factor": 4},
            {"kind": "packet_loss", "link": LINKS[0].format(0), "at": "20s", "duration": "40s", "factor": 0.02},
        ):
            with self.subTest(event=event):
                long, productive, lost = self.both(event)
                self.assertGreater(lost, 2)
                self.assert_close(long["productive_s"], productive, 0.02)
                self.assert_close(long["lost_s"]["degraded"], lost, 0.05)
                self.assertIn(LINKS[0].format(0), long["notes"][0])

    def test_a_slow_disk_stretches_checkpoints(self):
        job = self.job(self.COMPUTES.format(cluster=self.platform()))
        every = ("--set", "train.save_every=10", "--duration", "10min", "--fidelity", "analytic")
        slow = {"kind": "disk_slow", "at": "0s", "factor": 10}
        plain = self.json("simulate", job, "--faults", self.trace({"kind": "node_returns", "node": 1, "at": "1s"}), *every)
        found = self.json("simulate", job, "--faults", self.trace(slow), *every)
        self.assert_close(
            found["lost_s"]["checkpoint"] / found["checkpoints"], 10 * plain["lost_s"]["checkpoint"] / plain["checkpoints"], 0.02
        )
        local = self.json("simulate", job, "--faults", self.trace({**slow, "node": 1}), *every)
        self.assertEqual(local["lost_s"], plain["lost_s"])

    def test_a_short_break_of_a_link_does_not_stop_a_long_run(self):
        long, productive, lost = self.both({"kind": "link_down", "link": LINKS[0].format(0), "at": "20s", "duration": "8s"})
        self.assertEqual(long["interruptions"], 0)
        self.assert_close(lost, 2 * ACK_TIMEOUT, 0.1)
        self.assert_close(long["productive_s"], productive, 0.02)


class Examples(CliTestCase):
    def test_the_examples_of_the_docs(self):
        job = ROOT / "experiments/paper-ddp.toml"
        link = self.json("simulate", job, "--faults", ROOT / "experiments/faults/flapping-link.toml", "--seeds", "1")["faults"]
        self.assertFalse(link["stopped"])
        self.assertTrue(all(event["cost_s"] > 0.01 for event in link["events"]), link["events"])
        node = self.json(
            "simulate", job, "--faults", ROOT / "experiments/faults/dead-node.toml", "--set", "run.timeout=10s", "--seeds", "1"
        )
        self.assertEqual((node["faults"]["stop"]["event"], node["faults"]["steps_done"]), (3, 29))
