"""The three models against slow ones of plain loops, and what they must not do: look ahead, or at padding."""

import inspect
import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from synth_lib.attention import Attention
from synth_lib.models import Block, Classifier, EncoderDecoder, LanguageModel
from synth_lib.scores import SCORES as registry
from synth_lib.scores import Dense
from tests.helpers import reference
from tests.helpers.properties import refuses
from tests.test_decoding import judged

SCORES = [*registry, "random + dense"]
VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH = 11, 12, 3, 2, 8


def make(score="dot_product", **options):
    torch.manual_seed(1)
    model = LanguageModel(VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH, score, **options)
    with torch.no_grad():  # away from the start, where biases are 0 and norms are 1 and mistakes hide
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def some_tokens(batch=2, length=7):
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(2))


def slow_norm(x, norm):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def slow_dot_product(x, attention):
    """One sentence, "length d_model": each head, each query, each key that is not later, one by one."""
    d_head = D_MODEL // HEAD
    query, key, value = (layer(x) for layer in (attention.score.query, attention.score.key, attention.value))
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(HEAD):
            part = slice(h * d_head, (h + 1) * d_head)
            e = [torch.exp((query[i, part] * key[j, part]).sum() / math.sqrt(d_head)) for j in range(i + 1)]
            heads.append(sum(w / sum(e) * value[j, part] for j, w in enumerate(e)))
        rows.append(torch.cat(heads))
    return attention.output(torch.stack(rows))


def slow_model(model, sentence):
    rows = [model.token.weight[t] + model.position.weight[i] for i, t in enumerate(sentence.tolist())]
    x = torch.stack(rows)
    for block in model.blocks:
        x = x + slow_dot_product(slow_norm(x, block.norm_attention), block.attention)
        hidden = F.gelu(slow_norm(x, block.norm_mlp) @ block.mlp[0].weight.T + block.mlp[0].bias)
        x = x + hidden @ block.mlp[2].weight.T + block.mlp[2].bias
    x = slow_norm(x, model.norm)
    return torch.stack([torch.stack([row @ model.token.weight[v] for v in range(VOCAB)]) for row in x])


def test_equals_the_slow_model():
    model = make().double()
    tokens = some_tokens()
    expected = torch.stack([slow_model(model, sentence) for sentence in tokens])
    assert torch.allclose(model(tokens), expected, atol=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_no_position_sees_a_later_token(score):
    model = make(score)
    tokens = some_tokens()
    found = {}
    model.token.register_forward_hook(lambda module, inputs, output: found.update(x=output))
    logits = model(tokens)
    for i in range(tokens.shape[1]):
        (gradient,) = torch.autograd.grad(logits[0, i].sum(), found["x"], retain_graph=True)
        reached = gradient.abs().sum(-1) > 0
        assert not reached[0, i + 1 :].any(), f"position {i} sees a later token"
        assert reached[0, : i + 1].all(), f"position {i} does not see all earlier tokens"
        assert not reached[1].any(), "a sentence sees another sentence"


@pytest.mark.parametrize("score", SCORES)
def test_shorter_texts_and_alone_in_the_batch_give_the_same(score):
    model = make(score)
    tokens = some_tokens(3, MAX_LENGTH)
    logits = model(tokens)
    for length in (1, 5):
        assert torch.allclose(model(tokens[1:2, :length]), logits[1:2, :length], atol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_all_parameters_get_a_gradient(score):
    model = make(score)
    tokens = some_tokens(2, MAX_LENGTH)
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1).flatten()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_embeddings_are_tied():
    model = make()
    with_vocab = [name for name, value in model.state_dict().items() if VOCAB in value.shape]
    assert with_vocab == ["token.weight"]
    before = model(some_tokens())
    with torch.no_grad():
        model.token.weight[10] = 0  # the row of one token: its logit is 0 everywhere
    after = model(some_tokens())
    assert (after[..., 10] == 0).all() and (before[..., 10] != 0).all()


def test_the_number_of_parameters_is_the_formula():
    for score, per_layer in {
        "dot_product": 2 * D_MODEL**2,
        "dense": D_MODEL**2 + D_MODEL * MAX_LENGTH,
        "random": HEAD * MAX_LENGTH**2,
        "fixed_random": 0,
    }.items():
        model = LanguageModel(VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH, score, bias=False)
        block = per_layer + 2 * D_MODEL**2 + 8 * D_MODEL**2 + 2 * D_MODEL
        expected = (VOCAB + MAX_LENGTH) * D_MODEL + LAYER * block + D_MODEL
        assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_one_score_for_each_layer():
    model = LanguageModel(VOCAB, D_MODEL, HEAD, 3, MAX_LENGTH, ["dense", "random", "random + dense"])
    names = [type(block.attention.score).__name__ for block in model.blocks]
    assert names == ["Dense", "Random", "Mixture"]
    own = [Dense(D_MODEL, HEAD, MAX_LENGTH), Dense(D_MODEL, HEAD, MAX_LENGTH)]
    model = LanguageModel(VOCAB, D_MODEL, HEAD, 2, MAX_LENGTH, own)
    assert model.blocks[1].attention.score is own[1]


def test_options_reach_the_score():
    model = LanguageModel(VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH, "factorized_random", rank=3, dropout=0.25)
    assert model.blocks[1].attention.score.R1.shape == (HEAD, MAX_LENGTH, 3)
    assert model.blocks[0].attention.dropout == 0.25 and model.blocks[0].dropout.p == 0.25


@pytest.mark.parametrize("score", SCORES)
def test_attention_maps_are_causal_rows(score):
    tokens = some_tokens()
    maps = make(score).attention_maps(tokens)
    assert len(maps) == LAYER
    for weights in maps:
        assert weights.shape == (2, HEAD, 7, 7)
        assert torch.allclose(weights.sum(-1), torch.ones(2, HEAD, 7)) and (weights.triu(1) == 0).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"score": ["dense"]}, "score has 1 entries, but must have one for each of 2 layers"),
        ({"layer": 0}, "layer is 0"),
        ({"vocab": 1.5}, "vocab is 1.5"),
        ({"head": 5}, "head = 5 does not divide d_model = 12"),
        ({"score": "nothing"}, "unknown score"),
        ({"score": "dense", "rank": 3}, "has an option rank"),
        ({"score": [], "rank": 3}, "score has 0 entries"),  # not: its modules have options of their own
        *(({"dropout": value}, "dropout is .*, but must be at least 0") for value in (None, "a", 1.5, True)),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    sizes = {"vocab": VOCAB, "d_model": D_MODEL, "head": HEAD, "layer": LAYER, "max_length": MAX_LENGTH}
    with pytest.raises(ValueError, match=message):
        LanguageModel(**(sizes | options))


