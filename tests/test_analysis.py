"""The numbers behind the figures, against independent computations."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import spearmanr
from tiny_inputs import HEADS, HIDDEN, LAYERS
from transformers import AutoModel, AutoTokenizer

from hifi_cli.config import figure_spec
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.figures import damping, figure, head_ranking, richness, singular_values, training_curves, tsne
from hifi_cli.heads import select as head_selection
from hifi_cli.models.encoder import Encoder
from hifi_cli.results.directory import RunDirectory
from hifi_cli.results.export import write_hf
from hifi_cli.results.reload import reload
from hifi_cli.tasks.encode import padding_values, single_sequences, training_order
from hifi_cli.training import run as runs
from hifi_cli.training.data import load_splits
from hifi_cli.training.run import prepare

pytestmark = pytest.mark.slow


def compute(request):
    """The rows of a figure whose runs are finished; None where there is no number."""
    data = request.module.compute(request)
    return data.astype(object).where(data.notna(), None).to_dict("records")


def hidden_states(directory, rows):
    """Every example's last hidden states by transformers alone."""
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    with torch.inference_mode():
        return [model(**tokenizer(*row.sequences[0], return_tensors="pt")).last_hidden_state[0] for row in rows]


def test_richness_and_correlation_rows_are_the_scores(ask, resources):
    rows = compute(ask("richness", {"warm_steps": 2, "variants": ["ST", "SL"]}))
    assert len(rows) == 2 * LAYERS * HEADS
    stored = richness.head_scores(ask("richness", {"warm_steps": 2}), "rte", "SL")
    result = {(row["layer"], row["head"]): row["mean"] for row in rows if row["setting"] == "SL"}
    assert result == {(layer, head): stored.richness[layer][head] for layer in range(LAYERS) for head in range(HEADS)}
    rows = compute(ask("correlation", {"warm_steps": 2, "variants": ["ST"]}))
    for layer in range(LAYERS):
        inside = [row for row in rows if row["layer"] == layer]
        assert max(row["normalized"] for row in inside) == 1
        assert all(row["correlation"] == 0 for row in inside if row["head"] == row["other"])


def test_the_five_settings_are_the_papers(ask):
    request = replace(ask("richness"), overrides=())  # the tests' own samples and batch size would have the last word

    def config(name):
        return request.config("rte", extra={**richness.STANDARD, "scoring.warm_steps": 2, **richness.VARIANTS[name][0]})

    standard = config("ST")
    assert (standard.batch_size, standard.learning_rate, standard.scoring.max_length, standard.scoring.samples) == (
        32,
        2e-5,
        128,
        300,
    )
    assert config("BS").batch_size == 16
    assert config("LR").learning_rate == 5e-5
    assert config("SL").scoring.max_length == 64
    assert config("SS").scoring.samples == 1000
    assert config("PT").scoring.warm_steps == 0


def test_robustness_against_scipy_and_itself(ask):
    same = compute(ask("robustness", {"warm_steps": 0, "variants": ["ST", "BS"]}))
    assert {round(row["value"], 12) for row in same} == {1.0}  # batch size does not act on a forward pass
    arguments = ask("robustness", {"warm_steps": 6, "variants": ["PT", "LR"]}, ("hifi-layerwise",), (1,), "learning_rate=5e-3")
    rows = compute(arguments)
    pretrained_scores, other = (richness.head_scores(arguments, "rte", name) for name in ("PT", "LR"))
    for layer in range(LAYERS):
        result = {row["measure"]: row["value"] for row in rows if row["layer"] == layer}
        assert result["richness"] == pytest.approx(
            spearmanr(pretrained_scores.richness[layer], other.richness[layer]).statistic
        )
    assert any(row["value"] < 1 for row in rows)


