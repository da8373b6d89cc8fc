"""Rebuild a finished run's model from its backbone and its delta: to evaluate, to predict, to export."""

import json
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.special import expit, softmax
from torch import nn

from hifi_cli.config import registry
from hifi_cli.config.sources import method_spec
from hifi_cli.errors import UsageError
from hifi_cli.files import atomic_path, command_line, json_text
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import PROJECTIONS
from hifi_cli.models.task_heads import TRANSFORMERS_CLASSES
from hifi_cli.results.record import Prediction, RunDirectory, RunResult
from hifi_cli.tasks import metrics, submission, task_spec
from hifi_cli.tasks import rows as task_rows
from hifi_cli.tasks.metrics import Predictions
from hifi_cli.tasks.rows import RawRecord
from hifi_cli.tasks.task_from_data import READER_OF_SUFFIX
from hifi_cli.tasks.task_spec import Example, LocalFiles, Row, TaskSpec
from hifi_cli.training.data import PreparedRun, ResourceCache, load_splits, reload, task_head_of
from hifi_cli.training.loop import measure_reported
from hifi_cli.training.run import prediction_rows

_SCORE_TOLERANCE = 1e-6  # of scores from 0 to 1: less than the weight of one row of any task
_LOGIT_TOLERANCE = 1e-3  # other hardware sums in another order
Form = Literal["tsv", "csv", "jsonl", "json"]


def open_model(
    run: Path | str,
    *,
    results_dir: Path | str = "results",
    backbone: str | None = None,
    trust: bool = False,
) -> tuple[nn.Module, Any]:
    """Open the model of a finished run.

    Args:
        results_dir: holds the runs that the run started from.
        backbone: loaded instead of the one that the run names, which may lie elsewhere here.
        trust: whether code may run that the files of the run name.

    Returns:
        The model, in evaluation mode, called as Hugging Face's are (its output has `logits`), and
        its tokenizer.

    Raises:
        MissingError, UsageError, RunFailed: see `reload`.
    """
    resources = ResourceCache(Path(results_dir), backbone=backbone, trust=trust)
    prepared, _ = reload(Path(run), resources)
    prepared.method.merge(prepared.encoder)
    return prepared.encoder.model.eval(), prepared.pretrained.tokenizer


# --- evaluate again


@dataclass(frozen=True)
class Evaluation:
    """A finished run evaluated again.

    Attributes:
        compared: each metric now and as the run stored it; None where one side does not have it.
        largest_difference: between the logits.
        differing: what is not as the run stored it; the rounding of other hardware is allowed.
    """

    path: Path
    compared: dict[str, tuple[float | None, float | None]]
    largest_difference: float
    differing: list[str]


def evaluate(path: Path, resources: ResourceCache) -> Evaluation:
    """Predict the reported split again and compare with what the run stored.

    Raises:
        UsageError: the data are not those of the run; see also `reload`.
    """
    prepared, result = reload(path, resources)
    config = prepared.config
    data = resources.rows(config.task).fingerprint
    if any(
        data[split] != result.data.get(split) for split in data if split.startswith("validation")
    ):
        raise UsageError(
            f"the run in {path} was made on other validation data: restore them, or give --data-dir with them"
        )
    splits = load_splits(config, resources)
    scores, logits = measure_reported(prepared, splits)
    predictions = metrics.predictions_of(prepared.task, splits.reported, logits)
    rows = prediction_rows(prepared.task, splits.reported, logits, predictions)
    directory = RunDirectory(path)
    stored = directory.read_predictions()
    if [len(row.logits) for row in rows] != [len(row.logits) for row in stored]:
        raise UsageError(f"{directory.predictions} does not hold the predictions of this split")
    logits_now, logits_then = (
        np.concatenate([row.logits for row in lines]) for lines in (rows, stored)
    )
    difference = float(np.abs(logits_now - logits_then).max())
    primary = prepared.task.primary
    compared = {
        name: (scores.get(name), result.metrics.get(name)) for name in {**scores, **result.metrics}
    }
    kept = {f"{primary} of the kept epoch": (scores[primary], result.score(result.kept_score))}
    differing = [
        name
        for name, (now, then) in (compared | kept).items()
        if now is None or then is None or not abs(now - then) <= _SCORE_TOLERANCE
    ]
    if not difference <= _LOGIT_TOLERANCE:  # also if it is NaN
        differing.append("logits")
    return Evaluation(path, compared, difference, differing)


def _predict(
    prepared: PreparedRun, examples: list[Example]
) -> tuple[Predictions, list[Prediction]]:
    """What a model predicts of some examples, for metrics and as lines of predictions.jsonl."""
    logits = prepared.predict(examples)
    predictions = metrics.predictions_of(prepared.task, examples, logits)
    return predictions, prediction_rows(prepared.task, examples, logits, predictions)


