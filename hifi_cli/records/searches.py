"""The settings that runs of searches tried, and their scores."""

from typing import Any

import pandas as pd

from hifi_cli.config.base import flatten
from hifi_cli.config.epoch_rule import EpochRule
from hifi_cli.config.run_config import DEFAULT
from hifi_cli.config.sources import override_value
from hifi_cli.records.study import TABLE_KEYS, Study


def tried_settings(study: Study) -> pd.DataFrame:
    """Return one row for all settings that were tried together on a task with a method.

    Returns:
        Columns: `protocol`, `backbone`, `shots`, `task`, `method`; `settings`: those that vary, as
        `key=value`, or the name of a variant where none does; `learning_rate`, also where it does not
        vary; `score`: mean over seeds on the split that chooses, a fraction of 1, NaN if a run
        diverged; `deviation` over seeds; `seeds`: their number; `split`: which split that is;
        `collapsed`: whether a run is; `all_collapsed`: whether all are; `best`: whether it has the
        highest score of those with the most seeds, where not all of its runs collapsed.
    """
    of_search = [*TABLE_KEYS, "task", "method"]
    runs = runs_of_searches(study.runs)
    scores = [_selecting_score(study, run) for run in runs.itertuples()]
    rates = [config.get("learning_rate") for config in runs["config"]]
    runs = runs.assign(score=scores, settings=_settings(runs), learning_rate=rates)
    # A row of these groups is a seed.
    groups = runs.groupby([*of_search, "settings"], sort=False, dropna=False)
    tried = groups.agg(
        learning_rate=("learning_rate", "first"),
        score=("score", lambda values: values.mean(skipna=False)),
        deviation=("score", "std"),
        seeds=("score", "size"),
        split=("selection", "first"),
        collapsed=("collapsed", "any"),
        all_collapsed=("collapsed", "all"),
    )
    most_seeds = tried.groupby(of_search, dropna=False)["seeds"].transform("max")
    # The score of runs that predict one class says how often the class is among the rows.
    may_be_best = (tried["seeds"] == most_seeds) & ~tried["all_collapsed"]
    complete = tried["score"].where(may_be_best)
    # The first of equal scores is the best.
    ranks = complete.groupby(of_search, dropna=False).rank(ascending=False, method="first")
    tried["best"] = ranks == 1
    return tried.reset_index()


def runs_of_searches(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the variants, and the usual runs beside which they were tried.

    A value that is the run's own makes no variant of it (see `grids.cells`): the usual run is a
    setting of the search too. It counts where a variant of its method, task and seed was chosen on
    the same rows, and where no variant has its configuration.

    Args:
        runs: rows of `Study.runs`.
    """
    if runs.empty:
        return runs
    # Runs that agree in these columns could be one run with two settings.
    alike = [*TABLE_KEYS, "task", "method", "seed", "selection", "report", "limit"]
    places = ["|".join(map(str, values)) for values in runs[alike].itertuples(index=False)]
    place = pd.Series(places, runs.index, dtype=object)
    is_variant = runs["variant"].notna()
    is_beside = place.isin(place[is_variant])
    is_tried = runs["config_hash"].isin(runs["config_hash"][is_variant])
    return runs[is_variant | (is_beside & ~is_tried)]


def _selecting_score(study: Study, run: Any) -> float | None:
    """Return the score of a run's kept epoch on the split that chooses it; None: it diverged, or has none."""
    if run.status != "done":
        return None
    if EpochRule(run.report, run.selection).measures_every_epoch:
        return float(getattr(run, run.report))
    lines = study.results[run.path].epoch_metrics
    # The reported split was not measured after each epoch: other rows selected, and have a score.
    by_epoch = {line.epoch: line.selection for line in lines}
    return by_epoch.get(getattr(run, f"epoch_{run.report}"))


def _settings(runs: pd.DataFrame) -> pd.Series:
    """Return the settings of each run that vary among the runs of its method, as text."""
    of_methods = runs.groupby([*TABLE_KEYS, "method"], sort=False, dropna=False)
    parts = [_varied_settings(of_method) for _, of_method in of_methods]
    if not parts:
        return pd.Series(dtype=str)
    return pd.concat(parts)


def _varied_settings(runs: pd.DataFrame) -> pd.Series:
    """Return the keys in which some of a method's runs on one task differ, with their values in each.

    A variant in which no key differs, as that of a single value, has its name.
    """
    configs = []
    for config, encoder in zip(runs["config"], runs["weights"], strict=True):
        # Where the encoder lies is no setting; its digest says which one it is.
        keys = flatten({**config, "backbone": {"digest": encoder}})
        configs.append({key: override_value(value) for key, value in keys.items()})
    frame = pd.DataFrame(configs, index=runs.index).drop(columns=["seed", "variant", "task"])
    # A configuration in which no setting of the method is set has an empty section in their place.
    frame = frame.drop(columns="settings", errors="ignore")
    own = [key for key in frame.columns if key.startswith("settings.")]
    frame[own] = frame[own].fillna(DEFAULT)
    # The largest number of different values that a key has on one task.
    values_on_a_task = frame.groupby(runs["task"]).nunique(dropna=False).max()
    varied = frame.loc[:, values_on_a_task > 1].astype(object)
    # Rows one by one: with no varied key, `to_dict("records")` of pandas before 3.1 has no rows.
    texts = []
    for variant, (_, row) in zip(runs["variant"], varied.iterrows(), strict=True):
        words = [f"{key}={value}" for key, value in row.items() if pd.notna(value)]
        if not words and pd.notna(variant):
            words.append(variant)
        texts.append(" ".join(words))
    return pd.Series(texts, index=runs.index)
