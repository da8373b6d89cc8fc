"""Results of others: packed into two files, and copied between directories and the hub.

Runs of others are harmless: only known files are copied, no link is followed, nothing is
overwritten and nothing executed.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from huggingface_hub import HfApi

from hifi_cli.config import registry
from hifi_cli.config.run_config import ELSEWHERE, without_places
from hifi_cli.digests import file_digest
from hifi_cli.errors import MissingError, PlaceTaken, UsageError
from hifi_cli.files import atomic_path, json_text, read_json
from hifi_cli.hub import HUB, hub_errors
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.stored import PACKED, refuse_packed
from hifi_cli.records.study import PREDICTIONS, Study

# The copies of the user's own YAMLs, of which a packed study keeps those of each run too.
_OWN_YAMLS = "own/*/*.yaml"
# The files of a run that are copied, results.json last: it marks the run as finished.
_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "predictions*.jsonl",
    "delta.safetensors",
    "pruned.json",
    _OWN_YAMLS,
    "results.json",
)
# The code of a user's own, which is copied only where the user trusts it.
_CODE = ("own/methods/*.py", "own/rankings/*.py")
# Two runs at one path that agree in these fields are the same run.
_SAME = (
    "schema_version",
    "config_hash",
    "task_digest",
    "data",
    "backbone_weights",
    "method_code",
    "draws",
    # The outcome: two trainings may agree in a score, and not in their weights.
    "status",
    "scores",
    "metrics",
    "epoch_metrics",
    "params",
    "n_examples",
    "heads",
    "delta_sha256",
)

# Advice where a repository to write to may be missing.
_CREATE = "create it (hf repos create)"


def pack(source: Path, out: Path) -> int:
    """Write runs.jsonl, predictions.parquet and the users' own YAMLs; return the number of runs.

    Args:
        source: a results directory.
        out: a new directory.

    Raises:
        MissingError: there is no run.
        UsageError: `out` exists, or a run is damaged.
    """
    refuse_existing(out)
    study = Study(source)
    lines = []
    tables = [pd.DataFrame(columns=["run", "id", "label", "prediction", "logits"])]
    with atomic_path(out) as folder:
        folder.mkdir()
        for path, files in _files(study, [_OWN_YAMLS]).items():
            record = study.records[path]
            line = {"path": path, "record": {**record, "config": without_places(record["config"])}}
            lines.append(json.dumps(line) + "\n")
            table = study.predictions(path)
            if table is not None:
                tables.append(_packed(path, table))
            _copy(files, source / path, folder / path)
            _remove_places_of_tasks(folder / path)
        (folder / PACKED).write_text("".join(lines), encoding="utf-8")
        _write_predictions(pd.concat(tables), folder / PREDICTIONS)
    return len(lines)


def _remove_places_of_tasks(run: Path) -> None:
    """Remove the places of this machine from the copies of users' tasks in a packed run.

    No digest depends on them. A copy that names such a place is written anew, without its comments,
    which may name it too.
    """
    for file in sorted(run.glob("own/tasks/*.yaml")):
        content = registry.read_yaml(file)
        shared = dict(content)
        local = content.get("local")
        if isinstance(local, dict):
            directory = PurePath(str(local.get("directory")))
            if directory.is_absolute():
                shared["local"] = {**local, "directory": f"{ELSEWHERE}{directory.name}"}
        # A task that was made from a file has its path as the source.
        source = PurePath(str(content.get("source")))
        if source.is_absolute():
            shared["source"] = source.name
        if shared != content:
            text = registry.yaml_text(shared, allow_unicode=True)
            file.write_text(text, encoding="utf-8")


def _packed(path: str, predictions: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions of a run as rows of predictions.parquet.

    Returns:
        Columns: `id` and `logits` as they are; `label` and `prediction` as JSON, because their types
        differ between tasks; `run`: the path of the run.
    """
    return predictions.assign(
        run=path,
        label=predictions["label"].map(json.dumps),
        prediction=predictions["prediction"].map(json.dumps),
    )


