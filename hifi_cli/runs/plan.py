"""The plan of a run, for `--dry-run`: nothing is written, and the network is not asked."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import architecture_of
from hifi_cli.errors import ConflictError, HifiError, MissingError
from hifi_cli.hub import is_offline
from hifi_cli.methods.base import Stage
from hifi_cli.methods.find import check_method_settings
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.encoder_files import check_is_here
from hifi_cli.models.pretrained import (
    architecture_on_meta,
    load_backbone_on_meta,
    missing_keys_on_meta,
)
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs.cost import CostEstimator, Machine, results_in
from hifi_cli.runs.finished import read_finished
from hifi_cli.runs.heads import needs_heads, placeholder_heads
from hifi_cli.runs.identity import run_to_start_from
from hifi_cli.runs.inputs import load_task, task_head_of
from hifi_cli.runs.prepare import build_and_prepare
from hifi_cli.runs.result import trained_sizes
from hifi_cli.runs.size import RunSize, batch_size
from hifi_cli.runs.splits import split_train
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks.task_spec import TaskData, TaskSpec
from hifi_cli.text import counted_noun
from hifi_cli.training.device import device_name, select_device
from hifi_cli.training.loop import StepPlan

# A tensor in the header of a safetensors file, without its name.
_BYTES_OF_HEADER_ENTRY = 64
# The subject of a line of a plan, and its text.
Line = tuple[str, str]


@dataclass(frozen=True)
class PlainModel:
    """A backbone without values, with a task head, which no method has prepared.

    Attributes:
        missing_keys: names of parameters without pretrained values.
        absence: why the encoder is not on this machine, if its sizes are those in the backbone's
            YAML.
    """

    model: nn.Module
    missing_keys: list[str]
    absence: str | None


@dataclass(frozen=True)
class ModelSize:
    """The numbers of parameters of a run.

    Attributes:
        total: of the plain model.
        trained: by each stage, in all and in the backbone; without the stages for which training or
            the selected heads decide it.
        stages: of the run's method.
        is_decoder: whether the backbone is one.
        absence: why the encoder is not on this machine, if its sizes are those in the backbone's
            YAML.
        stored_bytes: of the file with the weights that the run stores; None: training decides them.
    """

    total: int
    trained: list[tuple[int, int]]
    stages: list[Stage]
    is_decoder: bool
    absence: str | None
    stored_bytes: int | None


@dataclass(frozen=True)
class Plan:
    """A run as it would be, in words.

    Attributes:
        about: lines about the run's directory, the optimizer steps if every row is one example, the
            parameters, what a decoder's task head reads, time, disk and memory.
        missing: what the run needs and what is not on this machine, a sentence for each.
    """

    about: list[Line]
    missing: list[str]

    @property
    def is_complete(self) -> bool:
        """Whether the run could begin here."""
        return not self.missing

    @property
    def lines(self) -> list[Line]:
        """The lines that are printed, the missing inputs last."""
        texts = self.missing or ["nothing"]
        return [*self.about, *(("missing", text) for text in texts)]


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a run, as far as they are on this machine.

    Attributes:
        device: where it would train.
        data: rows of the task.
        asks_hub: whether the run would ask the hub for its rows.
        size: of its model.
        missing: why the others are not here.
    """

    device: torch.device | None
    data: TaskData | None
    asks_hub: bool
    size: ModelSize | None
    missing: list[str]


