"""Score heads and choose them, with the files of both: all seeds and methods share a scoring."""

import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor

from hifi_cli.config import registry
from hifi_cli.config.run_config import MeasuredRanking, RunConfig, TrainingConfig
from hifi_cli.errors import UsageError
from hifi_cli.files import digest, locked, safe_name
from hifi_cli.heads.measures import measure_heads
from hifi_cli.heads.ranking import choose_heads
from hifi_cli.heads.scores import EIGENVALUE_DEVICE
from hifi_cli.methods import base as methods
from hifi_cli.methods.base import Heads, MethodContext
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.head_outputs import score_batches
from hifi_cli.results.record import Provenance, StoredFile
from hifi_cli.tasks.encode import collate, evaluation_order, padding_values, single_sequences
from hifi_cli.tasks.task_spec import Example
from hifi_cli.training import machine
from hifi_cli.training.data import ResourceCache, holdout_ids
from hifi_cli.training.loop import Trainer
from hifi_cli.training.machine import choose_device, tf32
from hifi_cli.training.step import ModelRunner

logger = logging.getLogger("hifi")

LayerValues = list[list[float]]


class MeasuredHeads(StoredFile):
    """What all measurements of a backbone's heads on a task's training samples have in common.

    Attributes:
        samples: number of training samples.
        max_length, seed, warm_steps: see `ScoringConfig`.
        data: fingerprint of the train split.
    """

    description: ClassVar[str] = "scores"

    backbone: str
    task: str
    max_length: int
    seed: int
    warm_steps: int
    samples: int
    num_layers: PositiveInt
    num_heads: PositiveInt
    backbone_weights_id: str
    data: str
    provenance: Provenance


class HeadScores(MeasuredHeads):
    """Information richness and correlation of every attention head of a backbone on a task.

    Attributes:
        xi: see `ScoringConfig`.
        richness: I_h, mean over the samples [layers, heads].
        richness_std: its standard deviation over the samples [layers, heads].
        correlation: r_hh', mean over the samples [layers, heads, heads].
        sha256: names the scoring, whatever machine or version made it.
    """

    xi: float
    richness: LayerValues
    richness_std: LayerValues
    correlation: list[LayerValues]
    sha256: str

    @cached_property
    def richness_array(self) -> NDArray[np.float64]:
        """I_h [layers, heads]."""
        return np.array(self.richness)

    @cached_property
    def correlation_array(self) -> NDArray[np.float64]:
        """r_hh' [layers, heads, heads]."""
        return np.array(self.correlation)


class HeadImportance(MeasuredHeads):
    """One value of every attention head, by which a measured ranking ranks them.

    Attributes:
        rank: the ranking, one of `MeasuredRanking`.
        values: mean over the samples [layers, heads].
    """

    rank: str
    values: LayerValues

    @cached_property
    def array(self) -> NDArray[np.float64]:
        """The values [layers, heads]."""
        return np.array(self.values)

    @property
    def sha256(self) -> str:
        """Names these values, whatever machine or version measured them."""
        return digest([self.backbone, self.task, self.rank, self.values], 64)


class HeadSelection(StoredFile):
    """The attention heads to tune, and what drove the choice; every list has one entry per layer.

    Attributes:
        rank, strategy, k, damping, epsilon: see `HeadsConfig`.
        seed: of `random`; None for other rankings, which do not draw.
        heads: chosen heads, ascending; empty for a frozen layer.
        values: the ranking's value of every head.
        iterations: PageRank's steps; 0 for other rankings.
        ties: layers in which the lower head number decided between equal values.
        scores_sha256: `sha256` of the scores.
        importance_sha256: `sha256` of what was measured; None for rankings by the scores.
    """

    description: ClassVar[str] = "heads"

    backbone: str
    task: str
    num_heads: PositiveInt
    rank: str
    strategy: str
    k: int
    damping: float
    epsilon: float
    seed: int | None = None
    heads: Heads
    values: LayerValues
    iterations: list[int]
    ties: list[int]
    scores_sha256: str
    importance_sha256: str | None = None


