"""Workers and parameter servers that leave and join: the others go on, with fewer ranks or with new ones in the places of the lost."""

import pytest
from server_case import ASYNCHRONOUS, METHODS, ServerCase

pytestmark = pytest.mark.soak


class ServerElastic(ServerCase):
    def test_workers_and_servers_leave_and_come_back(self):
        for method in METHODS:
            keys = self.keys(method, 3)
            whole = self.whole(f"whole-{method}", 4, keys)
            part = 1e-3 if method == "ps-sync" else 0.1
            cases = (("shrink", 1), ("shrink", 3), ("grow", 0), ("grow", 3))
            for policy, rank in cases if method == "ps-sync" else cases[1:3]:
                with self.subTest(method=method, policy=policy, rank=rank):
                    out = f"{method}-{policy}-{rank}"
                    trace = self.trace(
                        {"kind": "rank_dies", "rank": rank, "step": 21, "phase": self.server_phase(method) if rank == 3 else "backward"}
                    )
                    one, notes, said = self.survive(out, 4, keys | self.in_memory("sharded", policy), "--faults", trace)
                    # A worker's process takes the place of a lost server.
                    self.assertEqual((notes[0]["died"], notes[0]["ranks"]), ([rank], 3), said)
                    # An asynchronous worker may be ahead of the servers' steps.
                    if method not in ASYNCHRONOUS or rank == 3:
                        self.assertEqual(notes[0]["from_step"], 20)
                    self.assertEqual((one["world_size"], one["global_batch"]), (3 if policy == "shrink" else 4, 12))
                    if policy == "grow":
                        self.assertEqual([(n["joined"], n["ranks"]) for n in notes[1:]], [(1, 4)])
                    self.alike(one, whole, part)

    def test_a_lost_worker_comes_back_and_a_lost_server_takes_all_back(self):
        for method in ("ps-sync", "ps-async"):
            for rank, ranks in ((0, [3, 4]), (3, [4])):
                with self.subTest(method=method, rank=rank):
                    keys = self.keys(method, 3) | self.in_memory("sharded", "replica")
                    trace = self.trace(
                        {"kind": "rank_dies", "rank": rank, "step": 11, "phase": self.server_phase(method) if rank == 3 else "backward"}
                    )
                    one, notes, said = self.survive(f"{method}-{rank}", 4, keys, "--faults", trace)
                    self.assertEqual([n["ranks"] for n in notes], ranks, said)
                    if method == "ps-sync" or rank == 3:
                        self.assertEqual(notes[0]["from_step"], 10)
                    self.assertEqual((one["world_size"], one["global_batch"]), (4, 12))
