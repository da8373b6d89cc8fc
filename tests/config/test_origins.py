"""Where each value comes from, against the papers: a place in the text, the authors' code, or a reason of ours."""

import json

import pytest

from hifi_cli.config import registry
from hifi_cli.config.base import fields_by_key, flatten, parse
from hifi_cli.config.run_config import DEFAULT, RunConfig
from hifi_cli.config.sources import COMMAND_LINE, resolve
from hifi_cli.config.specs import MethodSpec, ProtocolSpec, method_spec, with_bases

EHFT_CODE = "THUDM/Efficient-Head-Finetuning"
# protocol, task, method, backbone: source and place of values, read in the papers; None: no YAML says it
EXPECTED = {
    ("hifi", "rte", "hifi-layerwise", "bert-large"): {
        "learning_rate": ("text", "HiFi, table 5"), "batch_size": ("text", "HiFi, table 5"), "epochs": ("ours", ""),
        "scoring.samples": ("text", "HiFi, section 3.2"), "scoring.xi": ("text", "HiFi, section 3.2"),
        "scoring.max_length": ("text", "HiFi, section 5.1"), "heads.k": ("text", "HiFi, section 4.1"), "heads.damping": ("ours", ""),
        "weight_decay": ("code", "BERT's own fine-tuning"), "adam_betas": ("ours", ""), "log_every": None, "backbone.hub": ("ours", ""),
    },
    # a task that table 5 does not have, and a method that it does not train with HiFi's own epochs
    ("hifi", "squad", "bitfit", "bert-large"): {
        "epochs": ("text", "HiFi, section A.7"), "learning_rate": ("ours", ""), "schedule": ("code", "BitFit's own code"),
    },
    ("hifi", "squad", "full-ft", "bert-large"): {"epochs": ("text", "HiFi, section A.7"), "max_length": ("ours", "")},
    ("hifi", "mrpc", "bitfit", "bert-large"): {"epochs": ("code", "BitFit's own code"), "learning_rate": ("text", "HiFi, table 5")},
    ("hifi", "boolq", "hifi-midtop", "bert-large"): {"learning_rate": ("ours", ""), "batch_size": ("ours", "")},
    ("hifi", "rte", "lora", "bert-large"): {
        "settings.r": ("text", "LoRA's own paper"), "settings.alpha": ("text", "LoRA's own paper"),
        "settings.targets": ("text", "HiFi, section A.2"), "settings.dropout": None,
    },
    ("hifi", "rte", "hifi-wo-corr", "bert-large"): {"heads.rank": ("text", "HiFi, table 3"), "heads.k": ("text", "HiFi, section 4.1")},
    ("hifi-fewshot", "rte", "bitfit", "bert-large"): {
        "shots": ("text", "HiFi, section 4.1"), "epochs": ("ours", ""), "schedule": ("code", "BitFit's own code"),
        "max_length": ("ours", ""), "weight_decay": ("code", "BERT's own fine-tuning"),
    },
    ("ehft", "rte", "eh-ft-lora", "roberta-large"): {
        "learning_rate": ("text", "EH-FT, section 3.2"), "stage1.learning_rate": ("text", "EH-FT, section 3.2"),
        "stage1.settings.r": ("text", "EH-FT, section 3.2"), "stage1.settings.alpha": ("code", EHFT_CODE),
        "stage1.settings.dropout": None,
        "stage1.method": ("text", "EH-FT, section 3.2"), "stage1.max_grad_norm": ("ours", ""), "epochs": ("code", EHFT_CODE),
        "schedule": ("text", "EH-FT, section 3.2"), "stage1.schedule": ("text", "EH-FT, section 3.2"),
        "settings.stage1_fraction": ("text", "EH-FT, section 3.2"), "task_head.activation": ("code", EHFT_CODE),
    },
    ("ehft", "rte", "eh-ft-lora-r16", "roberta-large"): {"stage1.settings.r": ("text", "EH-FT, table 4")},
    ("ehft", "stsb", "full-ft", "bert-large"): {"primary_metric": ("text", "EH-FT, section 3.1"), "backbone.hub": None},
    ("ehft", "rte", "mixout", "roberta-large"): {"learning_rate": ("ours", ""), "settings.p": ("ours", "")},
    ("ehft", "rte", "hifi-layerwise", "roberta-large"): {"learning_rate": ("text", "HiFi, table 5")},
    ("ehft-released", "rte", "lora", "roberta-large"): {"learning_rate": ("text", "EH-FT, section 3.2"), "batch_size": ("text", "EH-FT, section 3.2")},
    # made smaller, by nobody's paper; what it does not set is as in the code
    ("laptop-ehft", "rte", "full-ft", "minilm"): {"epochs": None, "learning_rate": None},
    ("laptop", "rte", "hifi-layerwise", "minilm"): {"learning_rate": None, "batch_size": None, "heads.k": ("text", "HiFi, section 4.1")},
}  # fmt: skip


