"""`hifi table`: finished runs beside one another and beside the papers' numbers."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.sources import run_name
from hifi_cli.errors import UsageError
from hifi_cli.files import command_line
from hifi_cli.reports import other_tables, server_scores, table_spec, tables
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
    test_scores: Annotated[
        Path | None,
        typer.Option(
            help="Scores that the GLUE server returned, CSV or JSON, in place of validation scores.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 when a run is missing.", rich_help_panel=options.OUTPUT)
    ] = False,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
    standalone: options.Standalone = False,
) -> None:
    """Print mean and standard deviation over seeds, with methods as rows and tasks as columns, as in the papers.

    `hifi table search` prints the settings that searches tried.
    """
    table_format = options.table_format(format, out)
    layout = table_spec.load(name) if name and name != "search" else None
    kind = layout.kind if layout else "scores"
    if test_scores and (not layout or kind != "scores" or score):
        raise UsageError(
            "--test-scores requires the name of a table of scores, without --score: hifi table hifi-2 --test-scores FILE"
        )
    tasks, methods, of_shots = task or [], method or [], options.shots_of_runs(shots)
    where: dict[str, Any] = {"protocol": protocol and run_name("protocols", protocol), "backbone": backbone}
    where |= {"tasks": options.run_names("tasks", tasks), "methods": options.run_names("methods", methods)}
    if kind in ("scores", "costs"):  # whose names are those that runs have
        where["backbone"] = backbone and run_name("backbones", backbone)
        layout = layout and table_spec.by_names(layout)
    study = Study(results_dir)
    if name == "search":
        searches = other_tables.searches(study, **where)
        return options.write_or_print(render(table_format, searches, standalone=standalone), out, "table")
    if not layout and study.shown.empty:
        raise study.no_run_error("hifi table")
    setting = {"protocol": where["protocol"], "backbone": where["backbone"], "shots": of_shots}
    specs = [layout] if layout else tables.specs_of(study, **setting)
    if not specs:
        raise study.no_setting_error(**setting)
    known = {"methods": study.names("method"), "tasks": study.names("task")}
    numbers = options.parse_seeds(seeds)
    specs = [table_spec.with_changes(spec, **where, seeds=numbers, shots=of_shots, known=known) for spec in specs]
    for spec in specs if layout else ():  # a user's own may name what there is not
        table_spec.check_names("methods", spec.methods, known["methods"])
        table_spec.check_names("tasks", spec.tasks, known["tasks"])
    counted = options.counted_flags(include, exclude)
    if kind == "settings":
        shown = [other_tables.settings(spec, show_published=published) for spec in specs]
    elif kind == "statistics":
        from hifi_cli.tasks import data_sources

        counts = [data_sources.count_rows(spec.tasks, data_dir=data_dir) for spec in specs]
        shown = [other_tables.row_counts(spec, of, show_published=published) for spec, of in zip(specs, counts, strict=True)]
    elif kind == "costs":
        shown = [other_tables.costs(spec, study, counted=counted) for spec in specs]
    else:
        server = server_scores.read(test_scores) if test_scores else None
        rows = [registry.argument_of("methods", row) for row in specs[0].methods] if method else []  # also of best_of
        given: dict[str, Any] = {"tasks": ",".join(tasks), "methods": ",".join(rows), "seeds": seeds}
        given |= {"protocol": protocol, "backbone": backbone, "data-dir": data_dir}
        given |= {"results-dir": results_dir if results_dir != options.RESULTS else None}
        words = [word for option, value in given.items() if value for word in (f"--{option}", str(value))]
        words += [f"shots={'null' if of_shots == 'full' else of_shots}"] if of_shots else []
        grid = command_line(["hifi", "grid", str(name), *words]) if layout else ""  # it makes the runs of the table
        shown = tables.build_all(specs, study, tables.TableOptions(score, counted, published, server, grid))
        if layout and study.shown.empty and not server:
            options.logger.warning(str(study.no_run_error(f"hifi table {name}")))
    for built in shown if layout else ():
        changes = [(key, getattr(layout, key), getattr(specs[0], key)) for key in ("protocol", "backbone")]
        if changed := [f"{key} {now} instead of {before}" for key, before, now in changes if now != before]:
            built.notes.insert(0, f"not the table's own setting: {', '.join(changed)}")
    options.write_or_print(render(table_format, shown, standalone=standalone), out, "table")
    if strict and any(built.is_incomplete for built in shown):
        raise typer.Exit(1)
