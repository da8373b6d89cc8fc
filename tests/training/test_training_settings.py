"""Settings that every fine-tuning script has: schedules, early stopping, label smoothing, class weights, layer-wise rates."""

import math

import numpy as np
import pytest
import torch
from prepared_models import prepare, prepared_run, splits_of
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional
from transformers import get_cosine_schedule_with_warmup

from hifi_cli.errors import UsageError
from hifi_cli.records.check import check
from hifi_cli.records.study import Study
from hifi_cli.runs import run as runs
from hifi_cli.runs.inputs import load_task
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import EncodedExample, Row
from hifi_cli.training.loop import Splits, Trainer
from hifi_cli.training.losses import balanced_weights, loss_normalizer, task_loss
from hifi_cli.training.schedule import learning_rate_factor

WEIGHTS = [0.5, 3.0]


def labelled(labels):
    return [EncodedExample(Row(str(at), (("a",),), label), ()) for at, label in enumerate(labels)]


def test_each_setting_of_the_loss_and_of_stopping_makes_another_run(make):
    changes = [
        "patience=1",
        "label_smoothing=0.1",
        "class_weights=balanced",
        "class_weights=[1,2]",
        "layer_decay=0.9",
    ]
    hashes = {make("full-ft", change).config_hash for change in changes}
    assert len(hashes | {make("full-ft").config_hash}) == 6


def test_the_cosine_schedule_is_transformers(make):
    config = make("full-ft", "schedule=cosine", "warmup=0.1")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    factors = get_cosine_schedule_with_warmup(optimizer, 20, 200).lr_lambdas[0]
    ours = [learning_rate_factor(config, 200, step) for step in range(200)]
    assert ours == pytest.approx([factors(step) for step in range(200)])
    floor = config.model_copy(update={"final_factor": 0.2})
    for step, factor in ((110, 0.6), (200, 0.2)):
        assert learning_rate_factor(floor, 200, step) == pytest.approx(factor)


def test_a_constant_schedule_warms_up_too_for_a_part_of_the_steps_rounded_up(make):
    config = make("full-ft", "schedule=constant", "warmup=0.1")
    factors = [learning_rate_factor(config, 25, step) for step in range(25)]
    assert factors == pytest.approx([0, 1 / 3, 2 / 3, *[1] * 22])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("one_logit", [False, True])
def test_class_weights_and_label_smoothing_are_torchs(weights, smoothing, one_logit):
    spec, labels = task_spec.load("rte"), [0, 1, 1, 0, 1]
    torch.manual_seed(0)
    logits = torch.randn(5, 1 if one_logit else 2)
    two = torch.cat([torch.zeros(5, 1), logits], 1) if one_logit else logits
    examples = labelled(labels)
    ours = task_loss(spec, logits, examples, weights, smoothing) / loss_normalizer(
        spec, examples, weights
    )
    weight = None if weights is None else torch.tensor(weights)
    torch.testing.assert_close(
        ours, functional.cross_entropy(two, torch.tensor(labels), weight, label_smoothing=smoothing)
    )
    if weights and not smoothing:
        terms = [
            (weights[y], -math.log(math.exp(row[y]) / sum(map(math.exp, row))))
            for y, row in zip(labels, two.tolist(), strict=True)
        ]
        assert ours.item() == pytest.approx(
            sum(w * nll for w, nll in terms) / sum(w for w, _ in terms), rel=1e-5
        )


def test_the_loss_of_spans_is_that_of_the_first_and_the_last_token_among_the_real_ones():
    spec, logits = task_spec.load("squad"), torch.randn(2, 2, 6)
    answers, lengths = [(1, 3), (2, 2)], [6, 4]
    examples = [
        EncodedExample(Row("0", (("a",),), 0), ({"input_ids": np.zeros(length)},), answer=answer)
        for answer, length in zip(answers, lengths, strict=True)
    ]
    by_hand = 0.0
    for example in range(2):
        for end in range(2):
            of_real_tokens = logits[example, end, : lengths[example]].log_softmax(0)
            by_hand -= of_real_tokens[answers[example][end]] / 2
    torch.testing.assert_close(task_loss(spec, logits, examples), by_hand)


