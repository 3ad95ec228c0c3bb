"""The training loop: one step against arithmetic by hand, and runs that are stopped, broken or resumed."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from synth_lib.lab import __main__ as command_line
from synth_lib.lab import train as training
from synth_lib.lab.__main__ import main
from synth_lib.lab.train import (
    SIZES,
    Settings,
    choose_device,
    mean_loss,
    next_token_loss,
    parameter_groups,
    schedule,
    train,
    train_language_model,
    write_whole,
)
from synth_lib.models import LanguageModel
from synth_lib.scores import SCORES as registry
from synth_lib.text.corpora import CharacterTokenizer, evaluation_windows

ROOT = Path(__file__).resolve().parents[2]
TEXT = "the cat sat on the mat, the dog sat on the log. " * 30
TOKENIZER = CharacterTokenizer(TEXT)
SPLITS = {"train": TOKENIZER.encode(TEXT), "valid": TOKENIZER.encode(TEXT[:400])}
SMALL = {"score": "random + dense", "d_model": 12, "head": 3, "layer": 2, "max_length": 8, "dropout": 0.2}
EMBEDDINGS = ("token.weight", "position.weight")
FEW = Settings(steps=12, batch=4, warmup=3, evaluate_every=5)
SCORES = [*registry, "random + dense"]


@pytest.fixture(autouse=True)
def listen_to_ctrl_c():
    """A process in the background can inherit that Ctrl-C is ignored; these tests send it themselves."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(settings=FEW, sizes=SMALL, **options):
    options = {"windows": 6, "progress": False, "device": "cpu"} | options
    return train_language_model(sizes, settings, TOKENIZER, SPLITS, **options)


def few(**changes):
    return Settings(**(asdict(FEW) | changes))


# Parameter groups


def groups_of(score):
    model = LanguageModel(11, 12, 3, 2, 8, score)
    return model, {group["name"]: group for group in parameter_groups(model, 1e-3, 0.1)}


@pytest.mark.parametrize("score", SCORES)
def test_every_parameter_is_in_one_group(score):
    model, groups = groups_of(score)
    grouped = [id(parameter) for group in groups.values() for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())


@pytest.mark.parametrize("score", SCORES)
def test_groups_follow_the_names(score):
    model, groups = groups_of(score)
    group_of = {id(parameter): name for name, group in groups.items() for parameter in group["params"]}
    tables = {table for module in model.modules() for table in getattr(module, "tables", ())}
    known = {"random": {"R"}, "fixed_random": {"R"}, "factorized_random": {"R1", "R2"}, "random + dense": {"R"}}
    known |= {name: set() for name in ("dot_product", "dense", "factorized_dense")}
    assert tables == known.get(score, tables)
    for name, parameter in model.named_parameters():
        last = name.split(".")[-1]
        if last in tables:
            expected = "R"
        elif last.startswith("bias") or last == "logits" or "norm" in name or name in EMBEDDINGS:
            expected = "vectors"
        else:
            expected = "matrices"
        assert group_of[id(parameter)] == expected, name
    assert groups["matrices"]["weight_decay"] == 0.1 and groups["vectors"]["weight_decay"] == 0
    assert groups["matrices"]["lr"] == groups["vectors"]["lr"] == 1e-3
    if "R" in groups:
        assert groups["R"]["weight_decay"] == 0 and groups["R"]["lr"] == pytest.approx(1e-2)
    assert ("R" in groups) == any(name.split(".")[-1] in tables for name, _ in model.named_parameters())


def test_a_parametrized_parameter_stays_in_its_group():
    """The name of what a parametrization holds is "original"."""
    model, _ = groups_of("dense")
    parametrize.register_parametrization(model.blocks[0].attention.score, "bias", nn.Identity())
    parametrize.register_parametrization(model.token, "weight", nn.Identity())
    parametrize.register_parametrization(model.blocks[0].attention.value, "weight", nn.Identity())
    groups = {group["name"]: set(map(id, group["params"])) for group in parameter_groups(model, 1e-3, 0.1)}
    for module, name in ((model.blocks[0].attention.score, "bias"), (model.token, "weight")):
        assert id(module.parametrizations[name].original) in groups["vectors"]
    assert id(model.blocks[0].attention.value.parametrizations.weight.original) in groups["matrices"]
    assert sum(map(len, groups.values())) == len(list(model.parameters()))


