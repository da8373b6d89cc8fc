"""Measure what methods cost: what they add to a model (HiFi, table 1), and what training them takes (EH-FT, 4.3; HiFi, A.6).

Both are measured with the classes that runs use, on texts of random tokens, and stored.
"""

import logging
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hifi_cli.config.run_config import RunConfig
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.models.encoder import Encoder
from hifi_cli.records.cost_files import TRAINING_BATCH, ResultCosts, TrainingCosts
from hifi_cli.records.run_directory import DELTA
from hifi_cli.runs import head_selection, provenance
from hifi_cli.runs.device import device_name, select_device
from hifi_cli.runs.head_measures import MEASURES, measure_heads
from hifi_cli.runs.model_runner import ModelRunner
from hifi_cli.runs.prepared_run import ModelInputs, PreparedRun, prepare
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.trainer import Trainer
from hifi_cli.scoring.ranking import choose_heads
from hifi_cli.tasks.batches import padding_values
from hifi_cli.tasks.task_spec import Row
from hifi_cli.tasks.tokenization import Example

logger = logging.getLogger("hifi")

TOKENS = 64
ROUNDS = 7
LATENCY_BATCH, LATENCY_PASSES = 16, 3
TRAINING_STEPS = 2
TRAIN_ROWS = 3668  # of MRPC: the length of the run that scoring is a fraction of


def result_costs(method: str, *, protocol: str, backbone: str, results_dir: Path) -> ResultCosts:
    """The costs of a method's result on a backbone: read, or measured once and stored."""
    config = ResultCosts.config_of(method, protocol=protocol, backbone=backbone)
    path = ResultCosts.path_of(config, results_dir, _gpu(config))
    if not path.is_file():
        logger.info(f"measuring {method} on {path.parent.name}")
        measure_result(config).write(path)
    return ResultCosts.read(path)


def training_costs(
    method: str, *, reference: str, protocol: str, backbone: str, results_dir: Path, precision: str = "fp32"
) -> TrainingCosts:
    """The costs of training by a method, relative to a reference method: read, or measured once and stored."""
    config, reference_config = (
        TrainingCosts.config_of(name, protocol=protocol, backbone=backbone, precision=precision) for name in (method, reference)
    )
    path = TrainingCosts.path_of(config, reference, results_dir, _gpu(config))
    if not path.is_file():
        logger.info(f"measuring training by {method} on {path.parent.name}")
        measure_in_subprocess(config, reference_config).write(path)
    return TrainingCosts.read(path)


def _gpu(config: RunConfig) -> str | None:
    """Return the name of the GPU that a configuration runs on; None for a CPU."""
    device = select_device(config.device)
    return None if device.type == "cpu" else device_name(device)


def measure_result(config: RunConfig) -> ResultCosts:
    """Measure the result of a method; its weights are those before training, which changes no cost."""
    with tempfile.TemporaryDirectory() as directory:
        resources = ResourceCache(Path(directory))
        prepared = _prepare(config, resources)
        encoder, method = prepared.encoder, prepared.method
        plain = ModelRunner(resources.encoder(config)[0], prepared.task, config, prepared.runner.pad)
        plain_names = dict(plain.model.named_parameters()).keys()
        trainer = _trainer(prepared, random_examples(LATENCY_BATCH, encoder))
        added_in_training = 0
        for number, phase in enumerate(trainer.phases):
            trainer.setup_phase(number)
            if not phase.method.trains_subparameters:
                trained = phase.method.trainable_parameters(encoder.model)
                new = sum(value.numel() for name, value in trained.items() if name not in plain_names)
                added_in_training = max(added_in_training, new)
        prepared.runner.unwrap()
        tensors = method.delta(encoder.model)
        stored_bytes = _stored_bytes(prepared, tensors, Path(directory))
        with torch.no_grad():
            method.load_delta(encoder.model, tensors)
        method.merge(encoder)
    total = plain.encoder.num_parameters
    return ResultCosts(
        method=config.method,
        added_in_training=added_in_training,
        added_in_result=encoder.num_parameters - total,
        modules_added=len(_modules(encoder.model) - _modules(plain.model)),
        latency=statistics.median(latencies := _latencies(prepared.runner, plain)),
        latency_rounds=latencies,
        stored_bytes=stored_bytes,
        plain_bytes=4 * total,
        total=total,
        provenance=provenance.describe(plain.device),
    )


def measure_in_subprocess(config: RunConfig, reference: RunConfig) -> TrainingCosts:
    """Measure training in a new process, whose memory holds nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure_training, config, reference, torch.get_num_threads()).result()


def measure_training(config: RunConfig, reference: RunConfig, threads: int) -> TrainingCosts:
    """Measure training by a configuration and by its reference."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as directory:
        resources = ResourceCache(Path(directory))
        memory_bytes, stored_bytes = _memory_and_storage(config, resources, Path(directory))
        step_ratios, step_s = _step_times(config, reference, resources)
        scoring_s = _scoring_seconds(config, resources) if methods.needs_heads(config) else 0.0
    run_s = config.epochs * math.ceil(TRAIN_ROWS / TRAINING_BATCH) * step_s
    return TrainingCosts(
        method=config.method,
        step_ratio=statistics.median(step_ratios),
        step_ratio_rounds=step_ratios,
        step_s=step_s,
        memory_bytes=memory_bytes,
        stored_bytes=stored_bytes,
        scoring_s=scoring_s,
        scoring_fraction=scoring_s / (scoring_s + run_s),
        provenance=provenance.describe(select_device(config.device)),
    )


