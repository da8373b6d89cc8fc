"""The plan of a run for `--dry-run`: its steps and parameters, and what is missing; nothing is asked of the network."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError, HifiError, MissingError, RunFailed, UsageError
from hifi_cli.methods import base as methods
from hifi_cli.methods.base import Phase
from hifi_cli.models import pretrained as backbones
from hifi_cli.models.encoder import Encoder
from hifi_cli.results.directory import RunDirectory
from hifi_cli.tasks import fewshot, metrics
from hifi_cli.tasks.task_spec import Split, TaskSpec
from hifi_cli.tasks.tokenization import truncated_rows
from hifi_cli.training.device import select_device
from hifi_cli.training.finished_model import find_start, read_delta
from hifi_cli.training.resources import ResourceCache
from hifi_cli.training.splits import batch_size, holdout_ids, holdout_size
from hifi_cli.training.trainer import phase_ends


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters of a run's model.

    Attributes:
        total: parameters of the plain model.
        trained: trained parameters of each stage, in all and in the backbone; None where only training decides.
    """

    total: int
    trained: list[tuple[int, int] | None]


@dataclass(frozen=True)
class RunPlan:
    """What a run would do and take.

    Attributes:
        state: of its directory.
        examples: rows that it trains on: of those in `--data-dir`, else of the official ones; None where neither are known.
        steps: optimizer steps, if every row is one example.
        has_windows: whether a row with a long text becomes several examples, and steps.
        size: None without the backbone's configuration.
        missing: what the run needs and is not there, a line each.
        truncated: rows of the train and validation splits with a text that `max_length` cuts; None where rows or tokenizer
            are not on this machine.
    """

    directory: Path
    state: str
    examples: int | None
    batch_size: int
    steps: int | None
    has_windows: bool
    size: ModelSize | None
    missing: list[str] = field(default_factory=list)
    truncated: tuple[int, int] | None = None


def plan(config: RunConfig, resources: ResourceCache) -> RunPlan:
    """Plan a run. The data in `--data-dir` are read; nothing is written, and nothing is asked of the network.

    Raises:
        UsageError: what the run itself would refuse: a setting, or the data.
    """
    task = resources.task_of(config)
    methods.build(config, methods.MethodContext(stage1=config.stage1))  # refuses wrong settings
    metrics.check_names(task)
    directory = RunDirectory.of(config, resources.results_dir)
    missing, examples, size, truncated = [], None, None, None
    try:
        examples = _read_train_rows(config, task, resources)
    except MissingError as error:
        missing.append(str(error))
    examples = _official_train_rows(config, task) if examples is None else examples
    try:
        select_device(config.device)
    except MissingError as error:
        missing.append(str(error))
    try:
        _check_backbone_file(config, "config.json")
        size, phases = model_size(config, resources)
        _check_backbone_file(config, "model.safetensors")
        tokenizer = _tokenizer(config)
        if tokenizer and resources.has_rows(config.task):
            splits: tuple[Split, Split] = ("train", "validation")
            train, validation = (resources.examples(config, split, config.max_length, tokenizer) for split in splits)
            truncated = truncated_rows(train), truncated_rows(validation)
    except MissingError as error:
        missing.append(str(error))
    if config.start_from:
        try:
            read_delta(RunDirectory(find_start(config, resources.results_dir)))
        except (MissingError, RunFailed) as error:
            missing.append(str(error))
    batch = batch_size(config, task)
    steps = config.epochs * math.ceil(examples / batch) if examples else None
    if size and steps:
        phase_ends(phases, steps)
    has_windows = task.kind == "span"
    return RunPlan(
        directory.path,
        _directory_state(directory, config),
        examples,
        batch,
        steps,
        has_windows,
        size,
        missing,
        truncated,
    )