def place(config, key):
    origin = config.origin_of(key)
    return None if origin is None else (origin.source, origin.where)


@pytest.mark.parametrize("case", EXPECTED, ids="/".join)
def test_a_value_is_from_where_the_papers_have_it(case):
    protocol, task, method, backbone = case
    config = resolve(task=task, method=method, backbone=backbone, protocol=protocol)
    assert {key: place(config, key) for key in EXPECTED[case]} == EXPECTED[case]


def test_what_the_released_code_sets_is_of_the_code():
    config = resolve(task="rte", method="eh-ft-lora", protocol="ehft-released")
    of_code = ["weight_decay", "hold_steps", "max_grad_norm", "report", "task_head.one_logit"]
    of_code += ["task_head.activation", "stage1.settings.r", "stage1.settings.alpha"]
    for key in of_code:
        source, where = place(config, key)
        assert source == "code" and EHFT_CODE in where, key
    probing = resolve(task="rte", method="linear-probing", protocol="ehft-released")
    assert place(probing, "learning_rate")[0] == "code"


def test_what_the_user_sets_is_the_users(tmp_path):
    (tmp_path / "mine.yaml").write_text("warmup: 0.2\n")
    config = resolve(
        task="rte",
        method="lora",
        protocol="hifi",
        files=[tmp_path / "mine.yaml"],
        overrides=["epochs=2", "settings.r=4", "heads.damping=0.9"],
    )
    changed = ["epochs", "settings.r", "heads.damping", "warmup"]
    assert [config.origin_of(key) for key in changed] == [None] * len(changed)
    assert config.origin_of("settings.alpha").where == "LoRA's own paper"


def test_a_yaml_of_the_users_own_says_where_its_values_come_from(tmp_path):
    """Its name may be that of the method that it changes."""
    own = tmp_path / "lora.yaml"
    own.write_text(
        "base: lora\ndescription: x\nlabel: x\nsource: mine\nimplementation: lora\n"
        "config: {warmup: 0.3, settings: {r: 2}}\nstated: {my notes: [settings.r]}\n"
        "unstated: {warmup: {source: ours, reason: a guess}}\n"
    )
    config = resolve(task="rte", method=str(own), protocol="laptop", backbone="minilm")
    assert config.origin_of("settings.r").where == "my notes"
    assert config.origin_of("warmup").reason == "a guess"
    assert config.origin_of("settings.targets").where == "HiFi, section A.2"


def runs_of_table(name):
    """The configurations of a published table."""
    table = registry.load("tables", name)
    tasks = {column if isinstance(column, str) else column["task"] for column in table["columns"]}
    for row in table["rows"]:
        method = row if isinstance(row, str) else row.get("method")
        for task in sorted(tasks) if method else ():
            yield resolve(
                task=task, method=method, backbone=table["backbone"], protocol=table["protocol"]
            )


TABLES = ["hifi-2", "hifi-2-fewshot", "hifi-3", "hifi-6", "ehft-1", "ehft-2", "ehft-3", "ehft-4"]


