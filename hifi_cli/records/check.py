"""Find runs for `hifi results check`: runs that cannot be what their record says.

A run is judged by its own record, by the files beside it, by its predictions, and by the other runs
of the study: runs on the same data have the same rows and the same correct labels.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hifi_cli.digests import digest
from hifi_cli.errors import HifiError, MissingError
from hifi_cli.files import MAX_LINES_BYTES, read_lines
from hifi_cli.records import (
    check_files,
    check_predictions,
    check_record,
    check_training,
    figure_runs,
)
from hifi_cli.records.layout import RunDirectory
from hifi_cli.records.record import RunResult, labelled_splits
from hifi_cli.records.stored import PACKED, finished_runs
from hifi_cli.records.study import PREDICTIONS, Study
from hifi_cli.tasks import task_spec
from hifi_cli.tasks.task_spec import TaskSpec

# Errors of reading a file that another program may have written: it may hold anything.
_UNREADABLE = (
    HifiError,
    OSError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
)
# Fields of the record that decide the numbers of all runs of one protocol, encoder and task.
# Runs that differ in one may each be what they say, and are in no mean together.
_INPUTS = ("data", "backbone_weights", "task_digest")
# Runs whose configurations differ in the seed alone share these fields besides.
_INPUTS_OF_SETTING = ("draws", "method_code", "heads_sha256")


@dataclass(frozen=True)
class CheckedStudy:
    """The findings of a check.

    Attributes:
        runs: how many finished runs there are.
        recomputed: of how many the score was recomputed from the predictions.
        not_recomputed: why the score of a run with one was not, by the run's path.
        findings: what is wrong, by the path of a run, or by the name of a packed study's or a
            figure's file.
        differing: the runs with other inputs than most of the runs beside them, by the run's path.
            Each may be what it says, and tables leave it out.
        pruned: the runs whose weights `hifi results prune` dropped.
        figures_without_runs: the CSVs of figures that do not say which runs they rest on.
    """

    runs: int
    recomputed: int
    not_recomputed: dict[str, str]
    findings: dict[str, list[str]]
    differing: dict[str, list[str]] = field(default_factory=dict)
    pruned: list[str] = field(default_factory=list)
    figures_without_runs: list[str] = field(default_factory=list)


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
    unread = checking.find_unread_runs()
    for path, result in study.results.items():
        checking.check_run(path, result)
    checking.compare_runs()
    checking.compare_inputs()
    checking.compare_starts()
    checking.check_figures()
    return CheckedStudy(
        runs=len(study.results) + len(study.damaged) + len(unread),
        recomputed=checking.recomputed,
        not_recomputed=checking.not_recomputed,
        findings={path: checking.findings[path] for path in sorted(checking.findings)},
        differing={path: checking.differing[path] for path in sorted(checking.differing)},
        pruned=[path for path in study.results if _is_pruned(study, path)],
        figures_without_runs=checking.figures_without_runs,
    )


def _is_pruned(study: Study, path: str) -> bool:
    """Return whether `hifi results prune` dropped the weights of a run."""
    directory = RunDirectory(study.directory / path)
    return directory.pruned.is_file() and not directory.delta.is_file()


def _are_two_trainings(result: RunResult, other: RunResult) -> bool:
    """Return whether two runs cannot have trained the same.

    Variants of one method and seed may, and so may two rankings that select the same heads. One
    training split, one encoder and one file of a user's own code may have two names.
    """
    has_same_rows = result.data.get("train") == other.data.get("train")
    has_same_weights = result.backbone_weights == other.backbone_weights
    has_same_heads = result.heads is not None and result.heads == other.heads
    has_same_code = result.method_code is not None and result.method_code == other.method_code
    may_be_same = (
        result.seed == other.seed,
        result.task == other.task or has_same_rows,
        result.backbone == other.backbone or has_same_weights,
        result.method == other.method or has_same_heads or has_same_code,
    )
    return not all(may_be_same)


@dataclass
class _Check:
    """A check of one study.

    Attributes:
        study: what is checked.
        findings, recomputed, not_recomputed, differing, figures_without_runs: see `CheckedStudy`.
        has_predictions: whether the predictions of a packed study can be read.
        shared: the groups of runs that must share a value: of each group the value of each run, by
            its path. The key of a group says what the value is, why it is shared, and what the runs of
            the group have in common.
        path_by_weights: the path of the first run with each delta, by the delta's digest.
        path_by_logits: that of the first run with each table of logits, by the digest of these.
    """

    study: Study
    findings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    recomputed: int = 0
    not_recomputed: dict[str, str] = field(default_factory=dict)
    differing: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    figures_without_runs: list[str] = field(default_factory=list)
    has_predictions: bool = True
    shared: dict[tuple[str, str, Hashable], dict[str, Hashable]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    path_by_weights: dict[str, str] = field(default_factory=dict)
    path_by_logits: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, *problems: str) -> None:
        """Keep what is wrong with a run."""
        self.findings[path] += problems

    def attempt(self, path: str, find: Callable[..., Iterator[str]], *arguments: Any) -> None:
        """Keep what a generator finds, up to where a damaged part stops it, which is kept too.

        Args:
            path: of the run.
            find: yields problems.
            arguments: those of `find`.
        """
        try:
            for problem in find(*arguments):
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
                self.attempt(path, check_files.find_in_keys_of_file, file)
            return
        lines = read_lines(self.study.directory / PACKED, MAX_LINES_BYTES)
        for index, line in enumerate(lines, start=1):
            name = f"{PACKED}, line {index}"
            if name not in self.study.damaged:
                self.attempt(name, check_files.find_in_keys, line)

    def find_damaged_predictions(self) -> None:
        """Find that a packed study's predictions are damaged: once, and not for each of its runs."""
        if not self.study.is_packed:
            return
        try:
            self.study.predictions("")
        except _UNREADABLE as error:
            self.has_predictions = False
            self.add(PREDICTIONS, f"is damaged ({error})")

    def find_unread_runs(self) -> set[str]:
        """Find the runs in the folder of a packed study whose record no command reads; return their paths.

        A bad merge loses a line of runs.jsonl, or leaves the files of a run beside it.
        """
        if not self.study.is_packed:
            return set()
        known = {*self.study.results, *self.study.damaged}
        unread = set()
        for path in set(finished_runs(self.study.directory)) - known:
            unread.add(path)
            self.add(path, f"lies beside {PACKED}, which lacks it, and no command reads it")
        if self.has_predictions:
            for path in self.study.paths_with_predictions - known:
                unread.add(path)
                self.add(path, f"has predictions, and no record in {PACKED}")
        return unread

    def check_run(self, path: str, result: RunResult) -> None:
        """Check one run: its record, the files beside it, its predictions, its weights."""
        self.attempt(path, check_record.find_in_configuration, result)
        self.attempt(path, check_record.find_in_numbers, result)
        self.attempt(path, check_record.find_in_epochs, result)
        directory = RunDirectory(self.study.directory / path)
        self.attempt(path, check_training.find_in_schema, result)
        self.attempt(path, check_training.find_in_draws, result, directory)
        self.attempt(path, check_training.find_in_stages, result, directory)
        self.attempt(path, check_training.find_in_processes, result)
        self.attempt(path, check_training.find_in_heads, result)
        self.attempt(path, check_training.find_in_rows, result)
        self.attempt(path, check_training.find_in_start, result)
        self.attempt(path, self.find_other_weights, path, result)
        if not self.study.is_packed:
            self.attempt(path, directory.names_outside)
            self.attempt(path, check_files.find_in_config_file, directory, result)
            self.attempt(path, check_files.find_in_own_code, directory, result)
            self.attempt(path, check_files.find_in_metrics_file, directory, result)
            self.attempt(path, check_files.find_in_delta, directory, result)
        self.share(path, result)
        self.attempt(path, self.find_in_task, path, result)

    def find_other_weights(self, path: str, result: RunResult) -> Iterator[str]:
        """Find the weights of another run under this one's name."""
        # A run that diverged has none.
        if not result.delta_sha256:
            return
        if result.delta_sha256 not in self.path_by_weights:
            self.path_by_weights[result.delta_sha256] = path
            return
        path_of_first = self.path_by_weights[result.delta_sha256]
        first = self.study.results[path_of_first]
        if _are_two_trainings(result, first):
            yield f"has the weights of {path_of_first} (delta_sha256)"

    def find_other_logits(self, path: str, result: RunResult, table: pd.DataFrame) -> Iterator[str]:
        """Find the predictions of another run under this one's name: two trainings never agree in every bit.

        Args:
            path: of the run.
            result: its record.
            table: its predictions; column `logits`.
        """
        rows = [np.asarray(row, dtype=np.float64).tobytes() for row in table["logits"]]
        # A model that says the same of every row may say what another one does.
        if len(set(rows)) < 2:
            return
        of_table = hashlib.sha256(b"".join(rows)).hexdigest()
        if of_table not in self.path_by_logits:
            self.path_by_logits[of_table] = path
            return
        path_of_first = self.path_by_logits[of_table]
        first = self.study.results[path_of_first]
        if _are_two_trainings(result, first) and result.delta_sha256 != first.delta_sha256:
            yield f"has the logits of {path_of_first} (predictions)"

    def find_in_task(self, path: str, result: RunResult) -> Iterator[str]:
        """Find what the task and the predictions contradict.

        The task is the run's own YAML where it keeps one.
        """
        if not result.is_done:
            if self.has_predictions and self.study.predictions(path) is not None:
                yield f"is {result.status}, and has predictions"
            spec = task_spec.load(self.task_of(path, result))
            yield from check_training.find_in_batches(result, spec)
            return
        # Whatever stops this check before the score is recomputed, this reason stays.
        self.not_recomputed[path] = "the task or the predictions cannot be read"
        spec = task_spec.load(self.task_of(path, result))
        self.note_other_task(path, result, spec)
        if not result.config.get("primary_metric") and result.primary_metric != spec.primary:
            yield f"primary_metric is {result.primary_metric}, and that of the task {spec.primary}"
            return
        spec = spec.with_primary(result.primary_metric)
        yield from check_predictions.find_in_task(result, spec)
        yield from check_training.find_in_batches(result, spec)
        yield from check_training.find_in_shots(result, spec)
        if self.has_predictions:
            yield from self.find_in_predictions(path, result, spec)

    def task_of(self, path: str, result: RunResult) -> str:
        """Return the name of a run's task, which means the run's own YAML where it keeps one."""
        directory = RunDirectory(self.study.directory / path)
        # Trust is harmless here: no code is executed.
        return directory.user_name("tasks", result.task, trust=True)

    def find_in_predictions(self, path: str, result: RunResult, spec: TaskSpec) -> Iterator[str]:
        """Find what the predictions of a run contradict; the score is recomputed from them.

        Args:
            path: of the run.
            result: its record.
            spec: the task, with the primary metric of the run.
        """
        table = self.study.predictions(path)
        if table is None:
            self.not_recomputed[path] = "no predictions are stored"
            yield "has no predictions, and a score"
            return
        self.share_rows(path, result, table)
        yield from self.find_other_logits(path, result, table)
        yield from check_predictions.find_in_predictions(result, spec, table)
        reason = check_predictions.why_not_recomputed(spec)
        if reason:
            self.not_recomputed[path] = reason
        else:
            del self.not_recomputed[path]
            self.recomputed += 1

    def note_other_task(self, path: str, result: RunResult, spec: TaskSpec) -> None:
        """Note a task that was read otherwise than its YAML says here, by which the run is checked.

        Args:
            path: of the run.
            result: its record.
            spec: the task, as its YAML is here.
        """
        # The code of a user's own metric is not beside the run; schema 1 has no digest.
        if spec.evaluate or result.task_digest in (None, task_spec.task_digest(spec)):
            return
        self.differing[path].append("task_digest is not that of the task's YAML here")

    def check_figures(self) -> None:
        """Check that the numbers of figures rest on the runs of the study."""
        for csv in figure_runs.csvs_of(self.study.directory):
            name = f"figures/{csv.name}"
            if figure_runs.file_beside(csv).is_file():
                self.attempt(name, figure_runs.find_other_runs, csv, self.study.results)
            else:
                self.figures_without_runs.append(name)

    # --- what runs have in common

    def must_share(self, path: str, what: str, value: Hashable, why: str, group: Hashable) -> None:
        """Note a value that a run must share with the others of a group.

        Args:
            path: of the run.
            what: the value is, with the key of the record that has it.
            value: of the run.
            why: what the runs of the group have in common, in words.
            group: the same as values, by which its runs are found.
        """
        self.shared[what, why, group][path] = value

    def share(self, path: str, result: RunResult) -> None:
        """Note what a run's record must have in common with others."""
        self.share_counts(path, result)
        self.share_sizes(path, result)

    def share_counts(self, path: str, result: RunResult) -> None:
        """Note the numbers of rows and steps, which runs on the same data share."""
        data = result.data.get("train")
        rows = result.n_examples["train"]
        # A part of the train split selects the epoch, unless the validation split does.
        if result.selection != "validation":
            rows += result.n_examples["selection"]
        same_rows = (result.task, result.task_digest, data, result.limit, result.shots)
        self.must_share(path, "train rows (n_examples)", rows, "same data", same_rows)
        if result.processes and result.epochs:
            same_steps = (result.setting_hash, rows, data, result.epochs.total)
            steps = result.processes[-1].last_step
            what = "training steps (processes)"
            self.must_share(path, what, steps, "same settings and rows", same_steps)
        if result.truncated:
            splits = ["reported"]
            # Where a part of the train rows selects the epoch, each seed trains on others.
            if result.selection == "validation":
                splits.append("train")
            truncated = tuple(result.truncated.get(split) for split in splits)
            reported = result.data.get(result.split)
            same_texts = (result.setting_hash, result.backbone_weights, data, reported)
            what = "truncated rows (truncated)"
            self.must_share(path, what, truncated, "same settings, encoder and data", same_texts)

    def share_sizes(self, path: str, result: RunResult) -> None:
        """Note the sizes of the model and of what training changed in it, which runs of one setting share."""
        params = result.params
        task_head = digest([result.config.get("task_head"), result.config["backbone"]["name"]])
        same_model = (result.task, result.task_digest, result.backbone_weights, task_head)
        what = "number of parameters in all (params)"
        self.must_share(path, what, params.total, "same encoder, task and task head", same_model)
        if result.heads is not None:
            what = "number of layers (heads)"
            layers = len(result.heads)
            self.must_share(path, what, layers, "same encoder", result.backbone_weights)
        # With masks in the delta, each run may have chosen another number of entries to train.
        if params.stored_bytes != 4 * params.stored:
            return
        counts = (params.trainable, params.trainable_backbone, params.total, params.stored)
        same_setting = (
            result.setting_hash,
            result.backbone_weights,
            result.data.get("train"),
            result.method_code,
            digest(result.heads),
        )
        what = "trained, stored or total parameters (params)"
        self.must_share(path, what, counts, "same settings", same_setting)
        # A run that diverged stores nothing.
        if result.delta_bytes is not None:
            what = "size of the weights (delta_bytes)"
            self.must_share(path, what, result.delta_bytes, "same settings", same_setting)

    def share_rows(self, path: str, result: RunResult, table: pd.DataFrame) -> None:
        """Note the ids and correct labels of a run's predictions, which runs of the same data share.

        Args:
            path: of the run.
            result: its record.
            table: its predictions; columns `id` and `label`.
        """
        rows = digest([table["id"].tolist(), table["label"].tolist()])
        data = result.data.get(result.split)
        same_rows = (result.task, result.task_digest, data, result.limit)
        self.must_share(path, "ids or correct labels", rows, "same data", same_rows)

    def compare_runs(self) -> None:
        """Find the runs that differ from most of their group in the value that it must share.

        Where no value is that of most runs, every run of the group is named: one of them is wrong.
        """
        for (what, why, _), values in self.shared.items():
            counts = Counter(values.values()).most_common(2)
            if len(counts) < 2:
                continue
            # The two most frequent values, with the number of runs that have each.
            (usual, most), (_, second) = counts
            is_usual_right = most > second
            for path, value in values.items():
                if value == usual and is_usual_right:
                    continue
                other = next(at for at in values if values[at] != value)
                self.add(path, f"has other {what} than {other}, which has the {why}")

    def compare_inputs(self) -> None:
        """Note the runs that have other inputs than most of the runs that tables put beside them."""
        beside: dict[tuple[Hashable, ...], dict[str, str]] = defaultdict(dict)
        for path, result in self.study.results.items():
            schema = result.schema_version
            place = (result.protocol, result.backbone, result.task, schema)
            # A run that starts from another one has that one's weights.
            starts = tuple(link["run"] for link in result.started_from)
            for key in _INPUTS:
                beside[(key, *place, *starts)][path] = _text_of_input(result, key)
            for key in _INPUTS_OF_SETTING:
                setting = (key, *place, result.setting_hash)
                beside[setting][path] = _text_of_input(result, key)
        for (what, *_), values in beside.items():
            usual, _ = Counter(values.values()).most_common(1)[0]
            first = next(path for path in values if values[path] == usual)
            for path, value in values.items():
                if value != usual:
                    self.differing[path].append(f"has other {what} than {first}")

    def compare_starts(self) -> None:
        """Note the runs that started from other weights than those that the run of that name has now."""
        for path, result in self.study.results.items():
            for link in result.started_from:
                start = self.study.results.get(link["run"])
                if start is not None and start.delta_sha256 != link["delta_sha256"]:
                    self.differing[path].append(
                        f"started from other weights than {link['run']} has (started_from)"
                    )


def _text_of_input(result: RunResult, key: str) -> str:
    """Return an input of a run as a text; of the data, the splits that decide scores."""
    value = getattr(result, key)
    if key == "data":
        value = labelled_splits(result.data)
    return digest(value, 64)
