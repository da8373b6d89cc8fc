"""A trained model as a plain Hugging Face directory."""

from pathlib import Path
from typing import Any

from torch import nn

from hifi_cli.errors import UsageError


def export(model: nn.Module, tokenizer: Any, to: Path) -> None:
    """Write a merged model and its tokenizer so that `AutoModelForSequenceClassification.from_pretrained(to)` opens them.

    Raises:
        UsageError: the directory holds something already, or cannot be written.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to} is there already; export into a new directory")
    try:
        to.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(to, safe_serialization=True)  # type: ignore[operator]
        tokenizer.save_pretrained(to)
    except OSError as error:
        raise UsageError(f"cannot write to {to}: {error.strerror}") from None
