"""Rankings that are measured on the model, against finite differences, weights changed by hand and loops over tokens."""

import json
from itertools import product
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from prepared_models import encoder_of, examples_of, pretrained_of
from tiny_inputs import HEADS, LAYERS, random_encoder

from hifi_cli.config.run_config import MeasuredRanking
from hifi_cli.errors import UsageError
from hifi_cli.heads import measures as head_measures
from hifi_cli.heads.ranking import rank_heads, select_top_heads
from hifi_cli.heads.scores import head_outputs
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import FAMILIES
from hifi_cli.runs.head_files import HeadSelection
from hifi_cli.runs.heads import HeadSelector
from hifi_cli.runs.workspace import Workspace
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.encode import padding_values
from hifi_cli.tasks.task_spec import EncodedExample, Row
from hifi_cli.training.runner import ModelRunner

LENGTHS, LABELS = [7, 4, 5], [1, 0, 1]
every_family = pytest.mark.parametrize("family", FAMILIES)


def random_model(family, **settings):
    """A random classifier in float64, whose heads differ enough that rounding does not decide."""
    encoder = Encoder(random_encoder(family, **settings).double())
    encoder.unfuse_qkv()
    return encoder


def batch_of(examples):
    """Texts of random tokens that end in a separator (2), padded, by their numbers."""
    width = max(LENGTHS[example] for example in examples)
    ids, mask = (
        torch.zeros(len(examples), width, dtype=torch.long),
        torch.zeros(len(examples), width, dtype=torch.long),
    )
    for row, example in enumerate(examples):
        text = torch.randint(
            5, 28, (LENGTHS[example],), generator=torch.Generator().manual_seed(example)
        )
        text[-1] = text[2] = 2
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
    return {"input_ids": ids, "attention_mask": mask}


def losses(model, examples):
    logits = model(**batch_of(examples)).logits
    return torch.nn.functional.cross_entropy(
        logits, torch.tensor([LABELS[example] for example in examples]), reduction="none"
    )


def runner_of(encoder):
    """What the measures use of a ModelRunner, in float64, which the real one rounds its logits from."""
    return SimpleNamespace(
        task=task_spec.load("rte"),
        encoder=encoder,
        loss=lambda examples: losses(encoder.model, examples).sum(),
    )


def scaled_losses(encoder, layer, head, factor):
    """The loss of every example with a head's output times `factor`: W_O's columns of that head are multiplied by hand."""
    weight, columns = (
        encoder.model.get_submodule(encoder.module_path(layer, "output")).weight,
        encoder.head_rows(head),
    )
    before = weight.detach().clone()
    with torch.no_grad():
        weight[:, columns.start : columns.stop] *= factor
        changed = losses(encoder.model, [0, 1, 2])
        weight.copy_(before)
    return changed


@every_family
def test_gradients_are_finite_differences_of_the_mask_and_ablation_is_the_loss_without_the_heads_columns(
    family,
):
    encoder = random_model(family)
    gradients, increases = (
        head_measures.gradient(runner_of(encoder), [0, 1, 2]),
        head_measures.ablation(runner_of(encoder), [0, 1, 2]),
    )
    computes_in_float32 = encoder.is_causal or family in (
        "modernbert",
        "eurobert",
        "ultrabert",
    )  # rotary positions, RMSNorm
    step, tolerance = (3e-3, 2e-3) if computes_in_float32 else (1e-5, 1e-5)
    for layer, head in np.ndindex(LAYERS, HEADS):
        up, down, without, whole = (
            scaled_losses(encoder, layer, head, factor) for factor in (1 + step, 1 - step, 0, 1)
        )
        expected = (
            ((up - down) / (2 * step)).abs().mean()
        )  # of each example first: the mean of the signed ones is smaller
        torch.testing.assert_close(
            gradients[layer, head], expected, rtol=tolerance, atol=tolerance * 1e-4
        )
        torch.testing.assert_close(
            increases[layer, head], (without - whole).mean(), rtol=1e-10, atol=1e-12
        )
    assert float(gradients.std()) > 1e-3 and float(increases.std()) > 1e-4
    assert not encoder.model.get_submodule(encoder.module_path(0, "output"))._forward_pre_hooks


@pytest.mark.parametrize(
    ("family", "settings"),
    [("bert", {}), ("modernbert", {}), ("qwen3", {"num_key_value_heads": 2})],
)
def test_fisher_is_the_mean_squared_gradient_of_each_example(family, settings):
    """Also without biases, and where two heads share keys and values."""
    encoder = random_model(family, **settings)
    values, expected = (
        head_measures.fisher(runner_of(encoder), [0, 1, 2]),
        torch.zeros(LAYERS, HEADS, dtype=torch.float64),
    )
    for example in range(3):
        encoder.model.zero_grad()
        losses(encoder.model, [example]).sum().backward()
        for (layer, head), part in product(np.ndindex(LAYERS, HEADS), ("query", "key", "value")):
            for parameter in encoder.model.get_submodule(
                encoder.module_path(layer, part)
            ).parameters():
                expected[layer, head] += (
                    parameter.grad[encoder.head_rows(head, part)].square().sum() / 3
                )
    torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-14)


def by_hand(attention, lengths, value):
    """A value of each token's attention probabilities over the real tokens, averaged by loops: [heads]."""
    of_samples = [
        [
            np.mean([value(attention[s, h, token, :length].numpy(), s) for token in range(length)])
            for h in range(HEADS)
        ]
        for s, length in enumerate(lengths)
    ]
    return np.mean(of_samples, 0)