@pytest.mark.parametrize("table", [*TABLES, "ehft-random", "modernbert", "superglue"])
def test_every_value_that_a_published_table_is_trained_with_has_an_origin(table):
    """A place in a text, the authors of a code, or the reason of our choice; defaults that no YAML sets are not asked."""
    without = set()
    for config in runs_of_table(table):
        specs = with_bases("protocols", config.protocol, ProtocolSpec).values()
        unnamed = {spec.source for spec in specs if spec.follows == "text"}
        for key in flatten(config.model_dump(mode="json")):
            # Another encoder than the protocol's own is the table's.
            if config.layer_of(key) in (DEFAULT, COMMAND_LINE) or key.startswith("backbone."):
                continue
            origin = config.origin_of(key)
            is_explained = origin and (origin.where or origin.reason)
            # A text is cited by the section or the table that has the value.
            if not is_explained or (origin.source == "text" and origin.where in unnamed):
                without.add(f"{key}: {config.layer_of(key)}")
    assert without == set()


MODELS = {"protocols": ProtocolSpec, "methods": MethodSpec}
YAMLS = [f"{kind}/{name}" for kind in MODELS for name in registry.names(kind)]


@pytest.mark.parametrize("yaml", YAMLS)
def test_only_keys_of_the_configuration_are_stated_or_unstated_and_each_once(yaml):
    kind, name = yaml.split("/")
    spec = parse(MODELS[kind], registry.load(kind, name), name)
    stated = [key for keys in spec.stated.values() for key in keys]
    said = [*stated, *spec.unstated]
    assert len(said) == len(set(said))
    sections = {"backbone", "tasks", "seeds"}
    for key in said:
        parts = key.split(".")
        if len(parts) > 2 and parts[0] in ("tasks", "methods", "backbones"):
            assert parts[1] in registry.names(parts[0]), key
            parts = parts[2:]
        is_setting = parts[0] == "settings" or parts[:2] == ["stage1", "settings"]
        is_known = ".".join(parts) in {*fields_by_key(RunConfig), *sections}
        assert is_setting or is_known, key


def test_every_value_of_table_5_is_named_as_such():
    """The methods of HiFi's table 5 have values for single tasks, and no other shipped method has."""
    of_table = {name for name in registry.names("methods") if method_spec(name).tasks}
    for name in of_table:
        assert method_spec(name).stated["HiFi, table 5"] == ["tasks"]
    assert len(of_table) == 11  # ten rows, of which Child-Tuning has two forms here


def test_a_dry_run_says_where_values_come_from_and_gives_the_reasons(hifi):
    words = "train --task rte --method hifi-layerwise --protocol hifi --dry-run epochs=2"
    lines = hifi(words).out.splitlines()
    sources = dict(line.strip().split("  # ") for line in lines if "  # " in line)
    sources = {value.strip(): source for value, source in sources.items()}
    assert (
        sources["learning_rate: 0.0002"] == "method hifi-layerwise (task rte); paper: HiFi, table 5"
    )
    assert sources["weight_decay: 0.01"] == "protocol hifi; code: BERT's own fine-tuning"
    assert sources["max_length: 256"] == "protocol hifi (task rte); ours"
    assert sources["damping: 0.85"] == "default; ours"
    assert sources["epochs: 2"] == "command line"
    reasons = [line for line in lines if line.startswith(("# paper ", "# code ", "# ours "))]
    assert any("# ours       heads.damping: 0.85, PageRank's" in line for line in reasons)
    # One reason of two keys is given once, and none of a key that the user sets.
    assert sum("adam_betas, adam_epsilon: " in line for line in reasons) == 1
    assert not any("epochs: " in line for line in reasons)
    (run,) = json.loads(hifi(f"{words} --format json").out)
    assert run["origins"]["learning_rate"] == {
        "source": "paper",
        "where": "HiFi, table 5",
        "reason": "",
    }
    assert run["origins"]["heads.damping"]["source"] == "ours"
    assert run["origins"]["heads.damping"]["reason"].startswith("0.85, PageRank's usual value")
    assert "epochs" not in run["origins"] and run["origins"].keys() <= run["sources"].keys()
