"""`hifi figure`: compute a figure's numbers once, as a CSV, and draw it.

A kind of figure is a module of this package with `Settings`, `compute(request) -> DataFrame` and
`draw(data, record) -> Figure`. One that is drawn from finished runs has `cells(request)` too, and may
say `READS_WEIGHTS = True`, or `RUNS_ARE_OPTIONAL = True`.
"""

import importlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.base import parse
from hifi_cli.config.figure_spec import FigureRecord, FigureSpec, read_record
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import ConflictError, MissingError, RunFailed, UsageError
from hifi_cli.figures import style
from hifi_cli.files import atomic_path, command_line, digest, locked, read_json, write_json, write_text
from hifi_cli.grids.cells import GridCell, variant
from hifi_cli.heads.select import select_heads
from hifi_cli.results.study import Study
from hifi_cli.training import provenance
from hifi_cli.training import run as runs
from hifi_cli.training.data import ResourceCache, load_splits
from hifi_cli.training.loop import Callback, Diverged, Trainer

Row = dict[str, Any]
# Of a record: what changes no number
_WORDS = {"description", "source", "note"}
_NOT_INPUTS = _WORDS | {"notes", "hifi", "commit", "protocols"}
logger = logging.getLogger("hifi")


def module_of(kind: str) -> ModuleType:
    """Return the module that computes and draws a kind of figure."""
    return importlib.import_module(f"hifi_cli.figures.{kind.replace('-', '_')}")