@pytest.mark.parametrize("tables", [("typo",), "diagonals"])
def test_a_table_that_does_not_exist_is_refused(tables):
    model, _ = groups_of("random")
    model.blocks[0].attention.score.tables = tables
    with pytest.raises(ValueError, match="Random has no parameter .*, which its tables = .* names"):
        parameter_groups(model, 1e-3, 0.1)


@pytest.mark.parametrize("clip", [1e9, 0.01])
def test_one_step_by_hand(clip):
    """AdamW's first step moves a parameter by rate * g / (|g| + 1e-8), after the decay by rate * decay."""
    sizes = SMALL | {"dropout": 0.0}
    settings = Settings(steps=10, warmup=4, batch=3, clip=clip, weight_decay=0.3, r_learning_rate_factor=7.0)
    torch.manual_seed(5)
    model = LanguageModel(TOKENIZER.vocab, **sizes)
    batch = evaluation_windows(SPLITS["train"], 8, 3)
    next_token_loss(model, *batch).backward()
    norm = math.sqrt(sum(p.grad.pow(2).sum().item() for p in model.parameters()))
    expected = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad * min(1.0, clip / norm)
        in_r, flat = name.endswith(".R"), parameter.ndim < 2 or "bias" in name or name in EMBEDDINGS
        rate = 1e-3 / 4 * (7 if in_r else 1)
        decay = 0 if in_r or flat else 0.3
        expected[name] = parameter.detach() * (1 - rate * decay) - rate * gradient / (gradient.abs() + 1e-8)
    model.zero_grad()

    class Enough(Exception):
        pass

    def get_batch(generator, step):
        if step == 1:
            raise Enough
        return batch

    with pytest.raises(Enough):
        train(model, get_batch, [batch], settings, config={}, device="cpu", progress=False)
    for name, parameter in model.named_parameters():
        # A gradient near 1e-8 rounds differently with the norm; such numbers hardly move.
        assert torch.allclose(parameter, expected[name], atol=2e-6), name


# The schedule