def test_cumulative_fractions_against_numpy(ask, resources, encoders):
    request = ask("singular-values", {"layers": 2})
    config = request.config("rte")
    pretrained = resources.pretrained(config)
    encoder = Encoder(pretrained.model)
    examples = single_sequences(resources.examples(config, "train", 128)[:5])
    fractions = singular_values.cumulative_fractions(
        encoder, examples, padding_values(pretrained.tokenizer), {1: 2}, batch_size=3
    )[1]
    for index, example in enumerate(examples):
        kept = []
        handle = encoder.output_projection(1).register_forward_pre_hook(lambda _, inputs, kept=kept: kept.append(inputs[0]))
        with torch.no_grad():
            encoder.base(**{name: torch.tensor(values)[None] for name, values in example.sequences[0].items()})
        handle.remove()
        size = HIDDEN // HEADS
        sigma = np.linalg.svd(kept[0][0, :, 2 * size : 3 * size].double().numpy(), compute_uv=False)
        expected = np.ones(size)
        expected[: len(sigma)] = np.cumsum(sigma) / sigma.sum()
        np.testing.assert_allclose(fractions[index], expected, atol=1e-6)
    rows = compute(ask("singular-values", {"layers": 2}))
    assert {row["layer"] for row in rows} == {0, 1}
    assert max(row["mean"] for row in rows) == pytest.approx(1)


def test_damping_counts_the_rankings_own_iterations(ask, resources):
    arguments = ask("damping", {"dampings": [0.1, 0.9], "repeats": 1})
    rows = compute(arguments)
    result, _ = head_selection.scores(arguments.config("rte"), resources)
    for row in rows:
        layer = row["layer"]
        ranked = damping.RANKINGS["pagerank"](
            result.richness_array[layer], result.correlation_array[layer], row["damping"], 1e-6
        )
        assert row["iterations"] == ranked.iterations
        assert row["seconds"] > 0


@pytest.mark.parametrize("rank", ["random", "gradient", "richness"])
def test_a_ranking_without_damping_factor_is_refused(ask, rank):
    with pytest.raises(UsageError, match=f"heads.rank={rank} has no damping factor; this figure requires one of pagerank, "):
        compute(ask("damping", {"dampings": [0.5]}, ("hifi-layerwise",), (1,), f"heads.rank={rank}"))


def test_literal_pagerank_is_flat_and_transposed_pagerank_ignores_richness(ask):
    rng = np.random.default_rng(0)
    correlation = rng.random((12, 12))
    correlation = correlation + correlation.T
    np.fill_diagonal(correlation, 0)
    richness, k, d, epsilon = rng.random(12) + 1, 3, 0.5, 1e-9
    values = head_ranking.value_rows(head_ranking.RANKINGS["pagerank-literal"](richness, correlation, d, epsilon), k)
    assert np.ptp([row["value"] for row in values]) < 1e-6

    def overlaps(richness):
        rows = head_ranking.overlap_rows(richness, correlation, d, epsilon, k)
        return {(row["ranking"], row["with"]): row["value"] for row in rows}

    top = set(np.argsort(-correlation.sum(1))[:k])
    google = np.linalg.solve(np.eye(12) - 0.5 * (correlation / correlation.sum(1, keepdims=True)).T, np.full(12, 0.5 / 12))
    expected = len(top & set(np.argsort(-google)[:k]))
    assert overlaps(richness)["pagerank", "correlation"] == expected
    assert overlaps(rng.random(12) + 1)["pagerank", "correlation"] == expected
    rows = compute(ask("head-ranking", {"dampings": [0.5]}))
    assert sum(row["panel"] == "values" for row in rows) == 5 * LAYERS * HEADS
    assert sum(row["panel"] == "overlap" for row in rows) == 3 * 2 * LAYERS
    assert all(
        sum(row["chosen"] for row in rows if row["panel"] == "values" and (row["ranking"], row["layer"]) == key) == 2
        for key in {(row["ranking"], row["layer"]) for row in rows if row["panel"] == "values"}
    )


def test_watching_changes_nothing_and_distances_are_those_of_the_delta(ask, make, resources):
    rows = compute(ask("training-curves", None, ("full-ft",), (1,), "report=last"))
    config = make("full-ft", "report=last", "log_every=1")
    runs.run(config, resources)
    directory = RunDirectory.of(config, resources.results_dir)
    lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    assert [row["loss"] for row in rows] == [line["loss"] for line in lines if "loss" in line]
    pretrained = resources.pretrained(config).model.state_dict()
    delta = load_file(directory.delta)
    backbone = [name for name in delta if name.startswith("bert.") and "pooler" not in name]
    expected = math.sqrt(sum(float((delta[name] - pretrained[name]).double().pow(2).sum()) for name in backbone))
    assert rows[-1]["distance"] == pytest.approx(expected, rel=1e-6)
    assert rows[-1]["step"] == len(rows) == 12


