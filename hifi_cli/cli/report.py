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
    """Write tables, comparisons, claims, figures and learning curves to one HTML file.

    It is RESULTS_DIR/report.html where --out names no other.
    """
    from hifi_cli.cli import show
    from hifi_cli.cli.run_names import only_run_name
    from hifi_cli.config import registry
    from hifi_cli.errors import MissingError, UsageError
    from hifi_cli.files import command_line, suffix_of_output, write_text
    from hifi_cli.reports import claim_spec, html, other_tables, table_spec
    from hifi_cli.reports import claims as verdicts
    from hifi_cli.reports import tables as score_tables
    from hifi_cli.results.study import Study

    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    study = Study(results_dir).or_only_subdirectory()
    searches = other_tables.searches(study) if study.runs["variant"].notna().any() else []
    if study.shown.empty and not searches:
        raise study.no_run_error("hifi report")
    reference = only_run_name("methods", compare) or html.REFERENCE
    if compare and reference not in study.names("method"):
        table_spec.check_names("methods", [reference], study.names("method"))
        raise MissingError(f"no finished run of {reference}; make one with hifi train --method {reference}")
    own_specs = [table_spec.by_names(table_spec.load(name)) for name in options.names(tables)]
    if unfit := [name for name, spec in zip(options.names(tables), own_specs, strict=True) if spec.kind != "scores"]:
        raise UsageError(f"hifi report shows tables of scores, and {unfit[0]} is none: hifi table {unfit[0]}")
    specs = own_specs or score_tables.specs_of(study)
    counted = options.counted_flags(include, exclude)
    decided = []
    for protocol, backbone in dict.fromkeys((spec.protocol, spec.backbone) for spec in specs):
        for name in options.names(claims) or registry.names("claims"):
            if protocol in registry.names("protocols") and (claims or protocol in claim_spec.protocols_of(name)):
                file = claim_spec.load(name, protocol=protocol, backbone=backbone)
                decided.append((file, verdicts.evaluate(file, study, score=score, counted=counted)))
    place = ["--results-dir", str(study.directory)] if study.directory != Path("results") else []
    grids = [command_line(["hifi", "grid", name, *place]) for name in options.names(tables)] or [""] * len(specs)
    built = [
        score_tables.build(spec, study, score_tables.TableOptions(score, counted, published, grid=grid))
        for spec, grid in zip(specs, grids, strict=True)
    ]
    shown = [*built, *html.comparisons(study, reference, score=score, counted=counted), *searches]
    target = out or study.directory / "report.html"
    write_text(target, html.render(study, shown, decided))
    show.print_path(target, format)
