"""The files of measured costs: of a method's result, and of its training."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.files import digest, safe_name
from hifi_cli.records.run_files import Provenance
from hifi_cli.records.stored_file import StoredFile

TRAINING_BATCH = 32
_TASK = "rte"  # two classes; its data are not read


class ResultCosts(StoredFile):
    """What a method adds to a model, and how large and how fast its result is.

    Attributes:
        added_in_training: trained parameters that the plain model does not have.
        added_in_result: parameters of the exported model beyond those of the plain one.
        modules_added: modules with parameters, likewise.
        latency: time of a forward pass of the exported model divided by the plain model's, median of the rounds.
        latency_rounds: of each round of measurement.
        stored_bytes: size of the delta file.
        plain_bytes: bytes of the plain model's parameters.
        total: number of the plain model's parameters.
    """

    description: ClassVar[str] = "costs"
    remedy: ClassVar[str] = "delete it, and the next table measures again"

    method: str
    added_in_training: int
    added_in_result: int
    modules_added: int
    latency: float
    latency_rounds: list[float]
    stored_bytes: int
    plain_bytes: PositiveInt
    total: PositiveInt
    provenance: Provenance

    @classmethod
    def config_of(cls, method: str, *, protocol: str, backbone: str) -> RunConfig:
        """The configuration whose result is measured."""
        return resolve(task=_TASK, method=method, backbone=backbone, protocol=protocol, overrides=["kernels=torch"])

    @classmethod
    def path_of(cls, config: RunConfig, results_dir: Path, gpu: str | None = None) -> Path:
        """The file of a configuration's costs on a CPU, or on a GPU of that name."""
        inputs = config.model_dump(mode="json", include={"method", "settings", "stage1", "heads", "task_head"})
        return _path(config, results_dir, "costs", inputs, gpu)


class TrainingCosts(StoredFile):
    """What training by a method takes.

    Attributes:
        step_ratio: time of a step divided by that of the reference method; stages are weighted by their steps. Median of the
            rounds.
        step_ratio_rounds: of each round of measurement.
        step_s: seconds of a step.
        memory_bytes: at the peak of training, without the loaded model.
        stored_bytes: size of the delta file.
        scoring_s: seconds of scoring and choosing heads; 0 for a method that needs none.
        scoring_fraction: these seconds as a fraction of a whole run.
    """

    description: ClassVar[str] = "training costs"
    remedy: ClassVar[str] = "delete it, and the next table measures again"

    method: str
    step_ratio: float
    step_ratio_rounds: list[float]
    step_s: float
    memory_bytes: int
    stored_bytes: int
    scoring_s: float
    scoring_fraction: float
    provenance: Provenance

    @classmethod
    def config_of(cls, method: str, *, protocol: str, backbone: str, precision: str = "fp32") -> RunConfig:
        """The configuration whose training is measured."""
        overrides = [f"batch_size={TRAINING_BATCH}", f"precision={precision}"]
        return resolve(task=_TASK, method=method, backbone=backbone, protocol=protocol, overrides=overrides)

    @classmethod
    def path_of(cls, config: RunConfig, reference: str, results_dir: Path, gpu: str | None = None) -> Path:
        """The file of a configuration's costs relative to a reference method on a CPU, or on a GPU of that name."""
        inputs = config.model_dump(mode="json", exclude={"task", "seed", "protocol", "backbone", "device"})
        return _path(config, results_dir, "training-costs", {**inputs, "reference": reference}, gpu)


def _path(config: RunConfig, results_dir: Path, folder: str, inputs: dict[str, Any], gpu: str | None) -> Path:
    inputs = {**inputs, "device": gpu} if gpu else inputs  # a GPU's costs are not a CPU's
    return results_dir / folder / safe_name(config.backbone.name) / f"{safe_name(config.method)}-{digest(inputs)}.json"
