"""A trained model as a plain Hugging Face directory."""

import copy
from pathlib import Path
from typing import Any

from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec

_PROBLEM = {
    "regression": "regression",
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
}


def export(encoder: Encoder, tokenizer: Any, task_head: TaskHeadSpec, to: Path, *, max_length: int) -> None:
    """Write a merged model and its tokenizer, so that `from_pretrained(to)` and `pipeline(TASK, to)` open them.

    Args:
        max_length: the run's highest number of tokens, to which the tokenizer truncates when it is asked to.
    """
    encoder.join_projections()
    model: Any = encoder.model
    model.config.problem_type = _PROBLEM.get(task_head.kind)  # a pipeline chooses between softmax, sigmoid and neither by it
    model.save_pretrained(to, safe_serialization=True)
    tokenizer = copy.deepcopy(tokenizer)  # other runs of the process use it too
    tokenizer.model_max_length = max_length
    tokenizer.save_pretrained(to)
