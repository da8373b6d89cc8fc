"""Predictions from logits, and their metrics; only one of the `evaluate` library may use the network."""

import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.hub import is_offline
from hifi_cli.tasks.task_spec import OUTSIDE, UNREAD, EncodedExample, Row, TaskSpec

NO_ENTITY = "O"
N_BEST, MAX_ANSWER_TOKENS = 20, 30  # of SQuAD's script: candidates for an end; longest answer
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# prefixes of an entity's words: after which it can go on, and with which
_BEGINS, _CONTINUES = "BIM", "IMEL"


class Output(NamedTuple):
    """What is predicted of a row that has no single number.

    Attributes:
        prediction: the answer's text, empty if no window has a valid one; or the tag of each word,
            `O` for one that was not read.
        logits: of the answer's first and last token; or of each word's tag, 0 for one that was not
            read.
    """

    prediction: str | list[str]
    logits: list[float]


Values = NDArray[np.float64]
Tags = Sequence[str]  # of a sentence's words
Predictions = Values | Sequence[Output]  # [rows], or [rows, classes] of 0 and 1; or outputs


def accuracy(labels: Values, predictions: Values) -> float:
    """Fraction of rows with the correct class (multi-label: with exactly the correct classes)."""
    return float(np.mean((labels == predictions).reshape(len(labels), -1).all(1)))


def binary_accuracy(labels: Values, predictions: Values) -> float:
    """Accuracy of the first class against all others (HANS: neutral and contradiction are both non-entailment)."""
    return accuracy(labels == 0, predictions == 0)


def sklearn_score(name: str, labels: Values, predictions: Values, **options: Any) -> float:
    """Return a score of scikit-learn, which takes a second to import."""
    from sklearn import metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that all rows are of one class
        return float(getattr(metrics, name)(labels, predictions, **options))


def correlation(name: str, labels: Values, predictions: Values) -> float:
    """Correlation by `pearsonr` or `spearmanr` of scipy; 0 if labels or predictions are constant."""
    from scipy import stats

    is_constant = _constant(labels) or _constant(predictions)
    return 0.0 if is_constant else float(getattr(stats, name)(labels, predictions).statistic)


def question_em(rows: Sequence[Row], predictions: Values) -> float:
    """MultiRC's exact match: fraction of questions with correct predictions for all answers."""
    import pandas as pd  # a third of a second, which other tasks do without

    is_correct = pd.Series(labels_of(rows) == predictions)
    return float(is_correct.groupby([row.group for row in rows]).all().mean())


def gender_parity(_: Sequence[Row], predictions: Values) -> float:
    """AX-g's gender parity score: fraction of pairs with equal predictions; 0 if there is no pair.

    The rows of a pair follow each other and differ only in the gender of a pronoun (Poliak et al.
    2018).
    """
    pairs = len(predictions) // 2  # a limit may cut off half of a pair
    return (
        float(np.mean(predictions[: 2 * pairs : 2] == predictions[1 : 2 * pairs : 2]))
        if pairs
        else 0.0
    )


def normalize_answer(text: str) -> list[str]:
    """Return an answer's words as SQuAD's script compares them: no case, punctuation, articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(answer: str, accepted: Sequence[str]) -> float:
    """Return 1 if the answer equals an accepted one after normalization, else 0."""
    return float(any(normalize_answer(answer) == normalize_answer(other) for other in accepted))


def word_f1(answer: str, accepted: Sequence[str]) -> float:
    """Return the highest F1 between the words of the answer and of an accepted one."""
    words, others = normalize_answer(answer), map(normalize_answer, accepted)
    counts = [((Counter(words) & Counter(other)).total(), len(other)) for other in others]
    return max(2 * common / (len(words) + length) if common else 0.0 for common, length in counts)


def _mean_over_answers(
    score: Callable[[str, Sequence[str]], float], rows: Sequence[Row], predictions: Predictions
) -> float:
    """Mean score of SQuAD's answers, or of the entities that ReCoRD's predictions choose."""
    chosen = [
        (
            str(output.prediction) if isinstance(output, Output) else row.candidate,
            [text for text, _ in row.answers],
        )
        for row, output in zip(rows, predictions, strict=True)
        if output
    ]
    return float(np.mean([score(answer, accepted) for answer, accepted in chosen]))


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
        continues = (
            tag[0] in _CONTINUES and previous[0] in _BEGINS and type_ == previous.partition("-")[2]
        )
        if type_:
            first = result.pop()[1] if continues else word
            result.append((type_, first, word))
        previous = tag
    return result


def entity_scores(labels: Sequence[Tags], predictions: Sequence[Tags]) -> dict[str, float]:
    """Precision, recall and F1 of all sentences' entities.

    An entity is correct if its type, first and last word are; 0 where there is nothing to divide
    by.
    """
    pairs = [
        (set(entities(label)), set(entities(tags)))
        for label, tags in zip(labels, predictions, strict=True)
    ]
    correct = sum(len(label & predicted) for label, predicted in pairs)
    in_labels, in_predictions = (sum(map(len, side)) for side in zip(*pairs, strict=True))
    return {
        "ner_precision": correct / in_predictions if in_predictions else 0.0,
        "ner_recall": correct / in_labels if in_labels else 0.0,
        "ner_f1": 2 * correct / (in_labels + in_predictions) if correct else 0.0,
    }


def word_accuracy(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Fraction of words with the correct tag."""
    return float(np.mean(np.concatenate(labels) == np.concatenate(predictions)))


