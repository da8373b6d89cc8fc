"""Parts that the runs of a command share: directories, and what was loaded from them so far."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import backbone_config
from hifi_cli.errors import UsageError
from hifi_cli.models import cpu_kernels
from hifi_cli.models.pretrained import Pretrained, load_backbone
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.run_paths import relative_run_path
from hifi_cli.runs.finished import FinishedRun, read_finished, rebuild
from hifi_cli.runs.identity import IdentityReader, digest_of_start, run_to_start_from
from hifi_cli.runs.inputs import ExampleCache, RowTokenizer, RunInputs, load_task, task_head_of
from hifi_cli.runs.prepare import PreparedRun
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.task_spec import TaskData, TaskSpec
from hifi_cli.training.device import select_device


@dataclass
class Workspace:
    """The directories that all runs of a command share, and what was loaded from them so far.

    Attributes:
        backbone: loaded for finished runs instead of the one that each names, which may be
            elsewhere here.
        trust: whether code may run that the files of a finished run name.
    """

    results_dir: Path
    data_dir: Path | None = None
    backbone: str | None = None
    trust: bool = False
    _data: dict[str, TaskData] = field(default_factory=dict)
    # The encoder that was loaded last, after the key of what it was loaded by.
    _last_pretrained: tuple[str, Pretrained] | None = None
    _examples: ExampleCache = field(default_factory=dict)

    @cached_property
    def identities(self) -> IdentityReader:
        """The reader of identities, which all runs of the command share."""
        return IdentityReader(self.results_dir, self.data_dir, self.data)

    def directory(self, config: RunConfig) -> RunDirectory:
        """Return the directory where a configuration's run belongs."""
        return RunDirectory.of(config, self.results_dir)

    def data(self, task: TaskSpec) -> TaskData:
        """Load the rows of every split of a task, once.

        Raises:
            MissingError: they are not here, and cannot be had from the hub.
            UsageError: the rows do not fit the task.
        """
        # The key is the whole YAML, not the name: the user's own YAMLs may give two tasks one name.
        # Which metric is primary changes no row.
        key = task.model_dump_json(exclude={"primary"})
        if key not in self._data:
            self._data[key] = task_sources.load(task, data_dir=self.data_dir)
        return self._data[key]

    def inputs(self, config: RunConfig, task: TaskSpec) -> RunInputs:
        """Load all that a run computes from.

        Args:
            task: the configuration's, as `load_task` gives it.

        Raises:
            MissingError: the data, the backbone, or the run to start from is not here.
            UsageError: they do not fit.
        """
        data = self.data(task)
        return RunInputs(config, task, data, self.tokenizer(config, task), self._examples)

    def tokenizer(self, config: RunConfig, task: TaskSpec) -> RowTokenizer:
        """Return what makes examples of a task's rows, for the run's encoder."""
        return RowTokenizer(config, task, self.pretrained(config, task))

    def pretrained(self, config: RunConfig, task: TaskSpec) -> Pretrained:
        """Return a run's backbone with the task head of its task; the last one loaded is kept."""
        task_head = task_head_of(config, task)
        key = f"{task_head} {config.values_that_decide('encoder')}"
        if self._last_pretrained is not None and self._last_pretrained[0] == key:
            return self._last_pretrained[1]
        # The old one goes before the new one is loaded: two large backbones may not fit in memory.
        self._last_pretrained = None
        loaded = self._load(config, task_head)
        self._last_pretrained = (key, loaded)
        return loaded

    def _load(self, config: RunConfig, task_head: TaskHeadSpec) -> Pretrained:
        """Load a run's backbone with a task head.

        With `start_from`, its weights are those of a finished run. That run is opened with its own
        encoder, by this function again: it may itself have started from another run.
        """
        loaded = load_backbone(config.backbone, task_head=task_head, dropout=config.dropout)
        if config.start_from:
            loaded = self._started_from(config.start_from, loaded, config)
        if config.kernels != "torch" and select_device(config.device).type == "cpu":
            cpu_kernels.install(loaded.encoder)
        return loaded

    def _started_from(self, run: str, loaded: Pretrained, config: RunConfig) -> Pretrained:
        """Put the encoder's weights of a finished run into a loaded backbone.

        Raises:
            MissingError: there is no such finished run.
            UsageError: it has another backbone, or its method adds modules that no plain encoder
                holds.
            RunFailed: it diverged.
        """
        start = read_finished(run_to_start_from(run, self.results_dir).path, trust=self.trust)
        merged = self._merged(start, config)
        weights = merged.encoder.base.state_dict()
        # Not strict: the other run's task head may have no pooler, and then the pooler keeps its
        # pretrained values.
        loaded.encoder.base.load_state_dict(weights, strict=False)
        # Weights of the other run are not missing any more, so that no seed draws them anew.
        names = {f"{loaded.model.base_model_prefix}.{name}" for name in weights}
        delta = str(start.result.delta_sha256)
        link = {
            "run": relative_run_path(str(start.directory.path.resolve())),
            "config_hash": start.result.config_hash,
            "delta_sha256": delta,
        }
        return replace(
            loaded,
            missing_keys=[name for name in loaded.missing_keys if name not in names],
            digest=digest_of_start(loaded.digest, delta),
            digest_of_schema_1=digest_of_start(loaded.digest_of_schema_1, delta),
            started_from=[link, *merged.pretrained.started_from],
        )

    def _merged(self, start: FinishedRun, config: RunConfig) -> PreparedRun:
        """Rebuild the model of a run to start from, with what its method added merged into it.

        Args:
            start: the run to start from.
            config: of the run that starts from it.

        Raises:
            UsageError: as `_started_from`.
        """
        # It is merged on the CPU by stock PyTorch, wherever the new run trains.
        here = {
            "backbone": config.backbone,
            "device": "cpu",
            "kernels": "torch",
            "deterministic": config.deterministic,
        }
        start_config = start.config.model_copy(update=here)
        task = load_task(start_config)
        pretrained = self._load(start_config, task_head_of(start_config, task))
        prepared = rebuild(start, start_config, task, pretrained)
        if not prepared.method.mergeable:
            raise UsageError(
                f"start_from={config.start_from}: method {start.result.method} adds modules that no"
                " plain encoder has"
            )
        prepared.method.merge(prepared.encoder)
        return prepared

    def open(self, path: Path) -> tuple[PreparedRun, RunResult]:
        """Rebuild a finished run's model, and return it with its record.

        Raises:
            MissingError: no finished run is there, or its backbone or its own delta is not.
            UsageError: its delta belongs to other backbone weights, or it names code that is not
                trusted.
            RunFailed: the run diverged and has no model.
        """
        finished = read_finished(path, trust=self.trust)
        # The run's own device may not be on this machine.
        config = finished.config.model_copy(update={"device": "auto"})
        if self.backbone:
            name = config.backbone.name
            elsewhere = backbone_config(self.backbone).model_copy(update={"name": name})
            config = config.model_copy(update={"backbone": elsewhere})
        task = load_task(config)
        prepared = rebuild(finished, config, task, self.pretrained(config, task))
        return prepared, finished.result
