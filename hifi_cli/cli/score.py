"""`hifi score`: the scores of attention heads."""

from collections.abc import Sequence

from hifi_cli.cli import options
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import parse_override
from hifi_cli.config.unused import why_unused_for_heads
from hifi_cli.errors import UsageError, logger

_METHOD = ["hifi-layerwise"]  # whose settings score and select start from


def score(
    overrides: options.Overrides = None,
    task: options.Tasks = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    files: options.Files = None,
    data_dir: options.DataDir = None,
    results_dir: options.ResultsDir = options.RESULTS,
    force: options.Force = False,
    trust: options.Trust = False,
    out: options.Out = None,
    format: options.OutputFormat = "text",  # noqa: A002
) -> None:
    """Score every attention head: information richness by SVD, correlation by covariance (HiFi, eq. 1-7).

    Keys: scoring.samples, scoring.xi, scoring.warm_steps, ...: hifi ls scoring. start_from=RUN scores a finished run's model.
    """
    # torch, which these import, takes seconds, and --help does without it.
    from hifi_cli.runs import heads as head_selection
    from hifi_cli.runs.workspace import Workspace

    configs = options.resolve_runs(
        task, _METHOD, backbone, protocol, files=files, overrides=overrides, out=out
    )
    refuse_unused(configs, overrides or [], selects=False)
    workspace = Workspace(results_dir, data_dir, trust=trust)
    scored = [head_selection.score(config, workspace, force=force, out=out) for config in configs]
    if format == "json":
        return options.print_json([{"path": path, "scores": scores} for scores, path in scored])
    for scores, path in scored:
        what = f"{scores.backbone} on {scores.task}, mean of {scores.samples} samples"
        print(f"information richness I_h of {what}")
        _print_layers(scores.richness)
        print("correlation of each head with the layer's others, sum of r_hh', in thousandths")
        _print_layers([[1000 * sum(row) for row in layer] for layer in scores.correlation])
        logger.info(f"scores: {path}")


def refuse_unused(configs: Sequence[RunConfig], overrides: Sequence[str], *, selects: bool) -> None:
    """Refuse a `key=value` of the command line that changes neither scores nor selected heads.

    Args:
        selects: whether heads are selected, and not scored alone.

    Raises:
        UsageError: there is one.
    """
    from hifi_cli.runs import heads as head_selection

    # The other words say how a data file is read
    words = [word for word in overrides if _section(word) in RunConfig.model_fields]
    keys = [key for word in words for key in flatten(parse_override(word))]
    for config in configs:
        is_measured = head_selection.is_measured(config)
        for key in keys:
            reason = why_unused_for_heads(key, config, selects=selects, is_measured=is_measured)
            if reason:
                raise UsageError(f"{key} changes nothing: {reason}; leave it out")


def _section(word: str) -> str:
    return word.partition("=")[0].partition(".")[0].strip()


def _print_layers(values: list[list[float]]) -> None:
    """A row per layer, counted from 1 as in the papers (files count from 0), and a column per head."""
    import pandas as pd

    frame = pd.DataFrame(values).add_prefix("h")
    frame.index += 1
    print(frame.rename_axis("layer").to_string(float_format="{:.2f}".format))
