"""All finished runs of a directory as one DataFrame, which tables, claims and figures query.

A protocol names the training conditions of a paper or study. A setting is a key of a run's
configuration with its value. A variant names a run with other settings, beside the usual run of
its method.
"""

import json
from copy import copy
from functools import cached_property
from glob import glob
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.draws import COMMON_DRAWS, changed_draws
from hifi_cli.config.epoch_rule import EpochRule
from hifi_cli.config.sources import override_value
from hifi_cli.errors import HifiError, MissingError, UsageError, logger
from hifi_cli.files import (
    MAX_LINES_BYTES,
    digest,
    is_locked,
    json_object,
    read_file,
    read_json,
    read_parquet,
    well_formed,
)
from hifi_cli.records.layout import USER_FILES, RunDirectory, unfinished_runs
from hifi_cli.records.record import RunResult, labelled_splits, validated
from hifi_cli.run_paths import RUN_PATTERNS, names_in
from hifi_cli.text import abbreviate, counted_noun

PACKED = "runs.jsonl"  # a packed study: one line a run, sorted by path
PREDICTIONS = "predictions.parquet"  # of a packed study: labels and predictions are JSON
TABLE_KEYS = ["protocol", "backbone", "shots"]  # runs that differ in one never share a table
_SCORES = ["last", "best", "max"]
_PARAMS = ["trainable", "trainable_backbone", "stored", "total"]
# Columns of `Study.runs`, and where results.json has what they hold
_PLACES = {
    column: place.split(".")
    for column, place in {
        **{
            key: key
            for key in ["protocol", "backbone", "task", "method", "variant", "seed", "shots"]
        },
        **{key: key for key in ["status", "reason", "collapsed", "limit", "split", "selection"]},
        **{key: key for key in ["report", "metrics", "time_s", "wall_s", "peak_memory_bytes"]},
        **{key: key for key in ["memory_is_own", "delta_bytes", "precision", "method_code"]},
        **{key: key for key in ["config_hash", "setting_hash", "schema_version", "task_digest"]},
        **{name: f"scores.{name}" for name in _SCORES},
        **{f"epoch_{name}": f"epochs.{name}" for name in _SCORES},
        **{name: f"params.{name}" for name in _PARAMS},
        "metric": "primary_metric",
        "train_rows": "n_examples.train",
        "reported_rows": "n_examples.reported",
        "truncated_train": "truncated.train",
        "truncated_reported": "truncated.reported",
        "device": "provenance.device",
        "threads": "provenance.threads",
        "weights": "backbone_weights",
        "heads": "heads_sha256",
    }.items()
}
_COLUMNS = [*_PLACES, "path", "config", "max_epochs", "data", "draws", "common_draws"]
# The columns that hold the value of a key of the configuration under another name
COLUMN_OF_KEY = {"epochs": "max_epochs", "primary_metric": "metric"}
# The columns besides those of keys in which runs must agree to be compared, with the words of messages
COMPARED = {
    "weights": "encoder",
    "task_digest": "task as read",
    "data": "data",
    "common_draws": "random draws",
    "split": "split",
}
# Those in which runs of one method on one task must agree to be averaged
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
# The columns that every listed run has; `metrics.NAME` follow
_LISTED = [
    *["state", "protocol", "backbone", "task", "method", "variant", "seed", "shots", "metric"],
    *["score", *_SCORES, "epoch", "epochs", "flags", "trained_percent", "time_s"],
    *["peak_memory_bytes", "config_hash", "setting_hash", "path", "detail"],
]


