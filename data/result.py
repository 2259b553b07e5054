"""The result folder: made beside its place, recognised when nothing changed, replaced as a
whole."""

import dataclasses
import hashlib
import json
import os
import shutil
import unicodedata

import tokenizers

from data import corpus, debian, shards
from data import tokenizer as bpe
from data.errors import InputError
from data.gather import warn

FORMAT_VERSION = 1


def recipe(options, inputs):
    """A hash of everything the result depends on: options, inputs, versions."""
    keys = (
        "vocab_size",
        "end_of_text",
        "masked_lm",
        "val_fraction",
        "max_mb",
        "max_document_chars",
        "keep_whitespace",
        "keep_duplicates",
        "keep_licences",
        "shard_tokens",
    )
    loaded = None
    if options.tokenizer and os.path.isfile(options.tokenizer):
        with open(options.tokenizer, "rb") as file:
            loaded = debian.sha256(file.read())
    folder = os.path.dirname(os.path.abspath(__file__))
    code = hashlib.sha256()
    for name in sorted(n for n in os.listdir(folder) if n.endswith(".py")):
        with open(os.path.join(folder, name), "rb") as file:
            code.update(file.read())
    return debian.sha256(
        json.dumps(
            [
                FORMAT_VERSION,
                {k: getattr(options, k) for k in keys},
                inputs,
                loaded,
                code.hexdigest(),
                tokenizers.__version__,
                unicodedata.unidata_version,
            ],
            sort_keys=True,
        ).encode()
    )


def existing(output):
    """The manifest of an earlier result in `output`, None where nothing is there; InputError where
    it is not ours."""
    if not os.path.lexists(output):
        return None
    if not os.path.isdir(output):
        raise InputError(f"-o {output}: exists and is not a folder")
    try:
        with open(os.path.join(output, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        if manifest.get("format") == "rehearse-data":
            return manifest
    except (OSError, ValueError, AttributeError):
        pass
    if os.listdir(output):
        raise InputError(f"-o {output}: holds files that this program did not write; choose another folder")
    return None


def intact(output, manifest):
    """Whether every file of an earlier result is there with its checksum."""
    try:
        files = [manifest["tokenizer"]] + manifest["train"]["shards"] + manifest["val"]["shards"]
        for entry in files:
            with open(os.path.join(output, entry["file"]), "rb") as file:
                if debian.sha256(file.read()) != entry["sha256"]:
                    return False
        return True
    except (OSError, KeyError, TypeError):
        return False


def encode(tokenizer, documents, progress, done, total):
    """Yields each document's token ids; what looks like a special token in the text is text."""
    tokenizer.encode_special_tokens = True
    batch, size = [], 0
    for at, document in enumerate(documents):
        batch.append(document.text)
        size += len(document.text)
        if size > 500_000 or at + 1 == len(documents):
            for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                yield encoding.ids
            done[0] += size
            progress.update(done[0], total)
            batch, size = [], 0


def build(options, gathering, recipe_hash, folder, progress):
    """Writes tokenizer, shards and manifest into `folder`; returns the manifest."""
    progress.stage("cleaning")
    documents, removed = corpus.clean(gathering.documents, options.keep_whitespace, options.keep_duplicates, options.keep_licences)
    if options.max_document_chars:
        documents = corpus.cut(documents, options.max_document_chars)
    if options.max_mb:
        documents = corpus.limit(documents, options.max_mb * 1e6, removed)
    if not documents:
        raise InputError(
            "no text left after cleaning: " + ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in dataclasses.asdict(removed).items() if v)
        )
    if len(documents) == 1:
        raise InputError(
            f"only one document ({gathering.documents[0].name}): it cannot be split into training"
            " and validation; cut it with --max-document-chars 20000, or give more files"
        )
    sides = corpus.split(documents, options.val_fraction)

    if options.tokenizer:
        tokenizer = bpe.load(options.tokenizer)
    else:
        progress.stage("training the tokenizer")
        tokenizer = bpe.train((d.text for d in sides.train), options.vocab_size or 8192)
    special = bpe.special_ids(tokenizer, options.end_of_text)
    if options.masked_lm and (special["mask"] is None or special["pad"] is None):
        missing = [n for n in ("mask", "pad") if special[n] is None]
        raise InputError(f"--masked-lm: {options.tokenizer} has no {' and no '.join(missing)} token")
    vocabulary = bpe.vocabulary_size(tokenizer)
    if not options.tokenizer and vocabulary < (options.vocab_size or 8192):
        warn(f"the text supports a vocabulary of {vocabulary}, less than {options.vocab_size or 8192}")
    content = tokenizer.to_str(pretty=True).encode()
    with open(os.path.join(folder, "tokenizer.json"), "wb") as file:
        file.write(content)
    tokenizer_hash = debian.sha256(content)

    progress.stage("tokenizing")
    total, done = sum(len(d.text) for d in documents), [0]
    manifest = {
        "format": "rehearse-data",
        "format_version": FORMAT_VERSION,
        "recipe_sha256": recipe_hash,
        "tokenizer": {
            "file": "tokenizer.json",
            "sha256": tokenizer_hash,
            "trained_here": not options.tokenizer,
        },
        "vocab_size": vocabulary,
        "special_token_ids": special,
        "end_of_text": "before each document",
        "token_bytes": 2,
        "normalization": "NFKC",
        "split": {"by": "sha256 of the document", "val_fraction": options.val_fraction},
    }
    for name, side in (("train", sides.train), ("val", sides.val)):
        written = shards.write_side(
            folder,
            name,
            encode(tokenizer, side, progress, done, total),
            special["end_of_text"],
            options.shard_tokens,
        )
        manifest[name] = {
            "tokens": sum(s["tokens"] for s in written),
            "documents": len(side),
            "characters": sum(len(d.text) for d in side),
            "shards": written,
        }
    manifest["removed"] = dataclasses.asdict(removed)
    manifest["inputs"] = gathering.inputs
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, ensure_ascii=False)
        file.write("\n")
    progress.done()
    return manifest


def recover(output):
    """Tidies what a killed run left beside `output`; a result it had moved away comes back."""
    parent, name = os.path.split(output)
    prefix = f".{name}.partial-"
    try:
        left = [entry for entry in os.listdir(parent) if entry.startswith(prefix)]
    except OSError:
        return
    for entry in sorted(left, reverse=True):  # the moved result, NAME.old, before the unfinished NAME
        number = entry.removeprefix(prefix).removesuffix(".old")
        if not number.isdigit() or os.path.exists(f"/proc/{number}"):
            continue
        path = os.path.join(parent, entry)
        if entry.endswith(".old") and not os.path.lexists(output):
            os.rename(path, output)
        else:
            shutil.rmtree(path, ignore_errors=True)


def publish(beside, output):
    """Puts the finished folder in place; an earlier result is moved away first and then removed."""
    old = beside + ".old"
    if os.path.lexists(output):
        os.rename(output, old)
    try:
        os.rename(beside, output)
    finally:
        if os.path.lexists(old) and not os.path.lexists(output):
            os.rename(old, output)  # interrupted between the two
    shutil.rmtree(old, ignore_errors=True)
