"""What a run would do, for `--dry-run`; nothing is written, and nothing is asked of the network."""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from safetensors import safe_open
from transformers.utils.hub import cached_file

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import ConflictError, MissingError, counted_noun
from hifi_cli.methods import base as methods
from hifi_cli.methods.base import Phase
from hifi_cli.models import pretrained as backbones
from hifi_cli.models.encoder import Encoder
from hifi_cli.results.record import RunDirectory
from hifi_cli.tasks import data_sources
from hifi_cli.tasks.task_spec import Row, TaskData, TaskSpec
from hifi_cli.training.data import ResourceCache, batch_size, holdout_ids, task_head_of, task_of
from hifi_cli.training.loop import phase_ends
from hifi_cli.training.machine import select_device

T = TypeVar("T")


def plan(config: RunConfig, resources: ResourceCache) -> list[tuple[str, str]]:
    """Plan a run; the data are read if they are on this machine.

    Returns:
        What each line is about, and its text: the run's directory, the optimizer steps if every row
        is one example, the parameters, and what is missing.

    Raises:
        UsageError: what the run itself would refuse: a setting, or the data.
    """
    task = task_of(config)
    methods.check_settings(config)
    missing: list[str] = []

    def unless_missing(find: Callable[[], T]) -> T | None:
        try:
            return find()
        except MissingError as error:
            missing.append(str(error))
            return None

    unless_missing(lambda: select_device(config.device))
    is_local = unless_missing(
        lambda: data_sources.find_directory(task, resources.data_dir) or not task.hub
    )
    data = unless_missing(lambda: resources.rows(config.task)) if is_local else None
    sized = unless_missing(lambda: model_size(config))
    examples, batch = _train_examples(config, task, data), batch_size(config, task)
    epochs = counted_noun(config.epochs, "epoch")
    steps = f"{epochs} of an unknown number of examples in batches of {batch}"
    if examples:
        count = config.epochs * math.ceil(examples / batch)
        steps = f"{counted_noun(count, 'step')}: {epochs} of {examples:,} examples in batches of {batch}"
        phase_ends(sized[2] if sized else [], count)  # refuses too few of them
    directory = RunDirectory.of(config, resources.results_dir)
    return [
        ("directory", f"{directory.path} ({_directory_state(directory, config)})"),
        ("steps", steps),
        (
            "parameters",
            _parameters(*sized[:2]) if sized else "unknown without the backbone's configuration",
        ),
        *(sized[3] if sized else []),
        *(("missing", text) for text in missing or ["nothing"]),
    ]


def _parameters(total: int, trained: list[tuple[int, int] | None]) -> str:
    """The parameters of a model and those that each stage trains, as a text."""
    stages = []
    for number, counts in enumerate(trained, start=1):
        text = "determined in training"
        if counts:
            text = f"{counts[0]:,} trained ({counts[0] / total:.2%}), {counts[1]:,} of them in the backbone"
        stages.append(f"stage {number}: {text}" if len(trained) > 1 else text)
    return f"{total:,}; {'; '.join(stages)}"


def _of_decoder(encoder: Encoder) -> list[tuple[str, str]]:
    """The lines of a plan that say how a decoder classifies and what its attention heads are."""
    lines = []
    if encoder.is_causal:
        lines.append(("pooling", "last token (a decoder: tokens see only those before them)"))
    if encoder.has_known_parts and encoder.num_key_value_heads < encoder.num_heads:
        size = encoder.num_heads // encoder.num_key_value_heads
        shared = f"{encoder.num_key_value_heads} of K and V, each shared by {size} of Q; tuning one of them tunes its K and V"
        lines.append(("heads", f"{encoder.num_heads} of Q, {shared}"))
    return lines


def model_size(
    config: RunConfig,
) -> tuple[int, list[tuple[int, int] | None], list[Phase], list[tuple[str, str]]]:
    """Count the parameters of a run on a model without values.

    Returns:
        Parameters of the plain model; trained ones of each stage, in all and in the backbone, None
        where training decides; the phases of the run's method; what the plan says of a decoder.

    Raises:
        MissingError: the backbone's configuration is not on this machine.
        UsageError: the method's settings do not fit.
    """
    model = backbones.meta_model(
        config.backbone, task_head=task_head_of(config), dropout=config.dropout
    )
    encoder = Encoder(model)
    notes = _of_decoder(encoder)
    total, head_names = encoder.num_parameters, encoder.task_head.keys()
    heads = methods.placeholder_heads(config, encoder)
    method = methods.attach(config, encoder, heads, _missing_keys(config, head_names))
    trained: list[tuple[int, int] | None] = []
    phases = method.phases()
    for number, phase in enumerate(phases):
        try:
            if number:
                phase.prepare_model(encoder)
            phase.method.on_phase_start(encoder.model, iter(()))
        except NotImplementedError:  # torch's: values of weights or gradients decide what trains
            trained.append(None)
            continue
        trained_now = phase.method.trainable_parameters(encoder.model)
        sizes = {name: value.numel() for name, value in trained_now.items()}
        in_head = sum(size for name, size in sizes.items() if name in head_names)
        trained.append((sum(sizes.values()), sum(sizes.values()) - in_head))
    return total, trained, phases, notes


def _train_examples(config: RunConfig, task: TaskSpec, data: TaskData | None) -> int | None:
    """How many rows a run trains on, of its data or of the official ones, as far as is known."""
    if config.shots:
        data_sources.check_few_shot(task)
        if data is None:
            return batch_size(config, task)
        return len(
            data_sources.few_shot_sample(task, data.rows("train"), config.shots, config.seed)[0]
        )
    rows = (
        data.rows("train")
        if data
        else [Row(str(number), (), None) for number in range(task.rows.get("train", 0))]
    )
    return len(holdout_ids(config, rows)[0]) or None


def _missing_keys(config: RunConfig, head_names: Iterable[str]) -> list[str]:
    """The task head's parameters that are not in the weights file; none if that is not here."""
    source, revision = backbones.locate(config.backbone)
    with suppress(OSError):
        path = cached_file(source, "model.safetensors", revision=revision, local_files_only=True)
        with safe_open(path, framework="numpy") as file:
            keys = [f".{key}" for key in file.keys()]  # noqa: SIM118
        return sorted(
            name for name in head_names if not any(f".{name}".endswith(key) for key in keys)
        )
    return []


def _directory_state(directory: RunDirectory, config: RunConfig) -> str:
    try:
        directory.check_is_of(config)
    except ConflictError:
        return "holds a run of another configuration: --force replaces it"
    if directory.results.is_file():
        return f"finished ({directory.read_result().status}): would be skipped"
    return "begun: would be resumed" if directory.checkpoint.is_file() else "new"
