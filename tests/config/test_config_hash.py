"""The configuration hash, which decides whether a finished run is the same run: it may change only where the result may."""

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.sources import resolve
from hifi_cli.config.specs import method_spec
from hifi_cli.methods.find import implementation_of


def resolved(
    task="rte", method="eh-ft-bitfit", backbone="roberta-large", protocol="ehft", **changes
):
    return resolve(task=task, method=method, backbone=backbone, protocol=protocol, **changes)


def test_a_changed_default_changes_the_hash():
    class Changed(RunConfig):
        eval_batch_size: int = 32

    config = resolved()
    assert "eval_batch_size" not in config.model_fields_set
    assert (
        Changed.model_validate(config.model_dump(exclude={"eval_batch_size"})).config_hash
        != config.config_hash
    )


def test_the_hash_is_of_what_decides_the_result():
    config = resolved(seed=1)
    assert (
        resolved(seed=2).config_hash != config.config_hash
        and resolved(seed=2).setting_hash == config.setting_hash
    )
    assert resolved(overrides=["variant=a"]).config_hash == config.config_hash
    moved = config.model_copy(
        update={"backbone": config.backbone.model_copy(update={"hub": None, "path": "/elsewhere"})}
    )
    assert moved.config_hash == config.config_hash
    assert (
        resolved(overrides=["heads.seed=3"]).config_hash == config.config_hash
    )  # PageRank draws nothing
    drawn = [
        resolved(overrides=["heads.rank=random", f"heads.seed={seed}"]).config_hash
        for seed in (3, 4)
    ]
    assert drawn[0] != drawn[1]


def test_the_defaults_of_method_settings_stay():
    """A configuration holds only the settings that a YAML sets, so a changed default would change results and no hash.

    Set the new value in the method's YAML instead.
    """
    defaults = {
        method_spec(name).implementation: implementation_of(name).Settings().model_dump()
        for name in registry.names("methods")
    }
    assert {name: settings for name, settings in defaults.items() if settings} == {
        "adalora": {
            "initial_r": 12,
            "target_r": 8,
            "alpha": 32,
            "dropout": 0.0,
            "targets": ["query", "key", "value", "output", "ffn", "ffn_output"],
            "warmup_fraction": 0.1,
            "final_fraction": 0.5,
            "interval": 1,
            "orthogonality": 0.1,
        },
        "adapter": {"bottleneck": 64},
        "bitfit": {"biases": "all"},
        "child_tuning_d": {"p": 0.3, "mask": True, "fisher_max_grad_norm": 1.0},
        "child_tuning_f": {"p": 0.3},
        "compacter": {"n": 4, "reduction": 32},
        "diff_pruning": {
            "kept_fraction": 0.005,
            "search_fraction": 0.6,
            "gate_start": 5.0,
            "gate_learning_rate": 0.1,
            "penalty": 1.25e-07,
            "l0": "product",
        },
        "hifi": {"biases": True},
        "hifi_peft": {"type": "lora", "options": {}, "targets": ["query", "value"]},
        "lora": {"r": 8, "alpha": 16, "dropout": 0.0, "targets": ["query", "value"]},
        "peft": {"type": "lora", "options": {}, "targets": ["query", "value"]},
        "mixout": {"p": 0.7, "place": "after-dropout", "backward": "exact"},
        "prefix_tuning": {"length": 16, "mlp": 0, "init_std": 0.01},
        "random_parameters": {"count": None},
        "rocoft": {
            "axis": "row",
            "r": 3,
            "targets": ["query", "key", "value", "output", "ffn", "ffn_output"],
            "biases": True,
        },
        "top_k": {"k": 3},
        "two_stage": {"stage1_fraction": 0.1, "reserve": False, "carry": "all"},
    }
