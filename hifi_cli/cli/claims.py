"""`hifi claims`: whether the papers' claims, or a user's own, hold in finished runs."""

from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.reports import claim_spec
from hifi_cli.reports import claims as verdicts
from hifi_cli.reports.formats import render
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
    standalone: options.Standalone = False,
) -> None:
    """Print each claim with the published effect, yours with its interval, a verdict, and the commands for missing runs."""
    table_format = options.table_format(format, out)
    files = claim_spec.select(names or [], protocol=protocol, backbone=backbone)
    study, counted = Study(results_dir), options.counted_flags(include, exclude)
    for name in {registry.name_of(file.protocol): None for file in files.values()}:
        if len(study.shown) and name not in study.names("protocol"):
            options.logger.warning(f"note: {study.no_setting_error(protocol=name)}")
    arguments = ["--results-dir", str(results_dir)] if results_dir != options.RESULTS else []
    arguments += ["--data-dir", str(data_dir)] if data_dir else []
    decided = [
        (file, verdicts.evaluate(file, study, score=score, counted=counted, arguments=arguments)) for file in files.values()
    ]
    text = render(table_format, [verdicts.build(file, found) for file, found in decided], standalone=standalone)
    options.write_or_print(text, out, "claims")
    if strict and any(result.verdict != "reproduced" for _, found in decided for result in found):
        raise typer.Exit(1)
