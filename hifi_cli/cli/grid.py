"""`hifi grid`: many runs, finished ones skipped, on this machine's GPUs or cores or on many machines."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hifi_cli.cli import options

if TYPE_CHECKING:
    from hifi_cli.grids.cells import Cell
    from hifi_cli.grids.grid_spec import Grid
    from hifi_cli.grids.jobs import Places
    from hifi_cli.grids.scheduler import Board, Engine, Scheduler
    from hifi_cli.reports.figures.figure_spec import FigureSpec


def grid(
    name: Annotated[str, typer.Argument(help="A grid's name or YAML.", autocompletion=options.complete("grids"))],
    overrides: options.Overrides = None,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", min=1, max=1024, help="Processes; default: GPUs, or cores.", rich_help_panel=options.HOW),
    ] = None,
    engine: Annotated[
        Literal["local", "parsl"],
        typer.Option(help="This machine, or many machines through Parsl.", rich_help_panel=options.HOW),
    ] = "local",
    site: Annotated[
        str,
        typer.Option(
            help="Where Parsl runs: a site's name or YAML.",
            rich_help_panel=options.HOW,
            autocompletion=options.complete("sites"),
        ),
    ] = "node",
    print_only: Annotated[
        bool,
        typer.Option("--print", help="Print the commands of the runs that are left, and stop.", rich_help_panel=options.HOW),
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="How often a failed run is repeated.", rich_help_panel=options.HOW)] = 0,
    auto_batch: options.AutoBatch = False,
    shard: Annotated[
        str | None,
        typer.Option(help="i/n: run the i-th of n parts, on a shared results directory.", rich_help_panel=options.HOW),
    ] = None,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    backbone: options.BackboneOfRuns = None,
    protocol: options.ProtocolOfRuns = None,
    seeds: options.SeedsOfRuns = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Run a table's or a figure's runs, or a search; a run that fails is recorded, the others go on, and the exit code is 1."""
    from hifi_cli.files import safe_name
    from hifi_cli.grids import cells as cells_of
    from hifi_cli.grids import grid_spec as specs
    from hifi_cli.grids.grid_display import view
    from hifi_cli.grids.jobs import Places
    from hifi_cli.grids.scheduler import Scheduler

    changes = {
        "tasks": options.names(tasks),
        "methods": options.names(methods),
        "backbone": backbone,
        "protocol": protocol,
        "seeds": options.parse_seeds(seeds) if seeds else None,
    }
    wanted = specs.fill(specs.narrowed(specs.load(name), changes), safe_name(Path(name).stem))
    places = Places(results_dir, data_dir, auto_batch)
    words = tuple(overrides or ())
    found = _cells_of_figure(wanted.figure, places, words) if wanted.figure else cells_of.cells(wanted, words)
    found = cells_of.shard(found, shard) if shard else found
    folder = results_dir / "grids" / wanted.name
    scheduler = Scheduler(found, places, folder / "logs", retries=retries)
    if print_only:
        for job in scheduler.plan(jobs or 1):
            print(job.line(places))
        return
    with contextlib.closing(_engine(engine, site, jobs, places, folder)) as at_work, view() as show:
        board = scheduler.run(at_work, show)
    if wanted.is_search:
        _print_choice(wanted, board, results_dir)
    _tell(wanted, scheduler)
    if board.failed or (board.diverged and not wanted.is_search):
        raise typer.Exit(1)


def _cells_of_figure(figure: "FigureSpec", places: "Places", words: tuple[str, ...]) -> "list[Cell]":
    from hifi_cli.analysis import figure_data
    from hifi_cli.errors import UsageError
    from hifi_cli.runs.resources import ResourceCache

    resources = ResourceCache(places.results_dir, places.data_dir)
    analysis, request = figure_data.make_request(figure, resources, overrides=words)
    cells = [run.cell for run in figure_data.required_runs(analysis, request)]
    if not cells:
        raise UsageError(f"this figure needs no finished runs: hifi figure computes it ({figure.description})")
    return cells


def _engine(name: str, site: str, jobs: int | None, places: "Places", folder: Path) -> "Engine":
    if name == "local":
        from hifi_cli.grids.local_engine import LocalEngine

        return LocalEngine(places, jobs)
    from hifi_cli.grids.parsl_engine import ParslEngine

    return ParslEngine(places, site, folder / "parsl")


def _print_choice(wanted: "Grid", board: "Board", results_dir: Path) -> None:
    from hifi_cli.grids import search

    chosen = search.choose(board.found, results_dir)
    path = results_dir / "grids" / wanted.name / "chosen.json"
    search.store(chosen, path, grid=wanted.name, protocol=wanted.protocol, backbone=wanted.backbone)
    for line in search.lines(chosen):
        print(line)
    options.logger.info(f"chosen settings: {path}")


def _tell(wanted: "Grid", scheduler: "Scheduler") -> None:
    """The end in a line, and what failed with the command that repeats it."""
    import time

    from hifi_cli.grids.grid_display import duration

    board = scheduler.board
    took = duration(time.monotonic() - board.began)
    more = f" ({board.before} before)" if board.before else ""
    options.logger.info(
        f"grid {wanted.name}: {len(board.found)} of {len(board.cells)} done{more}, {len(board.failed)} failed, in {took}"
    )
    for cell, why in {**board.failed, **board.diverged}.items():
        options.logger.error(f"failed: {cell.name}: {why}")
        options.logger.error(f"  repeat it: {scheduler.command(cell)}")
