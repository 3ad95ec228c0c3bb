"""Text for the models: the corpora, their tokens, and what a model reads at each step.

    tokenizer, splits = shakespeare("characters")      # splits["train"], ["valid"] and ["test"]: tokens
    inputs, targets = random_windows(splits["train"], length=64, batch=8, generator=generator)

    corpus = translation("german", vocab=4000, max_length=32)      # also classification(...), replies(...)
    source, source_lengths, inputs, targets = translation_batch(corpus.splits["train"][:8], corpus.tokenizer)

Everything random is drawn on the CPU from a generator that you pass, so that the order of the data depends on
its seed alone: not on the device, and not on the model.
"""

import hashlib
import json
import lzma
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from numbers import Integral
from pathlib import Path

import torch

from synth_lib.shapes import check_whole_number
from synth_lib.text.tokenizers import BytePairTokenizer, CharacterTokenizer, SpecialTokens

DATA = Path(__file__).resolve().parents[2] / "data"

# The sha256 of the uncompressed bytes of each file.
FILES = {
    "shakespeare.train.txt.xz": "5c4b6a8ac5caf883643915623268ba8ac244e3f3267f80b2a285537993e64646",
    "shakespeare.valid.txt.xz": "0bbf4550d02b43abe058bd2181bb5c7887f0ef4d846b65e7755b7715fb99077c",
    "shakespeare.test.txt.xz": "cb12c4b69cb9068e6aac609c841263c30e373cc969d069e12c876182ca089ebe",
    "homeassistant.en-de.tsv.xz": "588a40f4be76bc67f56747a124a4dbce507088c44ba3ef1a28d5f7a623b6ad54",
    "homeassistant.en-fr.tsv.xz": "716de68bef6ecb7375174220554b64c60b10c3cc7386260e8017939fe7d199c0",
    "tatoeba.en-de.tsv.xz": "a6e790c8ff0a7da12c38a0bb7174487dab8e4aca04487da4590de6394ca51829",
    "tinyshakespeare.txt.xz": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    "synthetic_persona_chat.jsonl.xz": "7504a890ab891bef2acd9e4c9a478c1d7fc205bf40962691452773a54715c272",
    "wordnet_gloss8.tsv.xz": "aa0577c043c64168e06bd7a96dda2fa998f5d7da7df11b6d8acda07aef2590ab",
    "grammar_words.tsv": "d3d314fd420b3374732f92aa23a64f8cc700c9015b6de22b4ca80a6ea171bd0e",
}
SPLITS = ("train", "valid", "test")
TRANSLATIONS = {
    "german": "homeassistant.en-de.tsv.xz",
    "french": "homeassistant.en-fr.tsv.xz",
    "tatoeba": "tatoeba.en-de.tsv.xz",
}

# The label of a gloss is the index of its class here.
GLOSS_CLASSES = ("animal", "artifact", "body", "food", "location", "person", "plant", "substance")


class CorpusError(Exception):
    """A file of the corpus is missing or damaged."""


