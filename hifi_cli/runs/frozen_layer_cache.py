"""Frozen lower layers are computed once per example (`reuse_frozen`): without their dropout, otherwise exactly."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from hifi_cli.errors import RunFailed
from hifi_cli.models.encoder import Encoder
from hifi_cli.tasks.batches import collate, evaluation_order
from hifi_cli.tasks.tokenization import Example


def lowest_trained_layer(encoder: Encoder) -> int:
    """The lowest layer that trains: 0 if the embeddings train, the number of layers if only the task head trains."""
    head = {name for name, _ in encoder.task_head_parameters()}
    trained = [name for name, parameter in encoder.model.named_parameters() if parameter.requires_grad and name not in head]
    layers = [encoder.layer_of(name) for name in trained]
    return min((0 if layer is None else layer for layer in layers), default=encoder.num_layers)


class FrozenLayerCache:
    """The output of the layers below the lowest trained one, for each training example.

    Args:
        first_token_only: keep the first token's output alone: no layer trains, and the task head reads no other token.

    Attributes:
        layer: the lowest trained layer, whose input is cached.
    """

    def __init__(self, encoder: Encoder, layer: int, *, first_token_only: bool) -> None:
        self.layer = layer
        self._encoder = encoder
        self._first_token_only = first_token_only
        self._states: dict[int, list[Tensor]] = {}
        self._examples: Sequence[Example] = ()  # kept alive, so that no other example can get the `id` of one of them

    @torch.no_grad()
    def compute(self, examples: Sequence[Example], pad: dict[str, int], batch_size: int, device: torch.device) -> None:
        """Run the frozen layers over all examples in evaluation mode, in an order that depends only on the examples.

        Raises:
            RunFailed: the states of all examples do not fit in memory.
        """
        self._examples = examples
        was_training = self._encoder.model.training
        self._encoder.model.eval()
        try:
            with self._encoder.forward_through(0, self.layer):
                for batch in evaluation_order(examples, batch_size):
                    self._store([examples[index] for index in batch], pad, device)
        except (MemoryError, torch.OutOfMemoryError):
            raise RunFailed("the frozen layers' outputs of all examples do not fit in memory; set reuse_frozen=false") from None
        finally:
            self._encoder.model.train(was_training)

    def _store(self, examples: list[Example], pad: dict[str, int], device: torch.device) -> None:
        lists = collate(examples, pad)
        lists.pop("word_spans", None)
        tokens = lists["input_ids"].shape[-1]
        flat = {name: values.view(-1, tokens).to(device) for name, values in lists.items()}
        states = iter(self._encoder.base(**flat).last_hidden_state)
        for example, kept in zip(examples, self.kept_tokens(examples), strict=True):
            self._states[id(example)] = [next(states)[: len(sequence["input_ids"])].clone() for sequence in kept.sequences]

    def kept_tokens(self, examples: list[Example]) -> list[Example]:
        """The examples with those tokens only whose outputs are kept: what a forward pass from them gets."""
        return [_first_token(example) for example in examples] if self._first_token_only else examples

    @contextmanager
    def used_for(self, examples: Sequence[Example], width: int) -> Iterator[None]:
        """Inside this block, a forward pass over these examples, padded to `width`, starts at the lowest trained layer."""
        states = pad_sequence([state for example in examples for state in self._states[id(example)]], batch_first=True)
        states = functional.pad(states, (0, 0, 0, width - states.shape[1]))
        with self._encoder.forward_through(self.layer, self._encoder.num_layers, states):
            yield


def _first_token(example: Example) -> Example:
    sequences = ({name: values[:1] for name, values in lists.items()} for lists in example.sequences)
    return replace(example, sequences=tuple(sequences))
