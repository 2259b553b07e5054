#!/usr/bin/env python3
"""Makes token shards for training from any text: llm.c .bin files, a tokenizer and a manifest. The same input and options give the
same bytes. docs/data.md is the reference."""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import signal
import sys
import unicodedata

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
try:
    import numpy  # noqa: F401
    import tokenizers
except ImportError as missing:
    print(f"data/prepare.py: needs the Python packages numpy and tokenizers ({missing}); tools/python has them", file=sys.stderr)
    sys.exit(2)

from data import corpus, folder, shards, sources
from data import tokenizer as bpe
from data.errors import InputError
from data.progress import Progress

VOCABULARY = 8192
EXAMPLES = """examples:
  data/prepare.py -o tokens                                docstrings of numpy, scipy and matplotlib
  data/prepare.py books/ 'notes/*.md' more.jsonl -o tokens files, folders, patterns, .gz, .deb
  data/prepare.py --debian git-doc -o tokens               the plain text of a Debian package
  data/prepare.py corpus.txt -o tokens --tokenizer gpt2/tokenizer.json
"""
RECIPE = (
    "vocab_size end_of_text masked_lm val_fraction max_mb max_document_chars keep_whitespace keep_duplicates by_input shard_tokens".split()
)


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="data/prepare.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Make llm.c token shards (train and val), a tokenizer and a manifest from any text.",
        epilog=EXAMPLES,
    )

    def whole(flag, metavar, text, group=parser, **more):
        group.add_argument(flag, type=int, metavar=metavar, help=text, **more)

    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="file, folder or pattern; none: docstrings of Python packages")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder to make (replaced as a whole if it is ours)")
    parser.add_argument("--debian", metavar="A,B,...", help="Debian packages, downloaded without root")
    kept = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "rehearse" / "debs"
    parser.add_argument("--cache", type=pathlib.Path, default=kept, metavar="DIR", help=f"where they are kept ({kept})")
    parser.add_argument("--force", action="store_true", help="prepare again even if DIR already holds this result")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    token = parser.add_argument_group("tokenizer")
    whole("--vocab-size", "N", f"of the byte-level BPE to train ({VOCABULARY})", token)
    token.add_argument("--tokenizer", metavar="FILE", help="use this tokenizer.json instead of training one")
    token.add_argument("--end-of-text", metavar="TOKEN", help="the loaded tokenizer's end-of-text token")
    token.add_argument("--masked-lm", action="store_true", help="refuse a tokenizer without mask and padding tokens")
    clean = parser.add_argument_group("cleaning and splitting")
    clean.add_argument("--val-fraction", type=float, default=0.05, metavar="F", help="share of documents held out (0.05)")
    clean.add_argument("--max-mb", type=float, metavar="N", help="stop after N million characters of clean text")
    whole("--max-document-chars", "N", "cut longer documents at paragraph ends (a single file must be cut to be split)", clean)
    clean.add_argument("--keep-whitespace", action="store_true", help="keep indentation and blank lines (program text)")
    clean.add_argument("--keep-duplicates", action="store_true", help="keep repeated documents and paragraphs")
    clean.add_argument("--by-input", action="store_true", help='begin a training shard with each input, for train.split = "source"')
    whole("--shard-tokens", "N", "tokens a shard (100000000)", clean, default=100_000_000)
    options = parser.parse_args(argv)
    if not 0 < options.val_fraction < 1:
        raise InputError(f"--val-fraction {options.val_fraction}: between 0 and 1, both excluded")
    for flag, least in (("max_mb", 1e-6), ("max_document_chars", 100), ("shard_tokens", 1000)):
        value = getattr(options, flag)
        if value is not None and not value >= least:
            raise InputError(f"--{flag.replace('_', '-')} {value}: at least {least}")
    if options.tokenizer and options.vocab_size is not None:
        raise InputError("--vocab-size and --tokenizer exclude each other: a loaded tokenizer has its size")
    if options.end_of_text and not options.tokenizer:
        raise InputError("--end-of-text needs --tokenizer: a trained tokenizer uses " + bpe.END_OF_TEXT)
    options.vocab_size = VOCABULARY if options.vocab_size is None else options.vocab_size
    bpe.check_size(options.vocab_size)
    return options


def recipe(options, entries):
    """A hash of everything that the result depends on: options, inputs, this program, library versions."""
    loaded = folder.sha256(pathlib.Path(options.tokenizer)) if options.tokenizer else None
    code = [folder.sha256(path) for path in sorted(pathlib.Path(__file__).parent.glob("*.py"))]
    versions = [tokenizers.__version__, unicodedata.unidata_version]
    everything = [{key: getattr(options, key) for key in RECIPE}, entries, loaded, code, versions]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


