"""What training changed, as a safetensors file that says what it belongs to."""

import json
from pathlib import Path

from torch import Tensor

from hifi_cli.config.base import ConfigModel, parse
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path

_KEY = "hifi"


class DeltaMetadata(ConfigModel):
    """What a delta belongs to, in the header of its file."""

    method: str
    backbone: str
    backbone_weights_id: str
    heads: list[list[int]] | None


def save(path: Path, tensors: dict[str, Tensor], metadata: DeltaMetadata) -> None:
    """Write tensors and what they belong to (a JSON object in the file's header), atomically."""
    from safetensors.torch import save_file

    # One metadata key only: safetensors writes several in random order, and equal runs must give
    # equal files.
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(contiguous, temporary, metadata={_KEY: metadata.model_dump_json()})


def load(path: Path) -> tuple[dict[str, Tensor], DeltaMetadata]:
    """Read a delta and what it belongs to.

    Raises:
        MissingError: no such file.
        UsageError: it is damaged or not a delta of this project.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = dict(json.loads((file.metadata() or {})[_KEY]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, parse(DeltaMetadata, header, str(path))
    except FileNotFoundError:
        raise MissingError(f"no delta at {path}") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged or not a delta ({error}); train the run again with --force") from None
