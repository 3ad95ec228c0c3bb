"""The race of chapter 10: its task, what its masks reach, its runs; slopes and crossings of the bill by hand."""

import json
from math import log

import pytest
import torch

from synth_lib.lab import runner, suites
from synth_lib.lab.__main__ import main
from synth_lib.lab.bench import neighbours as bill
from synth_lib.lab.neighbours import (
    LookUpTask,
    attention_layers,
    far_look_up,
    keys_holding,
    masks_of,
    reached,
    rows_in_keys,
    set_patterns,
)
from synth_lib.lab.runner import read_record, run_suite
from synth_lib.lab.suites import settings_of, suite
from synth_lib.masks import causal
from synth_lib.scores import SCORES
from synth_lib.sparse.patterns import Fixed, Strided, Window
from synth_lib.sparse.routed import Routed
from synth_lib.text.corpora import DATA

CPU = torch.device("cpu")
SMALL = {"d_model": 16, "head": 2, "layer": 2, "max_length": 16}


def model_with(kind=None, score="dot_product", **options):
    torch.manual_seed(0)
    model = LookUpTask(CPU, 16, sentences=4).build(**SMALL, score=score).eval()
    if kind:
        set_patterns(model, kind, **options)
    return model


# The task


def test_the_answer_is_the_value_where_the_key_is_the_pointer_and_far_enough_before():
    (value, pointer, key), targets, place = far_look_up(
        50, torch.Generator().manual_seed(0), length=16, vocab=7, far=4
    )
    for sentence in range(50):
        for i in range(16):
            [found] = [j for j in range(16) if key[sentence, j] == pointer[sentence, i]]
            assert found == place[sentence, i]
            if i < 4:
                assert targets[sentence, i] == -1
            else:
                assert targets[sentence, i] == value[sentence, found] and found <= i - 4
    *_, place = far_look_up(500, torch.Generator().manual_seed(0), length=16, vocab=7, far=4)
    assert set(place[:, 15].tolist()) == set(range(12))  # each that is far enough, the last of them too


def test_valid_and_test_differ_and_the_same_task_draws_the_same():
    one, other = LookUpTask(CPU, 16, sentences=5), LookUpTask(CPU, 16, sentences=5)
    assert all(torch.equal(a, b) for a, b in zip(one.test[0], other.test[0], strict=True))
    assert not torch.equal(one.test[0][0], one.valid[0][0])
    [*parts, targets], [batch] = one.batches(3)(torch.Generator().manual_seed(1), 0), [one.test[0]]
    assert len(parts) == 3 and targets.shape == (3, 16) and len(batch) == 4
    assert one.count(*batch) == 5 * 12


def test_guessing_and_counting_by_hand():
    """One sentence, values 0 0 1 2 ...: position 2 may look at the first, position 3 at two, far is 2."""
    task = LookUpTask(CPU, 8, vocab=4, sentences=1)
    value, targets = torch.tensor([[0, 0, 1, 2, 3, 3, 3, 3]]), torch.tensor([[-1, -1, 0, 0, 1, 2, 0, 3]])
    task.valid = task.test = [(value, value, value, targets)]
    # The values so far, at positions 2 to 7: 0 | 0 0 | 0 0 1 | 0 0 1 2 | 0 0 1 2 3 | 0 0 1 2 3 3
    chances = [1, 1, 1 / 3, 1 / 4, 2 / 5, 2 / 6]
    found = task.baseline("counting")
    assert found["test_loss"] == found["loss"] == pytest.approx(-sum(map(log, chances)) / 6, abs=1e-5)
    assert found["accuracy"] == pytest.approx((1 + 1 + 0 + 0 + 1 + 1 / 2) / 6, abs=1e-4)
    assert task.baseline("guess") == {
        "loss": pytest.approx(log(4), abs=1e-5), "test_loss": pytest.approx(log(4), abs=1e-5),
        "accuracy": 0.25, "valid_accuracy": 0.25,
    }  # fmt: skip


# What reaches what


def test_two_layers_of_a_window_reach_twice_as_far():
    mask = Window(3).mask(9) & causal(9)
    assert torch.equal(reached([mask])[0], mask[0, 0])
    assert torch.equal(reached([mask, mask])[0], (Window(5).mask(9) & causal(9))[0, 0])


def test_the_first_layer_is_first():
    """0 -> 1 and then 1 -> 2 brings something from 0 to 2; the other way round it does not."""
    early, late = torch.zeros(2, 1, 1, 3, 3, dtype=torch.bool)
    early[..., 1, 0] = late[..., 2, 1] = True
    assert reached([early, late])[0, 2, 0] and not reached([late, early])[0, 2, 0]