def _write_predictions(predictions: pd.DataFrame, path: Path) -> None:
    """Write predictions.parquet."""
    # pyarrow takes no name of a file that is not UTF-8, and pandas 2 gives it that of an open file.
    content = predictions.to_parquet(
        index=False,
        compression="zstd",
        compression_level=19,
        use_dictionary=["run", "id", "label"],
        # Bytes of equal weight stand together and compress better: the file is a third smaller.
        use_byte_stream_split=["logits.list.element"],
    )
    path.write_bytes(content)


def refuse_existing(out: Path) -> None:
    """Refuse to write where something is already.

    Raises:
        UsageError: something is.
    """
    if out.exists():
        raise UsageError(f"{out} exists; remove it, or name another directory with --out")


def merge(source: Path, target: Path, *, trust: bool = False) -> dict[str, str]:
    """Copy the finished runs of a directory or a packed study that another directory lacks.

    Args:
        source: a results directory or a packed study.
        target: a results directory.
        trust: copy the code of users' own methods too.

    Returns:
        What became of each run, by its path: copied, same, or a conflict, which is another run at
        its path, or one that is not finished; where their records have two schemas, both are named.

    Raises:
        MissingError: there is no run.
        UsageError: a run is damaged, or the target is packed; nothing is copied. Weights that are
            damaged are found while they are copied: the runs before them are there then.
    """
    theirs = Study(source)
    ours = Study(target)
    refuse_packed(target)
    found = _files(theirs, _patterns(trust=trust))
    if theirs.is_packed:
        # A missing or damaged file is refused before anything is copied.
        theirs.predictions("")
    states: dict[str, str] = {}
    for path, files in found.items():
        if path in ours.records or (target / path).exists():
            states[path] = _state_of(path, ours, theirs)
            continue
        try:
            with atomic_path(target / path) as folder:
                _copy(files, source / path, folder)
                if theirs.is_packed:
                    _unpack(theirs, path, folder)
                _check_weights(folder, source / path, theirs.records[path])
            states[path] = "copied"
        except PlaceTaken:
            states[path] = _state_of(path, ours, theirs)
    return states


def _patterns(*, trust: bool) -> list[str]:
    """Return the files of a run that are copied."""
    if trust:
        return [*_FILES, *_CODE]
    return [*_FILES]


def _state_of(path: str, ours: Study, theirs: Study) -> str:
    """Compare a run of theirs with the one in its place here; see `_state`."""
    own = ours.records.get(path)
    file = ours.directory / path / "results.json"
    if own is None and file.is_file():
        # Another process copied it since our records were read.
        own = read_json(file)
    return _state(own or {}, theirs.records[path])


def _state(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Compare a record with that of the run in its place.

    Args:
        own: of the run in its place; empty if that is not finished.
        other: the record.
    """
    schemas = [record.get("schema_version", 1) for record in (own, other)]
    if own and schemas[0] != schemas[1]:
        return f"schema {schemas[1]} there, {schemas[0]} here"
    is_same = all(own.get(key) == other.get(key) for key in _SAME)
    return "same" if is_same else "conflict"


def _unpack(study: Study, path: str, folder: Path) -> None:
    """Write a run of a packed study as the files of a run."""
    folder.mkdir(exist_ok=True)
    record = study.records[path]
    table = study.predictions(path)
    (folder / "config.yaml").write_text(registry.yaml_text(record["config"]), encoding="utf-8")
    (folder / "results.json").write_text(json_text(record), encoding="utf-8")
    if table is not None:
        lines = [json.dumps(row) + "\n" for row in table.to_dict("records")]
        (folder / "predictions.jsonl").write_text("".join(lines), encoding="utf-8")


def _files(study: Study, patterns: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of every run that match the patterns, as paths in its directory.

    Raises:
        MissingError: there is no run.
        UsageError: a run is damaged or at another place than its own, or a file is a link.
    """
    # A damaged record may have a path that leads out of the directory.
    study.refuse_damage()
    if not study.records:
        raise MissingError(f"no finished runs in {study.directory}")
    found: dict[str, list[Path]] = {}
    for path in study.records:
        folder = study.directory / path
        found[path] = []
        for pattern in patterns:
            for file in sorted(folder.glob(pattern)):
                inside = file.relative_to(folder)
                _refuse_links(file, study.directory.resolve() / path / inside)
                found[path].append(inside)
    return found


def _refuse_links(file: Path, expected: Path) -> None:
    """Refuse a file that is not what its name says.

    Args:
        file: the file.
        expected: where it is if no part of its path below the results directory is a link.

    Raises:
        UsageError: it is a link, or behind one, or no regular file.
    """
    if file.resolve() != expected:
        raise UsageError(f"{file} is a link, or behind one; put the file itself there")
    if not file.is_file():
        raise UsageError(f"{file} is no regular file; put the file itself there")


def _copy(files: Sequence[Path], source: Path, target: Path) -> None:
    """Copy files, which are named by their paths inside of both folders."""
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)


