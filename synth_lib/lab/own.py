"""Your own text: what `python -m synth_lib.lab train` does with --text, --pairs and --labels.

A file is read and split. A model trains on the largest part; what it reaches on the others is told beside what
counting reaches there. Read top-down: the three tasks, then reading, splitting and the table.
"""

import codecs
import hashlib
from collections import Counter
from pathlib import Path

import torch

from synth_lib.lab.tasks import ClassificationTask, Examples, TranslationTask
from synth_lib.lab.train import autocast_on, evaluating, mean_loss, next_token_loss, train, train_language_model
from synth_lib.shapes import check_whole_number
from synth_lib.text import baselines, corpora
from synth_lib.text.corpora import SPLITS
from synth_lib.text.tokenizers import BytePairTokenizer, CharacterTokenizer, SpecialTokens


class OwnText:
    """The next token of a text: its first 90 % train, the next 5 % are "valid", the last 5 % "test".

    path: the file, for `read_text`. tokens, vocab: as for `corpora.shakespeare`. length, windows: so many windows of
    valid and of test, each of that many tokens, are measured. `lines` tell what was read, and how it was split.

    Characters that training lacks are in the vocabulary all the same: each counts in the loss as a token that was
    never seen. Byte pairs are learned on the training part; every other text can be written in them, byte by byte.

    Raises ValueError if the file is no text (see `read_text`), or too short for those windows.
    """

    def __init__(self, path, tokens="characters", vocab=1024, length=128, windows=64):
        check_whole_number("max_length", length)
        check_whole_number("windows", windows)
        text = read_text(path)
        self.name, self.windows, self.length = f"{Path(path).name}, {checksum(text)}", windows, length
        parts = split_text(text)
        if tokens == "characters":
            self.tokenizer = CharacterTokenizer(text)
        elif tokens == "byte_pairs":
            self.tokenizer = BytePairTokenizer(parts["train"], vocab)
        else:
            raise ValueError(f"tokens must be 'characters' or 'byte_pairs', not {tokens!r}")
        self.splits = {split: self.tokenizer.encode(part) for split, part in parts.items()}
        _check_windows(path, text, self.splits, length, windows)
        self.start = "\n" if "\n" in text else text[0]
        train, valid, test = (f"{len(parts[split]):,}" for split in SPLITS)
        self.lines = [
            f"{path}: {len(text):,} characters; the first {train} train, the next {valid} are valid, the last {test} "
            "are test",
            self._tokens_line(parts, vocab),
        ]

    def _tokens_line(self, parts, vocab):
        if isinstance(self.tokenizer, BytePairTokenizer):
            reached = self.tokenizer.vocab
            few = f", of the {vocab} asked for: the training part has no more pairs" if reached < vocab else ""
            sizes = ", ".join(f"{split} {len(tokens):,}" for split, tokens in self.splits.items())
            return f"tokens: {reached} kinds of byte pairs{few}; {sizes}"
        known = set(parts["train"])
        unseen = [character for character in self.tokenizer.characters if character not in known]
        line = f"tokens: {self.tokenizer.vocab} kinds of characters"
        if not unseen:
            return f"{line}; training has all of them"
        shown = " ".join(map(repr, unseen[:10])) + (" ..." if len(unseen) > 10 else "")
        return f"{line}; {len(unseen)} of them are in valid or test alone, so training never shows them: {shown}"

    def evaluation_windows(self, split):
        return corpora.evaluation_windows(self.splits[split], self.length, self.windows)

    def counted(self):
        """The best n-gram counts, chosen on valid: {its name: {column of the table: loss}}."""
        windows = map(self.evaluation_windows, ("valid", "test"))
        found = baselines.tuned_ngram_loss(self.splits["train"], *windows, self.tokenizer.vocab)
        name = f"{found['order']}-gram counts, order and weights chosen on valid"
        return {name: {"valid, nats per token": found["loss"], "test, nats per token": found["test_loss"]}}

    def train(self, sizes, settings, **options):
        """-> (model, record), see `train_language_model`."""
        return train_language_model(
            sizes, settings, self.tokenizer, self.splits, text=self.name, windows=self.windows, **options
        )

    def measure(self, model, device):
        found = {}
        for split in ("valid", "test"):
            batches = zip(*(part.split(128) for part in self.evaluation_windows(split)), strict=True)
            found[f"{split}, nats per token"] = mean_loss(model, next_token_loss, batches, device=device)
        return found

    def check_sample(self, count):
        check_whole_number("sample", count)

    def sample(self, model, count, seed):
        """`count` tokens that the model writes after a line end, or after the first character if there is none."""
        return write_text(model, self.tokenizer, self.start, count, seed)


