"""Score attention heads, rank and select them, and store what was found.

All seeds and methods of a backbone and task share a scoring.

HeadSelector.heads_to_tune calls these, each of which calls the next:
HeadSelector.select: the k highest of each layer                              Algorithm 2, line 10
HeadSelector.rank: by the scores, or by what a measured ranking measures      Algorithm 2, equations 8 to 10
HeadSelector.score: read the stored scores, or else compute and store them
HeadSelector.compute_scores: information richness and correlation             Algorithm 1, equations 1 to 7

`methods/hifi.py` trains the heads that are selected here: Algorithm 3.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.digests import digest, file_digest
from hifi_cli.errors import UsageError, logger
from hifi_cli.files import safe_name
from hifi_cli.heads.measures import MEASURES, HeadMeasure, measure_heads
from hifi_cli.heads.ranking import (
    Ranked,
    RankingFunction,
    check_k,
    rank_heads,
    select_top_heads,
)
from hifi_cli.heads.scores import EIGENVALUE_DEVICE, score_examples
from hifi_cli.locks import locked
from hifi_cli.methods.base import Heads
from hifi_cli.methods.find import implementation_of, user_code
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.head_files import HeadImportance, HeadScores, HeadSelection
from hifi_cli.runs.inputs import RunInputs, load_task
from hifi_cli.runs.prepare import build_and_prepare, own_encoder
from hifi_cli.runs.provenance import describe_provenance
from hifi_cli.runs.splits import split_train
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks.encode import padding_values, single_sequences
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training import processes
from hifi_cli.training.device import set_up_device
from hifi_cli.training.loop import Splits, Trainer
from hifi_cli.training.runner import ModelRunner

File = TypeVar("File", HeadScores, HeadImportance)


def needs_heads(config: RunConfig) -> bool:
    """Return whether a run tunes selected heads, in either of its stages."""
    methods = [implementation_of(stage_config.method) for stage_config in config.stage_configs]
    return any(method.needs_heads for method in methods)


def is_measured(config: RunConfig) -> bool:
    """Return whether the ranking may measure the model itself instead of reading HiFi's scores.

    Code of the user's may do either, and is not run to find out.
    """
    return config.heads.rank in MEASURES or registry.own_file(config.heads.rank) is not None


def placeholder_heads(config: RunConfig, encoder: Encoder) -> Heads | None:
    """Return the configured heads, or as many arbitrary ones as would be selected.

    A plan counts parameters by them, without scoring any head. None: the method needs none.
    """
    if not needs_heads(config) or config.heads.given:
        return config.heads.given
    # Heads of equal value: the strategy alone says how many there are, and in which layers.
    any_heads = [Ranked(np.ones(encoder.num_heads))] * encoder.num_layers
    return select_top_heads(any_heads, config.heads.k, config.heads.strategy).heads


def seed_of_random_heads(seed: int, task: str) -> int:
    """Return the seed that draws the heads of a task: one seed gives every task other heads."""
    return int(digest([seed, task], 8), 16)


def sample(examples: list[EncodedExample], number: int, seed: int) -> list[EncodedExample]:
    """Draw some of the examples without replacement, all of them when there are fewer.

    Args:
        examples: those to draw from.
        number: of examples to draw.
        seed: of the draw.
    """
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return [examples[index] for index in order[:number].tolist()]


@dataclass(frozen=True)
class HeadSelector:
    """Selects the attention heads of an encoder on a task, as a run's configuration says.

    Attributes:
        inputs: the encoder, and the train rows that its heads are scored on.
        device: where they are scored.
        results_dir: has the folders `scores` and `heads`.
    """

    inputs: RunInputs
    device: torch.device
    results_dir: Path

    @classmethod
    def of(cls, config: RunConfig, workspace: Workspace) -> "HeadSelector":
        """Load what a configuration's heads are selected from."""
        device = set_up_device(config)
        inputs = workspace.inputs(config, load_task(config))
        return cls(inputs, device, workspace.results_dir)

    @property
    def config(self) -> RunConfig:
        """The configuration of the run that tunes the heads."""
        return self.inputs.config

    # --- select, rank and score

    def heads_to_tune(self) -> Heads | None:
        """Return the heads that a run tunes: those of its configuration, or selected ones.

        None: its method needs none.
        """
        if not needs_heads(self.config):
            return None
        how = self.config.heads
        if how.given:
            return how.given
        selection, path = self.select()
        logger.info(f"heads: {how.strategy}, k={how.k}, by {selection.rank}: {path}")
        return selection.heads

    def select(self, out: Path | None = None) -> tuple[HeadSelection, Path]:
        """Select heads by their scores, and store the selection.

        Args:
            out: the file of the selection; None: its place in the results.

        Returns:
            The selection, and its file.

        Raises:
            UsageError: k exceeds the heads of a layer, or there is nothing to choose by.
        """
        config = self.config
        how = config.heads
        # Scoring may take minutes, so a k that is too large is refused before it.
        check_k(how.k, self.inputs.pretrained.encoder.num_heads)
        chosen = select_top_heads(self.rank(), how.k, how.strategy)
        arguments = how.selection_arguments(config.seed)
        selection = HeadSelection(
            backbone=config.backbone.name, task=config.task, **arguments, **asdict(chosen)
        )
        # Two selections share a file only if they were asked for in the same way and chose from the
        # same values.
        path = out or self._path("heads", digest([arguments, chosen.values]))
        # A selection is cheap to make, so a file that is there already, damaged or not, is replaced.
        selection.write(path)
        return selection, path

    def rank(self) -> list[Ranked]:
        """Rank the heads of every layer as configured, by their scores or by what is measured."""
        own_functions = self._own_functions()
        measure = own_functions.get("measure") or MEASURES.get(self.config.heads.rank)
        if measure:
            measured = self._importance(measure)
            return [Ranked(np.array(values)) for values in measured.values]
        return self._rank_by_scores(own_functions.get("rank"))

    def _own_functions(self) -> dict[str, Any]:
        """Return what the user's own ranking defines; empty: the ranking is one of this program.

        It is a function `rank`, which reads HiFi's scores, or `measure`, which reads the model.

        Raises:
            UsageError: the file has neither.
        """
        name = self.config.heads.rank
        file = registry.own_file(name)
        if file is None:
            return {}
        defined = user_code(name, file)
        if defined.keys().isdisjoint(("rank", "measure")):
            raise UsageError(f"{file} must define a function rank or measure")
        return defined

    def _rank_by_scores(self, function: RankingFunction | None) -> list[Ranked]:
        """Rank the heads of every layer by HiFi's scores, which are read or computed.

        Args:
            function: the user's own; None: the one that the configuration names.
        """
        how = self.config.heads
        # Only `random` draws. The run's seed gives every task other heads.
        seed = seed_of_random_heads(how.seed_of_random(self.config.seed), self.config.task)
        scores, _ = self.score()
        richness, correlation = scores.arrays
        return rank_heads(
            richness,
            correlation,
            rank=how.rank,
            damping=how.damping,
            epsilon=how.epsilon,
            seed=seed,
            function=function,
        )

    def score(self, *, force: bool = False, out: Path | None = None) -> tuple[HeadScores, Path]:
        """Read the scores of the heads, or compute them once under a lock and store them.

        Args:
            force: compute them also where they are stored.
            out: also written to this file.

        Returns:
            The scores, and their file.
        """
        path = self._path("scores", self.scores_name())
        scores = _read_or_compute(HeadScores, path, self.compute_scores, force=force)
        if out:
            scores.write(out)
        return scores, out or path

    def _importance(self, measure: HeadMeasure) -> HeadImportance:
        """Read what the ranking measures of the heads, or measure it once and store it."""
        path = self._path("scores", self._importance_name())
        return _read_or_compute(HeadImportance, path, lambda: self.compute_importance(measure))

    # --- the names of files

    def _path(self, folder: str, name: str) -> Path:
        """Return `results/FOLDER/BACKBONE/TASK/NAME.json`."""
        backbone = safe_name(self.config.backbone.name)
        task = safe_name(self.config.task)
        return self.results_dir / folder / backbone / task / f"{name}.json"

    def scores_name(self) -> str:
        """Name the file of the scores: a hash of all that decides them."""
        return digest(self._inputs_of_scores())

    def _importance_name(self) -> str:
        """Name the file of measured values by the ranking, and a hash of all that decides them."""
        deciding = self._inputs_of_scores()
        # A measured ranking may read the loss, and with it the task head. HiFi's scores read
        # neither.
        deciding |= self.config.model_dump(mode="json", include={"task_head"})
        own = registry.own_file(self.config.heads.rank)
        if own:
            deciding["code"] = file_digest(own)
        return f"{self.config.heads.rank}-{digest(deciding)}"

    def _inputs_of_scores(self) -> dict[str, Any]:
        """Return all that decides the scores of heads: encoder, rows, settings of scoring."""
        config = self.config
        # Two keys that decide tokens stand elsewhere: the encoder's digest stands for `backbone.*`,
        # and heads are scored at `scoring.max_length`, not at the run's length.
        encoding = {
            key: value
            for key, value in config.values_that_decide("tokens").items()
            if not key.startswith("backbone.") and key != "max_length"
        }
        deciding: dict[str, Any] = {
            "backbone": self.inputs.pretrained.digest,
            "data": self.inputs.data.fingerprint["train"],
            "scoring": config.scoring.model_dump(),
            "encoding": encoding,
        }
        # Without held-out rows the key is absent, so that such runs share their scores whatever
        # their `selection` is.
        held_out = self._held_out()
        if held_out:
            deciding["held out"] = held_out
        if config.scoring.warm_steps:
            # The warm-up is full fine-tuning at the run's settings, whatever its method.
            deciding["training"] = config.values_that_decide("warm-up")
        return deciding

    # --- measure the model

    def compute_scores(self) -> HeadScores:
        """Score every head on random training samples (Algorithm 1).

        Its line 7 is here: I_h and r_hh' are means over the samples (equations 3 and 7).

        Rows that the run holds out to select its epoch are not among them: the choice of heads is
        part of the training.
        """
        runner, examples = self.model_and_examples()
        xi = self.config.scoring.xi
        # Each choice of a multiple-choice example is a text of its own.
        sequences = single_sequences(examples)
        richness, correlation = score_examples(runner.encoder, sequences, runner.pad, xi)
        return HeadScores(
            **self._common_fields(len(examples)),
            xi=xi,
            richness=richness.double().mean(0).tolist(),
            richness_std=richness.double().std(0, correction=0).tolist(),
            correlation=correlation.mean(0).tolist(),
            provenance=describe_provenance(self.device, EIGENVALUE_DEVICE),
        )

    def compute_importance(self, measure: HeadMeasure) -> HeadImportance:
        """Measure what the configured ranking ranks heads by, on the samples of `compute_scores`."""
        runner, examples = self.model_and_examples()
        values = measure_heads(measure, runner, examples).tolist()
        return HeadImportance(
            **self._common_fields(len(examples)),
            rank=self.config.heads.rank,
            values=values,
            provenance=describe_provenance(self.device),
        )

    def _common_fields(self, samples: int) -> dict[str, Any]:
        """Return the fields that the files of all measurements have."""
        config = self.config
        return {
            "backbone": config.backbone.name,
            "task": config.task,
            **config.scoring.model_dump(exclude={"samples", "xi"}),
            "samples": samples,
            "backbone_weights_id": self.inputs.pretrained.digest,
            "data": self.inputs.data.fingerprint["train"],
        }

    def model_and_examples(self) -> tuple[ModelRunner, list[EncodedExample]]:
        """Return the model and the examples that scores and other measurements are of.

        Unless `scoring.warm_steps` trains it, the task head that the loss depends on is a random
        one, drawn by `scoring.seed`: what is measured does not depend on the run's seed, and all
        runs tune the same heads.
        """
        config = self.config
        scoring = config.scoring
        pretrained = self.inputs.pretrained
        all_examples = self._training_examples(scoring.max_length)
        examples = sample(all_examples, scoring.samples, scoring.seed)
        seed_of_task_head = scoring.seed
        if scoring.warm_steps:
            seed_of_task_head = config.seed
        encoder = own_encoder(pretrained, seed_of_task_head)
        pad = padding_values(pretrained.tokenizer)
        runner = ModelRunner(encoder, self.inputs.task, config, pad, self.device)
        if scoring.warm_steps:
            train = self._training_examples(config.max_length)
            _warm_up(runner, train, pretrained.missing_keys)
        return runner, examples

    def _training_examples(self, max_length: int) -> list[EncodedExample]:
        """Return the train split without what the run holds out."""
        held_out = set(self._held_out())
        examples = self.inputs.examples("train", max_length)
        return [example for example in examples if example.row.id not in held_out]

    def _held_out(self) -> list[str]:
        """Return the ids of the train rows that the run holds out.

        A few-shot run scores its heads on the full train split, and so holds out none here.
        """
        if self.config.shots:
            return []
        rows = self.inputs.data.rows("train")
        _, held_out = split_train(self.config, self.inputs.task, rows)
        return [row.id for row in held_out]


