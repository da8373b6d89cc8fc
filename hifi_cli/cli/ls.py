"""`hifi ls`: all names, the YAML of a name, the meaning of a configuration key, and all runs."""

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer
from pandas.api.types import is_numeric_dtype
from pydantic.fields import FieldInfo
from rich.console import Console

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.base import fields_by_key, type_name
from hifi_cli.config.run_config import HeadsConfig, RunConfig
from hifi_cli.errors import UsageError, spreadsheet_cell
from hifi_cli.records.study import Study, read_results
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.own_data import from_data, is_data_source
from hifi_cli.text import format_duration

_WORDS = {  # what each word after `hifi ls` lists
    "tasks": "data, inputs, labels and metrics",
    "methods": "fine-tuning methods: which parameters train, and how",
    "backbones": "pretrained encoders",
    "protocols": "experimental setups of the papers, for a laptop and for the demo",
    "tables": "tables of the papers and others, for hifi table",
    "figures": "figures of the papers and others, for hifi figure",
    "published": "the papers' printed numbers",
    "claims": "claims of the papers and our own questions, for hifi claims",
    "grids": "searches, for hifi grid, which takes a table, figure-NAME and claims-NAME too",
    "sites": "machines and clusters, for hifi grid --site",
    "config": "every setting of a run, with its default and meaning",
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
    if not words and format != "text":
        raise UsageError(f"--format {format} is for hifi ls runs: leave it out")
    if not words:
        counts = {kind: f"{len(registry.names(kind))} " for kind in registry.KINDS}
        return _print_texts({word: counts.get(word, "") + what for word, what in _WORDS.items()})
    if format != "text" and "runs" not in words:
        raise UsageError(f"--format {format} is for hifi ls runs: leave it out")
    if is_data_source(words[0]):
        return print(from_data(words[0], words[1:]).with_summary(), end="")
    for word in words:
        fields = {
            key: field
            for key, field in fields_by_key(RunConfig).items()
            if word == "config" or f"{key}.".startswith(f"{word}.")
        }
        if word == "runs":
            _print_runs(results_dir, format)
        elif word in registry.KINDS:
            _print_texts({name: _summary(word, name) for name in registry.names(word)})
        elif fields:
            _print_fields(fields)
        else:
            _print_yaml(*_find(word))


def _find(word: str) -> tuple[str, str]:
    """Kind and name of what a word names.

    Raises:
        UsageError: nothing, or several things.
    """
    folder, _, name = word.rpartition("/")
    names = {kind: registry.names(kind) for kind in registry.KINDS}
    kinds = [kind for kind in names if name in names[kind] and folder in ("", kind)]
    if len(kinds) > 1:
        raise UsageError(f"'{word}' is ambiguous: {', '.join(f'{kind}/{name}' for kind in kinds)}")
    if not kinds:
        known = {*_WORDS, *fields_by_key(RunConfig)}.union(*names.values())
        suggestion = registry.did_you_mean(word, sorted(known))
        raise UsageError(f"unknown kind or name '{word}'{suggestion} (one of {', '.join(_WORDS)})")
    return kinds[0], name


def _print_yaml(kind: str, name: str) -> None:
    """A YAML as it is; as comments a task's class that F1 counts, and a method's settings with their defaults."""
    print(registry.find(kind, name).read_text(encoding="utf-8"), end="")
    if kind == "tasks" and (positive := task_spec.load(name).positive_class):
        print(f"# F1 is of the class '{positive}', the second of labels")
    if kind == "methods":
        from hifi_cli.methods.find import implementation_of  # torch, for this alone

        method = implementation_of(name)
        fields = {f"# settings.{key}": field for key, field in method.Settings.model_fields.items()}
        if method.needs_heads:
            fields |= {f"# heads.{key}": field for key, field in HeadsConfig.model_fields.items()}
        if fields:
            print("# settings and their defaults, which the lines above and protocols override:")
            _print_fields(fields)


def _summary(kind: str, name: str) -> str:
    content = registry.load(kind, name)
    sources = ("source", "paper", "published", "package", "path", "hub")
    source = next((f" ({content[key]})" for key in sources if content.get(key)), "")
    return f"{content['description']}{source}"


def _print_fields(fields: Mapping[str, FieldInfo]) -> None:
    """Each key with its default, meaning and type."""
    rows = {}
    for key, field in fields.items():
        default = options.yaml_value(None if field.is_required() else field.default)
        rows[f"{key}={default}"] = f"{field.description or ''} ({type_name(field.annotation)})"
    _print_texts(rows)


def _print_texts(texts: Mapping[str, str]) -> None:
    """Words with a text each, a line each; a terminal is shown long texts in several lines."""
    indent = max(map(len, texts)) + 2
    width = Console().width if sys.stdout.isatty() else sys.maxsize
    for word, text in texts.items():
        margin = "#" if word.startswith("#") else ""  # the lines of a comment are comments
        print(
            textwrap.fill(
                text,
                width,
                initial_indent=f"{word:{indent}}",
                subsequent_indent=f"{margin:{indent}}",
            )
        )


def _print_runs(results_dir: Path, form: str) -> None:
    runs = read_results(results_dir, with_unfinished=True)
    if runs.empty:
        raise Study(results_dir).no_run_error()
    if form == "csv":
        for column in runs.columns.drop("path"):  # which begins with the directory that was named
            if not is_numeric_dtype(runs[column]):
                runs[column] = runs[column].map(spreadsheet_cell)
        return print(runs.to_csv(index=False, lineterminator="\n"), end="")
    if form == "json":
        return print(runs.to_json(orient="records", indent=1))
    runs["score"] = runs["score"].map("{:6.2f}".format, na_action="ignore")
    runs["time"] = runs["time_s"].map(format_duration, na_action="ignore")
    runs["run"] = runs["path"].str.cat(runs["detail"], sep="  ")
    shown = runs[["state", "score", "metric", "flags", "time", "run"]].astype(object).fillna("")
    padded = shown.apply(lambda column: column.str.ljust(column.str.len().max()))
    print(padded.to_string(index=False, justify="left"))
