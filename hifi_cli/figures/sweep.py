"""Scores against one configuration key (HiFi and EH-FT, figure 6), and against what tuning tried."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config.base import flatten
from hifi_cli.config.registry import label_of
from hifi_cli.config.run_config import RunConfig
from hifi_cli.drawing import style
from hifi_cli.errors import MissingError, logger
from hifi_cli.figures.figure import FigureRequest, Kind, Row
from hifi_cli.grids.cells import GridCell, refuse_own_keys
from hifi_cli.methods.find import values_of
from hifi_cli.records.searches import runs_of_searches, tried_settings
from hifi_cli.records.study import Study
from hifi_cli.text import counted_noun


class Sweep(Kind):
    """The scores of runs that differ in one configuration key."""

    key: str
    """A configuration key."""
    values: list[int | float]
    """Values of the key; each but the run's own makes a variant of the run, as in a grid."""
    label: str = ""
    """The axis label; empty: the key."""
    keep_stage2: bool = False
    """Whether the value is the ratio of stage 1's epochs to stage 2's. Stage 2 has as many epochs
    then as a run without stage 1 (EH-FT, figure 6 b); otherwise both have the run's epochs
    together (figure 6 a)."""

    def cells(self, request: FigureRequest) -> list[GridCell]:
        """Give a run for every task, method, value and seed.

        Raises:
            UsageError: the command line sets the key that varies.
        """
        refuse_own_keys(request.overrides, [self.key], "this figure")
        spec = request.spec
        cells: list[GridCell] = []
        for task, method, value in product(spec.tasks, spec.methods, self.values):
            varied = self._varied(request.config(task, method), value)
            cells += request.cells([task], [method], varied)
        return cells

    def _varied(self, config: RunConfig, value: float) -> dict[str, Any]:
        """Give the keys that a value changes; none for the run's own value.

        Args:
            config: of the run in which nothing varies.
            value: of the key, or the ratio of the stages' epochs where `keep_stage2` says so.
        """
        keys = {self.key: value}
        if self.keep_stage2:
            # Stage 1 gets `value` times the epochs of stage 2. The run has the sum of both, and the
            # key is the fraction of it that stage 1 gets.
            keys = {
                self.key: round(value / (1 + value), 6),
                "epochs": round(config.epochs * (1 + value)),
            }
        configured = flatten(values_of(config))
        return {key: changed for key, changed in keys.items() if configured.get(key) != changed}

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield the score of every run.

        Columns: task, method, key, x (the value), seed, score (a fraction of 1), metric, epochs,
        trained_share (the part of all parameters that trains in the backbone).
        """
        spec = request.spec
        # In the order of `cells`.
        places = product(spec.tasks, spec.methods, self.values, spec.seeds)
        runs = request.runs().items()
        for (_, _, value, seed), (cell, run) in zip(places, runs, strict=True):
            yield {
                "task": cell.config.task,
                "method": cell.config.method,
                "key": self.key,
                "x": value,
                "seed": seed,
                "score": run.score(),
                "metric": run.primary_metric,
                "epochs": cell.config.epochs,
                "trained_share": run.params.trainable_backbone / run.params.total,
            }

    def explanation(self, data: style.Frame) -> str:
        """Say what line and shade are."""
        seeds = data.groupby(["task", "method", "x"])["seed"].nunique()
        return f"{style.over_seeds(seeds, 'shade')}."

    def draw(self, data: style.Frame) -> Figure:
        """Draw mean and standard deviation over seeds against the varied key, by task."""
        lines = data["method"].map(lambda method: label_of("methods", method))
        data = data.assign(panel=style.panels(data), line=lines)
        # A panel shows one task, and so one metric.
        scores = data.groupby(["panel", "metric", "method", "line", "x"], sort=False)["score"]
        # One seed has no deviation.
        table = (100 * scores.agg(["mean", "std"]).fillna(0)).reset_index()
        metric = "score"
        if data["metric"].nunique() == 1:
            metric = data["metric"].iloc[0]
        return style.line_panels(
            table,
            "x",
            "mean",
            by="line",
            spread="std",
            limits=style.score_limits(table["metric"]),
            labels=(self.label or self.key, f"{metric} [%]"),
        )


class SearchBudget(Kind):
    """The expected best score of a search (Dodge et al., EMNLP 2019, "Show Your Work")."""

    def rows(self, request: FigureRequest) -> Iterator[Row]:
        """Yield the expected best score and its quartiles, by task, method and number of settings.

        Columns: task, method, label, settings (their number), mean, quartile1, quartile3; the last
        three are scores on the split that chooses, fractions of 1.

        Raises:
            MissingError: a task and method have no runs of a search.
        """
        spec = request.spec
        # The figure's protocol, backbone, shots and limit are those of any of its runs.
        config = request.config(spec.tasks[0])
        study = Study(request.workspace.results_dir)
        runs = study.runs
        runs = runs[runs["protocol"] == config.protocol]
        runs = runs[runs["backbone"] == config.backbone.name]
        # A run on all rows has neither shots nor a limit.
        runs = runs[runs["shots"].astype(float).fillna(0) == (config.shots or 0)]
        is_shown = runs["limit"].astype(float).fillna(0) == (config.limit or 0)
        others = runs[~is_shown]
        shown = study.with_runs(runs[is_shown])
        tried = tried_settings(shown)
        tried_runs = runs_of_searches(shown.runs)
        for task, method in product(spec.tasks, spec.methods):
            of_method = tried[(tried["task"] == task) & (tried["method"] == method)]
            # This comes before the error: the runs that are left out may be all there are.
            _warn_of_other_limits(others, task, method)
            if of_method.empty:
                raise MissingError(
                    f"no runs of a search for {method} on {task} (protocol {config.protocol}, backbone"
                    f" {config.backbone.name}); hifi grid makes them (hifi ls grids/tuning)"
                )
            is_of_both = (tried_runs["task"] == task) & (tried_runs["method"] == method)
            for path in tried_runs["path"][is_of_both]:
                request.note_finished(path, study.results[path])
            # A setting with which a run diverged has no score.
            scores = of_method["score"].dropna()
            lost = len(of_method) - len(scores)
            if lost:
                logger.warning(f"{method} on {task}: {lost} settings diverged and are left out")
            for row in expected_maximum(scores).to_dict("records"):
                yield {"task": task, "method": method, "label": label_of("methods", method), **row}

    def explanation(self, data: style.Frame) -> str:  # noqa: ARG002
        """Say how settings are drawn, and what the bands are."""
        return (
            "Settings are drawn with replacement from those that were tried."
            " Bands: first to third quartile."
        )

    def draw(self, data: style.Frame) -> Figure:
        """Draw a panel per task and a line per method, with a band between the quartiles."""
        in_percent = 100 * data[["mean", "quartile1", "quartile3"]]
        data = data.assign(panel=style.panels(data), **in_percent)
        return style.line_panels(
            data,
            "settings",
            "mean",
            by="label",
            band=("quartile1", "quartile3"),
            labels=("tried settings", "expected best score [%]"),
        )


def _warn_of_other_limits(runs: pd.DataFrame, task: str, method: str) -> None:
    """Say how many runs of a task and method are left out, because they used another part of the rows.

    Args:
        runs: rows of `Study.runs`, those that have another limit than the figure's.
        task: its name.
        method: its name.
    """
    left_out = runs[(runs["task"] == task) & (runs["method"] == method)]
    if not left_out.empty:
        count = counted_noun(len(left_out), "run")
        logger.warning(
            f"note: {method} on {task}: {count} left out: limited otherwise than the figure"
            " (limit=N shows runs of N rows)"
        )


def expected_maximum(scores: Iterable[float]) -> pd.DataFrame:
    """Compute mean and quartiles of the highest score of n settings, for n = 1 to their number.

    The n settings are drawn from the given ones with replacement (Dodge et al. 2019, equation 2):
    of N scores in ascending order, the k-th is the highest of n draws with probability
    (k/N)^n - ((k-1)/N)^n. A quartile is the lowest score that the highest of n draws does not
    exceed with a probability of at least 1/4 or 3/4.

    Returns:
        Columns: settings (n), mean, quartile1, quartile3.
    """
    values = np.sort(list(scores))
    draws = np.arange(1, len(values) + 1)
    # The part of the scores that the k lowest are, for k = 0 to all of them.
    part_of_lowest = np.arange(len(values) + 1) / len(values)
    # [n, k]: the probability that the highest of n draws is one of the k lowest, as all n are then.
    below = part_of_lowest ** draws[:, None]
    # [n, k]: the probability that the highest of n draws is the k-th score.
    is_highest = np.diff(below)
    # The scores that are exceeded too often are as many as the place of the quartile, from 0.
    place_of_quartile1 = (below[:, 1:] < 0.25).sum(axis=1)
    place_of_quartile3 = (below[:, 1:] < 0.75).sum(axis=1)
    columns = {
        "settings": draws,
        "mean": is_highest @ values,
        "quartile1": values[place_of_quartile1],
        "quartile3": values[place_of_quartile3],
    }
    return pd.DataFrame(columns)
