"""The probes of chapter 08: tasks with known answers, training side by side, the study command."""

from functools import partial

import pytest
import torch
from torch import nn

from synth_lib.lab import probes
from synth_lib.lab.__main__ import main
from synth_lib.lab.runner import read_record
from synth_lib.scores import Score
from synth_lib.text.corpora import DATA


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- the tasks ---


def test_sentences_hold_what_they_promise():
    value, pointer, key = probes.sentences(50, 7, 5, generator())
    assert value.shape == pointer.shape == key.shape == (50, 7)
    assert 0 <= value.min() and value.max() < 5
    assert torch.equal(key.sort(dim=1).values, torch.arange(7).expand(50, 7))
    assert (pointer != key).all()
    assert all(set(pointers) <= set(keys) for pointers, keys in zip(pointer.tolist(), key.tolist(), strict=True))


def test_more_numbers_than_places():
    _, pointer, key = probes.sentences(50, 7, 5, generator(), numbers=20)
    assert key.max() > 7 and all(len(set(keys)) == 7 for keys in key.tolist())
    assert all(set(pointers) <= set(keys) for pointers, keys in zip(pointer.tolist(), key.tolist(), strict=True))


@pytest.mark.parametrize("task", ["position", "token", "pair"])
@pytest.mark.parametrize("numbers", [None, 20])
def test_look_up_as_in_words(task, numbers):
    (value, pointer, key), targets = probes.look_up(20, generator(), task=task, length=7, vocab=5, numbers=numbers)
    for b in range(20):
        for i in range(7):
            place = 7 - 1 - i
            if task == "token":
                place = int(pointer[b, i])
            elif task == "pair":
                place = key[b].tolist().index(int(pointer[b, i]))
            assert targets[b, i] == value[b, place]


def test_single_part_probes_by_hand():
    for task in ("copying", "reversing", "sorting", "counting"):
        (tokens,), targets = probes.TASKS[task](20, generator(), length=6, vocab=4)
        for row, right in zip(tokens.tolist(), targets.tolist(), strict=True):
            expected = {
                "copying": row, "reversing": row[::-1], "sorting": sorted(row),
                "counting": [row.count(token) - 1 for token in row],
            }[task]  # fmt: skip
            assert right == expected


def test_induction_asks_once_what_followed_the_twin():
    (tokens,), targets = probes.induction(200, generator(), length=6, vocab=8)
    twins = set()
    for row, right in zip(tokens.tolist(), targets.tolist(), strict=True):
        twin = row.index(row[-1])
        twins.add(twin)
        assert twin < 4 and len(set(row)) == 5
        assert right == [-1] * 5 + [row[twin + 1]]
    assert twins == {0, 1, 2, 3}


@pytest.mark.parametrize("order", ["same", "any"])
def test_halves_differ_only_in_what_belongs_together(order):
    (value, key), true = probes.halves(200, generator(), length=8, vocab=6, order=order)
    assert 60 < true.sum() < 140
    moved = 0
    for values, keys, is_true in zip(value.tolist(), key.tolist(), true.tolist(), strict=True):
        assert sorted(values[:4]) == sorted(values[4:]) and sorted(keys[:4]) == sorted(keys[4:])
        fact, claim = dict(zip(keys[:4], values[:4], strict=True)), dict(zip(keys[4:], values[4:], strict=True))
        assert sum(fact[number] == claim[number] for number in range(4)) == (4 if is_true else 0)
        moved += keys[:4] != keys[4:]
    assert (moved > 0) == (order == "any")


