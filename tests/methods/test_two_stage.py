"""EH-FT and LP-FT: how two stages share a run, and EH-FT's schedule."""

import pytest
import torch
from prepared_models import encoder_of, prepare

from hifi_cli.errors import UsageError
from hifi_cli.methods import base, find
from hifi_cli.methods.bitfit import BitFit
from hifi_cli.runs import run as runs
from hifi_cli.training import loop, schedule


@pytest.mark.parametrize(
    "method", ["lp-ft", "eh-ft-bitfit", "eh-ft-lora", "eh-ft-prefix", "eh-ft-hifi"]
)
def test_stage_2_starts_from_the_pretrained_backbone_and_stage_1s_head(
    make, workspace, method, monkeypatch
):
    config = make(method, "settings.stage1_fraction=0.5", "stage1.learning_rate=0.01")
    pretrained = {
        name: value.clone()
        for name, value in encoder_of(config, workspace).model.state_dict().items()
    }
    stages = []
    new_stage = loop.Trainer.new_stage

    def recording(trainer):
        stage = new_stage(trainer)
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        stages.append(
            (
                weights,
                dict(stage.optimizer.state),
                stage.optimizer.defaults["lr"],
                stage.method,
            )
        )
        return stage

    monkeypatch.setattr(loop.Trainer, "new_stage", recording)
    runs.run(config, workspace)
    (*_, first_rate, first), (state, moments, second_rate, second) = stages
    head = {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    }
    assert state.keys() == pretrained.keys()
    assert all(
        torch.equal(state[name], value) for name, value in pretrained.items() if name not in head
    )
    assert not {name for name in head if torch.equal(state[name], pretrained[name])}, (
        "stage 1 trains the whole head"
    )
    assert not moments
    assert (first_rate, second_rate) == (0.01, config.learning_rate)
    assert first is not second


def test_a_first_stage_that_leaves_a_part_of_the_head_untrained_is_refused(
    make, workspace, monkeypatch
):
    def biases_only(self, model):
        return {name: value for name, value in model.named_parameters() if name.endswith("bias")}

    monkeypatch.setattr(BitFit, "trainable_parameters", biases_only)
    with pytest.raises(
        UsageError,
        match=r"its method leaves bert.pooler.dense.weight as it is: choose another stage1",
    ):
        runs.run(make("eh-ft-bitfit"), workspace)


def test_the_method_of_stage_1_may_have_two_stages_itself(hifi):
    where = "--task demo-entailment --backbone demo --protocol demo"
    answer = hifi(f"train {where} --method eh-ft stage1.method=diff-pruning limit=32")
    assert answer.code == 0, answer.err


def test_a_first_stage_of_a_method_that_has_one_is_refused(make):
    for method in ("linear-probing", "diff-pruning"):
        with pytest.raises(UsageError, match=f"stage1: {method} has no stage with settings"):
            find.check_method_settings(make(method, "stage1.method=full-ft"))


def test_carrying_only_weights_leaves_the_heads_biases(make, workspace, monkeypatch):
    settings = [
        "settings.carry=weights",
        "settings.stage1_fraction=0.5",
        "stage1.learning_rate=0.01",
    ]
    prepared, config = prepare(make, workspace, "eh-ft-bitfit", *settings)
    initial = encoder_of(config, workspace).model.state_dict()
    with torch.no_grad():
        for parameter in prepared.encoder.task_head.values():
            parameter.add_(1)
    prepared.method.stages()[-1].prepare_model(prepared.encoder)
    state = prepared.encoder.model.state_dict()
    assert torch.equal(state["classifier.bias"], initial["classifier.bias"])
    assert torch.equal(state["classifier.weight"], initial["classifier.weight"] + 1)


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("eh-ft-bitfit-reserve", "LayerNorm.bias"),
        ("eh-ft-lora-reserve", "lora_B"),
        ("eh-ft-prefix-reserve", "prefixes"),
    ],
)
def test_reserve_keeps_what_stage_1_trained(make, workspace, method, part):
    prepared, _ = prepare(make, workspace, method)
    model = prepared.encoder.model
    names = [name for name, _ in model.named_parameters() if part in name]
    assert names
    with torch.no_grad():
        for name in names:
            model.get_parameter(name).fill_(7.0)
    prepared.method.stages()[-1].prepare_model(prepared.encoder)
    assert all((model.get_parameter(name) == 7.0).all() for name in names)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_epoch_that_ends_in_stage_1_is_never_the_best(make, workspace):
    early = make("eh-ft-bitfit", "epochs=2", "settings.stage1_fraction=0.5")
    assert runs.run(early, workspace).epochs.best == 2


# --- the schedule of EH-FT's code


@pytest.mark.parametrize(
    ("shares", "steps", "ends"),
    [
        ([0.1, 0.9], 100, [10, 100]),
        ([0.1, 0.9], 4, [1, 4]),
        ([0.95, 0.05], 4, [3, 4]),
        ([0.06, 0.04, 0.9], 50, [3, 5, 50]),
    ],
)
def test_iterations_are_shared_as_said_and_no_stage_goes_without(make, shares, steps, ends):
    stages = [base.Stage(None, share) for share in shares]
    config = make("full-ft", f"epochs={steps}")
    planned = loop.StepPlan.of(config, 1, 1, stages).stage_steps
    assert [numbers.stop for numbers in planned] == ends
    assert [numbers.start for numbers in planned] == [0, *ends[:-1]]


def test_stages_whose_fractions_are_not_the_whole_are_refused(make):
    stages = [base.Stage(None, 0.5), base.Stage(None, 0.25)]
    with pytest.raises(UsageError, match=r"fractions of the stages sum to 0\.75, not to 1"):
        loop.StepPlan.of(make("full-ft"), 8, 100, stages)


def test_schedule_holds_warms_up_and_ends_at_its_floor(make):
    config = make("full-ft", "warmup=0.1", "hold_steps=20", "hold_factor=0.05", "final_factor=0.1")
    steps = {0: 0.05, 19: 0.05, 20: 0.2, 100: 1.0, 550: 0.55, 1000: 0.1}
    factors = [schedule.learning_rate_factor(config, 1000, number) for number in steps]
    assert factors == pytest.approx([*steps.values()])
