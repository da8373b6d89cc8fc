"""`hifi ls`: all names, the YAML of a name, and the meaning of a configuration key."""

import re
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from hifi_cli.cli import options, show
from hifi_cli.config import registry
from hifi_cli.config.choices import RunSortKey

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_KINDS = {  # what a word after `hifi ls` lists, with what it is: registry.KINDS, and runs
    "tasks": "data, inputs, labels and metrics",
    "methods": "fine-tuning methods: which parameters train, and how",
    "backbones": "pretrained encoders",
    "protocols": "experimental setups of the papers, for a laptop and for the demo",
    "tables": "tables of the papers and others, for hifi table",
    "figures": "figures of the papers and others, for hifi figure",
    "published": "the papers' printed numbers",
    "claims": "claims of the papers and our own questions, for hifi claims",
    "grids": "runs of a table, a figure, claims or a search, for hifi grid",
    "sites": "machines and clusters, for hifi grid --engine parsl",
    "runs": "finished and unfinished runs in a results directory, and their states",
}

_STATES = ("done", "diverged", "running", "unfinished", "damaged")


def complete(incomplete: str) -> list[str]:
    """Completes kinds, the names of all kinds, and kind/name."""
    names = [word for kind in registry.KINDS for name in registry.names(kind) for word in (name, f"{kind}/{name}")]
    words = [*registry.KINDS, "runs", *names]
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def ls(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND|NAME|KEY]...",
            help="A kind (tasks, methods, ...), a name (tasks/rte where several kinds share it), a configuration key, or a data"
            " file, with key=value for how it is read.",
            autocompletion=complete,
        ),
    ] = None,
    status: Annotated[
        options.Words | None, options.several_of(*_STATES, help="Only runs in these states, with commas.", panel=options.WHICH)
    ] = None,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    backbone: options.OnlyBackbone = None,
    protocol: options.OnlyProtocol = None,
    sort: Annotated[RunSortKey, typer.Option(help="Order of the runs.", rich_help_panel=options.OUTPUT)] = "path",
    format: Annotated[  # noqa: A002
        Literal["text", "json", "csv"], typer.Option("--format", help="Format of the output.", rich_help_panel=options.OUTPUT)
    ] = "text",
    results_dir: options.ResultsDir = Path("results"),
    debug: options.Debug = False,
) -> None:
    """List all names of a kind, print the YAML of a name or of a data file's task, or explain a configuration key.

    A YAML that is redirected to a file can be edited and given by its path: hifi ls tasks/rte > my-rte.yaml
    """
    from hifi_cli.errors import UsageError
    from hifi_cli.tasks.task_from_data import is_data_source, task_yaml

    selections = {"--status": status, "--tasks": tasks, "--methods": methods, "--backbone": backbone, "--protocol": protocol}
    if selecting := [option for option, value in selections.items() if value and (words or [])[:1] != ["runs"]]:
        raise UsageError(f"{selecting[0]} selects runs: hifi ls runs {selecting[0]} ...")
    if format == "csv" and (words or [])[:1] != ["runs"]:
        raise UsageError("--format csv is for runs: hifi ls runs --format csv")
    if not words and format == "text":
        counts = {kind: f"{len(registry.names(kind))} " for kind in registry.KINDS}
        return _print_columns([[kind, counts.get(kind, "") + meaning] for kind, meaning in _KINDS.items()])
    if words and words[0] == "runs":
        if len(words) > 1:
            raise UsageError(f"hifi ls runs takes no further word, not '{words[1]}': choose runs by its options")
        names = {"task": options.names(tasks), "method": options.names(methods)}
        names |= {"backbone": options.names(backbone), "protocol": options.names(protocol)}
        return _print_runs(results_dir, status or options.Words(), sort, names, format)
    if words and is_data_source(words[0]):
        return print(task_yaml(words[0], words[1:])[1], end="")
    rows: list[dict[str, Any]] = []
    for word in words or registry.KINDS:
        if word in registry.KINDS:
            rows += [_summary(word, name) for name in registry.names(word)]
        elif fields := _keys_of(word):
            rows += [_key(key, field) for key, field in fields.items()]
        else:
            kind, name = _find(word)
            if format == "json":
                rows.append({**_summary(kind, name), "content": registry.load(kind, name)})
            else:
                _print_yaml(kind, name)
    if format == "json":
        return show.print_json(rows)
    if rows:
        _print_columns([_cells(row) for row in rows])


