"""What the runs of one process share: the backbone is read once, rows are read once, texts are tokenized once."""

import copy
from dataclasses import dataclass, field
from pathlib import Path

from hifi_cli.config.run_config import RunConfig
from hifi_cli.models import cpu_kernels
from hifi_cli.models import encoder as encoders
from hifi_cli.models.encoder import Encoder, Pretrained
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.runs.model_runner import uses_bf16, uses_cpu_kernels
from hifi_cli.tasks import data_sources, task_spec
from hifi_cli.tasks.task_spec import Row, Split, TaskData, TaskSpec
from hifi_cli.tasks.tokenization import Example, TokenizationSettings, tokenize


@dataclass
class ResourceCache:
    """What the command line says of all runs, and what was read so far.

    Attributes:
        backbone: loaded for finished runs instead of the one that each names: it may lie elsewhere on this machine.
        trust: whether code that a finished run's own files name may run.
    """

    results_dir: Path
    data_dir: Path | None = None
    backbone: str | None = None
    trust: bool = False
    _rows: dict[str, TaskData] = field(default_factory=dict)
    _pretrained: dict[str, Pretrained] = field(default_factory=dict)
    _examples: dict[tuple[str, TokenizationSettings, Split], list[Example]] = field(default_factory=dict)

    def task(self, name: str) -> TaskSpec:
        """A task's description."""
        return task_spec.load(name)

    def task_of(self, config: RunConfig) -> TaskSpec:
        """A run's task, with the primary metric that its configuration names."""
        return self.task(config.task).with_primary(config.primary_metric)

    def rows(self, task: str) -> TaskData:
        """A task's rows."""
        description = self.task(task)
        key = description.model_dump_json()  # not the name: runs with a YAML of their own may call different tasks the same
        if key not in self._rows:
            self._rows[key] = data_sources.load(description, data_dir=self.data_dir, results_dir=self.results_dir)
        return self._rows[key]

    def task_head(self, config: RunConfig) -> TaskHeadSpec:
        """The head of a run's task."""
        task = self.task(config.task)
        return TaskHeadSpec(task.kind, tuple(task.labels), task.has_target_words, config.task_head)

    def pretrained(self, config: RunConfig) -> Pretrained:
        """A run's backbone with the head of its task."""
        task_head = self.task_head(config)
        key = f"{config.backbone.model_dump_json()} {task_head} {config.dropout} {config.kernels} {config.precision}"
        if key not in self._pretrained:
            self._pretrained.clear()  # one at a time: large backbones do not fit in memory twice
            loaded = encoders.load(config.backbone, task_head=task_head, dropout=config.dropout)
            if uses_cpu_kernels(config):
                cpu_kernels.install(Encoder(loaded.model), bf16=uses_bf16(config.precision))
            self._pretrained[key] = loaded
        return self._pretrained[key]

    def encoder(self, config: RunConfig) -> tuple[Encoder, Pretrained]:
        """A run's own copy of its backbone, the task head drawn from the run's seed."""
        pretrained = self.pretrained(config)
        model = copy.deepcopy(pretrained.model)
        encoders.initialize(model, pretrained.missing_keys, config.seed)
        return Encoder(model), pretrained

    def examples(self, config: RunConfig, split: Split, max_length: int) -> list[Example]:
        """A split's tokens."""
        names = f"{self.task(config.task).model_dump_json()} {config.backbone.model_dump_json()}"
        key = (names, _tokenization_settings(config, max_length), split)
        if key not in self._examples:
            self._examples[key] = self.tokenize(config, self.rows(config.task).rows(split), max_length)
        return self._examples[key]

    def tokenize(self, config: RunConfig, rows: list[Row], max_length: int) -> list[Example]:
        """The tokens of some rows, not kept."""
        task = self.task(config.task)
        tokenizer = self.pretrained(config).tokenizer
        return tokenize(tokenizer, task, rows, _tokenization_settings(config, max_length))


def _tokenization_settings(config: RunConfig, max_length: int) -> TokenizationSettings:
    return TokenizationSettings(max_length, config.truncation, config.swap_texts, config.stride)
