"""A job with a few steps whose matrix products are just large enough that models/product.cpp may give them to oneDNN: the vocabulary is
large, the rest of the model is tiny."""

import array
import random
import re

from cli_test_case import ROOT

HIDDEN, VOCAB, SEQ, SAMPLES = 64, 8192, 32, 2


def large_product():
    """The number of multiplications from which a product counts as large."""
    text = (ROOT / "models/large_products.h").read_text()
    return 1 << int(re.search(r"large_product = std::int64_t\{1\} << (\d+);", text)[1])


def write_job(folder, ranks, steps=3, precision="fp32"):
    """Writes the job for data-parallel ranks, its model (model.toml) and its tokens to `folder`."""
    assert SAMPLES * SEQ * HIDDEN * VOCAB >= large_product()
    header = array.array("i", [20240520, 1, 4000] + [0] * 253)
    tokens = array.array("H", (random.Random(1).randrange(VOCAB) for _ in range(4000)))
    (folder / "some_train_000.bin").write_bytes(header.tobytes() + tokens.tobytes())
    (folder / "model.toml").write_text(
        f'family = "gpt"\nlayers = 1\nhidden = {HIDDEN}\nheads = 2\nvocab = {VOCAB}\nseq_len = {SEQ}\nmax_positions = {SEQ}\n'
    )
    path = folder / "job.toml"
    path.write_text(
        f'model.name = "{folder}/model.toml"\ncluster.name = "this-machine"\n'
        f'method = {{ name = "ddp", dp = {ranks}, precision = "{precision}" }}\n'
        f'train = {{ seq_len = {SEQ}, global_batch = {SAMPLES * ranks}, steps = {steps}, data = "{folder}", out = "" }}\n'
        f'run = {{ threads = 1, timeout = "200 s", connect_timeout = "200 s" }}\n'
    )
    return path
