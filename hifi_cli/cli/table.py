"""`hifi table`: the tables of papers and of your own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.errors import UsageError
from hifi_cli.files import command_line
from hifi_cli.records.study import Study
from hifi_cli.reports import class_tables, paper_tables, table_spec
from hifi_cli.reports import costs as cost_tables
from hifi_cli.reports import searches as search_tables
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.render import LatexOptions, emit
from hifi_cli.reports.selection import select_runs
from hifi_cli.reports.table import Table
from hifi_cli.reports.table_spec import TableSpec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.metrics import METRICS
from hifi_cli.text import abbreviate

# Behind the name of a metric: it is of the rows that own data hold out
HELD_OUT = "_held_out"


def table(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table's name or YAML, search, per-class, confusion or ensemble; default: all finished runs."
        ),
    ] = None,
    task: options.Tasks = None,
    method: options.Methods = None,
    backbone: options.Backbone = None,
    backbones: options.Backbones = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    shots: options.Shots = None,
    score: options.Score = None,
    metrics: Annotated[
        list[str] | None,
        options.several(
            "--metrics",
            help="A column of each for every task: score, metrics by name, nll, brier, ece, churn.",
        ),
    ] = None,
    include: options.Include = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="A row for each value of this setting, METHOD/KEY=VALUE; of variant, METHOD/NAME.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 1 when a run is missing.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
    caption: options.Caption = None,
    label: options.Label = None,
) -> None:
    """Print mean and standard deviation over seeds, with methods as rows and tasks as columns, as in the papers.

    `hifi table search` prints the settings that searches tried; per-class, confusion and ensemble are of stored
    predictions.
    """
    latex = LatexOptions(caption, label)
    study = Study(results_dir)
    keys = options.table_keys(protocol, backbones[0] if backbones else backbone, shots)
    tasks = options.stored_names("tasks", task)
    methods = options.stored_names("methods", method)
    left_out: list[str] = []
    if by:
        if not methods:
            left_out = _methods_without(by, study, keys)
        study = study.with_rows_by(by, unchanged=methods)
    if name == "search":
        searched = search_tables.searches(study, **keys, task=tasks, method=methods)
        searched[0].notes += study.notes_on_damage
        return emit(searched, format, out, latex)
    if name in class_tables.TABLES:
        if score or metrics or by or backbones:
            raise UsageError(
                f"hifi table {name} is of the stored predictions: --score, --metrics, --by and --backbones do not change it"
            )
        selection = class_tables.Selection(
            keys=keys, tasks=tasks, methods=methods, seeds=options.parse_seeds(seeds)
        )
        counted = ReportOptions.of_command(None, include)
        built = class_tables.TABLES[name](study, selection, counted)
        built[0].notes += study.notes_on_damage
        return emit(built, format, out, latex)
    layouts = [table_spec.load(name)] if name else score_tables.specs_of(study, **keys)
    if not layouts:
        raise study.no_run_error() if study.table_runs.empty else study.no_such_runs_error(**keys)
    if by:
        bases = methods or layouts[0].methods
        shown_tasks = tasks or layouts[0].tasks
        runs = select_runs(study.runs, protocol=keys["protocol"] or layouts[0].protocol)
        methods = _rows_of_settings(runs, bases, shown_tasks) or bases
    if not name and not metrics:
        metrics = _with_held_out(select_runs(study.runs, **keys), tasks)
    _check_metrics(metrics or [], study)
    specs = [
        table_spec.with_changes(
            layout,
            protocol=keys["protocol"],
            backbone=keys["backbone"],
            methods=methods,
            tasks=tasks,
            shots=keys["shots"],
            seeds=options.parse_seeds(seeds),
            metrics=metrics,
            backbones=backbones,
        )
        for layout in layouts
    ]
    table_spec.check_names("methods", specs[0].methods, study.names("method"))
    table_spec.check_names("tasks", specs[0].tasks, study.names("task"))
    command = ""
    # Other tables show what there is, so that they lack no run.
    if name and not by:
        given = options.arguments(
            tasks=",".join(task or []),
            methods=",".join(method or []),
            seeds=seeds,
            protocol=protocol,
            backbone=backbone,
            data_dir=data_dir,
            results_dir=results_dir,
        )
        command = command_line(["hifi", "grid", name, *given, *_shots_as_setting(shots)])
    how = ReportOptions.of_command(score, include, show_published=published)
    tables = [built_table(spec, study, how, grid=command, data_dir=data_dir) for spec in specs]
    tables[0].notes += study.notes_on_damage
    if left_out:
        names = abbreviate(left_out)
        tables[0].notes.append(
            f"left out, because they have no {by}: {names} (--methods shows them)"
        )
    if any(metric.endswith(HELD_OUT) for metric in metrics or ()):
        tables[0].notes.append("held_out: other rows, on which no epoch and no setting was chosen")
    emit(tables, format, out, latex)
    if strict and any(built.missing for built in tables):
        raise typer.Exit(1)


def _methods_without(key: str, study: Study, keys: Mapping[str, str | None]) -> list[str]:
    """The methods that `--by KEY` leaves out, sorted: those to which the key means nothing.

    Args:
        key: of the setting, or `variant`, which every run may have.
        study: all runs.
        keys: `protocol`, `backbone` and `shots` of the table, as `select_runs` takes them.
    """
    if key == "variant":
        return []
    methods = set(select_runs(study.runs, **keys)["method"])
    return sorted(methods - study.methods_with(key))


def _rows_of_settings(
    runs: pd.DataFrame, methods: Sequence[str], tasks: Sequence[str]
) -> list[str]:
    """The rows METHOD/KEY=VALUE of some methods on some tasks.

    Args:
        runs: rows of `Study.runs`, from `Study.with_rows_by`.
        methods: those before the slash.
        tasks: empty: all.
    """
    if tasks:
        runs = runs[runs["task"].isin(tasks)]
    names = sorted(set(runs["method"]))
    return [name for name in names if name.partition("/")[0] in methods]


def _with_held_out(runs: pd.DataFrame, tasks: Sequence[str]) -> list[str] | None:
    """The primary metric, and the same on the rows that were held out, where all runs have it; else None.

    Args:
        runs: rows of `Study.runs`, of one table.
        tasks: empty: all.
    """
    if tasks:
        runs = runs[runs["task"].isin(tasks)]
    names: dict[str, None] = {}
    for run in runs.itertuples():
        held_out = f"{run.metric}{HELD_OUT}"
        if held_out not in run.metrics:
            return None
        names[held_out] = None
    return ["score", *names] if names else None


def _check_metrics(metrics: Sequence[str], study: Study) -> None:
    """Refuse a metric that neither tables nor runs know.

    Raises:
        UsageError: there is one.
    """
    known = {"score", *METRICS}.union(*study.runs["metrics"])
    for metric in metrics:
        if metric not in known:
            suggestion = registry.did_you_mean(metric, known)
            raise UsageError(f"--metrics: no run has '{metric}'{suggestion}")


def _shots_as_setting(shots: str | None) -> list[str]:
    """The shots of `hifi table` as `hifi grid` takes them."""
    if not shots:
        return []
    return [f"shots={'null' if shots == 'full' else shots}"]


def built_table(
    spec: TableSpec,
    study: Study,
    how: ReportOptions,
    *,
    grid: str = "",
    data_dir: Path | None = None,
) -> Table:
    """Build a table of any kind.

    Args:
        spec: rows and columns.
        study: all runs.
        how: which epoch's score is meant, which runs count, whether a paper's numbers are shown.
        grid: the command that makes the table's runs; empty: no run is missing.
        data_dir: directory of the official data files, of which rows are counted; None: the hub's.
    """
    if spec.kind == "settings":
        return paper_tables.settings(spec, show_published=how.show_published)
    if spec.kind == "statistics":
        counts = task_sources.count_rows(spec.tasks, data_dir=data_dir)
        return paper_tables.row_counts(spec, counts, show_published=how.show_published)
    if spec.kind == "costs":
        return cost_tables.costs(spec, study, how)
    return score_tables.build(spec, study, how, grid=grid)
