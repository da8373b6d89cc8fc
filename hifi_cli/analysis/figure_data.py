"""Compute a figure's CSV where it is missing or its inputs have changed, and keep what it was computed from next to it."""

import importlib
import logging
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pandas as pd

from hifi_cli.analysis.figure_request import FigureRequest, FigureTable
from hifi_cli.analysis.finished_trainings import FinishedTrainings
from hifi_cli.analysis.required_runs import RequiredRun, ensure_finished, ensure_weights
from hifi_cli.config.base import parse
from hifi_cli.errors import ConflictError
from hifi_cli.files import atomic_path, file_digest, locked, write_json
from hifi_cli.reports.figures.figure_spec import (
    FigureInputs,
    FigureMetadata,
    FigureSpec,
    module_name,
    read_metadata,
)
from hifi_cli.runs import provenance
from hifi_cli.runs.device import select_device
from hifi_cli.runs.resources import ResourceCache

_PROVENANCE = ("hifi", "git", "python", "libraries", "device")  # without the command, whose paths others should not see
logger = logging.getLogger("hifi")


def make_request(
    spec: FigureSpec, resources: ResourceCache, *, overrides: tuple[str, ...] = (), train: bool = False
) -> tuple[ModuleType, FigureRequest]:
    """Return the module that computes a figure, and the request for it with validated settings.

    Raises:
        UsageError: an unknown setting.
    """
    analysis = importlib.import_module(f"hifi_cli.analysis.{module_name(spec.kind)}")
    settings = parse(analysis.Settings, spec.settings, f"figure of kind {spec.kind}, settings")
    return analysis, FigureRequest(spec, resources, settings, overrides, train)


def required_runs(analysis: ModuleType, request: FigureRequest) -> list[RequiredRun]:
    """Return the runs that a figure is computed from (with `RUNS_ARE_OPTIONAL`: those that are finished); most need none."""
    runs: list[RequiredRun] = analysis.required_runs(request) if hasattr(analysis, "required_runs") else []
    return runs


def runs_to_train(analysis: ModuleType, request: FigureRequest, path: Path) -> list[RequiredRun]:
    """Return the runs without which the CSV cannot be computed: unfinished ones, or ones without weights if it needs them."""
    required = required_runs(analysis, request)
    unfinished = [run for run in required if not run.is_finished]
    if not _reads_weights(analysis) or (not unfinished and _current_metadata(path, _inputs(analysis, request))):
        return unfinished
    return [run for run in required if not (run.is_finished and run.has_weights)]


def compute(analysis: ModuleType, request: FigureRequest, path: Path, *, force: bool = False) -> None:
    """Compute a figure's CSV, unless the existing one was computed from the same inputs; write its metadata next to it.

    Raises:
        MissingError: runs, data or weights are missing.
        UsageError: a setting does not fit.
        ConflictError: the existing CSV has seeds that are not asked for, and `force` is not given.
    """
    metadata_path = path.with_suffix(".json")
    with locked(path.with_name(f".{path.stem}.lock"), wait=True):
        if not force:
            _refuse_fewer_seeds(request, path)  # before anything is trained
        if request.train or not getattr(analysis, "RUNS_ARE_OPTIONAL", False):
            ensure_finished(required_runs(analysis, request), request)
        inputs = _inputs(analysis, request)
        previous = None if force else _current_metadata(path, inputs)
        if previous:
            logger.info(f"numbers: {path} (computed before)")
            notes, versions = previous.analysis_notes, previous.provenance
        else:
            if _reads_weights(analysis):
                ensure_weights(required_runs(analysis, request), request)
                inputs = _inputs(analysis, request)  # a run that is trained again has another results.json
            trainings = path.with_name(f".{path.stem}.trainings.json")
            if force:
                trainings.unlink(missing_ok=True)
            finished = FinishedTrainings(trainings, inputs.hash_without_runs)
            table: FigureTable = analysis.compute(replace(request, finished=finished))
            metadata_path.unlink(missing_ok=True)  # a CSV without metadata is recomputed; with another's it would be wrong
            with atomic_path(path) as temporary:
                pd.DataFrame(table.rows).to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
            notes = table.notes
            device = select_device(request.config(request.spec.tasks[0]).device)
            versions = provenance.describe(device).model_dump(include=set(_PROVENANCE))
            logger.info(f"numbers: {path}")
        spec = request.spec
        metadata = FigureMetadata(
            description=spec.description,
            source=spec.source,
            tasks={task: request.resources.task(task).label for task in spec.tasks},
            backbone=request.config(spec.tasks[0]).backbone.name,
            protocol=spec.protocol,
            overrides=list(request.overrides),
            notes=[note for note in (spec.note, *notes, *_limit_notes(request)) if note],
            analysis_notes=notes,
            inputs_hash=inputs.hash,
            inputs=inputs,
            provenance=versions,
        )
        if metadata != previous:
            write_json(metadata_path, metadata.model_dump(mode="json"))


def _reads_weights(analysis: ModuleType) -> bool:
    return getattr(analysis, "READS_WEIGHTS", False)


def _current_metadata(path: Path, inputs: FigureInputs) -> FigureMetadata | None:
    """Return the metadata of a CSV that was computed from these inputs; None where there is none."""
    metadata_path = path.with_suffix(".json")
    if not path.is_file() or not metadata_path.is_file():
        return None
    metadata = read_metadata(path)
    return metadata if metadata.inputs_hash == inputs.hash else None


def _refuse_fewer_seeds(request: FigureRequest, path: Path) -> None:
    """Refuse to replace the numbers of more seeds, which may have taken hours."""
    if not path.is_file():
        return
    frame = pd.read_csv(path)
    if "seed" in frame and (others := set(frame["seed"].dropna().astype(int)) - set(request.spec.seeds)):
        raise ConflictError(
            f"{path} has numbers of seeds {', '.join(map(str, sorted(others)))}, which would be lost: name them in --seeds too,"
            " or add --force"
        )


def _inputs(analysis: ModuleType, request: FigureRequest) -> FigureInputs:
    spec, resources = request.spec, request.resources
    configs = [request.config(task, method, seed) for task in spec.tasks for method in spec.methods for seed in spec.seeds]
    reads_data = not getattr(analysis, "READS_RESULTS_ONLY", False)
    return FigureInputs(
        kind=spec.kind,
        settings=request.settings.model_dump(mode="json"),
        configs=[config.hash for config in configs],
        data={task: resources.fingerprint(task) for task in spec.tasks} if reads_data else {},
        backbone=resources.pretrained(configs[0]).weights_id if reads_data else None,
        runs=[run.fingerprint() for run in required_runs(analysis, request) if run.is_finished]
        + [[path.name, file_digest(path)] for path in _input_files(analysis, request) if path.is_file()],
    )


def _input_files(analysis: ModuleType, request: FigureRequest) -> list[Path]:
    """Return the files besides runs that a figure is computed from; most have none."""
    paths: list[Path] = analysis.input_files(request) if hasattr(analysis, "input_files") else []
    return paths


def _limit_notes(request: FigureRequest) -> list[str]:
    limit = request.config(request.spec.tasks[0]).limit
    return [f"only the first {limit} examples of each split are used"] if limit else []