class Study:
    """The finished runs of a results directory, or of a packed study; they are read once.

    A run is named by its path:
    `runs/<protocol>/<backbone>/<task>/<method>[/<variant>]/seed<k>`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def is_packed(self) -> bool:
        """Whether `hifi results pack` wrote the directory."""
        return (self.directory / PACKED).is_file()

    @cached_property
    def _contents(self) -> dict[str, dict[str, Any] | HifiError]:
        """What results.json holds of each run by its path, sorted, or why it cannot be read."""
        if self.is_packed:
            return self._packed_contents()
        places = (f"{pattern}/results.json" for pattern in RUN_PATTERNS)
        # half the time of pathlib's
        found = (glob(place, root_dir=self.directory) for place in places)  # noqa: PTH207
        paths = sorted(file.rpartition("/")[0] for file in chain(*found))
        contents: dict[str, dict[str, Any] | HifiError] = {}
        for path in paths:
            try:
                contents[path] = read_json(self.directory / f"{path}/results.json")
            except HifiError as error:
                contents[path] = error
            except OSError as error:  # names the file
                contents[path] = UsageError(f"cannot be read: {error}")
        return contents

    def _packed_contents(self) -> dict[str, dict[str, Any] | HifiError]:
        """The same of a packed study, whose damaged lines are named by their numbers."""
        packed = self.directory / PACKED
        contents: dict[str, dict[str, Any] | HifiError] = {}
        for index, line in enumerate(read_file(packed, MAX_LINES_BYTES).splitlines(), start=1):
            place = f"{packed}, line {index}"
            try:
                run = json_object(line, place)
                path, record = run["path"], run["record"]
                if path in contents:
                    raise UsageError(f"{place} holds {path} a second time; pack the study again")
                contents[path] = record
            except UsageError as error:
                contents[f"{PACKED}, line {index}"] = error
            except (KeyError, TypeError) as error:
                reason = f"{place} is damaged ({error}); pack the study again"
                contents[f"{PACKED}, line {index}"] = UsageError(reason)
        return contents

    @cached_property
    def _typed(self) -> dict[str, RunResult | HifiError]:
        """The record of each run by its path, or why it cannot be used."""
        typed: dict[str, RunResult | HifiError] = {}
        for path, content in self._contents.items():
            if isinstance(content, HifiError):
                typed[path] = content
                continue
            try:
                typed[path] = self._result(path, content)
            except HifiError as error:
                typed[path] = error
        return typed

    @cached_property
    def results(self) -> dict[str, RunResult]:
        """The record of each run by its path, sorted, without those that are damaged."""
        return {path: found for path, found in self._typed.items() if isinstance(found, RunResult)}

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """What results.json holds of each run in `results`."""
        return {path: dict(self._contents[path]) for path in self.results}  # type: ignore[arg-type]

    @cached_property
    def damaged(self) -> dict[str, str]:
        """Why a run is damaged: its record cannot be read, lacks a part, or lies at another path than the run's own."""
        return {
            path: str(found) for path, found in self._typed.items() if isinstance(found, HifiError)
        }

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

    def result(self, path: str) -> RunResult:
        """The record of a run, typed.

        Raises:
            UsageError: a part is missing or of a wrong type, or the run belongs at another path: a
                copy would count twice.
        """
        found = self._typed[path]
        if isinstance(found, HifiError):
            raise found
        return found

    def _result(self, path: str, content: dict[str, Any]) -> RunResult:
        """Type a record, and compare its path with the one of the run that it describes."""
        place = f"{self.directory}/{path}"  # paths take longer than reading, in large studies
        result = validated(RunResult, content, f"{place}/results.json")
        if result.run_path.as_posix() != path:
            raise UsageError(
                f"{place} holds the run that belongs in {self.directory / result.run_path}: move it there, or a copy away"
            )
        return result

    def predictions(self, path: str) -> pd.DataFrame | None:
        """The predictions of a run: id, label, prediction, logits; None: there are none."""
        if self.is_packed:
            return self._packed_predictions.get(path)
        directory = RunDirectory(self.directory / path)
        if not directory.predictions.is_file():
            return None
        return pd.DataFrame([row.model_dump() for row in directory.read_predictions()])

    def usable_predictions(self, path: str) -> pd.DataFrame | None:
        """The same, and None with a warning where they are damaged: one run less is no reason to show nothing."""
        if path in self._damaged_predictions:
            return None
        try:
            return self.predictions(path)
        except HifiError as error:
            self._damaged_predictions.add(path)
            logger.warning(f"left out: predictions of 1 run: {error}")
            return None

    @cached_property
    def _damaged_predictions(self) -> set[str]:
        """The runs whose damaged predictions were named."""
        return set()

    @cached_property
    def _packed_predictions(self) -> dict[str, pd.DataFrame]:
        file = self.directory / PREDICTIONS
        try:
            table = read_parquet(file).to_pandas()
            texts = {column: table[column].map(json.loads) for column in ("label", "prediction")}
            table = table.assign(**texts, logits=[values.tolist() for values in table["logits"]])
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise UsageError(f"{file} is damaged ({error}); pack the study again") from None
        return {
            str(path): rows.drop(columns="run").reset_index(drop=True)
            for path, rows in table.groupby("run")
        }

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run; names of the user's own methods and tasks carry the copies that the run keeps.

        Columns: `path`; `protocol`, `backbone`, `task`, `method`, `variant` (None: not a variant),
        `seed`, `shots` (None: all rows); `status` (done, diverged), `reason`, `collapsed`, `limit`;
        `metric` (the primary one), `split`, `selection`, `report`; `last`, `best`, `max`: the
        primary metric at these epochs, fractions of 1; `epoch_last` (as many were trained),
        `epoch_best`, `epoch_max`; `max_epochs`: as many as early stopping allows;
        `metrics`: every metric at the kept epoch; `trainable`, `trainable_backbone`, `stored`,
        `total`: numbers of parameters; `train_rows`, `reported_rows`, `truncated_train`,
        `truncated_reported`; `time_s`, `wall_s`, `peak_memory_bytes`, `memory_is_own`, `delta_bytes`,
        `device`, `precision`; what must agree where runs are averaged or compared: `data`, `weights`,
        `method_code`, `heads`, `setting_hash`, `schema_version`, `task_digest`; `draws`: those random
        draws whose version is not this program's, as a text, and `common_draws`: those of them that
        runs of every method have; `config`, as it is nested, and `config_hash`.

        A damaged run is left out, with a warning that names it.
        """
        if self.damaged:
            reasons = abbreviate([*self.damaged.values()], "; ")
            logger.warning(f"left out: {counted_noun(len(self.damaged), 'damaged run')}: {reasons}")
        rows = [self._row(path) for path in self.results]
        # None of `shots` is a value of its own
        frame = pd.DataFrame(rows, columns=_COLUMNS, dtype=object)
        numbers = dict.fromkeys(_SCORES, float) | dict.fromkeys(_PARAMS, int)
        return frame.astype({"seed": int, "collapsed": bool, "time_s": float, **numbers})

    def _row(self, path: str) -> dict[str, Any]:
        """A run as a row of `runs`."""
        result, names = self.results[path], dict[str, str]()
        if (self.directory / f"{path}/{USER_FILES}").is_dir():  # few runs have any
            directory = RunDirectory(self.directory / path)
            names = {
                key: directory.user_name(f"{key}s", getattr(result, key))
                for key in ("task", "method")
            }
        content = result.model_dump(exclude={"config", "epoch_metrics", "heads"})
        trained = _at(content, "epochs", "last")
        return {
            **{column: _at(content, *place) for column, place in _PLACES.items()},
            "path": path,
            **names,
            "config": result.config,
            "max_epochs": result.config["epochs"] if result.config.get("patience") else trained,
            "data": digest(labelled_splits(result.data)),
            **_draws(result),
        }

    @property
    def table_runs(self) -> pd.DataFrame:
        """The runs that tables show: without those of searches and other variants."""
        return self.runs[self.runs["variant"].isna()]

    def with_rows_by(self, key: str) -> "Study":
        """The study with a method of its own for each value of a setting, METHOD/KEY=VALUE.

        With `variant`: METHOD/NAME, and METHOD for the runs that are no variants.

        Raises:
            UsageError: no run has this setting.
        """
        study, runs = copy(self), self.runs
        configs = [flatten(config) for config in runs["config"]]
        known = {name for config in configs for name in config}
        if len(runs) and key not in known:
            raise UsageError(
                f"--by {key}: no run has this setting{registry.did_you_mean(key, known)}"
            )
        values = [override_value(config.get(key)) for config in configs]
        names = pd.Series(values, runs.index, dtype=object).radd(f"{key}=")
        names = runs["variant"] if key == "variant" else names
        methods = (runs["method"] + "/" + names).where(names.notna(), runs["method"])
        runs = runs.assign(method=methods, variant=None)
        study.runs = runs.drop_duplicates(["method", "config_hash"])
        return study

    def names(self, kind: str) -> set[str]:
        """The names of a column (`method`, `task`) that have a finished run."""
        return set(self.table_runs[kind])

    def scores(self, runs: pd.DataFrame, name: str | None, metric: str | None) -> pd.Series:
        """A metric of some runs at the `last`, `best` or `max` epoch; NaN where a run lacks it.

        Args:
            name: None: the epoch that each run's protocol reports.
            metric: None: each run's primary one.
        """
        values = [
            self._score(run, name or run.report, metric or run.metric) for run in runs.itertuples()
        ]
        return pd.Series(values, index=runs.index, dtype=float)

    def _score(self, run: Any, name: str, metric: str) -> Any:
        if metric == run.metric:
            return getattr(run, name)
        if name == EpochRule(run.report, run.selection).kept:
            return run.metrics.get(metric)
        lines = self.records[run.path].get("epoch_metrics", [])
        by_epoch = {line["epoch"]: line[metric] for line in lines if metric in line}
        if name == "max":
            return max(by_epoch.values(), default=None) if pd.notna(run.max) else None
        return by_epoch.get(getattr(run, f"epoch_{name}"))

    def no_run_error(self) -> MissingError:
        """The error for a directory without runs that tables show."""
        others = ""
        if len(self.runs):
            others = f" but {len(self.runs)} of searches: hifi table search"
        elif self.damaged:
            others = f" but {counted_noun(len(self.damaged), 'damaged one')}: hifi results check"
        return MissingError(
            f"no finished run in {self.directory}{others}; make one with hifi train, or give --results-dir"
        )

    def no_such_runs_error(self, **options: str | None) -> MissingError:
        """The error for a protocol, backbone or shots that no run has; it says which there are."""
        given = " ".join(f"--{name} {value}" for name, value in options.items() if value)
        present = [
            f"protocol {protocol} (backbone {backbone}{f', {shots} shots' if shots else ''})"
            for protocol, backbone, shots in sorted(
                {*map(tuple, self.table_runs[TABLE_KEYS].to_numpy())}, key=str
            )
        ]
        return MissingError(
            f"no finished run of {given} in {self.directory}; there are runs of {' and '.join(present)}"
        )


def _draws(result: RunResult) -> dict[str, str]:
    """The columns `draws` and `common_draws` of a run."""
    changed = changed_draws(result.draws)
    common = {name: changed[name] for name in changed if name in COMMON_DRAWS}
    return {"draws": _versions_text(changed), "common_draws": _versions_text(common)}


def _versions_text(versions: dict[str, int]) -> str:
    texts = [f"{name} version {versions[name]}" for name in sorted(versions)]
    return ", ".join(texts) or "those of this program"


def _at(content: dict[str, Any], key: str, inner: str | None = None) -> Any:
    """What is at a key, or at `inner` in what is there; None where a part of the way is missing."""
    return (content[key] or {}).get(inner) if inner else content[key]


def tried_settings(study: Study) -> pd.DataFrame:
    """Return one row for all settings that were tried together on a task with a method.

    Columns: `protocol`, `backbone`, `shots`, `task`, `method`; `settings`: those that vary, as
    `key=value`; `score`: mean over seeds on the split that chooses, a fraction of 1, NaN if a run
    diverged; `deviation` over seeds; `seeds`: their number; `split`: which split that is;
    `collapsed`: whether a run is; `best`: whether it has the highest score of those with the most seeds.
    """
    of_search = [*TABLE_KEYS, "task", "method"]
    runs = study.runs[study.runs["variant"].notna()]
    runs = runs.assign(score=[_selecting_score(study, run) for run in runs.itertuples()])
    of_methods = runs.groupby([*TABLE_KEYS, "method"], sort=False, dropna=False)
    runs["settings"] = pd.concat(
        [_varied_settings(group) for _, group in of_methods] or [pd.Series(dtype=str)]
    )
    tried = runs.groupby([*of_search, "settings"], sort=False, dropna=False).agg(
        score=("score", lambda values: values.mean(skipna=False)),
        deviation=("score", "std"),
        seeds=("score", "size"),
        split=("selection", "first"),
        collapsed=("collapsed", "any"),
    )
    most_seeds = tried.groupby(of_search, dropna=False)["seeds"].transform("max")
    complete = tried["score"].where(tried["seeds"] == most_seeds)
    # of equal scores the first
    tried["best"] = (
        complete.groupby(of_search, dropna=False).rank(ascending=False, method="first") == 1
    )
    return tried.reset_index()


def _selecting_score(study: Study, run: Any) -> float | None:
    """The score of a run's kept epoch on the split that chooses it; None if it diverged."""
    if run.status != "done":
        return None
    if EpochRule(run.report, run.selection).has_max:
        return float(getattr(run, run.report))
    lines = study.records[run.path]["epoch_metrics"]
    by_epoch = {line["epoch"]: line.get("selection") for line in lines}
    return by_epoch[getattr(run, f"epoch_{run.report}")]


