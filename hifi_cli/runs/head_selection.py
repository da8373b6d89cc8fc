"""Score heads and choose them, with the files that keep both, so that every seed and method shares one scoring."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import SchemaError, UsageError
from hifi_cli.files import digest, locked, read_with_checksum, safe_name, with_checksum, write_json
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.head_outputs import score_batches
from hifi_cli.records import run_files
from hifi_cli.runs import distributed, holdout, provenance
from hifi_cli.runs.resources import ResourceCache
from hifi_cli.scoring.head_choice import choose_heads
from hifi_cli.tasks.batches import collate, evaluation_order
from hifi_cli.tasks.tokenization import Example, single_sequences

logger = logging.getLogger("hifi")

SCORES_SCHEMA = 1


def padding(tokenizer: Any) -> dict[str, int]:
    """What fills a tokenizer's lists up to the longest of a batch."""
    return {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}


def scores(
    config: RunConfig, resources: ResourceCache, *, force: bool = False, out: Path | None = None
) -> tuple[dict[str, Any], Path]:
    """The head scores of a backbone and task: read, or computed once under a lock and stored.

    Returns:
        The content of the scores file, and where it is.
    """
    path = out or _scores_path(config, resources)
    with locked(resources.results_dir / "scores" / ".lock", wait=True):
        if path.is_file() and not force and (out or _is_sound(path)):
            return read_scores(path), path
        write_json(path, with_checksum(compute_scores(config, resources)))
    return read_scores(path), path


def heads(config: RunConfig, resources: ResourceCache, *, out: Path | None = None) -> tuple[dict[str, Any], Path]:
    """The chosen heads of a backbone, task and setting: read, or chosen once and stored."""
    found, _ = scores(config, resources)
    return choose(found, config.heads.selection_arguments(config.seed), resources.results_dir, out=out)


def choose(
    found: dict[str, Any], how: dict[str, Any], results_dir: Path, *, out: Path | None = None
) -> tuple[dict[str, Any], Path]:
    """Choose heads by a scores file's content and store the choice with what drove it.

    Args:
        how: arguments of `choose_heads`; they stand in the file, the seed that drew random heads among them.

    Raises:
        UsageError: k exceeds the heads of a layer, or there is nothing to choose by.
    """
    selection = choose_heads(np.array(found["richness"]), np.array(found["correlation"]), **how)
    content = {
        "backbone": found["backbone"],
        "task": found["task"],
        "num_heads": found["num_heads"],
        **how,
        "heads": selection.heads,
        "values": selection.values,
        "iterations": selection.iterations,
        "ties": selection.ties,
        "overlap": selection.overlap,
        "scores_sha256": digest(_measured(found), 64),
    }
    folder = results_dir / "heads" / safe_name(found["backbone"]) / safe_name(found["task"])
    path = out or folder / f"{digest([how, content['scores_sha256']])}.json"
    run_files.write_heads(path, content)  # cheap to make, so what is there already, damaged or not, is replaced
    return content, path


def explain(chosen: dict[str, Any]) -> list[str]:
    """Two lines on what drove a choice."""
    counts = [len(heads) for heads in chosen["heads"]]
    layers = [layer for layer, count in enumerate(counts) if count]
    k = sum(counts) / len(layers)
    expected = sum(count * count for count in counts) / chosen["num_heads"] / len(layers)
    shared = {name: sum(overlap) / len(layers) for name, overlap in chosen["overlap"].items()}
    steps = [chosen["iterations"][layer] for layer in layers]
    how = f"{min(steps)}-{max(steps)} iterations, d={chosen['damping']:g}" if max(steps) else "no iteration"
    ties = f"ties parted by head number in layers {chosen['ties']}" if chosen["ties"] else "no ties"
    each = f"{min(counts)} to {max(counts)}" if chosen["strategy"] == "global" else f"{k:.0f}"
    return [
        f"{chosen['rank']} ({how}): {each} of {chosen['num_heads']} heads in {len(layers)} layers; {ties}",
        f"shared with correlation alone {shared['correlation']:.2f} of {k:.3g} per layer, with richness alone"
        f" {shared['richness']:.2f} of {k:.3g} (chance: {expected:.2f})",
    ]


def read_scores(path: Path) -> dict[str, Any]:
    """A scores file, checked.

    Raises:
        MissingError: no such file.
        UsageError: not a scores file, or damaged.
        SchemaError: written by a version with another layout.
    """
    content = read_with_checksum(path, what="scores", schema=SCORES_SCHEMA)
    try:
        shape = (content["num_layers"], content["num_heads"])
        richness, correlation = np.array(content["richness"], float), np.array(content["correlation"], float)
        sound = richness.shape == shape and correlation.shape == (*shape, shape[1])
        sound = sound and content["sha256"] == digest(_measured(content), 64)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise UsageError(f"{path} is damaged or not a scores file; delete it and score again")
    return content


