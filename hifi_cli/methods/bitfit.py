"""BitFit (Ben-Zaken et al., ACL 2022): the bias terms and the classifier train."""

from typing import Literal

from hifi_cli.config.base import ConfigModel
from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, freeze_except, names_without_pretrained_values, task_head_names
from hifi_cli.models.encoder import Encoder


class BitFit(Method):
    """Train biases and the task head."""

    class Settings(ConfigModel):
        """Which biases train."""

        biases: Literal["all", "layers"] = "all"
        """`all`: every bias and the classifier, as BitFit's authors do; of a pooler, the weights
        train too if they are not pretrained. `layers`: the biases of the encoder's layers and the whole task head, as EH-FT's
        code does. There, the LayerNorm of the embeddings counts as part of the first layer and trains; the output LayerNorm of
        the last layer does not."""

    def prepare(self, encoder: Encoder) -> None:
        parameters = [name for name, _ in encoder.model.named_parameters()]
        head = task_head_names(encoder)
        if not any(_is_bias(name) and name not in head for name in parameters):
            raise UsageError(f"nothing to train: this '{encoder.model_type}' encoder has no biases; choose another method")
        if self.settings.biases == "all":
            outside = names_without_pretrained_values(encoder, self.context.missing_keys)
            freeze_except(encoder, [*outside, *filter(_is_bias, parameters)])
        else:
            biases = [name for name in parameters if _is_bias(name)]
            of_embeddings = [name for name in biases if encoder.is_in_embeddings(name) and "norm" in name.lower()]
            of_layers = [name for name in biases if encoder.layer_of(name) is not None]
            norms = [index for index, name in enumerate(of_layers) if "norm" in name.lower()]
            if not norms:
                raise UsageError(
                    f"settings.biases=layers needs LayerNorms with biases, which this '{encoder.model_type}' encoder has not;"
                    " use settings.biases=all"
                )
            last = norms[-1]
            freeze_except(encoder, [*head, *of_embeddings, *of_layers[:last], *of_layers[last + 1 :]])


def _is_bias(name: str) -> bool:
    """Whether a parameter is a bias: not so MPNet's `relative_attention_bias.weight`, an embedding of distances."""
    return "bias" in name.rpartition(".")[2]
