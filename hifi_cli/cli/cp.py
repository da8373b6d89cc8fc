"""`hifi cp`: a shipped YAML copied out to edit."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli import registry
from hifi_cli.cli import options


def cp(
    name: Annotated[str, typer.Argument(help="A name that hifi ls lists; tasks/rte where several kinds share it.")],
    dest: Annotated[Path, typer.Argument(help="A file or directory.")],
    debug: options.Debug = False,
) -> None:
    """Copy a shipped YAML out to edit; use it by its path, for example --task ./my-rte.yaml."""
    from hifi_cli.errors import UsageError
    from hifi_cli.files import write_text

    folder, slash, stem = name.rpartition("/")
    kinds = [kind for kind in registry.KINDS if stem in registry.names(kind) and (not slash or folder == kind)]
    if not kinds:
        known = [known for kind in registry.KINDS for known in registry.names(kind)]
        raise UsageError(f"nothing is called '{name}'{registry.nearest(stem, known)}")
    if len(kinds) > 1:
        raise UsageError(f"'{name}' is the name of several: {', '.join(f'{kind}/{stem}' for kind in kinds)}")
    source = registry.find(kinds[0], stem)
    target = dest / source.name if dest.is_dir() else dest
    if target.exists():
        raise UsageError(f"{target} is there already")
    write_text(target, source.read_text(encoding="utf-8"))
    print(target)
