"""Take any S to Hugging Face: models that are saved, loaded, trained and generate as theirs (`pip install -e ".[hf]"`).

    model = SynthesizerForCausalLM(SynthesizerConfig(vocab_size=84, score="random"))
    model.save_pretrained("folder")
    AutoModelForCausalLM.from_pretrained("folder").generate(input_ids, attention_mask=attention_mask)

    replace_attention(gpt2, "random", layers=[0, 1])        # our layer in the place of theirs

There is no bare model for AutoModel: `output_hidden_states` gives its states; the last of them makes the logits.
Nothing else in synth_lib imports this file or transformers. Where the versions of transformers differ, the name stands
in `CACHE` or in `_cache_in`.
"""

import json
from dataclasses import dataclass
from datetime import date
from itertools import chain
from math import sqrt
from pathlib import Path

import torch
from torch import nn

from synth_lib.attention import Attention, Cache
from synth_lib.lab.runner import Record
from synth_lib.lab.starts import decaying_scores
from synth_lib.lab.train import Settings, evaluating, mean_loss, next_token_loss, provenance, train
from synth_lib.models import Classifier, LanguageModel
from synth_lib.scores import SCORES
from synth_lib.shapes import check_number
from synth_lib.text.baselines import ngram_loss
from synth_lib.text.corpora import DATA, evaluation_windows, random_windows, shakespeare

try:
    import transformers
    from safetensors.torch import load_file
    from transformers import (
        DataCollatorForLanguageModeling,
        DynamicCache,
        EncoderDecoderCache,
        GenerationMixin,
        PretrainedConfig,
        PreTrainedModel,
    )
    from transformers.modeling_outputs import CausalLMOutputWithPast, SequenceClassifierOutput
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as error:
    raise ImportError(f'synth_lib.lab.huggingface needs transformers: pip install -e ".[hf]" ({error})') from error

# What a model's output calls its cache: "past_key_values", and "cache" from 5.24 on.
CACHE = next(name for name in ("cache", "past_key_values") if name in CausalLMOutputWithPast.__dataclass_fields__)


# --- our layer among columns ---


@dataclass
class _Slot:
    """Where a layer stands in a model of transformers.

    Attributes:
        real: bool "batch column", True = a token, False = padding; None: all are tokens. The last columns are the new
            ones.
        cache: a DynamicCache, or None.
        layer: the number of the layer in it.
    """

    real: torch.Tensor | None
    cache: object | None
    layer: int

    @property
    def length(self):
        return 0 if self.cache is None else self.cache.get_seq_length(self.layer)

    def read(self, d_head):
        """What the cache holds for this layer, as `attention.Cache.entries` does: "batch head column d_head"."""
        if self.length == 0:
            return []
        held = self.cache.layers[self.layer]
        return [held.keys, *held.values.split(d_head, dim=-1)] if held.values.shape[-1] else [held.keys]

    def write(self, entries):
        """Append the entries of the new columns."""
        # They count the tokens of a cache by its first tensor. So the values lie there, and the second has what S
        # compares: for a synthesizer no number at all.
        values, *keys = entries
        self.cache.update(values, torch.cat(keys, dim=-1) if keys else values[..., :0], self.layer)


class HostedAttention(Attention):
    """`Attention` in a model of transformers: padding stands anywhere, and a position counts the tokens before it.

    Given a `_Slot` as its cache, each sample is computed as if its padding were not there, so that R and Dense mean
    the same positions wherever the text stands. The result at padding is 0. Otherwise it is an `Attention`.
    """

    def forward(self, x, mask=None, *, cache=None, need_weights=True):
        """x: "batch new d_model" -> y of the same shape, weights "batch head new column" or None."""
        if not isinstance(cache, _Slot):
            return super().forward(x, mask, cache=cache, need_weights=need_weights)
        slot, past = cache, cache.read(self.score.d_head)
        keep = slot.cache is not None
        if slot.real is None:
            inner = _cache_of(past) if keep else None
            y, weights = super().forward(x, cache=inner, need_weights=need_weights)
            entries = [entry[:, :, -x.shape[1] :] for entry in inner.entries] if keep else []
        else:
            # Samples with the same number of tokens before the new ones go together: their rows of S are the same.
            before = slot.real[:, : -x.shape[1]].sum(dim=1)
            parts, order = [], []
            for start in before.unique().tolist():
                rows = (before == start).nonzero()[:, 0]
                held = [entry[rows] for entry in past]
                parts.append(self._without_padding(x[rows], slot.real[rows], held, start, keep, need_weights))
                order.append(rows)
            back = torch.cat(order).argsort()
            together = zip(*parts, strict=True)
            y, weights, *entries = (None if part[0] is None else torch.cat(part)[back] for part in together)
        if keep:
            slot.write(entries)
        return y, weights

    def _without_padding(self, x, real, past, start, keep, need_weights):
        """y, weights and the new entries of samples that all have `start` tokens in the cache."""
        old, new = real[:, : -x.shape[1]], real[:, -x.shape[1] :]
        count = new.sum(dim=1)
        width = max(1, int(count.max()))
        first = _tokens_first(new)[:, :width]
        inner = _cache_of([_pick(entry, _tokens_first(old)[:, :start], 2) for entry in past]) if keep else None
        # Behind the tokens of a sample no token looks, if the layer is causal.
        mask = None if self.causal else torch.arange(width, device=x.device) < count[:, None]
        y, weights = super().forward(_pick(x, first, 1), mask, cache=inner, need_weights=need_weights)
        place = (new.cumsum(dim=1) - 1).clamp(min=0)  # of each new column among the tokens
        y = _pick(y, place, 1).where(new[:, :, None], 0)
        entries = [_pick(entry[:, :, start:], place, 2) for entry in inner.entries] if keep else []
        entries = [entry.where(new[:, None, :, None], 0) for entry in entries]
        if weights is not None:
            weights = _pick(_pick(weights, place, 2), (real.cumsum(dim=1) - 1).clamp(min=0), 3)
            weights = weights.where((new[:, :, None] & real[:, None, :])[:, None], 0)
        return y, weights, *entries


