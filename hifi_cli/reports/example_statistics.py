"""Statistics on the examples of two runs: exact McNemar test, paired and hierarchical bootstrap of any metric.

Two runs with the same task read the same examples, and all seeds of a task share them. A bootstrap sample is one draw of
examples for both methods and all seeds; the hierarchical bootstrap draws seeds too. Tasks are never drawn: they are fixed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hifi_cli.errors import UsageError
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.statistics import LEVEL, Floats

RESAMPLES = 2000
Weights = NDArray[np.float64]  # [resamples, examples]: how often each example was drawn


@dataclass(frozen=True)
class ExamplePairs:
    """Labels and both runs' predictions of the same examples, as numbers: [examples], or [examples, classes] for multi-label.

    Attributes:
        metric: the primary metric.
    """

    labels: Floats
    first: Floats
    second: Floats
    metric: str

    @property
    def is_classification(self) -> bool:
        return self.metric not in ("pearson", "spearman", "f1_micro")

    @property
    def only_first_right(self) -> int:
        return int(np.sum((self.first == self.labels) & (self.second != self.labels)))

    @property
    def only_second_right(self) -> int:
        return int(np.sum((self.second == self.labels) & (self.first != self.labels)))

    def mcnemar_p(self) -> float:
        """Return the two-sided p of the exact test that either run is the only right one equally often."""
        from scipy.stats import binomtest

        discordant = self.only_first_right + self.only_second_right
        return float(binomtest(self.only_first_right, discordant).pvalue) if discordant else 1.0

    def differences(self, weights: Weights) -> Floats:
        """Return first minus second, in points, for each draw of examples."""
        metric = WEIGHTED_METRICS[self.metric]
        return 100 * (metric(self.labels, self.first, weights) - metric(self.labels, self.second, weights))


def read_pairs(first: RunRecord, second: RunRecord, words: Sequence[str]) -> ExamplePairs:
    """Read the predictions of two runs of one task.

    Args:
        words: the task's labels in the order of its classes; empty for numbers.

    Raises:
        MissingError: a run has no predictions.
        UsageError: the examples, labels or metrics differ, or the metric cannot be computed from single predictions.
    """
    metric = first.result.primary_metric
    if metric not in WEIGHTED_METRICS:
        raise UsageError(f"{first.result.task}: the metric {metric} cannot be resampled by examples")
    ours, theirs = first.directory.read_predictions(), second.directory.read_predictions()
    if [row.id for row in ours] != [row.id for row in theirs] or [row.label for row in ours] != [row.label for row in theirs]:
        raise UsageError(
            f"{first.directory.path} and {second.directory.path} predict different examples; train one of them again"
        )
    numbers = _multi_hot if metric == "f1_micro" else as_numbers
    columns = [row.label for row in ours], [row.prediction for row in ours], [row.prediction for row in theirs]
    labels, of_first, of_second = (numbers(values, words) for values in columns)
    return ExamplePairs(labels, of_first, of_second, metric)


def paired_bootstrap(pairs: ExamplePairs, *, resamples: int = RESAMPLES, level: float = LEVEL) -> tuple[float, float]:
    """Return the percentile interval of the difference of two runs over draws of examples."""
    drawn = np.concatenate([pairs.differences(weights) for weights in _draws(len(pairs.labels), resamples)])
    low, high = np.quantile(drawn, [level / 2, 1 - level / 2])
    return float(low), float(high)


def hierarchical_bootstrap(
    tasks: Mapping[str, Sequence[ExamplePairs]], *, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, float] | None:
    """Return the percentile interval of the mean difference over fixed tasks, for new seeds and new examples.

    Examples are resampled. Two or three seeds are too few to resample: what they add to the mean is drawn from a t
    distribution with Welch and Satterthwaite's degrees of freedom. Noise that belongs to a seed and an example together is
    part of the variance over seeds, so its share is removed from that over examples (Owen 2007: it would count twice).

    Args:
        tasks: of each task, a pair of runs per seed.

    Returns:
        None where a task has one seed.
    """
    if not tasks or min(map(len, tasks.values())) < 2:
        return None
    rng = np.random.default_rng(1)
    variances, degrees = np.zeros(len(tasks)), np.array([len(seeds) - 1 for seeds in tasks.values()])
    total = np.zeros(resamples)
    for number, seeds in enumerate(tasks.values()):
        count, examples = len(seeds), len(seeds[0].labels)
        blocks = [
            np.stack([pairs.differences(weights) for pairs in seeds], axis=1) for weights in _draws(examples, resamples, number)
        ]
        by_seed = np.concatenate(blocks)  # [resamples, seeds]: all seeds with the same draw of examples
        means = by_seed.mean(axis=1)
        observed = np.array([pairs.differences(np.ones((1, examples)))[0] for pairs in seeds])
        noise = (by_seed - means[:, None]).var(axis=0).sum() / (count - 1)  # of one seed's score, from its examples
        variances[number] = max(observed.var(ddof=1), noise) / count
        deviations = means - means.mean()
        share = max(0.0, 1 - noise / count / deviations.var()) if deviations.any() else 0.0
        total += observed.mean() + deviations * share**0.5
    if variance := variances.sum():
        total += rng.standard_t(variance**2 / (variances**2 / degrees).sum(), size=resamples) * variance**0.5
    low, high = np.quantile(total / len(tasks), [level / 2, 1 - level / 2])
    return float(low), float(high)


def _draws(examples: int, resamples: int, task: int = 0) -> "list[Weights]":
    """Return how often each example of a task is drawn, in blocks that fit in memory; the same for every call."""
    rng = np.random.default_rng([0, task])  # the tasks' examples are drawn independently
    block = max(1, min(resamples, 4_000_000 // max(examples, 1)))
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    return [rng.multinomial(examples, np.full(examples, 1 / examples), size=size).astype(np.float64) for size in sizes]


def as_numbers(values: Sequence[object], words: Sequence[str]) -> Floats:
    """Return classes as their numbers, and numbers as they are."""
    places = {word: float(number) for number, word in enumerate(words)}
    try:
        return np.array([places[value] if isinstance(value, str) else float(value) for value in values])  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise UsageError(f"a prediction or label is neither a number nor one of {', '.join(words)} ({error})") from None


def _multi_hot(values: Sequence[object], words: Sequence[str]) -> Floats:
    """Return lists of labels as 0 and 1 for every class, [examples, classes]."""
    if unknown := [value for value in values if not isinstance(value, list) or not set(value) <= set(words)]:
        raise UsageError(f"a prediction or label is not a list of {', '.join(words)} ({unknown[0]!r:.60})")
    return np.array([[float(word in value) for word in words] for value in values if isinstance(value, list)])


def _count(right: NDArray[np.bool_], weights: Weights) -> Floats:
    """Return how many of the drawn examples are `right`."""
    counts: Floats = weights @ right.astype(np.float64)
    return counts


def _accuracy(labels: Floats, predictions: Floats, weights: Weights) -> Floats:
    fraction: Floats = _count(labels == predictions, weights) / weights.sum(axis=1)
    return fraction


def _f1_of(number: float, labels: Floats, predictions: Floats, weights: Weights) -> Floats:
    right = _count((labels == number) & (predictions == number), weights)
    total = _count(labels == number, weights) + _count(predictions == number, weights)
    score: Floats = np.divide(2 * right, total, out=np.zeros_like(right), where=total > 0)
    return score


def _f1(labels: Floats, predictions: Floats, weights: Weights) -> Floats:
    return _f1_of(1.0, labels, predictions, weights)


def _f1_macro(labels: Floats, predictions: Floats, weights: Weights) -> Floats:
    classes = np.union1d(labels, predictions)
    scores = np.stack([_f1_of(number, labels, predictions, weights) for number in classes])
    present = np.stack([_count((labels == number) | (predictions == number), weights) > 0 for number in classes])
    means: Floats = (scores * present).sum(axis=0) / present.sum(axis=0)
    return means


def _f1_micro(labels: Floats, predictions: Floats, weights: Weights) -> Floats:
    right, total = weights @ (labels * predictions).sum(axis=1), weights @ (labels + predictions).sum(axis=1)
    score: Floats = np.divide(2 * right, total, out=np.zeros_like(right), where=total > 0)
    return score


def _matthews(labels: Floats, predictions: Floats, weights: Weights) -> Floats:
    """The correlation of labels and predictions as indicators of any number of classes (Gorodkin 2004), from whole counts."""
    classes = np.union1d(labels, predictions)
    of_labels, of_predictions = (
        np.stack([_count(side == number, weights) for number in classes]) for side in (labels, predictions)
    )
    total = weights.sum(axis=1)
    covariance = _count(labels == predictions, weights) * total - (of_labels * of_predictions).sum(axis=0)
    variances = [total**2 - (counts**2).sum(axis=0) for counts in (of_labels, of_predictions)]
    norm = np.sqrt(variances[0] * variances[1])
    correlation: Floats = np.divide(covariance, norm, out=np.zeros_like(norm), where=norm > 0)
    return correlation


def _pearson(labels: Floats, predictions: Floats, weights: Weights) -> Floats:
    weights = weights / weights.sum(axis=1, keepdims=True)
    x, y = labels - weights @ labels[:, None], predictions - weights @ predictions[:, None]
    products = [(weights * (left * right)).sum(axis=1) for left, right in ((x, y), (x, x), (y, y))]
    norm = np.sqrt(products[1] * products[2])
    correlation: Floats = np.divide(products[0], norm, out=np.zeros_like(norm), where=norm > 1e-12)
    return correlation


def _spearman(labels: Floats, predictions: Floats, weights: Weights) -> Floats:
    """Correlate the ranks in all examples: ranks are not computed again for each draw."""
    from scipy.stats import rankdata

    return _pearson(rankdata(labels), rankdata(predictions), weights)


WEIGHTED_METRICS: dict[str, Callable[[Floats, Floats, Weights], Floats]] = {  # for every row of weights
    "accuracy": _accuracy,
    "f1": _f1,
    "f1_macro": _f1_macro,
    "f1_micro": _f1_micro,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
