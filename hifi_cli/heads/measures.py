"""Rankings that are measured on the model: functions from some examples to one value per head."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from hifi_cli.heads.scores import head_mask, head_outputs
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.families import PROJECTIONS
from hifi_cli.tasks.encode import collate, single_sequences
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training import processes
from hifi_cli.training.batches import batches_by_length
from hifi_cli.training.runner import ModelRunner

# Takes a model in evaluation mode and some examples; returns the mean over the examples,
# [layers, heads].
HeadMeasure = Callable[[ModelRunner, list[EncodedExample]], Tensor]


def measure_heads(
    measure: HeadMeasure, runner: ModelRunner, examples: list[EncodedExample], batch_size: int = 32
) -> Tensor:
    """Measure a ranking's value of every head.

    Args:
        measure: the ranking.
        runner: has the model, which is left in evaluation mode and without gradients.
        examples: that are measured.
        batch_size: of them that are measured at a time.

    Returns:
        The mean over the examples, float64 [layers, heads], on the CPU.
    """
    runner.encoder.model.eval().requires_grad_(False)
    # In a packed batch, a head's outputs for all examples are one sequence, which the mask of a
    # single example cannot be applied to.
    padded = runner.config.model_copy(update={"padding_free": False})
    runner = replace(runner, config=padded)
    total = torch.zeros(runner.encoder.num_layers, runner.encoder.num_heads, dtype=torch.float64)
    batches = batches_by_length(examples, batch_size)
    for batch in processes.progress(batches, f"measuring heads on {len(examples)} samples"):
        mean = measure(runner, batch.examples).double().cpu()
        # The last batch may be smaller: a mean over batches would count its examples for more.
        total += len(batch.examples) * mean
    return total / len(examples)


def gradient(runner: ModelRunner, examples: list[EncodedExample]) -> Tensor:
    """Measure the gradient of the loss for a factor on each head's output.

    Michel et al. 2019, equation 2: the mean over the examples of |dL/dm_h|, m_h the factor.

    Returns:
        [layers, heads].
    """
    encoder = runner.encoder
    mask = _ones(encoder, len(examples)).requires_grad_()
    with head_mask(encoder, mask):
        # The loss is a sum over the examples, so each entry of the mask gets the gradient of its own
        # example.
        loss = runner.loss(examples)
    (gradients,) = torch.autograd.grad(loss, mask)
    return gradients.abs().mean(0)


@torch.inference_mode()
def ablation(runner: ModelRunner, examples: list[EncodedExample]) -> Tensor:
    """Measure the loss without a head minus that with all heads, as `task_loss` sums it over words.

    It takes a forward pass for every head of the model.

    Returns:
        The mean over the examples, float64 [layers, heads].
    """
    encoder = runner.encoder
    increase = torch.zeros(encoder.num_layers, encoder.num_heads, dtype=torch.float64)
    loss = runner.loss(examples).double()
    for layer, head in product(range(encoder.num_layers), range(encoder.num_heads)):
        mask = _ones(encoder, 1)
        mask[0, layer, head] = 0
        with head_mask(encoder, mask):
            increase[layer, head] = runner.loss(examples) - loss
    return increase / len(examples)


def fisher(runner: ModelRunner, examples: list[EncodedExample]) -> Tensor:
    """Measure the diagonal of the empirical Fisher information of the parameters that HiFi trains.

    It is the mean over the examples of the squared gradient of each example's loss, summed over a
    head's rows of W_Q, W_K and W_V and of their biases.

    Returns:
        float64 [layers, heads].
    """
    encoder = runner.encoder
    total = torch.zeros(encoder.num_layers, encoder.num_heads, dtype=torch.float64)
    layer_of: dict[nn.Parameter, int] = {}
    for layer, part in product(range(encoder.num_layers), PROJECTIONS):
        projection = encoder.model.get_submodule(encoder.module_path(layer, part))
        for parameter in projection.parameters():
            parameter.requires_grad_(True)
            layer_of[parameter] = layer
    # One example at a time: the gradient of a batch is a sum, of which the square is another.
    for example in examples:
        gradients = torch.autograd.grad(runner.loss([example]), [*layer_of])
        for layer, gradient_of_rows in zip(layer_of.values(), gradients, strict=True):
            squares = gradient_of_rows.double().square()
            of_heads = squares.unflatten(0, (-1, encoder.head_size)).flatten(1).sum(1)
            # Heads of one group share rows of W_K and W_V.
            total[layer] += of_heads.repeat_interleave(encoder.num_heads // len(of_heads)).cpu()
    return total / len(examples)


def confidence(runner: ModelRunner, examples: list[EncodedExample]) -> Tensor:
    """Measure a head's largest attention probability, mean over the tokens.

    Voita et al. 2019, section 4. Attention to the end-of-sentence symbol does not count there. Here
    the symbol is the separator of an encoder's inputs, to which many heads attend where they have
    nothing else to do. A decoder's inputs have no separator at their end, and all its tokens count.

    Returns:
        float64 [layers, heads].
    """
    batch = collate(single_sequences(examples), runner.pad)
    token_mask = batch["attention_mask"].bool()
    counted = token_mask
    if not runner.encoder.is_causal:
        # The separator's token id differs between encoders. The last token of any sequence is one.
        ids = batch["input_ids"]
        last_token = ids.gather(1, token_mask.sum(1, keepdim=True) - 1)
        counted = token_mask & (ids != last_token)
    layers = attention_probabilities(runner.encoder, batch)
    largest = [(layer * counted[:, None, None, :]).amax(-1) for layer in layers]
    return _token_mean(largest, token_mask)


def entropy(runner: ModelRunner, examples: list[EncodedExample]) -> Tensor:
    """Measure the entropy of a head's attention in nats, mean over the tokens.

    It is high for heads that attend to many tokens.

    Returns:
        float64 [layers, heads].
    """
    batch = collate(single_sequences(examples), runner.pad)
    layers = attention_probabilities(runner.encoder, batch)
    per_token = [-torch.xlogy(layer, layer).sum(-1) for layer in layers]
    return _token_mean(per_token, batch["attention_mask"].bool())


def output_norm(runner: ModelRunner, examples: list[EncodedExample]) -> Tensor:
    """Measure the Euclidean norm of a head's output, mean over the tokens.

    Returns:
        float64 [layers, heads].
    """
    batch = collate(single_sequences(examples), runner.pad)
    ((layers, token_mask),) = head_outputs(runner.encoder, [batch])
    return _token_mean([layer.double().norm(dim=-1) for layer in layers], token_mask)


@torch.inference_mode()
def attention_probabilities(encoder: Encoder, batch: Mapping[str, Tensor]) -> list[Tensor]:
    """Compute the attention probabilities of every head.

    Of transformers' attention functions, the eager one alone returns them.

    Args:
        batch: as for `head_outputs`.

    Returns:
        For every layer float64 [examples, heads, tokens, tokens], zero for padding, on the CPU.
    """
    inputs = {name: values.to(encoder.device) for name, values in batch.items()}
    with encoder.attention_replaced("eager"):
        attentions = encoder.base(**inputs, output_attentions=True).attentions
    return [layer.cpu().double() for layer in attentions]


def _token_mean(layers: list[Tensor], token_mask: Tensor) -> Tensor:
    """Average each layer's [examples, heads, tokens] over real tokens, then over examples."""
    weights = token_mask.double() / token_mask.sum(-1, keepdim=True)
    of_examples = [torch.einsum("bs,bhs->bh", weights, layer) for layer in layers]
    return torch.stack([values.mean(0) for values in of_examples])


def _ones(encoder: Encoder, examples: int) -> Tensor:
    """Make a mask that keeps every head: [examples, layers, heads], like the parameters."""
    parameter = next(encoder.model.parameters())
    return parameter.new_ones(examples, encoder.num_layers, encoder.num_heads)


MEASURES: dict[str, HeadMeasure] = {
    "gradient": gradient,
    "ablation": ablation,
    "fisher": fisher,
    "confidence": confidence,
    "entropy": entropy,
    "output-norm": output_norm,
}
