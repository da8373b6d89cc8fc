"""`hifi table`: finished runs beside one another."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def table(
    name: Annotated[str | None, typer.Argument(help="A table's name or YAML; default: all runs there are.")] = None,
    format: Annotated[str, typer.Option("--format", help="text, md, tex, csv or json.")] = "text",  # noqa: A002
    score: Annotated[str | None, typer.Option(help="best, last or max epoch; default: what the protocol reports.")] = None,
    include: Annotated[str, typer.Option(help="Count runs left out otherwise: limited, collapsed, or both.")] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 when a run is missing.")] = False,
    results_dir: options.ResultsDir = Path("results"),
    out: options.Out = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Print mean and standard deviation over seeds, a method per row and a task per column, as the papers do."""
    from hifi_cli import registry
    from hifi_cli.config import parse
    from hifi_cli.errors import MissingError, UsageError
    from hifi_cli.files import write_text
    from hifi_cli.reports import records
    from hifi_cli.reports import table as tables

    if format not in tables.FORMATS:
        raise UsageError(f"--format {format}: one of {', '.join(tables.FORMATS)} is wanted")
    if score not in (None, "best", "last", "max"):
        raise UsageError(f"--score {score}: best, last or max is wanted")
    marks = {mark.strip() for mark in include.split(",") if mark.strip()}
    if not marks <= {"limited", "collapsed"}:
        raise UsageError(f"--include {include}: limited, collapsed or limited,collapsed is wanted")
    found = list(records.read(results_dir))
    if name:
        specs = [parse(tables.TableSpec, registry.load("tables", name), str(registry.find("tables", name)))]
    elif found:
        specs = tables.specs_of(found)
    else:
        raise MissingError(f"no finished run in {results_dir}; make one with hifi train")
    built = [tables.build(spec, found, score=score, include=marks) for spec in specs]
    text = "\n".join(tables.FORMATS[format](one) for one in built)
    if out:
        write_text(out, text)
        options.logger.info(f"table: {out}")
    else:
        print(text, end="")
    if strict and any(one.missing for one in built):
        raise typer.Exit(1)
