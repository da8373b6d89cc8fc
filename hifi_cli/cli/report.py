"""`hifi report`: finished runs as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def report(
    tables: Annotated[
        str | None,
        typer.Option(
            "--tables",
            "--table",
            help="Tables by name, with commas; default: all finished runs.",
            rich_help_panel=options.WHICH,
            autocompletion=options.complete("tables"),
            callback=options.refuse_empty_list,
        ),
    ] = None,
    claims: Annotated[
        str | None,
        typer.Option(
            "--claims",
            help="Claims of these papers, or YAMLs of your own, with commas; default: all papers with a result.",
            rich_help_panel=options.WHICH,
            autocompletion=options.complete("claims"),
            callback=options.refuse_empty_list,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            help="Compare this method with each of the others; default: full-ft.",
            rich_help_panel=options.WHICH,
            autocompletion=options.complete("methods"),
        ),
    ] = None,
    published: Annotated[
        bool,
        typer.Option("--published", help="Also show the papers' numbers and the differences.", rich_help_panel=options.OUTPUT),
    ] = False,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    out: options.Out = None,
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Write tables, comparisons, charts, selected heads and the source of every number to one HTML file.

    It is RESULTS_DIR/report.html where --out names no other.
    """
    from hifi_cli.cli import show
    from hifi_cli.cli.run_names import only_run_name
    from hifi_cli.files import suffix_of_output, write_text
    from hifi_cli.records.search_result import SearchResult
    from hifi_cli.reports import claim_spec, html_report, report_comparisons, score_table, search_table, table_spec, table_types
    from hifi_cli.reports import claims as verdicts
    from hifi_cli.reports.run_records import Results
    from hifi_cli.reports.table_request import TableRequest

    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    results = Results(results_dir, data_dir).or_only_subdirectory()
    results_dir = results.directory
    searches = search_table.build_all(results_dir) if SearchResult.paths(results_dir) else []
    if not results.records and not searches:
        raise results.no_run_error("hifi report")
    names = options.names(tables)
    own_specs = [table_spec.by_names(table_types.load(name)) for name in names]
    specs = own_specs or [*score_table.specs_of(results.records)]
    counted = options.counted_flags(include, exclude)
    request = TableRequest(results, score, counted, published)
    files = claim_spec.claims_of_settings(options.names(claims), [(spec.protocol, spec.backbone) for spec in specs])
    decided = [(file, verdicts.evaluate(file, results, score=score, counted=counted)) for file in files]
    with_results = [
        (file, entries) for file, entries in decided if claims or any(entry.verdict != "not run" for entry in entries)
    ]
    target = out or results_dir / "report.html"
    comparisons = report_comparisons.build_all(specs, request, only_run_name("methods", compare))
    shown = [*table_types.build_all(specs, request), *comparisons, *searches]
    page = html_report.render(shown, results.records, results_dir, target, claims=with_results)
    write_text(target, page)
    show.print_path(target, format)
