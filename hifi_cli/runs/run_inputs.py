"""What a run is made from, resolved once from its configuration; nothing below it reads a file."""

from dataclasses import dataclass

from hifi_cli.config.run_config import RunConfig
from hifi_cli.methods import base as methods
from hifi_cli.methods.base import Heads
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.pretrained import Pretrained
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.records.run_files import DataSource
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.splits import Splits, load_splits
from hifi_cli.tasks.task_spec import TaskSpec


@dataclass(frozen=True)
class ModelInputs:
    """What the model of a run is made from.

    Attributes:
        task: with the primary metric that the configuration names.
        encoder: the run's own copy of the pretrained model, with the task head that the run's seed draws.
        pretrained: the pretrained model, which several runs share, its tokenizer, missing keys and weights id.
        attention_heads: the heads that the method tunes; None for a method that needs none.
    """

    config: RunConfig
    task: TaskSpec
    task_head: TaskHeadSpec
    encoder: Encoder
    pretrained: Pretrained
    attention_heads: Heads | None

    @classmethod
    def resolve(cls, config: RunConfig, resources: ResourceCache, attention_heads: Heads | None) -> "ModelInputs":
        """Load the backbone; the attention heads are known, for example from the delta of a finished run."""
        encoder, pretrained = resources.encoder(config)
        return cls(config, resources.task_of(config), resources.task_head(config), encoder, pretrained, attention_heads)


@dataclass(frozen=True)
class RunInputs:
    """Everything that a run is made from."""

    model: ModelInputs
    splits: Splits
    data: DataSource

    @classmethod
    def resolve(cls, config: RunConfig, resources: ResourceCache) -> "RunInputs":
        """Select the attention heads, load the examples and the backbone.

        Raises:
            MissingError: data or weights are missing.
            UsageError: a setting does not fit the task or the backbone.
        """
        attention_heads = select_attention_heads(config, resources)
        splits = load_splits(config, resources)
        data = resources.rows(config.task)
        model = ModelInputs.resolve(config, resources, attention_heads)
        return cls(model, splits, DataSource(fingerprint=data.fingerprint, origin=data.origin))


def select_attention_heads(config: RunConfig, resources: ResourceCache) -> Heads | None:
    """The attention heads that a run tunes: given, or selected by their scores; None for a method that needs none."""
    if not methods.needs_heads(config):
        return None
    from hifi_cli.runs import head_selection

    return config.heads.given or head_selection.heads(config, resources)[0].heads
