"""A small grammar that writes English sentences and their German translations: a translation task for a laptop.

    splits = sentences(train=20_000, seed=0)           # {"train": [Sentence, ...], "valid", "test", "unseen"}
    score(splits["test"], translations)                # {"all": (right, total), "dative": (right, total), ...}

Each English sentence has one right translation. The sentences are correct, not always sensible. German shows the
case, gender and number of a noun in the article and in the ending of the adjective, and it puts verbs where English
does not; a Sentence lists which of these it needs. The rules are here, the words in data/grammar_words.tsv.
"""

import csv
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from random import Random
from types import SimpleNamespace

from synth_lib.shapes import check_whole_number
from synth_lib.text.corpora import DATA, make_corpus, read_file
from synth_lib.text.tokenizers import SpecialTokens, WordTokenizer

PHENOMENA = {
    "noun subject": "the subject is a noun, in the nominative",
    "pronoun subject": "the subject is a pronoun, and the verb has its ending",
    "accusative": "a noun in the accusative: object, or after für or ohne",
    "dative": "a noun in the dative: object, or after in or mit",
    "adjective": "an adjective, whose ending follows article, gender, case and number",
    "plural": "a noun in the plural",
    "verb second": "something else than the subject comes first, and the subject follows the verb",
    "verb final": "a subordinate clause, with the verb at its end",
    "separable verb": "the verb has a prefix that leaves it in a main clause: ruft ... an",
    "modal verb": "a modal verb, with the infinitive at the end of the clause",
    "negation": "nicht or kein",
    "question": "a question",
}

LONGEST = 14  # words, on either side


@dataclass(frozen=True)
class Sentence:
    """An English sentence, its German translation and the phenomena that it shows, in the order of PHENOMENA.

    Words stand between single spaces; a comma and a question mark are words. No capital begins a sentence.
    """

    english: str
    german: str
    phenomena: tuple


@cache
def words(folder=DATA):
    """The table of words: {"noun": [word, ...], "adjective": ..., ...}; data/README.md says what its columns are.

    An attribute of a word is a cell of its row, empty where it needs none. Raises CorpusError as load_text does.
    """
    table = defaultdict(list)
    for row in csv.DictReader(read_file("grammar_words.tsv", folder).splitlines(), delimiter="\t"):
        table[row["word"]].append(SimpleNamespace(**row))
    return table


@dataclass(frozen=True)
class Part:
    """A piece of a clause in both languages, and the phenomena that it shows."""

    english: str
    german: str
    tags: tuple = ()
    person: str = "third"  # of a subject: "first", "third" or "plural"
    noun: SimpleNamespace = None
    definite: bool = True


# The endings of dieser, in this order: masculine, feminine, neuter, plural; then the forms of der.
ENDINGS = {"nominative": "er e es e", "accusative": "en e es e", "dative": "em er em en"}
THE = {"nominative": "der die das die", "accusative": "den die das die", "dative": "dem der dem den"}
# ein, mein and kein have no ending here.
WITHOUT = {("nominative", "m"), ("nominative", "n"), ("accusative", "n")}
STEMS = {"this": "dies", "these": "dies", "a": "ein", "my": "mein", "no": "kein", "": ""}


def noun_phrase(noun, article, case, adjective=None, plural=False):
    """A noun with its article and adjective, as a Part.

    article is "the", "this", "these", "a", "my", "no", or "" (no article, plural only); case "nominative",
    "accusative" or "dative"; noun and adjective are words.
    """
    form = "plural" if plural else noun.gender
    column = ("m", "f", "n", "plural").index(form)
    ending = ENDINGS[case].split()[column]
    bare = not article or article in ("a", "my", "no") and (case, form) in WITHOUT
    german_article = THE[case].split()[column] if article == "the" else STEMS[article] + (not bare) * ending
    english = noun.english_plural if plural else noun.english
    german = noun.german_plural if plural else noun.german
    if plural and case == "dative" and german[-1] not in "ns":
        german += "n"
    if adjective:
        # Case and gender are shown once: by the article or, where it has no ending, by the adjective.
        weak = "e" if case == "nominative" and not plural or case == "accusative" and form in "fn" else "en"
        english, german = f"{adjective.english} {english}", f"{adjective.german}{ending if bare else weak} {german}"
    tags = ["noun subject" if case == "nominative" else case]
    tags += ["plural"] * plural + ["negation"] * (article == "no") + ["adjective"] * bool(adjective)
    return Part(
        f"{'an' if article == 'a' and english[0] in 'aeiou' else article} {english}".strip(),
        f"{german_article} {german}".strip(),
        tuple(tags),
        "plural" if plural else "third",
        noun,
        article in ("the", "this", "these", "my"),
    )


