"""The grammar: its German is compared with German written by hand, and its tags with what the words show."""

import hashlib
import re
import shutil
from collections import Counter

import pytest

from synth_lib.text.corpora import DATA, CorpusError
from synth_lib.text.grammar import (
    LONGEST,
    PHENOMENA,
    Clause,
    Part,
    Sentence,
    german_form,
    grammar_corpus,
    noun_phrase,
    score,
    sentences,
    words,
)

NOUNS, ADJECTIVES, VERBS = words()["noun"], words()["adjective"], words()["verb"]
MODALS, REPORTS, TIMES = words()["modal"], words()["report"], words()["time"]
NOUN, ADJECTIVE, VERB, MODAL, PRONOUN = (
    {word.english: word for word in words()[name]} for name in ("noun", "adjective", "verb", "modal", "pronoun")
)
TIME = {time.english: Part(time.english, time.german) for time in TIMES}
PERSONS = ("first", "third", "plural")
UNSEEN = {(verb.english, verb.unseen) for verb in VERBS if verb.unseen}


@pytest.fixture(scope="module")
def splits():
    return sentences(train=6_000, valid=500, test=500, unseen=200, seed=0)


def every(splits):
    return [sentence for some in splits.values() for sentence in some]


def phrase(case, text):
    """A Part from words such as "the old man" or "these dogs"."""
    *before, last = text.split()
    plural = last not in NOUN
    noun = next(noun for noun in NOUNS if last in (noun.english, noun.english_plural))
    adjective = ADJECTIVE[before.pop()] if before and before[-1] in ADJECTIVE else None
    article = before[0].replace("an", "a") if before else ""
    return noun_phrase(noun, article, case, adjective, plural)


# Every article with an adjective, by hand: nominative, accusative, dative.
PARADIGM = {
    "the old man": "der alte Mann, den alten Mann, dem alten Mann",
    "this old man": "dieser alte Mann, diesen alten Mann, diesem alten Mann",
    "an old man": "ein alter Mann, einen alten Mann, einem alten Mann",
    "my old man": "mein alter Mann, meinen alten Mann, meinem alten Mann",
    "no old man": "kein alter Mann, keinen alten Mann, keinem alten Mann",
    "the small cat": "die kleine Katze, die kleine Katze, der kleinen Katze",
    "this small cat": "diese kleine Katze, diese kleine Katze, dieser kleinen Katze",
    "a small cat": "eine kleine Katze, eine kleine Katze, einer kleinen Katze",
    "my small cat": "meine kleine Katze, meine kleine Katze, meiner kleinen Katze",
    "no small cat": "keine kleine Katze, keine kleine Katze, keiner kleinen Katze",
    "the new book": "das neue Buch, das neue Buch, dem neuen Buch",
    "this new book": "dieses neue Buch, dieses neue Buch, diesem neuen Buch",
    "a new book": "ein neues Buch, ein neues Buch, einem neuen Buch",
    "my new book": "mein neues Buch, mein neues Buch, meinem neuen Buch",
    "no new book": "kein neues Buch, kein neues Buch, keinem neuen Buch",
    "the tired children": "die müden Kinder, die müden Kinder, den müden Kindern",
    "these tired children": "diese müden Kinder, diese müden Kinder, diesen müden Kindern",
    "tired children": "müde Kinder, müde Kinder, müden Kindern",
    "my tired children": "meine müden Kinder, meine müden Kinder, meinen müden Kindern",
    "no tired children": "keine müden Kinder, keine müden Kinder, keinen müden Kindern",
    "the man": "der Mann, den Mann, dem Mann",
    "a woman": "eine Frau, eine Frau, einer Frau",
    "a girl": "ein Mädchen, ein Mädchen, einem Mädchen",
    "the girls": "die Mädchen, die Mädchen, den Mädchen",
    "the cars": "die Autos, die Autos, den Autos",
    "daughters": "Töchter, Töchter, Töchtern",
    "the women": "die Frauen, die Frauen, den Frauen",
    "an uncle": "ein Onkel, einen Onkel, einem Onkel",
    "my teachers": "meine Lehrer, meine Lehrer, meinen Lehrern",
}


@pytest.mark.parametrize("english", PARADIGM)
def test_article_adjective_and_noun_agree(english):
    parts = [phrase(case, english) for case in ("nominative", "accusative", "dative")]
    assert ", ".join(part.german for part in parts) == PARADIGM[english]
    assert {part.english for part in parts} == {english}


