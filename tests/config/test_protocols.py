"""The protocols against values written out by hand from the papers and the authors' code, and where unstated ones come from."""

import json

import pytest

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig, TaskHeadConfig, TrainingConfig
from hifi_cli.config.sources import resolve
from hifi_cli.config.specs import ProtocolSpec, with_bases
from hifi_cli.errors import UsageError
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.tasks import task_spec

QKVO = ["query", "key", "value", "output"]

# protocol, task, method, backbone: what the run must be; `a.b` reaches into a section
EXPECTED = {
    # EH-FT, the text: section 4.1
    ("ehft", "rte", "full-ft", "roberta-large"): {
        "epochs": 60, "batch_size": 32, "learning_rate": 1e-5, "adam_betas": (0.9, 0.98), "adam_epsilon": 1e-6, "weight_decay": 0.1,
        "warmup": 0.1, "schedule": "linear", "report": "best", "task_head.kind": "mlp", "task_head.width": 2048, "task_head.activation": "relu",
        "primary_metric": None, "max_length": 512, "truncation": "only_first",
    },
    ("ehft", "wic", "full-ft", "roberta-large"): {"epochs": 40, "learning_rate": 3e-5},
    ("ehft", "rte", "full-ft", "bert-large"): {"learning_rate": 3e-5},
    ("ehft", "rte", "linear-probing", "roberta-large"): {"learning_rate": 5e-4},
    ("ehft", "rte", "bitfit", "roberta-large"): {"learning_rate": 5e-4, "settings": {}},
    ("ehft", "rte", "lora", "roberta-large"): {"learning_rate": 5e-4, "settings": {"r": 32, "alpha": 16, "targets": QKVO}},
    ("ehft", "rte", "prefix-tuning", "roberta-large"): {"learning_rate": 5e-3, "settings": {"length": 16}, "max_length": 512 - 16},
    ("ehft", "boolq", "full-ft", "roberta-large"): {"max_length": 512, "truncation": "only_first"},
    ("ehft", "copa", "full-ft", "roberta-large"): {"max_length": 256},
    ("ehft", "copa", "eh-ft-prefix", "roberta-large"): {"max_length": 256 - 16},
    ("ehft", "rte", "child-tuning-d", "roberta-large"): {"settings": {"p": 0.3}},
    ("ehft", "stsb", "full-ft", "roberta-large"): {"primary_metric": "pearson"},
    ("ehft", "stsb", "full-ft", "bert-large"): {"primary_metric": "spearman"},
    ("ehft", "rte", "eh-ft-lora-r512", "roberta-large"): {"stage1.settings": {"r": 512, "alpha": 16, "targets": QKVO}},
    # ModernBERT, the text's table 6: weight decay per step divided by the learning rate; RTE starts from MNLI
    ("modernbert", "mnli", "full-ft", "modernbert-base"): {
        "epochs": 1, "batch_size": 64, "learning_rate": 5e-5, "adam_betas": (0.9, 0.98), "adam_epsilon": 1e-6, "weight_decay": 5e-6 / 5e-5,
        "warmup": 0.1, "schedule": "linear", "report": "last", "max_grad_norm": None, "max_length": 256, "start_from": None,
    },
    ("modernbert", "rte", "full-ft", "modernbert-large"): {
        "epochs": 3, "batch_size": 64, "learning_rate": 5e-5, "weight_decay": 0.16,
        "start_from": "runs/modernbert/modernbert-large/mnli/full-ft/seed1",
    },
    ("modernbert", "stsb", "full-ft", "modernbert-base"): {"epochs": 10, "learning_rate": 8e-5, "weight_decay": 0.0625},
    ("modernbert", "qqp", "full-ft", "modernbert-large"): {"epochs": 2, "learning_rate": 5e-5, "weight_decay": 0.16},
    # DeBERTa-v3, the code
    ("deberta-v3", "rte", "full-ft", "deberta-v3-large"): {
        "epochs": 6, "batch_size": 32, "learning_rate": 1e-5, "weight_decay": 0.01, "adam_epsilon": 1e-6, "max_length": 320, "start_from": None,
    },
    # EH-FT, the code
    ("ehft-released", "rte", "full-ft", "roberta-large"): {
        "epochs": 60, "batch_size": 32, "learning_rate": 1e-5, "adam_betas": (0.9, 0.98), "adam_epsilon": 1e-6, "weight_decay": 0.01,
        "warmup": 0.1, "hold_steps": 100, "hold_factor": 0.05, "final_factor": 0.1, "max_grad_norm": 0.1, "report": "max",
        "task_head.activation": "relu", "task_head.one_logit": True, "task_head.init_std": 0.005, "max_length": 512, "truncation": "only_first",
    },
    ("ehft-released", "boolq", "full-ft", "roberta-large"): {"max_length": 512, "truncation": "only_first", "epochs": 40},
    ("ehft-released", "qnli", "full-ft", "roberta-large"): {"max_length": 512, "truncation": "only_first", "swap_texts": True},
    ("ehft-released", "copa", "full-ft", "roberta-large"): {"max_length": 256, "epochs": 400},
    ("ehft-released", "stsb", "eh-ft-bitfit", "roberta-large"): {"primary_metric": "pearson", "epochs": 20},
    ("ehft-released", "stsb", "eh-ft-bitfit", "bert-large"): {"primary_metric": "spearman", "learning_rate": 3e-5},
    ("ehft-released", "rte", "prefix-tuning", "roberta-large"): {"max_length": 512 - 17, "settings": {"length": 17}, "learning_rate": 5e-3},
    ("ehft-released", "boolq", "prefix-tuning", "roberta-large"): {"max_length": 512 - 17},
    ("ehft-released", "copa", "prefix-tuning", "roberta-large"): {"max_length": 256 - 17},
    ("ehft-released", "rte", "eh-ft-prefix", "roberta-large"): {"max_length": 512 - 17, "stage1.settings": {"length": 17}},
    ("ehft-released", "copa", "eh-ft-prefix-reserve", "roberta-large"): {"max_length": 256 - 17, "settings": {"reserve": True}},
    ("ehft-released", "rte", "mixout", "roberta-large"): {"settings": {"p": 0.7, "place": "all", "backward": "released"}},
    ("ehft-released", "rte", "child-tuning-d", "roberta-large"): {
        "settings": {"p": 0.1, "mask": False}, "adam_betas": (0.9, 0.999), "weight_decay": 0.0, "learning_rate": 1e-5,
    },
    ("ehft-released", "rte", "linear-probing", "roberta-large"): {"learning_rate": 1e-3},
    ("ehft-released", "rte", "bitfit", "roberta-large"): {"settings": {"biases": "layers"}},
    ("ehft-released", "rte", "lora", "roberta-large"): {"settings": {"r": 8, "alpha": 16, "targets": QKVO}},
    ("ehft-released", "rte", "eh-ft-bitfit", "roberta-large"): {
        "settings": {"carry": "weights"}, "stage1.settings": {"biases": "layers"}, "stage1.learning_rate": 5e-4, "learning_rate": 1e-5,
    },
    ("ehft-released", "rte", "eh-ft-lora-r8", "roberta-large"): {"stage1.settings": {"r": 8, "alpha": 16, "targets": QKVO}},
    ("ehft-released", "rte", "eh-ft-lora-r32", "roberta-large"): {"stage1.settings": {"r": 32, "alpha": 16, "targets": QKVO}},
    ("ehft-released", "rte", "eh-ft-lora-r1024", "roberta-large"): {"stage1.settings": {"r": 1024, "alpha": 16, "targets": QKVO}},
    # HiFi: table 5, section A.7, and each method's own paper or code
    ("hifi", "rte", "hifi-layerwise", "bert-large"): {"epochs": 5, "batch_size": 16, "learning_rate": 2e-4, "max_length": 256, "heads.k": 3},
    ("hifi", "stsb", "full-ft", "bert-large"): {"primary_metric": None},
    ("hifi", "mrpc", "bitfit", "bert-large"): {"epochs": 16, "schedule": "constant", "warmup": 0.0, "max_grad_norm": 1.0, "learning_rate": 2e-3},
    ("hifi", "mnli", "bitfit", "bert-large"): {"epochs": 16},
    ("hifi", "squad", "bitfit", "bert-large"): {"epochs": 3, "schedule": "constant"},
    ("hifi", "rte", "compacter", "bert-large"): {"epochs": 20, "schedule": "linear", "learning_rate": 1e-3, "settings": {"n": 4, "reduction": 32}},
    ("hifi", "swag", "compacter", "bert-large"): {"epochs": 3},
    ("hifi", "squad", "full-ft", "bert-large"): {"epochs": 3, "learning_rate": 2e-5, "batch_size": 32, "max_length": 384},
    ("hifi", "rte", "prefix-tuning", "bert-large"): {"epochs": 5, "settings": {"length": 30, "mlp": 512}, "learning_rate": 3e-4},
    ("hifi", "rte", "lora", "bert-large"): {"settings": {"r": 8, "alpha": 16, "targets": ["query", "key"]}, "learning_rate": 3e-4},
    ("hifi", "rte", "child-tuning-d", "bert-large"): {"settings": {"p": 0.3}, "batch_size": 16, "adam_betas": (0.9, 0.999)},
    ("hifi-fewshot", "rte", "bitfit", "bert-large"): {"epochs": 50, "shots": 16, "schedule": "constant"},
    ("hifi-fewshot", "mnli", "compacter", "bert-large"): {"epochs": 50, "shots": 16},
    ("hifi-fewshot", "mnli", "full-ft", "bert-large"): {"epochs": 50, "shots": 16},
    # SuperGLUE: jiant's configuration and script of the baselines, with the defaults of its optimizer
    ("superglue", "cb", "full-ft", "bert-large-cased"): {
        "epochs": 10, "batch_size": 4, "learning_rate": 1e-5, "max_length": 256, "schedule": "linear", "warmup": 0.1, "weight_decay": 0.01,
        "adam_betas": (0.9, 0.999), "adam_epsilon": 1e-6, "max_grad_norm": 5.0, "report": "best", "precision": "fp32",
    },
    ("superglue", "record", "full-ft", "bert-large-cased"): {"batch_size": 8, "max_length": 256, "truncation": "only_first"},
    ("superglue", "multirc", "full-ft", "bert-large-cased"): {"batch_size": 4, "max_length": 256, "truncation": "only_first"},
    # ours
    ("hifi", "cb", "full-ft", "bert-large"): {"max_length": 288},
    ("hifi", "boolq", "full-ft", "bert-large"): {"max_length": 512},
    ("hifi", "mrpc", "full-ft", "bert-large"): {"max_length": 128},
    ("hifi-fewshot", "rte", "full-ft", "bert-large"): {"max_length": 256},
    ("laptop", "cb", "full-ft", "minilm"): {"max_length": 288, "task_head.kind": "pooler"},
    ("laptop-ehft", "cb", "eh-ft-bitfit", "minilm"): {
        "max_length": 512, "task_head.kind": "mlp", "task_head.activation": "relu", "task_head.width": 2048, "task_head.one_logit": True,
        "epochs": 15, "batch_size": 8, "report": "best", "hold_steps": 0, "stage1.hold_steps": 0, "stage1.settings": {"biases": "layers"},
        "settings": {"carry": "weights"}, "stage1.learning_rate": 3e-3, "learning_rate": 1e-4, "max_grad_norm": 0.1, "final_factor": 0.1,
    },
    ("laptop-ehft", "stsb", "full-ft", "minilm"): {"primary_metric": "pearson", "epochs": 5},
    ("laptop", "rte", "prefix-tuning", "minilm"): {"settings": {"length": 16}, "learning_rate": 3e-2, "primary_metric": None},
}  # fmt: skip


