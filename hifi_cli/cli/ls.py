"""`hifi ls`: list and explain tasks, methods, keys and all other names."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from hifi_cli.cli import options, schemas
from hifi_cli.config import registry

_KINDS = {  # what a word after `hifi ls` lists, with what it is; a folder of configs/ that is not here is listed too
    "tasks": "what is learned: data, inputs, labels, metrics",
    "methods": "what of an encoder trains, and how",
    "backbones": "pretrained encoders",
    "protocols": "how a paper runs its experiments",
    "tables": "tables of the papers, for hifi table",
    "figures": "figures of the papers, for hifi figure",
    "published": "the papers' printed numbers",
    "claims": "claims of the papers, for hifi claims",
    "grids": "sets of runs, for hifi grid",
    "sites": "machines that a grid can use",
    "runs": "finished and unfinished runs in a results directory, and their states",
    "schema": "JSON Schema of the YAMLs, for editors; hifi ls schema tasks for one kind",
}

_STATES = ("done", "diverged", "running", "failed", "unfinished", "damaged")  # those of run_status.State, less absent


def kinds() -> list[str]:
    """The kinds of things there are YAMLs of."""
    folders = sorted(path.name for path in registry.configs_directory().iterdir() if any(path.glob("*.yaml")))
    return sorted(folders, key=lambda kind: ([*_KINDS, kind].index(kind), kind))


def complete(incomplete: str) -> list[str]:
    """Completes kinds and the names of all kinds."""
    words = [*kinds(), "runs", "schema", *(name for kind in kinds() for name in registry.names(kind))]
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def ls(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND|NAME]...",
            help="A kind (tasks, methods, ...), a name, a configuration key, or schema.",
            autocompletion=complete,
        ),
    ] = None,
    status: Annotated[
        options.Words | None, options.several_of(*_STATES, help="Only runs in these states, with commas.", panel=options.WHICH)
    ] = None,
    results_dir: options.ResultsDir = Path("results"),
    debug: options.Debug = False,
) -> None:
    """List all names of a kind; explain a task, method, configuration key or other name; or print a JSON Schema."""
    from hifi_cli.cli import explain
    from hifi_cli.errors import UsageError

    if not words:
        counts = [[kind, f"{len(registry.names(kind))} {_KINDS.get(kind, '')}"] for kind in kinds()]
        return explain.print_columns([*counts, *([kind, _KINDS[kind]] for kind in ("runs", "schema"))])
    if words[0] == "schema":
        return _print_schema(words[1:])
    if words == ["runs"]:
        return _print_runs(results_dir, status or ())
    for word in words:
        if word in kinds():
            explain.print_columns([_summary(word, name) for name in registry.names(word)])
            continue
        folder, _, stem = word.rpartition("/")
        matching = [kind for kind in kinds() if stem in registry.names(kind) and folder in ("", kind)]
        if not matching and not explain.print_key(word):
            names = (name for kind in kinds() for name in registry.names(kind))
            known = [*kinds(), "runs", "schema", *names, *explain.config_keys()]
            raise UsageError(f"unknown kind or name '{word}'{registry.nearest(word, known)} (one of {', '.join(kinds())})")
        for kind in matching:
            explain.print_explanation(kind, stem)


def _summary(kind: str, name: str) -> list[str]:
    """Name, description and source."""
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
    print(json.dumps(schemas.schema_of_kind(kinds[0]) if kinds else schemas.schema_of_all(), indent=1))


def _print_runs(results_dir: Path, states: Collection[str]) -> None:
    from hifi_cli.durations import format_duration
    from hifi_cli.records.run_status import statuses

    for directory, run in statuses(results_dir):
        if not states or run.state in states:
            result = run.result
            score = f"{100 * result.score():.2f}" if result and result.is_done else ""
            took = format_duration(result.time_s) if result and result.time_s is not None else ""
            print(f"{run.state:10}  {score:>6}  {took:>8}  {directory.path}" + (f"  {run.detail}" if run.detail else ""))
