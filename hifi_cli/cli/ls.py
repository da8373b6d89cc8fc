"""`hifi ls`: all names, the YAML of a name, the meaning of a configuration key, and all runs."""

import sys
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic.fields import FieldInfo
from rich.console import Console

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.base import fields_by_key, type_name
from hifi_cli.config.run_config import HeadsConfig, RunConfig
from hifi_cli.config.specs import METHOD_KINDS
from hifi_cli.errors import UsageError, logger
from hifi_cli.records.layout import grids_begun
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.own_data import from_data, is_data_source
from hifi_cli.text import abbreviate, format_duration, format_number, spreadsheet_cell

# pandas takes half of the time of `hifi ls`, and only the list of runs needs it.
if TYPE_CHECKING:
    import pandas as pd

# The list that each word after `hifi ls` prints.
_WORDS = {
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
    if format != "text" and "runs" not in (words or ()):
        raise UsageError(f"--format {format} is for hifi ls runs: leave it out")
    if not words:
        return _print_kinds()
    if is_data_source(words[0]):
        return print(from_data(words[0], words[1:]).with_summary(), end="")
    for word in words:
        if word == "runs":
            _print_runs(results_dir, format)
        elif word == "methods":
            _print_methods()
        elif word in registry.KINDS:
            _print_texts({name: _summary(word, name) for name in registry.names(word)})
        elif fields := _fields_of(word):
            _print_fields(fields)
        else:
            kinds, name = _find(word)
            for kind in kinds:
                if len(kinds) > 1:
                    print(f"# {kind}/{name}")
                _print_yaml(kind, name)


def _print_kinds() -> None:
    """Print each word that `hifi ls` takes, with the number of names of a kind."""
    texts = {}
    for word, meaning in _WORDS.items():
        texts[word] = meaning
        if word in registry.KINDS:
            texts[word] = f"{len(registry.names(word))} {meaning}"
    _print_texts(texts)


def _print_methods() -> None:
    """Print each method with what it is, the papers' own first, under comments that name the kinds."""
    of_kind: dict[str, list[str]] = {kind: [] for kind in METHOD_KINDS}
    for name in registry.names("methods"):
        kind = registry.load("methods", name).get("kind", "others")
        of_kind[kind].append(name)
    texts = {}
    for kind, title in METHOD_KINDS.items():
        texts[f"# {title}"] = ""
        for name in of_kind[kind]:
            texts[name] = _summary("methods", name)
    _print_texts(texts)


def _fields_of(word: str) -> dict[str, FieldInfo]:
    """Return the fields of a key, of a section's keys or, for `config`, of all keys."""
    every = fields_by_key(RunConfig)
    if word == "config":
        return every
    # `heads` names heads.k and heads.rank, and `heads.k` itself alone.
    return {key: field for key, field in every.items() if f"{key}.".startswith(f"{word}.")}


def _find(word: str) -> tuple[list[str], str]:
    """Return the kinds and the name that a word names: one kind, or a table and a figure.

    Raises:
        UsageError: nothing, or several things.
        MissingError: it is the path of a YAML that is not there.
    """
    folder, _, name = word.rpartition("/")
    names = {kind: registry.names(kind) for kind in registry.KINDS}
    kinds = [kind for kind in names if name in names[kind] and folder in ("", kind)]
    # A paper numbers its tables and its figures by themselves: both have the name ehft-1.
    if len(kinds) > 1 and kinds != ["tables", "figures"]:
        commands = " or ".join(f"hifi ls {kind}/{name}" for kind in kinds)
        raise UsageError(f"'{word}' has several meanings: {commands}")
    if not kinds and registry.is_yaml_path(word):
        # A file that is not there is named as such.
        registry.name_of(word)
        raise UsageError(
            f"{word} is a YAML of your own, and hifi ls prints the program's; hifi train --dry-run"
            " prints every setting of a run with it, also those that no YAML sets"
        )
    if not kinds:
        known = {*_WORDS, *fields_by_key(RunConfig)}.union(*names.values())
        suggestion = registry.did_you_mean(word, sorted(known))
        raise UsageError(f"unknown kind or name '{word}'{suggestion} (one of {', '.join(_WORDS)})")
    return kinds, name


def _print_yaml(kind: str, name: str) -> None:
    """Print a YAML as it is, and in comments what it does not say.

    These are the class of a task that F1 counts, and the settings of a method with their defaults.
    """
    print(registry.find(kind, name).read_text(encoding="utf-8"), end="")
    if kind == "tasks":
        positive = task_spec.load(name).positive_class
        if positive:
            print(f"# F1 is of the class '{positive}', the second of labels")
    if kind == "methods":
        _print_settings(name)


def _print_settings(method_name: str) -> None:
    """Print the settings of a method with their defaults, as comments."""
    # This imports torch, which no other word of `hifi ls` needs.
    from hifi_cli.methods.find import implementation_of

    method = implementation_of(method_name)
    fields = {}
    for key, field in method.Settings.model_fields.items():
        fields[f"# settings.{key}"] = field
    if method.needs_heads:
        for key, field in HeadsConfig.model_fields.items():
            fields[f"# heads.{key}"] = field
    if fields:
        print("# settings and their defaults, which the lines above and protocols override:")
        _print_fields(fields)


def _summary(kind: str, name: str) -> str:
    """Return the description of a name and, in parentheses, the first source that its YAML has."""
    content = registry.load(kind, name)
    for key in ("source", "paper", "published", "package", "path", "hub"):
        if content.get(key):
            return f"{content['description']} ({content[key]})"
    return str(content["description"])


def _print_fields(fields: Mapping[str, FieldInfo]) -> None:
    """Print each key with its default, meaning and type."""
    rows = {}
    for key, field in fields.items():
        default = options.yaml_value(None)
        if not field.is_required():
            default = options.yaml_value(field.default)
        rows[f"{key}={default}"] = f"{field.description or ''} ({type_name(field.annotation)})"
    _print_texts(rows)


def _print_texts(texts: Mapping[str, str]) -> None:
    """Print a line for each word with its text; on a terminal, a long text takes several lines."""
    # A word without a text is a line of its own, and needs no room beside it.
    indent = max(len(word) for word, text in texts.items() if text) + 2
    # In a file or a pipe every text is one line, so that programs can read it.
    width = sys.maxsize
    if sys.stdout.isatty():
        width = Console().width
    for word, text in texts.items():
        if not text:
            print(word)
            continue
        # Every line of a comment is a comment.
        margin = "#" if word.startswith("#") else ""
        first_indent = f"{word:{indent}}"
        next_indent = f"{margin:{indent}}"
        lines = textwrap.fill(
            text, width, initial_indent=first_indent, subsequent_indent=next_indent
        )
        print(lines)


def _what_has_begun(runs: "pd.DataFrame", results_dir: Path) -> str:
    """Return in words what there is where no run has finished yet.

    Args:
        runs: those that are listed, none of them finished; has the column `state`.
        results_dir: has the runs, or a grid that has begun.
    """
    if runs.empty:
        logs = [str(grid / "logs") for grid in grids_begun(results_dir)]
        return f"no run has begun to train yet, but a grid has; its commands' output: {abbreviate(logs)}"
    running = int((runs["state"] == "running").sum())
    verb = "is" if running == 1 else "are"
    return f"no run has finished yet; {running} {verb} running"


def _print_runs(results_dir: Path, form: str) -> None:
    """Print the runs of a results directory: as CSV, as JSON, or as aligned columns."""
    from pandas.api.types import is_numeric_dtype

    from hifi_cli.records.listing import read_results
    from hifi_cli.records.study import Study

    # The text names no settings.
    runs = read_results(results_dir, with_unfinished=True, with_settings=form != "text")
    if runs.empty and not grids_begun(results_dir):
        raise Study(results_dir).no_run_error()
    if runs["state"].isin(["running", "unfinished"]).all():
        logger.info(_what_has_begun(runs, results_dir))
    if runs.empty and form == "text":
        return None
    if form == "csv":
        # The path is the user's own: it begins with the directory that the command names.
        for column in runs.columns.drop("path"):
            if not is_numeric_dtype(runs[column]):
                runs[column] = runs[column].map(spreadsheet_cell)
        return print(runs.to_csv(index=False, lineterminator="\n"), end="")
    if form == "json":
        return print(runs.to_json(orient="records", indent=1))
    runs["score"] = runs["score"].map(partial(format_number, form="6.2f"), na_action="ignore")
    runs["time"] = runs["time_s"].map(format_duration, na_action="ignore")
    runs["run"] = runs["path"].str.cat(runs["detail"], sep="  ")
    shown = runs[["state", "score", "metric", "flags", "time", "run"]].astype(object).fillna("")
    # pandas justifies headings alone to the left: the cells are filled up with spaces.
    padded = shown.apply(lambda column: column.str.ljust(column.str.len().max()))
    print(padded.to_string(index=False, justify="left"))
