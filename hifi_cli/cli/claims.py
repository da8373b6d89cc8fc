"""`hifi claims`: whether the papers' claims, or a user's own, hold in finished runs."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def _complete(incomplete: str) -> list[str]:
    """Completes papers and claims."""
    from hifi_cli.config import registry

    names = registry.names("claims")
    words = [*names, *(f"{name}/{claim}" for name in names for claim in registry.load("claims", name)["claims"])]
    return [word for word in words if word.startswith(incomplete)]


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER|PAPER/CLAIM]...",
            help="Papers, single claims, or a YAML of your own; default: all papers.",
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
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Print each claim with the published effect, yours with its interval, a verdict, and the commands for missing runs."""
    from hifi_cli.cli.show import write_or_print
    from hifi_cli.config import registry
    from hifi_cli.reports import claim_spec
    from hifi_cli.reports import claims as verdicts
    from hifi_cli.reports.render import render
    from hifi_cli.results.study import Study

    table_format = options.table_format(format, out)
    files = claim_spec.select(names or [], protocol=protocol, backbone=backbone)
    study, counted = Study(results_dir), options.counted_flags(include, exclude)
    for name in {registry.name_of(file.protocol): None for file in files.values()}:
        if len(study.shown) and name not in study.names("protocol"):
            options.logger.warning(f"note: {study.no_setting_error(protocol=name)}")
    directories = {"--results-dir": results_dir if results_dir != Path("results") else None, "--data-dir": data_dir}
    place = [word for option, value in directories.items() if value for word in (option, str(value))]
    chosen = [word for option, name in (("--protocol", protocol), ("--backbone", backbone)) if name for word in (option, name)]
    tables, found = [], []
    for name, file in files.items():
        results = verdicts.evaluate(file, study, score=score, counted=counted, place=place)
        grid = name if registry.is_file(name) else f"claims-{name}"
        tables.append(verdicts.build(file, results, ["hifi", "grid", grid, *chosen, *place]))
        found += results
    write_or_print(render(table_format, tables), out, "claims")
    if strict and any(result.verdict != "reproduced" for result in found):
        raise typer.Exit(1)
