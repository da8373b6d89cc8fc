"""The scores of methods, a panel per task."""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.config.registry import label_of
from hifi_cli.drawing import style
from hifi_cli.drawing.looks import looks_of
from hifi_cli.figures.figure import FigureRequest, Row
from hifi_cli.figures.finished_runs import OfFinishedRuns, comparable_runs, in_order
from hifi_cli.paired_tests import mean_interval
from hifi_cli.records.study import Study
from hifi_cli.tasks.metrics import within_range


class Scores(OfFinishedRuns):
    """The scores of methods: every seed, their mean and its interval."""

    score: EpochChoice | None = None
    """Which epoch's score; null: the one that the protocol reports."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield the score of every run in percent, with mean and interval of its method and task.

        Columns: task, metric, method, label, run_seed, score, mean, low, high. `low` and `high`, the
        ends of the interval, are empty where there is a single seed.
        """
        study = Study(request.workspace.results_dir)
        runs = in_order(request, comparable_runs(request, study, self.score))
        for (task, method), group in runs.groupby(["task", "method"], sort=False):
            low, high = None, None
            interval = mean_interval([group["points"].to_numpy()])
            if interval:
                low, high = within_range(*interval, group["metric"].iloc[0])
            for run in group.itertuples():
                yield {
                    "task": task,
                    "metric": run.metric,
                    "method": method,
                    "label": run.label,
                    "run_seed": run.seed,
                    "score": run.points,
                    "mean": group["points"].mean(),
                    "low": low,
                    "high": high,
                }

    def explanation(self, data: style.Frame) -> str:
        """Say what marks and lines are."""
        means = "means over seeds"
        # A single seed has no interval.
        if data["low"].notna().any():
            means += ", with 95 % t-intervals for new seeds"
        return f"Small marks: seeds. Large marks: {means}."

    def draw(self, data: style.Frame) -> Figure:
        """Draw a row per method, the best on average at the top, and a panel per task."""
        # The mean stands beside every seed; one row of each method and task has it.
        means = data.drop_duplicates(["task", "method"])
        # Tasks have different metrics, so that ranks are averaged and not scores.
        rank = means.groupby("task")["mean"].rank(ascending=False)
        order = rank.groupby(means["method"]).mean().sort_values(kind="stable").index
        places = {method: place for place, method in enumerate(order)}
        labels = means.drop_duplicates("method").set_index("method")["label"]
        looks = looks_of(order)
        tasks = data["task"].map(lambda task: label_of("tasks", task))
        titles = tasks + " (" + data["metric"] + ")"
        figure, panels = style.facets(
            data,
            titles,
            height=0.6 + 0.17 * len(order),
            sharey=True,
            columns=3,
            rows_are_full=False,
        )
        for ax, rows in panels:
            for method, runs in rows.groupby("method", sort=False):
                look = looks[method]
                place = places[method]
                first = runs.iloc[0]
                # The points of the seeds lie below the line of the mean and its interval.
                below = np.full(len(runs), place + 0.25)
                ax.plot(
                    runs["score"], below, look.marker, color=look.color, markersize=2, alpha=0.5
                )
                ax.plot([first["low"], first["high"]], [place, place], "-", color=look.color)
                ax.plot(first["mean"], place, look.marker, color=look.color, markersize=4.5)
            style.label_rows(ax, labels[order], "score [%]")
        return figure
