"""HiFi (Gui & Xiao, ACL 2023): only the chosen heads' rows of W_Q, W_K and W_V train."""

from functools import partial

from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except, rows_of_heads
from hifi_cli.models.encoder import Encoder
from hifi_cli.models.modules import RowLinear


class HiFi(Method):
    """Train the chosen heads' rows of W_Q, W_K and W_V (Algorithm 3), and the task head.

    W_O is frozen, because the paper's weight set of a head does not have it (section 3.1). The
    paper's 4.2 % counts the rows alone, without biases and task head.
    """

    class Settings(Method.Settings):
        """The parts of a head that train."""

        biases: bool = True
        """Whether the biases of the rows train too (the paper's notation omits them)."""

    needs_heads = True

    def prepare(self, encoder: Encoder) -> None:
        rows_by_layer = rows_of_heads(encoder, self.context.heads)
        # Everything is frozen first; then each projection with chosen heads is replaced by one that
        # holds their rows as parameters of its own.
        freeze_except(encoder, encoder.task_head)
        for layer, rows_by_part in enumerate(rows_by_layer):
            for part, rows in rows_by_part.items():
                # A layer without chosen heads stays frozen, as the lower half does with `midtop`.
                if rows:
                    tuned = partial(RowLinear, rows=rows, biases=self.settings.biases)
                    encoder.replace_module(layer, part, tuned)
