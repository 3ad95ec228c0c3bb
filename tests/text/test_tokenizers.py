"""The tokenizers: what they encode comes back, and no text turns into a special token."""

import subprocess
import sys

import pytest
import torch

from synth_lib.text.corpora import DATA, load_text
from synth_lib.text.tokenizers import BytePairTokenizer, CharacterTokenizer, SpecialTokens, WordTokenizer

TEXT = "To be, or not to be: that is the question.\n" * 20


def test_a_character_outside_the_training_split_is_named():
    tokenizer = CharacterTokenizer("abc")
    assert tokenizer.encode("cab").tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match="the vocabulary of 3 characters has no 'é'"):
        tokenizer.encode("cabé")


def test_byte_pairs_round_trip_any_text():
    tokenizer = BytePairTokenizer(TEXT, 270)
    assert tokenizer.vocab == 270
    for text in (TEXT, "  two  spaces\n\n", "café and 中文", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(TEXT)) < len(TEXT)
    assert BytePairTokenizer("to be", 1000).vocab < 1000
    with pytest.raises(ValueError, match="at least 256.*not 255"):
        BytePairTokenizer(TEXT, 255)


def test_byte_pairs_merge_the_most_frequent_pair_first():
    tokenizer = BytePairTokenizer("cd cd cd ab ab ab ab", 257)
    assert len(tokenizer.encode("ab")) == 1 and len(tokenizer.encode("cd")) == 2


def test_no_text_can_turn_into_a_special_token():
    names = ["<padding>", "<start>", "<end>", "<separator>"]
    tokenizer = SpecialTokens(BytePairTokenizer(" ".join(names * 50), 320))
    assert (tokenizer.padding, tokenizer.start, tokenizer.end, tokenizer.separator) == (0, 1, 2, 3)
    for name in names:
        tokens = tokenizer.encode(name)
        assert tokens.min() >= 4 and tokens.dtype == torch.int64 and tokenizer.decode(tokens) == name
    assert tokenizer.names(torch.tensor([0, 1, 2, 3])) == names
    assert tokenizer.vocab == tokenizer.tokenizer.vocab + 4 <= 324


def test_special_tokens_are_left_out_of_the_text_and_the_first_end_ends_it():
    tokenizer = SpecialTokens(WordTokenizer(["a b c"]))
    a, b, c = tokenizer.encode("a b c").tolist()
    assert (a, b, c) == (4, 5, 6) and tokenizer.vocab == 7
    assert tokenizer.decode([1, a, 3, b, 0, 2, c, 2, 0]) == "a b"
    assert tokenizer.decode([2]) == tokenizer.decode([]) == ""
    assert tokenizer.names([1, c, 2]) == ["<start>", "c", "<end>"]
    for wrong in (-1, 7):
        with pytest.raises(ValueError, match=f"between 0 and 6, not {wrong}"):
            tokenizer.decode([a, wrong])
    with pytest.raises(ValueError, match="the vocabulary of 3 words has no 'd'"):
        tokenizer.encode("a d")


@pytest.mark.parametrize("kind", [CharacterTokenizer, BytePairTokenizer, lambda text: WordTokenizer([text])])
def test_a_token_that_does_not_exist_is_no_text(kind):
    """Not the last one for -1, and not left out."""
    tokenizer = kind("a b c")
    assert tokenizer.decode(tokenizer.encode("a")) == "a" and tokenizer.decode([]) == ""
    for wrong in (-1, tokenizer.vocab):
        with pytest.raises(ValueError, match=f"between 0 and {tokenizer.vocab - 1}, not {wrong}"):
            tokenizer.decode([0, wrong])


@pytest.mark.parametrize("tokens", [[[0, 1]], 0, [0.5], [0.0], [True]])
@pytest.mark.parametrize("kind", [CharacterTokenizer, lambda text: SpecialTokens(CharacterTokenizer(text))])
def test_what_is_no_list_of_tokens_is_refused(kind, tokens):
    """A whole batch, one token alone; and half a token, which was left out as if it were a special one."""
    with pytest.raises(ValueError, match='tokens must be (whole numbers|"length", but have the shape)'):
        kind("abc").decode(tokens)


def test_byte_pairs_name_what_they_cannot_do():
    for vocab in (300.5, None, True):
        with pytest.raises(ValueError, match=f"vocab is {vocab}, but must be a whole number"):
            BytePairTokenizer("abc", vocab)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        BytePairTokenizer("abc").encode("a\ud800")


def test_byte_pairs_are_the_same_in_another_process():
    code = "from tests.text.test_tokenizers import small; print(small())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=DATA.parent)
    assert run.stdout.decode("utf8").strip() == small()


def small():
    return BytePairTokenizer(load_text("test")[:20_000], 500).model.to_str()
