"""A LoRA run as a peft adapter directory."""

import warnings
from pathlib import Path
from typing import Any

from hifi_cli.methods.lora import LoRA
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.prepared_run import PreparedRun
from hifi_cli.runs.resources import ResourceCache

_TASK_TYPES = {  # none for choices
    "classification": "SEQ_CLS",
    "multi-label": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "span": "QUESTION_ANS",
}


def fits(prepared: PreparedRun) -> bool:
    """Whether peft can hold the trained model: LoRA on a head of Hugging Face's own.

    peft's prefix tuning opens ours but computes something else: it hands the prefixes over as a cache, by whose length
    BERT-type encoders move the position ids on.
    """
    if not isinstance(prepared.method, LoRA) or prepared.task_head.is_own or prepared.runner.config.start_from:
        return False
    return prepared.encoder.module_names.fused is None  # else peft would look for three Linears where the file has one


def export(prepared: PreparedRun, resources: ResourceCache, to: Path) -> None:
    """Write adapter and tokenizer so that `PeftModel.from_pretrained(base, to)` gives the run's logits.

    The pooler and the classifier, which our LoRA trains and peft would leave frozen, are in it as `modules_to_save`.
    """
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    config, settings, encoder = prepared.runner.config, prepared.method.settings, prepared.encoder
    fresh, pretrained = resources.encoder(config)
    base = config.backbone.hub or config.backbone.package or config.backbone.name  # no path of this machine
    plain: Any = fresh.model
    plain.name_or_path = base  # peft would write the path that the model was read from
    adapter = LoraConfig(
        task_type=_TASK_TYPES.get(prepared.task_head.kind),
        base_model_name_or_path=base,
        revision=config.backbone.revision,
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=sorted(getattr(encoder.module_names, target) for target in settings.targets),
        modules_to_save=_head_modules(fresh),
        inference_mode=True,
    )
    with warnings.catch_warnings():  # peft 0.21 reads a name that transformers 5.23 calls deprecated
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        model: Any = get_peft_model(plain, adapter)
    trained = prepared.method.trainable_parameters(encoder.model)
    state = {f"base_model.model.{name.replace('.default.', '.')}": value.detach() for name, value in trained.items()}
    report: Any = set_peft_model_state_dict(model, state)
    assert not report.unexpected_keys, report.unexpected_keys
    model.save_pretrained(to, safe_serialization=True, save_embedding_layers=False)  # else it looks for the base model
    pretrained.tokenizer.save_pretrained(to)


def _head_modules(encoder: Encoder) -> list[str]:
    """The modules that make up the task head: `pooler` and what lies outside the backbone."""
    inside = f"{encoder.model.base_model_prefix}."
    return sorted({name.removeprefix(inside).split(".")[0] for name, _ in encoder.task_head_parameters()})
