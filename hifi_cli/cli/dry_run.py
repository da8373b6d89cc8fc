"""The output of `hifi train --dry-run`: every value with its source and its origin, and the plan of each run."""

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from hifi_cli.cli import options
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import DEFAULT, RunConfig
from hifi_cli.config.specs import Origin, SourceKind
from hifi_cli.methods.find import values_of
from hifi_cli.runs.plan import Line, Plan, Planner
from hifi_cli.runs.workspace import Workspace

# The column of the sources; a longer value moves its source to the right.
_SOURCE_COLUMN = 44
# The words of this page for the origins of the YAMLs.
_ORIGIN_NAMES: dict[SourceKind, str] = {"text": "paper", "code": "code", "ours": "ours"}


def print_plans(configs: Sequence[RunConfig], workspace: Workspace, form: str) -> bool:
    """Print what the runs of a command would be; return whether nothing is missing.

    Args:
        configs: of the runs.
        workspace: has data and results.
        form: `text`, or `json` for a list of all values, their sources and origins, and the plan of
            each run.
    """
    planner = Planner(workspace)
    if form == "json":
        plans = [planner.plan(config) for config in configs]
        documents = [_document(*pair) for pair in zip(configs, plans, strict=True)]
        options.print_json(documents)
    else:
        plans = _print_documents(configs, planner)
    return all(plan.is_complete for plan in plans)


def _document(config: RunConfig, plan: Plan) -> dict[str, Any]:
    """Return the values of a run, the source and the origin of each by dotted key, and its plan."""
    values = values_of(config)
    origins = {}
    for key in flatten(values):
        origin = config.origin_of(key)
        if origin is not None:
            origins[key] = {**origin.model_dump(), "source": _ORIGIN_NAMES[origin.source]}
    return {
        "config": values,
        "sources": {key: config.layer_of(key) for key in flatten(values)},
        "origins": origins,
        "plan": [{"about": name, "text": text} for name, text in plan.lines],
    }


def _print_documents(configs: Sequence[RunConfig], planner: Planner) -> list[Plan]:
    """Print the first run as a YAML document and of each other run what differs from the one before.

    Comments have the source and the origin of each value, then the reasons, and the run's plan. Of
    several runs, defaults and reasons are left out: they would bury what distinguishes the runs. On
    a terminal, long texts take several lines.

    Returns:
        The plans.
    """
    width = Console().width if sys.stdout.isatty() else sys.maxsize
    is_alone = len(configs) == 1
    before: dict[str, Any] = {}
    printed: list[Line] = []
    plans: list[Plan] = []
    for config in configs:
        values = values_of(config)
        flat = flatten(values)
        if before:
            print("--- # as before, except for")
            changed = {key: flat[key] for key in flat if before.get(key, ...) != flat[key]}
            _print_yaml(changed, config)
        else:
            print("---")
            _print_whole(values, config, with_defaults=is_alone)
        before = flat
        plan = planner.plan(config)
        lines = plan.lines
        if is_alone:
            lines = [*_reasons(config, flat), *plan.lines]
        for line in lines:
            if line not in printed:
                _print_line(*line, width)
        printed = lines
        plans.append(plan)
    return plans


def _print_whole(values: Mapping[str, Any], config: RunConfig, *, with_defaults: bool) -> None:
    """Print a configuration as YAML: first the keys and sections in which anything is set.

    Args:
        values: of the configuration.
        config: it says what set each value.
        with_defaults: whether the other keys follow; else a line says how they are shown.
    """
    of_default = {}
    others = {}
    for key, value in values.items():
        inner = {key: value}
        layers = {config.layer_of(name) for name in flatten(inner)}
        if layers <= {DEFAULT}:
            of_default[key] = value
        else:
            others[key] = value
    _print_yaml(others, config)
    if not with_defaults:
        print("# defaults and reasons: --dry-run with one run, or --format json")
        return
    print("# defaults")
    _print_yaml(of_default, config)


def _print_line(name: str, text: str, width: int) -> None:
    """Print a reason or a line of a plan as a comment of YAML, wrapped at a width."""
    wrapped = textwrap.fill(
        text,
        width,
        initial_indent=f"# {name:10} ",
        subsequent_indent=f"{'#':13}",
        break_long_words=False,
        break_on_hyphens=False,
    )
    print(wrapped, flush=True)


def _print_yaml(values: Mapping[str, Any], config: RunConfig, section: str = "") -> None:
    """Print a mapping as YAML, a key each line; `section` is the dotted key of the mapping."""
    indent = "  " * section.count(".")
    for key, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{options.yaml_value(key)}:")
            _print_yaml(value, config, f"{section}{key}.")
        else:
            line = f"{indent}{options.yaml_value(key)}: {options.yaml_value(value)}"
            print(f"{line:{_SOURCE_COLUMN}}  # {_came_about(f'{section}{key}', config)}")


def _came_about(key: str, config: RunConfig) -> str:
    """Return in words what set a key, and where its value comes from if a YAML says it."""
    layer = config.layer_of(key)
    origin = config.origin_of(key)
    if origin is None:
        return layer
    name = _ORIGIN_NAMES[origin.source]
    if not origin.where:
        return f"{layer}; {name}"
    return f"{layer}; {name}: {origin.where}"


def _reasons(config: RunConfig, keys: Iterable[str]) -> list[Line]:
    """Return the reasons of values that no source states as they are, each once with its keys.

    Returns:
        Lines of whose choice it is, and the keys with the reason: papers' first, ours last.
    """
    keys_of: dict[Origin, list[str]] = {}
    for key in keys:
        origin = config.origin_of(key)
        if origin is not None and origin.reason:
            keys_of.setdefault(origin, []).append(key)
    lines = []
    for source, name in _ORIGIN_NAMES.items():
        for origin, explained in keys_of.items():
            if origin.source == source:
                lines.append((name, f"{', '.join(explained)}: {origin.reason}"))
    return lines
