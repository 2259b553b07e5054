#!/usr/bin/env python3
"""Rehearse-data: token shards for training, from any text.

Reads files, folders, patterns, .deb files or Debian packages; cleans, removes licences and
duplicates, splits by document hash, trains or loads a tokenizer and writes llm.c .bin shards with a
manifest. The same input and options give the same bytes. docs/data.md is the reference.
"""

import argparse
import os
import shutil
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
try:
    import numpy  # noqa: F401
    import tokenizers  # noqa: F401
except ImportError as missing:
    print(
        f"data/prepare.py: needs the Python packages numpy and tokenizers ({missing})",
        file=sys.stderr,
    )
    sys.exit(2)

from data import debian, gather, result
from data import tokenizer as bpe
from data.errors import InputError
from data.progress import Progress


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="data/prepare.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=("Make llm.c token shards (train and val), a tokenizer and a manifest from any text."),
        epilog=(
            "examples:\n  data/prepare.py -o tokens                        the default Debian set,"
            " about 9 MB of text\n  data/prepare.py books/ 'notes/*.md' -o tokens    files,"
            " folders, patterns, .gz, .jsonl, .deb\n  data/prepare.py --debian linux-doc-6.1 -o"
            " tokens --vocab-size 16384\n  data/prepare.py corpus.txt -o tokens --tokenizer"
            " gpt2/tokenizer.json"
        ),
    )
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="file, folder or pattern; none: the default Debian set",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="DIR",
        help="folder to make (replaced as a whole if it is ours)",
    )
    source = parser.add_argument_group("Debian packages")
    source.add_argument(
        "--debian",
        metavar="A,B,...",
        help="packages, downloaded without root; 'default' = " + ",".join(debian.DEFAULT_PACKAGES),
    )
    source.add_argument(
        "--cache",
        metavar="DIR",
        help="where downloads are kept (${XDG_CACHE_HOME:-~/.cache}/rehearse/debs)",
    )
    source.add_argument(
        "--offline",
        action="store_true",
        help="use the cache, else installed documentation; download nothing",
    )
    source.add_argument("--refresh", action="store_true", help="download again")
    token = parser.add_argument_group("tokenizer")
    token.add_argument("--vocab-size", type=int, metavar="N", help="of the byte-level BPE to train (8192)")
    token.add_argument("--tokenizer", metavar="FILE", help="use this tokenizer.json instead of training one")
    token.add_argument("--end-of-text", metavar="TOKEN", help="the loaded tokenizer's end-of-text token")
    token.add_argument(
        "--masked-lm",
        action="store_true",
        help="refuse a tokenizer without mask and padding tokens",
    )
    clean = parser.add_argument_group("cleaning and splitting")
    clean.add_argument(
        "--val-fraction",
        type=float,
        default=0.05,
        metavar="F",
        help="share of documents held out (0.05)",
    )
    clean.add_argument("--max-mb", type=float, metavar="N", help="stop after N million characters of clean text")
    clean.add_argument(
        "--max-document-chars",
        type=int,
        metavar="N",
        help="cut longer documents at paragraph ends (a single big file must be cut to be split)",
    )
    clean.add_argument(
        "--keep-whitespace",
        action="store_true",
        help="keep indentation and blank lines (program text)",
    )
    clean.add_argument("--keep-duplicates", action="store_true", help="keep repeated documents and paragraphs")
    clean.add_argument("--keep-licences", action="store_true", help="keep licence texts")
    clean.add_argument(
        "--shard-tokens",
        type=int,
        default=100_000_000,
        metavar="N",
        help="tokens a shard (100000000)",
    )
    parser.add_argument("--force", action="store_true", help="prepare again even if DIR already holds this result")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
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
    if options.vocab_size is not None:
        bpe.check_size(options.vocab_size)
    return options


def summary(output, manifest, note):
    train, val = manifest["train"], manifest["val"]
    print(
        f"{output}: {note}{train['tokens']:,} training and {val['tokens']:,} validation tokens from"
        f" {train['documents'] + val['documents']:,} documents"
        f" ({(train['characters'] + val['characters']) / 1e6:.1f} MB of text), vocabulary"
        f" {manifest['vocab_size']}"
    )


def prepare(options):
    output = os.path.abspath(options.output)
    result.recover(output)
    before = result.existing(output)
    if options.tokenizer:
        bpe.load(options.tokenizer)  # a bad tokenizer is known before anything is downloaded
    parent = os.path.dirname(output)
    beside = os.path.join(parent, f".{os.path.basename(output)}.partial-{os.getpid()}")
    try:  # from before it is there: a signal may come at any time
        try:
            os.makedirs(parent, exist_ok=True)
            os.mkdir(beside)
        except OSError as error:
            raise InputError(f"-o {options.output}: cannot write in {parent}: {error.strerror}") from None
        progress = Progress(options.quiet)
        gathering = gather.gather(options, progress)
        recipe_hash = result.recipe(options, gathering.inputs)
        if before and not options.force and before.get("recipe_sha256") == recipe_hash and result.intact(output, before):
            progress.done()
            manifest, note = before, "up to date: "
        else:
            manifest, note = result.build(options, gathering, recipe_hash, beside, progress), ""
            result.publish(beside, output)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    if not options.quiet:
        summary(options.output, manifest, note)


def _stop(number, _frame):
    raise SystemExit(128 + number)


def main(argv=None):
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        prepare(arguments(argv))
        return 0
    except InputError as error:
        print(f"data/prepare.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or "the output folder"
        print(f"data/prepare.py: cannot write {where}: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
