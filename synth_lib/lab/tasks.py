"""What the experiments train: the tasks, what is measured of each, and one run.

Read top-down: the three kinds of tasks, padded examples and their batches, what is recorded of maps, one run.
"""

import math
import time
from collections import Counter
from functools import cache, lru_cache, partial
from statistics import mean

import torch
from torch.nn import functional as F

from synth_lib.attention import Attention
from synth_lib.lab.neighbours import LookUpTask, rows_in_keys, set_patterns
from synth_lib.lab.starts import hand_made
from synth_lib.lab.suites import ONE_REPLY, TUNED, WITH_MAPS, WORDS, settings_of
from synth_lib.lab.train import autocast_on, evaluating, mean_loss, next_token_loss, train
from synth_lib.models import Classifier, EncoderDecoder, LanguageModel
from synth_lib.text import corpora, grammar
from synth_lib.text.baselines import bleu, copy_nearest, ngram_loss, rouge_l, tuned_ngram_loss, words_for_rouge_l


@cache
def make_task(name, device, **options):
    """The task of that name on this device, made once a process. options: "data" of its settings.

    A task has what `train` needs: build(**sizes) -> a model, batches(size) -> a get_batch, loss, unit, count, and
    the batches of the splits valid and test. tokens(*batch) -> how many tokens it has, padding left out.
    measure(model) -> what a trained model reaches, a dictionary.
    baseline(name) -> the same of what needs no attention, where a task has one.
    record_maps(model) -> (histograms, small maps) of its attention weights; None where a task has none.
    samples(model) -> a few of its texts, where a task has them.
    maps(model) -> its attention weights on a few texts; reach(model) -> see LookUpTask: for the race of chapter 10.
    """
    if name == "language model":
        return LanguageModelTask(device, **options)
    if name == "far look-up":
        return LookUpTask(device, **options)
    if name.startswith("translation"):
        return TranslationTask(device, **options)
    if name == "dialogue":
        return DialogueTask(device, **options)
    return ClassificationTask(device, **options)


