"""Whole runs end with the weights of a loop in plain PyTorch, written from the methods' descriptions.

Other tests have clipping, decay, schedules, micro-batches and stages one by one. Here all act together.
"""

import math
import re
from itertools import chain

import pytest
import torch
from prepared_models import encoder_of, heads_of, prepared_run, splits_of
from tiny_inputs import HEADS, HIDDEN, LAYERS
from transformers import AutoModelForSequenceClassification

from hifi_cli.tasks.encode import collate, epoch_batches
from hifi_cli.training.loop import Splits, Trainer

CHOSEN_HEADS = [[1, 3], [0]]
CLASS_WEIGHTS, SMOOTHING, LAYER_DECAY = [0.5, 2.0], 0.1, 0.8
SETTINGS = [
    "limit=14",
    "batch_size=8",
    "gradient_accumulation_steps=3",
    "kernels=torch",
    "padding_free=false",
    "dropout=0.0",
    "learning_rate=1e-2",
    "schedule=linear",
    "warmup=0.25",
    "weight_decay=0.5",
    "max_grad_norm=0.5",
    # Rounding decides about the gradient of a key's bias, which is 0: a larger epsilon keeps it small.
    "adam_epsilon=1e-4",
    f"class_weights={CLASS_WEIGHTS}",
    f"label_smoothing={SMOOTHING}",
    f"layer_decay={LAYER_DECAY}",
]
STAGE_1 = [
    "settings.stage1_fraction=0.5",
    "stage1.learning_rate=5e-3",
    "stage1.schedule=linear",
    "stage1.warmup=0.5",
    "stage1.adam_epsilon=1e-4",
]
EVERYTHING, NOTHING = slice(None), []


def rows_that_train(method, name):
    """Which entries of a parameter train, as an index of its first dimension."""
    is_bias = name.endswith("bias")
    of_layer = re.fullmatch(r"bert\.encoder\.layer\.(\d+)\.(.+)\.\w+", name)
    if method == "full-ft" or name.startswith("classifier"):
        return EVERYTHING
    if name.startswith("bert.pooler") and method != "bitfit":
        return EVERYTHING
    if method in ("bitfit", "bitfit and task head"):
        return EVERYTHING if is_bias else NOTHING
    if method == "hifi-layerwise" and of_layer and ".self." in name:
        size = HIDDEN // HEADS
        heads = CHOSEN_HEADS[int(of_layer[1])]
        return [row for head in heads for row in range(head * size, (head + 1) * size)]
    if method == "rocoft-row" and of_layer and "LayerNorm" not in name:
        return EVERYTHING if is_bias else slice(3)
    return NOTHING


def is_in_backbone(name):
    return name.startswith(("bert.embeddings", "bert.encoder"))


def layer_factor(name):
    """What layer-wise decay makes of the learning rate."""
    of_layer = re.match(r"bert\.encoder\.layer\.(\d+)\.", name)
    if of_layer:
        return LAYER_DECAY ** (LAYERS - int(of_layer[1]))
    return LAYER_DECAY ** (LAYERS + 1) if name.startswith("bert.embeddings") else 1.0


def loss_of(model, batch):
    labels = torch.tensor([example.row.label for example in batch])
    logits = model(**collate(batch, {"input_ids": 0, "token_type_ids": 0})).logits
    weights = torch.tensor(CLASS_WEIGHTS)
    return torch.nn.functional.cross_entropy(logits, labels, weights, label_smoothing=SMOOTHING)


def train(model, batches, method, training):
    """AdamW (Loshchilov & Hutter 2019), clipping and schedule, of the entries that a method trains and no others."""
    weights = dict(model.named_parameters())
    masks = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for name, mask in masks.items():
        mask[rows_that_train(method, name)] = 1.0
    means, squares = dict.fromkeys(weights, 0.0), dict.fromkeys(weights, 0.0)
    beta1, beta2 = training.adam_betas
    warmup = math.ceil(training.warmup * len(batches))
    for step, batch in enumerate(batches):
        gradients = torch.autograd.grad(loss_of(model, batch), list(weights.values()))
        gradients = [
            gradient * mask for gradient, mask in zip(gradients, masks.values(), strict=True)
        ]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        clip = min(1.0, training.max_grad_norm / norm)
        left = (len(batches) - step) / (len(batches) - warmup)
        rate = training.learning_rate * (step / warmup if step < warmup else left)
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            means[name] = beta1 * means[name] + (1 - beta1) * clip * gradient
            squares[name] = beta2 * squares[name] + (1 - beta2) * (clip * gradient) ** 2
            mean = means[name] / (1 - beta1 ** (step + 1))
            square = squares[name] / (1 - beta2 ** (step + 1))
            decay = training.weight_decay * weight if weight.dim() > 1 else 0.0
            update = mean / (square.sqrt() + training.adam_epsilon) + decay
            weight.data -= layer_factor(name) * rate * masks[name] * update


@pytest.mark.parametrize("method", ["bitfit", "hifi-layerwise", "rocoft-row", "eh-ft-bitfit"])
def test_a_run_ends_with_the_weights_of_a_plain_loop(method, make, workspace, encoders):
    more = STAGE_1 if method == "eh-ft-bitfit" else []
    config = make(method, *SETTINGS, *more, f"heads.given={CHOSEN_HEADS}")
    examples = splits_of(config, workspace).train
    per_epoch = [epoch_batches(config, 8, examples, epoch) for epoch in range(config.epochs)]
    batches = list(chain.from_iterable(per_epoch))
    assert [len(batch) for batch in batches] == [8, 6, 8, 6]
    model = AutoModelForSequenceClassification.from_pretrained(encoders["bert"]).eval()
    # The initial task head is a draw.
    start = encoder_of(config, workspace).model.state_dict()
    model.load_state_dict(start)
    if method == "eh-ft-bitfit":
        train(model, batches[:2], "bitfit and task head", config.stage1)
        backbone = {name: value for name, value in start.items() if is_in_backbone(name)}
        model.load_state_dict(backbone, strict=False)
        train(model, batches[2:], "full-ft", config)
    else:
        train(model, batches, method, config)
    prepared = prepared_run(config, workspace, heads_of(config, workspace))
    Trainer(prepared, prepared.method, Splits(examples)).train()
    prepared.method.merge(prepared.encoder)
    # Each run moves weights by 0.01 or more.
    torch.testing.assert_close(
        prepared.encoder.model.state_dict(), model.state_dict(), rtol=0, atol=2e-6
    )
