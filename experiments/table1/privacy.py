"""What can be read out of what a rank sends: four clients with texts of their own train a small model for real, and an observer names the
words whose row of the embedding has changed. A row changes only if the client has read its word (SGD, an untied head)."""

import json
import pathlib
import statistics
import struct
import subprocess
import sys

import numpy as np
import study

JOB = "experiments/table1/clients.toml"
TOKENS = pathlib.Path("out/table1/tokens")
# A Debian package is the text of a client.
PACKAGES = ("anarchism", "git-doc", "jargon-text", "debian-reference-en")
VOCABULARY = 8192
CLIENTS, ROUND = 4, 12  # steps of a round
TABLE = "param/model.embed_tokens.weight"
HEADER = 1024  # bytes of a token file before its tokens


def prepare_texts(folder=TOKENS):
    command = [sys.executable, "data/prepare.py", "--debian", ",".join(PACKAGES), "--by-input", "--vocab-size", VOCABULARY, "-o", folder]
    if subprocess.run([*map(str, command), "--quiet"], cwd=study.ROOT).returncode:
        sys.exit("table1: the texts of the clients could not be prepared")


def texts(folder):
    """What the manifest says of the texts."""
    manifest = json.loads((study.ROOT / folder / "manifest.json").read_text())
    keys = ("name", "version", "sha256")
    return {
        "inputs": [{key: one[key] for key in keys if key in one} for one in manifest["inputs"]],
        "train_sha256": [shard["sha256"] for shard in manifest["train"]["shards"]],
    }


def words_of(shard):
    """The words that occur in a token file."""
    return set(np.frombuffer(shard.read_bytes()[HEADER:], np.uint16).tolist())


def embedding(checkpoint, rank, vocabulary):
    """[word, feature]: the embedding's weights of a rank."""
    data = (checkpoint / f"rank-{rank:05}.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    [key] = [key for key in header if key.startswith(f"{TABLE}/")]
    begin, end = header[key]["data_offsets"]
    return np.frombuffer(data[8 + size + begin : 8 + size + end], np.float32).reshape(vocabulary, -1)


def trained(folder, name, options, settings):
    out = folder / name
    keys = {"train.data": options.tokens, "train.out": out, "model.vocab": options.vocabulary} | settings
    study.rehearse("train", JOB, "--nproc", CLIENTS + 1, "--overwrite", *study.sets(keys))
    return out


def changed(before, after):
    return set(np.flatnonzero((before != after).any(axis=1)).tolist())


def attacked(options):
    """[{"sum_of", "named", "in_its_text", "read_by_it", "missed"}]: what an observer names that sees the sum of so many clients' updates.

    named: how many words. in_its_text: the part of them in the text of a client of the sum. read_by_it: the part that one client
    of the sum has read, on average, which is the chance to be right about a client. missed: words that a client has read and nobody names.
    """
    folder = study.ROOT / options.output / "runs"
    # The last step before the clients meet, and the step in which they do.
    met = trained(folder, "round", options, {"train.save_every": ROUND - 1})
    untrained = trained(folder, "untrained", options, {"train.lr": 1e-30})  # so small a rate changes no weight

    def weights(run, step, client):
        return embedding(run / f"step-{step:08}", client, options.vocabulary)

    first = weights(untrained, ROUND, 0)
    own = [changed(first, weights(met, ROUND - 1, client)) for client in range(CLIENTS)]
    text = [words_of(study.ROOT / options.tokens / f"train_{client:06}.bin") for client in range(CLIENTS)]
    rows = []
    for size in (1, 2, CLIENTS):
        groups = [range(at, at + size) for at in range(0, CLIENTS, size)]
        named = [set().union(*(own[client] for client in group)) for group in groups]
        if size == CLIENTS:  # this sum is made by the server
            named = [changed(first, weights(met, ROUND, 0))]
        there = [set().union(*(text[client] for client in group)) for group in groups]
        chance = [len(own[client] & words) / len(words) for words, group in zip(named, groups, strict=True) for client in group]
        rows.append({
            "sum_of": size,
            "named": statistics.fmean(map(len, named)),
            "in_its_text": sum(len(a & b) for a, b in zip(named, there, strict=True)) / sum(map(len, named)),
            "read_by_it": statistics.fmean(chance),
            "missed": sum(len(own[client] - words) for words, group in zip(named, groups, strict=True) for client in group),
        })  # fmt: skip
    return rows


def seen(mesh, clients):
    """(what of a rank leaves its node in the clear, of how many ranks it is the sum), from the mesh of a simulated run."""
    if mesh.get("tp", 1) * mesh["pp"] > 1:
        return "its text", 1  # the ranks of a replica read the same samples
    if clients:
        return f"the sum of {clients} clients", clients
    machine = mesh.get("shard", 1) if mesh.get("servers") else 1
    return ("its gradient", 1) if machine == 1 else (f"the sum of the {machine} ranks of its node", machine)
