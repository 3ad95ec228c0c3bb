"""One path: what hangs on S acts in each of its forms, input is checked once, and a new S is one class."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from synth_lib import attention, fast, scores
from synth_lib.attention import Attention, Cache, CrossAttention
from synth_lib.lab import probes, suites, tasks
from synth_lib.lab.bench import forms
from synth_lib.lab.train import parameter_groups, table_parameters
from synth_lib.models import LanguageModel
from synth_lib.scores import SCORES, Dense, DotProduct, Mixture, Random, Score, make_score
from tests.helpers.properties import SINGLE, refuses

BATCH, HEAD, D_MODEL, LENGTH = 2, 2, 10, 260  # long enough for each kernel that a CPU has
SCORES_HERE = [*SINGLE, "random + dot_product", "dense + dot_product", "random + factorized_random"]


def zeros(module, inputs, scores):
    """The ablation of chapter 06."""
    return torch.zeros_like(scores)


def double(module, inputs):
    return (2 * inputs[0],)


class Scaled(nn.Module):
    def forward(self, parameter):
        return parameter * torch.linspace(0.5, 2, parameter.numel(), dtype=parameter.dtype).view_as(parameter)


def hang(module, what):
    """Hang something on a score or a part of it; False if it has no parameter to hang it on."""
    names = [name for name, parameter in module.named_parameters(recurse=False)]
    if what == "hook":
        module.register_forward_hook(zeros)
    elif what == "pre-hook":
        module.register_forward_pre_hook(double)
    elif not names:
        return False
    elif what == "pruned":
        prune.random_unstructured(module, names[0], amount=0.5)
    else:
        parametrize.register_parametrization(module, names[0], Scaled())
    return True


def parts(score):
    """The names of all that something can hang on: S itself, each score of a mixture, each linear layer."""
    names = [name for name, _ in make_score(score, D_MODEL, HEAD, 8).named_modules()]
    return [name for name in names if not name.endswith("parts")]


def layer_of(score, kind=Attention, **options):
    torch.manual_seed(0)
    layer = kind(D_MODEL, HEAD, LENGTH, score, **options).double()
    with torch.no_grad():
        for parameter in layer.score.parameters():
            parameter.copy_(3 * parameter + torch.randn_like(parameter))
    return layer


def with_gradients(y, layer, x):
    upstream = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return y, torch.autograd.grad(y, [x, *parameters], upstream, allow_unused=True)


def in_steps(layer, x):
    cache = Cache()
    return torch.cat([layer(part, cache=cache, need_weights=False)[0] for part in x.split([200, 1, 59], dim=1)], dim=1)


@pytest.mark.parametrize("what", ["hook", "pre-hook", "pruned", "parametrized"])
@pytest.mark.parametrize("score", SCORES_HERE)
def test_what_hangs_on_s_acts_in_every_path(score, what):
    """Outputs and gradients are those of the plain map, and not those of S with nothing on it."""
    for name in parts(score):
        layer = layer_of(score, causal=True)
        x = torch.randn(BATCH, LENGTH, D_MODEL).double().requires_grad_()
        bare, part = layer(x)[0], layer.score.get_submodule(name)
        if not hang(part, what):
            continue
        plain = with_gradients(layer(x)[0], layer, x)
        if what != "pre-hook" or getattr(part, "reads_tokens", True):  # R does not see what a pre-hook does to x
            assert (plain[0] - bare).abs().max() > 1e-3, f"{what} on {name or 'S'}"
        for y in (layer(x, need_weights=False)[0], in_steps(layer, x)):
            torch.testing.assert_close(with_gradients(y, layer, x), plain)


@pytest.mark.parametrize("what", ["hook", "pre-hook", "pruned", "parametrized"])
@pytest.mark.parametrize("score", SCORES_HERE)
def test_what_hangs_on_s_acts_across_sequences(score, what):
    for name in parts(score):
        layer = layer_of(score, CrossAttention)
        x, memory = (torch.randn(BATCH, length, D_MODEL).double().requires_grad_() for length in (256, 250))
        if not hang(layer.score.get_submodule(name), what):
            continue
        cache = Cache()
        plain = with_gradients(layer(x, memory, start=4)[0], layer, x)
        for options in ({"need_weights": False}, {"cache": cache}):
            y = layer(x, memory, start=4, **options)[0]
            torch.testing.assert_close(with_gradients(y, layer, x), plain)
        for need_weights in (True, False):  # now read from the cache
            y, _ = layer(x, memory, start=4, cache=cache, need_weights=need_weights)
            torch.testing.assert_close(y, plain[0])


@pytest.mark.parametrize("length", [64, 256])
@pytest.mark.parametrize("part", [0, 1])
def test_the_ablation_of_chapter_06_in_a_language_model(length, part):
    """The same share at each length, with and without cache: the scores of one part are 0 in every layer."""
    torch.manual_seed(0)
    model = LanguageModel(11, 16, 2, 2, 256, "dense + dot_product").double().eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)
    tokens = torch.randint(11, (2, length))
    whole = model(tokens)
    for block in model.blocks:
        block.attention.score.parts[part].register_forward_hook(zeros)
    ablated = model(tokens)
    assert (ablated - whole).abs().max() > 1
    caches = model.new_caches()
    steps = torch.cat([model(part, caches=caches) for part in tokens.split([length // 2, 1, length // 2 - 1], 1)], 1)
    torch.testing.assert_close(steps, ablated)
    for block in model.blocks:  # by hand: the other part alone, at its alpha
        score = block.attention.score
        score.parts[part]._forward_hooks.clear()
        score.parts[part].rows = lambda x, keys, length, start: x.new_zeros(1, 2, x.shape[1], length)
    torch.testing.assert_close(model(tokens), ablated)


def test_a_hook_writes_the_same_text_with_and_without_a_cache():
    torch.manual_seed(0)
    model = LanguageModel(11, 16, 2, 2, 32, "random + dot_product").double()
    for parameter in model.parameters():
        parameter.data.mul_(4)
    start = torch.randint(11, (3, 2))
    bare = model.generate(start, 20, temperature=0)
    for block in model.blocks:
        block.attention.score.parts[1].register_forward_hook(zeros)
    texts = [model.generate(start, 20, temperature=0, cache=cache) for cache in (True, False)]
    assert torch.equal(*texts) and not torch.equal(texts[0], bare)


# --- Input is checked once ---


class Calls:
    """Counts the calls of a function that is put in its place."""

    def __init__(self, function):
        self.function, self.number = function, 0

    def __call__(self, *arguments, **options):
        self.number += 1
        return self.function(*arguments, **options)


@pytest.mark.parametrize("score", ["dot_product", "random", "dense + dot_product", "random + dense + random"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_x_memory_and_mask_are_checked_once(score, need_weights, cached, monkeypatch):
    masks_checked = Calls(attention.check_mask)
    dtypes_checked, inputs_checked = Calls(scores.check_dtype), Calls(Score.check)
    monkeypatch.setattr(attention, "check_mask", masks_checked)
    monkeypatch.setattr(scores, "check_dtype", dtypes_checked)
    monkeypatch.setattr(Score, "check", lambda *arguments, **named: inputs_checked(*arguments, **named))
    x, mask = torch.randn(BATCH, LENGTH, D_MODEL), torch.ones(BATCH, LENGTH).bool()

    def call(layer, *inputs):
        layer(*inputs, mask, cache=Cache() if cached else None, need_weights=need_weights)

    call(Attention(D_MODEL, HEAD, LENGTH, score, causal=True), x)
    assert (inputs_checked.number, dtypes_checked.number, masks_checked.number) == (1, 1, 1)
    call(CrossAttention(D_MODEL, HEAD, LENGTH, score), x, x)
    assert (inputs_checked.number, dtypes_checked.number, masks_checked.number) == (3, 3, 2)  # x and memory, the mask


# --- A cache after an error ---


def test_a_cache_stays_as_it_was_after_an_error_anywhere():
    layer = layer_of("dot_product + dense", causal=True)
    x, cache = torch.randn(BATCH, 9, D_MODEL).double(), Cache()
    layer(x[:, :5], cache=cache)
    kept = [entry.clone() for entry in cache.entries]
    for module in (layer.score.parts[0].key, layer.score.parts[1], layer.score, layer.value):
        hook = module.register_forward_hook(lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            layer(x[:, 5:], cache=cache)
        hook.remove()
        assert cache.length == 5 and all(map(torch.equal, cache.entries, kept))
    torch.testing.assert_close(layer(x[:, 5:], cache=cache)[0], layer(x)[0][:, 5:])


@pytest.mark.parametrize("part", ["blocks.0.attention.output", "blocks.0.mlp", "blocks.1.attention.score", "norm"])
def test_the_caches_of_a_model_stay_as_they_were_after_an_error_anywhere(part):
    """A step that was cut off anywhere can be made again."""
    torch.manual_seed(0)
    model = LanguageModel(11, 16, 2, 2, 32, "random + dot_product").double()
    caches, tokens = model.new_caches(), torch.randint(11, (1, 8))
    model(tokens[:, :4], caches=caches)
    hook = model.get_submodule(part).register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(tokens[:, 4:], caches=caches)
    hook.remove()
    assert [cache.length for cache in caches] == [4, 4]
    torch.testing.assert_close(model(tokens[:, 4:], caches=caches), model(tokens)[:, 4:])


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_the_cache_of_a_layer_stays_as_it_was_when_its_output_fails():
    layer, x, cache = layer_of("dot_product", causal=True), torch.randn(1, 5, D_MODEL).double(), Cache()
    layer(x[:, :3], cache=cache)
    hook = layer.output.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        layer(x[:, 3:], cache=cache)
    hook.remove()
    torch.testing.assert_close(layer(x[:, 3:], cache=cache)[0], layer(x)[0][:, 3:])


def test_caches_that_do_not_belong_together_are_refused():
    model, tokens = LanguageModel(11, 16, 2, 2, 32, "random + dot_product"), torch.randint(11, (1, 4))
    for caches in ([], [Cache()], [Cache()] * 2):
        with refuses(ValueError, "one cache for each of 2 layers", "new_caches()"):
            model(tokens, caches=caches)
    caches = model.new_caches()
    model(tokens, caches=caches)
    with refuses(ValueError, "caches hold 4 and 0 tokens", "new_caches()"):
        model(tokens, caches=[caches[0], Cache()])


# --- What is computed otherwise ---


class Sharper:
    """Rows from beside, as a mixin brings them."""

    def rows(self, x, keys, length, start=0):
        return 5 * super().rows(x, keys, length, start)


class SharperDense(Sharper, Dense):
    pass


class SharperMixture(Mixture):
    def forward(self, x, *, memory=None, length=None, start=0, cache=None):
        return 7 * super().forward(x, memory=memory, length=length, start=start, cache=cache)


class BelowSharperDense(SharperDense):
    folds_into = {"parameter keys"}  # without a fold of its own it is still that of Dense


def sizes(*kinds):
    return [kind(D_MODEL, HEAD, LENGTH) for kind in kinds]


@pytest.mark.parametrize(
    "score",
    [
        lambda: SharperDense(D_MODEL, HEAD, LENGTH),
        lambda: BelowSharperDense(D_MODEL, HEAD, LENGTH),
        lambda: SharperMixture(sizes(DotProduct, Dense)),
        lambda: Mixture(sizes(DotProduct, SharperDense)),
        lambda: replaced(Mixture(sizes(DotProduct, Dense)), SharperDense),
        lambda: replaced(Mixture(sizes(Random, Random)), Dense),
    ],
)
def test_rows_of_somebody_else_are_computed_in_every_path(score):
    torch.manual_seed(0)
    layer = Attention(D_MODEL, HEAD, LENGTH, score(), causal=True).double()
    x = torch.randn(BATCH, LENGTH, D_MODEL).double()
    torch.testing.assert_close(layer(x, need_weights=False)[0], layer(x)[0])
    torch.testing.assert_close(in_steps(layer, x), layer(x)[0])


def replaced(mixture, kind):
    mixture.parts[1] = kind(D_MODEL, HEAD, LENGTH)
    return mixture


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_backward_hook_on_s_is_heard_without_the_weights_too(register):
    layer, heard = layer_of("dense + dot_product", causal=True), []
    getattr(layer.score.parts[0], register)(lambda module, *gradients: heard.append(module))
    x = torch.randn(BATCH, LENGTH, D_MODEL).double().requires_grad_()
    layer(x, need_weights=False)[0].sum().backward()
    assert heard == [layer.score.parts[0]]


def test_a_global_hook_acts_in_every_path():
    layer, x = layer_of("dense", causal=True), torch.randn(BATCH, LENGTH, D_MODEL).double()
    bare = layer(x)[0]
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: 0 * output if isinstance(module, Score) else None
    )
    try:
        plain, fused = layer(x)[0], layer(x, need_weights=False)[0]
    finally:
        hook.remove()
    assert (plain - bare).abs().max() > 1e-3
    torch.testing.assert_close(fused, plain)


def test_a_part_of_a_mixture_is_held_to_the_shape_of_scores():
    """Alone the layer would refuse it; in a sum it would broadcast."""
    for wrong in (lambda x, length: x.new_zeros(1, 1, x.shape[1], length), lambda x, length: x.new_zeros(length)):
        layer = layer_of("dense + dot_product", causal=True)
        layer.score.parts[0].rows = lambda x, keys, length, start, wrong=wrong: wrong(x, length)
        with refuses(ValueError, "Dense gave scores", "(batch or 1, head, query, key)"):
            layer(torch.randn(BATCH, 6, D_MODEL).double())
    layer.score.parts[0].rows = lambda *arguments: None
    with refuses(TypeError, "Dense gave NoneType", "floating-point tensor"):
        layer(torch.randn(BATCH, 6, D_MODEL).double())


@pytest.mark.parametrize("kind", [LanguageModel, probes.Stack])
def test_a_pruned_table_of_positions_is_read_anew_each_time(kind):
    sizes = (11, 16, 2, 1, 8) if kind is LanguageModel else ([11], 11, 16, 1, 8)
    model, tokens = kind(*sizes, "random"), torch.randint(11, (2, 8))
    prune.random_unstructured(model.position, "weight", amount=0.3)
    for _ in range(2):
        model(tokens).sum().backward()
        with torch.no_grad():
            model.position.weight_orig.add_(1)
    torch.testing.assert_close(model.position(torch.arange(8)), model.position.weight_orig * model.position.weight_mask)


def test_a_causal_model_compiles_for_another_length_too():
    torch._dynamo.reset()
    model = LanguageModel(11, 16, 2, 2, 300, ["dot_product", "dense"])
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for length in (8, 9, 280):
        tokens = torch.randint(11, (2, length))
        torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-4, atol=1e-4)


def test_options_that_would_not_count_are_refused():
    with refuses(ValueError, "score holds ready modules", "rank"):
        LanguageModel(11, 12, 3, 1, 8, [Dense(12, 3, 8)], rank=4)
    with refuses(ValueError, "causal is no option of CrossAttention"):
        CrossAttention(12, 3, 8, causal=True)


# --- A new S ---


class Toeplitz(Score):
    """One number for each offset between key and query: scores[i, j] = r[j - i]."""

    reads_tokens = False
    tables = ("r",)

    def __init__(self, d_model, head, max_length):
        super().__init__(d_model, head, max_length)
        self.r = nn.Parameter(torch.randn(head, 2 * max_length - 1) / max_length**0.5)

    def rows(self, x, keys, length, start=0):
        query = torch.arange(start, start + x.shape[1], device=x.device)
        key = torch.arange(length, device=x.device)
        return self.r[None, :, key - query[:, None] + self.max_length - 1]


@pytest.fixture
def toeplitz(monkeypatch):
    monkeypatch.setitem(SCORES, "toeplitz", Toeplitz)


def test_a_new_s_is_one_class(toeplitz):
    """It gets its kernel, runs in a cache, and the values are those of loops."""
    layer = layer_of("toeplitz", causal=True)
    x = torch.randn(BATCH, LENGTH, D_MODEL).double().requires_grad_()
    y, weights = layer(x)
    r = layer.score.r.detach()
    for i, j in ((0, 0), (3, 1), (200, 7)):
        row = torch.stack([r[1, k - i + LENGTH - 1] for k in range(i + 1)])
        torch.testing.assert_close(weights[0, 1, i, j], row.softmax(0)[j])
    assert fast.choose(layer.score, x, LENGTH, None, True) == "one map"
    plain = with_gradients(y, layer, x)
    for y in (layer(x, need_weights=False)[0], in_steps(layer, x)):
        torch.testing.assert_close(with_gradients(y, layer, x), plain)
    mixed = layer_of("toeplitz + dense", causal=True)
    assert fast.choose(mixed.score, x, LENGTH, None, True) == "plain"  # it says nothing of a fold
    torch.testing.assert_close(in_steps(mixed, x), mixed(x)[0])


def test_a_new_s_runs_in_a_suite_in_probes_and_in_the_benchmark(toeplitz, monkeypatch):
    """And its table has the tables' learning rate there."""
    monkeypatch.setitem(suites.VARIANTS, "Toeplitz", "toeplitz")
    tiny = suites.suite("tiny")
    run = {"question": "order", "task": "language model", "variant": "Toeplitz", "seed": 0, "model": {}, "settings": {}}
    result = tasks.run_experiment(run, tiny.tasks["language model"], torch.device("cpu"))
    assert result["status"] == "finished" and result["parameters_of_S"] == 2 * 4 * (2 * 32 - 1)
    groups = parameter_groups(LanguageModel(11, 16, 2, 1, 8, "toeplitz"), 1e-3, 0.1, 10.0)
    (tables,) = (group for group in groups if group["name"] == "R")
    assert tables["lr"] == pytest.approx(1e-2) and [table.shape for table in tables["params"]] == [(2, 15)]
    banded = torch.eye(6).roll(1, 1).triu().bool() | torch.eye(6).bool()
    assert probes.distance_to(banded, "toeplitz") < 0.1 < probes.distance_to(torch.eye(6).flip(0).bool(), "toeplitz")
    steps = forms.layer_steps(2, 8, 256, 2, True, torch.device("cpu"), torch.float64)
    for way in ("toeplitz", "toeplitz, plain"):
        built = (steps["first"] | steps["others"])[way]
        assert all(gradient.isfinite().all() for gradient in built()())


def test_tables_are_found_by_what_a_score_says(toeplitz):
    model = LanguageModel(11, 16, 2, 4, 8, ["toeplitz", "random + dense", "factorized_random", "fixed_random"])
    blocks = [f"blocks.{layer}.attention.score" for layer in range(4)]
    wanted = {f"{blocks[0]}.r", f"{blocks[1]}.parts.0.R", f"{blocks[2]}.R1", f"{blocks[2]}.R2"}
    assert table_parameters(model).keys() == wanted
    prune.random_unstructured(model.blocks[0].attention.score, "r", amount=0.5)
    parametrize.register_parametrization(model.blocks[1].attention.score.parts[0], "R", Scaled())
    nn.utils.parametrizations.weight_norm(model.blocks[2].attention.score, "R1")
    renamed = {f"{blocks[0]}.r_orig", f"{blocks[1]}.parts.0.parametrizations.R.original", f"{blocks[2]}.R2"}
    renamed |= {f"{blocks[2]}.parametrizations.R1.original{number}" for number in (0, 1)}
    assert table_parameters(model).keys() == renamed
