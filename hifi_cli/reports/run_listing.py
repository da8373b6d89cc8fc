"""All runs of a results directory as a DataFrame: for `hifi ls runs` and for `hifi_cli.read_results`."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config.base import flatten
from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import is_locked, read_json
from hifi_cli.results.record import RunDirectory, run_directories
from hifi_cli.results.study import Study, row_of

# The columns that every listed run has; `metrics.NAME` follow
COLUMNS = [
    *["state", "protocol", "backbone", "task", "method", "variant", "seed", "shots", "metric"],
    *["score", "last", "best", "max", "epoch", "epochs", "flags", "trained_percent", "time_s", "peak_memory_bytes"],
    *["config_hash", "setting_hash", "path", "detail"],
]
_COPIED = ["protocol", "backbone", "task", "method", "variant", "seed", "shots", "metric", "epochs", "time_s"]


def read_results(directory: str | Path = "results") -> pd.DataFrame:
    """Return the finished runs of a results directory, a row each, with the columns of `hifi ls runs --format csv`.

    Scores are in percent; `metrics.NAME` has every other metric of the model that was kept; a diverged run has no
    score (NaN). The settings follow by their keys: `learning_rate`, `batch_size`, `heads.k`, `settings.r`, and so on.

    Raises:
        MissingError: no such directory.
        UsageError: a run is damaged.
    """
    if not Path(directory).is_dir():
        raise MissingError(f"no directory {directory}; hifi train --results-dir {directory} makes it")
    study = Study(Path(directory))
    rows = []
    for run in study.runs.to_dict("records"):
        settings = {key: value for key, value in flatten(run["config"]).items() if not key.startswith("backbone.")}
        rows.append(settings | _finished(run, study.directory))
    return _frame(rows)


def list_runs(results_dir: Path) -> pd.DataFrame:
    """All runs of a results directory by path, variants and unfinished ones included."""
    return _frame([_listed(directory, results_dir) for directory in run_directories(results_dir)])


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    frame = frame.reindex(columns=[*COLUMNS, *(column for column in frame if column not in COLUMNS)])
    return frame.astype(dict.fromkeys(("seed", "shots", "epoch", "epochs", "peak_memory_bytes"), "Int64"))


def _listed(directory: RunDirectory, results_dir: Path) -> dict[str, Any]:
    """A run as a row. One that is not finished is named by its folders."""
    path = directory.path.relative_to(results_dir)
    state, detail = "running" if is_locked(directory.lock) else "unfinished", ""
    if directory.results.is_file():
        try:
            return _finished(row_of(path.as_posix(), read_json(directory.results, what="results"), results_dir), results_dir)
        except UsageError as error:
            state, detail = (state, "") if state == "running" else ("damaged", str(error))
    protocol, backbone, task, method, *variant, seed = path.parts[1:]
    names = {"protocol": protocol, "backbone": backbone, "task": task, "method": method, "variant": "/".join(variant) or None}
    number = int(seed.removeprefix("seed")) if re.fullmatch(r"seed\d+", seed) else None
    return {"state": state, **names, "seed": number, "flags": "", "path": str(directory.path), "detail": detail}


def _finished(run: dict[str, Any], results_dir: Path) -> dict[str, Any]:
    """A row of `Study.runs` as a listed run, scores in percent."""
    flags = {"collapsed": run["collapsed"], "limited": run["limit"] is not None}
    is_done = run["status"] == "done"
    percent = {name: None if run[name] is None else 100 * run[name] for name in ("last", "best", "max")}
    return {
        **{key: run[key] for key in [*_COPIED, "peak_memory_bytes", "config_hash"]},
        **percent,
        "state": run["status"],
        "score": percent[run["report"]] if is_done else None,
        "epoch": run[f"epoch_{run['report']}"],
        "flags": " ".join(flag for flag, is_set in flags.items() if is_set and is_done),
        "trained_percent": 100 * run["trainable"] / run["total"],
        "setting_hash": run["setting"],
        "path": str(results_dir / run["path"]),
        "detail": run["reason"] or "",
        **{f"metrics.{name}": 100 * value for name, value in run["metrics"].items()},
    }