def value_at(config, key):
    value = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("case", EXPECTED, ids="/".join)
def test_a_run_is_what_the_paper_or_the_code_says(case):
    protocol, task, method, backbone = case
    config = resolve(task=task, method=method, backbone=backbone, protocol=protocol)
    assert {key: value_at(config, key) for key in EXPECTED[case]} == EXPECTED[case]


OWN_RATES = {  # of methods that are in no table of EH-FT: HiFi's table 5, Houlsby, Mahabadi, the notebooks of RoCoFT
    "hifi-layerwise": 2e-4, "hifi-midtop": 2e-4, "hifi-random": 2e-4, "hifi-gradient": 2e-4, "hifi-first": 2e-4,
    "adapter": 3e-4, "prefix-tuning-mlp": 3e-4, "compacter": 3e-3, "rocoft-row": 1e-3, "rocoft-column": 1e-3,
}  # fmt: skip


@pytest.mark.parametrize("protocol", ["ehft", "ehft-released"])
@pytest.mark.parametrize("task", ["rte", "wic"])
def test_methods_of_other_papers_do_not_train_at_full_fts_rate(protocol, task):
    """At 1e-5 the few weights that such a method trains hardly move, and a comparison with EH-FT's methods is unfair."""
    where = {"task": task, "backbone": "roberta-large", "protocol": protocol}
    assert {name: resolve(method=name, **where).learning_rate for name in OWN_RATES} == OWN_RATES
    joined = resolve(method="eh-ft-hifi", **where)
    full = resolve(method="full-ft", **where)
    assert (joined.stage1.learning_rate, joined.learning_rate) == (2e-4, full.learning_rate)


