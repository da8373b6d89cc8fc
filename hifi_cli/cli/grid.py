"""`hifi grid`: many runs, finished ones skipped, on this machine's GPUs or cores or on many machines."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hifi_cli.cli import options
from hifi_cli.wording import counted_noun

if TYPE_CHECKING:
    from hifi_cli.config.figure_spec import FigureSpec
    from hifi_cli.grids.cells import GridCell
    from hifi_cli.grids.grid_spec import Grid
    from hifi_cli.grids.jobs import JobOptions
    from hifi_cli.grids.scheduler import Engine, GridProgress, Scheduler


def grid(
    name: Annotated[str, typer.Argument(help="A grid's name or YAML.", autocompletion=options.complete("grids"))],
    overrides: options.Overrides = None,
    jobs: Annotated[
        int,
        typer.Option(
            "-j",
            "--jobs",
            min=1,
            max=1024,
            help="Processes at a time; they share the visible GPUs in turn, or the cores.",
            rich_help_panel=options.HOW,
        ),
    ] = 1,
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
    force: Annotated[
        bool, typer.Option("--force", help="Delete the finished runs of the grid and repeat them.", rich_help_panel=options.HOW)
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Searches: how many settings to try for every method; the best is chosen on a holdout.",
            rich_help_panel=options.WHICH,
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(help="i/n: run the i-th of n parts, on a shared results directory.", rich_help_panel=options.HOW),
    ] = None,
    claims: Annotated[
        str | None, typer.Option(help="Grids of claims: only these claims, with commas.", rich_help_panel=options.WHICH)
    ] = None,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    backbone: options.BackboneOfRuns = None,
    protocol: options.ProtocolOfRuns = None,
    seeds: options.SeedsOfRuns = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Train all runs of a table, a figure, claims or a search; if one fails, the others go on, and the exit code is 1."""
    from hifi_cli.errors import UsageError
    from hifi_cli.files import safe_name
    from hifi_cli.grids import cells as grid_cells
    from hifi_cli.grids import grid_spec
    from hifi_cli.grids.grid_display import display
    from hifi_cli.grids.jobs import JobOptions

    changes = {
        "tasks": options.names(tasks),
        "methods": options.names(methods),
        "backbone": backbone,
        "protocol": protocol,
        "seeds": options.parse_seeds(seeds) if seeds else None,
        "trials": trials,
    }
    spec = grid_spec.resolve(
        grid_spec.with_changes(grid_spec.load(name), changes), safe_name(Path(name).stem), options.names(claims)
    )
    job_options = JobOptions(results_dir, data_dir)
    all_overrides = tuple(overrides or ())
    figure = spec.figure
    directory = results_dir / "grids" / spec.name
    if spec.claims:
        from hifi_cli.grids import claim_runs

        all_cells = claim_runs.cells(spec.claims, spec.name, all_overrides)
    else:
        all_cells = _cells_of_figure(figure, job_options, all_overrides) if figure else grid_cells.cells(spec, all_overrides)
    if not all_cells:
        options.logger.warning(f"note: grid {spec.name} has no runs; its table needs none")
    cells = grid_cells.shard(all_cells, shard) if shard else all_cells
    scheduler = _scheduler(cells, job_options, directory, retries=retries)
    if force and print_only:
        raise UsageError("--force deletes finished runs and --print only prints: give one of them")
    # what is refused below is refused before --force deletes anything
    if spec.is_search:
        from hifi_cli.grids import search

        search.refuse_another_search(spec, all_cells, results_dir)
    if force:
        _refuse_missing_data(cells, job_options)
    if print_only:
        from hifi_cli.cli.show import print_commands

        return print_commands(scheduler.plan(jobs), job_options, format)
    try:
        with (
            contextlib.closing(_engine(engine, site, jobs, job_options, directory)) as job_engine,
            display(results_dir) as show,
        ):
            for cell in cells if force else ():  # an engine that cannot start deletes nothing
                cell.run_directory(results_dir).clear_if_unlocked()
            progress = scheduler.run(job_engine, show)
    except BaseException:
        _print_summary(spec, scheduler)
        raise
    if spec.is_search:
        every_shard = _scheduler(all_cells, job_options, directory) if shard else scheduler
        if shard:
            every_shard.plan(processes=1)  # finds the finished runs
            every_shard.progress.failed = progress.failed
        _print_choice(spec, every_shard.progress, results_dir, quiet=format == "json")
    _print_summary(spec, scheduler)
    if format == "json":
        _print_json(spec, scheduler)
    if progress.failed or (progress.diverged and not spec.is_search):
        raise typer.Exit(1)


