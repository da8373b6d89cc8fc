"""What a finished run trained: its delta, checked, and the encoder weights that another run starts from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hifi_cli.config.run_config import RunConfig, run_name
from hifi_cli.errors import MissingError, RunFailed, UsageError
from hifi_cli.files import file_digest
from hifi_cli.methods import base as methods
from hifi_cli.models import delta as deltas
from hifi_cli.models.delta import DeltaMetadata
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.pretrained import Pretrained
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.record import RunResult, StartingRun


@dataclass(frozen=True)
class StartingWeights:
    """The encoder of a finished run.

    Attributes:
        weights: by the encoder's own names.
        chain: the run, then the run that it started from itself, and so on.
    """

    weights: dict[str, Tensor]
    chain: list[StartingRun]


def read_delta(directory: RunDirectory) -> tuple[RunResult, dict[str, Tensor], DeltaMetadata]:
    """The result of a finished run, and its delta with what it belongs to.

    Raises:
        MissingError: no finished run is there, or only its results.
        UsageError: the delta is not the file that the run wrote.
        RunFailed: the run diverged and has no model.
    """
    result = directory.read_result()
    if not result.is_done:
        raise RunFailed(f"the run in {directory.path} {result.status} and left no model")
    check_has_weights(directory)
    if file_digest(directory.delta) != result.delta_sha256:
        raise UsageError(f"{directory.delta} is not the file that the run wrote; train the run again with --force")
    return result, *deltas.load(directory.delta)


def check_has_weights(directory: RunDirectory) -> None:
    """Raise MissingError if a finished run was copied without its weights."""
    if not directory.delta.is_file():
        raise MissingError(f"no {directory.delta}: copy the run with its weights (--weights), or train it again (--force)")


def check_backbone(directory: RunDirectory, config: RunConfig, weights_id: str, metadata: DeltaMetadata) -> None:
    """Check that a run's delta belongs to these backbone weights.

    Raises:
        UsageError: it does not.
    """
    if weights_id != metadata.backbone_weights_id:
        started = f", or train {config.start_from}, which the run started from, as it was" if config.start_from else ""
        raise UsageError(
            f"the run in {directory.path} was trained on other weights of backbone '{config.backbone.name}' than those found"
            f" now; give --backbone with the directory or hub id that has them{started}"
        )


def find_start(config: RunConfig, results_dir: Path) -> Path:
    """The directory of the run that a run starts from: as it was given, or at its place in the results directory.

    Raises:
        MissingError: there is no such run.
    """
    assert config.start_from
    candidates = [Path(config.start_from), results_dir / run_name(config.start_from)]
    for path in candidates:
        if RunDirectory(path).config_file.is_file():
            return path
    raise MissingError(f"start_from={config.start_from}: no run there, nor in {candidates[1]}; train it first")


def starting_weights(
    config: RunConfig,
    results_dir: Path,
    load_encoder: Callable[[RunConfig], tuple[Encoder, Pretrained]],
    *,
    trust: bool = False,
) -> StartingWeights:
    """The merged encoder weights of the run that a run starts from.

    Args:
        config: of the run that starts.
        load_encoder: loads a run's own copy of its backbone; it follows the chain of runs by itself.
        trust: whether the method's code that the started run's directory contains may be executed.

    Raises:
        MissingError: there is no such finished run.
        UsageError: it has another backbone, or its method adds modules that no plain encoder holds.
        RunFailed: it diverged.
    """
    directory = RunDirectory(find_start(config, results_dir))
    with directory.opened(trust=trust) as own:
        if own.backbone.name != config.backbone.name:
            raise UsageError(
                f"start_from={config.start_from}: that run's backbone is {own.backbone.name}, this one's {config.backbone.name}"
            )
        changes = {"backbone": config.backbone, "device": config.device, "kernels": "torch"}
        own = own.model_copy(update=changes)
        result, tensors, metadata = read_delta(directory)
        encoder, pretrained = load_encoder(own)
        check_backbone(directory, own, pretrained.weights_id, metadata)
        method = methods.attach(own, encoder, metadata.heads, pretrained.missing_keys)
        if not method.mergeable:
            raise UsageError(f"start_from={config.start_from}: method {own.method} adds modules that no plain encoder has")
        methods.load_final_delta(method, encoder, tensors)
        method.merge(encoder)
        assert result.delta_sha256
        link = StartingRun(
            run=run_name(str(directory.path.resolve())), config_hash=result.config_hash, delta_sha256=result.delta_sha256
        )
        return StartingWeights(encoder.base.state_dict(), [link, *pretrained.started_from])
