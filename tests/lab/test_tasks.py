"""The tasks of chapter 13 against loops by hand, and against models that know some answers by heart."""

import json
import math
from collections import Counter

import pytest
import torch
from torch.nn import functional as F

from synth_lib.attention import Attention
from synth_lib.lab import tasks
from synth_lib.lab.suites import ONE_REPLY, WORDS, experiment
from synth_lib.lab.tasks import Examples, make_task, run_experiment
from synth_lib.lab.train import Settings, mean_loss, train
from synth_lib.text import corpora, grammar
from synth_lib.text.baselines import bleu, copy_nearest, rouge_l, words_for_rouge_l

CPU = torch.device("cpu")
GRAMMAR = {"train": 80, "valid": 30, "test": 40, "unseen": 10}
SMALL = {"d_model": 12, "head": 2, "layer": 1, "score": "dot_product"}
LANGUAGE_MODEL = {"tokens": "characters", "windows": 4, "length": 16}


@pytest.fixture(scope="module")
def translation():
    return make_task("translation, grammar", CPU, **GRAMMAR)


@pytest.fixture
def few_glosses(monkeypatch):
    """A few definitions of each class: the task is the same, and made at once."""
    everything = corpora.glosses()
    sizes = {"train": 6, "valid": 4, "test": 5}

    def glosses(folder=None):
        return {
            split: [row for label in range(8) for row in [row for row in rows if row[1] == label][: sizes[split]]]
            for split, rows in everything.items()
        }

    monkeypatch.setattr(corpora, "glosses", glosses)


def classification(**options):
    return make_task.__wrapped__("classification", CPU, vocab=300, **options)


# Losses


def log_probabilities(task, model, batch):
    """[(log-probabilities of all tokens, target), ...] of every real token of a batch, each sentence by itself."""
    found = []
    for source, length, inputs, targets in zip(*batch, strict=True):
        real = int((targets != task.tokenizer.padding).sum())
        logits = model(source[None, :length], inputs[None, :real])[0]
        found += [(row.log_softmax(dim=-1), int(target)) for row, target in zip(logits, targets[:real], strict=True)]
    return found


def padded_batches(task):
    """Two batches of sentences of different lengths, with another number of tokens for each sentence."""
    lengths = task.splits["valid"].size.argsort()
    return [task.splits["valid"].batch(rows) for rows in (lengths[[0, 1, 2, 20]], lengths[[-1, -2]])]


@torch.no_grad()
def test_the_loss_of_a_translation_is_the_mean_over_its_real_tokens(translation):
    torch.manual_seed(1)
    model = translation.build(**SMALL, max_length=15).eval()
    batch = padded_batches(translation)[0]
    assert (batch[3] == translation.tokenizer.padding).any()
    rows = log_probabilities(translation, model, batch)
    by_hand = -sum(row[target] for row, target in rows) / len(rows)
    torch.testing.assert_close(translation.loss(model, *batch), by_hand)
    smooth = -sum(0.9 * row[target] + 0.1 * row.mean() for row, target in rows) / len(rows)
    torch.testing.assert_close(translation.loss(model.train(), *batch), smooth)


@torch.no_grad()
def test_nats_per_token_counts_tokens_and_not_sentences(translation):
    torch.manual_seed(1)
    model = translation.build(**SMALL, max_length=15).eval()
    for parameter in model.parameters():
        parameter.mul_(3)  # long and short sentences have another loss
    batches = padded_batches(translation)
    rows = [log_probabilities(translation, model, batch) for batch in batches]
    sums = [-sum(float(row[target]) for row, target in some) for some in rows]
    over_tokens = sum(sums) / sum(map(len, rows))
    over_sentences = (4 * sums[0] / len(rows[0]) + 2 * sums[1] / len(rows[1])) / 6
    assert abs(over_tokens - over_sentences) > 1e-3
    assert mean_loss(model, translation.loss, batches, translation.count) == pytest.approx(over_tokens, rel=1e-5)
    settings = Settings(steps=1, batch=4)
    with torch.enable_grad():
        record = train(
            model, translation.batches(4), batches, settings, config={}, loss=translation.loss,
            count=translation.count, device="cpu", progress=False,
        )  # fmt: skip
    assert record["curve"][0]["loss"] == pytest.approx(over_tokens, rel=1e-5)


