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
    parts = []
    for names, group in runs.groupby(of_search, sort=False, dropna=False):
        by_setting = group.assign(setting=_settings(group)).groupby("setting", sort=False)
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


def _settings(runs: pd.DataFrame) -> list[str]:
    """The keys in which some runs differ, with their values in each."""
    configs = [{key: override_value(value) for key, value in flatten(config).items()} for config in runs["config"]]
    frame = pd.DataFrame(configs).drop(columns=["seed", "variant"])
    varied = [key for key in frame if frame[key].nunique(dropna=False) > 1]
    rows = frame[varied].astype(object).where(frame[varied].notna(), None).to_dict("records")
    return [" ".join(f"{key}={value}" for key, value in row.items() if value is not None) for row in rows]