def test_a_token_stays_where_it_is_and_heads_are_ways():
    mask = torch.zeros(1, 2, 3, 3, dtype=torch.bool)
    mask[0, 0, 1, 0] = mask[0, 1, 2, 0] = True
    assert reached([mask])[0].tolist() == [[True, False, False], [True, True, False], [True, False, True]]


@pytest.mark.parametrize("pattern", [Strided(4), Fixed(4)])
def test_strided_and_fixed_reach_all_before_in_two_layers(pattern):
    assert torch.equal(reached([pattern.mask(16, head=2)] * 2)[0], causal(16)[0, 0])


def test_what_is_reached_is_what_moves_the_output():
    """Change one token: only the outputs that it reaches change, and those all do."""
    for kind, options in (("window", {"size": 4}), ("strided", {"stride": 4}), (None, {})):
        model = model_with(kind, **options).double()
        [*parts, _] = LookUpTask(CPU, 16, sentences=2).test[0]
        reach = reached(masks_of(model, *parts))[0]
        before = model(*parts)
        for place in (0, 5, 15):
            value = parts[0].clone()
            value[:, place] = (value[:, place] + 1) % 10
            moved = (model(value, *parts[1:]) != before).any(dim=-1).any(dim=0)
            assert torch.equal(moved, reach[:, place])


def test_the_masks_of_patterns_of_content_are_those_of_the_maps():
    model = model_with("routed", clusters=3)
    [*parts, _] = LookUpTask(CPU, 16, sentences=3).test[0]
    found, maps = masks_of(model, *parts), model.attention_maps(*parts)
    assert [mask.shape for mask in found] == [(3, 2, 16, 16)] * 2
    assert all(torch.equal(mask, weights > 0) for mask, weights in zip(found, maps, strict=True))
    assert not any(layer.pattern._forward_hooks for layer in attention_layers(model))


def test_a_narrow_window_cannot_reach_the_answer():
    task = LookUpTask(CPU, 16, sentences=4)
    assert task.reach(model_with("window", size=2)) == {"direct": 0.0, "through": 0.0}
    assert task.reach(model_with()) == {"direct": 1.0, "through": 1.0}
    strided = task.reach(model_with("strided", stride=4))
    assert 0 < strided["direct"] < 0.7 and strided["through"] == 1.0


def test_each_layer_gets_a_pattern_of_its_own_with_the_features_of_a_head():
    patterns = [layer.pattern for layer in attention_layers(model_with("routed", clusters=4, keep=3))]
    assert [(type(pattern), pattern.features, pattern.head, pattern.keep) for pattern in patterns] == [
        (Routed, 8, 2, 3)
    ] * 2
    assert patterns[0] is not patterns[1]
    with pytest.raises(ValueError, match="the kind of a pattern must be one of window, .* not 'local'"):
        set_patterns(model_with(), "local")


def test_keys_that_hold_a_share_by_hand():
    weights = torch.tensor([[0.05, 0.8, 0.15], [1.0, 0, 0], [0.3, 0.3, 0.4], [0.05, 0.9, 0.05]])[None, None]
    assert keys_holding(weights).tolist() == [[[2, 1, 3, 1]]]
    assert keys_holding(weights, share=0.4).tolist() == [[[1, 1, 1, 1]]]
    late = torch.full((2, 3, 8, 8), 1 / 8)
    late[:, 1, 6:] = torch.eye(8)[6:]
    late[:, 2, :6] = torch.eye(8)[:6]  # early rows do not count
    assert rows_in_keys([late]) == [[[8.0, 8.0, 8.0], [1.0, 1.0, 1.0], [8.0, 8.0, 8.0]]]


# The suite


def test_all_variants_are_tuned_alike_and_have_three_fresh_seeds():
    chosen = suite("neighbours")
    rates, _, final, *_ = chosen.stages
    tried = rates([])
    done = [
        run | {"status": "finished", "metrics": {"loss": run["settings"]["learning_rate"]}} for run in tried
    ]  # the lower rate is the better one
    runs = final(done)
    variants = list(chosen.tasks["far look-up"]["variants"])
    assert {run["task"] for run in runs} == {"far look-up"} and len(tried) == 2 * len(variants) == 14
    assert [(run["seed"], run["variant"]) for run in runs] == [(seed, name) for seed in (1, 2, 3) for name in variants]
    assert {run["seed"] for run in tried} == {0} and {run["settings"]["learning_rate"] for run in runs} == {2.5e-3}
    assert len({json.dumps(run["settings"]) for run in tried}) == 2