def _scheduler(cells: "list[GridCell]", job_options: "JobOptions", directory: Path, *, retries: int = 0) -> "Scheduler":
    from hifi_cli.grids.scheduler import Scheduler
    from hifi_cli.training.input_check import InputCheck

    check = InputCheck(job_options.data_dir).check
    return Scheduler(cells, job_options, directory / "logs", check=check, retries=retries)


def _refuse_missing_data(cells: "list[GridCell]", job_options: "JobOptions") -> None:
    from hifi_cli.training.resources import ResourceCache

    resources = ResourceCache(job_options.results_dir, job_options.data_dir)
    for task in dict.fromkeys(cell.task for cell in cells):
        resources.rows(task)


def _cells_of_figure(figure: "FigureSpec", job_options: "JobOptions", overrides: tuple[str, ...]) -> "list[GridCell]":
    from hifi_cli.errors import UsageError
    from hifi_cli.figures.figure import FigureRequest
    from hifi_cli.training.resources import ResourceCache

    resources = ResourceCache(job_options.results_dir, job_options.data_dir)
    request = FigureRequest(figure, resources, overrides)
    cells = request.kind.cells(request)
    if not cells:
        raise UsageError(f"this figure needs no finished runs: hifi figure computes it ({figure.description})")
    return cells


def _engine(name: str, site: str, jobs: int, job_options: "JobOptions", directory: Path) -> "Engine":
    if name == "local":
        from hifi_cli.grids.local_engine import LocalEngine

        return LocalEngine(job_options, jobs)
    from hifi_cli.grids.parsl_engine import ParslEngine

    return ParslEngine(job_options, site, directory / "parsl")


def _print_choice(grid: "Grid", progress: "GridProgress", results_dir: Path, *, quiet: bool) -> None:
    from collections import Counter

    from hifi_cli.grids import search
    from hifi_cli.results.search_result import SearchResult

    if progress.left:
        left = f"{progress.left} of {counted_noun(len(progress.cells), 'run')}"
        options.logger.info(f"no setting is chosen yet: {left} are left to other shards; the last shard to finish chooses")
        return
    failed = Counter((cell.task, cell.method) for cell in progress.failed)
    for (task, method), number in failed.items():
        options.logger.warning(f"{task}, {method}: no setting is chosen, {counted_noun(number, 'run')} failed")
    complete = [cell for cell in progress.cells if (cell.task, cell.method) not in failed]
    if not complete:
        return
    result = search.result(grid, complete, progress.finished, results_dir)
    path = SearchResult.path(results_dir, grid.name, grid.protocol, grid.backbone)
    result.merge_into(path)
    for line in [] if quiet else search.lines(result.searches):
        print(line)
    options.logger.info(f"chosen settings: {path}")


def _print_json(grid: "Grid", scheduler: "Scheduler") -> None:
    """Print the state of every cell."""
    import time

    from hifi_cli.cli.show import print_json

    progress = scheduler.progress
    cells = []
    for cell in progress.cells:
        status = progress.finished.get(cell)
        result = status.result if status else None
        unfinished = "failed" if cell in progress.failed else "unfinished"
        cells.append(
            {
                "task": cell.config.task,
                "method": cell.config.method,
                "seed": cell.config.seed,
                "path": cell.run_directory(scheduler.options.results_dir).path,
                "state": status.state if status else unfinished,
                "score": 100 * result.score() if result and result.is_done else None,
                "reason": progress.failed.get(cell, status.detail if status else ""),
                "command": scheduler.command(cell),
            }
        )
    seconds = round(time.monotonic() - progress.started, 3)
    print_json({"name": grid.name, "seconds": seconds, "finished_before": progress.finished_before, "cells": cells})


def _print_summary(grid: "Grid", scheduler: "Scheduler") -> None:
    """Print one line about the grid, and for each failed cell the command that repeats it."""
    import time

    from hifi_cli.wording import format_duration

    progress = scheduler.progress
    elapsed = format_duration(time.monotonic() - progress.started)
    before = f" ({progress.finished_before} before)" if progress.finished_before else ""
    options.logger.info(
        f"grid {grid.name}: {len(progress.finished)} of {len(progress.cells)} done{before},"
        f" {len(progress.failed)} failed, in {elapsed}"
    )
    for cell, reason in {**progress.failed, **progress.diverged}.items():
        options.logger.error(f"failed: {cell.name}: {reason}")
        options.logger.error(f"  to repeat it: {scheduler.command(cell)}")
