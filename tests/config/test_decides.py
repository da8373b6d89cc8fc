"""Every configuration key says at its field what it decides: caches, hashes and comparisons ask there."""

import pytest
from pydantic import BaseModel

from hifi_cli.config.base import fields_by_key
from hifi_cli.config.decides import keys_that_decide, mark_of
from hifi_cli.config.run_config import (
    BackboneConfig,
    HeadsConfig,
    RunConfig,
    ScoringConfig,
    TaskHeadConfig,
    TrainingConfig,
)

MODELS = [RunConfig, TrainingConfig, BackboneConfig, ScoringConfig, HeadsConfig, TaskHeadConfig]
# Another value than the default one, as a word of the command line, for keys of warm steps
OTHER_VALUES = {
    "kernels": "torch",
    "padding_free": "false",
    "gradient_accumulation_steps": "2",
    "tf32": "true",
    "dropout": "0.3",
    "learning_rate": "0.007",
    "class_weights": "balanced",
}


@pytest.mark.parametrize("model", MODELS)
def test_every_field_has_a_mark(model):
    assert [field for field in model.model_fields if mark_of(model, field) is None] == []


def test_every_section_of_the_configuration_is_among_the_models():
    keys = {key.rpartition(".")[2] for key in fields_by_key(RunConfig)}
    assert keys <= {field for model in MODELS for field in model.model_fields}


def test_a_field_without_a_mark_is_found():
    class Unmarked(BaseModel):
        key: int = 1

    assert mark_of(Unmarked, "key") is None


def test_a_run_is_its_configuration_but_for_its_place_and_device(make):
    """By the hash, for each key in turn."""
    config = make("full-ft")
    assert set(RunConfig.model_fields) - keys_that_decide(RunConfig, "run") == {"variant", "device"}
    other_place = config.model_copy(update={"variant": "other", "device": "cuda"})
    assert other_place.config_hash == config.config_hash
    for key in ("log_every", "eval_batch_size", "stride"):
        assert config.model_copy(update={key: 77}).config_hash != config.config_hash


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_head_scores_after_warm_steps_are_another_file_with_another_setting_of_training(
    make, workspace, key
):
    """Kernels and micro-batches too: they draw other dropout masks, and so other weights and scores."""
    from hifi_cli.runs.heads import scores_name

    words = ["scoring.warm_steps=2", "scoring.samples=4"]
    usual = scores_name(make("hifi-layerwise", *words), workspace)
    changed = make("hifi-layerwise", *words, f"{key}={OTHER_VALUES[key]}")
    assert scores_name(changed, workspace) != usual
    without = make("hifi-layerwise", "scoring.samples=4", f"{key}={OTHER_VALUES[key]}")
    plain = make("hifi-layerwise", "scoring.samples=4")
    assert scores_name(without, workspace) == scores_name(plain, workspace)
