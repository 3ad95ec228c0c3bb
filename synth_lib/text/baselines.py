"""What a model must beat: numbers that need no training, or none to speak of.

bleu(copy_nearest(pairs["train"], sources), references)
tfidf_logistic_regression(glosses["train"], glosses["test"])
"""

import numpy
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression


def copy_nearest(train, sources):
    """For each source text the translation of the nearest training source, as a list of texts.

    train is a list of (source, translation). Nearest is the largest cosine between TF-IDF vectors of words and
    word pairs, in lower case: words count the more, the fewer training sources have them. The first of equals wins.
    """
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True)
    known = vectorizer.fit_transform(source for source, _ in train)
    similarity = vectorizer.transform(sources) @ known.T
    nearest = similarity.toarray().argmax(axis=1)
    return [train[row][1] for row in nearest]


def bleu(translations, references):
    """BLEU of a list of translations against one reference each: (score from 0 to 100, signature of sacrebleu).

    The signature says how the texts were split and smoothed; give it with the score. Raises ValueError if the
    numbers of texts differ.
    """
    import sacrebleu  # here, so that the other baselines work where it is not installed

    if len(translations) != len(references):
        raise ValueError(f"there are {len(translations)} translations but {len(references)} references")
    metric = sacrebleu.BLEU()
    return metric.corpus_score(translations, [references]).score, str(metric.get_signature())


def tfidf_logistic_regression(train, test):
    """The share, 0 to 1, of test texts that a linear classifier of words labels rightly.

    train and test are lists of (text, label). It is logistic regression on TF-IDF weights of words.
    """
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    classifier = LogisticRegression(C=10, max_iter=1000)
    classifier.fit(vectorizer.fit_transform(text for text, _ in train), [label for _, label in train])
    return float(classifier.score(vectorizer.transform(text for text, _ in test), [label for _, label in test]))


def largest_class(train, test):
    """The share, 0 to 1, of test texts that bear the label which is most frequent in training."""
    most = numpy.bincount([label for _, label in train]).argmax()
    return float(numpy.mean([label == most for _, label in test]))