def test_each_variant_has_the_s_and_the_pattern_of_its_name():
    for task in suite("neighbours").tasks.values():
        for variant, made in task["variants"].items():
            sizes, _ = settings_of({"variant": variant, "seed": 0, "model": {}, "settings": {}}, task)
            kind = sizes.get("pattern", {}).get("kind", "full")
            assert kind in variant.lower() or (variant, kind) == ("Random", "full")
            assert made["score"] in SCORES and ("random" in variant.lower()) == (made["score"] == "random")


def test_the_race_in_small(tmp_path, monkeypatch):
    """Each variant runs, records its reach before and after, and the far window knows nothing."""
    settings = {"steps": 4, "batch": 2, "warmup": 1, "evaluate_every": 2, "precision": "float32"}
    variants = suites.in_a_race(16, kept=2) | {"full": {"score": "dot_product"}}
    task = {"data": {"sentences": 3}, "model": SMALL, "settings": settings, "variants": variants}
    runs = [suites.experiment("far look-up", variant, 1, "final") for variant in variants]
    runs.append(suites.experiment("far look-up", "counting", question="baseline"))
    monkeypatch.setitem(suites.SUITES, "tiny", lambda: suites.Suite("", {"far look-up": task}, runs))
    monkeypatch.setattr(runner, "run_parallel", lambda runs, function, *_: ((run, function(run)) for run in runs))
    record = run_suite("tiny", tmp_path / "race.jsonl", device="cpu", log=lambda line: None)
    assert record["missing"] == [] and record["errors"] == {}
    found = {run["variant"]: run for run in record["runs"]}
    for variant in variants:
        run = found[variant]
        assert run["status"] == "finished" and run["unit"] == "nats per answer" and len(run["curve"]) == 3
        assert 0 <= run["metrics"]["accuracy"] <= 1 and run["metrics"]["test_loss"] > 0
        assert len(run["keys_holding_90_percent"]) == 2 and set(run["reach"]) == {"direct", "through"}
        window = "window" in variant
        assert (run["reach_at_start"]["through"] == 0) == window and run["reach"]["direct"] <= run["reach"]["through"]
    assert "reach" not in found["counting"] and found["counting"]["metrics"]["accuracy"] > 0.1


# The bill


def test_a_slope_is_the_exponent():
    assert bill.slope({n: 3 * n**1.5 for n in (1024, 2048, 4096)}) == pytest.approx(1.5)
    assert bill.slope({256: 1e9, 1024: 2, 2048: 8}) == pytest.approx(2)  # what is shorter is left out
    assert bill.slope({8: 1, 16: 1, 32: 1, 64: 8}, fit_from=8) == pytest.approx(0.9)  # of the ends alone: 1
    with pytest.raises(ValueError, match="a slope needs two lengths or more from 1024 on, not 1"):
        bill.slope({256: 1, 1024: 2})


@pytest.mark.parametrize(
    ("numbers", "others", "first"),
    [
        ({1: 5, 2: 5, 4: 5}, {1: 1, 2: 6, 4: 9}, 2),
        ({1: 5, 2: 5, 4: 5}, {1: 6, 2: 4, 4: 9}, 4),  # below, it wins once by chance
        ({1: 5, 2: 5, 4: 5}, {1: 6, 2: 6, 4: 5}, None),  # equal is not less
        ({2: 5, 8: 1}, {1: 0, 2: 6, 4: 0}, 2),  # lengths of one alone say nothing
        ({1: 5}, {}, None),
    ],
)
def test_where_it_pays_is_from_there_on(numbers, others, first):
    assert bill.pays_from(numbers, others) == first


def test_a_series_is_of_one_kind():
    row = {"form": "window", "length": 2, "causal": True, "training": False, "ms": 3, "peak_bytes": 7}
    others = ({"length": 1, "ms": 2}, {"training": True}, {"causal": False}, {"form": "sdpa"})
    rows = [row, *(row | other for other in others)]
    assert bill.series(rows, "window") == {1: 2, 2: 3} and list(bill.series(rows, "window")) == [1, 2]
    assert bill.series(rows, "window", "peak_bytes", training=True) == {2: 7}


