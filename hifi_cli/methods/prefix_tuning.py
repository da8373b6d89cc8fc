"""Prefix-Tuning (Li & Liang, ACL 2021): trained keys and values in every layer that all tokens can attend to."""

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from hifi_cli.config.base import ConfigModel
from hifi_cli.methods.base import Method, copy_tensors, freeze_except, generator, task_head_names
from hifi_cli.models.encoder import AttentionFunction, Encoder

ATTENTION = "hifi_prefix"
_NAME = "hifi_prefixes"


class PrefixEncoder(nn.Module):
    """The prefixes of all layers: parameters themselves, or made from a smaller embedding by an MLP.

    Attributes:
        values: [layers, 2, length, hidden size]; None while the MLP makes them.
        visible: bool [length]; what is False is masked out of every attention.
        current_key_values: what the layers of the forward pass under way attend to, [layers, 2, length, hidden size].
    """

    values: nn.Parameter | None
    visible: Tensor

    def __init__(self, layers: int, length: int, size: int, mlp: int, std: float, draws: Generator) -> None:
        super().__init__()
        self.shape = (layers, 2, length, size)
        self.register_buffer("visible", torch.ones(length, dtype=torch.bool), persistent=False)
        if mlp:
            self.values = None
            self.embedding = nn.Parameter(torch.empty(length, size).normal_(generator=draws))
            self.down = _linear(size, mlp, draws)
            self.up = _linear(mlp, layers * 2 * size, draws)
        else:
            self.values = nn.Parameter(torch.empty(self.shape).normal_(0, std, generator=draws))

    def key_values(self) -> Tensor:
        """All keys and values."""
        if self.values is not None:
            return self.values
        layers, _, length, size = self.shape
        made: Tensor = self.up(torch.tanh(self.down(self.embedding)))
        return made.view(length, layers, 2, size).permute(1, 2, 0, 3)

    def before_forward(self, *_: Any) -> None:
        """Make all layers' prefixes, once for a forward pass."""
        self.current_key_values = self.key_values()

    @torch.no_grad()
    def replace_mlp(self, values: Tensor) -> None:
        """Throw the MLP away and keep what it made."""
        self.values = nn.Parameter(values.clone())
        del self.embedding, self.down, self.up


@dataclass(frozen=True)
class LayerPrefix:
    """What an attention module finds its prefix by, and what it computes its attention with."""

    prefixes: PrefixEncoder
    layer: int
    attention: AttentionFunction


def prefix_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention over a layer's tokens and its prefix; no token's position changes.

    Args:
        query, key, value: [batch, heads, tokens, head size].
        attention_mask: bool, True where a token may attend, [batch, 1, tokens, tokens]; None: everywhere.
    """
    mine: Any = module.prefix
    batch, heads, tokens, size = key.shape
    own = mine.prefixes.current_key_values[mine.layer].to(key.dtype).view(2, 1, -1, heads, size).transpose(2, 3)
    own = own.expand(2, batch, -1, -1, -1)
    if attention_mask is None:
        attention_mask = torch.ones(batch, 1, query.shape[2], tokens, dtype=torch.bool, device=key.device)
    seen = mine.prefixes.visible.expand(*attention_mask.shape[:3], -1)
    mask = torch.cat([attention_mask, seen], -1)
    key, value = torch.cat([key, own[0]], 2), torch.cat([value, own[1]], 2)
    attended: tuple[Tensor, Tensor | None] = mine.attention(module, query, key, value, mask, **how)
    return attended


class PrefixTuning(Method):
    """Train additional keys and values in every layer, and the task head.

    Not implemented with peft, which passes prefixes to BERT-type models as a cache; that shifts their position ids.
    """

    class Settings(ConfigModel):
        """Size and parametrisation of the prefix."""

        length: int = Field(16, ge=1)
        """Number of prefix vectors in each layer."""
        mlp: int = Field(0, ge=0)
        """Hidden units of the reparametrising MLP, which is discarded after training; 0: no MLP."""
        init_std: float = Field(0.01, gt=0)
        """Standard deviation of the initial prefix, without an MLP."""

    mergeable = False

    def prepare(self, encoder: Encoder) -> None:
        attention_function = encoder.set_attention(ATTENTION, prefix_attention)
        head = task_head_names(encoder)
        how = self.settings
        draws = generator(self.context.seed)
        prefixes = PrefixEncoder(encoder.num_layers, how.length, encoder.hidden_size, how.mlp, how.init_std, draws)
        encoder.base.add_module(_NAME, prefixes)
        encoder.base.register_forward_pre_hook(prefixes.before_forward)
        for layer in range(encoder.num_layers):
            attention: Any = encoder.model.get_submodule(encoder.path(layer, "attention"))
            attention.prefix = LayerPrefix(prefixes, layer, attention_function)
        self._prefixes = prefixes
        self._values = f"{encoder.model.base_model_prefix}.{_NAME}.values"
        inside = self._values.removesuffix("values")
        freeze_except(encoder, [*head, *(name for name, _ in encoder.model.named_parameters() if name.startswith(inside))])

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        inside = self._values.removesuffix("values")
        rest = {name: value for name, value in self.training_state(model).items() if not name.startswith(inside)}
        return rest | {self._values: self._prefixes.key_values().detach()}

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        if self._prefixes.values is None and self._values in delta:
            self._prefixes.replace_mlp(delta[self._values])
        copy_tensors(self.delta(model), delta)

    def training_state(self, model: nn.Module) -> dict[str, Tensor]:
        return super().delta(model)

    def load_training_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        copy_tensors(self.training_state(model), state)


def _linear(inputs: int, outputs: int, draws: Generator) -> nn.Linear:
    """A Linear with PyTorch's default initialisation, from the given draws."""
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    bound = inputs**-0.5
    nn.init.uniform_(linear.weight, -bound, bound, generator=draws)
    nn.init.uniform_(linear.bias, -bound, bound, generator=draws)
    return linear
