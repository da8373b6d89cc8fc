"""`hifi table`: finished runs beside one another and beside the papers' numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hifi_cli.cli import options

if TYPE_CHECKING:
    from hifi_cli.reports.table_spec import TableSpec


def table(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table's name or YAML, or search; default: all finished runs.", autocompletion=options.complete("tables")
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Argument(metavar="[GRID]", help="After search: only this grid's.", autocompletion=options.complete("grids")),
    ] = None,
    format: options.TableFormat = None,  # noqa: A002
    score: options.ScoreChoice = None,
    compare_scores: Annotated[
        bool,
        typer.Option(
            "--compare-scores", help="Print the table for each score: best, last, max.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    published: Annotated[
        bool,
        typer.Option("--published", help="Also show the paper's numbers and the differences.", rich_help_panel=options.OUTPUT),
    ] = False,
    test_scores: Annotated[
        Path | None,
        typer.Option(
            help="Scores that the GLUE server returned, CSV or JSON, in place of validation scores.",
            rich_help_panel=options.WHICH,
        ),
    ] = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 when a run is missing.", rich_help_panel=options.OUTPUT)
    ] = False,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    backbone: options.BackboneOfRuns = None,
    protocol: options.ProtocolOfRuns = None,
    shots: options.ShotsOfRuns = None,
    seeds: options.SeedsOfRuns = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    standalone: options.Standalone = False,
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Print mean and standard deviation over seeds, with methods as rows and tasks as columns, as in the papers.

    `hifi table search` prints the settings that searches tried.
    """
    from hifi_cli.cli.option_checks import refuse_unused
    from hifi_cli.cli.run_names import only_run_name, run_names
    from hifi_cli.cli.show import write_or_print
    from hifi_cli.errors import UsageError
    from hifi_cli.reports import score_table, search_table, server_scores, table_spec, table_types
    from hifi_cli.reports.formats import render
    from hifi_cli.reports.run_records import Results
    from hifi_cli.reports.table_request import TableRequest

    table_format = options.table_format(format, out)
    counted, shots = options.counted_flags(include, exclude), options.shots_of_runs(shots)
    results = Results(results_dir, data_dir)
    if search and name != "search":
        raise UsageError(f"hifi table takes one name, not '{name}' and '{search}'; hifi table search GRID shows a search")
    layout = table_types.load(name) if name and name != "search" else None
    reads_runs = layout is None or isinstance(layout, table_spec.ScoresSpec)  # whose names are those that runs have
    if reads_runs:
        protocol, backbone = only_run_name("protocols", protocol), only_run_name("backbones", backbone)
        layout = layout and table_spec.by_names(layout)
    if test_scores and (not isinstance(layout, table_spec.ScoresSpec) or score or compare_scores):
        raise UsageError(
            "--test-scores requires the name of a table of scores, without --score: hifi table hifi-2 --test-scores FILE"
        )
    unused = table_types.TABLE_TYPES[layout.kind].unused if layout else ()
    unused = (*table_types.OF_RUNS, "published") if name == "search" else unused
    given: dict[str, Any] = {"seeds": seeds, "shots": shots, "score": score, "compare_scores": compare_scores}
    given |= {"include": include, "exclude": exclude, "tasks": tasks, "methods": methods, "published": published}
    given |= {"protocol": protocol, "backbone": backbone}
    refuse_unused(f"hifi table {name}", {option: given[option] for option in unused})
    if name == "search":
        tables = search_table.build_all(
            results.or_only_subdirectory().directory,
            [search] if search else [],
            protocol=protocol,
            backbone=backbone,
            tasks=run_names("tasks", tasks),
            methods=run_names("methods", methods),
        )
    else:
        results = results.or_only_subdirectory(protocol or (layout.protocol if layout else None))
        if not results.records and not layout:
            raise results.no_run_error("hifi table")
        layouts = [layout] if layout else score_table.specs_of(results.records, protocol, backbone, shots)
        if not layouts:
            raise results.no_setting_error(protocol=protocol, backbone=backbone, shots=shots)
        specs = [
            table_spec.with_changes(
                spec,
                protocol=protocol,
                backbone=backbone,
                methods=run_names("methods", methods) if reads_runs else options.names(methods),
                tasks=run_names("tasks", tasks) if reads_runs else options.names(tasks),
                seeds=options.parse_seeds(seeds) if seeds else None,
                shots=shots,
                known=results.names if tasks or methods else {},
            )
            for spec in layouts
        ]
        if layout:  # a user's own may name what there is not
            table_spec.check_names("methods", [name for row in layout.rows for name in row.methods], results.names["methods"])
            table_spec.check_names("tasks", [column.task for column in layout.columns], results.names["tasks"])
        measurements = _measurements(specs[0], results_dir, data_dir)
        server = server_scores.read(test_scores) if test_scores else None
        request = TableRequest(results, score, counted, published, server, **measurements)
        build = table_types.build_under_all_scores if compare_scores else table_types.build_all
        tables = build(specs, request, layout=layout)
        if not results.records and isinstance(layout, table_spec.ScoresSpec) and not server:
            options.logger.warning(str(results.no_run_error(f"hifi table {name}")))
    text = render(table_format, tables, standalone=standalone)
    write_or_print(text, out, "table")
    if strict and any(table.incomplete for table in tables):
        raise typer.Exit(1)


def _measurements(spec: "TableSpec", results_dir: Path, data_dir: Path | None) -> dict[str, Any]:
    """The fields of `TableRequest` that a table of costs or of row counts requires; none for other tables."""
    where = {"protocol": spec.protocol, "backbone": spec.backbone}
    names = [row.method for row in spec.rows if row.method]
    if spec.kind == "costs":
        from hifi_cli.runs.method_costs import result_costs

        return {"result_costs": {name: result_costs(name, **where, results_dir=results_dir) for name in names}}
    if spec.kind == "training-costs":
        from hifi_cli.reports.cost_table import FULL_FT
        from hifi_cli.runs.method_costs import training_costs

        methods = dict.fromkeys([FULL_FT, *names])
        costs = {name: training_costs(name, reference=FULL_FT, **where, results_dir=results_dir) for name in methods}
        return {"training_costs": costs}
    if spec.kind == "statistics":
        from hifi_cli.tasks import row_counts

        tasks = dict.fromkeys(column.task for column in spec.columns)
        return {"row_counts": row_counts.collect(tasks, data_dir=data_dir)}
    return {}