def test_one_module_for_all_layers_is_refused():
    with pytest.raises(TypeError, match="a name, or a list with one for each layer, not Dense"):
        LanguageModel(VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH, Dense(D_MODEL, HEAD, MAX_LENGTH))


def test_tokens_that_do_not_fit_are_refused():
    model = make()
    with pytest.raises(TypeError, match="tokens must be int64, not torch.float32"):
        model(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r'must be "batch length", but are \(3,\)'):
        model(torch.zeros(3, dtype=torch.int64))
    for length in (0, 9):
        with pytest.raises(ValueError, match=f"length of tokens is {length}, not 1 to max_length = 8"):
            model(torch.zeros(2, length, dtype=torch.int64))
    for call in (model, model.attention_maps, lambda tokens: model.generate(tokens, 1)):
        with pytest.raises(ValueError, match=r'must be "batch length", but are \(3,\)'):
            call(torch.zeros(3, dtype=torch.int64))
        with pytest.raises(TypeError, match="tokens must be int64, not list"):
            call([[1, 2]])
        for wrong in (VOCAB, -1):
            low, high = sorted([0, wrong])
            limit = f"tokens lie between {low} and {high}, but must lie between 0 and vocab - 1 = {VOCAB - 1}"
            with pytest.raises(ValueError, match=limit):
                call(torch.tensor([[0, wrong]]))


def test_greedy_is_the_argmax_of_the_last_max_length_tokens():
    model = make()
    start = some_tokens(2, 3)
    expected = start.tolist()
    for sentence in expected:
        for _ in range(2 * MAX_LENGTH):
            logits = model(torch.tensor([sentence[-MAX_LENGTH:]]))
            last = logits[0, -1].tolist()
            sentence.append(last.index(max(last)))
    assert model.generate(start, 2 * MAX_LENGTH, temperature=0).tolist() == expected


def test_sampling_follows_temperature_and_generator():
    model = make()
    with torch.no_grad():
        model.token.weight.mul_(0.3)
    start = some_tokens(1, 3).expand(4000, 3)
    for temperature in (0.5, 2.0):
        generator = torch.Generator().manual_seed(5)
        drawn = model.generate(start, 1, temperature=temperature, generator=generator)[:, -1]
        expected = (model(start[:1])[0, -1] / temperature).softmax(-1)
        assert torch.allclose(torch.bincount(drawn, minlength=VOCAB) / 4000, expected, atol=0.03)

    def sample(seed):
        return model.generate(start[:1], 12, generator=torch.Generator().manual_seed(seed)).tolist()

    first = sample(7)
    torch.rand(3)  # the global generator moves on, the sample must not
    assert first == sample(7) != sample(8)
    greedy = model.generate(start[:1], 12, temperature=0).tolist()
    for only_the_likeliest in ({"top_k": 1}, {"top_p": 1e-6}):
        assert model.generate(start[:1], 12, **only_the_likeliest).tolist() == greedy
    with pytest.raises(ValueError, match="temperature is -1, but must be a finite number of at least 0"):
        model.generate(start[:1], 1, temperature=-1)


def test_generating_drops_nothing_and_leaves_the_mode():
    model = make(dropout=0.5).train()
    start = some_tokens(1, 4)
    first = model.generate(start, 6, temperature=0)
    assert model.training and torch.equal(first, model.generate(start, 6, temperature=0))
    assert first.requires_grad is False
    model.blocks[0].eval()  # a part that is kept as it is stays so
    model.generate(start, 1)
    assert [part.training for part in (model, *model.blocks)] == [True, False, True]
    model.eval()
    model.generate(start, 1)
    assert not model.training


