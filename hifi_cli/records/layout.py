"""The directory of a run: the files in it, and who may write to it."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifi_cli.config import registry
from hifi_cli.config.base import flatten, parse
from hifi_cli.config.own_code import digest_of_code, own_code_files
from hifi_cli.config.registry import read_yaml
from hifi_cli.config.run_config import RunConfig, paths_in_place_of_names
from hifi_cli.config.sources import override_value
from hifi_cli.config.specs import code_file
from hifi_cli.errors import ConflictError, MissingError, UsageError
from hifi_cli.files import MAKE_AGAIN, TEMPORARY_SUFFIX, atomic_path, read_jsonl, write_text
from hifi_cli.locks import is_locked, locked
from hifi_cli.records.record import SCHEMA, MetricsLine, Prediction, RunResult, validated
from hifi_cli.records.stored import is_packed
from hifi_cli.run_paths import RUN_PATTERNS
from hifi_cli.text import abbreviate

OTHER_PLACE = "keep both with variant=NAME or another --results-dir, or replace it with --force"

# The results directory of the canary's runs of `hifi versus`, inside that of the command.
CANARY = "canary"
# A run keeps copies of the user's own files in this folder of its directory.
USER_FILES = "own"


@dataclass(frozen=True)
class _UserFile:
    """A file of the user's own that a configuration names.

    Attributes:
        kind: `tasks`, `methods` or `rankings`.
        source: the file; None: the name means a shipped one, or the run's copy alone.
        copy: where the run keeps it.
    """

    kind: str
    source: Path | None
    copy: Path

    @property
    def is_copied(self) -> bool:
        """Whether the copy has the text of the file; both may be missing."""
        return _text_of(self.source) == _text_of(self.copy)


class RunDirectory:
    """The directory of a run; results.json is written last.

    Attributes:
        checkpoint: the state of an unfinished run.
        predictions: of the reported split; others are in predictions-SPLIT.jsonl.
        pruned: says that the weights were dropped, if they were.
        user_files: copies of the user's own YAMLs, as KIND/NAME.yaml, with which the run is read again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path.parent / f".{path.name}.lock"
        self.config_file = path / "config.yaml"
        self.results = path / "results.json"
        self.delta = path / "delta.safetensors"
        self.pruned = path / "pruned.json"
        self.metrics = path / "metrics.jsonl"
        self.predictions = path / "predictions.jsonl"
        self.checkpoint = path / "checkpoints" / "last.pt"
        self.user_files = path / USER_FILES

    @classmethod
    def of(cls, config: RunConfig, results_dir: Path) -> "RunDirectory":
        """Return the directory where a configuration's run belongs."""
        return cls(results_dir / config.run_path)

    def user_name(self, kind: str, name: str, *, trust: bool = False) -> str:
        """Return a name, which carries the copy of the user's own file where the run keeps one.

        A name of code always carries it: without a copy, no other file of that name stands for it.

        Args:
            kind: `tasks`, `methods` or `rankings`.
            name: as the run's configuration has it.
            trust: whether the code that the file names may be executed.

        Raises:
            ValueError: the name is a path, which would stand for a file that the user did not name.
        """
        if registry.own_file(name):
            return name
        copy = self._copy_of(kind, registry.plain_name(name))
        is_code = kind == "rankings" and name.endswith(".py")
        if is_code or copy.is_file():
            return registry.NameWithFile(name, copy, is_trusted=trust)
        return name

    # --- a run that begins, and ends

    @property
    def is_locked(self) -> bool:
        """Whether a process has begun the run and not ended it."""
        try:
            return is_locked(self.lock)
        except OSError:
            # The process has just ended, and removed its lock.
            return False

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Hold the lock of the run; yields whether it is held.

        Where no lock can be written, as on a read-only disk, a finished run is read without it:
        nothing there can change.
        """
        with ExitStack() as stack:
            try:
                is_held = stack.enter_context(locked(self.lock, wait=False))
            except OSError:
                if not self.results.is_file():
                    raise
                is_held = True
            yield is_held

    def remove_parts(self) -> None:
        """Remove the parts of files that killed processes left; the caller holds the lock.

        Who holds it is the only living writer, so that every part is of a killed one.
        """
        for part in self.path.glob(f"**/.*{TEMPORARY_SUFFIX}"):
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            else:
                part.unlink()

    def check_is_of(self, config: RunConfig) -> None:
        """Refuse a directory that holds a run of another configuration.

        Raises:
            ConflictError: it does; differing keys are named.
        """
        if not self.config_file.is_file() and not self.results.is_file():
            return
        if self.results.is_file():
            schema = self.read_result().schema_version
            if schema != SCHEMA:
                raise ConflictError(
                    f"{self.path} holds a run of schema {schema}, and this version of hifi writes"
                    f" schema {SCHEMA}; {OTHER_PLACE}"
                )
        stored = self.read_config()
        # Two files of the user's own may have one name: the run has copies of those that it used.
        for file in self._user_files(config):
            # The digests of a task and of its rows, which are compared later, tell more than its text.
            if file.kind != "tasks" and not file.is_copied:
                kind = file.kind.removesuffix("s")
                raise ConflictError(
                    f"{self.path} holds a run by another {kind} {file.copy.name}"
                    f" ({self._difference(file)}); {OTHER_PLACE}"
                )
        if stored.config_hash != config.config_hash:
            differing = abbreviate(_differences(stored, config))
            raise ConflictError(
                f"{self.path} holds a run of another configuration ({differing}); {OTHER_PLACE}"
            )

    def _difference(self, file: _UserFile) -> str:
        """Return in words how a user's file and the run's copy differ, of which one may be missing."""
        inside = file.copy.relative_to(self.path)
        if file.source is None:
            return f"{inside} is a file of your own, and this command names none"
        if not file.copy.is_file():
            return f"it keeps no copy of {file.source}"
        return f"{inside} differs from {file.source}"

    def begin(self, config: RunConfig, *, anew: bool) -> None:
        """Prepare the directory for a run that begins or goes on, and write its settings.

        Args:
            config: the run's.
            anew: also where there is a checkpoint to continue from, a former run is removed first.

        Raises:
            ConflictError: not anew, and a finished run has been copied here since the caller looked.
        """
        # `merge` takes no lock, and scoring heads before the training may have taken an hour.
        if not anew and self.results.is_file():
            raise ConflictError(
                f"{self.path} holds a finished run that was copied there while this one was prepared:"
                " repeat the command, which compares the two"
            )
        # A run that goes on from its checkpoint keeps what it has written.
        if anew or not self.checkpoint.is_file():
            self.clear()
        self.write_settings(config)

    def write_settings(self, config: RunConfig) -> None:
        """Write config.yaml, and copies of the user's own YAMLs and methods, and of no others."""
        copies = []
        for file in self._user_files(config):
            if file.source:
                # Byte by byte: the record has the digest of the code.
                with atomic_path(file.copy) as temporary:
                    shutil.copyfile(file.source, temporary)
                copies.append(file.copy)
        for path in self.user_files.glob("**/*"):
            if path.is_file() and path not in copies:
                path.unlink()
        self.write_config(config)

    def write_config(self, config: RunConfig) -> None:
        """Write config.yaml, whose first line has the configuration's hash."""
        text = registry.yaml_text(config.model_dump(mode="json"))
        head = f"# the resolved configuration of this run; hash {config.config_hash}"
        write_text(self.config_file, f"{head}\n{text}")

    def finish(
        self, result: RunResult, config: RunConfig, log_history: Sequence[MetricsLine]
    ) -> None:
        """Store the result of the run, which is finished then.

        Args:
            result: its record.
            config: its settings.
            log_history: all lines of metrics.jsonl.
        """
        # A directory that was removed while the run trained is there again, but its settings are not.
        if not self.config_file.is_file():
            self.write_settings(config)
        # Lines may be missing, after a moment in which the disk was full, and the last ones need not
        # have reached the disk.
        self.write_metrics(log_history)
        # In this order: a process that is killed in between leaves a finished run.
        result.write(self.results)
        self.checkpoint.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove a former run's files, results.json first: no half of it can be mistaken for a run.

        The copies of the user's own YAMLs stay for `begin`: the next run may be made from them.
        """
        self.results.unlink(missing_ok=True)
        predictions = [self.predictions, *self.path.glob("predictions-*.jsonl")]
        others = [self.pruned, self.metrics, self.checkpoint, self.config_file]
        for path in [self.delta, *predictions, *others]:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path / "tensorboard", ignore_errors=True)

    # --- its files

    def read_config(self) -> RunConfig:
        """Return the configuration that results.json has, or config.yaml until there is one.

        Raises:
            MissingError: there is none.
            UsageError: it is damaged.
        """
        if self.results.is_file():
            return parse(RunConfig, self.read_result().config, str(self.results))
        try:
            return parse(RunConfig, read_yaml(self.config_file), str(self.config_file))
        except UsageError as error:
            # The checkpoint says by itself of which configuration it is.
            raise UsageError(
                f"{error}; if the file is damaged, delete it: the run's command writes it again, and"
                " goes on from the checkpoint"
            ) from None

    def with_user_yamls(self, config: RunConfig, *, trust: bool) -> RunConfig:
        """Return a configuration whose names mean the run's own YAMLs, where it keeps copies.

        Args:
            config: as the run stores it.
            trust: whether the code that they name may be executed.
        """
        changes: dict[str, Any] = {
            "task": self.user_name("tasks", config.task, trust=trust),
            "method": self.user_name("methods", config.method, trust=trust),
        }
        if config.stage1:
            method = self.user_name("methods", config.stage1.method, trust=trust)
            changes["stage1"] = config.stage1.model_copy(update={"method": method})
        rank = self.user_name("rankings", config.heads.rank, trust=trust)
        changes["heads"] = config.heads.model_copy(update={"rank": rank})
        return config.model_copy(update=changes)

    def has_other_code(self, result: RunResult) -> bool:
        """Return whether the run keeps copies of the user's own code that are not the code of the run.

        Code is not everywhere where a run is: without --trust, none is copied.

        Args:
            result: the record of the run.

        Raises:
            UsageError: a method's YAML names code outside of the run.
        """
        config = result.run_config()
        if config is None:
            return False
        # Trust is harmless here: no code is executed.
        files = own_code_files(self.with_user_yamls(config, trust=True))
        if not files or not all(file.is_file() for file in files):
            return False
        return digest_of_code(files) != result.method_code

    def names_outside(self) -> Iterator[str]:
        """Yield where files of the run name files outside of it, which must not be read for it."""
        if self.config_file.is_file():
            for key, problem in paths_in_place_of_names(read_yaml(self.config_file)).items():
                yield f"{self.config_file.name}: {key}: {problem}"
        for file in sorted(self.user_files.glob("methods/*.yaml")):
            try:
                code_file(file)
            except UsageError as error:
                yield str(error)

    def _copy_of(self, kind: str, name: str) -> Path:
        """Return where the run keeps the user's own file of that name: a YAML, or Python code."""
        file_name = name if name.endswith(".py") else f"{name}.yaml"
        return self.user_files / kind / file_name

    def _user_files(self, config: RunConfig) -> Iterator[_UserFile]:
        """Yield the files that a configuration names, with the code that a method's YAML names."""
        named: list[tuple[str, str]] = [("tasks", config.task)]
        for stage_config in config.stage_configs:
            named.append(("methods", stage_config.method))
        named.append(("rankings", config.heads.rank))
        for kind, name in named:
            source = registry.own_file(name)
            copy = self._copy_of(kind, name)
            yield _UserFile(kind, source, copy)
            yaml = source or copy
            if kind != "methods" or not yaml.is_file():
                continue
            code = code_file(yaml)
            if code:
                source_of_code = source.parent / code if source else None
                yield _UserFile(kind, source_of_code, copy.parent / code)

    def read_result(self) -> RunResult:
        """Return the result of a finished run.

        Raises:
            MissingError: the run is not finished.
            UsageError: it is damaged.
        """
        if self.results.is_file():
            return RunResult.read(self.results)
        for directory in self.path.parents:
            if is_packed(directory):
                raise MissingError(
                    f"{self.path} holds no run with its weights: {directory} is a packed study, which has"
                    f" records and predictions alone; tables read it with --results-dir {directory}"
                )
        raise MissingError(f"{self.path} holds no finished run; hifi ls runs lists all")

    def write_metrics(self, lines: Sequence[MetricsLine]) -> None:
        """Write metrics.jsonl anew, with all lines of a run so far; at no moment is it missing."""
        write_text(self.metrics, "".join(map(_metrics_text, lines)))

    def append_metrics(self, line: MetricsLine) -> None:
        """Append a line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(_metrics_text(line))

    def write_predictions(
        self, predictions: Sequence[Prediction], split: str | None = None
    ) -> Path:
        """Store the predictions of the reported split, or of another one in a file of its own."""
        path = self.predictions
        if split:
            path = self.path / f"predictions-{split}.jsonl"
        lines = (json.dumps(prediction.model_dump()) + "\n" for prediction in predictions)
        write_text(path, "".join(lines))
        return path

    def read_predictions(self) -> list[Prediction]:
        """Return the predictions of the reported split, in the order of its rows.

        Raises:
            MissingError: there are none.
            UsageError: a line is damaged, which is named, or there is no line.
        """
        lines = read_jsonl(self.predictions)
        # Every finished run has rows. A table of none would lack its columns.
        if not lines:
            raise UsageError(f"{self.predictions} is damaged ({MAKE_AGAIN}): it is empty")
        return [
            validated(Prediction, line, f"{self.predictions}, line {index}")
            for index, line in enumerate(lines, start=1)
        ]


def unfinished_runs(results_dir: Path) -> list[RunDirectory]:
    """Return every run in a results directory that has a configuration and no result, sorted by path."""
    return [run for run in begun_runs(results_dir) if run.config_file.is_file()]


def begun_runs(results_dir: Path) -> list[RunDirectory]:
    """Return every run that has begun and has no result, sorted by path.

    A process that has just begun may have written nothing of its run yet, not even its configuration.
    """
    begun: set[Path] = set()
    for pattern in RUN_PATTERNS:
        begun.update(file.parent for file in results_dir.glob(f"{pattern}/config.yaml"))
        begun.update(_locked_paths(results_dir, pattern))
    runs = [RunDirectory(path) for path in sorted(begun, key=Path.as_posix)]
    return [run for run in runs if not run.results.is_file()]


def _locked_paths(results_dir: Path, pattern: str) -> Iterator[Path]:
    """Yield the directories of runs whose lock a process holds.

    A process that has just begun reads data and encoder first: for some seconds the lock is all that
    shows its run.

    Args:
        results_dir: has the runs.
        pattern: of the directories of runs.
    """
    folder, _, name = pattern.rpartition("/")
    for lock in results_dir.glob(f"{folder}/.{name}.lock"):
        path = lock.parent / lock.name.removeprefix(".").removesuffix(".lock")
        if RunDirectory(path).is_locked:
            yield path


def grid_logs(results_dir: Path, grid: str) -> Path:
    """Return the folder for what the commands of a grid print, in the grid's own folder."""
    return results_dir / "grids" / grid / "logs"