class LanguageModelTask:
    """The next token of a text. corpus: as for `corpora.shakespeare`. train_on: "train", or "train and valid" for what
    is chosen already and told from the split test alone. windows: how many of a split are measured, or "all".
    curve_windows: how many of them the curve is measured on, by default the same."""

    unit, count, loss = "nats per token", None, staticmethod(next_token_loss)

    def __init__(
        self, device, windows, length, tokens="characters", corpus="shakespeare", train_on="train", curve_windows=None
    ):
        if train_on not in ("train", "train and valid"):
            raise ValueError(f"train_on must be 'train' or 'train and valid', not {train_on!r}")
        self.tokenizer, splits = corpora.shakespeare(tokens, corpus=corpus)
        self.length, self.train_on = length, train_on
        self.text = torch.cat([splits[split] for split in train_on.split(" and ")]).to(device)

        def evaluation_windows(split, count):
            count = (len(splits[split]) - 1) // length if count == "all" else count
            return [part.to(device) for part in corpora.evaluation_windows(splits[split], length, count)]

        self.windows = {split: evaluation_windows(split, windows) for split in ("valid", "test")}
        self.windows["curve"] = evaluation_windows("valid", curve_windows or windows)
        self.valid, self.test = self.cut("valid", 1), self.cut("test", 1)
        self.curve = self.cut("curve", 1) if curve_windows else self.valid

    def build(self, **sizes):
        return LanguageModel(self.tokenizer.vocab, **sizes)

    def tokens(self, inputs, targets):
        return inputs.numel()

    def batches(self, size):
        return lambda generator, step: corpora.random_windows(self.text, self.length, size, generator)

    def cut(self, split, pieces):
        """Batches of the windows of a split, each window cut into so many pieces."""
        parts = (part.reshape(-1, self.length // pieces).split(128 * pieces) for part in self.windows[split])
        return list(zip(*parts, strict=True))

    def measure(self, model):
        """The loss when the windows are read whole, and when they are cut into 2, 4 and 8: the same targets."""
        losses = {self.length // n: mean_loss(model, self.loss, self.cut("valid", n)) for n in (1, 2, 4, 8)}
        return {"loss_at_length": {str(length): round(loss, 5) for length, loss in losses.items()}}

    def baseline(self, name):
        """The losses of an n-gram model of the training text on the windows that a model is measured on.

        name: "3-gram", with the weight of `ngram_loss`; or TUNED, by `tuned_ngram_loss`, with what was chosen.
        """
        text, vocab = self.text.cpu(), self.tokenizer.vocab
        valid, test = ([part.cpu() for part in self.windows[split]] for split in ("valid", "test"))
        if name == TUNED:
            if self.train_on != "train":
                raise ValueError(f"{TUNED} is chosen on valid, so train_on must be 'train', not {self.train_on!r}")
            found = tuned_ngram_loss(text, valid, test, vocab)
        else:
            order = int(name.removesuffix("-gram"))
            losses = (ngram_loss(text, *windows, order, vocab) for windows in (valid, test))
            found = dict(zip(("loss", "test_loss"), losses, strict=True))
        return {name: round(number, 5) for name, number in found.items()}

    def maps(self, model):
        return model.attention_maps(self.windows["valid"][0][:8])

    def record_maps(self, model):
        inputs, _ = self.windows["valid"]
        maps = self.maps(model)
        first, *_, final = model.attention_maps(inputs[:1, :24])
        names = [self.tokenizer.decode([token]) for token in inputs[0, :24].tolist()]
        return {"self": [histogram(_last_rows(layer)) for layer in maps]}, {
            "tokens": names, "first layer": as_permille(first), "last layer": as_permille(final),
        }  # fmt: skip


class _Padded:
    """What translation and classification share: `splits`, of examples that differ in length."""

    def _make_splits(self, splits):
        self.splits = splits
        self.valid, self.test = ([batch for _, batch in splits[split].in_order(256)] for split in ("valid", "test"))

    def batches(self, size):
        return self.splits["train"].batches(size)


class TranslationTask(_Padded):
    """From English to German, made by the grammar or taken from interface texts, or to French."""

    unit = "nats per token"

    def __init__(self, device, language="grammar", **options):
        self.sentences = grammar.sentences(**options) if language == "grammar" else None
        self._take(
            grammar.grammar_corpus(self.sentences) if self.sentences else corpora.translation(language, **options),
            device,
        )
        if not self.sentences:
            self.record_maps = None

    def _take(self, corpus, device):
        self.tokenizer, self.texts = corpus.tokenizer, corpus.texts
        self._make_splits({split: self._examples(pairs, device) for split, pairs in corpus.splits.items()})

    def _examples(self, pairs, device):
        source, source_lengths, inputs, targets = corpora.translation_batch(pairs, self.tokenizer)
        target_lengths = torch.tensor([len(target) + 1 for _, target in pairs])
        lengths = torch.stack([source_lengths, target_lengths], dim=1)
        columns = (source, source_lengths), (source_lengths, None), (inputs, target_lengths), (targets, target_lengths)
        return Examples(columns, lengths, device)

    def build(self, **sizes):
        return EncoderDecoder(self.tokenizer.vocab, **sizes)

    def loss(self, model, source, source_lengths, inputs, targets):
        """Nats per token; in training with label smoothing, as in the paper."""
        logits = model(source, inputs, source_lengths).float().flatten(0, 1)
        smoothing = 0.1 if model.training else 0.0
        padding = self.tokenizer.padding
        return F.cross_entropy(logits, targets.flatten(), ignore_index=padding, label_smoothing=smoothing)

    def count(self, source, source_lengths, inputs, targets):
        return (targets != self.tokenizer.padding).sum()

    def tokens(self, source, source_lengths, inputs, targets):
        return source_lengths.sum() + self.count(source, source_lengths, inputs, targets)

    def translations(self, model, split):
        """What the model writes for each example of a split, as text. Greedy: the most likely token each time."""
        ends = {"start": self.tokenizer.start, "end": self.tokenizer.end, "count": model.max_length}
        text_of = {}
        for rows, (source, source_lengths, _, _) in self.splits[split].in_order(512):
            tokens = model.translate(source, source_lengths, **ends)
            text_of.update(zip(rows, map(self.tokenizer.decode, tokens), strict=True))
        return [text_of[row] for row in range(len(text_of))]

    def measure(self, model):
        return self.rate(lambda split: self.translations(model, split))

    def baseline(self, name):
        """The baseline "copy nearest": each test text gets the translation of the nearest training text."""
        return self.rate(lambda split: copy_nearest(self.texts["train"], [source for source, _ in self.texts[split]]))

    def rate(self, translate):
        """The metrics of what translate(split) writes for the texts of a split; it is asked for test texts alone."""
        texts, references = translate("test"), [target for _, target in self.texts["test"]]
        score, signature = bleu(texts, references)
        right = mean(one == other for one, other in zip(texts, references, strict=True))
        metrics = {"bleu": round(score, 2), "bleu_signature": signature, "exact_match": round(right, 4)}
        if self.sentences:
            metrics["phenomena"] = grammar.score(self.sentences["test"], texts)
            metrics["unseen"] = grammar.score(self.sentences["unseen"], translate("unseen"))["all"]
        return metrics

    def record_maps(self, model):
        test = self.splits["test"]
        _, kind, counts = test.lengths.unique(dim=0, return_inverse=True, return_counts=True)
        alike = (kind == counts.argmax()).nonzero()[:64, 0]  # the most frequent lengths: so nothing is padded
        source, _, inputs, _ = test.batch(alike)
        maps = model.attention_maps(source, inputs)
        histograms = {
            "encoder": [histogram(layer) for layer in maps["encoder"]],
            "decoder": [histogram(_last_rows(layer)) for layer in maps["decoder"]],
            "cross": [histogram(layer) for layer in maps["cross"]],
        }
        names = {"source": self.tokenizer.names(source[0]), "target": self.tokenizer.names(inputs[0])}
        return histograms, names | {where: as_permille(layers[-1][:1]) for where, layers in maps.items()}


class DialogueTask(TranslationTask):
    """From two personas and the last turns to the next turn. options: as for `corpora.replies`."""

    record_maps, shown = None, 4

    def __init__(self, device, **options):
        self._take(corpora.replies(**options), device)

    def measure(self, model):
        """Perplexity is that of a token of the replies, their ends among them."""
        return {"perplexity": round(math.exp(mean_loss(model, self.loss, self.test, self.count)), 3)} | self.rate(
            lambda split: self.translations(model, split)
        )

    def baseline(self, name):
        """The baseline "copy nearest", as for translations, or one text for everybody: ONE_REPLY, the most frequent
        reply of training, or WORDS, chosen for ROUGE-L on the split valid."""
        if name == ONE_REPLY:
            [(reply, _)] = Counter(reply for _, reply in self.texts["train"]).most_common(1)
        elif name == WORDS:
            reply = words_for_rouge_l([reply for _, reply in self.texts["valid"]])
        else:
            return super().baseline(name)
        return self.rate(lambda split: [reply] * len(self.texts[split])) | {"reply": reply}

    def rate(self, write):
        texts, references = write("test"), [reply for _, reply in self.texts["test"]]
        (four, signature), (one, _) = (bleu(texts, references, order) for order in (4, 1))
        scores = {"bleu_1": one, "bleu_4": four, "rouge_l": rouge_l(texts, references)}
        return {name: round(score, 2) for name, score in scores.items()} | {"bleu_signature": signature}

    def samples(self, model):
        """What it writes for a few test texts: [{"context": ..., "reference": ..., "written": ...}, ...]."""
        rows = torch.arange(self.shown) * len(self.texts["test"]) // self.shown
        source, lengths, _, _ = self.splits["test"].batch(rows)
        ends = {"start": self.tokenizer.start, "end": self.tokenizer.end, "count": model.max_length}
        written = map(self.tokenizer.decode, model.translate(source, lengths, **ends))
        pairs = [self.texts["test"][row] for row in rows.tolist()]
        return [
            {"context": context.split("\n"), "reference": reply, "written": text}
            for (context, reply), text in zip(pairs, written, strict=True)
        ]


class ClassificationTask(_Padded):
    """The class of a dictionary definition."""

    unit, count, record_maps = "nats per text", None, None

    def __init__(self, device, **options):
        corpus = corpora.classification(**options)
        self.vocab, self.classes = corpus.tokenizer.vocab, len(corpora.GLOSS_CLASSES)
        splits = {}
        for split, examples in corpus.splits.items():
            tokens, lengths, labels = corpora.classification_batch(examples, corpus.tokenizer)
            columns = [(tokens, lengths), (lengths, None), (labels, None)]
            splits[split] = Examples(columns, lengths[:, None], device)
        self._make_splits(splits)

    def build(self, **sizes):
        return Classifier(self.vocab, self.classes, **sizes)

    def tokens(self, tokens, lengths, labels):
        return lengths.sum()

    @staticmethod
    def loss(model, tokens, lengths, labels):
        return F.cross_entropy(model(tokens, lengths).float(), labels)

    def measure(self, model):
        return {"accuracy": self.accuracy(model, "test"), "valid_accuracy": self.accuracy(model, "valid")}

    def accuracy(self, model, split):
        right = sum(
            (model(tokens, lengths).argmax(dim=1) == labels).sum().item()
            for _, (tokens, lengths, labels) in self.splits[split].in_order(512)
        )
        return round(right / len(self.splits[split].size), 4)


class Examples:
    """Padded tensors of all examples of a split, on the device, and batches of them, cut to their longest example.

    columns: (tensor "example ...", its lengths "example", or None if it is not to be cut). lengths: all lengths of an
    example, "example text"; the examples of a batch have about the same sum. Which they are is decided on the CPU.
    """

    def __init__(self, columns, lengths, device):
        self.columns = [(tensor.to(device), its_lengths) for tensor, its_lengths in columns]
        self.lengths, self.size, self.device = lengths, lengths.sum(dim=1), device

    def batch(self, rows):
        there = rows.to(self.device)
        return [
            tensor[there] if lengths is None else tensor[there, : int(lengths[rows].max())]
            for tensor, lengths in self.columns
        ]

    def in_order(self, size):
        """(rows, tensors) of every batch, from short to long."""
        for rows in self.size.argsort(stable=True).split(size):
            yield rows.tolist(), self.batch(rows)

    def batches(self, size):
        """A get_batch(generator, step) for `train`: each epoch has every example once, in batches of similar size.

        The order of an epoch depends on the seed of the generator and the number of the epoch alone, so that a run
        that is resumed goes on in it.
        """
        steps = -(-len(self.size) // size)

        @lru_cache(2)
        def epoch(seed, number):
            generator = torch.Generator().manual_seed(seed + 1_000_003 * number)
            nearly = self.size + 3 * torch.rand(len(self.size), generator=generator)
            order = nearly.argsort().split(size)
            return [order[position] for position in torch.randperm(steps, generator=generator)]

        def get_batch(generator, step):
            number, position = divmod(step, steps)
            return self.batch(epoch(generator.initial_seed(), number)[position])

        return get_batch


# --- What is recorded of attention maps ---

EDGES = [round(10 ** (-4 + number / 5), 7) for number in range(21)]  # 0.0001 to 1, five to a power of ten


def histogram(weights):
    """The share of attention weights up to EDGES[0], then in each bin from an edge to the next: 21 numbers.

    A weight of 0 is left out: its key may not be attended to.
    """
    weights = weights[weights > 0].float().cpu().clamp(max=1)
    counts = torch.bucketize(weights, torch.tensor(EDGES)).bincount(minlength=len(EDGES))
    return [round(share, 4) for share in (counts / len(weights)).tolist()]


def _last_rows(weights):
    """The last quarter of the queries of a causal map: they have most keys, and about as many."""
    return weights[:, :, weights.shape[2] * 3 // 4 :]


def as_permille(weights):
    """Maps "1 head query key" as whole numbers of thousandths, nested lists "head query key"."""
    return (weights[0].float() * 1000).round().int().tolist()


# --- One run ---


def build(task, pattern=None, start=None, **sizes):
    """The model of a task; pattern and start as plain values, see `set_patterns` and `hand_made`."""
    if start is not None:
        sizes["start"] = hand_made(sizes["max_length"], **start)
    model = task.build(**sizes)
    if pattern is not None:
        set_patterns(model, **pattern)
    return model


def run_experiment(run, task_settings, device):
    """Do one run -> what is recorded of it, a dictionary that JSON can hold: the run itself, and its results.

    A loss that is not finite makes it a failed run; what is recorded then is the problem. A tuning run is measured on
    validation texts alone. A baseline is not trained: the task knows it by the name of its variant.
    """
    sizes, settings = settings_of(run, task_settings)
    options = task_settings["data"]
    if run["task"] in ("language model", "far look-up"):
        options = options | {"length": sizes["max_length"]}
    task = make_task(run["task"], device, **options)
    started = time.perf_counter()
    if run["question"] == "baseline":
        metrics = task.baseline(run["variant"])
        seconds = round(time.perf_counter() - started, 2)
        return run | {"status": "finished", "unit": task.unit, "metrics": metrics, "seconds": seconds}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    torch.manual_seed(settings.seed)
    model = build(task, **sizes).to(device)
    for layer in model.modules():
        if isinstance(layer, Attention):
            layer.always_plain = True  # what is compared is each S in plain code; chapter 11 has its fast kernels
    scores = [module.score for module in model.modules() if type(module) is Attention]
    result = run | {"parameters": _parameters(model), "parameters_of_S": sum(map(_parameters, scores))}
    first = (run["question"], run["seed"]) in (("order", 0), ("final", 1))
    variants = task_settings.get("variants", {}).values()
    in_race = any("pattern" in made for made in variants) and run["question"] == "final"
    with_maps = task.record_maps and first and run["variant"] in WITH_MAPS and not in_race
    measured = partial(_measured, model, autocast_on(device, settings.precision))
    if with_maps:
        result["histograms_at_start"], _ = measured(task.record_maps)
    if in_race and hasattr(task, "reach"):
        result["reach_at_start"] = measured(task.reach)
    get_batch, tokens_of_step = task.batches(settings.batch), {}

    def get_counted_batch(generator, step):
        batch = get_batch(generator, step)
        tokens_of_step[step] = task.tokens(*batch)
        return batch

    curve = getattr(task, "curve", task.valid)
    try:
        record = train(
            model, get_counted_batch, curve, settings, config={}, loss=task.loss, unit=task.unit,
            count=task.count, device=device, progress=False,
        )  # fmt: skip
    except FloatingPointError as problem:
        return result | {"status": "failed", "problem": str(problem)}
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None

    def loss_on(batches):
        return round(measured(lambda model: mean_loss(model, task.loss, batches, task.count)), 5)

    metrics = {"loss": round(record["final_loss"], 5) if curve is task.valid else loss_on(task.valid)}
    if run["question"] != "tuning":
        metrics |= {"test_loss": loss_on(task.test)} | measured(task.measure)
    result |= {
        "status": "finished",
        "unit": task.unit,
        "curve": [[point["step"], round(point["loss"], 5)] for point in record["curve"]],
        "metrics": metrics,
        "mixture_weights": [_rounded(score.weights) for score in scores if hasattr(score, "weights")],
        "peak_megabytes": peak and round(peak, 1),
    }
    if first and hasattr(task, "samples"):
        result["samples"] = measured(task.samples)
    if in_race:
        result["keys_holding_90_percent"] = rows_in_keys(measured(task.maps))
    if in_race and hasattr(task, "reach"):
        result["reach"] = measured(task.reach)
    if with_maps:
        result["histograms"], result["maps"] = measured(task.record_maps)
    return result | {
        "seconds": round(time.perf_counter() - started, 2),
        "training_seconds": round(record["training_seconds"], 2),
        "tokens_per_second": round(int(sum(tokens_of_step.values())) / record["training_seconds"]),
    }  # fmt: skip


@torch.no_grad()
def _measured(model, autocast, function):
    with evaluating(model), autocast():
        return function(model)


def _parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def _rounded(numbers):
    return [round(number, 4) for number in numbers.tolist()]
