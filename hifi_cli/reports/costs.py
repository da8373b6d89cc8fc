"""The layout of HiFi's table 1: what a method adds, changes, delays and stores; from measurements, not from opinions."""

from typing import TYPE_CHECKING, Any

from hifi_cli.reports.spec import TableSpec, label_of
from hifi_cli.reports.table import Cell, Heading, Line, Table

if TYPE_CHECKING:
    from hifi_cli.reports.kinds import Request

HEADINGS = ("Extra param. (training)", "Extra param. (result)", "Structure (result)", "Latency", "Stored")


def build(spec: TableSpec, request: "Request") -> Table:
    """Print the measurements of each row's method."""
    lines = []
    for row in spec.rows:
        if row.method:
            found = request.measured.get(row.method)
            cells = _cells(found) if found else tuple(Cell() for _ in HEADINGS)
            lines.append(Line(row.label or label_of("methods", row.method), cells, method=row.method))
    notes = [
        "training: trained numbers that are no part of the plain model; result: the exported model beside the plain one",
        "latency: a forward pass of the exported model over one of the plain model, taking turns on this machine",
        "stored: the delta file, task head included, and its share of the plain model's bytes",
    ]
    title = f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})"
    return Table(title=title, headings=[Heading(name) for name in HEADINGS], lines=lines, notes=notes)


def _cells(found: dict[str, Any]) -> tuple[Cell, ...]:
    modules = found["modules_added"]
    texts = (
        _count(found["added_in_training"], found["total"]),
        _count(found["added_in_result"], found["total"]),
        f"{modules} more module{'s' * (modules > 1)}" if modules else "as before",
        f"x {found['latency']:.2f}",
        f"{found['stored_bytes'] / 1e6:.2f} MB ({100 * found['stored_bytes'] / found['plain_bytes']:.3g} %)",
    )
    return tuple(Cell(text=text) for text in texts)


def _count(number: int, total: int) -> str:
    return f"{number:,} ({100 * number / total:.3g} %)" if number else "none"
