"""A stage of a training by itself: what it is when it is made, and what it leaves."""

import torch
from prepared_models import prepare, splits_of
from torch import nn

from hifi_cli.methods.full_ft import FullFineTuning
from hifi_cli.methods.two_stage import TwoStage
from hifi_cli.training.batches import batches_by_length, in_order
from hifi_cli.training.loop import Trainer
from hifi_cli.training.stage import occurring_words


def begun_stage(make, workspace, *words):
    """A trainer whose first stage has begun, and the examples of its first step."""
    prepared, config = prepare(make, workspace, *words)
    trainer = Trainer(prepared, prepared.method, splits_of(config, workspace))
    trainer.begin_stage(0)
    return trainer, trainer.splits.train[: config.batch_size]


def test_a_closed_stage_leaves_a_model_that_computes_with_its_own_weights(make, workspace):
    """The words that train are a parameter of their own until then."""
    trainer, batch = begun_stage(make, workspace, "full-ft", "warmup=0")
    embedding = trainer.encoder.word_embedding
    ids = torch.from_numpy(batch[0].sequences[0]["input_ids"]).long()[None]
    before = embedding.weight.detach().clone()
    trainer.train_step(batch)
    trained = embedding(ids).detach()
    assert not torch.equal(trained, nn.functional.embedding(ids, embedding.weight))
    trainer.close_stage()
    assert not torch.equal(embedding.weight, before)
    assert torch.equal(embedding(ids), nn.functional.embedding(ids, embedding.weight))
    assert torch.equal(embedding(ids), trained)


def test_each_stage_has_the_settings_of_its_own_optimizer(make, workspace):
    of_stages = ("0.7,0.8", "1e-4", "0.03"), ("0.5,0.6", "1e-3", "0.02")
    words = []
    for prefix, (betas, epsilon, decay) in zip(("stage1.", ""), of_stages, strict=True):
        words += [f"{prefix}adam_betas=[{betas}]", f"{prefix}adam_epsilon={epsilon}"]
        words += [f"{prefix}weight_decay={decay}"]
    trainer, _ = begun_stage(make, workspace, "eh-ft-bitfit", *words)
    expected = [((0.7, 0.8), 1e-4, 0.03), ((0.5, 0.6), 1e-3, 0.02)]
    for index, settings in enumerate(expected):
        trainer.begin_stage(index)
        matrices, vectors = trainer.stage.optimizer.param_groups
        found = tuple(matrices["betas"]), matrices["eps"], matrices["weight_decay"]
        assert found == settings and vectors["weight_decay"] == 0


def test_the_words_that_train_are_those_of_the_examples_and_the_padding(make, workspace):
    examples = splits_of(make("full-ft"), workspace).train[:2]
    ids = {int(word) for example in examples for word in example.sequences[0]["input_ids"]}
    assert occurring_words(examples, {"input_ids": 99}) == ids | {99}


def test_an_evaluation_reads_words_that_no_train_example_has(make, workspace):
    trainer, _ = begun_stage(make, workspace, "full-ft", "limit=2")
    embedding = trainer.encoder.word_embedding
    ids = torch.arange(len(embedding.weight))
    trainer.model.eval()
    assert torch.equal(embedding(ids), embedding.weight)
    assert len(trainer.stage.word_rows.rows) < len(ids)


def test_a_gradient_that_a_method_read_is_no_part_of_the_first_step(make, workspace, monkeypatch):
    """A method need not read the gradients of all batches."""
    monkeypatch.setattr(FullFineTuning, "on_stage_start", lambda _, __, gradients: next(gradients))
    trainer, _ = begun_stage(make, workspace, "full-ft")
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_method_reads_gradients_of_the_loss_with_class_weights(make, workspace, monkeypatch):
    read = []

    def keep_first(_, model, gradients):
        next(gradients)
        read.append(model.classifier.bias.grad.clone())

    monkeypatch.setattr(FullFineTuning, "on_stage_start", keep_first)
    trainer, _ = begun_stage(make, workspace, "full-ft", "class_weights=[1,9]", "dropout=0.0")
    trainer.runner.accumulate_gradient(trainer.splits.gradient_batches[0], [1.0, 9.0])
    torch.testing.assert_close(trainer.model.classifier.bias.grad, read[0])


def test_a_stage_has_trained_after_a_step_with_a_learning_rate(make, workspace):
    trainer, batch = begun_stage(make, workspace, "full-ft", "warmup=0.5")
    trained = [trainer.stage.has_trained()]
    for _ in range(2):
        trainer.train_step(batch)
        trained.append(trainer.stage.has_trained())
    assert trained == [False, False, True]  # the first step of a warm-up has a rate of 0


def test_a_stage_counts_its_own_steps(make, workspace, monkeypatch):
    seen = []
    monkeypatch.setattr(TwoStage, "before_step", lambda _, __, *numbers: seen.append(numbers))
    trainer, batch = begun_stage(make, workspace, "eh-ft-bitfit", "settings.stage1_fraction=0.5")
    assert trainer.stage.next_step == 0
    trainer.train_step(batch)
    assert (trainer.stage.steps_done, trainer.stage.next_step) == (1, 1)
    trainer.begin_stage(1)
    assert (
        trainer.stage.next_step
        == trainer.plan.stage_steps[1].start
        == trainer.plan.stage_steps[0].stop
    )
    steps = trainer.plan.stage_steps[1]
    trainer.train_step(batch)
    trainer.train_step(batch)
    assert seen == [(steps.start, steps), (steps.start + 1, steps)]


def test_results_of_batches_by_length_are_in_the_order_of_the_examples(make, workspace):
    config = make("full-ft")
    examples = splits_of(config, workspace).train[:11]
    batches = batches_by_length(examples, 3)
    lengths = [len(example) for batch in batches for example in batch.examples]
    assert lengths == sorted(lengths, reverse=True) and len(set(lengths)) > 2
    ids = [[example.row.id for example in batch.examples] for batch in batches]
    assert in_order(batches, ids) == [example.row.id for example in examples]
