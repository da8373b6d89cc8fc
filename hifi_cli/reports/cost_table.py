"""Tables of measured costs: of a method's result (HiFi, table 1), and of its training."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from hifi_cli.config.registry import label_of
from hifi_cli.records.cost_files import ResultCosts, TrainingCosts
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import TableSpec

Costs = TypeVar("Costs", ResultCosts, TrainingCosts)
FULL_FT = "full-ft"  # the reference for the costs of training

_RESULT = {  # labels of the columns, by their names for programs
    "added_in_training": "Extra param. (training)",
    "added_in_result": "Extra param. (result)",
    "modules_added": "Structure (result)",
    "latency": "Latency",
    "stored_bytes": "Stored",
}
_TRAINING = {
    "step_s": "Time per step",
    "memory_bytes": "Extra memory",
    "stored_bytes": "Stored",
    "scoring_s": "Scoring + selection",
}


def of_results(spec: TableSpec, request: TableRequest) -> Table:
    """Build the table of what a method adds, changes, delays and stores (HiFi, table 1)."""
    notes = [
        "training: trained parameters that are not in the plain model; result: the exported model compared to the plain model",
        "latency: time of a forward pass of the exported model divided by the plain model's, measured in turns on this machine",
        "stored: size of the delta file, task head included, also in percent of the plain model",
    ]
    return _table(spec, request.result_costs, _RESULT, _result, notes)


def of_training(spec: TableSpec, request: TableRequest) -> Table:
    """Build the table of costs of training relative to Full-FT (EH-FT, 4.3), and of scoring relative to a run (HiFi, A.6)."""
    notes = [
        "time, memory and stored bytes are relative to Full-FT; the stages of a two-stage method are weighted by their steps",
        "extra memory: at the peak of training, without the loaded model",
        "scoring + selection: time in percent of a complete run on as many training rows as MRPC has",
    ]
    costs = request.training_costs
    return _table(spec, costs, _TRAINING, lambda cost: _training(cost, costs[FULL_FT]), notes)


def _table(
    spec: TableSpec,
    costs: Mapping[str, Costs],
    headings: dict[str, str],
    cells_of: Callable[[Costs], tuple[TableCell, ...]],
    notes: list[str],
) -> Table:
    rows = []
    for row in spec.rows:
        if row.method:
            cost = costs.get(row.method)
            cells = cells_of(cost) if cost else tuple(TableCell() for _ in headings)
            rows.append(TableRow(row.label or label_of("methods", row.method), cells, method=row.method))
    title = f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})"
    return Table(
        title=title, headings=[TableHeading(label, name=name) for name, label in headings.items()], rows=rows, notes=notes
    )


def _result(cost: ResultCosts) -> tuple[TableCell, ...]:
    modules = cost.modules_added
    return (
        _count(cost.added_in_training, cost.total),
        _count(cost.added_in_result, cost.total),
        TableCell(text=f"{modules} more module{'s' * (modules > 1)}" if modules else "unchanged", value=modules),
        TableCell(text=f"x {cost.latency:.2f}", value=cost.latency),
        TableCell(
            text=f"{cost.stored_bytes / 1e6:.2f} MB ({100 * cost.stored_bytes / cost.plain_bytes:.2f} %)",
            value=cost.stored_bytes,
        ),
    )


def _training(cost: TrainingCosts, full: TrainingCosts) -> tuple[TableCell, ...]:
    # a tiny model can train in the memory that loading it has freed
    memory = f"x {cost.memory_bytes / full.memory_bytes:.2f}" if full.memory_bytes else "no ratio"
    return (
        TableCell(text=f"x {cost.step_ratio:.2f} ({1000 * cost.step_s:.0f} ms)", value=cost.step_s),
        TableCell(text=f"{memory} ({cost.memory_bytes / 1e6:.0f} MB)", value=cost.memory_bytes),
        TableCell(
            text=f"x {cost.stored_bytes / full.stored_bytes:.3f} ({cost.stored_bytes / 1e6:.2f} MB)", value=cost.stored_bytes
        ),
        TableCell(
            text=f"{100 * cost.scoring_fraction:.2f} % ({cost.scoring_s:.1f} s)" if cost.scoring_fraction else "none",
            value=cost.scoring_s,
        ),
    )


def _count(number: int, total: int) -> TableCell:
    return TableCell(text=f"{number:,} ({100 * number / total:.3f} %)" if number else "none", value=number)