File = TypeVar("File", HeadScores, HeadImportance)


def select_heads(config: RunConfig, resources: ResourceCache) -> Heads | None:
    """The heads that a run tunes: given, or chosen by scores; None if its method needs none."""
    if not methods.needs_heads(config):
        return None
    return config.heads.given or load_or_select_heads(config, resources)[0].heads


def load_or_select_heads(config: RunConfig, resources: ResourceCache, *, out: Path | None = None) -> tuple[HeadSelection, Path]:
    """Choose the heads of a backbone, task and setting by their scores, and store the choice."""
    head_scores, _ = scores(config, resources)
    how, measured = config.heads.selection_arguments(config.seed), importance(config, resources)
    return choose(head_scores, how, resources.results_dir, measured=measured, out=out)


def choose(
    head_scores: HeadScores,
    how: dict[str, Any],
    results_dir: Path,
    *,
    measured: HeadImportance | None = None,
    out: Path | None = None,
) -> tuple[HeadSelection, Path]:
    """Choose heads by their scores and store the choice with what drove it.

    Args:
        how: arguments of `choose_heads`; they stand in the file.
        measured: required by a ranking that is measured on the model.

    Raises:
        UsageError: k exceeds the heads of a layer, or there is nothing to choose by.
    """
    choice = choose_heads(
        head_scores.richness_array,
        head_scores.correlation_array,
        **how,
        measured=measured.array if measured else None,
    )
    selection = HeadSelection(
        backbone=head_scores.backbone,
        task=head_scores.task,
        num_heads=head_scores.num_heads,
        **how,
        heads=choice.heads,
        values=choice.values,
        iterations=choice.iterations,
        ties=choice.ties,
        scores_sha256=head_scores.sha256,
        importance_sha256=measured.sha256 if measured else None,
    )
    folder = results_dir / "heads" / safe_name(selection.backbone) / safe_name(selection.task)
    decides = [how, head_scores.sha256, *([measured.sha256] if measured else [])]
    path = out or folder / f"{digest(decides)}.json"
    selection.write(path)  # cheap to make, so what is there already, damaged or not, is replaced
    return selection, path


def describe_selection(selection: HeadSelection) -> str:
    """What drove a choice, in one line about the layers with chosen heads."""
    layers = [layer for layer, heads in enumerate(selection.heads) if heads]
    k = sum(len(selection.heads[layer]) for layer in layers) / len(layers)
    steps = [selection.iterations[layer] for layer in layers]
    how = f"{min(steps)}-{max(steps)} iterations, d={selection.damping:g}" if max(steps) else "no iteration"
    tied = ", ".join(str(layer + 1) for layer in selection.ties)  # counted from 1, as for all readers
    ties = f"ties broken by head number in layers {tied}" if tied else "no ties"
    chosen = f"{k:.3g} of {selection.num_heads} heads in {len(layers)} layers"
    return f"{selection.rank} ({how}): {chosen}; {ties}"


def scores(
    config: RunConfig, resources: ResourceCache, *, force: bool = False, out: Path | None = None
) -> tuple[HeadScores, Path]:
    """The head scores of a backbone and task: read, or computed once under a lock and stored.

    Args:
        out: also written to this file.

    Returns:
        The scores, and their file.
    """
    weights_id = resources.pretrained(config).weights_id  # loads the encoder
    path = _scores_path(config, resources, weights_id)

    def compute() -> HeadScores:
        return compute_scores(config, resources)

    head_scores = _read_or_compute(HeadScores, path, compute, force=force)
    if out:
        head_scores.write(out)
    return head_scores, out or path


def importance(config: RunConfig, resources: ResourceCache) -> HeadImportance | None:
    """What the configured ranking measures: read, or measured once and stored; None if nothing."""
    if config.heads.rank not in get_args(MeasuredRanking):
        return None
    weights_id = resources.pretrained(config).weights_id
    path = _scores_path(config, resources, weights_id, measured=True)
    return _read_or_compute(HeadImportance, path, lambda: compute_importance(config, resources))