def test_gradient_norms_of_head_and_backbone(ask, make, resources):
    rows = compute(ask("training-curves", None, ("full-ft",), (1,), "dropout=0.0"))
    config = make("full-ft", "dropout=0.0")
    prepared = prepare(config, resources)
    train = load_splits(config, resources).train
    first = training_order(
        [len(example) for example in train], config.batch_size, strategy="random", seed=config.seed, epoch=0
    )[0]
    prepared.encoder.model.train()
    (prepared.runner.loss([train[index] for index in first]) / len(first)).backward()
    parts = {True: 0.0, False: 0.0}
    for name, parameter in prepared.encoder.model.named_parameters():
        if parameter.grad is not None:
            parts["classifier" in name or "pooler" in name] += float(parameter.grad.double().pow(2).sum())
    assert rows[0]["head_gradient"] == pytest.approx(math.sqrt(parts[True]), rel=1e-4)
    assert rows[0]["backbone_gradient"] == pytest.approx(math.sqrt(parts[False]), rel=1e-4)


def test_stage_2_begins_at_the_pretrained_weights(ask):
    rows = compute(ask("training-curves", {"stage1_fractions": [0.25, 0.5]}, ("full-ft", "eh-ft-bitfit")))
    assert {row["stage1_fraction"] for row in rows} == {0.0, 0.25, 0.5}
    half = [row for row in rows if row["stage1_fraction"] == 0.5]
    assert [row["stage"] for row in half] == [1] * 6 + [2] * 6
    assert [row["stage_step"] for row in half] == [*range(1, 7), *range(1, 7)]
    full = [row for row in rows if row["stage1_fraction"] == 0.0]
    assert half[5]["distance"] > 0
    assert half[6]["distance"] == pytest.approx(full[0]["distance"], abs=1e-9)  # the first warm-up step has learning rate 0
    assert half[-1]["distance"] > half[6]["distance"]


def test_methods_are_measured_at_the_same_steps_of_their_stages(ask):
    rows = compute(ask("training-curves", {"every": 4, "stage1_fractions": [0.5]}, ("full-ft", "eh-ft-bitfit")))
    steps = {(row["method"], row["stage"]): [] for row in rows}
    for row in rows:
        steps[row["method"], row["stage"]].append(row["stage_step"])
    assert steps == {("full-ft", 1): [1, 4, 8, 12], ("eh-ft-bitfit", 1): [1, 4, 6], ("eh-ft-bitfit", 2): [1, 4, 6]}


def test_features_do_not_move_under_linear_probing_and_move_as_transformers_says(ask, make, resources, encoders, tmp_path):
    with pytest.raises(MissingError, match=r"2 of 2 runs are missing: hifi train --task rte --method linear-probing "):
        figure.compute(ask("features", None, ("linear-probing", "full-ft")), tmp_path / "x.csv")
    request = ask("features", None, ("linear-probing", "full-ft"), train=True)
    figure.compute(request, tmp_path / "x.csv")
    rows = {row["method"]: row for row in compute(request)}
    assert rows["linear-probing"]["mean"] == 0
    config = make("full-ft")
    with reload(RunDirectory.of(config, resources.results_dir).path, resources) as (prepared, _):
        write_hf(prepared, tmp_path / "plain")
    texts = resources.rows("rte").rows("train")
    before, after = (
        torch.stack([states[0] for states in hidden_states(where, texts)]) for where in (encoders["bert"], tmp_path / "plain")
    )
    assert rows["full-ft"]["mean"] == pytest.approx(float((after - before).norm(dim=1).mean()), rel=1e-4)
    assert rows["full-ft"]["mean"] > 0.01


