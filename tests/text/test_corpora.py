"""The corpus and its tokens: a wrong text, a leaky window or another order of the data must be noticed."""

import hashlib
import lzma
import re

import pytest
import torch
from torch.nn import functional as F

from synth_lib.text import corpora
from synth_lib.text.corpora import (
    DATA,
    FILES,
    GLOSS_CLASSES,
    SPLITS,
    TRANSLATIONS,
    CorpusError,
    classification,
    classification_batch,
    dialogues,
    evaluation_windows,
    glosses,
    load_text,
    make_corpus,
    pad,
    random_windows,
    shakespeare,
    translation,
    translation_batch,
    translation_pairs,
)
from synth_lib.text.tokenizers import SpecialTokens, WordTokenizer

README = (DATA / "README.md").read_text(encoding="utf8")


@pytest.fixture(scope="module")
def characters():
    return shakespeare("characters")


def test_splits_are_whole_works_and_share_none():
    texts = {split: load_text(split) for split in SPLITS}
    titles = {split: re.findall(r"(.+)\n+by William Shakespeare", text) for split, text in texts.items()}
    assert titles["valid"] == ["A MIDSUMMER NIGHT'S DREAM", "THE TEMPEST"]
    assert titles["test"] == ["MACBETH", "TWELFTH NIGHT; OR, WHAT YOU WILL"]
    assert len(titles["train"]) == 38 and len({title for some in titles.values() for title in some}) == 42


def test_readme_gives_the_checksums_and_sizes():
    for name, checksum in FILES.items():
        raw = (DATA / name).read_bytes()
        raw = lzma.decompress(raw) if name.endswith(".xz") else raw
        assert hashlib.sha256(raw).hexdigest() == checksum
        assert re.search(rf"{re.escape(name)}.*{len(raw):,}.*{checksum}", README)
    named = set(re.findall(r"`([\w.-]+\.(?:xz|tsv))`", README))
    assert named == set(FILES) == {path.name for path in DATA.iterdir() if path.is_file()} - {"README.md"}


def test_readme_gives_the_rows_of_each_split_and_the_licences():
    tables = {name: translation_pairs(texts) for texts, name in TRANSLATIONS.items()}
    tables |= {"wordnet_gloss8.tsv.xz": glosses(), "synthetic_persona_chat.jsonl.xz": dialogues()}
    for name, splits in tables.items():
        sizes = " / ".join(f"{len(rows):,}" for rows in splits.values())
        assert re.search(rf"{re.escape(name)}.*: {sizes} ", README), (name, sizes)
    licences = set(re.findall(r"`LICENSES/([^`]+)`", README))
    assert licences == {path.name for path in (DATA / "LICENSES").iterdir()}


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(CorpusError, match=r"cannot read .*homeassistant.en-fr.tsv.xz \(No such.*fetch it"):
        translation_pairs("french", tmp_path)
    with pytest.raises(CorpusError, match=r"cannot read .*wordnet_gloss8.tsv.xz \(No such.*fetch it"):
        classification(folder=tmp_path)
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


