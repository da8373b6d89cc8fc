"""The rules of task kinds: one class per kind, without torch. Its loss is in `training/losses.py`.

`TaskSpec.rules` is the object of a task's kind. A new kind is a class here, with its name in `Kind`
and its entry in `KINDS`, and a loss; no other module asks which kind a task has.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hifi_cli.errors import UsageError
from hifi_cli.tasks.examples import (
    OUTSIDE,
    UNREAD,
    EncodedExample,
    IncompleteRow,
    Label,
    Output,
    Predictions,
    Row,
    UnknownLabel,
    Values,
)
from hifi_cli.tasks.labels import as_number, is_missing, label_name, list_in, split_words
from hifi_cli.tasks.metrics import ENTITY_TAG, NO_ENTITY, Predicted, is_constant, metrics_for

Kind = Literal[
    "classification", "multi-label", "regression", "multiple-choice", "span", "token-classification"
]
# How `encode.py` makes token ids of a row:
#   texts         one sequence, or one per choice
#   target words  one sequence, and the tokens of a word in each text
#   words         one sequence, and the first token of each word
#   windows       overlapping windows over a long context
Encoding = Literal["texts", "target words", "words", "windows"]
# SQuAD's script takes so many candidates for an answer's end, and no longer answer in tokens.
N_BEST = 20
MAX_ANSWER_TOKENS = 30


@dataclass(frozen=True)
class TaskKind(ABC):
    """The rules of a kind of task.

    Attributes:
        labels: class names or tags in label order; for regression the name of the number; none for
            spans.
        label_separator: for multi-label the character between the labels of a row.
        value_range: for regression the lowest and the highest value.
    """

    labels: Sequence[str]
    label_separator: str = "|"
    value_range: tuple[float, float] | None = None

    formats: ClassVar[tuple[str, ...]] = ("plain",)
    """The formats of records that fit, the most general first; see `hifi_cli.tasks.rows`."""
    predicts: ClassVar[tuple[Predicted, ...]]
    """Form of a prediction, by which metrics fit."""
    number_type: ClassVar[type] = int
    """Form of a prediction for a metric of the `evaluate` library."""
    predicts_numbers: ClassVar[bool] = True
    """Whether predictions are numbers, [rows] or [rows, classes], and not outputs."""
    has_any_number_of_labels: ClassVar[bool] = False
    """Whether a row may have none, one or several of the labels."""
    has_answers: ClassVar[bool] = False
    """Whether a row has answers in the place of a label."""
    encoding: ClassVar[Encoding] = "texts"
    """How token ids are made of a row."""
    smooths_labels: ClassVar[bool] = False
    """Whether the loss is a cross-entropy, which `label_smoothing` can change."""
    weights_classes: ClassVar[bool] = False
    """Whether each class has a weight in the loss, by `class_weights`."""
    reads_all_tokens: ClassVar[bool] = False
    """Whether the task head reads the states of all tokens; else it reads one state per sequence."""
    reads_choices: ClassVar[bool] = False
    """Whether each choice is a sequence of its own, with one logit."""
    reads_words: ClassVar[bool] = False
    """Whether the task head reads the states of two target words besides that of the first token."""
    transformers_class: ClassVar[str] = "AutoModelForSequenceClassification"
    """The class of transformers with Hugging Face's own task head."""
    pipeline: ClassVar[str] = "text-classification"
    """The hub's name for such tasks."""
    peft_task: ClassVar[str | None] = "SEQ_CLS"
    """peft's name for such tasks; None if it has none."""
    problem_type: ClassVar[str | None] = None
    """By which a pipeline of transformers chooses between softmax, sigmoid and neither."""
    unit: ClassVar[str] = "rows"
    """The unit that has a label: rows or words."""
    has_class_names: ClassVar[bool] = False
    """Whether the labels of a data file are names of classes, some of which may stand for none."""
    has_one_label: ClassVar[bool] = False
    """Whether a row of a data file has exactly one label."""
    labels_are_numbers: ClassVar[bool] = False
    """Whether the labels are numbers and no names."""

    # --- labels

    @property
    def has_right_number_of_labels(self) -> bool:
        """Whether a task of this kind can have as many labels as are given: here two or more."""
        return len(self.labels) > 1

    @property
    def classes(self) -> list[str]:
        """The labels of which each row has exactly one; none if rows have no class."""
        return []

    def count(self, rows: Sequence[Row]) -> int:
        """Return the number of rows as the benchmark counts them."""
        return len(rows)

    def names_in(self, value: Any) -> list[str]:
        """Return the names of the labels that a cell of a data file has."""
        return [label_name(value)]

    def parse_label(self, value: Any, names: Sequence[str]) -> Label:
        """Return the label that a cell of a data file has.

        Args:
            value: the cell; of several labels a list or a text.
            names: the source's label names, in label order.

        Raises:
            UsageError: there is no label, or it is not one of the names or not a number in its range.
        """
        if is_missing(value):
            raise IncompleteRow("label is empty")
        indices = _indices_in(self.names_in(value), names)
        return indices[0]

    def label_word(self, label: Any) -> str | float | list[str] | None:
        """Return a label, or what is predicted in its place, as people read it.

        It is the inverse of `parse_label`; None for an unknown label.
        """
        if label is None:
            return None
        return self.labels[int(label)]

    def usual_metrics(self) -> list[str]:
        """Return the metrics of a task that is made from a data file, the primary one first."""
        return [name for name in metrics_for(self.predicts) if name != "accuracy"]

    # --- targets of the loss

    def targets(self, examples: Sequence[EncodedExample]) -> list[int]:
        """Return the class of each example; for token classification of each word with a token."""
        return [cast(int, example.row.label) for example in examples]

    def loss_terms(self, examples: Sequence[EncodedExample]) -> int:
        """Return of how many equal parts the loss of some examples is the sum."""
        return len(examples)

    def logits_per_sequence(self, *, one_logit: bool) -> int:
        """Return the number of logits that a task head gives a sequence, or each of its tokens.

        Args:
            one_logit: whether two classes share one logit.
        """
        del one_logit
        return len(self.labels)

    def count_stored_logits(self, *, one_logit: bool) -> int:
        """Return the number of logits that are stored of a row, if predictions are numbers.

        Args:
            one_logit: as for `logits_per_sequence`.
        """
        return self.logits_per_sequence(one_logit=one_logit)

    # --- predictions

    @abstractmethod
    def predictions(self, examples: Sequence[EncodedExample], logits: Values) -> Predictions:
        """Return one prediction per row, from the logits of the examples that the model read.

        Args:
            examples: the examples; a row may have several.
            logits: [examples, classes or choices]; [examples, 1] for regression and for two classes
                with one logit; [examples, 2, tokens] for spans; [examples, tags, tokens] for token
                classification.
        """

    def is_collapsed(self, predictions: Predictions) -> bool:
        """Return whether a model predicts the same for every row, or no finite number."""
        values = np.asarray(predictions)
        # Weights that are no longer finite predict nothing.
        if not np.isfinite(values).all():
            return True
        return len(values) > 1 and is_constant(values)

    def predicted_line(self, row: Row, prediction: Any, logits: list[float]) -> dict[str, Any]:
        """Return a line of `hifi predict`: `id`, `prediction` and for labels `probabilities` by label.

        Args:
            row: a row of the file.
            prediction: the label, the labels, the number or the answer, as people read it.
            logits: those of the prediction, as they are stored.
        """
        del logits
        return {"id": row.id, "prediction": prediction}

    def server_label(self, value: float, names: Sequence[str]) -> str:
        """Return a prediction as the server of a benchmark expects it, by the names of its labels."""
        return names[int(value)]

    # --- stored predictions

    def stored_label(self, row: Row) -> Any:
        """Return the label of a row as it stands beside a stored prediction."""
        return self.label_word(row.label)

    def row_of_stored(self, id: str, label: Any) -> Row:  # noqa: A002
        """Return what metrics read of a row, from its stored label; texts are not stored.

        Args:
            id: of the row.
            label: as `stored_label` returns it.

        Raises:
            UsageError: the task has no such label.
        """
        return Row(id, (), self.parse_label(label, self.labels))

    def predictions_of_stored(self, predictions: Sequence[Any]) -> Predictions:
        """Return predictions as metrics read them, from stored ones.

        Raises:
            UsageError: the task has no such label.
        """
        parsed = [self.parse_label(prediction, self.labels) for prediction in predictions]
        return np.array(parsed, dtype=np.float64)

    def contradicts_logits(self, predictions: Predictions, logits: list[Any]) -> NDArray[np.bool_]:
        """Return for each row whether the prediction cannot be that of its logits.

        Args:
            predictions: one per row.
            logits: as they are stored, a list per row.

        Returns:
            [rows]. Logits of answers and tags are stored for what was predicted alone, and contradict
            nothing.
        """
        del logits
        return np.zeros(len(predictions), dtype=bool)


