"""`hifi compare --details`: statistics beside the verdict, and the comparison of two single runs."""

from collections.abc import Sequence

import numpy as np

from hifi_cli.config import registry
from hifi_cli.config.choices import Score
from hifi_cli.config.registry import label_of
from hifi_cli.errors import HifiError, UsageError
from hifi_cli.reports import effect_statistics, example_statistics, method_ranks, run_filter
from hifi_cli.reports.example_statistics import ExamplePairs
from hifi_cli.reports.method_comparison import Comparison
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow, signed_cell

_NOTES = (
    "IQM: mean of the middle half of all paired differences; P(better): probability that a run of the first method beats a run"
    " of the other, with the 95 % interval for new seeds; Equal within: the smallest margin at which two one-sided t-tests show"
    " equivalence at the 5 % level; Detectable: the difference that as many runs show with 80 % probability",
    "Seeds and examples: 95 % interval of the mean difference for new seeds and new examples, by a hierarchical bootstrap"
    f" (tasks fixed, {example_statistics.RESAMPLES:,} draws); the interval above is for new seeds and these examples",
)
_HEADINGS = ("Mean", "Seeds and examples", "IQM", "P(better)", "Equal within", "Detectable")


def build(comparisons: Sequence[Comparison], score: Score | None) -> list[Table]:
    """Build the table of further statistics, a row per method, and the ranks of three or more methods."""
    rows, problems = [], []
    for comparison in comparisons:
        row, problem = _row(comparison, score)
        rows.append(row)
        problems += problem
    first = label_of("methods", comparisons[0].pairs.first)
    headings = [TableHeading(label, 2) for label in _HEADINGS]
    table = Table(
        f"{first} minus each other method, further statistics, in points", headings, rows, "Minus", [*_NOTES, *problems]
    )
    ranks = method_ranks.rank_methods(_task_means(comparisons, score)) if len(comparisons) > 1 else None
    return [table, *([method_ranks.build(ranks)] if ranks else [])]


def _row(comparison: Comparison, score: Score | None) -> tuple[TableRow, list[str]]:
    pairs = comparison.pairs
    groups = pairs.groups
    sides = [
        [[100 * _score(pair[side], pair[0], score) for pair in seeds.values()] for seeds in pairs.runs.values()]
        for side in (0, 1)
    ]
    equal, detectable = effect_statistics.equivalence(groups), effect_statistics.detectable_effect(groups)
    better = effect_statistics.probability_of_improvement(*sides)
    span = effect_statistics.improvement_interval(*sides)
    examples, problems = _examples(comparison, score)
    cells = (
        signed_cell(comparison.statistics.mean),
        TableCell(text=_span(examples), value=examples),
        signed_cell(effect_statistics.interquartile_mean([value for values in groups for value in values])),
        TableCell(
            better,
            text=f"{better:.2f} ({span[0]:.2f} to {span[1]:.2f})",
            value={"probability": better, "interval": span},
        ),
        TableCell(None if equal is None else equal.smallest_margin),
        TableCell(detectable),
    )
    return TableRow(pairs.labels[1], cells, method=pairs.second), problems


def _examples(comparison: Comparison, score: Score | None) -> tuple[tuple[float, float] | None, list[str]]:
    """Return the interval over seeds and examples, or None and why there is none."""
    try:
        tasks: dict[str, list[ExamplePairs]] = {}
        for task, seeds in comparison.pairs.runs.items():
            for pair in seeds.values():
                if score and score != pair[0].result.kept_score:
                    raise UsageError(f"predictions are those of the epoch that was kept, not of --score {score}")
                tasks.setdefault(task, []).append(example_statistics.read_pairs(*pair, class_labels(pair[0])))
    except HifiError as error:
        return None, [f"{comparison.pairs.labels[1]}: no interval over examples: {error}"]
    return example_statistics.hierarchical_bootstrap(tasks), []


def of_runs(first: RunRecord, second: RunRecord) -> Table:
    """Compare two single runs of one task by their predictions.

    Raises:
        MissingError: a run has no predictions.
        UsageError: the runs cannot be compared.
    """
    if first.result.task != second.result.task:
        raise UsageError(
            f"the runs are of different tasks, {first.result.task} and {second.result.task}; compare runs of one task"
        )
    if differing := run_filter.disagreement(first, second, "best"):
        raise UsageError(f"the runs differ in {differing}; compare runs with the same data and split")
    pairs = example_statistics.read_pairs(first, second, class_labels(first))
    every = np.ones((1, len(pairs.labels)))
    metric = example_statistics.WEIGHTED_METRICS[pairs.metric]
    scores = [100 * float(metric(pairs.labels, side, every)[0]) for side in (pairs.first, pairs.second)]
    interval = example_statistics.paired_bootstrap(pairs)
    rows = [TableRow(str(run.directory.path), (TableCell(score),)) for run, score in zip((first, second), scores, strict=True)]
    notes = [
        f"first minus second: {scores[0] - scores[1]:+.2f} points, 95 % interval {_span(interval)} (paired bootstrap of"
        f" {len(pairs.labels)} examples, {example_statistics.RESAMPLES:,} draws)"
    ]
    if pairs.is_classification:
        notes.append(
            f"only the first is right on {pairs.only_first_right} examples, only the second on {pairs.only_second_right}:"
            f" p = {pairs.mcnemar_p():.3g} (exact McNemar test)"
        )
    notes.append("this is about these two trained models and new examples; another seed may give another result")
    title = f"Two runs of {label_of('tasks', first.result.task)}, {pairs.metric} of the stored predictions"
    return Table(title, [TableHeading("Score", 2)], rows, "Run", notes)


def class_labels(record: RunRecord) -> list[str]:
    """Return the words of a task's classes, from the run's own copy of the task's YAML or the shipped one."""
    task = record.result.task
    own = record.directory.user_files / "tasks" / f"{task}.yaml"
    return [
        str(word) for word in (registry.read_yaml(own) if own.is_file() else registry.load("tasks", task)).get("labels", [])
    ]


def _task_means(comparisons: Sequence[Comparison], score: Score | None) -> dict[str, list[float]]:
    """Return each method's mean score on every task, over the seeds that all methods have."""
    means: dict[str, list[float]] = {name: [] for name in (comparisons[0].pairs.first, *(c.pairs.second for c in comparisons))}
    for task in sorted(set.intersection(*(set(comparison.pairs.runs) for comparison in comparisons))):
        runs = [comparison.pairs.runs[task] for comparison in comparisons]
        seeds = sorted(set.intersection(*(set(of_task) for of_task in runs)))
        if seeds:
            first = [runs[0][seed][0] for seed in seeds]
            sides = {comparisons[0].pairs.first: first}
            sides |= {
                c.pairs.second: [of_task[seed][1] for seed in seeds] for c, of_task in zip(comparisons, runs, strict=True)
            }
            for name, side in sides.items():
                means[name].append(float(np.mean([_score(*pair, score) for pair in zip(side, first, strict=True)])))
    return means


def _score(run: RunRecord, first: RunRecord, score: Score | None) -> float:
    """Return a run's score by the primary metric of the first method's run."""
    value = run.score(score, first.result.primary_metric)
    if value is None:
        raise UsageError(f"{run.directory.path} has no {first.result.primary_metric} of this epoch")
    return value


def _span(interval: tuple[float, float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}"
