"""BitFit (Ben-Zaken et al., ACL 2022): the bias terms and the classifier train."""

from typing import Literal

from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method
from hifi_cli.methods.common import freeze_except, names_without_pretrained_values
from hifi_cli.models.encoder import Encoder


class BitFit(Method):
    """Train biases and the task head."""

    class Settings(Method.Settings):
        """Which biases train."""

        biases: Literal["all", "layers"] = "all"
        """`all`: every bias and the classifier, as BitFit's authors do. A pooler's weights train
        too if they are not pretrained. `layers`: the biases of the encoder's layers and the whole task
        head, as EH-FT's code does. That code counts the LayerNorm of the embeddings as part of the
        first layer, so its bias trains, and leaves that of the last layer's output LayerNorm frozen."""

    def prepare(self, encoder: Encoder) -> None:
        names = [name for name, _ in encoder.model.named_parameters()]
        # The last part of a name decides: MPNet's `relative_attention_bias.weight` is an embedding
        # of distances, no bias.
        biases = [name for name in names if "bias" in name.rpartition(".")[2]]
        if not set(biases) - encoder.task_head.keys():
            raise UsageError(
                f"nothing to train: this '{encoder.model_type}' encoder has no biases; choose"
                " another method"
            )
        if self.settings.biases == "all":
            # A pretrained pooler is part of the encoder here: only its bias trains.
            head = names_without_pretrained_values(encoder, self.context.missing_keys)
        else:
            head = list(encoder.task_head)
            biases = _biases_of_layers(encoder, biases)
        freeze_except(encoder, [*head, *biases])


def _biases_of_layers(encoder: Encoder, biases: list[str]) -> list[str]:
    """Return the biases that train with `layers`: `BitFit.Settings` says which these are.

    Args:
        encoder: the model and its parts.
        biases: names of all biases, in the model's order.
    """
    norms = [name for name in biases if "norm" in name.lower()]
    of_embeddings = [name for name in norms if encoder.is_in_embeddings(name)]
    of_layers = [name for name in biases if encoder.layer_of(name) is not None]
    # The last norm of the layers is the last layer's output LayerNorm. The slice is empty where the
    # norms have no biases.
    last_norm = [name for name in of_layers if name in norms][-1:]
    trained = [name for name in of_layers if name not in last_norm]
    return [*of_embeddings, *trained]
