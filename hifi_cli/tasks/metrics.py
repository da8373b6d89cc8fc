"""Metrics of predictions, computed with scikit-learn and scipy; only a metric of the `evaluate` library may use the network."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hifi_cli import hub
from hifi_cli.config.registry import nearest
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.tasks import entities, spans
from hifi_cli.tasks.entities import NO_ENTITY, Tags
from hifi_cli.tasks.task_spec import Row, TaskSpec
from hifi_cli.tasks.tokenization import UNREAD, Example


class TaggedSentence(NamedTuple):
    """The predicted tags of a sentence.

    Attributes:
        prediction: the tag of each word; `O` for a word that the model did not read.
        logits: the logit of each word's tag; 0 for a word that the model did not read.
    """

    prediction: list[str]
    logits: list[float]


Values = NDArray[np.float64]
Outputs = Sequence[spans.Answer | TaggedSentence]  # one per row
Predictions = Values | Outputs  # class, choice or number per row, 0 or 1 per row and class; or an answer or tags per row


def accuracy(labels: Values, predictions: Values) -> float:
    """Fraction of rows with the correct class (multi-label: with exactly the correct classes), in [0, 1]."""
    return float(np.mean((labels == predictions).reshape(len(labels), -1).all(1)))


def f1(labels: Values, predictions: Values) -> float:
    """F1 of class 1, in [0, 1]; 0 if class 1 occurs in neither labels nor predictions."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, zero_division=0))


def f1_macro(labels: Values, predictions: Values) -> float:
    """Mean F1 of the classes, in [0, 1]: those that occur in labels or predictions (CB), for multi-label all."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=0))


def f1_micro(labels: Values, predictions: Values) -> float:
    """F1 over all pairs of row and class (multi-label), in [0, 1]."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="micro", zero_division=0))


def matthews(labels: Values, predictions: Values) -> float:
    """Matthews correlation, in [-1, 1]; 0 if labels or predictions are constant."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: Values, predictions: Values) -> float:
    """Pearson correlation, in [-1, 1]; 0 if labels or predictions are constant."""
    from scipy.stats import pearsonr

    return 0.0 if _constant(labels) or _constant(predictions) else float(pearsonr(labels, predictions).statistic)


def spearman(labels: Values, predictions: Values) -> float:
    """Spearman rank correlation, in [-1, 1]; 0 if labels or predictions are constant."""
    from scipy.stats import spearmanr

    return 0.0 if _constant(labels) or _constant(predictions) else float(spearmanr(labels, predictions).statistic)


def question_em(rows: Sequence[Row], predictions: Values) -> float:
    """MultiRC's exact match: fraction of questions with correct predictions for all answers, in [0, 1]."""
    all_correct: dict[str, bool] = defaultdict(lambda: True)
    for row, prediction in zip(rows, predictions, strict=True):
        all_correct[row.group] &= bool(row.label == prediction)
    return sum(all_correct.values()) / len(all_correct)


def gender_parity(rows: Sequence[Row], predictions: Values) -> float:
    """AX-g's gender parity score: fraction of pairs with equal predictions, in [0, 1]; 0 if there is no pair.

    The rows of a pair follow each other and differ only in the gender of a pronoun (Poliak et al. 2018).

    Raises:
        UsageError: two such rows have different hypotheses.
    """
    equal = []
    for first in range(0, len(rows) - 1, 2):
        pair = rows[first], rows[first + 1]
        if pair[0].sequences[0][-1] != pair[1].sequences[0][-1]:
            raise UsageError(f"gender parity: rows {pair[0].id} and {pair[1].id} are no pair, their hypotheses differ")
        equal.append(predictions[first] == predictions[first + 1])
    return float(np.mean(equal)) if equal else 0.0


def entity_em(rows: Sequence[Row], predictions: Values) -> float:
    """ReCoRD's exact match: fraction of queries whose chosen entity equals an answer after normalization, in [0, 1]."""
    return _entity_score(rows, predictions, spans.exact_match)


def entity_f1(rows: Sequence[Row], predictions: Values) -> float:
    """ReCoRD's F1: mean over the queries of the chosen entity's word F1 with the most similar answer, in [0, 1]."""
    return _entity_score(rows, predictions, spans.word_f1)


def _entity_score(rows: Sequence[Row], predictions: Values, score: Callable[[str, Sequence[str]], float]) -> float:
    chosen = [row for row, is_chosen in zip(rows, predictions, strict=True) if is_chosen]
    return float(np.mean([score(row.candidate, [text for text, _ in row.answers]) for row in chosen]))


def span_em(rows: Sequence[Row], predictions: list[spans.Answer]) -> float:
    """SQuAD's exact match: fraction of answers that equal an accepted one after the official normalization, in [0, 1]."""
    pairs = zip(rows, predictions, strict=True)
    return float(np.mean([spans.exact_match(answer.text, [text for text, _ in row.answers]) for row, answer in pairs]))


