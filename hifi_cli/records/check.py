"""What `hifi results check` finds: runs that cannot be what their record says.

A run is judged by its own record, by the files beside it, by its predictions, and by the other runs
of the study: runs on the same data have the same rows and the same correct labels.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.config.base import flatten
from hifi_cli.config.registry import read_yaml
from hifi_cli.config.run_config import config_hash_of
from hifi_cli.errors import HifiError, MissingError
from hifi_cli.files import MAX_LINES_BYTES, digest, file_digest, read_file, read_jsonl
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import EpochMetrics, Pruned, RunResult
from hifi_cli.records.study import PACKED, PREDICTIONS, Study
from hifi_cli.tasks import scores, task_spec
from hifi_cli.tasks.metrics import METRICS, lowest_score
from hifi_cli.tasks.task_spec import TaskSpec
from hifi_cli.text import abbreviate, counted_noun

_TOLERANCE = 1e-6  # of scores from 0 to 1: less than the weight of one row of any task
# Trained entries of a weight are stored with a mask of all its entries; fewer are trained by no method
_MOST_MASKED = 4096
# What reading a file of another program's making may raise
_UNREADABLE = (HifiError, OSError, KeyError, TypeError, ValueError, AttributeError)
# Keys of a record that repeat one of its configuration
_REPEATED = (
    *("task", "method", "protocol", "seed", "shots", "limit", "variant", "report"),
    "gradient_accumulation_steps",
)


@dataclass(frozen=True)
class CheckedStudy:
    """What a check found.

    Attributes:
        runs: how many finished runs there are.
        recomputed: of how many the score was recomputed from the predictions.
        not_recomputed: why the score of a run with one was not, by the run's path.
        findings: what is wrong, by the path of a run, or by the name of a packed study's file.
        pruned: the runs whose weights `hifi results prune` dropped.
    """

    runs: int
    recomputed: int
    not_recomputed: dict[str, str]
    findings: dict[str, list[str]]
    pruned: list[str] = field(default_factory=list)


def check(directory: Path) -> CheckedStudy:
    """Check all finished runs of a results directory or a packed study.

    No code of a run is executed, and a damaged file hides nothing that another one shows.

    Raises:
        MissingError: there is no run.
    """
    study = Study(directory)
    if not study.results and not study.damaged:
        raise MissingError(f"no finished runs in {directory}")
    checking = _Check(study)
    for path, reason in study.damaged.items():
        checking.add(path, f"is damaged ({reason})")
    checking.find_repeated_keys()
    checking.find_damaged_predictions()
    for path, result in study.results.items():
        checking.of_run(path, result)
    checking.compare_runs()
    findings = {path: checking.findings[path] for path in sorted(checking.findings)}
    runs = len(study.results) + len(study.damaged)
    pruned = [path for path in study.results if _is_pruned(study, path)]
    return CheckedStudy(runs, checking.recomputed, checking.not_recomputed, findings, pruned)


def _is_pruned(study: Study, path: str) -> bool:
    """Whether `hifi results prune` dropped the weights of a run."""
    directory = RunDirectory(study.directory / path)
    return directory.pruned.is_file() and not directory.delta.is_file()


@dataclass
class _Check:
    """A check of one study.

    Attributes:
        shared: what runs must agree in. By what the value is called and what it must be equal for,
            the value of each run by its path.
        with_weights: the first run with each delta, by the delta's digest.
    """

    study: Study
    findings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    recomputed: int = 0
    not_recomputed: dict[str, str] = field(default_factory=dict)
    has_predictions: bool = True
    shared: dict[tuple[str, Hashable], dict[str, Hashable]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    with_weights: dict[str, tuple[str, RunResult]] = field(default_factory=dict)

    def add(self, path: str, *problems: str) -> None:
        """Keep what is wrong with a run."""
        self.findings[path] += problems

    def attempt(self, path: str, find: Callable[..., Iterator[str]], *of: Any) -> None:
        """Keep what a generator finds, up to where a damaged part stops it, which is kept too."""
        try:
            for problem in find(*of):
                self.add(path, problem)
        except _UNREADABLE as error:
            reason = str(error)
            if isinstance(error, KeyError):
                reason = f"no {error}"
            self.add(path, f"is damaged ({reason})")

    def find_repeated_keys(self) -> None:
        """Find records that have a key twice: programs differ in which of the two they read."""
        if not self.study.is_packed:
            for path in self.study.results:
                file = RunDirectory(self.study.directory / path).results
                self.attempt(path, _of_repeated_keys, partial(read_file, file))
            return
        lines = read_file(self.study.directory / PACKED, MAX_LINES_BYTES).splitlines()
        for index, line in enumerate(lines, start=1):
            name = f"{PACKED}, line {index}"
            if name not in self.study.damaged:
                self.attempt(name, _of_repeated_keys, lambda text=line: text)

    def find_damaged_predictions(self) -> None:
        """Say once that a packed study's predictions are damaged, and not for each of its runs."""
        if not self.study.is_packed:
            return
        try:
            self.study.predictions("")
        except _UNREADABLE as error:
            self.has_predictions = False
            self.add(PREDICTIONS, f"is damaged ({error})")

    def of_run(self, path: str, result: RunResult) -> None:
        """Check one run: its record, the files beside it, its predictions, its weights."""
        self.attempt(path, _of_configuration, result)
        self.attempt(path, _of_numbers, result)
        self.attempt(path, _of_epochs, result)
        self.attempt(path, self.of_weights, path, result)
        if not self.study.is_packed:
            directory = RunDirectory(self.study.directory / path)
            self.attempt(path, directory.names_outside)
            self.attempt(path, _of_config_file, directory, result)
            self.attempt(path, _of_metrics_file, directory, result)
            self.attempt(path, _of_delta, directory, result)
        self.share(path, result)
        self.attempt(path, self.of_task, path, result)

    def of_weights(self, path: str, result: RunResult) -> Iterator[str]:
        """Find the weights of another run under this one's name."""
        first, other = self.with_weights.setdefault(result.delta_sha256 or path, (path, result))
        # Variants of one method and seed may train the same, as when they select the same heads
        keys = ("task", "backbone", "method", "seed")
        if any(getattr(result, key) != getattr(other, key) for key in keys):
            yield f"has the weights of {first} (delta_sha256)"

    def of_task(self, path: str, result: RunResult) -> Iterator[str]:
        """Check what the task says of a run, and its predictions; the task is the run's own YAML where it keeps one."""
        if not result.is_done:
            return
        self.not_recomputed[path] = "the task or the predictions cannot be read"
        # No code is executed here
        name = RunDirectory(self.study.directory / path).user_name("tasks", result.task, trust=True)
        spec = task_spec.load(name).with_primary(result.primary_metric)
        yield from _of_task(result, spec)
        if not self.has_predictions:
            return
        table = self.study.predictions(path)
        if table is None:
            self.not_recomputed[path] = "no predictions are stored"
            yield "has no predictions, and a score"
            return
        self.share_rows(path, result, table)
        yield from _of_predictions(result, spec, table)
        if spec.primary in METRICS and METRICS[spec.primary].needs == "texts":
            self.not_recomputed[path] = f"{spec.primary} needs texts, which predictions do not hold"
        elif spec.primary not in spec.metrics:
            self.not_recomputed[path] = f"{spec.primary} is a metric of the evaluate library"
        else:
            del self.not_recomputed[path]
            self.recomputed += 1

    # --- what runs have in common

    def share(self, path: str, result: RunResult) -> None:
        """Note what a run's record must have in common with others."""
        data, rows = result.data.get("train"), result.n_examples
        heads = digest(result.heads)
        total = rows.get("train", 0)
        if result.selection != "validation":  # a part of the train split selects the epoch
            total += rows.get("selection", 0)
        same_rows = (result.task, result.task_digest, data, result.limit, result.shots)
        self.shared["train rows (n_examples)", same_rows][path] = total
        params = result.params
        # With masks in the delta, each run may have chosen another number of entries to train
        if params.stored_bytes != 4 * params.stored:
            return
        counts = (params.trainable, params.trainable_backbone, params.total)
        same_model = (result.setting_hash, result.backbone_weights, data, result.method_code, heads)
        self.shared["trained or total parameters (params)", same_model][path] = counts

    def share_rows(self, path: str, result: RunResult, table: pd.DataFrame) -> None:
        """Note the ids and correct labels of a run's predictions."""
        rows = digest([table["id"].tolist(), table["label"].tolist()])
        data = result.data.get(result.split)
        same_rows = (result.task, result.task_digest, data, result.limit)
        self.shared["ids or correct labels", same_rows][path] = rows

    def compare_runs(self) -> None:
        """Find the runs that differ from most of the others in what all of them must share.

        Where no value is that of most runs, every run of the group is named: one of them is wrong.
        """
        for (what, _), values in self.shared.items():
            counts = Counter(values.values()).most_common(2)
            if len(counts) < 2:
                continue
            (usual, most), (_, second) = counts
            for path, value in values.items():
                if value == usual and most > second:
                    continue
                other = next(at for at in values if values[at] != value)
                why = "same settings" if "parameters" in what else "same data"
                self.add(path, f"has other {what} than {other}, which has the {why}")


