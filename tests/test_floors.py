"""The shape of the project: imports go to lower floors, and the light parts never load torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = {
    "errors": 0, "scoring": 1, "files": 1, "hub": 1, "config": 2, "records": 2.5, "models": 3, "reports": 3, "demo_data": 3,
    "methods": 4, "tasks": 4, "grids": 4, "runs": 5, "library": 5, "analysis": 6, "cli": 7, "__main__": 8, "__init__": 9,
}  # fmt: skip
FILES = sorted((ROOT / "hifi_cli").rglob("*.py"))


def wing(path):
    parts = path.relative_to(ROOT / "hifi_cli").with_suffix("").parts
    return parts[0]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "hifi_cli":
            yield from (f"hifi_cli.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_go_down(path):
    own = wing(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "hifi_cli" and len(parts) > 1 and parts[1] in FLOORS and parts[1] != own:
            assert FLOORS[parts[1]] < FLOORS[own], f"{path} imports {name}"


def test_methods_import_neither_one_another_nor_the_loop():
    for path in (ROOT / "hifi_cli" / "methods").glob("*.py"):
        for name in imports(path):
            assert not name.startswith("hifi_cli.methods.") or name == "hifi_cli.methods.base", path


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_file_has_two_ideas(path):
    assert len(path.read_text().splitlines()) <= 400


def test_no_methods_name_appears_in_the_loop():
    from hifi_cli.config import registry

    text = (ROOT / "hifi_cli" / "runs" / "trainer.py").read_text()
    assert not [name for name in registry.names("methods") if f'"{name}"' in text]


@pytest.mark.parametrize(
    "module",
    [
        "config.sources",
        "records.run_status",
        "scoring.head_choice",
        "grids.scheduler",
        "reports.table",
        "reports.run_records",
        "reports.figures.draw",
    ],
)
def test_light_modules_never_load_torch(module):
    code = f"import sys, hifi_cli.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
