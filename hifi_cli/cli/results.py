"""`hifi results`: results that travel between directories and the hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hifi_cli.cli import options

if TYPE_CHECKING:
    from hifi_cli.runs.results_transfer import Transfer

Place = Annotated[
    str, typer.Argument(metavar="DIR|hub:OWNER/NAME", help="A results directory, or a dataset repository of the hub.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", help="Only paths that match this pattern, 'runs/hifi/*/rte/*'; repeatable.", rich_help_panel=options.WHICH
    ),
]
Weights = Annotated[
    bool, typer.Option("--weights", help="Also the weights (delta.safetensors).", rich_help_panel=options.WHICH)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be copied, and stop.", rich_help_panel=options.HOW)]


def push(
    to: Place,
    only: Only = None,
    weights: Weights = False,
    trust: options.Trust = False,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="On the hub: as a pull request.", rich_help_panel=options.HOW)
    ] = False,
    dry_run: DryRun = False,
    results_dir: options.ResultsDir = Path("results"),
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Copy finished runs, heads, scores and tables to another results directory; what is there is never overwritten.

    Exit 4 if other content is at the same path, 2 if files are damaged or name code that is not trusted; the rest is copied.
    """
    from hifi_cli.errors import UsageError
    from hifi_cli.runs.results_hub import PREFIX, HubRepository
    from hifi_cli.runs.results_source import items
    from hifi_cli.runs.results_transfer import Destination, DirectoryDestination, transfer

    destination: Destination
    if to.startswith(PREFIX):
        destination = HubRepository(to.removeprefix(PREFIX), create_pr)
    elif create_pr:
        raise UsageError(f"--create-pr requires a repository of the hub ({PREFIX}OWNER/NAME), not {to}")
    else:
        _refuse_same_directory(Path(to), results_dir)
        destination = DirectoryDestination(Path(to))
    chosen = items(results_dir, only=only or (), weights=weights, trust=trust)
    _report(transfer(chosen, destination, dry_run=dry_run), format)


def pull(
    source: Place,
    only: Only = None,
    weights: Weights = False,
    trust: options.Trust = False,
    dry_run: DryRun = False,
    results_dir: options.ResultsDir = Path("results"),
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Copy finished runs, heads, scores and tables from another results directory; what is here is never overwritten.

    Exit codes are those of push.
    """
    from hifi_cli.runs.results_hub import PREFIX, HubRepository
    from hifi_cli.runs.results_source import items
    from hifi_cli.runs.results_transfer import DirectoryDestination, transfer

    if source.startswith(PREFIX):
        folder = HubRepository(source.removeprefix(PREFIX)).download(weights=weights)
    else:
        folder = Path(source)
        _refuse_same_directory(folder, results_dir)
    chosen = items(folder, only=only or (), weights=weights, trust=trust)
    _report(transfer(chosen, DirectoryDestination(results_dir), dry_run=dry_run), format)


def _refuse_same_directory(other: Path, results_dir: Path) -> None:
    from hifi_cli.errors import UsageError

    if other.resolve() == results_dir.resolve():
        raise UsageError(f"{other} is the results directory itself: name another one, or another --results-dir")


def _report(transfers: "list[Transfer]", form: str) -> None:
    """Print what became of each run and file.

    Raises:
        ConflictError: other content is at the place of some.
        UsageError: some are damaged, or name code that is not trusted.
    """
    from hifi_cli.cli.show import print_json, print_transfers
    from hifi_cli.errors import ConflictError, UsageError
    from hifi_cli.runs.results_transfer import TransferState

    if form == "json":
        print_json(transfers)
    else:
        print_transfers(transfers)
    conflicts, refused = (
        [transfer for transfer in transfers if transfer.state is state]
        for state in (TransferState.CONFLICT, TransferState.REFUSED)
    )
    if conflicts:
        raise ConflictError(
            f"{len(conflicts)} of {len(transfers)} were not copied, as other content is at their place"
            f" ({conflicts[0].problem}); move one of the two, or leave them out with --only"
        )
    if refused:
        raise UsageError(f"{len(refused)} of {len(transfers)} were not copied: {refused[0].problem}")
