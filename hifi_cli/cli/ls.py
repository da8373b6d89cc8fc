"""`hifi ls`: all names, the YAML of a name, the meaning of a configuration key, and the runs of a results directory."""

import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.base import fields_by_key
from hifi_cli.config.run_config import HeadsConfig, RunConfig
from hifi_cli.errors import UsageError, format_duration
from hifi_cli.results.study import Study, list_runs
from hifi_cli.tasks.task_from_data import is_data_source, task_yaml

_KINDS = {  # what a word after `hifi ls` lists, with what it is: registry.KINDS, and runs
    "tasks": "data, inputs, labels and metrics",
    "methods": "fine-tuning methods: which parameters train, and how",
    "backbones": "pretrained encoders",
    "protocols": "experimental setups of the papers, for a laptop and for the demo",
    "tables": "tables of the papers and others, for hifi table",
    "figures": "figures of the papers and others, for hifi figure",
    "published": "the papers' printed numbers",
    "claims": "claims of the papers and our own questions, for hifi claims",
    "grids": "searches, for hifi grid, which takes a table, figure-NAME and claims-NAME too",
    "sites": "machines and clusters, for hifi grid --engine parsl",
    "runs": "finished and unfinished runs in a results directory, and their states",
}


def ls(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND|NAME|KEY]...",
            help="A kind (tasks, methods, ..., runs), a name (tasks/rte where several kinds share it), a configuration key,"
            " or a data file, with key=value for how it is read.",
        ),
    ] = None,
    results_dir: options.ResultsDir = options.RESULTS,
    format: Annotated[  # noqa: A002
        Literal["text", "json", "csv"],
        typer.Option("--format", help="Format of the runs.", rich_help_panel=options.OUTPUT),
    ] = "text",
) -> None:
    """List all names of a kind, print the YAML of a name or of a data file's task, or explain a configuration key.

    A YAML that is redirected to a file can be edited and given by its path: hifi ls tasks/rte > my-rte.yaml
    """
    if not words:
        counts = {kind: f"{len(registry.names(kind))} " for kind in registry.KINDS}
        return _print_columns(
            [[kind, counts.get(kind, "") + meaning] for kind, meaning in _KINDS.items()]
        )
    if is_data_source(words[0]):
        return print(task_yaml(words[0], words[1:])[1], end="")
    for word in words:
        if word == "runs":
            _print_runs(results_dir, format)
        elif word in registry.KINDS:
            _print_columns([_summary(word, name) for name in registry.names(word)])
        elif fields := {
            key: field
            for key, field in _keys().items()
            if word == "config" or f"{key}.".startswith(f"{word}.")
        }:
            _print_columns([_key(key, field) for key, field in fields.items()])
        else:
            _print_yaml(*_find(word))


def _find(word: str) -> tuple[str, str]:
    """Kind and name of what a word names.

    Raises:
        UsageError: nothing, or several things.
    """
    folder, _, name = word.rpartition("/")
    kinds = [
        kind for kind in registry.KINDS if name in registry.names(kind) and folder in ("", kind)
    ]
    if len(kinds) > 1:
        raise UsageError(f"'{word}' is ambiguous: {', '.join(f'{kind}/{name}' for kind in kinds)}")
    if not kinds:
        known = [
            *_KINDS,
            *(name for kind in registry.KINDS for name in registry.names(kind)),
            *_keys(),
        ]
        raise UsageError(
            f"unknown kind or name '{word}'{registry.nearest(word, known)} (one of {', '.join(_KINDS)})"
        )
    return kinds[0], name


def _print_yaml(kind: str, name: str) -> None:
    """A YAML that works wherever it is put; that of a method with its settings, their defaults and meanings as comments."""
    source = registry.find(kind, name)
    folder = source.parent.resolve()
    text = source.read_text(encoding="utf-8")
    print(
        re.sub(
            r"^path: (?!/)(.+)$",
            lambda match: f"path: {folder / match[1].strip()}",
            text,
            flags=re.MULTILINE,
        ),
        end="",
    )
    if kind == "methods":
        from hifi_cli.methods.base import implementation_of  # torch, for this alone

        method = implementation_of(name)
        fields = {f"settings.{key}": field for key, field in method.Settings.model_fields.items()}
        fields |= {
            f"heads.{key}": field
            for key, field in HeadsConfig.model_fields.items()
            if method.needs_heads
        }
        if fields:
            print("# settings with their defaults:")
            _print_columns([_key(f"# {key}", field) for key, field in fields.items()])


def _summary(kind: str, name: str) -> list[str]:
    content = registry.load(kind, name)
    sources = (
        ("source", "paper", "published") if kind != "backbones" else ("package", "path", "hub")
    )
    source = next((content[key] for key in sources if content.get(key)), "")
    return [name, content.get("description", ""), str(source)]


def _keys() -> dict[str, FieldInfo]:
    return fields_by_key(RunConfig)


def _key(key: str, field: FieldInfo) -> list[str]:
    is_value = isinstance(
        field.default, bool | int | float | str | list | dict | None
    )  # not a section
    default = options.yaml_value(field.default if is_value else None)
    return [
        f"{key}={default}",
        f"{' '.join((field.description or '').split())} ({_type_name(field.annotation)})",
    ]


def _type_name(kind: Any) -> str:
    """A type as `fp32 | bf16`, `int | null` or `list[str]`."""
    parts = get_args(kind)
    if get_origin(kind) is Annotated:
        return _type_name(parts[0])
    if get_origin(kind) in (Literal, Union, UnionType):
        return " | ".join(map(_type_name, parts))
    names = {NoneType: "null", bool: "true | false", str: "text"}
    return names.get(kind) or (kind.__name__ if isinstance(kind, type) and not parts else str(kind))


def _print_runs(results_dir: Path, form: str) -> None:
    runs = list_runs(results_dir)
    if runs.empty:
        raise Study(results_dir).no_run_error()
    if form == "csv":
        return print(runs.to_csv(index=False, lineterminator="\n"), end="")
    if form == "json":
        return options.print_json(runs.astype(object).where(runs.notna(), None).to_dict("records"))
    runs["score"] = runs["score"].map("{:6.2f}".format, na_action="ignore")
    runs["time"] = runs["time_s"].map(format_duration, na_action="ignore")
    runs["run"] = runs["path"].str.cat(runs["detail"], sep="  ")
    shown = runs[["state", "score", "metric", "flags", "time", "run"]].astype(object).fillna("")
    _print_columns([[*shown], *shown.to_numpy().tolist()])


def _print_columns(rows: list[list[str]]) -> None:
    """Rows in columns, a line each."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        )