def test_schedule_is_a_line_and_a_cosine():
    factors = [schedule(step, 4, 13) for step in range(13)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == 1.0 and factors[8] == pytest.approx(0.55) and factors[12] == pytest.approx(0.1)
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert schedule(0, 0, 1) == 1.0 and schedule(2, 3, 3) == 1.0


# Seeds and the record


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    first, second, other = run()[1], run()[1], run(few(seed=1))[1]
    assert first["curve"] == second["curve"] != other["curve"]


def test_the_order_of_the_data_is_that_of_the_seed_for_all_scores(monkeypatch):
    drawn, inner = [], training.random_windows

    def windows(tokens, *arguments):
        assert tokens is SPLITS["train"]
        drawn[-1].append(inner(tokens, *arguments)[0])
        return inner(tokens, *arguments)

    monkeypatch.setattr(training, "random_windows", windows)
    for score, seed in (("random", 0), ("dense", 0), ("dense", 1)):
        drawn.append([])
        run(few(seed=seed), SMALL | {"score": score})
    first, same, other = (torch.stack(inputs) for inputs in drawn)
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_training_learns_the_text():
    _, record = run(Settings(steps=150, batch=8, warmup=20, learning_rate=1e-2), SMALL | {"dropout": 0.0})
    counts = torch.bincount(SPLITS["train"]).double()
    share = counts[counts > 0] / counts.sum()
    assert record["final_loss"] < 0.6 * -(share * share.log()).sum()
    assert record["curve"][0]["loss"] == pytest.approx(math.log(TOKENIZER.vocab), abs=0.2)


def test_the_record_says_what_and_how(tmp_path):
    model, record = run(folder=tmp_path)
    assert record == json.loads((tmp_path / "record.json").read_text(encoding="utf8"))
    assert record["config"] == {
        "text": "shakespeare",
        "tokens of the text": training.fingerprint([SPLITS["train"]]),
        "tokenizer": "CharacterTokenizer",
        "vocab": TOKENIZER.vocab,
        "windows": 6,
        **SMALL,
    }
    assert record["settings"] == asdict(FEW) and record["seed"] == 0
    assert record["status"] == "finished" and record["problem"] is None
    assert record["unit"] == "nats per token" and record["device"] == "cpu" and record["seconds"] > 0
    assert record["versions"]["torch"] == torch.__version__
    assert [point["step"] for point in record["curve"]] == [0, 5, 10, 12]
    assert record["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    inputs, targets = evaluation_windows(SPLITS["valid"], 8, 6)
    by_hand = nn.CrossEntropyLoss()(model.eval()(inputs).reshape(-1, TOKENIZER.vocab), targets.reshape(-1))
    assert record["final_loss"] == record["curve"][-1]["loss"] == pytest.approx(by_hand.item(), rel=1e-5)


def test_the_seconds_of_training_leave_out_evaluations_and_checkpoints(tmp_path, monkeypatch):
    def slow_write(path, write):
        time.sleep(0.02)
        write_whole(path, write)

    def slow_loss(model, *batch):
        time.sleep(0 if model.training else 0.02)
        return next_token_loss(model, *batch)

    monkeypatch.setattr(training, "write_whole", slow_write)
    _, record = run(folder=tmp_path, loss=slow_loss)
    others = 4 * 0.02 + 4 * 2 * 2 * 0.02  # checkpoints; evaluations of 2 batches, once for the curve, once for each
    assert record["seconds"] - record["training_seconds"] > others - 0.05  # one is rounded to tenths


def test_bfloat16_runs_and_float32_is_the_default_on_the_cpu():
    auto, single, half = (run(few(precision=name))[1] for name in ("auto", "float32", "bfloat16"))
    assert auto["curve"] == single["curve"] != half["curve"]
    assert half["final_loss"] == pytest.approx(single["final_loss"], abs=0.05)


# Stopping, breaking, resuming


def stop_at(step, monkeypatch, times=1):
    """Send this process Ctrl-C, `times` times, while update number `step` is being computed."""

    def schedule_and_stop(number, *arguments):
        if number == step - 1:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return schedule(number, *arguments)

    monkeypatch.setattr(training, "schedule", schedule_and_stop)


@pytest.mark.parametrize("step", [1, 5, 7, 12])
def test_ctrl_c_finishes_the_step_and_resuming_gives_the_same_losses(tmp_path, monkeypatch, step):
    _, whole = run()
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        stop_at(step, patch)
        with pytest.raises(KeyboardInterrupt, match=f"stopped after step {step} of 12"):
            run(folder=tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    stopped = json.loads((tmp_path / "record.json").read_text(encoding="utf8"))
    assert stopped["status"] == "stopped" and stopped["final_loss"] is None
    torch.manual_seed(123)  # the state of torch must come from the checkpoint
    torch.rand(7)
    _, resumed = run(folder=tmp_path, resume=True)
    assert resumed["curve"] == whole["curve"] and resumed["status"] == "finished"


def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch):
    stop_at(7, monkeypatch, times=2)
    with pytest.raises(KeyboardInterrupt):
        run(folder=tmp_path)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["run"]["step"] == 5


def arguments(folder, *more):
    sizes = "train --score random --d_model 12 --head 3 --layer 1 --max_length 8 --batch 4 --dropout 0.1"
    rest = "--windows 8 --device cpu --steps 60 --evaluate_every 20 --folder"
    return [*sizes.split(), *rest.split(), str(folder), *more]


WAITS_IN_STEP_30 = """
import signal, sys, time
from synth_lib.lab import train
from synth_lib.lab.__main__ import main

def wait(step, *arguments, schedule=train.schedule):
    if step == 29:
        print("ready", flush=True)
        while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # until the first Ctrl-C was heard
            time.sleep(0.01)
    return schedule(step, *arguments)

train.schedule = wait
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends Ctrl-C to the whole console")
def test_the_command_line_stopped_by_a_real_ctrl_c_goes_on_to_the_same_curve(tmp_path, capfd):
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", WAITS_IN_STEP_30, *arguments(broken)]
    child = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert child.returncode == 130 and b"stopped after step 30 of 60" in out and b"--resume" in out, err
    assert b"Traceback" not in err and b"step/s" in err
    stopped = json.loads((broken / "record.json").read_text(encoding="utf8"))
    assert stopped["status"] == "stopped" and [point["step"] for point in stopped["curve"]] == [0, 20]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert main(arguments(broken, "--resume", "--quiet")) == 0
    assert main(arguments(whole, "--quiet", "--sample", "5")) == 0
    torch.set_num_threads(threads)
    curves = [json.loads((folder / "record.json").read_text(encoding="utf8"))["curve"] for folder in (broken, whole)]
    assert curves[0] == curves[1] and len(curves[0]) == 4
    out, err = capfd.readouterr()
    assert err == "" and out.count("nats per token at step 60") == 2


@pytest.mark.parametrize(
    "settings, sizes, message",
    [
        (few(learning_rate=0.5), SMALL, "made with learning_rate = 0.001, this run has 0.5"),
        (few(seed=3), SMALL, "made with seed = 0, this run has 3"),
        (FEW, SMALL | {"score": "dense"}, "made with score = 'random \\+ dense', this run has 'dense'"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path, settings, sizes, message):
    run(folder=tmp_path)
    with pytest.raises(ValueError, match=f"{message}: give the same options as before$"):
        run(settings, sizes, folder=tmp_path, resume=True)


def test_a_missing_or_damaged_checkpoint_is_refused(tmp_path):
    for folder in (tmp_path, None):
        with pytest.raises(FileNotFoundError, match="there is no checkpoint in folder"):
            run(folder=folder, resume=True)
    run(folder=tmp_path)
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no checkpoint"):
        (tmp_path / "checkpoint.pt").write_bytes(damaged)
        with pytest.raises(ValueError, match="checkpoint.pt is no checkpoint that can be read"):
            run(folder=tmp_path, resume=True)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file"
    write_whole(path, lambda file: file.write(b"first"))

    def breaks(file):
        file.write(b"sec")
        raise OSError("disk full")

    with pytest.raises(OSError):
        write_whole(path, breaks)
    assert path.read_bytes() == b"first"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_run_and_the_record_says_failed(tmp_path, bad):
    calls = []

    def loss(model, inputs, targets):
        calls.append(model.training)
        factor = bad if sum(calls) == 8 else 1.0  # the eighth update
        return next_token_loss(model, inputs, targets) * factor

    with pytest.raises(FloatingPointError, match=f"the loss is {bad} .* after step 7"):
        run(folder=tmp_path, loss=loss)
    text = (tmp_path / "record.json").read_text(encoding="utf8")
    record = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert record["status"] == "failed" and "step 7" in record["problem"] and record["final_loss"] is None
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["run"]["step"] == 5 and all(value.isfinite().all() for value in saved["model"].values())


def test_an_evaluation_that_is_not_finite_fails_too(tmp_path):
    trained = []

    def loss(model, inputs, targets):
        trained.append(model.training)
        return next_token_loss(model, inputs, targets) * (1.0 if model.training or not any(trained) else float("nan"))

    with pytest.raises(FloatingPointError, match="the loss of the evaluation is nan after step 5"):
        run(folder=tmp_path, loss=loss)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["run"]["step"] == 0  # the checkpoint before the first step, none after it
    json.loads((tmp_path / "record.json").read_text(encoding="utf8"), parse_constant=lambda name: pytest.fail(name))


# What does not fit


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"steps": 0}, "steps is 0, but must be a whole number of at least 1"),
        ({"batch": 0}, "batch is 0, but must be a whole number"),
        ({"warmup": 13}, "warmup must be at most steps = 12, not 13: set warmup \\(--warmup\\)$"),
        ({"warmup": -1}, "warmup is -1, but must be a finite number of at least 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0, but must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"beta2": 1.0}, "beta2 is 1.0, but must be below 1"),
        ({"final_learning_rate": 1.5}, "final_learning_rate is 1.5, but must be a share of at most 1"),
        ({"seed": -1}, r"seed is -1, but must be a whole number from 0 to 2\*\*63 - 1"),
        ({"seed": 2**63}, "seed is 9223372036854775808, but must"),
        ({"seed": True}, "seed is True, but must be a whole number"),
        ({"warmup": 1.5}, "warmup is 1.5, but must be a whole number of steps"),
        ({"learning_rate": True}, "learning_rate is True, but must be a finite number"),
        ({"precision": "half"}, "precision must be auto, float32 or bfloat16, not 'half'"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        few(**changes)


def test_numbers_of_numpy_are_kept_as_plain_ones(tmp_path):
    """Else no record could be written after the training, and no checkpoint read."""
    numbers = few(steps=np.int64(2), batch=np.int64(4), warmup=np.int64(1), evaluate_every=np.int64(1),
                  seed=np.int64(1), learning_rate=np.float32(0.5), clip=np.float64(2))  # fmt: skip
    assert numbers == few(steps=2, batch=4, warmup=1, evaluate_every=1, seed=1, learning_rate=0.5, clip=2.0)
    assert {type(value) for value in asdict(numbers).values()} == {int, float, str}
    record = run(numbers, folder=tmp_path)[1]
    assert run(numbers, folder=tmp_path, resume=True)[1]["curve"] == record["curve"]


@pytest.mark.parametrize("value", [Path("a"), np.int64(3), float("nan"), {1, 2}])
def test_a_config_that_no_record_can_hold_is_refused_before_the_training(tmp_path, value):
    with pytest.raises(ValueError, match="config must hold plain values alone"):
        by_hand(small(), tmp_path, resume=False, config={"value": value})
    assert not list(tmp_path.iterdir())


def test_a_config_of_tuples_is_resumed_as_one_of_lists(tmp_path):
    by_hand(small(), tmp_path, resume=False, config={"score": ("dense", np.float64(2))})
    by_hand(small(), tmp_path, resume=True, config={"score": ["dense", 2.0]})


def test_the_defaults_are_those_that_are_told():
    """Of a run with the standard settings: a change would change what was recorded with them."""
    assert asdict(Settings()) == {
        "steps": 1000, "batch": 32, "warmup": 100, "learning_rate": 1e-3, "final_learning_rate": 0.1,
        "r_learning_rate_factor": 10.0, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "r_weight_decay": 0.0,
        "clip": 1.0, "evaluate_every": 100, "precision": "auto", "seed": 0,
    }  # fmt: skip


def test_devices(monkeypatch):
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="device must be auto or .*cpu on this machine, not 'abacus'"):
        choose_device("abacus")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device().type == "mps"
    with pytest.raises(ValueError, match="not 'cuda'"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device().type == "cuda"


def test_help_says_every_option_and_its_default(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "--help"])
    page = capsys.readouterr().out
    assert caught.value.code == 0 and "nats per token" in page and "--resume" in page
    for name, default in (SIZES | asdict(Settings())).items():
        assert f"--{name} " in page and f"(default: {default})" in " ".join(page.split())
    assert page.count("    python -m synth_lib.lab train") >= 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--head", "7"], "head = 7 does not divide d_model = 128"),
        (["--tokens", "words"], "'characters' or 'byte_pairs', not 'words'"),
        (["--score", "dense, random", "--layer", "3"], "score has 2 entries, but must have one for each"),
        (["--steps", "0"], "steps is 0"),
        (["--device", "abacus"], "device must be"),
        (["--resume"], "there is no checkpoint"),
        (["--vocab", "300"], "--vocab is for --tokens byte_pairs alone"),
        (["--score", "dense", "--r_weight_decay", "0.1"], "--r_weight_decay is for scores with a learned table"),
        (["--r_learning_rate_factor", "3"], "--r_learning_rate_factor is for scores with a learned table"),
        (["--corpus", "bible"], "corpus must be"),
        (["--sample", "-1"], "sample is -1"),
        (["--device", "cpu:x"], "device is 'cpu:x', but must be a name such as"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main(["train", "--folder", str(tmp_path), *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_command_line_never_overwrites_a_run(tmp_path, capsys):
    run(folder=tmp_path)
    with pytest.raises(SystemExit):
        main(["train", "--folder", str(tmp_path)])
    assert "holds a run: resume it (--resume), or choose another folder (--folder)" in capsys.readouterr().err


def test_a_failed_run_is_exit_status_1(tmp_path, capsys, monkeypatch):
    def breaks(*arguments, **options):
        raise FloatingPointError("the loss is nan at step 3: try a lower learning rate")

    monkeypatch.setattr(command_line, "train_language_model", breaks)
    assert main(["train", "--folder", str(tmp_path)]) == 1
    assert "failed: the loss is nan at step 3" in capsys.readouterr().out


def test_ctrl_c_outside_of_the_training_is_exit_status_130(tmp_path, capsys, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(LanguageModel, "generate", interrupt)
    few_steps = "--steps 2 --batch 2 --d_model 8 --head 2 --layer 1 --max_length 8 --windows 2 --quiet --device cpu"
    assert main(["train", "--folder", str(tmp_path), "--sample", "5", *few_steps.split()]) == 130
    assert capsys.readouterr().out.endswith("stopped\n")


def test_a_run_that_was_killed_before_its_first_step_has_step_0_once(tmp_path):
    class Killed(BaseException):
        pass

    def killed(model, *batch):
        if model.training:
            raise Killed
        return next_token_loss(model, *batch)

    with pytest.raises(Killed):
        train_in(tmp_path, loss=killed)
    record = train_in(tmp_path, resume=True)
    assert [point["step"] for point in record["curve"]] == [0, 2]


def inputs(generator):
    return torch.randint(11, (2, 8), generator=generator)


def train_in(folder, **options):
    torch.manual_seed(0)
    batches = [(inputs(torch.Generator().manual_seed(0)),) * 2]
    return training.train(
        LanguageModel(11, 8, 2, 1, 8), lambda generator, step: (inputs(generator),) * 2, batches,
        Settings(steps=2, batch=2), config={}, device="cpu", folder=folder, progress=False, **options,
    )  # fmt: skip


def test_a_gradient_that_is_not_finite_never_reaches_the_parameters(tmp_path):
    """The loss can be finite where its gradient is not: sqrt at 0."""
    calls = []

    def loss(model, inputs, targets):
        calls.append(model.training)
        found = next_token_loss(model, inputs, targets)
        return found + (found - found).sqrt() if sum(calls) == 8 else found

    models = []

    def keep(model, inputs, targets):
        models[:] = [model]
        return loss(model, inputs, targets)

    with pytest.raises(FloatingPointError, match="the norm of its gradient nan after step 7"):
        run(folder=tmp_path, loss=keep)
    assert all(parameter.isfinite().all() for parameter in models[0].parameters())


def test_train_never_overwrites_a_run(tmp_path):
    run(folder=tmp_path)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(FileExistsError, match="holds a run"):
        run(folder=tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_told_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("not a folder", encoding="utf8")
    steps = []

    def loss(model, inputs, targets):
        steps.append(model.training)
        return next_token_loss(model, inputs, targets)

    with pytest.raises(OSError):
        run(folder=tmp_path / "file" / "run", loss=loss)
    assert not any(steps)


def test_ctrl_c_after_a_nan_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    """Where numbers are not read each step, as on a GPU: NaN in step 8, Ctrl-C in step 9, an evaluation each 5."""
    stop_at(9, monkeypatch)

    def loss(model, inputs, targets):
        steps.append(model.training)
        return next_token_loss(model, inputs, targets) * (float("nan") if sum(steps) == 8 else 1.0)

    steps = []
    with pytest.raises((FloatingPointError, KeyboardInterrupt), match="the loss is nan and .* nan after step 8"):
        run(folder=tmp_path, loss=loss, read_every_step=False)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["run"]["step"] == 5 and all(value.isfinite().all() for value in saved["model"].values())
    assert json.loads((tmp_path / "record.json").read_text(encoding="utf8"))["status"] == "failed"


def test_numbers_read_seldom_are_the_same_run(tmp_path, monkeypatch):
    assert run(read_every_step=False)[1]["curve"] == run()[1]["curve"]
    stop_at(7, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 7 of 12"):
        run(folder=tmp_path, read_every_step=False)


def test_a_checkpoint_of_another_text_or_torch_is_refused_by_name(tmp_path, monkeypatch):
    run(folder=tmp_path)
    for split, name in (("train", "tokens of the text"), ("valid", "evaluation batches")):
        other = SPLITS | {split: SPLITS[split].roll(1)}
        with pytest.raises(ValueError, match=f"made with {name} = '[0-9a-f]+', this run has '[0-9a-f]+': "):
            train_language_model(SMALL, FEW, TOKENIZER, other, windows=6, folder=tmp_path, resume=True, device="cpu")
    monkeypatch.setattr(training.torch, "__version__", "1.0")
    again = "use the same as before, or start again in another folder$"
    with pytest.raises(ValueError, match=f"made with torch version = '.*', this run has '1.0': {again}"):
        run(folder=tmp_path, resume=True)


def by_hand(model, folder, resume=True, get_batch=None, eval_batches=None, config=None, **options):
    """Train on inputs that each step draws anew."""
    get_batch = get_batch or (lambda generator, step: (inputs(generator),) * 2)
    if eval_batches is None:
        eval_batches = [(inputs(torch.Generator().manual_seed(seed)),) * 2 for seed in (0, 1)]
    return train(
        model, get_batch, eval_batches, Settings(steps=4, batch=2, evaluate_every=2), config=config or {},
        folder=folder, resume=resume, device="cpu", progress=False, **options,
    )  # fmt: skip


def small(score="dense", d_model=8, **options):
    torch.manual_seed(0)
    return LanguageModel(11, d_model, 2, 1, 8, score, **options)


def stopped_at_3(folder, monkeypatch, model):
    with monkeypatch.context() as patch:
        stop_at(3, patch)
        with pytest.raises(KeyboardInterrupt, match="after step 3 of 4"):
            by_hand(model, folder, resume=False)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model": small("random")}, "holds the parameters of another model"),
        ({"model": small(d_model=10)}, "holds the parameters of another model"),
        ({"loss": lambda *given: 2 * next_token_loss(*given)}, "a loss of 2.* batches, this run has 4.*: the model or"),
        ({"unit": "bits per token"}, "unit = 'nats per token', this run has 'bits per token'"),
        (
            {"get_batch": lambda generator, step: (inputs(generator) // (1 + step // 3),) * 2},
            "training batch after step 3 = '[0-9a-f]+', this run has",
        ),
    ],
    ids=["score", "size", "loss", "unit", "order"],
)
def test_a_checkpoint_of_something_else_is_refused_in_one_sentence(tmp_path, monkeypatch, change, message):
    """Under the same config. The order of the batches differs from step 3 on alone."""
    stopped_at_3(tmp_path, monkeypatch, small())
    with pytest.raises(ValueError, match=f"{message}.*use the same as before, or start again") as refused:
        by_hand(**({"model": small(), "folder": tmp_path} | change))
    assert "\n" not in str(refused.value)


def test_a_fingerprint_is_that_of_numbers_types_and_shapes():
    numbers = torch.arange(6)
    others = [numbers.view(2, 3)], [numbers[:3], numbers[3:]], [numbers.view(torch.float64)], [numbers + 1], []
    found = [training.fingerprint(tensors) for tensors in ([numbers], *others)]
    assert len(set(found)) == len(found) and training.fingerprint([numbers.clone()]) == found[0]


def test_the_seconds_of_a_resumed_run_are_those_of_both_parts(tmp_path, monkeypatch):
    stopped_at_3(tmp_path, monkeypatch, small())
    checkpoint = torch.load(tmp_path / "checkpoint.pt")
    checkpoint["run"] |= {"seconds": 1e6, "evaluating": 4e5}
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    record = by_hand(small(), tmp_path)
    assert record["seconds"] >= 1e6 and 5.9e5 < record["training_seconds"] < record["seconds"] - 4e5 + 1


def test_a_checkpoint_of_another_device_is_refused(tmp_path):
    run(folder=tmp_path)
    checkpoint = torch.load(tmp_path / "checkpoint.pt")
    checkpoint["made_from"]["device"] = "cuda"
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="made with device = 'cuda', this run has 'cpu'"):
        run(folder=tmp_path, resume=True)


def test_evaluation_batches_are_read_again_each_time_and_there_is_one():
    def train_on(eval_batches):
        return by_hand(small(), None, resume=False, eval_batches=eval_batches)

    with pytest.raises(ValueError, match="eval_batches is empty"):
        train_on([])
    assert [point["step"] for point in train_on(iter([(inputs(torch.Generator()),) * 2]))["curve"]] == [0, 2, 4]


def test_the_mean_loss_counts_each_batch_as_often_as_it_has_units():
    """Six numbers with the loss 1, and two with the loss 5; two rows of each."""
    batches = [(torch.ones(2, 3),), (torch.full((2, 1), 5.0),)]
    assert mean_loss(nn.Identity(), lambda model, numbers: numbers.mean(), batches) == 2
    assert mean_loss(nn.Identity(), lambda model, numbers: numbers.mean(), batches, count=len) == 3
    for nothing in ([], [(torch.ones(0, 3),)]):
        with pytest.raises(ValueError, match="the batches hold nothing to measure"):
            mean_loss(nn.Identity(), lambda model, numbers: numbers.sum(), nothing)


@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_compiled_model_goes_on_as_a_plain_one_and_the_other_way_round(tmp_path, monkeypatch, compiled_first):
    def model(compiled):
        return torch.compile(small(), backend="eager") if compiled else small()

    stopped_at_3(tmp_path, monkeypatch, model(compiled_first))
    whole = by_hand(small(), None, resume=False)["curve"]
    assert by_hand(model(not compiled_first), tmp_path)["curve"] == whole
    assert not any("_orig_mod" in name for name in torch.load(tmp_path / "checkpoint.pt")["model"])


def test_a_part_in_evaluation_stays_so_and_a_whole_model_trains():
    model = LanguageModel(TOKENIZER.vocab, **SMALL)
    batch = evaluation_windows(SPLITS["train"], 8, 3)
    modes = []

    def loss(model, *batch):
        modes.append((model.training, model.blocks[0].training, model.blocks[1].training))
        return next_token_loss(model, *batch)

    def train_it():
        modes.clear()
        settings = Settings(steps=2, batch=3, evaluate_every=1)
        options = {"config": {}, "loss": loss, "device": "cpu", "progress": False}
        train(model, lambda generator, step: batch, [batch], settings, **options)

    model.blocks[0].eval()
    train_it()
    assert modes == [(False,) * 3, (True, False, True)] + [(False,) * 3, (True, False, True)] + [(False,) * 3]
    assert not model.blocks[0].training and model.blocks[1].training
    model.eval()
    train_it()
    assert modes[1] == (True, True, True)


def test_the_warm_up_follows_the_steps():
    assert [Settings(steps=steps).warmup for steps in (1, 20, 500, 1000, 4000)] == [0, 2, 50, 100, 100]
    assert Settings(steps=20, warmup=20).warmup == 20


def test_the_published_setting_of_a_small_model_can_be_written(monkeypatch):
    """Rates from 1e-3 to 1e-4, betas 0.9 and 0.99, no biases: the rate and AdamW get what was asked for."""
    made, adamw = [], torch.optim.AdamW

    def noted(*groups, **options):
        made.append(adamw(*groups, **options))
        return made[-1]

    monkeypatch.setattr(training.torch.optim, "AdamW", noted)
    settings = few(beta2=0.99, final_learning_rate=0.25, learning_rate=1e-3)
    model, record = run(settings, SMALL | {"bias": False})
    assert not any("bias" in name for name, _ in model.named_parameters()) and record["config"]["bias"] is False
    groups = made[0].param_groups
    assert all(group["betas"] == (0.9, 0.99) for group in groups)
    assert groups[0]["lr"] == pytest.approx(0.25e-3)  # of the last step


@pytest.mark.parametrize("command", ["", "trian", "train --step 5", "train suite", "train --suite tiny"])
def test_a_command_that_does_not_exist_is_exit_status_2(command, capsys):
    try:
        status = main(command.split())
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    assert status == 2 and ("train | suite | probes | bench | card" in out + err or "unrecognized arguments" in err)