def test_the_bill_in_small(tmp_path, capsys):
    out, threads = tmp_path / "speed.json", torch.get_num_threads()
    assert main(f"bench neighbours --device cpu --tiny --rounds 2 --out {out}".split()) == 0
    torch.set_num_threads(threads)
    record = json.loads(out.read_text(encoding="utf8"))
    assert not record["failed"] and not record["skipped"] and record["load"]["cores"] > 0
    kinds = [(row["form"], row["length"], row["causal"], row["training"]) for row in record["neighbours"]]
    assert len(set(kinds)) == len(kinds) == 2 * (5 + 5 + 3) + 3  # the whole map at the shorter length alone
    for row in record["neighbours"]:
        assert row["ms"] > 0 and row["peak_bytes"] > 0 and row["operations"] > 0 and row["rounds"] == 2
        assert ("largest" in row) == (row["form"] == "routed")
    work = {kind: row["operations"] for kind, row in zip(kinds, record["neighbours"], strict=True)}
    assert work["sdpa", 32, True, True] > work["sdpa", 32, True, False] > work["strided", 32, True, False]
    assert "forward + backward, causal, milliseconds" in capsys.readouterr().out


def test_centroids_that_follow_have_smaller_largest_clusters():
    """Without it, the bill would be one of drawn centroids, which no training leaves as they are."""
    torch.manual_seed(0)
    layer = bill.Attention(16, 2, 512, "dot_product")
    layer.pattern = bill.make_pattern("routed", 16, 2, 8)
    x = torch.randn(1, 512, 16)
    [before] = bill.groups.groups_of(layer, x)
    bill.follow(layer, x)
    [after] = bill.groups.groups_of(layer, x)
    assert after.queries.shape[-1] * after.keys.shape[-1] < 0.7 * before.queries.shape[-1] * before.keys.shape[-1]


# What is recorded


@pytest.fixture(scope="module")
def recorded():
    header, runs = read_record(DATA / "results" / "neighbours.jsonl")
    assert header["tasks"] == json.loads(json.dumps(suite("neighbours").tasks))
    return runs


def test_the_recorded_race_is_whole(recorded):
    """Every run that the suite asks for, a task of one code: so each final run has the rates that its tuning chose."""
    chosen = suite("neighbours")
    asked = chosen.runs + [run for stage in chosen.stages for run in stage(recorded)]
    for run in asked:
        [found] = [other for other in recorded if run.items() <= other.items()]
        assert found["status"] == "finished"
    assert len(asked) == len(recorded) == 8 + 2 * (14 + 21)
    assert len({(run["task"], run["code"]) for run in recorded}) == 2


def test_far_look_ups_are_learned_where_a_mask_can_be_led_to_the_answer(recorded):
    """As chapter 10 predicts: a window reaches none of the answers, Random reads no token; strided reaches all in two
    layers, and what stands between does not know what is asked. The three that learn do so with every seed."""
    runs = [run for run in recorded if run["task"] == "far look-up"]
    [counting] = [run["metrics"]["accuracy"] for run in runs if run["variant"] == "counting"]
    final = [run for run in runs if run["question"] == "final"]
    for run in final:
        learned = run["variant"] in ("full", "hashed", "routed")
        assert run["metrics"]["accuracy"] > 0.8 if learned else run["metrics"]["accuracy"] < counting
        assert (run["reach_at_start"]["through"] == 0) == ("window" in run["variant"])
        if learned:
            assert run["reach"]["direct"] > 0.85


def test_the_recorded_bill_is_laid_out_as_the_command_writes_it():
    record = json.loads((DATA / "results" / "speed-neighbours.json").read_text(encoding="utf8"))
    rows, sizes = record["neighbours"], record["sizes"]
    assert sizes == bill.SIZES and not record["failed"] and not record["skipped"] and set(record["load"]) > {"cores"}
    assert len(rows) == 6 * (6 + 6 + 4) - 3  # the whole map ends one length before
    assert all(row["low"] <= row["ms"] <= row["high"] and row["rounds"] == record["rounds"] for row in rows)


def test_patterns_of_places_pay_from_about_a_thousand_tokens_on_in_time_and_not_in_memory():
    rows = json.loads((DATA / "results" / "speed-neighbours.json").read_text(encoding="utf8"))["neighbours"]
    for training in (False, True):
        whole = bill.series(rows, "sdpa", training=training)
        for form in ("window", "strided", "fixed"):
            assert bill.pays_from(bill.series(rows, form, training=training), whole) <= 1024
        work = bill.slope(bill.series(rows, "strided", "operations", training=training))
        assert 1 < work < 1.5 < bill.slope(bill.series(rows, "sdpa", "operations", training=training)) < 2
        # Its memory is more than that of torch's kernel, which keeps no map.
        memory = bill.series(rows, "strided", "peak_bytes", training=training)
        assert memory[8192] > bill.series(rows, "sdpa", "peak_bytes", training=training)[8192]
