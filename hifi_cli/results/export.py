"""Export a trained model: merged, as a plain Hugging Face directory, or as a peft adapter."""

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from hifi_cli.config import registry
from hifi_cli.config.sources import method_spec
from hifi_cli.errors import UsageError
from hifi_cli.files import atomic_path, command_line
from hifi_cli.models.task_heads import TRANSFORMERS_CLASSES
from hifi_cli.results.record import RunResult
from hifi_cli.training.data import PreparedRun, ResourceCache, reload, task_head_of

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
    with reload(run, resources) as (prepared, result):
        is_plain = prepared.method.mergeable and not task_head_of(prepared.config).is_own
        if not (is_plain if form == "hf" else fits_peft(prepared)):
            raise UsageError(
                f"--as {form}: no such model holds the task head or the modules of this run of"
                f" {result.method}: open the run itself with hifi_cli.open_model"
            )
        with atomic_path(to.resolve()) as folder:
            folder.mkdir()
            if form == "peft":
                write_peft(prepared, resources, folder)
            else:
                write_hf(prepared, folder)
            write_card(prepared, result, form, folder, name=to.resolve().name)


def write_hf(prepared: PreparedRun, to: Path) -> None:
    """Write the merged model and its tokenizer, for `from_pretrained` and `pipeline`."""
    prepared.method.merge(prepared.encoder)
    prepared.encoder.join_projections()
    model: Any = prepared.encoder.model
    model.config.problem_type = _PROBLEM.get(prepared.task.kind)
    model.save_pretrained(to, safe_serialization=True)
    # Other runs of the process use it too
    tokenizer = copy.deepcopy(prepared.pretrained.tokenizer)
    tokenizer.model_max_length = prepared.config.max_length
    tokenizer.save_pretrained(to)


def fits_peft(prepared: PreparedRun) -> bool:
    """Whether peft can hold the trained model: its own adapters, and a head of Hugging Face's own.

    peft's prefix tuning opens ours but computes something else: it hands the prefixes over as a
    cache, by whose length BERT-type encoders move the position ids on.
    """
    encoder = prepared.encoder
    if encoder.has_known_parts and encoder.module_names.fused:
        return False  # peft would look for three Linears where the file has one
    if task_head_of(prepared.config).is_own or prepared.config.start_from:
        return False
    from hifi_cli.methods.peft import Peft

    return isinstance(prepared.method, Peft) and not prepared.method.needs_heads


def write_peft(prepared: PreparedRun, resources: ResourceCache, to: Path) -> None:
    """Write adapter and tokenizer: `PeftModel.from_pretrained(base, to)` gives the run's logits.

    The pooler and the classifier, which our methods train and peft would leave frozen, are in it as
    `modules_to_save`.
    """
    from peft import get_peft_model

    config = prepared.config
    untrained, pretrained = resources.encoder(config)
    base = config.backbone.hub or config.backbone.package or config.backbone.name  # no path of this machine
    plain: Any = untrained.model
    plain.name_or_path = base  # peft would write the path that the model was read from
    method: Any = prepared.method
    adapter = method.peft_config(untrained)
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
            parameters[name].copy_(value)
    model.save_pretrained(to, safe_serialization=True, save_embedding_layers=False)  # else it looks for the base model
    pretrained.tokenizer.save_pretrained(to)


def write_card(prepared: PreparedRun, result: RunResult, form: str, to: Path, name: str) -> None:
    """Write README.md from a template, with the front matter that the Hugging Face hub reads.

    Args:
        name: what the directory is called in the end.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    task, config = prepared.task, prepared.config
    dataset = task.hub if task.hub and not Path(task.hub.id).is_dir() else None
    method, pipeline = method_spec(result.method), _PIPELINES.get(task.kind, task.kind)
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
        language=None if registry.user_file("tasks", result.task) else "en",
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
        weights=prepared.pretrained.weights_id,
    )
    card.save(to / "README.md")
