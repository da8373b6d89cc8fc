"""`hifi results`: results that are packed, exported, checked, and copied between directories and the hub."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
import typer

from hifi_cli.cli import options
from hifi_cli.config.sources import override_value
from hifi_cli.errors import ConflictError, RunFailed, UsageError, logger
from hifi_cli.files import atomic_path, suffix_of_output
from hifi_cli.records import every_eval_ever, share
from hifi_cli.records import prune as prune_runs
from hifi_cli.records.check import check as check_study
from hifi_cli.records.listing import read_results
from hifi_cli.records.study import PREDICTIONS, Study
from hifi_cli.reports.table_runs import runs_with
from hifi_cli.text import abbreviate, counted_noun, printable

Place = Annotated[
    str,
    typer.Argument(
        metavar="DIR|hub:OWNER/NAME",
        help="A results directory or packed study, or a dataset repository of the hub.",
    ),
]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A results directory.")]


def pack(
    directory: Directory,
    out: Annotated[
        Path | None,
        typer.Option(help="A new directory; default: DIR-packed.", rich_help_panel=options.OUTPUT),
    ] = None,
) -> None:
    """Write all finished runs as two files, runs.jsonl and predictions.parquet, which every command reads like runs."""
    out = out or directory.with_name(f"{directory.resolve().name}-packed")
    logger.info(f"{counted_noun(share.pack(directory, out), 'run')} packed")
    print(out)


def export(
    directory: Directory,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file, or of eee a new directory; default: DIR.parquet, DIR-eee.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        Literal["parquet", "eee"],
        typer.Option(
            help="parquet: a row per run; eee: a JSON file per run, of Every Eval Ever.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = "parquet",
    organization: Annotated[
        str | None,
        typer.Option(
            help="eee: who trained and evaluated the models; default: unknown.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
) -> None:
    """Write the finished runs, with scores and settings, as a Parquet file or as files of Every Eval Ever.

    In the Parquet file values of mixed types are texts.
    """
    name = directory.resolve().name
    if organization is not None and format != "eee":
        raise UsageError("--organization is for --format eee: add that, or leave it out")
    if format == "eee":
        out = out or directory.with_name(f"{name}-eee")
        count = every_eval_ever.export_eee(directory, out, organization or "unknown")
        logger.info(f"{counted_noun(count, 'run')} exported")
    else:
        suffix_of_output(out, (".parquet",), "hifi ls runs --format csv prints CSV")
        out = out or directory.with_name(f"{name}.parquet")
        _write_parquet(read_results(directory), out)
    print(out)


def _write_parquet(runs: pd.DataFrame, out: Path) -> None:
    """Write listed runs; values of mixed types become texts."""
    # A column of Parquet has one type.
    for column in runs.columns[runs.dtypes == "object"]:
        runs[column] = runs[column].map(override_value, na_action="ignore")
    # pyarrow takes no name of a file that is not UTF-8, and pandas 2 gives it that of an open file.
    content = runs.to_parquet(index=False)
    with atomic_path(out) as temporary:
        temporary.write_bytes(content)


def push(
    to: Place,
    results_dir: options.ResultsDir = options.RESULTS,
    trust: options.Trust = False,
) -> None:
    """Copy finished runs to another results directory or to the hub; what is there is never overwritten.

    Exit 4 if another run is at the same path (the others are copied), 2 if a run is damaged (nothing is copied).
    """
    _report(share.push(results_dir, to, trust=trust))


def merge(
    source: Place,
    results_dir: options.ResultsDir = options.RESULTS,
    trust: options.Trust = False,
) -> None:
    """Copy finished runs from another results directory, a packed study or the hub; what is here is never overwritten.

    Exit 4 if another run is at the same path (the others are copied), 2 if a run is damaged (nothing is copied).
    """
    _report(share.pull(source, results_dir, trust=trust))


def check(directory: Directory = options.RESULTS, format: options.OutputFormat = "text") -> None:  # noqa: A002
    """Recompute scores from predictions, and find runs that cannot be what they say: one line each, and exit code 1."""
    checked = check_study(directory)
    if format == "json":
        options.print_json(checked)
    else:
        for path, problems in checked.findings.items():
            for problem in problems:
                print(printable(f"{path}: {problem}"))
        for path, facts in checked.differing.items():
            for fact in facts:
                options.print_done(f"{path}: note: {fact}")
        for path, reason in checked.not_recomputed.items():
            options.print_done(f"{path}: note: score not recomputed: {reason}")
        for name in checked.figures_without_runs:
            options.print_done(f"{name}: note: does not say which runs it rests on")
    runs = counted_noun(checked.runs, "run")
    figures = [name for name in checked.findings if name.startswith("figures/")]
    found = len(checked.findings) - len(figures)
    failed = []
    if PREDICTIONS in checked.findings:
        # The file is no run.
        found -= 1
        failed.append(f"{PREDICTIONS} cannot be read, so that no score was recomputed")
    if found:
        they_say = "it says" if found == 1 else "they say"
        failed.append(f"{found:,} of {runs} cannot be what {they_say}")
    if figures:
        failed.append(f"{abbreviate(figures)}: not of the runs that are here")
    if failed:
        raise RunFailed("; ".join(failed))
    if format == "text":
        recomputed = f"scores of {checked.recomputed:,} recomputed from their predictions"
        if checked.pruned:
            options.print_done(f"weights of {counted_noun(len(checked.pruned), 'run')} were pruned")
        options.print_done(f"{runs} checked, {recomputed}: nothing found")


def prune(
    directory: Directory,
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Directories of runs.")
    ] = None,
    tasks: options.Tasks = None,
    methods: options.Methods = None,
    backbone: options.Backbone = None,
    protocol: options.Protocol = None,
    seeds: options.Seeds = None,
    variants: Annotated[
        bool,
        typer.Option(
            "--variants",
            help="Only runs of searches and other variants.",
            rich_help_panel=options.WHAT,
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Remove the weights; without it, print what would be removed.",
            rich_help_panel=options.HOW,
        ),
    ] = False,
) -> None:
    """Drop the weights (delta.safetensors) of runs that are named or selected; records and predictions stay.

    A run that another one starts from is kept. A pruned run counts in every table, and cannot be evaluated or exported.
    """
    study = Study(directory)
    selections: dict[str, Sequence[Any]] = {
        "task": options.stored_names("tasks", tasks),
        "method": options.stored_names("methods", methods),
        "backbone": options.stored_names("backbones", [backbone] if backbone else None),
        "protocol": options.stored_names("protocols", [protocol] if protocol else None),
        "seed": options.parse_seeds(seeds),
    }
    selects = variants or any(selections.values())
    # One of the two is required, and both together would be unclear.
    names_runs = bool(runs)
    if names_runs == selects:
        raise UsageError(
            "either name runs, or select them with --tasks, --methods, --backbone, --protocol, --seeds or --variants"
        )
    chosen = runs_with(study.runs, **selections)
    if variants:
        chosen = chosen[chosen["variant"].notna()]
    paths = [prune_runs.path_in_study(study, run) for run in runs or ()]
    if selects:
        paths = [*chosen["path"]]
    found = prune_runs.find_prunable(study, paths)
    if yes:
        prune_runs.prune(study, [*found.sizes])
        _print_prunable(found, "removed", "", options.print_done)
    else:
        # The list is what was asked for.
        consequence = ": nothing was removed; --yes removes the weights"
        _print_prunable(found, "would remove", consequence, print)


def _print_prunable(
    found: prune_runs.Pruning, word: str, consequence: str, print_line: Callable[[str], None]
) -> None:
    """Print which weights are removed, which are kept and why, and the total with its consequence."""
    for path, size in found.sizes.items():
        print_line(f"{word}  {size / 1e6:8.2f} MB  {path}")
    for path, reason in found.kept.items():
        print_line(f"kept  {path}: {reason}")
    total = f"{counted_noun(len(found.sizes), 'run')}, {sum(found.sizes.values()) / 1e6:.2f} MB"
    print_line(f"{total}{consequence}")


def _report(states: dict[str, str]) -> None:
    """Print what became of each run.

    Args:
        states: by path, as `share.merge` returns them.

    Raises:
        ConflictError: another run is at the place of some.
    """
    for path, state in states.items():
        options.print_done(f"{state:8}  {path}")
    counts = Counter(states.values())
    options.print_done(", ".join(f"{count} {state}" for state, count in counts.items()))
    conflicts = [path for path, state in states.items() if state == "conflict"]
    of_schemas = [path for path, state in states.items() if state.startswith("schema")]
    if of_schemas:
        path = of_schemas[0]
        state = states[path]
        raise ConflictError(
            f"{len(of_schemas)} of {len(states)} runs were not copied, as a run of another schema is in their place:"
            f" {path} ({state}); keep them in another results directory"
        )
    if conflicts:
        raise ConflictError(
            f"{len(conflicts)} of {len(states)} runs were not copied, as another run or an unfinished one is in their"
            f" place: {abbreviate(conflicts)}; move one of the two"
        )
