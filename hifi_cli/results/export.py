"""Export a trained model: as a plain Hugging Face directory, as a peft adapter, or as backbone and delta with its reader."""

import copy
import shutil
import warnings
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from hifi_cli.config.run_config import BackboneConfig, RunConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import atomic_directory
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.models import pretrained as backbones
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.results import model_card
from hifi_cli.results.directory import DELTA, RunDirectory
from hifi_cli.results.reload import reload
from hifi_cli.results.stored_file import StoredFile
from hifi_cli.training.data import ResourceCache
from hifi_cli.training.run import PreparedRun

METADATA = "hifi.json"
_PROBLEM = {  # by which a pipeline of transformers chooses between softmax, sigmoid and neither
    "regression": "regression",
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
}
_PEFT_TASKS = {  # none for choices
    "classification": "SEQ_CLS",
    "multi-label": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "span": "QUESTION_ANS",
    "token-classification": "TOKEN_CLS",
}


def export(run: Path, to: Path, form: str, resources: ResourceCache) -> None:
    """Write the model of a finished run with tokenizer and model card into a new directory.

    Args:
        form: `hf`, `peft` or `delta`.

    Raises:
        UsageError: this form cannot hold the model.
    """
    with reload(run, resources) as (prepared, result):
        method = result.method
        if form == "peft" and not fits_peft(prepared):
            raise UsageError(
                f"peft's format holds its own adapters with Hugging Face's own heads, not this run of {method}:"
                " export with --as hf or delta"
            )
        if form == "hf" and not (prepared.method.mergeable and not prepared.task_head.is_own):
            what = "the run's task head is one" if prepared.method.mergeable else f"method {method} adds modules"
            raise UsageError(f"{what} that no plain Hugging Face model has: export with --as delta, for hifi_cli.open_model")
        with atomic_directory(to.resolve()) as folder:
            if form == "delta":
                write_delta(prepared, RunDirectory(run).delta, folder)
            elif form == "peft":
                write_peft(prepared, resources, folder)
            else:
                write_hf(prepared, folder)
            model_card.write(prepared, result, form, folder, name=to.resolve().name)


def write_hf(prepared: PreparedRun, to: Path) -> None:
    """Write the merged model and its tokenizer, so that `from_pretrained(to)` and `pipeline(TASK, to)` open them."""
    prepared.method.merge(prepared.encoder)
    prepared.encoder.join_projections()
    model: Any = prepared.encoder.model
    model.config.problem_type = _PROBLEM.get(prepared.task_head.kind)
    model.save_pretrained(to, safe_serialization=True)
    tokenizer = copy.deepcopy(prepared.pretrained.tokenizer)  # other runs of the process use it too
    tokenizer.model_max_length = prepared.runner.config.max_length
    tokenizer.save_pretrained(to)


def fits_peft(prepared: PreparedRun) -> bool:
    """Whether peft can hold the trained model: its own adapters, and a head of Hugging Face's own.

    peft's prefix tuning opens ours but computes something else: it hands the prefixes over as a cache, by whose length
    BERT-type encoders move the position ids on.
    """
    encoder = prepared.encoder
    if encoder.has_known_parts and encoder.module_names.fused:
        return False  # peft would look for three Linears where the file has one
    if prepared.task_head.is_own or prepared.runner.config.start_from:
        return False
    return prepared.method.peft_config(encoder) is not None


def write_peft(prepared: PreparedRun, resources: ResourceCache, to: Path) -> None:
    """Write adapter and tokenizer so that `PeftModel.from_pretrained(base, to)` gives the run's logits.

    The pooler and the classifier, which our methods train and peft would leave frozen, are in it as `modules_to_save`.
    """
    from peft import get_peft_model

    config = prepared.runner.config
    untrained, pretrained = resources.encoder(config)
    base = config.backbone.hub or config.backbone.package or config.backbone.name  # no path of this machine
    plain: Any = untrained.model
    plain.name_or_path = base  # peft would write the path that the model was read from
    adapter: Any = prepared.method.peft_config(untrained)
    adapter.task_type = _PEFT_TASKS.get(prepared.task_head.kind)
    adapter.base_model_name_or_path = base
    adapter.revision = config.backbone.revision
    inside = f"{plain.base_model_prefix}."
    head = {name.removeprefix(inside).split(".")[0] for name, _ in untrained.task_head_parameters()}
    adapter.modules_to_save = sorted(head)  # the pooler and what lies outside the backbone
    adapter.inference_mode = True
    with warnings.catch_warnings():  # peft's notices to those who train next
        warnings.simplefilter("ignore")
        model: Any = get_peft_model(plain, adapter)
    parameters = {
        name.removeprefix("base_model.model.").replace(".modules_to_save.default.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".original_module." not in name
    }
    with torch.no_grad():
        for name, value in prepared.method.trainable_parameters(prepared.encoder.model).items():
            parameters[name].copy_(value)
    model.save_pretrained(to, safe_serialization=True, save_embedding_layers=False)  # else it looks for the base model
    pretrained.tokenizer.save_pretrained(to)


class ExportedModel(StoredFile):
    """hifi.json: how to put backbone and delta together; the configuration does not have all of `TaskHeadSpec`."""

    description: ClassVar[str] = "hifi.json of an exported model"
    remedy: ClassVar[str] = "export the run again"

    kind: str
    labels: list[str]
    reads_words: bool
    config: RunConfig
    missing_keys: list[str]


def write_delta(prepared: PreparedRun, delta: Path, to: Path) -> None:
    """Write backbone, tokenizer, delta and what `open_model` needs to put them together.

    There is no config.json at the top, so that transformers refuses the directory instead of opening the pretrained
    backbone without what training added to it.
    """
    config, head, pretrained = prepared.runner.config, prepared.task_head, prepared.pretrained
    backbone_model = Encoder(pretrained.model)
    backbone_model.join_projections()
    backbone_model.base.save_pretrained(to / "backbone", safe_serialization=True)  # type: ignore[operator]
    pretrained.tokenizer.save_pretrained(to / "backbone")
    shutil.copyfile(delta, to / DELTA)
    backbone = BackboneConfig(name=config.backbone.name)  # without its source: the directory has a copy
    ExportedModel(
        kind=head.kind,
        labels=list(head.labels),
        reads_words=head.reads_words,
        config=config.model_copy(update={"backbone": backbone}),
        missing_keys=pretrained.missing_keys,
    ).write(to / METADATA)


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
    config = exported.config
    task_head = TaskHeadSpec(exported.kind, tuple(exported.labels), exported.reads_words, config.task_head)
    backbone = BackboneConfig(name=config.backbone.name, path=str((directory / "backbone").resolve()))
    pretrained = backbones.load(backbone, task_head=task_head, dropout=config.dropout)
    backbones.initialize(pretrained.model, pretrained.missing_keys, config.seed)
    encoder = Encoder(pretrained.model)
    method = methods.attach(config, encoder, metadata.heads, exported.missing_keys)
    methods.load_final_delta(method, encoder, tensors)
    method.merge(encoder)
    return encoder.model.eval(), pretrained.tokenizer
