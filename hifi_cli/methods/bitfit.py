"""BitFit (Ben-Zaken et al., ACL 2022): the bias terms and the classifier train."""

from typing import Literal

from hifi_cli.config import Section
from hifi_cli.methods.base import Method, head_names, train_only
from hifi_cli.models.encoder import Encoder


class BitFit(Method):
    """Train biases and the task head."""

    class Settings(Section):
        """Which biases train.

        Attributes:
            biases: `all`: every parameter with `bias` in its name and the classifier, as BitFit's authors do; a
                pretrained pooler keeps its weights then, one without pretrained weights trains whole. `layers`: those
                of the encoder's layers but for the last LayerNorm, as EH-FT's code does, and the whole task head.
        """

        biases: Literal["all", "layers"] = "all"

    def prepare(self, encoder: Encoder) -> None:
        parameters = [name for name, _ in encoder.model.named_parameters()]
        if self.settings.biases == "all":
            backbone = f"{encoder.model.base_model_prefix}."
            outside = [name for name in parameters if not name.startswith(backbone) or name in self.context.fresh]
            train_only(encoder, [*outside, *(name for name in parameters if "bias" in name)])
        else:
            inside = [name for name in encoder.layer_parameters if "bias" in name]
            last = max(index for index, name in enumerate(inside) if "norm" in name.lower())
            train_only(encoder, [*head_names(encoder), *inside[:last], *inside[last + 1 :]])
