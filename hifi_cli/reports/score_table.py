"""Tables of finished runs: a method per row, a task per column, mean and standard deviation over seeds.

The layout of HiFi's tables 2, 3 and 6 and of EH-FT's tables 1 to 4.
"""

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from hifi_cli.config import registry
from hifi_cli.config.choices import Score
from hifi_cli.reports import conditions, published, published_rows, run_filter
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.table import Heading, Line, Missing, Table, TableCell, with_places
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, ScoresSpec, label_of, shots_of

METRIC_NAMES = {
    "accuracy": "Acc.", "accuracy_matched": "Acc.", "accuracy_mismatched": "Acc.", "f1": "F1", "span_f1": "F1", "span_em": "EM",
    "matthews": "Matt.", "spearman": "Spea.", "pearson": "Pear.",
}  # fmt: skip
SHARES = (("Trained", "trainable"), ("w/o head", "trainable_backbone"))


@dataclass(frozen=True)
class _Runs:
    """The runs of a table: all that are there, those that count, and the footnotes, per method and task."""

    there: dict[tuple[str, str], list[RunRecord]]
    kept: dict[tuple[str, str], list[RunRecord]]
    notes: dict[tuple[str, str], list[str]]


def specs_of(
    records: list[RunRecord], protocol: str | None = None, backbone: str | None = None, shots: str | None = None
) -> list[ScoresSpec]:
    """One table for each protocol, backbone and number of shots that was run: their numbers never share a table.

    Args:
        protocol, backbone, shots: only these.
    """
    wanted = (protocol, backbone, shots)
    settings = {(record.result.protocol, record.result.backbone, record.shots) for record in records}
    return [
        ScoresSpec.model_validate(dict(zip(("protocol", "backbone", "shots"), setting, strict=True)))
        for setting in sorted(settings, key=lambda setting: (setting[:2], setting[2] != "full", len(setting[2]), setting[2]))
        if all(value in (None, own) for value, own in zip(wanted, setting, strict=True))
    ]


def build(spec: ScoresSpec, request: TableRequest) -> Table:
    """Collect a table's runs and set the paper's numbers beside them where that is requested."""
    setting = (spec.protocol, spec.backbone)
    records = [record for record in request.results.records if (record.result.protocol, record.result.backbone) == setting]
    shots = str(spec.shots or shots_of(spec.protocol))
    mine = [record for record in records if record.shots == shots]
    rows = spec.rows or [RowSpec(method=method) for method in _by_trainable_share(mine)]
    columns = spec.columns or [ColumnSpec(task=task) for task in sorted({record.result.task for record in mine})]
    runs = _collected(mine, spec, request)
    averaged = spec.average and len(columns) > 1
    metrics = [column.metric or _primary(column.task, mine) for column in columns]
    labels = [_column_label(column, metric) for column, metric in zip(columns, metrics, strict=True)]
    headings = [Heading(label, spec.decimals, "high") for label in [*labels, *(["Avg."] if averaged else [])]]
    headings += [Heading(label, None) for label, _ in SHARES]
    notes = [] if spec.shots else _runs_of_other_shots(records, shots)
    reference = published.load(spec.published) if request.published and spec.published else None
    if reference:
        split = next((one.result.split for one in mine), None)
        notes = [*published_rows.reading_notes(*reference, backbone=spec.backbone, split=split), *notes]
    elif request.published:
        notes.append("published: this table has no paper's numbers")
    lines: list[Line] = []
    for row in rows:
        label = row.label or (label_of("methods", row.method) if row.method else "")
        ours = _line(row, label, columns, metrics, runs, request.score, averaged=averaged) if row.methods else None
        lines += [ours] if ours else []
        if reference:
            lines += _papers_lines(row, label, ours, columns, metrics, reference[1], spec.decimals, averaged=averaged)
    return Table(
        title=_title(spec, shots, mine, request.score),
        headings=headings,
        lines=with_places(headings, _apart(lines, request.score)),
        notes=notes,
        missing=_missing(spec, rows, columns, runs, mine, request),
    )


def _collected(mine: list[RunRecord], spec: ScoresSpec, request: TableRequest) -> _Runs:
    there: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for record in mine:
        there[record.cell].append(record)
    found = {cell: run_filter.comparable(records, spec.seeds, request.counted) for cell, records in there.items()}
    return _Runs(there, {cell: kept for cell, (kept, _) in found.items()}, {cell: notes for cell, (_, notes) in found.items()})


def _line(
    row: RowSpec,
    label: str,
    columns: list[ColumnSpec],
    metrics: list[str | None],
    runs: _Runs,
    score: Score | None,
    *,
    averaged: bool,
) -> Line:
    cells, shown = [], set()
    for column, metric in zip(columns, metrics, strict=True):
        of_methods = {}
        for method in row.methods:
            at = (method, column.task)
            of_methods[method] = run_filter.cell(runs.kept.get(at, []), runs.notes.get(at, []), metric=metric, score=score)
        best, cell = _best(of_methods)
        cells.append(cell)
        shown |= {best} if cell.samples else set()
    means = [cell.mean for cell in cells if cell.mean is not None]
    average = [TableCell(statistics.fmean(means) if means and len(means) == len(cells) else None)] if averaged else []
    first = next((cell.samples[0].record.result.params for cell in cells if cell.samples), None)
    shares = [TableCell(100 * getattr(first, key) / first.total if first else None) for _, key in SHARES]
    if len(shown) > 1:
        shares = [TableCell(text="varies") for _ in SHARES]
    return Line(label, (*cells, *average, *shares), method=row.method)


