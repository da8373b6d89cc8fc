"""The user's own code that a configuration names: of its methods, and of its ranking."""

from collections.abc import Sequence
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.config.run_config import RunConfig
from hifi_cli.config.specs import code_file
from hifi_cli.digests import digest, file_digest


def own_code_files(config: RunConfig) -> list[Path]:
    """Return the files of the user's own code, those of methods first; they need not be there.

    Args:
        config: its names carry the user's own files.

    Raises:
        UsageError: a method's YAML names code that does not lie beside it.
    """
    files = []
    yamls = [registry.own_file(stage_config.method) for stage_config in config.stage_configs]
    # Both stages may be of one method, whose code counts once.
    for yaml in dict.fromkeys(yamls):
        # A method of this package has no file of the user's.
        if yaml is None:
            continue
        # A user's YAML may name an implementation of this package: then there is no code either.
        code = code_file(yaml)
        if code:
            files.append(yaml.parent / code)
    ranking = registry.own_file(config.heads.rank)
    if ranking:
        files.append(ranking)
    return files


def digest_of_code(files: Sequence[Path]) -> str | None:
    """Return the SHA-256 of the user's own code, as records have it; None: there is none."""
    digests = [file_digest(file) for file in files]
    if not digests:
        return None
    # The digest of a single file is the file's own, which `sha256sum` prints too.
    if len(digests) == 1:
        return digests[0]
    return digest(digests, 64)


def own_code_digest(config: RunConfig) -> str | None:
    """Return the SHA-256 of the user's own code of a run; None: there is none."""
    return digest_of_code(own_code_files(config))