# of class 1; 0 if there is nothing to divide by
_F1 = partial(sklearn_score, "f1_score", zero_division=0)
METRICS: dict[str, Callable[[Values, Values], float]] = {  # of labels and predictions
    "accuracy": accuracy,
    "binary_accuracy": binary_accuracy,
    "f1": _F1,
    "f1_macro": partial(_F1, average="macro"),
    "f1_micro": partial(_F1, average="micro"),
    "f1a": _F1,  # MultiRC's F1a is the F1 over all answers
    "matthews": partial(sklearn_score, "matthews_corrcoef"),
    "pearson": partial(correlation, "pearsonr"),
    "spearman": partial(correlation, "spearmanr"),
}
ROW_METRICS: dict[str, Callable[[Sequence[Row], Any], float]] = {  # of rows and predictions
    "question_em": question_em,
    "gender_parity": gender_parity,
    "entity_em": partial(_mean_over_answers, exact_match),
    "entity_f1": partial(_mean_over_answers, word_f1),
    "span_em": partial(_mean_over_answers, exact_match),
    "span_f1": partial(_mean_over_answers, word_f1),
}


# prefixes of the metrics whose scores begin at -1
_SIGNED = ("matthews", "pearson", "spearman")


def lowest_score(name: str) -> float:
    """Return the lowest value of a metric; a metric of an extra split has the split's name behind its own."""
    if name.startswith(_SIGNED):
        return -1.0
    return 0.0


