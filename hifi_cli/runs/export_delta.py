"""A trained model in a directory of its own, for what no plain Hugging Face model can hold: added modules, other heads."""

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from hifi_cli.config.base import parse
from hifi_cli.config.run_config import BackboneConfig, RunConfig
from hifi_cli.files import read_with_checksum, with_checksum, write_json
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.models import encoder as encoders
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.records.run_directory import DELTA
from hifi_cli.runs.prepared_run import PreparedRun

SCHEMA = 2


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
    Encoder(pretrained.model).base.save_pretrained(to / "backbone", safe_serialization=True)  # type: ignore[operator]
    pretrained.tokenizer.save_pretrained(to / "backbone")
    shutil.copyfile(delta, to / DELTA)
    task_head = {
        "kind": prepared.task_head.kind,
        "labels": prepared.task_head.labels,
        "reads_words": prepared.task_head.reads_words,
    }
    alone = config.model_copy(update={"backbone": BackboneConfig(name=config.backbone.name)})  # it lies in `backbone`
    content = {
        "schema": SCHEMA,
        "task_head": task_head,
        "config": alone.model_dump(mode="json"),
        "missing_keys": pretrained.missing_keys,
    }
    write_json(to / "hifi.json", with_checksum(content))


def open_model(directory: Path | str) -> tuple[nn.Module, Any]:
    """Open a directory that `hifi export --format delta` wrote.

    Returns:
        The model, in evaluation mode, called as Hugging Face's are (its output has `logits`), and its tokenizer.

    Raises:
        MissingError: it is no such directory.
        UsageError: a file is damaged, or the delta does not fit.
        SchemaError: a file was written by a version with another layout.
    """
    directory = Path(directory)
    content = read_with_checksum(directory / "hifi.json", what="hifi.json of an exported model", schema=SCHEMA)
    tensors, metadata = deltas.load(directory / DELTA)
    config = parse(RunConfig, content["config"], str(directory / "hifi.json"))
    wanted = content["task_head"]
    task_head = TaskHeadSpec(wanted["kind"], tuple(wanted["labels"]), wanted["reads_words"], config.task_head)
    here = BackboneConfig(name=config.backbone.name, path=str((directory / "backbone").resolve()))
    pretrained = encoders.load(here, task_head=task_head, dropout=config.dropout)
    encoders.initialize(pretrained.model, pretrained.missing_keys, config.seed)
    encoder = Encoder(pretrained.model)
    method = methods.attach(config, encoder, metadata["heads"], content["missing_keys"])
    methods.load_final_delta(method, encoder, tensors)
    method.merge(encoder)
    return encoder.model.eval(), pretrained.tokenizer
