"""Write docs/methods.md from the methods' YAMLs and classes: python scripts/make_methods_page.py (or make docs)."""

import inspect
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import yaml
from pydantic import BaseModel

from hifi_cli.config import registry
from hifi_cli.config.methods import MethodSpec, method_spec
from hifi_cli.config.run_config import HeadsConfig
from hifi_cli.methods import base

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
HEADER = """# Methods

[README](../README.md) · [add a method](extend.md) · [protocols](reproduce.md)

What each method trains, its settings, and where it differs from its paper. A *method* is a YAML in `configs/methods/`; several
YAMLs can share one implementation in `hifi_cli/methods/`. Every setting can be changed on the command line, for example
`settings.r=16`. These commands show the learning rate and the batch size of each task (HiFi's table 5) and all other training
settings:

```
hifi ls lora
hifi train --task rte --method lora --dry-run
```

Every method also trains the task head (BitFit with exceptions that its section states). `make docs` generates this page.
"""


def page() -> str:
    """Return the page: one section per implementation, in the order of the implementations' names."""
    methods: dict[str, dict[str, MethodSpec]] = defaultdict(dict)
    for name in registry.names("methods"):
        spec = method_spec(name)
        methods[spec.implementation][name] = spec
    return "\n".join([HEADER, *(_section(implementation, methods[implementation]) for implementation in sorted(methods))])


def _section(implementation: str, specs: dict[str, MethodSpec]) -> str:
    method = base.implementation(implementation)
    lines = [
        f"## {_title(implementation)}",
        "",
        inspect.cleandoc(method.__doc__ or ""),
        "",
        "| method | what it is | source | settings |",
        "|---|---|---|---|",
        *(_row(f"`{name}`", spec.description, spec.source, _code(spec.config)) for name, spec in specs.items()),
        "",
        *_settings("settings", method.Settings),
        *(_settings("heads", HeadsConfig) if method.needs_heads else []),
    ]
    deviations = [f"- `{name}`: {deviation}" for name, spec in specs.items() for deviation in spec.deviations]
    if deviations:
        lines += ["Differences from the paper or its code, and choices that they leave open:", "", *deviations, ""]
    return "\n".join(lines)


def _title(implementation: str) -> str:
    """Return the name that the module's docstring begins with, without references in parentheses."""
    text = import_module(f"hifi_cli.methods.{implementation}").__doc__ or implementation
    return re.sub(r" \([^)]*\)", "", text.partition(":")[0])


def _settings(section: str, model: type[BaseModel]) -> list[str]:
    """Return a table of a model's keys with their defaults and meanings; nothing if it has no keys."""
    if not model.model_fields:
        return []
    rows = [
        _row(f"`{section}.{key}`", _code(field.default), " ".join((field.description or "").split()))
        for key, field in model.model_fields.items()
    ]
    return ["| setting | default | meaning |", "|---|---|---|", *rows, ""]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(value: object) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False).strip()
    return f"`{text.removesuffix('...').strip()}`" if value != {} else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
