"""Task heads: which one a task gets, and those that Hugging Face's classes do not have."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from hifi_cli.config.run_config import TaskHeadConfig
from hifi_cli.models.encoder import Encoder
from hifi_cli.tasks.kinds import Kind, TaskKind


@dataclass(frozen=True)
class TaskHeadSpec:
    """A task's requirements of its task head.

    Attributes:
        kind: of task, for messages.
        rules: what follows from the kind.
        config: the configured task head.
    """

    kind: Kind
    rules: TaskKind
    config: TaskHeadConfig

    @property
    def is_own(self) -> bool:
        """Whether the task head is one of this file and not Hugging Face's."""
        is_mlp = self.config.kind == "mlp"
        return not self.rules.reads_all_tokens and (self.rules.reads_words or is_mlp)

    @property
    def outputs(self) -> int:
        """Logits of a sequence, or of each token."""
        return self.rules.logits_per_sequence(one_logit=self.config.one_logit)

    @property
    def shape(self) -> tuple[Any, ...]:
        """All that decides how many parameters a model with it has, and under which names."""
        rules = self.rules
        reads = (rules.transformers_class, rules.reads_words, rules.reads_all_tokens)
        return (*reads, len(rules.labels), self.outputs, self.config)


class MLPTaskHead(nn.Module):
    """Two linear layers with an activation between them, without dropout.

    Args:
        inputs: size of the features.
        width: of the hidden layer.
        outputs: number of logits.
        activation: of the hidden layer.
        std: of the initial weights, which `initialize` draws.
    """

    def __init__(
        self, inputs: int, width: int, outputs: int, activation: nn.Module, std: float
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.activation = activation
        self.output = nn.Linear(width, outputs)
        self.std = std

    def forward(self, features: Tensor) -> Tensor:
        return self.output(self.activation(self.hidden(features)))

    @torch.no_grad()
    def initialize(self, generator: Generator) -> None:
        """Draw weights from N(0, std), and biases uniformly within 1 / sqrt(inputs), as PyTorch."""
        for linear in (self.hidden, self.output):
            weight = torch.empty(linear.weight.shape)
            linear.weight.copy_(weight.normal_(0, self.std, generator=generator))
            bound = linear.in_features**-0.5
            bias = torch.empty(linear.bias.shape)
            linear.bias.copy_(bias.uniform_(-bound, bound, generator=generator))


class EncoderWithTaskHead(nn.Module):
    """A backbone and a task head on its last hidden states, called as Hugging Face's models are."""

    base_model_prefix = "backbone"

    def __init__(self, backbone: nn.Module, spec: TaskHeadSpec) -> None:
        super().__init__()
        self.backbone = backbone
        config: Any = backbone.config
        self.config = config
        self.is_causal = Encoder(backbone).is_causal
        inputs = config.hidden_size
        if spec.rules.reads_words:
            # `forward` joins five states, as EH-FT's code does for WiC: that of the first token,
            # those of both target words, their distance and their product.
            inputs = 5 * config.hidden_size
        if spec.config.kind == "mlp":
            width = spec.config.width
            activation: nn.Module = nn.Identity()
            if spec.config.activation == "relu":
                activation = nn.ReLU()
            std = spec.config.init_std
        else:
            # The hidden layer is as wide as a pooler, with a pooler's tanh.
            width = config.hidden_size
            activation = nn.Tanh()
            std = config.initializer_range
        self.task_head = MLPTaskHead(inputs, width, spec.outputs, activation, std)

    def forward(
        self,
        input_ids: Tensor,
        word_spans: Tensor | None = None,
        **lists: Tensor,
    ) -> SimpleNamespace:
        """Compute the logits of a batch.

        Args:
            input_ids: [examples, tokens], or [examples, choices, tokens].
            word_spans: tokens [first, last) of each target word, [examples, words, 2].
            lists: attention mask, token types and the like, as `input_ids`.

        Returns:
            `logits`, [examples, outputs], or [examples, choices].
        """
        choices = input_ids.shape[1:-1]
        lists = {"input_ids": input_ids, **lists}
        flat = {name: values.flatten(0, -2) for name, values in lists.items()}
        states = self.backbone(**flat).last_hidden_state
        features = states[:, 0]
        if self.is_causal:
            features = last_token_states(states, flat["attention_mask"])
        if word_spans is not None:
            first, second = word_states(states, word_spans).unbind(1)
            features = torch.cat(
                [features, first, second, (first - second).abs(), first * second], -1
            )
        logits = self.task_head(features)
        if choices:
            logits = logits.view(-1, *choices)
        return SimpleNamespace(logits=logits)


def last_token_states(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Take the last real token's state, the only one in a decoder that depends on the whole text.

    Args:
        states: [examples, tokens, hidden size].
        attention_mask: [examples, tokens], 0 for padding on either side.

    Returns:
        [examples, hidden size].
    """
    # The first place at which all real tokens have been counted.
    last = attention_mask.cumsum(1).argmax(1)
    return states[torch.arange(len(states), device=states.device), last]


def word_states(states: Tensor, spans: Tensor) -> Tensor:
    """Compute the mean state of each target word's sub-tokens.

    Args:
        states: [examples, tokens, hidden size].
        spans: tokens [first, last), [examples, words, 2].

    Returns:
        [examples, words, hidden size].
    """
    position = torch.arange(states.shape[1], device=states.device)
    inside = ((position >= spans[..., :1]) & (position < spans[..., 1:])).to(states.dtype)
    return inside @ states / inside.sum(-1, keepdim=True)
