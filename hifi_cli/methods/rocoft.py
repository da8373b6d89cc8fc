"""RoCoFT (Kowsher et al., ACL 2025, arXiv 2410.10075): a few rows or columns of weights train."""

from typing import Literal, get_args

from torch import Tensor, nn

from hifi_cli.config.base import PositiveCount
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import ColumnLinear, RowLinear

Target = Literal["query", "key", "value", "output", "ffn", "ffn_output"]
TARGETS: tuple[Target, ...] = get_args(Target)


class RoCoFT(Method):
    """Train the first r rows or columns of weight matrices, their biases, and the task head."""

    class Settings(Method.Settings):
        """How many rows or columns train."""

        axis: Literal["row", "column"] = "row"
        """`row`: an output of the matrix (a row of the weight, [out, in]); `column`: an input."""
        r: PositiveCount = 3
        """Rows or columns of each matrix."""
        targets: list[Target] = list(TARGETS)
        """Matrices of a layer: projections of attention, and those of the feed-forward network."""
        biases: bool = True
        """Whether the whole bias vectors of these matrices train too, as in the authors' code."""

    def prepare(self, encoder: Encoder) -> None:
        freeze_except(encoder, encoder.task_head)
        for layer in range(encoder.num_layers):
            for part in TARGETS:
                if part in self.settings.targets:
                    encoder.replace_module(layer, part, self._tuned)

    def _tuned(self, linear: nn.Linear) -> nn.Module:
        """Make the module that takes a matrix's place.

        Raises:
            UsageError: the matrix has fewer rows or columns.
        """
        r = self.settings.r
        axis = self.settings.axis
        size = linear.out_features if axis == "row" else linear.in_features
        if r > size:
            raise UsageError(f"settings.r={r}: a matrix of the encoder has only {size} {axis}s")
        module = self._with_own_parameters(linear, list(range(r)))
        # The module has frozen the whole Linear.
        if self.settings.biases and linear.bias is not None:
            linear.bias.requires_grad_(True)
        return module

    def _with_own_parameters(self, linear: nn.Linear, numbers: list[int]) -> nn.Module:
        """Make the module in which the rows or columns of these numbers train."""
        if self.settings.axis == "row":
            # The bias trains whole or not at all, so that its rows are no parameters of their own.
            return RowLinear(linear, numbers, biases=False)
        return ColumnLinear(linear, numbers)

    def delta(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the trained tensors, and the numbers of their rows or columns.

        So the stored file says by itself which part of W each tensor is.
        """
        index = {name: buffer for name, buffer in model.named_buffers() if name.endswith(".index")}
        return super().delta(model) | index