def english_form(verb, person):
    """ "look for" as "looks for" in the third person."""
    first, *rest = verb.split()
    return " ".join([first + "s" if person == "third" else first, *rest])


def german_form(verb, person):
    """The form of a verb for the first or third person or the plural."""
    return {"first": verb.ich or verb.german[:-2] + "e", "third": verb.er, "plural": verb.german}[person]


# "not" stands with the verb in English.
ORDER = {
    "english": ("dative", "accusative", "extra", "time"),
    "german": ("time", "dative", "accusative", "not", "extra"),
}


@dataclass
class Clause:
    """A subject, a verb, perhaps a modal verb and "not", and parts named time, dative, accusative and extra."""

    subject: Part
    verb: SimpleNamespace
    parts: dict
    modal: SimpleNamespace = None
    negated: bool = False

    def english(self, front=None):
        """The words of a statement; the part `front` comes first."""
        before = [self.parts[front].english + ("" if front in ("time", "extra") else " ,")] if front else []
        return " ".join([*before, self.subject.english, self._english_verb(), *self._rest("english", front)])

    def english_question(self, asked=None):
        """ "does the dog see the cat", without the part `asked`, for which a question word stands in front."""
        auxiliary, base = self._english_auxiliary()
        return " ".join([auxiliary, self.subject.english, base, *self._rest("english", asked)])

    def german(self, front=None):
        """The words of a main clause: the part `front`, then verb, subject and the rest; front="": the verb first."""
        finite, end = self._german_verb()
        start = [self.subject.german, finite] if front is None else [finite, self.subject.german]
        before = [self.parts[front].german] if front else []
        return " ".join([*before, *start, *self._rest("german", front), *end])

    def german_final(self):
        """The words of a subordinate clause: the finite verb is the last, and its prefix is back."""
        finite, end = self._german_verb()
        last = (" " if self.modal else "").join([*end, finite])
        return " ".join([self.subject.german, *self._rest("german"), last])

    def tags(self):
        """The phenomena of this clause, as a set."""
        tags = {tag for part in [self.subject, *self.parts.values()] for tag in part.tags}
        shown = {"separable verb": self.verb.prefix, "modal verb": self.modal, "negation": self.negated}
        return tags | {tag for tag, present in shown.items() if present}

    def unseen(self):
        """Whether verb and object stand together in the split "unseen" alone."""
        target = self.parts.get("dative" if self.verb.case == "dative" else "accusative")
        return bool(target and target.noun and target.noun.english == self.verb.unseen)

    def _english_verb(self):
        auxiliary, base = self._english_auxiliary()
        if self.negated:
            return f"cannot {base}" if auxiliary == "can" else f"{auxiliary} not {base}"
        return english_form(base, self.subject.person) if auxiliary in ("do", "does") else f"{auxiliary} {base}"

    def _english_auxiliary(self):
        """What a question begins with, and the infinitive that goes with it."""
        if self.modal and self.modal.english != "want to":
            return self.modal.english, self.verb.english
        base = f"want to {self.verb.english}" if self.modal else self.verb.english
        return "does" if self.subject.person == "third" else "do", base

    def _german_verb(self):
        """The finite verb, and what stands at the end of a main clause: a prefix, an infinitive, or nothing."""
        finite = german_form(self.modal or self.verb, self.subject.person)
        if self.modal:
            return finite, [self.verb.prefix + self.verb.german]
        return finite, [self.verb.prefix] if self.verb.prefix else []

    def _rest(self, language, without=None):
        """The words of the parts behind subject and verb, in the order of the language."""
        parts = {**self.parts, **({"not": Part("not", "nicht")} if self.negated else {})}
        return [getattr(parts[name], language) for name in ORDER[language] if name in parts and name != without]


DEFINITE = ["the", "the", "this", "my"]
ANY = ["the", "the", "the", "a", "a", "this", "my"]
PREPOSITIONS = {"with": ("mit", "dative"), "without": ("ohne", "accusative"), "for": ("für", "accusative")}


