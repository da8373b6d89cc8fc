"""`hifi ls`: what there is."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli import registry
from hifi_cli.cli import options

_KINDS = (*registry.KINDS, "runs")


def ls(
    kind: Annotated[str, typer.Argument(help="tasks, methods, backbones, protocols, tables, grids, sites or runs.")],
    status: Annotated[
        str | None, typer.Option(help="Runs only: done, diverged, running, failed, unfinished or damaged, with commas.")
    ] = None,
    results_dir: options.ResultsDir = Path("results"),
    debug: options.Debug = False,
) -> None:
    """List what comes with the project, or the runs in a results directory and how they stand, with a line each."""
    from hifi_cli.errors import UsageError

    if kind not in _KINDS:
        raise UsageError(f"unknown kind '{kind}'{registry.nearest(kind, _KINDS)} (one of {', '.join(_KINDS)})")
    if kind == "runs":
        return _runs(results_dir, options.names(status))
    names = registry.names(kind)
    width = max(map(len, names), default=0)
    for name in names:
        print(f"{name:{width}}  {registry.load(kind, name).get('description', '')}")


def _runs(results_dir: Path, wanted: list[str]) -> None:
    from hifi_cli.errors import UsageError
    from hifi_cli.grids.status import State, statuses

    known = [state.value for state in State if state is not State.ABSENT]
    for name in wanted:
        if name not in known:
            raise UsageError(f"--status {name}{registry.nearest(name, known)}: one or several of {','.join(known)} are wanted")
    for directory, found in statuses(results_dir):
        if not wanted or found.state in wanted:
            scores = (found.results or {}).get("scores")
            score = f"{100 * scores[found.results['report']]:.2f}" if scores and found.results else ""
            print(f"{found.state:10}  {score:>6}  {directory}" + (f"  {found.detail}" if found.detail else ""))