# --- predict new texts


def predict(run: Path, file: Path, resources: ResourceCache) -> list[dict[str, Any]]:
    """A file's rows with what a finished run's model predicts of them.

    Args:
        file: has the task's input columns; other columns are not read. The id column, where the
            task has one and the file too, names the rows; else their numbers do.

    Returns:
        For each row `id`, `prediction` (a label, a list of labels, a number, or an answer's text)
        and, for labels, `probabilities` by label; for token classification `id`, `tokens`, `tags`.

    Raises:
        MissingError, UsageError, RunFailed: there is no usable run, or no usable file.
    """
    prepared, _ = reload(run, resources)
    config = prepared.config
    rows = read(prepared.task, file)
    _, predictions = _predict(prepared, resources.tokenize(config, rows, config.max_length))
    return [_as_dict(prepared.task, *pair) for pair in zip(rows, predictions, strict=True)]


def read(task: TaskSpec, path: Path) -> list[Row]:
    """The rows of a file, none left out; see `predict`.

    Raises:
        UsageError: its name does not say the format, or a column is missing or does not fit; the
            line is named.
    """
    reader = READER_OF_SUFFIX.get(path.suffix.lower())
    if reader is None:
        names = ", ".join(READER_OF_SUFFIX)
        raise UsageError(f"{path}: rename it so that it ends in {names}, as its format is")
    header = None
    if reader == "conll":
        header = task.local.header if task.local.reader == "conll" else task.inputs
    layout = LocalFiles(folder="", files={}, reader=reader, header=header)
    records = (
        _complete(task, record, at) for at, record in enumerate(task_rows.read(path, layout))
    )
    task = task.model_copy(update={"skip_incomplete": False})
    return task_rows.parse_rows(task, records, layout, str(path), labelled=False)


def _complete(task: TaskSpec, record: RawRecord, number: int) -> RawRecord:
    """Add to a new text's record the columns that a row requires; their values change nothing."""
    begin = str(record.values.get("context", ""))[:1]
    required: dict[str, dict[str, Any]] = {
        "squad": {"answers": {"text": [begin], "answer_start": [0]}},
        "multirc": {"idx": {"paragraph": number, "question": 0, "answer": 0}},
        "record": {"idx": {"passage": number, "query": number}},
    }
    return RawRecord(required.get(task.format, {}) | record.values, record.where)


def _as_dict(task: TaskSpec, row: Row, prediction: Prediction) -> dict[str, Any]:
    if task.kind == "token-classification":
        return {"id": row.id, "tokens": row.words, "tags": prediction.prediction}
    content = {"id": row.id, "prediction": prediction.prediction}
    if task.kind in ("regression", "span"):
        return content
    # one logit is that of the second of two classes
    logits = np.array(
        prediction.logits if len(prediction.logits) > 1 else [0.0, prediction.logits[0]]
    )
    values = expit(prediction.logits) if task.kind == "multi-label" else softmax(logits)
    return {**content, "probabilities": dict(zip(task.labels, map(float, values), strict=True))}


def as_text(predictions: Sequence[dict[str, Any]], form: Form) -> str:
    """Predictions as JSON lines, as a JSON list, or as columns: id, prediction, each label."""
    if form == "json":
        return json_text(predictions)
    if form == "jsonl":
        return "".join(
            json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions
        )
    frame = pd.DataFrame([{**row, **row.get("probabilities", {})} for row in predictions]).drop(
        columns="probabilities", errors="ignore"
    )
    for column in frame:  # several labels are joined by |, words and their tags by spaces
        separator = "|" if column == "prediction" else " "
        frame[column] = [
            separator.join(value) if isinstance(value, list) else value for value in frame[column]
        ]
    separator = "\t" if form == "tsv" else ","
    return str(frame.to_csv(sep=separator, index=False, float_format="%.6f", lineterminator="\n"))


# --- predict test splits


