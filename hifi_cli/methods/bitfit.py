"""BitFit (Ben-Zaken et al., ACL 2022): the bias terms and the classifier train."""

from hifi_cli.methods.base import Method, train_only
from hifi_cli.models.encoder import Encoder


class BitFit(Method):
    """Train every parameter with `bias` in its name, and the classifier, as the authors' code does.

    A pretrained pooler keeps its weights there; one without pretrained weights trains whole.
    """

    def prepare(self, encoder: Encoder) -> None:
        backbone = f"{encoder.model.base_model_prefix}."
        train_only(
            encoder,
            (
                name
                for name, _ in encoder.model.named_parameters()
                if "bias" in name or not name.startswith(backbone) or name in self.context.fresh
            ),
        )
