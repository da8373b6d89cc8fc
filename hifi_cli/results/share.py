"""Pack a study into two files, and copy runs between results directories and the Hugging Face hub.

Runs of others are harmless: only known files are copied, no link is followed, nothing is
overwritten and nothing executed.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import yaml
from huggingface_hub import HfApi

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path, json_text
from hifi_cli.results.study import PACKED, PREDICTIONS, Study

HUB = "hub:"
_OWN_YAMLS = "own/*/*.yaml"
_FILES = ("config.yaml", "metrics.jsonl", "predictions*.jsonl", "delta.safetensors", _OWN_YAMLS, "results.json")
_CODE = "own/methods/*.py"
# Two runs at one path that agree in them are the same run
_SAME = ("config_hash", "data", "backbone_weights", "scores")


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
                texts = {key: table[key].map(json.dumps) for key in ("label", "prediction", "logits")}
                tables.append(table.assign(run=path, **texts))
            _copy(files, source / path, folder / path)
        (folder / PACKED).write_text("".join(lines), encoding="utf-8")
        pd.concat(tables).to_parquet(folder / PREDICTIONS, index=False, compression="zstd")
    return len(lines)


def merge(source: Path, target: Path, *, trust: bool = False) -> dict[str, str]:
    """Copy the finished runs of a directory or a packed study that another directory lacks.

    Args:
        trust: copy the code of users' own methods too.

    Returns:
        What became of each run, by its path; a conflict is another run at its path, or one that is
        not finished.

    Raises:
        MissingError: there is no run.
        UsageError: a run is damaged, or the target is packed; nothing is copied.
    """
    theirs, ours = Study(source), Study(target)
    if ours.is_packed:
        raise UsageError(f"{target} is a packed study: name another directory")
    states: dict[str, str] = {}
    for path, files in _files(theirs, [*_FILES, *([_CODE] if trust else [])]).items():
        if path in ours.records or (target / path).exists():
            own, other = ours.records.get(path, {}), theirs.records[path]
            states[path] = "same" if all(own.get(key) == other[key] for key in _SAME) else "conflict"
        else:
            with atomic_path(target / path) as folder:
                _copy(files, source / path, folder)
                if theirs.is_packed:
                    _unpack(theirs, path, folder)
            states[path] = "copied"
    return states


def _unpack(study: Study, path: str, folder: Path) -> None:
    """Write a run of a packed study as the files of a run."""
    folder.mkdir(exist_ok=True)
    record, table = study.records[path], study.predictions(path)
    (folder / "config.yaml").write_text(yaml.safe_dump(record["config"], sort_keys=False))
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
    if not study.records:
        raise MissingError(f"no finished runs in {study.directory}")
    found = {}
    for path in study.records:
        study.result(path)  # refuses a path that may lead out of the directory
        folder, place = study.directory / path, study.directory.resolve() / path
        files = [file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()]
        found[path] = [file.relative_to(folder) for file in files]
        for file in found[path]:
            if (folder / file).resolve() != place / file:
                raise UsageError(f"{folder / file} is a link, or behind one; put the file itself there")
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
        raise UsageError(f"{source} is packed: send it with hf upload, or merge it into a directory")
    runs = _files(study, [*_FILES, *([_CODE] if trust else [])])
    repository = to.removeprefix(HUB)
    try:
        there = set(HfApi().list_repo_files(repository, repo_type="dataset"))
        new = {path: files for path, files in runs.items() if f"{path}/results.json" not in there}
        names = [f"{path}/{file}" for path, files in new.items() for file in files]
        if new:
            HfApi().upload_folder(repo_id=repository, repo_type="dataset", folder_path=source, allow_patterns=names)
    except Exception as error:  # network errors have no common base class
        raise _hub_error(to, error) from None
    return {path: "copied" if path in new else "there" for path in runs}


def pull(source: str, target: Path, *, trust: bool = False) -> dict[str, str]:
    """`merge` from a directory, a packed study, or a dataset repository of the hub with either."""
    if not source.startswith(HUB):
        return merge(Path(source), target, trust=trust)
    with TemporaryDirectory() as folder:
        try:
            HfApi().snapshot_download(
                source.removeprefix(HUB),
                repo_type="dataset",
                local_dir=folder,
                allow_patterns=[PACKED, PREDICTIONS, "runs/*"],
                ignore_patterns="*..*",
            )
        except Exception as error:  # network errors have no common base class
            raise _hub_error(source, error) from None
        return merge(Path(folder), target, trust=trust)


def _hub_error(name: str, error: Exception) -> MissingError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return MissingError(f"{name}: {reason}; log in (hf auth login), create it (hf repos create), or try again")
