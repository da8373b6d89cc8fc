"""The model card of an exported run: README.md from a template, with the front matter that the Hugging Face hub reads."""

import re
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.config.methods import method_spec
from hifi_cli.files import command_line
from hifi_cli.models.task_heads import TRANSFORMERS_CLASSES
from hifi_cli.results.record import RunResult
from hifi_cli.training.run import PreparedRun

_METRICS = {  # the hub's names
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "ner_f1": "f1",
    "ner_precision": "precision",
    "ner_recall": "recall",
    "word_accuracy": "accuracy",
}
_PIPELINES = {  # the hub's name of each kind of task
    "classification": "text-classification",
    "multi-label": "text-classification",
    "regression": "text-classification",
    "multiple-choice": "multiple-choice",
    "span": "question-answering",
    "token-classification": "token-classification",
}
_LIBRARIES = {"hf": "transformers", "peft": "peft", "delta": "hifi-cli"}
_TEMPLATE = Path(__file__).with_name("model_card.md.j2")


def write(prepared: PreparedRun, result: RunResult, form: str, to: Path, name: str) -> None:
    """Write README.md into an exported directory.

    Args:
        form: `hf`, `peft` or `delta`.
        name: what the directory is called in the end.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    task, config = prepared.task, prepared.runner.config
    is_shipped = registry.user_file("tasks", result.task) is None
    dataset = task.hub if task.hub and not Path(task.hub.id).is_dir() else None
    method, pipeline = method_spec(result.method), _PIPELINES[task.kind]
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
        language="en" if is_shipped else None,
        license="unknown",  # that of the base model and of the data decide it
        library_name=_LIBRARIES[form],
        base_model=config.backbone.hub,
        datasets=[dataset.id] if dataset else None,
        metrics=sorted({_METRICS.get(metric, metric) for metric in result.metrics}),
        pipeline_tag=pipeline,
        tags=["hifi-cli", result.method, result.task],
        model_name=name,
        eval_results=scores,
    )
    card = ModelCard.from_template(
        data,
        template_path=str(_TEMPLATE),
        form=form,
        here=name,
        opener=TRANSFORMERS_CLASSES[task.kind],
        task=task,
        method=method,
        description=re.sub(r"\bk = \d+ ", "", method.description),  # the run may have another k than the method
        config=config,
        result=result,
        command=command_line(result.provenance.command),
        weights=prepared.pretrained.weights_id,
    )
    card.save(to / "README.md")
