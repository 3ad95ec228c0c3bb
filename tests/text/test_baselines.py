"""The baselines: on texts small enough to know the answer, and the table of data/README.md."""

import math
import re
from collections import Counter

import pytest
import torch

from synth_lib.text.baselines import (
    EXTRA,
    PER_FOLLOWER,
    bleu,
    copy_nearest,
    ngram_loss,
    rouge_l,
    tfidf_logistic_regression,
    tuned_ngram_loss,
    words_for_rouge_l,
)
from synth_lib.text.corpora import DATA, evaluation_windows, glosses, random_windows, shakespeare, translation_pairs
from synth_lib.text.grammar import score, sentences

README = (DATA / "README.md").read_text(encoding="utf8")
WITTEN_BELL = {"extra": 0, "per_follower": 1}  # their method C


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
    with pytest.raises(ValueError, match="0 translations but 0 references"):
        bleu([], [])
    for order in (0, 1.5):  # 0 gave a BLEU of 0
        with pytest.raises(ValueError, match=f"order is {order}"):
            bleu(["a"], ["a"], order)


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


def test_words_for_rouge_l_are_those_that_raise_it_most_one_after_the_other():
    references = ["I am so glad!", "so am I", "What do you do?", "do you know what I do", "..."]
    chosen = []
    while True:
        words = Counter(re.findall("[a-z]+", " ".join(references).lower())).most_common()
        texts = [[*chosen[:place], word, *chosen[place:]] for word, _ in words for place in range(len(chosen) + 1)]
        rates = [rouge_l([" ".join(text)] * 5, references) for text in texts]
        if chosen and max(rates) <= rouge_l([" ".join(chosen)] * 5, references) + 1e-9:
            break
        chosen = texts[rates.index(max(rates))]
    found = words_for_rouge_l(references)
    assert found == " ".join(chosen) and len(chosen) >= 3
    assert words_for_rouge_l(["a b c", "a b", "a"], candidates=1) == "a"
    with pytest.raises(ValueError, match="no word"):
        words_for_rouge_l(["?!"])


def test_rouge_l_needs_pairs():
    with pytest.raises(ValueError, match="2 texts but 1 references"):
        rouge_l(["a", "b"], ["a"])
    for metric in (rouge_l, bleu):  # they compared letter with letter
        with pytest.raises(TypeError, match="must be lists of texts, not one text"):
            metric("one text", "one text")


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


