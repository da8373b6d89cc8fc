"""Configuration sources, their order, and what a wrong key, name or value says."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.sources import architecture_of, backbone_config, resolve
from hifi_cli.errors import HifiError, UsageError


def rte(**changes):
    return resolve(
        **{
            "task": "rte",
            "method": "hifi-layerwise",
            "backbone": "bert-large",
            "protocol": "hifi",
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "rtee"}, "unknown task 'rtee'; did you mean 'rte'?"),
        ({"method": "hifi-layer"}, "did you mean 'hifi-layerwise'?"),
        ({"protocol": "hify"}, "did you mean 'hifi'?"),
        ({"backbone": "minilmm"}, "did you mean 'minilm'?"),
        (
            {"overrides": ["learning_rat=1"]},
            "unknown key 'learning_rat'; did you mean 'learning_rate'?",
        ),
        (
            {"overrides": ["heads.damp=1"]},
            "unknown key 'heads.damp'; did you mean 'heads.damping'?",
        ),
        ({"overrides": ["epochs"]}, "key=value is expected"),
        ({"overrides": ["epochs=many"]}, "command line: epochs must be a whole number, not 'many'"),
        ({"overrides": ["heads.damping=1.5"]}, "command line: heads.damping must be less than 1"),
        (
            {"overrides": ["heads.given=[]"]},
            "command line: heads.given must have at least 1 item, not",
        ),
        ({"overrides": ["seed=3"]}, "--seed"),
        ({"overrides": ["heads=3"]}, "heads must be a mapping of names to values"),
        ({"overrides": ["learning_rate=.nan"]}, "learning_rate"),
        ({"overrides": ["task_head.one_logit=true"]}, "one_logit requires kind: mlp"),
        (
            {"method": "eh-ft", "overrides": ["stage1.method=bitfitt"]},
            "unknown method 'bitfitt'; did you mean 'bitfit'?",
        ),
        ({"method": "eh-ft", "overrides": ["stage1.method=lp-ft"]}, "has two stages itself"),
        (
            {"method": "eh-ft", "overrides": ["stage1.learning_rat=1"]},
            "did you mean 'stage1.learning_rate'?",
        ),
        (
            {"method": "full-ft", "overrides": ["stage1.learning_rate=1"]},
            "stage1.method is missing",
        ),
        ({"overrides": ["dropout=1"]}, "dropout must be less than 1"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(UsageError) as error:
        rte(**change)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_number_with_an_exponent_needs_no_point(tmp_path):
    (tmp_path / "mine.yaml").write_text("settings: {p: 1e-1}\nlearning_rate: 2E-5\n")
    for config in (
        rte(method="mixout", files=[tmp_path / "mine.yaml"]),
        rte(method="mixout", overrides=["settings.p=1e-1"]),
    ):
        assert config.settings["p"] == 0.1
    assert registry.parse_yaml(b"id: 1e5\nlow: -1.e+2", tmp_path) == {"id": "1e5", "low": -100.0}


def test_a_file_is_named_with_its_key(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("batch_size: 0\n")
    with pytest.raises(UsageError, match=r"mine\.yaml: batch_size"):
        rte(files=[file])
    file.write_text("a: [1\nb: 2\n")
    with pytest.raises(UsageError, match=r"mine\.yaml: not valid YAML: .* line 2"):
        rte(files=[file])
    for content, message in {
        "- 1": "a mapping of names",
        "task: rte": "give it as --task",
    }.items():
        file.write_text(content)
        with pytest.raises(UsageError, match=message):
            rte(files=[file])


@pytest.mark.parametrize("protocol", registry.names("protocols"))
def test_every_yaml_resolves(protocol):
    for method in registry.names("methods"):
        assert rte(method=method, protocol=protocol).method == method
    for task in registry.names("tasks"):
        assert rte(task=task, protocol=protocol).task == task
    for backbone in registry.names("backbones"):
        assert rte(protocol=protocol, backbone=backbone).backbone.name == backbone
    assert rte(backbone="bert-base-uncased").backbone.hub == "google-bert/bert-base-uncased"


def test_a_protocol_that_is_based_on_itself_is_refused(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(f"description: x\nbase: {own}\n")
    with pytest.raises(UsageError, match="is based on itself"):
        rte(protocol=str(own))


def test_what_a_run_does_to_its_lists_no_other_run_sees():
    """The YAMLs of a command's runs are validated once, and have lists: peft is given them."""
    configs = [resolve(task="rte", method="dora", backbone="bert-base") for _ in range(2)]
    before = list(configs[1].settings["targets"])
    configs[0].settings["targets"].append("key")
    assert configs[1].settings["targets"] == before
    assert resolve(task="rte", method="dora", backbone="bert-base").settings["targets"] == before


def test_an_edited_yaml_is_read_anew(tmp_path):
    file = tmp_path / "mine.yaml"
    for rate in (0.25, 0.5):
        content = f"description: d\nlabel: d\nsource: d\nbase: bitfit\nimplementation: bitfit\nconfig: {{learning_rate: {rate}}}\n"
        file.write_text(content)
        assert resolve(task="rte", method=str(file), backbone="bert-base").learning_rate == rate


