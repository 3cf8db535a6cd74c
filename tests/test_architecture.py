"""The order of the subpackages: imports only go down, function-local ones and those for type checkers included.

    cli ─┬─> demo, sweep, studies ─> report ─┐
         ├─> evaluation ─┬─> benchmarks ─────┼─> attacks ──> perturb ──> encoders ──> checkpoints ──> models, data
         │               └─> metrics ────────┘
         └─> training ───┬─> losses ─> similarity
                         └─> perturb, checkpoints, data

`report` reads what `evaluation` writes, and `metrics` the statistics that `similarity` counts.
"""

import ast
import functools
import graphlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rococo_jax.version import USERS_OF_EMBEDDINGS
from tests.support.paths import CHECKOUT

PACKAGE = "rococo_jax"
# A subpackage may import those named beside it, and whatever these may import.
BELOW = {
    "models": (),
    "data": (),
    "similarity": (),
    "checkpoints": ("models", "data"),
    "encoders": ("checkpoints",),
    "losses": ("similarity",),
    "metrics": ("similarity",),
    "perturb": ("encoders",),
    "training": ("losses", "perturb"),
    "attacks": ("perturb", "metrics"),
    "benchmarks": ("attacks",),
    "evaluation": ("benchmarks",),
    "report": ("evaluation",),
    "studies": ("report", "training"),
    "demo": ("report", "training"),
    "sweep": ("report", "training"),
    "cli": ("demo", "sweep", "studies"),
}
# One file each, beside the subpackages: they import none of them, and each of them may import these files.
FOUNDATION = (
    "config_fields config_files cores errors hub_files locks npz options process_group processes progress runtime "
    "safe_paths storage texts version"
).split()
# What a subpackage must not know, although the order would allow it.
NOT_KNOWN = {"report": ("encoders", "checkpoints", "models", "training"), "benchmarks": ("models", "checkpoints")}


def name_of(path: Path) -> str:
    """The dotted name of a module's file."""
    return ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted((CHECKOUT / PACKAGE).rglob("*.py"))}


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports(name: str) -> Iterator[str]:
    """Return modules of the package that a file imports, wherever in the file."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            if node.module.split(".")[0] == PACKAGE:
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (each if each in MODULES else node.module for each in full)


@functools.cache
def graph() -> dict[str, set[str]]:
    """Every module with the modules that it imports."""
    return {name: set(imports(name)) - {name} for name in MODULES}


def subpackage(name: str) -> str:
    """`rococo_jax.data.images` -> `data`."""
    return name.split(".")[1] if "." in name else ""


def all_below(name: str) -> set[str]:
    """Return the packages that a package may import."""
    return {name, *FOUNDATION}.union(*(all_below(other) for other in BELOW[name]))


def test_the_architecture_lists_every_subpackage():
    assert {subpackage(name) for name in MODULES} - {"", "__main__"} == {*BELOW, *FOUNDATION}


@pytest.mark.parametrize("name", [*BELOW, *FOUNDATION])
def test_packages_import_only_from_lower_packages(name):
    allowed = all_below(name) if name in BELOW else {*FOUNDATION}
    allowed = allowed - {*NOT_KNOWN.get(name, ())} | {"version", ""}
    inside = [(module, other) for module, others in graph().items() if subpackage(module) == name for other in others]
    assert [f"{module} imports {other}" for module, other in inside if subpackage(other) not in allowed] == []


def test_imports_contain_no_cycles():
    # The package's own __init__ loads what it names on first use, and is imported by nothing inside.
    graphlib.TopologicalSorter(graph()).prepare()  # or a CycleError names one


def test_files_stay_under_their_maximum_length():
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > 400} == {}


@functools.cache
def names_in(module: str) -> set[str]:
    """Return the names that a module defines or imports, and the modules below it."""
    found = {name.removeprefix(f"{module}.") for name in MODULES if name.rpartition(".")[0] == module}
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_every_name_that_a_script_imports_exists():
    """No test runs these scripts, so that a moved name could break one unnoticed."""
    folders = [CHECKOUT / name for name in ("experiments", "perf", "tools", "launch", "configs")]
    for path in itertools.chain.from_iterable(folder.rglob("*.py") for folder in folders):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
                missing = {name.name for name in node.names} - names_in(node.module)
                assert not missing, f"{path}:{node.lineno}: {missing}"


def test_all_code_that_an_embedding_depends_on_is_part_of_its_cache_key():
    """Encoders, image sets, and everything that they import, except for the metrics of a benchmark."""
    sets = {name for name, tree in trees().items() if "content" in methods(tree)}
    todo, reached = [*sets, *(name for name in MODULES if subpackage(name) in ("encoders", "perturb"))], set()
    while todo:
        if (name := todo.pop()) not in reached and subpackage(name) not in ("metrics", "similarity"):
            reached.add(name)
            todo += graph()[name]
    assert {subpackage(name) for name in reached} & USERS_OF_EMBEDDINGS == set()
    assert {"data", "models", "checkpoints", "benchmarks", "runtime"} < {subpackage(name) for name in reached}


def methods(tree: ast.Module) -> set[str]:
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


# Flags in texts that are not messages: XLA's, CSS variables, overrides of a config, and commands in full.
NO_MESSAGE = re.compile(r"--xla_|var\(--|--config\.|`?rococo [a-z-]+ .*")
# Words of commands: of those that a sweep starts, and of those with a name in the middle.
COMMAND_WORDS = {
    f"{PACKAGE}.sweep.plan": {"--config", "--workdir"},
    f"{PACKAGE}.benchmarks.own": {"_choices --out OUT`"},
    f"{PACKAGE}.report.facts": {" --limit ", " --seeds "},
}


def test_messages_outside_of_the_command_line_name_arguments_and_not_flags():
    """The Python interface has none: errors, results and notes name the argument."""
    named = {
        f"{name}:{node.lineno}: {node.value[:60]!r}"
        for name, tree in trees().items()
        if subpackage(name) not in ("cli", "options")
        for node in set(ast.walk(tree)) - docstrings(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and re.search(r"(?<![-\w])--[a-z]", NO_MESSAGE.sub("", node.value))
        and node.value not in COMMAND_WORDS.get(name, ())
    }  # fmt: skip
    assert named == set()


def docstrings(tree: ast.AST) -> set[ast.AST]:
    """The constants that are a module's, class's or function's docstring."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    return {body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)}