def load_text(split, folder=DATA, corpus="shakespeare"):
    """The text of one split, "train", "valid" or "test", of the corpus "shakespeare" or "tinyshakespeare".

    "shakespeare" is split by whole works. Of "tinyshakespeare" the split "test" is the last tenth, on which nanoGPT's
    published losses are measured (it calls that part validation). Its training text is "valid", the first 5 % of it,
    and then "train": choose rates on "valid". (Not the last 5 %: they belong to the play with which "test" begins, and
    without them counting five characters loses 0.2 nats on "test".)

    Raises CorpusError if the file is missing, cannot be decompressed, or has another checksum than it should;
    ValueError for an unknown split or corpus.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if corpus == "shakespeare":
        return read_file(f"shakespeare.{split}.txt.xz", folder)
    if corpus != "tinyshakespeare":
        raise ValueError(f"corpus must be 'shakespeare' or 'tinyshakespeare', not {corpus!r}")
    text = read_file("tinyshakespeare.txt.xz", folder)
    published = int(0.9 * len(text))
    first = published // 20
    return {"train": text[first:published], "valid": text[:first], "test": text[published:]}[split]


def translation_pairs(texts="german", folder=DATA):
    """Texts and their translations: {"train": [(English, translation), ...], "valid": ..., "test": ...}.

    texts is "german" or "french", short interface texts, or "tatoeba", everyday sentences in German. Raises
    CorpusError as load_text does, ValueError for other texts.
    """
    if texts not in TRANSLATIONS:
        raise ValueError(f"texts must be one of {', '.join(TRANSLATIONS)}, not {texts!r}")
    return _table(TRANSLATIONS[texts], folder)


@dataclass
class Dialogue:
    """Two speakers who take turns; personas holds the sentences about each of them, the one who begins first."""

    personas: list
    turns: list


def dialogues(folder=DATA):
    """Chats of two people with a persona each: {"train": [Dialogue, ...], "valid": ..., "test": ...}.

    No persona of the split "test" is in another one; "valid" was taken from the training dialogues and shares some of
    their personas. Raises CorpusError as load_text does.
    """
    splits = {split: [] for split in SPLITS}
    for line in read_file("synthetic_persona_chat.jsonl.xz", folder).splitlines():
        record = json.loads(line)
        splits[record.pop("split")].append(Dialogue(**record))
    return splits


def glosses(folder=DATA):
    """Dictionary definitions of nouns: {"train": [(gloss, label), ...], "valid": ..., "test": ...}.

    A label is 0 to 7, the class's index in GLOSS_CLASSES. Raises CorpusError as load_text does.
    """
    return {
        split: [(gloss, GLOSS_CLASSES.index(name)) for name, gloss in rows]
        for split, rows in _table("wordnet_gloss8.tsv.xz", folder).items()
    }


def read_file(name, folder=DATA):
    """The text of one of FILES, whose bytes must be the expected ones. Raises CorpusError if they are not."""
    path = Path(folder) / name
    repair = "fetch it again from the project's data folder"
    try:
        raw = path.read_bytes()
        raw = lzma.decompress(raw) if name.endswith(".xz") else raw
    except OSError as error:
        raise CorpusError(f"cannot read {path} ({error.strerror}): {repair}") from None
    except lzma.LZMAError:
        raise CorpusError(f"{path} is damaged, it cannot be decompressed: {repair}") from None
    checksum = hashlib.sha256(raw).hexdigest()
    if checksum != FILES[name]:
        raise CorpusError(f"{path} is damaged or edited, its sha256 is {checksum}, not {FILES[name]}: {repair}")
    return raw.decode("utf8")


def _table(name, folder):
    """{split: rows} of a file whose lines are split, then the columns of a row, between tabs."""
    splits = {split: [] for split in SPLITS}
    for line in read_file(name, folder).splitlines():
        split, *row = line.split("\t")
        splits[split].append(tuple(row))
    return splits


@dataclass
class Corpus:
    """Examples as tokens, for a task whose examples differ in length.

    splits["train"], ["valid"] and ["test"] are lists of examples: (source tokens, target tokens) of a translation
    or (tokens, label) of a classification, tokens being int64 "length". texts has, in the same order, what they
    were made from. max_length is the length that a model must have room for, special tokens included.
    dropped[split] counts the examples that were longer and are therefore left out. None is ever cut, but for the
    sources of replies(), whose beginnings may be: cut[split] counts them.
    """

    tokenizer: SpecialTokens
    splits: dict
    texts: dict
    max_length: int
    dropped: dict
    cut: dict = field(default_factory=dict)


def make_corpus(tokenizer, texts, encode, max_length=None):
    """The Corpus of texts {split: [text of an example, ...]}; encode(text) gives the example.

    max_length=None keeps every example; a number drops those that need more room. Raises ValueError if a split is
    empty, or if that leaves it empty.
    """
    encoded = {split: [encode(text) for text in rows] for split, rows in texts.items()}
    for split, examples in encoded.items():
        if not examples:
            raise ValueError(f"the split {split} has no example")
    if max_length is None:
        max_length = max(_length(example) for examples in encoded.values() for example in examples)
    check_whole_number("max_length", max_length)
    corpus = Corpus(tokenizer, {}, {}, max_length, {})
    for split, examples in encoded.items():
        fits = [_length(example) <= max_length for example in examples]
        if not any(fits):
            raise ValueError(f"max_length is {max_length}, but every example of the split {split} is longer")
        corpus.splits[split] = list(compress(examples, fits))
        corpus.texts[split] = list(compress(texts[split], fits))
        corpus.dropped[split] = fits.count(False)
    return corpus


def _length(example):
    """The length that a model needs for an example; start or end makes both sides of a translation one longer."""
    tokens, target = example
    return 1 + max(len(tokens), len(target)) if isinstance(target, torch.Tensor) else len(tokens)


def translation(texts="german", vocab=4000, max_length=None, folder=DATA):
    """Texts of translation_pairs as a Corpus of (English tokens, German or French tokens), without special tokens.

    vocab is the size of the one vocabulary of both languages: byte-pairs of the training split, and four special
    tokens. max_length=None keeps every pair; a number drops longer ones (see Corpus; translation_batch adds one
    special token to each side, which counts).

    Raises CorpusError, and ValueError for other texts or too small a vocab or max_length.
    """
    pairs = translation_pairs(texts, folder)
    tokenizer = _byte_pairs((text for pair in pairs["train"] for text in pair), vocab)
    return make_corpus(tokenizer, pairs, lambda pair: tuple(map(tokenizer.encode, pair)), max_length)


def replies(vocab=2000, max_length=96, turns=2, most=2000, folder=DATA):
    """The dialogues as a Corpus of (source tokens, tokens of the next turn): who speaks, and what was said last.

    A source is the persona of the other, that of the one who replies, and the last `turns` turns (fewer at the
    beginning), in this order, with the separator between two of them. The model reads at most max_length - 1 of its
    tokens, the last ones: the beginning of a longer one is cut, see Corpus. texts has them whole, a part a line. `most`
    is the largest number of replies of the splits valid and test, taken from them at even distances; training has all.
    vocab as in translation(); a reply that needs more than max_length is dropped.

    Raises CorpusError as load_text does, and ValueError for a size that is not whole or too small.
    """
    for name, size in {"max_length": max_length, "turns": turns, "most": most}.items():
        check_whole_number(name, size)
    texts = {split: [pair for chat in chats for pair in _replies(chat, turns)]
             for split, chats in dialogues(folder).items()}  # fmt: skip
    for split in ("valid", "test"):
        count = min(most, len(texts[split]))
        texts[split] = [texts[split][row * len(texts[split]) // count] for row in range(count)]
    # Each line counts once for the vocabulary, and not again in each source that it is a part of.
    lines = dict.fromkeys(line for source, reply in texts["train"] for line in (*source.split("\n"), reply))
    tokenizer = _byte_pairs(lines, vocab)
    tokens_of = cache(tokenizer.encode)
    separator, cuts = torch.tensor([tokenizer.separator]), dict.fromkeys(texts, 0)

    def encode(pair, split):
        first, *others = map(tokens_of, pair[0].split("\n"))
        source = torch.cat([first, *(tokens for other in others for tokens in (separator, other))])
        cuts[split] += len(source) > max_length - 1
        return source[-(max_length - 1) :], tokens_of(pair[1])

    marked = {split: [(pair, split) for pair in pairs] for split, pairs in texts.items()}
    corpus = make_corpus(tokenizer, marked, lambda example: encode(*example), max_length)
    corpus.texts = {split: [pair for pair, _ in rows] for split, rows in corpus.texts.items()}
    corpus.cut = cuts
    return corpus


def _replies(chat, turns):
    """[(source, reply), ...] of a Dialogue, texts; the parts of a source are lines."""
    personas = [" ".join(sentences) for sentences in chat.personas]
    lines = [" ".join(turn.split()) for turn in chat.turns]
    return [
        ("\n".join([personas[1 - number % 2], personas[number % 2], *lines[max(0, number - turns) : number]]), reply)
        for number, reply in enumerate(lines)
        if number
    ]


def classification(vocab=4000, max_length=None, folder=DATA):
    """The glosses as a Corpus of (tokens, label), label 0 to 7; vocab and max_length as in translation()."""
    texts = glosses(folder)
    tokenizer = _byte_pairs((gloss for gloss, _ in texts["train"]), vocab)
    return make_corpus(tokenizer, texts, lambda text: (tokenizer.encode(text[0]), text[1]), max_length)


def _byte_pairs(texts, vocab):
    if vocab < 260:
        raise ValueError(f"vocab must be at least 260, the 256 bytes and four special tokens, not {vocab}")
    return SpecialTokens(BytePairTokenizer("\n".join(texts), vocab - 4))


def pad(sequences, padding=0, length=None):
    """Token sequences of different lengths as one tensor: (tokens "batch length", lengths "batch"), int64.

    The token `padding` fills the right of each row. length=None is the longest sequence. Raises ValueError if a
    sequence is longer than `length`, or holds other than whole numbers, or if there is none.
    """
    sequences = [torch.as_tensor(sequence) for sequence in sequences]
    for sequence in sequences:
        if len(sequence) and sequence.is_floating_point():
            raise ValueError(f"tokens must be whole numbers, not {sequence.dtype}")
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
        row[: len(sequence)] = sequence
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
    """Examples (tokens, label) as (tokens "batch length", lengths "batch", labels "batch"), padded as pad does.

    Raises ValueError as pad does, or if a label is no whole number.
    """
    tokens, lengths = pad([tokens for tokens, _ in examples], tokenizer.padding, length)
    if wrong := [label for _, label in examples if label != int(label)]:
        raise ValueError(f"labels must be whole numbers, not {wrong[0]}")
    return tokens, lengths, torch.tensor([label for _, label in examples], dtype=torch.int64)


def shakespeare(tokens="characters", vocab=1024, corpus="shakespeare", folder=DATA):
    """Shakespeare as tokens: (tokenizer, {"train": tokens, "valid": tokens, "test": tokens}), int64 "length".

    tokens is "characters" (the vocabulary is that of the text, `vocab` is not used) or "byte_pairs" (`vocab`
    tokens). The tokenizer sees the training split alone. corpus is "shakespeare", all plays split by works, or
    "tinyshakespeare", the one file that is used most for small models; load_text says which of its splits published
    numbers are about.

    Raises CorpusError, and ValueError for an unknown kind of tokens or corpus.
    """
    texts = {split: load_text(split, folder, corpus) for split in SPLITS}
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
    that, or `count` is no whole number of at least 1.
    """
    available = (_starts(tokens, length) - 1) // length + 1
    if not isinstance(count, Integral) or not 1 <= count <= available:
        total = len(tokens)
        raise ValueError(f"{total} tokens hold 1 to {available} windows of length {length}, not {count}")
    return _windows(tokens, torch.arange(count) * available // count * length, length)


def _starts(tokens, length):
    """At how many positions a window, with the target of its last token, can start."""
    check_whole_number("length", length)
    if tokens.dim() != 1:
        raise ValueError(f'tokens must be "length", but have the shape {tuple(tokens.shape)}')
    if len(tokens) <= length:
        raise ValueError(f"a window of length {length} needs {length + 1} tokens, not {len(tokens)}")
    return len(tokens) - length


def _windows(tokens, starts, length):
    positions = starts[:, None] + torch.arange(length)
    return tokens[positions], tokens[positions + 1]
