"""The language model against a slow one of plain loops, and what it must not do: look ahead."""

import math

import pytest
import torch
from torch.nn import functional as F

from synth_lib.models import LanguageModel
from synth_lib.scores import SCORES as registry
from synth_lib.scores import Dense

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
    with pytest.raises(ValueError, match="temperature is -1, but must be a finite number of at least 0"):
        model.generate(start[:1], 1, temperature=-1)


def test_generating_drops_nothing_and_leaves_the_mode():
    model = make(dropout=0.5).train()
    start = some_tokens(1, 4)
    first = model.generate(start, 6, temperature=0)
    assert model.training and torch.equal(first, model.generate(start, 6, temperature=0))
    assert first.requires_grad is False
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


@pytest.mark.parametrize("score", ["dot_product", "random + dense"])
def test_compiles_without_a_break(score):
    model = make(score)
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
