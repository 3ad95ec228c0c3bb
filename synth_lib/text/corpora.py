"""Text for the models: the corpora, their tokens, and what a model reads at each step.

    tokenizer, splits = shakespeare("characters")      # splits["train"], ["valid"] and ["test"]: tokens
    inputs, targets = random_windows(splits["train"], length=64, batch=8, generator=generator)

    corpus = translation("german", vocab=4000, max_length=32)      # also classification(...), sentence_pairs(...)
    for pairs in batches(corpus.splits["train"], max_tokens=2048, generator=generator):
        source, source_lengths, inputs, targets = translation_batch(pairs, corpus.tokenizer)

Everything random is drawn on the CPU from a generator that you pass, so that the order of the data depends on
its seed alone: not on the device, and not on the model.
"""

import hashlib
import lzma
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch

from synth_lib.shapes import check_whole_number

DATA = Path(__file__).resolve().parents[2] / "data"

# Checksums of the uncompressed bytes; whole works, so that no play is both read and judged.
SHA256 = {
    "train": "5c4b6a8ac5caf883643915623268ba8ac244e3f3267f80b2a285537993e64646",
    "valid": "0bbf4550d02b43abe058bd2181bb5c7887f0ef4d846b65e7755b7715fb99077c",
    "test": "cb12c4b69cb9068e6aac609c841263c30e373cc969d069e12c876182ca089ebe",
}

TRANSLATIONS = {
    "german": (
        "homeassistant.en-de.tsv.xz",
        "588a40f4be76bc67f56747a124a4dbce507088c44ba3ef1a28d5f7a623b6ad54",
    ),
    "french": (
        "homeassistant.en-fr.tsv.xz",
        "716de68bef6ecb7375174220554b64c60b10c3cc7386260e8017939fe7d199c0",
    ),
}
GLOSSES = ("wordnet_gloss8.tsv.xz", "aa0577c043c64168e06bd7a96dda2fa998f5d7da7df11b6d8acda07aef2590ab")

# The label of a gloss is the place of its class here.
GLOSS_CLASSES = ("animal", "artifact", "body", "food", "location", "person", "plant", "substance")


class CorpusError(Exception):
    """A file of the corpus is missing or damaged."""


def load_text(split, folder=DATA):
    """The text of one split of Shakespeare: "train", "valid" or "test".

    Raises CorpusError if the file is missing, cannot be decompressed, or has another checksum than it should;
    ValueError for an unknown split.
    """
    if split not in SHA256:
        raise ValueError(f"split must be one of {', '.join(SHA256)}, not {split!r}")
    return _read(f"shakespeare.{split}.txt.xz", SHA256[split], folder)


def translation_pairs(language="german", folder=DATA):
    """Short interface texts: {"train": [(English, translation), ...], "valid": ..., "test": ...}.

    language is "german" or "french". Raises CorpusError as load_text does, ValueError for another language.
    """
    if language not in TRANSLATIONS:
        raise ValueError(f"language must be one of {', '.join(TRANSLATIONS)}, not {language!r}")
    return _table(*TRANSLATIONS[language], folder)


def glosses(folder=DATA):
    """Dictionary definitions of nouns: {"train": [(gloss, label), ...], "valid": ..., "test": ...}.

    A label is 0 to 7, the class's place in GLOSS_CLASSES. Raises CorpusError as load_text does.
    """
    return {
        split: [(gloss, GLOSS_CLASSES.index(name)) for name, gloss in rows]
        for split, rows in _table(*GLOSSES, folder).items()
    }


