"""Linear probing: the backbone is frozen, the task head trains."""

from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except
from hifi_cli.models.encoder import Encoder


class LinearProbing(Method):
    """Train the task head only."""

    def prepare(self, encoder: Encoder) -> None:
        freeze_except(encoder, encoder.task_head)