@pytest.mark.parametrize("name", probes.TASKS)
def test_a_task_comes_from_its_generator(name):
    draw = partial(probes.TASKS[name], length=6, vocab=8)
    state = torch.get_rng_state()
    (first, targets), (again, same_targets) = draw(5, generator(3)), draw(5, generator(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(targets, same_targets) and all(map(torch.equal, first, again))


# --- models and training ---


def stack(seed=0, score="dense", **options):
    torch.manual_seed(seed)
    return probes.Stack([5, 5, 5], 5, 8, 2, 5, score, **options)


PAIR = partial(probes.look_up, task="pair", length=5, vocab=5)


def test_stack_gives_one_answer_a_place_or_one_a_sentence():
    parts, _ = PAIR(3, generator())
    assert stack()(*parts).shape == (3, 5, 5)
    assert stack(pooled=True)(*parts).shape == (3, 5)
    assert stack()(*(part[:, :4] for part in parts)).shape == (3, 4, 5)


def test_stack_hides_no_token():
    parts, _ = PAIR(1, generator())
    changed = parts[0].clone()
    changed[0, -1] = (changed[0, -1] + 1) % 5
    model = stack()
    assert (model(*parts) - model(changed, *parts[1:]))[0, 0].abs().max() > 1e-4


@pytest.mark.parametrize("score", ["dense", "random + dot_product", "fixed_random"])
def test_side_by_side_is_as_alone(score):
    models = [stack(seed, score) for seed in (0, 1, 2)]
    start = [{name: number.clone() for name, number in model.state_dict().items()} for model in models]
    probes.train_side_by_side(models, [PAIR] * 3, (0, 1, 2), steps=5, batch=4)
    for seed in (0, 1, 2):
        alone = stack(seed, score)
        assert all(torch.equal(number, start[seed][name]) for name, number in alone.state_dict().items())
        probes.train_side_by_side([alone], [PAIR], [seed], steps=5, batch=4)
        for name, number in alone.state_dict().items():
            torch.testing.assert_close(models[seed].state_dict()[name], number, rtol=1e-3, atol=1e-4)
            moved = not torch.equal(number, start[seed][name])
            assert moved == (".R" not in name or score != "fixed_random"), name


def test_tables_learn_faster():
    model = stack(score="random")
    before = {name: number.clone() for name, number in model.named_parameters()}
    probes.train_side_by_side([model], [PAIR], [0], steps=1, batch=4, learning_rate=0.01, r_factor=10.0)
    step = {name: (number - before[name]).abs().max().item() for name, number in model.named_parameters()}
    assert step["blocks.0.attention.score.R"] == pytest.approx(0.1, rel=0.01)
    assert step["readout.weight"] == pytest.approx(0.01, rel=0.01)


def test_after_step_sees_the_trained_models_eight_times():
    model, seen = stack(), []

    def look(step):
        seen.append((step, model.readout.weight.clone()))

    probes.train_side_by_side([model], [PAIR], [0], steps=20, batch=4, after_step=look)
    assert [step for step, _ in seen] == [2, 5, 7, 10, 12, 15, 17, 20]
    assert torch.equal(seen[-1][1], model.readout.weight) and not torch.equal(seen[0][1], seen[1][1])


class Sayer(nn.Module):
    """Answers what it is told."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers

    def forward(self, *parts):
        return nn.functional.one_hot(self.answers, 10).float()


def test_accuracy_counts_asked_places_alone():
    targets = torch.tensor([[-1, 3, 4], [1, -1, -1]])
    answers = torch.tensor([[0, 3, 0], [1, 0, 0]])

    def places(count, generator):
        return (targets,), targets

    def whole(count, generator):
        return (targets,), torch.tensor([3, 0])

    assert probes.accuracy(Sayer(answers), places) == pytest.approx(2 / 3)
    assert probes.accuracy(Sayer(answers), places, positions=slice(2, None)) == 0
    assert probes.accuracy(Sayer(torch.tensor([3, 1])), whole) == 0.5


def test_accuracy_asks_other_sentences_than_any_training():
    seeds = []

    def task(count, generator):
        seeds.append(generator.initial_seed())
        return (torch.zeros(count, 1, dtype=torch.int64),), torch.zeros(count, dtype=torch.int64)

    probes.accuracy(Sayer(torch.zeros(1000, dtype=torch.int64)), task)
    assert seeds[0] >= 2**31  # the seeds of trainings are 0, 1, 2, ...


def test_distance_to_a_wanted_map():
    table = torch.arange(12)[None, :].expand(12, 12)
    diagonal = (table % 3 == table // 3) & (table < 9)
    state = torch.get_rng_state()
    assert probes.distance_to(torch.eye(12, dtype=torch.bool), "factorized_dense", a=3, b=4) < 0.02
    assert probes.distance_to(diagonal, "dense") < 0.02
    assert probes.distance_to(diagonal, "factorized_dense", a=3, b=4) > 0.2
    assert probes.distance_to(torch.eye(12, dtype=torch.bool), "factorized_random", rank=2) < 0.02
    assert probes.distance_to(torch.eye(12, dtype=torch.bool), "factorized_random", rank=1) > 0.5
    assert torch.equal(torch.get_rng_state(), state)


def test_the_distance_is_that_of_the_best_start(monkeypatch):
    class OneKnowsIt(Score):
        """The map that is wanted in head 2, an even one in the others."""

        reads_tokens = False

        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.zero = nn.Parameter(torch.zeros(()))

        def rows(self, x, keys, length, start=0):
            scores = 50 * torch.eye(length) * (torch.arange(self.head) == 2)[:, None, None]
            return scores[None] + 0 * self.zero

    monkeypatch.setattr(probes, "make_score", lambda name, *sizes: OneKnowsIt(*sizes))
    assert probes.distance_to(torch.eye(4).bool(), "mine", steps=1) == pytest.approx(0, abs=1e-6)


# --- the studies ---


@pytest.fixture
def tiny(monkeypatch):
    job = probes._job("pair", "dense", 1, {"length": 4, "vocab": 3}, d_model=4, steps=8, batch=2, test_length=6)
    monkeypatch.setitem(probes.STUDIES, "length", [job, job | {"score": "random", "layer": 2}])
    return job


def test_a_run_is_the_same_again(tiny):
    first, again = (probes.run(tiny | {"seeds": [0, 1]}) for _ in range(2))
    assert first["accuracy"] == again["accuracy"] and first["longer"] == again["longer"]
    assert len(first["accuracy"]) == 2 and len(first["curve"]) == 8
    assert {"seconds", "threads", "steps", "seeds"} <= first.keys()


def test_a_study_does_the_long_jobs_first_and_never_repeats_one(tiny, tmp_path, forked, capsys):
    command = ["probes", "length", "--seeds", "2", "--out", str(tmp_path / "length.jsonl")]
    assert main(command) == 0
    header, runs = read_record(tmp_path / "length.jsonl")
    assert header == {"study": "length", "device": "cpu"}
    assert [run["score"] for run in runs] == ["random", "dense"]  # the longest first
    assert all({"date", "device", "versions", "code"} <= run.keys() and run["threads"] == 1 for run in runs)
    assert main(command) == 0
    assert read_record(tmp_path / "length.jsonl")[1] == runs
    assert "2 runs, 0 of them to do" in capsys.readouterr().out
    results, errors = probes.run_study("length", range(3), tmp_path / "length.jsonl", log=lambda line: None)
    assert errors == {} and [run["score"] for run in results] == ["dense", "random"]  # the order of the jobs
    assert all(run["seeds"] == [0, 1, 2] for run in results)  # other seeds are another run
    assert len(read_record(tmp_path / "length.jsonl")[1]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["breadth"], "study must be one of depth, others, length, halves, not 'breadth'"),
        (["depth", "--seeds", "0"], "seeds is 0"),
        (["depth", "--workers", "0"], "workers is 0"),
        (["depth", "--device", "cpu"], "unrecognized arguments: --device cpu"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["probes", *options, "--out", str(tmp_path / "some.jsonl")])
    assert stop.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", probes.STUDIES)
def test_recorded_studies_are_complete(name):
    """The chapter reads them: every job once, with three seeds, and settings that the command still has."""
    _, runs = read_record(DATA / "results" / f"probes_{name}.jsonl")
    assert len(runs) == len(probes.STUDIES[name])
    for job, run in zip(probes.STUDIES[name], runs, strict=True):
        assert job.items() <= run.items()
        assert len(run["accuracy"]) == len(run["seeds"]) >= 3