def test_dropout_acts_while_training_only():
    model = make(dropout=0.5)
    tokens = some_tokens()
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))


def test_the_same_seed_gives_the_same_start_and_small_logits():
    def start():
        torch.manual_seed(4)
        return LanguageModel(84, 64, 4, 2, 32, "random")

    first, second = start(), start()
    assert all(torch.equal(first.state_dict()[name], value) for name, value in second.state_dict().items())
    tokens = torch.randint(84, (8, 32))
    # Untrained, no token is preferred: the loss is that of guessing among 84.
    loss = F.cross_entropy(first(tokens).flatten(0, 1), torch.randint(84, (256,)))
    assert loss.item() == pytest.approx(math.log(84), abs=0.15)


def test_state_survives_saving(tmp_path):
    model = make("fixed_random")
    other = LanguageModel(VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH, "fixed_random").eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(model(some_tokens()), other(some_tokens()))


def test_compiles_without_a_break():
    model = make("random + dense")
    tokens = some_tokens()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(tokens), model(tokens), atol=1e-5)


def test_with_one_seed_all_that_the_models_share_starts_equal():
    """Every S draws another number of parameters; that must not shift what the rest of the model draws."""
    sizes = {"vocab": 11, "d_model": 12, "head": 3, "layer": 2, "max_length": 8}
    models = []
    for score in ("dot_product", "dense", "random", "random + dense", ["random", "dense"]):
        torch.manual_seed(5)
        models.append(LanguageModel(**sizes, score=score).state_dict())
    for state in models[1:]:
        shared = [name for name in models[0] if name in state and ".score." not in name]
        assert len(shared) > 20
        assert all(torch.equal(models[0][name], state[name]) for name in shared)


def test_layers_and_random_scores_do_not_start_alike():
    torch.manual_seed(5)
    model = LanguageModel(11, 12, 3, 2, 8, "random")
    assert not torch.equal(model.blocks[0].attention.score.R, model.blocks[1].attention.score.R)


def test_generate_leaves_the_mode_of_the_model_after_an_error():
    model = LanguageModel(11, 12, 3, 1, 8).train()
    empty, floats, whole = torch.zeros(1, 0).long(), torch.zeros(1, 2), torch.zeros(1, 2).long()
    for prompt, count in ((empty, 3), (floats, 3), (whole, -1)):
        with pytest.raises((TypeError, ValueError)):
            model.generate(prompt, count)
        assert model.training


def test_one_module_for_two_layers_is_refused():
    score = Dense(12, 3, 8)
    with pytest.raises(ValueError, match="the same module twice"):
        LanguageModel(11, 12, 3, 2, 8, [score, score])


@pytest.mark.parametrize("score", ["dot_product", "dense", "random", "factorized_dense"])
def test_no_two_parameters_start_from_the_same_random_numbers(score):
    torch.manual_seed(5)
    model = LanguageModel(11, 12, 3, 2, 8, score, bias=False)
    matrices = [parameter.flatten()[:24] for parameter in model.parameters() if parameter.ndim > 1]
    for i, first in enumerate(matrices):
        for second in matrices[:i]:
            correlation = torch.corrcoef(torch.stack([first, second]))[0, 1]
            assert abs(correlation) < 0.95  # the same numbers, scaled, have 1


def test_scores_are_drawn_anew_for_each_model_and_each_half_of_one():
    one, other = (LanguageModel(VOCAB, D_MODEL, HEAD, 1, MAX_LENGTH, "random") for _ in range(2))
    both = EncoderDecoder(VOCAB, D_MODEL, HEAD, 1, MAX_LENGTH, "random", cross_score="random")
    blocks = [one.blocks[0], other.blocks[0], both.encoder[0], both.decoder[0]]
    tables = [block.attention.score.R for block in blocks] + [both.decoder[0].cross_attention.score.R]
    assert len({table[0, 0, 0].item() for table in tables}) == 5


def test_generate_draws_the_same_while_the_model_trains():
    drawn = []
    for training in (True, False):
        model = make(dropout=0.5).train(training)
        torch.manual_seed(3)
        drawn.append(model.generate(some_tokens(1, 4), 6))
    assert torch.equal(*drawn)


# The encoder-decoder

LABEL, SOURCE, TARGET = 5, 7, 6
LENGTHS = [7, 3, 1]  # real tokens of each source; the second and the third are padded


def away_from_the_start(model):
    with torch.no_grad():  # biases are 0 and norms are 1 at the start, and mistakes hide
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def translator(score="dot_product", dtype=torch.float64, **options):
    torch.manual_seed(1)
    return away_from_the_start(EncoderDecoder(VOCAB, D_MODEL, HEAD, LAYER, MAX_LENGTH, score, **options).to(dtype))


def classifier(score="dot_product", dtype=torch.float64, **options):
    torch.manual_seed(1)
    return away_from_the_start(Classifier(VOCAB, LABEL, D_MODEL, HEAD, LAYER, MAX_LENGTH, score, **options).to(dtype))