def _read_or_compute(kind: type[File], path: Path, compute: Callable[[], File], *, force: bool = False) -> File:
    """Read a stored file, or make it under its own lock; a damaged one is made again."""
    with locked(path.with_name(f".{path.stem}.lock"), wait=True):
        if path.is_file() and not force:
            try:
                return kind.read(path)
            except UsageError as error:
                logger.warning(f"{error}: done now")
        computed = compute()
        computed.write(path)
    return computed


def compute_scores(config: RunConfig, resources: ResourceCache) -> HeadScores:
    """Score every head on random training samples (Algorithm 1), none of them held out."""
    device, pretrained = choose_device(config), resources.pretrained(config)
    if config.scoring.warm_steps:
        encoder = _warmed_up_encoder(config, resources, device)
    else:  # only a copy leaves the CPU: runs copy the pretrained model from there
        on_cpu = device.type == "cpu"
        encoder = Encoder(pretrained.model) if on_cpu else resources.encoder(config)[0]
    encoder.model.to(device)
    sequences = single_sequences(_scored_examples(config, resources))  # each choice is a text of its own
    pad = padding_values(pretrained.tokenizer)
    richness, correlation = score_examples(encoder, sequences, pad, config.scoring.xi)
    means = (richness.double().mean(0).tolist(), correlation.mean(0).tolist())
    return HeadScores(
        **_measured(config, resources, encoder),
        xi=config.scoring.xi,
        richness=means[0],
        richness_std=richness.double().std(0, correction=0).tolist(),
        correlation=means[1],
        provenance=machine.describe_provenance(device, EIGENVALUE_DEVICE),
        sha256=scores_digest(config.backbone.name, config.task, *means),
    )


def compute_importance(config: RunConfig, resources: ResourceCache) -> HeadImportance:
    """Measure what the configured ranking ranks heads by, on the samples of `compute_scores`.

    Unless `scoring.warm_steps` trains it, the task head that the loss depends on is a random one,
    drawn by `scoring.seed`: what is measured does not depend on the run's seed, and all runs tune
    the same heads.
    """
    device, pretrained = choose_device(config), resources.pretrained(config)
    if config.scoring.warm_steps:
        encoder = _warmed_up_encoder(config, resources, device)
    else:
        scoring_seed = config.model_copy(update={"seed": config.scoring.seed})
        encoder, _ = resources.encoder(scoring_seed)
    pad = padding_values(pretrained.tokenizer)
    runner = ModelRunner(encoder, resources.task(config.task), config, pad, device)
    rank = cast(MeasuredRanking, config.heads.rank)
    return HeadImportance(
        **_measured(config, resources, encoder),
        rank=rank,
        values=measure_heads(rank, runner, _scored_examples(config, resources)).tolist(),
        provenance=machine.describe_provenance(device),
    )


def _measured(config: RunConfig, resources: ResourceCache, encoder: Encoder) -> dict[str, Any]:
    """The fields that all measurements have in common."""
    return {
        "backbone": config.backbone.name,
        "task": config.task,
        **config.scoring.model_dump(exclude={"samples", "xi"}),
        "samples": len(_scored_examples(config, resources)),
        "num_layers": encoder.num_layers,
        "num_heads": encoder.num_heads,
        "backbone_weights_id": resources.pretrained(config).weights_id,
        "data": resources.rows(config.task).fingerprint["train"],
    }


def _scored_examples(config: RunConfig, resources: ResourceCache) -> list[Example]:
    """Random training samples, none of them held out to choose the run's epoch."""
    examples = _training_examples(config, resources, config.scoring.max_length)
    return sample(examples, config.scoring.samples, config.scoring.seed)


