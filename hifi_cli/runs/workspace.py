"""What the runs of a command share, and the prepared model of a run, to train or trained."""

import copy
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import backbone_config
from hifi_cli.errors import MissingError, RunFailed, UsageError
from hifi_cli.files import atomic_path, digest, file_digest, well_formed
from hifi_cli.methods.base import Heads, Method, MethodContext
from hifi_cli.methods.find import build_method
from hifi_cli.models import cpu_kernels
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.pretrained import Pretrained, initialize_missing, load_backbone
from hifi_cli.models.task_heads import TaskHeadSpec
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult
from hifi_cli.run_paths import relative_run_path
from hifi_cli.runs.identity import IdentityReader, digest_of_start, run_to_start_from
from hifi_cli.tasks import sources as task_sources
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import padding_values, tokenize
from hifi_cli.tasks.task_spec import EncodedExample, Row, Split, TaskData, TaskSpec
from hifi_cli.training.device import select_device, set_up_device
from hifi_cli.training.losses import check_loss
from hifi_cli.training.runner import ModelRunner

_TRAIN_AGAIN = "copy it from where the run was trained, or train it again (--force)"


def load_task(config: RunConfig) -> TaskSpec:
    """Load a run's task, with the primary metric that its configuration names.

    Raises:
        UsageError: the task has no such metric, its loss no such settings, or it has no classes to
            count shots of.
    """
    task = task_spec.load(config.task).with_primary(config.primary_metric)
    check_loss(task, config)
    if config.shots and not task.classes:
        raise UsageError(
            f"task {task.label} has no few-shot setting: shots are counted per class, and its rows"
            " have no class"
        )
    return task


def task_head_of(config: RunConfig) -> TaskHeadSpec:
    """What the task of a run requires of its head, as configured."""
    task = task_spec.load(config.task)
    return TaskHeadSpec(task.kind, task.rules, config.task_head)


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
    _rows: dict[str, TaskData] = field(default_factory=dict)
    _pretrained: dict[str, Pretrained] = field(default_factory=dict)
    _examples: dict[tuple[str, str, Split], list[EncodedExample]] = field(default_factory=dict)

    @cached_property
    def identities(self) -> IdentityReader:
        """What the runs of the command are, read once for all of them."""
        return IdentityReader(self.results_dir, self.data_dir, self.rows)

    def rows(self, task: str) -> TaskData:
        """Load a task's rows."""
        spec = task_spec.load(task)
        # not the name: runs with own YAMLs may name different tasks alike
        key = spec.model_dump_json()
        if key not in self._rows:
            self._rows[key] = task_sources.load(spec, data_dir=self.data_dir)
        return self._rows[key]

    def examples(self, config: RunConfig, split: Split, max_length: int) -> list[EncodedExample]:
        """Tokenize a split."""
        encoded = config.model_copy(update={"max_length": max_length})
        decisive = encoded.values_that_decide("tokens")
        task = task_spec.load(config.task).model_dump_json()
        key = (task, digest(decisive), split)
        if key not in self._examples:
            rows = self.rows(config.task).rows(split)
            self._examples[key] = self.tokenize(config, rows, max_length)
        return self._examples[key]

    def tokenize(self, config: RunConfig, rows: list[Row], max_length: int) -> list[EncodedExample]:
        """Tokenize some rows; the result is not cached.

        Raises:
            UsageError: a row has more tokens than the backbone has positions for, or a token that
                the backbone has no embedding of.
        """
        pretrained = self.pretrained(config)
        config = config.model_copy(update={"max_length": max_length})
        examples = tokenize(pretrained.tokenizer, task_spec.load(config.task), rows, config)
        longest, bound = max(map(len, examples), default=0), Encoder(pretrained.model).max_tokens
        if bound is not None and longest > bound:
            raise UsageError(
                f"max_length={max_length}: a row has {longest:,} tokens, and"
                f" {config.backbone.name} has positions for {bound:,}; set max_length={bound}"
            )
        check_vocabulary(pretrained, examples, config.backbone.name)
        return examples

    def pretrained(self, config: RunConfig) -> Pretrained:
        """Load a run's backbone with the head of its task; the last one is kept."""
        head = task_head_of(config)
        decisive = config.values_that_decide("encoder")
        key = f"{head} {decisive}"
        if key not in self._pretrained:
            self._pretrained.clear()  # large backbones do not fit in memory twice
            loaded = load_backbone(config.backbone, task_head=head, dropout=config.dropout)
            if config.start_from:
                self._start_from(config.start_from, loaded, config)
            if config.kernels != "torch" and select_device(config.device).type == "cpu":
                cpu_kernels.install(Encoder(loaded.model))
            self._pretrained = {key: loaded}
        return self._pretrained[key]

    def encoder(self, config: RunConfig) -> tuple[Encoder, Pretrained]:
        """The run's own copy of its backbone, with the task head that its seed draws."""
        pretrained = self.pretrained(config)
        model = copy.deepcopy(pretrained.model)
        initialize_missing(model, pretrained.missing_keys, config.seed)
        return Encoder(model), pretrained

    def _start_from(self, run: str, loaded: Pretrained, config: RunConfig) -> None:
        """Replace the encoder's weights by those of a finished run of the same backbone.

        Raises:
            MissingError: there is no such finished run.
            UsageError: it has another backbone, or its method adds modules that no plain encoder
                holds.
            RunFailed: it diverged.
        """
        directory = run_to_start_from(run, self.results_dir)
        # merged on the CPU by stock PyTorch, wherever this run trains
        how = {"device": "cpu", "kernels": "torch", "deterministic": config.deterministic}
        prepared, result = open_run(directory.path, self, backbone=config.backbone, **how)
        if not prepared.method.mergeable:
            raise UsageError(
                f"start_from={run}: method {result.method} adds modules that no plain encoder has"
            )
        prepared.method.merge(prepared.encoder)
        weights = prepared.encoder.base.state_dict()
        # not strict: another task's head may have no pooler
        Encoder(loaded.model).base.load_state_dict(weights, strict=False)
        names = {f"{loaded.model.base_model_prefix}.{name}" for name in weights}
        loaded.missing_keys = [name for name in loaded.missing_keys if name not in names]
        delta = str(result.delta_sha256)
        loaded.backbone_weights = digest_of_start(loaded.backbone_weights, delta)
        loaded.weights_of_schema_1 = digest_of_start(loaded.weights_of_schema_1, delta)
        start = relative_run_path(str(directory.path.resolve()))
        link = {"run": start, "config_hash": result.config_hash, "delta_sha256": delta}
        loaded.started_from = [link, *prepared.pretrained.started_from]


