"""`hifi claims`: verdicts on a paper's claims."""

from typing import Annotated, Any

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.errors import logger
from hifi_cli.records.study import Study
from hifi_cli.reports import comparable, table_spec
from hifi_cli.reports.claims import spec as claims_spec
from hifi_cli.reports.claims import table as claims_table
from hifi_cli.reports.render import Table, emit


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
    data_dir: options.DataDir = None,
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
    study, task_names = Study(results_dir), options.stored_names("tasks", tasks)
    table_spec.check_names("tasks", task_names, study.names("task"))
    files = claims_spec.select(names or [], protocol=protocol, backbone=backbone)
    for each in dict.fromkeys(file.protocol for file in files.values()):
        if len(study.table_runs) and registry.name_of(each) not in study.names("protocol"):
            logger.warning(f"note: {study.no_such_runs_error(protocol=each)}")
    place = options.arguments(results_dir=results_dir, data_dir=data_dir)
    how: dict[str, Any] = {"protocol": protocol, "backbone": backbone, "tasks": task_names}
    included = comparable.INCLUDED_BY_DEFAULT.union(include or ())
    tables = verdict_tables(names or [], study, **how, score=score, included=included, place=place)
    tables[0].notes += study.notes_on_damage
    emit(tables, format, out)
    reproduced = sum((table.frame["verdict"] == "reproduced").sum() for table in tables)
    if strict and reproduced < sum(len(file.claims) for file in files.values()):
        raise typer.Exit(1)


def verdict_tables(
    words: list[str],
    study: Study,
    *,
    protocol: str | None,
    backbone: str | None,
    tasks: list[str],
    **how: Any,
) -> list[Table]:
    """A table of verdicts for each file of claims that words name."""
    files = claims_spec.select(words, protocol=protocol, backbone=backbone, tasks=tasks)
    names = {"tasks": ",".join(map(registry.argument_of, tasks)), "protocol": protocol}
    given = options.arguments(**names, backbone=backbone)
    return [
        claims_table.evaluate(name, file, study, given=given, **how) for name, file in files.items()
    ]