def _is_sound(path: Path) -> bool:
    """Whether a stored scores file can be used; scoring again gives the same file, so a damaged one is only told of.

    Raises:
        SchemaError: written by a version with another layout; not to be replaced.
    """
    try:
        read_scores(path)
    except SchemaError:
        raise
    except UsageError as error:
        logger.warning(f"{error}: done now")
        return False
    return True


def read_given_heads(path: Path, backbone: str) -> list[list[int]]:
    """The heads of a file that `hifi select` wrote, for `--heads`; heads chosen by hand are `heads.given`.

    Raises:
        MissingError: no such file.
        UsageError: not a heads file, damaged, or one of another backbone.
        SchemaError: written by a version with another layout.
    """
    content = run_files.read_heads(path)
    found = content.get("heads")
    layers: list[list[int]] = found if isinstance(found, list) else []
    if not layers or not all(isinstance(layer, list) and all(isinstance(head, int) for head in layer) for layer in layers):
        raise UsageError(f"{path} is not a heads file: 'heads' must hold one list of head numbers per layer")
    if content.get("backbone") != backbone:
        raise UsageError(f"{path} holds heads of backbone '{content.get('backbone')}', not of '{backbone}'")
    return layers


def compute_scores(config: RunConfig, resources: ResourceCache, encoder: Encoder | None = None) -> dict[str, Any]:
    """Score every head on random training samples (Algorithm 1), none of them held out to choose the run's epoch.

    Args:
        encoder: scored instead of the pretrained one (a finished run's).
    """
    pretrained = resources.pretrained(config)
    if encoder is None:
        encoder = _warmed(config, resources) if config.scoring.warm_steps else Encoder(pretrained.model)
    train = holdout.seen(resources.examples(config, "train", config.scoring.max_length), config, resources)
    examples = sample(train, config.scoring.samples, config.scoring.seed)
    sequences = single_sequences(examples)  # each choice of an example is a text of its own
    richness, correlation = score_examples(encoder, sequences, padding(pretrained.tokenizer), config.scoring.xi)
    found = {
        "schema": SCORES_SCHEMA,
        "backbone": config.backbone.name,
        "task": config.task,
        **config.scoring.model_dump(exclude={"samples"}),
        "samples": len(examples),
        "num_layers": encoder.num_layers,
        "num_heads": encoder.num_heads,
        "richness": richness.double().mean(0).tolist(),
        "richness_std": richness.double().std(0, correction=0).tolist(),
        "correlation": correlation.mean(0).tolist(),
        "backbone_weights_id": pretrained.weights_id,
        "data": resources.rows(config.task).fingerprint["train"],
        "provenance": provenance.describe(),
    }
    return {**found, "sha256": digest(_measured(found), 64)}


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
    order = list(_batches(examples, batch_size))
    batches = (collate([examples[index] for index in indices], pad) for indices in order)
    for indices, (i, r) in zip(order, score_batches(encoder, batches, xi), strict=True):
        richness[indices], correlation[indices] = i, r
    return richness, correlation


def _batches(examples: list[Example], batch_size: int) -> Iterable[list[int]]:
    return evaluation_order([len(example) for example in examples], batch_size)


def _warmed(config: RunConfig, resources: ResourceCache) -> Encoder:
    """The backbone after `warm_steps` steps of full fine-tuning at the run's batch size and learning rate."""
    from hifi_cli.methods.base import Context, implementation
    from hifi_cli.runs.model_runner import ModelRunner
    from hifi_cli.runs.trainer import Trainer

    if distributed.state().num_processes > 1:  # the others wait for the scores' lock, and would not train along
        raise UsageError("scoring.warm_steps wants one process: run hifi score first, without torchrun")
    encoder, pretrained = resources.encoder(config)
    full = implementation("full_ft")
    method = full(full.Settings(), Context(missing_keys=pretrained.missing_keys))
    method.prepare(encoder)
    runner = ModelRunner(encoder, resources.task(config.task), config, padding(pretrained.tokenizer))
    train = holdout.seen(resources.examples(config, "train", config.max_length), config, resources)
    Trainer(runner, method, train, max_steps=config.scoring.warm_steps).train()
    return encoder


def _scores_path(config: RunConfig, resources: ResourceCache) -> Path:
    decides: dict[str, Any] = {
        "backbone": resources.pretrained(config).weights_id,
        "data": resources.rows(config.task).fingerprint["train"],
        "scoring": config.scoring.model_dump(),
        "encoding": config.model_dump(include={"truncation", "swap_texts", "stride"}),
    }
    if held := holdout.cut(config, resources)[1]:
        decides["held out"] = held
    if config.scoring.warm_steps:
        training = ("seed", "epochs", "batch_size", "learning_rate", "weight_decay", "warmup", "schedule", "max_length")
        decides["training"] = config.model_dump(mode="json", include=set(training))
    folder = resources.results_dir / "scores" / safe_name(config.backbone.name) / safe_name(config.task)
    return folder / f"{digest(decides)}.json"


def _measured(found: dict[str, Any]) -> list[Any]:
    return [found["backbone"], found["task"], found["richness"], found["correlation"]]
