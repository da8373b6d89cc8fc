"""The tables of a result, in Markdown, as README shows them."""

from typing import Any

from hifi_cli.config.registry import label_of

WORK = {
    "full-ft": "Full-FT, fp32",
    "full-ft, bf16": "Full-FT, bf16",
    "full-ft, grouped": "Full-FT, fp32, grouped by length",
    "hifi-layerwise, fp32": "HiFi (layer-wise), fp32",
    "hifi-layerwise": "HiFi (layer-wise), bf16",
    "hifi-layerwise, grouped": "HiFi (layer-wise), bf16, grouped by length",
    "hifi-midtop": "HiFi (mid-top), bf16",
    "eh-ft-bitfit": "EH-FT (BitFit), fp32",
}
AGAINST = {"full-ft": "Full-FT"}


def tables(results: dict[str, Any]) -> str:
    """Ratios of epochs, and the rest."""
    parts = [epochs(results)]
    if "more" in results:
        parts.append(more(results))
    return "\n\n".join(parts)


def epochs(results: dict[str, Any]) -> str:
    """Each program's time divided by a rival's."""
    tasks = list(results["epochs"])
    ratios = {task: {(entry["work"], entry["against"]): entry for entry in results["epochs"][task]["ratios"]} for task in tasks}
    lines = [_row("an epoch of", "baseline", *_labels(tasks)), _row("---", "---", *["---:"] * len(tasks))]
    for work, against in ratios[tasks[0]]:
        each = [ratios[task][work, against] for task in tasks]
        cells = [_cell(entry["ratio"], None) for entry in each]
        lines.append(_row(WORK[work], AGAINST.get(against, f"({against})"), *cells))
    return "\n".join(lines)


def more(results: dict[str, Any], *, bars: bool = True) -> str:
    """What is not an epoch."""
    lines = [_row("more", "measured"), _row("---", "---:")]
    rows = [
        _row(entry["work"], _cell(entry["value"], entry["bar"] if bars else None, entry["unit"])) for entry in results["more"]
    ]
    return "\n".join([*lines, *rows])


def _labels(tasks: list[str]) -> list[str]:
    return [label_of("tasks", task) for task in tasks]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: float, bar: float | None, unit: str = "ratio") -> str:
    text = f"{value:.3f}" if unit == "ratio" else f"{value:.2f} s"
    return text if bar is None else f"{text} (bar {bar:g}{'' if value <= bar else ', missed'})"
