"""Three models around any S: a language model, an encoder-decoder and a classifier. S is an argument of each.

    model = LanguageModel(vocab=84, d_model=64, head=4, layer=2, max_length=32, score="random")
    logits = model(tokens)      # tokens: batch length  ->  logits: batch length vocab

Read from the top: the models, then what they share: the block, and what stands around the blocks.
"""

from contextlib import contextmanager

import torch
from torch import nn

from synth_lib.attention import Attention, Cache, CrossAttention, unchanged_after_error
from synth_lib.decoding import beam_search, check_sampling, greedy_search, sample
from synth_lib.masks import can_read, padding
from synth_lib.scores import Score, make_score
from synth_lib.shapes import check_number, check_whole_number


class _Model(nn.Module):
    """What the three models share: their arguments, learned embeddings of tokens and positions, the check of tokens."""

    def __init__(self, vocab, d_model, head, layer, max_length, dropout):
        super().__init__()
        sizes = {"vocab": vocab, "d_model": d_model, "head": head, "layer": layer, "max_length": max_length}
        for name, value in sizes.items():
            check_whole_number(name, value)
        check_number("dropout", dropout, below=1)
        self.vocab, self.max_length = vocab, max_length
        self.token = nn.Embedding(vocab, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.dropout = nn.Dropout(dropout)

    def _start(self):
        """Draw the embeddings. Where they are the output matrix too, torch's own start, of spread 1, is too large."""
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    @contextmanager
    def _evaluating(self):
        """A `with` block in which nothing is dropped; after it, also after an error, each part trains as before."""
        training = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            yield
        finally:
            for module, trained in training:
                module.training = trained

    def _embed(self, tokens, start=0, name="tokens"):
        """tokens "batch length", which stand at positions start, start + 1, ... -> x "batch length d_model"."""
        if not isinstance(tokens, torch.Tensor) or tokens.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, not {getattr(tokens, 'dtype', type(tokens).__name__)}")
        if tokens.ndim != 2:
            raise ValueError(f'{name} must be "batch length", but are {tuple(tokens.shape)}')
        length = start + tokens.shape[1]
        if tokens.shape[1] < 1 or length > self.max_length:
            raise ValueError(f"axis length of {name} is {length}, not 1 to max_length = {self.max_length}")
        position = self.position(torch.arange(start, length, device=tokens.device))
        try:
            return self.dropout(self.token(tokens) + position)
        except IndexError:  # on a CPU: others do not wait for an answer
            found = f"lie between {int(tokens.min())} and {int(tokens.max())}"
            raise ValueError(f"{name} {found}, but must lie between 0 and vocab - 1 = {self.vocab - 1}") from None


class LanguageModel(_Model):
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

    def __init__(self, vocab, d_model, head, layer, max_length, score="dot_product",
                 *, dropout=0.0, bias=True, **score_options):  # fmt: skip
        super().__init__(vocab, d_model, head, layer, max_length, dropout)
        scores = _scores(score, d_model, head, layer, max_length, bias=bias, **score_options)
        self.blocks = nn.ModuleList(
            Block(d_model, head, max_length, score, causal=True, dropout=dropout, bias=bias) for score in scores
        )
        self.norm = nn.LayerNorm(d_model, bias=bias)
        self._start()

    def forward(self, tokens, *, caches=None):
        """tokens: int64 "batch length" -> logits "batch length vocab".

        caches: the list of `new_caches()`. Then tokens are those that come next, after those in the caches.

        Raises:
            TypeError: tokens are not int64.
            ValueError: tokens have not two axes, or a length above max_length, or, on a CPU, one is not below vocab.
        """
        with unchanged_after_error(caches or []):
            x, _ = self._run(tokens, caches, need_weights=False)
            return self.norm(x) @ self.token.weight.T

    def attention_maps(self, tokens):
        """The weights of every layer, a list of "batch head query key"; tokens and errors as in `forward`."""
        _, maps = self._run(tokens)
        return maps

    def new_caches(self):
        """An empty `Cache` for each layer, for a text that has not begun."""
        return [Cache() for _ in self.blocks]

    def _run(self, tokens, caches=None, need_weights=True):
        x = self._embed(tokens, _tokens_in(caches, len(self.blocks)))
        return _through(self.blocks, x, caches=caches, need_weights=need_weights)

    @torch.no_grad()
    def generate(self, tokens, count, *, temperature=1.0, top_k=None, top_p=None, generator=None, cache=True):
        """Continue tokens "batch length" by `count` tokens, one at a time -> "batch length+count".

        The model reads the last max_length tokens; what stands before them is forgotten. No token is padding: texts of
        different lengths go one by one. How a token is chosen, and what temperature, top_k, top_p and generator mean,
        says `decoding.sample`.

        cache: read each token once and keep what the later ones need of it (`Cache`); without it, every step reads
        the whole text again, and finds the same. Beyond max_length every step has to: each token moves by one position.

        Raises ValueError: an option of `decoding.sample`, or count, does not fit; otherwise as `forward`.
        """
        if count != 0:
            check_whole_number("count", count)
        check_sampling(temperature, top_k, top_p)
        choose = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "generator": generator}
        caches = self.new_caches() if cache else None
        with self._evaluating():
            unread = tokens[:, -self.max_length :] if getattr(tokens, "ndim", 0) == 2 else tokens
            self._embed(unread)
            for _ in range(count):
                if caches and caches[0].length + unread.shape[1] > self.max_length:
                    caches = None
                if not caches:
                    unread = tokens[:, -self.max_length :]
                unread = sample(self(unread, caches=caches)[:, -1], **choose)
                tokens = torch.cat([tokens, unread], dim=1)
        return tokens