def _best(cells: dict[str, TableCell]) -> tuple[str, TableCell]:
    """The cell with the best mean, by its method; a footnote says of which methods and that the scores shown chose it."""
    found = [(cell.mean, method) for method, cell in cells.items() if cell.mean is not None]
    best = max(found, key=lambda one: one[0])[1] if found else next(iter(cells))
    if len(cells) == 1 or not found:
        return best, cells[best]
    without = [method for method in cells if method not in {name for _, name in found}]
    lacking = f"; no run of {', '.join(without)}" if without else ""
    note = f"{best}, the best of {', '.join(cells)} by the scores shown, which flatters it{lacking}"
    return best, replace(cells[best], notes=(*cells[best].notes, note))


def _papers_lines(
    row: RowSpec,
    label: str,
    ours: Line | None,
    columns: list[ColumnSpec],
    metrics: list[str | None],
    found: PublishedTable,
    decimals: int,
    *,
    averaged: bool,
) -> list[Line]:
    paper = published_rows.published_line(row, label, columns, found, len(SHARES), average=averaged)
    if not ours or not paper:
        return [paper] if paper else []
    printed = [found.columns.get(column.published_name) for column in columns]
    pairs = list(zip(metrics, printed, strict=True))
    difference = published_rows.difference_line(ours, paper, pairs, row.published_name or "", found, decimals)
    return [paper, difference] if difference else [paper]


def _missing(
    spec: ScoresSpec,
    rows: list[RowSpec],
    columns: list[ColumnSpec],
    runs: _Runs,
    mine: list[RunRecord],
    request: TableRequest,
) -> list[Missing]:
    seeds = spec.seeds or sorted({record.result.seed for record in mine})
    tasks = [column.task for column in columns]
    shots = None if spec.shots is None or str(spec.shots) == shots_of(spec.protocol) else str(spec.shots)
    return [
        one
        for row in rows
        for method in row.methods
        for one in run_filter.missing(
            method,
            tasks,
            seeds,
            there={task: runs.there.get((method, task), []) for task in tasks},
            kept={task: runs.kept.get((method, task), []) for task in tasks},
            setting=(spec.backbone, spec.protocol, shots),
            results_dir=request.results.directory,
        )
    ]


def _runs_of_other_shots(records: list[RunRecord], shots: str) -> list[str]:
    """A remark on the runs that the table leaves to one of their own."""
    others = Counter(record.shots for record in records if record.shots != shots)
    return [
        f"{count} run{'s' * (count > 1)} of {name} shots not in this table (--shots {name} shows them)"
        for name, count in others.items()
    ]


def _apart(lines: list[Line], score: Score | None) -> list[Line]:
    """Mark the cells whose runs do not agree with most of their column's in what a comparison needs, and their averages."""
    marked = {row: list(line.cells) for row, line in enumerate(lines) if line.source == "runs"}
    for column in range(len(lines[0].cells) if lines else 0):
        first = {row: cells[column].samples[0].record for row, cells in marked.items() if cells[column].samples}
        agreeing = {
            row: sum(not conditions.disagreement(record, other, score) for other in first.values())
            for row, record in first.items()
        }
        usual = first.get(max(agreeing, key=lambda row: agreeing[row], default=-1))
        for row, record in first.items():
            if usual and (said := conditions.disagreement(record, usual, score)):
                notes = (*marked[row][column].notes, f"not compared with the column's other runs, which differ in {said}")
                marked[row][column] = replace(marked[row][column], notes=notes, apart=True)
    for cells in marked.values():
        if any(cell.apart for cell in cells):
            cells[:] = [cell if cell.samples else replace(cell, apart=True) for cell in cells]
    return [replace(line, cells=tuple(marked.get(row, line.cells))) for row, line in enumerate(lines)]


def _title(spec: ScoresSpec, shots: str, mine: list[RunRecord], score: Score | None) -> str:
    reported = sorted({record.result.report for record in mine})
    epoch = {"last": "last epoch", "best": "best epoch", "max": "maximum over epochs"}
    which = epoch[score] if score else ", ".join(epoch[one] for one in reported)
    few = [] if shots == "full" else [f"{shots}-shot"]
    setting = [f"protocol {spec.protocol}", f"backbone {spec.backbone}", *few, *([which] if which else [])]
    return f"{spec.description or 'Finished runs'} ({', '.join(setting)})"


def _by_trainable_share(records: list[RunRecord]) -> list[str]:
    shares = {record.result.method: -record.result.params.trainable for record in records}
    return sorted(shares, key=lambda method: (shares[method], method))


def _primary(task: str, records: list[RunRecord]) -> str | None:
    run = next((record.result.primary_metric for record in records if record.result.task == task), None)
    if run is None and task in registry.names("tasks"):
        run = registry.load("tasks", task).get("primary")
    return None if run is None else str(run)


def _column_label(column: ColumnSpec, metric: str | None) -> str:
    label = column.label or label_of("tasks", column.task)
    return f"{label} ({METRIC_NAMES.get(metric, metric)})" if metric else label
