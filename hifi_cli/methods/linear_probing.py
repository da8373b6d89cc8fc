"""Linear probing: the backbone is frozen, the task head trains."""

from hifi_cli.methods.base import Method, task_head_names, train_only
from hifi_cli.models.encoder import Encoder


class LinearProbing(Method):
    """Train the task head only."""

    def prepare(self, encoder: Encoder) -> None:
        train_only(encoder, task_head_names(encoder))