def test_every_noun_has_its_article_and_plural():
    """By hand again, with the article, so that no gender rests on one list alone."""
    expected = """der Mann Männer, die Frau Frauen, das Kind Kinder, das Mädchen Mädchen, der Lehrer Lehrer,
        der Arzt Ärzte,
        der Freund Freunde, die Tochter Töchter, die Tante Tanten, der Onkel Onkel, die Königin Königinnen,
        der Hund Hunde, die Katze Katzen, das Pferd Pferde, das Buch Bücher, der Brief Briefe, die Zeitung Zeitungen,
        der Apfel Äpfel, der Kuchen Kuchen, das Ei Eier, die Kartoffel Kartoffeln, die Lampe Lampen,
        der Computer Computer, das Radio Radios, die Tür Türen, das Fenster Fenster, der Mantel Mäntel, das Hemd Hemden,
        die Jacke Jacken, das Auto Autos, der Stuhl Stühle, die Tasche Taschen, die Blume Blumen, der Zug Züge,
        der Garten Gärten, der Park Parks, die Stadt Städte, die Schule Schulen, das Haus Häuser, das Dorf Dörfer"""
    found = [f"{noun_phrase(noun, 'the', 'nominative').german} {noun.german_plural}" for noun in NOUNS]
    assert found == [" ".join(one.split()) for one in expected.split(",")]


def clause(subject, verb, modal=None, negated=False, **parts):
    if subject in PRONOUN:
        subject = Part(subject, PRONOUN[subject].german, person=PRONOUN[subject].person)
    else:
        subject = phrase("nominative", subject)
    cases = {"accusative", "dative"}
    parts = {name: phrase(name, part) if name in cases else part for name, part in parts.items()}
    return Clause(subject, VERB[verb], parts, MODAL.get(modal), negated)


GARDEN = Part("in the garden", "im Garten")
FOR_US = Part("for the child", "für das Kind")


# (clause, the part in front) -> English and German statement, then the same as a subordinate clause.
STATEMENTS = [
    (clause("the man", "sleep"), None, "the man sleeps", "der Mann schläft", "der Mann schläft"),
    (clause("I", "sleep"), None, "I sleep", "ich schlafe", "ich schlafe"),
    (clause("they", "sleep"), None, "they sleep", "sie schlafen", "sie schlafen"),
    (clause("she", "arrive"), None, "she arrives", "sie kommt an", "sie ankommt"),
    (clause("the children", "get up"), None, "the children get up", "die Kinder stehen auf", "die Kinder aufstehen"),
    (
        clause("the old man", "read", accusative="a new book", time=TIME["today"]),
        None,
        "the old man reads a new book today",
        "der alte Mann liest heute ein neues Buch",
        "der alte Mann heute ein neues Buch liest",
    ),
    (
        clause("the old man", "read", accusative="a new book", time=TIME["today"]),
        "time",
        "today the old man reads a new book",
        "heute liest der alte Mann ein neues Buch",
        "der alte Mann heute ein neues Buch liest",
    ),
    (
        clause("the dog", "see", accusative="the cat", extra=GARDEN),
        "accusative",
        "the cat , the dog sees in the garden",
        "die Katze sieht der Hund im Garten",
        "der Hund die Katze im Garten sieht",
    ),
    (
        clause("we", "play", extra=GARDEN, time=TIME["on Sunday"]),
        "extra",
        "in the garden we play on Sunday",
        "im Garten spielen wir am Sonntag",
        "wir am Sonntag im Garten spielen",
    ),
    (
        clause("the girl", "help", dative="the old woman"),
        "dative",
        "the old woman , the girl helps",
        "der alten Frau hilft das Mädchen",
        "das Mädchen der alten Frau hilft",
    ),
    (
        clause("my aunt", "give", dative="the child", accusative="an apple"),
        None,
        "my aunt gives the child an apple",
        "meine Tante gibt dem Kind einen Apfel",
        "meine Tante dem Kind einen Apfel gibt",
    ),
    (
        clause("he", "turn on", accusative="the lamp", time=TIME["every day"]),
        "time",
        "every day he turns on the lamp",
        "jeden Tag schaltet er die Lampe ein",
        "er jeden Tag die Lampe einschaltet",
    ),
    (
        clause("I", "open", accusative="this window", extra=FOR_US),
        None,
        "I open this window for the child",
        "ich mache dieses Fenster für das Kind auf",
        "ich dieses Fenster für das Kind aufmache",
    ),
    (
        clause("the queen", "invite", "want to", accusative="no doctor"),
        None,
        "the queen wants to invite no doctor",
        "die Königin will keinen Arzt einladen",
        "die Königin keinen Arzt einladen will",
    ),
    (
        clause("we", "listen to", "must", dative="the teacher"),
        None,
        "we must listen to the teacher",
        "wir müssen dem Lehrer zuhören",
        "wir dem Lehrer zuhören müssen",
    ),
    (
        clause("the friends", "read", "should", negated=True, accusative="my letters"),
        None,
        "the friends should not read my letters",
        "die Freunde sollten meine Briefe nicht lesen",
        "die Freunde meine Briefe nicht lesen sollten",
    ),
    (
        clause("the man", "call", "can", negated=True, accusative="the doctor", time=TIME["today"]),
        "time",
        "today the man cannot call the doctor",
        "heute kann der Mann den Arzt nicht anrufen",
        "der Mann heute den Arzt nicht anrufen kann",
    ),
    (
        clause("he", "close", negated=True, accusative="the door"),
        None,
        "he does not close the door",
        "er macht die Tür nicht zu",
        "er die Tür nicht zumacht",
    ),
    (
        clause("they", "work", "want to", negated=True),
        None,
        "they do not want to work",
        "sie wollen nicht arbeiten",
        "sie nicht arbeiten wollen",
    ),
    (
        clause("the red coat", "belong to", dative="the queens"),
        None,
        "the red coat belongs to the queens",
        "der rote Mantel gehört den Königinnen",
        "der rote Mantel den Königinnen gehört",
    ),
]