def _training_examples(config: RunConfig, resources: ResourceCache, max_length: int) -> list[Example]:
    """The train split without what the run holds out."""
    held_out = set(holdout_ids(config, resources.rows(config.task).rows("train"))[1])
    examples = resources.examples(config, "train", max_length)
    return [example for example in examples if example.row.id not in held_out]


def sample(examples: list[Example], number: int, seed: int) -> list[Example]:
    """`number` of the examples, drawn without replacement; all of them when there are fewer."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return [examples[index] for index in order[:number].tolist()]


def score_examples(
    encoder: Encoder, examples: list[Example], pad: dict[str, int], xi: float, batch_size: int = 32
) -> tuple[Tensor, Tensor]:
    """Richness and correlation of every head for every example.

    Returns:
        int64 [examples, layers, heads] and float64 [examples, layers, heads, heads], in the
        examples' order.
    """
    shape = (len(examples), encoder.num_layers, encoder.num_heads)
    richness = torch.zeros(shape, dtype=torch.int64)
    correlation = torch.zeros((*shape, encoder.num_heads), dtype=torch.float64)
    order = evaluation_order(examples, batch_size)
    batches = (collate([examples[index] for index in indices], pad) for indices in order)
    with tf32(False):
        for indices, (i, r) in zip(order, score_batches(encoder, batches, xi), strict=True):
            richness[indices], correlation[indices] = i, r
    return richness, correlation


def scores_digest(backbone: str, task: str, richness: LayerValues, correlation: list[LayerValues]) -> str:
    """The SHA-256 that names a scoring."""
    return digest([backbone, task, richness, correlation], 64)


def _warmed_up_encoder(config: RunConfig, resources: ResourceCache, device: torch.device) -> Encoder:
    """The backbone after `warm_steps` steps of full fine-tuning at the run's learning rate."""
    steps = config.scoring.warm_steps
    if machine.process_state().num_processes > 1:  # the others wait for the scores' lock
        raise UsageError("scoring.warm_steps requires one process: run hifi score first, without torchrun")
    encoder, pretrained = resources.encoder(config)
    full = methods.implementation("full_ft")
    method = full(full.Settings(), MethodContext(missing_keys=pretrained.missing_keys))
    method.prepare(encoder)
    pad = padding_values(pretrained.tokenizer)
    runner = ModelRunner(encoder, resources.task(config.task), config, pad, device)
    train = _training_examples(config, resources, config.max_length)
    trainer = Trainer(runner, method, train, max_steps=steps)
    if steps > trainer.total_steps:
        raise UsageError(f"scoring.warm_steps={steps} is more than the run's {trainer.total_steps} steps")
    trainer.train()
    return encoder


def _scores_path(config: RunConfig, resources: ResourceCache, weights_id: str, *, measured: bool = False) -> Path:
    """The file of the scores, or of what the ranking measures, by a hash of all that decides."""
    data = resources.rows(config.task)
    is_own = registry.user_file("tasks", config.task)  # whose YAML may read other columns of the same file
    fingerprint = data.rows_fingerprint if is_own else data.fingerprint
    decides: dict[str, Any] = {
        "backbone": weights_id,
        "data": fingerprint["train"],
        "scoring": config.scoring.model_dump(),
        "encoding": config.model_dump(include={"truncation", "swap_texts", "stride"}),
    }
    if held_out := holdout_ids(config, data.rows("train"))[1]:
        decides["held out"] = held_out
    if config.scoring.warm_steps:  # of full fine-tuning, whatever the run's method
        keys = {*TrainingConfig.model_fields} - {"method", "settings"}
        keys |= {"seed", "epochs", "batch_size", "max_length", "train_sampling_strategy"}
        keys |= {"precision", "dropout", "task_head"}
        decides["training"] = config.model_dump(mode="json", include=keys)
    folder = resources.results_dir / "scores" / safe_name(config.backbone.name) / safe_name(config.task)
    if measured:
        decides |= config.model_dump(mode="json", include={"task_head"})
        return folder / f"{config.heads.rank}-{digest(decides)}.json"
    return folder / f"{digest(decides)}.json"