def gloss_pairs(examples, generator, rounds=1):
    """Do two glosses belong to the same class? [(first, second, same), ...], `same` being 1 or 0.

    examples is one split of glosses(). Each gloss is the first of `rounds` pairs. In each class, half of the pairs
    (to within one) are of the same class, so that the first gloss alone does not tell the answer. No gloss meets
    itself, and no two meet twice. `generator` is a torch.Generator on the CPU.

    Raises ValueError if a gloss finds no new partner.
    """
    check_whole_number("rounds", rounds)
    everyone = torch.randperm(len(examples), generator=generator).tolist()
    by_label = sorted(everyone, key=lambda row: examples[row][1])
    of_label = [[row for row in everyone if examples[row][1] == label] for label in range(len(GLOSS_CLASSES))]
    pairs, met = [], set()
    for place in range(rounds * len(examples)):
        first = by_label[place % len(examples)]
        label, same = examples[first][1], place % 2
        pool = of_label[label] if same else everyone
        for draw in torch.randint(len(pool), (100,), generator=generator).tolist():
            second = pool[draw]
            pair = frozenset((first, second))
            if len(pair) == 2 and pair not in met and (examples[second][1] == label) == same:
                break
        else:
            raise ValueError(f"rounds is {rounds}, but {len(examples)} glosses hold too few different pairs for that")
        met.add(pair)
        pairs.append((examples[first][0], examples[second][0], same))
    return [pairs[row] for row in torch.randperm(len(pairs), generator=generator).tolist()]


def _read(name, checksum, folder):
    """The text of one file in `folder`, whose uncompressed bytes must have this sha256."""
    path = Path(folder) / name
    repair = "fetch it again from the project's data folder"
    try:
        raw = lzma.decompress(path.read_bytes())
    except OSError as error:
        raise CorpusError(f"cannot read {path} ({error.strerror}): {repair}") from None
    except lzma.LZMAError:
        raise CorpusError(f"{path} is damaged, it cannot be decompressed: {repair}") from None
    found = hashlib.sha256(raw).hexdigest()
    if found != checksum:
        raise CorpusError(f"{path} is damaged, its sha256 is {found}, not {checksum}: {repair}")
    return raw.decode("utf8")


def _table(name, checksum, folder):
    """{split: rows} of a file whose lines are split, then the columns of a row, between tabs."""
    splits = {"train": [], "valid": [], "test": []}
    for line in _read(name, checksum, folder).splitlines():
        split, *row = line.split("\t")
        splits[split].append(tuple(row))
    return splits


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


class WordTokenizer:
    """One token per word, words being what stands between spaces; the vocabulary is the sorted words of `texts`."""

    def __init__(self, texts):
        self.words = sorted({word for text in texts for word in text.split()})
        self.token_of = {word: token for token, word in enumerate(self.words)}
        self.vocab = len(self.words)

    def encode(self, text):
        """Tokens, int64 "length". Raises ValueError for a word outside the vocabulary."""
        try:
            return torch.tensor([self.token_of[word] for word in text.split()], dtype=torch.int64)
        except KeyError as error:
            raise ValueError(f"the vocabulary of {self.vocab} words has no {error.args[0]!r}") from None

    def decode(self, tokens):
        """The words of tokens "length", one space between them."""
        return " ".join(self.words[token] for token in torch.as_tensor(tokens).tolist())


class SpecialTokens:
    """Another tokenizer with four special tokens before its own: padding 0, start 1, end 2, separator 3.

    No text stands for a special token, so no text that holds a word like "<end>" can turn into one. `vocab` is
    the number of all tokens.
    """

    padding, start, end, separator = range(4)

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.vocab = tokenizer.vocab + 4

    def encode(self, text):
        """Tokens, int64 "length", none of them special. Raises ValueError as the other tokenizer does."""
        return self.tokenizer.encode(text) + 4

    def decode(self, tokens):
        """The text of tokens "length" before the first end; the other special tokens are left out.

        Raises ValueError for a token that does not exist.
        """
        tokens = self._checked(tokens)
        if self.end in tokens:
            tokens = tokens[: tokens.index(self.end)]
        return self.tokenizer.decode([token - 4 for token in tokens if token >= 4])

    def names(self, tokens):
        """One string for each of tokens "length", for the labels of a plot."""
        special = ["<padding>", "<start>", "<end>", "<separator>"]
        return [special[token] if token < 4 else self.tokenizer.decode([token - 4]) for token in self._checked(tokens)]

    def _checked(self, tokens):
        tokens = torch.as_tensor(tokens).tolist()
        wrong = [token for token in tokens if not 0 <= token < self.vocab]
        if wrong:
            raise ValueError(f"tokens must lie between 0 and {self.vocab - 1}, not {wrong[0]}")
        return tokens


