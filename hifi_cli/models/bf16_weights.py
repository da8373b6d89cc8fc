"""bfloat16 copies of the weights that Linears multiply by, for the steps that a GPU repeats.

Autocast casts each weight by itself, in every forward pass, also those that never change: its
cache lasts for one pass, and holds only weights that train. On a GPU these casts, and those of the
gradients back to float32, are most of a sixth of the time in which it computes. Here a frozen
weight is cast once for all steps, and those that train are cast in one call a step.

The Linears multiply the same numbers as under autocast, so that loss and gradients are the same to
the bit. The model keeps its float32 weights under their names: a copy takes the place of a weight
in `forward` of its Linear alone, and only inside `in_use`. So optimizer, evaluation and what is
stored know nothing of copies, and what reads a weight in another way gets float32, as without
copies.

The copies take 2 bytes a weight between the steps too. In a step, autocast's own casts take as
much: they are kept for the backward pass.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from hifi_cli.models.modules import RowLinear


@dataclass(frozen=True)
class _TunedRows:
    """Copies of matrices of one width (or of biases), and what is written into them in every step.

    Attributes:
        matrices: one below the other, bfloat16 [rows of all, width], of biases [entries of all].
        index: the numbers of the tuned rows in `matrices`, int64.
        rows: the copies of the tuned rows, matrix by matrix.
    """

    matrices: Tensor
    index: Tensor
    rows: Sequence[Tensor]

    def write(self) -> None:
        """Write the tuned rows of all matrices in one operation."""
        self.matrices.index_copy_(0, self.index, torch.cat([*self.rows]))


class Bf16Weights:
    """The copies of a model's weights, for one stage: what trains and what is frozen stays so.

    Args:
        model: has the Linears.

    Attributes:
        trained: the copies of the parameters that train. Autograd takes them for parameters: the
            gradients are theirs.
        frozen: the copies of the others, of matrices with tuned rows too.
        tuned_rows: what writes these rows.
    """

    def __init__(self, model: nn.Module) -> None:
        self.trained: dict[nn.Parameter, Tensor] = {}
        self.frozen: dict[nn.Parameter, Tensor] = {}
        self.tuned_rows: list[_TunedRows] = []
        # The functions that compute in the place of a module's own `forward`.
        self._forwards: dict[nn.Module, Callable[[Tensor], Tensor]] = {}
        tuned = [module for module in model.modules() if type(module) is RowLinear]
        self.copy_tuned(tuned)
        # A RowLinear does not call the Linear that it has the weights of.
        not_called = {module.base_layer for module in tuned}
        for module in model.modules():
            if _is_plain_linear(module) and module not in not_called:
                self._copy_linear(module)
        self._versions = {parameter: parameter._version for parameter in self.frozen}

    def _copy_linear(self, linear: nn.Linear) -> None:
        """Copy the weights of a Linear."""
        weight, bias = _parameters_of(linear)
        multiply = partial(
            functional.linear, weight=self._copy(weight), bias=self._copy_if_any(bias)
        )
        self._forwards[linear] = partial(_under_autocast, linear, multiply)

    def copy_tuned(self, modules: Sequence[RowLinear]) -> None:
        """Copy the weights of RowLinears, such that one operation writes the tuned rows of all."""
        tuned_rows: dict[nn.Parameter, tuple[Tensor, nn.Parameter]] = {}
        for module in modules:
            weight, bias = _parameters_of(module.base_layer)
            tuned_rows[weight] = module.index, module.rows
            if bias is not None and module.row_bias is not None:
                tuned_rows[bias] = module.index, module.row_bias
        self._copy_with_rows(tuned_rows)
        for module in modules:
            weight, bias = _parameters_of(module.base_layer)
            multiply = partial(
                module.multiply,
                rows=self._copy(module.rows),
                row_bias=self._copy_if_any(module.row_bias),
                weight=self._copy(weight),
                bias=self._copy_if_any(bias),
            )
            self._forwards[module] = partial(_under_autocast, module, multiply)

    def _copy_with_rows(self, tuned_rows: dict[nn.Parameter, tuple[Tensor, nn.Parameter]]) -> None:
        """Copy weights of which some rows train.

        Args:
            tuned_rows: of each weight the numbers of these rows, and the rows.
        """
        of_width: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for weight in tuned_rows:
            of_width[weight.shape[1:]].append(weight)
        for weights in of_width.values():
            joined = torch.cat([weight.detach().bfloat16() for weight in weights])
            parts = joined.split([len(weight) for weight in weights])
            self.frozen.update(zip(weights, parts, strict=True))
            first = 0
            numbers = []
            rows = []
            for weight in weights:
                index, values = tuned_rows[weight]
                numbers.append(index + first)
                rows.append(self._copy(values))
                first += len(weight)
            self.tuned_rows.append(_TunedRows(joined, torch.cat(numbers), rows))

    def _copy(self, parameter: nn.Parameter) -> Tensor:
        """Return the copy of a parameter, which several modules may share."""
        copies = self.trained if parameter.requires_grad else self.frozen
        if parameter not in copies:
            copy = parameter.detach().bfloat16()
            copies[parameter] = copy.requires_grad_(parameter.requires_grad)
        return copies[parameter]

    def _copy_if_any(self, parameter: nn.Parameter | None) -> Tensor | None:
        """Return the copy of a bias; None where there is no bias."""
        return None if parameter is None else self._copy(parameter)

    @torch.no_grad()
    def renew_frozen(self) -> None:
        """Copy frozen weights anew that were changed in place, by a method's hook for example."""
        for parameter, copy in self.frozen.items():
            # PyTorch counts under this name how often a tensor was changed in place.
            version = parameter._version
            if version != self._versions[parameter]:
                copy.copy_(parameter)
                self._versions[parameter] = version

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the copies of what trains to its values, in a few operations."""
        if self.trained:
            torch._foreach_copy_([*self.trained.values()], [*self.trained])
        for tuned in self.tuned_rows:
            tuned.write()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """In this context, the model's Linears multiply by the copies, where autocast is on."""
        for module, forward in self._forwards.items():
            # The attribute of an instance comes before the method of its class.
            vars(module)["forward"] = forward
        try:
            yield
        finally:
            for module in self._forwards:
                del vars(module)["forward"]

    def take_gradients(self) -> dict[nn.Parameter, Tensor]:
        """Take the gradients out of the copies.

        Returns:
            bfloat16, of each parameter that got one through its copy.
        """
        gradients: dict[nn.Parameter, Tensor] = {}
        for parameter, value in self.trained.items():
            if value.grad is not None:
                gradients[parameter] = value.grad
                value.grad = None
        return gradients


def _is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module multiplies by its parameters as PyTorch's Linear does.

    A subclass may compute something else, as may one with a `forward` of its own; weights that are
    no parameters are computed anew in every pass.
    """
    if type(module) is not nn.Linear or "forward" in vars(module):
        return False
    weights = [module.weight] if module.bias is None else [module.weight, module.bias]
    return all(isinstance(weight, nn.Parameter) for weight in weights)


def _parameters_of(linear: nn.Linear) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Return W and b of a Linear; None in the place of b where there is none."""
    bias = None if linear.bias is None else linear.get_parameter("bias")
    return linear.get_parameter("weight"), bias


def _under_autocast(module: nn.Module, multiply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Multiply by copies under autocast; elsewhere compute as the module does."""
    if not torch.is_autocast_enabled(x.device.type):
        output: Tensor = type(module).forward(module, x)
        return output
    return multiply(x)