@pytest.mark.parametrize("one, front, english, german, final", STATEMENTS, ids=[row[2] for row in STATEMENTS])
def test_statements(one, front, english, german, final):
    assert one.english(front) == english
    assert one.german(front) == german
    assert one.german_final() == final


QUESTIONS = [
    (clause("she", "arrive"), "", "does she arrive", "kommt sie an"),
    (clause("I", "eat", accusative="an egg"), "", "do I eat an egg", "esse ich ein Ei"),
    (clause("the man", "sing", "can"), "", "can the man sing", "kann der Mann singen"),
    (
        clause("he", "draw", "want to", accusative="a horse"),
        "",
        "does he want to draw a horse",
        "will er ein Pferd zeichnen",
    ),
]


@pytest.mark.parametrize("one, front, english, german", QUESTIONS, ids=[row[2] for row in QUESTIONS])
def test_questions_begin_with_the_verb(one, front, english, german):
    assert (one.english_question(), one.german(front)) == (english, german)


def test_the_forms_of_the_verbs():
    """er, by hand; ich and wir follow from the infinitive."""
    changed = """schläft liest isst sieht hilft gibt lädt lacht arbeitet singt tanzt spielt wartet steht wacht kommt
        findet sucht hört liebt kennt besucht schreibt kauft verkauft braucht zeichnet repariert macht schaltet zieht
        ruft holt bringt dankt folgt antwortet vertraut zeigt schickt gehört verschwindet brennt"""
    assert {verb.er for verb in VERBS} == set(changed.split())
    assert all(re.fullmatch(r"[a-zäöü]+en", verb.german) for verb in VERBS)


def forms(verb):
    return [german_form(verb, person) for person in PERSONS]


def test_the_small_words():
    assert [" ".join([word.english, *forms(word)]) for word in MODALS] == [
        "can kann kann können",
        "must muss muss müssen",
        "may darf darf dürfen",
        "should sollte sollte sollten",
        "want to will will wollen",
    ]
    assert [" ".join([word.english, *forms(word)]) for word in REPORTS] == [
        "know weiß weiß wissen",
        "think glaube glaubt glauben",
        "say sage sagt sagen",
        "hope hoffe hofft hoffen",
    ]
    conjunctions = [(word.english, word.german) for word in words()["conjunction"]]
    assert conjunctions == [("because", "weil"), ("although", "obwohl"), ("when", "wenn")]
    assert [f"{one.english} {one.german} {one.person}" for one in PRONOUN.values()] == [
        "I ich first",
        "he er third",
        "she sie third",
        "we wir plural",
        "they sie plural",
    ]
    assert {one.english: one.german for one in TIMES} == {
        "today": "heute",
        "sometimes": "manchmal",
        "every day": "jeden Tag",
        "in the morning": "am Morgen",
        "in the evening": "am Abend",
        "on Sunday": "am Sonntag",
    }


# ---- What is drawn ----

