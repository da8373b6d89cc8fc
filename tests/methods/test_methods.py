"""One suite over every implementation of a method; and every registered method's closed formula."""

import re
from dataclasses import replace

import prepared_models
import pytest
import torch
from finished_runs import assert_resuming_changes_nothing
from parameter_formulas import Shape, stored_count, trained_count
from prepared_models import encoder_of, heads_of, logits_of, splits_of
from tiny_inputs import HEADS, HIDDEN, INNER, LAYERS
from transformers import AutoModelForSequenceClassification

from hifi_cli import open_model
from hifi_cli.config import registry
from hifi_cli.config.sources import resolve
from hifi_cli.config.specs import method_spec
from hifi_cli.methods import find
from hifi_cli.methods.base import MethodContext
from hifi_cli.models.encoder import Encoder
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.inference import evaluate
from hifi_cli.runs.prepare import enter_last_stage
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks.encode import collate
from hifi_cli.training.loop import Splits, Trainer

SPECS = {method: method_spec(method) for method in registry.names("methods")}
# A variation of another method's settings runs the same code; of the adapter types of peft, tests/methods/test_peft.py holds for all.
ADAPTER_TYPES = {
    name for name, spec in SPECS.items() if spec.implementation in ("peft", "hifi_peft")
} - {"dora", "hifi-lora"}
VARIATIONS = {
    name
    for name, spec in SPECS.items()
    if spec.base and SPECS[spec.base].implementation == spec.implementation
}
ONE_OF_EACH = sorted(
    {
        SPECS[name].implementation: name for name in SPECS if name not in ADAPTER_TYPES | VARIATIONS
    }.values()
)
# These keep another state between their stages.
OTHER_STATES = [
    "eh-ft-bitfit",
    "eh-ft-hifi",
    "eh-ft-lora-reserve",
    "eh-ft-prefix-reserve",
    "prefix-tuning-mlp",
    "rocoft-column",
]
# Pretrained tensors that a method may change beside the task head, by implementation; the others change all of them.
MAY_CHANGE = {
    "linear_probing": r"(?!)",
    "prefix_tuning": r"(?!)",
    "lora": r"\.(query|key)\.weight$",
    "peft": r"\.(query|value)\.weight$",
    "hifi_peft": r"\.(query|value)\.weight$",
    "adalora": r"\.(query|key|value|dense)\.weight$",
    "hifi": r"\.self\.(query|key|value)\.(weight|bias)$",
    "rocoft": r"\.(query|key|value|dense)\.(weight|bias)$",
    "bitfit": r"\.bias$",
    "adapter": r"LayerNorm",
    "compacter": r"LayerNorm",
    "top_k": rf"layer\.{LAYERS - 1}\.",
}
LOW_RANK = ("lora", "peft", "hifi_peft", "adalora")


def shape_of(plain):
    """The tiny encoder's shape, with the settings that conftest gives its methods."""
    everything = sum(p.numel() for name, p in plain.base.named_parameters() if "pooler" not in name)
    sizes = {"k": 2, "top": 1, "bottleneck": 8, "reduction": 4, "prefix": 4, "mlp": 8, "diff": 0.05}
    shape = Shape(LAYERS, HEADS, HIDDEN, INNER, 0, **sizes)
    return replace(shape, E=everything - LAYERS * shape.layer)


@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", [*ONE_OF_EACH, *OTHER_STATES])
def test_a_finished_run(make, workspace, hifi, tmp_path, data, monkeypatch, method, family):
    """What trained and how much of it, what stayed frozen with weight decay on, the delta, the exported and the reloaded model.

    On BERT it is stopped and resumed elsewhere, too.
    """
    config = make(method, "weight_decay=0.5", "learning_rate=0.01", "limit=24", family=family)
    plain = encoder_of(config, workspace)
    before = {name: value.clone() for name, value in plain.model.state_dict().items()}
    if family == "bert":
        results = assert_resuming_changes_nothing(
            config, workspace, Workspace(tmp_path / "stopped", data), monkeypatch
        )
    else:
        results = runs.run(config, workspace)
    directory = RunDirectory.of(config, workspace.results_dir)
    check_counts(method, plain, results.params, family)
    check_stored_size(directory, results.params)
    prepared, _ = workspace.open(directory.path)
    added = (
        set(prepared.encoder.model.state_dict()) - set(before)
        if not prepared.method.mergeable
        else set()
    )
    prepared.method.merge(prepared.encoder)
    after = prepared.encoder.model.state_dict()
    assert before.keys() == after.keys() - added
    changed = {name: (before[name] != after[name]) for name in before}
    check_frozen(method, prepared, changed, results.params)
    if SPECS[method].implementation == "hifi":
        check_heads(prepared.encoder, changed, heads_of(config, workspace))
    check_export(
        prepared.method.mergeable, directory, config, workspace, hifi, tmp_path / "exported"
    )
    evaluation = evaluate(directory.path, workspace)
    assert evaluation.largest_difference == 0
    assert (
        all(now == stored for now, stored in evaluation.compared.values())
        and not evaluation.differing
    )


