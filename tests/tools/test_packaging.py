"""One list of requirements, said in three files; this checkout is the one that is tested."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import synth_lib

ROOT = Path(__file__).resolve().parents[2]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf8"))


def bounds(lines):
    """{name: bounds} of requirement lines; a name twice would hide one of its bounds."""
    requirements = [Requirement(line) for line in lines]
    result = {requirement.name: requirement.specifier for requirement in requirements}
    assert len(result) == len(requirements)
    return result


def pins(file="constraints.txt"):
    lines = (ROOT / file).read_text(encoding="utf8").splitlines()
    return bounds(line for line in lines if line and not line.startswith("#"))


def test_environment_equals_pyproject():
    *conda, pip = ENVIRONMENT["dependencies"]
    assert pip["pip"][-1] == "-e ." and "pip" in conda
    conda.remove("pip")
    extras = [line for name in ("notebooks", "hf", "test", "book") for line in EXTRAS[name]]
    wanted = bounds(PROJECT["dependencies"] + extras)
    wanted = {CONDA_NAMES.get(name, name): bound for name, bound in wanted.items()}
    wanted["python"] = SpecifierSet(PROJECT["requires-python"])
    assert bounds(conda + pip["pip"][:-1]) == wanted


def test_environment_comes_from_conda_forge_alone():
    assert ENVIRONMENT["channels"] == ["conda-forge", "nodefaults"]


def test_requirements_have_lower_bounds_only():
    lines = PROJECT["dependencies"] + [line for extra in EXTRAS.values() for line in extra]
    for name, bound in bounds(lines).items():
        assert [part.operator for part in bound] == [">="], name


def test_every_requirement_is_pinned_within_its_bound():
    wanted = bounds(PROJECT["dependencies"] + [line for extra in EXTRAS.values() for line in extra])
    assert set(pins()) == set(wanted)
    for name, pin in pins().items():
        (part,) = pin
        assert part.operator == "==" and wanted[name].contains(part.version), name


def test_the_lower_bounds_are_the_versions_that_are_tested():
    wanted = bounds(PROJECT["dependencies"] + [line for extra in EXTRAS.values() for line in extra])
    lowest = pins("constraints-lowest.txt")
    assert set(lowest) == set(wanted)
    for name, pin in lowest.items():
        ((bound,), (part,)) = wanted[name], pin
        assert part.operator == "==" and Version(part.version) == Version(bound.version), name


def test_the_library_of_this_checkout_is_tested():
    assert Path(synth_lib.__file__).resolve().parent == ROOT / "synth_lib"
