"""`hifi select`: which heads are tuned, and what drove the choice."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.config import registry
from hifi_cli.config.choices import Ranking, Strategy


def select(
    overrides: options.Overrides = None,
    task: options.Task = None,
    scores: Annotated[
        Path | None, typer.Option(help="Select by this scores file instead of a task's.", rich_help_panel=options.WHAT)
    ] = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    rank: Annotated[Ranking | None, typer.Option(help="Ranking of the heads.", rich_help_panel=options.HOW)] = None,
    strategy: Annotated[
        Strategy | None, typer.Option(help="In which layers heads are selected.", rich_help_panel=options.HOW)
    ] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Heads per layer.", rich_help_panel=options.HOW)] = None,
    damping: Annotated[float | None, typer.Option(help="PageRank's damping factor d.", rich_help_panel=options.HOW)] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="PageRank stops when values change by less.", rich_help_panel=options.HOW)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of --rank random; default: 1.", rich_help_panel=options.HOW)] = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = Path("results"),
    files: options.Files = None,
    out: options.Out = None,
    dry_run: options.DryRun = False,
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Select attention heads by their scores (HiFi, eq. 8-10). Heads without scores are scored first."""
    from hifi_cli.cli.show import print_configs, print_heads, print_json

    extra = {
        "heads.rank": rank,
        "heads.strategy": strategy,
        "heads.k": k,
        "heads.damping": damping,
        "heads.epsilon": epsilon,
        "heads.seed": seed,
    }
    resolved = options.resolve_runs(
        task=_task_of(scores, task) if scores else task,
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
    from hifi_cli.heads.select import HeadScores
    from hifi_cli.training.data import ResourceCache

    resources = ResourceCache(results_dir, data_dir)
    selected = []
    for config in (run.config for run in resolved):
        if scores:
            how = config.heads.selection_arguments(config.seed)
            selection, path = head_selection.choose(HeadScores.read(scores), how, results_dir, out=out)
        else:
            selection, path = head_selection.load_or_select_heads(config, resources, out=out)
        selected.append({"path": path, "selection": selection})
        if format == "text":
            print_heads(selection)
        options.logger.info(head_selection.describe_selection(selection))
        options.logger.info(f"heads: {path}")
    if format == "json":
        print_json(selected)


def _task_of(scores: Path, task: str | None) -> str:
    """The task of a scores file; of a user's own task, --task names the file.

    Raises:
        UsageError: the scores are of another task than --task.
    """
    from hifi_cli.errors import UsageError
    from hifi_cli.heads.select import HeadScores

    scored = HeadScores.read(scores).task
    if task and Path(task).stem != scored:
        raise UsageError(f"{scores} holds the scores of {scored}, not of {task}: leave --task out")
    if not task and scored not in registry.names("tasks"):
        raise UsageError(f"{scores} holds the scores of your own task {scored}: name its file with --task")
    return task or scored