def check_vocabulary(pretrained: Pretrained, examples: list[EncodedExample], name: str) -> None:
    """Refuse tokens that the word embedding has no row for.

    Args:
        name: of the backbone.

    Raises:
        UsageError: a token of the examples, or the token for padding, has none.
    """
    known = Encoder(pretrained.model).vocabulary_size
    tokenizer = pretrained.tokenizer
    largest = tokenizer.pad_token_id
    for example in examples:
        for sequence in example.sequences:
            largest = max(largest, int(sequence["input_ids"].max(initial=0)))
    if known is not None and largest >= known:
        token = tokenizer.convert_ids_to_tokens(largest)
        raise UsageError(
            f"backbone {name}: its tokenizer has {len(tokenizer):,} tokens, and its weights have"
            f" embeddings for {known:,}: '{token}' has none; call"
            f" model.resize_token_embeddings({len(tokenizer)}) and save the model, or take the"
            " tokenizer that belongs to the weights"
        )


def batch_size(config: RunConfig, task: TaskSpec) -> int:
    """Examples of a training step; few-shot runs train on all examples at once."""
    return config.shots * len(task.classes) if config.shots else config.batch_size


# --- a run's model, to train or trained


@dataclass
class PreparedRun(ModelRunner):
    """A run ready to train, or a finished one ready to predict.

    Attributes:
        task: with the primary metric that the configuration names.
        config: with the batch size of a few-shot run.
        method: has prepared the model.
        pretrained: the pretrained model, which several runs share, its tokenizer and weights id.
    """

    method: Method
    pretrained: Pretrained


def build_and_prepare(
    config: RunConfig, encoder: Encoder, heads: Heads | None, missing_keys: list[str]
) -> Method:
    """Build the method of a run, and let it prepare the model.

    Raises:
        UsageError: an unknown setting, a value that does not fit, a method that trains nothing, or
            `layer_decay` with parameters that it cannot place, or without layers that are trained.
    """
    method = build_method(config, MethodContext(heads, missing_keys, config.seed, config.stage1))
    pretrained = {name for name, _ in encoder.model.named_parameters()}
    method.prepare(encoder)
    if not method.stages()[0].method.trainable_parameters(encoder.model):
        raise UsageError(
            f"method {config.method} trains nothing: after its prepare no parameter requires a gradient"
        )
    if config.layer_decay == 1:
        return method
    trained = [
        name
        for stage in method.stages()
        for name in stage.method.trainable_parameters(encoder.model)
    ]
    inside = {
        name
        for name in trained
        if encoder.layer_of(name) is not None or encoder.is_in_embeddings(name)
    }
    added = [name for name in trained if name not in inside and name not in pretrained]
    if added or not (inside or config.stage1):  # a frozen first stage has none
        why = f"adds {added[0]}, which is in no layer" if added else "trains no layer"
        raise UsageError(f"layer_decay: method {config.method} {why}; remove it")
    return method


