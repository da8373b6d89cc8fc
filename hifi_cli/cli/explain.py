"""How `hifi ls` prints lists and explains one name."""

import sys
from typing import TYPE_CHECKING, Any

import yaml

from hifi_cli.config import registry

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def print_columns(rows: list[list[str]]) -> None:
    """Rows in columns: as wide as the terminal and folded there, in a pipe a line each."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for number in range(len(rows[0])):
            is_name = number == 0
            table.add_column(
                no_wrap=is_name, overflow="fold", ratio=None if is_name else 4 - number, style="bold" if is_name else None
            )
        table.expand = True
        for row in rows:
            table.add_row(*row)
        Console(highlight=False, markup=False).print(table)
        return
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def print_explanation(kind: str, name: str) -> None:
    """One name: what it is, where it comes from, how it is run, and what its YAML and its code set."""
    content = registry.load(kind, name)
    if kind == "protocols":
        from hifi_cli.config.protocols import origins_of_unstated, protocol_chain

        origins = origins_of_unstated(protocol_chain(name))
        content["unstated"] = {key: f"{origin.source}: {origin.reason}" for key, origin in origins.items()}
    path = registry.find(kind, name)
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    rows = [
        [f"{kind.removesuffix('s')} {name}", str(content.pop("description", ""))],
        *([["  run", first.removeprefix("#").strip()]] if first.startswith("# hifi") else []),
        *(row for key, value in content.items() for row in _key_rows(key, value) if kind != "published"),
        ["  file", f"{path} (hifi cp {kind}/{name} DEST copies it)"],
    ]
    print_columns(rows)
    if kind == "methods":
        print_settings(name)


def _key_rows(key: str, value: Any) -> list[list[str]]:
    """A key of a YAML; a list of mappings, and a mapping of mappings or of origins, with a line for each of its entries."""
    if isinstance(value, list) and (key == "deviations" or any(isinstance(entry, dict) for entry in value)):
        return [[f"  {key}", ""], *(["", flow(entry).removeprefix("{").removesuffix("}")] for entry in value)]
    lines = isinstance(value, dict) and (key == "unstated" or all(isinstance(entry, dict) for entry in value.values()))
    if not lines:
        return [[f"  {key}", flow(value)]]
    return [
        [f"  {key}", ""],
        *([f"    {name}", flow(entry).removeprefix("{").removesuffix("}")] for name, entry in value.items()),
    ]


def print_settings(name: str) -> None:
    """A method's own settings: their values here, their defaults and their meanings."""
    from hifi_cli.config.run_config import HeadsConfig
    from hifi_cli.methods.base import implementation_of

    method = implementation_of(name)
    values = _config_over_bases(name)
    rows = []
    sections: list[tuple[str, Any]] = [("settings", method.Settings), *([("heads", HeadsConfig)] if method.needs_heads else [])]
    for section, model in sections:
        for key, field in model.model_fields.items():
            here = values.get(section, {}).get(key, field.default)
            default = "" if here == field.default else f" Default: {flow(field.default)}"
            rows.append([f"  {section}.{key}={flow(here)}", f"{one_line(field.description)}{default}"])
    print_columns([["  implemented", (method.__doc__ or "").partition("\n")[0]], *rows])


def config_keys() -> "dict[str, FieldInfo]":
    """All configuration keys of a run, with type, default and meaning."""
    from hifi_cli.config.base import fields_by_key
    from hifi_cli.config.run_config import RunConfig

    return fields_by_key(RunConfig)


def keys_of(key: str) -> "dict[str, FieldInfo]":
    """A configuration key, or all keys of a section or of `config`; empty if there is no such key."""
    return {name: field for name, field in config_keys().items() if key == "config" or f"{name}.".startswith(f"{key}.")}


def has_plain_default(field: "FieldInfo") -> bool:
    """Whether the default of a key is a value, not a section."""
    return isinstance(field.default, bool | int | float | str | None)


_CONFIG_BLOCKS = {"protocols": ("methods", "backbones", "tasks"), "backbones": (), "tasks": (), "methods": ("tasks",)}


def print_key(key: str) -> None:
    """A configuration key and the YAMLs that set it, or all keys of a section or of `config`."""
    rows = [
        [f"{name}={flow(field.default)}" if has_plain_default(field) else name, one_line(field.description)]
        for name, field in keys_of(key).items()
    ]
    if len(rows) == 1:
        rows += [[f"  {kind}", ", ".join(setters)] for kind, setters in _setters(key).items()]
    print_columns(rows)


def _setters(key: str) -> dict[str, list[str]]:
    """The shipped YAMLs that set a configuration key, as `name: value`, by kind; `(by task)` where tasks have their own."""
    from hifi_cli.config.base import flatten

    setters: dict[str, list[str]] = {}
    for kind in ("protocols", "backbones", "tasks", "methods"):
        for name in registry.names(kind):
            content = registry.load(kind, name)
            values = flatten(content.get("config") or {})
            blocks = {block: content.get(block) or {} for block in _CONFIG_BLOCKS[kind]}
            by = [block[:-1] for block, configs in blocks.items() if any(key in flatten(config) for config in configs.values())]
            by += ["case"] if any(key in flatten(case["config"]) for case in content.get("cases", [])) else []
            texts = [flow(values[key])] if key in values else []
            texts += [f"(by {'/'.join(by)})"] if by else []
            if texts:
                setters.setdefault(kind, []).append(f"{name}: {' '.join(texts)}")
    return setters


def one_line(text: str | None) -> str:
    """A docstring without its line breaks."""
    return " ".join((text or "").split())


def _config_over_bases(name: str) -> dict[str, Any]:
    """The `config` of a method over that of its bases."""
    from hifi_cli.config.methods import method_spec

    spec = method_spec(name)
    under = _config_over_bases(spec.base) if spec.base else {}
    sections = {key: {**under.get(key, {}), **value} for key, value in spec.config.items() if isinstance(value, dict)}
    return {**under, **spec.config, **sections}


def flow(value: Any) -> str:
    """A value as YAML in one line."""
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False).strip()
    return text.removesuffix("...").strip()