def test_the_loss_at_a_length_is_that_of_the_windows_cut_to_it():
    task = make_task("language model", CPU, **LANGUAGE_MODEL)
    torch.manual_seed(0)
    model = task.build(**SMALL, max_length=16).eval()
    _, splits = corpora.shakespeare()
    inputs, targets = corpora.evaluation_windows(splits["valid"], 16, 4)
    expected = {}
    with torch.no_grad():
        for length in (16, 8, 4, 2):
            losses = [
                F.cross_entropy(model(inputs[:, start : start + length]).mT, targets[:, start : start + length])
                for start in range(0, 16, length)
            ]
            expected[str(length)] = pytest.approx(sum(losses).item() / len(losses), abs=2e-5)
        assert task.measure(model) == {"loss_at_length": expected}
        inputs, targets = corpora.evaluation_windows(splits["test"], 16, 4)
        by_hand = F.cross_entropy(model(inputs).mT, targets).item()
    assert mean_loss(model, task.loss, task.test) == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize(("train_on", "parts"), [("train", ["train"]), ("train and valid", ["train", "valid"])])
def test_a_language_model_trains_on_the_text_that_is_named(train_on, parts):
    _, splits = corpora.shakespeare(corpus="tinyshakespeare")
    task = make_task("language model", CPU, **LANGUAGE_MODEL, corpus="tinyshakespeare", train_on=train_on)
    assert torch.equal(task.text, torch.cat([splits[part] for part in parts]))
    for options in ({"corpus": "bible"}, {"train_on": "test"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be "):
            make_task("language model", CPU, **LANGUAGE_MODEL, **options)


@pytest.fixture
def few_dialogues(monkeypatch):
    """Three dialogues of two turns or more a split, whose words say where they stand."""

    def dialogues(folder=None):
        return {
            split: [
                corpora.Dialogue(
                    [[f"I begin {split} {number}.", "I cook."], [f"I reply {split} {number}."]],
                    [f"{split} {number} says {turn}" + " very" * (turn * number) + " loud" for turn in range(4)],
                )
                for number in range(3)
            ]
            for split in corpora.SPLITS
        }

    monkeypatch.setattr(corpora, "dialogues", dialogues)


DIALOGUE = {"vocab": 300, "max_length": 64}


@torch.no_grad()
def test_perplexity_counts_the_tokens_of_the_replies(few_dialogues):
    task = tasks.DialogueTask(CPU, **DIALOGUE)
    torch.manual_seed(1)
    model = task.build(**SMALL, max_length=64).eval()
    for parameter in model.parameters():
        parameter.mul_(3)  # long and short replies have another loss
    rows = [log_probabilities(task, model, task.splits["test"].batch(torch.tensor([row]))) for row in range(9)]
    sums = [-sum(float(row[target]) for row, target in some) for some in rows]
    assert [len(some) for some in rows] == [1 + len(task.tokenizer.encode(reply)) for _, reply in task.texts["test"]]
    by_hand = math.exp(sum(sums) / sum(map(len, rows)))
    over_replies = math.exp(sum(total / len(some) for total, some in zip(sums, rows, strict=True)) / len(rows))
    found = task.measure(model)
    assert found["perplexity"] == pytest.approx(by_hand, rel=1e-4) and abs(by_hand / over_replies - 1) > 1e-3


def test_replies_are_measured_and_shown_with_what_was_written(few_dialogues):
    task = tasks.DialogueTask(CPU, **DIALOGUE)
    references = [reply for _, reply in task.texts["test"]]
    perfect = task.rate(lambda split: references)
    assert (perfect["bleu_1"], perfect["bleu_4"], perfect["rouge_l"]) == pytest.approx((100, 100, 100))
    torch.manual_seed(1)
    model = task.build(**SMALL, max_length=64).eval()
    samples, written = task.samples(model), task.translations(model, "test")
    assert [(one["reference"], one["written"]) for one in samples] == [
        (references[row], written[row]) for row in (0, 2, 4, 6)
    ]
    assert samples[1]["context"] == task.texts["test"][2][0].split("\n") and len(samples[1]["context"]) == 4


def test_a_baseline_of_dialogues_is_the_reply_to_the_nearest_context(few_dialogues, monkeypatch):
    monkeypatch.setattr(tasks, "make_task", tasks.make_task.__wrapped__)
    settings = {"data": DIALOGUE, "model": SMALL | {"max_length": 64}, "settings": {"steps": 1, "batch": 2}}
    task = tasks.DialogueTask(CPU, **DIALOGUE)
    copies = copy_nearest(task.texts["train"], [context for context, _ in task.texts["test"]])
    result = run_experiment(experiment("dialogue", "copy nearest", question="baseline"), settings, CPU)
    references = [reply for _, reply in task.texts["test"]]
    assert result["metrics"]["bleu_4"] == pytest.approx(bleu(copies, references)[0], abs=0.006)
    assert result["metrics"]["rouge_l"] == pytest.approx(rouge_l(copies, references), abs=0.006)
    assert json.dumps(result) and 0 < result["metrics"]["bleu_4"] < 100
    for seed, shown in ((1, True), (2, False)):  # a sample of the first seed alone
        run = run_experiment(experiment("dialogue", "Random + Vanilla", seed, question="final"), settings, CPU)
        assert ("samples" in run) == shown and run["metrics"].keys() > result["metrics"].keys()
        assert run["metrics"]["perplexity"] == pytest.approx(math.exp(run["metrics"]["test_loss"]), rel=1e-3)


def test_one_reply_is_the_most_frequent_of_training(few_dialogues, monkeypatch):
    task = tasks.DialogueTask(CPU, **DIALOGUE)
    [(first, one), (second, other), *_] = task.texts["train"]
    monkeypatch.setitem(task.texts, "train", [(first, one), (first, other), (second, other)])
    references, found = [reply for _, reply in task.texts["test"]], task.baseline(ONE_REPLY)
    assert found["reply"] == other != one
    assert found["rouge_l"] == pytest.approx(rouge_l([other] * len(references), references), abs=0.006)
    words = task.baseline(WORDS)  # of valid, and not of the texts that they are rated on
    of_valid = words_for_rouge_l([reply for _, reply in task.texts["valid"]])
    assert words["reply"] == of_valid != words_for_rouge_l(references)
    assert words["rouge_l"] == pytest.approx(rouge_l([words["reply"]] * len(references), references), abs=0.006)


# Models that know answers by heart


class Translator:
    """Knows some pairs by heart; anything else it translates as one word."""

    max_length = 15

    def __init__(self, task, splits):
        self.task, self.target_of = task, {}
        for texts in splits:
            for source, target in texts:
                encoded = task.tokenizer.encode(source).tolist()
                self.target_of[tuple(encoded)] = task.tokenizer.encode(target)
        self.unknown = task.tokenizer.encode(task.texts["train"][0][1].split()[0])

    def translate(self, source, lengths, *, start, end, count):
        assert count == self.max_length and (source[torch.arange(len(source)), lengths - 1] == end).all()
        known = [tuple(row[: length - 1].tolist()) for row, length in zip(source, lengths, strict=True)]
        return [torch.cat([self.target_of.get(row, self.unknown), torch.tensor([end])]) for row in known]


def test_a_translator_is_measured_on_the_test_texts_in_their_order(translation):
    texts = translation.texts
    test_sources = {source for source, _ in texts["test"]}
    assert len(test_sources) == 40 and not test_sources & {source for source, _ in texts["train"] + texts["valid"]}
    found = translation.measure(Translator(translation, [texts["test"], texts["unseen"]]))
    assert found["exact_match"] == 1 and found["bleu"] == pytest.approx(100)
    assert found["phenomena"]["all"] == (40, 40) and found["unseen"] == (10, 10)
    found = translation.measure(Translator(translation, [texts["train"], texts["valid"], texts["test"][7:17]]))
    assert found["exact_match"] == 10 / 40 and found["bleu"] < 60


def test_the_baseline_of_a_translation_copies_from_training_texts_alone(translation):
    """It is measured as a model is, on the same texts."""
    run = experiment("translation, grammar", "copy nearest", question="baseline")
    settings = {"data": GRAMMAR, "model": SMALL | {"max_length": 15}, "settings": {"steps": 1}}
    result = run_experiment(run, settings, CPU)
    assert run.items() <= result.items() and result["status"] == "finished" and json.dumps(result)
    sentences, texts = translation.sentences, translation.texts
    copies = {
        split: copy_nearest(texts["train"], [one.english for one in sentences[split]]) for split in ("test", "unseen")
    }
    found, references = result["metrics"], [one.german for one in sentences["test"]]
    assert found["bleu"] == pytest.approx(bleu(copies["test"], references)[0], abs=0.006)
    assert found["phenomena"] == grammar.score(sentences["test"], copies["test"]) and found["exact_match"] == 0
    assert found["unseen"] == (0, 10) and found.keys() == translation.measure(Translator(translation, [])).keys()


class Reader:
    """Knows the labels of some texts by heart; of any other it says 0."""

    def __init__(self, task, splits):
        self.task, self.label_of = task, {}
        for split in splits:
            for _, (tokens, lengths, labels) in task.splits[split].in_order(3):
                for row, length, label in zip(tokens, lengths, labels, strict=True):
                    self.label_of[tuple(row[:length].tolist())] = int(label)

    def __call__(self, tokens, lengths):
        rows = [tuple(row[:length].tolist()) for row, length in zip(tokens, lengths, strict=True)]
        return F.one_hot(torch.tensor([self.label_of.get(row, 0) for row in rows]), self.task.classes).float()


def test_a_classifier_is_measured_on_texts_that_it_has_not_seen(few_glosses):
    task = classification()
    labels = torch.cat([labels for _, (_, _, labels) in task.splits["test"].in_order(7)])
    share = (labels == 0).float().mean().item()
    found = task.measure(Reader(task, ["train", "valid"]))
    assert found == {"accuracy": pytest.approx(share, abs=1e-4), "valid_accuracy": 1.0} and 0 < share < 1
    assert task.measure(Reader(task, ["test"]))["accuracy"] == 1
    assert task.measure(Reader(task, ["train"]))["valid_accuracy"] == 1 / 8  # else it is the accuracy in training
    assert len(labels.unique()) == task.classes == 8


@torch.no_grad()
def test_the_loss_of_a_classifier_does_not_read_padding(few_glosses):
    task = classification()
    torch.manual_seed(0)
    model = task.build(**SMALL, max_length=int(max(split.size.max() for split in task.splits.values()))).eval()
    tokens, lengths, labels = task.splits["train"].batch(torch.tensor([0, 5, 9, 20]))
    assert len(lengths.unique()) > 1 and tokens.shape[1] == lengths.max()
    alone = [
        F.cross_entropy(model(row[None, :length]), label[None])
        for row, length, label in zip(tokens, lengths, labels, strict=True)
    ]
    torch.testing.assert_close(task.loss(model, tokens, lengths, labels), sum(alone) / 4)


def test_a_translation_of_interface_texts_has_its_two_languages_and_no_maps(monkeypatch):
    splits = ("train", "valid", "test")
    texts = {split: [(f"{split} one {n}", f"{split} eins {n}") for n in range(5)] for split in splits}
    monkeypatch.setattr(corpora, "translation_pairs", lambda *arguments: texts)
    task = make_task.__wrapped__("translation, German", CPU, language="german", vocab=300)
    assert task.record_maps is None and task.texts == texts
    found = task.measure(Translator(task, [texts["test"]]))
    assert found["exact_match"] == 1 and "phenomena" not in found


# Batches


def rows_of(task, steps, size, seed=0):
    get_batch, generator = task.batches(size), torch.Generator().manual_seed(seed)
    return [tuple(row.tolist()) for step in range(steps) for row in get_batch(generator, step)[0]]


def test_an_epoch_holds_each_source_of_the_training_split_once(translation):
    sources = Counter(tuple(translation.tokenizer.encode(source).tolist()) for source, _ in translation.texts["train"])
    for steps, size in ((8, 10), (16, 10), (7, 12)):  # the last of 7 batches has the 8 sources that are left
        drawn = rows_of(translation, steps, size)
        ends = translation.tokenizer.end, translation.tokenizer.padding
        seen = Counter(tuple(token for token in row if token not in ends) for row in drawn)
        assert seen == Counter({source: number * (steps * size // 80) for source, number in sources.items()})


def test_a_batch_is_cut_to_its_longest_example(translation):
    for _, (source, source_lengths, inputs, targets) in translation.splits["test"].in_order(7):
        real = (targets != translation.tokenizer.padding).sum(dim=1)
        assert source.shape[1] == source_lengths.max() and inputs.shape[1] == targets.shape[1] == real.max()
        assert (source[torch.arange(len(source)), source_lengths - 1] == translation.tokenizer.end).all()


def numbered(count=40):
    """A model of one number, and examples that are their own numbers."""
    examples = Examples([(torch.arange(count)[:, None], None)], torch.ones(count, 1, dtype=torch.int64), CPU)
    model = torch.nn.Linear(1, 1, bias=False)
    return model, examples


def train_numbered(steps, batches, folder=None, resume=False, seen=None, stop=None):
    torch.manual_seed(0)
    model, examples = numbered()
    get_batch = batches(examples)

    def loss(model, numbers):
        if model.training:
            seen.extend(numbers[:, 0].tolist())
            if stop == len(seen):
                raise KeyboardInterrupt
        return model(numbers.float()).pow(2).mean() / 1000

    settings = Settings(steps=steps, batch=8, evaluate_every=2)
    return train(
        model, get_batch, [examples.batch(torch.arange(4))], settings, config={}, loss=loss, device="cpu",
        folder=folder, resume=resume, progress=False,
    )  # fmt: skip


def test_a_run_that_is_resumed_goes_on_in_its_epoch(tmp_path):
    """40 examples, 5 batches of 8: what was seen before the break is not seen again, and the order is the same."""
    whole, broken, rest = [], [], []
    expected = train_numbered(10, lambda examples: examples.batches(8), seen=whole)
    with pytest.raises(KeyboardInterrupt):
        train_numbered(10, lambda examples: examples.batches(8), tmp_path, seen=broken, stop=24)
    record = train_numbered(10, lambda examples: examples.batches(8), tmp_path, resume=True, seen=rest)
    assert broken[:16] + rest == whole and sorted(whole[:40]) == sorted(whole[40:]) == list(range(40))
    assert whole[:40] != whole[40:]  # another epoch, another order
    assert record["curve"] == expected["curve"]


def test_a_checkpoint_of_another_order_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train_numbered(10, lambda examples: examples.batches(8), tmp_path, seen=[], stop=24)

    def another_order(examples):
        get_batch = examples.batches(8)
        return lambda generator, step: get_batch(generator, step + 1)

    with pytest.raises(ValueError, match="with first training batch = .*: use the same as before, or start again in"):
        train_numbered(10, another_order, tmp_path, resume=True, seen=[])


def test_the_order_of_the_data_is_that_of_the_seed():
    task = make_task("language model", CPU, **LANGUAGE_MODEL)
    assert rows_of(task, 2, 4) == rows_of(task, 2, 4) != rows_of(task, 2, 4, seed=1)


# One run


class Watched:
    """A language model's task that notes where it is called."""

    record_maps, unit, count = None, "nats per token", None

    def __init__(self):
        self.task, self.seen = make_task("language model", CPU, **LANGUAGE_MODEL), []
        self.build, self.batches, self.valid, self.test, self.tokens = (
            self.task.build, self.task.batches, self.task.valid, self.task.test, self.task.tokens,
        )  # fmt: skip

    def loss(self, model, *batch):
        self.seen.append(("training" if model.training else "evaluation", kernels(model)))
        return self.task.loss(model, *batch)

    def measure(self, model):
        self.seen.append(("measured in training" if model.training else "measured in evaluation", kernels(model)))
        return {}


def kernels(model):
    return {layer.always_plain for layer in model.modules() if isinstance(layer, Attention)}


def test_in_a_run_each_layer_is_plain_and_metrics_are_measured_in_evaluation(monkeypatch):
    task = Watched()

    monkeypatch.setattr(tasks, "make_task", lambda name, device, **options: task)
    settings = {
        "data": {}, "model": SMALL | {"max_length": 16}, "settings": {"steps": 3, "batch": 2, "evaluate_every": 2}
    }  # fmt: skip
    result = run_experiment(experiment("language model", "Dense"), settings, CPU)
    assert all(plain == {True} for _, plain in task.seen)
    kinds = [kind for kind, _ in task.seen]
    assert kinds.count("training") == 3 and kinds[-1] == "measured in evaluation"
    assert result["curve"][-1] == [3, result["metrics"]["loss"]] and result["metrics"]["test_loss"] > 0
    assert result["tokens_per_second"] == pytest.approx(3 * 2 * 16 / result["training_seconds"], rel=0.5)


def test_the_tokens_of_a_batch_are_the_real_ones(translation, few_glosses):
    """What is counted a second: padding takes time, and is no token."""
    source, source_lengths, inputs, targets = batch = translation.batches(8)(torch.Generator().manual_seed(0), 0)
    padding = translation.tokenizer.padding
    real = sum(token != padding for row in [*source.tolist(), *inputs.tolist()] for token in row)
    assert translation.tokens(*batch) == real < source.numel() + inputs.numel()
    glosses = classification()
    tokens, lengths, labels = glosses.batches(8)(torch.Generator().manual_seed(0), 0)
    assert glosses.tokens(tokens, lengths, labels) == (tokens != padding).sum() < tokens.numel()


def test_the_parameters_of_s_are_those_of_the_self_attention(translation, monkeypatch):
    monkeypatch.setattr(tasks, "make_task", lambda name, device, **options: translation)
    settings = {"data": {}, "model": SMALL | {"max_length": 15}, "settings": {"steps": 1, "batch": 2}}
    result = run_experiment(experiment("translation, grammar", "Vanilla", question="tuning"), settings, CPU)
    of_one = 2 * (12 * 12 + 12)  # queries and keys
    assert result["parameters_of_S"] == 2 * of_one  # the encoder's and the decoder's, and not the cross-attention's


def test_the_last_rows_are_a_quarter_of_the_queries():
    assert tasks._last_rows(torch.arange(8)[None, None, :, None]).flatten().tolist() == [6, 7]


def test_histograms_sum_to_one_and_leave_out_what_may_not_be_attended_to():
    weights = torch.tensor([0.0, 0.0, 1.0, 0.5, 0.00005])
    found = tasks.histogram(weights)
    assert len(found) == len(tasks.EDGES) == 21 and sum(found) == pytest.approx(1, abs=1e-3)
    assert found[0] == found[-1] == pytest.approx(1 / 3, abs=1e-4)  # up to 0.0001, and the bin that ends at 1
    assert tasks.histogram(torch.full((1, 2, 3, 4), 0.25))[tasks.EDGES.index(0.2511886)] == 1


def test_maps_are_recorded_of_sentences_without_padding(translation, monkeypatch):
    torch.manual_seed(0)
    model, read = translation.build(**SMALL, max_length=15).eval(), []
    of_model = model.attention_maps
    monkeypatch.setattr(model, "attention_maps", lambda *tokens: read.append(tokens) or of_model(*tokens))
    histograms, maps = translation.record_maps(model)
    most = max(Counter(map(tuple, translation.splits["test"].lengths.tolist())).values())
    assert [len(tokens) for tokens in read[0]] == [most] * 2 and most > 1  # those of the most frequent lengths
    assert {where: len(layers) for where, layers in histograms.items()} == {"encoder": 1, "decoder": 1, "cross": 1}
    assert "<padding>" not in maps["source"] + maps["target"]
    assert torch.tensor(maps["cross"]).shape == (2, len(maps["target"]), len(maps["source"]))
    assert all(abs(sum(row) - 1000) < 20 for row in maps["encoder"][0])