def prepare_run(config: RunConfig, workspace: Workspace, heads: Heads | None = None) -> PreparedRun:
    """Load the encoder, build the run's method, and let it prepare the model on its device.

    Args:
        heads: that the method tunes; None for a method that needs none.
    """
    device = set_up_device(config)
    encoder, pretrained = workspace.encoder(config)
    task = load_task(config)
    # The Trainer and evaluations read this config: a few-shot run trains on all examples at once.
    # `load_splits` and the scoring of heads read the caller's, with the task's own batch size.
    config = config.model_copy(update={"batch_size": batch_size(config, task)})
    # The method may compute with the pretrained weights, as PiSSA does: on the run's device.
    encoder.model.to(device)
    method = build_and_prepare(config, encoder, heads, pretrained.missing_keys)
    pad = padding_values(pretrained.tokenizer)
    return PreparedRun(encoder, task, config, pad, device, method, pretrained)


def enter_last_stage(method: Method, encoder: Encoder, current_stage: int = 0) -> None:
    """Bring a model from stage `current_stage`, counted from 0, to its method's last stage."""
    for stage in method.stages()[current_stage + 1 :]:
        stage.prepare_model(encoder)


def load_final_delta(method: Method, encoder: Encoder, delta: dict[str, Tensor]) -> None:
    """Load the delta of a finished run into a prepared model.

    Raises:
        UsageError: the delta does not fit.
    """
    enter_last_stage(method, encoder)
    with torch.no_grad():
        method.load_delta(encoder.model, delta)


def open_run(path: Path, workspace: Workspace, **changes: Any) -> tuple[PreparedRun, RunResult]:
    """Rebuild a finished run's model, and give it with its result.

    Args:
        changes: keys of the configuration, instead of the run's own.

    Raises:
        MissingError: no finished run is there, or its backbone or its own delta is not.
        UsageError: its delta belongs to other backbone weights, or it names code that is not
            trusted.
        RunFailed: the run diverged and has no model.
    """
    directory = RunDirectory(path)
    result = directory.read_result()
    config = directory.with_user_yamls(directory.read_config(), trust=workspace.trust)
    # the run's own device may not be on this machine
    config = config.model_copy(update={"device": "auto", **changes})
    if not result.is_done:
        raise RunFailed(f"the run in {path} {result.status} and left no model")
    if not directory.delta.is_file() or file_digest(directory.delta) != result.delta_sha256:
        raise MissingError(
            f"{directory.delta} is missing, or is not the file that the run wrote: {_TRAIN_AGAIN}"
        )
    if workspace.backbone:
        elsewhere = backbone_config(workspace.backbone).model_copy(
            update={"name": config.backbone.name}
        )
        config = config.model_copy(update={"backbone": elsewhere})
    pretrained = workspace.pretrained(config)
    is_old = result.schema_version == 1
    found = pretrained.weights_of_schema_1 if is_old else pretrained.backbone_weights
    if found != result.backbone_weights:
        started = f", or train {config.start_from} as it was" if config.start_from else ""
        raise UsageError(
            f"the run in {path} was trained on another encoder than the backbone"
            f" '{config.backbone.name}' that is found now: its weights, configuration or tokenizer"
            f" differ; give --backbone with the directory or hub id that has them{started}"
        )
    delta = read_delta(directory.delta)
    prepared = prepare_run(config, workspace, result.heads)
    load_final_delta(prepared.method, prepared.encoder, delta)
    return prepared, result


def read_delta(path: Path) -> dict[str, Tensor]:
    """Read what training changed, by the parameters' names.

    Raises:
        UsageError: the file is none of safetensors, or holds numbers that are not finite.
    """
    try:
        delta = _read_tensors(path)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is damaged ({error}): {_TRAIN_AGAIN}") from None
    for name, tensor in delta.items():
        if not tensor.isfinite().all():
            raise UsageError(f"{path} is damaged ({name} is not finite): {_TRAIN_AGAIN}")
    return delta


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file by their names."""
    if str(path) == well_formed(str(path)):
        return load_file(path)
    # The library opens files whose whole path is UTF-8 alone. The bytes are in memory twice then.
    return load(path.read_bytes())


def save_delta(path: Path, delta: dict[str, Tensor], belongs_to: dict[str, Any]) -> None:
    """Write what training changed, and in the file's header what it belongs to, atomically.

    One metadata key only: safetensors writes several in random order, and equal runs must give
    equal files.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in delta.items()}
    header = json.dumps(belongs_to, separators=(",", ":"), ensure_ascii=False)
    with atomic_path(path) as temporary:
        save_file(contiguous, temporary, metadata={"hifi": header})
