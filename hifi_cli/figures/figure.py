"""`hifi figure`: compute a figure's numbers once, as a CSV, and draw it.

A kind of figure is a class with `rows(request)`, the numbers, and `draw(data) -> Figure`; its fields are the `settings` of
a figure's YAML. One that is drawn from finished runs has `cells(request)` too. All that figures ask of training is in this
file.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.config.figure_spec import FigureSpec
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.errors import ConflictError, MissingError, RunFailed, UsageError
from hifi_cli.figures import style
from hifi_cli.files import atomic_path
from hifi_cli.grids.cells import GridCell, variant
from hifi_cli.heads import select as head_selection
from hifi_cli.results.study import Study
from hifi_cli.training import run as runs
from hifi_cli.training.data import ResourceCache, load_splits, prepare
from hifi_cli.training.loop import Callback, Trainer
from hifi_cli.training.step import Diverged

KINDS = {  # the module and the class of each kind
    "correlation": "heads:Correlation",
    "damping": "heads:Damping",
    "features": "models:Features",
    "head-bench": "heads:HeadBench",
    "head-ranking": "heads:HeadRanking",
    "landscape": "models:Landscape",
    "richness": "heads:Richness",
    "search-budget": "sweep:SearchBudget",
    "singular-values": "heads:SingularValues",
    "sweep": "sweep:Sweep",
    "training-curves": "models:TrainingCurves",
    "tsne": "models:Tsne",
}
Row = dict[str, Any]
logger = logging.getLogger("hifi")


class Kind(ConfigModel):
    """A kind of figure, with its settings."""

    explanation: ClassVar[str] = ""
    """How to read the picture; printed below it, with the settings in braces."""
    reads_runs: ClassVar[bool] = False
    """Whether it is drawn from runs: of every task, method and seed, unless `cells` differs."""
    runs_are_optional: ClassVar[bool] = False
    """Whether it is drawn from the runs that are there, and each time anew."""

    def cells(self, request: "FigureRequest") -> list[GridCell]:
        """Return the runs that the figure is drawn from."""
        spec = request.spec
        every = product(spec.tasks, spec.methods, spec.seeds)
        return [request.cell(*names) for names in every] if self.reads_runs else []

    def compute(self, request: "FigureRequest") -> pd.DataFrame:
        """Compute the numbers."""
        return pd.DataFrame(self.rows(request))

    def rows(self, request: "FigureRequest") -> Iterable[Row]:
        """Return the numbers row by row."""
        raise NotImplementedError

    def draw(self, data: style.Frame) -> Figure:
        """Draw the numbers of a CSV."""
        raise NotImplementedError


@dataclass
class FigureRequest:
    """A figure to compute.

    Attributes:
        overrides: `key=value` of the command line; they win over everything else.
        train: whether missing runs are trained here.
    """

    spec: FigureSpec
    resources: ResourceCache
    overrides: tuple[str, ...] = ()
    train: bool = False

    def __post_init__(self) -> None:
        kind = self.spec.kind
        if kind not in KINDS:
            raise UsageError(f"unknown kind of figure '{kind}'{registry.nearest(kind, KINDS)}")
        kind_class: type[Kind] = resolve_name(f"hifi_cli.figures.{KINDS[kind]}")
        self.kind = parse(kind_class, self.spec.settings, f"figure of kind {kind}, settings")

    def config(
        self,
        task: str,
        method: str = "",
        seed: int | None = None,
        keys: Mapping[str, Any] | None = None,
        last: Sequence[str] = (),
    ) -> RunConfig:
        """Resolve the configuration of a run; method and seed default to the figure's first ones.

        Args:
            keys: keys that the command line may change.
            last: `key=value` that it may not.
        """
        spec = self.spec
        return resolve(
            task=task,
            method=method or spec.methods[0],
            backbone=spec.backbone,
            protocol=spec.protocol,
            seed=spec.seeds[0] if seed is None else seed,
            overrides=[*_words({**spec.config, **(keys or {})}), *self.overrides, *last],
        )

    def cell(
        self, task: str, method: str, seed: int, varied: Mapping[str, Any] | None = None
    ) -> GridCell:
        """Return a run that the figure is drawn from.

        Args:
            varied: keys that distinguish it from other runs of the task and method; they name its directory.
        """
        words = _words(varied or {})
        words += [f"variant={variant(words)}"] if words else []
        return GridCell(
            task=registry.argument_of(task),
            method=registry.argument_of(method),
            backbone=self.spec.backbone,
            protocol=registry.argument_of(self.spec.protocol),
            overrides=(*_words(self.spec.config), *self.overrides, *words),
            config=self.config(task, method, seed, last=words),
        )

    def runs(self) -> list[tuple[GridCell, Any]]:
        """Return the figure's runs that are done, each with its row of `Study.runs`.

        Raises:
            MissingError: runs are missing and not to be trained here, or have no score.
        """
        cells = self.kind.cells(self)
        for cell in cells if self.train else []:
            runs.run(cell.config, self.resources)
        finished = Study(self.resources.results_dir).runs
        done = {
            (run["path"], run["setting"]): run
            for _, run in finished.iterrows()
            if run["status"] == "done"
        }
        found = [
            (cell, done.get((cell.run_path.as_posix(), cell.config.setting_hash))) for cell in cells
        ]
        if missing := [cell.name for cell, run in found if run is None]:
            text = f"{len(missing)} of {len(cells)} runs are missing or diverged, the first is {missing[0]}"
            if not self.kind.runs_are_optional:
                raise MissingError(
                    f"{text}; --train trains them here, hifi grid of a YAML with `figure:` in parallel"
                )
            logger.warning(f"{text}; they are left out")
        return [(cell, run) for cell, run in found if run is not None]

    def head_scores(self, config: RunConfig) -> head_selection.HeadScores:
        """Return the head scores of a configuration: stored, or computed and stored now."""
        return head_selection.scores(config, self.resources)[0]


def _words(keys: Mapping[str, Any]) -> list[str]:
    return [f"{key}={override_value(value)}" for key, value in keys.items()]


def compute(request: FigureRequest, csv: Path, *, force: bool = False) -> pd.DataFrame:
    """Return a figure's numbers: of its CSV where there is one, or else computed, and stored there.

    Raises:
        MissingError: runs, data or weights are missing.
        UsageError: a setting does not fit.
        ConflictError: the CSV has other seeds, and `force` is not given.
    """
    if csv.is_file() and not force and not request.kind.runs_are_optional:
        data = pd.read_csv(csv)
        if "seed" in data and {*data["seed"]} != {*request.spec.seeds}:  # they may have taken hours
            seeds = ",".join(map(str, sorted({*data["seed"]})))
            raise ConflictError(
                f"{csv} has the seeds {seeds}: give --seeds {seeds}, or --force to replace it"
            )
        logger.info(f"numbers: {csv} (computed before; --force computes them again)")
        return data
    computed = request.kind.compute(request)
    with atomic_path(csv) as temporary:
        computed.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
    logger.info(f"numbers: {csv}")
    return pd.read_csv(csv)  # what is drawn is what is stored


def draw(request: FigureRequest, data: pd.DataFrame, out: Path) -> None:
    """Draw a figure's numbers to a PNG, PDF or SVG."""
    spec = request.spec
    tasks = ", ".join(registry.label_of("tasks", task) for task in spec.tasks)
    title = f"{spec.description}: {tasks}; {registry.name_of(spec.backbone)}"
    explanation = request.kind.explanation.format(**request.kind.model_dump())
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # warns of matplotlib's own fonts
    with mpl.rc_context(style.SETTINGS):
        figure = request.kind.draw(data)
        style.add_caption(figure, title, ". ".join(filter(None, [explanation, spec.note])))
        with atomic_path(out) as temporary:
            figure.savefig(temporary, format=out.suffix[1:].lower())


def train(
    config: RunConfig, resources: ResourceCache, *callbacks: Callback, only_stage1: bool = False
) -> Trainer:
    """Train as a run does, without evaluation, and leave the model as it is after the last step.

    Args:
        only_stage1: end after stage 1 of a two-stage method, whose model no run stores.

    Raises:
        RunFailed: the loss is not finite.
    """
    if only_stage1 and config.stage1 is None:
        raise UsageError(
            f"method {config.method} has one stage; this figure is for EH-FT and LP-FT"
        )
    prepared = prepare(config, resources, head_selection.select_heads(config, resources))
    splits = replace(load_splits(config, resources), reported=[])
    trainer = Trainer(prepared, splits, callbacks=callbacks)
    for phase in trainer.phases:
        phase.method.trains_occurring_words = (
            False  # callbacks read all gradients and weights in every step
        )
    trainer.max_steps = trainer.phase_ends[-2] if only_stage1 else None
    try:
        trainer.train()
    except Diverged as error:
        raise RunFailed(f"{runs.name(config)}: {error}; try a smaller learning_rate=...") from None
    return trainer