LOADERS = {
    "shakespeare.valid.txt.xz": lambda folder: load_text("valid", folder),
    "tinyshakespeare.txt.xz": lambda folder: load_text("train", folder, "tinyshakespeare"),
    "homeassistant.en-fr.tsv.xz": lambda folder: translation_pairs("french", folder),
    "wordnet_gloss8.tsv.xz": glosses,
    "synthetic_persona_chat.jsonl.xz": dialogues,
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_changed_word_is_noticed(tmp_path, name):
    raw = lzma.decompress((DATA / name).read_bytes())
    (tmp_path / name).write_bytes(lzma.compress(raw.replace(b"the", b"teh", 1), preset=0))
    with pytest.raises(CorpusError, match=f"{name} is damaged or edited, its sha256 is"):
        LOADERS[name](tmp_path)


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
    with pytest.raises(ValueError, match="'shakespeare' or 'tinyshakespeare', not 'plays'"):
        shakespeare(corpus="plays")
    with pytest.raises(ValueError, match="one of german, french, tatoeba, not 'English'"):
        translation_pairs("English")


def test_characters_round_trip_and_their_vocabulary(characters):
    tokenizer, splits = characters
    assert tokenizer.vocab == 84 and tokenizer.characters == sorted(tokenizer.characters)
    for split, tokens in splits.items():
        assert tokens.dtype == torch.int64 and tokens.ndim == 1
        assert tokenizer.decode(tokens) == load_text(split)


def test_byte_pairs_see_the_training_split_alone(tmp_path, monkeypatch):
    texts = {"train": "aa aa aa", "valid": "bb bb bb bb bb", "test": "cc cc cc cc cc"}
    for split, text in texts.items():
        (tmp_path / f"shakespeare.{split}.txt.xz").write_bytes(lzma.compress(text.encode()))
        monkeypatch.setitem(FILES, f"shakespeare.{split}.txt.xz", hashlib.sha256(text.encode()).hexdigest())
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


@pytest.fixture(scope="module")
def german():
    return translation("german", vocab=1000)


def test_pairs_and_glosses_are_what_they_say():
    assert ("Connect to Cloudflare", "Mit Cloudflare verbinden") in translation_pairs("german")["train"]
    assert ("My uncle runs a hotel.", "Mein Onkel hat ein Hotel.") in translation_pairs("tatoeba")["test"]
    assert ("Current gas usage", "Consommation de gaz actuelle") in translation_pairs("french")["train"]
    assert ("forepart of a hoof", GLOSS_CLASSES.index("body")) in glosses()["valid"]
    assert ("Italian composer of operas (1801-1835)", GLOSS_CLASSES.index("person")) in glosses()["train"]
    assert {label for _, label in glosses()["test"]} == set(range(8))


@pytest.mark.parametrize("load", [*(lambda texts=texts: translation_pairs(texts) for texts in TRANSLATIONS), glosses])
def test_no_text_is_in_two_splits(load):
    firsts = [{" ".join(re.findall(r"\w+", row[0].lower())) for row in rows} for rows in load().values()]
    assert sum(map(len, firsts)) == len(set.union(*firsts))


def test_tiny_shakespeare_is_split_as_its_published_numbers_are():
    """nanoGPT: characters 0 to int(0.9 * n) to train on, the others to measure on; 1,003,854 and 111,540 of them."""
    text = lzma.decompress((DATA / "tinyshakespeare.txt.xz").read_bytes()).decode()
    train, valid, test = (load_text(split, corpus="tinyshakespeare") for split in SPLITS)
    assert valid + train == text[:1_003_854] and test == text[1_003_854:] and len(test) == 111_540
    assert len(valid) == pytest.approx(0.05 * 1_003_854, abs=1)
    tokenizer, splits = shakespeare(corpus="tinyshakespeare")
    assert tokenizer.vocab == 65 and tokenizer.decode(splits["test"]) == test


def test_dialogues_are_whole_and_share_no_person_with_the_test_split():
    splits = dialogues()
    people = {split: {frozenset(one) for chat in chats for one in chat.personas} for split, chats in splits.items()}
    assert not people["test"] & (people["train"] | people["valid"])
    turns = [tuple(chat.turns) for chats in splits.values() for chat in chats]
    assert len(set(turns)) == len(turns)  # so no dialogue is in two splits
    for chat in splits["valid"]:
        assert len(chat.personas) == 2 and min(map(len, chat.personas)) >= 1 and len(chat.turns) >= 2
        assert all(isinstance(text, str) and text for text in [*chat.turns, *sum(chat.personas, [])])


def test_a_translation_corpus_keeps_every_pair_and_its_text(german):
    texts = translation_pairs("german")
    assert german.tokenizer.vocab == 1000 and german.texts == texts and set(german.dropped.values()) == {0}
    for split, examples in german.splits.items():
        assert len(examples) == len(texts[split])
        for (source, target), (english, translated) in list(zip(examples, texts[split], strict=True))[::50]:
            assert german.tokenizer.decode(source) == english and german.tokenizer.decode(target) == translated
    longest = max(len(side) for some in german.splits.values() for pair in some for side in pair)
    assert german.max_length == longest + 1


def test_a_maximum_length_drops_whole_examples_and_counts_them(german):
    some = {"valid": german.texts["valid"], "test": german.texts["test"]}
    short = make_corpus(german.tokenizer, some, lambda pair: tuple(map(german.tokenizer.encode, pair)), 20)
    for split, examples in ((split, german.splits[split]) for split in some):
        fits = [max(map(len, pair)) + 1 <= 20 for pair in examples]
        texts = [text for text, fit in zip(german.texts[split], fits, strict=True) if fit]
        assert short.texts[split] == texts and short.dropped[split] == fits.count(False) > 0
        # An off-by-one would leave no pair that fills the 20 places.
        assert max(len(side) + 1 for pair in short.splits[split] for side in pair) == 20
    assert short.max_length == 20
    with pytest.raises(ValueError, match="max_length is 2, but every example of the split train is longer"):
        make_corpus(german.tokenizer, {"train": ["one two"]}, lambda text: (german.tokenizer.encode(text * 9), 0), 2)
    for wrong in (0, 2.5):
        with pytest.raises(ValueError, match="max_length is .* whole number"):
            make_corpus(german.tokenizer, {"train": ["a"]}, lambda text: (german.tokenizer.encode(text), 0), wrong)
    with pytest.raises(ValueError, match="at least 260.*not 259"):
        translation("german", vocab=259)


def test_a_classification_needs_no_place_for_a_special_token():
    corpus = classification(vocab=260)
    assert corpus.max_length == max(len(tokens) for some in corpus.splits.values() for tokens, _ in some)
    assert all(label == text[1] for (_, label), text in zip(corpus.splits["test"], corpus.texts["test"], strict=True))
    again = make_corpus(corpus.tokenizer, corpus.splits, lambda example: example, corpus.max_length - 1)
    assert 1 <= sum(again.dropped.values()) <= 3


@pytest.mark.parametrize("load", [translation, classification])
def test_the_vocabulary_comes_from_the_training_split_alone(tmp_path, monkeypatch, load):
    rows = [("train", "plant", "xyxyxy ab"), ("train", "animal", "xyxyxy cd"), ("train", "animal", "cd xyxy")]
    rows += [("train", "plant", "xyxyxy ef"), *((split, kind, f"qzqz{number}") for split in ("valid", "test")
             for kind in ("plant", "animal") for number in range(9))]  # fmt: skip
    raw = "".join("\t".join(row) + "\n" for row in rows).encode()
    for name in ("wordnet_gloss8.tsv.xz", TRANSLATIONS["german"]):
        (tmp_path / name).write_bytes(lzma.compress(raw))
        monkeypatch.setitem(FILES, name, hashlib.sha256(raw).hexdigest())
    tokenizer = load(vocab=261, folder=tmp_path).tokenizer
    assert len(tokenizer.encode("xyxy")) == 2 and len(tokenizer.encode("qzqz")) == 4


def test_one_vocabulary_knows_both_languages(german):
    assert len(german.tokenizer.encode(" the")) == len(german.tokenizer.encode(" nicht")) == 1


def test_half_a_token_or_label_is_refused_and_not_cut(german):
    with pytest.raises(ValueError, match="tokens must be whole numbers, not torch.float32"):
        pad([[1, 2], [1.7]])
    with pytest.raises(ValueError, match="labels must be whole numbers, not 1.7"):
        classification_batch([(torch.tensor([5]), 1.7)], german.tokenizer)
    assert pad([[], [1]])[0].tolist() == [[0], [1]]  # an empty list has no numbers


def test_windows_name_what_does_not_fit():
    tokens = torch.arange(20)
    with pytest.raises(ValueError, match="windows of length 3, not 2.0"):
        evaluation_windows(tokens, 3, 2.0)
    for windows in (random_windows, evaluation_windows):
        with pytest.raises(ValueError, match=r'tokens must be "length", but have the shape \(10, 2\)'):
            windows(tokens.view(10, 2), 3, 1, *[torch.Generator()] * (windows is random_windows))


def test_a_split_without_an_example_is_named(german):
    with pytest.raises(ValueError, match="the split valid has no example"):
        make_corpus(german.tokenizer, {"train": ["a"], "valid": []}, lambda text: (torch.tensor([1]), 0))


def test_padding_stands_on_the_right():
    tokens, lengths = pad([torch.tensor([5, 6, 7]), [8], torch.tensor([], dtype=torch.int64)])
    assert tokens.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]] and lengths.tolist() == [3, 1, 0]
    assert tokens.dtype == lengths.dtype == torch.int64
    tokens, _ = pad([[5], [6, 7]], padding=9, length=4)
    assert tokens.tolist() == [[5, 9, 9, 9], [6, 7, 9, 9]]
    with pytest.raises(ValueError, match="length is 2, but the longest sequence has 3 tokens"):
        pad([[1, 2, 3]], length=2)
    with pytest.raises(ValueError, match="at least one sequence, not 0"):
        pad([])