SEPARABLE = """get up|wake up|fall asleep|come back|arrive|open|close|turn on|turn off|put on|call|pick up|invite|
bring along|listen to""".replace("\n", "")
SEPARABLE = re.compile(r"\b(" + re.sub(r"(\w+)( \w+)?(\||$)", r"\1s?\2\3", SEPARABLE) + r")\b")
SHOWN = {
    "question": lambda one: one.german.endswith("?"),
    "verb final": lambda one: bool({"dass", "weil", "obwohl", "wenn"} & set(one.german.split())),
    "negation": lambda one: bool(re.search(r"\b(nicht|kein(|e|en|em|er))\b", one.german)),
    "modal verb": lambda one: bool(re.search(r"\b(can|cannot|must|may|should|wants? to)\b", one.english)),
    "pronoun subject": lambda one: bool({"I", "he", "she", "we", "they"} & set(one.english.split())),
    "separable verb": lambda one: bool(SEPARABLE.search(one.english)),
    "adjective": lambda one: bool(ADJECTIVE.keys() & set(one.english.split())),
    "plural": lambda one: bool({noun.english_plural for noun in NOUNS} & set(one.english.split())),
    "verb second": lambda one: (
        not one.english.endswith("?")
        and bool(
            re.match(r"(because|although|when|today|sometimes|every day|in|on|with|without|for) |[^,]* , ", one.english)
        )
    ),
}


@pytest.mark.parametrize("tag", SHOWN)
def test_tags_say_what_the_words_show(splits, tag):
    wrong = [one for one in every(splits) if (tag in one.phenomena) != SHOWN[tag](one)]
    assert not wrong, wrong[:3]


def test_cases_are_tagged(splits):
    """A masculine noun in the singular shows its case; so the tags can be read from it, one way."""
    articles = {"accusative": "(den|diesen|einen|meinen|keinen)", "dative": "(im|dem|diesem|einem|meinem|keinem)"}
    masculine = "|".join(noun.german for noun in NOUNS if noun.gender == "m" and noun.german != noun.german_plural)
    for case, article in articles.items():
        shown = [one for one in every(splits) if re.search(rf"\b{article} ([a-zßäöü]+en )?({masculine})\b", one.german)]
        assert len(shown) > 500 and all(case in one.phenomena for one in shown)
    subject = re.compile(rf"\b(dieser|ein|mein|kein) ([a-zßäöü]+ )?({masculine})\b")
    shown = [one for one in every(splits) if subject.search(one.german)]
    assert len(shown) > 500 and all("noun subject" in one.phenomena for one in shown)
    bare = [one for one in every(splits) if not {"accusative", "dative"} & set(one.phenomena)]
    assert not [one for one in bare if re.search(r"\b(den|diesen|dem|diesem|im|für|ohne)\b", one.german)]


def test_every_sentence_has_a_phenomenon_in_the_order_of_the_list(splits):
    for one in every(splits):
        assert one.phenomena and list(one.phenomena) == [tag for tag in PHENOMENA if tag in one.phenomena]
    count = Counter(tag for one in splits["test"] for tag in one.phenomena)
    assert min(count[tag] for tag in PHENOMENA) >= 30, count


FINITE = {verb.er for verb in VERBS} | {verb.german for verb in VERBS} | {verb.german[:-1] for verb in VERBS}
FINITE |= {form for word in MODALS for form in forms(word)} | {
    "weiß",
    "glaube",
    "glaubt",
    "sage",
    "sagt",
    "hoffe",
    "hofft",
}
FINITE |= {"wissen", "glauben", "sagen", "hoffen"}
PREFIXES = {"auf", "ein", "an", "zurück", "zu", "aus", "ab", "mit"}


def main_clause(german):
    """The main clause of a German sentence without its question mark, and what stands before it."""
    german = german.removesuffix(" ?")
    if german.split()[0] in ("weil", "obwohl", "wenn"):
        before, main = german.split(" , ")
        return before, main
    return "", german.split(" , ")[0]


def test_the_verb_comes_second_after_a_time(splits):
    fronted = [one for one in every(splits) if "verb second" in one.phenomena]
    times = tuple(time.german for time in TIMES)
    found = 0
    for one in fronted:
        before, main = main_clause(one.german)
        if before:
            found += 1
            assert main.split()[0] in FINITE, one
        elif main.startswith(times):
            found += 1
            time = next(time for time in times if main.startswith(time))
            assert main.removeprefix(time).split()[0] in FINITE, one
    assert found > 1000