@dataclass
class FigureRequest:
    """A figure to compute.

    Attributes:
        overrides: `key=value` of the command line; they win over everything else.
        train: whether missing runs are trained here.
        trainings: where rows of the figure's own trainings are kept until it is complete; None: nowhere.
        notes: what a reader must know besides, printed below the picture; `compute` adds to them.
    """

    spec: FigureSpec
    resources: ResourceCache
    overrides: tuple[str, ...] = ()
    train: bool = False
    trainings: Path | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module = module_of(self.spec.kind)
        self.settings = parse(self.module.Settings, self.spec.settings, f"figure of kind {self.spec.kind}, settings")
        self.study = Study(self.resources.results_dir)

    @property
    def over_seeds(self) -> str:
        """A note on what a point with error bars is."""
        seeds = len(self.spec.seeds)
        return "one seed" if seeds == 1 else f"mean of {seeds} seeds, bars: their standard deviation"

    def config(
        self, task: str, method: str | None = None, seed: int | None = None, extra: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """Resolve the configuration of one of the figure's runs; method and seed default to its first ones.

        Raises:
            UsageError: a name, key or value is wrong.
        """
        seed = self.spec.seeds[0] if seed is None else seed
        return self._resolve(task, method or self.spec.methods[0], seed, self._words(extra))

    def _words(self, extra: Mapping[str, Any] | None = None) -> list[str]:
        keys = {**self.spec.config, **(extra or {})}
        return [*(f"{key}={override_value(value)}" for key, value in keys.items()), *self.overrides]

    def _resolve(self, task: str, method: str, seed: int, words: list[str]) -> RunConfig:
        spec = self.spec
        return resolve(task=task, method=method, backbone=spec.backbone, protocol=spec.protocol, seed=seed, overrides=words)

    def cell(self, task: str, method: str, seed: int, varied: Mapping[str, Any] | None = None) -> GridCell:
        """Return a run that the figure is drawn from.

        Args:
            varied: keys that distinguish it from other runs of the task and method; they name its directory.
        """
        words = [f"{key}={override_value(value)}" for key, value in (varied or {}).items()]
        overrides = [*self._words(), *words, *([f"variant={variant(words)}"] if words else [])]
        config = self._resolve(task, method, seed, overrides)
        named = {"tasks": task, "methods": method, "protocols": self.spec.protocol}
        task, method, protocol = (registry.argument_of(kind, name) for kind, name in named.items())
        return GridCell(task, method, self.spec.backbone, protocol, tuple(overrides), config)

    def cell_per_seed(self) -> list[GridCell]:
        """Return a run for every task, method and seed."""
        spec = self.spec
        return [self.cell(task, method, seed) for task in spec.tasks for method in spec.methods for seed in spec.seeds]

    def cells(self) -> list[GridCell]:
        """Return the runs that the figure is drawn from; most figures need none."""
        cells: list[GridCell] = self.module.cells(self) if hasattr(self.module, "cells") else []
        return cells

    def run(self, cell: GridCell) -> Any:
        """Return a cell's row of `Study.runs`; None: it did not finish with exactly this configuration."""
        finished = self.study.runs
        is_it = (finished["path"] == cell.run_path.as_posix()) & (finished["setting"] == cell.config.setting_hash)
        return finished[is_it].iloc[0] if is_it.any() else None

    def missing(self) -> list[GridCell]:
        """Return the runs that did not finish, or have no weights where the figure reads them."""
        needs_weights, results_dir = getattr(self.module, "READS_WEIGHTS", False), self.resources.results_dir
        return [
            cell
            for cell in self.cells()
            if self.run(cell) is None or (needs_weights and not cell.run_directory(results_dir).delta.is_file())
        ]

    def missing_commands(self) -> list[list[str]]:
        """Return the `hifi train` command of each missing run; with --force of those that lack nothing but weights."""
        data_dir = self.resources.data_dir
        where = ["--results-dir", str(self.resources.results_dir), *(["--data-dir", str(data_dir)] if data_dir else [])]
        return [cell.train_command(where, force=self.run(cell) is not None) for cell in self.missing()]

    def once(self, config: RunConfig, train: Callable[[], Iterable[Row]], part: str = "") -> list[Row]:
        """Return the rows of one of the figure's own trainings: stored by an interrupted computation, or else of `train`.

        Args:
            part: which rows, where one configuration may give others.
        """
        key = digest([config.hash, self.settings.model_dump(mode="json"), part])
        stored: dict[str, list[Row]] = {}
        if self.trainings and self.trainings.is_file():
            stored = read_json(self.trainings, what="rows of finished trainings")
        if key not in stored:
            logger.info(f"{runs.name(config)}: training")
            stored[key] = list(train())
            if self.trainings:  # json.dumps writes NaN, which a silhouette of one class is
                write_text(self.trainings, json.dumps(stored))
        return stored[key]

    def record(self) -> FigureRecord:
        """Return what is stored next to the CSV."""
        config, made = self.config(self.spec.tasks[0]), provenance.describe()
        limit = [f"only the first {config.limit} examples of each split are used"] if config.limit else []
        values = {
            **self.spec.model_dump(exclude={"protocols"}),
            "backbone": config.backbone.name,
            "settings": self.settings.model_dump(mode="json"),
            "overrides": list(self.overrides),
            "notes": [*self.notes, *limit],
            "hifi": made.hifi,
            "commit": made.git and made.git.commit + "+" * made.git.changed,
        }
        return FigureRecord.model_validate(values)


def compute(request: FigureRequest, csv: Path, *, force: bool = False) -> None:
    """Compute a figure's CSV, unless it is there, and store what it is of in a JSON next to it.

    Raises:
        MissingError: runs, data or weights are missing.
        UsageError: a setting does not fit.
        ConflictError: the existing CSV has seeds that are not asked for, and `force` is not given.
    """
    with locked(csv.with_name(f".{csv.stem}.lock"), wait=True):
        if not force and _is_computed(request, csv):
            logger.info(f"numbers: {csv} (computed before; --force computes them again)")
            return
        if request.train or not getattr(request.module, "RUNS_ARE_OPTIONAL", False):
            _train_missing(request)
        request.trainings = csv.with_name(f".{csv.stem}.trainings.json")
        if force:
            request.trainings.unlink(missing_ok=True)
        frame: pd.DataFrame = request.module.compute(request)
        csv.with_suffix(".json").unlink(missing_ok=True)  # a CSV without it is computed again
        with atomic_path(csv) as temporary:
            frame.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
        _write(request.record(), csv)
        request.trainings.unlink(missing_ok=True)
        logger.info(f"numbers: {csv}")


def draw(csv: Path, out: Path) -> None:
    """Draw a CSV that `hifi figure` wrote, as the JSON next to it says.

    Raises:
        MissingError: the CSV or its JSON is missing.
        UsageError: one of them is damaged.
    """
    if not csv.is_file():
        raise MissingError(f"{csv} does not exist; hifi figure NAME computes it")
    record = read_record(csv)
    try:
        with style.house_style():
            figure = module_of(record.kind).draw(pd.read_csv(csv), record)
            style.add_caption(figure, record)
            no_date = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}  # the same numbers give the same file
            suffix = out.suffix.lower()
            with atomic_path(out) as temporary:
                figure.savefig(temporary, format=suffix[1:], metadata=no_date.get(suffix))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"{csv} and its .json do not hold this figure ({problem}); --force computes it again") from error