def some_pairs(batch=3, dtype=torch.int64):
    generator = torch.Generator().manual_seed(4)
    return tuple(torch.randint(VOCAB, (batch, length), generator=generator) for length in (SOURCE, TARGET))


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


def embedded(model):
    """A list that fills with the embeddings of every forward pass, to take gradients of."""
    found = []
    model.token.register_forward_hook(lambda module, inputs, output: found.append(output))
    return found


@pytest.mark.parametrize(
    "score, cross_score", [("dot_product", "dot_product"), ("random + dense", "dot_product"), ("dot_product", "random")]
)
def test_encoder_decoder_equals_the_slow_one(score, cross_score):
    """The slow one knows no padding: it reads the real tokens of one source."""
    model, (source, target) = translator(score, cross_score=cross_score), some_pairs()
    logits, maps = model(source, target, LENGTHS), model.attention_maps(source, target, LENGTHS)
    for n, real in enumerate(LENGTHS):
        expected, slow_maps = reference.encoder_decoder(model, source[n, :real].tolist(), target[n].tolist())
        exactly(logits[n], expected)
        assert list(maps) == list(slow_maps)
        for layer in range(LAYER):
            exactly(maps["encoder"][layer][n, :, :real, :real], slow_maps["encoder"][layer])
            exactly(maps["decoder"][layer][n], slow_maps["decoder"][layer])
            exactly(maps["cross"][layer][n, :, :, :real], slow_maps["cross"][layer])
            assert (maps["encoder"][layer][n, ..., real:] == 0).all() and (
                maps["cross"][layer][n, ..., real:] == 0
            ).all()


@pytest.mark.parametrize("score", SCORES)
def test_the_axes_of_the_maps_of_the_encoder_decoder(score):
    model, (source, target) = translator(score), some_pairs()
    maps = model.attention_maps(source, target, torch.tensor(LENGTHS))
    shapes = {"encoder": (SOURCE, SOURCE), "decoder": (TARGET, TARGET), "cross": (TARGET, SOURCE)}
    assert list(maps) == list(shapes)
    for name, (query, key) in shapes.items():
        assert len(maps[name]) == LAYER
        for weights in maps[name]:
            assert weights.shape == (3, HEAD, query, key)
            exactly(weights.sum(-1), torch.ones(3, HEAD, query).double())
    for layer in range(LAYER):
        assert (maps["encoder"][layer][0] > 0).all(), "the encoder hides what comes later"
        assert (maps["decoder"][layer].triu(1) == 0).all(), "the decoder looks ahead"
        assert (maps["decoder"][layer].tril() > 0).sum() == 3 * HEAD * TARGET * (TARGET + 1) / 2


@pytest.mark.parametrize("score", SCORES)
def test_a_target_place_depends_on_the_whole_source_and_on_its_own_past(score):
    model, (source, target) = translator(score, cross_score=score), some_pairs()
    found = embedded(model)
    logits = model(source, target, LENGTHS)
    of_source, of_target = found
    for i in range(TARGET):
        read_source, read_target = torch.autograd.grad(logits[:, i].square().sum(), found, retain_graph=True)
        for n, real in enumerate(LENGTHS):
            assert read_source[n].abs().sum(-1).gt(0).tolist() == [True] * real + [False] * (SOURCE - real)
            assert read_target[n].abs().sum(-1).gt(0).tolist() == [True] * (i + 1) + [False] * (TARGET - i - 1)
    others = torch.autograd.grad(logits[0].square().sum(), found)
    assert all((read[1:] == 0).all() for read in others), "a sentence reads another one"
    assert of_source.shape[1] == SOURCE and of_target.shape[1] == TARGET


@pytest.mark.parametrize("score", SCORES)
def test_padding_changes_no_value_and_no_gradient(score):
    """What the padding holds, how much of it there is, and what else is in the batch."""
    model, (source, target) = translator(score, cross_score=score), some_pairs()
    logits = model(source, target, LENGTHS)
    other = source.clone()
    for n, real in enumerate(LENGTHS):
        other[n, real:] = (other[n, real:] + 3) % VOCAB
    assert torch.equal(model(other, target, LENGTHS), logits)
    for n, real in enumerate(LENGTHS):
        exactly(model(source[n : n + 1, :real], target[n : n + 1]), logits[n : n + 1])

    def gradients(logits):
        return torch.autograd.grad(logits.square().sum(), list(model.parameters()), materialize_grads=True)

    alone = [gradients(model(source[n : n + 1, :r], target[n : n + 1])) for n, r in enumerate(LENGTHS)]
    torch.testing.assert_close(
        gradients(logits), tuple(sum(parts) for parts in zip(*alone, strict=True)), rtol=1e-9, atol=1e-9
    )


def test_lengths_that_are_all_full_are_no_lengths():
    (source, target), text = some_pairs(), some_tokens(3, SOURCE)
    exactly(translator()(source, target), translator()(source, target, [SOURCE] * 3))
    exactly(classifier()(text), classifier()(text, [SOURCE] * 3))


