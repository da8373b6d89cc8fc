"""Tables in the papers' layout: a method per row, a task per column, mean and standard deviation over seeds."""

import csv
import io
import json
import shlex
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from hifi_cli import registry
from hifi_cli.reports.records import Record

METRIC_NAMES = {"accuracy": "Acc.", "f1": "F1", "matthews": "Matt.", "spearman": "Spea.", "pearson": "Pear."}
DASH = "-"


class TableSpec(BaseModel):
    """What a table's YAML says: which runs stand where.

    Attributes:
        rows: methods; default: all that were run.
        columns: tasks; default: all that were run.
        seeds: seeds a cell should have, to name the missing runs.
        decimals: of a score in percent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = ""
    protocol: str
    backbone: str
    rows: list[str] = []
    columns: list[str] = []
    seeds: list[int] = []
    decimals: int = 1


@dataclass(frozen=True)
class Cell:
    """Scores of one method on one task, in percent.

    Attributes:
        scores: one per seed.
        place: 1 for the best of its column, 2 for the second, by the number as printed.
    """

    scores: list[float]
    place: int | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation; None for fewer than two seeds."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


@dataclass(frozen=True)
class Line:
    """A row: a method, its cells in the columns' order, their average, and its trainable share in percent.

    Attributes:
        share: of the whole model's parameters.
        backbone_share: the same without the task head, as the papers count.
    """

    label: str
    cells: list[Cell]
    average: Cell
    share: float | None
    backbone_share: float | None


@dataclass(frozen=True)
class Table:
    """A table ready to print.

    Attributes:
        notes: footnotes on runs that were left out.
        missing: commands for the runs that are not there.
    """

    title: str
    columns: list[str]
    lines: list[Line]
    decimals: int
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def specs_of(records: list[Record]) -> list[TableSpec]:
    """One table for each protocol and backbone that was run: their numbers never share a table unasked."""
    pairs = sorted({(record.content["protocol"], record.content["backbone"]) for record in records})
    return [TableSpec(protocol=protocol, backbone=backbone) for protocol, backbone in pairs]


def build(spec: TableSpec, records: list[Record], *, score: str | None = None, include: set[str] = frozenset()) -> Table:  # type: ignore[assignment]
    """Collect a table's runs.

    Args:
        score: `best`, `last` or `max`; None: what each protocol reports.
        include: marks (`collapsed`, `limited`) whose runs enter the means all the same.
    """
    mine = [one for one in records if (one.content["protocol"], one.content["backbone"]) == (spec.protocol, spec.backbone)]
    cells: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in mine:
        cells[record.cell].append(record)
    methods = spec.rows or _by_trainable_share(mine)
    tasks = spec.columns or sorted({task for _, task in cells})
    notes: list[str] = []
    used = {cell: _usable(cell, found, include, notes) for cell, found in cells.items()}
    lines = [_line(method, tasks, used, score) for method in methods]
    metric = {record.content["task"]: record.content["primary_metric"] for record in mine}
    seeds = spec.seeds or sorted({record.content["seed"] for record in mine})
    return Table(
        title=f"{spec.description or 'Finished runs'} (protocol {spec.protocol}, backbone {spec.backbone})",
        columns=[_column(task, metric.get(task)) for task in tasks],
        lines=_placed(lines, spec.decimals),
        decimals=spec.decimals,
        notes=notes,
        missing=_missing(spec, methods, tasks, seeds, cells),
    )


def as_text(table: Table, width: int | None = None) -> str:
    """For a terminal: best bold, second underlined."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    styles = {1: "bold", 2: "underline"}
    grid = Grid(title=table.title, title_justify="left", title_style="")
    for number, name in enumerate(_header(table)):
        grid.add_column(name, justify="right" if number else "left", no_wrap=True)
    for line in table.lines:
        scores = [Text(_plain(cell, table.decimals), style=styles.get(cell.place or 0, "")) for cell in _scores(table, line)]
        grid.add_row(line.label, *scores, _percent(line.share), _percent(line.backbone_share))
    stream = io.StringIO()
    from sys import stdout

    console = Console(file=stream, width=width or (None if stdout.isatty() else 10_000), force_terminal=stdout.isatty())
    console.print(grid)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n" + _below(table)


