"""What a user would run otherwise: transformers' Trainer as its GLUE example sets it, and what is built on it."""

import tempfile
import time
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from work import BATCH_SIZE, EVAL_BATCH_SIZE, LEARNING_RATE, MAX_LENGTH, Work

from hifi_cli.models.pretrained import locate
from hifi_cli.tasks import task_spec


class _Clock(TrainerCallback):
    """The time from an epoch's first step to the end of its evaluation, without what happens before and after training."""

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self.began


def model_of(work: Work) -> nn.Module:
    """The encoder with the classifier that transformers puts on it."""
    source, _ = locate(work.config("full-ft").backbone)
    labels = len(task_spec.load(work.task).labels)
    return AutoModelForSequenceClassification.from_pretrained(source, num_labels=labels)


def epoch(work: Work, model: nn.Module, *, padded: bool = False, strategy: str = "random") -> float:
    """Seconds of one epoch and its evaluation in the Trainer.

    Args:
        padded: every sequence to the maximum, instead of to its batch's longest.
        strategy: the Trainer's `train_sampling_strategy`.
    """
    train, validation = (
        [{**example.sequences[0], "labels": example.row.label} for example in examples]
        for examples in (work.examples, work.validation)
    )
    tokenizer = work.resources.pretrained(work.config("full-ft")).tokenizer
    padding = {"padding": "max_length", "max_length": MAX_LENGTH} if padded else {}
    clock = _Clock()
    with tempfile.TemporaryDirectory() as directory:
        settings = TrainingArguments(
            output_dir=directory,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH_SIZE,
            per_device_eval_batch_size=EVAL_BATCH_SIZE,
            train_sampling_strategy=strategy,
            eval_strategy="epoch",
            learning_rate=LEARNING_RATE,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        collator = DataCollatorWithPadding(tokenizer, **padding)
        trainer = Trainer(
            model=model,
            args=settings,
            train_dataset=train,
            eval_dataset=validation,
            data_collator=collator,
            callbacks=[clock],
        )
        trainer.train()
    return clock.seconds


def padded(work: Work) -> float:
    """(a) Full fine-tuning, every sequence padded to 128."""
    return epoch(work, model_of(work), padded=True)


def dynamic(work: Work) -> float:
    """(b) Full fine-tuning, batches padded to their longest sequence."""
    return epoch(work, model_of(work))


def grouped(work: Work) -> float:
    """(e) As (b), batches grouped by length by the Trainer's own sampler."""
    return epoch(work, model_of(work), strategy="group_by_length")


def lora(work: Work) -> float:
    """(c) peft's LoRA on query and key, rank 8, with the classifier."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "key"])
    return epoch(work, get_peft_model(model_of(work), settings))


def masked(work: Work, heads_per_layer: int = 3) -> float:
    """(d) The rows of some heads train by masking the full gradients of W_Q, W_K and W_V, as the field's released code does."""
    model = model_of(work)
    model.base_model.requires_grad_(False)
    pooler = getattr(model.base_model, "pooler", None)
    if pooler is not None:
        pooler.requires_grad_(True)
    rows = heads_per_layer * model.config.hidden_size // model.config.num_attention_heads
    for name, parameter in model.named_parameters():
        if any(f".{part}." in name for part in ("query", "key", "value")):
            mask = torch.zeros_like(parameter)
            mask[:rows] = 1
            parameter.requires_grad_(True)
            parameter.register_hook(lambda gradient, mask=mask: gradient * mask)
    return epoch(work, model)
