"""The list of all metrics, with the functions that compute them; `scores.py` computes those of a task.

A new metric is one entry of the list: tables, records, exports and tasks read what they need from it.
"""

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hifi_cli.tasks.examples import Output, Predictions, Row, Tags, Values, labels_of

NO_ENTITY = "O"
# An entity tag of IOB1, IOB2, IOBES, BMES or BILOU: the entity's type is behind the hyphen.
ENTITY_TAG = re.compile(r"O|[BIMESLU]-(.+)")
# The prefixes after which an entity can go on, and those with which it does.
_BEGINS = "BIM"
_CONTINUES = "IMEL"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The bins of the expected calibration error, of equal width, as in Guo et al. (ICML 2017).
BINS = 15
# The splits of the benchmarks whose columns say by their own names which split they are of.
_SPLITS_OF_BENCHMARKS = ("mismatched", "axb", "axg")

# The kinds of predictions: the class of each row; any number of classes; a number; an answer's text; the
# tags of the words; answers to questions that several rows share; the best of a query's candidates.
Predicted = Literal["class", "classes", "number", "text", "tags", "question", "candidate"]
# The arguments of a metric's function:
#   labels         labels and predictions as numbers, [rows] or [rows, classes]
#   rows           rows and predictions, of rows what stored predictions hold too
#   texts          rows and predictions, of rows their texts too
#   tags           the tags of each sentence's words, and the predicted ones
#   probabilities  logits, [rows, classes], and the index of each row's class, as they are stored
#   seeds          nothing: several runs are compared, by `reports/calibration.py`
Needs = Literal["labels", "rows", "texts", "tags", "probabilities", "seeds"]
# The needs of what is measured on stored predictions of finished runs.
OF_PREDICTIONS: tuple[Needs, ...] = ("probabilities", "seeds")


@dataclass(frozen=True)
class Metric:
    """A metric: what it is called, what it is of, and how it is computed.

    Attributes:
        name: in a task's YAML, in records and on the command line.
        needs: what the function is given.
        function: returns a score, for most metrics from 0 to 1; None if several runs are compared.
        fits: the tasks that can have it, by what they predict; none for what is measured on stored
            predictions of classes.
        heading: in tables; default: the name.
        hub_name: on the Hugging Face hub; default: the name.
        low: the lowest score.
        of_second_class: whether the second of two classes counts alone.
        lower_is_better: whether a lower score is better. No metric that chooses an epoch is so.
        description: what is printed below tables, with the unit.
    """

    name: str
    needs: Needs
    function: Callable[[Any, Any], float] | None
    fits: tuple[Predicted, ...] = ()
    heading: str = ""
    hub_name: str = ""
    low: float = 0.0
    of_second_class: bool = False
    lower_is_better: bool = False
    description: str = ""


# --- classes and numbers


def accuracy(labels: Values, predictions: Values) -> float:
    """Return the fraction of rows with the correct class (multi-label: with exactly the correct classes)."""
    is_correct = labels == predictions
    # One column per class for multi-label, and a single one for others.
    by_row = is_correct.reshape(len(labels), -1)
    return float(np.mean(by_row.all(1)))


def binary_accuracy(labels: Values, predictions: Values) -> float:
    """Return the accuracy of the first class against all others.

    HANS has two classes: neutral and contradiction both count as non-entailment.
    """
    return accuracy(labels == 0, predictions == 0)


def sklearn_score(name: str, labels: Values, predictions: Values, **options: Any) -> float:
    """Return a score of scikit-learn.

    Args:
        name: of the function in `sklearn.metrics`.
        labels: [rows] or [rows, classes].
        predictions: of the same shape.
        options: other arguments of the function.
    """
    # scikit-learn takes a second to import, which commands that compute no score do without.
    from sklearn import metrics

    with warnings.catch_warnings():
        # scikit-learn warns if all rows are of one class, which happens in few-shot runs.
        warnings.simplefilter("ignore", UserWarning)
        return float(getattr(metrics, name)(labels, predictions, **options))


def correlation(name: str, labels: Values, predictions: Values) -> float:
    """Return a correlation of scipy; 0 if labels or predictions are constant.

    Args:
        name: `pearsonr` or `spearmanr`.
        labels: [rows].
        predictions: [rows].
    """
    # scipy.stats takes a third of a second to import.
    from scipy import stats

    # The correlation of a constant is not defined; a model that predicts one has learnt nothing.
    if is_constant(labels) or is_constant(predictions):
        return 0.0
    return float(getattr(stats, name)(labels, predictions).statistic)


