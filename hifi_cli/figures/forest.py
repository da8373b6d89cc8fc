"""The differences of methods from one method with their intervals, a panel per task and one for all tasks."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.config.registry import label_of
from hifi_cli.errors import MissingError, logger
from hifi_cli.figures import style
from hifi_cli.figures.figure import FigureRequest, Row
from hifi_cli.figures.finished_runs import OfFinishedRuns, comparable_runs, notes_on
from hifi_cli.paired_tests import paired_statistics
from hifi_cli.records.study import Study
from hifi_cli.reports.looks import looks_of
from hifi_cli.reports.pairs import Pairs, pair


class Forest(OfFinishedRuns):
    """Differences of methods, with intervals."""

    explanation = (
        "Runs are paired by seed: mean and 95 % t-interval for new seeds on these tasks. hifi compare has the tests"
        " and verdicts."
    )
    reference: str | None = None
    """The method that the others are compared with; null: the first of the figure's methods, or
    full-ft where it names none."""
    score: EpochChoice | None = None
    """Which epoch's score; null: the one that the protocol reports."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Return the difference in points of each method, on each task and as the mean over tasks.

        The mean over tasks has no `task`. The interval is empty where a task has a single pair of
        runs.

        Raises:
            MissingError: no method shares a task and seed with the reference.
        """
        study = Study(request.workspace.results_dir)
        named = request.spec.methods
        reference = self.reference or "full-ft"
        methods: list[str] = []
        if named:
            reference = self.reference or named[0]
            # Each method once, the reference first.
            methods = list(dict.fromkeys([reference, *named]))
        runs = comparable_runs(request, study, self.score, methods)
        present = set(runs.usable["method"])
        names = named or sorted(present)
        others = [method for method in names if method in present and method != reference]
        said = notes_on(runs)
        is_empty = True
        for method in others:
            pairs = pair(runs, method, reference)
            for note in pairs.notes:
                if note not in said:
                    logger.warning(f"note: {note}")
            for row in _rows_of_pairs(pairs):
                is_empty = False
                yield row
        if is_empty:
            raise MissingError(
                f"no method shares a task and seed with {reference}, which the others are compared with"
            )

    def draw(self, data: style.Frame) -> Figure:
        """Draw a row per method, the highest difference at the top, and a panel per task."""
        is_mean = data["task"].isna()
        main = data
        if is_mean.any():
            main = data[is_mean]
        order = main.sort_values("difference", ascending=False, kind="stable")["method"]
        # A method without a mean over tasks comes after the others.
        methods = list(dict.fromkeys([*order, *data["method"]]))
        places = {method: place for place, method in enumerate(methods)}
        labels = data.drop_duplicates("method").set_index("method")["label"]
        looks = looks_of(methods)
        reference = data["reference"].iloc[0]
        data = pd.concat([data[is_mean], data[~is_mean]])
        titles = data["task"].map(lambda task: label_of("tasks", task), na_action="ignore")
        titles = titles.fillna("mean over tasks")
        figure, panels = style.facets(
            data,
            titles,
            height=0.6 + 0.17 * len(methods),
            sharey=True,
            columns=3,
            rows_are_full=False,
        )
        for ax, rows in panels:
            ax.axvline(0, color="#606060", linewidth=0.6)
            for row in rows.itertuples():
                look = looks[row.method]
                place = places[row.method]
                ax.plot([row.low, row.high], [place, place], "-", color=look.color)
                ax.plot(row.difference, place, look.marker, color=look.color, markersize=4.5)
            ax.set_yticks(range(len(methods)), labels[methods])
            ax.set_ylim(len(methods) - 0.4, -0.6)
            ax.grid(axis="x", linewidth=0.3, color="#d0d0d0")
            ax.set_axisbelow(True)
            ax.set_xlabel(f"minus {reference} [points]")
        return figure


def _rows_of_pairs(pairs: Pairs) -> Iterator[Row]:
    """Return the differences of two methods: the mean over tasks, if there are several, and each task.

    Args:
        pairs: the runs of a method and of the reference.
    """
    by_task = pairs.by_task
    groups: dict[str | None, list[list[float]]] = {}
    if len(by_task) > 1:
        # The mean over tasks has no name of a task.
        groups[None] = list(by_task.values())
    groups |= {task: [values] for task, values in by_task.items()}
    label, label_of_reference = pairs.labels
    for task, differences in groups.items():
        found = paired_statistics(differences)
        low, high = found.interval or (None, None)
        yield {
            "task": task,
            "method": pairs.first,
            "label": label,
            "reference": label_of_reference,
            "difference": found.mean,
            "low": low,
            "high": high,
            "pairs": len(found.terms),
            "tasks": len(differences),
        }