class Writer:
    """Draws sentences: (English, German, tags that the order of the words adds, clauses), or None."""

    def __init__(self, seed, table):
        self.random = Random(seed)
        self.table = table

    def sentence(self):
        return self.pick([self.statement] * 8 + [self.report] * 2 + [self.two_clauses] * 5 + [self.question] * 3)()

    def statement(self):
        clause, front = self.clause(), None
        if self.chance(0.6):
            movable = [name for name, part in clause.parts.items()
                       if name in ("time", "extra") or clause.verb.case != "both" and part.definite]  # fmt: skip
            front = self.pick(movable) if movable else None
        self.negate(clause, front)
        return clause.english(front), clause.german(front), {"verb second"} if front else set(), [clause]

    def report(self):
        """I know that ..."""
        subject, verb = self.subject(["person"], adjectives=0), self.pick(self.table["report"])
        clause = self.clause(simple=self.chance(0.5))
        self.negate(clause)
        english = f"{subject.english} {english_form(verb.english, subject.person)} that {clause.english()}"
        german = f"{subject.german} {german_form(verb, subject.person)} , dass {clause.german_final()}"
        return english, german, {"verb final", *subject.tags}, [clause]

    def two_clauses(self):
        """... because ..., or because ..., ... ."""
        conjunction = self.pick(self.table["conjunction"])
        main, other = self.clause(simple=True), self.clause(simple=True)
        self.negate(main)
        self.negate(other)
        english, german = f"{conjunction.english} {other.english()}", f"{conjunction.german} {other.german_final()}"
        if self.chance(0.4):
            return f"{main.english()} {english}", f"{main.german()} , {german}", {"verb final"}, [main, other]
        # The clause in front counts as the first part of the sentence: the verb comes next.
        tags = {"verb second", "verb final"}
        return f"{english} , {main.english()}", f"{german} , {main.german('')}", tags, [main, other]

    def question(self):
        """A question; None if the clause has nothing that the question word could stand for."""
        clause = self.clause()
        if "negation" in clause.tags():
            return None
        asked = self.pick(["", "", "subject", "accusative", "dative", "extra", "time"])
        if not asked:
            english, german = clause.english_question(), clause.german("")
        elif asked == "subject" and "person" in clause.verb.subjects.split():
            clause.subject = Part("who", "wer")
            english, german = clause.english(), clause.german()
        elif word := question_word(clause, asked):
            clause.parts[asked] = word
            english, german = f"{word.english} {clause.english_question(asked)}", clause.german(asked)
        else:
            return None
        return f"{english} ?", f"{german} ?", {"question"}, [clause]

    def clause(self, simple=False):
        verb = self.pick(self.table["verb"])
        adjectives = 0.1 if simple else 0.35
        subject = self.subject(verb.subjects.split(), adjectives)
        articles = ANY if "negation" in subject.tags else [*ANY, "no"]
        parts = {}
        if verb.case == "both":
            adjectives /= 2
            parts["dative"] = self.noun(["person"], "dative", DEFINITE, adjectives, subject.noun)
        if verb.case:
            case = "accusative" if verb.case == "both" else verb.case
            parts[case] = self.noun(verb.objects.split(), case, articles, adjectives, subject.noun)
        if verb.additions not in ("", "state") and self.chance(0.15 if simple else 0.5):
            parts["extra"] = self.extra(verb, subject)
        if verb.additions != "state" and self.chance(0.15 if simple else 0.4):
            time = self.pick(self.table["time"])
            parts["time"] = Part(time.english, time.german)
        clause = Clause(subject, verb, parts)
        acts = "person" in verb.subjects.split() and verb.additions != "state"
        if acts and "negation" not in clause.tags() and self.chance(0.25):
            clause.modal = self.pick(self.table["modal"])
        return clause

    def negate(self, clause, front=None):
        """Perhaps add "not", where the position of nicht is beyond doubt: behind definite objects and nothing else."""
        middle = [name for name in clause.parts if name != front]
        clear = all(name in ("dative", "accusative") and clause.parts[name].definite for name in middle)
        # "must not" is not "muss nicht", and "may not" has two meanings.
        clear = clear and (not clause.modal or clause.modal.english in ("can", "should", "want to"))
        clause.negated = clear and "negation" not in clause.tags() and self.chance(0.3)

    def subject(self, kinds, adjectives):
        if "person" in kinds and self.chance(0.35):
            word = self.pick(self.table["pronoun"])
            return Part(word.english, word.german, ("pronoun subject",), word.person)
        articles = DEFINITE if self.chance(0.7) else ["a", "a", "a", "no"]
        return self.noun(kinds, "nominative", articles, adjectives)

    def extra(self, verb, subject):
        """A place in the dative, or a person after with (dative), without or for (accusative)."""
        english = self.pick(verb.additions.split())
        if english == "in":
            place = self.noun(["place"], "dative", ["the", "the", "a", "this"], 0.3, plurals=0)
            rest = place.german.removeprefix("dem ")
            return Part(f"in {place.english}", f"{'in' if rest == place.german else 'im'} {rest}", place.tags)
        if english == "with" and self.chance(0.3):
            english = "without"
        german, case = PREPOSITIONS[english]
        person = self.noun(["person"], case, ["the", "a", "my"], 0.2, subject.noun)
        return Part(f"{english} {person.english}", f"{german} {person.german}", person.tags)

    def noun(self, kinds, case, articles, adjectives, other=None, plurals=0.25):
        """A noun phrase of one of `kinds`, not `other`; `articles` are of the singular, the plural has its own."""
        noun = self.pick([noun for noun in self.table["noun"] if noun.kinds in kinds and noun is not other])
        fitting = [word for word in self.table["adjective"] if noun.kinds in word.kinds.split()]
        adjective = self.pick(fitting) if fitting and self.chance(adjectives) else None
        article = self.pick(articles)
        if article == "my" and noun.english in ("man", "woman"):
            article = "the"  # mein Mann is my husband
        plural = self.chance(plurals)
        return noun_phrase(noun, {"this": "these", "a": ""}.get(article, article) if plural else article,
                           case, adjective, plural)  # fmt: skip

    # Random.random() alone gives the same numbers in every version of Python.

    def chance(self, probability):
        return self.random.random() < probability

    def pick(self, items):
        return items[int(self.random.random() * len(items))]


