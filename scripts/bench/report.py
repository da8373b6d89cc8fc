"""The tables of a result, in Markdown, as README shows them."""

from typing import Any

from hifi_cli.reports.table_spec import label_of

WORK = {
    "full-ft": "Full-FT, fp32",
    "full-ft, bf16": "Full-FT, bf16",
    "full-ft, grouped": "Full-FT, fp32, grouped by length",
    "hifi-layerwise, fp32": "HiFi (layer-wise), fp32",
    "hifi-layerwise": "HiFi (layer-wise), bf16",
    "hifi-layerwise, grouped": "HiFi (layer-wise), bf16, grouped by length",
    "hifi-midtop": "HiFi (mid-top), bf16",
    "hifi-midtop, lower half reused": "HiFi (mid-top), bf16, `reuse_frozen`, second epoch",
    "linear-probing, 10 epochs": "Linear probing, `reuse_frozen`, 10 epochs of each",
    "eh-ft-bitfit": "EH-FT (BitFit), fp32",
}
AGAINST = {"10 b": "(b)", "full-ft": "Full-FT"}


def tables(found: dict[str, Any]) -> str:
    """Ratios of epochs, the rest, and the limits."""
    parts = [epochs(found)]
    if "more" in found:
        parts.append(more(found))
    if "rates" in found:
        parts.append(limits(found))
    return "\n\n".join(parts)


def epochs(found: dict[str, Any]) -> str:
    """Each program's time divided by a rival's."""
    tasks = list(found["epochs"])
    ratios = {task: {(one["work"], one["against"]): one for one in found["epochs"][task]["ratios"]} for task in tasks}
    lines = [_row("an epoch of", "baseline", *_labels(tasks)), _row("---", "---", *["---:"] * len(tasks))]
    for work, against in ratios[tasks[0]]:
        each = [ratios[task][work, against] for task in tasks]
        cells = [_cell(one["ratio"], None) for one in each]
        lines.append(_row(WORK[work], AGAINST.get(against, f"({against})"), *cells))
    return "\n".join(lines)


def more(found: dict[str, Any], *, bars: bool = True) -> str:
    """What is not an epoch."""
    lines = [_row("more", "measured"), _row("---", "---:")]
    rows = [_row(one["work"], _cell(one["value"], one["bar"] if bars else None, one["unit"])) for one in found["more"]]
    return "\n".join([*lines, *rows])


def limits(found: dict[str, Any]) -> str:
    """How near an epoch is to the time that its operations and bytes need at the rates measured on this machine."""
    tasks = list(found["epochs"])
    lines = [_row("least / epoch", *_labels(tasks)), _row("---", *["---:"] * len(tasks))]
    for work in found["epochs"][tasks[0]]["limits"]:
        each = [(found["epochs"][task]["limits"][work], found["epochs"][task]["seconds"][work]) for task in tasks]
        cells = [f"{one['least_seconds']:.2f} / {spent:.2f} s = {one['reached']:.2f}" for one, spent in each]
        lines.append(_row(WORK[work], *cells))
    return "\n".join(lines)


def _labels(tasks: list[str]) -> list[str]:
    return [label_of("tasks", task) for task in tasks]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: float, bar: float | None, unit: str = "ratio") -> str:
    text = f"{value:.3f}" if unit == "ratio" else f"{value:.2f} s"
    return text if bar is None else f"{text} (bar {bar:g}{'' if value <= bar else ', missed'})"
