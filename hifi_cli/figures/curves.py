"""Scores and training losses of finished runs while they trained."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config.registry import label_of
from hifi_cli.errors import logger
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Row
from hifi_cli.figures.finished_runs import OfFinishedRuns, comparable_runs, in_order
from hifi_cli.files import read_jsonl
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import StepMetrics, metrics_line
from hifi_cli.records.study import Study


class Curves(OfFinishedRuns):
    """Score by epoch and training loss by optimizer step, a line per method."""

    explanation = "Mean over seeds; shade: standard deviation."
    losses: bool = True
    """Whether the training loss is shown too, where the runs' own directories are there: a packed
    study has none."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return the mean and deviation over seeds of each curve at each epoch or step.

        `curve`: `score` on the reported split in percent, by epoch, or `loss`, by optimizer step.
        A place that not all seeds have reached, as early stopping leaves them, is left out.
        """
        study = Study(request.workspace.results_dir)
        runs = in_order(request, comparable_runs(request, study))
        with_losses = self.losses and not study.is_packed
        if self.losses and study.is_packed:
            logger.warning("note: a packed study has no training losses; scores alone are shown")
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

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and curve, with a line and a band per method."""
        tasks = data["task"].map(lambda task: label_of("tasks", task))
        is_score = data["curve"] == "score"
        named = (tasks + ", " + data["metric"] + " [%]").where(is_score, tasks + ", training loss")
        # The losses of a task stand beside its scores.
        has_losses = not is_score.all()
        figure = style.line_panels(
            data.assign(panel=named),
            "x",
            "mean",
            by="label",
            spread="std",
            labels=("", ""),
            columns=2 if has_losses else 3,
            rows_are_full=False,
        )
        for ax in figure.axes:
            if "training loss" in ax.get_title():
                ax.set_xlabel("optimizer step; mean loss since the point before")
            else:
                ax.set_xlabel("epoch")
        return figure


def _scores(study: Study, runs: pd.DataFrame) -> Iterator[Row]:
    """Yield the primary metric of each run after each epoch, in percent."""
    for run in runs.itertuples():
        for line in study.results[run.path].epoch_metrics:
            if run.metric in line.metrics:
                yield {"curve": "score", "x": line.epoch, "value": 100 * line.metrics[run.metric]}


def _losses(study: Study, runs: pd.DataFrame) -> Iterator[Row]:
    """Yield the logged training losses of each run."""
    for path in runs["path"]:
        file = RunDirectory(study.directory / path).metrics
        if not file.is_file():
            continue
        for line in map(metrics_line, read_jsonl(file)):
            if isinstance(line, StepMetrics):
                yield {"curve": "loss", "x": line.step, "value": line.loss}
