"""The race of chapter 10: patterns that choose the keys, on a task that needs far look-ups.

    python -m synth_lib.lab suite neighbours --out data/results/neighbours.jsonl

Its runs are in `suites`. Read top-down: the patterns of a model, what can reach what, the task, its model.
"""

import torch
from torch import nn
from torch.nn import functional as F

from synth_lib.attention import Attention
from synth_lib.masks import causal
from synth_lib.models import Block
from synth_lib.sparse.hashed import Hashed
from synth_lib.sparse.patterns import Fixed, Strided, Window
from synth_lib.sparse.routed import Routed

PATTERNS = {"window": Window, "strided": Strided, "fixed": Fixed, "hashed": Hashed, "routed": Routed}


def set_patterns(model, kind, **options):
    """Give each attention layer of the model a pattern of its own: Window(**options), ...

    A pattern of content gets the features and heads of the dot product, or of the tokens where S has no queries.

    Raises ValueError for an unknown kind.
    """
    if kind not in PATTERNS:
        raise ValueError(f"the kind of a pattern must be one of {', '.join(PATTERNS)}, not {kind!r}")
    for layer in attention_layers(model):
        if kind in ("hashed", "routed"):
            options = options | {"features": layer.score.d_model // layer.head, "head": layer.head}
        layer.pattern = PATTERNS[kind](**options)


def attention_layers(model):
    return [module for module in model.modules() if isinstance(module, Attention)]


# --- What can reach what ---


@torch.no_grad()
def masks_of(model, *inputs):
    """What a causal model without padding may attend to in each layer: a list of bool "batch|1 head|1 query key".

    inputs: as for the model, the first of them "batch length".
    """
    found, layers = [], attention_layers(model)
    patterns = [layer.pattern for layer in layers if layer.pattern is not None]
    hooks = [pattern.register_forward_hook(lambda module, given, mask: found.append(mask)) for pattern in patterns]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found or [causal(inputs[0].shape[1], inputs[0].device)] * len(layers)


def reached(masks):
    """From where something can get to a query through all these layers: bool "batch|1 query key".

    masks: bool "batch|1 head|1 query key", one for each layer, the first layer first. Each head is a way, and a token
    also stays where it is, as the sum around a layer lets it.
    """
    total = None
    for mask in masks:
        step = mask.any(dim=1) | torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
        total = step if total is None else (step.float() @ total.float()) > 0
    return total


def keys_holding(weights, share=0.9):
    """How few keys hold at least this share of each row: whole numbers, "batch head query".

    weights: "batch head query key", rows that sum to 1.
    """
    largest_first = weights.double().sort(dim=-1, descending=True).values.cumsum(dim=-1)
    return (largest_first < share - 1e-6).sum(dim=-1) + 1  # 0.9 in float32 is a little less


def rows_in_keys(maps):
    """For each layer and head of causal maps the quartiles of `keys_holding` 0.9 in the last quarter of the rows.

    -> nested lists "layer head 3".
    """
    quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    late = [keys_holding(weights)[:, :, weights.shape[2] * 3 // 4 :].double() for weights in maps]
    return [layer.transpose(0, 1).flatten(1).quantile(quartiles, dim=1).T.tolist() for layer in late]


# --- The task ---


def far_look_up(count, generator, *, length, vocab, far):
    """Chapter 08's task "pair", causal and far: output the value where the key is my pointer.

    Returns:
        (value, pointer, key): whole numbers, each "batch length", as in `probes.sentences`.
        targets: "batch length", -1 where nothing is asked: at the first `far` positions.
        place: where the answer stands, "batch length": each place at least `far` before has the same chance.
    """
    value = torch.randint(vocab, (count, length), generator=generator)
    key = torch.rand(count, length, generator=generator).argsort(dim=1)
    room = (torch.arange(length) - far + 1).clamp(min=1)
    place = (torch.rand(count, length, generator=generator) * room).long()
    targets = value.gather(1, place)
    targets[:, :far] = -1
    return (value, key.gather(1, place), key), targets, place


class LookUpTask:
    """See `far_look_up`. far: a quarter of the length. sentences: how many are measured of valid and of test."""

    unit, record_maps = "nats per answer", None

    def __init__(self, device, length, vocab=10, sentences=32):
        self.device, self.vocab, self.length = device, vocab, length
        self.options = {"length": length, "vocab": vocab, "far": length // 4}
        self.valid, _ = self._fixed(sentences, 2**31)  # no training has such a seed
        self.test, self.place = self._fixed(sentences, 2**31 + 1)

    def _fixed(self, count, seed):
        parts, targets, place = far_look_up(count, torch.Generator().manual_seed(seed), **self.options)
        split = (tensor.to(self.device).split(16) for tensor in (*parts, targets))
        return list(zip(*split, strict=True)), place.to(self.device)

    def build(self, **sizes):
        return LookUpModel(self.vocab, **sizes)

    def batches(self, size):
        def get_batch(generator, step):
            parts, targets, _ = far_look_up(size, generator, **self.options)
            return [*parts, targets]

        return get_batch

    @staticmethod
    def loss(model, *tensors):
        *parts, targets = tensors
        return F.cross_entropy(model(*parts).flatten(0, 1), targets.flatten(), ignore_index=-1)

    @staticmethod
    def count(*tensors):
        return (tensors[-1] >= 0).sum()

    def tokens(self, *tensors):
        return tensors[-1].numel()

    def measure(self, model):
        return {"accuracy": self.accuracy(model, self.test), "valid_accuracy": self.accuracy(model, self.valid)}

    def accuracy(self, model, batches):
        right = [(model(*parts).argmax(dim=-1) == targets)[targets >= 0] for *parts, targets in batches]
        return round(torch.cat(right).float().mean().item(), 4)

    def baseline(self, name):
        """"guess": each value with the same chance. "counting": as often as it stands where the answer can stand."""
        (valid_loss, valid_accuracy), (loss, accuracy) = (self._count(name, part) for part in (self.valid, self.test))
        losses = {"loss": valid_loss, "test_loss": loss}
        return losses | {"accuracy": accuracy, "valid_accuracy": valid_accuracy}

    def _count(self, name, batches):
        values, targets = (torch.cat([batch[part] for batch in batches]) for part in (0, -1))
        far = self.options["far"]
        chance = F.one_hot(values, self.vocab).cumsum(dim=1)[:, : self.length - far].float()
        chance = torch.ones_like(chance) if name == "guess" else chance
        chance = chance / chance.sum(dim=-1, keepdim=True)
        likeliest = chance == chance.max(dim=-1, keepdim=True).values  # of several, one is taken by lot
        asked = targets[:, far:, None]
        loss = -chance.gather(2, asked).log().mean().item()
        right = (likeliest / likeliest.sum(dim=-1, keepdim=True)).gather(2, asked).mean().item()
        return round(loss, 5), round(right, 4)

    def maps(self, model):
        *parts, _ = self.test[0]
        return model.attention_maps(*(part[:8] for part in parts))

    def reach(self, model):
        """What the masks alone allow, in test sentences: the share of the answers that a query can attend to in one
        of the layers, "direct", and of those that it reaches through all layers, "through"."""
        *parts, targets = self.test[0]
        masks = masks_of(model, *parts)
        place = self.place[: len(targets), :, None]

        def share(reaches):
            reaches = reaches.expand(len(targets), -1, -1).gather(2, place)[..., 0]
            return round(reaches[targets >= 0].float().mean().item(), 4)

        direct = torch.stack([mask.any(dim=1).expand(len(targets), -1, -1) for mask in masks]).any(dim=0)
        return {"direct": share(direct), "through": share(reached(masks))}


class LookUpModel(nn.Module):
    """Value, key and pointer side by side in each token, causal blocks, a readout.

    Keys and pointers share one embedding. So S has to learn once that equal numbers fit, and not for each number: a
    few hundred steps are enough.

    Args:
        vocab: how many values there are.
        d_model: a multiple of 8: a quarter for the value, the rest for key and pointer.
        head, layer, max_length, score: as in `models.LanguageModel`.
    """

    def __init__(self, vocab, d_model, head, layer, max_length, score):
        super().__init__()
        self.value = nn.Embedding(vocab, d_model // 4)
        self.number = nn.Embedding(max_length, 3 * d_model // 8)
        self.position = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.position.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(d_model, head, max_length, score, causal=True) for _ in range(layer))
        self.norm = nn.LayerNorm(d_model)
        self.readout = nn.Linear(d_model, vocab)

    def forward(self, value, pointer, key):
        """Whole numbers, each "batch length" -> logits "batch length vocab"."""
        x, _ = self._run(value, pointer, key, need_weights=False)
        return self.readout(self.norm(x))

    def attention_maps(self, value, pointer, key):
        """The weights of every layer, a list of "batch head query key"."""
        return self._run(value, pointer, key, need_weights=True)[1]

    def _run(self, value, pointer, key, need_weights):
        x = torch.cat([self.value(value), self.number(key), self.number(pointer)], dim=-1)
        x = x + self.position(torch.arange(x.shape[1], device=x.device))
        maps = []
        for block in self.blocks:
            x, weights = block(x, need_weights=need_weights)
            maps.append(weights)
        return x, maps
