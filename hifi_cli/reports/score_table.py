"""Tables of finished runs: a method per row, a task per column, mean and standard deviation over seeds.

The layout of HiFi's tables 2, 3 and 6 and of EH-FT's tables 1 to 4.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hifi_cli.config import registry
from hifi_cli.config.choices import Score
from hifi_cli.config.registry import label_of
from hifi_cli.errors import UsageError
from hifi_cli.reports import published, published_rows, run_filter, search_table
from hifi_cli.reports.published import PublishedTable
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.server_scores import ServerScores
from hifi_cli.reports.table import MissingRuns, Table, TableCell, TableHeading, TableRow, decimals_for, with_places
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import ColumnSpec, RowSpec, ScoresSpec, shots_of
from hifi_cli.wording import counted_noun

METRIC_NAMES = {
    "accuracy": "Acc.", "accuracy_mismatched": "Acc.", "f1": "F1", "span_f1": "F1", "span_em": "EM",
    "f1_macro": "F1", "f1_micro": "micro F1", "f1a": "F1a", "question_em": "EM", "entity_f1": "F1", "entity_em": "EM",
    "ner_f1": "F1", "ner_precision": "Prec.", "ner_recall": "Rec.", "word_accuracy": "Acc.",
    "matthews_axb": "Matt.", "accuracy_axg": "Acc.", "gender_parity_axg": "Parity",
    "matthews": "Matt.", "spearman": "Spea.", "pearson": "Pear.",
}  # fmt: skip
SERVER_SPLIT = "GLUE test server"  # as in configs/published
FRACTIONS = (("Trained", "trainable"), ("w/o head", "trainable_backbone"))


@dataclass(frozen=True)
class RunsByCell:
    """The runs of a table per method and task: all finished ones, those included in the means, and footnotes."""

    finished: dict[tuple[str, str], list[RunRecord]]
    included: dict[tuple[str, str], list[RunRecord]]
    notes: dict[tuple[str, str], list[str]]


def specs_of(
    records: list[RunRecord], protocol: str | None = None, backbone: str | None = None, shots: str | None = None
) -> list[ScoresSpec]:
    """Return one table for each protocol, backbone and number of shots that was run: they never share a table.

    Args:
        protocol, backbone, shots: only these.
    """
    required = (protocol, backbone, shots)
    settings = {record.setting for record in records}
    return [
        ScoresSpec.model_validate(dict(zip(("protocol", "backbone", "shots"), setting, strict=True)))
        for setting in sorted(settings, key=lambda setting: (setting[:2], setting[2] != "full", len(setting[2]), setting[2]))
        if all(value in (None, actual) for value, actual in zip(required, setting, strict=True))
    ]


def build(spec: ScoresSpec, request: TableRequest) -> Table:
    """Build a table from finished runs, with the paper's numbers where the request says so.

    Raises:
        UsageError: a column's metric is neither one of a task nor stored by a run.
    """
    _refuse_unknown_metrics(spec, request.results.records)
    setting = (spec.protocol, spec.backbone)
    all_records = [record for record in request.results.records if (record.result.protocol, record.result.backbone) == setting]
    shots = str(spec.shots or shots_of(spec.protocol))
    records = [record for record in all_records if record.shots == shots]
    rows = spec.rows or [RowSpec(method=method) for method in _by_trainable_parameters(records)]
    columns = spec.columns or [ColumnSpec(task=task) for task in sorted({record.result.task for record in records})]
    runs = _runs_by_cell(records, spec, request)
    averaged = spec.average and len(columns) > 1
    metrics = [column.metric or _primary(column.task, records) for column in columns]
    server = request.server_scores
    task_labels = [column.label or label_of("tasks", column.task) for column in columns]
    task_labels = _distinct(task_labels, [column.label or column.task for column in columns])
    labels = [_with_metric(label, metric, server) for label, metric in zip(task_labels, metrics, strict=True)]
    names = [*(column.name for column in columns), *(["average"] if averaged else [])]
    headings = [
        TableHeading(label, spec.decimals, marks_best=True, name=name)
        for label, name in zip([*labels, *(["Avg."] if averaged else [])], names, strict=True)
    ]
    notes = _runs_of_other_shots(all_records, shots)
    notes += request.results.variant_notes(*setting)
    notes = [*_server_notes(server, rows), *([] if server else notes)]
    reference = published.load(spec.published) if request.published and spec.published else None
    if reference:
        split = SERVER_SPLIT if server else next((record.result.split for record in records), None)
        notes = [*published_rows.reading_notes(*reference, backbone=spec.backbone, split=split), *notes]
    elif request.published:
        notes.append("published: no paper's numbers are known for this table")
    table_rows: list[TableRow] = []
    row_labels = [row.label or (label_of("methods", row.method) if row.method else "") for row in rows]
    for row, label in zip(rows, _distinct(row_labels, [row.label or row.method or "" for row in rows]), strict=True):
        ours = _row(row, label, columns, metrics, runs, spec, request, averaged=averaged) if row.methods else None
        table_rows += [ours] if ours else []
        if reference:
            table_rows += _paper_rows(row, label, ours, columns, metrics, reference[1], spec.decimals, averaged=averaged)
    for at, (label, key) in enumerate(FRACTIONS, start=len(headings)):
        decimals = decimals_for(row.cells[at].mean for row in table_rows)
        headings.append(TableHeading(label, decimals, name=f"{key}_percent", unit=" %"))
    return Table(
        title=_title(spec, shots, records, request, reference[1].split if reference else None),
        headings=headings,
        rows=with_places(headings, _with_comparability(_with_seed_counts(table_rows, spec.seeds), request.score)),
        notes=[*notes, *_truncation_notes(table_rows), *search_table.table_notes(table_rows)],
        missing=[] if server else _missing(spec, rows, columns, runs, records, request),
    )


def _refuse_unknown_metrics(spec: ScoresSpec, records: Sequence[RunRecord]) -> None:
    """Refuse a metric that no task has; one of `evaluate` is known from runs only, one of a further split by its beginning."""
    stored = {*METRIC_NAMES, *(name for record in records for name in record.result.metrics)}
    for column in spec.columns:
        own = registry.user_file("tasks", column.task)
        content = registry.read_yaml(own) if own else {}
        known, metric = {*stored, *content.get("metrics", [])}, column.metric
        if (
            metric
            and not content.get("evaluate")
            and not any(metric == name or metric.startswith(f"{name}_") for name in known)
        ):
            suggestion = registry.nearest(metric, known)
            raise UsageError(f"column {column.task}: unknown metric '{metric}'{suggestion} (hifi ls TASK lists a task's)")


def _runs_by_cell(records: list[RunRecord], spec: ScoresSpec, request: TableRequest) -> RunsByCell:
    finished: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
    for record in records:
        finished[record.method_and_task].append(record)
    filtered = {cell: run_filter.comparable_runs(runs, spec.seeds, request.counted) for cell, runs in finished.items()}
    included = {cell: runs for cell, (runs, _) in filtered.items()}
    return RunsByCell(finished, included, {cell: notes for cell, (_, notes) in filtered.items()})


def _row(
    row: RowSpec,
    label: str,
    columns: list[ColumnSpec],
    metrics: list[str | None],
    runs: RunsByCell,
    spec: ScoresSpec,
    request: TableRequest,
    *,
    averaged: bool,
) -> TableRow:
    cells, shown = [], set()
    for column, metric in zip(columns, metrics, strict=True):
        of_methods = {}
        for method in row.methods:
            at = (method, column.task)
            of_methods[method] = (
                request.server_scores.cell(*at, metric, spec.seeds)
                if request.server_scores
                else run_filter.score_cell(
                    runs.included.get(at, []), runs.notes.get(at, []), metric=metric, score=request.score
                )
            )
        best, cell = _best(of_methods)
        if cell.seed_scores:
            searched = search_table.cell_notes(cell.seed_scores[0].record, request.results.searches)
            cell = replace(cell, notes=(*cell.notes, *searched))
        cells.append(cell)
        shown |= {best} if cell.seed_scores else set()
    means = [cell.mean for cell in cells if cell.mean is not None]
    average = [TableCell(statistics.fmean(means) if means and len(means) == len(cells) else None)] if averaged else []
    first = next((cell.seed_scores[0].record.result.params for cell in cells if cell.seed_scores), None)
    fractions = [TableCell(100 * getattr(first, key) / first.total if first else None) for _, key in FRACTIONS]
    if len(shown) > 1:
        fractions = [TableCell(text="varies") for _ in FRACTIONS]
    return TableRow(label, (*cells, *average, *fractions), method=row.method)


def _best(cells: dict[str, TableCell]) -> tuple[str, TableCell]:
    """Return the method and cell with the best mean; a footnote names the methods and says that the choice favors the row."""
    means = {method: cell.mean for method, cell in cells.items() if cell.mean is not None}
    best = max(means, key=lambda method: means[method]) if means else next(iter(cells))
    if len(cells) == 1 or not means:
        return best, cells[best]
    without = [method for method in cells if method not in means]
    lacking = f"; no run of {', '.join(without)}" if without else ""
    note = f"{best}, the best of {', '.join(cells)} by the scores shown, which makes it look too good{lacking}"
    return best, replace(cells[best], notes=(*cells[best].notes, note))


def _paper_rows(
    row: RowSpec,
    label: str,
    ours: TableRow | None,
    columns: list[ColumnSpec],
    metrics: list[str | None],
    paper_table: PublishedTable,
    decimals: int,
    *,
    averaged: bool,
) -> list[TableRow]:
    paper = published_rows.published_row(row, label, columns, paper_table, len(FRACTIONS), average=averaged)
    if not ours or not paper:
        return [paper] if paper else []
    printed = [paper_table.columns.get(column.published_name) for column in columns]
    pairs = list(zip(metrics, printed, strict=True))
    difference = published_rows.difference_row(ours, paper, pairs, row.published_name or "", paper_table, decimals)
    return [paper, difference] if difference else [paper]


def _missing(
    spec: ScoresSpec,
    rows: list[RowSpec],
    columns: list[ColumnSpec],
    runs: RunsByCell,
    records: list[RunRecord],
    request: TableRequest,
) -> list[MissingRuns]:
    seeds = spec.seeds or sorted({record.result.seed for record in records})
    tasks = [column.task for column in columns]
    shots = None if spec.shots is None or str(spec.shots) == shots_of(spec.protocol) else str(spec.shots)
    return [
        missing
        for row in rows
        for method in row.methods
        for missing in run_filter.missing_runs(
            method,
            tasks,
            seeds,
            finished={task: runs.finished.get((method, task), []) for task in tasks},
            included={task: runs.included.get((method, task), []) for task in tasks},
            setting=(spec.backbone, spec.protocol, shots),
            results=request.results,
        )
    ]


def _runs_of_other_shots(records: list[RunRecord], shots: str) -> list[str]:
    """Return a note on the runs with other shots, which have their own table."""
    others = Counter(record.shots for record in records if record.shots != shots)
    return [
        f"{count} {name}-shot run{'s' * (count > 1)} not in this table (--shots {name} shows them)"
        for name, count in others.items()
    ]


def _with_seed_counts(table_rows: list[TableRow], seeds: Sequence[int]) -> list[TableRow]:
    """Say where a mean is over fewer seeds than others of its column; a table with seeds of its own names what is missing."""
    seed_counts = [[len(cell.seed_scores) for cell in row.cells] for row in table_rows]
    most = [max(column) for column in zip(*seed_counts, strict=True)]
    rows = []
    for row in table_rows:
        cells = []
        for cell, of_others in zip(row.cells, most, strict=True):
            count = len(cell.seed_scores)
            note = f"{counted_noun(count, 'seed')}, others have up to {of_others}"
            cells.append(replace(cell, notes=(*cell.notes, note)) if 0 < count < of_others and not seeds else cell)
        rows.append(replace(row, cells=tuple(cells)))
    return rows


def _with_comparability(table_rows: list[TableRow], score: Score | None) -> list[TableRow]:
    """Mark the cells whose runs cannot be compared with most of their column, and the averages of these rows."""
    marked = {row: list(line.cells) for row, line in enumerate(table_rows) if line.source == "runs"}
    for column in range(len(table_rows[0].cells) if table_rows else 0):
        first = {row: cells[column].seed_scores[0].record for row, cells in marked.items() if cells[column].seed_scores}
        agreeing = {
            row: sum(not run_filter.disagreement(record, other, score) for other in first.values())
            for row, record in first.items()
        }
        usual = first.get(max(agreeing, key=lambda row: agreeing[row], default=-1))
        for row, record in first.items():
            if usual and (difference := run_filter.disagreement(record, usual, score)):
                notes = (*marked[row][column].notes, f"not compared with the column's other runs, which differ in {difference}")
                marked[row][column] = replace(marked[row][column], notes=notes, is_comparable=False)
    for cells in marked.values():
        if not all(cell.is_comparable for cell in cells):
            cells[:] = [cell if cell.seed_scores else replace(cell, is_comparable=False) for cell in cells]
    return [replace(line, cells=tuple(marked.get(row, line.cells))) for row, line in enumerate(table_rows)]


def _truncation_notes(rows: list[TableRow]) -> list[str]:
    """Return one note on rows of data whose texts were cut, by task; none where no run in the table has any."""
    counts: dict[str, str] = {}
    for record in (seed_score.record for row in rows for cell in row.cells for seed_score in cell.seed_scores):
        result = record.result
        if (cut := result.truncated) and (cut.train or cut.reported):
            of = result.n_examples
            counts[result.task] = (
                f"{cut.train:,} of {of.train:,} train rows and {cut.reported:,} of {of.reported:,} reported rows"
            )
    texts = [f"{label_of('tasks', task)} {text}" for task, text in counts.items()]
    return [f"longer than max_length and cut: {'; '.join(texts)}"] if texts else []


def _server_notes(server: ServerScores | None, rows: list[RowSpec]) -> list[str]:
    """Return the notes that the scores are test scores, and which submissions have no row."""
    if server is None:
        return []
    others = [method for method in server.methods if not any(method in row.methods for row in rows)]
    without_row = [f"submissions without a row in this table: {', '.join(others)}"] if others else []
    return [f"our scores are test scores, which the GLUE server returned ({server.path.name})", *without_row]


def _title(spec: ScoresSpec, shots: str, records: list[RunRecord], request: TableRequest, published_split: str | None) -> str:
    reported = sorted({record.result.report for record in records})
    epoch = {"last": "last epoch", "best": "best epoch", "max": "maximum over epochs"}
    which = epoch[request.score] if request.score else ", ".join(epoch[name] for name in reported)
    which, our_split = (f"{SERVER_SPLIT} scores", SERVER_SPLIT) if request.server_scores else (which, "validation")
    few = [] if shots == "full" else [f"{shots}-shot"]
    setting = [f"protocol {spec.protocol}", f"backbone {spec.backbone}", *few, *([which] if which else [])]
    is_other_split = published_split not in (None, our_split)  # runs report validation scores
    splits = f"; ours: {our_split} scores, published: {published_split} scores" if is_other_split else ""
    return f"{spec.description or 'Finished runs'} ({', '.join(setting)}{splits})"


def _by_trainable_parameters(records: list[RunRecord]) -> list[str]:
    counts = {record.result.method: -record.result.params.trainable for record in records}
    return sorted(counts, key=lambda method: (counts[method], method))


def _primary(task: str, records: list[RunRecord]) -> str | None:
    run = next((record.result.primary_metric for record in records if record.result.task == task), None)
    if run is None and task in registry.names("tasks"):
        run = registry.load("tasks", task).get("primary")
    return None if run is None else str(run)


def _distinct(labels: list[str], names: list[str]) -> list[str]:
    """Return the labels, where several are the same the names: a copy of a task or method keeps the original's label."""
    return [name if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)]


def _with_metric(label: str, metric: str | None, server: ServerScores | None) -> str:
    split = ", test" if server else ""
    return f"{label} ({METRIC_NAMES.get(metric, metric)}{split})" if metric else label