def _read_or_compute(
    kind: type[File], path: Path, compute: Callable[[], File], *, force: bool = False
) -> File:
    """Read a stored file, or make it; a damaged one is made again.

    The lock of the file lets runs that start together wait for one scoring, instead of doing it
    twice.

    Args:
        kind: the class of the file.
        path: where it is stored.
        compute: makes it.
        force: make it also where it is stored.
    """
    with locked(path.with_name(f".{path.stem}.lock"), wait=True):
        if path.is_file() and not force:
            try:
                return kind.read(path)
            except UsageError as error:
                logger.warning(f"{error}: done now")
        computed = compute()
        computed.write(path)
    return computed


def _warm_up(runner: ModelRunner, examples: list[EncodedExample], missing_keys: list[str]) -> None:
    """Train for `warm_steps` steps of full fine-tuning at the run's learning rate."""
    steps = runner.config.scoring.warm_steps
    # The other processes would wait for the lock of the scores.
    if processes.process_state().num_processes > 1:
        raise UsageError(
            "scoring.warm_steps requires one process: run hifi score first, without torchrun"
        )
    config = runner.config.model_copy(update={"method": "full-ft", "settings": {}, "stage1": None})
    method = build_and_prepare(config, runner.encoder, None, missing_keys)
    trainer = Trainer(runner, method, Splits(examples))
    if steps > trainer.plan.total:
        raise UsageError(
            f"scoring.warm_steps={steps} is more than the run's {trainer.plan.total} steps"
        )
    trainer.train(steps)
