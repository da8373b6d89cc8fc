"""Runs that begin with a stored file: a run that is repeated, the heads that `hifi select` wrote."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hifi_cli.cli.option_checks import keys_of_options
from hifi_cli.cli.options import parse_seeds
from hifi_cli.config import registry
from hifi_cli.config.sources import ResolvedConfig, with_overrides
from hifi_cli.errors import UsageError
from hifi_cli.heads.select import HeadSelection
from hifi_cli.results.directory import RunDirectory


def repeated_runs(
    path: Path,
    named: Mapping[str, Any],
    *,
    seeds: str | None,
    overrides: Sequence[str],
    extra: Mapping[str, Any],
    trust: bool,
) -> list[ResolvedConfig]:
    """The configuration of a stored run, with other seeds and keys. The YAMLs that the user wrote for it are used again.

    Args:
        named: options that contradict the run, by name; they must be empty.
        seeds: None: the run's own.
        extra: keys that options of the command stand for; None means not given.
        trust: whether the code that the run's own YAMLs name may be executed.

    Raises:
        MissingError: there is no run.
        UsageError: an option names what the run decides, a key or value is wrong, or there is code that is not trusted.
    """
    from hifi_cli.results.reload import refuse_code

    if given := [option for option, value in named.items() if value]:
        raise UsageError(f"--from repeats a run, which decides {given[0]}: leave it out, or set keys by key=value")
    directory = RunDirectory(path)
    config = directory.read_config()
    for file in directory.user_files.glob("*/*.yaml"):
        registry.register_user_file(file.parent.name, file, trust=trust)
    refuse_code(directory, trust=trust)
    words = [*overrides, *keys_of_options(extra, overrides)]
    return [
        with_overrides(config, words, name=f"run {path}", seed=seed)
        for seed in (parse_seeds(seeds) if seeds else [config.seed])
    ]


def with_heads(runs: list[ResolvedConfig], path: Path) -> list[ResolvedConfig]:
    """The runs with the attention heads of a file that `hifi select` wrote; heads chosen by hand are `heads.given`.

    Raises:
        MissingError: no such file.
        UsageError: not a heads file, damaged, or one of another backbone.
    """
    selection, backbone = HeadSelection.read(path), runs[0].config.backbone.name
    if selection.backbone != backbone:
        raise UsageError(f"{path} holds heads of backbone '{selection.backbone}', not of '{backbone}'")
    return [
        ResolvedConfig(
            run.config.model_copy(update={"heads": run.config.heads.model_copy(update={"given": selection.heads})}),
            run.set_by | {"heads.given": f"--heads {path}"},
        )
        for run in runs
    ]
