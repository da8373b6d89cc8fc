"""Costs of methods beside full fine-tuning."""

from collections.abc import Iterable

import pandas as pd

from hifi_cli.records.study import Study
from hifi_cli.reports.comparable import ComparableRuns
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.pairs import FULL_FT
from hifi_cli.reports.table import Cell, Row, Table, known, value_column
from hifi_cli.reports.table_runs import runs_with, select_runs
from hifi_cli.reports.table_spec import (
    NO_TABLE,
    PublishedTable,
    RowSpec,
    TableSpec,
    load_published,
    shots_of,
)
from hifi_cli.text import counted_noun

# The costs and their headings, by the column of `relative_costs`.
COSTS = {
    "trained_percent": "Trained %",
    "time": "Time",
    "memory": "Memory",
    "stored": "Stored",
    "stored_mb": "MB",
}
# Those that are ratios to the reference's; the others are numbers of their own.
_RATIOS = ["time", "memory", "stored"]
_BYTES_PER_MB = 1e6


def costs(spec: TableSpec, study: Study, options: ReportOptions) -> Table:
    """Build a table of what finished runs took, relative to Full-FT, means over tasks.

    Beside them stands what the paper's table marks (HiFi, table 1: extra parameters, corrupted
    structure, inference delay, storage).

    Args:
        spec: its rows are methods; none: all that were run.
        study: all runs.
        options: which runs count.
    """
    runs = _runs(spec, study)
    comparable = ComparableRuns.of(study, runs, options)
    measured = relative_costs(comparable.usable)
    name = ""
    paper = NO_TABLE
    if spec.published:
        name, paper = load_published(spec.published)
    row_specs = spec.rows or [RowSpec(method=method) for method in measured.index]
    notes = [
        "time per epoch, peak memory and stored file relative to Full-FT's on the same task, as many training rows, the"
        " same device and number of threads: means over tasks"
    ]
    if runs.empty:
        notes.append(
            "no finished run of these methods, tasks and seeds has this protocol and backbone"
        )
    notes += _notes_on_left_out(comparable, measured)
    notes += _notes_on_memory(comparable)
    if paper.columns:
        notes.append(f"check marks as printed in {name}, table {paper.number}")
    if paper.note:
        notes.append(paper.note)
    headings = {column: column for column in paper.columns} | COSTS
    return Table(
        title=f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})",
        rows=[_row(row, comparable, measured, paper) for row in row_specs],
        headings=headings,
        columns=[value_column(key) for key in headings],
        formats={**dict.fromkeys(COSTS, ".2f"), "stored": ".3f"},
        notes=notes,
    )


def _runs(spec: TableSpec, study: Study) -> pd.DataFrame:
    """Return the runs of a table: rows of `Study.runs` with its columns."""
    shots = str(spec.shots or shots_of(spec.protocol))
    runs = select_runs(study.runs, protocol=spec.protocol, backbone=spec.backbone, shots=shots)
    methods = spec.methods
    if methods:
        # The others' costs are relative to its own.
        methods = [*methods, FULL_FT]
    return runs_with(runs, seed=spec.seeds, task=spec.tasks, method=methods)


def _row(spec: RowSpec, runs: ComparableRuns, measured: pd.DataFrame, paper: PublishedTable) -> Row:
    """Return a method with its costs and the paper's marks.

    Args:
        spec: the row.
        runs: those of all rows.
        measured: costs by method, from `relative_costs`.
        paper: the table with the marks.
    """
    method = str(spec.method)
    cells = {}
    for column in paper.columns:
        cells[column] = Cell(paper.mean(str(spec.published), column))
    if method in measured.index:
        for key in COSTS:
            cells[key] = Cell(known(measured.at[method, key]))
    label = spec.label or runs.label_of_row(method)
    return Row(method, label, "runs", cells)


def _notes_on_left_out(runs: ComparableRuns, measured: pd.DataFrame) -> list[str]:
    """Return notes on why methods have no costs, those with one reason together.

    Args:
        runs: those of all rows.
        measured: costs by method.
    """
    frame = runs.frame
    has_no_costs = ~frame["method"].isin(measured.index)
    no_reference = (
        "Full-FT has no run on their tasks, training rows, devices and numbers of threads"
    )
    reasons = frame["excluded_because"].replace("", no_reference)
    notes = []
    for reason, methods in frame["method"][has_no_costs].groupby(reasons):
        notes.append(f"left out: {reason}: {_labels(runs, methods)}")
    return notes


def _notes_on_memory(runs: ComparableRuns) -> list[str]:
    """Return a note on runs that have a peak memory that another run may have caused."""
    usable = runs.usable
    shared = usable[~has_own_memory(usable)]
    if shared.empty:
        return []
    methods = _labels(runs, shared["method"])
    return [
        f"memory left out: {counted_noun(len(shared), 'run')} that another one of the same"
        f" command had preceded ({methods}); hifi grid starts a process for each run"
    ]


def _labels(runs: ComparableRuns, methods: Iterable[str]) -> str:
    """Return what readers call some methods, each once."""
    # A label may have commas: `LoRA, r=8`.
    return "; ".join(runs.label_of_row(method) for method in sorted(set(methods)))


def relative_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Compute the costs of methods.

    Time, memory and stored bytes are ratios to Full-FT's on the same task, device and number of
    threads, with as many training rows; all are means over tasks.

    Args:
        runs: rows of `Study.runs`.

    Returns:
        Index: method. Columns: `trained_percent`: of the parameters; `time` per epoch, peak
        `memory` and size of the file `stored`, as ratios; `stored_mb`: that size in MB.
    """
    measured = runs.assign(
        trained_percent=100 * runs["trainable"] / runs["total"],
        time=runs["time_s"].astype(float) / runs["epoch_last"].astype(float),
        memory=runs["peak_memory_bytes"].astype(float).where(has_own_memory(runs)),
        stored=runs["delta_bytes"].astype(float),
        stored_mb=runs["delta_bytes"].astype(float) / _BYTES_PER_MB,
    )
    # A search may hold rows out, so that its epochs are shorter.
    conditions = measured.groupby(["method", "task", "train_rows", "device", "threads"])
    means = conditions[[*COSTS]].mean()
    is_reference = means.index.get_level_values("method") == FULL_FT
    reference = means.loc[is_reference, _RATIOS].droplevel("method")
    # Full-FT's costs in the same conditions; NaN where it was not run so.
    references = reference.reindex(means.index.droplevel("method")).to_numpy()
    means[_RATIOS] = means[_RATIOS] / references
    # All conditions weigh the same, however many seeds they have.
    return means.dropna(subset=["time"]).groupby(level="method").mean()


def has_own_memory(runs: pd.DataFrame) -> pd.Series:
    """Return whether the peak memory of each run is its own; True where the record does not say."""
    return runs["memory_is_own"].ne(False)
