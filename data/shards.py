"""Token shards in llm.c's format (github.com/karpathy/llm.c): 256 little-endian int32 (magic 20240520, version 1, token count), then
uint16 tokens."""

import hashlib

import numpy as np

MAGIC, VERSION, HEADER = 20240520, 1, 256
MAX_TOKEN = 65535


def write(path, tokens):
    """Writes one shard and returns the sha256 of its bytes."""
    header = np.zeros(HEADER, dtype="<i4")
    header[:3] = MAGIC, VERSION, tokens.size
    content = header.tobytes() + tokens.astype("<u2").tobytes()
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def write_side(folder, prefix, encoded, end_of_text, shard_tokens, inputs=None):
    """Writes one side of the split from lists of tokens; returns descriptions of the shards for the manifest.

    The end-of-text token comes before each document, as in llm.c. A document is never split, so a shard may exceed `shard_tokens` by less
    than one document. `inputs`: the input of each document, in rising order; each begins a shard, which then names it.
    """
    shards, current, count, of = [], [], 0, None

    def flush():
        nonlocal current, count
        name = f"{prefix}_{len(shards):06d}.bin"
        checksum = write(folder / name, np.concatenate(current))
        described = {"file": name, "tokens": count, "documents": len(current), "sha256": checksum}
        shards.append(described if of is None else described | {"input": of})
        current, count = [], 0

    for at, tokens in enumerate(encoded):
        following = inputs[at] if inputs else None
        if count and (count + len(tokens) + 1 > shard_tokens or following != of):
            flush()
        of = following
        current.append(np.array([end_of_text, *tokens], dtype=np.int64))
        count += len(tokens) + 1
    flush()
    return shards