def refuse_early(configs: Sequence[RunConfig], resources: ResourceCache) -> None:
    """Refuse a list of runs before any training if one of its methods would be refused when its turn comes.

    Raises:
        UsageError: names the refused methods, and the others, which can run.
    """
    refused: dict[str, UsageError] = {}
    for config in {(config.task, config.method): config for config in configs}.values():
        try:
            plan(config, resources)
        except UsageError as error:
            refused.setdefault(config.method, error)
    others = list(dict.fromkeys(config.method for config in configs if config.method not in refused))
    if refused and others:
        reasons = "; ".join(f"{method}: {reason}" for method, reason in refused.items())
        raise UsageError(f"{reasons}. Nothing was trained; the other methods can run: --method {','.join(others)}")
    if refused:
        raise next(iter(refused.values()))


def model_size(config: RunConfig, resources: ResourceCache) -> tuple[ModelSize, list[Phase]]:
    """Count the parameters of a run on a model without values; the second value is the phases of its training.

    Raises:
        MissingError: the backbone's configuration is not on this machine.
        UsageError: the method's settings do not fit.
    """
    head_spec = resources.task_head(config)
    encoder = Encoder(backbones.meta_model(config.backbone, task_head=head_spec, dropout=config.dropout))
    total = encoder.num_parameters
    head_names = set(methods.task_head_names(encoder))
    heads, missing_keys = methods.placeholder_heads(config, encoder), _missing_keys(config, head_names)
    method = methods.attach(config, encoder, heads, missing_keys)
    trained: list[tuple[int, int] | None] = []
    phases = method.phases()
    for number, phase in enumerate(phases):
        try:
            if number:
                phase.prepare_model(encoder)
        except NotImplementedError:  # of torch, where values are required: the stage before decides what this one trains
            trained.append(None)
            continue
        sizes = phase.method.trainable_counts(encoder.model)
        trained.append((sum(sizes.values()), sum(size for name, size in sizes.items() if name not in head_names)))
    return ModelSize(total, trained), phases


def _official_train_rows(config: RunConfig, task: TaskSpec) -> int | None:
    """How many of the official train rows a run trains on, as far as is known without them."""
    rows = task.rows.get("train")
    if config.shots:
        return min(batch_size(config, task), rows or sys.maxsize)
    rows = config.limit if rows is None else min(rows, config.limit or rows)
    if rows is None:
        return None
    return rows - holdout_size(config, rows) if config.selection == "holdout" else rows


def _read_train_rows(config: RunConfig, task: TaskSpec, resources: ResourceCache) -> int | None:
    """How many rows a run trains on, from the data in a directory; None where they are generated, or come from the hub.

    Raises:
        MissingError: the data are nowhere.
        UsageError: they do not fit the task, or have too few rows for `shots`.
    """
    from hifi_cli import hub

    if config.shots:
        fewshot.check_supported(task)
    if task.local.generated:
        return None
    own_directory = task.local.directory
    if resources.data_dir or (own_directory and Path(own_directory).is_dir()):
        rows = resources.rows(config.task).rows("train")
        if config.shots:
            return len(fewshot.sample(task, rows, config.shots, config.seed).train)
        return len(holdout_ids(config, rows)[0])
    if not task.hub:
        raise MissingError(f"the data of {task.label}: give --data-dir")
    if hub.is_offline():
        raise MissingError(f"the data of {task.label}, unless {task.hub.id} is in the hub's cache: give --data-dir")
    return None


def _check_backbone_file(config: RunConfig, file: str) -> None:
    """Raise MissingError when a backbone's file is neither in its directory nor in the hub's cache."""
    from hifi_cli import hub

    source, _ = backbones.locate(config.backbone)
    if _local_file(config, file) or _local_file(config, f"{file}.index.json"):  # the index of weights in several files
        return
    if source != config.backbone.hub:
        raise MissingError(f"no {file} in {source}; --backbone names the directory of an encoder with its weights")
    then = "HF_HUB_OFFLINE forbids downloading it" if hub.is_offline() else "a run downloads it"
    raise MissingError(f"{file} of {source} is not in the hub's cache; {then}")


def _tokenizer(config: RunConfig) -> Any:
    """The tokenizer in the directory of a backbone; None for a backbone of the hub, which is not asked.

    Raises:
        MissingError: the directory has no usable tokenizer.
    """
    source, _ = backbones.locate(config.backbone)
    if source == config.backbone.hub:
        return None
    return backbones.load_tokenizer(config.backbone, source, {"local_files_only": True, "trust_remote_code": False})


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
