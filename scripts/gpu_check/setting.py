"""What is measured, at full size and small, and the runs that it is measured on."""

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.heads import placeholder_heads
from hifi_cli.runs.prepare import build_and_prepare
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import EncodedExample, Row
from hifi_cli.training.device import set_up_device
from hifi_cli.training.loop import Splits, Trainer
from hifi_cli.training.runner import ModelRunner

PAD = {"input_ids": 0, "token_type_ids": 0}
Job = tuple[dict[str, Any], Callable[[], dict[str, Any]]]  # what a row is about, and the rest of it


@dataclass(frozen=True)
class Setting:
    """Sizes of a check.

    Attributes:
        shape: of the encoder whose steps are timed.
        batch_size: examples per step.
        steps: timed steps.
        products: shapes (m, k, n) of matrix products.
        copy_bytes: size of a timed copy.
    """

    shape: dict[str, int]
    batch_size: int
    steps: int
    products: tuple[tuple[int, int, int], ...]
    copy_bytes: int


LARGE = Setting(
    shape={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    batch_size=32,
    steps=20,
    products=((1152, 1024, 4096), (4096, 1024, 4096), (8192, 8192, 8192)),
    copy_bytes=2**30,
)
SMALL = Setting(
    shape={
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 500,
    },
    batch_size=8,
    steps=3,
    products=((64, 64, 64),),
    copy_bytes=2**20,
)


def wait_for(device: torch.device) -> None:
    """Wait until the device has computed everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fastest(
    call: Callable[[], object], device: torch.device, rounds: int = 5, calls: int = 5
) -> float:
    """Seconds of one call: the fastest of some rounds, after one to warm up."""
    call()
    seconds = []
    for _ in range(rounds):
        wait_for(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait_for(device)
        seconds.append((time.perf_counter() - start) / calls)
    return min(seconds)


def fresh_memory(device: torch.device) -> None:
    """Free what the measurement before left on the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def lengths(tokens: int, count: int) -> Any:
    """Tokens of each example: all 128, or about as scattered around the mean as those of GLUE's short tasks."""
    if tokens == 128:
        return np.full(count, 128)
    generator = np.random.default_rng(0)
    return np.clip(generator.gamma(5.0, tokens / 5.0, count), 5, 128).astype(int)


def random_examples(tokens: int, count: int, vocabulary: int) -> list[EncodedExample]:
    """Texts of random tokens with random labels."""
    generator = np.random.default_rng(1)
    return [
        EncodedExample(
            Row(id=str(index), sequences=(), label=int(generator.integers(2))),
            ({"input_ids": generator.integers(10, vocabulary, length, dtype=np.int32)},),
        )
        for index, length in enumerate(lengths(tokens, count))
    ]


def run_config(method: str, setting: Setting, device: torch.device, *overrides: str) -> RunConfig:
    """A run's configuration under HiFi's protocol."""
    changed = [
        f"device={device}",
        "kernels=torch",
        "precision=fp32",
        f"batch_size={setting.batch_size}",
        *overrides,
    ]
    return resolve(
        task="rte", method=method, backbone="bert-large", protocol="hifi", overrides=changed
    )


def new_trainer(config: RunConfig, setting: Setting, tokens: int) -> Trainer:
    """A trainer of a random BERT on random texts, in its first stage."""
    torch.manual_seed(0)
    with (device := set_up_device(config)):
        encoder = Encoder(BertForSequenceClassification(BertConfig(**setting.shape)))
    runner = ModelRunner(encoder, task_spec.load("rte"), config, PAD, device)
    method = build_and_prepare(config, encoder, placeholder_heads(config, encoder), [])
    runner.model.to(runner.device)
    vocabulary = int(encoder.model.config.vocab_size)  # type: ignore[union-attr,arg-type]
    examples = random_examples(tokens, setting.batch_size * setting.steps, vocabulary)
    gradient_batches = [examples[: setting.batch_size]]
    trainer = Trainer(runner, method, Splits(examples, gradient_batches=gradient_batches))
    trainer.model.train()
    trainer.begin_stage(0)
    return trainer


def batches_of(trainer: Trainer) -> list[list[EncodedExample]]:
    """The batches of an epoch."""
    examples, size = trainer.splits.train, trainer.config.batch_size
    return [examples[start : start + size] for start in range(0, len(examples), size)]


def seconds_per_step(trainer: Trainer) -> tuple[float, float]:
    """The mean time of the steps of an epoch, and of the host's work for them, once all is warm."""
    batches = batches_of(trainer)
    for batch in batches * (
        3 if trainer.stage.graphs else 1
    ):  # the third time, a graph is recorded
        trainer.train_step(batch)
    wait_for(trainer.runner.device)
    start = time.perf_counter()
    for batch in batches:
        trainer.train_step(batch)
    launched = time.perf_counter()
    wait_for(trainer.runner.device)
    return (time.perf_counter() - start) / len(batches), (launched - start) / len(batches)


def temporary_directory() -> "tempfile.TemporaryDirectory[str]":
    """A directory that is removed after use."""
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


def results_of(directory: str) -> Path:
    """The results directory in a temporary one."""
    return Path(directory) / "results"
