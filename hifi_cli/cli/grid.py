"""`hifi grid`: many runs, finished ones skipped, in processes on this machine or on a cluster."""

import time
from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import figure_spec
from hifi_cli.errors import UsageError, logger
from hifi_cli.files import command_line, safe_name
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import executor
from hifi_cli.grids.cells import GridCell, GridSpec
from hifi_cli.grids.executor import GridState
from hifi_cli.records.signs import signs_of
from hifi_cli.text import format_duration


def grid(
    name: Annotated[
        str,
        typer.Argument(
            help="A grid (hifi ls grids), a table, figure-NAME, claims-NAME, or a YAML of your own.",
        ),
    ],
    overrides: options.Overrides = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--jobs",
            min=1,
            max=1024,
            help="Processes at a time; they share the visible GPUs in turn, or the cores; default: 1.",
            rich_help_panel=options.HOW,
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="Run on a cluster, through Parsl: a site's name or YAML.",
            rich_help_panel=options.HOW,
        ),
    ] = None,
    print_only: Annotated[
        bool,
        typer.Option(
            "--print",
            help="Print the commands that are left, and stop.",
            rich_help_panel=options.HOW,
        ),
    ] = False,
    retries: Annotated[
        int,
        typer.Option(
            min=0, help="How often a failed run is repeated.", rich_help_panel=options.HOW
        ),
    ] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Repeat finished runs too.", rich_help_panel=options.HOW)
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            help="i/n: run the i-th of n parts, on a shared results directory.",
            rich_help_panel=options.HOW,
        ),
    ] = None,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
) -> None:
    """Train all runs of a table, a figure, claims or a search; if one fails, the others go on, and the exit code is 1."""
    if site and jobs:
        raise UsageError("--jobs is for this machine; with --site, the site's YAML says how many")
    if site:
        executor.load_site(site)
    changes = {
        "tasks": tasks or [],
        "methods": methods or [],
        "backbone": backbone,
        "protocol": protocol,
        "seeds": options.parse_seeds(seeds),
    }
    spec = grid_cells.load(name, changes)
    words = tuple(overrides or ())
    name = safe_name(Path(name).stem)
    if spec.figure:
        cells = _cells_of_figure(spec, results_dir, data_dir, words)
    elif spec.claims:
        cells = grid_cells.cells_of_claims(spec, name, words)
    else:
        cells = grid_cells.cells(spec, name, words)
    cells = grid_cells.shard(cells, shard) if shard else cells
    where = ["--results-dir", str(results_dir), *options.arguments(data_dir=data_dir)]
    state = executor.GridState(cells, results_dir, data_dir)
    if not force:
        state.read()
    if print_only:
        commands = [command_line(cell.command(where, force=force)) for cell in state.left]
        return print("".join(f"{command}\n" for command in commands), end="")
    directory = results_dir / "grids" / name
    try:
        with (
            executor.site_executor(site, directory / "parsl")
            if site
            else executor.local_executor(jobs or 1) as submit
        ):
            executor.run(state, submit, directory / "logs", where, force=force, retries=retries)
    finally:
        _print_summary(name, state, where, force=force)
    is_search = any(spec.varied.values())
    kinds = ("table", "figure", "claims")
    shown = [[kind, named] for kind in kinds if (named := getattr(spec, kind))] or [["table"]]
    result = ["table", "search"] if is_search else shown[0]
    place = options.arguments(protocol=protocol, backbone=backbone, results_dir=results_dir)
    command = command_line(["hifi", *result, *place])
    logger.info(f"results are in {results_dir}; next: {command}")
    if state.failed or (state.diverged and not is_search):
        raise typer.Exit(1)


def _cells_of_figure(
    spec: GridSpec, results_dir: Path, data_dir: Path | None, overrides: tuple[str, ...]
) -> list[GridCell]:
    from hifi_cli.figures.figure import FigureRequest  # torch, which other grids do not need
    from hifi_cli.runs.workspace import Workspace

    changes = {key: getattr(spec, key) for key in ("protocol", "backbone", "tasks", "seeds")}
    figure = figure_spec.load(str(spec.figure), **changes)
    request = FigureRequest(figure, Workspace(results_dir, data_dir), overrides)
    if cells := request.kind.cells(request):
        return cells
    what = figure.description
    raise UsageError(f"this figure needs no finished runs: hifi figure computes it ({what})")


def _print_summary(name: str, state: GridState, where: list[str], *, force: bool) -> None:
    """Print one line about the grid, and for each failed cell the command that repeats it.

    It has --force where the run has diverged, which is its result, and where the user gave it:
    otherwise it would train a run again that is done.
    """
    before = f" ({state.finished_before} before)" if state.finished_before else ""
    counts = f"{len(state.finished)} of {len(state.cells)} done{before}, {len(state.failed)} failed"
    logger.info(f"grid {name}: {counts}, in {format_duration(time.monotonic() - state.started)}")
    for sign in signs_of([*state.finished.values()]):
        logger.warning(f"note: {sign}")
    for cell, reason in {**state.failed, **state.diverged}.items():
        replaces = cell in state.diverged or (force and state.has_result(cell))
        command = cell.command(where, force=replaces)
        logger.error(f"failed: {cell.config.run_label}: {reason}")
        logger.error(f"  to repeat it: {command_line(command)}")