@dataclass
class Corpus:
    """Examples as tokens, for a task whose examples differ in length.

    splits["train"], ["valid"] and ["test"] are lists of examples: (source tokens, target tokens) of a translation
    or (tokens, label) of a classification, tokens being int64 "length". texts has, in the same order, what they
    were made from. max_length is the length that a model must have room for, special tokens included.
    dropped[split] counts the examples that were longer and are therefore left out: none is ever cut.
    """

    tokenizer: SpecialTokens
    splits: dict
    texts: dict
    max_length: int
    dropped: dict


def make_corpus(tokenizer, texts, encode, max_length=None):
    """The Corpus of texts {split: [text of an example, ...]}; encode(text) gives the example.

    max_length=None keeps every example; a number drops those that need more room. Raises ValueError if that
    leaves a split empty.
    """
    encoded = {split: [(encode(text), text) for text in some] for split, some in texts.items()}
    if max_length is None:
        max_length = max(_room(example) for some in encoded.values() for example, _ in some)
    check_whole_number("max_length", max_length)
    kept = {split: [pair for pair in some if _room(pair[0]) <= max_length] for split, some in encoded.items()}
    for split, some in kept.items():
        if not some:
            raise ValueError(f"max_length is {max_length}, but every example of the split {split} is longer")
    return Corpus(
        tokenizer,
        {split: [example for example, _ in some] for split, some in kept.items()},
        {split: [text for _, text in some] for split, some in kept.items()},
        max_length,
        {split: len(encoded[split]) - len(kept[split]) for split in kept},
    )


def _room(example):
    """The length that a model needs for an example; start or end makes both sides of a translation one longer."""
    tokens, target = example
    return 1 + max(len(tokens), len(target)) if isinstance(target, torch.Tensor) else len(tokens)


def translation(language="german", vocab=4000, max_length=None, folder=DATA):
    """The interface texts as a Corpus of (English tokens, German or French tokens), without special tokens.

    vocab is the size of the one vocabulary of both languages: byte-pairs of the training split, and four special
    tokens. max_length=None keeps every pair; a number drops longer ones (see Corpus; translation_batch adds one
    special token to each side, which counts).

    Raises CorpusError, and ValueError for another language or too small a vocab or max_length.
    """
    texts = translation_pairs(language, folder)
    tokenizer = _byte_pairs((text for pair in texts["train"] for text in pair), vocab)
    return make_corpus(tokenizer, texts, lambda pair: tuple(map(tokenizer.encode, pair)), max_length)


def classification(vocab=4000, max_length=None, folder=DATA):
    """The glosses as a Corpus of (tokens, label), label 0 to 7; vocab and max_length as in translation()."""
    texts = glosses(folder)
    tokenizer = _byte_pairs((gloss for gloss, _ in texts["train"]), vocab)
    return make_corpus(tokenizer, texts, lambda text: (tokenizer.encode(text[0]), text[1]), max_length)


def sentence_pairs(vocab=4000, max_length=None, seed=0, rounds=1, folder=DATA):
    """Pairs of glosses as a Corpus of (tokens, same): the first gloss, the separator, the second gloss.

    The label `same` is 1 if both are of one class, else 0. The pairs of a split are gloss_pairs() of that split's
    glosses, so that no gloss is in two splits; `rounds` is for the training split, the others have one. vocab and
    max_length as in translation().
    """
    generator = torch.Generator().manual_seed(seed)
    examples = glosses(folder)
    # The training pairs come last, so that the others are the same for any `rounds`.
    texts = {split: gloss_pairs(examples[split], generator) for split in ("valid", "test")}
    texts = {"train": gloss_pairs(examples["train"], generator, rounds), **texts}
    tokenizer = _byte_pairs((gloss for gloss, _ in examples["train"]), vocab)
    tokens_of = {gloss: tokenizer.encode(gloss) for split in examples.values() for gloss, _ in split}
    separator = torch.tensor([tokenizer.separator])

    def encode(text):
        first, second, same = text
        return torch.cat([tokens_of[first], separator, tokens_of[second]]), same

    return make_corpus(tokenizer, texts, encode, max_length)


