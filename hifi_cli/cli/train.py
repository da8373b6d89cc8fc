"""`hifi train`: every combination of the named tasks, methods and seeds, one run each, in one process."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hifi_cli.cli import options


def train(
    overrides: options.Overrides = None,
    task: options.Task = None,
    method: options.Method = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN_DIR",
            help="Repeat this run, with other --seeds, --results-dir or key=value; so does -c RUN_DIR/config.yaml.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
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
    trust: options.Trust = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Continue from a checkpoint.", rich_help_panel=options.HOW)
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace existing runs.", rich_help_panel=options.HOW)] = False,
    report_to: options.ReportTo = None,
    dry_run: options.DryRun = False,
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Train and evaluate runs; finished ones are skipped. Heads are scored and selected if the method needs them."""
    from hifi_cli.cli import stored_runs
    from hifi_cli.cli.show import print_json, print_plans
    from hifi_cli.errors import RunFailed
    from hifi_cli.wording import first_of

    extra = {"shots": shots, "limit": limit}
    if files and len(files) == 1 and files[0].name == "config.yaml" and not (from_run or task or method):
        from_run, files = files[0].parent, None  # a run's own configuration repeats it
    if from_run:
        named = {"--task": task, "--method": method, "--backbone": backbone, "--protocol": protocol, "-c": files}
        resolved = stored_runs.repeated_runs(from_run, named, seeds=seeds, overrides=overrides or [], extra=extra, trust=trust)
    else:
        resolved = options.resolve_runs(
            task=task,
            method=method,
            backbone=backbone,
            protocol=protocol,
            seeds=seeds,
            files=files,
            overrides=overrides,
            extra=extra,
        )
    if heads:
        resolved = stored_runs.with_heads(resolved, heads)
    if report_to:
        from hifi_cli.training.log import check_trackers

        check_trackers(report_to)
    if dry_run:
        return print_plans(resolved, results_dir, data_dir)
    from hifi_cli.methods import base as methods
    from hifi_cli.results.directory import RunDirectory
    from hifi_cli.training import distributed
    from hifi_cli.training import run as runs
    from hifi_cli.training.data import ResourceCache

    resources = ResourceCache(results_dir, data_dir, trust=trust)
    how: dict[str, Any] = {"force": force, "resume": resume, "report_to": report_to or ()}
    if not force:
        for run in resolved:  # before any of them trains
            RunDirectory.of(run.config, results_dir).check_is_of(run.config)
    unfinished = [run.config for run in resolved if force or not RunDirectory.of(run.config, results_dir).results.is_file()]
    for config in {(config.task, config.method): config for config in unfinished}.values():
        methods.check_settings(config)  # of all runs, before any of them trains
    results = []
    with distributed.process_group():
        for number, run in enumerate(resolved, start=1):
            if len(resolved) > 1:
                options.logger.info(f"run {number} of {len(resolved)}: {runs.name(run.config)}")
            results.append(runs.run(run.config, resources, **how))
    if format == "json" and distributed.is_main():
        paths = [results_dir / run.config.run_path for run in resolved]
        print_json([{"path": path, "result": result} for path, result in zip(paths, results, strict=True)])
    diverged = [runs.name(run.config) for run, result in zip(resolved, results, strict=True) if not result.is_done]
    if diverged:
        raise RunFailed(
            f"{len(diverged)} of {len(results)} runs diverged ({first_of(diverged)}) and have no scores; train them again with"
            " --force and another setting, such as a smaller learning_rate"
        )
