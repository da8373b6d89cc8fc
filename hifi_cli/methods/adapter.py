"""Adapter (Houlsby et al., ICML 2019): two small bottlenecks in every layer train."""

import torch
from pydantic import Field
from torch import nn

from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import insert_adapters

# Near zero, so that training starts at the pretrained model.
_INIT_STD = 1e-3


class Adapter(Method):
    """Train two bottlenecks per layer, the LayerNorms and the task head.

    They stand after the output of attention and of the feed-forward network, before residual and
    LayerNorm.
    """

    class Settings(Method.Settings):
        """Size of the adapters."""

        bottleneck: int = Field(64, ge=1)
        """Hidden units of each adapter."""

    mergeable = False

    def prepare(self, encoder: Encoder) -> None:
        generator = torch.Generator().manual_seed(self.context.seed)
        size = encoder.config.hidden_size
        width = self.settings.bottleneck

        def near_zero(inputs: int, outputs: int) -> nn.Linear:
            """A Linear with weights from a normal distribution, truncated at two sigmas."""
            linear: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
            bound = 2 * _INIT_STD
            nn.init.trunc_normal_(linear.weight, 0, _INIT_STD, -bound, bound, generator)
            nn.init.zeros_(linear.bias)
            return linear

        def build() -> tuple[nn.Linear, nn.Linear]:
            down = near_zero(size, width)
            up = near_zero(width, size)
            return down, up

        added = insert_adapters(encoder, build)
        freeze_except(encoder, [*encoder.task_head, *added])