def _of_repeated_keys(read: Callable[[], bytes]) -> Iterator[str]:
    """The keys that an object of a JSON text has more than once."""
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        repeated.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    json.loads(read(), object_pairs_hook=note)
    if repeated:
        yield f"has a key twice ({abbreviate(repeated)})"


# --- the record alone


def _of_configuration(result: RunResult) -> Iterator[str]:
    """What the record says of its run, and its configuration otherwise."""
    config = result.config
    if config_hash_of(config) != result.config_hash:
        yield "config_hash is not that of its configuration"
    without_seed = {key: value for key, value in config.items() if key != "seed"}
    if config_hash_of(without_seed) != result.setting_hash:
        yield "setting_hash is not that of its configuration"
    stated = {key: getattr(result, key) for key in _REPEATED}
    stated["backbone"] = result.backbone
    expected = {key: config.get(key, stated[key]) for key in _REPEATED}
    expected["backbone"] = config["backbone"]["name"]
    stated["selection"] = result.selection
    expected["selection"] = "few-shot" if config.get("shots") else config["selection"]
    stated["precision"] = result.precision
    # `auto` is what the hardware has
    if config["precision"] == "auto":
        expected["precision"] = result.precision
    else:
        expected["precision"] = config["precision"]
    for key, value in stated.items():
        if value != expected[key]:
            yield f"{key} is {value}, and in its configuration {expected[key]}"
    if config.get("primary_metric") not in (None, result.primary_metric):
        yield f"primary_metric is {result.primary_metric}, and in its configuration {config['primary_metric']}"


