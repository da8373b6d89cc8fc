"""The program's size; a commit that raises a bound says why."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "hifi_cli", ROOT / "tests"
# A change that makes the program smaller lowers its bound here; one that raises it says why.
BOUNDS = {"statements": 8500, "modules": 96, "statements of tests": 8721, "modules of a run": 43}
TRAIN = [
    "train",
    "--protocol",
    "demo",
    "--method",
    "hifi-layerwise",
    "--quiet",
    "limit=8",
    "epochs=1",
    "scoring.samples=4",
]
COUNT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] == "hifi_cli"))))
from hifi_cli.cli.app import main
main()
"""


def statements(folder):
    """Python statements without docstrings, so that formatting does not count."""
    nodes = (
        node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    )
    return sum(isinstance(node, ast.stmt) and not is_text(node) for node in nodes)


def is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def modules(folder):
    return len(list(folder.rglob("*.py")))


def test_the_program_does_not_grow():
    sizes = {
        "statements": statements(PACKAGE),
        "modules": modules(PACKAGE),
        "statements of tests": statements(TESTS),
    }
    assert {name: size for name, size in sizes.items() if size > BOUNDS[name]} == {}


def test_what_only_formats_or_explains_is_no_statement(tmp_path):
    (tmp_path / "a.py").write_text(
        '"""Text."""\ndef f(x):\n    """Text."""\n    if x: return 1\n    return (\n        2\n    )\n'
    )
    assert statements(tmp_path) == 4


@pytest.mark.slow
def test_a_run_does_not_import_more_of_the_program(tmp_path):
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-c", COUNT, *TRAIN],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = json.loads(ended.stdout.splitlines()[-1])
    assert len(imported) <= BOUNDS["modules of a run"], imported
