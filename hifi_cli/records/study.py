"""All finished runs of a directory as one DataFrame, which tables, claims and figures query.

A protocol names the training conditions of a paper or study. A setting is a key of a run's
configuration with its value. A variant names a run with other settings, beside the usual run of
its method.
"""

import json
from collections.abc import Collection
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.draws import COMMON_DRAWS, changed_draws
from hifi_cli.config.epoch_rule import EpochChoice
from hifi_cli.config.run_config import DEFAULT
from hifi_cli.config.sources import override_value
from hifi_cli.config.unused import SECTIONS_OF_HEADS
from hifi_cli.digests import digest
from hifi_cli.errors import HifiError, MissingError, UsageError, logger
from hifi_cli.parquet_files import read_parquet
from hifi_cli.records.layout import USER_FILES, RunDirectory, begun_runs
from hifi_cli.records.record import RunResult, labelled_splits
from hifi_cli.records.recorded_draws import draws_without_version
from hifi_cli.records.stored import (
    Records,
    is_packed,
    read_contents,
    read_records,
    results_dir_option,
)
from hifi_cli.text import abbreviate, command_line, counted_noun

# The predictions of a packed study. Labels and predictions are JSON in it, because one column of
# Parquet cannot hold the classes, numbers and lists of different tasks.
PREDICTIONS = "predictions.parquet"
# Runs that differ in one of these columns never share a table.
TABLE_KEYS = ["protocol", "backbone", "shots"]
SCORES = ["last", "best", "max"]
_PARAMS = ["trainable", "trainable_backbone", "stored", "total"]
# Columns of `Study.runs` that results.json has under the same name.
_SAME_NAMES = (
    "protocol",
    "backbone",
    "task",
    "method",
    "variant",
    "seed",
    "shots",
    "status",
    "reason",
    "collapsed",
    "limit",
    "split",
    "selection",
    "report",
    "metrics",
    "time_s",
    "wall_s",
    "peak_memory_bytes",
    "memory_is_own",
    "delta_bytes",
    "precision",
    "method_code",
    "config_hash",
    "setting_hash",
    "schema_version",
    "task_digest",
)
# Columns that results.json has elsewhere: under another key, or under a key of one of its parts.
_PLACES = {
    "last": ("scores", "last"),
    "best": ("scores", "best"),
    "max": ("scores", "max"),
    "epoch_last": ("epochs", "last"),
    "epoch_best": ("epochs", "best"),
    "epoch_max": ("epochs", "max"),
    "trainable": ("params", "trainable"),
    "trainable_backbone": ("params", "trainable_backbone"),
    "stored": ("params", "stored"),
    "total": ("params", "total"),
    "metric": ("primary_metric",),
    "train_rows": ("n_examples", "train"),
    "reported_rows": ("n_examples", "reported"),
    "truncated_train": ("truncated", "train"),
    "truncated_reported": ("truncated", "reported"),
    "device": ("provenance", "device"),
    "threads": ("provenance", "threads"),
    "weights": ("backbone_weights",),
    "heads": ("heads_sha256",),
}
# Columns that are computed.
_COMPUTED = ("path", "config", "kept", "max_epochs", "data", "draws", "common_draws")
_COLUMNS = [*_SAME_NAMES, *_PLACES, *_COMPUTED]
# Columns that hold the value of a key of the configuration under another name.
COLUMN_OF_KEY = {"epochs": "max_epochs", "primary_metric": "metric"}
# Runs must agree in these columns to be compared, besides the keys that are marked so. The values
# are the words of messages.
COMPARED = {
    "weights": "encoder",
    "task_digest": "task as read",
    "data": "data",
    "common_draws": "random draws",
    "split": "split",
}
# The value of `draws` and `common_draws` where every version is this program's.
UNCHANGED_DRAWS = "those of this program"
# Runs of one method on one task must agree in these columns to be averaged.
AVERAGED = {
    "weights": "encoder",
    "task_digest": "task as read",
    "data": "data",
    "split": "split",
    "draws": "random draws",
    "method_code": "method code",
    "heads": "heads",
    "setting_hash": "settings",
}