def _of_numbers(result: RunResult) -> Iterator[str]:
    """Counts that cannot be: below zero, above the whole, or in contradiction to one another."""
    params, rows = result.params, result.n_examples
    sizes = {
        **{f"params.{key}": value for key, value in params.model_dump().items()},
        **{f"n_examples.{key}": value for key, value in rows.items()},
        "time_s": result.time_s or 0.0,
        "wall_s": result.wall_s,
        "peak_memory_bytes": result.peak_memory_bytes,
        "delta_bytes": result.delta_bytes or 0,
    }
    for name, size in sizes.items():
        if size < 0:
            yield f"{name} is {size:,}"
    for split, cut in (result.truncated or {}).items():
        if not 0 <= cut <= rows[split]:
            yield f"truncated.{split} is {cut:,} of {counted_noun(rows[split], 'row')}"
    if params.trainable_backbone > params.trainable:
        yield f"params: {params.trainable_backbone:,} trained in the backbone, and {params.trainable:,} in all"
    others = params.stored_bytes - 4 * params.stored
    if params.stored_bytes < 2 * params.stored or others > _MOST_MASKED * params.stored:
        yield f"params: {params.stored:,} stored numbers do not have {params.stored_bytes:,} bytes"
    if result.delta_bytes is not None and result.delta_bytes < params.stored_bytes:
        yield f"delta_bytes is {result.delta_bytes:,}, and stored_bytes {params.stored_bytes:,}"