def parameters_of_s(score):
    return {
        "dot_product": 2 * D_MODEL**2,
        "dense": D_MODEL**2 + D_MODEL * MAX_LENGTH,
        "random": HEAD * MAX_LENGTH**2,
        "fixed_random": 0,
    }[score]


@pytest.mark.parametrize("score", ["dot_product", "dense", "random", "fixed_random"])
def test_the_numbers_of_parameters_of_encoder_decoder_and_classifier_are_the_formulas(score):
    """Counted on the meta device, where a model of any size has no numbers."""
    sizes = (D_MODEL, HEAD, LAYER, MAX_LENGTH, score)
    with torch.device("meta"):
        pair = EncoderDecoder(VOCAB, *sizes, bias=False, cross_score="random")
        labels = Classifier(VOCAB, LABEL, *sizes, bias=False)
        logits = pair(torch.zeros(2, 7).long(), torch.zeros(2, 6).long(), torch.tensor([7, 3]))
        assert logits.shape == (2, 6, VOCAB) and labels(torch.zeros(2, 7).long(), [7, 3]).shape == (2, LABEL)
    assert logits.device.type == "meta"
    embeddings, value_and_output, mlp, norm = (VOCAB + MAX_LENGTH) * D_MODEL, 2 * D_MODEL**2, 8 * D_MODEL**2, D_MODEL
    encoder_block = parameters_of_s(score) + value_and_output + mlp + 2 * norm
    decoder_block = encoder_block + parameters_of_s("random") + value_and_output + norm
    for model, expected in (
        (pair, embeddings + LAYER * (encoder_block + decoder_block) + 2 * norm),
        (labels, embeddings + LAYER * encoder_block + norm + D_MODEL * LABEL),
    ):
        assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert all("bias" not in name for name, _ in [*pair.named_parameters(), *labels.named_parameters()])


@pytest.mark.parametrize("score", SCORES)
def test_all_parameters_of_encoder_decoder_and_classifier_get_a_gradient(score):
    pair, labels, (source, target) = translator(score), classifier(score), some_pairs()
    pair(source, target, LENGTHS).square().sum().backward()
    labels(source, LENGTHS).square().sum().backward()
    for model in (pair, labels):
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_one_matrix_embeds_both_languages_and_makes_the_logits():
    model, (source, target) = translator(), some_pairs()
    assert [name for name, value in model.state_dict().items() if VOCAB in value.shape] == ["token.weight"]
    source[:], target[:] = 3, 4
    (gradient,) = torch.autograd.grad(model(source, target)[..., 5].sum(), model.token.weight)
    assert gradient.abs().sum(-1).gt(0).nonzero()[:, 0].tolist() == [3, 4, 5]  # source, target, output


def test_the_scores_of_the_encoder_decoder():
    sizes = (VOCAB, D_MODEL, HEAD, 2, MAX_LENGTH)
    model = EncoderDecoder(*sizes, ["random", "dense"], cross_score="factorized_random", dropout=0.25)
    for blocks in (model.encoder, model.decoder):
        assert [type(block.attention.score).__name__ for block in blocks] == ["Random", "Dense"]
    assert [type(block.cross_attention.score).__name__ for block in model.decoder] == ["FactorizedRandom"] * 2
    assert not any(hasattr(block, "cross_attention") for block in model.encoder)
    assert model.decoder[1].cross_attention.dropout == model.encoder[0].attention.dropout == 0.25
    assert type(translator("random").decoder[0].cross_attention.score).__name__ == "DotProduct"
    starts = [block.attention.score.R for block in (*translator("random").encoder, *translator("random").decoder)]
    assert len({start.sum().item() for start in starts}) == 4, "two layers share R or start alike"
    model = EncoderDecoder(*sizes, "factorized_random", cross_score="random", rank=3)
    assert model.decoder[0].attention.score.R1.shape[-1] == 3


def test_with_one_seed_the_shared_parts_of_encoder_decoder_and_classifier_start_equal():
    for kind, sizes in ((EncoderDecoder, (VOCAB,)), (Classifier, (VOCAB, LABEL))):
        states = []
        for score in ("dot_product", "random", "random + dense"):
            torch.manual_seed(5)
            states.append(kind(*sizes, D_MODEL, HEAD, LAYER, MAX_LENGTH, score).state_dict())
        shared = [name for name in states[0] if "attention.score" not in name or "cross" in name]
        assert len(shared) > 20
        assert all(torch.equal(states[0][name], state[name]) for state in states[1:] for name in shared)
        assert all(states[0][f"{name}.weight"].std() < 0.03 for name in ("token", "position"))  # torch's own: 1


