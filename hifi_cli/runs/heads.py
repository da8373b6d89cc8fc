"""Score heads, select them, and store both: all seeds and methods of a backbone and task share a scoring.

selected_heads: of a run, given in a file or selected          Algorithm 3
select: the k highest of each layer, stored
rank: by the scores, or by what a measured ranking measures   Algorithm 2, equations 8 to 10
score: information richness and correlation, stored           Algorithm 1, equations 1 to 7
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import ConfigDict

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.errors import UsageError, logger
from hifi_cli.files import digest, file_digest, locked, safe_name
from hifi_cli.heads.measures import MEASURES, HeadMeasure, measure_heads
from hifi_cli.heads.ranking import Array, Ranked, check_k, rank_heads, select_top_heads
from hifi_cli.heads.scores import EIGENVALUE_DEVICE, score_examples
from hifi_cli.methods.base import Heads
from hifi_cli.methods.find import implementation_of, user_code
from hifi_cli.models.encoder import Encoder
from hifi_cli.records.record import StoredFile
from hifi_cli.runs.provenance import describe_provenance
from hifi_cli.runs.splits import split_train
from hifi_cli.runs.workspace import Workspace, build_and_prepare, load_task
from hifi_cli.tasks.encode import padding_values, single_sequences
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training import processes
from hifi_cli.training.device import set_up_device
from hifi_cli.training.loop import Splits, Trainer
from hifi_cli.training.runner import ModelRunner

LayerValues = list[list[float]]


class HeadFile(StoredFile):
    """A file about the heads of a backbone on a task; other keys say how its numbers came about."""

    model_config = ConfigDict(extra="allow")

    backbone: str
    task: str


class HeadScores(HeadFile):
    """Information richness and correlation of every attention head.

    Attributes:
        samples: number of training samples.
        richness: I_h, mean over the samples [layers, heads].
        richness_std: its standard deviation over the samples [layers, heads].
        correlation: r_hh', mean over the samples [layers, heads, heads].
    """

    samples: int
    richness: LayerValues
    richness_std: LayerValues
    correlation: list[LayerValues]

    @property
    def arrays(self) -> tuple[Array, Array]:
        """I_h [layers, heads] and r_hh' [layers, heads, heads]."""
        return np.array(self.richness), np.array(self.correlation)


class HeadImportance(HeadFile):
    """One value of every attention head, by which a measured ranking ranks them.

    Attributes:
        values: mean over the samples [layers, heads].
    """

    samples: int
    values: LayerValues


class HeadSelection(HeadFile):
    """The attention heads to tune; the other keys are those of `HeadsConfig` and `ChosenHeads`.

    Attributes:
        heads: a list for each layer.
        ties: layers in which equal values were ordered by head number.
    """

    rank: str
    heads: Heads
    ties: list[int]


File = TypeVar("File", HeadScores, HeadImportance)


def needs_heads(config: RunConfig) -> bool:
    """Whether a run tunes selected heads, in either of its stages."""
    return any(implementation_of(stage.method).needs_heads for stage in config.stages)


def is_measured(config: RunConfig) -> bool:
    """Whether heads are ranked by what is measured of them, or by code of the user's that may do so."""
    return config.heads.rank in MEASURES or registry.own_file(config.heads.rank) is not None


def selected_heads(config: RunConfig, workspace: Workspace) -> Heads | None:
    """The heads that a run tunes: given, or selected; None if its method needs none."""
    if not needs_heads(config):
        return None
    if config.heads.given:
        return config.heads.given
    selection, path = select(config, workspace)
    logger.info(f"heads: {config.heads.strategy}, k={config.heads.k}, by {selection.rank}: {path}")
    return selection.heads


def placeholder_heads(config: RunConfig, encoder: Encoder) -> Heads | None:
    """The configured heads, or as many as would be selected."""
    if not needs_heads(config) or config.heads.given:
        return config.heads.given
    any_heads = [Ranked(np.ones(encoder.num_heads))] * encoder.num_layers
    return select_top_heads(any_heads, config.heads.k, config.heads.strategy).heads


