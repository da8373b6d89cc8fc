"""`hifi table`: finished runs beside one another and beside the papers' numbers."""

from typing import Annotated, Any

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.sources import run_name
from hifi_cli.files import command_line
from hifi_cli.reports import other_tables, table_spec, tables
from hifi_cli.reports.render import render
from hifi_cli.results.study import Study


def table(
    name: Annotated[
        str | None,
        typer.Argument(help="A table's name or YAML, or search; default: all finished runs."),
    ] = None,
    task: options.Tasks = None,
    method: options.Methods = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    shots: options.Shots = None,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 when a run is missing.", rich_help_panel=options.OUTPUT)
    ] = False,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
) -> None:
    """Print mean and standard deviation over seeds, with methods as rows and tasks as columns, as in the papers.

    `hifi table search` prints the settings that searches tried.
    """
    table_format = options.table_format(format, out)
    layout = table_spec.load(name) if name and name != "search" else None
    kind = layout.kind if layout else "scores"
    tasks, methods, of_shots = task or [], method or [], options.shots_of_runs(shots)
    where: dict[str, Any] = {"protocol": protocol and run_name("protocols", protocol), "backbone": backbone}
    where |= {"tasks": options.run_names("tasks", tasks), "methods": options.run_names("methods", methods)}
    if kind in ("scores", "costs"):  # whose names are those that runs have
        where["backbone"] = backbone and run_name("backbones", backbone)
        layout = layout and table_spec.by_names(layout)
    study = Study(results_dir)
    if name == "search":
        searches = other_tables.searches(study, **where)
        return options.write_or_print(render(table_format, searches), out, "table")
    if not layout and study.shown.empty:
        raise study.no_run_error()
    setting = {"protocol": where["protocol"], "backbone": where["backbone"], "shots": of_shots}
    specs = [layout] if layout else tables.specs_of(study, **setting)
    if not specs:
        raise study.no_setting_error(**setting)
    numbers = options.parse_seeds(seeds)
    specs = [table_spec.with_changes(spec, **where, seeds=numbers, shots=of_shots) for spec in specs]
    table_spec.check_names("methods", specs[0].methods, study.names("method"))
    table_spec.check_names("tasks", specs[0].tasks, study.names("task"))
    counted = options.counted_flags(include, exclude)
    if kind == "settings":
        shown = [other_tables.settings(specs[0], show_published=published)]
    elif kind == "statistics":
        from hifi_cli.tasks import data_sources

        counts = data_sources.count_rows(specs[0].tasks, data_dir=data_dir)
        shown = [other_tables.row_counts(specs[0], counts, show_published=published)]
    elif kind == "costs":
        shown = [other_tables.costs(specs[0], study, counted=counted)]
    else:
        rows = [registry.argument_of("methods", row) for row in specs[0].methods] if method else []
        given: dict[str, Any] = {"tasks": ",".join(tasks), "methods": ",".join(rows), "seeds": seeds}
        given |= {"protocol": protocol, "backbone": backbone, "data-dir": data_dir}
        given |= {"results-dir": results_dir if results_dir != options.RESULTS else None}
        words = [word for option, value in given.items() if value for word in (f"--{option}", str(value))]
        words += [f"shots={'null' if of_shots == 'full' else of_shots}"] if of_shots else []
        grid = command_line(["hifi", "grid", str(name), *words]) if layout else ""  # it makes the runs of the table
        table_options = tables.TableOptions(score, counted, published, grid)
        shown = [tables.build(spec, study, table_options) for spec in specs]
        if layout and study.shown.empty:
            options.logger.warning(str(study.no_run_error()))
    for built in shown if layout else ():
        changes = [(key, getattr(layout, key), getattr(specs[0], key)) for key in ("protocol", "backbone")]
        if changed := [f"{key} {now} instead of {before}" for key, before, now in changes if now != before]:
            built.notes.insert(0, f"not the table's own setting: {', '.join(changed)}")
    options.write_or_print(render(table_format, shown), out, "table")
    if strict and any(built.is_incomplete for built in shown):
        raise typer.Exit(1)
