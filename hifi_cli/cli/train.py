"""`hifi train`: every combination of the named tasks, methods and seeds, one run each, in one process."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def train(
    overrides: options.Overrides = None,
    task: options.Task = None,
    method: options.Method = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = options.DEFAULT_PROTOCOL,
    seeds: options.Seeds = options.DEFAULT_SEEDS,
    heads: Annotated[
        Path | None,
        typer.Option(help="Tune the attention heads in this file instead of selecting them.", rich_help_panel=options.WHAT),
    ] = None,
    shots: options.Shots = None,
    limit: Annotated[
        int | None, typer.Option(help="Use at most this many examples of each split.", rich_help_panel=options.WHAT)
    ] = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    files: options.Files = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Continue from a checkpoint.", rich_help_panel=options.HOW)
    ] = True,
    auto_batch: options.AutoBatch = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing runs.", rich_help_panel=options.HOW)] = False,
    report_to: options.ReportTo = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Train and evaluate; finished runs are skipped. Heads are scored and chosen when the method needs them."""
    from hifi_cli.cli.show import print_plans

    resolved = options.resolve_runs(
        task=task,
        method=method,
        backbone=backbone,
        protocol=protocol,
        seeds=seeds,
        files=files,
        overrides=overrides,
        extra={"shots": shots, "limit": limit},
    )
    if dry_run:
        return print_plans(resolved, results_dir, data_dir)
    configs = [run.config for run in resolved]
    from hifi_cli.runs import head_selection, trackers
    from hifi_cli.runs import run as runs
    from hifi_cli.runs.resources import ResourceCache

    reported = trackers.checked(report_to or ())
    if heads:
        given = head_selection.read_given_heads(heads, configs[0].backbone.name)
        configs = [config.model_copy(update={"heads": config.heads.model_copy(update={"given": given})}) for config in configs]
    resources = ResourceCache(results_dir, data_dir)
    results = [
        runs.run(config, resources, force=force, resume=resume, auto_batch=auto_batch, report_to=reported) for config in configs
    ]
    if not all(result.is_done for result in results):
        raise typer.Exit(1)
