"""A run whose method adds adapters of peft as a peft adapter directory."""

import warnings
from pathlib import Path
from typing import Any

import torch

from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.prepared_run import PreparedRun
from hifi_cli.runs.resources import ResourceCache

_TASK_TYPES = {  # none for choices
    "classification": "SEQ_CLS",
    "multi-label": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "span": "QUESTION_ANS",
    "token-classification": "TOKEN_CLS",
}


def is_exportable(prepared: PreparedRun) -> bool:
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


def export(prepared: PreparedRun, resources: ResourceCache, to: Path) -> None:
    """Write adapter and tokenizer so that `PeftModel.from_pretrained(base, to)` gives the run's logits.

    The pooler and the classifier, which our methods train and peft would leave frozen, are in it as `modules_to_save`.
    """
    from peft import get_peft_model

    config, encoder = prepared.runner.config, prepared.encoder
    untrained, pretrained = resources.encoder(config)
    base = config.backbone.hub or config.backbone.package or config.backbone.name  # no path of this machine
    plain: Any = untrained.model
    plain.name_or_path = base  # peft would write the path that the model was read from
    adapter: Any = prepared.method.peft_config(untrained)
    adapter.task_type = _TASK_TYPES.get(prepared.task_head.kind)
    adapter.base_model_name_or_path = base
    adapter.revision = config.backbone.revision
    adapter.modules_to_save = _head_modules(untrained)
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
        for name, value in prepared.method.trainable_parameters(encoder.model).items():
            parameters[name].copy_(value)
    model.save_pretrained(to, safe_serialization=True, save_embedding_layers=False)  # else it looks for the base model
    pretrained.tokenizer.save_pretrained(to)


def _head_modules(encoder: Encoder) -> list[str]:
    """The modules that make up the task head: `pooler` and what lies outside the backbone."""
    inside = f"{encoder.model.base_model_prefix}."
    return sorted({name.removeprefix(inside).split(".")[0] for name, _ in encoder.task_head_parameters()})