def compute(spec: TaskSpec, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
    """Compute every metric of a task, in [0, 1], or [-1, 1] for correlations.

    Raises:
        UsageError: `evaluate` does not return the primary metric.
        MissingError: the metric of the `evaluate` library cannot be loaded.
    """
    if spec.kind == "token-classification":
        tags = [
            [spec.labels[tag] for tag in row.label] for row in rows if isinstance(row.label, tuple)
        ]
        predicted = [output.prediction for output in predictions if isinstance(output, Output)]
        known = {**entity_scores(tags, predicted), "word_accuracy": word_accuracy(tags, predicted)}
        return {name: known[name] for name in spec.metrics}
    labels = labels_of(rows)
    scores = {
        name: ROW_METRICS[name](rows, predictions)
        if name in ROW_METRICS
        else METRICS[name](labels, np.asarray(predictions))
        for name in spec.metrics
    }
    scores |= _evaluate(spec, spec.evaluate, rows, predictions) if spec.evaluate else {}
    if spec.primary not in scores:
        raise UsageError(
            f"task {spec.label}: primary '{spec.primary}' is not among its scores, {', '.join(scores)}"
        )
    return scores


def labels_of(rows: Sequence[Row]) -> Values:
    """Return the rows' labels as float64, [rows], or [rows, classes] for multi-label."""
    return np.array([row.label for row in rows], dtype=np.float64)


def _evaluate(
    spec: TaskSpec, name: str, rows: Sequence[Row], predictions: Predictions
) -> dict[str, float]:
    """Compute a metric of the `evaluate` library, with the library's names of the scores.

    An undefined score (NaN), as the correlation of constant predictions is, counts as 0, as in
    `pearson`.

    Raises:
        MissingError: there is no such metric.
        UsageError: it is no metric, or it fails.
    """
    import evaluate

    evaluate.config.HF_EVALUATE_OFFLINE |= is_offline()  # `evaluate` ignores HF_HUB_OFFLINE
    try:
        metric = evaluate.load(name)
    except (OSError, ValueError, ImportError) as error:
        raise MissingError(
            f"task {spec.label}: the metric '{name}' of evaluate cannot be loaded"
            f" ({' '.join(str(error).split())[:120]})"
        ) from None
    except Exception as error:  # of the file's own code, which may raise anything
        raise _metric_error(spec, name, error) from error
    number = float if spec.kind == "regression" else int
    outputs, references = (
        np.asarray(values).astype(number).tolist() for values in (predictions, labels_of(rows))
    )
    try:
        scores = metric.compute(predictions=outputs, references=references)
        return {
            key: float(np.nan_to_num(value))
            for key, value in scores.items()
            if not isinstance(value, dict)
        }
    except Exception as error:  # of the metric's own code, which may raise anything
        raise _metric_error(spec, name, error) from error


def _metric_error(spec: TaskSpec, name: str, error: Exception) -> UsageError:
    """The error for a metric of the `evaluate` library, or a file of the user's own, that does not work."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UsageError(
        f"task {spec.label}: the metric '{name}' fails ({reason:.120}): it must be a subclass of"
        " evaluate.Metric that returns numbers by name"
    )


def predictions_of(
    spec: TaskSpec, examples: Sequence[EncodedExample], logits: Values
) -> Predictions:
    """Return the predictions: class, choice or tags of the highest logit, number, or answer.

    On a tie it is the lowest index. For multi-label 0 or 1 of each class: those with a positive
    logit, which is a probability above one half, are 1. For ReCoRD 1 for the most probable
    candidate of each query (the first one on a tie), 0 for the others.

    Args:
        spec: the task.
        examples: the examples that the model read.
        logits: [examples, classes or choices]; [examples, 1] for regression and for two classes
            with one logit; [examples, 2, tokens] for spans; [examples, tags, tokens] for token
            classification.

    Returns:
        One prediction per row.
    """
    if spec.kind == "span":
        return _best_answers(examples, logits)
    if spec.kind == "token-classification":
        return [
            _tags(spec.labels, example, values)
            for example, values in zip(examples, logits, strict=True)
        ]
    if spec.kind == "regression":
        return np.asarray(logits[:, 0])
    if spec.kind == "multi-label":
        return (logits > 0).astype(np.float64)
    if spec.format == "record":
        return _chosen_candidates(examples, logits)
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).astype(np.float64)
    return np.asarray(logits.argmax(-1), dtype=np.float64)


def _chosen_candidates(examples: Sequence[EncodedExample], logits: Values) -> Values:
    import pandas as pd

    scores = logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0)
    chosen = pd.Series(scores).groupby([example.row.group for example in examples]).idxmax()
    return np.isin(np.arange(len(examples)), chosen).astype(np.float64)


def _tags(labels: Sequence[str], example: EncodedExample, logits: Values) -> Output:
    """Return each word's tag with the highest logit at its first token; logits: [tags, tokens]."""
    return Output(
        [
            NO_ENTITY if token == UNREAD else labels[int(logits[:, token].argmax())]
            for token in example.word_tokens
        ],
        [
            0.0 if token == UNREAD else float(np.float32(logits[:, token].max()))
            for token in example.word_tokens
        ],
    )


def _best_answers(examples: Sequence[EncodedExample], logits: Values) -> list[Output]:
    """Return for each row the valid answer with the highest sum of logits over all windows.

    Args:
        examples: the windows of all rows.
        logits: [windows, 2, tokens].

    Returns:
        One answer per row, in the order of the rows; if no span is valid, an empty answer with the
        logits of the first token.
    """
    best: dict[str, tuple[float, Output]] = {}
    for example, (starts, ends) in zip(examples, logits, strict=True):
        row = example.row
        best.setdefault(row.id, (-np.inf, Output("", [float(starts[0]), float(ends[0])])))
        is_inside = np.array([span != OUTSIDE for span in example.offsets])
        firsts, lasts = (
            np.argsort(-side[: len(example)], kind="stable")[:N_BEST] for side in (starts, ends)
        )
        tokens = lasts - firsts[:, None] + 1
        is_valid = (
            (tokens > 0)
            & (tokens <= MAX_ANSWER_TOKENS)
            & is_inside[firsts][:, None]
            & is_inside[lasts]
        )
        scores = np.where(is_valid, starts[firsts][:, None] + ends[lasts], -np.inf)
        at, to = np.unravel_index(scores.argmax(), scores.shape)
        if scores[at, to] > best[row.id][0]:
            first, last = int(firsts[at]), int(lasts[to])
            text = row.sequences[0][1][example.offsets[first][0] : example.offsets[last][1]]
            output = Output(text, [float(starts[first]), float(ends[last])])
            best[row.id] = (scores[at, to], output)
    return [output for _, output in best.values()]


def is_collapsed(predictions: Predictions) -> bool:
    """Return whether a model predicts the same for every example, or no finite number."""
    if not isinstance(predictions, np.ndarray):
        outputs = np.concatenate([np.atleast_1d(output.prediction) for output in predictions])
        return len(predictions) > 1 and len(set(outputs)) == 1
    return bool(
        not np.isfinite(predictions).all() or (len(predictions) > 1 and _constant(predictions))
    )


def _constant(values: Values) -> bool:
    return bool(np.ptp(values, axis=0).max() <= 1e-12 * max(1.0, float(np.abs(values).max())))
