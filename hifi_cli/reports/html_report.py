"""The HTML report: one file that loads nothing. Its only script sorts tables, and the page's policy allows no other."""

import base64
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hifi_cli.config.registry import label_of
from hifi_cli.files import safe_name
from hifi_cli.records.head_files import HeadSelection
from hifi_cli.reports import charts, claim_table
from hifi_cli.reports.claim_spec import ClaimsFile
from hifi_cli.reports.claims import ClaimResult
from hifi_cli.reports.render import Place, Table
from hifi_cli.reports.run_records import RunRecord
from hifi_cli.version import __version__

HeadsOfTask = tuple[str, str, tuple[tuple[int, ...], ...]]
"""Backbone, task, and the heads of each layer."""


@dataclass(frozen=True)
class ReportChart:
    """A chart with its title."""

    title: str
    image: Markup


@dataclass(frozen=True)
class ReportSection:
    """A table with its charts, and by cell the id of its first run in the page's list of runs."""

    table: Table
    charts: Sequence[ReportChart]
    links: Mapping[Place, str]


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
        records: all finished runs; each is listed with its origin, and the heads that were trained are drawn.
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
    by_path = {str(record.result.run_path): record for record in records}
    origins = [_origin(record, out) for record in records]
    script = resources.files("hifi_cli.reports").joinpath("templates/sort.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        versions=", ".join(sorted({f"torch {origin['torch']}" for origin in origins if origin["torch"]})) or "unknown versions",
        sections=[
            *(ReportSection(table, charts_of(table, by_path), _links(table, by_path)) for table in tables),
            *(_claims_section(file, results) for file, results in claims),
        ],
        heatmaps=heatmaps(records, results_dir),
        runs=origins,
        flagged=sum(bool(record.flags) for record in records),
    )


def anchor(record: RunRecord) -> str:
    """Return the id of a run in the page's list of runs."""
    result = record.result
    words = (result.protocol, result.backbone, result.task, result.method, record.shots)
    return safe_name(f"run-{'-'.join(words)}-{result.seed}")


def _links(table: Table, by_path: Mapping[str, RunRecord]) -> dict[Place, str]:
    if table.scores.empty:
        return {}
    first = table.scores.dropna(subset="path").drop_duplicates(["row", "column"])
    return {(run.row, run.column): anchor(by_path[run.path]) for run in first.itertuples()}


def charts_of(table: Table, by_path: Mapping[str, RunRecord]) -> list[ReportChart]:
    """Draw three charts for each column of scores: against trained parameters, each method's seeds, and learning curves."""
    by_fraction: list[ReportChart] = []
    by_seed: list[ReportChart] = []
    by_epoch: list[ReportChart] = []
    for key, heading in table.headings.items() if len(table.scores) else ():
        of_column = table.scores[table.scores["column"] == key]
        by_row = {table.frame["label"][row]: scores for row, scores in of_column.groupby("row")}
        metric = heading.rpartition("(")[2].rstrip(")")
        methods = []
        for label, scores in by_row.items():
            params = by_path[scores["path"].iloc[0]].result.params
            if params.trainable:
                methods.append(charts.MethodScores(label, 100 * params.trainable / params.total, [*scores["score"]]))
        if methods:
            chart = charts.scores_by_trained_fraction(methods, metric)
            by_fraction.append(ReportChart(f"{heading}: score against trained parameters", chart))
            by_seed.append(ReportChart(f"{heading}: every seed", charts.scores_by_seed(methods, metric)))
        curves = {label: _learning_curve(scores, by_path) for label, scores in by_row.items()}
        curves = {label: curve for label, curve in curves.items() if curve}
        if any(len(curve) > 1 for curve in curves.values()):
            by_epoch.append(ReportChart(f"{heading}: learning curves", charts.learning_curves(curves, metric)))
    return by_fraction + by_seed + by_epoch