def is_constant(values: Values) -> bool:
    """Return whether all rows are equal, but for the last digits; values: [rows] or [rows, classes]."""
    # Numbers of a model that predicts one value differ by rounding.
    spread = np.ptp(values, axis=0).max()
    largest = float(np.abs(values).max())
    return bool(spread <= 1e-12 * max(1.0, largest))


# --- rows that belong together


def question_em(rows: Sequence[Row], predictions: Values) -> float:
    """Return MultiRC's exact match: the fraction of questions with correct predictions for all answers."""
    # pandas takes a third of a second to import, which other tasks do without.
    import pandas as pd

    is_correct = pd.Series(labels_of(rows) == predictions)
    questions = [row.group for row in rows]
    return float(is_correct.groupby(questions).all().mean())


def gender_parity(_: Sequence[Row], predictions: Values) -> float:
    """Return AX-g's gender parity score: the fraction of pairs with equal predictions; 0 without a pair.

    The rows of a pair follow each other and differ only in the gender of a pronoun (Poliak et al.
    2018).
    """
    # A limit may cut off half of a pair.
    pairs = len(predictions) // 2
    if pairs == 0:
        return 0.0
    first = predictions[: 2 * pairs : 2]
    second = predictions[1 : 2 * pairs : 2]
    return float(np.mean(first == second))


# --- answers


def normalize_answer(text: str) -> list[str]:
    """Return an answer's words as SQuAD's script compares them: no case, punctuation, articles."""
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return _ARTICLES.sub(" ", without_punctuation).split()


def exact_match(answer: str, accepted: Sequence[str]) -> float:
    """Return 1 if the answer equals an accepted one after normalization, else 0."""
    words = normalize_answer(answer)
    return float(any(words == normalize_answer(other) for other in accepted))


def word_f1(answer: str, accepted: Sequence[str]) -> float:
    """Return the highest F1 between the words of the answer and of an accepted one."""
    words = normalize_answer(answer)
    scores = []
    for text in accepted:
        others = normalize_answer(text)
        common = (Counter(words) & Counter(others)).total()
        score = 0.0
        if common:
            score = 2 * common / (len(words) + len(others))
        scores.append(score)
    return max(scores)


def _mean_over_answers(
    score: Callable[[str, Sequence[str]], float], rows: Sequence[Row], predictions: Predictions
) -> float:
    """Return the mean score of SQuAD's answers, or of the entities that ReCoRD's predictions choose.

    Args:
        score: the score of an answer, given the accepted ones.
        rows: one per question; for ReCoRD one per candidate.
        predictions: outputs with an answer's text; for ReCoRD 1 for a chosen candidate, else 0.
    """
    scores = []
    for row, output in zip(rows, predictions, strict=True):
        if isinstance(output, Output):
            answer = str(output.prediction)
        elif output:
            answer = row.candidate
        else:
            continue
        accepted = [text for text, _ in row.answers]
        scores.append(score(answer, accepted))
    return float(np.mean(scores))


# --- entities


def entities(tags: Tags) -> list[tuple[str, int, int]]:
    """Return the entities of a sentence of IOB2 tags or their variants: type, first and last word.

    By the rules of the script conlleval: a word belongs to the entity of the word before it if its
    tag continues one of the same type. Every other word whose tag is not `O` begins an entity,
    with whichever prefix.
    """
    result: list[tuple[str, int, int]] = []
    previous = NO_ENTITY
    for word, tag in enumerate(tags):
        type_ = tag.partition("-")[2]
        is_of_same_type = type_ == previous.partition("-")[2]
        continues = tag[0] in _CONTINUES and previous[0] in _BEGINS and is_of_same_type
        if type_:
            first = word
            if continues:
                # The entity before ends here and no longer where it did.
                _, first, _ = result.pop()
            result.append((type_, first, word))
        previous = tag
    return result


@dataclass(frozen=True)
class _EntityCounts:
    """How many entities are correct (type, first and last word), labelled and predicted."""

    correct: int
    labelled: int
    predicted: int


def _count_entities(labels: Sequence[Tags], predictions: Sequence[Tags]) -> _EntityCounts:
    """Count the entities of all sentences; the arguments have the tags of each sentence's words."""
    correct = 0
    labelled = 0
    predicted = 0
    for true_tags, predicted_tags in zip(labels, predictions, strict=True):
        true_entities = set(entities(true_tags))
        predicted_entities = set(entities(predicted_tags))
        correct += len(true_entities & predicted_entities)
        labelled += len(true_entities)
        predicted += len(predicted_entities)
    return _EntityCounts(correct, labelled, predicted)


