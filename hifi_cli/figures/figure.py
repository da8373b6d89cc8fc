"""`hifi figure`: compute a figure's numbers once, as a CSV, and draw it.

A kind of figure is a class with `rows(request)`, the numbers, `draw(data) -> Figure`, and
`explanation(data)`, the words below the picture; its fields are the `settings` of a figure's YAML.
One that is drawn from runs of its own has `cells(request)` too, which `hifi grid figure-NAME`
trains. `FigureRequest.runs` gives the results of these runs, and `train` trains a run whose weights
a figure needs step by step.
"""

import json
import logging
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from hifi_cli._version import __version__
from hifi_cli.config import registry
from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.config.draws import draws_of
from hifi_cli.config.figure_spec import FigureSpec
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import override_value, resolve
from hifi_cli.digests import digest
from hifi_cli.drawing import style
from hifi_cli.errors import ConflictError, MissingError, RunFailed, UsageError, logger
from hifi_cli.files import atomic_path, read_json, write_text
from hifi_cli.grids import cells as grid_cells
from hifi_cli.grids.cells import GridCell
from hifi_cli.grids.grid_spec import GridSpec
from hifi_cli.methods.find import values_of
from hifi_cli.records.figure_runs import FigureRun, file_beside, read_numbers, write_beside
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.records.stored import is_packed
from hifi_cli.records.study import Study
from hifi_cli.runs.heads import HeadSelector, needs_heads
from hifi_cli.runs.inputs import load_task
from hifi_cli.runs.prepare import prepare_run
from hifi_cli.runs.run import run
from hifi_cli.runs.splits import load_splits
from hifi_cli.runs.workspace import Workspace
from hifi_cli.training.device import select_device, set_up_device
from hifi_cli.training.loop import Callback, Trainer

# The module and the class of each kind.
KINDS = {
    "correlation": "heads:Correlation",
    "curves": "curves:Curves",
    "damping": "heads:Damping",
    "features": "models:Features",
    "forest": "forest:Forest",
    "head-bench": "heads:HeadBench",
    "head-ranking": "heads:HeadRanking",
    "landscape": "models:Landscape",
    "richness": "heads:Richness",
    "scores": "scores:Scores",
    "search-budget": "sweep:SearchBudget",
    "singular-values": "heads:SingularValues",
    "sweep": "sweep:Sweep",
    "training-curves": "models:TrainingCurves",
    "tsne": "models:Tsne",
}
Row = dict[str, Any]


class Kind(ConfigModel):
    """A kind of figure, with its settings."""

    shows_finished_runs: ClassVar[bool] = False
    """Whether the figure shows the finished runs that there are, whichever these are. It is
    computed in a moment, and so each time anew: runs may have come."""

    def cells(self, request: "FigureRequest") -> list[GridCell]:  # noqa: ARG002
        """Give the runs that the figure trains and is drawn from; here none."""
        return []

    @abstractmethod
    def rows(self, request: "FigureRequest") -> Iterable[Row]:
        """Yield the numbers row by row, a value for each column of the CSV."""

    @abstractmethod
    def explanation(self, data: style.Frame) -> str:
        """Say how to read the picture, below it: what is drawn of these numbers, and nothing else."""

    @abstractmethod
    def draw(self, data: style.Frame) -> Figure:
        """Draw the numbers of a CSV, whose columns are those of `rows`."""