def test_subordinate_clauses_end_with_the_verb(splits):
    whole = {verb.prefix + form for verb in VERBS for form in (verb.er, verb.german, verb.german[:-1])}
    modals = {form for word in MODALS for form in forms(word)}
    whole |= modals
    found = 0
    for one in every(splits):
        for sub in re.findall(r"\b(?:dass|weil|obwohl|wenn) ([^,]+?)(?: ,|$)", one.german):
            found += 1
            assert sub.split()[-1] in whole, one
            before = sub.split()[:-2] if sub.split()[-1] in modals else sub.split()[:-1]
            assert not (whole | FINITE) & set(before), one
    assert found > 2000


def test_prefixes_and_infinitives_stand_at_the_end_of_the_main_clause(splits):
    infinitives = {verb.prefix + verb.german for verb in VERBS}
    for one in every(splits):
        if "verb final" in one.phenomena:
            continue
        last = main_clause(one.german)[1].split()[-1]
        assert ("modal verb" in one.phenomena) <= (last in infinitives), one
        if "separable verb" in one.phenomena and "modal verb" not in one.phenomena:
            assert last in PREFIXES, one


def test_prepositions_have_their_case(splits):
    wrong = [
        r"\b(mit|in) (die|das|dieses|eine|ein|einen|meine|mein|meinen (\w+ )?(Freund|Onkel|Arzt))\b",
        r"\bmit den (\w+ )?(Mann|Freund|Arzt|Onkel|Lehrer)\b",
        r"\b(ohne|für) (der|dem|einem|einer|meinem|meiner)\b",
        r"\bin dem\b",
    ]
    for one in every(splits):
        assert not any(re.search(pattern, one.german) for pattern in wrong), one
    for preposition in ("mit", "in", "im", "ohne", "für"):
        assert sum(f" {preposition} " in f" {one.german} " for one in every(splits)) > 30, preposition


def test_nicht_stands_where_nobody_would_move_it(splits):
    """After definite objects, and never with a time or an added phrase behind the subject."""
    found = 0
    for one in every(splits):
        for part in re.split(" , ", one.german):
            if "nicht" in part.split():
                found += 1
                before, after = part.split("nicht")
                assert not re.search(r"\b(im|in|mit|ohne|für) \w", after), one
                # What stands before it begins with the subject or, in a statement, with what is in front.
                before = " ".join(before.split()[2 if one.german.split()[0] != "weil" else 0 :])
                assert not re.search(r"\b(heute|manchmal|am Morgen|am Abend|am Sonntag)\b", before), one
    assert found > 300
    indefinite = r"\b(do|does|cannot|should) not \w+( (up|on|off|for|to|along|back|asleep))? (a|an|red|new|old) "
    assert not [one for one in every(splits) if re.search(indefinite, one.english)]


def test_question_words(splits):
    dative = r"\b(h[ie]lf|dank|folg|antwort|vertrau|gehör|.* zu( \?|$)|zuhör)"
    found = Counter()
    for one in every(splits):
        first = one.german.split()[0]
        if first in ("wem", "wen"):
            assert bool(re.search(dative, one.german)) == (first == "wem"), one
        english = {"wem": "whom", "wen": "whom", "wer": "who", "was": "what", "wo": "where", "wann": "when"}.get(first)
        if "question" in one.phenomena and (
            english or one.english.split()[0] in ("who", "whom", "what", "where", "when")
        ):
            found[first] += 1
            assert one.english.split()[0] == english and one.english.endswith("?"), one
    assert len(found) == 6 and min(found.values()) > 5, found


def test_splits_are_as_large_as_asked_and_disjoint(splits):
    assert {name: len(some) for name, some in splits.items()} == {
        "train": 6000,
        "valid": 500,
        "test": 500,
        "unseen": 200,
    }
    english = [one.english for one in every(splits)]
    assert len(set(english)) == len(english)
    assert all(max(len(one.english.split()), len(one.german.split())) <= LONGEST for one in every(splits))