def test_what_does_not_fit_the_encoder_decoder_is_refused():
    model, (source, target) = translator(), some_pairs()
    with refuses(ValueError, "axis batch of memory is 3, but of x 2"):
        model(source, target[:2])
    with refuses(TypeError, "source must be int64, not torch.float32"):
        model(source.float(), target)
    with refuses(TypeError, "target must be int64, not torch.int32"):
        model(source, target.int())
    for lengths in (None, [7] * 7):
        with refuses(ValueError, 'source must be "batch length", but are (7,)'):
            model(source[0], target, lengths)
    with refuses(ValueError, "axis length of target is 9, not 1 to max_length = 8"):
        model(source, torch.zeros(3, 9).long())
    with refuses(ValueError, "axis length of source is 0, not 1 to max_length = 8"):
        model(source[:, :0], target)
    with refuses(ValueError, "lengths are (2,), but there are 3 texts"):
        model(source, target, [7, 3])
    with refuses(ValueError, "lengths are [7, 0, 3]", "at least one real token"):
        model(source, target, [7, 0, 3])
    with refuses(ValueError, "lengths are [7, 8, 3]", "length = 7"):
        model(source, target, [7, 8, 3])
    with refuses(TypeError, "lengths must be whole numbers"):
        model(source, target, [7.0, 3.0, 3.0])
    for score in (None, Dense(D_MODEL, HEAD, MAX_LENGTH)):
        with refuses(TypeError, f"score must be a name, or a list with one for each layer, not {type(score).__name__}"):
            EncoderDecoder(VOCAB, D_MODEL, HEAD, 1, MAX_LENGTH, score)
    with refuses(TypeError, "score must hold names"):
        EncoderDecoder(VOCAB, D_MODEL, HEAD, 1, MAX_LENGTH, [Dense(D_MODEL, HEAD, MAX_LENGTH)])
    with refuses(ValueError, "unknown score"):
        EncoderDecoder(VOCAB, D_MODEL, HEAD, 1, MAX_LENGTH, cross_score="vanilla")


# Translating

BEGIN, STOP = 1, 2
ENDS = {"start": BEGIN, "end": STOP, "count": 6}


def ready_to_stop(model, more=1.0):
    """Untrained, a model seldom ends: make it surer, and its end likelier, so that outputs differ in length."""
    with torch.no_grad():
        model.token.weight.mul_(2)
        model.decoder_norm.bias.add_(more * model.token.weight[STOP])
    return model


@pytest.mark.parametrize("score", SCORES)
def test_greedy_translation_is_the_argmax_of_the_full_pass(score):
    model, (source, _) = ready_to_stop(translator(score)), some_pairs(8)
    lengths = [7, 1, 2, 3, 4, 5, 6, 7]
    expected = []
    for sentence, real in zip(source, lengths, strict=True):
        written = [BEGIN]
        while len(written) <= ENDS["count"]:
            row = model(sentence[None, :real], torch.tensor([written]))[0, -1].tolist()
            written.append(row.index(max(row)))
            if written[-1] == STOP:
                break
        expected.append([token for token in written[1:] if token != STOP])
    assert model.translate(source, lengths, **ENDS) == expected


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_a_padded_batch_is_translated_as_one_by_one(beam):
    (source, _), lengths, some_end_before_others = some_pairs(8), [7, 1, 2, 3, 4, 5, 6, 7], False
    for more in (0.75, 1.0, 1.5, 2.0, 3.0):
        model = ready_to_stop(translator("dense"), more)
        together = model.translate(source, lengths, **ENDS, beam=beam)
        alone = [model.translate(source[n : n + 1, :real], **ENDS, beam=beam)[0] for n, real in enumerate(lengths)]
        assert together == alone
        some_end_before_others |= len({len(output) for output in together}) > 1
    assert some_end_before_others


@pytest.mark.parametrize("score", ["dot_product", "random", "dense + random"])
def test_a_wide_beam_finds_the_best_translation_that_there_is(score):
    """Every output of up to 3 tokens is judged by the full pass; the caches must follow their beginnings."""
    assert len(set().union(*(lengths_of_the_best(score, more) for more in (0.4, 0.8, 1.2)))) > 1


def lengths_of_the_best(score, more):
    torch.manual_seed(1)
    vocab, count, batch, lengths = 5, 4, 4, [3, 1, 2, 3]
    model = EncoderDecoder(vocab, D_MODEL, HEAD, LAYER, MAX_LENGTH, score).double()
    source = torch.randint(vocab, (batch, 3), generator=torch.Generator().manual_seed(6))
    model, lengths_of_outputs = ready_to_stop(away_from_the_start(model), more), set()
    others = [token for token in range(vocab) if token != STOP]
    beginnings = torch.cartesian_prod(*[torch.tensor(others)] * (count - 1))
    targets = torch.cat([torch.full((len(beginnings), 1), BEGIN), beginnings], dim=1)
    with torch.no_grad():
        chances = [
            model(source[n : n + 1, :real].expand(len(targets), -1), targets).softmax(-1)
            for n, real in enumerate(lengths)
        ]
    rows = {tuple(beginning[:i]): (n, i) for n, beginning in enumerate(beginnings.tolist()) for i in range(count)}

    def chance(at, written):
        n, i = rows[written]
        return chances[at][n, i].tolist()

    outputs = [(*beginning, STOP) for beginning in rows]
    for length_penalty in (0.0, 0.6, 3.0):
        best = [max(outputs, key=lambda output: judged(chance, n, output, length_penalty)) for n in range(batch)]
        ends = {"start": BEGIN, "end": STOP, "count": count, "beam": 4 ** (count - 1)}
        outputs_of_the_beam = model.translate(source, lengths, **ends, length_penalty=length_penalty)
        assert outputs_of_the_beam == [list(output[:-1]) for output in best]
        lengths_of_outputs |= {len(output) for output in best}
    return lengths_of_outputs


