"""The HTML report: a conclusion in words, pictures, tables, comparisons and claims.

One file that loads nothing. The order of its sections is that of the template.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hifi_cli._version import __version__
from hifi_cli.errors import MissingError
from hifi_cli.records.study import SCORES, TABLE_KEYS, Study
from hifi_cli.reports.comparable import ComparableRuns
from hifi_cli.reports.compare import compare
from hifi_cli.reports.conclusion import conclude
from hifi_cli.reports.options import ReportOptions
from hifi_cli.reports.pairs import FULL_FT
from hifi_cli.reports.pictures import (
    Picture,
    curve_pictures,
    curves_of,
    forest_pictures,
    looks_of_page,
)
from hifi_cli.reports.render import as_html
from hifi_cli.reports.table import Cell, Row, Table, known
from hifi_cli.reports.table_runs import select_runs, setting_in_words, table_keys

# The sentences below the pictures, which say how to read them.
OF_FOREST = (
    "Each method minus the reference, runs paired by seed: mean and 95 % t-interval for new seeds on these tasks. The"
    " verdicts are above: an interval alone decides nothing."
)
OF_CURVES = "Mean over seeds; shade: standard deviation."


@dataclass(frozen=True)
class ReportedRuns:
    """The runs of one protocol, backbone and number of shots.

    Attributes:
        title: these three.
        rows: rows of `Study.runs`.
        runs: the same, judged and scored.
        reference: the method that the others are compared with.
    """

    title: str
    rows: pd.DataFrame
    runs: ComparableRuns
    reference: str


@dataclass(frozen=True)
class Gallery:
    """A section of pictures.

    Attributes:
        name: of the section, in links.
        heading: of the section.
        note: how to read the pictures.
        pictures: none: the page has no such section.
    """

    name: str
    heading: str
    note: str
    pictures: list[Picture]


def reported_runs(
    study: Study, options: ReportOptions, methods: Sequence[str]
) -> list[ReportedRuns]:
    """Return the runs of each protocol, backbone and number of shots.

    Args:
        study: all runs of the report.
        options: which epoch's score is meant, and which runs count.
        methods: those that are asked for, of which the first is the reference; empty: all, and
            Full-FT is.
    """
    reference = methods[0] if methods else FULL_FT
    found = []
    keys_of_runs = table_keys(study.table_runs).drop_duplicates().sort_values(TABLE_KEYS)
    for keys in keys_of_runs.to_dict("records"):
        rows = select_runs(study.runs, **keys)
        runs = ComparableRuns.of(study, rows, options)
        found.append(ReportedRuns(setting_in_words(keys), rows, runs, reference))
    return found


def comparisons(reported: Sequence[ReportedRuns]) -> Iterator[Table]:
    """Yield the comparison of the reference with each method that shares runs with it."""
    for each in reported:
        others = sorted(set(each.rows["method"]) - {each.reference})
        # No method may share a run with the reference.
        with suppress(MissingError):
            names = [each.reference, *others]
            yield from compare(each.runs.study, each.rows, names, each.runs.options)


def render(
    study: Study, reported: Sequence[ReportedRuns], tables: Sequence[Table], *, command: str
) -> str:
    """Return the page.

    Args:
        study: its figures and list of runs are shown.
        reported: its runs by protocol, backbone and shots, for the conclusion and the pictures.
        tables: in the order of the page.
        command: the one that makes the page.
    """
    environment = Environment(
        loader=PackageLoader("hifi_cli.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.globals.update(table_html=lambda table: Markup(as_html(table)))
    script = files("hifi_cli.reports").joinpath("templates/sort.js").read_text(encoding="utf-8")
    return environment.get_template("report.html.j2").render(
        version=__version__,
        command=command,
        newest=_newest(study),
        notes=study.notes_on_damage,
        conclusions=[conclude(each.title, each.runs, each.reference) for each in reported],
        tables=tables,
        study_is_packed=study.is_packed,
        **_galleries(study, reported),
        runs=_list_of_runs(study),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _newest(study: Study) -> str:
    """Return when the newest run finished, as its record says; empty where no record has a date."""
    dates = []
    for path in study.runs["path"]:
        stored = study.results[path].provenance.get("finished")
        # Records of others may hold anything.
        with suppress(ValueError, OverflowError):
            date = datetime.fromisoformat(str(stored))
            if date.tzinfo:
                dates.append(date.astimezone(UTC))
    return f"{max(dates):%Y-%m-%d %H:%M} UTC" if dates else ""


def _galleries(study: Study, reported: Sequence[ReportedRuns]) -> dict[str, Gallery]:
    """Return the galleries, by their names in the template."""
    looks = looks_of_page(each.runs for each in reported)
    differences: list[Picture] = []
    scores: list[Picture] = []
    losses: list[Picture] = []
    for each in reported:
        differences += forest_pictures(each.title, each.runs, each.reference, looks)
        curves = curves_of(each.runs)
        scores += curve_pictures(each.title, each.runs, curves, "score", looks)
        losses += curve_pictures(each.title, each.runs, curves, "loss", looks)
    figures = []
    for path in sorted((study.directory / "figures").glob("*.png")):
        figures.append(Picture(path.stem, path.read_bytes()))
    return {
        "differences": Gallery("differences", "Differences with intervals", OF_FOREST, differences),
        "learning_curves": Gallery("learning-curves", "Learning curves", OF_CURVES, scores),
        "losses": Gallery("training-losses", "Training losses", OF_CURVES, losses),
        "figures": Gallery("figures", "Figures", "", figures),
    }


def _list_of_runs(study: Study) -> Table:
    """Return every run with its scores and the first letters of its encoder's digest."""
    rows = []
    for run in study.runs.itertuples():
        cells: dict[str, Cell] = {
            "status": Cell(run.status),
            "metric": Cell(run.metric),
            "epochs": Cell(known(run.epoch_last)),
            "encoder": Cell(run.weights[:8]),
        }
        for name in SCORES:
            cells[name] = Cell(known(getattr(run, name)))
        rows.append(Row(run.path, run.path, "runs", cells))
    headings = ["status", "metric", *SCORES, "epochs", "encoder"]
    return Table(
        title="Runs",
        rows=rows,
        headings={name: name for name in headings},
        columns=[],
        index_title="path",
        formats={**dict.fromkeys(SCORES, ".2%"), "epochs": ".0f"},
    )
