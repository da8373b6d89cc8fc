"""--dry-run: what a run would be, without weights, data, network or a file written."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from parameter_formulas import Shape, trained_count
from tiny_inputs import HEADS, HIDDEN, INNER, LAYERS, TINY

from hifi_cli.config import registry
from hifi_cli.config.sources import resolve
from hifi_cli.errors import MissingError
from hifi_cli.models.pretrained import (
    load_backbone,
    load_backbone_on_meta,
    missing_keys_on_meta,
)
from hifi_cli.runs import plan
from hifi_cli.runs import run as runs
from hifi_cli.runs.inputs import load_task, task_head_of
from hifi_cli.runs.plan import Planner
from hifi_cli.runs.workspace import Workspace


@pytest.mark.parametrize("method", registry.names("methods"))
def test_every_method_is_counted_without_weights(make, encoders, tmp_path, method):
    bare = tmp_path / "tiny-bert"
    bare.mkdir()
    shutil.copy(encoders["bert"] / "config.json", bare)
    overrides = [*TINY.get(method, []), "heads.k=2"]
    config = resolve(
        task="rte", method=method, backbone=str(bare), protocol="hifi", overrides=overrides
    )
    size = Planner(Workspace(tmp_path)).model_size(config, load_task(config))
    total = size.total
    stages = size.trained
    embeddings = (28 + 40 + 2) * HIDDEN + 2 * HIDDEN
    sizes = (
        {"rank": config.stage1.settings["r"]}
        if config.stage1 and "r" in config.stage1.settings
        else {}
    )
    sizes |= {
        "k": 2,
        "top": 1,
        "reduction": 4,
        "bottleneck": 8,
        "prefix": 4,
        "mlp": 8,
        "diff": 0.05,
        "circulant": 8,
    }
    shape = Shape(LAYERS, HEADS, HIDDEN, INNER, embeddings, **sizes)
    if method in ("diff-pruning", "child-tuning-d"):  # weights or gradients decide in the end
        assert len(stages) == (method == "diff-pruning")
    else:
        assert stages[-1][1] == trained_count(method, shape)
    head = HIDDEN * (HIDDEN + 1) + 2 * (HIDDEN + 1)
    assert total == shape.backbone + head
    with_head = (
        head - HIDDEN**2 if method == "bitfit" else head
    )  # of the pooler BitFit trains the bias
    if method not in ("diff-pruning", "child-tuning-d"):
        assert stages[-1][0] == stages[-1][1] + with_head
        assert len(stages) == (2 if config.stage1 else 1)


@pytest.mark.parametrize(("method", "family"), [("eh-ft-bitfit", "bert"), ("bitfit", "roberta")])
def test_counts_are_those_of_the_run(make, workspace, method, family):
    config = make(method, "epochs=1", family=family)
    counts = runs.run(config, workspace).params
    size = Planner(workspace).model_size(config, load_task(config))
    assert size.total == counts.total
    assert size.trained[-1] == (counts.trainable, counts.trainable_backbone)


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("bitfit", []),
        ("diff-pruning", []),
        ("eh-ft-bitfit", ["stage1.settings.biases=all"]),
        ("eh-ft", ["stage1.method=ia3", "settings.reserve=true"]),
        ("eh-ft", ["stage1.method=shira", "settings.reserve=true"]),
        ("bitfit", ["task_head.kind=mlp"]),
        ("linear-probing", []),
        ("hifi-layerwise", []),
    ],
)
def test_counts_are_those_of_a_run_whose_encoder_has_no_pooler(tmp_path, method, overrides):
    """The demo encoder's weights have none: a run draws it, and BitFit trains it whole."""
    words = ["epochs=1", "limit=32", "batch_size=16", *overrides]
    config = resolve(method=method, protocol="demo", overrides=words)
    workspace = Workspace(tmp_path)
    size = Planner(workspace).model_size(config, load_task(config))
    result = runs.run(config, workspace)
    counts = result.params
    assert size.total == counts.total
    if method == "diff-pruning":
        # The search alone is counted; what it finds does not decide how much of the head trains.
        trained, inside = size.trained[0]
        assert trained - inside == counts.trainable - counts.trainable_backbone
    else:
        assert size.trained[-1] == (counts.trainable, counts.trainable_backbone)
        assert size.stored_bytes == pytest.approx(result.delta_bytes, rel=0.1)


