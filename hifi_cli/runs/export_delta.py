"""Export of a trained model that no plain Hugging Face model can hold (added modules, other task heads), and its reader."""

import shutil
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from hifi_cli.config.run_config import BackboneConfig, RunConfig
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.models import pretrained as backbones
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.records.run_directory import DELTA
from hifi_cli.records.stored_file import Record, StoredFile
from hifi_cli.runs.prepared_run import PreparedRun

METADATA = "hifi.json"


class ExportedTaskHead(Record):
    """The fields of `TaskHeadSpec` that the configuration does not have."""

    kind: str
    labels: list[str]
    reads_words: bool


class ExportedModel(StoredFile):
    """hifi.json: how to put backbone and delta together."""

    description: ClassVar[str] = "hifi.json of an exported model"
    remedy: ClassVar[str] = "export the run again"

    task_head: ExportedTaskHead
    config: RunConfig
    missing_keys: list[str]


def is_plain(prepared: PreparedRun) -> bool:
    """Whether transformers alone can hold the merged model."""
    return prepared.method.mergeable and not prepared.task_head.is_own


def export(prepared: PreparedRun, delta: Path, to: Path) -> None:
    """Write backbone, tokenizer, delta and what `open_model` needs to put them together.

    There is no config.json at the top, so that transformers refuses the directory instead of opening the pretrained
    backbone without what training added to it.
    """
    config = prepared.runner.config
    pretrained = prepared.inputs.pretrained
    backbone_model = Encoder(pretrained.model)
    backbone_model.join_projections()
    backbone_model.base.save_pretrained(to / "backbone", safe_serialization=True)  # type: ignore[operator]
    pretrained.tokenizer.save_pretrained(to / "backbone")
    shutil.copyfile(delta, to / DELTA)
    task_head = prepared.task_head
    backbone = BackboneConfig(name=config.backbone.name)  # without its source: the directory has a copy
    metadata = ExportedModel(
        task_head=ExportedTaskHead(kind=task_head.kind, labels=list(task_head.labels), reads_words=task_head.reads_words),
        config=config.model_copy(update={"backbone": backbone}),
        missing_keys=pretrained.missing_keys,
    )
    metadata.write(to / METADATA)


def open_model(directory: Path | str) -> tuple[nn.Module, Any]:
    """Open a directory that `hifi export --as delta` wrote.

    Returns:
        The model, in evaluation mode, called as Hugging Face's are (its output has `logits`), and its tokenizer.

    Raises:
        MissingError: it is no such directory.
        UsageError: a file is damaged, or the delta does not fit.
    """
    directory = Path(directory)
    exported = ExportedModel.read(directory / METADATA)
    tensors, metadata = deltas.load(directory / DELTA)
    config, head = exported.config, exported.task_head
    task_head = TaskHeadSpec(head.kind, tuple(head.labels), head.reads_words, config.task_head)
    backbone = BackboneConfig(name=config.backbone.name, path=str((directory / "backbone").resolve()))
    pretrained = backbones.load(backbone, task_head=task_head, dropout=config.dropout)
    backbones.initialize(pretrained.model, pretrained.missing_keys, config.seed)
    encoder = Encoder(pretrained.model)
    method = methods.attach(config, encoder, metadata.heads, exported.missing_keys)
    methods.load_final_delta(method, encoder, tensors)
    method.merge(encoder)
    return encoder.model.eval(), pretrained.tokenizer
