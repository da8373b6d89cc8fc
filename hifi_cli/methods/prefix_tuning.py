"""Prefix-Tuning (Li & Liang, ACL 2021): trained keys and values in every layer's attention."""

from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from hifi_cli.methods.base import Method, copy_tensors
from hifi_cli.methods.common import drawn_by, freeze_except
from hifi_cli.models.encoder import Encoder

# The name of `prefix_attention` in transformers' attention interface.
ATTENTION = "hifi_prefix"
# The name of the prefixes as a module of the encoder.
_MODULE = "hifi_prefixes"


class PrefixEncoder(nn.Module):
    """The prefixes of all layers: parameters, or made by an MLP (section 4.3).

    Attributes:
        values: [layers, 2, length, width of K]; with an MLP only in a finished model, which needs
            it no more.
        current_key_values: what the layers of the forward pass under way attend to, of the same
            shape.
    """

    values: Tensor | None

    def __init__(self, layers: int, length: int, size: int, mlp: int, std: float) -> None:
        super().__init__()
        self.shape = (layers, 2, length, size)
        if mlp:
            self.register_buffer("values", None)
            self.embedding = nn.Parameter(torch.randn(length, size))
            self.down = nn.Linear(size, mlp)
            self.up = nn.Linear(mlp, layers * 2 * size)
        else:
            self.values = nn.Parameter(torch.empty(self.shape).normal_(0, std))

    def key_values(self) -> Tensor:
        """Return the keys and values of all layers, [layers, 2, length, width of K]."""
        if self.values is not None:
            return self.values
        layers, _, length, size = self.shape
        key_values = self.up(torch.tanh(self.down(self.embedding)))
        return key_values.view(length, layers, 2, size).permute(1, 2, 0, 3)

    def fix_values(self) -> None:
        """Keep the prefixes as they are: a finished model needs no MLP that makes them."""
        self.values = self.key_values().detach().clone()

    def before_forward(self, *_: Any) -> None:
        """Compute the prefixes of all layers, once per forward pass."""
        self.current_key_values = self.key_values()

    def after_forward(self, *_: Any) -> None:
        """Let go of the prefixes: they would keep what the MLP computed them by until the next step."""
        del self.current_key_values


def prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention over a layer's tokens and its prefix; no token's position changes.

    Args:
        module: the layer's, with `prefix`: the prefixes, its layer, what computes attention.
        query, key, value: [batch, heads, tokens, head size].
        attention_mask: added to the scores, [batch or 1, 1, tokens or 1, tokens]; None: no padding.
    """
    prefixes, layer, attention = cast(Any, module.prefix)
    batch, heads, tokens, size = key.shape
    values = prefixes.current_key_values[layer].to(key.dtype)
    # To [keys and values, batch, heads, length, head size].
    values = values.view(2, 1, -1, heads, size).transpose(2, 3).expand(2, batch, -1, -1, -1)
    prefix_keys, prefix_values = values
    if attention_mask is None:
        attention_mask = key.new_zeros(batch, 1, 1, tokens)
    # The mask is added to the scores: zeros let every token see the prefix.
    visible = attention_mask.new_zeros(*attention_mask.shape[:3], values.shape[3])
    mask = torch.cat([attention_mask, visible], -1)
    # Attention has no order of its own, so the prefix may stand behind the tokens, whose positions
    # then stay as they are.
    key = torch.cat([key, prefix_keys], 2)
    value = torch.cat([value, prefix_values], 2)
    return attention(module, query, key, value, mask, **settings)


class PrefixTuning(Method):
    """Train additional keys and values in every layer, and the task head.

    Not implemented with peft, which passes prefixes to BERT-type models as a cache; that shifts
    their position ids.
    """

    class Settings(Method.Settings):
        """Size and parametrization of the prefix."""

        length: int = Field(16, ge=1)
        """Number of prefix vectors in each layer."""
        mlp: int = Field(0, ge=0)
        """Hidden units of the reparametrizing MLP, which is discarded after training; 0: no MLP."""
        init_std: float = Field(0.01, gt=0)
        """Standard deviation of the initial prefix, without an MLP."""

    mergeable = False

    def prepare(self, encoder: Encoder) -> None:
        attention_function = encoder.set_attention(ATTENTION, prefix_attention)
        # The prefixes, which are added below, train too.
        freeze_except(encoder, encoder.task_head)
        settings = self.settings
        size = encoder.num_key_value_heads * encoder.head_size
        with drawn_by(self.context.seed):
            prefixes = PrefixEncoder(
                encoder.num_layers, settings.length, size, settings.mlp, settings.init_std
            )
        encoder.base.add_module(_MODULE, prefixes.to(encoder.device))
        encoder.base.register_forward_pre_hook(prefixes.before_forward)
        encoder.base.register_forward_hook(prefixes.after_forward)
        for layer in range(encoder.num_layers):
            attention: Any = encoder.model.get_submodule(encoder.module_path(layer, "attention"))
            # In a tuple, PyTorch does not register the prefixes as a submodule of every layer.
            attention.prefix = (prefixes, layer, attention_function)
        self._prefixes = prefixes
        # With this begin the names of the prefixes' parameters in the whole model.
        self._beginning = f"{encoder.model.base_model_prefix}.{_MODULE}."

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the task head, and the prefixes without the MLP that made them."""
        trained = super().delta(model)
        delta = {name: value for name, value in trained.items() if self._beginning not in name}
        return delta | {f"{self._beginning}values": self._prefixes.key_values().detach()}

    def load_delta(self, model: nn.Module, delta: dict[str, Tensor]) -> None:
        # A delta has the finished prefixes, and no MLP that they could be made by.
        if self.settings.mlp:
            self._prefixes.fix_values()
        copy_tensors(self.delta(model), delta)

    def training_state(self, model: nn.Module) -> dict[str, Tensor]:
        # A checkpoint needs the MLP, which trains on.
        return super().delta(model)

    def load_training_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        copy_tensors(self.training_state(model), state)