class _OwnTable:
    """What pairs and labels share: rows of two columns, split by a hash of the first."""

    def _read(self, path, what):
        """{split: rows} of the file and its tokenizer; `lines` begin with both."""
        rows = read_rows(path)
        self.name, self.what = f"{Path(path).name}, {checksum(repr(rows))}", what
        texts = split_rows(rows)
        counts = [f"{split} {len(texts[split]):,}" for split in SPLITS]
        self.lines = [
            f"{path}: {len(rows):,} {what}, split by a hash of the first column, so that equal texts stay together: "
            + ", ".join(counts)
        ]
        for split in SPLITS:
            if not texts[split]:
                raise ValueError(
                    f"{path} has {len(rows)} {what}, too few: by a hash of the first column the splits are "
                    f"{', '.join(counts)}, and each needs one or more, so give about 50 or more different texts"
                )
        return texts

    def _make_tokenizer(self, texts, vocab):
        if vocab < 260:
            raise ValueError(f"vocab must be at least 260, the 256 bytes and four special tokens, not {vocab}")
        tokenizer = SpecialTokens(BytePairTokenizer("\n".join(texts), vocab - 4))
        few = f", of the {vocab} asked for: training has no more pairs" if tokenizer.vocab < vocab else ""
        self.lines.append(f"tokens: {tokenizer.vocab} kinds of byte pairs, four special ones among them{few}")
        return tokenizer

    def _say_dropped(self, corpus, length):
        if any(corpus.dropped.values()):
            dropped = ", ".join(f"{split} {number}" for split, number in corpus.dropped.items())
            self.lines.append(f"left out, since they need more than max_length = {length} tokens: {dropped}")

    def train(self, sizes, settings, **options):
        """-> (model, record), see `lab.train.train`. Raises ValueError for a batch that training cannot fill."""
        number = len(self.texts["train"])
        if settings.batch > number:
            raise ValueError(
                f"--batch {settings.batch} is more than the {number} training {self.what}: give {number} or less"
            )
        torch.manual_seed(settings.seed)
        model = self.build(**sizes)
        config = {"text": self.name, "model": type(model).__name__, "vocab": model.vocab, **sizes}
        return model, train(
            model, self.batches(settings.batch), self.valid, settings, config=config, loss=self.loss, unit=self.unit,
            count=self.count, **options,
        )  # fmt: skip

    def losses(self, model):
        batches = {"valid": self.valid, "test": self.test}
        return {
            f"{split}, {self.unit}": mean_loss(model, self.loss, batches[split], self.count) for split in batches
        }

    def check_sample(self, count):
        check_whole_number("sample", count)
        number = len(self.texts["test"])
        if count > number:
            raise ValueError(f"sample is {count}, but the split test has {number} {self.what}")


class OwnPairs(_OwnTable, TranslationTask):
    """From the first column of a table to the second, by an encoder-decoder.

    path: the file, for `read_rows`. vocab: number of tokens, byte pairs of both columns of training and four special
    tokens. length: the most tokens of a side, its start or end included; longer pairs are left out, and counted.

    Raises ValueError if the file is no such table, or has too few pairs.
    """

    record_maps = sentences = None

    def __init__(self, path, vocab, length, device):
        rows = self._read(path, "pairs")
        self.tokenizer = self._make_tokenizer((text for pair in rows["train"] for text in pair), vocab)
        corpus = corpora.make_corpus(
            self.tokenizer, rows, lambda pair: tuple(map(self.tokenizer.encode, pair)), length
        )
        self._say_dropped(corpus, length)
        self._take(corpus, device)

    def counted(self):
        """BLEU of copying: {its name: {column of the table: BLEU}}."""
        sources, references = zip(*self.texts["test"], strict=True)
        score, signature = baselines.bleu(baselines.copy_nearest(self.texts["train"], sources), references)
        self.lines.append(f"the loss is the mean over all target tokens and ends, not over pairs; BLEU is {signature}")
        return {"copy the target of the nearest training source": {"test, BLEU": score}}

    def measure(self, model, device):
        self.written = self.translations(model, "test")
        score, _ = baselines.bleu(self.written, [target for _, target in self.texts["test"]])
        return self.losses(model) | {"test, BLEU": score}

    def sample(self, model, count, seed):
        """The first test pairs, and what the model wrote for them: the most likely token each time."""
        rows = zip(self.texts["test"][:count], self.written[:count], strict=True)
        return "\n\n".join(f"source: {source}\ntarget: {target}\nmodel:  {ours}" for (source, target), ours in rows)


