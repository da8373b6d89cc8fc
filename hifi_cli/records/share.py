"""Results of others: packed into two files, copied between directories and the hub, and exported.

Runs of others are harmless: only known files are copied, no link is followed, nothing is
overwritten and nothing executed.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pandas as pd
from huggingface_hub import HfApi

from hifi_cli.config import registry
from hifi_cli.config.base import flatten
from hifi_cli.config.sources import override_value
from hifi_cli.errors import MissingError, PlaceTaken, UsageError
from hifi_cli.files import atomic_path, digest, json_text, read_json, safe_name
from hifi_cli.hub import hub_errors
from hifi_cli.records.record import RunResult
from hifi_cli.records.study import PACKED, PREDICTIONS, Study
from hifi_cli.tasks.metrics import is_lower_better, metric_of

HUB = "hub:"
_OWN_YAMLS = "own/*/*.yaml"
_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "predictions*.jsonl",
    "delta.safetensors",
    "pruned.json",
    _OWN_YAMLS,
    "results.json",
)
_CODE = ("own/methods/*.py", "own/rankings/*.py")
# Two runs at one path that agree in them are the same run
_SAME = (
    "schema_version",
    "config_hash",
    "task_digest",
    "data",
    "backbone_weights",
    "method_code",
    "draws",
    "scores",
)


def pack(source: Path, out: Path) -> int:
    """Write runs.jsonl, predictions.parquet and the users' own YAMLs; return the number of runs.

    Raises:
        MissingError: there is no run.
        UsageError: `out` exists, or a run is damaged.
    """
    if out.exists():
        raise UsageError(f"{out} exists; remove it, or name another directory with --out")
    study = Study(source)
    lines, tables = [], [pd.DataFrame(columns=["run", "id", "label", "prediction", "logits"])]
    with atomic_path(out) as folder:
        folder.mkdir()
        for path, files in _files(study, [_OWN_YAMLS]).items():
            lines.append(json.dumps({"path": path, "record": study.records[path]}) + "\n")
            if (table := study.predictions(path)) is not None:
                texts = {key: table[key].map(json.dumps) for key in ("label", "prediction")}
                tables.append(table.assign(run=path, **texts))
            _copy(files, source / path, folder / path)
        (folder / PACKED).write_text("".join(lines), encoding="utf-8")
        with (folder / PREDICTIONS).open("wb") as file:  # pyarrow takes no name that is not UTF-8
            pd.concat(tables).to_parquet(
                file,
                index=False,
                compression="zstd",
                compression_level=19,
                use_dictionary=["run", "id", "label"],
                use_byte_stream_split=["logits.list.element"],  # a third smaller
            )
    return len(lines)


def merge(source: Path, target: Path, *, trust: bool = False) -> dict[str, str]:
    """Copy the finished runs of a directory or a packed study that another directory lacks.

    Args:
        trust: copy the code of users' own methods too.

    Returns:
        What became of each run, by its path: copied, same, or a conflict, which is another run at its
        path, or one that is not finished; where their records have two schemas, both are named.

    Raises:
        MissingError: there is no run.
        UsageError: a run is damaged, or the target is packed; nothing is copied.
    """
    theirs, ours = Study(source), Study(target)
    if ours.is_packed:
        raise UsageError(f"{target} is a packed study: name another directory")
    states: dict[str, str] = {}
    copied = _files(theirs, [*_FILES, *(_CODE if trust else ())])
    for path in copied if theirs.is_packed else ():
        theirs.predictions(path)  # refuses a missing or damaged file before anything is copied
    for path, files in copied.items():
        if path in ours.records or (target / path).exists():
            states[path] = _state_of(path, ours, theirs)
            continue
        try:
            with atomic_path(target / path) as folder:
                _copy(files, source / path, folder)
                if theirs.is_packed:
                    _unpack(theirs, path, folder)
            states[path] = "copied"
        except PlaceTaken:
            states[path] = _state_of(path, ours, theirs)
    return states


def _state_of(path: str, ours: Study, theirs: Study) -> str:
    """What a run of theirs is to the one in its place here; see `_state`."""
    own = ours.records.get(path)
    file = ours.directory / path / "results.json"
    if own is None and file.is_file():
        own = read_json(file)  # another process copied it since our records were read
    return _state(own or {}, theirs.records[path])


def _state(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What a record is to that of the run in its place, whose own is empty if it is not finished."""
    schemas = [record.get("schema_version", 1) for record in (own, other)]
    if own and schemas[0] != schemas[1]:
        return f"schema {schemas[1]} there, {schemas[0]} here"
    is_same = all(own.get(key) == other.get(key) for key in _SAME)
    return "same" if is_same else "conflict"


def _unpack(study: Study, path: str, folder: Path) -> None:
    """Write a run of a packed study as the files of a run."""
    folder.mkdir(exist_ok=True)
    record, table = study.records[path], study.predictions(path)
    (folder / "config.yaml").write_text(registry.yaml_text(record["config"]))
    (folder / "results.json").write_text(json_text(record))
    if table is not None:
        lines = [json.dumps(row) + "\n" for row in table.to_dict("records")]
        (folder / "predictions.jsonl").write_text("".join(lines))