def _of_epochs(result: RunResult) -> Iterator[str]:
    """Scores that the metrics of the epochs contradict."""
    if not result.is_done:
        present = ("scores", "epochs", "metrics", "time_s", "delta_sha256")
        if held := [key for key in present if getattr(result, key)]:
            yield f"is {result.status}, and has {' and '.join(held)}"
        return
    assert result.epochs
    assert result.scores
    lines, primary, epochs = result.epoch_metrics, result.primary_metric, result.epochs
    total, patience = result.config["epochs"], result.config.get("patience")
    if patience:
        total = min(total, epochs.best + patience)
    if [line.epoch for line in lines] != list(range(1, total + 1)):
        yield f"has metrics of {len(lines)} epochs, and its configuration {total} epochs"
    if not epochs.total == epochs.last == total:
        yield f"epochs: {epochs.total} in all and {epochs.last} as the last, and by its configuration {total}"
    by_epoch = {line.epoch: line.metrics.get(primary) for line in lines}
    by_epoch[result.epoch(result.kept_score)] = result.metrics[primary]
    for name in ("last", "best", "max"):
        stored, computed = getattr(result.scores, name), by_epoch.get(getattr(epochs, name))
        if stored is not None and computed is not None and abs(stored - computed) > _TOLERANCE:
            yield f"{name} is {stored:.4f}, and by its epoch metrics {computed:.4f}"
    known = [score for score in by_epoch.values() if score is not None]
    if result.scores.max is not None and max(known) - result.scores.max > _TOLERANCE:
        yield f"max is {result.scores.max:.4f}, and an epoch has {max(known):.4f}"
    yield from _of_best_epoch(result, lines)
    for line in lines:
        kept = line.epoch == result.epoch(result.kept_score)
        for name, value in line.metrics.items():
            if kept and abs(value - result.metrics.get(name, value)) > _TOLERANCE:
                yield f"{name} is {result.metrics[name]:.4f}, and {value:.4f} in the metrics of its epoch"


def _of_best_epoch(result: RunResult, lines: Sequence[EpochMetrics]) -> Iterator[str]:
    """A later epoch that beats the best one by the score that selects it.

    An earlier one may: epochs of a stage before the last are not selected.
    """
    assert result.epochs
    best = result.epochs.best
    by_epoch: dict[int, float] = {}
    for line in lines:
        if line.selection is not None or result.primary_metric in line.metrics:
            by_epoch[line.epoch] = line.selecting_score(result.primary_metric)
    if best not in by_epoch:
        return
    for epoch, score in by_epoch.items():
        if epoch > best and score - by_epoch[best] > _TOLERANCE:
            yield f"epoch {best} is the best, and epoch {epoch} has {score:.4f} where it has {by_epoch[best]:.4f}"
            return


# --- the files beside the record


