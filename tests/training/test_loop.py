"""The loop over epochs: which one is kept, by which examples, and what is logged; scores and losses are made up."""

import numpy as np
import pytest
import torch
from prepared_models import prepare, splits_of

from hifi_cli.training.loop import Trainer
from hifi_cli.training.runner import ModelRunner
from hifi_cli.training.stage import TrainingStage


@pytest.fixture
def train(make, workspace, monkeypatch):
    """Trains with given scores; returns the trainer, what was measured, and the classifier's weights then."""

    def run(scores, *words):
        prepared, config = prepare(make, workspace, "full-ft", f"epochs={len(scores)}", *words)
        given, measured, weights = iter(scores), [], []

        def measure(runner, examples, split="validation"):
            measured.append(examples)
            weights.append(runner.encoder.model.classifier.weight.detach().clone())
            return {"accuracy": next(given, 0.0), "z": 9.0}, np.full(
                (len(examples), 2), len(measured)
            )

        monkeypatch.setattr(ModelRunner, "measure", measure)
        trainer = Trainer(prepared, prepared.method, splits_of(config, workspace))
        trainer.train()
        return trainer, measured, weights

    return run


def test_the_first_epoch_with_the_highest_score_is_kept_as_it_was(train):
    """Also where every score is below 0, as Matthews' correlation may be."""
    trainer, _, weights = train([-0.5, -0.25, -0.25, -0.4], "warmup=0")
    assert (trainer.progress.best_epoch, trainer.progress.best_score) == (2, -0.25)
    assert torch.equal(trainer.delta["classifier.weight"], weights[1])
    assert not torch.equal(weights[1], weights[3])
    assert trainer.logits.unique().tolist() == [2]


def test_a_holdout_selects_the_epoch(train):
    trainer, measured, _ = train([0.5], "selection=holdout")
    assert measured[0] is trainer.splits.selection is not trainer.splits.train


def test_an_epoch_of_a_warm_up_that_trained_nothing_is_not_kept(train):
    trainer, *_ = train([0.9, 0.1, 0.2], "batch_size=48", "warmup=0.5")
    assert trainer.progress.best_epoch == 3


def test_logits_of_shorter_batches_are_padded_with_what_is_never_the_highest(make, workspace):
    prepared, config = prepare(make, workspace, "full-ft", "eval_batch_size=1", task="demo-roles")
    examples = splits_of(config, workspace).reported[:4]
    lengths = [len(example) for example in examples]
    finite = np.isfinite(prepared.predict(examples))
    expected = np.arange(finite.shape[2]) < np.array(lengths)[:, None, None]
    assert len({*lengths}) > 1 and np.array_equal(finite, np.broadcast_to(expected, finite.shape))


def test_a_logged_loss_is_the_mean_since_the_last_one_of_the_epoch(train, monkeypatch):
    steps = iter(range(1, 13))
    monkeypatch.setattr(
        TrainingStage, "step", lambda self, batch, at_end: torch.tensor(float(next(steps)))
    )
    trainer, *_ = train([0.5, 0.5], "log_every=5", "batch_size=8")
    lines = [line for line in trainer.progress.log_history if hasattr(line, "loss")]
    # Steps 1 to 5, then 7 to 10 of the second epoch, and the last two of the run.
    assert [(line.step, line.loss) for line in lines] == [(5, 3.0), (10, 8.5), (12, 11.5)]
