"""Time, rate, launches and memory of a training step, beside transformers' Trainer and peft's LoRA in it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

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
from torch.utils.data import SequentialSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    TrainerCallback,
    TrainingArguments,
)
from transformers import Trainer as TransformersTrainer

from hifi_cli.models.bf16_weights import Bf16Weights
from hifi_cli.tasks.encode import collate
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training.device import tf32
from hifi_cli.training.loop import Trainer
from hifi_cli.training.step_graphs import StepGraphs

RECORDED = ("full-ft", "hifi-layerwise", "lora")
METHODS = ("full-ft", "hifi-layerwise", "lora", "bitfit", "child-tuning-d", "diff-pruning")
TOKENS = (11, 53)  # as CoLA and MRPC
PRECISIONS = {
    "fp32": ["precision=fp32", "tf32=false"],
    "tf32": ["precision=fp32", "tf32=true"],
    "bf16": ["precision=bf16", "tf32=true"],
}
LAYOUTS = {
    "varlen": ["kernels=auto", "record_steps=false"],
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
        for rival, layout in (("full-ft", "padded"), ("full-ft", "grouped"), ("lora", "padded")):
            about = {"step of": f"Trainer, {rival}", "layout": layout}
            measure = partial(rival_step, rival, setting, device, tokens, precision, layout)
            rows.append((about | {"precision": precision, "tokens": tokens}, measure))
        for layout, method in product(LAYOUTS, METHODS):
            # float32 with dropout has no attention without padding; the others show one layout
            if (precision == "bf16" or layout != "varlen") and (
                layout == "varlen" or method in RECORDED
            ):
                about = {"step of": method, "layout": layout}
                measure = partial(
                    our_step, method, layout, setting, device, tokens, precision, results
                )
                rows.append((about | {"precision": precision, "tokens": tokens}, measure))
    return rows


def graph_jobs(setting: Setting, device: torch.device, results: dict[str, Any]) -> list[Job]:
    """A row for each length and method, and one for a cuDNN rival, which plans each new shape."""
    rows: list[Job] = []
    for tokens, method in product(TOKENS, RECORDED):
        about = {"step of": method, "layout": "graphs", "precision": "bf16", "tokens": tokens}
        arguments = (method, "graphs", setting, device, tokens, "bf16", results)
        rows.append((about, partial(our_step, *arguments)))
    about = {"step of": "Trainer, full-ft", "layout": "cuDNN", "precision": "bf16", "tokens": 53}
    return [*rows, (about, partial(rival_step, "full-ft", setting, device, 53, "bf16", "cuDNN"))]


def lever_jobs(setting: Setting, device: torch.device) -> list[Job]:
    """A row for each length, method and lever of recorded steps in bf16 that is switched off.

    The first row of each has all levers. The losses of the others are compared with its losses.
    """
    rows: list[Job] = []
    for tokens, (method, levers) in product(TOKENS, LEVERS.items()):
        losses: dict[str, Tensor] = {}
        for lever in levers:
            about = {"step of": method, "without": lever, "tokens": tokens}
            measure = partial(step_without, lever, method, setting, device, tokens, losses)
            rows.append((about, measure))
    return rows


def step_without(
    lever: str,
    method: str,
    setting: Setting,
    device: torch.device,
    tokens: int,
    losses: dict[str, Tensor],
) -> dict[str, Any]:
    """Measure a recorded step without a lever.

    Args:
        losses: those of the rows of this method and length, by lever; the new ones are added.
    """
    fresh_memory(device)
    keys = [*PRECISIONS["bf16"], "kernels=auto"]
    with WITHOUT[lever]():
        trainer = new_trainer(run_config(method, setting, device, *keys), setting, tokens)
        start = [trainer.stage.step(batch) for batch in batches_of(trainer)]
        seconds, _ = seconds_per_step(trainer)
        kernels = profiled(trainer)
    graphs = len(trainer.stage.graphs.graphs) if trainer.stage.graphs else 0
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    losses[lever] = torch.stack(start).float().cpu()
    # A slice of the rows may lack the row with all levers.
    with_all = losses.get(ALL_LEVERS, losses[lever])
    error = float((losses[lever] / with_all - 1).abs().max())
    return {
        # FlashAttention adds gradients in any order.
        "ok": error < LOSS_TOLERANCE and (graphs > 0 or device.type == "cpu"),
        "ms": round(1e3 * seconds, 3),
        **kernels,
        "GB": round(memory / 1e9, 2),
        "losses": float(f"{error:.2e}"),
        "graphs": graphs,
    }


@contextmanager
def _added_gradients() -> Iterator[None]:
    """Gradients are set to 0 and added to, instead of written."""
    keep = StepGraphs.keep_gradients

    def add(graphs: StepGraphs, new: dict[nn.Parameter, Tensor], *, is_first: bool) -> None:
        if is_first and graphs.gradients:
            torch._foreach_zero_([*graphs.gradients.values()])
        keep(graphs, new, is_first=False)

    with patch.object(StepGraphs, "keep_gradients", add):
        yield


ALL_LEVERS = "-"
# The switches that turn a lever of recorded steps off.
WITHOUT: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    ALL_LEVERS: nullcontext,
    "copies of weights": lambda: patch.object(StepGraphs, "copies_weights", False),
    "rows written together": lambda: patch.object(Bf16Weights, "copy_tuned", lambda *_: None),
    "gradients written": _added_gradients,
}
LEVERS = {
    "full-ft": [ALL_LEVERS, "copies of weights", "gradients written"],
    "hifi-layerwise": [*WITHOUT],
    "lora": [ALL_LEVERS, "copies of weights"],
}
LOSS_TOLERANCE = 0.05


def profile_jobs(setting: Setting, device: torch.device, out: Path) -> list[Job]:
    """Where the time of a step goes: the longest kernels and the longest work of the host."""

    def measure(method: str) -> dict[str, Any]:
        fresh_memory(device)
        trainer = new_trainer(
            run_config(
                method, setting, device, "precision=bf16", "kernels=auto", "record_steps=false"
            ),
            setting,
            53,
        )
        batches = batches_of(trainer)[:4]
        for batch in batches * 2:
            trainer.train_step(batch)
        wait_for(device)
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * (device.type == "cuda"))]
        with profile(activities=kinds) as profiler:
            for batch in batches:
                trainer.train_step(batch)
            wait_for(device)
        sorts = ["self_cpu_time_total", *(["self_cuda_time_total"] * (device.type == "cuda"))]
        tables = [profiler.key_averages().table(sort_by=by, row_limit=18) for by in sorts]
        (out / f"profile-{method}.txt").write_text("\n".join(tables))
        return {}

    return [({"profiled": method}, partial(measure, method)) for method in RECORDED[:2]]


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
    keys = [*PRECISIONS[precision], *(LAYOUTS | {"graphs": ["kernels=auto"]})[layout]]
    trainer = new_trainer(run_config(method, setting, device, *keys), setting, tokens)
    seconds, host_seconds = seconds_per_step(trainer)
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    rivals = [
        row["ms"]
        for row in results.get("steps", []) + results.get("more-steps", [])
        if row["step of"] == "Trainer, full-ft"
        and (row["precision"], row["tokens"]) == (precision, tokens)
        and "ms" in row
    ]
    graphs = len(trainer.stage.graphs.graphs) if trainer.stage.graphs else 0
    rate = model_flops(trainer) / seconds
    highest_rate = peak(results.get("rates", []), precision)
    return {
        "ok": layout != "graphs" or graphs > 0 or device.type == "cpu",
        "ms": round(1e3 * seconds, 3),
        "host ms": round(1e3 * host_seconds, 3),
        **profiled(trainer),
        "of the measured peak": round(rate / highest_rate, 3) if highest_rate else None,
        "GB": round(memory / 1e9, 2),
        "/ Trainer": round(1e3 * seconds / min(rivals), 3) if rivals else None,
        "graphs": graphs,
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


class _InOrder(TransformersTrainer):
    """The same batches in both passes, so that the timed one meets no new shape."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


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
    rival: str, setting: Setting, device: torch.device, tokens: int, precision: str, layout: str
) -> dict[str, Any]:
    """A step in transformers' Trainer: full fine-tuning, or peft's LoRA on query and value.

    Args:
        cudnn: whether cuDNN may compute attention.
    """
    fresh_memory(device)
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(layout == "cuDNN")
    with device:
        model: nn.Module = BertForSequenceClassification(BertConfig(**setting.shape))
    if rival == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model,
            LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"]),
        )
    examples = random_examples(tokens, setting.batch_size * setting.steps, 500)
    if layout == "grouped":  # as group_by_length does, if all texts were one group
        examples.sort(key=len, reverse=True)

    def batch_of(rows: list[EncodedExample]) -> dict[str, Tensor]:
        return {
            **collate(rows, PAD, multiple=8),
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
        rival_trainer = _InOrder(
            model=model,
            args=arguments,
            train_dataset=examples,  # type: ignore[arg-type]
            data_collator=batch_of,
            callbacks=[clock],
        )
        rival_trainer.remove_callback(PrinterCallback)
        with tf32(precision != "fp32"):
            rival_trainer.train()
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return {"ms": round(1e3 * clock.seconds, 3), "GB": round(memory / 1e9, 2)}
