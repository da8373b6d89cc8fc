"""`hifi results`: results that are packed, checked, and copied between directories and the hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hifi_cli.cli import options

if TYPE_CHECKING:
    from hifi_cli.results.share import MergedRun

Place = Annotated[
    str,
    typer.Argument(
        metavar="DIR|hub:OWNER/NAME", help="A results directory or packed study, or a dataset repository of the hub."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Only runs whose path matches this pattern, 'runs/hifi/*/rte/*'; repeatable.",
        rich_help_panel=options.WHICH,
    ),
]
Weights = Annotated[
    bool, typer.Option("--weights", help="Also the weights (delta.safetensors).", rich_help_panel=options.WHICH)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be copied, and stop.", rich_help_panel=options.HOW)]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A results directory.")]


def pack(
    directory: Directory,
    out: Annotated[
        Path | None, typer.Option(help="A new directory; default: DIR-packed.", rich_help_panel=options.OUTPUT)
    ] = None,
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Write all finished runs as two files, runs.jsonl and predictions.parquet, which every command reads like runs."""
    from hifi_cli.cli.show import print_path
    from hifi_cli.results import share

    out = out or directory.with_name(f"{directory.resolve().name}-packed")
    count = share.pack(directory, out)
    options.logger.info(f"{count:,} runs packed")
    print_path(out, format)


def push(
    to: Place,
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
    """Copy finished runs to another results directory or to the hub; what is there is never overwritten.

    Exit 4 if another run is at the same path, 2 if runs are damaged; the others are copied.
    """
    from hifi_cli.results import share

    choice = {"only": only or (), "weights": weights, "trust": trust, "dry_run": dry_run}
    _report(share.push(results_dir, to, **choice), format)


def merge(
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
    """Copy finished runs from another results directory, a packed study or the hub; what is here is never overwritten.

    Exit 4 if another run is at the same path, 2 if runs are damaged; the others are copied.
    """
    from hifi_cli.results import share

    choice = {"only": only or (), "weights": weights, "trust": trust, "dry_run": dry_run}
    _report(share.pull(source, results_dir, **choice), format)


def check(
    directory: Directory = Path("results"),
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Recompute scores from predictions, and find runs that cannot be what they say: one line each, and exit code 1."""
    from hifi_cli.cli.show import print_json
    from hifi_cli.errors import RunFailed
    from hifi_cli.results import check as checks
    from hifi_cli.wording import counted_noun, printable

    checked = checks.check(directory)
    if format == "json":
        print_json(checked)
    else:
        for finding in checked.findings:
            print(printable(f"{finding.path}: {finding.problem}"))
    if checked.findings:
        raise RunFailed(f"{counted_noun(len(checked.findings), 'finding')} in {counted_noun(checked.runs, 'run')}")
    if format != "json":
        recomputed = f"scores of {checked.recomputed:,} recomputed from their predictions"
        print(f"{counted_noun(checked.runs, 'run')} checked, {recomputed}: nothing found")


def _report(merged: "list[MergedRun]", form: str) -> None:
    """Print what became of each run.

    Raises:
        ConflictError: another run is at the place of some.
        UsageError: some are damaged.
    """
    from collections import Counter

    from hifi_cli.cli.show import print_json
    from hifi_cli.errors import ConflictError, UsageError
    from hifi_cli.wording import printable

    counts: Counter[str] = Counter(run.state for run in merged)
    if form == "json":
        print_json(merged)
    else:
        for run in merged:
            print(printable(f"{run.state:8}  {run.path}{f': {run.problem}' if run.problem else ''}"))
        print(", ".join(f"{count} {state}" for state, count in counts.items()))
    for state, error in (("conflict", ConflictError), ("refused", UsageError)):
        if counts[state]:
            named = ", ".join(f"{run.path} ({run.problem})" for run in merged if run.state == state)
            raise error(f"{counts[state]} of {len(merged)} runs were not copied: {named}")
