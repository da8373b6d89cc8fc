"""The files of measured costs: of a method's result, and of its training."""

from typing import ClassVar

from pydantic import PositiveInt

from hifi_cli.records.run_files import Provenance
from hifi_cli.records.stored_file import StoredFile


class ResultCosts(StoredFile):
    """What a method adds to a model, and how large and how fast its result is.

    Attributes:
        added_in_training: trained parameters that the plain model does not have.
        added_in_result: parameters of the exported model beyond those of the plain one.
        modules_added: modules with parameters, likewise.
        latency: time of a forward pass of the exported model divided by the plain model's.
        stored_bytes: size of the delta file.
        plain_bytes: bytes of the plain model's parameters.
        total: number of the plain model's parameters.
    """

    schema_number: ClassVar[int] = 2
    description: ClassVar[str] = "costs"
    remedy: ClassVar[str] = "delete it, and the next table measures again"

    method: str
    added_in_training: int
    added_in_result: int
    modules_added: int
    latency: float
    stored_bytes: int
    plain_bytes: PositiveInt
    total: PositiveInt
    provenance: Provenance


class TrainingCosts(StoredFile):
    """What training by a method takes.

    Attributes:
        step_ratio: time of a step divided by that of the reference method; stages are weighted by their steps.
        step_s: seconds of a step.
        memory_bytes: at the peak of training, without the loaded model.
        stored_bytes: size of the delta file.
        scoring_s: seconds of scoring and choosing heads; 0 for a method that needs none.
        scoring_fraction: these seconds as a fraction of a whole run.
    """

    schema_number: ClassVar[int] = 2
    description: ClassVar[str] = "training costs"
    remedy: ClassVar[str] = "delete it, and the next table measures again"

    method: str
    step_ratio: float
    step_s: float
    memory_bytes: int
    stored_bytes: int
    scoring_s: float
    scoring_fraction: float
    provenance: Provenance
