"""`hifi results`: results that are packed, checked, and copied between directories and the hub."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options

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
    results_dir: options.ResultsDir = Path("results"),
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Copy finished runs to another results directory or to the hub; what is there is never overwritten.

    Exit 4 if another run is at the same path (the others are copied), 2 if a run is damaged (nothing is copied).
    """
    from hifi_cli.results import share

    states = share.push(results_dir, to, only=only or (), weights=weights, trust=trust)
    _report(states, format)


def merge(
    source: Place,
    only: Only = None,
    weights: Weights = False,
    trust: options.Trust = False,
    results_dir: options.ResultsDir = Path("results"),
    format: options.OutputFormat = "text",  # noqa: A002
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Copy finished runs from another results directory, a packed study or the hub; what is here is never overwritten.

    Exit 4 if another run is at the same path (the others are copied), 2 if a run is damaged (nothing is copied).
    """
    from hifi_cli.results import share

    states = share.pull(source, results_dir, only=only or (), weights=weights, trust=trust)
    _report(states, format)


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
        for path, problems in checked.findings.items():
            for problem in problems:
                print(printable(f"{path}: {problem}"))
    if checked.findings:
        raise RunFailed(f"{len(checked.findings):,} of {counted_noun(checked.runs, 'run')} cannot be what they say")
    if format != "json":
        recomputed = f"scores of {checked.recomputed:,} recomputed from their predictions"
        print(f"{counted_noun(checked.runs, 'run')} checked, {recomputed}: nothing found")


def _report(states: dict[str, str], form: str) -> None:
    """Print what became of each run.

    Raises:
        ConflictError: another run is at the place of some.
    """
    from collections import Counter

    from hifi_cli.cli.show import print_json
    from hifi_cli.errors import ConflictError
    from hifi_cli.wording import first_of

    if form == "json":
        print_json([{"path": path, "state": state} for path, state in states.items()])
    else:
        for path, state in states.items():
            print(f"{state:8}  {path}")
        print(", ".join(f"{count} {state}" for state, count in Counter(states.values()).items()))
    if conflicts := [path for path, state in states.items() if state == "conflict"]:
        raise ConflictError(
            f"{len(conflicts)} of {len(states)} runs were not copied, as another run or an unfinished one is in their"
            f" place: {first_of(conflicts)}; move one of the two, or choose with --only"
        )
