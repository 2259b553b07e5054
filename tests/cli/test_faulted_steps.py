"""`rehearse simulate --faults`: a fault trace within simulated steps. Closed forms for freezes, slow links, links that are down and lost
packets; runs that stop; random traces, none of which may hang or end early; long runs agree with the full simulation."""

import json
import math
import os
import random
import subprocess
import sys

from cli_test_case import PATIENCE, ROOT, CliTestCase

LINKS = ("node{}/nic0>fabric", "fabric>node{}/nic0")
ACK_TIMEOUT = 4.096e-6 * 2**20
LATENCY = 100e-6  # of the network card's link
JOB = """model.name = "gpt-tiny"
cluster.name = "{cluster}"
method.name = "ddp"
method.bucket = "10GB"
method.collective = "ring"
train.global_batch = 8
"""


class Faulted(CliTestCase):
    def platform(self, nodes=2, mtu=0, slow=1.0, gpus=1, gigabits=10, name="cluster.toml"):
        """Nodes with a network card each; the bandwidth of node 0's is divided by `slow`."""

        def node(count, factor):
            wire = f", tcp_mtu = {mtu}" if mtu else ""
            return f"""[[nodes]]
count = {count}
devices = [{", ".join(['"RTX 4090"'] * gpus)}]
disk = {{ size = "2TB", read = "7GB/s", write = "5GB/s" }}
host_memory = "256GB"
parts = ["nic0"]
links = [
  {{ from = "gpu*", to = "nic0", bandwidth = "24GB/s", latency = "1us" }},
  {{ from = "nic0", to = "fabric", bandwidth = "{gigabits / factor:.17g}Gb/s", latency = "100us"{wire} }},
]
"""

        path = self.tmp / name
        path.write_text(
            'summary = "test"\n'
            + node(1, slow)
            + (node(nodes - 1, 1) if nodes > 1 else "")
            + '[shared_disk]\nsize = "1TB"\nread = "1GB/s"\nwrite = "1GB/s"\n'
        )
        return path

    def trace(self, *events, name="trace.toml"):
        lines = ["version = 1"]
        for event in events:
            lines.append("[[event]]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in event.items()]
        path = self.tmp / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def simulate(self, *arguments, cluster=None, job=JOB):
        cluster = cluster or self.platform()
        return self.json("simulate", self.job(job.format(cluster=cluster)), "--quiet", *arguments)

    def faulted(self, *events, cluster=None, more=(), job=JOB):
        return self.simulate("--faults", self.trace(*events), *more, cluster=cluster, job=job)["faults"]

    def assert_close(self, value, expected, relative=1e-6, what=None):
        self.assertAlmostEqual(value, expected, delta=relative * abs(expected), msg=what)


class ClosedForms(Faulted):
    def test_a_freeze_costs_its_duration(self):
        for fidelity in ("analytic", "fluid", "chunk"):
            for phase in ("begin", "forward", "backward", "exchange", "update"):
                event = {"kind": "freezes", "rank": 1, "step": 10, "phase": phase, "duration": "1500ms"}
                with self.subTest(fidelity=fidelity, phase=phase):
                    run = self.faulted(event, more=("--fidelity", fidelity))
                    self.assertFalse(run["stopped"])
                    self.assertEqual((run["steps_done"], len(run["step_times_s"])), (55, 55))
                    self.assert_close(run["run_s"] - run["undisturbed_s"], 1.5, 1e-3)
                    (one,) = run["events"]
                    self.assert_close(one["cost_s"], run["run_s"] - run["undisturbed_s"])
                    self.assertEqual(one["step"], 10)
                    self.assertGreater(run["step_times_s"][9], 1.5)
                    self.assertEqual(one["until_s"], one["struck_s"] + 1.5)

    def test_a_freeze_in_the_middle_of_an_op(self):
        whole = self.faulted({"kind": "freezes", "rank": 0, "at": "1h", "duration": "1s"})["undisturbed_s"]
        for part in (0.1037, 0.3541, 0.5219, 0.7313, 0.9011):
            for fidelity in ("analytic", "fluid", "chunk"):
                event = {"kind": "freezes", "rank": 1, "at": f"{part * whole * 1e9:.0f}ns", "duration": "1s"}
                with self.subTest(part=part, fidelity=fidelity):
                    run = self.faulted(event, more=("--fidelity", fidelity))
                    self.assert_close(run["run_s"] - run["undisturbed_s"], 1, 1e-3)

    def test_a_slow_rank_is_a_straggler(self):
        for fidelity in ("analytic", "fluid", "chunk"):
            run = self.faulted({"kind": "slows", "rank": 1, "at": "0s", "factor": 3}, more=("--fidelity", fidelity))
            one = self.simulate("--fidelity", fidelity, "--set", "disturb.stragglers=[{rank=1,factor=3}]")
            self.assert_close(run["step_times_s"][-1], one["step_time_s"]["mean"], what=fidelity)
            self.assertIsNone(run["events"][0]["until_s"])

    def test_a_slow_link_is_a_link_with_less_bandwidth(self):
        for fidelity in ("fluid", "chunk"):
            events = [{"kind": "link_slow", "link": link.format(0), "at": "0s", "factor": 3} for link in LINKS]
            run = self.faulted(*events, more=("--fidelity", fidelity))
            one = self.simulate("--fidelity", fidelity, cluster=self.platform(slow=3))
            self.assert_close(run["step_times_s"][-1], one["step_time_s"]["mean"], what=fidelity)
            self.assertGreater(run["step_times_s"][-1], 1.3 * run["undisturbed_step_times_s"][-1])

    def test_a_slow_link_for_a_while(self):
        event = {"kind": "link_slow", "link": LINKS[0].format(0), "step": 10, "factor": 5, "duration": "5ms"}
        run = self.faulted(event)
        for step, (with_it, without) in enumerate(zip(run["step_times_s"], run["undisturbed_step_times_s"], strict=True), 1):
            if step < 10:
                self.assert_close(with_it, without)
        self.assertGreater(run["events"][0]["cost_s"], 0.001)
        self.assert_close(run["step_times_s"][-1], run["undisturbed_step_times_s"][-1])

    def down(self, duration, cluster=None, more=(), link="node0/nic0>fabric"):
        event = {"kind": "link_down", "link": link, "step": 10, "phase": "exchange", "duration": f"{duration}s"}
        return self.faulted(event, cluster=cluster, more=more)

    def test_a_link_that_is_down_costs_that_and_the_retransmission(self):
        for fidelity in ("fluid", "chunk"):
            # RDMA tries again each 4.295 s, TCP after 0.2, 0.6, 1.4, 3 s ...; PCIe at once.
            more = ("--fidelity", fidelity)
            run = self.down(5, more=more)
            self.assert_close(run["run_s"] - run["undisturbed_s"], 2 * ACK_TIMEOUT, 1e-6, fidelity)
            tcp = self.down(1, cluster=self.platform(mtu=1500), more=more)
            self.assert_close(tcp["run_s"] - tcp["undisturbed_s"], 0.2 + 0.4 + 0.8, 1e-6, fidelity)
            bus = self.down(5, cluster=self.platform(nodes=1, gpus=2), link="node0/gpu0>node0/nic0", more=more)
            self.assert_close(bus["run_s"] - bus["undisturbed_s"], 5, 1e-4, fidelity)

    def test_link_up_ends_it(self):
        whole = self.down(5)["undisturbed_s"]
        at = 0.5 * whole
        run = self.faulted(
            {"kind": "link_down", "link": LINKS[0].format(0), "at": f"{at * 1e9:.0f}ns"},
            {"kind": "link_up", "link": LINKS[0].format(0), "at": f"{at + 6:.9f}s"},
        )
        self.assertFalse(run["stopped"])
        self.assert_close(run["run_s"] - run["undisturbed_s"], 2 * ACK_TIMEOUT, 0.02)
        self.assertGreaterEqual(run["events"][0]["until_s"], at + 6)

    def test_a_partition_that_heals(self):
        event = {"kind": "partition", "nodes": [1], "step": 5, "phase": "exchange", "duration": "3s"}
        run = self.faulted(event)
        self.assert_close(run["run_s"] - run["undisturbed_s"], ACK_TIMEOUT)

    def test_lost_packets_match_the_formulas(self):
        lost = 0.003
        round_trip = 2 * (2e-6 + 2 * LATENCY)
        for mtu in (0, 1500, 9000):
            bandwidth = 10e9 / 8 * ((mtu - 52) / (mtu + 38) if mtu else 1)
            packet = mtu - 52 if mtu else 4096
            round_trip_with = round_trip + packet / bandwidth
            if mtu:
                rate = min(bandwidth * (1 - lost), math.sqrt(1.5) * packet / (round_trip_with * math.sqrt(lost)))
            else:
                rate = bandwidth * (1 - lost) / (1 + lost * (bandwidth * round_trip_with / packet - 1))
            cluster = self.platform(mtu=mtu)
            for fidelity in ("fluid", "chunk"):
                with self.subTest(mtu=mtu, fidelity=fidelity):
                    more = ("--fidelity", fidelity)
                    link = LINKS[0].format(0)
                    run = self.faulted({"kind": "packet_loss", "link": link, "at": "0s", "factor": lost}, cluster=cluster, more=more)
                    slow = self.simulate(
                        *more, "--set", f'disturb.slow_links=[{{link="{link}",factor={bandwidth / rate:.17g}}}]', cluster=cluster
                    )
                    self.assert_close(run["step_times_s"][-1], slow["step_time_s"]["mean"])
                    self.assertGreater(bandwidth / rate, 1.1)


class Stops(Faulted):
    FAST = ("--set", "run.timeout=8s", "--set", "run.heartbeat=1s")

    def test_deaths_stop_the_run(self):
        for fidelity in ("analytic", "fluid", "chunk"):
            for event, noticed in (
                ({"kind": "rank_dies", "rank": 1}, 0.3),
                ({"kind": "device_dies", "device": "node1/gpu0"}, 0.3),
                ({"kind": "node_dies", "node": 1}, 9),
                ({"kind": "node_dies", "node": 1, "detection": "4s"}, 4),
                ({"kind": "freezes", "node": 1}, 9),
                ({"kind": "freezes", "rank": 1, "duration": "1h"}, 9),
            ):
                with self.subTest(fidelity=fidelity, event=event):
                    run = self.faulted({**event, "step": 12, "phase": "backward"}, more=("--fidelity", fidelity, *self.FAST))
                    stop = run["stop"]
                    self.assertEqual((run["stopped"], run["steps_done"], stop["step"], stop["event"]), (True, 11, 12, 1))
                    self.assert_close(stop["noticed_s"] - stop["struck_s"], noticed)
                    self.assertEqual((stop["lost_steps"], stop["kind"]), (11, event["kind"]))
                    self.assert_close(stop["lost_s"], stop["struck_s"])
                    self.assertIn(0, [one["rank"] for one in stop["waiting"]])
                    self.assertIn("all_reduce", stop["waiting"][0]["op"])

    def test_broken_paths_stop_the_run(self):
        for fidelity in ("fluid", "chunk"):
            for event in (
                {"kind": "link_down", "link": LINKS[1].format(0)},
                {"kind": "link_down", "link": LINKS[1].format(0), "duration": "20s"},
                {"kind": "partition", "nodes": [0]},
                {"kind": "packet_loss", "link": LINKS[1].format(1), "factor": 1},
            ):
                with self.subTest(fidelity=fidelity, event=event):
                    run = self.faulted({**event, "step": 7}, more=("--fidelity", fidelity, *self.FAST))
                    self.assertTrue(run["stopped"])
                    self.assertEqual((run["steps_done"], run["stop"]["event"]), (6, 1))
                    # From the first transfer on that stands still.
                    self.assertTrue(9 <= run["stop"]["noticed_s"] - run["stop"]["struck_s"] < 9.1)
                    self.assertEqual({one["rank"] for one in run["stop"]["waiting"]}, {0, 1})

    def test_an_unused_link_stops_nothing(self):
        run = self.faulted(
            {"kind": "link_down", "link": "node2/nic0>fabric", "at": "0s"},
            cluster=self.platform(nodes=3),
            more=("--set", "cluster.world_size=2", *self.FAST),
        )
        self.assertEqual((run["stopped"], run["run_s"]), (False, run["undisturbed_s"]))

    def test_rdma_gives_up_before_the_job_does(self):
        run = self.faulted({"kind": "link_down", "link": LINKS[0].format(0), "step": 7}, more=("--set", "run.timeout=10min"))
        self.assert_close(run["stop"]["noticed_s"] - run["stop"]["struck_s"], 8 * ACK_TIMEOUT, 1e-2)

    def test_stated_detection_and_checkpoints(self):
        run = self.faulted(
            {"kind": "rank_dies", "rank": 0, "step": 25}, more=("--set", "recovery.detection=7s", "--set", "train.save_every=10")
        )
        stop = run["stop"]
        self.assert_close(stop["noticed_s"] - stop["struck_s"], 7)
        self.assertEqual((run["steps_done"], stop["lost_steps"]), (24, 4))
        self.assert_close(stop["lost_s"], stop["struck_s"] - sum(run["step_times_s"][:20]))

    def test_text(self):
        job = self.job(JOB.format(cluster=self.platform()))
        trace = self.trace(
            {"kind": "slows", "rank": 0, "step": 3, "factor": 2, "duration": "1s"}, {"kind": "rank_dies", "rank": 1, "step": 9}
        )
        out = self.rehearse("simulate", job, "--faults", trace).stdout
        self.assertIn("stopped by event 2 (rank_dies rank 1)", out)
        self.assertIn("8 of 55 steps take", out)
        self.assertIn("rank 0 waits in step 9: ", out)
        self.assertRegex(out, r"\n +1 +slows rank 0 x2 for 1 s ")


class Checkpoints(Faulted):
    ASYNC = ("--set", "checkpoint.kind=async", "--set", "train.save_every=5")

    def test_disks_act_on_writes(self):
        slow = {"kind": "disk_slow", "at": "0s", "factor": 1e6}
        run = self.faulted(slow, more=(*self.ASYNC, "--fidelity", "analytic"))
        self.assertIsNone(run["events"][0]["no_effect"])
        self.assertGreater(run["run_s"], 1.1 * run["undisturbed_s"])
        full = {"kind": "disk_full", "step": 5, "phase": "save", "duration": "3s"}
        for fidelity in ("analytic", "fluid"):
            run = self.faulted(full, more=(*self.ASYNC, "--fidelity", fidelity))
            self.assertEqual((run["stopped"], run["events"][0]["step"] in (5, 6)), (False, True))
            self.assertTrue(0 < run["run_s"] - run["undisturbed_s"] <= 3.001, run["run_s"] - run["undisturbed_s"])
        for_good = {**full, "duration": "0s"}
        run = self.faulted(for_good, more=self.ASYNC)
        self.assertEqual((run["stopped"], run["stop"]["kind"]), (True, "disk_full"))

    def test_without_writes_they_do_nothing(self):
        run = self.faulted({"kind": "disk_slow", "at": "0s", "factor": 9})
        self.assertIn("no step writes to this disk", run["events"][0]["no_effect"])
        self.assertEqual(run["run_s"], run["undisturbed_s"])
        self.assertIn("no effect within steps", run["notes"][0])


class Inputs(Faulted):
    def test_bad_inputs(self):
        job = self.job(JOB.format(cluster=self.platform()))
        for event, says in (
            ({"kind": "link_slow", "link": "node0/nic1>fabric", "at": "1s", "factor": 2}, ["node0/nic1>fabric", "node0/nic0>fabric"]),
            ({"kind": "freezes", "rank": 2, "at": "1s"}, ["rank", "at most 1"]),
            ({"kind": "node_dies", "node": 5, "at": "1s"}, ["node", "at most 1"]),
        ):
            self.refused("simulate", job, "--faults", self.trace(event), says=says)
        self.refused("simulate", job, "--faults", self.tmp / "missing.toml", says=["missing.toml"])
        down = self.trace({"kind": "freezes", "rank": 1, "at": "1s"}, {"kind": "link_down", "link": LINKS[0].format(0), "at": "1s"})
        self.refused("simulate", job, "--faults", down, "--fidelity", "analytic", says=["event 2 (link_down", "fluid and chunk"])
        self.refused("simulate", job, "--steps", "3", says=["--steps"])

    def test_after_the_end(self):
        late = [{"kind": "freezes", "rank": 0, "at": "1h", "duration": "1s"}, {"kind": "link_down", "link": LINKS[0].format(0), "step": 56}]
        for fidelity in ("fluid", "chunk"):
            run = self.faulted(*late, more=("--fidelity", fidelity))
            self.assertIn("events 1, 2: after the end of the 55 steps", run["notes"][0])
            self.assertEqual([one["struck_s"] for one in run["events"]], [None, None])
            for a, b in zip(run["step_times_s"], run["undisturbed_step_times_s"], strict=True):
                self.assert_close(a, b, 1e-9)
        more = self.faulted(*late, more=("--steps", "60"))
        self.assertEqual((more["steps"], more["events"][1]["step"], more["stopped"]), (60, 56, True))
        never = self.faulted({"kind": "rank_dies", "rank": 0, "step": 4, "phase": "save"})
        self.assertIn("no op of the phase save in step 4", never["notes"][0])

    def test_the_ordinary_figures_stay(self):
        cluster = self.platform()
        plain = self.simulate(cluster=cluster)
        found = self.simulate("--faults", self.trace({"kind": "rank_dies", "rank": 0, "step": 4}), cluster=cluster)
        self.assertNotIn("faults", plain)
        for key, value in plain.items():
            if key != "command":
                self.assertEqual(found[key], value, key)

    def test_other_commands_say_that_they_leave_the_trace_out(self):
        job, trace = self.job(JOB.format(cluster=self.platform())), self.trace({"kind": "rank_dies", "rank": 0, "step": 4})
        settings = ("--set", f"faults.trace={trace}")
        said = f"faults.trace: {trace} is left out: `rehearse simulate` replays it"
        compare = ("compare", job, "--methods", "ddp", "--fidelity", "analytic", "--quiet")
        self.assertIn(said, self.json(*compare, *settings)["results"][0]["warnings"])
        self.assertIn(f"warning: {said}\n", self.rehearse(*compare, *settings).stdout)
        self.assertNotIn("faults.trace", self.rehearse(*compare).stdout)
        plan = ("plan", job, "--set", "method.name=adaptive", "--set", "method.bucket=", "--set", "method.collective=", "--quiet")
        plan = (*plan, "--no-rescore", "--budget", "20")
        self.assertIn(f"warning: {said}\n", self.rehearse(*plan, *settings).stdout)
        self.assertNotIn("faults.trace", self.rehearse(*plan).stdout)

    def test_steps_repeat_after_the_last_event(self):
        run = self.faulted({"kind": "slows", "rank": 0, "step": 40, "factor": 4, "duration": "100ms"}, more=("--steps", "5000"))
        self.assertEqual((run["steps_done"], run["events"][0]["step"]), (5000, 40))
        self.assertGreater(run["events"][0]["cost_s"], 0)
        self.assert_close(run["step_times_s"][-1], run["undisturbed_step_times_s"][-1])

    def test_seeds_and_jitter(self):
        event = {"kind": "freezes", "rank": 1, "step": 10, "duration": "1s"}
        more = ("--set", "disturb.compute_jitter=0.1", "--set", "disturb.link_jitter=0.1", "--seeds", "3")
        for fidelity in ("analytic", "fluid"):
            run = self.faulted(event, more=(*more, "--fidelity", fidelity))
            self.assert_close(run["run_s"] - run["undisturbed_s"], 1, 1e-2)

    def test_trace_file(self):
        trace = self.tmp / "step.json"
        self.faulted({"kind": "freezes", "rank": 1, "step": 10, "phase": "backward", "duration": "1s"}, more=("--trace", trace))
        events = json.loads(trace.read_text())["traceEvents"]
        marks = [e for e in events if e.get("cat") == "fault"]
        self.assertEqual([e["ph"] for e in marks], ["i", "X"])
        self.assertEqual(marks[1]["name"], "freezes rank 1 for 1 s")
        self.assertAlmostEqual(marks[1]["dur"], 1e6, delta=1)
        self.assertEqual({e["args"]["step"] for e in events if e.get("ph") == "X" and e["cat"] != "fault"}, {9, 10})

    def test_report(self):
        job, page = self.job(JOB.format(cluster=self.platform())), self.tmp / "page.html"
        trace = self.trace(
            {"kind": "slows", "rank": 0, "step": 3, "factor": 2, "duration": "3ms"}, {"kind": "rank_dies", "rank": 1, "step": 9}
        )
        self.rehearse("simulate", job, "--faults", trace, "--report", page)
        self.assertIn("Steps under a fault trace", page.read_text())
        picture = self.tmp / "steps.json"
        self.rehearse("simulate", job, "--faults", trace, "-o", picture)
        drawn = self.tmp / "steps.svg"
        script = [sys.executable, str(ROOT / "plots/report.py"), str(picture), "--only", "faults", "-o", str(drawn)]
        subprocess.run(script, check=True, capture_output=True, timeout=PATIENCE)
        self.assertIn("<svg", drawn.read_text())


class RandomTraces(Faulted):
    """No trace may hang a run, end it early, or make it shorter."""

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
                self.assertGreaterEqual(run["run_s"], run["undisturbed_s"] * (1 - 1e-6))
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