def test_the_target_of_a_position_is_the_token_after_it():
    tokenizer = SpecialTokens(WordTokenizer(["a b c d"]))
    examples = [(torch.tensor([4, 5]), torch.tensor([6, 7, 4])), (torch.tensor([7]), torch.tensor([5]))]
    source, source_lengths, inputs, targets = translation_batch(examples, tokenizer)
    assert source.tolist() == [[4, 5, 2], [7, 2, 0]] and source_lengths.tolist() == [3, 2]
    assert inputs.tolist() == [[1, 6, 7, 4], [1, 5, 0, 0]] and targets.tolist() == [[6, 7, 4, 2], [5, 2, 0, 0]]
    for tensor in translation_batch(examples, tokenizer, length=6)[::2]:
        assert tensor.shape == (2, 6)
    # The loss of padded positions is left out: logits there may be anything.
    logits = torch.randn(2, 4, tokenizer.vocab, generator=torch.Generator().manual_seed(0))
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=tokenizer.padding)
    logits[1, 2:] += torch.arange(tokenizer.vocab) * 100.0
    again = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=tokenizer.padding)
    assert torch.equal(loss, again)


def test_a_classification_batch_has_labels():
    tokenizer = SpecialTokens(WordTokenizer(["a b c d"]))
    tokens, lengths, labels = classification_batch([(torch.tensor([4, 5]), 3), (torch.tensor([6]), 0)], tokenizer, 3)
    assert tokens.tolist() == [[4, 5, 0], [6, 0, 0]] and lengths.tolist() == [2, 1] and labels.tolist() == [3, 0]
    assert labels.dtype == torch.int64


