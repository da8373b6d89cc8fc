"""A cache that the runs of one process share: backbones and rows are read once, texts are tokenized once."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import digest
from hifi_cli.models import cpu_kernels
from hifi_cli.models import pretrained as backbones
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.pretrained import Pretrained
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.tasks import data_sources, task_spec
from hifi_cli.tasks.encode import TokenizationSettings, tokenize
from hifi_cli.tasks.task_spec import Example, Row, Split, TaskData, TaskSpec
from hifi_cli.training.device import select_device, uses_bf16, uses_cpu_kernels
from hifi_cli.training.input_check import InputCheck


@dataclass
class ResourceCache:
    """Directories that all runs of a command share, and what was loaded from them so far.

    Attributes:
        input_check: compares finished runs with the present data and weights.
        backbone: loaded for finished runs instead of the one that each names, which may be elsewhere on this machine.
        trust: whether code may run that the files of a finished run name.
    """

    results_dir: Path
    data_dir: Path | None = None
    backbone: str | None = None
    trust: bool = False
    input_check: InputCheck = field(init=False)
    _rows: dict[str, TaskData] = field(default_factory=dict)
    _pretrained: dict[str, Pretrained] = field(default_factory=dict)
    _examples: dict[tuple[str, TokenizationSettings, Split], list[Example]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.input_check = InputCheck(self.data_dir)

    def task(self, name: str) -> TaskSpec:
        """Load a task's specification."""
        return task_spec.load(name)

    def task_of(self, config: RunConfig) -> TaskSpec:
        """Load a run's task, with the primary metric that its configuration names."""
        return self.task(config.task).with_primary(config.primary_metric)

    def use_data_dir(self, data_dir: Path | None) -> None:
        """Read all rows from another directory from now on."""
        if data_dir != self.data_dir:
            self.data_dir = data_dir
            self._rows.clear()
            self._examples.clear()
            self.input_check = InputCheck(data_dir)

    def rows(self, task: str) -> TaskData:
        """Load a task's rows."""
        spec = self.task(task)
        key = spec.model_dump_json()  # not the name: runs with their own YAML may give different tasks the same name
        if key not in self._rows:
            self._rows[key] = data_sources.load(spec, data_dir=self.data_dir)
        return self._rows[key]

    def has_rows(self, task: str) -> bool:
        """Whether a task's rows were loaded before."""
        return self.task(task).model_dump_json() in self._rows

    def fingerprint(self, task: str) -> dict[Split, str]:
        """Return what identifies each split: its file, or for a user's task its rows, as a user may read other columns."""
        data = self.rows(task)
        return data.rows_fingerprint if registry.user_file("tasks", task) else data.fingerprint

    def task_head(self, config: RunConfig) -> TaskHeadSpec:
        """Return what the task of a run requires of its head, as configured."""
        task = self.task(config.task)
        return TaskHeadSpec(task.kind, tuple(task.labels), task.has_target_words, config.task_head)

    def pretrained(self, config: RunConfig) -> Pretrained:
        """Load the backbone of a run with the head of its task."""
        task_head = self.task_head(config)
        kernels = f"{config.kernels} {config.precision} {config.device}"
        key = f"{config.backbone.model_dump_json()} {task_head} {config.dropout} {kernels} {config.start_from}"
        if key not in self._pretrained:
            start = None
            if config.start_from:
                from hifi_cli.training.finished_model import starting_weights

                start = starting_weights(config, self.results_dir, self.encoder, trust=self.trust)
            self._pretrained.clear()  # one at a time: large backbones do not fit in memory twice
            loaded = backbones.load(config.backbone, task_head=task_head, dropout=config.dropout)
            if start:
                weights_id = digest([loaded.weights_id, start.chain[0].delta_sha256], 64)
                loaded.start_from(start.weights, start.chain, weights_id)
            if uses_cpu_kernels(config):
                cpu_kernels.install(Encoder(loaded.model), bf16=uses_bf16(config.precision, select_device(config.device)))
            self._pretrained[key] = loaded
        return self._pretrained[key]

    def encoder(self, config: RunConfig) -> tuple[Encoder, Pretrained]:
        """Return the run's own copy of its backbone, with the task head that its seed draws."""
        pretrained = self.pretrained(config)
        model = copy.deepcopy(pretrained.model)
        backbones.initialize(model, pretrained.missing_keys, config.seed)
        return Encoder(model), pretrained

    def examples(self, config: RunConfig, split: Split, max_length: int, tokenizer: Any = None) -> list[Example]:
        """Tokenize a split.

        Args:
            tokenizer: the backbone's; None: it is loaded with its weights.
        """
        names = f"{self.task(config.task).model_dump_json()} {config.backbone.model_dump_json()}"
        key = (names, _tokenization_settings(config, max_length), split)
        if key not in self._examples:
            self._examples[key] = self.tokenize(config, self.rows(config.task).rows(split), max_length, tokenizer)
        return self._examples[key]

    def tokenize(self, config: RunConfig, rows: list[Row], max_length: int, tokenizer: Any = None) -> list[Example]:
        """Tokenize some rows; the result is not cached.

        Raises:
            UsageError: `max_length` lets a row have more tokens than the backbone has positions for.
        """
        settings, task = _tokenization_settings(config, max_length), self.task(config.task)
        if tokenizer:  # of a plan, which loads no model
            return tokenize(tokenizer, task, rows, settings)
        pretrained = self.pretrained(config)
        examples = tokenize(pretrained.tokenizer, task, rows, settings)
        longest, bound = max(map(len, examples), default=0), Encoder(pretrained.model).max_tokens
        if bound is not None and longest > bound:
            raise UsageError(
                f"max_length={max_length}: a row has {longest:,} tokens, and {config.backbone.name} has positions for"
                f" {bound:,}; set max_length={bound}"
            )
        return examples


def _tokenization_settings(config: RunConfig, max_length: int) -> TokenizationSettings:
    return TokenizationSettings(max_length, config.truncation, config.swap_texts, config.stride)
