"""The layout of what training costs beside Full-FT (EH-FT, section 4.3) and scoring beside a run (HiFi, A.6): measured."""

from typing import TYPE_CHECKING, Any

from hifi_cli.reports.spec import TableSpec, label_of
from hifi_cli.reports.table import Cell, Heading, Line, Table

if TYPE_CHECKING:
    from hifi_cli.reports.kinds import Request

HEADINGS = ("Time per step", "Extra memory", "Stored", "Scoring + selection")
FULL = "full-ft"


def build(spec: TableSpec, request: "Request") -> Table:
    """Print the measurements of each row's method beside Full-FT's."""
    full = request.measured.get(FULL)
    lines = []
    for row in spec.rows:
        if row.method:
            found = request.measured.get(row.method)
            cells = _cells(found, full) if found and full else tuple(Cell() for _ in HEADINGS)
            lines.append(Line(row.label or label_of("methods", row.method), cells, method=row.method))
    notes = [
        "time, memory and bytes beside Full-FT's; a two-stage method's stages by their shares of the steps",
        "extra memory: at the peak of training, beyond the loaded model",
        "scoring + selection: share of a whole run on as many rows as MRPC has to train on",
    ]
    title = f"{spec.description} (protocol {spec.protocol}, backbone {spec.backbone})"
    return Table(title=title, headings=[Heading(name) for name in HEADINGS], lines=lines, notes=notes)


def _cells(found: dict[str, Any], full: dict[str, Any]) -> tuple[Cell, ...]:
    texts = (
        f"x {found['step']:.2f} ({1000 * found['step_s']:.0f} ms)",
        f"x {found['memory'] / full['memory']:.2f} ({found['memory'] / 1e6:.0f} MB)",
        f"x {found['stored_bytes'] / full['stored_bytes']:.3g} ({found['stored_bytes'] / 1e6:.2f} MB)",
        f"{100 * found['scoring']:.2g} % ({found['scoring_s']:.1f} s)" if found["scoring"] else "none",
    )
    return tuple(Cell(text=text) for text in texts)