def test_the_length_penalty_makes_translations_longer():
    assert inspect.signature(EncoderDecoder.translate).parameters["length_penalty"].default == 0.6  # as in the paper
    model, (source, _) = ready_to_stop(translator()), some_pairs(8)
    lengths = [sum(map(len, model.translate(source, **ENDS, beam=4, length_penalty=penalty))) for penalty in (0.0, 5.0)]
    assert lengths[0] < lengths[1]
    default = model.translate(source, **ENDS, beam=4)
    assert default == model.translate(source, **ENDS, beam=4, length_penalty=0.6)


@pytest.mark.parametrize("beam", [1, 3])
def test_translating_drops_nothing_and_leaves_the_mode_also_after_an_error(beam):
    model, (source, _) = translator(dropout=0.5).train(), some_pairs()
    first = model.translate(source, **ENDS, beam=beam)
    assert model.training and first == model.translate(source, **ENDS, beam=beam)
    bad = {"source": source.float()}, {"source_lengths": [1, 2]}, {"start": VOCAB}, {"count": 9}
    for wrong in bad:
        with pytest.raises((TypeError, ValueError, IndexError)):
            model.translate(**({"source": source, **ENDS, "beam": beam} | wrong))
        assert all(module.training for module in model.modules())
    model.eval().translate(source, **ENDS, beam=beam)
    assert not model.training
    assert model.translate(source, **(ENDS | {"count": MAX_LENGTH}), beam=beam)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"count": 9}, "count is 9, but must be at most max_length = 8"),
        ({"count": 0}, "count is 0, but must be a whole number of at least 1"),
        ({"beam": 0}, "beam is 0, but must be a whole number of at least 1"),
        ({"length_penalty": -0.1}, "length_penalty is -0.1, but must be a finite number of at least 0"),
    ],
)
def test_options_of_translate_that_do_not_fit_are_refused(options, message):
    with refuses(ValueError, message):
        translator().translate(some_pairs()[0], **(ENDS | options))


# The classifier


@pytest.mark.parametrize("score", ["dot_product", "random + dense"])
def test_classifier_equals_the_slow_one(score):
    """The slow one knows no padding: it reads, and takes the mean of, the real tokens of one text."""
    model, tokens = classifier(score), some_tokens(3, SOURCE)
    logits, maps = model(tokens, LENGTHS), model.attention_maps(tokens, LENGTHS)
    assert logits.shape == (3, LABEL) and len(maps) == LAYER
    for n, real in enumerate(LENGTHS):
        expected, slow_maps = reference.classifier(model, tokens[n, :real].tolist())
        exactly(logits[n], expected)
        for weights, slow in zip(maps, slow_maps, strict=True):
            exactly(weights[n, :, :real, :real], slow)
            assert (weights[n, :, :, real:] == 0).all()


@pytest.mark.parametrize("score", SCORES)
def test_a_classifier_reads_all_real_tokens_and_no_padding(score):
    model, tokens, lengths = classifier(score), some_tokens(3, MAX_LENGTH), [MAX_LENGTH, 4, 1]
    found = embedded(model)
    logits = model(tokens, lengths)
    (gradient,) = torch.autograd.grad(logits.square().sum(), found)
    for n, real in enumerate(lengths):
        assert gradient[n].abs().sum(-1).gt(0).tolist() == [True] * real + [False] * (MAX_LENGTH - real)
        exactly(model(tokens[n : n + 1, :real]), logits[n : n + 1])
    other = tokens.clone()
    for n, real in enumerate(lengths):
        other[n, real:] = (other[n, real:] + 3) % VOCAB
    assert torch.equal(model(other, lengths), logits)
    assert (model.attention_maps(tokens)[0] > 0).all(), "a classifier hides what comes later"


@pytest.mark.parametrize("score, compares", [("dot_product", True), ("random", False), ("dense", False)])
def test_who_compares_the_two_sentences_of_a_pair(score, compares):
    """What the separator reads in one layer, for two first and two second sentences. If the map does not compare, each
    sentence adds its own part: f(a, c) - f(b, c) - f(a, d) + f(b, d) is 0."""
    model = classifier(score)
    first, second, separator = torch.tensor([[4, 5, 6], [7, 8, 9]]), torch.tensor([[5, 10, 6], [4, 4, 8]]), 3
    pairs = [torch.cat([a, torch.tensor([separator]), c]) for a in first for c in second]
    read = []
    model.blocks[0].attention.register_forward_hook(lambda module, inputs, output: read.append(output[0][:, 3]))
    model(torch.stack(pairs))
    ac, ad, bc, bd = read[0]
    assert (ac - bd).abs().max() > 0.01
    mixed = (ac - bc - ad + bd).abs().max()
    assert mixed > 1e-3 if compares else mixed < 1e-12