def _cache_of(entries):
    cache = Cache()
    cache.entries, cache.length = entries, entries[0].shape[2] if entries else 0
    return cache


def _tokens_first(real):
    """For each row the columns of its tokens in their order, then those of its padding: "batch column"."""
    return (~real).int().argsort(dim=1, stable=True)


def _pick(tensor, index, dim):
    """The entries `index` "batch place" along one axis of `tensor`, whose first axis is batch."""
    shape = [1] * tensor.ndim
    shape[0], shape[dim] = index.shape
    size = list(tensor.shape)
    size[dim] = index.shape[1]
    return tensor.gather(dim, index.view(shape).expand(size))


# --- the models ---

# What somebody may write, and what it is called here.
OTHER_NAMES = {
    "d_model": "hidden_size", "head": "num_attention_heads", "heads": "num_attention_heads",
    "n_heads": "num_attention_heads", "num_heads": "num_attention_heads", "layer": "num_hidden_layers",
    "layers": "num_hidden_layers", "n_layers": "num_hidden_layers", "num_layers": "num_hidden_layers",
    "vocab": "vocab_size", "n_vocab": "vocab_size", "n_ctx": "max_position_embeddings", "scores": "score",
} | {option: f'score_options={{"{option}": ...}}' for option in ("rank", "a", "b", "initial_scale")}  # fmt: skip


class SynthesizerConfig(PretrainedConfig):
    """The sizes of a model and its S, saved as JSON. The names are those of transformers; ours are beside them.

    Args:
        vocab_size, hidden_size, num_attention_heads, num_hidden_layers, max_position_embeddings: vocab, d_model, head,
            layer, max_length of `LanguageModel`. n_embd, n_head, n_layer and n_positions of GPT-2 mean the same.
        score: S by name, or a list with a name for each layer. A ready module cannot be written as JSON.
        score_options: its options, such as {"rank": 4}.
        dropout, bias: as for `LanguageModel`.
        **kwargs: those of every config: pad_token_id, eos_token_id, num_labels, ...

    Raises:
        TypeError: score is neither a name nor a list of names; a size or an option of S has another name here.
        ValueError: a score is unknown; tie_word_embeddings is False: the embedding is the output matrix, too.
    """

    model_type = "synthesizer"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    attribute_map = {
        "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
        "n_positions": "max_position_embeddings",
    }  # fmt: skip

    def __init__(
        self, vocab_size=256, hidden_size=128, num_attention_heads=4, num_hidden_layers=4, max_position_embeddings=128,
        score="random", score_options=None, dropout=0.0, bias=True, use_cache=True, **kwargs,
    ):  # fmt: skip
        names = score if isinstance(score, (list, tuple)) else [score]
        if not all(isinstance(name, str) for name in names):
            kinds = ", ".join(sorted({type(name).__name__ for name in names if not isinstance(name, str)}))
            raise TypeError(f"score must be a name or a list of names, which JSON can hold, not {kinds}")
        for part in chain(*(name.split("+") for name in names)):
            if part.strip() not in SCORES:
                raise ValueError(f'unknown score "{part.strip()}"; known are {", ".join(SCORES)} and sums of them')
        for name in OTHER_NAMES.keys() & kwargs.keys():  # a config takes any name, and such a size would do nothing
            raise TypeError(f"{name} is no name of a SynthesizerConfig: write {OTHER_NAMES[name]}")
        if not kwargs.setdefault("tie_word_embeddings", True):
            raise ValueError("tie_word_embeddings is False, but the embedding is the output matrix here: leave it True")
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_attention_heads, self.num_hidden_layers = num_attention_heads, num_hidden_layers
        self.max_position_embeddings = max_position_embeddings
        self.score = score if isinstance(score, str) else list(score)
        self.score_options = dict(score_options or {})
        self.dropout, self.bias, self.use_cache = dropout, bias, use_cache
        super().__init__(**kwargs)

    def arguments(self):
        """What the models of synth_lib are made of: d_model, head, layer, max_length, score, dropout, bias, options."""
        sizes = {"d_model": self.hidden_size, "head": self.num_attention_heads, "layer": self.num_hidden_layers}
        sizes |= {"max_length": self.max_position_embeddings, "dropout": self.dropout, "bias": self.bias}
        return sizes | {"score": self.score} | self.score_options


