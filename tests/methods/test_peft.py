"""Every adapter type of peft: what it trains, what stays frozen, its delta, its merge; and HiFi's adapters of chosen heads."""

import copy
import json
from unittest import mock

import numpy as np
import pytest
import torch
from parameter_formulas import Shape, trained_count
from peft import HRAConfig, PeftType
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from prepared_models import encoder_of, first_batch, logits_of, prepare
from run_folders import run_folder
from step_trace import TINY_SHAPE, gpu_config
from tiny_inputs import HEADS, HIDDEN, INNER, LAYERS, OFTEN_TESTED_FAMILIES, random_encoder
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)

from hifi_cli.config import registry
from hifi_cli.config.specs import method_spec
from hifi_cli.errors import UsageError
from hifi_cli.methods import find, peft
from hifi_cli.methods.base import MethodContext
from hifi_cli.methods.peft import (
    DRAWS_WHERE_THE_WEIGHT_IS,
    PARTS,
    REFUSED,
    drawn_on_the_cpu,
)
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import FAMILIES
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import export as run_export
from hifi_cli.runs import inference
from hifi_cli.runs import run as runs
from hifi_cli.runs.finished import load_final_delta
from hifi_cli.runs.heads import placeholder_heads
from hifi_cli.runs.prepare import build_and_prepare

TYPES = [
    name
    for name in registry.names("methods")
    if method_spec(name).implementation in ("peft", "hifi_peft", "adalora")
]
SHAPE = Shape(LAYERS, HEADS, HIDDEN, INNER, 0, k=2, circulant=8)


def two_steps(prepared, batch):
    """Train for two steps with weight decay, as the trainer does."""
    method, model = prepared.method, prepared.encoder.model
    optimizer = torch.optim.AdamW(method.param_groups(model, 0.5), lr=0.01)
    model.train()
    for step in range(2):
        method.before_step(model, step, range(2))
        (model(**batch).logits.square().sum() + method.regularization_loss(model)).backward()
        optimizer.step()
        method.after_optimizer_step(model)
        optimizer.zero_grad()


@pytest.mark.parametrize("method", TYPES)
@pytest.mark.filterwarnings("ignore")  # peft's own, when it opens a directory
def test_an_adapter_type(make, workspace, encoders, tmp_path, method):
    prepared, config = prepare(make, workspace, method)
    model, batch = prepared.encoder.model, first_batch(config, workspace)
    plain = encoder_of(config, workspace).model
    pretrained, started_at = plain.state_dict(), logits_of(model, batch)
    if method not in ("c3a", "fourierft"):  # whose initial updates are not zero
        torch.testing.assert_close(started_at, logits_of(plain, batch), rtol=1e-5, atol=1e-5)
    head, trained = (
        prepared.encoder.task_head.keys(),
        prepared.method.trainable_parameters(model),
    )
    assert head <= trained.keys()
    assert sum(
        value.numel() for name, value in trained.items() if name not in head
    ) == trained_count(method, SHAPE)

    values = dict(model.named_parameters()) | dict(model.named_buffers())
    before = {name: value.detach().clone() for name, value in values.items()}
    two_steps(prepared, batch)
    changed = {name for name, value in values.items() if not torch.equal(value, before[name])}
    assert changed <= trained.keys()
    assert len(changed) > 0.9 * len(trained)
    adapted = logits_of(model, batch)
    assert not torch.allclose(adapted, started_at, atol=1e-3)

    reloaded, _ = prepare(make, workspace, method)
    load_final_delta(reloaded.method, reloaded.encoder, prepared.method.delta(model))
    assert torch.equal(logits_of(reloaded.encoder.model, batch), adapted)
    if not method.startswith("hifi"):
        check_exported(reloaded, workspace, encoders["bert"], tmp_path, batch)

    prepared.method.unfreeze_all(prepared.encoder)  # which merges
    assert all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(logits_of(model, batch), adapted, rtol=1e-4, atol=1e-5)
    merged = model.state_dict()
    assert merged.keys() == pretrained.keys()
    if method != "ln-tuning":
        touched = {
            name.split(".")[-2]
            for name in merged
            if name not in head and not torch.equal(merged[name], pretrained[name])
        }
        parts = [
            getattr(prepared.encoder.module_names, part)
            for part in prepared.method.settings.targets
        ]
        assert touched == {part.split(".")[-1] for part in parts}