class Planner:
    """Plans the runs of a command; runs with models of one size are counted once."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._sizes: dict[str, ModelSize] = {}

    def plan(self, config: RunConfig) -> Plan:
        """Plan a run; the data are read if they are on this machine.

        Raises:
            UsageError: what the run itself would refuse: a setting, or the data.
        """
        task = load_task(config)
        check_method_settings(config)
        inputs = self._inputs(config, task)
        return Plan(self._lines(config, task, inputs), inputs.missing)

    def _inputs(self, config: RunConfig, task: TaskSpec) -> _Inputs:
        """Find the inputs of a run that are on this machine, and why the others are not."""
        device: torch.device | None = None
        data: TaskData | None = None
        asks_hub = False
        size: ModelSize | None = None
        missing: list[str] = []
        with _noted_in(missing):
            device = select_device(config.device)
        with _noted_in(missing):
            if self._is_local(task):
                data = self.workspace.data(task)
            else:
                asks_hub = True
                task_sources.check_is_here(task, self.workspace.data_dir)
        with _noted_in(missing):
            size = self.model_size(config, task)
            if size.absence:
                missing.append(size.absence)
            else:
                check_is_here(config.backbone)
        with _noted_in(missing):
            if config.start_from:
                run_to_start_from(config.start_from, self.workspace.results_dir)
        return _Inputs(device, data, asks_hub, size, missing)

    def _lines(self, config: RunConfig, task: TaskSpec, inputs: _Inputs) -> list[Line]:
        """Return the lines of a plan, as `Plan.about` has them."""
        size = inputs.size
        directory = self.workspace.directory(config)
        state = _directory_state(directory, config)
        lines = [("directory", f"{directory.path} ({state})")]
        lines.append(("steps", _steps(config, task, inputs.data, size)))
        if inputs.asks_hub and is_offline():
            lines.append(("data", "not read: the steps are of the official number of rows"))
        elif inputs.asks_hub:
            lines.append(("data", "not on this machine: the hub would be asked"))
        lines.append(("parameters", _parameters(size)))
        if size and size.is_decoder and not task.rules.reads_all_tokens:
            lines.append(("pooling", "the last token's state, as of every decoder"))
        lines += self._cost_lines(config, task, inputs.device, inputs.data)
        return lines

    @cached_property
    def costs(self) -> CostEstimator:
        """The estimator of costs, by the runs of the results directory."""
        return CostEstimator(results_in(self.workspace.results_dir), self.stored_bytes)

    def _cost_lines(
        self,
        config: RunConfig,
        task: TaskSpec,
        device: torch.device | None,
        data: TaskData | None,
    ) -> list[Line]:
        """Return lines about the time, disk and memory that a run will take.

        Args:
            device: where it will train; None: it is not here.
            data: of the task, if they are on this machine.
        """
        counts = None
        if data:
            counts = {str(split): len(rows) for split, rows in data.splits.items()}
        machine = machine_of(device) if device else None
        return [*self.costs.cost(config, task, machine, counts).lines.items()]

    def stored_bytes(self, config: RunConfig, task: TaskSpec) -> int | None:
        """Count the bytes of the file with the weights that a run stores.

        Returns:
            None: training decides them, or the backbone is not here.
        """
        try:
            return self.model_size(config, task).stored_bytes
        except HifiError:
            return None

    def _is_local(self, task: TaskSpec) -> bool:
        """Return whether the rows of a task need no network."""
        directory = task_sources.find_directory(task, self.workspace.data_dir)
        return directory is not None or not task.hub

    def model_size(self, config: RunConfig, task: TaskSpec) -> ModelSize:
        """Count the parameters of a run on a model without values.

        Raises:
            MissingError: the backbone's sizes are neither on this machine nor in its YAML.
            UsageError: the method's settings do not fit.
        """
        task_head = task_head_of(config, task)
        # Tasks with task heads of one shape, seeds, and learning rates share a size.
        deciding = {
            "backbone",
            "start_from",
            "method",
            "settings",
            "heads",
            "stage1",
            "layer_decay",
        }
        key = f"{task_head.shape} {config.model_dump_json(include=deciding)}"
        if key not in self._sizes:
            plain = _plain_model(config, task_head)
            if config.start_from:
                plain = self._started_from(config.start_from, plain)
            self._sizes[key] = _model_size(config, plain)
        return self._sizes[key]

    def _started_from(self, run: str, plain: PlainModel) -> PlainModel:
        """Return a model in which the parameters that a run to start from has are not missing."""
        try:
            path = run_to_start_from(run, self.workspace.results_dir).path
            start = read_finished(path, trust=self.workspace.trust).config
            started = _plain_model(start, task_head_of(start, load_task(start)))
        except HifiError:
            # The plan names a run that is not there in a line of its own.
            return plain
        prefix = plain.model.base_model_prefix
        inside = Encoder(started.model).base.named_parameters()
        names = {f"{prefix}.{name}" for name, _ in inside}
        missing_keys = [name for name in plain.missing_keys if name not in names]
        return replace(plain, missing_keys=missing_keys)


@contextmanager
def _noted_in(missing: list[str]) -> Iterator[None]:
    """Note in a list what is missing, and go on."""
    try:
        yield
    except MissingError as error:
        missing.append(str(error))


def machine_of(device: torch.device) -> Machine:
    """Return what decides the speed of a run that this process would train on a device."""
    name = device_name(device)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        return Machine(name, memory=memory)
    return Machine(name, torch.get_num_threads())


def _plain_model(config: RunConfig, task_head: TaskHeadSpec) -> PlainModel:
    """Make the model of a backbone with a task head on the meta device.

    Raises:
        MissingError: the backbone's sizes are neither on this machine nor in its YAML.
    """
    try:
        model = load_backbone_on_meta(config.backbone, task_head=task_head, dropout=config.dropout)
        missing_keys = missing_keys_on_meta(config.backbone, model)
    except MissingError as error:
        architecture = architecture_of(config.backbone)
        if architecture is None:
            raise
        model = architecture_on_meta(architecture, task_head=task_head, dropout=config.dropout)
        # The encoders of these YAMLs have a pretrained pooler, or none.
        return PlainModel(model, [], absence=str(error))
    return PlainModel(model, missing_keys, absence=None)


def _model_size(config: RunConfig, plain: PlainModel) -> ModelSize:
    """Count the parameters of a model on the meta device, which the run's method prepares.

    Args:
        config: of the run.
        plain: its model, which is changed.
    """
    encoder = Encoder(plain.model)
    heads = placeholder_heads(config, encoder)
    total = sum(value.numel() for value in encoder.model.parameters())
    method = build_and_prepare(config, encoder, heads, plain.missing_keys)
    stages = method.stages()
    trained: list[tuple[int, int]] = []
    stored_bytes = None
    if not _selected_heads_decide(config, encoder):
        # Weights on the meta device have no values. PyTorch raises this error where a method chooses
        # by values what trains, and the numbers of this stage and of those after it stay unknown.
        with suppress(NotImplementedError):
            for index, stage in enumerate(stages):
                # The method has prepared the model for its first stage.
                if index > 0:
                    stage.prepare_model(encoder)
                stage.method.on_stage_start(encoder.model, iter(()))
                trained.append(trained_sizes(stage.method, encoder))
            stored_bytes = _file_bytes(method.delta(encoder.model))
    return ModelSize(total, trained, stages, encoder.is_causal, plain.absence, stored_bytes)


def _selected_heads_decide(config: RunConfig, encoder: Encoder) -> bool:
    """Return whether the number of trained parameters depends on which heads are selected.

    Heads of a group share keys and values: two of one group have fewer rows than two of two groups.
    """
    # Only methods that select heads need an encoder whose heads are known.
    if not needs_heads(config) or config.heads.given:
        return False
    return encoder.num_key_value_heads < encoder.num_heads


def _file_bytes(delta: Mapping[str, Tensor]) -> int:
    """Count the bytes of a safetensors file with some tensors."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in delta.values())
    # The header has a name, a type, a shape and two offsets for each tensor.
    return size + sum(len(name) + _BYTES_OF_HEADER_ENTRY for name in delta)