def test_runs_without_weights_are_trained_again_if_a_figure_reads_weights(ask, resources, tmp_path):
    """Results without weights still give a figure that was computed before."""
    methods = ("linear-probing", "bitfit")
    figure.compute(ask("features", None, methods, train=True), tmp_path / "x.csv")
    numbers = (tmp_path / "x.csv").read_bytes()
    request = ask("features", None, methods)
    kept, lost = (cell.run_directory(resources.results_dir) for cell in request.cells())
    result, unchanged = lost.read_result(), kept.results.read_bytes()
    lost.delta.unlink()
    figure.compute(request, tmp_path / "x.csv")
    (again,) = request.missing_commands()
    assert "bitfit" in again and "--force" in again
    with pytest.raises(
        MissingError, match=r"1 of 2 runs are missing or have no weights: hifi train .* --force.*--train trains"
    ):
        figure.compute(request, tmp_path / "x.csv", force=True)
    figure.compute(ask("features", None, methods, train=True), tmp_path / "x.csv", force=True)
    assert lost.read_result().delta_sha256 == result.delta_sha256 and kept.results.read_bytes() == unchanged
    assert (tmp_path / "x.csv").read_bytes() == numbers


def test_runs_on_the_same_examples_share_the_features_of_the_pretrained_encoder(ask, monkeypatch, tmp_path):
    words = ("epochs=1", "batch_size=8")
    request = replace(ask("features", None, ("linear-probing", "bitfit"), train=True), overrides=words)
    lengths, features = [], request.module.features
    monkeypatch.setattr(request.module, "features", lambda *args: lengths.append(len(args[1])) or features(*args))
    figure.compute(request, tmp_path / "x.csv")
    assert len(lengths) == 3, "once for the pretrained encoder, then once per run"
    lengths.clear()
    spec = request.spec.model_copy(update={"seeds": [1, 2]})
    figure.compute(replace(request, overrides=(*words, "shots=2"), spec=spec), tmp_path / "few.csv")
    assert len(lengths) == 8, "each seed has other examples"


def test_the_epoch_of_the_measured_model_is_named(ask, tmp_path):
    for words, epoch, note in (
        (
            ("learning_rate=1e-30", "epochs=2"),
            1,
            "the model of the epoch with the best validation score (Linear probing 1); for the",
        ),
        (("learning_rate=1e-30", "epochs=2", "report=last", "variant=last"), 2, "the model of the last epoch"),
    ):
        path = tmp_path / f"{epoch}.csv"
        figure.compute(ask("features", None, ("linear-probing",), (1,), *words, train=True), path)
        assert pd.read_csv(path)["epoch"].tolist() == [epoch] and figure_spec.read_record(path).notes[0].startswith(note)