def check_exported(prepared, workspace, backbone, to, batch):
    """The exported directory opens in peft and computes the same."""
    from peft import PeftModel

    assert run_export.fits_peft(prepared)
    (to / "out").mkdir()
    run_export.write_peft(prepared, to / "out")
    plain = AutoModelForSequenceClassification.from_pretrained(backbone, num_labels=2)
    opened = PeftModel.from_pretrained(plain, to / "out")
    torch.testing.assert_close(
        logits_of(opened, batch), logits_of(prepared.encoder.model, batch), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("method", ["hifi-lora", "hifi-dora", "hifi-ia3"])
def test_only_rows_of_the_chosen_heads_move(make, workspace, method):
    prepared, config = prepare(make, workspace, method, "heads.given=[[0,3],[]]")
    encoder, batch = prepared.encoder, first_batch(config, workspace)
    pretrained = encoder_of(config, workspace).model.state_dict()
    two_steps(prepared, batch)
    prepared.method.merge(encoder)
    rows = torch.tensor([row for head in (0, 3) for row in encoder.head_rows(head)])
    targets = config.settings["targets"]
    for name, value in encoder.model.base_model.state_dict(prefix="bert.").items():
        differs = (
            (value != pretrained[name]).reshape(len(value), -1).any(1)
            if value.dim()
            else torch.tensor(False)
        )
        is_target = ".layer.0." in name and any(f".{target}.weight" in name for target in targets)
        if "pooler" not in name and not (method == "hifi-ia3" and name.endswith("bias")):
            assert differs.nonzero().flatten().tolist() == (rows.tolist() if is_target else []), (
                name
            )


def singular_values_of_adalora(make, workspace, resumed_after=None):
    """How many are not 0 after each of ten steps, and which; gradients are random, as the weights are."""
    settings = ["settings.warmup_fraction=0.2", "settings.final_fraction=0.3"]
    prepared, _ = prepare(make, workspace, "adalora", *settings)
    method, model = prepared.method, prepared.encoder.model
    values = {name: value for name, value in model.named_parameters() if ".lora_" in name}
    singular = [name for name in values if ".lora_E." in name]
    noise = torch.Generator().manual_seed(0)
    for value in values.values():
        torch.nn.init.normal_(value, generator=noise)
    counts, kept = [], []
    for step in range(5, 15):
        for value in values.values():
            value.grad = torch.randn(value.shape, generator=noise)
        method.before_step(model, step, range(5, 15))
        method.after_optimizer_step(model)
        counts.append(sum(int(values[name].count_nonzero()) for name in singular))
        kept.append([(values[name] != 0).flatten().tolist() for name in singular])
        for name in singular:  # as the optimizer does
            values[name].data += 1
        if step == resumed_after:
            state = copy.deepcopy(method.training_state(model))
            prepared, _ = prepare(make, workspace, "adalora", *settings)
            method, model = prepared.method, prepared.encoder.model
            method.load_training_state(model, state)
            values = {name: value for name, value in model.named_parameters() if ".lora_" in name}
            for averages in ("importance", "uncertainty"):
                resumed = method.training_state(model)[averages]
                torch.testing.assert_close(resumed, state[averages], rtol=0, atol=0)
    return counts, kept


def test_adalora_keeps_every_singular_value_at_first_and_the_target_at_the_end(make, workspace):
    counts, kept = singular_values_of_adalora(make, workspace)
    matrices = len(kept[0])
    budgets = [int(4 * matrices * (1 - step / 5) ** 3 + 8 * matrices) for step in range(1, 6)]
    assert counts == [12 * matrices] * 2 + budgets + [8 * matrices] * 3
    assert kept[6] == kept[-1]
    for resumed_after in (9, 12):  # while the budget falls, and afterwards
        assert singular_values_of_adalora(make, workspace, resumed_after) == (counts, kept)


def test_adapters_are_in_the_chosen_layers_and_modules_alone(make, workspace):
    where = "settings.options={layers_to_transform: [1]}", "settings.targets=[ue, query]"
    with pytest.raises(UsageError, match="unknown 'ue'"):  # no part of a name
        prepare(make, workspace, "peft", *where)
    prepared, _ = prepare(make, workspace, "peft", where[0], "settings.targets=[query]")
    names = [name for name, _ in prepared.encoder.model.named_parameters() if "lora_" in name]
    assert len(names) == 2 and all(".layer.1.attention.self.query." in name for name in names)


def test_lora_gets_its_settings(make, workspace):
    words = ["settings.r=3", "settings.alpha=12", "settings.dropout=0.25"]
    prepared, _ = prepare(make, workspace, "lora", *words)
    given = prepared.method.tuner.peft_config["default"]
    assert (given.r, given.lora_alpha, given.lora_dropout) == (3, 12, 0.25)


def test_adalora_gets_its_settings_and_its_penalty_is_that_of_the_paper(make, workspace):
    ranks = ["settings.initial_r=6", "settings.target_r=3", "settings.alpha=24"]
    other = ["settings.dropout=0.25", "settings.interval=2", "settings.orthogonality=0.3"]
    prepared, _ = prepare(make, workspace, "adalora", *ranks, *other)
    given = prepared.method.tuner.peft_config["default"]
    assert (given.init_r, given.target_r, given.lora_alpha) == (6, 3, 24)
    assert (given.lora_dropout, given.deltaT) == (0.25, 2)
    norms = []
    for name, value in prepared.encoder.model.named_parameters():
        if ".lora_A." in name or ".lora_B." in name:
            torch.nn.init.normal_(value)
            factor = value.detach().numpy()
            products = factor @ factor.T if ".lora_A." in name else factor.T @ factor
            norms.append(np.linalg.norm(products - np.eye(6)))
    penalty = prepared.method.regularization_loss(prepared.encoder.model)
    assert penalty.item() == pytest.approx(0.3 * np.mean(norms), rel=1e-5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("settings.type=lorra", "unknown 'lorra'; did you mean 'lora'"),
        ("settings.type=prompt_tuning", "settings.type: unknown 'prompt_tuning'"),
        ("settings.type=adalora", "use the method adalora"),
        ("settings.options.rr=3", "LoraConfig of peft has no 'rr'; did you mean 'r'?"),
        (
            "settings.options.r=0",
            "settings.type=lora: peft refuses it: `r` should be a positive integer",
        ),
        ("settings.targets=[querry]", "unknown 'querry'; did you mean 'query'"),
        ("settings.options.inference_mode=true", "options.inference_mode: not supported here"),
        ("settings.options.task_type=SEQ_CLS", "options.task_type: not supported here"),
        ("settings.options.use_qalora=true", "options.use_qalora: not supported here"),
        ("settings.options.modules_to_save=LayerNorm", "LayerNorm would stay frozen"),
        ("settings.options.layers_to_transform=1.5", "the encoder has the layers 0 to 1"),
        ("settings.options.rank_pattern=8", "as {query: 4}, not 8"),
        ("settings.options.bias=3", "settings.type=lora: peft refuses it: 'int' object"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(make, workspace, setting, message):
    with pytest.raises(UsageError) as refused:
        prepare(make, workspace, "dora", setting)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_lack_of_memory_is_not_blamed_on_peft(make, workspace, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
    tuners = {PeftType.LORA: mock.Mock(side_effect=error)}
    monkeypatch.setattr(peft, "PEFT_TYPE_TO_TUNER_MAPPING", tuners)
    with pytest.raises(torch.OutOfMemoryError):
        prepare(make, workspace, "dora")


SMALL = {  # options that matrices of 32 x 32 can have
    "c3a": {"block_size": 8},
    "fourierft": {"n_frequency": 100},
    "waveft": {"n_frequency": 100},
    "vblora": {"vector_length": 8, "num_vectors": 16, "topk": 2},
    "road": {"group_size": 8},
    "boft": {"boft_block_size": 8},
    "miss": {"r": 8},
    # The name of "miss" up to peft 0.18, which merges it only in blocks that fit into a matrix
    "bone": {"r": 8},
    "shira": {"r": 4},
}
KINDS = {
    member.value.lower()
    for member, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()
    if hasattr(config, "target_modules")
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS - REFUSED - {"adalora"}))
def test_every_type_of_peft_is_trained_rebuilt_and_merged(make, workspace, kind):
    config = make(
        "peft", "epochs=1", f"settings.type={kind}", f"settings.options={SMALL.get(kind, {})}"
    )
    assert runs.run(config, workspace).is_done
    path = RunDirectory.of(config, workspace.results_dir).path
    assert inference.evaluate(path, workspace).largest_difference < 1e-4
    prepared, _ = workspace.open(path)
    batch = first_batch(config, workspace)
    before = logits_of(prepared.encoder.model, batch)
    prepared.method.merge(prepared.encoder)
    torch.testing.assert_close(
        logits_of(prepared.encoder.model, batch), before, rtol=1e-4, atol=1e-4
    )


def test_a_file_of_peft_is_a_method(hifi, data, encoders, tmp_path):
    """Its settings are those of the adapter that peft would make."""
    file = tmp_path / "adapter_config.json"
    HRAConfig(
        r=4, target_modules=["query", "dense"], modules_to_save=["classifier"], task_type="SEQ_CLS"
    ).save_pretrained(tmp_path)
    words = ["--task", "rte", "--backbone", encoders["bert"], "--data-dir", data, "epochs=1"]
    answer = hifi("train", "--method", file, *words, "--format", "json")
    assert answer.code == 0, answer.err
    (run,) = json.loads(answer.out)
    assert run["path"] == str(run_folder(method="adapter_config"))
    options = {"r": 4, "apply_GS": False, "init_weights": True, "bias": "none"}
    settings = {"type": "hra", "targets": ["dense", "query"], "options": options}
    assert run["result"]["config"]["settings"] == settings
    counts = run["result"]["params"]
    assert counts["trainable"] - counts["trainable_backbone"] == 33 * 32 + 33 * 2, counts
    file.write_text('{"peft_type": "LORA", "target_modules": ".*query"}')
    assert hifi("eval", run["path"], "--data-dir", data).code == 0  # the run has a copy of its own
    answer = hifi("train --method", file, *words)
    assert answer.code == 2 and "target_modules: write a list" in answer.err


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in OFTEN_TESTED_FAMILIES else pytest.mark.slow)
        for name in FAMILIES
    ],
)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("peft", {"type": "lora", "options": {"use_dora": True}, "targets": list(PARTS)}),
        ("peft", {"type": "ia3", "targets": ["key", "value", "ffn_output"]}),
        ("peft", {"type": "ln_tuning", "targets": ["norms"]}),
        ("hifi-lora", {"type": "lora", "targets": ["query", "key", "value"]}),
        ("hifi-ia3", {"type": "ia3", "targets": ["query", "key", "value"]}),
    ],
    ids=["dora", "ia3", "norms", "hifi-lora", "hifi-ia3"],
)
def test_every_family_has_the_targets_and_merges(family, method, settings):
    """Adapters start at the pretrained model, change it when they change, and merge into plain modules."""
    encoder = Encoder(random_encoder(family))
    encoder.unfuse_qkv()
    with torch.no_grad():
        for name, value in encoder.model.named_parameters():
            if name.endswith("bias"):  # those of a random encoder are 0
                value.normal_(0, 0.1)
    batch = {"input_ids": torch.arange(5, 19).view(2, 7)}
    before, types = (
        logits_of(encoder.model, batch),
        [type(module) for module in encoder.model.modules()],
    )
    chosen = find.implementation_of(method)
    method = chosen(chosen.Settings(**settings), MethodContext(heads=[[1], [0, 3]]))
    method.prepare(encoder)
    torch.testing.assert_close(logits_of(encoder.model, batch), before, rtol=1e-4, atol=1e-5)
    trained = method.trainable_parameters(encoder.model)
    added = sorted(trained.keys() - encoder.task_head.keys())
    assert added
    with torch.no_grad():
        for name in added:
            trained[name] += 0.2 * torch.rand(
                trained[name].shape, generator=torch.Generator().manual_seed(0)
            )
    adapted = logits_of(encoder.model, batch)
    assert not torch.allclose(adapted, before, atol=1e-3)
    method.merge(encoder)
    torch.testing.assert_close(logits_of(encoder.model, batch), adapted, rtol=1e-4, atol=1e-5)
    assert [type(module) for module in encoder.model.modules()] == types


