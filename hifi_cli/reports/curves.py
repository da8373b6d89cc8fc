"""The scores and training losses of finished runs while they trained, means over seeds."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from hifi_cli.files import read_jsonl
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import StepMetrics, metrics_line
from hifi_cli.records.study import Study

# The columns of what `curves` yields.
COLUMNS = ("task", "metric", "method", "label", "curve", "x", "mean", "std", "seeds")


def curves(study: Study, runs: pd.DataFrame, *, with_losses: bool) -> Iterator[dict[str, Any]]:
    """Yield the mean and deviation over seeds of each curve at each epoch or step.

    `curve`: `score` on the reported split in percent, by epoch, or `loss`, by optimizer step. A
    place that not all seeds have reached, as early stopping leaves them, is left out.

    Args:
        study: where the runs come from.
        runs: rows of `ComparableRuns.frame`, with the `label` of each method.
        with_losses: whether training losses are read too, which only the runs' own directories
            have.
    """
    for (task, method), group in runs.groupby(["task", "method"], sort=False):
        points = list(_scores(study, group))
        if with_losses:
            points += _losses(study, group)
        frame = pd.DataFrame(points, columns=["curve", "x", "value"])
        places = frame.groupby(["curve", "x"], sort=False)["value"].agg(["mean", "std", "size"])
        complete = places[places["size"] == len(group)].fillna({"std": 0.0})
        for (curve, x), place in complete.iterrows():
            yield {
                "task": task,
                "metric": group["metric"].iloc[0],
                "method": method,
                "label": group["label"].iloc[0],
                "curve": curve,
                "x": x,
                "mean": place["mean"],
                "std": place["std"],
                "seeds": len(group),
            }


def _scores(study: Study, runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the primary metric of each run after each epoch, in percent."""
    for run in runs.itertuples():
        for line in study.results[run.path].epoch_metrics:
            if run.metric in line.metrics:
                yield {"curve": "score", "x": line.epoch, "value": 100 * line.metrics[run.metric]}


def _losses(study: Study, runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the logged training losses of each run."""
    for path in runs["path"]:
        file = RunDirectory(study.directory / path).metrics
        if not file.is_file():
            continue
        for line in map(metrics_line, read_jsonl(file)):
            if isinstance(line, StepMetrics):
                yield {"curve": "loss", "x": line.step, "value": line.loss}
