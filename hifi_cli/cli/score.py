"""`hifi score`: the scores of attention heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hifi_cli.cli import options
from hifi_cli.config.base import flatten
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import parse_override
from hifi_cli.config.unused import why_unused_for_heads
from hifi_cli.errors import UsageError, logger

if TYPE_CHECKING:
    from hifi_cli.runs.head_files import HeadScores

# Scoring and selecting start from the settings of this method.
_METHOD = "hifi-layerwise"


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
    from hifi_cli.runs.heads import HeadSelector
    from hifi_cli.runs.workspace import Workspace

    configs = resolve_head_runs(
        task, backbone, protocol, files=files, overrides=overrides, out=out, selects=False
    )
    workspace = Workspace(results_dir, data_dir, trust=trust)
    scored = [HeadSelector.of(config, workspace).score(force=force, out=out) for config in configs]
    if format == "json":
        return options.print_json([{"path": path, "scores": scores} for scores, path in scored])
    for scores, path in scored:
        _print_scores(scores)
        logger.info(f"scores: {path}")


def resolve_head_runs(
    tasks: list[str] | None,
    backbone: str | None,
    protocol: str | None,
    *,
    files: list[Path] | None,
    overrides: list[str] | None,
    out: Path | None,
    selects: bool,
) -> list[RunConfig]:
    """Resolve the configurations whose heads are scored or selected, one of each task.

    Args:
        out: a file for the result of one task.
        selects: whether heads are selected, and not scored alone.

    Raises:
        UsageError: a name, key or value is wrong, `out` is given for several tasks, or a `key=value`
            of the command line changes neither scores nor selected heads.
    """
    if out and len(tasks or ()) > 1:
        raise UsageError(f"--out {out} is for one task: give one, or leave it out")
    configs = options.resolve_runs(
        tasks, [_METHOD], backbone, protocol, files=files, overrides=overrides
    )
    _refuse_unused(configs, overrides or [], selects=selects)
    return configs


def _refuse_unused(
    configs: Sequence[RunConfig], overrides: Sequence[str], *, selects: bool
) -> None:
    """Refuse a `key=value` of the command line that changes neither scores nor selected heads.

    Raises:
        UsageError: there is one.
    """
    from hifi_cli.runs.heads import is_measured

    keys: list[str] = []
    for word in overrides:
        section = word.partition("=")[0].partition(".")[0].strip()
        # The other words say how a data file is read.
        if section in RunConfig.model_fields:
            keys += flatten(parse_override(word))
    for config in configs:
        measured = is_measured(config)
        for key in keys:
            reason = why_unused_for_heads(key, config, selects=selects, is_measured=measured)
            if reason:
                raise UsageError(f"{key} changes nothing: {reason}; leave it out")


def _print_scores(scores: "HeadScores") -> None:
    """Print richness and correlation, a table each."""
    samples = f"{scores.backbone} on {scores.task}, mean of {scores.samples} samples"
    print(f"information richness I_h of {samples}")
    _print_layers(scores.richness)
    print("correlation of each head with the layer's others, sum of r_hh', in thousandths")
    _, correlation = scores.arrays
    _print_layers((1000 * correlation.sum(2)).tolist())


def _print_layers(values: list[list[float]]) -> None:
    """Print a row per layer, counted from 1 as in the papers (files count from 0), and a column per head."""
    import pandas as pd

    frame = pd.DataFrame(values).add_prefix("h")
    frame.index += 1
    print(frame.rename_axis("layer").to_string(float_format="{:.2f}".format))
