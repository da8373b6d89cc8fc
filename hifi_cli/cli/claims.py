"""`hifi claims`: whether the papers' claims, or a user's own, hold in finished runs."""

from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.reports import claim_spec
from hifi_cli.reports import claims as verdicts
from hifi_cli.reports.render import render
from hifi_cli.results.study import Study


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER|PAPER/CLAIM]...",
            help="Papers, single claims, or a YAML of your own; default: all papers.",
        ),
    ] = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 unless every claim is reproduced.", rich_help_panel=options.OUTPUT)
    ] = False,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
) -> None:
    """Print each claim with the published effect, yours with its interval, a verdict, and the commands for missing runs."""
    table_format = options.table_format(format, out)
    files = claim_spec.select(names or [], protocol=protocol, backbone=backbone)
    study, counted = Study(results_dir), options.counted_flags(include, exclude)
    for name in {registry.name_of(file.protocol): None for file in files.values()}:
        if len(study.shown) and name not in study.names("protocol"):
            options.logger.warning(f"note: {study.no_setting_error(protocol=name)}")
    place = ["--results-dir", str(results_dir)] if results_dir != options.RESULTS else []
    place += ["--data-dir", str(data_dir)] if data_dir else []
    setting = ["--protocol", protocol] if protocol else []
    setting += ["--backbone", backbone] if backbone else []
    tables = []
    for name, file in files.items():
        grid = ["hifi", "grid", name if registry.is_file(name) else f"claims-{name}", *setting, *place]
        tables.append(verdicts.evaluate(file, study, score=score, counted=counted, grid=grid, place=place))
    options.write_or_print(render(table_format, tables), out, "claims")
    if strict and any((table.frame["verdict"] != "reproduced").any() for table in tables):
        raise typer.Exit(1)
