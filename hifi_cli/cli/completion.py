"""Shell completion of `key=value`."""

from typing import Any, Literal

import typer


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes a configuration key and, after `=`, its values where they are words."""
    from hifi_cli.config.base import fields_by_key
    from hifi_cli.config.run_config import RunConfig

    earlier = ctx.params.get("overrides") or []
    key, equals, value = incomplete.rpartition("=")
    prefix = f"{key}="
    if not equals and earlier[-1:] == ["="]:  # bash takes `=` for a word of its own
        key, prefix, value = earlier[-2], "", incomplete
    fields = fields_by_key(RunConfig)
    if not key:
        sections = {name.rpartition(".")[0] for name in fields}
        return [f"{name}=" for name in fields if name.startswith(incomplete) and name not in sections]
    kind = fields[key].annotation if key in fields else None
    choices = ["true", "false"] if kind is bool else [word for word in _literals(kind) if isinstance(word, str)]
    return [f"{prefix}{word}" for word in choices if word.startswith(value)]


def _literals(kind: Any) -> list[Any]:
    """The values of a Literal, also within a union."""
    from typing import get_args, get_origin

    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [value for part in get_args(kind) for value in _literals(part)]
