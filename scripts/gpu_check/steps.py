"""Milliseconds, rate, memory and busy share of a training step, beside transformers' Trainer and peft's LoRA in it."""

import time
from typing import Any

import torch
from rates import KINDS, peak
from setting import (
    PAD,
    Setting,
    batches_of,
    fresh_memory,
    new_trainer,
    random_examples,
    run_config,
    seconds_per_step,
    temporary_directory,
    wait_for,
)
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    TrainerCallback,
    TrainingArguments,
)
from transformers import Trainer as TransformersTrainer

from hifi_cli.tasks.encode import collate
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training.loop import Trainer
from hifi_cli.training.machine import tf32

METHODS = ("full-ft", "hifi-layerwise", "bitfit", "lora", "child-tuning-d", "diff-pruning")
TOKENS = (36, 128)
PRECISIONS = {
    "fp32": ["precision=fp32", "tf32=false"],
    "tf32": ["precision=fp32", "tf32=true"],
    "bf16": ["precision=bf16", "tf32=true"],
}
PADDED = "padding_free=false"


def measure(setting: Setting, device: torch.device, rates: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each program, precision and length; `padded_ms` is the same step with `padding_free=false`."""
    rows = []
    for tokens in TOKENS:
        for precision, keys in PRECISIONS.items():
            rivals = {
                rival: rival_step(rival, setting, device, tokens, precision)
                for rival in ("full-ft", "lora")
            }
            for method in METHODS:
                row = our_step(method, setting, device, tokens, rates, precision, keys)
                row["padded_ms"] = our_step(
                    method, setting, device, tokens, rates, precision, [*keys, PADDED]
                )["ms"]
                row["ratio_to_trainer"] = round(row["ms"] / rivals["full-ft"], 3)
                row["ratio_to_peft_lora"] = round(row["ms"] / rivals["lora"], 3)
                rows.append(row)
            rows += [
                {"program": f"Trainer, {rival}", "precision": precision, "tokens": tokens, "ms": ms}
                for rival, ms in rivals.items()
            ]
    return rows


def our_step(
    method: str,
    setting: Setting,
    device: torch.device,
    tokens: int,
    rates: dict[str, Any],
    precision: str,
    keys: list[str],
) -> dict[str, Any]:
    """Measure a method's step."""
    fresh_memory(device)
    trainer = new_trainer(run_config(method, setting, device, *keys), setting, tokens)
    seconds = seconds_per_step(trainer)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return {
        "program": method,
        "precision": precision,
        "tokens": tokens,
        "ms": round(1e3 * seconds, 3),
        "share_of_peak": round(model_flops(trainer) / seconds / peak(rates, precision), 3),
        "busy": busy_share(trainer, seconds),
        "memory_gb": round(memory / 1e9, 2),
    }


def model_flops(trainer: Trainer) -> float:
    """Operations that a step needs: products with the layers' matrices and attention, for real tokens only.

    The forward pass, the gradients of activations, and the gradients of the matrices that train.
    """
    model: Any = trainer.model
    layers = [
        (name, value)
        for name, value in model.named_parameters()
        if ".layer." in name and value.dim() == 2
    ]
    base = sum(
        value.numel() for name, value in layers if value.shape[0] >= model.config.hidden_size
    )
    trained = sum(value.numel() for _, value in layers if value.requires_grad)
    counts = [len(example) for example in trainer.splits.train]
    steps = len(counts) / trainer.config.batch_size
    attention = (
        4
        * sum(count**2 for count in counts)
        * model.config.hidden_size
        * model.config.num_hidden_layers
    )
    return (sum(counts) * (4 * base + 2 * trained) + 3 * attention) / steps


def busy_share(trainer: Trainer, seconds: float) -> float | None:
    """The fraction of a step in which the GPU computes; None on a CPU."""
    if trainer.runner.device.type != "cuda":
        return None
    batches = batches_of(trainer)[:4]
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for batch in batches:
            trainer.train_step(batch)
        wait_for(trainer.runner.device)
    kernels_us = sum(event.self_device_time_total for event in profiled.key_averages())
    return round(1e-6 * kernels_us / len(batches) / seconds, 3)


class _StepClock(TrainerCallback):
    """The time from the end of the second step to the end of the last one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
        if state.global_step in (2, state.max_steps):
            wait_for(self.device)
            now = time.perf_counter()
            self.start = now if state.global_step == 2 else self.start
            self.seconds = (now - self.start) / max(1, state.max_steps - 2)


def rival_step(
    rival: str, setting: Setting, device: torch.device, tokens: int, precision: str
) -> float:
    """Milliseconds of a step in transformers' Trainer: full fine-tuning, or peft's LoRA on query and value."""
    fresh_memory(device)
    torch.manual_seed(0)
    model: nn.Module = BertForSequenceClassification(BertConfig(**setting.shape))
    if rival == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model,
            LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"]),
        )
    examples = random_examples(tokens, setting.batch_size * setting.steps, 500)

    def batch_of(rows: list[Example]) -> dict[str, Tensor]:
        return {
            **collate(rows, PAD),
            "labels": torch.tensor([int(row.row.label or 0) for row in rows]),
        }

    clock = _StepClock(device)
    with temporary_directory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            max_steps=setting.steps,
            per_device_train_batch_size=setting.batch_size,
            bf16=KINDS[precision][0] == torch.bfloat16,
            use_cpu=device.type == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=device.type == "cuda",
        )
        rival_trainer = TransformersTrainer(
            model=model,
            args=arguments,
            train_dataset=examples,  # type: ignore[arg-type]
            data_collator=batch_of,
            callbacks=[clock],
        )
        rival_trainer.remove_callback(PrinterCallback)
        with tf32(precision != "fp32"):
            rival_trainer.train()
    return round(1e3 * clock.seconds, 3)