def test_a_run_that_starts_from_another_has_its_pooler(tmp_path):
    workspace = Workspace(tmp_path)
    words = ["epochs=1", "limit=32"]
    first = resolve(method="full-ft", protocol="demo", overrides=words)
    runs.run(first, workspace)
    start = f"start_from={workspace.directory(first).path}"
    config = resolve(method="bitfit", protocol="demo", seed=2, overrides=[*words, start])
    size = Planner(workspace).model_size(config, load_task(config))
    counts = runs.run(config, workspace).params
    assert size.trained == [(counts.trainable, counts.trainable_backbone)]
    # The biases of the layers, embeddings and pooler, and the classifier.
    assert counts.trainable == 6146


@pytest.mark.parametrize("backbone", ["demo", "minilm"])
@pytest.mark.parametrize("kind", ["pooler", "mlp"])
def test_what_weights_lack_is_known_without_reading_them(backbone, kind):
    config = resolve(
        method="bitfit",
        backbone=backbone,
        protocol="demo",
        overrides=[f"task_head.kind={kind}"],
    )
    head = task_head_of(config, load_task(config))
    try:
        loaded = load_backbone(config.backbone, task_head=head, dropout=None)
    except MissingError:
        pytest.skip("the package with this encoder is not installed")
    model = load_backbone_on_meta(config.backbone, task_head=head, dropout=None)
    of_model = {name for name, _ in loaded.model.named_parameters()}
    expected = sorted(of_model.intersection(loaded.missing_keys))
    assert missing_keys_on_meta(config.backbone, model) == expected


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["epochs=2", "batch_size=32"], "156 steps: 2 epochs of 2,490 examples in batches of 32"),
        (
            ["limit=100", "batch_size=8", "epochs=1"],
            "13 steps: 1 epoch of 100 examples in batches of 8",
        ),
        (
            ["selection=holdout", "holdout=0.5", "epochs=1"],
            "39 steps: 1 epoch of 1,245 examples in batches of 32",
        ),
        (["shots=16", "epochs=3"], "3 steps: 3 epochs of 32 examples in batches of 32"),
    ],
)
def test_steps_follow_the_configuration(make, workspace, overrides, steps):
    config = make("full-ft", "batch_size=32", *overrides)
    planner = Planner(Workspace(workspace.results_dir))
    assert dict(planner.plan(config).lines)["steps"] == steps


def test_what_is_missing_is_told_and_nothing_is_asked_or_written(
    hifi, monkeypatch, tmp_path, data, encoders
):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    words = ("train", "--task", "rte", "--method", "hifi-layerwise", "--dry-run")
    answer = hifi(*words, "--backbone", "owner/encoder")
    assert answer.code == 0, answer.err
    assert hifi(*words, "--strict", "--backbone", "owner/encoder").code == 3
    assert "owner/encoder" in answer.out.partition("# missing")[2]
    assert "parameters unknown" in answer.out
    # The tests forbid the network, as HF_HUB_OFFLINE=1 does.
    assert "the dataset 'nyu-mll/glue' is not available" in answer.out.partition("# missing")[2]
    monkeypatch.delenv("HF_HUB_OFFLINE")
    online = hifi(*words, "--backbone", encoders["bert"])
    assert "# data       not on this machine: the hub would be asked" in online.out
    assert "# missing    nothing" in online.out
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    answer = hifi(*words, "start_from=results/runs/none")
    assert "start_from=results/runs/none: no run there" in answer.out.partition("# missing")[2]
    assert "no folder RTE" in hifi(*words, "--data-dir", tmp_path).out
    answer = hifi(*words, "--backbone", encoders["bert"], "--data-dir", data)
    assert hifi(*words, "--strict", "--backbone", encoders["bert"], "--data-dir", data).code == 0
    assert "--strict is for --dry-run" in hifi(*words[:-1], "--strict").err
    assert "# missing    nothing" in answer.out and yaml.safe_load(answer.out)["task"] == "rte"
    assert not Path("results").exists() and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("files", ["model*", "*token*"])
def test_an_encoder_without_weights_or_tokenizer_is_not_complete(hifi, encoders, tmp_path, files):
    encoder = tmp_path / "encoder"
    shutil.copytree(encoders["bert"], encoder)
    words = f"train --protocol demo --task demo-entailment --method bitfit --backbone {encoder}"
    assert "# missing    nothing" in hifi(f"{words} --dry-run --strict").out
    for file in (*encoder.glob(files), *encoder.glob("vocab*")):
        file.unlink()
    answer = hifi(f"{words} --dry-run --strict")
    assert answer.code == 3
    what = "weights" if files == "model*" else "tokenizer"
    assert f"# missing    no {what} in {encoder}" in answer.out
    assert hifi(words).code == 3


