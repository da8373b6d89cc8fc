"""Score heads and choose them, with the files that keep both, so that every seed and method shares one scoring."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import torch
from torch import Tensor

from hifi_cli.config.run_config import MeasuredRanking, RunConfig, TrainingConfig
from hifi_cli.errors import ConflictError, UsageError
from hifi_cli.files import digest, locked, safe_name
from hifi_cli.heads.head_files import HeadImportance, HeadScores, HeadSelection, Overlap, scores_digest
from hifi_cli.heads.ranking import choose_heads
from hifi_cli.heads.scores import EIGENVALUE_DEVICE
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.head_outputs import score_batches
from hifi_cli.tasks.batches import collate, evaluation_order, padding_values
from hifi_cli.tasks.tokenization import Example, single_sequences
from hifi_cli.training import distributed, provenance
from hifi_cli.training.device import configure, tf32
from hifi_cli.training.model_runner import ModelRunner
from hifi_cli.training.resources import ResourceCache
from hifi_cli.training.splits import holdout_ids, without_holdout

logger = logging.getLogger("hifi")
File = TypeVar("File", HeadScores, HeadImportance)


def scores(
    config: RunConfig, resources: ResourceCache, *, force: bool = False, out: Path | None = None
) -> tuple[HeadScores, Path]:
    """The head scores of a backbone and task: read, or computed once under a lock and stored.

    Args:
        out: also written to this file.

    Returns:
        The scores, and their file.

    Raises:
        ConflictError: `out` holds other scores.
    """
    path = _scores_path(config, resources)
    head_scores = _read_or_compute(HeadScores, path, lambda: compute_scores(config, resources), _lock_of(path), force=force)
    if out:
        write_scores(head_scores, out, force=force)
    return head_scores, out or path


def write_scores(head_scores: HeadScores, out: Path, *, force: bool = False) -> None:
    """Write scores to a user's own file.

    Raises:
        ConflictError: it holds others.
        UsageError: it holds something else, or is damaged.
    """
    if out.is_file() and not force:
        there = HeadScores.read(out)
        if there.sha256 != head_scores.sha256:
            raise ConflictError(
                f"{out} holds other scores, of {there.backbone} on {there.task}: give another --out, or replace it with --force"
            )
    head_scores.write(out)


def importance(config: RunConfig, resources: ResourceCache) -> HeadImportance | None:
    """What the configured ranking measures: read, or measured once under a lock and stored; None if it measures nothing."""
    if config.heads.rank not in get_args(MeasuredRanking):
        return None
    path = _scores_path(config, resources, measured=True)
    return _read_or_compute(HeadImportance, path, lambda: compute_importance(config, resources), _lock_of(path))


def _read_or_compute(kind: type[File], path: Path, compute: Callable[[], File], lock: Path, *, force: bool = False) -> File:
    """Read a stored file, or make it; a damaged one is made again, with a warning, because it gets the same content."""
    with locked(lock, wait=True):
        if path.is_file() and not force:
            try:
                return kind.read(path)
            except UsageError as error:
                logger.warning(f"{error}: done now")
        computed = compute()
        computed.write(path)
    return computed


def _lock_of(path: Path) -> Path:
    """The lock of one stored file: scorings of different tasks do not wait for each other."""
    return path.with_name(f".{path.stem}.lock")


def load_or_select_heads(config: RunConfig, resources: ResourceCache, *, out: Path | None = None) -> tuple[HeadSelection, Path]:
    """The chosen heads of a backbone, task and setting: read, or chosen once and stored."""
    head_scores, _ = scores(config, resources)
    how = config.heads.selection_arguments(config.seed)
    return choose(head_scores, how, resources.results_dir, measured=importance(config, resources), out=out)


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
        how: arguments of `choose_heads`; they stand in the file, the seed that drew random heads among them.
        measured: required by a ranking that is measured on the model.

    Raises:
        UsageError: k exceeds the heads of a layer, or there is nothing to choose by.
    """
    values = measured.array if measured else None
    choice = choose_heads(head_scores.richness_array, head_scores.correlation_array, **how, measured=values)
    selection = HeadSelection(
        backbone=head_scores.backbone,
        task=head_scores.task,
        num_heads=head_scores.num_heads,
        **how,
        heads=choice.heads,
        values=choice.values,
        iterations=choice.iterations,
        ties=choice.ties,
        overlap=Overlap(**choice.overlap),
        scores_sha256=head_scores.sha256,
        importance_sha256=measured.sha256 if measured else None,
    )
    folder = results_dir / "heads" / safe_name(selection.backbone) / safe_name(selection.task)
    path = out or folder / f"{digest([how, head_scores.sha256, *([measured.sha256] if measured else [])])}.json"
    selection.write(path)  # cheap to make, so what is there already, damaged or not, is replaced
    return selection, path