def span_f1(rows: Sequence[Row], predictions: list[spans.Answer]) -> float:
    """SQuAD's F1: mean word F1 with the most similar accepted answer, in [0, 1]."""
    pairs = zip(rows, predictions, strict=True)
    return float(np.mean([spans.word_f1(answer.text, [text for text, _ in row.answers]) for row, answer in pairs]))


def ner_f1(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """F1 of entities, which are correct if type, first and last word are, in [0, 1]; see `entities.scores`."""
    return entities.scores(labels, predictions).f1


def ner_precision(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Fraction of the predicted entities that are correct, in [0, 1]."""
    return entities.scores(labels, predictions).precision


def ner_recall(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Fraction of the entities that are predicted, in [0, 1]."""
    return entities.scores(labels, predictions).recall


def word_accuracy(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Fraction of words with the correct tag, in [0, 1]."""
    return float(np.mean(np.concatenate(labels) == np.concatenate(predictions)))


METRICS: dict[str, Callable[[Values, Values], float]] = {  # arguments: labels, predictions
    "accuracy": accuracy,
    "f1": f1,
    "f1_macro": f1_macro,
    "f1_micro": f1_micro,
    "f1a": f1,  # MultiRC's F1a is the F1 over all answers
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
ROW_METRICS: dict[str, Callable[[Sequence[Row], Any], float]] = {  # arguments: rows, predictions
    "question_em": question_em,
    "gender_parity": gender_parity,
    "entity_em": entity_em,
    "entity_f1": entity_f1,
    "span_em": span_em,
    "span_f1": span_f1,
}
TAG_METRICS: dict[str, Callable[[Sequence[Tags], Sequence[Tags]], float]] = {  # arguments: labels, predictions
    "ner_f1": ner_f1,
    "ner_precision": ner_precision,
    "ner_recall": ner_recall,
    "word_accuracy": word_accuracy,
}


def predictions_of(spec: TaskSpec, examples: Sequence[Example], logits: Values) -> Predictions:
    """Return the predictions: the class, choice or tags of the highest logit (the lowest index on a tie), number or answer.

    For multi-label 0 or 1 of each class: those with a positive logit, which is a probability above one half, are 1. For ReCoRD
    1 for the most probable candidate of each query (the first one on a tie), 0 for the others.

    Args:
        spec: the task.
        examples: the examples that the model read.
        logits: [examples, classes or choices]; [examples, 1] for regression and for two classes with one logit;
            [examples, 2, tokens] for spans; [examples, tags, tokens] for token classification.

    Returns:
        One prediction per row.
    """
    if spec.kind == "span":
        return spans.best_answers(examples, logits)
    if spec.kind == "token-classification":
        return _predicted_tags(spec.labels, examples, logits)
    if spec.kind == "regression":
        numbers: Values = logits[:, 0]
        return numbers
    if spec.kind == "multi-label":
        return (logits > 0).astype(np.float64)
    if spec.format == "record":
        return _chosen_candidates(examples, logits)
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).astype(np.float64)
    classes: Values = logits.argmax(-1).astype(np.float64)
    return classes


def _chosen_candidates(examples: Sequence[Example], logits: Values) -> Values:
    scores = logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0)
    best: dict[str, int] = {}
    for number, example in enumerate(examples):
        if scores[number] > scores[best.setdefault(example.row.group, number)]:
            best[example.row.group] = number
    is_chosen = np.zeros(len(examples))
    is_chosen[list(best.values())] = 1
    return is_chosen


def _predicted_tags(labels: Sequence[str], examples: Sequence[Example], logits: Values) -> list[TaggedSentence]:
    """Return for each sentence the tags with the highest logits, which are those of each word's first token.

    Args:
        labels: the tags in label order.
        examples: the tokenized sentences.
        logits: [sentences, tags, tokens].
    """
    return [
        TaggedSentence(
            [NO_ENTITY if token == UNREAD else labels[values[:, token].argmax()] for token in example.word_tokens],
            [0.0 if token == UNREAD else float(np.float32(values[:, token].max())) for token in example.word_tokens],
        )
        for example, values in zip(examples, logits, strict=True)
    ]


def labels_of(rows: Sequence[Row]) -> Values:
    """Return the rows' labels as float64, [rows], or [rows, classes] for multi-label."""
    return np.array([row.label for row in rows], dtype=np.float64)


def tags_of(spec: TaskSpec, rows: Sequence[Row]) -> list[Tags]:
    """Return the correct tags of the rows' words."""
    return [[spec.labels[tag] for tag in row.label] for row in rows if isinstance(row.label, tuple)]


def check_names(spec: TaskSpec) -> None:
    """Raise UsageError if a task names an unknown metric, or one that its predictions do not have."""
    known = METRICS | ROW_METRICS | TAG_METRICS
    for name in dict.fromkeys([*spec.metrics, *(name for names in spec.split_metrics.values() for name in names)]):
        if name not in known:
            raise UsageError(f"task {spec.label}: unknown metric '{name}'{nearest(name, known)}")
        if not _fits(name, spec):
            labels = f" with {len(spec.labels)} labels" if spec.labels else ""
            raise UsageError(f"task {spec.label}: metric '{name}' does not fit a task of kind {spec.kind}{labels}")


def _fits(metric: str, spec: TaskSpec) -> bool:
    """Whether the predictions of a task are those that a metric compares."""
    is_class = spec.kind in ("classification", "multiple-choice")
    match metric:
        case "f1" | "f1a":
            return is_class and len(spec.labels) == 2
        case "accuracy" | "f1_macro" | "f1_micro":
            return is_class or spec.kind == "multi-label"
        case "matthews" | "gender_parity":
            return is_class
        case "pearson" | "spearman":
            return is_class or spec.kind == "regression"
        case "span_em" | "span_f1":
            return spec.kind == "span"
        case "entity_em" | "entity_f1":
            return spec.format == "record"
        case "question_em":
            return spec.format == "multirc"
    return (metric in TAG_METRICS) == (spec.kind == "token-classification")


def compute(spec: TaskSpec, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
    """Compute every metric of a task.

    Raises:
        UsageError: the task names an unknown metric, or `evaluate` does not return the primary metric.
        MissingError: the metric of the `evaluate` library cannot be loaded.
    """
    check_names(spec)
    scores = {}
    for name in spec.metrics:
        if name in ROW_METRICS:
            scores[name] = ROW_METRICS[name](rows, predictions)
        elif name in TAG_METRICS:
            scores[name] = TAG_METRICS[name](tags_of(spec, rows), [sentence.prediction for sentence in predictions])
        else:
            scores[name] = METRICS[name](labels_of(rows), np.asarray(predictions))
    scores |= _evaluate(spec, spec.evaluate, rows, predictions) if spec.evaluate else {}
    if spec.primary not in scores:
        raise UsageError(f"task {spec.label}: primary '{spec.primary}' is not among its scores, {', '.join(scores)}")
    return scores


def is_code(name: str) -> bool:
    """Return whether a metric is code in a file or in a repository `owner/name`, not one of `evaluate`'s own metrics.

    `evaluate` searches the working directory before its own metrics.
    """
    return not name.isidentifier() or Path(name).exists()


def _evaluate(spec: TaskSpec, name: str, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
    """Compute a metric of the `evaluate` library, with the library's names of the scores.

    An undefined score (NaN), as the correlation of constant predictions is, counts as 0, as in `pearson`.
    """
    import evaluate

    if hub.is_offline():
        evaluate.config.HF_EVALUATE_OFFLINE = True  # `evaluate` ignores HF_HUB_OFFLINE
    try:
        metric = evaluate.load(name)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())[:120]
        raise MissingError(f"task {spec.label}: the metric '{name}' of evaluate cannot be loaded ({reason})") from None
    if spec.kind == "span":
        outputs: list[Any] = [
            {"id": row.id, "prediction_text": answer[0]} for row, answer in zip(rows, predictions, strict=True)
        ]
        references: list[Any] = [_as_squad(row) for row in rows]
    elif spec.kind == "token-classification":
        outputs, references = [output.prediction for output in predictions], tags_of(spec, rows)
    else:
        number = float if spec.kind == "regression" else int
        outputs = np.asarray(predictions).astype(number).tolist()
        references = labels_of(rows).astype(number).tolist()
    scores = metric.compute(predictions=outputs, references=references)
    numbers = {key: float(value) for key, value in scores.items() if not isinstance(value, dict)}  # seqeval: a dict per type
    return {key: 0.0 if math.isnan(value) else value for key, value in numbers.items()}


def _as_squad(row: Row) -> dict[str, Any]:
    texts, starts = zip(*row.answers, strict=True)
    return {"id": row.id, "answers": {"text": list(texts), "answer_start": list(starts)}}


def is_collapsed(predictions: Predictions) -> bool:
    """Return whether a model predicts the same for every example, or something that is not finite."""
    if not isinstance(predictions, np.ndarray):
        outputs = np.concatenate([np.atleast_1d(output.prediction) for output in predictions])
        return len(predictions) > 1 and len(set(outputs)) == 1
    return bool(not np.isfinite(predictions).all() or (len(predictions) > 1 and _constant(predictions)))


def _constant(values: Values) -> bool:
    return bool(np.ptp(values, axis=0).max() <= 1e-12 * max(1.0, float(np.abs(values).max())))
