"""What a run would be, found out without weights, data or network: for `--dry-run`."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError, HifiError, MissingError
from hifi_cli.methods import base as methods
from hifi_cli.models import encoder as encoders
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs.costs import any_heads
from hifi_cli.tasks import local_files, task_spec
from hifi_cli.tasks.task_spec import TaskSpec

FLOAT = 4  # bytes
MOMENTS = 3 * FLOAT  # of a trained number: its gradient and AdamW's two moments


@dataclass(frozen=True)
class Size:
    """Parameters of a run.

    Attributes:
        total: of the plain model.
        trained: of each stage: in all and in the backbone; None where only training will tell.
        held: of the model with what the method adds to it.
        activations: numbers kept for the backward pass, for a token at a layer, and for a pair of tokens in attention.
    """

    total: int
    trained: list[tuple[int, int] | None]
    held: int
    activations: tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """What a run would be.

    Attributes:
        state: of its directory.
        examples: it trains on; None where neither the task's YAML nor the data say it.
        steps: optimiser steps.
        size: None where the backbone's configuration is not at hand.
        memory: bytes for parameters, for gradients and moments, and for activations at the longest allowed input.
        missing: what the run needs and does not find, a line each.
    """

    directory: Path
    state: str
    examples: int | None
    batch_size: int
    steps: int | None
    size: Size | None
    memory: tuple[int, int, int] | None
    missing: list[str] = field(default_factory=list)


def plan(config: RunConfig, results_dir: Path, data_dir: Path | None) -> Plan:
    """Look at a run without starting it; nothing is written and nothing asked of the network."""
    task = task_spec.load(config.task).with_primary(config.primary_metric)
    directory = RunDirectory.of(config, results_dir)
    missing = []
    try:
        _look_for_data(task, data_dir)
    except MissingError as error:
        missing.append(str(error))
    size = None
    try:
        _look_in_cache(config, "config.json")
        size = measure(config, task)
        _look_in_cache(config, "model.safetensors")
    except MissingError as error:
        missing.append(str(error))
    examples = _examples(config, task)
    batch = config.shots * len(task.labels) if config.shots else config.batch_size
    steps = config.epochs * math.ceil(examples / batch) if examples else None
    memory = _memory(config, size, batch) if size else None
    return Plan(directory.path, _state(directory, config), examples, batch, steps, size, memory, missing)


def measure(config: RunConfig, task: TaskSpec) -> Size:
    """Count a run's parameters on a model without values.

    Raises:
        MissingError: the backbone's configuration is not at hand.
        UsageError: the method's settings do not fit.
    """
    task_head = TaskHeadSpec(task.kind, tuple(task.labels), task.has_target_words, config.task_head)
    encoder = Encoder(encoders.meta_model(config.backbone, task_head=task_head, dropout=config.dropout))
    total = _count(encoder)
    of_head = set(methods.task_head_names(encoder))
    heads = config.heads.given or (any_heads(config, encoder) if methods.needs_heads(config) else None)
    method = methods.attach(config, encoder, heads, _fresh(config, of_head))
    held = _count(encoder)
    trained: list[tuple[int, int] | None] = []
    for number, phase in enumerate(method.phases()):
        try:
            if number:
                phase.prepare_model(encoder)
        except NotImplementedError:  # torch's word for what needs values: this stage trains what the one before finds
            trained.append(None)
            continue
        sizes = {name: value.numel() for name, value in phase.method.trainable_parameters(encoder.model).items()}
        trained.append((sum(sizes.values()), sum(size for name, size in sizes.items() if name not in of_head)))
    shape: Any = encoder.model.config
    inner = getattr(shape, "intermediate_size", None) or shape.hidden_dim  # DistilBERT's name
    at_a_layer = encoder.num_layers * (9 * encoder.hidden_size + 2 * inner)
    return Size(total, trained, held, (at_a_layer, 2 * encoder.num_layers * encoder.num_heads))


def _memory(config: RunConfig, size: Size, batch: int) -> tuple[int, int, int]:
    """Bytes of parameters, of gradients and moments, and of activations (as Korthikanti et al. 2022 count them).

    The activations are those of a batch of the longest allowed inputs, none of whose layers is frozen.
    """
    per_token, per_pair = size.activations
    sequences, tokens = math.ceil(batch / config.gradient_accumulation_steps), config.max_length
    width = FLOAT // 2 if config.precision == "bf16" else FLOAT
    activations = width * sequences * tokens * (per_token + per_pair * tokens)
    most = max((one[0] for one in size.trained if one), default=0)
    return FLOAT * size.held, MOMENTS * most, activations


def _count(encoder: Encoder) -> int:
    return sum(parameter.numel() for parameter in encoder.model.parameters())


def _examples(config: RunConfig, task: TaskSpec) -> int | None:
    """Training examples, by the official count of rows."""
    if config.shots:
        return config.shots * len(task.labels)
    rows = task.rows.get("train")
    if rows is None:
        return config.limit
    rows = min(rows, config.limit or rows)
    return rows - max(1, round(config.holdout * rows)) if config.selection == "holdout" else rows


def _look_for_data(task: TaskSpec, data_dir: Path | None) -> None:
    """Raise MissingError unless a task's data are generated, in `data_dir`, or to be had from the hub."""
    from hifi_cli import hub

    if task.local.generated:
        return
    if data_dir:
        folder = local_files.find_folder(task.local, data_dir)
        for split in task_spec.REQUIRED_SPLITS:
            names = task.local.files[split]
            choices = [names] if isinstance(names, str) else names
            if not any((folder / name).is_file() for name in choices):
                raise MissingError(f"no file {folder / choices[0]}")
    elif not task.hub:
        raise MissingError(f"the data of {task.label}: give --data-dir")
    elif hub.is_offline():
        raise MissingError(f"the data of {task.label}, unless {task.hub.id} is in the hub's cache: give --data-dir")


def _look_in_cache(config: RunConfig, file: str) -> None:
    """Raise MissingError when a hub backbone's file is not in the cache, or the backbone is nowhere at all."""
    from hifi_cli import hub

    source, _ = encoders.locate(config.backbone)
    if source == config.backbone.hub and not _at_hand(config, file):
        then = "HF_HUB_OFFLINE forbids to download it" if hub.is_offline() else "a run downloads it"
        raise MissingError(f"{file} of {source} is not in the hub's cache; {then}")


def _at_hand(config: RunConfig, file: str) -> Path | None:
    """A backbone's file on this machine."""
    from huggingface_hub import try_to_load_from_cache

    source, revision = encoders.locate(config.backbone)
    if source == config.backbone.hub:
        found = try_to_load_from_cache(source, file, revision=revision)
        return Path(found) if isinstance(found, str) else None
    return Path(source) / file if (Path(source) / file).is_file() else None


def _fresh(config: RunConfig, head: set[str]) -> list[str]:
    """The task head's parameters that the weights file does not hold; where it is not at hand, none is taken for fresh."""
    from safetensors import safe_open

    weights = _at_hand(config, "model.safetensors")
    if weights is None:
        return []
    with safe_open(weights, framework="numpy") as file:
        held = list(file.keys())
    return sorted(name for name in head if not any(name == key or name.endswith(f".{key}") for key in held))


def _state(directory: RunDirectory, config: RunConfig) -> str:
    try:
        directory.check_is_of(config)
        if directory.results.is_file():
            return f"finished ({directory.read_result().status}): would be skipped"
    except ConflictError:
        return "holds a run of another configuration: --force replaces it"
    except HifiError as error:
        return f"damaged: {error}"
    return "begun: would be resumed" if directory.checkpoint.is_file() else "new"
