"""The heads of a run, as far as they are known without its weights: specification of the task head, attention heads."""

from hifi_cli.config.run_config import RunConfig
from hifi_cli.methods import base as methods
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.tasks.task_spec import TaskSpec


def task_head_spec(task: TaskSpec, config: RunConfig) -> TaskHeadSpec:
    """The head that a task requires, as configured."""
    return TaskHeadSpec(task.kind, tuple(task.labels), task.has_target_words, config.task_head)


def placeholder_heads(config: RunConfig, encoder: Encoder) -> methods.Heads | None:
    """The configured heads, or as many heads as would be chosen: sizes and costs do not depend on which; None without any."""
    if not methods.needs_heads(config) or config.heads.given:
        return config.heads.given
    lowest = encoder.num_layers // 2 if config.heads.strategy == "midtop" else 0
    return [list(range(config.heads.k)) if layer >= lowest else [] for layer in range(encoder.num_layers)]
