"""`hifi select`: attention heads chosen by their scores."""

from hifi_cli.cli import options
from hifi_cli.cli.score import _METHOD, refuse_unused
from hifi_cli.errors import logger


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
    from hifi_cli.runs import heads as head_selection
    from hifi_cli.runs.workspace import Workspace

    configs = options.resolve_runs(
        task, _METHOD, backbone, protocol, files=files, overrides=overrides, out=out
    )
    refuse_unused(configs, overrides or [], selects=True)
    workspace = Workspace(results_dir, data_dir)
    chosen = [head_selection.select(config, workspace, out=out) for config in configs]
    if format == "json":
        return options.print_json([{"path": path, "selection": heads} for heads, path in chosen])
    for selection, path in chosen:
        for layer, heads in enumerate(selection.heads, start=1):
            print(f"layer {layer:2}: {' '.join(map(str, heads)) or '-'}")
        ties = ", ".join(str(layer + 1) for layer in selection.ties) or "none"
        logger.info(f"{selection.rank}: layers with ties, broken by head number: {ties}")
        logger.info(f"heads: {path}")