class EncoderDecoder(_Model):
    """Writes a target text for a source text. Encoder and decoder synthesize; cross-attention compares, by default.

    One vocabulary serves both languages, and its embedding is the output matrix too.

    Args:
        vocab, d_model, head, layer, max_length, dropout, bias, **score_options: as for `LanguageModel`. There are
            `layer` blocks in the encoder and as many in the decoder; both texts hold at most max_length tokens.
        score: S of the self-attention of both, one name for all layers or a list of names with one for each.
        cross_score: S of the cross-attention, a name. The paper keeps the dot product.

    Raises TypeError, ValueError: as for `LanguageModel`; modules in `score`, which encoder and decoder would share.
    """

    def __init__(self, vocab, d_model, head, layer, max_length, score="dot_product",
                 *, cross_score="dot_product", dropout=0.0, bias=True, **score_options):  # fmt: skip
        super().__init__(vocab, d_model, head, layer, max_length, dropout)
        if isinstance(score, (list, tuple)) and any(not isinstance(name, str) for name in score):
            raise TypeError("score must hold names: encoder and decoder would share a module")
        sizes = (d_model, head, layer, max_length)
        options = {"dropout": dropout, "bias": bias}
        self.encoder = nn.ModuleList(
            Block(d_model, head, max_length, score, **options)
            for score in _scores(score, *sizes, bias=bias, **score_options)
        )
        self.encoder_norm = nn.LayerNorm(d_model, bias=bias)
        pairs = zip(
            _scores(score, *sizes, bias=bias, **score_options), _scores(cross_score, *sizes, bias=bias), strict=True
        )
        self.decoder = nn.ModuleList(
            Block(d_model, head, max_length, score, causal=True, cross_score=cross, **options) for score, cross in pairs
        )
        self.decoder_norm = nn.LayerNorm(d_model, bias=bias)
        self._start()

    def forward(self, source, target, source_lengths=None):
        """Logits "batch length vocab" for the token after each of the target.

        Args:
            source, target: int64 "batch length", each of its own length. Padding stands on the right. That of the
                target needs no mask: no token before it looks there.
            source_lengths: how many tokens of each source are real, see `masks.padding`; None: all.

        Raises TypeError, ValueError: tokens are not int64, have not two axes, or are too long; lengths do not fit.
        """
        mask = _mask(source_lengths, source)
        memory, _ = self._encode(source, mask, need_weights=False)
        x, _, _ = self._decode(target, memory, mask, need_weights=False)
        return self.decoder_norm(x) @ self.token.weight.T

    def attention_maps(self, source, target, source_lengths=None):
        """The weights of every layer: {"encoder": [...], "decoder": [...], "cross": [...]}; arguments as `forward`.

        Each is "batch head query key". In "cross" the queries are positions of the target, the keys of the source.
        """
        mask = _mask(source_lengths, source)
        memory, encoder = self._encode(source, mask)
        _, decoder, cross = self._decode(target, memory, mask)
        return {"encoder": encoder, "decoder": decoder, "cross": cross}

    def new_caches(self):
        """For each block of the decoder an empty `Cache` of its self-attention and one of its cross-attention."""
        return [(Cache(), Cache()) for _ in self.decoder]

    @torch.no_grad()
    def translate(self, source, source_lengths=None, *, start, end, count, beam=1, length_penalty=0.6):
        """Write a target for each source -> a list of token lists, without start and end.

        Args:
            source, source_lengths: as in `forward`.
            start, end: the tokens that begin and end every target.
            count: the longest target, its end included; at most max_length, since `start` takes a position too.
            beam: how many beginnings of each target go on, see `decoding.beam_search`; 1 is greedy.
            length_penalty: see `decoding.length_factor`; 0.6 in the paper. Greedy search has no use for it.

        Raises ValueError: `count` is above max_length, `beam` is below 1, `length_penalty` is negative.
        """
        check_whole_number("count", count)
        check_whole_number("beam", beam)
        check_number("length_penalty", length_penalty)
        if count > self.max_length:
            raise ValueError(f"count is {count}, but must be at most max_length = {self.max_length}")
        caches = self.new_caches()

        def step(tokens, rows):
            if rows is not None:  # the memory of a sample is the same for all its beginnings, and stays
                for own, _ in caches:
                    own.reorder(rows.to(source.device))
            x, _, _ = self._decode(tokens.to(source.device), memory, mask, caches, need_weights=False)
            return self.decoder_norm(x[:, -1]) @ self.token.weight.T

        ends = {"start": start, "end": end, "count": count}
        with self._evaluating():
            mask = _mask(source_lengths, source)
            memory, _ = self._encode(source, mask, need_weights=False)
            memory = memory.repeat_interleave(beam, dim=0)
            mask = None if mask is None else mask.repeat_interleave(beam, dim=0)
            if beam == 1:
                return greedy_search(step, len(source), **ends)
            return beam_search(step, len(source), **ends, beam=beam, length_penalty=length_penalty)

    def _encode(self, source, mask, need_weights=True):
        x, maps = _through(self.encoder, self._embed(source, name="source"), mask, need_weights=need_weights)
        return self.encoder_norm(x), maps

    def _decode(self, target, memory, memory_mask, caches=None, need_weights=True):
        start = _tokens_in(caches and [own for own, _ in caches], len(self.decoder))
        caches = [(None, None)] * len(self.decoder) if caches is None else caches
        x, maps, cross_maps = self._embed(target, start, "target"), [], []
        for block, (cache, memory_cache) in zip(self.decoder, caches, strict=True):
            x, weights, cross = block(
                x, cache=cache, memory=memory, memory_mask=memory_mask, memory_cache=memory_cache,
                need_weights=need_weights,
            )  # fmt: skip
            maps.append(weights)
            cross_maps.append(cross)
        return x, maps, cross_maps