def select(
    config: RunConfig, workspace: Workspace, *, out: Path | None = None
) -> tuple[HeadSelection, Path]:
    """Select the heads of a backbone, task and setting by their scores, and store the selection.

    Raises:
        UsageError: k exceeds the heads of a layer, or there is nothing to choose by.
    """
    # before minutes of scoring
    check_k(config.heads.k, Encoder(workspace.pretrained(config).model).num_heads)
    choice = select_top_heads(rank(config, workspace), config.heads.k, config.heads.strategy)
    how = config.heads.selection_arguments(config.seed)
    selection = HeadSelection(
        backbone=config.backbone.name, task=config.task, **how, **asdict(choice)
    )
    path = out or _path("heads", digest([how, choice.values]), config, workspace)
    selection.write(path)  # cheap to make, so what is there already, damaged or not, is replaced
    return selection, path


def rank(config: RunConfig, workspace: Workspace) -> list[Ranked]:
    """Rank the heads of every layer as configured, by their scores or by what is measured."""
    name, file = config.heads.rank, registry.own_file(config.heads.rank)
    own = user_code(name, file) if file else {}
    if file and own.keys().isdisjoint(("rank", "measure")):
        raise UsageError(f"{file} must define a function rank or measure")
    if measure := own.get("measure") or MEASURES.get(name):
        compute = partial(compute_importance, measure)
        measured, _ = _read_or_compute(HeadImportance, compute, config, workspace)
        return [Ranked(np.array(values)) for values in measured.values]
    how = config.heads.selection_arguments(config.seed)
    del how["strategy"], how["k"]
    if name == "random":
        how["seed"] = seed_of_random_heads(how["seed"], config.task)
    return rank_heads(*score(config, workspace)[0].arrays, **how, function=own.get("rank"))


def seed_of_random_heads(seed: int, task: str) -> int:
    """The seed that draws the heads of a task, so that a run's seed gives every task other heads."""
    return int(digest([seed, task], 8), 16)


def score(
    config: RunConfig, workspace: Workspace, *, force: bool = False, out: Path | None = None
) -> tuple[HeadScores, Path]:
    """The head scores of a backbone and task: read, or computed once under a lock and stored.

    Args:
        out: also written to this file.

    Returns:
        The scores, and their file.
    """
    head_scores, path = _read_or_compute(HeadScores, compute_scores, config, workspace, force=force)
    if out:
        head_scores.write(out)
    return head_scores, out or path


def _read_or_compute(
    kind: type[File],
    compute: Callable[[RunConfig, Workspace], File],
    config: RunConfig,
    workspace: Workspace,
    *,
    force: bool = False,
) -> tuple[File, Path]:
    """A stored file, which is read, or made under its own lock; a damaged one is made again."""
    measured = kind is HeadImportance
    path = _path("scores", scores_name(config, workspace, measured=measured), config, workspace)
    with locked(path.with_name(f".{path.stem}.lock"), wait=True):
        if path.is_file() and not force:
            try:
                return kind.read(path), path
            except UsageError as error:
                logger.warning(f"{error}: done now")
        computed = compute(config, workspace)
        computed.write(path)
    return computed, path


def scores_name(config: RunConfig, workspace: Workspace, *, measured: bool = False) -> str:
    """The name of the file of scores, or of what the ranking measures: a hash of all that decides."""
    # The encoder has a digest of its own, and `scoring` the length.
    encoding = {
        key: value
        for key, value in config.values_that_decide("tokens").items()
        if not key.startswith("backbone.") and key != "max_length"
    }
    decides: dict[str, Any] = {
        "backbone": workspace.pretrained(config).backbone_weights,
        "data": workspace.rows(config.task).fingerprint["train"],
        "scoring": config.scoring.model_dump(),
        "encoding": encoding,
    }
    if held_out := _held_out(config, workspace):
        decides["held out"] = held_out
    if config.scoring.warm_steps:
        # They are full fine-tuning, whatever the run's method.
        decides["training"] = config.values_that_decide("warm-up")
    if measured:
        decides |= config.model_dump(mode="json", include={"task_head"})
    if measured and (own := registry.own_file(config.heads.rank)):
        decides["code"] = file_digest(own)
    return f"{config.heads.rank}-{digest(decides)}" if measured else digest(decides)


def _path(folder: str, name: str, config: RunConfig, workspace: Workspace) -> Path:
    """`results/FOLDER/BACKBONE/TASK/NAME.json`."""
    about = safe_name(config.backbone.name), safe_name(config.task)
    return workspace.results_dir.joinpath(folder, *about, f"{name}.json")


