"""The layouts of what methods cost: their results (HiFi, table 1) and their training; from measurements, not from opinions."""

from collections.abc import Callable
from typing import Any

from hifi_cli.reports.table import Heading, Line, Table, TableCell
from hifi_cli.reports.table_request import TableRequest
from hifi_cli.reports.table_spec import TableSpec, label_of

FULL_FT = "full-ft"  # what training stands beside

_RESULT = ("Extra param. (training)", "Extra param. (result)", "Structure (result)", "Latency", "Stored")
_TRAINING = ("Time per step", "Extra memory", "Stored", "Scoring + selection")


def of_results(spec: TableSpec, request: TableRequest) -> Table:
    """What a method adds, changes, delays and stores (HiFi, table 1)."""
    notes = [
        "training: trained numbers that are no part of the plain model; result: the exported model beside the plain one",
        "latency: a forward pass of the exported model over one of the plain model, taking turns on this machine",
        "stored: the delta file, task head included, and its share of the plain model's bytes",
    ]
    return _table(spec, request, _RESULT, _result, notes)


def of_training(spec: TableSpec, request: TableRequest) -> Table:
    """What training costs beside Full-FT (EH-FT, section 4.3), and scoring beside a run (HiFi, A.6)."""
    notes = [
        "time, memory and bytes beside Full-FT's; a two-stage method's stages by their shares of the steps",
        "extra memory: at the peak of training, beyond the loaded model",
        "scoring + selection: share of a whole run on as many rows as MRPC has to train on",
    ]
    full = request.measured.get(FULL_FT, {})
    return _table(spec, request, _TRAINING, lambda found: _training(found, full), notes)


def _table(
    spec: TableSpec,
    request: TableRequest,
    headings: tuple[str, ...],
    texts: Callable[[dict[str, Any]], tuple[str, ...]],
    notes: list[str],
) -> Table:
    lines = []
    for row in spec.rows:
        if row.method:
            found = request.measured.get(row.method)
            cells = tuple(TableCell(text=text) for text in texts(found)) if found else tuple(TableCell() for _ in headings)
            lines.append(Line(row.label or label_of("methods", row.method), cells, method=row.method))
    title = f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})"
    return Table(title=title, headings=[Heading(name) for name in headings], lines=lines, notes=notes)


def _result(found: dict[str, Any]) -> tuple[str, ...]:
    modules = found["modules_added"]
    return (
        _count(found["added_in_training"], found["total"]),
        _count(found["added_in_result"], found["total"]),
        f"{modules} more module{'s' * (modules > 1)}" if modules else "as before",
        f"x {found['latency']:.2f}",
        f"{found['stored_bytes'] / 1e6:.2f} MB ({100 * found['stored_bytes'] / found['plain_bytes']:.3g} %)",
    )


def _training(found: dict[str, Any], full: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"x {found['step']:.2f} ({1000 * found['step_s']:.0f} ms)",
        f"x {found['memory'] / full['memory']:.2f} ({found['memory'] / 1e6:.0f} MB)",
        f"x {found['stored_bytes'] / full['stored_bytes']:.3g} ({found['stored_bytes'] / 1e6:.2f} MB)",
        f"{100 * found['scoring']:.2g} % ({found['scoring_s']:.1f} s)" if found["scoring"] else "none",
    )


def _count(number: int, total: int) -> str:
    return f"{number:,} ({100 * number / total:.3g} %)" if number else "none"