def _steps(config: RunConfig, task: TaskSpec, data: TaskData | None, size: ModelSize | None) -> str:
    """Return how many optimizer steps a run takes, in words; without data, by the official number of rows.

    Raises:
        UsageError: there are fewer steps than stages.
    """
    batch = batch_size(config, task)
    epochs = counted_noun(config.epochs, "epoch")
    examples = _examples(config, task, data)
    if not examples:
        return f"{epochs} of an unknown number of examples in batches of {batch}"
    # It refuses fewer steps than stages.
    plan = StepPlan.of(config, batch, examples, size.stages if size else [])
    steps = counted_noun(plan.total, "step")
    return f"{steps}: {epochs} of {examples:,} examples in batches of {batch}"


def _examples(config: RunConfig, task: TaskSpec, data: TaskData | None) -> int:
    """Count the examples that a run trains on, if every row is one; 0 where that is unknown."""
    if data:
        train, _ = split_train(config, task, data.rows("train"))
        return len(train)
    size = RunSize.of(config, task, task.rows)
    return size.train if size else 0


def _parameters(size: ModelSize | None) -> str:
    """Return how many parameters a run has, and how many each stage trains, in words."""
    if not size:
        return "unknown without the backbone's configuration"
    texts = [
        f"{trained:,} trained ({trained / size.total:.2%}), {inside:,} of them in the backbone"
        for trained, inside in size.trained
    ]
    stages = "; then ".join(texts)
    if not size.trained:
        stages = "training or the selected heads decide which train"
    text = f"{size.total:,}; {stages}"
    if size.absence:
        text += "; computed from the sizes in the backbone's YAML"
    return text


def _directory_state(directory: RunDirectory, config: RunConfig) -> str:
    """Return what a run's directory holds, and what would become of it, in words."""
    try:
        directory.check_is_of(config)
    except ConflictError:
        return "holds a run of another configuration: --force replaces it"
    if directory.results.is_file():
        # A plan compares the configuration alone: reading all that decides the numbers takes long.
        status = directory.read_result().status
        return f"{status}: skipped without --force, unless task, data, encoder or code have changed"
    if directory.checkpoint.is_file():
        return "begun: would be resumed"
    return "new"