def cleaned(options, found):
    """(documents, what was removed)."""
    documents, removed = corpus.clean(found, options.keep_whitespace, options.keep_duplicates)
    if options.max_document_chars:
        documents = corpus.cut(documents, options.max_document_chars)
    if options.max_mb:
        documents = corpus.limit(documents, options.max_mb * 1e6, removed)
    if not documents:
        raise InputError(f"no text left after cleaning: {removed.empty} empty documents")
    if len(documents) == 1:
        raise InputError(
            f"only one document ({documents[0].name}): it cannot be split into training and validation; cut it with"
            " --max-document-chars 20000, or give more files"
        )
    return documents, dataclasses.asdict(removed)


def tokenizer_of(options, training):
    if options.tokenizer:
        return bpe.load(options.tokenizer)
    made = bpe.train((document.text for document in training), options.vocab_size)
    if (size := bpe.vocabulary_size(made)) < options.vocab_size:
        print(f"data/prepare.py: warning: the text supports a vocabulary of {size}, less than {options.vocab_size}", file=sys.stderr)
    return made


def build(options, found, recipe_hash, target, progress):
    """Writes tokenizer, shards and manifest into `target`; returns the manifest."""
    progress.stage("cleaning")
    documents, removed = cleaned(options, found.documents)
    sides = corpus.split(documents, options.val_fraction)
    if options.by_input:
        sides.train.sort(key=lambda document: document.source)
    progress.stage("tokenizer")
    tokenizer = tokenizer_of(options, sides.train)
    special = bpe.special_ids(tokenizer, options.end_of_text)
    if options.masked_lm and (missing := [name for name in ("mask", "pad") if special[name] is None]):
        raise InputError(f"--masked-lm: {options.tokenizer} has no {' and no '.join(missing)} token")
    (target / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    manifest = {
        "format": "rehearse-data",
        "format_version": 1,
        "recipe_sha256": recipe_hash,
        "tokenizer": {
            "file": "tokenizer.json",
            "sha256": folder.sha256(target / "tokenizer.json"),
            "trained_here": not options.tokenizer,
        },
        "vocab_size": bpe.vocabulary_size(tokenizer),
        "special_token_ids": special,
        "end_of_text": "before each document",
        "token_bytes": 2,
        "normalization": "NFKC",
        "split": {"by": "sha256 of the document", "val_fraction": options.val_fraction},
    }
    progress.stage("tokenizing")
    total, done = sum(len(document.text) for document in documents), 0

    def advance(characters):
        nonlocal done
        done += characters
        progress.update(done, total)

    for name, side in (("train", sides.train), ("val", sides.val)):
        texts = [document.text for document in side]
        encoded = bpe.encode(tokenizer, texts, advance)
        inputs = [document.source for document in side] if options.by_input and name == "train" else None
        written = shards.write_side(target, name, encoded, special["end_of_text"], options.shard_tokens, inputs)
        manifest[name] = {
            "tokens": sum(shard["tokens"] for shard in written),
            "documents": len(side),
            "characters": sum(map(len, texts)),
            "shards": written,
        }
    manifest |= {"removed": removed, "inputs": found.entries}
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    progress.done()
    return manifest


def prepare(options):
    output = pathlib.Path(options.output).absolute()
    folder.recover(output)
    before = folder.existing(output)
    if options.tokenizer:
        bpe.load(options.tokenizer)  # so that a bad tokenizer is reported before anything is read
    made = folder.beside(output)
    try:  # begins before the folder exists, because a signal may come at any time
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            made.mkdir()
        except OSError as error:
            raise InputError(f"-o {options.output}: cannot write in {output.parent}: {error.strerror}") from None
        progress = Progress(options.quiet)
        found = sources.gather(options, progress)
        recipe_hash = recipe(options, found.entries)
        if before and not options.force and before.get("recipe_sha256") == recipe_hash and folder.intact(output, before):
            progress.done()
            manifest, note = before, "up to date: "
        else:
            if before:
                folder.check_replaceable(output, before)
            manifest, note = build(options, found, recipe_hash, made, progress), "in place of earlier data: " if before else ""
            folder.publish(made, output)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    if not options.quiet:
        train, val = manifest["train"], manifest["val"]
        print(
            f"{options.output}: {note}{train['tokens']:,} training and {val['tokens']:,} validation tokens from"
            f" {train['documents'] + val['documents']:,} documents ({(train['characters'] + val['characters']) / 1e6:.1f} MB of text),"
            f" vocabulary {manifest['vocab_size']}"
        )


def _stop(number, _frame):
    raise SystemExit(128 + number)


@contextlib.contextmanager
def stopped_by_signals():
    """Inside, SIGINT and SIGTERM raise SystemExit, so that a half-made folder is removed."""
    handlers = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def main(argv=None):
    try:
        with stopped_by_signals():
            prepare(arguments(argv))
        return 0
    except InputError as error:
        print(f"data/prepare.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"data/prepare.py: cannot write {error.filename or 'the output folder'}: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
