"""A grid search: the variant of each task and method with the best mean score on the selection split."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hifi_cli.errors import UsageError
from hifi_cli.files import read_jsonl, with_checksum, write_json
from hifi_cli.grids.cells import GridCell
from hifi_cli.records.run_status import State, Status

SEARCH_SCHEMA = 1


def choose(found: dict[GridCell, Status], results_dir: Path) -> list[dict[str, Any]]:
    """For each task and method, every setting's score and the chosen one.

    The score is the primary metric's mean over seeds, on the split that chooses the epoch. A setting with a run that
    diverged has none. Of equal settings the first in the grid's order is chosen.
    """
    groups: dict[tuple[str, str], dict[tuple[tuple[str, str], ...], list[float | None]]] = {}
    for cell, one in found.items():
        setting = groups.setdefault((cell.task, cell.method), {}).setdefault(cell.settings, [])
        setting.append(score(cell.run_directory(results_dir), one))
    chosen = []
    for (task, method), settings in groups.items():
        tried = [{"setting": dict(keys), "score": _mean(values), "seeds": len(values)} for keys, values in settings.items()]
        sound = [one for one in tried if one["score"] is not None]
        best = max(sound, key=lambda one: float(one["score"])) if sound else None  # type: ignore[arg-type]
        chosen.append({"task": task, "method": method, "chosen": best, "tried": tried})
    return chosen


def score(directory: Path, found: Status) -> float | None:
    """A run's score on the split that chooses; None when it diverged.

    Raises:
        MissingError: metrics.jsonl, which holds it for a split cut from train, is missing.
        UsageError: it is damaged.
    """
    if found.state is not State.DONE or found.results is None:
        return None
    results = found.results
    if results.get("selection") == "validation" or results["report"] == "max":
        return float(results["scores"][results["report"]])
    path = directory / "metrics.jsonl"
    lines = read_jsonl(path, what="metrics")
    try:
        epochs = {line["epoch"]: float(line["selection"]) for line in lines if "epoch" in line}
        return epochs[results["epochs"][results["report"]]]
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(f"{path} is damaged ({error}); train the run again with --force") from None


def store(chosen: list[dict[str, Any]], path: Path, *, grid: str, protocol: str, backbone: str) -> None:
    """Keep a search's choice as JSON."""
    content = {"schema": SEARCH_SCHEMA, "grid": grid, "protocol": protocol, "backbone": backbone, "searches": chosen}
    write_json(path, with_checksum(content))


def lines(chosen: list[dict[str, Any]]) -> Iterable[str]:
    """The choices as lines, with the words that `hifi train` takes."""
    for one in chosen:
        best = one["chosen"]
        name = f"{one['task']}  {one['method']}"
        if best is None:
            yield f"{name}  no setting: every one diverged"
            continue
        setting = " ".join(f"{key}={value}" for key, value in best["setting"].items())
        scored = [tried["score"] for tried in one["tried"] if tried["score"] is not None]
        spread = f"{100 * min(scored):.2f} to {100 * max(scored):.2f} over {len(one['tried'])} settings"
        yield f"{name}  {setting}  {100 * best['score']:.2f} ({spread}, {best['seeds']} seeds)"


def _mean(values: list[float | None]) -> float | None:
    sound = [value for value in values if value is not None]
    return math.fsum(sound) / len(sound) if len(sound) == len(values) else None
