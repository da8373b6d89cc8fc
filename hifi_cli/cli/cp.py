"""`hifi cp`: a shipped YAML copied out to edit, or the YAML of a task that a data file is."""

import re
from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options, show
from hifi_cli.config import registry


def complete(incomplete: str) -> list[str]:
    """Completes the names of all kinds, and kind/name."""
    words = [word for kind in registry.KINDS for name in registry.names(kind) for word in (name, f"{kind}/{name}")]
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def cp(
    name: Annotated[
        str,
        typer.Argument(
            help="A name that hifi ls lists (tasks/rte where several kinds share it), a data file or hub:owner/name.",
            autocompletion=complete,
        ),
    ],
    dest: Annotated[Path, typer.Argument(help="A file or directory.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="How a data file is read, for example label=stars.")
    ] = None,
    format: options.OutputFormat = "text",  # noqa: A002
    debug: options.Debug = False,
) -> None:
    """Copy a YAML to edit it, or write that of your own data; use it by its path, for example --task ./my-rte.yaml."""
    from hifi_cli.errors import UsageError
    from hifi_cli.tasks.readers import is_data_source

    if is_data_source(name):
        from hifi_cli.tasks import task_from_data

        task, text = task_from_data.task_yaml(name, overrides or [])
        return _write(text, dest / f"{task}.yaml" if dest.is_dir() else dest, format)
    if overrides:
        raise UsageError(f"'{overrides[0]}': only a data file is read as key=value says; edit the copy of '{name}' instead")
    folder, slash, stem = name.rpartition("/")
    kinds = [kind for kind in registry.KINDS if stem in registry.names(kind) and (not slash or folder == kind)]
    if not kinds:
        known = [known for kind in registry.KINDS for known in registry.names(kind)]
        raise UsageError(f"unknown name '{name}'{registry.nearest(stem, known)}")
    if len(kinds) > 1:
        raise UsageError(f"'{name}' is ambiguous: {', '.join(f'{kind}/{stem}' for kind in kinds)}")
    source = registry.find(kinds[0], stem)
    text = _movable(source.read_text(encoding="utf-8"), source.parent.resolve())
    _write(text, dest / source.name if dest.is_dir() else dest, format)


def _write(text: str, target: Path, form: str) -> None:
    from hifi_cli.errors import UsageError
    from hifi_cli.files import write_text

    if target.exists():
        raise UsageError(f"{target} exists; name another file")
    if not registry.is_file(target.name):
        raise UsageError(f"{target}: the copy's name must end in .yaml, so that commands read it as a file and not as a name")
    write_text(target, text)
    show.print_path(target, form)


def _movable(text: str, folder: Path) -> str:
    """A YAML whose path to what lies beside it holds wherever it is put."""
    return re.sub(r"^path: (?!/)(.+)$", lambda match: f"path: {folder / match[1].strip()}", text, flags=re.MULTILINE)
