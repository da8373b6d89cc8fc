"""Whether the files of a finished run agree with one another, checked without the model."""

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from hifi_cli.config import registry
from hifi_cli.errors import MissingError, SchemaError, UsageError
from hifi_cli.files import bytes_digest, digest, file_digest
from hifi_cli.records.run_directory import RunDirectory
from hifi_cli.records.run_files import RunResult, RunScores

_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class VerificationResult(StrEnum):
    """What a verification showed."""

    VERIFIED = "verified"
    DIFFERS = "differs"
    DIVERGED = "diverged"
    """The files are consistent; a run that diverged has no score that could be computed again."""
    NOT_VERIFIED = "not verified"
    """Weights, data or the backbone are missing here."""


def checksums_text(directory: RunDirectory) -> str:
    """The content of SHA256SUMS: the SHA-256 of every stored file, as `sha256sum --check` reads it.

    The delta is always in it: the same list then belongs to a copy with weights and to one without them.
    """
    digests = {file.relative_to(directory.path).as_posix(): file_digest(file) for file in directory.stored_files()}
    if sha256 := directory.read_result().delta_sha256:
        digests[directory.delta.name] = sha256
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(digests.items()))


def differing_checksums(directory: RunDirectory) -> list[str]:
    """The files of a run whose content is not that of SHA256SUMS; none without such a list. Weights may be missing.

    Raises:
        UsageError: a line of the list is damaged.
    """
    if not directory.checksums.is_file():
        return []
    names = []
    for line in directory.checksums.read_text(encoding="utf-8").splitlines():
        match = _LINE.fullmatch(line)
        if not match:
            raise UsageError(f"{directory.checksums} is damaged ({line[:80]!r}); delete it, or copy the run again")
        sha256, name = match.groups()
        path = directory.path / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UsageError(
                f"{directory.checksums} names a file outside of the run ({name}); delete it, or copy the run again"
            )
        if path.is_file() or path != directory.delta:
            names += [name] if not path.is_file() or file_digest(path) != sha256 else []
    return names


def problems(directory: RunDirectory, results_dir: Path | None = None) -> list[str]:
    """Everything in which the files of a finished run contradict one another; empty: they agree.

    Args:
        results_dir: the run must be at its configuration's path in this directory.

    Raises:
        MissingError: the run is not finished, or one of its files is missing.
        SchemaError: a version of hifi with another layout wrote it.
    """
    try:
        result = directory.read_result(results_dir)
        return [*_problems(directory, result)]
    except (MissingError, SchemaError):
        raise
    except UsageError as error:
        return [str(error)]


def _problems(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    for name in differing_checksums(directory):
        yield f"{name} is not the file that SHA256SUMS lists"
    yield from _problems_of_configuration(directory, result)
    manifest = directory.read_manifest()
    if manifest.data.fingerprint != result.data:
        yield "data: other fingerprints in manifest.json than in results.json"
    if result.heads_sha256 and (not manifest.heads or digest(manifest.heads, 64) != result.heads_sha256):
        yield "heads: those in manifest.json are not those of results.json"
    if result.precision != manifest.precision:
        yield f"precision: {manifest.precision} in manifest.json, {result.precision} in results.json"
    if result.delta_sha256 and directory.delta.is_file() and file_digest(directory.delta) != result.delta_sha256:
        yield f"{directory.delta.name} is not the file that the run wrote"
    if result.is_done:
        predictions = directory.read_predictions()
        if len(predictions) != result.n_examples.reported:
            yield f"predictions: {len(predictions)} rows, but results.json counts {result.n_examples.reported}"
        yield from _problems_of_epochs(directory, result)


def _problems_of_configuration(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """What results.json says about the configuration, compared with the parsed config.yaml."""
    with directory.opened() as config:
        pairs = {
            "config_hash": (result.config_hash, config.hash),
            "setting_hash": (result.setting_hash, config.setting_hash),
            "path": (str(result.run_path), str(config.run_path)),
            "report": (result.report, config.report),
            "selection": (result.selection, "few-shot" if config.shots else config.selection),
            "limit": (result.limit, config.limit),
        }
    pairs["config_sha256"] = (result.config_sha256, bytes_digest(directory.config_file.read_bytes()))
    for name, (stored, configured) in pairs.items():
        if stored != configured:
            yield f"{name}: {stored} in results.json, {configured} by config.yaml"


def _problems_of_epochs(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """The scores of results.json, compared with the epochs in metrics.jsonl."""
    epochs = directory.read_epochs()
    assert result.epochs
    assert result.scores
    if sorted(epochs) != list(range(1, result.epochs.total + 1)):
        yield f"epochs: {len(epochs)} in metrics.jsonl, {result.epochs.total} in results.json"
        return
    with directory.opened() as config:
        split_metrics = registry.load("tasks", config.task).get("split_metrics", {})
    stored = {result.primary_metric: result.scores} | {
        f"{split_metrics.get(f'validation_{split}', [result.primary_metric])[0]}_{split}": scores
        for split, scores in result.extra_validation.items()
    }
    for metric, scores in stored.items():
        is_complete = result.selection == "validation" or scores.max is not None
        by_epoch = {} if is_complete else {result.epoch(result.kept_score): result.metrics[metric]}
        by_epoch |= {number: line.metrics[metric] for number, line in epochs.items() if metric in line.metrics}
        required = set(epochs) if is_complete else {result.epochs.best, result.epochs.total}
        if not required <= set(by_epoch):
            yield f"{metric}: not in epoch {min(required - set(by_epoch))} of metrics.jsonl"
            continue
        best, total = result.epochs.best, result.epochs.total
        measured = RunScores.from_epochs(by_epoch, best=best, total=total, has_max=scores.max is not None)
        for (name, score), (_, measured_score) in zip(scores, measured, strict=True):
            if score != measured_score:
                yield f"{metric} {name}: {_number(score)} in results.json, {_number(measured_score)} in metrics.jsonl"


def _number(score: float | None) -> str:
    return "none" if score is None else f"{score:.6f}"
