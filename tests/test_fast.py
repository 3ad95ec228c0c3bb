"""Every kernel of each S equals the plain one: outputs, gradients, masks, lengths, dtypes.

On a CPU some kernels are not chosen, since they are not faster there, and FlexAttention does not train. All are tested
here nevertheless: the layer is told its kernel, and in the place of FlexAttention stands what it computes. The same
comparison on a GPU, with the kernels: python -m synth_lib.lab bench check --device cuda
"""

import warnings
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from synth_lib import fast, masks
from synth_lib.attention import Attention, CrossAttention
from synth_lib.models import Classifier, EncoderDecoder, LanguageModel
from synth_lib.scores import Dense, make_score
from tests.helpers.properties import ALL, SINGLE, refuses, with_large_scores

BATCH, HEAD, D_HEAD, RANK = 3, 2, 5, 3
D_MODEL = HEAD * D_HEAD
SCORES = [*ALL, "dense + dot_product", "random + dense", "dense + factorized_random", "random + factorized_random"]
MASKS = ["none", "right", "left", "shared", "one per head"]


@pytest.fixture(autouse=True)
def flex_without_its_kernel(monkeypatch):
    monkeypatch.setattr(fast, "compiled_flex", lambda: what_flex_computes)


def what_flex_computes(query, key, tables, products, value, mask, block_mask):
    """The same from the same arguments, without the kernel; a test below compares it with FlexAttention."""
    scores = query @ key.mT + sum(tables)
    for A, B in products:
        scores = scores + (B[..., :, None] * A[..., None, :]).flatten(-2)[..., : key.shape[2]]
    allowed = torch.ones(1, 1, query.shape[2], key.shape[2]).bool() if mask is None else mask
    if block_mask is not None:
        allowed = allowed & masks.causal(key.shape[2])
    return masks.masked_softmax(scores, allowed).to(value.dtype) @ value


def build(score, max_length=8, *, head=HEAD, dtype=torch.float64, **options):
    """A layer with weights that are new in every test run."""
    if "factorized_random" in score:
        options["rank"] = RANK
    return with_large_scores(Attention(D_MODEL, head, max_length, score, **options).to(dtype))


