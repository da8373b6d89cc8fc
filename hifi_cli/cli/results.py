"""`hifi results`: results that are packed, checked, and copied between directories and the hub."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.errors import ConflictError, RunFailed, UsageError
from hifi_cli.results import check as checks
from hifi_cli.results import share
from hifi_cli.wording import counted_noun, printable

Place = Annotated[
    str,
    typer.Argument(
        metavar="DIR|hub:OWNER/NAME", help="A results directory or packed study, or a dataset repository of the hub."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Only runs whose path matches this pattern, 'runs/hifi/*/rte/*'; repeatable.", rich_help_panel=options.WHAT
    ),
]
Weights = Annotated[bool, typer.Option("--weights", help="Also the weights (delta.safetensors).", rich_help_panel=options.WHAT)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be copied, and stop.", rich_help_panel=options.HOW)]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A results directory.")]


def pack(
    directory: Directory,
    out: Annotated[
        Path | None, typer.Option(help="A new directory; default: DIR-packed.", rich_help_panel=options.OUTPUT)
    ] = None,
) -> None:
    """Write all finished runs as two files, runs.jsonl and predictions.parquet, which every command reads like runs."""
    out = out or directory.with_name(f"{directory.resolve().name}-packed")
    options.logger.info(f"{share.pack(directory, out):,} runs packed")
    print(out)


def push(
    to: Place,
    only: Only = None,
    weights: Weights = False,
    results_dir: options.ResultsDir = options.RESULTS,
    trust: options.Trust = False,
    dry_run: DryRun = False,
) -> None:
    """Copy finished runs to another results directory or to the hub; what is there is never overwritten.

    Exit 4 if another run is at the same path, 2 if runs are damaged; the others are copied.
    """
    _report(share.push(results_dir, to, only=only or (), weights=weights, trust=trust, dry_run=dry_run))


def merge(
    source: Place,
    only: Only = None,
    weights: Weights = False,
    results_dir: options.ResultsDir = options.RESULTS,
    trust: options.Trust = False,
    dry_run: DryRun = False,
) -> None:
    """Copy finished runs from another results directory, a packed study or the hub; what is here is never overwritten.

    Exit 4 if another run is at the same path, 2 if runs are damaged; the others are copied.
    """
    _report(share.pull(source, results_dir, only=only or (), weights=weights, trust=trust, dry_run=dry_run))


def check(directory: Directory = options.RESULTS, format: options.OutputFormat = "text") -> None:  # noqa: A002
    """Recompute scores from predictions, and find runs that cannot be what they say: one line each, and exit code 1."""
    checked = checks.check(directory)
    if format == "json":
        options.print_json(checked)
    else:
        for finding in checked.findings:
            print(printable(f"{finding.path}: {finding.problem}"))
    if checked.findings:
        raise RunFailed(f"{counted_noun(len(checked.findings), 'finding')} in {counted_noun(checked.runs, 'run')}")
    if format == "text":
        recomputed = f"scores of {checked.recomputed:,} recomputed from their predictions"
        print(f"{counted_noun(checked.runs, 'run')} checked, {recomputed}: nothing found")


def _report(merged: list[share.MergedRun]) -> None:
    """Print what became of each run.

    Raises:
        ConflictError: another run is at the place of some.
        UsageError: some are damaged.
    """
    counts: Counter[str] = Counter(run.state for run in merged)
    for run in merged:
        print(printable(f"{run.state:8}  {run.path}{f': {run.problem}' if run.problem else ''}"))
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    for state, error in (("conflict", ConflictError), ("refused", UsageError)):
        if counts[state]:
            named = ", ".join(f"{run.path} ({run.problem})" for run in merged if run.state == state)
            raise error(f"{counts[state]} of {len(merged)} runs were not copied: {named}")