def question_word(clause, asked):
    """The Part that asks for a part of the clause; None if there is no such part, or no word that is clear."""
    part = clause.parts.get(asked)
    if not part or asked == "dative" and clause.verb.case == "both":
        return None
    if asked in ("time", "extra"):
        return Part("when", "wann") if asked == "time" else Part("where", "wo") if part.english[:3] == "in " else None
    who = Part("whom", "wen" if asked == "accusative" else "wem")
    return {"person": who, "animal": None}.get(part.noun.kinds, Part("what", "was"))


def sentences(train=20_000, valid=1_000, test=1_000, unseen=500, seed=0, folder=DATA):
    """Different sentences: {"train": [Sentence, ...], "valid": ..., "test": ..., "unseen": ...}, as many as asked for.

    No English sentence is in two splits. The sentences of "unseen" have a verb and an object that stand together in
    no other split. With more training sentences the other splits stay as they are. The same arguments give the same
    sentences, on every machine. Raises ValueError for a number that is not whole or below 1, and CorpusError if the
    table of words is missing, damaged or edited.
    """
    for name, size in {"train": train, "valid": valid, "test": test, "unseen": unseen}.items():
        check_whole_number(name, size)
    writer, known, seen, apart = Writer(seed, words(folder)), set(), [], []
    while len(seen) < train + valid + test or len(apart) < unseen:
        drawn = writer.sentence()
        if drawn is None or drawn[0] in known or max(len(text.split()) for text in drawn[:2]) > LONGEST:
            continue
        english, german, tags, clauses = drawn
        known.add(english)
        tags = tags.union(*(clause.tags() for clause in clauses))
        sentence = Sentence(english, german, tuple(tag for tag in PHENOMENA if tag in tags))
        (apart if any(clause.unseen() for clause in clauses) else seen).append(sentence)
    return {
        "train": seen[test + valid : test + valid + train],
        "valid": seen[test : test + valid],
        "test": seen[:test],
        "unseen": apart[:unseen],
    }


def grammar_corpus(splits):
    """The splits of sentences() as a Corpus of (English tokens, German tokens); texts are (English, German).

    One vocabulary for both languages: every word of the splits, since the words of the grammar are known beforehand.
    """
    texts = {split: [(row.english, row.german) for row in rows] for split, rows in splits.items()}
    tokenizer = SpecialTokens(WordTokenizer(text for rows in texts.values() for pair in rows for text in pair))
    return make_corpus(tokenizer, texts, lambda pair: tuple(map(tokenizer.encode, pair)))


def score(examples, translations):
    """Exact match: {"all": (right, total), phenomenon: (right, total), ...} of those that occur.

    examples is a list of Sentence, translations the text of one German translation for each, as in Sentence.german.
    Raises ValueError if their numbers differ.
    """
    if len(examples) != len(translations):
        raise ValueError(f"there are {len(examples)} sentences but {len(translations)} translations")
    right = [sentence.german == translation for sentence, translation in zip(examples, translations, strict=True)]
    result = {"all": (sum(right), len(right))}
    for tag in PHENOMENA:
        tagged = [one for one, sentence in zip(right, examples, strict=True) if tag in sentence.phenomena]
        if tagged:
            result[tag] = (sum(tagged), len(tagged))
    return result