def random_examples(number: int, encoder: Encoder) -> list[Example]:
    """Texts of random tokens with random labels; costs do not depend on what they say."""
    generator = torch.Generator().manual_seed(0)
    config: Any = encoder.model.config
    tokens = min(TOKENS, config.max_position_embeddings // 2)
    ids = torch.randint(10, config.vocab_size, (number, tokens), generator=generator).int().numpy()
    labels = torch.randint(2, (number,), generator=generator).tolist()
    return [
        Example(Row(id=str(index), sequences=(), label=label), ({"input_ids": text},))
        for index, (text, label) in enumerate(zip(ids, labels, strict=True))
    ]


def _prepare(config: RunConfig, resources: ResourceCache) -> PreparedRun:
    encoder, _ = resources.encoder(config)
    return prepare(ModelInputs.resolve(config, resources, methods.placeholder_heads(config, encoder)))


def _trainer(prepared: PreparedRun, batch: list[Example]) -> Trainer:
    """A trainer whose schedule is long enough for all steps that are measured."""
    prepared.runner.config = prepared.runner.config.model_copy(update={"epochs": 1000})
    return Trainer(prepared.runner, prepared.method, batch, calibration_batches=[batch])


def _stored_bytes(prepared: PreparedRun, tensors: dict[str, torch.Tensor], directory: Path) -> int:
    deltas.save(directory / DELTA, tensors, prepared.delta_metadata)
    return (directory / DELTA).stat().st_size


def _memory_and_storage(config: RunConfig, resources: ResourceCache, directory: Path) -> tuple[int, int]:
    """Bytes at the peak of training without the loaded model, and bytes of the delta file."""
    prepared = _prepare(config, resources)
    batch = random_examples(TRAINING_BATCH, prepared.encoder)
    device = prepared.runner.device
    prepared.runner.predict(batch)
    provenance.reset_peak_memory(device)
    loaded = provenance.peak_memory(device)
    trainer = _trainer(prepared, batch)
    for number in range(len(trainer.phases)):
        trainer.setup_phase(number)
        _train(trainer, batch)
    peak = provenance.peak_memory(device)
    return peak - loaded, _stored_bytes(prepared, prepared.method.delta(prepared.encoder.model), directory)


def _step_times(config: RunConfig, reference: RunConfig, resources: ResourceCache) -> tuple[list[float], float]:
    """Each round's time of a step divided by that of the reference, and its seconds; phases are weighted by their steps."""
    prepared = _prepare(config, resources)
    batch = random_examples(TRAINING_BATCH, prepared.encoder)
    trainer, reference_trainer = _trainer(prepared, batch), _trainer(_prepare(reference, resources), batch)
    reference_trainer.setup_phase(0)
    ratios, seconds = [0.0] * ROUNDS, 0.0
    for number, phase in enumerate(trainer.phases):
        trainer.setup_phase(number)
        times = _alternating_seconds(lambda: _train(trainer, batch), lambda: _train(reference_trainer, batch))
        ratios = [ratio + phase.fraction * own / other for ratio, (own, other) in zip(ratios, times, strict=True)]
        seconds += phase.fraction * statistics.median(own for own, _ in times) / TRAINING_STEPS
    return ratios, seconds


def _train(trainer: Trainer, batch: list[Example]) -> None:
    trainer.model.train()
    for _ in range(TRAINING_STEPS):
        trainer.train_step(batch)


def _latencies(runner: ModelRunner, plain: ModelRunner) -> list[float]:
    """The time of a forward pass divided by that of the plain model, in each round."""
    batch = random_examples(LATENCY_BATCH, plain.encoder)
    times = _alternating_seconds(lambda: _predict(runner, batch), lambda: _predict(plain, batch))
    return [own / other for own, other in times]


@torch.inference_mode()
def _predict(runner: ModelRunner, batch: list[Example]) -> None:
    runner.model.eval()
    for _ in range(LATENCY_PASSES):
        runner.logits(batch)


def _alternating_seconds(first: Callable[[], None], second: Callable[[], None]) -> list[tuple[float, float]]:
    """The times of two calls that take turns, so that a change of the machine's speed concerns both; a first round warms up."""
    return [(_seconds(first), _seconds(second)) for _ in range(ROUNDS + 1)][1:]


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _scoring_seconds(config: RunConfig, resources: ResourceCache) -> float:
    encoder, pretrained = resources.encoder(config)
    encoder.model.to(select_device(config.device))
    examples, pad = random_examples(config.scoring.samples, encoder), padding_values(pretrained.tokenizer)

    runner = ModelRunner(encoder, resources.task(config.task), config, pad)

    def score_and_choose() -> None:
        richness, correlation = head_selection.score_examples(encoder, examples, pad, config.scoring.xi)
        arguments, rank = config.heads.selection_arguments(config.seed), config.heads.rank
        measured = measure_heads(rank, runner, examples).numpy() if rank in MEASURES else None
        choose_heads(richness.double().mean(0).numpy(), correlation.mean(0).numpy(), **arguments, measured=measured)

    return _seconds(score_and_choose)


def _modules(model: nn.Module) -> set[str]:
    """Names and types of the modules that have parameters of their own."""
    return {
        f"{name} {type(module).__name__}"
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }
