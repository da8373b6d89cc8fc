"""The numbers behind the figures, against independent computations."""

import copy
import json
import math
from dataclasses import replace
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from prepared_models import data_of, encoder_of, examples_of, prepared_run, pretrained_of, splits_of
from run_folders import run_folder
from safetensors.torch import load_file
from scipy import stats
from sklearn.metrics import silhouette_score
from tiny_inputs import HEADS, HIDDEN, LAYERS, random_encoder
from transformers import AutoModel, AutoTokenizer

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.figures import figure, heads, models, sweep
from hifi_cli.figures.models import Tsne
from hifi_cli.heads.ranking import Ranked
from hifi_cli.heads.scores import head_outputs
from hifi_cli.methods import two_stage
from hifi_cli.models.encoder import Encoder
from hifi_cli.records.layout import RunDirectory
from hifi_cli.runs import run as runs
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import collate, epoch_batches, padding_values, single_sequences
from hifi_cli.tasks.examples import EncodedExample, Row

pytestmark = pytest.mark.slow


def compute(request):
    """The rows of a figure whose runs are finished."""
    return list(request.kind.rows(request))


def first_tokens(directory, rows, state=None):
    """Every example's first hidden state in the last layer, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModel.from_pretrained(directory).eval()
    model.load_state_dict(state or model.state_dict(), strict=True)
    encoded = (tokenizer(*row.sequences[0], return_tensors="pt") for row in rows)
    with torch.inference_mode():
        return torch.stack([model(**inputs).last_hidden_state[0, 0] for inputs in encoded])


def test_richness_and_correlation_rows_are_the_scores(ask):
    def scored(kind, *variants):
        request = ask(kind, {"warm_steps": 2, "variants": list(variants)})
        request.overrides = ("precision=fp32",)  # the others are the variants' own
        return request

    rows = compute(scored("richness", "ST", "SL"))
    assert len(rows) == 2 * LAYERS * HEADS
    request = scored("richness", "SL")
    ((_, stored),) = request.kind.scores(request)
    of_sl = [row for row in rows if row["setting"] == "SL"]
    found = {(row["layer"], row["head"]): (row["mean"], row["std"]) for row in of_sl}
    assert found == {
        (layer, head): (stored.richness[layer][head], stored.richness_std[layer][head])
        for layer in range(LAYERS)
        for head in range(HEADS)
    }
    request = scored("correlation", "ST")
    rows = compute(request)
    ((_, stored),) = request.kind.scores(request)
    for row in rows:
        expected = stored.correlation[row["layer"]][row["head"]][row["other"]]
        assert row["correlation"] == expected
    for layer in range(LAYERS):
        assert max(row["normalized"] for row in rows if row["layer"] == layer) == 1
    assert all(row["correlation"] == 0 for row in rows if row["head"] == row["other"])


def test_the_settings_are_those_of_section_5_1(ask, monkeypatch):
    request = ask("richness")
    request.overrides = ()
    asked = []
    selector = SimpleNamespace(score=lambda: (None, None))
    monkeypatch.setattr(request, "head_selector", lambda config: asked.append(config) or selector)
    names = [names["setting"] for names, _ in request.kind.scores(request)]
    found = {
        name: (
            config.batch_size,
            config.learning_rate,
            {config.max_length, config.scoring.max_length},
            config.scoring.samples,
            config.scoring.warm_steps,
        )
        for name, config in zip(names, asked, strict=True)
    }
    assert found == {
        "ST": (32, 2e-5, {128}, 300, 115),
        "BS": (16, 2e-5, {128}, 300, 115),
        "LR": (32, 5e-5, {128}, 300, 115),
        "SL": (32, 2e-5, {64}, 300, 115),
        "SS": (32, 2e-5, {128}, 1000, 115),
        "PT": (32, 2e-5, {128}, 300, 0),
    }


# The second length is less than the size of a head.
@pytest.mark.parametrize("max_length", [128, 5])
def test_cumulative_fractions_against_numpy(ask, workspace, max_length):
    config = ask("singular-values").config("rte")
    pretrained = pretrained_of(config, workspace)
    encoder = Encoder(pretrained.model)
    examples = single_sequences(examples_of(config, workspace, "train", max_length)[:5])
    pad = padding_values(pretrained.tokenizer)
    fractions = heads.cumulative_fractions(encoder, examples, pad, {1: 2}, batch_size=3)[1]
    for index, example in enumerate(examples):
        ((outputs, _),) = head_outputs(encoder, [collate([example], pad)])
        sigma = np.linalg.svd(outputs[1][0, 2].double().numpy(), compute_uv=False)
        expected = np.ones(HIDDEN // HEADS)
        expected[: len(sigma)] = np.cumsum(sigma) / sigma.sum()
        np.testing.assert_allclose(fractions[index], expected, atol=1e-6)
    rows = compute(ask("singular-values", {"layers": 2}))
    chosen = {row["layer"]: row["head"] for row in rows}
    runner, examples = ask("singular-values").head_selector(config).model_and_examples()
    sequences = single_sequences(examples)
    fractions = heads.cumulative_fractions(encoder, sequences, runner.pad, chosen)
    assert [*chosen] == [0, 1] and {row["t"] for row in rows} == {*range(1, HIDDEN // HEADS + 1)}
    for row in rows:
        of_samples = fractions[row["layer"]][:, row["t"] - 1]
        assert (row["mean"], row["std"]) == pytest.approx((of_samples.mean(), of_samples.std()))


def test_damping_is_for_pagerank(ask):
    with pytest.raises(
        UsageError, match=r"heads.rank=gradient has no damping factor; this figure is for pagerank"
    ):
        compute(
            ask("damping", {"dampings": [0.5]}, ("hifi-layerwise",), (1,), "heads.rank=gradient")
        )


def test_literal_pagerank_is_flat_and_every_ranking_chooses_its_highest_values(ask):
    request = ask("head-ranking")
    values = pd.DataFrame(request.kind.rows(request))
    assert len(values) == 5 * LAYERS * HEADS
    means = values.groupby(["ranking", "layer"])["value"].mean()
    np.testing.assert_allclose(means, 1)
    selection, _ = request.head_selector(request.config("rte")).select()
    chosen = values[values["chosen"] & (values["ranking"] == "pagerank")]
    assert [*chosen.groupby("layer")["head"].agg(list)] == selection.heads
    literal = values[values["ranking"] == "pagerank-literal"].groupby("layer")["value"]
    assert (literal.max() - literal.min()).max() < 1e-4
    for _, of_layer in values[values["ranking"] != "pagerank-literal"].groupby(
        ["ranking", "layer"]
    ):
        highest = of_layer.nlargest(2, "value", keep="all")
        assert {*of_layer[of_layer["chosen"]]["head"]} <= {*highest["head"]}
        assert (of_layer["rank"] <= 2).tolist() == of_layer["chosen"].tolist()


def test_rank_correlations_are_means_over_the_layers_of_what_is_preferred():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 3, 8))
    ranked = [Ranked(values) for values in first]
    lowest = [Ranked(values, lowest_first=True) for values in second]
    taus = [
        -stats.kendalltau(own, other).statistic for own, other in zip(first, second, strict=True)
    ]
    assert heads.rank_correlation(ranked, lowest)["value"] == pytest.approx(np.mean(taus))
    flat = [Ranked(np.ones(8)), *ranked[1:]]  # a layer without an order says nothing
    assert heads.rank_correlation(flat, lowest)["value"] == pytest.approx(np.mean(taus[1:]))
    of_two = heads.rank_correlation(ranked[1:], lowest[1:])["noise"]
    assert (
        heads.rank_correlation(flat, lowest)["noise"] == of_two
    )  # a mean over two layers varies more
    assert np.isnan(heads.rank_correlation(flat[:1], lowest[:1])["value"])
    all_taus = [stats.kendalltau(range(5), order).statistic for order in permutations(range(5))]
    of_five = [Ranked(np.arange(5.0))] * 3
    expected = stats.norm.interval(0.95)[1] * np.std(all_taus) / 3**0.5
    assert heads.rank_correlation(of_five, of_five)["noise"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "scores", [[0.3], [0.1, 0.9], [0.5, 0.5, 0.2], [0.31, 0.62, 0.11, 0.97, 0.62]]
)
def test_expected_best_by_enumerating_every_sample(scores):
    """All N^n equally likely draws of n of the N settings, with replacement."""
    found = sweep.expected_maximum(scores)
    assert found["settings"].tolist() == list(range(1, len(scores) + 1))
    for count, mean, *quartiles in found.itertuples(index=False):
        best = [max(sample) for sample in product(scores, repeat=count)]
        assert mean == pytest.approx(math.fsum(best) / len(best), abs=1e-12)
        assert quartiles == [
            np.quantile(best, share, method="inverted_cdf") for share in (0.25, 0.75)
        ]


@pytest.mark.parametrize("method", ["full-ft", "hifi-layerwise", "lora"])
def test_watching_changes_nothing_and_distances_are_those_of_the_delta(
    ask, make, workspace, method
):
    words = ("report=last", "learning_rate=0.001")
    rows = compute(ask("training-curves", None, (method,), (1,), *words))
    config = make(method, *words, "log_every=1")
    result = runs.run(config, workspace)
    directory = RunDirectory.of(config, workspace.results_dir)
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    assert [row["loss"] for row in rows] == [line["loss"] for line in lines if "loss" in line]
    pretrained = pretrained_of(config, workspace).model.state_dict()
    moved = []
    delta = load_file(directory.delta)
    for name, value in delta.items():
        if not name.startswith("bert.") or "pooler" in name or "lora_A" in name:
            continue
        if "lora_B" in name:
            first = delta[name.replace("lora_B", "lora_A")]
            moved.append(config.settings["alpha"] / config.settings["r"] * value @ first)
        elif name.endswith((".rows", ".row_bias")):
            size = HIDDEN // HEADS
            layer = int(name.split(".")[3])
            rows_of_heads = [head * size + at for head in result.heads[layer] for at in range(size)]
            weight = name.replace("row_bias", "bias").replace("rows", "weight")
            moved.append(value - pretrained[weight][rows_of_heads])
        else:
            moved.append(value - pretrained[name])
    expected = math.sqrt(sum(float(part.double().pow(2).sum()) for part in moved))
    assert expected > 0.01
    assert rows[-1]["distance"] == pytest.approx(expected, rel=1e-5)
    assert rows[-1]["step"] == len(rows) == 12


@pytest.mark.parametrize("method", ["full-ft", "random-parameters"])
def test_gradient_norms_of_head_and_backbone(ask, make, workspace, method):
    rows = compute(ask("training-curves", None, (method,), (1,), "dropout=0.0"))
    config = make(method, "dropout=0.0")
    prepared = prepared_run(config, workspace)
    first = epoch_batches(config, config.batch_size, splits_of(config, workspace).train, 0)[0]
    (prepared.loss(first) / len(first)).backward()
    masks = {}
    if method == "random-parameters":
        masks = prepared.method.chosen.masks
    squares = {"head": 0.0, "backbone": 0.0}
    for name, value in prepared.encoder.model.named_parameters():
        if value.grad is None:
            continue
        part = "head" if "classifier" in name or "pooler" in name else "backbone"
        gradient = value.grad.flatten()
        if f"{name}/mask" in masks:
            bits = np.unpackbits(masks[f"{name}/mask"].numpy(), count=len(gradient))
            gradient = gradient[bits.astype(bool)]
        squares[part] += float(gradient.square().sum())
    for part, square in squares.items():
        assert square > 0
        assert rows[0][f"{part}_gradient"] == pytest.approx(math.sqrt(square), rel=1e-4)


def test_stages_are_measured_at_the_same_steps_and_stage_2_begins_at_the_pretrained_weights(ask):
    rows = compute(
        ask("training-curves", {"every": 4, "stage1_fractions": [0.5]}, ("full-ft", "eh-ft-bitfit"))
    )
    distances = {(row["method"], row["stage"], row["stage_step"]): row["distance"] for row in rows}
    full, two = (
        [("full-ft", 1, step) for step in (1, 4, 8, 12)],
        list(product(["eh-ft-bitfit"], (1, 2), (1, 4, 6))),
    )
    assert [*distances] == [*full, *two] and all(row["loss"] > 0 for row in rows)
    assert {(row["method"], row["stage1_fraction"]) for row in rows} == {
        ("full-ft", 0.0),
        ("eh-ft-bitfit", 0.5),
    }
    assert distances["eh-ft-bitfit", 1, 6] > 0
    first = distances["eh-ft-bitfit", 2, 1]
    assert first == pytest.approx(
        distances["full-ft", 1, 1], abs=1e-9
    )  # the first warm-up step has learning rate 0
    assert distances["eh-ft-bitfit", 2, 6] > first


def test_features_do_not_move_under_linear_probing(ask):
    request = ask("features", None, ("linear-probing",))
    missing = "1 of 1 runs are missing or diverged, the first is rte/linear-probing/seed1"
    with pytest.raises(MissingError, match=missing):
        compute(request)
    (row,) = compute(replace(request, trains_missing_runs=True))
    assert (row["mean"], row["pair"], row["examples"]) == (0, "pretrained-tuned", 48)
    request.kind.draw(pd.DataFrame([row]))  # of one seed
    # A figure of some of its runs, or of a run with other settings in their place, is none.
    of_two_seeds = ask("features", None, ("linear-probing",), (1, 2))
    with pytest.raises(MissingError, match=r"1 of 2 runs are missing .*seed2"):
        compute(of_two_seeds)
    with pytest.raises(MissingError, match="1 of 1 runs are missing"):
        compute(ask("features", None, ("linear-probing",), (1,), "batch_size=4"))


@pytest.mark.parametrize(("words", "epoch"), [((), 1), (("report=last", "variant=last"), 2)])
def test_the_epoch_of_the_measured_model_is_stored(ask, words, epoch):
    words = ("learning_rate=1e-30", "epochs=2", *words)
    settings = {"examples": 7}
    (row,) = compute(ask("features", settings, ("linear-probing",), (1,), *words, train=True))
    assert (row["epoch"], row["examples"]) == (epoch, 7)


def test_distances_of_stages_are_those_of_the_runs_own_models(
    ask, workspace, encoders, tmp_path, monkeypatch
):
    states, begin = [], two_stage.TwoStage.begin_stage2

    def recording(self, encoder):
        states.append(copy.deepcopy(encoder.base.state_dict()))
        begin(self, encoder)

    monkeypatch.setattr(two_stage.TwoStage, "begin_stage2", recording)
    words = ("settings.stage1_fraction=0.5", "stage1.learning_rate=0.01")
    request = ask("features", {"stages": True}, ("lp-ft", "eh-ft-bitfit"), (2,), *words, train=True)
    rows = {(row["method"], row["pair"]): row for row in compute(request)}
    texts = data_of("rte", workspace).rows("train")
    before = first_tokens(encoders["bert"], texts)
    # the states are of the runs; the figure trains each stage 1 again and ends before stage 2
    for cell, state in zip(request.kind.cells(request), states[:2], strict=True):
        between = first_tokens(encoders["bert"], texts, state)
        prepared, _ = workspace.open(workspace.results_dir / cell.config.run_path)
        after = first_tokens(encoders["bert"], texts, prepared.encoder.base.state_dict())
        by_model = {"pretrained": before, "stage1": between, "stage2": after}
        for pair in ("pretrained-stage1", "stage1-stage2", "pretrained-stage2"):
            first, second = (by_model[name] for name in pair.split("-"))
            distances = (second - first).double().norm(dim=1)
            row = rows[cell.config.method, pair]
            assert row["mean"] == pytest.approx(float(distances.mean()), rel=1e-4)
            assert row["std"] == pytest.approx(float(distances.std(correction=0)), rel=1e-3)
    assert rows["lp-ft", "pretrained-stage1"]["mean"] == 0 < rows["lp-ft", "stage1-stage2"]["mean"]
    assert rows["eh-ft-bitfit", "pretrained-stage1"]["mean"] > 0.01


def test_the_features_of_a_decoder_are_those_of_the_last_token():
    encoder = Encoder(random_encoder("qwen2"))
    texts = [np.array(text) for text in ([3, 5, 7], [4, 6], [8, 3, 5, 9])]
    row = Row("0", (("a",),), 0)
    examples = [EncodedExample(row, ({"input_ids": text},)) for text in texts]
    found = models.features(encoder, examples, {"input_ids": 0})
    with torch.inference_mode():
        states = [
            encoder.base(torch.from_numpy(text)[None]).last_hidden_state[0, -1] for text in texts
        ]
    np.testing.assert_allclose(found, torch.stack(states), atol=1e-5)


def test_a_sweep_reads_the_scores_of_its_own_variants(ask, workspace, tmp_path):
    words = ("epochs=1", "batch_size=8", "scoring.samples=12")
    request = ask("sweep", {"key": "heads.k", "values": [1, 2]}, seeds=(1, 2), train=True)
    request = replace(request, overrides=words)
    rows = {(row["x"], row["seed"]): row for row in compute(request)}
    for k in (1, 2):
        names = {"method": "hifi-layerwise", "variant": f"heads.k={k}"}
        run = run_folder(workspace.results_dir, **names, seed=2)
        result = json.loads((run / "results.json").read_text())
        assert rows[k, 2]["score"] == result["scores"]["best"]
        trained = LAYERS * k * 3 * (HIDDEN // HEADS) * (HIDDEN + 1)
        assert rows[k, 2]["trained_share"] == trained / result["params"]["total"]


@pytest.mark.parametrize("word", ["batch_size=8", "epochs=4"])
def test_stage_2_keeps_its_epochs(ask, word):
    settings = {"key": "settings.stage1_fraction", "values": [0.5], "keep_stage2": True}
    request = replace(ask("sweep", settings, ("eh-ft-bitfit",)), overrides=(word,))
    (cell,) = request.kind.cells(request)
    plain = request.config("rte", "eh-ft-bitfit").epochs
    assert cell.config.epochs == round(1.5 * plain) and f"epochs--{cell.config.epochs}" in str(
        cell.config.run_path
    )
    assert cell.config.epochs * (1 - cell.config.settings["stage1_fraction"]) == pytest.approx(
        plain, abs=0.5
    )


def test_the_map_shows_what_the_head_makes_of_the_pretrained_features(ask, workspace, encoders):
    words = ("task_head.kind=mlp", "task_head.width=16")
    request = ask("tsne", {"perplexity": 5}, ("full-ft",), (1, 2), *words)
    words = (*words, "settings.stage1_fraction=0.5", "stage1.learning_rate=0.01")
    trained = ask("tsne", {"perplexity": 5}, ("eh-ft-bitfit",), (1, 2), *words)
    data = pd.DataFrame([*request.kind.rows(request), *trained.kind.rows(trained)])
    groups = data.groupby(["head", "seed", "split"])
    # seed 2 has no map
    assert (
        groups["x"].agg(["size", "count"]).to_numpy().tolist()
        == [[24] * 2, [48] * 2, [1, 0], [1, 0]] * 2
    )
    assert groups["silhouette"].nunique().eq(1).all() and data["silhouette"].nunique() == 8
    # BitFit trains the backbone too, and its head reads the pretrained one all the same.
    task_heads = {
        "Random": encoder_of(request.config("rte"), workspace).model.task_head,
        "BitFit": figure.train(trained.config("rte"), trained, until_last_stage=True)
        .encoder.model.cpu()
        .task_head,
    }
    names = task_spec.load("rte").labels
    for split, shown_as in (("train", "train"), ("validation", "dev")):
        rows = data_of("rte", workspace).rows(split)
        labels = np.array([row.label for row in rows])
        read_by_heads = first_tokens(encoders["bert"], rows)
        for name, head in task_heads.items():
            with torch.no_grad():
                hidden = head.activation(head.hidden(read_by_heads))
                predicted = head.output(hidden).argmax(-1).numpy()
            shown = groups.get_group((name, 1, shown_as))
            first = shown.iloc[0]
            assert first["score"] == np.mean(predicted == labels)
            assert first["silhouette"] == pytest.approx(silhouette_score(hidden, labels), abs=1e-5)
            assert shown["label"].tolist() == [names[label] for label in labels]
    with pytest.raises(UsageError, match=r"task_head.kind=mlp"):
        compute(ask("tsne"))
    one_class = compute(ask("tsne", {"examples": 1}, ("full-ft",), (1,), *words[:2]))
    assert [row["silhouette"] for row in one_class] == [None, None]


def test_a_class_has_one_colour_where_a_panel_lacks_another():
    row = {"task": "cb", "head": "Random", "seed": 1, "score": 0.5, "metric": "accuracy"}
    labels = [("train", "a"), ("train", "b"), ("train", "c"), ("dev", "a"), ("dev", "c")]
    rows = [
        {**row, "split": split, "label": label, "silhouette": 0.1, "x": 0.0, "y": 0.0}
        for split, label in labels
    ]
    figure = Tsne().draw(pd.DataFrame(rows))
    colours = [{line.get_label(): line.get_color() for line in ax.lines} for ax in figure.axes]
    assert colours[0] == colours[1] and [*colours[0]] == ["a", "b", "c"]
