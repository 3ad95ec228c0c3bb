"""The public audit: it finds each fault by the questions that see it, and accuses nothing that is sound."""

import re
from itertools import product

import pytest
import torch
from torch import nn

from synth_lib import scores
from synth_lib.attention import Attention
from synth_lib.checks import Claim, audit
from synth_lib.checks.audit import QUESTIONS, READS
from synth_lib.checks.boxes import FAULTS, LETTERS, UNSEEN, ReadsTokens, ReshapedHeads, box, make
from tests.helpers import properties
from tests.helpers.properties import ALL, SINGLE, refuses
from tools.ledger import load

SIZES = {"d_model": 12, "head": 3, "max_length": 8}
OPTIONS = {"factorized_random": {"rank": 2}, "factorized_dense": {"a": 2, "b": 4}}
CONVICTED_BY = {
    None: (),
    "raw R": ("rows",),
    "R is outside": ("count", "saved"),
    "reshaped heads": ("moves", "reads"),
    "diagonal": ("learns",),
    "reads x": ("count", "moves", "reads"),
    "tiled twice": ("products",),
    "one row": ("rank",),
    "first sample": ("batch", "learns"),
    "scaled by all": ("batch", "reads"),
    "first shows last": ("batch", "learns"),
    "softmax over the queries": ("rows", "rank"),
    "sharpened": ("rows",),
    "cut behind": ("rows", "count", "saved"),
    "frozen R": ("count", "learns"),
    "also tokens": ("moves", "reads"),
    "diagonal values": ("learns",),
    "one row reads tokens": ("moves", "reads"),
    "values of the last": ("batch",),
    "neighbours": ("moves", "reads"),
    "one row in one head": ("rank",),
}


class OfTorch(nn.Module):
    """torch's own attention, which gives a map for each head if it is asked for it."""

    def __init__(self, **options):
        super().__init__()
        self.inner = nn.MultiheadAttention(12, 3, **{"batch_first": True, **options})

    def forward(self, x):
        return self.inner(x, x, x, average_attn_weights=False)