def _print_runs(results_dir: Path, states: options.Words, sort: RunSortKey, names: dict[str, list[str]], form: str) -> None:
    from hifi_cli.reports.run_listing import list_runs
    from hifi_cli.results.directory import has_runs
    from hifi_cli.results.study import Study

    if not has_runs(results_dir):
        raise Study(results_dir).no_run_error("hifi ls runs")
    show.print_runs(list_runs(results_dir, states=states, sort=sort, **names), form)


def _find(word: str) -> tuple[str, str]:
    """Kind and name of what a word names.

    Raises:
        UsageError: nothing, or several things.
    """
    from hifi_cli.errors import UsageError

    folder, _, name = word.rpartition("/")
    kinds = [kind for kind in registry.KINDS if name in registry.names(kind) and folder in ("", kind)]
    if len(kinds) > 1:
        raise UsageError(f"'{word}' is ambiguous: {', '.join(f'{kind}/{name}' for kind in kinds)}")
    if not kinds:
        known = [*registry.KINDS, "runs", *(known for kind in registry.KINDS for known in registry.names(kind)), *_all_keys()]
        raise UsageError(f"unknown kind or name '{word}'{registry.nearest(word, known)} (one of {', '.join(registry.KINDS)})")
    return kinds[0], name


def _print_yaml(kind: str, name: str) -> None:
    """A YAML that works wherever it is put; that of a method with its settings, their defaults and meanings as comments."""
    source = registry.find(kind, name)
    folder = source.parent.resolve()
    text = source.read_text(encoding="utf-8")
    print(re.sub(r"^path: (?!/)(.+)$", lambda match: f"path: {folder / match[1].strip()}", text, flags=re.MULTILINE), end="")
    if kind == "methods":
        from hifi_cli.config.run_config import HeadsConfig
        from hifi_cli.methods.base import implementation_of

        method = implementation_of(name)
        fields = {f"settings.{key}": field for key, field in method.Settings.model_fields.items()}
        fields |= {f"heads.{key}": field for key, field in HeadsConfig.model_fields.items() if method.needs_heads}
        rows = [[f"# {cells[0]}", *cells[1:]] for cells in (_cells(_key(key, field)) for key, field in fields.items())]
        if rows:
            print("# settings with their defaults:")
            _print_columns(rows)


def _summary(kind: str, name: str) -> dict[str, Any]:
    content = registry.load(kind, name)
    source = content.get("source") or content.get("paper") or content.get("published")
    if kind == "backbones":
        source = next((f"{key} {content[key]}" for key in ("package", "path", "hub") if content.get(key)), None)
    return {"kind": kind, "name": name, "description": content.get("description", ""), "source": str(source or "")}


def _all_keys() -> "dict[str, FieldInfo]":
    from hifi_cli.config.base import fields_by_key
    from hifi_cli.config.run_config import RunConfig

    return fields_by_key(RunConfig)


def _keys_of(key: str) -> "dict[str, FieldInfo]":
    """A configuration key, or all keys of a section or of `config`; empty if there is no such key."""
    return {name: field for name, field in _all_keys().items() if key == "config" or f"{name}.".startswith(f"{key}.")}


def _type_name(kind: Any) -> str:
    """A type as `fp32 | bf16`, `int | null` or `list[str]`."""
    parts = get_args(kind)
    if get_origin(kind) is Annotated:
        return _type_name(parts[0])
    if get_origin(kind) in (Literal, Union, UnionType):
        return " | ".join(map(_type_name, parts))
    names = {NoneType: "null", bool: "true | false", str: "text"}
    return names.get(kind) or (kind.__name__ if isinstance(kind, type) and not parts else str(kind))


def _key(key: str, field: "FieldInfo") -> dict[str, Any]:
    is_value = isinstance(field.default, bool | int | float | str | list | dict | None)  # not a section
    return {
        "key": key,
        "type": _type_name(field.annotation),
        "default": field.default if is_value else None,
        "description": " ".join((field.description or "").split()),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    """The columns of a row in text."""
    if "key" not in row:
        return [row["name"], row["description"], row["source"]]
    return [f"{row['key']}={show.yaml_value(row['default'])}", f"{row['description']} ({row['type']})"]


def _print_columns(rows: list[list[str]]) -> None:
    """Rows in columns: as wide as the terminal and folded there, in a pipe a line each."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="bold")
        for row in rows:
            table.add_row(*row)
        return Console(highlight=False, markup=False).print(table)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
