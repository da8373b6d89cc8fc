"""A trained model as a plain Hugging Face directory."""

from pathlib import Path
from typing import Any

from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec

_PROBLEM = {
    "regression": "regression",
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
}


def export(encoder: Encoder, tokenizer: Any, task_head: TaskHeadSpec, to: Path) -> None:
    """Write a merged model and its tokenizer, so that `from_pretrained(to)` and `pipeline(TASK, to)` open them."""
    encoder.join_projections()
    model: Any = encoder.model
    model.config.problem_type = _PROBLEM.get(task_head.kind)  # a pipeline chooses between softmax, sigmoid and neither by it
    model.save_pretrained(to, safe_serialization=True)
    tokenizer.save_pretrained(to)