def test_few_shot_runs_have_as_many_epochs_on_every_task():
    """The tasks and methods of the protocol that it is based on have other numbers."""
    supported = [task for task in registry.names("tasks") if task_spec.load(task).classes]
    epochs = {
        (task, method): resolve(
            task=task, method=method, protocol="hifi-fewshot", backbone="minilm"
        ).epochs
        for task in supported
        for method in ("full-ft", "bitfit", "compacter", "hifi-layerwise", "eh-ft-bitfit")
    }
    assert (
        len(supported) > 10
        and {cell: number for cell, number in epochs.items() if number != 50} == {}
    )


@pytest.mark.parametrize("name", registry.names("protocols"))
def test_every_unstated_key_is_one_of_the_configuration_and_has_an_origin(name):
    """A protocol that follows a text or a code says of each key that its base leaves unstated where its own value is from."""
    sections = {"task_head": TaskHeadConfig, "heads": RunConfig.model_fields["heads"].annotation}
    reasons = {}
    for spec in with_bases("protocols", name, ProtocolSpec).values():
        for case in spec.cases:
            for kind in ("tasks", "methods", "backbones"):
                assert set(getattr(case, kind)) <= set(registry.names(kind))
        assert spec.follows == "ours" or reasons.keys() <= spec.unstated.keys(), (
            "inherited without a word"
        )
        reasons |= {
            key: origin.reason or reasons.get(key)
            for key, origin in spec.unstated.items()
            if origin
        }
        reasons = {
            key: reason for key, reason in reasons.items() if spec.unstated.get(key, "inherited")
        }
    assert all(reasons.values())
    for key in reasons:
        parts = key.split(".")
        if parts[0] in ("methods", "tasks"):
            assert (
                parts[1] in registry.names(parts[0])
                and parts[2] in TrainingConfig.model_fields | RunConfig.model_fields
            ), key
        elif len(parts) == 2:
            assert parts[1] in sections[parts[0]].model_fields, key
        else:
            assert key in {"seeds", *RunConfig.model_fields}, key