def test_the_directory_s_state_is_told(tiny, finish_run):
    def state(*words):
        said = tiny("train --method full-ft --dry-run", *words).out
        return (
            next(line for line in said.splitlines() if line.startswith("# directory"))
            .partition("(")[2]
            .rstrip(")")
        )

    assert state() == "new"
    finish_run()
    assert state() == (
        "done: skipped without --force, unless task, data, encoder or code have changed"
    )
    assert state("learning_rate=0.5") == "holds a run of another configuration: --force replaces it"


LARGE = {
    # Devlin et al. 2019 and Liu et al. 2019 say 340 and 355 million; 335 is the number without the heads of pretraining.
    "bert-large": (transformers.BertConfig, {}, 335),
    "roberta-large": (
        transformers.RobertaConfig,
        {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
        355,
    ),
}


@pytest.mark.parametrize("backbone", LARGE)
def test_a_large_encoder_is_counted_without_its_files(monkeypatch, tmp_path, backbone):
    """As many as transformers has for the sizes in the papers, and HiFi trains as many weights as its paper says."""

    def refuse(*_, **__):
        raise MissingError("it is not here")

    monkeypatch.setattr(plan, "load_backbone_on_meta", refuse)
    of_family, more, millions = LARGE[backbone]
    large = {"num_hidden_layers": 24, "hidden_size": 1024}
    large |= {"num_attention_heads": 16, "intermediate_size": 4096}
    with torch.device("meta"):
        model = transformers.AutoModelForSequenceClassification.from_config(
            of_family(**large, **more, num_labels=2)
        )
        encoder = transformers.AutoModel.from_config(of_family(**large, **more))
    assert encoder.num_parameters() // 10**6 == millions
    planner = Planner(Workspace(tmp_path))
    config = resolve(task="rte", method="hifi-layerwise", backbone=backbone)
    size = planner.model_size(config, load_task(config))
    assert size.total == model.num_parameters() and size.absence == "it is not here"
    ((_, trained),) = size.trained
    # 24 layers, three heads, W_Q, W_K and W_V: 64 rows of 1,024 weights, and their biases.
    weights = 24 * 3 * 3 * 64 * 1024
    assert weights == 14_155_776 and trained == weights + weights // 1024
    upper_half = resolve(task="rte", method="hifi-midtop", backbone=backbone)
    ((_, half),) = planner.model_size(upper_half, load_task(upper_half)).trained
    assert 2 * half == trained


def test_an_encoder_that_is_only_counted_is_missing_in_every_run(hifi, monkeypatch):
    def refuse(*_, **__):
        raise MissingError("the encoder is not here")

    monkeypatch.setattr(plan, "load_backbone_on_meta", refuse)
    words = "train --task rte --method bitfit,lora --dry-run --strict --format json"
    answer = hifi(words)
    assert answer.code == 3, answer.err
    for run in json.loads(answer.out):
        lines = {line["about"]: line["text"] for line in run["plan"]}
        assert lines["parameters"].startswith("335,14")
        assert lines["parameters"].endswith("computed from the sizes in the backbone's YAML")
        missing = [line["text"] for line in run["plan"] if line["about"] == "missing"]
        assert "the encoder is not here" in missing
    # Another revision may have other sizes.
    own = "description: x\nhub: google-bert/bert-large-uncased\nrevision: refs/pr/1\n"
    Path("mine.yaml").write_text(own)
    answer = hifi(f"{words} --backbone mine.yaml")
    lines = {line["about"]: line["text"] for line in json.loads(answer.out)[0]["plan"]}
    assert lines["parameters"] == "unknown without the backbone's configuration"


def test_the_sizes_in_yamls_are_keys_of_the_familys_configuration():
    described = [registry.load("backbones", name) for name in registry.names("backbones")]
    architectures = [content["architecture"] for content in described if "architecture" in content]
    assert architectures
    for architecture in architectures:
        config = transformers.AutoConfig.for_model(**architecture)
        assert architecture.keys() <= type(config)().to_dict().keys()
        assert config.hidden_size % config.num_attention_heads == 0
