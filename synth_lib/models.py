"""A decoder-only language model whose S is an argument. Read from the top: the model, its block, what they
share.

    model = LanguageModel(vocab=84, d_model=64, head=4, layer=2, max_length=32, score="random")
    logits = model(tokens)      # tokens: batch length  ->  logits: batch length vocab
"""

import torch
from torch import nn

from synth_lib.attention import Attention
from synth_lib.scores import Score, make_score
from synth_lib.shapes import check_number, check_whole_number


class LanguageModel(nn.Module):
    """Predicts each next token from those up to it: learned positions, pre-norm blocks, tied embeddings.

    Args:
        vocab, d_model, head, layer, max_length: the sizes, see `shapes.GLOSSARY`.
        score: S, one name for all layers ("dense", "random + dot_product"), or a list with one for each
            layer: names or ready `Score` modules.
        dropout: probability of dropping an attention weight, or a feature of what a block adds, while
            training.
        bias: biases in the linear layers and norms. Table 1 counts S without them.
        **score_options: options of S in every layer, such as `rank=4`.

    Raises:
        ValueError: a size does not fit, or `score` is a list of another length than `layer`.
        TypeError: `score` is neither a name nor a list. (One module for all layers would tie their weights.)
    """

    def __init__(
        self, vocab, d_model, head, layer, max_length, score="dot_product",
        *, dropout=0.0, bias=True, **score_options,
    ):  # fmt: skip
        super().__init__()
        sizes = {"vocab": vocab, "d_model": d_model, "layer": layer, "max_length": max_length}
        for name, value in sizes.items():
            check_whole_number(name, value)
        scores = [score] * layer if isinstance(score, str) else score
        if not isinstance(scores, (list, tuple)):
            kind = type(score).__name__
            raise TypeError(f"score must be a name, or a list with one for each layer, not {kind}")
        modules = [entry for entry in scores if isinstance(entry, Score)]
        if len(set(modules)) < len(modules):
            raise ValueError("score holds the same module twice, but each layer needs one of its own")
        if len(scores) != layer:
            raise ValueError(f"score has {len(scores)} entries, but must have one for each of {layer} layers")
        self.vocab, self.max_length = vocab, max_length
        self.token = nn.Embedding(vocab, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(d_model, head, max_length, score, dropout=dropout, bias=bias)
            for score in _drawn_aside(scores, d_model, head, max_length, bias=bias, **score_options)
        )
        self.norm = nn.LayerNorm(d_model, bias=bias)
        # The embedding is the output matrix too: torch's own start, of spread 1, would make huge logits.
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens):
        """tokens: int64 "batch length" -> logits "batch length vocab".

        Raises:
            TypeError: tokens are not int64.
            ValueError: tokens have not two axes, or length does not lie between 1 and max_length.
        """
        x, _ = self._run(tokens)
        return self.norm(x) @ self.token.weight.T

    def attention_maps(self, tokens):
        """The weights of every layer, a list of "batch head query key"; tokens and errors as in `forward`."""
        _, maps = self._run(tokens)
        return maps

    def _run(self, tokens):
        self._check(tokens)
        x = self.dropout(self.token(tokens) + self.position.weight[: tokens.shape[1]])
        maps = []
        for block in self.blocks:
            x, weights = block(x)
            maps.append(weights)
        return x, maps

    def _check(self, tokens):
        if tokens.dtype != torch.int64:
            raise TypeError(f"tokens must be int64, not {tokens.dtype}")
        if tokens.ndim != 2:
            raise ValueError(f'tokens must be "batch length", but are {tuple(tokens.shape)}')
        if not 1 <= tokens.shape[1] <= self.max_length:
            length = tokens.shape[1]
            raise ValueError(f"axis length of tokens is {length}, not 1 to max_length = {self.max_length}")

    @torch.no_grad()
    def generate(self, tokens, count, *, temperature=1.0, generator=None):
        """Continue tokens "batch length" by `count` tokens, one at a time -> "batch length+count".

        The model reads the last max_length tokens; what stands before them is forgotten. Logits are divided
        by `temperature` before the softmax; 0 always takes the most likely token. Samples are drawn on the
        CPU with `generator` (default: torch's own), so that a seed means the same on every device.

        Raises:
            ValueError: temperature or count is not a number of at least 0; otherwise as `forward`.
        """
        check_number("temperature", temperature)
        if count != 0:
            check_whole_number("count", count)
        self._check(tokens[:, -self.max_length :])
        training = self.training
        self.eval()
        for _ in range(count):
            logits = self(tokens[:, -self.max_length :])[:, -1].double().cpu()
            if temperature == 0:
                following = logits.argmax(dim=-1, keepdim=True)
            else:
                likely = (logits - logits.amax(dim=-1, keepdim=True)) / temperature  # at most 0: cannot overflow
                following = torch.multinomial(likely.softmax(dim=-1), 1, generator=generator)
            tokens = torch.cat([tokens, following.to(tokens.device)], dim=1)
        self.train(training)
        return tokens


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). The attention is causal; its S is an argument."""

    def __init__(self, d_model, head, max_length, score, *, dropout=0.0, bias=True):
        super().__init__()
        self.norm_attention = nn.LayerNorm(d_model, bias=bias)
        self.attention = Attention(d_model, head, max_length, score, causal=True, dropout=dropout, bias=bias)
        self.norm_mlp = nn.LayerNorm(d_model, bias=bias)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model, bias=bias), nn.GELU(), nn.Linear(4 * d_model, d_model, bias=bias)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        """x: batch length d_model -> (the same shape, weights "batch head query key")."""
        y, weights = self.attention(self.norm_attention(x))
        x = x + self.dropout(y)
        return x + self.dropout(self.mlp(self.norm_mlp(x))), weights


def _drawn_aside(scores, *sizes, **options):
    """Names made into modules, drawn from a random stream of their own.

    Every S draws another number of parameters. Aside, with one seed all that the models share starts equal.
    """
    seed = int(torch.randint(2**31, ()))  # else S and the blocks would start from the same random numbers
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return [score if isinstance(score, Score) else make_score(score, *sizes, **options) for score in scores]
