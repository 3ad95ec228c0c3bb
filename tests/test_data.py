"""The corpus and its tokens: a wrong text, a leaky window or another order of the data must be noticed."""

import hashlib
import lzma
import re
import subprocess
import sys

import pytest
import torch

from synth_lib.data import (
    DATA,
    SHA256,
    BytePairTokenizer,
    CharacterTokenizer,
    CorpusError,
    evaluation_windows,
    load_text,
    random_windows,
    shakespeare,
)

TEXT = "To be, or not to be: that is the question.\n" * 20


@pytest.fixture(scope="module")
def characters():
    return shakespeare("characters")


def test_splits_are_whole_works_and_share_none():
    texts = {split: load_text(split) for split in SHA256}
    titles = {split: re.findall(r"(.+)\n+by William Shakespeare", text) for split, text in texts.items()}
    assert titles["valid"] == ["A MIDSUMMER NIGHT'S DREAM", "THE TEMPEST"]
    assert titles["test"] == ["MACBETH", "TWELFTH NIGHT; OR, WHAT YOU WILL"]
    assert len(titles["train"]) == 38 and len({title for some in titles.values() for title in some}) == 42


def test_readme_gives_the_checksums_and_sizes():
    readme = (DATA / "README.md").read_text(encoding="utf8")
    for split, checksum in SHA256.items():
        raw = lzma.decompress((DATA / f"shakespeare.{split}.txt.xz").read_bytes())
        assert hashlib.sha256(raw).hexdigest() == checksum
        assert re.search(rf"shakespeare\.{split}\.txt\.xz.*{len(raw):,}.*{checksum}", readme)
    named = set(re.findall(r"`([\w.-]+\.xz)`", readme))
    assert named == {path.name for path in DATA.glob("*.xz")}


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(CorpusError, match=r"cannot read .*shakespeare.train.txt.xz \(No such.*fetch it"):
        load_text("train", tmp_path)


def damage_cut(raw):
    return raw[: len(raw) // 2]


def damage_flip(raw):
    return raw[:-200] + bytes([raw[-200] ^ 1]) + raw[-199:]


def damage_text(raw):
    return lzma.compress(lzma.decompress(raw).replace(b"love", b"hate", 1))


def damage_empty(raw):
    return b""


@pytest.mark.parametrize("damage", [damage_cut, damage_flip, damage_text, damage_empty])
def test_a_damaged_file_is_one_sentence(tmp_path, damage):
    name = "shakespeare.test.txt.xz"
    (tmp_path / name).write_bytes(damage((DATA / name).read_bytes()))
    with pytest.raises(CorpusError, match="is damaged.*fetch it again") as caught:
        load_text("test", tmp_path)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="one of train, valid, test, not 'dev'"):
        load_text("dev")
    with pytest.raises(ValueError, match="'characters' or 'byte_pairs', not 'words'"):
        shakespeare("words")


def test_characters_round_trip_and_their_vocabulary(characters):
    tokenizer, splits = characters
    assert tokenizer.vocab == 84 and tokenizer.characters == sorted(tokenizer.characters)
    for split, tokens in splits.items():
        assert tokens.dtype == torch.int64 and tokens.ndim == 1
        assert tokenizer.decode(tokens) == load_text(split)


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


def test_byte_pairs_are_the_same_in_another_process():
    code = "from synth_lib.data import *; print(BytePairTokenizer(load_text('test'), 1000).model.to_str())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=DATA.parent)
    here = BytePairTokenizer(load_text("test"), 1000).model.to_str()
    assert run.stdout.decode("utf8").strip() == here


def test_byte_pairs_see_the_training_split_alone(tmp_path, monkeypatch):
    texts = {"train": "aa aa aa", "valid": "bb bb bb bb bb", "test": "cc cc cc cc cc"}
    for split, text in texts.items():
        (tmp_path / f"shakespeare.{split}.txt.xz").write_bytes(lzma.compress(text.encode()))
        monkeypatch.setitem(SHA256, split, hashlib.sha256(text.encode()).hexdigest())
    _, splits = shakespeare("byte_pairs", vocab=258, folder=tmp_path)
    assert len(splits["train"]) < len("aa aa aa") and len(splits["valid"]) == len(texts["valid"])
    with pytest.raises(ValueError, match="has no 'b'"):
        shakespeare("characters", folder=tmp_path)


def test_targets_are_the_next_tokens_and_every_start_is_drawn():
    tokens = torch.arange(100, 110)
    inputs, targets = random_windows(tokens, length=3, batch=500, generator=torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (500, 3)
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(3)) and torch.equal(targets, inputs + 1)
    # The last start has the last token as its last target: a range that is one too short would miss it.
    assert sorted(set(inputs[:, 0].tolist())) == list(range(100, 107))


def test_the_order_of_the_data_depends_on_the_generator_alone():
    tokens = torch.arange(1000)
    first = random_windows(tokens, 5, 7, torch.Generator().manual_seed(3))
    torch.manual_seed(99)
    torch.rand(5)
    second = random_windows(tokens, 5, 7, torch.Generator().manual_seed(3))
    other = random_windows(tokens, 5, 7, torch.Generator().manual_seed(4))
    assert torch.equal(first[0], second[0]) and not torch.equal(first[0], other[0])


@pytest.mark.parametrize("size, length, count", [(31, 5, 6), (30, 5, 5), (1000, 7, 10), (6, 5, 1)])
def test_evaluation_windows_are_fixed_and_share_no_target(size, length, count):
    tokens = torch.arange(size)
    inputs, targets = evaluation_windows(tokens, length, count)
    assert inputs.shape == (count, length) and torch.equal(targets, inputs + 1)
    assert len(set(targets.flatten().tolist())) == count * length
    again = evaluation_windows(tokens, length, count)
    assert torch.equal(inputs, again[0])


def test_evaluation_windows_reach_over_the_whole_text():
    inputs, _ = evaluation_windows(torch.arange(10_001), 10, 100)
    gaps = inputs[1:, 0] - inputs[:-1, 0]
    assert inputs[0, 0] == 0 and inputs[-1, 0] >= 9_900 and gaps.min() == gaps.max() == 100


def test_too_few_tokens_are_one_sentence():
    with pytest.raises(ValueError, match="needs 6 tokens, not 5"):
        random_windows(torch.arange(5), 5, 1, torch.Generator())
    with pytest.raises(ValueError, match="31 tokens hold 1 to 6 windows of length 5, not 7"):
        evaluation_windows(torch.arange(31), 5, 7)
    with pytest.raises(ValueError, match="30 tokens hold 1 to 5 windows"):
        evaluation_windows(torch.arange(30), 5, 6)  # the last target would be token 30
