"""Every configuration key says at its field what it decides: caches, hashes and comparisons ask there."""

from typing import Annotated

import pytest
from pydantic import BaseModel

from hifi_cli.config.base import (
    KnownAs,
    fields_by_key,
    flatten,
    names_elsewhere,
    nested,
    section_of,
)
from hifi_cli.config.decides import Decides, decides, keys_that_decide, mark_of
from hifi_cli.config.run_config import RunConfig, config_hash_of
from hifi_cli.reports.comparable import CONDITIONS

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


def unmarked(model, prefix=""):
    """The fields of a model, and of its sections, that do not say what they decide."""
    found = []
    for name, field in model.model_fields.items():
        if mark_of(model, name) is None:
            found.append(f"{prefix}{name}")
        section = section_of(field)
        if section is not None:
            found += unmarked(section, f"{prefix}{name}.")
    return found


def test_every_field_says_what_it_decides_in_sections_too():
    assert unmarked(RunConfig) == []


def test_a_field_without_a_mark_is_found_in_a_section_too():
    class Section(BaseModel):
        marked: Annotated[int, Decides("run")] = 1
        forgotten: int = 1

    class Unmarked(BaseModel):
        section: Annotated[Section | None, Decides("run")] = None
        other: int = 1

    assert unmarked(Unmarked) == ["section.forgotten", "other"]


def test_a_key_of_a_section_has_the_effects_that_both_have():
    assert decides(RunConfig, "learning_rate", "warm-up")
    assert decides(RunConfig, "stage1.learning_rate", "protocol")
    assert not decides(RunConfig, "stage1.learning_rate", "warm-up")
    assert decides(RunConfig, "stage1", "protocol")
    assert decides(RunConfig, "settings.r", "protocol")
    assert not decides(RunConfig, "no_such_key", "run")
    assert not decides(RunConfig, "heads.no_such_key", "run")


def test_a_run_is_its_configuration_but_for_its_place_and_device(make):
    """By the hash, for each key in turn."""
    config = make("full-ft")
    files = {"hub", "revision", "path", "package", "directory", "extra"}
    left_out = {"variant", "device", "record_steps", *(f"backbone.{key}" for key in files)}
    assert {*fields_by_key(RunConfig)} - {*keys_that_decide(RunConfig, "run")} == left_out
    other_place = config.model_copy(update={"variant": "other", "device": "cuda"})
    assert other_place.config_hash == config.config_hash
    for key in ("log_every", "eval_batch_size", "stride"):
        assert config.model_copy(update={key: 77}).config_hash != config.config_hash


def test_every_key_of_a_run_is_hashed_at_its_default_too(make):
    """A stored configuration without one of them is that of another program, whose default is not known."""
    words = ["heads.rank=random", "stage1.settings.biases=all"]
    content = flatten(make("eh-ft-bitfit", *words).model_dump(mode="json"))
    usual = config_hash_of(nested(content))
    assert "stage1.warmup" in content
    for key in content:
        without = {name: value for name, value in content.items() if name != key}
        if key == "heads.rank":
            continue
        is_hashed = config_hash_of(nested(without)) != usual
        assert is_hashed == decides(RunConfig, key, "run"), key


def test_the_keys_by_which_runs_are_compared_are_columns_of_runs():
    columns = {*CONDITIONS}
    keys = ("max_epochs", "report", "selection", "precision", "limit", "metric")
    digests = ("weights", "task_digest", "data", "common_draws", "split")
    assert columns == {*keys, *digests}


def test_no_two_keys_are_known_elsewhere_by_one_name():
    ours = names_elsewhere(RunConfig)
    assert ours["lr"] == "learning_rate"
    assert not {*ours} & {*fields_by_key(RunConfig)}
    marks = [
        name
        for field in RunConfig.model_fields.values()
        for mark in field.metadata
        if isinstance(mark, KnownAs)
        for name in mark.names
    ]
    assert len(marks) == len({*marks})
    assert {*marks} <= {*ours}


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_head_scores_after_warm_steps_are_another_file_with_another_setting_of_training(
    make, workspace, key
):
    """Kernels and micro-batches too: they draw other dropout masks, and so other weights and scores."""
    from hifi_cli.runs.heads import HeadSelector

    words = ["scoring.warm_steps=2", "scoring.samples=4"]
    usual = HeadSelector.of(make("hifi-layerwise", *words), workspace).scores_name()
    changed = make("hifi-layerwise", *words, f"{key}={OTHER_VALUES[key]}")
    assert HeadSelector.of(changed, workspace).scores_name() != usual
    without = make("hifi-layerwise", "scoring.samples=4", f"{key}={OTHER_VALUES[key]}")
    plain = make("hifi-layerwise", "scoring.samples=4")
    assert (
        HeadSelector.of(without, workspace).scores_name()
        == HeadSelector.of(plain, workspace).scores_name()
    )