def test_stage_1_trains_as_its_method_does_alone():
    both, alone = rte(method="eh-ft-lora", task="mrpc"), rte(method="lora", task="mrpc")
    assert both.stage1.learning_rate == alone.learning_rate != both.learning_rate
    assert both.stage1.settings == alone.settings
    changed = rte(
        method="eh-ft-lora", overrides=["stage1.settings.r=32", "stage1.learning_rate=1e-3"]
    )
    assert changed.stage1.settings == {**alone.settings, "r": 32}
    assert changed.stage1.learning_rate == 1e-3
    assert changed.config_hash != both.config_hash
    assert rte(method="eh-ft", overrides=["stage1.method=hifi-midtop"]).heads.strategy == "midtop"


@given(st.text(st.characters(exclude_characters="\n"), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_override_resolves_or_says_in_one_line_what_is_wrong(text):
    try:
        rte(overrides=[text])
    except HifiError as error:
        assert str(error) and "\n" not in str(error)


def test_every_key_has_the_value_and_the_name_of_the_last_source_that_sets_it(tmp_path):
    # In the order in which they are applied, each source sets its own key and those of all later ones, to its own number.
    keys = {
        "stride": "protocol basis",
        "log_every": "protocol own",
        "eval_batch_size": "backbone encoder",
        "max_length": "task job",
        "hold_steps": "method parent",
        "epochs": "method parent (task job)",
        "batch_size": "method child",
        "gradient_accumulation_steps": "method child (task job)",
        "task_head.width": "protocol basis (all methods)",
        "scoring.samples": "protocol own (backbone encoder)",
        "scoring.max_length": "protocol own (task job)",
        "scoring.warm_steps": "protocol own (method parent)",
        "heads.k": "protocol own (method child)",
        "settings.a": "protocol basis (case 2)",
        "settings.b": "-c more.yaml",
        "limit": "command line",
    }
    numbers = {key: index for index, key in enumerate(keys, start=101)}

    def keys_from(first):
        nested = {}
        for key in [key for key in keys if numbers[key] >= numbers[first]]:
            section, _, name = key.rpartition(".")
            (nested.setdefault(section, {}) if section else nested)[name] = numbers[first]
        return nested

    def write(name, content):
        (tmp_path / name).write_text(yaml.safe_dump(content))
        return str(tmp_path / name)

    basis = {
        "description": "x",
        "config": keys_from("stride"),
        "methods": {"*": keys_from("task_head.width")},
        "cases": [
            {"tasks": ["rte"], "config": keys_from("stride")},
            {"methods": ["parent"], "config": keys_from("settings.a")},
        ],
    }
    own = {
        "description": "x",
        "base": write("basis.yaml", basis),
        "config": keys_from("log_every"),
        "backbones": {"encoder": keys_from("scoring.samples"), "other": keys_from("stride")},
        "tasks": {"job": keys_from("scoring.max_length")},
        "methods": {"parent": keys_from("scoring.warm_steps"), "child": keys_from("heads.k")},
    }
    method = {"description": "x", "label": "x", "source": "x", "implementation": "x"}
    parent = {
        **method,
        "config": keys_from("hold_steps"),
        "tasks": {"job": keys_from("epochs"), "rte": keys_from("stride")},
    }
    child = {
        "config": keys_from("batch_size"),
        "tasks": {"job": keys_from("gradient_accumulation_steps")},
    }
    config = resolve(
        protocol=write("own.yaml", own),
        backbone=write("encoder.yaml", {"hub": "a/b", "config": keys_from("eval_batch_size")}),
        task=write("job.yaml", {"config": keys_from("max_length")}),
        method=write("child.yaml", {**method, **child, "base": write("parent.yaml", parent)}),
        files=[Path(write("more.yaml", keys_from("settings.b")))],
        seed=7,
        overrides=[f"limit={numbers['limit']}"],
    )
    values = flatten(config.model_dump())
    assert {key: values[key] for key in keys} == numbers
    set_by_name = {
        **dict.fromkeys(["task", "method", "protocol", "seed"], "command line"),
        **dict.fromkeys(["backbone.name", "backbone.hub"], "backbone encoder"),
    }
    expected = {**dict.fromkeys(values, "default"), **set_by_name, **keys}
    assert {key: config.layer_of(key) for key in values} == expected


def test_a_first_stage_names_the_sources_of_its_own_method():
    def resolved(override, method="eh-ft-bitfit"):
        names = {
            "task": "rte",
            "method": method,
            "protocol": "ehft-released",
            "backbone": "roberta-large",
        }
        return resolve(**names, overrides=[override])

    config = resolved("stage1.weight_decay=0")
    expected = {
        "learning_rate": "protocol ehft (all methods)",
        "settings.carry": "protocol ehft-released (method eh-ft-bitfit)",
        "stage1.method": "method eh-ft-bitfit",
        "stage1.warmup": "protocol ehft",
        "stage1.weight_decay": "command line",
        "stage1.settings.biases": "protocol ehft-released (method bitfit)",
        "stage1.schedule": "default",
    }
    assert {key: config.layer_of(key) for key in expected} == expected
    assert (
        resolved("stage1.method=hifi-midtop", "eh-ft").layer_of("heads.strategy")
        == "method hifi-midtop"
    )
    replaced = resolved("stage1=null")
    assert replaced.stage1 is None and replaced.layer_of("stage1") == "command line"


def test_a_section_that_was_removed_begins_anew_and_an_empty_one_changes_nothing():
    words = ["stage1.weight_decay=0.5", "stage1=null", "stage1.method=bitfit"]
    anew = rte(method="eh-ft-bitfit", overrides=words).stage1
    assert anew and anew.weight_decay == rte(method="bitfit").weight_decay
    assert rte(method="lora", overrides=["settings={}"]).settings == rte(method="lora").settings


def test_a_file_beside_a_repeated_run_sets_no_name(tmp_path):
    run = tmp_path / "config.yaml"
    run.write_text(yaml.safe_dump(rte().model_dump(mode="json")))
    other = tmp_path / "other.yaml"
    other.write_text("method: lora\n")
    assert resolve(files=[run]).method == "hifi-layerwise"
    with pytest.raises(UsageError, match="'method' is no setting: give it as --method"):
        resolve(files=[run, other])


def test_the_sizes_of_a_hubs_encoder_are_those_of_its_usual_revision():
    backbone = backbone_config("bert-base")
    sizes = architecture_of(backbone)
    assert sizes and sizes["num_hidden_layers"] == 12
    assert architecture_of(backbone.model_copy(update={"revision": "another"})) is None


def test_dry_run_prints_each_value_with_its_source(hifi, tmp_path):
    words = ("--task", "rte", "--method", "hifi-layerwise", "--backbone", "bert-large", "--dry-run")
    (tmp_path / "more.yaml").write_text("warmup: 0.2\n")
    answer = hifi("train", *words, "limit=9", "-c", "more.yaml", "variant='a: b # c'")
    lines = dict(line.split("  # ") for line in answer.out.splitlines() if "  # " in line)
    sources = {text.strip(): source for text, source in lines.items()}
    of_table = "method hifi-layerwise (task rte); paper: HiFi, table 5"
    assert sources["learning_rate: 0.0002"] == of_table
    assert sources["warmup: 0.2"] == "-c more.yaml"
    assert sources["limit: 9"] == sources["task: rte"] == "command line"
    assert (
        sources["eval_batch_size: 64"]
        == sources["protocol: hifi"]
        == sources["seed: 1"]
        == "default"
    )
    content = yaml.safe_load(answer.out)
    assert (content["variant"], content["scoring"]["xi"], content["adam_betas"]) == (
        "a: b # c",
        0.9,
        [0.9, 0.999],
    )
    assert len({line.index("  # ") for line in answer.out.splitlines() if "  # " in line}) == 1
    demo = hifi("train --protocol demo --dry-run").out
    assert re.search(r"^task: demo-\w+ +# protocol demo$", demo, re.MULTILINE)
    assert re.search(r"^  k: 2 +# protocol demo \(all methods\)$", demo, re.MULTILINE)


def test_a_setting_that_a_method_lacks_is_not_pointed_to_itself(hifi):
    answer = hifi("train --protocol demo --method bitfit --dry-run settings.r=3")
    said = "method bitfit, settings: unknown key 'r'; known are biases\n"
    assert answer.code == 2 and answer.err.endswith(said)


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("num_train_epochs=3", "epochs"),
        ("lr=1e-4", "learning_rate"),
        ("per_device_train_batch_size=8", "batch_size"),
        ("bf16=true", "precision=bf16"),
    ],
)
def test_the_trainers_names_are_pointed_to_ours(hifi, word, ours):
    answer = hifi("train --protocol demo --dry-run", word)
    key = word.partition("=")[0]
    assert answer.code == 2 and answer.err.endswith(f"unknown key '{key}': here it is {ours}\n")


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("hifi-layerwise", "heads: {rank: ./own.py}"),
        ("eh-ft-bitfit", "stage1: {method: ./own.yaml}"),
    ],
)
def test_a_file_of_settings_names_no_code_that_would_be_executed(hifi, tmp_path, method, setting):
    """The file may be that of a run of others."""
    (tmp_path / "own.yaml").write_text("description: of others\nimplementation: own.py\n")
    (tmp_path / "own.py").write_text("open('executed', 'w')\n")
    (tmp_path / "others.yaml").write_text(f"{setting}\n")
    words = ["train", "--task", "demo-entailment", "--method", method, "--protocol", "demo"]
    answer = hifi(*words, "-c", "others.yaml")
    assert answer.code == 2
    assert "is a path, and only a name may stand here" in answer.err
    assert not (tmp_path / "executed").exists()