def test_a_sweep_reads_the_scores_of_its_own_variants(ask, resources, tmp_path):
    request = ask("sweep", {"key": "heads.k", "values": [1, 2]}, seeds=(1, 2), train=True)
    request = replace(request, overrides=("epochs=1", "batch_size=8", "scoring.samples=12"))
    commands = request.missing_commands()
    assert len(commands) == 4 and "heads.k=1" in commands[0]
    figure.compute(request, tmp_path / "k.csv")
    rows = {(row["x"], row["seed"]): row for row in compute(request)}
    for k in (1, 2):
        result = json.loads(
            (resources.results_dir / f"runs/hifi/tiny-bert/rte/hifi-layerwise/heads.k--{k}/seed2/results.json").read_text()
        )
        assert rows[k, 2]["score"] == result["scores"]["best"]
        trained = LAYERS * k * 3 * (HIDDEN // HEADS) * (HIDDEN + 1)
        assert rows[k, 2]["trained_share"] == trained / result["params"]["total"]


def test_stage_2_keeps_its_epochs(ask):
    request = ask("sweep", {"key": "settings.stage1_fraction", "values": [0.5], "keep_stage2": True}, ("eh-ft-bitfit",))
    for words in (("batch_size=8",), ("epochs=4",)):
        request = replace(request, overrides=words)
        (cell,) = request.cells()
        plain = request.config("rte", "eh-ft-bitfit").epochs
        assert cell.config.epochs == round(1.5 * plain) and f"epochs--{cell.config.epochs}" in str(cell.run_path)
        assert cell.config.epochs * (1 - cell.config.settings["stage1_fraction"]) == pytest.approx(plain, abs=0.5)


def test_hidden_features_make_the_logits_and_only_the_head_is_trained(ask, resources):
    words = ("task_head.kind=mlp", "task_head.width=16", "settings.stage1_fraction=0.5")
    request = ask("tsne", {"perplexity": 5}, ("lp-ft",), (1,), *words)
    config = request.config("rte")
    runner = tsne.with_trained_head(config, resources)
    examples = resources.examples(config, "train", 128)[:7]
    hidden, logits = tsne.hidden_features(runner, examples)
    output = runner.encoder.model.task_head.output
    np.testing.assert_allclose(hidden @ output.weight.detach().numpy().T + output.bias.detach().numpy(), logits, atol=1e-5)
    pretrained = resources.pretrained(config)
    for name, parameter in runner.encoder.model.named_parameters():
        assert torch.equal(parameter, pretrained.model.get_parameter(name)) == (not name.startswith("task_head.")), name
    expected = torch.stack([states[0] for states in hidden_states(config.backbone.path, [example.row for example in examples])])
    head = runner.encoder.model.task_head.hidden
    np.testing.assert_allclose(hidden, head(expected).detach().numpy(), atol=1e-5)
    rows = compute(ask("tsne", {"perplexity": 5}, ("lp-ft",), (1,), *words))
    assert {row["split"] for row in rows} == {"train", "dev"}
    assert len(rows) == 48 + 24
    more = compute(ask("tsne", {"perplexity": 5}, ("lp-ft",), (1, 2), *words))
    assert more[:-2] == rows, "seeds after the first have no map"
    assert [(row["seed"], row["split"], row["x"], row["label"]) for row in more[-2:]] == [
        (2, "train", None, None),
        (2, "dev", None, None),
    ]
    assert more[-1]["silhouette"] != rows[-1]["silhouette"]


def test_tsne_refuses_a_head_without_hidden_layer(ask):
    with pytest.raises(UsageError, match=r"task_head.kind=mlp"):
        compute(ask("tsne"))


def test_the_csv_is_the_cache_of_one_figure(ask, tmp_path, caplog):
    path = tmp_path / "figures" / "f.csv"
    figure.compute(ask("damping", {"dampings": [0.5]}), path)
    first = path.stat().st_mtime_ns
    request = ask("damping", {"dampings": [0.5]})
    figure.compute(replace(request, spec=request.spec.model_copy(update={"note": "another word"})), path)
    assert path.stat().st_mtime_ns == first
    assert "computed before" in caplog.text
    stored = json.loads(path.with_suffix(".json").read_text())
    assert stored["note"] == "another word" and stored["notes"] and stored["hifi"]
    assert stored["backbone"] == "tiny-bert" and stored["tasks"] == ["rte"]
    figure.compute(request, path, force=True)
    again = path.stat().st_mtime_ns
    assert again > first
    figure.compute(ask("damping", {"dampings": [0.5]}, ("hifi-layerwise",), (1,), "heads.epsilon=1e-3"), path)
    assert path.stat().st_mtime_ns > again, "another setting is another figure"
    path.with_suffix(".json").unlink()
    figure.compute(ask("damping", {"dampings": [0.5, 0.6]}), path)
    assert {*pd.read_csv(path)["damping"]} == {0.5, 0.6}, "a CSV without its record is computed again"


def test_unknown_kinds_and_settings_are_refused(ask, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nkind: dampin\ntasks: [rte]\nbackbone: demo\n")
    with pytest.raises(UsageError, match="kind: Input should be 'correlation', 'damping'"):
        figure_spec.load(str(path))
    with pytest.raises(UsageError, match="unknown key 'damping'"):
        ask("damping", {"damping": 1})


def test_norm_and_distance_by_hand():
    assert training_curves.norm([torch.tensor([3.0]), None, torch.tensor([[4.0]])]) == 5
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
    assert training_curves.distance_from({"weight": torch.zeros(1, 2)}, model) == 5
