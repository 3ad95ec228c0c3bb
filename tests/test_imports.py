"""The rule of imports, those inside functions too: the subject needs no wing, and no module needs itself again."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATHS = [path.relative_to(ROOT) for folder in ("synth_lib", "tools") for path in sorted((ROOT / folder).rglob("*.py"))]
MODULES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}
MAY_IMPORT = {
    "subject": {"subject"},
    "text": {"subject", "text"},
    "checks": {"subject", "checks"},
    "sparse": {"subject", "sparse"},
    "lab": {"subject", "text", "sparse", "lab"},
    "tools": {"subject", "text", "checks", "sparse", "lab", "tools"},
}


def wing(module):
    first, *rest = MODULES[module].parts
    return "tools" if first == "tools" else rest[0] if len(rest) > 1 else "subject"


def imports(path):
    """The modules of this repository that a file names."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: an import from a dot; name the module in full"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (names | {node.module} if names - set(MODULES) else names) & set(MODULES)
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & set(MODULES)


GRAPH = {module: set(imports(path)) for module, path in MODULES.items()}


@pytest.mark.parametrize("module", GRAPH)
def test_a_module_imports_only_what_its_wing_may(module):
    # The bank of a chapter may also have what the cells of that chapter import: a hand-out carries that anyway.
    chapter = module.removeprefix("synth_lib.checks.bank.chapter_")
    (source,) = (ROOT / "notebooks" / "src").glob(f"{chapter}_*.py") if chapter.isdigit() else [None]
    for other in GRAPH[module] - set(imports(source) if source else ()):
        assert wing(other) in MAY_IMPORT[wing(module)], f"{module} ({wing(module)}) imports {other} ({wing(other)})"


def test_no_circle():
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(f"The imports go round in a circle: {' is imported by '.join(error.args[1])}.", pytrace=False)


def test_the_subject_is_small():
    lines = sum(len(path.read_text(encoding="utf8").splitlines()) for path in (ROOT / "synth_lib").glob("*.py"))
    assert lines <= 2000, f"the flat files of synth_lib have {lines} lines: what is no subject goes into a wing"