def describe_selection(selection: HeadSelection) -> list[str]:
    """Two lines on what drove a choice."""
    counts = [len(heads) for heads in selection.heads]
    layers = [layer for layer, count in enumerate(counts) if count]
    k = sum(counts) / len(layers)
    expected = sum(count * count for count in counts) / selection.num_heads / len(layers)
    is_global = selection.strategy == "global"
    chance = "" if is_global else f" (chance: {expected:.2f})"  # a global choice by one signal has other numbers per layer
    with_richness, with_correlation = (
        sum(counts) / len(layers) for counts in (selection.overlap.richness, selection.overlap.correlation)
    )
    steps = [selection.iterations[layer] for layer in layers]
    how = f"{min(steps)}-{max(steps)} iterations, d={selection.damping:g}" if max(steps) else "no iteration"
    tied_layers = ", ".join(str(layer + 1) for layer in selection.ties)  # counted from 1, as everything that people read
    ties = f"ties broken by head number in layers {tied_layers}" if selection.ties else "no ties"
    each = f"{min(counts)} to {max(counts)}" if is_global else f"{k:.0f}"
    return [
        f"{selection.rank} ({how}): {each} of {selection.num_heads} heads in {len(layers)} layers; {ties}",
        f"shared with correlation alone {with_correlation:.2f} of {k:.3g} per layer, with richness alone"
        f" {with_richness:.2f} of {k:.3g}{chance}",
    ]


def compute_scores(config: RunConfig, resources: ResourceCache, encoder: Encoder | None = None) -> HeadScores:
    """Score every head on random training samples (Algorithm 1), none of them held out to choose the run's epoch.

    Args:
        encoder: scored instead of the pretrained one (a finished run's).
    """
    pretrained, device = resources.pretrained(config), configure(config)
    if encoder is None and config.scoring.warm_steps:
        encoder = _warmed_up_encoder(config, resources)
    elif encoder is None:  # only a copy leaves the CPU: runs copy the pretrained model from there
        encoder = Encoder(pretrained.model) if device.type == "cpu" else resources.encoder(config)[0]
    encoder.model.to(device)
    examples = _scored_examples(config, resources)
    sequences = single_sequences(examples)  # each choice of an example is a text of its own
    richness, correlation = score_examples(encoder, sequences, padding_values(pretrained.tokenizer), config.scoring.xi)
    name, values = config.backbone.name, (richness.double().mean(0).tolist(), correlation.mean(0).tolist())
    return HeadScores(
        backbone=name,
        task=config.task,
        **config.scoring.model_dump(exclude={"samples"}),
        samples=len(examples),
        num_layers=encoder.num_layers,
        num_heads=encoder.num_heads,
        richness=values[0],
        richness_std=richness.double().std(0, correction=0).tolist(),
        correlation=values[1],
        backbone_weights_id=pretrained.weights_id,
        data=resources.rows(config.task).fingerprint["train"],
        provenance=provenance.describe(device, EIGENVALUE_DEVICE),
        sha256=scores_digest(name, config.task, *values),
    )


