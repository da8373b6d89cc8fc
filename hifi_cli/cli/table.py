"""`hifi table`: finished runs beside one another and beside the papers' numbers."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def table(
    name: Annotated[
        str | None,
        typer.Argument(help="A table's name or YAML; default: all finished runs.", autocompletion=options.complete("tables")),
    ] = None,
    format: options.TableFormat = "text",  # noqa: A002
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
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Print mean and standard deviation over seeds, a method per row and a task per column, as the papers do."""
    from hifi_cli.cli import measures
    from hifi_cli.errors import MissingError
    from hifi_cli.files import write_text
    from hifi_cli.reports import score_choices, score_table, table_spec, table_types
    from hifi_cli.reports.formats import FORMATS
    from hifi_cli.reports.run_records import Results
    from hifi_cli.reports.table_request import TableRequest

    counted, shots = options.counted_flags(include, exclude), options.shots_of_runs(shots)
    results = Results(results_dir)
    layout = table_types.load(name) if name else None
    if layout is None and not results.records:
        raise MissingError(f"no finished run in {results_dir}; make one with hifi train")
    specs = [
        table_spec.with_changes(
            one,
            protocol=protocol,
            backbone=backbone,
            methods=options.names(methods),
            tasks=options.names(tasks),
            seeds=options.parse_seeds(seeds) if seeds else None,
            shots=shots,
            known=results.names if tasks or methods else {},
        )
        for one in ([layout] if layout else score_table.specs_of(results.records, protocol, backbone, shots))
    ]
    measured = measures.measurements(specs[0], results_dir, data_dir) if specs else {}
    request = TableRequest(results, score, counted, published, measured)
    build = score_choices.under_all_scores if compare_scores else table_types.build_all
    tables = build(specs, request, layout=layout)
    text = FORMATS[format](tables)
    if out:
        write_text(out, text)
        options.logger.info(f"table: {out}")
    else:
        print(text, end="")
    if strict and any(one.incomplete for one in tables):
        raise typer.Exit(1)
