"""`hifi ls`: what there is, and what it means."""

from typing import Annotated, Any

import typer

from hifi_cli import registry
from hifi_cli.cli import options, schemas

_KINDS = {  # what a word after `hifi ls` lists, with what it is; a folder of configs/ that is not here is listed too
    "tasks": "what is learned: data, inputs, labels, metrics",
    "methods": "what of an encoder trains, and how",
    "backbones": "pretrained encoders",
    "protocols": "how a paper runs its experiments",
    "tables": "tables of the papers, for hifi table",
    "published": "the papers' printed numbers",
    "schema": "JSON Schema of the YAMLs, for editors; hifi ls schema tasks for one kind",
}


def kinds() -> list[str]:
    """The kinds of things there are YAMLs of."""
    there = sorted(path.name for path in registry.configs_directory().iterdir() if any(path.glob("*.yaml")))
    return sorted(there, key=lambda kind: ([*_KINDS, kind].index(kind), kind))


def complete(incomplete: str) -> list[str]:
    """Completes kinds and the names of all kinds."""
    words = [*kinds(), "schema", *(name for kind in kinds() for name in registry.names(kind))]
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def ls(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND|NAME]...", help="A kind (tasks, methods, ...), a name, or schema.", autocompletion=complete
        ),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """List what there is of a kind, a line each; explain one task, method or other name; or print the JSON Schema."""
    from hifi_cli.cli import explain
    from hifi_cli.errors import UsageError

    if not words:
        counts = {kind: f"{len(registry.names(kind))} {_KINDS.get(kind, '')}" for kind in kinds()}
        return explain.print_columns([[kind, said] for kind, said in {**counts, "schema": _KINDS["schema"]}.items()])
    if words[0] == "schema":
        return _print_schema(words[1:])
    for word in words:
        if word in kinds():
            explain.print_columns([_line(word, name) for name in registry.names(word)])
            continue
        folder, _, stem = word.rpartition("/")
        found = [kind for kind in kinds() if stem in registry.names(kind) and folder in ("", kind)]
        if not found:
            known = [*kinds(), "schema", *(name for kind in kinds() for name in registry.names(kind))]
            raise UsageError(f"unknown kind or name '{word}'{registry.nearest(word, known)} (one of {', '.join(kinds())})")
        for kind in found:
            explain.print_explanation(kind, stem)


def _line(kind: str, name: str) -> list[str]:
    """Name, what it is, and where it comes from."""
    content = registry.load(kind, name)
    return [name, str(content.get("description", "")), _source(kind, content)]


def _source(kind: str, content: dict[str, Any]) -> str:
    if kind == "backbones":
        return next((f"{key} {content[key]}" for key in ("package", "path", "hub") if content.get(key)), "")
    return str(content.get("source") or content.get("paper") or content.get("published") or "")


def _print_schema(kinds: list[str]) -> None:
    import json

    from hifi_cli.errors import UsageError

    if len(kinds) > 1:
        raise UsageError(f"hifi ls schema prints one kind at a time: {' or '.join(kinds)}")
    print(json.dumps(schemas.of(kinds[0]) if kinds else schemas.whole(), indent=1))