class OwnLabels(_OwnTable, ClassificationTask):
    """The label of a text: the first column is the text, the second its label, any word.

    path, vocab, length: as for `OwnPairs`. Raises ValueError if the file is no such table, has too few examples, or
    one label alone.
    """

    def __init__(self, path, vocab, length, device):
        rows = self._read(path, "examples")
        labels = Counter(label for split in SPLITS for _, label in rows[split])
        self.labels, trained = sorted(labels), {label for _, label in rows["train"]}
        if len(labels) < 2:
            raise ValueError(f"the second column of {path} has one label alone, {self.labels[0]!r}: give two or more")
        if len(trained) < 2:
            raise ValueError(
                f"the training examples of {path} have one label alone, {min(trained)!r}: give more of the others"
            )
        shown = ", ".join(f"{label!r} {labels[label]:,}" for label in self.labels[:20])
        self.lines.append(f"{len(self.labels)} labels: {shown}" + ", ..." * (len(self.labels) > 20))
        if unseen := [label for label in self.labels if label not in trained]:
            self.lines.append(f"in valid or test alone, so training never shows them: {', '.join(map(repr, unseen))}")
        tokenizer = self._make_tokenizer((text for text, _ in rows["train"]), vocab)
        self.vocab, self.classes = tokenizer.vocab, len(self.labels)
        corpus = corpora.make_corpus(
            tokenizer, rows, lambda row: (tokenizer.encode(row[0]), self.labels.index(row[1])), length
        )
        self._say_dropped(corpus, length)
        self.texts, splits = corpus.texts, {}
        for split, examples in corpus.splits.items():
            tokens, lengths, numbers = corpora.classification_batch(examples, tokenizer)
            splits[split] = Examples([(tokens, lengths), (lengths, None), (numbers, None)], lengths[:, None], device)
        self._make_splits(splits)

    def counted(self):
        """Counting words, and no words: {name: {column of the table: share of right labels}}."""
        train, parts = self.texts["train"], ("valid", "test")
        labels = Counter(label for _, label in train)
        largest = max(self.labels, key=lambda label: labels[label])
        rows = {}
        try:
            rows["TF-IDF and logistic regression"] = {
                f"{split}, accuracy": baselines.tfidf_logistic_regression(train, self.texts[split]) for split in parts
            }
        except ValueError as problem:
            if "empty vocabulary" not in str(problem):
                raise
            self.lines.append("no TF-IDF: the training texts have no word of two letters or more")
        rows[f"always {largest!r}, the most frequent in training"] = {
            f"{split}, accuracy": sum(label == largest for _, label in self.texts[split]) / len(self.texts[split])
            for split in parts
        }
        return rows

    def predictions(self, model, split):
        """The label that the model gives each text of a split, in its order."""
        label_of = {}
        for rows, (tokens, lengths, _) in self.splits[split].in_order(512):
            label_of.update(zip(rows, model(tokens, lengths).argmax(dim=1).tolist(), strict=True))
        return [self.labels[label_of[row]] for row in range(len(label_of))]

    def measure(self, model, device):
        found = self.losses(model)
        for split in ("valid", "test"):
            given = self.predictions(model, split)
            right = sum(one == label for one, (_, label) in zip(given, self.texts[split], strict=True))
            found[f"{split}, accuracy"] = right / len(given)
        self.given = given
        return found

    def sample(self, model, count, seed):
        """The first test texts, their labels, and those that the model gave."""
        rows = zip(self.texts["test"][:count], self.given[:count], strict=True)
        return "\n\n".join(f"text:  {text}\nlabel: {label}\nmodel: {ours}" for (text, label), ours in rows)


@torch.no_grad()
def measured(task, model, precision):
    """task.measure of a trained model, {column: number}: in evaluation, in that precision of `Settings`."""
    device = next(model.parameters()).device
    with evaluating(model), autocast_on(device, precision)():
        return task.measure(model, device)