def _of_config_file(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """Settings of config.yaml, which repeats a run, that are not those of the run."""
    if not directory.config_file.is_file():
        return
    there, here = flatten(read_yaml(directory.config_file)), flatten(result.config)
    keys = [key for key in {**here, **there} if there.get(key) != here.get(key)]
    if keys:
        yield f"config.yaml has other settings than its record ({abbreviate(keys)})"


def _of_metrics_file(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """Epochs in metrics.jsonl that are not those of the record."""
    if not directory.metrics.is_file():
        return
    lines = [line for line in read_jsonl(directory.metrics) if "epoch" in line]
    recorded = [line.model_dump(exclude_none=True) for line in result.epoch_metrics]
    if lines != recorded:
        yield "epoch_metrics are not those of metrics.jsonl"


def _of_delta(directory: RunDirectory, result: RunResult) -> Iterator[str]:
    """Weights on the disk that are not those of the record."""
    if not directory.delta.is_file():
        if directory.pruned.is_file():
            pruned = Pruned.read(directory.pruned)
            if pruned.delta_sha256 != result.delta_sha256:
                yield "pruned.json is of other weights than those of the record (delta_sha256)"
        return
    if file_digest(directory.delta) != result.delta_sha256:
        yield "delta.safetensors is not the file that the run wrote (delta_sha256)"
        return
    if directory.delta.stat().st_size != result.delta_bytes:
        yield f"delta_bytes is {result.delta_bytes}, and the file has {directory.delta.stat().st_size}"
    numbers, content = _stored_in(directory.delta)
    stated = (result.params.stored, result.params.stored_bytes)
    if (numbers, content) != stated:
        yield (
            f"params: {stated[0]:,} stored numbers in {stated[1]:,} bytes, and in delta.safetensors"
            f" {numbers:,} in {content:,}"
        )


def _stored_in(delta: Path) -> tuple[int, int]:
    """How many floating-point numbers a safetensors file has, and the bytes of all its tensors; reads its header alone."""
    with delta.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    numbers = content = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        start, end = tensor["data_offsets"]
        content += end - start
        if "F" in tensor["dtype"]:  # F32, F16, BF16
            numbers += int(np.prod(tensor["shape"], dtype=np.int64))
    return numbers, content


# --- the task and the predictions


def _of_task(result: RunResult, spec: TaskSpec) -> Iterator[str]:
    """Rows that are missing, and scores outside of their range."""
    rows = result.n_examples
    counts = {"validation": rows["reported"]}
    if result.shots is None:
        counts["train"] = rows["train"]
        if result.selection == "holdout":
            counts["train"] += rows["selection"]
    for split, count in counts.items():
        official = spec.rows.get(split, 0)
        if result.limit is None and count < official:
            yield f"{count:,} of {official:,} rows of {split}, and limit is not set"
    for name, value in result.metrics.items():
        if not lowest_score(name) <= value <= 1 and not spec.evaluate:
            yield f"{name} {value:g} is outside its range"


def _of_predictions(result: RunResult, spec: TaskSpec, table: pd.DataFrame) -> Iterator[str]:
    """What does not follow from the stored predictions."""
    if len(table) != result.n_examples["reported"]:
        yield f"has predictions of {len(table)} of {result.n_examples['reported']} rows (n_examples)"
    repeated = table["id"][table["id"].duplicated()]
    if len(repeated):
        yield f"has {counted_noun(len(repeated), 'row')} twice (id {abbreviate([*repeated])})"
    rules = spec.rules
    rows = [rules.row_of_stored(row.id, row.label) for row in table.itertuples()]
    predictions = rules.predictions_of_stored(table["prediction"].tolist())
    if rules.is_collapsed(predictions) != result.collapsed:
        yield f"collapsed is {result.collapsed}, and its predictions say {not result.collapsed}"
    if result.classes:
        columns = {"label": result.classes.labels, "prediction": result.classes.predicted}
        for column, counts in columns.items():
            if {word: rows for word, rows in counts.items() if rows} != Counter(table[column]):
                yield f"classes has other numbers of rows than its predictions (by {column})"
    names = [name for name in spec.metrics if METRICS[name].needs != "texts"]
    if names:
        computable = spec.model_copy(
            update={"metrics": names, "primary": names[0], "evaluate": None}
        )
        for name, score in scores.compute(computable, rows, predictions).items():
            if abs(score - result.metrics[name]) > _TOLERANCE:
                yield f"{name} is {result.metrics[name]:.4f}, and by its predictions {score:.4f}"
    unlike = rules.contradicts_logits(predictions, table["logits"].tolist())
    if unlike.any():
        ids = table["id"][unlike]
        count = counted_noun(len(ids), "prediction")
        yield f"{count} not those of the logits (id {abbreviate([*ids])})"