def check_counts(method, plain, counts, family):
    """The counts are the closed formulas."""
    head = sum(parameter.numel() for parameter in plain.task_head.values())
    if method == "bitfit" and family == "bert":
        head -= HIDDEN * HIDDEN  # a pretrained pooler keeps its weights
    shape = shape_of(plain)
    if (
        method == "diff-pruning"
    ):  # a pretrained pooler is searched with the backbone: how many entries it gets the data decide
        pooler = sum(
            parameter.numel() for name, parameter in plain.task_head.items() if "pooler" in name
        )
        shape, head = replace(shape, E=shape.E + pooler), head - pooler
        assert (
            trained_count(method, shape) - pooler
            <= counts.trainable_backbone
            <= trained_count(method, shape)
        )
    else:
        assert counts.trainable_backbone == trained_count(method, shape)
    assert counts.trainable == trained_count(method, shape) + head
    assert counts.stored == stored_count(method, shape) + head
    assert counts.total == sum(parameter.numel() for parameter in plain.model.parameters())


def check_stored_size(directory, counts):
    """The delta holds only what changed."""
    assert directory.delta.stat().st_size <= 1.02 * counts.stored_bytes + 20_000
    assert (
        counts.stored_bytes <= 4 * counts.stored + counts.total / 8 + 100
    )  # a bit an entry where they are sparse


def check_frozen(method, prepared, changed, counts):
    """What is frozen is bit-identical; what trains has moved, in every tensor and in at least half of its entries."""
    head, implementation = prepared.encoder.task_head.keys(), SPECS[method].implementation
    allowed = re.compile(MAY_CHANGE.get(implementation, ""))
    assert [
        name
        for name, mask in changed.items()
        if mask.any() and name not in head and not allowed.search(name)
    ] == []
    moved = sum(int(mask.sum()) for mask in changed.values())
    if implementation not in LOW_RANK:  # an update of rank r moves the whole matrix
        assert moved <= counts.trainable
    if implementation not in (
        *LOW_RANK,
        "prefix_tuning",
        "compacter",
        "adapter",
    ):  # which train modules of their own
        assert moved > counts.trainable / 2
    trained_names = (
        set(prepared.method.trainable_parameters(prepared.encoder.model)) & changed.keys()
    )
    assert trained_names >= head - {"bert.pooler.dense.weight"}
    if implementation in (
        "child_tuning_d",
        "diff_pruning",
        "random_parameters",
    ):  # need not choose an entry of every tensor
        trained_names = {name for name in trained_names if name.startswith("classifier")}
    assert [name for name in trained_names if not changed[name].any()] == []


def check_heads(encoder, changed, heads):
    """The rows of the chosen heads have moved and no others."""
    for layer in range(LAYERS):
        for name in ("query", "key", "value"):
            key = next(
                key for key in changed if f"layer.{layer}.attention.self.{name}.weight" in key
            )
            for head in range(HEADS):
                rows = encoder.head_rows(head)
                assert bool(changed[key][rows.start : rows.stop].any()) == (head in heads[layer])


def check_export(is_mergeable, directory, config, workspace, hifi, to):
    """The exported model has the run's logits; a run of a method that adds modules is opened itself."""
    export = ("export", directory.path, "--to", to, "--data-dir", workspace.data_dir)
    exported = hifi(*export)
    if is_mergeable:
        assert exported.code == 0
        model = AutoModelForSequenceClassification.from_pretrained(to)
    else:
        assert exported.code == 2 and "hifi_cli.open_model" in exported.err and not to.exists()
        model, _ = open_model(directory.path)
    batch = collate(
        splits_of(config, workspace).reported[:6], {"input_ids": 0, "token_type_ids": 0}
    )
    stored = torch.tensor([prediction.logits for prediction in directory.read_predictions()[:6]])
    torch.testing.assert_close(logits_of(model, batch), stored, rtol=1e-4, atol=1e-5)


