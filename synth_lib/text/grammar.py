"""A small grammar that writes English sentences and their German translations: a translation task for a laptop.

    splits = sentences(train=20_000, seed=0)           # {"train": [Sentence, ...], "valid", "test", "unseen"}
    score(splits["test"], translations)                # {"all": (right, total), "dative": (right, total), ...}

Each English sentence has one right translation. The sentences are correct, not always sensible. German shows the
case, gender and number of a noun in the article and in the ending of the adjective, and it puts verbs where English
does not; a Sentence lists which of these it needs.
"""

from dataclasses import dataclass
from random import Random

from synth_lib.shapes import check_whole_number
from synth_lib.text.corpora import SpecialTokens, WordTokenizer, make_corpus

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

    Words stand between single spaces; a comma and a question mark are words. A sentence does not begin with a capital:
    written() adds what a reader expects.
    """

    english: str
    german: str
    phenomena: tuple


# ---- Words ----


@dataclass(frozen=True)
class Noun:
    english: str
    english_plural: str
    german: str
    gender: str
    plural: str
    kind: str  # which verbs and adjectives it goes with


@dataclass(frozen=True)
class Verb:
    """A verb in the present tense. `er` is its form with er; with ich it ends in -e, with wir it is the infinitive."""

    english: str
    infinitive: str  # without the prefix
    er: str
    prefix: str = ""
    case: str = ""  # of its object; "both" for a dative and an accusative
    objects: str = ""  # the kinds of nouns that its object may be (with "both", the accusative one)
    subjects: str = "person"
    extra: str = (
        ""  # what may be added: "in" a place, "with" or "for" a person; a "state" has no time and no modal verb
    )


@dataclass(frozen=True)
class Part:
    """A piece of a clause in both languages, and the phenomena that it shows."""

    english: str
    german: str
    tags: tuple = ()
    person: str = "third"  # of a subject: "first", "third" or "plural"
    noun: str = ""
    definite: bool = True


def _rows(text):
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


# English, plural, German, gender, plural, kind.
NOUNS = [
    Noun(*row)
    for row in _rows("""
    man | men | Mann | m | Männer | person
    woman | women | Frau | f | Frauen | person
    child | children | Kind | n | Kinder | person
    girl | girls | Mädchen | n | Mädchen | person
    teacher | teachers | Lehrer | m | Lehrer | person
    doctor | doctors | Arzt | m | Ärzte | person
    friend | friends | Freund | m | Freunde | person
    daughter | daughters | Tochter | f | Töchter | person
    aunt | aunts | Tante | f | Tanten | person
    uncle | uncles | Onkel | m | Onkel | person
    queen | queens | Königin | f | Königinnen | person
    dog | dogs | Hund | m | Hunde | animal
    cat | cats | Katze | f | Katzen | animal
    horse | horses | Pferd | n | Pferde | animal
    book | books | Buch | n | Bücher | text
    letter | letters | Brief | m | Briefe | text
    newspaper | newspapers | Zeitung | f | Zeitungen | text
    apple | apples | Apfel | m | Äpfel | food
    cake | cakes | Kuchen | m | Kuchen | food
    egg | eggs | Ei | n | Eier | food
    potato | potatoes | Kartoffel | f | Kartoffeln | food
    lamp | lamps | Lampe | f | Lampen | device
    computer | computers | Computer | m | Computer | device
    radio | radios | Radio | n | Radios | device
    door | doors | Tür | f | Türen | opening
    window | windows | Fenster | n | Fenster | opening
    coat | coats | Mantel | m | Mäntel | clothes
    shirt | shirts | Hemd | n | Hemden | clothes
    jacket | jackets | Jacke | f | Jacken | clothes
    car | cars | Auto | n | Autos | thing
    chair | chairs | Stuhl | m | Stühle | thing
    bag | bags | Tasche | f | Taschen | thing
    flower | flowers | Blume | f | Blumen | thing
    train | trains | Zug | m | Züge | train
    garden | gardens | Garten | m | Gärten | place
    park | parks | Park | m | Parks | place
    city | cities | Stadt | f | Städte | place
    school | schools | Schule | f | Schulen | place
    house | houses | Haus | n | Häuser | place
    village | villages | Dorf | n | Dörfer | place
    """)
]

# English, German stem, kinds of nouns.
ADJECTIVES = _rows("""
    old | alt | person animal text device clothes thing train opening place
    young | jung | person animal
    small | klein | person animal text food device clothes thing train opening place
    big | groß | animal food device clothes thing train opening place
    friendly | freundlich | person animal
    clever | klug | person animal
    tired | müd | person animal
    new | neu | text device clothes thing train opening
    beautiful | schön | place clothes thing
    red | rot | clothes thing train opening
    black | schwarz | animal device clothes
    good | gut | text food
    cheap | billig | text food device clothes
    """)

# English, infinitive, form of er, prefix, case, objects, subjects, extra. A kind "goods" is many of them.
VERBS = [
    Verb(*row)
    for row in _rows("""
    sleep | schlafen | schläft | | | | living | in
    laugh | lachen | lacht | | | | person | in
    work | arbeiten | arbeitet | | | | person | in with for
    sing | singen | singt | | | | person | in with for
    dance | tanzen | tanzt | | | | person | in with
    play | spielen | spielt | | | | living | in with
    wait | warten | wartet | | | | living | in
    get up | stehen | steht | auf | | | living |
    wake up | wachen | wacht | auf | | | living | in
    fall asleep | schlafen | schläft | ein | | | living | in
    come back | kommen | kommt | zurück | | | living train |
    arrive | kommen | kommt | an | | | person train |
    disappear | verschwinden | verschwindet | | | | living goods train |
    burn | brennen | brennt | | | | goods place |
    see | sehen | sieht | | accusative | living goods train | living | in
    find | finden | findet | | accusative | animal goods | living | in
    look for | suchen | sucht | | accusative | living goods | living | in
    hear | hören | hört | | accusative | living train device | living | in
    love | lieben | liebt | | accusative | living | person | state
    know | kennen | kennt | | accusative | living place | person | state
    visit | besuchen | besucht | | accusative | person | person | with
    read | lesen | liest | | accusative | text | person | in with
    write | schreiben | schreibt | | accusative | text | person | in for
    eat | essen | isst | | accusative | food | person | in with
    buy | kaufen | kauft | | accusative | goods | person | in for
    sell | verkaufen | verkauft | | accusative | goods | person | in
    need | brauchen | braucht | | accusative | goods | person |
    draw | zeichnen | zeichnet | | accusative | living thing place | person | for
    repair | reparieren | repariert | | accusative | device opening | person | for with
    open | machen | macht | auf | accusative | opening | person | for
    close | machen | macht | zu | accusative | opening | person |
    turn on | schalten | schaltet | ein | accusative | device | person | for
    turn off | schalten | schaltet | aus | accusative | device | person |
    put on | ziehen | zieht | an | accusative | clothes | person |
    call | rufen | ruft | an | accusative | person | person |
    pick up | holen | holt | ab | accusative | person | person |
    invite | laden | lädt | ein | accusative | person | person |
    bring along | bringen | bringt | mit | accusative | text food clothes thing | person | for
    help | helfen | hilft | | dative | living | person | in
    thank | danken | dankt | | dative | person | person |
    follow | folgen | folgt | | dative | living | living |
    answer | antworten | antwortet | | dative | person | person |
    trust | vertrauen | vertraut | | dative | living | person | state
    belong to | gehören | gehört | | dative | person | goods | state
    listen to | hören | hört | zu | dative | person | person | in
    give | geben | gibt | | both | text food clothes thing | person |
    show | zeigen | zeigt | | both | animal text device clothes thing | person |
    send | schicken | schickt | | both | text clothes | person |
    bring | bringen | bringt | | both | text food clothes thing | person |
    """)
]

KINDS = {"living": "person animal", "goods": "text food device clothes thing"}

# Verbs and objects that stand together in the split "unseen" alone.
UNSEEN = {
    ("read", "letter"),
    ("eat", "apple"),
    ("buy", "newspaper"),
    ("see", "queen"),
    ("find", "bag"),
    ("sell", "radio"),
    ("put on", "shirt"),
    ("turn off", "computer"),
    ("invite", "doctor"),
    ("bring along", "flower"),
    ("help", "horse"),
    ("follow", "girl"),
    ("listen to", "daughter"),
    ("give", "egg"),
    ("show", "coat"),
}

# English, then the German forms of ich, er, and wir or sie.
MODALS = _rows("""
    can | kann | kann | können
    must | muss | muss | müssen
    may | darf | darf | dürfen
    should | sollte | sollte | sollten
    want to | will | will | wollen
    """)
REPORTS = _rows("""
    know | weiß | weiß | wissen
    think | glaube | glaubt | glauben
    say | sage | sagt | sagen
    hope | hoffe | hofft | hoffen
    """)
PERSONS = ("first", "third", "plural")

PRONOUNS = [
    Part("I", "ich", ("pronoun subject",), "first"),
    Part("he", "er", ("pronoun subject",), "third"),
    Part("she", "sie", ("pronoun subject",), "third"),
    Part("we", "wir", ("pronoun subject",), "plural"),
    Part("they", "sie", ("pronoun subject",), "plural"),
]
TIMES = [
    Part("today", "heute"),
    Part("sometimes", "manchmal"),
    Part("every day", "jeden Tag"),
    Part("in the morning", "am Morgen"),
    Part("in the evening", "am Abend"),
    Part("on Sunday", "am Sonntag"),
]
CONJUNCTIONS = [("because", "weil"), ("although", "obwohl"), ("when", "wenn")]

# The endings of dieser; ein, mein and kein have none where WITHOUT says so.
ENDINGS = {
    "nominative": {"m": "er", "f": "e", "n": "es", "plural": "e"},
    "accusative": {"m": "en", "f": "e", "n": "es", "plural": "e"},
    "dative": {"m": "em", "f": "er", "n": "em", "plural": "en"},
}
WITHOUT = {("nominative", "m"), ("nominative", "n"), ("accusative", "n")}
THE = {
    "nominative": {"m": "der", "f": "die", "n": "das", "plural": "die"},
    "accusative": {"m": "den", "f": "die", "n": "das", "plural": "die"},
    "dative": {"m": "dem", "f": "der", "n": "dem", "plural": "den"},
}
STEMS = {"this": "dies", "these": "dies", "a": "ein", "my": "mein", "no": "kein"}


# ---- Nouns with their article and adjective ----


def noun_phrase(noun, article, case, adjective=None, plural=False):
    """A noun with its article and adjective, as a Part.

    article is "the", "this", "these", "a", "my", "no", or "" (no article, plural only); case "nominative",
    "accusative" or "dative"; adjective a row of ADJECTIVES.
    """
    gender = "plural" if plural else noun.gender
    ending = ENDINGS[case][gender]
    if article in ("a", "my", "no") and (case, gender) in WITHOUT:
        article_ending = ""
    else:
        article_ending = ending
    german = THE[case][gender] if article == "the" else STEMS[article] + article_ending if article else ""
    english = noun.english_plural if plural else noun.english
    german_noun = noun.plural if plural else noun.german
    if plural and case == "dative" and german_noun[-1] not in "ns":
        german_noun += "n"

    tags = (
        ("noun subject" if case == "nominative" else case,) + ("plural",) * plural + ("negation",) * (article == "no")
    )
    if adjective:
        english = f"{adjective[0]} {english}"
        # Case and gender are shown once: by the article or, where it has no ending, by the adjective.
        if not article or not article_ending:
            adjective_ending = ending
        elif case == "nominative" and not plural or case == "accusative" and gender in "fn":
            adjective_ending = "e"
        else:
            adjective_ending = "en"
        german_noun = f"{adjective[1]}{adjective_ending} {german_noun}"
        tags += ("adjective",)
    if article == "a" and english[0] in "aeiou":
        article = "an"
    return Part(
        f"{article} {english}".strip(),
        f"{german} {german_noun}".strip(),
        tags,
        "plural" if plural else "third",
        noun.english,
        article in ("the", "this", "these", "my"),
    )


# ---- Clauses ----


@dataclass
class Clause:
    """A subject, a verb, perhaps a modal verb and "not", and parts named time, dative, accusative and extra."""

    subject: Part
    verb: Verb
    parts: dict
    modal: list = None
    negated: bool = False

    def english(self, front=None):
        """The words of a statement; the part `front` comes first."""
        words = [self.subject.english, self._english_verb(), *self._english_parts(front)]
        if front:
            words.insert(0, self.parts[front].english + ("" if front in ("time", "extra") else " ,"))
        return " ".join(words)

    def english_question(self, asked=None):
        """ "does the dog see the cat", without the part `asked`, for which a question word stands in front."""
        auxiliary, base = self._english_auxiliary()
        return " ".join([auxiliary, self.subject.english, base, *self._english_parts(asked)])

    def german(self, front=None):
        """The words of a main clause: the part `front`, then verb, subject and the rest; front="": the verb first."""
        if front is None:
            before, after = [self.subject.german], []
        else:
            before, after = [self.parts[front].german] if front else [], [self.subject.german]
        finite, end = self._german_verb()
        return " ".join([*before, finite, *after, *self._german_parts(front), *end])

    def german_final(self):
        """The words of a subordinate clause: the finite verb is the last, and its prefix is back."""
        finite, end = self._german_verb()
        last = [*end, finite] if self.modal else ["".join([*end, finite])]
        return " ".join([self.subject.german, *self._german_parts(), *last])

    def tags(self):
        """The phenomena of this clause, as a set."""
        tags = {tag for part in [self.subject, *self.parts.values()] for tag in part.tags}
        tags |= {"separable verb"} if self.verb.prefix else set()
        tags |= {"modal verb"} if self.modal else set()
        return tags | ({"negation"} if self.negated else set())

    def unseen(self):
        """Whether verb and object are one of UNSEEN."""
        name = "dative" if self.verb.case == "dative" else "accusative"
        return name in self.parts and (self.verb.english, self.parts[name].noun) in UNSEEN

    def _english_parts(self, without):
        names = ("dative", "accusative", "extra", "time")
        return [self.parts[name].english for name in names if name in self.parts and name != without]

    def _english_verb(self):
        if self.negated:
            auxiliary, base = self._english_auxiliary()
            return f"cannot {base}" if auxiliary == "can" else f"{auxiliary} not {base}"
        if self.modal and self.modal[0] != "want to":
            return " ".join(self._english_auxiliary())
        verb = _english_form("want to" if self.modal else self.verb.english, self.subject.person)
        return f"{verb} {self.verb.english}" if self.modal else verb

    def _english_auxiliary(self):
        if self.modal and self.modal[0] != "want to":
            return self.modal[0], self.verb.english
        base = f"want to {self.verb.english}" if self.modal else self.verb.english
        return "does" if self.subject.person == "third" else "do", base

    def _german_verb(self):
        """The finite verb, and what stands at the end of a main clause: a prefix, an infinitive, or nothing."""
        verb, place = self.verb, PERSONS.index(self.subject.person)
        if self.modal:
            return self.modal[1 + place], [verb.prefix + verb.infinitive]
        finite = (verb.infinitive[:-2] + "e", verb.er, verb.infinitive)[place]
        return finite, [verb.prefix] if verb.prefix else []

    def _german_parts(self, without=None):
        parts = {**self.parts, **({"nicht": Part("not", "nicht")} if self.negated else {})}
        names = ("time", "dative", "accusative", "nicht", "extra")
        return [parts[name].german for name in names if name in parts and name != without]


def _english_form(verb, person):
    first, *rest = verb.split()
    return " ".join([first + "s" if person == "third" else first, *rest])


# ---- Drawing ----

# Random.random() alone gives the same numbers in every version of Python.


def _chance(random, probability):
    return random.random() < probability


def _pick(random, items):
    return items[int(random.random() * len(items))]


def _kinds(names):
    return " ".join(KINDS.get(name, name) for name in names.split()).split()


def _draw_noun(random, kinds, case, articles, adjectives, not_noun="", plurals=0.25):
    """A noun phrase of one of `kinds`; `articles` are those of the singular, of which the plural has its own."""
    noun = _pick(random, [noun for noun in NOUNS if noun.kind in kinds and noun.english != not_noun])
    fitting = [row for row in ADJECTIVES if noun.kind in row[2].split()]
    adjective = _pick(random, fitting) if fitting and _chance(random, adjectives) else None
    article = _pick(random, articles)
    if article == "my" and noun.english in ("man", "woman"):
        article = "the"  # mein Mann is my husband
    plural = _chance(random, plurals)
    if plural:
        article = {"this": "these", "a": ""}.get(article, article)
    return noun_phrase(noun, article, case, adjective, plural)


DEFINITE = ["the", "the", "this", "my"]
ANY = ["the", "the", "the", "a", "a", "this", "my"]


def _draw_subject(random, kinds, adjectives=0.3):
    if "person" in kinds and _chance(random, 0.35):
        return _pick(random, PRONOUNS)
    articles = DEFINITE if _chance(random, 0.7) else ["a", "a", "a", "no"]
    return _draw_noun(random, kinds, "nominative", articles, adjectives)


def _draw_extra(random, verb, subject):
    """A place in the dative, or a person after with (dative), without or for (accusative)."""
    preposition = _pick(random, [word for word in verb.extra.split() if word != "state"])
    if preposition == "in":
        place = _draw_noun(random, ["place"], "dative", ["the", "the", "a", "this"], 0.3, plurals=0)
        german = f"in {place.german}"
        german = f"im {german.removeprefix('in dem ')}" if german.startswith("in dem ") else german
        return Part(f"in {place.english}", german, place.tags)
    if preposition == "with" and _chance(random, 0.3):
        preposition = "without"
    german, case = {"with": ("mit", "dative"), "without": ("ohne", "accusative"), "for": ("für", "accusative")}[
        preposition
    ]
    person = _draw_noun(random, ["person"], case, ["the", "a", "my"], 0.2, not_noun=subject.noun)
    return Part(f"{preposition} {person.english}", f"{german} {person.german}", person.tags)


def _draw_clause(random, simple=False):
    verb = _pick(random, VERBS)
    adjectives = 0.1 if simple else 0.35
    subject = _draw_subject(random, _kinds(verb.subjects), adjectives)
    articles = ANY if "negation" in subject.tags else [*ANY, "no"]
    objects = _kinds(verb.objects)
    parts = {}
    if verb.case == "both":
        parts["dative"] = _draw_noun(random, ["person"], "dative", DEFINITE, adjectives / 2, subject.noun)
        parts["accusative"] = _draw_noun(random, objects, "accusative", articles, adjectives / 2, subject.noun)
    elif verb.case:
        parts[verb.case] = _draw_noun(random, objects, verb.case, articles, adjectives, subject.noun)
    if verb.extra not in ("", "state") and _chance(random, 0.15 if simple else 0.5):
        parts["extra"] = _draw_extra(random, verb, subject)
    if verb.extra != "state" and _chance(random, 0.15 if simple else 0.4):
        parts["time"] = _pick(random, TIMES)
    clause = Clause(subject, verb, parts)
    acts = "person" in _kinds(verb.subjects) and verb.extra != "state"
    if acts and "negation" not in clause.tags() and _chance(random, 0.25):
        clause.modal = _pick(random, MODALS)
    return clause


def _negate(random, clause, front=None):
    """Perhaps add "not", where the place of nicht is beyond doubt: after definite objects, without anything else."""
    middle = [name for name in clause.parts if name != front]
    clear = all(name in ("dative", "accusative") and clause.parts[name].definite for name in middle)
    # "must not" is not "muss nicht", and "may not" has two meanings.
    clear = clear and (not clause.modal or clause.modal[0] in ("can", "should", "want to"))
    clause.negated = clear and "negation" not in clause.tags() and _chance(random, 0.3)


def _draw_statement(random):
    """English, German, and the tags that the order of the words adds; then the clauses."""
    clause = _draw_clause(random)
    front = None
    if _chance(random, 0.6):
        movable = [name for name in clause.parts if name in ("time", "extra") or _may_lead(clause, name)]
        front = _pick(random, movable) if movable else None
    _negate(random, clause, front)
    return clause.english(front), clause.german(front), {"verb second"} if front else set(), [clause]


def _may_lead(clause, name):
    return clause.verb.case != "both" and clause.parts[name].definite


def _draw_report(random):
    """I know that ..."""
    subject = _draw_subject(random, ["person"], adjectives=0)
    report = _pick(random, REPORTS)
    clause = _draw_clause(random, simple=_chance(random, 0.5))
    _negate(random, clause)
    english = f"{subject.english} {_english_form(report[0], subject.person)} that {clause.english()}"
    german = f"{subject.german} {report[1 + PERSONS.index(subject.person)]} , dass {clause.german_final()}"
    return english, german, {"verb final", *subject.tags}, [clause]


def _draw_two(random):
    """... because ..., or because ..., ... ."""
    english, german = _pick(random, CONJUNCTIONS)
    main, other = _draw_clause(random, simple=True), _draw_clause(random, simple=True)
    _negate(random, main)
    _negate(random, other)
    english, german = f"{english} {other.english()}", f"{german} {other.german_final()}"
    if _chance(random, 0.4):
        return f"{main.english()} {english}", f"{main.german()} , {german}", {"verb final"}, [main, other]
    # The clause in front counts as the first part of the sentence: the verb comes next.
    tags = {"verb second", "verb final"}
    return f"{english} , {main.english()}", f"{german} , {main.german('')}", tags, [main, other]


def _draw_question(random):
    """A question; None if the clause has nothing that the question word could stand for."""
    clause = _draw_clause(random)
    if "negation" in clause.tags():
        return None
    asked = _pick(random, ["", "", "subject", "accusative", "dative", "extra", "time"])
    if asked == "subject":
        if "person" not in _kinds(clause.verb.subjects):
            return None
        clause.subject = Part("who", "wer")
        return f"{clause.english()} ?", f"{clause.german()} ?", {"question"}, [clause]
    if not asked:
        return f"{clause.english_question()} ?", f"{clause.german('')} ?", {"question"}, [clause]
    word = _question_word(clause, asked)
    if not word:
        return None
    clause.parts[asked] = word
    return f"{word.english} {clause.english_question(asked)} ?", f"{clause.german(asked)} ?", {"question"}, [clause]


def _question_word(clause, asked):
    if asked not in clause.parts or clause.verb.case == "both" and asked == "dative":
        return None
    part = clause.parts[asked]
    if asked == "time":
        return Part("when", "wann")
    if asked == "extra":
        return Part("where", "wo") if part.english.startswith("in ") else None
    kind = next(noun.kind for noun in NOUNS if noun.english == part.noun)
    if kind == "person":
        return Part("whom", {"accusative": "wen", "dative": "wem"}[asked])
    return None if kind == "animal" else Part("what", "was")


# ---- The corpus ----


def sentences(train=20_000, valid=1_000, test=1_000, unseen=500, seed=0):
    """Different sentences: {"train": [Sentence, ...], "valid": ..., "test": ..., "unseen": ...}, as many as asked for.

    No English sentence is in two splits. The sentences of "unseen" have a verb and an object (one of UNSEEN) that
    stand together in no other split. With more training sentences the other splits stay as they are. The same
    arguments give the same sentences, on every machine. Raises ValueError for a number that is not whole or below 1.
    """
    sizes = {"train": train, "valid": valid, "test": test, "unseen": unseen}
    for name, size in sizes.items():
        check_whole_number(name, size)
    random, met, seen, apart = Random(seed), set(), [], []
    while len(seen) < train + valid + test or len(apart) < unseen:
        drawn = _pick(random, [_draw_statement] * 8 + [_draw_report] * 2 + [_draw_two] * 5 + [_draw_question] * 3)(
            random
        )
        if drawn is None or drawn[0] in met or max(len(drawn[0].split()), len(drawn[1].split())) > LONGEST:
            continue
        english, german, tags, clauses = drawn
        met.add(english)
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
    """The splits of sentences() as a data.Corpus of (English tokens, German tokens); texts are (English, German).

    One vocabulary for both languages: every word of the splits, since the words of the grammar are known beforehand.
    """
    texts = {split: [(one.english, one.german) for one in some] for split, some in splits.items()}
    tokenizer = SpecialTokens(WordTokenizer(text for some in texts.values() for pair in some for text in pair))
    return make_corpus(tokenizer, texts, lambda pair: tuple(map(tokenizer.encode, pair)))


def score(some, translations):
    """Exact match: {"all": (right, total), phenomenon: (right, total), ...} of those that occur.

    some is a list of Sentence, translations the text of one German translation for each, as in Sentence.german.
    Raises ValueError if their numbers differ.
    """
    if len(some) != len(translations):
        raise ValueError(f"there are {len(some)} sentences but {len(translations)} translations")
    right = [sentence.german == translation for sentence, translation in zip(some, translations, strict=True)]
    result = {"all": (sum(right), len(right))}
    for tag in PHENOMENA:
        tagged = [one for one, sentence in zip(right, some, strict=True) if tag in sentence.phenomena]
        if tagged:
            result[tag] = (sum(tagged), len(tagged))
    return result


def written(text):
    """A sentence as it is written: capital, comma and end mark. "heute singt er" becomes "Heute singt er."."""
    text = text[:1].upper() + text[1:]
    text = text.replace(" ,", ",").replace(" ?", "?")
    return text if text.endswith("?") else f"{text}."
