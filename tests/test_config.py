"""Layers, their order, and what a wrong key, name or value says."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hifi_cli import registry
from hifi_cli.config import RunConfig, parse_override, resolve
from hifi_cli.errors import HifiError, UsageError
from hifi_cli.files import safe_name


def rte(**changes):
    return resolve(**{"task": "rte", "method": "hifi-layerwise", "backbone": "bert-large", "protocol": "hifi", **changes})


def test_table_5_is_in_force_and_later_layers_win(tmp_path):
    assert (rte().batch_size, rte().learning_rate) == (16, 2e-4)
    assert rte(method="full-ft").learning_rate == 2e-5
    assert rte(task="sst2").batch_size == 32
    file = tmp_path / "mine.yaml"
    file.write_text("learning_rate: 3e-4\nheads: {k: 5}\n")
    assert rte(files=[file]).learning_rate == 3e-4  # PyYAML reads 3e-4 as text
    changed = rte(files=[file], overrides=["learning_rate=1e-3", "heads.damping=0.5"])
    assert (changed.learning_rate, changed.heads.k, changed.heads.damping) == (1e-3, 5, 0.5)
    assert rte(protocol="laptop").learning_rate == 5e-4  # a protocol's block for a method wins over the method's own


def test_hash_tells_settings_apart_and_setting_hash_forgets_the_seed():
    assert rte(seed=1).hash != rte(seed=2).hash
    assert rte(seed=1).setting_hash == rte(seed=2).setting_hash
    assert rte().hash != rte(overrides=["epochs=4"]).hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "rtee"}, "unknown task 'rtee'; did you mean 'rte'?"),
        ({"method": "hifi-layer"}, "did you mean 'hifi-layerwise'?"),
        ({"protocol": "hify"}, "did you mean 'hifi'?"),
        ({"backbone": "minilmm"}, "did you mean 'minilm'?"),
        ({"overrides": ["learning_rat=1"]}, "unknown key 'learning_rat'; did you mean 'learning_rate'?"),
        ({"overrides": ["heads.damp=1"]}, "unknown key 'heads.damp'; did you mean 'heads.damping'?"),
        ({"overrides": ["epochs"]}, "key=value is wanted"),
        ({"overrides": ["epochs=many"]}, "'epochs=many': epochs: "),
        ({"overrides": ["heads.damping=1.5"]}, "'heads.damping=1.5': heads.damping: "),
        ({"overrides": ["seed=3"]}, "--seed"),
        ({"overrides": ["heads=3"]}, "must be a mapping"),
        ({"overrides": ["learning_rate=.nan"]}, "learning_rate"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(UsageError) as error:
        rte(**change)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_is_named_with_its_key(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("batch_size: 0\n")
    with pytest.raises(UsageError, match=r"mine\.yaml: batch_size"):
        rte(files=[file])
    file.write_text("a: [1\nb: 2\n")
    with pytest.raises(UsageError, match=r"mine\.yaml, line 2: not valid YAML"):
        rte(files=[file])
    file.write_text("- 1\n")
    with pytest.raises(UsageError, match="a mapping of names"):
        rte(files=[file])


@pytest.mark.parametrize("kind", registry.KINDS)
def test_there_is_a_yaml_of_every_kind(kind):
    assert registry.names(kind)


@pytest.mark.parametrize("protocol", registry.names("protocols"))
@pytest.mark.parametrize("method", registry.names("methods"))
@pytest.mark.parametrize("task", registry.names("tasks"))
def test_every_yaml_resolves(task, method, protocol):
    for backbone in registry.names("backbones"):
        assert isinstance(rte(task=task, method=method, protocol=protocol, backbone=backbone), RunConfig)


@pytest.mark.parametrize("name", registry.names("tasks"))
def test_every_task_yaml_is_sound(name):
    from hifi_cli.tasks import metrics, spec

    task = spec.load(name)
    assert set(task.metrics) <= set(metrics.METRICS | metrics.ROW_METRICS)


def test_every_yaml_begins_with_its_command():
    for kind in registry.KINDS:
        for name in registry.names(kind):
            assert registry.find(kind, name).read_text().startswith("# hifi "), name


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_override_resolves_or_says_in_one_line_what_is_wrong(text):
    try:
        rte(overrides=[text])
    except HifiError as error:
        assert "\n" not in " ".join(str(error).split()) and str(error)


@given(st.sampled_from(sorted(RunConfig.model_fields)), st.one_of(st.integers(), st.floats(), st.text(max_size=9), st.none(), st.lists(st.integers(), max_size=3)))
@settings(max_examples=200, deadline=None)
def test_any_value_of_a_known_key_resolves_or_is_refused(key, value):
    with contextlib.suppress(HifiError):
        assert isinstance(rte(overrides=[f"{key}={value}"]), RunConfig)


@given(st.text(max_size=60))
def test_no_name_leaves_its_folder(name):
    safe = safe_name(name)
    assert safe and "/" not in safe and not safe.startswith(".") and "\0" not in safe


def test_an_override_reaches_into_a_section():
    assert parse_override("scoring.xi=0.8").values == {"scoring": {"xi": 0.8}}
