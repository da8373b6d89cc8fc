"""`hifi claims`: verdicts on a paper's claims."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.errors import logger
from hifi_cli.records.study import Study
from hifi_cli.reports import table_spec
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.reports.claims import table as claims_table
from hifi_cli.reports.claims.spec import ClaimsFile
from hifi_cli.reports.options import ReportOptions, flags_that_count
from hifi_cli.reports.render import emit
from hifi_cli.reports.table import Table, with_notes


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER|PAPER/CLAIM]...",
            help="Papers, single claims, or a YAML of your own; default: all papers.",
        ),
    ] = None,
    tasks: options.Tasks = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    score: options.Score = None,
    include: options.Include = None,
    data_dir: options.HandedOnDataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 1 unless every claim is reproduced.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
) -> None:
    """Print each claim with the published effect, yours with its interval, a verdict, and the commands for missing runs."""
    study = Study(results_dir)
    if results_dir != options.RESULTS and not results_dir.is_dir():
        logger.warning(f"note: there is no directory {results_dir}, so that no claim has runs")
    task_names = options.stored_names("tasks", tasks)
    table_spec.check_names("tasks", task_names, study.names("task"))
    files = claims_spec.select(names or [], protocol=protocol, backbone=backbone, tasks=task_names)
    # Files of claims may share a protocol, which is named once.
    for asked in dict.fromkeys(file.protocol for file in files.values()):
        if len(study.table_runs) and registry.name_of(asked) not in study.names("protocol"):
            logger.warning(f"note: {study.no_such_runs_error(protocol=asked)}")
    for name in files:
        left_out = claims_spec.not_asked(name, protocol) if protocol else []
        # A user who names one claim of a file does not ask for the others.
        if left_out and name in (names or files):
            listed = ", ".join(left_out)
            logger.warning(f"note: {name} does not ask these claims under {protocol}: {listed}")
    tables = verdict_tables(
        files,
        study,
        ReportOptions(epoch_choice=score, included=flags_that_count(include)),
        protocol=protocol,
        backbone=backbone,
        tasks=task_names,
        data_dir=data_dir,
    )
    tables = with_notes(tables, study.notes_on_damage)
    emit(tables, format, out)
    reproduced = sum(verdicts_in(table).count("reproduced") for table in tables)
    if strict and reproduced < sum(len(file.claims) for file in files.values()):
        raise typer.Exit(1)


def verdicts_in(table: Table) -> list[str]:
    """Return the verdict of each row of a table of claims."""
    return [str(row.cell("verdict").value) for row in table.rows]


def verdict_tables(
    files: Mapping[str, ClaimsFile],
    study: Study,
    how: ReportOptions,
    *,
    protocol: str | None,
    backbone: str | None,
    tasks: list[str],
    data_dir: Path | None = None,
) -> list[Table]:
    """Build a table of verdicts for each file of claims.

    The other arguments than files, runs and options are those of the commands that make missing runs.

    Args:
        files: by name, with the claims that are asked.
        study: all runs.
        how: which epoch's score is meant, and which runs count.
        protocol: another protocol than the files'; None: theirs.
        backbone: another backbone than the files'; None: theirs.
        tasks: those that are asked about; empty: all.
        data_dir: directory of the official data files; None: the commands name none.
    """
    given = options.arguments(
        tasks=",".join(map(registry.argument_of, tasks)),
        protocol=registry.argument_of(protocol or ""),
        backbone=registry.argument_of(backbone or ""),
    )
    data_option = options.arguments(data_dir=data_dir)
    return [
        claims_table.table_of_verdicts(name, file, study, how, given=given, data_option=data_option)
        for name, file in files.items()
    ]
