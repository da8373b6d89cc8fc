"""The measurements that tables of costs and row counts require."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hifi_cli.reports.table_spec import TableSpec


def measurements(spec: "TableSpec", results_dir: Path, data_dir: Path | None) -> dict[str, Any]:
    """The measurements a table prints: those of each row's method, or of each column's task; none for other tables."""
    where = {"protocol": spec.protocol, "backbone": spec.backbone}
    names = [row.method for row in spec.rows if row.method]
    if spec.kind == "costs":
        from hifi_cli.runs import costs

        return {name: costs.measure(name, **where, results_dir=results_dir) for name in names}
    if spec.kind == "training-costs":
        from hifi_cli.reports.cost_table import FULL_FT
        from hifi_cli.runs import training_costs

        every = dict.fromkeys([FULL_FT, *names])  # all rows are compared with Full-FT
        return {name: training_costs.measure(name, beside=FULL_FT, **where, results_dir=results_dir) for name in every}
    if spec.kind == "statistics":
        from hifi_cli.tasks import row_counts

        tasks = list(dict.fromkeys(column.task for column in spec.columns))
        counts = row_counts.collect(tasks, data_dir=data_dir, results_dir=results_dir)
        return {name: {one.split: {"rows": one.rows, "official": one.official} for one in counts[name]} for name in tasks}
    return {}