def predict_test(
    paths: Sequence[Path], resources: ResourceCache, submission_dir: Path | None = None
) -> list[Path]:
    """Predict the test splits of finished runs.

    Args:
        submission_dir: where the files for the benchmarks' servers are written too, and their zips
            once they are complete.

    Returns:
        The files written.

    Raises:
        MissingError: no run, no test rows, or a file of another task is missing.
        UsageError: the task has no submission, or the rows are not the official ones.
    """
    written, benchmarks = [], set()
    for path in paths:
        prepared, _ = reload(path, resources)
        config, task = prepared.config, prepared.task
        data = resources.rows(config.task)
        unlabelled = filterfalse(task_spec.is_labelled, task.local.files)
        names = submission.spec_of(task).files if submission_dir else unlabelled
        for split in [split for split in names if split == "test" or split in data.splits] or [
            "test"
        ]:
            rows = data.rows(split)
            predictions, lines = _predict(
                prepared, resources.examples(config, split, config.max_length)
            )
            written.append(RunDirectory(path).write_predictions(lines, split))
            if submission_dir:
                written.append(
                    submission.write(task, split, rows, np.asarray(predictions), submission_dir)
                )
                benchmarks.add(submission.spec_of(task).benchmark)
    if submission_dir:
        written += [submission.pack(benchmark, submission_dir) for benchmark in sorted(benchmarks)]
    return written


# --- export


_CARD = Path(__file__).with_name("model_card.md.j2")
_PROBLEM = {  # by which a pipeline of transformers chooses between softmax, sigmoid and neither
    "regression": "regression",
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
}
_PEFT_TASKS = {  # none for choices
    "text-classification": "SEQ_CLS",
    "question-answering": "QUESTION_ANS",
    "token-classification": "TOKEN_CLS",
}
_PIPELINES = {  # where the hub's name of a kind of task is another one
    "classification": "text-classification",
    "multi-label": "text-classification",
    "regression": "text-classification",
    "span": "question-answering",
}
_METRICS = {  # where the hub's name is another one
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "ner_f1": "f1",
    "ner_precision": "precision",
    "ner_recall": "recall",
    "word_accuracy": "accuracy",
}


def export(run: Path, to: Path, form: str, resources: ResourceCache) -> None:
    """Write the model of a finished run with tokenizer and model card into a new directory.

    Args:
        form: `hf` or `peft`.

    Raises:
        UsageError: this form cannot hold the model.
    """
    prepared, result = reload(run, resources)
    is_plain = prepared.method.mergeable and not task_head_of(prepared.config).is_own
    if not (is_plain if form == "hf" else fits_peft(prepared)):
        raise UsageError(
            f"--as {form}: no such model holds the task head or the modules of this run of"
            f" {result.method}: open the run itself with hifi_cli.open_model"
        )
    tokenizer = prepared.pretrained.tokenizer
    tokenizer.model_max_length = prepared.config.max_length
    with atomic_path(to.resolve()) as folder:
        folder.mkdir()
        tokenizer.save_pretrained(folder)
        if form == "peft":
            write_peft(prepared, resources, folder)
        else:
            write_hf(prepared, folder)
        write_card(prepared, result, form, folder, name=to.resolve().name)


def write_hf(prepared: PreparedRun, to: Path) -> None:
    """Write the merged model, for `from_pretrained` and `pipeline`."""
    prepared.method.merge(prepared.encoder)
    prepared.encoder.join_projections()
    model: Any = prepared.encoder.model
    model.config.problem_type = _PROBLEM.get(prepared.task.kind)
    model.save_pretrained(to, safe_serialization=True)


def fits_peft(prepared: PreparedRun) -> bool:
    """Whether peft can hold the trained model: its own adapters, and a head of Hugging Face's own.

    peft's prefix tuning opens ours but computes something else: it hands the prefixes over as a
    cache, by whose length BERT-type encoders move the position ids on.
    """
    if task_head_of(prepared.config).is_own or prepared.config.start_from:
        return False
    from hifi_cli.methods.peft import Peft

    if not isinstance(prepared.method, Peft) or prepared.method.needs_heads:
        return False
    kind, options = prepared.method.adapter()
    other = any(
        options.get(key) for key in ("use_dora", "lora_bias", "rank_pattern", "alpha_pattern")
    )
    is_plain_lora = (
        kind.lower() == "lora" and not other and options.get("init_lora_weights", True) is True
    )
    return is_plain_lora or not _fused_parts(
        prepared.encoder, prepared.method.target_modules(prepared.encoder)
    )


def _fused_parts(encoder: Encoder, modules: Iterable[str]) -> list[str]:
    """Which of query, key and value are adapted where the family has one Linear for all of them."""
    fused = encoder.module_names.fused if encoder.has_known_parts else None
    names = [name for name in modules if fused and f".{fused}." in name]
    return [part for part in PROJECTIONS if any(name.endswith(f".{part}") for name in names)]


