"""Top-k fine-tuning: the last k layers train, and the task head."""

from pydantic import Field

from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except
from hifi_cli.models.encoder import Encoder


class TopK(Method):
    """Train the last k layers and the task head; what is below is frozen (EH-FT, table 1)."""

    class Settings(Method.Settings):
        """Number of trainable layers."""

        k: int = Field(3, ge=1)
        """Number of trainable layers, from the top; EH-FT tries 3, 6 and 12."""

    def prepare(self, encoder: Encoder) -> None:
        if self.settings.k > encoder.num_layers:
            raise UsageError(
                f"settings.k={self.settings.k}: the encoder has only {encoder.num_layers} layers"
            )
        top_layers = range(encoder.num_layers - self.settings.k, encoder.num_layers)
        parameters = [
            name for name in encoder.layer_parameters if encoder.layer_of(name) in top_layers
        ]
        freeze_except(encoder, [*encoder.task_head, *parameters])