@dataclass
class FigureRequest:
    """A figure to compute.

    Attributes:
        spec: the figure, as its YAML and the options say.
        workspace: the directories of data and results.
        overrides: `key=value` of the command line; they win over everything else.
        trains_missing_runs: whether `runs` trains what is not there.
        picture: where it is drawn; None: beside its numbers in the results directory.
        grid: the command that trains its runs in parallel; empty: none does.
        kind: the kind of figure, with the YAML's settings.
        csv: the file of its numbers.
        rests_on: the runs that its numbers were computed from so far, each once.
        task_names: the tasks of the finished runs so far; one of the user's own carries the path of the
            copy that its run keeps.
    """

    spec: FigureSpec
    workspace: Workspace
    overrides: tuple[str, ...] = ()
    trains_missing_runs: bool = False
    picture: Path | None = None
    grid: str = ""
    kind: Kind = field(init=False)
    csv: Path = field(init=False)
    rests_on: dict[tuple[str, str], FigureRun] = field(default_factory=dict)
    task_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the kind of the figure, and where its numbers are stored.

        Raises:
            UsageError: there is no such kind, or the figure has no task, method or seed that it needs.
        """
        kind = self.spec.kind
        if kind not in KINDS:
            raise UsageError(f"unknown kind of figure '{kind}'{registry.did_you_mean(kind, KINDS)}")
        kind_class: type[Kind] = resolve_name(f"hifi_cli.figures.{KINDS[kind]}")
        self.kind = parse(kind_class, self.spec.settings, f"figure of kind {kind}, settings")
        if not self.kind.shows_finished_runs:
            for key in ("tasks", "methods", "seeds"):
                if not getattr(self.spec, key):
                    raise UsageError(f"figure {self.spec.name}, {key}: one or more are required")
        if self.kind.shows_finished_runs and self.picture is not None:
            # Nobody reads these numbers again, and the results may be a study of somebody else.
            self.csv = self.picture.with_name(f"{self.picture.name}.csv")
        else:
            self.csv = self.spec.csv(self.workspace.results_dir, self.overrides)

    def words(self, **keys: Any) -> list[str]:
        """Give the `key=value` of the figure's runs: the YAML's and `keys`, then the command line's."""
        keys = {**self.spec.config, **keys}
        words = [f"{key}={override_value(value)}" for key, value in keys.items()]
        return [*words, *self.overrides]

    def config(
        self, task: str, method: str = "", seed: int | None = None, **keys: Any
    ) -> RunConfig:
        """Resolve the configuration of a run; method and seed default to the figure's first ones.

        Args:
            task: its name.
            method: its name; empty: the figure's first one.
            seed: None: the figure's first one.
            keys: configuration keys, which the command line may change.
        """
        spec = self.spec
        return resolve(
            task=task,
            method=method or spec.methods[0],
            backbone=spec.backbone,
            protocol=spec.protocol,
            seed=spec.seeds[0] if seed is None else seed,
            overrides=self.words(**keys),
            origin=f"figure {spec.name}",
        )

    def head_selector(self, config: RunConfig) -> HeadSelector:
        """Load what a configuration's heads are selected from, and note that the figure measures it."""
        self.note_computed(config)
        return HeadSelector.of(config, self.workspace)

    def cells(
        self, tasks: list[str], methods: list[str], varied: Mapping[str, Any]
    ) -> list[GridCell]:
        """Give runs that the figure is drawn from, of all its seeds.

        Args:
            tasks: their names.
            methods: their names.
            varied: keys that distinguish them from other runs of the task and method; they name
                their directories.
        """
        grid = GridSpec(
            protocol=registry.argument_of(self.spec.protocol),
            backbone=self.spec.backbone,
            tasks=[registry.argument_of(task) for task in tasks],
            methods={registry.argument_of(method): {} for method in methods},
            seeds=self.spec.seeds,
            vary={key: [value] for key, value in varied.items()},
        )
        words = [word for word in self.words() if word.partition("=")[0] not in varied]
        return grid_cells.cells(grid, self.spec.name, words, values_of)

    def runs(self) -> dict[GridCell, RunResult]:
        """Give the figure's runs that are done, in the order of its cells.

        Raises:
            MissingError: runs are missing and not to be trained here, or have no score.
        """
        cells = self.kind.cells(self)
        if self.trains_missing_runs:
            for cell in cells:
                run(cell.config, self.workspace)
        study = Study(self.workspace.results_dir)
        done: dict[GridCell, RunResult] = {}
        for cell in cells:
            path = cell.config.run_path.as_posix()
            result = study.results.get(path)
            if result is None or not result.is_done:
                continue
            # A run in the same place may have had other settings: it is not the figure's run.
            if result.setting_hash == cell.config.setting_hash:
                done[cell] = result
                self.note_finished(path, result)
        missing = [cell.config.run_label for cell in cells if cell not in done]
        if missing:
            found = f"{len(missing)} of {len(cells)} runs are missing or diverged, the first is {missing[0]}"
            raise MissingError("; ".join([found, *self._ways_to_train()]))
        return done

    def _ways_to_train(self) -> list[str]:
        """Say how missing runs of the figure are trained."""
        ways = []
        if self.grid:
            ways.append(f"{self.grid} trains them in parallel")
        # A packed study takes no new runs.
        if not is_packed(self.workspace.results_dir):
            ways.append("--train trains them one after the other")
        return ways

    def note_finished(self, path: str, result: RunResult) -> None:
        """Note a finished run of the results that the figure's numbers are of."""
        self.rests_on[path, result.config_hash] = FigureRun.of(path, result)
        directory = RunDirectory(self.workspace.results_dir / path)
        self.task_names.append(directory.user_name("tasks", result.task))

    def note_computed(self, config: RunConfig) -> FigureRun:
        """Note what the figure trains or measures itself, by all that decides its numbers."""
        task = load_task(config)
        identity = self.workspace.identities.identity(config, task)
        device = select_device(config.device).type
        path = config.run_path.as_posix()
        self.rests_on[path, config.config_hash] = FigureRun(
            run=path,
            is_finished=False,
            config_hash=config.config_hash,
            task_digest=identity.task_digest,
            data=identity.data_digests or {},
            backbone_weights=identity.encoder_digest,
            method_code=identity.code_digest,
            draws=draws_of(config, [device], selects_heads=needs_heads(config)),
        )
        return self.rests_on[path, config.config_hash]

    @property
    def parts(self) -> Path:
        """The folder that keeps the rows of each training until the figure is whole."""
        return self.csv.with_suffix(".parts")

    def part(self, config: RunConfig, compute: Callable[[], Iterable[Row]]) -> list[Row]:
        """Give the rows of one training of the figure, which is not repeated after a stop.

        The trainings of a figure store no run. A command that was stopped in the last of them has
        kept the rows of the others here.

        Args:
            config: of the training.
            compute: trains, and yields the rows.
        """
        run = self.note_computed(config)
        settings = self.kind.model_dump(mode="json")
        decides = [self.spec.kind, settings, self.spec.seeds, run.model_dump(), __version__]
        file = self.parts / f"{digest(decides)}.json"
        if file.is_file():
            try:
                rows: list[Row] = read_json(file)["rows"]
                logger.info(f"{config.run_label}: trained before, by a command that was stopped")
                return rows
            except (UsageError, KeyError) as error:
                logger.warning(f"{error}: done now")
        rows = list(compute())
        # A number of numpy is written as one of Python.
        text = json.dumps({"rows": rows}, default=lambda number: number.item())
        try:
            write_text(file, text)
        except (RunFailed, OSError) as error:
            # The figure itself may still be stored.
            logger.warning(f"{config.run_label}: would be trained again after a stop: {error}")
        return rows


