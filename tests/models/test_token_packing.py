"""Padding-free layers give what padded batches give, for every family and every method."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from prepared_models import prepare, splits_of
from tiny_inputs import FAMILIES, random_encoder
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hifi_cli.models import token_packing
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import FAMILIES as KNOWN
from hifi_cli.models.token_packing import PackedBatch, packed_forward
from hifi_cli.runs.workspace import Workspace

METHODS = [
    "full-ft",
    "hifi-layerwise",
    "lora",
    "adapter",
    "prefix-tuning",
    "top-k",
    "linear-probing",
    "diff-pruning",
]
DROPOUT_OFF = "dropout=0.0"


def attention_per_sequence(query, key, value, offsets, longest, *, dropout, scale, window):
    """What `varlen_attention` computes on a GPU."""
    assert longest == offsets.diff().max() and not dropout
    outputs = []
    for start, end in offsets.unfold(0, 2, 1).tolist():
        states = [part[start:end].transpose(0, 1) for part in (query, key, value)]
        positions = torch.arange(end - start)
        visible = (positions[:, None] - positions).abs() < (window or longest)
        output = functional.scaled_dot_product_attention(*states, visible, scale=scale)
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_losses_and_gradients_are_those_of_padded_batches(
    make, workspace, monkeypatch, method, family
):
    """In float64, so that only an error, and no rounding, can make a difference."""
    results, calls = [], []
    monkeypatch.setattr(token_packing, "GROUP_SIZE", 100)
    monkeypatch.setattr(
        token_packing,
        "varlen_attention",
        lambda *states, **how: calls.append(1) or attention_per_sequence(*states, **how),
    )
    for padding_free, varlen in ((False, False), (True, False), (True, True)):
        prepared, config = prepare(
            make,
            workspace,
            method,
            DROPOUT_OFF,
            "kernels=torch",
            f"padding_free={str(padding_free).lower()}",
            family=family,
        )
        assert prepared.is_padding_free == padding_free and calls == []
        prepared.uses_varlen = varlen
        model = prepared.encoder.model.double().train()
        examples = splits_of(config, workspace).train[:6]
        assert len({len(example) for example in examples}) > 2
        tokens = []
        ffn = prepared.encoder.layers[1].get_submodule(prepared.encoder.module_names.ffn)
        ffn.register_forward_hook(
            lambda _, inputs, __, tokens=tokens: tokens.append(inputs[0].shape[:-1].numel())
        )
        prepared.method.before_step(model, 0, range(1))
        loss = prepared.loss(examples)
        loss.backward()
        assert tokens == [sum(map(len, examples)) if padding_free else 6 * max(map(len, examples))]
        gradients = {
            name: value.grad for name, value in model.named_parameters() if value.requires_grad
        }
        results.append((loss, gradients))
    # Prefix-Tuning's own attention stays padded
    assert len(calls) == (0 if method == "prefix-tuning" else prepared.encoder.num_layers)
    padded_loss, padded_gradients = results.pop(0)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())
    for loss, gradients in results:
        # logits are rounded to float32
        torch.testing.assert_close(loss, padded_loss, rtol=1e-6, atol=0)
        assert gradients.keys() == padded_gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, padded_gradients[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", [name for name, parts in KNOWN.items() if parts.interface])
def test_every_family_computes_packed_what_it_computes_padded(monkeypatch, family):
    """Sequences are longer than ModernBERT's local window, and a mean over tokens leaves padding out."""
    encoder = Encoder(
        random_encoder(
            family, **({"classifier_pooling": "mean"} if KNOWN[family].rotary else {})
        ).double()
    )
    assert encoder.can_pack or encoder.is_causal
    if encoder.is_causal:
        pytest.skip("decoders use padded batches")
    is_real = torch.arange(14) < torch.tensor([3, 14, 1, 9, 2])[:, None]
    inputs = {
        "input_ids": torch.randint(4, 12, (5, 14)) * is_real,
        "attention_mask": is_real.long(),
    }
    parameters = dict(encoder.model.named_parameters())
    results = []
    monkeypatch.setattr(token_packing, "GROUP_SIZE", 200)
    monkeypatch.setattr(token_packing, "varlen_attention", attention_per_sequence)
    for layout in ("padded", "packed", "varlen"):
        batch = PackedBatch.of(is_real, is_real, varlen=layout == "varlen")
        widths = [group.token_mask.shape[1] for group in batch.groups]
        assert widths == ([] if layout == "varlen" else [3, 9, 14])
        with nullcontext() if layout == "padded" else packed_forward(encoder, batch):
            logits = encoder.model(**inputs).logits
        gradients = torch.autograd.grad(
            logits[:, 0].sin().sum(), parameters.values(), allow_unused=True
        )
        results.append((logits, *(gradient for gradient in gradients if gradient is not None)))
    assert len(results[0]) > 10 and results[0][0].std() > 1e-3
    torch.testing.assert_close(results[1:], [results[0]] * 2, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", ["nomic_bert", "gte"])
def test_embeddings_get_the_positions_of_the_padded_batch(family):
    """NomicBERT of transformers 5.8 takes the types of its tokens by position."""
    encoder = Encoder(random_encoder(family))
    is_real = torch.arange(6) < torch.tensor([3, 6])[:, None]
    inputs = {"input_ids": torch.full((2, 6), 5) * is_real, "attention_mask": is_real.long()}
    positions = []
    with packed_forward(encoder, PackedBatch.of(is_real, is_real)):
        encoder.embeddings.register_forward_pre_hook(
            lambda _, __, settings: positions.append(settings["position_ids"].tolist()),
            with_kwargs=True,
        )
        encoder.model(**inputs)
    assert positions == [[[0, 1, 2, 3, 4, 5]]]


def test_bf16_batches_of_many_sizes_become_few_with_rows_that_change_nothing(make, workspace):
    """A CPU compiles bf16 products of each new shape; rows without a token have no gradient."""
    gradients = {}
    for precision in ("bf16", "fp32"):
        prepared, config = prepare(
            make, workspace, "full-ft", DROPOUT_OFF, "kernels=torch", f"precision={precision}"
        )
        rows = []
        prepared.encoder.layers[1].register_forward_hook(
            lambda _, __, output, rows=rows: rows.append(output.shape[1])
        )
        prepared.encoder.model.train()
        examples = splits_of(config, workspace).train[:7]
        tokens = sum(map(len, examples))
        prepared.loss(examples).backward()
        multiple = 1 if precision == "fp32" else 2 ** (tokens.bit_length() - 5)
        assert rows == [-(-tokens // multiple) * multiple] and (tokens % multiple or multiple == 1)
        weight = prepared.encoder.layers[0].get_submodule(prepared.encoder.module_names.ffn).weight
        gradients[precision] = weight.grad
    error = (gradients["bf16"] - gradients["fp32"]).norm() / gradients["fp32"].norm()
    assert 0 < error < 0.03


@pytest.mark.parametrize("task", ["copa", "swag", "squad", "conll2003"])
def test_choices_spans_and_tags_are_predicted_as_from_padded_batches(
    make, task_kinds_data, tmp_path, task
):
    logits, workspace = {}, Workspace(tmp_path, task_kinds_data)
    for padding_free in (True, False):
        prepared, config = prepare(
            make, workspace, "full-ft", f"padding_free={str(padding_free).lower()}", task=task
        )
        examples = splits_of(config, workspace).train[:7]
        logits[padding_free] = prepared.predict(examples)
        if (
            logits[padding_free].ndim == 3
        ):  # [examples, outputs, tokens]: what is at padding has no meaning
            for values, example in zip(logits[padding_free], examples, strict=True):
                values[:, len(example) :] = -np.inf
    np.testing.assert_allclose(logits[True], logits[False], rtol=1e-4, atol=1e-6)
    assert np.ptp(logits[True][np.isfinite(logits[True])]) > 1e-3


def test_after_a_forward_pass_the_model_takes_padded_batches_again(make, workspace):
    """Head scores and analyses read the layers of the model by hooks; a two-stage method replaces them between stages."""
    prepared, config = prepare(make, workspace, "hifi-layerwise")
    examples = splits_of(config, workspace).train[:4]
    shapes = []
    hook = prepared.encoder.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepared.logits(examples)
    hook.remove()
    assert token_packing.ATTENTION not in ALL_ATTENTION_FUNCTIONS
    prepared.encoder.layers[0].register_forward_hook(
        lambda _, inputs, __: shapes.append(inputs[0].shape[:2])
    )
    prepared.predict(examples)
    ids = torch.ones(2, 5, dtype=torch.long)
    prepared.encoder.base(input_ids=ids, attention_mask=ids)
    assert shapes == [(1, sum(map(len, examples))), (2, 5)]


def test_layers_with_and_without_a_window_have_masks_of_their_own():
    """In any order: layers of both kinds follow one another in ModernBERT."""
    token_mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    index, _ = token_packing.real_token_index(token_mask)
    layout = token_packing.PaddingLayout(index, token_mask)
    near = (torch.arange(4)[:, None] - torch.arange(4)).abs() < 2
    for window in (None, 2, None, 2):
        expected = token_mask[:, None, None] if window is None else token_mask[:, None, None] & near
        mask = layout.attention_mask(torch.float32, window)
        assert torch.equal(mask == 0, expected)
