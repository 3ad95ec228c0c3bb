"""The baselines: on texts small enough to know the answer, and the table of data/README.md."""

import re

import pytest

from synth_lib.text.baselines import bleu, copy_nearest, largest_class, tfidf_logistic_regression
from synth_lib.text.corpora import DATA, glosses, translation_pairs
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


def test_bleu_is_that_of_sacrebleu():
    assert bleu(["the cat sat on the mat"], ["the cat sat on the mat"])[0] == pytest.approx(100)
    # By hand: 5 of 6, 3 of 5, 2 of 4 and 1 of 3 n-grams are right, at equal length.
    value, signature = bleu(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert "tok:13a" in signature and "version:" in signature
    # A text that is too short is punished: the reference is what is long.
    assert bleu(["the cat sat on"], ["the cat sat on the mat"])[0] == pytest.approx(100 * 2.718281828 ** (1 - 6 / 4))
    with pytest.raises(ValueError, match="1 translations but 2 references"):
        bleu(["a"], ["a", "b"])


def test_the_largest_class_is_that_of_training():
    train, test = [("", 0), ("", 1), ("", 1)], [("", 0), ("", 0), ("", 0), ("", 1)]
    assert largest_class(train, test) == 0.25


def test_a_linear_classifier_reads_words():
    train = [("red fruit", 0), ("green fruit", 0), ("red bird", 1), ("green bird", 1)] * 5
    assert tfidf_logistic_regression(train, [("old fruit", 0), ("old bird", 1), ("fruit", 1)]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("language", ["german", "french"])
def test_readme_gives_the_bleu_of_copying(language):
    pairs = translation_pairs(language)
    sources, references = zip(*pairs["test"], strict=True)
    value, signature = bleu(copy_nearest(pairs["train"], list(sources)), list(references))
    stated = re.search(rf"English to {language.title()}.*BLEU ([\d.]+)", README)[1]
    assert value == pytest.approx(float(stated), abs=0.06)
    assert re.sub("version.*", "", signature) in README  # another version of sacrebleu signs with its own number


def test_readme_gives_the_accuracy_of_both_classifiers():
    splits = glosses()
    for name, baseline in (("largest class", largest_class), ("logistic regression", tfidf_logistic_regression)):
        stated = float(re.search(rf"{name}.*\| ([\d.]+) %", README)[1])
        assert 100 * baseline(splits["train"], splits["test"]) == pytest.approx(stated, abs=0.1)


def test_copying_does_not_solve_the_grammar():
    splits = sentences(train=3_000, valid=1, test=300, unseen=1)
    train = [(one.english, one.german) for one in splits["train"]]
    copies = copy_nearest(train, [one.english for one in splits["test"]])
    assert score(splits["test"], copies)["all"] == (0, 300)
