"""The shape of the project: who may import whom, one name for one thing, and what never loads torch."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import networkx
import pytest

PACKAGE = Path(__file__).parents[2] / "hifi_cli"
# From the top floor to the ground; a package imports only from floors below its own. A floor holds one
# package, or a module of hifi_cli itself.
FLOORS = [
    "__main__",
    "cli",
    "figures",
    "grids",
    "__init__",
    "api",
    "runs",
    "heads",
    "training",
    "reports",
    "drawing",
    "methods",
    "records",
    "models",
    "tasks",
    "config",
    "environment",
    "_version",
    "launcher",
    "stopping",
    "run_paths",
    "locks",
    "digest_cache",
    "parquet_files",
    "files",
    "digests",
    "hub",
    "row_tests",
    "paired_tests",
    "errors",
    "text",
]
SHARED_BY_METHODS = ("base", "common", "find", "peft")
WITHOUT_TORCH = ["config", "records", "grids", "reports", "drawing"]


def name_of(path):
    """`hifi_cli.training.loop` for hifi_cli/training/loop.py; a package's name for its __init__.py."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def syntax_trees():
    """The syntax tree of each module."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported_names(tree):
    """Every imported name with its module, imports inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name):
    """The longest part of a dotted name that is a module of the project; None if there is none."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


@cache
def imports():
    """The project's modules that each module imports."""
    return {
        name: {module for imported in imported_names(tree) if (module := module_of(imported))}
        - {name}
        for name, tree in syntax_trees().items()
    }


def package_of(module):
    return module.split(".")[1] if "." in module else "__init__"


def test_every_package_has_a_folder_of_tests():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    folders = {path.parent.name for path in (PACKAGE.parent / "tests").glob("*/test_*.py")}
    assert folders == packages | {"robustness", "golden", "project"}


def test_imports_go_down():
    floor = {package: index for index, package in enumerate(FLOORS)}
    packages = {package_of(module) for module in MODULES}
    assert packages == set(FLOORS)
    upwards = [
        f"{module} imports {imported}"
        for module, targets in imports().items()
        for imported in targets
        if floor[package_of(imported)] < floor[package_of(module)]
    ]
    assert upwards == []


def test_no_modules_import_one_another_in_a_circle():
    graph = networkx.DiGraph(
        (module, imported) for module, targets in imports().items() for imported in targets
    )
    assert [
        sorted(circle)
        for circle in networkx.strongly_connected_components(graph)
        if len(circle) > 1
    ] == []


def test_everything_imported_is_declared():
    """A dependency of a dependency may go."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for name in ("minilm", "grid", "track") for line in extras[name]),
    ]
    declared = {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in lines}
    names = {
        name.partition(".")[0] for tree in syntax_trees().values() for name in imported_names(tree)
    }
    others = names - {PACKAGE.name, *sys.stdlib_module_names}
    distributions = packages_distributions()
    undeclared = {
        name
        for name in others
        if declared.isdisjoint(found.lower().replace("_", "-") for found in distributions[name])
    }
    assert undeclared == set() and {"torch", "yaml", "parsl"} < others


def test_methods_import_no_other_but_those_that_they_extend_nor_what_runs_them():
    methods = {
        module: targets
        for module, targets in imports().items()
        if module.startswith("hifi_cli.methods.")
    }
    forbidden = {
        module: targets
        & (methods.keys() - {f"hifi_cli.methods.{name}" for name in SHARED_BY_METHODS})
        for module, targets in methods.items()
    }
    assert len(methods) > 10
    assert {module: targets for module, targets in forbidden.items() if targets} == {}


def test_light_packages_never_load_torch():
    """Every module of them, one after the other in one process that has nothing else loaded."""
    modules = [
        *(module for module in MODULES if package_of(module) in WITHOUT_TORCH),
        "hifi_cli.heads.ranking",
        "hifi_cli.runs.cost",
    ]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n    assert 'torch' not in sys.modules, name"
    ended = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


# Packages whose objects are complete when they are made.
OF_COMPLETE_OBJECTS = ("figures", "heads", "methods", "models", "runs", "training")
# Names that hold objects of libraries there: tensors, modules, tokenizers and configurations.
OF_LIBRARIES = {
    *("adapter", "allocator", "as_peft_names", "attention", "backend", "config", "linear"),
    *("matmul", "model", "parameter", "tokenizer", "torch", "value"),
}
# What an object may change of its own parts: the Trainer counts in one, and others hold libraries'.
OWN_PARTS = {
    "self.progress",
    "self.base.config",
    "self.values[name]",
    "self.tuner.peft_config['default']",
}


def assigned_attributes(tree):
    """The objects whose attributes a module assigns, as they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute):
                    yield ast.unparse(part.value), part.lineno


@pytest.mark.parametrize("package", OF_COMPLETE_OBJECTS)
def test_no_object_is_finished_by_another(package):
    """An attribute is set by the object that has it; arguments are what others may decide."""
    found = []
    for path in sorted((PACKAGE / package).rglob("*.py")):
        for owner, line in assigned_attributes(ast.parse(path.read_text())):
            root = owner.partition(".")[0]
            is_own = owner in {"self", "ctx", *OWN_PARTS}
            if not is_own and root not in OF_LIBRARIES:
                found.append(f"{package}/{path.name}:{line}: {owner}")
    assert found == []
