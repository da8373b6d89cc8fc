"""Padding-free layers give what padded batches give, for every family and every method."""

import numpy as np
import pytest
import torch
from prepared_models import prepare
from tiny_inputs import FAMILIES

from hifi_cli.models.token_packing import PackedBatch
from hifi_cli.training.data import ResourceCache, load_splits

METHODS = ["full-ft", "hifi-layerwise", "lora", "adapter", "prefix-tuning", "top-k", "linear-probing", "diff-pruning"]
DROPOUT_OFF = "dropout=0.0"


def test_unpacking_undoes_packing_and_padding_gets_no_gradient():
    lengths = torch.tensor([3, 7, 1, 7, 2])
    is_real = torch.arange(8) < lengths[:, None]
    batch = PackedBatch.of(is_real, torch.device("cpu"))
    padded = torch.randn(5, 8, 2, dtype=torch.float64).requires_grad_()
    packed = batch.pack(padded)
    assert torch.equal(packed, padded[is_real])
    assert torch.equal(batch.unpack(packed), padded * is_real[..., None])
    (gradient,) = torch.autograd.grad((packed * packed.detach()).sum(), padded)
    assert torch.equal(gradient, padded.detach() * is_real[..., None])
    assert torch.autograd.gradcheck(batch.unpack, packed.detach().requires_grad_())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_losses_and_gradients_are_those_of_padded_batches(make, resources, method, family):
    """In float64, so that only an error, and no rounding, can make a difference."""
    results = {}
    for padding_free in (True, False):
        prepared, config = prepare(
            make, resources, method, DROPOUT_OFF, "kernels=torch", f"padding_free={str(padding_free).lower()}", family=family
        )
        assert prepared.is_padding_free == padding_free
        model = prepared.encoder.model.double().train()
        examples = load_splits(config, resources).train[:6]
        assert len({len(example) for example in examples}) > 2
        tokens = []
        ffn = prepared.encoder.layers[1].get_submodule(prepared.encoder.module_names.ffn)
        ffn.register_forward_hook(lambda _, inputs, __, tokens=tokens: tokens.append(inputs[0].shape[:-1].numel()))
        prepared.method.before_step(model, 0)
        loss = prepared.loss(examples)
        loss.backward()
        assert tokens == [sum(map(len, examples)) if padding_free else 6 * max(map(len, examples))]
        results[padding_free] = loss, {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
    (loss, gradients), (padded_loss, padded_gradients) = results[True], results[False]
    torch.testing.assert_close(loss, padded_loss, rtol=1e-6, atol=0)  # logits are rounded to float32
    assert gradients.keys() == padded_gradients.keys()
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, padded_gradients[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("task", ["copa", "swag", "squad", "conll2003"])
def test_choices_spans_and_tags_are_predicted_as_from_padded_batches(make, task_kinds_data, tmp_path, task):
    logits, resources = {}, ResourceCache(tmp_path, task_kinds_data)
    for padding_free in (True, False):
        prepared, config = prepare(make, resources, "full-ft", f"padding_free={str(padding_free).lower()}", task=task)
        examples = load_splits(config, resources).train[:7]
        logits[padding_free] = prepared.predict(examples)
        if logits[padding_free].ndim == 3:  # [examples, outputs, tokens]: what is at padding has no meaning
            for values, example in zip(logits[padding_free], examples, strict=True):
                values[:, len(example) :] = -np.inf
    np.testing.assert_allclose(logits[True], logits[False], rtol=1e-4, atol=1e-6)
    assert np.ptp(logits[True][np.isfinite(logits[True])]) > 1e-3


def test_after_a_forward_pass_the_model_takes_padded_batches_again(make, resources):
    """Head scores and analyses read the layers of the model by hooks; a two-stage method replaces them between phases."""
    prepared, config = prepare(make, resources, "hifi-layerwise")
    examples = load_splits(config, resources).train[:4]
    before = prepared.encoder.attention_function
    shapes = []

    def fail(*_):
        raise MemoryError

    hook = prepared.encoder.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        prepared.logits(examples)
    hook.remove()
    assert prepared.encoder.attention_function is before
    prepared.encoder.layers[0].register_forward_hook(lambda _, inputs, __: shapes.append(inputs[0].shape[:2]))
    prepared.predict(examples)
    ids = torch.ones(2, 5, dtype=torch.long)
    prepared.encoder.base(input_ids=ids, attention_mask=ids)
    assert shapes == [(1, sum(map(len, examples))), (2, 5)]
