"""All runs as a list: for `hifi ls runs` and for `hifi_cli.read_results`."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config.base import flatten
from hifi_cli.config.registry import read_yaml
from hifi_cli.errors import HifiError, MissingError
from hifi_cli.records.layout import RunDirectory, begun_runs
from hifi_cli.records.progress import ProgressReader
from hifi_cli.records.study import SCORES, Study
from hifi_cli.run_paths import names_in
from hifi_cli.text import format_duration, well_formed

# The columns that every listed run has. Those of single metrics, `metrics.NAME`, follow them.
_COLUMNS = (
    "state",
    "protocol",
    "backbone",
    "task",
    "method",
    "variant",
    "seed",
    "shots",
    "metric",
    "score",
    *SCORES,
    "epoch",
    "epochs",
    "flags",
    "trained_percent",
    "time_s",
    "peak_memory_bytes",
    "config_hash",
    "setting_hash",
    "path",
    "detail",
)
_WHOLE_NUMBERS = ("seed", "shots", "epoch", "epochs", "peak_memory_bytes")


def read_results(
    directory: str | Path = "results",
    *,
    with_unfinished: bool = False,
    with_settings: bool = True,
) -> pd.DataFrame:
    """Return the finished runs of a results directory, a row each.

    Args:
        directory: a results directory, or a packed study.
        with_unfinished: also those whose `state` is `running`, `unfinished` or `damaged`, named by
            their folders.
        with_settings: also the columns of settings and of other metrics, which take most of the
            memory.

    Returns:
        The columns of `hifi ls runs --format csv`. Scores are in percent; `metrics.NAME` has every
        other metric of the model that was kept; a diverged run has no score (NaN). The settings
        follow by their keys: `learning_rate`, `batch_size`, `heads.k`, `settings.r`, and so on.

    Raises:
        MissingError: no such directory.
    """
    if not Path(directory).is_dir():
        raise MissingError(f"no directory {directory}; hifi train and hifi grid make one")
    study = Study(Path(directory))
    runs = study.runs
    others = []
    if with_unfinished:
        others = _unfinished(study) + _damaged(study)
    # Its records take most of the memory, and the list needs none of them.
    del study
    rows = []
    # One run at a time: `to_dict("records")` holds a dictionary for each.
    for values in runs.itertuples(index=False, name=None):
        run = dict(zip(runs.columns, values, strict=True))
        listed = _settings_and_metrics(run) if with_settings else {}
        rows.append({**listed, **_listed(run, Path(directory))})
    rows += others
    frame = pd.DataFrame(rows)
    settings = [column for column in frame if column not in _COLUMNS]
    frame = frame.reindex(columns=[*_COLUMNS, *settings])
    # A setting that some runs lack would become one of fractions: r=8.0.
    lacking = [column for column in settings if frame[column].isna().any()]
    whole = [column for column in lacking if _has_whole_numbers(rows, column)]
    frame = frame.astype(dict.fromkeys([*_WHOLE_NUMBERS, *whole], "Int64"))
    return frame.sort_values("path", ignore_index=True)


def _listed(run: dict[str, Any], results_dir: Path) -> dict[str, Any]:
    """Return a row of `Study.runs` as a listed run without its settings, scores in percent."""
    is_done = run["status"] == "done"
    listed = {key: value for key, value in run.items() if key in _COLUMNS}
    for name in SCORES:
        listed[name] = 100 * run[name]
    flags = []
    if is_done and run["collapsed"]:
        flags.append("collapsed")
    if is_done and run["limit"] is not None:
        flags.append("limited")
    listed["state"] = run["status"]
    listed["score"] = listed[run["report"]] if is_done else None
    listed["epoch"] = run[f"epoch_{run['report']}"]
    listed["epochs"] = run["epoch_last"]
    listed["flags"] = " ".join(flags)
    listed["trained_percent"] = 100 * run["trainable"] / run["total"]
    listed["path"] = well_formed(str(results_dir / run["path"]))
    listed["detail"] = run["reason"]
    # The peak of a process that trained another run before may be that run's.
    if run["memory_is_own"] is False:
        listed["peak_memory_bytes"] = None
    return listed


def _settings_and_metrics(run: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a row of `Study.runs` by their keys, and its metrics in percent."""
    listed = flatten({key: value for key, value in run["config"].items() if key != "backbone"})
    for name, value in run["metrics"].items():
        listed[f"metrics.{name}"] = 100 * value
    return listed


def _has_whole_numbers(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Return whether all values that rows have of a setting are whole numbers, and there are some."""
    values = [row[column] for row in rows if row.get(column) is not None]
    # A bool is an int in Python, and no number to a reader.
    return bool(values) and all(type(value) is int for value in values)


def _unfinished(study: Study) -> list[dict[str, Any]]:
    """Return the runs that have begun and have no result."""
    rows = []
    for run in begun_runs(study.directory):
        names = names_in(run.path.relative_to(study.directory))
        state = "running" if run.is_locked else "unfinished"
        row = _without_record(names, state, str(run.path))
        rows.append(row | _progress(run))
    return rows


def _progress(run: RunDirectory) -> dict[str, Any]:
    """Return how far an unfinished run is: its finished epochs, and its last loss and age as the detail."""
    progress = ProgressReader(run.metrics).read()
    if progress is None:
        return {}
    epochs = f"epochs done: {progress.epoch}"
    planned = _planned_epochs(run)
    if planned is not None:
        epochs += f" of {planned:g}"
    said = [epochs]
    if progress.loss is not None:
        said.append(f"loss {progress.loss:.4f}")
    age = max(0.0, time.time() - progress.written)
    said.append(f"last line {format_duration(age)} ago")
    return {"epoch": progress.epoch, "detail": ", ".join(said)}


def _planned_epochs(run: RunDirectory) -> float | None:
    """Return the epochs that an unfinished run is to train; None: its config.yaml does not say."""
    try:
        epochs = read_yaml(run.config_file).get("epochs")
    except HifiError:
        # The file is damaged, or its process has just removed it.
        return None
    if isinstance(epochs, int | float) and not isinstance(epochs, bool):
        return epochs
    return None


def _damaged(study: Study) -> list[dict[str, Any]]:
    """Return the runs whose records cannot be used, with the reason as their detail."""
    rows = []
    for path, reason in study.damaged.items():
        place = str(study.directory / path)
        row = _without_record(names_in(path), "damaged", place)
        row["detail"] = reason
        rows.append(row)
    return rows


def _without_record(names: Mapping[str, str], state: str, place: str) -> dict[str, Any]:
    """Return a run of which only its place is known.

    Args:
        names: that its folders have, by column.
        state: `running`, `unfinished` or `damaged`.
        place: the directory.
    """
    return {
        **names,
        "state": state,
        "path": well_formed(place),
        "flags": "",
        "detail": "",
    }