def _claims_section(file: ClaimsFile, results: Sequence[ClaimResult]) -> ReportSection:
    picture = ReportChart("Effects, intervals and published numbers", charts.claim_effects(results))
    return ReportSection(claim_table.build(file, results).converted(), [picture], {})


def heatmaps(runs: Sequence[RunRecord], results_dir: Path) -> list[ReportChart]:
    """Draw the selections of heads that were trained, each with the runs that trained them.

    Of selections by one ranking that differ in the scored samples and have the same heads, the first is drawn. Random draws
    are not: their values mean nothing, and every seed has its own.

    Raises:
        UsageError: a heads file is damaged.
    """
    trained = _trained_heads(runs)
    drawn: dict[tuple[object, ...], ReportChart] = {}
    for path in sorted((results_dir / "heads").glob("*/*/*.json")):
        selection = HeadSelection.read(path)
        heads = (selection.backbone, selection.task, _hashable(selection.heads))
        how = (selection.rank, selection.strategy, selection.k, selection.damping)
        if selection.rank != "random" and heads in trained and (*heads, *how) not in drawn:
            task, setting = label_of("tasks", selection.task), f"{selection.rank}, {selection.strategy}, k={selection.k}"
            title = f"{task}, {selection.backbone}, {setting}: {'; '.join(trained[heads])}"
            drawn[*heads, *how] = ReportChart(title, charts.head_values(selection.values, selection.heads))
    return sorted(drawn.values(), key=lambda chart: chart.title)


def _trained_heads(runs: Sequence[RunRecord]) -> dict[HeadsOfTask, list[str]]:
    """Return the runs that trained the same heads of a backbone on a task, in words, by backbone, task and heads."""
    seeds_by_method: dict[tuple[str, ...], dict[HeadsOfTask, list[int]]] = {}
    for record in runs:
        result = record.result
        if result.heads:
            heads = (result.backbone, result.task, _hashable(result.heads))
            by_heads = seeds_by_method.setdefault((*record.setting, *record.method_and_task), {})
            by_heads.setdefault(heads, []).append(result.seed)
    trained: dict[HeadsOfTask, list[str]] = {}
    for (protocol, _, _, method, _), by_heads in seeds_by_method.items():
        for heads, seeds in by_heads.items():
            words = f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}" if len(by_heads) > 1 else ""
            trained.setdefault(heads, []).append(f"{label_of('methods', method)}, {protocol}{words}")
    return trained


def _hashable(heads: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, heads))


def _learning_curve(of_cell: pd.DataFrame, by_path: Mapping[str, RunRecord]) -> dict[int, float]:
    """Return the mean over seeds of the primary metric after each epoch that all seeds have, in percent.

    Empty where the column shows another metric: a seed's score is then not on its curve. Empty too where a run evaluated the
    reported split only after some epochs (few-shot, holdout): a line through these would hide how scores fall.
    """
    curves = []
    for run in of_cell.itertuples():
        result = by_path[run.path].result
        lines = {line.epoch: line.metrics.get(result.primary_metric) for line in result.epoch_metrics}
        curve = {epoch: 100 * score for epoch, score in lines.items() if score is not None}
        if len(curve) < len(lines) or not any(math.isclose(value, run.score) for value in curve.values()):
            return {}
        curves.append(curve)
    common = sorted(set.intersection(*map(set, curves)))
    return {epoch: sum(curve[epoch] for curve in curves) / len(curves) for epoch in common}


def _origin(record: RunRecord, out: Path) -> dict[str, Any]:
    """Return a run's row in the list of runs: its result, commit, device and link."""
    made = record.result.provenance
    git = made.git
    return {
        "anchor": anchor(record),
        "result": record.result,
        "shots": "" if record.shots == "full" else f", {record.shots}-shot",
        "flags": " and ".join(record.flags),
        "link": quote(os.path.relpath(record.directory.results, out.parent).replace(os.sep, "/")),
        "commit": f"{git.commit[:10]}{' + changes' if git.changed else ''}" if git else "",
        "torch": made.libraries.get("torch") or "",
        "device": made.device,
    }