def library(score="dense", *, seed=0, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    return Attention(*SIZES.values(), score, **options).to(dtype)


# --- what it finds ---


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fault", CONVICTED_BY)
def test_a_fault_is_convicted_by_the_questions_that_see_it_and_by_no_other(fault, seed):
    names = [(FAULTS | UNSEEN)[fault][0]] if fault else SINGLE
    for score in names:
        claim = Claim(score, **SIZES, bias=False, **OPTIONS.get(score, {}))
        assert audit(make(fault, claim, seed), claim, seed=seed).fails == CONVICTED_BY[fault], score


def test_every_fault_is_in_a_box_of_the_chapter_and_no_question_but_the_first_is_idle():
    assert set(LETTERS.values()) == {None, *FAULTS} and set(CONVICTED_BY) == {None, *FAULTS, *UNSEEN}
    assert {question for letter in LETTERS for question in audit_of(box(letter)).fails} == set(QUESTIONS) - {"shapes"}


def audit_of(sealed):
    return audit(sealed.run, sealed.claim, sealed.numbers)


@pytest.mark.parametrize(("score", "bias", "causal"), [*product(ALL, (False, True), (False, True))])
def test_the_library_is_sound(score, bias, causal):
    claim = Claim(score, **SIZES, bias=bias, causal=causal)
    for seed, dtype in ((0, torch.float32), (1, torch.float64)):
        assert audit(library(score, seed=seed, dtype=dtype, bias=bias, causal=causal), claim).fails == ()


@pytest.mark.parametrize(("head", "max_length"), [(1, 1), (1, 2), (4, 1), (2, 9), (1, 40)])
def test_the_library_is_sound_at_the_edges(head, max_length):
    for score in SINGLE:
        torch.manual_seed(0)
        layer, claim = Attention(12, head, max_length, score), Claim(score, 12, head, max_length)
        assert audit(layer, claim).fails == (), score


def test_a_table_made_by_hand_is_no_fault():
    layer = library("random", start=torch.zeros(8, 8))
    assert audit(layer, Claim("random", **SIZES)).fails == ()


def test_torch_is_sound_and_a_wrong_call_of_it_is_not():
    torch.manual_seed(0)
    claim = Claim("dot_product", **SIZES)
    assert audit(OfTorch(), claim).fails == () and audit(OfTorch(), claim)["rank"] == "holds"
    assert audit(OfTorch(batch_first=False), claim).fails == ("shapes",)
    assert audit(OfTorch(bias=False), claim).fails == ("count", "saved")
    assert {"moves", "reads"} <= set(audit(OfTorch(), Claim("dense", **SIZES)).fails)


def test_a_causal_layer_that_reads_the_future_is_convicted():
    claim = Claim("dense", **SIZES, causal=True)
    found = audit(library("dense"), claim)
    assert found.fails == ("reads",)
    assert "y of token 0 depends on token 1, a later one" in repr(found)
    twin = box("C", causal=True)
    assert audit_of(twin).fails == ("reads",)


def test_one_wrong_number_among_many_is_found():
    layer = library("dot_product", bias=False)
    with torch.no_grad():
        layer.value.weight[3] = 0
        layer.output.weight[:, 3] = 0  # number 3 of the values is nowhere used
    found = audit(layer, Claim("dot_product", **SIZES, bias=False))
    assert found.fails == ("learns",) and "24 of the" in repr(found)


@pytest.mark.parametrize("fault", ["merge", "values"])
def test_heads_that_are_joined_wrongly_show_where_every_token_is_read(fault):
    layer = library("dot_product", bias=False)

    def wrong(x):
        weights = layer(x)[1]
        value = layer.value(x).unflatten(-1, (3, -1)).transpose(1, 2)
        mixed = weights @ (value.roll(1, dims=1) if fault == "values" else value)
        mixed = mixed.transpose(1, 2).flatten(2) if fault == "values" else mixed.reshape(x.shape)
        return layer.output(mixed), weights

    fails = audit(wrong, Claim("dot_product", **SIZES, bias=False), layer.state_dict(keep_vars=True)).fails
    assert fails == (("moves",) if fault == "merge" else ())  # the values of another head are not seen, as it is said


def test_shapes_that_do_not_fit_end_the_audit():
    layer = library("random")

    def turned(x):
        y, weights = layer(x)
        return y.transpose(0, 1), weights

    found = audit(turned, Claim("random", **SIZES))
    assert found.fails == ("shapes",) and {one.status for one in found.answers[1:]} == {"not asked"}
    assert "y is (8, 3, 12), but x is (3, 8, 12)" in repr(found)


@pytest.mark.parametrize("change", ["noise", "nan", "no heads"])
def test_what_is_no_function_of_x_or_no_map_fails_the_first_question(change):
    layer = library("random")

    def changed(x):
        y, weights = layer(x)
        if change == "noise":
            return y + torch.rand_like(y), weights
        return (y * float("nan"), weights) if change == "nan" else (y, weights[:, 0])

    assert audit(changed, Claim("random", **SIZES)).fails == ("shapes",)


# --- what it says, and what it leaves ---


def test_the_counts_of_a_claim_are_those_of_the_library():
    for score, bias in product(ALL, (False, True)):
        layer = library(score, bias=bias)
        saved = sum(tensor.numel() for tensor in layer.state_dict().values())
        assert Claim(score, **SIZES, bias=bias).counts() == (properties.trained(layer), saved), score


def test_a_claim_may_name_its_own_count():
    claim = Claim("random", **SIZES, parameters=7)
    assert audit(library("random"), claim).fails == ("count",)


def test_of_a_function_nothing_is_known_but_what_it_gives():
    layer, claim = library(), Claim("dense", **SIZES)
    found = audit(lambda x: layer(x), claim)
    assert [one.question for one in found.answers if one.status == "not asked"] == [
        "count", "saved", "learns", "products",
    ]  # fmt: skip
    assert audit(lambda x: layer(x), claim, layer.state_dict(keep_vars=True)).answers == audit(layer, claim).answers


def test_a_layer_is_left_as_it_was():
    layer = library(dropout=0.5)
    layer.value.eval()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    modes, state = [module.training for module in layer.modules()], torch.get_rng_state()
    with torch.no_grad():
        assert audit(layer, Claim("dense", **SIZES)).fails == ()
    assert [module.training for module in layer.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize("new", [False, True])
def test_buffers_and_random_numbers_are_left_as_they_were(new):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = library()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1 if new else self.seen.add_(1)
            torch.rand(3)
            return self.inner(x)

    layer, state = Counts(), torch.get_rng_state()
    buffer = layer.seen
    assert audit(layer, Claim("dense", **SIZES)).fails == ()
    assert layer.seen is buffer and buffer == 0 and torch.equal(torch.get_rng_state(), state)


def test_in_inference_mode_it_says_the_same():
    layer, claim = library(), Claim("dense", **SIZES)
    with torch.inference_mode():
        assert audit(layer, claim).fails == ()


def test_a_map_that_is_cut_off_is_said_to_be():
    layer = library()
    found = audit(lambda x: (layer(x)[0], layer(x)[1].detach()), Claim("dense", **SIZES))
    assert found.fails == ("reads",) and "it is cut off, as by detach" in repr(found)


def test_the_table_has_a_row_and_a_sentence_for_each_question():
    found = audit(library(), Claim("dense", **SIZES))
    head, *rows = repr(found).split("\n")
    assert head == "claim: dense, d_model 12, head 3, max_length 8"
    assert [row.split()[0] for row in rows] == list(QUESTIONS) == [one.question for one in found.answers]
    assert all(len(one.sentence.split()) >= 4 for one in found.answers)
    assert found["rows"] == "holds"
    with pytest.raises(KeyError, match="no question 'row'; there are shapes, rows"):
        found["row"]


@pytest.mark.parametrize(
    ("layer", "claim", "numbers", "error", "pieces"),
    [
        (3, Claim("dense", **SIZES), None, TypeError, ("layer is a int", "gives y and a map")),
        (Attention, Claim("dense", **SIZES), None, TypeError, ("layer is a type", "a module")),
        (library(), "dense", None, TypeError, ("claim is a str", "Claim('dense'")),
        (library(), None, None, TypeError, ("claim is None",)),
        (library(), Claim("dense", **SIZES), [1], TypeError, ("numbers is a list", "a dict of tensors")),
        (lambda x: x, Claim("dense", **SIZES), None, TypeError, ("layer gives a Tensor", "two tensors")),
        (lambda x: (x, None), Claim("dense", **SIZES), None, TypeError, ("layer gives a tuple", "y and its map")),
        (nn.MultiheadAttention(12, 3), Claim("dense", **SIZES), None, ValueError, ("(3, 8, 12)", "TypeError")),
        (lambda x: (x.numpy(), x.numpy()), Claim("dense", **SIZES), None, TypeError, ("of a ndarray, a ndarray",)),
        (lambda x: (x.long(), x), Claim("dense", **SIZES), None, TypeError, ("y in torch.int64", "floating-point")),
        (lambda x: (x, x > 0), Claim("dense", **SIZES), None, TypeError, ("the map in torch.bool",)),
        (library().bfloat16(), Claim("dense", **SIZES), None, ValueError, ("torch.bfloat16", "layer.float()")),
        (library(), Claim("dense", 13, 1, 8), None, ValueError, ("x (3, 8, 13)", "axis d_model of x is 13")),
    ],
)
def test_bad_input_gets_one_sentence(layer, claim, numbers, error, pieces):
    with refuses(error, *pieces):
        audit(layer, claim, numbers)


@pytest.mark.parametrize(
    ("make_it", "pieces"),
    [
        (lambda: Claim("densed", **SIZES), ('unknown score "densed"', "dot_product")),
        (lambda: Claim("dense", 12, 5, 8), ("head = 5 does not divide d_model = 12",)),
        (lambda: Claim("dense", 12, 3, 0), ("max_length is 0",)),
        (lambda: Claim("factorized_dense", 12, 3, 8, a=3), ("a = 3 does not divide max_length = 8",)),
        (lambda: Claim("dense", 12, 3, 8, rank=2), ("has an option rank",)),
        (lambda: Claim("dense", **SIZES, causal="no"), ("causal is 'no'", "True or False")),
        (lambda: Claim("dense", **SIZES, bias=None), ("bias is None", "True or False")),
        (lambda: Claim("dense", **SIZES, parameters=-1), ("parameters is -1", "a whole number from 0")),
        (lambda: audit(library(), Claim("dense", **SIZES), seed=None), ("seed is None", "a whole number from 0")),
        (lambda: box("F"), ("no box 'F'", "A, B")),
        (lambda: make("nothing", Claim("dense", **SIZES, bias=False)), ("no fault 'nothing'", "raw R")),
        (lambda: make(None, Claim("dense", **SIZES)), ("bias=False",)),
    ],
)
def test_a_claim_or_a_box_that_cannot_be_is_refused(make_it, pieces):
    with refuses(ValueError, *pieces):
        make_it()


# --- the boxes, and the law of permutation ---


def test_a_box_is_a_function_that_shows_nothing():
    for letter in LETTERS:
        sealed = box(letter)
        assert vars(sealed.run) == {} and sealed.run.__name__ == "<lambda>"
        assert all(re.fullmatch(r"tensor \d", name) for name in sealed.numbers)


def test_reads_are_those_of_table_1():
    assert READS == properties.CONDITIONED_ON


@pytest.mark.parametrize("score", [*ALL, "random + factorized_random", "dense + factorized_dense"])
def test_tokens_change_places_as_table_1_says(score):
    properties.tokens_change_places_as_table_1_says(score)


@pytest.mark.parametrize(("score", "broken"), [("factorized_random", ReadsTokens), ("dense", ReshapedHeads)])
def test_a_score_that_keeps_another_law_is_caught(score, broken, monkeypatch):
    monkeypatch.setitem(scores.SCORES, score, broken)
    with pytest.raises(AssertionError, match="it keeps"):
        properties.tokens_change_places_as_table_1_says(score)


def test_the_ledger_names_the_sources_of_boxes():
    sources = load()["sources"]
    assert [source["box"] for source in sources] == ["A", "B", "C", "E", "G", "H", "I"]
    for source in sources:
        assert set(source) == {"box", "repository", "file", "commit", "place"} and LETTERS[source["box"]]
        assert re.fullmatch("[0-9a-f]{40}", source["commit"])