def _indices_in(present: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """Return the place of each present label among the names.

    Raises:
        UnknownLabel: a label is not among them.
    """
    unknown = [name for name in present if name not in names]
    if unknown:
        raise UnknownLabel(f"unknown label '{unknown[0][:40]}'; the labels are {', '.join(names)}")
    return tuple(names.index(name) for name in present)


# --- one of several classes


class _OneOfSeveral(TaskKind):
    """Predict the class with the highest logit; on a tie the first."""

    predicts: ClassVar[tuple[Predicted, ...]] = ("class",)
    smooths_labels = True
    has_one_label = True

    @property
    def classes(self) -> list[str]:
        return [*self.labels]

    def predictions(self, examples: Sequence[EncodedExample], logits: Values) -> Predictions:
        del examples
        if logits.shape[1] == 1:
            # One logit is that of the second of two classes.
            return (logits[:, 0] > 0).astype(np.float64)
        return np.asarray(logits.argmax(-1), dtype=np.float64)

    def predicted_line(self, row: Row, prediction: Any, logits: list[float]) -> dict[str, Any]:
        from scipy.special import softmax

        if len(logits) == 1:
            # The sigmoid of z is the softmax of 0 and z.
            logits = [0.0, *logits]
        probabilities = _by_label(self.labels, softmax(np.array(logits)))
        return {"id": row.id, "prediction": prediction, "probabilities": probabilities}

    def contradicts_logits(self, predictions: Predictions, logits: list[Any]) -> NDArray[np.bool_]:
        """See `TaskKind`; a class must have the highest logit, or one of several equal ones."""
        values = np.array(logits, dtype=np.float64)
        classes = np.asarray(predictions).astype(int)
        if values.shape[1] == 1:
            return (values[:, 0] > 0) != (classes > 0)
        of_predicted = values[np.arange(len(values)), classes]
        return np.asarray(of_predicted < values.max(axis=1))


def _by_label(labels: Sequence[str], probabilities: Values) -> dict[str, float]:
    """Return the probability of each label, [labels], by the label's name."""
    return {label: float(value) for label, value in zip(labels, probabilities, strict=True)}


class Classification(_OneOfSeveral):
    """One class of each row."""

    formats = ("plain", "wic", "wsc", "multirc", "record")
    weights_classes = True
    problem_type = "single_label_classification"
    has_class_names = True

    def usual_metrics(self) -> list[str]:
        if len(self.labels) == 2:
            return ["accuracy", "f1", "matthews"]
        return ["accuracy", "f1_macro"]

    def logits_per_sequence(self, *, one_logit: bool) -> int:
        if one_logit and len(self.labels) == 2:
            return 1
        return len(self.labels)


class WordsInContext(Classification):
    """WiC: one class of a pair of texts, by the states of a target word in each."""

    encoding = "target words"
    reads_words = True


class AnswersToQuestions(Classification):
    """MultiRC: one class of each answer; the answers to a question can be measured together."""

    predicts = ("class", "question")

    def row_of_stored(self, id: str, label: Any) -> Row:  # noqa: A002
        """See `TaskKind`; the id of the question, which is not stored, stands before that of the answer."""
        question, _, _ = id.rpartition("-")
        return Row(id, (), self.parse_label(label, self.labels), group=question)


class BestCandidates(Classification):
    """ReCoRD: two classes of each candidate of a query, of which the most probable one is predicted."""

    predicts = ("class", "candidate")
    has_answers = True

    @property
    def classes(self) -> list[str]:
        """None: a row is a candidate, and which one is right depends on the others."""
        return []

    def count(self, rows: Sequence[Row]) -> int:
        """Return the number of queries."""
        return len({row.group for row in rows})

    def predictions(self, examples: Sequence[EncodedExample], logits: Values) -> Predictions:
        """Return 1 for the most probable candidate of each query (on a tie the first), 0 for others."""
        import pandas as pd

        scores = logits[:, -1]
        if logits.shape[1] == 2:
            # The difference of the logits orders candidates as their probabilities do.
            scores = scores - logits[:, 0]
        queries = [example.row.group for example in examples]
        chosen = pd.Series(scores).groupby(queries).idxmax()
        return np.isin(np.arange(len(examples)), chosen).astype(np.float64)

    def contradicts_logits(self, predictions: Predictions, logits: list[Any]) -> NDArray[np.bool_]:
        """See `TaskKind`; the logits of other candidates decide too, and contradict nothing."""
        del logits
        return np.zeros(len(predictions), dtype=bool)


class MultipleChoice(_OneOfSeveral):
    """One of several texts of each row."""

    formats = ("copa", "swag")
    reads_choices = True
    transformers_class = "AutoModelForMultipleChoice"
    pipeline = "multiple-choice"
    peft_task = None

    def logits_per_sequence(self, *, one_logit: bool) -> int:
        """Return 1: each choice is a sequence of its own."""
        del one_logit
        return 1

    def count_stored_logits(self, *, one_logit: bool) -> int:
        """Return the number of choices: each has its logit."""
        del one_logit
        return len(self.labels)


# --- any number of classes, and numbers


class MultiLabel(TaskKind):
    """Any number of classes of each row; a label is 0 or 1 of each class."""

    predicts = ("classes",)
    has_any_number_of_labels = True
    problem_type = "multi_label_classification"
    has_class_names = True

    def names_in(self, value: Any) -> list[str]:
        parts = list_in(value)
        if parts is None and isinstance(value, str):
            parts = value.split(self.label_separator)
        return _names_of_parts(value, parts)

    def parse_label(self, value: Any, names: Sequence[str]) -> Label:
        if value is None:
            raise IncompleteRow("label is empty")
        indices = _indices_in(self.names_in(value), names)
        # A label is 0 or 1 of each class, in label order.
        return tuple(int(index in indices) for index in range(len(names)))

    def label_word(self, label: Any) -> str | float | list[str] | None:
        if label is None:
            return None
        return [name for name, has_it in zip(self.labels, label, strict=True) if has_it]

    def usual_metrics(self) -> list[str]:
        return ["f1_micro", "f1_macro"]

    def predictions(self, examples: Sequence[EncodedExample], logits: Values) -> Predictions:
        """Return 1 for the classes with a positive logit: their probability is above one half."""
        del examples
        return (logits > 0).astype(np.float64)

    def predicted_line(self, row: Row, prediction: Any, logits: list[float]) -> dict[str, Any]:
        from scipy.special import expit

        probabilities = _by_label(self.labels, expit(logits))
        return {"id": row.id, "prediction": prediction, "probabilities": probabilities}

    def contradicts_logits(self, predictions: Predictions, logits: list[Any]) -> NDArray[np.bool_]:
        """See `TaskKind`; a class is predicted by the sign of its logit."""
        values = np.array(logits, dtype=np.float64)
        differs = (values > 0) != (np.asarray(predictions) > 0)
        return np.asarray(differs.any(axis=1))


class Regression(TaskKind):
    """A number of each row."""

    predicts = ("number",)
    number_type = float
    problem_type = "regression"
    has_one_label = True
    labels_are_numbers = True

    @property
    def has_right_number_of_labels(self) -> bool:
        return len(self.labels) == 1

    def parse_label(self, value: Any, names: Sequence[str]) -> Label:
        del names
        if is_missing(value):
            raise IncompleteRow("label is empty")
        number = as_number(value)
        low, high = self.value_range or (-math.inf, math.inf)
        if math.isfinite(number) and low <= number <= high:
            return number
        hint = ""
        # Benchmarks have a range. Data of the user's own have none, and their rows can be left out.
        if low == -math.inf:
            hint = "; missing=VALUE leaves such rows out"
        raise UsageError(
            f"the label '{label_name(value)[:40]}' is not a number in [{low:g}, {high:g}]{hint}"
        )

    def label_word(self, label: Any) -> str | float | list[str] | None:
        if label is None:
            return None
        return float(label)

    def usual_metrics(self) -> list[str]:
        return ["spearman", "pearson"]

    def predictions(self, examples: Sequence[EncodedExample], logits: Values) -> Predictions:
        del examples
        return np.asarray(logits[:, 0])

    def server_label(self, value: float, names: Sequence[str]) -> str:
        """Return the number with three decimals, within the range."""
        del names
        low, high = self.value_range or (value, value)
        # The sum with zero has no sign where the number is zero.
        return f"{min(max(value, low), high) + 0.0:z.3f}"

    def predictions_of_stored(self, predictions: Sequence[Any]) -> Predictions:
        """See `TaskKind`; a predicted number may be out of the range of labels."""
        return np.array(predictions, dtype=np.float64)

    def contradicts_logits(self, predictions: Predictions, logits: list[Any]) -> NDArray[np.bool_]:
        """See `TaskKind`; the number is the logit, but for rounding."""
        values = np.array(logits, dtype=np.float64)
        numbers = np.asarray(predictions)
        # A prediction is stored as float64, and its logit as float32.
        return np.asarray(~np.isclose(numbers, values[:, 0], rtol=1e-5, atol=1e-6))


# --- answers and tags


class _WithOutputs(TaskKind):
    """Predictions that are texts or lists of tags."""

    predicts_numbers = False
    reads_all_tokens = True

    def is_collapsed(self, predictions: Predictions) -> bool:
        outputs = cast(Sequence[Output], predictions)
        # All answers, or the tags of all words: a model that tags every word O has collapsed too.
        words = np.concatenate([np.atleast_1d(output.prediction) for output in outputs])
        return len(outputs) > 1 and len(set(words)) == 1

    def predictions_of_stored(self, predictions: Sequence[Any]) -> Predictions:
        return [Output(prediction, []) for prediction in predictions]


class AnswerSpan(_WithOutputs):
    """A part of a context as the answer to a question (SQuAD)."""

    formats = ("squad",)
    predicts = ("text",)
    has_answers = True
    encoding = "windows"
    transformers_class = "AutoModelForQuestionAnswering"
    pipeline = "question-answering"
    peft_task = "QUESTION_ANS"

    @property
    def has_right_number_of_labels(self) -> bool:
        return not self.labels

    def stored_label(self, row: Row) -> Any:
        """Return the accepted answers."""
        return [text for text, _ in row.answers]

    def row_of_stored(self, id: str, label: Any) -> Row:  # noqa: A002
        """See `TaskKind`; where an answer begins is not stored."""
        answers = tuple((text, -1) for text in label)
        return Row(id, (), None, answers=answers)

    def predictions(self, examples: Sequence[EncodedExample], logits: Values) -> Predictions:
        """Return for each row the valid answer with the highest sum of logits over all windows.

        Args:
            examples: the windows of all rows.
            logits: [windows, 2, tokens].

        Returns:
            One answer per row, in the order of the rows; if no span is valid, an empty answer with
            the logits of the first token.
        """
        best: dict[str, Output] = {}
        scores: dict[str, float] = {}
        for example, (starts, ends) in zip(examples, logits, strict=True):
            row_id = example.row.id
            if row_id not in best:
                best[row_id] = Output("", [float(starts[0]), float(ends[0])])
                scores[row_id] = -np.inf
            score, answer = _best_answer(example, starts, ends)
            if score > scores[row_id]:
                best[row_id] = answer
                scores[row_id] = score
        return [*best.values()]


def _best_answer(example: EncodedExample, starts: Values, ends: Values) -> tuple[float, Output]:
    """Return the score of the best answer in a window, -inf if no span is valid, and the answer.

    Args:
        example: the window.
        starts: the logit of each token as an answer's first one, [tokens].
        ends: the logit of each token as its last one, [tokens].
    """
    # Beyond the example's own tokens the batch is padded.
    tokens = len(example)
    # A stable order makes ties the same on every machine: the first of equal tokens comes first.
    firsts = np.argsort(-starts[:tokens], kind="stable")[:N_BEST]
    lasts = np.argsort(-ends[:tokens], kind="stable")[:N_BEST]
    is_inside = np.array([span != OUTSIDE for span in example.offsets])
    # Each of [firsts, lasts] is a span.
    lengths = lasts - firsts[:, None] + 1
    has_valid_length = (lengths > 0) & (lengths <= MAX_ANSWER_TOKENS)
    is_valid = has_valid_length & is_inside[firsts][:, None] & is_inside[lasts]
    scores = np.where(is_valid, starts[firsts][:, None] + ends[lasts], -np.inf)
    at, to = np.unravel_index(scores.argmax(), scores.shape)
    first = int(firsts[at])
    last = int(lasts[to])
    context = example.row.sequences[0][1]
    text = context[example.offsets[first][0] : example.offsets[last][1]]
    return scores[at, to], Output(text, [float(starts[first]), float(ends[last])])


class TokenClassification(_WithOutputs):
    """A tag of each word (named entities, parts of speech)."""

    formats = ("words",)
    predicts = ("tags",)
    encoding = "words"
    smooths_labels = True
    weights_classes = True
    transformers_class = "AutoModelForTokenClassification"
    pipeline = "token-classification"
    peft_task = "TOKEN_CLS"
    unit = "words"

    def names_in(self, value: Any) -> list[str]:
        parts = list_in(value)
        if parts is None and isinstance(value, str):
            parts = split_words(value)
        return _names_of_parts(value, parts)

    def parse_label(self, value: Any, names: Sequence[str]) -> Label:
        if value == [] or is_missing(value):
            raise IncompleteRow("label is empty")
        return _indices_in(self.names_in(value), names)

    def label_word(self, label: Any) -> str | float | list[str] | None:
        if label is None:
            return None
        return [self.labels[tag] for tag in label]

    def usual_metrics(self) -> list[str]:
        """See `TaskKind`; tags that are none of entities have only the accuracy of words."""
        if all(ENTITY_TAG.fullmatch(label) for label in self.labels):
            return super().usual_metrics()
        return ["word_accuracy"]

    def targets(self, examples: Sequence[EncodedExample]) -> list[int]:
        found = []
        for example in examples:
            tags = cast(Sequence[int], example.row.label)
            for token, tag in zip(example.word_tokens, tags, strict=True):
                if token != UNREAD:
                    found.append(tag)
        return found

    def loss_terms(self, examples: Sequence[EncodedExample]) -> int:
        """Return the number of words with a token; 1 if there is none, whose loss is 0."""
        return max(len(self.targets(examples)), 1)

    def predictions(self, examples: Sequence[EncodedExample], logits: Values) -> Predictions:
        """Return each word's tag with the highest logit at its first token; `O` if it has none."""
        outputs = []
        for example, values in zip(examples, logits, strict=True):
            tags = []
            of_tags = []
            for token in example.word_tokens:
                tag = NO_ENTITY
                logit = 0.0
                if token != UNREAD:
                    tag = self.labels[int(values[:, token].argmax())]
                    # Logits of all kinds are stored as float32.
                    logit = float(np.float32(values[:, token].max()))
                tags.append(tag)
                of_tags.append(logit)
            outputs.append(Output(tags, of_tags))
        return outputs

    def predicted_line(self, row: Row, prediction: Any, logits: list[float]) -> dict[str, Any]:
        """Return `id`, `tokens` and `tags`; the arguments are those of `TaskKind.predicted_line`."""
        del logits
        return {"id": row.id, "tokens": row.words, "tags": prediction}


def _names_of_parts(value: Any, parts: list[Any] | None) -> list[str]:
    """Return the names in the parts of a cell that has several labels; without parts it is one."""
    if parts is None:
        parts = [value]
    names = [label_name(part) for part in parts]
    return [name for name in names if name]


KINDS: dict[Kind, type[TaskKind]] = {
    "classification": Classification,
    "multi-label": MultiLabel,
    "regression": Regression,
    "multiple-choice": MultipleChoice,
    "span": AnswerSpan,
    "token-classification": TokenClassification,
}
# The formats whose rows change what their kind decides.
_OF_FORMATS: dict[str, type[TaskKind]] = {
    "wic": WordsInContext,
    "multirc": AnswersToQuestions,
    "record": BestCandidates,
}


def class_of(kind: Kind, record_format: str) -> type[TaskKind]:
    """Return the class of a task's kind; a format that does not fit the kind changes nothing."""
    of_kind = KINDS[kind]
    of_format = _OF_FORMATS.get(record_format, of_kind)
    if issubclass(of_format, of_kind):
        return of_format
    return of_kind
