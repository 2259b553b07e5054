"""Token shards in llm.c's format: 256 little-endian int32 (magic 20240520, version 1, token count),
then uint16 tokens.

The format is the one llm.c's dataloader and its dev/data scripts read and write
(github.com/karpathy/llm.c).
"""

import hashlib
import os

import numpy as np

from data.errors import InputError

MAGIC, VERSION, HEADER = 20240520, 1, 256
MAX_TOKEN = 65535


def write(path, tokens):
    """Writes one shard and returns the sha256 of its bytes.

    Tokens: a 1-D array of values that fit uint16.
    """
    tokens = np.asarray(tokens)
    if tokens.size and (tokens.min() < 0 or tokens.max() > MAX_TOKEN):
        raise InputError(f"{path}: token {int(tokens.max())} does not fit 16 bits")
    header = np.zeros(HEADER, dtype="<i4")
    header[:3] = MAGIC, VERSION, tokens.size
    content = header.tobytes() + tokens.astype("<u2").tobytes()
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def read(path):
    """The tokens of a shard, checked against its header."""
    with open(path, "rb") as file:
        content = file.read()
    header = np.frombuffer(content[: HEADER * 4], dtype="<i4")
    if header.size < HEADER or header[0] != MAGIC:
        raise InputError(f"{path}: not a token shard (magic {MAGIC} expected)")
    if header[1] != VERSION:
        raise InputError(f"{path}: shard version {header[1]}, only {VERSION} is known")
    if len(content) != HEADER * 4 + 2 * int(header[2]):
        raise InputError(f"{path}: truncated: {header[2]} tokens announced, {(len(content) - HEADER * 4) // 2} there")
    return np.frombuffer(content[HEADER * 4 :], dtype="<u2")


def write_side(folder, prefix, encoded, end_of_text, shard_tokens):
    """Writes one side of the split; `encoded` yields token lists.

    Returns the shards' descriptions for the manifest.     Each document is preceded by the end-of-
    text token, as llm.c does: it ends the one before and begins the next. A     document is never
    cut, so a shard may exceed `shard_tokens` by less than one document.
    """
    shards, current, count, documents = [], [], 0, 0

    def flush():
        nonlocal current, count, documents
        name = f"{prefix}_{len(shards):06d}.bin"
        checksum = write(os.path.join(folder, name), np.concatenate(current))
        shards.append({"file": name, "tokens": count, "documents": documents, "sha256": checksum})
        current, count, documents = [], 0, 0

    for tokens in encoded:
        if count and count + len(tokens) + 1 > shard_tokens:
            flush()
        current.append(np.array([end_of_text, *tokens], dtype=np.int64))
        count += len(tokens) + 1
        documents += 1
    if count:
        flush()
    return shards
