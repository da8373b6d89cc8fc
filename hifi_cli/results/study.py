"""All finished runs of a results directory as one DataFrame, which tables, comparisons, claims and figures query."""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from hifi_cli.config.base import describe_error, flatten
from hifi_cli.config.run_config import run_path_of
from hifi_cli.errors import UsageError
from hifi_cli.files import digest, printable_values, read_json
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import RunResult

PACKED = "runs.jsonl"  # a packed study: one line a run, sorted by path
PREDICTIONS = "predictions.parquet"  # of a packed study: labels, predictions and logits as JSON
_SCORES = ("last", "best", "max")


class Study:
    """The finished runs of a results directory, or of a packed study. They are read once, at the first need.

    A run is named by its path from `runs/` on: `runs/<protocol>/<backbone>/<task>/<method>[/<variant>]/seed<k>`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def is_packed(self) -> bool:
        """Whether `hifi results pack` wrote the directory."""
        return (self.directory / PACKED).is_file()

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """What results.json holds of each run, by its path, sorted.

        Raises:
            UsageError: a run is damaged, or at another path than its configuration's: a copy would count twice.
        """
        if not self.is_packed:
            return dict(sorted(self._stored()))
        packed = self.directory / PACKED
        try:
            runs = printable_values([json.loads(line) for line in packed.read_text(encoding="utf-8").splitlines()])
            return {run["path"]: run["record"] for run in runs}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{packed} is damaged ({error}); pack the study again") from None

    def result(self, path: str) -> RunResult:
        """The record of a run, typed.

        Raises:
            UsageError: a key is missing or of a wrong type; it is named.
        """
        try:
            return RunResult.model_validate(self.records[path])
        except ValidationError as error:
            raise UsageError(f"the record of {path} is damaged ({describe_error(error, RunResult)})") from None

    def predictions(self, path: str) -> pd.DataFrame | None:
        """The stored predictions of a run, a row an example: id, label, prediction, logits; None: there are none."""
        if self.is_packed:
            return self._packed_predictions.get(path)
        directory = RunDirectory(self.directory / path)
        if not directory.predictions.is_file():
            return None
        return pd.DataFrame([row.model_dump() for row in directory.read_predictions()])

    @cached_property
    def _packed_predictions(self) -> dict[str, pd.DataFrame]:
        table = pd.read_parquet(self.directory / PREDICTIONS)
        for column in ("label", "prediction", "logits"):
            table[column] = table[column].map(json.loads)
        return {str(path): rows.drop(columns="run").reset_index(drop=True) for path, rows in table.groupby("run")}

    def _stored(self) -> Iterator[tuple[str, dict[str, Any]]]:
        runs = self.directory / "runs"
        for file in (*runs.glob("*/*/*/*/seed*/results.json"), *runs.glob("*/*/*/*/*/seed*/results.json")):
            path = file.parent.relative_to(self.directory).as_posix()
            yield path, read_json(file, what="results")

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run.

        Columns: `path`; `protocol`, `backbone`, `task`, `method`, `variant` (None: not a variant), `seed`, `shots`; `status`
        (done, diverged), `collapsed`, `limit`; `metric` (the primary one), `split`, `selection`, `report`; `last`, `best`,
        `max`: the primary metric at these epochs, fractions of 1; `epochs`, `epoch_best`, `epoch_max`; `metrics`: every metric
        at the kept epoch; `trainable`, `trainable_backbone`, `stored`, `total`: numbers of parameters; `train_rows`,
        `reported_rows`, `truncated_train`, `truncated_reported`; `time_s`, `wall_s`, `peak_memory_bytes`, `delta_bytes`;
        `precision`; what must agree where runs are averaged or compared: `data`, `weights`, `method_code`, `heads`, `setting`
        (of the configuration without the seed); `config`: by dotted key.
        """
        frame = pd.DataFrame([_row(path, record, self.directory) for path, record in self.records.items()], columns=COLUMNS)
        return frame.astype({"seed": int, "collapsed": bool})

    def epochs(self, path: str) -> pd.DataFrame:
        """The metrics of a run after each epoch, a row each; `selection` where the selection split is another one."""
        return pd.DataFrame(self.records[path]["epoch_metrics"]).set_index("epoch")


# Keys of results.json that are columns as they are
_COPIED = (
    *("protocol", "backbone", "task", "method", "variant", "seed", "shots", "status", "collapsed", "limit"),
    *(
        "split",
        "selection",
        "report",
        "metrics",
        "time_s",
        "wall_s",
        "peak_memory_bytes",
        "delta_bytes",
        "precision",
        "method_code",
    ),
)
COLUMNS = [
    *("path", "protocol", "backbone", "task", "method", "variant", "seed", "shots", "status", "collapsed", "limit"),
    *("metric", "split", "selection", "report", *_SCORES, "epochs", "epoch_best", "epoch_max", "metrics"),
    *(
        "trainable",
        "trainable_backbone",
        "stored",
        "total",
        "train_rows",
        "reported_rows",
        "truncated_train",
        "truncated_reported",
    ),
    *("time_s", "wall_s", "peak_memory_bytes", "delta_bytes", "precision"),
    *("data", "weights", "method_code", "heads", "setting", "config"),
]


def _row(path: str, record: dict[str, Any], directory: Path) -> dict[str, Any]:
    """A run as a row of `Study.runs`.

    Raises:
        UsageError: a part is missing, or the run belongs at another path.
    """
    try:
        epochs, scores, truncated = record["epochs"] or {}, record["scores"] or {}, record["truncated"] or {}
        row = {
            **{key: record[key] for key in _COPIED},
            **{name: scores.get(name) for name in _SCORES},
            **{key: record["params"][key] for key in ("trainable", "trainable_backbone", "stored", "total")},
            "path": path,
            "metric": record["primary_metric"],
            "epochs": epochs.get("total"),
            "epoch_best": epochs.get("best"),
            "epoch_max": epochs.get("max"),
            "train_rows": record["n_examples"]["train"],
            "reported_rows": record["n_examples"]["reported"],
            "truncated_train": truncated.get("train"),
            "truncated_reported": truncated.get("reported"),
            "data": digest(record["data"]),
            "weights": record["backbone_weights"],
            "heads": record["heads_sha256"],
            "setting": record["setting_hash"],
            "config": flatten(record["config"]),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{directory / path / 'results.json'} is damaged ({error}); train the run again with --force"
        ) from None
    names = {key: row[key] for key in ("protocol", "backbone", "task", "method", "variant", "seed", "shots")}
    if (place := run_path_of(**names).as_posix()) != path:
        raise UsageError(f"{directory / path} holds the run that belongs in {directory / place}: move it there, or a copy away")
    return row
