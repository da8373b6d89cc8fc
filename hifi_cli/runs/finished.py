"""A finished run opened again: its record, and its model with what training changed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import file_digest
from hifi_cli.errors import MissingError, RunFailed, UsageError
from hifi_cli.files import atomic_path
from hifi_cli.methods.base import Method
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.pretrained import Pretrained
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.runs.prepare import PreparedRun, enter_last_stage, prepare_run
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import well_formed
from hifi_cli.training.device import set_up_device

_TRAIN_AGAIN = "copy it from where the run was trained, or train it again (--force)"


@dataclass(frozen=True)
class FinishedRun:
    """A finished run that has a model.

    Attributes:
        directory: where the run is stored.
        config: the run's settings; names of the user's own files mean the copies in the run's
            directory.
        result: the run's record.
    """

    directory: RunDirectory
    config: RunConfig
    result: RunResult


def read_finished(path: Path, *, trust: bool) -> FinishedRun:
    """Read what a finished run says of itself, and check that its delta is there.

    Args:
        path: the run's directory.
        trust: whether code may run that the files of the run name.

    Raises:
        MissingError: no finished run is there, or its own delta is not.
        UsageError: the copies of the user's own code are not the code of the run.
        RunFailed: the run diverged and has no model.
    """
    directory = RunDirectory(path)
    result = directory.read_result()
    config = directory.with_user_yamls(directory.read_config(), trust=trust)
    if not result.is_done:
        raise RunFailed(f"the run in {path} {result.status} and left no model")
    # Its copies may have been edited since, and other code would make another model of the delta.
    if directory.has_other_code(result):
        raise UsageError(
            f"the code in {directory.user_files} is not that of the run (method_code): {_TRAIN_AGAIN}"
        )
    if directory.pruned.is_file() and not directory.delta.is_file():
        raise MissingError(
            f"the weights of {path} were dropped by hifi results prune: {_TRAIN_AGAIN}"
        )
    if not directory.delta.is_file() or file_digest(directory.delta) != result.delta_sha256:
        raise MissingError(
            f"{directory.delta} is missing, or is not the file that the run wrote: {_TRAIN_AGAIN}"
        )
    return FinishedRun(directory, config, result)


def rebuild(
    finished: FinishedRun, config: RunConfig, task: TaskSpec, pretrained: Pretrained
) -> PreparedRun:
    """Rebuild the model of a finished run.

    Args:
        finished: what the run says of itself.
        config: the run's, with the device and the place of the backbone that are to be used here.
        task: as its YAML has it.
        pretrained: what `config` names as backbone, with the task head.

    Raises:
        UsageError: the delta belongs to other backbone weights or is damaged, or the run names code
            that is not trusted.
    """
    directory = finished.directory
    result = finished.result
    # A delta says what changed, so it makes sense only on the very weights that it was trained
    # from.
    found = pretrained.digest
    # Records of schema 1 have another digest of the same encoder.
    if result.schema_version == 1:
        found = pretrained.digest_of_schema_1
    if found != result.backbone_weights:
        started = ""
        if config.start_from:
            started = f", or train {config.start_from} as it was"
        raise UsageError(
            f"the run in {directory.path} was trained on another encoder than the backbone"
            f" '{config.backbone.name}' that is found now: its weights, configuration or tokenizer"
            f" differ; give --backbone with the directory or hub id that has them{started}"
        )
    delta = read_delta(directory.delta)
    prepared = prepare_run(config, task, pretrained, set_up_device(config), result.heads)
    load_final_delta(prepared.method, prepared.encoder, delta)
    return prepared


def load_final_delta(method: Method, encoder: Encoder, delta: dict[str, Tensor]) -> None:
    """Load the delta of a finished run into a prepared model.

    Args:
        method: of the run; it has prepared the model for its first stage.
        encoder: with that model, which is brought to the last stage.
        delta: tensors by the parameters' names.

    Raises:
        UsageError: the delta does not fit.
    """
    enter_last_stage(method, encoder)
    with torch.no_grad():
        method.load_delta(encoder.model, delta)


def read_delta(path: Path) -> dict[str, Tensor]:
    """Read what training changed, by the parameters' names.

    Raises:
        UsageError: the file is none of safetensors, or holds numbers that are not finite.
    """
    try:
        delta = _read_tensors(path)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is damaged ({error}): {_TRAIN_AGAIN}") from None
    for name, tensor in delta.items():
        if not tensor.isfinite().all():
            raise UsageError(f"{path} is damaged ({name} is not finite): {_TRAIN_AGAIN}")
    return delta


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file by their names."""
    if str(path) == well_formed(str(path)):
        return load_file(path)
    # `load_file` refuses a path that is not UTF-8. Reading the bytes first costs their size in
    # memory.
    return load(path.read_bytes())


def save_delta(path: Path, delta: dict[str, Tensor], belongs_to: dict[str, Any]) -> None:
    """Write what training changed, and in the file's header what it belongs to, atomically.

    The header has a single metadata key, because safetensors writes several keys in random order
    and equal runs must give equal files.

    Args:
        path: the file.
        delta: tensors by the parameters' names.
        belongs_to: method, backbone and heads, as JSON values.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in delta.items()}
    header = json.dumps(belongs_to, separators=(",", ":"), ensure_ascii=False)
    with atomic_path(path) as temporary:
        save_file(contiguous, temporary, metadata={"hifi": header})