def entity_precision(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Return the fraction of predicted entities that are correct; 0 if none is predicted."""
    counts = _count_entities(labels, predictions)
    if counts.predicted == 0:
        return 0.0
    return counts.correct / counts.predicted


def entity_recall(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Return the fraction of labelled entities that are predicted; 0 if there is none."""
    counts = _count_entities(labels, predictions)
    if counts.labelled == 0:
        return 0.0
    return counts.correct / counts.labelled


def entity_f1(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Return the F1 of all sentences' entities; 0 if none is correct."""
    counts = _count_entities(labels, predictions)
    if counts.correct == 0:
        return 0.0
    return 2 * counts.correct / (counts.labelled + counts.predicted)


def word_accuracy(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Return the fraction of words with the correct tag."""
    return float(np.mean(np.concatenate(labels) == np.concatenate(predictions)))


# --- probabilities


def log_probabilities(logits: Values) -> Values:
    """Return the logarithm of the softmax; logits: [rows, classes]."""
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def nll(logits: Values, labels: NDArray[Any]) -> float:
    """Return the mean negative log-likelihood; logits: [rows, classes], labels: [rows]."""
    of_labels = log_probabilities(logits)[np.arange(len(labels)), labels]
    return float(-of_labels.mean())


def brier(logits: Values, labels: NDArray[Any]) -> float:
    """Return the mean squared error of the probabilities: over all classes, for two of them of one.

    Args:
        logits: [rows, classes].
        labels: the index of each row's class, [rows].
    """
    classes = logits.shape[1]
    errors = np.exp(log_probabilities(logits)) - np.eye(classes)[labels]
    error = np.square(errors).sum(1).mean()
    if classes == 2:
        # The errors of both classes are equal.
        error = error / 2
    return float(error)


def ece(logits: Values, labels: NDArray[Any]) -> float:
    """Return 100 times the mean over bins, weighted by rows, of |accuracy - mean confidence|.

    Args:
        logits: [rows, classes].
        labels: the index of each row's class, [rows].
    """
    confidence = np.exp(log_probabilities(logits)).max(1)
    is_correct = logits.argmax(1) == labels
    # Bins are closed on the right: a confidence of 1 is in the last one.
    bins = np.ceil(confidence * BINS).astype(int)
    gaps = np.bincount(bins, weights=is_correct - confidence)
    return float(100 * np.abs(gaps).sum() / len(labels))


# --- the list

# scikit-learn's F1 of class 1; 0 if there is nothing to divide by.
_F1 = partial(sklearn_score, "f1_score", zero_division=0)

_METRICS = [
    Metric("accuracy", "labels", accuracy, fits=("class", "classes"), heading="Acc."),
    Metric("f1", "labels", _F1, fits=("class",), heading="F1", of_second_class=True),
    Metric(
        "f1_macro",
        "labels",
        partial(_F1, average="macro"),
        fits=("class", "classes"),
        heading="macro F1",
    ),
    Metric(
        "f1_micro",
        "labels",
        partial(_F1, average="micro"),
        fits=("class", "classes"),
        heading="micro F1",
    ),
    # MultiRC's F1a is the F1 over all answers.
    Metric("f1a", "labels", _F1, fits=("class",), heading="F1a", of_second_class=True),
    Metric(
        "matthews",
        "labels",
        partial(sklearn_score, "matthews_corrcoef"),
        fits=("class",),
        heading="Matt.",
        hub_name="matthews_correlation",
        low=-1.0,
    ),
    Metric(
        "pearson",
        "labels",
        partial(correlation, "pearsonr"),
        fits=("class", "number"),
        heading="Pear.",
        hub_name="pearsonr",
        low=-1.0,
    ),
    Metric(
        "spearman",
        "labels",
        partial(correlation, "spearmanr"),
        fits=("class", "number"),
        heading="Spea.",
        hub_name="spearmanr",
        low=-1.0,
    ),
    Metric("gender_parity", "rows", gender_parity, fits=("class",), heading="Parity"),
    Metric("binary_accuracy", "labels", binary_accuracy, fits=("class",)),
    Metric("question_em", "rows", question_em, fits=("question",), heading="EM"),
    Metric(
        "entity_f1",
        "texts",
        partial(_mean_over_answers, word_f1),
        fits=("candidate",),
        heading="F1",
    ),
    Metric(
        "entity_em",
        "texts",
        partial(_mean_over_answers, exact_match),
        fits=("candidate",),
        heading="EM",
    ),
    Metric("span_f1", "rows", partial(_mean_over_answers, word_f1), fits=("text",), heading="F1"),
    Metric(
        "span_em", "rows", partial(_mean_over_answers, exact_match), fits=("text",), heading="EM"
    ),
    Metric("ner_f1", "tags", entity_f1, fits=("tags",), heading="F1", hub_name="f1"),
    Metric(
        "ner_precision",
        "tags",
        entity_precision,
        fits=("tags",),
        heading="Prec.",
        hub_name="precision",
    ),
    Metric("ner_recall", "tags", entity_recall, fits=("tags",), heading="Rec.", hub_name="recall"),
    Metric(
        "word_accuracy",
        "tags",
        word_accuracy,
        fits=("tags",),
        heading="Acc.",
        hub_name="accuracy",
    ),
    # Measures of stored predictions of classes, besides a score.
    Metric(
        "nll",
        "probabilities",
        nll,
        heading="NLL",
        lower_is_better=True,
        description="negative log-likelihood in nats",
    ),
    Metric(
        "brier",
        "probabilities",
        brier,
        heading="Brier",
        lower_is_better=True,
        description="Brier score, 0 to 1 for two classes and 0 to 2 for more, as scikit-learn's",
    ),
    Metric(
        "ece",
        "probabilities",
        ece,
        heading="ECE",
        lower_is_better=True,
        description=(
            f"expected calibration error in percent, {BINS} equal-width bins of the highest"
            " probability"
        ),
    ),
    Metric(
        "churn",
        "seeds",
        None,
        heading="Churn",
        lower_is_better=True,
        description=(
            "percent of examples that another seed of the method predicts otherwise, mean over pairs"
        ),
    ),
]
METRICS = {metric.name: metric for metric in _METRICS}
# The metrics of two classes that count the second one alone.
OF_SECOND_CLASS = frozenset(metric.name for metric in _METRICS if metric.of_second_class)


def metric_of(score: str) -> Metric | None:
    """Return the metric that a score is of, None for one of the `evaluate` library.

    Args:
        score: a metric's name; of an extra split the split's name follows (`accuracy_mismatched`).
    """
    # The longest name counts: f1_macro is not F1 on a split `macro`.
    name = score
    while name:
        if name in METRICS:
            return METRICS[name]
        name = name.rpartition("_")[0]
    return None


def heading_of(score: str) -> str:
    """Return what a score is called above a table's column.

    Args:
        score: as of `metric_of`. The columns of the benchmarks' extra splits have the split's own
            label, so that their heading names the metric alone.
    """
    name = score
    for split in _SPLITS_OF_BENCHMARKS:
        name = name.removesuffix(f"_{split}")
    if name in METRICS:
        return METRICS[name].heading or score
    return score


def hub_name_of(score: str) -> str:
    """Return the Hugging Face hub's name of a score; one that is no metric's name keeps its own."""
    if score not in METRICS:
        return score
    return METRICS[score].hub_name or score


def lowest_score(score: str) -> float:
    """Return the lowest value of a score: -1 of a correlation, 0 of others; see `metric_of`."""
    metric = metric_of(score)
    if metric is None:
        return 0.0
    return metric.low


def within_range(low: float, high: float, score: str) -> tuple[float, float]:
    """Cut an interval of a mean score, in percent, where the score itself ends.

    With few seeds a t-interval is wider than the scores that there can be. An interval of a score
    that is no metric's stays as it is: its range is not known.

    Args:
        low: the interval's lower end.
        high: the interval's upper end.
        score: as of `metric_of`.
    """
    lowest, highest = range_of(score)
    return max(low, lowest), min(high, highest)


def range_of(score: str) -> tuple[float, float]:
    """Return the lowest and the highest value of a score in percent; infinite where it is not known.

    Args:
        score: as of `metric_of`.
    """
    if metric_of(score) is None:
        return -math.inf, math.inf
    # Measures of stored predictions have units of their own, and none is below 0.
    if is_lower_better(score):
        return 0.0, math.inf
    return 100 * lowest_score(score), 100.0


def is_lower_better(score: str | None) -> bool:
    """Return whether a lower value of a score is better; not of one that is no metric."""
    return score in METRICS and METRICS[score].lower_is_better


def metrics_for(predicted: Sequence[Predicted]) -> list[str]:
    """Return the names of the metrics that fit what a task predicts."""
    names = []
    for metric in METRICS.values():
        if any(what in metric.fits for what in predicted):
            names.append(metric.name)
    return names
