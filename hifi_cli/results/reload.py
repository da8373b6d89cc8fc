"""Rebuild a finished run's model from its backbone and its delta: to evaluate, to predict, to export."""

import copy
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors.torch import save_file
from scipy.special import expit, softmax
from torch import Tensor, nn

from hifi_cli.config import registry
from hifi_cli.config.run_config import BackboneConfig
from hifi_cli.config.sources import method_spec
from hifi_cli.errors import UsageError
from hifi_cli.files import atomic_path, command_line
from hifi_cli.models.encoder_files import locate
from hifi_cli.models.families import PROJECTIONS
from hifi_cli.models.task_heads import TRANSFORMERS_CLASSES
from hifi_cli.results.record import Prediction, RunDirectory, RunResult
from hifi_cli.tasks import file_formats, metrics, submission, task_spec
from hifi_cli.tasks.metrics import Predictions
from hifi_cli.tasks.rows import parse_rows
from hifi_cli.tasks.task_spec import Example, Row, Source, TaskSpec
from hifi_cli.training.data import PreparedRun, ResourceCache, load_splits, reload, task_head_of
from hifi_cli.training.loop import measure_reported
from hifi_cli.training.run import prediction_rows

_SCORE_TOLERANCE = 1e-6  # of scores from 0 to 1: less than the weight of one row of any task
_LOGIT_TOLERANCE = 1e-3  # other hardware sums in another order


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
    changed = [
        split
        for split in data
        if split.startswith("validation") and data[split] != result.data.get(split)
    ]
    # digests of schema 1 are of files; there the logits alone show whether the rows are the same
    if changed and result.schema_version > 1:
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
    reader = file_formats.reader_of(path)
    task = task.model_copy(update={"skip_incomplete": False})
    header = task.inputs if reader == "conll" else None
    has_quotes = reader == "tsv" and task.local.quotes
    records = file_formats.read(path, reader, header, quotes=has_quotes)
    return parse_rows(task, records, Source(), str(path), labelled=False)


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
        splits = [split for split in names if split == "test" or split in data.splits]
        for split in splits or ["test"]:
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
_BASE = "PATH-TO-THE-BASE-MODEL"  # stands in the card for a directory of this machine
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
    for name, parameter in prepared.encoder.model.named_parameters():
        if not parameter.isfinite().all():
            raise UsageError(f"the model of {run} is damaged: {name} is not finite; train it again")
    tokenizer = prepared.pretrained.tokenizer
    tokenizer.model_max_length = prepared.config.max_length
    with atomic_path(to.resolve()) as folder:
        folder.mkdir()
        tokenizer.save_pretrained(folder)
        if form == "peft":
            write_peft(prepared, folder)
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
    from hifi_cli.methods.peft import Peft

    if not isinstance(prepared.method, Peft) or prepared.method.needs_heads:
        return False
    if task_head_of(prepared.config).is_own or prepared.config.start_from:
        return False
    kind, options = prepared.method.adapter()
    # LoRA of slices of one Linear becomes one LoRA of it, if it is as Hu et al. have it
    others = ("use_dora", "lora_bias", "rank_pattern", "alpha_pattern")
    is_plain = options.get("init_lora_weights", True) is True and not any(map(options.get, others))
    return (kind.lower() == "lora" and is_plain) or not _fused_parts(prepared)[1]


def _fused_parts(prepared: PreparedRun) -> tuple[str, list[str]]:
    """Of a family with one Linear for query, key and value: its name, and which are adapted."""
    method: Any = prepared.method
    encoder = prepared.encoder
    fused = (encoder.has_known_parts and encoder.module_names.fused) or ""
    names = [name for name in method.target_modules(encoder) if fused and f".{fused}." in name]
    return fused, [part for part in PROJECTIONS if any(name.endswith(part) for name in names)]