class Classifier(_Model):
    """Tells to which of `label` classes a text belongs: an encoder, the mean over its tokens, one linear layer.

    A pair of texts is one input: the first, a separator token, the second. So the self-attention has to compare them.

    Args:
        label: the number of classes.
        vocab, d_model, head, layer, max_length, score, dropout, bias, **score_options: as for `LanguageModel`.

    Raises TypeError, ValueError: as for `LanguageModel`.
    """

    def __init__(self, vocab, label, d_model, head, layer, max_length, score="dot_product",
                 *, dropout=0.0, bias=True, **score_options):  # fmt: skip
        super().__init__(vocab, d_model, head, layer, max_length, dropout)
        check_whole_number("label", label)
        scores = _scores(score, d_model, head, layer, max_length, bias=bias, **score_options)
        self.blocks = nn.ModuleList(
            Block(d_model, head, max_length, score, dropout=dropout, bias=bias) for score in scores
        )
        self.norm = nn.LayerNorm(d_model, bias=bias)
        self.label = nn.Linear(d_model, label, bias=bias)
        self._start()

    def forward(self, tokens, lengths=None):
        """tokens: int64 "batch length", padding on the right -> logits "batch label".

        lengths: how many tokens of each text are real, at least 1, see `masks.padding`; None: all.

        Raises TypeError, ValueError: tokens are not int64, have not two axes, or are too long; lengths do not fit.
        """
        mask = _mask(lengths, tokens)
        x, _ = self._run(tokens, mask, need_weights=False)
        x = self.norm(x)
        if mask is None:
            return self.label(x.mean(dim=1))
        real = mask[:, 0, 0, :, None]
        return self.label((x * real).sum(dim=1) / real.sum(dim=1))

    def attention_maps(self, tokens, lengths=None):
        """The weights of every layer, a list of "batch head query key"; arguments and errors as in `forward`."""
        _, maps = self._run(tokens, _mask(lengths, tokens))
        return maps

    def _run(self, tokens, mask, need_weights=True):
        return _through(self.blocks, self._embed(tokens), mask, need_weights=need_weights)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); between them, in a decoder, x + cross_attention(norm(x), memory).

    Args:
        d_model, head, max_length, causal, dropout, bias: as for `Attention`.
        score: S of the self-attention, a name or a ready `Score`.
        cross_score: S of the cross-attention; None: there is none.
    """

    def __init__(self, d_model, head, max_length, score, *, causal=False, cross_score=None, dropout=0.0, bias=True):
        super().__init__()
        options = {"dropout": dropout, "bias": bias}
        self.norm_attention = nn.LayerNorm(d_model, bias=bias)
        self.attention = Attention(d_model, head, max_length, score, causal=causal, **options)
        if cross_score is not None:
            self.norm_cross = nn.LayerNorm(d_model, bias=bias)
            self.cross_attention = CrossAttention(d_model, head, max_length, cross_score, **options)
        self.norm_mlp = nn.LayerNorm(d_model, bias=bias)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model, bias=bias), nn.GELU(), nn.Linear(4 * d_model, d_model, bias=bias)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None, *, cache=None,
                memory=None, memory_mask=None, memory_cache=None, need_weights=True):  # fmt: skip
        """x: batch length d_model -> (the same shape, weights "batch head query key", or None if not needed).

        With `memory`, "batch key d_model", the third result is the weights of the cross-attention. Masks, caches and
        need_weights are those of `Attention` and `CrossAttention`.
        """
        start = 0 if cache is None else cache.length
        y, weights = self.attention(self.norm_attention(x), mask, cache=cache, need_weights=need_weights)
        x = x + self.dropout(y)
        if memory is not None:
            y, cross_weights = self.cross_attention(
                self.norm_cross(x), memory, memory_mask, start=start, cache=memory_cache, need_weights=need_weights
            )
            x = x + self.dropout(y)
        x = x + self.dropout(self.mlp(self.norm_mlp(x)))
        return (x, weights) if memory is None else (x, weights, cross_weights)


def _through(blocks, x, mask=None, *, caches=None, need_weights=True):
    """x "batch length d_model" through all blocks: (the same shape, the weights of every layer)."""
    maps = []
    for block, cache in zip(blocks, caches or [None] * len(blocks), strict=True):
        x, weights = block(x, mask, cache=cache, need_weights=need_weights)
        maps.append(weights)
    return x, maps


def _tokens_in(caches, layer):
    """How many tokens the caches of all blocks hold, 0 if there are none."""
    if caches is None:
        return 0
    lengths = {cache.length: None for cache in caches}
    if len(caches) != layer or len({id(cache) for cache in caches}) != layer:
        raise ValueError(f"caches must hold one cache for each of {layer} layers, such as new_caches() gives")
    if len(lengths) > 1:
        raise ValueError(f"the caches hold {' and '.join(map(str, lengths))} tokens: start again with new_caches()")
    return max(lengths)


def _mask(lengths, tokens):
    """The mask of the real tokens, "batch 1 1 key", or None if all are."""
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths, device=tokens.device)
    if lengths.dim() != 1 or lengths.shape[0] != tokens.shape[0]:
        raise ValueError(f"lengths are {tuple(lengths.shape)}, but there are {len(tokens)} texts")
    if can_read(lengths) and (lengths < 1).any():
        raise ValueError(f"lengths are {lengths.tolist()}, but every text needs at least one real token")
    return padding(lengths, tokens.shape[-1])  # whether tokens have two axes, the embedding checks


def _scores(score, d_model, head, layer, max_length, **options):
    """A Score for each layer, from one name or from a list of names and ready modules.

    They are drawn from a random stream of their own, since every S draws another number of parameters: so with one
    seed, all that the models share starts equal.
    """
    scores = [score] * layer if isinstance(score, str) else score
    if not isinstance(scores, (list, tuple)):
        raise TypeError(f"score must be a name, or a list with one for each layer, not {type(score).__name__}")
    modules = [entry for entry in scores if isinstance(entry, Score)]
    if len(scores) != layer:
        raise ValueError(f"score has {len(scores)} entries, but must have one for each of {layer} layers")
    if len(modules) == len(scores) and options.keys() - {"bias"}:
        raise ValueError(f"score holds ready modules; their options {sorted(options.keys() - {'bias'})} belong there")
    if len(set(modules)) < len(modules):
        raise ValueError("score holds the same module twice, but each layer needs one of its own")
    seed = int(torch.randint(2**31, (), device="cpu"))  # else S and the blocks would start from the same numbers
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return [
            entry if isinstance(entry, Score) else make_score(entry, d_model, head, max_length, **options)
            for entry in scores
        ]
