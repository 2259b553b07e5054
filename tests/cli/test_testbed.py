"""tools/testbed: ranks on nodes of their own, bandwidth of the cables, faults, exit status, and that nothing is left of it, however
it ends."""

import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from cli_test_case import PATIENCE, REHEARSE, ROOT
from testbed_case import PLATFORM, TestbedCase, needs_filter

from testbed import private


def missing():
    """Why this machine cannot build a network, or nothing."""
    try:
        private.inside(lambda: 0)
    except private.Missing as missing:
        return str(missing)
    return ""


pytestmark = [pytest.mark.soak, pytest.mark.skipif(bool(why := missing()), reason=f"this machine cannot build a network: {why}")]

TESTBED = ROOT / "tools/testbed"
WATCH = 0.02  # seconds between two datagrams
# Rank 1 sends datagrams for so many seconds. Rank 0 prints when each of them comes.
SENDER = """import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(int({seconds} / {watch})):
    s.sendto(str(n).encode(), ("node0", 9)); time.sleep({watch})
"""
RECEIVER = """import socket, json, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 9)); s.settimeout({seconds} + 1); came = []
try:
    while True: s.recv(99); came.append(time.time())
except TimeoutError: print(json.dumps(came))
"""
STREAM = """import os, socket, time
if os.environ["RANK"] == "0":
    s = socket.create_server(("", 9)); c = s.accept()[0]; n = 0; began = None
    while piece := c.recv(1 << 20):
        began = began or time.perf_counter(); n += len(piece)
    print(8e-6 * n / (time.perf_counter() - began))
else:
    time.sleep(0.5); c = socket.create_connection(("node0", 9)); end = time.time() + 2
    while time.time() < end: c.sendall(bytes(65536))
"""


def interfaces():
    return sorted(path.name for path in pathlib.Path("/sys/class/net").iterdir())


def processes(mark):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


