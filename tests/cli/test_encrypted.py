"""run.encrypt = true: a run has the weights of a run in the clear, nobody on the network can read them, and a byte that was changed on its
way ends the run. docs/security.md says what is encrypted."""

import hashlib
import json
import os

import pytest
from cli_test_train_data import TWO_NODES, TrainingCase
from proxy import DATA, Harm, Proxy

ENCRYPTED = "run.encrypt=true"
SAID = "rehearse: run.encrypt = true: the connections of this run are encrypted"


class Encrypted(TrainingCase):
    def train(self, name, ranks, *sets, **how):
        folder = self.tmp / name
        folder.mkdir()
        words = [word for one in (f"method.dp={ranks}", *sets) for word in ("--set", one)]
        return self.rehearse("train", self.job(3, folder=folder), "--nproc", str(ranks), *words, **how)

    def weights(self, name):
        """{file: bytes} of the last checkpoint's tensors."""
        found = {p.name: p.read_bytes() for p in (self.tmp / name / "out/step-00000003").glob("*.safetensors")}
        self.assertTrue(found)
        return found

    def hashes(self, name):
        return {file: hashlib.sha256(text).hexdigest() for file, text in self.weights(name).items()}

    @pytest.mark.long
    def test_weights_are_those_of_a_run_in_the_clear(self):
        # Three ranks: two workers and a server, with mailboxes.
        for ranks, sets in ((2, []), (4, ["method.name=zero2"]), (3, ["method.name=ps-sync", "method.servers=1", "method.dp=2"])):
            self.train(f"clear-{ranks}", ranks, *sets)
            said = self.train(f"encrypted-{ranks}", ranks, *sets, ENCRYPTED)
            self.assertEqual(said.stderr.splitlines()[0], SAID)
            self.assertEqual(self.hashes(f"encrypted-{ranks}"), self.hashes(f"clear-{ranks}"))

    def through_a_proxy(self, name, *sets, ranks=2, harm=None, expect=0):
        proxy = Proxy(self.tmp, harm)
        self.addCleanup(proxy.close)
        said = self.train(name, ranks, *sets, env=proxy.environment(), expect=expect)
        return proxy, said

    def pieces_seen(self, proxy, name):
        """How many pieces of the weights somebody between the ranks has seen."""
        seen = b"".join(map(bytes, proxy.seen))
        self.assertGreater(len(seen), 100_000)
        pieces = {text[at : at + 32] for text in self.weights(name).values() for at in range(4096, len(text) - 32, 1024)}
        return sum(len(set(piece)) > 8 and piece in seen for piece in pieces)

    def test_nobody_between_the_ranks_reads_weights(self):
        # Without encryption the same look finds them.
        self.check_that_nobody_reads("method.name=zero1")

    @pytest.mark.long
    def test_nobody_between_nodes_reads_their_copies(self):
        """Each node sends its checkpoints to its peer. Gradients alone pass between the ranks otherwise."""
        (self.tmp / "two.toml").write_text(TWO_NODES)
        keys = {"cluster.name": self.tmp / "two.toml", "checkpoint.kind": "peer", "train.save_every": 1}
        memory = self.tmp / "memory"
        memory.mkdir()
        keys |= {"checkpoint.folder": memory}
        self.check_that_nobody_reads(*(f"{key}={value}" for key, value in keys.items()), ranks=4)

    def check_that_nobody_reads(self, *sets, ranks=2):
        proxy, _ = self.through_a_proxy("clear", *sets, ranks=ranks)
        self.assertGreater(self.pieces_seen(proxy, "clear"), 10)
        proxy, _ = self.through_a_proxy("encrypted", *sets, ENCRYPTED, ranks=ranks)
        self.assertEqual(self.pieces_seen(proxy, "encrypted"), 0)
        self.assertEqual(self.hashes("encrypted"), self.hashes("clear"))

    def test_a_byte_that_was_changed_on_its_way_ends_the_run(self):
        self.check_a_changed_byte("method.name=zero1")

    def test_a_byte_of_a_mailbox_that_was_changed_ends_the_run(self):
        self.check_a_changed_byte("method.name=ps-async", "method.servers=1", "method.dp=2", ranks=3)

    def check_a_changed_byte(self, *sets, ranks=2):
        """The run ends when the byte is read: its time-out is far away."""
        harm = Harm(DATA, caller=1, change_at=50_000)
        sets = (*sets, ENCRYPTED, "run.timeout=1h")
        _, said = self.through_a_proxy("changed", *sets, ranks=ranks, harm=harm, expect=1)
        self.assertTrue(harm.done)
        self.assertRegex(
            said.stderr,
            r"rehearse: rank 1 \(\S+, pid \d+\) sent a broken message to rank \d: "
            r"channel .*: encrypted bytes from 127\.0\.0\.1 are not those that were sent",
        )
        self.assertEqual(said.stderr.count("encrypted bytes from"), 1)

    @pytest.mark.long
    def test_a_profile_says_that_it_was_encrypted(self):
        """One of a run in the clear: test_profile.py."""
        words = ("-o", self.tmp / "profile.json", "--model", "gpt-tiny", "--samples", "1", "--nproc", "2", "--encrypt")
        self.rehearse("profile", *words)
        profile = json.loads((self.tmp / "profile.json").read_text())
        self.assertEqual((profile["profile_version"], profile["encrypted"]), (3, True))

    def test_who_cannot_encrypt_is_refused(self):
        self.refused(
            "train",
            self.job(),
            *("--nproc", "2", "--set", ENCRYPTED, "--set", "run.transport=gloo"),
            says=["run.encrypt", "gloo opens connections of its own, which it cannot encrypt"],
        )
        names = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
        env = os.environ | {name: str(value) for name, value in names.items()}
        said = self.rehearse("train", self.job(), "--set", ENCRYPTED, env=env, expect=2).stderr
        self.assertIn("run.encrypt = true needs a secret that is not on the network: set run.secret_file", said)
