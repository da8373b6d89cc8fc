"""What training takes with each method, in time and memory: measured in our own loop on texts made up for it."""

import math
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs import costs, head_selection, provenance
from hifi_cli.runs.prepared_run import PreparedRun, prepare
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.runs.run_inputs import ModelInputs
from hifi_cli.runs.trainer import Trainer
from hifi_cli.scoring.head_choice import choose_heads
from hifi_cli.tasks.batches import padding_values
from hifi_cli.tasks.task_spec import Row
from hifi_cli.tasks.tokenization import Example

BATCH, TOKENS, STEPS, ROUNDS = 32, 64, 2, 5
TRAIN_ROWS = 3668  # of the run that scoring and selection are a share of: MRPC's


def measure(
    method: str, *, beside: str, protocol: str, backbone: str, results_dir: Path, precision: str = "fp32"
) -> dict[str, Any]:
    """What training by a method takes: read, or measured once and stored.

    A process of its own measures, so that no other method's memory is in the way.

    Returns:
        `step`: time of a step over that of the method `beside`, medians of alternating rounds, the stages of a two-stage
        method by their shares; `step_s` seconds; `memory`: bytes at the peak beyond the loaded model; `stored_bytes` of
        the delta file; `scoring`: share that scoring and choosing heads take of a whole run on `TRAIN_ROWS` rows (0: none).
    """
    overrides = [f"batch_size={BATCH}", f"precision={precision}"]
    config, rival = (
        resolve(task="rte", method=name, backbone=backbone, protocol=protocol, overrides=overrides) for name in (method, beside)
    )
    decides = config.model_dump(mode="json", exclude={"task", "seed", "protocol", "backbone"})
    path = costs.path_of(config, results_dir, "training-costs", {**decides, "beside": beside})
    return costs.measured_once(path, method, lambda: measure_in_subprocess(config, rival))


def measure_in_subprocess(config: RunConfig, rival: RunConfig) -> dict[str, Any]:
    """The same in a new process, whose memory holds nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure_in_process, config, rival, torch.get_num_threads()).result()


def measure_in_process(config: RunConfig, rival: RunConfig, threads: int) -> dict[str, Any]:
    """The costs of training a configuration beside its rival, with so many threads."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as directory:
        resources = ResourceCache(Path(directory))
        memory, stored = _memory_and_storage(config, resources, Path(directory) / "delta.safetensors")
        step, seconds = _steps(config, rival, resources)
        scoring = _scoring_seconds(config, resources) if methods.needs_heads(config) else 0.0
    run = config.epochs * math.ceil(TRAIN_ROWS / BATCH) * seconds
    return {
        "step": step,
        "step_s": seconds,
        "memory": memory,
        "stored_bytes": stored,
        "scoring_s": scoring,
        "scoring": scoring / (scoring + run),
    }


def _memory_and_storage(config: RunConfig, resources: ResourceCache, delta: Path) -> tuple[int, int]:
    """Bytes at the peak of training beyond the loaded model, and of the delta file."""
    prepared = _prepare(config, resources)
    batch = examples(BATCH, prepared.encoder)
    prepared.runner.predict(batch)
    provenance.reset_peak_memory()
    loaded = provenance.peak_memory()
    trainer = _trainer(prepared, batch)
    for number in range(len(trainer.phases)):
        trainer.setup_phase(number)
        _seconds(trainer, batch)
    peak = provenance.peak_memory()
    deltas.save(delta, prepared.method.delta(prepared.encoder.model), {})
    return peak - loaded, delta.stat().st_size


def _steps(config: RunConfig, rival: RunConfig, resources: ResourceCache) -> tuple[float, float]:
    """The time of a step over that of the rival's, and in seconds."""
    prepared = _prepare(config, resources)
    batch = examples(BATCH, prepared.encoder)
    trainer, rival_trainer = _trainer(prepared, batch), _trainer(_prepare(rival, resources), batch)
    rival_trainer.setup_phase(0)
    ratio = seconds = 0.0
    for number, phase in enumerate(trainer.phases):
        trainer.setup_phase(number)
        times = [(_seconds(trainer, batch), _seconds(rival_trainer, batch)) for _ in range(ROUNDS + 1)][1:]  # 1st: warm-up
        ratio += phase.fraction * statistics.median(own / other for own, other in times)
        seconds += phase.fraction * statistics.median(own for own, _ in times)
    return ratio, seconds


def _prepare(config: RunConfig, resources: ResourceCache) -> PreparedRun:
    encoder, _ = resources.encoder(config)
    heads = costs.any_heads(config, encoder) if methods.needs_heads(config) else None
    return prepare(ModelInputs.resolve(config, resources, heads))


def _trainer(prepared: PreparedRun, batch: list[Example]) -> Trainer:
    """A trainer whose schedule is long enough for all steps that are measured."""
    prepared.runner.config = prepared.runner.config.model_copy(update={"epochs": 1000})
    return Trainer(prepared.runner, prepared.method, batch, calibration_batches=[batch])


def _seconds(trainer: Trainer, batch: list[Example]) -> float:
    """Seconds of a step."""
    trainer.model.train()
    start = time.perf_counter()
    for _ in range(STEPS):
        trainer.train_step(batch)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def _scoring_seconds(config: RunConfig, resources: ResourceCache) -> float:
    encoder, pretrained = resources.encoder(config)
    texts = examples(config.scoring.samples, encoder)
    began = time.perf_counter()
    found = head_selection.score_examples(encoder, texts, padding_values(pretrained.tokenizer), config.scoring.xi)
    how = config.heads.selection_arguments(config.seed)
    choose_heads(found[0].double().mean(0).numpy(), found[1].mean(0).numpy(), **how)
    return time.perf_counter() - began


def examples(number: int, encoder: Encoder) -> list[Example]:
    """Texts of random tokens with random labels; what they say does not matter to what is measured."""
    draws = torch.Generator().manual_seed(0)
    config: Any = encoder.model.config
    tokens = min(TOKENS, config.max_position_embeddings // 2)
    ids = torch.randint(10, config.vocab_size, (number, tokens), generator=draws).tolist()
    labels = torch.randint(2, (number,), generator=draws).tolist()
    return [
        Example(Row(id=str(at), sequences=(), label=label), ({"input_ids": text},))
        for at, (text, label) in enumerate(zip(ids, labels, strict=True))
    ]
