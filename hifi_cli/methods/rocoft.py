"""RoCoFT (Kowsher et al., ACL 2025, arXiv 2410.10075): a few rows or columns of weights train."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hifi_cli.config.base import ConfigModel, PositiveCount
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, freeze_except, task_head_names
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import ColumnLinear, RowLinear

Target = Literal["query", "key", "value", "output", "ffn", "ffn_output"]
TARGETS: tuple[Target, ...] = get_args(Target)


class RoCoFT(Method):
    """Train r rows or columns of weight matrices, their biases, and the task head."""

    class Settings(ConfigModel):
        """Which rows or columns train."""

        axis: Literal["row", "column"] = "row"
        """`row`: an output of the matrix (a row of the weight, [out, in]); `column`: an input."""
        r: PositiveCount = 3
        """Rows or columns of each matrix."""
        select: Literal["first", "random", "norm"] = "first"
        """`first`: the first r; `random`: drawn with the run's seed; `norm`: with the largest
        norm."""
        targets: list[Target] = list(TARGETS)
        """Matrices of a layer: projections of attention, and those of the feed-forward network."""
        biases: bool = True
        """Whether the whole bias vectors of these matrices train too, as in the authors' code."""

    def prepare(self, encoder: Encoder) -> None:
        freeze_except(encoder, task_head_names(encoder))
        self._generator = torch.Generator().manual_seed(self.context.seed)
        for layer in range(encoder.num_layers):
            for part in TARGETS:
                if part in self.settings.targets:
                    encoder.replace(layer, part, self._tuned)

    def _tuned(self, linear: nn.Linear) -> nn.Module:
        """The module in a matrix's place."""
        index = self._index(linear)
        by_row = self.settings.axis == "row"
        module = RowLinear(linear, index, biases=False) if by_row else ColumnLinear(linear, index)
        if self.settings.biases and linear.bias is not None:
            linear.bias.requires_grad_(True)
        return module

    def _index(self, linear: nn.Linear) -> list[int]:
        """The numbers of the tuned rows or columns, ascending."""
        r, axis = self.settings.r, self.settings.axis
        size = linear.out_features if axis == "row" else linear.in_features
        if r > size:
            raise UsageError(f"settings.r={r}: a matrix of the encoder has only {size} {axis}s")
        if self.settings.select == "first":
            return list(range(r))
        if self.settings.select == "random":
            return sorted(torch.randperm(size, generator=self._generator)[:r].tolist())
        norms = linear.weight.detach().norm(dim=1 if axis == "row" else 0)
        return sorted(norms.topk(r).indices.tolist())

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        """The trained tensors, and their numbers: another device may round `norm` otherwise."""
        index = {name: buffer for name, buffer in model.named_buffers() if name.endswith(".index")}
        return super().delta(model) | index
