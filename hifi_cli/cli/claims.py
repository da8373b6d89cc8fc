"""`hifi claims`: whether the papers' claims, or a user's own, hold in finished runs."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def _complete(incomplete: str) -> list[str]:
    """Completes papers and claims."""
    from hifi_cli.config import registry

    words = [word for name in registry.names("claims") for word in (name, *registry.load("claims", name)["claims"])]
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER|CLAIM]...",
            help="Papers, claims, PAPER/CLAIM, or a YAML of your own; default: all papers.",
            autocompletion=_complete,
        ),
    ] = None,
    format: options.TableFormat = None,  # noqa: A002
    score: options.ScoreChoice = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 unless every claim is reproduced.", rich_help_panel=options.OUTPUT)
    ] = False,
    backbone: options.BackboneOfRuns = None,
    protocol: options.ProtocolOfRuns = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Also draw effects, intervals and published numbers: .png, .pdf or .svg.",
            rich_help_panel=options.OUTPUT,
            callback=options.refuse_other_picture,
        ),
    ] = None,
    standalone: options.Standalone = False,
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Print each claim with the published effect, yours with its interval, a verdict, and the commands for missing runs."""
    from dataclasses import replace

    from hifi_cli.cli.show import write_or_print
    from hifi_cli.config import registry
    from hifi_cli.reports import claim_spec, claim_table
    from hifi_cli.reports import claims as verdicts
    from hifi_cli.reports.formats import render
    from hifi_cli.reports.run_records import Results

    table_format = options.table_format(format, out)
    files = claim_spec.select(names or [], protocol=protocol, backbone=backbone)
    results, counted = Results(results_dir, data_dir), options.counted_flags(include, exclude)
    for name in {registry.name_of(file.protocol): None for file in files.values()}:
        if results.records and name not in results.names["protocols"]:
            options.logger.warning(f"note: {results.no_setting_error(protocol=name)}")
    decided = {name: verdicts.evaluate(file, results, score=score, counted=counted) for name, file in files.items()}
    text = render(
        table_format,
        [claim_table.build(file, decided[name]) for name, file in files.items()],
        standalone=standalone,
    )
    if picture:
        from hifi_cli.reports.charts import save_claim_effects

        titles = {name: f"{file.description}, {file.protocol}, {file.backbone}" for name, file in files.items()}
        several = len(files) > 1
        save_claim_effects(
            picture,
            {
                titles[name]: [replace(result, name=f"{name}/{result.name}" if several else result.name) for result in results]
                for name, results in decided.items()
            },
        )
        options.logger.info(f"picture: {picture}")
    write_or_print(text, out, "claims")
    if strict and any(result.verdict != "reproduced" for results in decided.values() for result in results):
        raise typer.Exit(1)
