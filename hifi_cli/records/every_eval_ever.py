"""Runs as Every Eval Ever describes evaluations, a format of other projects."""

import time
from pathlib import Path
from typing import Any
from uuid import UUID

from hifi_cli.config.base import flatten
from hifi_cli.config.sources import override_value
from hifi_cli.digests import digest
from hifi_cli.errors import MissingError
from hifi_cli.files import atomic_path, json_text, safe_name
from hifi_cli.records.record import RunResult
from hifi_cli.records.share import refuse_existing
from hifi_cli.records.study import Study
from hifi_cli.tasks.metrics import is_lower_better, metric_of

# The schema is that of github.com/evaleval/every_eval_ever at 9bce413.
EEE_VERSION = "0.3.0"


def export_eee(source: Path, out: Path, organization: str) -> int:
    """Write a file for each run with scores, as the data repository of Every Eval Ever has them.

    Args:
        source: a results directory or a packed study.
        out: a new directory.
        organization: who trained and evaluated the models.

    Returns:
        Number of files.

    Raises:
        MissingError: there is no run.
        UsageError: `out` exists, or a run is damaged.
    """
    refuse_existing(out)
    study = Study(source)
    study.refuse_damage()
    results = [result for result in study.results.values() if result.is_done]
    if not results:
        raise MissingError(f"no finished runs in {source}")
    with atomic_path(out) as folder:
        for result in results:
            log = eee_log(result, organization)
            developer, _, model = log["model_info"]["id"].rpartition("/")
            place = folder / "data" / "hifi" / safe_name(developer or "unknown") / safe_name(model)
            place.mkdir(parents=True, exist_ok=True)
            # The name follows from the run, so that a second export has files of the same names.
            name = UUID(hex=digest(log["evaluation_id"], 32), version=4)
            (place / f"{name}.json").write_text(json_text(log), encoding="utf-8")
    return len(results)


def eee_log(result: RunResult, organization: str) -> dict[str, Any]:
    """Describe a run: every metric of the kept epoch is a result.

    Args:
        result: the record of a run that is done.
        organization: who trained and evaluated the model.
    """
    model = result.config["backbone"].get("hub") or result.backbone
    # The weights that training changed have no place where a model would be available.
    details = {"deployment_type": "self_deployed", "model_availability": "unknown"}
    settings = flatten({key: value for key, value in result.config.items() if key != "backbone"})
    for key, value in settings.items():
        details[key] = override_value(value)
    return {
        "schema_version": EEE_VERSION,
        "evaluation_id": _identity(result),
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": "hifi",
            "source_type": "evaluation_run",
            "source_organization_name": organization,
            # Whoever evaluated the model has fine-tuned it.
            "evaluator_relationship": "first_party",
        },
        "eval_library": {"name": "hifi", "version": result.provenance["hifi"]},
        "model_info": {
            "name": f"{result.backbone}, fine-tuned on {result.task} with {result.method}",
            "id": model,
            "additional_details": details,
        },
        "evaluation_results": [
            _evaluation(result, metric, value) for metric, value in result.metrics.items()
        ],
    }


def _identity(result: RunResult) -> str:
    """Return the path of a run and the hash of its configuration."""
    return f"{result.run_path.as_posix()}/{result.config_hash}"


def _evaluation(result: RunResult, metric: str, value: float) -> dict[str, Any]:
    """Return one metric of a run as a result."""
    return {
        "evaluation_result_id": f"{_identity(result)}/{metric}",
        "evaluation_name": result.task,
        "source_data": {
            "dataset_name": result.task,
            "source_type": "other",
            "additional_details": {
                "split": result.split,
                "rows": str(result.n_examples["reported"]),
                **result.data_origin,
            },
        },
        "metric_config": {
            "metric_id": metric,
            "metric_name": metric,
            "lower_is_better": is_lower_better(metric),
            **_bounds(metric),
        },
        "score_details": {
            "score": value,
            "details": {
                "epoch": str(result.epoch(result.kept)),
                "split": _split_of(metric, result),
                "epoch_selected_on": result.selection,
            },
        },
    }


def _split_of(metric: str, result: RunResult) -> str:
    """Return the split that a metric was measured on; a metric of an extra one ends in that one's name."""
    for extra in result.extra_validation:
        if metric.endswith(f"_{extra}"):
            return f"{result.split}_{extra}"
    return result.split


def _bounds(metric: str) -> dict[str, Any]:
    """Return the range of a metric of ours; that of a metric of the `evaluate` library is not known."""
    ours = metric_of(metric)
    if ours is None:
        return {}
    return {"score_type": "continuous", "min_score": ours.low, "max_score": 1.0}