def write_text(model, tokenizer, start, count, seed):
    """`start` and the `count` tokens that a LanguageModel writes after it, as text."""
    tokens = tokenizer.encode(start)[None].to(next(model.parameters()).device)
    generator = torch.Generator().manual_seed(seed)
    return tokenizer.decode(model.generate(tokens, count, generator=generator)[0])


def print_table(rows):
    """rows: {name: {column: number}}, the first with every column. A number that a row lacks is shown as "-"."""
    columns = list(next(iter(rows.values())))
    width = max(map(len, rows))
    print(" " * width, *columns, sep="  ")
    for name, row in rows.items():
        cells = [f"{row[column]:.3f}" if column in row else "-" for column in columns]
        shown = [cell.rjust(len(column)) for cell, column in zip(cells, columns, strict=True)]
        print(name.ljust(width), *shown, sep="  ")


# --- Reading ---


def read_text(path):
    """The text of a UTF-8 file, without a byte order mark; the line ends of Windows become those of Unix.

    Raises ValueError if there is no such file, or if it is empty or no text in UTF-8: what is wrong, where, and what
    to do.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no ordinary file: name a file of text")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            f"{path} begins, at byte 0, with the byte order mark of UTF-16 or UTF-32: save it as UTF-8 "
            "(iconv -f UTF-16 -t UTF-8 does it)"
        )
    if b"\0" in raw:
        raise ValueError(
            f"{path} has a NUL byte at byte {raw.index(0)}, counted from 0, so it is no text in UTF-8: "
            "if it is UTF-16, save it as UTF-8, else it is no text, name another file"
        )
    try:
        text = raw.decode("utf8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} is not UTF-8: byte {error.start}, counted from 0, in line {line}, is 0x{raw[error.start]:02x} "
            f"({error.reason}): save it as UTF-8 (if it is Latin-1, iconv -f LATIN1 -t UTF-8 does it)"
        ) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise ValueError(f"{path} is empty: there is no text in it")
    return text


def read_rows(path):
    """The rows of a table in UTF-8, a list of (first, second): a row a line, a tab between its two columns.

    Empty lines are left out. Nothing is quoted, and the first line is a row like the others. Raises ValueError as
    `read_text` does, or if a line has not two columns that hold something; it says which line.
    """
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line:
            continue
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(f"line {number} of {path} has {len(columns)} columns, not 2 with a tab between them")
        for column, text in enumerate(columns, 1):
            if not text.strip():
                raise ValueError(f"line {number} of {path} has nothing in column {column}")
        rows.append(tuple(columns))
    return rows


def checksum(text):
    """By which a checkpoint knows the text that it was made from."""
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


# --- Splitting ---


def split_text(text):
    """{"train": the first 90 %, "valid": the next 5 %, "test": the rest} of a text, by its characters."""
    first, second = len(text) * 90 // 100, len(text) * 95 // 100
    return {"train": text[:first], "valid": text[first:second], "test": text[second:]}


def split_rows(rows):
    """{"train": about 80 % of the rows, "valid": 10 %, "test": 10 %}, each in the order of the file.

    A hash of its first column decides where a row belongs: equal texts are never in two splits, and a row stays where
    it is when others are added.
    """
    splits = {split: [] for split in SPLITS}
    for row in rows:
        tenth = int.from_bytes(hashlib.sha256(row[0].encode()).digest()[:8], "big") % 10
        splits[{0: "test", 1: "valid"}.get(tenth, "train")].append(row)
    return splits


def _check_windows(path, text, splits, length, windows):
    """Raise a ValueError if the windows do not fit, with the largest that do."""
    shorter = min(len(splits["valid"]), len(splits["test"]))
    room, longest = shorter - 1, len(splits["train"]) - 1  # the last token of a window needs a target
    if room < 1 or longest < 1:
        raise ValueError(
            f"{path} is too short: of its {len(text)} characters 5 % are valid and 5 % test, and each needs two tokens "
            "or more: give 40 characters or more"
        )
    if length <= longest and windows * length <= room:
        return
    fitting = []
    if length <= min(room, longest):
        fitting.append(f"--windows {room // length}")
    else:
        fitting.append(f"--max_length {min(room, longest)} --windows 1")
    if windows <= room:
        fitting.append(f"--max_length {min(room // windows, longest)}")
    raise ValueError(
        f"--windows {windows} with --max_length {length} do not fit in {path}, whose smaller part for measuring has "
        f"{shorter} tokens: the largest that fit are {' or '.join(fitting)}"
    )