def test_unseen_pairs_of_verb_and_object_are_in_no_other_split():
    """Found by the words alone, for objects that cannot be the subject of their verb."""
    splits = sentences(train=6_000, valid=500, test=500, unseen=200, seed=3)
    things = [(verb, noun) for verb, noun in UNSEEN if NOUN[noun].kinds not in ("person", "animal")]
    assert len(things) == 10 and all(VERB[verb].case for verb, _ in UNSEEN)

    def together(sentence, verb, noun):
        conjunctions = r"(?:^| |, )(?:because|although|when(?! do)|that) "
        clauses = re.split(conjunctions + "| , " if re.search(conjunctions, sentence) else "$", sentence)
        first, *rest = verb.split()
        verb, noun = " ".join([first + "s?", *rest]), f"({noun}|{NOUN[noun].english_plural})"
        return any(re.search(rf"\b{verb}\b", one) and re.search(rf"\b{noun}\b", one) for one in clauses)

    for name, some in splits.items():
        found = sum(together(one.english, *pair) for one in some for pair in things)
        assert found > 60 if name == "unseen" else found == 0, name
    assert clause("he", "help", dative="a horse").unseen() and clause("he", "see", accusative="the queens").unseen()
    assert clause("she", "give", dative="the child", accusative="my egg").unseen()
    assert not clause("she", "give", dative="the child", accusative="my cake").unseen()
    assert not clause("the girl", "follow", dative="a horse").unseen()
    # Both words are known apart.
    words = {word for one in splits["train"] for word in one.english.split()}
    assert {noun for _, noun in UNSEEN} <= words and {verb.split()[0] for verb, _ in UNSEEN} <= words


def test_an_english_sentence_has_one_translation_whatever_the_seed(splits):
    first = {one.english: one for one in every(splits)}
    other = sentences(train=20_000, valid=1, test=1, unseen=100, seed=1)
    again = [one for one in every(other) if one.english in first]
    assert len(again) > 100 and all(first[one.english] == one for one in again)
    assert len(again) < len(first) / 2  # other sentences, and not other slices of the same


def test_more_training_sentences_leave_the_other_splits_alone(splits):
    more = sentences(train=7_000, valid=500, test=500, unseen=200, seed=0)
    assert more["train"][:6000] == splits["train"] and len(more["train"]) == 7000
    assert all(more[name] == splits[name] for name in ("valid", "test", "unseen"))


def test_the_splits_are_alike(splits):
    means = [sum(len(one.german.split()) for one in splits[name]) / len(splits[name]) for name in ("train", "test")]
    assert abs(means[0] - means[1]) < 0.5, means


def test_the_sentences_are_those_of_the_recorded_studies(splits):
    lines = [f"{name} {one.english} {one.german} {one.phenomena}" for name, some in splits.items() for one in some]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == "8943b232258895da32679cf566c6f3eab825a87b8d89611668e7843507ecb480"


def damage_missing(table):
    table.unlink()


def damage_cut(table):
    table.write_bytes(table.read_bytes()[:3000])


def damage_word(table):
    table.write_bytes(table.read_bytes().replace(b"Hund\t", b"Wolf\t"))


def damage_column(table):
    table.write_bytes(table.read_bytes().replace(b"gender", b"genus", 1))


@pytest.mark.parametrize("damage", [damage_missing, damage_cut, damage_word, damage_column])
def test_a_table_that_is_missing_or_not_the_known_one_is_one_sentence(tmp_path, damage):
    shutil.copy(DATA / "grammar_words.tsv", tmp_path)
    damage(tmp_path / "grammar_words.tsv")
    with pytest.raises(
        CorpusError, match="grammar_words.tsv (is damaged or edited|.*No such file).*: fetch it"
    ) as error:
        sentences(train=1, valid=1, test=1, unseen=1, folder=tmp_path)
    assert "\n" not in str(error.value)


def test_a_corpus_keeps_the_order_and_knows_every_word(splits):
    corpus = grammar_corpus(splits)
    assert corpus.tokenizer.start == 1 and set(corpus.dropped.values()) == {0} and corpus.max_length == LONGEST + 1
    for name, some in splits.items():
        for one, (source, target) in zip(some, corpus.splits[name], strict=True):
            assert corpus.tokenizer.decode(source) == one.english and corpus.tokenizer.decode(target) == one.german
        assert corpus.texts[name] == [(one.english, one.german) for one in some]


def test_the_score_counts_whole_sentences_by_phenomenon():
    some = [
        Sentence("a", "eins zwei", ("dative", "plural")),
        Sentence("b", "drei", ("dative",)),
        Sentence("c", "vier", ("question",)),
    ]
    assert score(some, ["eins zwei", "drei ?", "vier"]) == {
        "all": (2, 3),
        "dative": (1, 2),
        "plural": (1, 1),
        "question": (1, 1),
    }
    with pytest.raises(ValueError, match="3 sentences but 2 translations"):
        score(some, ["eins", "zwei"])


def test_sizes_are_checked():
    for name in ("train", "valid", "test", "unseen"):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            sentences(**{name: 0})