class _SynthesizerModel(PreTrainedModel):
    """What both models share. `self.model` is the model of synth_lib: whatever takes one takes that."""

    config_class = SynthesizerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]

    def __init__(self, config):
        super().__init__(config)
        self.model = self._build(config)
        for block in self.model.blocks:
            block.attention.__class__ = HostedAttention  # the same layer, parameters and their names
        self.gradient_checkpointing = False
        # from_pretrained builds without numbers, on the device "meta": only then there is something to draw later.
        self._is_drawn = self.model.token.weight.device.type != "meta"
        self.post_init()

    def _init_weights(self, module):
        """Draw what a checkpoint lacks, such as the last layer of a new classifier, as synth_lib draws it; S never."""
        if self._is_drawn:
            return
        own = dict(chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)))
        missing = {name: tensor for name, tensor in own.items() if not getattr(tensor, "_is_hf_initialized", False)}
        if missing:
            path = next(name for name, part in self.model.named_modules() if part is module)
            if ".score" in path:
                lacks = f"the checkpoint has no {', '.join(missing)} of model.{path} for score {self.config.score!r}"
                raise ValueError(f"{lacks} of this size: load it with the score and sizes that it was saved with")
            fresh = self._build(self.config).get_submodule(path)
            with torch.no_grad():
                for name, tensor in missing.items():
                    tensor.copy_(getattr(fresh, name))

    def get_input_embeddings(self):
        return self.model.token

    def set_input_embeddings(self, embedding):
        self.model.token, self.model.vocab = embedding, embedding.num_embeddings

    def _run(self, input_ids, real, cache, need_weights=False):
        """input_ids "batch new" through all blocks -> x before the last norm, the states before it, the maps."""
        # A block that runs twice would add its tokens to a cache twice.
        model, checkpointed = self.model, self.gradient_checkpointing and self.training and cache is None
        positions = torch.arange(input_ids.shape[1], device=input_ids.device) + (cache.get_seq_length() if cache else 0)
        if real is not None:
            positions = self._positions(real)[:, -input_ids.shape[1] :]
        longest = int(positions.max()) + 1
        if longest > model.max_length:
            limit = f"max_position_embeddings = {model.max_length}"
            raise ValueError(f"axis length of input_ids is {longest} with what the cache holds, but at most {limit}")
        x = model.dropout(model.token(input_ids) + model.position(positions))
        states, maps = [x], []
        for number, block in enumerate(model.blocks):
            slot = _Slot(real, cache, number)
            if checkpointed:
                x, weights = self._gradient_checkpointing_func(_Called(block, slot, need_weights), x)
            else:
                x, weights = block(x, cache=slot, need_weights=need_weights)
            states.append(x)
            maps.append(weights)
        return x, states, maps

    @staticmethod
    def _positions(real):
        return (real.cumsum(dim=1) - 1).clamp(min=0)

    def _real(self, input_ids, attention_mask, past, unknown):
        """The columns that hold tokens, bool "batch column", or None if all do; what does not fit is refused."""
        # The second is what `generate` of transformers 4 hands over; it says what attention_mask says.
        known = {"num_items_in_batch", "cache_position"}
        unknown = {name for name, value in unknown.items() if value is not None} - known
        if unknown:
            raise TypeError(f"{type(self).__name__} knows no {', '.join(sorted(unknown))}: leave it out")
        if input_ids is None:
            raise ValueError("input_ids are missing: a synthesizer reads tokens")
        if attention_mask is None:
            return None
        batch, columns = input_ids.shape[0], past + input_ids.shape[1]
        if tuple(attention_mask.shape) != (batch, columns):
            shape = tuple(attention_mask.shape)
            wanted = f"(batch, columns) = {(batch, columns)}, those in the cache included"
            raise ValueError(f"attention_mask is {shape}, but must be {wanted}")
        real = attention_mask != 0
        if not ((attention_mask == 1) == real).all():
            raise ValueError("attention_mask must hold 1 for a token and 0 for padding; it holds other numbers, too")
        return None if real.all() else real


class _Called:
    """A block as a function of x alone, for torch's checkpoint, which calls it a second time."""

    def __init__(self, block, slot, need_weights):
        self.block, self.slot, self.need_weights = block, slot, need_weights

    def __call__(self, x):
        return self.block(x, cache=self.slot, need_weights=self.need_weights)


