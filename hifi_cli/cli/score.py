"""`hifi score`: how much information each attention head carries, and how heads correlate."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options


def score(
    overrides: options.Overrides = None,
    task: options.Task = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    samples: Annotated[int | None, typer.Option(help="Number of training examples, n.", rich_help_panel=options.HOW)] = None,
    xi: Annotated[
        float | None,
        typer.Option(
            help="The richness of a head is the number of singular values that reach this fraction of their sum.",
            rich_help_panel=options.HOW,
        ),
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens per example.", rich_help_panel=options.HOW)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed that draws the examples.", rich_help_panel=options.HOW)] = None,
    warm_steps: Annotated[
        int | None, typer.Option(help="Steps of full fine-tuning before scoring.", rich_help_panel=options.HOW)
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Score the model of this finished run instead; requires --out.", rich_help_panel=options.WHAT),
    ] = None,
    trust: options.Trust = False,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    files: options.Files = None,
    out: options.Out = None,
    force: Annotated[bool, typer.Option("--force", help="Score again.", rich_help_panel=options.HOW)] = False,
    dry_run: options.DryRun = False,
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Score every attention head: information richness by SVD, correlation by covariance (HiFi, eq. 1-7)."""
    from hifi_cli.cli.option_checks import refuse_unused
    from hifi_cli.cli.show import print_configs, print_json, print_scores
    from hifi_cli.errors import UsageError

    extra = {
        "scoring.samples": samples,
        "scoring.xi": xi,
        "scoring.max_length": max_length,
        "scoring.seed": seed,
        "scoring.warm_steps": warm_steps,
    }
    if run is not None:
        given = {"task": task, "protocol": protocol, "warm_steps": warm_steps, "config": files, "dry_run": dry_run}
        refuse_unused("hifi score --run", given)
        if out is None or overrides:
            raise UsageError(
                "--run requires --out FILE and takes no KEY=VALUE: the options change the scoring, such as --samples"
            )
    if run is None:
        resolved = options.resolve_runs(
            task=task,
            method=options.HEAD_METHOD,
            backbone=backbone,
            protocol=protocol,
            files=files,
            overrides=overrides,
            extra=extra,
        )
        if dry_run:
            return print_configs(resolved)
    from hifi_cli.heads import select as head_selection
    from hifi_cli.results import reload
    from hifi_cli.training.data import ResourceCache

    resources = ResourceCache(results_dir, data_dir, backbone, trust)
    if run is not None:
        assert out is not None
        resources.use_data_dir(data_dir or reload.stored_data_dir(run))
        head_scores, path = reload.scores_of_run(run, resources, extra, out), out
        scored = [(head_scores, path)]
    else:
        scored = [head_selection.scores(run.config, resources, force=force, out=out) for run in resolved]
    if format == "json":
        return print_json([{"path": path, "scores": head_scores} for head_scores, path in scored])
    for head_scores, path in scored:
        print_scores(head_scores)
        options.logger.info(f"scores{f' of {run}' if run else ''}: {path}")