def draw_mask(kind, length, head=HEAD):
    """Some of these rows may look nowhere: the third sample is empty, and so are the first places of the second."""
    if kind == "none":
        return None
    if kind == "shared":
        return torch.rand(1, 1, length, length) > 0.5
    if kind == "one per head":
        return torch.rand(1, head, 1, length) > 0.5
    return masks.padding([length, length // 2, 0], length, kind)


def kernels(score, mask=None):
    """Every kernel that this S has with this mask, the plain one left out."""
    parts = set(score.split(" + "))
    names = []
    if parts <= {"random", "fixed_random", "factorized_random"} and (mask is None or len(mask) == 1):
        names.append("one map")
    if parts <= {"dot_product", "dense", "factorized_random"}:
        names.append("sdpa")
    return [*names, "flex"] if make_score(score, D_MODEL, HEAD, 8).folds_into else names


def by_kernel(layer, x, mask, kernel):
    """y of the layer by this kernel."""
    with warnings.catch_warnings(), mock.patch.object(fast, "choose", lambda *arguments: kernel):
        warnings.simplefilter("error")  # no plain kernel in its place
        return layer(x, mask, need_weights=False)[0]


def assert_equal_with_gradients(ours, theirs, inputs, **tolerance):
    upstream = torch.randn_like(theirs)
    torch.testing.assert_close(ours, theirs, **tolerance)
    ours, theirs = (torch.autograd.grad(y, inputs, upstream) for y in (ours, theirs))
    torch.testing.assert_close(ours, theirs, **tolerance)


def trained(layer):
    return [parameter for parameter in layer.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("score", SCORES)
def test_values_and_gradients_equal_the_plain_form(score, kind, causal):
    for length in (1, 5, 8):
        layer = build(score, causal=causal, bias=length != 5)
        x, mask = torch.randn(BATCH, length, D_MODEL).double().requires_grad_(), draw_mask(kind, length)
        for kernel in kernels(score, mask):
            fast_y, plain_y = by_kernel(layer, x, mask, kernel), layer(x, mask)[0]
            # FlexAttention's parts are single precision: gradients of bfloat16 numbers add up there.
            tolerance = {"rtol": 1e-4, "atol": 1e-5} if kernel == "flex" else {}
            assert_equal_with_gradients(fast_y, plain_y, [x, *trained(layer)], **tolerance)


@pytest.mark.parametrize("score", ["random", "fixed_random", "factorized_random", "random + factorized_random"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [128, 129, 300, 1100])
def test_one_map_in_blocks(score, length, causal):
    """Blocks of queries that leave out the upper half; what a form forgets to write holds NaN."""
    layer = build(score, length, causal=causal)
    x = torch.randn(2, length, D_MODEL).double().requires_grad_()
    plain = layer(x)[0]
    with poisoned():
        assert_equal_with_gradients(by_kernel(layer, x, None, "one map"), plain, [x, *trained(layer)])


class poisoned:
    """Within it torch fills with NaN what it allocates without a value."""

    def __enter__(self):
        self.before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        assert torch.utils.deterministic.fill_uninitialized_memory and torch.empty(3).isnan().all()

    def __exit__(self, *error):
        torch.use_deterministic_algorithms(self.before)


class Products(TorchDispatchMode):
    """Counts the multiply-adds of matrix products, and the numbers of the largest tensor that is made."""

    multiply_adds = largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        if isinstance(made, torch.Tensor) and not made._is_view():
            self.largest = max(self.largest, made.numel())
        if "bmm" in str(function):
            self.multiply_adds += made.numel() * arguments[-1].shape[1]
        return made


def test_the_causal_product_of_one_map_leaves_out_the_upper_half():
    length = 1024
    R, value = torch.randn(HEAD, length, length), torch.randn(BATCH, HEAD, length, D_HEAD)
    counts = []
    for causal in (False, True):
        with Products() as products:
            fast.one_map(R, value, causal=causal)
        counts.append(products.multiply_adds)
    assert counts[0] == BATCH * HEAD * length**2 * D_HEAD
    assert counts[1] / counts[0] == (8 + 1) / (2 * 8)


@pytest.mark.parametrize("size", [1, 3, 5, 6])
def test_the_causal_product_in_blocks_of_any_size(size):
    """A GPU has other blocks than a CPU. What lies to the right of a block is never read: here it holds NaN."""
    features = torch.randn(HEAD, 4, 5).double().requires_grad_()
    weights = torch.rand(HEAD, 5, 5).double().requires_grad_()
    by_loops = torch.stack([features[:, :, : i + 1] @ weights[:, i, : i + 1, None] for i in range(5)], dim=-1)[:, :, 0]
    place = torch.arange(5)
    end_of_block = (place // size + 1) * size
    given = weights.tril().masked_fill(place >= end_of_block[:, None], float("nan"))
    with poisoned():
        ours = fast._CausalProduct.apply(features, given, size)
    assert_equal_with_gradients(ours, by_loops, [features, weights])


def test_blocks_cover_every_position_once_and_pay_on_each_device():
    for length in (1, 127, 128, 129, 1024, 1025, 4097):
        for device, shortest, whole in (("cpu", 128, 128), ("cuda", 512, 1024)):
            size = fast.block_size(length, device)
            parts = fast.blocks(length, size)
            assert [position for start, stop in parts for position in range(start, stop)] == list(range(length))
            assert size == length if length <= whole else size >= shortest and len(parts) <= 8


def test_the_map_of_random_does_not_grow_with_the_batch():
    """No tensor that one_map makes is as large as a map for every sample would be."""
    length, batch = 64, 50
    R, value = torch.randn(HEAD, length, length), torch.randn(batch, HEAD, length, 2)
    with Products() as products:
        fast.one_map(R, value, causal=True)
    assert products.largest <= max(R.numel(), value.numel()) < batch * R.numel()


@pytest.mark.parametrize("score", ["dot_product", "dense", "dense + dot_product", "factorized_random"])
def test_sdpa_makes_no_map(score):
    """Neither forward nor backward; without a word torch makes one where queries and values differ in features."""
    length = 256
    layer = build(score, length, dtype=torch.float32, causal=True)
    x = torch.randn(2, length, D_MODEL, requires_grad=True)
    one_head = length**2
    for kernel, map_is_made in (("plain", True), ("sdpa", False)):
        with Products() as products:
            y = by_kernel(layer, x, None, kernel)
            torch.autograd.grad(y, [x, *trained(layer)], torch.randn_like(y))
        assert (products.largest >= one_head) is map_is_made


@pytest.mark.parametrize("score", SCORES)
def test_the_parts_of_s_add_up_to_s(score):
    layer = build(score)
    x, value = torch.randn(BATCH, 6, D_MODEL).double(), torch.empty(BATCH, HEAD, 6, 16).double()
    folded = fold(layer.score, x)
    ours, theirs = fast.sum_of(folded, 6), layer.score(x)
    torch.testing.assert_close(ours.expand(BATCH, HEAD, 6, 6), theirs.expand(BATCH, HEAD, 6, 6))
    if folded.queries:  # at least as many features as the values have, or torch takes another kernel
        query, key = fast.query_and_key(folded, value)
        assert query.shape[-1] == key.shape[-1] >= 16 and query.shape[-1] % 8 == 0
    query, key, tables, products = fast.for_flex(folded, value)
    assert query.is_contiguous() and key.is_contiguous() and query.shape == key.shape
    assert query.shape[-1] % 8 == 0


def fold(score, x):
    return score.fold(x, None, x.shape[1], 0, None)


@pytest.mark.parametrize("score", ["factorized_dense", "random + dot_product", "random + dense"])
def test_flex_compiles_into_one_graph_with_its_gradients(score, monkeypatch):
    """What torch.compile makes of it before the kernel: captured tensors, their gradients, masks.

    FlexAttention itself trains on a GPU alone; what it is made of trains everywhere, once that check is off.
    """
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    torch._dynamo.reset()
    compiled = torch.compile(fast.flex, dynamic=False, fullgraph=True, backend="aot_eager")
    length, d_head = 6, 8  # torch 2.6 takes powers of two alone
    for causal, mask in ((False, None), (True, None), (True, masks.padding([6, 3, 0], 6, "left"))):
        layer = with_large_scores(Attention(HEAD * d_head, HEAD, 8, score).double())
        x = torch.randn(BATCH, length, HEAD * d_head, dtype=torch.float64, requires_grad=True)
        value = torch.randn(BATCH, HEAD, length, d_head, dtype=torch.float64, requires_grad=True)
        blocks = fast.causal_blocks(length, x.device) if causal else None
        ours, theirs = (
            function(*fast.for_flex(fold(layer.score, x), value), value, mask, blocks)
            for function in (compiled, what_flex_computes)
        )
        assert_equal_with_gradients(ours, theirs, [x, value, *trained(layer.score)])


def test_where_flex_fails_the_plain_kernel_takes_its_place_with_one_warning(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("joint_subgraph_buffer is None\nand a long trace")

    monkeypatch.setattr(fast, "compiled_flex", lambda: broken)
    layer, x = build("random + factorized_dense", causal=True), torch.randn(BATCH, 7, D_MODEL).double()
    monkeypatch.setattr(fast, "choose", lambda *arguments: "flex")
    with pytest.warns(UserWarning, match="FlexAttention does not run here.*joint_subgraph_buffer is None") as heard:
        y, _ = layer(x, need_weights=False)
    assert len(heard) == 1
    torch.testing.assert_close(y, layer(x)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what cannot be compiled is not tried again, which takes seconds
        torch.testing.assert_close(layer(x, need_weights=False)[0], y)


# The layer


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", ["none", "left"])
def test_need_weights_false_gives_the_same_y(score, kind):
    for length, causal in ((1, True), (7, False), (260, True)):
        layer = build(score, 260, causal=causal)
        x, mask = torch.randn(BATCH, length, D_MODEL).double().requires_grad_(), draw_mask(kind, length)
        y, weights = layer(x, mask, need_weights=False)
        assert weights is None
        assert_equal_with_gradients(y, layer(x, mask)[0], [x, *trained(layer)])


@pytest.mark.parametrize("score", SCORES)
def test_bfloat16_by_autocast(score):
    for length in (7, 260):
        layer = Attention(D_MODEL, HEAD, length, score, causal=True)
        x = torch.randn(BATCH, length, D_MODEL)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, _ = layer(x, need_weights=False)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), layer(x)[0], rtol=0, atol=0.03)
        y.float().square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in trained(layer))


def test_dropout_while_training_takes_the_plain_kernel():
    """It drops weights of the map, which the others do not make; in evaluation nothing is dropped."""
    layer, x = build("random", 260, causal=True, dropout=0.5), torch.randn(2, 260, D_MODEL).double()
    torch.manual_seed(3)
    y, _ = layer(x, need_weights=False)
    torch.manual_seed(3)
    torch.testing.assert_close(y, layer(x)[0], rtol=0, atol=0)
    layer.eval()
    torch.testing.assert_close(layer(x, need_weights=False)[0], layer(x)[0])


class Louder(Dense):
    """A score of somebody else: not what its base class computes."""

    def rows(self, *arguments, **options):
        return 2 * super().rows(*arguments, **options)


def test_a_score_of_somebody_else_takes_the_plain_kernel():
    layer = Attention(D_MODEL, HEAD, 200, Louder(D_MODEL, HEAD, 200), causal=True)
    x = torch.randn(2, 200, D_MODEL)
    assert fast.choose(layer.score, x, 200, None, True) == "plain"
    torch.testing.assert_close(layer(x, need_weights=False)[0], layer(x)[0])
    other = Attention(D_MODEL, HEAD, 200, "dense", causal=True)
    assert fast.choose(other.score, x, 200, None, True) == "sdpa"
    rows = other.score.rows
    other.score.rows = lambda *arguments, **options: 2 * rows(*arguments, **options)
    torch.testing.assert_close(other(x, need_weights=False)[0], other(x)[0])


class Scaled(torch.nn.Linear):
    """A linear layer of somebody else: it computes something else than weight and bias."""

    def forward(self, x):
        return 3 * super().forward(x)


@pytest.mark.parametrize("change", ["hook", "pruned", "subclass", "no bias", "wrapped"])
@pytest.mark.parametrize("score", ["dot_product", "random", "dense", "dense + dot_product"])
def test_what_stands_around_a_linear_layer_is_kept(score, change):
    """A kernel may take weight and bias for the layer only where nothing else is in it."""
    layer = build(score, 260, causal=True)
    part = layer.score.parts[0] if "+" in score else layer.score
    for owner, name in [(layer, "value"), *([(part, "hidden")] if "dense" in score else [])]:
        linear = getattr(owner, name)
        if change == "hook":
            linear.register_forward_hook(lambda module, inputs, output: 2 * output)
        elif change == "pruned":
            prune.random_unstructured(linear, "weight", amount=0.5)
        elif change == "subclass":
            linear.__class__ = Scaled
        elif change == "no bias":
            linear.bias = None
        else:
            setattr(owner, name, torch.nn.Sequential(linear))
    x = torch.randn(2, 260, D_MODEL).double().requires_grad_()
    for _ in range(2):  # pruning makes the weight anew in every call
        y, plain = layer(x, need_weights=False)[0], layer(x)[0]
        assert_equal_with_gradients(y, plain, [x, *trained(layer)])


@pytest.mark.parametrize("score", SCORES)
def test_an_empty_batch(score):
    for length, causal in ((5, False), (260, True)):
        layer = build(score, 260, causal=causal)
        y, _ = layer(torch.empty(0, length, D_MODEL).double(), need_weights=False)
        assert y.shape == (0, length, D_MODEL)


@pytest.mark.parametrize("score", ["dot_product", "random", "dense"])
def test_masks_of_few_axes(score):
    layer = build(score, 260, causal=True)
    x = torch.randn(2, 260, D_MODEL).double()
    for mask in (torch.tensor(True), torch.arange(260) < 200, torch.ones(260, 1).bool()[None].expand(2, -1, -1)):
        torch.testing.assert_close(layer(x, mask, need_weights=False)[0], layer(x, mask)[0])


@pytest.mark.parametrize("score", ["dot_product", "random", "dense"])
def test_wrong_inputs_are_refused_as_by_the_plain_kernel(score):
    layer = Attention(D_MODEL, HEAD, 300, score, causal=True)
    with refuses(ValueError, "axis length of x is 301", "max_length = 300"):
        layer(torch.randn(2, 301, D_MODEL), need_weights=False)
    with refuses(ValueError, "axis d_model of x is 9", f"d_model = {D_MODEL}"):
        layer(torch.randn(2, 300, 9), need_weights=False)
    with refuses(TypeError, "x is torch.float64", "the layer is torch.float32"):
        layer(torch.randn(2, 300, D_MODEL).double(), need_weights=False)
    with refuses(TypeError, "x must be a floating-point tensor", "not list"):
        layer([[1.0]], need_weights=False)
    with refuses(ValueError, "x must have the 3 axes (batch, length, d_model)"):
        layer(torch.randn(300, D_MODEL), need_weights=False)
    with refuses(ValueError, "axis key of mask is 150"):
        layer(torch.randn(2, 300, D_MODEL), torch.ones(2, 150).bool(), need_weights=False)


@pytest.mark.parametrize("score", ["random", "dense + dot_product", "random + dot_product"])
def test_compiles_into_one_graph(score):
    torch._dynamo.reset()
    layer = build(score, 260, causal=True)  # double: the gradient of a bias of the keys is 0, and rounding alone
    compiled = torch.compile(lambda x: layer(x, need_weights=False)[0], fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 260, D_MODEL, dtype=torch.float64, requires_grad=True)
    assert_equal_with_gradients(compiled(x), layer(x)[0], [x, *trained(layer)])


@pytest.mark.parametrize("score", [*SINGLE, "dense + factorized_random", "random + dot_product"])
def test_cross_attention(score):
    layer = CrossAttention(D_MODEL, HEAD, 9, score).double()
    x, memory = torch.randn(BATCH, 3, D_MODEL).double(), torch.randn(BATCH, 7, D_MODEL).double()
    for mask in (None, masks.padding([7, 2, 1], 7)):
        wanted, _ = layer(x, memory, mask, start=4)
        y, weights = layer(x, memory, mask, start=4, need_weights=False)
        assert weights is None
        torch.testing.assert_close(y, wanted)
        for kernel in kernels(score, mask):  # the rows that stand there, not the first ones
            with mock.patch.object(fast, "choose", lambda *arguments, kernel=kernel: kernel):
                y, _ = layer(x, memory, mask, start=4, need_weights=False)
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-6)


def test_models_compute_the_same_by_every_kernel():
    sizes = {"vocab": 13, "d_model": D_MODEL, "head": HEAD, "layer": 2, "max_length": 260}
    tokens, lengths = torch.randint(13, (2, 260)), [260, 60]
    for score in ("dot_product", "random", "dense"):
        runs = []
        for always_plain in (False, True):
            torch.manual_seed(0)
            classes = LanguageModel, partial(Classifier, label=3), EncoderDecoder
            models = [model(score=score, **sizes) for model in classes]
            for layer in torch.nn.ModuleList(models).modules():
                if isinstance(layer, Attention):
                    layer.always_plain = always_plain
            language_model, classifier, translator = models
            y = [language_model(tokens), classifier(tokens, lengths), translator(tokens, tokens[:, :50], lengths)]
            runs.append(y)
        torch.testing.assert_close(*runs, rtol=1e-4, atol=1e-4)


# Which kernel


def test_the_kernel_follows_from_what_s_looks_at():
    def chosen(name, mask=None, causal=True, length=300, device="cpu", batch=2, dtype=torch.float32):
        x = SimpleNamespace(shape=(batch, length, D_MODEL), device=torch.device(device), dtype=dtype)
        return fast.choose(make_score(name, D_MODEL, HEAD, 300), x, length, mask, causal)

    for name in ("random", "fixed_random + random", "random + factorized_random"):
        assert chosen(name) == chosen(name, device="cuda") == chosen(name, None, False, 3, "cuda") == "one map"
        assert chosen(name, masks.causal(300), device="cuda") == "one map"
        assert chosen(name, causal=False) == chosen(name, length=200) == "plain"
    # On a GPU a map made of factors stays smaller than the values, 60 samples times 5 features a head, or is not made.
    assert chosen("factorized_random") == chosen("factorized_random", device="cuda", batch=60) == "one map"
    assert chosen("factorized_random", device="cuda", batch=59) == "sdpa"
    padding = masks.padding([300, 3], 300)
    assert chosen("random", padding) == "plain" and chosen("random", padding, device="cuda") == "flex"
    assert chosen("factorized_random", padding, device="cuda") == "sdpa"
    for name in ("dense", "dense + dot_product", "factorized_random + dense"):
        assert chosen(name) == chosen(name, padding, device="cuda") == "sdpa"
        assert chosen(name, padding) == chosen(name, None, False, 256) == chosen(name, batch=1) == "sdpa"
        for options in ({"causal": False, "length": 255}, {"causal": False, "batch": 1}, {"length": 100}):
            assert chosen(name, **options) == "plain"
    assert chosen("dot_product", padding, False, 3) == "sdpa"
    for name in ("factorized_dense", "random + dot_product", "dense + random", "factorized_dense + random"):
        assert chosen(name) == "plain" and chosen(name, device="cuda") == "flex"
        assert chosen(name, device="cuda", dtype=torch.float64) == "plain"  # the kernel computes in single precision
        assert chosen(name, length=299, device="cuda") == "plain"  # it would be compiled for every length
