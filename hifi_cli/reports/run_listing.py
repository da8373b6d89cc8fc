"""All runs of a results directory as flat rows: for `hifi ls runs` and for `hifi_cli.results`."""

import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from hifi_cli.config.base import flatten
from hifi_cli.config.choices import RunSortKey
from hifi_cli.config.registry import read_yaml
from hifi_cli.errors import MissingError
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_status import RunStatus, statuses
from hifi_cli.reports.run_records import RunRecord

if TYPE_CHECKING:
    import pandas as pd


class ListedRun(BaseModel):
    """A run of a results directory; what only a finished run has is null for others. Scores are in percent."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    state: str
    """done, diverged, running, failed, unfinished or damaged."""
    protocol: str
    """Protocol of the run."""
    backbone: str
    """Encoder of the run."""
    task: str
    """Task of the run; of an unfinished few-shot run the name of its folder."""
    method: str
    """Method of the run."""
    variant: str | None = None
    """Variant of the run, as in a search."""
    seed: int | None = None
    """Seed of the run."""
    shots: int | None = None
    """Training rows per class of a few-shot run."""
    metric: str | None = None
    """Primary metric of the task."""
    score: float | None = None
    """Primary metric at the epoch that the protocol reports."""
    last: float | None = None
    """Primary metric after the last epoch."""
    best: float | None = None
    """Primary metric after the epoch with the best score on the selection split."""
    max: float | None = None
    """Maximum over the epochs."""
    epoch: int | None = None
    """The reported epoch, counted from 1."""
    epochs: int | None = None
    """Number of epochs."""
    flags: list[str] = []
    """collapsed and limited, if the run is."""
    trained_percent: float | None = None
    """Trained parameters in percent of the model's, task head included."""
    time_s: float | None = None
    """Seconds of training and evaluation."""
    peak_memory_bytes: int | None = None
    """Peak memory of the run."""
    config_hash: str | None = None
    """Hash of the configuration."""
    setting_hash: str | None = None
    """Hash of the configuration without the seed."""
    path: str
    """Directory of the run."""
    detail: str = ""
    """Why it failed, diverged or is damaged."""
    metrics: dict[str, float] = {}
    """Every metric of the model that was kept."""


def list_runs(
    results_dir: Path,
    *,
    states: Collection[str] = (),
    sort: RunSortKey = "path",
    **names: Collection[str],
) -> list[ListedRun]:
    """All runs of a results directory, variants included.

    Args:
        states: only runs in these states; empty: all.
        sort: by this; the highest score comes first.
        names: `protocol`, `backbone`, `task` or `method`: only runs of these; empty: all.
    """
    runs = [_listed(results_dir, directory, status) for directory, status in statuses(results_dir)]
    runs = [run for run in runs if not states or run.state in states]
    runs = [run for run in runs if all(not allowed or getattr(run, key) in allowed for key, allowed in names.items())]
    if sort == "score":
        return sorted(runs, key=lambda run: -math.inf if run.score is None else run.score, reverse=True)
    if sort == "time":
        return sorted(runs, key=lambda run: run.time_s or 0.0, reverse=True)
    return sorted(runs, key=lambda run: (getattr(run, sort) is None, getattr(run, sort))) if sort != "path" else runs


def results(directory: str | Path = "results") -> "pd.DataFrame":
    """Return the finished runs of a results directory, a row each, with the columns of `hifi ls runs --format csv`.

    Scores are in percent; `metrics.NAME` has every other metric of the model that was kept; a diverged run has no
    score (NaN). The settings follow by their keys: `learning_rate`, `batch_size`, `heads.k`, `settings.r`, and so on.

    Raises:
        MissingError: no such directory.
        UsageError: a run was stored by a version with another layout.
    """
    import pandas as pd

    if not Path(directory).is_dir():
        raise MissingError(f"no directory {directory}; hifi train --results-dir {directory} makes it")
    runs = list_runs(Path(directory), states=("done", "diverged"))
    rows = [{**_settings(run), **{key: value for key, value in flat(run).items() if value is not None}} for run in runs]
    frame = pd.DataFrame(rows)
    columns = [*flat_keys()]
    return frame.reindex(columns=[*columns, *(column for column in frame.columns if column not in columns)])


def _settings(run: ListedRun) -> dict[str, Any]:
    """Return a run's configuration by dotted key, without the encoder's location: `backbone` is its name."""
    config = flatten(read_yaml(Path(run.path) / "config.yaml"))
    return {key: value for key, value in config.items() if not key.startswith("backbone.")}


def flat(run: ListedRun) -> dict[str, Any]:
    """Return a run as one flat row: flags as one text, each metric under `metrics.NAME`."""
    values = run.model_dump(exclude={"metrics", "flags"})
    metrics = {f"metrics.{name}": value for name, value in run.metrics.items()}
    return {key: " ".join(run.flags) if key == "flags" else values[key] for key in flat_keys()} | metrics


def flat_keys() -> Iterator[str]:
    """The columns that every row has."""
    return (key for key in ListedRun.model_fields if key != "metrics")


def _listed(results_dir: Path, directory: RunDirectory, status: RunStatus) -> ListedRun:
    result = status.result
    place = {"state": str(status.state), "path": str(directory.path), "detail": status.detail}
    if result is None:
        *folders, seed = directory.path.relative_to(results_dir / "runs").parts
        protocol, backbone, task, method, *variant = folders + [""] * (4 - len(folders))  # a directory at another place
        return ListedRun(
            **place,
            protocol=protocol,
            backbone=backbone,
            task=task,
            method=method,
            variant="/".join(variant) or None,
            seed=int(seed.removeprefix("seed")) if re.fullmatch(r"seed\d+", seed) else None,
        )
    record = RunRecord(directory, result)
    scores = {name: 100 * score for name, score in result.scores or () if score is not None}
    done = {"score": 100 * result.score(), "epoch": result.epoch(), "flags": record.flags} if result.is_done else {}
    return ListedRun(
        **place,
        **scores,
        **done,
        **result.model_dump(
            include={
                *("protocol", "backbone", "task", "method", "variant", "seed", "shots", "time_s", "peak_memory_bytes"),
                *("config_hash", "setting_hash"),
            }
        ),
        metric=result.primary_metric,
        epochs=result.epochs.total if result.epochs else None,
        trained_percent=100 * result.params.trainable / result.params.total,
        metrics={name: 100 * value for name, value in result.metrics.items()},
    )
