"""Pack a study into two files, and copy runs between results directories and the Hugging Face hub.

Runs of others are harmless: only known files are copied, no link is followed, nothing is
overwritten and nothing executed.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import yaml

from hifi_cli.errors import MissingError, UsageError
from hifi_cli.files import atomic_path, file_digest, json_text
from hifi_cli.results.directory import DELTA
from hifi_cli.results.study import PACKED, PREDICTIONS, Study

HUB = "hub:"
_OWN_YAMLS = "own/*/*.yaml"
_FILES = ("config.yaml", "metrics.jsonl", "predictions*.jsonl", _OWN_YAMLS, "results.json")
_CODE = "own/methods/*.py"
# Two runs at one path that agree in them are the same run
_SAME = ("config_hash", "data", "backbone_weights", "scores")


def pack(source: Path, out: Path) -> int:
    """Write runs.jsonl, predictions.parquet and the users' own YAMLs; return the number of runs.

    Raises:
        MissingError: there is no run.
        UsageError: `out` exists.
    """
    study = Study(source)
    if not study.records:
        raise MissingError(f"no finished runs in {source}")
    if out.exists():
        raise UsageError(f"{out} exists; remove it, or name another directory with --out")
    lines, tables = [], [pd.DataFrame(columns=["run", "id", "label", "prediction", "logits"])]
    with atomic_path(out) as folder:
        folder.mkdir()
        for path, record in study.records.items():
            lines.append(json.dumps({"path": path, "record": record}) + "\n")
            if (table := study.predictions(path)) is not None:
                texts = {key: table[key].map(json.dumps) for key in ("label", "prediction", "logits")}
                tables.append(table.assign(run=path, **texts))
            _copy(_files(study, path, [_OWN_YAMLS]), source / path, folder / path)
        (folder / PACKED).write_text("".join(lines), encoding="utf-8")
        pd.concat(tables).to_parquet(folder / PREDICTIONS, index=False, compression="zstd")
    return len(lines)


def _unpack(study: Study, folder: Path) -> None:
    """Write the runs of a packed study as a results directory."""
    for path, record in study.records.items():
        study.result(path)  # refuses a path that is not the run's own and may lead out of the directory
        run = folder / path
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(yaml.safe_dump(record["config"], sort_keys=False))
        (run / "results.json").write_text(json_text(record))
        if (table := study.predictions(path)) is not None:
            rows = table[["id", "label", "prediction", "logits"]].to_dict("records")
            (run / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        _copy(_files(study, path, [_OWN_YAMLS]), study.directory / path, run)


def merge(
    source: Path,
    target: Path,
    *,
    only: Iterable[str] = (),
    weights: bool = False,
    trust: bool = False,
) -> dict[str, str]:
    """Copy the finished runs of a directory or a packed study that another directory lacks.

    Args:
        only: patterns of paths; empty: all runs.
        weights: copy the deltas too.
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
    if theirs.is_packed:
        with TemporaryDirectory() as folder:
            _unpack(theirs, Path(folder))
            return merge(Path(folder), target, only=only, weights=weights, trust=trust)
    states: dict[str, str] = {}
    for path, files in _chosen(theirs, only, weights=weights, trust=trust).items():
        place, record = target / path, theirs.records[path]
        if path in ours.records:
            is_same = all(ours.records[path].get(key) == record[key] for key in _SAME)
            states[path] = "same" if is_same else "conflict"
        elif place.exists():
            states[path] = "conflict"
        else:
            states[path] = "copied"
            with atomic_path(place) as folder_there:
                _copy(files, source / path, folder_there)
    return states


def _chosen(study: Study, only: Iterable[str], *, weights: bool, trust: bool) -> dict[str, list[Path]]:
    """The files of the runs to copy, by the run's path; see `merge`."""
    if study.is_packed:
        raise UsageError(f"{study.directory} is packed: send it with hf upload, or merge it into a directory")
    patterns = [*_FILES, *([_CODE] if trust else []), *([DELTA] if weights else [])]
    paths = [path for path in study.records if any(fnmatch(path, name) for name in only or ["*"])]
    if not paths:
        raise MissingError(f"no finished runs in {study.directory}{' that match --only' if only else ''}")
    return {path: _files(study, path, patterns) for path in paths}


def _files(study: Study, path: str, patterns: Iterable[str]) -> list[Path]:
    """The files of a run that match the patterns, from its directory on.

    Raises:
        UsageError: the run is damaged, a file is a link, or the weights are not the run's.
    """
    result, folder, root = study.result(path), study.directory / path, study.directory.resolve()
    files = [file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()]
    for file in files:
        if file.resolve() != root / file.relative_to(study.directory):
            raise UsageError(f"{file} is a link, or behind one; put the file itself there")
    has_delta = folder / DELTA in files
    if DELTA in patterns and result.delta_sha256 != (file_digest(folder / DELTA) if has_delta else None):
        raise UsageError(f"{folder / DELTA} is missing, or not the file that the run wrote; leave out --weights")
    return [file.relative_to(folder) for file in files]


def _copy(files: Iterable[Path], source: Path, target: Path) -> None:
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)


def push(source: Path, to: str, **choice: Any) -> dict[str, str]:
    """`merge` into a directory, or add the runs that a dataset repository of the hub lacks."""
    if not to.startswith(HUB):
        return merge(source, Path(to), **choice)
    chosen = _chosen(Study(source), **choice)
    with _hub(to) as (api, where):
        there = set(api.list_repo_files(**where))
        states = {path: "there" if f"{path}/results.json" in there else "copied" for path in chosen}
        new = [f"{path}/{file}" for path in chosen if states[path] == "copied" for file in chosen[path]]
        if new:
            message = f"hifi results push: {len(new)} files of runs"
            api.upload_folder(**where, folder_path=source, allow_patterns=new, commit_message=message)
    return states


def pull(source: str, target: Path, **choice: Any) -> dict[str, str]:
    """`merge` from a directory, a packed study, or a dataset repository of the hub with either."""
    if not source.startswith(HUB):
        return merge(Path(source), target, **choice)
    runs = [f"{pattern}/*" for pattern in choice["only"] or ["runs"]]
    without = ["*..*", *([] if choice["weights"] else [f"*/{DELTA}"])]
    with TemporaryDirectory() as folder:
        files = {"allow_patterns": [PACKED, PREDICTIONS, *runs], "ignore_patterns": without}
        with _hub(source) as (api, where):
            api.snapshot_download(**where, local_dir=folder, **files)
        return merge(Path(folder), target, **choice)


@contextmanager
def _hub(name: str) -> Iterator[tuple[Any, dict[str, str]]]:
    """A client of the hub, and the arguments that name a repository.

    Raises:
        MissingError: the hub is not available, or has no such repository.
    """
    from huggingface_hub import HfApi

    try:
        yield HfApi(), {"repo_type": "dataset", "repo_id": name.removeprefix(HUB)}
    except Exception as error:  # network errors have no common base class
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise MissingError(f"{name}: {reason}; log in (hf auth login), create it (hf repos create), or try again") from None
