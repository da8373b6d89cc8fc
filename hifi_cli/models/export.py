"""A trained model as a plain Hugging Face directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from hifi_cli.errors import UsageError
from hifi_cli.models.heads import HeadSpec

_PROBLEM = {"regression": "regression", "classification": "single_label_classification"}


def export(model: nn.Module, tokenizer: Any, head: HeadSpec, to: Path) -> None:
    """Write a merged model and its tokenizer so that `from_pretrained(to)` and `pipeline("text-classification", to)` open them.

    Raises:
        UsageError: the directory holds something already, or cannot be written.
    """
    config: Any = model.config
    config.problem_type = _PROBLEM.get(head.kind)  # without it a pipeline puts a number through a sigmoid
    with new_directory(to):
        model.save_pretrained(to, safe_serialization=True)  # type: ignore[operator]
        tokenizer.save_pretrained(to)


@contextmanager
def new_directory(to: Path) -> Iterator[None]:
    """Make a directory that must not hold anything yet, for what is written inside the `with`.

    Raises:
        UsageError: it holds something already, or cannot be written.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to} is there already; export into a new directory")
    try:
        to.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {to}: {error.strerror}") from None
