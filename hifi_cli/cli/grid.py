"""`hifi grid`: many runs, finished ones skipped, in processes on this machine or on a cluster."""

import logging
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import figure_spec
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError, logger
from hifi_cli.files import safe_name
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids import grid_spec, queue, slots
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.cluster import site_executor
from hifi_cli.grids.costs import cost_lines
from hifi_cli.grids.forks import refuse_forks
from hifi_cli.grids.grid_spec import GridSpec
from hifi_cli.grids.missing import refuse_missing_inputs
from hifi_cli.grids.site_check import check_site
from hifi_cli.grids.state import GridState
from hifi_cli.records.layout import grid_logs
from hifi_cli.records.signs import signs_of
from hifi_cli.records.stored import refuse_packed
from hifi_cli.runs.cost import CostEstimator, results_in
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import command_line, format_duration

# The module that imports torch is imported by the function below that calls it.
if TYPE_CHECKING:
    from hifi_cli.runs.plan import Planner


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
            "--dry-run",
            help="Print the commands that are left, and stop.",
            rich_help_panel=options.HOW,
        ),
    ] = False,
    fork: Annotated[
        bool,
        typer.Option(
            "--fork",
            help="Import libraries once, and fork the runs: for many short ones, on Linux.",
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
    data_dir: options.HandedOnDataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    report_to: options.ReportTo = None,
) -> None:
    """Train all runs of a table, a figure, claims or a search; if one fails, the others go on, and the exit code is 1."""
    _refuse_options(site=site, jobs=jobs, fork=fork)
    refuse_packed(results_dir)
    if site:
        check_site(site)
    else:
        options.check_trackers(report_to)
    changes = {
        "tasks": tasks or [],
        "methods": methods or [],
        "backbone": backbone,
        "protocol": protocol,
        "seeds": options.parse_seeds(seeds),
    }
    spec = grid_spec.load(name, changes)
    # From here on it is the name of the grid's folder, also where the user gave the path of a YAML.
    name = safe_name(Path(name).stem)
    cells = _cells(spec, name, results_dir, data_dir, tuple(overrides or ()))
    if shard:
        cells = grid_cells.shard(cells, shard)
    state = GridState.of(cells, results_dir, data_dir, force=force)
    given = options.arguments(data_dir=data_dir, report_to=",".join(report_to or []))
    where = ["--results-dir", str(results_dir), *given]
    if print_only:
        for cell in state.left:
            print(command_line(cell.command(where, force=force)))
    if print_only or state.left:
        _log_costs(state, jobs=jobs or 1, on_site=site is not None)
    if print_only:
        return
    if not site:
        refuse_missing_inputs(state, name)
    logs = grid_logs(results_dir, name)
    workers = slots.local_executor(jobs or 1, forks=fork)
    if site:
        workers = site_executor(site, logs.parent / "parsl")
    try:
        with workers as submit:
            queue.run(state, submit, logs, where, force=force, retries=retries)
    finally:
        # Also after Ctrl-C: it says what is done, and how to repeat what failed.
        _print_summary(name, state, where, force=force)
    place = options.arguments(protocol=protocol, backbone=backbone, results_dir=results_dir)
    command = command_line(["hifi", *_what_shows(spec, cells), *place])
    logger.info(f"results are in {results_dir}; next: {command}")
    # A search may well try settings with which a run diverges.
    if state.failed or (state.diverged and not spec.is_search):
        raise typer.Exit(1)


def _refuse_options(*, site: str | None, jobs: int | None, fork: bool) -> None:
    """Refuse options that do not go together, and --fork where it does not work.

    Raises:
        UsageError: names them.
    """
    if site and jobs:
        raise UsageError("--jobs is for this machine; with --site, the site's YAML says how many")
    if site and fork:
        raise UsageError("--fork is for this machine; with --site, every run starts anew")
    if fork:
        refuse_forks()


def _log_costs(state: GridState, *, jobs: int, on_site: bool) -> None:
    """Log what the runs that are left will take: the output has the commands.

    Args:
        state: of the grid.
        jobs: processes at a time.
        on_site: whether the runs train on a cluster.
    """
    if not logger.isEnabledFor(logging.INFO):
        return

    @cache
    def planner() -> "Planner":
        """Return what measures a method on this machine, made at most once."""
        # Torch is imported where no finished run says what a method stores, and only then.
        from hifi_cli.runs.plan import Planner
        from hifi_cli.runs.workspace import Workspace

        return Planner(Workspace(state.results_dir, state.data_dir))

    def stored_bytes(config: RunConfig, task: TaskSpec) -> int | None:
        """Return the bytes that a run will store; None: they are not known here."""
        return planner().stored_bytes(config, task)

    estimator = CostEstimator(results_in(state.results_dir), stored_bytes)
    for name, text in cost_lines(state, estimator, jobs=jobs, on_site=on_site):
        logger.info(f"{name:9} {text}")


def _what_shows(spec: GridSpec, cells: Sequence[GridCell]) -> list[str]:
    """Return the words of the command that shows a grid's results."""
    if spec.is_search:
        return ["table", "search"]
    if spec.figure:
        return ["figure", spec.figure]
    if spec.claims:
        return ["claims", spec.claims]
    return options.table_that_shows([cell.config for cell in cells], spec.table)


def _cells(
    spec: GridSpec,
    name: str,
    results_dir: Path,
    data_dir: Path | None,
    overrides: tuple[str, ...],
) -> list[GridCell]:
    """Return the cells of a grid: those of a figure, of claims, or of tasks, methods and seeds."""
    if spec.figure:
        return _cells_of_figure(spec, results_dir, data_dir, overrides)
    if spec.claims:
        return grid_cells.cells_of_claims(spec, name, overrides)
    values_of = grid_cells.stated_values
    if spec.varies_settings:
        # This loads torch, which other grids do not need: a method's class has its defaults.
        from hifi_cli.methods import find

        values_of = find.values_of
    return grid_cells.cells(spec, name, overrides, values_of)


def _cells_of_figure(
    spec: GridSpec, results_dir: Path, data_dir: Path | None, overrides: tuple[str, ...]
) -> list[GridCell]:
    """Return the runs that a figure is drawn from.

    Raises:
        UsageError: it is drawn from none.
    """
    # These modules load torch, which other grids do not need.
    from hifi_cli.figures.figure import FigureRequest
    from hifi_cli.runs.workspace import Workspace

    figure = figure_spec.load(
        str(spec.figure),
        protocol=spec.protocol,
        backbone=spec.backbone,
        tasks=spec.tasks,
        seeds=spec.seeds,
    )
    request = FigureRequest(figure, Workspace(results_dir, data_dir), overrides)
    if request.kind.shows_finished_runs:
        raise UsageError(
            f"figure {spec.figure} shows the finished runs that there are: hifi grid with a table's name trains some"
        )
    cells = request.kind.cells(request)
    if not cells:
        raise UsageError(
            f"this figure needs no finished runs: hifi figure computes it ({figure.description})"
        )
    return cells


def _print_summary(name: str, state: GridState, where: list[str], *, force: bool) -> None:
    """Print one line about the grid, and for each failed cell the command that repeats it.

    It has --force where the run has diverged, which is its result, and where the user gave it:
    otherwise it would train a run again that is done.
    """
    before = ""
    if state.finished_before:
        before = f" ({state.finished_before} before)"
    counts = f"{len(state.finished)} of {len(state.cells)} done{before}, {len(state.failed)} failed"
    duration = format_duration(time.monotonic() - state.started)
    logger.info(f"grid {name}: {counts}, in {duration}")
    methods = [cell.config.method for cell in state.finished]
    tasks = [cell.config.task for cell in state.finished]
    for sign in signs_of(list(state.finished.values()), methods=methods, tasks=tasks):
        logger.warning(f"note: {sign}")
    for cell, reason in {**state.failed, **state.diverged}.items():
        replaces = cell in state.diverged or (force and state.has_result(cell))
        command = cell.command(where, force=replaces)
        logger.error(f"failed: {cell.config.run_label}: {reason}")
        logger.error(f"  to repeat it: {command_line(command)}")
