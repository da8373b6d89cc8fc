"""Bottleneck adapters and the two places of a layer they go to (Houlsby et al., ICML 2019)."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from hifi_cli.models.encoder import Encoder

SUBLAYERS = ("after_attention", "after_ffn")


class BottleneckAdapter(nn.Module):
    """x + up(GELU(down(x)))."""

    def __init__(self, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.up = down, up

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(nn.functional.gelu(self.down(x)))
        return x + added


class AdapterLayer(nn.Module):
    """A sub-layer's last module with a bottleneck behind it, before the residual and the LayerNorm."""

    def __init__(self, base_layer: nn.Module, adapter: BottleneckAdapter) -> None:
        super().__init__()
        self.base_layer, self.adapter = base_layer, adapter

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.adapter(self.base_layer(x))
        return result


def insert_adapters(encoder: Encoder, build: Callable[[], BottleneckAdapter]) -> list[str]:
    """Put a new adapter behind both sub-layers of every layer.

    Returns:
        The names of the parameters that train with Houlsby's adapters: their own, and the backbone's LayerNorms.
    """
    before = {id(parameter) for parameter in encoder.model.parameters()}
    for layer in range(encoder.num_layers):
        for part in SUBLAYERS:
            encoder.replace(layer, part, partial(AdapterLayer, adapter=build().to(encoder.device)))
    added = [name for name, parameter in encoder.model.named_parameters() if id(parameter) not in before]
    return [*_layer_norm_names(encoder), *added]


def _layer_norm_names(encoder: Encoder) -> list[str]:
    """The names of the weights and biases of the backbone's LayerNorms (RMSNorms), the embeddings' included."""
    norms = {id(module) for module in encoder.base.modules() if encoder.is_norm(module)}
    return [
        f"{path}.{name}"
        for path, module in encoder.model.named_modules()
        if id(module) in norms
        for name, _ in module.named_parameters()
    ]
