"""`hifi compare`: two methods or more by their paired runs."""

from pathlib import Path
from typing import Annotated

import typer

from hifi_cli.cli import options
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.records.layout import CANARY
from hifi_cli.records.study import Study
from hifi_cli.reports import compare as compare_runs
from hifi_cli.reports import table_spec
from hifi_cli.reports.comparable import RowKey
from hifi_cli.reports.options import ReportOptions, flags_that_count
from hifi_cli.reports.render import LatexOptions, emit
from hifi_cli.reports.table import with_notes
from hifi_cli.reports.table_runs import require_single_table, runs_with


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD OTHER...",
            help="Methods by name; METHOD/NAME: the runs with variant=NAME; with --backbones, one.",
        ),
    ],
    tasks: options.Tasks = None,
    backbone: options.Backbone = None,
    backbones: options.Backbones = None,
    protocol: options.Protocol = None,
    shots: options.Shots = None,
    score: options.Score = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Compare this metric, or nll, brier or ece of the stored predictions.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    rows: Annotated[
        bool,
        typer.Option(
            "--rows",
            help="Also test over rows: whether a difference holds for new rows of this dataset.",
            rich_help_panel=options.WHAT,
        ),
    ] = False,
    include: options.Include = None,
    results_dir: options.ResultsDir = options.RESULTS,
    out: options.Out = None,
    format: options.TableFormat = None,  # noqa: A002
    caption: options.Caption = None,
    label: options.Label = None,
) -> None:
    """Compare the first method with each of the others, paired over seeds and tasks, and say what can be concluded."""
    latex = LatexOptions(caption, label)
    # Methods may be given with commas, as options take them, or as several words.
    words: list[str] = []
    for word in methods:
        words += word.split(",")
    names = options.stored_names("methods", words)
    study = Study(results_dir)
    # METHOD/NAME is a variant, which becomes a row of its own.
    if any("/" in name for name in names):
        study = study.with_rows_by("variant")
    table_spec.check_names("methods", names, study.names("method"))
    # The methods are compared, or the backbones of one method.
    by: RowKey = "method"
    compared = names
    if backbones:
        by = "backbone"
        compared = _backbones_to_compare(names, backbone, backbones)
    if len(compared) < 2 or len(set(compared)) < len(compared):
        raise UsageError(
            f"hifi compare needs two or more different {by}s: hifi compare hifi-layerwise full-ft"
        )
    if study.table_runs.empty:
        raise study.no_run_error()
    task_names = options.stored_names("tasks", tasks)
    table_spec.check_names("tasks", task_names, study.names("task"))
    runs = runs_with(study.runs, method=names)
    keys = options.stored_keys(protocol, backbone, shots)
    try:
        runs = require_single_table(study, runs, compared, by=by, tasks=task_names, **keys)
    except MissingError as error:
        raise MissingError(f"{error}{_hint_at_a_study(results_dir)}") from None
    how = ReportOptions(epoch_choice=score, included=flags_that_count(include))
    tables = compare_runs.compare(study, runs, compared, how, by=by, metric=metric, over_rows=rows)
    tables = with_notes(tables, study.notes_on_damage)
    emit(tables, format, out, latex)


def _hint_at_a_study(results_dir: Path) -> str:
    """Return how stored baselines come to a directory where `hifi versus` has trained; empty: it has not."""
    if not (results_dir / CANARY).is_dir():
        return ""
    return (
        "; if it is a baseline that hifi versus compared, it is in the study:"
        f" hifi results merge STUDY --results-dir {results_dir}"
    )


def _backbones_to_compare(
    methods: list[str], backbone: str | None, backbones: list[str]
) -> list[str]:
    """Return the backbones that are compared, as finished runs name them.

    Args:
        methods: that the command names; one of them, whose runs on each backbone are compared.
        backbone: what `--backbone` says.
        backbones: what `--backbones` says.

    Raises:
        UsageError: several methods are named, or a backbone besides.
    """
    names = options.stored_names("backbones", backbones)
    if backbone or len(methods) > 1:
        raise UsageError(
            "--backbones compares two or more backbones under one method: hifi compare full-ft --backbones a,b"
        )
    return names