def test_what_does_not_fit_the_classifier_is_refused():
    model, tokens = classifier(), some_tokens(3, SOURCE)
    with refuses(ValueError, "label is 0, but must be a whole number of at least 1"):
        Classifier(VOCAB, 0, D_MODEL, HEAD, LAYER, MAX_LENGTH)
    with refuses(ValueError, "lengths are [7, 0, 3]", "at least one real token"):
        model(tokens, torch.tensor([7, 0, 3]))
    with refuses(ValueError, "lengths are (2,), but there are 3 texts"):
        model.attention_maps(tokens, [1, 2])
    with refuses(TypeError, "tokens must be int64, not torch.float32"):
        model(tokens.float())
    with refuses(ValueError, 'tokens must be "batch length", but are (7,)'):
        model(tokens[0])
    with refuses(ValueError, "axis length of tokens is 9, not 1 to max_length = 8"):
        model(torch.zeros(3, 9).long())


# All three


def all_three(score, dtype=torch.float32, **options):
    """(name, model, its inputs) of each model, with padding where it has any."""
    source, target = some_pairs()
    yield "language model", make(score, **options).to(dtype), (source,)
    yield "encoder-decoder", translator(score, dtype, **options), (source, target, torch.tensor(LENGTHS))
    yield "classifier", classifier(score, dtype, **options), (source, torch.tensor(LENGTHS))


@pytest.mark.parametrize("score", SCORES)
def test_lower_precision_gives_the_same_within_its_rounding(score):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.15)):
        for name, model, inputs in all_three(score, dtype):
            logits = model(*inputs)
            assert logits.dtype == dtype, name
            exact = model.double()(*inputs)  # the same weights, rounded already
            spread = exact.std()
            assert ((logits.double() - exact) / spread).abs().max() < tolerance, name


def test_all_three_compile_without_a_break_also_with_lengths():
    sizes = (D_MODEL, HEAD, 1, MAX_LENGTH, "random + dot_product")
    source, target = some_pairs()
    for model, inputs in (
        (EncoderDecoder(VOCAB, *sizes), (source, target, torch.tensor(LENGTHS))),
        (Classifier(VOCAB, LABEL, *sizes), (source, torch.tensor(LENGTHS))),
    ):  # the language model compiles above
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert torch.allclose(compiled(*inputs), model(*inputs), atol=1e-5)


def test_a_translator_exports_for_changing_batch_and_lengths():
    def inputs(lengths):
        source = torch.randint(VOCAB, (len(lengths), max(lengths)))
        return source, source[:, 1:], torch.tensor(lengths)

    model = EncoderDecoder(VOCAB, D_MODEL, HEAD, 1, MAX_LENGTH, "dense").eval()
    sizes = {name: {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO} for name in ("source", "target")}
    sizes["source_lengths"] = {0: torch.export.Dim.AUTO}
    exported = torch.export.export(model, inputs([5, 3]), dynamic_shapes=sizes).module()
    for given in (inputs([6, 2, 4]), inputs([2])):
        torch.testing.assert_close(exported(*given), model(*given))


def test_an_empty_batch_needs_no_lengths_in_all_three():
    none = torch.zeros(0, 4, dtype=torch.int64)
    for name, model, _ in all_three("random + dot_product"):
        inputs = {"encoder-decoder": (none, none, []), "classifier": (none, [])}.get(name, (none,))
        assert len(model(*inputs)) == 0, name


def test_dropout_acts_in_all_three_while_training_only():
    for name, model, inputs in all_three("random + dot_product", dropout=0.3):
        assert torch.equal(model(*inputs), model(*inputs)), name
        model.train()
        assert not torch.equal(model(*inputs), model(*inputs)), name


def test_each_kind_of_dropout_is_in_all_three_and_nothing_is_left_changed():
    """What is embedded, what each part of a block adds, and the maps."""
    for name, model, inputs in all_three("random", dropout=0.3):
        before, calls = {name: tensor.clone() for name, tensor in model.state_dict().items()}, Counter()
        for part_name, part in model.named_modules():
            if isinstance(part, Attention):
                assert part.dropout == 0.3, part_name
            elif isinstance(part, nn.Dropout):
                assert part.p == 0.3, part_name
                part.register_forward_hook(lambda *_, calls=calls, part_name=part_name: calls.update([part_name]))
        model(*inputs)
        assert calls.pop("dropout") == (2 if name == "encoder-decoder" else 1), name
        assert calls and all(number == 2 + part.startswith("decoder") for part, number in calls.items()), name
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), name


def test_all_three_under_autocast():
    for name, model, inputs in all_three("random + dot_product"):
        exact = model(*inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(*inputs)
        assert ((logits.float() - exact) / exact.std()).abs().max() < 0.15, name


def test_a_block_is_not_causal_unless_told():
    torch.manual_seed(0)
    x = torch.randn(2, 6, D_MODEL)
    y, weights = Block(D_MODEL, HEAD, MAX_LENGTH, "dense")(x)
    assert y.shape == x.shape and (weights > 0).all()
    assert (Block(D_MODEL, HEAD, MAX_LENGTH, "dense", causal=True)(x)[1].triu(1) == 0).all()
