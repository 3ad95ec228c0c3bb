"""Texts as tokens: characters, byte-pairs or words, and special tokens before them."""

import tokenizers
import torch

from synth_lib.shapes import check_whole_number


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
        """The text of tokens "length". Raises ValueError for a token that does not exist."""
        return "".join(self.characters[token] for token in _checked(tokens, self.vocab))


class BytePairTokenizer:
    """Byte-pair tokens: starting from the 256 bytes, the most frequent neighbours in `text` become one token.

    `vocab` is the number of tokens, at least 256. The attribute of the same name is what was reached: a short
    text has fewer pairs to merge. Any text that UTF-8 can write can be encoded, since every byte is a token.
    The same text and size give the same tokens.

    Raises ValueError if `vocab` is no whole number of at least 256.
    """

    def __init__(self, text, vocab=1024):
        check_whole_number("vocab", vocab)
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
        """Tokens, int64 "length". Raises ValueError for half of a surrogate pair, which UTF-8 cannot write."""
        text.encode("utf8")
        return torch.tensor(self.model.encode(text).ids, dtype=torch.int64)

    def decode(self, tokens):
        """The text of tokens "length". Raises ValueError for a token that does not exist."""
        return self.model.decode(_checked(tokens, self.vocab))


class WordTokenizer:
    """One token per word, words being what white space parts; the vocabulary is the sorted words of `texts`."""

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
        """The words of tokens "length", one space between them. Raises ValueError for a token that does not exist."""
        return " ".join(self.words[token] for token in _checked(tokens, self.vocab))


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
        tokens = _checked(tokens, self.vocab)
        if self.end in tokens:
            tokens = tokens[: tokens.index(self.end)]
        return self.tokenizer.decode([token - 4 for token in tokens if token >= 4])

    def names(self, tokens):
        """One string for each of tokens "length", for the labels of a plot."""
        special = ["<padding>", "<start>", "<end>", "<separator>"]
        tokens = _checked(tokens, self.vocab)
        return [special[token] if token < 4 else self.tokenizer.decode([token - 4]) for token in tokens]


def _checked(tokens, vocab):
    """The tokens as a list of whole numbers below `vocab`: a list would count a negative one from its end."""
    tokens = torch.as_tensor(tokens)
    if tokens.dim() != 1:
        raise ValueError(f'tokens must be "length", but have the shape {tuple(tokens.shape)}: one text at a time')
    if len(tokens) and (tokens.is_floating_point() or tokens.dtype == torch.bool):
        raise ValueError(f"tokens must be whole numbers, not {tokens.dtype}")
    tokens = tokens.tolist()
    wrong = [token for token in tokens if not 0 <= token < vocab]
    if wrong:
        raise ValueError(f"tokens must lie between 0 and {vocab - 1}, not {wrong[0]}")
    return tokens
