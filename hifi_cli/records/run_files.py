"""What is stored for others to read: results.json, which marks a run as finished, manifest.json, and chosen heads."""

from pathlib import Path, PurePath
from typing import Any

from hifi_cli.config.registry import read_yaml
from hifi_cli.config.run_config import config_hash_of, run_path_of
from hifi_cli.errors import UsageError
from hifi_cli.files import read_with_checksum, with_checksum, write_json
from hifi_cli.records.file_types import Manifest, RunResult, check

SCHEMA = MANIFEST_SCHEMA = HEADS_SCHEMA = 1
_AGAIN = "train the run again with --force"


def path_in(directory: Path) -> Path:
    """Where a run's directory has it."""
    return directory / "results.json"


def write(directory: Path, content: dict[str, Any]) -> None:
    """Mark a run as finished."""
    write_json(path_in(directory), with_checksum({"schema": SCHEMA, **content}))


def read(directory: Path) -> dict[str, Any]:
    """A finished run's results, which must be those of the config.yaml beside them.

    Raises:
        MissingError: the run is not finished.
        UsageError: they are damaged, or those of another configuration.
        SchemaError: they were written by a version with another layout.
    """
    path = path_in(directory)
    content = read_with_checksum(path, what="results.json of a finished run", schema=SCHEMA)
    check(RunResult, content, path)
    config_hash, _ = _stored_config(directory)
    if config_hash != content["config_hash"]:
        raise UsageError(
            f"{path} is not the result of the config.yaml beside it (hash {content['config_hash']}, not {config_hash});"
            f" put the config.yaml of the run back, or {_AGAIN}"
        )
    return content


def manifest_path_in(directory: Path) -> Path:
    """Where a run's directory has the manifest."""
    return directory / "manifest.json"


def write_manifest(directory: Path, content: dict[str, Any]) -> None:
    """Store where a run's numbers come from."""
    write_json(manifest_path_in(directory), with_checksum({"schema": MANIFEST_SCHEMA, **content}))


def read_manifest(directory: Path) -> dict[str, Any]:
    """Where a run's numbers come from.

    Raises:
        MissingError: the run has no manifest.
        UsageError: it is damaged.
        SchemaError: it was written by a version with another layout.
    """
    path = manifest_path_in(directory)
    content = read_with_checksum(path, what="manifest", schema=MANIFEST_SCHEMA)
    check(Manifest, content, path)
    return content


def write_heads(path: Path, content: dict[str, Any]) -> None:
    """Store chosen heads."""
    write_json(path, with_checksum({"schema": HEADS_SCHEMA, **content}))


def read_heads(path: Path) -> dict[str, Any]:
    """Chosen heads.

    Raises:
        MissingError: no such file.
        UsageError: it is damaged.
        SchemaError: it was written by a version with another layout.
    """
    return read_with_checksum(path, what="heads", schema=HEADS_SCHEMA)


def check_location(directory: Path, results_dir: Path) -> None:
    """Refuse a run that does not lie where its configuration belongs, as the copy of another one.

    Raises:
        UsageError: it lies elsewhere, or its config.yaml is damaged or missing.
    """
    _, place = _stored_config(directory)
    if directory != results_dir / place:
        raise UsageError(
            f"{directory} holds the run that belongs in {results_dir / place}: move it there, or a copy out of {results_dir}"
        )


def _stored_config(directory: Path) -> tuple[str, PurePath]:
    """The hash and the place of the configuration in a run's directory."""
    path = directory / "config.yaml"
    if not path.is_file():
        raise UsageError(f"{path_in(directory)} has no config.yaml beside it; put that of the run back, or {_AGAIN}")
    content = read_yaml(path)
    try:
        return config_hash_of(content), run_path_of(content)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} is not the configuration of a run ({problem}); {_AGAIN}") from None
