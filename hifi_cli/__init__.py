"""hifi: fine-tune encoders by the methods of the HiFi and EH-FT papers, and trust the numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__version__ = "0.1.0"


def open_model(directory: Path | str) -> "tuple[nn.Module, Any]":
    """The model and tokenizer in a directory that `hifi export --format delta` wrote; see `hifi_cli.runs.standalone`."""
    from hifi_cli.runs import standalone  # torch is loaded when it is needed

    return standalone.open_model(directory)
