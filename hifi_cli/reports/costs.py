"""What methods cost beside full fine-tuning."""

from collections.abc import Collection

import pandas as pd

from hifi_cli.config.registry import label_of
from hifi_cli.records.study import Study
from hifi_cli.reports import comparable
from hifi_cli.reports.paper_tables import has_own_memory
from hifi_cli.reports.render import Table
from hifi_cli.reports.table_spec import NO_TABLE, RowSpec, TableSpec, load_published, shots_of
from hifi_cli.text import counted_noun

FULL_FT = "full-ft"  # the reference for costs
COSTS = {
    "trained_percent": "Trained %",
    "time": "Time",
    "memory": "Memory",
    "stored": "Stored",
    "stored_mb": "MB",
}


def costs(spec: TableSpec, study: Study, *, included: Collection[str]) -> Table:
    """What finished runs took, relative to Full-FT on the same tasks, device and threads; means over tasks.

    Beside them stands what the paper's table marks (HiFi, table 1: extra parameters, corrupted structure, inference delay,
    storage).
    """
    runs = comparable.select_runs(
        study.runs,
        protocol=spec.protocol,
        backbone=spec.backbone,
        shots=str(spec.shots or shots_of(spec.protocol)),
    )
    runs = runs[
        runs["seed"].isin(spec.seeds or runs["seed"])
        & runs["task"].isin(spec.tasks or runs["task"])
    ]
    with_exclusions = comparable.with_exclusions(runs, included)
    measured = relative_costs(with_exclusions[with_exclusions["excluded_because"] == ""])
    rows = spec.rows or [RowSpec(method=name) for name in measured.index]
    notes = [
        "time per epoch, peak memory and stored file relative to Full-FT's on the same task, device and number of threads:"
        " means over tasks"
    ]
    alone = with_exclusions["method"][~with_exclusions["method"].isin(measured.index)]
    reasons = with_exclusions["excluded_because"].replace(
        "", "Full-FT has no run on their tasks, devices and numbers of threads"
    )
    notes += [
        f"left out: {reason}: {', '.join(sorted({*names}))}"
        for reason, names in alone.groupby(reasons)
    ]
    shared = with_exclusions[
        (with_exclusions["excluded_because"] == "") & ~has_own_memory(with_exclusions)
    ]
    if len(shared):
        names = ", ".join(sorted({*shared["method"]}))
        notes.append(
            f"memory left out: {counted_noun(len(shared), 'run')} that another one of the same"
            f" command had preceded ({names}); hifi grid starts a process for each run"
        )
    name, paper = load_published(spec.published) if spec.published else ("", NO_TABLE)
    marks = {
        column: [paper.mean(str(row.published), column) for row in rows] for column in paper.columns
    }
    columns = {
        "method": [row.method for row in rows],
        "label": [row.label or label_of("methods", str(row.method)) for row in rows],
        "source": "runs",
        **marks,
    }
    notes += [f"check marks as printed in {name}, table {paper.number}"] if marks else []
    notes += [paper.note] if paper.note else []
    return Table(
        title=f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})",
        frame=pd.DataFrame(columns).join(measured, on="method"),
        headings={key: key for key in marks} | COSTS,
        formats={**dict.fromkeys(COSTS, ".2f"), "stored": ".3f"},
        notes=notes,
    )


def relative_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Costs by method: percent of trained parameters, `time` per epoch, peak `memory` and size of the file `stored`.

    The latter three are ratios to Full-FT's on the same task, device and number of threads, means over tasks.
    """
    by_cell = (
        runs.assign(
            trained_percent=100 * runs["trainable"] / runs["total"],
            time=runs["time_s"].astype(float) / runs["epoch_last"].astype(float),
            memory=runs["peak_memory_bytes"].astype(float).where(has_own_memory(runs)),
            stored=runs["delta_bytes"].astype(float),
            stored_mb=runs["delta_bytes"].astype(float) / 1e6,
        )
        .groupby(["method", "task", "device", "threads"])[[*COSTS]]
        .mean()
    )
    ratios = ["time", "memory", "stored"]
    full = by_cell.loc[by_cell.index.get_level_values("method") == FULL_FT, ratios].droplevel(
        "method"
    )
    by_cell[ratios] = by_cell[ratios] / full.reindex(by_cell.index.droplevel("method")).to_numpy()
    return by_cell.dropna(subset=["time"]).groupby(level="method").mean()