class Study:
    """The finished runs of a results directory, or of a packed study; they are read once.

    A run is named by its path:
    `runs/<protocol>/<backbone>/<task>/<method>[/<variant>]/seed<k>`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The runs whose damaged predictions were named, or the file of a packed study: each is named
        # once.
        self._damaged_predictions: set[str] = set()
        # The draws whose version records lack, by setting and named draws.
        self._missing_draws: dict[tuple[str, ...], list[str]] = {}

    @property
    def is_packed(self) -> bool:
        """Whether `hifi results pack` wrote the directory."""
        return is_packed(self.directory)

    # --- records

    @cached_property
    def _stored(self) -> Records:
        """The record of each run by its path, or why it cannot be used."""
        return read_records(self.directory)

    @cached_property
    def results(self) -> dict[str, RunResult]:
        """The record of each run by its path, sorted, without those that are damaged."""
        found = {}
        for path, stored in self._stored.items():
            if isinstance(stored, RunResult):
                found[path] = stored
        return found

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """Content of results.json of each run in `results`, unknown keys included.

        It is read a second time: only commands that copy runs need it.
        """
        return read_contents(self.directory, self.results)

    @cached_property
    def damaged(self) -> dict[str, str]:
        """Why a run is damaged: its record cannot be read, lacks a part, or lies at another path."""
        found = {}
        for path, stored in self._stored.items():
            if isinstance(stored, HifiError):
                found[path] = str(stored)
        return found

    @property
    def notes_on_damage(self) -> list[str]:
        """One line that names the damaged runs, for tables that leave them out; none where no run is."""
        if not self.damaged:
            return []
        count = counted_noun(len(self.damaged), "damaged run")
        names = abbreviate([*self.damaged])
        return [f"left out: {count}: {names} (hifi results check says what is wrong)"]

    def refuse_damage(self) -> None:
        """Raise for a study of which every run must be usable.

        Raises:
            UsageError: a run is damaged.
        """
        for reason in self.damaged.values():
            raise UsageError(reason)

    def own_names(self, path: str) -> tuple[str, str]:
        """Return task and method of a run; names of the user's own carry the copies that the run keeps."""
        result = self.results[path]
        # A name is the user's own only if the run keeps a copy of its file, which few runs do:
        # looking for a folder is cheap, and reading it is not.
        if not (self.directory / f"{path}/{USER_FILES}").is_dir():
            return result.task, result.method
        directory = RunDirectory(self.directory / path)
        task = directory.user_name("tasks", result.task)
        return task, directory.user_name("methods", result.method)

    # --- predictions

    def predictions(self, path: str) -> pd.DataFrame | None:
        """Return the predictions of a run; None: there are none.

        Returns:
            Columns: `id`, `label`, `prediction`, `logits`, as `Prediction` has them.
        """
        if self.is_packed:
            return self._packed_predictions.get(path)
        directory = RunDirectory(self.directory / path)
        if not directory.predictions.is_file():
            return None
        return pd.DataFrame([row.model_dump() for row in directory.read_predictions()])

    @property
    def paths_with_predictions(self) -> set[str]:
        """The paths of a packed study's runs that have predictions, be their records there or not."""
        return set(self._packed_predictions)

    def refuse_missing_predictions(self) -> None:
        """Raise for a packed study without its predictions, which its runs had when it was packed.

        Raises:
            MissingError: the file is missing.
        """
        file = self.directory / PREDICTIONS
        if self.is_packed and not file.exists():
            raise MissingError(
                f"no {file}, which a packed study has beside its records: copy it there, or pack the study again"
            )

    def usable_predictions(self, path: str) -> pd.DataFrame | None:
        """Return what `predictions` returns; None, with a warning, where the file is damaged.

        One run less is no reason to show nothing.

        Returns:
            The columns of `predictions`.
        """
        file = path
        whose = "1 run"
        # A packed study has the predictions of all runs in one file, which is read and named once.
        if self.is_packed:
            file = PREDICTIONS
            whose = "all runs"
        if file in self._damaged_predictions:
            return None
        try:
            return self.predictions(path)
        except HifiError as error:
            self._damaged_predictions.add(file)
            logger.warning(f"left out: predictions of {whose}: {error}")
            return None

    @cached_property
    def _packed_predictions(self) -> dict[str, pd.DataFrame]:
        """The predictions of each run of a packed study, by its path; columns as `predictions` has.

        Raises:
            UsageError: the file is damaged.
        """
        file = self.directory / PREDICTIONS
        try:
            table = read_parquet(file).to_pandas()
            table = table.assign(
                label=table["label"].map(json.loads),
                prediction=table["prediction"].map(json.loads),
                logits=[values.tolist() for values in table["logits"]],
            )
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise UsageError(f"{file} is damaged ({error}); pack the study again") from None
        predictions = {}
        for path, rows in table.groupby("run"):
            predictions[str(path)] = rows.drop(columns="run").reset_index(drop=True)
        return predictions

    # --- runs

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run; names of the user's own methods and tasks carry the copies that the run keeps.

        Columns:
            Which run it is: `path`, `protocol`, `backbone`, `task`, `method`, `variant` (None: the usual
            run), `seed`, `shots` (None: all rows), `limit`, `config` (nested), `config_hash`.
            How it ended: `status` (done, diverged), `reason`, `collapsed`.
            Its score, a fraction of 1: `metric` (the primary one), `last`, `best`, `max` (that metric at
            these epochs), `split`, `selection`, `report`, `kept` (the kept epoch, last or best),
            `metrics` (every metric at the kept epoch).
            Epochs: `epoch_last` (as many were trained), `epoch_best`, `epoch_max`, `max_epochs` (as many
            as early stopping allows).
            Numbers of parameters: `trainable`, `trainable_backbone`, `stored`, `total`.
            Numbers of rows: `train_rows`, `reported_rows`, `truncated_train`, `truncated_reported`.
            What it took, and where: `time_s`, `wall_s`, `peak_memory_bytes`, `memory_is_own`,
            `delta_bytes`, `device`, `threads`, `precision`.
            What must agree where runs are averaged or compared, mostly digests: `weights`, `data`,
            `task_digest`, `method_code`, `heads`, `setting_hash`, `schema_version`; `draws`: the random
            draws whose version is not this program's or not in the record, as a text, and
            `common_draws`: those of them that runs of every method have.

        A damaged run is left out, with a warning that names it.
        """
        if self.damaged:
            reasons = abbreviate([*self.damaged.values()], "; ")
            logger.warning(f"left out: {counted_noun(len(self.damaged), 'damaged run')}: {reasons}")
        # Column by column: a dictionary for each of many rows takes more memory than the frame.
        columns: dict[str, list[Any]] = {column: [] for column in _COLUMNS}
        for path in self.results:
            row = self._row(path)
            for column, values in columns.items():
                values.append(row[column])
        # Columns of objects, because pandas would make NaN of a None in `shots`, which means all
        # rows.
        frame = pd.DataFrame(columns, dtype=object)
        types: dict[str, type] = {"seed": int, "collapsed": bool, "time_s": float}
        types |= dict.fromkeys(SCORES, float)
        types |= dict.fromkeys(_PARAMS, int)
        return frame.astype(types)

    def _row(self, path: str) -> dict[str, Any]:
        """Return a run as a row of `runs`."""
        result = self.results[path]
        row = {column: getattr(result, column) for column in _SAME_NAMES}
        for column, place in _PLACES.items():
            row[column] = _at(result, *place)
        row["path"] = path
        row["task"], row["method"] = self.own_names(path)
        row["config"] = result.config
        row["kept"] = result.epoch_rule.kept
        # Runs that stopped early may be compared where they were allowed the same epochs.
        row["max_epochs"] = row["epoch_last"]
        if result.config.get("patience"):
            row["max_epochs"] = result.config["epochs"]
        row["data"] = digest(labelled_splits(result.data))
        texts = self._draws_not_of_this_program(path, result)
        common = [texts[name] for name in texts if name in COMMON_DRAWS]
        row["draws"] = ", ".join(texts.values()) or UNCHANGED_DRAWS
        row["common_draws"] = ", ".join(common) or UNCHANGED_DRAWS
        return row

    def _draws_not_of_this_program(self, path: str, result: RunResult) -> dict[str, str]:
        """Return in words the random draws of a run that are of another version, or of none that is named.

        A record without the version of what its run drew says nothing of it, which is no agreement
        with runs whose version is known.
        """
        devices = [process.device_type for process in result.processes]
        # Runs that differ in their seed alone drew from the same components.
        setting = (result.setting_hash, result.method, *devices, *sorted(result.draws))
        if setting not in self._missing_draws:
            directory = RunDirectory(self.directory / path)
            self._missing_draws[setting] = draws_without_version(result, directory)
        changed = changed_draws(result.draws)
        texts = {name: f"{name} version {changed[name]}" for name in sorted(changed)}
        for name in self._missing_draws[setting]:
            texts[name] = f"{name} of no version"
        return texts

    @property
    def table_runs(self) -> pd.DataFrame:
        """The rows of `runs` that tables show: without those of searches and other variants."""
        return self.runs[self.runs["variant"].isna()]

    def with_runs(self, runs: pd.DataFrame) -> "Study":
        """Return the study with some of its runs, or with others' names."""
        # A copy shares what was read, and has the given frame where `runs` would be computed.
        study = copy(self)
        study.runs = runs
        return study

    def with_runs_of(self, other: "Study", paths: Collection[str]) -> "Study":
        """Return the study with some runs of another one besides, without their predictions.

        Args:
            other: has the runs.
            paths: of these runs; this study has none of them.
        """
        added = other.runs[other.runs["path"].isin(paths)]
        study = self.with_runs(pd.concat([self.runs, added], ignore_index=True))
        study.results = self.results | {path: other.results[path] for path in added["path"]}
        return study

    def methods_with(self, key: str) -> set[str]:
        """Return the methods to which a setting means something.

        Every configuration has the keys about attention heads; a method that tunes no heads reads
        none of them.
        """
        is_about_heads = key.partition(".")[0] in SECTIONS_OF_HEADS
        methods = set()
        for run in self.runs.itertuples():
            if is_about_heads and self.results[run.path].heads is None:
                continue
            if key in flatten(run.config):
                methods.add(run.method)
        return methods

    def with_rows_by(self, key: str, unchanged: Collection[str] = ()) -> "Study":
        """Return the study with a method of its own for each value of a setting, METHOD/KEY=VALUE.

        Methods to which the setting means nothing are left out. With `variant`: METHOD/NAME, and
        METHOD for the runs that are no variants.

        Args:
            key: of the setting.
            unchanged: methods that stay under their name where the setting means nothing to them.

        Raises:
            UsageError: no run has this setting.
        """
        rows = self._runs_by_variant() if key == "variant" else self._runs_by(key, unchanged)
        # Variants are rows now, and no longer left out. A variant with the usual settings is the
        # usual run a second time.
        rows = rows.assign(variant=None)
        return self.with_runs(rows.drop_duplicates(["method", "config_hash"]))

    def _runs_by_variant(self) -> pd.DataFrame:
        """Return the rows of `runs`, in which the method of a variant is METHOD/NAME."""
        methods = []
        for run in self.runs.itertuples():
            if pd.isna(run.variant):
                methods.append(run.method)
            else:
                methods.append(f"{run.method}/{run.variant}")
        return self.runs.assign(method=pd.Series(methods, self.runs.index, dtype=object))

    def _runs_by(self, key: str, unchanged: Collection[str]) -> pd.DataFrame:
        """Return the rows of `runs` with a setting, in which the method is METHOD/KEY=VALUE.

        Args:
            key: of the setting.
            unchanged: methods whose usual runs are there too where the setting means nothing to them.

        Raises:
            UsageError: no run has this setting.
        """
        having = self.methods_with(key)
        self._check_some_have(having, key)
        methods: list[str | None] = []
        for run in self.runs.itertuples():
            if run.method in having:
                settings = flatten(run.config)
                # The configuration lacks a setting that every layer leaves to the method.
                value = DEFAULT
                if key in settings:
                    value = override_value(settings[key])
                methods.append(f"{run.method}/{key}={value}")
            elif run.method in unchanged and pd.isna(run.variant):
                methods.append(run.method)
            else:
                methods.append(None)
        named = self.runs.assign(method=pd.Series(methods, self.runs.index, dtype=object))
        return named[named["method"].notna()]

    def _check_some_have(self, methods: Collection[str], key: str) -> None:
        """Refuse a setting that means something to no method; where there is no run, none is refused.

        Raises:
            UsageError: it does, with the nearest setting that runs have.
        """
        if methods or self.runs.empty:
            return
        known = set().union(*(flatten(config) for config in self.runs["config"]))
        if key in known:
            raise UsageError(f"--by {key}: no run tunes selected attention heads")
        suggestion = registry.did_you_mean(key, known)
        raise UsageError(f"--by {key}: no run has this setting{suggestion}")

    def names(self, kind: str) -> set[str]:
        """Return the names of a column (`method`, `task`) that have a finished run."""
        return set(self.table_runs[kind])

    def label_of(self, kind: str, name: str) -> str:
        """Return the label of a method, task or backbone, of which `runs` may have the user's own file.

        Names from a command line and keys of a groupby have lost the file, and with it the label.

        Args:
            kind: `methods`, `tasks` or `backbones`.
            name: as runs have it.
        """
        if registry.own_file(name):
            return registry.label_of(kind, name)
        rows = self.runs[self.runs[kind.removesuffix("s")] == name]
        if rows.empty:
            return registry.label_of(kind, name)
        first = rows.iloc[0]
        _, _, setting = name.partition("/")
        # A row METHOD/KEY=VALUE of `with_rows_by` has the label of the method of its runs. METHOD/NAME
        # of a variant stays as it is: `hifi compare` takes it.
        if kind == "methods" and "=" in setting:
            _, method = self.own_names(first["path"])
            return f"{registry.label_of(kind, method)}, {setting}"
        return registry.label_of(kind, first[kind.removesuffix("s")])

    # --- scores

    def scores(
        self, runs: pd.DataFrame, epoch_choice: EpochChoice | None, metric: str | None
    ) -> pd.Series:
        """Return a metric of some runs, a fraction of 1; NaN where a run lacks it.

        Args:
            runs: rows of `runs`.
            epoch_choice: the epoch of the score; None: the one that each run's protocol reports.
            metric: None: each run's primary one.
        """
        values = []
        for run in runs.itertuples():
            values.append(self._score(run, epoch_choice or run.report, metric or run.metric))
        return pd.Series(values, index=runs.index, dtype=float)

    def _score(self, run: Any, epoch_choice: EpochChoice, metric: str) -> Any:
        """Return a metric of a run, a row of `runs`, at an epoch."""
        if metric == run.metric:
            return getattr(run, epoch_choice)
        # The record's `metrics` are those of the kept epoch; other epochs have lines of their own.
        if epoch_choice == run.kept:
            return run.metrics.get(metric)
        lines = self.results[run.path].epoch_metrics
        by_epoch = {line.epoch: line.metrics[metric] for line in lines if metric in line.metrics}
        if epoch_choice == "max":
            return max(by_epoch.values(), default=None) if pd.notna(run.max) else None
        return by_epoch.get(getattr(run, f"epoch_{epoch_choice}"))

    # --- errors

    def no_run_error(self) -> MissingError:
        """Return the error for a directory without runs that tables show."""
        others = ""
        place = results_dir_option(self.directory)
        if len(self.runs):
            command = command_line(["hifi", "table", "search", *place])
            others = f" but {len(self.runs)} of searches: {command}"
        elif self.damaged:
            command = command_line(["hifi", "results", "check", str(self.directory)])
            others = f" but {counted_noun(len(self.damaged), 'damaged one')}: {command}"
        elif begun := begun_runs(self.directory):
            command = command_line(["hifi", "ls", "runs", *place])
            others = f" but {counted_noun(len(begun), 'unfinished one')}: {command}"
        return MissingError(
            f"no finished run in {self.directory}{others}; make one with hifi train, or give --results-dir"
        )

    def no_such_runs_error(self, **options: str | None) -> MissingError:
        """Return the error for options that no run has; it says which runs there are.

        Where no run is finished, it is `no_run_error`.

        Args:
            options: `protocol`, `backbone`, `shots`, `tasks`, `methods` and `seeds` as they were
                asked for; None or empty: any.
        """
        if self.table_runs.empty:
            return self.no_run_error()
        given = " ".join(f"--{name} {value}" for name, value in options.items() if value)
        keys = {tuple(row) for row in self.table_runs[TABLE_KEYS].to_numpy()}
        present = []
        for protocol, backbone, shots in sorted(keys, key=str):
            few = f", {shots} shots" if shots else ""
            present.append(f"protocol {protocol} (backbone {backbone}{few})")
        return MissingError(
            f"no finished run of {given} in {self.directory}; there are runs of {' and '.join(present)}"
        )


def _at(result: RunResult, key: str, inner: str | None = None) -> Any:
    """Return the value at a key, or at `inner` in that value; None where a part of the way is missing."""
    part = getattr(result, key)
    if inner is None:
        return part
    if isinstance(part, dict):
        return part.get(inner)
    return getattr(part, inner, None)
