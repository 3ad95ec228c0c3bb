"""What a model must beat: numbers that need no training, or none to speak of.

ngram_loss(splits["train"], *evaluation_windows(splits["test"], length, count), order=5, vocab=tokenizer.vocab)
bleu(copy_nearest(pairs["train"], sources), references)
tfidf_logistic_regression(glosses["train"], glosses["test"])
"""

import re

import torch

from synth_lib.shapes import check_whole_number


def copy_nearest(train, sources):
    """For each source text the translation of the nearest training source, as a list of texts.

    train is a list of (source, translation). Nearest is the largest cosine between TF-IDF vectors of words and
    word pairs, in lower case: words count the more, the fewer training sources have them. The first of equals wins.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # here: it takes seconds, and may be missing

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True)
    known = vectorizer.fit_transform(source for source, _ in train)
    queries = vectorizer.transform(sources)
    chunks = (queries[start : start + 256] @ known.T for start in range(0, len(sources), 256))
    return [train[row][1] for similarity in chunks for row in similarity.argmax(axis=1).flat]


def bleu(translations, references, order=4):
    """BLEU of a list of translations against one reference each: (score from 0 to 100, signature of sacrebleu).

    The signature says how the texts were split and smoothed; give it with the score. It does not say `order`, the
    longest runs of words that are compared: 4, or 1 for BLEU-1. Raises ValueError if the
    numbers of texts differ.
    """
    import sacrebleu  # here, so that the other baselines work where it is not installed

    if len(translations) != len(references):
        raise ValueError(f"there are {len(translations)} translations but {len(references)} references")
    metric = sacrebleu.BLEU(max_ngram_order=order)
    return metric.corpus_score(translations, [references]).score, str(metric.get_signature())


def rouge_l(texts, references):
    """ROUGE-L, from 0 to 100: the mean over all pairs of the F1 of their longest common subsequence of words.

    Words are runs of letters a to z and digits, in lower case; a text without a word has 0. (Lin 2004, with the same
    weight for precision and recall.) Raises ValueError if the numbers of texts differ, or if there is none.
    """
    if len(texts) != len(references) or not texts:
        raise ValueError(f"there are {len(texts)} texts but {len(references)} references; one each, and at least one")

    def f1(text, reference):
        one, other = (re.findall("[a-z0-9]+", part.lower()) for part in (text, reference))
        longest = [0] * (len(other) + 1)  # of the words of `one` so far and the first words of `other`
        for word in one:
            before = list(longest)
            for column, other_word in enumerate(other):
                same = before[column] + 1 if word == other_word else 0
                longest[column + 1] = max(same, before[column + 1], longest[column])
        return 2 * longest[-1] / max(1, len(one) + len(other))

    return 100 * sum(map(f1, texts, references)) / len(texts)


def tfidf_logistic_regression(train, test):
    """The share, 0 to 1, of test texts that a linear classifier of words labels rightly.

    train and test are lists of (text, label). It is logistic regression on TF-IDF weights of words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(sublinear_tf=True)
    classifier = LogisticRegression(C=10, max_iter=1000)
    classifier.fit(vectorizer.fit_transform(text for text, _ in train), [label for _, label in train])
    return float(classifier.score(vectorizer.transform(text for text, _ in test), [label for _, label in test]))


def ngram_loss(train, inputs, targets, order, vocab):
    """Mean nats per token of an n-gram model of `order` tokens, counted in train, on the windows of a model.

    train is "length"; inputs and targets are "batch length", as of evaluation_windows. Like a model, it sees of a
    window's text only what stands in the window: the first targets have shorter contexts. The probability of a token
    after two or more is

        (count(context, token) + 10 * probability after the context without its first token) / (count(context) + 10)

    and after one or none (count(context, token) + 1) / (count(context) + vocab).

    Raises ValueError if order is no whole number of at least 1, if vocab ** order does not fit an int64, or if a token
    is not below vocab.
    """
    check_whole_number("order", order)
    if vocab**order >= 2**63:
        raise ValueError(f"order is {order}, too large for a vocab of {vocab}: {vocab}**{order} does not fit an int64")
    largest = int(max(tokens.max() for tokens in (train, inputs, targets)))
    if largest >= vocab:
        raise ValueError(f"vocab is {vocab}, but there is a token {largest}")
    windows = torch.cat([inputs, targets[:, -1:]], dim=1)
    probability = (_count(train, targets) + 1) / (len(train) + vocab)
    for length in range(2, min(order, windows.shape[1]) + 1):
        runs, contexts = _runs(train, length, vocab), _runs(train[:-1], length - 1, vocab)
        asked = _runs(windows, length, vocab)  # those that end in the target length - 2 and the ones behind it
        weight, shorter = (10, probability[:, length - 2 :]) if length > 2 else (vocab, 1 / vocab)
        mixed = _count(runs, asked) + weight * shorter
        probability[:, length - 2 :] = mixed / (_count(contexts, asked // vocab) + weight)
    return float(-probability.log().mean())


def _runs(tokens, length, vocab):
    """Each run of `length` neighbours along the last axis as one number: its digits in base `vocab`."""
    numbers = tokens
    for shift in range(1, length):
        numbers = numbers[..., :-1] * vocab + tokens[..., shift:]
    return numbers.contiguous()


def _count(numbers, asked):
    """How often each number of `asked` is among `numbers`, as float64."""
    known, counts = numbers.unique(return_counts=True)
    row = torch.searchsorted(known, asked.contiguous()).clamp(max=len(known) - 1)
    return (counts[row] * (known[row] == asked)).double()
