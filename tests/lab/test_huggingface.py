"""Models of Hugging Face around our blocks, and our layer in their models: the same numbers as on both sides alone.

Where a version of transformers differs, the sentence of the test says which of its interfaces has moved.
"""

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    DataCollatorForLanguageModeling,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from synth_lib.decoding import beam_search
from synth_lib.lab import huggingface
from synth_lib.lab.huggingface import (
    CACHE,
    CausalCollator,
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForSequenceClassification,
    load_replaced,
    mean_maps,
    model_card,
    replace_attention,
    scores_of,
)
from synth_lib.lab.starts import decaying_scores
from synth_lib.lab.train import parameter_groups
from synth_lib.models import Classifier, LanguageModel
from synth_lib.scores import SCORES
from synth_lib.text.corpora import evaluation_windows, shakespeare
from tests.helpers.properties import refuses

VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH = 17, 12, 3, 2, 16
SIZES = {
    "vocab_size": VOCAB, "hidden_size": D_MODEL, "num_attention_heads": HEAD, "num_hidden_layers": LAYER,
    "max_position_embeddings": MAX_LENGTH, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
EVERY_SCORE = [*SCORES, "random + dot_product", ["random", "dense"], ["dot_product + dense + dot_product", "random"]]
SOME = ["random", "dense + dot_product", ["fixed_random", "factorized_dense"]]
COUNTS = (5, 3, 1)  # tokens of three texts
SIDES = ("left", "right", "both")


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def spread(model):
    """Numbers far from their start, so that no part of a model is nearly nothing; in 64 bits."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return model.double().eval()


def ours(score, kind=SynthesizerForCausalLM, seed=0, **options):
    torch.manual_seed(seed)
    return spread(kind(SynthesizerConfig(score=score, **SIZES, **options)))


def library(score):
    torch.manual_seed(0)
    return spread(LanguageModel(VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH, score))


def texts(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCAB, (1, count), generator=generator) for count in COUNTS]


def padded(side, texts=None):
    """The texts side by side: tokens and attention_mask "batch column". Padding has tokens of its own, which differ."""
    texts = texts or globals()["texts"]()
    columns = max(text.shape[1] for text in texts) + 2
    tokens = torch.randint(1, VOCAB, (len(texts), columns), generator=torch.Generator().manual_seed(9))
    mask = torch.zeros(len(texts), columns, dtype=torch.int64)
    for row, text in enumerate(texts):
        count = text.shape[1]
        first = {"left": columns - count, "right": 0, "both": 1}[side]
        tokens[row, first : first + count], mask[row, first : first + count] = text[0], 1
    return tokens, mask


# --- the language model ---


@pytest.mark.parametrize("score", EVERY_SCORE, ids=str)
def test_logits_are_those_of_the_library(score):
    tokens = torch.cat([text.repeat(1, 5)[:, :5] for text in texts()])
    assert torch.equal(ours(score)(tokens).logits, library(score)(tokens))


def test_the_same_seed_draws_the_same_numbers_as_the_library():
    torch.manual_seed(4)
    model = SynthesizerForCausalLM(SynthesizerConfig(score="random + dense", **SIZES))
    torch.manual_seed(4)
    other = LanguageModel(VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH, "random + dense")
    assert {name: value.tolist() for name, value in model.model.state_dict().items()} == {
        name: value.tolist() for name, value in other.state_dict().items()
    }


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("score", EVERY_SCORE, ids=str)
def test_a_text_gets_the_same_logits_wherever_it_stands_among_padding(score, side):
    model = ours(score)
    tokens, mask = padded(side)
    logits = model(tokens, attention_mask=mask).logits
    for row, text in enumerate(texts()):
        torch.testing.assert_close(logits[row, mask[row] == 1], model(text).logits[0])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.parametrize("score", SOME, ids=str)
def test_reading_in_pieces_is_reading_at_once_under_both_names_of_the_cache(score, name, side):
    model = ours(score)
    tokens, mask = padded(side)
    whole = model(tokens, attention_mask=mask).logits
    kept, parts = DynamicCache(), []
    for start, stop in ((0, 3), (3, 4), (4, tokens.shape[1])):
        output = model(tokens[:, start:stop], attention_mask=mask[:, :stop], use_cache=True, **{name: kept})
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1)[mask == 1], whole[mask == 1])
    assert output[CACHE] is kept and kept.get_seq_length() == tokens.shape[1]


@pytest.mark.parametrize(
    ("score", "numbers"), [("random", 1), ("dense", 1), ("dot_product", 2), ("random + dot_product", 2)]
)
def test_a_synthesizer_keeps_values_alone(score, numbers):
    kept = ours(score)(texts()[0], use_cache=True)[CACHE]
    held = [kept.layers[layer].keys.numel() + kept.layers[layer].values.numel() for layer in range(LAYER)]
    assert held == [numbers * COUNTS[0] * D_MODEL] * LAYER


@pytest.mark.parametrize("score", EVERY_SCORE, ids=str)
def test_greedy_text_is_that_of_the_library_beyond_the_longest_text_too(score):
    text = texts()[0]
    written = ours(score).generate(text, max_new_tokens=MAX_LENGTH + 2, do_sample=False)
    assert torch.equal(written, library(score).generate(text, MAX_LENGTH + 2, temperature=0))


@pytest.mark.parametrize("side", ["left"])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("score", SOME, ids=str)
def test_a_text_with_padding_before_it_goes_on_as_it_does_alone(score, cache, side):
    tokens, mask = padded(side)
    model = ours(score)
    written = model.generate(tokens, attention_mask=mask, max_new_tokens=MAX_LENGTH, do_sample=False, use_cache=cache)
    for row, text in enumerate(texts()):
        alone = library(score).generate(text, MAX_LENGTH, temperature=0)[0, text.shape[1] :]
        assert written[row, tokens.shape[1] :].tolist() == alone.tolist()


def test_sampling_takes_the_token_that_the_library_takes_from_the_same_draw(monkeypatch):
    """Both draw from the same probabilities: with draws of our own they write the same."""
    draws = []

    def multinomial(probabilities, num_samples, generator=None):
        return (probabilities.double().cumsum(dim=-1) < draws.pop(0)).sum(dim=-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    text, chosen = texts()[0], {"temperature": 1.7, "top_k": 9, "top_p": 0.8}
    numbers = torch.rand(8, generator=torch.Generator().manual_seed(5)).tolist()
    draws[:] = numbers
    written = ours("random").generate(text, max_new_tokens=8, do_sample=True, **chosen)
    draws[:] = numbers
    assert torch.equal(written, library("random").generate(text, 8, **chosen))
    draws[:] = [0.0] * 8
    assert not torch.equal(written, ours("random").generate(text, max_new_tokens=8, do_sample=True, **chosen))


@pytest.mark.parametrize("score", ["random + dense", *SOME[1:]], ids=str)
def test_beam_search_finds_what_the_library_finds(score):
    """Without an end: theirs counts one among the best `beam` candidates alone, ours among twice as many."""
    model, other, differs = ours(score), library(score), []
    caches = other.new_caches()

    def step(tokens, rows):
        for cache in caches if rows is not None else ():
            cache.reorder(rows)
        return other(tokens, caches=caches)[:, -1]

    for start in range(1, 8):
        caches = other.new_caches()
        with torch.no_grad():
            (found,) = beam_search(step, 1, start=start, end=99, count=8, beam=3, length_penalty=0.0)
        options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "length_penalty": 0.0}
        written = model.generate(torch.tensor([[start]]), **options)[0, 1:].tolist()
        assert written == found
        greedy = model.generate(torch.tensor([[start]]), max_new_tokens=8, do_sample=False)[0, 1:].tolist()
        differs.append(written != greedy)
    assert any(differs)


@pytest.mark.parametrize("score", SOME, ids=str)
def test_without_a_mask_generate_makes_one_from_the_padding_unless_that_is_the_end(score):
    model = ours(score)
    tokens, mask = padded("left")
    tokens = tokens * mask  # padding is token 0

    def next_logits(**options):
        options |= {"max_new_tokens": 1, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        return model.generate(tokens, **options).logits[0]

    expected = next_logits(attention_mask=mask)
    torch.testing.assert_close(next_logits(), expected)
    for read_as_text in (next_logits(eos_token_id=0), model(tokens).logits[:, -1]):
        assert (read_as_text - expected).abs().max() > 0.1


def test_after_trainer_forward_keeps_no_cache_but_generate_does(tmp_path):
    """Theirs: use_cache of TrainingArguments goes into the config, and is saved with it."""
    model, texts = ours("random").float(), tokenized((6, 5))
    trainer_of(model, tmp_path, texts, CausalCollator(tokenizer_that_pads("right")), max_steps=1).train()
    seen = []
    model.eval().model.blocks[0].register_forward_pre_hook(lambda block, arguments: seen.append(arguments[0].shape[1]))
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3, do_sample=False)
    assert seen == [3, 1, 1]
    assert (getattr(model(torch.tensor([[1, 2, 3]])), CACHE) is not None) == model.config.use_cache


def test_trainer_leaves_the_last_row_of_a_table_as_it_was_drawn(tmp_path):
    model, texts = ours("random").float(), tokenized((MAX_LENGTH, MAX_LENGTH))
    tables = [block.attention.score.R for block in model.model.blocks]
    start = [table.detach().clone() for table in tables]
    trainer_of(model, tmp_path, texts, CausalCollator(tokenizer_that_pads("right")), max_steps=2).train()
    for table, before in zip(tables, start, strict=True):
        assert torch.equal(table[:, -1], before[:, -1]) and (table[:, 1:-1] != before[:, 1:-1]).any(dim=-1).all()


@pytest.mark.parametrize("side", SIDES)
def test_the_loss_is_the_mean_over_the_tokens_that_are_predicted_from_tokens(side):
    model = ours("random")
    tokens, mask = padded(side)
    loss = model(tokens, attention_mask=mask, labels=tokens.masked_fill(mask == 0, -100)).loss
    logits = [model(text).logits[0, :-1] for text in texts()]
    targets = torch.cat([text[0, 1:] for text in texts()])
    expected = torch.nn.functional.cross_entropy(torch.cat(logits), targets)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)


def test_trainer_may_divide_the_loss_by_a_number_of_its_own():
    model, text = ours("random"), texts()[0]
    loss = model(text, labels=text).loss
    divided = model(text, labels=text, num_items_in_batch=torch.tensor(8)).loss
    torch.testing.assert_close(divided * 8, loss * (COUNTS[0] - 1))


def tokenizer_that_pads(side):
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(VOCAB)}))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="0", padding_side=side, model_input_names=["input_ids", "attention_mask"]
    )


@torch.no_grad()
def slow_losses(model, texts):
    """The loss of every prediction of these texts, each text alone, each token in its turn."""
    losses = []
    for text in texts:
        for count in range(1, len(text)):
            logs = model(torch.tensor([text[:count]])).logits[0, -1].log_softmax(dim=0)
            losses.append(-logs[text[count]].item())
    return losses


def tokenized(counts, seed=1):
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randint(1, VOCAB, (count,), generator=generator).tolist() for count in counts]
    return [{"input_ids": text, "attention_mask": [1] * len(text)} for text in found]


def trainer_of(model, folder, texts, collator, **options):
    arguments = TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True, seed=0, save_strategy="no", **options
    )
    return Trainer(model, arguments, train_dataset=texts, eval_dataset=texts, data_collator=collator)


def skip_if_trainer_counts_the_first_column(trainer, collator):
    if collator is DataCollatorForLanguageModeling and not hasattr(trainer, "_loss_shifts_labels"):
        pytest.skip("this Trainer counts the first column, which nothing predicts, as a target for every model")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("collator", [DataCollatorForLanguageModeling, CausalCollator])
def test_trainer_evaluates_to_the_loss_of_the_texts_alone(collator, side, tmp_path):
    model, texts = ours("random").float(), tokenized((6, 2, 5))
    expected = slow_losses(model, [text["input_ids"] for text in texts])
    expected = sum(expected) / len(expected)
    options = {"mlm": False} if collator is DataCollatorForLanguageModeling else {}
    collate = collator(tokenizer_that_pads(side), **options)
    with torch.no_grad():
        assert model(**collate(copy.deepcopy(texts))).loss.item() == pytest.approx(expected, rel=1e-5)
    trainer = trainer_of(model, tmp_path, texts, collate, per_device_eval_batch_size=3)
    skip_if_trainer_counts_the_first_column(trainer, collator)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("collator", [DataCollatorForLanguageModeling, CausalCollator])
def test_trainer_trains_on_the_loss_of_the_texts_alone(collator, side, batches, tmp_path):
    """One step of plain gradient descent shows the loss that was logged and the gradient that was taken."""
    model, texts = ours("random").float(), tokenized((6, 2, 5, 7))
    expected = slow_losses(model, [text["input_ids"] for text in texts])
    slow = copy.deepcopy(model)
    losses = []
    for text in texts:
        tokens = torch.tensor([text["input_ids"]])
        logits = slow(tokens).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none"))
    torch.cat(losses).mean().backward()
    options = {"mlm": False} if collator is DataCollatorForLanguageModeling else {}
    trainer = trainer_of(
        model, tmp_path, texts, collator(tokenizer_that_pads(side), pad_to_multiple_of=8, **options), max_steps=1,
        per_device_train_batch_size=4 // batches, gradient_accumulation_steps=batches, logging_steps=1,
        max_grad_norm=0.0, learning_rate=1.0, lr_scheduler_type="constant",
    )  # fmt: skip
    skip_if_trainer_counts_the_first_column(trainer, collator)
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    if collator is DataCollatorForLanguageModeling and side == "left" and batches > 1:
        with refuses(ValueError, "2 labels of this batch are predicted from padding", "CausalCollator"):
            trainer.train()
        return
    trainer.train()
    (logged,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(sum(expected) / len(expected), rel=1e-3)  # it is logged with four digits
    for (name, parameter), other in zip(model.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(parameter, start[name] - other.grad, rtol=1e-4, atol=1e-5)


def test_labels_that_nothing_predicts_and_labels_of_the_end():
    """Token 0 pads and ends: at an end it is a label, as padding it is none."""
    texts = [{"input_ids": [3, 4, 0], "attention_mask": [1, 1, 1]}, {"input_ids": [5, 0], "attention_mask": [1, 1]}]
    for side, row in (("left", [-100, -100, 0]), ("right", [-100, 0, -100])):
        labels = CausalCollator(tokenizer_that_pads(side))(copy.deepcopy(texts))["labels"]
        assert labels.tolist() == [[-100, 4, 0], row]
    tokenizer = tokenizer_that_pads("left")
    tokenizer.model_input_names = ["input_ids"]
    with refuses(ValueError, "no attention_mask", "model_input_names"):
        CausalCollator(tokenizer)([{"input_ids": [3, 4]}, {"input_ids": [5, 0]}])


def test_trainer_shifts_the_labels_when_it_smooths_them(tmp_path):
    model, text = ours("random"), texts()[0]
    arguments = TrainingArguments(output_dir=str(tmp_path), label_smoothing_factor=0.2, report_to=[], use_cpu=True)
    labels = text.clone()
    labels[0, 2] = -100
    loss = Trainer(model=model, args=arguments).compute_loss(model, {"input_ids": text, "labels": labels.clone()})
    losses = []
    for column in range(COUNTS[0] - 1):
        target, logs = int(labels[0, column + 1]), model(text).logits[0, column].log_softmax(dim=0)
        if target != -100:
            losses.append(-0.8 * logs[target] - 0.2 * logs.mean())
    torch.testing.assert_close(loss, torch.stack(losses).mean())


@pytest.mark.parametrize("score", SOME, ids=str)
def test_gradients_are_those_of_the_library_with_and_without_checkpointing(score):
    text, found = texts()[0], []
    for checkpointing in (False, True):
        model = ours(score).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        model(text, labels=text).loss.backward()
        found.append({name: p.grad for name, p in model.model.named_parameters()})
    other = library(score)
    loss = torch.nn.functional.cross_entropy(other(text)[0, :-1].float(), text[0, 1:])
    loss.backward()
    for name, parameter in other.named_parameters():
        for gradients in found:
            assert (gradients[name] is None) == (parameter.grad is None), name
            if parameter.grad is not None:
                torch.testing.assert_close(gradients[name], parameter.grad)


def test_checkpointing_runs_each_block_again():
    calls, text = [], texts()[0]
    model = ours("random").train()
    model.model.blocks[1].register_forward_pre_hook(lambda *_: calls.append(1))
    model(text, labels=text).loss.backward()
    assert len(calls) == 1
    model.gradient_checkpointing_enable()
    model(text, labels=text).loss.backward()
    assert len(calls) == 3


@pytest.mark.parametrize("score", SOME, ids=str)
def test_with_checkpointing_on_a_cache_that_is_given_is_read(score):
    model, text = ours(score), texts()[0]
    whole, written = model(text).logits, model.generate(text, max_new_tokens=6, do_sample=False)
    kept = DynamicCache()
    model(text[:, :3], past_key_values=kept, use_cache=True)
    model.train().gradient_checkpointing_enable()
    torch.testing.assert_close(model(text[:, 3:], past_key_values=kept).logits, whole[:, 3:])
    assert kept.get_seq_length() == COUNTS[0]
    assert torch.equal(model.generate(text, max_new_tokens=6, do_sample=False), written)


def test_hidden_states_maps_and_tuples_are_what_transformers_promises():
    model, (text, *_) = ours(["random", "dense"]), texts()
    output = model(text, output_attentions=True, output_hidden_states=True)
    for ours_, theirs in zip(output.attentions, library(["random", "dense"]).attention_maps(text), strict=True):
        assert torch.equal(ours_, theirs)
    assert len(output.hidden_states) == LAYER + 1
    torch.testing.assert_close(output.hidden_states[-1] @ model.get_output_embeddings().weight.T, output.logits)
    torch.testing.assert_close(model(text, return_dict=False)[0], output.logits)
    torch.testing.assert_close(model(text, logits_to_keep=2).logits, output.logits[:, -2:])
    tokens, mask = padded("left")
    (first, _) = model(tokens, attention_mask=mask, output_attentions=True).attentions
    real = mask.bool()
    torch.testing.assert_close(first[0, :, real[0]][:, :, real[0]], output.attentions[0][0])
    assert not first.masked_select(~(real[:, None, :, None] & real[:, None, None, :])).any()


# --- saved and loaded ---


@pytest.mark.parametrize("score", EVERY_SCORE, ids=str)
def test_saved_and_loaded_bit_for_bit_with_every_s(score, tmp_path):
    options = {"rank": 3} if "factorized_random" in str(score) else {}
    model = ours(score, score_options=options)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")  # without it, version 4 loads as float32
    assert type(again) is SynthesizerForCausalLM and again.config.to_dict()["score"] == model.config.score
    assert again.config.score_options == options
    for (name, tensor), (other, loaded) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other and tensor.dtype == loaded.dtype and torch.equal(tensor, loaded)
    tokens, mask = padded("left")
    one, two = (each.eval()(tokens, attention_mask=mask).logits for each in (again, model))
    torch.testing.assert_close(one, two)


def test_a_checkpoint_of_the_library_is_loaded_by_its_own_names():
    model, other = ours("random", seed=1), library("random")
    model.model.load_state_dict(other.state_dict())
    assert torch.equal(model(texts()[0]).logits, other(texts()[0]))
    one, two = (each.generate(texts()[0], 20, temperature=0) for each in (model.model, other))
    assert torch.equal(one, two)


def test_loaded_in_another_dtype(tmp_path):
    ours("random + dense").float().save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    tokens, mask = padded("left")
    assert model(tokens, attention_mask=mask).logits.dtype == torch.bfloat16


def test_what_a_checkpoint_lacks_is_drawn_as_the_library_draws_it(tmp_path):
    ours("random").save_pretrained(tmp_path)
    torch.manual_seed(1)
    model = SynthesizerForSequenceClassification.from_pretrained(tmp_path, num_labels=500, dtype="auto")
    assert model.model.label.weight.shape == (500, D_MODEL)
    bound = D_MODEL**-0.5
    assert 0.9 * bound < model.model.label.weight.abs().max() <= bound and model.model.label.bias.abs().max() <= bound
    assert torch.equal(model.model.blocks[0].attention.score.R, ours("random").model.blocks[0].attention.score.R)


@pytest.mark.parametrize(
    ("saved", "asked"),
    [
        ("dense", {"score": "random"}),
        ("random + dense", {"score": "random"}),
        ("random", {"score": ["random", "dense"]}),
        ("random", {"max_position_embeddings": MAX_LENGTH + 4, "ignore_mismatched_sizes": True}),
    ],
)  # fmt: skip
def test_an_s_that_the_checkpoint_lacks_is_not_drawn(saved, asked, tmp_path):
    ours(saved).save_pretrained(tmp_path)
    with refuses(ValueError, "the checkpoint has no", f"score {asked.get('score', saved)!r}", "that it was saved with"):
        SynthesizerForCausalLM.from_pretrained(tmp_path, **asked)


@pytest.mark.parametrize(("saved", "asked"), [("random", "fixed_random"), ("fixed_random", "random")])
def test_a_table_is_loaded_as_one_that_stays_or_learns_and_is_the_same(saved, asked, tmp_path):
    model = ours(saved)
    model.save_pretrained(tmp_path)
    again = SynthesizerForCausalLM.from_pretrained(tmp_path, score=asked, dtype="auto").eval()
    assert torch.equal(again(texts()[0]).logits, model(texts()[0]).logits)
    learns = {name.split(".")[-1] for name, _ in again.named_parameters()}
    assert again.config.score == asked and ("R" in learns) == (asked == "random")


def test_a_model_in_shards_is_loaded_bit_for_bit(tmp_path):
    model = ours(["random", "dense"])
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))


def test_embedding_and_output_are_one_matrix_whatever_happens_to_it(tmp_path):
    model = ours("random")
    assert model.get_output_embeddings() is model.get_input_embeddings()
    model.resize_token_embeddings(VOCAB + 4)
    assert model(texts()[0]).logits.shape[-1] == VOCAB + 4 and model.config.vocab_size == VOCAB + 4
    assert model.get_output_embeddings() is model.get_input_embeddings()
    model.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).get_input_embeddings().num_embeddings == VOCAB + 4


# --- refused ---


@pytest.mark.parametrize(
    ("arguments", "error", "pieces"),
    [
        ({"attention_mask": torch.ones(1, 4)}, ValueError, ("(1, 4)", "(1, 5)")),
        ({"attention_mask": torch.tensor([[0.0, 0, 0, 0, -1e9]])}, ValueError, ("1 for a token and 0 for padding",)),
        ({"attention_mask": torch.ones(1, 1, 5, 5)}, ValueError, ("(1, 1, 5, 5)", "(1, 5)")),
        ({"position_ids": torch.arange(1, 6)[None]}, ValueError, ("position_ids",)),
        ({"inputs_embeds": torch.ones(1, 5, D_MODEL)}, TypeError, ("inputs_embeds",)),
        ({"token_type_ids": torch.ones(1, 5)}, TypeError, ("token_type_ids",)),
        ({"cache": transformers.StaticCache(config=GPT2Config(), max_cache_len=4)}, TypeError, ("StaticCache",)),
        ({"input_ids": torch.ones(1, MAX_LENGTH + 1, dtype=torch.int64)}, ValueError, ("17", "16")),
        ({"input_ids": None}, ValueError, ("input_ids",)),
    ],
)  # fmt: skip
def test_what_does_not_fit_gets_one_sentence(arguments, error, pieces):
    with refuses(error, *pieces):
        ours("random")(**({"input_ids": texts()[0]} | arguments))


def test_a_config_refuses_what_json_cannot_hold_and_an_untied_output():
    with refuses(TypeError, "name"):
        SynthesizerConfig(score=SCORES["dense"](12, 3, 8))
    with refuses(ValueError, "tie_word_embeddings"):
        SynthesizerConfig(tie_word_embeddings=False)
    with refuses(ValueError, 'unknown score "sparse"', "factorized_random"):
        SynthesizerConfig(score=["random", "dense + sparse"])
    for name, right in {"n_layers": "num_hidden_layers", "d_model": "hidden_size", "rank": "score_options"}.items():
        with refuses(TypeError, name, right):
            SynthesizerConfig(**{name: 3})


def test_the_names_of_gpt2_are_taken(tmp_path):
    config = SynthesizerConfig(vocab_size=VOCAB, n_embd=10, n_head=2, n_layer=3, n_positions=9)
    config.save_pretrained(tmp_path)
    model = SynthesizerForCausalLM(transformers.AutoConfig.from_pretrained(tmp_path)).model
    assert [len(model.blocks), model.max_length, model.token.weight.shape[1]] == [3, 9, 10]
    assert model.blocks[0].attention.head == 2 and config.n_embd == config.hidden_size == 10


def test_generate_refuses_a_text_that_ends_with_padding():
    for side in ("right", "both"):
        tokens, mask = padded(side)
        mask[0] = 1
        with refuses(ValueError, "row 1 of attention_mask ends with padding", 'padding_side="left"'):
            ours("random").generate(tokens, attention_mask=mask, max_new_tokens=2)


def test_without_transformers_one_sentence_says_what_to_install():
    code = (
        "import sys, synth_lib.lab, synth_lib.lab.train; assert 'transformers' not in sys.modules\n"
        "sys.modules['transformers'] = None\n"
        "try:\n    import synth_lib.lab.huggingface\nexcept ImportError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith('synth_lib.lab.huggingface needs transformers: pip install -e ".[hf]"')
    assert said.count("\n") == 1


# --- the classifier ---


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("score", ["random", "dense", "dot_product", ["random", "factorized_dense"]], ids=str)
def test_a_classifier_is_that_of_the_library_wherever_the_padding_stands(score, side, tmp_path):
    model = ours(score, SynthesizerForSequenceClassification, num_labels=4)
    torch.manual_seed(0)
    other = spread(Classifier(VOCAB, 4, D_MODEL, HEAD, LAYER, MAX_LENGTH, score))
    tokens, mask = padded(side)
    output = model(tokens, attention_mask=mask, labels=torch.tensor([1, 0, 3]))
    expected = torch.cat([other(text) for text in texts()])
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(expected, torch.tensor([1, 0, 3])))
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype="auto").eval()
    torch.testing.assert_close(again(tokens, attention_mask=mask).logits, output.logits)
    with refuses(ValueError, "no token in row 1"):
        model(tokens, attention_mask=mask * torch.tensor([[1], [0], [1]]))


def test_a_classifier_with_checkpointing_has_the_same_gradient():
    tokens, mask = padded("left")
    gradients = []
    for checkpointing in (False, True):
        model = ours("random", SynthesizerForSequenceClassification, num_labels=4).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(tokens, attention_mask=mask, labels=torch.tensor([1, 0, 3])).loss.backward()
        gradients.append(model.model.blocks[0].attention.score.R.grad)
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 0


# --- trained ---


class Windows(torch.utils.data.Dataset):
    def __init__(self, tokens, length, count):
        self.inputs, _ = evaluation_windows(tokens, length, count)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"input_ids": self.inputs[index], "labels": self.inputs[index]}


def test_an_epoch_with_trainer_and_our_parameter_groups(tmp_path):
    tokenizer, splits = shakespeare()
    torch.manual_seed(0)
    model = SynthesizerForCausalLM(SynthesizerConfig(**(SIZES | {"vocab_size": tokenizer.vocab})))
    groups = parameter_groups(model, learning_rate=3e-3, weight_decay=0.1)
    assert [group["name"] for group in groups] == ["matrices", "vectors", "R"]
    tables = [block.attention.score.R for block in model.model.blocks]
    before = [table.detach().clone() for table in tables]
    rates = []

    class Look(transformers.TrainerCallback):
        def on_step_begin(self, *arguments, optimizer=None, **kwargs):
            rates.append([group["lr"] for group in optimizer.param_groups])

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=1, per_device_train_batch_size=16, report_to=[], use_cpu=True,
            logging_steps=10, save_strategy="no", disable_tqdm=True, seed=0,
        ),
        train_dataset=Windows(splits["train"], MAX_LENGTH, 960),
        optimizers=(torch.optim.AdamW(groups), None),
        callbacks=[Look()],
    )  # fmt: skip
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5
    assert len(rates) == 60 and all(abs(rate[2] - 10 * rate[0]) < 1e-12 for rate in rates)
    moved = [float((table - start).abs().mean()) for table, start in zip(tables, before, strict=True)]
    assert min(moved) > 0.02
    trainer.save_model(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_training_goes_on_from_a_checkpoint_to_the_same_numbers(replaced, tmp_path):
    pieces = torch.randint(1, VOCAB, (16, 8), generator=torch.Generator().manual_seed(0))
    pieces = [{"input_ids": piece, "labels": piece} for piece in pieces]
    ends = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        model = (replace_attention(gpt2(), "random") if replaced else ours("random")).float()
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=4, save_steps=2, report_to=[],
            use_cpu=True, disable_tqdm=True, seed=0, logging_strategy="no",
        )  # fmt: skip
        optimizer = torch.optim.AdamW(parameter_groups(model, learning_rate=1e-2, weight_decay=0.1))
        start = copy.deepcopy(model.state_dict())
        Trainer(model, arguments, train_dataset=pieces, optimizers=(optimizer, None)).train(
            resume_from_checkpoint=resume
        )
        ends.append(model.state_dict())
    for name, tensor in ends[0].items():
        assert torch.equal(tensor, ends[1][name]), name
    assert not all(torch.equal(tensor, start[name]) for name, tensor in ends[0].items())


def test_the_lines_of_the_readme_train_save_load_and_write(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    readme = (Path(huggingface.__file__).resolve().parents[2] / "README.md").read_text(encoding="utf8")
    (lines,) = [block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "huggingface" in block]
    exec(lines, {})
    assert (tmp_path / "random" / "model.safetensors").exists()
    assert capsys.readouterr().out.rstrip("\n").splitlines()[-1] == "to be or not to be, to be or"


# --- our layer in their models ---


def gpt2(implementation="eager", **options):
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=D_MODEL, n_head=HEAD, n_layer=LAYER, n_positions=MAX_LENGTH, bos_token_id=None,
        eos_token_id=None, pad_token_id=0, attn_implementation=implementation, **options,
    )  # fmt: skip
    return spread(GPT2LMHeadModel(config))


def bert(implementation="eager", **options):
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=D_MODEL, num_attention_heads=HEAD, num_hidden_layers=LAYER, intermediate_size=20,
        max_position_embeddings=MAX_LENGTH, attn_implementation=implementation, **options,
    )  # fmt: skip
    return spread(BertModel(config))


def llama(implementation="eager", shared=1, **options):
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=D_MODEL, num_attention_heads=HEAD, num_key_value_heads=HEAD // shared,
        num_hidden_layers=LAYER, intermediate_size=20, max_position_embeddings=MAX_LENGTH, bos_token_id=None,
        eos_token_id=None, pad_token_id=0, attn_implementation=implementation, **options,
    )  # fmt: skip
    return spread(LlamaForCausalLM(config))


@pytest.mark.parametrize("layers", [None, [1], [0]], ids=str)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("make", [gpt2, bert])
def test_a_dot_product_with_copied_weights_is_the_original(make, implementation, layers):
    model = make(implementation)
    other = replace_attention(copy.deepcopy(model), "dot_product", layers)
    replaced = [type(module).__name__ for module in other.modules() if isinstance(module, huggingface._Replaced)]
    assert len(replaced) == (LAYER if layers is None else 1)
    for side in SIDES:
        tokens, mask = padded(side)
        torch.testing.assert_close(
            other(tokens, attention_mask=mask)[0][mask == 1], model(tokens, attention_mask=mask)[0][mask == 1]
        )
    torch.testing.assert_close(other(texts()[0])[0], model(texts()[0])[0])


@pytest.mark.parametrize("layers", [None, [1], [0]], ids=str)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_replaced_gpt2_writes_what_the_original_writes(implementation, layers):
    model = gpt2(implementation)
    other = replace_attention(copy.deepcopy(model), "dot_product", layers)
    tokens, mask = padded("left")
    for options in ({}, {"num_beams": 3}, {"use_cache": False}):
        options = {"attention_mask": mask, "max_new_tokens": 7, "do_sample": False} | options
        assert torch.equal(other.generate(tokens, **options), model.generate(tokens, **options))


@pytest.mark.parametrize("options", [{"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}], ids=str)
def test_the_scales_of_gpt2_go_into_the_copied_weights(options):
    model = gpt2(**options)
    other = replace_attention(copy.deepcopy(model), "dot_product")
    torch.testing.assert_close(other(texts()[0])[0], model(texts()[0])[0])


@pytest.mark.parametrize("make", [gpt2, bert])
def test_the_maps_of_replaced_layers_stand_in_their_place(make):
    model = make("eager")
    other = replace_attention(copy.deepcopy(model), "dot_product", [1])
    one, two = (each(texts()[0], output_attentions=True).attentions for each in (model, other))
    assert len(one) == len(two) == LAYER
    for mine, theirs in zip(two, one, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("score", ["random", "dense", "factorized_random"])
def test_another_s_reads_in_pieces_and_with_padding_what_it_reads_alone(make, score):
    model = spread(replace_attention(make(), score))
    assert not {"query", "q_proj", "k_proj", "c_attn"} & {name.split(".")[-2] for name, _ in model.named_parameters()}
    tokens, mask = padded("left")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(tokens, attention_mask=mask, position_ids=positions).logits
    for row, text in enumerate(texts()):
        torch.testing.assert_close(logits[row, mask[row] == 1], model(text).logits[0])
    written = model.generate(tokens, attention_mask=mask, max_new_tokens=6, do_sample=False)
    for row, text in enumerate(texts()):
        alone = model.generate(text, max_new_tokens=6, do_sample=False)[0, text.shape[1] :]
        assert written[row, tokens.shape[1] :].tolist() == alone.tolist()


@pytest.mark.parametrize("score", [None, "dot_product", "random"])
def test_a_gpt2_counts_columns_unless_it_is_told_the_positions(score):
    """Theirs, and so ours in it: `generate` makes position_ids, forward does not."""
    model = gpt2() if score is None else spread(replace_attention(gpt2(), score))
    tokens, mask = padded("left")
    alone = model(texts()[1]).logits[0]
    assert (model(tokens, attention_mask=mask).logits[1, mask[1] == 1] - alone).abs().max() > 0.1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    told = model(tokens, attention_mask=mask, position_ids=positions).logits[1, mask[1] == 1]
    torch.testing.assert_close(told, alone)


def test_a_replaced_layer_keeps_values_and_output_and_the_parameters_around_it():
    model = gpt2()
    other = replace_attention(copy.deepcopy(model), "random", [0])
    mine, theirs = other.transformer.h[0].attn.attention, model.transformer.h[0].attn
    assert torch.equal(mine.value.weight, theirs.c_attn.weight[:, 2 * D_MODEL :].T)
    assert torch.equal(mine.output.weight, theirs.c_proj.weight.T) and torch.equal(mine.output.bias, theirs.c_proj.bias)
    kept = {name: tensor for name, tensor in model.state_dict().items() if ".h.0.attn." not in name}
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in kept.items())
    tables = [name for name, _ in other.named_parameters() if name.endswith(".R")]
    assert tables == ["transformer.h.0.attn.attention.score.R"]


@pytest.mark.parametrize("make", [gpt2, bert, llama])
def test_a_replaced_model_is_loaded_with_its_s_and_never_without(make, tmp_path):
    model = make("sdpa")
    replace_attention(model, "factorized_random", [0], rank=3)
    spread(replace_attention(model, "random + dense", [1])).save_pretrained(tmp_path)
    for kind in (type(model), transformers.AutoModel):
        with pytest.raises(RuntimeError, match="mismatch"):
            kind.from_pretrained(tmp_path)
    again = load_replaced(type(model), tmp_path)
    for (name, tensor), (other, loaded) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other and tensor.dtype == loaded.dtype and torch.equal(tensor, loaded)
    for twin in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(texts()[0])[0], model(texts()[0])[0])
    make().save_pretrained(tmp_path)
    with refuses(ValueError, "no attention was replaced", f"{type(model).__name__}.from_pretrained"):
        load_replaced(type(model), tmp_path)


@pytest.mark.parametrize("make", [gpt2, bert, llama])
def test_a_replaced_model_in_shards_is_loaded_bit_for_bit(make, tmp_path):
    model = spread(replace_attention(make(), "random + dense", [1]))
    model.save_pretrained(tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2 and not (tmp_path / "model.safetensors").exists()
    again = load_replaced(type(model), tmp_path)
    for (name, tensor), (other, loaded) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other and tensor.dtype == loaded.dtype and torch.equal(tensor, loaded)
    torch.testing.assert_close(again(texts()[0])[0], model(texts()[0])[0], rtol=1e-5, atol=1e-5)  # layer 0 is theirs
    with refuses(TypeError, "kind must be the class of the model", "AutoModelForCausalLM"):
        load_replaced(AutoModelForCausalLM, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with refuses(ValueError, "holds both", "an empty folder"):
        load_replaced(type(model), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    with refuses(ValueError, "holds neither"):
        load_replaced(type(model), tmp_path)


def test_what_is_missing_in_a_replaced_model_is_not_drawn(tmp_path):
    model = replace_attention(gpt2(), "random")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.h.1.attn.attention.score.R"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match="Missing key.*h.1.attn.attention.score.R"):
        load_replaced(GPT2LMHeadModel, tmp_path)


@pytest.mark.parametrize("make", [gpt2, bert])
def test_a_layer_may_be_replaced_again(make):
    model, text = make(), texts()[0]
    other = replace_attention(copy.deepcopy(model), "random + dot_product")
    assert not torch.allclose(other(text)[0], model(text)[0])
    torch.testing.assert_close(replace_attention(other, "dot_product")(text)[0], model(text)[0])
    layer = next(module for module in model.modules() if huggingface._shape_of(module))
    names = {type(module).__name__ for module in other.modules() if isinstance(module, huggingface._Replaced)}
    assert names == {f"Replaced{type(layer).__name__}"}


@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_text_too_long_for_a_replaced_model_gets_both_numbers(make):
    with refuses(ValueError, str(MAX_LENGTH + 1), str(MAX_LENGTH), "at most" if make is gpt2 else "max_length"):
        replace_attention(make(), "random")(torch.ones(1, MAX_LENGTH + 1, dtype=torch.int64))


def test_heads_that_share_values_get_copies():
    model = llama(shared=3)
    other = replace_attention(copy.deepcopy(model), "random", [0])
    mine = other.model.layers[0].self_attn.attention.value.weight.unflatten(0, (HEAD, -1))
    for part in mine:
        assert torch.equal(part, model.model.layers[0].self_attn.v_proj.weight)


def test_a_replaced_layer_trains_with_its_table_in_the_group_of_tables():
    model = replace_attention(gpt2(), "random", [1]).train()
    groups = {group["name"]: group for group in parameter_groups(model, 1e-3, 0.1)}
    table = model.transformer.h[1].attn.attention.score.R
    assert groups["R"]["lr"] == pytest.approx(1e-2) and any(table is one for one in groups["R"]["params"])
    model.gradient_checkpointing_enable()
    model(texts()[0], labels=texts()[0]).loss.backward()
    assert table.grad.abs().max() > 0


def test_what_cannot_be_replaced_gets_one_sentence():
    with refuses(ValueError, "layer 0 rotates its queries and keys", "choose a score without dot_product"):
        replace_attention(llama(), "random + dot_product")
    with refuses(ValueError, "3 heads share their keys"):
        replace_attention(llama(shared=3), "dot_product")
    with refuses(ValueError, "are 24 wide together", "d_model = 12"):
        replace_attention(llama(head_dim=8), "random")
    with refuses(ValueError, "layers holds 2", "0 to 1"):
        replace_attention(gpt2(), "random", [0, 2])
    with refuses(TypeError, "Linear has no attention"):
        model = torch.nn.Linear(2, 2)
        model.config = GPT2Config()
        replace_attention(model, "random")
    with refuses(TypeError, "score must be a name"):
        replace_attention(gpt2(), SCORES["dense"](12, 3, 16))
    model = gpt2()
    with refuses(ValueError, "unknown score"):
        replace_attention(model, "sparse")
    assert not any(isinstance(module, huggingface._Replaced) for module in model.modules())
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril() & ~torch.eye(5, dtype=torch.bool).roll(1, 1).T
    with refuses(ValueError, "hides more than padding"):
        replace_attention(gpt2("sdpa"), "random")(texts()[0], attention_mask=mask)


# --- the card, and the start ---


def test_a_card_says_what_s_is_and_what_it_cannot_do():
    whose = {"licence": "mit", "library": "a repository"}
    same, compares = "same for every text", "No layer compares tokens"
    card = model_card(SynthesizerConfig(score="random"), data="Shakespeare, public domain.", loss=1.9876, **whose)
    for piece in ("`random`: a learned table", compares, same, "at most 128", "Shakespeare, public domain.", "1.988"):
        assert piece in card
    config = SynthesizerConfig(score=["dense", "random + dot_product"])
    mixed = model_card(config, data="x", loss=2, versions={"a": "1"}, **whose)
    assert "compares every pair" in mixed and compares not in mixed and same not in mixed and "a 1" in mixed
    dense = model_card(SynthesizerConfig(score="dense"), data="x", loss=2, **whose)
    assert compares in dense and same not in dense
    for name in SCORES:
        assert f"`{name}`" in model_card(SynthesizerConfig(score=name), data="x", loss=2.0, **whose)
    read = ModelCard(card).data  # by the hub's own reader
    assert [read.license, read.pipeline_tag, read.library_name] == ["mit", "text-generation", "transformers"]
    assert "Install synth_lib from a repository" in card


def test_a_start_has_the_map_that_it_was_made_from():
    model = library("dot_product")
    inputs = torch.cat([text.repeat(1, 16)[:, :MAX_LENGTH] for text in texts()])
    maps = mean_maps(model, inputs)
    each = torch.stack([model.attention_maps(text[None])[0][0] for text in inputs])
    torch.testing.assert_close(maps[0], each.mean(dim=0))
    heir = library("random")
    with torch.no_grad():
        for block, weights in zip(heir.blocks, maps, strict=True):
            block.attention.score.R.copy_(scores_of(weights))
    for (mine, *_), theirs in zip(heir.attention_maps(inputs), maps, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)
    with refuses(ValueError, "sum to 1"):
        scores_of(decaying_scores(4, 0.5)[None])
