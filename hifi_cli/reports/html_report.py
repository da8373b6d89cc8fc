"""The HTML report: one file without scripts that needs nothing from elsewhere."""

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
from hifi_cli.reports import charts, table
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.reports.table import Line, Table


@dataclass(frozen=True)
class ReportPicture:
    """A chart with what stands over it."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class ReportSection:
    """A table with its pictures."""

    table: Table
    pictures: Sequence[ReportPicture]


def render(tables: Sequence[Table], records: Sequence[RunRecord], results_dir: Path, out: Path) -> str:
    """The page.

    Args:
        records: all finished runs; each is listed with its origin.
        results_dir: where selections of heads are looked for.
        out: where the page will lie; links to results.json are relative to it.
    """
    environment = Environment(
        loader=PackageLoader("hifi_cli.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(number=table.number, deviation=table.deviation, line_label=table.line_label, anchor=anchor)
    return environment.get_template("page.html.j2").render(
        sections=[ReportSection(one, pictures(one)) for one in tables],
        heatmaps=heatmaps(results_dir),
        runs=[_origin(record, out) for record in records],
        marks=sum(bool(record.marks) for record in records),
    )


def anchor(record: RunRecord) -> str:
    """The run's place in the list of origins."""
    result = record.result
    words = (result.protocol, result.backbone, result.task, result.method, record.shots)
    return safe_name(f"run-{'-'.join(words)}-{result.seed}")


def pictures(found: Table) -> list[ReportPicture]:
    """Two for each column of scores: against the share of parameters trained, and the seeds of each method."""
    shares, seeds = [], []
    for number, heading in enumerate(found.headings):
        series = [one for line in found.lines if (one := _series(line, number))]
        if series:
            metric = heading.label.rpartition("(")[2].rstrip(")")
            shares.append(
                ReportPicture(
                    f"{heading.label}: score against share trained", charts.scores_by_trained_fraction(series, metric)
                )
            )
            seeds.append(ReportPicture(f"{heading.label}: every seed", charts.scores_by_seed(series, metric)))
    return shares + seeds


def heatmaps(results_dir: Path) -> list[ReportPicture]:
    """Every selection of heads below a results directory.

    Raises:
        UsageError: a heads file is damaged.
    """
    drawn = []
    for path in sorted((results_dir / "heads").glob("*/*/*.json")):
        selection = HeadSelection.read(path)
        title = f"{selection.backbone}, {selection.task}: {selection.rank}, {selection.strategy}, k={selection.k}"
        drawn.append(ReportPicture(title, charts.head_values(selection.values, selection.heads)))
    return drawn


def _series(line: Line, number: int) -> charts.MethodScores | None:
    cell = line.cells[number]
    if line.source != "runs" or not cell.samples:
        return None
    params = cell.samples[0].record.result.params
    share = 100 * params.trainable / params.total
    if share <= 0:
        return None
    return charts.MethodScores(line.label, share, [sample.score for sample in cell.samples])


def _origin(record: RunRecord, out: Path) -> dict[str, Any]:
    """Where a run's numbers come from, as the list shows it."""
    directory = record.directory
    manifest = directory.read_manifest() if directory.manifest.is_file() else None
    git = manifest.git if manifest else None
    return {
        "anchor": anchor(record),
        "result": record.result,
        "shots": "" if record.shots == "full" else f", {record.shots}-shot",
        "mark": " and ".join(record.marks),
        "link": quote(os.path.relpath(directory.results, out.parent).replace(os.sep, "/")),
        "commit": f"{git.commit[:10]}{' + changes' if git.changed else ''}" if git else "",
        "torch": (manifest.libraries.get("torch") or "") if manifest else "",
        "device": manifest.device if manifest else "",
    }
