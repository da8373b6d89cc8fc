"""Pack a study into two files, and copy runs between results directories and the Hugging Face hub.

Runs of others are harmless: only known files are copied, no link is followed, nothing is overwritten and nothing executed.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pandas as pd
import yaml

from hifi_cli.errors import ConflictError, HifiError, MissingError, RunFailed, UsageError
from hifi_cli.files import atomic_directory, atomic_path, digest, file_digest
from hifi_cli.results.directory import DELTA
from hifi_cli.results.record import RunResult
from hifi_cli.results.study import PACKED, PREDICTIONS, Study

HUB = "hub:"
_FILES = ("config.yaml", "metrics.jsonl", "predictions*.jsonl", "own/*/*.yaml", "results.json")
_CODE = "own/methods/*.py"
_PRECONDITION_FAILED = 412  # the hub's answer if there is a newer commit than `parent_commit`


def pack(source: Path, out: Path) -> int:
    """Write runs.jsonl, predictions.parquet and the users' own YAMLs of all finished runs; return the number of runs.

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
    with atomic_directory(out) as folder:
        for path, record in study.records.items():
            lines.append(json.dumps({"path": path, "record": record}) + "\n")
            if (table := study.predictions(path)) is not None:
                texts = {key: table[key].map(json.dumps) for key in ("label", "prediction", "logits")}
                tables.append(table.assign(run=path, **texts))
            for file in (source / path).glob("own/*/*.yaml"):
                _write(file, folder / file.relative_to(source))
        (folder / PACKED).write_text("".join(lines), encoding="utf-8")
        pd.concat(tables).to_parquet(folder / PREDICTIONS, index=False, compression="zstd")
    return len(lines)


@dataclass(frozen=True)
class MergedRun:
    """What became of a run; `files` are those that are new where it was copied to."""

    path: str
    state: Literal["copied", "same", "conflict", "refused"]
    files: tuple[str, ...] = ()
    problem: str = ""


def merge(
    source: Path,
    target: Path,
    *,
    only: Iterable[str] = (),
    weights: bool = False,
    trust: bool = False,
    dry_run: bool = False,
    known: Set[str] = frozenset(),
) -> list[MergedRun]:
    """Copy the finished runs of a results directory or a packed study that another directory does not have.

    Two runs at one path are the same if configuration, data, weights and scores agree. A run that was there before gets
    files that it lacks, its weights for example.

    Args:
        only: patterns of paths; empty: all runs.
        weights: copy the deltas too.
        trust: copy the code of users' own methods too.
        dry_run: copy nothing.
        known: files that the target has besides those on this disk.

    Raises:
        MissingError: there is no run.
        UsageError: the target is packed or the source itself, or the source is damaged.
    """
    ours, theirs = Study(target), Study(source)
    if ours.is_packed or target.resolve() == source.resolve():
        raise UsageError(f"{target} is {'a packed study' if ours.is_packed else 'the source'}: name another directory")
    patterns = list(only) or ["*"]
    paths = [path for path in theirs.records if any(fnmatch(path, pattern) for pattern in patterns)]
    if not paths:
        raise MissingError(f"no finished runs in {source}{' that match --only' if only else ''}")
    merged = []
    for path in paths:
        try:
            contents = _contents(theirs, path, weights=weights, trust=trust)
            new = _new_files(ours, path, theirs.records[path], contents, known)
            if new and not dry_run:
                _add(target / path, {name: contents[name] for name in new})
            merged.append(MergedRun(path, "copied" if new else "same", tuple(new)))
        except ConflictError as error:
            merged.append(MergedRun(path, "conflict", problem=str(error)))
        except (UsageError, ValueError, KeyError, TypeError) as error:
            merged.append(MergedRun(path, "refused", problem=str(error)))
    return merged


def _contents(study: Study, path: str, *, weights: bool, trust: bool) -> dict[str, Path | str]:
    """The files of a run, or their texts where they are packed, by name.

    Raises:
        UsageError: the run is damaged or belongs at another path, a file is a link, or the weights are not the run's.
    """
    result = study.result(path)
    if result.run_path.as_posix() != path:  # also a path that leads out of the directory
        raise UsageError(f"it holds the run that belongs at {result.run_path}")
    folder, root = study.directory / path, study.directory.resolve()
    patterns = (*_FILES, *([_CODE] if trust else []), *([DELTA] if weights else []))
    files = [file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()]
    for file in files:
        if file.resolve() != root / file.relative_to(study.directory):
            raise UsageError(f"{file} is a link, or behind one; put the file itself there")
    contents: dict[str, Path | str] = {file.relative_to(folder).as_posix(): file for file in files}
    if study.is_packed:
        contents |= _unpacked(study, path, result)
    elif weights and result.delta_sha256 and DELTA not in contents:
        raise UsageError(f"no {folder / DELTA}, and --weights asks for it")
    if DELTA in contents and file_digest(folder / DELTA) != result.delta_sha256:
        raise UsageError(f"{folder / DELTA} is not the file that the run wrote")
    return contents


