"""`hifi select`: attention heads chosen by their scores."""

from typing import TYPE_CHECKING

from hifi_cli.cli import options
from hifi_cli.cli.score import resolve_head_runs
from hifi_cli.errors import logger

if TYPE_CHECKING:
    from hifi_cli.runs.head_files import HeadSelection


def select(
    overrides: options.Overrides = None,
    task: options.Tasks = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    files: options.Files = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    out: options.Out = None,
    format: options.OutputFormat = "text",  # noqa: A002
) -> None:
    """Select attention heads by their scores (HiFi, eq. 8-10), which are made first if need be.

    Keys: heads.k, heads.rank, heads.strategy, ...: hifi ls heads; and those of hifi score.
    """
    # torch, which these import, takes seconds, and --help does without it.
    from hifi_cli.runs.heads import HeadSelector
    from hifi_cli.runs.workspace import Workspace

    configs = resolve_head_runs(
        task, backbone, protocol, files=files, overrides=overrides, out=out, selects=True
    )
    workspace = Workspace(results_dir, data_dir)
    selected = [HeadSelector.of(config, workspace).select(out) for config in configs]
    if format == "json":
        return options.print_json(
            [{"path": path, "selection": selection} for selection, path in selected]
        )
    for selection, path in selected:
        _print_selection(selection)
        logger.info(f"heads: {path}")


def _print_selection(selection: "HeadSelection") -> None:
    """Print a line per layer, counted from 1 as in the papers, and say where head numbers decided."""
    for layer, heads in enumerate(selection.heads, start=1):
        numbers = " ".join(map(str, heads))
        print(f"layer {layer:2}: {numbers or '-'}")
    ties = ", ".join(str(layer + 1) for layer in selection.ties)
    logger.info(f"{selection.rank}: layers with ties, broken by head number: {ties or 'none'}")