def test_weights_of_tags_count_the_words_that_were_read():
    spec = task_spec.load("conll2003")
    examples = [
        EncodedExample(Row("0", (("a b c",),), (1, 0, 2)), (), word_tokens=(1, -1, 2)),
        EncodedExample(Row("1", (("a",),), (1,)), (), word_tokens=(1,)),
    ]
    assert spec.rules.targets(examples) == [1, 2, 1]
    weights = [*map(float, range(1, 10))]
    assert loss_normalizer(spec, examples, weights) == 2 + 3 + 2
    logits = torch.randn(2, 9, 3)
    chosen = [(0, 1, 1), (0, 2, 2), (1, 1, 1)]  # example, token, tag
    by_hand = sum(
        -weights[tag] * logits[at, :, token].log_softmax(0)[tag] for at, token, tag in chosen
    )
    torch.testing.assert_close(task_loss(spec, logits, examples, weights), by_hand)


def test_balanced_weights_are_scikit_learns_and_a_class_without_examples_has_one_too():
    spec, labels = task_spec.load("rte"), [0, 1, 1, 1, 1]
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=labels)
    assert balanced_weights(spec, labelled(labels)) == pytest.approx(expected.tolist())
    assert balanced_weights(spec, labelled([0, 0, 0])) == [0.5, 1.5]


def test_a_step_has_the_weighted_loss_whatever_its_micro_batches(make, workspace):
    for parts in (1, 3):
        prepared, config = prepare(
            make,
            workspace,
            "full-ft",
            "class_weights=balanced",
            f"gradient_accumulation_steps={parts}",
        )
        examples = splits_of(config, workspace).train[:9]
        labels = np.array([example.row.label for example in examples])
        expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=labels)
        trainer = Trainer(prepared, prepared.method, Splits(examples))
        assert trainer.class_weights == pytest.approx(expected.tolist())
        prepared.encoder.model.eval()
        weight = torch.tensor(expected, dtype=torch.float32)
        by_hand = functional.cross_entropy(prepared.logits(examples), torch.tensor(labels), weight)
        computed = prepared.accumulate_gradient(
            examples, trainer.class_weights, lambda model: model.classifier.bias.sum() + 0.5
        )
        torch.testing.assert_close(computed, by_hand.detach() + 0.5)  # the penalty counts once


def test_accumulation_gives_the_gradient_of_the_whole_batch(make, workspace):
    gradients = []
    for parts in (1, 3):
        config = make("full-ft", f"gradient_accumulation_steps={parts}", "dropout=0.0")
        prepared = prepared_run(config, workspace)
        prepared.model.train()
        prepared.accumulate_gradient(splits_of(config, workspace).train[:8])
        gradients.append(
            [p.grad for p in prepared.encoder.model.parameters() if p.grad is not None]
        )
    for at_once, in_parts in zip(*gradients, strict=True):
        torch.testing.assert_close(at_once, in_parts, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("stsb", "class_weights=balanced", "kind regression has no classes to weight"),
        ("squad", "label_smoothing=0.1", "kind span has no cross-entropy over classes"),
        ("copa", "class_weights=[1,2]", "kind multiple-choice has no classes"),
        (
            "rte",
            "class_weights=[1,2,3]",
            "give 2 positive weights, of the classes entailment, not_entailment",
        ),
        ("rte", "class_weights=[1,-2]", "give 2 positive weights"),
    ],
)
def test_a_setting_of_the_loss_that_a_task_does_not_have_is_refused(make, task, change, message):
    with pytest.raises(UsageError, match=message):
        load_task(make("full-ft", change, task=task))


@pytest.mark.parametrize(
    ("steps", "method"), [(1, ["bitfit"]), (2, ["eh-ft-bitfit", "stage1.warmup=0.1"])]
)
def test_a_run_or_stage_of_one_step_trains(make, workspace, steps, method):
    words = [*method, f"epochs={steps}", "limit=8", "warmup=0.1"]
    prepared, config = prepare(make, workspace, *words)
    before = {name: value.clone() for name, value in prepared.encoder.model.state_dict().items()}
    trainer = Trainer(prepared, prepared.method, splits_of(config, workspace))
    trainer.train()
    assert trainer.progress.step == steps
    assert any(not value.equal(before[name]) for name, value in trainer.delta.items())