def _varied_settings(runs: pd.DataFrame) -> pd.Series:
    """The keys in which some of a method's runs on one task differ, with their values in each."""
    configs = [
        {key: override_value(value) for key, value in flatten(config).items()}
        for config in runs["config"]
    ]
    frame = pd.DataFrame(configs, index=runs.index).drop(columns=["seed", "variant", "task"])
    values_on_a_task = frame.groupby(runs["task"]).nunique(dropna=False).max()
    varied = frame.loc[:, values_on_a_task > 1].astype(object)
    # Rows one by one: with no varied key, `to_dict("records")` of pandas before 3.1 has no rows.
    texts = []
    for _, row in varied.iterrows():
        words = [f"{key}={value}" for key, value in row.items() if pd.notna(value)]
        texts.append(" ".join(words))
    return pd.Series(texts, index=runs.index)


# All runs as a list: for `hifi ls runs` and for `hifi_cli.read_results`


def read_results(
    directory: str | Path = "results", *, with_unfinished: bool = False
) -> pd.DataFrame:
    """Return the finished runs of a results directory, a row each, with the columns of `hifi ls runs --format csv`.

    Scores are in percent; `metrics.NAME` has every other metric of the model that was kept; a diverged run has no
    score (NaN). The settings follow by their keys: `learning_rate`, `batch_size`, `heads.k`, `settings.r`, and so on.

    Args:
        with_unfinished: also those whose `state` is `running`, `unfinished` or `damaged`, named by
            their folders.

    Raises:
        MissingError: no such directory.
    """
    if not Path(directory).is_dir():
        raise MissingError(
            f"no directory {directory}; hifi train --results-dir {directory} makes it"
        )
    study = Study(Path(directory))
    rows = [_listed(run, study.directory) for run in study.runs.to_dict("records")]
    for run in unfinished_runs(study.directory) if with_unfinished else ():
        names = names_in(run.path.relative_to(study.directory))
        state = "running" if is_locked(run.lock) else "unfinished"
        place = {"path": well_formed(str(run.path)), "flags": "", "detail": ""}
        rows.append({**names, "state": state, **place})
    for path, reason in study.damaged.items() if with_unfinished else ():
        names = names_in(path)
        place = {"path": well_formed(str(study.directory / path)), "flags": "", "detail": reason}
        rows.append({**names, "state": "damaged", **place})
    frame = pd.DataFrame(rows)
    others = [column for column in frame if column not in _LISTED]
    integers = dict.fromkeys(("seed", "shots", "epoch", "epochs", "peak_memory_bytes"), "Int64")
    frame = frame.reindex(columns=[*_LISTED, *others]).astype(integers)
    return frame.sort_values("path", ignore_index=True)


def _listed(run: dict[str, Any], results_dir: Path) -> dict[str, Any]:
    """A row of `Study.runs` as a listed run, scores in percent."""
    is_done = run["status"] == "done"
    flags = {"collapsed": run["collapsed"], "limited": run["limit"] is not None}
    percent = {name: None if run[name] is None else 100 * run[name] for name in _SCORES}
    settings = flatten({key: value for key, value in run["config"].items() if key != "backbone"})
    return {
        **settings,
        **{key: value for key, value in run.items() if key in _LISTED},
        **percent,
        "state": run["status"],
        "score": percent[run["report"]] if is_done else None,
        "epoch": run[f"epoch_{run['report']}"],
        "epochs": run["epoch_last"],
        "flags": " ".join(flag for flag, is_set in flags.items() if is_set and is_done),
        "trained_percent": 100 * run["trainable"] / run["total"],
        "path": well_formed(str(results_dir / run["path"])),
        "detail": run["reason"],
        "peak_memory_bytes": None if run["memory_is_own"] is False else run["peak_memory_bytes"],
        **{f"metrics.{name}": 100 * value for name, value in run["metrics"].items()},
    }
