"""The pages and scripts of the project."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    path.name: path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}


def load_script(name):
    """A module of scripts/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_yaml(hifi, name, path, *overrides):
    """Write a YAML to a file, as `hifi ls NAME > PATH` does."""
    answer = hifi(f"ls {name}", *overrides)
    assert answer.code == 0, answer.err
    Path(path).write_text(answer.out)