def _join_lora(weights: dict[str, Tensor], adapter: Any, fused: str, parts: Sequence[str]) -> None:
    """Make LoRA of slices of the one Linear for query, key and value one LoRA of all of it.

    The updates B A of r rows of A each become one: the A below one another, each B in the rows of
    its slice and the columns of its A.

    Args:
        weights: of the adapters; changed in place, as `adapter` is.
    """
    first = f".{parts[0]}.lora_A.weight"
    for path in [name.removesuffix(first) for name in weights if name.endswith(first)]:
        of_a = [weights.pop(f"{path}.{part}.lora_A.weight") for part in parts]
        of_b = {part: weights.pop(f"{path}.{part}.lora_B.weight") for part in parts}
        no_column = of_b[parts[0]][:, :0]  # a slice without LoRA has its rows, zero, and no rank
        weights[f"{path}.lora_A.weight"] = torch.cat(of_a)
        weights[f"{path}.lora_B.weight"] = torch.block_diag(
            *(of_b.get(part, no_column) for part in PROJECTIONS)
        )
    names = {name for name in adapter.target_modules if name.rpartition(".")[2] not in parts}
    adapter.target_modules = {fused, *names}
    adapter.rank_pattern = {fused: adapter.r * len(parts)}
    growth = len(parts) ** 0.5 if adapter.use_rslora else len(parts)
    adapter.alpha_pattern = {fused: adapter.lora_alpha * growth}


def write_peft(prepared: PreparedRun, to: Path) -> None:
    """Write the adapter: `PeftModel.from_pretrained(base, to)` gives the run's logits.

    The pooler and the classifier, which our methods train and peft would leave frozen, are in it as
    `modules_to_save`.
    """
    from peft import get_peft_model_state_dict

    method: Any = prepared.method
    backbone, kind, model = prepared.config.backbone, prepared.task.kind, prepared.encoder.model
    adapter = copy.copy(method.tuner.peft_config["default"])
    as_peft_names: Any = nn.ModuleDict({"base_model": method.tuner})
    as_peft_names.peft_config = method.tuner.peft_config
    weights = get_peft_model_state_dict(as_peft_names, save_embedding_layers=False)
    head = prepared.encoder.task_head
    weights |= {f"base_model.model.{name}": value for name, value in head.items()}
    fused, parts = _fused_parts(prepared)
    if parts:
        _join_lora(weights, adapter, fused, parts)
    adapter.task_type = _PEFT_TASKS.get(_PIPELINES.get(kind, kind))
    # no path of this machine
    adapter.base_model_name_or_path = backbone.hub or backbone.package or backbone.name
    adapter.revision = backbone.revision
    inside = f"{model.base_model_prefix}."
    # the pooler and what lies outside the backbone
    adapter.modules_to_save = sorted({name.removeprefix(inside).split(".")[0] for name in head})
    adapter.inference_mode = True
    adapter.save_pretrained(to)
    # copies: layers of some adapters share a tensor, which safetensors refuses
    tensors = {name: value.detach().clone().contiguous() for name, value in weights.items()}
    save_file(tensors, to / "adapter_model.safetensors", metadata={"format": "pt"})


def write_card(prepared: PreparedRun, result: RunResult, form: str, to: Path, name: str) -> None:
    """Write README.md from a template, with the front matter that the Hugging Face hub reads.

    Args:
        name: what the directory is called in the end.
    """
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
    base = _base_card(config.backbone)
    data = ModelCardData(
        language=base.language if registry.own_file(config.task) else "en",
        license=base.license or "unknown",
        library_name="peft" if form == "peft" else "transformers",
        base_model=config.backbone.hub,
        datasets=[dataset.id] if dataset else None,
        metrics=sorted({score.metric_type for score in scores}),
        pipeline_tag=pipeline,
        tags=["hifi-cli", result.method, result.task],
        model_name=name,
        eval_results=scores,
    )
    own_backbone = Path(result.config["backbone"].get("path") or "")
    command = [
        _BASE if own_backbone.is_absolute() and Path(word).name == own_backbone.name else word
        for word in result.provenance["command"]
    ]
    card = ModelCard.from_template(
        data,
        template_path=str(_CARD),
        form=form,
        here=name,
        base=config.backbone.hub or _BASE,
        opener=TRANSFORMERS_CLASSES[task.kind],
        task=task,
        method=method,
        # The run may have another k than the method
        description=re.sub(r"\bk = \d+ ", "", method.description),
        config=config,
        result=result,
        command=command_line(command),
        weights=prepared.pretrained.backbone_weights,
    )
    card.save(to / "README.md")


def _base_card(backbone: BackboneConfig) -> Any:
    """The data of the backbone's own model card, as language and license; empty where it has none."""
    source, _ = locate(backbone)
    card = Path(source) / "README.md"
    with suppress(Exception):  # no card, no network (its errors have no common base class)
        return ModelCard.load(card if card.is_file() else source).data
    return ModelCardData()
