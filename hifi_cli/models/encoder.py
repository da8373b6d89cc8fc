"""An encoder as the program sees it: embeddings, layers of attention heads, and a task head."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from hifi_cli.errors import UsageError
from hifi_cli.models.families import FAMILIES, ModuleNames

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


class Encoder:
    """A Hugging Face encoder, bare or with a classifier, whatever its architecture names its parts.

    Of a family that is not in `FAMILIES`, `base` and the task head are known, and nothing within
    the backbone: whatever asks for more raises UsageError.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.config = cast(Any, model.config)
        self.model_type: str = self.config.model_type
        prefix = str(model.base_model_prefix)
        # It stands before the encoder's own names.
        self._prefix = ""
        if hasattr(model, prefix):
            self._prefix = f"{prefix}."

    # --- sizes

    @property
    def num_layers(self) -> int:
        """The number of layers, L."""
        return len(self.layers)

    @property
    def last_layer(self) -> int:
        """The number of the last layer; the first one is 0."""
        return self.num_layers - 1

    @property
    def num_heads(self) -> int:
        """Attention heads of a layer."""
        self._refuse_unknown_family()
        return int(self.config.num_attention_heads)

    @property
    def num_key_value_heads(self) -> int:
        """Heads of K and V of a layer; in grouped-query attention, groups of heads share them."""
        configured = getattr(self.config, "num_key_value_heads", None)
        return int(configured or self.num_heads)

    @property
    def head_size(self) -> int:
        """Width of a head's output; some configurations set it apart from the hidden size."""
        configured = getattr(self.config, "head_dim", None)
        return int(configured or self.config.hidden_size // self.num_heads)

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that there are positions for; None where it is not configured.

        RoBERTa and its kin number positions from the one after the padding token's index.
        """
        positions: int | None = getattr(self.config, "max_position_embeddings", None)
        if positions is None:
            return None
        for name, module in self.base.named_modules():
            if name.endswith("position_embeddings"):
                padding = getattr(module, "padding_idx", None)
                return positions if padding is None else positions - padding - 1
        return positions

    @property
    def vocabulary_size(self) -> int | None:
        """Tokens that the word embedding has a row for; None for encoders without such a table."""
        try:
            table = cast(Any, self.base).get_input_embeddings()
        except NotImplementedError:
            return None
        return getattr(table, "num_embeddings", None)

    @property
    def is_causal(self) -> bool:
        """Whether it is a decoder: tokens see none after them, and the task head reads the last."""
        # transformers marks the attention of most decoders, and not that of these.
        if self.model_type in ("bloom", "doge", "mpt", "openai-gpt"):
            return True
        return any(getattr(module, "is_causal", False) for module in self.base.modules())

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    # --- parts and their names

    @property
    def word_embedding(self) -> nn.Embedding | None:
        """The word embedding of a known family.

        None where a method replaced it, or where its weight has other uses too.
        """
        if not self.is_supported_family:
            return None
        embedding = cast(Any, self.base).get_input_embeddings()
        if type(embedding) is not nn.Embedding:
            return None
        parameters = self.model.named_parameters(remove_duplicate=False)
        uses = sum(value is embedding.weight for _, value in parameters)
        return embedding if uses == 1 else None

    @property
    def is_supported_family(self) -> bool:
        """Whether layers, their parts and attention heads can be named."""
        return self.model_type in FAMILIES

    @property
    def module_names(self) -> ModuleNames:
        """The names of the family.

        Raises:
            UsageError: they are not known.
        """
        self._refuse_unknown_family()
        return FAMILIES[self.model_type]

    def _refuse_unknown_family(self) -> None:
        """Refuse an encoder whose layers, parts and attention heads cannot be named.

        Raises:
            UsageError: it is one.
        """
        if not self.is_supported_family:
            raise UsageError(
                f"the attention heads of a '{self.model_type}' model are not known here; known are"
                f" {', '.join(FAMILIES)}; choose another backbone, or a method that names no parts"
                " (full-ft, linear-probing)"
            )

    @property
    def base(self) -> nn.Module:
        """The encoder without the task's classifier."""
        return self.model.get_submodule(self._prefix.rstrip("."))

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's layers, lowest first."""
        return cast(nn.ModuleList, self.base.get_submodule(self.module_names.layers))

    @property
    def embeddings(self) -> nn.Module:
        """The module that makes the first layer's input."""
        return self.base.get_submodule(self.module_names.embeddings)

    @property
    def layer_parameters(self) -> list[str]:
        """Names of the layers' parameters: the backbone without embeddings."""
        return [
            name for name, _ in self.model.named_parameters() if self.layer_of(name) is not None
        ]

    @property
    def task_head(self) -> dict[str, nn.Parameter]:
        """The parameters of classifier and pooler, by name."""
        pooler = f"{self._prefix}pooler."
        head = {}
        for name, parameter in self.model.named_parameters():
            is_in_backbone = name.startswith(self._prefix) and not name.startswith(pooler)
            if not is_in_backbone:
                head[name] = parameter
        return head

    @property
    def classifier_names(self) -> list[str]:
        """Names of the parameters outside of the backbone: the task head without its pooler."""
        return [name for name in self.task_head if not name.startswith(self._prefix)]

    @property
    def norms(self) -> list[str]:
        """Names in the whole model of the backbone's LayerNorms and RMSNorms."""
        return [
            name
            for name, module in self.model.named_modules()
            if name.startswith(self._prefix) and type(module).__name__.endswith("Norm")
        ]

    def layer_of(self, name: str) -> int | None:
        """Return the layer of a module or parameter of the whole model; None if it is in none."""
        layers = f"{self._prefix}{self.module_names.layers}."
        if not name.startswith(layers):
            return None
        number, _, _ = name.removeprefix(layers).partition(".")
        return int(number)

    def layers_above(self, name: str) -> int:
        """Return how far below the task head a parameter is.

        Returns:
            0 for the head and the norm after the last layer, 1 for the last layer, L for the first,
            and L + 1 for embeddings, those of relative positions too.
        """
        layer = self.layer_of(name)
        if layer is not None:
            return self.num_layers - layer
        module, _, _ = name.rpartition(".")
        is_last_norm = module == f"{self._prefix}{self.module_names.last_norm}"
        if is_last_norm or name in self.task_head:
            return 0
        return self.num_layers + 1

    def is_in_embeddings(self, name: str) -> bool:
        """Whether a module or parameter of the whole model belongs to the embeddings."""
        return name.startswith(f"{self._prefix}{self.module_names.embeddings}.")

    def layer_path(self, layer: int) -> str:
        """Return the name in the whole model of a layer, by its number from 0.

        Raises:
            UsageError: the encoder has no such layer. Its name would match no parameter, and a method
                that trains what it matches would train the task head alone.
        """
        if layer not in range(self.num_layers):
            raise UsageError(
                f"layer {layer}: the encoder has the layers 0 to {self.last_layer}"
                " (encoder.last_layer)"
            )
        return f"{self._prefix}{self.module_names.layers}.{layer}"

    def module_paths(self, layer: int, part: str) -> list[str]:
        """Return the names in the whole model of the modules that are a part of a layer.

        Args:
            layer: its number, from 0.
            part: a field of `ModuleNames`.
        """
        names = getattr(self.module_names, part)
        if isinstance(names, str):
            names = [names]
        return [f"{self.layer_path(layer)}.{name}" for name in names]

    def module_path(self, layer: int, part: str) -> str:
        """Return the name in the whole model of a part of a layer that is one module."""
        (path,) = self.module_paths(layer, part)
        return path

    def head_rows(self, head: int, part: str = "query") -> range:
        """Return the rows of W_Q, W_K or W_V ([out, in]) that belong to a head.

        In grouped-query attention, the rows of W_K and W_V are those that the head's group shares.
        """
        if part != "query":
            head = head * self.num_key_value_heads // self.num_heads
        return range(head * self.head_size, (head + 1) * self.head_size)

    # --- changes

    def replace_module(self, layer: int, part: str, build: Callable[[Any], nn.Module]) -> None:
        """Put another module in the place of each module of a part of a layer.

        Args:
            layer: its number, from 0.
            part: a field of `ModuleNames`.
            build: makes the new module from the present one.
        """
        for path in self.module_paths(layer, part):
            self.model.set_submodule(path, build(self.model.get_submodule(path)))

    def merge_modules(self, *kinds: type[nn.Module]) -> None:
        """Put `module.merge()`, a plain Linear, in the place of each module of these kinds."""
        for name, module in list(self.model.named_modules()):
            if isinstance(module, kinds):
                self.model.set_submodule(name, cast(Any, module).merge())

    def unfuse_qkv(self) -> None:
        """Make query, key and value three Linears where the family has one for all of them."""
        if not self.is_supported_family or not self.module_names.fused:
            return

        def unfused(module: nn.Module) -> nn.Module:
            if isinstance(module, QKVLinear):
                return module
            return QKVLinear(cast(nn.Linear, module))

        for layer in range(self.num_layers):
            self.replace_module(layer, "fused", unfused)

    def fuse_qkv(self) -> None:
        """Undo `unfuse_qkv`: the model is again as its class makes it."""
        self.merge_modules(QKVLinear)

    @property
    def can_pack(self) -> bool:
        """Whether layers can compute on packed tokens: tests compare encoders, and no decoders."""
        return self.is_supported_family and self.module_names.interface and not self.is_causal

    @property
    def attention_function(self) -> AttentionFunction:
        """The function that computes attention, from transformers' attention interface.

        Raises:
            UsageError: this family computes attention by itself.
        """
        from transformers import AttentionInterface

        if not self.module_names.interface:
            raise UsageError(
                f"the attention of a '{self.model_type}' model is out of reach: choose another"
                " backbone or method"
            )
        return AttentionInterface()[cast(Any, self.base.config)._attn_implementation]

    def set_attention(self, name: str, function: AttentionFunction) -> AttentionFunction:
        """Let every layer compute attention with another function, as long as the model lives.

        Its attention mask is added to the scores: [batch, 1, tokens, tokens], or None if every
        token may attend to every other.

        Args:
            name: under which transformers' attention interface will have the function.
            function: computes attention.

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

    @contextmanager
    def attention_replaced(
        self, name: str, function: AttentionFunction | None = None
    ) -> Iterator[None]:
        """In this context, every layer computes attention with another function.

        Afterwards nothing of it is left in the model, nor in transformers.

        Args:
            name: of the function in transformers' attention interface.
            function: gets no attention mask; None: transformers' own of this name, with its mask.
        """
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        config: Any = self.base.config
        previous = config._attn_implementation
        if function is not None:
            # No mask function has this name, so that transformers makes no mask [tokens, tokens].
            ALL_ATTENTION_FUNCTIONS[name] = function
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = previous
            # The function may hold tensors of a batch.
            if function is not None:
                del ALL_ATTENTION_FUNCTIONS[name]


def _attention_mask(attention_mask: Tensor | None = None, **settings: Any) -> Tensor | None:
    """Make the additive mask as transformers does; it neither waits for a device nor copies to it."""
    from transformers.masking_utils import sdpa_mask

    # The mask of an encoder without padding hides nothing, and need not be made. Whether a given mask
    # has padding is not looked at, because that would wait for the device. transformers names this
    # setting for encoders alone.
    is_of_encoder = "allow_is_bidirectional_skip" in settings
    settings["allow_is_bidirectional_skip"] = is_of_encoder and attention_mask is None
    settings["allow_is_causal_skip"] = False
    dtype = settings.pop("dtype", torch.float32)
    # bool [batch, 1, tokens, tokens].
    visible = sdpa_mask(attention_mask=attention_mask, **settings)
    if visible is None:
        return None
    # `eager_mask` of transformers before 5.21 copies this 0 from the host.
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, zero, torch.finfo(dtype).min)


class QKVLinear(nn.Module):
    """A Linear for query, key and value as one Linear for each, so that methods can change them."""

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        query, key, value = fused.weight.chunk(3)
        biases = [None, None, None] if fused.bias is None else fused.bias.chunk(3)
        query_bias, key_bias, value_bias = biases
        self.query = linear_of(query, query_bias)
        self.key = linear_of(key, key_bias)
        self.value = linear_of(value, value_bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.query(x), self.key(x), self.value(x)], -1)

    def merge(self) -> nn.Linear:
        """Return the Linear that computes the same."""
        parts: list[Any] = [self.query, self.key, self.value]
        weight = torch.cat([part.weight for part in parts])
        bias = None
        if parts[0].bias is not None:
            bias = torch.cat([part.bias for part in parts])
        return linear_of(weight, bias)


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Make a Linear with copies of the given values.

    Args:
        weight: [out, in].
        bias: [out]; None: the Linear has none.
    """
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear
