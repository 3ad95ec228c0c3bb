"""Training on a Mac, where there is none: a stand-in takes what is sent to "mps", and refuses what mps refuses."""

import json

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from synth_lib.lab.train import Settings, train_language_model
from synth_lib.text.corpora import CharacterTokenizer

TEXT = "the cat sat on the mat, the dog sat on the log. " * 30
TOKENIZER = CharacterTokenizer(TEXT)
SPLITS = {"train": TOKENIZER.encode(TEXT), "valid": TOKENIZER.encode(TEXT[:400])}
SIZES = {"score": "random + dense", "d_model": 12, "head": 3, "layer": 1, "max_length": 8, "dropout": 0.0}


class StandIn(TorchFunctionMode):
    """Tensors sent to mps stay on the CPU, marked; so is what is computed from one, until it is fetched.

    As on the device, float64 is a TypeError there, and so is a generator of the CPU.
    """

    sent = 0  # tensors of tokens

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, asked = kwargs or {}, []
        if function is torch.device:
            return function(*args, **kwargs)

        def here(value):
            device = value.type if isinstance(value, torch.device) else value
            if isinstance(device, str) and device.split(":")[0] == "mps":
                asked.append(device)
                return torch.device("cpu")
            return value

        there = any(getattr(value, "on_mps", False) for value in tree_leaves((args, kwargs)))
        args, kwargs = tree_map(here, (args, kwargs))
        fetched = function in (torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.numpy) or (
            function is torch.Tensor.to and not asked and any(str(value) == "cpu" for value in args[1:])
        )
        result = function(*args, **kwargs)
        if there and fetched and isinstance(result, torch.Tensor):
            return result.clone()  # without the mark
        self.sent += bool(asked) and isinstance(result, torch.Tensor) and result.dtype == torch.int64
        if asked or (there and not fetched):
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    if value.dtype == torch.float64:
                        raise TypeError("Cannot convert a MPS Tensor to float64 dtype: the MPS framework has none")
                    value.on_mps = True
            if isinstance(kwargs.get("generator"), torch.Generator):
                raise TypeError("Expected a 'mps' device type for generator but found 'cpu'")
        return result


@pytest.fixture
def mac(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


def run(device, folder, **changes):
    settings = Settings(**{"steps": 6, "batch": 4, "warmup": 2, "evaluate_every": 3} | changes)
    options = {"windows": 6, "progress": False, "device": device, "folder": folder}
    return train_language_model(SIZES, settings, TOKENIZER, SPLITS, **options)[1]


def test_a_run_on_mps_is_that_on_the_cpu_in_single_precision(mac, tmp_path):
    with StandIn() as stand_in:
        run("auto", tmp_path / "mps")
    run("cpu", tmp_path / "cpu")
    mps, cpu = (json.loads((tmp_path / name / "record.json").read_text(encoding="utf8")) for name in ("mps", "cpu"))
    assert (mps["device"], cpu["device"]) == ("mps", "cpu")
    assert stand_in.sent > 24  # as many as the evaluations alone send; the steps send 12
    assert mps["curve"] == cpu["curve"]


def test_the_stand_in_refuses_what_mps_refuses():
    with StandIn():
        there = torch.ones(3, device="mps")
        assert (2 * there).on_mps and not hasattr(there.cpu() * 1, "on_mps")
        for wrong in (
            lambda: there.double(),
            lambda: (there + 1).to(torch.float64),
            lambda: torch.zeros(2, dtype=torch.float64, device="mps"),
            lambda: torch.randn(2, generator=torch.Generator(), device="mps"),
        ):
            with pytest.raises(TypeError, match="MPS|mps"):
                wrong()
