"""Richness and correlation against numpy, one sample and one head at a time."""

import numpy as np
import pytest
import torch
from prepared_models import examples_of, pretrained_of

from hifi_cli.errors import UsageError
from hifi_cli.heads.scores import head_correlation, information_richness, score_examples
from hifi_cli.models.encoder import Encoder
from hifi_cli.runs.heads import HeadSelector
from hifi_cli.tasks.encode import collate, padding_values


def random_outputs(samples=6, heads=5, tokens=11, size=8, seed=0):
    """Outputs with spectra that fall off, and samples of different length."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(samples, heads, tokens, size, generator=generator) * torch.logspace(
        0, -4, size
    )
    lengths = torch.randint(2, tokens + 1, (samples,), generator=generator)
    return outputs, torch.arange(tokens)[None] < lengths[:, None]


def numpy_richness(matrix, xi):
    sigma = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    share = np.cumsum(sigma) / sigma.sum()
    return int(np.argmax(share >= xi)) + 1


@pytest.mark.parametrize("xi", [0.5, 0.9, 0.999, 0.99999])
@pytest.mark.parametrize(("tokens", "size"), [(11, 8), (5, 16)])
def test_richness_is_numpys(xi, tokens, size):
    outputs, real = random_outputs(tokens=tokens, size=size)
    measured = information_richness(outputs, real, xi)
    for sample in range(len(outputs)):
        for head in range(outputs.shape[1]):
            expected = numpy_richness(outputs[sample, head][real[sample]].numpy(), xi)
            assert measured[sample, head] == expected


def test_richness_counts_the_sum_not_the_squares():
    outputs = torch.diag(torch.tensor([3.0, 1.0, 1.0, 1.0]))[None, None]
    real = torch.ones(1, 4, dtype=torch.bool)
    assert (
        information_richness(outputs, real, 0.7).item() == 3
    )  # 3/6, 4/6, 5/6; by squares 9/12, 10/12 it would be 1
    assert information_richness(outputs, real, 1.0).item() == 4  # what reaches the bound is enough


def test_correlation_is_numpys():
    outputs, real = random_outputs()
    measured = head_correlation(outputs, real).numpy()
    for sample in range(len(outputs)):
        means = outputs[sample][:, real[sample]].double().mean(1).numpy()
        expected = np.abs(np.cov(means))
        np.fill_diagonal(expected, 0)
        np.testing.assert_allclose(measured[sample], expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_scores_do_not_depend_on_the_batch(make, workspace, family):
    """One sample at a time, with no padding at all, and captured where the paper's O_h is, gives the same."""
    config = make(family=family)
    pretrained = pretrained_of(config, workspace)
    encoder, pad = Encoder(pretrained.model), padding_values(pretrained.tokenizer)
    examples = examples_of(config, workspace, "train", 32)[:10]
    richness, correlation = score_examples(encoder, examples, pad, 0.9, batch_size=10)
    for index, example in enumerate(examples):
        alone = score_examples(encoder, [example], pad, 0.9)
        assert torch.equal(richness[index], alone[0][0])
        torch.testing.assert_close(correlation[index], alone[1][0], rtol=1e-4, atol=1e-7)


def test_captured_outputs_are_attention_times_values(make, workspace):
    """What the hook sees is softmax(QK/sqrt(D'))V of each head, computed here by hand from the weights."""
    config = make()
    pretrained = pretrained_of(config, workspace)
    encoder = Encoder(pretrained.model.eval())
    batch = collate(
        examples_of(config, workspace, "train", 32)[:1], padding_values(pretrained.tokenizer)
    )
    seen = []
    hook = encoder.layers[0].attention.output.dense.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0])
    )
    with torch.no_grad():
        hidden = encoder.base.embeddings(
            input_ids=batch["input_ids"], token_type_ids=batch["token_type_ids"]
        )
        encoder.base(**batch)
        block = encoder.layers[0].attention.self
        rows = encoder.head_rows(1)
        query, key, value = (
            hidden[0] @ linear.weight[rows.start : rows.stop].T
            + linear.bias[rows.start : rows.stop]
            for linear in (block.query, block.key, block.value)
        )
        by_hand = torch.softmax(query @ key.T / encoder.head_size**0.5, -1) @ value
    hook.remove()
    torch.testing.assert_close(seen[0][0][:, rows.start : rows.stop], by_hand, rtol=1e-4, atol=1e-5)


def test_more_warm_steps_than_the_run_has_are_refused(make, workspace):
    config = make("hifi-layerwise", "scoring.warm_steps=1000")
    with pytest.raises(
        UsageError, match=r"scoring.warm_steps=1000 is more than the run's 12 steps"
    ):
        HeadSelector.of(config, workspace).compute_scores()