def compute(request: FigureRequest, *, force: bool = False) -> pd.DataFrame:
    """Read a figure's numbers from its CSV where there is one, or else compute and store them there.

    The runs that they rest on are stored beside the CSV.

    Returns:
        A row for each one that the `rows` of its kind yields, whose keys are the columns.

    Raises:
        MissingError: runs, data or weights are missing.
        UsageError: a setting does not fit.
        ConflictError: the CSV has other seeds, and `force` is not given.
    """
    csv = request.csv
    if csv.is_file() and not force and not request.kind.shows_finished_runs:
        data = read_numbers(csv)
        # Numbers of other seeds are not replaced unasked: they may have taken hours.
        if "seed" in data and set(data["seed"]) != set(request.spec.seeds):
            seeds = ",".join(map(str, sorted(set(data["seed"]))))
            raise ConflictError(
                f"{csv} has the seeds {seeds}: give --seeds {seeds}, or --force to replace it"
            )
        logger.info(f"numbers: {csv} (computed before; --force computes them again)")
        if not file_beside(csv).is_file():
            logger.info(
                f"{csv.name} does not say which runs it rests on: no {file_beside(csv).name}"
            )
        return data
    if force:
        shutil.rmtree(request.parts, ignore_errors=True)
    computed = pd.DataFrame(request.kind.rows(request))
    with atomic_path(csv) as temporary:
        computed.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
    write_beside(csv, list(request.rests_on.values()))
    shutil.rmtree(request.parts, ignore_errors=True)
    logger.info(f"numbers: {csv}")
    # The picture shows what is stored.
    return read_numbers(csv)


def draw(request: FigureRequest, data: pd.DataFrame, out: Path) -> None:
    """Draw a figure's numbers.

    Args:
        request: which figure.
        data: the columns of its CSV, as `compute` returns them.
        out: a PNG, PDF or SVG, by its suffix.
    """
    spec = request.spec
    data = style.with_own_tasks(data, [*spec.tasks, *request.task_names])
    names = spec.tasks or sorted(data["task"].dropna().unique())
    tasks = ", ".join(registry.label_of("tasks", task) for task in names)
    title = f"{spec.description}: {tasks}; {registry.name_of(spec.backbone)}"
    if request.kind.shows_finished_runs:
        title += f", protocol {spec.protocol}"
    notes = [request.kind.explanation(data), spec.note]
    # Figures of finished runs leave limited ones out.
    limit = None
    if not request.kind.shows_finished_runs:
        limit = request.config(spec.tasks[0]).limit
    if limit is not None:
        notes.append(f"Rows are limited to {limit:,} of each split.")
    # It warns of matplotlib's own fonts.
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    with mpl.rc_context(style.SETTINGS):
        figure = request.kind.draw(data)
        style.add_caption(figure, title, " ".join(notes))
        with atomic_path(out) as temporary:
            figure.savefig(temporary, format=out.suffix[1:].lower())


def train(
    config: RunConfig,
    request: FigureRequest,
    callback: Callback | None = None,
    *,
    until_last_stage: bool = False,
) -> Trainer:
    """Train as a run does, without evaluation, and leave the model as it is after the last step.

    Args:
        config: of the run.
        request: its workspace has data and encoder; the training is noted there.
        callback: is called in every step.
        until_last_stage: whether it ends where the last stage would begin. A method with one stage
            trains nothing then.
    """
    request.note_computed(config)
    workspace = request.workspace
    device = set_up_device(config)
    task = load_task(config)
    inputs = workspace.inputs(config, task)
    heads = HeadSelector(inputs, device, workspace.results_dir).heads_to_tune()
    # Without rows to report, the trainer measures nothing after an epoch.
    splits = replace(load_splits(inputs), reported=[])
    prepared = prepare_run(config, task, inputs.pretrained, device, heads)
    # A callback reads all gradients and weights in every step.
    trainer = Trainer(prepared, prepared.method, splits, callback=callback, trains_all_words=True)
    max_steps = None
    if until_last_stage:
        # As many as all stages before it have: 0, if it is the only one.
        max_steps = trainer.plan.stage_steps[-1].start
    if max_steps != 0:
        logger.info(f"{config.run_label}: training for this figure alone")
        trainer.train(max_steps)
    return trainer
