"""`hifi ls`: what there is."""

from typing import Annotated

import typer

from hifi_cli import registry
from hifi_cli.cli import options


def ls(
    kind: Annotated[str, typer.Argument(help="tasks, methods, backbones, protocols, tables or figures.")],
    debug: options.Debug = False,
) -> None:
    """List the tasks, methods, backbones, protocols, tables or figures, with a line each."""
    from hifi_cli.errors import UsageError

    if kind not in registry.KINDS:
        raise UsageError(f"unknown kind '{kind}'{registry.nearest(kind, registry.KINDS)} (one of {', '.join(registry.KINDS)})")
    names = registry.names(kind)
    width = max(map(len, names), default=0)
    for name in names:
        print(f"{name:{width}}  {registry.load(kind, name).get('description', '')}")
