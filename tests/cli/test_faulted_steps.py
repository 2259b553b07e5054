"""`rehearse simulate --faults`: a fault trace within simulated steps. Closed forms for freezes, slow links, links that are down and lost
packets; runs that stop; inputs."""

import json
import math
import subprocess
import sys

from cli_test_case import PATIENCE, ROOT
from faulted_case import ACK_TIMEOUT, JOB, LATENCY, LINKS, Faulted


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