def _byte_pairs(texts, vocab):
    if vocab < 260:
        raise ValueError(f"vocab must be at least 260, the 256 bytes and four special tokens, not {vocab}")
    return SpecialTokens(BytePairTokenizer("\n".join(texts), vocab - 4))


def pad(sequences, padding=0, length=None):
    """Token sequences of different lengths as one tensor: (tokens "batch length", lengths "batch"), int64.

    The token `padding` fills the right of each row. length=None is the longest sequence. Raises ValueError if a
    sequence is longer than `length`, or if there is none.
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
    if not len(lengths):
        raise ValueError("pad needs at least one sequence, not 0")
    longest = int(lengths.max())
    if length is None:
        length = longest
    if longest > length:
        raise ValueError(f"length is {length}, but the longest sequence has {longest} tokens")
    tokens = torch.full((len(lengths), length), padding, dtype=torch.int64)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = torch.as_tensor(sequence)
    return tokens, lengths


def translation_batch(pairs, tokenizer, length=None):
    """What a translator reads and writes: (source, source_lengths, inputs, targets).

    All are "batch length" but source_lengths, "batch". source is the source tokens and the end; inputs, for the
    decoder, the start and the target tokens; targets the target tokens and the end, so that a position's target is
    the token after it. All are padded on the right, to the longest row of each side, or to `length`:
    corpus.max_length gives every batch one shape. The loss leaves the padding out:
    F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=tokenizer.padding).

    Raises ValueError as pad does.
    """
    start, end = torch.tensor([tokenizer.start]), torch.tensor([tokenizer.end])
    source, source_lengths = pad([torch.cat([source, end]) for source, _ in pairs], tokenizer.padding, length)
    inputs, _ = pad([torch.cat([start, target]) for _, target in pairs], tokenizer.padding, length)
    targets, _ = pad([torch.cat([target, end]) for _, target in pairs], tokenizer.padding, length)
    return source, source_lengths, inputs, targets


def classification_batch(examples, tokenizer, length=None):
    """Examples (tokens, label) as (tokens "batch length", lengths "batch", labels "batch"), padded as pad does."""
    tokens, lengths = pad([tokens for tokens, _ in examples], tokenizer.padding, length)
    return tokens, lengths, torch.tensor([label for _, label in examples], dtype=torch.int64)


def batches(examples, max_tokens, generator=None):
    """One epoch of batches: lists of examples of similar length, each example in one of them.

    A batch, padded, has at most `max_tokens` tokens (of a translation: on either side). `generator`, a
    torch.Generator on the CPU, draws the order of the batches, and of examples that are equally long. Without it
    the order is fixed, by length: for evaluation.

    Raises ValueError if one example alone has more than max_tokens.
    """
    rooms = [_room(example) for example in examples]
    if max(rooms, default=0) > max_tokens:
        raise ValueError(f"max_tokens is {max_tokens}, but the longest example needs {max(rooms)}")
    rows = range(len(examples)) if generator is None else torch.randperm(len(examples), generator=generator).tolist()
    result = []
    for row in sorted(rows, key=lambda row: rooms[row]):
        # Rows come from short to long, so the new row is the longest of its batch.
        if not result or (len(result[-1]) + 1) * rooms[row] > max_tokens:
            result.append([])
        result[-1].append(row)
    order = range(len(result)) if generator is None else torch.randperm(len(result), generator=generator).tolist()
    for place in order:
        yield [examples[row] for row in result[place]]


def random_batch(tensors, batch, generator):
    """`batch` random rows, drawn with replacement, the same ones from each of `tensors` "example ...".

    For training by steps with one shape: give it the whole split, as translation_batch(split, tokenizer,
    length=max_length) makes it. The rows are drawn on the CPU from `generator`; the tensors may be on any device.
    """
    rows = torch.randint(len(tensors[0]), (batch,), generator=generator)
    return tuple(tensor[rows.to(tensor.device)] for tensor in tensors)


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
