"""Texts, pairs and labels of one's own: how a file is read and split, what is measured, and every refusal."""

import json
import math
import os
import signal
from collections import Counter

import pytest
import torch
from torch.nn import functional as F

from synth_lib.lab import own
from synth_lib.lab import train as training
from synth_lib.lab.__main__ import main
from synth_lib.lab.own import OwnLabels, OwnPairs, OwnText, measured, read_rows, read_text, split_rows, split_text
from synth_lib.lab.train import Settings
from synth_lib.models import LanguageModel
from synth_lib.text.baselines import bleu, copy_nearest, tfidf_logistic_regression

CPU = torch.device("cpu")
TEXT = "the cat sat on the mat, the dog sat on the log.\n" * 40
NUMBERS = "one two three four five six seven eight nine ten".split()
SIZES = {"score": "random + dense", "d_model": 12, "head": 3, "layer": 1, "max_length": 40, "dropout": 0.1}
SETTINGS = Settings(steps=60, batch=5, warmup=3, learning_rate=1e-2, evaluate_every=60)
SMALL = "--d_model 12 --head 3 --layer 1 --steps 4 --batch 4 --evaluate_every 2 --quiet --device cpu".split()
FILES = {
    "text": TEXT,
    "pairs": "".join(
        f"{one} and {other}\t{other} und {one} sind so da{' ja wohl' * (len(one) - 3)}\n"
        for one in NUMBERS
        for other in NUMBERS
    ),
    "labels": "".join(f"{one} {other}\t{'xyz'[len(one) % 3]}\n" for one in NUMBERS for other in NUMBERS),
}
FITTING = {
    "text": ["--max_length", "8", "--windows", "4"],
    "pairs": ["--max_length", "40", "--vocab", "300"],
    "labels": ["--max_length", "40", "--vocab", "300"],
}
KINDS = list(FILES)


