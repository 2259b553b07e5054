"""Federated averaging and text divided by source, through the command: bytes of simulated and real runs, rounds of one step that are ddp,
clients that begin anew and have texts of their own, going on from a checkpoint in mid-round, and refusals."""

import json
import subprocess
import sys

from cli_test_case import PATIENCE, ROOT
from cli_test_train_data import TrainingCase

ROUND = 4


class FedAvg(TrainingCase):
    def run_of(self, command, *more, method="fedavg", out=None, clients=2, servers=1, **keys):
        servers = servers if method == "fedavg" else 0
        keys = {
            "method.name": method,
            "method.dp": clients,
            "train.out": str(self.tmp / (out or method)),
            "train.schedule": "constant",
            **({"method.local_steps": ROUND, "method.servers": servers} if method == "fedavg" else {}),
        } | keys
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return self.json(command, self.job(), *(("--nproc", clients + servers) if command == "train" else ()), *sets, *more)

    def state(self, out, step):
        return {p.name: p.read_bytes() for p in (self.tmp / out / f"step-{step:08}").glob("*.safetensors")}

    def by_source(self, *texts):
        """Prepares texts, an input each; returns the folder of their shards."""
        for at, text in enumerate(texts):
            (self.tmp / f"{at}.txt").write_text(text)
        out = self.tmp / "by-input"
        names = [str(self.tmp / f"{at}.txt") for at in range(len(texts))]
        subprocess.run(
            [
                *(sys.executable, ROOT / "data/prepare.py", *names, "-o", out, "--by-input", "--quiet", "--force"),
                *("--vocab-size", "300", "--max-document-chars", "2000", "--keep-duplicates"),
            ],
            check=True,
            timeout=PATIENCE,
        )
        return str(out)

    def test_real_and_simulated_runs_send_the_same_bytes(self):
        for clients, servers in ((2, 1), (3, 2)):
            with self.subTest(clients=clients, servers=servers):
                counts = {"clients": clients, "servers": servers, "train.global_batch": 6, "method.bucket": "100kB"}
                found = self.run_of("simulate", **counts)["bytes_sent_per_rank"]
                real = self.run_of("train", out=f"of-{clients}", **counts)
                # In 12 steps, three rounds: a client sends all fp32 weights once a round, a server its part to each client.
                weights = real["bytes_sent_by_rank_0"] / 3
                self.assertAlmostEqual(found["mean"] * (clients + servers), 2 * clients * weights / ROUND, places=3)
                if servers == 1:
                    self.assertEqual(found["max"], clients * weights / ROUND)
                self.assertLess(real["last_loss"], real["first_loss"] - 0.2)

    def test_fidelities_agree_and_steps_are_whole_rounds(self):
        means = [self.run_of("simulate", "--fidelity", f)["step_time_s"]["mean"] for f in ("analytic", "fluid", "chunk")]
        self.assertAlmostEqual(means[1] / means[0], 1, delta=0.02)
        self.assertAlmostEqual(means[2] / means[0], 1, delta=0.05)
        found = self.run_of("simulate", "--fidelity", "analytic", **{"method.local_steps": 30})
        self.assertEqual(found["steps"]["most"] % 30, 0)

    def test_late_clients_do_not_count(self):
        """Of three clients, one is ten times as slow. A deadline between the two speeds leaves it out."""
        on = {"cluster.name": "paper-homogeneous", "cluster.world_size": 4, "disturb.stragglers": "[{rank=1,factor=10}]"}
        keys = {"clients": 3, "train.global_batch": 6, **on}
        waiting = self.run_of("simulate", "--fidelity", "analytic", **keys)
        self.assertNotIn("round", waiting)
        # The round lasts four steps of the slow one, which gives up after its second.
        deadline = {"method.deadline": f"{0.375 * waiting['step_time_s']['mean'] * ROUND}s"}
        found = {f: self.run_of("simulate", "--fidelity", f, **keys, **deadline) for f in ("analytic", "fluid", "chunk")}
        for one in found.values():
            self.assertAlmostEqual(one["round"]["in_time"], 2 / 3)
            self.assertAlmostEqual(one["samples_per_s"] * one["step_time_s"]["mean"] / 4, 1, delta=1e-6)
            self.assertLess(one["step_time_s"]["mean"], 0.6 * waiting["step_time_s"]["mean"])
            self.assertAlmostEqual(one["step_time_s"]["mean"] / found["analytic"]["step_time_s"]["mean"], 1, delta=0.01)
        sets = {**on, **deadline, "method.name": "fedavg", "method.dp": 3, "method.local_steps": ROUND, "train.global_batch": 6}
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        self.assertRegex(self.rehearse("simulate", self.job(), *words).stdout, r"in time +66.7% of the samples, in rounds of at most")

    def test_a_deadline_that_nobody_meets(self):
        nobody = {"method.deadline": "1ns", "train.steps": ROUND}
        sets = [word for key, value in {"method.name": "fedavg", "method.dp": 2, **nobody}.items() for word in ("--set", f"{key}={value}")]
        self.refused("simulate", self.job(), *sets, says=["method.deadline: 1 ns", "no client ends its 12 local steps"])
        losses = self.run_of("train", **nobody)["losses"]
        self.assertEqual([loss is None for loss in losses], [False] + [True] * (ROUND - 1))

    def test_a_deadline_that_all_meet_changes_no_loss(self):
        keys = {"clients": 3, "train.global_batch": 6, "train.steps": 2 * ROUND + 2}
        dropping = self.run_of("train", out="dropping", **keys, **{"method.deadline": "1h"})
        waiting = self.run_of("train", out="waiting", **keys)
        for one, other in zip(dropping["losses"], waiting["losses"], strict=True):
            self.assertAlmostEqual(one / other, 1, delta=1e-3)
        rows = [json.loads(line) for line in (self.tmp / "dropping/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([row["step"] for row in rows if "late" in row], [ROUND, 2 * ROUND])
        self.assertEqual([row["late"] for row in rows if "late" in row], [[], []])
        # A client sends its share of the mean once a round.
        self.assertEqual(dropping["bytes_sent_by_rank_0"], waiting["bytes_sent_by_rank_0"] + 2 * 4)

    def test_a_secure_sum_costs_bytes_and_changes_hardly_a_loss(self):
        keys = {"clients": 3, "train.global_batch": 6, "train.steps": 2 * ROUND + 2}
        secure = {"method.secure": "true", "method.neighbours": 2}
        found = self.run_of("simulate", **keys, **secure)["bytes_sent_per_rank"]
        hidden = self.run_of("train", out="hidden", **keys, **secure)
        clear = self.run_of("train", out="clear", **keys)
        for one, other in zip(hidden["losses"], clear["losses"], strict=True):
            self.assertAlmostEqual(one / other, 1, delta=1e-3)
        self.assertNotEqual(hidden["losses"], clear["losses"])
        # A client sends two keys, shares for two neighbours, levels as large as weights, and three shares of masks.
        messages = 64 + 2 * 84 + 3 * 32
        self.assertEqual(hidden["bytes_sent_by_rank_0"], clear["bytes_sent_by_rank_0"] + 2 * messages)
        weights = clear["bytes_sent_by_rank_0"] / 2
        server = 3 * (2 * 68 + 2 * 84 + 2 + weights)
        self.assertAlmostEqual(found["mean"] * 4, (3 * (weights + messages) + server) / ROUND, places=3)

    def test_masks_take_time(self):
        on = {"cluster.name": "paper-homogeneous", "cluster.world_size": 9, "clients": 8, "train.global_batch": 8}
        seconds = {
            n: self.run_of("simulate", "--fidelity", "analytic", **on, **{"method.secure": "true", "method.neighbours": n})["step_time_s"][
                "mean"
            ]
            for n in (2, 6)
        }
        weights = self.run_of("simulate", **on)["bytes_sent_per_rank"]["max"] / 8 * ROUND
        self.assertAlmostEqual((seconds[6] - seconds[2]) * ROUND, 4 * weights / 1.7e9, delta=0.02 * weights / 1.7e9)

    def test_rounds_of_one_step_are_ddp(self):
        one = {"train.optimizer": "sgd", "train.momentum": 0, "train.lr": 0.1, "method.shares": "[3, 5]"}
        ddp = self.run_of("train", method="ddp", **one)["last_loss"]
        self.assertAlmostEqual(self.run_of("train", **one, **{"method.local_steps": 1})["last_loss"] / ddp, 1, delta=1e-5)

    def test_clients_begin_each_round_with_a_new_optimizer(self):
        """A round is what a new run makes of the weights that it begins with."""
        alone = {"clients": 1, "servers": 1, "train.steps": 2 * ROUND, "train.warmup_steps": 0}
        federated = self.run_of("train", out="federated", **alone)["losses"]
        local = self.run_of("train", method="ddp", out="local", clients=1, **{"train.steps": 2 * ROUND, "train.warmup_steps": 0})["losses"]
        self.assertEqual(federated[: ROUND + 1], local[: ROUND + 1])
        self.assertNotAlmostEqual(federated[-1], local[-1], places=4)

    def test_a_run_goes_on_in_mid_round_as_if_it_had_not_stopped(self):
        keys = {"method.shares": "[2, 6]"}
        self.run_of("train", out="whole", **keys, **{"train.steps": 11})
        self.run_of("train", out="cut", **keys, **{"train.steps": 6})
        on = self.run_of("train", "--resume", out="cut", **keys, **{"train.steps": 11})
        self.assertEqual((on["first_step"], on["end_step"]), (6, 11))
        self.assertEqual(len(self.state("whole", 11)), 2)  # servers have no state
        self.assertEqual(self.state("cut", 11), self.state("whole", 11))

    def test_clients_read_their_own_texts(self):
        """Two texts that share no letter: a client's loss falls on the text that it reads."""
        texts = ["\n\n".join(f"{word} {word[::-1]} {n % 7}" * 9 for n in range(300)) for word in ("alpha gala", "echo pore")]
        data = self.by_source(*texts)
        manifest = json.loads((self.tmp / "by-input/manifest.json").read_text())
        self.assertEqual([shard["input"] for shard in manifest["train"]["shards"]], [0, 1])
        keys = {"train.data": data, "train.steps": 3 * ROUND}
        mixed = self.run_of("train", out="iid", **keys)
        split = self.run_of("train", out="source", **keys, **{"train.split": "source"})
        self.assertEqual(mixed["bytes_sent_by_rank_0"], split["bytes_sent_by_rank_0"])
        self.assertNotEqual(mixed["losses"], split["losses"])
        # One source for one client: all text, as it is for iid, in another order.
        alone = self.run_of("train", out="alone", clients=1, **keys, **{"train.split": "source"})
        self.assertLess(alone["last_loss"], alone["first_loss"])
        # Any method with data-parallel ranks can divide text so. The first loss is of the same samples.
        ddp = self.run_of("train", method="ddp", out="ddp", **keys, **{"train.split": "source"})
        self.assertAlmostEqual(ddp["first_loss"] / split["first_loss"], 1, delta=1e-6)
        # A prediction does not depend on it.
        one, other = (self.run_of("simulate", **keys, **more)["step_time_s"] for more in ({}, {"train.split": "source"}))
        self.assertEqual(one, other)

    def test_ranks_play_other_clients_in_each_round(self):
        """Five clients, two ranks: C = 0.4."""
        data = self.by_source(*("\n\n".join(f"{word} {n % 7} {word[::-1]}" * 9 for n in range(200)) for word in "ab cd ef gh ij".split()))
        keys = {"train.data": data, "train.split": "source", "train.clients": 5, "train.steps": 6 * ROUND, "train.warmup_steps": 0}
        whole = self.run_of("train", out="drawn", **keys)["losses"]
        rows = [json.loads(line) for line in (self.tmp / "drawn/metrics.jsonl").read_text().splitlines()]
        played = [row["clients"] for row in rows if "loss" in row]
        for begin in range(0, 6 * ROUND, ROUND):
            self.assertEqual(played[begin : begin + ROUND], [played[begin]] * ROUND)
        drawn = {tuple(clients) for clients in played}
        self.assertGreater(len(drawn), 2)
        for clients in drawn:
            self.assertEqual(len(set(clients) & set(range(5))), 2)
        self.assertNotEqual(whole, self.run_of("train", out="dealt", **keys | {"train.clients": ""})["losses"])
        # A draw depends on nothing but the seed and the round, so a run that goes on in mid-round draws the same.
        self.run_of("train", out="some", **keys | {"train.steps": 2 * ROUND + 1, "train.save_every": 2 * ROUND + 1})
        self.assertEqual(self.run_of("train", "--resume", out="some", **keys)["losses"], whole[2 * ROUND + 1 :])
        # Rounds of one step, in which gradients are exchanged: federated SGD.
        self.run_of("train", method="ddp", out="sgd", **keys)
        rows = [json.loads(line) for line in (self.tmp / "sgd/metrics.jsonl").read_text().splitlines()]
        self.assertGreater(len({tuple(row["clients"]) for row in rows if "loss" in row}), 6)

    def test_refusals(self):
        def refused(*words, says, command="simulate", ranks=()):
            given = [word for key in ("method.name=fedavg", *words) for word in ("--set", key)]
            self.refused(command, self.job(), *ranks, *given, says=says)

        refused("method.servers=0", says=["method.servers", "implies 1"])
        refused("method.outer_lr=0.5", says=["method.outer_lr", "only diloco"])
        refused("method.deadline=0s", says=["method.deadline", "above 0"])
        refused("method.name=local-sgd", "method.deadline=1s", says=["method.deadline", "wait for each other; fedavg drops"])
        refused("method.tp=2", says=["method.tp", "tp must be 1"])
        refused("method.precision=fp16", says=["method.precision", "bf16"])
        refused("train.clip=1", says=["train.clip", "no common norm"])
        refused("method.offload=optimizer", says=["method.offload", "must be none"])
        refused("train.clients=4", says=["train.clients", "4: clients without texts", 'train.split = "source"'])
        refused("train.split=source", "train.clients=1", "method.dp=2", says=["train.clients", "at least 2"])
        refused("train.split=client", says=["train.split", "iid", "source"])
        train = {"command": "train", "ranks": ("--nproc", 3)}
        refused("train.steps=11", **train, says=["method.local_steps: 12", "train.steps = 11", "at most 11"])
        refused("train.split=source", **train, says=["train.split", "--by-input", "iid"])
        data = self.by_source("\n\n".join(f"one two three {n}" for n in range(900)), "\n\n".join(f"four five six {n}" for n in range(900)))
        few = {"command": "train", "ranks": ("--nproc", 4)}
        refused(
            *("train.split=source", f"train.data={data}", "method.dp=3", "train.global_batch=6"),
            **few,
            says=["training text of 2 inputs (0.txt, 1.txt) for 3 data-parallel ranks", "at most 2 ranks"],
        )
        refused(
            *("train.split=source", f"train.data={data}", "method.dp=2", "train.clients=3"),
            **train,
            says=["train.clients", "2 inputs (0.txt, 1.txt) for 3 clients", "at most 2 clients"],
        )