def _files(study: Study, patterns: Sequence[str]) -> dict[str, list[Path]]:
    """The files of every run that match the patterns, as paths in its directory.

    Raises:
        MissingError: there is no run.
        UsageError: a run is damaged or at another place than its own, or a file is a link.
    """
    study.refuse_damage()  # a damaged record may have a path that leads out of the directory
    if not study.records:
        raise MissingError(f"no finished runs in {study.directory}")
    found: dict[str, list[Path]] = {}
    for path in study.records:
        folder, place = study.directory / path, study.directory.resolve() / path
        paths = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
        files = [file.relative_to(folder) for file in paths]
        if links := [folder / file for file in files if (folder / file).resolve() != place / file]:
            raise UsageError(f"{links[0]} is a link, or behind one; put the file itself there")
        if others := [file for file in paths if not file.is_file()]:
            raise UsageError(f"{others[0]} is no regular file; put the file itself there")
        found[path] = files
    return found


def _copy(files: Sequence[Path], source: Path, target: Path) -> None:
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)


def push(source: Path, to: str, *, trust: bool = False) -> dict[str, str]:
    """`merge` into a directory, or add the runs that a dataset repository of the hub lacks."""
    if not to.startswith(HUB):
        return merge(source, Path(to), trust=trust)
    study = Study(source)
    if study.is_packed:
        raise UsageError(
            f"{source} is packed: send it with hf upload, or merge it into a directory"
        )
    runs = _files(study, [*_FILES, *(_CODE if trust else ())])
    repository = to.removeprefix(HUB)
    with hub_errors(to):
        there = set(HfApi().list_repo_files(repository, repo_type="dataset"))
        new = {path: files for path, files in runs.items() if f"{path}/results.json" not in there}
        names = [f"{path}/{file}" for path, files in new.items() for file in files]
        if new:
            HfApi().upload_folder(
                repo_id=repository, repo_type="dataset", folder_path=source, allow_patterns=names
            )
    return {path: "copied" if path in new else "there" for path in runs}


def pull(source: str, target: Path, *, trust: bool = False) -> dict[str, str]:
    """`merge` from a directory, a packed study, or a dataset repository of the hub with either."""
    if not source.startswith(HUB):
        return merge(Path(source), target, trust=trust)
    with TemporaryDirectory() as folder:
        with hub_errors(source):
            HfApi().snapshot_download(
                source.removeprefix(HUB),
                repo_type="dataset",
                local_dir=folder,
                allow_patterns=[PACKED, PREDICTIONS, "runs/*"],
                ignore_patterns="*..*",
            )
        return merge(Path(folder), target, trust=trust)


def push_model(folder: Path, to: str) -> None:
    """Upload an exported model to a model repository of the hub."""
    with hub_errors(to):
        HfApi().upload_folder(repo_id=to.removeprefix(HUB), folder_path=folder)


# --- export


EEE_VERSION = "0.3.0"  # of the schema: github.com/evaleval/every_eval_ever at 9bce413


def export_eee(source: Path, out: Path, organization: str) -> int:
    """Write a file of Every Eval Ever for each run with scores, as its data repository has them; return their number.

    Raises:
        MissingError: there is no run.
        UsageError: `out` exists, or a run is damaged.
    """
    if out.exists():
        raise UsageError(f"{out} exists; remove it, or name another directory with --out")
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
            # the same for the same run, so that a second export has files of the same names
            name = UUID(hex=digest(log["evaluation_id"], 32), version=4)
            (place / f"{name}.json").write_text(json_text(log))
    return len(results)


def eee_log(result: RunResult, organization: str) -> dict[str, Any]:
    """A run as Every Eval Ever describes an evaluation: every metric of the kept epoch is a result.

    Args:
        organization: who trained and evaluated the model.
    """
    settings = flatten({key: value for key, value in result.config.items() if key != "backbone"})
    model = result.config["backbone"].get("hub") or result.backbone
    identity = f"{result.run_path.as_posix()}/{result.config_hash}"
    data = {
        "dataset_name": result.task,
        "source_type": "other",
        "additional_details": {
            "split": result.split,
            "rows": str(result.n_examples["reported"]),
            **result.data_origin,
        },
    }
    return {
        "schema_version": EEE_VERSION,
        "evaluation_id": identity,
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": "hifi",
            "source_type": "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": "first_party",  # who evaluated the model has fine-tuned it
        },
        "eval_library": {"name": "hifi", "version": result.provenance["hifi"]},
        "model_info": {
            "name": f"{result.backbone}, fine-tuned on {result.task} with {result.method}",
            "id": model,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",  # of what training changed
                **{key: override_value(value) for key, value in settings.items()},
            },
        },
        "evaluation_results": [
            {
                "evaluation_result_id": f"{identity}/{metric}",
                "evaluation_name": result.task,
                "source_data": data,
                "metric_config": {
                    "metric_id": metric,
                    "metric_name": metric,
                    "lower_is_better": is_lower_better(metric),
                    **_bounds(metric),
                },
                "score_details": {
                    "score": value,
                    "details": {
                        "epoch": str(result.epoch(result.kept_score)),
                        "split": _split_of(metric, result),
                        "epoch_selected_on": result.selection,
                    },
                },
            }
            for metric, value in result.metrics.items()
        ],
    }


def _split_of(metric: str, result: RunResult) -> str:
    """The split that a metric was measured on; a metric of an extra one ends in that one's name."""
    for extra in result.extra_validation:
        if metric.endswith(f"_{extra}"):
            return f"{result.split}_{extra}"
    return result.split


def _bounds(metric: str) -> dict[str, Any]:
    """The range of a metric of ours; of one that the `evaluate` library computes it is not known."""
    ours = metric_of(metric)
    if ours is None:
        return {}
    return {"score_type": "continuous", "min_score": ours.low, "max_score": 1.0}