def _check_weights(copy: Path, source: Path, record: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of their record, as a full disk may have left them.

    Args:
        copy: the run's copy, whose files have just been read, and are in memory; or the run itself.
        source: the run, which the message names.
        record: that of the run.

    Raises:
        UsageError: its delta is another file than the run wrote.
    """
    delta = RunDirectory(copy).delta
    if delta.is_file() and file_digest(delta) != record["delta_sha256"]:
        raise UsageError(
            f"{RunDirectory(source).delta} is not the file that the run wrote (delta_sha256): copy it"
            " from where the run was trained, or delete it to copy the run without its weights"
        )


def push(source: Path, to: str, *, trust: bool = False) -> dict[str, str]:
    """Merge into a directory, or add the runs that a dataset repository of the hub lacks.

    Args:
        source: a results directory.
        to: a directory, or `hub:OWNER/NAME`.
        trust: copy the code of users' own methods too.

    Returns:
        What became of each run, by its path; see `merge`. On the hub: copied, or there.

    Raises:
        MissingError: there is no run, or no such repository.
        UsageError: a run or its weights are damaged; on the hub nothing is added then.
    """
    if not to.startswith(HUB):
        return merge(source, Path(to), trust=trust)
    study = Study(source)
    if study.is_packed:
        raise UsageError(
            f"{source} is packed: send it with hf upload, or merge it into a directory"
        )
    runs = _files(study, _patterns(trust=trust))
    repository = to.removeprefix(HUB)
    with hub_errors(to, _CREATE):
        there = set(HfApi().list_repo_files(repository, repo_type="dataset"))
    states: dict[str, str] = {}
    new: list[str] = []
    for path, files in runs.items():
        states[path] = "there"
        if f"{path}/results.json" not in there:
            _check_weights(source / path, source / path, study.records[path])
            states[path] = "copied"
            new += [f"{path}/{file}" for file in files]
    if new:
        with hub_errors(to, _CREATE):
            HfApi().upload_folder(
                repo_id=repository, repo_type="dataset", folder_path=source, allow_patterns=new
            )
    return states


def pull(source: str, target: Path, *, trust: bool) -> dict[str, str]:
    """Merge from a directory, a packed study, or a dataset repository of the hub with either.

    Args:
        source: a directory, or `hub:OWNER/NAME`.
        target: a results directory.
        trust: copy the code of users' own methods too.

    Returns:
        What became of each run, by its path; see `merge`.
    """
    with opened(source) as directory:
        return merge(directory, target, trust=trust)


@contextmanager
def opened(source: str) -> Iterator[Path]:
    """Yield the directory of a study; one of the hub is downloaded for as long as it is open.

    Args:
        source: a directory, or `hub:OWNER/NAME`.
    """
    if not source.startswith(HUB):
        yield Path(source)
        return
    with TemporaryDirectory() as folder:
        with hub_errors(source, "see whether its name is right"):
            HfApi().snapshot_download(
                source.removeprefix(HUB),
                repo_type="dataset",
                local_dir=folder,
                allow_patterns=[PACKED, PREDICTIONS, "runs/*"],
                # No name may lead out of the folder.
                ignore_patterns="*..*",
            )
        yield Path(folder)


def push_model(folder: Path, to: str) -> None:
    """Upload an exported model to a model repository of the hub."""
    with hub_errors(to, _CREATE):
        HfApi().upload_folder(repo_id=to.removeprefix(HUB), folder_path=folder)