def as_markdown(table: Table) -> str:
    """A Markdown table: best bold, second underlined."""
    marks = {1: ("**", "**"), 2: ("<u>", "</u>")}
    header = _header(table)
    out = [f"{table.title}\n", f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    for line in table.lines:
        words = []
        for cell in _scores(table, line):
            before, after = marks.get(cell.place or 0, ("", ""))
            words.append(f"{before}{_mean(cell, table.decimals)}{after}{_deviation(cell, table.decimals, '<sub>±{}</sub>')}")
        out.append(f"| {' | '.join([line.label, *words, _percent(line.share), _percent(line.backbone_share)])} |")
    return "\n".join(out) + "\n" + _below(table)


def as_latex(table: Table) -> str:
    """A booktabs table: best bold, second underlined."""
    marks = {1: r"\textbf{%s}", 2: r"\underline{%s}"}
    header = [_escaped(name) for name in _header(table)]
    out = [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule", " & ".join(header) + r" \\", r"\midrule"]
    for line in table.lines:
        words = [
            marks.get(cell.place or 0, "%s") % _mean(cell, table.decimals) + _deviation(cell, table.decimals, r"$_{{\pm {}}}$")
            for cell in _scores(table, line)
        ]
        shares = [_escaped(_percent(line.share)), _escaped(_percent(line.backbone_share))]
        out.append(" & ".join([_escaped(line.label), *words, *shares]) + r" \\")
    notes = [f"% {text}" for text in (table.title, *table.notes, *(f"missing: {command}" for command in table.missing))]
    return "\n".join([*notes, *out, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(table: Table) -> str:
    """Means, standard deviations and numbers of seeds, unrounded."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [f"{name} {part}" for name in [*table.columns, "Avg."] for part in ("mean", "std", "seeds")]
    writer.writerow(["method", *names, "trained %", "trained % of backbone"])
    for line in table.lines:
        numbers = [value for cell in [*line.cells, line.average] for value in (cell.mean, cell.deviation, len(cell.scores))]
        writer.writerow([line.label, *numbers, line.share, line.backbone_share])
    return stream.getvalue()


def as_json(table: Table) -> str:
    """Everything, every seed's score included."""
    content: dict[str, Any] = {
        "title": table.title,
        "columns": table.columns,
        "rows": [
            {
                "method": line.label,
                "scores": {name: cell.scores for name, cell in zip(table.columns, line.cells, strict=True)},
                "average": line.average.mean,
                "trained_percent": line.share,
                "trained_percent_of_backbone": line.backbone_share,
            }
            for line in table.lines
        ],
        "notes": table.notes,
        "missing": table.missing,
    }
    return json.dumps(content, indent=1) + "\n"


FORMATS = {"text": as_text, "md": as_markdown, "tex": as_latex, "csv": as_csv, "json": as_json}


def _usable(cell: tuple[str, str], found: list[Record], include: set[str], notes: list[str]) -> list[Record]:
    """The runs of a cell that belong in one mean; each run left out is told in a note."""
    method, task = cell
    for mark, count in Counter(one.unusable for one in found if one.unusable and one.unusable not in include).items():
        notes.append(f"{method} on {task}: {count} {mark} run{'s' * (count > 1)} left out")
    for mark, count in Counter(one.unusable for one in found if one.unusable and one.unusable in include).items():
        notes.append(f"{method} on {task}: {count} {mark} run{'s' * (count > 1)} counted")
    kept = [one for one in found if not one.unusable or (one.unusable in include and one.content["scores"])]
    if not kept:
        return []
    settings = Counter(one.setting for one in kept)
    common, _ = settings.most_common(1)[0]
    if len(settings) > 1:
        notes.append(f"{method} on {task}: {len(kept) - settings[common]} runs of other settings left out")
    return [one for one in kept if one.setting == common]


def _line(method: str, tasks: list[str], used: dict[tuple[str, str], list[Record]], score: str | None) -> Line:
    rows = [used.get((method, task), []) for task in tasks]
    cells = [Cell([100 * one.score(score) for one in found]) for found in rows]
    means = [cell.mean for cell in cells]
    whole = [mean for mean in means if mean is not None]
    params = next((found[0].content["params"] for found in rows if found), None)
    return Line(
        label=_label("methods", method),
        cells=cells,
        average=Cell([statistics.fmean(whole)] if whole and len(whole) == len(means) else []),
        share=100 * params["trainable"] / params["total"] if params else None,
        backbone_share=100 * params["trainable_backbone"] / params["total"] if params else None,
    )


def _placed(lines: list[Line], decimals: int) -> list[Line]:
    """Mark the best and second of each column by the printed numbers, so that equal prints get equal marks."""

    def placed(cells: list[Cell]) -> list[Cell]:
        printed = [None if cell.mean is None else round(cell.mean, decimals) for cell in cells]
        order = sorted({value for value in printed if value is not None}, reverse=True)[:2]
        if len(order) < 2:
            return cells
        return [
            Cell(cell.scores, None if value is None or value not in order else 1 + order.index(value))
            for cell, value in zip(cells, printed, strict=True)
        ]

    if not lines:
        return lines
    columns = [placed([line.cells[number] for line in lines]) for number in range(len(lines[0].cells))]
    averages = placed([line.average for line in lines])
    return [
        Line(line.label, [column[number] for column in columns], averages[number], line.share, line.backbone_share)
        for number, line in enumerate(lines)
    ]


def _missing(
    spec: TableSpec, methods: list[str], tasks: list[str], seeds: list[int], cells: dict[tuple[str, str], list[Record]]
) -> list[str]:
    commands = []
    for method in methods:
        for task in tasks:
            there = {record.content["seed"] for record in cells.get((method, task), [])}
            absent = [str(seed) for seed in seeds if seed not in there]
            if absent:
                words = ["--task", task, "--method", method, "--backbone", spec.backbone, "--protocol", spec.protocol]
                commands.append(shlex.join(["hifi", "train", *words, "--seeds", ",".join(absent)]))
    return commands


def _by_trainable_share(records: list[Record]) -> list[str]:
    shares = {one.content["method"]: -one.content["params"]["trainable"] for one in records}
    return sorted(shares, key=lambda method: (shares[method], method))


def _label(kind: str, name: str) -> str:
    return str(registry.load(kind, name).get("label", name)) if name in registry.names(kind) else name


def _column(task: str, metric: str | None) -> str:
    label = _label("tasks", task)
    return f"{label} ({METRIC_NAMES.get(metric, metric)})" if metric else label


def _header(table: Table) -> list[str]:
    return ["Method", *table.columns, *(["Avg."] if len(table.columns) > 1 else []), "Trained", "w/o head"]


def _scores(table: Table, line: Line) -> list[Cell]:
    return [*line.cells, line.average] if len(table.columns) > 1 else line.cells


def _mean(cell: Cell, decimals: int) -> str:
    return DASH if cell.mean is None else f"{cell.mean:.{decimals}f}"


def _deviation(cell: Cell, decimals: int, form: str) -> str:
    return "" if cell.deviation is None else form.format(f"{cell.deviation:.{decimals}f}")


def _plain(cell: Cell, decimals: int) -> str:
    return _mean(cell, decimals) + _deviation(cell, decimals, " ±{}")


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{share:.3g} %" if 0 < share < 1 else f"{share:.1f} %"


def _below(table: Table) -> str:
    notes = [f"note: {text}" for text in table.notes]
    missing = [f"missing: {command}" for command in table.missing]
    return "".join(f"{line}\n" for line in notes + missing)


def _escaped(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")