def grids_begun(results_dir: Path) -> list[Path]:
    """Return the folders of the grids that have begun in a results directory, sorted."""
    # The place of one grid's logs, with a pattern for its name.
    pattern = grid_logs(Path(), "*")
    return sorted(logs.parent for logs in results_dir.glob(str(pattern)))


def _differences(stored: RunConfig, present: RunConfig) -> list[str]:
    """Return the keys in which two configurations differ, with both values."""
    there = _set_values(stored)
    here = _set_values(present)
    differing = []
    for key in {**here, **there}:
        # A setting that one of them leaves to its method differs from one that is null there.
        is_set_in_both = key in there and key in here
        if is_set_in_both and there[key] == here[key]:
            continue
        value_there = _in_words(there, key)
        value_here = _in_words(here, key)
        differing.append(f"{key} is {value_there} there, {value_here} here")
    return differing


def _set_values(config: RunConfig) -> dict[str, Any]:
    """Return the values of a configuration by dotted key; `settings` lacks what no layer sets."""
    values = flatten(config.model_dump(mode="json"))
    return {key: value for key, value in values.items() if value != {}}


def _in_words(values: Mapping[str, Any], key: str) -> str:
    """Return a value as the command line takes it, and in words where there is none."""
    if key not in values:
        return "not set"
    return override_value(values[key])


def _metrics_text(line: MetricsLine) -> str:
    """Return a line of metrics.jsonl."""
    return json.dumps(line.model_dump(exclude_none=True)) + "\n"


def _text_of(path: Path | None) -> str:
    """Return the content of a user's file, or of its copy; empty where it is not there."""
    if path is None or not path.is_file():
        return ""
    return path.read_text(encoding="utf-8")