class SynthesizerForCausalLM(_SynthesizerModel, GenerationMixin):
    """A `LanguageModel` as a PreTrainedModel: `from_pretrained`, `generate`, `Trainer` take it.

    The cache is a DynamicCache that holds the values alone, and keys only if S compares tokens. The values lie where
    transformers keeps keys, in layers[0].keys: that is where it counts the tokens. In a padded batch each step of
    `generate` runs a layer once for each different number of tokens.
    Beyond max_position_embeddings `generate` reads the last tokens anew in every step, as `LanguageModel.generate`
    does, and predicts from the last row of each table. Labels never train that row: none lies behind it.
    With gradient checkpointing a training step keeps no cache; given one, it is computed without checkpointing.

    An option given to `from_pretrained` takes the place of the saved one, as everywhere in transformers, and the
    numbers stay: "random" loaded as "fixed_random" computes the same, and its table no longer learns. An S whose
    numbers are not all there is refused. The numbers of a dot product do not tell how many heads it has: leave those.
    """

    def _build(self, config):
        return LanguageModel(config.vocab_size, **config.arguments())

    def get_output_embeddings(self):
        return self.model.token  # one matrix: tied, whatever happens to it

    def set_output_embeddings(self, embedding):
        self.set_input_embeddings(embedding)

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, cache=None, labels=None,
        use_cache=None, output_attentions=None, output_hidden_states=None, return_dict=None, logits_to_keep=0,
        **kwargs,
    ):  # fmt: skip
        """As every causal model of transformers.

        Args:
            input_ids: int64 "batch new", the tokens that come after those in the cache.
            attention_mask: 1 = token, 0 = padding, "batch column", those in the cache included; None: all are tokens,
                in the cache too. Padding may stand anywhere: a text gets the same logits wherever it stands. Those at
                padding mean nothing.
            position_ids: not needed; if given, they must count the tokens of attention_mask from 0.
            past_key_values, cache: a DynamicCache that this model filled, under either name.
            labels: int64 "batch new". They are shifted inside: the logits of column t are judged by labels[:, t + 1].
                -100 is not counted, nor is what is predicted from padding, so that a text has the loss that it has
                alone. So the logits of the last column are judged by nothing, and a text of max_position_embeddings
                tokens trains all rows of a table but the last.
            logits_to_keep: compute the logits of so many last columns alone; 0: of all.
            **kwargs: num_items_in_batch of `Trainer`, which the loss is divided by.

        Raises:
            TypeError, ValueError: a cache of another kind, a mask of other numbers or axes, too many tokens;
                num_items_in_batch of several batches that counts what is predicted from padding: see `CausalCollator`.
        """
        cache = _dynamic(cache if cache is not None else past_key_values)
        real = self._real(input_ids, attention_mask, cache.get_seq_length() if cache is not None else 0, kwargs)
        self._check_positions(position_ids, input_ids, real, cache)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and cache is None and not (self.gradient_checkpointing and self.training):
            cache = DynamicCache()
        x, states, maps = self._run(input_ids, real, cache, bool(output_attentions))
        x = self.model.norm(x)
        kept = x[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else x[:, logits_to_keep]
        logits = kept @ self.model.token.weight.T
        loss = None
        if labels is not None:
            labels, items = _counted(labels, real, kwargs.pop("num_items_in_batch", None))
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, num_items_in_batch=items)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=(*states[:-1], x) if output_hidden_states else None,
            attentions=tuple(maps) if output_attentions else None,
            **{CACHE: cache if use_cache else None},
        )
        return output if return_dict is not False else output.to_tuple()

    def _check_positions(self, position_ids, input_ids, real, cache):
        if position_ids is None:
            return
        new, past = input_ids.shape[1], cache.get_seq_length() if cache is not None else 0
        if real is None:
            own = torch.arange(past, past + new, device=input_ids.device).expand(position_ids.shape)
            fits = bool((own == position_ids).all())
        else:
            at_tokens = real[:, -new:]
            fits = bool((self._positions(real)[:, -new:] == position_ids)[at_tokens].all())
        if not fits:
            raise ValueError("position_ids differ from the count of tokens in attention_mask: leave them out")

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        """As in every model of transformers; a text longer than the model is read anew from its last tokens.

        Raises ValueError if a text ends with padding: the next token would be predicted from it.
        """
        limit, mask = self.config.max_position_embeddings, kwargs.get("attention_mask")
        if mask is not None and mask.ndim == 2 and (mask[:, -1] == 0).any():
            row = int((mask[:, -1] == 0).int().argmax())
            ends = f"row {row} of attention_mask ends with padding, but generate goes on behind the last column"
            raise ValueError(f'{ends}: pad on the left (padding_side="left" of the tokenizer)')
        longest = input_ids.shape[1] if mask is None else int(mask.sum(dim=1).max())
        if longest <= limit:
            return super().prepare_inputs_for_generation(input_ids, **kwargs)
        inputs = {"input_ids": input_ids[:, -limit:], "use_cache": False, "logits_to_keep": 1}
        return inputs if mask is None else inputs | {"attention_mask": mask[:, -limit:]}


def _counted(labels, real, items):
    """labels with -100 where the prediction is made from padding, and the number to divide their loss by, or None.

    `items` is what `Trainer` counts: the labels from column 1 on that are not -100, in all batches of one step.
    """
    if real is None:
        return labels, items
    known, labels = (labels[:, 1:] != -100).sum(), labels.clone()
    labels[:, 1:][~real[:, -labels.shape[1] : -1]] = -100
    own = (labels[:, 1:] != -100).sum()
    if items is None or own == known:
        return labels, items
    if int(items) != known:  # that of several batches, and the others are not here
        made = f"{known - own} labels of this batch are predicted from padding, which is left out"
        cure = "pad on the right, or make the batches with CausalCollator"
        raise ValueError(f"{made}, but num_items_in_batch = {int(items)} counts them: {cure}")
    return labels, own.clamp(min=1)


class CausalCollator(DataCollatorForLanguageModeling):
    """Batches of tokenized texts for `Trainer`, whose labels are exactly the predictions that count.

    As DataCollatorForLanguageModeling(tokenizer, mlm=False), with two differences. The first token of a text gets -100,
    wherever it stands: nothing predicts it, or padding alone. (Older versions of `Trainer` count it.) So the number
    that `Trainer` divides by is that of the predictions, in several batches of one step (gradient_accumulation_steps)
    and with label_smoothing_factor too. And padding is known by attention_mask, not by its token: the end of a text
    stays a label if it pads as well.

    Args:
        tokenizer: with a padding token; it must make attention_mask, else ValueError at the first batch.
        **options: those of DataCollatorForLanguageModeling, such as pad_to_multiple_of.
    """

    def __init__(self, tokenizer, **options):
        super().__init__(tokenizer, mlm=False, **options)

    def __call__(self, features, return_tensors=None):
        """features: a list of what the tokenizer returned -> input_ids, attention_mask, labels, "batch column"."""
        batch = super().__call__(features, return_tensors)
        if "attention_mask" not in batch:
            raise ValueError("the tokenizer makes no attention_mask: put it into its model_input_names")
        real = batch["attention_mask"] != 0
        labels = batch["input_ids"].masked_fill(~real, -100)
        labels[:, 0] = -100
        labels[:, 1:][~real[:, :-1]] = -100
        batch["labels"] = labels
        return batch


