"""`hifi report`: finished runs as one HTML file."""

from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.sources import run_name
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import command_line, suffix_of_output, write_text
from hifi_cli.reports import claim_spec, html, other_tables, table_spec
from hifi_cli.reports import claims as verdicts
from hifi_cli.reports import tables as score_tables
from hifi_cli.results.study import Study


def report(
    tables: Annotated[
        list[str] | None,
        options.several("--tables", "--table", help="Tables by name; default: all finished runs."),
    ] = None,
    claims: Annotated[
        list[str] | None,
        options.several("--claims", help="Claims of papers or your own YAMLs; default: all with a result."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="Compare this method with each of the others; default: full-ft.", rich_help_panel=options.WHAT),
    ] = None,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    results_dir: options.ResultsDir = options.RESULTS,
    published: options.Published = False,
    out: options.Out = None,
) -> None:
    """Write tables, comparisons, claims, figures and learning curves to one HTML file.

    It is RESULTS_DIR/report.html where --out names no other.
    """
    suffix_of_output(out, (".html", ".htm"), "hifi table writes other formats")
    study = Study(results_dir)
    searches = other_tables.searches(study) if study.runs["variant"].notna().any() else []
    if study.shown.empty and not searches:
        raise study.no_run_error()
    reference = (compare and run_name("methods", compare)) or html.REFERENCE
    if compare and reference not in study.names("method"):
        table_spec.check_names("methods", [reference], study.names("method"))
        raise MissingError(f"no finished run of {reference}; make one with hifi train --method {reference}")
    own_specs = {name: table_spec.by_names(table_spec.load(name)) for name in tables or ()}
    if unfit := [name for name, spec in own_specs.items() if spec.kind != "scores"]:
        raise UsageError(f"hifi report shows tables of scores, and {unfit[0]} is none: hifi table {unfit[0]}")
    place = ["--results-dir", str(study.directory)] if study.directory != options.RESULTS else []
    specs = [(spec, command_line(["hifi", "grid", name, *place])) for name, spec in own_specs.items()]
    specs = specs or [(spec, "") for spec in score_tables.specs_of(study)]
    counted = options.counted_flags(include, exclude)
    claim_tables = []
    settings = [(spec.protocol, spec.backbone) for spec, _ in specs if spec.protocol in registry.names("protocols")]
    for protocol, backbone in dict.fromkeys(settings):
        for name in claims or registry.names("claims"):
            file = claim_spec.load(name, protocol=protocol, backbone=backbone)
            grid = name if registry.is_file(name) else f"claims-{name}"
            words = ["hifi", "grid", grid, "--protocol", protocol, "--backbone", backbone, *place]
            table = verdicts.evaluate(file, study, score=score, counted=counted, grid=words, place=place)
            if claims or (table.frame["verdict"] != "not run").any():
                claim_tables.append(table)
    built = [
        score_tables.build(spec, study, score_tables.TableOptions(score, counted, published, grid=grid)) for spec, grid in specs
    ]
    shown = [*built, *html.comparisons(study, reference, score=score, counted=counted), *claim_tables, *searches]
    target = out or study.directory / "report.html"
    write_text(target, html.render(study, shown))
    print(target)
