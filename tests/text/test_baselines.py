"""The baselines: on texts small enough to know the answer, and the table of data/README.md."""

import math
import re
from collections import Counter

import pytest
import torch

from synth_lib.text.baselines import bleu, copy_nearest, ngram_loss, rouge_l, tfidf_logistic_regression
from synth_lib.text.corpora import DATA, evaluation_windows, glosses, random_windows, shakespeare, translation_pairs
from synth_lib.text.grammar import score, sentences

README = (DATA / "README.md").read_text(encoding="utf8")


def test_the_nearest_sentence_is_copied():
    train = [("the red car", "das rote Auto"), ("the blue car", "das blaue Auto"), ("a red house", "ein rotes Haus")]
    assert copy_nearest(train, ["the blue cars", "A RED house", "the red car"]) == [
        "das blaue Auto",
        "ein rotes Haus",
        "das rote Auto",
    ]


def test_rare_words_count_the_more():
    train = [("the dog", "1"), ("my cat", "2"), ("the man", "3"), ("the end", "4")]
    assert copy_nearest(train, ["the cat"]) == ["2"]


def test_copying_against_loops():
    """TF-IDF by hand, of words and word pairs, and every cosine by itself."""
    splits = sentences(train=60, valid=1, test=20, unseen=1)
    train = [(one.english, one.german) for one in splits["train"]]

    def counts(text):
        words = text.lower().split()  # the grammar puts a space before each mark
        return Counter([*words, *zip(words, words[1:], strict=False)])

    documents = Counter(term for source, _ in train for term in counts(source))

    def vector(text):
        found = {
            term: (1 + math.log(count)) * (1 + math.log((1 + len(train)) / (1 + documents[term])))
            for term, count in counts(text).items() if term in documents
        }  # fmt: skip
        norm = math.sqrt(sum(weight**2 for weight in found.values()))
        return {term: weight / norm for term, weight in found.items()}

    known = [vector(source) for source, _ in train]
    for one in splits["test"]:
        query = vector(one.english)
        cosines = [sum(weight * other.get(term, 0) for term, weight in query.items()) for other in known]
        assert copy_nearest(train, [one.english]) == [train[cosines.index(max(cosines))][1]]