class Testbed(TestbedCase):
    def run_it(self, *words, expect=0, **options):
        done = subprocess.run([sys.executable, TESTBED, *map(str, words)], capture_output=True, text=True, timeout=120, **options)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    @pytest.mark.long
    def test_each_node_is_a_host(self):
        done = self.run_it(self.platform(3), "--", "sh", "-c", "echo $(hostname) $RANK of $WORLD_SIZE $MASTER_ADDR; getent hosts node2")
        for rank in range(3):
            self.assertIn(f"node{rank} {rank} of 3 node0\n", done.stdout)
        self.assertEqual(done.stdout.count("10.77.0.3"), 3)
        self.assertRegex(
            done.stderr, r"3 nodes, cables of 1000 Mb/s on the wire; latency \d+ us .* as measured \(the platform says 40 us\)"
        )

    def test_bandwidth_is_the_platforms(self):
        for rate in (100, 400):
            done = self.run_it(self.platform(bandwidth=f"{rate}Mb/s"), "--", "python3", "-c", STREAM)
            # Payload of 1448 bytes in a frame of 1538. A busy machine may lose some; nothing passes the shaper.
            self.assertTrue(0.8 < float(done.stdout) / (rate * 1448 / 1538) < 1.03, done.stdout)

    def test_a_leaf_switch_is_shared(self):
        """Two nodes of a leaf send to two of another. A cable to the spine with the bandwidth of one node is all that they have."""
        path = pathlib.Path(self.platform(4, "200Mb/s"))
        path.write_text(path.read_text() + "[fabric]\nnodes_per_leaf = 2\noversubscription = 2\n")
        pairs = "import os; rank = int(os.environ['RANK']); os.environ['RANK'] = str(rank // 2)\n"
        done = self.run_it(path, "--", "python3", "-c", pairs + STREAM.replace('"node0"', "f'node{rank - 2}'"))
        rates = [float(line.split()[-1]) for line in done.stdout.splitlines()]
        self.assertEqual(len(rates), 2)
        # The two begin and end at slightly different times, and have the cable for themselves then. Unshared, the sum would be 2.
        self.assertTrue(0.8 < sum(rates) / (200 * 1448 / 1538) < 1.5, rates)

    def arrivals(self, *faults, seconds=2):
        """When the datagrams came that rank 1 sent to rank 0 in so many seconds."""
        given = {"seconds": seconds, "watch": WATCH}
        (self.tmp / "0.py").write_text(RECEIVER.format(**given))
        (self.tmp / "1.py").write_text(SENDER.format(**given))
        log = self.tmp / "log"
        done = self.run_it(self.platform(), *faults, "--log", log, "--quiet", "--", "sh", "-c", f"exec python3 {self.tmp}/$RANK.py")
        self.events = [json.loads(line) for line in log.read_text().splitlines()]
        return json.loads(done.stdout)

    def test_a_cable_is_pulled_and_plugged(self):
        came = self.arrivals("--down", "node1@1s..2s", seconds=3)
        # A host keeps packets for a while when its cable is pulled, so they come late.
        silence = max(b - a for a, b in itertools.pairwise(came))
        self.assertTrue(0.7 < silence < 1.7, silence)
        self.assertEqual([event["event"] for event in self.events], ["start", "node1 down", "node1 up", "end", "end"])

    @needs_filter
    def test_a_partition(self):
        came = self.arrivals("--partition", "node1@0.5s")
        self.assertLess(len(came) * WATCH, 1.2)

    @needs_filter
    def test_loss(self):
        sent = 4 / WATCH
        lost = 1 - len(self.arrivals("--loss", "node0=30%", seconds=4)) / sent
        self.assertTrue(0.15 < lost < 0.45, lost)  # six standard deviations of 200 datagrams
        self.assertGreater(len(self.arrivals("--loss", "node1=30%", seconds=2)), 0.9 * 2 / WATCH)  # what it sends is not lost

    @pytest.mark.long
    def test_a_job_trains_the_same(self):
        """The same losses as with --nproc, and two jobs at a time."""
        jobs = []
        for name in ("a", "b"):
            (self.tmp / name).mkdir()
            jobs.append(["--", REHEARSE, "train", self.job(folder=self.tmp / name), "--set", f"cluster.name={self.platform()}"])
        done = self.run_it(self.platform(), *jobs[0], *jobs[1])
        self.assertIn("[job 1 rank 0] ", done.stdout)
        self.rehearse("train", self.job(), "--nproc", 2)
        self.assertEqual(len(self.losses()), 12)
        for name in ("a", "b"):
            self.assertEqual(self.losses(self.tmp / name), self.losses())

    @needs_filter
    def test_documented_commands(self):
        """They run unchanged. A profile that is measured in the testbed finds the platform's bandwidth between the nodes."""
        text = (ROOT / "docs/testbed.md").read_text()
        (self.tmp / "nodes.toml").write_text(re.search(r"^```toml\n(.*?)^```", text, re.M | re.S)[1])
        (self.tmp / "tools").symlink_to(ROOT / "tools")
        (self.tmp / "bin").mkdir()
        (self.tmp / "bin/rehearse").symlink_to(REHEARSE)
        for name in ("JOB", "A", "B"):
            (self.tmp / name).mkdir()
            pathlib.Path(self.job(folder=self.tmp / name)).rename(self.tmp / f"{name}.toml")
        for line in re.search(r"^```sh\n(.*?)^```", text, re.M | re.S)[1].splitlines():
            env = os.environ | {"PATH": f"{self.tmp}/bin:{os.environ['PATH']}"}
            done = subprocess.run(["bash", "-c", line], cwd=self.tmp, env=env, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        for name in ("JOB", "A", "B"):
            self.assertEqual(len(self.losses(self.tmp / name)), 12)
        for pair in json.loads((self.tmp / "pairs.json").read_text())["pairs"]:
            self.assertTrue(0.7 < pair["bandwidth"] / (500e6 / 8 * 1448 / 1538) < 1.15, pair)
            self.assertLess(pair["latency"], 1e-3)

    def test_exit_status(self):
        self.run_it(self.platform(), "--", "sh", "-c", "exit $((RANK * 2))", expect=2)
        self.run_it(self.platform(), "--", "sh", "-c", "test $RANK = 0 || kill -9 $$", expect=1)
        began = time.monotonic()
        self.run_it(self.platform(), "--grace", "1s", "--", "sh", "-c", "test $RANK = 0 || exit 5; exec sleep 60", expect=5)
        self.assertLess(time.monotonic() - began, 30)
        for words, says in (
            (["nowhere.toml", "--", "true"], "nowhere.toml"),
            (["dgx-a100:2", "--", "true"], "one cable to the fabric"),
            (["this-machine", "--", "true"], "share one node"),
            ([ROOT / "experiments/topologies/two-sites.toml", "--", "true"], "no cables between groups"),
            ([self.platform()], "no command"),
            ([self.platform(), "--down", "node7@1s", "--", "true"], "the nodes are node0, node1"),
            ([self.platform(), "--down", "node1", "--", "true"], "when?"),
            ([self.platform(), "--loss", "node1@1s", "--", "true"], "how much?"),
            ([self.platform(), "--loss", "node1=120%", "--", "true"], "between 0% and 100%"),
            ([self.platform(), "--partition", "node0,node1@1s", "--", "true"], "every node"),
            ([self.platform(), "--down", "node1@3s..2s", "--", "true"], "ends before it begins"),
        ):
            self.assertIn(says, self.run_it(*words, expect=2).stderr)

    def test_what_is_missing_is_said(self):
        few = self.tmp / "few"
        few.mkdir()
        for program in ("ip", "tc", "nsenter", "unshare", "mount", "true"):
            (few / program).symlink_to(shutil.which(program))
        given = [self.platform(), "--loss", "node1=1%", "--", "true"]
        said = self.run_it(*given, expect=3, env=os.environ | {"PATH": str(few)}).stderr
        self.assertIn("no program nft (Debian package nftables)", said)
        (few / "tc").unlink()
        said = self.run_it(*given[:1], *given[3:], expect=3, env=os.environ | {"PATH": str(few)}).stderr
        self.assertIn("no program tc (Debian package iproute2)", said)

    def ended(self, mark, number):
        """Ends a testbed by a signal; its exit status once all of it is gone."""
        with subprocess.Popen([TESTBED, self.platform(), "--quiet", "--", "sh", "-c", f": {mark}; while sleep 1; do :; done"]) as child:
            try:
                self.eventually(lambda: len(processes(mark)) >= 5)  # three of the testbed, two ranks
                child.send_signal(number)
                status = child.wait(30)
            finally:
                child.kill()
        self.eventually(lambda: not processes(mark))
        return status

    def eventually(self, holds, patience=30):
        deadline = time.monotonic() + patience
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_nothing_is_left(self):
        before = interfaces()
        self.assertEqual(self.ended(f"mark-{os.getpid()}-int", signal.SIGINT), 128 + signal.SIGINT)
        self.assertEqual(self.ended(f"mark-{os.getpid()}-term", signal.SIGTERM), 128 + signal.SIGTERM)
        self.assertEqual(self.ended(f"mark-{os.getpid()}-kill", signal.SIGKILL), -signal.SIGKILL)
        self.assertEqual(interfaces(), before)
        self.assertNotIn("testbed", pathlib.Path("/etc/hosts").read_text())

    def test_without_root(self):
        """In a user namespace, if the kernel lets users have one."""
        if os.geteuid() != 0:
            self.skipTest("this is not root, so all other tests show it")
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        if subprocess.run([*nobody, "unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True).returncode:
            self.skipTest("this kernel gives users no namespaces")
        os.chmod(self.tmp, 0o755)
        done = subprocess.run(
            [*nobody, "/usr/bin/python3", TESTBED, self.platform(), "--", "hostname"], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[rank 1] node1", "node0"])

    def test_options_are_documented(self):
        text = (ROOT / "docs/testbed.md").read_text()
        for option in re.findall(r"^  (--[a-z-]+)", self.run_it("--help").stdout, re.M):
            self.assertIn(f"`{option}", text)
        self.assertIn(PLATFORM.splitlines()[1], text)
