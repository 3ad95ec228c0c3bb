"""Text for the models: the corpus, its tokens, and the windows that a model reads.

    tokenizer, splits = shakespeare("characters")      # splits["train"], ["valid"] and ["test"]: tokens
    inputs, targets = random_windows(splits["train"], length=64, batch=8, generator=generator)

Everything random is drawn on the CPU from a generator that you pass, so that the order of the data depends on
its seed alone: not on the device, and not on the model.
"""

import hashlib
import lzma
from pathlib import Path

import tokenizers
import torch

from synth_lib.shapes import check_whole_number

DATA = Path(__file__).resolve().parents[1] / "data"

# Checksums of the uncompressed bytes; whole works, so that no play is both read and judged.
SHA256 = {
    "train": "5c4b6a8ac5caf883643915623268ba8ac244e3f3267f80b2a285537993e64646",
    "valid": "0bbf4550d02b43abe058bd2181bb5c7887f0ef4d846b65e7755b7715fb99077c",
    "test": "cb12c4b69cb9068e6aac609c841263c30e373cc969d069e12c876182ca089ebe",
}


class CorpusError(Exception):
    """A file of the corpus is missing or damaged."""


def load_text(split, folder=DATA):
    """The text of one split of Shakespeare: "train", "valid" or "test".

    Raises CorpusError if the file is missing, cannot be decompressed, or has another checksum than it should;
    ValueError for an unknown split.
    """
    if split not in SHA256:
        raise ValueError(f"split must be one of {', '.join(SHA256)}, not {split!r}")
    path = Path(folder) / f"shakespeare.{split}.txt.xz"
    repair = "fetch it again from the project's data folder"
    try:
        raw = lzma.decompress(path.read_bytes())
    except OSError as error:
        raise CorpusError(f"cannot read {path} ({error.strerror}): {repair}") from None
    except lzma.LZMAError:
        raise CorpusError(f"{path} is damaged, it cannot be decompressed: {repair}") from None
    checksum = hashlib.sha256(raw).hexdigest()
    if checksum != SHA256[split]:
        raise CorpusError(f"{path} is damaged, its sha256 is {checksum}, not {SHA256[split]}: {repair}")
    return raw.decode("utf8")


class CharacterTokenizer:
    """One token per character; the vocabulary is the sorted characters of `text`."""

    def __init__(self, text):
        self.characters = sorted(set(text))
        self.token_of = {character: token for token, character in enumerate(self.characters)}
        self.vocab = len(self.characters)

    def encode(self, text):
        """Tokens, int64 "length". Raises ValueError for a character outside the vocabulary."""
        try:
            return torch.tensor([self.token_of[character] for character in text], dtype=torch.int64)
        except KeyError as error:
            raise ValueError(f"the vocabulary of {self.vocab} characters has no {error.args[0]!r}") from None

    def decode(self, tokens):
        """The text of tokens "length"."""
        tokens = torch.as_tensor(tokens)
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab:
            raise ValueError(f"tokens must lie between 0 and {self.vocab - 1}, not {tokens.min()} to {tokens.max()}")
        return "".join(self.characters[token] for token in tokens.tolist())


class BytePairTokenizer:
    """Byte-pair tokens: starting from the 256 bytes, the most frequent neighbours in `text` become one token.

    `vocab` is the number of tokens, at least 256. The attribute of the same name is what was reached: a short
    text has fewer pairs to merge. Any text can be encoded, since every byte is a token. The same text and
    size give the same tokens.
    """

    def __init__(self, text, vocab=1024):
        if vocab < 256:
            raise ValueError(f"vocab must be at least 256, one token for each byte, not {vocab}")
        byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab, initial_alphabet=byte_level.alphabet(), show_progress=False
        )
        self.model = tokenizers.Tokenizer(tokenizers.models.BPE())
        self.model.pre_tokenizer = byte_level
        self.model.decoder = tokenizers.decoders.ByteLevel()
        self.model.train_from_iterator([text], trainer)
        self.vocab = self.model.get_vocab_size()

    def encode(self, text):
        """Tokens, int64 "length"."""
        return torch.tensor(self.model.encode(text).ids, dtype=torch.int64)

    def decode(self, tokens):
        """The text of tokens "length"."""
        return self.model.decode(torch.as_tensor(tokens).tolist())


def shakespeare(tokens="characters", vocab=1024, folder=DATA):
    """Shakespeare as tokens: (tokenizer, {"train": tokens, "valid": tokens, "test": tokens}), int64 "length".

    tokens is "characters" (the vocabulary is that of the text, `vocab` is not used) or "byte_pairs" (`vocab`
    tokens). The tokenizer sees the training split alone.

    Raises CorpusError, and ValueError for an unknown kind of tokens.
    """
    texts = {split: load_text(split, folder) for split in SHA256}
    if tokens == "characters":
        tokenizer = CharacterTokenizer(texts["train"])
    elif tokens == "byte_pairs":
        tokenizer = BytePairTokenizer(texts["train"], vocab)
    else:
        raise ValueError(f"tokens must be 'characters' or 'byte_pairs', not {tokens!r}")
    return tokenizer, {split: tokenizer.encode(text) for split, text in texts.items()}


def random_windows(tokens, length, batch, generator):
    """Windows that start anywhere in tokens "length": (inputs, targets), both "batch length" on the CPU.

    The target of a position is the token after it. `generator` is a torch.Generator on the CPU.
    """
    return _windows(tokens, torch.randint(_starts(tokens, length), (batch,), generator=generator), length)


def evaluation_windows(tokens, length, count):
    """`count` windows spread evenly over tokens "length": (inputs, targets), both "batch length".

    They are the same at every call, and no two share a target. Raises ValueError if the text is too short for
    that.
    """
    available = (_starts(tokens, length) - 1) // length + 1
    if not 1 <= count <= available:
        total = len(tokens)
        raise ValueError(f"{total} tokens hold 1 to {available} windows of length {length}, not {count}")
    return _windows(tokens, torch.arange(count) * available // count * length, length)


def _starts(tokens, length):
    """In how many places a window, with the target of its last token, can start."""
    check_whole_number("length", length)
    if len(tokens) <= length:
        raise ValueError(f"a window of length {length} needs {length + 1} tokens, not {len(tokens)}")
    return len(tokens) - length


def _windows(tokens, starts, length):
    positions = starts[:, None] + torch.arange(length)
    return tokens[positions], tokens[positions + 1]
