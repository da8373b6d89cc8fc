"""The plan of a run for `--dry-run`: its steps, parameters and memory, computed without weights, data or network."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError, HifiError, MissingError
from hifi_cli.methods import base as methods
from hifi_cli.models import pretrained as backbones
from hifi_cli.models.encoder import Encoder
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.runs.resources import task_head_spec
from hifi_cli.tasks import local_files, task_spec
from hifi_cli.tasks.task_spec import TaskSpec

FLOAT_BYTES = 4
TRAINING_BYTES = 3 * FLOAT_BYTES  # of a trained parameter: its gradient and AdamW's two moments


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters and activations of a run's model.

    Attributes:
        total: parameters of the plain model.
        trained: trained parameters of each stage, in all and in the backbone; None where only training decides.
        with_method: parameters of the model with what the method adds to it.
        activations: numbers kept for the backward pass, per token and per pair of tokens (attention).
    """

    total: int
    trained: list[tuple[int, int] | None]
    with_method: int
    activations: tuple[int, int]


@dataclass(frozen=True)
class RunPlan:
    """What a run would do and take.

    Attributes:
        state: of its directory.
        examples: training examples; None where the task's YAML does not say it.
        steps: optimizer steps.
        size: None without the backbone's configuration.
        memory: bytes of parameters, of gradients and moments, and of activations at the longest allowed input.
        missing: what the run needs and is not there, a line each.
    """

    directory: Path
    state: str
    examples: int | None
    batch_size: int
    steps: int | None
    size: ModelSize | None
    memory: tuple[int, int, int] | None
    missing: list[str] = field(default_factory=list)


def plan(config: RunConfig, results_dir: Path, data_dir: Path | None) -> RunPlan:
    """Plan a run; nothing is written, and nothing is read from the network."""
    task = task_spec.load(config.task).with_primary(config.primary_metric)
    directory = RunDirectory.of(config, results_dir)
    missing = []
    try:
        _check_data(task, data_dir)
    except MissingError as error:
        missing.append(str(error))
    size = None
    try:
        _check_backbone_file(config, "config.json")
        size = model_size(config, task)
        _check_backbone_file(config, "model.safetensors")
    except MissingError as error:
        missing.append(str(error))
    examples = _examples(config, task)
    batch = config.shots * len(task.labels) if config.shots else config.batch_size
    steps = config.epochs * math.ceil(examples / batch) if examples else None
    memory = _memory(config, size, batch) if size else None
    return RunPlan(directory.path, _directory_state(directory, config), examples, batch, steps, size, memory, missing)


def model_size(config: RunConfig, task: TaskSpec) -> ModelSize:
    """Count the parameters of a run on a model without values.

    Raises:
        MissingError: the backbone's configuration is not on this machine.
        UsageError: the method's settings do not fit.
    """
    head_spec = task_head_spec(task, config)
    encoder = Encoder(backbones.meta_model(config.backbone, task_head=head_spec, dropout=config.dropout))
    total = _parameter_count(encoder)
    head_names = set(methods.task_head_names(encoder))
    heads, missing_keys = methods.placeholder_heads(config, encoder), _missing_keys(config, head_names)
    method = methods.attach(config, encoder, heads, missing_keys)
    with_method = _parameter_count(encoder)
    trained: list[tuple[int, int] | None] = []
    for number, phase in enumerate(method.phases()):
        try:
            if number:
                phase.prepare_model(encoder)
        except NotImplementedError:  # of torch, where values are required: the stage before decides what this one trains
            trained.append(None)
            continue
        sizes = {name: value.numel() for name, value in phase.method.trainable_parameters(encoder.model).items()}
        trained.append((sum(sizes.values()), sum(size for name, size in sizes.items() if name not in head_names)))
    shape: Any = encoder.model.config
    inner = getattr(shape, "intermediate_size", None) or shape.hidden_dim  # DistilBERT's name
    per_token = encoder.num_layers * (9 * encoder.hidden_size + 2 * inner)
    return ModelSize(total, trained, with_method, (per_token, 2 * encoder.num_layers * encoder.num_heads))


def _memory(config: RunConfig, size: ModelSize, batch: int) -> tuple[int, int, int]:
    """Bytes of parameters, of gradients and moments, and of activations (as Korthikanti et al. 2022 count them).

    The activations are those of a batch of the longest allowed inputs, none of whose layers is frozen. With bf16, frozen
    parameters count twice: as float32 numbers and as their copies.
    """
    per_token, per_pair = size.activations
    sequences, tokens = math.ceil(batch / config.gradient_accumulation_steps), config.max_length
    width = FLOAT_BYTES // 2 if config.precision == "bf16" else FLOAT_BYTES
    activations = width * sequences * tokens * (per_token + per_pair * tokens)
    trained = max((counts[0] for counts in size.trained if counts), default=0)
    copies = (FLOAT_BYTES - width) * (size.with_method - trained)  # of frozen weights
    return FLOAT_BYTES * size.with_method + copies, TRAINING_BYTES * trained, activations


def _parameter_count(encoder: Encoder) -> int:
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


def _check_data(task: TaskSpec, data_dir: Path | None) -> None:
    """Raise MissingError unless a task's data are generated, in `data_dir`, or available from the hub."""
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


def _check_backbone_file(config: RunConfig, file: str) -> None:
    """Raise MissingError when a hub backbone's file is not in the cache, or the backbone is nowhere at all."""
    from hifi_cli import hub

    source, _ = backbones.locate(config.backbone)
    if source == config.backbone.hub and not _local_file(config, file):
        then = "HF_HUB_OFFLINE forbids to download it" if hub.is_offline() else "a run downloads it"
        raise MissingError(f"{file} of {source} is not in the hub's cache; {then}")


def _local_file(config: RunConfig, file: str) -> Path | None:
    """A backbone's file on this machine."""
    from huggingface_hub import try_to_load_from_cache

    source, revision = backbones.locate(config.backbone)
    if source == config.backbone.hub:
        cached = try_to_load_from_cache(source, file, revision=revision)
        return Path(cached) if isinstance(cached, str) else None
    return Path(source) / file if (Path(source) / file).is_file() else None


def _missing_keys(config: RunConfig, head_names: set[str]) -> list[str]:
    """The task head's parameters that are not in the weights file; none if that is not on this machine."""
    from safetensors import safe_open

    weights = _local_file(config, "model.safetensors")
    if weights is None:
        return []
    with safe_open(weights, framework="numpy") as file:
        keys = list(file.keys())
    return sorted(name for name in head_names if not any(name == key or name.endswith(f".{key}") for key in keys))


def _directory_state(directory: RunDirectory, config: RunConfig) -> str:
    try:
        directory.check_is_of(config)
        if directory.results.is_file():
            return f"finished ({directory.read_result().status}): would be skipped"
    except ConflictError:
        return "holds a run of another configuration: --force replaces it"
    except HifiError as error:
        return f"damaged: {error}"
    return "begun: would be resumed" if directory.checkpoint.is_file() else "new"