def slow_ngrams(train, inputs, targets, order, vocab, extra=10, per_follower=0):
    """The definition of `ngram_loss`, token by token, in Python's own numbers."""
    text = train.tolist()
    grams = Counter(tuple(text[i : i + n]) for n in range(1, order + 1) for i in range(len(text) - n + 1))
    contexts = Counter(tuple(text[i : i + n]) for n in range(1, order) for i in range(len(text) - n))

    def probability(context, token):
        count, total = grams[(*context, token)], contexts[context] if context else len(text)
        if len(context) < 2:
            return (count + 1) / (total + vocab)
        shorter = probability(context[1:], token)
        weight = extra + per_follower * sum((*context, other) in grams for other in range(vocab))
        return (count + weight * shorter) / (total + weight) if total + weight else shorter

    losses = []
    for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
        for position, token in enumerate(answers):
            context = tuple(row[max(0, position + 2 - order) : position + 1]) if order > 1 else ()
            losses.append(-math.log(probability(context, token)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("weights", [{}, {"extra": 0.5}, {"extra": 2, "per_follower": 3}, WITTEN_BELL])
def test_ngrams_against_loops(weights):
    """Tokens 5 and 6 are never seen in training."""
    generator = torch.Generator().manual_seed(0)
    train = torch.randint(5, (200,), generator=generator)
    inputs, targets = random_windows(torch.randint(7, (60,), generator=generator), 6, 9, generator)
    for order in range(1, 9):
        slow = slow_ngrams(train, inputs, targets, order, 7, **weights)
        assert ngram_loss(train, inputs, targets, order, 7, **weights) == pytest.approx(slow, rel=1e-12)


@pytest.mark.parametrize("weights", [{}, {"extra": 2, "per_follower": 3}, WITTEN_BELL])
def test_the_probabilities_of_all_continuations_sum_to_1(weights):
    """Of the 64 texts of three tokens after each first one. The last pair of train is in it once; token 3 never is."""
    train = torch.tensor([0, 1, 1, 0, 2, 1, 1, 2, 2])
    following = torch.cartesian_prod(*[torch.arange(4)] * 3)
    for first in range(4):
        total = 0.0
        for targets in following[:, None]:
            inputs = torch.cat([torch.tensor([[first]]), targets[:, :-1]], dim=1)
            total += math.exp(-3 * ngram_loss(train, inputs, targets, 4, 4, **weights))
        assert total == pytest.approx(1, rel=1e-12)


def counted_texts():
    """(train, windows of a text like it, windows of a text without order); 0 to 4 follow each other, often by rule."""
    generator = torch.Generator().manual_seed(1)
    text = [0, 1, 2]
    for noise in torch.randint(15, (500,), generator=generator).tolist():
        text.append(noise % 5 if noise < 5 else (text[-1] + 2 * text[-2] + text[-3]) % 5)
    text, chaos = torch.tensor(text), torch.randint(5, (150,), generator=generator)
    return text[:400], *(evaluation_windows(part, 8, 9) for part in (text[400:], chaos))


def test_the_best_order_and_weights_are_those_of_a_slow_search():
    train, like, chaos = counted_texts()
    orders = range(1, 10)  # a window has 8 tokens and a target
    grid = [(order, extra, each) for extra in EXTRA for each in PER_FOLLOWER if extra + each for order in orders]
    slow = {
        choice: [slow_ngrams(train, *windows, choice[0], 5, *choice[1:]) for windows in (like, chaos)]
        for choice in grid
    }
    chosen = []
    for number, windows in enumerate([(like, chaos), (chaos, like)]):
        found = tuned_ngram_loss(train, *windows, 5)
        best = min(grid, key=lambda choice, column=number: slow[choice][column])
        assert (found["order"], found["extra"], found["per_follower"]) == best
        expected = slow[best][number], slow[best][1 - number]
        assert (found["loss"], found["test_loss"]) == pytest.approx(expected, rel=1e-12)
        chosen.append(best)
    assert chosen[0][0] > 2 and chosen[0] != chosen[1]  # to choose on the other windows would be another choice


def test_the_choice_does_not_see_the_test_text():
    train, like, chaos = counted_texts()
    one, other = (tuned_ngram_loss(train, like, windows, 5) for windows in (like, chaos))
    assert one.pop("test_loss") == one["loss"] < other.pop("test_loss") and one == other


@pytest.mark.parametrize(("vocab", "highest"), [(4, 9), (65, 9), (1024, 6), (50_000, 4)])
def test_orders_that_do_not_fit_are_not_tried(vocab, highest):
    """In a text that repeats, more context is always better: up to what a window of 8 or an int64 holds."""
    text = torch.tensor([0, 1, 2, 3]).repeat(20)
    windows = evaluation_windows(text, 8, 5)
    assert tuned_ngram_loss(text, windows, windows, vocab)["order"] == highest


def test_ngrams_refuse_what_they_cannot_count():
    tokens = torch.tensor([0, 1, 2, 3])
    windows = tokens[None, :3], tokens[None, 1:]
    with pytest.raises(ValueError, match="order is 0"):
        ngram_loss(tokens, *windows, 0, 4)
    with pytest.raises(ValueError, match="order is 8, too large for a vocab of 1024"):
        ngram_loss(tokens, *windows, 8, 1024)
    with pytest.raises(ValueError, match="vocab is 3, but there is a token 3"):
        ngram_loss(tokens, *windows, 2, 3)
    ignored = windows[0], windows[1].masked_fill(windows[1] == 2, -1)  # it was counted like a token
    with pytest.raises(ValueError, match="vocab is 4, but there is a token -1"):
        ngram_loss(tokens, *ignored, 2, 4)
    # 100 ** 6 does not fit their numbers, which then meet others by chance.
    with pytest.raises(ValueError, match="must hold int64 tokens, but one has 4 of torch.int32"):
        ngram_loss(tokens.int(), *(part.int() for part in windows), 6, 100)
    with pytest.raises(ValueError, match="must hold int64 tokens, but one has 0 of torch.int64"):
        ngram_loss(tokens[:0], *windows, 2, 4)
    with pytest.raises(ValueError, match=r"their shapes are \(4,\), \(1, 3\), \(1, 2\)"):
        ngram_loss(tokens, windows[0], windows[1][:, :2], 2, 4)
    for name in ("extra", "per_follower"):
        for value in (-1, math.nan, math.inf, "10"):
            with pytest.raises(ValueError, match=f"{name} is {value!r}, but must be a finite number of at least 0"):
                ngram_loss(tokens, *windows, 2, 4, **{name: value})
    with pytest.raises(ValueError, match="extra and per_follower are both 0"):
        ngram_loss(tokens, *windows, 2, 4, extra=0)


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
