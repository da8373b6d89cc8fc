"""The tables of a result, in Markdown, as README shows them."""

from typing import Any


def tables(found: dict[str, Any]) -> str:
    """Ratios of epochs and the rest, each with its bar."""
    tasks = list(found["epochs"])
    ratios = {task: {(one["work"], one["against"]): one for one in found["epochs"][task]["ratios"]} for task in tasks}
    lines = [_row("an epoch of", "beside", *tasks), _row(*["---"] * (2 + len(tasks)))]
    for work, against in ratios[tasks[0]]:
        cells = [_cell(ratios[task][work, against]["ratio"], ratios[task][work, against]["bar"]) for task in tasks]
        lines.append(_row(work, f"({against})" if len(against) == 1 else against, *cells))
    if "more" in found:
        lines += ["", _row("more", "measured"), _row("---", "---")]
        lines += [_row(one["work"], _cell(one["value"], one["bar"], one["unit"])) for one in found["more"]]
    lines += ["", _row("limit", *(f"{task}: least / epoch" for task in tasks)), _row(*["---"] * (1 + len(tasks)))]
    for work in found["epochs"][tasks[0]]["limits"]:
        each = [(found["epochs"][task]["limits"][work], found["epochs"][task]["seconds"][work]) for task in tasks]
        cells = [f"{one['least_seconds']:.2f} s / {spent:.2f} s = {one['reached']:.2f}" for one, spent in each]
        lines.append(_row(work, *cells))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: float, bar: float | None, unit: str = "ratio") -> str:
    text = f"{value:.3f}" if unit == "ratio" else f"{value:.2f} s"
    return text if bar is None else f"{text} (bar {bar:g}{'' if value <= bar else ', missed'})"