@pytest.mark.parametrize(
    ("method", "scale"), [("ia3", "ia3_l"), ("hifi-ia3", "ia3_l"), ("boft", "boft_s")]
)
def test_weight_decay_does_not_pull_scales_from_1_to_0(make, workspace, method, scale):
    prepared, _ = prepare(make, workspace, method)
    names = {id(parameter): name for name, parameter in prepared.encoder.model.named_parameters()}
    groups = prepared.method.param_groups(prepared.encoder.model, 0.1)
    decay = {
        names[id(parameter)]: group["weight_decay"]
        for group in groups
        for parameter in group["params"]
    }
    assert {value for name, value in decay.items() if scale in name} == {0.0}
    assert decay["classifier.weight"] == 0.1


class DrawsOn(TorchDispatchMode):
    """Notes whether random numbers are drawn into tensors of a device."""

    def __init__(self, device):
        super().__init__()
        self.device, self.draws = device, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        on_device = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        if is_random and any(value.device.type == self.device for value in on_device):
            self.draws.append(func.overloadpacket.__name__)
        return result


# HiFi's rows are Linears, whose initial values are those of the pretrained rows before peft adapts them.
@pytest.mark.parametrize(
    "method", [name for name in TYPES if method_spec(name).implementation != "hifi_peft"]
)
def test_adapters_that_draw_where_the_weight_is_are_known(method):
    """`meta` stands for a GPU, whose generator no seed has set when a method prepares a model."""
    config = gpu_config(method)
    with torch.device("meta"):
        encoder = Encoder(BertForSequenceClassification(BertConfig(**TINY_SHAPE)))
    heads = placeholder_heads(config, encoder)
    with DrawsOn("meta") as mode:
        prepared = build_and_prepare(config, encoder, heads, [])
    kind, _ = prepared.adapter()
    assert bool(mode.draws) == (kind in DRAWS_WHERE_THE_WEIGHT_IS), mode.draws


@pytest.mark.parametrize("method", ["c3a", "lora"])
def test_what_would_draw_on_a_gpu_draws_on_the_cpu(make, workspace, monkeypatch, method):
    """The model is there while peft adds the adapters, and then on the GPU again."""
    where, places = ["cuda"], []
    monkeypatch.setattr(Encoder, "device", property(lambda _: torch.device(where[-1])))
    monkeypatch.setattr("torch.nn.Module.to", lambda _, to: where.append(torch.device(to).type))
    with drawn_on_the_cpu(encoder_of(make(method), workspace), method):
        places.append(where[-1])
    assert places == ["cpu" if method == "c3a" else "cuda"] and where[-1] == "cuda"