@every_family
def test_confidence_entropy_and_norm_are_those_of_the_eager_attention_over_real_tokens(family):
    encoder, batch = random_model(family), batch_of([0, 1, 2])
    encoder.model.float()  # the eager attention of float64 gives NaN for a padding token far from all real ones
    separators = (batch["input_ids"] == 2) * (not encoder.is_causal)
    texts = [ids[:length].numpy() for ids, length in zip(batch["input_ids"], LENGTHS, strict=True)]
    examples = [
        EncodedExample(Row(str(n), (), 0), ({"input_ids": ids},)) for n, ids in enumerate(texts)
    ]
    runner = SimpleNamespace(encoder=encoder, pad={"input_ids": 0})
    usual_attention = encoder.base.config._attn_implementation
    measured = {
        measure: measure(runner, examples)
        for measure in (head_measures.confidence, head_measures.entropy, head_measures.output_norm)
    }
    ((outputs, _),) = head_outputs(encoder, [batch])
    # The measures leave the encoder's attention as it was.
    assert encoder.base.config._attn_implementation == usual_attention
    with torch.no_grad(), encoder.attention_replaced("eager"):
        attentions = encoder.base(**batch, output_attentions=True).attentions
    for layer in range(LAYERS):
        largest = by_hand(
            attentions[layer], LENGTHS, lambda p, s: max(p[~separators[s, : len(p)].numpy()])
        )
        in_nats = by_hand(
            attentions[layer], LENGTHS, lambda p, _: -sum(p[p > 0] * np.log(p[p > 0]))
        )
        norms = [
            outputs[layer][s, :, :length].norm(dim=-1).mean(-1).numpy()
            for s, length in enumerate(LENGTHS)
        ]
        for values, expected in zip(
            measured.values(), (largest, in_nats, np.mean(norms, 0)), strict=True
        ):
            np.testing.assert_allclose(values[layer], expected, rtol=1e-5)


# One ranking with gradients and one without are often tested on every kind of task.
RANKINGS_AND_TASKS = [
    pytest.param(
        rank,
        task,
        marks=() if task == "rte" or rank in ("gradient", "entropy") else pytest.mark.slow,
    )
    for rank, task in product(
        get_args(MeasuredRanking), ("rte", "stsb", "swag", "squad", "demo-roles")
    )
]


@pytest.mark.parametrize(("rank", "task"), RANKINGS_AND_TASKS)
def test_every_kind_of_task_is_measured_and_batches_do_not_matter(
    make, data, task_kinds_data, tmp_path, rank, task
):
    workspace = Workspace(
        tmp_path / "results", task_kinds_data if task in ("swag", "squad") else data
    )
    config = make(task=task)
    encoder = encoder_of(config, workspace)
    pretrained = pretrained_of(config, workspace)
    runner = ModelRunner(
        encoder,
        task_spec.load(task),
        config,
        padding_values(pretrained.tokenizer),
        torch.device("cpu"),
    )
    examples = examples_of(config, workspace, "train", 32)[:5]
    together, alone = (
        head_measures.measure_heads(head_measures.MEASURES[rank], runner, examples, batch_size)
        for batch_size in (3, 1)  # of three and two examples
    )
    assert together.shape == (LAYERS, HEADS) and float(together.std()) > 0
    rounding = (
        1e-5 if task == "demo-roles" else 1e-6
    )  # of a float32 sum over examples, or over all of their words
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=rounding)


def test_a_measured_ranking_prefers_the_highest_values_and_is_measured_once(
    tiny, make, workspace, tmp_path
):
    assert tiny("select heads.rank=gradient heads.k=2 scoring.samples=12").code == 0
    (heads,) = (tmp_path / "results" / "heads").rglob("*.json")
    selection = HeadSelection.read(heads)
    assert selection.heads == [
        sorted(np.argsort(-np.array(layer))[:2].tolist()) for layer in selection.values
    ]
    (stored,) = (tmp_path / "results" / "scores").rglob("gradient-*.json")
    content, written = json.loads(stored.read_text()), stored.stat().st_mtime_ns
    assert (content["rank"], content["samples"], content["values"]) == (
        "gradient",
        12,
        selection.values,
    )
    assert tiny("select heads.rank=gradient heads.k=1 scoring.samples=12").code == 0
    assert stored.stat().st_mtime_ns == written
    stored.write_text(stored.read_text().replace('"samples": 12', '"samples": "12"'))
    assert (
        tiny("select heads.rank=gradient heads.k=2 scoring.samples=12").code == 0
    )  # damaged: measured again
    assert json.loads(stored.read_text()) | {"provenance": 0} == content | {"provenance": 0}


def test_all_seeds_tune_the_same_measured_heads_and_another_task_head_others(make, workspace):
    selections = [
        HeadSelector.of(make("hifi-gradient", seed=seed), workspace).select()[0] for seed in (1, 2)
    ]
    assert selections[0] == selections[1]
    drawn_again = HeadSelector.of(make("hifi-gradient", "scoring.seed=1"), workspace).select()[0]
    assert drawn_again.values != selections[0].values


def test_a_measured_ranking_needs_the_model_and_the_first_heads_nothing():
    richness, correlation = np.ones((2, 4)), np.ones((2, 4, 4))
    with pytest.raises(UsageError, match="fisher is measured on the model"):
        rank_heads(richness, correlation, rank="fisher")
    assert (
        select_top_heads(rank_heads(richness, correlation, rank="first"), 3).heads
        == [[0, 1, 2]] * 2
    )