def train(config: RunConfig, resources: ResourceCache, *callbacks: Callback) -> runs.PreparedRun:
    """Train as a run does, without evaluation, and leave the model as it is after the last step.

    Raises:
        RunFailed: the loss is not finite.
    """
    heads, splits = select_heads(config, resources), load_splits(config, resources)
    prepared = runs.prepare(config, resources, heads)
    trainer = Trainer(
        prepared.runner,
        prepared.method,
        splits.train,
        callbacks=callbacks,
        calibration_batches=splits.calibration_batches,
    )
    try:
        trainer.train()
    except Diverged as error:
        raise RunFailed(f"{runs.name(config)}: {error}; try a smaller learning_rate=...") from None
    return prepared


class StopAfterStage1(Callback):
    """Ends the training of a two-stage method after the last step of stage 1, whose model no run stores."""

    def on_train_begin(self, trainer: Trainer) -> None:
        trainer.max_steps = trainer.phase_ends[-2]


def _is_computed(request: FigureRequest, csv: Path) -> bool:
    """Whether a CSV is of the requested figure; then its record gets the words of the present YAML."""
    if not (csv.is_file() and csv.with_suffix(".json").is_file()):
        return False
    previous, requested = read_record(csv), request.record()
    if previous.model_dump(mode="json", exclude=_NOT_INPUTS) != requested.model_dump(mode="json", exclude=_NOT_INPUTS):
        if lost := sorted({*previous.seeds} - {*requested.seeds}):  # they may have taken hours
            raise ConflictError(
                f"{csv} has numbers of seeds {', '.join(map(str, lost))}, which would be lost:"
                " name them in --seeds too, or add --force"
            )
        return False
    if request.train and request.missing():
        return False
    _write(previous.model_copy(update=requested.model_dump(include=_WORDS)), csv)
    return True


def _write(record: FigureRecord, csv: Path) -> None:
    write_json(csv.with_suffix(".json"), record.model_dump(mode="json", exclude={"protocols"}))


def _train_missing(request: FigureRequest) -> None:
    """Train the runs that a figure lacks where the request says so.

    Raises:
        MissingError: it does not; the first command is named.
        RunFailed: a run ended without a score.
    """
    cells, missing, resources = request.cells(), request.missing(), request.resources
    if missing and not request.train:
        first, *others = request.missing_commands()
        more = f" and {len(others)} more commands (--print shows all)" if others else ""
        what = "missing or have no weights" if any(request.run(cell) is not None for cell in missing) else "missing"
        command = f"{command_line(first)}{more}"
        raise MissingError(f"{len(missing)} of {len(cells)} runs are {what}: {command}; --train trains them here")
    for cell in missing:
        runs.run(cell.config, resources, force=request.run(cell) is not None)
    request.study = Study(resources.results_dir)
    for cell in cells:
        if (run := request.run(cell)) is not None and run["status"] != "done":
            raise RunFailed(f"the run in {run['path']} {run['status']}: the figure cannot be drawn with it")