def compute_importance(config: RunConfig, resources: ResourceCache) -> HeadImportance:
    """Measure what the configured ranking ranks heads by, on the samples that `compute_scores` takes.

    Unless `scoring.warm_steps` trains it, the task head that the loss depends on is a random one, drawn by `scoring.seed`:
    what is measured does not depend on the run's seed, and all runs tune the same heads.
    """
    from hifi_cli.training.head_measures import measure_heads

    if config.scoring.warm_steps:
        encoder = _warmed_up_encoder(config, resources)
    else:
        encoder, _ = resources.encoder(config.model_copy(update={"seed": config.scoring.seed}))
    pretrained, rank = resources.pretrained(config), cast(MeasuredRanking, config.heads.rank)
    runner = ModelRunner(encoder, resources.task(config.task), config, padding_values(pretrained.tokenizer))
    examples = _scored_examples(config, resources)
    return HeadImportance(
        backbone=config.backbone.name,
        task=config.task,
        rank=rank,
        **config.scoring.model_dump(exclude={"samples", "xi"}),
        samples=len(examples),
        num_layers=encoder.num_layers,
        num_heads=encoder.num_heads,
        values=measure_heads(rank, runner, examples).tolist(),
        backbone_weights_id=pretrained.weights_id,
        data=resources.rows(config.task).fingerprint["train"],
        provenance=provenance.describe(runner.device),
    )


def _scored_examples(config: RunConfig, resources: ResourceCache) -> list[Example]:
    """Random training samples, none of them held out to choose the run's epoch."""
    train_rows = resources.rows(config.task).rows("train")
    train = without_holdout(config, train_rows, resources.examples(config, "train", config.scoring.max_length))
    return sample(train, config.scoring.samples, config.scoring.seed)


def sample(examples: list[Example], number: int, seed: int) -> list[Example]:
    """`number` of the examples, drawn without replacement; all of them when there are fewer."""
    generator = torch.Generator().manual_seed(seed)
    return [examples[index] for index in torch.randperm(len(examples), generator=generator)[:number].tolist()]


def score_examples(
    encoder: Encoder, examples: list[Example], pad: dict[str, int], xi: float, batch_size: int = 32
) -> tuple[Tensor, Tensor]:
    """Richness and correlation of every head for every example.

    Returns:
        int64 [examples, layers, heads] and float64 [examples, layers, heads, heads], in the examples' order.
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


def _warmed_up_encoder(config: RunConfig, resources: ResourceCache) -> Encoder:
    """The backbone after `warm_steps` steps of full fine-tuning at the run's batch size and learning rate."""
    from hifi_cli.methods.base import MethodContext, implementation
    from hifi_cli.training.trainer import Trainer

    if distributed.state().num_processes > 1:  # the others wait for the scores' lock, and would not train along
        raise UsageError("scoring.warm_steps requires one process: run hifi score first, without torchrun")
    encoder, pretrained = resources.encoder(config)
    full = implementation("full_ft")
    method = full(full.Settings(), MethodContext(missing_keys=pretrained.missing_keys))
    method.prepare(encoder)
    runner = ModelRunner(encoder, resources.task(config.task), config, padding_values(pretrained.tokenizer))
    train_rows = resources.rows(config.task).rows("train")
    train = without_holdout(config, train_rows, resources.examples(config, "train", config.max_length))
    trainer = Trainer(runner, method, train, max_steps=config.scoring.warm_steps)
    if config.scoring.warm_steps > trainer.total_steps:
        raise UsageError(f"scoring.warm_steps={config.scoring.warm_steps} is more than the run's {trainer.total_steps} steps")
    trainer.train()
    return encoder


def _scores_path(config: RunConfig, resources: ResourceCache, *, measured: bool = False) -> Path:
    """The file of the scores, or of what the configured ranking measures; its name is a hash of all that decides them."""
    decides: dict[str, Any] = {
        "backbone": resources.pretrained(config).weights_id,
        "data": resources.fingerprint(config.task)["train"],
        "scoring": config.scoring.model_dump(),
        "encoding": config.model_dump(include={"truncation", "swap_texts", "stride"}),
    }
    if holdout := holdout_ids(config, resources.rows(config.task).rows("train"))[1]:
        decides["held out"] = holdout
    if config.scoring.warm_steps:
        training = {*TrainingConfig.model_fields} - {"method", "settings"}  # full fine-tuning, whatever the run's method
        training |= {"seed", "epochs", "batch_size", "max_length", "train_sampling_strategy"}
        training |= {"precision", "dropout", "task_head"}
        decides["training"] = config.model_dump(mode="json", include=training)
    folder = resources.results_dir / "scores" / safe_name(config.backbone.name) / safe_name(config.task)
    if measured:
        decides |= config.model_dump(mode="json", include={"task_head"})
        return folder / f"{config.heads.rank}-{digest(decides)}.json"
    return folder / f"{digest(decides)}.json"