def test_bleu_is_that_of_sacrebleu():
    assert bleu(["the cat sat on the mat"], ["the cat sat on the mat"])[0] == pytest.approx(100)
    # By hand: 5 of 6, 3 of 5, 2 of 4 and 1 of 3 n-grams are right, at equal length.
    value, signature = bleu(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert bleu(["the cat sat on a mat"], ["the cat sat on the mat"], order=1)[0] == pytest.approx(100 * 5 / 6)
    assert "tok:13a" in signature and "version:" in signature
    # A text that is too short is punished: the reference is what is long.
    assert bleu(["the cat sat on"], ["the cat sat on the mat"])[0] == pytest.approx(100 * 2.718281828 ** (1 - 6 / 4))
    with pytest.raises(ValueError, match="1 translations but 2 references"):
        bleu(["a"], ["a", "b"])


@pytest.mark.parametrize(
    ("text", "reference", "value"),
    [
        ("the cat sat", "The cat sat!", 100),
        ("police kill the gunman", "police killed the gunman", 75),  # police the gunman
        ("the gunman kill police", "police killed the gunman", 50),  # the gunman: the order counts
        ("b a c", "a x b y c", 100 * 2 * 2 / 8),  # a gap is no fault
        ("a a a", "a", 50),  # a word of the reference is found once
        ("I'm", "I m", 100),
        ("dog", "cat", 0),
        ("", "cat", 0),
        ("!", "?", 0),
    ],
)
def test_rouge_l_by_hand(text, reference, value):
    assert rouge_l([text], [reference]) == pytest.approx(value)
    assert rouge_l([text, "x y"], [reference, "x"]) == pytest.approx((value + 100 * 2 / 3) / 2)  # the mean over texts


def test_rouge_l_needs_pairs():
    with pytest.raises(ValueError, match="2 texts but 1 references"):
        rouge_l(["a", "b"], ["a"])


def test_a_linear_classifier_reads_words():
    train = [("red fruit", 0), ("green fruit", 0), ("red bird", 1), ("green bird", 1)] * 5
    assert tfidf_logistic_regression(train, [("old fruit", 0), ("old bird", 1), ("fruit", 1)]) == pytest.approx(2 / 3)


NAMES = {"german": "German, interface", "french": "French, interface", "tatoeba": "German, everyday"}


@pytest.mark.parametrize("texts", NAMES)
def test_readme_gives_the_bleu_of_copying(texts):
    pairs = translation_pairs(texts)
    sources, references = zip(*pairs["test"], strict=True)
    value, signature = bleu(copy_nearest(pairs["train"], list(sources)), list(references))
    stated = re.search(rf"English to {NAMES[texts]}.*BLEU ([\d.]+)", README)[1]
    assert value == pytest.approx(float(stated), abs=0.06)
    assert re.sub("version.*", "", signature) in README  # another version of sacrebleu signs with its own number


def test_readme_gives_the_accuracy_of_both_classifiers():
    splits = glosses()
    (largest, _), *_ = Counter(label for _, label in splits["train"]).most_common()
    share = sum(label == largest for _, label in splits["test"]) / len(splits["test"])
    linear = tfidf_logistic_regression(splits["train"], splits["test"])
    for name, value in (("largest class", share), ("logistic regression", linear)):
        stated = float(re.search(rf"{name}.*\| ([\d.]+) %", README)[1])
        assert 100 * value == pytest.approx(stated, abs=0.1)


def test_ngrams_against_loops():
    """The definition, token by token, in Python's own numbers; tokens 5 and 6 are never seen in training."""
    generator = torch.Generator().manual_seed(0)
    train = torch.randint(5, (200,), generator=generator)
    inputs, targets = random_windows(torch.randint(7, (60,), generator=generator), 6, 9, generator)
    text = train.tolist()
    grams = Counter(tuple(text[i : i + n]) for n in range(1, 9) for i in range(len(text) - n + 1))
    contexts = Counter(tuple(text[i : i + n]) for n in range(9) for i in range(len(text) - n))
    contexts[()] = len(text)

    def probability(context, token):
        count, total = grams[(*context, token)], contexts[context]
        if len(context) < 2:
            return (count + 1) / (total + 7)
        return (count + 10 * probability(context[1:], token)) / (total + 10)

    for order in range(1, 9):
        losses = []
        for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
            for position, token in enumerate(answers):
                context = tuple(row[max(0, position + 2 - order) : position + 1]) if order > 1 else ()
                losses.append(-math.log(probability(context, token)))
        assert ngram_loss(train, inputs, targets, order, 7) == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def test_ngrams_refuse_what_they_cannot_count():
    tokens = torch.tensor([0, 1, 2, 3])
    windows = tokens[None, :3], tokens[None, 1:]
    with pytest.raises(ValueError, match="order is 0"):
        ngram_loss(tokens, *windows, 0, 4)
    with pytest.raises(ValueError, match="order is 8, too large for a vocab of 1024"):
        ngram_loss(tokens, *windows, 8, 1024)
    with pytest.raises(ValueError, match="vocab is 3, but there is a token 3"):
        ngram_loss(tokens, *windows, 2, 3)


@pytest.mark.parametrize("name", ["all plays", "tiny Shakespeare"])
def test_readme_gives_the_losses_of_ngrams(name):
    if name == "all plays":
        tokenizer, splits = shakespeare()
        train, windows = splits["train"], evaluation_windows(splits["valid"], 32, 128)
    else:
        tokenizer, splits = shakespeare(corpus="tinyshakespeare")
        train, windows = splits["train"], evaluation_windows(splits["test"], 64, 1742)
    for order in (2, 6):
        stated = float(re.search(rf"{name}.*\({order}-gram\) \| ([\d.]+) nats", README)[1])
        assert ngram_loss(train, *windows, order, tokenizer.vocab) == pytest.approx(stated, abs=0.0006)


def test_copying_does_not_solve_the_grammar():
    splits = sentences(train=3_000, valid=1, test=300, unseen=1)
    train = [(one.english, one.german) for one in splits["train"]]
    copies = copy_nearest(train, [one.english for one in splits["test"]])
    assert score(splits["test"], copies)["all"] == (0, 300)