def _unpacked(study: Study, path: str, result: RunResult) -> dict[str, str]:
    texts = {
        "config.yaml": yaml.safe_dump(result.config, sort_keys=False),
        "results.json": json.dumps(study.records[path], indent=1) + "\n",
    }
    if (table := study.predictions(path)) is not None:
        rows = table[["id", "label", "prediction", "logits"]].to_dict("records")
        texts["predictions.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    return texts


def _new_files(ours: Study, path: str, theirs: dict[str, Any], names: Iterable[str], known: Set[str]) -> list[str]:
    """The files of a run that our directory lacks.

    Raises:
        ConflictError: another run is at its path, or one that is not finished.
    """
    folder = ours.directory / path
    present = {file.relative_to(folder).as_posix() for file in folder.rglob("*")}
    present |= {file.removeprefix(f"{path}/") for file in known if file.startswith(f"{path}/")}
    if path not in ours.records and present:
        raise ConflictError(f"{folder} holds a run that is not finished; finish or remove it")
    if path in ours.records and _digest(ours.records[path]) != _digest(theirs):
        raise ConflictError(f"{folder} holds another run; move one of the two, or choose with --only")
    return [name for name in names if name not in present]


def _digest(record: dict[str, Any]) -> str:
    """What makes two runs at one path the same run."""
    return digest([record[key] for key in ("config_hash", "data", "backbone_weights", "scores")])


def _add(folder: Path, contents: dict[str, Path | str]) -> None:
    """Write files into the directory of a run: a new directory appears with all of them, or not at all."""
    if folder.exists():
        for name, content in contents.items():
            with atomic_path(folder / name) as temporary:
                _write(content, temporary)
        return
    with atomic_directory(folder) as temporary:
        for name, content in contents.items():
            _write(content, temporary / name)


def _write(content: Path | str, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        to.write_text(content, encoding="utf-8")
    else:
        shutil.copyfile(content, to)


def push(source: Path, to: str, **choice: Any) -> list[MergedRun]:
    """`merge` into another results directory or into a dataset repository of the hub, there as one commit.

    Raises:
        ConflictError: somebody else's commit came in between.
    """
    if not to.startswith(HUB):
        return merge(source, Path(to), **choice)
    with _repository(to) as (api, where), TemporaryDirectory() as folder:
        known = set(api.list_repo_files(**where))
        results = {"allow_patterns": ["runs/*/results.json"], "ignore_patterns": ["*..*"]}
        api.snapshot_download(**where, local_dir=folder, **results)
        merged = merge(source, Path(folder), **choice, known=known)
        new = {f"{run.path}/{name}" for run in merged for name in run.files}
        for file in Path(folder).rglob("*"):
            if file.is_file() and file.relative_to(folder).as_posix() not in new:
                file.unlink()  # what is in the repository stays as it is
        if new and not choice["dry_run"]:
            where["parent_commit"] = where.pop("revision")
            message = f"hifi results push: {len(new)} files of runs"
            api.upload_folder(**where, folder_path=folder, commit_message=message)
    return merged


def pull(source: str, target: Path, **choice: Any) -> list[MergedRun]:
    """`merge` from another results directory, a packed study, or a dataset repository of the hub that holds either."""
    if not source.startswith(HUB):
        return merge(Path(source), target, **choice)
    runs = [f"{pattern}/*" for pattern in choice["only"] or ["runs"]]
    with _repository(source) as (api, where), TemporaryDirectory() as folder:
        api.snapshot_download(
            **where,
            local_dir=folder,
            allow_patterns=[PACKED, PREDICTIONS, *runs],
            ignore_patterns=["*..*", *([] if choice["weights"] else [f"*/{DELTA}"])],
        )
        return merge(Path(folder), target, **choice)


@contextmanager
def _repository(name: str) -> Iterator[tuple[Any, dict[str, str]]]:
    """A client of the hub, and the arguments that name a repository's newest commit.

    Raises:
        MissingError: there is no such repository.
        ConflictError: a push meets a commit that came in between.
        RunFailed: the hub is not available.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    api: Any = HfApi()
    where = {"repo_type": "dataset", "repo_id": name.removeprefix(HUB)}
    try:
        yield api, {**where, "revision": str(api.repo_info(**where, timeout=10).sha)}
    except HifiError:
        raise
    except OfflineModeIsEnabled:
        raise MissingError(f"{name}: HF_HUB_OFFLINE forbids network access; unset it") from None
    except RepositoryNotFoundError:
        raise MissingError(
            f"no dataset repository {name} that you may use: log in (hf auth login), or create it"
            f" (hf repos create {where['repo_id']} --type dataset)"
        ) from None
    except Exception as error:  # network errors have no common base class
        response = getattr(error, "response", None)
        if getattr(response, "status_code", None) == _PRECONDITION_FAILED:
            raise ConflictError(f"{name} has a newer commit than the one read; repeat") from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise RunFailed(f"{name}: {reason}; repeat the command") from None
