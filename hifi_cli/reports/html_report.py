"""The HTML report: one file without scripts and without external resources."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hifi_cli.files import safe_name
from hifi_cli.records.head_files import HeadSelection
from hifi_cli.reports import charts, claim_table, table
from hifi_cli.reports.claim_spec import ClaimsFile
from hifi_cli.reports.claims import ClaimResult
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.table import Table, TableRow


@dataclass(frozen=True)
class ReportChart:
    """A chart with its title."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class ReportSection:
    """A table with its charts."""

    table: Table
    charts: Sequence[ReportChart]


def render(
    tables: Sequence[Table],
    records: Sequence[RunRecord],
    results_dir: Path,
    out: Path,
    *,
    claims: Sequence[tuple[ClaimsFile, Sequence[ClaimResult]]] = (),
) -> str:
    """Return the HTML page.

    Args:
        claims: files of claims with the verdicts; each becomes a table with a picture.
        records: all finished runs; each is listed with its origin.
        results_dir: directory with the selected heads.
        out: path of the page; links to results.json are relative to it.
    """
    environment = Environment(
        loader=PackageLoader("hifi_cli.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(number=table.number, deviation=table.deviation, row_label=table.row_label, anchor=anchor)
    return environment.get_template("page.html.j2").render(
        sections=[
            *(ReportSection(table, charts_of(table)) for table in tables),
            *(_claims_section(file, results) for file, results in claims),
        ],
        heatmaps=heatmaps(results_dir),
        runs=[_origin(record, out) for record in records],
        flagged=sum(bool(record.flags) for record in records),
    )


def anchor(record: RunRecord) -> str:
    """Return the id of a run in the page's list of runs."""
    result = record.result
    words = (result.protocol, result.backbone, result.task, result.method, record.shots)
    return safe_name(f"run-{'-'.join(words)}-{result.seed}")


def charts_of(table: Table) -> list[ReportChart]:
    """Draw two charts for each column of scores: against the fraction of trained parameters, and the seeds of each method."""
    by_fraction: list[ReportChart] = []
    by_seed: list[ReportChart] = []
    for number, heading in enumerate(table.headings):
        methods = [scores for row in table.rows if (scores := _method_scores(row, number))]
        if methods:
            metric = heading.label.rpartition("(")[2].rstrip(")")
            chart = charts.scores_by_trained_fraction(methods, metric)
            by_fraction.append(ReportChart(f"{heading.label}: score against trained parameters", chart))
            by_seed.append(ReportChart(f"{heading.label}: every seed", charts.scores_by_seed(methods, metric)))
    return by_fraction + by_seed


def _claims_section(file: ClaimsFile, results: Sequence[ClaimResult]) -> ReportSection:
    picture = ReportChart("Effects, intervals and published numbers", charts.claim_effects(results))
    return ReportSection(claim_table.build(file, results), [picture])


def heatmaps(results_dir: Path) -> list[ReportChart]:
    """Draw every selection of heads in a results directory.

    Raises:
        UsageError: a heads file is damaged.
    """
    drawn = []
    for path in sorted((results_dir / "heads").glob("*/*/*.json")):
        selection = HeadSelection.read(path)
        title = f"{selection.backbone}, {selection.task}: {selection.rank}, {selection.strategy}, k={selection.k}"
        drawn.append(ReportChart(title, charts.head_values(selection.values, selection.heads)))
    return drawn


def _method_scores(row: TableRow, number: int) -> charts.MethodScores | None:
    cell = row.cells[number]
    if row.source != "runs" or not cell.seed_scores:
        return None
    params = cell.seed_scores[0].record.result.params
    trained_percent = 100 * params.trainable / params.total
    if trained_percent <= 0:
        return None
    return charts.MethodScores(row.label, trained_percent, [seed_score.score for seed_score in cell.seed_scores])


def _origin(record: RunRecord, out: Path) -> dict[str, Any]:
    """Return a run's row in the list of runs: its result, commit, device and link."""
    directory = record.directory
    manifest = directory.read_manifest() if directory.manifest.is_file() else None
    git = manifest.git if manifest else None
    return {
        "anchor": anchor(record),
        "result": record.result,
        "shots": "" if record.shots == "full" else f", {record.shots}-shot",
        "flags": " and ".join(record.flags),
        "link": quote(os.path.relpath(directory.results, out.parent).replace(os.sep, "/")),
        "commit": f"{git.commit[:10]}{' + changes' if git.changed else ''}" if git else "",
        "torch": (manifest.libraries.get("torch") or "") if manifest else "",
        "device": manifest.device if manifest else "",
    }
