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
    from hifi_cli.errors import UsageError
    from hifi_cli.files import suffix_of_output, write_text
    from hifi_cli.records.search_result import SearchResult
    from hifi_cli.reports import claim_spec, html_report, other_tables, report_comparisons, table_spec
    from hifi_cli.reports import claims as verdicts
    from hifi_cli.reports import tables as score_tables
    from hifi_cli.reports.run_records import Results
    from hifi_cli.results.study import Study

    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    results = Results(results_dir, data_dir).or_only_subdirectory()
    results_dir = results.directory
    searches = other_tables.searches(results_dir) if SearchResult.paths(results_dir) else []
    if not results.records and not searches:
        raise results.no_run_error("hifi report")
    names = options.names(tables)
    study = Study(results_dir)
    specs = [table_spec.by_names(table_spec.load(name)) for name in names] or score_tables.specs_of(study)
    if unfit := [name for name, spec in zip(names, specs, strict=False) if spec.kind != "scores"]:
        raise UsageError(f"hifi report shows tables of scores, and {unfit[0]} is none: hifi table {unfit[0]}")
    counted = options.counted_flags(include, exclude)
    table_options = score_tables.TableOptions(score, counted, published)
    files = claim_spec.claims_of_settings(options.names(claims), [(spec.protocol, spec.backbone) for spec in specs])
    decided = [(file, verdicts.evaluate(file, results, score=score, counted=counted)) for file in files]
    with_results = [
        (file, entries) for file, entries in decided if claims or any(entry.verdict != "not run" for entry in entries)
    ]
    target = out or results_dir / "report.html"
    comparisons = report_comparisons.build_all(specs, results, table_options, only_run_name("methods", compare))
    converted = [table.converted() for table in comparisons]
    shown = [*score_tables.build_all(specs, study, table_options), *converted, *searches]
    page = html_report.render(shown, results.records, results_dir, target, claims=with_results)
    write_text(target, page)
    show.print_path(target, format)
