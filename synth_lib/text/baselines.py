"""What a model must beat: numbers that need no training, or none to speak of.

ngram_loss(splits["train"], *evaluation_windows(splits["test"], length, count), order=5, vocab=tokenizer.vocab)
tuned_ngram_loss(splits["train"], valid_windows, test_windows, tokenizer.vocab)
bleu(copy_nearest(pairs["train"], sources), references)
tfidf_logistic_regression(glosses["train"], glosses["test"])
"""

import re
from collections import Counter
from itertools import product

import numpy as np
import torch

from synth_lib.shapes import check_number, check_whole_number

# What `tuned_ngram_loss` tries.
ORDERS = range(1, 11)
EXTRA = (0, 1, 10, 40)
PER_FOLLOWER = (0, 1, 3, 6, 12, 24, 48, 96)


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
    longest runs of words that are compared: 4, or 1 for BLEU-1. Raises ValueError if the numbers of texts differ, if
    there is none, or if order is no whole number of at least 1; TypeError for one text instead of a list.
    """
    import sacrebleu  # here, so that the other baselines work where it is not installed

    check_whole_number("order", order)
    _check_pairs("translations", translations, references)
    metric = sacrebleu.BLEU(max_ngram_order=order)
    return metric.corpus_score(translations, [references]).score, str(metric.get_signature())


def rouge_l(texts, references):
    """ROUGE-L, from 0 to 100: the mean over all pairs of the F1 of their longest common subsequence of words.

    Words are runs of letters a to z and digits, in lower case; a text without a word has 0. (Lin 2004, with the same
    weight for precision and recall.) Raises ValueError if the numbers of texts differ, or if there is none; TypeError
    for one text instead of a list.
    """
    _check_pairs("texts", texts, references)

    def f1(text, reference):
        one, other = _words(text), _words(reference)
        longest = [0] * (len(other) + 1)  # of the words of `one` so far and the first words of `other`
        for word in one:
            before = list(longest)
            for column, other_word in enumerate(other):
                same = before[column] + 1 if word == other_word else 0
                longest[column + 1] = max(same, before[column + 1], longest[column])
        return 2 * longest[-1] / max(1, len(one) + len(other))

    return 100 * sum(map(f1, texts, references)) / len(texts)


def words_for_rouge_l(references, candidates=100):
    """What one who knows no context gives to everybody: a text whose ROUGE-L on `references` is high.

    Greedy: of the `candidates` most frequent words one is put in where it raises the mean most, of equal ones the most
    frequent, as far left as possible; until none does. Raises TypeError for one text instead of a list; ValueError if
    there is no word.
    """
    _check_pairs("references", references, references)
    check_whole_number("candidates", candidates)
    others = [_words(reference) for reference in references]
    frequent = [word for word, _ in Counter(word for other in others for word in other).most_common(candidates)]
    if not frequent:
        raise ValueError("references hold no word of letters a to z and digits")
    number_of = {word: number for number, word in enumerate(frequent)}
    sizes = np.array([len(other) for other in others])
    codes = np.full((len(others), sizes.max()), -1)  # "batch length", the numbers of words; -1: another, or none
    for row, other in zip(codes, others, strict=True):
        row[: len(other)] = [number_of.get(word, -1) for word in other]
    empty, chosen, best = np.zeros((len(others), sizes.max() + 1), dtype=int), [], 0.0
    while True:
        count = len(chosen) + 1
        before, behind = [empty], [empty]  # the longest subsequences of the first words, and of the last ones
        for word, last in zip(chosen, chosen[::-1], strict=True):
            before.append(_longest(before[-1], codes == word))
            behind.append(_longest(behind[-1], codes[:, ::-1] == last))
        means = {
            (word, place): np.mean(2 * (_longest(rows, codes == word) + rest[:, ::-1]).max(axis=1) / (sizes + count))
            for word in range(len(frequent))
            for place, (rows, rest) in enumerate(zip(before, behind[::-1], strict=True))
        }
        word, place = max(means, key=means.get)
        if means[word, place] <= best:
            return " ".join(frequent[number] for number in chosen)
        chosen.insert(place, word)
        best = means[word, place]


def _words(text):
    return re.findall("[a-z0-9]+", text.lower())


def _longest(rows, equal):
    """The lengths of the longest common subsequences after one more word, one row for each text.

    rows: those before it; column n is with the first n words of the text. equal: "batch length", where a word of the
    text is the new one.
    """
    result = np.zeros_like(rows)
    for column in range(equal.shape[1]):
        same = np.where(equal[:, column], rows[:, column] + 1, 0)
        result[:, column + 1] = np.maximum(np.maximum(same, rows[:, column + 1]), result[:, column])
    return result


def _check_pairs(name, texts, references):
    if isinstance(texts, str) or isinstance(references, str):  # its letters would be compared
        raise TypeError(f"{name} and references must be lists of texts, not one text")
    if len(texts) != len(references) or not texts:
        raise ValueError(f"there are {len(texts)} {name} but {len(references)} references; one each, and at least one")


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


def ngram_loss(train, inputs, targets, order, vocab, *, extra=10, per_follower=0):
    """Mean nats per token of an n-gram model of `order` tokens, counted in train, on the windows of a model.

    train is "length"; inputs and targets are "batch length", as of evaluation_windows. Like a model, it sees of a
    window's text only what stands in the window: the first targets have shorter contexts. The probability of a token
    after two or more is

        (count(context, token) + weight * probability after the context without its first token)
            / (count(context) + weight)
        weight = extra + per_follower * (how many different tokens follow the context in train)

    or, if both counts and the weight are 0, the probability after the shorter context; after one or none it is
    (count(context, token) + 1) / (count(context) + vocab). A weight that grows with the number of different followers
    is the idea of Witten and Bell 1991, "The zero-frequency problem"; their method C has extra 0 and per_follower 1.

    Raises ValueError if order is no whole number of at least 1, if vocab ** order does not fit an int64, if there is no
    token, or one is not int64 or not from 0 to vocab - 1, if inputs and targets differ in shape, if extra or
    per_follower is no finite number of at least 0, or if both are 0.
    """
    check_whole_number("order", order)
    check_number("extra", extra)
    check_number("per_follower", per_follower)
    if extra == per_follower == 0:
        raise ValueError("extra and per_follower are both 0, so what was never seen is impossible: one must be above 0")
    return _losses(_ngram_counts(train, inputs, targets, order, vocab), vocab, extra, per_follower)[-1]


def tuned_ngram_loss(train, valid, test, vocab):
    """The n-gram model that is the best on validation windows -> a dictionary of its losses and what was chosen.

    train is "length"; valid and test are each (inputs, targets), both "batch length". Tried are the orders of ORDERS
    that fit an int64, each with the weights EXTRA x PER_FOLLOWER of `ngram_loss`. "order", "extra" and "per_follower"
    have the lowest loss on valid, which is "loss"; the first of equals wins. Nothing is chosen on test: it gives
    "test_loss", in nats per token too. Below an extra or per_follower of 0 there is nothing; but where the highest of
    a list is chosen, a better one may lie beyond it.
    """
    counts = _ngram_counts(train, *valid, max(order for order in ORDERS if vocab**order < 2**63), vocab)
    tried = {
        (order, extra, per_follower): loss
        for extra, per_follower in product(EXTRA, PER_FOLLOWER)
        if extra + per_follower > 0
        for order, loss in enumerate(_losses(counts, vocab, extra, per_follower), start=1)
    }
    order, extra, per_follower = best = min(tried, key=tried.get)
    weights = {"extra": extra, "per_follower": per_follower}
    test_loss = ngram_loss(train, *test, order, vocab, **weights)
    return {"loss": tried[best], "test_loss": test_loss, "order": order, **weights}


def _ngram_counts(train, inputs, targets, order, vocab):
    """What n-grams of 1 to `order` tokens need of train, as float64, for each n.

    First the probability of each target after nothing; then for n = 2, 3, ... of each target with n - 1 tokens before
    it how often train has them with the target, how often before any token, and before how many different ones.
    """
    if vocab**order >= 2**63:
        raise ValueError(f"order is {order}, too large for a vocab of {vocab}: {vocab}**{order} does not fit an int64")
    if train.dim() != 1 or inputs.dim() != 2 or inputs.shape != targets.shape:
        shapes = ", ".join(str(tuple(tokens.shape)) for tokens in (train, inputs, targets))
        raise ValueError(f'train must be "length", inputs and targets "batch length", but their shapes are {shapes}')
    for tokens in (train, inputs, targets):
        if tokens.dtype != torch.int64 or not tokens.numel():  # in a smaller type the number of a run does not fit
            raise ValueError(f"train, inputs and targets must hold int64 tokens, but one has {tokens.numel()} of "
                             f"{tokens.dtype}")  # fmt: skip
        for token in (int(tokens.max()), int(tokens.min())):
            if not 0 <= token < vocab:
                raise ValueError(f"vocab is {vocab}, but there is a token {token}")
    windows = torch.cat([inputs, targets[:, -1:]], dim=1)
    counts = [(_count(train.sort().values, targets) + 1) / (len(train) + vocab)]
    for length in range(2, min(order, windows.shape[1]) + 1):
        runs, asked = _runs(train, length, vocab).sort().values, _runs(windows, length, vocab)
        contexts, different = asked // vocab, runs.unique_consecutive()  # without its last token a run is a context
        counts.append((_count(runs, asked), _count(runs // vocab, contexts), _count(different // vocab, contexts)))
    return counts


def _losses(counts, vocab, extra, per_follower):
    """The losses of all orders, from 1, that `_ngram_counts` has counted."""
    probability = counts[0].clone()
    losses = [float(-probability.log().mean())]
    for length, (with_target, with_any, followers) in enumerate(counts[1:], start=2):
        shorter = probability[:, length - 2 :]  # of the target length - 2 and of those behind it
        weight = extra + per_follower * followers
        if length == 2:
            shorter, weight = 1 / vocab, vocab
        mixed = (with_target + weight * shorter) / (with_any + weight)
        probability[:, length - 2 :] = torch.where(mixed.isnan(), shorter, mixed)  # 0 / 0
        losses.append(float(-probability.log().mean()))
    return losses


def _runs(tokens, length, vocab):
    """Each run of `length` neighbours along the last axis as one number: its digits in base `vocab`."""
    numbers = tokens
    for shift in range(1, length):
        numbers = numbers[..., :-1] * vocab + tokens[..., shift:]
    return numbers.contiguous()


def _count(numbers, asked):
    """How often each number of `asked` is among `numbers`, which are sorted, as float64."""
    first, behind = (torch.searchsorted(numbers, asked.contiguous(), right=right) for right in (False, True))
    return (behind - first).double()
