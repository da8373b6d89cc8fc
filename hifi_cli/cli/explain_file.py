"""How `hifi ls FILE.yaml` explains a user's own YAML: every key with its value, its default and its meaning."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from hifi_cli.cli import explain, schemas
from hifi_cli.config import registry
from hifi_cli.config.base import fields_by_key
from hifi_cli.errors import UsageError

Fields = Mapping[str, FieldInfo]


def print_file(path: Path) -> None:
    """The kind of a YAML, and its keys: those that it sets, then those that it leaves at their defaults.

    Raises:
        MissingError: no such file.
        UsageError: not a YAML mapping, or a key that its kind does not have.
    """
    content = registry.read_yaml(path)
    kind = kind_of(path, content)
    fields = _fields(kind, content)
    rows = [[kind.removesuffix("s"), str(path)], *_set_rows(content, fields, path)]
    if kind != "config":  # a -c file sets a few of many keys
        absent = {key: field for key, field in fields.items() if key not in content and "." not in key}
        rows += [row for key, field in absent.items() for row in _key_rows(key, "(not set)", field)]
    explain.print_columns(rows)
    if kind == "methods":
        registry.register_user_file(kind, path)
        explain.print_settings(path.stem)


def kind_of(path: Path, content: Mapping[str, Any]) -> str:
    """The kind that the file's schema comment names, or else the one that has most of its keys."""
    named = re.search(r"\$schema=\S*/(\w+)\.json", path.read_text(encoding="utf-8"))
    if named and named[1] in schemas.KINDS:
        return named[1]
    return max(schemas.KINDS, key=lambda kind: len(content.keys() & _fields(kind, content).keys()))


def _fields(kind: str, content: Mapping[str, Any]) -> dict[str, FieldInfo]:
    """The fields of a kind, by dotted key; of tables those of the type that the content names."""
    from hifi_cli.reports.table_types import TABLE_TYPES

    models = schemas.models_of_kind(kind)
    if kind == "tables" and content.get("kind", "scores") in TABLE_TYPES:
        models = [TABLE_TYPES[str(content.get("kind", "scores"))].spec]
    fields = {key: field for model in models for key, field in fields_by_key(model).items()}
    if kind == "backbones":
        fields |= {key: FieldInfo(default=None, description=text) for key, text in schemas.BACKBONE_KEYS.items()}
    return fields


def _set_rows(content: Mapping[str, Any], fields: Fields, path: Path, prefix: str = "") -> Iterator[list[str]]:
    """The rows of the keys that are set, in the file's order."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key not in fields:
            raise UsageError(f"{path}: unknown key '{key}'{registry.nearest(key, fields)}")
        field = fields[key]
        inner = {other: of_other for other, of_other in fields.items() if other.startswith(f"{key}.")}
        if isinstance(value, Mapping) and value and inner:
            yield [key, explain.one_line(field.description)]
            yield from _set_rows(value, fields, path, f"{key}.")
        elif isinstance(value, Mapping) and key == "config":
            yield [key, explain.one_line(field.description)]
            run_keys = {f"config.{name}": of_key for name, of_key in explain.config_keys().items()}
            yield from _set_rows(value, run_keys, path, "config.")
        else:
            yield from _key_rows(key, explain.flow(value), field)


def _key_rows(key: str, value: str, field: FieldInfo) -> Iterator[list[str]]:
    """The value of a key, and below it the meaning and the default."""
    default = field.get_default(call_default_factory=True)
    has_default = not field.is_required() and isinstance(default, bool | int | float | str | list | dict | None)
    suffix = "Required." if field.is_required() else f"Default: {explain.flow(default)}" if has_default else ""
    yield [key, value]
    yield ["", f"{explain.one_line(field.description)} {suffix}".rstrip()]
