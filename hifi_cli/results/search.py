"""Searches: the settings that were tried for a method on a task, which are variants of a run."""

from typing import Any

import pandas as pd

from hifi_cli.config.base import flatten
from hifi_cli.config.sources import override_value
from hifi_cli.results.study import SETTING, Study


def tried_settings(study: Study) -> pd.DataFrame:
    """Return one row for each setting that was tried on a task with a method.

    Columns: `protocol`, `backbone`, `shots`, `task`, `method`; `setting`: the keys that vary, as
    `key=value`; `score`: mean over seeds on the split that chooses, a fraction of 1, NaN if a run
    diverged; `deviation` over seeds; `seeds`: their number; `split`: which split that is; `best`:
    whether it has the highest score of those with the most seeds.
    """
    of_search = [*SETTING, "task", "method"]
    runs = study.runs[study.runs["variant"].notna()]
    runs = runs.assign(score=[_selecting_score(study, run) for run in runs.itertuples()])
    of_methods = runs.groupby([*SETTING, "method"], sort=False, dropna=False)
    runs["setting"] = pd.concat([_settings(group) for _, group in of_methods] or [pd.Series(dtype=str)])
    parts = []
    for names, group in runs.groupby(of_search, sort=False, dropna=False):
        by_setting = group.groupby("setting", sort=False)
        scores = by_setting["score"]
        tried = pd.DataFrame(
            {
                "score": scores.agg(lambda values: values.mean(skipna=False)),
                "deviation": scores.std(),
            }
        )
        tried["seeds"], tried["split"] = scores.size(), by_setting["selection"].first()
        complete = tried.loc[tried["seeds"] == tried["seeds"].max(), "score"].dropna()
        tried["best"] = tried.index == complete.idxmax() if len(complete) else False
        parts.append(tried.reset_index().assign(**dict(zip(of_search, names, strict=True))))
    columns = [*of_search, "setting", "score", "deviation", "seeds", "split", "best"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _selecting_score(study: Study, run: Any) -> float | None:
    """The score of a run's kept epoch on the split that chooses it; None if it diverged."""
    if run.status != "done":
        return None
    if run.report == "max" or run.selection == "validation":
        return float(getattr(run, run.report))
    return float(study.epochs(run.path).loc[getattr(run, f"epoch_{run.report}"), "selection"])


def _settings(runs: pd.DataFrame) -> pd.Series:
    """The keys in which some of a method's runs on one task differ, with their values in each."""
    configs = [{key: override_value(value) for key, value in flatten(config).items()} for config in runs["config"]]
    frame = pd.DataFrame(configs, index=runs.index).drop(columns=["seed", "variant", "task"])
    values_on_a_task = frame.groupby(runs["task"]).nunique(dropna=False).max()
    varied = frame.loc[:, values_on_a_task > 1].astype(object)
    rows = varied.where(varied.notna(), None).to_dict("records")
    texts = [" ".join(f"{key}={value}" for key, value in row.items() if value is not None) for row in rows]
    return pd.Series(texts, index=runs.index)