LEARNING = {  # what a random encoder of two layers needs to learn 8 examples; the others learn in 25 steps
    "bitfit": ["learning_rate=0.03", "epochs=32"],
    "linear-probing": ["learning_rate=0.02", "epochs=30"],
    "prefix-tuning": ["learning_rate=0.03", "epochs=40"],
    "compacter": ["learning_rate=0.03", "epochs=27"],
    "random-parameters": ["settings.count=2000"],
}


@pytest.mark.parametrize("method", ONE_OF_EACH)
def test_loss_falls(make, workspace, method):
    quick = [
        "limit=8",
        "epochs=25",
        "learning_rate=0.01",
        "schedule=constant",
        "log_every=1",
        "warmup=0",
        "dropout=0.0",
    ]
    prepared, config = prepared_models.prepare(
        make, workspace, method, *quick, *LEARNING.get(method, [])
    )
    examples = splits_of(config, workspace).train
    trainer = Trainer(prepared, prepared.method, Splits(examples, gradient_batches=[examples]))
    trainer.train()
    losses = [line.loss for line in trainer.progress.log_history]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


def bert_large(layers=24):
    from transformers import BertConfig, BertForSequenceClassification

    shape = BertConfig(
        hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16, intermediate_size=4096
    )
    with torch.device("meta"):
        return Encoder(BertForSequenceClassification(shape))


FITTING = {  # four layers, and the settings of the formula; hifi's own prefix is that of prefix-tuning-mlp
    "top-k-6": ["settings.k=3"],
    "top-k-12": ["settings.k=3"],
    "prefix-tuning": ["settings.mlp=0"],
    "eh-ft-prefix-reserve": ["stage1.settings.mlp=0", "stage1.settings.length=16"],
}
WIDE = Shape(4, 16, 1024, 4096, (30522 + 512 + 2 + 2) * 1024, prefix=30)


@pytest.mark.parametrize("method", SPECS)
def test_counts_at_bert_larges_width_are_the_closed_formulas(method):
    encoder, overrides = bert_large(WIDE.L), FITTING.get(method, [])
    config = resolve(
        task="rte", method=method, backbone="bert-large", protocol="hifi", overrides=overrides
    )
    layers = range(WIDE.L // 2 if method == "hifi-midtop" else 0, WIDE.L)
    heads = [[0, 5, 15] if layer in layers else [] for layer in range(WIDE.L)]
    built = find.build_method(config, MethodContext(heads=heads, stage1_config=config.stage1))
    built.prepare(encoder)
    if config.stage1:
        enter_last_stage(built, encoder)
    head = encoder.task_head.keys()
    trained = built.stages()[0 if method == "diff-pruning" else -1].method.trainable_parameters
    included = sum(
        value.numel() for name, value in trained(encoder.model).items() if name not in head
    )
    if method == "child-tuning-d":
        assert included == WIDE.backbone  # before it has seen the Fisher information
    elif (
        method == "diff-pruning"
    ):  # differences and gates of the backbone and the pooler, while it searches
        assert included == 2 * (WIDE.backbone + WIDE.D * (WIDE.D + 1)) + len(
            built.search.tensor_gate
        )
    else:
        assert included == trained_count(method, WIDE)


@pytest.mark.parametrize(
    ("layers", "weights", "share"), [(range(24), 14_155_776, 4.2), (range(12, 24), 7_077_888, 2.1)]
)
def test_bert_large_without_biases_has_the_papers_percentages(layers, weights, share):
    encoder = bert_large()
    total = sum(parameter.numel() for parameter in encoder.model.parameters())
    heads = [[0, 5, 15] if layer in layers else [] for layer in range(24)]
    chosen = find.implementation_of("hifi-layerwise")
    chosen(chosen.Settings(biases=False), MethodContext(heads=heads)).prepare(encoder)
    head = encoder.task_head.keys()
    included = sum(
        p.numel()
        for name, p in encoder.model.named_parameters()
        if p.requires_grad and name not in head
    )
    assert included == weights
    assert round(100 * included / total, 1) == share


def test_tuned_rows_train_in_bf16_too(make, workspace):
    config = make("hifi-layerwise", "precision=bf16")
    assert runs.run(config, workspace).is_done
    assert (
        evaluate(RunDirectory.of(config, workspace.results_dir).path, workspace).largest_difference
        == 0
    )
