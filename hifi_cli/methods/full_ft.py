"""Full fine-tuning: every parameter trains."""

from hifi_cli.methods.base import Method
from hifi_cli.models.encoder import Encoder


class FullFineTuning(Method):
    """Train everything."""

    may_leave_out_words = True

    def prepare(self, encoder: Encoder) -> None:
        encoder.model.requires_grad_(True)
