"""The configuration hash, which decides whether a finished run is the same run: it may change only where the result may."""

from hifi_cli.config import run_config
from hifi_cli.config.run_config import HeadsConfig, RunConfig, TrainingConfig
from hifi_cli.config.sources import resolve


def resolved(task="rte", method="eh-ft-bitfit", backbone="roberta-large", protocol="ehft", **changes):
    return resolve(task=task, method=method, backbone=backbone, protocol=protocol, **changes)


class LaterTraining(TrainingConfig):
    nesterov: bool = False


class LaterHeads(HeadsConfig):
    groups: int | None = None


class LaterConfig(RunConfig):
    """A later version of the configuration, with one more key at the top, in a section, and in both stages."""

    curriculum: str = "none"
    nesterov: bool = False
    heads: LaterHeads = LaterHeads()
    stage1: LaterTraining | None = None


ADDED = {"curriculum": "none", "nesterov": False, "heads.groups": None}


def later(config, **changes):
    return LaterConfig.model_validate({**config.model_dump(), **changes})


def test_a_key_added_later_changes_no_hash_until_it_changes_the_run(monkeypatch):
    config = resolved()
    assert later(config).hash != config.hash  # nothing says yet what the new keys mean for stored runs
    monkeypatch.setattr(run_config, "KEYS_ADDED_SINCE_0_2", ADDED)
    assert later(config).hash == config.hash
    assert later(config).setting_hash == config.setting_hash
    stage1, heads = config.stage1.model_dump(), config.heads.model_dump()
    for changes in (
        {"curriculum": "length"},
        {"nesterov": True},
        {"stage1": {**stage1, "nesterov": True}},
        {"heads": {**heads, "groups": 2}},
    ):
        assert later(config, **changes).hash != config.hash, changes


def test_a_changed_default_changes_the_hash(monkeypatch):
    class Changed(RunConfig):
        eval_batch_size: int = 32

    class ChangedLater(LaterConfig):
        curriculum: str = "length"

    config = resolved()
    assert "eval_batch_size" not in config.model_fields_set
    assert Changed.model_validate(config.model_dump(exclude={"eval_batch_size"})).hash != config.hash
    monkeypatch.setattr(run_config, "KEYS_ADDED_SINCE_0_2", ADDED)
    assert ChangedLater.model_validate(config.model_dump()).hash != config.hash


def test_the_hash_is_of_what_decides_the_result():
    config = resolved(seed=1)
    assert resolved(seed=2).hash != config.hash and resolved(seed=2).setting_hash == config.setting_hash
    assert resolved(overrides=["variant=a"]).hash == config.hash
    moved = config.model_copy(update={"backbone": config.backbone.model_copy(update={"hub": None, "path": "/elsewhere"})})
    assert moved.hash == config.hash
    assert resolved(overrides=["heads.seed=3"]).hash == config.hash  # PageRank draws nothing
    drawn = [resolved(overrides=["heads.rank=random", f"heads.seed={seed}"]).hash for seed in (3, 4)]
    assert drawn[0] != drawn[1]