def test_cases_come_after_all_blocks_and_need_every_name(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "description: x\nconfig: {epochs: 1}\nmethods: {full-ft: {epochs: 2}}\ntasks: {rte: {epochs: 3}}\n"
        "cases:\n  - {tasks: [rte, cola], methods: [full-ft], config: {epochs: 4}}\n  - {backbones: [bert-base], config: {epochs: 5}}\n"
    )

    def epochs(**names):
        return resolve(
            **{
                "task": "rte",
                "method": "full-ft",
                "backbone": "bert-large",
                "protocol": str(file),
                **names,
            }
        ).epochs

    assert (
        epochs(),
        epochs(method="bitfit"),
        epochs(task="mrpc"),
        epochs(task="mrpc", method="bitfit"),
    ) == (4, 3, 2, 1)
    assert epochs(method="mixout") == 4  # based on Full-FT
    assert epochs(backbone="bert-base") == 5
    assert (
        resolve(
            task="rte",
            method="full-ft",
            backbone="bert-large",
            protocol=str(file),
            overrides=["epochs=6"],
        ).epochs
        == 6
    )


@pytest.mark.slow
def test_a_run_is_chosen_and_reported_by_its_primary_metric(make, workspace):
    results, by_epoch = {}, {}
    for metric in ("spearman", "pearson"):
        config = make(
            "full-ft",
            "epochs=6",
            "learning_rate=0.003",
            f"primary_metric={metric}",
            f"variant={metric}",
            task="stsb",
        )
        results[metric] = runs.run(config, workspace)
        lines = [
            json.loads(line)
            for line in RunDirectory.of(config, workspace.results_dir)
            .metrics.read_text()
            .splitlines()
        ]
        by_epoch[metric] = [line[metric] for line in lines if "epoch" in line]
    for metric, result in results.items():
        assert result.primary_metric == metric
        assert (
            result.scores.best
            == result.scores.max
            == result.metrics[metric]
            == max(by_epoch[metric])
        )
        assert result.epochs.best == 1 + by_epoch[metric].index(max(by_epoch[metric]))
    assert results["spearman"].scores != results["pearson"].scores
    for wrong in ("pearsn", "accuracy"):
        with pytest.raises(
            UsageError, match=f"primary_metric: STS-B has no '{wrong}'.*it has spearman, pearson"
        ):
            runs.run(make("full-ft", f"primary_metric={wrong}", task="stsb"), workspace)
