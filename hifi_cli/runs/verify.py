"""Whether the stored results of finished runs hold: their files are consistent, and the rebuilt model gives the scores."""

from dataclasses import dataclass, field
from pathlib import Path

from hifi_cli.errors import HifiError, MissingError
from hifi_cli.records.run_checks import VerificationResult, problems
from hifi_cli.records.run_directory import RunDirectory, run_directories
from hifi_cli.runs import evaluate as evaluation
from hifi_cli.runs.evaluate import Evaluation
from hifi_cli.runs.finished_model import check_has_weights
from hifi_cli.runs.resources import ResourceCache


@dataclass(frozen=True)
class Verification:
    """The verification of a finished run.

    Attributes:
        problems: what does not hold, or what is missing.
        evaluation: None where the model was not rebuilt.
    """

    path: Path
    verdict: VerificationResult
    problems: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None


def finished_directories(path: Path) -> list[tuple[RunDirectory, Path | None]]:
    """The run in a directory, or all finished runs of a results directory, which each run then comes with.

    Raises:
        MissingError: there is none.
    """
    if RunDirectory(path).config_file.is_file() or RunDirectory(path).results.is_file():
        return [(RunDirectory(path), None)]
    directories = [directory for directory in run_directories(path) if directory.results.is_file()]
    if not directories:
        raise MissingError(f"no finished run in {path}: name a run's directory or a results directory")
    return [(directory, path) for directory in directories]


def verify(
    directory: RunDirectory, resources: ResourceCache, *, data_dir: Path | None = None, results_dir: Path | None = None
) -> Verification:
    """Check the files of a finished run against one another, rebuild its model, and evaluate it again.

    Args:
        data_dir: None: the data are where the run was trained.
        results_dir: the run must be at its configuration's path in this directory.
    """
    path, so_far = directory.path, ""
    try:
        if contradictions := problems(directory, results_dir):
            return Verification(path, VerificationResult.DIFFERS, contradictions)
        so_far = "its files agree, the model is not checked: "
        if not directory.read_result().is_done:
            return Verification(path, VerificationResult.DIVERGED)
        check_has_weights(directory)
        resources.use_data_dir(data_dir or evaluation.stored_data_dir(path))
        evaluated = evaluation.evaluate(path, resources)
    except HifiError as error:
        return Verification(path, VerificationResult.NOT_VERIFIED, [f"{so_far}{error}"])
    differing, manifest = evaluated.differing, directory.read_manifest()
    if manifest.heads != evaluated.heads:
        differing.append("heads (those in manifest.json are not those of the delta)")
    if manifest.backbone_weights_id != evaluated.backbone_weights_id:
        differing.append("backbone_weights_id (the one in manifest.json is not that of the backbone)")
    return Verification(path, VerificationResult.DIFFERS if differing else VerificationResult.VERIFIED, differing, evaluated)
