"""Inputs of a run: its task, the task's rows, an encoder, and a tokenizer of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import digest
from hifi_cli.errors import UsageError
from hifi_cli.models.pretrained import Pretrained
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import tokenize
from hifi_cli.tasks.task_spec import EncodedExample, Row, Split, TaskData, TaskSpec
from hifi_cli.training.losses import check_loss

# Examples by what they were made from: the task's YAML, the digest of the split's rows, and the
# digest of the settings that decide tokens.
ExampleCache = dict[tuple[str, str, str], list[EncodedExample]]


def load_task(config: RunConfig) -> TaskSpec:
    """Load a run's task, and check the run's configuration against it.

    The task comes as its YAML has it. `prepare_run` gives it the primary metric that the
    configuration names: a task has one digest, whichever of its metrics a run reports.

    Raises:
        UsageError: the task has no such metric, its loss no such settings, or it has no classes to
            count shots of.
    """
    task = task_spec.load(config.task)
    # Only for its error: the task is returned as its YAML has it.
    task.with_primary(config.primary_metric)
    check_loss(task, config)
    if config.shots and not task.classes:
        raise UsageError(
            f"task {task.label} has no few-shot setting: shots are counted per class, and its rows"
            " have no class"
        )
    return task


def task_head_of(config: RunConfig, task: TaskSpec) -> TaskHeadSpec:
    """Return what a task requires of its task head, as configured."""
    return TaskHeadSpec(task.kind, task.rules, config.task_head)


@dataclass(frozen=True)
class RowTokenizer:
    """Makes examples of a task's rows, as a run's configuration says and its encoder requires.

    Attributes:
        pretrained: has the tokenizer, and the encoder that the tokens are for.
    """

    config: RunConfig
    task: TaskSpec
    pretrained: Pretrained

    def tokenize(self, rows: Sequence[Row], max_length: int | None = None) -> list[EncodedExample]:
        """Tokenize some rows.

        Args:
            max_length: tokens per example, by `scoring.max_length`; None: as the run has it.

        Raises:
            UsageError: a row has more tokens than the encoder has positions for, or a token that
                the encoder has no embedding of.
        """
        config = _with_length(self.config, max_length)
        key = "max_length" if max_length is None else "scoring.max_length"
        examples = tokenize(self.pretrained.tokenizer, self.task, rows, config, length_key=key)
        longest = max(map(len, examples), default=0)
        bound = self.pretrained.encoder.max_tokens
        if bound is not None and longest > bound:
            raise UsageError(
                f"{key}={config.max_length}: a row has {longest:,} tokens, and"
                f" {config.backbone.name} has positions for {bound:,}; set {key}={bound}"
            )
        check_vocabulary(self.pretrained, examples, config.backbone.name)
        return examples


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a run; runs of a command share all but the configuration.

    `Workspace.inputs` makes it.

    Attributes:
        task: as its YAML has it.
        data: the rows of every split.
        tokenizer: makes examples of rows.
        cache: examples of whole splits.
    """

    config: RunConfig
    task: TaskSpec
    data: TaskData
    tokenizer: RowTokenizer
    cache: ExampleCache

    @property
    def pretrained(self) -> Pretrained:
        """The encoder with the task head, from which the run takes a copy of its own."""
        return self.tokenizer.pretrained

    def examples(self, split: Split, max_length: int | None = None) -> list[EncodedExample]:
        """Return the examples of a whole split, which is tokenized once for all runs of a command.

        Args:
            max_length: as `RowTokenizer.tokenize` has it.

        Raises:
            MissingError: the data have no such split.
            UsageError: as `RowTokenizer.tokenize`.
        """
        rows = self.data.rows(split)
        config = _with_length(self.config, max_length)
        settings = digest(config.values_that_decide("tokens"))
        key = (self.task.model_dump_json(), self.data.fingerprint[split], settings)
        if key not in self.cache:
            self.cache[key] = self.tokenizer.tokenize(rows, max_length)
        return self.cache[key]


def _with_length(config: RunConfig, max_length: int | None) -> RunConfig:
    """Return a configuration with another `max_length`; None: as it is."""
    if max_length is None:
        return config
    return config.model_copy(update={"max_length": max_length})


def check_vocabulary(pretrained: Pretrained, examples: list[EncodedExample], name: str) -> None:
    """Refuse tokens that the word embedding has no row for.

    Args:
        name: of the backbone.

    Raises:
        UsageError: a token of the examples, or the token for padding, has none.
    """
    known = pretrained.encoder.vocabulary_size
    tokenizer = pretrained.tokenizer
    # The embedding has one row per token id, so the largest id decides.
    largest = tokenizer.pad_token_id
    for example in examples:
        for sequence in example.sequences:
            largest = max(largest, int(sequence["input_ids"].max(initial=0)))
    if known is not None and largest >= known:
        token = tokenizer.convert_ids_to_tokens(largest)
        raise UsageError(
            f"backbone {name}: its tokenizer has {len(tokenizer):,} tokens, and its weights have"
            f" embeddings for {known:,}: '{token}' has none; call"
            f" model.resize_token_embeddings({len(tokenizer)}) and save the model, or take the"
            " tokenizer that belongs to the weights"
        )
