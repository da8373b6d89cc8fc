"""Time, rate, launches and memory of a training step, beside transformers' Trainer and peft's LoRA in it."""

import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from rates import KINDS, peak
from setting import (
    PAD,
    Job,
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

METHODS = ("full-ft", "hifi-layerwise", "lora", "bitfit", "child-tuning-d", "diff-pruning")
TOKENS = (36, 128)
PRECISIONS = {
    "fp32": ["precision=fp32", "tf32=false"],
    "tf32": ["precision=fp32", "tf32=true"],
    "bf16": ["precision=bf16", "tf32=true"],
}
LAYOUTS = {
    "graphs": ["kernels=graphs"],
    "varlen": ["kernels=auto"],
    "packed": ["kernels=torch"],
    "padded": ["kernels=torch", "padding_free=false"],
}


def jobs(
    setting: Setting, device: torch.device, precisions: Sequence[str], results: dict[str, Any]
) -> list[Job]:
    """A row for each precision, length, program and layout; the rivals come first, for the ratios.

    Args:
        results: the rows measured so far, by part.
    """
    rows: list[Job] = []
    for precision, tokens in product(precisions, TOKENS):
        for rival, cudnn in (("full-ft", False), ("full-ft", True), ("lora", False)):
            about = {"step of": f"Trainer, {rival}", "layout": "cuDNN" if cudnn else "padded"}
            measure = partial(rival_step, rival, setting, device, tokens, precision, cudnn)
            rows.append((about | {"precision": precision, "tokens": tokens}, measure))
        for method, layout in product(METHODS, LAYOUTS):
            # float32 with dropout has no attention without padding, and so no graphs
            if precision == "bf16" or layout in ("packed", "padded"):
                about = {"step of": method, "layout": layout}
                measure = partial(
                    our_step, method, layout, setting, device, tokens, precision, results
                )
                rows.append((about | {"precision": precision, "tokens": tokens}, measure))
    return rows


def our_step(
    method: str,
    layout: str,
    setting: Setting,
    device: torch.device,
    tokens: int,
    precision: str,
    results: dict[str, Any],
) -> dict[str, Any]:
    """Measure a method's step."""
    fresh_memory(device)
    keys = [*PRECISIONS[precision], *LAYOUTS[layout]]
    trainer = new_trainer(run_config(method, setting, device, *keys), setting, tokens)
    seconds, host_seconds = seconds_per_step(trainer)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    rivals = [
        row["ms"]
        for row in results.get("steps", []) + results.get("more steps", [])
        if row["step of"] == "Trainer, full-ft"
        and (row["precision"], row["tokens"]) == (precision, tokens)
        and "ms" in row
    ]
    return {
        "ms": round(1e3 * seconds, 3),
        "host ms": round(1e3 * host_seconds, 3),
        **profiled(trainer),
        "of the measured peak": round(
            model_flops(trainer) / seconds / peak(results["rates"], precision), 3
        ),
        "GB": round(memory / 1e9, 2),
        "/ Trainer": round(1e3 * seconds / min(rivals), 3) if rivals else None,
        "graphs": len(trainer.graphs.graphs) if trainer.graphs else 0,
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


def profiled(trainer: Trainer) -> dict[str, Any]:
    """Milliseconds in which the GPU computes in a step, and launches; nothing on a CPU."""
    if trainer.runner.device.type != "cuda":
        return {}
    batches = batches_of(trainer)[:4]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for batch in batches:
            trainer.train_step(batch)
        wait_for(trainer.runner.device)
    events = profiler.key_averages()
    computing_us = sum(event.self_device_time_total for event in events)
    launches = sum(event.count for event in events if "Launch" in event.key)
    return {
        "GPU ms": round(1e-3 * computing_us / len(batches), 3),
        "launches": launches // len(batches),
    }


class _StepClock(TrainerCallback):
    """The mean time of the steps of the second half."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
        half = state.max_steps // 2
        if state.global_step in (half, state.max_steps):
            wait_for(self.device)
            now = time.perf_counter()
            self.start = now if state.global_step == half else self.start
            self.seconds = (now - self.start) / half


def rival_step(
    rival: str, setting: Setting, device: torch.device, tokens: int, precision: str, cudnn: bool
) -> dict[str, Any]:
    """A step in transformers' Trainer: full fine-tuning, or peft's LoRA on query and value.

    Args:
        cudnn: whether cuDNN may compute attention.
    """
    fresh_memory(device)
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    with device:
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
            max_steps=2 * setting.steps,
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
    return {"ms": round(1e3 * clock.seconds, 3)}