def compute_scores(config: RunConfig, workspace: Workspace) -> HeadScores:
    """Score every head on random training samples (Algorithm 1), none of them held out."""
    runner, examples, common = load_for_scoring(config, workspace)
    sequences = single_sequences(examples)  # each choice is a text of its own
    richness, correlation = score_examples(runner.encoder, sequences, runner.pad, config.scoring.xi)
    return HeadScores(
        **common,
        xi=config.scoring.xi,
        richness=richness.double().mean(0).tolist(),
        richness_std=richness.double().std(0, correction=0).tolist(),
        correlation=correlation.mean(0).tolist(),
        provenance=describe_provenance(runner.device, EIGENVALUE_DEVICE),
    )


def compute_importance(
    measure: HeadMeasure, config: RunConfig, workspace: Workspace
) -> HeadImportance:
    """Measure what the configured ranking ranks heads by, on the samples of `compute_scores`."""
    runner, examples, common = load_for_scoring(config, workspace)
    values = measure_heads(measure, runner, examples).tolist()
    return HeadImportance(
        **common,
        rank=config.heads.rank,
        values=values,
        provenance=describe_provenance(runner.device),
    )


def load_for_scoring(
    config: RunConfig, workspace: Workspace
) -> tuple[ModelRunner, list[EncodedExample], dict[str, Any]]:
    """The model and the examples that are measured, and the fields that the files of all measurements have.

    Unless `scoring.warm_steps` trains it, the task head that the loss depends on is a random one, drawn by `scoring.seed`:
    what is measured does not depend on the run's seed, and all runs tune the same heads.
    """
    scoring, device = config.scoring, set_up_device(config)
    examples = sample(
        _training_examples(config, workspace, scoring.max_length), scoring.samples, scoring.seed
    )
    seed = config.seed if scoring.warm_steps else scoring.seed
    encoder, pretrained = workspace.encoder(config.model_copy(update={"seed": seed}))
    runner = ModelRunner(
        encoder, load_task(config), config, padding_values(pretrained.tokenizer), device
    )
    if scoring.warm_steps:
        _warm_up(
            runner,
            _training_examples(config, workspace, config.max_length),
            pretrained.missing_keys,
        )
    common = {
        "backbone": config.backbone.name,
        "task": config.task,
        **scoring.model_dump(exclude={"samples", "xi"}),
        "samples": len(examples),
        "backbone_weights_id": pretrained.backbone_weights,
        "data": workspace.rows(config.task).fingerprint["train"],
    }
    return runner, examples, common


def _warm_up(runner: ModelRunner, examples: list[EncodedExample], missing_keys: list[str]) -> None:
    """Train for `warm_steps` steps of full fine-tuning at the run's learning rate."""
    steps = runner.config.scoring.warm_steps
    if processes.process_state().num_processes > 1:  # the others wait for the scores' lock
        raise UsageError(
            "scoring.warm_steps requires one process: run hifi score first, without torchrun"
        )
    config = runner.config.model_copy(update={"method": "full-ft", "settings": {}, "stage1": None})
    method = build_and_prepare(config, runner.encoder, None, missing_keys)
    trainer = Trainer(runner, method, Splits(examples), max_steps=steps)
    if steps > trainer.plan.total:
        raise UsageError(
            f"scoring.warm_steps={steps} is more than the run's {trainer.plan.total} steps"
        )
    trainer.train()


def _training_examples(
    config: RunConfig, workspace: Workspace, max_length: int
) -> list[EncodedExample]:
    """The train split without what the run holds out."""
    held_out = set(_held_out(config, workspace))
    examples = workspace.examples(config, "train", max_length)
    return [example for example in examples if example.row.id not in held_out]


def _held_out(config: RunConfig, workspace: Workspace) -> list[str]:
    """The ids of the train rows that the run holds out; few-shot runs take heads of all rows."""
    if config.shots:
        return []
    rows = workspace.rows(config.task).rows("train")
    return [row.id for row in split_train(config, load_task(config), rows)[1]]


def sample(examples: list[EncodedExample], number: int, seed: int) -> list[EncodedExample]:
    """`number` of the examples, drawn without replacement; all of them when there are fewer."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return [examples[index] for index in order[:number].tolist()]