class SynthesizerForSequenceClassification(_SynthesizerModel):
    """A `Classifier` as a PreTrainedModel: a text gets num_labels logits. Padding may stand anywhere."""

    def _build(self, config):
        return Classifier(config.vocab_size, config.num_labels, **config.arguments())

    def forward(
        self, input_ids=None, attention_mask=None, labels=None, output_attentions=None, output_hidden_states=None,
        return_dict=None, **kwargs,
    ):  # fmt: skip
        """As every sequence classifier of transformers: labels int64 "batch", or floats, by config.problem_type.

        Raises:
            ValueError: a mask of other numbers or axes, too many tokens.
        """
        real = self._real(input_ids, attention_mask, 0, kwargs)
        x, states, maps = self._run(input_ids, real, None, bool(output_attentions))
        x = self.model.norm(x)
        if real is None:
            mean = x.mean(dim=1)
        elif not real.any(dim=1).all():
            row = int(real.any(dim=1).int().argmin())
            raise ValueError(f"attention_mask has no token in row {row}, but every text needs at least one")
        else:
            mean = (x * real[:, :, None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
        logits = self.model.label(mean)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        output = SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=(*states[:-1], x) if output_hidden_states else None,
            attentions=tuple(maps) if output_attentions else None,
        )
        return output if return_dict is not False else output.to_tuple()


def _dynamic(cache):
    """A cache that our layers can read, or a TypeError."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if cache is not None and not isinstance(cache, DynamicCache):
        raise TypeError(f"the cache is a {type(cache).__name__}, but must be a DynamicCache, the default of generate")
    return cache


transformers.AutoConfig.register("synthesizer", SynthesizerConfig)
transformers.AutoModelForCausalLM.register(SynthesizerConfig, SynthesizerForCausalLM)
transformers.AutoModelForSequenceClassification.register(SynthesizerConfig, SynthesizerForSequenceClassification)
# With label_smoothing_factor `Trainer` computes the loss, and shifts the labels for the classes in this list alone.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["synthesizer"] = SynthesizerForCausalLM.__name__


# --- our layer in a model of theirs ---


def replace_attention(model, score, layers=None, **score_options):
    """Put our layer in the place of self-attention in a GPT-2-, BERT- or Llama-shaped model, and return the model.

    Values and output keep their weights. So do queries and keys, if S has a dot product: with score "dot_product" the
    model computes what it did before. Everything else of the model stays, the cache and `generate` included.

    Its config keeps what was replaced, under replaced_attention. Saved, it has all its weights: `load_replaced` reads
    it back, and `from_pretrained`, which would build the original attention, stops with a size mismatch. It does not
    stop with ignore_mismatched_sizes=True: then it draws the original attention anew, and its report of what was loaded
    is all that says so, since missing weights alone stop nothing. Leave that out. A layer may be replaced again. Its
    own positions are those of its `position_ids`: give them where padding stands on the left and `generate` does not.

    Args:
        model: a model of transformers, changed in place.
        score: S by name, see `scores.make_score`.
        layers: which layers, a list of numbers from 0; None: all.
        **score_options: options of S.

    Raises:
        TypeError: no attention of a known shape is in the model.
        ValueError: a layer that the model does not have; a dot product where positions are rotated or keys are shared;
            heads that together are not as wide as the model.
    """
    if not isinstance(score, str):
        raise TypeError(f"score must be a name, since each layer gets its own S, not {type(score).__name__}")
    modules = [(name, module) for name, module in model.named_modules() if "cross" not in name.lower()]
    found = [(name, module, kind) for name, module in modules if (kind := _shape_of(module))]
    positions = [module for name, module in modules if name.split(".")[-1] in ("wpe", "position_embeddings")]
    if not found or getattr(model.config, "max_position_embeddings", None) is None:
        known = "GPT-2 (c_attn), BERT (query, key, value) or Llama (q_proj, k_proj, v_proj), with a longest text"
        raise TypeError(f"{type(model).__name__} has no attention shaped as in {known}")
    wanted = range(len(found)) if layers is None else list(layers)
    for layer in wanted:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < len(found):
            raise ValueError(f"layers holds {layer!r}, but this model has the layers 0 to {len(found) - 1}")
    made = []
    for layer in wanted:
        name, module, kind = found[layer]
        made.append((name, _made_of(module, kind, model.config, layer, score, score_options)))
    for name, module in made:  # all or none
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, module)
    known = getattr(model.config, "replaced_attention", {})
    model.config.replaced_attention = known | {str(layer): {"score": score} | score_options for layer in wanted}
    for embedding in positions:
        if _check_length not in embedding._forward_pre_hooks.values():
            embedding.register_forward_pre_hook(_check_length)
    return model


def load_replaced(kind, folder):
    """A model that `replace_attention` changed and `save_pretrained` wrote, with S as it was, in eval mode.

    Args:
        kind: the class of the model, such as GPT2LMHeadModel.
        folder: where its config.json is, and model.safetensors or its shards with their index.

    Raises:
        TypeError: kind is an Auto class.
        ValueError: nothing was replaced in the model of this folder; it holds two sets of weights, or none.
        RuntimeError: the weights are not those of such a model.
    """
    if getattr(kind, "config_class", None) is None:
        raise TypeError(f"kind must be the class of the model, such as GPT2LMHeadModel, not {kind.__name__}")
    config = kind.config_class.from_pretrained(folder)
    replaced = getattr(config, "replaced_attention", None)
    if not replaced:
        known = f"load it with {kind.__name__}.from_pretrained"
        raise ValueError(f"no attention was replaced in the model of {folder}: {known}")
    model = kind(config).to(getattr(config, "dtype", None) or torch.get_default_dtype())
    for layer, options in replaced.items():
        replace_attention(model, layers=[int(layer)], **options)
    saved, own = _saved_weights(Path(folder)), model.state_dict()
    # One tensor under two names, such as a tied output, is saved under one of them.
    held = {own[name].data_ptr(): tensor for name, tensor in saved.items() if name in own}
    tied = {name: held[tensor.data_ptr()] for name, tensor in own.items() if tensor.data_ptr() in held}
    model.load_state_dict(tied | saved)
    return model.eval()


def _saved_weights(folder):
    """The tensors by name that `save_pretrained` wrote, in one file or in shards."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.exists() == index.exists():  # save_pretrained leaves the one where it writes the other
        has = "both, of two savings: save into an empty folder" if whole.exists() else "neither"
        raise ValueError(f"{folder} must hold {whole.name} or {index.name}, but holds {has}")
    if whole.exists():
        return load_file(whole)
    shards = dict.fromkeys(json.loads(index.read_text(encoding="utf8"))["weight_map"].values())
    return {name: tensor for shard in shards for name, tensor in load_file(folder / shard).items()}


def _check_length(embedding, arguments):
    """Before an embedding of positions is read."""
    longest = int(arguments[0].max()) + 1
    if longest > embedding.num_embeddings:
        raise ValueError(f"the text has {longest} positions, but the model has at most {embedding.num_embeddings}")


def _shape_of(module):
    if isinstance(module, _Replaced):
        return module.kind
    for kind, parts in (
        ("gpt2", ("c_attn", "c_proj")), ("bert", ("query", "key", "value")),
        ("llama", ("q_proj", "k_proj", "v_proj", "o_proj")),
    ):  # fmt: skip
        if all(isinstance(getattr(module, part, None), nn.Module) for part in parts):
            return None if isinstance(module, Attention) else kind
    return None


def _made_of(old, kind, config, layer, score, score_options):
    """The layer that takes the place of `old`."""
    d_model, head, max_length = config.hidden_size, config.num_attention_heads, config.max_position_embeddings
    dropout, after, scale = 0.0, nn.Identity(), 1.0
    if isinstance(old, _Replaced):  # its values and output, and queries and keys if it has some
        compares = [part for part in old.attention.score.modules() if hasattr(part, "query") and hasattr(part, "key")]
        linears = [compares[0].query, compares[0].key] if compares else [None, None]
        linears += [old.attention.value, old.attention.output]
        weights, biases = ([getattr(linear, name, None) for linear in linears] for name in ("weight", "bias"))
        dropout, after = old.attention.dropout, old.after
    elif kind == "gpt2":  # their Conv1D holds the transpose of a linear layer's weight
        weights = [weight.T for weight in old.c_attn.weight.split(d_model, dim=1)]
        biases = list(old.c_attn.bias.split(d_model))
        weights.append(old.c_proj.weight.T)
        biases.append(old.c_proj.bias)
        dropout, after = config.attn_pdrop, old.resid_dropout
        scale = 1.0 if config.scale_attn_weights else sqrt(d_model // head)
        scale /= layer + 1 if config.scale_attn_by_inverse_layer_idx else 1
    else:
        parts = ("query", "key", "value") if kind == "bert" else ("q_proj", "k_proj", "v_proj", "o_proj")
        weights = [getattr(old, part).weight for part in parts]
        biases = [getattr(old, part).bias for part in parts]
        dropout = config.attention_probs_dropout_prob if kind == "bert" else config.attention_dropout
    if kind == "llama":
        wide = weights[3].shape[1]
        if wide != d_model:
            raise ValueError(f"the heads of layer {layer} are {wide} wide together, but must be d_model = {d_model}")
        group = d_model // weights[2].shape[0]  # 1 if the layer was replaced before
        if "dot_product" in score:
            rotated = "rotates its queries and keys by their position, which our dot product does not"
            shared = f", and {group} heads share their keys" if group > 1 else ""
            raise ValueError(f"layer {layer} {rotated}{shared}: choose a score without dot_product")
        if group > 1:  # heads that share a value head each get a copy of it
            weights[2] = _repeat_heads(weights[2], group, d_model // head)
            biases[2] = None if biases[2] is None else _repeat_heads(biases[2], group, d_model // head)
    causal = bool(getattr(config, "is_decoder", False)) if kind == "bert" else True
    bias = biases[2] is not None
    attention = HostedAttention(
        d_model, head, max_length, score, causal=causal, bias=bias, dropout=dropout, **score_options
    ).to(weights[2])
    if kind == "bert":
        attention.output = nn.Identity()  # theirs comes behind, with the sum and the norm
    copies = {"value": 2, "output": 3} if kind != "bert" else {"value": 2}
    with torch.no_grad():
        for name, number in copies.items():
            _copy(getattr(attention, name), weights[number], biases[number])
        for part in attention.score.modules():
            if hasattr(part, "query") and hasattr(part, "key") and weights[0] is not None:
                _copy(part.query, weights[0] * scale, None if biases[0] is None else biases[0] * scale)
                _copy(part.key, weights[1], biases[1])
    # A subclass of what was there: their recorder of attention maps knows a layer by its class.
    original = type(old).__bases__[1] if isinstance(old, _Replaced) else type(old)
    return _replaced(original)(attention, after, config, layer, kind).train(old.training)


def _replaced(original):
    return type(f"Replaced{original.__name__}", (_Replaced, original), {})


def _empty(original):
    """For pickle, which finds no class that was made here."""
    kind = _replaced(original)
    return kind.__new__(kind)


def _repeat_heads(tensor, group, d_head):
    return tensor.unflatten(0, (-1, d_head)).repeat_interleave(group, dim=0).flatten(0, 1)


def _copy(linear, weight, bias):
    linear.weight.copy_(weight)
    if bias is not None:
        linear.bias.copy_(bias)


class _Replaced(nn.Module):
    """Our layer, called as theirs."""

    def __init__(self, attention, after, config, layer, kind):
        nn.Module.__init__(self)
        self.attention, self.after, self.config, self.layer_idx = attention, after, config, layer
        self.is_causal, self.kind = attention.causal, kind
        # Under the name of a weight that is gone, of a size that fits none: from_pretrained, which would draw the
        # original attention anew and go on, stops there.
        self.add_module({"gpt2": "c_attn", "bert": "query", "llama": "q_proj"}[kind], gone := nn.Module())
        gone.register_buffer("weight", attention.value.weight.new_zeros(0))

    def __reduce__(self):
        return _empty, (type(self).__bases__[1],), self.__dict__

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        if kwargs.get("head_mask") is not None:
            raise ValueError("head_mask is given, but the replaced layer has none: leave it out")
        cache = _dynamic(_cache_in(kwargs)) if self.is_causal else None
        past = 0 if cache is None else cache.get_seq_length(self.layer_idx)
        real = _columns_of(attention_mask, hidden_states.shape[1], past, self.is_causal)
        # As theirs: the maps are there for attn_implementation="eager" alone.
        need_weights = self.config._attn_implementation == "eager"
        y, weights = self.attention(hidden_states, cache=_Slot(real, cache, self.layer_idx), need_weights=need_weights)
        return self.after(y), weights


def _cache_in(kwargs):
    """The cache among the arguments of an attention layer: "past_key_values", and "cache" from 5.24 on."""
    return kwargs.get("past_key_values") if kwargs.get("cache") is None else kwargs["cache"]


def _columns_of(mask, new, past, causal):
    """Which columns hold tokens, bool "batch column" or None for all, from the mask that a model hands its layers."""
    if mask is None:
        return None
    if mask.ndim == 2:
        real = mask != 0
    else:
        allowed = mask if mask.dtype == torch.bool else mask == 0  # additive: 0 stays, -inf or the like goes
        real = allowed[:, 0, -1]  # the last query may see every token
        if real.shape[1] != past + new:
            raise ValueError(f"the mask has {real.shape[1]} columns, but the cache and the input have {past} + {new}")
        wanted = real[:, None, None, :].expand(-1, 1, new, -1)
        if causal:
            wanted = wanted & torch.ones(new, past + new, dtype=torch.bool, device=mask.device).tril(past)
        differs = (allowed != wanted) & real[:, None, -new:, None]
        if differs.any():
            raise ValueError("the mask hides more than padding and later tokens, which the replaced layer cannot do")
    return None if real.all() else real


# --- what goes beside a model ---


def model_card(config, *, data, loss, licence, library, versions=None):
    """The README.md of a published model: what S is, what it cannot do, how it was trained.

    Args:
        config: a `SynthesizerConfig`.
        data: what it was trained and judged on, a sentence with source and licence.
        loss: the loss on texts that it was not trained on, in nats per token.
        licence: that of the weights, by the short name that the hub knows, such as "mit".
        library: where a user gets synth_lib from, such as the address of its repository.
        versions: {name: version}; default: those of torch and transformers here.
    """
    check_number("loss", loss)
    versions = versions or {"torch": torch.__version__, "transformers": transformers.__version__}
    names = [config.score] if isinstance(config.score, str) else list(dict.fromkeys(config.score))
    parts = list(dict.fromkeys(part.strip() for name in names for part in name.split("+")))
    lines = [
        "---", "library_name: transformers", "pipeline_tag: text-generation", f"license: {licence}",
        "tags: [synthesizer, arxiv:2005.00743]", "---", "",
        f"# A Synthesizer with {' and '.join(names)}", "",
        "Attention whose weights are synthesized, Y = softmax(S(X) + mask) G(X) (Tay et al., arXiv 2005.00743).", "",
        "## What S is", "", *(f"- `{part}`: {SAYS[part]}" for part in parts), "",
        "## What it cannot do", "", *(f"- {sentence}" for sentence in _limits(parts, config)), "",
        "## How it was made", "", f"- Data: {data}", f"- Loss on texts held out: {loss:.3f} nats per token.",
        "- Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".", "",
        "## How to load it", "",
        f"Install synth_lib from {library}, with its extra `hf`: the code is not in this folder, and",
        "`trust_remote_code` finds none. `import synth_lib.lab.huggingface`, then",
        "`AutoModelForCausalLM.from_pretrained(...)`.", "",
    ]  # fmt: skip
    return "\n".join(lines)


SAYS = {
    "dot_product": "compares every pair of tokens.",
    "dense": "makes a row of the map from the attending token alone.",
    "random": "a learned table for each head; it reads no token.",
    "fixed_random": "a table for each head that stays as it was drawn; it reads no token.",
    "factorized_dense": "makes a row from the attending token alone, as a product of two short ones.",
    "factorized_random": "a learned table of low rank for each head; it reads no token.",
}


def _limits(parts, config):
    sentences = [f"It reads at most {config.max_position_embeddings} tokens; each has its own learned position."]
    if "dot_product" not in parts:
        sentences.append("No layer compares tokens: where to look cannot depend on what another token says.")
    if all("random" in part for part in parts):
        sentences.append("Its maps are the same for every text.")
    return sentences


# --- a start from what was learned ---


def mean_maps(model, inputs):
    """The mean of the attention maps over many texts: for each layer of a LanguageModel "head query key".

    inputs: int64 "batch length", all of one length.
    """
    with torch.no_grad(), evaluating(model):
        return [weights.mean(dim=0) for weights in model.attention_maps(inputs)]


def scores_of(weights, least=1e-6):
    """Scores whose softmax is these weights, "head query key", a start of Random; a weight below `least` counts as it.

    Raises ValueError if the rows do not sum to 1: then they are no weights.
    """
    if (weights < 0).any() or not torch.allclose(weights.sum(dim=-1), weights.new_ones(()), atol=1e-4):
        raise ValueError("weights must be at least 0 and sum to 1 along the keys: give an attention map, not scores")
    return weights.clamp(min=least).log()


STARTS = {
    "sizes": {"d_model": 64, "head": 4, "layer": 2, "max_length": 64}, "batch": 16, "learning_rate": 3e-3,
    "steps": 1000, "donor_steps": 250, "evaluate_every": 50, "windows": 64, "seeds": [1, 2, 3],
}  # fmt: skip


def study_starts(seed, options=STARTS, log=print):
    """Where should R start? The runs of one seed, a list of dictionaries.

    - "donor": a dot product, trained for `donor_steps`.
    - "fresh": Random as it is drawn. "decay": R starts from `decaying_scores`. "mean map": R starts where the donor's
      maps are on average; the rest is drawn as in "fresh".
    - "continued": all of the donor, with Random at its mean maps in the place of S, trains on for what is left of the
      steps. Its curve begins at `donor_steps`.

    The numbers of all are the same but for that. Rates are those of the library, tuned for none of them. The rule, set
    before the runs: a start saves steps if, with every seed, it comes to the last validation loss of "fresh" in fewer
    steps, those of the donor included; it is better if its test loss is lower with every seed.
    """
    tokenizer, splits = shakespeare()
    sizes, length = options["sizes"], options["sizes"]["max_length"]
    windows = {split: evaluation_windows(splits[split], length, options["windows"]) for split in ("valid", "test")}

    def run(variant, model, steps, spent=0):
        settings = Settings(
            steps=steps, batch=options["batch"], learning_rate=options["learning_rate"], seed=seed + 1000 * (spent > 0),
            evaluate_every=options["evaluate_every"],
        )  # fmt: skip
        record = train(
            model, lambda generator, step: random_windows(splits["train"], length, settings.batch, generator),
            [windows["valid"]], settings, config={"variant": variant}, device="cpu", progress=False,
        )  # fmt: skip
        curve = [[point["step"] + spent, round(point["loss"], 4)] for point in record["curve"]]
        test = round(mean_loss(model, next_token_loss, [windows["test"]]), 4)
        log(f"seed {seed}, {variant}: {curve[-1][1]} on validation texts after {curve[-1][0]} steps")
        return {
            "task": "starts", "variant": variant, "seed": seed, "settings": record["settings"], "curve": curve,
            "test_loss": test, "training_seconds": record["training_seconds"],
        }  # fmt: skip

    def new(score):
        torch.manual_seed(seed)
        return LanguageModel(tokenizer.vocab, score=score, **sizes)

    def start(model, tables):
        with torch.no_grad():
            for block, table in zip(model.blocks, tables, strict=True):
                block.attention.score.R.copy_(table)
        return model

    donor, all_steps, spent = new("dot_product"), options["steps"], options["donor_steps"]
    runs = [run("donor", donor, spent)]
    learned = [scores_of(weights) for weights in mean_maps(donor, evaluation_windows(splits["train"], length, 256)[0])]
    decay = [decaying_scores(length, rate=0.5)] * sizes["layer"]
    runs += [run("fresh", new("random"), all_steps), run("decay", start(new("random"), decay), all_steps)]
    runs.append(run("mean map", start(new("random"), learned), all_steps))
    heir = new("random")
    kept = {name: tensor for name, tensor in donor.state_dict().items() if ".score." not in name}
    heir.load_state_dict(kept, strict=False)
    runs.append(run("continued", start(heir, learned), all_steps - spent, spent))
    return runs


def record_starts(path, options=STARTS):
    """Record `study_starts` of all seeds in a file of JSON Lines, and the loss of counting on the same test windows."""
    record = Record(path, {"study": "starts", "device": "cpu", "options": options})
    origin = {"date": date.today().isoformat(), **provenance(torch.device("cpu"))}
    tokenizer, splits = shakespeare()
    inputs, targets = evaluation_windows(splits["test"], options["sizes"]["max_length"], options["windows"])
    for order in range(1, 7):
        counted = {"task": "starts", "variant": f"{order}-gram"}
        if record.find(counted) is None:
            loss = ngram_loss(splits["train"], inputs, targets, order, tokenizer.vocab)
            record.append(counted | {"test_loss": round(loss, 4)} | origin)
    for seed in options["seeds"]:
        if record.find({"task": "starts", "seed": seed}) is None:
            for run in study_starts(seed, options):
                record.append(run | origin)


if __name__ == "__main__":
    record_starts(DATA / "results" / "starts.jsonl")
