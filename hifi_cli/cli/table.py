"""`hifi table`: the tables of papers and of your own."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.run_config import EpochChoice
from hifi_cli.errors import UsageError
from hifi_cli.files import command_line
from hifi_cli.records.study import Study
from hifi_cli.reports import comparable, paper_tables, table_spec
from hifi_cli.reports import costs as cost_tables
from hifi_cli.reports import searches as search_tables
from hifi_cli.reports import tables as score_tables
from hifi_cli.reports.render import Table, emit
from hifi_cli.reports.table_spec import TableSpec
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.metrics import METRICS


def table(
    name: Annotated[
        str | None,
        typer.Argument(help="A table's name or YAML, or search; default: all finished runs."),
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
) -> None:
    """Print mean and standard deviation over seeds, with methods as rows and tasks as columns, as in the papers.

    `hifi table search` prints the settings that searches tried.
    """
    study = Study(results_dir).with_rows_by(by) if by else Study(results_dir)
    keys = options.table_keys(protocol, backbones[0] if backbones else backbone, shots)
    tasks, methods = options.stored_names("tasks", task), options.stored_names("methods", method)
    if name == "search":
        chosen = {**keys, "task": tasks, "method": methods}
        searched = search_tables.searches(study, **chosen)
        searched[0].notes += study.notes_on_damage
        return emit(searched, format, out)
    layouts = [table_spec.load(name)] if name else score_tables.specs_of(study, **keys)
    if not layouts:
        raise study.no_run_error() if study.table_runs.empty else study.no_such_runs_error(**keys)
    if by:
        bases = methods or layouts[0].methods
        runs = comparable.select_runs(study.runs, protocol=keys["protocol"] or layouts[0].protocol)
        of_tasks = runs["task"].isin(tasks or layouts[0].tasks or runs["task"])
        methods = [
            row for row in sorted({*runs["method"][of_tasks]}) if row.partition("/")[0] in bases
        ] or bases
    known = {"score", *METRICS}.union(*study.runs["metrics"])
    if unknown := [metric for metric in metrics or () if metric not in known]:
        raise UsageError(
            f"--metrics: no run has '{unknown[0]}'{registry.did_you_mean(unknown[0], known)}"
        )
    changes: dict[str, Any] = {
        **keys,
        "tasks": tasks,
        "methods": methods,
        "seeds": options.parse_seeds(seeds),
        "metrics": metrics,
        "backbones": backbones,
    }
    specs = [table_spec.with_changes(layout, **changes) for layout in layouts]
    table_spec.check_names("methods", specs[0].methods, study.names("method"))
    table_spec.check_names("tasks", specs[0].tasks, study.names("task"))
    given = {
        "tasks": ",".join(task or []),
        "methods": ",".join(method or []),
        "seeds": seeds,
        "protocol": protocol,
        "backbone": backbone,
        "data_dir": data_dir,
        "results_dir": results_dir,
    }
    words = [f"shots={'null' if shots == 'full' else shots}"] if shots else []
    command = command_line(["hifi", "grid", str(name), *options.arguments(**given), *words])
    how: dict[str, Any] = {
        "score": score,
        "included": comparable.INCLUDED_BY_DEFAULT.union(include or ()),
        "grid": command if name and not by else "",  # others show what there is
    }
    tables = [
        built_table(spec, study, data_dir=data_dir, published=published, **how) for spec in specs
    ]
    tables[0].notes += study.notes_on_damage
    emit(tables, format, out)
    if strict and any(built.missing for built in tables):
        raise typer.Exit(1)


def built_table(
    spec: TableSpec,
    study: Study,
    *,
    score: EpochChoice | None,
    included: Collection[str],
    grid: str,
    published: bool,
    data_dir: Path | None = None,
) -> Table:
    """A table of any kind."""
    if spec.kind == "settings":
        return paper_tables.settings(spec, show_published=published)
    if spec.kind == "statistics":
        counts = task_sources.count_rows(spec.tasks, data_dir=data_dir)
        return paper_tables.row_counts(spec, counts, show_published=published)
    if spec.kind == "costs":
        return cost_tables.costs(spec, study, included=included)
    return score_tables.build(
        spec, study, score=score, included=included, show_published=published, grid=grid
    )