# --- layer-wise learning rate decay


@pytest.mark.parametrize("method", ["full-ft", "lora", "hifi-layerwise", "child-tuning-d"])
def test_each_layer_has_its_learning_rate(make, workspace, method):
    prepared, config = prepare(
        make, workspace, method, "layer_decay=0.5", "learning_rate=0.01", "schedule=constant"
    )
    trainer = Trainer(prepared, prepared.method, Splits(splits_of(config, workspace).train))
    trainer.train(max_steps=1)
    rates = {
        value: group["initial_lr"]
        for group in trainer.stage.optimizer.param_groups
        for value in group["params"]
    }
    parameters = prepared.method.trainable_parameters(prepared.encoder.model)
    if words := trainer.stage.word_rows:  # the rows that train in the place of the word embedding
        parameters = dict(zip(parameters, words.replace_in([*parameters.values()]), strict=True))
    assert len(rates) == len(parameters)
    for name, value in parameters.items():
        layer = name.partition("encoder.layer.")[2][:1]
        power = 2 - int(layer) if layer else 3 if "embeddings" in name else 0
        assert rates[value] == 0.01 * 0.5**power, name
    assert trainer.stage.optimizer.param_groups[0]["initial_lr"] == 0.01  # the one that is logged
    decays = {
        value: group["weight_decay"]
        for group in trainer.stage.optimizer.param_groups
        for value in group["params"]
    }
    assert all(
        (decays[value] > 0) == (value.dim() > 1)
        for name, value in parameters.items()
        if "bert.encoder" not in name
    )


def test_a_group_with_a_learning_rate_of_its_own_has_it_times_the_decay(make, workspace):
    """A method of one's own may give its task head another one."""
    prepared, config = prepare(make, workspace, "full-ft", "layer_decay=0.5")
    method = prepared.method
    usual = method.param_groups(prepared.encoder.model, 0.1)

    def with_own_rate(*_):
        return [{**group, "lr": 0.02} for group in usual]

    method.param_groups = with_own_rate
    trainer = Trainer(prepared, method, splits_of(config, workspace))
    trainer.begin_stage(0)
    rates = {group["initial_lr"] for group in trainer.stage.optimizer.param_groups}
    assert rates == {0.02 * 0.5**distance for distance in range(4)}


@pytest.mark.parametrize("method", ["prefix-tuning", "diff-pruning"])
def test_layer_decay_is_refused_where_a_method_trains_outside_of_layers(make, workspace, method):
    with pytest.raises(
        UsageError, match=rf"layer_decay: method {method} adds \S+, which is in no layer"
    ):
        prepare(make, workspace, method, "layer_decay=0.9")
    with pytest.raises(UsageError, match="method linear-probing trains no layer"):
        prepare(make, workspace, "linear-probing", "layer_decay=0.9")
    prepare(make, workspace, "lp-ft", "layer_decay=0.9")  # whose second stage trains them


# --- early stopping

NO_PROGRESS = [
    "learning_rate=1e-30",
    "epochs=9",
    "patience=2",
    "batch_size=24",
    "warmup=0",
]  # the first epoch is the best


@pytest.mark.parametrize(
    "words", [[], ["selection=holdout"], ["selection=holdout", "report=last"], ["shots=4"]], ids=str
)
def test_training_stops_when_no_epoch_was_better_and_says_so(make, workspace, words):
    config = make("full-ft", *NO_PROGRESS, *words)
    result = runs.run(config, workspace)
    assert (result.epochs.total, result.epochs.best, result.epoch()) == (
        3,
        1,
        3 if "report=last" in words else 1,
    )
    assert [line.epoch for line in result.epoch_metrics] == [1, 2, 3]
    assert result.scores.last == pytest.approx(result.scores.best)
    study = Study(workspace.results_dir)
    assert study.runs[["epoch_last", "max_epochs"]].to_numpy().tolist() == [[3, 9]]
    (findings,) = check(workspace.results_dir).findings.values()
    assert not any("epochs" in finding for finding in findings)