# Replies


def two_chats(monkeypatch):
    chats = [
        corpora.Dialogue([["I begin.", "I cook."], ["I reply."]], [f"{name} {turn}" for turn in range(5)])
        for name in ("cat", "dog")
    ]
    monkeypatch.setattr(corpora, "dialogues", lambda folder=None: {"train": chats, "valid": chats[:1], "test": chats})


def test_a_source_has_both_personas_and_the_last_turns(monkeypatch):
    """That of the one who replies stands behind that of the other."""
    two_chats(monkeypatch)
    corpus = corpora.replies(vocab=300, max_length=60, turns=2)
    assert corpus.texts["valid"] == [
        ("I begin. I cook.\nI reply.\ncat 0", "cat 1"),
        ("I reply.\nI begin. I cook.\ncat 0\ncat 1", "cat 2"),
        ("I begin. I cook.\nI reply.\ncat 1\ncat 2", "cat 3"),
        ("I reply.\nI begin. I cook.\ncat 2\ncat 3", "cat 4"),
    ]
    assert len(corpus.texts["train"]) == 8 and corpus.cut == {"train": 0, "valid": 0, "test": 0}
    for split, examples in corpus.splits.items():
        for (source, reply), (text, answer) in zip(examples, corpus.texts[split], strict=True):
            ends = (source == corpus.tokenizer.separator).nonzero()[:, 0].tolist()
            parts = [source[start + 1 : end] for start, end in zip([-1, *ends], [*ends, len(source)], strict=True)]
            assert list(map(corpus.tokenizer.decode, parts)) == text.split("\n")
            assert corpus.tokenizer.decode(reply) == answer


def test_a_long_source_loses_its_beginning_and_the_corpus_counts_it(monkeypatch):
    two_chats(monkeypatch)
    whole, cut = (corpora.replies(vocab=300, max_length=length) for length in (60, 12))
    lengths = [len(source) for source, _ in whole.splits["train"]]
    for (source, reply), (its_end, same) in zip(whole.splits["train"], cut.splits["train"], strict=True):
        assert torch.equal(its_end, source[-11:]) and torch.equal(reply, same)
    assert cut.cut["train"] == sum(length > 11 for length in lengths) > 0 and cut.texts == whole.texts


def test_the_most_replies_lie_at_even_distances(monkeypatch):
    two_chats(monkeypatch)
    every, few = corpora.replies(vocab=300, max_length=60), corpora.replies(vocab=300, max_length=60, most=4)
    assert few.texts["test"] == every.texts["test"][::2] and few.texts["valid"] == every.texts["valid"]
    assert few.texts["train"] == every.texts["train"]
    with pytest.raises(ValueError, match="turns is 0"):
        corpora.replies(turns=0)
