"""The only file that knows how encoders name their parts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from hifi_cli.errors import UsageError

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class ModuleNames:
    """Where a family of encoders keeps its layers and, within a layer, what methods change.

    Attributes:
        attention: the module that computes attention over heads; `query`, `key` and `value` are inside it.
        attention_dropout: the dropout of attention probabilities.
        output: the projection of the concatenated head outputs.
        after_attention, after_ffn: the last module of each sub-layer, whose output is added to the residual.
        ffn, ffn_output: the feed-forward network's two Linears.
        embeddings, projection: what makes the first layer's input, and what widens it where that is a module of its own.
        interface: whether attention goes through transformers' attention interface.
    """

    layers: str = "encoder.layer"
    attention: str = "attention.self"
    attention_dropout: str = "attention.self.dropout"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    after_attention: str = "attention.output.dropout"
    after_ffn: str = "output.dropout"
    ffn: str = "intermediate.dense"
    ffn_output: str = "output.dense"
    embeddings: str = "embeddings"
    projection: str | None = None
    interface: bool = True


_BERT = ModuleNames()
_ELECTRA = ModuleNames(projection="embeddings_project")
_DEBERTA = ModuleNames(
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
    interface=False,
)
_DISTILBERT = ModuleNames(
    layers="transformer.layer",
    attention="attention",
    attention_dropout="attention.dropout",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    after_attention="attention.out_lin",
    after_ffn="ffn.dropout",
    ffn="ffn.lin1",
    ffn_output="ffn.lin2",
)
_MPNET = ModuleNames(
    attention="attention.attn",
    attention_dropout="attention.attn.dropout",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    after_attention="attention.dropout",
    interface=False,
)

FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _ELECTRA,
    "deberta-v2": _DEBERTA,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
}
_POOLER = "pooler"  # freshly trained on top of the encoder by every method, so part of the task head


class Encoder:
    """A Hugging Face encoder, bare or with a task's classifier, seen as embeddings, layers of attention heads, and a head."""

    def __init__(self, model: nn.Module) -> None:
        config: Any = getattr(model, "config", None)
        if getattr(config, "model_type", None) not in FAMILIES:
            kind = f"'{config.model_type}' model" if hasattr(config, "model_type") else "model that is not Hugging Face's"
            raise UsageError(f"the attention heads of a {kind} are not known here; known are {', '.join(FAMILIES)}")
        self.model = model
        self.model_type: str = config.model_type
        self.module_names = FAMILIES[config.model_type]
        self.num_heads: int = config.num_attention_heads
        self.hidden_size: int = config.hidden_size
        self.head_size: int = self.hidden_size // self.num_heads
        prefix = str(model.base_model_prefix)
        self._prefix = f"{prefix}." if hasattr(model, prefix) else ""  # before the encoder's own names

    @property
    def base(self) -> nn.Module:
        """The encoder without the task's classifier."""
        return self.model.get_submodule(self._prefix.rstrip("."))

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's layers, lowest first."""
        layers: nn.ModuleList = attrgetter(self.module_names.layers)(self.base)
        return layers

    @property
    def layer_stack(self) -> nn.Module:
        """The module whose forward pass runs all layers."""
        return self.base.get_submodule(self.module_names.layers.rpartition(".")[0])

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers)

    @property
    def layer_parameters(self) -> list[str]:
        """Names of the layers' parameters: the backbone without embeddings."""
        return [name for name, _ in self.model.named_parameters() if self.layer_of(name) is not None]

    def layer_of(self, name: str) -> int | None:
        """The layer that a module or parameter of the whole model belongs to."""
        layers = f"{self._prefix}{self.module_names.layers}."
        return int(name.removeprefix(layers).partition(".")[0]) if name.startswith(layers) else None

    def is_in_embeddings(self, name: str) -> bool:
        """Whether a module or parameter of the whole model belongs to the embeddings."""
        return name.startswith(f"{self._prefix}{self.module_names.embeddings}.")

    def path(self, layer: int, part: str) -> str:
        """The name in the whole model of a layer's `part` (an attribute of `ModuleNames`)."""
        return f"{self._prefix}{self.module_names.layers}.{layer}.{getattr(self.module_names, part)}"

    def replace(self, layer: int, part: str, build: Callable[[Any], nn.Module]) -> None:
        """Put `build(module)` in the place of a layer's `part`."""
        path = self.path(layer, part)
        self.model.set_submodule(path, build(self.model.get_submodule(path)))

    def set_attention(self, name: str, function: AttentionFunction) -> AttentionFunction:
        """Let every layer compute its attention with `function`, registered under `name` in transformers' attention interface.

        Its attention mask is added to the scores: [batch, 1, 1, tokens], or None if every token may attend to every other.

        Returns:
            The function that computed it before.

        Raises:
            UsageError: this family computes attention by itself.
        """
        from transformers import AttentionInterface, AttentionMaskInterface

        previous = self.attention_function
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _attention_mask)
        self.base.config._attn_implementation = name  # type: ignore[union-attr]
        return previous

    @property
    def attention_function(self) -> AttentionFunction:
        """What computes attention, from transformers' attention interface.

        Raises:
            UsageError: this family computes attention by itself.
        """
        from transformers import AttentionInterface

        if not self.module_names.interface:
            raise UsageError(f"the attention of a '{self.model_type}' model is out of reach: choose another backbone or method")
        config: Any = self.base.config
        function: AttentionFunction = AttentionInterface()[config._attn_implementation]
        return function

    @contextmanager
    def forward_through(self, first: int, last: int, states: Tensor | None = None) -> Iterator[None]:
        """Within this context, a forward pass computes the layers [first, last) only.

        Args:
            states: the input of layer `first`, [sequences, tokens, hidden size], in the place of the embeddings.
        """
        parts: dict[str, nn.Module] = {self.module_names.layers: self.layers[first:last]}
        if states is not None:
            parts[self.module_names.embeddings] = _PrecomputedStates(states)
            if self.module_names.projection and hasattr(self.base, self.module_names.projection):
                parts[self.module_names.projection] = nn.Identity()
        before = {name: self.base.get_submodule(name) for name in parts}
        try:
            for name, module in parts.items():
                self.base.set_submodule(name, module)
            yield
        finally:
            for name, module in before.items():
                self.base.set_submodule(name, module)

    def output_projection(self, layer: int) -> nn.Module:
        """The Linear whose input is the concatenation of a layer's head outputs O_h."""
        return self.layers[layer].get_submodule(self.module_names.output)

    def head_rows(self, head: int) -> range:
        """The rows of W_Q, W_K and W_V ([out, in]) that belong to a head."""
        return range(head * self.head_size, (head + 1) * self.head_size)

    def task_head_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The task head: the pooler where there is one, and the classifier; names as in the whole model."""
        for name, parameter in self.model.named_parameters():
            if not name.startswith(self._prefix) or name.removeprefix(self._prefix).startswith(f"{_POOLER}."):
                yield name, parameter


def additive_mask(token_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to attention scores so that no token attends to padding.

    Args:
        token_mask: bool [batch, tokens], False for padding.

    Returns:
        [batch, 1, 1, tokens].
    """
    return torch.zeros_like(token_mask, dtype=dtype).masked_fill_(~token_mask, torch.finfo(dtype).min)[:, None, None]


def _attention_mask(attention_mask: Tensor | None = None, dtype: torch.dtype = torch.float32, **_: Any) -> Tensor | None:
    """`additive_mask` for transformers' mask interface; it does not wait for the device to tell whether there is padding."""
    return None if attention_mask is None else additive_mask(attention_mask, dtype)


class _PrecomputedStates(nn.Module):
    """Returns given hidden states in place of the embeddings."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.states