@pytest.fixture(autouse=True)
def listen_to_ctrl_c():
    """A process in the background can inherit that Ctrl-C is ignored; these tests send it themselves."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def write(folder, text, name="own.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def task_of(kind, path):
    if kind == "text":
        return OwnText(path, length=8, windows=4)
    return {"pairs": OwnPairs, "labels": OwnLabels}[kind](path, 300, SIZES["max_length"], CPU)


def command(kind, path, folder, *more):
    return ["train", f"--{kind}", str(path), "--folder", str(folder), *SMALL, *FITTING[kind], *more]


def refusal(capsys, *arguments):
    """The last line of what the command writes when it refuses: it is one sentence, and nothing is left behind."""
    with pytest.raises(SystemExit) as caught:
        main(["train", *map(str, arguments)])
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("python -m synth_lib.lab train: error:") for line in lines[-2:]] == [False, True]
    return lines[-1]


# Reading


@pytest.mark.parametrize("raw", [b"a\nb\n", b"\xef\xbb\xbfa\nb\n", b"a\r\nb\r\n", b"\xef\xbb\xbfa\r\nb\r\n", b"a\rb\r"])
def test_a_byte_order_mark_and_other_line_ends_do_no_harm(tmp_path, raw):
    assert read_text(write(tmp_path, raw)) == "a\nb\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "raw, message",
    [
        (b"", "own.txt is empty"),
        (b"\xef\xbb\xbf\r\n", "own.txt is empty"),
        (b"abc\0d", "own.txt has a NUL byte at byte 3, counted from 0"),
        (b"ab\ncaf\xe9 au lait", "own.txt is not UTF-8: byte 6, counted from 0, in line 2, is 0xe9"),
        (b"ab\xc3", "own.txt is not UTF-8: byte 2, counted from 0, in line 1, is 0xc3"),
        ("text".encode("utf-16"), "own.txt begins, at byte 0, with the byte order mark of UTF-16"),
        ("text".encode("utf-32"), "own.txt begins, at byte 0, with the byte order mark of UTF-16 or UTF-32: save it"),
        ("text".encode("utf-16-le"), "has a NUL byte at byte 1, counted from 0, so it is no text in UTF-8: if it is"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, capsys, kind, raw, message):
    assert message in refusal(capsys, f"--{kind}", write(tmp_path, raw), "--folder", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_no_file_is_refused(tmp_path, capsys):
    assert "is a folder: name a file" in refusal(capsys, "--text", tmp_path)
    assert "cannot be read: No such file" in refusal(capsys, "--text", tmp_path / "none")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert "is no ordinary file" in refusal(capsys, "--text", tmp_path / "pipe")


def test_the_rows_of_a_table(tmp_path):
    assert read_rows(write(tmp_path, "\ufeffa b\tc\r\n\r\n d\te f\r\n")) == [("a b", "c"), (" d", "e f")]


@pytest.mark.parametrize("kind", ["pairs", "labels"])
@pytest.mark.parametrize(
    "text, message",
    [
        ("a\tb\n\nc\td\te\n", "line 3 of .*own.txt has 3 columns, not 2"),
        ("a\tb\nc\n", "line 2 of .*own.txt has 1 columns, not 2"),
        ("a\tb\nc\td\n \te\n", "line 3 of .*own.txt has nothing in column 1"),
        ("a\t\n", "line 1 of .*own.txt has nothing in column 2"),
    ],
)
def test_a_line_that_has_not_two_columns_is_named(tmp_path, kind, text, message):
    with pytest.raises(ValueError, match=message):
        task_of(kind, write(tmp_path, text))


# Splitting


@pytest.mark.parametrize("length", [40, 99, 1000, 1001])
def test_a_text_is_split_into_parts_that_follow_each_other(length):
    text = "".join(chr(1000 + number) for number in range(length))
    parts = split_text(text)
    assert parts["train"] + parts["valid"] + parts["test"] == text
    assert abs(len(parts["train"]) - 0.9 * length) <= 1 and abs(len(parts["valid"]) - 0.05 * length) <= 1


def test_rows_are_split_by_their_first_column_whole_and_disjoint():
    rows = [(f"text {number % 700}", f"{number}") for number in range(1000)]  # 300 texts stand there twice
    splits = split_rows(rows)
    assert Counter(row for part in splits.values() for row in part) == Counter(rows)
    texts = [{text for text, _ in part} for part in splits.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 700
    assert 0.75 < len(splits["train"]) / 1000 < 0.85 and len(splits["valid"]) > 50 < len(splits["test"])
    for split, part in split_rows(rows[:500]).items():  # a row stays where it is when others come
        assert part == splits[split][: len(part)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_the_split_is_what_is_trained_on(tmp_path, kind):
    task = task_of(kind, write(tmp_path, FILES[kind]))
    if kind == "text":
        assert f"{len(TEXT):,} characters; the first 1,728 train, the next 96 are valid, the last 96 are test" in (
            task.lines[0]
        )
        assert "".join(task.tokenizer.decode(task.splits[split]) for split in ("train", "valid", "test")) == TEXT
        return
    sizes = {split: len(examples.size) for split, examples in task.splits.items()}
    assert sizes == {split: len(part) for split, part in split_rows(read_rows(tmp_path / "own.txt")).items()}
    assert ", ".join(f"{split} {size}" for split, size in sizes.items()) in task.lines[0] and sum(sizes.values()) == 100


def test_characters_that_training_lacks_count_as_never_seen(tmp_path):
    text = TEXT[:-4] + "§Q§\n"
    task = OwnText(write(tmp_path, text), length=8, windows=4)
    assert "2 of them are in valid or test alone, so training never shows them: 'Q' '§'" in task.lines[1]
    assert task.tokenizer.vocab == len(set(text))
    assert task.tokenizer.decode(task.splits["test"]) == split_text(text)["test"]
    assert all(math.isfinite(loss) for row in task.counted().values() for loss in row.values())
    assert "training has all of them" in OwnText(write(tmp_path, TEXT), length=8, windows=4).lines[1]


def test_byte_pairs_say_how_many_there_are(tmp_path):
    task = OwnText(write(tmp_path, TEXT[:-4] + "§Q§\n"), "byte_pairs", 5000, 4, 2)
    reached = task.tokenizer.vocab
    assert reached < 5000 and f"{reached} kinds of byte pairs, of the 5000 asked for" in task.lines[1]
    assert task.tokenizer.decode(task.splits["test"]).endswith("§Q§\n")


def test_pairs_that_are_too_long_are_left_out_and_counted(tmp_path):
    long = "".join(f"{number} {'word ' * 30}\t{number}\n" for number in range(50))
    task = OwnPairs(write(tmp_path, FILES["pairs"] + long), 256 + 4, 40, CPU)
    kept = {split: len(examples.size) for split, examples in task.splits.items()}
    dropped = {split: len(part) - kept[split] for split, part in split_rows(read_rows(tmp_path / "own.txt")).items()}
    assert sum(dropped.values()) >= 50
    counts = ", ".join(f"{split} {count}" for split, count in dropped.items())
    assert f"more than max_length = 40 tokens: {counts}" in "\n".join(task.lines)


# What does not fit


@pytest.mark.parametrize("size, windows, length", [(2000, 64, 128), (2000, 64, 8), (4000, 3, 100), (60, 1, 8)])
def test_windows_that_do_not_fit_are_refused_with_the_largest_that_do(tmp_path, size, windows, length):
    path = write(tmp_path, (TEXT * 3)[:size])
    with pytest.raises(ValueError, match="the largest that fit are --") as caught:
        OwnText(path, length=length, windows=windows)
    for proposal in str(caught.value).split("the largest that fit are ")[1].split(" or "):
        words = proposal.split()
        options = {"max_length": length, "windows": windows}
        options |= {name[2:]: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}
        task = OwnText(path, length=options["max_length"], windows=options["windows"])
        assert len(task.evaluation_windows("test")[0]) == options["windows"]
        for name in options:
            if len(words) == 2 and name in proposal or len(words) == 4 and name == "max_length":
                more = options | {name: options[name] + 1}
                with pytest.raises(ValueError, match="do not fit"):
                    OwnText(path, length=more["max_length"], windows=more["windows"])


@pytest.mark.parametrize("size", [1, 5, 20])
def test_a_tiny_text_is_refused(tmp_path, size):
    with pytest.raises(ValueError, match=f"is too short: of its {size} characters .* give 40 characters or more"):
        OwnText(write(tmp_path, TEXT[:size]), length=1, windows=1)
    OwnText(write(tmp_path, TEXT[:40]), length=1, windows=1)


@pytest.mark.parametrize("kind", ["pairs", "labels"])
def test_too_few_examples_are_refused(tmp_path, kind):
    few = "".join(FILES[kind].splitlines(keepends=True)[:3])
    with pytest.raises(ValueError, match="has 3 .*, too few: .* train 3, valid 0, test 0, .* give about 50 or more"):
        task_of(kind, write(tmp_path, few))


def test_labels_of_one_class_are_refused_and_those_that_training_lacks_are_said(tmp_path):
    rows = FILES["labels"].splitlines()
    texts = [row.split("\t")[0] for row in rows]
    with pytest.raises(ValueError, match="the second column of .* has one label alone, 'x'"):
        task_of("labels", write(tmp_path, "".join(f"{text}\tx\n" for text in texts)))
    tested = {text for text, _ in split_rows([(text, "") for text in texts])["test"]}
    with pytest.raises(ValueError, match="the training examples of .* have one label alone, 'x'"):
        task_of("labels", write(tmp_path, "".join(f"{text}\t{'xw'[text in tested]}\n" for text in texts)))
    some = next(iter(tested))
    changed = [f"{some}\tw" if text == some else row for text, row in zip(texts, rows, strict=True)]
    task = task_of("labels", write(tmp_path, "\n".join(changed)))
    assert "in valid or test alone, so training never shows them: 'w'" in task.lines and task.classes == 4


def test_many_labels_are_not_all_shown(tmp_path):
    rows = "".join(f"text {number}\tlabel {number % 30:02}\n" for number in range(300))
    (line,) = [line for line in task_of("labels", write(tmp_path, rows)).lines if line.startswith("30 labels: ")]
    assert line.startswith("30 labels: 'label 00' 10, 'label 01' 10, ") and line.endswith("'label 19' 10, ...")


@pytest.mark.parametrize(
    "options, message",
    [
        ("--text a --corpus tinyshakespeare", "--corpus is not for --text"),
        ("--pairs a --corpus shakespeare", "--corpus is not for --pairs"),
        ("--labels a --tokens characters", "--tokens is not for --labels"),
        ("--pairs a --tokens byte_pairs", "--tokens is not for --pairs"),
        ("--pairs a --windows 3", "--windows is not for --pairs"),
        ("--text a --labels b", "--text and --labels are different tasks"),
        ("--text a --pairs b --labels c", "--text and --pairs and --labels are different tasks"),
        ("--text a --vocab 300", "--vocab is for --tokens byte_pairs alone"),
        ("--text OWN --tokens words", "'characters' or 'byte_pairs', not 'words'"),
        ("--text OWN --tokens byte_pairs --vocab 9", "vocab must be at least 256"),
        ("--text OWN --windows 0", "windows is 0"),
        ("--text OWN --max_length 0", "max_length is 0"),
        ("--pairs PAIRS --vocab 259", "vocab must be at least 260"),
        ("--pairs PAIRS --max_length 3", "max_length is 3, but every example of the split train is longer"),
        ("--pairs PAIRS --batch 500", "--batch 500 is more than the "),
        ("--pairs PAIRS --sample 99", "sample is 99, but the split test has "),
        ("--pairs PAIRS --sample -1", "sample is -1"),
        ("--text OWN --score dense --r_weight_decay 0.1", "--r_weight_decay is for scores with a learned table"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, capsys, options, message):
    paths = {"OWN": write(tmp_path, TEXT * 20), "PAIRS": write(tmp_path, FILES["pairs"], "pairs.tsv")}
    arguments = [paths.get(word, word) for word in options.split()]
    assert message in refusal(capsys, *arguments, "--folder", tmp_path / "run", "--device", "cpu")


def test_a_package_that_is_missing_is_named(tmp_path, capsys, monkeypatch):
    def missing(*arguments):
        raise ModuleNotFoundError("No module named 'sacrebleu'")

    monkeypatch.setattr(own.baselines, "bleu", missing)
    line = refusal(capsys, *command("pairs", write(tmp_path, FILES["pairs"]), tmp_path / "run")[1:])
    assert "No module named 'sacrebleu', which this needs: pip install" in line


# What counting reaches


def counted_loss(train, texts, length, windows, vocab, order, extra, per_follower):
    """Nats per character of an n-gram model, one character at a time, as `baselines.ngram_loss` says."""
    counts = Counter(
        train[start : start + size] for size in range(1, order + 1) for start in range(len(train) - size + 1)
    )
    followers = Counter(run[:-1] for run in counts)

    def probability(context, character):
        if not context:
            return (counts[character] + 1) / (len(train) + vocab)
        seen = counts[context] - train.endswith(context)
        if len(context) == 1:
            return (counts[context + character] + 1) / (seen + vocab)
        weight = extra + per_follower * followers[context]
        shorter = probability(context[1:], character)
        return (counts[context + character] + weight * shorter) / (seen + weight) if seen + weight else shorter

    losses = []
    available = (len(texts) - 1) // length
    for number in range(windows):
        first = number * available // windows * length
        for position in range(first + 1, first + length + 1):
            context = texts[max(first, position - order + 1) : position]
            losses.append(-math.log(probability(context, texts[position])))
    return sum(losses) / len(losses)


def test_the_best_ngrams_are_those_of_a_slow_count(tmp_path, monkeypatch):
    text = FILES["pairs"]
    task, parts = OwnText(write(tmp_path, text), length=9, windows=5), split_text(text)
    monkeypatch.setattr(own.baselines, "EXTRA", (1, 10))  # a part of the grid: the slow count takes its time
    monkeypatch.setattr(own.baselines, "PER_FOLLOWER", (0, 3, 12))

    def slow(split, choice):
        return counted_loss(parts["train"], parts[split], 9, 5, len(set(text)), *choice)

    ((name, row),) = task.counted().items()
    grid = [(order, extra, each) for extra in (1, 10) for each in (0, 3, 12) for order in range(1, 11)]
    best = min(grid, key=lambda choice: slow("valid", choice))
    assert name == f"{best[0]}-gram counts, order and weights chosen on valid"
    assert row["valid, nats per token"] == pytest.approx(slow("valid", best), rel=1e-6)
    assert row["test, nats per token"] == pytest.approx(slow("test", best), rel=1e-6)


def test_copying_and_counting_words_use_the_same_split(tmp_path):
    splits = split_rows(read_rows(write(tmp_path, FILES["pairs"])))
    sources, targets = zip(*splits["test"], strict=True)
    expected, _ = bleu(copy_nearest(splits["train"], sources), targets)
    ((_, row),) = task_of("pairs", tmp_path / "own.txt").counted().items()
    assert row == {"test, BLEU": expected} and 0 < expected < 100
    splits = split_rows(read_rows(write(tmp_path, FILES["labels"])))
    words, largest = task_of("labels", tmp_path / "own.txt").counted().items()
    common = Counter(label for _, label in splits["train"]).most_common(1)[0][0]
    assert repr(common) in largest[0]
    for split in ("valid", "test"):
        labels = [label for _, label in splits[split]]
        assert largest[1][f"{split}, accuracy"] == labels.count(common) / len(labels)
        assert words[1][f"{split}, accuracy"] == tfidf_logistic_regression(splits["train"], splits[split])


def test_texts_without_words_have_the_largest_class_alone(tmp_path):
    rows = "".join(f"{chr(0x4E00 + number)}\t{'ab'[number % 2]}\n" for number in range(100))
    task = task_of("labels", write(tmp_path, rows))
    assert [name[:6] for name in task.counted()] == ["always"]
    assert "no TF-IDF: the training texts have no word of two letters or more" in task.lines


# What the model reaches


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_told_of_the_model_is_what_it_reaches(tmp_path, kind):
    task = task_of(kind, write(tmp_path, FILES[kind]))
    sizes = SIZES | {"dropout": 0.5} | ({"max_length": 8} if kind == "text" else {})
    model, record = task.train(sizes, SETTINGS, device="cpu", progress=False)
    found = measured(task, model, "float32")
    assert model.training  # as it was
    unit = "nats per text" if kind == "labels" else "nats per token"
    assert record["unit"] == unit and found[f"valid, {unit}"] == pytest.approx(record["final_loss"], rel=1e-5)
    losses, given = [], []
    with torch.no_grad():
        model.eval()
        if kind == "text":
            inputs, targets = task.evaluation_windows("test")
            losses = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none").tolist()
        for first, second in task.texts["test"] if kind != "text" else ():  # one at a time: nothing is padded
            if kind == "labels":
                logits = model(task_tokens(task, first)[None])
                losses.append(F.cross_entropy(logits, torch.tensor([task.labels.index(second)])).item())
                given.append(task.labels[int(logits.argmax())])
            else:
                source, target = (task.tokenizer.encode(side) for side in (first, second))
                start, end = torch.tensor([task.tokenizer.start]), torch.tensor([task.tokenizer.end])
                logits = model(torch.cat([source, end])[None], torch.cat([start, target])[None])
                losses += F.cross_entropy(logits[0], torch.cat([target, end]), reduction="none").tolist()
    assert found[f"test, {unit}"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    if kind == "labels":
        right = [one == label for one, (_, label) in zip(given, task.texts["test"], strict=True)]
        assert task.given == given and found["test, accuracy"] == sum(right) / len(right)
    if kind == "pairs":
        targets = [target for _, target in task.texts["test"]]
        assert found["test, BLEU"] == bleu(task.translations(model, "test"), targets)[0]


def test_the_loss_of_pairs_is_a_mean_over_tokens_not_over_pairs_or_padding(tmp_path):
    task = task_of("pairs", write(tmp_path, FILES["pairs"]))
    test = task.splits["test"]
    order = test.size.argsort()
    task.test = [test.batch(order[[0, -1]]), test.batch(order[1:-1])]  # the first has much padding
    task.loss = lambda model, source, *others: torch.tensor(float(len(source)))
    tokens = torch.tensor([len(task.tokenizer.encode(target)) + 1 for _, target in task.texts["test"]])[order]
    ends, between = int(tokens[[0, -1]].sum()), int(tokens[1:-1].sum())
    expected = (2 * ends + (len(order) - 2) * between) / (ends + between)
    found = task.losses(task.build(**SIZES))
    assert found["test, nats per token"] == pytest.approx(expected, rel=1e-9)


def task_tokens(task, text):
    """The tokens of a text of the split test, from the padded table of the task."""
    row = [first for first, _ in task.texts["test"]].index(text)
    tokens, lengths, _ = task.splits["test"].batch(torch.tensor([row]))
    return tokens[0, : int(lengths[0])]


def test_a_translator_and_a_classifier_learn(tmp_path):
    settings = Settings(steps=150, batch=16, warmup=20, learning_rate=1e-2, evaluate_every=150)
    for kind, column in (("pairs", "test, BLEU"), ("labels", "test, accuracy")):
        task = task_of(kind, write(tmp_path, FILES[kind]))
        sizes = SIZES | {"d_model": 24, "score": "dot_product", "dropout": 0.0}
        model, record = task.train(sizes, settings, device="cpu", progress=False)
        assert record["final_loss"] < 0.6 * record["curve"][0]["loss"]
        untrained = measured(task, task.build(**sizes), "float32")[column]
        assert measured(task, model, "float32")[column] > untrained


# The command


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_trains_says_all_and_resumes_to_the_same(tmp_path, capsys, monkeypatch, kind):
    path, whole, broken = write(tmp_path, FILES[kind]), tmp_path / "whole", tmp_path / "broken"
    assert main(command(kind, path, whole, "--sample", "2")) == 0
    out = capsys.readouterr().out
    record = json.loads((whole / "record.json").read_text(encoding="utf8"))
    assert f"{path}: " in out and f"{record['final_loss']:.3f} {record['unit']} at step 4" in out
    results = record["results"]
    assert list(results)[0] == "the model" and len(results) == {"text": 2, "pairs": 2, "labels": 3}[kind]
    for name, row in results.items():
        line = next(line for line in out.splitlines() if line.startswith(f"{name}  "))
        assert [cell for cell in line.removeprefix(name).split() if cell != "-"] == [f"{row[c]:.3f}" for c in row]
    heading = next(line for line in out.splitlines() if line.startswith("   "))
    assert all(column in heading for column in results["the model"]) and record["unit"] in heading
    if kind == "pairs":
        assert "the mean over all target tokens and ends, not over pairs" in out
    if kind != "text":
        assert out.count("\nmodel: ") == 2
    inner = training.schedule

    def schedule_and_stop(number, *arguments):
        if number == 2:
            signal.raise_signal(signal.SIGINT)
        return inner(number, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training, "schedule", schedule_and_stop)
        assert main(command(kind, path, broken)) == 130
    assert "stopped after step 3 of 4; --resume goes on from" in capsys.readouterr().out
    assert main(command(kind, path, broken, "--resume")) == 0
    resumed = json.loads((broken / "record.json").read_text(encoding="utf8"))
    assert resumed["curve"] == record["curve"] and resumed["results"] == results


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_file_is_refused(tmp_path, capsys, kind):
    path, folder = write(tmp_path, FILES[kind]), tmp_path / "run"
    assert main(command(kind, path, folder)) == 0
    capsys.readouterr()
    same = write(tmp_path, "\ufeff" + FILES[kind].replace("\n", "\r\n"))  # the same text in other bytes
    assert main(command(kind, same, folder, "--resume")) == 0
    changed = FILES[kind].replace("cat", "cap", 1) if kind == "text" else FILES[kind] + "new\tx\n"
    line = refusal(capsys, *command(kind, write(tmp_path, changed), folder, "--resume")[1:])
    assert "was made with text = 'own.txt, sha256 " in line and "give the same options as before" in line
    line = refusal(capsys, *command(kind, write(tmp_path, FILES[kind], "other.txt"), folder, "--resume")[1:])
    assert "this run has 'other.txt, sha256 " in line


def test_help_says_how_a_file_has_to_look(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    page = " ".join(capsys.readouterr().out.split())
    for said in ("--text file", "--pairs file", "--labels file", "in UTF-8; a byte order mark and the line ends of"):
        assert said in page
    assert "90 % train" in page and "80 % train, 10 % valid, 10 % test" in page


def test_a_text_without_line_ends_is_continued_from_its_first_character(tmp_path, capsys):
    path = write(tmp_path, TEXT.replace("\n", " "))
    assert main(command("text", path, tmp_path / "run", "--sample", "7")) == 0
    written = capsys.readouterr().out.split(" on valid ")[1].split("\n", 1)[1].rstrip("\n")
    assert written.startswith("t") and len(written) == 8


def test_what_is_written_follows_the_seed(tmp_path):
    task = task_of("text", write(tmp_path, TEXT))
    torch.manual_seed(0)
    model = LanguageModel(task.tokenizer.vocab, d_model=8, head=2, layer=1, max_length=8).eval()
    one, same, other = (own.write_text(model, task.tokenizer, TEXT[0], 40, seed) for seed in (1, 1, 2))
    assert one == same != other
