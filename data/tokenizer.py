"""Byte-level BPE (Radford et al. 2019, section 2.2), trained or loaded as a Hugging Face tokenizer.json."""

import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from data.errors import InputError
from data.shards import MAX_TOKEN

END_OF_TEXT, PAD, MASK = "<|endoftext|>", "[PAD]", "[MASK]"
_NAMES = {
    "end_of_text": (END_OF_TEXT, "</s>", "[SEP]", "<|end_of_text|>", "<eos>"),
    "pad": (PAD, "<pad>", "<|padding|>"),
    "mask": (MASK, "<mask>"),
}
SMALLEST = 256 + 3  # every byte, and the three special tokens
BATCH = 500_000  # characters that are tokenized in one call


def check_size(size):
    if size > MAX_TOKEN:
        raise InputError(f"--vocab-size {size}: tokens are stored in 16 bits, so at most {MAX_TOKEN}")
    if size < SMALLEST:
        raise InputError(f"--vocab-size {size}: at least {SMALLEST} (256 bytes and 3 special tokens)")


def train(texts, size):
    """A tokenizer of at most `size` entries; special tokens come first, so their ids are 0, 1 and 2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT, PAD, MASK],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load(path):
    if not os.path.isfile(path):
        raise InputError(f"--tokenizer {path}: no such file")
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise InputError(f"--tokenizer {path}: not a tokenizer.json ({error})") from None
    if (size := vocabulary_size(tokenizer)) > MAX_TOKEN + 1:
        raise InputError(f"--tokenizer {path}: vocabulary of {size}; tokens are stored in 16 bits, so at most {MAX_TOKEN + 1}")
    return tokenizer


def vocabulary_size(tokenizer):
    """The largest id + 1, because ids may have gaps, and a model's embedding needs a row for the largest one."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def special_ids(tokenizer, end_of_text=None):
    """{"end_of_text": id, "pad": id or None, "mask": id or None}; the end-of-text token must exist."""
    ids = {}
    for role, names in _NAMES.items():
        found = (tokenizer.token_to_id(n) for n in ([end_of_text] if role == "end_of_text" and end_of_text else names))
        ids[role] = next((i for i in found if i is not None), None)
    if ids["end_of_text"] is None:
        wanted = f"'{end_of_text}'" if end_of_text else "none of " + ", ".join(_NAMES["end_of_text"])
        raise InputError(f"the tokenizer has {'no ' if end_of_text else ''}{wanted}: name its end-of-text token with --end-of-text")
    return ids


def encode(tokenizer, texts, advance):
    """Yields each text's token ids; calls `advance` with the characters done. Text that looks like a special token stays text."""
    tokenizer.encode_special_tokens = True
    batch, size = [], 0
    for at, text in enumerate(texts, 1):
        batch.append(text)
        size += len(text)
        if size > BATCH or at == len(texts):
            yield from (encoding.ids for encoding in tokenizer.encode_batch(batch, add_special_tokens=False))
            advance(size)
            batch, size = [], 0
