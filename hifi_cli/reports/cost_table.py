"""Tables of measured costs: of a method's result (HiFi, table 1), and of its training."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from hifi_cli.records.cost_files import ResultCosts, TrainingCosts
from hifi_cli.reports.table import Table, TableCell, TableHeading, TableRow
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import TableSpec, label_of

Costs = TypeVar("Costs", ResultCosts, TrainingCosts)
FULL_FT = "full-ft"  # the reference for the costs of training

_RESULT = ("Extra param. (training)", "Extra param. (result)", "Structure (result)", "Latency", "Stored")
_TRAINING = ("Time per step", "Extra memory", "Stored", "Scoring + selection")


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
    headings: tuple[str, ...],
    texts: Callable[[Costs], tuple[str, ...]],
    notes: list[str],
) -> Table:
    rows = []
    for row in spec.rows:
        if row.method:
            cost = costs.get(row.method)
            cells = tuple(TableCell(text=text) for text in texts(cost)) if cost else tuple(TableCell() for _ in headings)
            rows.append(TableRow(row.label or label_of("methods", row.method), cells, method=row.method))
    title = f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})"
    return Table(title=title, headings=[TableHeading(name) for name in headings], rows=rows, notes=notes)


def _result(cost: ResultCosts) -> tuple[str, ...]:
    modules = cost.modules_added
    return (
        _count(cost.added_in_training, cost.total),
        _count(cost.added_in_result, cost.total),
        f"{modules} more module{'s' * (modules > 1)}" if modules else "unchanged",
        f"x {cost.latency:.2f}",
        f"{cost.stored_bytes / 1e6:.2f} MB ({100 * cost.stored_bytes / cost.plain_bytes:.3g} %)",
    )


def _training(cost: TrainingCosts, full: TrainingCosts) -> tuple[str, ...]:
    # a tiny model can train in the memory that loading it has freed
    memory = f"x {cost.memory_bytes / full.memory_bytes:.2f}" if full.memory_bytes else "no ratio"
    return (
        f"x {cost.step_ratio:.2f} ({1000 * cost.step_s:.0f} ms)",
        f"{memory} ({cost.memory_bytes / 1e6:.0f} MB)",
        f"x {cost.stored_bytes / full.stored_bytes:.3g} ({cost.stored_bytes / 1e6:.2f} MB)",
        f"{100 * cost.scoring_fraction:.2g} % ({cost.scoring_s:.1f} s)" if cost.scoring_fraction else "none",
    )


def _count(number: int, total: int) -> str:
    return f"{number:,} ({100 * number / total:.3g} %)" if number else "none"