def _stack(encoder: Encoder, adapter: Any) -> list[str]:
    """Let LoRA adapt the one Linear for query, key and value, of which a run adapts slices.

    The updates B A of r rows of A each become one: the A below one another, each B in the rows of
    its slice and the columns of its A.

    Returns:
        The slices, in the order of their A.
    """
    parts = _fused_parts(encoder, adapter.target_modules)
    encoder.join_projections()
    if parts:
        fused = encoder.module_names.fused
        slices = tuple(f".{fused}.{part}" for part in parts)
        modules = adapter.target_modules
        adapter.target_modules = {
            name.rpartition(".")[0] if name.endswith(slices) else name for name in modules
        }
        adapter.rank_pattern = {fused: adapter.r * len(parts)}
        adapter.alpha_pattern = {
            fused: adapter.lora_alpha * len(parts) ** (0.5 if adapter.use_rslora else 1)
        }
    return parts


def write_peft(prepared: PreparedRun, resources: ResourceCache, to: Path) -> None:
    """Write the adapter: `PeftModel.from_pretrained(base, to)` gives the run's logits.

    The pooler and the classifier, which our methods train and peft would leave frozen, are in it as
    `modules_to_save`.
    """
    from peft import get_peft_model

    config = prepared.config
    untrained, _ = resources.encoder(config)
    base = (
        config.backbone.hub or config.backbone.package or config.backbone.name
    )  # no path of this machine
    plain: Any = untrained.model
    plain.name_or_path = base  # peft would write the path that the model was read from
    method: Any = prepared.method
    adapter = method.peft_config(untrained)
    parts = _stack(untrained, adapter)
    kind = prepared.task.kind
    adapter.task_type = _PEFT_TASKS.get(_PIPELINES.get(kind, kind))
    adapter.base_model_name_or_path = base
    adapter.revision = config.backbone.revision
    inside = f"{plain.base_model_prefix}."
    head = {name.removeprefix(inside).split(".")[0] for name, _ in untrained.task_head_parameters()}
    adapter.modules_to_save = sorted(head)  # the pooler and what lies outside the backbone
    adapter.inference_mode = True
    with warnings.catch_warnings():  # peft's notices to those who train next
        warnings.simplefilter("ignore")
        model: Any = get_peft_model(plain, adapter)
    parameters = {
        name.removeprefix("base_model.model.").replace(".modules_to_save.default.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".original_module." not in name
    }
    with torch.no_grad():
        for name, value in prepared.method.trainable_parameters(prepared.encoder.model).items():
            module, _, matrix = name.partition(".lora_")
            owner, _, part = module.rpartition(".")
            if matrix and part in parts:
                ranks = slice(adapter.r * parts.index(part), adapter.r * (parts.index(part) + 1))
                rows = slice(
                    len(value) * PROJECTIONS.index(part), len(value) * (PROJECTIONS.index(part) + 1)
                )
                whole = parameters[f"{owner}.lora_{matrix}"]
                (whole[ranks] if matrix.startswith("A") else whole[rows, ranks]).copy_(value)
            else:
                parameters[name].copy_(value)
    model.save_pretrained(
        to, safe_serialization=True, save_embedding_layers=False
    )  # else it looks for the base model


def write_card(prepared: PreparedRun, result: RunResult, form: str, to: Path, name: str) -> None:
    """Write README.md from a template, with the front matter that the Hugging Face hub reads.

    Args:
        name: what the directory is called in the end.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    task, config = prepared.task, prepared.config
    dataset = task.hub if task.hub and not Path(task.hub.id).is_dir() else None
    method, pipeline = method_spec(config.method), _PIPELINES.get(task.kind, task.kind)
    scores = [
        EvalResult(
            task_type=pipeline,
            dataset_type=dataset.id if dataset else result.task,
            dataset_name=task.label,
            dataset_config=dataset.config if dataset else None,
            dataset_split=result.split,
            metric_type=_METRICS.get(metric, metric),
            metric_name=metric,
            metric_value=value,
        )
        for metric, value in result.metrics.items()
    ]
    data = ModelCardData(
        language=None if registry.own_file(config.task) else "en",
        license="unknown",  # that of the base model and of the data decide it
        library_name="peft" if form == "peft" else "transformers",
        base_model=config.backbone.hub,
        datasets=[dataset.id] if dataset else None,
        metrics=sorted({score.metric_type for score in scores}),
        pipeline_tag=pipeline,
        tags=["hifi-cli", result.method, result.task],
        model_name=name,
        eval_results=scores,
    )
    card = ModelCard.from_template(
        data,
        template_path=str(_CARD),
        form=form,
        here=name,
        opener=TRANSFORMERS_CLASSES[task.kind],
        task=task,
        method=method,
        # The run may have another k than the method
        description=re.sub(r"\bk = \d+ ", "", method.description),
        config=config,
        result=result,
        command=command_line(result.provenance.command),
        weights=prepared.pretrained.backbone_weights,
    )
    card.save(to / "README.md")
